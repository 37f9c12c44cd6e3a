"""What all runs of one network have wrong alike: a level beside the constants, which no other network shares.

A cost model is wrong about a network in its own way: layers that it knows badly, an input pipeline, kernels that fit one shape. All runs of
the network have that error, and a fit that takes it for the constants of the machine carries it to every other network. So the residuals
of network g are ``r_i = u_g + e_i``: what they have in common, ``u_g``, normal around 0 with the standard deviation tau, and what every run
has for itself. With one network tau and the priors of the constants decide how much of a common error the constants take; of many
networks the levels average out.

References
----------
Laird, Ware: Random-effects models for longitudinal data, Biometrics 38 (1982), sections 2 and 3: a random intercept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray

__all__ = ["Levels", "levels_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Levels of networks.

    Attributes
    ----------
    member : array (networks, n)
        1 where the row is of the network, else 0.
    sd : float
        tau, of the logarithm of the factor that all times of a network are off by.
    """

    member: FloatArray
    sd: float

    def solve(self, weights: FloatArray, residual: FloatArray) -> FloatArray:
        """Levels that explain residuals best: ``sum(w r) / (sum(w) + 1 / tau^2)`` over the rows of each network.

        Two runs of one network, both 20 % off: a level whose spread is that of the errors of runs takes two thirds.

        >>> levels = Levels(member=np.ones((1, 2)), sd=0.1)
        >>> levels.solve(np.array([100.0, 100.0]), np.array([0.2, 0.2])).round(4).tolist()
        [0.1333]
        """
        return np.asarray(self.member @ (weights * residual) / self._certainty(weights))

    def felt(self, found: FloatArray) -> FloatArray:
        """The level of every row, (n,); 0 of rows of no network."""
        return np.asarray(found @ self.member)

    def taken(self, weights: FloatArray, slopes: FloatArray) -> FloatArray:
        """What levels that are not known take from the curvature of the constants, (m, m): the Schur complement of the levels.

        >>> levels = Levels(member=np.ones((1, 2)), sd=0.1)
        >>> levels.taken(np.array([100.0, 100.0]), np.ones((2, 1))).round(1).tolist()  # of 200; 66.7 are left
        [[133.3]]
        """
        sums = self.member @ (weights[:, None] * slopes)
        return np.asarray(sums.T @ (sums / self._certainty(weights)[:, None]))

    def penalty(self, found: FloatArray) -> float:
        """Minus the logarithm of their density, up to a constant."""
        return float(0.5 * np.sum((found / self.sd) ** 2))

    def _certainty(self, weights: FloatArray) -> FloatArray:
        return np.asarray(self.member @ weights + self.sd**-2.0)


def levels_of(network: IntArray, sd: float) -> Levels | None:
    """Levels of the networks of some rows.

    Parameters
    ----------
    network : int array (n,)
        Of each row; -1: of none.
    sd : float
        tau.

    Returns
    -------
    Levels or None
        None where no row is of a network.
    """
    names = np.unique(network[network >= 0])
    if not len(names):
        return None
    return Levels(member=(network[None, :] == names[:, None]).astype(np.float64), sd=sd)
