"""The whole per-layer search: two independent methods and brute force agree, and every claim holds."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.arrays import IntArray
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.collectives import ALL_REDUCE_NAMES
from costmodel.layerwise.evaluate import CHEAPEST, PlanBatch, evaluate_on
from costmodel.layerwise.plan import split_table
from costmodel.layerwise.tables import CostTables
from costmodel.network.graph import Graph
from costmodel.network.layers.base import Layer, LayerSpec
from planner.files.loading import load_cluster
from planner.files.resources import bundled
from planner.importers.networks import load_model
from strategies.layerwise.build import LayerChoice, choice_problem
from strategies.layerwise.per_layer import elimination, k_best, search
from strategies.layerwise.per_layer.problem import (
    ChoiceProblem,
    Edge,
    Limits,
    Solution,
    Status,
    memory_bytes,
    objective_s,
)
from strategies.layerwise.per_layer.search import is_confirmed, solve
from strategies.layerwise.space import Restriction
from tests.cases import mostly
from tests.networks import roofline_workload, spec
from tests.strategies.layerwise.per_layer.choice_problems import (
    TOLERANCE,
    best_by_key,
    brute_force,
    key_of,
    random_problem,
)

SHAPES = ["chain", "branching", "dense"]


def check_claims(problem: ChoiceProblem, answer: Solution[IntArray], expected: list[float]) -> None:
    """Objectives, keys, memory and bounds of a finished search."""
    assert answer.status is Status.OPTIMAL
    assert answer.objectives_s == pytest.approx(expected, rel=TOLERANCE, abs=1e-12)
    assert list(answer.objectives_s) == [objective_s(problem, c) for c in answer.choices]
    assert list(answer.objectives_s) == sorted(answer.objectives_s)
    for choice in answer.choices:
        assert memory_bytes(problem, choice) <= problem.memory_capacity_bytes * (1.0 + 1e-12)
    assert len({key_of(problem, c) for c in answer.choices}) == len(expected)
    assert expected[0] * (1.0 - 1e-11) - 1e-15 <= answer.bound_s <= expected[0] * (1.0 + 1e-12) + 1e-15


@pytest.mark.parametrize("memory", ["none", "loose", "binding"])
@pytest.mark.parametrize("shape", SHAPES)
@mostly("exact", "seed", range(40))
def test_equals_brute_force(shape: str, memory: str, seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), shape=shape, memory=memory, overlap=seed % 4 > 0)
    costs = best_by_key(problem)
    one = solve(problem, Limits(), method="elimination")
    check_claims(problem, one, costs[:1])
    assert one.method == "elimination"
    few = solve(problem, Limits(num_solutions=4), method="elimination")
    check_claims(problem, few, costs[:4])
    if len(costs) >= 4:
        assert costs[3] * (1.0 - 1e-11) <= few.rest_bound_s
    if len(costs) > 4:
        assert few.rest_bound_s <= costs[4] * (1.0 + 1e-11) + 1e-15
    if len(costs) < 4:
        assert few.rest_bound_s == math.inf


@mostly("exact", "seed", range(60))
def test_equals_the_program(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    problem = random_problem(rng, shape=SHAPES[seed % 3], memory=("none", "binding")[seed % 2])
    ours, theirs = solve(problem, Limits(), method="auto"), solve(problem, Limits(), method="program")
    assert ours.objectives_s == pytest.approx(theirs.objectives_s, rel=TOLERANCE, abs=1e-12)
    assert theirs.bound_s <= ours.objectives_s[0]
    assert ours.method == "elimination"


@mostly("exact", "seed", range(10))
def test_all_keys_in_order(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), shape=SHAPES[seed % 3], memory="binding")
    answer = solve(problem, Limits(num_solutions=10_000))
    check_claims(problem, answer, best_by_key(problem))
    assert answer.rest_bound_s == math.inf


def test_without_keys_every_choice_counts() -> None:
    problem = replace(random_problem(np.random.default_rng(5), shape="chain"), key_class=())
    answer = solve(problem, Limits(num_solutions=7))
    assert answer.objectives_s == pytest.approx([v for v, _ in brute_force(problem)][:7])


@pytest.mark.parametrize("many", [100, 0])
@mostly("exact", "seed", range(25))
def test_cutoff(seed: int, many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the bound of a spanning forest leaves out options first or not."""
    monkeypatch.setattr(search, "MANY_OPTIONS", many)
    problem = random_problem(np.random.default_rng(seed), shape=SHAPES[seed % 3], memory="binding")
    costs = best_by_key(problem)
    if costs[0] == 0.0:
        return
    nothing = solve(problem, Limits(cutoff_s=costs[0] * (1.0 - 1e-6)))
    assert (nothing.status, nothing.choices) == (Status.CUT_OFF, ())
    assert costs[0] * (1.0 - 2e-6) <= nothing.bound_s <= costs[0]
    check_claims(problem, solve(problem, Limits(cutoff_s=costs[0])), costs[:1])
    middle = costs[len(costs) // 2] * (1.0 + 1e-9)
    some = solve(problem, Limits(cutoff_s=middle, num_solutions=len(costs)))
    check_claims(problem, some, [c for c in costs if c <= middle])


def test_infeasible() -> None:
    problem = random_problem(np.random.default_rng(1), shape="branching", memory="infeasible")
    answer = solve(problem, Limits(num_solutions=3))
    assert (answer.status, answer.choices, answer.bound_s) == (Status.INFEASIBLE, (), math.inf)


@mostly("exact", "seed", range(10))
def test_gap_is_kept(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), shape="branching", memory="binding")
    best = brute_force(problem)[0][0]
    answer = solve(problem, Limits(gap=0.3))
    assert answer.status is Status.OPTIMAL
    assert answer.bound_s <= best * (1.0 + 1e-12)
    assert answer.objectives_s[0] - answer.bound_s <= 0.3 * answer.objectives_s[0] + 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_no_time(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), shape="branching", memory="binding")
    answer = solve(problem, Limits(wall_s=0.0))
    best = brute_force(problem)[0][0]
    assert answer.status is Status.FEASIBLE
    assert answer.bound_s <= best <= answer.objectives_s[0] + 1e-12
    assert solve(problem, Limits(wall_s=0.0, cutoff_s=-1.0)).status is Status.LIMIT


