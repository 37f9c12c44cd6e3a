"""Deadlines of searches, with the time held still."""

from __future__ import annotations

import pytest

from planner.placement.run import before_judging
from strategies import limits as module
from strategies.limits import Clock, OutOfTimeError


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of the clock, to be set."""
    time = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: time[0])
    return time


def test_a_search_leaves_time_for_what_follows(now: list[float]) -> None:
    clock = Clock(limit_s=10.0, start_s=100.0)
    now[0] = 102.0  # reading took two seconds, and so will judging
    search = before_judging(clock)
    assert search.left_s == pytest.approx(6.0)
    now[0] = 108.5
    clock.check()
    with pytest.raises(OutOfTimeError):
        search.check()


def test_a_search_keeps_most_of_what_is_left(now: list[float]) -> None:
    clock = Clock(limit_s=10.0, start_s=100.0)
    now[0] = 108.0
    assert before_judging(clock).left_s == pytest.approx(0.7 * 2.0)
    now[0] = 111.0
    assert before_judging(clock).left_s == 0.0


def test_without_a_limit_there_is_none() -> None:
    assert before_judging(Clock()).left_s == float("inf")
