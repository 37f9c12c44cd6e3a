"""Cost tables: every layer under every split, and every move between two layers, costed once.

A plan's cost is then gathers and algebra over these tables (`costmodel.layerwise.evaluate`), and a search's input is the same tables
(`strategies`), so the search minimises what the cost model says.

Cache
-----
A search, the evaluation of its plans and their error bars ask for the same layers under overlapping sets of splits. A row of a table costs
the same whatever stands alongside it, so tables are cut out of larger ones that were costed before, and the tables of a changed device or
of changed links take over what the change does not touch.

What is costed is elementwise, so several micro-batches are costed in one go (`cost_layers`), and what does not depend on a change of the
device or of the links is taken from what is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.framework import (
    SERVER_WEIGHT_BYTES,
    copy_s,
    node_size,
    server_round_trip_s,
    server_transfer_s,
    slowest_of,
    storage_s,
    tensors_of,
)
from costmodel.hardware.cluster import Cluster, GroupSpan, span
from costmodel.hardware.collectives import all_reduce_s, cheapest_s, point_to_point_s
from costmodel.layerwise.plan import SplitTable, legal_splits, shard_of
from costmodel.layerwise.resharding import EdgeGeometry, PlacedPairs, edge_geometry, edge_times, place
from costmodel.network.graph import gradient_passes
from costmodel.network.layers import InnerExchange, Layer, Shard
from costmodel.network.layers.base import reduced_fraction, share_of_output
from costmodel.workload import Workload


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

    def take(self, rows: IntArray | slice) -> LayerCosts:
        """Some of the splits."""
        return LayerCosts(**{name: getattr(self, name)[..., rows] for name in LayerCosts.__dataclass_fields__})


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStack:
    """Costs of a network's layers side by side; arrays of shape (kinds, splits) unless said."""

    kind: IntArray  # (layers,): layers of equal cost are of one kind
    legal: BoolArray
    forward_s: FloatArray
    backward_s: FloatArray
    update_s: FloatArray
    inner_s: FloatArray
    memory_bytes: FloatArray
    exchange_s: FloatArray  # (kinds, collectives + 1, splits); the last is the cheapest

    @classmethod
    def of(cls, layers: Sequence[LayerCosts]) -> LayerStack:
        """Stack the costs of every layer, each kind once."""
        distinct = list({id(costs): costs for costs in layers}.values())
        place = {id(costs): k for k, costs in enumerate(distinct)}

        def stacked(name: str) -> FloatArray:
            return np.stack([getattr(costs, name) for costs in distinct])

        exchange_s = stacked("exchange_s")
        return cls(
            kind=np.array([place[id(costs)] for costs in layers], dtype=np.int64),
            legal=np.stack([costs.legal for costs in distinct]),
            forward_s=stacked("forward_s"),
            backward_s=stacked("backward_input_s") + stacked("backward_weight_s"),
            update_s=stacked("update_s"),
            inner_s=stacked("inner_forward_s") + stacked("inner_backward_s"),
            memory_bytes=stacked("static_bytes") + stacked("activation_bytes"),
            exchange_s=np.concatenate([exchange_s, exchange_s.min(axis=1, keepdims=True)], axis=1),
        )


class Spans:
    """What splits mean on a cluster whatever is computed: groups, and the levels that they span."""

    def __init__(self, table: SplitTable, cluster: Cluster) -> None:
        degrees = (table.out_channels, table.in_channels, table.height, table.batch)
        out, inner, height, batch = (values.astype(np.float64) for values in degrees)
        ones = np.ones_like(out)
        # By the dimension that is split: sizes of the groups, and the levels that they span.
        self.degree = {"out_channels": out, "in_channels": inner, "height": height}
        self.over: dict[str, GroupSpan] = {
            "out_channels": span(cluster, out, ones, table.workers),
            "in_channels": span(cluster, inner, out, table.workers),
            "height": span(cluster, height, out * inner, table.workers),
        }
        # Copies of the same weights: same channel indices, any batch and height index.
        self.gradient = span(cluster, batch * height, out * inner, table.workers)


def cost_layers(
    workload: Workload,
    cluster: Cluster,
    table: SplitTable,
    micro_batches: Sequence[int],
    only: Sequence[int] | None = None,
) -> list[tuple[LayerCosts, ...]]:
    """Cost every layer at several micro-batches; equal layers are costed once.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    table : SplitTable
    micro_batches : sequence of int
        Samples of a micro-batch over all workers.
    only : sequence of int, optional
        Cost these layers.

    Returns
    -------
    list of tuples of LayerCosts
        For every micro-batch the costs of every layer, or of those asked for.
    """
    rows = len(table.workers)
    if len(micro_batches) == 1:
        return [_Costing(workload, cluster, table, micro_batches[0], None, only).all()]
    each = np.repeat(np.array(micro_batches, dtype=np.int64), rows)
    together = _Costing(workload, cluster, table.repeated(len(micro_batches)), each, None, only).all()
    return [taken(together, slice(n * rows, (n + 1) * rows)) for n in range(len(micro_batches))]


