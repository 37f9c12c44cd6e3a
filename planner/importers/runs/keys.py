"""Keys of a configuration: sections and counts, and a line for each that is not read, so that nothing is passed over in silence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from planner.core.errors import did_you_mean
from planner.importers.runs import problem

__all__ = ["count_of", "section_of", "unread_keys"]


def unread_keys(
    content: Iterable[object], read: Set[str], neutral: Set[str], known: Set[str], program: str, prefix: str = ""
) -> list[str]:
    """Lines about the keys that have no place in the prediction.

    Parameters
    ----------
    content : iterable
        Keys of a mapping of the file.
    read, neutral, known : set of str
        Keys that are read; that change nothing in a prediction; that the program has, and the cost model has not.
    program : str
        For the message.
    prefix : str
        Of the mapping inside its file.

    Examples
    --------
    >>> unread_keys(["stage", "stge", "zenflow"], {"stage"}, set(), {"zenflow"}, "DeepSpeed", "zero_optimization.")
    ["zero_optimization.stge: is not a key of DeepSpeed that is known, and is left out; did you mean 'stage'?", \
'zero_optimization.zenflow: is not modelled, so the prediction leaves it out']
    """
    names = read | neutral | known
    lines = []
    for key in map(str, content):
        if key in known:
            lines.append(f"{prefix}{key}: is not modelled, so the prediction leaves it out")
        elif key not in names:
            near = did_you_mean(key, names)
            lines.append(f"{prefix}{key[:80]}: is not a key of {program} that is known, and is left out{near}")
    return lines


def section_of(path: Path, content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A mapping under a key; empty where there is none."""
    value = content.get(key) or {}
    if not isinstance(value, dict):
        raise problem(path, "a mapping is expected", key)
    return value


def count_of(path: Path, content: Mapping[str, Any], key: str) -> int | None:
    """A whole number of at least 1 under a key; None where there is none."""
    value = content.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise problem(path, f"is {value!r}; a whole number of at least 1 is expected", key)
    return value
