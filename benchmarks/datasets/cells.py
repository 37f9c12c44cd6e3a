"""A canonical row while it is made."""

from __future__ import annotations

from benchmarks.datasets.reading import Row

__all__ = ["Cells"]


class Cells(dict[str, str]):
    """Column of `planner.measurements.columns` -> text; what is not stated is not there.

    >>> cells = Cells()
    >>> cells.put("tp", 8)
    >>> cells.put("sp", True)
    >>> cells.put("pp", None)
    >>> cells
    {'tp': '8', 'sp': 'yes'}
    """

    def put(self, name: str, value: str | float | bool | None) -> None:
        """Write a cell; nothing where the value is None or empty."""
        if value is None or value == "":
            return
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, float):
            value = repr(value) if value != int(value) else str(int(value))
        self[name] = str(value)

    def counts(self, row: Row, *names: str) -> None:
        """Copy whole numbers."""
        for name in names:
            self.put(name, row.count(name))

    def numbers(self, row: Row, *names: str) -> None:
        """Copy positive numbers."""
        for name in names:
            self.put(name, row.positive(name))

    def texts(self, row: Row, *names: str) -> None:
        """Copy texts as they are."""
        for name in names:
            self.put(name, row.text(name))
