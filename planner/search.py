"""The questions the planner answers: optimize, estimate, explain. The cost model judges, strategies choose, this file asks."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from costmodel.layerwise.plan import Plan
from costmodel.layerwise.tables import CostCache
from costmodel.tolerances import PROOF_SLACK
from planner.core.capacity import limit_notes
from planner.core.errors import NoFeasiblePlan, UsageError
from planner.core.objectives import stated_rates
from planner.core.quantities import format_bytes, format_seconds
from planner.core.request import Request
from planner.core.results import Breakdown, RankedPlan, SearchResult
from planner.core.search_errors import SearchInterrupted, ended_early, no_plan_in_time
from planner.ranking import layer_score, rank
from planner.resolve import Resolved, resolve
from planner.uncertainty.answers import layer_bars
from planner.uncertainty.bars import COMPARED_PLANS, with_bars
from planner.wording import plan_in_words
from strategies.layerwise.space import FAMILY_NAMES

if TYPE_CHECKING:
    from costmodel.mesh.plan import MeshPlan
    from costmodel.mixed.plan import MixedPlan
    from planner.spaces.mesh.results import MeshBreakdown, MeshResult
    from planner.spaces.mixed.results import MixedBreakdown, MixedResult
    from strategies.layerwise.search import Candidate, Outcome, SearchSettings

__all__ = ["estimate", "explain", "optimize", "plan_of_family"]

Progress = Callable[[str, float], None]

_DEFAULT_TIME_LIMIT_S = 60.0


def optimize(request: Request, progress: Progress | None = None) -> SearchResult | MeshResult | MixedResult:
    """Find the best plans for a request, in the space that it is about (`planner.spaces.mesh.space`).

    Raises
    ------
    NoFeasiblePlan
        Nothing fits; the message names the nearest miss.
    SearchInterrupted
        Ctrl-C; carries the best so far.
    PlannerError
        Unusable options or files.
    """
    started = time.monotonic()
    resolved = resolve(request)
    if resolved.space == "mixed":
        from planner.spaces.mixed.search import optimize_mixed

        return optimize_mixed(resolved, progress)
    if resolved.space == "mesh":
        from planner.spaces.mesh.search import optimize_mesh

        return optimize_mesh(resolved, progress)
    return _optimize_layers(resolved, progress, started)


def _optimize_layers(
    resolved: Resolved, progress: Progress | None, started: float, *, with_error_bars: bool = True
) -> SearchResult:
    from strategies.layerwise.search import search  # a mesh or a mixed cluster does without

    _check_fixed_batch(resolved)
    known = CostCache(resolved.workload, resolved.cluster)
    settings = _settings(resolved)
    if with_error_bars:  # as many plans as may be the best, however few of them are shown
        settings = dataclasses.replace(settings, top=max(settings.top, COMPARED_PLANS))
    outcome = search(resolved.workload, resolved.cluster, settings, progress, known)
    if not outcome.candidates:
        raise _no_plan(resolved, outcome)
    result, compared = _result(resolved, outcome, known, started)
    if with_error_bars and not outcome.interrupted:
        bars = layer_bars(resolved, compared, known)
        result = dataclasses.replace(result, plans=with_bars(result.plans, bars), error_bars=bars)
    if outcome.interrupted:
        raise SearchInterrupted(result)
    return result


def estimate(
    request: Request, plan: Plan | MeshPlan | MixedPlan | None = None
) -> Breakdown | MeshBreakdown | MixedBreakdown:
    """Predict one plan: the given one, or the one that the request names on exactly its GPUs.

    That is the best of the family and the fixes of a split per layer, or the degrees of a device mesh.
    """
    resolved = resolve(request)
    if resolved.space == "mixed":
        from costmodel.mixed.plan import MixedPlan
        from planner.spaces.mixed.search import estimate_mixed

        assert plan is None or isinstance(plan, MixedPlan)
        return estimate_mixed(resolved, plan)
    if resolved.space == "mesh":
        from costmodel.mesh.plan import MeshPlan
        from planner.spaces.mesh.search import estimate_mesh

        assert plan is None or isinstance(plan, MeshPlan)
        return estimate_mesh(resolved, plan)
    assert plan is None or isinstance(plan, Plan)
    if plan is None:
        _check_splittable(resolved)
        plan = _plan_of_request(resolved)
    from planner.prediction import breakdown_of  # a search does without

    return breakdown_of(resolved, plan, None)


def explain(
    request: Request, plan: Plan | MeshPlan | MixedPlan | None = None, progress: Progress | None = None
) -> Breakdown | MeshBreakdown | MixedBreakdown:
    """Show where the time of a plan goes, and what the best plan does better.

    Without a plan, a family, fixes or degrees, the best plan itself is explained.
    """
    resolved = resolve(request)
    if resolved.space == "mixed":
        from costmodel.mixed.plan import MixedPlan
        from planner.spaces.mixed.explain import explain_mixed

        assert plan is None or isinstance(plan, MixedPlan)
        return explain_mixed(resolved, plan, progress)
    if resolved.space == "mesh":
        from costmodel.mesh.plan import MeshPlan
        from planner.spaces.mesh.search import explain_mesh

        assert plan is None or isinstance(plan, MeshPlan)
        return explain_mesh(resolved, plan, progress)
    from planner.prediction import breakdown_of

    assert plan is None or isinstance(plan, Plan)
    asked = plan is not None or request.family is not None or bool(request.fix)
    if request.gpus == 1 and plan is None and not request.sensitivity:
        return breakdown_of(resolved, _plan_of_request(resolved), None)
    gpus = max(request.gpus, plan.workers if plan else 1)
    top = 1
    if request.sensitivity:
        from planner.uncertainty.sensitivity import SENSITIVITY_PLANS

        top = SENSITIVITY_PLANS
    free = dataclasses.replace(request, space="layers", family=None, fix=(), top=top, gpus=gpus)
    if plan is None and asked:
        _check_splittable(resolved)
    best_result = _optimize_layers(resolve(free), progress, time.monotonic(), with_error_bars=False)
    if plan is None:
        plan = _plan_of_request(resolved) if asked else best_result.plans[0].plan
    breakdown = breakdown_of(resolved, plan, best_result.plans[0])
    if not request.sensitivity:
        return breakdown
    from planner.uncertainty.sensitivity import layer_sensitivity

    return dataclasses.replace(breakdown, sensitivity=layer_sensitivity(resolved, best_result.plans))


def _check_fixed_batch(resolved: Resolved) -> None:
    batch = resolved.workload.global_batch
    for name, degrees in resolved.restriction.fixed.items():
        if degrees.get("batch", 0) > batch:
            raise UsageError(f"--fix: {name} is split {degrees['batch']} ways by the batch, which has {batch} samples")


def _check_splittable(resolved: Resolved) -> None:
    """Refuse what no plan on exactly the requested GPUs can be, by name rather than by a search that finds nothing."""
    _check_fixed_batch(resolved)
    gpus, batch = resolved.request.gpus, resolved.workload.global_batch
    everywhere = any(degrees == {"batch": 0} for degrees in resolved.restriction.fixed.values())
    if gpus > batch and (resolved.restriction.family == "data" or everywhere):
        raise UsageError(
            f"a batch of {batch} cannot be split over {gpus} workers; use a larger --batch or fewer --gpus"
        )
    for name, degrees in resolved.restriction.fixed.items():
        product = math.prod(degrees.values())
        if product not in (0, gpus):
            raise UsageError(f"--fix: the degrees of {name} multiply to {product}, not to the {gpus} workers of --gpus")


def _settings(resolved: Resolved) -> SearchSettings:
    from strategies.layerwise.search import SearchSettings

    request = resolved.request
    return SearchSettings(
        score=layer_score(resolved),
        max_workers=request.gpus,
        capacity_bytes=resolved.setting.memory_capacity_bytes,
        top=request.top,
        restriction=resolved.restriction,
        micro_batches=None if request.micro_batches is None else (request.micro_batches,),
        wall_s=_DEFAULT_TIME_LIMIT_S if request.time_limit_s is None else request.time_limit_s,
        gap=request.gap,
        solver=request.solver,
        seed=request.seed,
    )


def plan_of_family(resolved: Resolved, workers: int, family: str | None) -> Plan:
    """Best plan of a family on exactly so many workers; None is the whole space."""
    restriction = dataclasses.replace(resolved.restriction, family=family)
    return _plan_of_request(dataclasses.replace(resolved, restriction=restriction), workers=workers)


def _plan_of_request(resolved: Resolved, workers: int | None = None) -> Plan:
    """Best plan on exactly the requested number of GPUs within the family and the fixes."""
    from strategies.layerwise.search import search

    count = workers or resolved.request.gpus
    settings = dataclasses.replace(_settings(resolved), top=1, worker_counts=(count,), max_workers=count)
    if workers is None and resolved.restriction.family is None and not resolved.restriction.fixed and count > 1:
        raise UsageError(
            "say which plan to predict: --plan FILE, --family (one of "
            f"{', '.join(FAMILY_NAMES)}) or --fix 'LAYERS:DIMENSION'; `planner optimize` searches for the best"
        )
    outcome = search(resolved.workload, resolved.cluster, settings)
    if not outcome.candidates:
        # A prediction of the user's own plan is useful even where it does not fit.
        roomy = search(resolved.workload, resolved.cluster, dataclasses.replace(settings, capacity_bytes=math.inf))
        if not roomy.candidates:
            raise _no_plan(resolved, outcome)
        return roomy.candidates[0].plan
    return outcome.candidates[0].plan


# -- results ---------------------------------------------------------------------------------------------------------------


def _result(
    resolved: Resolved, outcome: Outcome, known: CostCache, started: float
) -> tuple[SearchResult, tuple[RankedPlan, ...]]:
    """The answer, and the plans that error bars compare: all that the search kept, or those that are chosen to differ."""
    from strategies.layerwise.data_parallel import best_data_parallel

    shown = outcome.candidates[: resolved.request.top]
    chosen = _diverse(resolved, outcome, started) if resolved.request.diverse else outcome.candidates
    score, best = layer_score(resolved), shown[0].score
    data_all, data_best = best_data_parallel(
        resolved.workload, resolved.cluster, resolved.request.gpus, resolved.setting.memory_capacity_bytes, known, score
    )
    references = [plan for plan in (data_best, data_all) if plan is not None]
    ranked = rank(resolved, [*[c.plan for c in chosen], *references], best, known)
    compared = tuple(dataclasses.replace(plan, rank=n + 1) for n, plan in enumerate(ranked[: len(chosen)]))
    plans = compared if resolved.request.diverse else compared[: len(shown)]
    extra = iter(ranked[len(chosen) :])
    bound = min(outcome.bound, best)
    proven = bound >= best * (1 - PROOF_SLACK)
    last = shown[-1].score
    result = SearchResult(
        setting=resolved.setting,
        objective=resolved.request.objective or "step_time",
        plans=plans,
        proven_optimal=proven,
        proven_top=proven and outcome.rest_bound >= last * (1 - PROOF_SLACK) and not resolved.request.diverse,
        bound_s=_bound_s(resolved, best if proven else bound, plans[0].step_time_s),
        gap=0.0 if proven else (best - bound) / best,
        space_size=outcome.space_size,
        searched=outcome.searched,
        wall_s=time.monotonic() - started,
        assumptions=(*resolved.assumptions, *stated_rates(resolved.request, resolved.cluster)),
        free_layers=resolved.free_layers,
        data_parallel=next(extra) if data_best is not None else None,
        data_parallel_all=next(extra) if data_all is not None else None,
        notes=(*_why(plans[0], ranked[len(chosen)] if data_best is not None else None), *_notes(resolved, outcome)),
        solver=", ".join(outcome.methods),
    )
    return result, compared


def _bound_s(resolved: Resolved, bound: float, best_s: float) -> float:
    """Least step time of any plan, from the least score: that is of all devices, of which no plan has more than there are."""
    if not layer_score(resolved).per_device:
        return bound
    return min(bound / resolved.request.gpus, best_s)


_TERMS = {
    "compute": "compute_s",
    "the optimizer": "update_s",
    "resharding": "reshard_s",
    "exposed gradient exchange": "exposed_exchange_s",
    "the pipeline bubble": "bubble_s",
}


def _why(best: RankedPlan, data: RankedPlan | None) -> list[str]:
    """Say which family wins and what it gains and pays against plain data parallelism."""
    if best.family == "data":
        hidden = 1.0 - best.exposed_exchange_s / best.exchange_s if best.exchange_s > 0 else 1.0
        return [f"data parallelism wins: {hidden:.0%} of its gradient exchange hides behind the backward pass"]
    if data is None or best.workers == 1:
        return []
    changes = {name: getattr(best, key) - getattr(data, key) for name, key in _TERMS.items()}
    # What matters at the scale of the step; smaller changes only make the sentence longer.
    least = 0.01 * data.step_time_s
    gains = sorted((n for n in changes if changes[n] < -least), key=lambda n: changes[n])
    prices = sorted((n for n in changes if changes[n] > least), key=lambda n: -changes[n])
    if not gains:
        return [f"family {best.family} wins by less than 1 % of the step in every term"]
    saved = " and ".join(f"{format_seconds(-changes[n])} of {n}" for n in gains)
    paid = " and ".join(f"{format_seconds(changes[n])} of {n}" for n in prices)
    return [
        f"family {best.family} wins: against the best data parallelism (x{data.workers}) it saves {saved}"
        + (f" and pays {paid}" if paid else "")
    ]


def _notes(resolved: Resolved, outcome: Outcome) -> list[str]:
    notes = limit_notes(resolved.request, resolved.cluster.device)
    return [*notes, *ended_early(interrupted=outcome.interrupted, out_of_time=outcome.out_of_time)]


def _diverse(resolved: Resolved, outcome: Outcome, started: float) -> list[Candidate]:
    """Best plan of every family, each found by its own exact search; one time limit and one Ctrl-C end them all."""
    from strategies.layerwise.search import search

    whole = _settings(resolved)
    found: dict[str, Candidate] = {}
    for candidate in outcome.candidates:
        found.setdefault(candidate.family, candidate)
    asked = resolved.restriction.family
    for family in FAMILY_NAMES:
        if outcome.interrupted:
            break
        if family in found or (asked is not None and family != asked):
            continue
        settings = dataclasses.replace(
            whole,
            restriction=dataclasses.replace(resolved.restriction, family=family),
            top=1,
            wall_s=max(whole.wall_s - (time.monotonic() - started), 0.0),
        )
        result = search(resolved.workload, resolved.cluster, settings)
        outcome.interrupted |= result.interrupted
        outcome.out_of_time |= result.out_of_time
        if result.candidates:
            found[family] = result.candidates[0]
    return sorted(found.values(), key=lambda c: (c.score, c.plan.workers, c.family))


def _no_plan(resolved: Resolved, outcome: Outcome) -> Exception:
    setting = resolved.setting
    if outcome.interrupted:
        return SearchInterrupted(None)
    if outcome.out_of_time:  # what was not looked at may fit
        return no_plan_in_time()
    miss = outcome.nearest_miss
    if miss is None:
        return NoFeasiblePlan(
            f"no legal plan: no layer-by-layer split of '{setting.model}' at global batch {setting.global_batch} exists on "
            f"up to {setting.gpus} workers within what is fixed; fix less, or change --batch or --gpus"
        )
    need, have = miss.memory_bytes, setting.memory_capacity_bytes
    words = plan_in_words(resolved.workload.graph, miss.plan)
    return NoFeasiblePlan(
        f"nothing fits: the plan of least memory ({words}) needs {format_bytes(need)} per GPU and there are "
        f"{format_bytes(have)}; use more GPUs, a device with more memory, a smaller --batch, or --optimizer sgd"
    )
