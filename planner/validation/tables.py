"""Reads CSV tables of measurements: rows that note which facts they lack, and what kind of table a file is."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from planner.errors import FileProblem, InputFileError

__all__ = ["Row", "RowSkipped", "Table", "read_table"]

_T = TypeVar("_T")

# More text than any table of measurements has; keeps a wrong file from filling the memory.
_MAX_BYTES = 256 * 2**20
# The sign is part of the number; what follows may be a remark: "10 (p2.8xlarge nominal)", "-1 (all ranks)".
_NUMBER = re.compile(r"[+-]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?=$|[\s(;,%]|[A-Za-z])")


class RowSkipped(Exception):  # noqa: N818 - named after the situation
    """A row cannot be scored.

    Parameters
    ----------
    reason : str
        The same words for every row with the same trouble: they are counted.
    usable : bool
        Whether the row has a measurement and a known shape, so that leaving it out counts against the coverage.
    """

    def __init__(self, reason: str, *, usable: bool = False) -> None:
        self.reason = reason
        self.usable = usable
        super().__init__(reason)


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of a table.

    Attributes
    ----------
    line : int
        In the file, from 1.
    cells : mapping
        Column -> text, without surrounding blanks; empty where it is not stated.
    defaults : dict
        Fact that the row lacks -> the value taken for it.

    Examples
    --------
    >>> row = Row(line=2, cells={"tp": "8", "seq": "", "inter_bw_Gbps_per_node": "10 (nominal)"})
    >>> row.count("tp"), row.count("seq"), row.number("inter_bw_Gbps_per_node")
    (8, None, 10.0)
    >>> row.count("seq") or row.default("seq", 2048)
    2048
    >>> row.defaults
    {'seq': 2048}
    """

    line: int
    cells: Mapping[str, str]
    defaults: dict[str, object] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Text of a cell; empty where there is none."""
        return self.cells.get(name, "")

    def has(self, *names: str) -> bool:
        """Whether all these cells say something."""
        return all(self.cells.get(name) for name in names)

    def number(self, name: str) -> float | None:
        """Number at the beginning of a cell; None where it is empty.

        Raises
        ------
        RowSkipped
            The cell holds no finite number.
        """
        text = self.text(name)
        if not text:
            return None
        found = _NUMBER.match(text)
        value = float(found[0].replace("_", "")) if found else math.nan
        if not math.isfinite(value):
            raise RowSkipped(f"column {name} holds no number")
        return value

    def positive(self, name: str) -> float | None:
        """A number above 0; None where it is empty or 0.

        Raises
        ------
        RowSkipped
            The cell holds no number, or a negative one.
        """
        value = self.number(name)
        if value is not None and value < 0:
            raise RowSkipped(f"column {name} is negative")
        return value or None

    def count(self, name: str) -> int | None:
        """A positive whole number; None where it is empty or 0.

        Raises
        ------
        RowSkipped
            The cell holds something else.
        """
        value = self.positive(name)
        if value is not None and value != int(value):
            raise RowSkipped(f"column {name} is not a whole number")
        return None if value is None else int(value)

    def default(self, name: str, value: _T) -> _T:
        """Note that a fact was not stated, and hand the value on."""
        self.defaults[name] = value
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A file of measurements."""

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


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
        The file cannot be read, is no CSV, or is empty.
    """
    text = _text_of(path)
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise _problem(path, f"is no CSV table: {error}") from None
    lines = [line for line in lines if line]
    if not lines:
        raise _problem(
            path, "is empty; a table of measurements starts with a line of column names (see docs/measurements.md)"
        )
    columns = tuple(name.strip() for name in lines[0])
    repeated = sorted({name for name in columns if name and columns.count(name) > 1})
    if repeated:
        raise _problem(path, f"two columns are called {', '.join(repeated)}")
    rows = tuple(_row(columns, line, number, path) for number, line in enumerate(lines[1:], start=2))
    return Table(path=path, columns=columns, rows=rows)


def _text_of(path: Path) -> str:
    try:
        if path.is_dir():
            raise _problem(path, "is a folder, not a CSV file")
        if path.stat().st_size > _MAX_BYTES:
            raise _problem(path, f"is larger than {_MAX_BYTES // 2**20} MiB")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise _problem(path, "is no text in UTF-8") from None
    except (OSError, ValueError) as error:
        raise _problem(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _row(columns: Sequence[str], line: Sequence[str], number: int, path: Path) -> Row:
    if len(line) > len(columns):
        message = f"line {number} has {len(line)} cells, the header names {len(columns)} columns (quote cells that hold commas)"
        raise _problem(path, message)
    cells = {name: text.strip() for name, text in zip(columns, line, strict=False)}
    return Row(line=number, cells=cells)


def _problem(path: Path, message: str) -> InputFileError:
    return InputFileError([FileProblem(path=path, message=message)])
