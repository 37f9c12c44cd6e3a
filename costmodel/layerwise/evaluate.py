"""The cost of plans with a split per layer: one pure function over a batch of plans. A single plan is a batch of length one.

Step time of a plan without stages, all terms in seconds, m micro-batches:

    step = m (forward + backward + resharding) + update + exposed exchange

The exposed exchange is what the gradient exchanges, carried one after the other by a serial channel, leave after the backward pass
(reverse order of the layers; only backward compute of the last micro-batch hides them, since resharding uses the same links):

    lag = 0;  for layers from last to first:  lag = max(lag - hide, 0) + exchange

``max(lag - hide, 0) + exchange = max(lag + (exchange - hide), exchange)`` is closed under composition, so a run of layers with the
same choice folds into one pair (p, q) with ``lag -> max(lag + p, q)``. Folded tables
score uniform plans by the million.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.pipeline import evaluate_pipelines
from costmodel.layerwise.plan import CHEAPEST, CostBatch, Plan, PlanBatch, concatenate
from costmodel.layerwise.splits import split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.workload import Workload

__all__ = [
    "CHEAPEST",
    "CostBatch",
    "FoldedTables",
    "PlanBatch",
    "batch_of",
    "concatenate",
    "evaluate",
    "evaluate_on",
    "fold",
]


_Scalar = TypeVar("_Scalar", np.float64, np.bool_)


@dataclass(frozen=True, slots=True)
class _Column:
    """Sums over the layers that share one choice; arrays of shape (splits,) or (collectives + 1, splits)."""

    forward_s: FloatArray
    backward_s: FloatArray
    update_s: FloatArray
    inner_s: FloatArray
    exchange_s: FloatArray  # (collectives + 1, splits); the last row is the cheapest
    memory_bytes: FloatArray
    legal: BoolArray


@dataclass(frozen=True, slots=True)
class _Move:
    """Edges between two columns: cost by pair of classes."""

    producer: int
    consumer: int
    channelwise: bool
    follow: IntArray | None  # row whose need the consumer really has; None: the chosen row
    cost_s: FloatArray  # (pairs,), forward and backward of one micro-batch


@dataclass(frozen=True, slots=True)
class FoldedTables:
    """Tables folded by columns: what a plan gathers from."""

    tables: CostTables
    columns: tuple[_Column, ...]
    # From the last layer to the first: (column, p, q) with lag -> max(lag + p, q); arrays (collectives + 1, splits).
    lag_steps: tuple[tuple[int, FloatArray, FloatArray], ...]
    moves: tuple[_Move, ...]

    def score(self, plans: PlanBatch) -> CostBatch:
        """Gather and add."""
        tables, m = self.tables, float(self.tables.num_micro_batches)
        n = len(plans)
        total = {name: np.zeros(n) for name in ("forward", "backward", "update", "reshard", "exchange", "memory")}
        legal = np.ones(n, dtype=bool)
        for c, column in enumerate(self.columns):
            row, collective = plans.row[:, c], plans.collective[:, c]
            total["forward"] += m * column.forward_s[row]
            total["backward"] += m * column.backward_s[row]
            total["update"] += column.update_s[row]
            total["reshard"] += m * column.inner_s[row]
            total["exchange"] += column.exchange_s[collective, row]
            total["memory"] += column.memory_bytes[row]
            legal &= column.legal[row]
        if self.moves:
            geometry = tables.geometry
            count = tables.table.count_of(plans.row[:, 0])
            for move in self.moves:
                layout = geometry.layout_of[plans.row[:, move.producer]]
                consumer = plans.row[:, move.consumer]
                need = geometry.need_of[int(move.channelwise)][
                    consumer if move.follow is None else move.follow[consumer]
                ]
                total["reshard"] += m * move.cost_s[geometry.pair(count, layout, need)]
        lag = np.zeros(n)
        for c, p, q in self.lag_steps:
            row, collective = plans.row[:, c], plans.collective[:, c]
            lag = np.maximum(lag + p[collective, row], q[collective, row])
        step = total["forward"] + total["backward"] + total["update"] + total["reshard"] + lag
        late = np.maximum(tables.storage_s(tables.table.workers[plans.row[:, 0]]) - step, 0.0)
        step, reshard = step + late, total["reshard"] + late
        return CostBatch(
            step_time_s=np.where(legal, step, np.inf),
            forward_s=total["forward"],
            backward_s=total["backward"],
            update_s=total["update"],
            reshard_s=reshard,
            exchange_s=total["exchange"],
            exposed_exchange_s=lag,
            bubble_s=np.zeros(n),
            memory_bytes=total["memory"] + self.tables.workload.context_bytes,
            computing_s=total["forward"] + total["backward"] + total["update"],
        )


def fold(tables: CostTables, column_of_layer: Sequence[int]) -> FoldedTables:
    """Fold the layers of every column into sums and lag steps.

    With as many columns as layers a column's split is the layer's. With fewer, a column's split is that of its layers with
    weights, and channelwise layers follow the layout it leaves: batch b, channels o i, height h.
    """
    layers = len(tables.workload.graph.layers)
    num_columns = max(column_of_layer) + 1
    follow = _follow_rows(tables) if num_columns < layers else None
    follows = np.array([layer.family.limits(layer).channelwise for layer in tables.workload.graph.layers])
    costs = _FollowedCosts(tables, follow, follows)
    columns = tuple(
        _fold_column(costs, [i for i in range(layers) if column_of_layer[i] == c]) for c in range(num_columns)
    )
    return FoldedTables(
        tables=tables,
        columns=columns,
        lag_steps=tuple(_lag_steps(costs, column_of_layer)),
        moves=_fold_moves(tables, column_of_layer, follow),
    )


def _follow_rows(tables: CostTables) -> IntArray:
    """Row of (b, o i, 1, h) for every row (b, o, i, h)."""
    table = tables.table
    if np.all(table.in_channels == 1):
        return np.arange(len(table.workers))
    rows = [
        table.row_of(replace(split, out_channels=split.out_channels * split.in_channels, in_channels=1))
        for split in map(table.split, range(len(table.workers)))
    ]
    return np.array(rows, dtype=np.int64)


class _FollowedCosts:
    """Costs of layers where those that follow have the rows that the layout before them leaves."""

    def __init__(self, tables: CostTables, follow: IntArray | None, follows: BoolArray) -> None:
        self.tables, self.follow, self._follows = tables, follow, follows
        self._moves = follow is not None and not np.array_equal(follow, np.arange(len(follow)))

    def of(self, members: Sequence[int], values: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Values of some layers, from (kinds, ..., splits) to (layers, ..., splits)."""
        chosen = np.array(members)
        gathered = values[self.tables.stack.kind[chosen]]
        if self._moves:
            assert self.follow is not None
            moved = self._follows[chosen]
            gathered[moved] = gathered[moved][..., self.follow]
        return np.asarray(gathered)


