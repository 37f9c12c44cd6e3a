"""What a search over mesh plans is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from costmodel.mesh.plan import MeshPlan
from strategies.score import Outcome, SearchLimits

# Fields in which plans of a list differ that is to be benchmarked: the shape of the mesh, what is shared, the size of the pieces. The rest
# (over how many ranks a copy is shared, chunks per rank, how contexts are exchanged) are settings of the same plan. With as many
# micro-batches a rank has as many tokens of each, whether they are whole samples (cp 1) or halves of twice as many (cp 2): the same work.
DISTINCT: tuple[str, ...] = ("tp", "ep", "pp", "zero_stage", "num_micro_batches", "schedule")
POWERS = tuple(1 << n for n in range(21))
_HALVED = ("tp", "cp", "ep", "etp", "pp", "vpp", "micro_batch")
_NARROWED = ("cp", "etp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Values that the user allows for one dimension: a set, or a closed range."""

    low: int | None = None
    high: int | None = None
    values: tuple[int, ...] = ()  # where not empty, exactly these

    def allows(self, value: int) -> bool:
        """Whether a value is allowed.

        >>> Bounds(low=2, high=8).allows(9), Bounds(values=(4, 8)).allows(8)
        (False, True)
        """
        if self.values:
            return value in self.values
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)

    @property
    def is_free(self) -> bool:
        """Whether every value is allowed."""
        return not self.values and self.low is None and self.high is None

    @property
    def least(self) -> int:
        """The smallest value that is allowed; 0 where there is no end."""
        return min(self.values) if self.values else self.low or 0

    @property
    def most(self) -> float:
        """The largest value that is allowed; infinite where there is no end.

        >>> Bounds(low=2, high=8).most, Bounds(values=(4, 8)).least, Bounds().most
        (8, 4, inf)
        """
        return max(self.values) if self.values else float("inf") if self.high is None else self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRestriction:
    """What the user fixed.

    Attributes
    ----------
    degrees : mapping
        Field of MeshPlan with integer values (tp, cp, ep, etp, pp, vpp, dp_replicate, dp_shard, zero_stage, micro_batch,
        num_micro_batches, recompute_blocks, domain_gpus) or "dp" (replicas of either kind) -> allowed values.
    names : mapping
        Field of MeshPlan with names (schedule, recompute, cp_kind, order) -> allowed names.
    flags : mapping
        sequence_parallel, offload_optimizer, offload_activations -> required value.
    whole_stages : bool or None
        Whether full recomputation is of all blocks; None: where nothing else is allowed, and no number of blocks is.
    equal_chunks : bool
        Whether all chunks of all stages have equally many blocks.
    """

    degrees: Mapping[str, Bounds] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flags: Mapping[str, bool] = field(default_factory=dict)
    whole_stages: bool | None = None
    equal_chunks: bool = False

    @property
    def recomputes_whole_stages(self) -> bool:
        """Whether full recomputation is of all blocks."""
        if self.whole_stages is not None:
            return self.whole_stages
        return self.names.get("recompute") == ("full",) and "recompute_blocks" not in self.degrees

    @property
    def is_free(self) -> bool:
        """Whether nothing is fixed."""
        return not (self.degrees or self.names or self.flags)

    def powers_of_two(self, *, any_vpp: bool = False) -> MeshRestriction:
        """The same with every degree but dp (and vpp) a power of two, unless the user allows none: a small corner with good plans.

        >>> corner = MeshRestriction(degrees={"tp": Bounds(high=3), "pp": Bounds(values=(3,))}).powers_of_two()
        >>> corner.degrees["tp"].values, corner.degrees["pp"].values
        ((1, 2), (3,))
        """
        corner = dict(self.degrees)
        for name in (name for name in _HALVED if not (any_vpp and name == "vpp")):
            bounds = self.degrees.get(name, Bounds())
            powers = tuple(v for v in POWERS if bounds.allows(v))
            corner[name] = Bounds(values=powers) if powers else bounds
        return replace(self, degrees=corner)

    def narrowed(self) -> MeshRestriction:
        """A corner of that corner: with the least cp and etp of those. Usually it has good plans too, and is searched in no time.

        >>> MeshRestriction(degrees={"cp": Bounds(low=2)}).powers_of_two().narrowed().degrees["cp"].values
        (2,)
        """
        corner = dict(self.degrees)
        for name in _NARROWED:
            bounds = corner.get(name, Bounds(values=(1,)))
            corner[name] = replace(bounds, values=bounds.values[:1])
        return replace(self, degrees=corner)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSettings(SearchLimits):
    """What to search and when to stop."""

    top: int = 5
    # Fields in which the plans of the list differ; None: in any of `incumbents.KEY`.
    distinct: tuple[str, ...] | None = None
    restriction: MeshRestriction = MeshRestriction()
    obeys_framework: bool = True  # whether the rules of the framework count
    effort: float = float("inf")  # pieces of work, some thousand rows each, that every stage of the search may take
    known: tuple[MeshPlan, ...] = ()  # legal plans, on any number of workers, that the others have to beat


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshCandidate:
    """A plan that fits, with its score (smaller is better)."""

    plan: MeshPlan
    score: float
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NearestMiss:
    """The plan that comes closest to fitting."""

    plan: MeshPlan
    memory_bytes: float


@dataclass(slots=True, kw_only=True)
class MeshOutcome(Outcome[MeshCandidate, NearestMiss]):
    """Best plans, and what is proven about the others."""

    is_counted: bool = True  # False: the time limit came first, and there are more plans than `space_size`
