"""What a page shows beyond the answer: more searches with the same cost model, for curves and fronts.

All of it is counted, not timed: the same question gives the same page.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from planner.core.answer import Answer, Curve
from planner.report.figures.views import AnswerView, PlanView, view_of_search

__all__ = ["Study", "halved_counts", "study_of"]

Progress = Callable[[str, float], None]

# Numbers of GPUs on a scaling curve, halved from the most.
_COUNTS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """More plans and curves."""

    candidates: tuple[PlanView, ...]  # for fronts; the answer's plans among them
    curves: tuple[Curve, ...]
    note: str = ""


def study_of(answer: Answer, view: AnswerView, progress: Progress | None = None) -> Study:
    """Search at fewer GPUs, with less memory, and at batches that grow with the GPUs.

    Parameters
    ----------
    answer : Answer
    view : AnswerView
        Of the answer.
    progress : function of (message, share done), optional
    """
    plans, curves, note = answer.space.study(answer, progress or (lambda _message, _share: None))
    seen = {plan.plan for plan in view.shown}
    fresh = {plan.plan: plan for plan in plans if plan.plan not in seen}
    others: tuple[PlanView, ...] = ()
    if fresh:
        more = dataclasses.replace(answer, plans=tuple(fresh.values()), refined=None)
        others = view_of_search(more).plans
    fitting = tuple(p for p in (*view.shown, *others) if p.memory_bytes <= p.memory_capacity_bytes)
    return Study(candidates=fitting if curves else view.shown, curves=tuple(curves), note=note)


def halved_counts(most: int) -> list[int]:
    """Halves of a number: 256, 128, 64, 32, 16.

    >>> halved_counts(48)
    [3, 6, 12, 24, 48]
    """
    counts = [most]
    while len(counts) < _COUNTS and counts[-1] % 2 == 0:
        counts.append(counts[-1] // 2)
    return counts[::-1]
