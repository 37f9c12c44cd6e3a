"""What a training must reach: so many tokens or samples, by when, for how much money."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["SECONDS_PER_DAY", "Goal", "amount"]

SECONDS_PER_DAY = 86_400.0
_AMOUNT = re.compile(r"\$? *([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]{1,3})?) *([kKmMgGbBtT]?)\Z")
_SIZES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_MOST = 1e18


def amount(text: str) -> float | None:
    """Read a large number: ``1T``, ``300B``, ``$2M``, ``500k``, ``1.2e6``; None where it is none, or not above 0.

    >>> amount("1T"), amount("$2M"), amount("300 B"), amount("-1"), amount("2X")
    (1000000000000.0, 2000000.0, 300000000000.0, None, None)
    """
    match = _AMOUNT.match(text.strip())
    if match is None:
        return None
    value = float(match[1]) * _SIZES[match[2].lower()]
    return value if 0 < value <= _MOST else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A training and its limits.

    Attributes
    ----------
    tokens, samples : float or None
        Length of the training: one of them.
    deadline_s, budget : float or None
        In seconds, in USD; no limit where None.
    goodput : float
        Share of the time in which steps are made; the rest is lost to failures, checkpoints and restarts.

    Examples
    --------
    A million samples in steps of 256 that take 0.5 s:

    >>> goal = Goal(samples=1e6, deadline_s=3600.0, goodput=0.5)
    >>> goal.steps({"batch": 256, "seq": None}), goal.time_s({"batch": 256, "seq": None, "step_time_s": 0.5})
    (3907, 3907.0)
    """

    tokens: float | None = None
    samples: float | None = None
    deadline_s: float | None = None
    budget: float | None = None
    goodput: float = 1.0

    def steps(self, row: Mapping[str, Any]) -> int:
        """Steps of the training with the batch and the length of a row of `planner.sweeping.answer`."""
        if self.samples is not None:
            return math.ceil(self.samples / int(row["batch"]))
        assert self.tokens is not None
        return math.ceil(self.tokens / (int(row["batch"]) * int(row["seq"])))

    def time_s(self, row: Mapping[str, Any]) -> float:
        """How long the training takes with the plan of a row."""
        return self.steps(row) * float(row["step_time_s"]) / self.goodput
