"""Reports as text: tables whose columns fit the width, in plain ASCII, with colour on a terminal, and as Markdown."""

from __future__ import annotations

import io
import itertools
import re
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from planner.core.blocks import Block, Column, Commands, Facts, Heading, Sentence, Table

_GAP = 2  # spaces between columns
_MIN_FLEXIBLE = 28  # below this a column of words is hard to read: drop another column first
_LEAST_FLEXIBLE = 12
_DETAIL = 5  # from this priority on a column is shown only where no plan's words wrap
_WORD = re.compile(r"[^\s-]+-?,?")


class FittedColumn(NamedTuple):
    """A column as it will be shown: lines of the header, width, and the lines of every cell."""

    column: Column
    width: int
    header: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]


def fit(table: Table, width: int | None) -> list[FittedColumn]:
    """Choose columns and widths: columns are dropped first, then words are wrapped; numbers are never cut.

    Of plans, columns of details are shown only where all words have room.

    Parameters
    ----------
    table : Table
    width : int or None
        Characters of a line; None for as many as the table likes.
    """
    columns = [_natural(column) for column in table.columns]
    is_wide = width is None or sum(c.width for c in columns) + _GAP * (len(columns) - 1) <= width
    if not is_wide and any(column.plans for column in table.columns):
        columns = [fitted for fitted in columns if fitted.column.priority < _DETAIL]
    while width is not None and _least_width(columns) > width:
        droppable = [fitted for fitted in columns if fitted.column.priority > 0]
        if not droppable:
            break
        columns.remove(max(droppable, key=lambda fitted: fitted.column.priority))
    widths = [fitted.width for fitted in columns]
    # What is missing is taken from the flexible columns, the widest first; words break only where nothing else is left to take.
    for least in ([_longest_word(fitted) for fitted in columns], [_LEAST_FLEXIBLE] * len(columns)):
        while width is not None and sum(widths) > width - _GAP * (len(columns) - 1):
            flexible = [i for i, fitted in enumerate(columns) if fitted.column.flexible and widths[i] > least[i]]
            if not flexible:
                break
            widths[max(flexible, key=lambda i: widths[i])] -= 1
    return [
        fitted._replace(
            width=size,
            cells=tuple(tuple(wrap_words(text, size, plans=fitted.column.plans)) for (text,) in fitted.cells),
        )
        if fitted.column.flexible
        else fitted
        for fitted, size in zip(columns, widths, strict=True)
    ]


def _natural(column: Column) -> FittedColumn:
    """A column as wide as it likes."""
    header = (*column.title.split("\n"), *([column.unit] if column.unit else []))
    width = max(len(text) for text in (*header, *column.cells))
    return FittedColumn(column=column, width=width, header=header, cells=tuple((text,) for text in column.cells))


def _longest_word(fitted: FittedColumn) -> int:
    """What a column needs so that words of its header and cells break at their hyphens only."""
    texts = (*fitted.header, *(text for (text,) in fitted.cells))
    return max(_LEAST_FLEXIBLE, *(len(word) for text in texts for word in _WORD.findall(text)))


def _least_width(columns: Sequence[FittedColumn]) -> int:
    widths = [min(c.width, _MIN_FLEXIBLE) if c.column.flexible else c.width for c in columns]
    return sum(widths) + _GAP * (len(columns) - 1)


class _Parts(textwrap.TextWrapper):
    """May break paths and names of code where their parts begin."""

    wordsep_re = re.compile(r"(\s+|[^\s/_-]*[/_-]+(?=\S))|(?<=[a-z])(?=[A-Z])")


