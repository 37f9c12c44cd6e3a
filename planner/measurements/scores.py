"""Validates files: reads and predicts each, and scores its rows, all together and parted by the text of a column."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.core.errors import FileProblem, InputFileError, UsageError, did_you_mean
from planner.files.loading import LoadedCalibration, load_calibration
from planner.measurements.error_bars import ErrorModels, bar_score, error_models_of
from planner.measurements.kinds import predict_by
from planner.measurements.metrics import Figures, best_factor, error_summary, far_off, ranking_summary
from planner.measurements.outcomes import DEFAULT, PALEO, Comparison, Outcome, calibrated
from planner.measurements.tables import Row, Table, read_table

REFUSED = "refused: a cell is not what its column says"
_WORST = 10
# In place of a column: what was measured, where rows have several times.
FIGURE = "figure"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """One time of a row: predicted and measured, and what tells the row from others."""

    line: int
    what: str
    predicted_s: float
    measured_s: float
    label: str

    @property
    def ratio(self) -> float:
        """Predicted / measured."""
        return self.predicted_s / self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Figures of some rows, by name as `planner.schema.results.Figures` describes them; what was fitted; the largest ratios."""

    figures: Mapping[str, Any]
    fitted: frozenset[str]
    worst: tuple[ComparedRow, ...]
    lines: Mapping[str, Sequence[int]]  # of the rows that are skipped, by reason

    def __getitem__(self, name: str) -> Any:
        """One figure."""
        return self.figures[name]


def score(outcomes: Sequence[Outcome], factor: float | None = None, models: ErrorModels | None = None) -> Score:
    """Score rows together.

    Parameters
    ----------
    outcomes : sequence of Outcome
    factor : float, optional
        Factor of the baseline, see `baseline_factor`; unless given, fitted to these rows.
    models : ErrorModels, optional
        Of their error bars, which are not scored without them.

    Returns
    -------
    Score
        ``rows`` is ``scored`` plus the sum of ``skipped``.
    """
    good = [outcome for outcome in outcomes if outcome.is_scored]
    pairs = [(outcome, comparison) for outcome in good for comparison in outcome.comparisons]
    compared = [comparison for _, comparison in pairs]
    usable = sum(outcome.is_scored or outcome.usable for outcome in outcomes)
    fitted = frozenset(name for outcome in good for name in outcome.fitted)
    figures = {
        "rows": len(outcomes),
        "scored": len(good),
        "skipped": dict(sorted(Counter(outcome.skipped for outcome in outcomes if outcome.skipped).items())),
        "usable": usable,
        "coverage": len(good) / usable if usable else None,
        "comparisons": len(compared),
        **error_summary(
            [c.predicted_s for c in compared], [c.measured_s for c in compared], [c.ideal_s for c in compared], factor
        ),
        **_ranking(good),
        **bar_score(good, models),
        **_memory(good),
        "parameters_fitted": len(fitted),
        "without_default": sum(not outcome.row.defaults for outcome in good) / len(good) if good else None,
        "defaults": dict(Counter(name for outcome in good for name in outcome.row.defaults).most_common()),
    }
    lines: dict[str, list[int]] = {}
    for outcome in outcomes:
        if outcome.skipped:
            lines.setdefault(outcome.skipped, []).append(outcome.row.line)
    largest = sorted(pairs, key=lambda pair: (-_badness(pair[1]), pair[0].row.line))
    return Score(
        figures=figures, fitted=fitted, worst=tuple(_compared(*pair) for pair in largest[:_WORST]), lines=lines
    )


def _badness(comparison: Comparison) -> float:
    """How far a ratio is from 1, either way."""
    ratio = comparison.predicted_s / comparison.measured_s
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def baseline_factor(outcomes: Sequence[Outcome]) -> float | None:
    """1 / the efficiency at which FLOPs over peak suits the rows best; None without rows."""
    known = [c for outcome in outcomes for c in outcome.comparisons if outcome.is_scored and c.ideal_s > 0]
    return best_factor([c.ideal_s for c in known], [c.measured_s for c in known]) if known else None


def split_by(outcomes: Sequence[Outcome], column: str) -> dict[str, list[Outcome]]:
    """Outcomes by the text of a column, numbers in their order; the empty text stands for rows that do not state it.

    By `FIGURE` every time of a row counts where it belongs, without the memory of the row.
    """
    parts: dict[str, list[Outcome]] = defaultdict(list)
    if column == FIGURE:
        for outcome in outcomes:
            for comparison in outcome.comparisons:
                parts[comparison.what].append(replace(outcome, comparisons=(comparison,), memory=None))
        return dict(sorted(parts.items()))
    for outcome in outcomes:
        parts[outcome.row.text(column)].append(outcome)
    return {name: parts[name] for name in sorted(parts, key=_natural)}


def _natural(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)


def _ranking(outcomes: Sequence[Outcome]) -> Figures:
    groups: dict[Hashable, list[tuple[float, float, bool]]] = defaultdict(list)
    for outcome in outcomes:
        if outcome.ranking is not None and outcome.comparisons:
            run, fits = outcome.comparisons[0], outcome.memory is None or outcome.memory.fits
            groups[outcome.ranking].append((run.predicted_s, run.measured_s, fits))
    return ranking_summary([tuple(zip(*runs, strict=True)) for runs in groups.values()])


