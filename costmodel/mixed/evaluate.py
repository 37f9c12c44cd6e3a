"""The cost model of mixed plans: step time, memory, money and energy of plans that keep the rules.

    step = slowest pipeline (1F1B over stages of any length) + what exchange and update leave after the last backward pass

Stage times and memory are asked of the mesh model's own functions (`costmodel.mesh`), one row per stage, so that a pipeline on one group
alone costs what `MeshModel` says. Transfers take the link that really joins two stages (`costmodel.mixed.plan`). Every group has its own
price and power (`costmodel.hardware.host`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import BoolArray, DeclaredColumns, FloatArray, IntArray, combined, with_columns
from costmodel.fields import parts_of
from costmodel.hardware.cluster import Cluster
from costmodel.mesh.communication import CopyTimes, Division, exposed_exchange, strides
from costmodel.mesh.memory import PipelineMemory
from costmodel.mesh.model import MeshModel
from costmodel.mesh.passes import module_passes
from costmodel.mesh.plan import MEMORY_PARTS, RECOMPUTE, MeshBatch
from costmodel.mesh.schedule import ChunkRuns, makespan_s
from costmodel.mesh.stages import LayoutArrays, recomputed_share, weigh
from costmodel.mesh.step import gradient_passes_s
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import (
    MIXED_FIGURES,
    MIXED_ORDERS,
    MixedError,
    MixedPipeline,
    MixedPlan,
    all_reduce_across_s,
    group_names,
)
from costmodel.objectives import step_costs
from costmodel.precision import Precision
from costmodel.schedules import ONE_F_ONE_B


@with_columns(
    (
        "tp",
        "sequence_parallel",
        "etp",
        "micro_batch",
        "num_micro_batches",
        "recompute",
        "recompute_blocks",
        "zero_stage",
        "stages",
        "position",
        "group_stages",
        "replicas",
        "order",
        "shapes",
        "fewest_ranks",
    )
)
class StageRows(DeclaredColumns[np.int64]):
    """Stages; arrays (n,), modules (n, K).

    Attributes
    ----------
    tp, sequence_parallel, etp, micro_batch, num_micro_batches, recompute, recompute_blocks, zero_stage : arrays
        As in `costmodel.mesh.plan.MeshBatch`.
    stages, position : arrays
        Length of the pipeline, and where in it the stage is.
    group_stages : array
        Stages of the pipeline on this group.
    replicas : array
        Of the pipeline.
    order : array
        Position in ORDERS.
    shapes : array
        Unlike pipelines that exchange gradients.
    fewest_ranks : array
        Ranks over which the pipeline with the fewest has spread each block (replicas x tp): the shares in which gradients cross.
    cross_bytes_per_s, cross_latency_s : arrays
        The link between the pipelines, per share.
    modules : array
        Modules of each kind.
    """

    cross_bytes_per_s: FloatArray
    cross_latency_s: FloatArray
    modules: FloatArray

    @classmethod
    def of(cls, modules: FloatArray, columns: Mapping[str, ArrayLike]) -> StageRows:
        """Rows from columns by name; a number is the same in every row."""
        arrays: dict[str, Any] = {}
        for item in fields(cls):
            if item.name != "modules":
                number = np.float64 if item.name.startswith("cross") else np.int64
                arrays[item.name] = np.broadcast_to(np.asarray(columns[item.name], dtype=number), len(modules))
        return cls(modules=modules, **arrays)


@with_columns(
    (
        "compute_s",
        "tp_exposed_s",
        "recompute_s",
        "forward_s",
        "backward_s",
        "plain_backward_s",
        "exchange_s",
        "update_s",
        "memory_bytes",
    )
)
class StageCosts(DeclaredColumns[np.float64]):
    """Costs of stages; arrays (n,). Times of passes are of one micro-batch, without transfers between stages.

    Attributes
    ----------
    backward_s, plain_backward_s : arrays
        With and without recomputation.
    exchange_s, update_s : arrays
        Once per step: gradients and, under ZeRO-1, weights, as far as nothing hides them; the optimizer.
    """

    memory_parts: dict[str, FloatArray]

    @property
    def end_s(self) -> FloatArray:
        """What a stage does after its last backward pass."""
        return self.exchange_s + self.update_s


def cost_stages(model: MeshModel, rows: StageRows) -> StageCosts:
    """Score stages on one group.

    Parameters
    ----------
    model : MeshModel
        Of the group alone.
    rows : StageRows

    Returns
    -------
    StageCosts
    """
    batch = _batch(model, rows)
    place = model.row_keys(batch).place
    deciding = [rows.tp, rows.sequence_parallel, rows.etp, rows.micro_batch, rows.recompute, place]
    if model.assumptions.contended_step_s:  # collectives inside a layer feel what stages exchange
        deciding += [rows.stages, rows.replicas, rows.order]
    first, row = combined(*deciding)
    keys = batch.take(first)
    stride = strides(keys.order, keys.tp, keys.cp, keys.dp, rows.group_stages[first])
    stride["ep"] = np.ones_like(keys.tp)
    table = model.rows(keys)
    passes = module_passes(table, keys, stride, model.groups, is_block=model.is_block)
    layouts = _layouts(rows, model.is_block)
    modules = layouts.run_modules

    def sum_of(values: FloatArray) -> FloatArray:
        return weigh(modules, values, row)[:, 0]

    share = recomputed_share(modules, model.is_block, batch.recompute, batch.recompute_blocks)[:, 0]
    again = share * sum_of(passes.recompute_s) if model.workload.training else np.zeros(len(rows))
    plain, forward = sum_of(passes.backward_s), sum_of(passes.forward_s)
    # Gradients travel (in buckets) to unlike pipelines, too.
    spread = replace(batch, dp_replicate=batch.dp_replicate * rows.shapes)
    (memory,) = PipelineMemory.build(model.workload, model.assumptions, table, row, layouts, [spread], model.is_block)
    division = Division.of(batch, strides(batch.order, batch.tp, batch.cp, batch.dp, rows.group_stages))
    parts = {name: value[:, 0] for name, value in memory.divided(np.arange(len(rows)), division).parts.items()}
    exchange, update = _step_end(model, rows, memory, forward, plain)
    return StageCosts(
        compute_s=sum_of(passes.compute_forward_s + passes.compute_backward_s),
        tp_exposed_s=sum_of(passes.tp_forward_s + passes.tp_backward_s + passes.ep_forward_s + passes.ep_backward_s),
        recompute_s=again,
        forward_s=forward,
        backward_s=plain + again,
        plain_backward_s=plain,
        exchange_s=exchange,
        update_s=update,
        memory_bytes=np.asarray(sum(parts[name] for name in MEMORY_PARTS)),
        memory_parts=parts,
    )


def _batch(model: MeshModel, rows: StageRows) -> MeshBatch:
    """The stages as plans of the mesh model: equal replicas that share the optimizer state under ZeRO-1; groups fill their domains."""
    one, shared, replicas = np.ones(len(rows), dtype=np.int64), rows.zero_stage > 0, rows.replicas
    return MeshBatch(
        tp=rows.tp,
        sequence_parallel=rows.sequence_parallel,
        cp=one,
        cp_kind=0 * one,
        ep=one,
        etp=rows.etp,
        pp=rows.stages,
        vpp=one,
        schedule=ONE_F_ONE_B * one,
        dp_replicate=np.where(shared, 1, replicas),
        dp_shard=np.where(shared, replicas, 1),
        zero_stage=rows.zero_stage,
        micro_batch=rows.micro_batch,
        num_micro_batches=rows.num_micro_batches,
        recompute=rows.recompute,
        recompute_blocks=rows.recompute_blocks,
        offload_optimizer=0 * one,
        offload_activations=0 * one,
        order=rows.order,
        domain_gpus=(model.cluster.domain_size or 0) * one,
    )


def _layouts(rows: StageRows, is_block: BoolArray) -> LayoutArrays:
    """One run and one rank per row."""
    modules = rows.modules[:, None, :]
    blocks = modules[:, :, is_block].sum(axis=2, keepdims=True)
    return LayoutArrays(
        run_modules=modules,
        run_chunks=np.ones((len(rows), 1), dtype=np.int64),
        run_cut=np.zeros((len(rows), 1)),
        rank_modules=modules,
        rank_first=rows.position[:, None],
        rank_last=rows.position[:, None],
        run_recompute=np.full((len(rows), 1), -1),
        rank_recompute=np.full((len(rows), 1, 1), -1),
        rank_chunks=modules[:, :, None, :],
        rank_lengths=blocks.astype(np.int64),
        rank_repeats=np.ones(blocks.shape, dtype=np.int64),
        rank_stays=np.zeros(blocks.shape, dtype=np.bool_),
    )


def _step_end(
    model: MeshModel, rows: StageRows, memory: PipelineMemory, forward_s: FloatArray, backward_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Exposed exchange and update of every stage, as `costmodel.mesh.step` has them, with the way to unlike pipelines between.

    Where there are unlike pipelines, the replicas of a stage first reduce its gradients into shares, then the shares cross to the other
    pipelines, at last the replicas gather them (under ZeRO-1 the updated weights).
    """
    workload, assumptions = model.workload, model.assumptions
    if not workload.training:
        zero = np.zeros(len(rows))
        return zero, zero
    unlike, sharded = rows.shapes > 1, rows.zero_stage > 0
    batch = _batch(model, replace(rows, zero_stage=np.where(unlike | sharded, 1, 0)))
    division = Division.of(batch, strides(batch.order, batch.tp, batch.cp, batch.dp, rows.group_stages))
    place = model.groups.places(batch)
    times = CopyTimes.of(model.groups, division, place, has_experts=bool(np.any(memory.expert_bytes)))
    dense, experts = memory.dense_trainable, memory.expert_trainable
    wide = assumptions.gradient_width(workload.precision)
    both = dense * wide, experts * wide
    gradients = (both[0] + both[1])[:, 0]
    reduce = (times.reduce_s(*both) + times.replicate_s(*both))[:, 0]
    if assumptions.zero_whole:
        reduce = np.where(sharded & ~unlike, times.whole_s(*both)[:, 0], reduce)
    if np.any(unlike):
        shares = gradients * rows.tp / rows.fewest_ranks
        across = all_reduce_across_s(
            shares, rows.shapes.astype(np.float64), rows.cross_bytes_per_s, rows.cross_latency_s
        )
        back = np.where(sharded, 0.0, times.gather_s(*both)[:, 0])
        reduce = reduce + np.where(unlike, across + back, 0.0)
    kept, embedding = assumptions.hidden_share(sharded.astype(np.int64)), memory.embedding_trainable[:, 0]
    last = np.maximum(times.bucket_bytes[:, 0] / wide, embedding)
    exposed = exposed_exchange(assumptions, reduce, gradients, kept * backward_s, last * wide)
    precision = workload.precision
    moved = precision.sized(precision.gathered_bytes, dense, memory.narrow_trainable, experts)
    gather = times.gather_s(*moved, None if assumptions.zero_whole else both)[:, 0]
    last = last * precision.weight_bytes
    gathering = exposed_exchange(assumptions, gather, (moved[0] + moved[1])[:, 0], kept * forward_s, last)
    pieces = assumptions.shard_piece_s * rows.replicas * memory.tensors[:, 0]
    exposed = exposed + np.where(sharded, gathering + np.where(rows.replicas > 1, pieces, 0.0), 0.0)
    whole = (dense + experts)[:, 0]
    elements = whole / np.where(sharded, rows.replicas, 1)
    update = workload.compute.update_s(elements)
    update = update + gradient_passes_s(workload, model.groups, whole if assumptions.zero_whole else elements)
    bare_s = assumptions.host_launch_s * assumptions.bare_launch
    started = bare_s * assumptions.update_launches * memory.tensors[:, 0]
    return exposed, np.maximum(update, started)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """One stage of one pipeline of a plan."""

    pipeline: int
    stage: int
    group: int
    blocks: int
    forward_s: float  # per micro-batch, the transfer it waits for included
    backward_s: float  # recomputation and the transfer it waits for included
    compute_s: float
    tp_exposed_s: float
    recompute_s: float
    transfer_s: float
    exchange_s: float
    update_s: float
    memory_bytes: float
    capacity_bytes: float
    memory_parts: dict[str, float]


