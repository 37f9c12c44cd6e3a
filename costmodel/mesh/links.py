"""The groups of a plan over a device mesh, the links that they use, and how long a step waits for each."""

from __future__ import annotations

import numpy as np

from costmodel.hardware.links import LinkRow, link_rows
from costmodel.mesh.cores import mesh_strides
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.mesh.sharding import copy_groups

__all__ = ["mesh_links"]


def mesh_links(model: MeshModel, plan: MeshPlan) -> list[LinkRow]:
    """Every dimension whose ranks exchange something.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan

    Returns
    -------
    list of LinkRow
        The times are those of `MeshCosts`. Shards and their copies share the time of data parallelism, which stands where the group is that
        spans most: the other row has none.
    """
    batch = MeshBatch.from_plans([plan])
    stride = {name: int(value[0]) for name, value in mesh_strides(batch).items()}
    copies, costs = copy_groups(batch, mesh_strides(batch)), model.evaluate_plans([plan])
    inner = [
        ("tensor parallel", plan.tp, stride["tp"], float(costs.tp_exposed_s[0])),
        ("context parallel", plan.cp, stride["cp"], float(costs.cp_exposed_s[0])),
        ("expert parallel", plan.ep, stride["ep"], float(costs.ep_exposed_s[0])),
        ("between stages", min(plan.pp, 2), stride["pp"], float(costs.pp_exposed_s[0])),
    ]
    shared = int(copies.shard[0]), int(copies.shard_stride[0])
    repeated = int(copies.replicate[0]), int(copies.replicate_stride[0])
    waiting = float(costs.dp_exposed_s[0])
    widest = int(np.argmax([size * apart if size > 1 else 0 for size, apart in (shared, repeated)]))
    outer = [
        ("data parallel, shards", *shared, waiting if widest == 0 else 0.0),
        ("data parallel, copies", *repeated, waiting if widest == 1 else 0.0),
    ]
    return link_rows(model.cluster, (*inner, *outer))
