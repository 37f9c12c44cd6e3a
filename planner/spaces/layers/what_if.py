"""A plan with a split per layer at other batches and numbers of GPUs: the largest degree of each layer follows the GPUs."""

from __future__ import annotations

import dataclasses
from functools import cache

from costmodel.layerwise.plan import Plan, Split
from planner.core.answer import RankedPlan
from planner.core.what_if import WhatIf, WhatIfAxis, around
from planner.spaces.layers.space import LayerwisePlanSpace, layerwise_space
from planner.spaces.what_if import answered

_KEPT = "Micro-batches and collectives of the plan stay as they are; the largest degree of each layer follows the GPUs."


def layers_what_if(space: LayerwisePlanSpace, ranked: RankedPlan) -> WhatIf | None:
    """Predict a plan on a grid around its question; stages of a pipeline stay on their GPUs."""
    plan, batch = ranked.plan, space.resolved.workload.global_batch
    batches = around(batch)
    gpus: tuple[int, ...] = (plan.workers,)
    if plan.workers > 1 and not plan.is_pipeline:
        # On one GPU nothing is exchanged: that would be another plan.
        every = around(plan.workers, most=space.resolved.cluster.max_devices)
        gpus = tuple(count for count in every if count > 1)

    @cache
    def at(samples: int) -> LayerwisePlanSpace:
        return layerwise_space(space.resolved.with_batch(samples))

    def change(gpus: int = plan.workers, batch: int = batch) -> tuple[LayerwisePlanSpace, Plan, str] | str:
        splits = [_scaled(split, gpus) for split in plan.splits]
        if None in splits:
            return f"the degrees of a layer do not follow to {gpus} GPUs"
        changed = tuple(split for split in splits if split is not None)
        return at(batch).for_plan(plan), dataclasses.replace(plan, workers=gpus, splits=changed), ""

    axes = [
        WhatIfAxis(name="gpus", title="GPUs", values=gpus, at=gpus.index(plan.workers)),
        WhatIfAxis(name="batch", title="global batch", values=batches, at=batches.index(batch)),
    ]
    return answered(ranked, axes, change, _KEPT)


def _scaled(split: Split, workers: int) -> Split | None:
    """The split over another number of workers.

    >>> _scaled(Split(batch=2, out_channels=4), 16), _scaled(Split(batch=3, out_channels=2), 3)
    (Split(batch=2, out_channels=8, in_channels=1, height=1), None)
    """
    if split.workers == workers:
        return split
    name = max(("batch", "out_channels", "in_channels", "height"), key=lambda name: int(getattr(split, name)))
    degree = getattr(split, name) * workers
    return dataclasses.replace(split, **{name: degree // split.workers}) if degree % split.workers == 0 else None
