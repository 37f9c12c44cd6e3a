"""Quantities with units: read at the edge of the program ("900 GB/s"), written in reports, SI numbers in between.

GB is 10^9 bytes and GiB is 2^30 bytes; b is a bit and B a byte; FLOP/s counts a multiply-add as two.
"""

from __future__ import annotations

import math
import re

__all__ = [
    "DIMENSIONS",
    "QuantityError",
    "format_bytes",
    "format_bytes_per_s",
    "format_count",
    "format_flop_per_s",
    "format_hz",
    "format_joules",
    "format_rate",
    "format_seconds",
    "parse_quantity",
]


class QuantityError(ValueError):
    """A quantity cannot be read; the message says what is allowed."""


_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}


def _bytes(suffix: str) -> dict[str, float]:
    units = {f"{prefix}B{suffix}": factor for prefix, factor in (_DECIMAL | _BINARY).items()}
    return units | {f"KB{suffix}": 1e3}


_BITS = {f"{prefix}{word}": factor / 8.0 for prefix, factor in _DECIMAL.items() for word in ("b/s", "bit/s", "bps")}

# Dimension -> unit -> factor to SI. Case counts: "Gb/s" are bits and "GB/s" bytes.
_UNITS: dict[str, dict[str, float]] = {
    "bytes": _bytes(""),
    "bytes_per_s": _bytes("/s") | _BITS,
    "flop_per_s": {
        f"{prefix}{word}": factor
        for prefix, factor in _DECIMAL.items()
        for word in ("FLOP/s", "FLOPS", "FLOPs/s", "flop/s")
    },
    "seconds": {
        "ps": 1e-12,
        "ns": 1e-9,
        "us": 1e-6,
        "\N{MICRO SIGN}s": 1e-6,
        "\N{GREEK SMALL LETTER MU}s": 1e-6,
        "ms": 1e-3,
        "s": 1.0,
        "m": 60.0,
        "min": 60.0,
        "h": 3600.0,
    },
    "hz": {f"{prefix}Hz": factor for prefix, factor in _DECIMAL.items()},
    "watts": {"mW": 1e-3} | {f"{prefix}W": factor for prefix, factor in _DECIMAL.items()},
}
_EXAMPLES = {
    "bytes": "80 GiB",
    "bytes_per_s": "900 GB/s",
    "flop_per_s": "989 TFLOP/s",
    "seconds": "5 us",
    "hz": "745 MHz",
    "watts": "700 W",
}
DIMENSIONS: tuple[str, ...] = tuple(_UNITS)

_QUANTITY = re.compile(r"\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S*)\s*")


def parse_quantity(text: object, dimension: str) -> float:
    """Read a quantity into SI units.

    Parameters
    ----------
    text : str
        A number and a unit, with or without a space.
    dimension : str
        One of `DIMENSIONS`.

    Returns
    -------
    float
        In bytes, bytes/s, FLOP/s, seconds, Hz or W; finite and not negative.

    Raises
    ------
    QuantityError
        No unit, an unknown unit, a negative number, or no number at all.

    Examples
    --------
    >>> parse_quantity("80 GiB", "bytes") == 80 * 2**30
    True
    >>> parse_quantity("20 Gb/s", "bytes_per_s")  # bits
    2500000000.0
    >>> parse_quantity("20 GB/s", "bytes_per_s")
    20000000000.0
    >>> parse_quantity(900, "bytes_per_s")
    Traceback (most recent call last):
        ...
    costmodel.units.QuantityError: '900' has no unit; write e.g. '900 GB/s'
    """
    units = _UNITS[dimension]
    example = f"write e.g. '{_EXAMPLES[dimension]}'"
    if isinstance(text, bool) or not isinstance(text, (str, int, float)):
        raise QuantityError(f"expected a number with a unit; {example}")
    shown = str(text).strip()[:60]
    match = _QUANTITY.fullmatch(str(text)) if len(str(text)) <= 200 else None
    if match is None:
        raise QuantityError(f"'{shown}' is not a finite number with a unit; {example}")
    number, unit = match.groups()
    if not unit:
        raise QuantityError(f"'{shown}' has no unit; {example}")
    if unit not in units:
        raise QuantityError(f"'{shown}': unknown unit '{unit[:20]}'{_meant(unit, units)}; {example}")
    value = float(number) * units[unit]
    if not math.isfinite(value):
        raise QuantityError(f"'{shown}' is not a finite number; {example}")
    if value < 0:
        raise QuantityError(f"'{shown}' is negative; {example}")
    return value