@pytest.mark.exact
@mostly("exact", "reason", ["tables", "labels", "layers"], quick=1)
def test_falls_back_to_the_program(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason == "tables":
        monkeypatch.setattr(elimination, "MAX_TABLE_ENTRIES", 8)
    elif reason == "labels":
        monkeypatch.setattr(search, "MAX_LABELS", 1)
        monkeypatch.setattr(search, "FIRST_BUDGET", 1)
        monkeypatch.setattr(search, "BEAM", 1)
    else:
        monkeypatch.setattr(k_best, "MAX_TRANSITIONS", 6)
    methods = set()
    for seed in range(12):
        problem = random_problem(np.random.default_rng(seed), shape="dense", memory="binding")
        costs = best_by_key(problem)
        answer = solve(problem, Limits(num_solutions=2))
        methods.add(answer.method)
        assert answer.status is Status.OPTIMAL
        assert answer.objectives_s == pytest.approx(costs[:2], rel=TOLERANCE, abs=1e-12)
        assert costs[0] * (1.0 - 1e-6) <= answer.bound_s <= costs[0] * (1.0 + 1e-12)
        alone = solve(problem, Limits(), method="elimination")
        assert alone.status in {Status.OPTIMAL, Status.FEASIBLE}
        assert alone.bound_s <= costs[0] * (1.0 + 1e-12) <= alone.objectives_s[0] * (1.0 + 1e-11)
    assert "elimination+program" in methods


@pytest.mark.exact
def test_a_small_budget_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "FIRST_BUDGET", 1)
    monkeypatch.setattr(search, "BEAM", 1)
    for seed in range(20):
        problem = random_problem(np.random.default_rng(seed), shape="dense", memory="binding")
        answer = solve(problem, Limits(num_solutions=2), method="elimination")
        check_claims(problem, answer, best_by_key(problem)[:2])


