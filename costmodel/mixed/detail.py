"""One plan over several kinds of devices, event by event: the passes of every pipeline on every stage, the exchange and the update.

Every pipeline is simulated (`costmodel.timeline`) with the times of stages that the cost model uses. Gradients of a block travel between
the pipelines once all of them have finished their passes through it; the cost model lets every pipeline wait for the slowest one instead.
So the end of the spans is a check of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.mixed.evaluate import StageReport, move_s, stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPipeline, MixedPlan, group_names
from costmodel.timeline import STREAMS, TimelineInput, Tracks, TrackSpan, shown, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """One stage of one pipeline: its track, the blocks that it holds, and when its passes end."""

    track: int
    pipeline: int
    report: StageReport
    first: int
    after: int  # the block after its last one
    end_s: float


def mixed_tracks(model: MixedModel, plan: MixedPlan) -> Tracks:
    """Run one step of a plan.

    Parameters
    ----------
    model : MixedModel
    plan : MixedPlan
        A legal one.

    Returns
    -------
    Tracks
        One track per stage of every pipeline: its busiest replica. Equal replicas do the same, with a micro-batch less or as many.
    """
    reports = stage_reports(model, plan)
    spans: list[TrackSpan] = []
    names: list[str] = []
    stages: list[_Stage] = []
    for p, pipeline in enumerate(plan.pipelines):
        own = [report for report in reports if report.pipeline == p]
        timeline = simulate(_case(model, plan, pipeline, own))
        spans += [shown(span, track=len(names)) for span in timeline.spans]
        first = 0
        for s, report in enumerate(own):
            end = max(span.start_s + span.duration_s for span in timeline.spans if span.rank == s)
            after = first + report.blocks
            stages.append(_Stage(track=len(names) + s, pipeline=p, report=report, first=first, after=after, end_s=end))
            first = after
        names += _names(model, plan, p, own)
    spans += _ends(stages)
    spans += _tied(model, plan, stages, max(span.end_s for span in spans))
    return Tracks.of(tuple(names), STREAMS, spans)


def _case(model: MixedModel, plan: MixedPlan, pipeline: MixedPipeline, own: Sequence[StageReport]) -> TimelineInput:
    """A pipeline without its end; a stage's passes hold what it receives, which the simulation adds itself."""
    sent = [move_s(model, plan, pipeline, s) for s in range(len(own) + 1)]
    returned = [sent[s + 1] if report.backward_s > 0 else 0.0 for s, report in enumerate(own)]
    return TimelineInput(
        schedule="1f1b",
        pp=len(own),
        num_micro_batches=pipeline.most_micro_batches,
        forward_s=tuple(max(report.forward_s - sent[s], 0.0) for s, report in enumerate(own)),
        backward_s=tuple(max(report.backward_s - returned[s], 0.0) for s, report in enumerate(own)),
        send_forward_s=tuple(sent[1:-1]),
        send_backward_s=tuple(returned[:-1]),
    )


def _names(model: MixedModel, plan: MixedPlan, p: int, own: Sequence[StageReport]) -> list[str]:
    pipeline, groups = plan.pipelines[p], group_names(model.cluster)
    before = f"pipeline {p} " if len(plan.pipelines) > 1 else ""
    each = "" if pipeline.replicas == 1 else f", {pipeline.replicas} replicas"
    return [
        f"{before}stage {s} ({groups[report.group]}, tp {pipeline.stages[s].tp}, {report.blocks} blocks{each})"
        for s, report in enumerate(own)
    ]


def _ends(stages: Sequence[_Stage]) -> list[TrackSpan]:
    """Exchange and update of every stage, once the stages that hold blocks of its own have ended their passes."""
    spans = []
    for stage in stages:
        shared = [
            other.end_s
            for other in stages
            if other.pipeline != stage.pipeline and other.first < stage.after and stage.first < other.after
        ]
        start = max([stage.end_s, *shared])
        for stream, name, seconds in (
            ("exchange", "gradients and weights over replicas and pipelines", stage.report.exchange_s),
            ("optimizer", "optimizer", stage.report.update_s),
        ):
            spans.append(
                TrackSpan(track=stage.track, stream=stream, name=name, kind=stream, start_s=start, duration_s=seconds)
            )
            start += seconds
    return spans


def _tied(model: MixedModel, plan: MixedPlan, stages: Sequence[_Stage], after_s: float) -> list[TrackSpan]:
    """The sum of gradients of weights that both ends of a pipeline hold; of the slowest pipeline, as the cost model has it."""
    seconds = [model.tied_s(plan, pipeline) for pipeline in plan.pipelines]
    return [
        TrackSpan(
            track=stage.track,
            stream="exchange",
            name="gradients of weights that several stages hold",
            kind="exchange",
            start_s=after_s,
            duration_s=seconds[stage.pipeline],
        )
        for stage in stages
    ]
