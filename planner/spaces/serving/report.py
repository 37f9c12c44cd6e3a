"""What reports show of plans that serve a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from costmodel.objectives import PERCENTILES, SERVING_OBJECTIVES
from costmodel.serving.workload import Drafting
from planner.core.answer import Answer, Estimate, RankedPlan, ServingLoad
from planner.core.blocks import Block, Column
from planner.core.numbers import (
    Unit,
    byte_text,
    counted,
    duration_text,
    duration_unit,
    percent,
    significant,
    time_unit,
    used_of_total,
)
from planner.core.objectives import compared_words
from planner.report.answer import SpaceReport, bottleneck_columns, parts_blocks
from planner.report.documents import first_plan_document
from planner.report.roles import forgone_words
from planner.report.tables import column_maker
from planner.report.uncertainty import bars_columns, span_text
from planner.spaces.serving.space import limited

if TYPE_CHECKING:
    from planner.spaces.serving.space import ServingPlanSpace

__all__ = ["REPORT"]

_RATE = Unit(name="tokens/s", size=1.0)
# The share of a limit from which on it keeps a plan from more.
_BINDS = 0.95
# How much worse than the first a plan may be to be worth a row.
_MOST_GAP = 1.0


class ServingReport(SpaceReport):
    """Reports about plans that serve a network."""

    layers_heading = (
        "Layer by layer (of one rank: a decoding pass of one group of sequences, a pass that reads prompts)"
    )
    baseline = "replicas of one GPU"
    space = (
        "on any number of GPUs, all tp, pp, ep, etp, sequences per replica and ways of reading prompts that the rules and what is fixed "
        "allow, each with the most replicas; and all pairs of such replicas with GPUs that only read prompts (docs/inference.md, section 5)"
    )
    gap_priority = 2
    settings: ClassVar[Mapping[str, str]] = {"max_batch": "requests at once", "prefill_batch": "prompts per pass"}

    def columns(self, plans: Sequence[RankedPlan], objective: str) -> list[Column]:
        """Columns of what plans cost; the interval that is shown is of what they are compared by."""
        first, each = time_unit(min(p["ttft_s"] for p in plans)), time_unit(min(p["tpot_s"] for p in plans))
        column = column_maker(plans)
        is_known = all(p["limits_probability"] is not None for p in plans)
        sure = [column("P(keeps\nlimits)", limit_chance, 1)] if is_known else []
        if plans[0]["rate_per_s"] is None:
            rates = [
                column("output", lambda p: significant(p["output_tokens_per_s"]), 1, unit="tokens/s"),
                column("output", lambda p: significant(p["output_tokens_per_s_per_gpu"]), 4, unit="per GPU"),
                column("requests/s", lambda p: significant(p["requests_per_s"]), 6),
            ]
        else:  # all serve the same
            rates = [
                column("load", _busy, 1),
                column("most", lambda p: significant(p["most_requests_per_s"]), 4, unit="requests/s"),
            ]
        if paid := SERVING_OBJECTIVES[objective].cost_figure:
            title, of = ("USD per million", "output tokens") if objective == "money" else ("J per", "output token")
            rates.insert(0, column(title, lambda p: significant(p[paid]), 1, unit=of))
        columns = [
            *self.size_columns(plans),
            column("first token", lambda p: significant(p["ttft_s"] / first.size), 0, unit=first.name),
            column("per token", lambda p: significant(p["tpot_s"] / each.size), 0, unit=each.name),
            *sure,
            *rates,
            column(
                "memory", lambda p: used_of_total(p.memory_bytes_per_gpu, p.memory_capacity_bytes), 3, unit="per GPU"
            ),
            column("KV cache", lambda p: byte_text(p["kv_bytes"]), 7, unit="per GPU"),
            *bottleneck_columns(plans, 9),
        ]
        output = (4 + len(sure), "output_tokens_per_s_low", "output_tokens_per_s_high", _RATE)
        per_token = (3, "step_time_low_s", "step_time_high_s", each)
        usual = output if plans[0]["rate_per_s"] is None else per_token
        after, low, high, unit = {
            "ttft": (2, "ttft_low_s", "ttft_high_s", first),
            "tpot": per_token,
            "latency": per_token,
        }.get(objective, usual)
        ends = [(_end(plan, low), _end(plan, high)) for plan in plans]
        return [*columns[:after], *bars_columns(plans, unit, ends), *columns[after:]]

    def shown(self, answer: Answer) -> Sequence[RankedPlan]:
        """Those that are at most twice as bad as the first, unless somebody said how many to show."""
        return [plan for plan in answer.tabled if answer.space.request.top_given or plan.gap <= _MOST_GAP]

    def details_document(self, answer: Answer | Estimate) -> Mapping[str, Any]:
        if isinstance(answer, Estimate):
            return {}
        return {
            **first_plan_document(answer),
        }

    def speed_facts(self, plan: RankedPlan, objective: str, runs: str = "") -> list[tuple[str, str]]:
        return [("Times", _times(plan))]

    def promise(self, answer: Answer | Estimate, plan: RankedPlan) -> str:
        limits = answer.setting.limits
        if not limits or plan["limits_probability"] is None:
            return ""
        which = "its limit" if len(limits) == 1 else "both limits" if len(limits) == 2 else "all limits"
        return f"; {limit_chance(plan)} sure to keep {which}"

    def binding(self, answer: Answer | Estimate, plan: RankedPlan) -> str:
        shares = {name: plan[name] / limit for name, limit in answer.setting.limits.items()}
        if not shares or plan["rate_per_s"] is not None or max(shares.values()) < _BINDS:
            return ""
        return (
            f"; with more requests at once the {limited(max(shares, key=lambda name: shares[name]))} misses its limit"
        )

    def surer_options(self, answer: Answer) -> Mapping[str, str]:
        if answer.baselines.get("surer") is None and answer.details.get("surer_searched", True):
            return {}
        return {"--limit-confidence": "90%"}

    def where_fullest(self, answer: Answer | Estimate, plan: RankedPlan) -> tuple[str, str]:
        most = counted(plan["largest_batch"], "request")
        each = byte_text(plan["kv_bytes_per_sequence"])
        fits = f"; it fits, since engines size the cache by what is left: up to {most} per replica, each with {each} on a GPU"
        if not plan.plan.prefill_dp:
            return "per GPU", fits
        space = cast("ServingPlanSpace", answer.space)
        pools = dict(zip(space.pool_memory(plan.plan), ("prefill", "decode"), strict=True))
        fullest = "decode" if len(pools) == 1 else pools.pop(plan.memory_bytes_per_gpu)
        others = "".join(f", {byte_text(used)} in the {pool} pool" for used, pool in pools.items() if pool != fullest)
        return f"per GPU of the {fullest} pool", f"{others}{fits}"

    def search_facts(self, answer: Answer) -> list[tuple[str, str]]:
        best = answer.plans[0]
        return [
            *_limits(answer, best),
            *_versus_fastest(answer),
            *_versus_replicas(answer),
            *_versus_other_kind(answer),
            *_versus_drafts(answer),
            ("Load", _load_text(best, _load(answer))),
            ("Requests", percentiles_text(best)),
            *_interval_facts(best),
        ]

    def plan_facts(self, estimate: Estimate) -> list[tuple[str, str]]:
        ranked = estimate.ranked
        return [
            *_drafts(ranked, _load(estimate)),
            ("Load", _load_text(ranked, _load(estimate))),
            ("Requests", percentiles_text(ranked)),
            *_limits(estimate, ranked),
            *_interval_facts(ranked),
        ]

    def estimate_blocks(self, estimate: Estimate) -> list[Block]:
        ranked = estimate.ranked
        blocks: list[Block] = [self.plans_table([ranked], estimate.objective, ranks=False)]
        for heading, total in (
            ("Where the time per token goes", "tpot_s"),
            ("Where the time to the first token goes", "ttft_s"),
            ("What fills the memory (per GPU, of the stage that needs most)", "memory_bytes_per_gpu"),
        ):
            blocks += parts_blocks(ranked, heading, total, title="value", name="total")
        return blocks


def _end(plan: RankedPlan, name: str) -> Any:
    """An end of an interval; that of the time per token is the plan's own."""
    return plan.get(name) if name in plan.figures else getattr(plan, name)


