"""Blocks of a report as HTML: what people read on a terminal, on a page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.core.blocks import Block, Facts, Heading, Sentence, Table
from planner.report.page import Cell, escaped, facts, table

__all__ = ["block_html", "table_html"]

_NUMBER = re.compile(r"[-+<x]?([\d,]*\.?\d+(?:e[-+]?\d+)?)")


def block_html(block: Block, *, without: Sequence[str] = ()) -> str:
    """One block.

    Parameters
    ----------
    block : Block
    without : sequence of str
        Facts that a page shows in another form.
    """
    if isinstance(block, Heading):
        return f"<h2>{escaped(block.text)}</h2>"
    if isinstance(block, Sentence):
        text = escaped(block.text)
        return f'<p class="answer"><strong>{text}</strong></p>' if block.strong else f"<p>{text}</p>"
    if isinstance(block, Facts):
        kept = [pair for pair in block.pairs if pair[0] not in without]
        return facts(kept) if kept else ""
    return table_html(block)


def table_html(block: Table, *, cards: bool = False) -> str:
    """A table that can be sorted, whatever its columns hold; the sum stays at the end.

    Parameters
    ----------
    block : Table
    cards : bool
        Whether rows become cards on narrow screens, under the words of the flexible column.
    """
    columns = [(_title(column.title, column.unit), "") for column in block.columns]
    text = [n for n, column in enumerate(block.columns) if column.is_text]
    rows = []
    for r in range(block.num_rows):
        is_total = block.total and r == block.num_rows - 1
        rows.append(
            [
                Cell(column.cells[r].strip(), None if is_total else _value(column.cells[r], is_text=column.is_text))
                for column in block.columns
            ]
        )
    bars = [n for n, column in enumerate(block.columns) if not column.title]  # of letters, for terminals
    keep = [n for n in range(len(block.columns)) if n not in bars]
    return table(
        [columns[n] for n in keep],
        [[row[n] for n in keep] for row in rows],
        text=[keep.index(n) for n in text if n in keep],
        broad=next((keep.index(n) for n in keep if cards and block.columns[n].flexible), None),
    )


def _title(title: str, unit: str) -> str:
    words = title.replace("\n", " ")
    if words.endswith(" to"):  # "gap to", "first"
        return f"{words} {unit}"
    return f"{words} ({unit})" if unit else words


def _value(text: str, *, is_text: bool) -> float | str | None:
    """What a cell is sorted by.

    >>> _value("1,234", is_text=False), _value("76.5 / 80 GiB", is_text=False), _value("-", is_text=False), _value("", is_text=False)
    (1234.0, 76.5, None, None)
    >>> _value("-3.5 %", is_text=False), _value("+0.061 %", is_text=False)
    (-3.5, 0.061)
    """
    if is_text:
        return text
    found = _NUMBER.match(text.strip())
    if not found:
        return None
    number = float(found[1].replace(",", ""))
    return -number if text.strip().startswith("-") else number
