"""Costs of a pipeline chunk for any number of blocks, and cuts of a row of blocks into chunks that keep a limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.mesh.data_parallel import Division
from costmodel.mesh.model import MeshModel
from costmodel.mesh.pipelines import mesh_strides
from costmodel.mesh.plan import MeshBatch, MeshPlan

__all__ = ["StageTables", "all_shares", "count_cuts", "cuts", "least_bottleneck"]


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

    def loads(self) -> FloatArray:
        """Time of every possible chunk, (chunks, blocks + 1, blocks + 1) by chunk, first block and end; infinite where none fits.

        With one chunk per rank, as few blocks as possible are recomputed; else none, and memory is not looked at.
        """
        count, chunks = len(self.prefix) - 1, self.chunks
        c, i, j = np.meshgrid(np.arange(chunks), np.arange(count + 1), np.arange(count + 1), indexing="ij")
        # Every chunk has a block, those before and after it too.
        legal = (
            (j > i)
            & (i >= c)
            & (j <= count - (chunks - 1 - c))
            & ((c > 0) | (i == 0))
            & ((c < chunks - 1) | (j == count))
        )
        c, i, j = c[legal], i[legal], j[legal]
        modules = self.modules(c, i, j)
        time = modules @ self.module_s
        if self.plan.vpp == 1:
            again = self.least_recomputed(c, modules)
            # Recomputation is counted as a share of all blocks of the chunk (`costmodel.mesh.passes.recomputed_share`).
            time = time + np.where(again >= 0, again / (j - i) * (modules @ self.again_s), np.inf)
        result = np.full(legal.shape, np.inf)
        result[legal] = time
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
            **self._chunks(modules, recomputed),
        )
        memory = self.model.pipeline_memory(batch, layouts)
        filled = memory.divided(np.zeros(1, dtype=np.int64), Division.of(batch, mesh_strides(batch)))
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
