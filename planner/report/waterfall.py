"""Waterfalls for terminals: each part begins where the one before ends."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["waterfall"]

_WIDTH = 30


def waterfall(values: Sequence[float], total: float, width: int = _WIDTH) -> tuple[str, ...]:
    """Bars of parts that add up to a total, and that of the total; a part that is too short for a character is a thin line.

    >>> for bar in waterfall([5.0, 0.01, 3.0, 2.0], 10.01, 10):
    ...     print(bar)
    #####
         |
         ###
            ##
    ==========
    """
    bars, done = [], 0.0
    for value in values:
        start, end = (round(width * share / total) if total > 0 else 0 for share in (done, done + value))
        done += value
        if end > start:
            bars.append(" " * start + "#" * (end - start))
        else:
            bars.append(" " * min(start, width - 1) + "|" if value > 0 else "")
    return (*bars, "=" * width)
