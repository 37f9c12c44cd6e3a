"""What a port of the network carries, by how data get there: equations by hand, and the bounds that published tests show."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from costmodel.hardware.cluster import Cluster, ClusterError, DeviceGroup, Level, port_limit, span
from costmodel.hardware.collectives import collective_s
from costmodel.hardware.device import Device
from costmodel.hardware.host import Host

DEVICE = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
NODE = Level(name="node", size=8, bandwidth_bytes_per_s=150e9, latency_s=0.0)
# One adapter of 100 Gb/s for eight devices, of which long messages reach 95 %.
NETWORK = Level(
    name="network", size=None, bandwidth_bytes_per_s=12.5e9 / 8, shared_by=8, latency_s=0.0, efficiency=0.95
)
# PCI Express 3.0, two devices on a switch.
HOST = Host(devices=8, memory_bytes=512e9, link_bytes_per_s=15.75e9, link_shared_by=2)


def bus_bandwidth(network: Level) -> float:
    """Of a ring all-reduce of 1 GB over four nodes, as nccl-tests counts it."""
    cluster = Cluster(name="c", groups=(DeviceGroup(device=DEVICE),), levels=(NODE, network), host=HOST)
    time_s = float(collective_s("all_reduce", "ring", 1e9, span(cluster, 32, 1), cluster))
    return 2 * 31 / 32 * 1e9 / time_s


def through(transport: str, connections_bytes_per_s: float = math.inf) -> Level:
    limit = port_limit(transport, HOST, connections_bytes_per_s)
    return replace(NETWORK, transport=transport, port_limit_bytes_per_s=limit)


def test_an_all_reduce_runs_at_what_bounds_the_port() -> None:
    assert bus_bandwidth(through("direct")) == pytest.approx(0.95 * 12.5e9)
    # Each byte crosses the switch's port twice, of which 80 % are reached: 0.8 x 15.75 / 2.
    assert bus_bandwidth(through("host")) == pytest.approx(6.3e9)
    # Two connections of 18 Gb/s, or ten, which the host bounds.
    assert bus_bandwidth(through("tcp", 2 * 18e9 / 8)) == pytest.approx(4.5e9)
    assert bus_bandwidth(through("tcp", 10 * 18e9 / 8)) == pytest.approx(6.3e9)


def test_published_bus_bandwidths_without_gpudirect() -> None:
    """V100, InfiniBand of 100 Gb/s: 6 GB/s without nv_peer_mem (NVIDIA/nccl issue 465; nccl-tests issue 29, "about 6 GB/s")."""
    assert bus_bandwidth(through("host")) == pytest.approx(6e9, rel=0.1)


def test_an_adapter_of_its_own_port_gets_all_of_it() -> None:
    assert replace(HOST, link_shared_by=1).staged_bytes_per_s == pytest.approx(0.8 * 15.75e9)
    assert replace(HOST, link_bytes_per_s=None).staged_bytes_per_s == math.inf
    assert port_limit("host", None) == math.inf


def test_a_faster_network_does_not_help_where_the_host_bounds_it() -> None:
    slow, fast = (through("host"), replace(through("host"), bandwidth_bytes_per_s=2 * NETWORK.bandwidth_bytes_per_s))
    assert bus_bandwidth(fast) == bus_bandwidth(slow)
    assert fast.reached == pytest.approx(slow.reached / 2)


def test_a_limit_is_positive() -> None:
    with pytest.raises(ClusterError, match="port limit is 0"):
        replace(NETWORK, port_limit_bytes_per_s=0.0)
