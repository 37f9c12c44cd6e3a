"""Steps across chokes of a graph, all at once: there are hundreds of millions of them in wide graphs.

Notes
-----
A *choke* is a down-set that every other one contains or is contained in, with one open output at most. Let c be the first choke
behind J whose open output is not in J, and J without an output that nobody reads. From J to any I that contains c no arc bypasses and
no hyperedge is split by both, so

    load(I - J) = (F(J) - T(J)) + (F(I) + T(I))

with T the compute and F the cost of the hyperedges that a down-set splits; the flow that the step takes in is 1. The best I for J
is thus the least of (F(I) + T(I) + rest) among those behind c of size up to size(J) + memory: a running minimum over sizes. Only the steps
that survive a limit are ever made one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.placement.clock import Clock
from strategies.placement.contraction import BlockGraph
from strategies.placement.ideals import IdealFamily
from strategies.placement.latency.steps import membership

__all__ = ["FarSteps", "far_steps"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FarSteps:
    """Down-sets by the choke from which on steps are far."""

    until: IntArray  # (ideals,) number of that choke; the number of down-sets where there is none
    leaving: FloatArray  # (ideals,) F - T
    entering: FloatArray  # F + T
    size_bytes: FloatArray
    capacity_bytes: float

    def groups(self) -> dict[int, IntArray]:
        """Down-sets of each choke."""
        return {int(c): np.flatnonzero(self.until == c) for c in np.unique(self.until) if c < len(self.until)}

    def after(self, choke: int, members: IntArray, least: FloatArray) -> FloatArray:
        """Least rest of the members by a far step, given that of the choke and all behind it: (members, calls + 1)."""
        behind = np.arange(choke, len(self.until))
        order = behind[np.argsort(self.size_bytes[behind], kind="stable")]
        best = np.minimum.accumulate(self.entering[order, None] + least[order], axis=0)
        last = np.searchsorted(self.size_bytes[order], self.size_bytes[members] + self.capacity_bytes, side="right") - 1
        result = np.full((len(members), least.shape[1]), np.inf)
        reached = last >= 0
        result[reached, 1:] = self.leaving[members[reached], None] + best[last[reached], :-1]
        return result

    def before(self, choke: int, members: IntArray, least: FloatArray) -> FloatArray:
        """Least time to the choke and all behind it by a far step from a member: (ideals from the choke on, calls + 1)."""
        order = members[np.argsort(self.size_bytes[members], kind="stable")]
        best = np.minimum.accumulate((self.leaving[order, None] + least[order])[::-1], axis=0)[::-1]
        behind = np.arange(choke, len(self.until))
        first = np.searchsorted(self.size_bytes[order], self.size_bytes[behind] - self.capacity_bytes, side="left")
        result = np.full((len(behind), least.shape[1]), np.inf)
        reached = first < len(order)
        result[reached, 1:] = self.entering[behind[reached], None] + best[first[reached], :-1]
        return result

    def best_from(self, ideal: int, least: FloatArray) -> tuple[int, float, float]:
        """Far step from a down-set with the least rest, as (outer, value, load), given the rests after it."""
        start = int(self.until[ideal])
        fits = self.size_bytes[start:] - self.size_bytes[ideal] <= self.capacity_bytes
        value = np.where(fits, self.entering[start:] + least[start:], np.inf)
        if not len(value) or not np.isfinite(value.min()):
            return ideal, float("inf"), 0.0
        outer = start + int(np.argmin(value))
        load = float(self.leaving[ideal] + self.entering[outer])
        return outer, load + float(least[outer]), load

    def below(
        self, before: FloatArray, after: FloatArray, limit: float, most: int, clock: Clock
    ) -> tuple[IntArray, IntArray] | None:
        """Far steps with which the whole is below a limit, as (inner, outer); None where there are too many.

        Parameters
        ----------
        before, after : float arrays (ideals, calls + 1)
            Least priced times with at most so many calls, before and after each down-set.
        limit : float
        most : int
        clock : Clock
        """
        inner: list[IntArray] = []
        outer: list[IntArray] = []
        total = 0
        # With j calls before the step and the others but one after it.
        rest = after[:, ::-1][:, 1:]
        live_ends = np.flatnonzero(np.min(before + after[:, ::-1], axis=1) < limit)
        for choke, members in self.groups().items():
            ends = live_ends[live_ends >= choke]
            onward = self.entering[ends, None] + rest[ends]
            if not len(ends):
                continue
            least = onward.min(axis=0)
            for j in members.tolist():
                head = before[j, :-1] + self.leaving[j]
                if np.min(head + least) >= limit:
                    continue
                clock.check()
                good = (head + onward).min(axis=1) < limit
                good &= self.size_bytes[ends] - self.size_bytes[j] <= self.capacity_bytes
                found = ends[good]
                inner.append(np.full(len(found), j))
                outer.append(found)
                total += len(found)
                if total > most:
                    return None
        none = np.zeros(0, dtype=np.int64)
        return np.concatenate([none, *inner]), np.concatenate([none, *outer])


def far_steps(graph: BlockGraph, family: IdealFamily, capacity_bytes: float) -> FarSteps | None:
    """Find the chokes; None where far steps cannot be told apart: an atom is not supported, or there is no choke."""
    if not graph.supported.all():
        return None
    count = graph.num_blocks
    has = membership(graph, family)[:count]
    is_open = np.zeros_like(has)
    for b in range(count):
        readers = graph.edge_target[graph.edge_source == b]
        if len(readers):
            is_open[b] = has[b] & ~has[readers].all(axis=0)
    chokes = [i for i in np.flatnonzero(is_open.sum(axis=0) <= 1).tolist() if _is_comparable(family, i)]
    # An output that nobody reads bypasses every step behind it, on its way to the end.
    lasts = np.bincount(graph.edge_source, minlength=count) == 0
    has_last = has[lasts].any(axis=0)
    until = np.full(len(family), len(family), dtype=np.int64)
    for c in reversed(chokes):
        source = np.flatnonzero(is_open[:, c])
        clean = np.ones(c, dtype=np.bool_) if not len(source) else ~has[source[0], :c]
        until[:c][clean & ~has_last[:c]] = c
    return FarSteps(
        until=until,
        leaving=family.split_cost - family.accelerator_time,
        entering=family.split_cost + family.accelerator_time,
        size_bytes=family.size_bytes,
        capacity_bytes=capacity_bytes,
    )


def _is_comparable(family: IdealFamily, ideal: int) -> bool:
    """Whether every down-set is within this one or holds it."""
    row = family.bits[ideal]
    before = not np.any(family.bits[:ideal] & ~row)
    return before and not np.any(row & ~family.bits[ideal + 1 :])
