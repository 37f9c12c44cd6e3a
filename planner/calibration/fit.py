"""Robust, regularised least squares for the logarithms of a few factors, by `scipy.optimize.least_squares`; and cross-validation.

    minimise  sum_i c_i (nu + 1) / 2 log(1 + r_i^2 / (nu s_p^2))  +  sum_j theta_j^2 / (2 sigma_j^2)  +  sum_g u_g^2 / (2 tau^2)

with ``r_i = log measured - log predicted(theta) - u_g``: a level u_g that all times of a network g have in common, Student's t with nu = 4
for the errors (an outlier counts for little), a normal prior around the bundled constants (theta = 0), and a scale s_p of the errors for
every part of the data (kernels scatter more than steps), estimated in turns with theta. ``c_i`` counts repeats of one configuration once,
a network as no more than eight runs (`planner.calibration.measurements`) and a part as no more than `_MOST_ROWS` rows: beyond that, rows
repeat the errors of the model, which no constant can correct. The posterior is the normal distribution at the minimum.

A cost model is wrong about a network in its own way: layers that it knows badly, an input pipeline, kernels that fit one shape. All runs of
the network have that error, and a fit that takes it for the constants of the machine carries it to every other network. So a level takes
it. With one network tau and the priors of the constants decide how much of a common error the constants take; of many networks the levels
average out.

The predictions are taken for a straight line through the last ones; every step corrects its slopes.

References
----------
Lange, Little, Taylor: Robust statistical modeling using the t distribution, JASA 84 (1989): weights and nu = 4.
Laird, Ware: Random-effects models for longitudinal data, Biometrics 38 (1982), sections 2 and 3: a random intercept.
Nocedal, Wright: Numerical Optimization, 2nd edition (2006), section 11.1 (Broyden).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from planner.core.errors import MissingExtra

# Logarithms of the factors -> logarithms of the predicted times.
Predict = Callable[[FloatArray], FloatArray]

_NU = 4.0
# Rows of a part that count; see the head of the file.
_MOST_ROWS = 200.0
# What the scale of the errors is taken for before any is seen, and how many rows that is worth: steps are met within 10 to 20 %
# (docs/accuracy.md).
_USUAL_SCALE, _USUAL_ROWS = 0.15, 2.0
# No measurement repeats better than this (docs/accuracy.md: repeats of a step differ by some per cent).
_LEAST_SCALE = 0.005
# 1.4826 times the median of absolute errors is the standard deviation of normal ones (Huber, Robust Statistics, section 5.1).
_MAD = 1.4826
_DIFFERENCE = 0.02  # step of the finite differences, in the logarithm
_STALE = 0.5  # a Jacobian is made again when a factor has moved by more than this
_LEAST_GAIN = 0.005  # converged: a step would lower the objective, a log likelihood, by less than this
_MOST_STEPS = 20
_MOST_TRIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Measurements.

    Attributes
    ----------
    log_measured : array (n,)
    part : int array (n,)
        Rows with equal numbers share a scale of the errors.
    weight : array (n,)
        1, or 1 over the number of repeats; less where a network has many runs.
    network : int array (n,)
        Rows with equal numbers are of one network, and wrong together; -1 are of none. Empty: all are of none.
    """

    log_measured: FloatArray
    part: IntArray
    weight: FloatArray
    network: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.log_measured)

    def counted(self, chosen: BoolArray | None = None) -> FloatArray:
        """What every row counts: its weight, less where a part has too many rows; 0 outside those chosen."""
        weight = self.weight if chosen is None else np.where(chosen, self.weight, 0.0)
        totals = np.bincount(self.part, weights=weight)
        return np.asarray(weight * np.minimum(1.0, _MOST_ROWS / np.maximum(totals, 1.0))[self.part])


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Standard deviations of the logarithms of the factors, and their limits; arrays (m,).

    ``level_sd``: of the logarithm of what all times of a network are off by; 0: there is no such thing.
    """

    log_sd: FloatArray
    lowest: FloatArray
    highest: FloatArray
    level_sd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The minimum and the normal distribution around it.

    Attributes
    ----------
    theta : array (m,)
        Logarithms of the factors.
    covariance : array (m, m)
    scale : array (parts,)
        Of the errors of every part.
    log_predicted : array (n,)
    jacobian : array (n, m)
        Of the predictions, at the minimum.
    """

    theta: FloatArray
    covariance: FloatArray
    scale: FloatArray
    log_predicted: FloatArray
    jacobian: FloatArray

    @property
    def log_sd(self) -> FloatArray:
        """Standard deviations of the logarithms of the factors."""
        return np.asarray(np.sqrt(np.diag(self.covariance)))

    @property
    def correlation(self) -> FloatArray:
        """Of the logarithms of the factors."""
        sd = self.log_sd
        return np.asarray(self.covariance / np.outer(sd, sd))


