"""Bounds on the throughput objective that hold for every placement, contiguous or not, and take no search.

Several kinds of accelerators
-----------------------------
Dividing classes c at will among kinds t (CPUs are one more) of k(t) devices is a linear program,

    min T:  sum_t x(t, c) >= 1,   sum_c p(t, c) x(t, c) <= k(t) T,   sum_c m(c) x(t, c) <= k(t) M(t)

whose dual says: for any weights l(t), u(t) of at least 0 with sum_t k(t) l(t) = 1,

    T >= sum_c min_t (l(t) p(t, c) + u(t) m(c)) - sum_t u(t) k(t) M(t)

The solver's duals are only a guess at good weights; the bound is computed from them in doubles, with the sum of weights made exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.tolerances import LONG_SUM_ROUNDING
from strategies.placement.contraction import BlockGraph, contract_classes
from strategies.placement.loads import Kind, kinds_of
from strategies.placement.problem import PlacementProblem, sums_by
from strategies.solvers import LinearProgram, solve_relaxation

# Halvings of an interval: beyond a double's 53 bits nothing changes.
_HALVINGS = 100
# Bytes that count as much as the mean operator's time per byte, times these, in the mixed measure of work.
_MIXTURES = (0.1, 0.3, 1.0, 3.0, 10.0, 100.0)


class Bound(NamedTuple):
    """A bound and the argument that proves it."""

    value: float
    proof: str


def simple_bound(problem: PlacementProblem) -> Bound:
    """Best of the bounds of this module.

    Examples
    --------
    >>> from strategies.placement.problem import NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=float(i), cpu_time=9.0) for i in (1, 2, 5)]
    >>> simple_bound(PlacementProblem.build(nodes, [], num_accelerators=3, num_cpus=0, memory_bytes=1.0))
    Bound(value=5.0, proof='the largest operator or colour class')
    """
    size = float(problem.size_bytes.sum())
    mixture = best_time_per_byte(problem)
    spread = work_bound(problem, time_per_byte=mixture) if mixture else 0.0
    if problem.num_cpus == 0 and size > problem.capacity_bytes * problem.num_accelerators:
        return Bound(np.inf, "the operators need more memory than all accelerators have")
    found = [
        Bound(work_bound(problem), "compute divided evenly"),
        Bound(class_bound(problem), "the largest operator or colour class"),
        Bound(spread, "compute and memory divided evenly"),
    ]
    if problem.types:  # the bounds above hold for the best kind of each operator
        graph = contract_classes(problem)
        found.append(Bound(spread_bound(kinds_of(problem, graph), graph)[0], SPREAD_PROOF))
    return max(found, key=lambda bound: bound.value)


def best_time_per_byte(problem: PlacementProblem) -> float:
    """How much time a byte should count as for the best bound of compute and memory divided evenly; 0 where time alone decides."""
    own = _on_accelerator(problem)
    time = float(own[np.isfinite(own)].sum())
    size = float(problem.size_bytes.sum())
    if size <= 0 or not problem.num_cpus:
        return 0.0
    mixtures = [0.0, *(share * time / size for share in _MIXTURES)]
    return max(mixtures, key=lambda mixture: work_bound(problem, time_per_byte=mixture))


def largest_load(problem: PlacementProblem) -> float:
    """A load that no device of any placement exceeds."""
    return float(np.sum(problem.accelerator_time) + np.sum(problem.cpu_time) + np.sum(problem.hyperedges.cost) + 1e-300)


def class_bound(problem: PlacementProblem) -> float:
    """Largest time of a colour class on the device that runs it fastest: classes are never divided."""
    count = problem.num_colors
    cpu = _per_class(problem, problem.cpu_time) if problem.num_cpus else np.full(count, np.inf)
    return float(np.max(np.minimum(_on_accelerator(problem), cpu)))


def work_bound(problem: PlacementProblem, *, time_per_byte: float = 0.0) -> float:
    """Least T in which the devices together can do all work, classes divided at will.

    A class is as much work as its accelerator time plus ``time_per_byte`` times its size. An accelerator does at most T plus
    ``time_per_byte`` times its memory of it; CPUs take over, in their own time, those classes that they are least bad at.

    Parameters
    ----------
    problem : PlacementProblem
    time_per_byte : float
        Any number of at least 0 gives a valid bound: it adds the rows of a linear program, time and memory, with weights.

    Examples
    --------
    >>> from strategies.placement.problem import NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=3.0, cpu_time=9.0, size_bytes=1.0) for i in range(4)]
    >>> work_bound(PlacementProblem.build(nodes, [], num_accelerators=2, num_cpus=0, memory_bytes=2.0))
    6.0
    >>> scarce = PlacementProblem.build(nodes, [], num_accelerators=2, num_cpus=1, memory_bytes=1.0)
    >>> round(work_bound(scarce, time_per_byte=1e6), 3)  # two operators must run on the CPU
    18.0
    """
    accelerator = _on_accelerator(problem)
    cpu = _per_class(problem, problem.cpu_time)
    only_cpu = ~np.isfinite(accelerator)
    if problem.num_cpus == 0:
        return np.inf if np.any(only_cpu) else float(np.sum(accelerator)) / problem.num_accelerators
    fixed = float(np.sum(cpu[only_cpu]))
    work = (accelerator + time_per_byte * _per_class(problem, problem.size_bytes))[~only_cpu]
    cpu = cpu[~only_cpu]
    relief = cpu_relief(work, cpu)
    total = relief(np.inf)
    room = problem.num_accelerators * time_per_byte * problem.capacity_bytes
    low = fixed / problem.num_cpus
    high = low + total + float(cpu.sum())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        budget = problem.num_cpus * middle - fixed
        if total - relief(budget) <= problem.num_accelerators * middle + room:
            high = middle
        else:
            low = middle
    return low


def cpu_relief(work: FloatArray, cpu_time: FloatArray) -> Callable[[float], float]:
    """Most work that CPUs take over in a given time of theirs, parts at will: those first that they are least bad at.

    Examples
    --------
    >>> relief = cpu_relief(np.array([2.0, 2.0]), np.array([4.0, 4.0]))
    >>> relief(6.0), relief(np.inf)
    (3.0, 4.0)
    """
    useful = np.flatnonzero(work > 0)
    order = useful[np.argsort(cpu_time[useful] / work[useful], kind="stable")]
    spent = np.concatenate(([0.0], np.cumsum(cpu_time[order])))
    gained = np.concatenate(([0.0], np.cumsum(work[order])))
    return lambda budget: float(np.interp(budget, spent, gained))


def _per_class(problem: PlacementProblem, values: FloatArray) -> FloatArray:
    return sums_by(problem.color, values, problem.num_colors)


def _on_accelerator(problem: PlacementProblem) -> FloatArray:
    """Time of each class on an accelerator; infinite where it is not supported or too large."""
    time = _per_class(problem, problem.accelerator_time)
    unsupported = np.bincount(problem.color[~problem.supported], minlength=problem.num_colors) > 0
    too_large = _per_class(problem, problem.size_bytes) > problem.capacity_bytes
    return np.where(unsupported | too_large, np.inf, time)


SPREAD_PROOF = "compute and memory divided evenly among the kinds"


def spread_bound(kinds: tuple[Kind, ...], graph: BlockGraph) -> tuple[float, FloatArray]:
    """Bound of the linear program, and the price of each block that it gives; infinite where the blocks cannot be divided at all."""
    blocks, size = graph.num_blocks, graph.size_bytes
    variables = [(t, int(b)) for t, kind in enumerate(kinds) for b in np.flatnonzero(kind.allowed)]
    column = {pair: i for i, pair in enumerate(variables)}
    scale = max(float(sum(kind.time.sum() for kind in kinds)), 1e-300)
    room = max(float(size.sum()), 1e-300)
    entries = [(b, i, 1.0) for (_, b), i in column.items()]
    entries += [(blocks + t, i, float(kinds[t].time[b]) / scale) for (t, b), i in column.items()]
    entries += [(blocks + t, len(column), -float(kind.count)) for t, kind in enumerate(kinds)]
    limited = [t for t, kind in enumerate(kinds) if kind.count * kind.capacity_bytes < room]
    for row, t in enumerate(limited):
        entries += [(blocks + len(kinds) + row, i, float(size[b]) / room) for (s, b), i in column.items() if s == t]
    upper = [np.inf] * blocks + [0.0] * len(kinds)
    upper += [kinds[t].count * kinds[t].capacity_bytes / room for t in limited]
    row_of, column_of, value_of = zip(*entries, strict=True)
    result = solve_relaxation(
        LinearProgram(
            cost=np.append(np.zeros(len(column)), 1.0),
            lower=np.zeros(len(column) + 1),
            upper=np.full(len(column) + 1, np.inf),
            integer=np.zeros(len(column) + 1, dtype=np.bool_),
            row_lower=np.array([1.0] * blocks + [-np.inf] * (len(upper) - blocks)),
            row_upper=np.array(upper),
            entry_row=np.array(row_of, dtype=np.int64),
            entry_column=np.array(column_of, dtype=np.int64),
            entry_value=np.array(value_of, dtype=np.float64),
        )
    )
    if result is None:
        return 0.0, np.zeros(blocks)
    duals = -np.minimum(result.row_duals[blocks:], 0.0)
    time_weight = duals[: len(kinds)]
    counts = np.array([kind.count for kind in kinds], dtype=np.float64)
    total = float(counts @ time_weight)
    time_weight = time_weight / total if total > 0 else np.full(len(kinds), 1.0 / counts.sum())
    size_weight = np.zeros(len(kinds))
    size_weight[limited] = duals[len(kinds) :] * scale / room
    prices = np.full(blocks, np.inf)
    spent = 0.0
    for t, kind in enumerate(kinds):
        cost = time_weight[t] * kind.time + size_weight[t] * size
        prices = np.where(kind.allowed, np.minimum(prices, cost), prices)
        spent += size_weight[t] * kind.count * kind.capacity_bytes if size_weight[t] else 0.0
    bound = float(prices.sum()) - spent
    return max(0.0, bound - LONG_SUM_ROUNDING * (abs(spent) + float(prices.sum()))), prices
