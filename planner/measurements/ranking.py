"""How well predictions order the alternatives of one question, and what following them costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray, IntArray

__all__ = ["LEAST_ROWS", "RankingSummary", "kendall_tau", "pair_accuracy", "preferred", "ranking_summary", "regret"]


# Fewer alternatives than this say nothing about a ranking.
LEAST_ROWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSummary:
    """Means over groups; None where no group has enough rows."""

    groups: int = 0
    kendall_tau: float | None = None
    pair_accuracy: float | None = None
    regret_top1_mean: float | None = None
    regret_top1_max: float | None = None
    regret_top3_mean: float | None = None


def _pair_counts(predicted: ArrayLike, measured: ArrayLike) -> tuple[int, int, int]:
    """Concordant less discordant pairs, pairs whose predictions differ, and pairs whose measurements differ, in n log n time.

    W. Knight, A computer method for calculating Kendall's tau with ungrouped data, JASA 61(314), 1966: after sorting by the predictions
    (equal ones by the measurements) the discordant pairs are the inversions of the measurements.
    """
    first = np.unique(np.asarray(predicted, dtype=np.float64), return_inverse=True)[1].reshape(-1)
    second = np.unique(np.asarray(measured, dtype=np.float64), return_inverse=True)[1].reshape(-1)
    n = len(first)
    pairs = n * (n - 1) // 2
    tied = [_equal_pairs(values) for values in (first, second, first * (n + 1) + second)]
    discordant = _inversions(second[np.lexsort((second, first))])
    return pairs - tied[0] - tied[1] + tied[2] - 2 * discordant, pairs - tied[0], pairs - tied[1]


def _equal_pairs(values: IntArray) -> int:
    counts = np.unique(values, return_counts=True)[1]
    return int(np.sum(counts * (counts - 1) // 2))


def _inversions(values: IntArray) -> int:
    """Pairs out of order, of whole numbers from 0: those that differ first in one binary digit, digit by digit.

    >>> _inversions(np.array([2, 0, 1, 1]))
    3
    """
    total = 0
    for digit in range(int(values.max(initial=0)).bit_length()):
        prefix = values >> (digit + 1)
        ordered = values[np.argsort(prefix, kind="stable")] >> digit  # equal prefixes side by side, in their order
        ones = ordered & 1
        before = np.cumsum(ones) - ones
        new = np.flatnonzero(np.diff(ordered >> 1, prepend=-1))
        start = np.repeat(before[new], np.diff(np.append(new, len(ordered))))
        total += int(np.sum((before - start)[ones == 0]))
    return total


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


def ranking_summary(groups: Sequence[tuple[ArrayLike, ArrayLike, ArrayLike]]) -> RankingSummary:
    """Summarise (predicted, measured, predicted to fit) of every group; small groups are left out.

    Times of all pairs are compared; what is picked fits, if anything does: the planner offers nothing else.
    """
    pairs, picks = [], []
    for predicted, measured, fits in groups:
        made, real = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
        if len(made) >= LEAST_ROWS:
            pairs.append((made, real))
            picks.append((preferred(made, fits), real))
    if not pairs:
        return RankingSummary()
    first = [regret(a, b) for a, b in picks]
    return RankingSummary(
        groups=len(pairs),
        kendall_tau=_mean([kendall_tau(a, b) for a, b in pairs]),
        pair_accuracy=_mean([pair_accuracy(a, b) for a, b in pairs]),
        regret_top1_mean=_mean(first),
        regret_top1_max=max(first),
        regret_top3_mean=_mean([regret(a, b, top=3) for a, b in picks]),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
