"""Search over plans whose prompts are read by workers of their own: all pairs of two pools, most of them cut by a bound.

Prefill pools are all legal degrees, numbers of workers and ways to read; decode pools all legal degrees with the most replicas on the GPUs
that are left, and every number of sequences. What passes of either pool take does not depend on the other, so tables of both give bounds
for every pair:

    rate <= what the prefill pool can read,  dp F(B),  dp B / (one prompt alone + D each(1))
    F(B) = max over b up to B of b / (D each(b)), where each(b) keeps the limit on the time per token
    time to first token >= one prompt alone,  time per token >= each(1)

A pair is evaluated unless its bound is worse than both the worst plan that would be shown and the best plan of two pools, so that the best
of them is proven.

Where requests come at a rate, replicas have as many places as fit, and pairs the least numbers of workers that keep the limits if devices
count (`strategies.serving.pools_at_rate`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.mesh.rules import NetworkShape
from costmodel.objectives import SERVING_OBJECTIVES
from costmodel.serving.model import ServingModel
from costmodel.serving.plan import POOL_SETTINGS, ServingBatch, ServingPlan, is_legal
from costmodel.serving.pools import Decodes, Prefills, prefill_memory
from costmodel.tolerances import EQUAL
from strategies.limits import Clock
from strategies.serving.pools_at_rate import PoolsAtRate, joined
from strategies.serving.search import (
    DEGREES,
    MOST_BATCH,
    Best,
    ServingCandidate,
    ServingMiss,
    ServingOutcome,
    ServingSettings,
    batches_of,
    degrees_of,
    drafts_of,
    prefills_of,
    search_serving,
)

if TYPE_CHECKING:
    from strategies.mesh.settings import Bounds

# Tokens of the parts in which longer prompts may be read (vLLM, --max-num-batched-tokens; SGLang, --chunked-prefill-size: 8192 on large
# devices).
_PART = 8192
# Pairs that are looked at first, and plans that are evaluated together.
_FIRST_PAIRS, _PLANS = 32, 1 << 14
_NEAREST = 64  # pairs among which the nearest miss is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class _Readers:
    """Prefill pools, arrays (r,)."""

    plans: ServingBatch  # as plans of their own
    gpus: IntArray
    memory_bytes: FloatArray
    fits: BoolArray
    keeps: BoolArray  # the limit on the first token, if prompts wait for nobody
    alone_s: FloatArray  # a prompt that waits for nobody
    most_per_s: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decoders:
    """Kinds of replicas, arrays (d,) or (d, k)."""

    plans: ServingBatch
    dp: IntArray  # replicas that the user asks for; 0: as many as there are GPUs for
    memory_bytes: FloatArray  # with one sequence
    largest: IntArray  # sequences that fit
    keeps: BoolArray  # the limit on the time per token, with some number of sequences
    first_s: FloatArray  # a token of one sequence alone
    sequences: FloatArray  # (k,)
    most_per_s: FloatArray  # (d, k) requests of a replica with that many sequences, or fewer, at most

    def rate_up_to(self, row: IntArray, sequences: IntArray) -> FloatArray:
        """Requests per second of a replica with at most so many sequences, at most."""
        return self.most_per_s[row, np.minimum(np.searchsorted(self.sequences, sequences), len(self.sequences) - 1)]


@dataclass(slots=True, kw_only=True)
class BothOutcome(ServingOutcome):
    """The best plans of both kinds, best first.

    Attributes
    ----------
    best_of : dict
        Whether workers of their own read the prompts -> the best plan of that kind.
    """

    best_of: dict[bool, ServingCandidate] = field(default_factory=dict)


def search_both(
    model: ServingModel, settings: ServingSettings, progress: Callable[[str, float], None] | None = None
) -> BothOutcome:
    """Search the plans whose replicas read their own prompts, and those with two pools, as the settings say.

    Parameters
    ----------
    model : ServingModel
    settings : ServingSettings
    progress : function of (text, share done), optional

    Returns
    -------
    BothOutcome
        Of plans with equal degrees the best stands for all.
    """
    clock = Clock(limit_s=settings.wall_s)
    outcome = BothOutcome(searched={"enumerated": 0, "do not fit": 0})
    if reads_shared(settings):
        found = search_serving(model, settings, progress)
        outcome = BothOutcome(**{item.name: getattr(found, item.name) for item in fields(found)})
        outcome.best_of |= dict(zip((False,), found.candidates, strict=False))
    is_stopped = outcome.interrupted or outcome.out_of_time
    if is_stopped or not reads_apart(settings):
        return outcome
    best = _BestPairs(settings, outcome.candidates)
    counts_devices = model.workload.arrivals is not None and SERVING_OBJECTIVES[settings.objective].is_per_device
    try:
        (_search_fewest if counts_devices else _search_pools)(model, settings, best, outcome, clock, progress)
    except KeyboardInterrupt:
        outcome.interrupted = True
    apart = best.ranked()
    outcome.best_of |= dict(zip((True,), apart, strict=False))
    outcome.candidates = sorted([*outcome.candidates, *apart], key=lambda found: found.score)[: settings.top]
    for key, candidate in best.simplest().items():
        if key not in outcome.simple or candidate.score < outcome.simple[key].score:
            outcome.simple[key] = candidate
    shared = outcome.nearest_miss
    if not outcome.candidates and not outcome.interrupted and not (shared and shared.fits):
        # A plan that fits comes before one that does not; of two the one that others know better.
        nearest = best.nearest or _nearest_pair(model, settings)
        outcome.nearest_miss = nearest if shared is None or (nearest and nearest.fits) else shared
    return outcome


def reads_shared(settings: ServingSettings) -> bool:
    """Whether plans are looked at whose replicas read their own prompts."""
    count = settings.degrees.get("prefill_dp")
    return (
        settings.disaggregate != "yes"
        and not {*settings.degrees} & {*POOL_SETTINGS[1:]}
        and (count is None or count.allows(0))
    )


def reads_apart(settings: ServingSettings) -> bool:
    """Whether plans are looked at whose prompts are read by workers of their own."""
    count = settings.degrees.get("prefill_dp")
    some = range(1, settings.max_workers)
    return settings.disaggregate != "no" and (count is None or any(count.allows(n) for n in some))


def has_pairs(model: ServingModel, settings: ServingSettings) -> bool:
    """Whether two legal pools fit on the GPUs together, whatever memory they need."""
    readers = _reader_plans(model.shape, model.workload.new_tokens, settings)
    decoders = _decoder_plans(model.shape, settings)
    sizes = decoders.tp * decoders.pp * (decoders.dp if "dp" in settings.degrees else decoders.sharing)
    return bool(len(readers) and len(decoders)) and int(readers.workers.min() + sizes.min()) <= settings.max_workers


def _nearest_pair(model: ServingModel, settings: ServingSettings) -> ServingMiss | None:
    """The pair of pools with the fewest sequences that comes closest to the limits by itself, or to fitting where none fits."""
    readers, decoders = _readers(model, settings), _decoders(model, settings)
    reader, decoder, dp = _pairs(readers, decoders, settings)
    if not len(reader):
        return None
    flight = np.full_like(dp, int(batches_of(1, 1, settings).min(initial=MOST_BATCH)))
    batch = flight if settings.held is None else -(-settings.held // dp)
    fits = readers.fits[reader] & (batch <= decoders.largest[decoder])
    rows = np.flatnonzero(fits) if fits.any() else np.arange(len(reader))
    ttft, tpot = (settings.limits.get(name, np.inf) for name in ("ttft_s", "tpot_s"))
    over = np.maximum(readers.alone_s[reader] / ttft, decoders.first_s[decoder] / tpot)[rows]
    if not fits.any():
        over = np.maximum(readers.memory_bytes[reader] / model.prefill_memory_ratio, decoders.memory_bytes[decoder])
    row = rows[np.argmin(over)][None]
    plans = joined(readers.plans.take(reader[row]), decoders.plans.take(decoder[row]), dp=dp[row], max_batch=batch[row])
    return ServingMiss(plan=plans.plan(0), fits=bool(fits.any()))


class _BestPairs(Best):
    """The best pairs of pools, beside plans that are known."""

    def __init__(self, settings: ServingSettings, known: Sequence[ServingCandidate]) -> None:
        super().__init__(settings)
        self.known = [(candidate.score, np.inf) for candidate in known]

    def _worst(self) -> tuple[float, float]:
        """The worse of the last plan that is shown and the best of two pools."""
        ranks, top = [rank[:2] for rank, _ in self.plans.values()], self.settings.top
        if len(every := sorted([*ranks, *self.known])) < top:
            return np.inf, np.inf
        # What is nearly as good as the best may be simpler.
        near = (every[0][0] * (1.0 + self.settings.near), np.inf) if self.settings.near else every[0]
        worst, request = max(min(ranks, default=(np.inf, np.inf)), every[top - 1], near)
        return worst, request

    def _nearest_score(self) -> float:
        known = min((score for score, _ in self.known), default=np.inf)
        return min(super()._nearest_score(), known * (1.0 + self.settings.near))

    def may_enter(self, score: FloatArray, request_s: FloatArray) -> BoolArray:
        """Whether pairs with such bounds may be among the plans that are shown, or the best of their kind."""
        worst, request = self._worst()
        return np.asarray((score < worst) | ((score == worst) & (request_s <= request)))


def _search_pools(
    model: ServingModel,
    settings: ServingSettings,
    best: _BestPairs,
    outcome: BothOutcome,
    clock: Clock,
    progress: Callable[[str, float], None] | None,
) -> None:
    readers, decoders = _readers(model, settings), _decoders(model, settings)
    numbers = batches_of(1, 1, settings)
    if not len(readers.gpus) or not len(decoders.dp) or not len(numbers):
        return
    reader, decoder, dp = _pairs(readers, decoders, settings)
    fits = readers.fits[reader]
    if model.workload.arrivals is not None:  # the most places
        places = _places(decoders, numbers)[decoder]
        numbers, first_number = np.unique(np.maximum(places, 1), return_inverse=True)
        within, each = (fits & (places > 0)).astype(np.int64), 1
    elif settings.held is None:
        within = np.searchsorted(numbers, decoders.largest, side="right")[decoder] * fits
        first_number, each = np.zeros_like(dp), len(numbers)
    else:  # one number, which holds them
        held = -(-settings.held // dp)
        numbers, first_number = np.unique(held, return_inverse=True)
        within, each = (fits & (held <= decoders.largest[decoder])).astype(np.int64), 1
    outcome.space_size += len(reader) * each
    outcome.searched["do not fit"] += int(np.sum(each - within))
    bound = _Bound(model, settings, readers, decoders)
    first, request = bound.of(reader, decoder, dp, numbers[first_number + np.maximum(within - 1, 0)])
    first[(within == 0) | ~(readers.keeps[reader] & decoders.keeps[decoder])] = np.inf
    order = np.lexsort((request, first))
    order = order[np.isfinite(first[order])]
    done, size, evaluated = 0, _FIRST_PAIRS, 0
    while done < len(order):
        rows = order[done : done + size]
        if not best.may_enter(first[rows[:1]], request[rows[:1]]).any():
            break
        rows = rows[best.may_enter(first[rows], request[rows])]
        counts = within[rows]
        pair = np.repeat(rows, counts)
        batch = numbers[first_number[pair] + np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)]
        kept = best.may_enter(*bound.of(reader[pair], decoder[pair], dp[pair], batch))
        pair, batch = pair[kept], batch[kept]
        for start in range(0, len(pair), _PLANS):
            some = slice(start, start + _PLANS)
            of = decoders.plans.take(decoder[pair[some]])
            plans = joined(readers.plans.take(reader[pair[some]]), of, dp=dp[pair[some]], max_batch=batch[some])
            best.add(plans, model.times(plans, percentiles=tuple(settings.limits)))
            evaluated += len(plans)
            outcome.searched["enumerated"] += len(plans)
            if outcome.searched["enumerated"] >= settings.effort or clock.is_over:
                outcome.out_of_time = True
                return
        done += size
        size *= 2
        if progress is not None:
            progress("plans with two pools", done / len(order))
    outcome.searched["bounded away"] = int(np.sum(within)) - evaluated


def _places(decoders: _Decoders, numbers: IntArray) -> IntArray:
    """The most sequences that fit, of those that are allowed; 0 where none do."""
    return np.concatenate([[0], numbers])[np.searchsorted(numbers, decoders.largest, side="right")]


def _search_fewest(
    model: ServingModel,
    settings: ServingSettings,
    best: _BestPairs,
    outcome: BothOutcome,
    clock: Clock,
    progress: Callable[[str, float], None] | None,
) -> None:
    """Pairs for requests at a rate, each with the least numbers of workers."""
    are_fixed = "prefill_dp" in settings.degrees, "dp" in settings.degrees
    readers, decoders = _readers(model, settings, every_number=are_fixed[0]), _decoders(model, settings)
    numbers = batches_of(1, 1, settings)
    alike, before = _draft_alike(readers.plans, decoders.plans), outcome.space_size
    outcome.space_size += int(np.sum(alike))
    places = _places(decoders, numbers) if len(decoders.dp) else decoders.dp
    some, others = np.flatnonzero(readers.fits), np.flatnonzero(places > 0)
    alike = alike[np.ix_(some, others)]
    outcome.searched["do not fit"] += outcome.space_size - before - int(np.sum(alike))
    if not len(some) or not len(others):
        return
    kinds = readers.plans.take(some), replace(decoders.plans.take(others), max_batch=places[others])
    pools = PoolsAtRate.of(model, settings, *kinds)
    size, highest = pools.units, (kinds[0].dp // kinds[0].sharing, kinds[1].dp // kinds[1].sharing)
    low = [high if fixed else np.ones_like(high) for high, fixed in zip(highest, are_fixed, strict=True)]
    read = pools.least_readers(low[0], highest[0])
    decode = pools.least_decoders(np.arange(len(others)), low[1], highest[1], np.zeros(len(others)))
    # Devices of every pair; none has a kind of which no number does.
    of_reader, of_decoder = (
        np.where(least <= most, devices * least, settings.max_workers)
        for least, most, devices in zip((read, decode), highest, size, strict=True)
    )
    least = np.where(alike, of_reader[:, None] + of_decoder, settings.max_workers + 1).reshape(-1)
    pairs = np.flatnonzero(least <= settings.max_workers)
    least, (reader, decoder) = least[pairs], np.divmod(pairs, len(others))
    figures = {"output_tokens_per_s": np.full(len(least), pools.arrivals.rate_per_s * model.workload.output_tokens)}
    cost = _least_score(settings, figures, least, least - of_decoder[decoder])
    done, count = 0, max(_FIRST_PAIRS, settings.top)
    while done < len(pairs):
        near = lowest(cost, done + count)
        request_s = readers.alone_s[some][reader[near]]
        request_s = request_s + model.workload.later_tokens * decoders.first_s[others][decoder[near]]
        order = np.lexsort((request_s, cost[near]))[done : done + count]
        rows, request_s = near[order], request_s[order] * (1.0 - EQUAL)
        score = cost[rows] * (1.0 - EQUAL)
        if not best.may_enter(score[:1], request_s[:1]).any():
            break
        rows = rows[best.may_enter(score, request_s)]
        plans = pools.least_pairs(reader[rows], decoder[rows], read[reader[rows]], decode[decoder[rows]], highest)
        if len(plans):
            best.add(plans, model.times(plans, percentiles=tuple(settings.limits)))
        outcome.searched["enumerated"] += len(rows)
        done, count = done + count, 2 * count
        if progress is not None:
            progress("plans with two pools", min(done / len(pairs), 1.0))
        if outcome.searched["enumerated"] >= settings.effort or clock.is_over:
            outcome.out_of_time = done < len(pairs)
            break
    seen = outcome.searched["enumerated"] + outcome.searched["do not fit"]
    outcome.searched["bounded away"] = outcome.space_size - seen
    if not best.plans:
        _add_nearest(model, settings, best, pools, alike)


def lowest(values: NDArray[Any], count: int) -> IntArray:
    """Rows of so many of the least values, and of those that equal the last of them.

    >>> lowest(np.array([3, 1, 2, 2]), 2).tolist()
    [1, 2, 3]
    """
    if count >= len(values):
        return np.arange(len(values))
    return np.flatnonzero(values <= np.partition(values, count - 1)[count - 1])


def _add_nearest(
    model: ServingModel, settings: ServingSettings, best: _BestPairs, pools: PoolsAtRate, alike: BoolArray
) -> None:
    """Look at pairs that share all devices by what their pools take for a request, for the nearest miss."""
    size = pools.units
    each = size[0] / pools.reading.reads_per_s, size[1] / pools.decoding.decodes_per_s / pools.decoders.sharing
    can = alike & (size[0][:, None] + size[1] <= settings.max_workers)
    both = np.where(can, each[0][:, None] + each[1], np.inf).reshape(-1)
    rows = lowest(both, _NEAREST)
    rows = rows[np.argsort(both[rows], kind="stable")][:_NEAREST]
    reader, decoder = np.divmod(rows[np.isfinite(both[rows])], len(size[1]))
    if len(reader):
        share = each[0][reader] / (each[0][reader] + each[1][decoder])
        most = (settings.max_workers - size[1][decoder]) // size[0][reader]
        read = np.clip(np.round(settings.max_workers * share / size[0][reader]), 1, most).astype(np.int64)
        decode = (settings.max_workers - read * size[0][reader]) // size[1][decoder]
        plans = pools.plans(reader, decoder, read, decode)
        best.add(plans, model.times(plans, percentiles=tuple(settings.limits)))


def _reader_plans(
    shape: NetworkShape, prompt: int, settings: ServingSettings, *, every_number: bool = True
) -> ServingBatch:
    allowed: dict[str, Bounds] = {
        name.removeprefix("prefill_"): bounds for name, bounds in settings.degrees.items() if name in POOL_SETTINGS
    }
    ways = {
        (0 if chunk >= prompt else chunk, several)
        for chunk, several in prefills_of(prompt, settings.degrees, usual=(0, _PART))
    }
    free = replace(settings, degrees=allowed, max_workers=settings.max_workers - 1, concurrency=None)
    found = [
        ServingPlan(tp=tp, pp=pp, ep=ep, etp=etp, dp=dp, max_batch=several, prefill_chunk=chunk, prefill_batch=several)
        for tp, pp, ep, etp, dp in degrees_of(shape, free, every_number=every_number)
        for chunk, several in sorted(ways)
    ]
    plans = ServingBatch.from_plans(found)
    if not found:
        return plans
    can = (shape.pools == "any") | ((shape.pools == "one_stage") & (plans.pp == 1))
    plans = plans.take(np.flatnonzero(is_legal(shape, plans) & can))
    # They read for the drafter of the replicas, too.
    drafts, count = np.array(drafts_of(settings), dtype=np.int64), len(plans)
    plans = plans.take(np.repeat(np.arange(count), len(drafts)))
    plans = replace(plans, draft_tokens=np.tile(drafts, count))
    return plans.take(np.flatnonzero((plans.draft_tokens == 0) | (plans.pp == 1)))


def _readers(model: ServingModel, settings: ServingSettings, *, every_number: bool = True) -> _Readers:
    """All prefill pools that are legal, of every number of workers or of the most."""
    plans = _reader_plans(model.shape, model.workload.new_tokens, settings, every_number=every_number)
    if not len(plans):
        none = np.zeros(0)
        return _Readers(
            plans=plans,
            gpus=plans.workers,
            memory_bytes=none,
            fits=none > 0,
            keeps=none > 0,
            alone_s=none,
            most_per_s=none,
        )
    one = np.ones(len(plans), dtype=np.int64)
    pools = replace(plans, **{name: getattr(plans, name.removeprefix("prefill_")) for name in POOL_SETTINGS})
    memory, _ = prefill_memory(model, replace(pools, tp=one, pp=one, ep=one, etp=one, dp=one))
    passes = Prefills.of(model, pools)
    alone_s, each_s = passes.through_s(passes.first), passes.busy_s(passes.first)
    full_s = each_s + (plans.prefill_batch - 1) * passes.busy_s(passes.added)
    return _Readers(
        plans=plans,
        gpus=plans.workers,
        memory_bytes=memory["memory_bytes"],
        fits=memory["memory_bytes"] <= settings.capacity_bytes * model.prefill_memory_ratio,
        keeps=alone_s <= settings.limits.get("ttft_s", np.inf),
        alone_s=alone_s,
        most_per_s=plans.dp * plans.prefill_batch / full_s,
    )


def _decoder_plans(shape: NetworkShape, settings: ServingSettings) -> ServingBatch:
    free = replace(
        settings,
        degrees={name: bounds for name, bounds in settings.degrees.items() if name in DEGREES},
        max_workers=settings.max_workers - 1,
        concurrency=settings.concurrency if settings.every_number else None,
    )
    found = [
        ServingPlan(tp=tp, pp=pp, ep=ep, etp=etp, dp=dp, prefill_dp=1, draft_tokens=drafted)
        for tp, pp, ep, etp, dp in degrees_of(shape, free, every_number=settings.every_number)
        for drafted in drafts_of(settings)
    ]
    plans = ServingBatch.from_plans(found)
    return plans.take(np.flatnonzero(is_legal(shape, plans))) if found else plans


def _decoders(model: ServingModel, settings: ServingSettings) -> _Decoders:
    """All replicas that are legal."""
    plans = _decoder_plans(model.shape, settings)
    most = settings.held or int(batches_of(1, 1, settings).max(initial=1))
    none = np.zeros(0)
    if not len(plans):
        return _Decoders(
            plans=plans,
            dp=plans.dp,
            memory_bytes=none,
            largest=plans.dp,
            keeps=none > 0,
            first_s=none,
            sequences=none,
            most_per_s=none,
        )
    tokens = max(model.workload.later_tokens, 1)
    decodes = Decodes.of(model, replace(plans, max_batch=np.full(len(plans), most)))
    # Seconds per token; answers of one token are never decoded.
    each_s = decodes.token_s[decodes.row] * model.per_token(plans)[:, None]
    knots = decodes.sequences
    most_s = settings.limits.get("tpot_s", np.inf)
    # The last number that may keep the limit is at most the one behind the last that does; rates grow or fall between two.
    rates = knots / np.maximum(tokens * each_s, 1e-300)
    keeps = each_s <= most_s
    known = np.where(keeps, rates, 0.0)
    low, high = each_s[:, :-1], each_s[:, 1:]
    share = np.clip((most_s - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    limit = knots[:-1] + share * np.diff(knots)
    ends = np.where(keeps[:, :-1] & ~keeps[:, 1:], limit / np.maximum(tokens * most_s, 1e-300), 0.0)
    known[:, 1:] = np.maximum(known[:, 1:], ends)
    return _Decoders(
        plans=plans,
        dp=plans.dp if "dp" in settings.degrees or settings.every_number else 0 * plans.dp,
        memory_bytes=model.memory(plans)[0]["memory_bytes"],
        largest=model.largest_replica(plans, most, settings.capacity_bytes),
        keeps=np.asarray(keeps.any(axis=1)),
        first_s=each_s.min(axis=1),
        sequences=knots,
        most_per_s=np.maximum.accumulate(known, axis=1),
    )


def _pairs(readers: _Readers, decoders: _Decoders, settings: ServingSettings) -> tuple[IntArray, IntArray, IntArray]:
    """Rows of pools that fit on the GPUs together, and the replicas: the most for which there are GPUs, unless the user says how many."""
    plans = decoders.plans
    left = settings.max_workers - readers.gpus[:, None]
    size = plans.tp * plans.pp
    dp = np.where(decoders.dp > 0, decoders.dp, left // size // plans.sharing * plans.sharing)
    if settings.concurrency is not None:  # no more replicas than requests
        dp = np.minimum(dp, settings.concurrency // plans.sharing * plans.sharing)
    reader, decoder = np.nonzero((dp > 0) & (dp * size <= left) & _draft_alike(readers.plans, plans))
    return reader, decoder, dp[reader, decoder]


def _draft_alike(readers: ServingBatch, decoders: ServingBatch) -> BoolArray:
    """Which pairs of pools draft as many tokens, (r, d)."""
    return np.asarray(readers.draft_tokens[:, None] == decoders.draft_tokens)


def _least_score(
    settings: ServingSettings, figures: Mapping[str, FloatArray], workers: IntArray, readers: IntArray
) -> FloatArray:
    """A score that no plan of so many devices is below, whatever its kernels cost."""
    kernels = dict.fromkeys(("kernel_gpu_s", "prefill_kernel_gpu_s"), np.zeros(len(workers)))
    objective = SERVING_OBJECTIVES[settings.objective]
    return np.asarray(objective.score({**figures, **kernels}, workers, readers, settings.costs), dtype=np.float64)


class _Bound:
    """Scores and request times that no plan of a pair is below."""

    def __init__(self, model: ServingModel, settings: ServingSettings, readers: _Readers, decoders: _Decoders) -> None:
        self.tokens, self.output = model.workload.later_tokens, model.workload.output_tokens
        self.in_flight = model.workload.concurrency or 0
        self.settings = settings
        self.readers, self.decoders = readers, decoders

    def of(self, reader: IntArray, decoder: IntArray, dp: IntArray, batch: IntArray) -> tuple[FloatArray, FloatArray]:
        """Of pairs with at most so many sequences per replica."""
        first_s, each_s = self.readers.alone_s[reader], self.decoders.first_s[decoder]
        request_s = first_s + self.tokens * each_s
        rate = np.minimum(self.readers.most_per_s[reader], dp * self.decoders.rate_up_to(decoder, batch))
        rate = np.minimum(rate, np.maximum(dp * batch, self.in_flight) / request_s)
        figures = {
            "output_tokens_per_s": rate * self.output,
            "request_s": request_s,
            "ttft_s": first_s,
            "tpot_s": each_s,
        }
        plans = self.decoders.plans
        workers = (plans.tp * plans.pp)[decoder] * dp + self.readers.gpus[reader]
        figures["output_tokens_per_s"] = np.maximum(figures["output_tokens_per_s"], 1e-300)
        score = _least_score(self.settings, figures, workers, self.readers.gpus[reader])
        # Times of the evaluator are sums of the same terms, in another order.
        return score * (1.0 - EQUAL), request_s * (1.0 - EQUAL)
