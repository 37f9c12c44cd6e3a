"""A global batch that divides badly over the GPUs: which batch nearby does better, and by how much."""

from __future__ import annotations

import dataclasses
import math

from planner.core.answer import RankedPlan
from planner.core.quantities import format_seconds
from planner.report.numbers import significant
from planner.spaces.mesh.labels import mesh_plan_in_words
from planner.spaces.mesh.space import MeshPlanSpace, mesh_space
from strategies.mesh.search import search_corner
from strategies.mesh.settings import MeshSettings

__all__ = ["batch_notes", "rounder_batch"]

# Batches further off than this are another training run, not a rounding of this one.
_FEW = 0.05
# Per sample, below which the other batch is not worth a sentence.
_WORTH_SAYING = 0.05
# The second search is short, as those of the cautions: in a corner of the space (degrees that are powers of two), and only roughly. What it
# finds is a plan that exists, so that the sentence is true; the limit in seconds is for machines that are slower than any.
_GAP = 0.02
_WALL_S = 2.0


def rounder_batch(batch: int, gpus: int) -> int | None:
    """The batch within 5 % that shares the highest power of two with the GPUs, where the given one shares a lower one.

    Powers of two, since tensor, pipeline and data parallelism over nodes of 8 GPUs mostly have such degrees.

    Examples
    --------
    >>> rounder_batch(127, 64), rounder_batch(1000, 64), rounder_batch(100, 64)
    (128, 1024, 96)
    >>> rounder_batch(128, 64), rounder_batch(192, 128), rounder_batch(10, 64)
    (None, None, None)
    """
    unit = gpus & -gpus
    shared = math.gcd(batch, unit)
    while unit > shared:
        near = max((batch + unit // 2) // unit * unit, unit)
        if abs(near - batch) <= _FEW * batch:
            return near
        unit //= 2
    return None


def batch_notes(space: MeshPlanSpace, settings: MeshSettings, best: RankedPlan) -> list[str]:
    """Say that a batch nearby is faster per sample, where a plan was found that is.

    Nothing is searched where the batch divides well, or where plans are not ranked by step time.
    """
    batch = space.resolved.workload.global_batch
    other = rounder_batch(batch, settings.max_workers)
    if other is None or space.objective not in ("step_time", "tokens_per_s"):
        return []
    short = dataclasses.replace(
        settings, top=1, gap=max(settings.gap, _GAP), wall_s=min(settings.wall_s, _WALL_S), distinct=None
    )
    found = search_corner(mesh_space(space.resolved.with_batch(other)).model, short).candidates
    if not found:
        return []
    faster = (best.step_time_s / batch) / (found[0].step_time_s / other)
    if faster < 1 / (1 - _WORTH_SAYING):
        return []
    shared = math.gcd(batch, settings.max_workers)
    divisor = "no divisor" if shared == 1 else f"no divisor above {shared}"
    note = (
        f"batch {batch} and {settings.max_workers} GPUs have {divisor} in common: --batch {other} takes "
        f"{format_seconds(found[0].step_time_s)} ({mesh_plan_in_words(found[0].plan)}), {significant(faster)}x faster per sample"
    )
    return [note]
