"""`planner.optimize`, `planner.estimate`, `planner.explain` and `planner.scale`: the questions of the command line as functions."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack

from planner.api.calls import Interrupted, call_text, in_python_words
from planner.api.options import (
    EstimateOptions,
    ExplainOptions,
    OptimizeOptions,
    ScaleOptions,
    options_of,
    takes_options,
)
from planner.api.plans import Plan
from planner.api.requests import (
    AskedPlan,
    given_in_python,
    question_about_plan,
    read_options,
    readable_cluster,
    request_of,
    whole_cluster,
)
from planner.api.results import Estimate, Explanation, ScalingCurve, SearchResult
from planner.api.values import Values
from planner.core.errors import SearchInterrupted, UsageError

if TYPE_CHECKING:
    from planner.api.options import ModelLike
    from planner.core import answer as core
    from planner.core.answer import Answer, RankedPlan
    from planner.core.request import Request
    from planner.report.answer import Curve

__all__ = ["estimate", "explain", "optimize", "scale"]

Progress: TypeAlias = Callable[[str, float], None]
_Predicted = TypeVar("_Predicted", bound=Estimate)

_USUAL_COUNTS = (1, 2, 4, 8)


@takes_options(OptimizeOptions)
def optimize(
    model: ModelLike, /, *, progress: Progress | None = None, **options: Unpack[OptimizeOptions]
) -> SearchResult:
    """Find the best plans for a network on a cluster, ranked and proven.

    Parameters
    ----------
    model : name, path, loaded network or mapping
        A bundled name, a file of any format that is read, what `planner.load_model` or `planner.from_torch` returned, or the content of
        a network file.
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
        call = call_text("optimize", [model], options)
        request = search_request(given_in_python(OptimizeOptions, model, options), values, call)
        values.check()
        try:
            from planner.spaces.ask import optimize as search

            return _found(search(request, progress))
        except SearchInterrupted as stopped:
            raise Interrupted(None if stopped.result is None else _found(stopped.result)) from None


def search_request(given: Mapping[str, Any], values: Values, command_line: str) -> Request:
    """The request of a search: all of a cluster with a size where the number of workers is left out."""
    more: dict[str, Any] = {}
    if "gpus" not in given:
        gpus = whole_cluster(given.get("cluster"), values)
        more = {"gpus": gpus, "whole_cluster": gpus is not None}
    return request_of(options_of(OptimizeOptions), given, values, command_line, **more)


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
        What is run today: ``("megatron", "train.sh")``, ``("deepspeed", "ds.json")`` or ``("accelerate", "fsdp.yaml")``.
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


def _predict(
    command: str,
    kind: type[_Predicted],
    model: Any,
    plan: Any,
    run_from: tuple[str, Any] | None,
    options: Mapping[str, Any],
    progress: Progress | None,
) -> _Predicted:
    from planner.files.plan_file import is_plan_file

    with in_python_words() as values:
        if plan is None and (
            isinstance(model, Plan) or (isinstance(model, (str, os.PathLike)) and is_plan_file(os.fspath(model)))
        ):
            model, plan = None, model
        if model is None and plan is None:
            raise UsageError("model: is missing; name a network (planner.list_models()) or a plan (plan=...)")
        declared = EstimateOptions if command == "estimate" else ExplainOptions
        given = given_in_python(declared, model, options)
        call = call_text(command, [model or plan], options)
        document_or_path = plan.to_dict() if isinstance(plan, Plan) else plan
        try:
            asked, notes = question_about_plan(declared, given, document_or_path, run_from, values, call)
            values.check()
            answer, warnings = predicted(asked, command, progress)
            warnings = (*notes, *warnings)
            found = Plan(ranked=answer.ranked, warnings=warnings, _answer=answer)
            return kind(plan=found, warnings=warnings, raw=answer)
        except SearchInterrupted:
            raise Interrupted(None) from None


def predicted(asked: AskedPlan, command: str, progress: Progress | None) -> tuple[core.Estimate, tuple[str, ...]]:
    """Predict a plan, or explain it; and say what no longer holds of its file."""
    from planner.spaces import ask
    from planner.spaces.plan_question import plan_warnings

    request, plan, document = asked()
    answer = ask.estimate(request, plan) if command == "estimate" else ask.explain(request, plan, progress)
    return answer, tuple(plan_warnings(document, answer))


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


def curve_of(given: Mapping[str, Any], values: Values, command_line: str) -> Curve:
    """Check the options of a curve, and predict it; `values` takes the problems, and raises them all."""
    from planner.question.resolve import resolve
    from planner.report.answer import Curve

    called = values.called
    options = options_of(ScaleOptions)
    curve = {name: options.pop(name) for name in ("workers", "weak", "strong", "family", "epochs", "samples")}
    asked = read_options(curve, given, values)
    weak, epochs, samples = bool(asked.get("weak")), asked.get("epochs"), asked.get("samples")
    counts = asked["workers"] if "workers" in asked else _usual_counts(given.get("cluster"))
    if weak and asked.get("strong"):
        values.add(f"{called('weak')} and {called('strong')}: choose one")
    if ("epochs" in given) != ("samples" in given):
        values.add(f"{called('epochs')} and {called('samples')}: give both, for the hours of a training")
    request = request_of(options, given, values, command_line, gpus=max(counts, default=1))
    values.check()
    family = asked.get("family") or resolve(request).kind.scaled_family
    if family == "mesh":
        from planner.spaces.mesh.scaling import scale_mesh

        found = scale_mesh(request, counts, weak=weak, epochs=epochs, samples=samples)
    else:
        from planner.spaces.layers.scaling import scale as predict

        found = predict(request, counts, weak=weak, family=family, epochs=epochs, samples=samples)
    resolved = resolve(dataclasses.replace(request, space="mesh" if family == "mesh" else "layers"))
    return Curve(
        setting=resolved.setting,
        assumptions=resolved.assumptions,
        free_layers=() if family == "mesh" else resolved.free_layers,
        points=found.points,
        weak=weak,
        family=family,
        epochs=epochs,
        samples=samples,
        notes=found.notes,
        error_bars=found.error_bars,
    )


def _usual_counts(cluster: str | None) -> tuple[int, ...]:
    """1, 2, 4, 8 where nothing was asked for; of a smaller cluster those that it has, and all of it."""
    known = None if cluster is None else readable_cluster(cluster)
    most = math.inf if known is None or known.max_devices is None else known.max_devices
    return tuple(sorted({int(min(count, most)) for count in _USUAL_COUNTS}))


def _found(answer: Answer) -> SearchResult:
    def plan(ranked: RankedPlan) -> Plan:
        return Plan(ranked=ranked, _answer=answer)

    plans = tuple(plan(ranked) for ranked in answer.plans)
    best = plans[0] if answer.refined is None else plan(answer.refined)
    return SearchResult(plans=plans, best=best, raw=answer)
