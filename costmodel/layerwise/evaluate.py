"""The cost of plans with a split per layer: one pure function over a batch of plans. A single plan is a batch of length one.

Step time of a plan without stages, all terms in seconds, m micro-batches:

    step = m (forward + backward + resharding) + update + exposed exchange

The exposed exchange is what the gradient exchanges, carried one after the other by a serial channel, leave after the backward pass
(reverse order of the layers; only backward compute of the last micro-batch hides them, since resharding uses the same links):

    lag = 0;  for layers from last to first:  lag = max(lag - hide, 0) + exchange

``max(lag - hide, 0) + exchange = max(lag + (exchange - hide), exchange)`` is closed under composition, so a run of layers with the
same choice folds into one pair (p, q) with ``lag -> max(lag + p, q)``. Folded tables score uniform plans by the million.

Pipelines
---------
Contiguous stages with data-parallel replicas, scheduled one forward, one backward (1F1B) with a flush per step.

Stage s takes ``F_s`` and ``B_s`` for the forward and the backward pass of a micro-batch, ``t_s = F_s + B_s``; the receiver of a tensor
waits for its transfer, so transfers are included. With S stages, m micro-batches and ``w_s = S-1-s`` stages after stage s, the last
backward pass of stage s ends at

    E_s = max_e [ sum_{j<e} t_j + (m - w_e) t_e + X_e + Y_e ] - sum_{j<s} B_j,   e >= max(0, S - m)
    X_e = max_{a>=e} [ sum_{e<j<=a} t_j + w_a max_{j<=a} F_j ]
    Y_e = max_{b>=e, b>=s} [ sum_{e<j<=b} t_j + w_b max_{s<=j<=b} B_j ]

It then exchanges the gradients of its weights and updates them, so

    step = max_s [ E_s + exchange_s + update_s ]

*Why.* Number the forward passes of stage s by ``n = i - w_s``, i being the micro-batch. Every path through the graph of the schedule
then has one forward pass per n: it stays at its stage, goes down one, or goes up by backward passes. Visits of a stage's forward and
backward pass pair up, so a path is worth most if it stays at one stage e, but for the ``w_a`` (``w_b``) forward (backward) passes that
it spends at the slowest stage on the way to the first backward pass (back from the last one), having turned at stage a (b). What ends
at stage s has spent its backward passes at s or after it. For equal stages this is the familiar ``(m + S - 1) t``. It is exact: the
simulation of `costmodel.timeline`, which shares nothing with it, ends at the same time whatever the stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.hardware.cluster import Cluster, span
from costmodel.hardware.collectives import point_to_point_s
from costmodel.layerwise.plan import CHEAPEST, CostBatch, Plan, PlanBatch, Stage
from costmodel.layerwise.splits import Split, split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.workload import Workload

__all__ = [
    "CHEAPEST",
    "CostBatch",
    "FoldedTables",
    "PipelineArrays",
    "PlanBatch",
    "StageTimes",
    "batch_of",
    "evaluate",
    "evaluate_on",
    "evaluate_pipelines",
    "farther_takes_longer",
    "fold",
    "last_backward_s",
    "pipeline_arrays",
    "stage_arrays",
    "stage_times",
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
        return _costs(tables, plans, total, lag, legal)


def _costs(
    tables: CostTables, plans: PlanBatch, total: Mapping[str, FloatArray], lag: FloatArray, legal: BoolArray
) -> CostBatch:
    """Costs of plans without stages, from sums over their layers."""
    computing = total["forward"] + total["backward"] + total["update"]
    step = computing + total["reshard"] + lag
    late = np.maximum(tables.storage_s(tables.table.workers[plans.row[:, 0]]) - step, 0.0)  # what storage is waited for
    return CostBatch(
        step_time_s=np.where(legal, step + late, np.inf),
        forward_s=total["forward"],
        backward_s=total["backward"],
        update_s=total["update"],
        reshard_s=total["reshard"] + late,
        exchange_s=total["exchange"],
        exposed_exchange_s=lag,
        bubble_s=np.zeros(len(plans)),
        memory_bytes=total["memory"] + tables.workload.context_bytes,
        computing_s=computing,
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
        parts += [(n, batch.take([k])) for k, n in enumerate(members)]
    return CostBatch.joined([part for _, part in sorted(parts, key=lambda pair: pair[0])])


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
    m, kind = float(tables.num_micro_batches), stack.kind
    backward_s, exchange_s = stack.backward_s[kind, row], stack.exchange_s[kind, plans.collective, row]
    reshard = _in_order(m * stack.inner_s[kind, row])
    for edge, pair in zip(tables.edges, _pairs(tables, row).T, strict=True):
        reshard = reshard + m * (edge.forward_s[pair] + edge.backward_s[pair])
    hide = backward_s if tables.workload.compute.overlaps_exchange else np.zeros_like(backward_s)
    lag = np.zeros(len(plans))
    for i in reversed(range(row.shape[1])):
        lag = np.maximum(lag + (exchange_s[:, i] - hide[:, i]), exchange_s[:, i])
    total = {
        "forward": _in_order(m * stack.forward_s[kind, row]),
        "backward": _in_order(m * backward_s),
        "update": _in_order(stack.update_s[kind, row]),
        "reshard": reshard,
        "exchange": _in_order(exchange_s),
        "memory": _in_order(stack.memory_bytes[kind, row]),
    }
    return _costs(tables, plans, total, lag, np.asarray(stack.legal[kind, row].all(axis=1)))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineArrays:
    """Everything a pipeline costs, by replica count (K) and layer (L); times of one micro-batch unless said."""

    replicas: IntArray  # (K,)
    forward_s: FloatArray  # (K, L); infinity where the micro-batch is smaller than the replicas
    backward_s: FloatArray
    cut_forward_s: FloatArray  # (K, K, L + 1): into the stage that starts at layer i, from k1 to k2 replicas
    cut_backward_s: FloatArray
    update_s: FloatArray  # (K, L), once per step
    exchange_s: FloatArray  # (K, L), once per step
    static_bytes: FloatArray  # (K, L)
    activation_bytes: FloatArray  # (K, L), per micro-batch in flight


def pipeline_arrays(tables: CostTables, replicas: Sequence[int] | None = None) -> PipelineArrays:
    """Gather the pure batch splits of the tables, one replica count per worker count of the table.

    Parameters
    ----------
    tables : CostTables
    replicas : sequence of int, optional
        Only these replica counts, ascending.

    Returns
    -------
    PipelineArrays
    """
    counts = tables.table.worker_counts if replicas is None else replicas
    cut_forward, cut_backward = _cut_times(tables, counts)
    return PipelineArrays(
        replicas=np.array(counts, dtype=np.int64),
        cut_forward_s=cut_forward,
        cut_backward_s=cut_backward,
        **stage_arrays(tables, counts),
    )


def stage_arrays(tables: CostTables, replicas: Sequence[int]) -> dict[str, FloatArray]:
    """The fields of `PipelineArrays` that are of one stage, (K, L) each: all but the transfers."""
    rows = np.array([tables.table.row_of(Split(batch=r)) for r in replicas])
    layers = tables.layers
    legal = np.stack([costs.legal[rows] for costs in layers], axis=1)

    def stack(name: str) -> FloatArray:
        return np.stack([getattr(costs, name)[rows] for costs in layers], axis=1)

    forward = stack("forward_s") + stack("inner_forward_s")
    backward = stack("backward_input_s") + stack("backward_weight_s") + stack("inner_backward_s")
    return {
        "forward_s": np.where(legal, forward, np.inf),
        "backward_s": np.where(legal, backward, np.inf),
        "update_s": stack("update_s"),
        "exchange_s": stack("cheapest_exchange_s"),
        "static_bytes": stack("static_bytes"),
        "activation_bytes": stack("activation_bytes"),
    }


def _cut_times(tables: CostTables, counts: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """Time for all tensors that cross a cut: the share of one worker of the side with fewer replicas."""
    graph, workload = tables.workload.graph, tables.workload
    layers = len(graph.layers)
    last_consumer = [-1] * layers
    for u, v in graph.edges:
        last_consumer[u] = max(last_consumer[u], v)
    needs = workload.graph.needs_gradient
    elements = np.zeros((2, layers + 1))
    for u, layer in enumerate(graph.layers):
        if layer.kind == "input":
            continue  # whoever needs samples loads them
        elements[0, u + 1 : last_consumer[u] + 1] += layer.output_elements
        if workload.training and needs[u]:
            elements[1, u + 1 : last_consumer[u] + 1] += layer.output_elements
    replicas = np.array(counts, dtype=np.float64)
    fewer = np.minimum(replicas[:, None], replicas[None, :])
    share = np.ceil(tables.micro_batch / fewer) * workload.precision.activation_bytes
    message = share.ravel()[:, None] * elements.reshape(1, -1)
    stride = np.maximum(replicas[:, None], replicas[None, :]).ravel()
    pair = span(tables.cluster, np.full(stride.shape, 2.0), stride)
    columns = [point_to_point_s(message[:, c], pair, tables.cluster) for c in range(message.shape[1])]
    times = np.stack(columns, axis=1).reshape(len(replicas), len(replicas), 2, layers + 1)
    times = np.where(elements > 0, times, 0.0)
    return times[:, :, 0], times[:, :, 1]


def farther_takes_longer(cluster: Cluster, most: int) -> bool:
    """Whether a message between stages takes no less time if the one with more replicas has still more, up to so many.

    The time is latency plus bytes over bandwidth, so what holds for a small and for a large message holds between them.
    """
    stride = np.arange(1.0, most + 1.0)
    pair = span(cluster, np.full(most, 2.0), stride)
    return all(bool(np.all(np.diff(point_to_point_s(message, pair, cluster)) >= 0)) for message in (1.0, 1e15))


def evaluate_pipelines(tables: CostTables, plans: Sequence[Plan]) -> dict[str, FloatArray]:
    """Score plans with stages; returns the fields of a CostBatch.

    Parameters
    ----------
    tables : CostTables
        Must contain every replica count.
    plans : sequence of Plan

    Returns
    -------
    dict of arrays (plans,)
    """
    arrays = pipeline_arrays(tables)
    rows = [_evaluate_one(arrays, plan, tables) for plan in plans]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def last_backward_s(forward_s: FloatArray, backward_s: FloatArray, num_micro_batches: int) -> FloatArray:
    """End of the last backward pass of every stage, by the equation of the module.

    Parameters
    ----------
    forward_s, backward_s : array of float, shape (stages,)
        Per micro-batch, transfers included.
    num_micro_batches : int

    Returns
    -------
    array of float, shape (stages,)
        Seconds; the first is the time of the whole schedule.

    Examples
    --------
    Equal stages: (m + S - 1) (F + B) = (4 + 1) x 3, and the second stage is done one backward pass earlier.

    >>> last_backward_s(np.array([1.0, 1.0]), np.array([2.0, 2.0]), 4).tolist()
    [15.0, 13.0]

    A slow first stage works while the second one does: 4 x 6, not 4 x 6 + 3.

    >>> last_backward_s(np.array([3.0, 1.0]), np.array([3.0, 2.0]), 4).tolist()
    [24.0, 21.0]
    """
    time_s = forward_s + backward_s
    through_s = np.cumsum(time_s)
    later = np.arange(len(time_s))[::-1].astype(np.float64)
    # sum_{j<e} t_j + (m - w_e) t_e, less what X and Y count from the first stage on.
    stay_s = (num_micro_batches - 1 - later) * time_s - through_s
    stay_s[later > num_micro_batches - 1] = -np.inf
    stay_s += _suffix_max(through_s + later * np.maximum.accumulate(forward_s))
    ends_s = np.empty_like(time_s)
    for s in range(len(time_s)):
        turn_s = np.full_like(time_s, -np.inf)
        turn_s[s:] = through_s[s:] + later[s:] * np.maximum.accumulate(backward_s[s:])
        ends_s[s] = np.max(stay_s + _suffix_max(turn_s)) - np.sum(backward_s[:s])
    return ends_s


def _suffix_max(values: FloatArray) -> FloatArray:
    return np.maximum.accumulate(values[::-1])[::-1]


_FIELDS = (
    "step_time_s",
    "forward_s",
    "backward_s",
    "update_s",
    "reshard_s",
    "exchange_s",
    "exposed_exchange_s",
    "bubble_s",
    "memory_bytes",
    "computing_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Times of the stages of one plan, arrays (stages,); those of passes and transfers are of one micro-batch."""

    forward_s: FloatArray  # infinity where the micro-batch is smaller than the replicas
    backward_s: FloatArray
    receive_s: FloatArray  # activations from the stage before, which this one waits for
    receive_back_s: FloatArray  # gradients from the stage after
    exchange_s: FloatArray  # once a step, by the collectives that the plan names, the cheapest where it names none
    update_s: FloatArray  # once a step


