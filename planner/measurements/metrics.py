"""Measures of error: of times, of memory, of what fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.tolerances import ROUNDING

__all__ = ["ErrorSummary", "absolute_errors", "best_factor", "error_summary", "far_off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Errors of many predictions, as shares of what was measured; None where there is nothing to summarise."""

    mape: float | None = None  # mean
    median_ape: float | None = None
    p90_ape: float | None = None
    bias: float | None = None  # mean of log(predicted / measured): above 0 where predictions are too long
    skill: float | None = None  # 1 - mape / mape of the baseline


def absolute_errors(predicted: ArrayLike, measured: ArrayLike) -> FloatArray:
    """``|predicted - measured| / measured``.

    >>> absolute_errors([1.5, 8.0], [1.0, 10.0]).tolist()
    [0.5, 0.2]
    """
    expected = np.asarray(measured, dtype=np.float64)
    return np.asarray(np.abs(np.asarray(predicted, dtype=np.float64) - expected) / expected)


def best_factor(ideal: ArrayLike, measured: ArrayLike) -> float:
    """The factor c that makes the mean of ``|c ideal - measured| / measured`` least: the one efficiency of the baseline, as 1 / c.

    Notes
    -----
    The mean is ``sum w |c - r| / n`` with ``r = measured / ideal`` and weights ``w = 1 / r``, so c is a median of r weighted by w (of
    two, the lower).

    Examples
    --------
    >>> best_factor([1.0, 1.0, 1.0], [2.0, 2.0, 9.0])
    2.0
    """
    ratio = np.asarray(measured, dtype=np.float64) / np.asarray(ideal, dtype=np.float64)
    order = np.argsort(ratio, kind="stable")
    weight = np.cumsum(1.0 / ratio[order])
    return float(ratio[order][np.searchsorted(weight, 0.5 * weight[-1])])


def error_summary(
    predicted: ArrayLike, measured: ArrayLike, ideal: ArrayLike, factor: float | None = None
) -> ErrorSummary:
    """Summarise.

    Parameters
    ----------
    predicted, measured : array (n,)
        Positive.
    ideal : array (n,)
        What the baseline says before its efficiency is fitted; rows where it is 0 are no part of the skill.
    factor : float, optional
        The factor of the baseline, fitted to more rows than these; unless given, that of `best_factor`.

    Returns
    -------
    ErrorSummary

    Examples
    --------
    >>> summary = error_summary([1.1, 1.8], [1.0, 2.0], [1.0, 1.0])
    >>> round(summary.mape, 12), round(summary.skill, 12)  # the baseline says 1 (or 2) for both: off by 0 and 50 %, so 25 % in the mean
    (0.1, 0.6)
    """
    made = np.asarray(predicted, dtype=np.float64)
    expected = np.asarray(measured, dtype=np.float64)
    if not len(expected):
        return ErrorSummary()
    errors = absolute_errors(made, expected)
    return ErrorSummary(
        mape=float(np.mean(errors)),
        median_ape=float(np.median(errors)),
        p90_ape=float(np.percentile(errors, 90)),
        bias=_bias(made, expected),
        skill=_skill(errors, expected, np.asarray(ideal, dtype=np.float64), factor),
    )


def _bias(predicted: FloatArray, measured: FloatArray) -> float:
    """Mean log ratio; minus infinity where something is predicted to take no time at all."""
    return float(np.mean(np.log(predicted / measured))) if np.all(predicted > 0) else -math.inf


def _skill(errors: FloatArray, measured: FloatArray, ideal: FloatArray, factor: float | None) -> float | None:
    known = (ideal > 0) & np.isfinite(ideal)
    if np.count_nonzero(known) < (2 if factor is None else 1):  # one row: the baseline is that row
        return None
    scale = best_factor(ideal[known], measured[known]) if factor is None else factor
    baseline = absolute_errors(scale * ideal[known], measured[known])
    of_baseline = float(np.mean(baseline))
    # A baseline that is exact but for rounding leaves nothing to be better than: one row, whose own factor it may be.
    return 1.0 - float(np.mean(errors[known])) / of_baseline if of_baseline > ROUNDING else None


# Predictions that are off by more than this in the median of a file are no matter of a cost model.
_WRONG_UNIT = 30.0
_FEWEST = 3  # rows of which that can be said


def far_off(ratios: Sequence[float]) -> tuple[str, ...]:
    """What to say where predictions over measured times are so far from 1 that no cost model explains it; else nothing.

    >>> far_off([0.001, 0.001, 0.9]), far_off([0.5, 0.6, 0.9])
    (('half of the predictions are over 1,000 times shorter than what was measured: wrong unit?',), ())
    """
    positive = [ratio for ratio in ratios if ratio > 0]
    middle = float(np.median(positive)) if len(positive) >= _FEWEST else 1.0
    if abs(math.log(middle)) <= math.log(_WRONG_UNIT):
        return ()
    far = "shorter" if middle < 1 else "longer"
    times = 1 / middle if middle < 1 else middle
    return (f"half of the predictions are over {times:,.0f} times {far} than what was measured: wrong unit?",)
