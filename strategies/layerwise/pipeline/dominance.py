"""Replica counts that no best pipeline needs: others do the same work in no more time, bytes and workers.

Notes
-----
Samples are dealt out whole, so with 128 samples in a micro-batch a stage on 65 replicas takes as long as one on 64, and exchanges its
gradients over more of them. Row k is dominated by row k' if, with ``r_k' < r_k``, every entry of k' is at most that of k: times and bytes
of every layer, the transfers to and from every other row, and those from k' to k' against those from k to k. (Bytes do not matter where
all layers in one stage fit with k'.) Then every stage on ``r_k`` replicas of any plan can have ``r_k'`` instead. The objective is the
longest path through a schedule (`strategies.layerwise.pipeline.problem`), so it does not grow, and the stages fit. Rows are left out one
by one, each against those that are left, so whatever is left out in the end can be replaced by what is not.

This proves that no plan is below a cutoff if none without dominated rows is. The best plans, and all of the K best, may still have such
rows, where they cost the same or hardly more: with a plan below the cutoff the whole problem is to be solved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.layerwise.pipeline import farther_takes_longer, stage_arrays
from costmodel.layerwise.tables import CostTables
from strategies.layerwise.pipeline.problem import PartitionProblem

__all__ = ["distinct_replicas", "in_units", "undominated_rows", "without_dominated"]


_TIMES = ("forward_s", "backward_s", "update_s", "exchange_s")
_BYTES = ("static_bytes", "activation_bytes")
_PER_CUT = ("cut_forward_s", "cut_backward_s")


def undominated_rows(problem: PartitionProblem) -> IntArray:
    """Rows that are left, ascending.

    Examples
    --------
    Three samples on one, two or three replicas: two are as fast as one, since a replica has at most two samples, or three.

    >>> row = np.array([[3.0], [2.0], [1.0]])
    >>> p = PartitionProblem(num_layers=1, num_workers=4, num_micro_batches=2, replica_counts=np.array([1, 2, 3]),
    ...     forward_s=row, backward_s=row, cut_forward_s=np.zeros((3, 3, 2)), cut_backward_s=np.zeros((3, 3, 2)), update_s=0 * row,
    ...     exchange_s=0 * row, static_bytes=row, activation_bytes=row, uses_all_workers=False)
    >>> undominated_rows(p).tolist()
    [0, 1, 2]
    >>> undominated_rows(replace(p, forward_s=np.array([[3.0], [2.0], [2.0]]), backward_s=0 * row)).tolist()
    [0, 1]
    """
    arrays = {name: getattr(problem, name) for name in (*_TIMES, *_BYTES)}
    no_worse = _NoWorse(arrays, min(problem.num_micro_batches, problem.num_workers), problem.memory_capacity_bytes)
    left = np.ones(len(problem.replica_counts), dtype=bool)
    for k in range(len(left) - 1, 0, -1):
        smaller = np.flatnonzero(no_worse.than(k))
        others = np.flatnonzero(left)
        others = others[others != k]
        if any(_replaces(problem, int(other), k, others) for other in reversed(smaller)):
            left[k] = False
    return np.flatnonzero(left)


class _NoWorse:
    """Which rows have no larger times and bytes, of every layer, than a row behind them."""

    def __init__(self, arrays: Mapping[str, FloatArray], in_flight: int, capacity_bytes: float) -> None:
        self._times, self._bytes = (
            np.concatenate([arrays[name] for name in names], axis=1) for names in (_TIMES, _BYTES)
        )
        static, activation = (arrays[name].sum(axis=1) for name in _BYTES)
        self._fits = static + in_flight * activation <= capacity_bytes

    def than(self, k: int) -> BoolArray:
        """Rows in front of row k that are not worse."""
        no_slower = (self._times[:k] <= self._times[k]).all(axis=1)
        return np.asarray(no_slower & (self._fits[:k] | (self._bytes[:k] <= self._bytes[k]).all(axis=1)))


def distinct_replicas(
    tables: CostTables, replicas: Sequence[int], num_workers: int, capacity_bytes: float
) -> list[int]:
    """Numbers of replicas that are left if, of those with equal shares of a micro-batch, dominated ones go: without a look at transfers.

    A transfer takes the share of the side with fewer replicas, over as many ranks as the other side has. So of two numbers with equal
    shares the smaller one has no longer transfers, wherever messages take no less time over more ranks.

    Parameters
    ----------
    tables : CostTables
        Of pure batch splits.
    replicas : sequence of int
        Ascending.
    num_workers : int
    capacity_bytes : float
        For tensors.

    Returns
    -------
    list of int
    """
    if not farther_takes_longer(tables.cluster, max(replicas)):
        return list(replicas)
    share = np.ceil(tables.micro_batch / np.array(replicas))
    no_worse = _NoWorse(stage_arrays(tables, replicas), min(tables.num_micro_batches, num_workers), capacity_bytes)
    return [r for k, r in enumerate(replicas) if not np.any(no_worse.than(k) & (share[:k] == share[k]))]


def _replaces(problem: PartitionProblem, row: int, replaced: int, others: IntArray) -> bool:
    """Whether no transfer takes longer with a row in place of another one, whatever of the other rows it goes to or comes from."""

    def ends(cut_s: FloatArray, k: int) -> FloatArray:
        return np.concatenate([cut_s[k, others], cut_s[others, k], cut_s[k, k][None]])

    return all(
        bool((ends(getattr(problem, name), row) <= ends(getattr(problem, name), replaced)).all()) for name in _PER_CUT
    )


def without_dominated(problem: PartitionProblem) -> PartitionProblem:
    """The same problem without the rows that others dominate; the problem itself if all workers must be used, or no row is dominated."""
    if problem.uses_all_workers:
        return problem
    rows = undominated_rows(problem)
    if len(rows) == len(problem.replica_counts):
        return problem
    changes: dict[str, Any] = {name: np.ascontiguousarray(getattr(problem, name)[rows]) for name in (*_TIMES, *_BYTES)}
    changes |= {name: np.ascontiguousarray(getattr(problem, name)[np.ix_(rows, rows)]) for name in _PER_CUT}
    return replace(problem, replica_counts=problem.replica_counts[rows], **changes)


def in_units(problem: PartitionProblem, unit: int) -> PartitionProblem:
    """A relaxation that counts workers by the unit: with as good or better plans, and fewer numbers to tell apart.

    A stage on r replicas takes ``floor(r / unit) + 1`` of ``floor(W / unit) + S`` units for at most S stages, which any plan has, since
    ``sum_s floor(r_s / unit) <= W / unit``. Numbers of replicas that take as many units become one with the least of their times, bytes and
    transfers. So no plan of the problem costs less than the best of this one.

    Parameters
    ----------
    problem : PartitionProblem
        Of at most so many workers.
    unit : int
        Workers.
    """
    assert not problem.uses_all_workers, "a relaxation of the sum would lose plans"
    stages = min(problem.num_layers, problem.num_micro_batches, problem.num_workers)
    units = problem.replica_counts // unit + 1
    firsts = np.flatnonzero(np.diff(units, prepend=0))
    changes: dict[str, Any] = {
        name: np.minimum.reduceat(getattr(problem, name), firsts, axis=0) for name in (*_TIMES, *_BYTES)
    }
    for name in _PER_CUT:
        least = np.minimum.reduceat(getattr(problem, name), firsts, axis=0)
        changes[name] = np.ascontiguousarray(np.minimum.reduceat(least, firsts, axis=1))
    return replace(problem, num_workers=problem.num_workers // unit + stages, replica_counts=units[firsts], **changes)
