"""Search over mixed plans, best bound first: coarse families, their shapes, and at last the division of blocks and shares of the batch.

Every part of the space waits in one queue under a bound that none of its plans beats; the part with the least bound is split or solved
next. When the least bound reaches the best plan found, that is proven; the plans after it are the best of those that were looked at.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.hardware.cluster import Cluster
from costmodel.mixed.evaluate import cost_plans, stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedError, MixedPlan, group_names, group_ranges
from costmodel.precision import Precision
from costmodel.tolerances import EQUAL
from costmodel.workload import Workload
from strategies.limits import Clock, Progress
from strategies.mixed.families import Family, RateBook, families_of, partitions, shapes_of, sharing_pairs
from strategies.mixed.leaf import Leaf, LeafSolver, nearest_miss
from strategies.mixed.objective import PartShape, SideBySide, Weights, rates_by_group
from strategies.mixed.settings import MixedBaseline, MixedCandidate, MixedOutcome, MixedSettings

_DEFAULTS = MixedSettings()
_MOST_GROUPS = 4  # beyond, the orders of the groups alone are too many
_OF_INTEREST = 1.05  # times the best: what is solved for the ranking besides


def search_mixed(
    workload: Workload, cluster: Cluster, settings: MixedSettings = _DEFAULTS, progress: Progress | None = None
) -> MixedOutcome:
    """Find the best plans on a cluster with several device groups.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
        Every group says how many devices it has.
    settings : MixedSettings
    progress : function of (message, share done), optional

    Returns
    -------
    MixedOutcome
        The best plans, a bound that no plan of the space (`MixedSettings`) beats, the best plan of each group alone, and if nothing fits
        the plan that comes closest.

    Raises
    ------
    MeshError
        The network or the cluster cannot be planned like this.
    """
    model = MixedModel.build(workload, cluster, settings.assumptions)
    return _Search(model, settings, progress).run()


@dataclass(frozen=True, slots=True)
class _Lone:
    """Families of a lone part, the fastest first; those from a position on are not looked at yet."""

    part: tuple[int, ...]
    families: list[Family]
    position: int


@dataclass(frozen=True, slots=True)
class _Apart:
    """Several parts, and the families of each, the fastest first."""

    parts: tuple[tuple[int, ...], ...]
    families: list[list[Family]]


@dataclass(slots=True)
class _Node:
    """Choices of one shape per part, by bound; the ones from ``next`` on are not looked at yet."""

    shapes: list[list[PartShape]]
    choice: IntArray  # (n, parts) positions in the lists
    bounds: FloatArray
    next: int = 0


_Item = _Lone | _Apart | _Node | Leaf


class _Search:
    def __init__(self, model: MixedModel, settings: MixedSettings, progress: Progress | None = None) -> None:
        self.model, self.settings, self.progress = model, settings, progress
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
            float(group.device.capacity_bytes) if limit is None else min(limit, float(group.device.capacity_bytes))
            for limit, group in zip(own, groups, strict=True)
        )
        self.book = RateBook(model, settings, self.capacity)
        if not self.book.degrees:
            raise MixedError("no tensor-parallel degree is legal")
        self.solver = LeafSolver(model, settings, self.capacity)
        self.outcome = MixedOutcome()
        self.batch = model.shape.global_batch
        self.counts: Counter[str] = Counter()
        self.clock = Clock(limit_s=settings.wall_s)
        self.best: dict[object, MixedCandidate] = {}  # by pipelines: one of each
        self.number = itertools.count()  # of equal bounds the first comes first
        self.pieces = 0
        self.low = 0.0  # no plan of what is being explored takes less
        self.beyond = 0.0  # nor any other
        self.interest = _OF_INTEREST

    def run(self) -> MixedOutcome:
        """Each group alone, then all together."""
        usable = tuple(g for g, count in enumerate(self.devices) if count)
        bound, before = 0.0, self.best
        try:
            for group in usable:
                before, self.best = self.best, {}
                alone = self._explore(self._queued([((group,),)]), f"{group_names(self.model.cluster)[group]} alone")
                found = self._ranked()
                candidate = found[0] if found else None
                self.outcome.baselines.append(MixedBaseline(group=group, candidate=candidate, bound_score=alone))
                self.best = before = before | self.best
            # The groups alone take part again, so that the ranking is of the whole space; what they cost is remembered.
            self.low = 0.0
            together, sharing = self._queued(partitions(usable)), self._queued(sharing_pairs(usable))
            self.beyond = sharing[0][0] if sharing else np.inf
            bound = self.outcome.apart_score = self._explore(together, "all groups together")
            # Only better ones are of interest here: those that are nearly as good are many.
            self.beyond, self.interest = bound, 1.0
            bound = min(bound, self._explore(sharing, "pipelines that share groups"))
        except KeyboardInterrupt:
            self.outcome.interrupted = True
            self.best = before | self.best
            bound = min(self.low, self.beyond) if len(self.outcome.baselines) == len(usable) else 0.0
        self._finish(bound)
        return self.outcome

    # -- the queue ------------------------------------------------------------------------------------------------------

    def _ranked(self) -> list[MixedCandidate]:
        return sorted(self.best.values(), key=lambda c: (c.score, c.plan))

    def _limits(self) -> tuple[float, float]:
        """What a plan must stay below to be the best, and to be of interest."""
        scores = heapq.nsmallest(self.settings.top, (c.score for c in self.best.values()))
        if not scores:
            return np.inf, np.inf
        last = scores[-1] if len(scores) >= self.settings.top else np.inf
        return scores[0], max(scores[0], min(last, scores[0] * self.interest))

    def _queued(self, wanted: Iterable[tuple[tuple[int, ...], ...]]) -> list[tuple[float, int, _Item]]:
        """Some parts with bounds on their plans, the least first."""
        self.queue: list[tuple[float, int, _Item]] = []
        # All shares are multiples of it.
        if self.batch % math.gcd(*self.settings.num_micro_batches.values or (1,)):
            return self.queue
        for parts in wanted:
            lists = self._family_lists(parts) if len(parts) <= self.settings.replicas.most else [[]]
            if all(lists):
                first: _Item = _Lone(parts[0], lists[0], 0) if len(parts) == 1 else _Apart(parts, lists)
                self._push(self._first_bound(parts, lists), first)
        return self.queue

    def _explore(self, queue: list[tuple[float, int, _Item]], stage: str) -> float:
        """Work through a queue until the best plan is proven or time is up; a bound on all of its plans."""
        self.queue, unresolved = queue, np.inf
        self.low = queue[0][0] if queue else np.inf
        while self.queue:
            bound, _, item = heapq.heappop(self.queue)
            best, limit = self._limits()
            self.low = float(min(bound, unresolved, best))
            if self.progress is not None:
                self.progress(stage, self.low / best)
            if bound >= best * (1.0 - self.settings.gap):
                return self.low
            self.pieces += 1
            if self.pieces > self.settings.effort or self.clock.is_over:
                self.outcome.out_of_time = True
                return self.low
            match item:
                case _Lone():
                    self._list_lone(item, limit)
                case _Apart():
                    unresolved = min(unresolved, self._list_apart(item, bound, limit))
                case _Node():
                    self._look_at_shape(item, limit)
                case Leaf():
                    unresolved = min(unresolved, self._solve(item, bound, limit))
        return float(min(unresolved, self._limits()[0]))

    def _push(self, bound: float, item: _Item) -> None:
        heapq.heappush(self.queue, (bound, next(self.number), item))

    def _precision(self, parts: Sequence[tuple[int, ...]]) -> Precision:
        return self.model.precision_of(tuple(sorted({g for part in parts for g in part})))

    def _weights(self, parts: Sequence[tuple[int, ...]]) -> Weights:
        return Weights.of(self.settings.objective, self.model, [g for part in parts for g in part])

    def _first_bound(self, parts: Sequence[tuple[int, ...]], lists: Sequence[list[Family]]) -> float:
        """No plan of some parts scores less: the best family of each takes the samples that it is best at."""
        weights = self._weights(parts)
        if weights.is_time:
            apart = sum(families[0].samples_per_s for families in lists)
            return self.batch / min(apart, float(rates_by_group(lists, len(self.devices)) @ self.devices))
        return self.batch * min(weights.per_sample(families[0]) for families in lists)

    def _family_lists(self, parts: tuple[tuple[int, ...], ...]) -> list[list[Family]]:
        precision, alone, weights = self._precision(parts), len(parts) == 1, self._weights(parts)
        lists = [families_of(self.book, part, precision, self.devices, alone=alone) for part in parts]
        return [
            sorted(families, key=lambda family: (weights.per_sample(family), -family.samples_per_s))
            for families in lists
        ]

    def _list_lone(self, item: _Lone, limit: float) -> None:
        """List the shapes of the next family, and queue the families that come after it."""
        family, weights = item.families[item.position], self._weights([item.part])
        if item.position + 1 < len(item.families):
            following = item.families[item.position + 1]
            self._push(self.batch * weights.per_sample(following), _Lone(item.part, item.families, item.position + 1))
        self.counts["families"] += 1
        shapes = shapes_of(self.book, family, self._precision([item.part]))
        bounds = shapes.least_s(-(-(self.batch // family.micro_batch) // family.replicas))
        bounds = bounds * weights.shapes(family, shapes.stages) + self.batch * weights.extra_cost(family)
        self.counts["shapes"] += len(bounds)
        good = np.flatnonzero(bounds < limit)
        if len(good):
            good = good[np.argsort(bounds[good], kind="stable")]
            listed = [(family, tuple(int(n) for n in shapes.stages[row])) for row in good]
            self._push(float(bounds[good[0]]), _Node([listed], np.arange(len(good))[:, None], bounds[good]))

    def _list_apart(self, item: _Apart, bound: float, limit: float) -> float:
        """List the shapes of every part that are good enough for a plan of interest, and queue what they make together.

        Returns a bound on what had to be left out.
        """
        beside = SideBySide(
            book=self.book,
            solver=self.solver,
            batch=self.batch,
            devices=self.devices,
            clock=self.clock,
            counts=self.counts,
        )
        found = beside.listed(item.families, self._precision(item.parts), self._weights(item.parts), bound, limit)
        self.outcome.out_of_time |= found.out_of_time
        if len(found.choice):
            self._push(max(bound, float(found.bounds[0])), _Node(found.shapes, found.choice, found.bounds))
        return found.left_out

    def _look_at_shape(self, node: _Node, limit: float) -> None:
        """Bound the next choice of a node with its memory, and try a plan that is probably good."""
        chosen, bound = node.choice[node.next], float(node.bounds[node.next])
        node.next += 1
        if node.next < len(node.choice):
            self._push(float(node.bounds[node.next]), node)
        shapes = [listed[i] for listed, i in zip(node.shapes, chosen, strict=True)]
        if not self._is_allowed([family for family, _ in shapes]):
            return
        leaf = Leaf(families=tuple(family for family, _ in shapes), stages=tuple(stages for _, stages in shapes))
        self.counts["bounded shapes"] += 1
        weight, extra_cost = self._weight(leaf), self._extra_cost(leaf)
        bound = max(bound, weight * self.solver.bound_s(leaf) + extra_cost)
        if bound >= limit:
            return
        plan = self.solver.quick(leaf, (limit - extra_cost) / weight)
        if plan is not None:
            self._offer(plan)
        self._push(bound, leaf)

    def _is_allowed(self, families: Sequence[Family]) -> bool:
        """Whether there are samples for all replicas, and what is fixed of the whole plan holds."""
        settings = self.settings
        return (
            sum(family.replicas * family.micro_batch for family in families) <= self.batch
            and settings.replicas.allows(sum(family.replicas for family in families))
            and (not settings.must_cut or any(tp > 1 for family in families for tp in family.tps))
            and (not settings.must_share or any(family.replicas > 1 for family in families))
        )

    def _solve(self, leaf: Leaf, bound: float, limit: float) -> float:
        """Find the best plan of a leaf; a bound on what is left unresolved."""
        self.counts["solved shapes"] += 1
        unresolved, extra_of_group = np.inf, self._weights([family.groups for family in leaf.families]).extra_of_group
        fixed = {"weight": self._weight(leaf), "extra_cost": self._extra_cost(leaf)}
        for plan, low in self.solver.solve(leaf, limit, self.clock, extra_of_group=extra_of_group, **fixed):
            if plan is None:
                unresolved = min(unresolved, max(low, bound))
            else:
                self._offer(plan)
        self.counts["divisions"] = self.solver.divisions
        return unresolved

    def _weight(self, leaf: Leaf) -> float:
        """What a step of a leaf's plans is multiplied by."""
        weights = self._weights([family.groups for family in leaf.families])
        if weights.is_time:
            return 1.0
        return float(sum(weights.per_stage(f) @ np.array(n) for f, n in zip(leaf.families, leaf.stages, strict=True)))

    def _extra_cost(self, leaf: Leaf) -> float:
        """What is added for what devices compute, at least."""
        weights = self._weights([family.groups for family in leaf.families])
        return self.batch * min(weights.extra_cost(family) for family in leaf.families)

    def _offer(self, plan: MixedPlan) -> None:
        """Let the cost model evaluate a plan, and keep it if it fits and is the best of its kind."""
        step = float(cost_plans(self.model, [plan]).step_time_s[0])
        reports = stage_reports(self.model, plan)
        for report in reports:
            assert report.memory_bytes <= self.capacity[report.group] * (1.0 + EQUAL), (
                "a stage was taken to fit that does not"
            )
        key = tuple((tuple((s.group, s.tp) for s in p.stages), p.replicas, p.micro_batch) for p in plan.pipelines)
        known = self.best.get(key)
        score = self._weights([plan.groups]).score(plan, reports, step)
        if known is None or (score, plan) < (known.score, known.plan):
            self.best[key] = MixedCandidate(plan=plan, step_time_s=step, score=score)

    # -- the answer -----------------------------------------------------------------------------------------------------

    def _finish(self, bound: float) -> None:
        outcome, model = self.outcome, self.model
        ranked = self._ranked()
        outcome.candidates = ranked[: self.settings.top]
        outcome.searched = dict(self.counts)
        if not ranked:
            outcome.bound_score = bound
            if outcome.interrupted:
                return
            outcome.nearest_miss = nearest_miss(self.book, self.solver.tables, self.devices, self.settings)
            return
        outcome.bound_score = min(bound, ranked[0].score)
        used = ranked[0].plan.groups
        outcome.precision = model.precision_of(used).name
        wanted = model.workload.precision.name
        names = group_names(model.cluster)
        if outcome.precision != wanted:
            lacking = [names[g] for g in used if wanted not in model.cluster.groups[g].device.formats]
            outcome.notes.append(f"{', '.join(lacking)} has no {wanted}, so the whole job runs in {outcome.precision}")
        idle = [names[g] for g in range(len(names)) if g not in used]
        if idle:
            worse = "only slow the best plan down" if self._weights([used]).is_time else "make the best plan no better"
            outcome.notes.append(f"{', '.join(idle)} would {worse} and stays idle")


def _devices(cluster: Cluster, settings: MixedSettings) -> tuple[int, ...]:
    counts = [end - start for start, end in group_ranges(cluster)]
    limits = settings.group_limits or (None,) * len(counts)
    if len(limits) != len(counts):
        raise MixedError(f"group_limits names {len(limits)} groups, cluster '{cluster.name}' has {len(counts)}")
    return tuple(count if limit is None else min(count, limit) for count, limit in zip(counts, limits, strict=True))
