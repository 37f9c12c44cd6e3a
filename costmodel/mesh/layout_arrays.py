"""Layouts of many plans as arrays: what runs of chunks and ranks of the pipeline hold, and how much of it is run again.

Shapes: n plans, K kinds of units, R runs of chunks, Q kinds of ranks, D different chunks of a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.mesh.keys import rows_of
from costmodel.mesh.plan import RECOMPUTE
from costmodel.mesh.stages import Layout

__all__ = ["LayoutArrays", "recomputed_share", "recomputed_units", "stack_layouts", "weigh"]


_FULL = RECOMPUTE.index("full")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutArrays:
    """Layouts of many plans, padded to the same number of runs and ranks; empty runs and ranks hold nothing."""

    run_units: FloatArray  # (n, R, K)
    run_chunks: IntArray  # (n, R)
    run_cut: FloatArray  # (n, R)
    rank_units: FloatArray  # (n, Q, K)
    rank_first: IntArray  # (n, Q); -1 for padding
    rank_last: IntArray  # (n, Q)
    # Blocks that full recomputation runs again, per chunk of a run and per rank; -1: as the plan says for every chunk alike.
    run_recompute: IntArray  # (n, R)
    rank_recompute: IntArray  # (n, Q, D)
    # Different chunks of a rank, their blocks, and how often they occur; 0 for padding.
    rank_chunks: FloatArray  # (n, Q, D, K)
    rank_lengths: IntArray  # (n, Q, D)
    rank_repeats: IntArray  # (n, Q, D)

    def take(self, index: IntArray) -> LayoutArrays:
        """A selection."""
        return LayoutArrays(**{item.name: rows_of(getattr(self, item.name), index) for item in fields(self)})


def stack_layouts(layouts: Sequence[Layout]) -> LayoutArrays:
    """Pad layouts to arrays."""
    runs, ranks = max(len(x.run_chunks) for x in layouts), max(len(x.rank_first) for x in layouts)
    kinds = layouts[0].run_units.shape[1]
    run_units, run_chunks = np.zeros((len(layouts), runs, kinds)), np.zeros((len(layouts), runs), dtype=np.int64)
    run_cut, rank_units = np.zeros((len(layouts), runs)), np.zeros((len(layouts), ranks, kinds))
    rank_first = np.full((len(layouts), ranks), -1, dtype=np.int64)
    rank_last = rank_first.copy()
    different = max(x.rank_lengths.shape[1] for x in layouts)
    rank_lengths = np.zeros((len(layouts), ranks, different), dtype=np.int64)
    rank_repeats, rank_chunks = np.zeros_like(rank_lengths), np.zeros((*rank_lengths.shape, kinds))
    run_recompute, rank_recompute = np.full((len(layouts), runs), -1), np.full(rank_lengths.shape, -1)
    for n, layout in enumerate(layouts):
        d = layout.rank_lengths.shape[1]
        rank_lengths[n, : len(layout.rank_first), :d] = layout.rank_lengths
        rank_repeats[n, : len(layout.rank_first), :d] = layout.rank_repeats
        r, q = len(layout.run_chunks), len(layout.rank_first)
        run_units[n, :r], run_chunks[n, :r], run_cut[n, :r] = layout.run_units, layout.run_chunks, layout.run_cut
        rank_units[n, :q], rank_first[n, :q] = layout.rank_units, layout.rank_first
        rank_last[n, :q] = layout.rank_last
        run_recompute[n, :r], rank_recompute[n, :q, :d] = layout.run_recompute, layout.rank_recompute
        rank_chunks[n, : len(layout.rank_first), :d] = layout.rank_chunks
    return LayoutArrays(
        run_units=run_units,
        run_chunks=run_chunks,
        run_cut=run_cut,
        rank_units=rank_units,
        rank_first=rank_first,
        rank_last=rank_last,
        run_recompute=run_recompute,
        rank_recompute=rank_recompute,
        rank_chunks=rank_chunks,
        rank_lengths=rank_lengths,
        rank_repeats=rank_repeats,
    )


def weigh(units: FloatArray, values: FloatArray, row: IntArray | None = None) -> FloatArray:
    """Sum values (u, K) over the units (n, X, K) of every run or rank: (n, X); ``row`` says which values a plan has, else u = n."""
    columns = values if row is None else rows_of(values, row)
    total = units[:, :, 0] * columns[:, None, 0]
    for k in range(1, values.shape[1]):
        total += units[:, :, k] * columns[:, None, k]
    return np.asarray(total)


def recomputed_units(layouts: LayoutArrays, recompute: IntArray, blocks: IntArray) -> FloatArray:
    """Units of every kind that every rank runs again, chunk by chunk, as a share of each: (n, Q, K).

    What is recomputed in full counts all kinds of blocks of a chunk alike, as `recomputed_share`; other recomputation is of all units.

    Parameters
    ----------
    layouts : LayoutArrays
    recompute : array (n,)
    blocks : array (n,)
        Recomputed blocks per chunk under full recomputation; a shorter chunk recomputes all it has.

    Returns
    -------
    array (n, Q, K)
    """
    units = layouts.rank_units
    if not np.any(recompute == _FULL):
        return units
    again = np.zeros_like(units)
    for d in range(layouts.rank_lengths.shape[2]):
        lengths, own = layouts.rank_lengths[:, :, d], layouts.rank_recompute[:, :, d]
        some = np.minimum(np.where(own >= 0, own, blocks[:, None]), lengths) * layouts.rank_repeats[:, :, d]
        again += (some / np.maximum(lengths, 1))[:, :, None] * layouts.rank_chunks[:, :, d]
    return np.asarray(np.where(recompute[:, None, None] == _FULL, again, units))


def recomputed_share(
    units: FloatArray,
    is_block: BoolArray,
    recompute: IntArray,
    blocks: IntArray,
    own_blocks: IntArray | None = None,
) -> FloatArray:
    """Share of the blocks of the chunks of every run that is recomputed: (n, X).

    Parameters
    ----------
    units : array (n, X, K)
    is_block : array (K,)
    recompute : array (n,)
    blocks : array (n,)
        Recomputed blocks under full recomputation.
    own_blocks : array (n, X), optional
        The same for one run, where not negative.

    Examples
    --------
    >>> recomputed_share(np.array([[[4.0]]]), np.array([True]), np.array([2]), np.array([1])).tolist()
    [[0.25]]
    """
    if not np.any(recompute == _FULL):
        return np.ones(units.shape[:2])
    count = np.sum(units[:, :, is_block], axis=2)
    wanted = blocks[:, None] if own_blocks is None else np.where(own_blocks >= 0, own_blocks, blocks[:, None])
    some = np.minimum(wanted / np.maximum(count, 1.0), 1.0)
    return np.asarray(np.where(recompute[:, None] == _FULL, some, 1.0))
