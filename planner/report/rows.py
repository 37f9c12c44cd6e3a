"""Tables made from rows of equal dataclasses: names become titles, the unit is read from the end of the name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from planner.core.blocks import Column, Table
from planner.core.numbers import byte_unit, significant, time_unit

__all__ = ["rows_table"]


def rows_table(rows: Sequence[Any]) -> Table:
    """Show rows, one column per field; columns without any content are left out.

    Times (``..._s``) share one unit, and so do sizes (``..._bytes``); a zero is an empty cell.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Row:
    ...     name: str
    ...     forward_s: float
    >>> [(c.title, c.unit, c.cells) for c in rows_table([Row("qkv", 0.002), Row("norm", 0.0)]).columns]
    [('name', '', ('qkv', 'norm')), ('forward', 'ms', ('2.00', ''))]
    """
    assert rows, "a table without rows"
    names = [item.name for item in fields(rows[0])]
    times = time_unit(_largest(rows, names, "_s"))
    sizes = byte_unit(_largest(rows, names, "_bytes"))
    columns = []
    for position, name in enumerate(names):
        values = [getattr(row, name) for row in rows]
        title, unit, cell = _format(name, times.name, times.size, sizes.name, sizes.size)
        cells = tuple(cell(value) for value in values)
        if any(cells):
            is_text = all(isinstance(value, str) for value in values)
            columns.append(
                Column(title=title, unit=unit, cells=cells, is_text=is_text, flexible=is_text, priority=position)
            )
    return Table(columns=tuple(columns))


def _largest(rows: Sequence[Any], names: Sequence[str], ending: str) -> float:
    return max((float(getattr(row, name)) for row in rows for name in names if name.endswith(ending)), default=0.0)


def _format(
    name: str, time_name: str, time_size: float, byte_name: str, byte_size: float
) -> tuple[str, str, Callable[[Any], str]]:
    """Title, unit and cell of a column."""

    def words(ending: str) -> str:
        return name.removesuffix(ending).replace("_", " ")

    if name.endswith("_bytes"):
        return words("_bytes"), byte_name, lambda v: "" if v == 0 else significant(v / byte_size)
    if name.endswith("_flop"):
        return words("_flop"), "TFLOP", lambda v: "" if v == 0 else significant(v / 1e12)
    if name.endswith("_s") and not name.endswith("_per_s"):
        return words("_s"), time_name, lambda v: "" if v == 0 else significant(v / time_size)
    return words(""), "", _plain


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return str(value)
