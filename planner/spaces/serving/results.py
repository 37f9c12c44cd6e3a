"""What the planner answers with about serving: plain types that every report renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodel.serving.detail import ServingLayerRow
from costmodel.serving.plan import ServingPlan
from planner.core.results import Assumption, Setting
from planner.uncertainty.bars import ErrorBars

__all__ = ["RankedServingPlan", "ServingEstimate", "ServingResult"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedServingPlan:
    """One plan with its predicted cost when all places of all replicas are taken."""

    rank: int
    plan: ServingPlan
    family: str
    summary: str
    workers: int
    ttft_s: float
    tpot_s: float
    request_s: float
    pause_s: float
    decode_pass_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    memory_bytes_per_gpu: float
    memory_capacity_bytes: float
    kv_bytes_per_sequence: float  # on the fullest GPU
    largest_batch: int  # sequences per replica that fit with the other choices
    tpot_parts: Mapping[str, float]  # names of costmodel.serving.plan.TPOT_PARTS
    ttft_parts: Mapping[str, float]
    memory_parts: Mapping[str, float]
    bottleneck: str  # the largest part of the time per token, in words
    money_per_million_output_tokens: float | None  # in USD; None: the device file states no price
    gap: float  # objective over the best plan's, minus 1 (for rates, the best over it)
    # Between these lies a measurement with a chance of 80 %: of the time per token, of that to the first, of the rate of all replicas.
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    ttft_low_s: float | None = None
    ttft_high_s: float | None = None
    output_tokens_per_s_low: float | None = None
    output_tokens_per_s_high: float | None = None
    probability_best: float | None = None  # among those compared

    @property
    def exposed_communication_s(self) -> float:
        """Part of the time per token that is communication."""
        return self.tpot_parts["decode_tp_s"] + self.tpot_parts["decode_ep_s"] + self.tpot_parts["decode_pp_s"]

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.memory_bytes_per_gpu <= self.memory_capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingResult:
    """Ranked plans with the proof that travels with them."""

    setting: Setting
    prompt_tokens: int
    output_tokens: int
    kv_precision: str
    objective: str
    limits: Mapping[str, float]  # ttft_s, tpot_s, where given
    plans: tuple[RankedServingPlan, ...]  # best first, one per choice of degrees
    proven_optimal: bool
    space_size: int
    searched: Mapping[str, int]
    wall_s: float
    assumptions: tuple[Assumption, ...]
    model_assumptions: tuple[Assumption, ...]
    replicas_only: RankedServingPlan | None  # the best with tp = pp = ep = 1; None: none fits and keeps the limits
    notes: tuple[str, ...]
    error_bars: ErrorBars | None = None
    interrupted: bool = False  # by the user


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEstimate:
    """One plan, part by part; with the best one beside it where that was searched for."""

    setting: Setting
    prompt_tokens: int
    output_tokens: int
    kv_precision: str
    objective: str
    limits: Mapping[str, float]
    ranked: RankedServingPlan
    assumptions: tuple[Assumption, ...]
    model_assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]
    layers: tuple[ServingLayerRow, ...]
    error_bars: ErrorBars | None = None
    best: RankedServingPlan | None = None
    # Why this plan is not the best: (part, this plan's seconds, the best plan's seconds), largest difference first.
    comparison: tuple[tuple[str, float, float], ...] = ()
