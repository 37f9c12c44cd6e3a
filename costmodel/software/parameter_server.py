"""Synchronous parameter servers: what a step waits for besides the computing, where weights live on servers instead of on every device.

Every node of the cluster runs a server alongside its workers, and each server keeps an equal share of the weights (TensorFlow,
tf_cnn_benchmarks: ``variable_update`` ``parameter_server`` and ``distributed_replicated``; Li et al., Scaling distributed machine learning
with the parameter server, OSDI 2014). In a step

    push     W / b_host + W (N - 1) / N / b_net    gradients, layer by layer while the backward pass runs
    pull     the same, of the new weights, after the last gradient

with W the bytes of the weights, N the nodes, b_host what a device has of the slowest links inside its node, b_net the bandwidth of a
node. A pull cannot hide: the next step starts with it. A push hides behind the backward pass as far as that lasts. Inside one node servers
cost no more than an all-reduce in what was measured (benchmarks/notes/accuracy-tried.md, parameter servers).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware.cluster import Cluster

__all__ = ["WEIGHT_BYTES", "node_size", "round_trip_s", "transfer_s"]

# Servers keep and send fp32.
WEIGHT_BYTES = 4.0


def node_size(cluster: Cluster) -> int:
    """Workers of one node: of all levels but the outermost."""
    size = 1
    for level in cluster.levels[:-1]:
        size *= level.size or 1
    return size


def transfer_s(weight_bytes: ArrayLike, workers: ArrayLike, cluster: Cluster) -> FloatArray:
    """Seconds to move weights once between the servers and every worker, latencies aside; 0 for one worker, which has them next to it.

    Parameters
    ----------
    weight_bytes, workers : arrays of one shape
    cluster : Cluster

    Examples
    --------
    400 MB over links of 10 GB/s that four devices use at once and that reach 8 GB/s; two nodes swap half of it at 1 GB/s.

    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=4, bandwidth_bytes_per_s=10e9, latency_s=0.0, efficiency=0.8)
    >>> network = Level(name="network", size=None, bandwidth_bytes_per_s=0.25e9, latency_s=0.0, shared_by=4)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, network))
    >>> transfer_s([400e6, 400e6, 400e6], [1, 4, 8], cluster).round(6).tolist()
    [0.0, 0.05, 0.25]
    """
    weights, count = np.asarray(weight_bytes, dtype=np.float64), np.asarray(workers)
    inside, size = cluster.levels[:-1], node_size(cluster)
    slowest = min((level.bandwidth_bytes_per_s * level.efficiency for level in inside), default=float("inf"))
    nodes = -(-count // size)
    outer = cluster.levels[-1]
    node_bytes_per_s = outer.bandwidth_bytes_per_s * outer.efficiency * size
    time = weights / slowest + weights * (nodes - 1) / nodes / node_bytes_per_s
    return np.where(count > 1, time, 0.0)


def round_trip_s(workers: ArrayLike, cluster: Cluster) -> FloatArray:
    """Latency of a push and a pull, which the tensors of a step share."""
    count = np.asarray(workers)
    return np.where(count > node_size(cluster), 2.0 * cluster.levels[-1].latency_s, 0.0)
