"""Rows of collectives: by hand, by what was published, and in other words."""

from __future__ import annotations

import pytest

from benchmarks.datasets.reading import Row
from planner.files.loading import load_cluster
from planner.measurements.outcomes import Outcome
from tests.benchmarks.datasets.published_rows import COLLECTIVES, only, seconds


def test_an_all_reduce_inside_a_node_by_hand() -> None:
    found = only(COLLECTIVES, collective="all_reduce", device="A100-80GB", ranks=8, bytes=2**30, busbw_GBps=232)
    level = load_cluster("dgx-a100").cluster.levels[0]
    ring_s = 14 * (level.latency_s + 2**27 / (level.bandwidth_bytes_per_s * level.efficiency))
    comparison = found.comparisons[0]
    assert comparison.predicted_s == pytest.approx(5e-6 + ring_s, rel=1e-9)  # after the launch of a kernel
    assert comparison.measured_s == pytest.approx(2**30 * 2 * 7 / 8 / 232e9)


@pytest.mark.parametrize("name", ["broadcast_perf", "ncclBcast", "Reduce"])
def test_from_or_to_one_rank_by_hand(name: str) -> None:
    """Seven hops around the ring, and the whole message over every link in pieces; bus and algorithm bandwidth are one (nccl-tests)."""
    found = only(COLLECTIVES, collective=name, device="A100-80GB", ranks=8, bytes=2**30, busbw_GBps=230)
    level = load_cluster("dgx-a100").cluster.levels[0]
    chain_s = 7 * level.latency_s + 2**30 / (level.bandwidth_bytes_per_s * level.efficiency)
    (comparison,) = found.comparisons
    assert comparison.predicted_s == pytest.approx(5e-6 + chain_s, rel=1e-9)
    assert comparison.measured_s == pytest.approx(2**30 / 230e9)
    assert comparison.what in ("broadcast", "reduce")


def test_switches_that_sum_by_hand() -> None:
    found = only(COLLECTIVES, collective="all_reduce", device="H100", ranks=8, bytes=2**30, busbw_GBps=466)
    # A launch of 5 us, two hops of 4 us, 1 GiB at 0.61 of 450 GB/s, and the pieces in which it travels.
    expected = 5e-6 + (8e-6**0.5 + (2**30 / (0.61 * 450e9)) ** 0.5) ** 2
    assert found.comparisons[0].predicted_s == pytest.approx(expected, rel=1e-6)
    assert found.comparisons[0].predicted_s == pytest.approx(found.comparisons[0].measured_s, rel=0.1)


# Microseconds that nccl-tests took on two p5.48xlarge (aws-samples, awsome-distributed-training, micro-benchmarks/nccl-tests, README).
TWO_P5 = {8: 69.12, 2**20: 123.2, 2**24: 298.1, 2**27: 870.3, 2**30: 4607.6, 2**34: 66132.0}


@pytest.mark.parametrize(("message", "measured_us"), TWO_P5.items())
def test_an_all_reduce_over_two_nodes_sums_in_switches_inside_them(message: int, measured_us: float) -> None:
    row = {"collective": "all_reduce", "nodes": 2, "ranks": 16, "bytes": message, "time_us": measured_us}
    found = only(COLLECTIVES, device="p5.48xlarge", **row).comparisons[0]
    assert found.predicted_s == pytest.approx(found.measured_s, rel=0.2)


def test_names_of_links_and_machines_mean_their_clusters() -> None:
    def predicted_s(device: str, **values: object) -> float:
        row = {"collective": "all_gather", "ranks": 64, "nodes": 8, "bytes": 2**28, "busbw_GBps": 100, **values}
        return only(COLLECTIVES, device=device, **row).comparisons[0].predicted_s

    # 63 steps of a ring over Elastic Fabric Adapters of 40 us each; InfiniBand has no such step.
    assert predicted_s("H100 SXM + EFA (p5)") > 63 * 40e-6 > predicted_s("H100 SXM")
    # "NVLink" in a name is no PCI Express card ("NVL").
    inside = {"ranks": 8, "nodes": 1}
    assert predicted_s("H100-80GB HBM3 DGX (NVLink4/NVSwitch)", **inside) == predicted_s("H100 SXM", **inside)
    assert predicted_s("H100 NVL", **inside) > 2 * predicted_s("H100 SXM", **inside)


