"""Collectives: what libraries run, PALEO's published schemes, and laws that hold for any numbers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level, span
from costmodel.hardware.collectives import (
    ALL_REDUCE_NAMES,
    COLLECTIVES,
    OPERATIONS,
    CollectiveError,
    Protocol,
    all_reduce_s,
    cheapest_s,
    collective_s,
    library_calls,
    library_s,
    names_of,
    point_to_point_s,
)
from costmodel.mesh.communication import GroupTimes
from tests.costmodel.hardware.collective_cases import DEVICE, cluster

# --- What libraries run.


def two_levels(**changes: float) -> Cluster:
    """Nodes of eight at 100 GB/s and 1 us, joined at 10 GB/s per device and 9 us; changes are to the outer level."""
    inner = Level(name="node", size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6)
    outer = Level(name="fabric", size=None, bandwidth_bytes_per_s=10e9, latency_s=9e-6, **changes)
    return Cluster(name="c", groups=(DeviceGroup(device=DEVICE),), levels=(inner, outer))


def least_over_pieces(stages: int, latency: float, transfer: float) -> float:
    """A message in p pieces through a pipeline: p + stages - 1 steps, each the latency of a stage and a piece."""
    return min((p + stages - 1) * (latency / stages + transfer / p) for p in range(1, 4000))


def test_a_pipelined_tree_cuts_messages_as_is_best() -> None:
    """Two trees over 4 chains of 8: 2 (7 x 1 + 2 x 9) us of latency in 18 stages; twice the vector out of a node with two children."""
    here = two_levels()
    latency, transfer = 50e-6, 2.0 * 64e6 / 80e9
    time = float(all_reduce_s("double-tree", 64e6, span(here, 32, 1), here))
    assert time == pytest.approx((math.sqrt(latency) + math.sqrt(transfer)) ** 2, rel=1e-12)
    # Stages need not be whole in the formula, nor pieces; the first piece is under way while the others follow.
    assert time == pytest.approx(least_over_pieces(18, latency, transfer), rel=0.12)
    # Inside a node the node's links count.
    inside = float(all_reduce_s("double-tree", 64e6, span(here, 8, 1), here))
    assert inside == pytest.approx((math.sqrt(14e-6) + math.sqrt(2.0 * 64e6 / 100e9)) ** 2, rel=1e-12)


def most_sent_in_two_trees(ranks: int) -> float:
    """Vectors that the busiest rank sends in a balanced tree over 0..n-1, as NCCL builds it, and in its mirror image."""
    low_bit = [rank & -rank for rank in range(ranks)]
    up = [(r ^ bit) | (bit << 1) for r, bit in enumerate(low_bit)]
    parent = [None] + [up[r] if up[r] < ranks else r ^ low_bit[r] for r in range(1, ranks)]
    sent = [0.0] * ranks
    for mirrored in (False, True):
        for child, above in enumerate(parent):
            if above is None:
                continue
            for rank in (child, above):  # half a vector up, and half a vector down
                sent[ranks - 1 - rank if mirrored else rank] += 0.5
    return max(sent)


@pytest.mark.parametrize("nodes", [2, 4, 8, 16, 64])
def test_the_busiest_node_of_two_trees(nodes: int) -> None:
    """Latency and the links inside nodes are left out: what counts is the share of the vector."""
    plain = two_levels()
    inner = replace(plain.levels[0], latency_s=0.0, bandwidth_bytes_per_s=1e15)
    here = replace(plain, levels=(inner, replace(plain.levels[1], latency_s=0.0)))
    time = float(all_reduce_s("double-tree", 64e6, span(here, 8 * nodes, 1), here))
    assert time == pytest.approx(most_sent_in_two_trees(nodes) * 64e6 / 80e9, rel=1e-9)


def test_two_nodes_exceed_the_bandwidth_of_a_ring() -> None:
    """Each sends the vector once where a ring sends it nearly twice (nccl-tests on two p5.48xlarge: 487 of 400 GB/s)."""
    plain = two_levels()
    here = replace(plain, levels=(replace(plain.levels[0], bandwidth_bytes_per_s=1e12), plain.levels[1]))
    where = span(here, 16, 1)
    tree, ring = (float(all_reduce_s(name, 1e10, where, here)) for name in ("double-tree", "ring"))
    assert ring / tree == pytest.approx(2 * 15 / 16, rel=0.05)


def test_switches_sum_where_all_levels_can() -> None:
    one = cluster((8, 100e9, 2e-6))
    able = Cluster(name="c", groups=one.groups, levels=(replace(one.levels[0], in_network=0.5, efficiency=0.8),))
    where = span(able, 8, 1)
    time = float(all_reduce_s("in-network", 1e9, where, able))
    assert time == pytest.approx((math.sqrt(4e-6) + math.sqrt(1e9 / 50e9)) ** 2, rel=1e-12)
    # A ring sends 7/4 of the vector at 80 GB/s.
    assert time < float(all_reduce_s("ring", 1e9, where, able))
    # NCCL's Simple starts 1.8 us later.
    assert float(library_s("all_reduce", 1e9, where, able)) == pytest.approx(time + 1.8e-6, rel=1e-12)
    # Without such switches it is a tree.
    for here, n in ((one, 8), (two_levels(), 32)):
        tree = float(all_reduce_s("double-tree", 1e9, span(here, n, 1), here))
        assert float(all_reduce_s("in-network", 1e9, span(here, n, 1), here)) == tree


def test_switches_inside_nodes_sum_under_trees_between_them() -> None:
    """Two levels: 2 (2 + 2 x 9) us; the vector into a switch at 50 GB/s, twice the vector out of a node at 800 GB/s."""
    plain = two_levels()
    inner = replace(plain.levels[0], in_network=0.5, latency_s=2e-6)
    outer = replace(plain.levels[1], bandwidth_bytes_per_s=100e9)
    here = replace(plain, levels=(inner, outer))
    time = float(all_reduce_s("in-network", 1e9, span(here, 32, 1), here))
    assert time == pytest.approx((math.sqrt(40e-6) + math.sqrt(1e9 / 50e9)) ** 2, rel=1e-12)
    # With slow links between nodes these decide.
    slow = replace(here, levels=(inner, plain.levels[1]))
    time = float(all_reduce_s("in-network", 1e9, span(slow, 32, 1), slow))
    assert time == pytest.approx((math.sqrt(40e-6) + math.sqrt(2e9 / 80e9)) ** 2, rel=1e-12)


def test_no_step_of_a_ring_is_shorter_than_the_ring_step() -> None:
    plain, slow = two_levels(), two_levels(ring_step_s=50e-6)
    for operation, trips in (("all_reduce", 2), ("all_gather", 1), ("reduce_scatter", 1)):
        sent_s = trips * 31 / 32 * 1e6 / 80e9
        time = float(collective_s(operation, "ring", 1e6, span(slow, 32, 1), slow))
        assert time == pytest.approx(trips * 31 * 50e-6 + sent_s, rel=1e-12)
        assert time > float(collective_s(operation, "ring", 1e6, span(plain, 32, 1), plain))
        # Rings inside a node do not cross the level, and other algorithms are no rings.
        inside = (1e6, span(slow, 8, 1), slow), (1e6, span(plain, 8, 1), plain)
        assert collective_s(operation, "ring", *inside[0]) == collective_s(operation, "ring", *inside[1])
    tree = [all_reduce_s("double-tree", 1e6, span(here, 32, 1), here) for here in (plain, slow)]
    assert tree[0] == tree[1]


def test_libraries_run_fewer_algorithms_than_plans_may_name() -> None:
    known = {
        "all_reduce": {"ring", "double-tree", "in-network"},
        "all_gather": {"ring"},
        "reduce_scatter": {"ring"},
        "all_to_all": {"pairwise"},
        "point_to_point": {"direct"},
    }
    here = two_levels(ring_step_s=20e-6)
    where = span(here, 64, 1)
    for operation, names in known.items():
        calls = library_calls(operation)
        assert {name for name, _ in calls} == names
        least = min(float(collective_s(operation, n, 3e6, where, here, protocol=protocol)) for n, protocol in calls)
        assert float(library_s(operation, 3e6, where, here)) == least
    with pytest.raises(CollectiveError, match="unknown operation 'broadcast'"):
        library_s("broadcast", 1.0, where, here)


def test_gloo_wakes_threads_and_reduces_all_to_scatter() -> None:
    """Two ranks, 1 MB at 1 GB/s, steps of 1 ms: a step to a neighbour, one more to wake threads, and an all-reduce for a reduce-scatter."""
    level = Level(name="host", size=2, bandwidth_bytes_per_s=1e9, latency_s=1e-3, transport="gloo")
    here = replace(two_levels(), levels=(level, *two_levels().levels[1:]))
    assert here.library == "gloo"
    where = span(here, 2, 1)
    found_ms = {name: 1e3 * float(library_s(name, 1e6, where, here)) for name in OPERATIONS}
    assert found_ms == pytest.approx(
        {"all_reduce": 4.0, "reduce_scatter": 4.0, "all_gather": 2.5, "all_to_all": 2.5, "point_to_point": 2.0}
    )


def by_protocol(operation: str, name: str, message: float, here: Cluster, ranks: int) -> dict[str, float]:
    where = span(here, ranks, 1)
    return {
        protocol.name: float(collective_s(operation, name, message, where, here, protocol=protocol))
        for called, protocol in library_calls(operation, "nccl", "engine")
        if called == name
    }


def test_protocols_of_a_ring_by_hand() -> None:
    """32 ranks in 4 nodes: 31/32 of 64 MB at 80 GB/s, in 31 steps. The edges of 9 us between nodes set their pace.

    LL has 0.18 and 0.36 of the latencies and a tenth of the rate between nodes, LL128 0.56 and 0.61 of them and 0.92 of the rate. In
    Simple two pieces may be on an edge, else eight, and the next one waits for a round trip. What stays is copied at 0.28 of 100 GB/s.
    """
    found = by_protocol("all_gather", "ring", 64e6, two_levels(), 32)
    sent, copied = 31 / 32 * 64e6 / 80e9, 2e6 / 28e9
    assert found == pytest.approx(
        {
            "LL": 31 * 2 / 8 * 0.36 * 9e-6 + sent / 0.1,
            "LL128": 31 * 2 / 8 * 0.61 * 9e-6 + sent / 0.92 + copied + 7.4e-6,
            "Simple": 31 * 9e-6 + sent + copied + 1.8e-6,
        },
        rel=1e-12,
    )


def trip_around(edges: list[float], window: int) -> float:
    """When the last piece of an all-gather has gone around: rank r sends piece k to rank r + 1, which then says that its place is free."""
    ranks = len(edges)
    arrived = np.zeros((ranks, ranks))  # at rank r, its k-th piece; the one before the first is its own
    for k in range(1, ranks):
        for r in range(ranks):
            sent = arrived[r - 1, k - 1]
            if k > window:
                sent = max(sent, arrived[r, k - window] + edges[r - 1])
            arrived[r, k] = sent + edges[r - 1]
    return float(arrived.max())


@pytest.mark.parametrize(("window", "step"), [(1, 18e-6), (2, 9e-6), (4, 4.5e-6), (8, 2.25e-6), (31, 2e-6)])
def test_a_window_makes_the_slowest_edge_of_a_ring_count(window: int, step: float) -> None:
    """32 ranks in 4 nodes: edges of 1 and 9 us, 2 us on average; of w pieces on an edge the next waits for the first one's round trip."""
    here = two_levels()
    found = float(
        collective_s("all_gather", "ring", 1e-9, span(here, 32, 1), here, protocol=Protocol(name="", in_flight=window))
    )
    assert found == pytest.approx(31 * step, rel=1e-6)
    assert found == pytest.approx(trip_around(([1e-6] * 7 + [9e-6]) * 4, window), rel=0.2)


