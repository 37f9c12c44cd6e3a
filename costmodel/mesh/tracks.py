"""The step of a mesh plan as a timeline: a track per pipeline rank.

The pipeline is simulated event by event (`costmodel.timeline`) with the times of chunks that the cost model uses, not taken from its closed
forms: where the spans end is a check of the step time. Transfers of activations to the host are not placed among the passes: the cost
model adds the exposed time of all micro-batches, and so does the last span.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.mesh.communication import CopyTimes, Division
from costmodel.mesh.model import MeshModel
from costmodel.mesh.passes import Pipelines
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.mesh.stages import Layout, stack_layouts
from costmodel.mesh.step import StepEnd, chunk_gathering, offload_waits_s
from costmodel.schedules import schedule_of
from costmodel.timeline import STREAMS, Span, TimelineInput, Tracks, TrackSpan, nested, shown, simulate

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
