"""Devices of one kind that differ: those that wait for each other in every step go at the pace of the slowest."""

from __future__ import annotations

from statistics import NormalDist

__all__ = ["SPREAD", "slowest_of"]

# Standard deviation of the time that equal work takes on devices of one kind. Sinha et al., Not All GPUs Are Created Equal (SC22,
# arXiv:2208.11035, abstract): 8 % on average between the whiskers of a cluster's devices, which are 5.4 standard deviations apart.
SPREAD = 0.08 / 5.4


def slowest_of(workers: int, spread: float = SPREAD) -> float:
    """How long the slowest of some devices takes on average, over one of them: their times are normally distributed.

    The expected maximum of n draws is that of the quantile (n - 3/8) / (n + 1/4) (Blom, Statistical Estimates and Transformed
    Beta-Variables, 1958).

    >>> [round(slowest_of(workers), 3) for workers in (1, 8, 64, 1024)]
    [1.0, 1.021, 1.035, 1.048]
    """
    return 1.0 + spread * NormalDist().inv_cdf((workers - 0.375) / (workers + 0.25))
