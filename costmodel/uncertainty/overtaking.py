"""Where one plan overtakes another as a constant of the cost model changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.tolerances import EQUAL

__all__ = ["Overtaking", "overtaking"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaking:
    """The smallest change of one constant at which another plan becomes the first.

    Attributes
    ----------
    factor : float
        Of the constant.
    winner : int
        The plan that overtakes.
    """

    factor: float
    winner: int


def overtaking(
    step_times_s: Callable[[float], FloatArray], factors: ArrayLike, best: int = 0, *, within: float = 1e-3
) -> Overtaking | None:
    """Find the factor nearest to 1 at which a plan takes less time than the best.

    Parameters
    ----------
    step_times_s : function of a factor
        Step times of all plans with the constant multiplied by it.
    factors : array
        Tried from 1 outwards, on either side; between the first at which another plan wins and the one before it the place is found by
        bisection.
    best : int
        The plan that is the first at a factor of 1.
    within : float
        Relative precision of the factor.

    Returns
    -------
    Overtaking or None
        None: no factor of those tried changes the first plan.

    Examples
    --------
    Plan 0 takes 1 s of compute and 1 s on a link, plan 1 takes 1.5 s and 0.75 s. With the bandwidth times f, they
    take 1 + 1/f and 1.5 + 0.75/f, which are equal at f = 1/2.

    >>> found = overtaking(lambda f: np.array([1 + 1 / f, 1.5 + 0.75 / f]), [0.3, 0.6, 1.7, 3.0])
    >>> found.winner, round(found.factor, 2)
    (1, 0.5)
    """
    grid = np.asarray(factors, dtype=np.float64)
    sides = (np.sort(grid[grid < 1.0])[::-1], np.sort(grid[grid > 1.0]))
    found = [_first_overtaking(step_times_s, side, best, within) for side in sides]
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: abs(math.log(one.factor)), default=None)


def _first_overtaking(
    step_times_s: Callable[[float], FloatArray], factors: FloatArray, best: int, within: float
) -> Overtaking | None:
    """The same on one side of 1."""
    inside = 1.0
    for factor in factors.tolist():
        winner = _winner(step_times_s(factor), best)
        if winner is None:
            inside = factor
            continue
        outside = factor
        while abs(math.log(outside / inside)) > within:
            middle = math.sqrt(inside * outside)
            other = _winner(step_times_s(middle), best)
            if other is None:
                inside = middle
            else:
                outside, winner = middle, other
        return Overtaking(factor=outside, winner=winner)
    return None


def _winner(times: FloatArray, best: int) -> int | None:
    first = int(np.argmin(times))
    return first if times[first] < times[best] * (1.0 - EQUAL) else None
