"""Answers of every space as plain data, with the names of the published schema (`planner.schema.answer`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner.core.answer import Answer, Assumption, Estimate, RankedPlan, Setting
from planner.core.notes import note_entry
from planner.report.frameworks import frameworks_document
from planner.report.roles import role_line, roles_of
from planner.report.tables import row_entry
from planner.report.uncertainty import bars_document, sensitivity_document

RESULT_VERSION = 1


def search_document(answer: Answer) -> dict[str, Any]:
    """Answer of ``planner optimize``."""
    proof = answer.proof
    size = proof.space_size
    return {
        **_head(answer),
        "plans": [with_plan(answer, plan) for plan in answer.plans],
        **answer.space.report.details_document(answer),
        "proven_optimal": proof.proven_optimal,
        "proven_top": proof.proven_top,
        "bound_s": proof.bound_s,
        "gap": proof.gap,
        "space_size": size,
        "space_size_log10": math.log10(size) if size else None,
        "wall_s": proof.wall_s,
        "searched": dict(proof.searched),
        "solver": proof.solver,
        **answer.space.report.baselines_document(answer),
        **({"roles": _roles(answer)} if answer.space.names_roles else {}),
        **bars_document(answer.error_bars, len(answer.plans)),
        **frameworks_document(answer),
        **_tail(answer, answer.notes),
    }


def first_plan_document(answer: Answer) -> dict[str, Any]:
    """The best plan, where the one to run is simpler, and what that has."""
    fastest = answer.fastest
    return {"fastest": None if fastest is None else with_plan(answer, fastest), "forgone": list(answer.forgone)}


def _roles(answer: Answer) -> list[dict[str, Any]]:
    """What plans are for; ``rank`` of those that are listed."""
    ranks = [(plan.plan, plan.rank) for plan in answer.listed]
    return [
        {
            "roles": [role.name for role in roles],
            "rank": None if plan is None else next((rank for listed, rank in ranks if listed == plan.plan), None),
            "reason": role_line(answer, roles, plan)[1],
            "source": next((role.source for role in roles if role.source), None),
            "plan": None if plan is None else with_plan(answer, plan),
        }
        for roles, plan in roles_of(answer)
    ]


def estimate_document(estimate: Estimate, warnings: Sequence[str] = (), *, is_explained: bool) -> dict[str, Any]:
    """Answer of ``planner estimate``; with rows by layer and what bounds the step, of ``planner explain``."""
    best = estimate.best
    tables = {name: rows for name, rows in estimate.tables.items() if is_explained or name == "stages"}
    return {
        **_head(estimate),
        "step_time_s": estimate.ranked.step_time_s,
        "plans": [with_plan(estimate, estimate.ranked)],
        **{name: [row_entry(row) for row in rows] for name, rows in tables.items()},
        **(estimate.space.report.details_document(estimate) if is_explained else {}),
        "best": None if best is None else with_plan(estimate, best),
        "comparison": [{"term": term, "plan_s": a, "best_s": b} for term, a, b in estimate.comparison],
        **bars_document(estimate.error_bars, None),
        **sensitivity_document(estimate.sensitivity),
        **_tail(estimate, (*estimate.notes, *warnings)),
    }


def with_plan(answer: Answer | Estimate, ranked: RankedPlan) -> dict[str, Any]:
    """Numbers of a plan, and the plan itself."""
    groups = {"groups": [asdict(use) for use in ranked.groups]} if ranked.groups else {}
    return {**ranked.record(), **groups, "plan": answer.space.plan_values(answer, ranked)}


def _head(answer: Answer | Estimate) -> dict[str, Any]:
    setting = answer.setting
    head = {
        "schema_version": RESULT_VERSION,
        "model": setting.model,
        "cluster": setting.cluster,
        "gpus": setting.gpus,
        "global_batch": setting.global_batch,
        "cost_model": setting.cost_model,
        "space": answer.space.name,
        "seq": setting.seq,
        "objective": answer.objective,
    }
    return head if setting.load is None else {**head, **setting.load.document()}


def _tail(answer: Answer | Estimate, notes: Sequence[str]) -> dict[str, Any]:
    document = tail(answer.setting, (*answer.assumptions, *answer.model_assumptions), answer.free_layers, notes)
    if answer.space.has_several_capacities:  # see `groups` of a plan
        document["setting"]["memory_capacity_bytes"] = None
    return document


def tail(
    setting: Setting, assumptions: Sequence[Assumption], free_layers: Sequence[str], notes: Sequence[str]
) -> dict[str, Any]:
    """What every answer ends with: the question as it was understood."""
    return {
        "setting": {
            "device": setting.device,
            "precision": setting.precision,
            "formats": dict(setting.formats),
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
        "notes": [str(note) for note in notes],
        "note_codes": [note_entry(note) for note in notes],
    }
