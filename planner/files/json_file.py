"""Reads JSON files, small and large, and finds the line and column of a value when there is something to say about it."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from planner.core.errors import FileProblem, InputFileError
from planner.files.documents import Document, Location, document_of, parse_text
from planner.files.text import failure, read_text

# A graph of 100,000 operators takes about 25 MB; a hundred times the largest public workload.
MAX_WORKLOAD_BYTES = 64 * 2**20
# Half of a character outside of the first plane, which YAML does not allow in an escape.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFile:
    """A parsed file; numbers may be infinite or NaN, because their reader can say where they stand."""

    path: Path
    text: str
    sha256: str
    content: Any
    problems: tuple[FileProblem, ...] = ()  # what cannot be read raises; `Document` has some
    made_with: tuple[str, ...] = ()  # of content that the planner made: what it rests on, for people

    @property
    def value(self) -> Any:
        """The content, as of `Document`."""
        return self.content

    def problem(self, location: Location, message: str, *, at_key: bool = False, where: str = "") -> FileProblem:
        """Say that something is wrong at a location, or as near to it as the file goes; ``where`` replaces the location in the text."""
        document = document_of_json(self.path, self.text, self.sha256, self.content)
        return document.problem(location, message, at_key=at_key, where=where)


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

    text, sha256 = read_text(path)
    return _parsed(path, text, sha256, parse_float=finite, parse_int=whole, parse_constant=finite)


def read_workload(path: Path) -> JsonFile:
    """Read a JSON file of at most `MAX_WORKLOAD_BYTES` whose numbers may be infinite or NaN.

    Whole numbers that no count or identifier needs become floats, which the reader's range checks see.

    Raises
    ------
    InputFileError
        As `read_json_file`.
    """
    text, sha256 = read_text(path, MAX_WORKLOAD_BYTES, "a workload")
    return workload_of(path, text, sha256)


def workload_of(path: Path, text: str, sha256: str) -> JsonFile:
    """As `read_workload`, of a file that is already read, or of content that is no file."""

    def whole(digits: str) -> int | float:
        return int(digits) if len(digits) <= 18 else float(digits)

    return _parsed(path, text, sha256, parse_int=whole)


def _parsed(path: Path, text: str, sha256: str, **hooks: Any) -> JsonFile:
    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            document = document_of_json(path, text, sha256, None)
            twice = [problem for problem in document.problems if problem.message.startswith("duplicate key")]
            raise InputFileError(twice or [document.problem((), "an object has a key twice")])
        return result

    try:
        content = json.loads(text, object_pairs_hook=without_duplicates, **hooks)
    except json.JSONDecodeError as error:
        cut = " (the file ends too early)" if error.pos >= len(text.rstrip()) else ""
        raise failure(path, f"is not JSON: {error.msg}{cut}", error.lineno, error.colno) from None
    except RecursionError:
        raise failure(path, "is nested too deeply") from None
    return JsonFile(path=path, text=text, sha256=sha256, content=content)


@lru_cache(maxsize=1)  # a file may have many problems
def _places(path: Path, text: str, sha256: str) -> Document:
    text = _SURROGATE.sub("......", text)
    return parse_text(path, text, sha256, keep_faults=True, most_values=MAX_WORKLOAD_BYTES)


def document_of_json(path: Path, text: str, sha256: str, content: Any) -> Document:
    """The content with the places of its values: JSON is read as the YAML that it nearly always is; without places where it is not."""
    try:
        return _places(path, text, sha256)
    except InputFileError:
        return document_of(path, sha256, content)