def stage_times(arrays: PipelineArrays, plan: Plan, tables: CostTables) -> StageTimes:
    """Add up the layers of every stage.

    Parameters
    ----------
    arrays : PipelineArrays
        Of the tables.
    plan : Plan
        With stages.
    tables : CostTables
        Must contain every replica count.
    """
    stages, rows = plan.stages, _rows(arrays, plan)

    def sums(values: FloatArray) -> FloatArray:
        return np.array([values[k, stage.first : stage.last + 1].sum() for k, stage in zip(rows, stages, strict=True)])

    receive, receive_back = np.zeros(len(stages)), np.zeros(len(stages))
    for s in range(1, len(stages)):
        cut = rows[s - 1], rows[s], stages[s].first
        receive[s], receive_back[s - 1] = arrays.cut_forward_s[cut], arrays.cut_backward_s[cut]
    return StageTimes(
        forward_s=sums(arrays.forward_s),
        backward_s=sums(arrays.backward_s),
        receive_s=receive,
        receive_back_s=receive_back,
        exchange_s=np.array([_exchange_s(tables, plan, stage) for stage in stages]),
        update_s=sums(arrays.update_s),
    )


def _rows(arrays: PipelineArrays, plan: Plan) -> list[int]:
    index = {int(r): k for k, r in enumerate(arrays.replicas)}
    return [index[stage.replicas] for stage in plan.stages]


