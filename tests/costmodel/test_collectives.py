"""Collectives: message-by-message simulation of every algorithm, PALEO's published schemes, and laws that hold for any numbers."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.collectives import (
    ALL_REDUCE_NAMES,
    COLLECTIVES,
    CollectiveError,
    all_reduce_s,
    cheapest_all_reduce,
    cheapest_s,
    collective_s,
    library_s,
    names_of,
    point_to_point_s,
)
from costmodel.device import Device
from costmodel.network import Cluster, DeviceGroup, Level, span

DEVICE = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)


def cluster(*levels: tuple[int | None, float, float] | tuple[int | None, float, float, int]) -> Cluster:
    """Levels as (size, bandwidth per device, latency[, shared by])."""
    made = [
        Level(name=f"l{i}", size=x[0], bandwidth_bytes_per_s=x[1], latency_s=x[2], shared_by=x[3] if len(x) > 3 else 1)
        for i, x in enumerate(levels)
    ]
    return Cluster(name="c", groups=(DeviceGroup(device=DEVICE),), levels=tuple(made))


# --- A simulator of rounds of messages. A rank's data is piece -> set of ranks whose contribution is in it; a message is
# (source, destination, {piece: contributions}); contributions that arrive must be new, or replace (broadcast) what is there.

Data = list[dict[int, frozenset[int]]]
Message = tuple[int, int, dict[int, frozenset[int]]]


class Network:
    def __init__(self, n: int, data: Data) -> None:
        self.n, self.data = n, data
        self.rounds: list[float] = []  # per round: most pieces that any rank sends or receives

    def run(self, messages: Iterable[Message], *, replace: bool = False) -> None:
        sent, received = [0] * self.n, [0] * self.n
        arrivals = list(messages)
        for source, target, pieces in arrivals:
            assert source != target
            for piece, content in pieces.items():
                assert self.data[source].get(piece) == content, "sends what it has"
            sent[source] += len(pieces)
            received[target] += len(pieces)
        for _, target, pieces in arrivals:
            for piece, content in pieces.items():
                have = self.data[target].get(piece, frozenset())
                assert replace or not have & content, "nothing is added twice"
                self.data[target][piece] = content if replace else have | content
        self.rounds.append(max(sent + received))

    def time_s(self, piece_bytes: float, bandwidth: float, latency: float) -> float:
        return sum(pieces * piece_bytes / bandwidth + latency for pieces in self.rounds)


def own(n: int, pieces: int) -> Data:
    return [{p: frozenset([r]) for p in range(pieces)} for r in range(n)]


def is_reduced(net: Network, pieces: int) -> bool:
    return all(rank.get(p) == frozenset(range(net.n)) for rank in net.data for p in range(pieces))


def ring(n: int) -> tuple[Network, int]:
    net = Network(n, own(n, n))
    for step in range(n - 1):
        net.run([(r, (r + 1) % n, {(p := (r - step) % n): net.data[r][p]}) for r in range(n)])
    for step in range(n - 1):
        net.run([(r, (r + 1) % n, {(p := (r + 1 - step) % n): net.data[r][p]}) for r in range(n)], replace=True)
    return net, n


def tree(n: int) -> tuple[Network, int]:
    net, distances = Network(n, own(n, 1)), [2**j for j in range(math.ceil(math.log2(n)))]
    for d in distances:
        net.run([(r + d, r, {0: net.data[r + d][0]}) for r in range(0, n, 2 * d) if r + d < n])
    for d in reversed(distances):
        net.run([(r, r + d, {0: net.data[r][0]}) for r in range(0, n, 2 * d) if r + d < n], replace=True)
    return net, 1


def one_to_all(n: int) -> tuple[Network, int]:
    net = Network(n, own(n, 1))
    for r in range(1, n):
        net.run([(r, 0, {0: net.data[r][0]})])
    for r in range(1, n):
        net.run([(0, r, {0: net.data[0][0]})], replace=True)
    return net, 1


def butterfly(n: int) -> tuple[Network, int]:
    """Bar-Noy, Kipnis, Schieber: piece 0 sums a window of w ranks from one's own, piece 1 the same without one's own."""
    net, widths = Network(n, [{0: frozenset([r]), 1: frozenset()} for r in range(n)]), [n]
    while widths[0] > 1:
        widths.insert(0, -(-widths[0] // 2))
    for width, target in itertools.pairwise(widths):
        piece, offset = (0, width) if target == 2 * width else (1, width - 1)
        arrived = [net.data[(r + offset) % n][piece] for r in range(n)]
        for r in range(n):
            assert not arrived[r] & net.data[r][0], "nothing is added twice"
            net.data[r] = {p: content | arrived[r] for p, content in net.data[r].items()}
        net.rounds.append(1)
    return net, 1


def halving_doubling(n: int) -> tuple[Network, int]:
    p = 2 ** int(math.log2(n))
    net, rest = Network(n, own(n, p)), n - p
    whole = range(p)
    if rest:
        net.run([(p + i, i, {q: net.data[p + i][q] for q in whole}) for i in range(rest)])
    d = p // 2
    while d:
        net.run(
            [
                (r, r ^ d, {q: net.data[r][q] for q in whole if q & d == (r ^ d) & d and q // (2 * d) == r // (2 * d)})
                for r in range(p)
            ]
        )
        d //= 2
    d = 1
    while d < p:
        net.run([(r, r ^ d, {q: net.data[r][q] for q in whole if q // d == r // d}) for r in range(p)], replace=True)
        d *= 2
    if rest:
        net.run([(i, p + i, {q: net.data[i][q] for q in whole}) for i in range(rest)], replace=True)
    return net, p


ALL_REDUCES: dict[str, Callable[[int], tuple[Network, int]]] = {
    "ring": ring,
    "hierarchical": ring,  # on one level
    "recursive-halving-doubling": halving_doubling,
    "tree": tree,
    "butterfly": butterfly,
    "one-to-all": one_to_all,
}


def test_every_default_all_reduce_is_simulated() -> None:
    assert set(ALL_REDUCES) == set(ALL_REDUCE_NAMES)


@pytest.mark.parametrize("name", ALL_REDUCE_NAMES)
@pytest.mark.parametrize("n", range(2, 18))
def test_all_reduce_takes_the_simulated_rounds_and_bytes(name: str, n: int) -> None:
    net, pieces = ALL_REDUCES[name](n)
    assert is_reduced(net, pieces)
    flat = cluster((None, 3e9, 0.7e-5))
    time = all_reduce_s(name, 1.3e6, span(flat, n, 1), flat)
    assert float(time) == pytest.approx(net.time_s(1.3e6 / pieces, 3e9, 0.7e-5), rel=1e-12)


def gather(n: int, *, doubling: bool) -> Network:
    net = Network(n, [{r: frozenset([r])} for r in range(n)])
    have = 1
    while have < n:
        step = min(have, n - have) if doubling else 1  # Bruck: double what one has from a rank that far away
        distance = have if doubling else 1
        first = 0 if doubling else have - 1
        net.run(
            [
                (
                    (r + distance) % n,
                    r,
                    {(r + distance + first + i) % n: frozenset([(r + distance + first + i) % n]) for i in range(step)},
                )
                for r in range(n)
            ]
        )
        have += step
    assert all(len(rank) == n for rank in net.data)
    return net


@pytest.mark.parametrize("n", range(2, 18))
def test_all_gather_takes_the_simulated_rounds_and_bytes(n: int) -> None:
    flat = cluster((None, 3e9, 0.7e-5))
    where = span(flat, n, 1)
    for name, doubling in (("ring", False), ("hierarchical", False), ("recursive-doubling", True)):
        expected = gather(n, doubling=doubling).time_s(1.3e6 / n, 3e9, 0.7e-5)
        assert float(collective_s("all_gather", name, 1.3e6, where, flat)) == pytest.approx(expected, rel=1e-12)
        # The reduce-scatter is the same messages backwards.
        back = {"recursive-doubling": "recursive-halving"}.get(name, name)
        assert float(collective_s("reduce_scatter", back, 1.3e6, where, flat)) == pytest.approx(expected, rel=1e-12)


def nodes_of(n: int, per_node: int) -> list[list[int]]:
    return [list(range(i, min(i + per_node, n))) for i in range(0, n, per_node)]


@pytest.mark.parametrize("shared_by", [1, 2, 4])
@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_all_to_all_loads_every_port(nodes: int, shared_by: int) -> None:
    """Counts the bytes through every port, pair of ranks by pair of ranks; all ports work at the same time."""
    per_node, held, inner, outer = 4, 6e6, 50e9, 2e9
    two = cluster((per_node, inner, 0.0), (None, outer, 0.0, shared_by))
    n = nodes * per_node
    out = np.zeros(n)
    leaving = np.zeros((nodes, per_node // shared_by))
    for a in range(n):
        for b in range(n):
            if a != b:
                out[a] += held / n  # nested: what leaves the node passes the links inside it too
                if a // per_node != b // per_node:
                    leaving[a // per_node, a % per_node // shared_by] += held / n
    expected = max(out.max() / inner, leaving.max() / (outer * shared_by))
    assert float(cheapest_s("all_to_all", held, span(two, n, 1), two)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("per_node", "nodes"), [(2, 2), (4, 3), (8, 2), (3, 5)])
def test_hierarchical_all_reduce_over_two_levels(per_node: int, nodes: int) -> None:
    """Rings in every node, a ring per share across nodes with the nodes' ports loaded by all of them, rings back."""
    message, inner, outer = 8e6, 60e9, 3e9
    two = cluster((per_node, inner, 2e-6), (None, outer, 9e-6))
    share = message / per_node
    inside = sum(message / per_node / inner + 2e-6 for _ in range(per_node - 1))
    across = 0.0
    for _ in range(2 * (nodes - 1)):
        leaving = sum(share / nodes for _ in range(per_node))  # out of one node
        across += leaving / (outer * per_node) + 9e-6
    time = all_reduce_s("hierarchical", message, span(two, per_node * nodes, 1), two)
    assert float(time) == pytest.approx(2 * inside + across, rel=1e-12)


