"""What keeps the first plan from being faster, and the change that helps: the batch, the memory limit, a rule of the framework, an option.

Each change is searched for in a corner of the space (degrees that are powers of two), and only for plans that are clearly faster. What is
found is a plan that exists, so that the sentence is true; where nothing is found, something may still bind a little. That fewer GPUs are
nearly as fast is a role of its own (`planner.spaces.mesh.roles`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from planner.core.answer import RankedPlan
from planner.core.capacity import usable_bytes
from planner.core.notes import Note
from planner.question.fixed import flags_of, given_text, without
from planner.spaces.base import WORTH_FASTER
from planner.spaces.mesh.plans import mesh_plan_in_words
from planner.spaces.mesh.space import EFFORT, MeshPlanSpace, mesh_space
from strategies.mesh.search import search_corner
from strategies.mesh.settings import MeshCandidate, MeshSettings

# Shares of the step below which a change is not worth a sentence.
_BINDS = 0.03
_MOST_OPTIONS = 3


def binding_notes(space: MeshPlanSpace, settings: MeshSettings, plans: Sequence[RankedPlan]) -> list[Note]:
    """Say what binds.

    Parameters
    ----------
    space : MeshPlanSpace
    settings : MeshSettings
        Limits of the search.
    plans : sequence of RankedPlan
        What was found, the first plan first. Nothing is said where plans are not ranked by step time.
    """
    if not space.ranks_by_time:
        return []
    # Plans with activations on the host are out of the question where the first plan has none there.
    best = min(
        (plan for plan in plans if plan.plan.offload_activations <= plans[0].plan.offload_activations),
        key=lambda plan: plan.score,
    )
    return [
        *_batch(space, settings, best),
        *_rules(space, settings, best),
        *_options(space, settings, best),
    ]


def _faster(space: MeshPlanSpace, settings: MeshSettings, best: RankedPlan, most_s: float) -> MeshCandidate | None:
    """A plan whose step takes less, of those that are as easy to run: activations stay on the device where those of the best do."""
    restriction = settings.restriction
    if not best.plan.offload_activations:
        flags = {**restriction.flags, "offload_activations": False}
        restriction = dataclasses.replace(restriction, flags=flags)
    short = dataclasses.replace(
        settings, top=1, distinct=None, known=(), effort=EFFORT, restriction=restriction, cutoff=most_s
    )
    found = search_corner(space.model, short).candidates
    return found[0] if found and found[0].step_time_s < most_s else None


def _batch(space: MeshPlanSpace, settings: MeshSettings, best: RankedPlan) -> list[Note]:
    """Twice the batch, where every data-parallel rank has a single sample: more GPUs have nothing to share."""
    batch, gpus = space.resolved.workload.global_batch, settings.max_workers
    if best.plan.dp < batch or gpus == 1:
        return []
    twice = mesh_space(space.resolved.with_batch(2 * batch))
    found = _faster(twice, settings, best, 2 * best.step_time_s / WORTH_FASTER)
    if found is None:
        return []
    return [
        Note(
            "batch_limits_gpus",
            batch=batch,
            ranks=best.plan.dp,
            gpus=gpus,
            idle=gpus - best.workers or None,
            other_batch=2 * batch,
            step_time_s=found.step_time_s,
            plan=mesh_plan_in_words(found.plan),
            speedup=2 * best.step_time_s / found.step_time_s,
        )
    ]


def _rules(space: MeshPlanSpace, settings: MeshSettings, best: RankedPlan) -> list[Note]:
    """The plan that the framework does not run, and the rules in its way."""
    framework = space.model.workload.framework
    if not framework.rules.of():
        return []
    free = dataclasses.replace(settings, obeys_framework=False)
    found = _faster(space, free, best, best.step_time_s * (1 - _BINDS))
    broken = [] if found is None else space.broken(found.plan)
    if found is None or not broken:
        return []
    return [
        Note(
            "rule_binds",
            framework=framework.title,
            saved=1 - found.step_time_s / best.step_time_s,
            plan=mesh_plan_in_words(found.plan),
            step_time_s=found.step_time_s,
            rules="; ".join(broken),
        )
    ]


def _options(space: MeshPlanSpace, settings: MeshSettings, best: RankedPlan) -> list[Note]:
    """Options that keep faster plans out, those that cost most first; the others stay."""
    fixed, request = settings.restriction, space.request
    freer = {
        given_text(fixed, flag): dataclasses.replace(settings, restriction=without(fixed, flag))
        for flag in dict.fromkeys(flags_of(fixed).values())
    }
    if request.memory_limit is not None:
        errors = space.resolved.setting.memory_errors
        whole = usable_bytes(dataclasses.replace(request, memory_limit=None), space.resolved.cluster.device, errors)
        if whole > settings.capacity_bytes:
            freer[f"--memory-limit {request.memory_limit}"] = dataclasses.replace(settings, capacity_bytes=whole)
    found = [
        (text, plan)
        for text, asked in freer.items()
        if (plan := _faster(space, asked, best, best.step_time_s * (1 - _BINDS))) is not None
    ]
    found.sort(key=lambda entry: entry[1].step_time_s)
    return [
        Note(
            "option_binds",
            option=text,
            saved=1 - plan.step_time_s / best.step_time_s,
            plan=mesh_plan_in_words(plan.plan),
            step_time_s=plan.step_time_s,
        )
        for text, plan in found[:_MOST_OPTIONS]
    ]
