"""Every algorithm of a collective, simulated message by message."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest

from costmodel.hardware.cluster import span
from costmodel.hardware.collectives import (
    ALL_REDUCE_NAMES,
    all_reduce_s,
    cheapest_s,
    collective_s,
)
from tests.cases import mostly
from tests.costmodel.hardware.collective_cases import cluster

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


def tree(n: int) -> tuple[Network, int]:
    net, distances = Network(n, own(n, 1)), [2**j for j in range(math.ceil(math.log2(n)))]
    for d in distances:
        net.run([(r + d, r, {0: net.data[r + d][0]}) for r in range(0, n, 2 * d) if r + d < n])
    for d in reversed(distances):
        net.run([(r, r + d, {0: net.data[r][0]}) for r in range(0, n, 2 * d) if r + d < n], replace=True)
    return net, 1


def is_reduced(net: Network, pieces: int) -> bool:
    return all(rank.get(p) == frozenset(range(net.n)) for rank in net.data for p in range(pieces))


def ring(n: int) -> tuple[Network, int]:
    net = Network(n, own(n, n))
    for step in range(n - 1):
        net.run([(r, (r + 1) % n, {(p := (r - step) % n): net.data[r][p]}) for r in range(n)])
    for step in range(n - 1):
        net.run([(r, (r + 1) % n, {(p := (r + 1 - step) % n): net.data[r][p]}) for r in range(n)], replace=True)
    return net, n


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
@mostly("exact", "n", range(2, 18))
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


@mostly("exact", "n", range(2, 18))
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
