"""Uneven pipelines: for the degrees of a plan, the best layout of its blocks and its recomputation.

A chunk's time depends on where it starts and ends, and on the fewest blocks it must recompute to fit (fewer is faster, and ranks do
not share memory). So layouts are cuts of a row of blocks, and dynamic programming over (blocks so far, chunk) gives the least
bottleneck. With m micro-batches, pp ranks, and T the time of a micro-batch through the network without full recomputation, a layout
whose slowest chunk takes t per micro-batch needs at least

    gpipe               T + (m - 1) t                      a flow line
    1f1b, m > pp        max(m t, 2 T + (m - 1 - pp) t)     two paths of `costmodel.mesh.schedule`: e the slowest stage; a = b = last
    1f1b, m <= pp       max(m t, 2 T m / (pp + 1))         the path e = pp - m takes 2 T less pp - m + 1 stages of at most t; t may be more
    all other           m max(t, T / pp)                   the slowest rank is busy

which never falls as t grows. So layouts with slow chunks are left out first: all layouts up to some bottleneck are evaluated, and once
the bound of the next slower one is no better than the best, that is proven best of all. Where the layouts are too many, single blocks
are moved from chunk to chunk while that helps, and the bound says how much better any layout could be.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.mesh.communication import Division
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import RECOMPUTE, MeshBatch, MeshPlan
from costmodel.schedules import chunks_of_ranks
from costmodel.tolerances import EQUAL
from strategies.limits import Clock, OutOfTimeError
from strategies.mesh.framework_rules import is_legal, may
from strategies.mesh.plans import KEY
from strategies.mesh.settings import MeshCandidate, MeshOutcome, MeshSettings

_T = TypeVar("_T")


def count_cuts(loads: FloatArray, limit: float) -> FloatArray:
    """Number of ways to cut the blocks from i on into chunks c, c + 1, ... within a limit.

    Parameters
    ----------
    loads : array (C, N + 1, N + 1)
        Time of chunk c if it holds blocks i ... j - 1; infinite if it cannot.
    limit : float

    Returns
    -------
    array (C + 1, N + 1)
        By chunk c and block i; ``[0, 0]`` counts all. Floats, since there may be very many.

    Examples
    --------
    Three blocks of 1 on two chunks, at most 2 each: two ways.

    >>> i, j = np.meshgrid(np.arange(4), np.arange(4), indexing="ij")
    >>> each = np.where(j > i, j - i, np.inf)
    >>> float(count_cuts(np.stack([each, each]), 2.0)[0, 0])
    2.0
    """
    chunks, size, _ = loads.shape
    ways = np.zeros((chunks + 1, size))
    ways[chunks, size - 1] = 1.0
    for c in reversed(range(chunks)):
        ways[c] = (loads[c] <= limit) @ ways[c + 1]
    return ways


def least_bottleneck(loads: FloatArray) -> float:
    """Least time of the slowest chunk, by dynamic programming over (blocks so far, chunk); infinite if there is no way.

    >>> i, j = np.meshgrid(np.arange(4), np.arange(4), indexing="ij")
    >>> each = np.where(j > i, j - i, np.inf)
    >>> float(least_bottleneck(np.stack([each, each])))
    2.0
    """
    slowest = loads[0, 0].copy()
    for load in loads[1:]:
        slowest = np.min(np.maximum(slowest[:, None], load), axis=0)
    return float(slowest[-1])


def cuts(loads: FloatArray, limit: float, *, piece: int = 4096) -> Iterator[IntArray]:
    """All ways within a limit, in pieces of (n, C + 1): where every chunk starts, and the end.

    Parameters
    ----------
    loads : array (C, N + 1, N + 1)
    limit : float
    piece : int
        Ways per piece, about.

    Examples
    --------
    >>> i, j = np.meshgrid(np.arange(4), np.arange(4), indexing="ij")
    >>> each = np.where(j > i, j - i, np.inf)
    >>> [way.tolist() for way in cuts(np.stack([each, each]), 2.0)]
    [[[0, 1, 3], [0, 2, 3]]]
    """
    within = loads <= limit
    possible = count_cuts(loads, limit) > 0
    chunks = len(loads)
    # Partial ways in depth-first order, so that memory stays small however many there are.
    stack = [np.zeros((1, 1), dtype=np.int64)]
    while stack:
        partial = stack.pop()
        c = partial.shape[1] - 1
        if c == chunks:
            yield partial
            continue
        if len(partial) > piece:
            middle = len(partial) // 2
            stack += [partial[middle:], partial[:middle]]
            continue
        row, end = np.nonzero(within[c][partial[:, -1]] & possible[c + 1])
        if len(row):
            stack.append(np.column_stack([partial[row], end]))


def all_shares(blocks: Sequence[Sequence[int]], totals: Sequence[Sequence[int]]) -> Iterator[list[tuple[int, ...]]]:
    """Ways to choose, on every rank, one of its totals and to divide it over its chunks; one at a time, for there may be very many.

    Parameters
    ----------
    blocks : sequence (ranks, chunks per rank)
        The most that a chunk takes.
    totals : sequence (ranks, any)
        What the chunks of a rank may take together.

    Examples
    --------
    >>> [way for way in all_shares([(2, 1), (1, 1)], [[2], [0, 1]])]
    [[(1, 1), (0, 0)], [(1, 1), (0, 1)], [(1, 1), (1, 0)], [(2, 0), (0, 0)], [(2, 0), (0, 1)], [(2, 0), (1, 0)]]
    """
    if not blocks:
        yield []
        return
    for total in totals[0]:
        for own in _shares(tuple(blocks[0]), total):
            for rest in all_shares(blocks[1:], totals[1:]):
                yield [own, *rest]


def _shares(blocks: tuple[int, ...], total: int) -> Iterator[tuple[int, ...]]:
    """Ways to divide a total over chunks, as a rank's share of the above."""
    if len(blocks) == 1:
        yield (total,)
        return
    for first in range(max(total - sum(blocks[1:]), 0), min(total, blocks[0]) + 1):
        for rest in _shares(blocks[1:], total - first):
            yield (first, *rest)


