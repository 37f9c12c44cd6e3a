"""Reads bytes or text from a file that may be anything, within a limit on its size."""

from __future__ import annotations

import hashlib
from pathlib import Path

from planner.core.errors import FileProblem, InputFileError

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


def read_text(path: Path, most_bytes: int = MAX_BYTES, what: str = "a file that is read here") -> tuple[str, str]:
    """Read a text file within a size limit.

    Parameters
    ----------
    path, most_bytes, what
        As `read_bytes`.

    Returns
    -------
    text, sha256 : str
        The content without a byte order mark, and the hash of the file's bytes.

    Raises
    ------
    InputFileError
        Missing, a folder, unreadable, too large or not UTF-8.
    """
    data = read_bytes(path, most_bytes, what)
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


def failure(path: Path, message: str, line: int = 0, column: int = 0) -> InputFileError:
    """One thing wrong in a file, as an error."""
    return InputFileError([FileProblem(path=path, line=line, column=column, message=message)])
