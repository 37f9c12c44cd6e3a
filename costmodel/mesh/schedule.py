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
from dataclasses import dataclass
from functools import cache

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, StructOfArrays, rows_of
from costmodel.schedules import DELAYS_WEIGHTS, FEWEST, PIPELINE_SCHEDULES, SCHEDULES, VPP, Schedule, group_size

_Formula = Callable[[IntArray, IntArray, IntArray, "ChunkRuns", FloatArray], FloatArray]


class _Ends:
    """Both ends of every run of stages, and what else matters in short steps, in order: arrays (C, n).

    A time is given by run, (n, R).
    """

    def __init__(self, m: IntArray, pp: IntArray, count: IntArray) -> None:
        self.counts = np.ascontiguousarray(count.T)
        ends = np.cumsum(self.counts, axis=0)
        positions = np.concatenate([ends - self.counts, ends - 1])
        self.start = np.maximum(pp - m, 0)
        if self.start.any():
            positions = np.concatenate([positions, positions - self.start, positions + self.start, self.start[None]])
        # An empty run gives an end of another: every stage may be a column, and twice.
        self.position = np.sort(np.clip(positions, 0, pp - 1), axis=0)
        self.run = np.sum(self.position >= ends[:, None], axis=0)
        self.passed = self.position - np.take_along_axis(ends - self.counts, self.run, axis=0)
        self.later = pp - 1.0 - self.position
        self.usable = self.position >= self.start  # alternates forwards and backwards

    def own(self, time_s: FloatArray) -> FloatArray:
        """Of the stage."""
        return np.take_along_axis(time_s.T, self.run, axis=0)

    def before(self, time_s: FloatArray) -> FloatArray:
        """Of all stages before it."""
        whole = self.counts * time_s.T
        passed = np.take_along_axis(np.cumsum(whole, axis=0) - whole, self.run, axis=0)
        return np.asarray(passed + self.passed * self.own(time_s))

    def slowest(self, time_s: FloatArray) -> FloatArray:
        """Of the slowest stage so far, its own included."""
        return self.own(np.maximum.accumulate(np.where(self.counts > 0, time_s.T, 0.0), axis=0).T)

    def most_after(self, value: FloatArray) -> FloatArray:
        """The most of a value at this and all later columns."""
        return np.maximum.accumulate(np.where(self.usable, value, -np.inf)[::-1], axis=0)[::-1]


def _zero_bubble_s(m: IntArray, pp: IntArray, _vpp: IntArray, runs: ChunkRuns, weight_s: FloatArray) -> FloatArray:
    """Exact; see the head of this file. Equal stages: ``m (F + B + W) + (pp - 1) (F + B - W)``."""
    c = _Ends(m, pp, runs.count)
    forward, inner, weight = (c.own(time) for time in (runs.forward_s, runs.backward_s - weight_s, weight_s))
    forward_before, inner_before = c.before(runs.forward_s), c.before(runs.backward_s - weight_s)
    both, both_through = forward + inner, forward_before + forward + inner_before + inner
    far = c.most_after(both_through + c.later * c.slowest(runs.forward_s))
    tails = _tails_s(c, m, inner, inner_before, weight)
    turn = c.most_after(forward_before + forward + inner + tails)
    steps, full = c.position - c.start, np.maximum(m - pp, 0.0)
    best, from_above = np.zeros(len(m)), np.full(len(m), -np.inf)
    for e, usable in enumerate(c.usable):
        below = np.max(far[e:] + steps[e] * both[e:], axis=0) - both_through[e]
        path = np.maximum(below, from_above) + full * (both[e] + weight[e]) + turn[e]
        np.maximum(best, path, out=best, where=usable)
        np.maximum(from_above, far[e] + steps[e] * both[e] - both_through[e], out=from_above, where=usable)
    return best


def _tails_s(c: _Ends, m: IntArray, inner: FloatArray, inner_before: FloatArray, weight: FloatArray) -> FloatArray:
    """The last phase of zero-bubble steps, after the last turn at each column."""
    endings = np.maximum.accumulate(np.minimum(m, c.position + 1.0) * weight - inner_before, axis=0)
    left = np.maximum(m - 1.0 - c.position, 0.0)
    tails = np.empty_like(inner)
    for b, later in enumerate(c.later):
        upto = slice(b + 1)
        paths = later * inner[upto] + np.minimum(later, left[upto]) * weight[upto] + endings[upto]
        tails[b] = paths.max(axis=0) + inner_before[b]
    return tails


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRuns(StructOfArrays):
    """The chunks of many pipelines, in network order, as runs of equal neighbours; every array has shape (n, R)."""

    count: IntArray  # chunks in the run; 0: no such run
    forward_s: FloatArray  # per chunk and micro-batch, the transfer it waits for included
    backward_s: FloatArray  # the same; input and weight gradients


def has_chunks(schedule: IntArray, vpp: IntArray) -> BoolArray:
    """Whether a schedule can have so many chunks per rank; arrays (n,), as in `schedule_is_legal`."""
    return np.asarray(np.where(VPP[schedule] == 0, vpp >= 2, vpp == VPP[schedule]))


def schedule_is_legal(schedule: IntArray, m: IntArray, pp: IntArray, vpp: IntArray) -> BoolArray:
    """Which combinations a schedule can run.

    Interleaved needs several ranks, several chunks per rank and as many micro-batches as ranks (Megatron-LM's
    ``forward_backward_pipelining_with_interleaving`` refuses others); frameworks may have rules about groups of them.

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
    >>> schedule_is_legal(both, np.array([9, 3]), np.array([4, 4]), both).tolist()
    [True, False]
    """
    return np.asarray(
        (m >= np.maximum(FEWEST[schedule] * pp, 1)) & (pp >= np.minimum(vpp, 2)) & has_chunks(schedule, vpp)
    )


