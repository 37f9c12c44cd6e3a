"""A calibration: its factors, their covariance, the profile that they multiply."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.framework import profile_of
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.uncertainty.calibration import CalibratedConstant, Calibration
from costmodel.uncertainty.constants import ConstantError


def test_a_calibration_gives_factors_and_a_covariance() -> None:
    calibration = Calibration(
        name="c",
        constants={
            "matmul_rate": CalibratedConstant(value=0.9, log_sd=0.1, prior_log_sd=0.17, determined=True),
            "memory_rate": CalibratedConstant(value=1.1, log_sd=0.2, prior_log_sd=0.15),
        },
        correlation=np.array([[1.0, -0.5], [-0.5, 1.0]]),
        residual_log_sd=0.1,
        residual_by_part={},
    )
    assert calibration.values == {"matmul_rate": 0.9, "memory_rate": 1.1}
    np.testing.assert_allclose(calibration.covariance, [[0.01, -0.01], [-0.01, 0.04]])


def test_a_calibration_knows_what_its_framework_does_on_devices_with_fp4() -> None:
    found = Calibration(
        name="x", constants={}, correlation=np.zeros((0, 0)), residual_log_sd=0.1, residual_by_part={}, framework="NeMo"
    )
    assert (found.assumptions().captured, found.assumptions(has_fp4=True).captured) == (0.0, 1.0)


def test_a_calibration_starts_from_the_profile_of_its_framework() -> None:
    calibration = Calibration(
        name="c",
        constants={"host_collective": CalibratedConstant(value=2.0, log_sd=0.1, prior_log_sd=0.5)},
        correlation=np.eye(1),
        residual_log_sd=0.1,
        residual_by_part={},
        framework="nanotron",
    )
    assert calibration.assumptions().host_collective_s == pytest.approx(450e-6)  # twice the 225 us of the profile
    # What it does not name is as the profile has it: facts of the framework and constants fitted to its runs alike.
    bundled = profile_of("nanotron")
    for name in ("message_hold_s", "update_launches", "autograd_copies"):
        assert (
            getattr(calibration.assumptions(), name)
            == {**bundled.facts, **bundled.constants}[name]
            != getattr(MeshAssumptions(), name)
        )


def test_a_calibration_of_the_wrong_shape_is_refused() -> None:
    constants = {"matmul_rate": CalibratedConstant(log_sd=0.1, prior_log_sd=0.1)}
    with pytest.raises(ConstantError):
        Calibration(name="c", constants=constants, correlation=np.eye(2), residual_log_sd=0.1, residual_by_part={})
