"""What answers about several kinds of devices hold besides ranked plans: groups, what each does alone, stages."""

from __future__ import annotations

from dataclasses import dataclass

from costmodel.mesh.plan import MeshPlan
from planner.core.answer import RankedPlan

__all__ = ["GroupBaseline", "GroupUse", "MeshAlone", "MixedStageRow"]


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
    plan: RankedPlan | None  # of the space of mixed plans
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
