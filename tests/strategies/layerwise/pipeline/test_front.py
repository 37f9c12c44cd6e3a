"""Completion bounds of the pipeline search: valid, and no danger to exactness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategies.layerwise.per_layer.problem import Limits, Status
from strategies.layerwise.pipeline.completion import build_upstream
from strategies.layerwise.pipeline.problem import PartitionProblem, stage_times_s
from strategies.layerwise.pipeline.search import solve_pipeline
from strategies.limits import Clock
from tests.cases import mostly
from tests.strategies.layerwise.pipeline.test_solve import brute_force, stage_memory_bytes

INF = float("inf")


def realistic(rng: np.random.Generator, *, layers: int = 7, workers: int = 6) -> PartitionProblem:
    """Times fall with replicas, exchanges rise, transfers go by the smaller side, and the memory capacity binds."""
    counts = np.arange(1, workers)
    r, m = counts[:, None].astype(np.float64), int(rng.choice([2, 3, 4, 8, 16]))
    work, weights = rng.uniform(0.5, 1.5, layers), np.exp(np.linspace(0, 3, layers)) * rng.uniform(0.5, 1.5, layers)
    outputs = np.exp(np.linspace(1.0, -1.0, layers)) * rng.uniform(0.5, 1.5, layers)
    forward = work / r + 0.02
    edges = np.concatenate([[0.0], outputs[:-1], [0.0]])
    cut = rng.choice([0.01, 0.2]) * edges / np.minimum(counts[:, None], counts)[:, :, None]
    return PartitionProblem(
        num_layers=layers,
        num_workers=workers,
        num_micro_batches=m,
        replica_counts=counts,
        forward_s=forward,
        backward_s=2 * forward,
        cut_forward_s=cut,
        cut_backward_s=cut,
        update_s=np.broadcast_to(weights * 0.01, forward.shape).copy(),
        exchange_s=0.05 * weights * (r - 1) / r,
        static_bytes=np.broadcast_to(np.floor(weights), forward.shape).copy(),
        activation_bytes=np.floor(20 * outputs / r),
        memory_capacity_bytes=float(np.floor(rng.uniform(1.2, 3.5) * 20 * outputs.sum() / workers)),
    )


def small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make small problems take every pass that large ones take."""
    monkeypatch.setattr("strategies.layerwise.pipeline.sweep._CHUNK", 7)
    for name, value in (("_FIRST", 2), ("_PROBE", 10), ("_BEAM", 2)):
        monkeypatch.setattr(f"strategies.layerwise.pipeline.search.{name}", value)


