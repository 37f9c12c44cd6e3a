"""Checks the values of options: words of a command line or values of Python; collects everything wrong and says it at once."""

from __future__ import annotations

import datetime as dt
import itertools
import math
import numbers
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from planner.core.errors import UsageError, did_you_mean
from planner.core.quantities import (
    QuantityError,
    amount,
    is_ambiguous,
    number,
    parse_quantity,
    seconds,
    whole_number,
)

if TYPE_CHECKING:
    from strategies.mesh.settings import Bounds

# Seconds of what a rate may be per.
_RATES = {"": 1.0, "s": 1.0, "min": 60.0, "minute": 60.0, "h": 3600.0, "hour": 3600.0, "d": 86_400.0, "day": 86_400.0}
MAX_GPUS = 1_000_000
MAX_COUNT = 10**9

_T = TypeVar("_T")
_MAX_WORKER_COUNTS = 10_000


def as_flag(name: str) -> str:
    """An option as a command line writes it.

    >>> as_flag("max_tpot"), as_flag("model")
    ('--max-tpot', 'MODEL')
    """
    return "MODEL" if name == "model" else f"--{name.replace('_', '-')}"


class Values:
    """Checks one value after the other; :meth:`check` raises when any was wrong.

    Parameters
    ----------
    called : callable
        Makes of an option's keyword what messages call it: `as_flag` on a command line, ``str`` in Python.

    Examples
    --------
    >>> values = Values()
    >>> values.count("--gpus", "16", most=MAX_GPUS), values.count("--gpus", 16), values.ratio("--gap", "1%")
    (16, 16, 0.01)
    >>> values.count("--gpus", "0", most=MAX_GPUS)
    1
    >>> values.check()
    Traceback (most recent call last):
    ...
    planner.core.errors.UsageError: --gpus 0: must be at least 1
    """

    def __init__(self, called: Callable[[str], str] = as_flag) -> None:
        self.called = called
        self.problems: list[str] = []

    def check(self) -> None:
        """Raise one error that names every problem so far."""
        if self.problems:
            raise UsageError("\n".join(self.problems))

    def add(self, problem: str) -> None:
        """Note a problem found elsewhere."""
        self.problems.append(problem)

    # -- numbers

    def count(self, label: str, value: Any, *, least: int = 1, most: int = MAX_COUNT) -> int:
        """Read a whole number, as in 4096 or 1.5M; ``least`` stands in for a wrong one."""
        found = whole_number(value.strip()) if isinstance(value, str) else _integer(label, value)
        if found is None:
            self.add(f"{label} {value}: {_not_whole(str(value).strip())}")
        elif found < least:
            self.add(f"{label} {value}: must be at least {least}")
        elif found > most:
            self.add(f"{label} {value}: must be at most {most:,}")
        else:
            return found
        return least

    def amount(self, label: str, value: Any) -> float | None:
        """Read a large number above 0: 1T, 300B, 2M."""
        found = amount(value) if isinstance(value, str) else _real(label, value)
        if found is None or not 0 < found < math.inf:
            self.add(f"{label} {value}: must be a number above 0, such as 1T, 300B, 2M, 500k or 1.5e12")
            return None
        return found

    def share(self, label: str, value: Any) -> float:
        """Read an efficiency, above 0 and at most 1 (as a number or in percent)."""
        return self._real(label, value, "above 0 and at most 1", lambda found: 0 < found <= 1, 1.0)

    def part(self, label: str, value: Any) -> float:
        """Read a share that may be none or all (as a number or in percent)."""
        return self._real(label, value, "from 0 to 1 (100 %)", lambda found: 0 <= found <= 1, 0.0)

    def chance(self, label: str, value: Any) -> float:
        """Read a chance, above 0 and below 1 (as a number or in percent)."""
        return self._real(label, value, "above 0 and below 1 (100 %)", lambda found: 0 < found < 1, 0.5)

    def likely(self, label: str, value: Any) -> float:
        """Read a chance of one half or more, below 1 (as a number or in percent)."""
        return self._real(label, value, "at least 0.5 (50 %) and below 1", lambda found: 0.5 <= found < 1, 0.5)

    def ratio(self, label: str, value: Any) -> float:
        """Read a relative gap, at least 0 and below 1 (as a number or in percent)."""
        return self._real(label, value, "at least 0 and below 1 (100 %)", lambda found: 0 <= found < 1, 0.0)

    def positive(self, label: str, value: Any) -> float | None:
        """Read a number above 0."""
        return self._real(label, value, "above 0", lambda found: found > 0, None)

    def at_least_zero(self, label: str, value: Any) -> float:
        """Read a number that is not negative."""
        return self._real(label, value, "at least 0", lambda found: found >= 0, 0.0)

    def _real(self, label: str, value: Any, words: str, allows: Callable[[float], bool], default: _T) -> float | _T:
        found = number(value) if isinstance(value, str) else _real(label, value)
        if found is None or not math.isfinite(found):
            self.add(f"{label} {value}: must be a finite number")
        elif not allows(found):
            self.add(f"{label} {value}: must be {words}")
        else:
            return found
        return default

    def seconds(self, label: str, value: Any, *, likely: str | None = None) -> float | None:
        """Read a time, in seconds where it has no unit; ``likely``: a unit that a word needs, and this one is suggested."""
        if isinstance(value, dt.timedelta):
            value = value.total_seconds()
        found = seconds(value) if isinstance(value, str) else (_real(label, value), "s")
        if found is None:
            self.add(f"{label} {value}: must be a time such as 30s, 500ms, 50us, 2min or 1h")
            return None
        time, unit = found
        if likely is not None and not unit:
            self.add(f"{label} {value}: has no unit; did you mean {value.strip()}{likely}?")
            return None
        if not 0 < time <= 1e9:
            self.add(f"{label} {value}: must be above 0" if time <= 0 else f"{label} {value}: must be at most 1e9 s")
            return None
        return time

    def rate(self, label: str, value: Any) -> float | None:
        """Read requests per second, above 0: 50, 50/s, 3000/min, 2M/h."""
        text, _, unit = str(value).lower().replace(" ", "").partition("/")
        found, per = amount(text), _RATES.get(unit)
        if found is None or per is None:
            self.add(f"{label} {value}: must be requests per second above 0, such as 50, 50/s, 3000/min or 2M/day")
            return None
        return found / per

    def variation(self, label: str, value: Any) -> float:
        """Read a coefficient of variation, from 0 to 10."""
        return self._real(label, value, "from 0 to 10", lambda found: 0 <= found <= 10, 1.0)

    def quantity(self, label: str, value: Any, dimension: str) -> float | None:
        """Read a number with its unit, above 0; a number of Python is in SI units."""
        try:
            found = parse_quantity(value, dimension) if isinstance(value, str) else _real(label, value)
        except QuantityError as error:
            self.add(f"{label}: {error}")
            return None
        if found <= 0:
            self.add(f"{label} {value}: must be above 0")
            return None
        return found

    # -- words

    def choice(self, label: str, value: Any, allowed: Sequence[str], meant: Mapping[str, str] | None = None) -> str:
        """Read one of several words; the first stands in for a wrong one. ``meant``: what else people write -> what to say then."""
        word = self.text(label, value).strip().lower()
        if word in allowed:
            return word
        either = f"{', '.join(allowed[:-1])} or {allowed[-1]}" if len(allowed) > 1 else allowed[0]
        hint = (meant or {}).get(word.replace("-", "_"))
        hint = f"; did you mean {hint}" if hint else did_you_mean(word, allowed)
        self.add(f"{label} {value}: must be {either}{hint}")
        return allowed[0]

    def names(
        self, label: str, value: Any, allowed: Sequence[str], meant: Mapping[str, str] | None = None
    ) -> tuple[str, ...]:
        """Read one name or several (with commas), in the order of those allowed; a hyphen may stand for an underscore."""
        hyphens = {name.replace("_", "-"): name for name in allowed}
        parts = listed(label, value) or [value]
        chosen = {self.choice(label, hyphens.get(str(part).strip().lower(), part), allowed, meant) for part in parts}
        return tuple(name for name in allowed if name in chosen)

    def text(self, label: str, value: Any) -> str:
        """Take a word as it is."""
        if not isinstance(value, str):
            raise _wrong_type(label, value)
        return value

    def texts(self, label: str, value: Any) -> tuple[str, ...]:
        """Take one word or several, without duplicates."""
        words = [value] if isinstance(value, str) else _several(label, value)
        return tuple(dict.fromkeys(self.text(label, word) for word in words))

    def switch(self, label: str, value: Any) -> bool:
        """Take a switch, on or off."""
        if not isinstance(value, bool):
            raise TypeError(f"{label}: must be True or False, not {value!r}")
        return value

    # -- several numbers

    def bounds(self, label: str, value: Any, *, least: int = 1, most: int = MAX_GPUS) -> Bounds:
        """Read allowed whole numbers: ``8``, ``1..8`` or ``1,2,4``; of Python also a number or several.

        >>> Values().bounds("--tp", "1..8", most=64), Values().bounds("tp", range(2, 5)).values
        (Bounds(low=1, high=8, values=()), (2, 3, 4))
        """
        from strategies.mesh.settings import Bounds

        problem = _not_numbers(value) if isinstance(value, str) else None
        if problem is not None:
            self.add(f"{label}{f' {value}' if value.strip() else ''}: {problem}")
            return Bounds(values=(least,))
        first, dots, last = value.strip().partition("..") if isinstance(value, str) else ("", "", "")
        if dots:
            low = self.count(label, first.strip(), least=least, most=most)
            high = self.count(label, last.strip(), least=least, most=most)
            if low > high:
                self.add(f"{label} {value}: must run from a smaller to a larger number")
            return Bounds(low=low, high=max(low, high))
        counts = {self.count(label, part, least=least, most=most) for part in listed(label, value)}
        return Bounds(values=tuple(sorted(counts)) or (least,))

    def worker_counts(self, label: str, value: Any) -> tuple[int, ...]:
        """Read worker counts: ``1,2,4,8``, ``1..8`` or both mixed, ascending and without duplicates."""
        parts = value.split(",") if isinstance(value, str) else _several(label, value)
        return self._spans(label, value, parts, lambda first, last: range(first, last + 1))

    def doubled_counts(self, label: str, value: Any) -> tuple[int, ...]:
        """Read numbers of GPUs; ``32..1024`` doubles.

        >>> Values().doubled_counts("--gpus", "8,12,32..128"), Values().doubled_counts("gpus", [1, 2])
        ((8, 12, 32, 64, 128), (1, 2))
        """
        from planner.sweeping.grid import doubling_counts

        return self._spans(label, value, listed(label, value), doubling_counts)

    def _spans(
        self, label: str, value: Any, parts: Iterable[Any], between: Callable[[int, int], Iterable[int]]
    ) -> tuple[int, ...]:
        """Read the parts of a value, numbers and ranges of numbers, as far as there are not too many."""
        counts: set[int] = set()
        for part in parts:
            first, dots, last = part.partition("..") if isinstance(part, str) else (part, "", "")
            if dots and (not first.strip() or not last.strip() or ".." in last):
                self.add(f"{label} {part}: a range needs both ends, as in 8..64")
                counts.add(1)
                continue
            low = self.count(label, first, most=MAX_GPUS)
            high = self.count(label, last, most=MAX_GPUS) if dots else low
            if low > high:
                self.add(f"{label} {part}: must run from a smaller to a larger number")
            counts.update(itertools.islice(between(low, max(low, high)), _MAX_WORKER_COUNTS + 1))
        if len(counts) > _MAX_WORKER_COUNTS:
            self.add(f"{label}: more than {_MAX_WORKER_COUNTS:,} worker counts")
        if not counts:
            self.add(f"{label} {value}: names no number")
        return tuple(sorted(counts))

    def numbers(self, label: str, value: Any) -> tuple[int, ...]:
        """Read whole numbers, with commas between them, in their order."""
        numbers = tuple(self.count(label, part) for part in listed(label, value))
        if not numbers:
            self.add(f"{label} {value}: names no number")
        return numbers

    def counts(self, label: str, value: Any) -> tuple[int, ...]:
        """The same, each number once."""
        return tuple(dict.fromkeys(self.numbers(label, value)))


