"""What draws of errors say about a ranking: the chance that each plan is the best, the fewest to benchmark, where one overtakes another."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.tolerances import EQUAL, ROUNDING


def probability_best(log_times: FloatArray) -> FloatArray:
    """How often each plan is the first: (draws, n) -> (n,). Plans that tie share the draw.

    >>> probability_best(np.log(np.array([[1.0, 2.0], [2.0, 1.0], [1.0, 3.0], [1.0, 1.0]]))).tolist()
    [0.625, 0.375]
    """
    least = log_times.min(axis=1, keepdims=True)
    first = log_times <= least + ROUNDING
    return np.asarray((first / first.sum(axis=1, keepdims=True)).mean(axis=0))


def shortest_list(
    log_times: FloatArray, share: float = 0.9, tolerance: float = 0.0, *, holding: int | None = None
) -> IntArray:
    """Fewest plans of which one is the first (or slower than the first by at most ``tolerance``) in at least ``share`` of the draws.

    Parameters
    ----------
    log_times : array (draws, n)
    share : float
    tolerance : float
        Relative.
    holding : int, optional
        A plan that shall be on the list where that makes it no longer: people benchmark what is recommended.

    Returns
    -------
    array of int
        Plans in the order of what each adds. Without a tolerance exactly the shortest: one plan is the first of a draw (ties go to the
        earlier), so those that are first most often are the list. With one, draws may be covered by several plans; the plans are taken
        greedily, and no single plan and no pair that would do is missed.

    Examples
    --------
    >>> times = np.array([[1.0, 1.2, 9.0], [1.2, 1.0, 9.0], [1.0, 1.1, 9.0], [1.005, 1.0, 9.0]])
    >>> shortest_list(np.log(times), 0.9).tolist(), shortest_list(np.log(times), 0.75, tolerance=0.01).tolist()
    ([0, 1], [0])
    """
    draws, n = log_times.shape
    if tolerance > 0:
        covered = log_times <= log_times.min(axis=1, keepdims=True) + math.log1p(tolerance)
    else:
        covered = np.zeros((draws, n), dtype=np.bool_)
        first = log_times <= log_times.min(axis=1, keepdims=True) + ROUNDING
        covered[np.arange(draws), first.argmax(axis=1)] = True
    needed = math.ceil(share * draws - EQUAL)
    chosen = _greedy(covered, needed, [])
    if len(chosen) > 2 and tolerance > 0:
        chosen = _pair(covered, needed) or chosen
    if holding is not None and holding not in chosen:
        with_it = _greedy(covered, needed, [holding])
        chosen = with_it if len(with_it) <= len(chosen) else chosen
    return np.array(chosen, dtype=np.int64)


def _pair(covered: BoolArray, needed: int) -> list[int]:
    """The two plans that cover most draws, where these are enough."""
    count = covered.sum(axis=0)
    able = np.flatnonzero(count >= needed - count.max())  # with the best other one
    if len(able) < 2:
        return []
    counts = covered[:, able].astype(np.float32)
    both = counts.T @ counts
    union = np.diag(both)[:, None] + np.diag(both)[None, :] - both
    a, b = np.unravel_index(int(np.argmax(union)), union.shape)
    return sorted((int(able[a]), int(able[b]))) if union[a, b] >= needed else []


def _greedy(covered: BoolArray, needed: int, start: list[int]) -> list[int]:
    """Add the plan that covers most draws that are open until enough are covered."""
    chosen = list(start)
    open_draws = ~covered[:, chosen].any(axis=1)
    while len(covered) - int(open_draws.sum()) < needed:
        chosen.append(int(np.argmax(covered[open_draws].sum(axis=0))))
        open_draws &= ~covered[:, chosen[-1]]
    return chosen


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
    step_times_s: Callable[[float], FloatArray], factors: ArrayLike, *, within: float = 1e-3
) -> Overtaking | None:
    """Find the factor nearest to 1 at which a plan takes less time than the first, which is the best at a factor of 1.

    Parameters
    ----------
    step_times_s : function of a factor
        Step times of all plans with the constant multiplied by it.
    factors : array
        Tried from 1 outwards, on either side; between the first at which another plan wins and the one before it the place is found by
        bisection.
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
    found = [_first_overtaking(step_times_s, side, within) for side in sides]
    known = [one for one in found if one is not None]
    return min(known, key=lambda one: abs(math.log(one.factor)), default=None)


def _first_overtaking(
    step_times_s: Callable[[float], FloatArray], factors: FloatArray, within: float
) -> Overtaking | None:
    """The same on one side of 1."""
    inside = 1.0
    for factor in factors.tolist():
        winner = _winner(step_times_s(factor))
        if winner is None:
            inside = factor
            continue
        outside = factor
        while abs(math.log(outside / inside)) > within:
            middle = math.sqrt(inside * outside)
            other = _winner(step_times_s(middle))
            if other is None:
                inside = middle
            else:
                outside, winner = middle, other
        return Overtaking(factor=outside, winner=winner)
    return None


def _winner(times: FloatArray) -> int | None:
    first = int(np.argmin(times))
    return first if times[first] < times[0] * (1.0 - EQUAL) else None
