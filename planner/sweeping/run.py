"""Runs a grid: what the journal has is taken from it, the rest is answered in this process or in many, and written down row by row."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.sweeping.answer import COLUMNS, answer, row_of_question
from planner.sweeping.grid import Cell
from planner.sweeping.journal import Journal
from strategies.limits import Progress

Work = Callable[[Mapping[str, Any]], dict[str, Any]]

# How often a cell may take its process with it before it is given up.
_TRIES = 2


def answers_here(cells: Sequence[Cell], jobs: int, work: Work = answer) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Answer cells, each once, in the order in which they are done.

    Parameters
    ----------
    cells : sequence of Cell
    jobs : int
        Processes; 1 is this one.
    work : function
        Answers the question of a cell; of the top level of a module, so that other processes find it.

    Notes
    -----
    A process that dies (killed for its memory, say) is replaced. The cells that were under way run again one at a time, so that the
    guilty one is known: it gets a row that says so, and the others go on.
    """
    if jobs == 1 or len(cells) < 2:
        for cell in cells:
            yield cell, work(cell.question)
        return
    suspects: list[Cell] = []
    left = list(cells)
    while left:
        done: set[str] = set()
        broken = False
        for cell, row in _in_pool(left, jobs, work):
            if row is None:
                broken = True
                suspects.append(cell)
            else:
                done.add(cell.key)
                yield cell, row
        gone = done | {cell.key for cell in suspects}
        left = [cell for cell in left if cell.key not in gone]
        if not broken:
            break
    for cell in suspects:
        yield cell, _tried_alone(cell, work)


def _tried_alone(cell: Cell, work: Work) -> dict[str, Any]:
    for _ in range(_TRIES):
        for _, row in _in_pool([cell], 1, work):
            if row is not None:
                return row
    return row_of_question(
        cell.question, "failed", "the process that searched it died each time, perhaps for want of memory"
    )


def _in_pool(cells: Sequence[Cell], jobs: int, work: Work) -> Iterator[tuple[Cell, dict[str, Any] | None]]:
    """Rows as they are done; None for the cells that were under way when a process died, after which the rest is left undone."""
    # Started afresh: a copy of this process would have its threads' locks, and solvers have threads.
    pool = ProcessPoolExecutor(
        max_workers=min(jobs, len(cells)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,  # for systems that cannot hold a signal back
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    waiting = iter(cells)
    under_way: dict[Future[dict[str, Any]], Cell] = {}
    try:
        while True:
            # Few more than can run, so that those under way are known.
            for cell in itertools.islice(waiting, jobs - len(under_way)):
                with _interrupts_held():
                    under_way[pool.submit(work, cell.question)] = cell
            if not under_way:
                return
            finished, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in finished:
                cell = under_way.pop(future)
                yield cell, future.result()
    except BrokenProcessPool:
        yield cell, None
        for future, other in under_way.items():
            ended = future.done() and future.exception() is None
            yield other, future.result() if ended else None
    finally:
        _end(pool)


def _end(pool: ProcessPoolExecutor) -> None:
    """Stop at once, whatever the processes do: rows that are not there yet are searched again."""
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        if process.is_alive():
            process.terminate()


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes that start here are never interrupted: Ctrl-C reaches every process of a terminal, and this one answers for all."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
        say(f"question {done} of {len(cells)}", done / max(len(cells), 1))
        for cell, row in _answers(missing, jobs, dask):
            journal.add(cell.key, row)
            done += 1
            say(f"question {done} of {len(cells)}: {cell.words}", done / len(cells))
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
