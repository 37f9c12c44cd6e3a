"""Division of blocks over unequal stages, against all divisions."""

from __future__ import annotations

import random
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.mixed.evaluate import pipeline_makespan_s
from strategies.mixed.division import (
    DivisionProblem,
    Shape,
    assign,
    divide,
    greedy_division,
    least_slowest,
    makespan_bound_s,
    num_vectors,
    vectors,
)
from tests.cases import mostly


def random_problem(seed: int) -> DivisionProblem:
    """Stages of any speed; some cannot hold some ranges; ends that matter or do not."""
    rng = random.Random(seed)
    stages, blocks = rng.randint(1, 5), rng.randint(5, 8)
    shape = (stages, blocks + 1, blocks + 1)
    forward, backward, end = (np.full(shape, np.inf) for _ in range(3))
    weights = [rng.choice([1.0, 1.0, 2.0]) for _ in range(blocks)]
    speeds = [rng.choice([1.0, 1.0, 2.0, 3.3]) for _ in range(stages)]
    most, large = ([rng.choice(some) for _ in range(stages)] for some in ([2, 4, 9], [0.0, 1.0, 5.0, 20.0]))
    for s in range(stages):
        for i in range(blocks):
            for j in range(i + 1, blocks + 1):
                if j - i > most[s]:
                    continue
                work = sum(weights[i:j]) / speeds[s]
                forward[s, i, j] = work + 0.3 * (s > 0)
                again = work * rng.choice([0.0, 1.0, 3.0]) * rng.random()
                backward[s, i, j] = 2.0 * work + again + 0.3 * (s < stages - 1)
                end[s, i, j] = large[s] * rng.random() * (j - i)
    m = rng.choice([1, 2, 3, 5, 12])
    return DivisionProblem(num_micro_batches=m, forward_s=forward, backward_s=backward, end_s=end)


def tail_by_hand(end_s: np.ndarray, backward_s: np.ndarray) -> float:
    """The last of: end of a stage, after the backward passes of the stages behind it and before those in front."""
    left, before = 0.0, 0.0
    for end, backward in zip(end_s, backward_s, strict=True):
        left = max(left, float(end) - before)
        before += float(backward)
    return left


def all_divisions(problem: DivisionProblem) -> list[tuple[tuple[int, ...], float, float]]:
    stages, extent = problem.forward_s.shape[:2]
    found = []
    for cuts in combinations(range(1, extent - 1), stages - 1):
        starts, ends = (0, *cuts), (*cuts, extent - 1)
        rows = [
            array[range(stages), starts, ends][None, :]
            for array in (problem.forward_s, problem.backward_s, problem.end_s)
        ]
        if np.all(np.isfinite(rows[0])):
            makespan = float(pipeline_makespan_s(problem.num_micro_batches, rows[0], rows[1])[0])
            found.append(
                (
                    tuple(b - a for a, b in zip(starts, ends, strict=True)),
                    makespan,
                    tail_by_hand(rows[2][0], rows[1][0]),
                )
            )
    return found


@mostly("exact", "seed", range(120))
def test_best_division_of_all(seed: int) -> None:
    problem = random_problem(seed)
    everything = all_divisions(problem)
    front = divide(problem, np.inf)
    assert front.is_complete
    if not everything:
        assert not front.divisions
        return
    best = min(makespan + tail for _, makespan, tail in everything)
    assert min(d.total_s for d in front.divisions) == pytest.approx(best, rel=1e-10)
    assert front.bound_s <= best * (1 + 1e-10)
    quick = greedy_division(problem)
    assert quick.total_s >= best * (1 - 1e-12)


@mostly("exact", "seed", range(120))
def test_front_of_all_divisions(seed: int) -> None:
    problem = random_problem(seed)
    everything = all_divisions(problem)
    front = divide(problem, np.inf)
    for _, makespan, tail in everything:
        assert any(
            d.makespan_s <= makespan * (1 + 1e-10) and d.tail_s <= tail + 1e-10 * makespan for d in front.divisions
        )
    known = {blocks: (makespan, tail) for blocks, makespan, tail in everything}
    for d in front.divisions:
        assert known[d.blocks] == pytest.approx((d.makespan_s, d.tail_s))


def test_a_slower_beginning_may_leave_more_time_at_the_end() -> None:
    """Blocks 1+2 take 8 before the last stage and 2+1 take 8.1, but of these 4.1 instead of 2 are backward passes, which the last stage's
    end of 20 hides behind."""
    forward, backward, end = (np.full((3, 5, 5), np.inf) for _ in range(3))
    for stage, first, last, f, b, e in (
        (0, 0, 1, 3.0, 1.0, 0.0),
        (1, 1, 3, 3.0, 1.0, 0.0),
        (0, 0, 2, 3.0, 2.0, 0.0),
        (1, 2, 3, 1.0, 2.1, 0.0),
        (2, 3, 4, 1.0, 2.0, 20.0),
    ):
        forward[stage, first, last], backward[stage, first, last], end[stage, first, last] = f, b, e
    problem = DivisionProblem(num_micro_batches=1, forward_s=forward, backward_s=backward, end_s=end)
    front = divide(problem, np.inf)
    assert {d.blocks: (round(d.makespan_s, 9), round(d.tail_s, 9)) for d in front.divisions} == {
        (1, 2, 1): (11.0, 18.0),
        (2, 1, 1): (11.1, 15.9),
    }
    assert front.bound_s == pytest.approx(27.0)


