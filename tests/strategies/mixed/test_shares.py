"""Shares of the batch, against all shares."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest

from strategies.mixed.division import Shape, assign, least_slowest, num_vectors, vectors
from tests.cases import mostly


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
    assert found is not None
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
