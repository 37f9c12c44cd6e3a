"""Answers cells on an existing Dask cluster (extra ``dask``): the scheduler hands a pure function of plain data to its workers."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from planner.core.errors import UsageError
from planner.sweeping.answer import answer, row_of_question
from planner.sweeping.grid import Cell

# A scheduler answers within milliseconds; who waits longer has mistyped it.
CONNECT_S = 4.0
# Workers may still be starting.
WORKER_S = 30.0
# Workers that may die with a cell before it is given up.
_TRIES = 3


def answers_of_dask(cells: Sequence[Cell], address: str) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Answer cells, each once, in the order in which they are done.

    Parameters
    ----------
    cells : sequence of Cell
    address : str
        Of the scheduler: ``tcp://10.0.0.1:8786``.

    Raises
    ------
    UsageError
        The extra is missing, nobody answers, the scheduler goes away, or workers have no planner, or another version of it.
    """
    try:
        distributed = importlib.import_module("distributed")
    except ImportError:
        raise UsageError(
            "--dask: needs the package 'distributed'; install the planner with its extra: pip install 'paleo-planner[dask]'"
        ) from None
    client = _connect(distributed, address)
    try:
        try:
            client.wait_for_workers(1, timeout=WORKER_S)
        except TimeoutError:
            waited = f"the scheduler has no worker, and none came in {WORKER_S:.0f} s"
            raise UsageError(f"--dask {address}: {waited}") from None
        _check_workers(client)
        yield from _answers(distributed, client, cells)
    except (OSError, TimeoutError, distributed.comm.CommClosedError) as error:
        raise UsageError(
            f"--dask {address}: the scheduler went away ({_words(error)}); start the sweep again to go on"
        ) from None
    finally:
        client.close(timeout=2)


def _connect(distributed: Any, address: str) -> Any:
    try:
        asyncio.run(asyncio.wait_for(_identity(distributed, address), CONNECT_S))
        return distributed.Client(address, timeout=CONNECT_S)
    except (OSError, TimeoutError, ValueError, TypeError) as error:  # TypeError: TLS without certificates
        raise UsageError(f"--dask {address}: no scheduler answers there ({_words(error)})") from None


async def _identity(distributed: Any, address: str) -> None:
    """Ask a scheduler who it is. A client's own time limit does not end the wait for a program that accepts and says nothing."""
    arguments = distributed.Security().get_connection_args("client")
    remote = distributed.rpc(address, timeout=CONNECT_S, connection_args=arguments)
    try:
        await remote.identity()
    finally:
        await remote.close_rpc()


def _check_workers(client: Any) -> None:
    """Every worker that is there must answer as this process would."""
    from planner import __version__

    versions = client.run(_planner_version)
    wrong = {worker: version for worker, version in versions.items() if version != __version__}
    for worker, version in sorted(wrong.items()):
        has = "has no planner" if version is None else f"has planner {version}, this is {__version__}"
        raise UsageError(f"--dask: worker {worker} {has}; install the same version everywhere")


def _planner_version() -> str | None:
    try:
        from planner import __version__
    except ImportError:
        return None
    return __version__


def _answers(distributed: Any, client: Any, cells: Sequence[Cell]) -> Iterator[tuple[Cell, dict[str, Any]]]:
    # The key of a cell is that of its answer, so Dask computes no cell twice either.
    futures = {
        client.submit(answer, dict(cell.question), key=f"planner-{cell.key}", pure=True, retries=_TRIES): cell
        for cell in cells
    }
    try:
        for future in distributed.as_completed(list(futures)):
            cell = futures[future]
            if future.status == "finished":
                yield cell, future.result()
                continue
            if future.cancelled():
                raise TimeoutError("it gave up a cell that was asked for")
            error = future.exception()
            is_dead = isinstance(error, distributed.scheduler.KilledWorker)
            died = "the workers that searched it died each time, perhaps for want of memory"
            reason = died if is_dead else f"{type(error).__name__}: {_words(error)}"
            yield cell, row_of_question(cell.question, "failed", reason)
    finally:
        client.cancel([future for future in futures if not future.done()])


def _words(error: BaseException | None) -> str:
    return str(error).partition("\n")[0][:200] or type(error).__name__
