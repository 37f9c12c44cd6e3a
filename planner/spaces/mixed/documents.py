"""Answers about plans over several groups as plain data, in the order and with the names of the published schema."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from planner.core.request import Request
from planner.core.results import Setting
from planner.files.mesh_plan_file import mesh_entry
from planner.report.documents import RESULT_VERSION, assumption_text, tail
from planner.report.uncertainty import bars_document, sensitivity_document
from planner.spaces.mixed.plan_file import document_from_mixed_plan, mixed_entry
from planner.spaces.mixed.results import MixedBreakdown, MixedResult, RankedMixedPlan

__all__ = ["mixed_breakdown_document", "mixed_plan_document", "mixed_record", "mixed_search_document"]

# Numbers of a ranked plan, in the order in which programs see them; the parts of time and memory follow.
_KEYS = (
    "rank",
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "throughput_samples_per_s",
    "memory_bytes_per_gpu",
    "exposed_communication_s",
    "workers",
    "family",
    "summary",
    "precision",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "mfu",
    "memory_capacity_bytes",
    "gpu_hours_per_million_tokens",
    "money_per_million_tokens",
    "money_per_step",
    "energy_per_step_j",
    "bottleneck",
    "gap",
)


def mixed_record(ranked: RankedMixedPlan) -> dict[str, Any]:
    """Numbers of a ranked plan, without its groups and the plan itself."""
    return {**{key: getattr(ranked, key) for key in _KEYS}, **ranked.time_parts, **ranked.memory_parts}


def mixed_plan_document(
    request: Request,
    answer: MixedResult | MixedBreakdown,
    ranked: RankedMixedPlan | None = None,
    *,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Plan file of one plan of a search (the best where none is named), or of the one plan of an estimate."""
    searched = answer if isinstance(answer, MixedResult) else None
    only = answer.plans[0] if isinstance(answer, MixedResult) else answer.ranked
    return document_from_mixed_plan(
        only if ranked is None else ranked,
        request=request,
        setting=answer.setting,
        result=searched,
        assumptions=[assumption_text(a) for a in answer.assumptions],
        folder=folder,
    )


def mixed_search_document(result: MixedResult) -> dict[str, Any]:
    """Answer of ``planner optimize``."""
    return {
        **_head(result.setting, result.seq, result.objective),
        "plans": [_with_plan(ranked) for ranked in result.plans],
        "proven_optimal": result.proven_optimal,
        "bound_s": result.bound_s,
        "gap": result.bound_gap,
        "space_size": None,
        "space_size_log10": None,
        "wall_s": result.wall_s,
        "searched": dict(result.searched),
        "data_parallel": None,
        "baselines": [
            {
                "group": b.group,
                "plan": None if b.plan is None else _with_plan(b.plan),
                "bound_s": b.bound_s,
                "mesh": None
                if b.mesh is None
                else {"step_time_s": b.mesh.step_time_s, "summary": b.mesh.summary, "plan": mesh_entry(b.mesh.plan)},
            }
            for b in result.baselines
        ],
        **bars_document(result.error_bars, len(result.plans)),
        **_tail(result, result.notes),
    }


def mixed_breakdown_document(
    breakdown: MixedBreakdown, *, warnings: Sequence[str] = (), explained: bool = False
) -> dict[str, Any]:
    """Answer of ``planner estimate``; with what bounds the step and what would change it, of ``planner explain``."""
    why = {
        "bound": None if breakdown.bound is None else asdict(breakdown.bound),
        "what_if": [asdict(row) for row in breakdown.what_if],
    }
    return {
        **_head(breakdown.setting, breakdown.seq, breakdown.objective),
        "step_time_s": breakdown.ranked.step_time_s,
        "plans": [_with_plan(breakdown.ranked)],
        "stages": [asdict(row) for row in breakdown.stages],
        **(why if explained else {}),
        "best": None if breakdown.best is None else _with_plan(breakdown.best),
        "comparison": [
            {"term": term, "plan_s": plan_s, "best_s": best_s} for term, plan_s, best_s in breakdown.comparison
        ],
        **bars_document(breakdown.error_bars, None),
        **sensitivity_document(breakdown.sensitivity),
        **_tail(breakdown, (*breakdown.notes, *warnings)),
    }


def _with_plan(ranked: RankedMixedPlan) -> dict[str, Any]:
    names = [use.name for use in ranked.groups]
    groups = [asdict(use) for use in ranked.groups]
    return {**mixed_record(ranked), "groups": groups, "plan": mixed_entry(ranked.plan, names)}


def _head(setting: Setting, seq: int, objective: str) -> dict[str, Any]:
    return {
        "schema_version": RESULT_VERSION,
        "model": setting.model,
        "cluster": setting.cluster,
        "gpus": setting.gpus,
        "global_batch": setting.global_batch,
        "cost_model": setting.cost_model,
        "space": "mixed",
        "seq": seq,
        "objective": objective,
    }


def _tail(answer: MixedResult | MixedBreakdown, notes: Sequence[str]) -> dict[str, Any]:
    document = tail(answer.setting, (*answer.assumptions, *answer.model_assumptions), (), notes)
    # Every group has its own; see `groups` of a plan.
    document["setting"]["memory_capacity_bytes"] = None
    return document