# Ranks whose memory is worked out at a time.
_RANKS = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTables:
    """Chunks of one plan, under one kind of recomputation.

    Times are lower bounds of what a chunk takes per micro-batch (transfers and ZeRO-3's gathering are left out); memory is exact.

    Attributes
    ----------
    model : MeshModel
    plan : MeshPlan
        With the uniform layout and the kind of recomputation in question.
    capacity_bytes : float
    module_s : array (K,)
        Forward and backward of a module of every kind, selective recomputation included.
    again_s : array (K,)
        What full recomputation of a module adds.
    prefix : array (blocks + 1, K)
        Modules of every kind in the first blocks.
    """

    model: MeshModel
    plan: MeshPlan
    capacity_bytes: float
    module_s: FloatArray
    again_s: FloatArray
    prefix: IntArray
    _known: dict[int, int] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, model: MeshModel, plan: MeshPlan, recompute: str, capacity_bytes: float) -> StageTables:
        """Tables of a plan under another kind of recomputation."""
        bare = replace(
            plan, recompute=recompute, recompute_blocks=int(recompute == "full"), stage_blocks=(), stage_recompute=()
        )
        pipelines = model.pipelines(MeshBatch.from_plans([bare]))
        row = int(pipelines.pass_of[0])
        passes = pipelines.passes
        module_s, again_s = (passes.forward_s + passes.backward_s)[row], passes.recompute_s[row]
        if recompute != "full":
            module_s, again_s = module_s + again_s, np.zeros_like(again_s)
        kinds = len(model.modules.kinds)
        one_hot = np.eye(kinds, dtype=np.int64)[np.array(model.modules.blocks, dtype=np.int64)]
        prefix = np.concatenate([np.zeros((1, kinds), dtype=np.int64), np.cumsum(one_hot, axis=0)])
        return cls(
            model=model, plan=bare, capacity_bytes=capacity_bytes, module_s=module_s, again_s=again_s, prefix=prefix
        )

    @property
    def chunks(self) -> int:
        """Chunks of the pipeline."""
        return self.plan.pp * self.plan.vpp

    @property
    def total_s(self) -> float:
        """One micro-batch through the whole network, nothing recomputed in full."""
        counts = self.prefix[-1].astype(np.float64)
        counts[0] += 1.0
        counts[-1] += 1.0
        return float(counts @ self.module_s)

    def modules(self, chunk: IntArray, start: IntArray, end: IntArray) -> IntArray:
        """Modules of every kind in chunks that hold blocks start ... end - 1: (n, K)."""
        counts = self.prefix[end] - self.prefix[start]
        counts[:, 0] += chunk == 0
        counts[:, -1] += chunk == self.chunks - 1
        return np.asarray(counts)

    def bound_s(self, slowest: float) -> float:
        """No layout takes less whose slowest chunk takes so long per micro-batch."""
        if not np.isfinite(slowest):
            return float("inf")
        plan, m, total = self.plan, self.plan.num_micro_batches, self.total_s
        bound = m * slowest
        if plan.schedule == "gpipe":
            bound = total + (m - 1) * slowest
        elif plan.schedule == "1f1b" and m > plan.pp:
            bound = max(bound, 2.0 * total + (m - 1 - plan.pp) * slowest)
        elif plan.schedule == "1f1b":
            bound = max(bound, 2.0 * total * m / (plan.pp + 1))
        else:
            bound = max(bound, m * total / plan.pp)
        return bound * (1.0 - EQUAL)

    def loads(self, clock: Clock) -> FloatArray:
        """Time of every possible chunk, (chunks, blocks + 1, blocks + 1) by chunk, first block and end; infinite where none fits.

        With one chunk per rank, as few blocks as possible are recomputed; else none, and memory is not looked at.

        Raises
        ------
        OutOfTimeError
        """
        count, chunks = len(self.prefix) - 1, self.chunks
        result = np.full((chunks, count + 1, count + 1), np.inf)
        for c in range(chunks):
            clock.check()
            # Every chunk has a block, those before and after it too; the first begins and the last ends the row.
            starts = np.arange(c, count - chunks + c + 1 if c else 1)
            ends = np.arange(c + 1 if c < chunks - 1 else count, count - (chunks - 1 - c) + 1)
            i, j = (grid.ravel() for grid in np.meshgrid(starts, ends, indexing="ij"))
            i, j = i[j > i], j[j > i]
            rank = np.full(len(i), c)
            modules = self.modules(rank, i, j)
            time = modules @ self.module_s
            if self.plan.vpp == 1:
                again = self.least_recomputed(rank, modules)
                # Recomputation is counted as a share of all blocks of the chunk (`costmodel.mesh.passes.recomputed_share`).
                time = time + np.where(again >= 0, again / (j - i) * (modules @ self.again_s), np.inf)
            result[c, i, j] = time
        return result

    def least_recomputed(self, rank: IntArray, modules: IntArray) -> IntArray:
        """Fewest blocks that ranks must recompute in full to fit, -1 where none are few enough: (n,).

        Of several chunks of a rank that are not known one by one, those are recomputed first that free most.
        """
        key = rank.astype(np.int64)
        for k in range(modules.shape[1]):
            key = key * (len(self.prefix) + 1) + modules[:, k]
        distinct, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        wanted = distinct.tolist()
        missing = [n for n, one in enumerate(wanted) if one not in self._known]
        if missing:
            found = self._search(rank[first[missing]], modules[first[missing]])
            self._known.update(zip((wanted[n] for n in missing), found.tolist(), strict=True))
        return np.array([self._known[one] for one in wanted], dtype=np.int64)[inverse]

    def _search(self, rank: IntArray, modules: IntArray) -> IntArray:
        """Bisection: memory falls with every block that is recomputed."""
        blocks = modules[:, self.model.is_block].sum(axis=1)
        high = blocks if self.plan.recompute == "full" else np.zeros_like(blocks)
        possible = self._fits(rank, modules, high)
        low = np.zeros_like(high)
        while np.any(low < high):
            middle = (low + high) // 2
            enough = self._fits(rank, modules, middle)
            low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
        return np.where(possible, high, -1)

    def _fits(self, rank: IntArray, modules: IntArray, recomputed: IntArray) -> BoolArray:
        pieces = range(0, len(rank), _RANKS)
        parts = [self._bytes(rank[p : p + _RANKS], modules[p : p + _RANKS], recomputed[p : p + _RANKS]) for p in pieces]
        return np.concatenate(parts) <= self.capacity_bytes

    def _bytes(self, rank: IntArray, modules: IntArray, recomputed: IntArray) -> FloatArray:
        """Memory of ranks: those of a pipeline that has one of every kind asked for."""
        batch = MeshBatch.from_plans([self.plan])
        layouts = replace(
            self.model.layouts(batch),
            rank_modules=modules[None].astype(np.float64),
            rank_first=rank[None],
            rank_last=rank[None],
            **self._chunks(modules, recomputed),
        )
        memory = self.model.pipeline_memory(batch, layouts)
        filled = memory.divided(np.zeros(1, dtype=np.int64), Division.of(batch))
        return np.asarray(filled.total_bytes[0])

    @property
    def frees_unequally(self) -> bool:
        """Whether it matters which blocks of a rank are recomputed: it has several chunks, and there are several kinds."""
        return self.plan.vpp > 1 and int(np.count_nonzero(self.model.is_block)) > 1

    def _chunks(self, modules: IntArray, recomputed: IntArray) -> dict[str, Any]:
        """What `LayoutArrays` has of the chunks of ranks: one chunk, or, where these are not known, one of each kind of blocks."""
        is_full = self.plan.recompute == "full"
        if not self.frees_unequally:
            blocks = modules[:, self.model.is_block].sum(axis=1)
            held, lengths, again = modules[:, None, :], blocks[:, None], recomputed[:, None]
        else:
            order = self._freeing
            held = modules[:, None, :] * np.eye(modules.shape[1], dtype=np.int64)[order]
            lengths = modules[:, order]
            before = np.cumsum(lengths, axis=1) - lengths
            again = np.clip(recomputed[:, None] - before, 0, lengths)
        return {
            "rank_chunks": held[None].astype(np.float64),
            "rank_lengths": lengths[None].astype(np.int64),
            "rank_repeats": np.ones((1, *lengths.shape), dtype=np.int64),
            "rank_recompute": again[None] if is_full else np.full((1, *lengths.shape), -1),
        }

    @property
    def _freeing(self) -> IntArray:
        """Kinds of blocks, those first that recomputation frees most of."""
        table = self.model.rows(MeshBatch.from_plans([self.plan]))
        freed = (table.saved_bytes - table.input_bytes)[0]
        kinds = np.flatnonzero(self.model.is_block)
        return np.asarray(kinds[np.argsort(-freed[kinds], kind="stable")])


