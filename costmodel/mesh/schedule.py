"""Pipeline schedules in closed form: how long a step's forwards and backwards take, and how many activations are in flight.

Zero bubble (ZB-H1 of Qi et al. 2024, arXiv:2401.10241)
-------------------------------------------------------
The time is exactly the longest path through the schedule.

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

All are convex, or flat after a bend, in the position inside a run of equal stages; in short steps (m < S) the weight
gradients of ``tail_b`` bend at ``y = b - s_0``, so that stages s_0 away from an end of a run matter as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, StructOfArrays, rows_of
from costmodel.mesh.plan import SCHEDULES
from costmodel.schedules import DELAYS_WEIGHTS, IS_CHUNKED

__all__ = ["ChunkRuns", "in_flight", "makespan_s", "schedule_is_legal", "zero_bubble_s"]


_ROWS = 2048  # plans at a time: tables and workspaces that stay in a core's cache


def zero_bubble_s(
    m: IntArray, pp: IntArray, count: IntArray, forward_s: FloatArray, backward_s: FloatArray, weight_s: FloatArray
) -> FloatArray:
    """Time of all forwards and backwards of a step.

    Parameters
    ----------
    m, pp : arrays (n,)
        Micro-batches and stages.
    count, forward_s, backward_s, weight_s : arrays (n, R)
        Runs of equal stages, as in `costmodel.mesh.schedule.makespan_s`.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRuns(StructOfArrays):
    """The chunks of many pipelines, in network order, as runs of equal neighbours; every array has shape (n, R)."""

    count: IntArray  # chunks in the run; 0: no such run
    forward_s: FloatArray  # per chunk and micro-batch, the transfer it waits for included
    backward_s: FloatArray  # the same; input and weight gradients


def schedule_is_legal(schedule: IntArray, m: IntArray, pp: IntArray, vpp: IntArray) -> BoolArray:
    """Which combinations a schedule can run.

    Interleaved needs several ranks, several chunks per rank and whole groups of pp micro-batches (Megatron-LM's
    ``forward_backward_pipelining_with_interleaving`` refuses others); the rest have one chunk per rank.

    Parameters
    ----------
    schedule : array (n,)
        Positions in `costmodel.mesh.plan.SCHEDULES`.
    m, pp, vpp : arrays (n,)
        Micro-batches, pipeline ranks, chunks per rank.

    Returns
    -------
    array of bool (n,)

    Examples
    --------
    >>> both = np.array([2, 2])
    >>> schedule_is_legal(both, np.array([8, 9]), np.array([4, 4]), both).tolist()
    [True, False]
    """
    groups = m % np.maximum(pp, 1) == 0
    legal = np.where(IS_CHUNKED[schedule], (vpp >= 2) & (pp >= 2) & groups, vpp == 1)
    return np.asarray((m >= 1) & (pp >= 1) & legal)


def in_flight(schedule: IntArray, m: IntArray, pp: IntArray, vpp: IntArray, position: IntArray) -> IntArray:
    """Most activations of one chunk and micro-batch that a rank holds at once, over all its chunks.

    - gpipe: every micro-batch, ``m vpp`` (Huang et al. 2019, arXiv:1811.06965)
    - 1f1b: ``min(m, pp - position)`` (PipeDream-Flush, Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1)
    - interleaved: one more than the forwards of Megatron-LM's warm-up,
      ``min(m vpp, 2 (pp - position - 1) + (vpp - 1) pp + 1)``
    - zero_bubble: ``min(m, pp)`` until the weight gradient: ZB-H1 lets weight gradients lag so that all ranks keep as many
      micro-batches as the first, which holds as many as under 1F1B (Qi et al. 2024, arXiv:2401.10241, section 2.1). Rank
      i holds ``min(m, pp - i)`` whole activations; the others have had their input gradient (section 2.3).

    Parameters
    ----------
    schedule, m, pp, vpp : arrays (n,)
        As in `schedule_is_legal`.
    position : array (n,)
        Pipeline rank, from 0.

    Returns
    -------
    array of int (n,)

    Examples
    --------
    >>> in_flight(np.arange(4), np.full(4, 8), np.full(4, 4), np.array([1, 1, 2, 1]), np.full(4, 3)).tolist()
    [8, 1, 5, 4]
    """
    warm_up = 2 * (pp - position - 1) + (vpp - 1) * pp
    counts = {
        "gpipe": m * vpp,
        "1f1b": np.minimum(m, pp - position),
        "interleaved": np.minimum(m * vpp, warm_up + 1),
        "zero_bubble": np.minimum(m, pp),
    }
    return np.select([schedule == SCHEDULES.index(name) for name in counts], list(counts.values()))