def _load(answer: Answer | Estimate) -> ServingLoad:
    load = answer.setting.load
    assert load is not None, "what serves has requests"
    return load


def _rate_text(plan: RankedPlan) -> str:
    """How busy a plan is where requests come at a rate."""
    return (
        f"{significant(plan['rate_per_s'])} requests/s, {_busy(plan)} of the {significant(plan['most_requests_per_s'])} that it can serve; "
        f"{significant(plan['occupied_places'])} of {plan.plan.max_batch:,} places per replica taken on average"
    )


def _busy(plan: RankedPlan) -> str:
    """What comes, as a share of what a plan can serve."""
    return percent(plan["rate_per_s"] / plan["most_requests_per_s"])


def _flight_text(plan: RankedPlan, load: ServingLoad) -> str:
    """How many requests are in flight, and how many of them wait for a place."""
    places, flight = plan.plan.concurrency, load.concurrency
    text = f"{counted(flight or places, 'request')} in flight {_HOW[load.load]}"
    if flight is None or flight <= places or load.load == "backlog":
        return text
    return f"{text}; {places:,} have a place and {flight - places:,} wait for one"


_HOW = {
    "traffic": "all the time, of different lengths (closed loop: the next comes when one ends)",
    "benchmark": "all the time, of equal lengths, the first all at once (--load benchmark)",
    "backlog": "all the time, of equal lengths; more wait for places (--load backlog)",
}