def repeated_blocks(blocks: int, *, capacity: float) -> ChoiceProblem:
    """Identical residual blocks of four nodes: ties everywhere."""
    rng = np.random.default_rng(4)
    base = [np.array([0.0])] + [rng.integers(1, 9, size=5).astype(np.float64) for _ in range(4)] * blocks
    hide = [np.minimum(b, 2.0) for b in base]
    exchange = [np.array([0.0])] + [rng.integers(0, 7, size=5).astype(np.float64) for _ in range(4)] * blocks
    memory = [np.array([0.0])] + [np.array([5.0, 4.0, 3.0, 2.0, 1.0])] * (4 * blocks)
    table = rng.integers(0, 4, size=(5, 5)).astype(np.float64) * (1.0 - np.eye(5))
    own = np.arange(5)
    pairs = [(4 * k + a, 4 * k + b) for k in range(blocks) for a, b in ((0, 1), (1, 2), (2, 3), (3, 4), (0, 4))]
    edges = tuple(
        Edge(
            producer=u,
            consumer=v,
            producer_class=own[: len(base[u])],
            consumer_class=own,
            cost_s=table if u else table[:1],
        )
        for u, v in pairs
    )
    return ChoiceProblem(
        base_s=tuple(base),
        hide_s=tuple(hide),
        exchange_s=tuple(exchange),
        memory_bytes=tuple(memory),
        edges=edges,
        memory_capacity_bytes=capacity,
        key_class=tuple(np.arange(len(b)) for b in base),
    )


@pytest.mark.parametrize("capacity", [math.inf, 70.0, 50.0])
def test_repeated_blocks_agree_with_the_program(capacity: float) -> None:
    problem = repeated_blocks(6, capacity=capacity)
    ours = solve(problem, Limits(num_solutions=10), method="elimination")
    theirs = solve(problem, Limits(), method="program")
    assert ours.status is theirs.status is Status.OPTIMAL
    assert ours.objectives_s[0] == pytest.approx(theirs.objectives_s[0])
    assert len({key_of(problem, c) for c in ours.choices}) == 10
    assert ours.rest_bound_s == pytest.approx(ours.objectives_s[-1])


def test_same_answer_twice() -> None:
    problem = repeated_blocks(5, capacity=60.0)
    first, second = (solve(problem, Limits(num_solutions=5)) for _ in range(2))
    assert [c.tolist() for c in first.choices] == [c.tolist() for c in second.choices]
    assert (first.objectives_s, first.bound_s) == (second.objectives_s, second.bound_s)


@pytest.mark.exact
@given(seed=st.integers(0, 2**32 - 1), shape=st.sampled_from(SHAPES), factor=st.sampled_from([1e-9, 1e-3, 1.0, 1e6]))
def test_units_do_not_matter(seed: int, shape: str, factor: float) -> None:
    problem = random_problem(np.random.default_rng(seed), shape=shape, memory="binding")
    scaled = replace(
        problem,
        base_s=tuple(b * factor for b in problem.base_s),
        hide_s=tuple(h * factor for h in problem.hide_s),
        exchange_s=tuple(x * factor for x in problem.exchange_s),
        edges=tuple(replace(e, cost_s=e.cost_s * factor) for e in problem.edges),
        memory_bytes=tuple(m * 1e9 for m in problem.memory_bytes),
        memory_capacity_bytes=problem.memory_capacity_bytes * 1e9,
    )
    answer = solve(scaled, Limits(), method="elimination")
    assert answer.status is Status.OPTIMAL
    assert answer.objectives_s[0] == pytest.approx(
        brute_force(problem)[0][0] * factor, rel=TOLERANCE, abs=1e-15 * factor
    )


# --- The second opinion agrees with brute force, and shouts where the first one was wrong -------------------------------------------------


@mostly("exact", "seed", range(12))
def test_the_cheapest_is_confirmed_and_nothing_dearer(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), shape="dense", memory="binding")
    costs = [value for value, _ in brute_force(problem)]
    assert is_confirmed(problem, costs[0], 60.0)
    if costs[-1] > costs[0] * 1.01:
        with pytest.raises(AssertionError, match="elimination found"):
            is_confirmed(problem, costs[-1], 60.0)


def test_what_would_take_long_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(np.random.default_rng(0), shape="dense", memory="none")
    least = brute_force(problem)[0][0]
    assert not is_confirmed(problem, least, 0.5)
    monkeypatch.setattr(search, "_CONFIRMED_PAIRS", 1)
    assert not is_confirmed(problem, least, 60.0)


# Random pieces of the bundled networks, small enough for brute force: both exact methods and the cost model agree to the digit


MOST_PLANS = 40_000
CASES = 40  # per seed


