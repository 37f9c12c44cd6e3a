"""Writes plain values as YAML that people like to read: short mappings and lists on one line, numbers to the last digit.

The reader is planner.files.documents (or any YAML parser); writing needs no YAML library, which keeps it out of the common path.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

_LINE = 120
# Words that need no quotes: they start with a letter or a path, hold no YAML syntax, and are no other type.
_PLAIN = re.compile(r"[A-Za-z_./~][A-Za-z0-9_./+@~*%()-]*( [A-Za-z0-9_./+@~*%()=-]+)*\Z")
# What YAML 1.1 or 1.2 reads as something else than a word: booleans, null, and numbers such as .5, .inf, e.g. "~".
_OTHER_TYPE = re.compile(r"(?i:y|n|yes|no|on|off|true|false|null|~|[.][0-9eE_+.-]*|[.](inf|nan))\Z")
# YAML allows these only as escapes in double quotes; JSON leaves them bare.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")


def yaml_text(value: Mapping[str, Any], comment: str = "") -> str:
    """Write a mapping as a YAML file.

    Parameters
    ----------
    value : mapping
        Of mappings, sequences, strings, numbers, booleans and None.
    comment : str, optional
        Comes first, each line after a "#".

    Returns
    -------
    str

    Examples
    --------
    >>> print(yaml_text({"workers": 16, "layers": {"conv1": {"batch": 16}, "1": {}}, "time": 1e-05, "x": []}), end="")
    workers: 16
    layers:
      conv1: {batch: 16}
      "1": {}
    time: 1.0e-05
    x: []
    """
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    if value:
        _write_mapping(value, 0, lines)
    else:
        lines.append("{}")
    return "\n".join(lines) + "\n"


def _write_mapping(value: Mapping[str, Any], indent: int, lines: list[str]) -> None:
    for key, item in value.items():
        _write_item(f"{' ' * indent}{_word(str(key))}:", item, indent, lines)


def _write_item(head: str, item: Any, indent: int, lines: list[str]) -> None:
    flow = _flow(item)
    if flow is not None and (len(head) + 1 + len(flow) <= _LINE or not _is_container(item)):
        lines.append(f"{head} {flow}")
    elif isinstance(item, Mapping):
        lines.append(head)
        _write_mapping(item, indent + 2, lines)
    else:
        lines.append(head)
        for element in item:
            _write_element(element, indent + 2, lines)


def _write_element(element: Any, indent: int, lines: list[str]) -> None:
    flow = _flow(element)
    if flow is not None and (indent + 2 + len(flow) <= _LINE or not _is_container(element)):
        lines.append(f"{' ' * indent}- {flow}")
        return
    nested: list[str] = []
    if isinstance(element, Mapping):
        _write_mapping(element, indent + 2, nested)
    else:
        for inner in element:
            _write_element(inner, indent + 2, nested)
    nested[0] = f"{' ' * indent}- {nested[0][indent + 2 :]}"
    lines.extend(nested)


def _is_container(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, str))


def _flow(value: Any) -> str | None:
    """Write on one line: a scalar, a list of scalars, or a mapping to these; None for anything deeper."""
    if isinstance(value, Mapping):
        flows = {key: None if isinstance(item, Mapping) else _flow(item) for key, item in value.items()}
        if any(flow is None for flow in flows.values()):
            return None
        return "{" + ", ".join(f"{_word(str(key))}: {flow}" for key, flow in flows.items()) + "}"
    if _is_container(value):
        if any(_is_container(item) for item in value):
            return None
        return "[" + ", ".join(_scalar(item) for item in value) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "null"
    if value is not None and not isinstance(value, bool | int | float):
        return _word(str(value))
    text = json.dumps(value)  # the shortest digits that read back exactly
    if isinstance(value, float) and "e" in text and "." not in text:
        text = text.replace("e", ".0e")  # a number for YAML 1.1 parsers, too
    return text


def _word(text: str) -> str:
    if _PLAIN.match(text) and not _OTHER_TYPE.match(text):
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return _ESCAPED.sub(lambda match: f"\\u{ord(match.group()):04x}", quoted)
