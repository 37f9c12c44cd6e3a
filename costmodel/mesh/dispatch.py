"""Tokens on their way to the experts of other nodes: how many nodes each reaches.

A token with k experts is sent once to every node that holds one of them and copied there (DeepEP, HybridEP). Experts drawn evenly reach
``N (1 - (1 - 1/N)^k)`` of N nodes. A router that draws groups of experts first (DeepSeek-V3, arXiv:2412.19437, section 2.1.2: 4 of 8)
reaches as many as fewer draws would: that number of draws stands for its k.
"""

from __future__ import annotations

import math

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.mesh.groups import GroupTimes
from costmodel.mesh.plan import MeshBatch
from costmodel.mesh.unit_table import UnitTable
from costmodel.network.layers.mixture import MixtureParams

__all__ = ["free_draws", "reached", "sent_bytes"]


def reached(places: FloatArray, draws: FloatArray) -> FloatArray:
    """Places that so many draws among them reach on average.

    >>> reached(np.array([1.0, 2.0, 8.0]), np.array([8.0, 1.0, 2.0])).tolist()
    [1.0, 1.0, 1.875]
    """
    return np.asarray(places * (1.0 - (1.0 - 1.0 / places) ** draws))


def free_draws(params: MixtureParams) -> float:
    """Experts that a router without groups would draw to reach as many groups.

    >>> free_draws(MixtureParams(experts=8, top_k=2, ffn=1))
    2.0
    >>> round(free_draws(MixtureParams(experts=256, top_k=8, ffn=1, groups=8, top_groups=4)), 2)
    4.48
    """
    groups, kept, draws = params.groups, params.top_groups or params.groups, float(params.top_k)
    if kept >= groups:
        return draws
    found = float(reached(np.array(float(kept)), np.array(draws)))
    return math.log(1.0 - found / groups) / math.log(1.0 - 1.0 / groups)


def sent_bytes(table: UnitTable, batch: MeshBatch, stride: IntArray, groups: GroupTimes) -> FloatArray:
    """What a rank sends to the ranks that share the experts, (n, K).

    Parameters
    ----------
    table : UnitTable
        One row per plan.
    batch : MeshBatch
    stride : array (n,)
        Of the ranks that share experts.
    groups : GroupTimes
    """
    every = table.dispatch_bytes
    nodes = np.maximum(batch.ep * stride / groups.node_size, 1.0)[:, None]
    if groups.assumptions.node_copies or not np.any(nodes > 1.0) or not np.any(every):
        return every
    draws = table.drawn_bytes / np.where(every > 0.0, table.token_bytes, 1.0)
    return np.asarray(np.where(nodes > 1.0, np.minimum(reached(nodes, draws) * table.token_bytes, every), every))
