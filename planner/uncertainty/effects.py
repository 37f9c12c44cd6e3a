"""What each named constant does to the step times of plans: derivatives for error bars, whole curves for the sensitivity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.hardware.cluster import Cluster
from costmodel.kernels.roofline import RooflineCompute
from costmodel.network.layers import ATTENTION
from costmodel.uncertainty.constants import CONSTANTS, cluster_with, with_constants
from costmodel.workload import Workload
from planner.uncertainty.features import node_size

if TYPE_CHECKING:  # each space of plans does without the others
    from costmodel.layerwise.plan import Plan
    from costmodel.layerwise.tables import CostCache
    from costmodel.mesh.assumptions import MeshAssumptions
    from costmodel.mesh.model import MeshModel
    from costmodel.mesh.plan import MeshPlan

__all__ = ["Times", "constants_of", "effects_of", "layer_times", "mesh_times"]

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

    judged = list(plans)

    def times(name: str, factor: float) -> FloatArray:
        cluster = cluster_with(known.cluster, {name: factor})
        workload = _workload(known.workload, cluster)
        return evaluate(workload, cluster, judged, known.changed(workload, cluster)).step_time_s

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
