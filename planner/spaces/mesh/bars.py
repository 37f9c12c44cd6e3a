"""Plans over a device mesh as the error model sees them: where they lie among others, and what each constant does to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import CP_KINDS, RECOMPUTE, SCHEDULES, MeshBatch, MeshPlan
from costmodel.uncertainty.constants import with_constants
from planner.uncertainty.bars import Times, workload_on

# Settings whose change counts as one step (a doubling of a degree); those of the second kind change little of what is computed.
_MINOR = ("sequence_parallel", "offload_optimizer", "offload_activations", "zero_stage")
_DEGREES = ("tp", "pp", "cp", "ep", "etp", "vpp", "micro_batch", "workers")


def mesh_coordinates(plans: Sequence[MeshPlan]) -> FloatArray:
    """Where plans over a mesh lie, in doublings of degrees and changes of settings.

    >>> from costmodel.mesh.plan import MeshPlan
    >>> one, two = mesh_coordinates([MeshPlan(tp=2), MeshPlan(tp=8, recompute="full")])
    >>> float(np.abs(one - two).sum())  # two doublings of tp, and of the workers; another recomputation
    5.0
    """
    columns = [[math.log2(getattr(plan, name)) for plan in plans] for name in _DEGREES]
    for name, words in (("schedule", SCHEDULES), ("recompute", RECOMPUTE), ("cp_kind", CP_KINDS)):
        # Two columns differ where the word does: half a step each.
        columns += [[0.5 * (getattr(plan, name) == word) for plan in plans] for word in words]
    columns += [[0.5 * float(getattr(plan, name)) for plan in plans] for name in _MINOR]
    return np.array(columns, dtype=np.float64).T


def mesh_times(model: MeshModel, plans: Sequence[MeshPlan], *, exact: bool = True) -> Times:
    """Step times of mesh plans; without ``exact``, lower bounds for some schedules, and uniform stages, much quicker."""
    batch = MeshBatch.from_plans(plans)

    def times(name: str, factor: float) -> FloatArray:
        cluster, assumptions = with_constants(model.cluster, model.assumptions, {name: factor})
        changed = model.with_constants(workload_on(model.workload, cluster), cluster, assumptions)
        if exact:
            return changed.evaluate_plans(plans).step_time_s
        return changed.evaluate(batch, exact=False).step_time_s

    return times
