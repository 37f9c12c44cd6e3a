"""Serving plans to documents and back: what a plan file says must agree with itself, with its network and with the rules."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from costmodel.serving.plan import ServingPlan
from planner.core.errors import FileProblem, InputFileError
from planner.files.plan_file import plan_problem

if TYPE_CHECKING:
    from planner.files.documents import Document
    from planner.schema.plan import PlanDocument
    from planner.spaces.serving.space import ServingPlanSpace

__all__ = ["serving_plan_from_document"]

_FIELDS = tuple(field.name for field in dataclasses.fields(ServingPlan))


def serving_plan_from_document(
    document: PlanDocument, space: ServingPlanSpace, source: Document | None = None
) -> ServingPlan:
    """Check a plan document against itself, its network and the rules of serving.

    Parameters
    ----------
    document : PlanDocument
        With a section ``serving``.
    space : ServingPlanSpace
        Of the question that the document asks.
    source : Document, optional
        The file, for line and column.

    Raises
    ------
    InputFileError
        Everything that contradicts.
    """
    entry = document.serving
    assert entry is not None
    plan = ServingPlan(**{name: getattr(entry, name) for name in _FIELDS})
    problems: list[FileProblem] = []

    def note(location: tuple[str, ...], message: str) -> None:
        problems.append(plan_problem(source, location, message))

    if plan.workers != document.workers:
        words = f"tp {plan.tp} x pp {plan.pp} x dp {plan.dp}"
        note(("workers",), f"is {document.workers}, but the plan has {words} = {plan.workers}")
    if document.workers > document.gpus:
        note(("workers",), f"is {document.workers}, more than the {document.gpus} gpus")
    if plan.concurrency != document.global_batch:
        words = f"dp {plan.dp} x max_batch {plan.max_batch} = {plan.concurrency} sequences"
        note(("global_batch",), f"is {document.global_batch}, but the plan holds {words}")
    if not problems:
        for message in space.broken(plan):
            word = message.split(" ", 1)[0]
            note(("serving", word) if word in _FIELDS else ("serving",), message)
    if problems:
        raise InputFileError(problems)
    return plan
