"""Numbers for people: three significant digits, a unit that fits, never a wrapped or a scientific form in a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.core.quantities import NOT_AVAILABLE, byte_text, format_rate, significant

__all__ = [
    "NOT_AVAILABLE",
    "Unit",
    "big_count",
    "byte_text",
    "byte_unit",
    "chance_text",
    "counted",
    "duration_text",
    "duration_unit",
    "energy_text",
    "joined_words",
    "percent",
    "percents",
    "rough_percent",
    "short",
    "signed",
    "significant",
    "time_unit",
    "used_of_total",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A unit for people and its size in SI units."""

    name: str
    size: float


_TIMES = (
    Unit(name="s", size=1.0),
    Unit(name="ms", size=1e-3),
    Unit(name="us", size=1e-6),
    Unit(name="ns", size=1e-9),
)
_LONG_TIMES = (Unit(name="days", size=86400.0), Unit(name="h", size=3600.0), Unit(name="min", size=60.0))
# Memory is counted in binary units everywhere; decimal GB appear only where a data sheet says so.
_BYTES = (
    Unit(name="TiB", size=2.0**40),
    Unit(name="GiB", size=2.0**30),
    Unit(name="MiB", size=2.0**20),
    Unit(name="KiB", size=2.0**10),
    Unit(name="B", size=1.0),
)


def energy_text(value: float | None) -> str:
    """Write an energy given in joules: in watt-hours from a kilowatt-hour on.

    >>> energy_text(1500.0), energy_text(3.6e6), energy_text(7.2e12), energy_text(None)
    ('1.50 kJ', '1.00 kWh', '2.00 GWh', 'n/a')
    """
    if value is None:
        return NOT_AVAILABLE
    return format_rate(value / 3600.0, "Wh") if value >= 3.6e6 else format_rate(value, "J")


def bytes_text(value: float) -> str:
    """A size to three digits, in units of 1000.

    >>> bytes_text(5.6819e12), bytes_text(2.4e15)
    ('5.68 TB', '2.4 PB')
    """
    for size, unit in ((1e15, "PB"), (1e12, "TB"), (1e9, "GB")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e6:.3g} MB"