@with_columns(("step_time_s", *parts_of(MIXED_FIGURES.values(), "step_time_s"), "memory_bytes", "capacity_bytes"))
class MixedCosts(DeclaredColumns[np.float64]):
    """Costs of mixed plans; arrays (n,). Parts of the step are those of the busiest stage of the slowest pipeline.

    Memory is that of the stage that is fullest for its device, which holds ``capacity_bytes``.
    """

    @property
    def fits(self) -> BoolArray:
        """Whether the memory suffices."""
        return self.memory_bytes <= self.capacity_bytes


def pipeline_makespan_s(num_micro_batches: int | IntArray, forward_s: FloatArray, backward_s: FloatArray) -> FloatArray:
    """Time of the forwards and backwards of pipelines of the same length; arrays (n, S) of stage times, transfers included.

    >>> pipeline_makespan_s(8, np.array([[1.0] * 4]), np.array([[2.0] * 4])).tolist()  # (m + S - 1) (F + B)
    [33.0]
    """
    n, stages = forward_s.shape
    one = np.ones(n, dtype=np.int64)
    runs = ChunkRuns(count=np.ones((n, stages), dtype=np.int64), forward_s=forward_s, backward_s=backward_s)
    return makespan_s(ONE_F_ONE_B * one, num_micro_batches * one, stages * one, one, runs)


