"""Error bars of the answers of each space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.kernels.roofline import RooflineCompute
from costmodel.uncertainty.intervals import Candidates
from planner.core.answer import ErrorBars, RankedPlan
from planner.question.choose import is_transformer
from planner.uncertainty.bars import Knowledge, bars_of, knowledge_of, where_needed, without_model
from planner.uncertainty.effects import Times, constants_of, effects_of, layer_times, mesh_times
from planner.uncertainty.features import layer_mixture, mesh_coordinates, node_size, shares_of

if TYPE_CHECKING:
    from costmodel.layerwise.tables import CostCache
    from costmodel.mesh.assumptions import MeshAssumptions
    from costmodel.mesh.model import MeshModel
    from planner.question.resolve import Resolved

__all__ = ["layer_bars", "mesh_bars", "parts_bars", "score_weights"]


_OF_ONE_KIND = "of steps on one kind of device, since no published run mixes several"
_OF_TRAINING = "of training steps, since no published forward pass is in the fit"
# Terms of a ranked plan with a split per layer.
_LAYER_TERMS = ("compute_s", "update_s", "reshard_s", "exposed_exchange_s", "bubble_s")


class _Timed(Protocol):
    """A ranked plan with parts of its time by name."""

    @property
    def workers(self) -> int: ...
    @property
    def step_time_s(self) -> float: ...
    @property
    def time_parts(self) -> Mapping[str, float]: ...


def mesh_bars(
    resolved: Resolved, model: MeshModel, constants: MeshAssumptions, plans: Sequence[RankedPlan]
) -> ErrorBars:
    """Error bars of ranked plans over a mesh; ``constants``: of the cost model, in which every constant is changed."""
    if not isinstance(resolved.workload.compute, RooflineCompute):
        return without_model()
    workers = max(plan.workers for plan in plans)
    names = constants_of(resolved.workload, resolved.cluster, workers, constants)
    knowledge = _knowledge(resolved, len(plans), is_transformer=True, names=names)
    candidates = _candidates(
        resolved,
        knowledge,
        plans,
        times=mesh_times(model, [plan.plan for plan in plans], exact=False),
        coordinates=mesh_coordinates([plan.plan for plan in plans]),
    )
    return bars_of(candidates, knowledge, seed=resolved.request.seed, weight=score_weights(plans))


def score_weights(plans: Sequence[RankedPlan]) -> FloatArray:
    """What the steps of plans are multiplied by to be compared: (plans,)."""
    return np.array([plan.score / plan.step_time_s for plan in plans])


def layer_bars(resolved: Resolved, cache: CostCache, plans: Sequence[RankedPlan]) -> ErrorBars:
    """Error bars of ranked plans with a split per layer."""
    workload = resolved.workload
    if not isinstance(workload.compute, RooflineCompute):
        return without_model()
    workers = max(plan.workers for plan in plans)
    names = constants_of(workload, resolved.cluster, workers)
    knowledge = _knowledge(resolved, len(plans), is_transformer=is_transformer(workload.graph), names=names)
    names = tuple(knowledge.log_sd)
    steps = np.array([plan.step_time_s for plan in plans])
    terms = {name: np.array([plan[name] for plan in plans]) for name in _LAYER_TERMS}
    nodes = np.array([plan.workers for plan in plans]) / node_size(resolved.cluster)
    coordinates, mixture = layer_mixture(cache, [plan.plan for plan in plans])
    candidates = Candidates(
        step_time_s=steps,
        shares=shares_of(steps, terms, nodes),
        effects=effects_of(layer_times(cache, [plan.plan for plan in plans]), names, steps),
        covariance=knowledge.covariance,
        coordinates=coordinates,
        mixture=mixture,
    )
    bars = bars_of(candidates, knowledge, seed=resolved.request.seed, weight=score_weights(plans))
    return bars if resolved.request.mode == "training" else replace(bars, basis=_OF_TRAINING)


def parts_bars(resolved: Resolved, plans: Sequence[_Timed]) -> ErrorBars:
    """Intervals from the parts of the steps alone: of plans whose constants are not varied and that are not compared."""
    if not isinstance(resolved.workload.compute, RooflineCompute):
        return without_model()
    knowledge = knowledge_of(resolved.request, is_transformer=True, names=(), devices=_devices(resolved))
    bars = bars_of(_candidates(resolved, knowledge, plans), knowledge)
    return replace(
        bars,
        probability_best=(),
        benchmark_list=(),
        benchmark_probability=None,
        near_list=(),
        near_probability=None,
        near_within=None,
        basis=_OF_ONE_KIND,
    )


def _knowledge(resolved: Resolved, plans: int, *, is_transformer: bool, names: Sequence[str]) -> Knowledge:
    """What is known, as far as it is needed."""
    known = knowledge_of(resolved.request, is_transformer=is_transformer, names=names, devices=_devices(resolved))
    return where_needed(known, plans)


def _devices(resolved: Resolved) -> tuple[str, ...]:
    """Names of the devices of the cluster."""
    return tuple(group.device.name for group in resolved.cluster.groups)


def _candidates(
    resolved: Resolved,
    knowledge: Knowledge,
    plans: Sequence[_Timed],
    *,
    times: Times | None = None,
    coordinates: FloatArray | None = None,
) -> Candidates:
    steps = np.array([plan.step_time_s for plan in plans])
    terms = {name: np.array([plan.time_parts[name] for plan in plans]) for name in plans[0].time_parts}
    nodes = np.array([plan.workers for plan in plans]) / node_size(resolved.cluster)
    names = tuple(knowledge.log_sd)
    return Candidates(
        step_time_s=steps,
        shares=shares_of(steps, terms, nodes),
        effects=effects_of(times, names) if times is not None and names else np.zeros((len(plans), len(names))),
        covariance=knowledge.covariance,
        coordinates=np.zeros((len(plans), 1)) if coordinates is None else coordinates,
    )