def test_links_that_reorder_bytes_know_one_protocol() -> None:
    found = by_protocol("all_gather", "ring", 64e6, two_levels(is_ordered=False), 32)
    assert [name for name, time in found.items() if math.isinf(time)] == ["LL", "LL128"]
    # Inside a node these links are not crossed.
    assert by_protocol("all_gather", "ring", 64e6, two_levels(is_ordered=False), 8) == by_protocol(
        "all_gather", "ring", 64e6, two_levels(), 8
    )


def test_messages_to_all_are_on_their_way_together() -> None:
    """In LL 7 posts of 0.18 us inside a node and 24 of 3.24 us; a piece of 1/32 to each, 24/32 of what 8 ranks hold leaves a node."""
    found = by_protocol("all_to_all", "pairwise", 1e3, two_levels(), 32)["LL"]
    assert found == pytest.approx(7 * 0.18e-6 + 24 * 3.24e-6 + 8 * 24 / 32 * 1e3 / 8e9, rel=1e-12)


def test_above_16_kib_to_each_an_all_to_all_goes_by_simple() -> None:
    """Though LL would be quicker: two ranks, 32 KiB and then 2 bytes more, of which one half goes to the other."""
    here = two_levels()
    where = span(here, 2, 1)
    found = by_protocol("all_to_all", "pairwise", 32770.0, here, 2)
    assert found["LL"] < found["Simple"]
    assert float(library_s("all_to_all", 32770.0, where, here)) == found["Simple"]
    at_most = by_protocol("all_to_all", "pairwise", 32768.0, here, 2)
    assert float(library_s("all_to_all", 32768.0, where, here)) == at_most["LL"]
    groups = GroupTimes(cluster=here)
    two = groups.find(np.array([2]), np.array([1]), np.array([0]))
    for message, time in ((32768.0, at_most["LL"]), (32770.0, found["Simple"])):
        assert groups.time_s("all_to_all", two, np.array([message]))[0] == pytest.approx(time, rel=1e-9)


