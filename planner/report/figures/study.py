"""What a page shows beyond the answer: more searches with the same cost model, for curves and fronts, and the best plan's step.

All of it is counted, not timed: the same question gives the same page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.timeline import Tracks
from planner.core.errors import PlannerError
from planner.core.request import Request
from planner.report.figures.standard import Curve
from planner.report.figures.views import AnswerView, PlanView, view_of_search
from planner.resolve import Resolved, resolve

if TYPE_CHECKING:
    from planner.core.results import SearchResult
    from planner.spaces.mesh.results import MeshResult
    from planner.spaces.mixed.results import MixedResult
    from planner.uncertainty.sensitivity import Sensitivity

__all__ = ["Study", "sensitivity_of_answer", "study_of", "tracks_of"]

Progress = Callable[[str, float], None]

# Numbers of GPUs on a scaling curve, halved from the most, and shares of the memory that plans of a front may use.
_COUNTS = 5
_MEMORY_SHARES = (0.7, 0.45, 0.3)
_MORE_PLANS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """More plans and curves."""

    candidates: tuple[PlanView, ...]  # for fronts; the answer's plans among them
    curves: tuple[Curve, ...]
    note: str = ""


def study_of(
    request: Request,
    answer: SearchResult | MeshResult | MixedResult,
    view: AnswerView,
    progress: Progress | None = None,
) -> Study:
    """Search at fewer GPUs, with less memory, and at batches that grow with the GPUs.

    Parameters
    ----------
    request : Request
        The question of the answer.
    answer : SearchResult, MeshResult or MixedResult
    view : AnswerView
        Of the answer.
    progress : function of (message, share done), optional
    """
    from planner.core.results import SearchResult
    from planner.spaces.mesh.results import MeshResult

    say = progress or (lambda _message, _share: None)
    if isinstance(answer, MeshResult):
        return _mesh_study(request, answer, view, say)
    if isinstance(answer, SearchResult):
        return _layer_study(request, view, say)
    return Study(candidates=view.shown, curves=(), note="Plans over several kinds of GPUs have no scaling curve.")


def _counts(most: int) -> list[int]:
    """Halves of a number: 256, 128, 64, 32, 16.

    >>> _counts(48)
    [3, 6, 12, 24, 48]
    """
    counts = [most]
    while len(counts) < _COUNTS and counts[-1] % 2 == 0:
        counts.append(counts[-1] // 2)
    return counts[::-1]


def _mesh_study(request: Request, answer: MeshResult, view: AnswerView, say: Progress) -> Study:
    from planner.spaces.mesh.judge import MeshJudge, make_judge
    from planner.spaces.mesh.results import RankedMeshPlan
    from planner.spaces.mesh.search import settings_of

    resolved = resolve(request)
    judge = make_judge(resolved)

    def best(judge: MeshJudge, gpus: int, share: float, top: int) -> list[RankedMeshPlan]:
        settings = settings_of(judge.resolved)
        settings = dataclasses.replace(
            settings, max_workers=gpus, capacity_bytes=share * settings.capacity_bytes, top=top
        )
        return judge.rank([candidate.plan for candidate in judge.search(settings).candidates])

    counts = _counts(request.gpus)
    found: list[RankedMeshPlan] = []
    strong, weak = [], []
    steps = 3 * len(counts) + len(_MEMORY_SHARES)
    for n, gpus in enumerate(counts):
        say(f"plans on {gpus} GPUs", n / steps)
        plans = best(judge, gpus, 1.0, _MORE_PLANS)
        found += plans
        if plans:
            strong.append((gpus, resolved.workload.global_batch, plans[0].step_time_s, plans[0].summary))
    for n, share in enumerate(_MEMORY_SHARES):
        say(f"plans in {share:.0%} of the memory", (len(counts) + n) / steps)
        found += best(judge, counts[-1], share, 2)
    for n, (gpus, batch) in enumerate(_weak_batches(counts, resolved)):
        say(f"plans at batch {batch}", (2 * len(counts) + n) / steps)
        plans = best(make_judge(resolved.with_batch(batch)), gpus, 1.0, 1)
        if plans:
            weak.append((gpus, batch, plans[0].step_time_s, plans[0].summary))
    seen = {plan.plan for plan in view.shown}
    fresh = {plan.plan: plan for plan in found if plan.plan not in seen}
    others = (
        view_of_search(dataclasses.replace(answer, plans=tuple(fresh.values()), refined=None, data_parallel=None))
        if fresh
        else None
    )
    candidates = (*view.shown, *(others.plans if others else ()))
    name = "the best plan"
    return Study(
        candidates=tuple(plan for plan in candidates if plan.memory_bytes <= plan.memory_capacity_bytes),
        curves=(Curve(name=name, weak=False, points=tuple(strong)), Curve(name=name, weak=True, points=tuple(weak))),
    )


def _weak_batches(counts: Sequence[int], resolved: Resolved) -> list[tuple[int, int]]:
    """Batches in proportion to the GPUs; where that is no whole number there is no point."""
    batch, most = resolved.workload.global_batch, counts[-1]
    return [(gpus, batch * gpus // most) for gpus in counts if batch * gpus % most == 0 and batch * gpus >= most]


def _layer_study(request: Request, view: AnswerView, say: Progress) -> Study:
    from planner.scaling import scale

    counts = _counts(request.gpus)
    batch = view.setting.global_batch
    curves, notes = [], []
    families = [("plain data parallelism", "data")] if not request.fix else []
    families.append(("the best plan", "best"))
    for n, (name, family) in enumerate(families):
        for weak in (False, True):
            say(f"scaling of {name}", (2 * n + weak) / (2 * len(families)))
            asked = dataclasses.replace(request, batch=max(batch // request.gpus, 1) if weak else batch)
            points = []
            for count in counts:
                try:
                    (point,) = scale(asked, (count,), weak=weak, family=family).points
                except PlannerError as error:  # nothing of the family fits there
                    notes.append(f"{name}, {'weak' if weak else 'strong'}, {count} GPUs: {error}")
                    continue
                if point.fits:
                    points.append((count, point.global_batch, point.step_time_s, point.summary))
            curves.append(Curve(name=name, weak=weak, points=tuple(points)))
    return Study(
        candidates=(*view.shown, *_layer_candidates(request, view, counts, say)),
        curves=tuple(curves),
        note="; ".join(notes),
    )


def _layer_candidates(request: Request, view: AnswerView, counts: Sequence[int], say: Progress) -> list[PlanView]:
    """The best plan of every number of GPUs, and of every family on the most."""
    from planner.core.results import SearchResult
    from planner.search import optimize

    known = {plan.plan for plan in view.shown}
    found: list[PlanView] = []
    for n, count in enumerate(counts):
        say(f"plans on {count} GPUs", 0.5 + 0.5 * n / len(counts))
        asked = dataclasses.replace(request, gpus=count, top=3, diverse=False)
        try:
            answer = optimize(asked)
        except PlannerError:
            continue
        assert isinstance(answer, SearchResult)
        for plan in view_of_search(answer).plans:
            if plan.plan not in known:
                known.add(plan.plan)
                found.append(plan)
    return found


def tracks_of(resolved: Resolved, plan: object) -> Tracks:
    """The step of one plan, event by event."""
    from costmodel.layerwise.plan import Plan
    from costmodel.mesh.plan import MeshPlan

    if isinstance(plan, MeshPlan):
        from costmodel.mesh.detail import mesh_tracks
        from planner.spaces.mesh.judge import make_judge

        return mesh_tracks(make_judge(resolved).model, plan)
    if isinstance(plan, Plan):
        from costmodel.layerwise.detail import layer_tracks

        return layer_tracks(resolved.workload, resolved.cluster, plan)
    from costmodel.mixed.plan import MixedPlan

    assert isinstance(plan, MixedPlan)
    from costmodel.mixed.detail import mixed_tracks
    from planner.spaces.mixed.judge import make_mixed_judge

    return mixed_tracks(make_mixed_judge(resolved).model, plan)


def sensitivity_of_answer(
    resolved: Resolved, answer: SearchResult | MeshResult | MixedResult
) -> tuple[Sensitivity, ...] | None:
    """Which constants would have to change for another of the plans to win; None where that is not known."""
    from planner.core.results import SearchResult
    from planner.spaces.mesh.results import MeshResult
    from planner.uncertainty.sensitivity import SENSITIVITY_PLANS, layer_sensitivity, mesh_sensitivity

    if len(answer.plans) < 2:
        return None
    if isinstance(answer, MeshResult):
        from planner.spaces.mesh.judge import make_judge

        return mesh_sensitivity(make_judge(resolved), answer.plans[:SENSITIVITY_PLANS])
    if isinstance(answer, SearchResult):
        return layer_sensitivity(resolved, answer.plans[:SENSITIVITY_PLANS])
    return None
