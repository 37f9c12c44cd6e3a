"""Checks the values of a parsed JSON file: types, ranges, missing keys; collects what is wrong, with its place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from planner.core.errors import FileProblem, InputFileError, did_you_mean
from planner.files.documents import Location
from planner.files.json_file import JsonFile

__all__ = ["JsonReader"]

MAX_DEVICES = 1_000_000


class JsonReader:
    """Checks types and ranges of values; collects what is wrong, up to a limit."""

    _MOST = 60  # more lines help nobody, and each costs a walk through the file

    def __init__(self, file: JsonFile) -> None:
        self._file = file
        self._problems: list[FileProblem] = []

    def check(self) -> None:
        """Raise what was found so far."""
        if self._problems:
            raise InputFileError(self._problems)

    def add(self, location: Location, message: str) -> None:
        """Note a problem."""
        if len(self._problems) < self._MOST:
            self._problems.append(self._file.problem(location, message))

    def object(self, value: Any, location: Location) -> Mapping[str, Any]:
        """Read an object; an empty one stands in for anything else."""
        if isinstance(value, dict):
            return value
        self.add(location, f"must be an object with keys, not {_kind(value)}")
        return {}

    def require(self, value: Mapping[str, Any], keys: tuple[str, ...], location: Location) -> bool:
        """Whether all keys are there."""
        missing = [key for key in keys if key not in value]
        for key in missing:
            self.add(location, f"the key '{key}' is missing{did_you_mean(key, [k for k in value if k not in keys])}")
        return not missing

    def list_of(self, value: Any, location: Location, read: Callable[[Any, Location], Any]) -> list[Any]:
        """Read every item of a list."""
        if not isinstance(value, list):
            self.add(location, f"must be a list, not {_kind(value)}")
            return []
        return [read(item, (*location, i)) for i, item in enumerate(value)]

    def identity(self, value: Any, location: Location) -> int | str:
        """Read a whole number or a name."""
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            self.add(location, f"must be a whole number or a name, not {_kind(value)}")
            return ""
        return value

    def flag(self, value: Any, location: Location) -> bool:
        """Read 0, 1, true or false."""
        if value not in (0, 1) or not isinstance(value, (bool, int)):
            self.add(location, f"must be 0 or 1, not {_kind(value)}")
            return False
        return bool(value)

    def number(self, value: Any, location: Location) -> float:
        """Read a finite number of at least 0."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.add(location, f"must be a number, not {_kind(value)}")
        elif not math.isfinite(value):
            self.add(location, f"must be a finite number, not {_kind(value)}")
        elif value < 0:
            self.add(location, f"must be at least 0, not {_kind(value)}")
        else:
            return float(value)
        return 0.0

    def count(self, value: Any, location: Location, *, least: int) -> int:
        """Read a whole number within its range."""
        whole = isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer()
        if not whole or not least <= value <= MAX_DEVICES:
            self.add(location, f"must be a whole number from {least} to {MAX_DEVICES:,}, not {_kind(value)}")
            return least
        return int(value)


def _kind(value: Any) -> str:
    """Write a value for a message, short."""
    if value is None:
        return "null"
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)[:40]
