"""Rows of blocks within a load against trying every row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from strategies.placement.columns import longest_intervals
from strategies.placement.contraction import contract_classes
from strategies.placement.loads import Devices
from tests.cases import mostly
from tests.strategies.placement.small_problems import random_problem


@mostly("exact", "seed", range(80))
def test_are_the_longest_within_the_load(seed: int) -> None:
    # Two devices without memory limits: only loads decide.
    problem = replace(random_problem(seed), num_accelerators=2, memory_bytes=1e30)
    graph = contract_classes(problem)
    devices = Devices(problem, graph)
    random = np.random.default_rng(seed)
    order = random.permutation(graph.num_blocks)
    load = float(random.uniform(0.1, 1.0)) * float(graph.accelerator_time.sum() + graph.hyperedge_cost.sum())

    def fits(first: int, end: int) -> bool:
        members = order[first:end]
        place = np.ones(graph.num_blocks, dtype=np.int64)  # all others are on another device
        place[members] = 0
        return bool(graph.supported[members].all()) and bool(devices.loads(place)[0] <= load)

    expected, reached = [], 0
    for first in range(graph.num_blocks):
        end = max((e for e in range(first + 1, graph.num_blocks + 1) if fits(first, e)), default=first)
        if end > reached:
            reached = end
            expected.append(sorted(order[first:end].tolist()))
    assert [members.tolist() for members in longest_intervals(graph, order, load)] == expected
