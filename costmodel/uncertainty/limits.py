"""The chance that measured times keep limits, and that a plan fits into the memory, by the errors of the predictions.

Logarithms of measured times are normal on either side of their median, with a tenth beyond either end of the 80 % interval:

    P(time <= limit) = Phi(x),   x = z log(limit / median) / log(high / median)   above the median, log(median / low) below it

with z = 1.2816, the normal quantile of 0.9. Two times of one plan are wrong together: with the correlation r of their errors,

    P(both) = Phi(x) Phi(y) + 1 / (2 pi)  integral from 0 to asin(r) of  exp(-(x^2 + y^2 - 2 x y sin t) / (2 cos^2 t)) dt

(Genz, Numerical computation of rectangular bivariate and trivariate normal and t probabilities, Statistics and Computing 14, 2004).

Memory is normal in its logarithm, too:

    log(memory that the run needs / predicted) ~ Normal(mean, log_sd^2)

A run fits if what it needs is at most what the device has. With z the normal quantile of a chance p,

    P(fits) = Phi((log(capacity / predicted) - mean) / log_sd)
    P(fits) >= p  exactly if  predicted <= capacity exp(-(mean + z log_sd))

so that a search for plans that fit with some chance is a search within a limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.uncertainty.intervals import INTERVAL_SHARE, Candidates, ErrorModel, standard_deviations

# Chance of fitting that a plan needs unless told otherwise.
CONFIDENCE = 0.95
# Chance to keep the limits on its times that a plan to serve needs unless told otherwise, and the one that another plan is named for.
EVEN, SURE = 0.5, 0.9
# Errors of a framework without runs of its own.
OTHERS = "others"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryErrors:
    """Errors of the predicted memory of one framework's runs; a normal distribution of natural logarithms.

    Attributes
    ----------
    mean : float
        Of log(needed / predicted).
    log_sd : float
        Its standard deviation, for a network that has not run, above 0.
    rows : int
        Runs that it was found from.
    framework : str
        Whose runs they are; `OTHERS`: of all frameworks that have some.
    ran : float
        Of `OTHERS`: share of the runs with P(fits) of at least `CONFIDENCE` that ran, where errors found without their framework said so.

    Examples
    --------
    Of 80 GB, and a plan of 70 GB, log(80 / 70) = 0.134 is 1.34 standard deviations of 0.1: Phi(1.34) = 0.909.

    >>> errors = MemoryErrors(mean=0.0, log_sd=0.1, rows=30)
    >>> round(errors.probability(70e9, 80e9), 3)
    0.909
    >>> limit = errors.limit_bytes(80e9, 0.95)
    >>> round(limit / 1e9, 1), round(errors.probability(limit, 80e9), 6)
    (67.9, 0.95)
    """

    mean: float
    log_sd: float
    rows: int = 0
    framework: str = ""
    ran: float = 1.0

    @property
    def surest(self) -> float:
        """Largest chance of fitting that the runs can show.

        That n of n runs went well says that the next one does with a chance of (n + 1) / (n + 2): Laplace's rule of succession. Runs of
        other frameworks show what they showed of frameworks that were left out.

        >>> round(MemoryErrors(mean=0.0, log_sd=0.1, rows=30, framework="megatron-bridge").surest, 3)  # 31 / 32
        0.969
        >>> MemoryErrors(mean=0.0, log_sd=0.1, rows=1673, framework=OTHERS, ran=0.909).surest
        0.909
        """
        if self.framework == OTHERS:
            return self.ran
        return (self.rows + 1) / (self.rows + 2) if self.rows else 1.0

    def probability(self, predicted_bytes: float, capacity_bytes: float) -> float:
        """Chance that a plan of predicted bytes fits into a capacity, 0 to 1."""
        if predicted_bytes <= 0.0 or capacity_bytes <= 0.0:
            return float(capacity_bytes > 0.0)
        return _NORMAL.cdf((math.log(capacity_bytes / predicted_bytes) - self.mean) / self.log_sd)

    def limit_bytes(self, capacity_bytes: float, confidence: float) -> float:
        """Most bytes that a plan may be predicted to need to fit with a chance between 0 and 1."""
        return capacity_bytes * math.exp(-self.mean - self.log_sd * _NORMAL.inv_cdf(confidence))


_NORMAL = NormalDist()
_CDF = np.vectorize(_NORMAL.cdf, otypes=[float])
# Standard deviations from the median of a logarithm to the upper end of its interval.
END = _NORMAL.inv_cdf((1.0 + INTERVAL_SHARE) / 2.0)
# The normal distribution is as good as 0 or 1 beyond so many standard deviations.
_FAR = 8.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def deviates(median: ArrayLike, low: ArrayLike, high: ArrayLike, limit: ArrayLike) -> FloatArray:
    """How many standard deviations above its median a limit lies.

    Examples
    --------
    A limit at the upper end is kept in 90 %, one at the median in half of the cases.

    >>> chance_of_all([deviates(10.0, 8.0, 13.0, np.array([8.0, 10.0, 13.0]))]).round(9).tolist()
    [0.1, 0.5, 0.9]
    """
    middle, below, upper, most = (np.asarray(value, dtype=np.float64) for value in (median, low, high, limit))
    above = np.log(most / middle)
    width = np.where(above > 0.0, np.log(upper / middle), np.log(middle / below))
    there = END * above / np.where(width > 0.0, width, 1.0)
    return np.asarray(np.clip(np.where(width > 0.0, there, _FAR * np.sign(above)), -_FAR, _FAR))


def chance_of_all(limits: Sequence[ArrayLike], correlation: ArrayLike = 1.0) -> FloatArray:
    """The chance that one or two limits are kept, which lie so many standard deviations above their medians.

    Examples
    --------
    Two limits at the medians, of errors that agree to one half: 1/4 + asin(1/2) / (2 pi) = 1/3.

    >>> float(chance_of_all([0.0, 0.0], 0.5).round(9)), float(chance_of_all([0.0, 1.2816], 1.0)), float(chance_of_all([]))
    (0.333333333, 0.5, 1.0)
    """
    if len(limits) < 2:
        return _share_below(limits[0]) if limits else np.ones(())
    x, y = (np.asarray(limit, dtype=np.float64) for limit in limits)
    least = _share_below(np.minimum(x, y))
    end = np.arcsin(np.clip(correlation, -1.0, 1.0))
    t = np.asarray(end)[..., None] * (_NODES + 1.0) / 2.0
    u, v = x[..., None], y[..., None]
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        inside = np.exp(-(u * u + v * v - 2.0 * u * v * np.sin(t)) / (2.0 * np.cos(t) ** 2))
    both = _share_below(x) * _share_below(y) + inside @ _WEIGHTS * end / (4.0 * math.pi)
    return np.where(np.asarray(correlation) >= 1.0, least, np.clip(both, 0.0, least))


def _share_below(value: ArrayLike) -> FloatArray:
    """Share of a normal distribution below a value."""
    return np.asarray(_CDF(value), dtype=np.float64)


def correlations(first: Candidates, second: Candidates, model: ErrorModel) -> FloatArray:
    """How far errors of two times of the same plans go together, (n,): what is not of the constants and parts of one alone.

    Examples
    --------
    Of one time a constant of 20 % moves all, of the other nothing; both have an error of 10 % in common: 0.01 / sqrt(0.05 x 0.01).

    >>> def one(effect):
    ...     return Candidates(step_time_s=np.ones(1), shares=np.zeros((1, 6)), effects=np.array([[effect]]),
    ...         covariance=np.array([[0.04]]), coordinates=np.zeros((1, 1)))
    >>> model = ErrorModel(shared_log_sd=0.1, plan_log_sd=0.0)
    >>> float(correlations(one(1.0), one(0.0), model)[0].round(6))
    0.447214
    """
    common = np.einsum("nk,kl,nl->n", first.effects, first.covariance, second.effects)
    common = common + (first.shares * second.shares) @ model.part_log_sd**2
    common = common + model.shared_log_sd**2 + model.plan_log_sd**2
    deviations = standard_deviations(first, model) * standard_deviations(second, model)
    return np.asarray(common / np.where(deviations > 0.0, deviations, 1.0))
