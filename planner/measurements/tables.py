"""Reads CSV tables of measurements: rows whose cells are what their columns say, and the places of those that are not."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from planner.core.errors import FileProblem, InputFileError, did_you_mean
from planner.files.text import read_bytes
from planner.measurements.columns import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_T = TypeVar("_T")

# More text than any table of measurements has; keeps a wrong file from filling the memory.
MAX_BYTES = 256 * 2**20
_MAX_LINES = 500_000
# No run takes more times what its devices need at their peak: its time is in another unit.
LONGEST = 1e5
_SHOWN = 60  # characters of a cell in a message
# Columns that name files; a path starts at the folder of the table.
FILE_COLUMNS = ("device_file", "cluster_file")
_TOO_MANY = "has {} cells, the header names {} columns (quote cells that hold commas)"


class RowSkipped(Exception):  # noqa: N818 - named after the situation
    """A row cannot be scored.

    Parameters
    ----------
    reason : str
        The same words for every row with the same trouble: they are counted.
    usable : bool
        Whether the row has a measurement and a known shape, so that leaving it out counts against the coverage.
    needs : tuple of tuples of str
        Columns that would have said what is missing; of each tuple, one.
    """

    def __init__(self, reason: str, *, usable: bool = False, needs: tuple[tuple[str, ...], ...] = ()) -> None:
        self.reason = reason
        self.usable = usable
        self.needs = needs
        super().__init__(reason)


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of a table, whose cells are as `planner.measurements.columns` declares them.

    Attributes
    ----------
    line : int
        In the file, from 1.
    cells : mapping
        Column -> text; what is not stated is empty or not there.
    defaults : dict
        Fact that the row lacks -> the value taken for it.
    meaning : object
        What a predictor made of the cells, kept for the next cost model; None before.

    Examples
    --------
    >>> row = Row(line=2, cells={"tp": "8", "step_time_ms": "12.5", "sp": "yes"})
    >>> row.count("tp"), row.count("seq"), row.number("step_time_ms"), row.flag("sp")
    (8, None, 12.5, True)
    >>> row.count("seq") or row.default("seq", 2048)
    2048
    >>> row.defaults
    {'seq': 2048}
    """

    line: int
    cells: Mapping[str, str]
    defaults: dict[str, object] = field(default_factory=dict)
    meaning: Any = field(default=None, repr=False, compare=False)

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        """For other processes, which find out the meaning themselves."""
        return None, {"line": self.line, "cells": self.cells, "defaults": self.defaults, "meaning": None}

    def text(self, name: str) -> str:
        """Text of a cell; empty where there is none."""
        return self.cells.get(name, "")

    def has(self, *names: str) -> bool:
        """Whether all these cells say something."""
        return all(self.cells.get(name) for name in names)

    def number(self, name: str) -> float | None:
        """Number of a cell; None where it is empty."""
        text = self.text(name)
        return float(text) if text else None

    def count(self, name: str) -> int | None:
        """Whole number of a cell; None where it is empty."""
        text = self.text(name)
        return int(text) if text else None

    def counts(self, *names: str) -> list[int]:
        """Whole numbers of cells that must all be there.

        Raises
        ------
        RowSkipped
            One is not.
        """
        found = [self.count(name) or 0 for name in names]
        if not all(found):
            raise RowSkipped(f"{' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))} is not stated")
        return found

    def flag(self, name: str) -> bool | None:
        """Whether a cell says yes; None where it is empty."""
        text = self.text(name)
        return text == "yes" if text else None

    def default(self, name: str, value: _T) -> _T:
        """Note that a fact was not stated, and hand the value on."""
        self.defaults[name] = value
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A file of measurements.

    Attributes
    ----------
    columns : tuple of str
    rows : tuple of Row
        Those that can be read.
    refused : tuple of FileProblem
        What is wrong with the others, each at its place.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    refused: tuple[FileProblem, ...] = ()
    sha256: str = ""

    @property
    def refused_lines(self) -> list[int]:
        """Lines of the rows that cannot be read."""
        return sorted({problem.line for problem in self.refused})

    def unknown(self) -> tuple[str, ...]:
        """What to say of columns that are not read though their names are near one that is."""
        near = ((name, did_you_mean(name, COLUMNS)) for name in self.columns if name not in COLUMNS)
        return tuple(f"column '{name}' is not read{hint}" for name, hint in near if hint)


def read_table(path: Path) -> Table:
    """Read a CSV file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    Table

    Raises
    ------
    InputFileError
        The file cannot be read, is no CSV, is empty, or none of its rows can be read.
    """
    text, sha256 = _text_of(path)
    frame = _frame(path, text)
    # Line of every row: cells may run over several lines.
    breaks = frame.apply(lambda column: column.str.count("\n")).sum(axis=1).astype(int)
    lines = [1, *(1 + np.cumsum(1 + breaks.to_numpy())[:-1]).tolist()]
    header = [printable(name) for name in frame.iloc[0]]
    width = 1 + max((n for n, name in enumerate(header) if name), default=0)
    _check_header(path, header[:width], text)
    rest = frame.iloc[1:, width:].apply(lambda column: column.str.strip() != "")
    longer = {n: width + 1 + int(np.flatnonzero(row)[-1]) for n, row in enumerate(rest.to_numpy()) if row.any()}
    broken = [
        FileProblem(path=path, line=lines[n + 1], column=1, message=_TOO_MANY.format(size, width))
        for n, size in longer.items()
    ]
    body = frame.iloc[1:, :width].set_axis(header[:width], axis=1)
    kept = [n for n in range(len(body)) if n not in longer]
    return table_of(body.iloc[kept], path, lines=[lines[n + 1] for n in kept], sha256=sha256, broken=broken, text=text)


