"""The pipeline objective against a simulation of the schedule, operation by operation."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.layerwise.per_layer.problem import Limits
from strategies.layerwise.pipeline.problem import PartitionProblem, PipelinePlan, objective_s
from strategies.layerwise.pipeline.sweep import TURNS, Sweep
from tests.cases import mostly


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


def whole_plan(stages: int) -> PipelinePlan:
    return PipelinePlan(cuts=tuple(range(1, stages)), replicas=(1,) * stages)


@pytest.mark.parametrize("spread", ["mild", "wide", "independent"])
def test_objective_is_the_simulated_step(spread: str) -> None:
    rng = np.random.default_rng(64)
    for _ in range(300):
        forward, backward, m = random_stages(rng, spread)
        exchange = rng.random(len(forward)) * rng.choice([0, 1, 5, 20])
        end = simulate(forward, backward, m)
        step = max(end["B", s, m - 1] + exchange[s] for s in range(len(forward)))
        problem = one_layer_per_stage(forward, backward, m, exchange)
        assert objective_s(problem, whole_plan(len(forward))) == pytest.approx(step, rel=1e-9)


@pytest.mark.parametrize("spread", ["mild", "wide", "independent"])
def test_bound_of_the_notes_never_exceeds_the_step(spread: str) -> None:
    """The path that the bounds of the package follow, as `strategies.layerwise.pipeline.problem` states it."""
    rng = np.random.default_rng(61)
    exact = 0
    for _ in range(400):
        forward, backward, m = random_stages(rng, spread)
        first = float(rng.random())
        stages, time = len(forward), forward + backward
        least = 0.0
        for s in range(stages):
            below, w = time[s + 1 :].sum(), stages - 1 - s
            detour = max(0.0, below - (m - 1) * min(forward[s], backward[s]))
            if m >= w + 2:
                detour = max(0.0, below - w * forward[s]) + max(0.0, below - w * backward[s])
            least = max(least, time[:s].sum() + m * time[s] + detour + first)
        exchange = np.zeros(stages)
        exchange[0] = first
        step = objective_s(one_layer_per_stage(forward, backward, m, exchange), whole_plan(stages))
        assert least <= step * (1 + 1e-12)
        exact += least == pytest.approx(step, rel=1e-9)
    assert exact / 400 >= (1.0 if spread == "mild" else 0.5)


@pytest.mark.exact
@mostly("exact", ("spread", "exact"), [("mild", 1.0), ("wide", 0.8), ("independent", 0.75)], quick=1)
def test_labels_bound_the_step_from_below(spread: str, exact: float) -> None:
    """E of a whole plan, stage by stage from the last, as the passes of the search build it up."""
    rng = np.random.default_rng(66)
    ratios = []
    while len(ratios) < 400:
        forward, backward, m = random_stages(rng, spread)
        stages = len(forward)
        if not 2 <= stages <= m:  # others are not part of the space
            continue
        exchange = rng.random(stages) * rng.choice([0, 1, 5, 20])
        problem = one_layer_per_stage(forward, backward, m, exchange)
        sweep = Sweep(problem, Limits())
        value = np.zeros((1, 7 + TURNS))
        for depth, s in enumerate(reversed(range(stages))):
            one = (np.array([x]) for x in (forward[s], backward[s], exchange[s]))
            value = sweep.closed(value, np.array([depth]), *one)
        ratios.append(float(value[0, 2]) / objective_s(problem, whole_plan(stages)))
    assert max(ratios) <= 1 + 1e-12
    assert np.mean(np.abs(np.array(ratios) - 1) < 1e-9) >= exact
    assert min(ratios) > 0.8


@pytest.mark.parametrize("spread", ["mild", "wide", "independent"])
def test_period_in_steady_state_is_the_slowest_stage(spread: str) -> None:
    """In the graph of the schedule every cycle that visits stage j n_j times weighs sum n_j t_j and advances sum n_j micro-batches."""
    rng = np.random.default_rng(63)
    for _ in range(5):
        forward, backward, _ = random_stages(rng, spread)
        none, plan = np.zeros(len(forward)), whole_plan(len(forward))
        short, long = (objective_s(one_layer_per_stage(forward, backward, m, none), plan) for m in (4000, 5000))
        assert (long - short) / 1000 == pytest.approx((forward + backward).max(), rel=1e-9)


def test_the_usual_formula_is_no_bound() -> None:
    """``sum t + (m - 1) max t`` counts the time that a slow first stage waits for the others, although it works then."""
    one_slow = one_layer_per_stage(np.array([3.0, 1.0]), np.array([3.0, 2.0]), 4, np.zeros(2))
    assert objective_s(one_slow, whole_plan(2)) == 24.0 < 9.0 + 3 * 6.0


def test_one_micro_batch_is_serial() -> None:
    rng = np.random.default_rng(65)
    for _ in range(20):
        forward, backward, _ = random_stages(rng, "independent")
        step = objective_s(one_layer_per_stage(forward, backward, 1, 0 * forward), whole_plan(len(forward)))
        assert step == pytest.approx(float((forward + backward).sum()))
