"""Reports as HTML for notebooks, which have styles of their own."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from planner.core.blocks import Block, Facts, Heading, Table

_MOST_ROWS = 60  # of a table in a notebook; the rest is counted
# A number with its unit stays on one line.
_LEFT, _RIGHT = 'style="text-align: left"', 'style="text-align: right; white-space: nowrap"'


def html_of(blocks: Sequence[Block]) -> str:
    """Write a report as a fragment of HTML without styles or scripts of its own: a notebook has its own.

    Every text is escaped, and a long table ends in the number of rows left out.
    """
    parts = []
    for block in blocks:
        if isinstance(block, Table):
            parts.append(_table(block))
        elif isinstance(block, Facts):
            rows = "".join(
                f'<tr><th style="text-align: left; vertical-align: top">{escape(name)}</th>'
                f'<td style="text-align: left">{escape(value)}</td></tr>'
                for name, value in block.pairs
            )
            parts.append(f"<details><summary>Details</summary><table>{rows}</table></details>")
        elif isinstance(block, Heading):
            parts.append(f"<h4>{escape(block.text)}</h4>")
        else:
            text = escape(block.text)
            parts.append(f"<p><strong>{text}</strong></p>" if block.strong else f"<p>{text}</p>")
    return f"<div>{''.join(parts)}</div>"


def _table(table: Table) -> str:
    def titled(title: str, unit: str) -> str:
        return "<br>".join(escape(text) for text in (*title.split("\n"), *([unit] if unit else [])))

    head = "".join(f"<th>{titled(column.title, column.unit)}</th>" for column in table.columns)
    rows = []
    for row in range(min(table.num_rows, _MOST_ROWS)):
        cells = "".join(
            f"<td {_LEFT if column.is_text else _RIGHT}>{escape(column.cells[row])}</td>" for column in table.columns
        )
        rows.append(f"<tr>{cells}</tr>")
    left = table.num_rows - _MOST_ROWS
    more = f"<p>and {left} more rows</p>" if left > 0 else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{more}"
