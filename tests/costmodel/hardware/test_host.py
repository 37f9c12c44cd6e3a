"""The host of a node: shares of its memory and links."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.host import USABLE_SHARE, Host, HostError, host_rates
from costmodel.mesh.assumptions import MeshAssumptions

DGX_A100 = Host(
    devices=8, memory_bytes=2e12, memory_bandwidth_bytes_per_s=409.6e9, link_bytes_per_s=31.5e9, link_shared_by=2
)


def test_the_devices_of_a_busy_node_share_memory_and_links() -> None:
    """DGX A100: 409.6 GB/s for eight, 31.5 GB/s for two; 80 % of a link and 40 % of the memory are reached."""
    assert DGX_A100.memory_bandwidth_per_device == 51.2e9
    assert DGX_A100.link_per_device == 15.75e9
    rates = host_rates(DGX_A100)
    assert rates["host_bytes_per_s"] == pytest.approx(12.6e9)
    assert rates["host_update_bytes_per_s"] == pytest.approx(20.48e9)


def test_a_link_carries_no_more_than_the_memory_behind_it() -> None:
    host = Host(devices=8, memory_bytes=1e12, memory_bandwidth_bytes_per_s=80e9, link_bytes_per_s=63e9)
    assert host_rates(host)["host_bytes_per_s"] == pytest.approx(0.8 * 10e9)


def test_what_is_not_known_is_left_to_the_assumptions() -> None:
    assert host_rates(None) == {}
    assert host_rates(Host(devices=8, memory_bytes=1e12)) == {}
    only_link = Host(devices=8, memory_bytes=1e12, link_bytes_per_s=10e9)
    assert host_rates(only_link) == {"host_bytes_per_s": 8e9}
    assert set(host_rates(DGX_A100)) <= set(MeshAssumptions.__dataclass_fields__)


@given(st.integers(1, 64), st.integers(1, 10_000))
def test_the_shares_of_the_workers_of_a_node_are_what_may_be_filled(devices: int, workers: int) -> None:
    host = Host(devices=devices, memory_bytes=1e12)
    here = min(devices, workers)
    assert here * host.share_bytes(workers) == pytest.approx(USABLE_SHARE * 1e12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 0}, "0 devices"),
        ({"memory_bytes": 0.0}, "memory_bytes"),
        ({"memory_bytes": math.inf}, "memory_bytes"),
        ({"memory_bandwidth_bytes_per_s": -1.0}, "memory_bandwidth"),
        ({"link_bytes_per_s": 0.0}, "link_bytes_per_s"),
        ({"link_shared_by": 3}, "shared by 3 devices, which does not divide the 8"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(HostError, match=message):
        Host(**({"devices": 8, "memory_bytes": 1e12} | changes))  # type: ignore[arg-type]
