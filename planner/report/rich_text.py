"""The same reports on a terminal, through rich: colour, bold, ruled tables. The layout is that of the plain text."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from planner.core.blocks import Block, Facts, Heading, Sentence, Table
from planner.report.text import fact_lines, sentence_lines, table_lines

__all__ = ["rich_text"]


def rich_text(blocks: Sequence[Block], width: int, *, unicode: bool = True) -> str:
    """Write a report with terminal control codes.

    Parameters
    ----------
    blocks : sequence of Block
    width : int
        Characters of a line.
    unicode : bool
        Whether the terminal can show line-drawing characters.
    """
    # File names, plans and layer names are text, never markup or emoji codes.
    buffer = io.StringIO()
    console = Console(file=buffer, force_terminal=True, width=width, markup=False, emoji=False, highlight=False)
    for i, block in enumerate(blocks):
        if i and not (isinstance(block, Sentence) and not block.strong):
            console.print()
        if isinstance(block, Sentence):
            console.print(Text(block.text, style="bold" if block.strong else ""))
            continue
        for line in _lines(block, width, rule="\u2500" if unicode else "-"):
            console.print(line, soft_wrap=True)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _lines(block: Table | Facts | Heading, width: int, *, rule: str) -> list[Text]:
    if isinstance(block, Heading):
        return [Text(line, style="bold") for line in sentence_lines(block, width)]
    if isinstance(block, Facts):
        return [_fact(line) for line in fact_lines(block, width)]
    styles = {"header": "bold", "rule": "dim", "row": ""}
    return [
        Text(
            line.text.replace("-", rule) if line.kind == "rule" else line.text,
            style="bold green" if line.kind == "row" and line.row == block.highlight else styles[line.kind],
        )
        for line in table_lines(block, width)
    ]


def _fact(line: str) -> Text:
    if line.startswith(" "):
        return Text(line)
    name, colon, value = line.partition(":")
    return Text.assemble((name + colon, "dim"), value)
