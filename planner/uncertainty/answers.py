"""Error bars of the answers of each space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.kernels.roofline import RooflineCompute
from costmodel.uncertainty.intervals import Candidates
from planner.core.answer import ErrorBars, RankedPlan
from planner.question.choose import is_transformer
from planner.uncertainty.bars import WITHOUT_MODEL, bars_of, knowledge_of, where_needed
from planner.uncertainty.features import (
    Times,
    constants_of,
    effects_of,
    layer_mixture,
    layer_times,
    mesh_coordinates,
    mesh_times,
    node_size,
    shares_of,
)

if TYPE_CHECKING:
    from costmodel.layerwise.tables import CostCache
    from costmodel.mesh.assumptions import MeshAssumptions
    from costmodel.mesh.model import MeshModel
    from planner.question.resolve import Resolved

__all__ = ["layer_bars", "mesh_bars", "parts_bars", "score_weights"]


_OF_ONE_KIND = "of steps on one kind of device, since no published run mixes several"
_OF_TRAINING = "of training steps, since no published forward pass is in the fit"


def score_weights(plans: Sequence[RankedPlan]) -> FloatArray:
    """What the steps of plans are multiplied by to be compared: (plans,)."""
    return np.array([plan.score / plan.step_time_s for plan in plans])


def mesh_bars(
    resolved: Resolved, model: MeshModel, constants: MeshAssumptions, plans: Sequence[RankedPlan]
) -> ErrorBars:
    """Error bars of ranked plans over a mesh; ``constants``: of the cost model, in which every constant is changed."""
    if not isinstance(resolved.workload.compute, RooflineCompute):
        return WITHOUT_MODEL
    planned = [plan.plan for plan in plans]
    names = constants_of(resolved.workload, resolved.cluster, max(plan.workers for plan in plans), constants)
    times = mesh_times(model, planned, exact=False)
    return _bars(resolved, plans, names, times, mesh_coordinates(planned), of_transformers=True)


def layer_bars(resolved: Resolved, cache: CostCache, plans: Sequence[RankedPlan]) -> ErrorBars:
    """Error bars of ranked plans with a split per layer."""
    if not isinstance(resolved.workload.compute, RooflineCompute):
        return WITHOUT_MODEL
    planned = [plan.plan for plan in plans]
    names = constants_of(resolved.workload, resolved.cluster, max(plan.workers for plan in plans))
    places, mixture = layer_mixture(cache, planned)
    of_transformers = is_transformer(resolved.workload.graph)
    bars = _bars(
        resolved,
        plans,
        names,
        layer_times(cache, planned),
        places,
        of_transformers=of_transformers,
        mixture=mixture,
        now_s=np.array([plan.step_time_s for plan in plans]),
    )
    return bars if resolved.request.mode == "training" else replace(bars, basis=_OF_TRAINING)


def parts_bars(resolved: Resolved, plans: Sequence[RankedPlan]) -> ErrorBars:
    """Intervals from the parts of the steps alone: of plans whose constants are not varied and that are not compared."""
    if not isinstance(resolved.workload.compute, RooflineCompute):
        return WITHOUT_MODEL
    return replace(
        _bars(resolved, plans, (), None, np.zeros((len(plans), 1)), of_transformers=True), basis=_OF_ONE_KIND
    )


def _bars(
    resolved: Resolved,
    plans: Sequence[RankedPlan],
    names: Sequence[str],
    times: Times | None,
    coordinates: FloatArray,
    *,
    of_transformers: bool,
    mixture: FloatArray | None = None,
    now_s: FloatArray | None = None,
) -> ErrorBars:
    """Error bars of plans; without ``times`` they are not compared. ``now_s``: the step times, where ``times`` need not find them."""
    devices = tuple(group.device.name for group in resolved.cluster.groups)
    knowledge = knowledge_of(resolved.request, is_transformer=of_transformers, names=names, devices=devices)
    knowledge = where_needed(knowledge, len(plans))
    names = tuple(knowledge.log_sd)
    steps = np.array([plan.step_time_s for plan in plans])
    terms = {name: np.array([plan.time_parts[name] for plan in plans]) for name in plans[0].time_parts}
    candidates = Candidates(
        step_time_s=steps,
        shares=shares_of(steps, terms, np.array([plan.workers for plan in plans]) / node_size(resolved.cluster)),
        effects=effects_of(times, names, now_s) if times is not None and names else np.zeros((len(plans), len(names))),
        covariance=knowledge.covariance,
        coordinates=coordinates,
        mixture=mixture,
    )
    return bars_of(
        candidates, knowledge, seed=resolved.request.seed, weight=score_weights(plans), compares=times is not None
    )
