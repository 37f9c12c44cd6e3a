"""One plan over a device mesh, event by event: the passes of every micro-batch on every pipeline rank, blocks inside them, and the end.

The pipeline is simulated (`costmodel.timeline`) with the times of chunks that the judge uses, not taken from its closed forms: where the
spans end is a check of the step time. Activations that wait for the host are not placed among the passes: the judge adds what is
not hidden of all micro-batches, and so does the last span.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.mesh.cores import Cores, mesh_strides
from costmodel.mesh.layout_arrays import stack_layouts
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.mesh.sharding import CopyTimes, Division
from costmodel.mesh.stages import Layout
from costmodel.mesh.step import chunk_gathering, offload_waits_s
from costmodel.mesh.step_end import StepEnd
from costmodel.timeline import STREAMS, Span, TimelineInput, simulate
from costmodel.tracks import Tracks, TrackSpan, nested

__all__ = ["mesh_tracks"]


_NOTHING = np.zeros(1, dtype=np.int64)
_KINDS = {"F": "forward", "B": "backward", "W": "weight gradient"}
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
    ending = timeline.makespan_s
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
    letter, _, rest = span.name.partition(" ")
    kind = _KINDS.get(letter)
    if span.stream == "optimizer" and plan.offload_optimizer:
        return _track(span, "optimizer on the host, with its transfers", _OFFLOAD)
    if kind is None:  # exchange and optimizer
        name = {"exchange": "gradients and weights over data-parallel ranks"}.get(span.name, span.name)
        return _track(span, name, span.stream)
    chunk, micro_batch = rest.split(" ")
    words = f"{kind} m{micro_batch[1:]} (chunk {chunk[1:]})"
    if span.stream == "compute":
        return _track(span, words, kind)
    return _track(span, f"{'activations' if letter == 'F' else 'gradients'} for {words}", "transfer")


def _track(span: Span, name: str, kind: str) -> TrackSpan:
    return TrackSpan(
        track=span.rank,
        stream=span.stream,
        name=name,
        kind=kind,
        start_s=span.start_s,
        duration_s=span.duration_s,
    )


# Of one unit and pass: what its time is spent on.
_Parts = list[tuple[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passes:
    """Times of one plan."""

    case: TimelineInput
    common: tuple[tuple[str, str, float], ...]  # what all ranks do at the end: name, kind, seconds
    units: tuple[tuple[str, ...], ...]  # chunk -> names of its units
    parts: dict[str, tuple[tuple[_Parts, ...], ...]]  # letter of a pass -> chunk -> unit
    gathering: dict[str, tuple[float, ...]]  # letter of a pass -> chunk -> what ZeRO-3 adds to it

    @classmethod
    def of(cls, model: MeshModel, plan: MeshPlan) -> _Passes:
        """Ask the judge's tables."""
        layout = model.layout_of_plan(plan, every_rank=True)
        batch, layouts = MeshBatch.from_plans([plan]), stack_layouts([layout])
        cores, memory = model.cores(batch, layouts), model.core_memory(batch, layouts)
        division = Division.of(batch, mesh_strides(batch))
        times = CopyTimes.of(model.groups, division.copies, has_experts=bool(np.any(memory.experts)))
        counts = layout.run_chunks
        sent = np.repeat(cores.transfer_s[0], counts)
        forward = np.repeat(cores.chunks.forward_s[0] - cores.transfer_s[0], counts)
        backward = np.repeat(cores.chunks.backward_s[0] - _returned(cores), counts)
        hidden, waiting = np.zeros_like(cores.rank_forward_s), np.zeros_like(cores.rank_forward_s)
        gathering: dict[str, tuple[float, ...]] = {}
        if plan.zero_stage == 3:
            added = chunk_gathering(model.workload, cores, times, _NOTHING)
            more_forward, more_backward = (np.repeat(a[0], counts) for a in (added.run_forward_s, added.run_backward_s))
            forward, backward = forward + more_forward, backward + more_backward
            gathering = {"F": _seconds(more_forward), "B": _seconds(more_backward)}
            hidden, waiting = added.hidden_s, added.waiting_s
        end = StepEnd(model.workload, model.groups, cores, memory, times, _NOTHING, division, hidden, slice(None))
        place = np.argsort(layout.rank_first)
        exchange, update = _ends(end, plan, place)
        lags = plan.schedule == "zero_bubble"
        case = TimelineInput(
            schedule=plan.schedule,
            pp=plan.pp,
            vpp=plan.vpp,
            num_micro_batches=plan.num_micro_batches,
            forward_s=_seconds(forward),
            backward_s=_seconds(backward),
            weight_s=_seconds(np.repeat(cores.chunks.weight_s[0], counts)) if lags else (),
            send_forward_s=_seconds(sent[1:]),
            send_backward_s=_seconds(np.where(backward[:-1] > 0, sent[1:], 0.0)),
            exchange_s=exchange,
            optimizer_s=update,
        )
        summed = float(end.summed_s()[0]) if model.workload.training else 0.0
        common = [("gradients of weights that several ranks hold", "exchange", summed)]
        if plan.offload_activations:
            waits = plan.num_micro_batches * float(offload_waits_s(model.groups, cores, memory, waiting)[0])
            common.append(("waiting for offloaded activations, all micro-batches", _OFFLOAD, waits))
        return cls(
            case=case,
            common=tuple(common),
            units=_unit_names(model, layout),
            parts=_unit_parts(model, plan, layout, cores),
            gathering=gathering,
        )


