"""Bounds on the throughput objective that hold for every placement, contiguous or not, and take no search."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from costmodel.arrays import FloatArray
from strategies.placement.problem import PlacementProblem, sums_by

__all__ = ["Bound", "best_time_per_byte", "class_bound", "largest_load", "simple_bound", "work_bound"]

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
    return max(
        Bound(work_bound(problem), "compute divided evenly"),
        Bound(class_bound(problem), "the largest operator or colour class"),
        Bound(spread, "compute and memory divided evenly"),
        key=lambda bound: bound.value,
    )


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
    useful = work > 0
    order = np.argsort(cpu[useful] / work[useful], kind="stable")
    spent = np.concatenate(([0.0], np.cumsum(cpu[useful][order])))
    saved = np.concatenate(([0.0], np.cumsum(work[useful][order])))
    room = problem.num_accelerators * time_per_byte * problem.capacity_bytes
    low = fixed / problem.num_cpus
    high = low + float(saved[-1]) + float(spent[-1])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        budget = problem.num_cpus * middle - fixed
        if saved[-1] - np.interp(budget, spent, saved) <= problem.num_accelerators * middle + room:
            high = middle
        else:
            low = middle
    return low


def _per_class(problem: PlacementProblem, values: FloatArray) -> FloatArray:
    return sums_by(problem.color, values, problem.num_colors)


def _on_accelerator(problem: PlacementProblem) -> FloatArray:
    """Time of each class on an accelerator; infinite where it is not supported or too large."""
    time = _per_class(problem, problem.accelerator_time)
    unsupported = np.bincount(problem.color[~problem.supported], minlength=problem.num_colors) > 0
    too_large = _per_class(problem, problem.size_bytes) > problem.capacity_bytes
    return np.where(unsupported | too_large, np.inf, time)
