"""What one plan would cost at other batches, sequences and numbers of devices: every answer of a small grid, worked out beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAxis:
    """One setting that may change.

    Attributes
    ----------
    name, title : str
        ``gpus``, ``batch``, ``seq`` or ``recompute``, and what people call it.
    values : tuple
        What it may be, in order: numbers, or words.
    at : int
        Which of them the plan has.
    """

    name: str
    title: str
    values: tuple[int | str, ...]
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfPoint:
    """One answer.

    Attributes
    ----------
    figures : mapping of str to float
        Values by name in SI units; empty where there is no such plan.
    note : str
        Why there is none, or what else of the plan is another.
    """

    figures: Mapping[str, float]
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Predictions of a plan on a grid.

    Attributes
    ----------
    axes : tuple of WhatIfAxis
    points : tuple of WhatIfPoint
        One for every choice of values, the last axis fastest.
    capacity_bytes, there_bytes : float
        What a plan may use of the memory of one device, and all of it.
    kept : str
        What of the plan stays, in a sentence.
    fits_surest : float
        As `planner.core.answer.RankedPlan` has it.
    """

    axes: tuple[WhatIfAxis, ...]
    points: tuple[WhatIfPoint, ...]
    capacity_bytes: float
    there_bytes: float
    kept: str
    fits_surest: float = 1.0

    def point(self, **places: int) -> WhatIfPoint:
        """The answer where some axes are at other places than the plan's."""
        n = 0
        for axis in self.axes:
            n = n * len(axis.values) + places.get(axis.name, axis.at)
        return self.points[n]

    def single_changes(self) -> Iterator[tuple[WhatIfAxis, int]]:
        """Axes with the places where only that setting changes; the plan itself first."""
        yield self.axes[0], self.axes[0].at
        for axis in self.axes:
            yield from ((axis, n) for n in range(len(axis.values)) if n != axis.at)


def around(value: int, unit: int = 1, most: int | None = None) -> tuple[int, ...]:
    """A quarter, a half, the same, twice and four times a number, as far as they are multiples of a unit.

    >>> around(24, 4), around(24, 4, most=48), around(6)
    ((12, 24, 48, 96), (12, 24, 48), (3, 6, 12, 24))
    """
    found = (value * times // 4 for times in (1, 2, 4, 8, 16) if value * times % (4 * unit) == 0)
    return tuple(number for number in found if most is None or number <= max(most, value))