def wrap_words(text: str, width: int, *, plans: bool = True) -> list[str]:
    """Wrap words; groups of ``plans`` such as "fc6-fc8: channels x16" stay together where they fit: a line breaks at ", " first.

    >>> wrap_words("conv1-conv5: data x16, fc6-fc8: channels x16", 24)
    ['conv1-conv5: data x16,', 'fc6-fc8: channels x16']
    >>> wrap_words("FSDP, whose weights are shared, 40 layers", 24, plans=False)
    ['FSDP, whose weights are', 'shared, 40 layers']
    """
    if len(text) <= width:
        return [text]
    groups = text.split(", ") if plans else [text]
    lines: list[str] = []
    for i, group in enumerate(groups):
        part = group + ("," if i < len(groups) - 1 else "")
        if lines and len(lines[-1]) + 1 + len(part) <= width:
            lines[-1] += " " + part
        else:
            # A single word that is too long, such as "butterfly+recursive-halving-doubling", may break where its parts end.
            too_long = any(len(word) > width for word in part.split())
            lines.extend(_Parts(width, break_on_hyphens=too_long).wrap(part) or [""])
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
    # Titles stand at the bottom of the header, cells at the top of their rows.
    titles = [("",) * (height - len(column.header)) + column.header for column in fitted]
    lines = [Line(text, "bold") for text in _joined(fitted, titles)]
    rule = Line((" " * _GAP).join("-" * column.width for column in fitted), _RULE)
    lines.append(rule)
    for row in range(table.num_rows):
        if table.total and row == table.num_rows - 1:
            lines.append(rule)
        style = "bold green" if row == table.highlight else ""
        lines += [Line(text, style) for text in _joined(fitted, [column.cells[row] for column in fitted])]
    return lines


def _joined(fitted: Sequence[FittedColumn], cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines of a row; cells with fewer lines than others are empty below."""
    for texts in itertools.zip_longest(*cells, fillvalue=""):
        parts = [
            text.ljust(column.width) if column.column.is_text else text.rjust(column.width)
            for column, text in zip(fitted, texts, strict=True)
        ]
        yield (" " * _GAP).join(parts).rstrip()


def _fact_lines(facts: Facts, width: int) -> Iterator[Line]:
    """Names on the left, values wrapped on the right."""
    left = max(len(name) for name, _ in facts.pairs) + 1
    for name, value in facts.pairs:
        room = max(20, width - left - 1)
        lines = [] if not isinstance(value, Commands) else [line for c in value.commands for line in _typed(c, room)]
        note = value.note if isinstance(value, Commands) else value
        if lines and note and len(lines[-1]) + len(note) + 3 <= room:  # behind the last command, as its shell takes it
            lines[-1] += f" # {note}"
            note = ""
        lines += [f"# {line}" for line in _wrapped(note, room - 2)] if lines else _wrapped(note, room)
        first, *more = lines or [""]
        yield Line(f"{name + ':':<{left}} {first}", name=len(name) + 1)
        yield from (Line(f"{'':<{left}} {line}") for line in more)


def _typed(command: str, width: int) -> list[str]:
    r"""A command that can be pasted: a line that is too long goes on behind a backslash, words in quotes stay whole.

    What it is for may stand behind it as a comment of the shell, "  # ...": before it where there is no room.

    >>> for line in _typed("planner optimize 'my net.yaml' --gpus 16 --batch 2048  # once more", 36):
    ...     print(line)
    planner optimize 'my net.yaml' \
      --gpus 16 --batch 2048 # once more
    """
    command, _, why = command.partition("  # ")
    lines = [command]
    if len(command) > width:
        lines = [""]
        for word in map(shlex.quote, shlex.split(command)):
            if lines[-1].strip() and len(lines[-1]) + len(word) + 3 > width:
                lines[-1] += " \\"
                lines.append(f"  {word}")
            else:
                lines[-1] += f" {word}" if lines[-1] else word
    if not why:
        return lines
    if len(lines[-1]) + len(why) + 3 > width:
        return [f"# {why}", *lines]
    return [*lines[:-1], f"{lines[-1]} # {why}"]


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


def _report_lines(blocks: Sequence[Block], width: int | None) -> Iterator[Line]:
    """A report of at most ``width`` characters (None: sentences still wrap at 120); an empty line before most."""
    for i, block in enumerate(blocks):  # plain sentences and what a heading is about follow at once
        if i and not (isinstance(block, Sentence) and not block.strong) and not isinstance(blocks[i - 1], Heading):
            yield Line("")
        if isinstance(block, Table):
            yield from table_lines(block, width)
            yield from (Line(line) for text in block.caption for line in _wrapped(text, width or 120))
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
            parts += [_table(block), *map(_escaped, block.caption)]
        elif isinstance(block, Facts):
            parts.append("\n".join(f"- **{_escaped(name)}**: {_fact(value)}" for name, value in block.pairs))
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


def _fact(value: str) -> str:
    """A value; commands as code."""
    if not isinstance(value, Commands):
        return _escaped(value)
    return "; ".join(filter(None, (*(f"`{command}`" for command in value.commands), _escaped(value.note))))


def _escaped(text: str) -> str:
    for character in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(character, "\\" + character)
    return text
