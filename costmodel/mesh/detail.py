"""One mesh plan in detail: its layers, pipeline ranks, links and model FLOPs as rows, and its step as a timeline.

The rows come from the same tables as the plan's cost: layer times add up to the compute and the tensor-parallel communication of a
micro-batch, rank memory to the memory of the plan.

Model FLOPs
-----------
What a step must compute, whatever the plan; the numerator of the model FLOPs utilisation (MFU).

Convention (Chowdhery et al., PaLM, arXiv:2204.02311, appendix B): matrix products only, a multiply-add counted as
two, forward plus both gradients, recomputation not counted; attention counts the pairs of positions that its mask
leaves. A step's MFU is that over step time, devices and the dense peak of the number format.

Timeline
--------
A track per pipeline rank. The pipeline is simulated event by event (`costmodel.timeline`) with the times of chunks that the cost model
uses, not taken from its closed forms: where the spans end is a check of the step time. Transfers of activations to the host are not
placed among the passes: the cost model adds the exposed time of all micro-batches, and so does the last span.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.hardware.cluster import LinkRow, link_rows
from costmodel.layerwise.plan import shard_of, split_table
from costmodel.mesh.communication import CopyTimes, Division, mesh_strides
from costmodel.mesh.memory import add_saved_inputs, add_saved_layer, saved_facts
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import MODULE_COLUMNS
from costmodel.mesh.passes import Pipelines
from costmodel.mesh.plan import MEMORY_PARTS, MeshBatch, MeshPlan
from costmodel.mesh.stages import Layout, stack_layouts
from costmodel.mesh.step import StepEnd, chunk_gathering, offload_waits_s
from costmodel.mesh.tables import add_layer, module_roles
from costmodel.mesh.tensor_parallel import check_splits
from costmodel.network.layers import ATTENTION, Layer
from costmodel.network.layers.base import PassWork
from costmodel.schedules import chunks_of_ranks, schedule_of
from costmodel.timeline import STREAMS, Span, TimelineInput, Tracks, TrackSpan, nested, shown, simulate
from costmodel.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One layer of one kind of module, on one rank, for one micro-batch."""

    unit: str  # "embedding", "head", or the first block of its kind
    count: int  # modules of this kind in the network
    name: str
    kind: str
    split: str  # how tensor parallelism splits it
    degree: int = 1  # over so many ranks; those beyond repeat it
    forward_s: float
    backward_s: float
    tp_exchange_s: float  # both passes
    weight_count: int  # of the whole layer
    weights_per_rank: int
    saved_bytes: float  # that it adds to what a micro-batch keeps for the backward pass, nothing recomputed; with what the next block reads
    saved_selective_bytes: float  # the same under selective recomputation


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One pipeline rank; times of one micro-batch. The parts of its memory add up to it, and what is on the host is beside it."""

    rank: int
    blocks: str  # per chunk: "8" or "4+4"
    forward_s: float  # communication inside the layers included
    backward_s: float
    recompute_s: float
    transfer_s: float
    in_flight: float  # micro-batches whose activations it keeps at once, in chunks of equal size
    memory_bytes: float
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float
    working_bytes: float
    logits_bytes: float
    buffer_bytes: float
    slack_bytes: float
    context_bytes: float
    host_bytes: float


def layer_rows(model: MeshModel, plan: MeshPlan) -> list[LayerRow]:
    """Every layer of every kind of module.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan

    Returns
    -------
    list of LayerRow
        In network order; equal modules once.
    """
    keys = model.row_keys(MeshBatch.from_plans([plan]))
    graph = model.workload.graph
    check_splits(graph, model.modules, plan)
    rows = []
    for number, kind in enumerate(model.modules.kinds):
        facts = saved_facts(model.workload, kind)
        for position, role in enumerate(module_roles(graph, kind, keys, plan.block_splits)):
            layer = graph.layers[kind.layers[position]]
            total = {name: np.zeros(1) for name in MODULE_COLUMNS}
            add_layer(total, model.workload, model.groups, kind, position, role, keys)
            if model.workload.training:
                add_saved_layer(total, model.workload, model.assumptions, kind, keys, position, role, facts[position])
                # What a block reads is made by the last layer of the one before; what the head reads is shown where it does.
                if position == (len(kind.layers) - 1 if layer.block else 0):
                    add_saved_inputs(total, model.workload, kind, keys)
            one = {name: float(value[0]) for name, value in total.items()}
            rows.append(
                LayerRow(
                    unit=kind.name,
                    count=model.modules.kind_of.count(number),
                    name=layer.name.removeprefix(f"{layer.block}."),
                    kind=layer.kind,
                    split=role.role,
                    degree=plan.tp if role.is_split and not role.degree else max(role.degree, 1),
                    forward_s=one["forward_s"],
                    backward_s=one["backward_s"],
                    tp_exchange_s=one["tp_forward_s"] + one["tp_backward_s"],
                    weight_count=layer.weight_count + layer.norm_count,
                    weights_per_rank=round(one["dense_count"] + one["expert_count"]),
                    saved_bytes=one["saved_bytes"],
                    saved_selective_bytes=one["saved_selective_bytes"],
                )
            )
    return rows


def stage_rows(model: MeshModel, plan: MeshPlan) -> list[StageRow]:
    """Every pipeline rank.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan

    Returns
    -------
    list of StageRow

    Raises
    ------
    MeshError
        ``stage_blocks`` or ``stage_recompute`` does not fit the network.
    """
    layout = model.layout_of_plan(plan, every_rank=True)
    layouts = stack_layouts([layout])
    batch = MeshBatch.from_plans([plan])
    pipelines = model.pipelines(batch, layouts)
    parts = pipelines.rank_parts()
    division = Division.of(batch)
    pipeline = model.pipeline_memory(batch, layouts)
    memory = pipeline.divided(np.zeros(1, dtype=np.int64), division)
    total = memory.total_bytes[0]
    rows = []
    for place in np.argsort(layout.rank_first).tolist():
        rank = int(layout.rank_first[place])
        own = chunks_of_ranks(plan.schedule, plan.pp, plan.vpp)[rank].tolist()
        rows.append(
            StageRow(
                rank=rank,
                blocks="+".join(str(layout.blocks[c]) for c in own),
                forward_s=float(pipelines.rank_forward_s[0, place]),
                backward_s=float(pipelines.rank_backward_s[0, place]),
                recompute_s=float(parts["recompute_s"][0, place]),
                transfer_s=float(parts["transfer_s"][0, place]),
                in_flight=float(pipeline.alive[0, place]),
                memory_bytes=float(total[place]),
                host_bytes=float(memory.host_bytes[0, place]),
                **{name: float(memory.parts[name][0, place]) for name in MEMORY_PARTS},
            )
        )
    return rows


def mesh_links(model: MeshModel, plan: MeshPlan) -> list[LinkRow]:
    """Every dimension whose ranks exchange something.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan

    Returns
    -------
    list of LinkRow
        The times are those of `MeshCosts`. Shards and their copies share the time of data parallelism, which stands where the group is that
        spans most: the other row has none.
    """
    batch = MeshBatch.from_plans([plan])
    stride = {name: int(value[0]) for name, value in mesh_strides(batch).items()}
    copies, costs = Division.of(batch), model.evaluate_plans([plan])
    place = model.groups.places(batch)
    inner = [
        ("tensor parallel", plan.tp, stride["tp"], float(costs.tp_exposed_s[0])),
        ("context parallel", plan.cp, stride["cp"], float(costs.cp_exposed_s[0])),
        ("expert parallel", plan.ep, stride["ep"], float(costs.ep_exposed_s[0])),
        ("between stages", plan.pp, stride["pp"], float(costs.pp_exposed_s[0])),
    ]
    shared = int(copies.shard[0]), int(copies.shard_stride[0])
    repeated = int(copies.replicate[0]), int(copies.replicate_stride[0])
    waiting = float(costs.dp_exposed_s[0])
    widest = int(np.argmax([size * apart if size > 1 else 0 for size, apart in (shared, repeated)]))
    outer = [
        ("data parallel, shards", *shared, waiting if widest == 0 else 0.0),
        ("data parallel, copies", *repeated, waiting if widest == 1 else 0.0),
    ]
    spans = [(name, model.groups.span_of(n, t, place), t, waits) for name, n, t, waits in (*inner, *outer) if n > 1]
    return link_rows(model.cluster, spans)


FLOP_CONVENTION = (
    "matrix products of forward and backward, a multiply-add counted as 2, causal attention as the half that its mask leaves, "
    "nothing for recomputation"
)


def model_flops_per_step(workload: Workload) -> float:
    """Floating-point operations of the matrix products of a step.

    Parameters
    ----------
    workload : Workload

    Returns
    -------
    float
    """
    total = 0.0
    needs = workload.graph.needs_gradient
    known: dict[object, tuple[float, float, float]] = {}
    for i, layer in enumerate(workload.graph.layers):
        if layer.kind == "input":
            continue
        if layer.signature not in known:
            known[layer.signature] = _of_layer(layer)
        forward, to_input, to_weights = known[layer.signature]
        total += forward
        if workload.training:
            total += to_weights if layer.has_weights or needs[i] else 0.0
            total += to_input if any(needs[u] for u in workload.graph.producers[i]) else 0.0
    return total * workload.global_batch


def _of_layer(layer: Layer) -> tuple[float, float, float]:
    """FLOP per sample of the three passes, by the cheapest-to-count (matrix product) algorithm."""
    shard = shard_of(layer, split_table([1]), 1)
    if layer.kind == "moe":  # what an uneven load costs is time, not work
        layer = replace(layer, params=replace(layer.params, capacity_factor=1.0))
    if layer.kind in ATTENTION:  # written out, it computes what its mask hides as well
        layer = replace(layer, params=replace(layer.params, fused=True))
    work = layer.family.work(layer, shard)
    forward = _products(work.forward)
    if layer.kind in ATTENTION:
        return forward, 2.0 * forward, 0.0  # a fused kernel computes the scores again: not counted
    return forward, _products(work.backward_input), _products(work.backward_weight)


def _products(work: PassWork) -> float:
    for alternative in work:
        if all(kernel.algorithm in ("gemm", "attention", "attention_backward") for kernel in alternative):
            return float(sum(np.sum(kernel.flop) for kernel in alternative if kernel.gemm is not None))
    return float(sum(np.sum(kernel.flop) for kernel in work[0] if kernel.gemm is not None)) if work else 0.0


_NOTHING = np.zeros(1, dtype=np.int64)
_OFFLOAD = "host transfer"
# More events than this make a viewer slow; then blocks, or what is inside them, are left out.
_MOST_EVENTS = 60_000


def mesh_tracks(model: MeshModel, plan: MeshPlan, *, inside: bool = True) -> Tracks:
    """Run one step of a plan.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan
        A legal one.
    inside : bool
        Whether to show the blocks inside the passes and, where these are not too many, what the time of a block is spent on. Inside a block
        the parts follow each other as sums, not as they happen; so does what ZeRO-3's gathering adds to a pass.

    Returns
    -------
    Tracks
        One track per pipeline rank. The ranks of the other dimensions all do the same.
    """
    passes = _Passes.of(model, plan)
    timeline = simulate(passes.case)
    spans = [_shown(span, plan) for span in timeline.spans]
    per_stage = plan.workers // plan.pp
    ending = timeline.step_s
    for name, kind, seconds in passes.common:
        rows = [
            TrackSpan(track=rank, stream="exchange", name=name, kind=kind, start_s=ending, duration_s=seconds)
            for rank in range(plan.pp)
        ]
        spans += rows
        ending += seconds
    if inside:
        spans += _inside(passes, timeline.spans, spans)
    what = "pipeline rank" if plan.pp > 1 else "rank"
    names = tuple(f"{what} {rank} ({per_stage} GPU{'s' if per_stage != 1 else ''})" for rank in range(plan.pp))
    return Tracks.of(names, STREAMS, spans)


def _shown(span: Span, plan: MeshPlan) -> TrackSpan:
    result = shown(span, with_chunk=True, names={"exchange": "gradients and weights over data-parallel ranks"})
    if span.stream == "optimizer" and plan.offload_optimizer:
        return replace(result, name="optimizer on the host, with its transfers", kind=_OFFLOAD)
    return result


# Of one module and pass: what its time is spent on.
_Parts = list[tuple[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """Times of one plan."""

    case: TimelineInput
    common: tuple[tuple[str, str, float], ...]  # what all ranks do at the end: name, kind, seconds
    modules: tuple[tuple[str, ...], ...]  # chunk -> names of its modules
    parts: dict[str, tuple[tuple[_Parts, ...], ...]]  # letter of a pass -> chunk -> module
    gathering: dict[str, tuple[float, ...]]  # letter of a pass -> chunk -> what ZeRO-3 adds to it

    @classmethod
    def of(cls, model: MeshModel, plan: MeshPlan) -> _Passes:
        """Ask the cost model's tables."""
        layout = model.layout_of_plan(plan, every_rank=True)
        batch, layouts = MeshBatch.from_plans([plan]), stack_layouts([layout])
        pipelines, memory = model.pipelines(batch, layouts), model.pipeline_memory(batch, layouts)
        division = Division.of(batch)
        times = CopyTimes.of(model.groups, division, pipelines.place, has_experts=bool(np.any(memory.expert_bytes)))
        counts = layout.run_chunks
        sent = np.repeat(pipelines.transfer_s[0], counts)
        forward = np.repeat(pipelines.chunks.forward_s[0] - pipelines.transfer_s[0], counts)
        backward = np.repeat(pipelines.chunks.backward_s[0] - _returned(pipelines), counts)
        hidden, waiting = np.zeros_like(pipelines.rank_forward_s), np.zeros_like(pipelines.rank_forward_s)
        gathering: dict[str, tuple[float, ...]] = {}
        if plan.zero_stage == 3:
            added = chunk_gathering(model.workload, pipelines, times, _NOTHING)
            more_forward, more_backward = (np.repeat(a[0], counts) for a in (added.run_forward_s, added.run_backward_s))
            forward, backward = forward + more_forward, backward + more_backward
            gathering = {"F": _seconds(more_forward), "B": _seconds(more_backward)}
            hidden, waiting = added.hidden_s, added.waiting_s
        end = StepEnd(model.workload, pipelines, memory, times, _NOTHING, hidden, slice(None))
        place = np.argsort(layout.rank_first)
        exchange, update = _ends(end, plan, place)
        lags = schedule_of(plan.schedule).delays_weights
        case = TimelineInput(
            schedule=plan.schedule,
            pp=plan.pp,
            vpp=plan.vpp,
            num_micro_batches=plan.num_micro_batches,
            forward_s=_seconds(forward),
            backward_s=_seconds(backward),
            weight_s=_seconds(np.repeat(pipelines.chunks.weight_s[0], counts)) if lags else (),
            send_forward_s=_seconds(sent[1:]),
            send_backward_s=_seconds(np.where(backward[:-1] > 0, sent[1:], 0.0)),
            exchange_s=exchange,
            optimizer_s=update,
        )
        summed = float(end.summed_s()[0]) if model.workload.training else 0.0
        common = [("gradients of weights that several ranks hold", "exchange", summed)]
        if plan.offload_activations:
            waits = float(offload_waits_s(model.groups, pipelines, memory, _NOTHING, division, waiting)[0])
            common.append(("waiting for offloaded activations, all micro-batches", _OFFLOAD, waits))
        return cls(
            case=case,
            common=tuple(common),
            modules=_module_names(model, layout),
            parts=_module_parts(model, plan, layout, pipelines),
            gathering=gathering,
        )


