"""Bounds of worker counts, against the exact solver, the cost model and one another, on random networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.host import Power
from costmodel.layerwise.evaluate import batch_of, evaluate_on
from costmodel.layerwise.plan import SplitTable, split_table
from costmodel.layerwise.tables import CostCache, CostTables, cost_layers
from costmodel.workload import Workload
from strategies.layerwise.bounds import least_step_s, lower_bounds, screened_bounds
from strategies.layerwise.build import allowed_splits, base_s, choice_problem
from strategies.layerwise.per_layer.problem import Limits, Status
from strategies.layerwise.per_layer.search import solve
from strategies.layerwise.search import LayerwiseOutcome, SearchSettings, search
from strategies.layerwise.space import Restriction
from strategies.score import STEP_TIME, Score
from tests.networks import network
from tests.strategies.layerwise.test_build import CLUSTER, bundled, random_graph, workload

ENERGY = Score.of_cost(Power(busy_w=220.0, idle_w=40.0, host_w=50.0).cost)
SCORES = [STEP_TIME, ENERGY, Score(per_device=True)]
COUNTS = (1, 2, 3, 4, 6, 8, 12)


def best_score(tables: CostTables, workers: int, restriction: Restriction, score: Score) -> float:
    """The least score of a worker count whatever the memory, solved exactly and evaluated; infinity if there is no plan."""
    tables = tables.part(split_table([workers]))
    choice = choice_problem(tables, float("inf"), restriction, score)
    if choice is None:
        return float("inf")
    solution = solve(choice.problem, Limits())
    assert solution.status is Status.OPTIMAL
    costs = evaluate_on(tables, batch_of(tables, [choice.plan(solution.choices[0])]))
    return float(score.of(costs.step_time_s, costs.computing_s, [workers])[0])


def plain_bounds(tables: CostTables, restriction: Restriction, score: Score) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Every layer at its cheapest, nothing exchanged and nothing moved."""
    starts = np.array(tables.table.offsets[:-1])
    masks = allowed_splits(tables, restriction)
    least = [
        np.minimum.reduceat(np.where(mask, base_s(costs, tables.num_micro_batches, score), np.inf), starts)
        for costs, mask in zip(tables.layers, masks, strict=True)
    ]
    return np.asarray(score.factor(tables.table.worker_counts) * np.sum(least, axis=0))


def screened(
    case: Workload, m: int, restriction: Restriction, score: Score, cutoff: float
) -> np.ndarray[Any, np.dtype[np.float64]]:
    settings = SearchSettings(max_workers=COUNTS[-1], capacity_bytes=float("inf"), restriction=restriction, score=score)
    return screened_bounds(CostCache(case, CLUSTER), split_table(COUNTS), m, settings, cutoff)


