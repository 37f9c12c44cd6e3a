"""What comes closest where nothing fits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.plan import RECOMPUTE
from costmodel.mixed.evaluate import stage_reports
from costmodel.mixed.plan import MixedPipeline, MixedPlan, MixedStage
from strategies.mixed.division import least_bottleneck
from strategies.mixed.families import RateBook
from strategies.mixed.settings import MixedMiss, MixedSettings
from strategies.mixed.stage_tables import StageTables

__all__ = ["nearest_miss"]

FloatArray = NDArray[np.float64]

_MOST_TRIED = 200


def nearest_miss(
    book: RateBook, tables: StageTables, devices: Sequence[int], settings: MixedSettings
) -> MixedMiss | None:
    """The plan whose fullest device is least over-full, among single pipelines over all groups with as many stages as there can be.

    One replica, the smallest micro-batch and everything recomputed need least memory; which degrees and order do is tried.
    """
    model = book.model
    used = tuple(g for g, count in enumerate(devices) if count)
    sizes = [b for b in settings.micro_batches if model.shape.global_batch % b == 0]
    if not sizes:
        return None
    best: tuple[float, MixedPlan] | None = None
    tried = 0
    for groups in permutations(used):
        for tps in product(reversed(book.degrees), repeat=len(groups)):
            plan = _widest(
                model.shape.num_blocks,
                groups,
                tps,
                devices,
                model.shape.global_batch // min(sizes),
                min(sizes),
                settings,
            )
            if plan is None or tried >= _MOST_TRIED:
                continue
            tried += 1
            found = _fullest(tables, plan)
            if best is None or found[0] < best[0]:
                best = found
    if best is None:
        return None
    fullest = max(stage_reports(model, best[1]), key=lambda r: r.memory_bytes / tables.capacity_bytes[r.group])
    return MixedMiss(
        plan=best[1],
        memory_bytes=fullest.memory_bytes,
        capacity_bytes=tables.capacity_bytes[fullest.group],
        group=fullest.group,
    )


def _widest(
    blocks: int,
    groups: Sequence[int],
    tps: Sequence[int],
    devices: Sequence[int],
    m: int,
    micro_batch: int,
    settings: MixedSettings,
) -> MixedPlan | None:
    counts = [devices[g] // tp for g, tp in zip(groups, tps, strict=True)]
    if min(counts) < 1 or blocks < len(groups):
        return None
    while sum(counts) > blocks:
        counts[int(np.argmax(counts))] -= 1
    stages = tuple(
        MixedStage(group=g, tp=tp, blocks=0) for g, tp, n in zip(groups, tps, counts, strict=True) for _ in range(n)
    )
    sequence = settings.sequence_parallel and max(tps) > 1
    pipeline = MixedPipeline(stages=stages, micro_batch=micro_batch, num_micro_batches=m)
    return MixedPlan(pipelines=(pipeline,), sequence_parallel=sequence)


def _fullest(tables: StageTables, plan: MixedPlan) -> tuple[float, MixedPlan]:
    """The division with the least over-full stage, everything recomputed, and how full that is."""
    pipeline = plan.pipelines[0]
    of_range = tables.contents.of_range
    stages = range(len(pipeline.stages))
    filled = np.stack(
        [
            tables.choices(plan, pipeline, s).least_bytes[of_range] / tables.capacity_bytes[pipeline.stages[s].group]
            for s in stages
        ]
    )
    longest, _ = least_bottleneck(filled)
    at, done = 0, []
    for s in stages:
        end = int(np.argmin(np.maximum(filled[s, at], longest[s + 1])))
        done.append(_thriftiest(tables, plan, pipeline, s, at, end))
        at = end
    full = MixedPipeline(
        stages=tuple(done), micro_batch=pipeline.micro_batch, num_micro_batches=pipeline.num_micro_batches
    )
    return float(longest[0, 0]), MixedPlan(pipelines=(full,), sequence_parallel=plan.sequence_parallel)


def _thriftiest(
    tables: StageTables, plan: MixedPlan, pipeline: MixedPipeline, s: int, start: int, end: int
) -> MixedStage:
    stage, count = pipeline.stages[s], end - start
    name = "none"
    if tables.may_recompute:
        name = RECOMPUTE[int(tables.choices(plan, pipeline, s).least_option[tables.contents.of_range[start, end]])]
    return MixedStage(
        group=stage.group, tp=stage.tp, blocks=count, recompute=name, recompute_blocks=count if name == "full" else 0
    )
