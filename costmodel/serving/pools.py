"""Plans whose prompts are read by workers of their own (disaggregated serving): what their passes and transfers take.

A plan with ``prefill_dp`` of 1 or more has two pools. Prefill workers read prompts, whole or in pieces, and nothing else. The replicas
decode them, and no pass of theirs reads a prompt. `costmodel.serving.stations` says what follows from how long each step takes.

The first token comes out of the prefill pool, as with TensorRT-LLM (which streams the answer of the context server first). SGLang sends it
with the cache, and a proxy in front of vLLM takes it from the replica: a transfer later, and a transfer and a pass.

The cache of a prompt
---------------------
A rank of a replica needs the keys and values of its heads and its layers: R bytes on the fullest stage. All ranks of a replica need A
bytes; each rank of latent attention needs those of all heads. In a prefill worker with t ranks per stage, ``min(t, max(shards, tp))`` of
them send: tp are the ranks of the replica's stage, and shards the parts that the heads are really in, 1 for latent attention, at most the
heads of keys and values elsewhere. Every rank has one link, of the level that joins all workers of the plan:

    sent = A / (senders x prefill stages)        transfer = time(max(R, sent (1 + P) / 2))

The P prompts of a pass leave together, so that a prompt waits for half of the others. Nothing of it is hidden behind the prompt's own
pass: vLLM's replicas fetch the cache of a prompt that has been read (nixl_connector.py). SGLang sends each piece behind its own pass
(disaggregation/prefill.py, send_kv_chunk), so that of a prompt in pieces only the last one is late; here all are. It stops no pass of
others (NVIDIA Dynamo, Disaggregated Serving: "the KV transfer is non-blocking"), and links carry no more caches than their bandwidth
allows.

Memory
------
A prefill worker holds the prompts of the passes in its stages and of one more pass, which have not been fetched yet: P (pp + 1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from costmodel.arrays import FloatArray, IntArray, StructOfArrays, combined
from costmodel.mesh.stages import weigh
from costmodel.serving.arrivals import Stream
from costmodel.serving.percentiles import PERCENTILES, Moments, columns, gamma, of_passes
from costmodel.serving.plan import ServingBatch
from costmodel.serving.stations import Stations, TokenTimes, solve, solve_at_rate
from costmodel.serving.tables import PassKeys

if TYPE_CHECKING:
    from costmodel.serving.model import Pass, ServingModel

Figures = dict[str, FloatArray]
_PARTS = ("compute_s", "tp_s", "ep_s", "pp_s", "host_s")


def reader_of(model: ServingModel) -> ServingModel:
    """The cost model of the workers that read prompts: their devices, and no cache for answers."""
    workload = replace(model.workload, output_tokens=1)
    if model.prefill_cluster is not None:
        return model.built_for(workload, model.prefill_cluster)
    timer = replace(model.timer, workload=workload)
    drafter = model.drafter and model.drafter.beside_reader(timer)
    return replace(model, workload=workload, timer=timer, drafter=drafter)


def held_prompts(batch: ServingBatch) -> IntArray:
    """Prompts whose cache a prefill worker has at most: those of the passes in its stages, and of one that waits to be fetched."""
    return np.asarray(batch.prefill_batch * (batch.prefill_pp + 1))


def prefill_memory(model: ServingModel, batch: ServingBatch) -> tuple[Figures, IntArray]:
    """Memory of the fullest device of the prefill pool, as `ServingModel.memory` says it."""
    return reader_of(model).memory(batch.prefill_pool(held_prompts(batch)))


def of_both_kinds(
    batch: ServingBatch, shared: Callable[[IntArray], Figures], apart: Callable[[IntArray], Figures]
) -> Figures:
    """Times of plans of both kinds, by functions of the rows of each: whose replicas read prompts themselves, and of two pools."""
    kinds = ((shared, np.flatnonzero(~batch.is_apart)), (apart, np.flatnonzero(batch.is_apart)))
    found = [(rows, times(rows)) for times, rows in kinds if len(rows) or len(batch) == 0]
    if len(found) == 1:
        return found[0][1]
    # Percentiles that nobody asked for are there for plans of two pools alone.
    both = {name: np.zeros(len(batch)) for name in found[0][1] if name in found[1][1]}
    for rows, figures in found:
        for name, values in both.items():
            values[rows] = figures[name]
    return both


# -- what reading prompts takes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefills(StructOfArrays):
    """Passes of prefill workers, arrays (n,): one with a prompt, what each further prompt adds, and the passes of a prompt."""

    first: Pass
    added: Pass
    pieces: IntArray

    @classmethod
    def of(cls, model: ServingModel, batch: ServingBatch) -> Prefills:
        """Of the prefill pool of every plan."""
        reader, pool = reader_of(model), batch.prefill_pool(batch.prefill_batch)
        chunk, pieces = reader.chunks(pool)
        one = np.ones_like(chunk)
        # A drafter reads the prompt, too, so that replicas get its cache.
        queries = one if reader.drafter is None else pool.draft_tokens + 1
        kinds = tuple(
            PassKeys(
                tp=pool.tp, ep=pool.ep, etp=pool.etp, prompts=prompts, chunk=chunk, decodes=0 * one, queries=queries
            )
            for prompts in (one, pool.prefill_batch)
        )
        first, full = reader.passes(pool, kinds)
        more = np.maximum(pool.prefill_batch - 1, 1)
        names = [item.name for item in fields(first)]
        added = replace(
            first, **{name: np.maximum(getattr(full, name) - getattr(first, name), 0.0) / more for name in names}
        )
        return cls(first=first, added=added, pieces=pieces)

    def at(self, prompts: FloatArray, name: str) -> FloatArray:
        """A part of a pass with so many prompts, not a whole number."""
        return np.asarray(getattr(self.first, name) + (prompts - 1.0) * getattr(self.added, name))

    def busy_s(self, of: Pass) -> FloatArray:
        """How long all pieces keep a worker busy."""
        return np.asarray(self.pieces * of.slowest_s)

    def through_s(self, of: Pass) -> FloatArray:
        """How long they take through all stages."""
        return np.asarray(of.through_s + (self.pieces - 1) * of.slowest_s)


# -- what tokens take ---------------------------------------------------------------------------------------------------


def _sequence_knots(most: int) -> IntArray:
    """Numbers of sequences for which passes are timed, three or fewer per doubling; at least two.

    >>> _sequence_knots(20).tolist()
    [1, 2, 3, 4, 6, 8, 12, 16, 24]
    """
    numbers = [1, 2]
    while numbers[-1] < most:
        numbers += [3 * numbers[-1] // 2, 2 * numbers[-1]] if numbers[-1] & (numbers[-1] - 1) == 0 else []
    return np.array([n for k, n in enumerate(numbers) if k < 2 or numbers[k - 1] < most], dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decodes:
    """Decoding passes of replicas of several kinds, by how many sequences they have, (m, k)."""

    sequences: FloatArray
    token_s: FloatArray  # of a sequence: a pass through all stages, or one of every group through the slowest
    parts: dict[str, FloatArray]
    row: IntArray  # kind of each plan

    @classmethod
    def of(cls, model: ServingModel, batch: ServingBatch) -> Decodes:
        """Of the replicas of every plan."""
        first, row = combined(batch.tp, batch.pp, batch.ep, batch.etp, batch.draft_tokens)
        numbers = _sequence_knots(int(batch.max_batch.max()))
        each = batch.take(np.repeat(first, len(numbers)))
        each = replace(each, max_batch=np.tile(numbers, len(first)))
        none = np.zeros_like(each.tp)
        keys = PassKeys(
            tp=each.tp,
            ep=each.ep,
            etp=each.etp,
            prompts=none,
            chunk=none,
            decodes=each.group_batch,
            queries=each.draft_tokens + 1,
        )
        (found,) = model.passes(each, (keys,))
        shape = (len(first), len(numbers))
        token_s = np.maximum(found.through_s, each.groups * found.slowest_s)
        return cls(
            sequences=numbers.astype(np.float64),
            token_s=token_s.reshape(shape),
            parts={name: getattr(found, name).reshape(shape) for name in _PARTS},
            row=row,
        )

    @classmethod
    def joined(cls, parts: Sequence[Decodes]) -> Decodes:
        """The plans of several at the same numbers of sequences, one after the other."""
        first, before = parts[0], np.cumsum([0, *(len(part.token_s) for part in parts)])
        return cls(
            sequences=first.sequences,
            token_s=np.concatenate([part.token_s for part in parts]),
            parts={name: np.concatenate([part.parts[name] for part in parts]) for name in first.parts},
            row=np.concatenate([part.row + start for part, start in zip(parts, before[:-1], strict=True)]),
        )

    def tokens(self, table: FloatArray) -> TokenTimes:
        """A column as a function of the sequences."""
        return TokenTimes(sequences=self.sequences, token_s=table)


# -- transfers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers(StructOfArrays):
    """Caches on their way from one pool to the other, arrays (n,).

    Attributes
    ----------
    seconds : array
        Until the cache of a prompt has arrived.
    sent_s, received_s : array
        For which it keeps the links of a prefill worker and of a replica busy.
    """

    seconds: FloatArray
    sent_s: FloatArray
    received_s: FloatArray


def transfers(model: ServingModel, batch: ServingBatch) -> Transfers:
    """What it takes to hand over the cache of a prompt; answers of one token need none."""
    reader, pool = reader_of(model), batch.prefill_pool(batch.prefill_batch)
    drafts = np.minimum(batch.draft_tokens, 1)
    kept, alone, there = (_cache_bytes(reader, tp, drafts) for tp in (batch.tp, np.ones_like(batch.tp), pool.tp))
    layouts = reader.layouts_of(batch)
    received = np.max(np.where(layouts.rank_first >= 0, weigh(layouts.rank_modules, kept), 0.0), axis=1)
    counts = np.bincount(model.modules.kind_of, minlength=len(model.modules.kinds)).astype(np.float64)
    shards = np.round(alone @ counts / np.maximum(there @ counts, 1.0))
    senders = np.minimum(pool.tp, np.maximum(shards, batch.tp)) * pool.pp
    sent = batch.tp * (kept @ counts) / senders
    half = -(-batch.workers // 2)  # a pair so far apart covers all workers

    links = model.timer.groups
    pair = links.find(np.full_like(batch.tp, 2), half, np.zeros_like(half))

    def over_links_s(message: FloatArray) -> FloatArray:
        return np.asarray(links.time_s("point_to_point", pair, message))

    half_s = over_links_s(np.maximum(received, sent * (1.0 + batch.prefill_batch) / 2.0))
    is_sent = float(model.workload.later_tokens > 0)
    return Transfers(
        seconds=is_sent * half_s, sent_s=is_sent * over_links_s(sent), received_s=is_sent * over_links_s(received)
    )


def _cache_bytes(model: ServingModel, tp: IntArray, drafts: IntArray) -> FloatArray:
    """Cache of a prompt that a rank keeps of every kind of module, (n, K); beside the head that of a drafter, where there is one."""
    one = np.ones_like(tp)
    keys = PassKeys(tp=tp, ep=tp, etp=one, prompts=0 * one, chunk=0 * one, decodes=one, queries=one)
    sizes = model.timer.sizes(keys)
    return (sizes if model.drafter is None else model.drafter.kept_with(sizes, keys, drafts)).cache_bytes


# -- both together ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """What the passes and the transfers of plans take."""

    prefills: Prefills
    decodes: Decodes
    caches: Transfers

    @classmethod
    def of(cls, models: Sequence[ServingModel], batch: ServingBatch) -> _Timed:
        """Of all plans under one model after the other."""
        return cls(
            prefills=Prefills.joined([Prefills.of(model, batch) for model in models]),
            decodes=Decodes.joined([Decodes.of(model, batch) for model in models]),
            caches=Transfers.joined([transfers(model, batch) for model in models]),
        )


def stations_of(model: ServingModel, batch: ServingBatch, timed: _Timed | None = None) -> Stations:
    """Plans as two stations, by what their passes take where that is known."""
    timed = timed or _Timed.of([model], batch)
    prefills, decodes, caches = timed.prefills, timed.decodes, timed.caches
    pool, real, running = batch.prefill_pool(batch.prefill_batch), np.float64, model.running(batch)
    flight = model.workload.concurrency or 0
    with np.errstate(divide="ignore"):
        links_per_s = np.minimum(pool.dp / caches.sent_s, batch.dp / caches.received_s)
    return Stations(
        in_flight=np.where(flight, flight, batch.dp * running.max_batch).astype(real),
        places=running.max_batch.astype(real),
        groups=pool.dp / pool.sharing,
        together=pool.sharing.astype(real),
        most=(pool.sharing * batch.prefill_batch).astype(real),
        one_s=prefills.busy_s(prefills.first),
        added_s=prefills.busy_s(prefills.added),
        through_s=prefills.through_s(prefills.first),
        through_added_s=prefills.through_s(prefills.added),
        transfer_s=caches.seconds,
        links_per_s=links_per_s,
        decoders=batch.dp.astype(real),
        row=decodes.row,
        tokens=decodes.tokens(decodes.token_s),
        passes=model.decode_passes(batch),
        passes_vary=model.passes_vary(batch),
        ahead=model.assumptions.passes_ahead,
        load=model.workload.load,
    )


def pool_times(
    models: Sequence[ServingModel],
    batch: ServingBatch,
    streams: tuple[Stream, Stream] | None = None,
    percentiles: Collection[str] = PERCENTILES,
) -> Figures:
    """Times and rates of plans with two pools under one model after the other, by their names in `costmodel.serving.plan.ServingCosts`.

    Where requests come at a rate, ``streams`` are all of them, and those of one replica.
    """
    model, timed = models[0], _Timed.of(models, batch)
    batch = batch.repeated(len(models))
    work, tokens, prefills, decodes = model.workload, model.workload.later_tokens, timed.prefills, timed.decodes
    stations = stations_of(model, batch, timed)
    if streams is None:
        flow, ends = solve(stations), None
    else:
        flow, ends = solve_at_rate(stations, *streams, tokens, percentiles)
    last = {f"prefill_{name}": prefills.at(flow.read, name) for name in _PARTS}
    earlier = (prefills.pieces - 1) * prefills.at(flow.read, "slowest_s")
    ttft = flow.wait_s + sum(last.values()) + earlier
    decoded = {
        f"decode_{name}": decodes.tokens(table).at(decodes.row, flow.sequences) * model.per_token(batch)
        for name, table in decodes.parts.items()
    }
    transfer = stations.transfer_s / max(tokens, 1)
    group = np.maximum(flow.sequences / np.clip(flow.sequences, 1.0, batch.pp), 1.0)
    decoding_s = decodes.tokens(decodes.parts["compute_s"]).at(decodes.row, flow.sequences) * stations.passes / group
    reading_s = prefills.pieces * prefills.at(flow.read, "compute_s") / flow.read
    # No device is busy for more than all of the time.
    decoding_s = np.minimum(decoding_s, batch.dp * batch.pp / flow.rate_per_s)
    reading_s = np.minimum(reading_s, batch.prefill_dp * batch.prefill_pp / flow.rate_per_s)
    tpot = transfer + flow.decode_s / max(tokens, 1)
    of_pass = np.asarray(sum(decoded.values()))
    return {
        "ttft_s": ttft,
        "tpot_s": tpot,
        "request_s": ttft + tokens * tpot,
        "pause_s": tpot,
        "requests_per_s": flow.rate_per_s,
        "most_requests_per_s": stations.most_requests_per_s,
        "occupied_places": flow.sequences,
        **(_percentiles(model, batch, flow.wait_s, ttft, tpot, percentiles) if ends is None else ends),
        "output_tokens_per_s": flow.rate_per_s * work.output_tokens,
        "total_tokens_per_s": flow.rate_per_s * work.most_context,
        "decode_pass_s": of_pass / np.maximum(model.per_token(batch), 1e-300),
        **decoded,
        "transfer_s": transfer,
        "kernel_gpu_s": batch.tp * decoding_s / work.output_tokens,
        "prefill_kernel_gpu_s": batch.prefill_tp * reading_s / work.output_tokens,
        "waiting_s": np.maximum(tpot - of_pass - transfer, 0.0),
        "queue_s": flow.wait_s,
        **last,
        "earlier_chunks_s": earlier,
    }


def _percentiles(
    model: ServingModel,
    batch: ServingBatch,
    wait_s: FloatArray,
    ttft_s: FloatArray,
    tpot_s: FloatArray,
    names: Collection[str],
) -> Figures:
    """The wait of traffic as that of a queue, exponential. Equal requests have equal times."""
    work, none = model.workload, np.zeros(len(ttft_s))
    is_traffic = work.load == "traffic"
    first = gamma(ttft_s - wait_s, work.prompt_variation if is_traffic else 0.0)
    first = first + gamma(wait_s, 1.0 if is_traffic else 0.0)
    vary, decoding_s = model.passes_vary(batch), work.later_tokens * tpot_s
    token = Moments(mean=tpot_s, variance=none, third=none) + of_passes(tpot_s, vary)
    answers = gamma(decoding_s, work.output_variation if is_traffic else 0.0) + of_passes(decoding_s, vary)
    return columns(first.quantile, token, first + answers, names)
