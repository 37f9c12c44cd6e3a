"""Division of the blocks over the stages and of the batch over the pipelines: exact, for stages of any speed and memory.

A dynamic program over (stage, blocks placed) keeps every way to get there that no other dominates. The time of a 1F1B pipeline is a longest
path
(`costmodel.mesh.schedule`):

    makespan = max over e, a >= e, b >= e of  A_{e-1} - 2 A_e + (m - w_e) t_e + P_a + Q_b,   e >= S - m
    A_s = t_0 + .. + t_s,  w_s = S - 1 - s,  P_a = A_a + w_a max_{j<=a} F_j,  Q_b = A_b + w_b max_{j<=b} B_j

which grows stage by stage: with E = max_e [A_{e-1} + (m - w_e) t_e - 2 A_e] + 2 A, EP = max [E-part + P_a] + A and EQ alike, a stage adds
t to A, 2 t to E and t to EP and EQ, and offers new maxima. All are monotone, so componentwise smaller is never worse.

The end of the step is max_s (end_s - C_s), C_s the backward passes before stage s: there, larger is better. It matters only as far as a
later end can still show. With U the largest that any completion leaves, end_s - (C_s - C) over its stages, a state counts

    D = max(tail so far, U - C)

of which smaller is never worse either: of two states with D <= D', the first has no more left whatever its completion, because either its
C is larger, or all that its completion can leave is below the tail of the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.mixed.evaluate import pipeline_makespan_s, tail_s
from costmodel.tolerances import ROUNDING
from strategies.layerwise.dominance import undominated
from strategies.limits import UNLIMITED, Clock
from strategies.mesh.settings import Bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Equal replicas that take the batch in micro-batches of a size."""

    replicas: int
    micro_batch: int
    allowed: Bounds = Bounds()  # micro-batches of a replica

    def allows(self, count: int) -> bool:
        """Whether so many micro-batches, shared as evenly as can be, leave every replica an allowed number.

        >>> Shape(replicas=2, micro_batch=1, allowed=Bounds(values=(3, 4))).allows(7)
        True
        """
        each, longer = divmod(count, self.replicas)
        return self.allowed.allows(each) and not (longer and not self.allowed.allows(each + 1))


def assign(shapes: Sequence[Shape], most: Sequence[int], global_batch: int) -> tuple[int, ...] | None:
    """Micro-batches of each shape that add up to the batch, every replica having from one to ``most``; None if there are none.

    >>> assign([Shape(replicas=2, micro_batch=1), Shape(replicas=1, micro_batch=4)], [5, 3], 19)
    (7, 3)
    """
    # Sums that the later shapes can make, as bits, tell where a greedy choice is safe.
    reachable = [1]
    for shape, m in zip(reversed(shapes), reversed(most), strict=True):
        bits = reachable[-1] << (shape.replicas * shape.micro_batch)
        steps, width = shape.replicas * (m - 1), shape.micro_batch
        if not shape.allowed.is_free:
            bits = _chosen(reachable[-1], width, [n for n in _counts(shape, m, global_batch) if shape.allows(n)])
        elif steps >= 0:
            bits = _repeated(bits, width, steps)
        else:
            bits = 0
        reachable.append(bits & ((1 << (global_batch + 1)) - 1))
    reachable.reverse()
    if not reachable[0] >> global_batch & 1:
        return None
    left, counts = global_batch, []
    for i, (shape, m) in enumerate(zip(shapes, most, strict=True)):
        for count in reversed(_counts(shape, m, left)):
            rest = left - count * shape.micro_batch
            if reachable[i + 1] >> rest & 1 and shape.allows(count):
                counts.append(count)
                left = rest
                break
    return tuple(counts)


