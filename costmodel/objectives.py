"""What plans can be ranked by, each objective declared once: by the step, or by what the devices in use cost while it lasts.

    cost of a step = sum over the devices in use of  waiting step + (computing - waiting) computing_s

*waiting* and *computing* are what a device costs per second while it waits and while it computes: 1 for GPU hours, its price for money,
its peak for the share of the peak that is used (MFU), its power with its share of the host for energy. Both terms grow with their times, so
lower bounds of the times give one of the cost. *computing_s* is the time in which a device computes in a step, averaged over the
devices (`costmodel.hardware.host` says what counts as computing). Devices that a plan leaves out cost nothing.

A new objective is one more `Objective` (`register`): searches, ``--objective``, tables, JSON and plan files take it from here.
Plans that serve are ranked by times and rates of requests instead (`SERVING_OBJECTIVES`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.fields import Figure
from costmodel.hardware.device import Device
from costmodel.hardware.host import DEFAULT_IDLE_SHARE, DeviceCost, Host, Power

_SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Something that training plans can be ranked by.

    Attributes
    ----------
    name : str
        As ``--objective`` takes it.
    doc : str
        What is minimised, in a few words.
    better : str
        What the better of two plans is: "The first plan is ... than the second."
    figure_word : str
        What tables call the figure that plans are compared by; empty: as the objective.
    is_rate : bool
        More of that figure is better.
    cost : function of (Device, Host or None, format), optional
        What a device costs per second in a format such as "bf16"; it returns None where nobody has stated it. Without the function only the
        step counts, however many devices are in use.
    unstated : str
        Follows "device 'x'" in the error for a device without a stated cost: what is missing, and how to state it.
    figure : Figure, optional
        The cost of a step as an answer gives it.
    unit : str
        Of the figure.
    rate : str
        What an answer calls the cost of a device per second, such as "price"; empty: as the objective.
    rate_text : function of (Device, Host or None), optional
        That cost in words; else both costs in the unit per second.
    option : str
        Which field of a request states it in place of files; empty: none does.
    is_small : bool
        One step costs too little to read: answers show it per million tokens or samples, under its unit.
    """

    name: str
    doc: str
    better: str
    figure_word: str = ""
    is_rate: bool = False
    cost: Callable[[Device, Host | None, str], DeviceCost | None] | None = None
    unstated: str = ""
    figure: Figure | None = None
    unit: str = ""
    rate: str = ""
    rate_text: Callable[[Device, Host | None], str] | None = None
    option: str = ""
    is_small: bool = False

    @property
    def is_per_device(self) -> bool:
        """Whether the devices in use count.

        >>> OBJECTIVES["money"].is_per_device, OBJECTIVES["step_time"].is_per_device
        (True, False)
        """
        return self.cost is not None

    def cost_of(self, device: Device, host: Host | None, compute: str) -> DeviceCost | None:
        """What a device costs per second in a format; None where only the step counts, or nobody has stated it."""
        return None if self.cost is None else self.cost(device, host, compute)

    def rate_of(self, device: Device, host: Host | None, compute: str) -> str:
        """The same in words; empty where there is none."""
        cost = self.cost_of(device, host, compute)
        if cost is None:
            return ""
        if self.rate_text is not None:
            return self.rate_text(device, host)
        return f"{cost.computing:g} {self.unit}/s of a computing GPU, {cost.waiting:g} of a waiting one, with its share of the host"


OBJECTIVES: dict[str, Objective] = {}


def register(objective: Objective) -> Objective:
    """Make an objective known under its name.

    Raises
    ------
    ValueError
        The name is taken.
    """
    if objective.name in OBJECTIVES:
        raise ValueError(f"there is an objective '{objective.name}' already")
    OBJECTIVES[objective.name] = objective
    return objective


def with_figures() -> Mapping[str, Objective]:
    """The objectives that say what a step costs, by the name of their figure.

    >>> with_figures()["energy_per_step_j"].name
    'energy'
    """
    return {found.figure.name: found for found in OBJECTIVES.values() if found.figure is not None}


