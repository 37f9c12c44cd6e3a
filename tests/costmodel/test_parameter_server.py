"""Parameter servers against sums by hand."""

from __future__ import annotations

import pytest

from costmodel.framework import server_round_trip_s, server_transfer_s
from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device

DEVICE = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
CLUSTER = Cluster(
    name="c",
    groups=(DeviceGroup(device=DEVICE),),
    levels=(
        Level(name="board", size=2, bandwidth_bytes_per_s=12e9, latency_s=0.0),
        Level(name="node", size=4, bandwidth_bytes_per_s=10e9, latency_s=0.0, efficiency=0.5, shared_by=2),
        Level(name="network", size=None, bandwidth_bytes_per_s=0.125e9, latency_s=1e-3, efficiency=0.8, shared_by=8),
    ),
)


@pytest.mark.parametrize(
    ("workers", "seconds"),
    [
        (1, 0.0),  # the weights are beside the worker
        (8, 0.2),  # 1 GB at half of 10 GB/s
        (16, 0.2 + 0.5 / 0.8),  # and half of it over 1 GB/s of a node at 80 %
        (64, 0.2 + 0.875 / 0.8),  # seven eighths
    ],
)
def test_weights_move_over_the_slowest_link_of_a_node_and_over_its_network(workers: int, seconds: float) -> None:
    assert server_transfer_s(1e9, workers, CLUSTER) == pytest.approx(seconds)


def test_only_a_network_adds_latency() -> None:
    assert server_round_trip_s([1, 8, 16], CLUSTER).tolist() == [0.0, 0.0, 2e-3]
