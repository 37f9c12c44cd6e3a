"""`planner.optimize`, `planner.estimate`, `planner.explain` and `planner.scale`: the questions of the command line as functions."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Unpack

from planner.api.inputs import reference_to
from planner.api.options import (
    ALIASES,
    EstimateOptions,
    ExplainOptions,
    OptimizeOptions,
    ScaleOptions,
    takes_options,
    words_of,
)
from planner.api.plans import Plan, space_of
from planner.api.results import Estimate, Explanation, ScalingCurve, SearchResult
from planner.api.shown import call_text
from planner.api.words import Interrupted, in_python_words
from planner.commands.mesh_options import MESH_OPTIONS
from planner.commands.question import request_from, whole_cluster
from planner.commands.values import Values
from planner.errors import UsageError
from planner.plan_question import DECIDED_BY_PLAN, OVERRIDES
from planner.request import Request
from planner.search_errors import SearchInterrupted
from planner.serving.commands import serving_request
from planner.serving.options import QUESTION_OPTIONS, SERVING_OPTIONS

if TYPE_CHECKING:
    from planner.api.options import ModelLike
    from planner.loading import Loaded
    from planner.schema.plan import PlanDocument

__all__ = ["estimate", "explain", "optimize", "scale", "words_for"]

Progress: TypeAlias = Callable[[str, float], None]
_Predicted = TypeVar("_Predicted", Estimate, Explanation)


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
    with in_python_words():
        words = words_for(model, options)
        values = Values()
        if words.get("gpus") is None:
            words["gpus"] = whole_cluster(words.get("cluster"), values)
            words["whole_cluster"] = words["gpus"] is not None
        request = _request(words, values, call_text("optimize", [model], options))
        served = serving_request(words["serving"], request, values)
        try:
            if served is not None:
                from planner.serving.search import optimize_serving

                result = optimize_serving(served, progress)
                if result.interrupted:
                    raise Interrupted(_found(served, result))
                return _found(served, result)
            from planner.search import optimize as search

            return _found(request, search(request, progress))
        except SearchInterrupted as stopped:
            raise Interrupted(None if stopped.result is None else _found(request, stopped.result)) from None


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
    from planner.commands.scale import curve_of

    with in_python_words():
        curve = curve_of(words_for(model, options), Values())
    return ScalingCurve(raw=curve)


# -- from keywords to a request ---------------------------------------------------------------------------------------------


def words_for(model: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Keywords as the words that the command line gives to its checks; objects by name or path."""
    given = dict(options)
    for alias, name in ALIASES.items():
        value = given.pop(alias, None)
        if value is not None and given.get(name) is not None:
            raise UsageError(f"{name} and {alias} are the same; give one of them")
        if value is not None:
            given[name] = value
    for name, kind in (("cluster", "clusters"), ("device", "devices"), ("calibration", "calibrations")):
        if given.get(name) is not None:
            given[name] = reference_to(kind, given[name])  # type: ignore[arg-type]
    if given.get("paleo_algorithms") is not None:
        given["paleo_algorithms"] = Path(given["paleo_algorithms"]).absolute()
    words = words_of(given)
    if model is not None:
        words["model"] = reference_to("models", model)
        length = getattr(model, "seq", None)  # of a network that was loaded, perhaps with another than its file's
        if length is not None and "seq" not in words:
            words["seq"] = str(length)
    mesh = {name: words.pop(name, None) for name in MESH_OPTIONS}
    serving = {name: words.pop(name, None) for name in SERVING_OPTIONS}
    return {"model": None, **words, "mesh": mesh, "serving": serving}


def _request(words: Mapping[str, Any], values: Values, call: str) -> Request:
    request = request_from(words, values)
    values.check()
    return dataclasses.replace(request, command_line=call)


def _found(question: Any, result: Any) -> SearchResult:
    space = space_of(result)

    def plan(ranked: Any) -> Plan:
        return Plan(ranked=ranked, space=space, _question=question, _answer=result)

    plans = tuple(plan(ranked) for ranked in result.plans)
    refined = getattr(result, "refined", None)
    best = plans[0] if refined is None else plan(refined)
    return SearchResult(plans=plans, best=best, space=space, raw=result, _question=question)


# -- one plan ---------------------------------------------------------------------------------------------------------------


