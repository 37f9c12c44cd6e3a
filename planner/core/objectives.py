"""What is minimised: which objectives a question may have, and how the answers speak of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from costmodel.hardware.device import Device
from costmodel.hardware.host import Host
from costmodel.objectives import OBJECTIVES, SERVING_OBJECTIVES, Objective, ServingObjective, with_figures
from costmodel.tolerances import EQUAL
from planner.core.answer import Assumption, RankedPlan
from planner.core.blocks import Column
from planner.core.errors import UsageError
from planner.core.numbers import energy_text, rough_percent, significant
from planner.core.request import Request


def better_word(objective: str) -> str:
    """What the better of two plans is: "the first is ... than the second".

    >>> better_word("money"), better_word("latency")
    ('cheaper', 'quicker')
    """
    return _declared(objective).better


def _declared(objective: str) -> Objective | ServingObjective:
    return OBJECTIVES.get(objective) or SERVING_OBJECTIVES[objective]


def worse_word(objective: str) -> str:
    """What the worse of two plans is.

    >>> worse_word("step_time"), worse_word("latency"), worse_word("money"), worse_word("energy")
    ('slower', 'slower', 'dearer', 'less energy-efficient')
    """
    better = better_word(objective)
    return {"cheaper": "dearer"}.get(better, f"less {better[5:]}" if better.startswith("more ") else "slower")


# From twice as much on, it is said how many times as much: a gap from which rounding makes it so.
_TWICE = 1.995


def change_column(ratios: Sequence[float | None], objective: str, priority: int) -> Column:
    """By how much plans differ from the first, as every table says it: the change of the figure that they are ranked by.

    Parameters
    ----------
    ratios : sequence of float or None
        Scores of the plans after the first over the first's: above 1 is worse, also where more of the figure is better. None: no plan.
    objective : str
    priority : int
        Of the column.

    Examples
    --------
    >>> column = change_column([1.0312, 0.9217, 2.2, 1.0, 1.00002], "step_time", 1)
    >>> column.title, column.unit, column.cells
    ('step time', 'vs first', ('-', '+3.1 %', '-7.8 %', '2.2x', '0 %', '<+0.1 %'))
    >>> change_column([4070 / 3010, 4.0], "throughput", 1).cells
    ('-', '-26 %', '-75 %')
    """
    cells = ("-", *("" if ratio is None else change_text(ratio, objective) for ratio in ratios))
    return Column(_declared(objective).figure_word or objective, cells, priority, unit="vs first")


def change_text(ratio: float, objective: str) -> str:
    """A cell of `change_column`."""
    change = (1.0 / ratio if _declared(objective).is_rate else ratio) - 1.0
    if change >= _TWICE - 1.0:
        return f"{significant(1.0 + change, 2)}x"
    text = rough_percent(abs(change)) if abs(change) > EQUAL else "0 %"
    sign = "" if text == "0 %" else "+" if change > 0 else "-"
    return f"<{sign}{text[1:]}" if text.startswith("<") else f"{sign}{text}"


def compared_words(ratio: float, objective: str, than: str = "") -> str:
    """Say how a plan compares with another, as every sentence does.

    The percentage is the change of the figure that plans are ranked by, as in tables: a step that takes 3.8 % longer, or 3.8 % fewer
    tokens/s, is 3.8 % slower. From a factor of two on, the factor is said.

    Parameters
    ----------
    ratio : float
        Its score over that of the other: above 1 is worse.
    objective : str
    than : str
        What the other is called; empty where that is clear.

    Examples
    --------
    >>> compared_words(1.038, "step_time"), compared_words(0.5, "step_time", "plan 2"), compared_words(1.0, "step_time", "plan 2")
    ('3.8 % slower', '2.0x faster than plan 2', 'as fast as plan 2')
    >>> compared_words(4070 / 3010, "throughput"), compared_words(3010 / 4070, "throughput"), compared_words(1.25, "money")
    ('26 % slower', '35 % faster', '25 % dearer')
    """
    better = better_word(objective)
    if abs(ratio - 1.0) <= EQUAL:
        return f"as {'fast' if better == 'faster' else 'good'}{f' as {than}' * bool(than)}"
    word = worse_word(objective) if ratio > 1.0 else better
    factor = max(ratio, 1.0 / ratio)
    change = abs((1.0 / ratio if _declared(objective).is_rate else ratio) - 1.0)
    many = f"{significant(factor, 2)}x" if factor >= _TWICE else rough_percent(change)
    return f"{many} {word}{f' than {than}' * bool(than)}"


def best_word(objective: str) -> str:
    """What the best plan is called.

    >>> best_word("step_time"), best_word("money"), best_word("energy")
    ('Fastest', 'Cheapest', 'Most energy-efficient')
    """
    better = better_word(objective)
    best = better.replace("more ", "most ") if better.startswith("more ") else f"{better.removesuffix('er')}est"
    return f"{best[0].upper()}{best[1:]}"


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


def stated_rates(
    request: Request, devices: Sequence[tuple[str, Device, str]], host: Host | None
) -> tuple[Assumption, ...]:
    """What devices, each with its name and a format such as "bf16", cost or draw, where that is what plans are ranked by."""
    found = OBJECTIVES.get(request.objective or "step_time")
    if found is None or found.figure is None:
        return ()
    texts = {name: found.rate_of(device, host, compute) for name, device, compute in devices}
    value = "; ".join(f"{name}: {text}" if len(texts) > 1 else text for name, text in texts.items())
    files = "cluster or device file" if len(texts) == 1 else "device files"
    source = request.source_of(found.option, files) if found.option else files
    return (Assumption(name=found.rate or found.name, value=value, source=source),)


def cost_text(objective: str, cost: float | None, plan: RankedPlan) -> str:
    """What a step of a plan costs beside its time, where that is what plans are ranked by; begins with a comma.

    Money is per million tokens or samples, as everywhere; energy is that of the step.
    """
    found = next((one for one in shown_costs() if one.name == objective), None)
    if cost is None or found is None:
        return ""
    many, words = found.per(plan.get("tokens_per_s") is not None)
    return f", {with_unit(cost * many / _work(plan, many), found.unit)}{f' per {words}' if found.is_small else ''}"


def _work(plan: RankedPlan, many: int) -> float:
    """Tokens of a step, or samples of a network that reads none; 1 of what is shown per step."""
    per_s = plan.get("tokens_per_s") or plan.throughput_samples_per_s
    return 1.0 if many == 1 else per_s * plan.step_time_s


def with_unit(cost: float | None, unit: str) -> str:
    """Write what a step costs."""
    return energy_text(cost) if unit == "J" or cost is None else f"{significant(cost)} {unit}"


class StepCost(NamedTuple):
    """What a step costs by an objective that has a figure, as tables and figures show it.

    >>> costs = {cost.name: cost for cost in shown_costs()}
    >>> [(cost.title, cost.per(True), cost.text(1500.0)) for cost in (costs["money"], costs["energy"])]
    [('USD', (1000000, 'M tokens'), '1,500'), ('energy', (1, 'step'), '1.50 kJ')]
    """

    figure: str
    name: str
    unit: str
    is_small: bool

    @property
    def title(self) -> str:
        """Of a column: the unit, where answers write costs without it."""
        return self.unit if self.is_small else self.name

    def text(self, cost: float | None) -> str:
        """A cell below the title."""
        return significant(cost) if self.is_small else with_unit(cost, self.unit)

    def per(self, reads_tokens: bool) -> tuple[int, str]:
        """How much work people are told the cost of: a million tokens or samples where one step costs too little to read, else a step."""
        return (10**6, f"M {'tokens' if reads_tokens else 'samples'}") if self.is_small else (1, "step")

    def of(self, plan: RankedPlan) -> tuple[float | None, str]:
        """What that much of a plan's work costs, and what it is; None where nobody states the cost."""
        many, words = self.per(plan.get("tokens_per_s") is not None)
        cost = plan.get(self.figure)
        return None if cost is None else cost * many / _work(plan, many), words


