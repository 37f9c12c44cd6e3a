"""What a pipeline stage hands to its neighbour: the time of its way from ranks to ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.mesh.groups import GroupTimes
from costmodel.mesh.plan import MeshBatch

__all__ = ["handover_s"]


def handover_s(
    groups: GroupTimes, batch: MeshBatch, cut: FloatArray, activation_bytes: float, strides: Sequence[IntArray]
) -> FloatArray:
    """Exposed time until a chunk has its input.

    Tensor-parallel ranks have a share each (sequence parallelism), or the whole: then they send a share each and gather the shares inside
    their group where the framework does so (`MeshAssumptions.scattered_handover`), else the whole each.

    Parameters
    ----------
    groups : GroupTimes
    batch : MeshBatch
    cut : array (n, R)
        Numbers per sample that enter the chunks.
    activation_bytes : float
    strides : sequence of arrays (n,)
        Distances from a stage to the one before it; the shortest time counts.

    Returns
    -------
    array (n, R)
        Seconds.
    """
    assumptions = groups.assumptions
    holds_whole = batch.sequence_parallel == 0
    scatters = holds_whole & (assumptions.scattered_handover > 0.0)
    whole = cut * (batch.micro_batch / batch.cp * activation_bytes)[:, None]
    share = whole / np.where(holds_whole & ~scatters, 1, batch.tp)[:, None]
    pair = np.where(batch.pp > 1, 2, 1)
    time = np.minimum.reduce([groups.time_s("point_to_point", groups.find(pair, stride), share) for stride in strides])
    if np.any(scatters):
        ranks = groups.find(np.where(scatters & (batch.pp > 1), batch.tp, 1), np.ones_like(batch.tp))
        time = time + groups.time_s("all_gather", ranks, whole)
    return assumptions.exposed_transfer_s(time, batch.workers[:, None])