def _predict(
    command: str,
    kind: type[_Predicted],
    model: Any,
    plan: Any,
    run_from: tuple[str, Any] | None,
    options: Mapping[str, Any],
    progress: Progress | None,
) -> _Predicted:
    with in_python_words():
        if plan is None and _is_plan(model):
            model, plan = None, model
        if model is None and plan is None:
            raise UsageError("model: is missing; name a network (planner.list_models()) or a plan (plan=...)")
        words = words_for(model, options)
        call = call_text(command, [model or plan], options)
        try:
            if plan is not None:
                if run_from is not None:
                    raise UsageError("run_from and plan: each names a plan; leave one of them out")
                return _of_plan(kind, command, plan, words, call, progress)
            notes: list[str] = []
            if run_from is not None:
                from planner.importers.runs.merge import with_run

                words = {**dict.fromkeys(("gpus", "batch", "micro_batches"), None), **words}
                words, notes = with_run(words, run_from[0], Path(run_from[1]))
            values = Values()
            request = _request(words, values, call)
            served = serving_request(words["serving"], request, values)
            if served is not None:
                return _predicted(kind, served, _ask_serving(command, progress)(served, None), tuple(notes))
            return _predicted(kind, request, _ask(command, request, None, progress), tuple(notes))
        except SearchInterrupted:
            raise Interrupted(None) from None


def _is_plan(given: Any) -> bool:
    from planner.files.plan_file import is_plan_file

    if isinstance(given, Plan):
        return True
    return isinstance(given, (str, os.PathLike)) and is_plan_file(os.fspath(given))


def _predicted(kind: type[_Predicted], question: Any, answer: Any, warnings: tuple[str, ...]) -> _Predicted:
    plan = Plan(ranked=answer.ranked, space=space_of(answer), warnings=warnings, _question=question, _answer=answer)
    return kind(plan=plan, warnings=warnings, raw=answer, _question=question)


def _ask(command: str, request: Request, plan: Any, progress: Progress | None) -> Any:
    from planner import search

    if command == "estimate":
        return search.estimate(request, plan)
    return search.explain(request, plan, progress)


def _ask_serving(command: str, progress: Progress | None) -> Callable[[Any, Any], Any]:
    from planner.serving.search import estimate_serving, explain_serving

    if command == "estimate":
        return estimate_serving
    return lambda request, plan: explain_serving(request, plan, progress)


def _of_plan(
    kind: type[_Predicted],
    command: str,
    plan: str | os.PathLike[str] | Plan,
    words: Mapping[str, Any],
    call: str,
    progress: Progress | None,
) -> _Predicted:
    loaded, path = loaded_plan(plan)
    values = Values()
    is_serving = loaded.content.serving is not None
    asks = QUESTION_OPTIONS if is_serving else {}
    for name in (*DECIDED_BY_PLAN, *MESH_OPTIONS, *SERVING_OPTIONS):
        word = words.get(name, words["mesh"].get(name, words["serving"].get(name)))
        if word and name not in asks:
            values.add(f"{name}: is decided by the plan; leave one of them out")
    given = request_from({**words, "mode": words.get("mode") or loaded.content.mode}, values)
    values.check()
    changes = {name: getattr(given, name) for name in OVERRIDES if words.get(name)}
    if words["model"] is not None:
        changes["model"] = given.model
    if is_serving:
        return _of_serving_plan(kind, command, loaded, path, {**changes, "command_line": call}, words, progress)
    from planner.plan_question import plan_question, plan_warnings

    document, request, checked = plan_question(loaded, path, changes, call)
    request = dataclasses.replace(
        request, sensitivity=given.sensitivity, time_limit_s=given.time_limit_s, solver=given.solver
    )
    answer = _ask(command, request, checked, progress)
    return _predicted(kind, request, answer, tuple(plan_warnings(document, answer)))


def _of_serving_plan(
    kind: type[_Predicted],
    command: str,
    loaded: Loaded[PlanDocument],
    path: Path,
    changes: Mapping[str, Any],
    words: Mapping[str, Any],
    progress: Progress | None,
) -> _Predicted:
    from planner.files.plan_file import request_from_document
    from planner.plan_question import serving_prediction
    from planner.serving.options import serving_from

    base = dataclasses.replace(request_from_document(loaded.content, path.resolve().parent), **changes)
    values = Values()
    given = serving_from(words["serving"], base, values)
    values.check()
    asked = {name: getattr(given, name) for name in QUESTION_OPTIONS.values() if getattr(given, name) is not None}
    served, answer, warnings = serving_prediction(
        loaded, base, asked, _ask_serving(command, progress), is_changed=len(changes) > 1
    )
    return _predicted(kind, served, answer, tuple(warnings))


def loaded_plan(plan: str | os.PathLike[str] | Plan) -> tuple[Loaded[PlanDocument], Path]:
    """A plan file, or the plan file that a plan would be."""
    if not isinstance(plan, Plan):
        from planner.files.plan_file import read_plan

        path = Path(plan)
        return read_plan(path), path
    from planner.files.validation import validate
    from planner.importers.documents import document_of
    from planner.loading import Loaded
    from planner.schema.plan import PlanDocument

    path = Path.cwd() / "plan.yaml"  # absolute paths inside: the folder decides nothing
    document = document_of(path, "", plan.to_dict())
    return Loaded(content=validate(PlanDocument, document), document=document), path
