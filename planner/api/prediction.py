"""One plan predicted or explained: what `planner.estimate` and `planner.explain` share."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from planner.api.keywords import request_of, words_for
from planner.api.plans import Plan
from planner.api.results import Estimate, Explanation
from planner.api.shown import call_text
from planner.api.words import Interrupted, in_python_words
from planner.commands.mesh_options import MESH_OPTIONS
from planner.commands.question import request_from
from planner.commands.serving_options import QUESTION_OPTIONS, SERVING_OPTIONS, serving_from
from planner.commands.values import Values
from planner.core.errors import UsageError
from planner.core.request import Request
from planner.core.search_errors import SearchInterrupted
from planner.spaces.plan_question import DECIDED_BY_PLAN, OVERRIDES

if TYPE_CHECKING:
    from planner.core import answer as core
    from planner.files.loading import Loaded
    from planner.schema.plan import PlanDocument

__all__ = ["Progress", "predict"]

Progress: TypeAlias = Callable[[str, float], None]
_Predicted = TypeVar("_Predicted", Estimate, Explanation)


def predict(
    command: str,
    kind: type[_Predicted],
    model: Any,
    plan: Any,
    run_from: tuple[str, Any] | None,
    options: Mapping[str, Any],
    progress: Progress | None,
) -> _Predicted:
    """Predict or explain one plan: that of a file or an object, of what runs today, or of what the options say.

    Parameters
    ----------
    command : "estimate" or "explain"
    kind : type
        Of the answer.
    model, plan : Any
        A network or a plan; one of them may be None.
    run_from : tuple of str and path, optional
        Trainer and the file of a run.
    options : mapping
        Keywords with their values.
    progress : callable, optional
    """
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
                from planner.exporters.runs import with_run

                words = {**dict.fromkeys(("gpus", "batch", "micro_batches"), None), **words}
                words, notes = with_run(words, run_from[0], Path(run_from[1]))
            values = Values()
            request = request_of(words, values, call)
            return _predicted(kind, _ask(command, request, None, progress), tuple(notes))
        except SearchInterrupted:
            raise Interrupted(None) from None


def _is_plan(given: Any) -> bool:
    from planner.files.plan_file import is_plan_file

    if isinstance(given, Plan):
        return True
    return isinstance(given, (str, os.PathLike)) and is_plan_file(os.fspath(given))


def _predicted(kind: type[_Predicted], answer: core.Estimate, warnings: tuple[str, ...]) -> _Predicted:
    return kind(plan=Plan(ranked=answer.ranked, warnings=warnings, _answer=answer), warnings=warnings, raw=answer)


def _ask(command: str, request: Request, plan: Any, progress: Progress | None) -> core.Estimate:
    from planner.spaces import ask

    return ask.estimate(request, plan) if command == "estimate" else ask.explain(request, plan, progress)


def _of_plan(
    kind: type[_Predicted],
    command: str,
    plan: str | os.PathLike[str] | Plan,
    words: Mapping[str, Any],
    call: str,
    progress: Progress | None,
) -> _Predicted:
    loaded, path = _loaded_plan(plan)
    values = Values()
    is_serving = loaded.content.serving is not None
    asks = QUESTION_OPTIONS if is_serving else {}
    for name in (*DECIDED_BY_PLAN, *MESH_OPTIONS, *SERVING_OPTIONS):
        word = words.get(name, words["mesh"].get(name, words["serving"].get(name)))
        if word and name not in asks:
            values.add(f"{name}: is decided by the plan; leave one of them out")
    asked = request_from({**words, "mode": words.get("mode") or loaded.content.mode}, values)
    given = serving_from(words["serving"], asked, values)
    values.check()
    changes = {name: getattr(given, name) for name in OVERRIDES if words.get(name)}
    changes |= {field: getattr(given, field) for name, field in QUESTION_OPTIONS.items() if words["serving"].get(name)}
    if words["model"] is not None:
        changes["model"] = given.model
    from planner.spaces.plan_question import plan_question, plan_warnings

    document, request, checked = plan_question(loaded, path, changes, call)
    request = dataclasses.replace(
        request, sensitivity=given.sensitivity, time_limit_s=given.time_limit_s, solver=given.solver
    )
    answer = _ask(command, request, checked, progress)
    return _predicted(kind, answer, tuple(plan_warnings(document, answer)))


def _loaded_plan(plan: str | os.PathLike[str] | Plan) -> tuple[Loaded[PlanDocument], Path]:
    """A plan file, or the plan file that a plan would be."""
    if not isinstance(plan, Plan):
        from planner.files.plan_file import read_plan

        path = Path(plan)
        return read_plan(path), path
    from planner.files.loading import Loaded
    from planner.files.validation import validate
    from planner.importers.sources import document_of
    from planner.schema.plan import PlanDocument

    path = Path.cwd() / "plan.yaml"  # absolute paths inside: the folder decides nothing
    document = document_of(path, "", plan.to_dict())
    return Loaded(content=validate(PlanDocument, document), document=document), path
