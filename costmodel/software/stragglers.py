"""Devices of one kind that differ: those that wait for each other in every step go at the pace of the slowest."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray

__all__ = ["slowest_of"]


def slowest_of(workers: ArrayLike, spread: float) -> FloatArray:
    """How long the slowest of some devices takes on average, over one of them: their times are normally distributed.

    The expected maximum of n draws is that of the quantile (n - 3/8) / (n + 1/4) (Blom, Statistical Estimates and Transformed
    Beta-Variables, 1958).

    Parameters
    ----------
    workers : array of int
    spread : float
        Standard deviation over the mean.

    >>> slowest_of([1, 8, 64, 1024], 0.08 / 5.4).round(3).tolist()
    [1.0, 1.021, 1.035, 1.048]
    """
    numbers, place = np.unique(np.asarray(workers), return_inverse=True)
    if spread == 0.0:
        return np.ones(np.shape(workers))
    found = [1.0 + spread * NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) for n in numbers.tolist()]
    return np.asarray(np.array(found)[place].reshape(np.shape(workers)))
