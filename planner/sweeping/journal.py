"""Rows that are done, one line each in a file beside the output: what a killed sweep has is never computed again.

Every line is one JSON object with the key of its cell, ends with a newline, and is on the disk (fsync) before the next begins. A line
without its newline was torn when the program died, and is cut off when the journal is opened again.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from planner.core.errors import OutputError

__all__ = ["Journal"]

_HEAD = {"planner_sweep": 1}


class Journal:
    """Rows by the key of their cell; a context manager that keeps other sweeps out.

    Parameters
    ----------
    path : Path or None
        None: rows are kept in memory only.

    Raises
    ------
    OutputError
        The file is no journal, is damaged before its last line, belongs to another sweep that runs now, or cannot be written.
    """

    def __init__(self, path: Path | None, *, fresh: bool = False) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        self._file: int | None = None
        self._opened = False  # it is a journal, and no other sweep's
        if path is None:
            return
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            self._lock()
            if fresh:
                os.ftruncate(self._file, 0)
            self._read()
            self._opened = True
        except OSError as error:
            self.close()
            raise self._error(error) from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let other sweeps in; a journal without a row is removed."""
        if self._file is not None:
            if self._opened and not self.rows:
                self._remove()
            os.close(self._file)
            self._file = None

    def _remove(self) -> None:
        assert self.path is not None
        with contextlib.suppress(OSError):  # another may have removed it, or the folder may not be written to any more
            self.path.unlink()

    def add(self, key: str, row: dict[str, Any]) -> None:
        """Keep a row, on the disk before this returns.

        Raises
        ------
        OutputError
            It cannot be written (a full disk); the rows before it stay as they are.
        """
        self.rows[key] = row
        if self._file is not None:
            try:
                self._append({"key": key, "row": row})
            except OSError as error:
                raise self._error(error) from None

    def _append(self, entry: dict[str, Any]) -> None:
        assert self._file is not None
        start = os.lseek(self._file, 0, os.SEEK_END)
        left = (json.dumps(entry, allow_nan=False) + "\n").encode()
        try:
            while left:
                left = left[os.write(self._file, left) :]
            os.fsync(self._file)
        except BaseException:  # what is half there would tear the next line, too
            os.ftruncate(self._file, start)
            raise

    def _lock(self) -> None:
        assert self._file is not None
        try:
            import fcntl
        except ImportError:  # a system without it has no two sweeps of one output by convention only
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"{self.path}: another sweep is writing to it") from None
        if not os.fstat(self._file).st_nlink:  # the other ended, and removed it, just before
            raise OutputError(f"{self.path}: another sweep is writing to it")

    def _read(self) -> None:
        assert self._file is not None
        content = b""
        os.lseek(self._file, 0, os.SEEK_SET)
        while block := os.read(self._file, 1 << 20):
            content += block
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:  # new, or torn within its first line
            if content and not json.dumps(_HEAD).encode().startswith(content):
                raise OutputError(f"{self.path}: is no journal of a sweep; choose another --output, or remove it")
            os.ftruncate(self._file, 0)
            self._append(_HEAD)
            return
        for number, line in enumerate(whole.splitlines()):
            self._take(number, line)
        os.ftruncate(self._file, len(whole))

    def _take(self, number: int, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if number == 0:
            if entry != _HEAD:
                raise OutputError(f"{self.path}: is no journal of a sweep; choose another --output, or remove it")
        elif isinstance(entry, dict) and isinstance(entry.get("row"), dict) and isinstance(entry.get("key"), str):
            self.rows[entry["key"]] = entry["row"]
        else:
            raise OutputError(f"{self.path}:{number + 1}: is damaged; --fresh starts over, or remove the line")

    def _error(self, error: OSError) -> OutputError:
        return OutputError(f"{self.path}: cannot be written: {error.strerror or error}")
