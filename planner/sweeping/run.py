"""Runs a grid: what the journal has is taken from it, the rest is answered and written down row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.sweeping.answer import COLUMNS
from planner.sweeping.grid import Cell
from planner.sweeping.here import answers_here
from planner.sweeping.journal import Journal

__all__ = ["Swept", "journal_of", "run"]

Progress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Rows in the order of the cells, as far as the sweep came."""

    rows: tuple[dict[str, Any], ...]
    total: int
    taken: int  # of the journal
    interrupted: bool = False


def journal_of(output: Path) -> Path:
    """Where the journal of an output is.

    >>> journal_of(Path("runs/out.csv")).as_posix()
    'runs/out.csv.journal'
    """
    return output.with_name(output.name + ".journal")


def run(
    cells: Sequence[Cell],
    journal: Journal,
    *,
    jobs: int = 1,
    dask: str | None = None,
    progress: Progress | None = None,
) -> Swept:
    """Answer every cell that the journal does not have.

    Parameters
    ----------
    cells : sequence of Cell
    journal : Journal
    jobs : int
        Processes of this machine.
    dask : str, optional
        Address of a Dask scheduler, whose workers answer instead.
    progress : function of (message, share done), optional

    Returns
    -------
    Swept
        After Ctrl-C, with what is done.
    """
    known = {key for key, row in journal.rows.items() if row.get("status") != "failed"}
    missing = list({cell.key: cell for cell in cells if cell.key not in known}.values())
    taken = sum(cell.key in known for cell in cells)
    say = progress or (lambda *_: None)
    interrupted = False
    try:
        done = len(cells) - len(missing)
        say(f"cell {done} of {len(cells)}", done / max(len(cells), 1))
        for cell, row in _answers(missing, jobs, dask):
            journal.add(cell.key, row)
            done += 1
            say(f"cell {done} of {len(cells)}: {cell.words}", done / len(cells))
    except KeyboardInterrupt:
        interrupted = True
    # A journal of an earlier version lacks columns that were added since.
    blank = dict.fromkeys(COLUMNS)
    rows = tuple(blank | journal.rows[cell.key] for cell in cells if cell.key in journal.rows)
    return Swept(rows=rows, total=len(cells), taken=taken, interrupted=interrupted)


def _answers(cells: Sequence[Cell], jobs: int, dask: str | None) -> Iterator[tuple[Cell, dict[str, Any]]]:
    if not cells:
        return iter(())
    if dask is None:
        return answers_here(cells, jobs)
    from planner.sweeping.distributed import answers_of_dask

    return answers_of_dask(cells, dask)