def _seconds(values: FloatArray) -> tuple[float, ...]:
    return tuple(max(float(value), 0.0) for value in values)


def _returned(pipelines: Pipelines) -> FloatArray:
    """What `costmodel.mesh.passes.chunk_passes` counts for the gradient that a chunk receives: (R,)."""
    sent = pipelines.transfer_s[0]
    inside = np.where(pipelines.layouts.run_chunks[0] > 1, sent, 0.0)
    following = np.append(sent[1:], 0.0)
    return np.where(pipelines.chunks.backward_s[0] > 0, np.maximum(following, inside), 0.0)


def _ends(end: StepEnd, plan: MeshPlan, place: IntArray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Exposed exchange and update of every pipeline rank."""
    if not end.workload.training:
        return (), ()
    on_device, on_host = end.updates_s()
    update = on_host if plan.offload_optimizer else on_device
    return _seconds(end.waiting_s()[0, place]), _seconds(update[0, place])


def _module_names(model: MeshModel, layout: Layout) -> tuple[tuple[str, ...], ...]:
    kinds, names, start = model.modules.kinds, [], 1
    for chunk, length in enumerate(layout.blocks):
        own = [f"block {number}" for number in range(start, start + length)]
        own = ([kinds[model.modules.kind_of[0]].name] if chunk == 0 else []) + own
        names.append(tuple(own + ([kinds[model.modules.kind_of[-1]].name] if chunk == len(layout.blocks) - 1 else [])))
        start += length
    return tuple(names)


def _module_parts(
    model: MeshModel, plan: MeshPlan, layout: Layout, pipelines: Pipelines
) -> dict[str, tuple[tuple[_Parts, ...], ...]]:
    """What the passes of every module are spent on, without ZeRO-3's gathering, which is of the pass as a whole."""
    row, passes, kind_of = int(pipelines.pass_of[0]), pipelines.passes, model.modules.kind_of

    def of(kind: int, direction: str) -> _Parts:
        compute = getattr(passes, f"compute_{direction}_s")[row, kind]
        if direction == "backward" and schedule_of(plan.schedule).delays_weights:
            compute = compute - passes.weight_s[row, kind]
        named = [("compute", compute)]
        for axis, word in (("tp", "tensor"), ("cp", "context"), ("ep", "expert")):
            named.append((f"{word}-parallel communication", getattr(passes, f"{axis}_{direction}_s")[row, kind]))
        return [(name, float(value)) for name, value in named]

    result: dict[str, list[tuple[_Parts, ...]]] = {"F": [], "B": [], "W": []}
    start = 1
    for chunk, length in enumerate(layout.blocks):
        modules = ([0] if chunk == 0 else []) + list(range(start, start + length))
        modules += [len(kind_of) - 1] if chunk == len(layout.blocks) - 1 else []
        again = _recomputed(plan, chunk, length)
        result["F"].append(tuple(of(kind_of[module], "forward") for module in modules))
        backward = []
        for module in modules:
            parts = of(kind_of[module], "backward")
            if module - start < again:
                parts.insert(0, ("recomputation", float(passes.recompute_s[row, kind_of[module]])))
            backward.append(parts)
        result["B"].append(tuple(backward))
        result["W"].append(tuple([("compute", float(passes.weight_s[row, kind_of[module]]))] for module in modules))
        start += length
    return {letter: tuple(chunks) for letter, chunks in result.items()}


def _recomputed(plan: MeshPlan, chunk: int, length: int) -> int:
    """Blocks of a chunk that are computed again; selective recomputation is of all."""
    if plan.recompute == "none":
        return 0
    if plan.recompute == "selective":
        return length
    return min(plan.stage_recompute[chunk] if plan.stage_recompute else plan.recompute_blocks, length)


def _inside(passes: _Passes, timeline: tuple[Span, ...], shown: list[TrackSpan]) -> list[TrackSpan]:
    """Blocks inside the passes, and what the time of a block is spent on."""
    computing = [(span, outer) for span, outer in zip(timeline, shown, strict=False) if span.stream == "compute"]
    blocks = sum(len(passes.modules[_chunk(span)]) for span, _ in computing)
    if blocks > _MOST_EVENTS:
        return []
    deep = 4 * blocks <= _MOST_EVENTS
    result: list[TrackSpan] = []
    for span, outer in computing:
        letter, chunk = span.name[0], _chunk(span)
        modules = list(zip(passes.modules[chunk], passes.parts[letter][chunk], strict=True))
        if letter != "F":
            modules.reverse()
        filled = [(module, sum(seconds for _, seconds in parts), parts) for module, parts in modules]
        filled = [item for item in filled if item[1] > 0.0]
        children = nested(
            outer, [(name, "block", seconds) for name, seconds, _ in filled] + _gathered(passes, letter, chunk)
        )
        result += children
        if deep:
            for child, (_, _, parts) in zip(children, filled, strict=False):
                result += nested(child, [(name, name, seconds) for name, seconds in parts])
    return result


def _gathered(passes: _Passes, letter: str, chunk: int) -> list[tuple[str, str, float]]:
    """What a pass waits for the weights of its modules, and for their gradients, under ZeRO-3."""
    if letter not in passes.gathering or not passes.gathering[letter][chunk]:
        return []
    words = {"F": "gathering of weights", "B": "gathering of weights and scattering of gradients"}[letter]
    return [(f"{words} (ZeRO-3), what is not hidden", "exchange", passes.gathering[letter][chunk])]


def _chunk(span: Span) -> int:
    return int(span.name.split(" ")[1][1:])