def test_engines_read_the_memory_of_one_another() -> None:
    """One shot: 7 vectors of 1 kB at 0.75 of 100 GB/s; a flag of 0.18 us and 0.04 us for each of six more. Two shots: 7/8 kB, twice."""
    here = two_levels()
    one, two = (by_protocol("all_reduce", name, 1e3, here, 8)["read"] for name in ("one-shot", "two-shot"))
    assert one == pytest.approx(0.18e-6 + 6 * 0.04e-6 + 7e3 / 75e9, rel=1e-12)
    assert two == pytest.approx(2 * (0.18e-6 + 6 * 0.04e-6 + 7 / 8 * 1e3 / 75e9), rel=1e-12)
    where = span(here, 8, 1)
    assert float(library_s("all_reduce", 1e3, where, here, in_engines=True)) == one
    groups = GroupTimes(cluster=here, in_engines=True)
    eight = groups.find(np.array([8]), np.array([1]), np.array([0]))
    assert groups.time_s("all_reduce", eight, np.array([1e3]))[0] == pytest.approx(one, rel=1e-9)
    assert float(library_s("all_reduce", 1e3, where, here)) > one
    assert math.isinf(by_protocol("all_reduce", "one-shot", 1e3, here, 16)["read"])


# Microseconds of eight ranks of an H100 node (AIConfigurator, h100_sxm, NCCL 2.29.2): bytes -> all-gather. Only the node's latency is
# from such a machine; protocols, starts and copies are what NCCL's sources say.
@pytest.mark.parametrize(
    ("message", "measured_us"), [(2**10, 10.4), (2**19, 13.6), (2**21, 22.1), (2**24, 68.1), (2**29, 1398.6)]
)
def test_published_all_gathers_inside_a_node(message: int, measured_us: float) -> None:
    from planner.files.loading import load_cluster

    here = load_cluster("dgx-h100").cluster
    time_s = 6.6e-6 + float(library_s("all_gather", message, span(here, 8, 1), here))
    assert time_s == pytest.approx(measured_us * 1e-6, rel=0.15)


