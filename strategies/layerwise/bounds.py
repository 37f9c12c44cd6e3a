"""Bounds on the plans of every worker count, from the costs of layers alone: which counts need not be solved.

Notes
-----
The score of a choice is ``sum_i base_i + sum_e move_e + lag`` (`strategies.layerwise.per_layer.problem`), and the lag is the largest over
the layers j of ``exchange_j + sum_{i<j} (exchange_i - hide_i)``: the gradient of layer j leaves when its backward pass ends, and the
layers before it, whose backward passes come after, hide what they can and add theirs. So for every j

    score >= sum_{i<j} (base_i + exchange_i - hide_i) + (base_j + exchange_j) + sum_{i>j} base_i + sum_e move_e

and what is left is a sum over the layers, each at its cheapest (a Lagrangian relaxation with all of the weight on one path; the
elimination of `strategies.layerwise.per_layer.lagrangian` finds better weights, one worker count at a time). Of a move only the gather
over the consumer's output channels counts, which is the consumer's alone. Memory is ignored. No term is negative, since a layer's own
backward pass is part of its base; so layers that are left out, or not looked at yet, leave a bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.plan import SplitTable, legal_splits
from costmodel.layerwise.resharding import gather_times
from costmodel.layerwise.tables import CostCache, CostTables, LayerCosts, cost_layers
from costmodel.network.layers import Layer, Shard
from costmodel.tolerances import ROUNDING
from costmodel.workload import Workload
from strategies.layerwise.build import allowed_splits, base_s
from strategies.layerwise.candidates import SearchSettings
from strategies.layerwise.space import Restriction
from strategies.score import STEP_TIME, Score

# Sums are compared with those of solvers and of the cost model, which add in another order.
_SAFETY = 1.0 - ROUNDING
# Sizes of a share that are looked at: numbers of 16 bits are loaded 8 at once, so that the smallest share need not be the quickest.
_SIZES = 8


def least_step_s(workload: Workload) -> float:
    """Seconds that no step takes less than, on however many workers, and whatever the plan.

    More work never takes less time (`costmodel.kernels.roofline`). So every layer takes at least as long as for one sample of the
    smallest share that the limits on its degrees allow. A pipeline, too, sends a micro-batch through all layers, one after the other.
    Communication and the optimizer are left out.

    Parameters
    ----------
    workload : Workload

    Returns
    -------
    float
        One number for all worker counts, so it costs next to nothing however many there are.
    """
    known: dict[tuple[object, ...], float] = {}
    needs, graph = workload.graph.needs_gradient, workload.graph
    total = 0.0
    for i, layer in enumerate(graph.layers):
        if layer.kind == "input":
            continue
        input_gradient = workload.training and any(needs[u] for u in graph.producers[i])
        key = (layer.signature, input_gradient, workload.compute.cost_key(layer))
        if key not in known:
            times = workload.compute.pass_times(layer, _small_shares(layer), needs_input_gradient=input_gradient)
            passes = times.forward_s + times.backward_s if workload.training else times.forward_s
            known[key] = float(np.min(passes))
        total += known[key]
    return total * _SAFETY


def _small_shares(layer: Layer) -> Shard:
    """One sample of some of the smallest shares of a layer: of output channels with of input channels."""
    limits = layer.family.limits(layer)
    inputs = layer.input_shapes[0] if layer.input_shapes else layer.output_shape
    extent = limits.in_channels if limits.in_channels > 1 else inputs[0]
    outs = _small_sizes(layer.output_shape[0], limits.out_channels)
    ins = _small_sizes(extent, limits.out_channels if limits.channelwise else limits.in_channels)
    out, inner = np.repeat(outs, len(ins)), np.tile(ins, len(outs))
    rows = layer.output_shape[1] if len(layer.output_shape) == 3 else 1
    one = np.ones(len(out))
    return Shard(
        batch=one,
        out_channels=out,
        in_channels=inner,
        height=np.ceil(rows / limits.height) * one,
        split_out=limits.out_channels * one,
        split_in=limits.in_channels * one,
        split_height=limits.height * one,
    )


def _small_sizes(extent: int, degree: int) -> FloatArray:
    """Some of the smallest shares of an extent.

    >>> _small_sizes(100, 25).tolist(), _small_sizes(3, 3).tolist(), _small_sizes(50, 1).tolist()
    ([4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0], [1.0, 2.0, 3.0], [50.0])
    """
    least = -(-extent // degree)
    return np.arange(least, min(least + _SIZES, extent + 1), dtype=np.float64)


def lower_bounds(tables: CostTables, restriction: Restriction, score: Score = STEP_TIME) -> FloatArray:
    """Bound every worker count from below: the path of exchanges that tells most, each layer at its cheapest (see the module's notes).

    Returns
    -------
    array, shape (worker counts,)
        Scores: seconds, unless devices count; infinity where some layer has no legal split.
    """
    gathers = _Gathers(tables.workload, tables.cluster, tables.table, tables.num_micro_batches)
    starts = np.array(tables.table.offsets[:-1])
    known: dict[tuple[object, ...], FloatArray] = {}
    parts = []
    for i, mask in enumerate(allowed_splits(tables, restriction)):
        costs = tables.layers[i]
        key = (id(costs), id(mask), gathers.of_layer[i])
        if key not in known:
            choices = _choices(tables.workload, costs, gathers.time_s(i), tables.num_micro_batches, score)
            known[key] = np.minimum.reduceat(np.where(mask, choices, np.inf), starts, axis=1)
        parts.append(known[key])
    return score.factor(tables.table.worker_counts) * _longest(np.stack(parts, axis=1)) * _SAFETY


def screened_bounds(
    cache: CostCache, table: SplitTable, num_micro_batches: int, settings: SearchSettings, cutoff: float
) -> FloatArray:
    """The same bounds, but no better than it takes to pass a cutoff, without costing what need not be costed.

    Layers are looked at one kind of limits after the other, those of most layers first, under the splits that they can take; a worker
    count whose bound passes the cutoff is not looked at again.

    Parameters
    ----------
    cache : CostCache
    table : SplitTable
    num_micro_batches : int
    settings : SearchSettings
    cutoff : float
        Score above which plans are of no interest.

    Returns
    -------
    array, shape (worker counts,)
        As of `lower_bounds`; at most those.
    """
    workload, score = cache.workload, settings.score
    counts, count_of = len(table.worker_counts), table.count_of(np.arange(len(table.workers)))
    factor = score.factor(table.worker_counts)
    groups = _groups(workload, table, workload.micro_batch(num_micro_batches), settings.restriction)
    bounds = np.zeros(counts)
    for _, mask in groups:
        bounds[np.bincount(count_of[mask], minlength=counts) == 0] = np.inf
    parts = np.zeros((3, len(workload.graph.layers), counts))
    for members, mask in groups:
        rows = np.flatnonzero(mask & (np.isfinite(bounds) & (bounds <= cutoff))[count_of])
        if not len(rows):
            continue
        part = table.take(rows)
        here = count_of[rows[np.array(part.offsets[:-1])]]
        _look_at(members, part, here, parts, cache, num_micro_batches, score)
        bounds[here] = factor[here] * _longest(parts[:, :, here]) * _SAFETY
    return bounds


def _groups(
    workload: Workload, table: SplitTable, micro_batch: int, restriction: Restriction
) -> list[tuple[list[int], BoolArray]]:
    """Layers and the splits that they can take: all but inputs, which cost nothing; those with the most layers with weights first."""
    masks: dict[tuple[object, ...], BoolArray] = {}
    members: dict[bytes, tuple[BoolArray, list[int]]] = {}
    layers = workload.graph.layers
    for i, layer in enumerate(layers):
        if layer.kind == "input":
            continue
        key = (layer.signature, layer.name if layer.name in restriction.fixed else None)
        if key not in masks:
            masks[key] = legal_splits(layer, table, micro_batch) & restriction.mask(layer, table)
        mask = masks[key]
        members.setdefault(mask.tobytes(), (mask, []))[1].append(i)
    groups = [(numbers, mask) for mask, numbers in members.values()]
    return sorted(groups, key=lambda group: -sum(layers[i].has_weights for i in group[0]))


def _look_at(
    members: Sequence[int],
    table: SplitTable,
    counts: IntArray,
    parts: FloatArray,
    cache: CostCache,
    num_micro_batches: int,
    score: Score,
) -> None:
    """Fill in what some layers add to the bounds of the worker counts of a table, which are those of these numbers."""
    workload, cluster = cache.workload, cache.cluster
    gathers = _Gathers(workload, cluster, table, num_micro_batches, set(members))
    starts = np.array(table.offsets[:-1])
    costs = cost_layers(workload, cluster, table, [workload.micro_batch(num_micro_batches)], only=members)[0]
    known: dict[tuple[object, ...], FloatArray] = {}
    for i, cost in zip(members, costs, strict=True):
        key = (id(cost), gathers.of_layer[i])
        if key not in known:
            choices = _choices(workload, cost, gathers.time_s(i), num_micro_batches, score)
            known[key] = np.minimum.reduceat(choices, starts, axis=1)
        parts[:, i, counts] = known[key]


def _choices(
    workload: Workload, costs: LayerCosts, gather_s: FloatArray | float, num_micro_batches: int, score: Score
) -> FloatArray:
    """What a layer adds to the bound under every split: before the layer whose gradient is waited for, being it, or after it."""
    weight = score.step_weight
    alone = base_s(costs, num_micro_batches, score) + weight * gather_s
    waited = alone + weight * costs.cheapest_exchange_s
    if not workload.compute.overlaps_exchange:
        return np.stack([waited, waited, alone])
    return np.stack([waited - weight * (costs.backward_input_s + costs.backward_weight_s), waited, alone])


def _longest(parts: FloatArray) -> FloatArray:
    """Largest over the layers j of what the layers before j add, j itself, and those after it; from (3, layers, worker counts).

    >>> one, two, three = [[1.0], [1.0]], [[5.0], [3.0]], [[2.0], [2.0]]
    >>> _longest(np.array([one, two, three])).tolist()  # wait for the first: 5 + 2; for the second: 1 + 3
    [7.0]
    """
    passed, waited, alone = parts
    nothing = np.zeros_like(passed[:1])
    front = np.concatenate([nothing, np.cumsum(passed[:-1], axis=0)])
    behind = np.concatenate([np.cumsum(alone[:0:-1], axis=0)[::-1], nothing])
    return np.asarray(np.max(front + waited + behind, axis=0))


class _Gathers:
    """Gathers over a consumer's output channels, once per shape of what is gathered."""

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        table: SplitTable,
        num_micro_batches: int,
        consumers: set[int] | None = None,
    ) -> None:
        layers = workload.graph.layers
        of_layer, first = _gathered(workload, consumers)
        self.of_layer = of_layer
        self._times: dict[tuple[int, bool], FloatArray] = {}
        if first:
            m, width = float(num_micro_batches), workload.precision.activation_bytes
            forward_s, backward_s = gather_times(
                [layers[u] for u in first], table, cluster, workload.micro_batch(num_micro_batches), width
            )
            for k, u in enumerate(first):
                self._times[u, False] = m * forward_s[k]
                self._times[u, True] = m * (forward_s[k] + backward_s[k])

    def time_s(self, layer: int) -> FloatArray | float:
        """All gathers of a layer in a step, forward and back, under every split."""
        total: FloatArray | float = 0.0
        for which in self.of_layer[layer]:
            total = total + self._times[which]
        return total


