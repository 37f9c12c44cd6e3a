"""Pipeline partition: brute force as the oracle."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.arrays import FloatArray
from strategies.layerwise.dominance import undominated
from strategies.layerwise.per_layer.problem import Limits, Status
from strategies.layerwise.pipeline.problem import (
    PartitionProblem,
    PipelinePlan,
    objective_s,
    pipeline_lower_bound,
    stage_times_s,
)
from strategies.layerwise.pipeline.search import solve_pipeline
from tests.cases import mostly

INF = float("inf")


def stage_memory_bytes(problem: PartitionProblem, plan: PipelinePlan) -> FloatArray:
    """Memory of every stage: static + min(m, S - s) micro-batches of activations (1F1B)."""
    counts, bounds, used = problem.replica_counts.tolist(), (0, *plan.cuts, problem.num_layers), []
    for s, r in enumerate(plan.replicas):
        part = counts.index(r), slice(bounds[s], bounds[s + 1])
        in_flight = min(problem.num_micro_batches, len(plan.replicas) - s)
        used.append(np.sum(problem.static_bytes[part]) + in_flight * np.sum(problem.activation_bytes[part]))
    return np.array(used, dtype=np.float64)


def random_problem(rng: np.random.Generator, *, most_layers: int = 7, most_workers: int = 6) -> PartitionProblem:
    """Small, in every flavour: ties (whole numbers), illegal entries, memory from loose to impossible."""
    layers, workers = int(rng.integers(2, most_layers + 1)), int(rng.integers(2, most_workers + 1))
    counts = np.flatnonzero(rng.random(workers) < rng.choice([0.4, 0.7, 1.0])) + 1
    counts = counts if len(counts) else np.array([1])
    size = len(counts)
    whole = rng.random() < 0.4

    def draw(*shape: int, scale: float = 1.0) -> np.ndarray:
        values = rng.random(shape) * scale
        return np.floor(values * 4) if whole else values

    shrink = counts[:, None] ** rng.choice([0.0, 0.5, 1.0, 1.2])
    forward, backward = (draw(size, layers) + 0.05) / shrink, (draw(size, layers, scale=2) + 0.05) / shrink
    cut_scale = rng.choice([0.0, 0.3, 2.0])
    cuts = [draw(size, size, layers + 1, scale=cut_scale) for _ in range(2)]
    for cut in cuts:
        cut[:, :, [0, -1]] = 0.0
    if rng.random() < 0.4:
        forward[rng.random(forward.shape) < 0.15] = INF
        backward[rng.random(backward.shape) < 0.05] = INF
        cuts[0][rng.random(cuts[0].shape) < 0.1] = INF
    static = np.floor(rng.random((size, layers)) * 10)
    activation = np.floor(rng.random((size, layers)) * 10)
    total = float((static + activation).sum() / size)
    after = rng.choice([0.0, 1.0, 8.0])
    return PartitionProblem(
        num_layers=layers,
        num_workers=workers,
        num_micro_batches=int(rng.choice([1, 2, 3, 4, 8])),
        replica_counts=counts,
        forward_s=forward,
        backward_s=backward,
        cut_forward_s=cuts[0],
        cut_backward_s=cuts[1],
        update_s=draw(size, layers, scale=after / 4),
        exchange_s=draw(size, layers, scale=after),
        static_bytes=static,
        activation_bytes=activation,
        memory_capacity_bytes=INF if rng.random() < 0.4 else float(np.floor(total * rng.uniform(0.1, 1.5))),
    )


def brute_force(problem: PartitionProblem) -> list[tuple[float, PipelinePlan]]:
    """Every plan within memory that can run, best first."""
    found = []
    for stages in range(2, min(problem.num_layers, problem.num_workers, problem.num_micro_batches) + 1):
        for replicas in itertools.product(problem.replica_counts.tolist(), repeat=stages):
            left = problem.num_workers - sum(replicas)
            if left < 0 or (left and problem.uses_all_workers):
                continue
            for cuts in itertools.combinations(range(1, problem.num_layers), stages - 1):
                plan = PipelinePlan(cuts=cuts, replicas=replicas)
                if np.all(stage_memory_bytes(problem, plan) <= problem.memory_capacity_bytes):
                    cost = objective_s(problem, plan)
                    if cost < INF:
                        found.append((cost, plan))
    return sorted(found, key=lambda p: p[0])


@pytest.mark.exact
@mostly("exact", "block", range(8))
def test_equals_brute_force(block: int) -> None:
    rng = np.random.default_rng(block)
    seen = dict.fromkeys(Status, 0)
    for _ in range(50):
        problem = random_problem(rng)
        plans = brute_force(problem)
        solution = solve_pipeline(problem)
        seen[solution.status] += 1
        if not plans:
            assert solution.status is Status.INFEASIBLE
            assert solution.bound_s == INF
            continue
        best = plans[0][0]
        assert pipeline_lower_bound(problem) <= best
        assert solution.status is Status.OPTIMAL
        assert solution.objective_s == pytest.approx(best, rel=1e-10)
        assert solution.choices
        assert objective_s(problem, solution.choices[0]) == solution.objective_s
        assert np.all(stage_memory_bytes(problem, solution.choices[0]) <= problem.memory_capacity_bytes)
        assert sum(solution.choices[0].replicas) == problem.num_workers
        assert solution.bound_s == pytest.approx(best, rel=1e-10)
    assert seen[Status.OPTIMAL] >= 15
    assert seen[Status.INFEASIBLE] >= 3


def test_equals_brute_force_on_longer_chains() -> None:
    rng = np.random.default_rng(77)
    for _ in range(4):
        problem = random_problem(rng, most_layers=10, most_workers=8)
        plans = brute_force(problem)
        assert solve_pipeline(problem).objective_s == pytest.approx(plans[0][0] if plans else INF, rel=1e-10)


@pytest.mark.exact
@pytest.mark.parametrize("copies", [1, 3])
def test_small_chunks_beam_and_probe_change_nothing(copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.layerwise.pipeline.sweep._CHUNK", 3)
    monkeypatch.setattr("strategies.layerwise.pipeline.search._FIRST", 2)
    monkeypatch.setattr("strategies.layerwise.pipeline.search._PROBE", 5)
    monkeypatch.setattr("strategies.layerwise.pipeline.search._BEAM", 2)
    rng = np.random.default_rng(5)
    for _ in range(60):
        problem = random_problem(rng)
        plans = brute_force(problem)
        solution = solve_pipeline(problem, Limits(cutoff_s=1e6, num_solutions=copies))
        assert solution.status is (Status.OPTIMAL if plans else solution.status)
        assert solution.objectives_s == pytest.approx([cost for cost, _ in plans[:copies]], rel=1e-10)


@pytest.mark.exact
def test_cutoff_is_strict_and_proves() -> None:
    rng = np.random.default_rng(11)
    cut_off = 0
    for _ in range(80):
        problem = random_problem(rng)
        plans = brute_force(problem)
        best = plans[0][0] if plans else 1.0
        below = solve_pipeline(problem, Limits(cutoff_s=best * (1 - 1e-9)))
        assert below.choices == ()
        assert below.status is Status.CUT_OFF or not plans
        assert below.bound_s >= best * (1 - 1e-9)
        cut_off += below.status is Status.CUT_OFF
        if plans:
            assert solve_pipeline(problem, Limits(cutoff_s=best)).choices == ()
            above = solve_pipeline(problem, Limits(cutoff_s=best * (1 + 1e-9)))
            assert above.status is Status.OPTIMAL
            assert above.objective_s == pytest.approx(best, rel=1e-10)
    assert cut_off >= 30


@pytest.mark.exact
def test_k_best_are_the_k_best() -> None:
    rng = np.random.default_rng(21)
    for _ in range(120):
        problem = random_problem(rng)
        plans = brute_force(problem)
        count = int(rng.integers(2, 12))
        solution = solve_pipeline(problem, Limits(num_solutions=count))
        assert solution.objectives_s == pytest.approx([cost for cost, _ in plans[:count]], rel=1e-10)
        assert len(set(solution.choices)) == len(solution.choices)
        costs = {plan: cost for cost, plan in plans}
        assert solution.objectives_s == tuple(costs[plan] for plan in solution.choices)
        if len(plans) > count:
            assert solution.rest_bound_s <= plans[count][0] * (1 + 1e-10)
        else:
            assert solution.rest_bound_s >= plans[-1][0] * (1 - 1e-10) if plans else solution.rest_bound_s == INF


@pytest.mark.exact
def test_gap_is_kept() -> None:
    rng = np.random.default_rng(31)
    for _ in range(60):
        problem = random_problem(rng)
        plans = brute_force(problem)
        if plans:
            solution = solve_pipeline(problem, Limits(gap=0.2))
            assert solution.status is Status.OPTIMAL
            assert solution.bound_s <= plans[0][0] * (1 + 1e-10)
            assert solution.objective_s * 0.8 <= solution.bound_s * (1 + 1e-10)


@pytest.mark.exact
def test_bound_is_valid_wherever_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(41)
    seen = set()
    for _ in range(40):
        problem = random_problem(rng)
        plans = brute_force(problem)
        best = plans[0][0] if plans else INF
        for cutoff, steps in itertools.product((INF, 1e6), (0, 3, 6, 9, 12, 15, 20, 25, 30)):
            ticks = itertools.count()
            with monkeypatch.context() as patch:
                patch.setattr("time.monotonic", lambda ticks=ticks: float(next(ticks)))
                solution = solve_pipeline(problem, Limits(wall_s=float(steps), cutoff_s=cutoff))
            seen.add(solution.status)
            assert solution.bound_s <= best * (1 + 1e-10) or solution.status is Status.CUT_OFF
            assert solution.objective_s >= best * (1 - 1e-10)
            if solution.status in {Status.OPTIMAL, Status.INFEASIBLE}:
                assert solution.objective_s == pytest.approx(best, rel=1e-10)
    assert seen >= {Status.OPTIMAL, Status.FEASIBLE, Status.LIMIT, Status.INFEASIBLE}


def test_keyboard_interrupt_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("strategies.layerwise.pipeline.sweep.undominated", interrupt)
    with pytest.raises(KeyboardInterrupt):
        solve_pipeline(even_chain())


def even_chain(layers: int = 4, workers: int = 2, micro_batches: int = 4) -> PartitionProblem:
    """Every layer 1 + 2 s on one replica, half on two; nothing else costs anything."""
    counts = np.arange(1, workers + 1)
    time_s = np.ones((workers, layers)) / counts[:, None]
    cut = np.zeros((workers, workers, layers + 1))
    return PartitionProblem(
        num_layers=layers,
        num_workers=workers,
        num_micro_batches=micro_batches,
        replica_counts=counts,
        forward_s=time_s,
        backward_s=2 * time_s,
        cut_forward_s=cut,
        cut_backward_s=cut,
        update_s=0 * time_s,
        exchange_s=0 * time_s,
        static_bytes=10 + 0 * time_s,
        activation_bytes=1 + 0 * time_s,
    )


def test_even_chain_by_hand() -> None:
    # 12 layers on 4 workers, 8 micro-batches: two stages of 9 s per micro-batch, (8 + 1) x 9, be it 6 layers on 2 workers
    # each or 3 layers on 1 and 9 on 3; more stages only lengthen the bubble.
    solution = solve_pipeline(even_chain(12, 4, 8), Limits(num_solutions=4))
    assert solution.objectives_s[:3] == pytest.approx([81.0, 81.0, 81.0])
    assert solution.objectives_s[3] > 81.1
    assert set(solution.choices[:3]) == {
        PipelinePlan(cuts=(3,), replicas=(1, 3)),
        PipelinePlan(cuts=(6,), replicas=(2, 2)),
        PipelinePlan(cuts=(9,), replicas=(3, 1)),
    }


def test_memory_counts_micro_batches_in_flight() -> None:
    problem = even_chain(4, 4, 8)
    plan = PipelinePlan(cuts=(1, 2, 3), replicas=(1, 1, 1, 1))
    assert stage_memory_bytes(problem, plan).tolist() == [14.0, 13.0, 12.0, 11.0]
    assert solve_pipeline(replace(problem, memory_capacity_bytes=14.0)).choices[0] == plan
    assert solve_pipeline(replace(problem, memory_capacity_bytes=13.0)).status is Status.INFEASIBLE
    assert stage_memory_bytes(replace(problem, num_micro_batches=2), plan).tolist() == [12.0, 12.0, 12.0, 11.0]


def test_no_more_stages_than_micro_batches() -> None:
    best = solve_pipeline(even_chain(12, 4, 2), Limits(num_solutions=1000))
    assert {len(plan.replicas) for plan in best.choices} == {2}
    assert solve_pipeline(even_chain(12, 4, 1)).status is Status.INFEASIBLE


@pytest.mark.parametrize(("layers", "workers"), [(1, 4), (4, 1), (1, 1)])
def test_no_pipeline_without_two_layers_and_two_workers(layers: int, workers: int) -> None:
    problem = even_chain(layers, workers)
    assert solve_pipeline(problem).status is Status.INFEASIBLE
    assert pipeline_lower_bound(problem) == INF


@pytest.mark.exact
def test_cheap_bound_holds_and_is_not_trivial() -> None:
    rng = np.random.default_rng(51)
    ratios = []
    for _ in range(300):
        problem = random_problem(rng, most_layers=6, most_workers=5)
        solution = solve_pipeline(problem)
        bound = pipeline_lower_bound(problem)
        assert bound <= solution.objective_s
        if solution.choices and solution.objective_s > 0:
            ratios.append(bound / solution.objective_s)
    assert np.mean(ratios) > 0.5


@mostly("exact", "seed", range(30))
def test_monotone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng)
    best = solve_pipeline(problem).objective_s * (1 - 1e-10)
    for name in ("forward_s", "exchange_s", "update_s", "cut_forward_s", "static_bytes", "activation_bytes"):
        array = getattr(problem, name)
        dearer = array + np.floor(rng.random(array.shape) * 3)
        assert solve_pipeline(replace(problem, **{name: dearer})).objective_s >= best
    if problem.num_micro_batches >= min(problem.num_layers, problem.num_workers):  # else one more admits more stages
        assert solve_pipeline(replace(problem, num_micro_batches=problem.num_micro_batches + 1)).objective_s >= best
    assert (
        solve_pipeline(replace(problem, memory_capacity_bytes=problem.memory_capacity_bytes * 0.8)).objective_s >= best
    )
    if len(problem.replica_counts) > 1:
        kept = slice(0, -1)
        fewer = {
            name: getattr(problem, name)[kept]
            for name in ("forward_s", "backward_s", "update_s", "exchange_s", "static_bytes", "activation_bytes")
        }
        cuts = {name: getattr(problem, name)[kept, kept] for name in ("cut_forward_s", "cut_backward_s")}
        smaller = replace(problem, replica_counts=problem.replica_counts[kept], **fewer, **cuts)
        assert solve_pipeline(smaller).objective_s >= best


def test_same_answer_twice() -> None:
    problem = random_problem(np.random.default_rng(8))
    first, second = (solve_pipeline(problem, Limits(num_solutions=5)) for _ in range(2))
    assert first == second


def test_illegal_stage_costs_infinity() -> None:
    problem = even_chain()
    forward = problem.forward_s.copy()
    forward[0, 1] = INF
    illegal = replace(problem, forward_s=forward)
    assert objective_s(illegal, PipelinePlan(cuts=(2,), replicas=(1, 1))) == INF
    assert solve_pipeline(illegal).status is Status.INFEASIBLE


def test_transfers_are_charged_to_their_receiver() -> None:
    problem = even_chain()
    cut_forward, cut_backward = np.zeros((2, 2, 5)), np.zeros((2, 2, 5))
    cut_forward[0, 0, 2], cut_backward[0, 0, 2] = 10.0, 100.0
    moved = replace(problem, cut_forward_s=cut_forward, cut_backward_s=cut_backward)
    forward, backward, after = stage_times_s(moved, PipelinePlan(cuts=(2,), replicas=(1, 1)))
    assert forward.tolist() == [2.0, 12.0]
    assert backward.tolist() == [104.0, 4.0]
    assert after.tolist() == [0.0, 0.0]


@given(
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)), max_size=30),
    copies=st.integers(1, 3),
)
def test_undominated_keeps_rows_beaten_by_few(rows: list[tuple[int, ...]], copies: int) -> None:
    table = np.array(rows, dtype=np.float64).reshape(-1, 4)
    key, values = table[:, 0].astype(np.int64), table[:, 1:]
    kept = set(undominated(key, values, copies).tolist())
    for i in range(len(rows)):
        better = np.all(values <= values[i], axis=1) & (key == key[i])
        strictly = int(np.sum(better & np.any(values < values[i], axis=1)))
        equal = np.flatnonzero(better & np.all(values == values[i], axis=1))
        beaten_by = strictly + int(np.searchsorted(equal, i))
        assert (i in kept) == (beaten_by < copies)