def least_of_all_shares(case: Workload, rng: np.random.Generator, size: int) -> float:
    """Passes of every layer under whatever degrees of many legal ones are the quickest, whether they multiply to equal workers or not."""
    batch, total = case.global_batch, 0.0

    def degrees(limit: int) -> Any:
        return np.minimum(np.exp(rng.uniform(0.0, np.log(limit + 1), size)).astype(int), limit)

    for i, layer in enumerate(case.graph.layers):
        if layer.kind == "input":
            continue
        limits = layer.family.limits(layer)
        columns = {"batch": degrees(batch), "height": degrees(limits.height)}
        columns["batch"][: size // 2] = batch
        columns["in_channels"] = np.where(rng.random(size) < 0.5, 1, degrees(limits.in_channels))
        columns["out_channels"] = np.minimum(
            degrees(limits.out_channels),
            np.where(
                columns["in_channels"] > 1,
                np.maximum(layer.output_shape[0] // columns["in_channels"], 1),
                limits.out_channels,
            ),
        )
        workers = np.prod(np.stack(list(columns.values())), axis=0)
        table = SplitTable(worker_counts=(1,), offsets=(0, size), workers=workers, **columns)
        costs = cost_layers(case, CLUSTER, table, [batch], only=[i])[0][0]
        passes = costs.forward_s + costs.backward_input_s + costs.backward_weight_s
        total += float(np.min(passes[costs.legal]))
    return total


@pytest.mark.exact
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_no_step_takes_less_than_the_least(seed: int, training: bool) -> None:
    case = workload(random_graph(np.random.default_rng(seed)), training=training)
    least = least_step_s(case)
    assert 0.0 < least <= least_of_all_shares(case, np.random.default_rng(seed), 400)
    assert least <= np.min(lower_bounds(CostTables(case, CLUSTER, split_table(COUNTS), 1), Restriction()))


@pytest.mark.parametrize("name", ["alexnet", "mobilenet-v2", "googlenet", "lenet-5"])
def test_no_step_of_a_bundled_network_takes_less_than_the_least(name: str) -> None:
    case = workload(bundled(name), training=True)
    shares_s = least_of_all_shares(case, np.random.default_rng(1), 2000)
    # A bound that tells something: kernels that are started count, however small the share is.
    assert 0.5 * shares_s < least_step_s(case) <= shares_s


def test_a_share_of_one_group_costs_the_same_whatever_stands_beside_it() -> None:
    case = workload(bundled("mobilenet-v2"), training=True)
    table = split_table([32])
    row = next(n for n in range(len(table.workers)) if table.out_channels[n] == 32)
    beside, alone = (
        cost_layers(case, CLUSTER, part, [case.global_batch])[0] for part in (table, table.take(np.array([row])))
    )
    for one, other in zip(beside, alone, strict=True):
        assert other.forward_s[0] == one.forward_s[row]
        assert other.backward_weight_s[0] == one.backward_weight_s[row]


@pytest.mark.exact
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2, 3]),
    st.booleans(),
    st.sampled_from(SCORES),
    st.sampled_from([None, "data", "hybrid", "model"]),
)
def test_bounds_are_bounds(seed: int, m: int, training: bool, score: Score, family: str | None) -> None:
    case = workload(random_graph(np.random.default_rng(seed)), training=training)
    restriction = Restriction(family=family)
    tables = CostTables(case, CLUSTER, split_table(COUNTS), m)
    bounds = lower_bounds(tables, restriction, score)
    for w, bound in zip(COUNTS, bounds.tolist(), strict=True):
        best = best_score(tables, w, restriction, score)
        assert bound <= best
        assert np.isinf(bound) == np.isinf(best)
    assert np.all(bounds >= plain_bounds(tables, restriction, score) * (1 - 1e-9))


@pytest.mark.exact
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1, 2]),
    st.sampled_from(SCORES),
    st.sampled_from([None, "data", "hybrid"]),
    st.floats(0.2, 3.0),
)
def test_screening_says_no_more_than_the_bounds_and_as_much_below_the_cutoff(
    seed: int, m: int, score: Score, family: str | None, share: float
) -> None:
    case, restriction = workload(random_graph(np.random.default_rng(seed))), Restriction(family=family)
    bounds = lower_bounds(CostTables(case, CLUSTER, split_table(COUNTS), m), restriction, score)
    np.testing.assert_allclose(screened(case, m, restriction, score, np.inf), bounds, rtol=1e-9)
    finite = bounds[np.isfinite(bounds)]
    if not len(finite):
        return
    cutoff = share * float(np.median(finite))
    seen = screened(case, m, restriction, score, cutoff)
    assert np.all(seen <= bounds * (1 + 1e-9))
    close = np.isclose(bounds, cutoff, rtol=1e-9)
    np.testing.assert_array_equal((seen > cutoff) | close, (bounds > cutoff) | close)
    np.testing.assert_allclose(seen[seen <= cutoff], bounds[seen <= cutoff], rtol=1e-9)
    np.testing.assert_array_equal(np.isinf(seen), np.isinf(bounds))