# Layouts evaluated at a time.
_PIECE = 256
# Steps of the search block by block: chunks that blocks are taken from, ways to divide recomputation over the chunks of a rank.
_SOURCES = 6
_SHARES = 4


@dataclass(slots=True, kw_only=True)
class BestLayout:
    """The best layout so far, and what is proven about the others.

    Attributes
    ----------
    plan : MeshPlan or None
        Best plan of the degrees, the uniform layout included; None if no layout fits, or none was found in time.
    step_time_s : float
        Infinite without a plan.
    bound_s : float
        No layout that fits takes less; equals ``step_time_s`` when proven best, and is infinite when proven that none fits.
    evaluated : int
        Layouts that the cost model scored.
    most_evaluated : int, optional
        How many it may score.
    """

    plan: MeshPlan | None = None
    step_time_s: float = float("inf")
    bound_s: float = 0.0
    evaluated: int = 0
    most_evaluated: int | None = None

    def share(self, searches: int) -> int | None:
        """How many may have been evaluated when the first of several searches with equal shares ends."""
        return (
            None if self.most_evaluated is None else self.evaluated + (self.most_evaluated - self.evaluated) // searches
        )

    def is_spent(self, most: int | None) -> bool:
        """Whether so many have been evaluated."""
        return most is not None and self.evaluated >= most

    def evaluate(self, model: MeshModel, plans: Sequence[MeshPlan], capacity_bytes: float) -> FloatArray:
        """Score plans and remember the best that fits; infinite where one does not fit."""
        if not plans:
            return np.zeros(0)
        costs = model.evaluate_plans(plans)
        self.evaluated += len(plans)
        times = np.where(costs.memory_bytes <= capacity_bytes, costs.step_time_s, np.inf)
        n = int(np.argmin(times))
        if times[n] < self.step_time_s:
            self.plan, self.step_time_s = plans[n], float(times[n])
        return times


