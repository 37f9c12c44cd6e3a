"""What the commands ask: is this question about serving, and if so, what is the answer."""

from __future__ import annotations

from collections.abc import Mapping

from planner.commands.output import Output, emit
from planner.commands.progress import Progress
from planner.commands.values import Values
from planner.request import Request
from planner.serving.options import serving_from
from planner.serving.request import ServingRequest

__all__ = ["answer_estimate", "answer_optimize", "serving_request"]


def serving_request(
    words: Mapping[str, str | None], base: Request, values: Values, where: Output
) -> ServingRequest | None:
    """Read the serving options; None where the question is about something else.

    Parameters
    ----------
    words : mapping
        Words of `planner.serving.options.SERVING_OPTIONS`.
    base : Request
        The other options.
    values : Values
        Takes the problems, and raises them all.
    where : Output
    """
    request = serving_from(words, base, values)
    values.check()
    if base.mode != "inference":
        return None
    from planner.errors import UsageError
    from planner.loading import load_model
    from planner.serving.judge import is_serving

    if not is_serving(request, load_model(base.model).graph):
        return None
    if where.export is not None:
        raise UsageError(
            "--export: writes plans of training; a serving plan is spelled out by the options of planner estimate"
        )
    return request


def answer_optimize(request: ServingRequest, where: Output) -> None:
    """Search and print."""
    from planner.serving.report import serving_search_report
    from planner.serving.search import optimize_serving

    progress = Progress(where)
    try:
        result = optimize_serving(request, progress)
    finally:
        progress.close()
    emit(serving_search_report(result), where)
    if result.interrupted:
        raise KeyboardInterrupt  # the best so far is shown; the exit code says that it was stopped


def answer_estimate(request: ServingRequest, where: Output) -> None:
    """Predict one plan and print."""
    from planner.serving.report import serving_estimate_report
    from planner.serving.search import estimate_serving

    emit(serving_estimate_report(estimate_serving(request)), where)
