"""Reports as text: tables whose columns fit the width, in plain ASCII, with colour on a terminal, and as Markdown."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from planner.core.blocks import Block, Column, Facts, Heading, Sentence, Table

__all__ = ["fit", "markdown_text", "plain_text", "rich_text", "table_lines", "wrap_words"]

_GAP = 2  # spaces between columns
_MIN_FLEXIBLE = 28  # below this a column of words is hard to read: drop another column first
_LEAST_FLEXIBLE = 12
_MAX_LINES = 6  # of a wrapped cell; what is left of it ends in "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedColumn:
    """A column as it will be shown: lines of the header, width, and the lines of every cell."""

    column: Column
    width: int
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]


def fit(table: Table, width: int | None) -> list[FittedColumn]:
    """Choose columns and widths: shorter cells first, then dropped columns, then wrapped words; numbers are never cut.

    Parameters
    ----------
    table : Table
    width : int or None
        Characters of a line; None for as many as the table likes.
    """
    columns = list(table.columns)
    narrow = False
    while width is not None and _least_width(columns, narrow=narrow) > width:
        droppable = [column for column in columns if column.priority > 0]
        if not narrow:
            narrow = True
        elif droppable:
            columns.remove(max(droppable, key=lambda column: column.priority))
        else:
            break
    widths = [_natural_width(column, narrow=narrow) for column in columns]
    if width is not None:
        _shrink(columns, widths, width - _GAP * (len(columns) - 1))
    return [_fitted(column, size, narrow=narrow) for column, size in zip(columns, widths, strict=True)]


def _cells(column: Column, *, narrow: bool) -> tuple[str, ...]:
    return column.narrow if narrow and column.narrow is not None else column.cells


def _header(column: Column, *, narrow: bool) -> tuple[str, ...]:
    unit = column.narrow_unit if narrow and column.narrow_unit is not None else column.unit
    return (*column.title.split("\n"), *([unit] if unit else []))


def _natural_width(column: Column, *, narrow: bool) -> int:
    return max(len(text) for text in (*_header(column, narrow=narrow), *_cells(column, narrow=narrow)))


def _least_width(columns: Sequence[Column], *, narrow: bool) -> int:
    total = _GAP * (len(columns) - 1)
    for column in columns:
        natural = _natural_width(column, narrow=narrow)
        total += min(natural, _MIN_FLEXIBLE) if column.flexible else natural
    return total


def _shrink(columns: Sequence[Column], widths: list[int], width: int) -> None:
    """Take what is missing from the flexible columns, the widest first."""
    while sum(widths) > width:
        flexible = [i for i, column in enumerate(columns) if column.flexible and widths[i] > _LEAST_FLEXIBLE]
        if not flexible:
            return
        widest = max(flexible, key=lambda i: widths[i])
        widths[widest] -= 1


def _fitted(column: Column, width: int, *, narrow: bool) -> FittedColumn:
    cells = tuple(
        tuple(wrap_words(text, width)) if column.flexible else (text,) for text in _cells(column, narrow=narrow)
    )
    return FittedColumn(column=column, width=width, header=_header(column, narrow=narrow), cells=cells)


def wrap_words(text: str, width: int) -> list[str]:
    """Wrap words into at most six lines; what is left ends in "...".

    >>> wrap_words("conv1-conv5: data x16, fc6-fc8: channels x16", 24)
    ['conv1-conv5: data x16,', 'fc6-fc8: channels x16']
    """
    if len(text) <= width:
        return [text]
    # Groups such as "fc6-fc8: channels x16" stay together where they fit: break at ", " first.
    lines = _wrap_groups(text.split(", "), width)
    if len(lines) > _MAX_LINES:
        last = lines[_MAX_LINES - 1]
        lines = [*lines[: _MAX_LINES - 1], last[: width - 3].rstrip(" ,") + "..."]
    return lines


def _wrap_groups(groups: Sequence[str], width: int) -> list[str]:
    lines: list[str] = []
    for i, group in enumerate(groups):
        part = group + ("," if i < len(groups) - 1 else "")
        if lines and len(lines[-1]) + 1 + len(part) <= width:
            lines[-1] += " " + part
        else:
            # A single word that is too long, such as "butterfly+recursive-halving-doubling", may break at its hyphens.
            too_long = any(len(word) > width for word in part.split())
            lines.extend(textwrap.wrap(part, width, break_on_hyphens=too_long) or [""])
    return lines


class Line(NamedTuple):
    """One line of a report; the first ``name`` characters are those of a fact's name."""

    text: str
    style: str = ""  # as rich calls it
    name: int = 0


_RULE = "dim"


