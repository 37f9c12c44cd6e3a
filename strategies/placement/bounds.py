"""Bounds on the throughput objective that hold for every placement, contiguous or not, and take no search."""

from __future__ import annotations

import numpy as np

from strategies.placement.problem import FloatArray, PlacementProblem, sums_by

__all__ = ["class_bound", "largest_load", "work_bound"]

# Halvings of an interval: beyond a double's 53 bits nothing changes.
_HALVINGS = 100


def largest_load(problem: PlacementProblem) -> float:
    """A load that no device of any placement exceeds."""
    return float(np.sum(problem.accelerator_time) + np.sum(problem.cpu_time) + np.sum(problem.hyperedges.cost) + 1e-300)


def class_bound(problem: PlacementProblem) -> float:
    """Largest time of a colour class on the device that runs it fastest: classes are never divided."""
    count = problem.num_colors
    cpu = _per_class(problem, problem.cpu_time) if problem.num_cpus else np.full(count, np.inf)
    return float(np.max(np.minimum(_on_accelerator(problem), cpu)))


def work_bound(problem: PlacementProblem) -> float:
    """Least T in which the devices together can do the compute alone, classes divided at will.

    k T accelerator time and l T of CPU time must cover all classes; CPUs take over those that they are least bad at.

    Examples
    --------
    >>> from strategies.placement.problem import NodeSpec
    >>> nodes = [NodeSpec(id=i, accelerator_time=3.0, cpu_time=9.0) for i in range(2)]
    >>> work_bound(PlacementProblem.build(nodes, [], num_accelerators=2, num_cpus=0, memory_bytes=1.0))
    3.0
    """
    accelerator = _on_accelerator(problem)
    cpu = _per_class(problem, problem.cpu_time)
    only_cpu = ~np.isfinite(accelerator)
    if problem.num_cpus == 0:
        return np.inf if np.any(only_cpu) else float(np.sum(accelerator)) / problem.num_accelerators
    fixed = float(np.sum(cpu[only_cpu]))
    accelerator, cpu = accelerator[~only_cpu], cpu[~only_cpu]
    useful = accelerator > 0
    order = np.argsort(cpu[useful] / accelerator[useful], kind="stable")
    spent = np.concatenate(([0.0], np.cumsum(cpu[useful][order])))
    saved = np.concatenate(([0.0], np.cumsum(accelerator[useful][order])))
    low, high = fixed / problem.num_cpus, fixed / problem.num_cpus + float(saved[-1])
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        budget = problem.num_cpus * middle - fixed
        if saved[-1] - np.interp(budget, spent, saved) <= problem.num_accelerators * middle:
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