def _meant(unit: str, units: dict[str, float]) -> str:
    """End of a sentence for a unit in the wrong case."""
    same = [known for known in units if known.lower() == unit.lower()]
    return f", did you mean {' or '.join(repr(known) for known in same)}?" if same else ""


def _significant(value: float, digits: int = 3) -> str:
    """Write a number with three significant digits, without an exponent where it is at most six digits long.

    >>> _significant(1234.0), _significant(80.0), _significant(0.5)
    ('1234', '80.0', '0.500')
    """
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    exponent = math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    if exponent < -4 or exponent > 6:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(digits - 1 - exponent, 0)}f}"


def _scaled(value: float, prefixes: dict[str, float], unit: str) -> str:
    """Write a value with the largest prefix that leaves at least 1 after rounding."""
    chosen, factor = next(iter(prefixes.items()))
    for prefix, step in prefixes.items():
        if float(f"{abs(value) / step:.2e}") >= 1.0:
            chosen, factor = prefix, step
    return f"{_significant(value / factor)} {chosen}{unit}".rstrip()


def format_bytes(value: float) -> str:
    """Write bytes in binary units, three significant digits.

    >>> format_bytes(80 * 2**30), format_bytes(1536), format_bytes(0)
    ('80.0 GiB', '1.50 KiB', '0 B')
    """
    return _scaled(value, {"": 1.0} | _BINARY, "B")


def format_rate(value: float, unit: str) -> str:
    """Write a rate with a decimal prefix before its unit, three significant digits.

    >>> format_rate(9e11, "B/s"), format_rate(12345.0, "samples/s")
    ('900 GB/s', '12.3 ksamples/s')
    """
    return _scaled(value, _DECIMAL, unit)


def format_bytes_per_s(value: float) -> str:
    """Write a bandwidth.

    >>> format_bytes_per_s(2.039e12)
    '2.04 TB/s'
    """
    return format_rate(value, "B/s")


def format_flop_per_s(value: float) -> str:
    """Write a computing rate.

    >>> format_flop_per_s(3.52e12)
    '3.52 TFLOP/s'
    """
    return format_rate(value, "FLOP/s")


def format_hz(value: float) -> str:
    """Write a frequency.

    >>> format_hz(745e6)
    '745 MHz'
    """
    return format_rate(value, "Hz")


def format_joules(value: float) -> str:
    """Write an energy, in watt-hours where it is large.

    >>> format_joules(1500.0), format_joules(3.6e6), format_joules(7.2e12)
    ('1.50 kJ', '1.00 kWh', '2.00 GWh')
    """
    return format_rate(value / 3600.0, "Wh") if value >= 3.6e6 else format_rate(value, "J")


def format_count(value: float) -> str:
    """Write a large count in words of thousands.

    >>> format_count(61_100_840), format_count(512)
    ('61.1 M', '512')
    """
    return _scaled(value, _DECIMAL, "") if abs(value) >= 1000 else _significant(value).removesuffix(".0")


def format_seconds(value: float) -> str:
    """Write a time, three significant digits.

    >>> format_seconds(0.00123), format_seconds(90.0), format_seconds(7200.0), format_seconds(0)
    ('1.23 ms', '90.0 s', '2.00 h', '0 s')
    """
    if value == 0:
        return "0 s"
    if abs(value) >= 120.0:
        return _scaled(value, {"min": 60.0, "h": 3600.0}, "")
    return _scaled(value, {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}, "s")