def jacobian(predict: Predict, theta: FloatArray, log_predicted: FloatArray, prior: Prior) -> FloatArray:
    """Derivatives of the predictions by forward differences, backward where the limit is near.

    >>> prior = Prior(log_sd=np.ones(2), lowest=-np.ones(2), highest=np.ones(2))
    >>> jacobian(lambda theta: 3 * theta[:1] - theta[1:], np.zeros(2), np.zeros(1), prior).round(9).tolist()
    [[3.0, -1.0]]
    """
    columns = []
    for j in range(len(theta)):
        step = _DIFFERENCE if theta[j] + _DIFFERENCE <= prior.highest[j] else -_DIFFERENCE
        moved = theta.copy()
        moved[j] += step
        columns.append((predict(moved) - log_predicted) / step)
    return np.stack(columns, axis=1) if columns else np.zeros((len(log_predicted), 0))


def scales_of(
    residual: FloatArray, data: Data, chosen: BoolArray | None = None, *, centred: bool = False
) -> FloatArray:
    """Scale of the errors of every part: a robust standard deviation, drawn to the usual one where there are few rows.

    Parameters
    ----------
    residual : array (n,)
    data : Data
    chosen : bool array (n,), optional
    centred : bool
        Around the median of the part instead of 0: what all rows have in common may still be explained by a constant.

    Examples
    --------
    >>> data = Data(log_measured=np.zeros(5), part=np.zeros(5, dtype=np.int64), weight=np.ones(5))
    >>> scales_of(np.array([0.1, -0.1, 0.1, -0.1, 9.0]), data).round(3).tolist()  # the outlier does not count
    [0.149]
    """
    known = np.ones(len(data), dtype=bool) if chosen is None else chosen
    result = []
    for part in range(int(data.part.max(initial=0)) + 1):
        rows = known & (data.part == part)
        count = float(np.sum(data.weight[rows]))
        spread = 0.0
        if count:
            errors, weight = residual[rows], data.weight[rows]
            middle = _weighted_median(errors, weight) if centred else 0.0
            spread = _MAD * _weighted_median(np.abs(errors - middle), weight)
        variance = (_USUAL_ROWS * _USUAL_SCALE**2 + count * spread**2) / (_USUAL_ROWS + count)
        result.append(max(float(np.sqrt(variance)), _LEAST_SCALE))
    return np.array(result)


def _weighted_median(values: FloatArray, weights: FloatArray) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, 0.5 * total[-1])])


def fit(predict: Predict, data: Data, prior: Prior, known: tuple[FloatArray, FloatArray] | None = None) -> Fit:
    """Find the factors that explain the measurements, starting from the bundled model.

    Parameters
    ----------
    predict : function
        Logarithms of the factors (m,) -> logarithms of the predicted times (n,).
    data : Data
    prior : Prior
    known : tuple of array (n,) and array (n, m), optional
        Predictions and Jacobian of the bundled model, where they are known.

    Returns
    -------
    Fit

    Examples
    --------
    Two times that a single factor scales, measured 20 % longer than predicted; the prior holds back a little:

    >>> data = Data(log_measured=np.log([1.2, 2.4]), part=np.zeros(2, dtype=np.int64), weight=np.ones(2))
    >>> prior = Prior(log_sd=np.array([0.3]), lowest=np.array([-2.0]), highest=np.array([2.0]))
    >>> found = fit(lambda theta: np.log([1.0, 2.0]) + theta[0], data, prior)
    >>> float(np.exp(found.theta[0]).round(2)), float(found.log_sd[0].round(2))
    (1.19, 0.07)
    """
    theta = np.zeros(len(prior.log_sd))
    predicted, slopes = known or (predict(theta), None)
    if slopes is None:
        slopes = jacobian(predict, theta, predicted, prior)
    return _descend(predict, data, prior, (theta, predicted, slopes))


def refit(predict: Predict, data: Data, prior: Prior, found: Fit, chosen: BoolArray) -> Fit:
    """The same with some of the rows only: on the straight line through a fit to all of them, then predicted once.

    Parameters
    ----------
    predict, data, prior : see `fit`
    found : Fit
        To all rows.
    chosen : bool array (n,)
    """

    def straight(theta: FloatArray) -> FloatArray:
        return np.asarray(found.log_predicted + found.jacobian @ (theta - found.theta))

    start = found.theta, found.log_predicted, found.jacobian
    result = _descend(straight, data, prior, start, chosen)
    return replace(result, log_predicted=predict(result.theta))


