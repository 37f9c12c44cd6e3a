"""Why a plan over several kinds of devices takes the time it takes: stage by stage, what bounds it, what would change it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.mixed.evaluate import cost_plans
from costmodel.mixed.links import group_cluster
from costmodel.mixed.plan import MixedPlan
from costmodel.tolerances import PROOF_SLACK
from costmodel.uncertainty.constants import CONSTANTS, with_constants
from planner.core.errors import NoFeasiblePlan
from planner.core.objectives import BETTER
from planner.core.search_errors import SearchInterrupted
from planner.report.numbers import percent
from planner.resolve import Resolved
from planner.spaces.mesh.fixed import fixed_by
from planner.spaces.mesh.wording import compared_parts
from planner.spaces.mixed.judge import MixedJudge, make_mixed_judge
from planner.spaces.mixed.remedies import no_mixed_plan, searched
from planner.spaces.mixed.results import MixedBreakdown, RankedMixedPlan
from planner.spaces.mixed.search import breakdown_of, settings_of
from planner.spaces.mixed.what_if import step_bound, what_if
from planner.uncertainty.bars import knowledge_of
from planner.uncertainty.effects import constants_of
from planner.uncertainty.sensitivity import SENSITIVITY_PLANS, Sensitivity, sensitivity_of

__all__ = ["explain_mixed"]

Progress = Callable[[str, float], None]


def explain_mixed(
    resolved: Resolved, plan: MixedPlan | None = None, progress: Progress | None = None
) -> MixedBreakdown:
    """Show where the time and the memory of a plan go, what bounds it, and what the best plan does better.

    Without a plan, the best of what is fixed is explained, or the best of all.

    Raises
    ------
    NoFeasiblePlan
        No plan is given and nothing fits.
    SearchInterrupted
        Ctrl-C.
    UsageError
        A plan that breaks rules, or options that exclude each other.
    """
    request = resolved.request
    judge = make_mixed_judge(resolved)
    if plan is None and not fixed_by(request).is_free:
        plan = _best_plans(judge, 1, progress)[0][0].plan
    breakdown = None if plan is None else breakdown_of(judge, plan)
    free = make_mixed_judge(
        dataclasses.replace(resolved, request=dataclasses.replace(request, mesh=None, micro_batches=None))
    )
    try:
        plans, gap = _best_plans(free, SENSITIVITY_PLANS if request.sensitivity else 1, progress)
    except NoFeasiblePlan:
        if breakdown is None:
            raise
        return _explained(judge, breakdown, [])  # what does not fit can still be explained
    if breakdown is None:
        breakdown = breakdown_of(judge, plans[0].plan)
    explained = _explained(judge, breakdown, plans)
    if gap > PROOF_SLACK:
        better = BETTER[judge.objective]
        note = f"the best plan is not proven: another could be up to {percent(gap)} {better}; --time-limit gives the search longer"
        explained = dataclasses.replace(explained, notes=(*explained.notes, note))
    return dataclasses.replace(explained, sensitivity=_sensitivity(free, plans)) if request.sensitivity else explained


def _best_plans(judge: MixedJudge, top: int, progress: Progress | None) -> tuple[list[RankedMixedPlan], float]:
    """The best plans, and how much faster another could be (a share)."""
    settings = dataclasses.replace(settings_of(judge), top=top)
    outcome = searched(judge, settings, progress)
    if outcome.interrupted:
        raise SearchInterrupted(None)
    if not outcome.candidates:
        raise no_mixed_plan(judge, settings, outcome)
    return judge.rank([candidate.plan for candidate in outcome.candidates]), outcome.gap


def _explained(judge: MixedJudge, breakdown: MixedBreakdown, plans: Sequence[RankedMixedPlan]) -> MixedBreakdown:
    plan = breakdown.ranked.plan
    bound = step_bound(judge, plan)
    best = plans[0] if plans else None
    ranked = breakdown.ranked
    if best is not None:
        ranked = dataclasses.replace(ranked, gap=ranked.score / best.score - 1.0)
    return dataclasses.replace(
        breakdown,
        ranked=ranked,
        bound=bound,
        what_if=what_if(judge, plan, bound),
        best=best,
        comparison=() if best is None else compared_parts(ranked.time_parts, best.time_parts),
    )


def _sensitivity(judge: MixedJudge, plans: Sequence[RankedMixedPlan]) -> tuple[Sensitivity, ...]:
    """Which constant would have to change, on all devices alike, for another plan to win."""
    model, ranked = judge.model, [plan.plan for plan in plans]
    weight = np.array([plan.score / plan.step_time_s for plan in plans])
    workers = max(plan.workers for plan in plans)
    known = {
        name
        for g in range(len(model.cluster.groups))
        for name in constants_of(model.workload, group_cluster(model.cluster, g), workers, model.assumptions)
    }

    def times(name: str, factor: float) -> FloatArray:
        cluster, assumptions = with_constants(model.cluster, model.assumptions, {name: factor})
        costs = cost_plans(model.with_constants(cluster, assumptions), ranked)
        return np.asarray(costs.step_time_s * weight)

    return sensitivity_of(
        times,
        knowledge_of(judge.resolved.request, is_transformer=True, names=tuple(n for n in CONSTANTS if n in known)),
        [plan.summary for plan in plans],
        group_cluster(model.cluster, 0),
        model.assumptions,
    )
