"""Cost tables: every layer under every split, and every move between two layers, costed once.

A plan's cost is then gathers and algebra over these tables (`costmodel.layerwise.evaluate`), and a search's input is the same tables
(`strategies`), so the search minimises what the cost model says.

Cache
-----
A search, the evaluation of its plans and their error bars ask for the same layers under overlapping sets of splits. A row of a table costs
the same whatever stands alongside it, so tables are cut out of larger ones that were costed before, and the tables of a changed device or
of changed links take over what the change does not touch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray, IntArray
from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.layer_costs import LayerCosts, LayerStack, Spans, cost_layers, recost_layers, taken
from costmodel.layerwise.resharding import EdgeGeometry, PlacedPairs, edge_geometry, edge_times, place
from costmodel.layerwise.splits import SplitTable
from costmodel.software.input_pipeline import storage_s
from costmodel.software.parameter_server import node_size
from costmodel.workload import Workload

__all__ = ["CostCache", "CostTables", "EdgeCost", "LayerCosts"]


# Fields of a workload that change costs other than the times of a device.
_WORK = ("precision", "optimizer", "training", "collectives")


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeCost:
    """One edge; ``forward_s`` and ``backward_s`` have shape (pairs,) of the geometry, for one micro-batch."""

    producer: int
    consumer: int
    channelwise: bool  # the consumer's kind of need
    returns_gradient: bool
    forward_s: FloatArray
    backward_s: FloatArray


class CostTables:
    """Tables of a workload on a cluster for some worker counts and one number of micro-batches, built on first use.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    table : SplitTable
        The splits to cost.
    num_micro_batches : int
    like : CostTables, optional
        Tables of the same splits (the same object), to share what is the same: of another number of micro-batches or another device the
        groups and their levels, of other links or another device what does not depend on them.
    layers : tuple of LayerCosts, optional
        Costs of every layer, where they are known.
    """

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        table: SplitTable,
        num_micro_batches: int,
        like: CostTables | None = None,
        layers: tuple[LayerCosts, ...] | None = None,
    ) -> None:
        self.workload = workload
        self.cluster = cluster
        self.table = table
        self.num_micro_batches = num_micro_batches
        self.micro_batch = workload.micro_batch(num_micro_batches)
        self._layers = layers
        self._edges: tuple[EdgeCost, ...] | None = None
        shares = like is not None and like.table is table
        # The same work: only the device or the links differ.
        self._like = like if like is not None and shares and self._has_work_of(like) else None
        shares &= like is not None and self._has_links_of(like)
        self._ground: _Ground = like._ground if like is not None and shares else _Ground(table, cluster)

    def _has_work_of(self, other: CostTables) -> bool:
        """Whether layers, splits and samples are the same, so that costs differ by the speed of device and links alone."""
        mine, theirs = self.workload, other.workload
        return (
            mine.graph is theirs.graph
            and self.micro_batch == other.micro_batch
            and mine.compute.counts_norm == theirs.compute.counts_norm
            and all(getattr(mine, name) == getattr(theirs, name) for name in _WORK)
        )

    def _has_links_of(self, other: CostTables) -> bool:
        return self.cluster.levels == other.cluster.levels

    def part(self, table: SplitTable, like: CostTables | None = None) -> CostTables:
        """Tables of some of these splits; ``like`` has the same ones at any number of micro-batches."""
        rows = table.rows_in(self.table)
        assert rows is not None, "a part has no other splits"
        layers = taken(self.layers, rows)
        return CostTables(self.workload, self.cluster, table, self.num_micro_batches, like, layers)

    def storage_s(self, workers: ArrayLike) -> FloatArray:
        """Time in which the storage of the nodes reads the samples of a step: no step is shorter."""
        assumed = self.workload.assumptions
        return storage_s(
            self.workload.global_batch,
            assumed.stored_sample_bytes,
            assumed.storage_bytes_per_s,
            workers,
            node_size(self.cluster),
        )

    @property
    def layers(self) -> tuple[LayerCosts, ...]:
        """Costs of every layer; equal layers are costed once."""
        if self._layers is None:
            self._layers = self._cost_layers()
        return self._layers

    @cached_property
    def stack(self) -> LayerStack:
        """The same, side by side."""
        return LayerStack.of(self.layers)

    @property
    def geometry(self) -> EdgeGeometry:
        """Pairs of layouts of `edges`."""
        return self._ground.geometry

    @property
    def edges(self) -> tuple[EdgeCost, ...]:
        """Costs of every edge that moves something; equal tensors are costed once."""
        if self._edges is None:
            same = self._like is not None and self._has_links_of(self._like)
            self._edges = self._like.edges if same and self._like else self.cost_edges(self.moving_edges())
        return self._edges

    def placed_edges(self, rows: Sequence[int]) -> Iterator[tuple[EdgeCost, int]]:
        """Every edge, and the pair of layouts that it has where each layer has the split of its row; all of one worker count."""
        geometry, count = self.geometry, self.table.count_of(np.array(rows[0]))
        for edge in self.edges:
            layout = geometry.layout_of[rows[edge.producer]]
            need = geometry.need_of[int(edge.channelwise)][rows[edge.consumer]]
            yield edge, int(geometry.pair(count, layout, need))

    def exchange_s(self, layer: int, collective: str | None) -> FloatArray:
        """Exchange of a layer's gradient under every split by a collective, the cheapest if None."""
        costs = self.layers[layer]
        if collective is None:
            return costs.cheapest_exchange_s
        return np.asarray(costs.exchange_s[self.workload.collectives.index(collective)])

    def _cost_layers(self) -> tuple[LayerCosts, ...]:
        workload, like = self.workload, self._like
        if like is None:
            return cost_layers(workload, self.cluster, self.table, [self.micro_batch], self._ground.spans)[0]
        return recost_layers(
            like.layers,
            workload,
            self.cluster,
            self.table,
            self.micro_batch,
            compute=like.workload.compute != workload.compute,
            links=not self._has_links_of(like),
            spans=self._ground.spans,
        )

    def collective_at(self, layer: int, row: int) -> str | None:
        """Cheapest collective for a layer's gradient under a split; None where nothing is exchanged."""
        workload, costs = self.workload, self.layers[layer]
        exchanged = workload.training and workload.graph.layers[layer].has_weights and costs.exchange_group[row] > 1
        return workload.collectives[int(costs.cheapest_collective[row])] if exchanged else None

    def cost_edges(self, edges: Sequence[EdgeCost]) -> tuple[EdgeCost, ...]:
        """Cost edges for every pair of layouts."""
        forward, backward = self._move_times([edge.producer for edge in edges], self._ground.all_pairs)
        return tuple(
            replace(
                edge,
                forward_s=forward[edge.producer],
                backward_s=backward[edge.producer] if edge.returns_gradient else np.zeros_like(backward[edge.producer]),
            )
            for edge in edges
        )

    def moving_edges(self) -> tuple[EdgeCost, ...]:
        """Edges that may move something, not costed. Every worker loads the input that it needs: inputs hand over for free."""
        graph, needs = self.workload.graph, self.workload.needs_gradient()
        nothing = np.zeros(0)
        return tuple(
            EdgeCost(
                producer=u,
                consumer=v,
                channelwise=graph.layers[v].family.limits(graph.layers[v]).channelwise,
                returns_gradient=self.workload.training and needs[u],
                forward_s=nothing,
                backward_s=nothing,
            )
            for u, v in graph.edges
            if graph.layers[u].kind != "input"
        )

    def same_split_moves(self, members: Sequence[EdgeCost], follow: IntArray) -> FloatArray:
        """Time of moves whose both ends have the same split, forward and back, of one micro-batch; shape (splits,).

        Parameters
        ----------
        members : sequence of EdgeCost
        follow : array of int, shape (splits,)
            Row whose need a channelwise consumer has.
        """
        total = np.zeros(len(self.table.workers))
        for channelwise in (False, True):
            edges = [edge for edge in members if edge.channelwise == channelwise]
            if not edges:
                continue
            pairs = self._ground.same_split_pairs(follow, channelwise=channelwise)
            forward, backward = self._move_times([edge.producer for edge in edges], pairs)
            for edge in edges:
                total = total + forward[edge.producer]
                if edge.returns_gradient:
                    total = total + backward[edge.producer]
        return total

    def _move_times(
        self, producers: Sequence[int], pairs: PlacedPairs
    ) -> tuple[dict[int, FloatArray], dict[int, FloatArray]]:
        """Forward and backward time of moving each producer's output; equal shapes are costed once."""
        layers = self.workload.graph.layers
        first = {layers[u].output_shape: u for u in reversed(producers)}
        if not first:
            return {}, {}
        width = self.workload.precision.activation_bytes
        forward, backward = edge_times([layers[u] for u in first.values()], pairs, self.micro_batch, width)
        place = {shape: k for k, shape in enumerate(first)}
        where = {u: place[layers[u].output_shape] for u in producers}
        return {u: forward[k] for u, k in where.items()}, {u: backward[k] for u, k in where.items()}


