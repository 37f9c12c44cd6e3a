"""The questions about several kinds of devices: optimize and estimate. The cost model judges, the search chooses, this file asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from costmodel.hardware.energy import Power
from costmodel.mesh.energy import plans_energy_j
from costmodel.mixed.links import group_cluster
from costmodel.mixed.plan import MixedPlan
from costmodel.tolerances import PROOF_SLACK
from planner.core.capacity import limit_notes
from planner.core.errors import UsageError
from planner.core.objectives import BETTER
from planner.core.quantities import format_bytes
from planner.core.search_errors import SearchInterrupted, ended_early
from planner.resolve import Resolved
from planner.spaces.mesh.fixed import fixed_by
from planner.spaces.mesh.wording import MEMORY_WORDS, mesh_plan_in_words
from planner.spaces.mixed.fixed import with_fixed
from planner.spaces.mixed.judge import MixedJudge, make_mixed_judge
from planner.spaces.mixed.remedies import no_mixed_plan, searched
from planner.spaces.mixed.results import GroupBaseline, MeshAlone, MixedBreakdown, MixedResult, RankedMixedPlan
from planner.uncertainty.answers import parts_bars
from planner.uncertainty.bars import with_bars
from strategies.mesh.search import search_mesh
from strategies.mesh.settings import MeshSettings
from strategies.mixed.objective import is_time
from strategies.mixed.settings import MixedOutcome, MixedSettings

__all__ = ["breakdown_of", "estimate_mixed", "optimize_mixed", "settings_of"]

Progress = Callable[[str, float], None]

_DEFAULT_TIME_LIMIT_S = 60.0
# A look at one group with all kinds of plans, for comparison.
_ALONE_S = 3.0


def optimize_mixed(resolved: Resolved, progress: Progress | None = None) -> MixedResult:
    """Find the fastest plans over the groups of a cluster.

    Raises
    ------
    NoFeasiblePlan
        Nothing fits; the message names the nearest miss.
    LimitReached
        The time limit came before a plan.
    SearchInterrupted
        Ctrl-C; carries the best so far.
    UsageError
        The network or the cluster cannot be planned like this.
    """
    started = time.monotonic()
    judge = make_mixed_judge(resolved)
    settings = settings_of(judge)
    outcome = searched(judge, settings, progress)
    if not outcome.candidates:
        raise no_mixed_plan(judge, settings, outcome)
    result = _result(judge, outcome, started)
    if outcome.interrupted:
        raise SearchInterrupted(result)
    return result


def estimate_mixed(resolved: Resolved, plan: MixedPlan | None) -> MixedBreakdown:
    """Predict one plan.

    Raises
    ------
    UsageError
        No plan is given, or it breaks rules.
    """
    judge = make_mixed_judge(resolved)
    if plan is None:
        raise UsageError(
            f"cluster '{resolved.cluster.name}' has several groups of devices, and options cannot spell out which stage goes where; "
            "write a plan file with 'planner optimize ... --export plan.yaml' and predict it with --plan"
        )
    return breakdown_of(judge, plan)


def breakdown_of(judge: MixedJudge, plan: MixedPlan) -> MixedBreakdown:
    """Predict one plan, part by part and stage by stage.

    Raises
    ------
    UsageError
        It breaks rules.
    """
    problems = judge.broken(plan)
    if problems:
        raise UsageError("\n".join(problems))
    ranked = judge.rank([plan])[0]
    bars = parts_bars(judge.resolved, [ranked])
    return MixedBreakdown(
        setting=judge.resolved.setting,
        objective=judge.objective,
        seq=judge.seq,
        ranked=with_bars([ranked], bars)[0],
        error_bars=bars,
        stages=judge.stages(plan),
        assumptions=judge.assumptions(),
        model_assumptions=judge.rows(),
        notes=(*_format_notes(judge, ranked), *_too_full(judge, ranked)),
    )


def settings_of(judge: MixedJudge) -> MixedSettings:
    """Limits of the search that a request asks for."""
    request = judge.resolved.request
    settings = MixedSettings(
        top=request.top,
        objective=judge.objective,
        group_limits=judge.devices,
        capacity_bytes=judge.capacity_bytes,
        wall_s=_DEFAULT_TIME_LIMIT_S if request.time_limit_s is None else request.time_limit_s,
        gap=request.gap,
        assumptions=judge.model.assumptions,
    )
    return with_fixed(settings, fixed_by(request), judge.model.shape.global_batch)


def _result(judge: MixedJudge, outcome: MixedOutcome, started: float) -> MixedResult:
    plans = judge.rank([candidate.plan for candidate in outcome.candidates])
    best = plans[0]
    proven = outcome.gap <= PROOF_SLACK
    baselines = _baselines(judge, outcome, best.score)
    bars = parts_bars(judge.resolved, plans)
    return MixedResult(
        setting=judge.resolved.setting,
        seq=judge.seq,
        plans=with_bars(plans, bars),
        error_bars=bars,
        proven_optimal=proven,
        objective=judge.objective,
        bound_s=best.step_time_s if proven and is_time(judge.objective) else _bound_s(judge, outcome.bound_score, best),
        bound_gap=0.0 if proven else outcome.gap,
        searched=outcome.searched,
        wall_s=time.monotonic() - started,
        baselines=baselines,
        assumptions=judge.assumptions(),
        model_assumptions=judge.rows(),
        notes=(
            *_format_notes(judge, best),
            *_slower_notes(baselines, best, BETTER[judge.objective]),
            *_notes(judge, outcome, best),
        ),
    )


def _bound_s(judge: MixedJudge, bound_score: float, best: RankedMixedPlan | None = None) -> float:
    """Least step time of any plan, from the least score: that of plans that weigh as much as all devices together."""
    bound_s = bound_score / judge.most_weight()
    return bound_s if best is None else min(bound_s, best.step_time_s)


def _baselines(judge: MixedJudge, outcome: MixedOutcome, best_score: float) -> tuple[GroupBaseline, ...]:
    alone = [b.candidate.plan for b in outcome.baselines if b.candidate is not None]
    found = iter(judge.rank(alone, best_score))
    return tuple(
        GroupBaseline(
            group=judge.names[b.group],
            available=judge.devices[b.group],
            plan=None if b.candidate is None else next(found),
            bound_s=_bound_s(judge, b.bound_score),
            mesh=None if outcome.interrupted else _mesh_alone(judge, b.group),
        )
        for b in outcome.baselines
    )


def _mesh_alone(judge: MixedJudge, group: int) -> MeshAlone | None:
    """What the search for one kind of device finds on a group: its space has more kinds of plans."""
    limit_s = judge.resolved.request.time_limit_s
    power = Power.of(judge.model.cluster.groups[group].device, judge.model.cluster.host)
    settings = MeshSettings(
        max_workers=judge.devices[group],
        capacity_bytes=judge.capacity_bytes[group],
        top=1,
        restriction=fixed_by(judge.resolved.request),
        objective=judge.objective,
        power=power,
        wall_s=_ALONE_S if limit_s is None else min(limit_s, _ALONE_S),
    )
    model = judge.model.group_model(group, judge.model.precision_of((group,)))
    cluster = group_cluster(judge.model.cluster, group)
    candidates = search_mesh(model.workload, cluster, settings, None, judge.model.assumptions).candidates
    if not candidates:
        return None
    plan = candidates[0].plan
    costs = model.evaluate_plans([plan])
    step = float(costs.step_time_s[0])
    counts = [plan.workers if g == group else 0 for g in range(len(judge.devices))]
    score = step * judge.weights((group,)).devices(counts)
    if judge.objective == "energy" and power is not None:
        score = float(plans_energy_j(model, [plan], costs, power)[0])
    return MeshAlone(plan=plan, summary=mesh_plan_in_words(plan), step_time_s=step, score=score)


def _slower_notes(baselines: Sequence[GroupBaseline], best: RankedMixedPlan, better: str) -> list[str]:
    return [
        f"{b.group} alone is {better}, with a plan that the stated space lacks: {b.mesh.summary}; a cluster file with that group only "
        "asks for it"
        for b in baselines
        if b.mesh is not None and b.mesh.score < best.score * (1 - PROOF_SLACK)
    ]


def _format_notes(judge: MixedJudge, ranked: RankedMixedPlan) -> list[str]:
    """Why a plan computes in another number format than the one that was asked for."""
    wanted = judge.resolved.workload.precision.compute
    lacking = [use.name for use in ranked.groups if use.devices and not _has(judge, use.name, wanted)]
    if not lacking:
        return []
    verb = "have" if len(lacking) > 1 else "has"
    return [f"{', '.join(lacking)} {verb} no {wanted}, so the whole job runs in {ranked.precision}"]


def _has(judge: MixedJudge, name: str, number_format: str) -> bool:
    return number_format in judge.model.cluster.groups[judge.names.index(name)].device.formats


def _notes(judge: MixedJudge, outcome: MixedOutcome, best: RankedMixedPlan) -> list[str]:
    request, notes = judge.resolved.request, []
    total = sum(group.num_devices or 0 for group in judge.model.cluster.groups)
    if request.gpus < total:
        counted = ", ".join(f"{count} of {name}" for count, name in zip(judge.devices, judge.names, strict=True))
        notes.append(f"--gpus {request.gpus} are counted through the groups in their order: {counted}")
    for use in best.groups:
        if use.available and not use.devices:
            why = (
                (
                    "would only slow the best plan down and"
                    if judge.objective == "step_time"
                    else "would make the best plan no better and"
                )
                if outcome.gap <= PROOF_SLACK
                else "is not in the best plan found and"
            )
            notes.append(f"{use.name} {why} stays idle")
    largest = max((group.device for group in judge.model.cluster.groups), key=lambda device: device.capacity_bytes)
    notes += limit_notes(request, largest)
    return [*notes, *ended_early(interrupted=outcome.interrupted, out_of_time=outcome.out_of_time)]


def _too_full(judge: MixedJudge, ranked: RankedMixedPlan) -> list[str]:
    notes = [
        f"does not fit: {use.name} needs {format_bytes(use.memory_bytes)} per GPU, there are {format_bytes(use.memory_capacity_bytes)}"
        for use in ranked.groups
        if not use.fits
    ]
    if notes:
        part = max(ranked.memory_parts, key=lambda name: ranked.memory_parts[name])
        notes.append(
            f"most of the fullest device ({judge.names[ranked.fullest]}) are {MEMORY_WORDS[part]}: "
            f"{format_bytes(ranked.memory_parts[part])}"
        )
    return notes
