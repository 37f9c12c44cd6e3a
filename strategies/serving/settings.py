"""What a search over serving plans is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from costmodel.serving.plan import ServingPlan
from strategies.mesh.settings import Bounds

__all__ = [
    "MOST_BATCH",
    "MOST_PROMPT_TOKENS",
    "SERVING_OBJECTIVES",
    "ServingCandidate",
    "ServingMiss",
    "ServingOutcome",
    "ServingSettings",
]

# throughput: most output tokens per second of all devices; latency: least time of a whole request; ttft, tpot: least of these;
# tokens_per_s_per_gpu: most output tokens per second and device in use.
SERVING_OBJECTIVES: tuple[str, ...] = ("throughput", "latency", "ttft", "tpot", "tokens_per_s_per_gpu")
# Sequences per replica that are tried at most, unless the user asks for more (vLLM, --max-num-seqs: 1024 by default on large devices).
MOST_BATCH = 1024
# Whole prompts share a pass up to so many tokens (vLLM, --max-num-batched-tokens: 16384 by default for offline use of large devices).
MOST_PROMPT_TOKENS = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """Limits of a search.

    Attributes
    ----------
    max_workers : int
    capacity_bytes : float
        Per device.
    objective : str
        A name of SERVING_OBJECTIVES.
    max_ttft_s, max_tpot_s : float
        Limits on the time to first token and the time per output token, above 0.
    degrees : mapping
        Field of ServingPlan -> allowed values.
    """

    max_workers: int
    capacity_bytes: float
    objective: str = "throughput"
    max_ttft_s: float = float("inf")
    max_tpot_s: float = float("inf")
    degrees: Mapping[str, Bounds] = field(default_factory=dict)
    top: int = 5
    wall_s: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCandidate:
    """A plan that fits and keeps the limits, with its score (smaller is better)."""

    plan: ServingPlan
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingMiss:
    """The plan that comes closest where none will do.

    Attributes
    ----------
    fits : bool
        Whether it fits into memory and only a limit is missed.
    """

    plan: ServingPlan
    fits: bool


@dataclass(slots=True, kw_only=True)
class ServingOutcome:
    """The best plan of every choice of degrees, best first, and how the space was handled."""

    candidates: list[ServingCandidate] = field(default_factory=list)
    space_size: int = 0
    searched: dict[str, int] = field(default_factory=dict)
    nearest_miss: ServingMiss | None = None
    is_complete: bool = True  # every plan of the space was looked at
    interrupted: bool = False
