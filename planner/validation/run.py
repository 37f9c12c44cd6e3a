"""Validates files: reads, predicts and scores each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.errors import FileProblem, InputFileError, UsageError, did_you_mean
from planner.validation.kinds import predict_table
from planner.validation.preset import PALEO
from planner.validation.scores import Score, baseline_factor, score, split_by
from planner.validation.tables import Table, read_table

__all__ = ["FileScore", "validate_files"]


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
    """

    file: str
    kind: str
    score: Score
    paleo: Score
    parts: dict[str, Score]


def validate_files(files: Sequence[str], by: str | None = None) -> list[FileScore]:
    """Score files one after the other.

    Parameters
    ----------
    files : sequence of str
        Paths of CSV files.
    by : str, optional
        Column by whose text the rows of each file are scored apart, too.

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
    for name, table in zip(files, tables, strict=False):
        try:
            kind, outcomes = predict_table(table)
        except InputFileError as error:
            problems.extend(error.problems)
            continue
        parts = split_by(outcomes, by) if by is not None and by in table.columns else {}
        scores.append(
            FileScore(
                file=name,
                kind=kind.name,
                score=score(outcomes),
                paleo=score(predict_table(table, PALEO)[1]),
                parts={text: score(members, baseline_factor(outcomes)) for text, members in parts.items()},
            )
        )
    if problems:
        raise InputFileError(problems)
    if not scores:
        raise InputFileError([FileProblem(path=Path(name), message="holds nothing to score") for name in files])
    return scores