@dataclass(slots=True, kw_only=True)
class LayoutSearch:
    """Layouts under one kind of recomputation."""

    model: MeshModel
    tables: StageTables
    must_recompute: bool  # plans without recomputation are not wanted
    clock: InitVar[Clock]
    loads: FloatArray = field(init=False)
    bottleneck_s: float = field(init=False)

    def __post_init__(self, clock: Clock) -> None:
        self.loads = self.tables.loads(clock)
        self.bottleneck_s = least_bottleneck(self.loads)

    @property
    def least_s(self) -> float:
        """No layout takes less."""
        return self.tables.bound_s(self.bottleneck_s)

    def prove(self, best: BestLayout, clock: Clock, most_layouts: int) -> float:
        """Evaluate all layouts that may be better than the best; returns a bound on all layouts, at most the best step found."""
        if self.least_s >= best.step_time_s or not np.isfinite(self.least_s):
            return self.least_s
        levels = np.unique(self.loads[(self.loads >= self.bottleneck_s) & np.isfinite(self.loads)])
        position = 0  # layouts with a slower bottleneck than all levels before it are not evaluated yet
        while position < len(levels) and self.tables.bound_s(float(levels[position])) < best.step_time_s:
            reached = self._affordable(levels, position, most_layouts, best)
            if reached < position or not self._enumerate(best, float(levels[reached]), clock):
                return self.tables.bound_s(float(levels[position]))
            position = reached + 1
        return best.step_time_s

    def _affordable(self, levels: FloatArray, position: int, most_layouts: int, best: BestLayout) -> int:
        """Last level whose layouts can all be evaluated, not beyond those that matter; less than ``position`` if none can."""
        matter = [n for n in range(position, len(levels)) if self.tables.bound_s(float(levels[n])) < best.step_time_s]
        low, high = position - 1, matter[-1]
        while low < high:
            middle = (low + high + 1) // 2
            if count_cuts(self.loads, float(levels[middle]))[0, 0] <= most_layouts:
                low = middle
            else:
                high = middle - 1
        return low

    def _enumerate(self, best: BestLayout, limit: float, clock: Clock) -> bool:
        """Evaluate all layouts within a limit; False if time ran out, or what may be evaluated."""
        for ways in cuts(self.loads, limit, piece=_PIECE):
            for plans in _grouped(itertools.chain.from_iterable(self._plans_of(ways))):
                if not clock.left_s or best.is_spent(best.most_evaluated):
                    return False
                self._evaluate(best, plans)
        return True

    def climb(self, best: BestLayout, clock: Clock, most: int | None) -> None:
        """Move single blocks between chunks while that helps, from the uniform layout or one with the least bottleneck."""
        if self.least_s >= best.step_time_s or not np.isfinite(self.least_s):
            return
        quickest = next(cuts(self.loads, self.bottleneck_s, piece=1))[0]
        starts = np.stack([np.cumsum([0, *self.model.blocks_of(self.tables.chunks)]), quickest])
        values = self._least(best, starts, clock, most)
        n = int(np.argmin(values))
        here, value, chunks = starts[n], values[n], np.arange(self.tables.chunks)
        while clock.left_s and not best.is_spent(most):
            # Blocks are taken from the slowest chunks.
            times = self.loads[chunks, here[:-1], here[1:]]
            near = _moves(here, np.argsort(-times, kind="stable")[:_SOURCES].tolist())
            near = near[np.isfinite(self.loads[chunks, near[:, :-1], near[:, 1:]]).all(axis=1)]
            if not len(near):
                break
            values = self._least(best, near, clock, most)
            n = int(np.argmin(values))
            if not values[n] < value:
                break
            here, value = near[n], values[n]

    def _least(self, best: BestLayout, ways: IntArray, clock: Clock, most: int | None) -> FloatArray:
        """Step of layouts, each at (nearly) its best recomputation; infinite for those that do not fit, or that a limit left out."""
        values = np.full(len(ways), np.inf)
        owned = ((n, plan) for n, own in enumerate(self._plans_of(ways)) for plan in itertools.islice(own, _SHARES))
        for piece in _grouped(owned):
            owners, plans = zip(*piece, strict=True)
            np.minimum.at(values, list(owners), self._evaluate(best, plans))
            if not clock.left_s or best.is_spent(most):
                break
        return values

    def _evaluate(self, best: BestLayout, plans: Sequence[MeshPlan]) -> FloatArray:
        return best.evaluate(self.model, plans, self.tables.capacity_bytes)

    # -- plans --------------------------------------------------------------------------------------------------------------

    def _plans_of(self, ways: IntArray) -> Iterator[Iterator[MeshPlan]]:
        """Of each of some layouts (n, C + 1): the plans that recompute as few blocks as fit, divided over chunks in every way."""
        pp, chunks, n = self.tables.plan.pp, self.tables.chunks, len(ways)
        chunk = np.tile(np.arange(chunks), n)
        modules = self.tables.modules(chunk, ways[:, :-1].ravel(), ways[:, 1:].ravel())
        on_rank = modules.reshape(n, chunks, -1)[:, self._own_chunks].sum(axis=2).reshape(n * pp, -1)
        least = self.tables.least_recomputed(np.tile(np.arange(pp), n), on_rank).reshape(n, pp)
        return (
            self._recomputed(tuple(np.diff(way).tolist()), again)
            for way, again in zip(ways, least.tolist(), strict=True)
        )

    def _recomputed(self, blocks: tuple[int, ...], least: list[int]) -> Iterator[MeshPlan]:
        """Plans of one layout; ``least``: blocks that every rank has to recompute, -1 where it does not fit anyhow."""
        plan = self.tables.plan
        if min(least) < 0:
            return
        if plan.recompute != "full":
            yield replace(plan, stage_blocks=blocks, recompute_blocks=0)
            return
        for recompute in self._recomputations(blocks, least):
            yield replace(plan, stage_blocks=blocks, stage_recompute=recompute, recompute_blocks=max(recompute))

    @property
    def _own_chunks(self) -> IntArray:
        plan = self.tables.plan
        return chunks_of_ranks(plan.schedule, plan.pp, plan.vpp)

    def _recomputations(self, blocks: tuple[int, ...], least: list[int]) -> Iterator[tuple[int, ...]]:
        """Blocks that every chunk recomputes: as few on every rank as fit, divided over its chunks in all ways.

        Activations that wait on the host take time to get there, so then recomputing more may be quicker; and where the chunks of a rank
        hold different kinds of blocks, more of those that are soon run again.
        """
        own_chunks, chunks = self._own_chunks, len(blocks)
        own_blocks = [tuple(row) for row in np.array(blocks)[own_chunks].tolist()]
        if self.tables.plan.offload_activations or (any(least) and self.tables.frees_unequally):
            totals = [range(n, sum(own) + 1) for n, own in zip(least, own_blocks, strict=True)]
        elif any(least):
            totals = [range(n, n + 1) for n in least]
        elif self.must_recompute or self.tables.plan.zero_stage >= 3:
            # Gathered weights hide behind recomputation, so that a little of it may be quicker than none.
            yield from (tuple(int(c == one) for c in range(chunks)) for one in range(chunks))
            return
        else:
            return  # without any is quicker, and takes no more memory
        place = np.argsort(own_chunks, axis=None).tolist()
        for picked in all_shares(own_blocks, totals):
            if any(flat := list(itertools.chain(*picked))):
                yield tuple(flat[n] for n in place)


