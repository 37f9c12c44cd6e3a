"""One plan with a split per layer, predicted: its step, its layers, its error bars and what the best plan does better."""

from __future__ import annotations

import dataclasses
import math

from costmodel.layerwise.plan import Plan
from costmodel.layerwise.tables import CostCache
from planner.breakdown import layer_costs
from planner.core.errors import UsageError
from planner.core.quantities import format_bytes, format_seconds
from planner.core.results import Breakdown, RankedPlan
from planner.ranking import rank
from planner.resolve import Resolved
from planner.uncertainty.answers import layer_bars
from planner.uncertainty.bars import with_bars

__all__ = ["breakdown_of"]


def breakdown_of(resolved: Resolved, plan: Plan, best: RankedPlan | None) -> Breakdown:
    """Where the time of a plan goes, beside the best plan where that is known.

    Raises
    ------
    UsageError
        The plan is not legal.
    """
    from costmodel.layerwise.detail import layer_links

    resolved = _with_named_collectives(resolved, plan)
    known = CostCache(resolved.workload, resolved.cluster)
    ranked = rank(resolved, [plan] if best is None else [best.plan, plan], known=known)[-1]
    if not math.isfinite(ranked.step_time_s):
        raise UsageError("the plan is not legal: a degree is larger than what it divides, or than the micro-batch")
    notes = []
    if ranked.memory_bytes_per_gpu > ranked.memory_capacity_bytes:
        notes.append(
            f"does not fit: needs {format_bytes(ranked.memory_bytes_per_gpu)} per GPU, "
            f"there are {format_bytes(ranked.memory_capacity_bytes)}"
        )
    if resolved.setting.cost_model == "paleo" and plan.workers == 1:
        notes += _model_parallel_note(resolved)
    bars = layer_bars(resolved, [ranked], known)
    layers = layer_costs(resolved.workload, resolved.cluster, plan)
    exposed = {i: layer.exposed_exchange_s for i, layer in enumerate(layers) if layer.collective}
    return Breakdown(
        setting=resolved.setting,
        objective=resolved.request.objective or "step_time",
        ranked=with_bars([ranked], bars)[0],
        error_bars=bars,
        layers=layers,
        links=tuple(layer_links(resolved.cluster, plan, exposed, ranked.reshard_s)),
        best=best,
        comparison=_comparison(ranked, best),
        assumptions=resolved.assumptions,
        free_layers=resolved.free_layers,
        notes=tuple(notes),
    )


def _with_named_collectives(resolved: Resolved, plan: Plan) -> Resolved:
    """Allow what the plan names beside what may be chosen: some algorithms run only when named."""
    names = dict.fromkeys((*resolved.workload.collectives, *(name for name in plan.collectives if name is not None)))
    workload = dataclasses.replace(resolved.workload, collectives=tuple(names))
    return dataclasses.replace(resolved, workload=workload)


def _model_parallel_note(resolved: Resolved) -> list[str]:
    """PALEO's bounds of running the branches of the network on different devices."""
    from costmodel.paleo.model import PaleoCompute
    from costmodel.paleo.scaling import model_parallel_bounds

    compute = resolved.workload.compute
    if not isinstance(compute, PaleoCompute) or compute.extensions is not None:
        return []
    forward, backward = model_parallel_bounds(resolved.workload.graph, compute, batch=resolved.workload.global_batch)
    sentence = (
        "PALEO's bounds with the branches on different devices: forward "
        f"{format_seconds(forward.lower_s)} to {format_seconds(forward.upper_s)}, backward "
        f"{format_seconds(backward.lower_s)} to {format_seconds(backward.upper_s)}"
    )
    return [sentence]


def _comparison(plan: RankedPlan, best: RankedPlan | None) -> tuple[tuple[str, float, float], ...]:
    if best is None:
        return ()
    names = {
        "compute": "compute_s",
        "optimizer": "update_s",
        "resharding": "reshard_s",
        "exposed gradient exchange": "exposed_exchange_s",
        "pipeline bubble": "bubble_s",
    }
    rows = [(name, float(getattr(plan, key)), float(getattr(best, key))) for name, key in names.items()]
    return tuple(sorted(rows, key=lambda row: row[2] - row[1]))
