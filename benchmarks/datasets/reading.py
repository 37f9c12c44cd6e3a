"""Reads published tables as they are: other names of columns, title lines, UTF-16, tabs, numbers with remarks and units."""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.datasets.headers import header_below, names_below, read_as
from benchmarks.datasets.written_numbers import NumberError, is_absent, read_number, with_unit
from planner.core.errors import FileProblem, InputFileError
from planner.measurements.tables import FILE_COLUMNS, MAX_BYTES, file_beside, printable, table_problem

__all__ = ["Row", "Table", "Unreadable", "read_table"]

_NO = frozenset(
    (
        "", "0", "0.0", "no", "n", "f", "false", "off", "none", "nan", "ok", "okay", "success", "succeeded", "successful", "pass", "passed",
        "completed", "finished", "done", "fits",
    )
)  # fmt: skip
# Columns about a row, not about a run.
_ABOUT = re.compile(r"^(?:source|provenance|status|url|license|comment)|_derived$|^$")
# More than anything has that is counted: devices, samples, features, positions.
_MOST = 10**9
# Nothing runs with 0 of these.
_NEVER_ZERO = frozenset(
    (
        "hidden", "layers", "heads", "seq", "global_batch", "micro_batch", "batch", "batch_per_gpu", "gpus", "ranks",
        "m", "n", "k", "c", "h", "w", "r", "s", "timesteps",
    )
)  # fmt: skip