@pytest.mark.exact
@mostly("exact", "copies", [1, 4, 10], quick=1)
@mostly("exact", "small", [False, True], quick=1)
def test_binding_memory_equals_brute_force(copies: int, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        small_passes(monkeypatch)
    rng = np.random.default_rng(copies)
    bound, feasible = 0, 0
    for _ in range(16):
        problem = realistic(rng)
        plans = brute_force(problem)
        free = solve_pipeline(replace(problem, memory_capacity_bytes=INF)).objective_s
        for cutoff in (INF, 1.3 * free):
            solution = solve_pipeline(problem, Limits(num_solutions=copies, cutoff_s=cutoff))
            wanted = [cost for cost, _ in plans if cost < cutoff][:copies]
            assert solution.objectives_s == pytest.approx(wanted, rel=1e-10)
            assert solution.bound_s <= (plans[0][0] if plans else INF) * (1 + 1e-10)
            assert solution.status not in {Status.FEASIBLE, Status.LIMIT}
        feasible += bool(plans)
        bound += bool(plans) and plans[0][0] > free * (1 + 1e-9)
    assert feasible >= 6
    assert bound >= 3


@pytest.mark.exact
def test_table_bounds_the_upstream_of_every_plan() -> None:
    rng = np.random.default_rng(3)
    checked = 0
    for levels in (1, 2, 16) * 10:
        problem = realistic(rng)
        roomy = float(rng.choice([1.0, 2.0])) * problem.memory_capacity_bytes
        problem = replace(problem, num_micro_batches=int(rng.choice([4, 8])), memory_capacity_bytes=roomy)
        plans = brute_force(problem)
        if not plans:
            continue
        threshold = float(np.quantile([cost for cost, _ in plans], 0.5)) * (1 + 1e-9)
        table = build_upstream(problem, threshold, most_levels=levels)
        assert table is not None
        for cost, plan in (p for p in plans if p[0] < threshold):
            forward, backward, after = stage_times_s(problem, plan)
            for s, cut in enumerate(plan.cuts):
                depth = max(1, min(problem.num_micro_batches - 1, len(plan.cuts) - s))
                # The gradient over the cut itself is c, which the table leaves to the label.
                row = problem.replica_counts.tolist()
                c = problem.cut_backward_s[row.index(plan.replicas[s]), row.index(plan.replicas[s + 1]), cut]
                where = (np.array([x]) for x in (cut, plan.replicas[s], depth, sum(plan.replicas[: s + 1])))
                upstream_s, downstream_s = table.at(*where)
                stages = forward + backward
                assert upstream_s[0] <= (stages[: s + 1].sum() - c + after[0]) * (1 + 1e-10)
                assert downstream_s[0] >= (stages[s + 1 :].sum() + c) * (1 - 1e-10)
                # Y falls at least half as fast as the threshold.
                assert table.least_s(stages[s + 1 :].sum() + c, downstream_s)[0] <= cost * (1 + 1e-10)
                cut_s = problem.cut_forward_s[row.index(plan.replicas[s]), row.index(plan.replicas[s + 1]), cut] + c
                where = (np.array([x]) for x in (cut, plan.replicas[s + 1], depth - 1, sum(plan.replicas[: s + 1])))
                entered_s, left_s = table.before(*where)
                assert entered_s[0] <= upstream_s[0] + cut_s + 1e-10
                assert left_s[0] >= downstream_s[0] - cut_s - 1e-10
                checked += 1
    assert checked > 500


@pytest.mark.exact
@mostly("exact", "seed", range(4), quick=1)
@mostly("exact", "m", [4, 8], quick=1)
def test_tight_memory_with_many_micro_batches(seed: int, m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The capacity is that of some plan, so that few fit, and cutoffs lie around the best of them."""
    rng = np.random.default_rng(100 * m + seed)
    if seed % 2:
        small_passes(monkeypatch)
        monkeypatch.setattr("strategies.layerwise.pipeline.search.UPSTREAM_LEVELS", 2)
    fewer, proved = 0, 0
    for _ in range(6):
        problem = replace(realistic(rng), num_micro_batches=m, memory_capacity_bytes=INF)
        every = brute_force(problem)
        needs = [float(stage_memory_bytes(problem, plan).max()) for _, plan in every]
        problem = replace(problem, memory_capacity_bytes=sorted(needs)[int(rng.integers(len(needs) // 5))])
        plans = [one for one, need in zip(every, needs, strict=True) if need <= problem.memory_capacity_bytes]
        assert plans
        fewer += len(plans) < len(every) / 4
        for cutoff in (plans[0][0] * (1 - 1e-6), plans[0][0] * (1 + 1e-6), plans[min(6, len(plans) - 1)][0], INF):
            solution = solve_pipeline(problem, Limits(cutoff_s=cutoff, num_solutions=3))
            wanted = [cost for cost, _ in plans if cost < cutoff][:3]
            assert solution.objectives_s == pytest.approx(wanted, rel=1e-10)
            assert solution.bound_s <= plans[0][0] * (1 + 1e-10)
            assert solution.rest_bound_s <= (plans[len(wanted)][0] if len(plans) > len(wanted) else INF) * (1 + 1e-10)
            assert solution.status in {Status.OPTIMAL, Status.CUT_OFF}
            proved += solution.status is Status.CUT_OFF
    assert fewer >= 3
    assert proved >= 6


def fewer_workers(problem: PartitionProblem, workers: int) -> PartitionProblem:
    """The same layers on a smaller cluster."""
    rows = slice(0, workers - 1)
    times = ("forward_s", "backward_s", "update_s", "exchange_s")
    per_row = ("replica_counts", *times, "static_bytes", "activation_bytes")
    arrays = {name: getattr(problem, name)[rows] for name in per_row}
    cuts = {name: getattr(problem, name)[rows, rows] for name in ("cut_forward_s", "cut_backward_s")}
    return replace(problem, num_workers=workers, **arrays, **cuts)


@pytest.mark.exact
def test_label_limit_ends_the_search_with_a_valid_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    small_passes(monkeypatch)
    monkeypatch.setattr("strategies.layerwise.pipeline.sweep._MOST_PENDING", 20)
    rng = np.random.default_rng(2)
    stopped = 0
    for _ in range(15):
        problem = realistic(rng)
        best = best_by_brute_force(problem)
        solution = solve_pipeline(problem)
        stopped += solution.status in {Status.LIMIT, Status.FEASIBLE}
        assert solution.bound_s <= best * (1 + 1e-10)
        assert solution.objective_s >= best * (1 - 1e-10)
    assert stopped >= 3


def best_by_brute_force(problem: PartitionProblem) -> float:
    """Cost of the best plan by brute force."""
    plans = brute_force(problem)
    return plans[0][0] if plans else INF


def test_no_table_past_the_deadline_or_beyond_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = realistic(np.random.default_rng(4))
    assert build_upstream(problem, INF, clock=Clock(limit_s=-1.0)) is None
    with monkeypatch.context() as patch:
        patch.setattr("strategies.layerwise.pipeline.completion._MOST_ENTRIES", 10)
        assert build_upstream(problem, INF) is None
    monkeypatch.setattr("strategies.layerwise.pipeline.completion._MOST_ENTRIES", 10)
    assert build_upstream(problem, INF) is None
    small_passes(monkeypatch)
    assert solve_pipeline(problem).objective_s == pytest.approx(best_by_brute_force(problem), rel=1e-10)


@pytest.mark.exact
@mostly("exact", "small", [False, True], quick=1)
def test_at_most_so_many_workers_is_every_smaller_problem_in_one(small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        small_passes(monkeypatch)
    rng = np.random.default_rng(41)
    for _ in range(25):
        problem = realistic(rng, layers=6, workers=5)
        wanted = sorted(
            cost
            for workers in range(2, problem.num_workers + 1)
            for cost, _ in brute_force(fewer_workers(problem, workers))
        )[:3]
        found = solve_pipeline(replace(problem, uses_all_workers=False), Limits(num_solutions=3))
        assert list(found.objectives_s) == pytest.approx(wanted, rel=1e-9)
        assert all(sum(plan.replicas) <= problem.num_workers for plan in found.choices)
        if wanted:
            cut = replace(problem, uses_all_workers=False), Limits(cutoff_s=wanted[0] * (1 - 1e-6))
            assert solve_pipeline(*cut).status is Status.CUT_OFF
