"""Cost tables: every layer under every split, and every move between two layers, costed once.

A plan's cost is then gathers and algebra over these tables (`costmodel.evaluate`), and a search's input is the same tables
(`strategies`), so what is searched is what is judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from costmodel.collectives import all_reduce_s, cheapest_s, point_to_point_s
from costmodel.layers import InnerExchange, Layer, Shard
from costmodel.layers.base import FloatArray
from costmodel.layers.epilogue import reduced_fraction
from costmodel.network import Cluster, GroupSpan, span
from costmodel.resharding import EdgeGeometry, PlacedPairs, edge_geometry, edge_times, place
from costmodel.splits import SplitTable, legal_splits, shard_of
from costmodel.workload import Workload

__all__ = ["CostTables", "EdgeCost", "LayerCosts"]

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """One layer under every split of the table; arrays of shape (splits,) unless said; times of one micro-batch."""

    legal: BoolArray
    forward_s: FloatArray
    backward_input_s: FloatArray
    backward_weight_s: FloatArray
    inner_forward_s: FloatArray  # communication inside the layer: partial sums, halos, recurrent state
    inner_backward_s: FloatArray
    update_s: FloatArray  # once per step
    exchange_group: FloatArray  # workers that hold copies of the same weights
    exchange_s: FloatArray  # (collectives, splits): gradient exchange, once per step
    static_bytes: FloatArray  # weights, gradients, master copy, optimizer state
    activation_bytes: FloatArray  # kept for the backward pass, per micro-batch

    @property
    def cheapest_exchange_s(self) -> FloatArray:
        """Exchange by the cheapest collective."""
        return np.asarray(self.exchange_s.min(axis=0))

    @property
    def cheapest_collective(self) -> IntArray:
        """Its index; the first of equals."""
        return np.asarray(self.exchange_s.argmin(axis=0), dtype=np.int64)


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
        Tables of the same splits on the same cluster, to share what does not depend on the batch.
    """

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        table: SplitTable,
        num_micro_batches: int,
        like: CostTables | None = None,
    ) -> None:
        self.workload = workload
        self.cluster = cluster
        self.table = table
        self.num_micro_batches = num_micro_batches
        self.micro_batch = workload.micro_batch(num_micro_batches)
        self._layers: tuple[LayerCosts, ...] | None = None
        self._edges: tuple[EdgeCost, ...] | None = None
        shared = like is not None and like.table is table and like.cluster is cluster and like.workload is workload
        self._ground: _Ground = like._ground if like is not None and shared else _Ground(table, cluster)

    @property
    def layers(self) -> tuple[LayerCosts, ...]:
        """Costs of every layer; equal layers are costed once."""
        if self._layers is None:
            self._layers = self._cost_layers()
        return self._layers

    @property
    def geometry(self) -> EdgeGeometry:
        """Pairs of layouts behind `edges`."""
        return self._ground.geometry

    @property
    def edges(self) -> tuple[EdgeCost, ...]:
        """Costs of every edge that moves something; equal tensors are costed once."""
        if self._edges is None:
            self._edges = self.cost_edges(self.moving_edges())
        return self._edges

    def _cost_layers(self) -> tuple[LayerCosts, ...]:
        needs = self.workload.needs_gradient()
        producers = self.workload.graph.producers
        known: dict[tuple[object, ...], LayerCosts] = {}
        costs = []
        for i, layer in enumerate(self.workload.graph.layers):
            input_gradient = self.workload.training and any(needs[u] for u in producers[i])
            loads = all(self.workload.graph.layers[u].kind == "input" for u in producers[i])
            key = (layer.signature, input_gradient, loads, self.workload.compute.cost_key(layer))
            if key not in known:
                known[key] = self._cost_layer(layer, input_gradient=input_gradient, loads=loads)
            costs.append(known[key])
        return tuple(costs)

    def _cost_layer(self, layer: Layer, *, input_gradient: bool, loads: bool) -> LayerCosts:
        """Cost one layer; ``loads``: it reads inputs only, and every worker loads its own, halo included."""
        table, workload, spans = self.table, self.workload, self._ground
        shard = shard_of(layer, table, self.micro_batch)
        zero = np.zeros(len(table.workers))
        times = workload.compute.pass_times(layer, shard, needs_input_gradient=input_gradient)
        exchanges = layer.family.work(layer, shard).exchanges
        if loads:
            exchanges = tuple(e for e in exchanges if (e.operation, e.phase) != ("point_to_point", "forward"))
        inner = self._inner_s(exchanges, spans, zero)
        backward = inner["backward"] + (inner["input_gradient"] if input_gradient else zero)
        weights = _weight_share(layer, table, counts_norm=workload.compute.counts_norm)
        training = workload.training
        group = (table.batch * table.height) * 1.0
        kept = _activation_elements(layer, shard, self.micro_batch, table.workers, training=training)
        if training and layer.family.keeps_inside:
            kept = kept + layer.family.saved_elements(layer, shard)
        return LayerCosts(
            # Every worker loads the samples it needs, however it needs them: an input can take any split.
            legal=np.ones(len(zero), dtype=bool)
            if layer.kind == "input"
            else legal_splits(layer, table, self.micro_batch),
            forward_s=times.forward_s,
            backward_input_s=times.backward_input_s if training else zero,
            backward_weight_s=times.backward_weight_s if training else zero,
            inner_forward_s=inner["forward"],
            inner_backward_s=backward if training else zero,
            update_s=workload.compute.update_s(weights) if training else zero,
            exchange_group=np.where(weights > 0, group, 1.0),
            exchange_s=self._exchange_s(layer, weights),
            static_bytes=weights * self._static_bytes_per_weight()
            + _frozen_share(layer, table) * workload.precision.weight_bytes,
            activation_bytes=kept * workload.precision.activation_bytes,
        )

    def _exchange_s(self, layer: Layer, weights: FloatArray) -> FloatArray:
        """Gradient exchange by every collective; it does not depend on the batch, so tables of other micro-batches share it."""
        key = layer.signature
        known = self._ground.exchanges
        if key not in known:
            workload = self.workload
            known[key] = np.zeros((max(len(workload.collectives), 1), len(weights)))
            if workload.training and np.any(weights > 0):
                message = weights * workload.precision.gradient_bytes
                for c, name in enumerate(workload.collectives):
                    known[key][c] = all_reduce_s(name, message, self._ground.gradient, self.cluster)
        return known[key]

    def _static_bytes_per_weight(self) -> int:
        p = self.workload.precision
        if not self.workload.training:
            return p.weight_bytes
        return p.weight_bytes + p.gradient_bytes + p.master_bytes + self.workload.optimizer.state_bytes

    def _inner_s(self, exchanges: tuple[InnerExchange, ...], spans: _Ground, zero: FloatArray) -> dict[str, FloatArray]:
        """Time of the exchanges inside a layer by phase."""
        total = {"forward": zero, "backward": zero, "input_gradient": zero}
        width = self.workload.precision.activation_bytes
        for exchange in exchanges:
            message = exchange.elements * width
            group = spans.over(exchange.over)
            if exchange.operation == "point_to_point":
                # A halo goes to one neighbour on each side at once over a full-duplex link.
                time = np.where(spans.degree(exchange.over) > 1, point_to_point_s(message, group, self.cluster), 0.0)
            else:
                time = cheapest_s(exchange.operation, message, group, self.cluster)
            total[exchange.phase] = total[exchange.phase] + exchange.repeats * time
        return total

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
        out, inner = _floats(table.out_channels), _floats(table.in_channels)
        height, batch = _floats(table.height), _floats(table.batch)
        ones = np.ones_like(out)
        self._degrees = {"out_channels": out, "in_channels": inner, "height": height}
        self._spans: dict[str, GroupSpan] = {
            "out_channels": span(cluster, out, ones, table.workers),
            "in_channels": span(cluster, inner, out, table.workers),
            "height": span(cluster, height, out * inner, table.workers),
        }
        # Copies of the same weights: same channel indices, any batch and height index.
        self.gradient = span(cluster, batch * height, out * inner, table.workers)

        self._table, self._cluster = table, cluster
        self._same: dict[bool, PlacedPairs] = {}
        self.exchanges: dict[tuple[object, ...], FloatArray] = {}

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
            count = np.repeat(np.arange(len(table.worker_counts)), np.diff(table.offsets))
            need = geometry.need_of[1][follow] if channelwise else geometry.need_of[0]
            index = geometry.pair_offset[count] + geometry.layout_of * geometry.needs[count] + need
            self._same[channelwise] = place(geometry.pairs.take(index), self._cluster)
        return self._same[channelwise]

    def over(self, dimension: str) -> GroupSpan:
        """Groups that a split of this dimension makes."""
        return self._spans[dimension]

    def degree(self, dimension: str) -> FloatArray:
        """Their sizes."""
        return self._degrees[dimension]


