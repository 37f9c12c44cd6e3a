"""The judge of mixed plans: one network on a cluster of several device groups.

    step = slowest pipeline (1F1B over stages of any length) + what exchange and update leave behind the last backward pass

Stage times and memory come from the mesh model of each group (`costmodel.mixed.stage_costs`), transfers from the link that really joins two
stages (`costmodel.mixed.links`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.groups import GroupTimes, strides
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import ORDERS, RECOMPUTE, SCHEDULES, MeshBatch, MeshPlan
from costmodel.mesh.rules import NetworkShape, broken_rules
from costmodel.mesh.schedule import ChunkRuns, flush_s
from costmodel.mesh.units import Units, fold
from costmodel.mixed.links import Crossing, MixedError, all_reduce_across_s, check_groups, crossing, group_cluster
from costmodel.mixed.plan import MIXED_ORDERS, MixedPipeline, MixedPlan, MixedStage, group_names
from costmodel.mixed.stage_costs import StageCosts, StageRows, cost_stages
from costmodel.network import Cluster
from costmodel.precision import PRECISIONS, Precision
from costmodel.roofline import RooflineCompute
from costmodel.workload import Workload

__all__ = ["MixedCosts", "MixedModel", "StageReport", "cost_plans", "evaluate_mixed", "pipeline_flush_s", "tail_s"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_1F1B = SCHEDULES.index("1f1b")
# What to compute in where a device lacks a format: the next with the same range or, at last, the same width.
_FALLBACKS: dict[str, tuple[str, ...]] = {"fp8": ("bf16", "fp16", "fp32"), "bf16": ("fp16", "fp32"), "fp16": ("bf16", "fp32"), "tf32": ("fp32",)}


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
    plain_backward_s: float
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
    fits: NDArray[np.bool_]


@dataclass(slots=True, kw_only=True)
class _Cache:
    models: dict[tuple[int, str], MeshModel] = field(default_factory=dict)
    groups: dict[int, GroupTimes] = field(default_factory=dict)
    precisions: dict[tuple[int, ...], Precision] = field(default_factory=dict)
    crossings: dict[tuple[tuple[int, ...], tuple[int, ...]], Crossing] = field(default_factory=dict)
    transfers: dict[tuple[object, ...], FloatArray] = field(default_factory=dict)  # per cut
    tied: dict[tuple[object, ...], float] = field(default_factory=dict)
    faults: dict[tuple[int, bool], list[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedModel:
    """A network on a cluster with one or several device groups, ready to cost mixed plans."""

    workload: Workload
    cluster: Cluster
    units: Units
    shape: NetworkShape
    assumptions: MeshAssumptions = MeshAssumptions()
    _cache: _Cache = field(default_factory=_Cache, repr=False, compare=False)

    @classmethod
    def build(cls, workload: Workload, cluster: Cluster, assumptions: MeshAssumptions = MeshAssumptions()) -> MixedModel:
        """Fold the network and check the groups.

        Raises
        ------
        MeshError
            The network has no repeated blocks, a group does not fill whole units, or the cost preset knows one device only.
        """
        if not isinstance(workload.compute, RooflineCompute):
            raise MixedError(f"several kinds of devices need the roofline cost model, not '{workload.compute.name}'")
        check_groups(cluster)
        units = fold(workload.graph)
        shape = NetworkShape.of(workload.graph, units, workload.global_batch)
        return cls(workload=workload, cluster=cluster, units=units, shape=shape, assumptions=assumptions)

    def precision_of(self, groups: Sequence[int]) -> Precision:
        """The format that a plan over some groups computes in: the job's, or the best that all its devices have.

        Gradients are added up across groups, so that all use the same: V100 has no bf16, and with it A100 runs fp16 (with loss scaling), too.
        """
        key = tuple(groups)
        found = self._cache.precisions.get(key)
        if found is None:
            found = self._cache.precisions[key] = self._best_precision(key)
        return found

    def _best_precision(self, groups: tuple[int, ...]) -> Precision:
        wanted = self.workload.precision
        shared = frozenset.intersection(*(self.cluster.groups[g].device.formats for g in groups))
        for name in (wanted.compute, *_FALLBACKS.get(wanted.compute, ())):
            if name in shared:
                return wanted if name == wanted.compute else PRECISIONS[name]
        raise MixedError(f"no number format for all of {', '.join(group_names(self.cluster)[g] for g in groups)}")

    def group_model(self, group: int, precision: Precision) -> MeshModel:
        """The mesh model of one group alone."""
        key = group, precision.name
        found = self._cache.models.get(key)
        if found is None:
            assert isinstance(self.workload.compute, RooflineCompute)
            compute = replace(self.workload.compute, device=self.cluster.groups[group].device, precision=precision)
            workload = replace(self.workload, precision=precision, compute=compute)
            found = MeshModel(workload=workload, groups=self._group_times(group), units=self.units)
            self._cache.models[key] = found
        return found

    def expert_tp(self, tp: int) -> int:
        """Experts are split like the other matrices, where their width allows."""
        return tp if self.shape.experts and all(width % tp == 0 for width in self.shape.expert_widths) else 1

    @staticmethod
    def is_sequence_parallel(tp: int, wanted: bool) -> bool:
        """Whether a stage cuts tensors along the positions."""
        return wanted and tp > 1

    def degree_faults(self, tp: int, *, sequence_parallel: bool) -> list[str]:
        """Rules of the network that a tensor-parallel degree breaks."""
        found = self._cache.faults.get((tp, sequence_parallel))
        if found is None:
            sequence = self.is_sequence_parallel(tp, sequence_parallel)
            batch = self.shape.global_batch
            plan = MeshPlan(tp=tp, sequence_parallel=sequence, etp=self.expert_tp(max(tp, 1)), num_micro_batches=batch)
            found = self._cache.faults[tp, sequence_parallel] = broken_rules(self.shape, plan)
        return found

    # -- rows of stages -------------------------------------------------------------------------------------------------

    def stage_values(self, plan: MixedPlan, pipeline: MixedPipeline, s: int) -> dict[str, float]:
        """Everything of a `StageRows` row but its units."""
        stage = pipeline.stages[s]
        link_rate, link_latency = 1.0, 0.0
        if len(plan.pipelines) > 1:
            link = self.crossing(plan.groups, tuple(plan.devices_of(g) for g in plan.groups))
            link_rate, link_latency = link.bytes_per_s, link.latency_s
        return {
            "tp": stage.tp,
            "sequence_parallel": int(self.is_sequence_parallel(stage.tp, plan.sequence_parallel)),
            "etp": self.expert_tp(stage.tp),
            "micro_batch": pipeline.micro_batch,
            "num_micro_batches": pipeline.most_micro_batches,
            "recompute": RECOMPUTE.index(stage.recompute),
            "recompute_blocks": stage.recompute_blocks,
            "zero_stage": plan.zero_stage if pipeline.replicas > 1 else 0,
            "stages": len(pipeline.stages),
            "position": s,
            "group_stages": pipeline.stages_of(stage.group),
            "replicas": pipeline.replicas,
            "order": ORDERS.index(plan.order),
            "shapes": len(plan.pipelines),
            "fewest_ranks": min(p.replicas * x.tp for p in plan.pipelines for x in p.stages),
            "cross_bytes_per_s": link_rate,
            "cross_latency_s": link_latency,
        }

    def units_of(self, pipeline: MixedPipeline) -> FloatArray:
        """Units of each kind per stage: (S, K)."""
        kinds = np.zeros((len(pipeline.stages), len(self.units.kinds)))
        start = 1
        for s, stage in enumerate(pipeline.stages):
            for unit in range(start, start + stage.blocks):
                kinds[s, self.units.kind_of[unit]] += 1
            start += stage.blocks
        kinds[0, self.units.kind_of[0]] += 1
        kinds[-1, self.units.kind_of[-1]] += 1
        return kinds

    def crossing(self, groups: tuple[int, ...], flows: tuple[int, ...]) -> Crossing:
        """The link between groups; see `costmodel.mixed.links.crossing`."""
        found = self._cache.crossings.get((groups, flows))
        if found is None:
            found = self._cache.crossings[groups, flows] = crossing(self.cluster, groups, flows)
        return found

    def transfers_s(self, plan: MixedPlan, pipeline: MixedPipeline, s: int) -> FloatArray:
        """Time to send what crosses a cut from stage ``s - 1`` to stage ``s``, for every cut that a stage could start at: (blocks + 1,).

        Every rank sends its share (sequence parallel) or the whole; in the latter case a rank that has several counterparts serves them one after the other.
        """
        sender, receiver = pipeline.stages[s - 1], pipeline.stages[s]
        near = pipeline.stages_of(sender.group) if sender.group == receiver.group else 0
        ends = (sender.group, sender.tp, receiver.group, receiver.tp)
        key = (*ends, near, pipeline.replicas, pipeline.micro_batch, plan.order, plan.sequence_parallel, self.precision_of(plan.groups).name)
        found = self._cache.transfers.get(key)
        if found is None:
            found = self._cache.transfers[key] = self._transfers_s(plan, pipeline, s)
        return found

    def _transfers_s(self, plan: MixedPlan, pipeline: MixedPipeline, s: int) -> FloatArray:
        sender, receiver = pipeline.stages[s - 1], pipeline.stages[s]
        low, high = sorted((sender.tp, receiver.tp))
        share = 1.0 / low if plan.sequence_parallel else float(-(-high // low))
        width = self.precision_of(plan.groups).activation_bytes
        message = np.array(self.units.cut_elements[1:], dtype=np.float64) * (pipeline.micro_batch * share * width)
        if sender.group == receiver.group:
            one = np.ones(len(message), dtype=np.int64)
            order, tp = ORDERS.index(plan.order) * one, high * one
            stride = strides(order, tp, one, pipeline.replicas * one, pipeline.stages_of(sender.group) * one)["pp"]
            groups = self._group_times(sender.group)
            time = groups.time_s("point_to_point", groups.find(2 * one, stride), message)
        else:
            link = self.crossing((sender.group, receiver.group), (sender.tp * pipeline.replicas, receiver.tp * pipeline.replicas))
            time = np.where(message > 0, message / link.bytes_per_s + link.latency_s, 0.0)
        return np.asarray(time * (1.0 - self.assumptions.pp_overlap))

    def _group_times(self, group: int) -> GroupTimes:
        found = self._cache.groups.get(group)
        if found is None:
            found = GroupTimes(cluster=group_cluster(self.cluster, group), assumptions=self.assumptions)
            self._cache.groups[group] = found
        return found

    def tied_s(self, plan: MixedPlan, pipeline: MixedPipeline) -> float:
        """The first and the last stage of a pipeline add up the gradients of the embedding that they share."""
        first, last, count = pipeline.stages[0], pipeline.stages[-1], len(pipeline.stages)
        if count == 1 or not self.workload.training:
            return 0.0
        inside = pipeline.stages_of(first.group) == count
        ends = (first.group, first.tp, last.group, last.tp)
        key = (*ends, count if inside else 0, pipeline.replicas, plan.order, plan.sequence_parallel, self.precision_of(plan.groups).name)
        found = self._cache.tied.get(key)
        if found is None:
            found = self._cache.tied[key] = self._tied_s(plan, pipeline)
        return found

    def _tied_s(self, plan: MixedPlan, pipeline: MixedPipeline) -> float:
        first, last = pipeline.stages[0], pipeline.stages[-1]
        precision = self.precision_of(plan.groups)
        width = max(self.assumptions.main_gradient_bytes, float(precision.gradient_bytes))
        message = 0.0
        for stage in (first, last):
            sequence = int(self.is_sequence_parallel(stage.tp, plan.sequence_parallel))
            keys = MeshPlan(tp=stage.tp, sequence_parallel=bool(sequence), etp=self.expert_tp(stage.tp))
            table = self.group_model(stage.group, precision).rows(MeshBatch.from_plans([keys]))
            message = max(message, float(np.max(table.tied_count)) * width)
        if not message:
            return 0.0
        if first.group == last.group and pipeline.stages_of(first.group) == len(pipeline.stages):
            one = np.ones(1, dtype=np.int64)
            count = len(pipeline.stages)
            near = strides(ORDERS.index(plan.order) * one, first.tp * one, one, pipeline.replicas * one, count * one)["pp"]
            groups = self._group_times(first.group)
            return float(groups.time_s("all_reduce", groups.find(2 * one, near * (count - 1)), np.array([message]))[0])
        link = self.crossing((first.group, last.group), (first.tp * pipeline.replicas, last.tp * pipeline.replicas))
        return float(all_reduce_across_s(message, 2, link.bytes_per_s, link.latency_s))

    # -- plans ----------------------------------------------------------------------------------------------------------

    def broken_rules(self, plan: MixedPlan) -> list[str]:
        """Messages of the rules that a plan breaks; empty for a legal plan."""
        return _broken_rules(self, plan)

    def stages_of(self, plan: MixedPlan) -> list[StageReport]:
        """Every stage of every pipeline of a plan, one replica each."""
        return _reports(self, [plan])[0]


def pipeline_flush_s(num_micro_batches: int | IntArray, forward_s: FloatArray, backward_s: FloatArray) -> FloatArray:
    """Time of the forwards and backwards of pipelines of the same length; arrays (n, S) of stage times, transfers included.

    >>> pipeline_flush_s(8, np.array([[1.0] * 4]), np.array([[2.0] * 4])).tolist()  # (m + S - 1) (F + B)
    [33.0]
    """
    n, stages = forward_s.shape
    one = np.ones(n, dtype=np.int64)
    runs = ChunkRuns(count=np.ones((n, stages), dtype=np.int64), forward_s=forward_s, backward_s=backward_s)
    return flush_s(_1F1B * one, num_micro_batches * one, stages * one, one, runs)


def tail_s(end_s: FloatArray, plain_backward_s: FloatArray) -> FloatArray:
    """What the ends of the stages leave behind the last backward pass: stage s ends s (shortest) backwards before the first. Arrays (n, S)."""
    slack = np.arange(end_s.shape[1]) * np.min(plain_backward_s, axis=1, keepdims=True)
    return np.asarray(np.maximum(np.max(end_s - slack, axis=1), 0.0))


def evaluate_mixed(
    workload: Workload, cluster: Cluster, plans: Sequence[MixedPlan], assumptions: MeshAssumptions = MeshAssumptions()
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
        broken = model.broken_rules(plan)
        if broken:
            raise MixedError("; ".join(broken))
    found = _reports(model, plans)
    flushes = _flushes(plans, found)
    rows = [_combine(model, plan, reports, own) for plan, reports, own in zip(plans, found, flushes, strict=True)]
    columns = {item.name: np.array([row[item.name] for row in rows], dtype=np.float64) for item in fields(MixedCosts)}
    fits = columns.pop("fits") > 0
    return MixedCosts(fits=fits, **columns)


def _reports(model: MixedModel, plans: Sequence[MixedPlan]) -> list[list[StageReport]]:
    """Cost the stages of all plans, those of one group and format together."""
    wanted: dict[tuple[int, str], list[tuple[int, int, int, dict[str, float], FloatArray]]] = {}
    for n, plan in enumerate(plans):
        precision = model.precision_of(plan.groups)
        for p, pipeline in enumerate(plan.pipelines):
            units = model.units_of(pipeline)
            for s, stage in enumerate(pipeline.stages):
                row = (n, p, s, model.stage_values(plan, pipeline, s), units[s])
                wanted.setdefault((stage.group, precision.name), []).append(row)
    found: dict[tuple[int, int, int], tuple[StageCosts, int]] = {}
    for (group, precision_name), entries in wanted.items():
        units = np.stack([entry[4] for entry in entries])
        columns = {name: np.array([entry[3][name] for entry in entries]) for name in entries[0][3]}
        typed = {name: value if name.startswith("cross") else value.astype(np.int64) for name, value in columns.items()}
        costs = cost_stages(model.group_model(group, _precision(model, precision_name)), StageRows(units=units, **typed))
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
    received, returned = (_move_s(model, plan, pipeline, x) for x in (s, s + 1))
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
        plain_backward_s=float(costs.plain_backward_s[i]),
        exchange_s=float(costs.exchange_s[i]),
        update_s=float(costs.update_s[i]),
        memory_bytes=float(costs.memory_bytes[i]),
        capacity_bytes=float(model.cluster.groups[stage.group].device.memory_bytes),
        memory_parts={name: float(value[i]) for name, value in costs.memory_parts.items()},
    )


def _move_s(model: MixedModel, plan: MixedPlan, pipeline: MixedPipeline, s: int) -> float:
    """Transfer into stage s of a pipeline; its gradient takes as long on the way back."""
    if not 0 < s < len(pipeline.stages):
        return 0.0
    return float(model.transfers_s(plan, pipeline, s)[sum(stage.blocks for stage in pipeline.stages[:s])])


def _flushes(plans: Sequence[MixedPlan], found: Sequence[list[StageReport]]) -> list[list[float]]:
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
        times = pipeline_flush_s(np.array([m for _, _, m, _ in entries], dtype=np.int64), forward, backward)
        for (n, p, _, _), flush in zip(entries, times, strict=True):
            result[n][p] = float(flush)
    return result


def _combine(model: MixedModel, plan: MixedPlan, reports: list[StageReport], flushes: list[float]) -> dict[str, float]:
    tails, tied = [], 0.0
    for p, pipeline in enumerate(plan.pipelines):
        own = [r for r in reports if r.pipeline == p]
        ends = np.array([[r.exchange_s + r.update_s for r in own]])
        tails.append(float(tail_s(ends, np.array([[r.plain_backward_s for r in own]]))[0]))
        tied = max(tied, model.tied_s(plan, pipeline))
    slowest, last = int(np.argmax(flushes)), int(np.argmax(tails))
    flush, tail = flushes[slowest], tails[last]
    busiest = max((r for r in reports if r.pipeline == slowest), key=lambda r: r.forward_s + r.backward_s)
    m = plan.pipelines[slowest].most_micro_batches
    update = min(max(r.update_s for r in reports if r.pipeline == last), tail)
    fullest = max(reports, key=lambda r: r.memory_bytes / r.capacity_bytes)
    return {
        "step_time_s": flush + tail + tied,
        "compute_s": m * busiest.compute_s,
        "recompute_s": m * busiest.recompute_s,
        "tp_exposed_s": m * busiest.tp_exposed_s,
        "pp_exposed_s": m * busiest.transfer_s,
        "bubble_s": flush - m * (busiest.forward_s + busiest.backward_s),
        "dp_exposed_s": tail - update + tied,
        "optimizer_s": update,
        "memory_bytes": fullest.memory_bytes,
        "capacity_bytes": fullest.capacity_bytes,
        "fits": float(fullest.memory_bytes <= fullest.capacity_bytes),
    }


def _broken_rules(model: MixedModel, plan: MixedPlan) -> list[str]:
    names, shape, messages = group_names(model.cluster), model.shape, []
    if not plan.pipelines or any(not pipeline.stages for pipeline in plan.pipelines):
        return ["a plan needs at least one pipeline, and every pipeline a stage"]
    unknown = [g for g in plan.groups if not 0 <= g < len(names)]
    if unknown:
        return [f"there is no group {unknown[0]}; cluster '{model.cluster.name}' has {', '.join(f'{i} ({n})' for i, n in enumerate(names))}"]
    for group in plan.groups:
        available = model.cluster.groups[group].num_devices or 0
        if plan.devices_of(group) > available:
            messages.append(f"the plan uses {plan.devices_of(group)} devices of group '{names[group]}', which has {available}")
    if plan.order not in MIXED_ORDERS or plan.zero_stage not in (0, 1):
        messages.append(f"order {plan.order} and zero stage {plan.zero_stage}: expected one of {', '.join(MIXED_ORDERS)}, and 0 or 1")
    if plan.global_batch != shape.global_batch:
        messages.append(f"the shares of the pipelines add up to {plan.global_batch} samples, not the global batch {shape.global_batch}")
    for p, pipeline in enumerate(plan.pipelines):
        messages += [f"pipeline {p}: {text}" for text in _pipeline_faults(pipeline, shape.num_blocks)]
    for tp in sorted({stage.tp for pipeline in plan.pipelines for stage in pipeline.stages}):
        messages += model.degree_faults(tp, sequence_parallel=plan.sequence_parallel)
    return messages


def _pipeline_faults(pipeline: MixedPipeline, num_blocks: int) -> list[str]:
    total = sum(stage.blocks for stage in pipeline.stages)
    faults = []
    if total != num_blocks or min(stage.blocks for stage in pipeline.stages) < 1:
        faults.append(f"its stages hold {total} blocks, the network has {num_blocks}, and every stage needs at least one")
    if min(pipeline.replicas, pipeline.micro_batch, pipeline.num_micro_batches) < 1 or not 0 <= pipeline.longer < pipeline.replicas:
        faults.append("replicas, micro_batch and num_micro_batches start at 1, longer is at least 0 and less than replicas")
    for stage in pipeline.stages:
        if stage.recompute not in RECOMPUTE:
            faults.append(f"recompute '{stage.recompute}' is none of {', '.join(RECOMPUTE)}")
        elif not (1 <= stage.recompute_blocks <= stage.blocks if stage.recompute == "full" else stage.recompute_blocks == 0):
            faults.append(f"recompute_blocks {stage.recompute_blocks} with recompute {stage.recompute} on a stage of {stage.blocks} blocks")
    return faults