class Unreadable(Exception):  # noqa: N818 - named after the situation
    """A row says something that nobody can read, or says too little; the text is the reason."""


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of a table.

    Attributes
    ----------
    line : int
        In the file, from 1.
    cells : mapping
        Column -> text, without surrounding blanks; empty where it is not stated.
    asked : set of str
        Columns that somebody has asked for; rows of a table share it.

    Examples
    --------
    >>> row = Row(line=2, cells={"tp": "8", "seq": "", "inter_bw_Gbps_per_node": "10 (nominal)"})
    >>> row.count("tp"), row.count("seq"), row.number("inter_bw_Gbps_per_node")
    (8, None, 10.0)
    """

    line: int
    cells: Mapping[str, str]
    asked: set[str] = field(default_factory=set, compare=False, repr=False)

    def text(self, name: str) -> str:
        """Text of a cell; empty where there is none."""
        self.asked.add(name)
        return self.cells.get(name, "")

    def has(self, *names: str) -> bool:
        """Whether all these cells say something."""
        self.asked.update(names)
        return all(self.cells.get(name) for name in names)

    @property
    def words(self) -> Sequence[str]:
        """The cells of the line, also of columns without a name or with one of several."""
        return self.cells.words if isinstance(self.cells, _Cells) else tuple(self.cells.values())

    def number(self, name: str) -> float | None:
        """Number at the beginning of a cell; None where it is empty.

        Raises
        ------
        Unreadable
            The cell holds no finite number, or one that can be read in two ways.

        Examples
        --------
        >>> row = Row(line=2, cells={"seq": "4,096", "vocab": "50 257", "step_time_ms": "2,5"})
        >>> row.number("seq"), row.number("vocab")
        (4096.0, 50257.0)
        >>> row.number("step_time_ms")
        Traceback (most recent call last):
        ...
        benchmarks.datasets.reading.Unreadable: column step_time_ms: digits parted by commas or blanks that are no thousands (write 1234.5)
        """
        text = self.text(name)
        if not text:
            return None
        try:
            return read_number(name, text)
        except NumberError as trouble:
            said = str(trouble)
            # "column x: digits parted" and "column x holds no number"
            raise Unreadable(f"column {name}{':' if said.startswith('digits') else ''} {said}") from None

    def positive(self, name: str) -> float | None:
        """A number above 0; None where it is empty or 0.

        Raises
        ------
        Unreadable
            The cell holds no number, or a negative one.
        """
        value = self.number(name)
        if value is not None and value < 0:
            raise Unreadable(f"column {name} is negative")
        return value or None

    def count(self, name: str) -> int | None:
        """A positive whole number; None where it is empty or 0 (what can be none, as a degree; no batch and no width can).

        Raises
        ------
        Unreadable
            The cell holds something else, or more than anything has.
        """
        value = self.positive(name)
        if value is None and name in _NEVER_ZERO and self.has(name):
            raise Unreadable(f"column {name} is 0")
        if value is not None and value > _MOST:
            raise Unreadable(f"column {name} is above {_MOST:,}: wrong unit?")
        if value is not None and value != int(value):
            raise Unreadable(f"column {name} is not a whole number")
        return None if value is None else int(value)

    def says(self, name: str) -> bool:
        """Whether a cell says yes: anything but nothing, 0, no and the like, which remarks may follow.

        >>> [Row(line=2, cells={"oom": text}).says("oom") for text in ("OOM", "1", "", "0", "no", "False")]
        [True, True, False, False, False, False]
        """
        word = re.split(r"[\s(,;]", self.text(name).lower(), maxsplit=1)[0]
        return word not in _NO


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A file of measurements.

    Attributes
    ----------
    columns : tuple of str
        By the names that they are read under.
    renamed : mapping of str to (str, str)
        Column as the file calls it -> the name that it is read under, and the unit of its cells if that is another one.
    """

    path: Path
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    sha256: str = ""
    renamed: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def unread(self) -> tuple[str, ...]:
        """Columns with cells that nobody has asked for, without those that only say where a row is from."""
        asked = set().union(*(row.asked for row in self.rows))
        rest = [name for name in self.columns if name not in asked and not _ABOUT.search(name)]
        return tuple(name for name in rest if any(row.cells.get(name) for row in self.rows))

    def column(self, name: str) -> str | None:
        """The name that a column is read under, by that name or by what the file calls it; None where there is none."""
        return name if name in self.columns else self.renamed.get(name, (None, ""))[0]


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
    text, sha256 = _text_of(path)
    lines = _lines(path, text)
    if not lines:
        raise table_problem(
            path, "is empty; a table of measurements starts with a line of column names (see docs/measurements.md)"
        )
    first, header = lines[0]
    columns = tuple(printable(name) for name in header)
    strange = _strange(header)
    if strange:
        raise table_problem(path, strange, first)
    repeated = sorted({name for name in columns if name and columns.count(name) > 1})
    if repeated:
        raise table_problem(path, f"two columns are called {', '.join(repeated)}", first)
    long = [(number, len(line)) for number, line in lines[1:] if any(text.strip() for text in line[len(columns) :])]
    if long:
        below = header_below(lines)
        if below:
            raise table_problem(path, names_below(below), first)
        message = f"cells, the header names {len(columns)} columns (quote cells that hold commas)"
        raise InputFileError(
            [FileProblem(path=path, line=n, column=1, message=f"has {size} {message}") for n, size in long]
        )
    renamed = read_as(columns)
    columns = tuple(renamed.get(name, (name, ""))[0] for name in columns)
    units = {columns.index(name): unit for name, unit in renamed.values() if unit}
    known: dict[str, str] = {}  # equal texts once: most cells of a long table repeat
    places = {name: place for place, name in enumerate(columns)}
    lines.reverse()  # and let go of, one by one
    lines.pop()
    rows, asked = [], set[str]()
    while lines:
        number, line = lines.pop()
        rows.append(_row(places, line, number, path, known, units, asked))
    return Table(path=path, columns=columns, rows=tuple(rows), sha256=sha256, renamed=renamed)


