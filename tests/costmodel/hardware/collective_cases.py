"""Clusters to test collectives on."""

from __future__ import annotations

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device

DEVICE = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)


def cluster(*levels: tuple[int | None, float, float] | tuple[int | None, float, float, int]) -> Cluster:
    """Levels as (size, bandwidth per device, latency[, shared by])."""
    made = [
        Level(name=f"l{i}", size=x[0], bandwidth_bytes_per_s=x[1], latency_s=x[2], shared_by=x[3] if len(x) > 3 else 1)
        for i, x in enumerate(levels)
    ]
    return Cluster(name="c", groups=(DeviceGroup(device=DEVICE),), levels=tuple(made))
