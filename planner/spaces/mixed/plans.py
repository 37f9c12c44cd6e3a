"""Plans over several groups to documents and back: what a plan file says must agree with itself, its network, its cluster and the rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from costmodel.mixed.plan import MixedPipeline, MixedPlan, MixedStage
from planner.core.errors import did_you_mean
from planner.files.plan_file import PlanProblems

if TYPE_CHECKING:
    from planner.files.documents import Document, Location
    from planner.schema.plan import PlanDocument
    from planner.spaces.mixed.space import MixedPlanSpace

__all__ = ["mixed_entry", "plan_from_document"]

_PIPELINE = tuple(field.name for field in fields(MixedPipeline) if field.name != "stages")
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
                    {
                        "group": names[stage.group],
                        "tp": stage.tp,
                        "blocks": stage.blocks,
                        "recompute": stage.recompute,
                        "recompute_blocks": stage.recompute_blocks,
                    }
                    for stage in pipeline.stages
                ],
            }
            for pipeline in plan.pipelines
        ],
    }


def plan_from_document(document: PlanDocument, space: MixedPlanSpace, source: Document | None = None) -> MixedPlan:
    """Check a plan document against itself, its network, its cluster and the rules of the space.

    Parameters
    ----------
    document : PlanDocument
        With a section ``mixed``.
    space : MixedPlanSpace
        Of the question that the document asks.
    source : Document, optional
        The file, for line and column.

    Raises
    ------
    InputFileError
        Everything that contradicts.
    """
    return _Reader(document, space, source).read()


class _Reader(PlanProblems):
    def __init__(self, document: PlanDocument, space: MixedPlanSpace, source: Document | None) -> None:
        assert document.mixed is not None
        super().__init__(document, source)
        self.entry, self.space = document.mixed, space

    def read(self) -> MixedPlan:
        """Return the plan, or raise everything that contradicts."""
        plan = MixedPlan(
            pipelines=tuple(self._pipeline(p) for p in range(len(self.entry.pipelines))),
            **{name: getattr(self.entry, name) for name in _PLAN},
        )
        if not self.found:
            self._check_numbers(plan)
        if not self.found:
            for message in self.space.broken(plan):
                self.note(self._place(message), message)
        self.check()
        return plan

    def _pipeline(self, p: int) -> MixedPipeline:
        entry = self.entry.pipelines[p]
        stages = []
        for s, stage in enumerate(entry.stages):
            group = self._group(p, s, stage.group)
            stages.append(
                MixedStage(
                    group=group,
                    blocks=stage.blocks,
                    tp=stage.tp,
                    recompute=stage.recompute,
                    recompute_blocks=stage.recompute_blocks,
                )
            )
            self._check_recompute(p, s, stages[-1])
        if entry.longer >= entry.replicas:
            self.note(
                ("mixed", "pipelines", p, "longer"), f"is {entry.longer}, not less than the {entry.replicas} replicas"
            )
        blocks, needed = sum(stage.blocks for stage in stages), self.space.model.shape.num_blocks
        if blocks != needed:
            self.note(("mixed", "pipelines", p, "stages"), f"hold {blocks} blocks, the network has {needed}")
        return MixedPipeline(stages=tuple(stages), **{name: getattr(entry, name) for name in _PIPELINE})

    def _group(self, p: int, s: int, name: str) -> int:
        names = self.space.names
        if name in names:
            return names.index(name)
        cluster, known = self.space.model.cluster.name, ", ".join(names)
        message = f"cluster '{cluster}' has no group '{name}'{did_you_mean(name, names)} (known: {known})"
        self.note(("mixed", "pipelines", p, "stages", s, "group"), message)
        return 0

    def _check_recompute(self, p: int, s: int, stage: MixedStage) -> None:
        where = ("mixed", "pipelines", p, "stages", s, "recompute_blocks")
        if stage.recompute == "full" and not 1 <= stage.recompute_blocks <= stage.blocks:
            self.note(where, f"is {stage.recompute_blocks}; 1 to {stage.blocks} blocks of the stage can be recomputed")
        if stage.recompute != "full" and stage.recompute_blocks:
            self.note(where, f"belongs to 'recompute: full', and this is {stage.recompute}")

    def _check_numbers(self, plan: MixedPlan) -> None:
        batch = self.space.resolved.workload.global_batch
        used = " + ".join(f"{plan.devices_of(g)} of {self.space.names[g]}" for g in plan.groups)
        self.check_workers(plan.workers, f"the stages use {used} = {plan.workers}")
        if plan.global_batch != batch:
            shares = " + ".join(str(pipeline.samples) for pipeline in plan.pipelines)
            self.note(
                ("mixed", "pipelines"),
                f"micro_batch x (replicas x num_micro_batches + longer) = {shares} samples, but the global batch is {batch}",
            )

    def _place(self, message: str) -> Location:
        """The first stage with the degree that a rule names; else the whole plan."""
        words = message.split()
        if len(words) > 1 and words[0] == "tp" and words[1].isdigit():
            for p, pipeline in enumerate(self.entry.pipelines):
                for s, stage in enumerate(pipeline.stages):
                    if stage.tp == int(words[1]):
                        return ("mixed", "pipelines", p, "stages", s, "tp")
        return ("mixed",)
