"""The table of ranked plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from planner.core.results import RankedPlan
from planner.report.blocks import Column, Table
from planner.report.numbers import NOT_AVAILABLE, energy_text, percent, significant, time_unit, used_of_total
from planner.report.uncertainty import bars_columns

__all__ = ["Ranked", "gap_text", "ranked_table", "ranking_table"]


class Ranked(Protocol):
    """A plan of any space with its place among others."""

    @property
    def rank(self) -> int:
        """1 is the best."""

    @property
    def gap(self) -> float:
        """Objective over that of the best plan, minus 1."""


_DOES_NOT_FIT = f"{NOT_AVAILABLE}: does not fit"


def ranking_table(plans: Sequence[RankedPlan], objective: str = "step_time", *, ranks: bool = True) -> Table:
    """Columns of the ranked plans; the further right, the sooner a narrow terminal drops them (but for the gap).

    Parameters
    ----------
    plans : sequence of RankedPlan
    objective : str
        Decides about a column for what a step costs.
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
    cost = _cost_of(objective)
    if cost is not None:
        title, unit_name, cell = cost
        columns.append(column(title, cell, 1, unit=unit_name))
    return ranked_table(columns, plans) if ranks else Table(columns=tuple(columns))


def ranked_table(columns: Sequence[Column], plans: Sequence[Ranked], *, gap_priority: int = 1) -> Table:
    """Columns of plans between their ranks and how far behind the first they are."""
    ranks = Column(title="#", cells=tuple(str(plan.rank) for plan in plans))
    gaps = tuple("-" if plan.rank == 1 else gap_text(plan.gap) for plan in plans)
    gap = Column(title="gap to", unit="first", cells=gaps, priority=gap_priority)
    return Table(columns=(ranks, *columns, gap), highlight=0)


def _cost_of(objective: str) -> tuple[str, str, Callable[[RankedPlan], str]] | None:
    """Title, unit and cells of the column that an objective other than time adds."""

    def per_million(plan: RankedPlan, of_a_step: float) -> str:
        return significant(1e6 * of_a_step / (plan.throughput_samples_per_s * plan.step_time_s))

    if objective in ("gpu_hours", "tokens_per_s_per_gpu"):
        return "GPU hours", "per M samples", lambda p: per_million(p, p.workers * p.step_time_s / 3600.0)
    if objective == "money":
        return "USD", "per M samples", lambda p: per_million(p, p.money_per_step or 0.0)
    if objective == "energy":
        return "energy", "per step", lambda p: energy_text(p.energy_per_step_j)
    return None


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
