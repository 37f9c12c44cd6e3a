"""Exact search over down-sets with times: labels say when each open output is there.

Notes
-----
What has been run so far is a down-set; what still matters of it are the times at which its *open* outputs are there, those with a
reader outside, and how many calls are left. A step starts when all that it reads is there. A label is dropped when

* another label of its down-set has every output no later and as many calls left, or
* it cannot end below the limit: with a flow of 1 (see `prices`) that crosses the down-set on some arcs, a solution takes at least the
  flow-weighted mean of the times on these arcs plus what the flow has to pay after the down-set.

Before labels are compared, an output's time is raised to the time before which no outside reader of it can start anyway: a step that
holds v waits for every open output from an outside reader of which a path leads to v, because that reader is in the step or run
before it. An early input of a residual connection is thus as good as a late one.

If nothing was dropped but by these rules and no label reaches the end below the limit, the limit is a bound. With a cap on the labels of a
down-set the search is a heuristic (a beam) that keeps those with the best bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.limits import Clock
from strategies.placement.chain import IdealFamily
from strategies.placement.contraction import BlockGraph
from strategies.placement.latency.steps import Arcs, Reach, Steps, crossing_arcs, membership, open_outputs
from strategies.placement.problem import adjacent

# Labels that are compared with each other at a time; more are compared with the best of them only.
_COMPARED = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelAnswer:
    """Steps of the best solution below the limit, if any; ``is_exact`` tells that nothing better can be below it."""

    latency: float
    path: IntArray | None
    is_exact: bool


class LabelSearch:
    """Tables of a graph that all searches share.

    Parameters
    ----------
    graph : BlockGraph
    family : IdealFamily
    arcs : Arcs
    """

    def __init__(self, graph: BlockGraph, family: IdealFamily, arcs: Arcs) -> None:
        self._arcs = arcs
        count = graph.num_blocks
        self._has = membership(graph, family)
        self._readers = adjacent(count, graph.edge_source, graph.edge_target)
        self._below = _reachable(count, self._readers)
        self._open = [np.flatnonzero(column) for column in open_outputs(graph, self._has).T]
        self._slot = _slots(count, self._open)
        self._width = int(self._slot.max(initial=-1)) + 1
        # Slot of each arc's source: the last but one is 0 for the beginning, the last the largest time so far, for arcs to the end.
        arc_slot = np.append(self._slot, self._width)[arcs.source]
        self._arc_slot = np.where(arcs.target == count, self._width + 1, arc_slot)

    def run(
        self,
        steps: Steps,
        flow: FloatArray,
        reach: Reach,
        *,
        limit: float,
        known: float = 0.0,
        cap: int | None = None,
        most_labels: int = 20_000_000,
        clock: Clock,
    ) -> LabelAnswer:
        """Search solutions below a limit.

        Parameters
        ----------
        steps, flow, reach
            The steps that may be taken, a flow of 1 on the arcs and what it pays after each down-set.
        limit : float
        known : float
            No solution ends earlier, so what is done by then does not matter.
        cap : int, optional
            Most labels of a down-set.
        most_labels : int
            Give up, and be inexact, after so many.
        clock : Clock

        Raises
        ------
        OutOfTimeError
        """
        run = _Run(self, steps, flow, reach, limit, known)
        ideals = self._has.shape[1]
        exact = True
        for ideal in range(ideals):
            if ideal % 16 == 0:
                clock.check()
            labels = run.gather(ideal, cap)
            if labels is None:
                continue
            exact &= not run.was_capped
            if run.num_labels > most_labels:
                return LabelAnswer(latency=np.inf, path=None, is_exact=False)
            if ideal < ideals - 1:
                run.extend(ideal, labels)
        return run.answer(exact)


class _Run:
    def __init__(
        self, search: LabelSearch, steps: Steps, flow: FloatArray, reach: Reach, limit: float, known: float
    ) -> None:
        self._s, self._steps, self._flow, self._reach = search, steps, flow, reach
        self._limit, self._known = limit, known
        self._taken = np.maximum(1.0 - steps.bypassed(flow), 0.0)
        # Per down-set: (first label, its step, end of the step) of what leads there.
        self._waiting: dict[int, list[tuple[IntArray, IntArray, FloatArray]]] = {}
        self._times: dict[int, FloatArray] = {}  # per down-set: (labels, slots + 2)
        self._left: dict[int, IntArray] = {}
        self._parent: dict[int, IntArray] = {}  # position among the labels of the down-set before
        self._step: dict[int, IntArray] = {}
        self.num_labels = 0
        self.was_capped = False

    def gather(self, ideal: int, cap: int | None) -> FloatArray | None:
        """Make the labels of a down-set from the steps that lead there; None: there are none."""
        s = self._s
        if ideal == 0:
            times = np.zeros((1, s._width + 2))
            times[0, -1] = self._known
            left = np.array([self._reach.least.shape[1] - 1])
            parent, step = np.array([-1]), np.array([-1])
        else:
            entries = self._waiting.pop(ideal, None)
            if not entries:
                return None
            times, left, parent, step = self._made(ideal, entries)
        self.was_capped = False
        order = self._ranked(ideal, times, left)
        times, left, parent, step = times[order], left[order], parent[order], step[order]
        kept = _undominated(times, left)
        if cap is not None and len(kept) > cap:
            kept = kept[:cap]
            self.was_capped = True
        self._times[ideal], self._left[ideal] = times[kept], left[kept]
        self._parent[ideal], self._step[ideal] = parent[kept], step[kept]
        self.num_labels += len(kept)
        return self._times[ideal] if len(kept) else None

    def _made(
        self, ideal: int, entries: list[tuple[IntArray, IntArray, FloatArray]]
    ) -> tuple[FloatArray, IntArray, IntArray, IntArray]:
        s, steps = self._s, self._steps
        inners = [int(steps.inner[entry[1][0]]) for entry in entries]
        times = np.concatenate([self._times[inner][entry[0]] for inner, entry in zip(inners, entries, strict=True)])
        left = np.concatenate([self._left[inner][entry[0]] for inner, entry in zip(inners, entries, strict=True)])
        parent = np.concatenate([entry[0] for entry in entries])
        step = np.concatenate([entry[1] for entry in entries])
        end = np.concatenate([entry[2] for entry in entries])
        left = left - ~steps.on_cpu[step]
        inner = steps.inner[step]
        fresh = np.zeros_like(times)
        for u in s._open[ideal].tolist():
            slot = int(s._slot[u])
            fresh[:, slot] = np.where(s._has[u, inner], times[:, slot], end)
        fresh[:, -1] = np.maximum(times[:, -1], end)
        self._raise(ideal, fresh)
        return fresh, left, parent, step

    def _raise(self, ideal: int, times: FloatArray) -> None:
        """Raise each open output to the time before which none of its readers can start."""
        s = self._s
        is_open = s._open[ideal]
        if len(is_open) < 2:
            return
        slots = s._slot[is_open]
        outside = [[v for v in s._readers[u] if not s._has[v, ideal]] for u in is_open.tolist()]
        # Only paths that leave the down-set at once: inside it a reader may have started before a time that was raised.
        leads = np.stack([s._below[readers].any(axis=0) for readers in outside])
        for u, readers in zip(is_open.tolist(), outside, strict=True):
            earliest = np.full(len(times), np.inf)
            for v in readers:
                earliest = np.minimum(earliest, times[:, slots[leads[:, v]]].max(axis=1))
            times[:, s._slot[u]] = np.maximum(times[:, s._slot[u]], earliest)

    def _ranked(self, ideal: int, times: FloatArray, left: IntArray) -> IntArray:
        """Labels that can end below the limit, those with the least bound first."""
        s = self._s
        crossing = crossing_arcs(s._arcs, s._has, ideal)
        crossing = crossing[self._flow[crossing] > 0]
        bound = self._reach.least[ideal, left] + times[:, s._arc_slot[crossing]] @ self._flow[crossing]
        bound = np.maximum(bound, times.max(axis=1))
        order = np.lexsort((times.sum(axis=1), bound))
        return np.asarray(order[bound[order] < self._limit])

    def extend(self, ideal: int, times: FloatArray) -> None:
        steps, s = self._steps, self._s
        low, high = int(steps.first[ideal]), int(steps.first[ideal + 1])
        if low == high:
            return
        left = self._left[ideal]
        group = steps.group[low:high]
        cuts = np.flatnonzero(np.diff(group)) + 1
        found: list[tuple[IntArray, IntArray, FloatArray]] = []
        for begin, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), high - low], strict=True):
            g = int(group[begin])
            here = slice(low + begin, low + stop)
            by = steps.bypass_arc[steps.bypass_start[g] : steps.bypass_start[g + 1]]
            fed = steps.feed_arc[steps.feed_start[g] : steps.feed_start[g + 1]]
            start = times[:, s._arc_slot[fed]].max(axis=1)
            base = times[:, s._arc_slot[by]] @ self._flow[by] if len(by) else 0.0
            end = start[:, None] + steps.time[here][None, :]
            remaining = left[:, None] - ~steps.on_cpu[here][None, :]
            after = self._reach.least[steps.outer[here][None, :], np.maximum(remaining, 0)]
            bound = (base + self._taken[g] * start)[:, None] + self._taken[g] * steps.time[here][None, :] + after
            label, step = np.nonzero((bound < self._limit) & (end < self._limit) & (remaining >= 0))
            if len(label):
                found.append((label, step + here.start, end[label, step]))
        if found:
            self._hand_on(*(np.concatenate([entry[i] for entry in found]) for i in range(3)))

    def _hand_on(self, label: IntArray, step: IntArray, end: FloatArray) -> None:
        outer = self._steps.outer[step]
        order = np.argsort(outer, kind="stable")
        label, step, end, outer = label[order], step[order], end[order], outer[order]
        cuts = np.flatnonzero(np.diff(outer)) + 1
        bounds = [0, *cuts.tolist(), len(outer)]
        for i in range(len(bounds) - 1):
            part = slice(bounds[i], bounds[i + 1])
            self._waiting.setdefault(int(outer[bounds[i]]), []).append((label[part], step[part], end[part]))

    def answer(self, exact: bool) -> LabelAnswer:
        last = self._s._has.shape[1] - 1
        if last not in self._times or not len(self._times[last]):
            return LabelAnswer(latency=np.inf, path=None, is_exact=exact)
        label = int(np.argmin(self._times[last][:, -1]))
        latency = float(self._times[last][label, -1])
        path = []
        ideal = last
        while ideal:
            step = int(self._step[ideal][label])
            path.append(step)
            label, ideal = int(self._parent[ideal][label]), int(self._steps.inner[step])
        return LabelAnswer(latency=latency, path=np.array(path[::-1], dtype=np.int64), is_exact=exact)


def _undominated(times: FloatArray, left: IntArray) -> IntArray:
    """Positions of labels that no earlier one beats; the order puts good ones first."""
    kept: list[int] = []
    best = np.empty_like(times)
    calls = np.empty_like(left)
    for i in range(len(times)):
        n = min(len(kept), _COMPARED)
        if n and bool(np.any((best[:n] <= times[i]).all(axis=1) & (calls[:n] >= left[i]))):
            continue
        best[len(kept)], calls[len(kept)] = times[i], left[i]
        kept.append(i)
    return np.array(kept, dtype=np.int64)


def _reachable(count: int, readers: list[list[int]]) -> BoolArray:
    """Whether a path, of no arc perhaps, leads from one atom to another; atoms are in a topological order."""
    below = np.eye(count, dtype=np.bool_)
    for u in range(count - 1, -1, -1):
        for v in readers[u]:
            below[u] |= below[v]
    return below


def _slots(count: int, opened: list[IntArray]) -> IntArray:
    """Number atoms so that those open at the same time differ."""
    rivals: list[set[int]] = [set() for _ in range(count)]
    for entry in {tuple(atoms.tolist()) for atoms in opened}:
        for u in entry:
            rivals[u].update(entry)
    slot = np.full(count, -1, dtype=np.int64)
    for u in range(count):
        taken = {int(slot[v]) for v in rivals[u] if v != u}
        slot[u] = next(i for i in range(count) if i not in taken)
    return slot
