"""What a search over plans with a split per layer minimises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.host import Power
from strategies.layerwise.score import LAYER_OBJECTIVES, STEP_TIME, Score, score_of
from strategies.mesh.settings import OBJECTIVES

times = st.floats(min_value=1e-6, max_value=1e3)


def test_every_objective_of_layers_is_one_of_meshes() -> None:
    assert set(LAYER_OBJECTIVES) == set(OBJECTIVES) - {"mfu"}


@pytest.mark.parametrize("objective", ["step_time", "tokens_per_s"])
def test_the_step_alone_is_itself(objective: str) -> None:
    steps = np.array([3.0, 0.1])
    assert score_of(objective) == STEP_TIME
    assert STEP_TIME.of(steps, [1.0, 1.0], [4, 8]).tolist() == steps.tolist()


@given(step=times, share=st.floats(min_value=0, max_value=1), workers=st.integers(min_value=1, max_value=4096))
def test_energy_is_joules_over_the_full_draw(step: float, share: float, workers: int) -> None:
    power = Power(busy_w=300.0, idle_w=50.0, host_w=30.0)
    score = score_of("energy", power)
    computing = share * step
    joules = float(power.energy_j(step, computing, workers))
    assert float(score.of(step, computing, workers)) == pytest.approx(joules / 330.0)
    assert score.step_s(float(score.of(step, computing, workers)), computing, workers) == pytest.approx(step)
    assert joules / 330.0 <= workers * step * (1 + 1e-12)  # no device draws more


@given(step=times, workers=st.integers(min_value=1, max_value=4096))
def test_money_is_in_proportion_to_devices_seconds(step: float, workers: int) -> None:
    assert float(score_of("money").of(step, 0.0, workers)) == pytest.approx(workers * step)
    assert score_of("money") == score_of("gpu_hours") == Score(per_device=True)
