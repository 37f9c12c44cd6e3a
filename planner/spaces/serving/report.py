"""What reports show of plans that serve a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.core.answer import Answer, Estimate, RankedPlan
from planner.core.blocks import Block, Column
from planner.core.numbers import (
    NOT_AVAILABLE,
    Unit,
    byte_text,
    duration_text,
    duration_unit,
    significant,
    time_unit,
    used_of_total,
)
from planner.report.answer import SpaceReport, bottleneck_columns, parts_blocks
from planner.report.tables import column_maker
from planner.report.uncertainty import bars_columns, span_text
from planner.spaces.serving.plans import command_of
from planner.spaces.serving.space import LIMITS

__all__ = ["REPORT"]

_RATE = Unit(name="tokens/s", size=1.0)


class ServingReport(SpaceReport):
    """Reports about plans that serve a network."""

    layers_heading = (
        "Layer by layer (of one rank: a decoding pass of one group of sequences, a pass that reads prompts)"
    )
    baseline = "replicas of one GPU"
    space = (
        "on any number of GPUs, all tp, pp, ep, etp, sequences per replica and ways of reading prompts that the rules and what is fixed "
        "allow, each with the most replicas (docs/inference.md, section 5)"
    )
    gap_priority = 2

    def columns(self, plans: Sequence[RankedPlan], objective: str) -> list[Column]:
        """Columns of what plans cost; the interval that is shown is of what they are compared by."""
        first, each = time_unit(min(p["ttft_s"] for p in plans)), time_unit(min(p["tpot_s"] for p in plans))
        column = column_maker(plans)
        columns = [
            *self.size_columns(plans),
            column("first token", lambda p: significant(p["ttft_s"] / first.size), 0, unit=first.name),
            column("per token", lambda p: significant(p["tpot_s"] / each.size), 0, unit=each.name),
            column("output", lambda p: significant(p["output_tokens_per_s"]), 1, unit="tokens/s"),
            column("output", lambda p: significant(p["output_tokens_per_s_per_gpu"]), 4, unit="per GPU"),
            column("requests/s", lambda p: significant(p["requests_per_s"]), 6),
            column(
                "memory", lambda p: used_of_total(p.memory_bytes_per_gpu, p.memory_capacity_bytes), 3, unit="per GPU"
            ),
            column("KV cache", lambda p: byte_text(p["kv_bytes"]), 7, unit="per GPU"),
            *bottleneck_columns(plans, 9),
        ]
        after, low, high, unit = {
            "ttft": (2, "ttft_low_s", "ttft_high_s", first),
            "tpot": (3, "step_time_low_s", "step_time_high_s", each),
            "latency": (3, "step_time_low_s", "step_time_high_s", each),
        }.get(objective, (4, "output_tokens_per_s_low", "output_tokens_per_s_high", _RATE))
        ends = [(_end(plan, low), _end(plan, high)) for plan in plans]
        return [*columns[:after], *bars_columns(plans, unit, ends), *columns[after:]]

    def speed_facts(self, plan: RankedPlan, objective: str) -> list[tuple[str, str]]:
        return [("Times", _times(plan))]

    def search_facts(self, answer: Answer) -> list[tuple[str, str]]:
        best = answer.plans[0]
        return [
            ("Against replicas of one GPU", _versus_replicas(answer)),
            *_batch_facts(best),
            *_limits(answer),
            ("This plan alone", f"planner estimate with the same question and {command_of(best.plan)}"),
            *_interval_facts(best),
        ]

    def plan_facts(self, estimate: Estimate) -> list[tuple[str, str]]:
        ranked = estimate.ranked
        pause = f"longest pause between two tokens {duration_text(ranked['pause_s'])}"
        return [
            *_batch_facts(ranked),
            ("A request", f"{duration_text(ranked['request_s'])}; {pause}"),
            *_limits(estimate),
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


def _batch_facts(plan: RankedPlan) -> list[tuple[str, str]]:
    kept = byte_text(plan["kv_bytes_per_sequence"])
    number = plan["largest_batch"]
    sequences = "1 sequence" if number == 1 else f"{number} sequences"
    return [("Batch", f"up to {sequences} per replica fit; each keeps {kept} on a GPU")]


def _times(plan: RankedPlan) -> str:
    return (
        f"first token after {duration_text(plan['ttft_s'])}, then one every {duration_text(plan['tpot_s'])}, "
        f"{significant(plan['output_tokens_per_s'])} output tokens/s in all"
    )


def _versus_replicas(answer: Answer) -> str:
    best, plain = answer.plans[0], answer.baselines["data_parallel"]
    if plain is None:
        return f"{NOT_AVAILABLE}: none fits{' and keeps the limits' if answer.setting.limits else ''}"
    if plain.plan == best.plan:
        return "the best plan is one"
    return f"{plain.summary}: {_times(plain)}"


def _limits(answer: Answer | Estimate) -> list[tuple[str, str]]:
    limits = answer.setting.limits.items()
    text = ", ".join(f"{LIMITS[name]} at most {duration_text(value)}" for name, value in limits)
    return [("Limits", text)] if text else []


def _interval_facts(plan: RankedPlan) -> list[tuple[str, str]]:
    spans = (
        ("first token", plan["ttft_low_s"], plan["ttft_high_s"], duration_unit(plan["ttft_s"])),
        ("per token", plan.step_time_low_s, plan.step_time_high_s, duration_unit(plan["tpot_s"])),
        ("output", plan["output_tokens_per_s_low"], plan["output_tokens_per_s_high"], _RATE),
    )
    texts = [f"{words} {span_text((low, high), unit)} {unit.name}" for words, low, high, unit in spans if low]
    return [("80 % intervals", ", ".join(texts))] if texts else []


REPORT = ServingReport()
