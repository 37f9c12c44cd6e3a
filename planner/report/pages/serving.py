"""The answer of ``planner optimize --mode inference`` as one HTML file: how to serve a network that generates text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from costmodel.tolerances import EQUAL
from planner.core.answer import Answer, RankedPlan
from planner.core.blocks import Block, Facts, Sentence, Table
from planner.core.numbers import Unit, byte_text, byte_unit, duration_text, percent, significant, time_unit
from planner.report.figures.kinds import Bars, Dot, Figure, Points, Series
from planner.report.figures.standard import front
from planner.report.page import escaped, facts
from planner.report.pages.answer import Section, assembled, assumptions_table, provenance
from planner.report.pages.blocks import block_html, table_html

__all__ = ["serving_page"]


def serving_page(answer: Answer, blocks: Sequence[Block], *, live: bool, version: str) -> str:
    """Write the page.

    Parameters
    ----------
    answer : Answer
    blocks : sequence of Block
        What the terminal shows.
    live : bool
        Whether plots are interactive, which needs plotly.
    version : str
        Of the planner.
    """
    plans, setting, load = answer.plans, answer.setting, answer.setting.load
    assert load is not None
    sections = [
        Section(
            title="Time per token",
            figures=(
                _parts(
                    "tpot",
                    "What the time per token after the first is made of",
                    plans,
                    "tpot_s",
                    is_time=True,
                ),
            ),
        ),
        Section(
            title="Time to the first token",
            figures=(_parts("ttft", "What the time to the first token is made of", plans, "ttft_s", is_time=True),),
        ),
        Section(
            title="What fills the memory",
            figures=(_parts("memory", "What fills the fullest GPU", plans, "memory_bytes_per_gpu", is_time=False),),
        ),
    ]
    fronts = _fronts(plans)
    if fronts:
        sections.append(Section(title="Pareto fronts", figures=tuple(fronts), note="The plans of this answer."))
    sections += [
        Section(title="Assumptions", parts=(assumptions_table(answer.assumptions, answer.model_assumptions),)),
        Section(title="Provenance", parts=(facts(provenance(setting, version)),)),
    ]
    question = (
        f"serving {setting.model}: prompts of {load.prompt_tokens:,} and answers of {load.output_tokens:,} tokens on average, "
        f"{setting.precision}, cache in {load.kv_precision}; up to {setting.gpus:,} x {setting.device}; best by {answer.objective}"
    )
    sentences = [block for block in blocks if isinstance(block, Sentence)]
    tables = [block for block in blocks if isinstance(block, Table)]
    known = [block for block in blocks if isinstance(block, Facts)]
    head = [f'<p class="soft">{escaped(question)}</p>', *(block_html(block) for block in sentences)]
    first = [
        '<p class="soft">Click on a title, or press Enter on it, to sort by it.</p>',
        *(table_html(block, cards=True) for block in tables),
        *(block_html(block, without=("Assumed", "Of the cost model")) for block in known),
    ]
    return assembled(f"{setting.model} on {setting.cluster}", head, "Plans", first, sections, live=live)


def _row(plan: RankedPlan) -> str:
    return f"#{plan.rank} ({plan.workers} GPU{'s' if plan.workers != 1 else ''})"


def _parts(
    name: str,
    caption: str,
    plans: Sequence[RankedPlan],
    total: str,
    *,
    is_time: bool,
) -> Bars:
    parts: list[Mapping[str, float]] = [plan.parts(total) for plan in plans]
    totals = [sum(of.values()) for of in parts]
    unit: Unit = (time_unit if is_time else byte_unit)(max(totals))
    text: Callable[[float], str] = duration_text if is_time else byte_text
    series = [
        Series(
            name=word,
            values=tuple(of[key] / unit.size for of in parts),
            titles=tuple(
                f"#{plan.rank}: {word} {text(of[key])}, {percent(of[key] / whole)} of {text(whole)}\n{plan.summary}"
                for plan, of, whole in zip(plans, parts, totals, strict=True)
            ),
        )
        for key, word in plans[0].labels(total).items()
    ]
    axis = f"time ({unit.name})" if is_time else f"memory per GPU ({unit.name})"
    limit = None if is_time else plans[0].memory_capacity_bytes
    return Bars(
        name=name,
        caption=f"{caption}." if limit is None else f"{caption}; the dashed line is its capacity, {byte_text(limit)}.",
        axis=axis,
        rows=tuple(_row(plan) for plan in plans),
        series=tuple(item for item in series if any(item.values)),
        limit=None if limit is None else limit / unit.size,
        limit_name="" if limit is None else f"capacity: {byte_text(limit)}",
    )


def _fronts(plans: Sequence[RankedPlan]) -> list[Figure]:
    """Times against GPU time per token: on both axes less is better."""
    if len(plans) < 2:
        return []
    cost = [1e6 / plan["output_tokens_per_s_per_gpu"] / 3600.0 for plan in plans]
    result: list[Figure] = []
    for name, title, seconds in (
        ("pareto tpot", "time per token", [plan["tpot_s"] for plan in plans]),
        ("pareto ttft", "time to the first token", [plan["ttft_s"] for plan in plans]),
    ):
        if max(seconds) <= min(seconds) * (1 + EQUAL) or max(cost) <= min(cost) * (1 + EQUAL):
            continue
        unit = time_unit(min(seconds))
        best = front(list(zip(seconds, cost, strict=True)))
        dots = tuple(
            Dot(
                x=time / unit.size,
                y=hours,
                title=f"#{plan.rank}: {plan.summary}\n{title} {duration_text(time)}, {significant(hours)} GPU hours per million "
                "output tokens",
                group=f"{plan.workers} GPU{'s' if plan.workers != 1 else ''}",
                on_front=on_front,
            )
            for plan, time, hours, on_front in zip(plans, seconds, cost, best, strict=True)
        )
        caption = (
            f"{title[0].upper()}{title[1:]} against GPU time per token; the line joins plans that none beats on both."
        )
        result.append(
            Points(
                name=name,
                caption=caption,
                x_axis=f"{title} ({unit.name})",
                y_axis="GPU hours per million output tokens",
                dots=dots,
            )
        )
    return result
