"""What reports show of the plans of a space: the parts that all spaces share. A space says what differs in a class of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.core.answer import Answer, Estimate, RankedPlan, ReportParts
from planner.core.blocks import Block, Column, Heading, Table
from planner.core.numbers import byte_unit, significant, time_unit
from planner.core.objectives import objective_columns
from planner.report.answer import speed_facts
from planner.report.documents import baselines_document
from planner.report.tables import column_maker, parts_table, ranked_table, rows_table
from planner.report.uncertainty import bars_columns

__all__ = ["SpaceReport"]


class SpaceReport(ReportParts):
    """Reports about plans that train on one or several kinds of devices.

    Attributes
    ----------
    layers_heading : str
        Of the rows by layer of an explained plan.
    baseline : str
        What figures call the plan that the best is compared with.
    gap_priority, bottleneck_priority : int
        The larger, the sooner a narrow terminal drops the column.
    """

    layers_heading = "Layer by layer (of one rank, one micro-batch)"
    baseline = "data parallelism"
    gap_priority = 1
    bottleneck_priority = 9

    def plans_table(self, plans: Sequence[RankedPlan], objective: str, *, ranks: bool = True) -> Table:
        columns = [
            Column(title="plan", cells=tuple(plan.summary for plan in plans), is_text=True, flexible=True),
            *self.columns(plans, objective),
        ]
        if not ranks:
            return Table(columns=tuple(columns))
        return ranked_table(columns, plans, gap_priority=self.gap_priority)

    def columns(self, plans: Sequence[RankedPlan], objective: str) -> list[Column]:
        """Columns of what plans cost."""
        unit = time_unit(min(plan.step_time_s for plan in plans))
        time = column_maker(plans)("step time", lambda p: significant(p.step_time_s / unit.size), 0, unit=unit.name)
        return [
            *self.size_columns(plans),
            time,
            *bars_columns(plans, unit),
            *self.figure_columns(plans),
            bottleneck_column(plans, self.bottleneck_priority),
            *objective_columns(plans, objective, 1),
        ]

    def size_columns(self, plans: Sequence[RankedPlan]) -> list[Column]:
        """How many devices plans take."""
        return [column_maker(plans)("GPUs", lambda plan: f"{plan.workers:,}", 6)]

    def figure_columns(self, plans: Sequence[RankedPlan]) -> list[Column]:
        """Columns between the step time and the bottleneck."""
        raise NotImplementedError

    def speed_facts(self, plan: RankedPlan, objective: str) -> Sequence[tuple[str, str]]:
        return speed_facts(plan, objective)

    def baselines_document(self, answer: Answer) -> dict[str, Any]:
        return baselines_document(answer)

    def compared(self, answer: Answer) -> list[tuple[str, RankedPlan | None]]:
        return [(self.baseline, answer.baselines["data_parallel"])]

    def estimate_blocks(self, estimate: Estimate) -> list[Block]:
        ranked = estimate.ranked
        return [
            self.plans_table([ranked], estimate.objective, ranks=False),
            *parts_blocks(ranked, "Where the step goes", "step_time_s", title="time", name="step"),
        ]

    def explain_blocks(self, estimate: Estimate) -> list[Block]:
        return [Heading(self.layers_heading), rows_table(estimate.tables["layers"])]


def bottleneck_column(plans: Sequence[RankedPlan], priority: int) -> Column:
    """What plans take longest for."""
    return Column(title="bottleneck", cells=tuple(plan.bottleneck for plan in plans), is_text=True, priority=priority)


def parts_blocks(
    ranked: RankedPlan, heading: str, total: str, *, title: str, name: str, term: str = "part"
) -> list[Block]:
    """The parts of a figure, as `planner.report.tables.parts_table` shows them; nothing where it is 0."""
    value = float(ranked[total])
    if not value > 0:
        return []
    unit = time_unit(value) if total.endswith("_s") else byte_unit(value)
    table = parts_table(ranked.parts(total), ranked.labels(total), value, unit, title=title, name=name, term=term)
    return [Heading(heading), table]
