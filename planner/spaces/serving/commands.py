"""What the commands ask: is this question about serving, and if so, what is the answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from planner.answers import serving_document_of
from planner.commands.output import Output, emit, export_plan, remark
from planner.commands.progress import Progress
from planner.commands.values import Values
from planner.core.request import Request
from planner.spaces.serving.options import QUESTION_OPTIONS, serving_from
from planner.spaces.serving.request import ServingRequest

if TYPE_CHECKING:
    from planner.commands.report_options import ReportFiles
    from planner.files.loading import Loaded
    from planner.schema.plan import PlanDocument
    from planner.spaces.serving.results import ServingEstimate

__all__ = ["answer_optimize", "answer_plan", "answer_plan_file", "serving_request"]


def serving_request(words: Mapping[str, str | None], base: Request, values: Values) -> ServingRequest | None:
    """Read the serving options; None where the question is about something else.

    Parameters
    ----------
    words : mapping
        Words of `planner.spaces.serving.options.SERVING_OPTIONS`.
    base : Request
        The other options.
    values : Values
        Takes the problems, and raises them all.
    """
    request = serving_from(words, base, values)
    values.check()
    if base.mode != "inference":
        return None
    from planner.files.loading import load_model
    from planner.spaces.serving.judge import is_serving

    return request if is_serving(request, load_model(base.model, assume_free=base.assume_free).graph) else None


def answer_optimize(request: ServingRequest, where: Output, files: ReportFiles) -> None:
    """Search, write the best plan and a page where these were asked for, and print."""
    from planner.spaces.serving.report import serving_search_report
    from planner.spaces.serving.search import optimize_serving

    with Progress(where) as progress:
        result = optimize_serving(request, progress)
    export_plan(
        where, lambda folder: serving_document_of(request, result, result.plans[0], folder=folder), "the best plan"
    )
    report = serving_search_report(result)
    if files.html is not None:
        from planner.commands.report_files import write_serving_page

        write_serving_page(result, report, files, where)
    emit(report, where)
    if result.interrupted:
        raise KeyboardInterrupt  # the best so far is shown; the exit code says that it was stopped


def answer_plan(request: ServingRequest, where: Output, command: Literal["estimate", "explain"]) -> None:
    """Predict or explain one plan, and print."""
    _show(request, _asked(request, None, where, command), (), where, command)


def answer_plan_file(
    loaded: Loaded[PlanDocument],
    base: Request,
    words: Mapping[str, str | None],
    where: Output,
    command: Literal["estimate", "explain"],
    *,
    is_changed: bool,
) -> None:
    """Predict or explain the plan of a file.

    Parameters
    ----------
    loaded : Loaded
        A plan file with a section ``serving``.
    base : Request
        Its question, with what the command line changes of it.
    words : mapping
        Words of `planner.spaces.serving.options.SERVING_OPTIONS` that change it further.
    where : Output
    command : str
    is_changed : bool
        Whether the command line changes the question, so that the file's prediction is of another.

    Raises
    ------
    PlannerError
        Options that the file decides, everything in the file that contradicts.
    """
    from planner.plan_question import serving_prediction

    values = Values()
    if base.mode != "inference":
        values.add(f"--mode {base.mode}: the plan is for inference")
    given = serving_from(words, dataclasses.replace(base, mode="inference"), values)
    values.check()
    changes = {name: getattr(given, name) for name in _QUESTION if getattr(given, name) is not None}
    request, estimate, warnings = serving_prediction(
        loaded, base, changes, lambda asked, plan: _asked(asked, plan, where, command), is_changed=is_changed
    )
    for warning in warnings:
        remark(where, f"warning: {warning}")
    _show(request, estimate, warnings, where, command)


_QUESTION = tuple(QUESTION_OPTIONS.values())


def _asked(
    request: ServingRequest, plan: Any, where: Output, command: Literal["estimate", "explain"]
) -> ServingEstimate:
    from planner.spaces.serving.search import estimate_serving, explain_serving

    if command == "estimate":
        return estimate_serving(request, plan)
    with Progress(where) as progress:
        return explain_serving(request, plan, progress)


def _show(
    request: ServingRequest,
    estimate: ServingEstimate,
    warnings: list[str] | tuple[str, ...],
    where: Output,
    command: Literal["estimate", "explain"],
) -> None:
    from planner.spaces.serving.report import serving_estimate_report, serving_explain_report

    export_plan(
        where, lambda folder: serving_document_of(request, estimate, estimate.ranked, folder=folder), "the plan"
    )
    report = serving_estimate_report if command == "estimate" else serving_explain_report
    emit(report(estimate, warnings), where)
