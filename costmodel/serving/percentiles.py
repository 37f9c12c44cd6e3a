"""Percentiles of a time from its moments, in closed form.

The parts of a request's time have means, variances and third moments about their means that add up where the parts are independent. A gamma
distribution, shifted so that it has all three (Pearson's type III), has the quantile (E. B. Wilson and M. M. Hilferty, The distribution
of chi-square, PNAS 17, 1931)

    mean + sd (2 / g) ((1 + g u / 6 - g^2 / 36)^3 - 1)        g = third moment / sd^3, u = normal quantile

The time to the first token is a mixture: some requests find nothing under way and start at once, some wait for a place, which takes an
exponential time, and the others wait for a pass. Its quantiles are found by bisection.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.objectives import PERCENTILES as PERCENTS

# The ends of the columns that answers have, and the share of requests that are faster.
SHARES: Mapping[str, float] = {f"p{percent}": percent / 100.0 for percent in PERCENTS}
PERCENTILES: tuple[str, ...] = tuple(f"{time}_{name}_s" for time in ("ttft", "tpot", "request") for name in SHARES)
_STEPS = 40  # of a bisection
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Mean, variance and third moment about the mean, (n,) each; those of a sum of independent times are the sums.

    Examples
    --------
    >>> one = Moments(mean=np.array([1.0]), variance=np.array([1.0]), third=np.array([2.0]))  # exponential
    >>> one.quantile(0.5).round(2).tolist(), one.quantile(0.99).round(2).tolist()  # log 2, log 100
    ([0.7], [4.61])
    >>> (one + one).variance.tolist()
    [2.0]
    """

    mean: FloatArray
    variance: FloatArray
    third: FloatArray

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            mean=self.mean + other.mean, variance=self.variance + other.variance, third=self.third + other.third
        )

    def __mul__(self, factor: FloatArray | float) -> Moments:
        return Moments(mean=factor * self.mean, variance=factor**2 * self.variance, third=factor**3 * self.third)

    def beyond(self, value: FloatArray) -> FloatArray:
        """Share of a gamma distribution with this mean and variance beyond a value (Wilson and Hilferty)."""
        variation = np.maximum(np.sqrt(self.variance), 1e-9 * self.mean) / np.maximum(self.mean, 1e-30)
        ninth = np.minimum(variation, 30.0) ** 2 / 9.0
        root = np.cbrt(value / np.maximum(self.mean, 1e-30))
        return np.asarray(1.0 - normal_share((root - 1.0 + ninth) / np.sqrt(np.maximum(ninth, 1e-30))))

    def quantile(self, share: float) -> FloatArray:
        """The time within which a share of the requests is; not below 0."""
        deviation = np.sqrt(np.maximum(self.variance, 0.0))
        skew = np.clip(self.third / np.maximum(deviation, 1e-30) ** 3, 1e-6, 8.0)
        normal = NormalDist().inv_cdf(share)
        inside = np.maximum(1.0 + skew * normal / 6.0 - skew**2 / 36.0, 0.0)
        return np.asarray(np.maximum(self.mean + deviation * 2.0 / skew * (inside**3 - 1.0), 0.0))


def gamma(mean: FloatArray, variation: FloatArray | float) -> Moments:
    """Moments of a gamma distribution by its coefficient of variation."""
    square = np.asarray(variation, dtype=np.float64) ** 2
    return Moments(mean=mean, variance=mean**2 * square, third=2.0 * mean**3 * square**2)


