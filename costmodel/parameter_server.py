"""Synchronous parameter servers: what a step waits for beside the computing, where weights live on servers instead of on every device.

Every node of the cluster runs a server beside its workers, and each server keeps an equal share of the weights (TensorFlow,
tf_cnn_benchmarks: ``variable_update`` ``parameter_server`` and ``distributed_replicated``; Li et al., Scaling distributed machine learning
with the parameter server, OSDI 2014). In a step

    push     W / b_host + W (N - 1) / N / b_net    gradients, layer by layer while the backward pass runs
    pull     the same, of the new weights, after the last gradient

with W the bytes of the weights, N the nodes, b_host what a device has of the slowest links inside its node, b_net the bandwidth of a
node. A pull cannot hide: the next step starts with it. A push hides behind the backward pass as far as that lasts.
"""

from __future__ import annotations

from costmodel.hardware.cluster import Cluster

__all__ = ["exposed_server_s", "transfer_s"]


def transfer_s(weight_bytes: float, workers: int, cluster: Cluster) -> float:
    """Seconds to move all weights once between the servers and every worker; 0 for one worker, which has them beside it.

    Examples
    --------
    400 MB over links of 10 GB/s that four devices use at once and that reach 8 GB/s; two nodes swap half of it at 1 GB/s.

    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=4, bandwidth_bytes_per_s=10e9, latency_s=0.0, efficiency=0.8)
    >>> network = Level(name="network", size=None, bandwidth_bytes_per_s=0.25e9, latency_s=0.0, shared_by=4)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, network))
    >>> round(transfer_s(400e6, 4, cluster), 6), round(transfer_s(400e6, 8, cluster), 6)
    (0.05, 0.25)
    """
    if workers < 2:
        return 0.0
    inside, size = cluster.levels[:-1], 1
    slowest = float("inf")
    for level in inside:
        slowest = min(slowest, level.bandwidth_bytes_per_s * level.efficiency)
        size *= level.size or 1
    local_s = weight_bytes / slowest if inside else 0.0
    nodes = -(-workers // size)
    if nodes < 2:
        return local_s
    outer = cluster.levels[-1]
    node_bytes_per_s = outer.bandwidth_bytes_per_s * outer.efficiency * size
    return local_s + weight_bytes * (nodes - 1) / nodes / node_bytes_per_s + outer.latency_s


def exposed_server_s(weight_bytes: float, workers: int, cluster: Cluster, backward_s: float) -> float:
    """What a step waits for: the pull, and the push as far as it is longer than the backward pass.

    Parameters
    ----------
    weight_bytes : float
        Of the weights as they travel.
    workers : int
    cluster : Cluster
    backward_s : float
    """
    once_s = transfer_s(weight_bytes, workers, cluster)
    return once_s + max(once_s - backward_s, 0.0)
