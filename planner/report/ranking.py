"""The table of ranked plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planner.report.blocks import Column, Table
from planner.report.numbers import NOT_AVAILABLE, percent, significant, time_unit, used_of_total
from planner.report.uncertainty import bars_columns
from planner.results import RankedPlan

__all__ = ["gap_text", "ranking_table"]

_DOES_NOT_FIT = f"{NOT_AVAILABLE}: does not fit"


def ranking_table(plans: Sequence[RankedPlan], *, ranks: bool = True) -> Table:
    """Columns of the ranked plans; the further right, the sooner a narrow terminal drops them (but for the gap).

    Parameters
    ----------
    plans : sequence of RankedPlan
    ranks : bool
        Whether rank and gap have a meaning: not for a single plan that was not searched for.
    """
    unit = time_unit(min(plan.step_time_s for plan in plans))

    def column(title: str, cell: Callable[[RankedPlan], str], priority: int, *, unit: str = "") -> Column:
        return Column(title=title, unit=unit, cells=tuple(cell(plan) for plan in plans), priority=priority)

    speedup = Column(
        title="speed-up",
        unit="over 1 worker",
        cells=tuple(_DOES_NOT_FIT if plan.speedup is None else f"{significant(plan.speedup)}x" for plan in plans),
        narrow=tuple(NOT_AVAILABLE if plan.speedup is None else f"{significant(plan.speedup)}x" for plan in plans),
        narrow_unit="over 1",
        priority=3,
    )
    plan_words = Column(title="plan", cells=tuple(plan.summary for plan in plans), is_text=True, flexible=True)
    columns = [
        plan_words,
        column("step time", lambda plan: significant(plan.step_time_s / unit.size), 0, unit=unit.name),
        *bars_columns(plans, unit),
        column("throughput", lambda plan: significant(plan.throughput_samples_per_s), 4, unit="samples/s"),
        speedup,
        column("efficiency", lambda plan: percent(plan.efficiency), 8),
        column(
            "memory",
            lambda plan: used_of_total(plan.memory_bytes_per_gpu, plan.memory_capacity_bytes),
            2,
            unit="per GPU",
        ),
        column("exposed", lambda plan: percent(plan.exposed_communication_share), 5, unit="comm."),
        Column(title="bottleneck", cells=tuple(plan.bottleneck for plan in plans), is_text=True, priority=7),
    ]
    if ranks:
        columns.insert(0, column("#", lambda plan: str(plan.rank), 0))
        columns.append(column("gap to", lambda plan: "-" if plan.rank == 1 else gap_text(plan.gap), 1, unit="first"))
    return Table(columns=tuple(columns), highlight=0 if ranks else None)


def gap_text(gap: float) -> str:
    """Write how much slower a plan is than the first.

    >>> gap_text(0.0), gap_text(0.0312), gap_text(0.00002)
    ('0 %', '+3.12 %', '<0.01 %')
    """
    if gap == 0:
        return "0 %"
    if abs(gap) < 1e-4:
        return "<0.01 %"
    return f"{'+' if gap > 0 else ''}{significant(gap * 100)} %"
