"""The questions about serving: optimize, estimate and explain. The cost model judges, the search chooses, this file asks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from costmodel.serving.detail import serving_layer_rows
from costmodel.serving.plan import ServingPlan
from planner.core.errors import NoFeasiblePlan, UsageError
from planner.core.quantities import format_bytes
from planner.core.results import Assumption
from planner.core.search_errors import ended_early
from planner.spaces.mesh.near import near_multiples
from planner.spaces.serving.judge import ServingJudge, make_serving_judge
from planner.spaces.serving.remedies import missed_limits, no_serving_plan
from planner.spaces.serving.request import ServingRequest
from planner.spaces.serving.results import RankedServingPlan, ServingEstimate, ServingResult
from planner.spaces.serving.wording import SERVING_MEMORY_WORDS, TPOT_WORDS, TTFT_WORDS
from planner.uncertainty.bars import COMPARED_PLANS, with_chances
from planner.uncertainty.serving import serving_bars
from strategies.mesh.settings import Bounds
from strategies.serving.search import search_serving
from strategies.serving.settings import MOST_BATCH, ServingOutcome, ServingSettings

__all__ = ["estimate_serving", "explain_serving", "optimize_serving"]

Progress = Callable[[str, float], None]

_DEFAULT_TIME_LIMIT_S = 60.0
_ONE = Bounds(values=(1,))


def optimize_serving(request: ServingRequest, progress: Progress | None = None) -> ServingResult:
    """Find the best plans for a question.

    Raises
    ------
    NoFeasiblePlan
        Nothing fits or keeps the limits; the message names the nearest miss.
    LimitReached
        The time limit came before a plan.
    SearchInterrupted
        Ctrl-C before anything was found.
    PlannerError
        Unusable options or files.
    """
    return _optimize(request, progress)


def _optimize(request: ServingRequest, progress: Progress | None, *, with_error_bars: bool = True) -> ServingResult:
    started = time.monotonic()
    judge = make_serving_judge(request)
    settings = _settings(judge)
    if with_error_bars:  # as many plans as may be the best, however few of them are shown
        settings = dataclasses.replace(settings, top=max(settings.top, COMPARED_PLANS))
    outcome = search_serving(judge.model, settings, progress)
    if not outcome.candidates:
        raise no_serving_plan(judge, settings, outcome)
    plans = judge.rank([candidate.plan for candidate in outcome.candidates])
    bars = None
    if with_error_bars and not outcome.interrupted:
        compared, bars = serving_bars(judge, plans)
        plans = list(with_chances(compared, bars))
    plans = plans[: request.base.top]
    return ServingResult(
        setting=dataclasses.replace(judge.setting, global_batch=plans[0].plan.concurrency),
        prompt_tokens=judge.model.workload.prompt_tokens,
        output_tokens=judge.model.workload.output_tokens,
        kv_precision=judge.kv_precision,
        objective=judge.objective,
        limits=judge.limits,
        plans=tuple(plans),
        proven_optimal=outcome.is_complete,
        space_size=outcome.space_size,
        searched=outcome.searched,
        wall_s=time.monotonic() - started,
        assumptions=judge.assumptions,
        model_assumptions=judge.rows(),
        replicas_only=_replicas_only(judge, settings, outcome, plans[0]),
        notes=(*_notes(judge, outcome, plans[0]), *_beside(plans)),
        error_bars=bars,
        interrupted=outcome.interrupted,
    )


def estimate_serving(request: ServingRequest, plan: ServingPlan | None = None) -> ServingEstimate:
    """Predict a plan: the given one, or the one that a request spells out on exactly its GPUs.

    Degrees that are left out are 1 and replicas take the GPUs that are left; prompts are read whole, one per pass; as many sequences as
    fit are held.

    Raises
    ------
    UsageError
        A value that leaves the plan open, degrees that do not multiply to the GPUs, every rule that the plan breaks.
    """
    judge = make_serving_judge(request)
    chosen: list[str] = []
    if plan is None:
        plan, chosen = _exact_plan(judge)
    return _estimate(judge, plan, chosen)


def explain_serving(
    request: ServingRequest, plan: ServingPlan | None = None, progress: Progress | None = None
) -> ServingEstimate:
    """Show where the time and the memory of a plan go, and what the best plan of the same question does better.

    Without a plan and without anything fixed, the best plan itself is explained.

    Raises
    ------
    PlannerError
        As for `estimate_serving`; nothing fits and no plan was given.
    """
    judge = make_serving_judge(request)
    chosen: list[str] = []
    if plan is None and judge.degrees:
        plan, chosen = _exact_plan(judge)
    mesh = None if request.base.mesh is None else dataclasses.replace(request.base.mesh, degrees={})
    workers = max(request.base.gpus, plan.workers if plan is not None else 1)
    free = dataclasses.replace(
        request, base=dataclasses.replace(request.base, mesh=mesh, top=1, gpus=workers), degrees={}
    )
    try:
        best = _optimize(free, progress, with_error_bars=False).plans[0]
    except NoFeasiblePlan:
        if plan is None:
            raise
        return _estimate(judge, plan, chosen)  # what does not fit can still be explained
    return _estimate(judge, plan or best.plan, chosen, best)


def _estimate(
    judge: ServingJudge, plan: ServingPlan, chosen: list[str], best: RankedServingPlan | None = None
) -> ServingEstimate:
    judge.check(plan)
    (ranked,), bars = serving_bars(judge, judge.rank([plan]))
    if best is not None:
        ranked = dataclasses.replace(ranked, gap=judge.score(ranked) / judge.score(best) - 1.0)
    defaults = (Assumption(name="plan", value=f"with {', '.join(chosen)}", source="left open"),) if chosen else ()
    return ServingEstimate(
        setting=dataclasses.replace(judge.setting, global_batch=plan.concurrency),
        prompt_tokens=judge.model.workload.prompt_tokens,
        output_tokens=judge.model.workload.output_tokens,
        kv_precision=judge.kv_precision,
        objective=judge.objective,
        limits=judge.limits,
        ranked=ranked,
        assumptions=(*judge.assumptions, *defaults),
        model_assumptions=judge.rows(),
        notes=(*_about(judge, ranked), *_beside([ranked])),
        layers=tuple(serving_layer_rows(judge.model, plan)),
        error_bars=bars,
        best=best,
        comparison=_comparison(ranked, best),
    )


def _about(judge: ServingJudge, ranked: RankedServingPlan) -> list[str]:
    """What does not fit, and limits that are missed."""
    notes = []
    if not ranked.fits:
        largest = max(ranked.memory_parts, key=lambda name: ranked.memory_parts[name])
        way_out = (
            f"it fits with --max-batch {ranked.largest_batch}"
            if ranked.largest_batch
            else "no number of sequences fits; use more --tp" + ("" if judge.shape.has_encoder else " or --pp")
        )
        notes.append(
            f"does not fit: needs {format_bytes(ranked.memory_bytes_per_gpu)} per GPU, there are "
            f"{format_bytes(judge.capacity_bytes)}; most of it are {SERVING_MEMORY_WORDS[largest]} "
            f"({format_bytes(ranked.memory_parts[largest])}); {way_out}"
        )
    return notes + [f"misses the limit: {text}" for text in missed_limits(judge, ranked)]


def _comparison(plan: RankedServingPlan, best: RankedServingPlan | None) -> tuple[tuple[str, float, float], ...]:
    if best is None:
        return ()
    rows = [(f"per token: {TPOT_WORDS[n]}", plan.tpot_parts[n], best.tpot_parts[n]) for n in TPOT_WORDS]
    rows += [(f"first token: {TTFT_WORDS[n]}", plan.ttft_parts[n], best.ttft_parts[n]) for n in TTFT_WORDS]
    return tuple(sorted(rows, key=lambda row: row[2] - row[1]))


def _settings(judge: ServingJudge) -> ServingSettings:
    request = judge.request
    infinite = float("inf")
    return ServingSettings(
        max_workers=request.base.gpus,
        capacity_bytes=judge.capacity_bytes,
        objective=judge.objective,
        max_ttft_s=infinite if request.max_ttft_s is None else request.max_ttft_s,
        max_tpot_s=infinite if request.max_tpot_s is None else request.max_tpot_s,
        degrees=judge.degrees,
        top=request.base.top,
        wall_s=_DEFAULT_TIME_LIMIT_S if request.base.time_limit_s is None else request.base.time_limit_s,
    )


def _replicas_only(
    judge: ServingJudge, settings: ServingSettings, outcome: ServingOutcome, best: RankedServingPlan
) -> RankedServingPlan | None:
    """Best plan of replicas of one device each."""
    if outcome.interrupted:
        return None
    if best.workers == best.plan.dp and best.plan.ep == 1:
        return best
    degrees: Mapping[str, Bounds] = {**settings.degrees, **dict.fromkeys(("tp", "pp", "ep", "etp"), _ONE)}
    found = search_serving(judge.model, dataclasses.replace(settings, degrees=degrees, top=1)).candidates
    if not found:
        return None
    ranked = judge.rank([best.plan, found[0].plan])[1]
    return dataclasses.replace(ranked, rank=1)


def _beside(plans: Sequence[RankedServingPlan]) -> list[str]:
    """Which predictions lie beside their own intervals, and why that is no mistake."""
    beside = [
        p
        for p in plans
        if p.output_tokens_per_s_high is not None and p.output_tokens_per_s > p.output_tokens_per_s_high
    ]
    if not beside:
        return []
    which = "this plan" if len(plans) == 1 else ", ".join(f"plan {plan.rank}" for plan in beside)
    note = (
        f"published servers of the kind of {which} were slower than predicted, so that the 80 % interval lies below the prediction: "
        "expect what the interval says"
    )
    return [note]


def _notes(judge: ServingJudge, outcome: ServingOutcome, best: RankedServingPlan) -> list[str]:
    notes = ended_early(interrupted=outcome.interrupted, out_of_time=not outcome.is_complete)
    if judge.objective in ("throughput", "tokens_per_s_per_gpu") and not judge.limits:
        notes.append("the most tokens/s come with slow answers; --max-ttft and --max-tpot say how slow they may be")
    notes += _unsure_limits(judge, best)
    if best.plan.ep * best.plan.etp > best.plan.tp and judge.model.assumptions.expert_spread > 0:
        notes.append(
            "the best plan has replicas that share experts, whose loads are taken to be uneven (no load balancer moves them); with one, "
            "--assume expert_spread=0"
        )
    if best.plan.ep * best.plan.etp > best.plan.tp and judge.model.assumptions.prompts_in_step < 1:
        notes.append(
            "the best plan has replicas that share experts, which wait for one another's prompts; where a scheduler has all read together, "
            "--assume prompts_in_step=1"
        )
    if best.plan.max_batch >= MOST_BATCH and "max_batch" not in judge.degrees:
        notes.append(
            f"the best plan holds the most sequences that are tried ({MOST_BATCH} per replica); --max-batch 1..4096 tries more"
        )
    return notes


def _unsure_limits(judge: ServingJudge, best: RankedServingPlan) -> list[str]:
    """Limits that the best plan keeps as predicted, but that its intervals reach beyond."""
    found = []
    for name, flag, value, high in (
        ("ttft_s", "--max-ttft", best.ttft_s, best.ttft_high_s),
        ("tpot_s", "--max-tpot", best.tpot_s, best.step_time_high_s),
    ):
        limit = judge.limits.get(name)
        if limit is not None and high is not None and value <= limit < high:
            asked = 1e3 * limit * value / high
            found.append(
                f"{flag}: the plan keeps the limit as predicted, but its 80 % interval ends at {1e3 * high:.3g} ms; "
                f"{flag} {asked:.3g}ms asks for one that keeps it with 90 % probability"
            )
    return found


# -- the plan that is spelled out ---------------------------------------------------------------------------------------


def _exact_plan(judge: ServingJudge) -> tuple[ServingPlan, list[str]]:
    """The plan, and in words what was chosen for the user."""
    gpus, problems, chosen = judge.request.base.gpus, [], []
    values: dict[str, int] = {}
    for field, bounds in judge.degrees.items():
        single = bounds.values if bounds.values else (bounds.low,) if bounds.low == bounds.high else ()
        if len(single) == 1 and single[0] is not None:
            values[field] = single[0]
        else:
            problems.append(f"--{field.replace('_', '-')}: leaves open which plan is meant; give one value")
    if problems:
        raise UsageError("\n".join(problems))
    tp, pp = values.get("tp", 1), values.get("pp", 1)
    if gpus % (tp * pp):
        raise UsageError(
            f"--gpus {gpus}: tp {tp} x pp {pp} = {tp * pp} does not divide it; use --gpus {near_multiples(gpus, tp * pp)}, or other degrees"
        )
    dp = gpus // (tp * pp)
    if values.setdefault("dp", dp) != dp:
        together = tp * pp * values["dp"]
        raise UsageError(
            f"--gpus {gpus}: tp {tp} x pp {pp} x dp {values['dp']} = {together}; use --gpus {together}, or a dp of {dp}"
        )
    if judge.shape.experts and "etp" not in values:
        values["etp"] = max(tp // values.get("ep", 1), 1)
        if values["etp"] > 1:
            chosen.append(f"etp {values['etp']}")
    if "dp" not in judge.degrees and dp > 1:
        chosen.append(f"dp {dp}")
    plan = ServingPlan(**values)
    if "max_batch" not in values:
        plan = dataclasses.replace(plan, max_batch=max(plan.prefill_batch, 1))
        judge.check(plan)
        most = judge.rank([plan])[0].largest_batch
        plan = dataclasses.replace(plan, max_batch=max(most, plan.max_batch))
        chosen.append(f"max batch {plan.max_batch} (the largest that fits, up to {MOST_BATCH})")
    return plan, chosen
