"""What a training must reach: so many tokens or samples, by when, for how much money."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["SECONDS_PER_DAY", "Goal"]

SECONDS_PER_DAY = 86_400.0


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