def _exchange_s(tables: CostTables, plan: Plan, stage: Stage) -> float:
    row, layers = tables.table.row_of(Split(batch=stage.replicas)), range(stage.first, stage.last + 1)
    return sum((float(tables.exchange_s(i, plan.collectives[i])[row]) for i in layers), 0.0)


def _memory_bytes(arrays: PipelineArrays, plan: Plan) -> float:
    """Of the fullest stage; stage s of S keeps min(m, S - s) micro-batches."""
    used = []
    for s, (k, stage) in enumerate(zip(_rows(arrays, plan), plan.stages, strict=True)):
        part = slice(stage.first, stage.last + 1)
        in_flight = min(plan.num_micro_batches, len(plan.stages) - s)
        used.append(arrays.static_bytes[k, part].sum() + in_flight * arrays.activation_bytes[k, part].sum())
    return float(max(used))


def _evaluate_one(arrays: PipelineArrays, plan: Plan, tables: CostTables) -> dict[str, float]:
    m, times = plan.num_micro_batches, stage_times(arrays, plan, tables)
    if not np.all(np.isfinite(times.forward_s)):
        return dict.fromkeys(_FIELDS, float("inf"))
    compute, moves = times.forward_s + times.backward_s, times.receive_s + times.receive_back_s
    ends = last_backward_s(times.forward_s + times.receive_s, times.backward_s + times.receive_back_s, m)
    makespan, last = float(ends[0]), int(np.argmax(ends + times.exchange_s + times.update_s))
    # What outlives the last backward pass of the first stage, of the stage that ends last: its update, and its exchange before that.
    tail = float(ends[last] + times.exchange_s[last] + times.update_s[last]) - makespan
    update_tail = min(float(times.update_s[last]), tail)
    late = max(float(tables.storage_s(plan.workers)) - makespan - tail, 0.0)
    slowest = int(np.argmax(compute + moves))
    replicas = np.array([stage.replicas for stage in plan.stages], dtype=np.float64)
    return {
        "step_time_s": makespan + tail + late,
        "forward_s": m * float(times.forward_s[slowest]),
        "backward_s": m * float(times.backward_s[slowest]),
        "update_s": update_tail,
        "reshard_s": m * float(moves[slowest]) + late,
        "exchange_s": float(times.exchange_s.max()),
        "exposed_exchange_s": tail - update_tail,
        # Fill and drain: what the slowest stage waits for the others.
        "bubble_s": makespan - m * float(compute[slowest] + moves[slowest]),
        "memory_bytes": _memory_bytes(arrays, plan) + tables.workload.context_bytes,
        "computing_s": float(replicas @ (m * compute + times.update_s)) / plan.workers,
    }