def taken(layers: Sequence[LayerCosts], rows: IntArray | slice) -> tuple[LayerCosts, ...]:
    """Some of the splits of every layer; layers that share costs go on sharing them."""
    parts: dict[int, LayerCosts] = {}
    for costs in layers:
        if id(costs) not in parts:
            parts[id(costs)] = costs.take(rows)
    return tuple(parts[id(costs)] for costs in layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Layers of equal cost: the first of them, and what beyond it decides the cost."""

    number: int
    layer: Layer
    needs: bool  # its input needs a gradient
    summed: float  # passes over its output that add up gradients
    loads: bool  # it reads inputs only, and every worker loads its own, halo included
    weights: FloatArray  # share of a worker


class _Costing:
    """One run over the layers."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        table: SplitTable,
        micro_batch: int | IntArray,
        spans: Spans | None,
        only: Sequence[int] | None = None,
    ) -> None:
        self.workload, self.cluster, self.table, self.micro_batch = workload, cluster, table, micro_batch
        self.members = range(len(workload.graph.layers)) if only is None else only
        self.spans = Spans(table, cluster) if spans is None else spans
        self.zero = np.zeros(len(table.workers))
        self.pace = slowest_of(table.workers, workload.assumptions.device_spread)

    def all(self) -> tuple[LayerCosts, ...]:
        kinds, kind_of = self._kinds()
        exchange_s = self._exchanges_s([kind.weights for kind in kinds])
        costs = [self._cost(kind, exchange_s[:, k]) for k, kind in enumerate(kinds)]
        return tuple(costs[k] for k in kind_of)

    def again(self, known: Sequence[LayerCosts], *, compute: bool, links: bool) -> tuple[LayerCosts, ...]:
        kinds, kind_of = self._kinds()
        costs = [known[kind.number] for kind in kinds]
        if compute:
            costs = [replace(c, **self._compute_times(kind)) for c, kind in zip(costs, kinds, strict=True)]
        if links:
            exchange_s = self._exchanges_s([kind.weights for kind in kinds])
            costs = [
                replace(c, **self._inner_times(kind), update_s=self._update_s(kind), exchange_s=exchange_s[:, k])
                for k, (c, kind) in enumerate(zip(costs, kinds, strict=True))
            ]
        return tuple(costs[k] for k in kind_of)

    def _kinds(self) -> tuple[list[_Kind], list[int]]:
        """Layers that differ in cost, and which of them every layer is."""
        needs, graph = self.workload.graph.needs_gradient, self.workload.graph
        sums = graph.once("gradient passes", lambda: gradient_passes(graph))
        place: dict[tuple[object, ...], int] = {}
        kinds: list[_Kind] = []
        kind_of = []
        for i in self.members:
            layer = graph.layers[i]
            input_gradient = self.workload.training and any(needs[u] for u in graph.producers[i])
            loads = all(graph.layers[u].kind == "input" for u in graph.producers[i])
            key = (layer.signature, input_gradient, loads, sums[i], self.workload.compute.cost_key(layer))
            if key not in place:
                place[key] = len(kinds)
                weights = _weight_share(layer, self.table, counts_norm=self.workload.compute.counts_norm)
                kinds.append(
                    _Kind(number=i, layer=layer, needs=input_gradient, summed=sums[i], loads=loads, weights=weights)
                )
            kind_of.append(place[key])
        return kinds, kind_of

    def _shard(self, layer: Layer) -> Shard:
        return shard_of(layer, self.table, self.micro_batch)

    def _cost(self, kind: _Kind, exchange_s: FloatArray) -> LayerCosts:
        """Cost one layer."""
        table, workload, layer, weights = self.table, self.workload, kind.layer, kind.weights
        shard = self._shard(layer)
        training = workload.training
        group = (table.batch * table.height) * 1.0
        frozen = float(layer.weight_count + layer.norm_count) if layer.is_frozen else 0.0
        kept = _activation_elements(layer, shard, self.micro_batch, table.workers, training=training)
        if training and layer.family.keeps_inside:
            kept = kept + layer.family.saved_elements(layer, shard)
        return LayerCosts(
            legal=legal_splits(layer, table, self.micro_batch),
            exchange_group=np.where(weights > 0, group, 1.0),
            static_bytes=weights * self._static_bytes_per_weight()
            + _share_of(frozen, layer, table) * workload.precision.weight_bytes,
            activation_bytes=kept * workload.precision.activation_bytes,
            exchange_s=exchange_s,
            **self._compute_times(kind),
            **self._inner_times(kind),
        )

    def _compute_times(self, kind: _Kind) -> dict[str, Any]:
        """What depends on the device."""
        workload, training, shard = self.workload, self.workload.training, self._shard(kind.layer)
        times = workload.compute.pass_times(kind.layer, shard, needs_input_gradient=kind.needs)
        into = times.backward_input_s
        if kind.summed:
            into = into + workload.compute.sum_s(kind.layer, kind.summed * share_of_output(kind.layer, shard))
        return {
            "forward_s": self.pace * times.forward_s,
            "backward_input_s": self.pace * into if training else self.zero,
            "backward_weight_s": self.pace * times.backward_weight_s if training else self.zero,
            "update_s": self._update_s(kind),
        }

    def _update_s(self, kind: _Kind) -> FloatArray:
        """The optimizer, no quicker than the host starts it, and new weights that come from parameter servers."""
        workload = self.workload
        if not workload.training:
            return self.zero
        if kind.layer.kind == "input" and workload.assumptions.parameter_servers:
            return server_round_trip_s(self.table.workers, self.cluster)  # once for all tensors
        update_s = workload.compute.update_s(kind.weights)
        if workload.assumptions.update_call_s:
            call_s = workload.assumptions.update_call_s * tensors_of(kind.layer)
            update_s = np.where(kind.weights > 0, np.maximum(update_s, call_s), update_s)
        if workload.assumptions.parameter_servers:
            update_s = update_s + np.where(self._served(kind.weights), self._servers_s(kind.weights), 0.0)
        return update_s

    def _served(self, weights: FloatArray) -> BoolArray:
        """Splits whose copies of weights live on the servers of several nodes."""
        copies = self.table.batch * self.table.height
        return (copies > 1) & (self.table.workers > node_size(self.cluster)) & (weights > 0)

    def _servers_s(self, weights: FloatArray) -> FloatArray:
        return server_transfer_s(weights * SERVER_WEIGHT_BYTES, self.table.workers, self.cluster)

    def _inner_times(self, kind: _Kind) -> dict[str, Any]:
        """What depends on the links, besides the exchange of gradients."""
        exchanges = kind.layer.family.work(kind.layer, self._shard(kind.layer)).exchanges
        if kind.loads:
            exchanges = tuple(e for e in exchanges if (e.operation, e.phase) != ("point_to_point", "forward"))
        inner = self._inner_s(exchanges)
        if kind.layer.kind == "input":
            inner["forward"] = inner["forward"] + self._input_s(kind.layer)
        backward = inner["backward"] + (inner["input_gradient"] if kind.needs else self.zero)
        return {
            "inner_forward_s": inner["forward"],
            "inner_backward_s": backward if self.workload.training else self.zero,
        }

    def _input_s(self, layer: Layer) -> FloatArray:
        """Copy of the samples of a micro-batch to the devices."""
        assumed, workers = self.workload.assumptions, self.table.workers
        if not assumed.real_input:
            return self.zero
        samples = np.asarray(self.micro_batch) / workers
        return copy_s(assumed.input_value_bytes * float(np.prod(layer.output_shape)) * samples, workers, self.cluster)

    def _exchanges_s(self, weights: Sequence[FloatArray]) -> FloatArray:
        """Gradient exchange by every collective, of several layers at once: (collectives, layers, splits)."""
        workload = self.workload
        times = np.zeros((max(len(workload.collectives), 1), len(weights), len(self.zero)))
        exchanged = [k for k, share in enumerate(weights) if workload.training and np.any(share > 0)]
        if exchanged:
            message = np.stack([weights[k] for k in exchanged]) * workload.gradient_bytes
            for c, name in enumerate(workload.collectives):
                times[c, exchanged] = all_reduce_s(name, message, self.spans.gradient, self.cluster)
        if workload.assumptions.parameter_servers:
            for k in exchanged:
                served = self._served(weights[k])
                times[:, k, served] = self._servers_s(weights[k])[served]
        return times

    def _static_bytes_per_weight(self) -> float:
        p = self.workload.precision
        if not self.workload.training:
            return p.weight_bytes
        return p.weight_bytes + self.workload.gradient_bytes + p.master_bytes + self.workload.optimizer.state_bytes

    def _inner_s(self, exchanges: tuple[InnerExchange, ...]) -> dict[str, FloatArray]:
        """Time of the exchanges inside a layer by phase."""
        total = {"forward": self.zero, "backward": self.zero, "input_gradient": self.zero}
        width = self.workload.precision.activation_bytes
        for exchange in exchanges:
            message = exchange.elements * width
            group = self.spans.over[exchange.over]
            if exchange.operation == "point_to_point":
                # A halo goes to one neighbour on each side at once over a full-duplex link.
                several = self.spans.degree[exchange.over] > 1
                time = np.where(several, point_to_point_s(message, group, self.cluster), 0.0)
            else:
                time = cheapest_s(exchange.operation, message, group, self.cluster)
            total[exchange.phase] = total[exchange.phase] + exchange.repeats * time
        return total


