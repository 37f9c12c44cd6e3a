"""How fast a pipeline can be at best, whatever the order of its ranks."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.cores import Cores, mesh_strides, pipeline_s
from costmodel.mesh.keys import combined
from costmodel.mesh.model import MeshModel
from costmodel.mesh.passes import (
    ChunkPasses,
    LayoutArrays,
    UnitPasses,
    chunk_passes,
    rank_recomputed_share,
    unit_passes,
    weigh,
)
from costmodel.mesh.plan import MeshBatch
from costmodel.mesh.schedule import ChunkRuns

__all__ = ["PipelineTimes", "least_times"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

# What decides the passes of a unit, given the best order.
_PASS_FIELDS = ("tp", "sequence_parallel", "cp", "cp_kind", "ep", "etp", "micro_batch", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """What bounds are made of: exact times of pipelines (`of`), or the least of any order of their ranks (`least_times`).

    Shapes: n pipelines, R runs of chunks, Q kinds of ranks; ``passes`` has a row ``pass_of`` for each.
    """

    batch: MeshBatch
    layouts: LayoutArrays
    pass_of: IntArray
    passes: UnitPasses
    chunks: ChunkPasses  # (n, R)
    busy_s: FloatArray  # (n, Q)
    flush_s: FloatArray  # (n,)

    @classmethod
    def of(cls, cores: Cores) -> PipelineTimes:
        """Those of cores."""
        return cls(
            batch=cores.batch,
            layouts=cores.layouts,
            pass_of=cores.pass_of,
            passes=cores.passes,
            chunks=cores.chunks,
            busy_s=cores.busy_s,
            flush_s=cores.flush_s,
        )

    def take(self, index: IntArray) -> PipelineTimes:
        """A selection of the pipelines."""
        return PipelineTimes(
            batch=self.batch.take(index),
            layouts=self.layouts.take(index),
            pass_of=self.pass_of[index],
            passes=self.passes,
            chunks=ChunkPasses(**{item.name: getattr(self.chunks, item.name)[index] for item in fields(ChunkPasses)}),
            busy_s=self.busy_s[index],
            flush_s=self.flush_s[index],
        )


def least_times(model: MeshModel, batch: MeshBatch) -> PipelineTimes:
    """Times of pipelines without data parallelism that no order of the ranks goes below.

    Collectives inside the layers run among neighbours (as in `MeshModel.work_s`), transfers between stages over the nearest link of any
    order: no order has all of that at once. Every schedule takes longer if a chunk does, so the times are bounds.
    """
    first, pass_of = combined(*(getattr(batch, name) for name in _PASS_FIELDS))
    distinct = batch.take(first)
    zero = np.zeros(len(distinct), dtype=np.int64)
    bare = replace(distinct, order=zero, pp=zero + 1)
    is_block = model.is_block
    passes = unit_passes(model.rows(bare), bare, mesh_strides(bare), model.groups, is_block=is_block)
    layouts = model.layouts(batch)
    transfer_s = _least_transfer_s(model, batch, layouts.run_cut)
    chunks = chunk_passes(passes, pass_of, layouts, batch, transfer_s, is_block)
    runs = ChunkRuns(count=layouts.run_chunks, forward_s=chunks.forward_s, backward_s=chunks.backward_s)
    units = layouts.rank_units
    busy = weigh(units, passes.forward_s + passes.backward_s, pass_of)
    if np.any(passes.recompute_s):
        share = rank_recomputed_share(layouts, batch.recompute, batch.recompute_blocks)
        busy += share * weigh(units, passes.recompute_s, pass_of)
    return PipelineTimes(
        batch=batch,
        layouts=layouts,
        pass_of=pass_of,
        passes=passes,
        chunks=chunks,
        busy_s=busy,
        flush_s=pipeline_s(batch, layouts.rank_last, runs, chunks.weight_s, busy, exact=False),
    )


def _least_transfer_s(model: MeshModel, batch: MeshBatch, cut: FloatArray) -> FloatArray:
    """Exposed time to receive a chunk's input from the nearest of all places where the stage before can be: (n, R)."""
    groups = model.groups
    pieces = batch.cp * np.where(batch.sequence_parallel > 0, batch.tp, 1)
    message = cut * (batch.micro_batch / pieces * model.workload.precision.activation_bytes)[:, None]
    pair = np.where(batch.pp > 1, 2, 1)
    strides = (batch.tp, batch.tp * batch.cp, batch.tp * batch.dp, batch.tp * batch.cp * batch.dp)
    times = [groups.time_s("point_to_point", groups.find(pair, stride), message) for stride in strides]
    return np.asarray(np.minimum.reduce(times) * (1.0 - groups.assumptions.pp_overlap))
