"""What comes closest where nothing fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np

from costmodel.mesh.plan import RECOMPUTE
from costmodel.mesh.rules import NetworkShape
from costmodel.mixed.evaluate import stage_reports
from costmodel.mixed.plan import MixedPipeline, MixedPlan, MixedStage
from strategies.mixed.division import least_bottleneck
from strategies.mixed.families import RateBook
from strategies.mixed.settings import MixedMiss, MixedSettings
from strategies.mixed.shares import Shape
from strategies.mixed.stage_tables import StageTables

__all__ = ["nearest_miss"]


_MOST_TRIED = 200


def nearest_miss(
    book: RateBook, tables: StageTables, devices: Sequence[int], settings: MixedSettings
) -> MixedMiss | None:
    """The plan whose fullest device is least over-full, among single pipelines over as many groups and with as many stages as there can be.

    The fewest replicas, the smallest micro-batch and everything recomputed need least memory; which degrees and order do is tried.
    None where what is fixed leaves no such pipeline.
    """
    model = book.model
    used = tuple(g for g, count in enumerate(devices) if count)
    best: tuple[float, MixedPlan] | None = None
    for size in range(len(used), 0, -1):
        tried = 0
        for groups in permutations(used, size):
            for tps in product(reversed(book.degrees), repeat=size):
                plan = None if tried >= _MOST_TRIED else _widest(model.shape, groups, tps, devices, settings)
                if plan is None:
                    continue
                tried += 1
                found = _fullest(tables, plan)
                if best is None or found[0] < best[0]:
                    best = found
        if best is not None:
            break
    if best is None:
        return None
    fullest = max(stage_reports(model, best[1]), key=lambda r: r.memory_bytes / tables.capacity_bytes[r.group])
    return MixedMiss(
        plan=best[1],
        memory_bytes=fullest.memory_bytes,
        capacity_bytes=tables.capacity_bytes[fullest.group],
        group=fullest.group,
    )


def _sizes(shape: NetworkShape, settings: MixedSettings) -> tuple[int, int, int] | None:
    """The fewest replicas and the smallest micro-batch of a pipeline that takes the whole batch, and its micro-batches."""
    least = max(settings.replicas.least, 2 if settings.must_share else 1)
    for replicas in range(least, int(min(settings.replicas.most, shape.global_batch)) + 1):
        for size in sorted(settings.micro_batches) if settings.replicas.allows(replicas) else ():
            count = shape.global_batch // size
            each = Shape(replicas=replicas, micro_batch=size, allowed=settings.num_micro_batches)
            if shape.global_batch % size == 0 and count >= replicas and each.allows(count):
                return replicas, size, count
    return None


def _widest(
    shape: NetworkShape, groups: Sequence[int], tps: Sequence[int], devices: Sequence[int], settings: MixedSettings
) -> MixedPlan | None:
    sizes, blocks = _sizes(shape, settings), shape.num_blocks
    if sizes is None or (settings.must_cut and max(tps) == 1):
        return None
    replicas, micro_batch, count = sizes
    counts = [devices[g] // (tp * replicas) for g, tp in zip(groups, tps, strict=True)]
    if min(counts) < 1 or blocks < len(groups):
        return None
    while sum(counts) > blocks or not settings.stages.allows(sum(counts)):
        counts[int(np.argmax(counts))] -= 1
        if min(counts) < 1:
            return None
    stages = tuple(
        MixedStage(group=g, tp=tp, blocks=0) for g, tp, n in zip(groups, tps, counts, strict=True) for _ in range(n)
    )
    sequence = settings.sequence_parallel and max(tps) > 1
    each, longer = divmod(count, replicas)
    pipeline = MixedPipeline(
        stages=stages, replicas=replicas, micro_batch=micro_batch, num_micro_batches=each, longer=longer
    )
    zero = max(settings.zero_stages) if replicas > 1 else min(settings.zero_stages)
    return MixedPlan(pipelines=(pipeline,), zero_stage=zero, sequence_parallel=sequence, order=settings.orders[0])


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
    return float(longest[0, 0]), replace(plan, pipelines=(replace(pipeline, stages=tuple(done)),))


def _thriftiest(
    tables: StageTables, plan: MixedPlan, pipeline: MixedPipeline, s: int, start: int, end: int
) -> MixedStage:
    stage, count = pipeline.stages[s], end - start
    choices, row = tables.choices(plan, pipeline, s), tables.contents.of_range[start, end]
    return MixedStage(
        group=stage.group,
        tp=stage.tp,
        blocks=count,
        recompute=RECOMPUTE[int(choices.least_option[row])],
        recompute_blocks=int(choices.least_blocks[row]),
    )