def piece(graph: Graph, random: np.random.Generator) -> Graph:
    """Take 4 to 6 neighbouring layers; what they read from outside becomes an input of that shape."""
    body = [layer for layer in graph.layers if layer.kind != "input"]
    size = min(int(random.integers(4, 7)), len(body))
    start = int(random.integers(0, len(body) - size + 1))
    chosen = body[start : start + size]
    names = {layer.name for layer in chosen}
    outside = {
        name: shape
        for layer in chosen
        for name, shape in zip(layer.inputs, layer.input_shapes, strict=True)
        if name not in names
    }
    specs = [spec(name, "input", shape=shape) for name, shape in outside.items()]
    specs += [LayerSpec(name=x.name, kind=x.kind, params=_own_weights(x), inputs=x.inputs) for x in chosen]
    return Graph.build("piece", specs)


def _own_weights(layer: Layer) -> Any:
    """Parameters of a layer whose weights may be those of one outside the piece."""
    return replace(layer.params, tied=False) if getattr(layer.params, "tied", False) else layer.params


def best_of_pieces(choice: LayerChoice, capacity: float, top: int) -> list[float]:
    """Cost of the best plans with different keys, by scoring every plan with the cost model."""
    graph, tables = choice.tables.workload.graph, choice.tables
    rows = np.array(list(itertools.product(*choice.rows)))
    batch = PlanBatch(row=rows, collective=np.full_like(rows, CHEAPEST))
    costs = evaluate_on(tables, batch)
    fits = costs.memory_bytes <= capacity
    best: dict[tuple[int, ...], float] = {}
    for row, step in zip(rows[fits][:, list(graph.weighted)], costs.step_time_s[fits], strict=True):
        key = tuple(row.tolist())
        best[key] = min(best.get(key, np.inf), float(step))
    return sorted(best.values())[:top]


@pytest.fixture(scope="module")
def graphs() -> list[Graph]:
    return [load_model(name).graph for name in sorted(bundled("models"))]


@mostly("exact", "seed", range(6), quick=0, every=3)
def test_pieces_of_real_networks(seed: int, graphs: list[Graph]) -> None:
    random = np.random.default_rng(seed)
    cluster: Cluster = load_cluster(["dgx-h100", "k20-pcie", "ethernet-10g"][seed % 3]).cluster
    device = cluster.device
    assert device is not None
    solved = infeasible = 0
    while solved + infeasible < CASES:
        graph = piece(graphs[int(random.integers(len(graphs)))], random)
        workload = roofline_workload(
            graph, device, int(random.choice([4, 6, 16, 128, 512])), collectives=tuple(ALL_REDUCE_NAMES)
        )
        compute = replace(workload.compute, overlaps_exchange=bool(random.integers(4)))
        workload = replace(workload, compute=compute, training=bool(random.integers(8)))
        workers = int(random.choice([2, 3, 4, 6, 8]))
        tables = CostTables(workload, cluster, split_table([workers]), 1)
        free = choice_problem(tables, np.inf, Restriction())
        if free is None or np.prod([float(len(rows)) for rows in free.rows]) > MOST_PLANS:
            continue
        least = sum(float(need.min()) for need in free.problem.memory_bytes)
        most = sum(float(need.max()) for need in free.problem.memory_bytes)
        share = float(random.choice([-0.01, 0.05, 0.2, 0.5, 2.0]))
        capacity = workload.context_bytes + least + share * (most - least)
        choice = choice_problem(tables, capacity, Restriction())
        assert choice is not None
        wanted = best_of_pieces(choice, capacity, 3)
        answers: dict[str, Solution[IntArray]] = {
            method: solve(choice.problem, Limits(num_solutions=top), method=method)
            for method, top in (("elimination", 3), ("program", 1))
        }
        if not wanted:
            infeasible += 1
            assert all(answer.status is Status.INFEASIBLE for answer in answers.values())
            continue
        solved += 1
        assert list(answers["elimination"].objectives_s) == pytest.approx(wanted, rel=1e-9)
        assert answers["program"].objectives_s[0] == pytest.approx(wanted[0], rel=1e-9)
        for answer in answers.values():
            assert answer.status is Status.OPTIMAL
            assert answer.bound_s <= wanted[0] * (1 + 1e-12)
    assert solved > infeasible
