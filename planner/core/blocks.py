"""A report before it has a format: tables, headings and sentences, and the same answer as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table.

    The table drops the columns of the largest ``priority`` first when it gets narrow; 0 always stays. A ``flexible`` column holds words: it
    may wrap, that of ``plans`` behind ", " first.
    """

    title: str
    cells: tuple[str, ...]
    priority: int = 0
    unit: str = ""
    is_text: bool = False  # left-aligned; numbers are right-aligned
    flexible: bool = False
    plans: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns of equal length; ``highlight`` is the row that stands out, ``total`` whether the last row is a sum.

    The sentences of its ``caption`` stand below.
    """

    columns: tuple[Column, ...]
    highlight: int | None = None
    total: bool = False
    caption: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert len({len(column.cells) for column in self.columns}) == 1, "columns of different length"

    @property
    def num_rows(self) -> int:
        """Rows below the header."""
        return len(self.columns[0].cells)


@dataclass(frozen=True, slots=True)
class Heading:
    """Title of what follows."""

    text: str


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence for people; ``strong`` for the answer itself."""

    text: str
    strong: bool = False


class Commands(str):
    """A value of `Facts`: what to type, each on a line of its own, then a sentence; in one line where a report has no such lines.

    A command may say what it is for as a comment behind it, "  # ...".

    >>> typed = Commands(["planner export plan.yaml", "ls"], "more")
    >>> typed, typed.commands, typed.note
    ('planner export plan.yaml; ls; more', ('planner export plan.yaml', 'ls'), 'more')
    """

    commands: tuple[str, ...]
    note: str

    def __new__(cls, commands: Sequence[str], note: str = "") -> Commands:
        """Join them."""
        text = super().__new__(cls, "; ".join(filter(None, (*commands, note))))
        text.commands, text.note = tuple(commands), note
        return text


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values in two columns, without rules."""

    pairs: tuple[tuple[str, str], ...]


Block = Table | Heading | Sentence | Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One answer in every form; each form is made only when it is asked for."""

    blocks: Callable[[], Sequence[Block]]  # table, markdown
    data: Callable[[], Mapping[str, Any]]  # json, yaml: SI units, documented by a schema
    records: Callable[[], Sequence[Mapping[str, Any]]]  # csv: one row each, SI units
    details: Callable[[], Sequence[Block]] = tuple  # what --verbose adds to the blocks
