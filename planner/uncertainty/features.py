"""Plans as the error model sees them: shares of the parts of a step, and what each constant does to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware.cluster import Cluster
from costmodel.kernels.roofline import RooflineCompute
from costmodel.network.layers import ATTENTION
from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import part_shares
from costmodel.workload import Workload

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


def node_size(cluster: Cluster) -> int:
    """Devices that fast links join: of a domain, or of the only level where that has a size.

    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6)
    >>> fabric = Level(name="fabric", size=4, bandwidth_bytes_per_s=10e9, latency_s=5e-6)
    >>> node_size(Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, fabric)))
    8
    """
    return cluster.domain_size or cluster.levels[0].size or 1


def shares_of(step_time_s: ArrayLike, terms: Mapping[str, ArrayLike], nodes: ArrayLike) -> FloatArray:
    """Shares of the parts of steps, from the terms of a cost model by name; see `costmodel.uncertainty.intervals.part_shares`."""
    step = np.asarray(step_time_s, dtype=np.float64)
    parts = {
        part: sum((np.asarray(terms[name], dtype=np.float64) for name in names if name in terms), np.zeros_like(step))
        for part, names in TIME_TERMS.items()
    }
    return part_shares(step, parts, nodes)


# -- what constants do ----------------------------------------------------------------------------------------------------------

# Step times of all plans with one constant multiplied by a factor.
Times = Callable[[str, float], FloatArray]

# Of the logarithm of a constant, for derivatives.
_STEP = 0.1


def constants_of(
    workload: Workload, cluster: Cluster, workers: int, host_launch_s: float | None = None
) -> tuple[str, ...]:
    """Constants that can change a step time of this question.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    workers : int
        Most that a plan uses.
    host_launch_s : float, optional
        What the host takes to start a kernel, where the cost model counts it and what of the gradients is hidden.

    Notes
    -----
    Of a network without convolutions the rate of convolution algorithms cannot, without attention not that of attention, on one device
    no link; the host and the overlap of gradients are constants of some cost models only, what a kernel loses inside a training step one of
    networks of sequences (`RooflineCompute`). A rate that already is the whole peak is
    followed, too: it can fall. Where the host takes longer to start a kernel than the device, the device's time does not matter.
    """
    kinds = {layer.kind for layer in workload.graph.layers}
    has_host, floor_s = host_launch_s is not None, cluster.device.launch_overhead_s
    is_sequence = any(len(layer.output_shape) == 2 for layer in workload.graph.layers)
    missing = {
        "convolution_rate": not any("conv" in kind for kind in kinds),
        "attention_rate": not kinds & ATTENTION,
        "sustained_rate": not is_sequence,
        "elementwise_rate": not is_sequence,
        "host_launch": not has_host,
        "host_collective": not has_host or workers == 1,
        "dp_exposed": not has_host or workers == 1,
        "launch_overhead": floor_s == 0 or (host_launch_s is not None and host_launch_s >= floor_s),
        "intra_node_bandwidth": workers == 1,
        "inter_node_bandwidth": workers <= node_size(cluster),
        "link_latency": workers == 1,
    }
    return tuple(name for name in CONSTANTS if not missing.get(name, False))


def workload_on(workload: Workload, cluster: Cluster) -> Workload:
    """The same on a cluster with other constants."""
    compute = workload.compute
    assert isinstance(compute, RooflineCompute), "only the roofline has constants"
    return replace(workload, compute=replace(compute, device=cluster.device))


def effects_of(times: Times, names: Sequence[str], step_time_s: FloatArray | None = None) -> FloatArray:
    """Derivatives of log step times by the logarithms of constants, (plans, names); the step times now may be known."""
    now = times(names[0], 1.0) if step_time_s is None and names else step_time_s
    base = np.zeros(0) if now is None else np.log(now)
    columns = [(np.log(times(name, math.exp(_STEP))) - base) / _STEP for name in names]
    return np.stack(columns, axis=1) if columns else np.zeros((len(base), 0))
