"""How well a fit predicts rows that it has not seen."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from planner.calibration.fit import Data, Fit, Predict, Prior, refit

__all__ = ["LeftOut", "cross_validate", "folds_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Every row predicted by a fit to the folds that it is not in.

    Attributes
    ----------
    folds : int
    log_predicted : array (n,)
    """

    folds: int
    log_predicted: FloatArray


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
) -> LeftOut | None:
    """Leave out one fold after the other.

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
    LeftOut or None
        None where there is one group only.
    """
    fold = folds_of(groups, folds, seed)
    count = int(fold.max(initial=0)) + 1
    if count < 2:
        return None
    predicted = np.empty(len(data))
    for n in range(count):
        outside = fold == n
        predicted[outside] = refit(predict, data, prior, found, ~outside).log_predicted[outside]
    return LeftOut(folds=count, log_predicted=predicted)