def _moves(way: IntArray, sources: Sequence[int]) -> IntArray:
    """Layouts that differ by one block moved from a chunk to another; what lies between moves along.

    >>> (np.diff(_moves(np.array([0, 2, 3, 5]), [0, 1, 2]), axis=1)).tolist()
    [[1, 2, 2], [1, 1, 3], [3, 1, 1], [2, 2, 1]]
    """
    blocks = np.diff(way)
    found = []
    for source, target in itertools.product(sources, range(len(blocks))):
        if blocks[source] > 1 and source != target:
            moved = blocks.copy()
            moved[source] -= 1
            moved[target] += 1
            found.append(np.concatenate([[0], np.cumsum(moved)]))
    return np.array(found, dtype=np.int64).reshape(-1, len(way))


def _grouped(plans: Iterator[_T]) -> Iterator[list[_T]]:
    while piece := list(itertools.islice(plans, _PIECE)):
        yield piece


# Layouts evaluated at most where proof is sought; about 0.1 ms each.
_MOST_LAYOUTS = 20_000
# Of the best plans of a search: pipelines that are refined, and how long the layouts evaluated for each are together, in chunks (about
# 15 us each). Counted, not timed, so that the answer does not depend on the machine.
_MOST_PIPELINES = 2
_MOST_CHUNKS = 10_000
# What plans of one pipeline may differ in.
_DIVISION = frozenset({"dp_replicate", "dp_shard", "zero_stage"})