def _seconds(values: FloatArray) -> tuple[float, ...]:
    return tuple(max(float(value), 0.0) for value in values)


def _returned(cores: Cores) -> FloatArray:
    """What `costmodel.mesh.passes.chunk_passes` counts for the gradient that a chunk receives: (R,)."""
    sent = cores.transfer_s[0]
    inside = np.where(cores.layouts.run_chunks[0] > 1, sent, 0.0)
    following = np.append(sent[1:], 0.0)
    return np.where(cores.chunks.backward_s[0] > 0, np.maximum(following, inside), 0.0)


def _ends(end: StepEnd, plan: MeshPlan, place: IntArray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Exposed exchange and update of every pipeline rank."""
    if not end.workload.training:
        return (), ()
    on_device, on_host = end.updates_s()
    update = on_host if plan.offload_optimizer else on_device
    return _seconds(end.waiting_s()[0, place]), _seconds(update[0, place])


def _unit_names(model: MeshModel, layout: Layout) -> tuple[tuple[str, ...], ...]:
    kinds, names, start = model.units.kinds, [], 1
    for chunk, length in enumerate(layout.blocks):
        own = [f"block {number}" for number in range(start, start + length)]
        own = ([kinds[model.units.kind_of[0]].name] if chunk == 0 else []) + own
        names.append(tuple(own + ([kinds[model.units.kind_of[-1]].name] if chunk == len(layout.blocks) - 1 else [])))
        start += length
    return tuple(names)


def _unit_parts(
    model: MeshModel, plan: MeshPlan, layout: Layout, cores: Cores
) -> dict[str, tuple[tuple[_Parts, ...], ...]]:
    """What the passes of every unit are spent on, without ZeRO-3's gathering, which is of the pass as a whole."""
    row, passes, kind_of = int(cores.pass_of[0]), cores.passes, model.units.kind_of

    def of(kind: int, direction: str) -> _Parts:
        compute = getattr(passes, f"compute_{direction}_s")[row, kind]
        if direction == "backward" and plan.schedule == "zero_bubble":
            compute = compute - passes.weight_s[row, kind]
        named = [("compute", compute)]
        for axis, word in (("tp", "tensor"), ("cp", "context"), ("ep", "expert")):
            named.append((f"{word}-parallel communication", getattr(passes, f"{axis}_{direction}_s")[row, kind]))
        return [(name, float(value)) for name, value in named]

    result: dict[str, list[tuple[_Parts, ...]]] = {"F": [], "B": [], "W": []}
    start = 1
    for chunk, length in enumerate(layout.blocks):
        units = ([0] if chunk == 0 else []) + list(range(start, start + length))
        units += [len(kind_of) - 1] if chunk == len(layout.blocks) - 1 else []
        again = _recomputed(plan, chunk, length)
        result["F"].append(tuple(of(kind_of[unit], "forward") for unit in units))
        backward = []
        for unit in units:
            parts = of(kind_of[unit], "backward")
            if unit - start < again:
                parts.insert(0, ("recomputation", float(passes.recompute_s[row, kind_of[unit]])))
            backward.append(parts)
        result["B"].append(tuple(backward))
        result["W"].append(tuple([("compute", float(passes.weight_s[row, kind_of[unit]]))] for unit in units))
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
    blocks = sum(len(passes.units[_chunk(span)]) for span, _ in computing)
    if blocks > _MOST_EVENTS:
        return []
    deep = 4 * blocks <= _MOST_EVENTS
    result: list[TrackSpan] = []
    for span, outer in computing:
        letter, chunk = span.name[0], _chunk(span)
        units = list(zip(passes.units[chunk], passes.parts[letter][chunk], strict=True))
        if letter != "F":
            units.reverse()
        filled = [(unit, sum(seconds for _, seconds in parts), parts) for unit, parts in units]
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
    """What a pass waits for the weights of its units, and for their gradients, under ZeRO-3."""
    if letter not in passes.gathering or not passes.gathering[letter][chunk]:
        return []
    words = {"F": "gathering of weights", "B": "gathering of weights and scattering of gradients"}[letter]
    return [(f"{words} (ZeRO-3), what is not hidden", "exchange", passes.gathering[letter][chunk])]


def _chunk(span: Span) -> int:
    return int(span.name.split(" ")[1][1:])
