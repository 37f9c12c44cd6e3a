"""Where the plans of a comparison come from: plan files, a run of today, the best plan that a search finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.core.request import Request
from planner.spaces.ask import estimate as predict
from planner.spaces.ask import optimize
from planner.spaces.items import Item, item_of
from strategies.limits import Progress

if TYPE_CHECKING:
    from planner.core.answer import Estimate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A plan with its question and prediction.

    Attributes
    ----------
    question : Request
    prediction : Estimate
    warnings : tuple of str
        What no longer holds of its file.
    found : str
        How a search found it; "" where it was given.
    """

    question: Request
    prediction: Estimate
    warnings: tuple[str, ...] = ()
    found: str = ""

    def item(self, label: str) -> Item:
        """The plan as a comparison takes it."""
        return item_of(label, self.question, self.prediction, found=self.found)


def predicted_file(path: Path, changes: Mapping[str, Any], command_line: str = "") -> Predicted:
    """Predict the plan of a file.

    Parameters
    ----------
    path : Path
    changes : mapping
        Fields of Request that are asked otherwise than the file says.
    command_line : str

    Raises
    ------
    PlannerError
        Everything in the file that contradicts.
    """
    from planner.files.plan_file import read_plan
    from planner.files.resources import is_plan_file
    from planner.files.text import failure, read_text
    from planner.spaces.plan_question import plan_question, plan_warnings

    if path.suffix.lower() in (".yaml", ".yml") and path.is_file() and not is_plan_file(str(path)):
        read_text(path)  # an empty or binary file is called that
        raise failure(
            path, "is not a plan file: it does not say how many 'workers' it uses (plan files come from --export)"
        )
    loaded = read_plan(path)
    document, request, plan = plan_question(loaded, path, changes, command_line)
    estimate = predict(request, plan)
    # Operators that a plan's times leave out are said even where all plans leave them out.
    free = (f"assumed free: {', '.join(request.assume_free)}",) if request.assume_free else ()
    return Predicted(question=request, prediction=estimate, warnings=(*plan_warnings(document, estimate), *free))


def predicted_question(question: Request) -> Predicted:
    """Predict the plan that a question spells out by its degrees, family or fixes."""
    return Predicted(question=question, prediction=predict(question))


def best_of_question(
    known: Predicted, *, time_limit_s: float | None = None, progress: Progress | None = None
) -> Predicted:
    """Search for the best plan for the question of another plan: nothing of the plan itself is kept.

    Parameters
    ----------
    known : Predicted
    time_limit_s : float, optional
    progress : callable, optional
    """
    setting, asked = known.prediction.setting, known.question
    base = dataclasses.replace(
        asked,
        mesh=None,
        serving_degrees={},
        micro_batches=None,
        fix=(),
        family=None,
        collective=None,
        top=1,
        fastest=True,
        batch=setting.global_batch if setting.load is None else None,
        time_limit_s=time_limit_s,
    )
    answer = optimize(base, progress)
    estimate = predict(dataclasses.replace(base, space=answer.space.choice), answer.best.plan)
    noun = "plan of its space" if answer.refined is None else "uniform plan"
    proof = f"; no {noun} is better" if answer.proof.proven_optimal else " that proved nothing"
    return Predicted(question=base, prediction=estimate, found=f"by a search{proof}")


def labels_of(paths: Sequence[Path]) -> list[str]:
    """What to call files: their names, with as many folders as tell them apart, and a number where one is given twice.

    >>> labels_of([Path("a/plan.yaml"), Path("b/plan.yaml"), Path("c.yaml"), Path("c.yaml")])
    ['a/plan.yaml', 'b/plan.yaml', 'c.yaml', 'c.yaml (2)']
    """
    labels = []
    for n, path in enumerate(paths):
        others = [other for m, other in enumerate(paths) if m != n and other != path]
        depth = 1
        while depth < len(path.parts) and any(other.parts[-depth:] == path.parts[-depth:] for other in others):
            depth += 1
        label = Path(*path.parts[-depth:]).as_posix()
        earlier = sum(1 for other in paths[:n] if other == path)
        labels.append(f"{label} ({earlier + 1})" if earlier else label)
    return labels
