"""Replica counts that no best pipeline needs: others do the same work in no more time, bytes and workers.

Notes
-----
Samples are dealt out whole, so with 128 samples in a micro-batch a stage on 65 replicas takes as long as one on 64, and exchanges its
gradients over more of them. Row k is dominated by row k' if, with ``r_k' < r_k``, every entry of k' is at most that of k: times and bytes
of every layer, the transfers to and from every other row, and those from k' to k' against those from k to k. (Bytes do not matter where
all layers in one stage fit with k'.) Then every stage on ``r_k`` replicas of any plan can have ``r_k'`` instead. The objective is the
longest path through a schedule (`strategies.pipeline.problem`), so it does not grow, and the stages fit. Rows are left out one by one, each
against those that are left, so whatever is left out in the end can be replaced by what is not.

This proves that no plan is below a cutoff if none without dominated rows is. The best plans, and all of the K best, may still have such
rows, where they cost the same or hardly more: with a plan below the cutoff the whole problem is to be solved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from strategies.pipeline.problem import FloatArray, IntArray, PartitionProblem

__all__ = ["undominated_rows", "without_dominated"]

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
    times, memory = (np.concatenate([getattr(problem, name) for name in names], axis=1) for names in (_TIMES, _BYTES))
    in_flight = min(problem.num_micro_batches, problem.num_workers)
    fits = (
        problem.static_bytes.sum(axis=1) + in_flight * problem.activation_bytes.sum(axis=1)
        <= problem.memory_capacity_bytes
    )
    left = np.ones(len(times), dtype=bool)
    for k in range(len(times) - 1, 0, -1):
        smaller = np.flatnonzero(
            (times[:k] <= times[k]).all(axis=1) & (fits[:k] | (memory[:k] <= memory[k]).all(axis=1))
        )
        others = np.flatnonzero(left)
        others = others[others != k]
        if any(_replaces(problem, int(other), k, others) for other in reversed(smaller)):
            left[k] = False
    return np.flatnonzero(left)


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
