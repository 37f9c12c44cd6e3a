"""What bounds the step of a plan over several kinds of devices, and what a change of the hardware or of the plan would do to it.

Nothing here is estimated: every change is made, and the cost model evaluates the plan again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from costmodel.hardware.cluster import DeviceGroup
from costmodel.mesh.plan import MESH_FIGURES, RECOMPUTE
from costmodel.mixed.evaluate import broken_mixed_rules, cost_plans, makespans, stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPipeline, MixedPlan, MixedStage, group_cluster
from costmodel.tolerances import EQUAL
from planner.spaces.mixed.space import MixedPlanSpace

# How much faster or wider hardware is tried.
MORE = 1.1
_PARTS = ("compute_s", "recompute_s", "tp_exposed_s", "transfer_s")
_WORDS = {name: MESH_FIGURES[name].label for name in _PARTS[:3]} | {"transfer_s": MESH_FIGURES["pp_exposed_s"].label}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBound:
    """What a step consists of, from the stage that bounds it.

    Attributes
    ----------
    pipeline, stage : int
        The busiest stage of the slowest pipeline.
    group : str
        Where it is.
    num_micro_batches : int
        Of the pipeline's busiest replica.
    working_s : float
        Forward and backward passes of the stage for all micro-batches.
    waiting_s : float
        What the pipeline takes longer: filling, draining, waiting for other stages.
    end_s : float
        What exchange and update leave behind the last backward pass.
    largest : str
        The largest part of the stage's work, in words.
    largest_share : float
        And its share of that work.
    spare_s : tuple of float
        How much earlier every pipeline ends its passes than the slowest; 0 for that.
    """

    pipeline: int
    stage: int
    group: str
    num_micro_batches: int
    working_s: float
    waiting_s: float
    end_s: float
    largest: str
    largest_share: float
    spare_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedChange:
    """One change and what the step takes then.

    Attributes
    ----------
    change : str
    kind : str
        hardware or plan.
    step_time_s : float
    gain : float
        Step time now over step time then, minus 1: positive is faster.
    fits : bool
    """

    change: str
    kind: str
    step_time_s: float
    gain: float
    fits: bool


def step_bound(space: MixedPlanSpace, plan: MixedPlan) -> StepBound:
    """Find the stage that bounds the step of a plan."""
    reports = stage_reports(space.model, plan)
    step = float(cost_plans(space.model, [plan]).step_time_s[0])
    ends = makespans([plan], [reports])[0]
    slowest = max(range(len(ends)), key=lambda p: ends[p])
    own = [report for report in reports if report.pipeline == slowest]
    busiest = max(own, key=lambda r: r.forward_s + r.backward_s)
    number = plan.pipelines[slowest].most_micro_batches
    working = number * (busiest.forward_s + busiest.backward_s)
    parts = {name: getattr(busiest, name) for name in _PARTS}
    largest = max(parts, key=lambda name: parts[name])
    return StepBound(
        pipeline=slowest,
        stage=busiest.stage,
        group=space.names[busiest.group],
        num_micro_batches=number,
        working_s=working,
        waiting_s=ends[slowest] - working,
        end_s=step - ends[slowest],
        largest=_WORDS[largest],
        largest_share=parts[largest] / (busiest.forward_s + busiest.backward_s),
        spare_s=tuple(ends[slowest] - end for end in ends),
    )


def what_if(space: MixedPlanSpace, plan: MixedPlan, bound: StepBound) -> tuple[TriedChange, ...]:
    """Every change that is tried, the most useful first: of the hardware, then of the plan."""
    now = float(cost_plans(space.model, [plan]).step_time_s[0])
    rows = [_evaluated(space, changed, plan, words, "hardware", now) for words, changed in _hardware(space, plan)]
    variants = [
        (words, other) for words, other in _variants(space, plan, bound) if not broken_mixed_rules(space.model, other)
    ]
    rows += [_evaluated(space, space.model, other, words, "plan", now) for words, other in variants]
    return tuple(sorted(rows, key=lambda row: (row.kind, -row.gain)))


def _evaluated(
    space: MixedPlanSpace, model: MixedModel, plan: MixedPlan, words: str, kind: str, now_s: float
) -> TriedChange:
    step = float(cost_plans(model, [plan]).step_time_s[0])
    over = {
        report.group
        for report in stage_reports(model, plan)
        if report.memory_bytes > space.capacity_bytes[report.group] * (1 + EQUAL)
    }
    return TriedChange(change=words, kind=kind, step_time_s=step, gain=now_s / step - 1.0, fits=not over)


# -- the same plan on other hardware --------------------------------------------------------------------------------------


def _hardware(space: MixedPlanSpace, plan: MixedPlan) -> Iterator[tuple[str, MixedModel]]:
    more, model = f"{100 * (MORE - 1):.0f} %", space.model
    kinds: list[tuple[str, tuple[int, ...]]] = [(space.names[group], (group,)) for group in plan.groups]
    if len(kinds) > 1:
        kinds.append(("all groups", plan.groups))
    for name, groups in kinds:
        yield f"{name} {more} faster (compute and memory)", _with_groups(model, groups, _faster)
        if plan.workers > 1:
            yield f"links of {name} {more} faster", _with_groups(model, groups, _wider)


def _faster(model: MixedModel, group: int) -> DeviceGroup:
    found = model.cluster.groups[group]
    device = dataclasses.replace(
        found.device.with_peaks({name: MORE * peak for name, peak in found.device.peak_flop_per_s.items()}),
        memory_bandwidth_bytes_per_s=MORE * found.device.memory_bandwidth_bytes_per_s,
    )
    return dataclasses.replace(found, device=device)


def _wider(model: MixedModel, group: int) -> DeviceGroup:
    """All levels of a group, so that messages to other groups gain where this side is the slower one."""
    levels = tuple(
        dataclasses.replace(level, bandwidth_bytes_per_s=MORE * level.bandwidth_bytes_per_s)
        for level in group_cluster(model.cluster, group).levels
    )
    return dataclasses.replace(model.cluster.groups[group], levels=levels)


def _with_groups(
    model: MixedModel, groups: Sequence[int], change: Callable[[MixedModel, int], DeviceGroup]
) -> MixedModel:
    changed = tuple(change(model, g) if g in groups else group for g, group in enumerate(model.cluster.groups))
    return MixedModel.build(model.workload, dataclasses.replace(model.cluster, groups=changed), model.assumptions)


# -- other plans on the same hardware --------------------------------------------------------------------------------------


def _variants(space: MixedPlanSpace, plan: MixedPlan, bound: StepBound) -> Iterator[tuple[str, MixedPlan]]:
    """Plans one change away that say why this one is as it is."""
    for group in plan.groups:
        plain = _without_recomputation(plan, group)
        if plain != plan:
            yield f"nothing recomputed on {space.names[group]}", plain
    slowest = plan.pipelines[bound.pipeline]
    for other in (bound.stage - 1, bound.stage + 1):
        if 0 <= other < len(slowest.stages) and slowest.stages[bound.stage].blocks > 1:
            stages = list(slowest.stages)
            stages[bound.stage] = _resized(stages[bound.stage], -1)
            stages[other] = _resized(stages[other], 1)
            words = f"one block of stage {bound.stage} moved to stage {other} ({space.names[stages[other].group]})"
            yield words, _with_pipeline(plan, bound.pipeline, dataclasses.replace(slowest, stages=tuple(stages)))
    for p, pipeline in enumerate(plan.pipelines):
        where = f" of pipeline {p}" if len(plan.pipelines) > 1 else ""
        for words, size in (("half", pipeline.micro_batch / 2), ("twice", pipeline.micro_batch * 2)):
            count, rest = divmod(pipeline.samples, size)
            if size == int(size) and not rest and count >= pipeline.replicas:
                each, longer = divmod(int(count), pipeline.replicas)
                changed = dataclasses.replace(pipeline, micro_batch=int(size), num_micro_batches=each, longer=longer)
                yield f"micro-batches{where} {words} as large ({int(size)})", _with_pipeline(plan, p, changed)
    if any(pipeline.replicas > 1 for pipeline in plan.pipelines):
        words = "without ZeRO" if plan.zero_stage else "with ZeRO-1"
        yield words, dataclasses.replace(plan, zero_stage=1 - plan.zero_stage)


def _with_pipeline(plan: MixedPlan, p: int, pipeline: MixedPipeline) -> MixedPlan:
    return dataclasses.replace(plan, pipelines=(*plan.pipelines[:p], pipeline, *plan.pipelines[p + 1 :]))


def _without_recomputation(plan: MixedPlan, group: int) -> MixedPlan:
    def plain(stage: MixedStage) -> MixedStage:
        if stage.group != group:
            return stage
        return dataclasses.replace(stage, recompute=RECOMPUTE[0], recompute_blocks=0)

    pipelines = tuple(
        dataclasses.replace(pipeline, stages=tuple(plain(stage) for stage in pipeline.stages))
        for pipeline in plan.pipelines
    )
    return dataclasses.replace(plan, pipelines=pipelines)


def _resized(stage: MixedStage, more: int) -> MixedStage:
    """A stage with more or fewer blocks; one that recomputes all its blocks goes on to."""
    blocks = stage.blocks + more
    again = stage.recompute_blocks + (more if stage.recompute_blocks == stage.blocks else 0)
    return dataclasses.replace(stage, blocks=blocks, recompute_blocks=min(again, blocks) if again else 0)
