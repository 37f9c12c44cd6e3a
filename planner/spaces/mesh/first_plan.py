"""Which plan an answer names first: the simplest of those that are nearly as good as the best."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from planner.core.answer import RankedPlan
from planner.spaces.base import NEARLY, Found
from planner.spaces.mesh.space import MeshPlanSpace
from strategies.mesh.settings import DISTINCT, MeshSettings
from strategies.mesh.simplest import REQUIRED, WISHES, simplest

# A plan with stages of its own is better if it is better by more than this.
_WORTH_SHOWING = 1e-4
# A plan with splits of its own inside the blocks is a trainer to be written.
_WORTH_SPLITTING = 1e-2


def with_first(space: MeshPlanSpace, settings: MeshSettings, found: Found) -> Found:
    """What a search brought with the plan to run first.

    Parameters
    ----------
    space : MeshPlanSpace
    settings : MeshSettings
        Limits of further searches.
    found : Found
    """
    outcome = dataclasses.replace(found.outcome, candidates=list(found.outcome.candidates[: found.shown]))
    best = found.outcome.candidates[0]
    refined, checks = _refined(space, settings, outcome)
    found = dataclasses.replace(found, details={"splits": tuple(checks)})
    if space.request.fastest:
        return dataclasses.replace(found, refined=refined)
    known = found.outcome.candidates
    chosen, reference = simplest(space.model, settings, best, NEARLY, known)
    if refined is not None and (
        REQUIRED.is_granted(space.model, refined.plan) or not REQUIRED.is_granted(space.model, chosen.plan)
    ):
        most = refined.score * (1.0 + NEARLY)
        if chosen.score > most:
            chosen, _ = simplest(space.model, settings, best, max(most / reference - 1.0, 0.0), known)
        if chosen.score > most:
            return dataclasses.replace(found, refined=refined)
    (second,) = space.rank([best.plan], chosen.score)
    fastest = dataclasses.replace(second if refined is None else refined, rank=2)
    if fastest.plan == chosen.plan:
        return found
    forgone = [
        wish.name
        for wish in WISHES
        if wish.is_granted(space.model, chosen.plan) and not wish.is_granted(space.model, fastest.plan)
    ]
    if refined is not None:
        forgone.append("uniform")
    alike = () if space.request.diverse is False else DISTINCT
    others = [
        plan
        for plan in found.plans
        if (any(getattr(plan, name) != getattr(chosen.plan, name) for name in alike) if alike else plan != chosen.plan)
    ]
    return found.led_by(chosen.plan, others, fastest, forgone)


def _refined(space: MeshPlanSpace, settings: MeshSettings, outcome: Any) -> tuple[RankedPlan | None, Sequence[Any]]:
    """The best plan with uneven stages or split blocks, if it beats the uniform ones, and what was found out about splits.

    What the user fixed stays.
    """
    from strategies.mesh.block_search import split_top
    from strategies.mesh.framework_rules import may
    from strategies.mesh.refine import refine_top

    staged = refine_top(space.model, outcome, settings, settings.wall_s)
    split_alike = not may(space.model, settings, "block_splits")
    split, checks = ([], []) if split_alike else split_top(space.model, outcome, settings.capacity_bytes, staged[:1])
    candidates = (*staged[:1], *split[:1])
    ranked = space.rank([candidate.plan for candidate in candidates], outcome.candidates[0].score)
    shown = [plan for plan in ranked[: len(staged[:1])] if plan.gap < -_WORTH_SHOWING]
    # Splits must be worth it beside the best of the others.
    least = min([plan.gap for plan in shown], default=0.0)
    shown += [plan for plan in ranked[len(staged[:1]) :] if plan.gap < least - _WORTH_SPLITTING]
    return (dataclasses.replace(shown[-1], rank=1) if shown else None), checks
