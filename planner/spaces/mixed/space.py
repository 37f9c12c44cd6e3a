"""The space of plans over several kinds of devices: its cost model, its search and what its answers say."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.fields import parts_of
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.detail import FLOP_CONVENTION, model_flops_per_step
from costmodel.mesh.model import plans_computing_s
from costmodel.mesh.modules import MeshError
from costmodel.mesh.plan import MeshPlan
from costmodel.mixed.evaluate import (
    MixedCosts,
    StageReport,
    broken_mixed_rules,
    cost_plans,
    mixed_costs,
    stage_reports,
)
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MIXED_FIGURES, MixedPlan, describe, group_cluster, group_names
from costmodel.objectives import OBJECTIVES
from costmodel.rates import training_rates
from costmodel.tolerances import PROOF_SLACK
from planner.core.answer import (
    Answer,
    Assumption,
    Curve,
    ErrorBars,
    Estimate,
    Proof,
    RankedPlan,
    Sensitivity,
    Setting,
)
from planner.core.capacity import fit_figures, limit_notes, margin_words, usable_bytes
from planner.core.errors import UsageError
from planner.core.notes import Note
from planner.core.numbers import byte_text
from planner.core.objectives import better_word, check_rates, stated_rates
from planner.question.fixed import fixed_by
from planner.question.resolve import Resolved
from planner.spaces.base import Found, PlanSpace, check_framework
from planner.spaces.mesh.plans import mesh_plan_in_words
from planner.spaces.mesh.space import EFFORT
from planner.spaces.mixed.options import with_fixed
from strategies.mesh.search import search_mesh
from strategies.mesh.settings import MeshSettings
from strategies.mixed.objective import Weights
from strategies.mixed.settings import MixedOutcome, MixedSettings
from strategies.score import score_of

if TYPE_CHECKING:
    from pathlib import Path

    from costmodel.timeline import Tracks
    from strategies.limits import Progress

_TIME_PARTS = parts_of(MIXED_FIGURES.values(), "step_time_s")
_OF_ONE_KIND = "of steps on one kind of device: none of the runs that it is made from mixes several"
_COMMUNICATION = ("tp_exposed_s", "pp_exposed_s", "dp_exposed_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """What a plan takes of one group."""

    name: str
    device: str
    devices: int  # in use
    available: int
    memory_bytes: float  # of the fullest device in use; 0 where none is
    memory_capacity_bytes: float
    memory_there_bytes: float  # of the device where P(fits) is known, else what may be used

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.memory_bytes <= self.memory_capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAlone:
    """A plan over a device mesh of one group alone."""

    plan: MeshPlan
    summary: str
    step_time_s: float
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBaseline:
    """The best plan of one group alone; None where nothing was found."""

    group: str
    available: int
    plan: RankedPlan | None  # of the space of mixed plans
    bound_s: float  # no plan of that space takes less
    mesh: (
        MeshAlone | None
    )  # of the larger space of a mesh: ZeRO-2 and 3, context and expert parallelism, all schedules, offloading

    @property
    def score(self) -> float:
        """Of the better one; infinite without any."""
        return min((plan.score for plan in (self.plan, self.mesh) if plan is not None), default=float("inf"))


def mixed_space(resolved: Resolved) -> MixedPlanSpace:
    """Build the cost model of a question about several kinds of devices.

    Raises
    ------
    UsageError
        The network or the cluster cannot be planned like this, or the framework runs no such plans.
    """
    check_framework(resolved, "unequal_ranks")
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
    return MixedPlanSpace(
        resolved=resolved,
        model=model,
        devices=tuple(devices),
        capacity_bytes=tuple(
            usable_bytes(request, group.device, resolved.setting.memory_errors) for group in cluster.groups
        ),
        flop_per_step=model_flops_per_step(workload),
        seq=next(layer.input_shapes[0][1] for layer in workload.graph.layers if layer.block),
    )


@dataclass(frozen=True, kw_only=True)
class MixedPlanSpace(PlanSpace):
    """A question about several kinds of devices with its cost model.

    Attributes
    ----------
    devices : tuple of int
        Of every group that may be used: --gpus are counted through the groups in the order of the cluster.
    capacity_bytes : tuple of float
        Memory that a device of every group may use.
    """

    model: MixedModel
    devices: tuple[int, ...]
    capacity_bytes: tuple[float, ...]
    flop_per_step: float
    seq: int

    name = "mixed"
    has_several_capacities = True
    declared = MIXED_FIGURES
    has_exact_plans = False  # options cannot say which stage goes where

    @property
    def is_spelled_out(self) -> bool:
        return not fixed_by(self.resolved.request).is_free

    @property
    def names(self) -> tuple[str, ...]:
        """What the groups are called."""
        return group_names(self.model.cluster)

    def weights(self, groups: Sequence[int]) -> Weights:
        """What the devices of plans over some groups weigh."""
        return Weights.of(self.objective, self.model, groups)

    def most_weight(self) -> float:
        """No plan weighs more: every device computes all the time, in the format that costs most."""
        objective = OBJECTIVES[self.objective]
        if not objective.is_per_device:
            return 1.0
        total = 0.0
        for n, group in zip(self.devices, self.model.cluster.groups, strict=True):
            formats = group.device.peak_flop_per_s if n else ()
            costs = [objective.cost_of(group.device, self.model.cluster.host, compute) for compute in formats]
            total += n * max((cost.computing for cost in costs if cost is not None), default=0.0)
        return total

    # -- the search

    def settings(self) -> MixedSettings:
        """Limits of the search that the question asks for."""
        request = self.resolved.request
        settings = MixedSettings(
            top=request.top,
            objective=self.objective,
            group_limits=self.devices,
            capacity_bytes=self.capacity_bytes,
            wall_s=self.time_limit_s,
            gap=request.gap,
            assumptions=self.model.assumptions,
        )
        return with_fixed(settings, fixed_by(request), self.model.shape.global_batch)

    def outcome_of(self, top: int, progress: Progress | None) -> MixedOutcome:
        """Look for the best plans; their intervals do not compare them, so no more than are shown."""
        from planner.spaces.mixed.diagnose import searched

        shown = min(top, self.resolved.request.top)
        return searched(self, dataclasses.replace(self.settings(), top=shown), progress)

    def baselines(self, found: Found, best: RankedPlan) -> Mapping[str, GroupBaseline]:
        outcome: MixedOutcome = found.outcome
        alone = [b.candidate.plan for b in outcome.baselines if b.candidate is not None]
        ranked = iter(self.rank(alone, best.score))
        return {
            self.names[b.group]: GroupBaseline(
                group=self.names[b.group],
                available=self.devices[b.group],
                plan=None if b.candidate is None else next(ranked),
                bound_s=b.bound_score / self.most_weight(),
                mesh=None if outcome.interrupted else _mesh_alone(self, b.group),
            )
            for b in outcome.baselines
        }

    def search_notes(self, found: Found, answer: Answer) -> list[str]:
        best = answer.plans[0]
        return [
            *_format_notes(self, best),
            *(
                Note("group_alone_is_better", group=b.group, better=better_word(self.objective), plan=b.mesh.summary)
                for b in answer.baselines.values()
                if b.mesh is not None and b.mesh.score < best.score * (1 - PROOF_SLACK)
            ),
            *_notes(self, found.outcome, best),
            *super().search_notes(found, answer),
        ]

    # -- figures

    def described(self, plans: Sequence[MixedPlan]) -> list[RankedPlan]:
        costs = cost_plans(self.model, plans)
        return [self._described(plan, costs, n) for n, plan in enumerate(plans)]

    def _described(self, plan: MixedPlan, costs: MixedCosts, n: int) -> RankedPlan:
        step = float(costs.step_time_s[n])
        parts = {name: float(getattr(costs, name)[n]) for name in _TIME_PARTS}
        reports = stage_reports(self.model, plan)
        fullest = max(reports, key=lambda r: r.memory_bytes / self.capacity_bytes[r.group])
        precision = self.model.precision_of(plan.groups)
        groups = self.model.cluster.groups
        costs_of_step = mixed_costs(self.model.cluster, plan, reports, step, precision.compute)
        money = costs_of_step["money_per_step"]
        use = tuple(
            GroupUse(
                name=name,
                device=self.model.cluster.groups[g].device.name,
                devices=plan.devices_of(g),
                available=self.devices[g],
                memory_bytes=max((r.memory_bytes for r in reports if r.group == g), default=0.0),
                memory_capacity_bytes=self.capacity_bytes[g],
                memory_there_bytes=groups[g].device.capacity_bytes
                if self.resolved.setting.memory_errors is not None
                else self.capacity_bytes[g],
            )
            for g, name in enumerate(self.names)
        )
        return RankedPlan(
            plan=plan,
            family=_family(plan),
            summary=describe(plan, self.model.cluster),
            workers=plan.workers,
            bottleneck=MIXED_FIGURES[max(parts, key=lambda name: parts[name])].label,
            declared=MIXED_FIGURES,
            score=self.weights(plan.groups).score(plan, reports, step),
            groups=use,
            fits_surest=self.resolved.setting.memory_errors.surest if self.resolved.setting.memory_errors else 1.0,
            figures={
                "step_time_s": step,
                "memory_bytes_per_gpu": use[fullest.group].memory_bytes,
                **fit_figures(
                    self.resolved.setting.memory_errors,
                    use[fullest.group].memory_bytes,
                    use[fullest.group].memory_capacity_bytes,
                    groups[fullest.group].device,
                ),
                "exposed_communication_s": sum(parts[name] for name in _COMMUNICATION),
                "precision": precision.name,
                **training_rates(
                    step_time_s=step,
                    workers=plan.workers,
                    samples=self.resolved.workload.global_batch,
                    positions=self.seq,
                    flop=self.flop_per_step,
                    peak_flop_per_s=sum(
                        plan.devices_of(g) * groups[g].device.peak(precision.compute) for g in plan.groups
                    ),
                    price_per_hour=None if money is None else money * 3600.0 / (plan.workers * step),
                ),
                **costs_of_step,
                **parts,
                **fullest.memory_parts,
            },
        )

    def bars(self, plans: Sequence[RankedPlan]) -> ErrorBars:
        from planner.uncertainty.bars import plan_bars

        bars = plan_bars(self.resolved, plans, coordinates=np.zeros((len(plans), 1)))
        return dataclasses.replace(bars, basis=_OF_ONE_KIND)

    def sensitivity(self, plans: Sequence[RankedPlan]) -> tuple[Sensitivity, ...] | None:
        # All devices change alike.
        from costmodel.uncertainty.constants import CONSTANTS, with_constants
        from planner.uncertainty.bars import constants_of, knowledge_of, score_weights
        from planner.uncertainty.sensitivity import sensitivity_of

        model, ranked, workers = self.model, [plan.plan for plan in plans], max(plan.workers for plan in plans)
        weight = score_weights(plans)
        known = {
            name
            for g in range(len(model.cluster.groups))
            for name in constants_of(
                model.workload, group_cluster(model.cluster, g), workers, model.assumptions.host_launch_s
            )
        }

        def times(name: str, factor: float) -> FloatArray:
            cluster, assumptions = with_constants(model.cluster, model.assumptions, {name: factor})
            costs = cost_plans(model.with_constants(cluster, assumptions), ranked)
            return np.asarray(costs.step_time_s * weight)

        used = [model.precision_of(plan.plan.groups) for plan in plans]
        return sensitivity_of(
            times,
            knowledge_of(self.resolved.request, is_transformer=True, names=tuple(n for n in CONSTANTS if n in known)),
            {plan.rank: plan.summary for plan in plans},
            group_cluster(model.cluster, 0),
            model.assumptions,
            {name for precision in used for name in (precision.plain.name, precision.compute)},
        )

    # -- one plan

    def setting(self, plan: MixedPlan) -> Setting:
        return dataclasses.replace(super().setting(plan), seq=self.seq)

    def broken(self, plan: MixedPlan) -> list[str]:
        problems = broken_mixed_rules(self.model, plan)
        if problems:
            return problems
        return [
            f"the plan uses {plan.devices_of(g)} devices of group '{self.names[g]}', and --gpus {self.resolved.request.gpus} leaves "
            f"{self.devices[g]}"
            for g in plan.groups
            if plan.devices_of(g) > self.devices[g]
        ]

    def exact_plan(self) -> tuple[MixedPlan, tuple[Assumption, ...]]:
        raise UsageError(
            f"cluster '{self.resolved.cluster.name}' has several groups of devices, and options cannot spell out which stage goes where; "
            "write a plan file with 'planner optimize ... --export plan.yaml' and predict it with --plan"
        )

    def tables(self, plan: MixedPlan, ranked: RankedPlan) -> Mapping[str, tuple[Any, ...]]:
        return {"stages": tuple(self._stage_row(plan, report) for report in stage_reports(self.model, plan))}

    def _stage_row(self, plan: MixedPlan, report: StageReport) -> Mapping[str, Any]:
        """One stage of one replica; times of one micro-batch but for exchange and update, which are of the step."""
        pipeline = plan.pipelines[report.pipeline]
        stage, end_s = pipeline.stages[report.stage], report.exchange_s + report.update_s
        return {
            "pipeline": report.pipeline,
            "stage": report.stage,
            "group": self.names[report.group],
            "devices": stage.tp,
            "blocks": report.blocks,
            "forward_s": report.forward_s,
            "backward_s": report.backward_s,
            "recompute_s": report.recompute_s,
            "tp_s": report.tp_exposed_s,
            "transfer_s": report.transfer_s,
            "exchange_s": report.exchange_s,
            "update_s": report.update_s,
            "busy_s": pipeline.most_micro_batches * (report.forward_s + report.backward_s) + end_s,
            "recompute": stage.recompute,
            "recompute_blocks": stage.recompute_blocks,
            "memory_bytes": report.memory_bytes,
            "memory_capacity_bytes": self.capacity_bytes[report.group],
        }

    def plan_notes(self, ranked: RankedPlan) -> list[str]:
        return [*_format_notes(self, ranked), *_too_full(ranked)]

    def explained(self, estimate: Estimate, plans: Sequence[RankedPlan], proof: Proof | None) -> Estimate:
        from planner.spaces.mixed.what_if import step_bound, what_if

        plan = estimate.ranked.plan
        bound = step_bound(self, plan)
        details = {"bound": bound, "what_if": what_if(self, plan, bound)}
        notes = list(estimate.notes)
        if proof is not None and proof.gap > PROOF_SLACK:
            notes.append(Note("not_proven", gap=proof.gap, better=better_word(self.objective)))
        return dataclasses.replace(estimate, details={**estimate.details, **details}, notes=tuple(notes))

    def plan_section(self, ranked: RankedPlan, folder: Path | None) -> Mapping[str, Any]:
        """With the format that the plan computes in, which may not be the one that was asked for."""
        return {**super().plan_section(ranked, folder), "precision": ranked["precision"]}

    def plan_entry(self, plan: MixedPlan) -> Mapping[str, Any]:
        from planner.spaces.mixed.plans import mixed_entry

        return mixed_entry(plan, self.names)

    def setting_texts(self, estimate: Estimate) -> Mapping[str, str]:
        from planner.spaces.items import setting_texts

        plan, names = estimate.ranked.plan, [use.name for use in estimate.ranked.groups]
        entries = {name: text for name, text in setting_texts(plan).items() if name != "pipelines"}
        for n, pipeline in enumerate(plan.pipelines):
            number, prefix = (f" {n + 1}", f"pipeline {n + 1} ") if len(plan.pipelines) > 1 else ("", "")
            stages = " | ".join(
                f"{names[s.group]}: {s.blocks} blocks, tp {s.tp}"
                + (f", recompute {s.recompute} {s.recompute_blocks or ''}".rstrip() if s.recompute != "none" else "")
                for s in pipeline.stages
            )
            longer = f" (+1 on {pipeline.longer})" if pipeline.longer else ""
            entries[f"pipeline{number}"] = stages
            entries[f"{prefix}replicas"] = str(pipeline.replicas)
            entries[f"{prefix}micro-batches"] = f"{pipeline.micro_batch} x {pipeline.num_micro_batches}{longer}"
        return entries

    def tracks(self, plan: MixedPlan) -> Tracks:
        from costmodel.mixed.detail import mixed_tracks

        return mixed_tracks(self.model, plan)

    def study(self, answer: Answer, progress: Progress) -> tuple[Sequence[RankedPlan], Sequence[Curve], str]:
        return (), (), "Plans over several kinds of GPUs have no scaling curve."

    def assumptions(self, plan: MixedPlan) -> tuple[Assumption, ...]:
        request = self.resolved.request
        devices = ", ".join(
            f"{count} of {name} with {byte_text(capacity)} each"
            for name, count, capacity in zip(self.names, self.devices, self.capacity_bytes, strict=True)
        )
        left = margin_words(request, self.resolved.setting.memory_errors)
        reserved = f" ({left})" if left else ""
        source = f"cluster file{' and --memory-limit' if request.memory_limit else ''}"
        precision, used = self.resolved.workload.precision.compute, self.model.precision_of(plan.groups).name
        instead = f"{used} in place of {precision}"
        kept = [
            dataclasses.replace(a, value=instead) if a.name == "precision" and used != a.value else a
            for a in self.resolved.assumptions
            if a.name not in ("device", "memory per GPU")
        ]
        cluster = self.model.cluster
        kinds = [
            (name, group.device, self.model.precision_of((g,)).compute)
            for g, (name, group) in enumerate(zip(self.names, cluster.groups, strict=True))
        ]
        peaks = ", ".join(f"{name} {device.peak(best) / 1e12:.4g}" for name, device, best in kinds)
        value = (
            f"{self.flop_per_step:.4g} model FLOP per step ({FLOP_CONVENTION}) over step time x the sum of the dense peaks of the "
            f"devices in use (TFLOP/s in {precision}, or what a device has instead: {peaks})"
        )
        used_kinds = [kind for kind, count in zip(kinds, self.devices, strict=True) if count]
        return (
            *kept,
            Assumption(name="devices", value=devices + reserved, source=source),
            Assumption(name="MFU", value=value),
            *stated_rates(request, used_kinds, cluster.host),
        )

    @property
    def assumed(self) -> MeshAssumptions:
        return self.model.assumptions


def _mesh_alone(space: MixedPlanSpace, group: int) -> MeshAlone | None:
    """What the search for one kind of device finds on a group: its space has more kinds of plans."""
    settings = MeshSettings(
        max_workers=space.devices[group],
        capacity_bytes=space.capacity_bytes[group],
        top=1,
        restriction=fixed_by(space.resolved.request),
        score=score_of(space.objective, space.model.cluster.groups[group].device, space.model.cluster.host),
        wall_s=space.time_limit_s,
        effort=EFFORT,
    )
    model = space.model.group_model(group, space.model.precision_of((group,)))
    cluster = group_cluster(space.model.cluster, group)
    candidates = search_mesh(model.workload, cluster, settings, None, model.assumptions).candidates
    if not candidates:
        return None
    plan = candidates[0].plan
    costs = model.evaluate_plans([plan])
    step = float(costs.step_time_s[0])
    score = space.weights((group,)).of_group_alone(
        group, plan.workers, step, float(plans_computing_s(model, [plan], costs)[0])
    )
    return MeshAlone(plan=plan, summary=mesh_plan_in_words(plan), step_time_s=step, score=score)


def _format_notes(space: MixedPlanSpace, ranked: RankedPlan) -> list[Note]:
    """Why a plan computes in another number format than the one that was asked for."""
    wanted = space.resolved.workload.precision.compute
    formats = {n: group.device.formats for n, group in zip(space.names, space.model.cluster.groups, strict=True)}
    lacking = [use.name for use in ranked.groups if use.devices and wanted not in formats[use.name]]
    return [Note("number_format", groups=lacking, wanted=wanted, used=ranked["precision"])] if lacking else []


def _notes(space: MixedPlanSpace, outcome: MixedOutcome, best: RankedPlan) -> list[Note]:
    request, notes = space.resolved.request, []
    total = sum(group.num_devices or 0 for group in space.model.cluster.groups)
    if request.gpus < total:
        counts = dict(zip(space.names, space.devices, strict=True))
        notes.append(Note("gpus_by_group", gpus=request.gpus, groups=counts))
    if outcome.gap > PROOF_SLACK and outcome.apart_score >= best.score * (1 - PROOF_SLACK):
        notes.append(Note("groups_shared", better=better_word(space.objective)))
    why = "group_slows" if space.objective == "step_time" else "group_no_better"
    code = why if outcome.gap <= PROOF_SLACK else "group_not_used"
    notes += [Note(code, group=use.name) for use in best.groups if use.available and not use.devices]
    largest = max((group.device for group in space.model.cluster.groups), key=lambda device: device.capacity_bytes)
    return [*notes, *limit_notes(request, largest)]


def _too_full(ranked: RankedPlan) -> list[Note]:
    full = [use for use in ranked.groups if not use.fits]
    if not full:
        return []
    label, size = ranked.largest_memory_part
    return [
        *(
            Note(
                "does_not_fit",
                group=use.name,
                needed_bytes=use.memory_bytes,
                capacity_bytes=use.memory_capacity_bytes,
            )
            for use in full
        ),
        Note("fullest_device", group=fullest_group(ranked), largest=label, largest_bytes=size),
    ]


def _family(plan: MixedPlan) -> str:
    several = len(plan.pipelines) > 1 or any(pipeline.replicas > 1 for pipeline in plan.pipelines)
    used = {
        "tensor": any(stage.tp > 1 for pipeline in plan.pipelines for stage in pipeline.stages),
        "pipeline": any(len(pipeline.stages) > 1 for pipeline in plan.pipelines),
        ("data", "zero-1")[plan.zero_stage]: several,
    }
    return "+".join(name for name, is_used in used.items() if is_used) or "one-device"


def fullest_group(ranked: RankedPlan) -> str:
    """Name of the group whose device is fullest for its size."""
    return str(max(ranked.groups, key=lambda use: use.memory_bytes / use.memory_capacity_bytes).name)