def table_of(
    frame: pd.DataFrame,
    path: Path,
    *,
    lines: Sequence[int],
    sha256: str = "",
    broken: Sequence[FileProblem] = (),
    text: str = "",
) -> Table:
    """Rows of a data frame of texts, each checked by the declarations of its columns.

    Parameters
    ----------
    frame : DataFrame
        Cells by column.
    path : Path
        For messages, and for files that cells name.
    lines : sequence of int
        Of each row in the file.
    sha256 : str
        Of the file.
    broken : sequence of FileProblem
        Lines that are no rows.
    text : str
        Of the file, where the places of cells are to be found.

    Raises
    ------
    InputFileError
        No row can be read.
    """
    columns = tuple(frame.columns)
    cleaned = frame.apply(lambda column: column.map({text: printable(text) for text in column.unique()}))
    # Column -> text -> what is wrong with it.
    problems = {
        name: {text: problem for text in cleaned[name].unique() if text and (problem := COLUMNS[name].problem(text))}
        for name in columns
        if name in COLUMNS
    }
    problems = {name: found for name, found in problems.items() if found}
    starts = text.split("\n") if text and problems else []
    rows, refused = [], list(broken)
    for line, values in zip(lines, cleaned.itertuples(index=False, name=None), strict=True):
        cells = {name: value for name, value in zip(columns, values, strict=True) if value}
        if not cells:
            continue
        wrong = [(name, found) for name, known in problems.items() if (found := known.get(cells.get(name, "")))]
        for name, found in wrong:
            place = _place(starts, line, columns.index(name))
            refused.append(FileProblem(path=path, line=line, column=place, message=f"{name} {found}"))
        if not wrong:
            cells.update({name: file_beside(path, cells[name]) for name in FILE_COLUMNS if name in cells})
            rows.append(Row(line=line, cells=cells))
    if refused and not rows:
        raise InputFileError(refused)
    return Table(path=path, columns=columns, rows=tuple(rows), refused=tuple(sorted(refused)), sha256=sha256)


def _place(starts: Sequence[str], line: int, column: int) -> int:
    """Where in its line a cell begins, from 1; the first where quotes or breaks of lines hide it."""
    words = starts[line - 1].split(",") if line <= len(starts) else []
    is_plain = column < len(words) and '"' not in starts[line - 1]
    return 1 + sum(len(word) + 1 for word in words[:column]) if is_plain else 1


def _frame(path: Path, text: str) -> pd.DataFrame:
    """All cells, the header's first; lines with fewer than others end in empty ones."""
    import pandas as pd

    def read(**more: Any) -> pd.DataFrame:
        return pd.read_csv(
            io.StringIO(text),
            header=None,
            dtype=str,
            na_filter=False,
            skip_blank_lines=False,
            on_bad_lines="warn",
            **more,
        )

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            frame = read()
            sizes = [
                int(size) for one in said for size in re.findall(r"expected \d+ fields, saw (\d+)", str(one.message))
            ]
            return (read(names=range(max(sizes))) if sizes else frame).fillna("")
        except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
            raise table_problem(path, f"is no CSV table: {str(error).strip()}", 1) from None


def _check_header(path: Path, columns: Sequence[str], text: str) -> None:
    """Refuse what people put where the names of the columns should be.

    Raises
    ------
    InputFileError
        The first line names no columns, or one of them twice.
    """
    repeated = sorted({name for name in columns if name and columns.count(name) > 1})
    if repeated:
        raise table_problem(path, f"two columns are called {', '.join(repeated)}", 1)
    if any(name in COLUMNS for name in columns):
        return
    marks = {";": "semicolons", "\t": "tabs", "|": "bars"}
    mark = next((word for mark, word in marks.items() if mark in text.split("\n", maxsplit=1)[0]), "")
    words = (
        f"separates its cells by {mark}; a table of measurements has commas (and a point in 0.5)"
        if mark
        else (
            "its first line names no column of a table of measurements (planner validate --template KIND prints one; docs/measurements.md)"
        )
    )
    raise table_problem(path, words, 1)


def printable(text: str) -> str:
    r"""Without surrounding blanks, and in one line that no terminal takes for a command.

    >>> printable(" GPT\nsmall "), printable("\x1b[31mred")
    ('GPT small', '\\x1b[31mred')
    """
    text = text.strip()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else ascii(c)[1:-1] for c in text)


def _text_of(path: Path) -> tuple[str, str]:
    """What a file says, with one character for the end of a line, and its SHA-256."""
    data = read_bytes(path, MAX_BYTES, "a table of measurements")
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise table_problem(path, "is not UTF-8 text; save it as CSV in UTF-8") from None
    if "\0" in text:
        raise table_problem(path, "is not text: it holds NUL characters")
    if not text.strip(", \n"):
        raise table_problem(
            path, "is empty; a table of measurements starts with a line of column names (see docs/measurements.md)"
        )
    if text.count("\n") > _MAX_LINES:
        raise table_problem(path, f"has more than {_MAX_LINES:,} lines, the limit of a table of measurements; split it")
    return text, hashlib.sha256(data).hexdigest()


def file_beside(path: Path, text: str) -> str:
    """A file that a cell names: beside the table where there is one of that name, else as it is written."""
    candidate = path.parent / text
    try:
        return str(candidate) if candidate.is_file() else text
    except (OSError, ValueError):  # a name that is too long, a NUL character
        return text


def short_name(text: str) -> str:
    """A cell as messages quote it.

    >>> short_name("a100"), len(short_name("x" * 1000))
    ('a100', 60)
    """
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def table_problem(path: Path, message: str, line: int = 0) -> InputFileError:
    """Return the error that names a table and, where it is known, the line."""
    return InputFileError([FileProblem(path=path, line=line, column=1 if line else 0, message=message)])
