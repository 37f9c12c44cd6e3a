"""What the blocks of a network weigh against each other when a pipeline is cut into stages.

A plan says how many stages there are; which blocks each gets must follow from the network alone. Were blocks weighed by the device that
judges the plan, a quicker device could move a cut to a worse place, and the same degrees would be another plan on every cluster.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import FORMATS, Device
from costmodel.kernels.roofline import RooflineCompute
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.shares import RowKeys
from costmodel.mesh.tables import unit_table
from costmodel.mesh.units import Units
from costmodel.workload import Workload

__all__ = ["unit_weights"]

# Only the ratio of its rates matters: 200 FLOP per byte lie between an A100 (312 TFLOP/s and 2.0 TB/s: 153) and an H100 (989 TFLOP/s and
# 3.35 TB/s: 295; both dense bf16, NVIDIA datasheets).
_YARDSTICK = Device(
    name="yardstick",
    peak_flop_per_s=dict.fromkeys(FORMATS, 400e12),
    memory_bytes=80e9,
    memory_bandwidth_bytes_per_s=2e12,
)
# Samples that read the weights together: enough that a mixture weighs what its tokens compute, since its experts lie on many ranks.
_SAMPLES = 64


def unit_weights(workload: Workload, cluster: Cluster, units: Units, assumptions: MeshAssumptions) -> tuple[float, ...]:
    """Kind of unit -> forward and backward time on a device that is the same for every cluster.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
        Not used by one rank without neighbours.
    units : Units
    assumptions : MeshAssumptions

    Returns
    -------
    tuple of float
        Seconds; only their ratios mean anything.
    """
    beside = [getattr(workload, item.name) for item in fields(workload) if item.name not in ("graph", "compute")]
    return workload.graph.once(
        ("unit weights", units, assumptions, *beside), lambda: _weights(workload, cluster, units, assumptions)
    )


def _weights(workload: Workload, cluster: Cluster, units: Units, assumptions: MeshAssumptions) -> tuple[float, ...]:
    one = np.ones(1, dtype=np.int64)
    keys = RowKeys(tp=one, sequence_parallel=0 * one, cp=one, ep=one, etp=one, micro_batch=_SAMPLES * one)
    compute = RooflineCompute(device=_YARDSTICK, precision=workload.precision, optimizer=workload.optimizer)
    table = unit_table(replace(workload, compute=compute), cluster, units, keys, assumptions=assumptions)
    return tuple(float(x) for x in (table.forward_s + table.backward_s)[0])
