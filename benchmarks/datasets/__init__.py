"""Converters of published tables of measurements into the canonical rows that `planner validate` and `planner calibrate` read.

    python -m benchmarks.datasets convert TABLE.csv -o rows.csv
    python -m benchmarks.datasets list

A published table has its own names of columns, units, remarks in cells and names of devices, and its source says things that its cells do
not. Nothing of that is part of the planner: `docs/measurements.md` has the columns of a canonical row, and a cell that says something else
is refused there.
"""

from benchmarks.datasets.convert import Converted, convert, read

__all__ = ["Converted", "convert", "read"]
