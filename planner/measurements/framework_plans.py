"""Which memory the log of a framework reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.mesh.data_parallel import Division
from costmodel.mesh.model import MeshModel
from costmodel.mesh.passes import mesh_strides
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.mesh.stages import stack_layouts

__all__ = ["reported_bytes"]


# Frameworks whose log has the memory of the first pipeline rank, not of the fullest: nanotron, src/nanotron/helpers.py, rank 0 writes it.
_FIRST_RANK = frozenset({"nanotron"})


def reported_bytes(model: MeshModel, plans: Sequence[MeshPlan], fullest_bytes: FloatArray) -> FloatArray:
    """Memory as the log of a framework has it, (n,).

    Parameters
    ----------
    model : MeshModel
    plans : sequence of MeshPlan
    fullest_bytes : array (n,)
        Memory of the fullest rank of each.

    Returns
    -------
    array (n,)
        The same; or of the first rank, what libraries hold beside PyTorch's allocator left out.
    """
    if model.workload.framework.name not in _FIRST_RANK or not plans:
        return fullest_bytes
    batch = MeshBatch.from_plans(plans)
    layouts = stack_layouts(model.layouts_of_plans(plans, every_rank=True))
    memory = model.pipeline_memory(batch, layouts).divided(
        np.arange(len(plans)), Division.of(batch, mesh_strides(batch))
    )
    return np.asarray(memory.total_bytes[:, 0] - memory.parts["context_bytes"][:, 0])
