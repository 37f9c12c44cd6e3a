"""Results for programs: JSON and CSV, SI units, every digit, never NaN or infinity."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any


def finite(value: Any) -> Any:
    """Replace numbers that JSON cannot hold by None, at any depth; tuples become lists.

    Examples
    --------
    >>> finite({"a": float("inf"), "b": (1, 2.5)})
    {'a': None, 'b': [1, 2.5]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def json_text(value: Mapping[str, Any]) -> str:
    """Write JSON with indentation; keys stay in the order of the schema."""
    return json.dumps(finite(value), indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    r"""Write one line per record; the header holds every key in the order of first use (RFC 4180 quoting).

    Examples
    --------
    >>> csv_text([{"rank": 1, "summary": "conv: data x2, fc: channels x2", "speedup": None}])
    'rank,summary,speedup\n1,"conv: data x2, fc: channels x2",\n'
    """
    keys = list(dict.fromkeys(key for record in records for key in record))
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(keys)
    writer.writerows([_field(finite(record.get(key))) for key in keys] for record in records)
    return stream.getvalue()


def _field(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return _joined(value) if isinstance(value, list) else value


def _joined(values: Sequence[Any]) -> str:
    """Extents as 128x54x54x64, words with spaces between them; nothing where all are empty.

    >>> _joined([3, 224, 224]), _joined(["gemm", "fft"]), _joined(["", ""])
    ('3x224x224', 'gemm fft', '')
    """
    if all(isinstance(value, (int, float)) for value in values):
        return "x".join(map(str, values))
    return " ".join(map(str, values)).strip()
