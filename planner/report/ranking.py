"""The table of ranked plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from planner.core.blocks import Column, Table
from planner.core.numbers import significant

__all__ = ["Ranked", "column_maker", "gap_text", "ranked_table", "ratio_text"]

T = TypeVar("T")


class Ranked(Protocol):
    """A plan of any space with its place among others."""

    @property
    def rank(self) -> int:
        """1 is the best."""

    @property
    def gap(self) -> float:
        """Objective over that of the best plan, minus 1."""


def column_maker(plans: Sequence[T]) -> Callable[..., Column]:
    """Return a function that makes a column from what a cell says of one plan.

    Examples
    --------
    >>> column_maker([8, 16])("GPUs", str, 2).cells
    ('8', '16')
    """

    def column(title: str, cell: Callable[[T], str], priority: int, *, unit: str = "") -> Column:
        return Column(title=title, unit=unit, cells=tuple(cell(plan) for plan in plans), priority=priority)

    return column


def ranked_table(columns: Sequence[Column], plans: Sequence[Ranked], *, gap_priority: int = 1) -> Table:
    """Columns of plans between their ranks and how far behind the first they are."""
    ranks = Column(title="#", cells=tuple(str(plan.rank) for plan in plans))
    gaps = tuple("-" if plan.rank == 1 else gap_text(plan.gap) for plan in plans)
    gap = Column(title="gap to", unit="first", cells=gaps, priority=gap_priority)
    return Table(columns=(ranks, *columns, gap), highlight=0)


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


def ratio_text(ratio: float) -> str:
    """1.0004 must not read as 1.00."""
    return significant(ratio) if ratio >= 1.005 else significant(ratio, 1 - math.floor(math.log10(ratio - 1)))