def step_costs(
    devices: Sequence[tuple[Device, Host | None, float, int]], step_s: float, compute: str
) -> Mapping[str, float | None]:
    """What a step costs by every objective that has a figure, by the figure's name; None where a device states no cost.

    Parameters
    ----------
    devices : sequence of (Device, Host or None, computing_s, count)
        The kinds of devices in use, each with the time that one computes in a step.
    step_s : float
    compute : str
        The format of the plan, such as "bf16".

    Examples
    --------
    >>> device = Device(
    ...     name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11, price_per_hour=3.6
    ... )
    >>> costs = step_costs([(device, None, 1.0, 8)], 2.0, "fp32")
    >>> round(costs["money_per_step"], 6), costs["energy_per_step_j"]
    (0.016, None)
    """
    found: dict[str, float | None] = {}
    for name, objective in with_figures().items():
        costs = [objective.cost_of(device, host, compute) for device, host, _, _ in devices]
        parts = [
            float(cost.of_step(step_s, computing_s, count))
            for cost, (_, _, computing_s, count) in zip(costs, devices, strict=True)
            if cost is not None
        ]
        found[name] = sum(parts) if len(parts) == len(devices) else None
    return found


def _hours(_device: Device, _host: Host | None, _compute: str) -> DeviceCost:
    return DeviceCost(waiting=1.0, computing=1.0)


def _peak(device: Device, _host: Host | None, compute: str) -> DeviceCost:
    peak = device.peak(compute)
    return DeviceCost(waiting=peak, computing=peak)


def _money(device: Device, _host: Host | None, _compute: str) -> DeviceCost | None:
    if device.price_per_hour is None:
        return None
    price = device.price_per_hour / _SECONDS_PER_HOUR
    return DeviceCost(waiting=price, computing=price)


def _energy(device: Device, host: Host | None, _compute: str) -> DeviceCost | None:
    power = Power.of(device, host)
    return None if power is None else power.cost


def _power_text(device: Device, host: Host | None) -> str:
    power = Power.of(device, host)
    assert power is not None
    idle = "" if device.idle_power_w is not None else f" ({100 * DEFAULT_IDLE_SHARE:g} % of that, an assumption)"
    return f"{power.busy_w:g} W of a computing GPU, {power.idle_w:g} W of a waiting one{idle}, {power.host_w:g} W of its host"


register(Objective(name="step_time", doc="the time of a step", better="faster", figure_word="step time"))
register(
    Objective(name="tokens_per_s", doc="the time per token", better="faster", figure_word="tokens/s", is_rate=True)
)
register(
    Objective(
        name="tokens_per_s_per_gpu",
        doc="GPU seconds per token",
        better="more efficient",
        figure_word="tokens/s/GPU",
        is_rate=True,
        cost=_hours,
    ),
)
register(
    Objective(
        name="mfu",
        doc="the peak of the GPUs in use x time",
        better="more efficient",
        figure_word="MFU",
        is_rate=True,
        cost=_peak,
    )
)
register(Objective(name="gpu_hours", doc="GPUs in use x time", better="cheaper", figure_word="GPU hours", cost=_hours))
register(
    Objective(
        name="money",
        doc="USD per step",
        better="cheaper",
        figure_word="USD",
        cost=_money,
        unstated=(
            "states no price; write 'price_per_hour: X' (USD per device) in a device file and name it with --device, give --price, "
            "or use --objective gpu_hours"
        ),
        figure=Figure(
            name="money_per_step", doc="In USD; null where no `price_per_hour` is stated.", kind="number", optional=True
        ),
        unit="USD",
        rate="price",
        rate_text=lambda device, _: f"{device.price_per_hour:g} USD per GPU and hour",
        option="price_per_hour",
        is_small=True,
    )
)
register(
    Objective(
        name="energy",
        doc="joules per step",
        better="more energy-efficient",
        figure_word="energy",
        cost=_energy,
        unstated=(
            "states no power; write 'power: {busy: 700 W, idle: 100 W}' in a device file and name it with --device, or give --power"
        ),
        figure=Figure(
            name="energy_per_step_j",
            doc="Of the GPUs in use and their hosts, in joules; null where no `power` is stated.",
            kind="number",
            optional=True,
        ),
        unit="J",
        rate="power",
        rate_text=_power_text,
        option="power_w",
    )
)