def test_one_layer_is_bounded_exactly() -> None:
    """Nothing moves and nothing hides: the exchange counts in full."""
    graph = network((64,), ("fc", "linear", ("data",), {"out_features": 6}))
    for score in SCORES:
        tables = CostTables(workload(graph), CLUSTER, split_table(COUNTS), 1)
        bounds = lower_bounds(tables, Restriction(), score)
        exact = [best_score(tables, w, Restriction(), score) for w in COUNTS]
        np.testing.assert_allclose(bounds, exact, rtol=1e-9)
        assert np.any(bounds > 1.001 * plain_bounds(tables, Restriction(), score))


def test_the_gather_of_split_channels_counts() -> None:
    """Two fully connected layers by channels alone: the second gathers what the first leaves in shares."""
    graph = network(
        (4096,),
        ("fc1", "linear", ("data",), {"out_features": 4096}),
        ("fc2", "linear", ("fc1",), {"out_features": 4096}),
    )
    case = workload(graph, training=False)
    tables = CostTables(case, CLUSTER, split_table([4]), 1)
    by_output = Restriction(fixed={"fc1": {"out_channels": 4}, "fc2": {"out_channels": 4}})
    bound, best = float(lower_bounds(tables, by_output)[0]), best_score(tables, 4, by_output, STEP_TIME)
    # 24 samples x 4096 x 4 bytes, three quarters of which arrive at 50 GB/s within a node of four.
    gathered_s = 0.75 * 24 * 4096 * 4 / 50e9
    assert bound == pytest.approx(best, rel=1e-9)
    assert bound >= float(plain_bounds(tables, by_output, STEP_TIME)[0]) + gathered_s


@pytest.mark.parametrize("name", ["googlenet", "gnmt"])
def test_some_layers_cost_what_they_cost_among_all(name: str) -> None:
    case, table = workload(bundled(name)), split_table([1, 6])
    every, some = cost_layers(case, CLUSTER, table, [24])[0], (5, 2, 7)
    for i, costs in zip(some, cost_layers(case, CLUSTER, table, [24], only=some)[0], strict=True):
        for field in type(costs).__dataclass_fields__:
            np.testing.assert_array_equal(getattr(costs, field), getattr(every[i], field))


@pytest.mark.exact
@pytest.mark.parametrize("seed", range(6))
def test_screening_and_the_order_of_worker_counts_change_no_answer(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(seed)
    case = workload(random_graph(rng))
    roomy = SearchSettings(max_workers=14, capacity_bytes=16e9, top=4, score=SCORES[seed % 3])
    memory = search(case, CLUSTER, roomy).candidates[0].memory_bytes
    asked = SearchSettings(
        max_workers=14, capacity_bytes=memory * rng.choice([0.8, 1.0, 2.0]), top=4, score=SCORES[seed % 3]
    )

    def answer(block_splits: int, screened_splits: int, few_counts: int) -> LayerwiseOutcome:
        monkeypatch.setattr("strategies.layerwise.candidates._BLOCK_SPLITS", block_splits)
        monkeypatch.setattr("strategies.layerwise.search._FEW_COUNTS", few_counts)
        monkeypatch.setattr("strategies.layerwise.search._SCREENED_SPLITS", screened_splits)
        return search(case, CLUSTER, asked)

    plain, quick = answer(24_000, 10**9, 14), answer(10, 0, 4)
    assert [c.plan for c in quick.candidates] == [c.plan for c in plain.candidates]
    assert quick.bound_score == pytest.approx(plain.bound_score, rel=1e-9)
    assert quick.space_size == plain.space_size
    assert not quick.out_of_time
    numbers = len([m for m in range(1, 25) if 24 % m == 0])
    ended = sum(quick.searched[how] for how in ("solved", "bounded", "dominated", "infeasible", "open"))
    assert ended == 14 * numbers + 13 * (numbers - 1)  # worker counts without stages, and those of pipelines
