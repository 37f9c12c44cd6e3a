"""Plans over several groups to documents and back: what a plan file says must agree with itself, its network, its cluster and the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from costmodel.mixed.plan import MixedPipeline, MixedPlan, MixedStage
from planner.core.errors import did_you_mean

if TYPE_CHECKING:
    from planner.files.documents import Location
    from planner.files.plan_file import PlanProblems
    from planner.schema.plan import MixedEntry, PlanDocument
    from planner.spaces.mixed.space import MixedPlanSpace

_PIPELINE = tuple(field.name for field in fields(MixedPipeline) if field.name != "stages")
_STAGE = ("tp", "blocks", "recompute", "recompute_blocks")
_PLAN = tuple(field.name for field in fields(MixedPlan) if field.name != "pipelines")


def mixed_entry(plan: MixedPlan, names: Sequence[str]) -> dict[str, Any]:
    """Write a plan as the section ``mixed`` of a plan file; every field is there, so that defaults may change.

    >>> plan = MixedPlan(pipelines=(MixedPipeline(stages=(MixedStage(group=1, blocks=4),), num_micro_batches=8),))
    >>> mixed_entry(plan, ["fast", "slow"])["pipelines"][0]["stages"][0]["group"]
    'slow'
    """
    return {
        **{name: getattr(plan, name) for name in _PLAN},
        "pipelines": [
            {
                **{name: getattr(pipeline, name) for name in _PIPELINE},
                "stages": [
                    {"group": names[stage.group], **{name: getattr(stage, name) for name in _STAGE}}
                    for stage in pipeline.stages
                ],
            }
            for pipeline in plan.pipelines
        ],
    }


def read_plan(document: PlanDocument, space: MixedPlanSpace, problems: PlanProblems) -> MixedPlan:
    """Read the plan of a document, and note what contradicts itself, its network, its cluster and the rules of the space."""
    entry = document.mixed
    assert entry is not None
    pipelines = tuple(_pipeline(each, p, space, problems) for p, each in enumerate(entry.pipelines))
    plan = MixedPlan(pipelines=pipelines, **{name: getattr(entry, name) for name in _PLAN})
    if problems.found:
        return plan
    used = " + ".join(f"{plan.devices_of(g)} of {space.names[g]}" for g in plan.groups)
    problems.check_workers(plan.workers, f"the stages use {used} = {plan.workers}")
    batch = space.resolved.workload.global_batch
    if plan.global_batch != batch:
        shares = " + ".join(str(pipeline.samples) for pipeline in plan.pipelines)
        problems.note(
            ("mixed", "pipelines"),
            f"micro_batch x (replicas x num_micro_batches + longer) = {shares} samples, but the global batch is {batch}",
        )
    if not problems.found:
        for message in space.broken(plan):
            problems.note(_place(entry, message), message)
    return plan


def _pipeline(entry: Any, p: int, space: MixedPlanSpace, problems: PlanProblems) -> MixedPipeline:
    where = ("mixed", "pipelines", p)
    stages = []
    for s, each in enumerate(entry.stages):
        place = (*where, "stages", s)
        if each.group not in space.names:
            cluster, known = space.model.cluster.name, ", ".join(space.names)
            hint = did_you_mean(each.group, space.names)
            message = f"cluster '{cluster}' has no group '{each.group}'{hint} (known: {known})"
            problems.note((*place, "group"), message)
        group = space.names.index(each.group) if each.group in space.names else 0
        values = {name: getattr(each, name) for name in _STAGE}
        stages.append(MixedStage(group=group, **values))
        again, blocks = each.recompute_blocks, each.blocks
        if each.recompute == "full" and not 1 <= again <= blocks:
            message = f"is {again}; 1 to {blocks} blocks of the stage can be recomputed"
            problems.note((*place, "recompute_blocks"), message)
        if each.recompute != "full" and again:
            problems.note((*place, "recompute_blocks"), f"belongs to 'recompute: full', and this is {each.recompute}")
    if entry.longer >= entry.replicas:
        problems.note((*where, "longer"), f"is {entry.longer}, not less than the {entry.replicas} replicas")
    total, needed = sum(stage.blocks for stage in stages), space.model.shape.num_blocks
    if total != needed:
        problems.note((*where, "stages"), f"hold {total} blocks, the network has {needed}")
    return MixedPipeline(stages=tuple(stages), **{name: getattr(entry, name) for name in _PIPELINE})


def _place(entry: MixedEntry, message: str) -> Location:
    """The first stage with the degree that a rule names; else the whole plan."""
    words = message.split()
    if len(words) > 1 and words[0] == "tp" and words[1].isdigit():
        for p, pipeline in enumerate(entry.pipelines):
            for s, stage in enumerate(pipeline.stages):
                if stage.tp == int(words[1]):
                    return ("mixed", "pipelines", p, "stages", s, "tp")
    return ("mixed",)
