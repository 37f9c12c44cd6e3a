"""`planner.optimize`, `estimate`, `explain`, `why_not` and `scale`: the questions of the command line as functions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from planner.api.calls import Interrupted, call_text, given_in_python, in_python_words, takes_options
from planner.api.keywords import EstimateOptions, ExplainOptions, OptimizeOptions, ScaleOptions, WhyNotOptions
from planner.api.plans import Plan
from planner.api.requests import curve_of, question_about_plan, search_request
from planner.api.results import Estimate, Explanation, ScalingCurve, SearchResult, WhyNot
from planner.core.errors import SearchInterrupted, UsageError

if TYPE_CHECKING:
    from planner.api.options import ModelLike
    from planner.api.requests import Command, Predicts, Progress
    from planner.core.answer import Answer, RankedPlan

_Predicted = TypeVar("_Predicted", bound=Estimate)


@takes_options(OptimizeOptions)
def optimize(
    model: ModelLike | None = None,
    /,
    *,
    plan: str | os.PathLike[str] | Plan | None = None,
    run_from: tuple[str, str | os.PathLike[str]] | None = None,
    progress: Progress | None = None,
    **options: Unpack[OptimizeOptions],
) -> SearchResult:
    """Find the best plans for a network on a cluster, ranked and proven.

    Parameters
    ----------
    model : name, path, loaded network or mapping
        A bundled name, a file of any format that is read, what `planner.load_model` or `planner.from_torch` returned, or the content of
        a network file.
    plan : Plan or path, optional
        A plan over a device mesh, which asks the question, too; ``result.roles["given"]`` is it, beside the best.
    run_from : (trainer, path), optional
        What is run today, as for `planner.estimate`, to be shown in the same way.
    progress : callable, optional
        Takes a message and the share that is done.
    **options
        The options of ``planner optimize``, by the same names: ``gpus``, ``cluster`` (also a name, a path or an object), ``batch``,
        ``tp=8``, ``pp="1..8"`` or ``range(1, 9)``, ``memory_limit="40 GiB"``, ``mode="inference"``, ...

    Returns
    -------
    SearchResult

    Raises
    ------
    PlannerError
        Anything that a user can put right; its subclasses tell what (`NoFeasiblePlan`, `UsageError`, `UnknownName`, ...).
    TypeError
        A keyword that does not exist.
    Interrupted
        A KeyboardInterrupt that holds the best plans so far.

    Examples
    --------
    >>> import planner
    >>> result = planner.optimize("alexnet", gpus=16, batch=512, cluster="dgx-h100")
    >>> result.proven, result.best.workers
    (True, 16)
    >>> planner.optimize("alexnet", gpu=16)
    Traceback (most recent call last):
    ...
    TypeError: planner.optimize() got an unexpected keyword argument 'gpu'; did you mean 'gpus'?
    """
    with in_python_words() as values:
        if model is None and plan is None:
            raise UsageError("model: is missing; name a network (planner.list_models()) or a plan (plan=...)")
        call = call_text("optimize", [model or plan], options)
        given = given_in_python(OptimizeOptions, model, options)
        try:
            if plan is not None or run_from is not None:
                named = plan.to_dict() if isinstance(plan, Plan) else plan
                beside, _ = question_about_plan("optimize", given, named, run_from, values, call)
                values.check()
                return _found(beside(progress)[0])
            request = search_request(given, values, call)
            values.check()
            from planner.comparison.frameworks import optimize as search

            return _found(search(request, progress))
        except SearchInterrupted as stopped:
            raise Interrupted(None if stopped.result is None else _found(stopped.result)) from None


@takes_options(EstimateOptions)
def estimate(
    model: ModelLike | Plan | None = None,
    /,
    *,
    plan: str | os.PathLike[str] | Plan | None = None,
    run_from: tuple[str, str | os.PathLike[str]] | None = None,
    **options: Unpack[EstimateOptions],
) -> Estimate:
    """Predict one plan: a plan or plan file, degrees, or the best of a family or of what is fixed, on exactly ``gpus`` workers.

    Parameters
    ----------
    model : name, path, loaded network, mapping, or a Plan or plan file
    plan : Plan or path, optional
        A plan file; keywords then ask "and on that cluster, at that batch?".
    run_from : (trainer, path), optional
        What is run today: ``("megatron", "train.sh")``, ``("torchtitan", "llama3_8b.toml")``, ``("deepspeed", "ds.json")``, ...
    **options
        The options of ``planner estimate``, by the same names.

    Returns
    -------
    Estimate

    Raises
    ------
    PlannerError
    TypeError
        A keyword that does not exist.

    Examples
    --------
    >>> import planner
    >>> found = planner.estimate("llama3-8b", gpus=64, batch=64, tp=8, pp=2)
    >>> found.fits, found.plan.settings["dp_replicate"] * found.plan.settings["dp_shard"]
    (True, 4)
    """
    return _predict("estimate", Estimate, model, plan, run_from, options, None)


@takes_options(ExplainOptions)
def explain(
    model: ModelLike | Plan | None = None,
    /,
    *,
    plan: str | os.PathLike[str] | Plan | None = None,
    progress: Progress | None = None,
    **options: Unpack[ExplainOptions],
) -> Explanation:
    """Show where the time of a plan goes, layer by layer, and what the best plan does better.

    Without a plan, a family, fixed splits and degrees the best plan itself is explained.

    Parameters
    ----------
    model, plan
        As for `planner.estimate`.
    progress : callable, optional
        Takes a message and the share that is done.
    **options
        The options of ``planner explain``, by the same names.

    Returns
    -------
    Explanation

    Raises
    ------
    PlannerError
    TypeError
        A keyword that does not exist.

    Examples
    --------
    >>> import planner
    >>> found = planner.explain("alexnet", gpus=2, family="data")
    >>> found.best_step_time_s <= found.step_time_s, found.layers[1]["name"]
    (True, 'conv1')
    """
    return _predict("explain", Explanation, model, plan, None, options, progress)


@takes_options(WhyNotOptions)
def why_not(
    model: ModelLike | Plan | None = None,
    /,
    *,
    plan: str | os.PathLike[str] | Plan | None = None,
    run_from: tuple[str, str | os.PathLike[str]] | None = None,
    progress: Progress | None = None,
    **options: Unpack[WhyNotOptions],
) -> WhyNot:
    """Say why a plan is not the first: is it legal, does it fit, how many are better, what does each difference cost.

    Parameters
    ----------
    model, plan, run_from
        As for `planner.estimate`; what options leave open is chosen by a search: the best plan with these settings.
    progress : callable, optional
        Takes a message and the share that is done.
    **options
        The options of ``planner why-not``, by the same names.

    Returns
    -------
    WhyNot

    Raises
    ------
    PlannerError
        Nothing says which plan is meant; a mistake that is not about the plan. An illegal plan is an answer.
    TypeError
        A keyword that does not exist.

    Examples
    --------
    >>> import planner
    >>> found = planner.why_not("alexnet", gpus=4, family="data")
    >>> found.legal, found.fits, found.is_first
    (True, True, False)
    """
    answer, warnings = _asked("why-not", WhyNotOptions, model, plan, run_from, options, progress)
    found = None if answer.plan is None else Plan(ranked=answer.plan.ranked, warnings=warnings, _answer=answer.plan)
    return WhyNot(plan=found, warnings=warnings, raw=answer)


def _predict(
    command: Predicts,
    kind: type[_Predicted],
    model: Any,
    plan: Any,
    run_from: tuple[str, Any] | None,
    options: Mapping[str, Any],
    progress: Progress | None,
) -> _Predicted:
    declared = EstimateOptions if command == "estimate" else ExplainOptions
    answer, warnings = _asked(command, declared, model, plan, run_from, options, progress)
    return kind(plan=Plan(ranked=answer.ranked, warnings=warnings, _answer=answer), warnings=warnings, raw=answer)


def _asked(
    command: Command,
    declared: type,
    model: Any,
    plan: Any,
    run_from: tuple[str, Any] | None,
    options: Mapping[str, Any],
    progress: Progress | None,
) -> tuple[Any, tuple[str, ...]]:
    """The answer to a question about one plan, and warnings."""
    from planner.files.resources import is_plan_file

    with in_python_words() as values:
        if plan is None and (
            isinstance(model, Plan) or (isinstance(model, (str, os.PathLike)) and is_plan_file(os.fspath(model)))
        ):
            model, plan = None, model
        if model is None and plan is None:
            raise UsageError("model: is missing; name a network (planner.list_models()) or a plan (plan=...)")
        given = given_in_python(declared, model, options)
        call = call_text(command.replace("-", "_"), [model or plan], options)
        document_or_path = plan.to_dict() if isinstance(plan, Plan) else plan
        try:
            predicted, notes = question_about_plan(command, given, document_or_path, run_from, values, call)
            values.check()
            answer, warnings = predicted(progress)
            return answer, (*notes, *warnings)
        except SearchInterrupted:
            raise Interrupted(None) from None


@takes_options(ScaleOptions)
def scale(model: ModelLike, /, **options: Unpack[ScaleOptions]) -> ScalingCurve:
    """Show how a network scales over numbers of workers, and how many hours a training takes.

    Parameters
    ----------
    model : name, path, loaded network or mapping
    **options
        The options of ``planner scale``, by the same names: ``workers=[1, 2, 4]``, ``weak=True``, ``family="best"``, ...

    Raises
    ------
    PlannerError
    TypeError
        A keyword that does not exist.

    Examples
    --------
    >>> import planner
    >>> curve = planner.scale("alexnet", workers=[1, 2, 4])
    >>> [point.workers for point in curve.points], curve.points[0].speedup
    ([1, 2, 4], 1.0)
    """
    with in_python_words() as values:
        curve = curve_of(given_in_python(ScaleOptions, model, options), values, call_text("scale", [model], options))
    return ScalingCurve(raw=curve)


def _found(answer: Answer) -> SearchResult:
    def plan(ranked: RankedPlan) -> Plan:
        return Plan(ranked=ranked, _answer=answer)

    plans = tuple(plan(ranked) for ranked in answer.plans)
    best = plans[0] if answer.refined is None else plan(answer.refined)
    fastest = best if answer.fastest is None else plan(answer.fastest)
    return SearchResult(plans=plans, best=best, fastest=fastest, raw=answer)
