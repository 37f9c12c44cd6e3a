"""Rows that are done, in a database (SQLite) beside the output: what a killed sweep has is never computed again.

Every row is on the disk before the next begins. While a journal is open no other sweep can open it.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from planner.core.errors import OutputError
from planner.files.output import made_folders

_IS_OURS = 0x5EEB  # application_id of the database
_SAID = {
    sqlite3.SQLITE_BUSY: "another sweep is writing to it",
    sqlite3.SQLITE_NOTADB: "is no journal of a sweep, or one of an earlier version; choose another --output, or remove it",
    sqlite3.SQLITE_CORRUPT: "is damaged; remove it to start over",
}


class Journal:
    """Rows by the key of their cell; a context manager that keeps other sweeps out.

    Parameters
    ----------
    path : Path or None
        None: rows are kept in memory only.
    fresh : bool
        Start without rows.

    Raises
    ------
    OutputError
        The file is no journal, is damaged, belongs to another sweep that runs now, or cannot be written.
    """

    def __init__(self, path: Path | None, *, fresh: bool = False) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        self._database: sqlite3.Connection | None = None
        if path is not None:
            try:
                with self._errors(), made_folders(path.parent):
                    self._database = sqlite3.connect(path, timeout=0.0, isolation_level=None)
                    self._open(self._database, fresh=fresh)
            except BaseException:
                self._disconnect()
                raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of it says more
            raise OutputError(f"{self.path}: {_SAID.get(code, f'cannot be written: {error}')}") from None
        except OSError as error:
            raise OutputError(f"{self.path}: cannot be written: {error.strerror or error}") from None

    def _open(self, database: sqlite3.Connection, *, fresh: bool) -> None:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("BEGIN EXCLUSIVE")
        if database.execute("PRAGMA application_id").fetchone() != (_IS_OURS,):
            if database.execute("SELECT name FROM sqlite_master").fetchall():
                raise OutputError(f"{self.path}: {_SAID[sqlite3.SQLITE_NOTADB]}")
            database.execute(f"PRAGMA application_id = {_IS_OURS}")
            database.execute("CREATE TABLE rows (key TEXT PRIMARY KEY, row TEXT)")
        if fresh:
            database.execute("DELETE FROM rows")
        database.execute("COMMIT")
        try:
            self.rows = {key: json.loads(row) for key, row in database.execute("SELECT key, row FROM rows")}
        except (ValueError, sqlite3.OperationalError):  # no JSON, or not even text
            raise OutputError(f"{self.path}: {_SAID[sqlite3.SQLITE_CORRUPT]}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let other sweeps in; a journal without a row is removed."""
        if self._database is not None and self.path is not None and not self.rows:
            # Another may have removed it, or the folder may not be written to any more.
            with contextlib.suppress(OSError):
                self.path.unlink()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Keep a row, on the disk before this returns.

        Raises
        ------
        OutputError
            It cannot be written (a full disk); the rows before it stay as they are.
        """
        self.rows[key] = row
        if self._database is not None:
            with self._errors():
                text = json.dumps(row, allow_nan=False)
                self._database.execute("INSERT OR REPLACE INTO rows VALUES (?, ?)", (key, text))
