"""Schedules without a closed form: their instructions are run, for all plans with as many ranks and chunks at once.

Every rank runs its instructions in the order of the schedule (`costmodel.schedules`), each as soon as the rank is free and what it waits
for is there. A time is an array with one value per plan.

More than a few micro-batches are not followed one by one. Between its beginning and its end a rank repeats the same instructions for the
next micro-batch. With m micro-batches, of which n are followed, rank r works ``(m - n) busy_r`` more at a place in the middle, where no
rank has begun what follows before all that it needs is done on the others' side of their places. Every path through these instructions is
one through the whole schedule, so the time is a lower bound; it leaves out paths that go to and fro between ranks for long. Against the
timeline it was exact for all but a few of some thousands of random uneven plans (`tests/costmodel/mesh/test_schedule.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from costmodel.arrays import FloatArray, IntArray, combined
from costmodel.schedules import Instruction, instruction_orders, ranks_of_chunks, together

__all__ = ["ordered_s"]

_KINDS = "FBW"
_ROUNDS = 3  # pp times so many micro-batches are followed one by one


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
    followed = np.minimum(m, _ROUNDS * pp + 2)
    first, kind = combined(pp, vpp, followed)
    total, ends = np.empty(len(m)), np.cumsum(count, axis=1)
    for n, place in enumerate(first.tolist()):
        rows = np.flatnonzero(kind == n)
        run = _run(schedule, int(pp[place]), int(vpp[place]), int(followed[place]))
        chunk = np.arange(pp[place] * vpp[place])
        of_chunk = np.sum(chunk[None, :, None] >= ends[rows][:, None, :], axis=2)
        times = np.stack([np.take_along_axis(values[rows], of_chunk, axis=1).T for values in times_s])
        total[rows] = run.longest_s(times, m[rows] - followed[place])
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Instructions that begin together are one event."""

    kinds: tuple[tuple[tuple[int, int], ...], ...]  # what events do: kinds of instructions and chunks
    # In an order in which they can happen: rank, position in `kinds`, events that they wait for.
    events: tuple[tuple[int, int, tuple[int, ...]], ...]
    before: dict[int, int]  # position of an event -> rank that goes on with other micro-batches before it
    chunks: tuple[tuple[int, ...], ...]  # of every rank

    def longest_s(self, times_s: FloatArray, more: IntArray) -> FloatArray:
        """End of the last event; times are (3, chunks, plans), ``more`` the micro-batches that are not followed."""
        kinds = [np.sum([times_s[kind, chunk] for kind, chunk in parts], axis=0) for parts in self.kinds]
        free = [np.zeros(times_s.shape[2])] * len(self.chunks)
        end: list[FloatArray] = []
        for n, (rank, kind, sources) in enumerate(self.events):
            start = free[rank]
            if n in self.before:
                start = start + more * times_s[:, list(self.chunks[rank])].sum(axis=(0, 1))
            for source in sources:
                start = np.maximum(start, end[source])
            free[rank] = start + kinds[kind]
            end.append(free[rank])
        return np.asarray(np.max(free, axis=0))


@lru_cache(maxsize=64)
def _run(schedule: str, pp: int, vpp: int, m: int) -> _Run:
    """The events of a step; a step of more micro-batches than are followed is one of these with more in the middle."""
    ranks = ranks_of_chunks(schedule, pp, vpp).tolist()
    orders = [together(order) for order in instruction_orders(schedule, pp, vpp, m)]
    happened, rank_of, ends = _happened(orders, pp * vpp)
    kinds: dict[tuple[tuple[int, int], ...], int] = {}
    number: dict[Instruction, int] = {}
    events = []
    for n, items in enumerate(happened):
        what = tuple((_KINDS.index(item.kind), item.chunk) for item in items)
        needed = [source for item in items if (source := _source(item, pp * vpp))]
        sources = tuple(number[source] for source in needed if ranks[source.chunk] != rank_of[n])
        events.append((rank_of[n], kinds.setdefault(what, len(kinds)), sources))
        number |= dict.fromkeys(items, n)
    before = {}
    if m > _ROUNDS * pp:
        longer = [together(order) for order in instruction_orders(schedule, pp, vpp, m + 1)]
        places = _places(orders, longer, ends)
        before = {number[orders[rank][place][0]]: rank for rank, place in enumerate(places)}
    chunks = tuple(tuple(c for c, owner in enumerate(ranks) if owner == rank) for rank in range(pp))
    return _Run(kinds=tuple(kinds), events=tuple(events), before=before, chunks=chunks)


_Items = tuple[Instruction, ...]


def _source(item: Instruction, chunks: int) -> Instruction | None:
    """What an instruction needs of another chunk."""
    chunk = item.chunk + {"F": -1, "B": 1, "W": chunks}[item.kind]
    return Instruction(item.kind, chunk, item.micro_batch) if 0 <= chunk < chunks else None


def _happened(orders: Sequence[Sequence[_Items]], chunks: int) -> tuple[list[_Items], list[int], list[list[int]]]:
    """Events in an order in which they can happen, the rank of each; and when those of every rank end if instructions take 1."""
    end: dict[Instruction, int] = {}
    ends: list[list[int]] = [[] for _ in orders]
    happened, rank_of = [], []
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            for items in order[len(ends[rank]) :]:
                sources = [source for item in items if (source := _source(item, chunks)) and source not in items]
                if any(source not in end for source in sources):
                    break
                start = max([*ends[rank][-1:], *(end[source] for source in sources)], default=0)
                ends[rank].append(start + len(items))
                end |= dict.fromkeys(items, ends[rank][-1])
                happened.append(items)
                rank_of.append(rank)
                moved = True
    return happened, rank_of, ends


def _places(
    orders: Sequence[Sequence[_Items]], longer: Sequence[Sequence[_Items]], ends: Sequence[Sequence[int]]
) -> list[int]:
    """Where ranks go on with more micro-batches: at the same time, in the middle of what is the same for more of them."""
    bounds = [_bounds(order, more, times) for order, more, times in zip(orders, longer, ends, strict=True)]
    earliest, latest = max(low for low, _ in bounds), min(high for _, high in bounds)
    assert earliest <= latest, "too few micro-batches are followed"
    return [int(np.searchsorted(times, (earliest + latest) // 2, side="right")) for times in ends]


def _bounds(order: Sequence[_Items], longer: Sequence[_Items], ends: Sequence[int]) -> tuple[int, int]:
    """Times between which a rank may go on with one micro-batch more and then do the same as with fewer."""
    alike = 0
    while alike < len(order) and order[alike] == longer[alike]:
        alike += 1
    later = len(order)
    while later and longer[later - len(order) - 1] == tuple(
        replace(item, micro_batch=item.micro_batch + 1) for item in order[later - 1]
    ):
        later -= 1
    return ends[later - 1] if later else 0, ends[alike] - 1 if alike < len(order) else ends[-1]
