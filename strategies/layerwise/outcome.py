"""What a search of splits per layer and pipelines is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from strategies.layerwise.per_layer.search import Method
from strategies.layerwise.pool import Candidate
from strategies.layerwise.score import STEP_TIME, Score
from strategies.layerwise.space import Restriction

__all__ = ["Outcome", "SearchSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """What to search and when to stop."""

    max_workers: int
    capacity_bytes: float
    top: int = 10
    score: Score = STEP_TIME
    restriction: Restriction = field(default_factory=Restriction)
    worker_counts: tuple[int, ...] | None = None  # None: all up to max_workers
    micro_batches: tuple[int, ...] | None = None  # None: the divisors of the batch
    enumerate_uniform: bool = True  # evaluate the uniform plans first; the answer is the same without
    wall_s: float = 60.0
    gap: float = 0.0
    solver: Method = "auto"
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Best plans with different keys, and what was proved about the rest."""

    candidates: list[Candidate]
    bound: float  # no plan of the space has a lower score (seconds, unless devices count)
    rest_bound: float  # no plan with another key than the candidates' has
    space_size: int
    searched: dict[str, int]
    nearest_miss: Candidate | None  # least memory over the capacity, when nothing fits
    interrupted: bool = False
    out_of_time: bool = False
    methods: tuple[str, ...] = ()
