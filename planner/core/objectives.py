"""What is minimised: which objectives a question may have, and how the answers speak of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.hardware.host import DEFAULT_IDLE_SHARE, Power
from costmodel.objectives import OBJECTIVES
from planner.core.answer import Assumption
from planner.core.errors import UsageError
from planner.core.numbers import energy_text, percent, significant
from planner.core.request import Request

__all__ = ["better_word", "check_layer_objective", "check_rates", "cost_of", "cost_text", "stated_rates"]

_BETTER_SERVING = {
    "throughput": "faster",
    "latency": "quicker",
    "ttft": "quicker",
    "tpot": "quicker",
}


def better_word(objective: str) -> str:
    """What the better of two plans is: "the first is ... than the second".

    >>> better_word("money"), better_word("latency")
    ('cheaper', 'quicker')
    """
    return OBJECTIVES[objective].better if objective in OBJECTIVES else _BETTER_SERVING[objective]


def check_rates(objective: str | None, devices: Iterable[Device]) -> None:
    """Refuse an objective that counts what nobody has stated, such as a price.

    Parameters
    ----------
    objective : str or None
    devices : iterable of Device
        All that a plan may use.

    Raises
    ------
    UsageError
    """
    found = OBJECTIVES.get(objective or "step_time")
    if found is None or not found.is_per_device:
        return
    for device in devices:
        if found.cost_of(device, None, next(iter(device.peak_flop_per_s))) is None:
            raise UsageError(f"--objective {objective}: device '{device.name}' {found.unstated}")


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
    if objective is not None and objective not in OBJECTIVES:
        others = [name for name in OBJECTIVES if name != "mfu" and not name.startswith("tokens")]
        raise UsageError(
            f"--objective {objective}: is for networks that generate text; plans with a split per layer are ranked by "
            f"{', '.join(others[:-1])} or {others[-1]}"
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


def cost_text(objective: str, cost: float | None) -> str:
    """What a step costs beside its time, where that is what plans are ranked by; begins with a comma.

    >>> cost_text("energy", 2300.0), cost_text("money", 0.5), cost_text("step_time", None)
    (', 2.30 kJ', ', 0.500 USD', '')
    """
    if cost is None:
        return ""
    unit = OBJECTIVES[objective].unit
    return f", {energy_text(cost)}" if unit == "J" else f", {significant(cost)} {unit}"


def cost_of(objective: str, figures: Mapping[str, Any]) -> float | None:
    """What a step costs by an objective that has a figure; else None.

    >>> cost_of("energy", {"energy_per_step_j": 2300.0}), cost_of("step_time", {})
    (2300.0, None)
    """
    found = OBJECTIVES.get(objective)
    return None if found is None or found.figure is None else figures.get(found.figure.name)
