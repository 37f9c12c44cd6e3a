"""Evaluates a plan at other batches, sequences and numbers of devices; a space says which plan each of them is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.core.answer import RankedPlan
from planner.core.what_if import WhatIf, WhatIfAxis
from planner.spaces.base import PlanSpace

__all__ = ["answered"]

_FIGURES = ("step_time_s", "memory_bytes_per_gpu", "tokens_per_s", "throughput_samples_per_s", "mfu")


def answered(
    ranked: RankedPlan, axes: Sequence[WhatIfAxis], change: Callable[..., tuple[PlanSpace, Any] | str], kept: str
) -> WhatIf | None:
    """Predict every choice of values.

    Parameters
    ----------
    ranked : RankedPlan
        The plan as it is.
    axes : sequence of WhatIfAxis
        Those with one value are left out.
    change : callable
        Takes a value of each axis by its name; gives the question and the plan, or why there is none.
    kept : str
        What of the plan stays.

    Returns
    -------
    WhatIf or None
        None: nothing can change.
    """
    axes = tuple(axis for axis in axes if len(axis.values) > 1)
    points: list[Mapping[str, float] | str] = []
    plans: dict[int, tuple[PlanSpace, list[tuple[int, Any]]]] = {}
    for n, values in enumerate(itertools.product(*(axis.values for axis in axes))):
        found = change(**{axis.name: value for axis, value in zip(axes, values, strict=True)})
        problems = [found] if isinstance(found, str) else found[0].broken(found[1])
        points.append(problems[0] if problems else {})
        if not problems and not isinstance(found, str):
            plans.setdefault(id(found[0]), (found[0], []))[1].append((n, found[1]))
    for space, places in plans.values():
        for (n, _), plan in zip(places, space.described([plan for _, plan in places]), strict=True):
            points[n] = {name: float(plan[name]) for name in _FIGURES if plan.get(name) is not None}
    if len(points) < 2:
        return None
    return WhatIf(axes=axes, points=tuple(points), capacity_bytes=ranked.memory_capacity_bytes, kept=kept)
