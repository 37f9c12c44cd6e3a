"""Links inside and between device groups.

Ranks fill the groups in order and the units of each level in order, so a group occupies a range of ranks. Inside a group everything is as
in a cluster of its own, with the group's own links where it has some. Two groups meet at the innermost level that has them in one unit; a
message between them leaves by the ports of the one and arrives by the ports of the other, and the slower side counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.hardware.cluster import Cluster, Level
from costmodel.mesh.modules import MeshError
from costmodel.mixed.plan import group_names

__all__ = ["Crossing", "MixedError", "all_reduce_across_s", "check_groups", "crossing", "group_cluster", "group_ranges"]


class MixedError(MeshError):
    """Device groups, or a plan over them, that cannot work; the message says why."""


def group_cluster(cluster: Cluster, group: int) -> Cluster:
    """One group with its own links, as a cluster."""
    found = cluster.groups[group]
    return replace(
        cluster,
        name=f"{cluster.name}: {group_names(cluster)[group]}",
        groups=(replace(found, levels=()),),
        levels=_levels_of(cluster, group),
    )


def _levels_of(cluster: Cluster, group: int) -> tuple[Level, ...]:
    own = cluster.groups[group].levels
    return (*own, *cluster.levels[len(own) :])


def group_ranges(cluster: Cluster) -> tuple[tuple[int, int], ...]:
    """First rank of every group, and the first after it.

    Raises
    ------
    MixedError
        A group does not say how many devices it has.
    """
    ranges, start = [], 0
    for name, group in zip(group_names(cluster), cluster.groups, strict=True):
        if group.num_devices is None:
            raise MixedError(f"group '{name}' of cluster '{cluster.name}' needs a count of devices")
        ranges.append((start, start + group.num_devices))
        start += group.num_devices
    return tuple(ranges)


def check_groups(cluster: Cluster) -> None:
    """Check that the groups fill whole units, so that what holds for a cluster of one group holds inside each.

    Raises
    ------
    MixedError
        A group starts inside a unit that it also leaves, there is no count, or there are more devices than places.
    """
    ranges = group_ranges(cluster)
    capacity = 1
    for level in cluster.levels:
        if level.size is None:
            return
        capacity *= level.size
        for name, (start, end) in zip(group_names(cluster), ranges, strict=True):
            if start % capacity and start // capacity != (end - 1) // capacity:
                raise MixedError(
                    f"group '{name}' of cluster '{cluster.name}' starts {start % capacity} devices into a unit of level '{level.name}' "
                    f"({capacity} devices) and goes on in the next; let every group fill whole units, or stay inside one"
                )
    if ranges[-1][1] > capacity:
        raise MixedError(f"cluster '{cluster.name}' has {ranges[-1][1]} devices, its levels join {capacity}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """The link between two (or more) groups for a number of messages at a time."""

    level: str
    latency_s: float
    bytes_per_s: float  # of each of the messages

    def send_s(self, message_bytes: FloatArray | float) -> FloatArray:
        """One message each: B/P + a, as `costmodel.hardware.collective_formulas` has it for neighbours."""
        message = np.asarray(message_bytes, dtype=np.float64)
        return np.where(message > 0, message / self.bytes_per_s + self.latency_s, 0.0)


def all_reduce_across_s(
    message_bytes: FloatArray | float,
    members: FloatArray | float,
    bytes_per_s: FloatArray | float,
    latency_s: FloatArray | float,
) -> FloatArray:
    """All-reduce of one rank per member over one link: the cheaper of a ring and of recursive doubling.

    ``min(2 (n - 1)/n (B/P + n a), ceil(log2 n) (B/P + a))``, the formulas of `costmodel.hardware.collective_formulas` on one level.

    >>> float(all_reduce_across_s(1e9, 4, 1e9, 0.0))  # ring: 2 x 3/4 of 1 s
    1.5
    """
    message, n = np.asarray(message_bytes, dtype=np.float64), np.maximum(np.asarray(members, dtype=np.float64), 1.0)
    sent = message / bytes_per_s
    ring = 2.0 * (n - 1.0) / n * (sent + n * latency_s)
    doubling = np.ceil(np.log2(n)) * (sent + latency_s)
    return np.where(message > 0, np.minimum(ring, doubling), 0.0)


def crossing(cluster: Cluster, groups: tuple[int, ...], flows: tuple[int, ...]) -> Crossing:
    """The link over which groups reach each other.

    Parameters
    ----------
    cluster : Cluster
    groups : tuple of int
        Two or more.
    flows : tuple of int
        Devices of each group that send at the same time; neighbours, so that they share ports.

    Returns
    -------
    Crossing
        Of the most distant pair of devices; latency and bandwidth of the worse group.
    """
    ranges = group_ranges(cluster)
    first = min(ranges[g][0] for g in groups)
    last = max(ranges[g][1] for g in groups) - 1
    capacity, at = 1, len(cluster.levels) - 1
    for i, level in enumerate(cluster.levels[:-1]):
        assert level.size is not None
        capacity *= level.size
        if first // capacity == last // capacity:
            at = i
            break
    rate, latency = math.inf, 0.0
    for group, count in zip(groups, flows, strict=True):
        levels = _levels_of(cluster, group)
        latency = max(latency, levels[at].latency_s)
        for level in levels[: at + 1]:
            rate = min(rate, level.port_bytes_per_s / min(max(count, 1), level.shared_by))
    return Crossing(level=cluster.levels[at].name, latency_s=latency, bytes_per_s=rate)