def refinement(
    model: MeshModel,
    plan: MeshPlan,
    capacity_bytes: float,
    wall_s: float,
    *,
    recompute: Sequence[str] = RECOMPUTE,
    most_layouts: int = _MOST_LAYOUTS,
    most_evaluated: int | None = None,
) -> BestLayout:
    """Find the best layout for the degrees of a plan, with a bound.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan
    capacity_bytes, wall_s : float
    recompute : sequence of str
        Kinds of recomputation to choose from: under "full" every chunk has its own number of blocks.
    most_layouts : int
        Layouts evaluated for a proof, per kind of recomputation; more are searched from block to block.
    most_evaluated : int, optional
        Plans evaluated altogether, half of them at most before proofs are sought; unlimited where not given.

    Returns
    -------
    BestLayout
    """
    clock = Clock(limit_s=wall_s)
    kinds = [kind for kind in RECOMPUTE if kind in recompute and (model.workload.training or kind == "none")]
    searches: list[LayoutSearch] = []
    bound = float("inf")
    for kind in kinds:
        tables = StageTables.of(model, plan, kind, capacity_bytes)
        try:
            searches.append(LayoutSearch(model=model, tables=tables, must_recompute="none" not in kinds, clock=clock))
        except OutOfTimeError:
            bound = min(bound, tables.bound_s(tables.total_s / tables.chunks))
    best = BestLayout(most_evaluated=most_evaluated)
    # The kind that promises most goes first: its plan may settle the others. Good plans come before proofs.
    searches.sort(key=lambda search: search.least_s)
    for n, search in enumerate(searches):
        left = len(searches) - n + 1
        search.climb(best, clock.within(1 / left), best.share(left))
    bound = min([bound, *(search.prove(best, clock, most_layouts) for search in searches)])
    best.bound_s = min(bound, best.step_time_s)
    return best


