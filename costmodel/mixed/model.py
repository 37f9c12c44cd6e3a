"""A network on a cluster of several device groups: what its stages and the links between them are made of.

`costmodel.mixed.evaluate` puts plans together from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.hardware.cluster import Cluster
from costmodel.kernels.roofline import RooflineCompute
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.communication import GroupTimes, strides
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import Modules, fold
from costmodel.mesh.plan import ORDERS, RECOMPUTE, MeshBatch, MeshPlan
from costmodel.mesh.rules import NetworkShape, broken_rules
from costmodel.mixed.plan import (
    Crossing,
    MixedError,
    MixedPipeline,
    MixedPlan,
    MixedStage,
    all_reduce_across_s,
    check_groups,
    crossing,
    group_cluster,
)
from costmodel.network.graph import once
from costmodel.precision import PRECISIONS, Precision
from costmodel.workload import Workload


# What to compute in where a device lacks a format: the next with the same range or, at last, the same width.
@dataclass(slots=True, kw_only=True)
class _Cache:
    models: dict[tuple[int, str], MeshModel] = field(default_factory=dict)
    groups: dict[tuple[int, str], GroupTimes] = field(default_factory=dict)
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
    modules: Modules
    shape: NetworkShape
    assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS
    _cache: _Cache = field(default_factory=_Cache, repr=False, compare=False)

    @classmethod
    def build(
        cls, workload: Workload, cluster: Cluster, assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS
    ) -> MixedModel:
        """Fold the network and check the groups.

        Raises
        ------
        MeshError
            The network has no repeated blocks, a group does not fill whole units of a level, or the cost preset knows one device only.
        """
        if not isinstance(workload.compute, RooflineCompute):
            raise MixedError(f"several kinds of devices need the roofline cost model, not '{workload.compute.name}'")
        check_groups(cluster)
        modules = fold(workload.graph)
        shape = NetworkShape.of(workload.graph, modules, workload.global_batch)
        return cls(workload=workload, cluster=cluster, modules=modules, shape=shape, assumptions=assumptions)

    def with_constants(self, cluster: Cluster, assumptions: MeshAssumptions) -> MixedModel:
        """The same network on the same groups where other constants hold; what they do not touch is not costed again."""
        changed = replace(self, cluster=cluster, assumptions=assumptions, _cache=_Cache())
        changed._cache.precisions |= self._cache.precisions
        for (group, name), known in self._cache.models.items():
            workload = changed._workload_of(group, known.workload.precision)
            assumed = changed.assumptions_in(known.workload.precision)
            model = known.with_constants(workload, group_cluster(cluster, group), assumed)
            changed._cache.models[group, name] = model
            changed._cache.groups[group, name] = model.groups
        return changed

    def precision_of(self, groups: Sequence[int]) -> Precision:
        """The format that a plan over some groups computes in: the job's, or the best that all its devices have.

        Gradients are added up across groups, so that all use the same: V100 has no bf16, and with it A100 runs fp16 (with loss scaling).
        """
        key = tuple(groups)
        return once(self._cache.precisions, key, lambda: self._best_precision(key))

    def _best_precision(self, groups: tuple[int, ...]) -> Precision:
        wanted = self.workload.precision
        shared = frozenset.intersection(*(self.cluster.groups[g].device.formats for g in groups))
        found = wanted.on(shared)
        if found.compute in wanted.products:
            return found
        return self.workload.framework.kept(PRECISIONS[found.compute], self.workload.optimizer)[0]

    def assumptions_in(self, precision: Precision) -> MeshAssumptions:
        """What is assumed where a plan computes in a format, which may not be the job's.

        What the framework does in that format counts, as where it is asked for, unless it was stated otherwise.
        """
        if precision.name == self.workload.precision.name:
            return self.assumptions
        cluster, framework = self.cluster, self.workload.framework
        has_fp4 = all(group.device.has_fp4 for group in cluster.groups)
        wanted, used = (
            framework.mesh_assumptions(precision=each, has_fp4=has_fp4, host=cluster.host)
            for each in (self.workload.precision, precision)
        )
        of_format = {
            item.name: getattr(used, item.name)
            for item in fields(used)
            if getattr(wanted, item.name) == getattr(self.assumptions, item.name)
        }
        return replace(self.assumptions, **of_format)

    def group_model(self, group: int, precision: Precision) -> MeshModel:
        """The mesh model of one group alone."""

        def made() -> MeshModel:
            workload = self._workload_of(group, precision)
            return MeshModel(workload=workload, groups=self._group_times(group, precision), modules=self.modules)

        return once(self._cache.models, (group, precision.name), made)

    def _workload_of(self, group: int, precision: Precision) -> Workload:
        assert isinstance(self.workload.compute, RooflineCompute)
        compute = replace(self.workload.compute, device=self.cluster.groups[group].device, precision=precision)
        return replace(self.workload, precision=precision, compute=compute)

    def expert_tp(self, tp: int) -> int:
        """Experts are split like the other matrices, where their width allows."""
        return tp if self.shape.experts and all(width % tp == 0 for width in self.shape.expert_widths) else 1

    @staticmethod
    def is_sequence_parallel(tp: int, wanted: bool) -> bool:
        """Whether a stage cuts tensors along the positions."""
        return wanted and tp > 1

    def degree_faults(self, tp: int, *, sequence_parallel: bool) -> list[str]:
        """Rules of the network that a tensor-parallel degree breaks."""

        def found() -> list[str]:
            sequence = self.is_sequence_parallel(tp, sequence_parallel)
            batch = self.shape.global_batch
            plan = MeshPlan(tp=tp, sequence_parallel=sequence, etp=self.expert_tp(max(tp, 1)), num_micro_batches=batch)
            return broken_rules(self.shape, plan)

        return once(self._cache.faults, (tp, sequence_parallel), found)

    # -- rows of stages -------------------------------------------------------------------------------------------------

    def stage_values(self, plan: MixedPlan, pipeline: MixedPipeline, s: int) -> dict[str, float]:
        """Everything of a `StageRows` row but its modules."""
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

    def modules_of(self, pipeline: MixedPipeline) -> FloatArray:
        """Modules of each kind per stage: (S, K)."""
        kinds = np.zeros((len(pipeline.stages), len(self.modules.kinds)))
        start = 1
        for s, stage in enumerate(pipeline.stages):
            for module in range(start, start + stage.blocks):
                kinds[s, self.modules.kind_of[module]] += 1
            start += stage.blocks
        kinds[0, self.modules.kind_of[0]] += 1
        kinds[-1, self.modules.kind_of[-1]] += 1
        return kinds

    def crossing(self, groups: tuple[int, ...], flows: tuple[int, ...]) -> Crossing:
        """The link between groups; see `costmodel.mixed.plan.crossing`."""
        return once(self._cache.crossings, (groups, flows), lambda: crossing(self.cluster, groups, flows))

    def transfers_s(self, plan: MixedPlan, pipeline: MixedPipeline, s: int) -> FloatArray:
        """Time to send what crosses a cut from stage ``s - 1`` to stage ``s``, for every cut that a stage could start at: (blocks + 1,).

        Every rank sends its share (sequence parallel, or `MeshAssumptions.scattered_handover`) or the whole; in the latter case a rank that
        has several counterparts serves them one after the other.
        """
        sender, receiver = pipeline.stages[s - 1], pipeline.stages[s]
        near = pipeline.stages_of(sender.group) if sender.group == receiver.group else 0
        ends = (sender.group, sender.tp, receiver.group, receiver.tp)
        key = (
            *ends,
            near,
            pipeline.replicas,
            pipeline.micro_batch,
            plan.order,
            plan.sequence_parallel,
            self.precision_of(plan.groups).name,
        )
        return once(self._cache.transfers, key, lambda: self._transfers_s(plan, pipeline, s))

    def _transfers_s(self, plan: MixedPlan, pipeline: MixedPipeline, s: int) -> FloatArray:
        sender, receiver = pipeline.stages[s - 1], pipeline.stages[s]
        low, high = sorted((sender.tp, receiver.tp))
        scatters = not plan.sequence_parallel and self.assumptions.scattered_handover > 0.0
        share = 1.0 / low if plan.sequence_parallel or scatters else float(-(-high // low))
        width = self.precision_of(plan.groups).activation_bytes
        tensor_bytes = np.array(self.modules.cut_elements[1:], dtype=np.float64) * (pipeline.micro_batch * width)
        message = tensor_bytes * share
        if sender.group == receiver.group:
            one = np.ones(len(message), dtype=np.int64)
            order, tp = ORDERS.index(plan.order) * one, high * one
            count = pipeline.stages_of(sender.group) * one
            stride = strides(order, tp, one, pipeline.replicas * one, count)["pp"]
            groups = self._group_times(sender.group, self.precision_of(plan.groups))
            stages = groups.find(count, stride, tp * pipeline.replicas * count)
            time = groups.time_s("point_to_point", stages, message)
        else:
            link = self.crossing(
                (sender.group, receiver.group), (sender.tp * pipeline.replicas, receiver.tp * pipeline.replicas)
            )
            time = link.send_s(message)
        if scatters:  # activations are gathered on one side, their gradients on the other: the longer of both
            gathered = (
                self._gathered_s(
                    pipeline, self._group_times(stage.group, self.precision_of(plan.groups)), stage, tensor_bytes
                )
                for stage in (sender, receiver)
            )
            time = time + np.maximum(*gathered)
        return np.asarray(time)

    @staticmethod
    def _gathered_s(
        pipeline: MixedPipeline, groups: GroupTimes, stage: MixedStage, tensor_bytes: FloatArray
    ) -> FloatArray:
        """Time in which the tensor-parallel ranks of a stage gather what they have a share each of."""
        one = np.ones(len(tensor_bytes), dtype=np.int64)
        place = stage.tp * pipeline.replicas * pipeline.stages_of(stage.group) * one
        return groups.time_s("all_gather", groups.find(stage.tp * one, one, place), tensor_bytes)

    def _group_times(self, group: int, precision: Precision) -> GroupTimes:
        def made() -> GroupTimes:
            return GroupTimes(cluster=group_cluster(self.cluster, group), assumptions=self.assumptions_in(precision))

        return once(self._cache.groups, (group, precision.name), made)

    def tied_s(self, plan: MixedPlan, pipeline: MixedPipeline) -> float:
        """The first and the last stage of a pipeline add up the gradients of the embedding that they share."""
        first, last, count = pipeline.stages[0], pipeline.stages[-1], len(pipeline.stages)
        if count == 1 or not self.workload.training:
            return 0.0
        inside = pipeline.stages_of(first.group) == count
        ends = (first.group, first.tp, last.group, last.tp)
        key = (
            *ends,
            count if inside else 0,
            pipeline.replicas,
            plan.order,
            plan.sequence_parallel,
            self.precision_of(plan.groups).name,
        )
        return once(self._cache.tied, key, lambda: self._tied_s(plan, pipeline))

    def _tied_s(self, plan: MixedPlan, pipeline: MixedPipeline) -> float:
        first, last = pipeline.stages[0], pipeline.stages[-1]
        precision = self.precision_of(plan.groups)
        width = max(self.assumptions_in(precision).main_gradient_bytes, float(precision.gradient_bytes))
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
            near = strides(ORDERS.index(plan.order) * one, first.tp * one, one, pipeline.replicas * one, count * one)[
                "pp"
            ]
            groups = self._group_times(first.group, precision)
            ends = groups.find(2 * one, near * (count - 1), first.tp * pipeline.replicas * count * one)
            return float(groups.time_s("all_reduce", ends, np.array([message]))[0])
        link = self.crossing((first.group, last.group), (first.tp * pipeline.replicas, last.tp * pipeline.replicas))
        return float(all_reduce_across_s(message, 2, link.bytes_per_s, link.latency_s))
