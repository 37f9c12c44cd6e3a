"""Answers of the questions about plans: ranked plans of a search, one plan predicted or set against the first, a scaling curve."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from planner.api.plans import Plan
from planner.api.shown import Answer, Reads, Written
from planner.comparison.why_not_report import verdict, why_not_report
from planner.report.answer import estimate_report, scale_report, search_report

if TYPE_CHECKING:
    from planner.api.exports import Export
    from planner.api.requests import Predicts
    from planner.core import answer as core
    from planner.core.blocks import Report


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchResult(Written):
    """Ranked plans with the proof that travels with them; iterating gives the plans.

    Attributes
    ----------
    plans : tuple of Plan
        Best first.
    best : Plan
        What to run: the first, or a refinement of it with stages or splits of its own.
    fastest : Plan
        The best for the objective: another than ``best`` where that is simpler.
    raw : planner.core.answer.Answer
        The planner's own record of the answer.

    Examples
    --------
    >>> import planner
    >>> result = planner.optimize("alexnet", gpus=4, top=3)
    >>> result.proven, len(result), result.best.step_time_s <= 1.01 * result.bound
    (True, 3, True)
    """

    plans: tuple[Plan, ...]
    best: Plan
    fastest: Plan
    raw: core.Answer

    space = Reads[str]("best.space", "``layers``, ``mesh``, ``mixed`` or ``serving``.")

    proven = Reads[bool]("raw.proof.proven_optimal", "Whether no plan of the space is better than the first.")

    @property
    def bound(self) -> float | None:
        """Seconds: no plan of the space takes less per step; None of serving, whose objectives are no step times."""
        return self.raw.proof.bound_s if self.raw.space.bounds_a_time else None

    gap = Reads[float](
        "raw.proof.gap", "How much better any other plan could be: (best - bound) / best, of the objective."
    )

    @property
    def benchmark_list(self) -> tuple[int, ...]:
        """Ranks, from 1, of the plans worth benchmarking: one of them is the best with a chance of 90 %; empty where none were compared."""
        bars = self.raw.error_bars
        return () if bars is None else tuple(bars.benchmark_list)

    wall_s = Reads[float]("raw.proof.wall_s", "Time of the search.")

    @property
    def assumptions(self) -> dict[str, str]:
        """What was taken for granted: name -> value and where it comes from."""
        rows = (*self.raw.assumptions, *self.raw.model_assumptions)
        return {row.name: f"{row.value} ({row.source})" if row.source else row.value for row in rows}

    @property
    def roles(self) -> dict[str, Plan | None]:
        """Plans by what they are for, as ``roles`` in the JSON document names it; None: none fits.

        Only of plans over a device mesh; empty elsewhere. Several roles may have one plan.
        """
        from planner.report.roles import roles_of

        found: dict[str, Plan | None] = {}
        for roles, ranked in roles_of(self.raw):
            plan = None if ranked is None else Plan(ranked=ranked, _answer=self.raw)
            found |= dict.fromkeys((role.name for role in roles), plan)
        return found

    @property
    def frameworks(self) -> dict[str, Plan | None]:
        """The plan to run under each of several frameworks, the best first; None: there is none. Empty where one was asked about."""
        return {
            row.framework: None if row.answer is None else Plan(ranked=row.answer.best, _answer=row.answer)
            for row in self.raw.frameworks
        }

    notes = Reads[tuple[str, ...]]("raw.notes", "Sentences for people: why the best wins, limits that were hit.")

    def explain(self) -> Explanation:
        """Show where the time of the best plan goes."""
        return self.best.explain()

    def export(
        self,
        target: str,
        *,
        to: str | os.PathLike[str] | None = None,
        target_version: str | None = None,
        strict: bool = False,
        force: bool = False,
        check: bool = False,
    ) -> Export:
        """Write what a trainer or server needs to start with the best plan; see `planner.export`."""
        return self.best.export(target, to=to, target_version=target_version, strict=strict, force=force, check=check)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the best plan as a plan file; see `Plan.save`."""
        return self.best.save(path)

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    def __getitem__(self, index: int) -> Plan:
        return self.plans[index]

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        proof = "proven" if self.proven else "not proven"
        return f"<planner.SearchResult of {len(self)} plans ({proof}); best: {self.best!r}>"

    def _report(self) -> Report:
        return search_report(self.raw)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate(Written):
    """One plan with its predicted time and memory, part by part.

    Attributes
    ----------
    plan : Plan
    warnings : tuple of str
        What no longer holds of a plan file; of what is run today (``run_from``), what was read otherwise than it is written.
    raw : planner.core.answer.Estimate
        The planner's own record of the answer.

    Examples
    --------
    >>> import planner
    >>> planner.estimate("alexnet", gpus=4, family="data").plan.family
    'data'
    """

    _command: ClassVar[Predicts] = "estimate"

    plan: Plan
    warnings: tuple[str, ...] = ()
    raw: core.Estimate

    step_time_s = Reads[float]("plan.step_time_s", "Time of one training step; of serving, the time per token.")

    memory_bytes_per_gpu = Reads[float]("plan.memory_bytes_per_gpu", "Peak memory of the fullest device.")

    time_parts = Reads[dict[str, float]]("plan.time_parts", "Terms that add up to `step_time_s`.")

    memory_parts = Reads[dict[str, float]]("plan.memory_parts", "Terms of the memory; see `Plan.memory_parts`.")

    fits = Reads[bool]("plan.fits", "Whether the memory suffices.")

    notes = Reads[tuple[str, ...]]("raw.notes", "Sentences for people.")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan as a plan file; see `Plan.save`."""
        return self.plan.save(path)

    def __repr__(self) -> str:
        return f"<planner.{type(self).__name__} of {self.plan!r}>"

    def _report(self) -> Report:
        return estimate_report(self.raw, self.warnings, self._command)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Explanation(Estimate):
    """One plan layer by layer, and against the best one.

    Examples
    --------
    >>> import planner
    >>> found = planner.explain("alexnet", gpus=4, family="data")
    >>> found.layers[1]["name"], found.best_step_time_s <= found.step_time_s
    ('conv1', True)
    """

    _command: ClassVar[Predicts] = "explain"

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Costs of every layer, by the keys of the JSON document."""
        return list(self.to_dict()["layers"])

    @property
    def best_step_time_s(self) -> float | None:
        """Of the best plan, where it was searched for; of serving, its time per token."""
        best = self.raw.best
        return None if best is None else best.step_time_s

    @property
    def comparison(self) -> list[tuple[str, float, float]]:
        """Why the plan is not the best: term, its seconds, the best plan's seconds; the largest difference first."""
        return list(self.raw.comparison)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScalingCurve(Answer):
    """Step times, speed-ups and efficiencies over numbers of workers.

    Attributes
    ----------
    points : tuple of planner.core.answer.ScalePoint

    Examples
    --------
    >>> import planner
    >>> curve = planner.scale("alexnet", workers=[1, 2, 4])
    >>> [point.workers for point in curve.points], curve.points[0].speedup
    ([1, 2, 4], 1.0)
    """

    raw: Any

    points = Reads[tuple[Any, ...]]("raw.points", "One per number of workers.")

    def write_plot(self, path: str | os.PathLike[str]) -> Path:
        """Write throughput over workers as ``.svg``, or ``.png`` with the extra ``plots``.

        Raises
        ------
        UsageError
            Another ending.
        """
        from planner.api.report_files import write_plot
        from planner.report.figures.standard import curve_figure

        return write_plot(curve_figure(self.raw), path)

    def __repr__(self) -> str:
        counts = ", ".join(str(point.workers) for point in self.points)
        return f"<planner.ScalingCurve over {counts} workers>"

    def _report(self) -> Report:
        return scale_report(self.raw)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WhyNot(Answer):
    """Why a plan is not the first.

    Attributes
    ----------
    plan : Plan or None
        The plan; of an illegal one the nearest legal plan; None where there is none.
    warnings : tuple of str
        As of `Estimate`.
    raw : planner.comparison.why_not.WhyNot

    Examples
    --------
    >>> import planner
    >>> found = planner.why_not("alexnet", gpus=4, family="data")
    >>> found.better_plans >= 1, found.steps[-1]["summary"] == found.first["summary"]
    (True, True)
    """

    plan: Plan | None
    warnings: tuple[str, ...] = ()
    raw: Any

    broken = Reads[tuple[str, ...]]("raw.broken", "Every rule that the plan breaks; empty for a legal plan.")

    fits = Reads[bool]("raw.is_good", "Whether the plan is legal, fits into memory and keeps the limits.")

    is_first = Reads[bool]("raw.is_first", "Whether it is the first plan, or does the same.")

    better_plans = Reads[int]("raw.better", "How many plans are better; at least so many, where `is_counted` is False.")

    is_counted = Reads[bool]("raw.is_counted", "Whether all better plans were counted.")

    @property
    def legal(self) -> bool:
        """Whether the plan breaks no rule."""
        return not self.broken

    @property
    def first(self) -> dict[str, Any] | None:
        """The first plan: ``summary``, ``step_time_s``, ``memory_bytes_per_gpu``, ...; None where nothing fits."""
        found: dict[str, Any] | None = self.to_dict()["first"]
        return found

    @property
    def steps(self) -> list[dict[str, Any]]:
        """What each difference costs: ``settings``, ``change_s``, ``change_bytes``, ...; the last is at the first plan."""
        return self.to_records()

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        return verdict(self.raw)

    def __repr__(self) -> str:
        return f"<planner.WhyNot: {self.verdict}>"

    def _report(self) -> Report:
        return why_not_report(self.raw, self.warnings)
