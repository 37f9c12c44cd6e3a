"""Deadlines of searches, with the time held still."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.device import Device
from costmodel.hardware.host import Host
from costmodel.objectives import OBJECTIVES
from planner.placement.run import leaving_time_to_check
from strategies import limits as module
from strategies.limits import Clock, OutOfTimeError
from strategies.score import STEP_TIME, Score, score_of


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of the clock, to be set."""
    time = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: time[0])
    return time


def test_a_search_leaves_time_for_what_follows(now: list[float]) -> None:
    clock = Clock(limit_s=10.0, start_s=100.0)
    now[0] = 102.0  # reading took two seconds, and so will judging
    search = leaving_time_to_check(clock)
    assert search.left_s == pytest.approx(6.0)
    now[0] = 108.5
    clock.check()
    with pytest.raises(OutOfTimeError):
        search.check()


def test_a_search_keeps_most_of_what_is_left(now: list[float]) -> None:
    clock = Clock(limit_s=10.0, start_s=100.0)
    now[0] = 108.0
    assert leaving_time_to_check(clock).left_s == pytest.approx(0.7 * 2.0)
    now[0] = 111.0
    assert leaving_time_to_check(clock).left_s == 0.0


def test_without_a_limit_there_is_none() -> None:
    assert leaving_time_to_check(Clock()).left_s == float("inf")


# --- What a search over plans on one kind of device minimises -----------------------------------------------------------------------------


DEVICE = Device(
    name="d",
    peak_flop_per_s={"fp32": 1e12},
    memory_bytes=1e9,
    memory_bandwidth_bytes_per_s=1e11,
    busy_power_w=300.0,
    idle_power_w=50.0,
    price_per_hour=2.0,
)
HOST = Host(devices=1, memory_bytes=1e12, power_w=30.0)
times = st.floats(min_value=1e-6, max_value=1e3)


@pytest.mark.parametrize("objective", ["step_time", "tokens_per_s"])
def test_the_step_alone_is_itself(objective: str) -> None:
    steps = np.array([3.0, 0.1])
    assert score_of(objective, DEVICE) == STEP_TIME
    assert STEP_TIME.of(steps, [1.0, 1.0], [4, 8]).tolist() == steps.tolist()


@given(step=times, share=st.floats(min_value=0, max_value=1), workers=st.integers(min_value=1, max_value=4096))
def test_energy_is_joules_over_the_full_draw(step: float, share: float, workers: int) -> None:
    score = score_of("energy", DEVICE, HOST)
    computing = share * step
    joules = workers * (80.0 * step + 250.0 * computing)
    assert float(score.of(step, computing, workers)) == pytest.approx(joules / 330.0)
    assert score.step_s(float(score.of(step, computing, workers)), computing, workers) == pytest.approx(step)
    assert joules / 330.0 <= workers * step * (1 + 1e-12)  # no device draws more


@given(step=times, workers=st.integers(min_value=1, max_value=4096))
def test_money_is_in_proportion_to_devices_seconds(step: float, workers: int) -> None:
    assert float(score_of("money", DEVICE).of(step, 0.0, workers)) == pytest.approx(workers * step)
    assert (
        score_of("money", DEVICE) == score_of("gpu_hours", DEVICE) == score_of("mfu", DEVICE) == Score(per_device=True)
    )


@pytest.mark.parametrize("objective", [name for name, objective in OBJECTIVES.items() if objective.unstated])
def test_what_nobody_states_cannot_be_ranked_by(objective: str) -> None:
    bare = dataclasses.replace(DEVICE, busy_power_w=None, idle_power_w=None, price_per_hour=None)
    with pytest.raises(ValueError, match="device 'd' states no"):
        score_of(objective, bare)
