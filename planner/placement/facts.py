"""Sentences that the answers of `planner place` share."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.tolerances import EQUAL
from planner.placement.request import PlaceRequest
from planner.report.numbers import Unit, percent, significant, time_unit
from planner.report.ranking import ratio_text

__all__ = ["TimeWords", "bound_facts", "free_facts", "times_text"]

_DIGITS = 6
# Smaller and larger numbers are written with an exponent: nobody counts so many zeros.
_LEAST_PLAIN, _MOST_PLAIN = 1e-9, 1e15


def bound_facts(
    bound: float, gap: float, proven: bool, proof: str, stopped: str, words: TimeWords | None = None
) -> list[tuple[str, str]]:
    """How good the answer is at most, what proved it, and what stopped the search."""
    text = "proven optimal" if proven else f"at least {(words or TimeWords()).text(bound)}, gap {percent(gap)}"
    facts = [("Bound", f"{text} ({proof})")]
    return [*facts, ("Stopped", stopped)] if stopped else facts


def free_facts(request: PlaceRequest) -> list[tuple[str, str]]:
    """Operators of the network that the user takes to cost nothing."""
    return [("Assumed free", f"{', '.join(request.assume_free)} (--assume-free)")] if request.assume_free else []


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWords:
    """How times are written: those of a workload's file have no unit that we know, those of the cost model are seconds."""

    unit: Unit | None = None

    @classmethod
    def of(cls, request: PlaceRequest, largest: float) -> TimeWords:
        """For an answer whose largest time is given."""
        return cls(unit=time_unit(largest) if request.cluster is not None else None)

    @property
    def unit_name(self) -> str:
        """For the head of a column; empty where there is none."""
        return "" if self.unit is None else self.unit.name

    @property
    def note(self) -> str:
        """Says that the unit is the workload's."""
        return " (in the workload's unit of time)" if self.unit is None else ""

    def number(self, value: float) -> str:
        """Without the unit.

        >>> TimeWords().number(1e-300), TimeWords().number(0.25)
        ('1.00000e-300', '0.250000')
        """
        scaled = value if self.unit is None else value / self.unit.size
        if 0 < abs(scaled) < _LEAST_PLAIN or abs(scaled) >= _MOST_PLAIN:
            return f"{scaled:.{_DIGITS - 1}e}"
        return significant(scaled, _DIGITS)

    def text(self, value: float) -> str:
        """With the unit, where there is one."""
        return f"{self.number(value)} {self.unit_name}".rstrip()


def times_text(other: float, value: float, words: TimeWords | None = None) -> str:
    """Say how much faster (or slower) a value is than another.

    >>> times_text(3.0, 2.0)
    '1.50 times faster than 3.00000'
    """
    shown = (words or TimeWords()).text(other)
    if value <= 0 or abs(other - value) <= EQUAL * other:
        return f"as fast as {shown}"
    ratio = other / value
    return (
        f"{ratio_text(ratio)} times faster than {shown}"
        if ratio > 1
        else f"{ratio_text(1 / ratio)} times slower than {shown}"
    )
