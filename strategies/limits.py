"""How long a search may take, and what it reports meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

# The plan on the fewest GPUs is at least so fast, of the fastest.
SPEED_KEPT = 0.95

Progress = Callable[[str, float], None]  # takes what is being done, and the share of it that is done


class OutOfTimeError(RuntimeError):
    """The time limit has passed; whoever catches it returns the best placement so far."""


def _silent(stage: str, objective: float, bound: float) -> None:
    pass


def _now() -> float:
    return time.monotonic()  # looked up when called, so that tests can set the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A deadline and a listener, handed down to everything that takes long.

    ``report`` takes the stage, the best objective so far (infinite: none) and the best bound.
    """

    limit_s: float = float("inf")
    report: Callable[[str, float, float], None] = _silent
    start_s: float = field(default_factory=_now)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.start_s

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self.limit_s - self.elapsed_s)

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.elapsed_s > self.limit_s

    def within(self, share: float) -> Clock:
        """A clock of its own for a part of the work, with a share of the time that is left, and the same listener."""
        return Clock(limit_s=self.left_s * share, report=self.report)

    def leaving(self, seconds: float) -> Clock:
        """The same clock with an earlier deadline, for a search after which something is still to be done."""
        return replace(self, limit_s=self.limit_s - seconds)

    def check(self) -> None:
        """Raise `OutOfTimeError` when the deadline has passed."""
        if self.is_over:
            raise OutOfTimeError


UNLIMITED = Clock()


def why_stopped(search: Callable[[], None]) -> str:
    """Run a search that keeps its best placement and bound; whatever stops it early, they hold.

    Returns
    -------
    str
        "time limit", "interrupted", or nothing where it came to its end.
    """
    try:
        search()
    except OutOfTimeError:
        return "time limit"
    except KeyboardInterrupt:
        return "interrupted"
    return ""
