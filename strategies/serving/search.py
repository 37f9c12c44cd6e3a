"""Exhaustive search over serving plans: every plan that fits is scored, so the best is proven by enumeration.

Replicas are independent (or share experts in step), so of the plans that differ only in their number the one with the most is never worse:
it alone is in the space, unless ``dp`` is fixed, or so many requests are in flight however many devices serve them and devices count.

Where requests come at a rate, a replica has as many places as fit (or as are allowed), and more replicas make nobody wait longer. By
objectives that count devices the best number of replicas is the least that keeps the limits, which is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined
from costmodel.hardware.host import DeviceCost
from costmodel.layerwise.plan import divisors
from costmodel.mesh.rules import NetworkShape
from costmodel.objectives import ALIKE, SERVING_OBJECTIVES
from costmodel.serving.model import Replicas, ServingModel
from costmodel.serving.plan import POOL_SETTINGS, ServingBatch, ServingPlan, is_legal
from costmodel.serving.workload import Arrivals
from costmodel.tolerances import EQUAL
from strategies.limits import Clock
from strategies.mesh.settings import Bounds
from strategies.score import Outcome
from strategies.serving.simplest import lacks

# Sequences per replica that are tried at most, unless the user asks for more (vLLM, --max-num-seqs: 1024 by default on large devices).
MOST_BATCH = 1024
# Whole prompts share a pass up to so many tokens (vLLM, --max-num-batched-tokens: 16384 by default for offline use of large devices).
MOST_PROMPT_TOKENS = 16384
# Tokens that are drafted at most.
MOST_DRAFTS = 16
_ANY = float("inf")
_OVERLOADED = 1e6
_MOST_UNITS = 1 << 40  # replicas; more bear no load at all
_FIRST_ROWS = 128  # choices that are looked at first
_TOGETHER = 512  # plans that take about as long as one
# A rate is found to this share of it, among so many at a time.
_RATE_SHARE, _RATES = 1e-9, 64
Disaggregate = Literal["no", "yes", "auto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """Limits of a search.

    Attributes
    ----------
    max_workers : int
    capacity_bytes : float
        Per device.
    objective : str
        A name of costmodel.objectives.SERVING_OBJECTIVES.
    limits : mapping
        Time (``ttft_s``, ``tpot_p90_s``: a column of ServingCosts) -> the most that it may be, above 0.
    keeps_all : function of ServingBatch, optional
        Whether plans that keep each limit keep all of them more likely than not, (n,); only such plans are found.
    degrees : mapping
        Field of ServingPlan -> allowed values.
    most_load : float
        Of what a plan can serve, the share that comes at most; where requests come at a rate.
    concurrency : int or None
        Requests in flight, of all replicas: unless numbers of places are allowed, the least that holds them is tried alone.
    near : float
        The simplest of the plans that score at most this share more than the best is found, too.
    node : int
        Devices that fast links join.
    costs : pair of DeviceCost
        What a device costs per second by the objective: one that does not only read prompts, and one that does.
    disaggregate : "no", "yes" or "auto"
        Whether workers of their own read the prompts (`strategies.serving.pools`); auto: both kinds of plans are compared.
    """

    max_workers: int
    capacity_bytes: float
    objective: str = "throughput"
    limits: Mapping[str, float] = field(default_factory=dict)
    keeps_all: Callable[[ServingBatch], BoolArray] | None = None
    degrees: Mapping[str, Bounds] = field(default_factory=dict)
    most_load: float = _ANY
    concurrency: int | None = None
    disaggregate: Disaggregate = "auto"
    near: float = 0.0
    node: int = 1
    costs: tuple[DeviceCost, DeviceCost] = (ALIKE, ALIKE)
    top: int = 5
    wall_s: float = 60.0
    effort: float = float("inf")  # plans that are scored at most; the last chunk is scored whole

    def score(self, figures: Mapping[str, FloatArray], plans: ServingBatch) -> FloatArray:
        """What is minimised, (n,)."""
        objective = SERVING_OBJECTIVES[self.objective]
        return np.asarray(objective.score(figures, plans.workers, plans.readers, self.costs))

    @property
    def every_number(self) -> bool:
        """Whether fewer replicas than there is room for may be better: where so many requests are in flight however many there are."""
        return self.concurrency is not None and SERVING_OBJECTIVES[self.objective].is_per_device

    @property
    def held(self) -> int | None:
        """Requests in flight that places are tried for alone; None where numbers of places are."""
        return None if "max_batch" in self.degrees else self.concurrency


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
class ServingOutcome(Outcome[ServingCandidate, ServingMiss]):
    """The best plan of every choice of degrees, best first; a space that was looked at to its end is proven.

    Attributes
    ----------
    simple : dict
        Wishes that plans lack (`strategies.serving.simplest.lacks`) -> the best such plan, of those that are nearly as good as the best.
    """

    simple: dict[int, ServingCandidate] = field(default_factory=dict)

    def simplest(self, near: float) -> ServingCandidate:
        """The simplest plan that scores at most a share more than the best."""
        most = self.candidates[0].score * (1.0 + near)
        return next(
            (self.simple[key] for key in sorted(self.simple) if self.simple[key].score <= most), self.candidates[0]
        )


# Degrees of a replica, and of each pool.
DEGREES = ("tp", "pp", "ep", "etp", "dp")
# Tokens of the chunks that are tried; shorter ones do not fill the device alongside the decoding sequences.
_CHUNKS = (256, 512, 1024, 2048, 4096, 8192)


def outlines(shape: NetworkShape, prompt_tokens: int, settings: ServingSettings) -> ServingBatch:
    """Every legal choice of degrees and of reading prompts with the least number of sequences, equal module costs beside each other.

    ``prompt_tokens``: those that passes compute.
    """
    prefills = list(prefills_of(prompt_tokens, settings.degrees))
    found = [
        ServingPlan(
            tp=tp,
            pp=pp,
            ep=ep,
            etp=etp,
            dp=dp,
            max_batch=several,
            prefill_chunk=chunk,
            prefill_batch=several,
            draft_tokens=drafted,
        )
        for tp, pp, ep, etp, dp in degrees_of(shape, settings, every_number=settings.every_number)
        for chunk, several in prefills
        for drafted in drafts_of(settings)
    ]
    found.sort(key=lambda p: (p.tp, p.ep, p.etp, p.draft_tokens, p.prefill_chunk, p.prefill_batch, p.pp, p.dp))
    plans = ServingBatch.from_plans(found)
    return plans.take(is_legal(shape, plans)) if found else plans


def degrees_of(
    shape: NetworkShape, settings: ServingSettings, *, every_number: bool = False
) -> Iterator[tuple[int, int, int, int, int]]:
    """(tp, pp, ep, etp, dp) that devices and experts allow, with the most replicas or every number; the rules evaluate the rest."""
    allowed = settings.degrees
    most, flight = settings.max_workers, settings.concurrency or settings.max_workers
    for tp in _values(allowed.get("tp"), _tensor_degrees(shape, most), most):
        for pp in _values(allowed.get("pp"), range(1, min(shape.num_blocks, most // tp) + 1), most // tp):
            replicas = min(most // (tp * pp), flight)
            for ep, etp in _expert_degrees(shape, tp, replicas, allowed):
                sharing = max(ep * etp // tp, 1)
                most_replicas = replicas // sharing * sharing
                usual = range(sharing if every_number else max(most_replicas, 1), most_replicas + 1, sharing)
                for dp in _values(allowed.get("dp"), usual, replicas):
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
            if ep * etp <= tp * replicas:
                yield ep, etp


def prefills_of(
    prompt_tokens: int, allowed: Mapping[str, Bounds], usual: Iterable[int] = ()
) -> Iterator[tuple[int, int]]:
    """(chunk, prompts per pass): whole prompts alone, parts of one prompt alongside the decoding, whole prompts alongside it."""
    shorter = (c for c in _CHUNKS if c < prompt_tokens)
    chunks = _values(allowed.get("prefill_chunk"), usual or (0, *shorter, prompt_tokens), 1 << 30)
    numbers = [1]
    while 2 * numbers[-1] * prompt_tokens <= MOST_PROMPT_TOKENS and 2 * numbers[-1] <= MOST_BATCH:
        numbers.append(2 * numbers[-1])
    for chunk in chunks:
        together = numbers if chunk == 0 or chunk >= prompt_tokens else [1]
        for number in _values(allowed.get("prefill_batch"), together, MOST_BATCH):
            yield chunk, number


def drafts_of(settings: ServingSettings) -> list[int]:
    """Numbers of tokens that are drafted: what the settings say, else none.

    >>> from strategies.mesh.settings import Bounds
    >>> drafts_of(ServingSettings(max_workers=1, capacity_bytes=1.0, degrees={"draft_tokens": Bounds(low=0, high=3)}))
    [0, 1, 2, 3]
    """
    bounds = settings.degrees.get("draft_tokens")
    return [0] if bounds is None else _values(bounds, range(MOST_DRAFTS + 1), MOST_DRAFTS)


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


def plans_of(outline: ServingBatch, rows: IntArray, batches: list[IntArray]) -> ServingBatch:
    """Plans of some rows of an outline, each with its numbers of sequences."""
    plans = outline.take(np.repeat(rows, [len(b) for b in batches]))
    return replace(plans, max_batch=np.concatenate(batches) if batches else np.zeros(0, dtype=np.int64))


# Plans scored together: about 100 MB of intermediate results.
_CHUNK = 1 << 16


def search_serving(
    model: ServingModel, settings: ServingSettings, progress: Callable[[str, float], None] | None = None
) -> ServingOutcome:
    """Score every legal plan on up to ``max_workers`` devices that fits.

    Parameters
    ----------
    model : ServingModel
    settings : ServingSettings
    progress : function of (text, share done), optional

    Returns
    -------
    ServingOutcome
        Of plans with equal degrees the best stands for all.

    Notes
    -----
    Equal scores are ranked by the time of a request, then by throughput, then by the devices in use.
    """
    clock = Clock(limit_s=settings.wall_s)
    outcome = ServingOutcome()
    outline = outlines(model.shape, model.workload.new_tokens, settings)
    numbers = numbers_of(outline, settings)
    has_rate = model.workload.arrivals is not None
    outcome.space_size = sum(len(n[:1]) if has_rate else len(n) for n in numbers)
    outcome.searched = {"enumerated": 0, "do not fit": 0}
    if not outcome.space_size:
        return outcome
    most = max(int(n[-1]) for n in numbers if len(n))
    largest = model.largest_batch(outline, most, settings.capacity_bytes)
    fitting = [n[n <= most_here] for n, most_here in zip(numbers, largest, strict=True)]
    if has_rate:
        fitting = [n[-1:] for n in fitting]
    outcome.searched["do not fit"] = outcome.space_size - sum(map(len, fitting))
    best = Best(settings)
    try:
        for rows, done in _blocks(fitting):
            plans = plans_of(outline, rows, [fitting[n] for n in rows])
            left = 0
            if has_rate and SERVING_OBJECTIVES[settings.objective].is_per_device and "dp" not in settings.degrees:
                left = _add_fewest(model, plans, settings, best)
                outcome.searched["bounded away"] = outcome.searched.get("bounded away", 0) + left
            else:
                best.add(plans, model.times(plans, percentiles=tuple(settings.limits)))
            outcome.searched["enumerated"] += len(plans) - left
            if progress is not None:
                progress("serving plans", done)
            is_spent = outcome.searched["enumerated"] >= settings.effort
            if is_spent or clock.is_over:
                outcome.out_of_time = done < 1.0
                break
    except KeyboardInterrupt:
        outcome.interrupted = True
    outcome.candidates, outcome.simple = best.ranked(), best.simplest()
    if not outcome.candidates:
        outcome.nearest_miss = best.nearest or _nearest_to_fit(model, outline, numbers)
    return outcome


def numbers_of(outline: ServingBatch, settings: ServingSettings) -> list[IntArray]:
    """Numbers of sequences that are tried with every row of an outline."""
    rows = zip(outline.pp.tolist(), outline.prefill_batch.tolist(), outline.dp.tolist(), strict=True)
    flight = settings.held
    if flight is None:
        return [batches_of(pp, least, settings) for pp, least, _ in rows]
    held = [(-(-flight // dp), least) for _, least, dp in rows]
    return [np.array([places] if places >= least else [], dtype=np.int64) for places, least in held]


def _add_fewest(model: ServingModel, plans: ServingBatch, settings: ServingSettings, best: Best) -> int:
    """Take in plans with the fewest replicas that keep the limits; returns how many were not looked at.

    No plan has fewer devices than bear its load, so those are looked at first that may need the fewest, until the others need more than the
    last plan that is shown.
    """
    timed = model.replicas(plans)
    least = least_replicas(timed, settings)
    bound = least * plans.workers // plans.dp
    order = np.argsort(bound, kind="stable")
    bears = order[least[order] <= plans.dp[order]]
    done, size = 0, max(_FIRST_ROWS, settings.top)
    while done < len(bears):
        most = best.most_workers(model)
        rows = bears[done : done + size]
        rows = rows[bound[rows] <= most]
        if not len(rows):
            break
        some, chosen = timed.take(rows), plans.take(rows)
        each = chosen.workers // chosen.dp
        within = (np.minimum(chosen.workers, most) // each).astype(np.int64)
        chosen = fewest_replicas(some, replace(chosen, dp=within // chosen.sharing * chosen.sharing), settings)
        chosen = _surer(some, chosen, within, settings)
        best.add(chosen, _times_at_rate(some, chosen, settings))
        done += size
        size *= 2 if best.plans else 8
    if best.plans:
        return len(plans) - min(done, len(bears))
    rows = order[least[order] > plans.dp[order]]
    if len(rows):
        best.add(plans.take(rows), _times_at_rate(timed.take(rows), plans.take(rows), settings))
    return 0


def _surer(timed: Replicas, plans: ServingBatch, most: IntArray, settings: ServingSettings) -> ServingBatch:
    """Plans with as many more replicas, up to a number, as keep all limits together more likely than not, where that takes more."""
    if settings.keeps_all is None:
        return plans
    unit, low, high = plans.sharing, plans.dp // plans.sharing, most // plans.sharing

    def keeps(rows: IntArray, number: IntArray) -> BoolArray:
        tried = replace(plans.take(rows), dp=number * unit[rows])
        kept = excess(tried, _times_at_rate(timed.take(rows), tried, settings), settings) <= 1.0
        kept[kept] = _keep_all(tried.take(np.flatnonzero(kept)), settings)
        return np.asarray(kept)

    found = least_that(keeps, low, high)
    return replace(plans, dp=np.where(found <= high, found, low) * unit)


def _keep_all(plans: ServingBatch, settings: ServingSettings) -> BoolArray:
    if settings.keeps_all is None or not len(plans):
        return np.ones(len(plans), dtype=np.bool_)
    return settings.keeps_all(plans)


def _times_at_rate(timed: Replicas, plans: ServingBatch, settings: ServingSettings) -> dict[str, FloatArray]:
    arrivals = timed.model.workload.arrivals
    assert arrivals is not None
    return timed.times(arrivals, plans.dp, tuple(settings.limits))


def least_replicas(timed: Replicas, settings: ServingSettings) -> IntArray:
    """How many replicas bear the load, whatever the limits: what they can serve adds up. Those that share experts come together."""
    arrivals, unit = timed.model.workload.arrivals, timed.batch.sharing
    assert arrivals is not None
    each = timed.most_per_s * unit * min(settings.most_load, 1.0)
    # A number that just bears it may be a rounding error below.
    needed = np.maximum(np.ceil(arrivals.rate_per_s / np.maximum(each, 1e-300) * (1.0 - EQUAL)), 1.0)
    return unit * np.minimum(needed, _MOST_UNITS).astype(np.int64)


def fewest_replicas(timed: Replicas, plans: ServingBatch, settings: ServingSettings) -> ServingBatch:
    """Plans with the least number of replicas that keeps the limits, at most as many as they have; all of these where none does.

    Parameters
    ----------
    timed : Replicas
        Of the plans, whatever their number of replicas.
    plans : ServingBatch
    settings : ServingSettings
    """
    unit, most = plans.sharing, plans.dp // plans.sharing

    def keeps(rows: IntArray, number: IntArray) -> BoolArray:
        tried = replace(plans.take(rows), dp=number * unit[rows])
        return np.asarray(excess(tried, _times_at_rate(timed.take(rows), tried, settings), settings) <= 1.0)

    found = least_that(keeps, least_replicas(timed, settings) // unit, most)
    return replace(plans, dp=np.minimum(found, most) * unit)


def least_that(keeps: Callable[[IntArray, IntArray], BoolArray], low: IntArray, high: IntArray) -> IntArray:
    """The least numbers that do, where all larger ones do as well; one more than ``high`` where none up to that does.

    Parameters
    ----------
    keeps : function of (rows, numbers)
    low, high : array (n,)

    Examples
    --------
    >>> need = np.array([3, 1, 9])
    >>> least_that(lambda rows, numbers: numbers >= need[rows], np.array([1, 1, 1]), np.array([5, 5, 5])).tolist()
    [3, 1, 6]
    """
    low, high = np.minimum(low, high + 1), high + 1
    # Most do with the least that bears the load, or with no number; few are between.
    for ends in (low, high - 1):
        rows = np.flatnonzero(low < high)
        kept = keeps(rows, ends[rows]) if len(rows) else rows > 0
        high[rows[kept]] = ends[rows[kept]]
        low[rows[~kept]] = ends[rows[~kept]] + 1
    while len(rows := np.flatnonzero(low < high)):
        # As many numbers of each as take about as long as one.
        left = high[rows] - low[rows]
        count = min(max(_TOGETHER // len(rows), 1), int(left.max()))
        tried = low[rows, None] + left[:, None] * np.arange(1, count + 1) // (count + 1)
        kept = keeps(np.repeat(rows, count), tried.reshape(-1)).reshape(tried.shape)
        index, first = np.arange(len(rows)), np.where(kept.any(axis=1), np.argmax(kept, axis=1), count)
        ends = np.column_stack([low[rows] - 1, tried, high[rows]])
        low[rows], high[rows] = ends[index, first] + 1, ends[index, first + 1]
    return high


def with_rate(model: ServingModel, rate_per_s: float) -> ServingModel:
    """A model whose requests come at another rate."""
    arrivals = replace(model.workload.arrivals or Arrivals(rate_per_s), rate_per_s=rate_per_s)
    return replace(model, workload=replace(model.workload, arrivals=arrivals))


def for_rate(timed: Replicas, rate_per_s: float) -> Replicas:
    """Replicas whose requests come at another rate."""
    return replace(timed, model=with_rate(timed.model, rate_per_s))


def largest_rate(model: ServingModel, plan: ServingPlan, settings: ServingSettings) -> float:
    """Requests per second that a plan can serve within the limits; 0 where it can serve none."""
    plans, names = ServingBatch.from_plans([plan] * _RATES), tuple(settings.limits)
    timed = None if plan.prefill_dp else model.replicas(plans)
    _, variation = (model.workload.arrivals or Arrivals(1.0)).of_replicas(plans.dp)

    def times_at(rates: FloatArray) -> dict[str, FloatArray]:
        if timed is None:
            return model.times(plans, rates / plan.dp, names)
        return timed.at(timed.stream(rates / plan.dp, variation), plans.dp, names)

    low, high = 0.0, float(times_at(np.full(_RATES, 1e-9))["most_requests_per_s"][0])
    least = _RATE_SHARE * high
    while high - low > least:
        rates = np.linspace(low, high, _RATES + 1)
        kept = int(np.argmin(np.append(excess(plans, times_at(rates[1:]), settings) <= 1.0, False)))
        low, high = float(rates[kept]), float(rates[min(kept + 1, _RATES)])
    return low


def binding(model: ServingModel, plan: ServingPlan, settings: ServingSettings) -> tuple[str, ...]:
    """Which limits a plan misses: columns of ServingCosts, and "load" for the share of what it can serve."""
    plans = ServingBatch.from_plans([plan])
    times = model.times(plans, percentiles=tuple(settings.limits))
    alone = {name: replace(settings, limits={name: limit}, most_load=_ANY) for name, limit in settings.limits.items()}
    alone["load"] = replace(settings, limits={})
    return tuple(name for name, one in alone.items() if excess(plans, times, one)[0] > 1.0)


def excess(plans: ServingBatch, times: Mapping[str, FloatArray], settings: ServingSettings) -> FloatArray:
    """How far plans are over their limits, (n,): the largest of times over limits, and of the load over what they are to take.

    Plans that cannot serve what comes, whose times have no end, come after all others, the least overloaded first.
    """
    found = np.zeros(len(plans))
    for name, limit in settings.limits.items():
        found = np.maximum(found, times[name] / limit)
    if settings.most_load == _ANY:
        return found
    load = times["requests_per_s"] / times["most_requests_per_s"]
    return np.where(load < 1.0, np.maximum(found, load / settings.most_load), _OVERLOADED * load)


def _blocks(fitting: list[IntArray]) -> Iterator[tuple[IntArray, float]]:
    """Rows of the outline, so many at a time that their plans fit into a chunk; and the share done after them."""
    total, done, rows, size = max(sum(map(len, fitting)), 1), 0, [], 0
    for n, numbers in enumerate(fitting):
        if not len(numbers):
            continue
        rows.append(n)
        size += len(numbers)
        if size >= _CHUNK:
            done += size
            yield np.array(rows, dtype=np.int64), done / total
            rows, size = [], 0
    if rows:
        yield np.array(rows, dtype=np.int64), 1.0


# Times and rates that scores depend on, and ranks of equal scores.
_RANKED_BY = ("ttft_s", "tpot_s", "request_s", "output_tokens_per_s", "kernel_gpu_s", "prefill_kernel_gpu_s")


_Store = dict[tuple[int, ...], tuple[tuple[float, ...], ServingPlan]]


class Best:
    """The best plan of every choice of degrees so far, and the one that comes closest to the limits."""

    def __init__(self, settings: ServingSettings) -> None:
        self.settings = settings
        self.plans: _Store = {}
        self.simple: _Store = {}  # by the wishes that plans lack
        self.nearest: ServingMiss | None = None
        self._excess = np.inf

    def add(self, plans: ServingBatch, times: Mapping[str, FloatArray]) -> None:
        """Take in plans that fit into memory, with their times and rates."""
        settings = self.settings
        over = excess(plans, times, settings)
        n = int(np.argmin(over))
        if over[n] < self._excess:
            self._excess, self.nearest = float(over[n]), ServingMiss(plan=plans.plan(n), fits=True)
        kept = np.flatnonzero(over <= 1.0)
        if not len(kept):
            return
        plans, times = plans.take(kept), {name: times[name][kept] for name in _RANKED_BY}
        scores = settings.score(times, plans)
        keys = (scores, times["request_s"], -times["output_tokens_per_s"], plans.workers)
        ranks: FloatArray = np.stack(keys, axis=1)
        degrees = np.stack([getattr(plans, name) for name in (*DEGREES, *POOL_SETTINGS)], axis=1)
        self._take(self.plans, plans, degrees, ranks, np.inf if settings.keeps_all is None else self._worst()[0])
        if settings.near:
            # At a rate the most sequences are searched alone, and the last wish is about their number.
            lacking = lacks(plans, settings.node)[:, None] >> (settings.most_load != _ANY)
            self._take(self.simple, plans, lacking, ranks, self._nearest_score())

    def _take(self, store: _Store, plans: ServingBatch, groups: IntArray, ranks: FloatArray, worst: float) -> None:
        """Keep the best plan of each group that keeps the limits, if it scores no more than the worst that matters.

        Of several limits, one plan after the other is asked whether it keeps all of them.
        """
        _, group = combined(*groups.T)
        order = np.lexsort((*reversed(ranks.T), group))
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        ends = np.append(starts[1:], len(order))

        def entering(some: Iterable[int]) -> list[int]:
            """Those whose next plan is better than what is known, and matters."""
            found = []
            for n in some:
                known, rank = (
                    store.get(tuple(groups[order[starts[n]]].tolist())),
                    tuple(ranks[order[starts[n]]].tolist()),
                )
                if rank[0] <= worst and (known is None or rank < known[0]):
                    found.append(n)
            return found

        step, left = 4, entering(range(len(starts)))
        while left:
            tried = [np.arange(starts[n], min(starts[n] + step, ends[n])) for n in left]
            likely = np.split(
                _keep_all(plans.take(order[np.concatenate(tried)]), self.settings),
                np.cumsum([len(rows) for rows in tried])[:-1],
            )
            for n, rows, keep in zip(left, tried, likely, strict=True):
                if keep.any():
                    at = int(order[rows[np.argmax(keep)]])
                    store[tuple(groups[at].tolist())] = tuple(ranks[at].tolist()), plans.plan(at)
                    starts[n] = ends[n]
                else:
                    starts[n] += len(rows)
            left = entering(n for n in left if starts[n] < ends[n])
            step *= 2

    def _nearest_score(self) -> float:
        """The most that a plan may score to be nearly as good as the best."""
        best = min((rank[0] for rank, _ in self.plans.values()), default=np.inf)
        return best * (1.0 + self.settings.near)

    def _worst(self) -> tuple[float, float]:
        """Score and time of a request of the last plan that is shown."""
        ranks = sorted(rank[:2] for rank, _ in self.plans.values())
        top = self.settings.top
        return (ranks[top - 1][0], ranks[top - 1][1]) if len(ranks) >= top else (np.inf, np.inf)

    def most_workers(self, model: ServingModel) -> float:
        """How many devices a plan may have at most to be among those that are shown, where requests come at a rate and devices count."""
        ranks = sorted(rank[0] for rank, _ in self.plans.values())
        if len(ranks) < self.settings.top:
            return np.inf
        arrivals = model.workload.arrivals
        assert arrivals is not None
        tokens_per_s = arrivals.rate_per_s * model.workload.output_tokens
        worst = max(ranks[self.settings.top - 1], self._nearest_score())
        # What kernels cost beside comes on top.
        each = self.settings.costs[0].waiting
        return float(np.floor(worst * tokens_per_s / each * (1.0 + EQUAL))) if each else np.inf

    def ranked(self) -> list[ServingCandidate]:
        """The best first."""
        found = sorted(self.plans.values())
        return [ServingCandidate(plan=plan, score=rank[0]) for rank, plan in found[: self.settings.top]]

    def simplest(self) -> dict[int, ServingCandidate]:
        """The best plan of each that lacks the same wishes (`strategies.serving.simplest.lacks`)."""
        return {lacking[0]: ServingCandidate(plan=plan, score=rank[0]) for lacking, (rank, plan) in self.simple.items()}


def _nearest_to_fit(model: ServingModel, outline: ServingBatch, numbers: list[IntArray]) -> ServingMiss | None:
    rows = np.array([n for n, values in enumerate(numbers) if len(values)], dtype=np.int64)
    plans = plans_of(outline, rows, [numbers[n][:1] for n in rows])
    n = int(np.argmin(model.memory_bytes(plans)))
    return ServingMiss(plan=plans.plan(n), fits=False)
