"""The finest part of the space: shapes are given; blocks, shares, ZeRO and rank order are chosen; nearest misses."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, product

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.mesh.plan import RECOMPUTE
from costmodel.mesh.rules import NetworkShape
from costmodel.mixed.evaluate import stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPipeline, MixedPlan, MixedStage
from costmodel.precision import Precision
from strategies.mixed.division import (
    Division,
    Front,
    Shape,
    assign,
    divide,
    greedy_division,
    least_bottleneck,
    least_slowest,
    makespan_bound_s,
    num_vectors,
    vectors,
)
from strategies.mixed.families import Family, RateBook
from strategies.mixed.settings import MixedMiss, MixedSettings
from strategies.mixed.stage_tables import StageTables

__all__ = ["Leaf", "LeafSolver", "nearest_miss"]


_MOST_VECTORS = 200_000  # shares of the batch that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One shape per part."""

    families: tuple[Family, ...]
    stages: tuple[tuple[int, ...], ...]  # per part and group


@dataclass(slots=True)
class LeafSolver:
    """Solves leaves; remembers stage tables between them."""

    model: MixedModel
    settings: MixedSettings
    capacity_bytes: tuple[float, ...]
    divisions: int = 0
    tables: StageTables = field(init=False)
    _least: dict[tuple[object, ...], tuple[float, float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start with empty tables."""
        self.tables = StageTables(
            model=self.model,
            capacity_bytes=self.capacity_bytes,
            recompute=self.settings.recompute,
            recompute_blocks=self.settings.recompute_blocks,
        )

    def bound_s(self, leaf: Leaf) -> float:
        """No plan of the leaf takes less; memory and recomputation are looked at, ends of steps and transfers not."""
        times, shapes = self._times(leaf)
        found = least_slowest(times, shapes, self.model.shape.global_batch)
        return np.inf if found is None else found[0]

    def quick(self, leaf: Leaf, limit_s: float) -> MixedPlan | None:
        """A plan that is probably good, if below a limit: shares by speed, slowest stages as fast as can be."""
        times, shapes = self._times(leaf)
        found = least_slowest(times, shapes, self.model.shape.global_batch)
        if found is None or not np.isfinite(found[0]):
            return None
        draft = self._draft(leaf, max(self.settings.zero_stages), self.settings.orders[0])
        counts, chosen = found[1], []
        for pipeline, count in zip(draft.pipelines, counts, strict=True):
            sized = _sized(pipeline, -(-count // pipeline.replicas), 0)
            division = greedy_division(self.tables.problem(draft, sized))
            if division is None:
                return None
            chosen.append(division)
            if division.total_s >= limit_s:
                return None
        return self.plan(draft, counts, chosen)

    def solve(
        self,
        leaf: Leaf,
        limit: float,
        deadline: float,
        *,
        weight: float = 1.0,
        joules: float = 0.0,
        more_w: Sequence[float] | None = None,
    ) -> Iterator[tuple[MixedPlan | None, float]]:
        """Plans below a limit, better and better, among them the best of the leaf; (None, bound) for what stays unresolved.

        Parameters
        ----------
        leaf : Leaf
        limit : float
            Plans of no lower score are of no interest.
        deadline : float
        weight : float
            What the step is multiplied by in the score.
        joules : float
            What is added to it at least.
        more_w : sequence of float, optional
            What a computing device of each group draws besides a waiting one. The fastest plans are found then, and no other one scores
            less than the fastest step with the least computing.
        """
        for zero, order in self._variants(leaf):
            draft = self._draft(leaf, zero, order)
            tied = max(self.model.tied_s(draft, pipeline) for pipeline in draft.pipelines)
            added = joules if more_w is None else max(joules, self._least_joules(draft, more_w))
            fastest = np.inf
            shares = _Shares(self, draft, self._times(leaf)[0], deadline)
            for plan, total in shares.best((limit - added) / weight - tied):
                score = weight * (total + tied) + added
                if plan is not None:
                    fastest = min(fastest, score)
                    limit = limit if more_w is not None else min(limit, score)
                yield plan, score
            if more_w is not None and np.isfinite(fastest):
                yield None, fastest

    def _least_joules(self, draft: MixedPlan, more_w: Sequence[float]) -> float:
        """Of a pipeline that takes the whole batch; nothing is known of several, whose shares are open."""
        if len(draft.pipelines) > 1:
            return 0.0
        count = self.model.shape.global_batch // draft.pipelines[0].micro_batch
        pipeline = _sized(draft.pipelines[0], *divmod(count, draft.pipelines[0].replicas))
        return self.tables.least_joules(draft, pipeline, count, more_w)

    def plan(self, draft: MixedPlan, counts: Sequence[int], chosen: Sequence[Division]) -> MixedPlan:
        """A draft with its blocks, recomputation and shares filled in."""
        pipelines = []
        for pipeline, count, division in zip(draft.pipelines, counts, chosen, strict=True):
            sized = _sized(pipeline, *divmod(count, pipeline.replicas))
            pipelines.append(self._with_blocks(draft, sized, division.blocks))
        return MixedPlan(
            pipelines=tuple(pipelines),
            zero_stage=draft.zero_stage,
            sequence_parallel=draft.sequence_parallel,
            order=draft.order,
        )

    def _with_blocks(self, draft: MixedPlan, pipeline: MixedPipeline, blocks: Sequence[int]) -> MixedPipeline:
        stages, start = [], 0
        for s, (stage, count) in enumerate(zip(pipeline.stages, blocks, strict=True)):
            choices = self.tables.choices(draft, pipeline, s)
            row = int(self.tables.contents.of_range[start, start + count])
            recompute, again = RECOMPUTE[int(choices.recompute[row])], int(choices.recompute_blocks[row])
            stages.append(
                MixedStage(group=stage.group, tp=stage.tp, blocks=count, recompute=recompute, recompute_blocks=again)
            )
            start += count
        return MixedPipeline(
            stages=tuple(stages),
            replicas=pipeline.replicas,
            micro_batch=pipeline.micro_batch,
            num_micro_batches=pipeline.num_micro_batches,
            longer=pipeline.longer,
        )

    def _times(self, leaf: Leaf) -> tuple[list[FloatArray], list[Shape]]:
        """Least time of every pipeline by micro-batches, and the shapes that share the batch."""
        allowed = self.settings.num_micro_batches
        shapes = [Shape(replicas=f.replicas, micro_batch=f.micro_batch, allowed=allowed) for f in leaf.families]
        precision = self.model.precision_of(tuple(sorted({g for f in leaf.families for g in f.groups})))
        pairs = zip(leaf.families, leaf.stages, strict=True)
        return [self._least_times_s(f, n, precision, lone=len(shapes) == 1) for f, n in pairs], shapes

    def samples_per_s(self, family: Family, stages: tuple[int, ...], precision: Precision) -> float:
        """No share of the batch goes through a shape faster than this; memory and recomputation are looked at."""
        times = self._least_times_s(family, stages, precision, lone=False)[1:]
        samples = family.replicas * family.micro_batch * np.arange(1, len(times) + 1)
        return float(np.max(samples / times))

    def _least_times_s(
        self, family: Family, stages: tuple[int, ...], precision: Precision, *, lone: bool
    ) -> FloatArray:
        """Least time of a shape by micro-batches. Alone it has just as many as the batch gives, else any number."""
        batch = self.model.shape.global_batch
        most = -(-batch // (family.micro_batch * family.replicas))
        numbers = (most, most) if lone else (1, sum(stages))
        found = []
        for m in numbers:
            key = (family.groups, family.tps, family.replicas, family.micro_batch, stages, precision.name, m)
            if key not in self._least:
                draft = self._draft(
                    Leaf(families=(family,), stages=(stages,)), max(self.settings.zero_stages), self.settings.orders[0]
                )
                self._least[key] = self.tables.least(draft, _sized(draft.pipelines[0], m, 0), precision)
            found.append(self._least[key])
        (longest_1, total_1, share_1), (longest_s, total_s, share_s) = found
        counts = np.arange(1, most + 1, dtype=np.float64)
        few = makespan_bound_s(counts, sum(stages), longest_1, total_1, share_1)
        many = makespan_bound_s(counts, sum(stages), longest_s, total_s, share_s)
        return np.maximum.accumulate(np.concatenate([[0.0], np.where(counts >= sum(stages), many, few)]))

    def _variants(self, leaf: Leaf) -> list[tuple[int, str]]:
        several = any(family.replicas > 1 for family in leaf.families)
        shared = any(family.replicas > 1 and sum(n) > 1 for family, n in zip(leaf.families, leaf.stages, strict=True))
        # What probably is best comes first: shared state, and replicas next to each other.
        zeros = sorted(self.settings.zero_stages, reverse=True) if several else [min(self.settings.zero_stages)]
        orders = self.settings.orders if shared else self.settings.orders[:1]
        return list(product(zeros, orders))

    def _draft(self, leaf: Leaf, zero: int, order: str) -> MixedPlan:
        """The plan without blocks and shares."""
        pipelines = tuple(
            MixedPipeline(
                stages=tuple(
                    MixedStage(group=g, tp=tp, blocks=0)
                    for g, tp, n in zip(family.groups, family.tps, stages, strict=True)
                    for _ in range(n)
                ),
                replicas=family.replicas,
                micro_batch=family.micro_batch,
            )
            for family, stages in zip(leaf.families, leaf.stages, strict=True)
        )
        sequence = self.settings.sequence_parallel and any(s.tp > 1 for p in pipelines for s in p.stages)
        return MixedPlan(pipelines=pipelines, zero_stage=zero, sequence_parallel=sequence, order=order)


def _sized(pipeline: MixedPipeline, num_micro_batches: int, longer: int) -> MixedPipeline:
    return MixedPipeline(
        stages=pipeline.stages,
        replicas=pipeline.replicas,
        micro_batch=pipeline.micro_batch,
        num_micro_batches=num_micro_batches,
        longer=longer,
    )


class _Shares:
    """Shares of the batch for one draft, each pipeline's divisions solved as they are needed."""

    def __init__(self, solver: LeafSolver, draft: MixedPlan, least_s: Sequence[FloatArray], deadline: float) -> None:
        self.solver, self.draft, self.deadline = solver, draft, deadline
        self.batch = solver.model.shape.global_batch
        allowed = solver.settings.num_micro_batches
        self.shapes = [Shape(replicas=p.replicas, micro_batch=p.micro_batch, allowed=allowed) for p in draft.pipelines]
        self.fronts: dict[tuple[int, int], Front] = {}
        self.least = [
            times.copy() for times in least_s
        ]  # by micro-batches, the least of a pipeline's time that is known

    def best(self, limit_s: float) -> Iterator[tuple[MixedPlan | None, float]]:
        """Plans with makespan + tail below the limit, and bounds of what could not be resolved."""
        queue: list[tuple[float, tuple[int, ...]]] = []
        if num_vectors(self.shapes, self.batch) > _MOST_VECTORS:
            found = least_slowest(self.least, self.shapes, self.batch)
            if found is None:
                return
            yield None, found[0]
            queue = [
                (
                    found[0],
                    tuple(-(-count // shape.replicas) for count, shape in zip(found[1], self.shapes, strict=True)),
                )
            ]
        else:
            wanted = vectors(self.shapes, self.batch)
            wanted = wanted[np.all(wanted < np.array([len(t) for t in self.least]), axis=1)]
            bounds = np.max(np.stack([t[wanted[:, p]] for p, t in enumerate(self.least)]), axis=0, initial=0.0)
            queue = [(float(b), tuple(int(x) for x in v)) for b, v in zip(bounds, wanted, strict=True) if b < limit_s]
        heapq.heapify(queue)
        while queue:
            bound, vector = heapq.heappop(queue)
            if bound >= limit_s:
                return
            if time.monotonic() > self.deadline:
                yield None, bound
                return
            known = max(float(self.least[p][m]) for p, m in enumerate(vector))
            if known > bound:
                heapq.heappush(queue, (known, vector))
                continue
            counts = assign(self.shapes, vector, self.batch)
            if counts is None:
                longer = vector[-1] + 1
                if longer < len(self.least[-1]):
                    heapq.heappush(queue, (max(bound, float(self.least[-1][longer])), (*vector[:-1], longer)))
                continue
            fronts = self._fronts(vector, limit_s)
            loose = [front.bound_s for front in fronts if not front.is_complete]
            if loose:
                yield None, max([bound, *loose])
            chosen = _best_of(fronts, len(self.shapes), limit_s)
            if chosen is not None:
                limit_s = max(d.makespan_s for d in chosen) + max(d.tail_s for d in chosen)
                yield self.solver.plan(self.draft, counts, chosen), limit_s

    def _fronts(self, vector: Sequence[int], limit_s: float) -> list[Front]:
        """Divisions of every pipeline below the limit; none after the first that has none."""
        found = []
        for p, m in enumerate(vector):
            front = self.fronts.get((p, m))
            if front is None:
                problem = self.solver.tables.problem(self.draft, _sized(self.draft.pipelines[p], m, 0))
                front = divide(problem, limit_s, self.solver.settings.most_states)
                self.fronts[p, m] = front
                self.solver.divisions += 1
                if front.is_complete and len(vector) > 1:
                    low = min((d.makespan_s for d in front.divisions), default=limit_s)
                    # With more micro-batches it takes no less.
                    self.least[p][m:] = np.maximum(self.least[p][m:], low)
            found.append(front)
            if not front.divisions:
                break
        return found


def _best_of(fronts: Sequence[Front], pipelines: int, limit_s: float) -> tuple[Division, ...] | None:
    """The choice of one division per pipeline with the least slowest makespan plus longest tail, if below the limit."""
    best: tuple[Division, ...] | None = None
    # Allowing tails up to each that occurs, every pipeline takes its quickest division: fronts are sorted by makespan, tails falling.
    for tail in sorted({d.tail_s for front in fronts for d in front.divisions}):
        chosen = [next((d for d in front.divisions if d.tail_s <= tail), None) for front in fronts]
        known = tuple(d for d in chosen if d is not None)
        if len(known) < pipelines:
            continue
        total = max(d.makespan_s for d in known) + max(d.tail_s for d in known)
        if total < limit_s:
            best, limit_s = known, total
    return best


_MOST_TRIED = 200


def nearest_miss(
    book: RateBook, tables: StageTables, devices: Sequence[int], settings: MixedSettings
) -> MixedMiss | None:
    """The plan whose fullest device is least over-full, among single pipelines over as many groups and with as many stages as there can be.

    The fewest replicas, the smallest micro-batch and everything recomputed need least memory; which degrees and order do is tried.
    None where what is fixed leaves no such pipeline.
    """
    model = book.model
    used = tuple(g for g, count in enumerate(devices) if count)
    best: tuple[float, MixedPlan] | None = None
    for size in range(len(used), 0, -1):
        tried = 0
        for groups in permutations(used, size):
            for tps in product(reversed(book.degrees), repeat=size):
                plan = None if tried >= _MOST_TRIED else _widest(model.shape, groups, tps, devices, settings)
                if plan is None:
                    continue
                tried += 1
                found = _fullest(tables, plan)
                if best is None or found[0] < best[0]:
                    best = found
        if best is not None:
            break
    if best is None:
        return None
    fullest = max(stage_reports(model, best[1]), key=lambda r: r.memory_bytes / tables.capacity_bytes[r.group])
    return MixedMiss(
        plan=best[1],
        memory_bytes=fullest.memory_bytes,
        capacity_bytes=tables.capacity_bytes[fullest.group],
        group=fullest.group,
    )


def _sizes(shape: NetworkShape, settings: MixedSettings) -> tuple[int, int, int] | None:
    """The fewest replicas and the smallest micro-batch of a pipeline that takes the whole batch, and its micro-batches."""
    least = max(settings.replicas.least, 2 if settings.must_share else 1)
    for replicas in range(least, int(min(settings.replicas.most, shape.global_batch)) + 1):
        for size in sorted(settings.micro_batches) if settings.replicas.allows(replicas) else ():
            count = shape.global_batch // size
            each = Shape(replicas=replicas, micro_batch=size, allowed=settings.num_micro_batches)
            if shape.global_batch % size == 0 and count >= replicas and each.allows(count):
                return replicas, size, count
    return None


def _widest(
    shape: NetworkShape, groups: Sequence[int], tps: Sequence[int], devices: Sequence[int], settings: MixedSettings
) -> MixedPlan | None:
    sizes, blocks = _sizes(shape, settings), shape.num_blocks
    if sizes is None or (settings.must_cut and max(tps) == 1):
        return None
    replicas, micro_batch, count = sizes
    counts = [devices[g] // (tp * replicas) for g, tp in zip(groups, tps, strict=True)]
    if min(counts) < 1 or blocks < len(groups):
        return None
    while sum(counts) > blocks or not settings.stages.allows(sum(counts)):
        counts[int(np.argmax(counts))] -= 1
        if min(counts) < 1:
            return None
    stages = tuple(
        MixedStage(group=g, tp=tp, blocks=0) for g, tp, n in zip(groups, tps, counts, strict=True) for _ in range(n)
    )
    sequence = settings.sequence_parallel and max(tps) > 1
    each, longer = divmod(count, replicas)
    pipeline = MixedPipeline(
        stages=stages, replicas=replicas, micro_batch=micro_batch, num_micro_batches=each, longer=longer
    )
    zero = max(settings.zero_stages) if replicas > 1 else min(settings.zero_stages)
    return MixedPlan(pipelines=(pipeline,), zero_stage=zero, sequence_parallel=sequence, order=settings.orders[0])


def _fullest(tables: StageTables, plan: MixedPlan) -> tuple[float, MixedPlan]:
    """The division with the least over-full stage, everything recomputed, and how full that is."""
    pipeline = plan.pipelines[0]
    of_range = tables.contents.of_range
    stages = range(len(pipeline.stages))
    filled = np.stack(
        [
            tables.choices(plan, pipeline, s).least_bytes[of_range] / tables.capacity_bytes[pipeline.stages[s].group]
            for s in stages
        ]
    )
    longest, _ = least_bottleneck(filled)
    at, done = 0, []
    for s in stages:
        end = int(np.argmin(np.maximum(filled[s, at], longest[s + 1])))
        done.append(_least_memory(tables, plan, pipeline, s, at, end))
        at = end
    return float(longest[0, 0]), replace(plan, pipelines=(replace(pipeline, stages=tuple(done)),))


def _least_memory(
    tables: StageTables, plan: MixedPlan, pipeline: MixedPipeline, s: int, start: int, end: int
) -> MixedStage:
    stage, count = pipeline.stages[s], end - start
    choices, row = tables.choices(plan, pipeline, s), tables.contents.of_range[start, end]
    return MixedStage(
        group=stage.group,
        tp=stage.tp,
        blocks=count,
        recompute=RECOMPUTE[int(choices.least_option[row])],
        recompute_blocks=int(choices.least_blocks[row]),
    )
