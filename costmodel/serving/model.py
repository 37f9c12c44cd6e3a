"""The cost model of serving plans: one network, one kind of request, one cluster, any number of plans at a time.

A replica holds ``max_batch`` sequences; when one is finished the next takes its place (continuous batching). In one cycle every place
serves one request: its prompt, and ``output - 1`` decoding passes. Equations are in docs/inference.md.
For error bars, the same model is built with named constants (`costmodel.uncertainty.constants`) multiplied by factors.

The rows of layers that reports print (`serving_layer_rows`) come from the tables that the cost of the plan comes from: times the number of
modules they add up to the parts of a pass.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, StructOfArrays, combined
from costmodel.hardware.cluster import Cluster
from costmodel.mesh.communication import GroupTimes
from costmodel.mesh.modules import Modules, fold
from costmodel.mesh.rules import NetworkShape
from costmodel.mesh.stages import Layout, LayoutArrays, balanced_blocks, layout_of, stack_layouts, weigh
from costmodel.network.graph import once
from costmodel.network.layers import ATTENTION, Layer
from costmodel.serving.arrivals import Curve, Passes, Server, Stream, most_per_s, open_loop
from costmodel.serving.drafting import Drafter
from costmodel.serving.percentiles import PERCENTILES
from costmodel.serving.plan import SERVING_MEMORY_PARTS, ServingBatch, ServingCosts, ServingPlan
from costmodel.serving.pools import of_both_kinds, pool_times, prefill_memory, reader_of
from costmodel.serving.queue import FullTimes, Reading, full_percentiles, queue_s, waits_in_step
from costmodel.serving.tables import ModuleSizes, ModuleTimer, PassKeys
from costmodel.serving.workload import Arrivals, ServingAssumptions, ServingError, ServingWorkload
from costmodel.uncertainty.constants import cluster_with


def check_generates(workload: ServingWorkload) -> None:
    """Refuse a network that does not make one token after the other.

    Raises
    ------
    ServingError
        It has no attention or attention that sees later positions (but in an encoder), works on images, or its positions are too few.
    """
    name, attention = workload.graph.name, False
    for index, layer in enumerate(workload.graph.layers):
        reads = index in workload.encoder
        if layer.kind in ATTENTION and layer.kind != "cross_attention":
            attention = True
            if layer.params.causal == reads:
                raise ServingError(
                    f"network '{name}' does not generate text: attention '{layer.name}' "
                    + ("of the encoder sees earlier positions only" if reads else "sees later positions")
                )
        if len(layer.output_shape) != 2:
            raise ServingError(
                f"network '{name}' does not generate text: the output of '{layer.name}' is no sequence of positions"
            )
        if layer.kind == "position_embedding":
            _check_positions(workload, layer, reads=reads)
    if not attention:
        raise ServingError(f"network '{name}' has no attention: only transformers can be served")


def _check_positions(workload: ServingWorkload, layer: Layer, *, reads: bool) -> None:
    """A learned table must be as long as what is looked up in it."""
    prompt, output, most = workload.prompt_tokens, workload.output_tokens, layer.params.max_positions
    known = f"'{layer.name}' of network '{workload.graph.name}' has {most}"
    if reads and most < prompt:
        raise ServingError(f"a prompt of {prompt} tokens is as many positions; {known}")
    needed = workload.first_tokens + output
    if not reads and most < needed:
        words = (
            f"an output of {output} tokens"
            if workload.encoder
            else f"a prompt of {prompt} and an output of {output} tokens"
        )
        raise ServingError(f"{words} are {needed} positions; {known}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingModel:
    """A network, its requests and a cluster, ready to cost plans.

    Attributes
    ----------
    workload : ServingWorkload
    cluster : Cluster
    modules : Modules
    timer : ModuleTimer
    assumptions : ServingAssumptions
    """

    workload: ServingWorkload
    cluster: Cluster
    modules: Modules
    timer: ModuleTimer  # costs of modules
    assumptions: ServingAssumptions
    module_bytes: tuple[float, ...]  # weights of every kind of module
    drafter: Drafter | None = None  # what drafts tokens on the devices
    prefill_cluster: Cluster | None = None  # of workers that only read prompts, where they are other devices
    _layouts: dict[int, Layout] = field(default_factory=dict, repr=False, compare=False)
    _changed: dict[frozenset[tuple[str, float]], ServingModel] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def shape(self) -> NetworkShape:
        """What rules about degrees refer to."""
        workload = self.workload
        return NetworkShape.of(workload.graph, self.modules, 1, workload.framework, precision=workload.precision)

    @classmethod
    def build(
        cls, workload: ServingWorkload, cluster: Cluster, assumptions: ServingAssumptions | None = None
    ) -> ServingModel:
        """Fold the network.

        Raises
        ------
        ServingError
            The network does not generate text.
        MeshError
            It has no repeated blocks.
        DeviceError
            The device does not compute in the format of the weights.
        """
        check_generates(workload)
        cluster.device.peak(workload.precision.compute)
        assumed, modules = assumptions or ServingAssumptions.of(workload.framework), fold(workload.graph)
        timer = ModuleTimer.build(workload, cluster, modules, assumed)
        one = np.ones(1, dtype=np.int64)
        sizes = timer.sizes(PassKeys(tp=one, ep=one, etp=one, prompts=0 * one, chunk=0 * one, decodes=one, queries=one))
        return cls(
            workload=workload,
            cluster=cluster,
            modules=modules,
            timer=timer,
            assumptions=assumed,
            drafter=Drafter.of(timer),
            module_bytes=tuple((sizes.weight_bytes + sizes.tied_bytes)[0].tolist()),
        )

    @property
    def capacity_bytes(self) -> float:
        """Memory of a device that may be filled."""
        return self.assumptions.memory_utilisation * self.cluster.device.capacity_bytes

    @property
    def prefill_memory_ratio(self) -> float:
        """Memory of a device that only reads prompts over that of the others."""
        cluster = self.prefill_cluster or self.cluster
        return cluster.device.capacity_bytes / self.cluster.device.capacity_bytes

    @property
    def token_elements(self) -> float:
        """Elements of one new token that go on from stage to stage."""
        positions = next(layer.input_shapes[0][1] for layer in self.workload.graph.layers if layer.block)
        return max(self.modules.cut_elements) / positions

    def layout(self, pp: int) -> Layout:
        """Blocks of every stage, so that stages hold about the same weights: what they read in every decoding pass."""
        return once(
            self._layouts,
            pp,
            lambda: layout_of(self.modules, balanced_blocks(self.modules, self.module_bytes, pp), pp),
        )

    def evaluate(self, batch: ServingBatch, rates_per_replica: FloatArray | None = None) -> ServingCosts:
        """Score legal plans (`costmodel.serving.plan` says which are).

        Parameters
        ----------
        batch : ServingBatch
        rates_per_replica : array (n,) or None
            Requests per second of one replica of each plan, in place of those of the workload.

        Returns
        -------
        ServingCosts
        """
        return ServingCosts(**self.times(batch, rates_per_replica), **self._filled(batch))

    def times(
        self,
        batch: ServingBatch,
        rates_per_replica: FloatArray | None = None,
        percentiles: Collection[str] = PERCENTILES,
    ) -> dict[str, FloatArray]:
        """Times and rates alone, by their names in `ServingCosts`; parameters as of `evaluate`, and the percentiles that are needed.

        Times are inf where a replica gets as many requests as it can serve, or more.

        Raises
        ------
        ServingError
            A rate below 0.
        """
        return _times((self,), batch, rates_per_replica, percentiles)

    def replicas(self, batch: ServingBatch) -> Replicas:
        """Their passes timed, for requests at any rate; no plan of two pools."""
        return Replicas.of(batch, self)

    def running(self, batch: ServingBatch) -> ServingBatch:
        """Plans with the sequences that run at a time: fewer than there are places where fewer requests are in flight."""
        if self.workload.concurrency is None:
            return batch
        most = np.minimum(batch.max_batch, -(-self.workload.concurrency // batch.dp))
        return replace(batch, max_batch=most, prefill_batch=np.minimum(batch.prefill_batch, most))

    def decode_passes(self, batch: ServingBatch) -> FloatArray:
        """Decoding passes of one request of each plan, (n,): as many as its tokens need, which share passes where some are drafted."""
        tokens, drafting = float(self.workload.later_tokens), self.workload.drafting
        if drafting is None:
            return np.full(len(batch), tokens)
        return np.maximum(tokens / drafting.tokens_per_pass(batch.draft_tokens), min(tokens, 1.0))

    def passes_vary(self, batch: ServingBatch) -> FloatArray:
        """Square of the coefficient of variation of the decoding passes of one request: of as many sums as accepted tokens make."""
        drafting = self.workload.drafting
        if drafting is None:
            return np.zeros(len(batch))
        return drafting.variation(batch.draft_tokens) / np.maximum(self.decode_passes(batch), 1.0)

    def per_token(self, batch: ServingBatch) -> FloatArray:
        """Decoding passes per token that they make, (n,)."""
        return self.decode_passes(batch) / max(self.workload.later_tokens, 1)

    def passes(self, batch: ServingBatch, kinds: tuple[PassKeys, ...]) -> list[Pass]:
        """Passes of each kind, of the replicas of every plan."""
        return _passes(self, batch, self.layouts_of(batch), kinds)

    def chunks(self, batch: ServingBatch) -> tuple[IntArray, IntArray]:
        """New tokens of a prompt in a pass, and passes of a prompt."""
        return _chunk(self, batch)

    def memory(self, batch: ServingBatch) -> tuple[dict[str, FloatArray], IntArray]:
        """Items of the fullest stage of a replica by their names in `ServingCosts`, and which stage it is."""
        return _memory(self, batch, self.layouts_of(batch), _sizes(self, batch))

    def memory_bytes(self, batch: ServingBatch) -> FloatArray:
        """Memory of the fullest device alone, (n,)."""
        return np.asarray(self._filled(batch)["memory_bytes"])

    def _filled(self, batch: ServingBatch) -> dict[str, Any]:
        """What fills the fullest device of either pool, the more so for what it has."""
        items, stage = self.memory(batch)
        found: dict[str, Any] = {**items, "stage": stage}
        rows = np.flatnonzero(batch.is_apart)
        if len(rows):
            pool, first = prefill_memory(self, batch.take(rows))
            is_fuller = pool["memory_bytes"] / self.prefill_memory_ratio > found["memory_bytes"][rows]
            del pool["sequence_bytes"]  # sequences are the replicas'
            for name, values in {**pool, "stage": first}.items():
                found[name][rows[is_fuller]] = values[is_fuller]
        return found

    def largest_batch(self, batch: ServingBatch, most: int, capacity_bytes: float) -> IntArray:
        """Most sequences per replica that fit with the other choices of each plan, up to ``most``; 0 where not even one does.

        Memory grows with the batch, so the largest is found by bisection.
        """
        found = self.largest_replica(batch, most, capacity_bytes)
        rows = np.flatnonzero(batch.is_apart)
        if len(rows):
            pool, _ = prefill_memory(self, batch.take(rows))
            found[rows[pool["memory_bytes"] > capacity_bytes * self.prefill_memory_ratio]] = 0
        return found

    def largest_replica(self, batch: ServingBatch, most: int, capacity_bytes: float) -> IntArray:
        """The same for replicas, whatever workers that only read prompts need."""
        low, high = np.zeros(len(batch), dtype=np.int64), np.full(len(batch), most, dtype=np.int64)
        layouts, sizes = self.layouts_of(batch), _sizes(self, batch)
        while np.any(low < high):
            middle = (low + high + 1) // 2
            places = np.maximum(middle, 1)
            prompts = np.where(batch.is_apart, batch.prefill_batch, np.minimum(batch.prefill_batch, places))
            tried = replace(batch, max_batch=places, prefill_batch=prompts)
            fits = _memory(self, tried, layouts, sizes)[0]["memory_bytes"] <= capacity_bytes
            low, high = np.where(fits, middle, low), np.where(fits, high, middle - 1)
        return low

    def built_for(self, workload: ServingWorkload, cluster: Cluster) -> ServingModel:
        """The same network for other requests on other devices; what is folded of it is kept."""
        timer = replace(
            self.timer,
            workload=workload,
            groups=GroupTimes(cluster=cluster, in_engines=True),
            device=replace(cluster.device, launch_overhead_s=self.assumptions.kernel_overhead_s),
        )
        drafter = Drafter.of(timer)
        return replace(self, workload=workload, cluster=cluster, timer=timer, drafter=drafter, prefill_cluster=None)

    def changed(self, values: Mapping[str, float]) -> ServingModel:
        """The same with other constants, as `serving_model_with`; remembered with what it finds out about groups of devices."""
        if not values:
            return self
        return once(self._changed, frozenset(values.items()), lambda: serving_model_with(self, values))

    def layouts_of(self, batch: ServingBatch) -> LayoutArrays:
        """Blocks of every stage of the replicas of every plan."""
        first, inverse = np.unique(batch.pp, return_inverse=True)
        return stack_layouts([self.layout(int(pp)) for pp in first]).take(inverse.reshape(-1))


# -- passes -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass(StructOfArrays):
    """One kind of pass of every plan, arrays (n,): through all stages by part, and on the slowest stage."""

    compute_s: FloatArray
    tp_s: FloatArray
    ep_s: FloatArray
    pp_s: FloatArray
    host_s: FloatArray
    slowest_s: FloatArray
    expert_s: FloatArray  # part of compute_s: experts that replicas share

    @property
    def through_s(self) -> FloatArray:
        """Through all stages."""
        return np.asarray(sum(getattr(self, name) for name in _PARTS_OF_PASS))


_PARTS_OF_PASS = ("compute_s", "tp_s", "ep_s", "pp_s", "host_s")


def _chunk(model: ServingModel, batch: ServingBatch) -> tuple[IntArray, IntArray]:
    """New tokens of a prompt in a pass, and passes of a prompt: chunks are of equal length."""
    prompt = model.workload.new_tokens
    wanted = np.where(batch.prefill_chunk > 0, np.minimum(batch.prefill_chunk, prompt), prompt)
    pieces = -(-prompt // wanted)
    return -(-prompt // pieces), pieces


def _keys(batch: ServingBatch, prompts: IntArray, chunk: IntArray, decodes: IntArray) -> PassKeys:
    return PassKeys(
        tp=batch.tp,
        ep=batch.ep,
        etp=batch.etp,
        prompts=prompts,
        chunk=chunk,
        decodes=decodes,
        queries=batch.draft_tokens + 1,
    )


def _passes(model: ServingModel, batch: ServingBatch, layouts: LayoutArrays, kinds: tuple[PassKeys, ...]) -> list[Pass]:
    """Time several kinds of passes of every plan; one table has the rows of all, since most of its cost does not depend on their number."""
    together = PassKeys.joined(kinds)
    first, inverse = combined(*(getattr(together, item.name) for item in fields(PassKeys)))
    unique = together.take(first)
    table = model.timer.passes(unique)
    if model.drafter is not None:
        table = model.drafter.added_to(table, unique)
    counts = np.bincount(model.modules.kind_of, minlength=len(model.modules.kinds)).astype(np.float64)
    through = [part @ counts for part in (table.compute_s, table.tp_s, table.ep_s, table.expert_s)]
    inside = table.total_s
    found = []
    for keys, rows in zip(kinds, inverse.reshape(len(kinds), len(batch)), strict=True):
        transfer = _transfer_s(model, batch, keys)
        stages = np.where(layouts.rank_first >= 0, weigh(layouts.rank_modules, inside[rows]), 0.0)
        compute, tp, ep, expert = (part[rows] for part in through)
        pp = (batch.pp - 1) * transfer
        host = np.full(len(batch), model.assumptions.pass_overhead_s)
        slowest = np.max(stages, axis=1) + transfer + host
        found.append(
            Pass(compute_s=compute, tp_s=tp, ep_s=ep, pp_s=pp, host_s=host, slowest_s=slowest, expert_s=expert)
        )
    return found


def _transfer_s(model: ServingModel, batch: ServingBatch, keys: PassKeys) -> FloatArray:
    """Time to hand a pass on to the next stage; every tensor-parallel rank sends to its peer."""
    message = keys.rows * model.token_elements * model.workload.precision.activation_bytes
    pair = np.where(batch.pp > 1, 2, 1)
    return model.timer.exchange_s("point_to_point", pair, batch.tp * batch.sharing, message)


def _is_mixed(model: ServingModel, batch: ServingBatch) -> BoolArray:
    """Whether chunks of prompts travel with the tokens of the sequences being decoded; whole prompts travel alone."""
    is_chunked = (batch.prefill_chunk > 0) & ~batch.is_apart
    return np.asarray(is_chunked & (batch.max_batch > 1) & (model.workload.later_tokens > 0))


def _reading(model: ServingModel, batch: ServingBatch) -> Reading:
    """How prompts come and are read."""
    _, pieces = _chunk(model, batch)
    mixed = _is_mixed(model, batch)
    return Reading(
        places=batch.max_batch,
        most=batch.prefill_batch,
        pieces=pieces,
        rounds=batch.groups * (model.decode_passes(batch) + np.where(mixed, pieces, 0)),
        is_beside=mixed,
        load=model.workload.load,
        ahead=model.assumptions.passes_ahead,
    )


def passes_of(model: ServingModel, batch: ServingBatch) -> tuple[PassKeys, PassKeys]:
    """What a decoding pass and a pass that reads prompts are made of."""
    zero = np.zeros(len(batch), dtype=np.int64)
    chunk, _ = _chunk(model, batch)
    beside = np.where(_is_mixed(model, batch), batch.group_batch, 0)
    together = _reading(model, batch).together
    return _keys(batch, zero, zero, batch.group_batch), _keys(batch, together, chunk, beside)


def _full_times(
    models: Sequence[ServingModel], batch: ServingBatch, percentiles: Collection[str]
) -> dict[str, FloatArray]:
    model, layouts = models[0], models[0].layouts_of(batch)
    flight, places = model.workload.concurrency or 0, batch.repeated(len(models)).max_batch
    batch = model.running(batch)
    kinds = passes_of(model, batch)
    passes = [_passes(each, batch, layouts, kinds) for each in models]
    decode, prefill = (Pass.joined(parts) for parts in zip(*passes, strict=True))
    batch = batch.repeated(len(models))
    work, reading = model.workload, _reading(model, batch)
    pieces, tokens = reading.pieces, work.later_tokens
    queue, own = queue_s(reading, decode.slowest_s, prefill.slowest_s)
    last = {
        f"prefill_{name}": own * getattr(prefill, name) + (1.0 - own) * getattr(decode, name) for name in _PARTS_OF_PASS
    }
    earlier = (pieces - 1) * prefill.slowest_s
    ttft = queue + sum(last.values()) + earlier
    cycle, surplus = _cycle_s(model, batch, decode, prefill, ttft, reading, waits=reading.waits)
    # The same without waits for a pass, as where more requests come than are served: the next is there when a place becomes free.
    least, less = _cycle_s(model, batch, decode, prefill, ttft - queue, reading, waits=0)
    # A server that cannot read prompts as fast as it decodes makes them wait in front of it.
    queue, ttft = queue + surplus, ttft + surplus
    if flight:
        waits = flight > batch.dp * places
        cycle, ttft = np.where(waits, least, cycle), np.where(waits, ttft - queue + less, ttft)
        queue = np.where(waits, less, queue)
    # Little's law: those in flight go round in the time in which as many are served.
    place = np.maximum(flight / (batch.dp * places) - 1.0, 0.0) * cycle * (work.load != "backlog")
    tpot = (cycle - ttft) / tokens if tokens else np.zeros(len(batch))
    rate = np.minimum(batch.dp * batch.max_batch, flight or np.inf) / cycle
    reads, every = _passes_of_cycle(batch, reading, reading.waits)
    kernels_s = (reads * prefill.compute_s + (every - reads) * decode.compute_s) / batch.max_batch
    pause = np.where(reading.is_beside, prefill.through_s, decode.through_s + (batch.max_batch > 1) * prefill.slowest_s)
    return {
        **_figures(model, place + ttft, tpot, pause, rate),
        "most_requests_per_s": batch.dp * batch.max_batch / least,
        "occupied_places": 1.0 * batch.max_batch,
        **full_percentiles(
            reading,
            decode.slowest_s,
            prefill.slowest_s,
            FullTimes(
                queue_s=queue,
                ttft_s=ttft,
                tpot_s=tpot,
                later_tokens=tokens,
                prompt_variation=work.prompt_variation,
                output_variation=work.output_variation,
                passes_vary=model.passes_vary(batch),
                place_s=place,
                ahead=np.maximum(flight / batch.dp - places, 0.0),
            ),
            percentiles,
        ),
        **_parts(model, batch, decode, tpot),
        **_of_kernels(model, batch, kernels_s),
        "queue_s": place + queue,
        **last,
        "earlier_chunks_s": earlier,
    }


def _figures(
    model: ServingModel, ttft_s: FloatArray, tpot_s: FloatArray, pause_s: FloatArray, rate_per_s: FloatArray
) -> dict[str, FloatArray]:
    """Times that users see, and rates."""
    work, decodes = model.workload, model.workload.later_tokens > 0
    return {
        "ttft_s": ttft_s,
        "tpot_s": tpot_s,
        "request_s": ttft_s + work.later_tokens * tpot_s if decodes else ttft_s,
        "pause_s": np.maximum(pause_s, tpot_s)
        if decodes
        else np.zeros(len(ttft_s)),  # several prompts may come between two passes
        "requests_per_s": rate_per_s,
        "output_tokens_per_s": rate_per_s * work.output_tokens,
        "total_tokens_per_s": rate_per_s * work.most_context,
    }


def _of_kernels(model: ServingModel, batch: ServingBatch, request_s: FloatArray) -> dict[str, FloatArray]:
    """Time of devices in kernels per output token, from that of all stages for a request; tensor-parallel ranks work at once."""
    return {
        "kernel_gpu_s": batch.tp * request_s / model.workload.output_tokens,
        "prefill_kernel_gpu_s": 0.0 * request_s,
    }


def _parts(model: ServingModel, batch: ServingBatch, decode: Pass, tpot_s: FloatArray) -> dict[str, FloatArray]:
    """Parts of the time per token: of a pass over the tokens that it makes."""
    decodes, share = model.workload.later_tokens > 0, model.per_token(batch)
    parts = {f"decode_{name}": getattr(decode, name) * share for name in _PARTS_OF_PASS}
    waiting = np.maximum(tpot_s - sum(parts.values()), 0.0)
    return {
        "decode_pass_s": decode.through_s * decodes,
        **parts,
        "transfer_s": np.zeros(len(tpot_s)),
        "waiting_s": waiting,
    }


# -- at a rate ------------------------------------------------------------------------------------------------------------


def _curves(passes: list[Pass], sizes: FloatArray, row: IntArray) -> dict[str, Curve]:
    """The fields of passes, and the whole of them, at some numbers of decoded sequences."""
    names = (*(item.name for item in fields(Pass)), "through_s")
    return {
        name: Curve(sizes=sizes, values=np.stack([getattr(item, name) for item in passes]), row=row) for name in names
    }


def _at(curves: Mapping[str, Curve], size: FloatArray) -> Pass:
    return Pass(**{item.name: curves[item.name].at(size) for item in fields(Pass)})


def _between(first: Pass, second: Pass, share: FloatArray) -> Pass:
    pairs = {item.name: (getattr(first, item.name), getattr(second, item.name)) for item in fields(Pass)}
    return Pass(**{name: one + share * (other - one) for name, (one, other) in pairs.items()})


def _powers(most: int, base: float) -> FloatArray:
    """1, and whole numbers that grow by a factor up to the first that is at least ``most``."""
    count = math.ceil(math.log(max(most, 1)) / math.log(base) - 1e-9) + 1
    return np.unique(np.ceil(base ** np.arange(count) - 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """Replicas of plans with their passes timed, whatever the rate at which requests come and however many replicas share it.

    Attributes
    ----------
    model : ServingModel
    batch : ServingBatch
    server : Server
    decode, one, several : mapping of str to Curve
        Passes without prompts, with one, and with as many as a pass reads at most.
    most_per_s : array (n,)
        Requests per second that one of them can serve.
    """

    model: ServingModel
    batch: ServingBatch
    server: Server
    decode: Mapping[str, Curve]
    one: Mapping[str, Curve]
    several: Mapping[str, Curve]
    most_per_s: FloatArray

    @classmethod
    def of(cls, batch: ServingBatch, *models: ServingModel) -> Replicas:
        """Replicas of all plans under one model after the other; these differ in their constants alone."""
        first = models[0]
        work, mixed, sharing = first.workload, _is_mixed(first, batch), batch.sharing
        found = [_curves_of(model, batch) for model in models]
        decode, one, several = (
            {name: Curve.joined([curves[kind][name] for curves in found]) for name in found[0][kind]}
            for kind in range(3)
        )
        held_up = Curve.joined([_held_up(*curves[:2], batch) for curves in found]) if np.any(sharing > 1) else None
        batch = batch.repeated(len(models))
        server = Server(
            places=batch.max_batch,
            most=batch.prefill_batch,
            pieces=_chunk(first, batch)[1],
            groups=batch.groups,
            is_beside=np.tile(mixed, len(models)),
            decode_passes=first.decode_passes(batch),
            later_tokens=work.later_tokens,
            passes_vary=first.passes_vary(batch),
            passes=Passes(
                decode=decode["slowest_s"],
                decode_through=decode["through_s"],
                one=one["slowest_s"],
                one_through=one["through_s"],
                most=several["slowest_s"],
                most_through=several["through_s"],
                held_up=held_up,
            ),
            sharing=batch.sharing,
            apart=1.0 - first.assumptions.prompts_in_step,
            ahead=first.assumptions.passes_ahead,
        )
        alone = Stream(rate_per_s=np.zeros(len(batch)), prompt_variation=work.prompt_variation)
        return cls(
            model=first,
            batch=batch,
            server=server,
            decode=decode,
            one=one,
            several=several,
            most_per_s=most_per_s(server, alone),
        )

    def take(self, rows: IntArray) -> Replicas:
        """Some of them."""

        def taken(curves: Mapping[str, Curve]) -> dict[str, Curve]:
            return {name: replace(curve, row=curve.row[rows]) for name, curve in curves.items()}

        return replace(
            self,
            batch=self.batch.take(rows),
            server=self.server.take(rows),
            decode=taken(self.decode),
            one=taken(self.one),
            several=taken(self.several),
            most_per_s=self.most_per_s[rows],
        )

    def times(
        self, arrivals: Arrivals, dp: IntArray | None = None, percentiles: Collection[str] = PERCENTILES
    ) -> dict[str, FloatArray]:
        """Times and rates where requests come to so many replicas, those of the plans unless stated, by their names in `ServingCosts`."""
        dp = self.batch.dp if dp is None else dp
        return self.at(self.stream(*arrivals.of_replicas(dp)), dp, percentiles)

    def stream(self, rate_per_s: FloatArray, variation: FloatArray) -> Stream:
        """So many requests per second for each replica, the times between which vary so much."""
        work = self.model.workload
        return Stream(
            rate_per_s=np.maximum(rate_per_s, 1e-9),
            variation=variation,
            prompt_variation=work.prompt_variation,
            output_variation=work.output_variation,
        )

    def at(self, stream: Stream, dp: IntArray, percentiles: Collection[str] = PERCENTILES) -> dict[str, FloatArray]:
        """The same where these requests come to each replica."""
        batch, mixed = self.batch, self.server.is_beside
        result = open_loop(self.server, stream, self.most_per_s, percentiles)
        size = result.decoded / np.clip(result.decoded, 1.0, batch.groups)
        share = (result.own - 1.0) / np.maximum(batch.prefill_batch - 1.0, 1.0)
        own, plain = _between(_at(self.one, size), _at(self.several, size), share), _at(self.decode, size)
        earlier, queue = (self.server.pieces - 1) * own.slowest_s, result.place_s + result.queue_s
        beside_s = np.where(mixed, plain.compute_s, 0.0)
        kernels_s = self.server.decode_passes * plain.compute_s / np.maximum(size, 1.0)
        kernels_s = kernels_s + self.server.pieces * (own.compute_s - beside_s) / result.own
        pause = np.where(mixed, own.through_s, plain.through_s + np.where(batch.max_batch > 1, own.slowest_s, 0.0))
        served = np.asarray(dp * np.minimum(stream.rate_per_s, result.most_per_s), dtype=np.float64)
        return {
            **_figures(self.model, queue + own.through_s + earlier, result.token_s, pause, served),
            "most_requests_per_s": dp * result.most_per_s,
            "occupied_places": result.occupied,
            **result.percentiles,
            **_parts(self.model, batch, plain, result.token_s),
            # No device is busy for more than all of the time.
            **_of_kernels(self.model, batch, np.minimum(kernels_s, dp * batch.pp / served)),
            "queue_s": queue,
            **{f"prefill_{name}": getattr(own, name) for name in _PARTS_OF_PASS},
            "earlier_chunks_s": earlier,
        }


def _curves_of(model: ServingModel, batch: ServingBatch) -> tuple[dict[str, Curve], dict[str, Curve], dict[str, Curve]]:
    """Passes without prompts, with one, and with as many as are read: at some numbers of sequences, once for plans of equal degrees."""
    layouts, (chunk, _), mixed = model.layouts_of(batch), _chunk(model, batch), _is_mixed(model, batch)
    most = int(batch.group_batch.max(initial=1))
    sizes, few = _powers(most, math.sqrt(2.0)), np.concatenate([[0.0], _powers(most, 4.0)])
    first, row = combined(batch.tp, batch.pp, batch.ep, batch.etp, batch.draft_tokens)
    shapes, zero = batch.take(first), np.zeros(len(first), dtype=np.int64)
    kinds = tuple(_keys(shapes, zero, zero, zero + int(size)) for size in sizes)
    decode = _curves(_passes(model, shapes, layouts.take(first), kinds), sizes, row)
    first, row = combined(row, batch.prefill_batch, chunk, 1 * mixed)
    shapes, zero = batch.take(first), np.zeros(len(first), dtype=np.int64)
    kinds = tuple(
        _keys(shapes, prompts, chunk[first], np.where(mixed[first], int(size), 0))
        for prompts in (zero + 1, shapes.prefill_batch)
        for size in few
    )
    found = _passes(model, shapes, layouts.take(first), kinds)
    one, several = (_curves(part, few, row) for part in (found[: len(few)], found[len(few) :]))
    return decode, one, several


def _held_up(decode: Mapping[str, Curve], one: Mapping[str, Curve], batch: ServingBatch) -> Curve:
    """What a pass with a prompt takes longer than one without, but for experts, of which stages hold about the same."""
    curve = one["slowest_s"]
    first = np.unique(curve.row, return_index=True)[1]

    def longer(name: str) -> FloatArray:
        plain = replace(decode[name], row=decode[name].row[first])
        return one[name].values - np.stack([plain.at(np.full(len(first), size)) for size in curve.sizes])

    return replace(curve, values=longer("slowest_s") - longer("expert_s") / batch.pp[first])


def _cycle_s(
    model: ServingModel,
    batch: ServingBatch,
    decode: Pass,
    prefill: Pass,
    ttft_s: FloatArray,
    reading: Reading,
    *,
    waits: FloatArray | int,
) -> tuple[FloatArray, FloatArray]:
    """Time in which every place of a replica serves one request, and what of it a prompt waits where all passes read.

    The time is as the slowest stage is busy, or as one request needs if that is longer. Whole prompts: ``output - 1`` rounds of all groups
    and ``max_batch / together`` passes of prompts. Chunks: ``max_batch pieces / together`` passes carry chunks alongside the decoding
    sequences, of at least ``groups (output - 1 + pieces) + waits`` passes; a request waits in so many. It needs its prompt, and per token
    one pass through all stages or one of every group through the slowest. Where every pass reads, a token takes no longer than such a pass.
    """
    rounds, groups, mixed = model.decode_passes(batch), batch.groups, reading.is_beside
    reads, passes = _passes_of_cycle(batch, reading, waits)
    busy = reads * prefill.slowest_s + (passes - reads) * decode.slowest_s
    busy = busy + _waiting_s(batch, decode, prefill, reads, passes) * (1.0 - model.assumptions.prompts_in_step)
    # While a sequence is decoded, its passes carry the chunks of the others.
    own = reading.pieces / reading.together
    share = np.where(mixed, np.clip((reads - own) / np.maximum(passes, 1.0), 0.0, 1.0), 0.0)
    with_prompts = np.maximum(prefill.through_s, groups * prefill.slowest_s)
    each = (1.0 - share) * np.maximum(decode.through_s, groups * decode.slowest_s) + share * with_prompts
    cycle = np.asarray(np.maximum(busy, ttft_s + rounds * each))
    always_reads = (mixed & (reads >= reading.rounds + waits)) | (rounds == 0)
    always_reads &= model.workload.load != "backlog"  # whose wait is not counted
    return cycle, np.where(always_reads, np.maximum(cycle - rounds * with_prompts - ttft_s, 0.0), 0.0)


def _passes_of_cycle(batch: ServingBatch, reading: Reading, waits: FloatArray | int) -> tuple[FloatArray, FloatArray]:
    """Passes of a cycle that read prompts, and all."""
    reads = np.asarray(batch.max_batch * reading.pieces / reading.together)
    return reads, np.where(reading.is_beside, np.maximum(reading.rounds + waits, reads), reading.rounds + reads)


def _waiting_s(batch: ServingBatch, decode: Pass, prefill: Pass, reading: FloatArray, passes: FloatArray) -> FloatArray:
    """Time of a cycle in which replicas wait for others that read prompts, which share experts and so run pass by pass with them.

    Each of R replicas reads when a place of its own is free (`costmodel.serving.queue.waits_in_step`). Experts do not wait: they have the
    prompts of p R replicas on average, and take in all what they take where all read together. Without sharing nothing is added.
    """
    # Stages hold about the same experts.
    longer = prefill.slowest_s - decode.slowest_s - (prefill.expert_s - decode.expert_s) / batch.pp
    return np.asarray(passes * waits_in_step(reading / passes, longer, batch.sharing))


# -- memory -------------------------------------------------------------------------------------------------------------


def _sizes(model: ServingModel, batch: ServingBatch) -> ModuleSizes:
    first, inverse = combined(batch.tp, batch.ep, batch.etp, np.minimum(batch.draft_tokens, 1))
    shapes, zero = batch.take(first), np.zeros(len(first), dtype=np.int64)
    keys = _keys(shapes, zero, zero, zero)
    sizes = model.timer.sizes(keys)
    if model.drafter is not None:
        sizes = model.drafter.kept_with(sizes, keys, np.minimum(shapes.draft_tokens, 1))
    return sizes.take(inverse)


def _memory(
    model: ServingModel, batch: ServingBatch, layouts: LayoutArrays, sizes: ModuleSizes
) -> tuple[dict[str, FloatArray], IntArray]:
    """Items of the fullest stage, and which it is."""
    modules = layouts.rank_modules
    chunk, _ = _chunk(model, batch)
    decoded = batch.group_batch * (batch.draft_tokens + 1) * (model.workload.later_tokens > 0)
    beside = np.where(_is_mixed(model, batch), decoded, 0)
    # Replicas whose prompts others read have none in their passes.
    prompts = np.where(batch.is_apart, 0, batch.prefill_batch)
    rows = np.maximum(prompts * chunk + beside, decoded)
    answers = np.maximum(prompts + beside, decoded)
    tied = np.where(batch.pp[:, None] > 1, sizes.tied_bytes, 0.0)
    sequence = weigh(modules, sizes.cache_bytes)
    between = np.where(batch.pp > 1, 2.0 * rows * model.token_elements * model.workload.precision.activation_bytes, 0.0)
    buffers = between + rows * np.max(sizes.dispatch_bytes, axis=1)
    one = np.ones_like(sequence)
    parts = {
        "weight_bytes": weigh(modules, sizes.weight_bytes + tied),
        "kv_bytes": batch.max_batch[:, None] * sequence,
        "working_bytes": (rows * np.max(sizes.row_bytes, axis=1))[:, None] * one,
        "logits_bytes": answers[:, None] * weigh(modules, sizes.logit_bytes),
        "buffer_bytes": buffers[:, None] * one,
        "context_bytes": float(model.workload.context_bytes) * one,
    }
    total = np.where(layouts.rank_first >= 0, sum(parts[name] for name in SERVING_MEMORY_PARTS), -1.0)
    fullest = np.argmax(total, axis=1)
    index = np.arange(len(batch))
    items = {name: value[index, fullest] for name, value in (("memory_bytes", total), *parts.items())}
    return {**items, "sequence_bytes": sequence[index, fullest]}, layouts.rank_first[index, fullest]


# Constants that a pass depends on: those of kernels, of links, and of the host. `launch_overhead` is here the least time of a kernel in a
# graph that is replayed, `host_launch` what the host takes for a pass.
SERVING_CONSTANTS: tuple[str, ...] = (
    "matmul_rate",
    "matmul_size",
    "attention_rate",
    "sustained_rate",
    "elementwise_rate",
    "memory_rate",
    "launch_overhead",
    "host_launch",
    "intra_node_bandwidth",
    "inter_node_bandwidth",
    "link_latency",
)


def serving_model_with(model: ServingModel, values: Mapping[str, float]) -> ServingModel:
    """A serving model with factors applied; layouts and memory stay as they are.

    Parameters
    ----------
    model : ServingModel
    values : mapping of str to float
        Names of `SERVING_CONSTANTS` -> factor; those that are not named stay 1.
    """
    cluster = cluster_with(model.cluster, values)
    overhead_s = model.assumptions.kernel_overhead_s * values.get("launch_overhead", 1.0)
    host_s = model.assumptions.pass_overhead_s * values.get("host_launch", 1.0)
    exchange_s = model.assumptions.exchange_overhead_s * values.get("launch_overhead", 1.0)
    assumptions = replace(
        model.assumptions, kernel_overhead_s=overhead_s, exchange_overhead_s=exchange_s, pass_overhead_s=host_s
    )
    timer = replace(
        model.timer,
        groups=model.timer.groups.changed(cluster, model.timer.groups.assumptions),
        assumptions=assumptions,
        device=replace(cluster.device, launch_overhead_s=overhead_s),
    )
    apart = model.prefill_cluster and cluster_with(model.prefill_cluster, values)
    return replace(
        model,
        cluster=cluster,
        prefill_cluster=apart,
        timer=timer,
        drafter=Drafter.of(timer),
        assumptions=assumptions,
    )


def _times(
    models: Sequence[ServingModel],
    batch: ServingBatch,
    rates_per_replica: FloatArray | None,
    percentiles: Collection[str],
) -> dict[str, FloatArray]:
    """Times of all plans under one model after the other, which differ in their constants alone; as of `ServingModel.times`."""
    model, every, arrivals = models[0], batch.repeated(len(models)), models[0].workload.arrivals

    def of_one(rows: IntArray) -> ServingBatch:
        return batch.take(rows[: len(rows) // len(models)])

    if rates_per_replica is None and arrivals is None:
        return of_both_kinds(
            every,
            lambda rows: _full_times(models, of_one(rows), percentiles),
            lambda rows: pool_times(models, of_one(rows), percentiles=percentiles),
        )
    arrivals = arrivals or Arrivals(1.0)
    of_workload, variation = arrivals.of_replicas(every.dp)
    rate = of_workload if rates_per_replica is None else np.asarray(rates_per_replica, dtype=np.float64)
    if not np.all(rate >= 0):
        raise ServingError("a rate of requests must be 0 or more")
    each = Stream(
        rate_per_s=np.maximum(rate, 1e-9),
        variation=variation,
        prompt_variation=model.workload.prompt_variation,
        output_variation=model.workload.output_variation,
    )
    whole = replace(each, rate_per_s=each.rate_per_s * every.dp, variation=arrivals.variation)

    def shared(rows: IntArray) -> dict[str, FloatArray]:
        return Replicas.of(of_one(rows), *models).at(each.take(rows), every.dp[rows], percentiles)

    def apart(rows: IntArray) -> dict[str, FloatArray]:
        return pool_times(models, of_one(rows), (whole.take(rows), each.take(rows)), percentiles)

    return of_both_kinds(every, shared, apart)


def times_with(
    model: ServingModel,
    batch: ServingBatch,
    values: Sequence[Mapping[str, float]],
    percentiles: Collection[str] = (),
) -> list[dict[str, FloatArray]]:
    """Times and rates with one set of factors after the other, at least one, as of `ServingModel.times`."""
    times = _times([model.changed(each) for each in values], batch, None, percentiles)
    parts = {name: np.split(column, len(values)) for name, column in times.items()}
    return [{name: columns[n] for name, columns in parts.items()} for n in range(len(values))]


def serving_layer_rows(model: ServingModel, plan: ServingPlan) -> list[dict[str, object]]:
    """Every layer of every kind of module on one rank, in network order; equal modules once.

    Times are of a decoding pass of one group of sequences and of a pass that reads prompts; the cache is that of one sequence.
    """
    batch = ServingBatch.from_plans([plan])
    decode, prefill = passes_of(model, batch)
    reader = model
    if plan.prefill_dp:
        reader, pool = reader_of(model), batch.prefill_pool(batch.prefill_batch)
        _, prefill = passes_of(reader, pool)
    modules, timer = model.modules, model.timer
    rows: list[dict[str, object]] = []
    for number, kind in enumerate(modules.kinds):
        for position, role in enumerate(timer.roles[number]):
            layer = model.workload.graph.layers[kind.layers[position]]
            is_head = number == len(modules.kinds) - 1
            passes = ((timer, decode), (reader.timer, prefill))
            times = [one.layer(kind, position, role, keys, is_head=is_head) for one, keys in passes]
            kernels, exchanges = zip(
                *((float(t["compute_s"][0]), float(np.sum(t["tp_s"] + t["ep_s"]))) for t in times), strict=True
            )
            sizes = timer.layer_sizes(kind, position, role, decode)
            rows.append(
                {
                    "unit": kind.name,
                    "count": modules.kind_of.count(number),
                    "name": layer.name,
                    "kind": layer.kind,
                    "decode_s": kernels[0],
                    "decode_exchange_s": exchanges[0],
                    "prefill_s": kernels[1],
                    "prefill_exchange_s": exchanges[1],
                    "weight_bytes": float(sizes["weight_bytes"][0]),
                    "cache_bytes": float(sizes["cache_bytes"][0]),
                }
            )
    return rows
