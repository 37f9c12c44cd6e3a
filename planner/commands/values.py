"""Turns the words of a command line into values; collects everything wrong and says it at once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from planner.core.errors import UsageError, did_you_mean
from planner.core.quantities import amount, is_ambiguous, number, seconds, whole_number

__all__ = ["MAX_GPUS", "Values"]

MAX_GPUS = 1_000_000
_MAX_COUNT = 10**9

_RANGE = re.compile(r"([0-9]{1,9})\.\.([0-9]{1,9})\Z")
_MAX_WORKER_COUNTS = 10_000


class Values:
    """Checks one value after the other; :meth:`check` raises when any was wrong.

    Examples
    --------
    >>> values = Values()
    >>> values.count("--gpus", "16", most=MAX_GPUS), values.ratio("--gap", "1%")
    (16, 0.01)
    >>> values.count("--gpus", "0", most=MAX_GPUS)
    1
    >>> values.check()
    Traceback (most recent call last):
    ...
    planner.core.errors.UsageError: --gpus 0: must be at least 1
    """

    def __init__(self) -> None:
        self.problems: list[str] = []

    def check(self) -> None:
        """Raise one error that names every problem so far."""
        if self.problems:
            raise UsageError("\n".join(self.problems))

    def add(self, problem: str) -> None:
        """Note a problem found elsewhere."""
        self.problems.append(problem)

    def count(self, flag: str, text: str, *, least: int = 1, most: int = _MAX_COUNT) -> int:
        """Read a whole number, as in 4096 or 1.5M; ``least`` stands in for a wrong one."""
        value = whole_number(text.strip())
        if value is None:
            self.add(f"{flag} {text}: {_not_whole(text.strip())}")
        elif value < least:
            self.add(f"{flag} {text}: must be at least {least}")
        elif value > most:
            self.add(f"{flag} {text}: must be at most {most:,}")
        else:
            return value
        return least

    def optional_count(self, flag: str, text: str | None, *, least: int = 1, most: int = _MAX_COUNT) -> int | None:
        """Read a whole number that may be left out."""
        return None if text is None else self.count(flag, text, least=least, most=most)

    def amount(self, flag: str, text: str | None) -> float | None:
        """Read a large number above 0 that may be left out: 1T, 300B, 2M."""
        value = None if text is None else amount(text)
        if text is not None and value is None:
            self.add(f"{flag} {text}: must be a number above 0, such as 1T, 300B, 2M, 500k or 1.5e12")
        return value

    def share(self, flag: str, text: str | None) -> float:
        """Read an efficiency, above 0 and at most 1 (as a number or in percent); 1 when it is left out."""
        if text is None:
            return 1.0
        value = self._number(flag, text)
        if value is None:
            return 1.0
        if not 0 < value <= 1:
            self.add(f"{flag} {text}: must be above 0 and at most 1")
            return 1.0
        return value

    def ratio(self, flag: str, text: str) -> float:
        """Read a relative gap, at least 0 and below 1 (as a number or in percent)."""
        value = self._number(flag, text)
        if value is None:
            return 0.0
        if not 0 <= value < 1:
            self.add(f"{flag} {text}: must be at least 0 and below 1 (100 %)")
            return 0.0
        return value

    def positive(self, flag: str, text: str | None) -> float | None:
        """Read a number above 0 that may be left out."""
        value = None if text is None else self._number(flag, text)
        if value is not None and value <= 0:
            self.add(f"{flag} {text}: must be above 0")
            return None
        return value

    def at_least_zero(self, flag: str, text: str) -> float:
        """Read a number that is not negative."""
        value = self._number(flag, text)
        if value is not None and value < 0:
            self.add(f"{flag} {text}: must be at least 0")
        return max(value or 0.0, 0.0)

    def _number(self, flag: str, text: str) -> float | None:
        value = number(text)
        if value is None:
            self.add(f"{flag} {text}: must be a finite number")
        return value

    def seconds(self, flag: str, text: str | None, *, likely: str | None = None) -> float | None:
        """Read a time, in seconds where it has no unit; ``likely``: a unit that it needs, and this one is suggested."""
        if text is None:
            return None
        found = seconds(text)
        if found is None:
            self.add(f"{flag} {text}: must be a time such as 30s, 500ms, 50us, 2min or 1h")
            return None
        value, unit = found
        if likely is not None and not unit:
            self.add(f"{flag} {text}: has no unit; did you mean {text.strip()}{likely}?")
            return None
        if not 0 < value <= 1e9:
            self.add(f"{flag} {text}: must be above 0" if value <= 0 else f"{flag} {text}: must be at most 1e9 s")
            return None
        return value

    def choice(self, flag: str, text: str, allowed: Sequence[str]) -> str:
        """Read one of several words; the first stands in for a wrong one."""
        word = text.strip().lower()
        if word in allowed:
            return word
        self.add(f"{flag} {text}: must be {_either(allowed)}{did_you_mean(word, allowed)}")
        return allowed[0]

    def worker_counts(self, flag: str, text: str) -> tuple[int, ...]:
        """Read worker counts: ``1,2,4,8``, ``1..8`` or both mixed, ascending and without duplicates."""
        counts: set[int] = set()
        for part in text.split(","):
            span = _RANGE.match(part.strip())
            if span is None:
                counts.add(self.count(flag, part.strip(), most=MAX_GPUS))
                continue
            first, last = int(span[1]), int(span[2])
            if not 1 <= first <= last <= MAX_GPUS or last - first >= _MAX_WORKER_COUNTS:
                self.add(
                    f"{flag} {part.strip()}: must run from a smaller to a larger count of at least 1, within {_MAX_WORKER_COUNTS:,}"
                )
                continue
            counts.update(range(first, last + 1))
        if len(counts) > _MAX_WORKER_COUNTS:
            self.add(f"{flag}: more than {_MAX_WORKER_COUNTS:,} worker counts")
        return tuple(sorted(counts))


def _not_whole(text: str) -> str:
    if is_ambiguous(text):
        thousands = int(text[:-1])
        return f"may be {1000 * thousands} or {1024 * thousands}; write the number"
    return f"must be a whole number{_without_separators(text)}"


def _without_separators(text: str) -> str:
    digits = text.replace("_", "").replace(",", "").replace(" ", "").replace("'", "")
    return f"; write {digits}" if digits != text and digits.isascii() and digits.isdecimal() else ""


def _either(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
