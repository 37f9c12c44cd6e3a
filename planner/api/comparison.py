"""`planner.compare`: plans side by side, what differs, by how much and why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from planner.api.calls import Interrupted, in_python_words, takes_options
from planner.api.keywords import EstimateOptions
from planner.api.plans import Plan
from planner.api.results import Estimate
from planner.api.shown import Answer
from planner.comparison.read import Predicted, best_of_question, labels_of
from planner.core.errors import SearchInterrupted, UsageError

if TYPE_CHECKING:
    from planner.core.blocks import Report


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Comparison(Answer):
    """Plans side by side; the first is what the others are compared with.

    Attributes
    ----------
    labels : tuple of str
        What the plans are called.
    warnings : tuple of str
        What no longer holds of plan files.
    raw : planner.comparison.differences.Comparison

    Examples
    --------
    >>> import planner
    >>> search = planner.optimize("alexnet", gpus=4, diverse=True)
    >>> planner.compare(search[0], search[1]).labels
    ('plan 1', 'plan 2')
    """

    labels: tuple[str, ...]
    warnings: tuple[str, ...]
    raw: Any

    @property
    def fastest(self) -> str:
        """Label of the fastest plan that fits."""
        return str(self.labels[self.raw.fastest])

    @property
    def why(self) -> tuple[str, ...]:
        """In sentences: what is compared, why one is faster, what its memory goes to."""
        return tuple(self.to_dict()["why"])

    def __repr__(self) -> str:
        return f"<planner.Comparison of {', '.join(self.labels)}; fastest: {self.fastest}>"

    def _report(self) -> Report:
        from planner.comparison.report import comparison_report

        return comparison_report(self.raw, self.warnings)


@takes_options(EstimateOptions)
def compare(
    *plans: Plan | Estimate | str | os.PathLike[str],
    labels: tuple[str, ...] | list[str] | None = None,
    best: bool = False,
    **changes: Unpack[EstimateOptions],
) -> Comparison:
    """Compare plans: what differs between them, by how much each term of time and memory differs, and why one is faster.

    Parameters
    ----------
    *plans : Plan, Estimate or path of a plan file
        An estimate of what runs today: ``planner.estimate("llama3-8b", run_from=("megatron", "train.sh"), gpus=64)``.
    labels : sequence of str, optional
        What to call them; file names, or what tells them apart unless given.
    best : bool
        Also search for the best plan for the question of the first.
    **changes
        Asked of all plans: ``cluster``, ``batch``, ... as of `planner.estimate` with a plan.

    Returns
    -------
    Comparison

    Raises
    ------
    PlannerError
        Fewer than two plans, plans of training beside plans of inference.

    Examples
    --------
    >>> import planner
    >>> data = planner.estimate("alexnet", gpus=4, family="data")
    >>> found = planner.compare(data, best=True, labels=["data"])
    >>> found.fastest, found.labels
    ('best found', ('data', 'best found'))
    """
    with in_python_words():
        if len(plans) + best < 2:
            raise UsageError("compare: needs two plans; or one with best=True")
        names = _labels(plans, labels)
        predicted = [_predicted(plan, changes) for plan in plans]
        if best:
            try:
                predicted.append(best_of_question(predicted[0]))
            except SearchInterrupted:
                raise Interrupted(None) from None
            names.append("best found")
        return compared(list(zip(names, predicted, strict=True)))


def compared(predicted: Sequence[tuple[str, Predicted]]) -> Comparison:
    """Compare plans, each behind its label; the others with the first."""
    from planner.comparison.differences import compare_items

    warnings = tuple(f"{label}: {text}" for label, entry in predicted for text in entry.warnings)
    items = [entry.item(label) for label, entry in predicted]
    return Comparison(labels=tuple(label for label, _ in predicted), warnings=warnings, raw=compare_items(items))


def _labels(plans: tuple[Any, ...], given: tuple[str, ...] | list[str] | None) -> list[str]:
    from pathlib import Path

    if given is not None:
        if len(given) != len(plans):
            raise UsageError(f"labels: names {len(given)} of {len(plans)} plans")
        return list(given)
    files = [Path(plan) for plan in plans if isinstance(plan, (str, os.PathLike))]
    names = iter(labels_of(files))
    return [next(names) if isinstance(plan, (str, os.PathLike)) else f"plan {n + 1}" for n, plan in enumerate(plans)]


def _predicted(plan: Plan | Estimate | str | os.PathLike[str], changes: Any) -> Predicted:
    from planner.api.questions import estimate

    found = plan if isinstance(plan, Estimate) and not changes else None
    if found is None:
        found = estimate(plan=plan.plan if isinstance(plan, Estimate) else plan, **changes)
    return Predicted(question=found.raw.space.request, prediction=found.raw, warnings=found.warnings)
