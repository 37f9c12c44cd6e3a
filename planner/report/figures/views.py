"""Answers of every space as the same plain views, so that figures and pages need no space of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.tolerances import ROUNDING
from planner.core.answer import Answer, Assumption, ErrorBars, Estimate, RankedPlan, Sensitivity, Setting

__all__ = ["AnswerView", "PlanView", "view_of_prediction", "view_of_search"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """One ranked plan.

    Attributes
    ----------
    label : str
        "#1", or what it is shown for: "plain data parallelism".
    time_parts, memory_parts : tuples of (str, float)
        Words and seconds, words and bytes; they add up to the step and to the memory. Memory may be known as a whole only.
    usd_per_step, energy_j_per_step : float or None
        None where a price or a power is not stated.
    """

    label: str
    rank: int | None
    plan: Any
    summary: str
    family: str
    workers: int
    step_time_s: float
    throughput_samples_per_s: float
    low_s: float | None
    high_s: float | None
    probability_best: float | None
    time_parts: tuple[tuple[str, float], ...]
    memory_parts: tuple[tuple[str, float], ...]
    memory_bytes: float
    memory_capacity_bytes: float
    exposed_share: float
    bottleneck: str
    gap: float | None
    tokens_per_s_per_gpu: float | None = None
    mfu: float | None = None
    speedup: float | None = None
    usd_per_step: float | None = None
    energy_j_per_step: float | None = None

    @property
    def gpu_s(self) -> float:
        """Device-seconds of a step."""
        return self.workers * self.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerView:
    """An answer."""

    setting: Setting
    plans: tuple[PlanView, ...]  # ranked, best first
    others: tuple[PlanView, ...]  # for comparison
    best: PlanView  # what to run
    assumptions: tuple[Assumption, ...]
    model_assumptions: tuple[Assumption, ...]
    error_bars: ErrorBars | None
    sensitivity: tuple[Sensitivity, ...] | None
    objective: str

    @property
    def shown(self) -> tuple[PlanView, ...]:
        """All plans."""
        return (*self.plans, *self.others)


def view_of_search(answer: Answer) -> AnswerView:
    """The answer of ``planner optimize``."""
    views = tuple(_plan(f"#{plan.rank}", plan, ranked=True) for plan in answer.plans)
    others = tuple(_plan(label, plan) for label, plan in _compared(answer))
    refined = answer.refined
    best = views[0] if refined is None else next(view for view in others if view.plan is refined.plan)
    return _view(answer, views, others, best)


def _compared(answer: Answer) -> list[tuple[str, RankedPlan]]:
    """What the ranked plans are compared with, by what it is shown for."""
    found = [("refined", answer.refined), *answer.space.report.compared(answer)]
    ranked = [plan.plan for plan in answer.plans]
    return [(label, plan) for label, plan in found if plan is not None and plan.plan not in ranked]


def view_of_prediction(estimate: Estimate) -> AnswerView:
    """The answer of ``planner estimate`` or ``planner explain``."""
    plan, best = _plan("this plan", estimate.ranked), estimate.best
    others = () if best is None or best.plan == estimate.ranked.plan else (_plan("the best", best),)
    return _view(estimate, (plan,), others, plan, estimate.sensitivity)


def _view(
    answer: Answer | Estimate,
    plans: tuple[PlanView, ...],
    others: tuple[PlanView, ...],
    best: PlanView,
    sensitivity: tuple[Sensitivity, ...] | None = None,
) -> AnswerView:
    return AnswerView(
        setting=answer.setting,
        plans=plans,
        others=others,
        best=best,
        assumptions=answer.assumptions,
        model_assumptions=answer.model_assumptions,
        error_bars=answer.error_bars,
        sensitivity=sensitivity,
        objective=answer.objective,
    )


def _plan(label: str, plan: RankedPlan, *, ranked: bool = False) -> PlanView:
    """One plan of any space."""
    return PlanView(
        label=label,
        rank=plan.rank if ranked else None,
        plan=plan.plan,
        summary=plan.summary,
        family=plan.family,
        workers=plan.workers,
        step_time_s=plan.step_time_s,
        throughput_samples_per_s=plan.throughput_samples_per_s,
        low_s=plan.step_time_low_s,
        high_s=plan.step_time_high_s,
        probability_best=plan.probability_best if ranked else None,
        time_parts=_worded(plan.time_parts, plan.labels(plan.main), plan.step_time_s),
        memory_parts=_worded(plan.memory_parts, plan.labels("memory_bytes_per_gpu"), plan.memory_bytes_per_gpu),
        memory_bytes=plan.memory_bytes_per_gpu,
        memory_capacity_bytes=plan.memory_capacity_bytes,
        exposed_share=plan.exposed_communication_share,
        bottleneck=plan.bottleneck,
        gap=plan.gap if ranked else None,
        tokens_per_s_per_gpu=plan.get("tokens_per_s_per_gpu"),
        mfu=plan.get("mfu"),
        speedup=plan.get("speedup"),
        usd_per_step=plan.get("money_per_step"),
        energy_j_per_step=plan.get("energy_per_step_j"),
    )


def _worded(parts: Mapping[str, float], words: Mapping[str, str], total: float) -> tuple[tuple[str, float], ...]:
    named: Sequence[tuple[str, float]] = [(words[key], float(value)) for key, value in parts.items()]
    return tuple((word, value if value > ROUNDING * total else 0.0) for word, value in named)
