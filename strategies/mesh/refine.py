"""Uneven pipelines: for the degrees of a plan, the best layout of its blocks and its recomputation (`strategies.mesh.layout_search`)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import RECOMPUTE, MeshPlan
from costmodel.tolerances import EQUAL
from strategies.mesh.incumbents import KEY
from strategies.mesh.layout_search import BestLayout, LayoutSearch
from strategies.mesh.settings import MeshCandidate, MeshOutcome, MeshSettings
from strategies.mesh.stage_tables import StageTables

__all__ = ["Refinement", "refine", "refine_top", "refinement"]

# Layouts judged at most where proof is sought; about 0.1 ms each.
_MOST_LAYOUTS = 20_000
# Of the best plans of a search: pipelines that are refined, and how long the layouts judged for each are together, in chunks (about
# 15 us each). Counted, not timed, so that the answer does not depend on the machine.
_MOST_PIPELINES = 2
_MOST_CHUNKS = 10_000
# What plans of one pipeline may differ in.
_DIVISION = frozenset({"dp_replicate", "dp_shard", "zero_stage"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """The best layout found, and what is proven about the others.

    Attributes
    ----------
    plan : MeshPlan or None
        Best plan of the degrees, the uniform layout included; None if no layout fits, or none was found in time.
    step_time_s : float
        Infinite without a plan.
    bound_s : float
        No layout that fits takes less; equals ``step_time_s`` when proven best, and is infinite when proven that none fits.
    judged : int
        Layouts that the cost model scored.
    """

    plan: MeshPlan | None
    step_time_s: float
    bound_s: float
    judged: int

    @property
    def is_proven(self) -> bool:
        """Whether no layout is better."""
        return self.bound_s >= self.step_time_s


def refine(model: MeshModel, plan: MeshPlan, capacity_bytes: float, wall_s: float) -> MeshPlan | None:
    """Find a better layout for the degrees of a plan.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan
    capacity_bytes : float
        Memory of a device.
    wall_s : float
        Time for the search.

    Returns
    -------
    MeshPlan or None
        A plan that fits and is faster than the given one (or fits where that does not); None if none was found.
    """
    found = refinement(model, plan, capacity_bytes, wall_s)
    given = model.evaluate_plans([plan])
    fits = bool(given.memory_bytes[0] <= capacity_bytes)
    before = float(given.step_time_s[0]) if fits else float("inf")
    return found.plan if found.step_time_s < before * (1.0 - EQUAL) else None


def refinement(
    model: MeshModel,
    plan: MeshPlan,
    capacity_bytes: float,
    wall_s: float,
    *,
    recompute: Sequence[str] = RECOMPUTE,
    most_layouts: int = _MOST_LAYOUTS,
    most_judged: int | None = None,
) -> Refinement:
    """Find the best layout for the degrees of a plan, with a bound.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan
    capacity_bytes, wall_s : float
    recompute : sequence of str
        Kinds of recomputation to choose from: under "full" every chunk has its own number of blocks.
    most_layouts : int
        Layouts judged for a proof, per kind of recomputation; more are searched from block to block.
    most_judged : int, optional
        Plans judged altogether, half of them at most before proofs are sought; unlimited where not given.

    Returns
    -------
    Refinement
    """
    deadline = time.monotonic() + wall_s
    kinds = [kind for kind in RECOMPUTE if kind in recompute and (model.workload.training or kind == "none")]
    searches = [
        LayoutSearch(
            model=model,
            tables=StageTables.of(model, plan, kind, capacity_bytes),
            must_recompute="none" not in kinds,
        )
        for kind in kinds
    ]
    best = BestLayout(most_judged=most_judged)
    # The kind that promises most goes first: its plan may settle the others. Good plans come before proofs.
    searches.sort(key=lambda search: search.least_s)
    for n, search in enumerate(searches):
        now, left = time.monotonic(), len(searches) - n + 1
        search.climb(best, now + (deadline - now) / left, best.share(left))
    bound = min((search.prove(best, deadline, most_layouts) for search in searches), default=float("inf"))
    return Refinement(
        plan=best.plan, step_time_s=best.step_time_s, bound_s=min(bound, best.step_time_s), judged=best.judged
    )


def refine_top(
    model: MeshModel,
    outcome: MeshOutcome,
    settings: MeshSettings,
    wall_s: float = 5.0,
    most_plans: int = _MOST_PIPELINES,
) -> list[MeshCandidate]:
    """Refined versions of the best plans of a search.

    Parameters
    ----------
    model : MeshModel
    outcome : MeshOutcome
        Of the uniform space.
    settings : MeshSettings
    wall_s : float
        For all of them together; far more than ordinary networks need, whose search ends by a count of judged plans.
    most_plans : int
        How many of the best plans are refined; of those that differ only in how dp is divided, the best.

    Returns
    -------
    list of MeshCandidate
        Best first, only those that are faster than the plans they come from; they have ``stage_blocks``.
    """
    deadline = time.monotonic() + wall_s
    pipelines: dict[tuple[object, ...], MeshCandidate] = {}
    for candidate in outcome.candidates:
        if candidate.plan.pp > 1:
            key = tuple(getattr(candidate.plan, name) for name in KEY if name not in _DIVISION)
            pipelines.setdefault(key, candidate)
    refined: list[MeshCandidate] = []
    for candidate in itertools.islice(pipelines.values(), most_plans):
        plan, left = candidate.plan, deadline - time.monotonic()
        if left <= 0:
            break
        most = _MOST_CHUNKS // (plan.pp * plan.vpp)
        kinds = _allowed(settings, plan)
        found = refinement(
            model, plan, settings.capacity_bytes, left, recompute=kinds, most_layouts=most // 2, most_judged=most
        )
        if found.plan is not None and found.step_time_s < candidate.step_time_s * (1.0 - EQUAL):
            # Every objective is proportional to the step at a given number of workers.
            score = candidate.score * found.step_time_s / candidate.step_time_s
            refined.append(MeshCandidate(plan=found.plan, score=score, step_time_s=found.step_time_s))
    return sorted(refined, key=lambda c: (c.score, c.plan))


def _allowed(settings: MeshSettings, plan: MeshPlan) -> Sequence[str]:
    """Kinds of recomputation that the user leaves open; a fixed number of blocks is no business of chunks."""
    if "recompute_blocks" in settings.restriction.degrees:
        return [plan.recompute] if plan.recompute != "full" else []
    return settings.restriction.names.get("recompute", RECOMPUTE)
