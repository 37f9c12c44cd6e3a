"""More searches of plans over a device mesh, for the figures of a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from planner.core.answer import Curve, RankedPlan
from planner.question.resolve import Resolved
from planner.report.figures.standard import halved_counts
from planner.spaces.base import Progress
from planner.spaces.mesh.space import MeshPlanSpace, mesh_space

__all__ = ["mesh_study"]

# Shares of the memory that plans of a front may use.
_MEMORY_SHARES = (0.7, 0.45, 0.3)
_MORE_PLANS = 8


def mesh_study(space: MeshPlanSpace, progress: Progress) -> tuple[list[RankedPlan], list[Curve], str]:
    """Search at fewer GPUs, with less memory, and at batches that grow with the GPUs.

    Returns
    -------
    plans : list of RankedPlan
    curves : list of Curve
        Strong and weak scaling.
    note : str
    """
    resolved = space.resolved
    batch = resolved.workload.global_batch
    counts = halved_counts(resolved.request.gpus)
    found: list[RankedPlan] = []
    strong, weak = [], []
    steps = 3 * len(counts) + len(_MEMORY_SHARES)
    for n, gpus in enumerate(counts):
        progress(f"plans on {gpus} GPUs", n / steps)
        plans = _best(space, gpus, 1.0, _MORE_PLANS)
        found += plans
        if plans:
            strong.append((gpus, batch, plans[0].step_time_s, plans[0].summary))
    for n, share in enumerate(_MEMORY_SHARES):
        progress(f"plans in {share:.0%} of the memory", (len(counts) + n) / steps)
        found += _best(space, counts[-1], share, 2)
    for n, (gpus, samples) in enumerate(_weak_batches(counts, resolved)):
        progress(f"plans at batch {samples}", (2 * len(counts) + n) / steps)
        plans = _best(mesh_space(resolved.with_batch(samples)), gpus, 1.0, 1)
        if plans:
            weak.append((gpus, samples, plans[0].step_time_s, plans[0].summary))
    name = "the best plan"
    curves = [Curve(name=name, weak=False, points=tuple(strong)), Curve(name=name, weak=True, points=tuple(weak))]
    return found, curves, ""


def _best(space: MeshPlanSpace, gpus: int, share: float, top: int) -> list[RankedPlan]:
    settings = space.settings()
    settings = dataclasses.replace(settings, max_workers=gpus, capacity_bytes=share * settings.capacity_bytes, top=top)
    return space.rank([candidate.plan for candidate in space.outcome(settings).candidates])


def _weak_batches(counts: Sequence[int], resolved: Resolved) -> list[tuple[int, int]]:
    """Batches in proportion to the GPUs; where that is no whole number there is no point."""
    batch, most = resolved.workload.global_batch, counts[-1]
    return [(gpus, batch * gpus // most) for gpus in counts if batch * gpus % most == 0 and batch * gpus >= most]
