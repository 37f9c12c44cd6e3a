"""Plans as the error model sees them: shares of the parts of a step, where a plan lies among others, what each constant does to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware.cluster import Cluster
from costmodel.kernels.roofline import RooflineCompute
from costmodel.layerwise.splits import split_table
from costmodel.network.layers import ATTENTION
from costmodel.uncertainty.constants import CONSTANTS, cluster_with, with_constants
from costmodel.uncertainty.intervals import part_shares
from costmodel.workload import Workload

if TYPE_CHECKING:  # each space of plans does without the others
    from costmodel.layerwise.plan import Plan
    from costmodel.layerwise.tables import CostCache
    from costmodel.mesh.assumptions import MeshAssumptions
    from costmodel.mesh.model import MeshModel
    from costmodel.mesh.plan import MeshPlan

__all__ = [
    "TIME_TERMS",
    "Times",
    "constants_of",
    "effects_of",
    "layer_mixture",
    "layer_times",
    "mesh_coordinates",
    "mesh_times",
    "node_size",
    "shares_of",
]


# Part of a step (costmodel.uncertainty.intervals.PARTS) -> terms of the cost model that belong to it, of meshes, of splits per layer and
# of serving.
TIME_TERMS: Mapping[str, tuple[str, ...]] = {
    "layer_communication": (
        "tp_exposed_s",
        "cp_exposed_s",
        "ep_exposed_s",
        "reshard_s",
        "serving_tp_s",
        "serving_ep_s",
    ),
    "stage_transfer": ("pp_exposed_s", "serving_pp_s"),
    "gradient_exchange": ("dp_exposed_s", "exposed_exchange_s"),
    "bubble": ("bubble_s",),
}
# No bundled node has more devices; larger units are racks.
_MOST_IN_NODE = 16
# Settings whose change counts as one step (a doubling of a degree); those of the second kind change little of what is computed.
_MINOR = ("sequence_parallel", "offload_optimizer", "offload_activations", "zero_stage")
_DEGREES = ("tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "workers")


def node_size(cluster: Cluster) -> int:
    """Devices of a node: of the innermost levels that join up to 16.

    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6)
    >>> fabric = Level(name="fabric", size=4, bandwidth_bytes_per_s=10e9, latency_s=5e-6)
    >>> node_size(Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, fabric)))
    8
    """
    size = 1
    for depth, level in enumerate(cluster.levels):
        if level.size is None or (size * level.size > _MOST_IN_NODE and depth > 0):
            break
        size *= level.size
    return size


def shares_of(step_time_s: ArrayLike, terms: Mapping[str, ArrayLike], nodes: ArrayLike) -> FloatArray:
    """Shares of the parts of steps, from the terms of a cost model by name; see `costmodel.uncertainty.intervals.part_shares`."""
    step = np.asarray(step_time_s, dtype=np.float64)
    parts = {
        part: sum((np.asarray(terms[name], dtype=np.float64) for name in names if name in terms), np.zeros_like(step))
        for part, names in TIME_TERMS.items()
    }
    return part_shares(step, parts, nodes)


def mesh_coordinates(plans: Sequence[MeshPlan]) -> FloatArray:
    """Where plans over a mesh lie, in doublings of degrees and changes of settings.

    >>> from costmodel.mesh.plan import MeshPlan
    >>> one, two = mesh_coordinates([MeshPlan(tp=2), MeshPlan(tp=8, recompute="full")])
    >>> float(np.abs(one - two).sum())  # two doublings of tp, and of the workers; another recomputation
    5.0
    """
    from costmodel.mesh.plan import CP_KINDS, RECOMPUTE, SCHEDULES

    columns = [[math.log2(getattr(plan, name)) for plan in plans] for name in _DEGREES]
    for name, words in (("schedule", SCHEDULES), ("recompute", RECOMPUTE), ("cp_kind", CP_KINDS)):
        # Two columns differ where the word does: half a step each.
        columns += [[0.5 * (getattr(plan, name) == word) for plan in plans] for word in words]
    columns += [[0.5 * float(getattr(plan, name)) for plan in plans] for name in _MINOR]
    return np.array(columns, dtype=np.float64).T


def layer_mixture(known: CostCache, plans: Sequence[Plan]) -> tuple[FloatArray, FloatArray]:
    """Ways in which plans with a split per layer run their layers, and what each takes of the time of their layers.

    A way is the degrees of a split, in doublings, with the workers, stages and micro-batches of the plan. The time of a layer is that of
    its kernels, communication inside it, update, and gradient exchange (hidden or not); layers that take no time do not count.

    Returns
    -------
    coordinates : array (ways, c)
    mixture : array (plans, ways)
        Rows sum to 1.
    """
    ways: dict[tuple[float, ...], int] = {}
    shares: list[dict[int, float]] = []
    for plan in plans:
        counts = sorted({stage.replicas for stage in plan.stages}) if plan.is_pipeline else [plan.workers]
        tables = known.tables(split_table(counts, batch_only=plan.is_pipeline), plan.num_micro_batches)
        whole = (plan.workers, max(len(plan.stages), 1), plan.num_micro_batches)
        own: dict[int, float] = {}
        for i, split in enumerate(plan.splits):
            costs, row = tables.layers[i], tables.table.row_of(split)
            each_s = (
                costs.forward_s[row]
                + costs.backward_input_s[row]
                + costs.backward_weight_s[row]
                + costs.inner_forward_s[row]
                + costs.inner_backward_s[row]
            )
            once_s = costs.update_s[row] + tables.exchange_s(i, plan.collectives[i])[row]
            way = tuple(math.log2(count) for count in (*split.degrees, *whole))
            place = ways.setdefault(way, len(ways))
            own[place] = own.get(place, 0.0) + float(plan.num_micro_batches * each_s + once_s)
        shares.append(own)
    mixture = np.array([[own.get(place, 0.0) for place in range(len(ways))] for own in shares], dtype=np.float64)
    return np.array(list(ways), dtype=np.float64), mixture / mixture.sum(axis=1, keepdims=True)


# -- what constants do ----------------------------------------------------------------------------------------------------------

# Step times of all plans with one constant multiplied by a factor.
Times = Callable[[str, float], FloatArray]

# Of the logarithm of a constant, for derivatives.
_STEP = 0.1


def constants_of(
    workload: Workload, cluster: Cluster, workers: int, assumptions: MeshAssumptions | None = None
) -> tuple[str, ...]:
    """Constants that can change a step time of this question.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    workers : int
        Most that a plan uses.
    assumptions : MeshAssumptions, optional
        Of plans over a mesh.

    Notes
    -----
    Of a network without convolutions the rate of convolution algorithms cannot, without attention not that of attention, on one device
    no link; the host and the overlap of gradients are constants of mesh plans only, what a kernel loses inside a training step one of
    networks of sequences (`RooflineCompute`). A rate that already is the whole peak is
    followed, too: it can fall. Where the host takes longer to start a kernel than the device, the device's time does not matter.
    """
    kinds = {layer.kind for layer in workload.graph.layers}
    is_mesh, floor_s = assumptions is not None, cluster.device.launch_overhead_s
    is_sequence = any(len(layer.output_shape) == 2 for layer in workload.graph.layers)
    missing = {
        "convolution_rate": not any("conv" in kind for kind in kinds),
        "attention_rate": not kinds & ATTENTION,
        "sustained_rate": not is_sequence,
        "elementwise_rate": not is_sequence,
        "host_launch": not is_mesh,
        "host_collective": not is_mesh or workers == 1,
        "dp_exposed": not is_mesh or workers == 1,
        "launch_overhead": floor_s == 0 or (assumptions is not None and assumptions.host_launch_s >= floor_s),
        "intra_node_bandwidth": workers == 1,
        "inter_node_bandwidth": workers <= node_size(cluster),
        "link_latency": workers == 1,
    }
    return tuple(name for name in CONSTANTS if not missing.get(name, False))


def mesh_times(model: MeshModel, plans: Sequence[MeshPlan], *, exact: bool = True) -> Times:
    """Step times of mesh plans; without ``exact``, lower bounds for some schedules, and uniform stages, much quicker."""
    from costmodel.mesh.plan import MeshBatch

    batch = MeshBatch.from_plans(plans)

    def times(name: str, factor: float) -> FloatArray:
        cluster, assumptions = with_constants(model.cluster, model.assumptions, {name: factor})
        changed = model.with_constants(_workload(model.workload, cluster), cluster, assumptions)
        if exact:
            return changed.evaluate_plans(plans).step_time_s
        return changed.evaluate(batch, exact=False).step_time_s

    return times


def layer_times(known: CostCache, plans: Sequence[Plan]) -> Times:
    """Step times of plans with a split per layer; what a constant does not touch is costed once."""
    from costmodel.layerwise.evaluate import evaluate  # plans over a mesh do without

    def times(name: str, factor: float) -> FloatArray:
        cluster = cluster_with(known.cluster, {name: factor})
        workload = _workload(known.workload, cluster)
        return evaluate(workload, cluster, plans, known.changed(workload, cluster)).step_time_s

    return times


def _workload(workload: Workload, cluster: Cluster) -> Workload:
    compute = workload.compute
    assert isinstance(compute, RooflineCompute), "only the roofline has constants"
    return replace(workload, compute=replace(compute, device=cluster.device))


def effects_of(times: Times, names: Sequence[str], step_time_s: FloatArray | None = None) -> FloatArray:
    """Derivatives of log step times by the logarithms of constants, (plans, names); the step times now may be known."""
    now = times(names[0], 1.0) if step_time_s is None and names else step_time_s
    base = np.zeros(0) if now is None else np.log(now)
    columns = [(np.log(times(name, math.exp(_STEP))) - base) / _STEP for name in names]
    return np.stack(columns, axis=1) if columns else np.zeros((len(base), 0))
