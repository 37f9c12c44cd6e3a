"""The best plans of several frameworks, one line each, as blocks and as data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planner.core.answer import Answer, FrameworkPlan, RankedPlan
from planner.core.blocks import Block, Column, Heading, Table
from planner.core.numbers import byte_text, duration_text, duration_unit, joined_words, percent
from planner.core.objectives import change_column
from planner.core.request import WELL_TUNED, WELL_TUNED_WORDS
from planner.report.tables import fits_columns
from planner.report.uncertainty import interval_text

# Of the best plan of a framework; none where it has no plan.
_FIGURES = (
    "step_time_s", "step_time_low_s", "step_time_high_s", "memory_bytes_per_gpu", "mfu", "workers", "summary",
)  # fmt: skip

_HEADING = "Frameworks: the best first, with its plan to run"


def frameworks_blocks(answer: Answer) -> list[Block]:
    """A table of the frameworks, and what the best does better than each; nothing where one was asked about.

    >>> from planner.comparison.frameworks import optimize
    >>> from planner.core.request import Request
    >>> found = optimize(Request(model="gpt2-124m", gpus=2, frameworks=("pytorch-fsdp", "deepspeed"), top=1))
    >>> sorted(frameworks_blocks(found)[1].columns[0].cells)
    ['deepspeed', 'pytorch-fsdp']
    """
    rows = answer.frameworks
    if not rows:
        return []

    def cells(text: Callable[[FrameworkPlan, Answer], str]) -> tuple[str, ...]:
        return tuple("" if row.answer is None else text(row, row.answer) for row in rows)

    def of_plan(text: Callable[[RankedPlan], str]) -> tuple[str, ...]:
        return cells(lambda _, found: text(found.best))

    plans = tuple(row.reason.partition("\n")[0] if row.answer is None else row.answer.best.summary for row in rows)
    columns = (
        Column("framework", tuple(_name(row) for row in rows), 0, is_text=True),
        Column("time", of_plan(lambda plan: duration_text(plan.step_time_s)), 0, unit=f"per {answer.space.step_word}"),
        Column("80 % interval", of_plan(_interval), 3),
        change_column([None if row.answer is None else 1.0 + row.behind for row in rows[1:]], answer.objective, 1),
        Column("memory", of_plan(lambda plan: byte_text(plan.memory_bytes_per_gpu)), 2, unit="per GPU"),
        *fits_columns([None if row.answer is None else row.answer.best for row in rows], 2),
        Column("MFU", of_plan(_mfu), 4),
        Column("GPUs", of_plan(lambda plan: f"{plan.workers:,}"), 6),
        Column("proof", cells(lambda _, found: _proof(found)), 5, is_text=True),
        Column("export", tuple(row.target and f"--to {row.target}" for row in rows), 7, is_text=True),
        Column("plan, or why there is none", plans, 0, is_text=True, flexible=True, plans=True),
    )
    shown = [column for column in columns if column.priority == 0 or any(column.cells)]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.why:
            reasons.setdefault(row.why.removeprefix(_name(row)), []).append(_name(row))
    said = tuple(
        f"{names[0]}{why}{f' The same holds for {joined_words(names[1:])}.' * bool(names[1:])}"
        for why, names in reasons.items()
    )
    return [Heading(_HEADING), Table(columns=tuple(shown), highlight=0, caption=said)]


def is_of_frameworks(heading: Heading) -> bool:
    """Whether the table of the frameworks follows."""
    return heading.text == _HEADING


def _name(row: FrameworkPlan) -> str:
    return WELL_TUNED_WORDS if row.framework == WELL_TUNED else row.framework


def _interval(plan: RankedPlan) -> str:
    return interval_text((plan.step_time_low_s, plan.step_time_high_s), duration_unit(plan.step_time_s))


def _mfu(plan: RankedPlan) -> str:
    share = plan.get("mfu")
    return "" if share is None else percent(share)


def _proof(answer: Answer) -> str:
    """How sure it is that the framework has no better plan."""
    proof = answer.proof
    if proof.proven_optimal:
        return "proven"
    return f"within {percent(proof.gap)}" if proof.bound_s > 0 else "no bound"


def frameworks_document(answer: Answer) -> dict[str, Any]:
    """The rows as ``--json`` has them; none where one framework was asked about."""
    return {"frameworks": [_entry(row) for row in answer.frameworks]}


def _entry(row: FrameworkPlan) -> dict[str, Any]:
    answer = row.answer
    record = {} if answer is None else answer.best.record()
    return {
        "framework": row.framework,
        "reason": row.reason if answer is None else None,
        **{name: record.get(name) for name in _FIGURES},
        "behind": None if answer is None else row.behind,
        "proven_optimal": None if answer is None else answer.proof.proven_optimal,
        "bound_s": None if answer is None else answer.proof.bound_s,
        "gap": None if answer is None else answer.proof.gap,
        "plan": None if answer is None else answer.space.plan_values(answer, answer.best),
        "why": row.why,
        "target": row.target,
    }
