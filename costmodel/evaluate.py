"""The only judge: one pure function that scores a batch of plans. A single plan is a batch of length one.

Step time of a plan without stages, all terms in seconds, m micro-batches:

    step = m (forward + backward + resharding) + update + exposed exchange

The exposed exchange is what the gradient exchanges, carried one after the other by a serial channel, leave after the backward pass
(reverse order of the layers; only backward compute of the last micro-batch hides them, since resharding uses the same links):

    lag = 0;  for layers from last to first:  lag = max(lag - hide, 0) + exchange

``max(lag - hide, 0) + exchange = max(lag + (exchange - hide), exchange)`` is closed under composition, so a run of layers with the
same choice folds into one pair (p, q) with ``lag -> max(lag + p, q)``: that is how uniform plans are scored by the million.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

import numpy as np
from numpy.typing import NDArray

from costmodel.layers.base import FloatArray
from costmodel.mesh.plan import MeshPlan
from costmodel.network import Cluster
from costmodel.pipeline_cost import evaluate_pipelines
from costmodel.plan import Plan
from costmodel.splits import split_table
from costmodel.tables import CostTables
from costmodel.workload import Workload

if TYPE_CHECKING:
    from costmodel.mesh.costs import MeshCosts

__all__ = ["CHEAPEST", "CostBatch", "PlanBatch", "batch_of", "concatenate", "evaluate", "evaluate_on"]

IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

# Collective index that stands for "the cheapest for this message".
CHEAPEST = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBatch:
    """Many plans without stages, struct of arrays, all with the same number of micro-batches.

    ``row[n, c]`` is the split (row of the tables' SplitTable) that plan n gives to the layers of column c; ``collective[n, c]`` is
    the index of the collective for their gradients, or CHEAPEST.
    """

    row: IntArray  # (plans, columns)
    collective: IntArray  # (plans, columns)
    column_of_layer: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBatch:
    """Costs of many plans; every array has shape (plans,).

    ``step_time_s`` is the sum of compute, update, resharding, exposed exchange and bubble. Illegal plans cost infinity.
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

    @property
    def compute_s(self) -> FloatArray:
        """Forward and backward."""
        return self.forward_s + self.backward_s

    @property
    def exposed_communication_s(self) -> FloatArray:
        """Time spent waiting for the network."""
        return self.reshard_s + self.exposed_exchange_s


def concatenate(parts: Sequence[CostBatch]) -> CostBatch:
    """Join batches one after the other."""
    names = CostBatch.__dataclass_fields__
    return CostBatch(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


@overload
def evaluate(workload: Workload, cluster: Cluster, plans: Sequence[Plan]) -> CostBatch: ...
@overload
def evaluate(workload: Workload, cluster: Cluster, plans: Sequence[MeshPlan]) -> MeshCosts: ...
def evaluate(workload: Workload, cluster: Cluster, plans: Sequence[Plan] | Sequence[MeshPlan]) -> CostBatch | MeshCosts:
    """Score plans: layer by layer, pipelines, or over a device mesh.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    plans : sequence of Plan, or of MeshPlan

    Returns
    -------
    CostBatch, or MeshCosts for mesh plans
        In the order given.

    Raises
    ------
    MeshError
        Mesh plans for a network without repeated blocks, or with stages that do not fit it.
    """
    meshed = [plan for plan in plans if isinstance(plan, MeshPlan)]
    if meshed:
        from costmodel.mesh.model import MeshModel  # a fifth of the time to start that other networks need not wait for

        assert len(meshed) == len(plans), "plans of one kind"
        return MeshModel.build(workload, cluster).evaluate_plans(meshed)
    return _evaluate_layers(workload, cluster, [plan for plan in plans if isinstance(plan, Plan)])


def _evaluate_layers(workload: Workload, cluster: Cluster, plans: Sequence[Plan]) -> CostBatch:
    parts: list[tuple[int, CostBatch]] = []
    groups: dict[tuple[int, bool], list[int]] = {}
    for n, plan in enumerate(plans):
        groups.setdefault((plan.num_micro_batches, plan.is_pipeline), []).append(n)
    for (num_micro_batches, is_pipeline), members in groups.items():
        chosen = [plans[n] for n in members]
        if is_pipeline:
            counts = sorted({stage.replicas for plan in chosen for stage in plan.stages})
            tables = CostTables(workload, cluster, split_table(counts), num_micro_batches)
            batch = CostBatch(**evaluate_pipelines(tables, chosen))
        else:
            counts = sorted({plan.workers for plan in chosen})
            tables = CostTables(workload, cluster, split_table(counts), num_micro_batches)
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
    folded = fold(tables, plans.column_of_layer)
    return folded.score(plans)


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
            count = np.searchsorted(np.array(tables.table.offsets), plans.row[:, 0], side="right") - 1
            for move in self.moves:
                layout = geometry.layout_of[plans.row[:, move.producer]]
                consumer = plans.row[:, move.consumer]
                need = geometry.need_of[int(move.channelwise)][
                    consumer if move.follow is None else move.follow[consumer]
                ]
                pair = geometry.pair_offset[count] + layout * geometry.needs[count] + need
                total["reshard"] += m * move.cost_s[pair]
        lag = np.zeros(n)
        for c, p, q in self.lag_steps:
            row, collective = plans.row[:, c], plans.collective[:, c]
            lag = np.maximum(lag + p[collective, row], q[collective, row])
        step = total["forward"] + total["backward"] + total["update"] + total["reshard"] + lag
        return CostBatch(
            step_time_s=np.where(legal, step, np.inf),
            forward_s=total["forward"],
            backward_s=total["backward"],
            update_s=total["update"],
            reshard_s=total["reshard"],
            exchange_s=total["exchange"],
            exposed_exchange_s=lag,
            bubble_s=np.zeros(n),
            memory_bytes=total["memory"] + self.tables.workload.context_bytes,
        )


def fold(tables: CostTables, column_of_layer: Sequence[int]) -> FoldedTables:
    """Fold the layers of every column into sums and lag steps.

    With as many columns as layers a column's split is the layer's. With fewer, a column's split is that of its layers with
    weights, and channelwise layers follow the layout it leaves: batch b, channels o i, height h.
    """
    layers = len(tables.workload.graph.layers)
    num_columns = max(column_of_layer) + 1
    follow = _follow_rows(tables) if num_columns < layers else None
    picks: list[IntArray | slice] = []
    for layer in tables.workload.graph.layers:
        channelwise = layer.family.limits(layer).channelwise
        picks.append(follow if follow is not None and channelwise else slice(None))
    columns = tuple(
        _fold_column(tables, [i for i in range(layers) if column_of_layer[i] == c], picks, follow)
        for c in range(num_columns)
    )
    return FoldedTables(
        tables=tables,
        columns=columns,
        lag_steps=tuple(_lag_steps(tables, column_of_layer, picks)),
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


def _with_cheapest(exchange_s: FloatArray) -> FloatArray:
    return np.concatenate([exchange_s, exchange_s.min(axis=0, keepdims=True)])


def _fold_column(
    tables: CostTables, members: Sequence[int], picks: Sequence[IntArray | slice], follow: IntArray | None
) -> _Column:
    n = len(tables.table.workers)
    kinds = len(tables.layers[0].exchange_s) + 1
    forward, backward, update, inner, memory = (np.zeros(n) for _ in range(5))
    exchange, legal = np.zeros((kinds, n)), np.ones(n, dtype=bool)
    for i in members:
        costs, pick = tables.layers[i], picks[i]
        forward += costs.forward_s[pick]
        backward += costs.backward_input_s[pick] + costs.backward_weight_s[pick]
        update += costs.update_s[pick]
        inner += costs.inner_forward_s[pick] + costs.inner_backward_s[pick]
        exchange += _with_cheapest(costs.exchange_s)[:, pick]
        memory += costs.static_bytes[pick] + costs.activation_bytes[pick]
        legal &= costs.legal[pick]
    if follow is not None:
        inside = set(members)
        edges = [edge for edge in tables.moving_edges() if edge.producer in inside and edge.consumer in inside]
        inner += tables.same_split_moves(edges, follow)
    return _Column(forward, backward, update, inner, exchange, memory, legal)


def _lag_steps(
    tables: CostTables, column_of_layer: Sequence[int], picks: Sequence[IntArray | slice]
) -> list[tuple[int, FloatArray, FloatArray]]:
    """Compose the steps of neighbouring layers with the same column: (p1, q1) then (p2, q2) = (p1 + p2, max(q1 + p2, q2))."""
    steps: list[tuple[int, FloatArray, FloatArray]] = []
    overlaps = tables.workload.compute.overlaps_exchange
    for i in reversed(range(len(column_of_layer))):
        costs, pick = tables.layers[i], picks[i]
        exchange = _with_cheapest(costs.exchange_s)[:, pick]
        hide = (costs.backward_input_s + costs.backward_weight_s)[pick] if overlaps else 0.0
        p, q = exchange - hide, exchange
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


def _take(batch: CostBatch, index: Sequence[int]) -> CostBatch:
    values: Mapping[str, FloatArray] = {name: getattr(batch, name)[index] for name in CostBatch.__dataclass_fields__}
    return CostBatch(**values)
