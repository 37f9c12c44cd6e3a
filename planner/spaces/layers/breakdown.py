"""Where the time and the memory of one plan go, layer by layer: the tables that the cost model gathers from, read row by row."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from costmodel.hardware.cluster import Cluster
from costmodel.kernels.roofline import RooflineCompute
from costmodel.layerwise.evaluate import pipeline_arrays, stage_times
from costmodel.layerwise.plan import Plan, SplitTable, shard_of, split_table
from costmodel.layerwise.tables import CostTables
from costmodel.network.layers import Layer, Shard
from costmodel.workload import Workload
from planner.core.answer import LayerCost
from planner.question.resolve import Resolved
from planner.spaces.layers.plans import split_in_words


@dataclass(frozen=True, slots=True)
class _Exchange:
    total_s: float
    exposed_s: float


def layer_costs(workload: Workload, cluster: Cluster, plan: Plan) -> tuple[LayerCost, ...]:
    """Cost every layer under a plan.

    Times are per step on the slowest worker, all micro-batches together. Without stages they add up to the step: forward, backward,
    update, resharding and exposed exchange. A move between two layers is counted at its consumer; in a pipeline, a transfer between
    stages at the first layer of the later one.

    Returns
    -------
    tuple of LayerCost
        In the graph's order.
    """
    tables, rows = _tables(workload, cluster, plan)
    moves = _stage_moves(tables, plan) if plan.is_pipeline else _moves(tables, rows)
    exchanges = _exchanges(tables, plan, rows)
    m = plan.num_micro_batches
    flops = _forward_flops(workload)
    result = []
    for i, layer in enumerate(workload.graph.layers):
        costs, row = tables.layers[i], rows[i]
        inner = float(costs.inner_forward_s[row] + costs.inner_backward_s[row])
        weights = layer.weight_count + (layer.norm_count if workload.compute.counts_norm else 0)
        exchanged = exchanges[i].total_s > 0 or plan.collectives[i] is not None
        result.append(
            LayerCost(
                name=layer.name,
                kind=layer.kind,
                split=split_in_words(plan.splits[i]),
                forward_s=m * float(costs.forward_s[row]),
                backward_input_s=m * float(costs.backward_input_s[row]),
                backward_weight_s=m * float(costs.backward_weight_s[row]),
                update_s=float(costs.update_s[row]),
                reshard_s=m * (inner + moves[i]),
                exchange_s=exchanges[i].total_s,
                exposed_exchange_s=exchanges[i].exposed_s,
                collective=plan.collectives[i] or "",
                group=int(costs.exchange_group[row]) if exchanged else 1,
                flops=flops[i],
                weight_bytes=float(weights) * workload.precision.weight_bytes,
                memory_bytes=float(costs.static_bytes[row] + costs.activation_bytes[row]),
                # Images as [batch, height, width, channels], sequences as [batch, positions, features].
                output_shape=(workload.global_batch, *layer.output_shape[1:], layer.output_shape[0]),
                algorithms=_algorithms(workload, layer, tables.table, row, tables.micro_batch),
                is_free=workload.compute.is_free(layer),
            )
        )
    return tuple(result)


def _tables(workload: Workload, cluster: Cluster, plan: Plan) -> tuple[CostTables, list[int]]:
    """The tables of a plan, and the row of every layer's split."""
    counts = sorted({split.workers for split in plan.splits})
    tables = CostTables(workload, cluster, split_table(counts, batch_only=plan.is_pipeline), plan.num_micro_batches)
    return tables, [tables.table.row_of(split) for split in plan.splits]


