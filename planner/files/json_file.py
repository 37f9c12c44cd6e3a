"""Reads JSON files, small and large, and finds the line and column of a value when there is something to say about it."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.core.errors import FileProblem
from planner.files.documents import Location, location_text
from planner.files.text import MAX_BYTES, failure, read_text

__all__ = ["MAX_WORKLOAD_BYTES", "JsonFile", "read_json_file", "read_workload"]

# A graph of 100,000 operators takes about 25 MB; a hundred times the largest public workload.
MAX_WORKLOAD_BYTES = 64 * 2**20

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
    problems: tuple[FileProblem, ...] = ()  # what cannot be read raises; `Document` has some

    @property
    def value(self) -> Any:
        """The content, as of `Document`."""
        return self.content

    def problem(self, location: Location, message: str, *, at_key: bool = False, where: str = "") -> FileProblem:
        """Say that something is wrong at a location, or as near to it as the file goes; ``where`` replaces the location in the text."""
        line, column = _line_and_column(self.text, _offset(self.text, location, at_key=at_key))
        where = where or location_text(location)
        return FileProblem(path=self.path, line=line, column=column, where=where, message=message)


def read_json_file(path: Path) -> JsonFile:
    """Read a JSON file of at most 8 MiB.

    Parameters
    ----------
    path : Path

    Raises
    ------
    InputFileError
        It cannot be read, is not JSON (with line and column), has a key twice or numbers that are not finite.
    """

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise failure(path, f"'{number[:24]}' is not a finite number")
        return value

    def whole(number: str) -> int:
        if len(number) > 20:
            raise failure(path, f"the number {number[:24]}... is too large")
        return int(number)

    return _parsed(
        path, MAX_BYTES, "a file that is read here", parse_float=finite, parse_int=whole, parse_constant=finite
    )


def read_workload(path: Path) -> JsonFile:
    """Read a JSON file of at most `MAX_WORKLOAD_BYTES` whose numbers may be infinite or NaN.

    Whole numbers that no count or identifier needs become floats, which the reader's range checks see.

    Raises
    ------
    InputFileError
        As `read_json_file`.
    """

    def whole(digits: str) -> int | float:
        return int(digits) if len(digits) <= 18 else float(digits)

    return _parsed(path, MAX_WORKLOAD_BYTES, "a workload", parse_int=whole)


def _parsed(path: Path, most_bytes: int, what: str, **hooks: Any) -> JsonFile:
    text, sha256 = read_text(path, most_bytes, what)

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            raise _DuplicateError
        return result

    try:
        with _no_collections():
            content = json.loads(text, object_pairs_hook=without_duplicates, **hooks)
    except json.JSONDecodeError as error:
        cut = " (the file ends too early)" if error.pos >= len(text.rstrip()) else ""
        raise failure(path, f"is not JSON: {error.msg}{cut}", error.lineno, error.colno) from None
    except RecursionError:
        raise failure(path, "is nested too deeply") from None
    except _DuplicateError:
        key, offset = _first_duplicate(text)
        raise failure(path, f"duplicate key '{key}'", *_line_and_column(text, offset)) from None
    return JsonFile(path=path, text=text, sha256=sha256, content=content)


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


def _offset(text: str, location: Location, *, at_key: bool) -> int:
    """Where a value, or its key, begins; the place of what holds it where the file has no such value."""
    key = value = _skip_space(text, 0)
    for step in location:
        inner = next((places for name, *places in _members(text, value) if name == step), None)
        if inner is None:
            break
        key, value = inner
    return key if at_key else value


def _members(text: str, position: int) -> Iterator[tuple[str | int, int, int]]:
    """Keys of an object, or indices of a list, and where each and its value begins; the text is known to be JSON."""
    opening = text[position]
    if opening not in "{[":
        return
    position, index = _skip_space(text, position + 1), 0
    while text[position] not in "]}":
        name: str | int = index
        key = position
        if opening == "{":
            name, position = _DECODER.raw_decode(text, position)
            position = _skip_space(text, _skip_space(text, position) + 1)  # past the colon
        yield name, key, position
        position = _skip_space(text, _DECODER.raw_decode(text, position)[1])
        position = _skip_space(text, position + 1) if text[position] == "," else position
        index += 1


def _skip_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position
