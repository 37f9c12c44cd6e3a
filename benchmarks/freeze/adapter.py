"""Costs of plans that are given as plain data. The only file of the freeze that knows the planner's inside: change it with the planner.

A record of another tree is made with that tree's own copy of this file, where it has one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from planner.core.errors import PlannerError
from planner.question.resolve import resolve
from planner.schema.plan import PlanDocument
from planner.spaces.plan_question import request_from_document

# Of a plan's figures, what depends on the plans beside it.
_NOT_ITS_OWN = {"rank", "gap", "largest_batch"}
# Of sections of a plan file: figures, not options.
_SPACES = {"layers": "layers", "mesh": "mesh", "mixed": "auto", "serving": "auto"}


def layers_of(model: str) -> list[tuple[str, str]]:
    """Names and kinds of the layers of a bundled network, in its order."""
    from planner.importers.networks import load_model

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
    figures = iter([_figures(ranked, space) for ranked in rank(legal)])
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


def _space(documents: Sequence[PlanDocument], space: str) -> tuple[list[Any], Any]:
    from planner.spaces.base import space_of

    found = space_of(resolve(_request(documents[0], space)))
    return _checked(lambda document: found.plan_of(document, None), documents), found.rank


_EVALUATORS = {space: functools.partial(_space, space=space) for space in ("layers", "mesh", "mixed", "serving")}
# What the tree at the freeze had as mappings: name -> figure that the parts add up to.
_PARTS = {
    "layers": {},
    "mesh": {"time_parts": "step_time_s", "memory_parts": "memory_bytes_per_gpu"},
    "mixed": {"time_parts": "step_time_s", "memory_parts": "memory_bytes_per_gpu"},
    "serving": {"tpot_parts": "tpot_s", "ttft_parts": "ttft_s", "memory_parts": "memory_bytes_per_gpu"},
}


def _figures(ranked: Any, space: str) -> dict[str, Any]:
    """Numbers of a plan, and mappings of numbers; infinite ones as text, which JSON lacks."""
    parts = {name: ranked.parts(total) for name, total in _PARTS[space].items()}
    inside = {key for mapping in parts.values() for key in mapping}
    found = {
        name: _number(value)
        for name, value in ranked.figures.items()
        if name not in inside and name not in _NOT_ITS_OWN and not isinstance(value, str)
    }
    return found | {name: {key: _number(part) for key, part in mapping.items()} for name, mapping in parts.items()}


def _number(value: Any) -> Any:
    if value is None or isinstance(value, int):
        return value
    return float(value) if abs(value) < float("inf") else str(value)
