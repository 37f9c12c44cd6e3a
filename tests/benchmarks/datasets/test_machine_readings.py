"""What rows say of devices, nodes and links."""

from __future__ import annotations

import pytest

from benchmarks.datasets.reading import Row
from tests.benchmarks.datasets.published_rows import COLLECTIVES, PLANS, RUN, links_of, machine_of, seconds


def test_the_links_of_a_domain_larger_than_a_node() -> None:
    """72 devices share NVLink though a tray has four; what a tray has of adapters is there 18 times."""
    cells = {"device": "GB200", "gpus_per_node": "4", "nvlink_domain": "72", "inter_bw_Gbps_per_node": "1600"}
    inner, outer = machine_of(Row(line=2, cells=cells)).cluster.levels
    assert inner.size == 72
    assert outer.bandwidth_bytes_per_s == pytest.approx(400e9 / 8)


def test_a_run_that_is_spread_over_its_nodes() -> None:
    """One device on each of four nodes has nothing but the network."""
    spread = {
        **RUN,
        "gpus": "4",
        "nodes": "4",
        "tp": "4",
        "pp": "1",
        "dp": "1",
        "global_batch": "8",
        "step_time_ms": "9000",
    }
    assert links_of(Row(line=2, cells=spread)).gpus_per_node == 1
    assert links_of(Row(line=2, cells={**spread, "nodes": "1"})).gpus_per_node == 8
    times = [seconds(PLANS.predict([Row(line=2, cells={**spread, "nodes": nodes})])[0]) for nodes in ("1", "4")]
    assert times[1] > 1.2 * times[0]


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("v5p-128", "tpu-v5p"),
        ("v5e-256", "tpu-v5e"),
        ("v4-8", "tpu-v4"),
        ("v6e-64", "tpu-v6e"),
        ("v5litepod-16", "tpu-v5e"),
    ],
)
def test_slices_of_tpus(name: str, device: str) -> None:
    assert machine_of(Row(line=2, cells={"device": name})).device.name == device


def test_adapters_named_beside_a_device_are_those_of_its_usual_machine() -> None:
    """A DGX H100 has eight of 400 Gb/s; a name with a count, or of another speed, is that of the node."""

    def of(device: str) -> float:
        cells = {
            "collective": "all_to_all",
            "device": device,
            "ranks": "64",
            "nodes": "8",
            "bytes": "134217728",
            "time_us": "20000",
        }
        (found,) = COLLECTIVES.predict([Row(line=2, cells=cells)])
        return seconds(found)

    assert of("H100 + NDR InfiniBand") == of("H100, 8x NDR") == of("H100") < of("H100, 1x NDR") / 4
    assert of("A100, HDR InfiniBand") == of("A100") < of("A100, EDR InfiniBand")


@pytest.mark.parametrize("device", ["TPU v5p", "v4-512", "GB200"])
@pytest.mark.parametrize("cells", [{"gpus_per_node": "4"}, {"gpus_per_node": "4", "nodes": "64", "gpus": "256"}])
def test_hosts_do_not_part_links_that_join_them(device: str, cells: dict[str, str]) -> None:
    """A TPU host has four chips, and the torus joins all of a pod; a tray of a GB200 has four, and NVLink joins the rack."""
    plain = machine_of(Row(line=2, cells={"device": device})).cluster.levels
    stated = machine_of(Row(line=2, cells={"device": device, **cells})).cluster.levels
    assert stated[0] == plain[0]
    assert stated[0].size is not None
    assert stated[0].size >= 72


def test_a_sharded_run_on_tpus_is_predicted_to_take_seconds() -> None:
    """256 chips of v5p at 459 TFLOP/s: 1,024 samples of 4,096 positions through 70 billion weights need 15 s at the peak."""
    cells = {
        "model": "llama2-70b", "device": "v5p-512", "gpus_per_node": "4", "nodes": "64", "gpus": "256", "global_batch": "1024",
        "micro_batch": "4", "tp": "1", "pp": "1", "dp": "256", "seq": "4096", "precision": "bf16", "zero_stage": "3",
        "recompute": "full", "step_time_ms": "30000",
    }  # fmt: skip
    (outcome,) = PLANS.predict([Row(line=2, cells=cells)])
    assert 15.0 < seconds(outcome) < 40.0


@pytest.mark.parametrize(("device", "inside", "outside"), [("Gaudi2", 262.5e9, 37.5e9), ("Gaudi 3", 525e9, 75e9)])
def test_gaudis_are_joined_by_their_own_ethernet(device: str, inside: float, outside: float) -> None:
    """21 of 24 ports of 100 (200) Gb/s lead to the other seven, three to other nodes."""
    levels = machine_of(Row(line=2, cells={"device": device, "gpus_per_node": "8"})).cluster.levels
    assert [level.bandwidth_bytes_per_s for level in levels] == pytest.approx([inside, outside])


@pytest.mark.parametrize(
    ("device", "gbps"), [("p3.16xlarge", 25), ("V100-32GB (p3dn.24xlarge)", 100), ("DGX-1 (V100)", 400)]
)
def test_nodes_of_v100s_differ_by_their_networks(device: str, gbps: float) -> None:
    """Eight V100s on NVLink 2 in all of them."""
    inner, outer = machine_of(Row(line=2, cells={"device": device})).cluster.levels
    assert inner.size == 8
    assert outer.bandwidth_bytes_per_s * 8 == pytest.approx(gbps * 1e9 / 8)
