"""What a framework profile changes about the plan of a row: where its stages are cut, and which memory its log reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.framework import FrameworkProfile, threshold_blocks, threshold_last
from costmodel.mesh.data_parallel import Division
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import UnitKind
from costmodel.mesh.pipelines import mesh_strides
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.mesh.stages import stack_layouts

__all__ = ["framework_fault", "framework_plan", "reported_bytes"]


def framework_plan(profile: FrameworkProfile, model: MeshModel, plan: MeshPlan) -> MeshPlan:
    """The plan with the stages that a framework would make of it; the same plan where it balances them."""
    chunks = plan.pp * plan.vpp
    if profile.stages == "balanced" or plan.pp == 1 or chunks > model.num_blocks:
        return plan
    if profile.stages == "equal":
        each, rest = divmod(model.num_blocks, chunks)
        return plan if rest else replace(plan, stage_blocks=(each,) * chunks)
    return replace(plan, stage_blocks=threshold_blocks(model.num_blocks, chunks, _head(model)))


def framework_fault(profile: FrameworkProfile, model: MeshModel, plan: MeshPlan) -> str:
    """Why a framework cannot run a plan that others could; empty where it can."""
    if plan.pp == 1:
        return ""
    if profile.warms_up_whole and plan.schedule == "1f1b" and plan.num_micro_batches < plan.pp - 1:
        return f"{profile.name} needs {plan.pp - 1} micro-batches for {plan.pp} stages; the plan has {plan.num_micro_batches}"
    if profile.stages == "threshold" and plan.pp * plan.vpp <= model.num_blocks:
        loss, last = threshold_last(model.num_blocks, plan.pp * plan.vpp, _head(model))
        if loss != last:
            return (
                f"{profile.name} puts the loss on stage {loss} of {plan.pp * plan.vpp} and waits for it on stage {last}"
            )
    return ""


def _head(model: MeshModel) -> float:
    """Cost of the head in blocks, as nanotron counts it: by the weights of matrices."""
    units = model.units
    block = _matrix_weights(model, units.kinds[units.blocks[0]])
    return _matrix_weights(model, units.kinds[units.kind_of[-1]]) / block


def _matrix_weights(model: MeshModel, kind: UnitKind) -> int:
    layers = (model.workload.graph.layers[index] for index in kind.layers)
    return sum(layer.weight_count + layer.tied_count for layer in layers if layer.kind == "linear")


def reported_bytes(
    profile: FrameworkProfile, model: MeshModel, plans: Sequence[MeshPlan], fullest_bytes: FloatArray
) -> FloatArray:
    """Memory as the log of a framework has it, (n,).

    Parameters
    ----------
    profile : FrameworkProfile
    model : MeshModel
    plans : sequence of MeshPlan
    fullest_bytes : array (n,)
        Memory of the fullest rank of each.

    Returns
    -------
    array (n,)
        The same; or of the first rank, what libraries hold beside PyTorch's allocator left out.
    """
    if profile.memory_rank == "fullest" or not plans:
        return fullest_bytes
    batch = MeshBatch.from_plans(plans)
    layouts = stack_layouts(model.layouts_of_plans(plans, every_rank=True))
    memory = model.core_memory(batch, layouts).divided(np.arange(len(plans)), Division.of(batch, mesh_strides(batch)))
    return np.asarray(memory.total_bytes[:, 0] - memory.parts["context_bytes"][:, 0])
