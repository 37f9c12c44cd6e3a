"""What a step waits for the network, link by link, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from costmodel.hardware.cluster import LinkRow
from planner.core.blocks import Block, Column, Heading, Table
from planner.core.numbers import percent, significant, time_unit
from planner.report.waterfall import waterfall

__all__ = ["link_blocks", "links_document"]


def link_blocks(rows: Sequence[LinkRow], step_time_s: float) -> list[Block]:
    """A table: traffic, its groups, the slowest level of links that they span, and what the step waits; nothing without any."""
    if not rows:
        return []
    waiting = [row.waiting_s for row in rows]
    unit = time_unit(max(*waiting, 1e-9) if any(waiting) else step_time_s)

    def column(title: str, cells: Sequence[str], priority: int, *, unit: str = "", text: bool = False) -> Column:
        return Column(title=title, unit=unit, cells=tuple(cells), priority=priority, is_text=text)

    total = sum(waiting)
    table = Table(
        columns=(
            column("traffic", [*(row.traffic for row in rows), "all of it"], 0, text=True),
            column("ranks", [*(f"{row.group:,}" for row in rows), ""], 3, unit="of a group"),
            column("stride", [*(f"{row.stride:,}" for row in rows), ""], 5),
            column("slowest link", [*(row.level for row in rows), ""], 0, text=True),
            column("of it", [*(significant(row.bytes_per_s / 1e9) for row in rows), ""], 2, unit="GB/s per rank"),
            column(
                "waits",
                [*(significant(s / unit.size) for s in waiting), significant(total / unit.size)],
                0,
                unit=unit.name,
            ),
            column(
                "share", [*(percent(s / step_time_s) for s in waiting), percent(total / step_time_s)], 1, unit="of step"
            ),
            column("", waterfall(waiting, total) if total > 0 else [""] * (len(rows) + 1), 4, text=True),
        ),
        total=True,
    )
    return [Heading("What the step waits for the network, by link"), table]


def links_document(rows: Sequence[LinkRow]) -> list[dict[str, Any]]:
    """The same as plain data."""
    return [asdict(row) for row in rows]
