"""Sentences that the answers of `planner place` share."""

from __future__ import annotations

from planner.report.numbers import percent, significant
from planner.report.optimize import ratio_text

__all__ = ["bound_facts", "times_text"]

_DIGITS = 6


def bound_facts(bound: float, gap: float, proven: bool, proof: str, stopped: str) -> list[tuple[str, str]]:
    """How good the answer is at most, what proved it, and what stopped the search."""
    text = "proven optimal" if proven else f"at least {significant(bound, _DIGITS)}, gap {percent(gap)}"
    facts = [("Bound", f"{text} ({proof})")]
    return [*facts, ("Stopped", stopped)] if stopped else facts


def times_text(other: float, value: float) -> str:
    """Say how much faster (or slower) a value is than another.

    >>> times_text(3.0, 2.0)
    '1.50 times faster than 3.00000'
    """
    shown = significant(other, _DIGITS)
    if value <= 0 or abs(other - value) <= 1e-9 * other:
        return f"as fast as {shown}"
    ratio = other / value
    return (
        f"{ratio_text(ratio)} times faster than {shown}"
        if ratio > 1
        else f"{ratio_text(1 / ratio)} times slower than {shown}"
    )
