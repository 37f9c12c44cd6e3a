"""Validates files: reads, predicts and scores each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planner.core.errors import FileProblem, InputFileError, UsageError, did_you_mean
from planner.files.loading import LoadedCalibration, load_calibration
from planner.measurements.error_bars import Judge, judge_of
from planner.measurements.kinds import predict_by
from planner.measurements.metrics import far_off
from planner.measurements.outcomes import DEFAULT, PALEO, Outcome, calibrated, skipped
from planner.measurements.scores import ComparedRow, Score, baseline_factor, compared_rows, score, split_by
from planner.measurements.tables import Row, Table, read_table

__all__ = ["REFUSED", "FileScore", "validate_files"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileScore:
    """Figures of one file.

    Attributes
    ----------
    file : str
        As the user named it.
    kind : str
    score : Score
    paleo : Score
        The same rows by the ``paleo`` preset.
    parts : mapping
        Text of the column asked for -> figures of its rows; empty where none was asked for, or the file does not have it.
    paleo_parts : mapping
        The same by the ``paleo`` preset.
    compared : tuple of ComparedRow
        Every measured time beside its prediction; empty unless asked for.
    paleo_ratios : tuple of float
        Predicted / measured by the ``paleo`` preset; empty unless asked for.
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
    parts: dict[str, Score]
    paleo_parts: dict[str, Score]
    compared: tuple[ComparedRow, ...] = ()
    paleo_ratios: tuple[float, ...] = ()
    remarks: tuple[str, ...] = ()
    refused: tuple[FileProblem, ...] = ()
    in_sample: bool = False


def validate_files(
    files: Sequence[str],
    by: str | None = None,
    calibration: LoadedCalibration | None = None,
    *,
    with_rows: bool = False,
    progress: Callable[[str, float], None] | None = None,
) -> list[FileScore]:
    """Score files one after the other.

    Parameters
    ----------
    files : sequence of str
        Paths of CSV files.
    by : str, optional
        Column by whose text the rows of each file are scored apart, too.
    constants : mapping of str to float, optional
        Factors of a calibration (`costmodel.uncertainty.constants`); the ``paleo`` preset has none.
    with_rows : bool
        Keep every measured time and its predictions.
    progress : function of (message, share done), optional

    Returns
    -------
    list of FileScore

    Raises
    ------
    InputFileError
        A file cannot be read or is of no known kind; every bad file is named.
    UsageError
        No file has the column.
    """
    tables: list[Table] = []
    problems: list[FileProblem] = []
    for name in files:
        try:
            tables.append(read_table(Path(name)))
        except InputFileError as error:
            problems.extend(error.problems)
    columns = {column for table in tables for column in table.columns}
    if by is not None and tables and by not in columns:
        raise UsageError(f"--by {by}: no file has this column{did_you_mean(by, columns)}")
    scores = []
    given = None if calibration is None else calibration.calibration
    preset = DEFAULT if given is None else calibrated(DEFAULT, given)
    fitted = load_calibration().tables | (frozenset() if calibration is None else calibration.tables)
    for n, (name, table) in enumerate(zip(files, tables, strict=False)):
        say = _said(progress, name, n, len(tables))
        try:
            kind, (outcomes, paleo) = predict_by(table, (preset, PALEO), say)
        except InputFileError as error:
            problems.extend(error.problems)
            continue
        outcomes, paleo = ([*found, *_refused(table)] for found in (outcomes, paleo))
        column = by if by in table.columns else None
        judge = judge_of(outcomes, preset, given)
        scored = _file_score(name, kind.name, outcomes, paleo, column, judge, with_rows=with_rows)
        ratios = [c.predicted_s / c.measured_s for one in outcomes if one.is_scored for c in one.comparisons]
        scores.append(
            replace(
                scored,
                remarks=(*table.unknown(), *far_off(ratios)),
                refused=table.refused,
                in_sample=bool(fitted & {table.sha256, *(row.text("source_sha256") for row in table.rows)}),
            )
        )
    if problems:
        raise InputFileError(problems)
    if not scores:
        raise InputFileError([FileProblem(path=Path(name), message="holds nothing to score") for name in files])
    return scores


REFUSED = "refused: a cell is not what its column says"


def _refused(table: Table) -> list[Outcome]:
    """Rows that cannot be read, as rows that are skipped."""
    lines = sorted({problem.line for problem in table.refused})
    return [skipped(Row(line=line, cells={}), REFUSED, usable=False) for line in lines]


def _said(progress: Callable[[str, float], None] | None, name: str, n: int, files: int) -> Callable[[float], None]:
    """Takes the share of one file's predictions, of two cost models, that is done."""
    if progress is None:
        return lambda _share: None
    return lambda share: progress(f"predicting {name}", (n + share) / files)


def _file_score(
    name: str,
    kind: str,
    outcomes: list[Outcome],
    paleo: list[Outcome],
    by: str | None,
    judge: Judge,
    *,
    with_rows: bool,
) -> FileScore:
    def parts_of(found: list[Outcome], judge: Judge | None = None) -> dict[str, Score]:
        if by is None:
            return {}
        factor = baseline_factor(found)  # one for the file: that of a part of one row would be that row
        return {text: score(members, factor, judge) for text, members in split_by(found, by).items()}

    return FileScore(
        file=name,
        kind=kind,
        score=score(outcomes, judge=judge),
        paleo=score(paleo),
        parts=parts_of(outcomes, judge),
        paleo_parts=parts_of(paleo),
        compared=compared_rows(outcomes) if with_rows else (),
        paleo_ratios=tuple(row.predicted_s / row.measured_s for row in compared_rows(paleo)) if with_rows else (),
    )
