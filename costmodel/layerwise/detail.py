"""One plan with a split per layer in detail: its timeline, event by event, and how long a step waits for each link.

Without stages all workers do the same, so there is one track. Gradients are exchanged one after the other, last layer first, while the last
micro-batch goes back; they share the links with the moves of activations, so they pause meanwhile (as the cost model counts it, see
`costmodel.layerwise.evaluate`). With stages the pipeline is simulated (`costmodel.timeline`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from costmodel.hardware.cluster import Cluster, LinkRow, link_rows, span
from costmodel.layerwise.evaluate import pipeline_arrays, stage_times
from costmodel.layerwise.plan import Plan, split_table
from costmodel.layerwise.tables import CostTables
from costmodel.timeline import STREAMS, TimelineInput, Tracks, TrackSpan, shown, simulate
from costmodel.workload import Workload

_STREAMS = ("compute", "network", "exchange")


def layer_tracks(workload: Workload, cluster: Cluster, plan: Plan) -> Tracks:
    """Run one step of a plan.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    plan : Plan
        A legal one.

    Returns
    -------
    Tracks
        One track for all workers, or one per stage of a pipeline.
    """
    counts = sorted({split.workers for split in plan.splits})
    tables = CostTables(workload, cluster, split_table(counts, batch_only=plan.is_pipeline), plan.num_micro_batches)
    return _stages(tables, plan) if plan.is_pipeline else _workers(tables, plan)


@dataclass(slots=True)
class _Clock:
    """Where a worker is in the step."""

    now_s: float = 0.0
    spans: list[TrackSpan] = field(default_factory=list)

    def add(self, stream: str, name: str, kind: str, duration_s: float) -> None:
        """Something that the worker waits for."""
        self.spans.append(
            TrackSpan(track=0, stream=stream, name=name, kind=kind, start_s=self.now_s, duration_s=duration_s)
        )
        self.now_s += duration_s


@dataclass(frozen=True, slots=True)
class _LayerTimes:
    """Times of a layer and micro-batch; moves include those inside the layer."""

    name: str
    forward_s: float
    input_s: float
    weight_s: float
    moved_s: float
    returned_s: float
    update_s: float
    exchange_s: float


def _workers(tables: CostTables, plan: Plan) -> Tracks:
    layers = _layer_times(tables, plan)
    clock = _Clock()
    for m in range(plan.num_micro_batches):
        mark = f" m{m}" if plan.num_micro_batches > 1 else ""
        for layer in layers:
            clock.add("network", f"{layer.name}: input{mark}", "transfer", layer.moved_s)
            clock.add("compute", f"{layer.name} forward{mark}", "forward", layer.forward_s)
        turn = clock.now_s
        ready: list[tuple[_LayerTimes, float]] = []
        for layer in reversed(layers):
            clock.add("network", f"{layer.name}: gradients{mark}", "transfer", layer.returned_s)
            clock.add("compute", f"{layer.name} backward{mark}", "backward", layer.input_s + layer.weight_s)
            ready.append((layer, clock.now_s))
    computing = [s for s in clock.spans if s.stream == "compute" and s.kind == "backward" and s.start_s >= turn]
    overlaps = tables.workload.compute.overlaps_exchange
    exchanges = _exchanges(ready, computing if overlaps else [], clock.now_s)
    clock.spans += exchanges
    clock.now_s = max([clock.now_s, *(span.end_s for span in exchanges)])
    for layer in layers:
        clock.add("compute", f"{layer.name} update", "optimizer", layer.update_s)
    words = "one worker" if plan.workers == 1 else f"each of {plan.workers} workers"
    return Tracks.of((words,), _STREAMS, clock.spans)


def _exchanges(
    ready: Sequence[tuple[_LayerTimes, float]], computing: Sequence[TrackSpan], turned_s: float
) -> list[TrackSpan]:
    """Exchanges on their channel: in the order of the backward pass, in the times of ``computing`` and from ``turned_s`` on."""
    free = [(span.start_s, span.end_s) for span in computing if span.duration_s > 0.0]
    free.append((turned_s, float("inf")))
    spans, now = [], 0.0
    for layer, end_s in ready:
        left, piece = layer.exchange_s, 0
        now = max(now, end_s if len(free) > 1 else turned_s)
        for start, end in free:
            if left <= 0.0:
                break
            begin = max(start, now)
            if begin >= end:
                continue
            piece += 1
            duration = min(left, end - begin)
            name = f"{layer.name}: gradient exchange" + (f" (part {piece})" if piece > 1 else "")
            spans.append(
                TrackSpan(track=0, stream="exchange", name=name, kind="exchange", start_s=begin, duration_s=duration)
            )
            now, left = begin + duration, left - duration
    return spans


def _layer_times(tables: CostTables, plan: Plan) -> list[_LayerTimes]:
    rows = [tables.table.row_of(split) for split in plan.splits]
    moved, returned = _moves(tables, rows)
    result = []
    for i, layer in enumerate(tables.workload.graph.layers):
        costs, row = tables.layers[i], rows[i]
        result.append(
            _LayerTimes(
                layer.name,
                float(costs.forward_s[row]),
                float(costs.backward_input_s[row]),
                float(costs.backward_weight_s[row]),
                moved[i] + float(costs.inner_forward_s[row]),
                returned[i] + float(costs.inner_backward_s[row]),
                float(costs.update_s[row]),
                float(tables.exchange_s(i, plan.collectives[i])[row]),
            )
        )
    return result


def _moves(tables: CostTables, rows: Sequence[int]) -> tuple[list[float], list[float]]:
    """Time to bring each layer its inputs, and to bring their gradients back, of one micro-batch."""
    forward, backward = [0.0] * len(rows), [0.0] * len(rows)
    for edge, pair in tables.placed_edges(rows):
        forward[edge.consumer] += float(edge.forward_s[pair])
        backward[edge.consumer] += float(edge.backward_s[pair])
    return forward, backward


def _stages(tables: CostTables, plan: Plan) -> Tracks:
    times, stages = stage_times(pipeline_arrays(tables), plan, tables), plan.stages
    timeline = simulate(
        TimelineInput(
            schedule="1f1b",
            pp=len(stages),
            num_micro_batches=plan.num_micro_batches,
            forward_s=tuple(times.forward_s.tolist()),
            backward_s=tuple(times.backward_s.tolist()),
            send_forward_s=tuple(times.receive_s[1:].tolist()),
            send_backward_s=tuple(times.receive_back_s[:-1].tolist()),
            exchange_s=tuple(times.exchange_s.tolist()),
            optimizer_s=tuple(times.update_s.tolist()),
        )
    )
    spans = [shown(span, names={"exchange": "gradient exchange"}) for span in timeline.spans]
    layers = tables.workload.graph.layers
    words = tuple(
        f"stage {n}: {layers[s.first].name}-{layers[s.last].name} ({s.replicas} GPU{'s' if s.replicas != 1 else ''})"
        for n, s in enumerate(stages)
    )
    return Tracks.of(words, STREAMS, spans)


def layer_links(cluster: Cluster, plan: Plan, exposed_s: Mapping[int, float], reshard_s: float) -> list[LinkRow]:
    """Gradient exchanges by the groups that carry them, and the moves of activations.

    Parameters
    ----------
    cluster : Cluster
    plan : Plan
    exposed_s : mapping of int to float
        Layer -> what the step waits for its exchange; of layers that exchange something.
    reshard_s : float
        What the step waits for activations and their gradients: between all workers, or between neighbouring stages.

    Returns
    -------
    list of LinkRow
    """
    groups: dict[tuple[int, int], float] = {}
    for layer, waiting_s in exposed_s.items():
        split = plan.splits[layer]
        key = split.batch * split.height, split.out_channels * split.in_channels
        groups[key] = groups.get(key, 0.0) + waiting_s
    found = [("gradient exchange", size, stride, waiting) for (size, stride), waiting in sorted(groups.items())]
    if plan.is_pipeline:
        found.append(("between stages", 2, max(stage.replicas for stage in plan.stages), reshard_s))
    else:
        found.append(("activations", plan.workers, 1, reshard_s))
    workers = plan.workers
    return link_rows(cluster, [(name, span(cluster, n, t, workers), t, waits) for name, n, t, waits in found])