def test_ideal_links_have_no_steps_and_no_sums() -> None:
    ideal = two_levels(ring_step_s=20e-6, in_network=0.5).with_ideal_links(0.7)
    assert [(level.ring_step_s, level.in_network, level.latency_s) for level in ideal.levels] == [(0.0, 0.0, 0.0)] * 2


# --- PALEO.


def test_paleo_schemes(reference_data: Path) -> None:
    path = reference_data / "paleo" / "reference" / "comm_schemes.json"
    published = json.loads(path.read_text())
    columns = published["columns"]
    names = {
        "one-to-all": "OneToAll_ms",
        "tree": "TreeAllReduce_ms",
        "butterfly": "ButterflyAllReduce_ms",
        "butterfly-mixing": "ButterflyMixing_ms",
    }
    compared = 0
    for row in published["rows"]:
        value = dict(zip(columns, row, strict=True))
        flat = cluster((None, value["bandwidth_gbps"] / 8 * 1e9, 0.0))
        where = span(flat, value["workers"], 1)
        for name, column in names.items():
            time_ms = float(all_reduce_s(name, value["bytes"], where, flat, value["ppp_comm"])) * 1e3
            assert time_ms == pytest.approx(value[column], rel=1e-12, abs=0.0)
            ideal = flat.with_ideal_links(value["ppp_comm"])
            again_ms = float(all_reduce_s(name, value["bytes"], span(ideal, value["workers"], 1), ideal)) * 1e3
            assert again_ms == pytest.approx(value[column], rel=1e-12, abs=0.0)
            compared += 1
    assert compared == 4 * 1836


