"""Schedules without a closed form: their instructions are run, for all plans with as many ranks and chunks at once.

Every rank runs its instructions in the order of the schedule (`costmodel.schedules`), each as soon as the rank is free and what it waits
for is there. A time is an array with one value per plan.

More than a few micro-batches are not followed one by one. Between its beginning and its end a rank repeats the same instructions for the
next p micro-batches (one, or two groups). With m micro-batches, of which n are followed, rank r takes ``(m - n) / p`` times the
longest path through such a period that begins and ends there, at a place in the middle: no rank has begun what follows there before all
that it needs is done on the other side. Every path through these instructions is one through the whole schedule, so the time is a lower
bound; it leaves out paths that go to and fro between ranks for longer than a period.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from costmodel.arrays import FloatArray, IntArray, combined
from costmodel.schedules import Instruction, group_size, instruction_orders, ranks_of_chunks, schedule_of, together

_KINDS = "FBW"
_NEVER = -1e300  # no path leads here
_NOTHING: Mapping[int, FloatArray] = {}
_ROUNDS = 3  # so many groups of micro-batches, or pp times so many, are followed one by one


def ordered_s(
    schedule: str,
    m: IntArray,
    pp: IntArray,
    vpp: IntArray,
    count: IntArray,
    times_s: Sequence[FloatArray],
) -> FloatArray:
    """Time of all forwards and backwards of a step.

    Parameters
    ----------
    schedule : str
        A name of `costmodel.schedules`.
    m, pp, vpp : arrays (n,)
        Micro-batches, ranks, chunks per rank.
    count : array (n, R)
        Chunks in every run of equal neighbours, as in `costmodel.mesh.schedule.ChunkRuns`.
    times_s : three arrays (n, R)
        Of the chunks of every run: forward passes, backward passes without weight gradients, weight gradients.

    Returns
    -------
    array (n,)

    Examples
    --------
    Equal chunks of a V, F = B = W = 1: ``6 m + pp - 1`` (ZB-V).

    >>> one, four = np.array([[1.0]]), np.array([4])
    >>> ordered_s("zb_v", 25 * four, four, four // 2, np.array([[8]]), [one, one, one]).tolist()
    [603.0]
    """
    in_groups = schedule_of(schedule).in_groups
    group = group_size(m, pp) if in_groups else pp
    most = _ROUNDS * group + (group if in_groups else 2)
    followed: IntArray = np.where(m > most, most + (m - most) % (2 * group if in_groups else 1), m)
    first, kind = combined(pp, vpp, followed, group)
    total, ends = np.empty(len(m)), np.cumsum(count, axis=1)
    for n, place in enumerate(first.tolist()):
        rows = np.flatnonzero(kind == n)
        run = _run(schedule, int(pp[place]), int(vpp[place]), int(followed[place]), int(group[place]))
        chunk = np.arange(pp[place] * vpp[place])
        of_chunk = np.sum(chunk[None, :, None] >= ends[rows][:, None, :], axis=2)
        times = np.stack([np.take_along_axis(values[rows], of_chunk, axis=1).T for values in times_s])
        total[rows] = run.longest_s(times, m[rows] - followed[place])
    return total


# In an order in which they can happen: rank, position in `_Run.kinds`, and positions of the events of other ranks that they wait for.
_Events = tuple[tuple[int, int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Instructions that run together are one event."""

    kinds: tuple[tuple[tuple[int, int], ...], ...]  # what events do: kinds of instructions and chunks
    ranks: int
    events: _Events
    before: dict[int, int]  # position of an event -> rank that goes on with other micro-batches before it
    period: int  # of so many micro-batches
    repeat: _Events  # what all ranks do with these

    def longest_s(self, times_s: FloatArray, more: IntArray) -> FloatArray:
        """End of the last event; times are (3, chunks, plans), ``more`` the micro-batches that are not followed."""
        kinds = [np.sum([times_s[kind, chunk] for kind, chunk in parts], axis=0) for parts in self.kinds]
        own = [np.zeros(times_s.shape[2])] * self.ranks
        longer = dict.fromkeys(range(self.ranks), own[0])
        if np.any(more):
            # By the rank where a path begins, (ranks, plans): it ends on the same one.
            begun = np.where(np.eye(self.ranks, dtype=np.bool_)[:, :, None], own[0], _NEVER)
            ends = _follow(self.repeat, kinds, list(begun))
            longer = {rank: more / self.period * ends[rank][rank] for rank in range(self.ranks)}
        return np.asarray(
            np.max(_follow(self.events, kinds, own, {n: longer[r] for n, r in self.before.items()}), axis=0)
        )


def _follow(
    events: _Events, kinds: Sequence[FloatArray], free: list[FloatArray], before: Mapping[int, FloatArray] = _NOTHING
) -> list[FloatArray]:
    """When ranks end that are free from some time on; ``before`` some events they do other things."""
    free = list(free)
    end: list[FloatArray] = []
    for n, (rank, kind, sources) in enumerate(events):
        start = free[rank]
        if n in before:
            start = start + before[n]
        for source in sources:
            start = np.maximum(start, end[source])
        free[rank] = start + kinds[kind]
        end.append(free[rank])
    return free


@lru_cache(maxsize=64)
def _run(schedule: str, pp: int, vpp: int, m: int, group: int) -> _Run:
    """The events of a step; a step of more micro-batches than are followed is one of these with more in the middle."""
    # Ranks do the same again after two groups (uneven chunks go to and fro between them), or one micro-batch.
    period = 2 * group if schedule_of(schedule).in_groups else 1
    codes = _Codes(ranks_of_chunks(schedule, pp, vpp).tolist(), m + period)
    orders = codes.of(instruction_orders(schedule, pp, vpp, m, group))
    happened, ends = codes.happened(orders)
    kinds: dict[tuple[tuple[int, int], ...], int] = {}
    events, number = codes.events(happened, kinds)
    before: dict[int, int] = {}
    repeat: _Events = ()
    if m > _ROUNDS * group:
        longer = codes.of(instruction_orders(schedule, pp, vpp, m + period, group))
        places = _places(orders, longer, ends, period)
        before = {number[order[place][0]]: rank for rank, (order, place) in enumerate(zip(orders, places, strict=True))}
        more = {
            item
            for order, some, place in zip(orders, longer, places, strict=True)
            for items in some[place : place + len(some) - len(order)]
            for item in items
        }
        again = [items for items in codes.happened(longer)[0] if items[0] in more]
        repeat = codes.events(again, kinds)[0]
    return _Run(kinds=tuple(kinds), ranks=pp, events=events, before=before, period=period, repeat=repeat)


# Instructions that run together, as numbers.
_Items = tuple[int, ...]
_NOWHERE = -1


class _Codes:
    """Instructions as numbers, (kind chunks + chunk) most + micro-batch: tens of thousands of them are soon gone through."""

    def __init__(self, ranks: list[int], most: int) -> None:
        self.ranks, self.most = ranks, most
        self.block = len(ranks) * most  # instructions of a kind

    def of(self, orders: Sequence[list[Instruction]]) -> list[list[_Items]]:
        """Numbers of the instructions of every rank."""
        first = {kind: n * self.block for n, kind in enumerate(_KINDS)}
        return [
            [tuple(first[i.kind] + i.chunk * self.most + i.micro_batch for i in items) for items in together(order)]
            for order in orders
        ]

    def source(self, code: int) -> int:
        """What an instruction needs of another chunk: a forward pass the chunk before, a backward pass the one after."""
        if code < self.block:
            return code - self.most if code >= self.most else _NOWHERE
        return code + self.most if code < 2 * self.block - self.most else _NOWHERE

    def events(
        self, happened: Sequence[_Items], kinds: dict[tuple[tuple[int, int], ...], int]
    ) -> tuple[_Events, dict[int, int]]:
        """Events, what is among them alone, and where each instruction is."""
        number = {item: n for n, items in enumerate(happened) for item in items}
        chunks, most, ranks, events = len(self.ranks), self.most, self.ranks, []
        for items in happened:
            what = tuple([divmod(item // most, chunks) for item in items])
            rank = ranks[what[0][1]]
            sources = [source for item in items if (source := self.source(item)) in number]
            others = tuple([number[source] for source in sources if ranks[source // most % chunks] != rank])
            events.append((rank, kinds.setdefault(what, len(kinds)), others))
        return tuple(events), number

    def happened(self, orders: Sequence[Sequence[_Items]]) -> tuple[list[_Items], list[list[int]]]:
        """Events in an order in which they can happen; and when those of every rank end if instructions take 1."""
        end = [_NOWHERE] * (len(_KINDS) * self.block)
        ends: list[list[int]] = [[] for _ in orders]
        happened: list[_Items] = []
        left = sum(map(len, orders))
        while len(happened) < left:
            for order, known in zip(orders, ends, strict=True):
                now = known[-1] if known else 0
                for items in order[len(known) :]:
                    needed = [end[s] for item in items if (s := self.source(item)) >= 0 and s not in items]
                    if _NOWHERE in needed:
                        break
                    now = max(now, *needed) + len(items) if needed else now + len(items)
                    known.append(now)
                    for item in items:
                        end[item] = now
                    happened.append(items)
        return happened, ends


def _places(
    orders: Sequence[Sequence[_Items]], longer: Sequence[Sequence[_Items]], ends: Sequence[Sequence[int]], more: int
) -> list[int]:
    """Where ranks go on with more micro-batches: at the same time, in the middle of what is the same for more of them."""
    bounds = [_bounds(*rank, more) for rank in zip(orders, longer, ends, strict=True)]
    earliest, latest = max(low for low, _ in bounds), min(high for _, high in bounds)
    assert earliest <= latest, "too few micro-batches are followed"
    return [int(np.searchsorted(times, (earliest + latest) // 2, side="right")) for times in ends]


def _bounds(order: Sequence[_Items], longer: Sequence[_Items], ends: Sequence[int], more: int) -> tuple[int, int]:
    """Times between which a rank may go on with so many micro-batches more and then do the same as with fewer."""
    alike = 0
    while alike < len(order) and order[alike] == longer[alike]:
        alike += 1
    later = len(order)
    while later and longer[later - len(order) - 1] == tuple([item + more for item in order[later - 1]]):
        later -= 1
    return ends[later - 1] if later else 0, ends[alike] - 1 if alike < len(order) else ends[-1]
