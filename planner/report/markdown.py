"""Reports as Markdown, for notes and pull requests."""

from __future__ import annotations

from collections.abc import Sequence

from planner.core.blocks import Block, Facts, Heading, Sentence, Table

__all__ = ["markdown_text"]


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
