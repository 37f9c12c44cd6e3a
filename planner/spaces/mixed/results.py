"""What the planner answers with about plans over several kinds of devices: plain types that every report renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.mesh.plan import MeshPlan
from costmodel.mixed.plan import MixedPlan
from planner.core.results import Assumption, Setting
from planner.uncertainty.bars import ErrorBars

if TYPE_CHECKING:
    from planner.spaces.mixed.what_if import StepBound, WhatIf
    from planner.uncertainty.sensitivity import Sensitivity

__all__ = [
    "GroupBaseline",
    "GroupUse",
    "MeshAlone",
    "MixedBreakdown",
    "MixedResult",
    "MixedStageRow",
    "RankedMixedPlan",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupUse:
    """What a plan takes of one group."""

    name: str
    device: str
    devices: int  # in use
    available: int
    memory_bytes: float  # of the fullest device in use; 0 where none is
    memory_capacity_bytes: float

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.memory_bytes <= self.memory_capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedMixedPlan:
    """One plan with its predicted cost; times per step in seconds."""

    rank: int
    plan: MixedPlan
    family: str  # "tensor+pipeline+zero-1"
    summary: str
    workers: int
    precision: str  # what all its devices compute in
    step_time_s: float
    throughput_samples_per_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float  # model FLOP / (step time x sum of the dense peaks of the devices in use)
    groups: tuple[GroupUse, ...]  # of the cluster, in its order
    fullest: int  # position of the group whose device is fullest for its size
    exposed_communication_s: float
    time_parts: Mapping[str, float]  # they add up to the step
    memory_parts: Mapping[str, float]  # of the fullest device; they add up to its memory
    bottleneck: str
    gpu_hours_per_million_tokens: float
    money_per_million_tokens: float | None  # in USD; None: a device file in use states no price
    gap: float  # score over the best plan's, minus 1
    score: float  # what is minimised: the step time unless another objective is asked for
    money_per_step: float | None = None  # in USD; None: a device file in use states no price
    energy_per_step_j: float | None = None  # of the devices in use and their hosts; None: one states no power
    step_time_low_s: float | None = None  # a measurement lies between these with a chance of 80 %; None: no error model
    step_time_high_s: float | None = None
    probability_best: float | None = None  # None: not compared

    @property
    def memory_bytes_per_gpu(self) -> float:
        """Memory of the device that is fullest for its size."""
        return self.groups[self.fullest].memory_bytes

    @property
    def memory_capacity_bytes(self) -> float:
        """What that device may use."""
        return self.groups[self.fullest].memory_capacity_bytes

    @property
    def exposed_communication_share(self) -> float:
        """Part of the step spent waiting for the network."""
        return self.exposed_communication_s / self.step_time_s

    @property
    def bubble_share(self) -> float:
        """Part of the step lost to filling, draining and imbalance of the pipelines."""
        return self.time_parts["bubble_s"] / self.step_time_s

    @property
    def fits(self) -> bool:
        """Whether the memory suffices everywhere."""
        return all(group.fits for group in self.groups)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshAlone:
    """A plan over a device mesh of one group alone."""

    plan: MeshPlan
    summary: str
    step_time_s: float
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBaseline:
    """The best plan of one group alone; None where nothing was found."""

    group: str
    available: int
    plan: RankedMixedPlan | None  # of the space of mixed plans
    bound_s: float  # no plan of that space takes less
    mesh: (
        MeshAlone | None
    )  # of the larger space of a mesh: ZeRO-2 and 3, context and expert parallelism, all schedules, offloading

    @property
    def step_time_s(self) -> float:
        """Of the faster one; infinite without any."""
        plans = (self.plan, self.mesh)
        return min((plan.step_time_s for plan in plans if plan is not None), default=float("inf"))

    @property
    def score(self) -> float:
        """Of the better one; infinite without any."""
        return min((plan.score for plan in (self.plan, self.mesh) if plan is not None), default=float("inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedResult:
    """Ranked plans with the proof that travels with them."""

    setting: Setting
    seq: int
    plans: tuple[RankedMixedPlan, ...]  # best first
    proven_optimal: bool
    bound_s: float  # no plan of the space takes less time per step
    bound_gap: float  # (best - bound) / best, of the objective
    searched: Mapping[str, int]
    wall_s: float
    baselines: tuple[GroupBaseline, ...]
    assumptions: tuple[Assumption, ...]
    model_assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]
    error_bars: ErrorBars | None = None
    objective: str = "step_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStageRow:
    """One stage of one replica of a pipeline; times of one micro-batch but for exchange and update, which are of the step."""

    pipeline: int
    stage: int
    group: str
    devices: int
    blocks: int
    forward_s: float
    backward_s: float
    recompute_s: float
    tp_s: float
    transfer_s: float
    exchange_s: float
    update_s: float
    busy_s: float  # of the step: all micro-batches of the busiest replica, exchange and update
    recompute: str
    recompute_blocks: int
    memory_bytes: float
    memory_capacity_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedBreakdown:
    """One plan, part by part and stage by stage.

    Attributes
    ----------
    bound : StepBound or None
        What bounds the step; None where only a prediction was asked for.
    what_if : tuple of WhatIf
        What changes of the hardware and of the plan would do to it.
    best : RankedMixedPlan or None
        Where it was searched for.
    comparison : tuple of (part, this plan's seconds, the best plan's seconds)
        Largest difference first.
    """

    setting: Setting
    seq: int
    ranked: RankedMixedPlan
    stages: tuple[MixedStageRow, ...]
    assumptions: tuple[Assumption, ...]
    model_assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]
    error_bars: ErrorBars | None = None
    objective: str = "step_time"
    bound: StepBound | None = None
    what_if: tuple[WhatIf, ...] = ()
    best: RankedMixedPlan | None = None
    comparison: tuple[tuple[str, float, float], ...] = ()
    sensitivity: tuple[Sensitivity, ...] | None = None  # None: not asked for