def _descend(
    predict: Predict,
    data: Data,
    prior: Prior,
    start: tuple[FloatArray, FloatArray, FloatArray],
    chosen: BoolArray | None = None,
) -> Fit:
    """Minimise on a straight line through the predictions, predict there, and again; every step corrects the slopes (Broyden).

    ``start``: logarithms of the factors, of the predictions there, and their derivatives. Slopes are made again where the factors have
    moved far. Where only some rows are chosen, the predictions are a straight line.
    """
    theta, predicted, slopes = start
    made_at, counted = theta, data.counted(chosen)
    line = _line(data, prior, counted, np.full(int(data.part.max(initial=0)) + 1, _USUAL_SCALE))
    levels = np.zeros(line.member.shape[1])
    for _ in range(_MOST_STEPS):
        _, levels, _ = line.best(theta, predicted, slopes, levels, moves=False)
        scale = scales_of(line.rest(predicted, levels), data, chosen, centred=True)
        line = _line(data, prior, counted, scale)
        _, levels, before = line.best(theta, predicted, slopes, levels, moves=False)
        target, ahead, after = line.best(theta, predicted, slopes, levels)
        if before - after < _LEAST_GAIN:
            break
        step = _shorter(predict, line, theta, target, ahead, before)
        if step is None:
            if chosen is not None or not np.any(theta != made_at):
                break
            slopes, made_at = jacobian(predict, theta, predicted, prior), theta
            continue
        moved, there = step
        change = moved - theta
        slopes = slopes + np.outer(there - predicted - slopes @ change, change) / float(change @ change)
        theta, predicted = moved, there
        if chosen is None and np.any(np.abs(theta - made_at) > _STALE):
            slopes, made_at = jacobian(predict, theta, predicted, prior), theta
    _, levels, _ = line.best(theta, predicted, slopes, levels, moves=False)
    scale = scales_of(line.rest(predicted, levels), data, chosen)
    line = _line(data, prior, counted, scale)
    return Fit(
        theta=theta,
        covariance=line.covariance(theta, predicted, slopes),
        scale=scale,
        log_predicted=predicted,
        jacobian=slopes,
    )


def _shorter(
    predict: Predict, line: _Line, theta: FloatArray, target: FloatArray, levels: FloatArray, before: float
) -> tuple[FloatArray, FloatArray] | None:
    """A step towards the target that lowers the objective, and its predictions; None where there is none."""
    for n in range(_MOST_TRIES):
        moved = theta + (target - theta) / 4.0**n
        if not np.any(moved != theta):
            return None
        there = predict(moved)
        slopes = np.zeros((len(there), len(theta)))
        if line.best(moved, there, slopes, levels, moves=False)[2] < before:
            return moved, there
    return None


