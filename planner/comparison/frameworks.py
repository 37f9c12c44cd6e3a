"""Several frameworks for one question: each searches its own plans with its own costs and rules, and the best of each are compared."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.core.answer import Answer, FrameworkPlan
from planner.core.errors import LimitReached, NoFeasiblePlan, PlannerError, SearchInterrupted, UsageError
from planner.core.request import AUTO, WELL_TUNED, WELL_TUNED_WORDS, Request
from planner.spaces import ask

if TYPE_CHECKING:
    from strategies.limits import Progress


def optimize(request: Request, progress: Progress | None = None) -> Answer:
    """Find the best plans for a question, under one framework or under each of several.

    Parameters
    ----------
    request : Request
    progress : function of (message, share done), optional

    Returns
    -------
    Answer
        That of the best framework; of several, ``frameworks`` has all of them.

    Raises
    ------
    NoFeasiblePlan
        Under no framework is there a plan.
    PlannerError
        A framework that is not known, before anything is searched; else as `planner.spaces.ask.optimize`.

    Examples
    --------
    >>> found = optimize(Request(model="gpt2-124m", gpus=2, frameworks=("pytorch-fsdp", "nanotron"), top=1))
    >>> [(row.framework, row.answer is not None) for row in found.frameworks]
    [('pytorch-fsdp', True), ('nanotron', False)]
    """
    if not request.frameworks:
        return ask.optimize(request, progress)
    names = _named(request)
    found: list[FrameworkPlan] = []
    faults: list[PlannerError] = []
    ends = None if request.time_limit_s is None else time.monotonic() + request.time_limit_s
    for number, name in enumerate(names):
        # What is left of the time is shared by the searches that are left.
        left = None if ends is None else max(ends - time.monotonic(), 0.0) / (len(names) - number)
        question = dataclasses.replace(_under(request, name), time_limit_s=left)
        try:
            answer: Answer | None = ask.optimize(question, _part(progress, name, number, len(names)))
        except SearchInterrupted as stopped:
            found += [] if stopped.result is None else [FrameworkPlan(framework=name, answer=stopped.result)]
            if all(row.answer is None for row in found):
                raise
            raise SearchInterrupted(dataclasses.replace(_compared(request, found), interrupted=True)) from None
        except PlannerError as error:
            faults.append(error)
            found.append(FrameworkPlan(framework=name, reason=str(error).removeprefix(f"--framework {name}: ")))
        else:
            found.append(FrameworkPlan(framework=name, answer=answer))
    if len(faults) == len(names):
        raise _no_plan(found, faults)
    return _compared(request, found)


def _named(request: Request) -> tuple[str, ...]:
    """Frameworks by their own names, each once; files as they are given."""
    from planner.exporters import EXPORTERS, exporter_of
    from planner.files.loading import load_framework
    from planner.files.resources import bundled

    if [name.strip().lower() for name in request.frameworks] == [AUTO]:
        written = dict.fromkeys(exporter_of(target).FRAMEWORK for target in EXPORTERS)
        serves = request.mode == "inference"
        return tuple(name for name in written if load_framework(name).framework.serves == serves)
    names: dict[str, str] = {}
    faults: list[PlannerError] = []
    for given in request.frameworks:
        if given.strip().lower() == AUTO:
            raise UsageError(f"--framework {AUTO}: is all of them; leave the others out, or name those to compare")
        try:
            name = WELL_TUNED if given.strip().lower() == WELL_TUNED else load_framework(given).framework.name
            names.setdefault(name, name if name in bundled("frameworks") else given)
        except PlannerError as error:
            faults.append(error)
    if faults:
        raise faults[0] if len(faults) == 1 else UsageError("\n".join(str(fault) for fault in faults))
    return tuple(names.values())


def _under(request: Request, name: str) -> Request:
    """The question under one of the frameworks."""
    return dataclasses.replace(request, frameworks=(), framework="" if name == WELL_TUNED else name)


def _part(progress: Progress | None, name: str, number: int, count: int) -> Progress | None:
    """Progress of one of several searches."""
    if progress is None:
        return None
    whole = progress
    return lambda message, share: whole(f"{name}: {message}", (number + share) / count)


def _no_plan(found: Sequence[FrameworkPlan], faults: Sequence[PlannerError]) -> PlannerError:
    """Why no framework has a plan; what is wrong under all alike is said once."""
    if len({str(fault) for fault in faults}) == 1:
        return faults[0]
    text = "\n".join(f"{row.framework}: {row.reason}" for row in found)
    if all(isinstance(fault, UsageError) for fault in faults):
        return UsageError(text)
    if any(isinstance(fault, LimitReached) for fault in faults):  # what was not looked at may fit
        return LimitReached(f"under no framework was a plan found in time\n{text}")
    return NoFeasiblePlan(f"under no framework is there a plan\n{text}")


def _compared(request: Request, found: Sequence[FrameworkPlan]) -> Answer:
    """The answer of the best framework, with all of them beside it."""
    from planner.exporters import target_for

    planned = [(row, row.answer) for row in found if row.answer is not None]
    planned.sort(key=lambda pair: pair[1].best.score)
    first, best = planned[0]
    rows = [
        dataclasses.replace(
            row,
            behind=answer.best.score / best.best.score - 1.0,
            why="" if row is first else _why(request, (first, best), (row, answer)),
            target=target_for(row.framework),
        )
        for row, answer in planned
    ]
    source = f"given, the best of {len(found)}"
    assumptions = tuple(
        dataclasses.replace(one, source=source) if one.name == "framework" else one for one in best.assumptions
    )
    frameworks = (*rows, *(row for row in found if row.answer is None))
    return dataclasses.replace(best, frameworks=frameworks, assumptions=assumptions)


def _why(request: Request, *pair: tuple[FrameworkPlan, Answer]) -> str:
    """What the first, the best, does better than the second, part by part."""
    from planner.comparison.differences import compare_items
    from planner.comparison.report import why
    from planner.spaces.items import item_of

    items = []
    for row, answer in pair:
        question = dataclasses.replace(_under(request, row.framework), space=answer.space.choice)
        label = WELL_TUNED_WORDS if row.framework == WELL_TUNED else row.framework
        items.append(item_of(label, question, ask.estimate(question, answer.best.plan)))
    return why(compare_items(items), 1)
