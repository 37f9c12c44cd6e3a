"""How long before the last backward pass of the first rank the others are done: what ends later than the rest decides the step.

A backward pass that rank r does not wait for is followed by those of the chunks before its first one, down to the first chunk of the
network. So rank r is done at least so long before the first rank. A zero-bubble schedule runs ``min(r + 1, m)`` weight gradients on
rank r behind its last input gradient (ZB-H1, Qi et al. 2024, arXiv:2401.10241, figure 2 top), so it is done that long before the pipeline:

    slack_r = max_{q<=r} [ sum_{q<=c<r} (B_c - W_c) + min(q + 1, m) W_q ] - min(r + 1, m) W_r

Both are bounds, exact where the first rank waits for the others at the end. What passes wait for (transfers, gathering of weights) is
part of their times.
"""

from __future__ import annotations

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.mesh.passes import time_before
from costmodel.mesh.plan import SCHEDULES

__all__ = ["rank_slack_s"]


_ZERO_BUBBLE = SCHEDULES.index("zero_bubble")


def rank_slack_s(
    schedule: IntArray,
    m: IntArray,
    first: IntArray,
    last: IntArray,
    count: IntArray,
    backward_s: FloatArray,
    weight_s: FloatArray,
) -> FloatArray:
    """Time from the last pass of every kind of rank to that of the first rank, at least; of a kind, that of its latest rank.

    Parameters
    ----------
    schedule, m : arrays (n,)
        Micro-batches under m.
    first, last : arrays (n, Q)
        Ranks of every kind.
    count : array (n, R)
        Chunks of every run.
    backward_s, weight_s : arrays (n, R)
        Of a chunk and micro-batch: the backward pass with all that it waits for, and the weight gradients in it.

    Returns
    -------
    array (n, Q)

    Examples
    --------
    Three equal ranks, four micro-batches, B = 2, W = 1: under 1F1B the last rank is done 2 B earlier, under zero bubble its three weight
    gradients take as long as the two input gradients and the weight gradient of the ranks before it.

    >>> one, ranks = np.array([[1.0]]), np.arange(3)[None, :]
    >>> [rank_slack_s(np.array([n]), np.array([4]), ranks, ranks, 3 * np.array([[1]]), 2 * one, one).tolist() for n in (1, 3)]
    [[[0.0, 2.0, 4.0]], [[0.0, 0.0, 0.0]]]
    """
    slack = time_before(first, count, backward_s)
    rows = np.flatnonzero(schedule == _ZERO_BUBBLE)
    if len(rows):
        slack[rows] = _lagging_s(
            m[rows][:, None], first[rows], last[rows], count[rows], backward_s[rows], weight_s[rows]
        )
    return slack


def _lagging_s(
    m: IntArray, first: IntArray, last: IntArray, count: IntArray, backward_s: FloatArray, weight_s: FloatArray
) -> FloatArray:
    """The same of zero-bubble schedules.

    The formula is linear in r but where ranks of another kind begin and at r = m - 1, so one of these is the least of a kind.
    """
    after = np.cumsum(count, axis=1)
    own = time_before(first + 1, count, weight_s) - time_before(first, count, weight_s)
    # (n, K): all places where the formula may bend, at once.
    bends = np.concatenate([m - 1, after - 1, after, np.zeros_like(m)], axis=1)
    others = np.minimum(np.maximum(bends, 0), after[:, -1:] - 1)
    behind = _behind_s(others, m, count, backward_s, weight_s)
    # (n, places, Q): every kind at its own ends and at the bends within it.
    places = np.concatenate(
        [np.stack([first, last], axis=1), np.repeat(bends[:, :, None], first.shape[1], axis=2)], axis=1
    )
    ranks = np.minimum(np.maximum(places, first[:, None, :]), last[:, None, :])
    flat = ranks.reshape(len(ranks), -1)
    most = np.full(flat.shape, -np.inf)
    for k in range(others.shape[1]):
        most = np.where(others[:, k : k + 1] <= flat, np.maximum(most, behind[:, k : k + 1]), most)
    held = time_before(flat, count, backward_s - weight_s) + most
    lead = held.reshape(ranks.shape) - np.minimum(ranks + 1, m[:, :, None]) * own[:, None, :]
    return np.asarray(np.maximum(lead.min(axis=1), 0.0))


def _behind_s(rank: IntArray, m: IntArray, count: IntArray, backward_s: FloatArray, weight_s: FloatArray) -> FloatArray:
    """Weight gradients behind the last input gradient of ranks (n, K), less the input gradients behind that."""
    own = time_before(rank + 1, count, weight_s) - time_before(rank, count, weight_s)
    return np.minimum(rank + 1, m) * own - time_before(rank, count, backward_s - weight_s)