def tail_s(end_s: FloatArray, backward_s: FloatArray) -> FloatArray:
    """What the ends of the stages leave after the last backward pass, arrays (n, S).

    >>> tail_s(np.array([[1.0, 4.0, 6.0]]), np.array([[2.0, 3.0, 2.0]])).tolist()  # the second stage is done 2 after the first
    [2.0]
    """
    return np.asarray(np.maximum(np.max(end_s - slack_s(backward_s), axis=1), 0.0))


def slack_s(backward_s: FloatArray) -> FloatArray:
    """How long before the first stage each stage ends its backwards, at least: (n, S).

    The last micro-batch still has the stages before it to go back through, as in `costmodel.mesh.step`; recomputation and transfers count.
    """
    return np.asarray(np.cumsum(backward_s, axis=1) - backward_s)


def cost_plans(model: MixedModel, plans: Sequence[MixedPlan]) -> MixedCosts:
    """Score plans.

    Raises
    ------
    MeshError
        A plan breaks a rule.
    """
    for plan in plans:
        broken = broken_mixed_rules(model, plan)
        if broken:
            raise MixedError("; ".join(broken))
    found = _reports(model, plans)
    together = zip(plans, found, makespans(plans, found), strict=True)
    rows = [_combine(model, plan, reports, own_s) for plan, reports, own_s in together]
    return MixedCosts(
        **{item.name: np.array([row[item.name] for row in rows], dtype=np.float64) for item in fields(MixedCosts)}
    )


