"""Reads large JSON files within a size limit, and finds the line and column of a value when there is something to say about it."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.core.errors import FileProblem, InputFileError
from planner.files.documents import Location, location_text
from planner.files.text import read_bytes

__all__ = ["MAX_BYTES", "JsonFile", "read_json_file"]

# A graph of 100,000 operators takes about 25 MB; a hundred times the largest public workload.
MAX_BYTES = 64 * 2**20

_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder(parse_int=float)  # only where values end
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFile:
    """A parsed file; numbers may be infinite or NaN, because their reader can say where they stand."""

    path: Path
    text: str
    sha256: str
    content: Any

    def problem(self, location: Location, message: str) -> FileProblem:
        """Say that something is wrong at a location, or as near to it as the file goes."""
        line, column = _line_and_column(self.text, _offset(self.text, location))
        return FileProblem(path=self.path, line=line, column=column, where=location_text(location), message=message)


def read_json_file(path: Path) -> JsonFile:
    """Read a JSON file.

    Raises
    ------
    InputFileError
        Missing, unreadable, larger than `MAX_BYTES`, not UTF-8, not JSON (with line and column), or with a key given twice.
    """
    data = read_bytes(path, MAX_BYTES, "a workload")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - (before.rfind(b"\n") + 1) + 1
        raise _failure(path, "is not UTF-8 text", before.count(b"\n") + 1, column) from None
    if not text.strip():
        raise _failure(path, "is empty")

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            raise _DuplicateError
        return result

    try:
        with _no_collections():
            content = json.loads(text, object_pairs_hook=without_duplicates, parse_int=_whole)
    except json.JSONDecodeError as error:
        cut = " (the file ends too early)" if error.pos >= len(text.rstrip()) else ""
        raise _failure(path, f"is not JSON: {error.msg}{cut}", error.lineno, error.colno) from None
    except RecursionError:
        raise _failure(path, "is nested too deeply") from None
    except _DuplicateError:
        key, offset = _first_duplicate(text)
        raise _failure(path, f"duplicate key '{key}'", *_line_and_column(text, offset)) from None
    return JsonFile(path=path, text=text, sha256=hashlib.sha256(data).hexdigest(), content=content)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Do not look for cycles, of which parsed JSON has none: 14 MB take 0.34 s to read instead of 0.59 s."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _DuplicateError(Exception):
    """An object has a key twice; where, is looked up then."""


def _line_and_column(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _whole(digits: str) -> int | float:
    """Whole numbers that no count or identifier needs become floats, which the reader's range checks see."""
    return int(digits) if len(digits) <= 18 else float(digits)


def _failure(path: Path, message: str, line: int = 0, column: int = 0) -> InputFileError:
    return InputFileError([FileProblem(path=path, line=line, column=column, message=message)])


def _first_duplicate(text: str) -> tuple[str, int]:
    """First key that an object has twice, and where; the text is known to be JSON with one."""
    open_keys: list[set[str] | None] = []  # per open bracket; None: a list
    position = 0
    while True:
        match = _TOKEN.search(text, position)
        assert match is not None, "no key comes twice"
        position = match.end()
        if match[0] in "[{":
            open_keys.append(set() if match[0] == "{" else None)
        elif match[0] in "]}":
            open_keys.pop()
        elif text.startswith(":", _skip_space(text, position)):
            keys, key = open_keys[-1], str(json.loads(match[0], strict=False))
            assert keys is not None, "a key outside of an object"
            if key in keys:
                return key, match.start()
            keys.add(key)


def _offset(text: str, location: Sequence[str | int]) -> int:
    """Where a value begins; the place of what holds it where the file has no such value."""
    position = _skip_space(text, 0)
    for step in location:
        inner = next((start for name, start in _members(text, position) if name == step), None)
        if inner is None:
            return position
        position = inner
    return position


def _members(text: str, position: int) -> Iterator[tuple[str | int, int]]:
    """Keys of an object, or indices of a list, and where each value begins; the text is known to be JSON."""
    opening = text[position]
    if opening not in "{[":
        return
    position, index = _skip_space(text, position + 1), 0
    while text[position] not in "]}":
        name: str | int = index
        if opening == "{":
            name, position = _DECODER.raw_decode(text, position)
            position = _skip_space(text, _skip_space(text, position) + 1)  # past the colon
        yield name, position
        position = _skip_space(text, _DECODER.raw_decode(text, position)[1])
        position = _skip_space(text, position + 1) if text[position] == "," else position
        index += 1


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
