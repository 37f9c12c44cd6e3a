"""Writes results so that a file is either old or complete, and finds out before a long search that it cannot be written."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from planner.core.errors import OutputError


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written later; leaves nothing behind. Missing folders are made when it is written.

    Raises
    ------
    OutputError
        A folder in place of the file or a file in place of a folder, no permission, a file system that is full or read-only.
    """
    target = _target(path)
    if target is None:
        return
    folder = there_of(target.parent)
    probe = _beside(folder / target.name)
    try:
        os.close(_create(probe))
        probe.unlink()
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {_reason(error, folder)}") from None


def there_of(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists (a file, where one is in the way)."""
    return next(above for above in (folder, *folder.parents) if os.path.exists(above))


@contextlib.contextmanager
def made_folders(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; where what follows fails, those that were missing go again."""
    missing = [above for above in (folder, *folder.parents) if not os.path.exists(above)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for above in missing:
            with contextlib.suppress(OSError):  # somebody else has put something there
                above.rmdir()
        raise


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in one step: a new file in the same folder takes the old one's place.

    Raises
    ------
    OutputError
    """
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """Write any file in one step, as `write_atomically` does.

    Raises
    ------
    OutputError
    """
    target = _target(path)
    if target is None:  # a pipe or a device has no old content to keep
        try:
            path.write_bytes(data)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from None
        return
    fresh = _beside(target)
    try:
        with made_folders(target.parent):
            try:
                with os.fdopen(_create(fresh), "wb") as stream:
                    if target.exists():
                        fresh.chmod(stat.S_IMODE(target.stat().st_mode))
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
                fresh.replace(target)
            finally:
                fresh.unlink(
                    missing_ok=True
                )  # gone after the replacement; left over after any failure, Ctrl-C included
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {_reason(error, there_of(target.parent))}") from None


def _target(path: Path) -> Path | None:
    """Where the bytes will be: links are followed, so that they stay links. None for what is no regular file."""
    try:
        target = path.resolve()
        if target.is_dir():
            raise OutputError(f"{path}: cannot be written: is a folder")
        if target.exists() and not target.is_file():
            return None
        if target.exists() and not os.access(target, os.W_OK):
            raise OutputError(f"{path}: cannot be written: permission denied")
    except OutputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links, a name that is too long, a NUL character
        raise OutputError(f"{path}: cannot be written: {error}") from None
    return target


def _beside(target: Path) -> Path:
    # Short, so that a long but legal file name stays legal.
    return target.parent / f".planner-{os.urandom(6).hex()}.tmp"


def _create(path: Path) -> int:
    # 0o666 less the user's umask, as any new file.
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)


def _reason(error: OSError, folder: Path) -> str:
    return f"{folder} is a file, not a folder" if folder.is_file() else error.strerror or str(error)
