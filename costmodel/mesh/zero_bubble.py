"""Zero bubble (ZB-H1 of Qi et al. 2024, arXiv:2401.10241): exactly the longest path through the schedule.

Stage s runs weight gradient k after backward ``n = k + s``: with k as the clock, all stages run out of forwards at
``k = m - S``, and a path has four phases: forwards only (n < 0), forwards with input gradients (k < 0), all three,
gradients only. In each it stays on one stage, and moves between them; going down a stage costs no time on the
clock k and brings its forward, going up takes one and brings a backward. With u = F + B, t = u + W, the prefix
sums P, ``w_s = S - 1 - s``, ``s_0 = max(0, S - m)`` and stages e, x, b, y, g >= s_0 for the third phase, the second (x), the
turn at the end (b), the last phase (y) and the last weight gradients (g):

    step = max_e [ C_e + max(m - S, 0) t_e - P_e(F) + max_{b>=e} ( P_{b+1}(F) + B_b + tail_b ) ]
    C_e  = max( max_{x<e}  [ A_x - P_{x+1}(u) + (x - s_0) u_x ] + P_e(F),
                max_{x>=e} [ A_x + (e - s_0) u_x ] - F_e - P_{e+1}(B) )
    A_x  = max_{a>=x} [ P_{a+1}(u) + w_a max_{j<=a} F_j ]
    tail_b = max_{g<=y<=b} [ P_b(B) - P_g(B) + w_b B_y + min(w_b, max(m - 1 - y, 0)) W_y + min(m, g + 1) W_g ]

All are convex, or flat behind a bend, in the position inside a run of equal stages; in short steps (m < S) the weight
gradients of ``tail_b`` bend at ``y = b - s_0``, so that stages s_0 away from an end of a run matter as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray

__all__ = ["zero_bubble_s"]


_ROWS = 2048  # plans at a time: tables that stay in a core's cache


def zero_bubble_s(
    m: IntArray, pp: IntArray, count: IntArray, forward_s: FloatArray, backward_s: FloatArray, weight_s: FloatArray
) -> FloatArray:
    """Time of all forwards and backwards of a step.

    Parameters
    ----------
    m, pp : arrays (n,)
        Micro-batches and stages.
    count, forward_s, backward_s, weight_s : arrays (n, R)
        Runs of equal stages, as in `costmodel.mesh.schedule.flush_s`.

    Returns
    -------
    array (n,)

    Examples
    --------
    Equal stages: ``m (F + B + W) + (pp - 1) (F + B - W)``.

    >>> one = np.array([[1.0]])
    >>> zero_bubble_s(np.array([8]), np.array([4]), np.array([[4]]), one, 2 * one, one).tolist()
    [27.0]
    """
    total = np.empty(len(m))
    for chosen in (np.flatnonzero(m >= pp), np.flatnonzero(m < pp)):
        for first in range(0, len(chosen), _ROWS):
            part = chosen[first : first + _ROWS]
            times = (a[part] for a in (forward_s, backward_s, weight_s))
            total[part] = _block(m[part], pp[part], _columns(m[part], pp[part], count[part], *times))
    return total


def _block(m: IntArray, pp: IntArray, columns: list[_Column]) -> FloatArray:
    """The same for some rows, all long steps (m >= S) or all short ones."""
    start, full = np.maximum(pp - m, 0.0), np.maximum(m - pp, 0.0)
    far = _suffix([c.unsplit_before + c.unsplit_s + c.later * c.top_forward_s for c in columns], columns)
    tails = _tails(columns, m)
    turn = _suffix(
        [c.forward_before + c.forward_s + c.input_s + t for c, t in zip(columns, tails, strict=True)], columns
    )
    best, from_above = np.zeros(len(m)), np.full(len(m), -np.inf)
    for e, c in enumerate(columns):
        path = np.full(len(m), -np.inf)
        for x in range(e, len(columns)):
            np.maximum(path, far[x] + (c.position - start) * columns[x].unsplit_s, out=path)
        path -= c.forward_before + c.forward_s + c.input_before + c.input_s
        np.maximum(path, from_above, out=path)
        path += full * (c.unsplit_s + c.weight_s) + turn[e]
        np.maximum(best, path, out=best, where=c.usable)
        above = far[e] - c.unsplit_before - c.unsplit_s + (c.position - start) * c.unsplit_s
        np.maximum(from_above, above, out=from_above, where=c.usable)
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """One end of a run of stages: every array has shape (n,)."""

    usable: BoolArray | bool  # it alternates forwards and backwards
    position: FloatArray
    later: FloatArray  # stages after it
    forward_s: FloatArray
    input_s: FloatArray  # backward without weight gradient
    weight_s: FloatArray
    unsplit_s: FloatArray  # forward and input gradient
    forward_before: FloatArray  # the same of all stages before it
    input_before: FloatArray
    unsplit_before: FloatArray
    top_forward_s: FloatArray  # slowest forward so far, its own included


def _columns(
    m: IntArray, pp: IntArray, count: IntArray, forward_s: FloatArray, backward_s: FloatArray, weight_s: FloatArray
) -> list[_Column]:
    """Both ends of every run, and those that are needed in short steps, in order."""
    counts = np.ascontiguousarray(count.T)
    ends = np.cumsum(counts, axis=0)
    positions = np.concatenate([ends - counts, ends - 1])
    start = np.maximum(pp - m, 0)
    short = bool(start.any())
    if short:
        positions = np.concatenate([positions, positions - start, positions + start, start[None]])
    # An empty run gives an end of another: every stage may be a column, and twice.
    ordered = np.sort(np.clip(positions, 0, pp - 1), axis=0)
    run = np.zeros_like(ordered)
    for end in ends:
        run += ordered >= end
    passed = ordered - np.take_along_axis(ends - counts, run, axis=0)
    times = {"forward": forward_s.T, "input": (backward_s - weight_s).T, "weight": weight_s.T}
    own = {name: np.take_along_axis(time, run, axis=0) for name, time in times.items()}
    before = {}
    for name in ("forward", "input"):
        whole = counts * times[name]
        before[name] = np.take_along_axis(np.cumsum(whole, axis=0) - whole, run, axis=0) + passed * own[name]
    tops = np.maximum.accumulate(np.where(counts > 0, forward_s.T, 0.0), axis=0)
    top = np.take_along_axis(tops, run, axis=0)
    places, later = ordered.astype(np.float64), (pp - 1.0) - ordered
    return [
        _Column(
            usable=position >= start if short else True,
            position=position,
            later=later[c],
            forward_s=own["forward"][c],
            input_s=own["input"][c],
            weight_s=own["weight"][c],
            unsplit_s=own["forward"][c] + own["input"][c],
            forward_before=before["forward"][c],
            input_before=before["input"][c],
            unsplit_before=before["forward"][c] + before["input"][c],
            top_forward_s=top[c],
        )
        for c, position in enumerate(places)
    ]


def _suffix(values: list[FloatArray], columns: list[_Column]) -> list[FloatArray]:
    """Most of a value over this and all later columns."""
    most, result = np.full_like(values[0], -np.inf), []
    for value, column in zip(reversed(values), reversed(columns), strict=True):
        most = np.maximum(most, np.where(column.usable, value, -np.inf) if column.usable is not True else value)
        result.append(most)
    return result[::-1]


def _tails(columns: list[_Column], m: IntArray) -> list[FloatArray]:
    """The last phase, after the last turn at each column."""
    ending, endings, tails = np.full(len(m), -np.inf), [], []
    for c in columns:
        ending = np.maximum(ending, np.minimum(m, c.position + 1.0) * c.weight_s - c.input_before)
        endings.append(ending)
    for b, turn in enumerate(columns):
        best = np.full(len(m), -np.inf)
        for y, c in enumerate(columns[: b + 1]):
            if c.usable is True:
                path = turn.later * (c.input_s + c.weight_s)
            else:
                path = (
                    turn.later * c.input_s + np.minimum(turn.later, np.maximum(m - 1.0 - c.position, 0.0)) * c.weight_s
                )
            np.maximum(best, path + endings[y], out=best)
        tails.append(best + turn.input_before)
    return tails