def stage_reports(model: MixedModel, plan: MixedPlan) -> list[StageReport]:
    """Every stage of every pipeline of a plan, one replica each."""
    return _reports(model, [plan])[0]


def _reports(model: MixedModel, plans: Sequence[MixedPlan]) -> list[list[StageReport]]:
    """Cost the stages of all plans, those of one group and format together."""
    wanted: dict[tuple[int, Precision], list[tuple[int, int, int, dict[str, float], FloatArray]]] = {}
    for n, plan in enumerate(plans):
        precision = model.precision_of(plan.groups)
        for p, pipeline in enumerate(plan.pipelines):
            modules = model.modules_of(pipeline)
            for s, stage in enumerate(pipeline.stages):
                row = (n, p, s, model.stage_values(plan, pipeline, s), modules[s])
                wanted.setdefault((stage.group, precision), []).append(row)
    found: dict[tuple[int, int, int], tuple[StageCosts, int]] = {}
    for (group, precision), entries in wanted.items():
        modules = np.stack([entry[4] for entry in entries])
        rows = StageRows.of(modules, {name: [entry[3][name] for entry in entries] for name in entries[0][3]})
        costs = cost_stages(model.group_model(group, precision), rows)
        for i, entry in enumerate(entries):
            found[entry[0], entry[1], entry[2]] = costs, i
    return [
        [
            _report(model, plan, p, s, *found[n, p, s])
            for p, pipeline in enumerate(plan.pipelines)
            for s in range(len(pipeline.stages))
        ]
        for n, plan in enumerate(plans)
    ]


