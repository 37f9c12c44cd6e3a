"""Quantities as people write them: read at the edge of the program ("900 GB/s", "300B" tokens, "2min"), written in reports, SI between.

GB is 10^9 bytes and GiB is 2^30 bytes; b is a bit and B a byte; FLOP/s counts a multiply-add as two.
"""

from __future__ import annotations

import math
import re


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
        "sec": 1.0,
        "m": 60.0,
        "min": 60.0,
        "h": 3600.0,
        "days": 86400.0,
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
    planner.core.quantities.QuantityError: '900' has no unit; write e.g. '900 GB/s'
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
    same = [known for known in units if known.lower() == unit.lower()]
    return f", did you mean {' or '.join(repr(known) for known in same)}?" if same else ""


# -- numbers without a dimension, and times that may lack their unit ---------------------------------------------------------

_AMOUNT = re.compile(r"\$? *([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,3})?) *([kKmMgGbBtT]?)\Z")
_LARGE = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_MOST = 1e18
_TOKENS = re.compile(r"(.*[0-9])( *)([kKmMgG]i|[kKmMgGbB]?) *tok(?:en)?s?\Z")
_THOUSANDS = re.compile(r"([0-9]{1,6}) *[kK]\Z")
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}\Z")
_SUFFIXED = re.compile(r"[0-9.]{1,30} *[kKmMgGbBtT]\Z")
_TIME = re.compile(
    r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?) *([a-z\N{MICRO SIGN}\N{GREEK SMALL LETTER MU}]*)\Z", re.IGNORECASE
)


def number(text: str) -> float | None:
    """Read a number or a percentage; None where it is none, or not finite.

    >>> number("0.1"), number("1%"), number("inf"), number("a")
    (0.1, 0.01, None, None)
    """
    stripped = text.strip()
    try:
        value = float(stripped.removesuffix("%")) * (0.01 if stripped.endswith("%") else 1.0)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def amount(text: str) -> float | None:
    """Read a large number: ``1T``, ``300B``, ``$2M``, ``500k``, ``1.2e6``; None where it is none, or not above 0.

    >>> amount("1T"), amount("$2M"), amount("300 B"), amount("-1"), amount("2X")
    (1000000000000.0, 2000000.0, 300000000000.0, None, None)
    """
    match = _AMOUNT.match(text.strip())
    if match is None:
        return None
    value = float(match[1]) * _LARGE[match[2].lower()]
    return value if 0 < value <= _MOST else None


def whole_number(text: str) -> int | None:
    """Read a whole number, with a suffix where that says one.

    >>> whole_number("4096"), whole_number("1.5M"), whole_number("1.5"), whole_number("8k")
    (4096, 1500000, None, None)
    """
    if _WHOLE.match(text):
        return int(text)
    value = amount(text) if _SUFFIXED.match(text) and not is_ambiguous(text) else None
    return round(value) if value is not None and abs(value - round(value)) < 1e-6 else None


def is_ambiguous(text: str) -> bool:
    """Whether a number of thousands is likely one of 1024s: ``8k`` positions are mostly 8,192.

    >>> is_ambiguous("8k"), is_ambiguous("500k"), is_ambiguous("8000")
    (True, False, False)
    """
    match = _THOUSANDS.match(text.strip())
    return match is not None and int(match[1]).bit_count() == 1


def in_tokens(text: str) -> tuple[float, float] | None:
    """Tokens of a batch: as it is written, and with its suffix as a power of 1024 (4M is mostly 4,194,304); None where it is in samples.

    >>> in_tokens("4M tokens"), in_tokens("16Mi tokens"), in_tokens("524288 tok"), in_tokens("1024")
    ((4000000.0, 4194304.0), (16777216.0, 16777216.0), (524288.0, 524288.0), None)
    """
    match = _TOKENS.match(text.strip())
    value = None if match is None else amount(match[1])
    if match is None or value is None:
        return None
    suffix = match[3].lower().replace("b", "g")
    binary = _BINARY.get(f"{suffix[:1].upper()}i", 1.0)
    return value * (binary if suffix.endswith("i") else _LARGE[suffix]), value * binary


def seconds(text: str) -> tuple[float, str] | None:
    """Read a time in any case; with its unit, empty where it has none (then it is in seconds). None where it is no time.

    >>> seconds("2min"), seconds("500 MS"), seconds("30"), seconds("2 weeks")
    ((120.0, 'min'), (0.5, 'ms'), (30.0, ''), None)
    """
    match = _TIME.match(text.strip())
    unit = "" if match is None else match[2].lower()
    factor = 1.0 if not unit else _UNITS["seconds"].get(unit)
    return None if match is None or factor is None else (float(match[1]) * factor, unit)


# -- writing -----------------------------------------------------------------------------------------------------------------


NOT_AVAILABLE = "n/a"


def significant(value: float | None, digits: int = 3) -> str:
    """Round to significant digits, without an exponent; thousands are separated by commas.

    Parameters
    ----------
    value : float or None
        None, infinity and not-a-number become "n/a".
    digits : int

    Returns
    -------
    str

    Examples
    --------
    >>> [significant(x) for x in (0.004237, 9.996, 12.34, 60512.0, 0.0)]
    ['0.00424', '10.0', '12.3', '60,500', '0']
    """
    if value is None or not math.isfinite(value):
        return NOT_AVAILABLE
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    rounded = round(value, digits - 1 - exponent)
    # 9.996 rounds up into the next decade, where one decimal fewer is significant.
    exponent = math.floor(math.log10(abs(rounded)))
    return f"{rounded:,.{max(0, digits - 1 - exponent)}f}"


def _scaled(value: float, prefixes: dict[str, float], unit: str) -> str:
    """Write a value with the largest prefix that leaves at least 1 after rounding."""
    chosen, factor = next(iter(prefixes.items()))
    for prefix, step in prefixes.items():
        if float(f"{abs(value) / step:.2e}") >= 1.0:
            chosen, factor = prefix, step
    return f"{significant(value / factor).replace(',', '')} {chosen}{unit}".rstrip()


def byte_text(size_bytes: float | None) -> str:
    """Write a size in binary units, three significant digits.

    >>> byte_text(80 * 2**30), byte_text(1536), byte_text(0), byte_text(None)
    ('80.0 GiB', '1.50 KiB', '0 B', 'n/a')
    """
    if size_bytes is None or not math.isfinite(size_bytes):
        return NOT_AVAILABLE
    return _scaled(size_bytes, {"": 1.0} | _BINARY, "B")


def format_rate(value: float, unit: str) -> str:
    """Write a rate with a decimal prefix before its unit, three significant digits.

    >>> format_rate(9e11, "B/s"), format_rate(12345.0, "samples/s")
    ('900 GB/s', '12.3 ksamples/s')
    """
    return _scaled(value, _DECIMAL, unit)