# --- Laws.

messages = st.floats(1.0, 1e10)
sizes = st.integers(1, 70)
strides = st.sampled_from([1, 2, 4, 8])
every = st.sampled_from([key for key in COLLECTIVES if key[1] != "butterfly-mixing"])


def three_levels(bandwidth: float = 1.0, latency: float = 1.0) -> Cluster:
    return cluster(
        (2, 40e9 * bandwidth, 1e-6 * latency),
        (4, 20e9 * bandwidth, 3e-6 * latency, 2),
        (None, 1e9 * bandwidth, 2e-5 * latency, 8),
    )


@given(every, sizes, strides, messages)
def test_monotone_and_free_where_nothing_is_sent(key: tuple[str, str], n: int, t: int, message: float) -> None:
    here = three_levels()
    where = span(here, n, t)
    time = float(collective_s(*key, message, where, here))
    assert math.isfinite(time)
    if n == 1:
        assert time == 0.0
        return
    assert time > 0.0
    assert float(collective_s(*key, 0.0, where, here)) == 0.0
    assert float(collective_s(*key, 2 * message, where, here)) >= time
    wider, slower = three_levels(bandwidth=2.0), three_levels(latency=2.0)
    assert float(collective_s(*key, message, span(wider, n, t), wider)) <= time
    assert float(collective_s(*key, message, span(slower, n, t), slower)) >= time
    # Half the bandwidth by ppp_comm is half the bandwidth.
    half = three_levels(bandwidth=0.5)
    assert float(collective_s(*key, message, where, here, 0.5)) == pytest.approx(
        float(collective_s(*key, message, span(half, n, t), half)), rel=1e-12
    )


