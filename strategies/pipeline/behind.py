"""Least time of the stages behind a cut: what every plan leaves at least to the stages in front of it.

Notes
-----
With D the sum of t behind cut i and c the backward transfer over it, ``y = D + c`` is bounded from below by a dynamic program from the
last layer to the first, over (cut i, replicas k of the stage in front of it, workers u behind, stages behind d):

    Q[i, k, u, d] = min_k' R[i, k', u, d] + cut_forward[k, k', i] + cut_backward[k, k', i]
    R[i, k', u, d] = min_e t_k'(i, e) + Q[e, k', u - r, d - 1]          Q[L, k, 0, 0] = 0

over the stages of layers i..e-1 that fit the memory with ``min(m, d)`` micro-batches in flight and that on their own leave the plan below
a threshold C:

    sum of t in front + m t_s + g_s + X_0 < C

The stages in front count at their least (`Tables.prefix_s`), and so do the transfers that are not known yet. As ``m t_s + g_s`` does not fall
with c while D + c stays the same (`strategies.pipeline.solve`), Q and the least transfer c stand for D and c.
"""

from __future__ import annotations

import time

import numpy as np

from strategies.pipeline.bounds import Tables
from strategies.pipeline.levels import Levels, most_behind_s
from strategies.pipeline.problem import FloatArray, IntArray, PartitionProblem

__all__ = ["least_behind"]


def least_behind(
    problem: PartitionProblem,
    tables: Tables,
    starts: IntArray,
    levels: Levels,
    threshold_s: float,
    deadline: float = float("inf"),
) -> FloatArray | None:
    """Q of the module's notes for at most so many workers behind, by the workers in front.

    Parameters
    ----------
    problem : PartitionProblem
    tables : Tables
    starts : array of int
        Of `stage_starts` for the threshold.
    levels : Levels
    threshold_s : float
        Seconds; plans at or above it are of no interest.
    deadline : float
        On the clock of `time.perf_counter`.

    Returns
    -------
    array, shape (L + 1, K, levels, W + 1), or None
        Seconds, with at most W - w workers behind, where w is the last index; inf where no plan below the threshold passes.
        None if time ran out.
    """
    builder = _Builder(problem, tables, starts, levels, threshold_s)
    with np.errstate(invalid="ignore"):
        for i in range(problem.num_layers - 1, 0, -1):
            if time.perf_counter() > deadline:
                return None
            builder.fill(i)
    return builder.behind_s[..., ::-1]