def short(value: float | None) -> str:
    """Write three significant digits without trailing zeros: a capacity, a limit.

    >>> short(80.0)
    '80'
    """
    text = significant(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def signed(value: float | None) -> str:
    """A difference with two decimals and its sign.

    Examples
    --------
    >>> signed(0.5), signed(None)
    ('+0.50', 'n/a')
    """
    return NOT_AVAILABLE if value is None or not math.isfinite(value) else f"{value:+.2f}"


def percent(share: float | None) -> str:
    """Write a share of one as a percentage with one decimal.

    >>> percent(0.12345), percent(0.0), percent(1.0), percent(0.0001), percent(12.34)
    ('12.3 %', '0 %', '100 %', '<0.1 %', '1,230 %')
    """
    if share is None or not math.isfinite(share):
        return NOT_AVAILABLE
    if share <= 0.0005:
        return "0 %" if share <= 0 else "<0.1 %"
    return f"{significant(share * 100)} %" if share >= 0.9995 else f"{share * 100:.1f} %"


def percents(shares: Mapping[str, float]) -> dict[str, str]:
    """Write parts of a whole as `percent` does, so that what is written adds up to 100 %: the largest remainders are rounded up.

    >>> percents({"a": 0.3333, "b": 0.3333, "c": 0.3334}), percents({"compute": 1.0})
    ({'a': '33.3 %', 'b': '33.3 %', 'c': '33.4 %'}, {'compute': '100 %'})
    """
    whole = {name: math.floor(1000.0 * share) for name, share in shares.items()}
    left = 1000 - sum(whole.values())
    for name in sorted(shares, key=lambda name: whole[name] - 1000.0 * shares[name])[: max(left, 0)]:
        whole[name] += 1
    return {name: percent(count / 1000.0) for name, count in whole.items()}


def rough_percent(share: float | None) -> str:
    """Write how far apart two predictions are: two significant digits of a percentage, since their errors hide more.

    >>> rough_percent(0.000531), rough_percent(0.0234), rough_percent(0.163), rough_percent(0.9964), rough_percent(0.0)
    ('<0.1 %', '2.3 %', '16 %', '>99 %', '0 %')
    """
    if share is None or not math.isfinite(share):
        return NOT_AVAILABLE
    if share < 0.001:
        return "0 %" if share <= 0 else "<0.1 %"
    return ">99 %" if 0.995 <= share < 1.0 else f"{significant(share * 100, 2)} %"


def chance_text(chance: float | None, surest: float = 1.0) -> str:
    """Write a chance in whole percent, rounded down; never as certain, nor as surer than measured runs can show.

    Parameters
    ----------
    chance : float or None
    surest : float
        What they can show at most (`costmodel.uncertainty.limits.MemoryErrors.surest`).

    Examples
    --------
    >>> chance_text(0.9499), chance_text(0.95), chance_text(0.99999), chance_text(None)
    ('94 %', '95 %', '>99 %', 'n/a')
    >>> chance_text(0.99999, 0.969), chance_text(0.966, 0.969), chance_text(0.9999, 0.9993)
    ('>96 %', '96 %', '>99 %')
    """
    if chance is None:
        return NOT_AVAILABLE
    most = min(0.99, surest)
    shown = math.floor(100.0 * min(chance, most) + 1e-6)
    return f"{'>' if chance > most else ''}{shown} %"


def surest_there(surest: float, used_bytes: float, there_bytes: float) -> float:
    """Largest P(fits) that measured runs can show of a plan that uses so much of a memory.

    Below half of it any chance will do: of 1,073 measured peaks none was twice its prediction (the largest was 1.94 times:
    benchmarks/memory_errors.py, nanotron).

    >>> surest_there(0.909, 60e9, 80e9), surest_there(0.909, 1e9, 80e9)
    (0.909, 1.0)
    """
    return 1.0 if 2.0 * used_bytes <= there_bytes else surest


def time_unit(seconds: float) -> Unit:
    """Largest unit of at most a second in which a time is at least 1.

    >>> time_unit(0.00423).name
    'ms'
    """
    return _unit_of(seconds, _TIMES)


def duration_unit(seconds: float) -> Unit:
    """Unit that `duration_text` writes a time in: that of an interval beside it, too.

    >>> duration_unit(78.3).name, duration_unit(0.5).name
    ('min', 'ms')
    """
    return _unit_of(seconds, (*_LONG_TIMES, *_TIMES))


def _unit_of(seconds: float, units: tuple[Unit, ...]) -> Unit:
    """First unit in which a time is at least 1 when three digits of it are written; 999.9 us are 1.00 ms."""
    least = _TIMES[-1] if seconds else _TIMES[1]
    return next((unit for unit in units if float(f"{abs(seconds) / unit.size:.2e}") >= 1), least)


def duration_text(seconds: float | None) -> str:
    """Write a time with its unit.

    >>> duration_text(0.00423), duration_text(90.0), duration_text(5400.0)
    ('4.23 ms', '1.50 min', '1.50 h')
    """
    if seconds is None or not math.isfinite(seconds):
        return NOT_AVAILABLE
    if seconds == 0:
        return "0 s"
    unit = duration_unit(seconds)
    return f"{significant(seconds / unit.size)} {unit.name}"


def byte_unit(size_bytes: float) -> Unit:
    """Largest binary unit in which a size is at least 1."""
    return next((unit for unit in _BYTES if size_bytes >= unit.size), _BYTES[-1])


def used_of_total(used_bytes: float, total_bytes: float) -> str:
    """Write used and total memory in the unit of the total, the way nvidia-smi does.

    >>> used_of_total(9.1 * 2**30, 80 * 2**30)
    '9.10 / 80 GiB'
    """
    if not math.isfinite(total_bytes):
        return byte_text(used_bytes)
    unit = byte_unit(total_bytes)
    return f"{significant(used_bytes / unit.size)} / {short(total_bytes / unit.size)} {unit.name}"


def counted(number: int, noun: str) -> str:
    """A number of things in words.

    >>> counted(1, "GPU"), counted(2048, "GPU")
    ('1 GPU', '2,048 GPUs')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def joined_words(words: Sequence[str]) -> str:
    """Words in a sentence.

    >>> joined_words(["a", "b", "c"]), joined_words(["a"]), joined_words([])
    ('a, b and c', 'a', '')
    """
    return " and ".join([*filter(None, [", ".join(words[:-1])]), *words[-1:]])


def big_count(count: int) -> str:
    """Write an exact count; a very long one by its first digits.

    >>> big_count(1234567), big_count(10**40)
    ('1,234,567', '1.00e+40')
    """
    if count < 10**15:
        return f"{count:,}"
    exponent = int(math.log10(count))  # exact integers of any size; log10 of an int does not overflow
    leading = count // 10 ** (exponent - 4) / 10**4
    if leading >= 10:
        leading, exponent = leading / 10, exponent + 1
    return f"{leading:.2f}e+{exponent}"
