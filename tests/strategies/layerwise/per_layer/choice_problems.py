"""Random per-layer problems and their brute-force answers, shared by the tests of the searches."""

from __future__ import annotations

import itertools
import math

import numpy as np

from costmodel.arrays import IntArray
from strategies.layerwise.per_layer.problem import ChoiceProblem, Edge, memory_bytes, objective_s

TOLERANCE = 1e-9


def random_pairs(rng: np.random.Generator, nodes: int, shape: str) -> list[tuple[int, int]]:
    """Edges of a chain, of a branching graph, or of a dense one (parallel edges included now and then)."""
    if shape == "chain":
        return [(i, i + 1) for i in range(nodes - 1)]
    pairs = []
    for v in range(1, nodes):
        count = int(rng.integers(1, min(v, 2 if shape == "branching" else 4) + 1))
        pairs += [(int(u), v) for u in rng.choice(v, size=count, replace=False)]
    if rng.random() < 0.2:
        pairs.append(pairs[int(rng.integers(len(pairs)))])
    if rng.random() < 0.1:
        pairs.pop(0)  # may leave a node alone
    return pairs


def random_problem(
    rng: np.random.Generator, *, shape: str, overlap: bool = True, memory: str = "none"
) -> ChoiceProblem:
    """A problem of 4 to 6 nodes with 1 to 4 options, small integers (many ties) or reals, capacity as asked."""
    nodes = int(rng.integers(4, 7))
    sizes = rng.integers(1, 5, size=nodes)
    whole = rng.random() < 0.5

    def values(*shape: int, high: float = 12.0) -> np.ndarray:
        drawn = rng.random(shape) * high * (rng.random(shape) < 0.8)
        return np.floor(drawn) if whole else drawn * 1e-3

    edges = []
    for u, v in random_pairs(rng, nodes, shape):
        rows, columns = int(rng.integers(1, sizes[u] + 1)), int(rng.integers(1, sizes[v] + 1))
        edges.append(
            Edge(
                producer=u,
                consumer=v,
                producer_class=rng.integers(0, rows, size=sizes[u]),
                consumer_class=rng.integers(0, columns, size=sizes[v]),
                cost_s=values(rows, columns, high=6.0),
            )
        )
    base = [values(int(s)) for s in sizes]
    sizes_bytes = [np.floor(rng.random(int(s)) * 10.0) if whole else rng.random(int(s)) * 10.0 for s in sizes]
    least, most = sum(float(m.min()) for m in sizes_bytes), sum(float(m.max()) for m in sizes_bytes)
    share = {"none": math.inf, "loose": 1.0, "binding": 0.5 * rng.random(), "infeasible": -0.5}[memory]
    capacity = share if math.isinf(share) else least + share * (most - least) - (memory == "infeasible")
    return ChoiceProblem(
        base_s=tuple(base),
        hide_s=tuple(values(int(s)) * overlap for s in sizes),
        exchange_s=tuple(values(int(s)) for s in sizes),
        memory_bytes=tuple(sizes_bytes),
        edges=tuple(edges),
        memory_capacity_bytes=capacity,
        key_class=tuple(rng.integers(0, int(rng.integers(1, s + 1)), size=int(s)) for s in sizes),
    )


def brute_force(problem: ChoiceProblem) -> list[tuple[float, IntArray]]:
    """Every choice that fits, cheapest first."""
    out = []
    for options in itertools.product(*(range(len(b)) for b in problem.base_s)):
        choice = np.array(options)
        if memory_bytes(problem, choice) <= problem.memory_capacity_bytes * (1 + 1e-12):
            out.append((objective_s(problem, choice), choice))
    return sorted(out, key=lambda pair: pair[0])


def key_of(problem: ChoiceProblem, choice: IntArray) -> tuple[int, ...]:
    """What the user sees of a choice."""
    return tuple(int(k[o]) for k, o in zip(problem.key_class, choice, strict=True))


def best_by_key(problem: ChoiceProblem) -> list[float]:
    """Cost of the best choice of every key, ascending."""
    seen: dict[tuple[int, ...], float] = {}
    for value, choice in brute_force(problem):
        seen.setdefault(key_of(problem, choice), value)
    return list(seen.values())
