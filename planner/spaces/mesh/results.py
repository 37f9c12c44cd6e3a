"""What the planner answers with about plans over a device mesh: plain types that every report renders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from costmodel.mesh.plan import MeshPlan
from planner.core.results import Assumption, Setting

if TYPE_CHECKING:
    from costmodel.hardware.links import LinkRow
    from planner.uncertainty.bars import ErrorBars
    from planner.uncertainty.sensitivity import Sensitivity
    from strategies.mesh.block_search import SplitCheck

__all__ = ["MeshBreakdown", "MeshResult", "RankedMeshPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedMeshPlan:
    """One plan with its predicted cost; times per step in seconds."""

    rank: int
    plan: MeshPlan
    family: str  # "tensor+pipeline+data"
    summary: str  # "tp 8, pp 4 (1f1b), dp 8 (zero 1), micro-batch 2 x 16"
    workers: int
    step_time_s: float
    throughput_samples_per_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float  # model FLOP / (step time x workers x dense peak)
    memory_bytes_per_gpu: float
    memory_capacity_bytes: float
    host_bytes_per_gpu: float  # offloaded
    exposed_communication_s: float
    time_parts: Mapping[str, float]  # names of costmodel.mesh.plan.TIME_PARTS; they add up to the step
    memory_parts: Mapping[str, float]  # names of MEMORY_PARTS; they add up to the memory
    bottleneck: str  # the largest part of the step, in words; compute without host_s, or host_s
    gpu_hours_per_million_tokens: float
    money_per_million_tokens: float | None  # in USD; None: the device file states no price
    gap: float  # score over the best plan's, minus 1; the score is the step time unless another objective is asked for
    money_per_step: float | None = None  # in USD; None: no price is stated
    energy_per_step_j: float | None = None  # of the devices in use and their hosts; None: no power is stated
    host_capacity_bytes_per_gpu: float | None = (
        None  # room on the host of a node for each; None: nothing is known of it
    )
    step_time_low_s: float | None = None  # a measurement lies between these with a chance of 80 %; None: no error model
    step_time_high_s: float | None = None
    probability_best: float | None = None  # of the plans it is ranked with; None: not compared
    host_s: float = 0.0  # the part of compute_s in which devices wait for their hosts to start kernels and collectives

    @property
    def exposed_communication_share(self) -> float:
        """Part of the step spent waiting for the network."""
        return self.exposed_communication_s / self.step_time_s

    @property
    def bubble_share(self) -> float:
        """Part of the step lost to filling, draining and imbalance of the pipeline."""
        return self.time_parts["bubble_s"] / self.step_time_s

    @property
    def host_share(self) -> float:
        """Part of the step in which devices wait for their hosts to start kernels and collectives."""
        return self.host_s / self.step_time_s

    @property
    def fits(self) -> bool:
        """Whether the memory suffices."""
        return self.memory_bytes_per_gpu <= self.memory_capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshResult:
    """Ranked plans with the proof that travels with them."""

    setting: Setting
    seq: int
    objective: str
    plans: tuple[RankedMeshPlan, ...]  # of the uniform space, best first
    # The best with blocks and recomputation of its own on every stage, or splits of its own inside the blocks, where it is faster than all
    # of them; bound and proof are about the uniform space.
    refined: RankedMeshPlan | None
    proven_optimal: bool
    bound_s: float  # no plan of the space takes less time per step
    bound_gap: float  # (best - bound) / best, of the objective
    space_size: int  # distinct legal plans
    searched: Mapping[str, int]
    wall_s: float
    assumptions: tuple[Assumption, ...]
    model_assumptions: tuple[Assumption, ...]  # of the mesh cost model, by name
    data_parallel: RankedMeshPlan | None  # the best with tp = cp = ep = pp = 1; None: does not fit
    notes: tuple[str, ...]
    error_bars: ErrorBars | None = None
    splits: tuple[SplitCheck, ...] = ()  # of the best plans with tp > 1

    @property
    def best(self) -> RankedMeshPlan:
        """What to run: the refined plan where there is one, else the first of the uniform space."""
        return self.plans[0] if self.refined is None else self.refined


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshBreakdown:
    """One plan, part by part, stage by stage and layer by layer."""

    setting: Setting
    seq: int
    objective: str
    ranked: RankedMeshPlan
    layers: tuple[Any, ...]  # dataclasses of costmodel.mesh.detail
    stages: tuple[Any, ...]
    best: RankedMeshPlan | None  # where it was searched for
    # Why this plan is not the best: (part, this plan's seconds, the best plan's seconds), largest difference first.
    comparison: tuple[tuple[str, float, float], ...]
    assumptions: tuple[Assumption, ...]
    model_assumptions: tuple[Assumption, ...]
    notes: tuple[str, ...]
    error_bars: ErrorBars | None = None
    sensitivity: tuple[Sensitivity, ...] | None = None  # None: not asked for
    split: SplitCheck | None = None  # None: not asked for, or nothing to split
    links: tuple[LinkRow, ...] = ()  # what the step waits for the network, by the links that are used