def shown_costs() -> list[StepCost]:
    """What answers say of the costs of a step: a new objective with a figure is among them."""
    return [StepCost(figure, found.name, found.unit, found.is_small) for figure, found in with_figures().items()]


def objective_columns(plans: Sequence[RankedPlan], objective: str, priority: int) -> list[Column]:
    """What training plans are ranked by, where no other column says it: per step, or GPU hours and money per million tokens or samples."""
    per_token = "tokens_per_s" in plans[0].figures
    found = OBJECTIVES[objective]
    shown = {"gpu_hours"} if per_token else {"gpu_hours", "tokens_per_s_per_gpu"}
    if found.figure is None and objective not in shown:
        return []

    if found.figure is None:
        hours = [p.workers * p.step_time_s / 3600.0 for p in plans]
        cells = [significant(1e6 * each / _work(p, 10**6)) for each, p in zip(hours, plans, strict=True)]
        return [Column("GPU hours", tuple(cells), priority, unit="per M tokens" if per_token else "per M samples")]
    cost = next(one for one in shown_costs() if one.name == objective)
    shown_values = [cost.of(plan) for plan in plans]
    texts = tuple(cost.text(value) for value, _ in shown_values)
    return [Column(cost.title, texts, priority, unit=f"per {shown_values[0][1]}")]


def cost_of(objective: str, figures: Mapping[str, Any]) -> float | None:
    """What a step costs by an objective that has a figure; else None.

    >>> cost_of("energy", {"energy_per_step_j": 2300.0}), cost_of("step_time", {})
    (2300.0, None)
    """
    found = OBJECTIVES.get(objective)
    return None if found is None or found.figure is None else figures.get(found.figure.name)
