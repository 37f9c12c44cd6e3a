"""The interleaved schedule: the longest path through the places where a critical path can turn.

Chunk ``c = v pp + r`` lives on rank r. A rank runs *rounds* of N micro-batches, pp or more: forward round k is the rank's
chunk ``k % vpp`` and backward round k its chunk ``vpp - 1 - k % vpp``; after a warm-up of ``2 d + (vpp - 1) N`` forwards (d
ranks follow it) it alternates one forward and one backward (Narayanan et al. 2021, arXiv:2104.04473, figure 4; Megatron-LM).

The time of a step is the longest path through forwards and backwards along a rank, from rank to rank and from the last rank's chunk
v to the first rank's chunk v + 1 (backwards the other way round). A path stays on a rank as long as that rank's present chunks are
the slower ones, so it changes ranks where chunks change: with the first or the last micro-batch of a round; and it stays only on
ranks at either end of a run of equal ranks (between them the work before an event is linear in the rank). What is left is a
recursion over rounds and a few ranks. It is a lower bound, since every path that it follows exists. Against the timeline it was
exact for 97-99 % of some 5,000 random uneven plans (pp to 16, vpp to 8) and at most 0.9 % short; with chunk times that differ by a
factor of 50 at random it was exact for 87 % and at most 9 % short.

More than a few groups of N micro-batches are not followed one by one: in the middle of the step the path repeats itself, on one
rank or on a cycle of several, and the recursion measures the length of that repetition from every rank.

Which event follows which, and how often every chunk runs between them, is the same for all plans with the same pp, vpp, runs of chunks
and (few) groups: it is found once, and the times of thousands of such plans go through it together. Where there are few plans with the
same runs, as of layouts that differ by a block, those go together in which the same events follow each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from costmodel.arrays import FloatArray, IntArray, combined

_NEVER = -1e300  # no path leads here
_GROUPS = 4  # groups of micro-batches followed one by one
_ROWS = 1024  # plans at a time: tables of (messages, plans) stay in a core's cache
_FEW = 32  # fewer plans with the same runs of chunks go together with others
# Messages on their way: each of these for the first, and (+ _LAST) for the last micro-batch of a round.
_FORWARD, _BACKWARD = 0, 2
_LAST = 1


def interleaved_s(
    m: IntArray,
    pp: IntArray,
    vpp: IntArray,
    size: IntArray,
    count: IntArray,
    forward_s: FloatArray,
    backward_s: FloatArray,
) -> FloatArray:
    """Time of all forwards and backwards of a step.

    Parameters
    ----------
    m, pp, vpp, size : arrays (n,)
        Micro-batches, ranks (2 or more), chunks per rank, and micro-batches of a group: from pp to 2 pp - 1, a divisor of m.
    count, forward_s, backward_s : arrays (n, R)
        Runs of equal chunks, as in `costmodel.mesh.schedule.ChunkRuns`.

    Returns
    -------
    array (n,)

    Examples
    --------
    Equal chunks: ``m vpp t + (pp - 1) t`` with t = F + B of a chunk.

    >>> time, four = np.array([[1.0]]), np.array([4])
    >>> interleaved_s(4 * four, four, four // 2, four, np.array([[8]]), time, 2 * time).tolist()
    [105.0]
    """
    groups, chunks = m // size, count.astype(np.int64)
    followed = np.minimum(groups, _GROUPS + 1)
    first, kind = combined(vpp, followed, pp, size, *chunks.T)
    order = np.argsort(kind, kind="stable")
    times = np.concatenate([forward_s.T, backward_s.T]).take(order, axis=1)
    ends = np.cumsum(np.bincount(kind, minlength=len(first))).tolist()
    total = np.empty(len(m))
    few: dict[int, list[tuple[_Path, FloatArray, IntArray]]] = {}
    for n, begin, end in zip(first.tolist(), [0, *ends], ends, strict=False):
        runs = np.flatnonzero(chunks[n])
        key = int(pp[n]), int(vpp[n]), int(size[n]), int(followed[n]), tuple(chunks[n, runs].tolist())
        used = np.concatenate([runs, runs + chunks.shape[1]])
        path = _path(*key)
        if end - begin < _FEW:
            few.setdefault(id(path.route), []).append((path, times[used, begin:end], order[begin:end]))
            continue
        for start in range(begin, end, _ROWS):
            part = slice(start, min(start + _ROWS, end))
            total[order[part]] = _lengths_s([(path, times[used, part])], groups[order[part]])
    for alike in few.values():
        for start in range(0, len(alike), _ROWS // _FEW):
            some = alike[start : start + _ROWS // _FEW]
            rows = np.concatenate([places for _, _, places in some])
            total[rows] = _lengths_s([(path, own) for path, own, _ in some], groups[rows])
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Path:
    """The recursion for plans that differ in nothing but times. Arrays (..., T) say how often a path passes each of the T times.

    Its state is, per column, the longest path to it less the work that the column has done meanwhile. An event on a column takes the
    longer of that and the path that arrives with a micro-batch, and sends the micro-batch on.
    """

    route: _Route
    groups: int  # followed one by one
    messages: FloatArray  # (M, T) what a message of the route adds, less the difference of the work done by sender and receiver
    group: FloatArray  # (U, T) work of a column in a group of micro-batches
    end: FloatArray  # (1, T) work of the first column


def _lengths_s(plans: Sequence[tuple[_Path, FloatArray]], groups: IntArray) -> FloatArray:
    """Longest paths of plans with the times (T, n) along some paths, all of one route: those of the first, of the second and so on."""
    path = plans[0][0]
    route = path.route
    added, group_s, end_s = (
        _beside([_sums(getattr(one, name), times) for one, times in plans]) for name in ("messages", "group", "end")
    )
    state = np.full(group_s.shape, _NEVER)
    state[0] = 0.0
    _follow(route.begin, state, added)
    if route.repeat.size:
        # By column and by the column where the path began.
        columns = range(len(state))
        paths = np.full((len(state), *state.shape), _NEVER)
        paths[columns, columns] = 0.0
        _follow(route.repeat, paths, added)
        state += (groups - path.groups) * (group_s + paths[columns, columns])
    _follow(route.finish, state, added)
    return np.asarray(state[0] + end_s[0])


def _beside(tables: Sequence[FloatArray]) -> FloatArray:
    return tables[0] if len(tables) == 1 else np.concatenate(tables, axis=1)


def _sums(counts: FloatArray, times_s: FloatArray) -> FloatArray:
    """Matrix product (M, T) x (T, n), the same to the last digit for one plan and for many."""
    total = counts[:, :1] * times_s[0]
    for t in range(1, len(times_s)):
        total += counts[:, t : t + 1] * times_s[t]
    return np.asarray(total)


def _follow(events: IntArray, state: FloatArray, added: FloatArray) -> None:
    """Let events happen on the columns of a state, which is changed."""
    sent = np.empty((4, *state.shape[1:]))
    columns, messages, additions, maximum, add = list(state), list(sent), list(added), np.maximum, np.add
    for column, message, receives, sends in zip(*events.tolist(), strict=True):
        own = columns[column]
        if receives:
            maximum(own, messages[message], out=own)
        if sends >= 0:
            add(own, additions[sends], out=messages[message])


# With some 100 kB each; the refinement of two plans goes through some 300, and comes back to many.
@lru_cache(maxsize=512)
def _path(pp: int, vpp: int, size: int, groups: int, count: tuple[int, ...]) -> _Path:
    """The path of a kind of plans; more than `_GROUPS` groups are any number."""
    columns, left = _columns(pp, size, count)
    followed = min(groups, _GROUPS)
    route = _route(vpp, vpp * followed, len(columns), left, size % 2 == 0, groups > _GROUPS)
    work = _Work.of(pp, vpp, size, followed, count, columns, left)
    sender, receiver = route.messages
    before, after = (a.reshape(-1, a.shape[-1]) for a in (work.before, work.after))
    return _Path(
        route=route,
        groups=followed,
        messages=after[sender] - before[receiver],
        group=work.group,
        end=after[route.end : route.end + 1],
    )


# -- which event follows which ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """The events in an order in which they can happen.

    Arrays (4, events): the column where it happens; the message that it takes and passes on (direction and which); whether there is one
    to take; and the position in ``messages`` of what it passes on (-1: nobody takes it).
    """

    begin: IntArray
    repeat: IntArray  # a group of micro-batches that may repeat itself any number of times
    finish: IntArray
    messages: IntArray  # (2, messages) sender and receiver, positions in the tables of `_Work`
    end: int  # the last event of all


@lru_cache(maxsize=1024)
def _route(vpp: int, rounds: int, columns: int, left: int, is_even: bool, repeats: bool) -> _Route:
    """The events on so many columns, `left` of them in the first half; `is_even`: micro-batches of a round."""
    events = _Events(vpp, rounds, columns, left, is_even)
    for k in range(vpp):
        events.forward_left(k)
        events.forward_right(k, first_column=left)
    events.forward_left(vpp)
    middle = (rounds - vpp) // 2
    for k in range(middle + 1):
        events.step(k)
    begin = repeat = np.zeros((4, 0), dtype=np.int64)
    if repeats:
        begin = events.stop()
        for k in range(middle + 1, middle + 1 + vpp):
            events.step(k)
        repeat = events.stop()
    for k in range(middle + 1, rounds + 1):
        events.step(k)
    finish = events.stop()
    end = events.place(_BACKWARD + _LAST, rounds - 1, 0)
    messages = np.array(list(events.messages), dtype=np.int64).T
    return _Route(begin=begin, repeat=repeat, finish=finish, messages=messages, end=end)


class _Events:
    """Writes events down; `on_way` has the events whose messages nobody has taken yet."""

    def __init__(self, vpp: int, rounds: int, columns: int, left: int, is_even: bool) -> None:
        self.vpp, self.rounds, self.columns, self.left, self.is_even = vpp, rounds, columns, left, is_even
        self.messages: dict[tuple[int, int], int] = {}
        self.written: list[list[int]] = []
        self.places: list[int] = []
        self.on_way = [-1] * 4

    def stop(self) -> IntArray:
        """What has been written; the micro-batches on their way are forgotten."""
        done = np.array(self.written, dtype=np.int64).T
        self.written, self.places, self.on_way = [], [], [-1] * 4
        return done

    def place(self, message: int, k: int, column: int) -> int:
        """Where the tables of `_Work` have an event."""
        return (message * self.rounds + k) * self.columns + column

    def event(self, message: int, k: int, column: int) -> None:
        """First or last micro-batch of round k, on a column."""
        if not 0 <= k < self.rounds:
            return
        place, sender = self.place(message, k, column), self.on_way[message]
        if sender >= 0:
            key = (self.places[sender], place)
            self.written[sender][3] = self.messages.setdefault(key, len(self.messages))
        self.on_way[message] = len(self.written)
        self.written.append([column, message, sender >= 0, -1])
        self.places.append(place)

    def step(self, k: int) -> None:
        """Backward round k begins (round k - 1 ends) on all columns, then forward rounds where they follow."""
        if k % self.vpp == 0:
            self.on_way[_BACKWARD] = -1
        for u in range(self.columns - 1, -1, -1):
            if u == self.left:
                self.middle(k)
                continue
            if u < self.columns - 1:  # the last rank has ended round k - 1 in the step before
                self.event(_BACKWARD + _LAST, k - 1, u)
            self.event(_BACKWARD, k, u)
        if k % self.vpp == 0:
            self.on_way[_BACKWARD + _LAST] = -1
        self.forward_right(k + self.vpp, first_column=self.left + 1, backward=k)
        self.forward_left(k + self.vpp + 1)

    def middle(self, k: int) -> None:
        """The same on the middle rank, where the beginnings of forward and backward rounds meet."""
        u, forward = self.left, k + self.vpp
        ending = [(_FORWARD + _LAST, forward - 1), (_BACKWARD + _LAST, k - 1)]
        beginning = [(_FORWARD, forward), (_BACKWARD, k)]
        in_order = [*ending, *beginning] if self.is_even else [*ending[::-1], *beginning[::-1]]
        for message, number in in_order:
            self.event(message, number, u)

    def forward_left(self, k: int) -> None:
        """Forward round k begins (round k - 1 ends) on the columns of the first half."""
        for u in range(self.left):
            self.event(_FORWARD + _LAST, k - 1, u)
            self.event(_FORWARD, k, u)

    def forward_right(self, k: int, first_column: int, backward: int = -1) -> None:
        """The same on the others, then back to the first rank; on the last rank a backward round ends in between."""
        for u in range(first_column, self.columns):
            self.event(_FORWARD + _LAST, k - 1, u)
            if u == self.columns - 1:
                self.event(_BACKWARD + _LAST, backward, u)
            self.event(_FORWARD, k, u)
        if k % self.vpp == 0:
            self.on_way[_FORWARD + _LAST] = -1  # it was the network's last chunk
        if (k + 1) % self.vpp == 0:
            self.on_way[_FORWARD] = -1


# -- how much work lies between ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Work of the ranks worth staying on (columns), in terms of the T times: of all runs forward, then of all backward.

    On ranks of the first half, forward round k + vpp + 1 begins between backward rounds k and k + 1; on those of the
    second half, forward round k + vpp does. The one in the middle (column `left`) has its own order.
    """

    before: FloatArray  # (4, rounds, U, T) of a column before the messages of `_FORWARD`, `_BACKWARD` and so on
    after: FloatArray  # the same and the event itself, also on the ranks between the column and the next one
    group: FloatArray  # (U, T) of a group of micro-batches

    @classmethod
    def of(
        cls, pp: int, vpp: int, size: int, groups: int, count: tuple[int, ...], columns: IntArray, left: int
    ) -> _Work:
        """Count how often chunks run."""
        forward, backward, forward_out, backward_out = (
            np.tile(a, (groups, 1, 1)) for a in _passes(pp, vpp, count, columns)
        )
        rounds, _, runs = forward.shape
        none = np.zeros((1, *forward.shape[1:]))
        forwards, backwards = (np.concatenate([none, size * np.cumsum(a, axis=0)]) for a in (forward, backward))
        present = np.concatenate([forward, none])
        # Columns by how many rounds more than vpp (vpp - 1) forwards are ahead when a forward (backward) round begins; into the
        # round of the other kind that is going on then, they have come as many micro-batches as the offset says.
        behind, u = pp - 1 - columns, np.arange(len(columns))
        is_early = u < left + (size % 2 == 0)
        ahead = is_early.astype(np.int64)
        backward_offset = np.where(is_early, 2 * (size - behind), size - 2 * behind)[:, None]
        forward_offset = np.where(is_early, 2 * behind - size, 2 * behind)[:, None] + 1
        before = np.empty((4, *forward.shape[:2], 2 * runs))
        # In terms of the times forward, and of the times backward.
        ahead_of, back_of = before[..., :runs], before[..., runs:]
        for last in (0, _LAST):
            k = np.arange(last, rounds + last)[:, None]
            done = k - vpp - ahead
            begun = np.maximum(done, 0)
            others = backwards[begun, u] + (backward_offset - last) * backward[begun, u]
            others[done < 0] = 0.0
            ahead_of[_FORWARD + last] = forwards[k[:, 0]] - last * forward
            back_of[_FORWARD + last] = others
            done = np.minimum(k + vpp - 1 + ahead, rounds)
            ahead_of[_BACKWARD + last] = forwards[done, u] + (forward_offset - last) * present[done, u]
            back_of[_BACKWARD + last] = backwards[k[:, 0]] - last * backward
        after = before.copy()
        after[_FORWARD : _FORWARD + 2, ..., :runs] += forward_out
        after[_BACKWARD : _BACKWARD + 2, ..., runs:] += backward_out
        group = np.concatenate([forwards[vpp], backwards[vpp]], axis=-1)
        return cls(before=before, after=after, group=group)


def _columns(pp: int, size: int, count: tuple[int, ...]) -> tuple[IntArray, int]:
    """Ranks worth staying on, and how many of them are in the first half: both ends, the middle, both sides of borders of runs.

    The middle rank is as far from the end as half of a round.
    """
    borders = np.concatenate([[0], np.cumsum([n for n in count if n])])
    middle = pp - 1 - size // 2
    ranks = np.unique(np.concatenate([borders % pp, (borders - 1) % pp, [middle]]))
    return ranks, int(np.searchsorted(ranks, middle))


def _passes(pp: int, vpp: int, count: tuple[int, ...], columns: IntArray) -> tuple[FloatArray, ...]:
    """Runs that columns run in forward and backward rounds, (vpp, U, runs): one event, and with the ranks up to the next column."""
    runs = len(count)
    chunks = np.eye(runs)[np.repeat(np.arange(runs), count)]
    prefix = np.concatenate([np.zeros((1, runs)), np.cumsum(chunks, axis=0)])
    place = np.arange(vpp)[:, None] * pp + columns
    own = chunks[place]
    between = prefix[place[:, 1:]] - prefix[place[:, :-1] + 1]
    up, down = own.copy(), own.copy()
    up[:, :-1] += between
    down[:, 1:] += between
    return own, own[::-1], up, down[::-1]
