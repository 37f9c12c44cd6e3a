"""Folded divisions against trying all of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from strategies.placement.frontier import build_frontier, frontier_order, sweep
from tests.cases import mostly


def random_hypergraph(seed: int) -> tuple[int, list[list[int]], np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    blocks = int(random.integers(1, 9))
    edges = []
    for _ in range(int(random.integers(0, 8))):
        size = int(random.integers(2, 5))
        pins = sorted(set(random.integers(0, blocks, size).tolist()))
        if len(pins) > 1:
            edges.append(pins)
    return (
        blocks,
        edges,
        random.integers(0, 6, blocks),
        random.integers(0, 4, len(edges)),
        random.random(len(edges)) < 0.3,
    )


def load(
    chosen: tuple[int, ...], blocks: np.ndarray, edges: list[list[int]], cost: np.ndarray, outer: np.ndarray
) -> int:
    """Load of a set that is one side of a division, other sides taking the rest."""
    total = int(sum(blocks[b] for b in chosen))
    for pins, price, has_outer in zip(edges, cost.tolist(), outer.tolist(), strict=True):
        inside = sum(b in chosen for b in pins)
        total += price * (inside > 0 and (has_outer or inside < len(pins)))
    return total


@mostly("exact", "seed", range(60))
def test_sweep_finds_the_best_set_of_every_load(seed: int) -> None:
    count, edges, time, cost, outer = random_hypergraph(seed)
    value = np.random.default_rng(seed).random(count)
    bins = int(time.sum() + cost.sum())
    order = frontier_order(count, edges, range(count))
    frontier = build_frontier(edges, cost.astype(float), outer, order=order)
    weight = frontier.charge(1, time, cost).astype(np.int64)
    result = sweep(frontier, weight, frontier.charge(1, value, np.zeros(len(edges))).astype(float), bins)
    best = np.full(bins + 1, -np.inf)
    for size in range(count + 1):
        for chosen in itertools.combinations(range(count), size):
            at = load(chosen, time, edges, cost, outer)
            best[at] = max(best[at], sum(value[b] for b in chosen))
    assert np.allclose(result.value, best)
    for at in np.flatnonzero(np.isfinite(best)).tolist():
        members = tuple(result.side_one(at).tolist())
        assert load(members, time, edges, cost, outer) == at
        assert sum(value[b] for b in members) == pytest.approx(best[at])


@mostly("exact", "seed", range(60))
def test_both_sides_are_charged(seed: int) -> None:
    """Gains may be the other side's load: what exchange uses."""
    count, edges, time, cost, outer = random_hypergraph(1000 + seed)
    bins = int(time.sum() + cost.sum())
    frontier = build_frontier(edges, cost.astype(float), outer, order=np.arange(count))
    weight = frontier.charge(1, time, cost).astype(np.int64)
    result = sweep(frontier, weight, -frontier.charge(0, time, cost).astype(float), bins, remember=False)
    least = np.full(bins + 1, np.inf)
    for size in range(count + 1):
        for chosen in itertools.combinations(range(count), size):
            rest = tuple(b for b in range(count) if b not in chosen)
            at = load(chosen, time, edges, cost, outer)
            least[at] = min(least[at], load(rest, time, edges, cost, outer))
    assert np.allclose(-result.value, least)


@mostly("exact", "seed", range(40))
def test_forgetting_only_lowers_loads(seed: int) -> None:
    count, edges, time, cost, outer = random_hypergraph(2000 + seed)
    value = np.random.default_rng(seed).random(count)
    bins = int(time.sum() + cost.sum())

    def most(limit: int) -> tuple[np.ndarray, bool]:
        frontier = build_frontier(edges, cost.astype(float), outer, order=np.arange(count), max_states=limit)
        assert frontier.num_states.max() <= max(limit, 1)
        weight = frontier.charge(1, time, cost).astype(np.int64)
        gain = frontier.charge(1, value, np.zeros(len(edges))).astype(float)
        found = np.maximum.accumulate(sweep(frontier, weight, gain, bins, remember=False).value)
        return found, frontier.is_exact

    exact, whole = most(10_000)
    assert whole
    for limit in (1, 2, 4):
        relaxed, is_exact = most(limit)
        assert np.all(relaxed >= exact - 1e-12)
        if is_exact:
            assert np.allclose(relaxed, exact)


def test_what_is_not_allowed_is_not_taken() -> None:
    frontier = build_frontier([], np.zeros(0), np.zeros(0, dtype=bool), order=np.arange(2))
    none = np.zeros(0, dtype=np.int64)
    weight = frontier.charge(1, np.array([1, 9]), none).astype(np.int64)  # the second is heavier than all bins
    result = sweep(frontier, weight, frontier.charge(1, np.array([1.0, 5.0]), none).astype(float), 4)
    assert result.value.max() == 1.0
    gain = frontier.charge(0, np.array([-np.inf, 0.0]), none.astype(float)).astype(float)  # the first must be on side 1
    assert np.isneginf(sweep(frontier, weight, gain, 4).value[0])
