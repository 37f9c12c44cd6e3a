"""`planner.sweep` and `planner.size`: many searches, as one table or as one recommendation."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

from planner.api.inputs import reference_to
from planner.api.options import SizeOptions, SweepOptions, takes_options
from planner.api.plans import Plan
from planner.api.shown import Answer, call_text
from planner.api.words import Interrupted, in_python_words

if TYPE_CHECKING:
    from planner.api.options import ModelLike
    from planner.core.blocks import Report

__all__ = ["Sizing", "Sweep", "size", "sweep"]

Progress: TypeAlias = Callable[[str, float], None]
Wish: TypeAlias = Literal["least_gpus", "least_gpus_90", "cheapest", "thriftiest"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sweep(Answer):
    """A grid of searches: one row per cell, in the order of the axes; iterating gives the rows.

    Attributes
    ----------
    command : str
        The call.
    raw : planner.sweeping.run.Swept

    Examples
    --------
    >>> import planner
    >>> [(row["gpus"], row["status"]) for row in planner.sweep("alexnet", gpus="1..4")]
    [(1, 'ok'), (2, 'ok'), (4, 'ok')]
    """

    command: str
    raw: Any

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Columns of `planner.sweeping.answer.COLUMNS`; ``status`` is ``ok``, or ``reason`` says why there is no plan."""
        return self.to_records()

    def write_plot(self, path: str | os.PathLike[str]) -> Path:
        """Write throughput over GPUs as ``.svg``, or ``.png`` with the extra ``plots``.

        Raises
        ------
        UsageError
            Another ending, or no cell has a plan.
        """
        from planner.commands.sweep import write_figure
        from planner.core.errors import UsageError

        target = Path(path)
        with in_python_words():
            if not write_figure(self.raw.rows, target):
                raise UsageError("no cell has a plan, so there is nothing to draw")
        return target

    def __len__(self) -> int:
        return len(self.raw.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"<planner.Sweep of {len(self)} cells>"

    def _report(self) -> Report:
        from planner.sweeping.report import sweep_report

        return sweep_report(self.raw, self.command)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sizing(Answer):
    """How many of which GPUs, and all that was tried.

    Attributes
    ----------
    raw : planner.sizing.search.Sized

    Examples
    --------
    >>> import planner
    >>> sizing = planner.size("alexnet", samples="1.28M", epochs=90, days=1, max_gpus=8)
    >>> sizing.least_gpus["gpus"], sizing.least_gpus["time_s"] <= 86400
    (1, True)
    """

    raw: Any

    @property
    def least_gpus(self) -> dict[str, Any] | None:
        """The fewest GPUs that meet the goal: ``cluster``, ``gpus``, ``time_s``, ``money``, ``plan``, ...; None where none do."""
        return self._answer("least_gpus")

    @property
    def least_gpus_90(self) -> dict[str, Any] | None:
        """The fewest GPUs that meet the goal with a chance of 90 %: at the upper end of the 80 % interval; None where none do."""
        return self._answer("least_gpus_90")

    @property
    def cheapest(self) -> dict[str, Any] | None:
        """Least money of what meets the goal."""
        return self._answer("cheapest")

    @property
    def thriftiest(self) -> dict[str, Any] | None:
        """Least energy of what meets the goal."""
        return self._answer("thriftiest")

    @property
    def nearest(self) -> dict[str, Any] | None:
        """What comes closest, where nothing meets the goal."""
        return self._answer("nearest")

    @property
    def miss(self) -> str | None:
        """Say what comes closest, where nothing meets the goal."""
        from planner.sizing.report import miss_in_words

        return None if self.least_gpus is not None else miss_in_words(self.raw)

    def plan(self, wish: Wish = "least_gpus") -> Plan:
        """Search the plan of an answer again, stages and recomputation refined, to be saved or exported.

        Raises
        ------
        NoFeasiblePlan
            Nothing meets the goal.
        """
        from planner.core.errors import NoFeasiblePlan
        from planner.sizing.run import answer_of

        found = self.raw.best(wish)
        if found is None:
            raise NoFeasiblePlan(self.miss or f"{wish}: is not known")
        answer = answer_of(self.raw, found[1])
        return Plan(ranked=answer.best, _answer=answer)

    def __repr__(self) -> str:
        found = self.least_gpus
        words = self.miss if found is None else f"{found['gpus']} GPUs of {found['cluster']}: {found['plan']}"
        return f"<planner.Sizing: {words}>"

    def _answer(self, name: str) -> dict[str, Any] | None:
        found = self.to_dict()[name]
        return None if found is None else dict(found)

    def _report(self) -> Report:
        from planner.sizing.report import size_report

        return size_report(self.raw)


@takes_options(SweepOptions)
def sweep(
    model: ModelLike,
    /,
    *,
    journal: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[SweepOptions],
) -> Sweep:
    """Search a grid of clusters, numbers of GPUs, batches and lengths: one row each.

    Parameters
    ----------
    model : name, path, loaded network or mapping
    journal : path, optional
        Where rows are kept as they are done: the same call goes on where an interrupted one stopped.
    progress : callable, optional
        Takes a message and the share that is done.
    **options
        The options of ``planner sweep``, by the same names: ``gpus=[8, 16]`` or ``"8,16,32..1024"``, ``cluster=["a100", "h100"]``,
        ``batch=[256, 512]``, ``jobs=4``, ... With more than one job a script needs ``if __name__ == "__main__":``, as with all of
        multiprocessing.

    Returns
    -------
    Sweep

    Raises
    ------
    PlannerError
        A mistake that is the same in every cell; one cell without a plan is a row that says why.
    TypeError
        A keyword that does not exist.
    Interrupted
        A KeyboardInterrupt that holds the rows so far.

    Examples
    --------
    >>> import planner
    >>> table = planner.sweep("alexnet", gpus=[1, 2, 4], batch=256)
    >>> [(row["gpus"], row["status"]) for row in table]
    [(1, 'ok'), (2, 'ok'), (4, 'ok')]
    """
    from planner.commands.sweep import sweep_question

    call = call_text("sweep", [model], options)
    with in_python_words():
        question = _question(sweep_question, model, options, call)
        swept = question.answer(None if journal is None else Path(journal), progress)
    answer = Sweep(command=call, raw=swept)
    if swept.interrupted:
        raise Interrupted(answer)
    return answer


@takes_options(SizeOptions)
def size(model: ModelLike, /, *, progress: Progress | None = None, **options: Unpack[SizeOptions]) -> Sizing:
    """Find how many of which GPUs finish a training in time and within a budget.

    Parameters
    ----------
    model : name, path, loaded network or mapping
    progress : callable, optional
        Takes a message and the share that is done.
    **options
        The options of ``planner size``, by the same names: ``tokens="1T"`` or ``1e12``, ``days=30``, ``budget="2M"``,
        ``cluster=["a100", "h100"]``, ``max_gpus=1024``, ``jobs=4``, ...

    Returns
    -------
    Sizing
        Where nothing meets the goal, its `least_gpus` is None, and `nearest` and `miss` say what comes closest.

    Raises
    ------
    PlannerError
    TypeError
        A keyword that does not exist.
    Interrupted
        A KeyboardInterrupt that holds what was tried.

    Examples
    --------
    >>> import planner
    >>> sizing = planner.size("alexnet", samples=1.28e6, epochs=90, days=0.5, cluster="dgx1-v100", max_gpus=8)
    >>> sizing.least_gpus["cluster"], sizing.least_gpus["time_s"] <= 43200
    ('dgx1-v100', True)
    """
    from planner.commands.size import size_question

    call = call_text("size", [model], options)
    with in_python_words():
        sized = _question(size_question, model, options, call).answer(progress)
    answer = Sizing(raw=sized)
    if sized.interrupted:
        raise Interrupted(answer)
    return answer


def _question(make: Callable[[Mapping[str, Any], Any], Any], model: Any, options: Mapping[str, Any], call: str) -> Any:
    """Keywords checked as the command checks its options; clusters by name or path."""
    from planner.api.keywords import words_for
    from planner.commands.values import Values

    words = words_for(model, {name: value for name, value in options.items() if name != "cluster"})
    given = options.get("cluster")
    if given is not None:
        several = given if isinstance(given, Sequence) and not isinstance(given, str) else _named(given)
        words["cluster"] = [reference_to("clusters", one) for one in several]
    values = Values()
    question = make(words, values)
    values.check()
    return dataclasses.replace(question, request=dataclasses.replace(question.request, command_line=call))


def _named(given: Any) -> list[Any]:
    """One cluster, or names with commas as the command line takes them."""
    return [part.strip() for part in given.split(",") if part.strip()] if isinstance(given, str) else [given]
