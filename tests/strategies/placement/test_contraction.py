"""The steps of contraction against their definitions."""

from __future__ import annotations

import numpy as np

from strategies.placement.contraction import _strong_components
from tests.cases import mostly


@mostly("exact", "seed", range(60))
def test_components_are_those_that_reach_each_other(seed: int) -> None:
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 12))
    edges = random.integers(0, count, (int(random.integers(0, 2 * count)), 2))
    source, target = edges[edges[:, 0] != edges[:, 1]].T
    if seed % 3 == 0:  # no cycle
        source, target = np.minimum(source, target), np.maximum(source, target)
    reach = np.eye(count, dtype=np.bool_)
    reach[source, target] = True
    for _ in range(count):
        reach = reach | (reach @ reach)
    expected = [int(np.flatnonzero(reach[v] & reach[:, v])[0]) for v in range(count)]
    assert _strong_components(count, source, target).tolist() == expected


def test_what_hangs_on_a_cycle_stays_apart() -> None:
    """0 -> (1 <-> 2) -> 3, numbered so that no shortcut applies."""
    source, target = np.array([3, 1, 2, 2]), np.array([1, 2, 1, 0])
    assert _strong_components(4, source, target).tolist() == [0, 1, 1, 3]
