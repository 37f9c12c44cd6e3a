"""Pipelines: contiguous stages with data-parallel replicas, scheduled one forward, one backward (1F1B) with a flush per step.

With stage times ``t_s = F_s + B_s`` per micro-batch (transfers included), m micro-batches and S stages the step is the longest of
these paths through the schedule: reach stage s with the first micro-batch, stay for all m, come back with the last, and follow
the first and the last micro-batch down to the last stage and back where that takes longer:

    D_s = sum_{j>s} t_j,   w = S-1-s,   G_s(x) = max(0, D_s - w x)
    g_s = G_s(F_s) + G_s(B_s) if m >= w + 2, else max(0, D_s - (m-1) min(F_s, B_s))
    step = max_s [ sum_{j<s} t_j + m t_s + g_s ] + tail

For equal stages this is the familiar ``(m + S - 1) t``. ``tail`` is what gradient exchanges and updates leave after the last backward
pass of the first stage: stage s ends ``sum_{j<s} B_j`` before it, so from the last stage to the first
``tail = max(tail - B_s, exchange_s + update_s)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.collectives import point_to_point_s
from costmodel.layers.base import FloatArray
from costmodel.network import span
from costmodel.plan import Plan, Stage
from costmodel.splits import Split
from costmodel.tables import CostTables

__all__ = ["PipelineArrays", "evaluate_pipelines", "pipeline_arrays", "stage_exchange_s"]

IntArray = NDArray[np.int64]


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


def pipeline_arrays(tables: CostTables, most_replicas: int | None = None) -> PipelineArrays:
    """Gather the pure batch splits of the tables, one replica count per worker count of the table.

    Parameters
    ----------
    tables : CostTables
    most_replicas : int, optional
        Leave out larger replica counts.

    Returns
    -------
    PipelineArrays
    """
    counts = [r for r in tables.table.worker_counts if most_replicas is None or r <= most_replicas]
    rows = np.array([tables.table.row_of(Split(batch=r)) for r in counts])
    layers = tables.layers
    legal = np.stack([costs.legal[rows] for costs in layers], axis=1)

    def stack(name: str) -> FloatArray:
        return np.stack([getattr(costs, name)[rows] for costs in layers], axis=1)

    forward = stack("forward_s") + stack("inner_forward_s")
    backward = stack("backward_input_s") + stack("backward_weight_s") + stack("inner_backward_s")
    cut_forward, cut_backward = _cut_times(tables, counts)
    return PipelineArrays(
        replicas=np.array(counts, dtype=np.int64),
        forward_s=np.where(legal, forward, np.inf),
        backward_s=np.where(legal, backward, np.inf),
        cut_forward_s=cut_forward,
        cut_backward_s=cut_backward,
        update_s=stack("update_s"),
        exchange_s=stack("cheapest_exchange_s"),
        static_bytes=stack("static_bytes"),
        activation_bytes=stack("activation_bytes"),
    )


def _cut_times(tables: CostTables, counts: Sequence[int]) -> tuple[FloatArray, FloatArray]:
    """Time for all tensors that cross a cut: the share of one worker of the side with fewer replicas."""
    graph, workload = tables.workload.graph, tables.workload
    layers = len(graph.layers)
    last_consumer = [-1] * layers
    for u, v in graph.edges:
        last_consumer[u] = max(last_consumer[u], v)
    needs = workload.needs_gradient()
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


def _flush_s(forward_s: FloatArray, backward_s: FloatArray, m: int) -> float:
    """Longest path through the schedule, by the equation of the module.

    >>> round(_flush_s(np.array([1.0, 1.0]), np.array([2.0, 2.0]), 4), 9)  # (m + S - 1) t
    15.0
    """
    times = forward_s + backward_s
    stages = len(times)
    after = times.sum() - np.cumsum(times)
    before = np.cumsum(times) - times
    later = np.arange(stages)[::-1]
    if_long = np.maximum(after - later * forward_s, 0.0) + np.maximum(after - later * backward_s, 0.0)
    if_short = np.maximum(after - (m - 1) * np.minimum(forward_s, backward_s), 0.0)
    detour = np.where(m >= later + 2, if_long, if_short)
    return float(np.max(before + m * times + detour))


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
)


def stage_exchange_s(tables: CostTables, plan: Plan, stage: Stage) -> float:
    """Gradient exchanges of a stage by the collectives that the plan names, the cheapest where it names none."""
    row, layers = tables.table.row_of(Split(batch=stage.replicas)), range(stage.first, stage.last + 1)
    return sum((float(tables.exchange_s(i, plan.collectives[i])[row]) for i in layers), 0.0)


def _evaluate_one(arrays: PipelineArrays, plan: Plan, tables: CostTables) -> dict[str, float]:
    m, stages = plan.num_micro_batches, plan.stages
    index = {int(r): k for k, r in enumerate(arrays.replicas)}
    ks = [index[stage.replicas] for stage in stages]
    parts = [slice(stage.first, stage.last + 1) for stage in stages]
    forward = np.array([arrays.forward_s[k, part].sum() for k, part in zip(ks, parts, strict=True)])
    backward = np.array([arrays.backward_s[k, part].sum() for k, part in zip(ks, parts, strict=True)])
    move_in, move_back = np.zeros(len(stages)), np.zeros(len(stages))
    for s in range(1, len(stages)):
        # The later stage waits for the activations, the earlier one for their gradients.
        move_in[s] = arrays.cut_forward_s[ks[s - 1], ks[s], stages[s].first]
        move_back[s - 1] = arrays.cut_backward_s[ks[s - 1], ks[s], stages[s].first]
    if not np.all(np.isfinite(forward)):
        return dict.fromkeys(_FIELDS, float("inf"))  # a micro-batch is smaller than the replicas
    update = np.array([arrays.update_s[k, part].sum() for k, part in zip(ks, parts, strict=True)])
    exchange = np.array([stage_exchange_s(tables, plan, stage) for stage in stages])
    times = forward + backward + move_in + move_back
    update_tail = exchange_tail = 0.0
    tail = 0.0
    for s in reversed(range(len(stages))):
        hidden = tail - float(backward[s] + move_back[s])
        own = float(exchange[s] + update[s])
        if own >= hidden:
            tail, update_tail, exchange_tail = own, float(update[s]), float(exchange[s])
        else:
            tail = hidden
            update_tail, exchange_tail = min(update_tail, tail), max(tail - min(update_tail, tail), 0.0)
    slowest = int(np.argmax(times))
    busy_compute = m * float(forward[slowest] + backward[slowest])
    busy_move = m * float(move_in[slowest] + move_back[slowest])
    memory = max(
        arrays.static_bytes[k, part].sum() + min(m, len(stages) - s) * arrays.activation_bytes[k, part].sum()
        for s, (k, part) in enumerate(zip(ks, parts, strict=True))
    )
    flush = _flush_s(forward + move_in, backward + move_back, m)
    return {
        "step_time_s": flush + tail,
        "forward_s": m * float(forward[slowest]),
        "backward_s": m * float(backward[slowest]),
        "update_s": update_tail,
        "reshard_s": busy_move,
        "exchange_s": float(exchange.max()),
        "exposed_exchange_s": exchange_tail,
        # Fill and drain: what the slowest stage waits for the others.
        "bubble_s": flush - busy_compute - busy_move,
        "memory_bytes": float(memory) + tables.workload.context_bytes,
    }
