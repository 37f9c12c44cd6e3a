"""The slowest of several against draws."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.framework import DEVICE_SPREAD as SPREAD
from costmodel.framework import slowest_of
from planner.measurements import convnets
from tests.planner.measurements.single_rows import only


@pytest.mark.parametrize("workers", [2, 8, 64, 512])
def test_the_slowest_of_draws(workers: int) -> None:
    draws = np.random.default_rng(0).normal(1.0, SPREAD, (4000, workers))
    assert float(slowest_of(workers, SPREAD)) - 1.0 == pytest.approx(float(draws.max(axis=1).mean()) - 1.0, rel=0.06)


def test_one_waits_for_nobody() -> None:
    assert slowest_of(1, SPREAD) == 1.0


def test_steps_of_several_devices_go_at_the_pace_of_the_slowest() -> None:
    """ResNet-50 on DGX-1 hides its exchange: eight devices differ from one by the spread of their computing."""
    one, eight = (
        only(convnets, model="resnet50", device="v100-16gb", gpus=n, batch_per_gpu=64, step_time_ms=200).comparisons[0]
        for n in (1, 8)
    )
    assert eight.predicted_s / one.predicted_s == pytest.approx(float(slowest_of(8, SPREAD)), abs=0.005)
