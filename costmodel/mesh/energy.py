"""The energy of a step of mesh plans: what devices compute and what recomputation adds (`costmodel.hardware.energy`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.hardware.energy import Power
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import RECOMPUTE, MeshBatch, MeshCosts, MeshPlan
from costmodel.mesh.stages import LayoutArrays, recomputed_modules, stack_layouts, weigh

__all__ = ["least_computing_s", "mesh_energy_j", "plans_energy_j", "recomputing_s"]


def least_computing_s(model: MeshModel, batch: MeshBatch) -> FloatArray:
    """Time that a device computes in a step of mesh plans, averaged over the devices, if nothing is recomputed: (n,).

        computing = m / pp  sum over the modules of (forward + backward)

    with the kernels of a module on one rank. Neither the order of the ranks, nor schedule, stages or ZeRO matter, so this bounds all plans
    with these degrees.
    """
    table = model.rows(batch)
    counts = np.bincount(model.modules.kind_of, minlength=len(model.modules.kinds)).astype(np.float64)
    return np.asarray(batch.num_micro_batches * ((table.forward_s + table.backward_s) @ counts) / batch.pp)


def recomputing_s(model: MeshModel, batch: MeshBatch, layouts: LayoutArrays) -> FloatArray:
    """What recomputation adds to that: the forward kernels of the blocks, or of their parts, that run again: (n,).

    Layouts list kinds of ranks; each kind stands for all ranks from its first to its last.
    """
    table = model.rows(batch)
    kind = batch.recompute[:, None]
    again = np.where((kind == RECOMPUTE.index("full")) & (table.backward_s > 0), table.forward_s, 0.0)
    again = np.where(kind == RECOMPUTE.index("selective"), table.selective_s, again) * model.is_block
    modules = recomputed_modules(layouts, batch.recompute, batch.recompute_blocks)
    ranks = np.where(layouts.rank_first >= 0, layouts.rank_last - layouts.rank_first + 1, 0)
    total = np.sum(ranks * weigh(modules, again), axis=1)
    return np.asarray(batch.num_micro_batches * total / batch.pp)


def mesh_energy_j(
    model: MeshModel, batch: MeshBatch, layouts: LayoutArrays, costs: MeshCosts, power: Power
) -> FloatArray:
    """Energy of a step of mesh plans, (n,).

    Parameters
    ----------
    model : MeshModel
    batch : MeshBatch
    layouts : LayoutArrays
        Where the plans put the modules.
    costs : MeshCosts
        Of the same plans.
    power : Power

    Notes
    -----
    The optimizer's time is that of the rank that decides the step.
    """
    computing = least_computing_s(model, batch) + recomputing_s(model, batch, layouts) + costs.optimizer_s
    return power.energy_j(costs.step_time_s, np.minimum(computing, costs.step_time_s), batch.workers)


def plans_energy_j(model: MeshModel, plans: Sequence[MeshPlan], costs: MeshCosts, power: Power) -> FloatArray:
    """The same for plans with layouts of their own, too."""
    layouts = stack_layouts([model.layout_of_plan(plan) for plan in plans])
    return mesh_energy_j(model, MeshBatch.from_plans(plans), layouts, costs, power)
