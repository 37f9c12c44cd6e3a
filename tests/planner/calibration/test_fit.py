"""The optimiser alone, on functions whose answers are known."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from costmodel.arrays import FloatArray
from planner.calibration.fit import Data, Fit, Prior, cross_validate, fit, folds_of, refit
from planner.core.errors import MissingExtra


def _prior(*log_sd: float) -> Prior:
    sd = np.array(log_sd)
    return Prior(log_sd=sd, lowest=np.full(len(sd), -2.0), highest=np.full(len(sd), 2.0))


def _data(log_measured: FloatArray, part: FloatArray | None = None) -> Data:
    n = len(log_measured)
    return Data(
        log_measured=log_measured,
        part=np.zeros(n, dtype=np.int64) if part is None else part.astype(np.int64),
        weight=np.ones(n),
    )


class Sums:
    """Times that are sums of a compute part and a communication part, each divided by its rate: what the cost model does."""

    def __init__(self, rows: int, seed: int = 1) -> None:
        self.share = np.random.default_rng(seed).uniform(0.05, 0.95, rows)

    def __call__(self, theta: FloatArray) -> FloatArray:
        return np.asarray(np.log(self.share * np.exp(-theta[0]) + (1 - self.share) * np.exp(-theta[1])))


TRUTH = np.array([-0.2, 0.35])


def _noisy(model: Sums, noise: float, seed: int = 2) -> FloatArray:
    clean = model(TRUTH)
    return clean + noise * np.random.default_rng(seed).standard_normal(len(clean))


def test_known_constants_are_found_within_their_posterior() -> None:
    misses = []
    for seed in range(20):
        model = Sums(60, seed)
        found = fit(model, _data(_noisy(model, 0.05, seed + 100)), _prior(0.5, 0.5))
        misses.append((found.theta - TRUTH) / found.log_sd)
    squares = np.mean(np.square(misses))
    assert 0.3 < squares < 1.7  # 1 where the posterior says exactly how sure it is
    assert np.max(np.abs(misses)) < 4


def test_more_rows_make_it_surer() -> None:
    few, many = (fit(model, _data(_noisy(model, 0.05)), _prior(0.5, 0.5)).log_sd for model in (Sums(20), Sums(180)))
    assert np.all(many < 0.6 * few)


def test_a_linear_problem_has_the_textbook_posterior() -> None:
    """Nearly exact data and a wide scale: ridge regression, by the normal equations."""
    slopes = np.random.default_rng(3).normal(size=(30, 3))
    truth = np.array([0.1, -0.2, 0.05])
    found = fit(lambda theta: slopes @ theta, _data(slopes @ truth), _prior(0.3, 0.3, 0.3))
    weight = 5 / (4 * found.scale[0] ** 2)  # of Student's t at a residual of 0
    curvature = weight * slopes.T @ slopes + np.eye(3) / 0.09
    np.testing.assert_allclose(found.theta, np.linalg.solve(curvature, weight * slopes.T @ slopes @ truth), rtol=1e-2)
    np.testing.assert_allclose(found.covariance, np.linalg.inv(curvature), rtol=1e-2)


def test_outliers_do_not_move_it() -> None:
    model = Sums(80)
    clean = _noisy(model, 0.03)
    spoilt = clean.copy()
    spoilt[::10] += np.log(3.0)  # one row in ten takes three times as long
    straight, robust = fit(model, _data(clean), _prior(0.5, 0.5)), fit(model, _data(spoilt), _prior(0.5, 0.5))
    assert np.max(np.abs(robust.theta - straight.theta)) < 0.03
    squares = np.linalg.lstsq(straight.jacobian, spoilt - model(np.zeros(2)), rcond=None)[0]
    assert np.max(np.abs(squares - TRUTH)) > 0.1  # plain least squares are off by far


def test_without_rows_the_prior_stays() -> None:
    found = fit(lambda theta: np.zeros(0) * theta[:0], _data(np.zeros(0)), _prior(0.3, 0.1))
    np.testing.assert_array_equal(found.theta, 0.0)
    np.testing.assert_allclose(found.log_sd, [0.3, 0.1])


def test_what_nothing_depends_on_keeps_its_prior() -> None:
    found = fit(lambda theta: np.full(20, theta[0]), _data(np.full(20, 0.1)), _prior(0.3, 0.2))
    assert found.theta[1] == 0.0
    assert found.log_sd[1] == pytest.approx(0.2)
    assert abs(found.correlation[0, 1]) < 1e-9


def test_two_constants_that_act_alike_are_shared_out_by_their_priors() -> None:
    found = fit(lambda theta: np.full(40, theta[0] + theta[1]), _data(np.full(40, 0.2)), _prior(0.2, 0.1))
    assert found.theta.sum() == pytest.approx(0.2, abs=0.01)
    assert found.theta[0] / found.theta[1] == pytest.approx(4.0, rel=0.05)  # by the variances
    assert found.correlation[0, 1] < -0.9


def test_limits_hold() -> None:
    prior = Prior(log_sd=np.array([5.0]), lowest=np.array([-0.5]), highest=np.array([0.5]))
    found = fit(lambda theta: np.full(30, theta[0]), _data(np.full(30, 3.0)), prior)
    assert found.theta[0] == pytest.approx(0.5)


def test_each_part_has_its_own_scale() -> None:
    rng = np.random.default_rng(5)
    part = np.repeat([0, 1], 100)
    log_measured = np.where(part == 0, 0.02, 0.4) * rng.standard_normal(200) + np.where(part == 0, 0.1, 0.5)
    found = fit(lambda theta: np.full(200, theta[0]), _data(log_measured, part), _prior(0.5))
    assert found.scale[0] < 0.05
    assert found.scale[1] > 0.25
    assert found.theta[0] == pytest.approx(0.1, abs=0.02)  # the precise part decides


def test_repeats_of_one_configuration_count_once() -> None:
    log_measured = np.concatenate([np.full(50, 0.3), [-0.3]])
    weight = np.concatenate([np.full(50, 1 / 50), [1.0]])
    data = Data(log_measured=log_measured, part=np.zeros(51, dtype=np.int64), weight=weight)
    found = fit(lambda theta: np.full(51, theta[0]), data, _prior(0.5))
    assert abs(found.theta[0]) < 0.31
    alone = fit(lambda theta: np.full(51, theta[0]), _data(log_measured), _prior(0.5))
    assert alone.theta[0] > 0.28
    assert alone.log_sd[0] < found.log_sd[0]


def test_it_is_deterministic() -> None:
    def once() -> Fit:
        model = Sums(50)
        return fit(model, _data(_noisy(model, 0.1)), _prior(0.5, 0.5))

    first, second = once(), once()
    assert first.theta.tolist() == second.theta.tolist()
    assert first.covariance.tolist() == second.covariance.tolist()


def test_a_refit_is_near_a_fit_to_the_same_rows() -> None:
    model = Sums(60)
    data = _data(_noisy(model, 0.05))
    chosen = np.arange(60) % 3 > 0
    whole = fit(model, data, _prior(0.5, 0.5))
    again = refit(model, data, _prior(0.5, 0.5), whole, chosen)
    subset = Sums(60)
    subset.share = model.share[chosen]
    alone = fit(subset, _data(data.log_measured[chosen]), _prior(0.5, 0.5))
    np.testing.assert_allclose(again.theta, alone.theta, atol=0.01)


def test_folds_keep_groups_together_and_are_of_similar_size() -> None:
    groups = [
        name for name, size in (("a", 30), ("b", 20), ("c", 20), ("d", 10), ("e", 10), ("f", 10)) for _ in range(size)
    ]
    fold = folds_of(groups, 3, seed=0)
    assert all(len(set(fold[[n for n, g in enumerate(groups) if g == name]])) == 1 for name in set(groups))
    assert sorted(np.bincount(fold)) == [30, 30, 40]
    assert folds_of(groups, 3, seed=0).tolist() == fold.tolist()
    assert max(folds_of(["a", "b"], 5, seed=0)) == 1


def test_rows_left_out_are_predicted_by_a_fit_without_them() -> None:
    """One group is measured quite differently: what is left out must not know of it."""
    groups = ["odd"] * 10 + [f"g{n}" for n in range(40)]
    log_measured = np.concatenate([np.full(10, 1.0), np.full(40, 0.1)])
    data = _data(log_measured)
    prior = _prior(0.5)
    found = fit(lambda theta: np.full(50, theta[0]), data, prior)
    left_out = cross_validate(lambda theta: np.full(50, theta[0]), data, prior, found, groups, folds=5, seed=0)
    assert left_out[0] == 5
    assert np.all(np.abs(left_out[1][:10] - 0.1) < 0.03)


def test_one_group_cannot_be_cross_validated() -> None:
    data = _data(np.zeros(5))
    found = fit(lambda theta: np.full(5, theta[0]), data, _prior(0.5))
    assert (
        cross_validate(lambda theta: np.full(5, theta[0]), data, _prior(0.5), found, ["a"] * 5, folds=5, seed=0) is None
    )


def _of_networks(levels: FloatArray, runs: int, level_sd: float) -> Fit:
    """One constant that scales all times, and networks whose runs are all off by their level."""
    measured = np.repeat(levels, runs)
    data = replace(_data(measured), network=np.repeat(np.arange(len(levels)), runs))
    return fit(lambda theta: np.full(len(measured), theta[0]), data, replace(_prior(0.2), level_sd=level_sd))


def test_one_network_leaves_its_constants_a_part_of_its_error() -> None:
    """Bayes' rule for a constant (sd 0.2) and a level (sd 0.1) whose sum is 0.2: 0.2 x 0.04 / (0.04 + 0.01), sure to 0.089."""
    found = _of_networks(np.array([0.2]), runs=200, level_sd=0.1)
    assert found.theta[0] == pytest.approx(0.16, abs=0.002)
    assert found.log_sd[0] == pytest.approx(np.sqrt(1 / (1 / 0.04 + 1 / 0.01)), rel=0.02)
    assert _of_networks(np.array([0.2]), runs=200, level_sd=0.0).theta[0] == pytest.approx(0.2, abs=0.002)


