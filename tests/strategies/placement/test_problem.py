"""The problem's own checks, loads by several ways of counting, contraction, down-sets, orders and segments."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.placement.check import check_throughput
from planner.placement.placement_file import assignment_of
from strategies.placement.chain import TooManyIdealsError, enumerate_ideals, ideals_from_orders
from strategies.placement.contraction import BlockGraph, contract, contract_classes
from strategies.placement.loads import device_loads
from strategies.placement.orders import OrderedBlocks, sample_orders
from strategies.placement.problem import (
    EdgeSpec,
    NodeSpec,
    Placement,
    PlacementFaultsError,
    PlacementProblem,
    PlacementResult,
)
from tests.strategies.placement.small_problems import accelerator_loads, content_of, members_of, random_problem


def node(id: Any, time: float = 1.0, **more: Any) -> NodeSpec:  # noqa: A002 - the type's word
    return NodeSpec(id=id, accelerator_time=time, cpu_time=10 * time, **more)


def build(nodes: list[NodeSpec], edges: list[EdgeSpec], *, memory: float = 100.0, cpus: int = 1) -> PlacementProblem:
    return PlacementProblem.build(nodes, edges, num_accelerators=2, num_cpus=cpus, memory_bytes=memory)


def test_order_in_the_file_does_not_matter() -> None:
    nodes, edges = [node(i) for i in range(5)], [EdgeSpec(0, 3, 1.0), EdgeSpec(0, 4, 1.0), EdgeSpec(3, 4, 2.0)]
    one, two = build(nodes, edges), build(nodes[::-1], edges[::-1])
    assert one.node_ids == two.node_ids
    assert one.hyperedges.pin.tolist() == two.hyperedges.pin.tolist() == [0, 3, 4, 3, 4]
    assert one.hyperedges.cost.tolist() == [1.0, 2.0]


def test_names_and_numbers_may_both_be_ids() -> None:
    assert build([node("b"), node(7), node("a")], []).node_ids == (7, "a", "b")


@pytest.mark.parametrize(
    ("nodes", "edges", "expected"),
    [
        ([], [], "empty"),
        ([node(1), node(1)], [], "used twice"),
        ([node(1, float("nan"))], [], "finite number"),
        ([node(1, -1.0)], [], "at least 0"),
        ([node(1)], [EdgeSpec(1, 2, 0.0)], "not in the list of nodes"),
        ([node(1), node(2)], [EdgeSpec(1, 2, -1.0)], "cost is -1"),
        ([node(1), node(2)], [EdgeSpec(1, 2, 0.0), EdgeSpec(2, 1, 0.0)], "cycle of 2 nodes: 1 -> 2 -> 1"),
        ([node(1, backward=True), node(2)], [EdgeSpec(1, 2, 0.0)], "backward node 1 to forward node 2"),
        ([node(1), node(2), node(3)], [EdgeSpec(1, 2, 1.0), EdgeSpec(1, 3, 2.0)], "differ"),
    ],
)
def test_refuses(nodes: list[NodeSpec], edges: list[EdgeSpec], expected: str) -> None:
    with pytest.raises(PlacementFaultsError, match=expected):
        build(nodes, edges)


def test_refuses_what_fits_no_device() -> None:
    nodes = [node(1, size_bytes=60.0, color=5), node(2, size_bytes=60.0, color=5), node(3, supported=False)]
    with pytest.raises(PlacementFaultsError) as caught:
        build(nodes, [], cpus=0)
    assert [fault.index for fault in caught.value.faults] == [0, 2]
    assert build(nodes, []).num_colors == 2  # a CPU has room


def test_gap_and_proof() -> None:
    def result(objective: float, bound: float) -> PlacementResult:
        return PlacementResult(placement=None, objective=objective, bound=bound, method="", proof="")

    assert result(10.0, 9.0).gap == pytest.approx(0.1)
    assert result(10.0, 10.0).proven_optimal
    assert not result(10.0, 9.9999).proven_optimal
    assert result(np.inf, np.inf).proven_optimal  # provably none
    assert result(np.inf, 3.0).gap == np.inf
    assert result(0.0, 0.0).proven_optimal


@given(st.integers(0, 10_000), st.data())
def test_loads_agree_with_the_checker(seed: int, data: st.DataObject) -> None:
    problem = random_problem(seed)
    drawn = data.draw(
        st.lists(st.integers(0, problem.num_devices - 1), min_size=problem.num_nodes, max_size=problem.num_nodes)
    )
    device = np.array(drawn, dtype=np.int64)
    loads = device_loads(problem, device)
    names = [problem.device_name(d) for d in range(problem.num_devices)]
    device_of = assignment_of(problem, Placement(device=device))
    checked = check_throughput(content_of(problem), device_of)
    assert {evaluated.name for evaluated in checked.devices} == set(device_of.values())  # those that hold operators
    for evaluated in checked.devices:
        d = names.index(evaluated.name)
        assert loads.compute[d] == pytest.approx(evaluated.compute)
        assert loads.communication[d] == pytest.approx(evaluated.communication)
        assert loads.memory_bytes[d] == pytest.approx(evaluated.memory_bytes)
        assert loads.num_nodes[d] == len(evaluated.nodes)
    assert int(loads.num_nodes.sum()) == sum(len(evaluated.nodes) for evaluated in checked.devices)
    members = device[None, :] == np.arange(problem.num_accelerators)[:, None]
    assert accelerator_loads(problem, members) == pytest.approx(loads.load[: problem.num_accelerators])


@given(st.integers(0, 10_000), st.data())
def test_load_is_submodular_and_blocks_keep_it(seed: int, data: st.DataObject) -> None:
    problem = random_problem(seed)
    graph = contract_classes(problem)
    sets = st.lists(st.booleans(), min_size=graph.num_blocks, max_size=graph.num_blocks)
    one, two = np.array(data.draw(sets)), np.array(data.draw(sets))
    rows = np.stack((one, two, one | two, one & two))[:, graph.block]
    f = accelerator_loads(problem, rows)
    assert f[0] + f[1] >= f[2] + f[3] - 1e-9
    # The same load from the merged hyperedges of blocks.
    cost = 0.0
    for h in range(len(graph.hyperedge_cost)):
        pins = graph.pin[graph.pin_start[h] : graph.pin_start[h + 1]]
        cost += graph.hyperedge_cost[h] * (0 < one[pins].sum() < len(pins))
    assert one @ graph.accelerator_time + cost == pytest.approx(f[0])


def test_a_class_of_backward_operators_is_ordered_in_reverse() -> None:
    nodes = [node(1), node(2), node(3, backward=True, color="a"), node(4, backward=True, color="b")]
    graph = contract(build(nodes, [EdgeSpec(1, 2, 0.0), EdgeSpec(3, 4, 0.0)]))
    block = dict(zip((1, 2, 3, 4), graph.block.tolist(), strict=True))
    edges = set(zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True))
    assert edges == {(block[1], block[2]), (block[4], block[3])}


def test_blocks_on_a_cycle_unite() -> None:
    nodes = [node(1, color="a"), node(2), node(3, color="a"), node(4)]
    graph = contract(build(nodes, [EdgeSpec(1, 2, 0.0), EdgeSpec(2, 3, 0.0), EdgeSpec(3, 4, 0.0)]))
    assert graph.block.tolist() == [0, 0, 0, 1]
    assert graph.accelerator_time.tolist() == [3.0, 1.0]


@pytest.mark.parametrize(
    ("first", "memory", "merged"),
    [
        (node(1, 0.0), 100.0, True),
        (node(1, 0.0, size_bytes=5.0), 100.0, True),
        (node(1, 0.0, size_bytes=5.0), 20.0, False),  # where memory is scarce a weight has a choice of its own
        (node(1, 0.0, supported=False), 100.0, False),
        (node(1, 1e-9), 100.0, False),
    ],
)
def test_blocks_without_time_join_their_only_neighbour(first: NodeSpec, memory: float, merged: bool) -> None:
    nodes = [first, node(2, size_bytes=9.0), node(3, size_bytes=9.0)]
    graph = contract(build(nodes, [EdgeSpec(1, 2, 1.0), EdgeSpec(2, 3, 1.0)], memory=memory))
    assert graph.num_blocks == (2 if merged else 3)


def test_chains_of_trivial_blocks_collapse() -> None:
    nodes = [*(node(i, 0.0) for i in range(5)), node(5)]
    graph = contract(build(nodes, [EdgeSpec(i, i + 1, 1.0) for i in range(5)]))
    assert graph.num_blocks == 1
    assert len(graph.hyperedge_cost) == 0


def down_sets(graph: BlockGraph) -> set[tuple[int, ...]]:
    edges = list(zip(graph.edge_source.tolist(), graph.edge_target.tolist(), strict=True))
    return {
        chosen
        for size in range(graph.num_blocks + 1)
        for chosen in itertools.combinations(range(graph.num_blocks), size)
        if all(u in chosen for u, v in edges if v in chosen)
    }


def test_every_down_set_is_found_once() -> None:
    for seed in range(80):
        graph = contract(random_problem(seed))
        family = enumerate_ideals(graph, limit=10_000)
        found = [members_of(bits) for bits in family.bits]
        assert len(found) == len(set(found))
        assert set(found) == down_sets(graph)
        assert found[0] == ()
        assert len(found[-1]) == graph.num_blocks
        assert np.all(np.diff(family.accelerator_time) >= 0)
        with pytest.raises(TooManyIdealsError, match="more than"):
            enumerate_ideals(graph, limit=1)


def test_stages_between_down_sets_cost_what_they_cost() -> None:
    for seed in range(60):
        problem = random_problem(seed)
        graph = contract(problem)
        family = enumerate_ideals(graph, limit=10_000)
        sets = [set(members_of(bits)) for bits in family.bits]
        pairs = [(i, j) for i in range(len(sets)) for j in range(len(sets)) if sets[i] < sets[j]]
        inner = np.array([i for i, _ in pairs], dtype=np.int64)
        outer = np.array([j for _, j in pairs], dtype=np.int64)
        rows = np.zeros((len(pairs), graph.num_blocks), dtype=bool)
        for row, (i, j) in enumerate(pairs):
            rows[row, list(sets[j] - sets[i])] = True
            assert i < j  # a set comes before every set that holds it
        loads = accelerator_loads(problem, rows[:, graph.block])
        compute = rows[:, graph.block] @ problem.accelerator_time
        assert family.communication(inner, outer) == pytest.approx(loads - compute, abs=1e-9)


def test_orders_are_topological_and_give_down_sets() -> None:
    for seed in range(30):
        graph = contract(random_problem(seed))
        orders = sample_orders(graph, 8, seed)
        for order in orders:
            rank = np.argsort(order)
            assert sorted(order.tolist()) == list(range(graph.num_blocks))
            assert np.all(rank[graph.edge_source] < rank[graph.edge_target])
        family = ideals_from_orders(graph, orders)
        assert {members_of(bits) for bits in family.bits} <= down_sets(graph)


def test_segments_cost_what_they_cost() -> None:
    for seed in range(60):
        problem = random_problem(seed)
        graph = contract(problem)
        order = sample_orders(graph, 4, seed)[-1]
        blocks = OrderedBlocks(graph, order)
        for begin in range(graph.num_blocks):
            rows = np.zeros((graph.num_blocks - begin, graph.num_blocks), dtype=bool)
            for end in range(begin + 1, graph.num_blocks + 1):
                rows[end - begin - 1, order[begin:end]] = True
            expected = accelerator_loads(problem, rows[:, graph.block])
            found = blocks.loads(begin)
            legal = ~(rows & ~graph.supported).any(axis=1)
            assert found[legal] == pytest.approx(expected[legal], abs=1e-9)
            assert np.all(np.isinf(found[~legal]))