def _report(model: MixedModel, plan: MixedPlan, p: int, s: int, costs: StageCosts, i: int) -> StageReport:
    pipeline = plan.pipelines[p]
    stage = pipeline.stages[s]
    received, returned = (move_s(model, plan, pipeline, x) for x in (s, s + 1))
    backward = float(costs.backward_s[i])
    returned = returned if backward > 0 else 0.0
    return StageReport(
        pipeline=p,
        stage=s,
        group=stage.group,
        blocks=stage.blocks,
        forward_s=float(costs.forward_s[i]) + received,
        backward_s=backward + returned,
        compute_s=float(costs.compute_s[i]),
        tp_exposed_s=float(costs.tp_exposed_s[i]),
        recompute_s=float(costs.recompute_s[i]),
        transfer_s=received + returned,
        exchange_s=float(costs.exchange_s[i]),
        update_s=float(costs.update_s[i]),
        memory_bytes=float(costs.memory_bytes[i]),
        capacity_bytes=float(model.cluster.groups[stage.group].device.capacity_bytes),
        memory_parts={name: float(value[i]) for name, value in costs.memory_parts.items()},
    )


def move_s(model: MixedModel, plan: MixedPlan, pipeline: MixedPipeline, s: int) -> float:
    """Transfer into stage s of a pipeline; its gradient takes as long on the way back."""
    if not 0 < s < len(pipeline.stages):
        return 0.0
    return float(model.transfers_s(plan, pipeline, s)[sum(stage.blocks for stage in pipeline.stages[:s])])


def makespans(plans: Sequence[MixedPlan], found: Sequence[list[StageReport]]) -> list[list[float]]:
    """Forwards and backwards of every pipeline, those of one length together."""
    by_length: dict[int, list[tuple[int, int, int, list[StageReport]]]] = {}
    result = [[0.0] * len(plan.pipelines) for plan in plans]
    for n, (plan, reports) in enumerate(zip(plans, found, strict=True)):
        start = 0
        for p, pipeline in enumerate(plan.pipelines):
            own = reports[start : start + len(pipeline.stages)]
            start += len(own)
            by_length.setdefault(len(own), []).append((n, p, pipeline.most_micro_batches, own))
    for entries in by_length.values():
        forward = np.array([[r.forward_s for r in own] for _, _, _, own in entries])
        backward = np.array([[r.backward_s for r in own] for _, _, _, own in entries])
        times = pipeline_makespan_s(np.array([m for _, _, m, _ in entries], dtype=np.int64), forward, backward)
        for (n, p, _, _), makespan in zip(entries, times, strict=True):
            result[n][p] = float(makespan)
    return result


def _combine(
    model: MixedModel, plan: MixedPlan, reports: list[StageReport], makespans: list[float]
) -> dict[str, float]:
    tails, updates, tied = [], [], 0.0
    for p, pipeline in enumerate(plan.pipelines):
        own = [r for r in reports if r.pipeline == p]
        ends = np.array([[r.exchange_s + r.update_s for r in own]])
        backward = np.array([[r.backward_s for r in own]])
        tails.append(float(tail_s(ends, backward)[0]))
        updates.append(own[int(np.argmax(ends[0] - slack_s(backward)[0]))].update_s)
        tied = max(tied, model.tied_s(plan, pipeline))
    slowest, last = int(np.argmax(makespans)), int(np.argmax(tails))
    makespan, tail = makespans[slowest], tails[last]
    busiest = max((r for r in reports if r.pipeline == slowest), key=lambda r: r.forward_s + r.backward_s)
    m = plan.pipelines[slowest].most_micro_batches
    update = min(updates[last], tail)
    fullest = max(reports, key=lambda r: r.memory_bytes / r.capacity_bytes)
    return {
        "step_time_s": makespan + tail + tied,
        "compute_s": m * busiest.compute_s,
        "recompute_s": m * busiest.recompute_s,
        "tp_exposed_s": m * busiest.tp_exposed_s,
        "pp_exposed_s": m * busiest.transfer_s,
        "bubble_s": makespan - m * (busiest.forward_s + busiest.backward_s),
        "dp_exposed_s": tail - update + tied,
        "optimizer_s": update,
        "memory_bytes": fullest.memory_bytes,
        "capacity_bytes": fullest.capacity_bytes,
    }


