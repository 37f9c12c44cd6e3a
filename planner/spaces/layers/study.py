"""More searches of plans with a split per layer, for the figures of a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.core.answer import Answer, Curve, RankedPlan
from planner.core.errors import PlannerError
from planner.core.request import Request
from planner.report.figures.standard import halved_counts
from planner.spaces.base import Progress

if TYPE_CHECKING:
    from planner.spaces.layers.space import LayerwisePlanSpace

__all__ = ["layer_study"]


def layer_study(space: LayerwisePlanSpace, answer: Answer, say: Progress) -> tuple[list[RankedPlan], list[Curve], str]:
    """Search at fewer GPUs, by family, and at batches that grow with the GPUs.

    Returns
    -------
    plans : list of RankedPlan
    curves : list of Curve
        Strong and weak scaling.
    note : str
    """
    request = space.resolved.request
    from planner.spaces.layers.scaling import scale

    counts = halved_counts(request.gpus)
    batch = answer.setting.global_batch
    curves, notes = [], []
    families = [("plain data parallelism", "data")] if not request.fix else []
    families.append(("the best plan", "best"))
    for n, (name, family) in enumerate(families):
        for weak in (False, True):
            say(f"scaling of {name}", (2 * n + weak) / (2 * len(families)))
            asked = dataclasses.replace(request, batch=max(batch // request.gpus, 1) if weak else batch)
            points = []
            for count in counts:
                try:
                    (point,) = scale(asked, (count,), weak=weak, family=family).points
                except PlannerError as error:  # nothing of the family fits there
                    notes.append(f"{name}, {'weak' if weak else 'strong'}, {count} GPUs: {error}")
                    continue
                if point.fits:
                    points.append((count, point.global_batch, point.step_time_s, point.summary))
            curves.append(Curve(name=name, weak=weak, points=tuple(points)))
    return _layer_candidates(request, counts, say), curves, "; ".join(notes)


def _layer_candidates(request: Request, counts: Sequence[int], say: Progress) -> list[RankedPlan]:
    """The best plans of every number of GPUs."""
    from planner.spaces.ask import optimize

    found: list[RankedPlan] = []
    for n, count in enumerate(counts):
        say(f"plans on {count} GPUs", 0.5 + 0.5 * n / len(counts))
        try:
            found += optimize(dataclasses.replace(request, gpus=count, top=3, diverse=False)).plans
        except PlannerError:
            continue
    return found
