"""Scores plans over several kinds of devices and describes them; the one place that turns their costs into figures for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.hardware.energy import Power
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.detail import FLOP_CONVENTION, model_flops_per_step
from costmodel.mesh.modules import MeshError
from costmodel.mixed.evaluate import (
    MixedCosts,
    StageReport,
    broken_mixed_rules,
    cost_plans,
    mixed_energy_j,
    mixed_money,
    stage_reports,
)
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPlan, describe, group_names
from planner.core.capacity import reserve_of, usable_bytes
from planner.core.errors import UsageError
from planner.core.objectives import check_rates
from planner.core.quantities import format_bytes
from planner.core.results import Assumption
from planner.resolve import Resolved
from planner.spaces.mesh.wording import TIME_WORDS
from planner.spaces.mixed.results import GroupUse, MixedStageRow, RankedMixedPlan
from strategies.mixed.objective import Weights

__all__ = ["MixedJudge", "make_mixed_judge"]

_TIME_PARTS = (
    "compute_s",
    "recompute_s",
    "tp_exposed_s",
    "pp_exposed_s",
    "dp_exposed_s",
    "bubble_s",
    "optimizer_s",
)
_COMMUNICATION = ("tp_exposed_s", "pp_exposed_s", "dp_exposed_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedJudge:
    """A question with its cost model.

    Attributes
    ----------
    devices : tuple of int
        Of every group that may be used: --gpus are counted through the groups in the order of the cluster.
    capacity_bytes : tuple of float
        Memory that a device of every group may use.
    """

    resolved: Resolved
    model: MixedModel
    devices: tuple[int, ...]
    capacity_bytes: tuple[float, ...]
    flop_per_step: float
    seq: int

    @property
    def names(self) -> tuple[str, ...]:
        """What the groups are called."""
        return group_names(self.model.cluster)

    @property
    def objective(self) -> str:
        """What is minimised."""
        return self.resolved.request.objective or "step_time"

    def weights(self, groups: Sequence[int]) -> Weights:
        """What the devices of plans over some groups weigh."""
        return Weights.of(self.objective, self.model, groups)

    def most_weight(self) -> float:
        """No plan weighs more; of energy, none draws more."""
        if self.objective == "energy":
            host = self.model.cluster.host
            powers = [Power.of(group.device, host) for group in self.model.cluster.groups]
            return sum(
                n * (p.busy_w + p.host_w) for n, p in zip(self.devices, powers, strict=True) if n and p is not None
            )
        if self.objective != "mfu":
            return self.weights([g for g, count in enumerate(self.devices) if count]).devices(self.devices)
        groups = self.model.cluster.groups
        return sum(n * max(g.device.peak_flop_per_s.values()) for n, g in zip(self.devices, groups, strict=True))

    def rank(self, plans: Sequence[MixedPlan], best_score: float | None = None) -> list[RankedMixedPlan]:
        """Judge legal plans and describe them; the order is kept, and gaps are measured against ``best_score`` or the first."""
        if not plans:
            return []
        costs = cost_plans(self.model, plans)
        found = [self._described(plan, costs, n) for n, plan in enumerate(plans)]
        reference = found[0].score if best_score is None else best_score
        return [dataclasses.replace(ranked, gap=ranked.score / reference - 1.0) for ranked in found]

    def _described(self, plan: MixedPlan, costs: MixedCosts, n: int) -> RankedMixedPlan:
        step = float(costs.step_time_s[n])
        parts = {name: float(getattr(costs, name)[n]) for name in _TIME_PARTS}
        reports = stage_reports(self.model, plan)
        fullest = max(reports, key=lambda r: r.memory_bytes / self.capacity_bytes[r.group])
        precision = self.model.precision_of(plan.groups)
        counts = {g: plan.devices_of(g) for g in plan.groups}
        cluster_groups = self.model.cluster.groups
        peak = sum(count * cluster_groups[g].device.peak(precision.compute) for g, count in counts.items())
        tokens_per_s = self.resolved.workload.global_batch * self.seq / step
        gpu_hours = plan.workers / tokens_per_s / 3600.0 * 1e6
        prices = {g: cluster_groups[g].device.price_per_hour for g in counts}
        price = sum(count * (prices[g] or 0.0) for g, count in counts.items()) / plan.workers
        return RankedMixedPlan(
            rank=n + 1,
            plan=plan,
            family=_family(plan),
            summary=describe(plan, self.model.cluster),
            workers=plan.workers,
            precision=precision.name,
            step_time_s=step,
            throughput_samples_per_s=self.resolved.workload.global_batch / step,
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=tokens_per_s / plan.workers,
            mfu=self.flop_per_step / (step * peak),
            groups=self._use(plan, reports),
            fullest=fullest.group,
            exposed_communication_s=sum(parts[name] for name in _COMMUNICATION),
            time_parts=parts,
            memory_parts=fullest.memory_parts,
            bottleneck=TIME_WORDS[max(parts, key=lambda name: parts[name])],
            gpu_hours_per_million_tokens=gpu_hours,
            money_per_million_tokens=None if None in prices.values() else gpu_hours * price,
            gap=0.0,
            score=self.weights(plan.groups).score(plan, reports, self.model.cluster, step),
            money_per_step=mixed_money(self.model.cluster, plan, step),
            energy_per_step_j=mixed_energy_j(self.model.cluster, plan, reports, step),
        )

    def _use(self, plan: MixedPlan, reports: Sequence[StageReport]) -> tuple[GroupUse, ...]:
        return tuple(
            GroupUse(
                name=name,
                device=self.model.cluster.groups[g].device.name,
                devices=plan.devices_of(g),
                available=self.devices[g],
                memory_bytes=max((r.memory_bytes for r in reports if r.group == g), default=0.0),
                memory_capacity_bytes=self.capacity_bytes[g],
            )
            for g, name in enumerate(self.names)
        )

    def stages(self, plan: MixedPlan) -> tuple[MixedStageRow, ...]:
        """The stages of a plan, one replica each."""
        return tuple(
            MixedStageRow(
                pipeline=r.pipeline,
                stage=r.stage,
                group=self.names[r.group],
                devices=plan.pipelines[r.pipeline].stages[r.stage].tp,
                blocks=r.blocks,
                forward_s=r.forward_s,
                backward_s=r.backward_s,
                recompute_s=r.recompute_s,
                tp_s=r.tp_exposed_s,
                transfer_s=r.transfer_s,
                exchange_s=r.exchange_s,
                update_s=r.update_s,
                busy_s=plan.pipelines[r.pipeline].most_micro_batches * (r.forward_s + r.backward_s)
                + r.exchange_s
                + r.update_s,
                recompute=plan.pipelines[r.pipeline].stages[r.stage].recompute,
                recompute_blocks=plan.pipelines[r.pipeline].stages[r.stage].recompute_blocks,
                memory_bytes=r.memory_bytes,
                memory_capacity_bytes=self.capacity_bytes[r.group],
            )
            for r in stage_reports(self.model, plan)
        )

    def broken(self, plan: MixedPlan) -> list[str]:
        """Rules that a plan breaks, and groups of which it takes more devices than --gpus leaves."""
        problems = broken_mixed_rules(self.model, plan)
        if problems:
            return problems
        return [
            f"the plan uses {plan.devices_of(g)} devices of group '{self.names[g]}', and --gpus {self.resolved.request.gpus} leaves "
            f"{self.devices[g]}"
            for g in plan.groups
            if plan.devices_of(g) > self.devices[g]
        ]

    def assumptions(self) -> tuple[Assumption, ...]:
        """What the question left open, the groups in place of the one device."""
        request = self.resolved.request
        devices = ", ".join(
            f"{count} of {name} with {format_bytes(capacity)} each"
            for name, count, capacity in zip(self.names, self.devices, self.capacity_bytes, strict=True)
        )
        reserve = reserve_of(request)
        source = " ".join(
            [
                "cluster file",
                *(["and --memory-limit"] if request.memory_limit else []),
                *([f"less {reserve}"] if reserve else []),
            ]
        )
        kept = [a for a in self.resolved.assumptions if a.name not in ("device", "memory per GPU")]
        precision = self.resolved.workload.precision.compute
        peaks = ", ".join(
            f"{name} {group.device.peak(best) / 1e12:.4g}"
            for g, (name, group) in enumerate(zip(self.names, self.model.cluster.groups, strict=True))
            for best in [self.model.precision_of((g,)).compute]
        )
        value = (
            f"{self.flop_per_step:.4g} model FLOP per step ({FLOP_CONVENTION}) over step time x the sum of the dense peaks of the "
            f"devices in use (TFLOP/s in {precision}, or what a device has instead: {peaks})"
        )
        rates = self._rates()
        return (
            *kept,
            Assumption(name="devices", value=devices, source=source),
            Assumption(name="MFU", value=value),
            *rates,
        )

    def _rates(self) -> tuple[Assumption, ...]:
        """What a device of every group costs or draws, where that is what plans are ranked by."""
        groups = self.model.cluster.groups
        used = [(name, g.device) for name, g, n in zip(self.names, groups, self.devices, strict=True) if n]
        if self.objective == "money":
            prices = ", ".join(f"{device.price_per_hour:g} of {name}" for name, device in used)
            return (Assumption(name="price", value=f"{prices} in USD per GPU and hour", source="device files"),)
        if self.objective != "energy":
            return ()
        powers = [(name, Power.of(device, self.model.cluster.host)) for name, device in used]
        text = ", ".join(f"{p.busy_w:g} W ({p.idle_w:g} W) of {name}" for name, p in powers if p is not None)
        host = next(p.host_w for _, p in powers if p is not None)
        value = f"{text} computing (waiting), {host:g} W of its host for each"
        return (Assumption(name="power", value=value, source="device files"),)

    def rows(self) -> tuple[Assumption, ...]:
        """What the cost model takes for granted, by name."""
        return tuple(
            Assumption(
                name=item.name,
                value=f"{getattr(self.model.assumptions, item.name):g}",
                source=self.resolved.source_of(item.name),
            )
            for item in dataclasses.fields(MeshAssumptions)
        )


def make_mixed_judge(resolved: Resolved) -> MixedJudge:
    """Build the cost model of a question about several kinds of devices.

    Raises
    ------
    UsageError
        The network or the cluster cannot be planned like this.
    """
    request, workload, cluster = resolved.request, resolved.workload, resolved.cluster
    try:
        model = MixedModel.build(
            workload, cluster, dataclasses.replace(resolved.mesh_assumptions, **dict(request.assume))
        )
    except MeshError as error:
        raise UsageError(str(error)) from None
    left, devices = request.gpus, []
    for group in cluster.groups:
        devices.append(min(left, group.num_devices or 0))
        left -= devices[-1]
    check_rates(request.objective, [group.device for group, n in zip(cluster.groups, devices, strict=True) if n])
    return MixedJudge(
        resolved=resolved,
        model=model,
        devices=tuple(devices),
        capacity_bytes=tuple(usable_bytes(request, group.device) for group in cluster.groups),
        flop_per_step=model_flops_per_step(workload),
        seq=next(layer.input_shapes[0][1] for layer in workload.graph.layers if layer.block),
    )


def _family(plan: MixedPlan) -> str:
    """Parallel dimensions that a plan uses, joined by ``+``."""
    several = len(plan.pipelines) > 1 or any(pipeline.replicas > 1 for pipeline in plan.pipelines)
    used = {
        "tensor": any(stage.tp > 1 for pipeline in plan.pipelines for stage in pipeline.stages),
        "pipeline": any(len(pipeline.stages) > 1 for pipeline in plan.pipelines),
        ("data", "zero-1")[plan.zero_stage]: several,
    }
    return "+".join(name for name, is_used in used.items() if is_used) or "one-device"
