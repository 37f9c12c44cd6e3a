"""From outcomes to the figures of a file, and of its parts."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.measurements.error_bars import BarScore, Judge, bar_score
from planner.measurements.metrics import ErrorSummary, RankingSummary, best_factor, error_summary, ranking_summary
from planner.measurements.outcomes import Comparison, Outcome

__all__ = ["ComparedRow", "MemoryScore", "Score", "baseline_factor", "compared_rows", "score", "split_by"]

_WORST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One time of a row: predicted and measured, and what tells the row from others."""

    line: int
    what: str
    predicted_s: float
    measured_s: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryScore:
    """Memory and feasibility."""

    mape: float | None = None
    median_ape: float | None = None
    bias: float | None = None
    recall: float | None = None  # of the failures that memory explains: share predicted not to fit
    false_alarm: float | None = None  # of the runs that succeeded: share predicted not to fit
    failures: int = 0
    apart: Mapping[str, int]  # failures that memory does not explain, by reason; no part of the recall


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Figures of some rows."""

    rows: int
    scored: int
    usable: int  # rows with a usable measurement or a failure
    skipped: Mapping[str, int]
    comparisons: int
    times: ErrorSummary
    ranking: RankingSummary
    memory: MemoryScore
    without_default: float | None  # share of the scored rows that state everything
    defaults: Mapping[str, int]  # fact that is not stated -> scored rows that lack it
    fitted: frozenset[str]
    worst: tuple[ComparedRow, ...]
    bars: BarScore = BarScore()

    @property
    def coverage(self) -> float | None:
        """Share of the usable rows that was scored."""
        return self.scored / self.usable if self.usable else None


def score(outcomes: Sequence[Outcome], factor: float | None = None, judge: Judge | None = None) -> Score:
    """Score rows together.

    Parameters
    ----------
    outcomes : sequence of Outcome
    factor : float, optional
        Factor of the baseline, see `baseline_factor`; unless given, fitted to these rows.
    judge : Judge, optional
        Of their error bars, which are not scored without it.

    Returns
    -------
    Score
        ``rows`` is ``scored`` plus the sum of ``skipped``.
    """
    good = [outcome for outcome in outcomes if outcome.is_scored]
    pairs = [(outcome, comparison) for outcome in good for comparison in outcome.comparisons]
    compared = [comparison for _, comparison in pairs]
    stated = [outcome for outcome in good if not outcome.row.defaults]
    return Score(
        rows=len(outcomes),
        scored=len(good),
        usable=sum(outcome.is_scored or outcome.usable for outcome in outcomes),
        skipped=dict(sorted(Counter(outcome.skipped for outcome in outcomes if outcome.skipped).items())),
        comparisons=len(compared),
        times=error_summary(
            [c.predicted_s for c in compared], [c.measured_s for c in compared], [c.ideal_s for c in compared], factor
        ),
        ranking=_ranking(good),
        memory=_memory(good),
        without_default=len(stated) / len(good) if good else None,
        defaults=dict(Counter(name for outcome in good for name in outcome.row.defaults).most_common()),
        fitted=frozenset(name for outcome in good for name in outcome.fitted),
        worst=_worst(pairs),
        bars=BarScore() if judge is None else bar_score(good, judge),
    )


def baseline_factor(outcomes: Sequence[Outcome]) -> float | None:
    """1 / the efficiency at which FLOPs over peak suits the rows best; None without rows."""
    known = [c for outcome in outcomes for c in outcome.comparisons if outcome.is_scored and c.ideal_s > 0]
    return best_factor([c.ideal_s for c in known], [c.measured_s for c in known]) if known else None


def split_by(outcomes: Sequence[Outcome], column: str) -> dict[str, list[Outcome]]:
    """Outcomes by the text of a column, numbers in their order; the empty text stands for rows that do not state it."""
    parts: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        parts[outcome.row.text(column)].append(outcome)
    return {name: parts[name] for name in sorted(parts, key=_natural)}


def _natural(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)


def _ranking(outcomes: Sequence[Outcome]) -> RankingSummary:
    groups: dict[Hashable, list[tuple[float, float, bool]]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.ranking is not None and outcome.comparisons:
            run, fits = outcome.comparisons[0], outcome.memory is None or outcome.memory.fits
            groups[outcome.ranking].append((run.predicted_s, run.measured_s, fits))
    return ranking_summary(
        [([p for p, _, _ in g], [m for _, m, _ in g], [f for _, _, f in g]) for g in groups.values()]
    )


def _memory(outcomes: Sequence[Outcome]) -> MemoryScore:
    apart: Counter[str] = Counter()
    found, missed, alarms, ran = 0, 0, 0, 0
    predicted, measured = [], []
    for outcome in outcomes:
        memory = outcome.memory
        if outcome.impossible:
            apart["impossible plan"] += 1
        elif memory is None:
            continue
        elif not outcome.failed:
            ran += 1
            alarms += not memory.fits
            if memory.measured_bytes is not None:
                reported = memory.reported_bytes
                predicted.append(memory.predicted_bytes if reported is None else reported)
                measured.append(memory.measured_bytes)
        elif memory.predicted_bytes < 0.5 * memory.device_bytes:
            apart["predicted under half of the memory"] += 1
        else:
            found += not memory.fits
            missed += memory.fits
    errors = error_summary(predicted, measured, np.zeros(len(measured)))
    return MemoryScore(
        mape=errors.mape,
        median_ape=errors.median_ape,
        bias=errors.bias,
        recall=found / (found + missed) if found + missed else None,
        false_alarm=alarms / ran if ran else None,
        failures=found + missed + sum(apart.values()),
        apart=dict(sorted(apart.items())),
    )


def _worst(pairs: Sequence[tuple[Outcome, Comparison]]) -> tuple[ComparedRow, ...]:
    """The largest ratios, either way."""

    def badness(pair: tuple[Outcome, Comparison]) -> float:
        ratio = pair[1].predicted_s / pair[1].measured_s
        return abs(math.log(ratio)) if ratio > 0 else math.inf

    ordered = sorted(pairs, key=lambda pair: (-badness(pair), pair[0].row.line))
    return tuple(_compared(outcome, comparison) for outcome, comparison in ordered[:_WORST])


def compared_rows(outcomes: Sequence[Outcome]) -> tuple[ComparedRow, ...]:
    """Every measured time beside its prediction, in the order of the file."""
    return tuple(
        _compared(outcome, comparison)
        for outcome in outcomes
        if outcome.is_scored
        for comparison in outcome.comparisons
    )


def _compared(outcome: Outcome, comparison: Comparison) -> ComparedRow:
    return ComparedRow(
        line=outcome.row.line,
        what=comparison.what,
        predicted_s=comparison.predicted_s,
        measured_s=comparison.measured_s,
        label=_label(outcome),
    )


# What says which row is meant, in this order, where it is there: words, then numbers with their column.
_WORDS = ("model", "net", "layer", "op", "cell", "collective", "device", "library")
_NUMBERS = (
    "gpus",
    "ranks",
    "bytes",
    "global_batch",
    "micro_batch",
    "tp",
    "pp",
    "dp",
    "cp",
    "m",
    "n",
    "k",
    "w",
    "h",
    "c",
    "r",
    "s",
)
_MORE_NUMBERS = ("hidden", "batch", "timesteps", "batch_per_gpu")


def _label(outcome: Outcome) -> str:
    cells = outcome.row.cells
    words = [cells[name][:40] for name in _WORDS if cells.get(name) and not (name == "net" and cells.get("model"))]
    return ", ".join([*words, *(f"{name} {cells[name]}" for name in (*_NUMBERS, *_MORE_NUMBERS) if cells.get(name))])