@mostly("exact", "seed", range(40))
def test_a_limit_only_leaves_out_what_is_above(seed: int) -> None:
    problem = random_problem(seed)
    totals = sorted(makespan + tail for _, makespan, tail in all_divisions(problem))
    if not totals:
        return
    assert not divide(problem, totals[0] * (1 - 1e-9)).divisions
    below = divide(problem, totals[0] * (1 + 1e-9))
    assert below.divisions[0].total_s == pytest.approx(totals[0])


@pytest.mark.exact
def test_too_few_states_give_up_the_proof_not_the_bound() -> None:
    given_up = 0
    for seed in range(200):
        problem = random_problem(seed)
        totals = [makespan + tail for _, makespan, tail in all_divisions(problem)]
        front = divide(problem, np.inf, most_states=1)
        if totals:
            assert front.bound_s <= min(totals) * (1 + 1e-10)
        given_up += not front.is_complete
    assert given_up > 20


@given(
    m=st.integers(1, 12),
    times=st.lists(st.tuples(st.floats(0.1, 5.0), st.floats(0.1, 5.0)), min_size=1, max_size=7),
)
def test_bound_of_a_pipeline_holds(m: int, times: list[tuple[float, float]]) -> None:
    forward, backward = (np.array([column]) for column in zip(*times, strict=True))
    both = forward + backward
    low = makespan_bound_s(m, len(times), float(both.max()), float(both.sum()), float((backward / both).min()))
    assert low <= pipeline_makespan_s(m, forward, backward)[0] * (1 + 1e-12)


# --- Shares of the batch, against all shares ----------------------------------------------------------------------------------------------


def random_case(seed: int) -> tuple[list[Shape], int]:
    rng = random.Random(seed)
    shapes = [
        Shape(replicas=rng.randint(1, 3), micro_batch=rng.choice([1, 1, 2, 3, 4])) for _ in range(rng.randint(1, 3))
    ]
    return shapes, rng.randint(1, 24)


def all_counts(shapes: list[Shape], batch: int) -> list[tuple[int, ...]]:
    ranges = [range(s.replicas, batch // s.micro_batch + 1) for s in shapes]
    return [c for c in product(*ranges) if sum(n * s.micro_batch for n, s in zip(c, shapes, strict=True)) == batch]


@mostly("exact", "seed", range(60))
def test_least_slowest_of_all_shares(seed: int) -> None:
    shapes, batch = random_case(seed)
    rng = random.Random(1000 + seed)
    times = [
        np.concatenate([[0.0], np.cumsum([rng.choice([0.0, 1.0, 2.5]) for _ in range(batch + 1)]) + rng.random()])
        for _ in shapes
    ]
    slowest = [
        max(float(t[-(-n // s.replicas)]) for n, s, t in zip(counts, shapes, times, strict=True))
        for counts in all_counts(shapes, batch)
    ]
    found = least_slowest(times, shapes, batch)
    if not slowest:
        assert found is None
        return
    assert found[0] == pytest.approx(min(slowest))
    assert found[1] in all_counts(shapes, batch)


@mostly("exact", "seed", range(60))
def test_assign_finds_counts_where_there_are_any(seed: int) -> None:
    shapes, batch = random_case(seed)
    rng = random.Random(seed)
    most = [rng.randint(1, 9) for _ in shapes]
    legal = [
        c
        for c in all_counts(shapes, batch)
        if all(n <= s.replicas * m for n, s, m in zip(c, shapes, most, strict=True))
    ]
    found = assign(shapes, most, batch)
    assert (found is None) == (not legal)
    assert found is None or found in legal


@mostly("exact", "seed", range(60))
def test_vectors_leave_out_nothing(seed: int) -> None:
    """Every share is covered by a vector with at most as many of the last shape, the others alike."""
    shapes, batch = random_case(seed)
    listed = {tuple(v) for v in vectors(shapes, batch).tolist()}
    assert len(listed) == len(vectors(shapes, batch)) == num_vectors(shapes, batch)
    for counts in all_counts(shapes, batch):
        most = tuple(-(-n // s.replicas) for n, s in zip(counts, shapes, strict=True))
        assert any(v[:-1] == most[:-1] and v[-1] <= most[-1] for v in listed)