@pytest.mark.e2e
def test_what_networks_have_in_common_is_the_constant() -> None:
    """Ten networks around 0.2: the mean, drawn to the prior by 0.1^2 / 10 against 0.2^2; more runs of each say no more."""
    levels = 0.2 + 0.1 * np.random.default_rng(4).standard_normal(10)
    few, many = (_of_networks(levels, runs=runs, level_sd=0.1) for runs in (20, 200))
    assert many.theta[0] == pytest.approx(levels.mean() * 0.04 / (0.04 + 0.001), abs=0.01)
    assert few.log_sd[0] == pytest.approx(np.sqrt(1 / (1 / 0.04 + 10 / 0.01)), rel=0.1)
    assert many.log_sd[0] == pytest.approx(few.log_sd[0], rel=0.1)


def test_a_wrong_run_is_no_level() -> None:
    """Robustness is about what a run has for itself: one of twenty that took ten times as long says nothing of its network."""
    measured = np.full(20, 0.1)
    measured[3] = np.log(10.0)
    data = replace(_data(measured), network=np.zeros(20, dtype=np.int64))
    found = fit(lambda theta: np.full(20, theta[0]), data, replace(_prior(0.2), level_sd=0.1))
    assert found.theta[0] == pytest.approx(0.1 * 0.04 / (0.04 + 0.01), abs=0.02)


def test_a_fit_without_scipy_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    data = Data(log_measured=np.log([1.2, 2.4]), part=np.zeros(2, dtype=np.int64), weight=np.ones(2))
    prior = Prior(log_sd=np.array([0.3]), lowest=np.array([-2.0]), highest=np.array([2.0]))
    with pytest.raises(MissingExtra, match=r"pip install 'paleo-planner\[calibrate\]'"):
        fit(lambda theta: np.log([1.0, 2.0]) + theta[0], data, prior)