def in_flight(schedule: IntArray, m: IntArray, pp: IntArray, vpp: IntArray, position: IntArray) -> IntArray:
    """Most activations of one chunk and micro-batch that a rank holds at once, over all its chunks (`Schedule.in_flight`).

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
    counts = [known.in_flight(m, pp, vpp, position) for known in PIPELINE_SCHEDULES]
    return np.select([schedule == n for n in range(len(counts))], counts)


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
    bound that misses the longest path in few plans (`costmodel.mesh.interleaved`), and for those whose instructions are run
    one that missed none yet (`costmodel.mesh.ordered`).

    Parameters
    ----------
    schedule : array (n,)
        Positions in `costmodel.mesh.plan.SCHEDULES`; may be mixed.
    m, pp, vpp : arrays (n,)
        Micro-batches, pipeline ranks, chunks per rank.
    runs : ChunkRuns
        Times of the chunks; the counts of a row add up to ``pp vpp``.
    weight_s : array (n, R), optional
        The part of ``runs.backward_s`` that computes weight gradients; needed where weight gradients are delayed.

    Returns
    -------
    array (n,)
        Infinity where `schedule_is_legal` is false.

    Raises
    ------
    ValueError
        If a schedule that delays weight gradients is asked for without ``weight_s``.

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
    legal = schedule_is_legal(schedule, m, pp, vpp)
    total = np.full(len(schedule), np.inf)
    for n, name in enumerate(SCHEDULES):
        chosen = np.flatnonzero(legal & (schedule == n))
        if len(chosen) == len(schedule):
            return _FORMULAS[name](m, pp, vpp, runs, weight)
        if len(chosen):
            some = rows_of(weight, chosen)
            total[chosen] = _FORMULAS[name](m[chosen], pp[chosen], vpp[chosen], runs.take(chosen), some)
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
    c, time_s = _Ends(m, pp, runs.count), runs.forward_s + runs.backward_s
    own = c.own(time_s)
    through = c.before(time_s) + own
    turns = (c.most_after(through + c.later * c.slowest(each)) for each in (runs.forward_s, runs.backward_s))
    paths = (m - 1.0 - c.later) * own - through + sum(turns)
    return np.asarray(np.max(paths, axis=0, where=c.usable, initial=0.0))


def _interleaved_s(m: IntArray, pp: IntArray, vpp: IntArray, runs: ChunkRuns, _: FloatArray) -> FloatArray:
    from costmodel.mesh.interleaved import interleaved_s  # most plans do without

    size, time_s = group_size(m, pp), np.empty(len(m))
    equal = (m % size == 0) & (size < 2 * pp)
    rows, others = np.flatnonzero(equal), np.flatnonzero(~equal)
    if len(others):
        some = runs.take(others)
        time_s[others] = _in_order("interleaved")(
            m[others], pp[others], vpp[others], some, np.zeros_like(some.backward_s)
        )
    some = runs.take(rows)
    time_s[rows] = interleaved_s(m[rows], pp[rows], vpp[rows], size[rows], some.count, some.forward_s, some.backward_s)
    return time_s


def _in_order(schedule: str) -> _Formula:
    def time_s(m: IntArray, pp: IntArray, vpp: IntArray, runs: ChunkRuns, weight_s: FloatArray) -> FloatArray:
        from costmodel.mesh.ordered import ordered_s  # most plans do without

        apart = weight_s * DELAYS_WEIGHTS[SCHEDULES.index(schedule)]
        return ordered_s(schedule, m, pp, vpp, runs.count, (runs.forward_s, runs.backward_s - apart, apart))

    return time_s


@cache
def least_in_flight() -> tuple[int, ...]:
    """For every schedule, one that never keeps more in flight on any rank and takes all its plans: often the same for several.

    >>> [SCHEDULES[n] for n in least_in_flight()]
    ['1f1b', '1f1b', 'interleaved', '1f1b', '1f1b', 'zb_v', 'zb_v', 'interleaved', 'interleaved_zb']
    """
    m, pp, rank, vpp = (x.ravel() for x in np.mgrid[1:33, 2:7, 0:6, 1:5])
    m, pp, rank, vpp = (x[rank < pp] for x in (m, pp, rank, vpp))
    kept = [schedule.in_flight(m, pp, vpp, rank) for schedule in PIPELINE_SCHEDULES]

    def replaces(a: Schedule, b: Schedule) -> bool:
        n, k = PIPELINE_SCHEDULES.index(a), PIPELINE_SCHEDULES.index(b)
        return (
            a.rank_of_chunk is b.rank_of_chunk
            and a.is_chunked == b.is_chunked
            and a.vpp in (0, b.vpp)
            and a.in_groups <= b.in_groups
            and a.fewest <= b.fewest
            and a.keeps_all <= b.keeps_all
            and bool(np.all((kept[n] <= kept[k])[has_chunks(np.full_like(vpp, k), vpp)]))
        )

    known = [[a for a in PIPELINE_SCHEDULES if replaces(a, b)] for b in PIPELINE_SCHEDULES]
    return tuple(
        PIPELINE_SCHEDULES.index(max(some, key=lambda a: sum(a in others for others in known))) for some in known
    )


_FORMULAS: dict[str, _Formula] = {
    "gpipe": _gpipe_s,
    "1f1b": _one_f_one_b_s,
    "interleaved": _interleaved_s,
    "zero_bubble": _zero_bubble_s,
    **{name: _in_order(name) for name in ("zb_h2", "zb_v", "dualpipe_v", "combined_1f1b", "interleaved_zb")},
}
