"""Pipeline schedules in closed form: how long a step's forwards and backwards take, and how many activations wait meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.mesh.interleaved import interleaved_s
from costmodel.mesh.keys import rows_of
from costmodel.mesh.plan import SCHEDULES
from costmodel.mesh.zero_bubble import zero_bubble_s

__all__ = ["ChunkRuns", "flush_s", "in_flight", "schedule_is_legal", "waiting_for_weight"]


_GPIPE, _1F1B, _INTERLEAVED, _ZERO_BUBBLE = (
    SCHEDULES.index(n) for n in ("gpipe", "1f1b", "interleaved", "zero_bubble")
)

_ROWS = 2048  # plans at a time: a workspace that stays in a core's cache


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRuns:
    """The chunks of many pipelines, in network order, as runs of equal neighbours; every array has shape (n, R)."""

    count: IntArray  # chunks in the run; 0: no such run
    forward_s: FloatArray  # per chunk and micro-batch, the transfer it waits for included
    backward_s: FloatArray  # the same; input and weight gradients

    def take(self, index: IntArray) -> ChunkRuns:
        """A selection of the pipelines."""
        return ChunkRuns(**{item.name: rows_of(getattr(self, item.name), index) for item in fields(self)})

    def part(self, rows: slice) -> ChunkRuns:
        """Neighbouring pipelines."""
        return ChunkRuns(**{item.name: getattr(self, item.name)[rows] for item in fields(self)})


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
    interleaved = schedule == _INTERLEAVED
    groups = m % np.maximum(pp, 1) == 0
    legal = np.where(interleaved, (vpp >= 2) & (pp >= 2) & groups, vpp == 1)
    return np.asarray((m >= 1) & (pp >= 1) & legal)


def in_flight(schedule: IntArray, m: IntArray, pp: IntArray, vpp: IntArray, position: IntArray) -> IntArray:
    """Most activations of one chunk and micro-batch that a rank holds at once, over all its chunks.

    - gpipe: every micro-batch, ``m vpp`` (Huang et al. 2019, arXiv:1811.06965)
    - 1f1b: ``min(m, pp - position)`` (PipeDream-Flush, Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1)
    - interleaved: one more than the forwards of Megatron-LM's warm-up,
      ``min(m vpp, 2 (pp - position - 1) + (vpp - 1) pp + 1)``
    - zero_bubble: ``min(m, pp)`` until the weight gradient: ZB-H1 lets weight gradients lag so that all ranks keep as many
      micro-batches as the first, which holds as many as under 1F1B (Qi et al. 2024, arXiv:2401.10241, section 2.1). Of
      these, `waiting_for_weight` have had their input gradient and keep only what weight gradients need.

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
    counts = np.where(schedule == _1F1B, np.minimum(m, pp - position), m * vpp)
    warm_up = 2 * (pp - position - 1) + (vpp - 1) * pp
    counts = np.where(schedule == _INTERLEAVED, np.minimum(m * vpp, warm_up + 1), counts)
    return np.where(schedule == _ZERO_BUBBLE, np.minimum(m, pp), counts)


def waiting_for_weight(schedule: IntArray, m: IntArray, pp: IntArray, position: IntArray) -> IntArray:
    """How many of the activations `in_flight` wait for nothing but their weight gradient when most are alive.

    ZB-H1 lets rank i run its weight gradients i micro-batches late: it holds ``min(m, pp - i)`` whole activations
    and these besides (Qi et al. 2024, arXiv:2401.10241, section 2.3). Zero for the other schedules.

    Examples
    --------
    >>> waiting_for_weight(np.full(4, 3), np.full(4, 8), np.full(4, 4), np.arange(4)).tolist()
    [0, 1, 2, 3]
    """
    late = np.minimum(m, pp) - np.minimum(m, pp - position)
    return np.where(schedule == _ZERO_BUBBLE, late, 0)


def flush_s(
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
    >>> flush_s(np.array([1]), np.array([8]), np.array([4]), np.array([1]), runs).tolist()
    [33.0]
    """
    if weight_s is None and np.any(schedule == _ZERO_BUBBLE):
        raise ValueError("zero_bubble needs weight_s")
    weight = np.zeros_like(runs.backward_s) if weight_s is None else weight_s
    if not runs.count[:, 0].all():  # the formulas begin with a run that exists
        order = np.argsort(runs.count == 0, axis=1, kind="stable")
        runs = ChunkRuns(
            **{item.name: np.take_along_axis(getattr(runs, item.name), order, axis=1) for item in fields(runs)}
        )
        weight = np.take_along_axis(weight, order, axis=1)
    legal = schedule_is_legal(schedule, m, pp, vpp)
    total = np.full(len(schedule), np.inf)
    for code, formula in _FORMULAS.items():
        chosen = np.flatnonzero(legal & (schedule == code))
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
        _one_f_one_b_block(m[part], pp[part], runs.part(part), space[:, : len(m[part])], total[part])
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


def _interleaved_s(m: IntArray, pp: IntArray, vpp: IntArray, runs: ChunkRuns, _weight_s: FloatArray) -> FloatArray:
    return interleaved_s(m, pp, vpp, runs.count, runs.forward_s, runs.backward_s)


def _zero_bubble_s(m: IntArray, pp: IntArray, _vpp: IntArray, runs: ChunkRuns, weight_s: FloatArray) -> FloatArray:
    return zero_bubble_s(m, pp, runs.count, runs.forward_s, runs.backward_s, weight_s)


_Formula = Callable[[IntArray, IntArray, IntArray, ChunkRuns, FloatArray], FloatArray]
_FORMULAS: dict[int, _Formula] = {
    _GPIPE: _gpipe_s,
    _1F1B: _one_f_one_b_s,
    _INTERLEAVED: _interleaved_s,
    _ZERO_BUBBLE: _zero_bubble_s,
}
