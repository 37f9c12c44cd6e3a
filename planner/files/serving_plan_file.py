"""Serving plans to documents and back: what a plan file says must agree with itself, with its network and with the rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from costmodel.serving.plan import ServingPlan
from planner.core.capacity import reserve_of
from planner.core.errors import FileProblem, InputFileError
from planner.core.request import Request
from planner.files.plan_file import SCHEMA_VERSION, plan_problem, provenance, reference
from planner.spaces.serving.request import ServingRequest
from planner.spaces.serving.results import RankedServingPlan, ServingEstimate, ServingResult

if TYPE_CHECKING:
    from planner.files.documents import Document
    from planner.schema.plan import PlanDocument
    from planner.spaces.serving.judge import ServingJudge

__all__ = [
    "document_from_serving_plan",
    "serving_entry",
    "serving_plan_from_document",
    "serving_request_from_document",
    "stated_differently",
]

_FIELDS = tuple(field.name for field in dataclasses.fields(ServingPlan))
# What a file states of the prediction, in its order.
_PREDICTED = (
    "summary",
    "family",
    "ttft_s",
    "tpot_s",
    "requests_per_s",
    "output_tokens_per_s",
    "memory_bytes_per_gpu",
)
_TIMES = {"ttft_s": "time to first token", "tpot_s": "time per token"}


def serving_entry(plan: ServingPlan) -> dict[str, Any]:
    """Write a plan as the beginning of the section ``serving`` of a plan file; every field is there, so that defaults may change.

    >>> serving_entry(ServingPlan(tp=8))["tp"], ServingPlan(**serving_entry(ServingPlan(tp=8))) == ServingPlan(tp=8)
    (8, True)
    """
    return {name: getattr(plan, name) for name in _FIELDS}


def document_from_serving_plan(
    answer: ServingResult | ServingEstimate,
    ranked: RankedServingPlan,
    *,
    request: ServingRequest,
    assumptions: Sequence[str] = (),
    folder: Path | None = None,
) -> dict[str, Any]:
    """Write a plan as plain values, in the order of a plan file.

    Parameters
    ----------
    answer : ServingResult or ServingEstimate
        What the question was resolved to; a search adds the proof.
    ranked : RankedServingPlan
    request : ServingRequest
        The question; names and paths are taken from it.
    assumptions : sequence of str
    folder : Path, optional
        Where the file will be: relative paths in it start there.

    Returns
    -------
    dict
        A valid ``planner.schema.plan.PlanDocument``; entries that say nothing are left out.
    """
    base, setting = request.base, answer.setting
    entry = {
        **serving_entry(ranked.plan),
        "prompt_tokens": answer.prompt_tokens,
        "output_tokens": answer.output_tokens,
        "kv_precision": answer.kv_precision,
        "objective": answer.objective,
        **{f"max_{name}": limit for name, limit in answer.limits.items()},
    }
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "model": reference("models", base.model, folder),
        "cluster": setting.cluster if base.cluster is None else reference("clusters", base.cluster, folder),
        "device": reference("devices", base.device, folder) if base.device is not None else None,
        "gpus": setting.gpus,
        "global_batch": ranked.plan.concurrency,
        "assume_free": list(base.assume_free),
        "precision": setting.precision,
        "mode": setting.mode,
        "cost_model": setting.cost_model,
        "calibration": None if base.calibration is None else reference("calibrations", base.calibration, folder),
        "framework": None if base.framework is None else reference("frameworks", base.framework, folder),
        "memory_limit": base.memory_limit,
        "memory_reserve": reserve_of(base),
        "workers": ranked.workers,
        "serving": entry,
        "assume": dict(base.assume),
        "prediction": {name: getattr(ranked, name) for name in _PREDICTED},
        "provenance": provenance(setting, assumptions),
    }
    if isinstance(answer, ServingResult):
        document["prediction"]["proven_optimal"] = answer.proven_optimal and ranked.rank == 1
    return {key: value for key, value in document.items() if value not in (None, [], {})}


def serving_request_from_document(document: PlanDocument, base: Request) -> ServingRequest:
    """Ask the question that a plan answered.

    Parameters
    ----------
    document : PlanDocument
        With a section ``serving``.
    base : Request
        The options that every question has, of the same document.
    """
    entry = document.serving
    assert entry is not None
    return ServingRequest(
        base=dataclasses.replace(base, objective=base.objective or entry.objective),
        prompt_tokens=entry.prompt_tokens,
        output_tokens=entry.output_tokens,
        max_ttft_s=entry.max_ttft_s,
        max_tpot_s=entry.max_tpot_s,
        kv=entry.kv_precision,
    )


def serving_plan_from_document(
    document: PlanDocument, judge: ServingJudge, source: Document | None = None
) -> ServingPlan:
    """Check a plan document against itself, its network and the rules of serving.

    Parameters
    ----------
    document : PlanDocument
        With a section ``serving``.
    judge : ServingJudge
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
        for message in judge.broken(plan):
            word = message.split(" ", 1)[0]
            note(("serving", word) if word in _FIELDS else ("serving",), message)
    if problems:
        raise InputFileError(problems)
    return plan


def stated_differently(document: PlanDocument, ranked: RankedServingPlan, tolerance: float) -> list[str]:
    """Where a file's prediction is not what the cost model says.

    Parameters
    ----------
    document : PlanDocument
    ranked : RankedServingPlan
    tolerance : float
        Relative difference that is none.
    """
    result = []
    for name, word in _TIMES.items():
        stated, now = getattr(document.prediction, name), getattr(ranked, name)
        if stated is not None and abs(stated - now) > tolerance * now:
            result.append(f"the plan file states a {word} of {stated:.6g} s; it takes {now:.6g} s")
    return result