def normal_share(value: FloatArray) -> FloatArray:
    """Share of a normal distribution below a value (M. Abramowitz and I. A. Stegun, 7.1.26: within 1.5e-7).

    >>> normal_share(np.array([-1.0, 0.0, 1.2816])).round(4).tolist()
    [0.1587, 0.5, 0.9]
    """
    x = np.abs(value) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * x)
    tail = np.polyval(_ERF[::-1], t) * t * np.exp(-(np.minimum(x, 25.0) ** 2))
    return np.asarray(np.where(value >= 0, 1.0 - 0.5 * tail, 0.5 * tail))


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """How the time to the first token is distributed; arrays (n,).

    Attributes
    ----------
    least_s : array
        What every request needs beside its prompt.
    prompt : Moments
        Its prompt.
    meets : array
        Share of requests that find a pass under way.
    longer : Moments
        What these take longer, the wait for a place left out.
    queued : array
        Share of requests that wait for a place.
    place_s : array
        Mean wait of all requests for a place.
    """

    least_s: FloatArray
    prompt: Moments
    meets: FloatArray
    longer: Moments
    queued: FloatArray
    place_s: FloatArray

    @property
    def moments(self) -> Moments:
        """Of all requests."""
        longer, none = self.longer, np.zeros_like(self.least_s)
        second = longer.variance + longer.mean**2
        third = longer.third + 3 * longer.mean * longer.variance + longer.mean**3
        waits = self.prompt + mixed(self.meets, longer.mean, second, third)
        q = np.clip(self.queued, 1e-12, 1.0)
        each = self.place_s / q
        return Moments(mean=self.least_s, variance=none, third=none) + waits + mixed(q, each, 2 * each**2, 6 * each**3)

    def quantile(self, share: float) -> FloatArray:
        """The time within which a share of the requests has its first token."""
        p, q = self.meets, np.clip(self.queued, 1e-12, 1.0)
        each = np.maximum(self.place_s / q, 1e-30)
        both = self.prompt + self.longer
        usual = self.prompt.mean + p * self.longer.mean
        low, high = np.zeros_like(p), 50.0 * (both.mean + np.sqrt(both.variance) + each)
        for _ in range(_STEPS):
            middle = 0.5 * (low + high)
            passes = (1.0 - p) * self.prompt.beyond(middle) + p * both.beyond(middle)
            places = np.exp(-np.minimum(np.maximum(middle - usual, 0.0) / each, 700.0))
            later = (1.0 - q) * passes + q * places > 1.0 - share
            low, high = np.where(later, middle, low), np.where(later, high, middle)
        return np.asarray(self.least_s + high)


def mixed(chance: FloatArray, mean: FloatArray, second: FloatArray, third: FloatArray) -> Moments:
    """Of a time that is 0 but with a chance, by its moments about 0 then.

    >>> one = np.ones(1)
    >>> mixed(0.5 * one, 2.0 * one, 8.0 * one, 48.0 * one).variance.tolist()  # 0 or exponential: 0.5 x 8 - 1
    [3.0]
    """
    m, s, t = chance * mean, chance * second, chance * third
    return Moments(mean=m, variance=np.maximum(s - m**2, 0.0), third=np.maximum(t - 3 * m * s + 2 * m**3, 0.0))


def low_share(share: float, variation: float) -> float:
    """Quantile of a gamma distribution of mean 1: Wilson and Hilferty's, and in a long lower tail ``(share Gamma(k + 1))^(1 / k) / k``.

    >>> [round(low_share(share, variation), 2) for share, variation in ((0.01, 1.0), (0.1, 0.5), (0.1, 0.0))]  # -log(0.99) = 0.01
    [0.01, 0.44, 1.0]
    """
    one = np.ones(1)
    found = float(gamma(one, variation).quantile(share)[0])
    shape = max(variation, 1e-3) ** -2
    tail = (math.log(share) + math.lgamma(shape + 1.0)) / shape - math.log(shape)
    return max(found, math.exp(tail) if shape < 10.0 else 0.0)


def of_passes(decoding_s: FloatArray, square: FloatArray | float) -> Moments:
    """What a time varies by because requests need unlike numbers of passes, whose squared coefficient of variation is given (gamma).

    >>> found = of_passes(np.array([2.0]), np.array([0.25]))
    >>> found.mean.tolist(), found.variance.tolist(), found.third.tolist()
    ([0.0], [1.0], [1.0])
    """
    return Moments(mean=0.0 * decoding_s, variance=decoding_s**2 * square, third=2.0 * decoding_s**3 * square**2)


def shorter_answers(tokens: int, variation: float) -> float:
    """Mean of 1 / length over 1 / mean: of a gamma distribution, and at most of an exponential one of whole numbers from 1 on.

    >>> shorter_answers(100, 0.0), round(shorter_answers(100, 0.5), 3), round(shorter_answers(100, 1.0), 1)
    (1.0, 1.333, 5.2)
    """
    return 1.0 / max(1.0 - variation**2, 1.0 / (math.log(max(tokens, 1)) + 0.6), 1e-3) if tokens > 1 else 1.0


def columns(
    ttft: Callable[[float], FloatArray],
    tpot: Moments | Callable[[float], FloatArray],
    request: Moments | Callable[[float], FloatArray],
    names: Collection[str] = PERCENTILES,
) -> dict[str, FloatArray]:
    """Some columns of `PERCENTILES`."""
    given = {"ttft": ttft, "tpot": tpot, "request": request}
    times = {name: of.quantile if isinstance(of, Moments) else of for name, of in given.items()}
    return {
        column: at(share)
        for time, at in times.items()
        for name, share in SHARES.items()
        if (column := f"{time}_{name}_s") in names
    }