def _lines(path: Path, text: str) -> list[tuple[int, list[str]]]:
    """Records that hold anything, each with the line that it starts on; a quoted cell may run over several lines."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=_delimiter(text))
    found, start = [], 1
    try:
        for line in reader:
            if any(cell.strip() for cell in line):
                found.append((start, line))
            start = reader.line_num + 1
    except csv.Error as error:
        raise table_problem(path, f"is no CSV table: {error}", start) from None
    return found


def _delimiter(text: str) -> str:
    r"""What parts the cells: tabs or semicolons where the header has these and no comma, and no number has one, which may be that of 0,5.

    >>> [_delimiter(text) for text in ("a,b;c", "a;b;c", "a\tb\tc\n1\t2\twell, well", "a;b;c\n0,5;1;2")]
    [',', ';', '\t', ',']
    """
    header = next((line for line in text.split("\n") if line.strip()), "")
    if header.lstrip().startswith("#"):
        return ","
    if "," in header or re.search(r"[0-9],[0-9]", text):
        return ","
    return next((mark for mark in ("\t", ";") if header.count(mark) >= 2), ",")


def _strange(columns: Sequence[str]) -> str:
    """What people put where the column names should be; empty where it may be a header."""
    first = columns[0].strip()
    if first.startswith("#"):
        return "starts with a comment; the first line must name the columns"
    if first.lower().startswith("sep="):
        return "starts with a line for spreadsheets ('sep='); the first line must name the columns"
    for mark, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
        if len(columns) <= 2 and first.count(mark) >= 2:
            return f"separates its cells by {name}; a table of measurements has commas (and a point in 0.5)"
    return ""


def _text_of(path: Path) -> tuple[str, str]:
    """What a file says, with one character for the end of a line, and its SHA-256."""
    try:
        if path.is_dir():
            raise table_problem(path, "is a folder, not a CSV file")
        if path.stat().st_size > MAX_BYTES:
            raise table_problem(path, f"is larger than {MAX_BYTES // 2**20} MiB")
        data = path.read_bytes()
        # Spreadsheets save "Unicode text" in UTF-16 behind its mark.
        coded = "utf-16" if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
        text = data.decode(coded).replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise table_problem(path, "is no text in UTF-8; save it as CSV in UTF-8") from None
    except InputFileError:
        raise
    except (OSError, ValueError) as error:
        raise table_problem(path, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if "\0" in text:
        raise table_problem(path, "is no text: it holds NUL characters")
    return text, hashlib.sha256(data).hexdigest()


class _Cells(Mapping[str, str]):
    """Cells of one line by column, a fifth of a dict: the places of the columns are those of the table."""

    __slots__ = ("_places", "words")

    def __init__(self, places: Mapping[str, int], words: tuple[str, ...]) -> None:
        self._places, self.words = places, words

    def __getitem__(self, name: str) -> str:
        place = self._places[name]
        if place >= len(self.words):
            raise KeyError(name)
        return self.words[place]

    def get(self, name: str, default: Any = None) -> Any:
        """As of any mapping, but quicker."""
        place = self._places.get(name)
        return default if place is None or place >= len(self.words) else self.words[place]

    def __iter__(self) -> Iterator[str]:
        return (name for name, place in self._places.items() if place < len(self.words))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _row(
    places: Mapping[str, int],
    line: Sequence[str],
    number: int,
    path: Path,
    known: dict[str, str],
    units: Mapping[int, str],
    asked: set[str],
) -> Row:
    words = [known[text] if text in known else _known(text, known) for text in line]
    for name in FILE_COLUMNS:
        place = places.get(name, len(words))
        if place < len(words) and words[place]:
            words[place] = file_beside(path, words[place])
    for place, unit in units.items():
        if place < len(words):
            words[place] = with_unit(words[place], unit)
    return Row(line=number, cells=_Cells(places, tuple(words)), asked=asked)


def _known(text: str, known: dict[str, str]) -> str:
    """A cell as it is kept: one text for equal ones, nothing where it says that it says nothing."""
    word = printable(text)
    word = "" if is_absent(word) else word
    known[text] = known.setdefault(word, word)
    return known[text]
