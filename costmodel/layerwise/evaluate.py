"""The cost of plans with a split per layer: one pure function over a batch of plans. A single plan is a batch of length one.

Step time of a plan without stages, all terms in seconds, m micro-batches:

    step = m (forward + backward + resharding) + update + exposed exchange

The exposed exchange is what the gradient exchanges, carried one after the other by a serial channel, leave after the backward pass
(reverse order of the layers; only backward compute of the last micro-batch hides them, since resharding uses the same links):

    lag = 0;  for layers from last to first:  lag = max(lag - hide, 0) + exchange

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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.hardware.cluster import Cluster, span
from costmodel.hardware.collectives import point_to_point_s
from costmodel.layerwise.plan import CHEAPEST, CostBatch, Plan, PlanBatch, Split, Stage, split_table
from costmodel.layerwise.tables import CostCache, CostTables, storage_read_s
from costmodel.workload import Workload

__all__ = [
    "CHEAPEST",
    "CostBatch",
    "PipelineArrays",
    "PlanBatch",
    "StageTimes",
    "batch_of",
    "evaluate",
    "evaluate_on",
    "evaluate_pipelines",
    "farther_takes_longer",
    "last_backward_s",
    "pipeline_arrays",
    "stage_arrays",
    "stage_times",
]


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
            batch = evaluate_pipelines(tables, chosen)
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
    return PlanBatch(row=row.reshape(-1, layers), collective=collective.reshape(-1, layers))


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
    forward, backward = _in_order(m * stack.forward_s[kind, row]), _in_order(m * backward_s)
    update = _in_order(stack.update_s[kind, row])
    computing = forward + backward + update
    step = computing + reshard + lag
    read_s = storage_read_s(tables.workload, tables.cluster, tables.table.workers[row[:, 0]])
    late = np.maximum(read_s - step, 0.0)  # what storage is waited for
    return CostBatch(
        step_time_s=np.where(stack.legal[kind, row].all(axis=1), step + late, np.inf),
        forward_s=forward,
        backward_s=backward,
        update_s=update,
        reshard_s=reshard + late,
        exchange_s=_in_order(exchange_s),
        exposed_exchange_s=lag,
        bubble_s=np.zeros(len(plans)),
        memory_bytes=_in_order(stack.memory_bytes[kind, row]) + tables.workload.context_bytes,
        computing_s=computing,
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
    """Sum over the layers one after the other, so that plans round alike however many are evaluated together."""
    return np.asarray(np.cumsum(terms, axis=1)[:, -1])


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineArrays:
    """Everything a pipeline costs, by replica count (K) and layer (L); times of one micro-batch unless said."""

    replica_counts: IntArray  # (K,), increasing
    forward_s: FloatArray  # (K, L); infinity where the micro-batch is smaller than the replicas
    backward_s: FloatArray
    cut_forward_s: FloatArray  # (K, K, L + 1): into the stage that starts at layer i, from k1 to k2 replicas
    cut_backward_s: FloatArray
    update_s: FloatArray  # (K, L), optimizer, once per step
    exchange_s: FloatArray  # (K, L), gradient exchange over the replicas of the stage, once per step
    static_bytes: FloatArray  # (K, L), weights, gradients and optimizer state
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
        replica_counts=np.array(counts, dtype=np.int64),
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


def evaluate_pipelines(tables: CostTables, plans: Sequence[Plan]) -> CostBatch:
    """Score plans with stages.

    Parameters
    ----------
    tables : CostTables
        Must contain every replica count.
    plans : sequence of Plan

    Returns
    -------
    CostBatch
    """
    arrays = pipeline_arrays(tables)
    rows = [_evaluate_one(arrays, plan, tables) for plan in plans]
    return CostBatch(**{name: np.array([row[name] for row in rows]) for name in rows[0]})


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
    index = {int(r): k for k, r in enumerate(arrays.replica_counts)}
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
        return dict.fromkeys(CostBatch.__dataclass_fields__, float("inf"))
    compute, moves = times.forward_s + times.backward_s, times.receive_s + times.receive_back_s
    ends = last_backward_s(times.forward_s + times.receive_s, times.backward_s + times.receive_back_s, m)
    makespan, last = float(ends[0]), int(np.argmax(ends + times.exchange_s + times.update_s))
    # What outlives the last backward pass of the first stage, of the stage that ends last: its update, and its exchange before that.
    tail = float(ends[last] + times.exchange_s[last] + times.update_s[last]) - makespan
    update_tail = min(float(times.update_s[last]), tail)
    late = max(float(storage_read_s(tables.workload, tables.cluster, plan.workers)) - makespan - tail, 0.0)
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
