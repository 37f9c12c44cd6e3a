"""What ZeRO-3 adds at least to the passes of a pipeline, before its ranks are ordered and dp is divided.

Sharing weights among few ranks is quick and saves little memory. Under ZeRO-3 all state of a rank is shared, so a way to run a pipeline
fits only where state is shared by so many ranks that (`WayNeeds.shards`)

    state / dp_shard + what does not depend on it <= capacity

No division with as many, in no order of the ranks, gathers a unit's weights or scatters its gradients in less than the least latency of any
plus the bytes at the quickest rate of any. Of that, passes hide a share (`costmodel.mesh.step.chunk_gathering`); more so if units are
recomputed, but by no more than the recomputation takes. So a rank is busy for this long at least, whatever it recomputes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray, combined, rows_of
from costmodel.mesh.data_parallel import copy_groups
from costmodel.mesh.pipelines import mesh_strides
from costmodel.mesh.plan import SCHEDULES, MeshBatch
from costmodel.mesh.stages import weigh
from costmodel.mesh.step import gradient_width
from costmodel.tolerances import EQUAL
from strategies.mesh.pipeline_bound import PipelineTimes
from strategies.mesh.space import MeshSpace, batch_of, selected

__all__ = ["LeastGathering"]


_ZERO_BUBBLE = SCHEDULES.index("zero_bubble")
# What decides which ranks share weights.
_SHAPE = ("tp", "cp", "dp", "pp", "ep", "etp")
_STAGE = 3
# Operation and kind of weights: gathering those outside experts and those of experts, scattering gradients of either.
_EXCHANGES = (("all_gather", 0), ("all_gather", 1), ("reduce_scatter", 0), ("reduce_scatter", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastGathering:
    """Least exchanges of some pipelines under ZeRO-3: n pipelines, u shapes, S numbers of ranks that share (ascending).

    Attributes
    ----------
    shards : array (u, S)
        Shares of dp; 0 for padding at the end.
    laws : array (4, 2, u, S)
        Least latency, and seconds per byte, of the exchanges among so many ranks or more; infinite where there are none.
    shape_of : array (n,)
    """

    space: MeshSpace
    times: PipelineTimes
    shards: IntArray
    laws: FloatArray
    shape_of: IntArray

    @classmethod
    def of(cls, space: MeshSpace, times: PipelineTimes) -> LeastGathering:
        """Those of some pipelines."""
        batch = times.batch
        first, shape_of = combined(*(getattr(batch, name) for name in _SHAPE))
        rows = {name: getattr(batch, name)[first] for name in _SHAPE}
        rows = space.with_shardings({**rows, "_shape": np.arange(len(first))})
        rows = space.with_orders(selected(rows, rows["zero_stage"] == _STAGE))
        shape = rows.pop("_shape")
        plans = batch_of(rows)
        share = _shares(plans, shape)
        shards = np.zeros((len(first), int(share.max(initial=-1)) + 1), dtype=np.int64)
        shards[shape, share] = plans.dp_shard
        laws = np.full((len(_EXCHANGES), 2, *shards.shape), np.inf)
        groups, copies = space.model.groups, copy_groups(plans, mesh_strides(plans))
        found = (
            groups.find(copies.shard, copies.shard_stride),
            groups.find(copies.expert_shard, copies.expert_stride),
        )
        for law, (operation, kind) in zip(laws, _EXCHANGES, strict=True):
            for least, each in zip(law, groups.least_law(operation, found[kind]), strict=True):
                np.minimum.at(least, (shape, share), each)
        # More ranks do not share any quicker than the least of all that are as many.
        laws = np.minimum.accumulate(laws[..., ::-1], axis=-1)[..., ::-1]
        return cls(space=space, times=times, shards=shards, laws=laws, shape_of=shape_of)

    def waiting_s(self, rows: IntArray, least: FloatArray) -> FloatArray:
        """What every kind of rank of some pipelines waits for weights and gradients of one micro-batch, (n, Q).

        Parameters
        ----------
        rows : array (n,)
            Pipelines.
        least : array (n,)
            Ranks that must share dp's copies, at least; infinite waiting where no division has so many.
        """
        times, shape = self.times, self.shape_of[rows]
        if not self.shards.shape[1]:
            return np.full((len(rows), times.busy_s.shape[1]), np.inf)
        known = self.shards[shape]
        place = np.count_nonzero((known > 0) & (known < least[:, None] * (1.0 - EQUAL)), axis=1)
        enough = place < np.count_nonzero(known, axis=1)
        laws = np.where(enough, self.laws[:, :, shape, np.where(enough, place, 0)], 0.0)[..., None]  # (4, 2, n, 1)
        model, table, passes, unit = self.space.model, times.table, times.passes, times.pass_of[rows]
        weight, wide = model.workload.precision.weight_bytes, gradient_width(model.workload, model.groups)
        moved = (rows_of(count, unit) * weight for count in (table.dense_count, table.expert_count))
        given = (rows_of(count, unit) * wide for count in (table.dense_trainable, table.expert_trainable))
        gather, reduce = (
            sum(
                np.where(message > 0, law[0] + law[1] * message, 0.0)
                for law, message in zip(pair, messages, strict=True)
            )
            for pair, messages in ((laws[:2], moved), (laws[2:], given))
        )
        overlap, lost = model.assumptions.dp_overlap, model.assumptions.interference
        waiting = np.maximum(gather - overlap * rows_of(passes.forward_s, unit), lost * gather)
        if model.workload.training:
            lags = (times.batch.schedule[rows] == _ZERO_BUBBLE)[:, None]
            backward = rows_of(passes.backward_s, unit)
            hiding = backward - np.where(lags, rows_of(passes.weight_s, unit), 0.0)
            again = np.where(backward > 0, gather, 0.0)
            waited = (1.0 - model.assumptions.gather_overlap) * again
            behind = again - waited + reduce
            waiting += waited + np.maximum(behind - overlap * hiding, lost * behind)
        total = weigh(rows_of(times.layouts.rank_units, rows), waiting)
        return np.where(enough[:, None], total, np.inf)


def _shares(plans: MeshBatch, shape: IntArray) -> IntArray:
    """The how-maniest share of its shape every plan has, from the smallest."""
    first, share = combined(shape, plans.dp_shard)  # ascending by shape, then by share
    starts = np.searchsorted(shape[first], shape)
    return np.asarray(share - starts)
