"""What is minimised: which objectives a question may have, and how the answers speak of them."""

from __future__ import annotations

from collections.abc import Iterable

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.hardware.host import DEFAULT_IDLE_SHARE, Power
from planner.core.answer import Assumption
from planner.core.errors import UsageError
from planner.core.numbers import energy_text, percent, significant
from planner.core.request import Request
from strategies.layerwise.score import LAYER_OBJECTIVES

__all__ = ["BETTER", "check_layer_objective", "check_rates", "cost_text", "stated_rates"]

# The plan that is first, against another: "... is faster".
BETTER = {
    "step_time": "faster",
    "tokens_per_s": "faster",
    "tokens_per_s_per_gpu": "more efficient",
    "mfu": "more efficient",
    "gpu_hours": "cheaper",
    "money": "cheaper",
    "energy": "thriftier",
    "throughput": "faster",
    "latency": "quicker",
    "ttft": "quicker",
    "tpot": "quicker",
}


def check_rates(objective: str | None, devices: Iterable[Device]) -> None:
    """Refuse an objective that needs a price or a power that nobody has stated.

    Parameters
    ----------
    objective : str or None
    devices : iterable of Device
        All that a plan may use.

    Raises
    ------
    UsageError
    """
    for device in devices:
        if objective == "money" and device.price_per_hour is None:
            raise UsageError(
                f"--objective money: device '{device.name}' states no price; write 'price_per_hour: X' (USD per device) in a device file "
                "and name it with --device, give --price, or use --objective gpu_hours"
            )
        if objective == "energy" and device.busy_power_w is None:
            raise UsageError(
                f"--objective energy: device '{device.name}' states no power; write 'power: {{busy: 700 W, idle: 100 W}}' in a device file "
                "and name it with --device, or give --power"
            )


def check_layer_objective(objective: str | None, device: Device, *, reads_tokens: bool) -> None:
    """Refuse what plans with a split per layer cannot be ranked by.

    Raises
    ------
    UsageError
        Tokens of a network that reads none, the share of the peak (which is counted for transformers), or a missing price or power.
    """
    if objective == "mfu":
        raise UsageError(
            "--objective mfu: the share of the peak in use is counted for transformers over a device mesh; plans with a split per layer "
            "are ranked the same way by --objective gpu_hours"
        )
    if objective is not None and objective not in LAYER_OBJECTIVES:
        raise UsageError(
            f"--objective {objective}: is for networks that generate text; plans with a split per layer are ranked by step_time, "
            "gpu_hours, money or energy"
        )
    if objective in ("tokens_per_s", "tokens_per_s_per_gpu") and not reads_tokens:
        same = "step_time" if objective == "tokens_per_s" else "gpu_hours"
        raise UsageError(f"--objective {objective}: the network reads no tokens; --objective {same} ranks its plans so")
    check_rates(objective, [device])


def stated_rates(request: Request, cluster: Cluster) -> tuple[Assumption, ...]:
    """What a GPU costs or draws, where that is what plans are ranked by."""
    device, power = cluster.device, Power.of(cluster.device, cluster.host)
    if request.objective == "money" and device.price_per_hour is not None:
        source = "given" if request.price_per_hour is not None else "cluster or device file"
        return (Assumption(name="price", value=f"{device.price_per_hour:g} USD per GPU and hour", source=source),)
    if request.objective == "energy" and power is not None:
        idle = "" if device.idle_power_w is not None else f" ({percent(DEFAULT_IDLE_SHARE)} of that, an assumption)"
        value = f"{power.busy_w:g} W of a computing GPU, {power.idle_w:g} W of a waiting one{idle}, {power.host_w:g} W of its host"
        source = "given" if request.power_w is not None else "device file"
        return (Assumption(name="power", value=value, source=source),)
    return ()


def cost_text(objective: str, *, money: float | None, joules: float | None) -> str:
    """What a step costs beside its time, where that is what plans are ranked by; begins with a comma.

    >>> cost_text("energy", money=0.5, joules=2300.0), cost_text("step_time", money=0.5, joules=2300.0)
    (', 2.30 kJ', '')
    """
    if objective == "money" and money is not None:
        return f", {significant(money)} USD"
    return f", {energy_text(joules)}" if objective == "energy" and joules is not None else ""