def broken_mixed_rules(model: MixedModel, plan: MixedPlan) -> list[str]:
    """Messages of the rules that a plan breaks; empty for a legal plan."""
    names, shape, messages = group_names(model.cluster), model.shape, []
    if not plan.pipelines or any(not pipeline.stages for pipeline in plan.pipelines):
        return ["a plan needs at least one pipeline, and every pipeline a stage"]
    unknown = [g for g in plan.groups if not 0 <= g < len(names)]
    if unknown:
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(names))
        return [f"there is no group {unknown[0]}; cluster '{model.cluster.name}' has {known}"]
    for group in plan.groups:
        available = model.cluster.groups[group].num_devices or 0
        if plan.devices_of(group) > available:
            messages.append(
                f"the plan uses {plan.devices_of(group)} devices of group '{names[group]}', which has {available}"
            )
    if plan.order not in MIXED_ORDERS or plan.zero_stage not in (0, 1):
        messages.append(
            f"order {plan.order} and zero stage {plan.zero_stage}: expected one of {', '.join(MIXED_ORDERS)}, and 0 or 1"
        )
    if plan.global_batch != shape.global_batch:
        messages.append(
            f"the shares of the pipelines add up to {plan.global_batch} samples, not the global batch {shape.global_batch}"
        )
    for p, pipeline in enumerate(plan.pipelines):
        messages += [f"pipeline {p}: {text}" for text in _pipeline_faults(pipeline, shape.num_blocks)]
    for tp in sorted({stage.tp for pipeline in plan.pipelines for stage in pipeline.stages}):
        messages += model.degree_faults(tp, sequence_parallel=plan.sequence_parallel)
    return messages


def _pipeline_faults(pipeline: MixedPipeline, num_blocks: int) -> list[str]:
    total = sum(stage.blocks for stage in pipeline.stages)
    faults = []
    if total != num_blocks or min(stage.blocks for stage in pipeline.stages) < 1:
        faults.append(
            f"its stages hold {total} blocks, the network has {num_blocks}, and every stage needs at least one"
        )
    if (
        min(pipeline.replicas, pipeline.micro_batch, pipeline.num_micro_batches) < 1
        or not 0 <= pipeline.longer < pipeline.replicas
    ):
        faults.append(
            "replicas, micro_batch and num_micro_batches start at 1, longer is at least 0 and less than replicas"
        )
    for stage in pipeline.stages:
        if stage.recompute not in RECOMPUTE:
            faults.append(f"recompute '{stage.recompute}' is none of {', '.join(RECOMPUTE)}")
        elif not (
            1 <= stage.recompute_blocks <= stage.blocks if stage.recompute == "full" else stage.recompute_blocks == 0
        ):
            faults.append(
                f"recompute_blocks {stage.recompute_blocks} with recompute {stage.recompute} on a stage of {stage.blocks} blocks"
            )
    return faults


def group_computing_s(plan: MixedPlan, reports: Sequence[StageReport], step_s: float) -> dict[int, float]:
    """Time that a device of each group in use computes in a step, averaged over the group's devices.

        computing = sum over the stages of a group tp (micro-batches compute + replicas update) / devices

    with the micro-batches of all replicas of a stage, and what is recomputed in *compute* (with its communication).

    Parameters
    ----------
    plan : MixedPlan
    reports : sequence of StageReport
        Of the plan's stages.
    step_s : float
    """
    total = dict.fromkeys(plan.groups, 0.0)
    for report in reports:
        pipeline = plan.pipelines[report.pipeline]
        done = pipeline.replicas * pipeline.num_micro_batches + pipeline.longer
        each_s = done * (report.compute_s + report.recompute_s) + pipeline.replicas * report.update_s
        total[report.group] += pipeline.stages[report.stage].tp * each_s
    return {group: min(seconds / plan.devices_of(group), step_s) for group, seconds in total.items()}


def mixed_costs(
    cluster: Cluster, plan: MixedPlan, reports: Sequence[StageReport], step_s: float, compute: str
) -> Mapping[str, float | None]:
    """What a step costs (`costmodel.objectives.step_costs`): USD, joules, ...; None where a device in use does not state it."""
    used = [
        (cluster.groups[group].device, cluster.host, computing_s, plan.devices_of(group))
        for group, computing_s in group_computing_s(plan, reports, step_s).items()
    ]
    return step_costs(used, step_s, compute)
