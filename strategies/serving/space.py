"""What a search over serving plans is asked and answers, and its space: degrees, ways to read prompts, sequences at a time.

Replicas are independent (or share experts in step), so of the plans that differ only in their number the one with the most is never worse:
it alone is in the space, unless ``dp`` is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import IntArray
from costmodel.layerwise.splits import divisors
from costmodel.mesh.rules import NetworkShape
from costmodel.serving.plan import ServingBatch, ServingPlan, is_legal
from strategies.mesh.settings import Bounds

__all__ = [
    "MOST_BATCH",
    "MOST_PROMPT_TOKENS",
    "SERVING_OBJECTIVES",
    "Outline",
    "ServingCandidate",
    "ServingMiss",
    "ServingOutcome",
    "ServingSettings",
    "batches_of",
    "outlines",
    "plans_of",
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
    effort: float = float("inf")  # plans that are scored at most; the last chunk is scored whole


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

    @property
    def out_of_time(self) -> bool:
        """Whether there are plans that were not looked at."""
        return not self.is_complete


# Tokens of the chunks that are tried; shorter ones do not fill the device alongside the decoding sequences.
_CHUNKS = (256, 512, 1024, 2048, 4096, 8192)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Plans that differ in the number of sequences only.

    Attributes
    ----------
    plans : ServingBatch
        One each, with the least number.
    """

    plans: ServingBatch

    def __len__(self) -> int:
        return len(self.plans)


def outlines(shape: NetworkShape, prompt_tokens: int, settings: ServingSettings) -> Outline:
    """Every legal choice of degrees and of reading prompts, sorted so that equal module costs follow each other."""
    found: list[ServingPlan] = []
    ways = list(_prefills(prompt_tokens, settings.degrees))
    for tp, pp, ep, etp, dp in _degrees(shape, settings):
        for chunk, several in ways:
            found.append(
                ServingPlan(
                    tp=tp, pp=pp, ep=ep, etp=etp, dp=dp, max_batch=several, prefill_chunk=chunk, prefill_batch=several
                )
            )
    found.sort(key=lambda p: (p.tp, p.ep, p.etp, p.prefill_chunk, p.prefill_batch, p.pp, p.dp))
    plans = ServingBatch.from_plans(found)
    return Outline(plans=plans.take(is_legal(shape, plans)) if found else plans)


def _degrees(shape: NetworkShape, settings: ServingSettings) -> Iterator[tuple[int, int, int, int, int]]:
    """(tp, pp, ep, etp, dp) that the devices and the experts allow; the rules evaluate the rest."""
    allowed = settings.degrees
    most = settings.max_workers
    for tp in _values(allowed.get("tp"), _tensor_degrees(shape, most), most):
        for pp in _values(allowed.get("pp"), range(1, min(shape.num_blocks, most // tp) + 1), most // tp):
            replicas = most // (tp * pp)
            for ep, etp in _expert_degrees(shape, tp, replicas, allowed):
                sharing = max(ep * etp // tp, 1)
                whole = replicas // sharing * sharing
                for dp in _values(allowed.get("dp"), (whole,) if whole else (), replicas):
                    yield tp, pp, ep, etp, dp


def _tensor_degrees(shape: NetworkShape, most: int) -> list[int]:
    extents = [*shape.heads, *shape.widths]
    common = int(np.gcd.reduce(np.array(extents, dtype=np.int64))) if extents else 1
    return [d for d in divisors(common) if d <= most]


def _expert_degrees(
    shape: NetworkShape, tp: int, replicas: int, allowed: Mapping[str, Bounds]
) -> Iterator[tuple[int, int]]:
    if not shape.experts:
        yield from (
            (ep, etp) for ep in _values(allowed.get("ep"), (1,), 1) for etp in _values(allowed.get("etp"), (1,), 1)
        )
        return
    common = int(np.gcd.reduce(np.array(shape.experts, dtype=np.int64)))
    for ep in _values(allowed.get("ep"), divisors(common), tp * replicas):
        for etp in _values(allowed.get("etp"), divisors(tp), tp):
            ranks = ep * etp
            if ranks % tp == 0 and ranks <= tp * replicas:
                yield ep, etp


def _prefills(prompt_tokens: int, allowed: Mapping[str, Bounds]) -> Iterator[tuple[int, int]]:
    """(chunk, prompts per pass): whole prompts alone, parts of one prompt alongside the decoding, whole prompts alongside it."""
    shorter = (c for c in _CHUNKS if c < prompt_tokens)
    chunks = _values(allowed.get("prefill_chunk"), (0, *shorter, prompt_tokens), 1 << 30)
    whole = [1]
    while 2 * whole[-1] * prompt_tokens <= MOST_PROMPT_TOKENS and 2 * whole[-1] <= MOST_BATCH:
        whole.append(2 * whole[-1])
    for chunk in chunks:
        usual = whole if chunk == 0 or chunk >= prompt_tokens else [1]
        for number in _values(allowed.get("prefill_batch"), usual, MOST_BATCH):
            yield chunk, number


def _values(bounds: Bounds | None, usual: Iterable[int], most: int) -> list[int]:
    """Values to try: those the user names, or the usual ones within the user's range."""
    if bounds is None:
        return [v for v in usual if v <= most]
    if bounds.values:
        return [v for v in bounds.values if v <= most]
    return [v for v in usual if v <= most and bounds.allows(v)]


def batches_of(pp: int, least: int, settings: ServingSettings) -> IntArray:
    """Numbers of sequences that are tried for a number of stages, ascending.

    Full groups on every stage, or fewer sequences than stages; where the user says which, those.

    >>> batches_of(4, 1, ServingSettings(max_workers=4, capacity_bytes=1.0))[:6].tolist()
    [1, 2, 3, 4, 8, 12]
    """
    bounds = settings.degrees.get("max_batch")
    if bounds is not None and bounds.values:
        values = np.array(sorted(bounds.values), dtype=np.int64)
    else:
        most = MOST_BATCH if bounds is None or bounds.high is None else bounds.high
        values = np.concatenate([np.arange(1, pp), np.arange(pp, max(most, pp) + 1, pp)]).astype(np.int64)
        values = values[values <= most]
        if bounds is not None and bounds.low is not None:
            values = values[values >= bounds.low]
    return np.asarray(values[values >= least])


def plans_of(outline: Outline, rows: IntArray, batches: list[IntArray]) -> ServingBatch:
    """Plans of some rows of an outline, each with its numbers of sequences."""
    index = np.repeat(rows, [len(b) for b in batches])
    plans = outline.plans.take(index)
    return ServingBatch(
        tp=plans.tp,
        pp=plans.pp,
        ep=plans.ep,
        etp=plans.etp,
        dp=plans.dp,
        max_batch=np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64),
        prefill_chunk=plans.prefill_chunk,
        prefill_batch=plans.prefill_batch,
    )
