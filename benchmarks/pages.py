"""Sections of the documentation that benchmarks write, and the folder of the measurements that they read."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["measurements", "put", "table"]


def measurements() -> Path:
    """The folder with the tables of measurements; PLANNER_REFERENCE_DATA names it or the folder above it."""
    given = os.environ.get("PLANNER_REFERENCE_DATA")
    folder = Path(given or "")
    folder = folder / "measurements" if (folder / "measurements").is_dir() else folder
    if not given or not any(folder.glob("*.csv")):
        where = f" at {folder}" if given else ""
        print(f"tables of measurements not found{where}; set PLANNER_REFERENCE_DATA", file=sys.stderr)
        raise SystemExit(2)
    return folder


def table(folder: Path, name: str) -> Path:
    """A table of measurements: of this folder, else of the reference data.

    >>> table(Path("data"), "vtrain")
    PosixPath('data/vtrain.csv')
    """
    own = Path(__file__).with_name(f"{name}.csv")
    return own if own.exists() else folder / f"{name}.csv"


def put(page: Path, begin: str, text: str, end: str) -> None:
    """Replace what stands between two marks of a page."""
    head, mark, rest = page.read_text(encoding="utf-8").partition(begin)
    _, close, tail = rest.partition(end)
    if not mark or not close:
        raise SystemExit(f"{page} lacks the marks {begin} ... {end}")
    page.write_text(f"{head}{begin}\n\n{text}\n\n{end}{tail}", encoding="utf-8")