def refine_top(
    model: MeshModel,
    outcome: MeshOutcome,
    settings: MeshSettings,
    wall_s: float = 5.0,
    most_plans: int = _MOST_PIPELINES,
) -> list[MeshCandidate]:
    """Refined versions of the best plans of a search.

    Parameters
    ----------
    model : MeshModel
    outcome : MeshOutcome
        Of the uniform space.
    settings : MeshSettings
    wall_s : float
        For all of them together; far more than ordinary networks need, whose search ends by a count of evaluated plans.
    most_plans : int
        How many of the best plans are refined; of those that differ only in how dp is divided, the best.

    Returns
    -------
    list of MeshCandidate
        Best first, only those that are faster than the plans they come from; they have ``stage_blocks``.
    """
    clock = Clock(limit_s=wall_s)
    pipelines: dict[tuple[object, ...], MeshCandidate] = {}
    for candidate in outcome.candidates if may(model, settings, "own_stages") else ():
        if candidate.plan.pp > 1:
            key = tuple(getattr(candidate.plan, name) for name in KEY if name not in _DIVISION)
            pipelines.setdefault(key, candidate)
    refined: list[MeshCandidate] = []
    for candidate in itertools.islice(pipelines.values(), most_plans):
        plan, left = candidate.plan, clock.left_s
        if not left:
            break
        most = _MOST_CHUNKS // (plan.pp * plan.vpp)
        kinds = _allowed(model, settings, plan)
        found = refinement(
            model, plan, settings.capacity_bytes, left, recompute=kinds, most_layouts=most // 2, most_evaluated=most
        )
        if found.plan is not None and found.step_time_s < candidate.step_time_s * (1.0 - EQUAL):
            # Every objective is proportional to the step at a given number of workers.
            score = candidate.score * found.step_time_s / candidate.step_time_s
            refined.append(MeshCandidate(plan=found.plan, score=score, step_time_s=found.step_time_s))
    return sorted(refined, key=lambda c: (c.score, c.plan))


def _allowed(model: MeshModel, settings: MeshSettings, plan: MeshPlan) -> Sequence[str]:
    """Kinds of recomputation that user and framework leave open; a fixed number of blocks is no business of chunks."""
    if "recompute_blocks" in settings.restriction.degrees:
        return [plan.recompute] if plan.recompute != "full" else []
    known = settings.restriction.names.get("recompute", RECOMPUTE)
    return [kind for kind in known if is_legal(model, settings, replace(plan, recompute=kind), unequal=kind == "full")]
