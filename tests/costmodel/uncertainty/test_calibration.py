"""A calibration: its factors, their covariance, the profile that they multiply."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.uncertainty.constants import CalibratedConstant, Calibration, ConstantError


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


def test_a_calibration_of_the_wrong_shape_is_refused() -> None:
    constants = {"matmul_rate": CalibratedConstant(log_sd=0.1, prior_log_sd=0.1)}
    with pytest.raises(ConstantError):
        Calibration(name="c", constants=constants, correlation=np.eye(2), residual_log_sd=0.1, residual_by_part={})
