"""The questions that the planner answers, in every space of plans: optimize, estimate, explain.

The cost model evaluates plans, a strategy searches them, the space (`planner.spaces`) brings both together, and this module asks.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from planner.core.answer import Answer, Assumption, Estimate, Proof, RankedPlan, Role
from planner.core.errors import NoFeasiblePlan, SearchInterrupted, UsageError
from planner.core.notes import Note
from planner.core.request import SPACES, Request
from planner.question.lookup import source_notes
from planner.question.resolve import resolve
from planner.spaces.base import PlanSpace, space_of

if TYPE_CHECKING:
    from strategies.limits import Progress


def optimize(request: Request, progress: Progress | None = None, *, compare: bool = True) -> Answer:
    """Find the best plans for a question, in the space that it is about.

    Parameters
    ----------
    request : Request
    progress : function of (message, share done), optional
    compare : bool
        Whether the best plans are compared with baselines and under the model's error, and refined beyond the space that is proven.

    Raises
    ------
    NoFeasiblePlan
        Nothing fits; the message names the nearest miss.
    LimitReached
        The time limit came before a plan.
    SearchInterrupted
        Ctrl-C; carries the best so far.
    PlannerError
        Unusable options or files.
    """
    return searched(space_of(resolve(request)), request.top, progress, compare=compare)


def optimize_beside(request: Request, plan: Any, progress: Progress | None = None) -> Answer:
    """Find the best plans, as `optimize`, whatever is fixed, and show the given plan beside them, or the one that a request spells out.

    Raises
    ------
    PlannerError
        As `optimize` and `estimate`; the plan is of a space whose answers name no roles.
    """
    space = space_of(resolve(request))
    if not space.names_roles:
        raise UsageError(
            f"--plan and --from of 'planner optimize' are for {SPACES['mesh'].plans} or {SPACES['layers'].plans}, "
            f"and this is about {SPACES[space.name].plans}; "
            "'planner explain --plan FILE' compares a plan with the best"
        )
    if plan is None:
        plan, _ = space.exact_plan()
    free = space.without_fixed(max(request.gpus, plan.workers), request.top)
    answer = searched(free, request.top, progress)
    (ranked,) = space.rank([plan], answer.best.score)
    return dataclasses.replace(answer, roles=(*answer.roles, Role(name="given", plan=ranked)))


def searched(
    space: PlanSpace, top: int, progress: Progress | None = None, *, compare: bool = True, prefer: bool = False
) -> Answer:
    """Find the best plans of a space, as `optimize`; ``prefer``: the plan to run comes first even where nothing is compared."""
    from planner.uncertainty.bars import COMPARED_PLANS

    started = time.monotonic()
    space.refuse_contradiction()
    found = space.search(max(top, COMPARED_PLANS) if compare else top, progress)
    if not found.plans:
        raise space.no_plan(found.outcome)
    found = dataclasses.replace(found, wall_s=time.monotonic() - started)
    interrupted = found.outcome.interrupted
    if (compare or prefer) and not interrupted:
        try:
            found = space.preferred(found)
        except KeyboardInterrupt:
            interrupted = found.outcome.interrupted = True
    ranked = space.rank(found.plans)
    if found.refined is not None:  # it is the first
        ranked = [dataclasses.replace(plan, rank=plan.rank + 1) for plan in ranked]
    answer = Answer(
        space=space,
        setting=space.setting(ranked[0].plan),
        objective=space.objective,
        plans=tuple(ranked[: found.shown]),
        proof=space.proof(found, ranked[: found.shown]),
        assumptions=space.assumptions(ranked[0].plan),
        model_assumptions=space.model_assumptions(),
        free_layers=space.free_layers,
        interrupted=interrupted,
        refined=found.refined,
        fastest=found.fastest,
        forgone=found.forgone,
        details=found.details,
    )
    if not compare and not interrupted:
        (first,), _ = space.error_bars(ranked[:1])
        return dataclasses.replace(answer, plans=(first, *answer.plans[1:]))
    answer = dataclasses.replace(answer, baselines=space.baselines(found, ranked[0]))
    answer = dataclasses.replace(answer, notes=(*source_notes(space.request), *space.search_notes(found, answer)))
    if interrupted:
        raise SearchInterrupted(answer)
    compared, bars = space.error_bars(ranked)
    # A baseline that is one of the plans has that plan's interval.
    baselines = {
        name: next((with_bar for plan, with_bar in zip(ranked, compared, strict=True) if plan is baseline), baseline)
        for name, baseline in answer.baselines.items()
    }
    more = () if top == 1 else tuple(plan for plan in compared[found.shown :] if plan.rank in bars.named)
    answer = dataclasses.replace(
        answer, plans=tuple(compared[: found.shown]), more=more, error_bars=bars, baselines=baselines
    )
    answer = dataclasses.replace(answer, notes=(*answer.notes, *space.wide_interval(compared[0], bars)))
    try:
        return space.finished(answer, found)
    except KeyboardInterrupt:
        raise SearchInterrupted(dataclasses.replace(answer, notes=(*answer.notes, Note("interrupted")))) from None


def estimate(request: Request, plan: Any = None) -> Estimate:
    """Predict one plan: the given one, or the one that a request spells out on exactly its GPUs.

    Raises
    ------
    UsageError
        Options that leave the plan open or contradict each other, every rule that the plan breaks.
    """
    space = space_of(resolve(request))
    defaults: tuple[Assumption, ...] = ()
    if plan is None:
        plan, defaults = space.exact_plan()
    return predicted(space, plan, defaults)


def explain(request: Request, plan: Any = None, progress: Progress | None = None) -> Estimate:
    """Show where the time and the memory of a plan go, and what the best plan does better.

    Without a plan and without anything fixed, the best plan itself is explained.

    Raises
    ------
    PlannerError
        As for `estimate`; nothing fits and no plan was given.
    """
    from planner.uncertainty.sensitivity import SENSITIVITY_PLANS

    space = space_of(resolve(request))
    defaults: tuple[Assumption, ...] = ()
    if plan is None and space.is_spelled_out:
        if space.has_exact_plans:
            plan, defaults = space.exact_plan()
        else:
            plan = searched(space, 1, progress, compare=False).plans[0].plan
    gpus = max(request.gpus, 1 if plan is None else plan.workers)
    free = space.without_fixed(gpus, SENSITIVITY_PLANS if request.sensitivity else 1)
    plans: Sequence[RankedPlan] = ()
    proof: Proof | None = None
    best: RankedPlan | None = None
    try:
        answer = searched(free, free.resolved.request.top, progress, compare=False, prefer=plan is None)
        plans, proof = answer.plans, answer.proof
        best = answer.fastest or plans[0]
    except NoFeasiblePlan:
        if plan is None:
            raise
    # What does not fit can still be explained, without a best plan beside it.
    chosen = plans[0].plan if plan is None else plan
    found = predicted(space, chosen, defaults, best)
    found = space.for_plan(chosen).explained(found, plans, proof)
    return dataclasses.replace(found, sensitivity=free.sensitivity(plans)) if request.sensitivity and plans else found


def predicted(
    space: PlanSpace, plan: Any, defaults: tuple[Assumption, ...] = (), best: RankedPlan | None = None
) -> Estimate:
    """Predict a plan of a space, and compare it with the best where that is known."""
    space = space.for_plan(plan)
    space.check(plan)
    ranked = space.rank([plan], None if best is None else best.score)[0]
    (barred,), bars = space.error_bars([ranked])
    return Estimate(
        space=space,
        setting=space.setting(plan),
        objective=space.objective,
        ranked=barred,
        tables=space.tables(plan, ranked),
        best=best,
        comparison=() if best is None else compared_parts(barred, best),
        assumptions=(*space.assumptions(plan), *defaults),
        model_assumptions=space.model_assumptions(),
        free_layers=space.free_layers,
        notes=(*source_notes(space.request), *space.plan_notes(barred), *space.wide_interval(barred, bars)),
        error_bars=bars,
    )


def compared_parts(plan: RankedPlan, best: RankedPlan) -> tuple[tuple[str, float, float], ...]:
    """Parts of the times of two plans side by side, by their labels: what the second saves most first."""
    several = len(plan.time_totals) > 1
    rows = []
    for total in plan.time_totals:
        theirs = best.parts(total)
        prefix = f"{_TITLES[total]}: " if several else ""
        for name, value in plan.parts(total).items():
            rows.append((f"{prefix}{plan.declared[name].label}", value, theirs[name]))
    return tuple(sorted(rows, key=lambda row: row[2] - row[1]))


_TITLES = {"tpot_s": "per token", "ttft_s": "first token"}
