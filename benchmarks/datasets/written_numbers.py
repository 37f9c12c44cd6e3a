"""Numbers as people write them into cells: thousands, remarks behind them, units that are another one than the column's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache, lru_cache

__all__ = ["NumberError", "is_absent", "read_number", "with_unit"]


class NumberError(ValueError):
    """A cell holds no number, or one that can be read in two ways; the text is the end of a sentence about the column."""


# What people write where they have nothing to write. "none" and "nan" are not among them: the one is an answer ("recompute: none"), the
# other a value that went wrong.
_ABSENT = frozenset(
    (
        "-", "--", "---", "\u2013", "\u2014", "?", "n/a", "n.a.", "na", "#n/a", "null", "nil", "unknown", "not stated", "not given",
        "not reported", "not available", "not specified", "unspecified", "undefined", "tbd",
    )
)  # fmt: skip
_LONGEST_ABSENT = max(map(len, _ABSENT))


def is_absent(text: str) -> bool:
    """Whether a cell says that it says nothing.

    >>> [is_absent(text) for text in ("n/a", "Not stated", "", "none", "0")]
    [True, True, False, False, False]
    """
    return 0 < len(text) <= _LONGEST_ABSENT and text.lower() in _ABSENT


# The sign is part of the number; what follows may be a remark: "10 (p2.8xlarge nominal)", "-1 (all ranks)".
_NUMBER = re.compile(
    r"[+-]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?=$|[\s(;,%]|[A-Za-z\u00b5\u03bc\u00d7*])"
)
# Thousands as people and spreadsheets part them: groups of exactly three digits by commas or (thin, hard) blanks. A leading 0 is none.
_THOUSANDS = re.compile(
    r"([+-]?[1-9][0-9]{0,2})((?:,[0-9]{3})+|(?:[ \u00a0\u2009\u202f][0-9]{3})+)(\.[0-9]+)?(?=$|[\s(;%]|, |[A-Za-z\u00b5\u03bc])"
)
# What people write before a number: that it is about so much, or what it counts ("tp=8", "TP8", "8-way").
_ABOUT = re.compile(r"(?:[~\u2248\u223c]|(?:about|approx\.?|approximately|ca\.?|circa) )\s?(?=[0-9.])", re.IGNORECASE)
_WAYS = re.compile(r"(?<=[0-9])-(?:way|fold)\b", re.IGNORECASE)
# Digits parted in another way: decimal commas, or thousands that are none.
_PARTED = re.compile(r"[+-]?[0-9][0-9_.]*(?:,|[ \u00a0\u2009\u202f](?=[0-9.,]+(?:$|\s)))[0-9]")
# Several numbers, or one to another base: "4 x 2", "0x10".
_PRODUCT = re.compile(r"\s?[x\u00d7*]\s?[0-9]")
_UNIT = re.compile(r"\s?([A-Za-z\u00b5\u03bc]+(?:/[A-Za-z]+)*|%)(?![A-Za-z0-9])")

_GIB = 2.0**30
_SECONDS = {
    "ns": 1e-9, "nsec": 1e-9, "us": 1e-6, "usec": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "microseconds": 1e-6,
    "ms": 1e-3, "msec": 1e-3, "milliseconds": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0,
    "min": 60.0, "mins": 60.0, "minutes": 60.0, "h": 3600.0, "hours": 3600.0,
}  # fmt: skip
_BYTES = {
    "B": 1.0, "byte": 1.0, "bytes": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": _GIB, "TiB": 2.0**40,
}  # fmt: skip
# Sizes of messages are counted in powers of two where only a letter follows (nccl-tests: -b 8M, README).
_LETTERS_OF_BYTES = {"K": 2.0**10, "k": 2.0**10, "M": 2.0**20, "G": _GIB}
_BYTES_PER_S = {
    "MB/s": 1e6, "MBps": 1e6, "GB/s": 1e9, "GBps": 1e9, "TB/s": 1e12, "TBps": 1e12, "MiB/s": 2.0**20, "GiB/s": _GIB,
    "Mb/s": 1.25e5, "Mbps": 1.25e5, "Mbit/s": 1.25e5, "Gb/s": 1.25e8, "Gbps": 1.25e8, "Gbit/s": 1.25e8, "GbE": 1.25e8,
    "Gb": 1.25e8, "Tb/s": 1.25e11, "Tbps": 1.25e11, "Tbit/s": 1.25e11,
}  # fmt: skip
_FLOP_PER_S = {
    "GFLOPS": 1e9, "GFLOP/s": 1e9, "TFLOPS": 1e12, "TFLOP/s": 1e12, "TFLOPs": 1e12, "TFLOPs/s": 1e12, "PFLOPS": 1e15, "PFLOP/s": 1e15,
}  # fmt: skip
_MANY = {"k": 1e3, "K": 1e3, "M": 1e6}
_BILLIONS = {
    "K": 1e3,
    "k": 1e3,
    "M": 1e6,
    "million": 1e6,
    "B": 1e9,
    "b": 1e9,
    "bn": 1e9,
    "billion": 1e9,
    "T": 1e12,
    "trillion": 1e12,
}
# End of a column's name -> what its cells may be stated in, and what the column is in; the first that fits decides.
_DIMENSIONS: tuple[tuple[str, Mapping[str, float], float], ...] = (
    ("_ms", _SECONDS, 1e-3),
    ("_us", _SECONDS, 1e-6),
    ("memory_gib", _BYTES, _GIB),
    (
        "device_mem_gb",
        {**_BYTES, "GB": _GIB, "G": _GIB},
        _GIB,
    ),  # makers call 80 GiB (and what firmware leaves of it) 80 GB
    ("GBps", _BYTES_PER_S, 1e9),
    ("MBps", _BYTES_PER_S, 1e6),
    ("Gbps_per_node", _BYTES_PER_S, 1.25e8),
    ("_kB", _BYTES, 1e3),
    ("bytes", {**_BYTES, **_LETTERS_OF_BYTES}, 1.0),
    ("tokens_per_s_per_gpu", _MANY, 1.0),
    ("tokens_per_s", _MANY, 1.0),
    ("samples_per_s", _MANY, 1.0),
    ("params_b", _BILLIONS, 1e9),
    ("tflops", _FLOP_PER_S, 1e12),
    ("tflops_per_gpu", _FLOP_PER_S, 1e12),
)
_EVERY_UNIT = frozenset(name for _, units, _ in _DIMENSIONS for name in units) - {"h", "b", "B", "T", "G", "min", "s"}
_OF_COUNTS = frozenset("kKMGBT")


@cache
def _dimension(column: str) -> tuple[Mapping[str, float], float] | None:
    return next(((units, own) for end, units, own in _DIMENSIONS if column.endswith(end)), None)


@lru_cache(maxsize=2**16)  # tables repeat their cells
def read_number(column: str, text: str) -> float:
    """The number at the beginning of a cell, in the unit of its column.

    Parameters
    ----------
    column : str
        Its name ends in a unit where it has one.
    text : str
        Not empty.

    Raises
    ------
    NumberError
        There is no finite number, it can be read in two ways, or its unit is none of this column.

    Examples
    --------
    >>> read_number("seq", "4,096"), read_number("seq", "8k"), read_number("gpus", "8 8-GPU nodes")
    (4096.0, 8192.0, 8.0)
    >>> read_number("step_time_ms", "1.5 s"), read_number("memory_gib", "40960 MiB"), read_number("bytes", "256M")
    (1500.0, 40.0, 268435456.0)
    >>> read_number("tokens_per_s_per_gpu", "~12.5k"), read_number("params_b", "355M"), read_number("tp", "TP8")
    (12500.0, 0.355, 8.0)
    """
    if not text[0].isdigit() or "-" in text:
        text = _bare(column, text)
    found = _NUMBER.match(text)
    value, end = (float(found[0].replace("_", "")), found.end()) if found else (math.nan, 0)
    if not text.isalnum() and _PARTED.match(text):  # most cells hold digits only
        thousands = _THOUSANDS.match(text)
        if thousands is None:
            raise NumberError("digits parted by commas or blanks that are no thousands (write 1234.5)")
        value = float(re.sub(r"[^0-9+-]", "", thousands[1] + thousands[2]) + (thousands[3] or ""))
        end = thousands.end()
    if not math.isfinite(value):
        raise NumberError("holds no number")
    rest = text[end:]
    if not rest:
        return value
    if _PRODUCT.match(rest):
        raise NumberError("holds several numbers or one to another base (write one in decimal digits)")
    unit = _UNIT.match(rest)
    return value if unit is None else _in_unit(column, value, unit[1], touches=not rest[0].isspace())


def with_unit(text: str, unit: str) -> str:
    """A cell with the unit that the name of its column states behind its number; as it is where it says one itself, or holds no number.

    >>> [with_unit(text, "s") for text in ("4.2", "4.", "~4 (median)", "4.2 ms", "1,200.5", "OOM", "")]
    ['4.2 s', '4. s', '~4 s (median)', '4.2 ms', '1,200.5 s', 'OOM', '']
    """
    start = _ABOUT.match(text)
    begin = 0 if start is None else start.end()
    found = _THOUSANDS.match(text, begin) or _NUMBER.match(text, begin)
    if found is None:
        return text
    rest = text[found.end() :]
    says = _UNIT.match(rest)
    if says is not None and (says[1] in _EVERY_UNIT or says[1].lower() in _SECONDS):
        return text
    return f"{text[: found.end()]} {unit}{rest}"


def _bare(column: str, text: str) -> str:
    """A number without what stands before it and says no more than its column.

    >>> [_bare("tp", text) for text in ("tp=8", "TP8", "8-way", "~8", "pp=8", "-8")]
    ['8', '8', '8', '8', 'pp=8', '-8']
    """
    text = _WAYS.sub("", _ABOUT.sub("", text, count=1), count=1)
    rest = text[len(column) :].lstrip(" =:") if text.lower().startswith(column.lower()) else ""
    return rest if rest[:1].isdigit() else text


def _in_unit(column: str, value: float, word: str, *, touches: bool) -> float:
    """The number in the unit of its column; words that are no unit are remarks."""
    dimension = _dimension(column)
    if dimension is not None:
        units, own = dimension
        factor = units.get(word, units.get(word.lower()) if units is _SECONDS else None)
        if factor is not None:
            return value * factor if own == 1.0 else value * (factor / own)
    if word == "%":
        raise NumberError("is a share, in percent")
    if word in ("k", "K") and column == "seq" and value > 0 and math.log2(value).is_integer():
        return value * 1024  # "8k" positions are 8192
    is_other_unit = word in _EVERY_UNIT if dimension is not None else word in _MANY or (touches and word in _OF_COUNTS)
    if is_other_unit:
        raise NumberError(f"is stated in '{word}' (write the number in full, in the unit of the column)")
    return value
