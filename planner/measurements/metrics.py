"""Measures of error: of times, of memory, of what fits, and of the order of the alternatives of one question."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.tolerances import ROUNDING

# Figures by name; None where there is nothing to summarise.
Figures = dict[str, float | None]


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


def error_summary(predicted: ArrayLike, measured: ArrayLike, ideal: ArrayLike, factor: float | None = None) -> Figures:
    """Errors of many predictions, as shares of what was measured.

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
    dict
        ``mape`` (mean), ``median_ape``, ``p90_ape``; ``bias``, the mean of log(predicted / measured): above 0 where predictions are too
        long, minus infinity where something is predicted to take no time at all; ``skill``, 1 - mape / mape of the baseline.

    Examples
    --------
    >>> summary = error_summary([1.1, 1.8], [1.0, 2.0], [1.0, 1.0])
    >>> round(summary["mape"], 12), round(summary["skill"], 12)  # the baseline says 1 (or 2) for both: off by 0 and 50 %, 25 % in the mean
    (0.1, 0.6)
    """
    made = np.asarray(predicted, dtype=np.float64)
    expected = np.asarray(measured, dtype=np.float64)
    if not len(expected):
        return dict.fromkeys(("mape", "median_ape", "p90_ape", "bias", "skill"))
    errors = absolute_errors(made, expected)
    return {
        "mape": float(np.mean(errors)),
        "median_ape": float(np.median(errors)),
        "p90_ape": float(np.percentile(errors, 90)),
        "bias": float(np.mean(np.log(made / expected))) if np.all(made > 0) else -math.inf,
        "skill": _skill(errors, expected, np.asarray(ideal, dtype=np.float64), factor),
    }


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


# -- order of alternatives -----------------------------------------------------------------------------------------------------

# Fewer alternatives than this say nothing about a ranking.
LEAST_ROWS = 3


def _pair_counts(predicted: ArrayLike, measured: ArrayLike) -> tuple[int, int, int]:
    """Concordant less discordant pairs, pairs whose predictions differ, and pairs whose measurements differ."""
    first, second = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    agreed = made = real = 0
    for n in range(len(first) - 1):
        signs = np.sign(first[n + 1 :] - first[n]), np.sign(second[n + 1 :] - second[n])
        agreed += int(signs[0] @ signs[1])
        made += int(np.count_nonzero(signs[0]))
        real += int(np.count_nonzero(signs[1]))
    return agreed, made, real


def kendall_tau(predicted: ArrayLike, measured: ArrayLike) -> float | None:
    """Kendall's tau-b: concordant less discordant pairs, over the geometric mean of the pairs not tied in either.

    None where the measurements are all equal; 0 where the predictions are, which then say nothing.

    M. Kendall, The treatment of ties in ranking problems, Biometrika 33(3), 1945.

    >>> kendall_tau([1, 2, 3], [10, 30, 20])  # two pairs right, one wrong
    0.3333333333333333
    """
    agreed, made, real = _pair_counts(predicted, measured)
    if not real:
        return None
    return agreed / math.sqrt(float(made) * float(real)) if made else 0.0


def pair_accuracy(predicted: ArrayLike, measured: ArrayLike) -> float | None:
    """Share of the pairs with different measurements that are predicted in the right order; a tied prediction is half right.

    >>> pair_accuracy([1, 2, 3], [10, 30, 20])
    0.6666666666666666
    """
    agreed, _, real = _pair_counts(predicted, measured)
    return 0.5 + 0.5 * agreed / real if real else None


def regret(predicted: ArrayLike, measured: ArrayLike, top: int = 1) -> float:
    """Best measured of the ``top`` predicted best, over the best measured of all: 1 is no loss.

    Where equal predictions compete for the last places, it is the mean over all ways to choose among them: the order of the rows
    decides nothing.

    Parameters
    ----------
    predicted, measured : array (n,)
    top : int

    Examples
    --------
    >>> regret([1.0, 2.0, 3.0], [12.0, 10.0, 11.0]), regret([1.0, 2.0, 3.0], [12.0, 10.0, 11.0], top=2)
    (1.2, 1.0)
    >>> regret([1.0, 1.0, 3.0], [12.0, 10.0, 11.0])  # either of the first two
    1.1
    """
    made, real = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    top = min(top, len(made))
    border = np.sort(made)[top - 1]
    sure = real[made < border]
    tied = np.sort(real[made == border])
    places = top - len(sure)
    best_sure = float(np.min(sure)) if len(sure) else math.inf
    # The i-th smallest of t tied ones is the smallest of `places` chosen with probability C(t - 1 - i, places - 1) / C(t, places).
    ways = [math.comb(len(tied) - 1 - i, places - 1) for i in range(len(tied))]
    picked = sum(w * min(float(x), best_sure) for w, x in zip(ways, tied, strict=True)) / math.comb(len(tied), places)
    return picked / float(np.min(real))


def preferred(predicted: ArrayLike, fits: ArrayLike) -> FloatArray:
    """Places of plans as the planner ranks them: those predicted to fit by their time, then the others by theirs; equal ones share one.

    >>> preferred([2.0, 1.0, 3.0, 3.0], [True, False, True, True]).tolist()
    [0.0, 2.0, 1.0, 1.0]
    """
    keys = list(
        zip((~np.asarray(fits, dtype=bool)).tolist(), np.asarray(predicted, dtype=np.float64).tolist(), strict=True)
    )
    places = {key: place for place, key in enumerate(sorted(set(keys)))}
    return np.array([places[key] for key in keys], dtype=np.float64)


def ranking_summary(groups: Sequence[Iterable[ArrayLike]]) -> Figures:
    """Means over groups of (predicted, measured, predicted to fit); small groups are left out.

    Times of all pairs are compared; what is picked fits, if anything does: the planner offers nothing else.
    """
    pairs, picks = [], []
    for predicted, measured, fits in groups:
        made, real = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
        if len(made) >= LEAST_ROWS:
            pairs.append((made, real))
            picks.append((preferred(made, fits), real))
    first = [regret(a, b) for a, b in picks]
    return {
        "groups": len(pairs),
        "kendall_tau": _mean([kendall_tau(a, b) for a, b in pairs]),
        "pair_accuracy": _mean([pair_accuracy(a, b) for a, b in pairs]),
        "regret_top1_mean": _mean(first),
        "regret_top1_max": max(first, default=None),
        "regret_top3_mean": _mean([regret(a, b, top=3) for a, b in picks]),
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