def percentiles_text(plan: RankedPlan) -> str:
    """The times of requests in the median, of nine in ten and of 99 in 100."""
    words = {"ttft": "first token", "tpot": "per token", "request": "whole request"}
    found = {name: [duration_text(plan[f"{time}_p{share}_s"]) for share in PERCENTILES] for time, name in words.items()}
    times = [f"{name} {', '.join(texts if len(set(texts)) > 1 else texts[:1])}" for name, texts in found.items()]
    return f"{', '.join(f'p{share}' for share in PERCENTILES)}: {'; '.join(times)}"


def _load_text(plan: RankedPlan, load: ServingLoad) -> str:
    if load.rate_per_s is not None:
        return _rate_text(plan)
    return _flight_text(plan, load)


def _times(plan: RankedPlan) -> str:
    pause = "" if plan.plan.prefill_dp else f" ({duration_text(plan['pause_s'])} while prompts are read)"
    later = f", then one every {duration_text(plan['tpot_s'])}{pause}" if plan["tpot_s"] else ""
    return (
        f"mean first token after {duration_text(plan['ttft_s'])}{later}; "
        f"{significant(plan['output_tokens_per_s'])} output tokens/s in all"
    )


def _beside(plan: RankedPlan) -> str:
    """A plan that the first is compared with, and its figures."""
    times = f"first token {duration_text(plan['ttft_s'])}, per token {duration_text(plan['tpot_s'])}"
    return f"{plan.summary} ({times}, {significant(plan['output_tokens_per_s'])} output tokens/s)"


def _versus_fastest(answer: Answer) -> list[tuple[str, str]]:
    """What the simplest plan costs against the best."""
    best, fastest = answer.best, answer.fastest
    if fastest is None:
        return []
    is_better = f"is {compared_words(fastest.score / best.score, answer.objective)}"
    why = f", but {', '.join(forgone_words(answer))}" if answer.forgone else ""
    return [
        (
            "Plan 1 is",
            f"the simplest within 1 % of the best, which {is_better}{why}: {fastest.summary}; --fastest names it first",
        )
    ]


def _versus_replicas(answer: Answer) -> list[tuple[str, str]]:
    """Replicas of one GPU, where they fit, keep the limits and are not the best."""
    plain = answer.baselines["data_parallel"]
    if plain is None or plain.plan == answer.plans[0].plan:
        return []
    return [("One GPU each", _beside(plain))]


def _versus_other_kind(answer: Answer) -> list[tuple[str, str]]:
    """What GPUs that only read prompts gain, where plans of both kinds fit and keep the limits."""
    best = answer.plans[0]
    other = answer.baselines.get("aggregated" if best.plan.prefill_dp else "disaggregated")
    if other is None:
        return []
    if best.plan.prefill_dp:
        said = compared_words(best.score / other.score, answer.objective, "the best that reads prompts on all GPUs")
        return [("Disaggregated", f"{said}: {_beside(other)}")]
    said = compared_words(other.score / best.score, answer.objective)
    return [("Disaggregated", f"nothing is gained: {said}, with {other.summary}")]


