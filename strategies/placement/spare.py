"""Leaves out devices that no placement can use: colour classes are never divided, so more devices than classes stay empty."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.arrays import IntArray
from strategies.placement.problem import PlacementProblem

__all__ = ["without_spare_devices"]


def without_spare_devices(problem: PlacementProblem) -> tuple[PlacementProblem, IntArray]:
    """Keep as many accelerators of each kind, and CPUs, as there are colour classes.

    Returns
    -------
    problem : PlacementProblem
        With the same optimum.
    device : int array (devices kept,)
        Number of each among the devices of the problem that was given.

    Examples
    --------
    >>> from strategies.placement.problem import NodeSpec
    >>> node = NodeSpec(id=1, accelerator_time=1.0, cpu_time=9.0)
    >>> many = PlacementProblem.build([node], [], num_accelerators=10**6, num_cpus=3, memory_bytes=1.0)
    >>> few, device = without_spare_devices(many)
    >>> few.num_accelerators, few.num_cpus, device.tolist()
    (1, 1, [0, 1000000])
    """
    most = problem.num_colors
    kept, first = [], 0
    for count in [kind.count for kind in problem.types] or [problem.num_accelerators]:
        kept.append(np.arange(first, first + min(count, most)))
        first += count
    kept.append(np.arange(problem.num_accelerators, problem.num_accelerators + min(problem.num_cpus, most)))
    smaller = replace(
        problem,
        num_accelerators=sum(len(part) for part in kept[:-1]),
        num_cpus=len(kept[-1]),
        types=tuple(replace(kind, count=min(kind.count, most)) for kind in problem.types),
    )
    return smaller, np.concatenate(kept).astype(np.int64)
