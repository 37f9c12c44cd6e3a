"""Answers of every space as the same plain views, so that figures and pages need no space of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from costmodel.tolerances import ROUNDING
from planner.core.results import Assumption, Breakdown, RankedPlan, SearchResult, Setting
from planner.spaces.mesh.wording import MEMORY_WORDS, TIME_WORDS

if TYPE_CHECKING:
    from planner.spaces.mesh.results import MeshBreakdown, MeshResult
    from planner.spaces.mixed.results import MixedBreakdown, MixedResult
    from planner.uncertainty.bars import ErrorBars
    from planner.uncertainty.sensitivity import Sensitivity

    Answer = SearchResult | MeshResult | MixedResult
    Prediction = Breakdown | MeshBreakdown | MixedBreakdown

__all__ = ["LAYER_TERMS", "AnswerView", "PlanView", "view_of_prediction", "view_of_search"]

# Parts of the step of a plan with a split per layer.
LAYER_TERMS: dict[str, str] = {
    "compute_s": "compute",
    "reshard_s": "resharding",
    "exposed_exchange_s": "exposed gradient exchange",
    "bubble_s": "pipeline bubble",
    "update_s": "optimizer",
}


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
    best, others = _compared(answer)
    views = tuple(_plan(f"#{plan.rank}", plan, ranked=True) for plan in answer.plans)
    compared = tuple(_plan(label, plan) for label, plan in others)
    chosen = views[0] if best is answer.plans[0] else next(v for v in compared if v.plan is best.plan)
    return AnswerView(
        setting=answer.setting,
        plans=views,
        others=compared,
        best=chosen,
        assumptions=answer.assumptions,
        model_assumptions=getattr(answer, "model_assumptions", ()),
        error_bars=answer.error_bars,
        sensitivity=None,
        objective=getattr(answer, "objective", "step_time"),
    )


def _compared(answer: Answer) -> tuple[Any, list[tuple[str, Any]]]:
    """What to run, and what the ranked plans are compared with, by what it is shown for."""
    from planner.spaces.mesh.results import MeshResult

    best: Any = answer.plans[0]
    if isinstance(answer, SearchResult):
        data: list[tuple[str, Any]] = [("data parallelism", answer.data_parallel)]
        if answer.data_parallel is None or answer.data_parallel.workers != answer.setting.gpus:
            data.append(("data par., all GPUs", answer.data_parallel_all))
    elif isinstance(answer, MeshResult):
        best = answer.best
        data = [("refined", answer.refined), ("data parallelism", answer.data_parallel)]
    else:
        data = [(f"{base.group} alone", base.plan) for base in answer.baselines]
    ranked = [plan.plan for plan in answer.plans]
    return best, [(label, plan) for label, plan in data if plan is not None and plan.plan not in ranked]


def view_of_prediction(answer: Prediction) -> AnswerView:
    """The answer of ``planner estimate`` or ``planner explain``."""
    setting = answer.setting
    plan = _plan("this plan", answer.ranked)
    best = getattr(answer, "best", None)
    others = () if best is None or best.plan == answer.ranked.plan else (_plan("the best", best),)
    return AnswerView(
        setting=setting,
        plans=(plan,),
        others=others,
        best=plan,
        assumptions=answer.assumptions,
        model_assumptions=getattr(answer, "model_assumptions", ()),
        error_bars=answer.error_bars,
        sensitivity=getattr(answer, "sensitivity", None),
        objective=getattr(answer, "objective", "step_time"),
    )


def _plan(label: str, plan: Any, *, ranked: bool = False) -> PlanView:
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
        time_parts=_time_parts(plan),
        memory_parts=_worded(getattr(plan, "memory_parts", {}), MEMORY_WORDS, plan.memory_bytes_per_gpu),
        memory_bytes=plan.memory_bytes_per_gpu,
        memory_capacity_bytes=plan.memory_capacity_bytes,
        exposed_share=plan.exposed_communication_share,
        bottleneck=plan.bottleneck,
        gap=plan.gap if ranked else None,
        tokens_per_s_per_gpu=getattr(plan, "tokens_per_s_per_gpu", None),
        mfu=getattr(plan, "mfu", None),
        speedup=getattr(plan, "speedup", None),
        usd_per_step=getattr(plan, "money_per_step", None),
        energy_j_per_step=getattr(plan, "energy_per_step_j", None),
    )


def _time_parts(plan: Any) -> tuple[tuple[str, float], ...]:
    if isinstance(plan, RankedPlan):
        parts = {key: float(getattr(plan, key)) for key in LAYER_TERMS}
        return _worded(parts, LAYER_TERMS, plan.step_time_s)
    return _worded(plan.time_parts, TIME_WORDS, plan.step_time_s)


def _worded(parts: Mapping[str, float], words: Mapping[str, str], total: float) -> tuple[tuple[str, float], ...]:
    named: Sequence[tuple[str, float]] = [(words[key], float(value)) for key, value in parts.items()]
    return tuple((word, value if value > ROUNDING * total else 0.0) for word, value in named)
