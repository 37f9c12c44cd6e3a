"""Evaluates a plan at other batches, sequences and numbers of devices; a space says which plan each of them is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from planner.core.answer import RankedPlan
from planner.core.what_if import WhatIf, WhatIfAxis, WhatIfPoint
from planner.spaces.base import PlanSpace

_FIGURES = (
    "step_time_s",
    "memory_bytes_per_gpu",
    "tokens_per_s",
    "throughput_samples_per_s",
    "mfu",
    "fits_probability",
)


def answered(
    ranked: RankedPlan, axes: Sequence[WhatIfAxis], change: Callable[..., tuple[PlanSpace, Any, str] | str], kept: str
) -> WhatIf | None:
    """Predict every choice of values.

    Parameters
    ----------
    ranked : RankedPlan
        The plan as it is.
    axes : sequence of WhatIfAxis
        Those with one value are left out.
    change : callable
        Takes a value of each axis by its name; gives the question, the plan and what else of it is another, or why there is none.
    kept : str
        What of the plan stays.

    Returns
    -------
    WhatIf or None
        None: nothing can change.
    """
    axes = tuple(axis for axis in axes if len(axis.values) > 1)
    points: list[WhatIfPoint] = []
    asked: dict[int, tuple[PlanSpace, list[tuple[int, Any]]]] = {}
    for n, values in enumerate(itertools.product(*(axis.values for axis in axes))):
        found = change(**{axis.name: value for axis, value in zip(axes, values, strict=True)})
        if isinstance(found, str):
            points.append(WhatIfPoint(figures={}, note=found))
            continue
        space, plan, note = found
        problems = space.broken(plan)
        points.append(WhatIfPoint(figures={}, note=problems[0] if problems else note))
        if not problems:
            asked.setdefault(id(space), (space, []))[1].append((n, plan))
    for space, plans in asked.values():
        for (n, _), cost in zip(plans, space.described([plan for _, plan in plans]), strict=True):
            figures = {name: float(cost[name]) for name in _FIGURES if cost.get(name) is not None}
            points[n] = replace(points[n], figures=figures)
    if len(points) < 2:
        return None
    capacity, there = ranked.memory_capacity_bytes, ranked.memory_there_bytes
    return WhatIf(
        axes=axes,
        points=tuple(points),
        capacity_bytes=capacity,
        there_bytes=there,
        fits_surest=ranked.fits_surest,
        kept=kept,
    )
