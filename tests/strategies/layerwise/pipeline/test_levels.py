"""Levels of depth, the detour solved for what is after, and transfers, each against the plain definition."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.layerwise.pipeline.completion import depth_levels, most_downstream_s, through_cut
from tests.cases import mostly


def detour_s(below: float, forward: float, backward: float, depth: int, m: int) -> float:
    """``g`` as `strategies.layerwise.pipeline.problem` defines it."""
    if m >= depth + 2:
        return max(0.0, below - depth * forward) + max(0.0, below - depth * backward)
    return max(0.0, below - (m - 1) * min(forward, backward))


@mostly("exact", "seed", range(10))
def test_most_downstream_is_the_inverse_of_the_detour(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(200):
        m, depth = int(rng.integers(2, 12)), int(rng.integers(1, 12))
        forward, backward, slack = rng.random(3) * rng.choice([0.1, 1.0, 5.0], 3)
        single, both = most_downstream_s(np.array(forward), np.array(backward), np.array(depth), m)
        most = min(slack + float(single), (slack + float(both)) / 2)
        assert detour_s(most, forward, backward, depth, m) == pytest.approx(slack, abs=1e-9)
        assert detour_s(most + 0.01, forward, backward, depth, m) > slack


@pytest.mark.parametrize(("depth", "levels"), [(1, 1), (1, 5), (7, 1), (7, 3), (7, 7), (7, 64)])
def test_every_depth_has_one_level(depth: int, levels: int) -> None:
    found = depth_levels(depth, levels)
    covered = [d for a, b in zip(found.first, found.last, strict=True) for d in range(a, b + 1)]
    assert covered == list(range(1, depth + 1))
    assert len(found) == min(depth, levels)
    for d in covered:
        level = int(found.of(np.array(d)))
        assert found.first[level] <= d <= found.last[level]
    assert found.wide.tolist() == ([len(found) - 1] if levels < depth else [])


@mostly("exact", "seed", range(10))
def test_through_cut_is_the_least_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cut = np.where(rng.random((3, 4)) < 0.2, np.inf, rng.random((3, 4)))
    first = np.where(rng.random((3, 2, 5)) < 0.5, np.inf, rng.random((3, 2, 5)))
    second = np.where(np.isfinite(first), rng.choice([-np.inf, -1.0, -2.0], first.shape), np.inf)
    found = through_cut(cut, first, second)
    with np.errstate(invalid="ignore"):
        for value, result in zip((first, second), found, strict=True):
            sums = value[:, None] + cut[:, :, None, None]
            sums = np.where(np.isfinite(cut)[:, :, None, None], sums, np.inf)
            assert np.array_equal(result, sums.min(axis=0))