def _fold_column(costs: _FollowedCosts, members: Sequence[int]) -> _Column:
    def total(values: FloatArray) -> FloatArray:
        # One after the other, as `_in_order` does.
        return np.asarray(np.cumsum(costs.of(members, values), axis=0)[-1])

    tables, stack = costs.tables, costs.tables.stack
    inner = total(stack.inner_s)
    if costs.follow is not None:
        inside = set(members)
        edges = [edge for edge in tables.moving_edges() if edge.producer in inside and edge.consumer in inside]
        inner = inner + tables.same_split_moves(edges, costs.follow)
    return _Column(
        forward_s=total(stack.forward_s),
        backward_s=total(stack.backward_s),
        update_s=total(stack.update_s),
        inner_s=inner,
        exchange_s=total(stack.exchange_s),
        memory_bytes=total(stack.memory_bytes),
        legal=np.asarray(costs.of(members, stack.legal).all(axis=0)),
    )


def _lag_steps(costs: _FollowedCosts, column_of_layer: Sequence[int]) -> list[tuple[int, FloatArray, FloatArray]]:
    """Compose the steps of neighbouring layers with the same column: (p1, q1) then (p2, q2) = (p1 + p2, max(q1 + p2, q2))."""
    steps: list[tuple[int, FloatArray, FloatArray]] = []
    stack, everything = costs.tables.stack, range(len(column_of_layer))
    exchange = costs.of(everything, stack.exchange_s)
    overlaps = costs.tables.workload.compute.overlaps_exchange
    rest = exchange - costs.of(everything, stack.backward_s)[:, None] if overlaps else exchange
    for i in reversed(everything):
        p, q = rest[i], exchange[i]
        if steps and steps[-1][0] == column_of_layer[i]:
            _, p_before, q_before = steps[-1]
            steps[-1] = (column_of_layer[i], p_before + p, np.maximum(q_before + p, q))
        else:
            steps.append((column_of_layer[i], p, q))
    return steps


def _fold_moves(tables: CostTables, column_of_layer: Sequence[int], follow: IntArray | None) -> tuple[_Move, ...]:
    """Sum the edges of every ordered pair of columns and kind of need; within a followed column the split decides alone."""
    if follow is None:
        edges = tables.edges
    else:
        moving = tables.moving_edges()
        edges = tables.cost_edges([e for e in moving if column_of_layer[e.producer] != column_of_layer[e.consumer]])
    summed: dict[tuple[int, int, bool], FloatArray] = {}
    for edge in edges:
        key = (column_of_layer[edge.producer], column_of_layer[edge.consumer], edge.channelwise)
        cost = edge.forward_s + edge.backward_s
        summed[key] = summed[key] + cost if key in summed else cost
    return tuple(
        _Move(producer, consumer, channelwise, follow if channelwise else None, cost)
        for (producer, consumer, channelwise), cost in summed.items()
    )


