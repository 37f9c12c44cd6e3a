"""The answers about serving: ranked plans, and one plan part by part; the same as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from planner.report.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.report.documents import RESULT_VERSION, tail
from planner.report.numbers import (
    NOT_AVAILABLE,
    Unit,
    byte_text,
    byte_unit,
    duration_text,
    significant,
    time_unit,
    used_of_total,
)
from planner.report.optimize import space_text, workers_text
from planner.report.parts import assumed_facts, comparison_table, parts_table
from planner.report.ranking import gap_text, ranked_table
from planner.report.rows import rows_table
from planner.report.uncertainty import bars_columns, bars_document, bars_facts, benchmark_sentence, span_text
from planner.spaces.serving.results import RankedServingPlan, ServingEstimate, ServingResult
from planner.spaces.serving.wording import SERVING_MEMORY_WORDS, TPOT_WORDS, TTFT_WORDS, command_of

__all__ = [
    "serving_estimate_report",
    "serving_explain_report",
    "serving_record",
    "serving_search_report",
    "serving_table",
]

_RATE = Unit(name="tokens/s", size=1.0)
# Objective -> what a better plan is.
_BETTER = {
    "throughput": "faster",
    "latency": "quicker",
    "ttft": "quicker",
    "tpot": "quicker",
    "tokens_per_s_per_gpu": "more efficient",
}
_KEYS = (
    "workers",
    "family",
    "summary",
    "ttft_s",
    "ttft_low_s",
    "ttft_high_s",
    "tpot_s",
    "request_s",
    "pause_s",
    "decode_pass_s",
    "requests_per_s",
    "output_tokens_per_s",
    "output_tokens_per_s_low",
    "output_tokens_per_s_high",
    "total_tokens_per_s",
    "output_tokens_per_s_per_gpu",
    "memory_capacity_bytes",
    "kv_bytes_per_sequence",
    "largest_batch",
    "money_per_million_output_tokens",
    "bottleneck",
    "gap",
)


def serving_search_report(result: ServingResult) -> Report:
    """Ranked plans in every form."""
    return Report(
        blocks=lambda: _search_blocks(result),
        data=lambda: _search_document(result),
        records=lambda: [serving_record(plan) for plan in result.plans],
    )


def serving_estimate_report(estimate: ServingEstimate, warnings: Sequence[str] = ()) -> Report:
    """Predict one plan, in every form."""
    return Report(
        blocks=lambda: [*_plan_blocks(estimate), _closing(estimate, warnings)],
        data=lambda: _estimate_document(estimate, warnings, rows=False),
        records=lambda: [serving_record(estimate.ranked)],
    )


def serving_explain_report(estimate: ServingEstimate, warnings: Sequence[str] = ()) -> Report:
    """Explain one plan, in every form."""
    return Report(
        blocks=lambda: [
            *_plan_blocks(estimate),
            Heading(
                "Layer by layer (of one rank: a decoding pass of one group of sequences, a pass that reads prompts)"
            ),
            rows_table(estimate.layers),
            *_comparison_blocks(estimate),
            _closing(estimate, warnings),
        ],
        data=lambda: _estimate_document(estimate, warnings, rows=True),
        records=lambda: [asdict(row) for row in estimate.layers],
    )


# -- for people ---------------------------------------------------------------------------------------------------------


def _search_blocks(result: ServingResult) -> list[Block]:
    best, better = result.plans[0], _BETTER[result.objective]
    proof = (
        f"every plan of the stated space that fits was scored; none is {better} than the first"
        if result.proven_optimal
        else "not proven: the search was stopped"
    )
    facts = [
        ("Proof", proof),
        ("Space", space_text(result.space_size, result.searched, result.wall_s)),
        ("Workers", workers_text(best.workers, result.setting.gpus, proven=result.proven_optimal, better=better)),
        ("Against replicas of one GPU", _versus_replicas(result)),
        (
            "Batch",
            f"up to {_sequences(best.largest_batch)} per replica fit; each keeps {byte_text(best.kv_bytes_per_sequence)} on a GPU",
        ),
        *_limits(result.limits),
        ("This plan alone", f"planner estimate with the same question and {command_of(best.plan)}"),
        *bars_facts(result.error_bars),
        *_interval_facts(best),
        *assumed_facts(result.assumptions, result.model_assumptions, result.setting),
        *(("Note", note) for note in result.notes),
    ]
    return [
        serving_table(result.plans, objective=result.objective),
        *benchmark_sentence(result.error_bars, len(result.plans)),
        Sentence(f"Best: {best.summary}: {_answer(best)}.", strong=True),
        Facts(tuple(facts)),
    ]


def _answer(plan: RankedServingPlan) -> str:
    return (
        f"first token after {duration_text(plan.ttft_s)}, then one every {duration_text(plan.tpot_s)}, "
        f"{significant(plan.output_tokens_per_s)} output tokens/s in all"
    )


def _versus_replicas(result: ServingResult) -> str:
    best, plain = result.plans[0], result.replicas_only
    if plain is None:
        return f"{NOT_AVAILABLE}: none fits and keeps the limits"
    if plain.plan == best.plan:
        return "the best plan is one"
    return f"{plain.summary}: {_answer(plain)}"


def _sequences(number: int) -> str:
    return f"{number} sequence" + ("" if number == 1 else "s")


def _limits(limits: Mapping[str, float]) -> list[tuple[str, str]]:
    words = {"ttft_s": "time to first token", "tpot_s": "time per token"}
    text = ", ".join(f"{words[name]} at most {duration_text(value)}" for name, value in limits.items())
    return [("Limits", text)] if text else []


def _interval_facts(plan: RankedServingPlan) -> list[tuple[str, str]]:
    """Between what a measurement of each quantity lies."""
    spans = (
        ("first token", plan.ttft_low_s, plan.ttft_high_s, time_unit(plan.ttft_s)),
        ("per token", plan.step_time_low_s, plan.step_time_high_s, time_unit(plan.tpot_s)),
        ("output", plan.output_tokens_per_s_low, plan.output_tokens_per_s_high, _RATE),
    )
    texts = [f"{words} {span_text((low, high), unit)} {unit.name}" for words, low, high, unit in spans if low]
    return [("80 % intervals", ", ".join(texts))] if texts else []


def serving_table(plans: Sequence[RankedServingPlan], *, ranks: bool = True, objective: str = "throughput") -> Table:
    """Columns of plans; a narrow terminal drops those of the largest priority first.

    Parameters
    ----------
    plans : sequence of RankedServingPlan
    ranks : bool
        Whether rank and gap have a meaning: not for a single plan that was not searched for.
    objective : str
        The interval that is shown is of what the plans are compared by.
    """
    first, each = time_unit(min(p.ttft_s for p in plans)), time_unit(min(p.tpot_s for p in plans))

    def column(title: str, cell: Callable[[RankedServingPlan], str], priority: int, *, unit: str = "") -> Column:
        return Column(title=title, unit=unit, cells=tuple(cell(plan) for plan in plans), priority=priority)

    columns = [
        Column(title="plan", cells=tuple(plan.summary for plan in plans), is_text=True, flexible=True),
        column("GPUs", lambda p: f"{p.workers:,}", 5),
        column("first token", lambda p: significant(p.ttft_s / first.size), 0, unit=first.name),
        column("per token", lambda p: significant(p.tpot_s / each.size), 0, unit=each.name),
        column("output", lambda p: significant(p.output_tokens_per_s), 1, unit="tokens/s"),
        column("output", lambda p: significant(p.output_tokens_per_s_per_gpu), 4, unit="per GPU"),
        column("requests/s", lambda p: significant(p.requests_per_s), 6),
        column("memory", lambda p: used_of_total(p.memory_bytes_per_gpu, p.memory_capacity_bytes), 3, unit="per GPU"),
        column("KV cache", lambda p: byte_text(p.memory_parts["kv_bytes"]), 7, unit="per GPU"),
        Column(title="bottleneck", cells=tuple(plan.bottleneck for plan in plans), is_text=True, priority=9),
    ]
    after, low, high, unit = {
        "ttft": (2, "ttft_low_s", "ttft_high_s", first),
        "tpot": (3, "step_time_low_s", "step_time_high_s", each),
        "latency": (3, "step_time_low_s", "step_time_high_s", each),
    }.get(objective, (4, "output_tokens_per_s_low", "output_tokens_per_s_high", _RATE))
    ends = [(getattr(plan, low), getattr(plan, high)) for plan in plans]
    columns[after + 1 : after + 1] = bars_columns(plans, unit, ends)
    return ranked_table(columns, plans, gap_priority=2) if ranks else Table(columns=tuple(columns))


def _plan_blocks(estimate: ServingEstimate) -> list[Block]:
    ranked = estimate.ranked
    blocks: list[Block] = [serving_table([ranked], ranks=False, objective=estimate.objective)]
    for heading, parts, words, total, unit in (
        ("Where the time per token goes", ranked.tpot_parts, TPOT_WORDS, ranked.tpot_s, time_unit(ranked.tpot_s)),
        (
            "Where the time to the first token goes",
            ranked.ttft_parts,
            TTFT_WORDS,
            ranked.ttft_s,
            time_unit(ranked.ttft_s),
        ),
        (
            "What fills the memory (per GPU, of the stage that needs most)",
            ranked.memory_parts,
            SERVING_MEMORY_WORDS,
            ranked.memory_bytes_per_gpu,
            byte_unit(ranked.memory_bytes_per_gpu),
        ),
    ):
        if total > 0:
            blocks += [Heading(heading), parts_table(parts, words, total, unit, title="value", name="total")]
    return blocks


def _comparison_blocks(estimate: ServingEstimate) -> list[Block]:
    best, ranked = estimate.best, estimate.ranked
    if best is None:
        return []
    if ranked.gap <= 1e-12 and ranked.fits:
        return [Sentence(f"No plan of the stated space is {_BETTER[estimate.objective]}.", strong=True)]
    rows = [(term, a, b) for term, a, b in estimate.comparison if a > 0 or b > 0]
    unit = time_unit(max(max(a, b) for _, a, b in rows))

    return [
        Heading(f"Against the best plan: {gap_text(ranked.gap)} by {estimate.objective} against {best.summary}"),
        comparison_table(rows, unit, total=False),
    ]


def _closing(estimate: ServingEstimate, warnings: Sequence[str]) -> Block:
    ranked = estimate.ranked
    facts = [
        (
            "Batch",
            f"up to {_sequences(ranked.largest_batch)} per replica fit; each keeps {byte_text(ranked.kv_bytes_per_sequence)} on a GPU",
        ),
        (
            "A request",
            f"{duration_text(ranked.request_s)}; longest pause between two tokens {duration_text(ranked.pause_s)}",
        ),
        *_limits(estimate.limits),
        *bars_facts(estimate.error_bars),
        *_interval_facts(ranked),
        *assumed_facts(estimate.assumptions, estimate.model_assumptions, estimate.setting),
        *(("Note", note) for note in estimate.notes),
        *(("Warning", warning) for warning in warnings),
    ]
    return Facts(tuple(facts))


# -- for programs -------------------------------------------------------------------------------------------------------


def serving_record(ranked: RankedServingPlan) -> dict[str, Any]:
    """Numbers of a ranked plan, without the plan itself; a step is one token of every sequence."""
    return {
        "rank": ranked.rank,
        "step_time_s": ranked.tpot_s,
        "step_time_low_s": ranked.step_time_low_s,
        "step_time_high_s": ranked.step_time_high_s,
        "probability_best": ranked.probability_best,
        "throughput_samples_per_s": ranked.requests_per_s,
        "memory_bytes_per_gpu": ranked.memory_bytes_per_gpu,
        "exposed_communication_s": ranked.exposed_communication_s,
        **{key: getattr(ranked, key) for key in _KEYS},
        **ranked.tpot_parts,
        **ranked.ttft_parts,
        **ranked.memory_parts,
    }


def _with_plan(ranked: RankedServingPlan) -> dict[str, Any]:
    return {**serving_record(ranked), "plan": asdict(ranked.plan)}


def _head(answer: ServingResult | ServingEstimate) -> dict[str, Any]:
    setting = answer.setting
    return {
        "schema_version": RESULT_VERSION,
        "model": setting.model,
        "cluster": setting.cluster,
        "gpus": setting.gpus,
        "global_batch": setting.global_batch,
        "cost_model": setting.cost_model,
        "space": "serving",
        "seq": answer.prompt_tokens + answer.output_tokens,
        "objective": answer.objective,
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "kv_precision": answer.kv_precision,
        "max_ttft_s": answer.limits.get("ttft_s"),
        "max_tpot_s": answer.limits.get("tpot_s"),
    }


def _search_document(result: ServingResult) -> dict[str, Any]:
    best, plain = result.plans[0], result.replicas_only
    bound = {"latency": best.request_s, "ttft": best.ttft_s, "tpot": best.tpot_s}.get(
        result.objective, 1.0 / best.output_tokens_per_s
    )
    if result.objective == "tokens_per_s_per_gpu":
        bound = 1.0 / best.output_tokens_per_s_per_gpu
    return {
        **_head(result),
        "plans": [_with_plan(ranked) for ranked in result.plans],
        "proven_optimal": result.proven_optimal,
        "bound_s": bound if result.proven_optimal else 0.0,
        "gap": 0.0 if result.proven_optimal else 1.0,
        "space_size": result.space_size,
        "space_size_log10": math.log10(result.space_size) if result.space_size > 0 else None,
        "wall_s": result.wall_s,
        "searched": dict(result.searched),
        "data_parallel": None if plain is None else _with_plan(plain),
        **bars_document(result.error_bars, len(result.plans)),
        **tail(result.setting, (*result.assumptions, *result.model_assumptions), (), result.notes),
    }


def _estimate_document(estimate: ServingEstimate, warnings: Sequence[str], *, rows: bool) -> dict[str, Any]:
    best = estimate.best
    document = {
        **_head(estimate),
        "step_time_s": estimate.ranked.tpot_s,
        "plans": [_with_plan(estimate.ranked)],
    }
    if rows:
        document["layers"] = [asdict(row) for row in estimate.layers]
    return {
        **document,
        **bars_document(estimate.error_bars, None),
        "best": None if best is None else _with_plan(best),
        "comparison": [{"term": term, "plan_s": a, "best_s": b} for term, a, b in estimate.comparison],
        **tail(
            estimate.setting,
            (*estimate.assumptions, *estimate.model_assumptions),
            (),
            (*estimate.notes, *warnings),
        ),
    }