_RATE = "output_tokens_per_s"
# What a device costs per second where devices count alike.
ALIKE = DeviceCost(waiting=1.0, computing=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingObjective:
    """Something that plans that serve can be ranked by.

    Attributes
    ----------
    better, figure_word : str
        As of an `Objective`.
    figure : str
        Of a plan: a time, or the rate of output tokens, which counts as the time per token.
    is_per_device : bool
        Whether the devices in use count.
    cost : str
        Name of the `Objective` that says what one costs per second; empty: they count alike.
    cost_figure : str
        What an output token costs, or a million of them, as an answer gives it.
    """

    better: str
    figure_word: str
    figure: str = _RATE
    is_per_device: bool = False
    cost: str = ""
    cost_figure: str = ""

    @property
    def is_rate(self) -> bool:
        """Whether more of the figure is better."""
        return self.figure == _RATE and not self.cost

    def cost_of(self, device: Device, host: Host | None, compute: str) -> DeviceCost | None:
        """What a device costs per second; None where nobody has stated it."""
        return OBJECTIVES[self.cost].cost_of(device, host, compute) if self.cost else ALIKE

    def score(
        self,
        figures: Mapping[str, Any],
        workers: Any,
        readers: Any = 0,
        costs: tuple[DeviceCost, DeviceCost] = (ALIKE, ALIKE),
    ) -> Any:
        """What is minimised, from the figures and the devices in use of one plan, or of many: seconds, or what an output token costs.

        Parameters
        ----------
        figures : mapping
            Of `costmodel.serving.plan.ServingCosts`.
        workers, readers : int or array
            Devices in use, and those of them that only read prompts.
        costs : pair of DeviceCost
            Of a device that does not only read prompts, and of one that does.

        Examples
        --------
        Eight devices of 700 W (100 W when waiting) make 50 tokens a second, each in 0.1 s of one device: 800 / 50 + 0.1 x 600 J.

        >>> SERVING_OBJECTIVES["tokens_per_s_per_gpu"].score({"output_tokens_per_s": 50.0}, 8)
        0.16
        >>> power, figures = DeviceCost(waiting=100.0, computing=700.0), {"output_tokens_per_s": 50.0, "kernel_gpu_s": 0.1}
        >>> SERVING_OBJECTIVES["energy"].score({**figures, "prefill_kernel_gpu_s": 0.0}, 8, 0, (power, power))
        76.0
        """
        if self.figure != _RATE:
            return figures[self.figure]
        token_s = 1.0 / figures[_RATE]
        if not self.is_per_device:
            return token_s
        each, reading = costs
        score = ((workers - readers) * each.waiting + readers * reading.waiting) * token_s
        for cost, name in ((each, "kernel_gpu_s"), (reading, "prefill_kernel_gpu_s")):
            if cost.computing > cost.waiting:
                score = score + (cost.computing - cost.waiting) * figures[name]
        return score


# Percentiles of the times of requests that are predicted and can be limited.
PERCENTILES = (50, 90, 99)


def mean_of(figure: str) -> str:
    """The mean of a time that a figure is a percentile of; the figure itself where it is a mean.

    >>> mean_of("ttft_p99_s"), mean_of("tpot_s")
    ('ttft_s', 'tpot_s')
    """
    return f"{figure.partition('_')[0]}_s"


SERVING_OBJECTIVES: Mapping[str, ServingObjective] = {
    "throughput": ServingObjective(better="faster", figure_word="output"),
    "latency": ServingObjective(better="quicker", figure_word="request", figure="request_s"),
    "ttft": ServingObjective(better="quicker", figure_word="first token", figure="ttft_s"),
    "tpot": ServingObjective(better="quicker", figure_word="per token", figure="tpot_s"),
    "tokens_per_s_per_gpu": ServingObjective(better="more efficient", figure_word="output/GPU", is_per_device=True),
    "money": ServingObjective(
        better="cheaper",
        figure_word="USD",
        is_per_device=True,
        cost="money",
        cost_figure="money_per_million_output_tokens",
    ),
    "energy": ServingObjective(
        better="more energy-efficient",
        figure_word="energy",
        is_per_device=True,
        cost="energy",
        cost_figure="energy_per_output_token_j",
    ),
}