@pytest.mark.parametrize(("per_node", "nodes"), [(2, 2), (4, 3), (8, 2), (4, 1), (1, 6)])
def test_ring_over_two_levels(per_node: int, nodes: int) -> None:
    """As many rings as ranks in a node, each leaving by another; bytes per port, and latencies along the edges in order."""
    message, inner, outer, near, far = 8e6, 5e9, 3e9, 2e-6, 9e-6
    n = per_node * nodes
    two = cluster((per_node, inner, near), (None, outer, far))
    port_in, port_out = np.zeros(n), np.zeros(n)
    for shift in range(per_node):
        order = [node[(i + shift) % per_node] for node in nodes_of(n, per_node) for i in range(per_node)]
        for a, b in zip(order, order[1:] + order[:1], strict=True):
            sent = 2 * (n - 1) / n * message / per_node
            (port_in if a // per_node == b // per_node else port_out)[a] += sent
    # A link inside carries the rings that do not leave by its rank; the formula charges all of them.
    assert port_in.max() / inner <= 2 * (n - 1) / n * message / inner * (1 + 1e-12)
    bytes_s = max(2 * (n - 1) / n * message / inner if per_node > 1 else 0.0, port_out.max() / outer)
    order = list(range(n))
    edges = [near if a // per_node == b // per_node else far for a, b in zip(order, order[1:] + order[:1], strict=True)]
    slowest = max(sum(edges[(start + i) % n] for i in range(2 * (n - 1))) for start in range(n))
    latency_s = float(all_reduce_s("ring", message, span(two, n, 1), two)) - bytes_s
    assert latency_s == pytest.approx(sum(edges) * 2 * (n - 1) / n, rel=1e-9)
    assert latency_s <= slowest * (1 + 1e-9)
    assert slowest <= latency_s * n / (n - 1) * (1 + 1e-9)


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
    """Two trees over 8 x 4 ranks: 2 (3 x 1 + 2 x 9) us of latency in 10 stages; 2 x 3/4 of the vector out of every node."""
    here = two_levels()
    latency, transfer = 42e-6, 1.5 * 64e6 / 80e9
    time = float(all_reduce_s("double-tree", 64e6, span(here, 32, 1), here))
    assert time == pytest.approx((math.sqrt(latency) + math.sqrt(transfer)) ** 2, rel=1e-12)
    # Stages need not be whole in the formula, nor pieces; the first piece is under way while the others follow.
    assert time == pytest.approx(least_over_pieces(10, latency, transfer), rel=0.12)
    # Inside a node the node's links count.
    inside = float(all_reduce_s("double-tree", 64e6, span(here, 8, 1), here))
    assert inside == pytest.approx((math.sqrt(6e-6) + math.sqrt(1.75 * 64e6 / 100e9)) ** 2, rel=1e-12)


def test_switches_sum_where_all_levels_can() -> None:
    one = cluster((8, 100e9, 2e-6))
    able = Cluster(name="c", groups=one.groups, levels=(replace(one.levels[0], in_network=0.5, efficiency=0.8),))
    where = span(able, 8, 1)
    time = float(all_reduce_s("in-network", 1e9, where, able))
    assert time == pytest.approx((math.sqrt(4e-6) + math.sqrt(1e9 / 50e9)) ** 2, rel=1e-12)
    # A ring sends 7/4 of the vector at 80 GB/s.
    assert time < float(all_reduce_s("ring", 1e9, where, able))
    assert float(library_s("all_reduce", 1e9, where, able)) == time
    # Without such switches, or with them inside nodes only, it is a tree.
    for here, n in ((one, 8), (two_levels(), 32)):
        tree = float(all_reduce_s("double-tree", 1e9, span(here, n, 1), here))
        assert float(all_reduce_s("in-network", 1e9, span(here, n, 1), here)) == tree


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
    assert names_of("all_reduce", in_libraries=True) == ("ring", "double-tree", "in-network")
    assert names_of("all_gather", in_libraries=True) == names_of("reduce_scatter", in_libraries=True) == ("ring",)
    here = two_levels(ring_step_s=20e-6)
    where = span(here, 64, 1)
    for operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point"):
        names = names_of(operation, in_libraries=True)
        least = min(float(collective_s(operation, name, 3e6, where, here)) for name in names)
        assert float(library_s(operation, 3e6, where, here)) == least
    with pytest.raises(CollectiveError, match="unknown operation 'broadcast'"):
        library_s("broadcast", 1.0, where, here)


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

sizes = st.integers(1, 70)
strides = st.sampled_from([1, 2, 4, 8])
messages = st.floats(1.0, 1e10)
every = st.sampled_from([key for key in COLLECTIVES if key[1] != "butterfly-mixing"])


def three_levels(bandwidth: float = 1.0, latency: float = 1.0) -> Cluster:
    return cluster(
        (2, 40e9 * bandwidth, 1e-6 * latency),
        (4, 20e9 * bandwidth, 3e-6 * latency, 2),
        (None, 1e9 * bandwidth, 2e-5 * latency, 8),
    )


@given(every, sizes, strides, messages)
@settings(max_examples=200, deadline=None)
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
@settings(max_examples=150, deadline=None)
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
@settings(max_examples=60, deadline=None)
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


def test_cheapest_takes_the_first_of_equals() -> None:
    flat = cluster((None, 1e9, 0.0))
    time, index = cheapest_all_reduce(np.array([1e6, 1e6]), span(flat, [8, 1], 1), flat)
    assert index.tolist() == [0, 0]
    assert time[0] == pytest.approx(2 * 7 / 8 * 1e-3)
    assert ALL_REDUCE_NAMES[0] == "ring"
    time, index = cheapest_all_reduce(1e6, span(flat, 8, 1), flat, names=("tree", "butterfly"))
    assert (float(time), int(index)) == (pytest.approx(3e-3), 1)


def test_small_messages_prefer_few_steps_and_large_ones_few_bytes() -> None:
    flat = cluster((None, 10e9, 5e-6))
    _, index = cheapest_all_reduce(np.array([1e2, 1e10]), span(flat, [64, 64], 1), flat)
    assert ALL_REDUCE_NAMES[int(index[0])] == "butterfly"
    assert ALL_REDUCE_NAMES[int(index[1])] in ("recursive-halving-doubling", "ring")
    two = cluster((8, 450e9, 2e-6), (None, 50e9, 5e-6))
    _, index = cheapest_all_reduce(1e6, span(two, 512, 1), two, names=("ring", "hierarchical"))
    assert int(index) == 1  # 2 x 511 steps around a ring against 14 + 126


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