def _memory(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Memory and feasibility; failures that memory does not explain are counted apart, by reason."""
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
    errors = error_summary(predicted, measured, [0.0] * len(measured))
    return {
        **{f"memory_{name}": errors[name] for name in ("mape", "median_ape", "bias")},
        "oom_recall": found / (found + missed) if found + missed else None,
        "oom_false_alarm": alarms / ran if ran else None,
        "failures": found + missed + sum(apart.values()),
        "failures_apart": dict(sorted(apart.items())),
    }


def compared_rows(outcomes: Sequence[Outcome]) -> tuple[ComparedRow, ...]:
    """Every measured time beside its prediction, in the order of the file."""
    return tuple(_compared(outcome, one) for outcome in outcomes if outcome.is_scored for one in outcome.comparisons)


# What says which row is meant, in this order, where it is there: words, then numbers with their column.
_WORDS = ("model", "net", "layer", "op", "cell", "collective", "device", "library")
_NUMBERS = (
    *("gpus", "ranks", "bytes", "global_batch", "micro_batch", "tp", "pp", "dp", "cp"),
    *("m", "n", "k", "w", "h", "c", "r", "s", "hidden", "batch", "timesteps", "batch_per_gpu"),
)


def _compared(outcome: Outcome, comparison: Comparison) -> ComparedRow:
    cells = outcome.row.cells
    words = [cells[name][:40] for name in _WORDS if cells.get(name) and not (name == "net" and cells.get("model"))]
    return ComparedRow(
        line=outcome.row.line,
        what=comparison.what,
        predicted_s=comparison.predicted_s,
        measured_s=comparison.measured_s,
        label=", ".join([*words, *(f"{name} {cells[name]}" for name in _NUMBERS if cells.get(name))]),
    )


# -- files ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScore:
    """Figures of one file.

    Attributes
    ----------
    file : str
        As the user named it.
    kind : str
    score, paleo : Score
        By the default cost model, and of the same rows by the ``paleo`` preset.
    parts : mapping
        Text of the column asked for -> the same two of its rows; empty where none was asked for, or the file does not have it.
    compared, paleo_compared : tuple of ComparedRow
        Every measured time beside its prediction by each.
    remarks : tuple of str
        Columns that are not read though their names are near, and units that all rows seem to have wrong.
    refused : tuple of FileProblem
        Cells that are not what their columns say; their rows are counted as skipped.
    in_sample : bool
        Whether the error bars were fitted to this very file.
    """

    file: str
    kind: str
    score: Score
    paleo: Score
    parts: dict[str, tuple[Score, Score]]
    compared: tuple[ComparedRow, ...]
    paleo_compared: tuple[ComparedRow, ...]
    remarks: tuple[str, ...]
    refused: tuple[FileProblem, ...]
    in_sample: bool


def validate_files(
    files: Sequence[str],
    by: str | None = None,
    calibration: LoadedCalibration | None = None,
    *,
    progress: Callable[[str, float], None] = lambda _message, _share: None,
) -> list[FileScore]:
    """Score files one after the other.

    Parameters
    ----------
    files : sequence of str
        Paths of CSV files.
    by : str, optional
        Column by whose text the rows of each file are scored apart, too; or "figure": what was measured of them.
    calibration : LoadedCalibration, optional
        Its factors and error bars; the ``paleo`` preset has none.
    progress : function of (message, share done), optional

    Raises
    ------
    InputFileError
        A file cannot be read or is of no known kind; every bad file is named.
    UsageError
        No file has the column.
    """
    tables: list[tuple[str, Table]] = []
    problems: list[FileProblem] = []
    for name in files:
        try:
            tables.append((name, read_table(Path(name))))
        except InputFileError as error:
            problems.extend(error.problems)
    columns = {column for _, table in tables for column in table.columns}
    if by not in (None, FIGURE) and tables and by not in columns:
        raise UsageError(f"--by {by}: no file has this column{did_you_mean(by, columns)}")
    scores = []
    for n, (name, table) in enumerate(tables):
        say = lambda share, n=n, name=name: progress(f"predicting {name}", (n + share) / len(tables))  # noqa: E731
        try:
            scores.append(_file_score(name, table, by, calibration, say))
        except InputFileError as error:
            problems.extend(error.problems)
    if problems:
        raise InputFileError(problems)
    return scores


def _file_score(
    name: str, table: Table, by: str | None, calibration: LoadedCalibration | None, say: Callable[[float], None]
) -> FileScore:
    given = None if calibration is None else calibration.calibration
    preset = DEFAULT if given is None else calibrated(DEFAULT, given)
    kind, predicted = predict_by(table, (preset, PALEO), say)
    # Rows that cannot be read count as rows that are skipped.
    unread = [Outcome(row=Row(line=line, cells={}), skipped=REFUSED, usable=False) for line in table.refused_lines]
    outcomes, paleo = ([*found, *unread] for found in predicted)
    models = error_models_of(outcomes, preset, given)
    # One baseline for the file: that of a part of one row would be that row.
    factors = baseline_factor(outcomes), baseline_factor(paleo)
    parts: dict[str, tuple[Score, Score]] = {}
    if by is not None and by in (*table.columns, FIGURE):
        pairs = zip(split_by(outcomes, by).items(), split_by(paleo, by).values(), strict=True)
        parts = {text: (score(own, factors[0], models), score(other, factors[1])) for (text, own), other in pairs}
    compared = compared_rows(outcomes)
    fitted = load_calibration().tables | (frozenset() if calibration is None else calibration.tables)
    return FileScore(
        file=name,
        kind=kind.name,
        score=score(outcomes, models=models),
        paleo=score(paleo),
        parts=parts,
        compared=compared,
        paleo_compared=compared_rows(paleo),
        remarks=(*table.unknown(), *far_off([row.ratio for row in compared])),
        refused=table.refused,
        in_sample=bool(fitted & {table.sha256, *(row.text("source_sha256") for row in table.rows)}),
    )