def _drafts(plan: RankedPlan, load: ServingLoad) -> list[tuple[str, str]]:
    """Tokens that are drafted and those that a pass makes of them."""
    count = plan.plan.draft_tokens
    if load.acceptance is None or not count:
        return []
    made = float(Drafting(acceptance=load.acceptance).tokens_per_pass(np.array([count]))[0])
    text = f"{counted(count, 'token')} drafted per pass ({load.draft}), {significant(made)} made on average"
    return [("Drafting", text)]


def _versus_drafts(answer: Answer) -> list[tuple[str, str]]:
    """What drafted tokens gain, or would cost."""
    best = answer.plans[0]
    name = "undrafted" if best.plan.draft_tokens else "drafted"
    other, own = answer.baselines.get(name), [text for _, text in _drafts(best, _load(answer))]
    if other is None:
        nothing = ["no plan that drafts will do"] if name in answer.baselines else []
        return [("Drafting", text) for text in own or nothing]
    if own:
        said = compared_words(best.score / other.score, answer.objective, "the best without")
        return [("Drafting", f"{own[0]}: {said}: {_beside(other)}")]
    said = compared_words(other.score / best.score, answer.objective)
    return [("Drafting", f"nothing is gained: {said}, with {other.summary}")]


def _limits(answer: Answer | Estimate, plan: RankedPlan) -> list[tuple[str, str]]:
    """How sure a plan keeps the limits, and what asks for a surer one."""
    limits = answer.setting.limits
    if not limits:
        return []
    texts = [
        f"{limited(name)} at most {duration_text(limit)}: {duration_text(plan[name])} predicted"
        for name, limit in limits.items()
    ]
    surer = [_surer(answer)] if isinstance(answer, Answer) and "surer" in answer.baselines else []
    return [("Limits", "; ".join([*texts, *surer]))]


def _surer(answer: Answer) -> str:
    """What a plan that keeps the limits with a chance of 90 % costs."""
    found = answer.baselines["surer"]
    if found is None:
        return (
            "no plan keeps them with 90 %" if answer.details["surer_searched"] else "90 % with --limit-confidence 90%"
        )
    first, objective = answer.plans[0], SERVING_OBJECTIVES[answer.objective]
    figure = objective.figure
    if objective.cost_figure:
        unit = "USD per million output tokens" if answer.objective == "money" else "J per output token"
        now, then = (significant(plan[objective.cost_figure]) for plan in (first, found))
        then = f"{then} {unit}"
    elif found["rate_per_s"] is not None and objective.is_per_device:
        now, then = f"{first.workers:,}", counted(found.workers, "GPU")
    elif figure == "output_tokens_per_s":
        now, then = (significant(plan[figure]) for plan in (first, found))
        then = f"{then} output tokens/s"
    else:
        now, then = (duration_text(plan[figure]) for plan in (first, found))
    return f"90 % sure: {found.summary}, {then} in place of {now}"


def limit_chance(plan: RankedPlan) -> str:
    """A chance in whole percent, never as certain."""
    chance = plan["limits_probability"]
    return ">99 %" if chance >= 0.995 else "<1 %" if chance < 0.005 else f"{100.0 * chance:.0f} %"


def _interval_facts(plan: RankedPlan) -> list[tuple[str, str]]:
    spans = (
        ("first token", plan["ttft_low_s"], plan["ttft_high_s"], duration_unit(plan["ttft_s"])),
        ("per token", plan.step_time_low_s, plan.step_time_high_s, duration_unit(plan["tpot_s"])),
        ("output", plan["output_tokens_per_s_low"], plan["output_tokens_per_s_high"], _RATE),
    )[: 3 if plan["rate_per_s"] is None else 2]
    texts = [f"{words} {span_text((low, high), unit)} {unit.name}" for words, low, high, unit in spans if low]
    return [("80 % intervals", ", ".join(texts))] if texts else []


REPORT = ServingReport()
