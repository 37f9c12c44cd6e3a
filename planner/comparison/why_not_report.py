"""The answer of ``planner why-not`` in every form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from costmodel.tolerances import EQUAL
from planner.comparison.differences import compare_items
from planner.comparison.report import memory_sentence, why
from planner.comparison.why_not import Step, WhyNot
from planner.core.answer import Answer, Estimate, RankedPlan
from planner.core.blocks import Block, Column, Facts, Heading, Report, Sentence, Table
from planner.core.notes import note_entry
from planner.core.numbers import byte_unit, duration_text, significant, time_unit, used_of_total
from planner.core.objectives import compared_words
from planner.report.answer import memory_text
from planner.report.documents import RESULT_VERSION
from planner.report.roles import simplest_words
from planner.spaces.ask import predicted
from planner.spaces.base import NEARLY
from planner.spaces.items import item_of

if TYPE_CHECKING:
    from planner.spaces.base import PlanSpace

_PLAN, _FIRST = "this plan", "the first plan"
# How much more than the best the first plan may score, as a simpler one.
_NEARLY = f"{NEARLY * 100:g} %"


def why_not_report(answer: WhyNot, warnings: Sequence[str] = (), following: str = "") -> Report:
    """Whether a plan is legal and fits, how many are better, and what each difference costs, in every form.

    Parameters
    ----------
    answer : WhyNot
    warnings : sequence of str
        What no longer holds of a plan file.
    following : str
        What to type next.
    """
    return Report(
        blocks=lambda: _blocks(answer, warnings, following),
        data=lambda: _document(answer, warnings),
        records=lambda: [_step_record(step) for step in answer.steps],
    )


def verdict(answer: WhyNot) -> str:
    """Say it in one sentence: legal, fits, how it stands against the first plan."""
    if answer.plan is None:
        return "The plan is not legal." if answer.broken else "No plan with these settings fits."
    ranked = answer.plan.ranked
    is_good = ranked.fits and not answer.misfit
    fits = "fits" if is_good else "does not fit" if not ranked.fits else "misses a limit"
    if answer.broken:
        start = f"The plan is not legal. The nearest legal plan ({answer.legal[0].change}) {fits}"
    else:
        start = f"The plan is legal {'and' if is_good else 'but'} {fits}"
    if answer.first is None:
        return f"{start}; nor does any other plan."
    if answer.is_first:
        simplest = "" if answer.first.fastest is None else f": {simplest_words(answer.first)}"
        return f"{start}. It is the first plan{simplest}."
    ratio = answer.first.best.score / ranked.score
    simpler = ", which is simpler" if ratio > 1 + EQUAL and answer.first.fastest is not None and is_good else ""
    return f"{start}. It is {compared_words(1.0 / ratio, answer.first.objective, _FIRST)}{simpler}."


def _blocks(answer: WhyNot, warnings: Sequence[str], following: str) -> list[Block]:
    blocks: list[Block] = [Sentence(verdict(answer), strong=True), Facts(tuple(_facts(answer, warnings, following)))]
    if answer.legal:
        blocks += [Heading("Nearest legal settings (one is changed)"), _legal_table(answer)]
    if answer.steps and answer.plan is not None:
        order = _ORDER.format(follows=_space_of(answer.plan).follows)
        blocks += [Heading("What each difference costs"), _step_table(answer), Sentence(order)]
    return blocks


_ORDER = (
    "Each line changes one more setting, in this order, until the plan is the first plan; settings that work only together change "
    "together.{follows} In another order each line differs, and the sum does not."
)


def _facts(answer: WhyNot, warnings: Sequence[str], following: str) -> list[tuple[str, str]]:
    facts = [("Not legal", text) for text in answer.broken]
    if answer.broken and answer.plan is None:
        facts.append(("Nearest plan", "none: no other value of one setting alone makes it legal"))
    if answer.plan is not None:
        ranked = answer.plan.ranked
        chosen = " (what was left open is chosen by a search: the best with these settings)" if answer.filled_in else ""
        facts.append(("Nearest plan" if answer.broken else "Plan", f"{ranked.summary}{chosen}"))
        used, there = ranked.memory_bytes_per_gpu, ranked.memory_there_bytes
        facts.append(("Memory", memory_text(used, there, chance=ranked.fits_text)))
    if answer.misfit:
        facts.append(("Fits", answer.misfit))
    none = "none with other settings either" if answer.misfit else f"none: {answer.no_plan}"
    first = none if answer.first is None else f"{answer.first.best.summary}: {_pace(answer.first.best)}"
    notes = () if answer.plan is None else answer.plan.notes
    return [
        *facts,
        ("First plan", first),
        *(("Better plans", text) for text in [_rank(answer)] if text),
        *zip(("Time", "Memory needed"), _reasons(answer), strict=False),
        *(("Note", str(note)) for note in notes),
        *(("Warning", text) for text in warnings),
        *([("Next", following)] if following else []),
    ]


def _pace(plan: RankedPlan) -> str:
    """How fast a plan is; one that serves has a rate, too."""
    time, rate = duration_text(plan.step_time_s), plan.get("output_tokens_per_s")
    return time if rate is None else f"{significant(rate)} output tokens/s, a token every {time}"


def _rank(answer: WhyNot) -> str:
    if answer.plan is None or answer.first is None:
        return ""
    what = _space_of(answer.plan).better_plans
    if answer.is_first and answer.first.fastest is not None:
        what = f"{_NEARLY} better at most, and harder to run; counted are {what}"
    if answer.first.refined is not None:
        what += "; not counted are plans with stages or splits of their own, as the first plan is"
    if not answer.is_counted:
        least = f"at least {answer.better:,}" if answer.better else "some"
        return f"{least} ({what}); the search did not count further"
    return f"{answer.better:,} ({what})" if answer.better else f"none ({what})"


def _space_of(answer: Answer | Estimate) -> PlanSpace:
    return cast("PlanSpace", answer.space)  # as every answer has it


def _reasons(answer: WhyNot) -> list[str]:
    """Which terms of time and memory the first plan saves and pays."""
    if answer.plan is None or answer.first is None or not answer.steps:
        return []
    first = predicted(_space_of(answer.first), answer.first.best.plan)
    items = [item_of(_FIRST, answer.request, first), item_of(_PLAN, answer.request, answer.plan)]
    comparison = compare_items(items)
    return [text[:1].upper() + text[1:] for text in (why(comparison, 1), memory_sentence(comparison, 1))]


def _legal_table(answer: WhyNot) -> Table:
    plans = [legal.plan for legal in answer.legal]
    unit = time_unit(min(plan.step_time_s for plan in plans))
    times = (significant(plan.step_time_s / unit.size) for plan in plans)
    memory = (used_of_total(plan.memory_bytes_per_gpu, plan.memory_there_bytes) for plan in plans)
    return Table(
        columns=(
            Column("", tuple(legal.change for legal in answer.legal), is_text=True),
            Column("best plan with it", tuple(p.summary for p in plans), 2, is_text=True, flexible=True, plans=True),
            Column("GPUs", tuple(f"{plan.workers:,}" for plan in plans), 1),
            Column(f"time per {_word(plans[0])}", tuple(times), unit=unit.name),
            Column("memory", tuple(memory), unit="per GPU"),
            Column("fits", tuple("yes" if plan.fits else "no" for plan in plans), is_text=True),
        )
    )


def _word(plan: RankedPlan) -> str:
    """What the time of a plan is counted for."""
    return "step" if plan.get("ttft_s") is None else "token"


def _step_table(answer: WhyNot) -> Table:
    assert answer.plan is not None
    start, steps = answer.plan.ranked, answer.steps
    plans = [start, *(step.plan for step in steps)]
    time, size = time_unit(start.step_time_s), byte_unit(start.memory_bytes_per_gpu)
    last = plans[-1]
    times = [step.change_s for step in steps] + [last.step_time_s - start.step_time_s]
    memory = [step.change_bytes for step in steps] + [last.memory_bytes_per_gpu - start.memory_bytes_per_gpu]
    rows = [start, *(step.plan for step in steps), last]
    has_rate = start.get("output_tokens_per_s") is not None
    rates = tuple(significant(plan.get("output_tokens_per_s")) for plan in rows)
    columns = [
        Column("change", (_PLAN, *(_change_text(step) for step in steps), "all changes"), is_text=True, flexible=True),
        *([Column("output", rates, unit="tokens/s")] if has_rate else []),
        Column(
            f"time per {_word(start)}",
            tuple(significant(plan.step_time_s / time.size) for plan in rows),
            2,
            unit=time.name,
        ),
        Column("change", ("", *(_signed(value / time.size) for value in times)), unit=time.name),
        Column("memory", tuple(significant(plan.memory_bytes_per_gpu / size.size) for plan in rows), 2, unit=size.name),
        Column("change", ("", *(_signed(value / size.size) for value in memory)), unit=size.name),
        Column("fits", tuple("yes" if plan.fits else "no" for plan in rows), 3, is_text=True),
        Column("plan", tuple(plan.summary for plan in rows), 4, is_text=True, flexible=True, plans=True),
    ]
    return Table(columns=tuple(columns), total=True)


def _change_text(step: Step) -> str:
    return " and ".join(
        f"{name} {before} -> {after}" if before or after else name
        for name, (before, after) in zip(step.names, step.texts, strict=True)
    )


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{significant(value)}"


# -- for programs -------------------------------------------------------------------------------------------------------


def _document(answer: WhyNot, warnings: Sequence[str]) -> dict[str, Any]:
    plan, first = answer.plan, answer.first
    ranked = None if plan is None else plan.ranked
    return {
        "schema_version": RESULT_VERSION,
        "model": answer.request.model,
        "gpus": answer.request.gpus,
        "objective": None if plan is None else plan.objective,
        "legal": not answer.broken,
        "broken": list(answer.broken),
        "nearest_legal": [{"change": legal.change, **_figures(legal.plan)} for legal in answer.legal],
        "fits": answer.is_good,
        "misfit": answer.misfit or None,
        "filled_in": answer.filled_in,
        "plan": None if ranked is None else _figures(ranked),
        "first": None if first is None else _figures(first.best),
        "no_plan": answer.no_plan or None,
        "is_first": answer.is_first,
        "relative_score": None if ranked is None or first is None else ranked.score / first.best.score,
        "better_plans": None if ranked is None or first is None else answer.better,
        "better_plans_counted": answer.is_counted,
        "better_plans_of": None if plan is None else _space_of(plan).better_plans,
        "steps": [_step_record(step) for step in answer.steps],
        "why": _reasons(answer),
        "verdict": verdict(answer),
        "notes": [] if plan is None else [note_entry(note) for note in plan.notes],
        "warnings": list(warnings),
    }


def _figures(plan: RankedPlan) -> dict[str, Any]:
    return {
        "summary": plan.summary,
        "workers": plan.workers,
        "step_time_s": plan.step_time_s,
        "memory_bytes_per_gpu": plan.memory_bytes_per_gpu,
        "memory_capacity_bytes": plan.memory_capacity_bytes,
        "fits": plan.fits,
    }


def _step_record(step: Step) -> dict[str, Any]:
    return {
        "settings": list(step.names),
        "before": [before for before, _ in step.texts],
        "after": [after for _, after in step.texts],
        "change_s": step.change_s,
        "change_bytes": step.change_bytes,
        **_figures(step.plan),
    }
