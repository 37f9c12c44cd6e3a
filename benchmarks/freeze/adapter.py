"""Costs of plans that are given as plain data. The only file of the freeze that knows the planner's inside: change it with the planner.

A record of another tree is made with that tree's own copy of this file, where it has one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.core.errors import PlannerError
from planner.files.plan_file import request_from_document
from planner.resolve import resolve
from planner.schema.plan import PlanDocument

# Of a plan's figures, what depends on the plans beside it.
_NOT_ITS_OWN = {"rank", "gap", "largest_batch"}
# Of sections of a plan file: figures, not options.
_SPACES = {"layers": "layers", "mesh": "mesh", "mixed": "auto", "serving": "auto"}


def layers_of(model: str) -> list[tuple[str, str]]:
    """Names and kinds of the layers of a bundled network, in its order."""
    from planner.files.loading import load_model

    return [(layer.name, layer.kind) for layer in load_model(model).graph.layers]


def evaluate(problem: dict[str, Any], plans: Sequence[dict[str, Any]]) -> list[dict[str, Any] | None]:
    """Evaluate plans of one problem.

    Parameters
    ----------
    problem : dict
        Keys of a plan file that say what is asked: model, cluster, gpus, global_batch, ...; and ``space``.
    plans : sequence of dict
        Keys of a plan file that say what is chosen: workers, and ``mesh``, ``mixed``, ``serving`` or ``layers`` and what belongs to it.

    Returns
    -------
    list of dict or None
        Figures by name; parts of a sum are dicts themselves. None: the plan is not legal.
    """
    space = problem["space"]
    asked = {key: value for key, value in problem.items() if key != "space"}
    documents = [PlanDocument.model_validate({"schema_version": 1, **asked, **plan}) for plan in plans]
    checked, rank = _EVALUATORS[space](documents)
    legal = [plan for plan in checked if plan is not None]
    figures = iter([_figures(ranked) for ranked in rank(legal)])
    return [None if plan is None else next(figures) for plan in checked]


def _request(document: PlanDocument, space: str) -> Any:
    return dataclasses.replace(request_from_document(document, Path()), space=_SPACES[space], command_line="")


def _checked(check: Any, documents: Sequence[PlanDocument]) -> list[Any]:
    found = []
    for document in documents:
        try:
            found.append(check(document))
        except PlannerError:
            found.append(None)
    return found


def _layers(documents: Sequence[PlanDocument]) -> tuple[list[Any], Any]:
    from planner.files.plan_check import plan_from_document
    from planner.ranking import rank

    resolved = resolve(_request(documents[0], "layers"))
    plans = _checked(lambda document: plan_from_document(document, resolved.workload.graph), documents)
    return plans, lambda legal: rank(resolved, legal)


def _mesh(documents: Sequence[PlanDocument]) -> tuple[list[Any], Any]:
    from planner.files.mesh_plan_file import mesh_plan_from_document
    from planner.spaces.mesh.judge import make_judge

    judge = make_judge(resolve(_request(documents[0], "mesh")))
    return _checked(lambda document: mesh_plan_from_document(document, judge), documents), judge.rank


def _mixed(documents: Sequence[PlanDocument]) -> tuple[list[Any], Any]:
    from planner.spaces.mixed.judge import make_mixed_judge
    from planner.spaces.mixed.plan_file import mixed_plan_from_document

    judge = make_mixed_judge(resolve(_request(documents[0], "mixed")))
    return _checked(lambda document: mixed_plan_from_document(document, judge), documents), judge.rank


def _serving(documents: Sequence[PlanDocument]) -> tuple[list[Any], Any]:
    from planner.files.serving_plan_file import serving_plan_from_document, serving_request_from_document
    from planner.spaces.serving.judge import make_serving_judge

    request = serving_request_from_document(documents[0], _request(documents[0], "serving"))
    judge = make_serving_judge(request)
    return _checked(lambda document: serving_plan_from_document(document, judge), documents), judge.rank


_EVALUATORS = {"layers": _layers, "mesh": _mesh, "mixed": _mixed, "serving": _serving}


def _figures(ranked: Any) -> dict[str, Any]:
    """Numbers of a plan, and mappings of numbers; infinite ones as text, which JSON lacks."""
    found: dict[str, Any] = {}
    for item in dataclasses.fields(ranked):
        value = getattr(ranked, item.name)
        if item.name in _NOT_ITS_OWN:
            continue
        if isinstance(value, dict):
            found[item.name] = {name: _number(part) for name, part in value.items()}
        elif value is None or isinstance(value, int | float):
            found[item.name] = _number(value)
    return found


def _number(value: Any) -> Any:
    if value is None or isinstance(value, int):
        return value
    return float(value) if abs(value) < float("inf") else str(value)