def test_links_named_in_place_of_a_device() -> None:
    slow = only(COLLECTIVES, device="100GbE TCP sockets", ranks="", nodes="", bytes="", busbw_GBps=10)
    fast = only(COLLECTIVES, device="NVL4 + 8x400Gb RDMA (DGX H100)", ranks="", nodes="", bytes="", busbw_GBps=380)
    assert slow.comparisons[0].predicted_s > 10 * fast.comparisons[0].predicted_s


def test_what_was_fitted_of_the_links_counts() -> None:
    """Inside a node the efficiency of NVLink, over two that of InfiniBand, too; measured numbers that a row states itself do not."""
    cells = {"device": "a100-80gb", "bytes": "1e9", "time_us": "9000", "ranks": "8", "nodes": "1"}
    one, two = (
        COLLECTIVES.predict([Row(line=2, cells={**cells, **more})])[0].fitted
        for more in ({}, {"ranks": "16", "nodes": "2"})
    )
    assert one == {"dgx-a100 nvlink: efficiency"}
    assert two == {"dgx-a100 nvlink: efficiency", "dgx-a100 infiniband: efficiency"}


def message(**cells: str) -> Outcome:
    row = {"device": "h100-sxm", "nodes": "2", "ranks": "16", "bytes": "268435456", "time_us": "1500", **cells}
    return COLLECTIVES.predict([Row(line=2, cells=row)])[0]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("AllReduce", "all_reduce"), ("allgather", "all_gather"), ("reduce_scatter_perf", "reduce_scatter"), ("ncclAllToAll", "all_to_all"),
        ("sendrecv", "point_to_point"), ("reducescatter", "reduce_scatter"), ("all-gather-into-tensor", "all_gather"),
    ],
)  # fmt: skip
def test_collectives_by_the_names_of_libraries(text: str, name: str) -> None:
    assert message(collective=text).comparisons[0].what == name


def test_sizes_of_messages_in_other_units() -> None:
    plain = message()
    for text in ("256M", "256 MiB", "0.25 GiB", "268,435,456"):
        assert seconds(message(bytes=text)) == seconds(plain)
    assert message(time_us="1.5 ms").comparisons[0].measured_s == pytest.approx(1.5e-3)


def test_a_bandwidth_of_rings_or_a_range_where_there_is_no_other() -> None:
    traffic = 268435456 * 2 * 15 / 16
    ring = message(time_us="", busbw_ring_GBps="300")
    assert ring.comparisons[0].measured_s == pytest.approx(traffic / 300e9)
    both = message(time_us="", busbw_min="200", busbw_max="300", busbw_ring_GBps="100")
    assert both.comparisons[0].measured_s == pytest.approx(traffic / 250e9)
    assert message(time_us="", busbw_GBps="350", busbw_ring_GBps="100").comparisons[0].measured_s == pytest.approx(
        traffic / 350e9
    )


@pytest.mark.parametrize(
    ("text", "gbps"),
    [("400Gb IB", 400), ("HDR InfiniBand", 200), ("2x EDR", 200), ("25GbE TCP", 25), ("100 Gb/s", 100)],
)
def test_names_of_networks(text: str, gbps: float) -> None:
    """A row of 4 nodes with one rank each sees the whole link of a node."""
    outcome = message(device=text, nodes="4", ranks="4", time_us="", busbw_GBps=str(gbps / 8 * 0.9))
    assert not outcome.skipped
    ideal = 268435456 * 2 * 3 / 4 / (gbps / 8 * 1e9)
    assert outcome.comparisons[0].ideal_s == pytest.approx(ideal)