def evaluate(workload: Workload, cluster: Cluster, plans: Sequence[Plan], cache: CostCache | None = None) -> CostBatch:
    """Score plans, layer by layer or in pipelines, in the order given.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    plans : sequence of Plan
    cache : CostCache, optional
        Costs of layers of this workload on this cluster that were found before; it changes no answer.
    """
    assert cache is None or (cache.workload is workload and cache.cluster is cluster), "costs of another question"
    cache = CostCache(workload, cluster) if cache is None else cache
    parts: list[tuple[int, CostBatch]] = []
    groups: dict[tuple[int, bool], list[int]] = {}
    for n, plan in enumerate(plans):
        groups.setdefault((plan.num_micro_batches, plan.is_pipeline), []).append(n)
    for (num_micro_batches, is_pipeline), members in groups.items():
        chosen = [plans[n] for n in members]
        if is_pipeline:
            counts = sorted({stage.replicas for plan in chosen for stage in plan.stages})
            tables = cache.tables(split_table(counts, batch_only=True), num_micro_batches)
            batch = CostBatch(**evaluate_pipelines(tables, chosen))
        else:
            counts = sorted({plan.workers for plan in chosen})
            tables = cache.tables(split_table(counts), num_micro_batches)
            batch = evaluate_on(tables, batch_of(tables, chosen))
        parts += [(n, _take(batch, [k])) for k, n in enumerate(members)]
    return concatenate([part for _, part in sorted(parts, key=lambda pair: pair[0])])


def batch_of(tables: CostTables, plans: Sequence[Plan]) -> PlanBatch:
    """Index plans without stages into the tables, one column per layer."""
    names = tables.workload.collectives
    row = np.array([[tables.table.row_of(split) for split in plan.splits] for plan in plans], dtype=np.int64)
    collective = np.array(
        [[CHEAPEST if name is None else names.index(name) for name in plan.collectives] for plan in plans],
        dtype=np.int64,
    )
    layers = len(tables.workload.graph.layers)
    return PlanBatch(
        row=row.reshape(-1, layers), collective=collective.reshape(-1, layers), column_of_layer=tuple(range(layers))
    )


def evaluate_on(tables: CostTables, plans: PlanBatch) -> CostBatch:
    """Score plans against tables that are already built.

    Parameters
    ----------
    tables : CostTables
    plans : PlanBatch
        Rows must belong to one worker count per plan.

    Returns
    -------
    CostBatch
    """
    if plans.column_of_layer == tuple(range(len(tables.workload.graph.layers))):
        return _score_layers(tables, plans)
    return fold(tables, plans.column_of_layer).score(plans)


def _score_layers(tables: CostTables, plans: PlanBatch) -> CostBatch:
    """Gather and add for plans with a split of its own for every layer, where nothing can be folded but equal layers."""
    stack, row = tables.stack, plans.row
    m, n, kind = float(tables.num_micro_batches), len(plans), stack.kind
    backward_s, exchange_s = stack.backward_s[kind, row], stack.exchange_s[kind, plans.collective, row]
    reshard = _in_order(m * stack.inner_s[kind, row])
    for edge, pair in zip(tables.edges, _pairs(tables, row).T, strict=True):
        reshard = reshard + m * (edge.forward_s[pair] + edge.backward_s[pair])
    hide = backward_s if tables.workload.compute.overlaps_exchange else np.zeros_like(backward_s)
    lag = np.zeros(n)
    for i in reversed(range(row.shape[1])):
        lag = np.maximum(lag + (exchange_s[:, i] - hide[:, i]), exchange_s[:, i])
    forward, backward = _in_order(m * stack.forward_s[kind, row]), _in_order(m * backward_s)
    update = _in_order(stack.update_s[kind, row])
    step = forward + backward + update + reshard + lag
    late = np.maximum(tables.storage_s(tables.table.workers[row[:, 0]]) - step, 0.0)  # what storage is waited for
    step, reshard = step + late, reshard + late
    return CostBatch(
        step_time_s=np.where(stack.legal[kind, row].all(axis=1), step, np.inf),
        forward_s=forward,
        backward_s=backward,
        update_s=update,
        reshard_s=reshard,
        exchange_s=_in_order(exchange_s),
        exposed_exchange_s=lag,
        bubble_s=np.zeros(n),
        memory_bytes=_in_order(stack.memory_bytes[kind, row]) + tables.workload.context_bytes,
        computing_s=forward + backward + update,
    )


def _pairs(tables: CostTables, row: IntArray) -> IntArray:
    """Pair of layouts of every plan at every edge, (plans, edges)."""
    geometry, edges = tables.geometry, tables.edges
    layout = geometry.layout_of[row[:, [edge.producer for edge in edges]]]
    consumer = row[:, [edge.consumer for edge in edges]]
    ordinary, channelwise = (kind[consumer] for kind in geometry.need_of)
    need = np.where([edge.channelwise for edge in edges], channelwise, ordinary)
    return geometry.pair(tables.table.count_of(row[:, :1]), layout, need)


def _in_order(terms: FloatArray) -> FloatArray:
    """Sum over the layers one after the other, as the folded tables do, so that both round alike."""
    return np.asarray(np.cumsum(terms, axis=1)[:, -1])


def _take(batch: CostBatch, index: Sequence[int]) -> CostBatch:
    values: Mapping[str, FloatArray] = {name: getattr(batch, name)[index] for name in CostBatch.__dataclass_fields__}
    return CostBatch(**values)
