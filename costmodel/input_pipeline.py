"""What a step waits for its input: samples are read from storage, and copied from the host to the device.

    copy      batch x sample bytes / share of a device of the links inside a node
    storage   samples of a node x stored bytes / rate of the storage, which goes on beside the step

A copy that is not prefetched lengthens the step; storage that is slower than the computing decides the step instead.
"""

from __future__ import annotations

from costmodel.hardware.cluster import Cluster

__all__ = ["copy_s", "with_storage_s"]


def copy_s(batch_bytes: float, workers: int, cluster: Cluster) -> float:
    """Seconds to copy the input of every worker from its host.

    Parameters
    ----------
    batch_bytes : float
        Input of one worker and step.
    workers : int
        Where they are fewer than a node has, each has more of a shared port.
    cluster : Cluster
        Its links inside a node reach the host, too.

    Examples
    --------
    300 MB over a port of 12 GB/s alone, and where two share it.

    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> board = Level(name="board", size=2, bandwidth_bytes_per_s=12e9, latency_s=0.0)
    >>> node = Level(name="node", size=2, bandwidth_bytes_per_s=6e9, latency_s=0.0, shared_by=2)
    >>> network = Level(name="network", size=None, bandwidth_bytes_per_s=1e9, latency_s=0.0)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(board, node, network))
    >>> copy_s(300e6, 1, cluster), copy_s(300e6, 4, cluster)
    (0.025, 0.05)
    """
    inside = cluster.levels[:-1] or cluster.levels
    rates = [level.port_bytes_per_s / min(level.shared_by, workers) for level in inside]
    return batch_bytes / min(rates)


def with_storage_s(step_s: float, node_bytes: float, storage_bytes_per_s: float | None) -> float:
    """The step where a node reads ``node_bytes`` for each; None: storage that is never waited for.

    >>> with_storage_s(0.5, 1e9, 1e9), with_storage_s(2.0, 1e9, 1e9), with_storage_s(0.5, 1e9, None)
    (1.0, 2.0, 0.5)
    """
    return step_s if storage_bytes_per_s is None else max(step_s, node_bytes / storage_bytes_per_s)