def memory_parts(resolved: Resolved, plan: Plan, total_bytes: float) -> tuple[tuple[str, float], ...]:
    """What fills the memory of the worker or the stage that needs most, in words and bytes; what is not of the layers is the driver's."""
    workload = resolved.workload
    tables, rows = _tables(workload, resolved.cluster, plan)
    static = np.array([costs.static_bytes[row] for costs, row in zip(tables.layers, rows, strict=True)])
    alive = np.array([costs.activation_bytes[row] for costs, row in zip(tables.layers, rows, strict=True)])
    if plan.is_pipeline:
        slices = [slice(stage.first, stage.last + 1) for stage in plan.stages]
        kept = [min(plan.num_micro_batches, len(slices) - n) for n in range(len(slices))]
        needs = [(static[part].sum(), k * alive[part].sum()) for part, k in zip(slices, kept, strict=True)]
        weights, activations = max(needs, key=sum)
    else:
        weights, activations = static.sum(), alive.sum()
    precision = workload.precision
    shares = {"weights": precision.weight_bytes}
    frozen = any(layer.is_frozen for layer in workload.graph.layers)
    if workload.training and not frozen:
        shares |= {
            "gradients": workload.gradient_bytes,
            "optimizer state and master weights": precision.master_bytes + workload.optimizer.state_bytes,
        }
    name = {"weights": "weights, their gradients and optimizer state"} if frozen and workload.training else {}
    whole = sum(shares.values())
    parts = [(name.get(word, word), float(weights) * share / whole) for word, share in shares.items()]
    context = total_bytes - float(weights) - float(activations)
    return (*parts, ("activations", float(activations)), ("context of the driver and libraries", max(context, 0.0)))


def _moves(tables: CostTables, rows: list[int]) -> list[float]:
    """Time to bring each layer its inputs and their gradients back, per micro-batch."""
    moves = [0.0] * len(rows)
    for edge, pair in tables.placed_edges(rows):
        moves[edge.consumer] += float(edge.forward_s[pair] + edge.backward_s[pair])
    return moves


def _stage_moves(tables: CostTables, plan: Plan) -> list[float]:
    moves = [0.0] * len(plan.splits)
    times = stage_times(pipeline_arrays(tables), plan, tables)
    for s, stage in enumerate(plan.stages[1:], start=1):
        moves[stage.first] += float(times.receive_s[s] + times.receive_back_s[s - 1])
    return moves


def _exchanges(tables: CostTables, plan: Plan, rows: list[int]) -> list[_Exchange]:
    """Exchange of every layer, and the part of it that ends after the backward pass.

    The serial channel carries the exchanges in the order of the backward pass; a layer's can start when its backward compute is done.
    """
    overlaps = tables.workload.compute.overlaps_exchange
    hide = [
        float(costs.backward_input_s[row] + costs.backward_weight_s[row]) if overlaps else 0.0
        for costs, row in zip(tables.layers, rows, strict=True)
    ]
    end_of_backward = math.fsum(hide)
    result: list[_Exchange] = [_Exchange(0.0, 0.0)] * len(rows)
    clock = finish = 0.0
    for i in reversed(range(len(rows))):
        clock += hide[i]
        time_s = float(tables.exchange_s(i, plan.collectives[i])[rows[i]])
        start = max(clock, finish)
        finish = start + time_s
        result[i] = _Exchange(time_s, max(0.0, finish - max(start, end_of_backward)))
    return result


def _forward_flops(workload: Workload) -> list[float]:
    """Forward floating-point operations of every layer at the global batch, as the cost model counts them."""
    table = split_table([1])
    compute = workload.compute
    flops = []
    for layer in workload.graph.layers:
        shard = shard_of(layer, table, workload.global_batch)
        if not isinstance(compute, RooflineCompute):
            from costmodel.paleo.model import PaleoCompute

            if isinstance(compute, PaleoCompute) and not compute.is_extension(layer):
                flops.append(float(compute.pass_flop(layer, shard)[0][0]))
                continue
        forward = layer.family.work(layer, shard).forward
        # The first alternative is the plain algorithm.
        flops.append(float(sum(kernel.flop[0] for kernel in forward[0])) if forward else 0.0)
    return flops


def _algorithms(
    workload: Workload, layer: Layer, table: SplitTable, row: int, micro_batch: int
) -> tuple[str, str, str]:
    if not isinstance(workload.compute, RooflineCompute):
        return ("", "", "")
    one = split_table([int(table.workers[row])])
    shard = shard_of(layer, one, micro_batch)
    chosen = one.row_of(table.split(row))
    picked = Shard(**{name: getattr(shard, name)[chosen : chosen + 1] for name in Shard.__dataclass_fields__})
    return workload.compute.algorithms(layer, picked)