def makespan_s(
    schedule: IntArray,
    m: IntArray,
    pp: IntArray,
    vpp: IntArray,
    runs: ChunkRuns,
    weight_s: FloatArray | None = None,
) -> FloatArray:
    """Time of all forwards and backwards of a step, from an empty pipeline to the last backward.

    A transfer is part of the time of the chunk that waits for it. Exact for gpipe, 1f1b and zero_bubble; for interleaved a lower
    bound that misses the longest path in few plans (`costmodel.mesh.interleaved`).

    Parameters
    ----------
    schedule : array (n,)
        Positions in `costmodel.mesh.plan.SCHEDULES`; may be mixed.
    m, pp, vpp : arrays (n,)
        Micro-batches, pipeline ranks, chunks per rank. Chunk c of the ``pp vpp`` chunks lives on rank ``c % pp``.
    runs : ChunkRuns
        Times of the chunks; the counts of a row add up to ``pp vpp``.
    weight_s : array (n, R), optional
        The part of ``runs.backward_s`` that computes weight gradients; needed by zero_bubble only.

    Returns
    -------
    array (n,)
        Infinity where `schedule_is_legal` is false.

    Raises
    ------
    ValueError
        If zero_bubble is asked for without ``weight_s``.

    Examples
    --------
    Four equal stages, eight micro-batches, 1F1B: ``(m + S - 1) (F + B)``.

    >>> runs = ChunkRuns(count=np.array([[4]]), forward_s=np.array([[1.0]]), backward_s=np.array([[2.0]]))
    >>> makespan_s(np.array([1]), np.array([8]), np.array([4]), np.array([1]), runs).tolist()
    [33.0]
    """
    if weight_s is None and np.any(DELAYS_WEIGHTS[schedule]):
        raise ValueError("a schedule that delays weight gradients needs weight_s")
    weight = np.zeros_like(runs.backward_s) if weight_s is None else weight_s
    if not runs.count[:, 0].all():  # the formulas begin with a run that exists
        order = np.argsort(runs.count == 0, axis=1, kind="stable")
        runs = ChunkRuns(
            **{item.name: np.take_along_axis(getattr(runs, item.name), order, axis=1) for item in fields(runs)}
        )
        weight = np.take_along_axis(weight, order, axis=1)
    legal = schedule_is_legal(schedule, m, pp, vpp)
    total = np.full(len(schedule), np.inf)
    for name, formula in _FORMULAS.items():
        chosen = np.flatnonzero(legal & (schedule == SCHEDULES.index(name)))
        if len(chosen) == len(schedule):
            return formula(m, pp, vpp, runs, weight)
        if len(chosen):
            some = rows_of(weight, chosen)
            total[chosen] = formula(m[chosen], pp[chosen], vpp[chosen], runs.take(chosen), some)
    return total


def _gpipe_s(m: IntArray, _pp: IntArray, _vpp: IntArray, runs: ChunkRuns, _weight_s: FloatArray) -> FloatArray:
    """Exact: a flow line of m equal jobs, forward and then, from the last stage's last forward, backward."""
    total = np.zeros(len(m))
    for times in (runs.forward_s, runs.backward_s):
        slowest = np.zeros(len(m))
        for q in range(times.shape[1]):
            present = runs.count[:, q] > 0
            total += runs.count[:, q] * times[:, q]
            np.maximum(slowest, times[:, q], out=slowest, where=present)
        total += (m - 1) * slowest
    return total


