"""How the error bars of training runs did: whether intervals held what was measured, and lists to benchmark the best plan.

The intervals and lists are those of `planner optimize`, by the calibration that the rows are scored with and the profile of the
framework that each states.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import INTERVAL_SHARE, Candidates, interval_score, intervals
from planner.measurements.outcomes import Outcome
from planner.measurements.ranking import LEAST_ROWS
from planner.naming.frameworks import framework_of
from planner.uncertainty.bars import Knowledge, bars_of
from planner.uncertainty.features import mesh_coordinates

__all__ = ["BarScore", "Judge", "Software", "alternatives", "bar_score", "judged", "software_of"]

# Profile of the framework of a row, whether it runs a network for images, and the device.
Software = tuple[str, bool, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BarScore:
    """Figures of some rows; None where there is nothing to judge.

    Attributes
    ----------
    rows : int
        Whose interval is known.
    coverage : float or None
        Share of them that was measured inside.
    width : float or None
        Median of log(upper end / lower end).
    score, score_one_width, score_hindsight : float or None
        Mean interval score of log(step time): of the intervals, of one width for all (that of the calibration's residuals), and of the
        one width that suits these very rows best.
    questions : int
        Sets of alternatives with at least three different plans.
    holds_best : float or None
        Share of them whose list to benchmark holds the plan measured best.
    length, plans : float or None
        Median number of plans on the list, and in all.
    """

    rows: int = 0
    coverage: float | None = None
    width: float | None = None
    score: float | None = None
    score_one_width: float | None = None
    score_hindsight: float | None = None
    questions: int = 0
    holds_best: float | None = None
    length: float | None = None
    plans: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """What the intervals and lists of a file's rows need to be known.

    Attributes
    ----------
    knowledge : mapping
        Software of a row -> what the calibration says about its errors.
    one_width : tuple of array (1,)
        Logarithms of the ends, over the prediction, of an interval as wide for everything.
    effects : mapping of int to array
        Line -> derivatives by `CONSTANTS`, of the rows for which these were varied.
    lines : frozenset of int or None
        Rows that stand for all; None: every row for itself.
    """

    knowledge: Mapping[Software, Knowledge]
    one_width: tuple[FloatArray, FloatArray]
    effects: Mapping[int, FloatArray]
    lines: frozenset[int] | None

    def knows(self, outcome: Outcome) -> Knowledge:
        """About the errors of a row."""
        return self.knowledge[software_of(outcome)]


def judged(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Rows with error bars: steps whose parts are known."""
    return [
        outcome
        for outcome in outcomes
        if outcome.comparisons and outcome.comparisons[0].shares and 0 < outcome.comparisons[0].predicted_s < math.inf
    ]


def software_of(outcome: Outcome) -> Software:
    """What decides whose errors a row has."""
    row = outcome.row
    return _profile(row.text("framework")), outcome.comparisons[0].plan is None, row.text("device")


@lru_cache(maxsize=4096)  # asked for every row
def _profile(framework: str) -> str:
    return framework_of(framework).name


def alternatives(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Alternatives to one another; rows without any are alone."""
    groups: dict[Hashable, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        groups[outcome.row.line if outcome.ranking is None else outcome.ranking].append(outcome)
    return list(groups.values())


# -- figures ------------------------------------------------------------------------------------------------------------------


def bar_score(outcomes: Sequence[Outcome], judge: Judge) -> BarScore:
    """Figures of some rows of the file that a judge knows."""
    found = [outcome for outcome in judged(outcomes) if judge.lines is None or outcome.row.line in judge.lines]
    if not found:
        return BarScore()
    predicted, measured = (
        np.array([getattr(outcome.comparisons[0], name) for outcome in found]) for name in ("predicted_s", "measured_s")
    )
    residual = np.log(measured / predicted)
    low, high = _ends(found, judge)
    tail = 0.5 * (1.0 - INTERVAL_SHARE)
    own = np.quantile(residual, (tail, 1.0 - tail))
    lists = [one for question in alternatives(found) if (one := _list_of(question, judge)) is not None]
    holds, length, plans = np.array(lists, dtype=np.float64).T if lists else np.zeros((3, 0))
    return BarScore(
        rows=len(found),
        coverage=float(np.mean((low <= residual) & (residual <= high))),
        width=float(np.median(high - low)),
        score=float(np.mean(interval_score(low, high, residual))),
        score_one_width=float(np.mean(interval_score(*judge.one_width, residual))),
        score_hindsight=float(np.mean(interval_score(own[:1], own[1:], residual))),
        questions=len(lists),
        holds_best=float(np.mean(holds)) if lists else None,
        length=float(np.median(length)) if lists else None,
        plans=float(np.median(plans)) if lists else None,
    )


def _ends(outcomes: Sequence[Outcome], judge: Judge) -> tuple[FloatArray, FloatArray]:
    """Logarithms of the ends of the intervals, over the prediction."""
    low, high = np.zeros(len(outcomes)), np.zeros(len(outcomes))
    kinds: dict[Software, list[int]] = defaultdict(list)
    for n, outcome in enumerate(outcomes):
        kinds[software_of(outcome)].append(n)
    for members in kinds.values():
        some = [outcomes[n] for n in members]
        known = judge.knows(some[0])
        ends = intervals(_candidates(some, judge, np.ones(len(some)), np.zeros((len(some), 1))), known.model)
        low[members], high[members] = np.log(ends[0]), np.log(ends[1])
    return low, high


def _list_of(question: Sequence[Outcome], judge: Judge) -> tuple[bool, int, int] | None:
    """Whether the list to benchmark holds the plan measured best, plans on it, and plans; None with too few to compare.

    Runs of one plan are one.
    """
    runs: dict[Hashable, list[Outcome]] = defaultdict(list)
    for outcome in question:
        if outcome.row.line in judge.effects:
            runs[outcome.comparisons[0].plan, outcome.comparisons[0].predicted_s].append(outcome)
    if len(runs) < LEAST_ROWS:
        return None
    ranked = sorted(runs.values(), key=lambda several: several[0].comparisons[0].predicted_s)
    measured = [min(outcome.comparisons[0].measured_s for outcome in several) for several in ranked]
    some = [several[0] for several in ranked]
    plans = [plan for outcome in some if (plan := outcome.comparisons[0].plan) is not None]
    coordinates = mesh_coordinates(plans) if plans else np.zeros((len(some), 1))
    predicted = np.array([outcome.comparisons[0].predicted_s for outcome in some])
    listed = bars_of(_candidates(some, judge, predicted, coordinates), judge.knows(some[0])).benchmark_list
    return int(np.argmin(measured)) + 1 in listed, len(listed), len(some)


def _candidates(
    outcomes: Sequence[Outcome], judge: Judge, step_time_s: FloatArray, coordinates: FloatArray
) -> Candidates:
    """Rows of one kind as its error model sees them."""
    none = np.zeros(len(CONSTANTS))
    return Candidates(
        step_time_s=step_time_s,
        shares=np.array([outcome.comparisons[0].shares for outcome in outcomes]),
        effects=np.array([judge.effects.get(outcome.row.line, none) for outcome in outcomes]),
        covariance=judge.knows(outcomes[0]).covariance,
        coordinates=coordinates,
    )
