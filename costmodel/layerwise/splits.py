"""Every way to split a layer over a number of workers, as arrays.

A split is an ordered factorisation ``workers = batch x out_channels x in_channels x height``. Ranks are laid out with the batch
outermost: ``rank = ((batch, height), in_channels), out_channels`` with the last index running fastest, so channel groups stay on
neighbouring workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from costmodel.arrays import BoolArray, IntArray
from costmodel.network.layers import Layer, Shard


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Split:
    """Degrees of one layer; their product is the number of workers. 1 means not split that way."""

    batch: int = 1
    out_channels: int = 1
    in_channels: int = 1
    height: int = 1

    @property
    def workers(self) -> int:
        """Product of the degrees."""
        return self.batch * self.out_channels * self.in_channels * self.height

    @property
    def degrees(self) -> tuple[int, int, int, int]:
        """(batch, out_channels, in_channels, height)."""
        return (self.batch, self.out_channels, self.in_channels, self.height)


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


@lru_cache(maxsize=4096)
def factorisations(number: int, parts: int) -> tuple[tuple[int, ...], ...]:
    """Ordered factorisations into ``parts`` factors, in lexicographic order.

    >>> factorisations(4, 2)
    ((1, 4), (2, 2), (4, 1))
    >>> len(factorisations(64, 4))  # C(6 + 3, 3)
    84
    """
    if parts == 1:
        return ((number,),)
    return tuple((d, *rest) for d in divisors(number) for rest in factorisations(number // d, parts - 1))


_ROWS = ("workers", "batch", "out_channels", "in_channels", "height")


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitTable:
    """All splits of several worker counts, one after the other; every array has shape (splits,)."""

    worker_counts: tuple[int, ...]
    offsets: tuple[int, ...]  # start of each worker count; one more entry closes the last
    workers: IntArray
    batch: IntArray
    out_channels: IntArray
    in_channels: IntArray
    height: IntArray

    def rows(self, workers: int) -> slice:
        """Rows that belong to one worker count."""
        i = self.worker_counts.index(workers)
        return slice(self.offsets[i], self.offsets[i + 1])

    def count_of(self, row: IntArray) -> IntArray:
        """Position in ``worker_counts`` of the worker count that rows belong to.

        >>> split_table([1, 2]).count_of(np.array([0, 1, 4])).tolist()
        [0, 1, 1]
        """
        return np.asarray(np.searchsorted(np.array(self.offsets), row, side="right") - 1, dtype=np.int64)

    def split(self, row: int) -> Split:
        """One row as a Split."""
        return Split(
            batch=int(self.batch[row]),
            out_channels=int(self.out_channels[row]),
            in_channels=int(self.in_channels[row]),
            height=int(self.height[row]),
        )

    def row_of(self, split: Split) -> int:
        """Row of a split (its worker count must be in the table)."""
        return self._row_by_degrees[split.degrees]

    def repeated(self, times: int) -> SplitTable:
        """The same rows several times over, one copy after the other; worker counts and offsets are those of the first."""
        rows = {name: np.tile(getattr(self, name), times) for name in _ROWS}
        return SplitTable(worker_counts=self.worker_counts, offsets=self.offsets, **rows)

    def take(self, rows: IntArray) -> SplitTable:
        """Some of the rows, ascending; worker counts without any are left out.

        >>> some = split_table([1, 2, 3], batch_only=True).take(np.array([0, 2]))
        >>> some.worker_counts, some.offsets, some.batch.tolist()
        ((1, 3), (0, 1, 2), [1, 3])
        """
        ends = np.searchsorted(rows, np.array(self.offsets))
        here = np.flatnonzero(np.diff(ends)).tolist()
        return SplitTable(
            worker_counts=tuple(self.worker_counts[k] for k in here),
            offsets=(*(int(ends[k]) for k in here), len(rows)),
            **{name: getattr(self, name)[rows] for name in _ROWS},
        )

    def rows_in(self, other: SplitTable) -> IntArray | None:
        """Rows of another table that are the same splits; None where it lacks one.

        >>> split_table([2], batch_only=True).rows_in(split_table([1, 2])), split_table([3]).rows_in(split_table([1, 2]))
        (array([4]), None)
        """
        if not set(self.worker_counts) <= set(other.worker_counts):
            return None  # without numbering all of its splits
        known = other._row_by_degrees
        try:
            return np.array([known[degrees] for degrees in self._row_by_degrees], dtype=np.int64)
        except KeyError:
            return None

    @cached_property
    def _row_by_degrees(self) -> dict[tuple[int, int, int, int], int]:
        columns = (self.batch.tolist(), self.out_channels.tolist(), self.in_channels.tolist(), self.height.tolist())
        return {degrees: row for row, degrees in enumerate(zip(*columns, strict=True))}


def split_table(worker_counts: Sequence[int], *, batch_only: bool = False) -> SplitTable:
    """Build the table of all splits.

    Parameters
    ----------
    worker_counts : sequence of int
        Each >= 1, without duplicates.
    batch_only : bool
        Only the batch, for pipelines.

    Returns
    -------
    SplitTable
        The same one for the same splits, as far as it was asked for lately.
    """
    return _split_table(tuple(worker_counts), batch_only)


@lru_cache(maxsize=16)
def _split_table(worker_counts: tuple[int, ...], batch_only: bool) -> SplitTable:
    per_count = [((w, 1, 1, 1),) if batch_only else factorisations(w, 4) for w in worker_counts]
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in per_count])])
    flat = np.array([row for rows in per_count for row in rows], dtype=np.int64).reshape(-1, 4)
    flat.setflags(write=False)
    return SplitTable(
        worker_counts=tuple(worker_counts),
        offsets=tuple(int(o) for o in offsets),
        workers=flat.prod(axis=1),
        batch=flat[:, 0],
        out_channels=flat[:, 1],
        in_channels=flat[:, 2],
        height=flat[:, 3],
    )


def legal_splits(layer: Layer, table: SplitTable, micro_batch: int | IntArray) -> BoolArray:
    """Which splits a layer can take: every degree at most the extent it divides (shares may be uneven).

    An input-channel split reduces its partial sums into shares of the output channels, so ``out x in <= output channels``. An input layer
    takes any split: every worker loads the samples that it needs, however the layers that read them need them.

    Returns
    -------
    array of bool, shape (splits,)
    """
    if layer.kind == "input":
        return np.ones(len(table.workers), dtype=np.bool_)
    limits = layer.family.limits(layer)
    channels = table.out_channels * table.in_channels
    legal = (
        (table.batch <= micro_batch)
        & (table.out_channels <= limits.out_channels)
        & (table.in_channels <= limits.in_channels)
        & (table.height <= limits.height)
    )
    if limits.in_channels > 1:
        legal &= (table.in_channels == 1) | (channels <= layer.output_shape[0])
    return legal


def shard_of(layer: Layer, table: SplitTable, micro_batch: int | IntArray) -> Shard:
    """Build the largest share of every split: each extent divided and rounded up.

    Parameters
    ----------
    layer : Layer
    table : SplitTable
    micro_batch : int, or array of int (splits,)
        Samples of one micro-batch over all workers.

    Returns
    -------
    Shard
    """
    limits = layer.family.limits(layer)
    inputs = layer.input_shapes[0] if layer.input_shapes else layer.output_shape
    # A layer on vectors may consume a flattened image: its input extent is the number of elements.
    in_extent = limits.in_channels if limits.in_channels > 1 else inputs[0]
    in_degree = table.out_channels if limits.channelwise else table.in_channels
    rows = layer.output_shape[1] if len(layer.output_shape) == 3 else 1
    return Shard(
        batch=np.ceil(micro_batch / table.batch),
        out_channels=np.ceil(layer.output_shape[0] / table.out_channels),
        in_channels=np.ceil(in_extent / in_degree),
        height=np.ceil(rows / table.height),
        split_out=table.out_channels.astype(np.float64),
        split_in=table.in_channels.astype(np.float64),
        split_height=table.height.astype(np.float64),
    )