def _gathered(workload: Workload, consumers: set[int] | None) -> tuple[list[tuple[tuple[int, bool], ...]], list[int]]:
    """What every layer gathers: the first layer with such an output, and whether a gradient comes back; and those layers."""
    graph, needs = workload.graph, workload.graph.needs_gradient
    gathered: list[list[tuple[int, bool]]] = [[] for _ in graph.layers]
    first: dict[tuple[int, ...], int] = {}
    for u, v in graph.edges:
        consumer = graph.layers[v]
        wanted = consumers is None or v in consumers
        # Inputs hand over for free, and channelwise layers need no more channels than they hold.
        if wanted and graph.layers[u].kind != "input" and not consumer.family.limits(consumer).channelwise:
            shape = graph.layers[u].output_shape
            gathered[v].append((first.setdefault(shape, u), workload.training and needs[u]))
    return [tuple(sorted(which)) for which in gathered], list(first.values())


def memory_extremes(tables: CostTables, restriction: Restriction) -> tuple[FloatArray, FloatArray]:
    """Least and largest memory that any plan of a worker count can take, in bytes; arrays (worker counts,)."""
    starts = np.array(tables.table.offsets[:-1])
    least = np.full(len(starts), float(tables.workload.context_bytes))
    most = least.copy()
    known: dict[tuple[int, int], tuple[FloatArray, FloatArray]] = {}
    for costs, mask in zip(tables.layers, allowed_splits(tables, restriction), strict=True):
        key = (id(costs), id(mask))
        if key not in known:
            need = costs.static_bytes + costs.activation_bytes
            known[key] = (
                np.minimum.reduceat(np.where(mask, need, np.inf), starts),
                np.maximum.reduceat(np.where(mask, need, 0.0), starts),
            )
        least, most = least + known[key][0], most + known[key][1]
    return least, most