class _Ground:
    """What splits mean on a cluster whatever is computed: groups, the levels they span, pairs of layouts."""

    def __init__(self, table: SplitTable, cluster: Cluster) -> None:
        self._table, self._cluster = table, cluster
        self._same: dict[bool, PlacedPairs] = {}

    @cached_property
    def spans(self) -> Spans:
        """Groups and their levels."""
        return Spans(self._table, self._cluster)

    @cached_property
    def geometry(self) -> EdgeGeometry:
        """Pairs of layouts."""
        return edge_geometry(self._table)

    @cached_property
    def all_pairs(self) -> PlacedPairs:
        """All of them, placed."""
        return place(self.geometry.pairs, self._cluster)

    def same_split_pairs(self, follow: IntArray, *, channelwise: bool) -> PlacedPairs:
        """Pair of every split's layout and its own need; a followed row depends on the table alone, so the answer is kept."""
        if channelwise not in self._same:
            geometry, table = self.geometry, self._table
            count = table.count_of(np.arange(len(table.workers)))
            need = geometry.need_of[1][follow] if channelwise else geometry.need_of[0]
            index = geometry.pair(count, geometry.layout_of, need)
            self._same[channelwise] = place(geometry.pairs.take(index), self._cluster)
        return self._same[channelwise]