@given(sizes, strides, messages)
def test_no_all_reduce_beats_the_cut(n: int, t: int, message: float) -> None:
    """Every rank, and every unit, must send and receive at least 2 (u - 1)/u of the vector where there are u of them."""
    here = three_levels(latency=0.0)
    where = span(here, n, t)
    bound = 0.0
    for i in range(3):
        u = float(where.units_inside[i])
        if where.is_spanned[i] and i == np.flatnonzero(where.is_spanned).max():
            bound = 2 * (u - 1) / u * message / float(where.most_bytes_per_s[i])
    for name in ALL_REDUCE_NAMES:
        assert float(all_reduce_s(name, message, where, here)) >= bound * (1 - 1e-12)
    if n > 1:
        first = float(where.single_bytes_per_s[0])
        assert float(cheapest_s("all_reduce", message, where, here)) >= 2 * (n - 1) / n * message / first * (1 - 1e-12)


@given(st.integers(2, 64), messages)
def test_an_all_reduce_is_a_scatter_and_a_gather(n: int, message: float) -> None:
    here = three_levels()
    where = span(here, n, 1)
    for name in ("ring", "hierarchical"):
        halves = sum(float(collective_s(op, name, message, where, here)) for op in ("reduce_scatter", "all_gather"))
        assert float(all_reduce_s(name, message, where, here)) == pytest.approx(halves, rel=1e-12)
    # Folding ranks in and out costs no less than the partners that need no power of two.
    bruck = 2 * float(collective_s("all_gather", "recursive-doubling", message, where, here))
    assert float(all_reduce_s("recursive-halving-doubling", message, where, here)) >= bruck * (1 - 1e-12)


def test_batches_equal_scalars() -> None:
    here = three_levels()
    n, t = np.arange(1, 41)[:, None], np.array([1, 2, 8])
    message = np.geomspace(1.0, 1e9, 40)[:, None] * np.ones(3)
    where = span(here, n, t)
    for operation, name in COLLECTIVES:
        batch = collective_s(operation, name, message, where, here)
        assert batch.shape == (40, 3)
        for i in range(0, 40, 7):
            for j in range(3):
                one = collective_s(operation, name, message[i, j], span(here, i + 1, t[j]), here)
                assert float(one) == batch[i, j]


def cheapest(message: float, ranks: int, on: Cluster, names: tuple[str, ...] = ALL_REDUCE_NAMES) -> str:
    """Name of the quickest all-reduce."""
    return min(names, key=lambda name: float(all_reduce_s(name, message, span(on, ranks, 1), on)))


def test_small_messages_prefer_few_steps_and_large_ones_few_bytes() -> None:
    flat = cluster((None, 10e9, 5e-6))
    assert cheapest(1e2, 64, flat) == "butterfly"
    assert cheapest(1e10, 64, flat) in ("recursive-halving-doubling", "ring")
    two = cluster((8, 450e9, 2e-6), (None, 50e9, 5e-6))
    # 2 x 511 steps around a ring against 14 + 126
    assert cheapest(1e6, 512, two, ("ring", "hierarchical")) == "hierarchical"


def test_point_to_point_pays_the_outermost_level() -> None:
    two = cluster((8, 100e9, 1e-6), (None, 10e9, 5e-6))
    times = point_to_point_s(1e6, span(two, [2, 2, 1], [1, 8, 1]), two)
    assert times.tolist() == pytest.approx([1e-6 + 1e-5, 5e-6 + 1e-4, 0.0])


def test_unknown_names() -> None:
    flat = cluster((None, 1e9, 0.0))
    with pytest.raises(CollectiveError, match="no algorithm 'rings'; did you mean 'ring'"):
        all_reduce_s("rings", 1.0, span(flat, 2, 1), flat)
    with pytest.raises(CollectiveError, match="unknown operation 'broadcast'"):
        cheapest_s("broadcast", 1.0, span(flat, 2, 1), flat)
    assert "butterfly-mixing" in names_of("all_reduce")
    assert "butterfly-mixing" not in ALL_REDUCE_NAMES


def test_every_algorithm_says_what_it_is() -> None:
    for algorithm in COLLECTIVES.values():
        assert 10 < len(algorithm.summary) < 120
