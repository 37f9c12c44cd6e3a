"""What a step waits for its input: samples are read from storage, and copied from the host to the device.

    copy      batch x sample bytes / share of a device of the links inside a node
    storage   samples of a node x stored bytes / rate of the storage, which goes on alongside the step

A copy that is not prefetched lengthens the step; storage that is slower than the step decides it instead.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware.cluster import Cluster

__all__ = ["copy_s", "storage_s"]


def copy_s(batch_bytes: ArrayLike, workers: ArrayLike, cluster: Cluster) -> FloatArray:
    """Seconds to copy the input of every worker from its host.

    Parameters
    ----------
    batch_bytes : array
        Input of one worker.
    workers : array
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
    >>> copy_s(300e6, [1, 4], cluster).tolist()
    [0.025, 0.05]
    """
    inside = cluster.levels[:-1] or cluster.levels
    count = np.asarray(workers, dtype=np.float64)
    rates = [level.port_bytes_per_s / np.minimum(level.shared_by, count) for level in inside]
    return np.asarray(batch_bytes / np.minimum.reduce(rates))


def storage_s(
    samples: ArrayLike, sample_bytes: float, storage_bytes_per_s: float, workers: ArrayLike, node: int
) -> FloatArray:
    """Seconds in which the storage of a node reads its share of a step's samples; 0 where either number of the storage is 0.

    >>> storage_s(1000, 1e6, 1e9, [1, 8, 16], 8).tolist(), storage_s(1000, 1e6, 0.0, 8, 8).tolist()
    ([1.0, 1.0, 0.5], 0.0)
    """
    count = np.asarray(workers, dtype=np.float64)
    if not (sample_bytes and storage_bytes_per_s):
        return np.zeros(np.shape(count))
    return np.asarray(np.asarray(samples) * sample_bytes * np.minimum(count, node) / count / storage_bytes_per_s)
