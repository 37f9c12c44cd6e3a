"""Writes a folder in one step: it is complete or absent, and nothing of the user's is ever replaced."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from planner.core.errors import OutputError
from planner.exporters.export import MANIFEST

__all__ = ["check_folder", "write_folder"]


def check_folder(folder: Path, *, force: bool) -> None:
    """Refuse a folder that must not be written; leaves nothing behind.

    Parameters
    ----------
    folder : Path
    force : bool
        Whether an earlier export may be replaced. What else is there stays.

    Raises
    ------
    OutputError
    """
    try:
        target = folder.resolve()
        if not target.name:
            raise OutputError(f"{folder}: cannot be written: is the root of the file system")
        if target.exists() and not target.is_dir():
            raise OutputError(f"{folder}: cannot be written: is a file, not a folder")
        if target.exists() and any(target.iterdir()):
            _check_replaceable(folder, target, force=force)
        if not target.parent.is_dir():
            raise OutputError(f"{folder}: cannot be written: there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise OutputError(f"{folder}: cannot be written: permission denied")
    except OutputError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # a loop of links, a name that is too long, a NUL character
        raise OutputError(f"{folder}: cannot be written: {getattr(error, 'strerror', None) or error}") from None


def _check_replaceable(folder: Path, target: Path, *, force: bool) -> None:
    if not force:
        raise OutputError(f"{folder}: exists and is not empty; --force replaces an earlier export")
    known = _files_of_export(target)
    if known is None:
        raise OutputError(f"{folder}: holds no {MANIFEST} of an earlier export, so --force does not replace it")
    others = sorted(path.name for path in target.iterdir() if path.name not in known)
    if others:
        listed = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
        raise OutputError(
            f"{folder}: holds files that are no part of the export, so --force does not replace it: {listed}"
        )


def _files_of_export(target: Path) -> frozenset[str] | None:
    try:
        document = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        files = document["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return frozenset(name for name in files if isinstance(name, str)) if isinstance(files, list) else None


def write_folder(folder: Path, files: Mapping[str, str], *, force: bool) -> None:
    """Write files into a new folder that takes its place in one step; scripts are made executable.

    Parameters
    ----------
    folder : Path
    files : mapping
        Name -> text.
    force : bool
        As `check_folder`, which is asked again.

    Raises
    ------
    OutputError
    """
    check_folder(folder, force=force)
    target = folder.resolve()
    token = os.urandom(6).hex()
    fresh, old = target.parent / f".planner-{token}.tmp", target.parent / f".planner-{token}.old"
    try:
        fresh.mkdir()
        for name, text in files.items():
            path = fresh / name
            with path.open("x", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            if name.endswith(".sh"):
                path.chmod(path.stat().st_mode | 0o111 & ~_umask())
        _swap(fresh, target, old)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # gone after the swap; left over after any failure, Ctrl-C included


def _swap(fresh: Path, target: Path, old: Path) -> None:
    if not target.exists():
        fresh.rename(target)
        return
    target.rename(old)
    try:
        fresh.rename(target)
    except BaseException:
        old.rename(target)
        raise
    with contextlib.suppress(OSError):
        shutil.rmtree(old)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