def _weight_share(layer: Layer, table: SplitTable, *, counts_norm: bool) -> FloatArray:
    """Weights and norm parameters that are trained, on the worker with the most, for every split.

    Channel degrees divide the weight matrix; extents that do not divide are rounded up as in the shard.
    """
    norm = layer.norm_count if counts_norm and not layer.is_frozen else 0
    return _share_of(float(layer.trainable_count + norm), layer, table)


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
    layer: Layer, shard: Shard, micro_batch: int | IntArray, workers: IntArray, *, training: bool
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


def storage_read_s(workload: Workload, cluster: Cluster, workers: ArrayLike) -> FloatArray:
    """Time in which the storage of the nodes reads the samples of a step: no step is shorter."""
    assumed, node = workload.assumptions, node_size(cluster)
    return storage_s(workload.global_batch, assumed.stored_sample_bytes, assumed.storage_bytes_per_s, workers, node)


# Fields of a workload that change costs other than the times of a device.
_WORK = ("precision", "optimizer", "training", "collectives", "gradient_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeCost:
    """One edge; ``forward_s`` and ``backward_s`` have shape (pairs,) of the geometry, for one micro-batch."""

    producer: int
    consumer: int
    channelwise: bool  # the consumer's kind of need
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

    @property
    def layers(self) -> tuple[LayerCosts, ...]:
        """Costs of every layer; equal layers are costed once."""
        if self._layers is None:
            like = self._like
            costing = _Costing(self.workload, self.cluster, self.table, self.micro_batch, self._ground.spans)
            if like is None:
                self._layers = costing.all()
            else:
                is_faster = like.workload.compute != self.workload.compute
                self._layers = costing.again(like.layers, compute=is_faster, links=not self._has_links_of(like))
        return self._layers

    @cached_property
    def stack(self) -> LayerStack:
        """The same, side by side."""
        return LayerStack.of(self.layers)

    @property
    def geometry(self) -> EdgeGeometry:
        """Pairs of layouts of `edges`."""
        return self._ground.geometry

    @cached_property
    def edges(self) -> tuple[EdgeCost, ...]:
        """Costs of every edge that moves something, for every pair of layouts; equal tensors are costed once.

        Every worker loads the input that it needs: inputs hand over for free.
        """
        if self._like is not None and self._has_links_of(self._like):
            return self._like.edges
        graph, layers, needs = self.workload.graph, self.workload.graph.layers, self.workload.graph.needs_gradient
        moving = [(u, v) for u, v in graph.edges if layers[u].kind != "input"]
        if not moving:
            return ()
        producers = {layers[u].output_shape: layers[u] for u, _ in moving}
        place = {shape: k for k, shape in enumerate(producers)}
        width = self.workload.precision.activation_bytes
        forward, backward = edge_times(list(producers.values()), self._ground.all_pairs, self.micro_batch, width)
        nothing = np.zeros_like(forward[0])
        found = []
        for u, v in moving:
            k, returns_gradient = place[layers[u].output_shape], self.workload.training and needs[u]
            found.append(
                EdgeCost(
                    producer=u,
                    consumer=v,
                    channelwise=layers[v].family.limits(layers[v]).channelwise,
                    forward_s=forward[k],
                    backward_s=backward[k] if returns_gradient else nothing,
                )
            )
        return tuple(found)

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

    def collective_at(self, layer: int, row: int) -> str | None:
        """Cheapest collective for a layer's gradient under a split; None where nothing is exchanged."""
        workload, costs = self.workload, self.layers[layer]
        exchanged = workload.training and workload.graph.layers[layer].has_weights and costs.exchange_group[row] > 1
        return workload.collectives[int(costs.cheapest_collective[row])] if exchanged else None


class _Ground:
    """What splits mean on a cluster whatever is computed: groups, the levels they span, pairs of layouts."""

    def __init__(self, table: SplitTable, cluster: Cluster) -> None:
        self._table, self._cluster = table, cluster

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
