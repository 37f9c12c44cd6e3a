"""The questions about plans over a device mesh: optimize, estimate, explain. The cost model judges, the search chooses, this file asks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from costmodel.hardware.energy import Power
from costmodel.mesh.plan import MeshPlan
from costmodel.tolerances import PROOF_SLACK
from planner.core.capacity import limit_notes
from planner.core.errors import NoFeasiblePlan
from planner.core.quantities import format_bytes
from planner.core.results import Assumption
from planner.core.search_errors import INTERRUPTED, SearchInterrupted, ended_early
from planner.resolve import Resolved
from planner.spaces.mesh.batches import batch_notes
from planner.spaces.mesh.cautions import cautions, hinges
from planner.spaces.mesh.contradictions import refuse_contradiction
from planner.spaces.mesh.exact import exact_plan
from planner.spaces.mesh.fixed import fixed_by
from planner.spaces.mesh.judge import MeshJudge, is_per_device, make_judge
from planner.spaces.mesh.remedies import no_mesh_plan, remedy
from planner.spaces.mesh.results import MeshBreakdown, MeshResult, RankedMeshPlan
from planner.spaces.mesh.wording import MEMORY_WORDS, MUCH_HOST, compared_parts, host_note
from planner.uncertainty.answers import mesh_bars
from planner.uncertainty.bars import COMPARED_PLANS, with_bars
from planner.uncertainty.sensitivity import SENSITIVITY_PLANS, mesh_sensitivity
from strategies.mesh.block_search import SplitCheck, split_plan, split_top
from strategies.mesh.plans import DISTINCT
from strategies.mesh.refine import refine_top
from strategies.mesh.settings import Bounds, MeshOutcome, MeshRestriction, MeshSettings

__all__ = ["estimate_mesh", "explain_mesh", "optimize_mesh", "settings_of"]

Progress = Callable[[str, float], None]

_DEFAULT_TIME_LIMIT_S = 60.0
# What follows the search has so long at least.
_MOMENT_S = 1.0
# Refinement ends by a count; this is for machines that are slower than any.
_REFINEMENT_S = 5.0
# A plan with stages of its own is harder to run: it is shown if it is better by more than this.
_WORTH_SHOWING = 1e-4
# A plan with splits of its own inside the blocks is a trainer to be written.
_WORTH_SPLITTING = 1e-2
_ONE = Bounds(values=(1,))
# Plain data parallelism, ZeRO included.
_DATA_PARALLEL = MeshRestriction(degrees=dict.fromkeys(("tp", "cp", "ep", "etp", "pp", "vpp"), _ONE))


def optimize_mesh(resolved: Resolved, progress: Progress | None = None, *, refine: bool = True) -> MeshResult:
    """Find the best plans for a question.

    Parameters
    ----------
    resolved : Resolved
    progress : function of (message, share done), optional
    refine : bool
        Whether plans with stages of their own are looked for, beyond the uniform space.

    Raises
    ------
    NoFeasiblePlan
        Nothing fits; the message names the nearest miss.
    SearchInterrupted
        Ctrl-C; carries the best so far.
    UsageError
        The network cannot be laid over a mesh, or nothing that is asked for is legal.
    """
    started = time.monotonic()
    judge = make_judge(resolved)
    settings = settings_of(resolved)
    refuse_contradiction(judge, settings)
    outcome = judge.search(_compared(settings, resolved) if refine else settings, progress)
    if not outcome.candidates:
        raise no_mesh_plan(judge, settings, outcome)
    compared = outcome.candidates
    outcome = dataclasses.replace(outcome, candidates=compared[: settings.top])
    # What comes after the search has what is left of the time, and a moment.
    settings = dataclasses.replace(settings, wall_s=max(settings.wall_s - (time.monotonic() - started), _MOMENT_S))
    result = _result(judge, settings, outcome, started)
    if outcome.interrupted:
        raise SearchInterrupted(result)
    if not refine:
        return dataclasses.replace(result, plans=(_barred(judge, result.plans[0]), *result.plans[1:]))
    bars = mesh_bars(judge, judge.rank([candidate.plan for candidate in compared]))
    result = dataclasses.replace(result, plans=with_bars(result.plans, bars), error_bars=bars)
    try:
        refined, checks = _refined(judge, settings, outcome, result.plans[0])
        result = dataclasses.replace(result, splits=tuple(checks))
        if refined is not None:
            others = [note for note in result.notes if note not in _host_notes(result.plans[0])]
            notes = (*others, *_host_notes(refined))
            result = dataclasses.replace(result, refined=_barred(judge, refined), notes=notes)
        more = (
            *cautions(judge, result.best),
            *hinges(judge, settings, result.plans),
            *batch_notes(judge, settings, result.best),
        )
        return dataclasses.replace(result, notes=(*result.notes, *more))
    except KeyboardInterrupt:
        raise SearchInterrupted(dataclasses.replace(result, notes=(*result.notes, INTERRUPTED))) from None


def estimate_mesh(resolved: Resolved, plan: MeshPlan | None = None) -> MeshBreakdown:
    """Predict one plan: the given one, or the one that the request spells out on exactly its GPUs."""
    judge = make_judge(resolved)
    defaults: tuple[Assumption, ...] = ()
    if plan is None:
        plan, defaults = exact_plan(judge)
    return _breakdown(judge, plan, None, defaults)


def explain_mesh(resolved: Resolved, plan: MeshPlan | None = None, progress: Progress | None = None) -> MeshBreakdown:
    """Show where the time and the memory of a plan go, and what the best plan does better.

    Without a plan and without anything fixed, the best plan itself is explained.
    """
    request = resolved.request
    judge = make_judge(resolved)
    defaults: tuple[Assumption, ...] = ()
    if plan is None and (request.mesh is not None or request.micro_batches is not None):
        plan, defaults = exact_plan(judge)
    workers = max(request.gpus, plan.workers if plan is not None else 1)
    top = SENSITIVITY_PLANS if request.sensitivity else 1
    free = dataclasses.replace(request, mesh=None, micro_batches=None, top=top, gpus=workers)
    try:
        plans = optimize_mesh(dataclasses.replace(resolved, request=free), progress, refine=False).plans
    except NoFeasiblePlan:
        if plan is None:
            raise
        return _with_split(judge, _breakdown(judge, plan, None, defaults))  # what does not fit can still be explained
    breakdown = _with_split(judge, _breakdown(judge, plan or plans[0].plan, plans[0], defaults))
    return (
        dataclasses.replace(breakdown, sensitivity=mesh_sensitivity(judge, plans)) if request.sensitivity else breakdown
    )


def _with_split(judge: MeshJudge, breakdown: MeshBreakdown) -> MeshBreakdown:
    """An explanation with what the per-layer program says about the splits of the layers."""
    plan, capacity = breakdown.ranked.plan, breakdown.ranked.memory_capacity_bytes
    return dataclasses.replace(breakdown, split=split_plan(judge.model, plan, capacity))


def _barred(judge: MeshJudge, plan: RankedMeshPlan) -> RankedMeshPlan:
    """A plan by itself with its interval."""
    return with_bars([plan], mesh_bars(judge, [plan]))[0]


def _compared(settings: MeshSettings, resolved: Resolved) -> MeshSettings:
    """The search for as many plans as may be the best, however few of them are shown."""
    distinct = None if resolved.request.diverse is False else DISTINCT
    return dataclasses.replace(settings, top=max(settings.top, COMPARED_PLANS), distinct=distinct)


def settings_of(resolved: Resolved) -> MeshSettings:
    """Limits of the search that a request asks for."""
    request = resolved.request
    return MeshSettings(
        max_workers=request.gpus,
        capacity_bytes=resolved.setting.memory_capacity_bytes,
        top=request.top,
        distinct=None if request.diverse is False or request.top == 1 else DISTINCT,
        restriction=fixed_by(request),
        objective=request.objective or "step_time",
        power=Power.of(resolved.cluster.device, resolved.cluster.host),
        wall_s=_DEFAULT_TIME_LIMIT_S if request.time_limit_s is None else request.time_limit_s,
        gap=request.gap,
        seed=request.seed,
    )


def _result(judge: MeshJudge, settings: MeshSettings, outcome: MeshOutcome, started: float) -> MeshResult:
    resolved = judge.resolved
    plans = judge.rank([candidate.plan for candidate in outcome.candidates])
    best = plans[0]
    score = outcome.candidates[0].score
    ratio = min(outcome.bound_score / score, 1.0)
    proven = ratio >= 1 - PROOF_SLACK
    wall_s = time.monotonic() - started
    data = None if outcome.interrupted else _best_data_parallel(judge, settings, best)
    return MeshResult(
        setting=resolved.setting,
        seq=judge.seq,
        objective=judge.objective,
        plans=tuple(plans),
        refined=None,
        proven_optimal=proven,
        bound_s=_bound_s(judge, best, 1.0 if proven else ratio),
        bound_gap=0.0 if proven else 1.0 - ratio,
        space_size=outcome.space_size,
        searched=outcome.searched,
        wall_s=wall_s,
        assumptions=(*resolved.assumptions, judge.host_memory(), judge.convention(), *judge.rates()),
        model_assumptions=judge.rows(),
        data_parallel=data,
        notes=(*_notes(resolved, outcome, best), *_about_list(settings, len(plans))),
    )


def _about_list(settings: MeshSettings, plans: int) -> list[str]:
    """What the plans of the list have to differ in."""
    if settings.distinct is None or plans < 2:
        return []
    return [
        "of plans with equal tp, cp, ep, pp, ZeRO stage, micro-batch and schedule the best is listed; --no-diverse lists the others, too"
    ]


def _refined(
    judge: MeshJudge, settings: MeshSettings, outcome: MeshOutcome, best: RankedMeshPlan
) -> tuple[RankedMeshPlan | None, list[SplitCheck]]:
    """The best of the plans with uneven stages or split blocks, if it beats the uniform ones. What the user fixed stays."""
    limit_s = min(settings.wall_s, _REFINEMENT_S)
    staged = refine_top(judge.model, outcome, settings, limit_s)
    split, checks = split_top(judge.model, outcome, settings.capacity_bytes, staged[:1])
    ranked = judge.rank([candidate.plan for candidate in (*staged[:1], *split[:1])], best)
    shown = [plan for plan in ranked[: len(staged[:1])] if plan.gap < -_WORTH_SHOWING]
    # Splits must be worth it beside the best of the others.
    least = min([plan.gap for plan in shown], default=0.0)
    shown += [plan for plan in ranked[len(staged[:1]) :] if plan.gap < least - _WORTH_SPLITTING]
    return (shown[-1] if shown else None), checks


def _bound_s(judge: MeshJudge, best: RankedMeshPlan, ratio: float) -> float:
    """Least step time of any plan. Of device-seconds, no plan has less than ``ratio`` of the best's, on all the GPUs at most.

    Of joules neither, and no device draws more than a busy one with its share of the host.
    """
    if judge.objective == "energy":
        assert judge.power is not None
        most_w = (judge.power.busy_w + judge.power.host_w) * max(judge.resolved.request.gpus, best.workers)
        return min(ratio * judge.score(best) / most_w, best.step_time_s)
    if not is_per_device(judge.objective):
        return ratio * best.step_time_s
    return ratio * best.step_time_s * best.workers / max(judge.resolved.request.gpus, best.workers)


def _best_data_parallel(judge: MeshJudge, settings: MeshSettings, best: RankedMeshPlan) -> RankedMeshPlan | None:
    """Best plan without tensor, context, expert and pipeline parallelism, whatever else is fixed."""
    plan = best.plan
    if settings.restriction.is_free and plan.tp * plan.cp * plan.ep * plan.pp == 1:
        return best
    plain = dataclasses.replace(settings, restriction=_DATA_PARALLEL, top=1)
    outcome = judge.search(plain)
    ranked = judge.rank([candidate.plan for candidate in outcome.candidates[:1]], best)
    return ranked[0] if ranked else None


def _notes(resolved: Resolved, outcome: MeshOutcome, best: RankedMeshPlan) -> list[str]:
    notes = [*resolved.model.notes, *_host_notes(best)]  # what an importer took for granted
    notes += limit_notes(resolved.request, resolved.cluster.device)
    if not outcome.is_counted:
        notes.append("the space holds more plans than are stated: the time limit came before all were counted")
    return [*notes, *ended_early(interrupted=outcome.interrupted, out_of_time=outcome.out_of_time)]


def _host_notes(plan: RankedMeshPlan) -> list[str]:
    return [host_note(plan.host_share)] if plan.host_share >= MUCH_HOST else []


def _breakdown(
    judge: MeshJudge, plan: MeshPlan, best: RankedMeshPlan | None, defaults: tuple[Assumption, ...]
) -> MeshBreakdown:
    from costmodel.mesh.detail import layer_rows, mesh_links, stage_rows

    resolved = judge.resolved
    judge.check(plan)
    ranked = judge.rank([plan], best)[0]
    notes = [*resolved.model.notes, *_host_notes(ranked)]
    if not ranked.fits:
        largest = max(ranked.memory_parts, key=lambda name: ranked.memory_parts[name])
        notes.append(
            f"does not fit: needs {format_bytes(ranked.memory_bytes_per_gpu)} per GPU, there are "
            f"{format_bytes(ranked.memory_capacity_bytes)}; most of it are {MEMORY_WORDS[largest]} "
            f"({format_bytes(ranked.memory_parts[largest])}){judge.host_in_words(ranked)}"
        )
        notes.append(remedy(judge, plan))
    notes += cautions(judge, ranked)
    bars = mesh_bars(judge, [ranked])
    return MeshBreakdown(
        setting=resolved.setting,
        seq=judge.seq,
        objective=judge.objective,
        ranked=with_bars([ranked], bars)[0],
        error_bars=bars,
        layers=tuple(layer_rows(judge.model, plan)),
        stages=tuple(stage_rows(judge.model, plan)),
        links=tuple(mesh_links(judge.model, plan)),
        best=best,
        comparison=() if best is None else compared_parts(ranked.time_parts, best.time_parts),
        assumptions=(*resolved.assumptions, *defaults, judge.host_memory(), judge.convention(), *judge.rates()),
        model_assumptions=judge.rows(),
        notes=tuple(notes),
    )
