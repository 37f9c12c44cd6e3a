"""Numbers near the one that does not work."""

from __future__ import annotations

__all__ = ["near_multiples"]


def near_multiples(number: int, unit: int) -> str:
    """Name the multiples of a unit next to a number.

    >>> near_multiples(1000, 16), near_multiples(3, 16)
    ('992 or 1008', '16')
    """
    below = number // unit * unit
    return " or ".join(str(multiple) for multiple in (below, below + unit) if multiple > 0)