def listed(label: str, value: Any) -> list[Any]:
    """Parts of a text with commas, or values of Python: one or several."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return _several(label, value)


def _several(label: str, value: Any) -> list[Any]:
    if isinstance(value, numbers.Number):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, (bytes, Mapping)):
        raise _wrong_type(label, value)
    return list(value)


def _wrong_type(label: str, value: Any) -> TypeError:
    return TypeError(f"{label}: cannot be {value!r} ({type(value).__name__})")


def _integer(label: str, value: Any) -> int | None:
    """A whole number of Python, or of numpy; None where it is another number."""
    if isinstance(value, bool):
        raise _wrong_type(label, value)
    try:
        return operator.index(value)
    except TypeError:
        _real(label, value)
        return None


def _real(label: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise _wrong_type(label, value)
    return float(value)


def _not_numbers(text: str) -> str | None:
    """What is wrong with the form of ``8``, ``1..8`` or ``1,2,4``; None where it has one of them.

    >>> [_not_numbers(text) for text in ("8", "1..8", "1, 2")]
    [None, None, None]
    >>> _not_numbers("2..4..8")
    'a range has two ends, as in 2..8; a list has commas, as in 2,4,8'
    """
    if not text.strip():
        return "is empty; give a number, a range such as 1..8 or a list such as 1,2,4"
    ends = [part.strip() for part in text.split("..")]
    if len(ends) > 2:
        known = [end for end in ends if end] or ["2", "8"]
        return f"a range has two ends, as in {known[0]}..{known[-1]}; a list has commas, as in {','.join(known)}"
    if len(ends) == 2 and "," in text:
        return "give a range or a list, not both"
    if len(ends) == 2 and not all(ends):
        return "a range needs both ends, as in 1..8"
    entries = [part.strip() for part in text.split(",")]
    if not all(entries):
        return f"has an empty entry; write {','.join(entry for entry in entries if entry) or 'a number'}"
    return None


def _not_whole(text: str) -> str:
    """What is wrong with a text that is no whole number.

    >>> _not_whole("1,024"), _not_whole("2,4")
    ('must be a whole number; write 1024', 'must be a whole number')
    """
    if is_ambiguous(text):
        thousands = int(text[:-1])
        return f"may be {1000 * thousands} or {1024 * thousands}; write the number"
    # Thousands are set apart in threes: 2,4 is a list.
    is_separated = re.fullmatch(r"[0-9]{1,3}([_, '][0-9]{3})+", text)
    return "must be a whole number" + (f"; write {re.sub('[^0-9]', '', text)}" if is_separated else "")
