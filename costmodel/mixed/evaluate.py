"""The cost model of mixed plans: step time, memory, money and energy of plans that keep the rules.

    step = slowest pipeline (1F1B over stages of any length) + what exchange and update leave after the last backward pass

Stage times and memory come from the mesh model of each group (`costmodel.mixed.stage_costs`), transfers from the link that really joins two
stages (`costmodel.mixed.links`).
Every group has its own price and power (`costmodel.hardware.energy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.energy import Power, money_of
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.plan import RECOMPUTE, SCHEDULES
from costmodel.mesh.schedule import ChunkRuns, makespan_s
from costmodel.mixed.links import MixedError
from costmodel.mixed.model import NO_OTHER_ASSUMPTIONS, MixedModel
from costmodel.mixed.plan import MIXED_ORDERS, MixedPipeline, MixedPlan, group_names
from costmodel.mixed.stage_costs import StageCosts, StageRows, cost_stages
from costmodel.precision import PRECISIONS, Precision
from costmodel.workload import Workload

__all__ = [
    "MixedCosts",
    "StageReport",
    "broken_mixed_rules",
    "cost_plans",
    "evaluate_mixed",
    "mixed_energy_j",
    "mixed_money",
    "move_s",
    "passes_s",
    "pipeline_makespan_s",
    "slack_s",
    "stage_reports",
    "tail_s",
]


_1F1B = SCHEDULES.index("1f1b")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedCosts:
    """Costs of mixed plans; arrays (n,). The times but step_time_s add up to it."""

    step_time_s: FloatArray
    compute_s: FloatArray  # of the busiest stage of the slowest pipeline
    recompute_s: FloatArray
    tp_exposed_s: FloatArray
    pp_exposed_s: FloatArray
    bubble_s: FloatArray
    dp_exposed_s: FloatArray
    optimizer_s: FloatArray
    memory_bytes: FloatArray  # of the stage that is fullest for its device
    capacity_bytes: FloatArray  # of that device
    fits: BoolArray


def pipeline_makespan_s(num_micro_batches: int | IntArray, forward_s: FloatArray, backward_s: FloatArray) -> FloatArray:
    """Time of the forwards and backwards of pipelines of the same length; arrays (n, S) of stage times, transfers included.

    >>> pipeline_makespan_s(8, np.array([[1.0] * 4]), np.array([[2.0] * 4])).tolist()  # (m + S - 1) (F + B)
    [33.0]
    """
    n, stages = forward_s.shape
    one = np.ones(n, dtype=np.int64)
    runs = ChunkRuns(count=np.ones((n, stages), dtype=np.int64), forward_s=forward_s, backward_s=backward_s)
    return makespan_s(_1F1B * one, num_micro_batches * one, stages * one, one, runs)


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


def evaluate_mixed(
    workload: Workload,
    cluster: Cluster,
    plans: Sequence[MixedPlan],
    assumptions: MeshAssumptions = NO_OTHER_ASSUMPTIONS,
) -> MixedCosts:
    """Score mixed plans.

    Parameters
    ----------
    workload : Workload
        Its compute model's device is replaced by each group's own.
    cluster : Cluster
    plans : sequence of MixedPlan
    assumptions : MeshAssumptions

    Returns
    -------
    MixedCosts

    Raises
    ------
    MeshError
        The network or the cluster cannot be planned like this, or a plan breaks a rule.
    """
    return cost_plans(MixedModel.build(workload, cluster, assumptions), plans)


def cost_plans(model: MixedModel, plans: Sequence[MixedPlan]) -> MixedCosts:
    """Score plans with a model that is there already; see `evaluate_mixed`."""
    for plan in plans:
        broken = broken_mixed_rules(model, plan)
        if broken:
            raise MixedError("; ".join(broken))
    found = _reports(model, plans)
    makespans = _makespans(plans, found)
    rows = [_combine(model, plan, reports, own) for plan, reports, own in zip(plans, found, makespans, strict=True)]
    columns = {item.name: np.array([row[item.name] for row in rows], dtype=np.float64) for item in fields(MixedCosts)}
    fits = columns.pop("fits") > 0
    return MixedCosts(fits=fits, **columns)


def stage_reports(model: MixedModel, plan: MixedPlan) -> list[StageReport]:
    """Every stage of every pipeline of a plan, one replica each."""
    return _reports(model, [plan])[0]


def _reports(model: MixedModel, plans: Sequence[MixedPlan]) -> list[list[StageReport]]:
    """Cost the stages of all plans, those of one group and format together."""
    wanted: dict[tuple[int, str], list[tuple[int, int, int, dict[str, float], FloatArray]]] = {}
    for n, plan in enumerate(plans):
        precision = model.precision_of(plan.groups)
        for p, pipeline in enumerate(plan.pipelines):
            modules = model.modules_of(pipeline)
            for s, stage in enumerate(pipeline.stages):
                row = (n, p, s, model.stage_values(plan, pipeline, s), modules[s])
                wanted.setdefault((stage.group, precision.name), []).append(row)
    found: dict[tuple[int, int, int], tuple[StageCosts, int]] = {}
    for (group, precision_name), entries in wanted.items():
        modules = np.stack([entry[4] for entry in entries])
        rows = StageRows.of(modules, {name: [entry[3][name] for entry in entries] for name in entries[0][3]})
        costs = cost_stages(model.group_model(group, _precision(model, precision_name)), rows)
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


def _precision(model: MixedModel, name: str) -> Precision:
    return model.workload.precision if model.workload.precision.name == name else PRECISIONS[name]


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


def passes_s(pipeline: MixedPipeline, reports: Sequence[StageReport]) -> float:
    """When the busiest replica of a pipeline has done its forwards and backwards, from the reports of its stages."""
    forward, backward = np.array([[r.forward_s for r in reports]]), np.array([[r.backward_s for r in reports]])
    return float(pipeline_makespan_s(np.array([pipeline.most_micro_batches]), forward, backward)[0])


def _makespans(plans: Sequence[MixedPlan], found: Sequence[list[StageReport]]) -> list[list[float]]:
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
        "fits": float(fullest.memory_bytes <= fullest.capacity_bytes),
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


def mixed_money(cluster: Cluster, plan: MixedPlan, step_s: float) -> float | None:
    """USD of a step; None where a device in use states no price."""
    parts = [money_of(cluster.groups[g].device, step_s, plan.devices_of(g)) for g in plan.groups]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def mixed_energy_j(cluster: Cluster, plan: MixedPlan, reports: Sequence[StageReport], step_s: float) -> float | None:
    """Joules of a step; None where a device in use states no power.

        energy = sum over groups [ devices (idle + host) step + (busy - idle) computing ]
        computing = sum over the stages of a group tp (micro-batches compute + replicas update)

    with the micro-batches of all replicas of a stage, and what is recomputed in *compute* (with its communication).

    Parameters
    ----------
    cluster : Cluster
    plan : MixedPlan
    reports : sequence of StageReport
        Of the plan's stages.
    step_s : float
    """
    total = 0.0
    for group in plan.groups:
        power = Power.of(cluster.groups[group].device, cluster.host)
        if power is None:
            return None
        computing_s = 0.0
        for report in reports:
            if report.group == group:
                pipeline = plan.pipelines[report.pipeline]
                done = pipeline.replicas * pipeline.num_micro_batches + pipeline.longer
                each_s = done * (report.compute_s + report.recompute_s) + pipeline.replicas * report.update_s
                computing_s += pipeline.stages[report.stage].tp * each_s
        devices = plan.devices_of(group)
        total += float(power.energy_j(step_s, min(computing_s / devices, step_s), devices))
    return total
