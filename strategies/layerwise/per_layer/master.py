"""The small linear program of a cutting-plane method: best multipliers for the choices seen so far."""

from __future__ import annotations

import numpy as np

from costmodel.arrays import FloatArray

__all__ = ["solve_master"]

MAX_PIVOTS = 200


def solve_master(value: FloatArray, excess: FloatArray, price_limit: float) -> tuple[FloatArray, float, float]:
    """Maximise the lower envelope of linear functions over a simplex and an interval.

        max over w in the simplex, 0 <= p <= price_limit  of  min_k  sum_j w_j value[k, j] + p excess[k]

    Solved through its dual (mix the choices k so that the worst column is least) by the revised simplex method with a
    dense basis, which is small: one row per column of ``value`` plus two.

    Parameters
    ----------
    value : array, shape (choices, terms)
    excess : array, shape (choices,)
    price_limit : float

    Returns
    -------
    (array of shape (terms,), float, float)
        The weights ``w``, the price ``p`` and the maximum.

    Examples
    --------
    Two choices, two terms: (0, 4) and (4, 0). Equal weights make both worth 2.

    >>> weights, price, best = solve_master(np.array([[0.0, 4.0], [4.0, 0.0]]), np.zeros(2), 0.0)
    >>> weights.tolist(), best
    ([0.5, 0.5], 2.0)
    """
    count, terms = value.shape
    matrix, cost = _tableau(value, excess, price_limit)
    rhs = np.zeros(terms + 2)
    rhs[-1] = 1.0
    start = int(value.max(axis=1).argmin())
    worst = int(value[start].argmax())
    slacks = [count + 1 + j for j in range(terms) if j != worst]
    basis = np.array([start, count, *slacks, len(cost) - (2 if excess[start] > 0 else 1)])
    duals = np.zeros(terms + 2)
    for pivot in range(MAX_PIVOTS):
        try:
            inverse = np.linalg.inv(matrix[:, basis])
        except np.linalg.LinAlgError:  # rounding; the last multipliers are still multipliers
            break
        duals = cost[basis] @ inverse
        reduced = cost - duals @ matrix
        reduced[basis] = 0.0
        candidates = np.flatnonzero(reduced < -1e-12 * (1.0 + abs(float(duals[-1]))))
        if not len(candidates):
            break
        # Dantzig's rule, and Bland's once the program might cycle.
        entering = int(candidates[0] if pivot > MAX_PIVOTS // 2 else reduced.argmin())
        direction = inverse @ matrix[:, entering]
        bounded = (direction > 1e-12) & (basis != count)  # the worst value itself may have any sign
        if not bounded.any():
            break
        ratio = np.where(bounded, (inverse @ rhs) / np.where(bounded, direction, 1.0), np.inf)
        basis[int(ratio.argmin())] = entering
    weights = np.maximum(duals[:terms], 0.0)
    total = float(weights.sum())
    weights = weights / total if total > 0.0 else np.full(terms, 1.0 / terms)
    price = float(np.clip(duals[terms], 0.0, price_limit))
    return weights, price, float((value @ weights + price * excess).min())


def _tableau(value: FloatArray, excess: FloatArray, price_limit: float) -> tuple[FloatArray, FloatArray]:
    """Matrix and costs; columns: mix (choices), worst value, slack per term, overflow of memory, slack of memory."""
    count, terms = value.shape
    matrix = np.zeros((terms + 2, count + 1 + terms + 2))
    matrix[:terms, :count] = -value.T
    matrix[:terms, count] = 1.0
    matrix[:terms, count + 1 : count + 1 + terms] = -np.eye(terms)
    matrix[terms, :count] = -excess
    matrix[terms, -2:] = 1.0, -1.0
    matrix[terms + 1, :count] = 1.0
    cost = np.zeros(matrix.shape[1])
    cost[count], cost[-2] = 1.0, price_limit
    return matrix, cost
