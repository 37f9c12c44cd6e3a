"""The operator graph of a planner model on a cluster, in the public JSON format: times, transfers and sizes from the cost model.

Notes
-----
Every layer is a forward operator; in training one that gets a gradient has a backward operator of its colour class.

- Time: the layer's pass on one device for one micro-batch, in seconds. The optimizer's step, once per batch, is left out.
- Transfer: latency and bytes of the output, or of the gradients of a layer's inputs, over the link that a pair of the chosen devices
  shares at worst. The format has one cost per output, so a backward operator of several inputs moves all their gradients together.
- Size: weights, gradients, optimizer state, and what is kept of one micro-batch for the backward pass. Tied weights count once per copy.
- CPUs: clusters name none, so there are none; ``cpuLatency`` is prohibitive.
- Several kinds of devices become ``deviceTypes`` with a time per layer and kind; ``linkFactor`` compares bandwidths.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from costmodel.framework import cluster_run_by
from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.kernels.roofline import RooflineCompute
from costmodel.layerwise.plan import split_table
from costmodel.layerwise.tables import CostTables, LayerCosts
from costmodel.precision import OPTIMIZERS, PRECISIONS, default_precision
from costmodel.uncertainty.constants import cluster_with
from costmodel.workload import Workload
from planner.core.capacity import unreserved_bytes
from planner.core.errors import UsageError
from planner.files.documents import JsonFile
from planner.files.loading import LoadedModel, load_calibration, load_cluster
from planner.files.naming.frameworks import framework_of
from planner.files.resources import InMemory
from planner.importers.networks import load_model
from planner.placement.question import PlaceRequest
from planner.question.choose import is_transformer
from planner.question.resolve import check_trainable

# No operator is worth this many seconds.
_NO_CPU_S = 1e9


def workload_of_model(request: PlaceRequest) -> JsonFile:
    """Make a workload of a model and a cluster, as if it had been read from a file: for one node where no number of devices is asked for.

    Raises
    ------
    PlannerError
        Unknown names, files with problems, more devices than there are.
    """
    given = request.content if isinstance(request.content, InMemory) else str(request.workload)
    model = load_model(given, assume_free=request.assume_free)
    assert request.cluster is not None
    cluster = load_cluster(request.cluster).cluster
    if request.calibration is not None:
        known = load_calibration(request.calibration).calibration
        cluster = cluster_with(cluster_run_by(cluster, framework_of(known.framework).attention), known.values)
    workload = _workload(model, cluster, request)
    content = _content(workload, cluster, request)
    text = json.dumps(content)
    return JsonFile(
        path=Path(f"{request.workload} on {request.cluster}"),
        text=text,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        content=content,
        made_with=(
            f"cluster {cluster.name}",
            f"{request.mode} with precision {workload.precision.name}",
            *([f"{workload.optimizer.name}, memory for one micro-batch in flight"] if workload.training else []),
            *([f"calibration {request.calibration}"] if request.calibration else []),
        ),
    )


def link_between(levels: Sequence[Level], count: int) -> Level:
    """The link that two of so many neighbouring devices share at worst: that of the first level that holds them all.

    >>> node = Level(name="node", size=8, bandwidth_bytes_per_s=1e11, latency_s=1e-6)
    >>> fabric = Level(name="fabric", size=None, bandwidth_bytes_per_s=1e10, latency_s=1e-5)
    >>> [link_between((node, fabric), count).name for count in (1, 8, 9)]
    ['node', 'node', 'fabric']
    """
    inside = np.cumprod([level.size or np.inf for level in levels])
    return next((level for level, devices in zip(levels, inside, strict=True) if count <= devices), levels[-1])


def _rate(level: Level) -> float:
    """Bytes per second of one device while all that share its port are busy."""
    return level.bandwidth_bytes_per_s * level.reached


def _workload(model: LoadedModel, cluster: Cluster, request: PlaceRequest) -> Workload:
    """One micro-batch, in the best format that all devices have, with the optimizer that `planner optimize` would take."""
    if request.mode == "training":
        check_trainable(model)
    formats = frozenset.intersection(*(frozenset(group.device.peak_flop_per_s) for group in cluster.groups))
    if not formats:
        raise UsageError(f"the devices of cluster '{cluster.name}' have no number format in common")
    # A format is worth its place only where it is on every device, as in `planner.question.resolve`.
    chosen = {
        default_precision(
            {name: rate for name, rate in g.device.peak_flop_per_s.items() if name in formats},
            is_transformer=is_transformer(model.graph),
        )
        for g in cluster.groups
    }
    slow = len(chosen) > 1 and "fp32" in formats
    precision = PRECISIONS["fp32" if slow else min(chosen)]
    optimizer = OPTIMIZERS["adam" if is_transformer(model.graph) else "momentum"]
    return Workload(
        graph=model.graph,
        global_batch=request.batch,
        precision=precision,
        optimizer=optimizer,
        compute=RooflineCompute(device=cluster.groups[0].device, precision=precision, optimizer=optimizer),
        training=request.mode == "training",
    )


def _content(workload: Workload, cluster: Cluster, request: PlaceRequest) -> dict[str, Any]:
    counts = _counts(cluster, request)
    total = sum(counts)
    links = [link_between((*g.levels, *cluster.levels[len(g.levels) :]), total) for g in cluster.groups]
    costs = [_layer_costs(workload, cluster, group) for group in cluster.groups]
    memory = [max(0.0, unreserved_bytes(group.device) - workload.context_bytes) for group in cluster.groups]
    nodes, edges = _operators(workload, costs, cluster.groups, links[0])
    content: dict[str, Any] = {"maxCPUs": 0, "nodes": nodes, "edges": edges}
    if len(cluster.groups) == 1:
        return {"maxFPGAs": total, "maxSizePerFPGA": memory[0]} | content
    kinds = [
        {
            "name": group.name or group.device.name,
            "count": count,
            "memory": size,
            "timeKey": _time_key(group),
            "linkFactor": _rate(links[0]) / _rate(link),
        }
        for group, count, size, link in zip(cluster.groups, counts, memory, links, strict=True)
    ]
    return {"deviceTypes": kinds} | content


def _time_key(group: DeviceGroup) -> str:
    return f"time_{group.name or group.device.name}"


def _counts(cluster: Cluster, request: PlaceRequest) -> list[int]:
    """Devices of each group."""
    if len(cluster.groups) > 1:
        if request.num_devices is not None:
            raise UsageError(f"--devices: cluster '{cluster.name}' has several kinds of devices; all of them are used")
        counts = [group.num_devices for group in cluster.groups]
        if None in counts:
            raise UsageError(f"cluster '{cluster.name}' does not say how many devices of each kind there are")
        return [count for count in counts if count is not None]
    most = cluster.max_devices
    wanted = request.num_devices or cluster.levels[0].size or most or 1
    if most is not None and wanted > most:
        if request.num_devices is not None:
            raise UsageError(f"--devices {wanted}: cluster '{cluster.name}' has {most:,} devices")
        wanted = most
    return [wanted]


def _layer_costs(workload: Workload, cluster: Cluster, group: DeviceGroup) -> tuple[LayerCosts, ...]:
    """Every layer whole on one device."""
    compute = workload.compute
    assert isinstance(compute, RooflineCompute), "the paleo preset is not offered here"
    own = replace(workload, compute=replace(compute, device=group.device))
    return CostTables(own, cluster, split_table((1,)), num_micro_batches=1).layers


def _operators(
    workload: Workload, costs: Sequence[tuple[LayerCosts, ...]], groups: Sequence[DeviceGroup], link: Level
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Operators and dependencies; all edges of an operator have one cost. Backward operators are numbered after all forward ones."""
    graph, number = workload.graph, len(workload.graph.layers)
    needs = graph.needs_gradient if workload.training else [False] * number
    width = workload.global_batch * workload.precision.activation_bytes

    def transfer_s(elements: float) -> float:
        return link.latency_s + elements * width / _rate(link) if elements > 0 else 0.0

    sent = [transfer_s(layer.output_elements) for layer in graph.layers]
    forward, backward = [], []
    edges = [{"sourceId": u, "destId": v, "cost": sent[u]} for u, v in graph.edges]
    for i, layer in enumerate(graph.layers):
        own = [kind[i] for kind in costs]
        static = float(own[0].static_bytes[0]) * (
            1.0 + layer.tied_count / max(1, layer.weight_count + layer.norm_count)
        )
        kept = float(own[0].activation_bytes[0]) if workload.training else 0.0
        node = _node(i, layer.name, [float(cost.forward_s[0]) for cost in own], groups)
        forward.append(node | {"size": static + kept, "colorClass": i})
        if needs[i]:
            times = [float(cost.backward_input_s[0] + cost.backward_weight_s[0]) for cost in own]
            node = _node(number + i, f"{layer.name} (backward)", times, groups)
            backward.append(node | {"size": 0.0, "colorClass": i, "isBackwardNode": 1})
            edges.append({"sourceId": i, "destId": number + i, "cost": sent[i]})
            returned = [u for u in graph.producers[i] if needs[u]]
            cost = transfer_s(sum(graph.layers[u].output_elements for u in returned))
            edges += [{"sourceId": number + i, "destId": number + u, "cost": cost} for u in returned]
    return [*forward, *backward], edges


def _node(number: int, name: str, times: Sequence[float], groups: Sequence[DeviceGroup]) -> dict[str, Any]:
    own = zip(groups, times, strict=True) if len(groups) > 1 else ()
    return {
        "id": number,
        "name": name,
        "supportedOnFpga": 1,
        "cpuLatency": _NO_CPU_S,
        "fpgaLatency": times[0],
        "isBackwardNode": 0,
        **{_time_key(group): time for group, time in own},
    }
