"""Answers as plain data, in the order and with the names of the published schema (planner.schema.result)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from planner.core.request import Request
from planner.core.results import Assumption, Breakdown, LayerCost, RankedPlan, SearchResult, Setting
from planner.files.plan_file import document_from_plan
from planner.report.links import links_document
from planner.report.uncertainty import bars_document, sensitivity_document

__all__ = [
    "RESULT_VERSION",
    "assumption_text",
    "breakdown_document",
    "layer_names",
    "layer_totals",
    "plan_document",
    "ranked_record",
    "search_document",
    "tail",
]

RESULT_VERSION = 1

# Numbers of a ranked plan, in the order in which programs see them.
_RANKED_KEYS = (
    "rank",
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "probability_best",
    "throughput_samples_per_s",
    "memory_bytes_per_gpu",
    "exposed_communication_s",
    "workers",
    "family",
    "summary",
    "speedup",
    "efficiency",
    "memory_capacity_bytes",
    "compute_s",
    "update_s",
    "reshard_s",
    "exposed_exchange_s",
    "bubble_s",
    "exchange_s",
    "bottleneck",
    "gap",
    "money_per_step",
    "energy_per_step_j",
)
_LAYER_KEYS = tuple(field.name for field in fields(LayerCost))
_SUMMED = (
    "forward_s",
    "backward_input_s",
    "backward_weight_s",
    "update_s",
    "reshard_s",
    "exchange_s",
    "exposed_exchange_s",
    "flops",
    "weight_bytes",
    "memory_bytes",
)


def layer_names(request: Request) -> tuple[str, ...]:
    """Names of the network's layers, in its order."""
    from planner.files.loading import load_model

    return tuple(layer.name for layer in load_model(request.model, assume_free=request.assume_free).graph.layers)


def ranked_record(ranked: RankedPlan) -> dict[str, Any]:
    """Numbers of a ranked plan, without the plan itself."""
    return {key: getattr(ranked, key) for key in _RANKED_KEYS}


def plan_document(
    request: Request,
    result: SearchResult,
    ranked: RankedPlan,
    *,
    folder: Path | None = None,
    names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Plan file of one plan of a search."""
    return document_from_plan(
        ranked,
        layer_names=layer_names(request) if names is None else names,
        request=request,
        setting=result.setting,
        result=result,
        assumptions=[assumption_text(a) for a in result.assumptions],
        folder=folder,
    )


def search_document(request: Request, result: SearchResult) -> dict[str, Any]:
    """Answer of ``planner optimize``."""
    names = layer_names(request)
    # The plans share where they come from; repeating it in each would bury the splits.
    plans = [
        {**ranked_record(ranked), "plan": plan_document(request, result, ranked, names=names)}
        for ranked in result.plans
    ]
    return {
        **_head(result.setting),
        "objective": result.objective,
        "plans": plans,
        "proven_optimal": result.proven_optimal,
        "proven_top": result.proven_top,
        "bound_s": result.bound_s,
        "gap": result.gap,
        "space_size": result.space_size,
        "space_size_log10": math.log10(result.space_size) if result.space_size > 0 else None,
        "wall_s": result.wall_s,
        "searched": dict(result.searched),
        "solver": result.solver,
        "data_parallel": _optional_record(result.data_parallel),
        "data_parallel_all": _optional_record(result.data_parallel_all),
        **bars_document(result.error_bars, len(result.plans)),
        **tail(result.setting, result.assumptions, result.free_layers, result.notes),
    }


def breakdown_document(
    breakdown: Breakdown, *, plan: dict[str, Any], warnings: Sequence[str] = (), layers: bool = True
) -> dict[str, Any]:
    """Answer of ``planner explain``; without ``layers``, of ``planner estimate``."""
    ranked = breakdown.ranked
    document = {
        **_head(breakdown.setting),
        "step_time_s": ranked.step_time_s,
        "plans": [{**ranked_record(ranked), "plan": plan}],
    }
    if layers:
        document |= {
            "layers": [_layer_record(layer) for layer in breakdown.layers],
            "totals": layer_totals(breakdown.layers),
            "links": links_document(breakdown.links),
        }
    document |= {
        "best": _optional_record(breakdown.best),
        "comparison": [
            {"term": term, "plan_s": plan_s, "best_s": best_s} for term, plan_s, best_s in breakdown.comparison
        ],
    }
    document |= bars_document(breakdown.error_bars, None) | sensitivity_document(breakdown.sensitivity)
    return document | tail(
        breakdown.setting, breakdown.assumptions, breakdown.free_layers, (*breakdown.notes, *warnings)
    )


def layer_totals(layers: Sequence[LayerCost]) -> dict[str, Any]:
    """Sum the layers, under the keys of a layer; ``output_shape`` is the last layer's."""
    totals: dict[str, Any] = dict.fromkeys(_LAYER_KEYS, "")
    totals |= {key: math.fsum(getattr(layer, key) for layer in layers) for key in _SUMMED}
    last = layers[-1]
    return totals | {
        "name": "total",
        "group": max(layer.group for layer in layers),
        "output_shape": list(last.output_shape),
        "algorithms": ["", "", ""],
        "is_free": all(layer.is_free for layer in layers),
    }


def _layer_record(layer: LayerCost) -> dict[str, Any]:
    return {key: getattr(layer, key) for key in _LAYER_KEYS}


def _optional_record(ranked: RankedPlan | None) -> dict[str, Any] | None:
    return None if ranked is None else ranked_record(ranked)


def _head(setting: Setting) -> dict[str, Any]:
    return {
        "schema_version": RESULT_VERSION,
        "model": setting.model,
        "cluster": setting.cluster,
        "gpus": setting.gpus,
        "global_batch": setting.global_batch,
        "cost_model": setting.cost_model,
    }


def tail(
    setting: Setting, assumptions: Sequence[Assumption], free_layers: Sequence[str], notes: Sequence[str]
) -> dict[str, Any]:
    """What every answer ends with: the question as it was understood."""
    return {
        "setting": {
            "device": setting.device,
            "precision": setting.precision,
            "optimizer": setting.optimizer,
            "mode": setting.mode,
            "framework": setting.framework,
            "memory_capacity_bytes": setting.memory_capacity_bytes,
            "cost_model_options": dict(setting.cost_model_options),
            "inputs": dict(setting.inputs),
            "command_line": setting.command_line,
        },
        "assumptions": [{"name": a.name, "value": a.value, "source": a.source} for a in assumptions],
        "free_layers": list(free_layers),
        "notes": list(notes),
    }


def assumption_text(assumption: Assumption) -> str:
    """Write an assumption for people: ``global batch 128 (model file)``."""
    source = f" ({assumption.source})" if assumption.source else ""
    return f"{assumption.name} {assumption.value}{source}"
