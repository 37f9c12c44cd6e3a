"""Answers about plans over a device mesh as plain data, in the order and with the names of the published schema."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.core.request import Request
from planner.core.results import Assumption, Setting
from planner.files.mesh_plan_file import document_from_mesh_plan, mesh_entry
from planner.report.documents import RESULT_VERSION, assumption_text, tail
from planner.report.links import links_document
from planner.report.splits import split_document
from planner.report.uncertainty import bars_document, sensitivity_document
from planner.spaces.mesh.results import MeshBreakdown, MeshResult, RankedMeshPlan

__all__ = ["mesh_breakdown_document", "mesh_plan_document", "mesh_record", "mesh_search_document"]

# Numbers of a ranked plan, in the order in which programs see them; the parts of time and memory follow.
_KEYS = (
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
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "memory_capacity_bytes",
    "host_bytes_per_gpu",
    "host_capacity_bytes_per_gpu",
    "gpu_hours_per_million_tokens",
    "money_per_million_tokens",
    "money_per_step",
    "energy_per_step_j",
    "bottleneck",
    "host_s",
    "gap",
)


def mesh_record(ranked: RankedMeshPlan) -> dict[str, Any]:
    """Numbers of a ranked plan, without the plan itself."""
    return {**{key: getattr(ranked, key) for key in _KEYS}, **ranked.time_parts, **ranked.memory_parts}


def mesh_plan_document(
    request: Request, result: MeshResult, ranked: RankedMeshPlan, *, folder: Path | None = None
) -> dict[str, Any]:
    """Plan file of one plan of a search."""
    return document_from_mesh_plan(
        ranked,
        request=request,
        setting=result.setting,
        result=result,
        assumptions=[assumption_text(a) for a in result.assumptions],
        folder=folder,
    )


def mesh_search_document(result: MeshResult) -> dict[str, Any]:
    """Answer of ``planner optimize``."""
    return {
        **_head(result.setting, result.seq, result.objective),
        "plans": [_with_plan(ranked) for ranked in result.plans],
        "refined": None if result.refined is None else _with_plan(result.refined),
        "splits": [split_document(check) for check in result.splits],
        "proven_optimal": result.proven_optimal,
        "bound_s": result.bound_s,
        "gap": result.bound_gap,
        "space_size": result.space_size,
        "space_size_log10": math.log10(result.space_size) if result.space_size > 0 else None,
        "wall_s": result.wall_s,
        "searched": dict(result.searched),
        "data_parallel": None if result.data_parallel is None else _with_plan(result.data_parallel),
        **bars_document(result.error_bars, len(result.plans)),
        **_tail(result.setting, result.assumptions, result.model_assumptions, result.notes),
    }


def mesh_breakdown_document(
    breakdown: MeshBreakdown, *, warnings: Sequence[str] = (), rows: bool = True
) -> dict[str, Any]:
    """Answer of ``planner explain``; without ``rows``, of ``planner estimate``."""
    ranked = breakdown.ranked
    document = {
        **_head(breakdown.setting, breakdown.seq, breakdown.objective),
        "step_time_s": ranked.step_time_s,
        "plans": [_with_plan(ranked)],
        "stages": [asdict(row) for row in breakdown.stages],
    }
    if rows:
        document["layers"] = [asdict(row) for row in breakdown.layers]
        document["links"] = links_document(breakdown.links)
        document["split"] = None if breakdown.split is None else split_document(breakdown.split)
    document |= {
        "best": None if breakdown.best is None else _with_plan(breakdown.best),
        "comparison": [
            {"term": term, "plan_s": plan_s, "best_s": best_s} for term, plan_s, best_s in breakdown.comparison
        ],
    }
    notes = (*breakdown.notes, *warnings)
    document |= bars_document(breakdown.error_bars, None) | sensitivity_document(breakdown.sensitivity)
    return document | _tail(breakdown.setting, breakdown.assumptions, breakdown.model_assumptions, notes)


def _with_plan(ranked: RankedMeshPlan) -> dict[str, Any]:
    return {**mesh_record(ranked), "plan": mesh_entry(ranked.plan)}


def _head(setting: Setting, seq: int, objective: str) -> dict[str, Any]:
    return {
        "schema_version": RESULT_VERSION,
        "model": setting.model,
        "cluster": setting.cluster,
        "gpus": setting.gpus,
        "global_batch": setting.global_batch,
        "cost_model": setting.cost_model,
        "space": "mesh",
        "seq": seq,
        "objective": objective,
    }


def _tail(
    setting: Setting, assumptions: Sequence[Assumption], of_model: Sequence[Assumption], notes: Sequence[str]
) -> dict[str, Any]:
    return tail(setting, (*assumptions, *of_model), (), notes)