def _floats(degrees: IntArray) -> FloatArray:
    return degrees.astype(np.float64)


def _weight_share(layer: Layer, table: SplitTable, *, counts_norm: bool) -> FloatArray:
    """Weights and norm parameters that are trained, on the worker with the most, for every split.

    Channel degrees divide the weight matrix; extents that do not divide are rounded up as in the shard.
    """
    norm = layer.norm_count if counts_norm and not layer.is_frozen else 0
    return _share_of(float(layer.trainable_count + norm), layer, table)


def _frozen_share(layer: Layer, table: SplitTable) -> FloatArray:
    """Weights that are not trained, likewise."""
    return _share_of(float(layer.weight_count + layer.norm_count) if layer.is_frozen else 0.0, layer, table)


def _share_of(total: float, layer: Layer, table: SplitTable) -> FloatArray:
    """Share of a number of weights."""
    if total == 0:
        return np.zeros(len(table.workers))
    limits = layer.family.limits(layer)
    out, inner = max(limits.out_channels, 1), max(limits.in_channels, 1)
    share_out = np.ceil(out / table.out_channels) / out
    share_in = np.ceil(inner / table.in_channels) / inner
    return np.asarray(total * share_out * share_in)


def _activation_elements(
    layer: Layer, shard: Shard, micro_batch: int, workers: IntArray, *, training: bool
) -> FloatArray:
    """Elements kept for the backward pass.

    The share of the output; once more where a normalisation follows, whose backward pass needs its input too; and the gathered input
    of an output-channel split.
    """
    limits = layer.family.limits(layer)
    shape = layer.output_shape
    if layer.kind == "input":
        return np.asarray(np.ceil(micro_batch * float(np.prod(shape)) / workers))
    rest = float(np.prod(shape[2:])) if len(shape) == 3 else float(np.prod(shape[1:]))
    kept = shard.batch * shard.out_channels * shard.height * rest
    if layer.family.is_view:
        return np.zeros_like(kept)
    if training and getattr(layer.params, "norm", None) is not None:
        kept = 2.0 * kept
    if limits.channelwise or not layer.input_shapes:
        return kept
    # The share after the reduction of an input-channel split is smaller by that degree.
    kept = kept * reduced_fraction(shard)
    # A linear layer counts a flattened image as features; others keep positions apart from channels.
    in_extent = limits.in_channels if limits.in_channels > 1 else layer.input_shapes[0][0]
    inputs = float(np.prod(layer.input_shapes[0])) / in_extent
    gathered = shard.batch * shard.in_channels * inputs / shard.split_height
    return np.asarray(np.where(shard.split_out > 1, kept + gathered, kept))