def _line(data: Data, prior: Prior, counted: FloatArray, scale: FloatArray) -> _Line:
    names = np.unique(data.network[data.network >= 0]) if prior.level_sd > 0.0 else np.zeros(0, dtype=np.int64)
    member = (data.network[:, None] == names).astype(np.float64) if len(names) else np.zeros((len(data), 0))
    return _Line(data=data, prior=prior, counted=counted, scale=scale[data.part], member=member)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """What is minimised while the scales stand still and the predictions are a straight line in theta."""

    data: Data
    prior: Prior
    counted: FloatArray
    scale: FloatArray  # of every row
    member: FloatArray  # (rows, networks): 1 where the row is of the network

    def rest(self, predicted: FloatArray, levels: FloatArray) -> FloatArray:
        """Errors of every run without what all runs of its network have in common."""
        return np.asarray(self.data.log_measured - predicted - self.member @ levels)

    def best(
        self,
        theta: FloatArray,
        predicted: FloatArray,
        slopes: FloatArray,
        levels: FloatArray | None = None,
        *,
        moves: bool = True,
    ) -> tuple[FloatArray, FloatArray, float]:
        """Factors and levels that minimise the objective, and its value; where they do not move, the factors are those given.

        ``levels``: a guess at them.

        Raises
        ------
        MissingExtra
            scipy is not installed.
        """
        try:
            from scipy import optimize
        except ImportError:
            raise MissingExtra("planner calibrate", "calibrate", "scipy") from None
        count, networks = (len(theta) if moves else 0), self.member.shape[1]
        fixed = 0.0 if moves else 0.5 * float(np.sum((theta / self.prior.log_sd) ** 2))
        if not count + networks:
            loss = 0.5 * float(np.sum(self._loss((self.rest(predicted, np.zeros(0)) / self.scale) ** 2)[0]))
            return theta, np.zeros(0), loss + fixed
        inverse = np.concatenate(
            [1.0 / self.prior.log_sd[:count], np.full(networks, 1.0 / max(self.prior.level_sd, 1e-9))]
        )
        ahead = np.concatenate([slopes[:, :count], self.member], axis=1)
        slopes_of = np.concatenate([-ahead / self.scale[:, None], np.diag(inverse)])

        def residuals(x: FloatArray) -> FloatArray:
            rest = self.data.log_measured - predicted - slopes[:, :count] @ (x[:count] - theta[:count])
            return np.concatenate([(rest - self.member @ x[count:]) / self.scale, x * inverse])

        unbound = np.full(networks, np.inf)
        found = optimize.least_squares(
            residuals,
            np.concatenate(
                [
                    np.clip(theta[:count], self.prior.lowest[:count], self.prior.highest[:count]),
                    np.zeros(networks) if levels is None else levels,
                ]
            ),
            jac=lambda _: slopes_of,
            bounds=(
                np.concatenate([self.prior.lowest[:count], -unbound]),
                np.concatenate([self.prior.highest[:count], unbound]),
            ),
            loss=self._loss,
            xtol=1e-8,
            ftol=1e-8,
            gtol=1e-8,
        )
        return (found.x[:count] if moves else theta), found.x[count:], float(found.cost) + fixed

    def _loss(self, z: FloatArray) -> FloatArray:
        """Student's t for the rows, squares for the priors: value and two derivatives by the squared residuals."""
        rows, counted = z[: len(self.data)], self.counted * (_NU + 1.0)
        value = np.array([z, np.ones_like(z), np.zeros_like(z)])
        value[:, : len(rows)] = counted * np.array([np.log1p(rows / _NU), 1.0 / (_NU + rows), -((_NU + rows) ** -2.0)])
        return value

    def covariance(self, theta: FloatArray, predicted: FloatArray, slopes: FloatArray) -> FloatArray:
        """Of the logarithms of the factors: the inverse of the curvature of the equivalent least squares, whatever the levels are."""
        rest = self.rest(predicted, self.best(theta, predicted, slopes, moves=False)[1])
        weights = self.counted * (_NU + 1.0) / (_NU * self.scale**2 + rest**2)
        ahead = np.concatenate([slopes, self.member], axis=1)
        levels = np.full(self.member.shape[1], max(self.prior.level_sd, 1e-9) ** -2.0)
        curvature = ahead.T @ (weights[:, None] * ahead) + np.diag(np.concatenate([self.prior.log_sd**-2.0, levels]))
        found = np.linalg.inv(curvature)[: len(theta), : len(theta)]
        return np.asarray(0.5 * (found + found.T))


def folds_of(groups: Sequence[Hashable], most: int, seed: int) -> IntArray:
    """The fold of every row: groups stay together, in an order drawn from the seed, the largest first to the emptiest fold.

    >>> folds_of(["a", "a", "b", "c"], 2, seed=0).tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """
    names = list(dict.fromkeys(groups))
    sizes = dict.fromkeys(names, 0)
    for name in groups:
        sizes[name] += 1
    shuffled = [names[n] for n in np.random.default_rng(seed).permutation(len(names))]
    count = min(most, len(names))
    filled = [0] * count
    fold: dict[Hashable, int] = {}
    for name in sorted(shuffled, key=lambda name: -sizes[name]):
        fold[name] = min(range(count), key=lambda n: (filled[n], n))
        filled[fold[name]] += sizes[name]
    return np.array([fold[name] for name in groups], dtype=np.int64)


def cross_validate(
    predict: Predict, data: Data, prior: Prior, found: Fit, groups: Sequence[Hashable], *, folds: int, seed: int
) -> tuple[int, FloatArray] | None:
    """Predict every row by a fit to the folds that it is not in.

    Parameters
    ----------
    predict, data, prior : see `planner.calibration.fit.fit`
    found : Fit
        To all rows; its Jacobian serves the folds.
    groups : sequence of hashable, one per row
        Rows with equal ones are in the same fold.
    folds : int
        At most so many; fewer where there are fewer groups.
    seed : int
        Of the order of the groups.

    Returns
    -------
    (int, array (n,)) or None
        Folds, and logarithms of the predictions; None where there is one group only.
    """
    fold = folds_of(groups, folds, seed)
    count = int(fold.max(initial=0)) + 1
    if count < 2:
        return None
    predicted = np.empty(len(data))
    for n in range(count):
        outside = fold == n
        predicted[outside] = refit(predict, data, prior, found, ~outside).log_predicted[outside]
    return count, predicted