def _one_f_one_b_s(m: IntArray, pp: IntArray, _vpp: IntArray, runs: ChunkRuns, _weight_s: FloatArray) -> FloatArray:
    """Exact: the longest path through the schedule.

    Number the forwards of stage s by ``n = i - w_s`` with ``w_s = S - 1 - s``. Then every path has one forward per n: it stays
    at its stage, goes down one, or goes up by backwards. Visits of a stage's forward and backward pair up, so a path is worth
    most if, once it has met its slowest stage e, it stays there; on the way to the first backward and back from the last it may
    use the slowest forward (backward) of the stages it has passed, and turn at a stage a >= e (b >= e):

        step = max_e [ sum_{j<e} t_j + (m - w_e) t_e + X_e(F) + X_e(B) ],  e >= max(0, S - m)
        X_e(Y) = max_{a>=e} [ sum_{e<j<=a} t_j + w_a max_{j<=a} Y_j ]

    Both are convex in the position inside a run of equal stages, so the ends of the runs suffice.
    """
    total = np.empty(len(m))
    # Blocks of rows in one workspace: fresh arrays cost more (page faults) than the arithmetic.
    rows = min(len(m), _ROWS)
    space = np.empty((6 * runs.count.shape[1] + 8, rows))
    for first in range(0, len(m), _ROWS):
        part = slice(first, first + _ROWS)
        _one_f_one_b_block(m[part], pp[part], runs.take(part), space[:, : len(m[part])], total[part])
    return total


def _one_f_one_b_block(m: IntArray, pp: IntArray, runs: ChunkRuns, space: FloatArray, best: FloatArray) -> None:
    """The same for some rows, into `best`."""
    runs_count = runs.count.shape[1]
    count, forward, backward, time, top_f, top_b = space[:-8].reshape(6, runs_count, -1)
    last_micro_batch, far_f, far_b, through, later, reached, after, path = space[-8:]
    count[:], forward[:], backward[:] = runs.count.T, runs.forward_s.T, runs.backward_s.T
    empty = count == 0.0
    if empty.any():  # an empty run repeats the end of the one before
        for q in range(1, runs_count):
            np.copyto(forward[q], forward[q - 1], where=empty[q])
            np.copyto(backward[q], backward[q - 1], where=empty[q])
    np.add(forward, backward, out=time)
    np.maximum.accumulate(forward, axis=0, out=top_f)
    np.maximum.accumulate(backward, axis=0, out=top_b)
    np.subtract(m, 1.0, out=last_micro_batch)
    np.einsum("qn,qn->n", count, time, out=through)
    best.fill(0.0)
    far_f.fill(-np.inf)
    far_b.fill(-np.inf)
    later.fill(0.0)  # stages after the run
    usable: BoolArray | bool = True
    short = bool(np.any(m < pp))
    for q in reversed(range(runs_count)):
        for is_first in (False, True):
            # Steps back from the end of the run: to its last stage none, to its first (that alternates) all but one.
            if is_first:
                np.subtract(count[q], 1.0, out=path)
                if short:
                    np.minimum(path, np.subtract(last_micro_batch, later, out=after), out=path)
                np.maximum(path, 0.0, out=path)
                np.add(later, path, out=after)
                np.subtract(through, np.multiply(path, time[q], out=path), out=reached)
            else:
                after[:], reached[:] = later, through
            if short:
                usable = np.less_equal(after, last_micro_batch)
            for far, slowest in ((far_f, top_f[q]), (far_b, top_b[q])):
                np.multiply(after, slowest, out=path)
                path += reached
                np.maximum(far, path, out=far, where=usable)
            np.subtract(last_micro_batch, after, out=path)
            path *= time[q]
            path += far_f
            path += far_b
            path -= reached
            np.maximum(best, path, out=best, where=usable)
        later += count[q]
        through -= np.multiply(count[q], time[q], out=path)


def _interleaved_s(m: IntArray, pp: IntArray, vpp: IntArray, runs: ChunkRuns, _: FloatArray) -> FloatArray:
    from costmodel.mesh.interleaved import interleaved_s  # most plans do without

    return interleaved_s(m, pp, vpp, runs.count, runs.forward_s, runs.backward_s)


_Formula = Callable[[IntArray, IntArray, IntArray, ChunkRuns, FloatArray], FloatArray]
_FORMULAS: dict[str, _Formula] = {
    "gpipe": _gpipe_s,
    "1f1b": _one_f_one_b_s,
    "interleaved": _interleaved_s,
    "zero_bubble": lambda m, pp, _, runs, weight_s: zero_bubble_s(
        m, pp, runs.count, runs.forward_s, runs.backward_s, weight_s
    ),
}
