"""Reads bytes, text or JSON from a file that may be anything, within a limit on its size."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from planner.core.errors import FileProblem, InputFileError

__all__ = ["MAX_BYTES", "failure", "read_bytes", "read_json", "read_text"]

MAX_BYTES = 8 * 2**20


def read_bytes(path: Path, most_bytes: int, what: str) -> bytes:
    """Read a regular file within a size limit.

    Parameters
    ----------
    path : Path
    most_bytes : int
    what : str
        What the limit is of, for the message.

    Raises
    ------
    InputFileError
        Missing, a folder, unreadable or too large.
    """
    try:
        if path.is_dir():
            raise failure(path, "is a folder, not a file")
        if not path.is_file() and path.exists():
            raise failure(path, "is not a regular file")
        with path.open("rb") as stream:
            data = stream.read(most_bytes + 1)
    except FileNotFoundError:
        raise failure(path, "no such file") from None
    except InputFileError:
        raise
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise failure(path, f"cannot be read: {reason}") from None
    if len(data) > most_bytes:
        raise failure(path, f"is larger than {most_bytes // 2**20} MiB, the limit of {what}")
    return data


def read_text(path: Path) -> tuple[str, str]:
    """Read a text file within the size limit.

    Returns
    -------
    text, sha256 : str
        The content without a byte order mark, and the hash of the file's bytes.

    Raises
    ------
    InputFileError
        Missing, a folder, unreadable, too large or not UTF-8.
    """
    data = read_bytes(path, MAX_BYTES, "a file that is read here")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise failure(path, "is UTF-16 text; save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise failure(
            path, f"is not UTF-8 text (byte 0x{data[error.start]:02x})", before.count(b"\n") + 1, column
        ) from None
    if not text.strip():
        raise failure(path, "is empty")
    return text, hashlib.sha256(data).hexdigest()


def read_json(path: Path) -> tuple[Any, str]:
    """Read a JSON file.

    Returns
    -------
    content : dict, list, str, int, float, bool or None
    sha256 : str
        Hash of the file's bytes.

    Raises
    ------
    InputFileError
        It cannot be read, is not JSON (with line and column), has duplicate keys or numbers that are not finite.
    """
    text, sha256 = read_text(path)

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            seen: set[str] = set()
            duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise failure(path, f"duplicate key '{duplicate}'")
        return result

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise failure(path, f"'{number[:24]}' is not a finite number")
        return value

    def whole(number: str) -> int:
        if len(number) > 20:
            raise failure(path, f"the number {number[:24]}... is too large")
        return int(number)

    try:
        content = json.loads(
            text, object_pairs_hook=without_duplicates, parse_float=finite, parse_int=whole, parse_constant=finite
        )
    except json.JSONDecodeError as error:
        raise failure(path, f"is not JSON: {error.msg}", error.lineno, error.colno) from None
    except RecursionError:
        raise failure(path, "is nested too deeply") from None
    return content, sha256


def failure(path: Path, message: str, line: int = 0, column: int = 0) -> InputFileError:
    """One thing wrong in a file, as an error."""
    return InputFileError([FileProblem(path=path, line=line, column=column, message=message)])
