"""What fills the memory of plans with a split per layer, of the worker or the stage that needs most, from the cost model's own tables."""

from __future__ import annotations

import numpy as np

from costmodel.layerwise.plan import Plan
from costmodel.layerwise.splits import split_table
from costmodel.layerwise.tables import CostTables
from planner.question.resolve import Resolved

__all__ = ["memory_parts"]


def memory_parts(resolved: Resolved, plan: Plan, total_bytes: float) -> tuple[tuple[str, float], ...]:
    """Words and bytes; what is not of the layers is the context of the driver."""
    workload = resolved.workload
    counts = sorted({split.workers for split in plan.splits})
    tables = CostTables(
        workload, resolved.cluster, split_table(counts, batch_only=plan.is_pipeline), plan.num_micro_batches
    )
    rows = [tables.table.row_of(split) for split in plan.splits]
    static = np.array([costs.static_bytes[row] for costs, row in zip(tables.layers, rows, strict=True)])
    alive = np.array([costs.activation_bytes[row] for costs, row in zip(tables.layers, rows, strict=True)])
    if plan.is_pipeline:
        slices = [slice(stage.first, stage.last + 1) for stage in plan.stages]
        kept = [min(plan.num_micro_batches, len(slices) - n) for n in range(len(slices))]
        needs = [(static[part].sum(), k * alive[part].sum()) for part, k in zip(slices, kept, strict=True)]
        weights, activations = max(needs, key=sum)
    else:
        weights, activations = static.sum(), alive.sum()
    precision = workload.precision
    shares = {"weights": precision.weight_bytes}
    frozen = any(layer.is_frozen for layer in workload.graph.layers)
    if workload.training and not frozen:
        shares |= {
            "gradients": precision.gradient_bytes,
            "optimizer state and master weights": precision.master_bytes + workload.optimizer.state_bytes,
        }
    name = {"weights": "weights, their gradients and optimizer state"} if frozen and workload.training else {}
    whole = sum(shares.values())
    parts = [(name.get(word, word), float(weights) * share / whole) for word, share in shares.items()]
    context = total_bytes - float(weights) - float(activations)
    return (*parts, ("activations", float(activations)), ("context of the driver and libraries", max(context, 0.0)))
