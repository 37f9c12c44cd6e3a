"""The explanation of a plan over several groups in every form."""

from __future__ import annotations

from collections.abc import Sequence

from planner.report.blocks import Block, Column, Heading, Report, Sentence, Table
from planner.report.mesh import comparison_blocks
from planner.report.numbers import duration_text, percent, significant, time_unit
from planner.report.uncertainty import sensitivity_blocks
from planner.spaces.mixed.documents import mixed_breakdown_document
from planner.spaces.mixed.report import estimate_blocks
from planner.spaces.mixed.results import MixedBreakdown
from planner.spaces.mixed.what_if import StepBound, WhatIf

__all__ = ["bound_sentences", "mixed_explain_report"]

# Changes of the step below this are none.
_NOISE = 5e-5
_KINDS = {"hardware": "With other hardware, the plan as it is", "plan": "With another plan, the hardware as it is"}


def mixed_explain_report(breakdown: MixedBreakdown, warnings: Sequence[str] = ()) -> Report:
    """Explain one plan, in every form."""
    return Report(
        blocks=lambda: _blocks(breakdown, warnings),
        data=lambda: mixed_breakdown_document(breakdown, warnings=warnings, explained=True),
        records=lambda: mixed_breakdown_document(breakdown, warnings=warnings)["stages"],
    )


def _blocks(breakdown: MixedBreakdown, warnings: Sequence[str]) -> list[Block]:
    *parts, facts = estimate_blocks(breakdown, warnings)
    return [
        *parts,
        *_bound_blocks(breakdown),
        *_what_if_blocks(breakdown),
        *comparison_blocks(breakdown),
        *sensitivity_blocks(breakdown.sensitivity),
        facts,
    ]


def _bound_blocks(breakdown: MixedBreakdown) -> list[Block]:
    if breakdown.bound is None:
        return []
    sentences = bound_sentences(breakdown.bound, breakdown.ranked.step_time_s)
    return [Heading("What bounds the step"), *(Sentence(text) for text in sentences)]


def bound_sentences(bound: StepBound, step_s: float) -> list[str]:
    """The step as a sum in words.

    >>> bound = StepBound(
    ...     pipeline=0, stage=1, group="v100", num_micro_batches=16, working_s=8.0, waiting_s=1.5, end_s=0.5, largest="compute",
    ...     largest_share=0.9, spare_s=(0.0,)
    ... )
    >>> for sentence in bound_sentences(bound, 10.0):
    ...     print(sentence)
    Stage 1 on v100 is the busiest: 16 micro-batches x 500 ms = 8.00 s of the step's 10.0 s, 90.0 % of it compute.
    Filling, draining and waiting for the other stages take 1.50 s (15.0 %).
    Exchange and update leave 500 ms (5.0 %) behind the last backward pass.
    """
    several = len(bound.spare_s) > 1
    where = f"Stage {bound.stage} of pipeline {bound.pipeline}" if several else f"Stage {bound.stage}"
    each, count = bound.working_s / bound.num_micro_batches, bound.num_micro_batches
    batches = f"{count} micro-batch{'es' if count > 1 else ''} x {duration_text(each)}"
    work = f"{duration_text(bound.working_s)} of the step's {duration_text(step_s)}"
    texts = [
        f"{where} on {bound.group} is the busiest: {batches} = {work}, {percent(bound.largest_share)} of it {bound.largest}."
    ]
    if bound.waiting_s > _NOISE * step_s:
        share = percent(bound.waiting_s / step_s)
        texts.append(
            f"Filling, draining and waiting for the other stages take {duration_text(bound.waiting_s)} ({share})."
        )
    if bound.end_s > _NOISE * step_s:
        share = percent(bound.end_s / step_s)
        texts.append(f"Exchange and update leave {duration_text(bound.end_s)} ({share}) behind the last backward pass.")
    texts += [
        f"Pipeline {p} ends its passes {duration_text(spare)} earlier."
        for p, spare in enumerate(bound.spare_s)
        if p != bound.pipeline and spare > _NOISE * step_s
    ]
    return texts


def _what_if_blocks(breakdown: MixedBreakdown) -> list[Block]:
    blocks: list[Block] = []
    for kind, title in _KINDS.items():
        rows = [row for row in breakdown.what_if if row.kind == kind]
        if rows:
            blocks += [Heading(title), _table(rows)]
    return blocks


def _table(rows: Sequence[WhatIf]) -> Table:
    unit = time_unit(min(row.step_time_s for row in rows))
    return Table(
        columns=(
            Column(title="change", cells=tuple(row.change for row in rows), is_text=True, flexible=True),
            Column(
                title="step time", unit=unit.name, cells=tuple(significant(r.step_time_s / unit.size) for r in rows)
            ),
            Column(title="faster", cells=tuple(_gain(row.gain) for row in rows)),
            Column(title="fits", cells=tuple("yes" if row.fits else "no" for row in rows), is_text=True, priority=1),
        )
    )


def _gain(gain: float) -> str:
    """A gain with its sign; nothing where there is none.

    >>> _gain(0.052), _gain(-0.1), _gain(0.0)
    ('+5.2 %', '-10.0 %', '-')
    """
    return "-" if abs(gain) < _NOISE else f"{'+' if gain > 0 else '-'}{percent(abs(gain))}"
