"""Compares two records: text and whole numbers exactly, other numbers to 1e-9, what a clock decides not at all.

The parts of a path are separated by dots: ``answers/mesh-001.stdout.plans.0.step_time_s``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import yaml

RELATIVE = 1e-9
# Path pattern -> why it is not compared.
IGNORED = {
    "*.wall_s": "time of the search on the clock",
    "*.search_s": "time of the search on the clock",
    "*.setting.inputs.*": "checksum of an input file, which a comment in the file changes; what it says shows in the answer",
    "*.provenance.inputs.*": "the same",
    "about.*": "where and when the record was made",
}
# In texts (messages, scripts, YAML files): checksums and times on the clock.
_CHECKSUM = re.compile(r"\b[0-9a-f]{64}\b")
_WALL = re.compile(r"\bwall_s: [0-9.e+-]+|\bin [0-9.]+ m?s\b(?= \()")


class Difference(NamedTuple):
    """One value that differs; ``None`` for the kinds ``missing`` and ``added`` where there is none."""

    path: str
    kind: str  # "changed", "missing" (from the second record) or "added" (to it)
    before: Any = None
    after: Any = None

    @property
    def relative(self) -> float | None:
        """Relative change of a number."""
        numbers = [v for v in (self.before, self.after) if isinstance(v, int | float) and not isinstance(v, bool)]
        if len(numbers) < 2 or not numbers[0]:
            return None
        return abs(numbers[1] / numbers[0] - 1.0)


class Allowed(NamedTuple):
    """A difference that is expected."""

    path: str
    reason: str


def read_allowed(path: Path) -> list[Allowed]:
    """Read a file of expected differences."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8")) or []
    return [Allowed(entry["path"], entry["reason"]) for entry in entries]


def _is_ignored(path: str) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in IGNORED)


def _plain(text: str) -> str:
    return _WALL.sub("(time on the clock)", _CHECKSUM.sub("(checksum)", text))


def _equal(before: Any, after: Any) -> bool:
    if isinstance(before, str) and isinstance(after, str):
        return _plain(before) == _plain(after)
    if any(value is None or isinstance(value, bool | str | list | dict) for value in (before, after)):
        return type(before) is type(after) and bool(before == after)
    if isinstance(before, int) and isinstance(after, int):
        return before == after
    return math.isclose(before, after, rel_tol=RELATIVE, abs_tol=0.0)


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Compare two values of JSON, member by member."""
    if _is_ignored(path):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [(str(key), before.get(key, _NOTHING), after.get(key, _NOTHING)) for key in {**before, **after}]
    elif isinstance(before, list) and isinstance(after, list):
        length = max(len(before), len(after))
        pairs = [(str(n), _at(before, n), _at(after, n)) for n in range(length)]
    else:
        if not _equal(before, after):
            yield Difference(path, "changed", before, after)
        return
    for key, one, other in pairs:
        inner = f"{path}.{key}" if path else key
        if one is _NOTHING or other is _NOTHING:
            if not _is_ignored(inner):
                yield Difference(inner, "added", None, other) if one is _NOTHING else Difference(inner, "missing", one)
        else:
            yield from differences(one, other, inner)


_NOTHING = object()


def _at(values: list[Any], n: int) -> Any:
    return values[n] if n < len(values) else _NOTHING


def read(folder: Path, only: str = "") -> dict[str, Any]:
    """Read a record, or the jobs with a text in their name: ``{"answers/mesh-001": ...}``."""
    paths = sorted(path for path in folder.rglob("*.json") if only in path.relative_to(folder).as_posix())
    return {
        path.relative_to(folder).with_suffix("").as_posix(): json.loads(path.read_text(encoding="utf-8"))
        for path in paths
    }


def compare(before: Path, after: Path, only: str = "") -> list[Difference]:
    """List all differences between two records."""
    return list(differences(read(before, only), read(after, only)))


def _grouped_path(path: str) -> str:
    """Path with ``*`` for the job and for positions in lists."""
    folder, _, rest = path.partition("/")
    return re.sub(
        r"\.\d+(?=\.|$)", ".*", f"{folder}/*{rest[rest.index('.') :] if '.' in rest else ''}" if rest else path
    )


def report(found: list[Difference], allowed: list[Allowed], *, examples: int = 2) -> tuple[str, int]:
    """Put differences into words, grouped by path; returns the text and how many are not expected."""
    expected: dict[Allowed, int] = dict.fromkeys(allowed, 0)
    groups: dict[tuple[str, str], list[Difference]] = {}
    for one in found:
        match = next((entry for entry in allowed if fnmatchcase(one.path, entry.path)), None)
        if match is None:
            groups.setdefault((_grouped_path(one.path), one.kind), []).append(one)
        else:
            expected[match] += 1
    lines = []
    for (path, kind), members in sorted(groups.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        changes = [change for member in members if (change := member.relative) is not None]
        by = f", by up to {max(changes):.3g} of the first" if changes else ""
        lines.append(f"{len(members):6} {kind}: {path}{by}")
        lines += [f"         {m.path}: {_short(m.before)} -> {_short(m.after)}" for m in members[:examples]]
    lines += [f"{n:6} expected: {entry.path}: {entry.reason}" for entry, n in expected.items()]
    unexpected = sum(len(members) for members in groups.values())
    lines.append(f"{unexpected} differences, {sum(expected.values())} expected ones aside")
    return "\n".join(lines), unexpected


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."
