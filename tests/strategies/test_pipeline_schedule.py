"""The pipeline objective against a simulation of the schedule, operation by operation."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.pipeline import PartitionProblem, PipelinePlan, critical_path_s, objective_s


def simulate(forward_s: np.ndarray, backward_s: np.ndarray, m: int) -> dict[tuple[str, int, int], float]:
    """End of every operation of 1F1B with flush: each stage runs its fixed order, each operation waits for its input."""
    stages = len(forward_s)
    order = []
    for s in range(stages):
        warm = min(m, stages - 1 - s)
        steady = [op for i in range(m - warm) for op in (("F", i + warm), ("B", i))]
        order.append([("F", i) for i in range(warm)] + steady + [("B", i) for i in range(m - warm, m)])
    end: dict[tuple[str, int, int], float] = {}
    position, clock = [0] * stages, [0.0] * stages
    while len(end) < 2 * stages * m:
        for s in range(stages):
            while position[s] < 2 * m:
                kind, i = order[s][position[s]]
                before, after = ("F", s - 1, i), ("B", s + 1, i) if s + 1 < stages else ("F", s, i)
                source = (before if s else None) if kind == "F" else after
                if source is not None and source not in end:
                    break
                begin = max(clock[s], end[source] if source else 0.0)
                clock[s] = end[kind, s, i] = begin + float(forward_s[s] if kind == "F" else backward_s[s])
                position[s] += 1
    return end


def random_stages(rng: np.random.Generator, spread: str) -> tuple[np.ndarray, np.ndarray, int]:
    stages, m = int(rng.integers(1, 7)), int(rng.integers(1, 13))
    if spread == "independent":
        return rng.random(stages), rng.random(stages), m
    forward = rng.random(stages) * 0.3 + 0.85 if spread == "mild" else rng.random(stages) + 0.05
    return forward, 2 * forward, m


@pytest.mark.parametrize(
    ("spread", "least", "mean", "exact"),
    [("mild", 1 - 1e-9, 1 - 1e-9, 1.0), ("wide", 0.88, 0.99, 0.75), ("independent", 0.8, 0.985, 0.7)],
)
def test_critical_path_never_exceeds_the_simulation(spread: str, least: float, mean: float, exact: float) -> None:
    rng = np.random.default_rng(61)
    ratios = []
    for _ in range(400):
        forward, backward, m = random_stages(rng, spread)
        ratios.append(critical_path_s(forward, backward, m) / max(simulate(forward, backward, m).values()))
    assert max(ratios) <= 1 + 1e-9
    assert min(ratios) >= least
    assert np.mean(ratios) >= mean
    assert np.mean(np.abs(np.array(ratios) - 1) < 1e-9) >= exact


def test_critical_path_beats_the_closed_form() -> None:
    rng = np.random.default_rng(62)
    ours, closed = [], []
    for _ in range(400):
        forward, backward, m = random_stages(rng, "wide")
        makespan, stage = max(simulate(forward, backward, m).values()), forward + backward
        ours.append(abs(critical_path_s(forward, backward, m) / makespan - 1))
        closed.append((stage.sum() + (m - 1) * stage.max()) / makespan - 1)
    assert min(closed) >= -1e-9  # with B = 2 F
    assert np.mean(ours) < np.mean(closed) / 5


@pytest.mark.parametrize("spread", ["mild", "wide", "independent"])
def test_period_in_steady_state_is_the_slowest_stage(spread: str) -> None:
    rng = np.random.default_rng(63)
    for _ in range(5):
        forward, backward, _ = random_stages(rng, spread)
        long, longer = (max(simulate(forward, backward, m).values()) for m in (400, 500))
        assert (longer - long) / 100 == pytest.approx((forward + backward).max(), rel=1e-3)
        for m in (400, 500):
            closed = (forward + backward).sum() + (m - 1) * (forward + backward).max()
            assert critical_path_s(forward, backward, m) == pytest.approx(closed, rel=0.05)


def test_tail_against_the_simulation() -> None:
    rng = np.random.default_rng(64)
    for spread, exact in (("mild", 1.0), ("wide", 0.7)):
        hits = 0
        for _ in range(300):
            forward, backward, m = random_stages(rng, spread)
            problem = one_layer_per_stage(forward, backward, m, rng.random(len(forward)) * rng.choice([1, 5, 20]))
            plan = PipelinePlan(cuts=tuple(range(1, len(forward))), replicas=(1,) * len(forward))
            end = simulate(forward, backward, m)
            step = max(end["B", s, m - 1] + problem.exchange_s[0, s] for s in range(len(forward)))
            hits += objective_s(problem, plan) == pytest.approx(step, rel=1e-9)
        assert hits / 300 >= exact


def one_layer_per_stage(forward: np.ndarray, backward: np.ndarray, m: int, exchange: np.ndarray) -> PartitionProblem:
    layers = len(forward)
    zero = np.zeros((1, layers))
    return PartitionProblem(
        num_layers=layers,
        num_workers=layers,
        num_micro_batches=m,
        replica_counts=np.array([1]),
        forward_s=forward[None],
        backward_s=backward[None],
        cut_forward_s=np.zeros((1, 1, layers + 1)),
        cut_backward_s=np.zeros((1, 1, layers + 1)),
        update_s=zero,
        exchange_s=exchange[None],
        static_bytes=zero,
        activation_bytes=zero,
    )


def test_one_micro_batch_is_serial() -> None:
    rng = np.random.default_rng(65)
    for _ in range(20):
        forward, backward, _ = random_stages(rng, "independent")
        assert critical_path_s(forward, backward, 1) == pytest.approx(float((forward + backward).sum()))