def _counts(shape: Shape, most: int, samples: int) -> range:
    """Micro-batches of a shape whose replicas have from one to ``most``, of so many samples."""
    return range(shape.replicas, min(shape.replicas * most, samples // shape.micro_batch) + 1)


def _chosen(bits: int, width: int, counts: Sequence[int]) -> int:
    """Bits shifted by some numbers of widths, together."""
    result = 0
    for count in counts:
        result |= bits << (width * count)
    return result


def _repeated(bits: int, width: int, steps: int) -> int:
    """Bits shifted by 0, 1, .. ``steps`` widths, together."""
    result, done = bits, 0
    while done < steps:
        jump = min(done + 1, steps - done)
        result |= result << (width * jump)
        done += jump
    return result


def vectors(shapes: Sequence[Shape], global_batch: int) -> IntArray:
    """Micro-batches of the busiest replica of each shape, the fewest of the last one that the others leave room for: array (n, shapes).

    Whether the counts add up exactly is for `assign` to find; where they do not, the last one needs more.

    >>> vectors([Shape(replicas=1, micro_batch=1), Shape(replicas=1, micro_batch=1)], 3).tolist()
    [[1, 2], [2, 1]]
    """
    units = [shape.replicas * shape.micro_batch for shape in shapes]
    if sum(units) > global_batch:
        return np.zeros((0, len(shapes)), dtype=np.int64)
    room = global_batch - sum(units)
    ranges = [np.arange(1, -(-(room + unit) // unit) + 1, dtype=np.int64) for unit in units[:-1]]
    grid = (
        np.stack([x.reshape(-1) for x in np.meshgrid(*ranges, indexing="ij")], axis=1)
        if ranges
        else np.zeros((1, 0), dtype=np.int64)
    )
    left = np.maximum(global_batch - grid @ np.array(units[:-1], dtype=np.int64), 1)
    return np.concatenate([grid, -(-left // units[-1])[:, None]], axis=1)


def num_vectors(shapes: Sequence[Shape], global_batch: int) -> int:
    """Length of `vectors`."""
    units = [shape.replicas * shape.micro_batch for shape in shapes]
    room = global_batch - sum(units)
    return int(np.prod([float(-(-(room + unit) // unit)) for unit in units[:-1]])) if room >= 0 else 0


def least_slowest(
    times_s: Sequence[FloatArray], shapes: Sequence[Shape], global_batch: int
) -> tuple[float, tuple[int, ...]] | None:
    """Shares with the least slowest replica; ``times_s[p][m]`` is the time of shape p with m micro-batches, growing in m.

    Returns
    -------
    tuple or None
        That time and the micro-batches of each shape; None where the batch cannot be shared.

    Examples
    --------
    One device twice as fast as the other gets twice as much.

    >>> fast, slow = np.arange(10.0), 2.0 * np.arange(10.0)
    >>> one = Shape(replicas=1, micro_batch=1)
    >>> least_slowest([fast, slow], [one, one], 9)
    (6.0, (6, 3))
    """
    candidates = np.unique(np.concatenate([t[1:][np.isfinite(t[1:])] for t in times_s]))
    low, high = 0, len(candidates)
    best: tuple[float, tuple[int, ...]] | None = None
    while low < high:
        middle = (low + high) // 2
        limit = candidates[middle]
        most = [int(np.searchsorted(t[1:], limit, side="right")) for t in times_s]
        counts = assign(shapes, most, global_batch) if min(most) >= 1 else None
        if counts is None:
            low = middle + 1
        else:
            best, high = (float(limit), counts), middle
    return best


_A, _TOP_F, _TOP_B, _E, _EP, _EQ, _MAKESPAN, _TAIL, _OPEN, _C = range(10)
_COMPARED = slice(0, _C)  # the columns of which smaller is never worse


@dataclass(frozen=True, slots=True, kw_only=True)
class DivisionProblem:
    """Stage s with blocks i..j-1: arrays (S, L + 1, L + 1) indexed [s, i, j]; infinity where a stage cannot hold them.

    Attributes
    ----------
    num_micro_batches : int
    forward_s, backward_s : arrays
        Per micro-batch, transfers included.
    end_s : array
        After the last backward pass.
    """

    num_micro_batches: int
    forward_s: FloatArray
    backward_s: FloatArray
    end_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """One way to divide: first blocks of the stages after the first, and its times."""

    blocks: tuple[int, ...]
    makespan_s: float
    tail_s: float

    @property
    def total_s(self) -> float:
        """Both."""
        return self.makespan_s + self.tail_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """Divisions that none dominates in (makespan, tail), by makespan; ``bound_s`` is below makespan + tail of all there are.

    ``is_complete`` says that no division below the limit is missing from the front.
    """

    divisions: tuple[Division, ...]
    bound_s: float
    is_complete: bool


def least_bottleneck(times: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Least longest stage, and least sum of stages, from every stage and block on: arrays (S + 1, L + 1).

    >>> t = np.array([[[np.inf, 1.0, 2.0], [np.inf, np.inf, 1.0], [np.inf] * 3]] * 2)  # two equal stages, two blocks
    >>> longest, total = least_bottleneck(t)
    >>> float(longest[0, 0]), float(total[0, 0])
    (1.0, 2.0)
    """
    stages, extent, _ = times.shape
    longest, total = np.full((stages + 1, extent), np.inf), np.full((stages + 1, extent), np.inf)
    longest[stages, -1] = total[stages, -1] = 0.0
    for s in reversed(range(stages)):
        longest[s] = np.min(np.maximum(times[s], longest[s + 1][None, :]), axis=1)
        total[s] = np.min(times[s] + total[s + 1][None, :], axis=1)
    return longest, total


def makespan_bound_s(
    num_micro_batches: FloatArray | int,
    stages: FloatArray | int,
    longest_s: FloatArray | float,
    total_s: FloatArray | float,
    backward_share: float,
) -> FloatArray:
    """No pipeline takes less whose slowest stage takes ``longest_s`` and whose stages take ``total_s`` together, per micro-batch.

    Two of the longest path's candidates, T of stage e with B of it backward, at least a share b: ``m T``, and turning forward at the last
    stage and backward at e, ``sum t + (m - 1) B + max(m - 1 - w_e, 0) F`` with ``w_e <= S - 1``.

    >>> float(makespan_bound_s(8, 4, 3.0, 12.0, 2.0 / 3.0))  # equal stages of F = 1, B = 2 take 33
    30.0
    """
    turns = turns_of(num_micro_batches, stages, backward_share)
    possible = np.isfinite(longest_s)
    slowest = np.where(possible, longest_s, 0.0)
    return np.where(possible, np.maximum(num_micro_batches * slowest, total_s + turns * slowest), np.inf)


def turns_of(num_micro_batches: FloatArray | int, stages: FloatArray | int, backward_share: float) -> FloatArray:
    """How often the slowest stage counts in `makespan_bound_s` besides the sum of all."""
    m, extra = np.asarray(num_micro_batches, dtype=np.float64), np.asarray(stages, dtype=np.float64) - 1.0
    return np.asarray((m - 1.0) * backward_share + np.maximum(m - 1.0 - extra, 0.0) * (1.0 - backward_share))


def divide(problem: DivisionProblem, limit_s: float, most_states: int = 20_000, clock: Clock = UNLIMITED) -> Front:
    """Find the divisions with makespan + tail below a limit that none dominates.

    Parameters
    ----------
    problem : DivisionProblem
    limit_s : float
        Divisions at or above are of no interest.
    most_states : int
        Ways kept per stage; with more the least promising are dropped and the front is not complete.
    clock : Clock

    Returns
    -------
    Front

    Raises
    ------
    OutOfTimeError
    """
    times = problem.forward_s + problem.backward_s
    sweep = _Sweep(problem, times, limit_s, most_states)
    m, stages = problem.num_micro_batches, len(times)
    bound = float(makespan_bound_s(m, stages, sweep.longest[0, 0], sweep.total[0, 0], sweep.backward_share))
    if not np.isfinite(bound) or bound >= limit_s:
        return Front(divisions=(), bound_s=bound, is_complete=True)
    ends, is_complete = sweep.run(clock)
    found = _evaluated(problem, ends) if len(ends) else []
    front = _front([d for d in found if d.total_s < limit_s])
    low = max(bound, min((d.total_s for d in front), default=limit_s)) if is_complete else bound
    return Front(divisions=tuple(front), bound_s=low, is_complete=is_complete)


def greedy_division(problem: DivisionProblem) -> Division | None:
    """A good division, fast: the least slowest stage, and among those the least sum; None where nothing fits."""
    times = problem.forward_s + problem.backward_s
    longest, _ = least_bottleneck(times)
    if not np.isfinite(longest[0, 0]):
        return None
    allowed = np.where(times <= longest[0, 0] * (1.0 + ROUNDING), times, np.inf)
    _, total = least_bottleneck(allowed)
    at, ends = 0, []
    for s in range(len(times)):
        at = int(np.argmin(allowed[s, at] + total[s + 1]))
        ends.append(at)
    return _evaluated(problem, np.array([ends]))[0]


def _evaluated(problem: DivisionProblem, ends: IntArray) -> list[Division]:
    """Exact times of divisions (n, S), by the formulas of the cost model."""
    starts = np.concatenate([np.zeros((len(ends), 1), dtype=np.int64), ends[:, :-1]], axis=1)
    stages = np.broadcast_to(np.arange(ends.shape[1]), ends.shape)
    forward, backward, end = (
        array[stages, starts, ends] for array in (problem.forward_s, problem.backward_s, problem.end_s)
    )
    makespan = pipeline_makespan_s(problem.num_micro_batches, forward, backward)
    tail = tail_s(end, backward)
    return [
        Division(blocks=tuple(int(x) for x in row), makespan_s=float(f), tail_s=float(t))
        for row, f, t in zip(ends - starts, makespan, tail, strict=True)
    ]


def _front(divisions: list[Division]) -> list[Division]:
    result: list[Division] = []
    for division in sorted(set(divisions), key=lambda d: (d.makespan_s, d.tail_s, d.blocks)):
        if not result or division.tail_s < result[-1].tail_s:
            result.append(division)
    return result


class _Sweep:
    """The dynamic program."""

    def __init__(self, problem: DivisionProblem, times: FloatArray, limit_s: float, most_states: int) -> None:
        self.problem, self.times, self.limit_s, self.most_states = problem, times, limit_s, most_states
        self.longest, self.total = least_bottleneck(times)
        self.backward_share = backward_share(problem)
        self.open_s = _open_ends_s(problem, times)

    def run(self, clock: Clock) -> tuple[IntArray, bool]:
        """Ends of the stages (n, S), and whether nothing was dropped."""
        stages = len(self.times)
        at, values = np.zeros(1, dtype=np.int64), np.zeros((1, 10))
        values[0, [_E, _EP, _EQ]] = -np.inf
        history: list[tuple[IntArray, IntArray]] = []
        is_complete = True
        for s in range(stages):
            clock.check()
            parent, end = self._moves(s, at, values)
            if not len(parent):
                return np.zeros((0, stages), dtype=np.int64), is_complete
            grown = self._grow(s, at[parent], end, values[parent])
            keep = np.flatnonzero(self._bound(s, end, grown) < self.limit_s)
            # Times that differ by rounding count as equal.
            compared = grown[keep, _COMPARED]
            scale = np.max(np.abs(compared), where=np.isfinite(compared), initial=1e-300)
            keep = keep[undominated(end[keep], np.round(compared / scale, 12), clock=clock)]
            if len(keep) > self.most_states:
                is_complete = False
                keep = keep[np.argsort(self._bound(s, end[keep], grown[keep]), kind="stable")[: self.most_states]]
            at, values = end[keep], grown[keep]
            history.append((parent[keep], at))
        divided, place = np.zeros((len(at), stages), dtype=np.int64), np.arange(len(at))
        for s in reversed(range(stages)):
            parents, ends = history[s]
            divided[:, s] = ends[place]
            place = parents[place]
        return divided, is_complete

    def _moves(self, s: int, at: IntArray, values: FloatArray) -> tuple[IntArray, IntArray]:
        """States and the ends of their next stage, quick bounds applied."""
        t = self.times[s][at]
        last = s == len(self.times) - 1
        usable = np.isfinite(t) & np.isfinite(self.total[s + 1])[None, :]
        if last:
            usable[:, :-1] = False
        usable &= values[:, [_A]] + self.problem.num_micro_batches * t < self.limit_s
        parent, end = np.nonzero(usable)
        return parent, end

    def _grow(self, s: int, start: IntArray, end: IntArray, values: FloatArray) -> FloatArray:
        f, b = self.problem.forward_s[s, start, end], self.problem.backward_s[s, start, end]
        t, w, m = f + b, len(self.times) - 1 - s, self.problem.num_micro_batches
        new = values.copy()
        new[:, _A] += t
        new[:, _TOP_F] = np.maximum(values[:, _TOP_F], f)
        new[:, _TOP_B] = np.maximum(values[:, _TOP_B], b)
        new[:, _E] += 2.0 * t
        if s >= len(self.times) - m:
            new[:, _E] = np.maximum(new[:, _E], values[:, _A] + (m - w) * t)
        down, up = w * new[:, _TOP_F], w * new[:, _TOP_B]
        new[:, _EP] = np.maximum(new[:, _EP] + t, new[:, _E] + down)
        new[:, _EQ] = np.maximum(new[:, _EQ] + t, new[:, _E] + up)
        new[:, _MAKESPAN] = np.maximum(new[:, _MAKESPAN], np.maximum(new[:, _EP] + up, new[:, _EQ] + down))
        new[:, _TAIL] = np.maximum(new[:, _TAIL], self.problem.end_s[s, start, end] - values[:, _C])
        new[:, _C] += b
        new[:, _OPEN] = np.maximum(new[:, _TAIL], self.open_s[s + 1][end] - new[:, _C])
        return new

    def _bound(self, s: int, end: IntArray, values: FloatArray) -> FloatArray:
        """Flush + tail of a state's completions is at least this."""
        rest, longest = self.total[s + 1][end], self.longest[s + 1][end]
        low = np.maximum(values[:, _MAKESPAN], values[:, _A] + rest)
        low = np.maximum(low, values[:, _E] + 2.0 * rest)
        low = np.maximum(low, np.maximum(values[:, _EP], values[:, _EQ]) + rest)
        if s + 1 < len(self.times):
            # What comes is a pipeline of its own after the stages that were passed.
            m, left = self.problem.num_micro_batches, len(self.times) - 1 - s
            low = np.maximum(low, values[:, _A] + makespan_bound_s(m, left, longest, rest, self.backward_share))
        return np.asarray(low + values[:, _TAIL])


def _open_ends_s(problem: DivisionProblem, times: FloatArray) -> FloatArray:
    """What any completion from a stage and block on can leave, after the backward passes before it: (S + 1, L + 1)."""
    stages, extent, _ = times.shape
    found = np.full((stages + 1, extent), -np.inf)
    for s in reversed(range(stages)):
        possible = np.isfinite(times[s])
        ends = np.where(possible, problem.end_s[s], -np.inf)
        later = found[s + 1][None, :] - np.where(possible, problem.backward_s[s], np.inf)
        found[s] = np.max(np.maximum(ends, later), axis=1)
    return found


def backward_share(problem: DivisionProblem) -> float:
    """Least share of a stage's time that its backward pass takes."""
    possible = np.isfinite(problem.backward_s)
    if not possible.any():
        return 0.0
    both = problem.forward_s[possible] + problem.backward_s[possible]
    return float(np.min(problem.backward_s[possible] / np.maximum(both, 1e-300)))