class _Builder:
    """The array of one dynamic program."""

    def __init__(
        self, problem: PartitionProblem, tables: Tables, starts: IntArray, levels: Levels, threshold_s: float
    ) -> None:
        self.tables, self.starts, self.levels, self.threshold_s = tables, starts, levels, threshold_s
        self.m, self.layers = problem.num_micro_batches, problem.num_layers
        rows = np.searchsorted(problem.replica_counts, tables.counts)
        forward_s = problem.cut_forward_s[np.ix_(rows, rows)]
        backward_s = problem.cut_backward_s[np.ix_(rows, rows)]
        self.cut_s = np.ascontiguousarray((forward_s + backward_s).transpose(2, 1, 0))  # (cut, row behind, row in front)
        self.least_back_s, self.least_in_s = backward_s.min(axis=1), forward_s.min(axis=0)
        self.stage_s = tables.forward_s + tables.backward_s
        in_flight = np.minimum(self.m, levels.first + 1)[:, None, None]
        self.used = tables.static_bytes + in_flight * tables.activation_bytes  # (D, K, L + 1)
        self.used_last = tables.static_bytes + tables.activation_bytes
        self.capacity = problem.memory_capacity_bytes * (1 + 1e-11)
        workers = problem.num_workers
        # Least time in front of cut i with u workers behind it.
        self.ahead_s = tables.prefix_s[:, ::-1] + tables.first_after_s
        self.behind_s = np.full((self.layers + 1, len(tables.counts), len(levels), workers + 1), np.inf)
        self.least_s = np.full((len(tables.counts), self.layers + 1), np.inf)

    def fill(self, i: int) -> None:
        """Q of the cut before layer i."""
        counts = self.tables.counts
        here = np.full((len(counts), *self.behind_s.shape[2:]), np.inf)  # R
        reached = [k for k in range(len(counts)) if self.stages(k, i, here[k])]
        if not reached:
            return
        finite = np.flatnonzero(np.isfinite(here[reached]).any(axis=(0, 1)))
        low, high = int(finite[0]), int(finite[-1]) + 1
        into = np.full((len(counts), here.shape[1], high - low), np.inf)
        for k in reached:
            np.minimum(into, here[k, :, low:high] + self.cut_s[i, k][:, None, None], out=into)
        np.minimum.accumulate(into, axis=-1, out=into)
        self.behind_s[i, :, :, low:high] = into
        self.behind_s[i, :, :, high:] = into[:, :, -1:]
        self.least_s[:, i] = into[:, :, -1].min(axis=1)

    def stages(self, k: int, i: int, here: FloatArray) -> bool:
        """R over the stages of row k that start at layer i; False if there are none."""
        tables, replicas = self.tables, int(self.tables.counts[k])
        ends = i + 1 + np.flatnonzero(self.starts[k, i + 1 :] <= i)
        if not len(ends):
            return False
        length_s = self.stage_s[k, ends] - self.stage_s[k, i]
        forward_s = tables.forward_s[k, ends] - tables.forward_s[k, i] + self.least_in_s[k, i]
        backward_s = tables.backward_s[k, ends] - tables.backward_s[k, i]
        ahead_s = self.ahead_s[i]
        found = False
        if ends[-1] == self.layers:
            rest_s = self.threshold_s - self.m * (forward_s[-1] + backward_s[-1])
            if self.used_last[k, -1] - self.used_last[k, i] <= self.capacity and ahead_s[replicas] < rest_s:
                here[0, replicas] = length_s[-1]
                found = True
            ends, length_s, forward_s, backward_s = ends[:-1], length_s[:-1], forward_s[:-1], backward_s[:-1]
        back_s = self.least_back_s[k, ends]
        backward_s = backward_s + back_s
        rest_s = self.threshold_s - self.m * (forward_s + backward_s)
        open_ = np.flatnonzero((ahead_s[replicas] < rest_s) & (self.least_s[k, ends] < np.inf))
        if not len(open_):
            return found
        ends, length_s, rest_s, back_s = ends[open_], length_s[open_], rest_s[open_], back_s[open_]
        single, both = most_behind_s(
            forward_s[open_, None], backward_s[open_, None], self.levels.last[None, :], self.m
        )
        single, both = rest_s[:, None] + single + back_s[:, None], rest_s[:, None] + both + 2 * back_s[:, None]
        if np.isfinite(self.capacity):
            fits = (self.used[:, k, ends] - self.used[:, k, i, None] <= self.capacity).T
            single = np.where(fits, single, -np.inf)
        low, stop = replicas + 1, len(ahead_s)
        last = slice(ends[0], ends[-1] + 1) if ends[-1] - ends[0] + 1 == len(ends) else ends
        behind_s = self.behind_s[last, k, :, 1 : stop - replicas]
        front_s = ahead_s[low:stop]
        ok = behind_s + front_s < single[:, :, None]
        ok &= 2 * behind_s + front_s < both[:, :, None]
        ok &= front_s < rest_s[:, None, None]
        least = np.where(ok, behind_s + length_s[:, None, None], np.inf).min(axis=0)
        part = here[:, low:stop]
        np.minimum(part[1:], least[:-1], out=part[1:])
        wide = self.levels.wide
        part[wide] = np.minimum(part[wide], least[wide])
        return bool(np.isfinite(here).any())
