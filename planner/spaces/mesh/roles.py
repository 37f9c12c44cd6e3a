"""Which plan over a mesh an answer names first, the simplest of those nearly as good as the best, and plans for other wishes.

Each of these comes from a search of its own.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from costmodel.mesh.plan import MeshPlan
from planner.core.answer import Answer, RankedPlan, Role
from planner.core.numbers import byte_text
from planner.core.objectives import best_word
from planner.spaces.base import NEARLY, Found
from planner.spaces.mesh.space import EFFORT, MeshPlanSpace
from strategies.limits import Clock
from strategies.mesh.roles import (
    HARDLY_MORE,
    as_published,
    fewest_gpus,
    has_usual_stages,
    most_headroom,
    usual_stages,
)
from strategies.mesh.settings import DISTINCT, MeshCandidate, MeshOutcome, MeshSettings
from strategies.mesh.simplest import REQUIRED, WISHES, simplest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from costmodel.mesh.framework_rules import Values
    from planner.schema.model import PublishedPlan


def mesh_roles(space: MeshPlanSpace, settings: MeshSettings, found: Found, answer: Answer) -> tuple[Role, ...]:
    """The plan that leaves most memory, that on the fewest GPUs, that with a usual number of stages, and what is published for the network.

    Parameters
    ----------
    space : MeshPlanSpace
    settings : MeshSettings
        Limits of the searches, all together.
    found : Found
    answer : Answer
        What is known already: `planner.report.roles` shows its fastest plan and its baseline beside these.
    """
    clock, best, model = Clock(limit_s=settings.wall_s), answer.best, space.model
    settings = dataclasses.replace(settings, effort=EFFORT)
    known = [*found.outcome.candidates, *(_candidate(plan) for plan in answer.listed)]
    part = settings
    if REQUIRED.is_granted(model, best.plan):
        known = [candidate for candidate in known if REQUIRED.is_granted(model, candidate.plan)]
        restriction = REQUIRED.narrowed(settings.restriction)
        assert restriction is not None
        part = dataclasses.replace(settings, restriction=restriction)
    best_score = min(candidate.score for candidate in known)
    most_bytes = best.memory_bytes_per_gpu - HARDLY_MORE * settings.capacity_bytes
    roomy = most_headroom(model, part, known, best_score, most_bytes, clock) if most_bytes > 0 else None
    clearly = f"at least {byte_text(HARDLY_MORE * settings.capacity_bytes)}" if roomy is None else ""
    roles = [_role(space, answer, "most_headroom", _candidate(best) if roomy is None else roomy, note=clearly)]
    if not space.score.per_device:
        fewest = fewest_gpus(model, part, known, best_score, clock)
        if fewest is None or fewest.plan.workers >= best.workers:
            fewest = _candidate(best)
        roles.append(_role(space, answer, "fewest_gpus", fewest))
    if not has_usual_stages(model, best.plan.pp):
        usual = usual_stages(model, part, known, clock)
        if usual is not None:
            roles.append(_role(space, answer, "usual_stages", usual))
    return (*roles, *_published(space, settings, answer, clock))


def _published(space: MeshPlanSpace, settings: MeshSettings, answer: Answer, clock: Clock) -> list[Role]:
    """What is published for the network, if anything: of what fits, that for a sequence as long and about as many GPUs."""
    from planner.schema.settings import plan_settings

    gpus = space.request.gpus

    def distance(plan: PublishedPlan) -> tuple[float, ...]:
        return (abs(math.log(plan.seq / space.seq)), abs(math.log(plan.gpus / gpus)))

    nearest = sorted(space.resolved.model.published_plans, key=distance)
    outcomes = []
    for plan in nearest:
        outcomes.append(as_published(space.model, settings, plan_settings(plan.settings), clock))
        if outcomes[-1].candidates:
            found = outcomes[-1].candidates[0]
            return [_role(space, answer, "published", found, plan.source, changes(plan, found.plan, space.seq))]
    return [
        Role(
            name="published",
            plan=None,
            source=plan.source,
            why_not=_NOT_FOUND
            if _is_stopped(outcome)
            else why_not(space, settings, plan_settings(plan.settings), clock),
        )
        for plan, outcome in zip(nearest[:1], outcomes[:1], strict=True)
    ]


def changes(published: PublishedPlan, plan: MeshPlan, seq: int) -> str:
    """What a plan has otherwise than the source says, and what it adds so that it fits; empty where it is what is published.

    Examples
    --------
    >>> from planner.importers.networks import load_model
    >>> llama = load_model("llama3-405b").published_plans[0]
    >>> plan = MeshPlan(tp=8, pp=16, vpp=4, dp_replicate=2, dp_shard=16, zero_stage=1, num_micro_batches=64, recompute="full")
    >>> changes(llama, plan, 8192)
    '4,096 GPUs in place of 16,384, recompute full added'
    """
    pairs = {
        "GPUs": (plan.workers, published.gpus),
        "samples": (plan.global_batch, published.global_batch),
        "positions": (seq, published.seq),
    }
    found = [f"{here:,} {name} in place of {there:,}" for name, (here, there) in pairs.items() if here != there]
    added = [] if "recompute" in published.settings or plan.recompute == "none" else [f"recompute {plan.recompute}"]
    added += [f"offload {name}" for name in ("optimizer", "activations") if getattr(plan, f"offload_{name}")]
    return ", ".join([*found, *([f"{' and '.join(added)} added"] if added else [])])


_NOT_FOUND = "was not found in the time left"


def _is_stopped(outcome: MeshOutcome) -> bool:
    """Whether a search ended early, so that to find nothing does not mean that there is nothing."""
    return outcome.out_of_time or outcome.interrupted


def why_not(space: MeshPlanSpace, settings: MeshSettings, wanted: Mapping[str, Values], clock: Clock) -> str:
    """Why no plan has the settings that somebody published: the memory, the framework, or the network, the batch and the GPUs."""
    roomy = dataclasses.replace(settings, capacity_bytes=math.inf)
    outcome = as_published(space.model, roomy, wanted, clock)
    if outcome.candidates:
        need = float(space.model.evaluate_plans([outcome.candidates[0].plan]).memory_bytes[0])
        form = "one form of it" if _is_stopped(outcome) else f"its {best_word(space.objective).lower()} form"
        return f"does not fit here: {form} needs {byte_text(need)} per GPU, and the limit is {byte_text(settings.capacity_bytes)}"
    if _is_stopped(outcome):
        return _NOT_FOUND
    outcome = as_published(space.model, dataclasses.replace(roomy, obeys_framework=False), wanted, clock)
    if outcome.candidates:
        rule = next(iter(space.broken(outcome.candidates[0].plan)), "the framework does not run its settings")
        return f"is not legal here: {rule}"
    if _is_stopped(outcome):
        return _NOT_FOUND
    return "is not legal here: no division of this network and batch over so many GPUs has its settings"


def _candidate(plan: RankedPlan) -> MeshCandidate:
    return MeshCandidate(plan=plan.plan, score=plan.score, step_time_s=plan.step_time_s)


def _role(
    space: MeshPlanSpace, answer: Answer, name: str, found: MeshCandidate | None, source: str = "", note: str = ""
) -> Role:
    if found is None:
        return Role(name=name, plan=None, source=source)
    shown = next((plan for plan in answer.tabled if plan.plan == found.plan), None)
    ranked = space.rank([found.plan], answer.best.score)[0] if shown is None else shown
    return Role(name=name, plan=ranked, source=source, note=note)


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
