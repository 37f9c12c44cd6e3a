"""Markdown keeps what a table in a terminal shows."""

from __future__ import annotations

from planner.core.blocks import Column, Table
from planner.report.text import markdown_text


def test_waterfalls_begin_where_the_part_before_ends() -> None:
    table = Table(columns=(Column(title="part", cells=("a", "b")), Column(title="", cells=("##", "  |"), is_text=True)))
    assert markdown_text([table]).splitlines()[2:] == ["| a | ## |", "| b | &nbsp;&nbsp;\\| |"]


def test_empty_cells_stay_empty() -> None:
    table = Table(columns=(Column(title="x", cells=("", "  ")),))
    assert markdown_text([table]).splitlines()[2:] == ["|  |", "|  |"]
