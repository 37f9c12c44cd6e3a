"""Search over mixed plans, best bound first: coarse families, their shapes, and at last the division of blocks and shares of the batch.

Every part of the space waits in one queue under a bound that none of its plans beats; the part with the least bound is split or solved next.
When the least bound reaches the best plan found, that is proven; the plans behind it are the best of those that were looked at.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.mixed.links import MixedError, group_ranges
from costmodel.mixed.evaluate import cost_plans, stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPlan, group_names
from costmodel.network import Cluster
from costmodel.precision import Precision
from costmodel.workload import Workload
from strategies.mixed.families import Family, RateBook, Shapes, families_of, partitions, shapes_of
from strategies.mixed.leaf import Leaf, LeafSolver
from strategies.mixed.misses import nearest_miss
from strategies.mixed.settings import MixedBaseline, MixedCandidate, MixedOutcome, MixedSettings

__all__ = ["search_mixed"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_DEFAULTS = MixedSettings()
_MOST_GROUPS = 4  # beyond, the orders of the groups alone are too many
_OF_INTEREST = 1.05  # times the best: what is solved for the ranking besides
_BLOCK = 200_000  # combinations of shapes of several parts that are looked at together


def search_mixed(workload: Workload, cluster: Cluster, settings: MixedSettings = _DEFAULTS) -> MixedOutcome:
    """Find the fastest plans on a cluster with several device groups.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
        Every group says how many devices it has.
    settings : MixedSettings

    Returns
    -------
    MixedOutcome
        The best plans, a bound that no plan of the space (`MixedSettings`) beats, the best plan of each group alone, and if nothing fits the
        plan that comes closest.

    Raises
    ------
    MeshError
        The network or the cluster cannot be planned like this.
    """
    model = MixedModel.build(workload, cluster, settings.assumptions)
    return _Search(model, settings).run()


@dataclass(frozen=True, slots=True)
class _Choice:
    """One family per part; those after it, from a position on, are not queued yet."""

    parts: tuple[tuple[int, ...], ...]
    lists: list[list[Family]]
    index: tuple[int, ...]
    position: int


@dataclass(slots=True)
class _Node:
    """Shapes of one choice of families, by bound."""

    families: tuple[Family, ...]
    shapes: tuple[Shapes, ...]
    choice: IntArray  # (n, parts) rows of the shapes
    bounds_s: FloatArray
    next: int


_Entry = tuple[float, int, "_Choice | _Node | Leaf"]


class _Search:
    def __init__(self, model: MixedModel, settings: MixedSettings) -> None:
        self.model, self.settings = model, settings
        groups = model.cluster.groups
        if len(groups) > _MOST_GROUPS:
            raise MixedError(
                f"cluster '{model.cluster.name}' has {len(groups)} device groups; at most {_MOST_GROUPS} can be planned together"
            )
        self.devices = _devices(model.cluster, settings)
        own = settings.capacity_bytes or (None,) * len(groups)
        if len(own) != len(groups):
            raise MixedError(
                f"capacity_bytes names {len(own)} groups, cluster '{model.cluster.name}' has {len(groups)}"
            )
        self.capacity = tuple(
            float(group.device.memory_bytes) if limit is None else min(limit, float(group.device.memory_bytes))
            for limit, group in zip(own, groups, strict=True)
        )
        self.book = RateBook(model, settings, self.capacity)
        if not self.book.degrees:
            raise MixedError("no tensor-parallel degree is legal")
        self.solver = LeafSolver(model, settings, self.capacity)
        self.outcome = MixedOutcome()
        self.counts: Counter[str] = Counter()
        self.deadline = time.monotonic() + settings.wall_s
        self.best: dict[object, MixedCandidate] = {}  # by pipelines: one of each
        self.number = itertools.count()  # of equal bounds the first comes first

    def run(self) -> MixedOutcome:
        """Each group alone, then all together."""
        usable = tuple(g for g, count in enumerate(self.devices) if count)
        for group in usable:
            before = dict(self.best)
            self.best = {}
            bound = self._explore([((group,),)])
            found = self._ranked()
            candidate = found[0] if found else None
            self.outcome.baselines.append(MixedBaseline(group=group, candidate=candidate, bound_s=bound))
            self.best = before | self.best
        # The groups alone take part again, so that the ranking is of the whole space; what they cost is remembered.
        bound = self._explore(list(partitions(usable)))
        self._finish(bound)
        return self.outcome

    # -- the queue ------------------------------------------------------------------------------------------------------

    def _ranked(self) -> list[MixedCandidate]:
        return sorted(self.best.values(), key=lambda c: (c.step_time_s, c.plan))

    def _limits_s(self) -> tuple[float, float]:
        """What a plan must stay below to be the best, and to be of interest."""
        ranked = self._ranked()
        if not ranked:
            return np.inf, np.inf
        best = ranked[0].step_time_s
        last = ranked[self.settings.top - 1].step_time_s if len(ranked) >= self.settings.top else np.inf
        return best, max(best, min(last, best * _OF_INTEREST))

    def _explore(self, wanted: Sequence[tuple[tuple[int, ...], ...]]) -> float:
        """Work through some partitions until the best plan is proven or time is up; a bound on all of their plans."""
        queue: list[_Entry] = []
        for parts in wanted:
            lists = self._family_lists(parts)
            if all(lists):
                start = (0,) * len(parts)
                self._push(queue, self._families_bound_s(lists, start), _Choice(parts, lists, start, 0))
        unresolved = np.inf
        while queue:
            bound, _, item = heapq.heappop(queue)
            best, limit = self._limits_s()
            if bound >= best * (1.0 - self.settings.gap):
                return float(min(bound, unresolved, best))
            if time.monotonic() > self.deadline:
                self.outcome.out_of_time = True
                return float(min(bound, unresolved, best))
            if isinstance(item, _Choice):
                self._list_shapes(item, queue, limit)
            elif isinstance(item, _Node):
                self._look_at_shape(item, queue, limit)
            else:
                unresolved = min(unresolved, self._solve(item, bound, limit))
        return float(min(unresolved, self._limits_s()[0]))

    def _push(self, queue: list[_Entry], bound: float, item: _Choice | _Node | Leaf) -> None:
        heapq.heappush(queue, (bound, next(self.number), item))

    def _precision(self, parts: Sequence[tuple[int, ...]]) -> Precision:
        return self.model.precision_of(tuple(sorted(g for part in parts for g in part)))

    def _family_lists(self, parts: tuple[tuple[int, ...], ...]) -> list[list[Family]]:
        precision, alone = self._precision(parts), len(parts) == 1
        return [families_of(self.book, part, precision, self.devices, alone=alone) for part in parts]

    def _families_bound_s(self, lists: list[list[Family]], index: tuple[int, ...]) -> float:
        """All replicas together finish the batch no sooner; and a replica of a lone pipeline works in whole micro-batches."""
        families = [found[i] for found, i in zip(lists, index, strict=True)]
        batch = self.model.shape.global_batch
        return batch / sum(family.samples_per_s for family in families)

    def _list_shapes(self, item: _Choice, queue: list[_Entry], limit: float) -> None:
        """List the shapes of one choice of families, and queue the choices that come after it."""
        lists, index = item.lists, item.index
        for p in range(item.position, len(index)):
            following = (*index[:p], index[p] + 1, *index[p + 1 :])
            if following[p] < len(lists[p]):
                self._push(queue, self._families_bound_s(lists, following), _Choice(item.parts, lists, following, p))
        families = tuple(found[i] for found, i in zip(lists, index, strict=True))
        if sum(family.replicas * family.micro_batch for family in families) > self.model.shape.global_batch:
            return
        self.counts["families"] += 1
        shapes = tuple(shapes_of(self.book, family, self._precision(item.parts)) for family in families)
        sizes = [len(s.stages) for s in shapes]
        if not min(sizes):
            return
        for choice in _combinations(sizes):
            bounds = self._shapes_bound_s(families, shapes, choice)
            self.counts["shapes"] += len(bounds)
            good = np.flatnonzero(bounds < limit)
            if len(good):
                good = good[np.argsort(bounds[good], kind="stable")]
                self._push(queue, float(bounds[good[0]]), _Node(families, shapes, choice[good], bounds[good], 0))

    def _shapes_bound_s(self, families: tuple[Family, ...], shapes: tuple[Shapes, ...], choice: IntArray) -> FloatArray:
        batch = self.model.shape.global_batch
        if len(families) == 1:
            family = families[0]
            m = -(-(batch // family.micro_batch) // family.replicas)
            return shapes[0].least_s(m)[choice[:, 0]]
        rate = np.zeros(len(choice))
        for p, (family, some) in enumerate(zip(families, shapes, strict=True)):
            rate += family.replicas * family.micro_batch / some.bottleneck_s[choice[:, p]]
        return np.asarray(batch / rate)

    def _look_at_shape(self, node: _Node, queue: list[_Entry], limit: float) -> None:
        """Bound the next shape of a node with its memory, and try a plan that is probably good."""
        chosen, bound = node.choice[node.next], float(node.bounds_s[node.next])
        node.next += 1
        if node.next < len(node.choice):
            self._push(queue, float(node.bounds_s[node.next]), node)
        stages = tuple(tuple(int(x) for x in s.stages[row]) for s, row in zip(node.shapes, chosen, strict=True))
        leaf = Leaf(families=node.families, stages=stages)
        self.counts["bounded shapes"] += 1
        bound = max(bound, self.solver.bound_s(leaf))
        if bound >= limit:
            return
        plan = self.solver.quick(leaf)
        if plan is not None:
            self._offer(plan)
        self._push(queue, bound, leaf)

    def _solve(self, leaf: Leaf, bound: float, limit: float) -> float:
        """Find the best plan of a leaf; a bound on what is left unresolved."""
        self.counts["solved shapes"] += 1
        unresolved = np.inf
        for plan, low in self.solver.solve(leaf, limit, self.deadline):
            if plan is None:
                unresolved = min(unresolved, max(low, bound))
            else:
                self._offer(plan)
        self.counts["divisions"] = self.solver.divisions
        return unresolved

    def _offer(self, plan: MixedPlan) -> None:
        """Let the cost model judge a plan, and keep it if it fits and is the best of its kind."""
        step = float(cost_plans(self.model, [plan]).step_time_s[0])
        for report in stage_reports(self.model, plan):
            assert report.memory_bytes <= self.capacity[report.group] * (1.0 + 1e-9), (
                "a stage was taken to fit that does not"
            )
        key = tuple((tuple((s.group, s.tp) for s in p.stages), p.replicas, p.micro_batch) for p in plan.pipelines)
        known = self.best.get(key)
        if known is None or (step, plan) < (known.step_time_s, known.plan):
            self.best[key] = MixedCandidate(plan=plan, step_time_s=step)

    # -- the answer -----------------------------------------------------------------------------------------------------

    def _finish(self, bound: float) -> None:
        outcome, model = self.outcome, self.model
        ranked = self._ranked()
        outcome.candidates = ranked[: self.settings.top]
        outcome.searched = dict(self.counts)
        if not ranked:
            outcome.bound_s = bound
            outcome.nearest_miss = nearest_miss(self.book, self.solver.tables, self.devices, self.settings)
            return
        outcome.bound_s = min(bound, ranked[0].step_time_s)
        used = ranked[0].plan.groups
        outcome.precision = model.precision_of(used).name
        wanted = model.workload.precision.name
        names = group_names(model.cluster)
        if outcome.precision != wanted:
            lacking = [names[g] for g in used if wanted not in model.cluster.groups[g].device.formats]
            outcome.notes.append(f"{', '.join(lacking)} has no {wanted}, so the whole job runs in {outcome.precision}")
        idle = [names[g] for g in range(len(names)) if g not in used]
        if idle:
            outcome.notes.append(f"{', '.join(idle)} would only slow the best plan down and stays idle")


def _devices(cluster: Cluster, settings: MixedSettings) -> tuple[int, ...]:
    counts = [end - start for start, end in group_ranges(cluster)]
    limits = settings.group_limits or (None,) * len(counts)
    if len(limits) != len(counts):
        raise MixedError(f"group_limits names {len(limits)} groups, cluster '{cluster.name}' has {len(counts)}")
    return tuple(count if limit is None else min(count, limit) for count, limit in zip(counts, limits, strict=True))


def _combinations(sizes: Sequence[int]) -> list[IntArray]:
    """All combinations of rows, in blocks of bounded length."""
    total = int(np.prod([float(size) for size in sizes]))
    blocks = []
    for first in range(0, total, _BLOCK):
        index = np.arange(first, min(first + _BLOCK, total))
        columns = []
        for size in reversed(sizes):
            columns.append(index % size)
            index = index // size
        blocks.append(np.stack(columns[::-1], axis=1))
    return blocks