# Rows (splits times micro-batches) that are costed in one go: up to here the calls of numpy take longer than what they compute.
_ROWS_AT_ONCE = 4096
# Tables are kept up to so many bytes together.
_KEPT_BYTES = 64e6


class CostCache:
    """Cost tables of a workload on a cluster, built when they are asked for.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    like : CostCache, optional
        Of the same work on a device or over links of another speed.
    """

    def __init__(self, workload: Workload, cluster: Cluster, like: CostCache | None = None) -> None:
        self.workload, self.cluster, self._like = workload, cluster, like
        self._kept: dict[int, list[CostTables]] = {}
        self._room_bytes = _KEPT_BYTES

    def changed(self, workload: Workload, cluster: Cluster) -> CostCache:
        """The same work on a device or over links of another speed."""
        return CostCache(workload, cluster, like=self)

    def tables(self, table: SplitTable, num_micro_batches: int) -> CostTables:
        """Tables of some splits at a number of micro-batches."""
        kept = self._kept.setdefault(num_micro_batches, [])
        found = next((tables for tables in kept if tables.table is table), None)
        if found is not None:
            return found
        larger = next((tables for tables in kept if table.rows_in(tables.table) is not None), None)
        if self._like is not None:
            like = self._like.tables(table, num_micro_batches)
            tables = CostTables(self.workload, self.cluster, table, num_micro_batches, like)
        elif larger is not None:
            tables = larger.part(table, self._alike(table))
        else:
            tables = CostTables(self.workload, self.cluster, table, num_micro_batches, self._alike(table))
        self._keep(tables)
        return tables

    def prepare(self, table: SplitTable, numbers_of_micro_batches: Sequence[int]) -> None:
        """Cost some splits at several numbers of micro-batches together, which takes hardly longer than one of them."""
        most = max(1, _ROWS_AT_ONCE // len(table.workers))
        waiting = list(numbers_of_micro_batches)
        if most == 1 or self._like is not None:
            return  # one at a time, when they are asked for
        for start in range(0, len(waiting), most):
            numbers = waiting[start : start + most]
            sizes = [self.workload.micro_batch(m) for m in numbers]
            costs = cost_layers(self.workload, self.cluster, table, sizes)
            for m, layers in zip(numbers, costs, strict=True):
                self._keep(CostTables(self.workload, self.cluster, table, m, self._alike(table), layers))

    def _alike(self, table: SplitTable) -> CostTables | None:
        """Tables of the same splits at any number of micro-batches."""
        return next((tables for kept in self._kept.values() for tables in kept if tables.table is table), None)

    def _keep(self, tables: CostTables) -> None:
        kinds = len({layer.signature for layer in self.workload.graph.layers})
        needed = 8.0 * (10 + len(self.workload.collectives)) * kinds * len(tables.table.workers)
        if needed <= self._room_bytes:
            self._room_bytes -= needed
            self._kept.setdefault(tables.num_micro_batches, []).append(tables)
