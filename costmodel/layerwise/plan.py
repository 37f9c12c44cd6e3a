"""A plan with a split per layer: how many workers, how each layer is split, which collective carries each exchange; one and as arrays.

A split is an ordered factorisation ``workers = batch x out_channels x in_channels x height``. Ranks are laid out with the batch
outermost: ``rank = ((batch, height), in_channels), out_channels`` with the last index running fastest, so channel groups stay on
neighbouring workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, StructOfArrays
from costmodel.fields import Figure, declared, part
from costmodel.network.graph import Graph
from costmodel.network.layers import Layer, Shard
from costmodel.rates import COMMON_FIGURES, COST_FIGURES


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


LAYERWISE_FIGURES: Mapping[str, Figure] = declared(
    *COMMON_FIGURES,
    Figure(
        name="speedup",
        doc="Over one worker at the same global batch; null where one worker does not fit.",
        kind="number",
        optional=True,
    ),
    Figure(name="efficiency", doc="speedup / workers.", kind="number", optional=True),
    part("step_time_s", "compute_s", "compute", "Forward and backward pass."),
    part("step_time_s", "update_s", "optimizer", "Optimizer."),
    part("step_time_s", "reshard_s", "resharding", "Moving activations and their gradients between and inside layers."),
    part(
        "step_time_s",
        "exposed_exchange_s",
        "exposed gradient exchange",
        "Gradient exchange that the backward pass does not hide.",
    ),
    part("step_time_s", "bubble_s", "pipeline bubble", "Filling and draining of a pipeline."),
    Figure(name="exchange_s", doc="All gradient exchange, hidden or not."),
    *COST_FIGURES,
)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Stage:
    """A contiguous piece of the layers (topological order, ``first`` to ``last`` inclusive) on ``replicas`` workers."""

    first: int
    last: int
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One complete choice.

    Without a pipeline (``stages`` empty) every layer is split over all workers. With one, each stage runs on its own workers, data
    parallel inside: the layers of a stage all have ``Split(batch=replicas)``.
    """

    workers: int
    num_micro_batches: int
    splits: tuple[Split, ...]  # layer -> split, in the graph's order
    collectives: tuple[str | None, ...]  # layer -> all-reduce of its gradient; None where nothing is exchanged
    stages: tuple[Stage, ...] = ()

    @property
    def is_pipeline(self) -> bool:
        """Whether the layers are cut into stages."""
        return len(self.stages) > 1


def plan_key(graph: Graph, plan: Plan) -> tuple[object, ...]:
    """What makes two plans different to a user: workers, stages, and split and collective of every layer with weights.

    Examples
    --------
    Plans that differ only in the split of a pooling layer or in micro-batches are the same plan, run its best way.
    """
    return (
        plan.workers,
        plan.stages,
        tuple(plan.splits[i].degrees for i in graph.weighted),
        tuple(plan.collectives[i] for i in graph.weighted),
    )


def family_of_plan(graph: Graph, plan: Plan) -> str:
    """Name the region of the space that a plan lies in.

    ``one-device``; ``pipeline``; ``data`` (weights whole everywhere, batch split); ``model`` (all weights split by channels);
    ``hybrid`` (convolutions or other feature layers by batch, every fully connected layer by channels or batch, not all alike);
    ``spatial`` (some height split and no channel split); ``mixed`` for the rest.
    """
    if plan.workers == 1:
        return "one-device"
    if plan.is_pipeline:
        return "pipeline"
    pairs = [(layer, plan.splits[i]) for i, layer in enumerate(graph.layers) if layer.weight_count > 0]
    by_batch = [split.batch == plan.workers for _, split in pairs]
    by_channels = [split.out_channels * split.in_channels == plan.workers for _, split in pairs]
    features_by_batch = all(
        whole or layer.family.is_fully_connected(layer) for (layer, _), whole in zip(pairs, by_batch, strict=True)
    )
    regions = {
        "data": all(by_batch),
        "model": all(by_channels),
        "hybrid": features_by_batch and all(b or c for b, c in zip(by_batch, by_channels, strict=True)),
        "spatial": all(split.out_channels * split.in_channels == 1 for _, split in pairs),
    }
    return next((name for name, inside in regions.items() if inside), "mixed")


def runs(names: Sequence[str], labels: Sequence[str]) -> list[tuple[str, str]]:
    """Group neighbouring names with equal labels: ``[("conv1-conv5", "data x8"), ("fc6", ...)]``."""
    grouped = []
    for label, group in groupby(zip(names, labels, strict=True), key=itemgetter(1)):
        members = [name for name, _ in group]
        grouped.append((members[0] if len(members) == 1 else f"{members[0]}-{members[-1]}", label))
    return grouped


# Collective index that stands for "the cheapest for this message".
CHEAPEST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBatch:
    """Many plans without stages, struct of arrays, all with the same number of micro-batches.

    ``row[n, i]`` is the split (row of the tables' SplitTable) that plan n gives to layer i; ``collective[n, i]`` is the index of the
    collective for its gradient, or CHEAPEST.
    """

    row: IntArray  # (plans, layers)
    collective: IntArray  # (plans, layers)

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBatch(StructOfArrays):
    """Costs of many plans; every array has shape (plans,).

    ``step_time_s`` is the sum of compute, update, resharding, exposed exchange and bubble. Illegal plans cost infinity. The
    parts are those of the slowest worker; ``computing_s`` is what a worker computes, averaged over the workers.
    """

    step_time_s: FloatArray
    forward_s: FloatArray
    backward_s: FloatArray
    update_s: FloatArray
    reshard_s: FloatArray
    exchange_s: FloatArray
    exposed_exchange_s: FloatArray
    bubble_s: FloatArray
    memory_bytes: FloatArray
    computing_s: FloatArray  # kernels of forward, backward and optimizer

    @property
    def compute_s(self) -> FloatArray:
        """Forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def exposed_communication_s(self) -> FloatArray:
        """Time spent waiting for the network."""
        return self.reshard_s + self.exposed_exchange_s