def table_lines(table: Table, width: int | None) -> list[Line]:
    """Lines of a table in plain ASCII."""
    fitted = fit(table, width)
    height = max(len(column.header) for column in fitted)
    headers = [[_at(column.header, i - height + len(column.header)) for column in fitted] for i in range(height)]
    lines = [Line(_joined(fitted, texts), "bold") for texts in headers]
    rule = Line((" " * _GAP).join("-" * column.width for column in fitted), _RULE)
    lines.append(rule)
    for row in range(table.num_rows):
        if table.total and row == table.num_rows - 1:
            lines.append(rule)
        depth = max(len(column.cells[row]) for column in fitted)
        style = "bold green" if row == table.highlight else ""
        lines.extend(
            Line(_joined(fitted, [_at(column.cells[row], i) for column in fitted]), style) for i in range(depth)
        )
    return lines


def _at(lines: Sequence[str], index: int) -> str:
    return lines[index] if 0 <= index < len(lines) else ""


def _joined(fitted: Sequence[FittedColumn], texts: Sequence[str]) -> str:
    parts = [
        text.ljust(column.width) if column.column.is_text else text.rjust(column.width)
        for column, text in zip(fitted, texts, strict=True)
    ]
    return (" " * _GAP).join(parts).rstrip()


def _fact_lines(facts: Facts, width: int) -> Iterator[Line]:
    """Names on the left, values wrapped on the right."""
    left = max(len(name) for name, _ in facts.pairs) + 1
    for name, value in facts.pairs:
        first, *more = _wrapped(value, max(20, width - left - 1)) or [""]
        yield Line(f"{name + ':':<{left}} {first}", name=len(name) + 1)
        yield from (Line(f"{'':<{left}} {line}") for line in more)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def _report_lines(blocks: Sequence[Block], width: int | None) -> Iterator[Line]:
    """A report of at most ``width`` characters (None: sentences still wrap at 120); an empty line before all but its plain sentences."""
    for i, block in enumerate(blocks):
        if i and not (isinstance(block, Sentence) and not block.strong):
            yield Line("")
        if isinstance(block, Table):
            yield from table_lines(block, width)
        elif isinstance(block, Facts):
            yield from _fact_lines(block, width or 120)
        else:
            style = "bold" if isinstance(block, Heading) or block.strong else ""
            yield from (Line(line, style) for line in _wrapped(block.text, width or 120))


def plain_text(blocks: Sequence[Block], width: int | None) -> str:
    """Write a report as ASCII lines of at most ``width`` characters (None: sentences still wrap at 120)."""
    return "\n".join(line.text.rstrip() for line in _report_lines(blocks, width)) + "\n"


def rich_text(blocks: Sequence[Block], width: int, *, unicode: bool = True) -> str:
    """Write a report with terminal control codes: the lines of the plain text, with colour, bold and ruled tables.

    Parameters
    ----------
    blocks : sequence of Block
    width : int
        Characters of a line.
    unicode : bool
        Whether the terminal can show line-drawing characters.
    """
    # Imported where a terminal shows it: rich alone takes longer than the search of a small network.
    from rich.console import Console
    from rich.text import Text

    # File names, plans and layer names are text, never markup or emoji codes.
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=True, width=width, markup=False, emoji=False, highlight=False)
    for line in _report_lines(blocks, width):
        text = line.text.replace("-", "\u2500") if unicode and line.style == _RULE else line.text
        console.print(Text.assemble((text[: line.name], "dim"), (text[line.name :], line.style)), soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def markdown_text(blocks: Sequence[Block]) -> str:
    """Write every column of every table, and the sentences under it."""
    parts: list[str] = []
    for block in blocks:
        if isinstance(block, Table):
            parts.append(_table(block))
        elif isinstance(block, Facts):
            parts.append("\n".join(f"- **{_escaped(name)}**: {_escaped(value)}" for name, value in block.pairs))
        elif isinstance(block, Heading):
            parts.append(f"### {_escaped(block.text)}")
        elif isinstance(block, Sentence):
            text = _escaped(block.text)
            parts.append(f"**{text}**" if block.strong else text)
    return "\n\n".join(parts) + "\n"


def _table(table: Table) -> str:
    titles = [
        " ".join(filter(None, (c.title.replace("\n", " "), f"({c.unit})" if c.unit else ""))) for c in table.columns
    ]
    lines = [_row(titles), _row([":--" if column.is_text else "--:" for column in table.columns])]
    for i in range(table.num_rows):
        cells = [_indented(column.cells[i]) for column in table.columns]
        lines.append(_row([f"**{cell}**" if cell and i == table.highlight else cell for cell in cells]))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _indented(cell: str) -> str:
    """A cell with its leading blanks, which Markdown would drop: waterfalls begin where the part before ends.

    >>> _indented("  ##")
    '&nbsp;&nbsp;##'
    """
    text = cell.lstrip(" ")
    return "&nbsp;" * (len(cell) - len(text)) + _escaped(text) if text else ""


def _escaped(text: str) -> str:
    for character in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(character, "\\" + character)
    return text
