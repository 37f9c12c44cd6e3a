"""The interleaved schedule: the longest path through the places where a critical path can turn.

Chunk ``c = v pp + r`` lives on rank r. A rank runs *rounds* of pp micro-batches: forward round k is the rank's chunk ``k % vpp`` and
backward round k its chunk ``vpp - 1 - k % vpp``; after a warm-up of ``2 d + (vpp - 1) pp`` forwards (d ranks follow it) it alternates
one forward and one backward (Narayanan et al. 2021, arXiv:2104.04473, figure 4; Megatron-LM).

The time of a step is the longest path through forwards and backwards along a rank, from rank to rank and from the last rank's chunk
v to the first rank's chunk v + 1 (backwards the other way round). A path stays on a rank as long as that rank's present chunks are
the slower ones, so it changes ranks where chunks change: with the first or the last micro-batch of a round; and it stays only on
ranks at either end of a run of equal ranks (between them the work before an event is linear in the rank). What is left is a
recursion over rounds and a few ranks. It is a lower bound, since every path that it follows exists. Against the timeline it was
exact for 97-99 % of some 5,000 random uneven plans (pp to 16, vpp to 8) and at most 0.9 % short; with chunk times that differ by a
factor of 50 at random it was exact for 87 % and at most 9 % short.

More than a few groups of pp micro-batches are not followed one by one: in the middle of the step the path repeats itself, on one
rank or on a cycle of several, and the recursion measures the length of that repetition from every rank.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["interleaved_s"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_NEVER = -1e300  # no path leads here
_GROUPS = 4  # groups of pp micro-batches followed one by one
_ROWS = 1024  # plans at a time: tables of (ranks, plans) stay in a core's cache


def interleaved_s(
    m: IntArray, pp: IntArray, vpp: IntArray, count: IntArray, forward_s: FloatArray, backward_s: FloatArray
) -> FloatArray:
    """Time of all forwards and backwards of a step.

    Parameters
    ----------
    m, pp, vpp : arrays (n,)
        Micro-batches (a multiple of pp), ranks (2 or more), chunks per rank.
    count, forward_s, backward_s : arrays (n, R)
        Runs of equal chunks, as in `costmodel.mesh.schedule.ChunkRuns`.

    Returns
    -------
    array (n,)

    Examples
    --------
    Equal chunks: ``m vpp t + (pp - 1) t`` with t = F + B of a chunk.

    >>> time, four = np.array([[1.0]]), np.array([4])
    >>> interleaved_s(4 * four, four, four // 2, np.array([[8]]), time, 2 * time).tolist()
    [105.0]
    """
    total = np.empty(len(m))
    groups = m // pp
    simulated = np.minimum(groups, _GROUPS)
    # Plans with the same control flow go together.
    kind = ((vpp * (_GROUPS + 1) + simulated) * 2 + pp % 2) * 2 + (groups > _GROUPS)
    for value in np.unique(kind):
        chosen = np.flatnonzero(kind == value)
        for first in range(0, len(chosen), _ROWS):
            part = chosen[first : first + _ROWS]
            times = (np.ascontiguousarray(a[part].T) for a in (forward_s, backward_s))
            ranks = _Ranks(pp[part], int(vpp[part[0]]), int(simulated[part[0]]), count[part].T, *times)
            total[part] = _Path(ranks).length_s(groups[part] - simulated[part])
    return total


class _Ranks:
    """Times of the ranks worth staying on, in order, as columns: shape (U, n), with a leading axis of vpp per round.

    On ranks of the first half, forward round k + vpp + 1 begins between backward rounds k and k + 1; on those of the
    second half, forward round k + vpp does. The one in the middle (column `left`) has its own order.
    """

    def __init__(
        self, pp: IntArray, vpp: int, groups: int, count: IntArray, forward_s: FloatArray, backward_s: FloatArray
    ) -> None:
        self.vpp, self.rounds, self.even = vpp, vpp * groups, bool(pp[0] % 2 == 0)
        ends = np.cumsum(count, axis=0)
        starts = ends - count
        low, high, self.left = _columns(pp, starts, count)
        places = np.arange(vpp)[:, None, None] * pp + np.stack([low, high])[:, None]
        own_f, self.forward_out_s = _spans(_before(places, starts, count, forward_s), forward=True)
        own_b, out_b = _spans(_before(places, starts, count, backward_s), forward=False)
        self.forward_s, self.backward_s, self.backward_out_s = own_f, own_b[::-1], out_b[::-1]
        self.forwards_s = np.cumsum(self.forward_s, axis=0) * pp
        self.backwards_s = np.cumsum(self.backward_s, axis=0) * pp
        self.group_s = self.forwards_s[-1] + self.backwards_s[-1]
        # Columns by how many rounds more than vpp (vpp - 1) forwards are ahead when a forward (backward) round begins; into the
        # round of the other kind that is going on then, they have come as many micro-batches as the offset says.
        behind, early = pp - 1 - low, self.left + self.even
        self.halves = ((slice(0, early), 1), (slice(early, len(low)), 0))
        is_early = np.arange(len(low))[:, None] < early
        self.backward_offset = np.where(is_early, 2 * (pp - behind), pp - 2 * behind)
        self.forward_offset = np.where(is_early, 2 * behind - pp, 2 * behind) + 1

    def forwards_before(self, k: int) -> FloatArray:
        """Time of the first k forward rounds."""
        whole, rest = divmod(k, self.vpp)
        return np.asarray(whole * self.forwards_s[-1] + (self.forwards_s[rest - 1] if rest else 0.0))

    def backwards_before(self, k: int) -> FloatArray:
        """Time of the first k backward rounds."""
        whole, rest = divmod(k, self.vpp)
        return np.asarray(whole * self.backwards_s[-1] + (self.backwards_s[rest - 1] if rest else 0.0))

    def before_forward(self, k: int, *, last: bool) -> FloatArray:
        """Work of a rank before the first or the last forward of round k."""
        k += last
        total = self.forwards_before(k)
        if last:
            total -= self.forward_s[(k - 1) % self.vpp]
        for part, ahead in self.halves:
            done = k - self.vpp - ahead
            if done >= 0:
                present = self.backward_s[done % self.vpp, part]
                total[part] += self.backwards_before(done)[part] + (self.backward_offset[part] - last) * present
        return total

    def before_backward(self, k: int, *, last: bool) -> FloatArray:
        """Work of a rank before the first or the last backward of round k."""
        k += last
        total = self.backwards_before(k)
        if last:
            total -= self.backward_s[(k - 1) % self.vpp]
        for part, ahead in self.halves:
            done = min(k + self.vpp - 1 + ahead, self.rounds)
            total[part] += self.forwards_before(done)[part]
            if done < self.rounds:
                total[part] += (self.forward_offset[part] - last) * self.forward_s[done % self.vpp, part]
        return total


def _columns(pp: IntArray, starts: IntArray, count: IntArray) -> tuple[IntArray, IntArray, int]:
    """First position and the one after it of every column; and how many columns are in the first half.

    Columns are the first, the last and the middle rank and both ranks at each border between runs. Plans with fewer
    have columns without a rank (empty intervals), next to the middle.
    """
    borders = np.where(count > 0, starts, 0)
    ranks = np.concatenate([borders % pp, (borders - 1) % pp, (0 * pp)[None], (pp - 1)[None]])
    ranks.sort(axis=0)
    middle = (pp - 1) // 2
    new = ranks != middle
    new[1:] &= ranks[1:] != ranks[:-1]
    in_left, in_right = new & (ranks < middle), new & (ranks > middle)
    width_left, width_right = int(in_left.sum(axis=0).max()), int(in_right.sum(axis=0).max())
    none = np.iinfo(np.int64).max
    left = np.sort(np.where(in_left, ranks, none), axis=0)[:width_left]
    right = np.sort(np.where(in_right, ranks, -1), axis=0)[len(ranks) - width_right :]
    low = np.concatenate([np.where(left < none, left, middle), middle[None], np.where(right < 0, middle + 1, right)])
    is_rank = np.concatenate([left < none, middle[None] >= 0, right >= 0])
    return low, low + is_rank, width_left


def _before(places: IntArray, starts: IntArray, count: IntArray, time_s: FloatArray) -> FloatArray:
    """Time of all chunks before a place of the network."""
    total = np.zeros(places.shape)
    for q in range(len(starts)):
        total += np.clip(places - starts[q], 0, count[q]) * time_s[q]
    return total


def _spans(before_s: FloatArray, *, forward: bool) -> tuple[FloatArray, FloatArray]:
    """Time of each column, and the same with the ranks up to the next (for backwards: the previous) column."""
    low, high = before_s
    own = high - low
    out = own.copy()
    if forward:
        out[:, :-1] += low[:, 1:] - high[:, :-1]
    else:
        out[:, 1:] += low[:, 1:] - high[:, :-1]
    return own, out


class _Path:
    """The recursion. `stay_s` is, per column, the longest path to it less the work that the column has done meanwhile.

    An event (first or last micro-batch of a forward or backward round) on a column takes the longer of staying and
    the path that arrives with the micro-batch, and sends the micro-batch on.
    """

    def __init__(self, ranks: _Ranks) -> None:
        self.ranks = ranks
        self.plans = ranks.group_s.shape[1]
        self.known: dict[tuple[str, str, int], tuple[FloatArray, FloatArray]] = {}
        self.stop()

    def stop(self) -> None:
        """Forget the micro-batches on their way."""
        nobody = np.full(self.plans, _NEVER)
        self.forward_last = self.forward_first = self.backward_last = self.backward_first = self.end_s = nobody
        self.nobody = nobody

    def length_s(self, skipped: IntArray) -> FloatArray:
        """The longest path, with `skipped` groups more than the rounds of the tables."""
        ranks = self.ranks
        stay = np.full(ranks.group_s.shape, _NEVER)
        stay[0] = 0.0
        for k in range(ranks.vpp):
            self.forward_left(stay, k)
            self.forward_right(stay, k, first_column=ranks.left)
        self.forward_left(stay, ranks.vpp)
        middle = (ranks.rounds - ranks.vpp) // 2
        for k in range(ranks.rounds + 1):
            self.step(stay, k)
            if k == middle and skipped.any():
                stay += skipped * self.repetition_s(middle)
                self.stop()
        return self.end_s

    def repetition_s(self, after: int) -> FloatArray:
        """Length of a group of micro-batches for paths that leave from a column and come back to it."""
        ranks = self.ranks
        pace = ranks.group_s
        columns = range(len(pace))
        stay = np.full((len(pace), *pace.shape), _NEVER)  # by column and by the column where the path began
        stay[columns, columns] = 0.0
        self.stop()
        for k in range(after + 1, after + 1 + ranks.vpp):
            self.step(stay, k)
        return np.asarray(pace + stay[columns, columns])

    def step(self, stay: FloatArray, k: int) -> None:
        """Backward round k begins (round k - 1 ends) on all columns, then forward rounds where they follow."""
        ranks = self.ranks
        last, first = self.backward_last, self.backward_first if k % ranks.vpp else self.nobody
        for u in range(len(stay) - 1, -1, -1):
            if u == ranks.left:
                last, first = self.middle(stay, k, last, first)
                continue
            if u < len(stay) - 1:  # the last rank has ended round k - 1 in the step before
                last = self.backward_event(stay, u, k - 1, "last", last)
            first = self.backward_event(stay, u, k, "first", first)
        self.end_s, self.backward_first = last, first
        self.backward_last = last if k % ranks.vpp else self.nobody
        self.forward_right(stay, k + ranks.vpp, first_column=ranks.left + 1, backward=k)
        self.forward_left(stay, k + ranks.vpp + 1)

    def middle(self, stay: FloatArray, k: int, last: FloatArray, first: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same on the middle rank, where the beginnings of forward and backward rounds meet."""
        u, forward = self.ranks.left, k + self.ranks.vpp
        if self.ranks.even:
            self.forward_last = self.forward_event(stay, u, forward - 1, "last", self.forward_last)
            last = self.backward_event(stay, u, k - 1, "last", last)
            self.forward_first = self.forward_event(stay, u, forward, "first", self.forward_first)
            return last, self.backward_event(stay, u, k, "first", first)
        last = self.backward_event(stay, u, k - 1, "last", last)
        self.forward_last = self.forward_event(stay, u, forward - 1, "last", self.forward_last)
        first = self.backward_event(stay, u, k, "first", first)
        self.forward_first = self.forward_event(stay, u, forward, "first", self.forward_first)
        return last, first

    def forward_left(self, stay: FloatArray, k: int) -> None:
        """Forward round k begins (round k - 1 ends) on the columns of the first half."""
        for u in range(self.ranks.left):
            self.forward_last = self.forward_event(stay, u, k - 1, "last", self.forward_last)
            self.forward_first = self.forward_event(stay, u, k, "first", self.forward_first)

    def forward_right(self, stay: FloatArray, k: int, first_column: int, backward: int = -1) -> None:
        """The same on the others, then back to the first rank; on the last rank a backward round ends in between."""
        for u in range(first_column, len(stay)):
            self.forward_last = self.forward_event(stay, u, k - 1, "last", self.forward_last)
            if u == len(stay) - 1:
                self.backward_last = self.backward_event(stay, u, backward, "last", self.backward_last)
            self.forward_first = self.forward_event(stay, u, k, "first", self.forward_first)
        if k % self.ranks.vpp == 0:
            self.forward_last = self.nobody  # it was the network's last chunk
        if (k + 1) % self.ranks.vpp == 0:
            self.forward_first = self.nobody

    def forward_event(self, stay: FloatArray, u: int, k: int, which: str, arrives: FloatArray) -> FloatArray:
        """First or last forward of round k on column u; what arrives at the next column."""
        if not 0 <= k < self.ranks.rounds:
            return arrives
        key = ("forward", which, k)
        if key not in self.known:
            before = self.ranks.before_forward(k, last=which == "last")
            self.known[key] = before, before + self.ranks.forward_out_s[k % self.ranks.vpp]
        return self.meet(stay[u], arrives, u, key)

    def backward_event(self, stay: FloatArray, u: int, k: int, which: str, arrives: FloatArray) -> FloatArray:
        """First or last backward of round k on column u; what arrives at the column before."""
        if not 0 <= k < self.ranks.rounds:
            return arrives
        key = ("backward", which, k)
        if key not in self.known:
            before = self.ranks.before_backward(k, last=which == "last")
            self.known[key] = before, before + self.ranks.backward_out_s[k % self.ranks.vpp]
        return self.meet(stay[u], arrives, u, key)

    def meet(self, stay: FloatArray, arrives: FloatArray, u: int, key: tuple[str, str, int]) -> FloatArray:
        """The longer of staying and arriving, kept on the column and sent on."""
        before, after = self.known[key]
        np.maximum(stay, arrives - before[u], out=stay)
        return np.asarray(stay + after[u])
