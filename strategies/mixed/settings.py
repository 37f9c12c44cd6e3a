"""What a search over mixed plans is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.plan import RECOMPUTE
from costmodel.mixed.plan import MIXED_ORDERS, MixedPlan
from strategies.mesh.settings import Bounds
from strategies.score import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSettings:
    """The space and the limits of a search.

    The space: any groups, each used by one kind of pipeline, or two kinds of pipelines that share groups; a pipeline crosses its groups in
    any order, with one tensor-parallel degree and any number of stages per group, any number of replicas, any division of the blocks and,
    stage by stage, the cheapest recomputation that fits; the batch is shared among the pipelines and replicas in any way. 1F1B; tensor
    parallelism inside a unit of the innermost level.

    What is fixed cuts parts out of it: ``tp`` of every stage, ``stages`` of every pipeline, ``replicas`` of all pipelines together,
    ``num_micro_batches`` of every replica, ``recompute`` and ``recompute_blocks`` of every stage (all of a stage that has fewer).
    """

    top: int = 5
    objective: str = "step_time"  # a name of costmodel.objectives.OBJECTIVES
    micro_batches: tuple[int, ...] = (1, 2, 4, 8, 16)  # samples
    tp: Bounds = Bounds()  # inside a unit of the innermost level
    stages: Bounds = Bounds()
    replicas: Bounds = Bounds()
    num_micro_batches: Bounds = Bounds()
    zero_stages: tuple[int, ...] = (0, 1)
    orders: tuple[str, ...] = MIXED_ORDERS
    sequence_parallel: bool = True
    recompute: tuple[str, ...] = RECOMPUTE  # names of costmodel.mesh.plan.RECOMPUTE
    recompute_blocks: Bounds = Bounds()  # under "full"
    must_cut: bool = False  # some stage has tp > 1, where positions are cut
    must_share: bool = False  # some pipeline has replicas, which share optimizer state
    group_limits: tuple[int | None, ...] = ()  # devices of each group at most; empty: all
    capacity_bytes: tuple[float | None, ...] = ()  # memory of each group's devices; empty or None: the device's own
    wall_s: float = 60.0
    effort: float = float("inf")  # pieces of work, each the best of what is open, after which the search stops
    gap: float = 0.0  # stop once the best is proven to be this close (a share)
    most_states: int = 20_000  # of the division of blocks, per stage; more are cut and the proof is given up
    assumptions: MeshAssumptions = MeshAssumptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedCandidate:
    """A plan that fits, as the cost model scores it."""

    plan: MixedPlan
    step_time_s: float
    score: float  # what is minimised


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedBaseline:
    """The best plan of one group alone; None where nothing fits."""

    group: int
    candidate: MixedCandidate | None
    bound_score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedMiss:
    """The plan that comes closest to fitting, and by how much its fullest device is over-full."""

    plan: MixedPlan
    memory_bytes: float
    capacity_bytes: float
    group: int


@dataclass(slots=True, kw_only=True)
class MixedOutcome(Outcome[MixedCandidate, MixedMiss]):
    """Best plans, and what is proven about the others."""

    baselines: list[MixedBaseline] = field(default_factory=list)
    precision: str = ""  # of the best plan
    apart_score: float = 0.0  # no plan whose pipelines share no group scores less
    notes: list[str] = field(default_factory=list)  # what the user should know, e.g. why fp16

    @property
    def best(self) -> MixedCandidate | None:
        """The best plan."""
        return self.candidates[0] if self.candidates else None

    @property
    def gap(self) -> float:
        """Share of the best score that is not proven necessary; 0 when the best is proven, infinite without a plan."""
        if not self.candidates:
            return float("inf")
        return max(0.0, 1.0 - self.bound_score / self.candidates[0].score)
