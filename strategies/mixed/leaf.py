"""The finest part of the space: shapes of all pipelines given; blocks, shares, ZeRO and rank order to be chosen."""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.plan import RECOMPUTE
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPipeline, MixedPlan, MixedStage
from strategies.mixed.division import Division, Front, divide
from strategies.mixed.families import Family, Shapes
from strategies.mixed.settings import MixedSettings
from strategies.mixed.shares import Shape, assign, num_vectors, vectors
from strategies.mixed.stage_tables import StageTables

__all__ = ["Leaf", "LeafSolver"]

FloatArray = NDArray[np.float64]

_MOST_VECTORS = 200_000  # shares of the batch that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One shape per part."""

    families: tuple[Family, ...]
    stages: tuple[tuple[int, ...], ...]  # per part and group
    shapes: tuple[Shapes, ...]  # of one row each, for bounds


@dataclass(slots=True)
class LeafSolver:
    """Solves leaves; remembers stage tables between them."""

    model: MixedModel
    settings: MixedSettings
    capacity_bytes: tuple[float, ...]
    divisions: int = 0
    tables: StageTables = field(init=False)

    def __post_init__(self) -> None:
        """Start with empty tables."""
        self.tables = StageTables(model=self.model, capacity_bytes=self.capacity_bytes, may_recompute=self.settings.recompute)

    def solve(self, leaf: Leaf, limit_s: float, deadline: float) -> Iterator[tuple[MixedPlan | None, float]]:
        """Plans below a limit, better and better, among them the best of the leaf; (None, bound) for what stays unresolved."""
        for zero, order in self._variants(leaf):
            draft = self._draft(leaf, zero, order)
            tied = max(self.model.tied_s(draft, pipeline) for pipeline in draft.pipelines)
            for plan, total in _Shares(self, leaf, draft, deadline).best(limit_s - tied):
                if plan is not None:
                    limit_s = min(limit_s, total + tied)
                yield plan, total + tied

    def _variants(self, leaf: Leaf) -> list[tuple[int, str]]:
        several = any(family.replicas > 1 for family in leaf.families)
        shared = any(family.replicas > 1 and sum(n) > 1 for family, n in zip(leaf.families, leaf.stages, strict=True))
        zeros = self.settings.zero_stages if several else self.settings.zero_stages[:1]
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


class _Shares:
    """Shares of the batch for one draft, each pipeline's divisions solved as they are needed."""

    def __init__(self, solver: LeafSolver, leaf: Leaf, draft: MixedPlan, deadline: float) -> None:
        self.solver, self.leaf, self.draft, self.deadline = solver, leaf, draft, deadline
        self.batch = solver.model.shape.global_batch
        self.shapes = [Shape(replicas=p.replicas, micro_batch=p.micro_batch) for p in draft.pipelines]
        self.fronts: dict[tuple[int, int], Front] = {}
        self.least: list[FloatArray] = []  # pipeline -> by micro-batches (from 0), the least of its time that is known

    def best(self, limit_s: float) -> Iterator[tuple[MixedPlan | None, float]]:
        """Plans with flush + tail below the limit, and bounds of what could not be resolved."""
        if num_vectors(self.shapes, self.batch) > _MOST_VECTORS:
            yield None, self._floor_s()
            return
        wanted = vectors(self.shapes, self.batch)
        if not len(wanted):
            return
        most = wanted.max(axis=0)
        self.least = [s.least_s(np.arange(int(m) + 2)[:, None])[:, 0] for s, m in zip(self.leaf.shapes, most, strict=True)]
        bounds = np.max(np.stack([t[wanted[:, p]] for p, t in enumerate(self.least)]), axis=0)
        queue = [(float(b), tuple(int(x) for x in v)) for b, v in zip(bounds, wanted, strict=True) if b < limit_s]
        heapq.heapify(queue)
        while queue:
            bound, vector = heapq.heappop(queue)
            if bound >= limit_s:
                return
            if time.monotonic() > self.deadline:
                yield None, bound
                return
            known = max(self._least_s(p, m) for p, m in enumerate(vector))
            if known > bound:
                heapq.heappush(queue, (known, vector))
                continue
            counts = assign(self.shapes, vector, self.batch)
            if counts is None:
                longer = (*vector[:-1], vector[-1] + 1)
                if vector[-1] * self.shapes[-1].micro_batch * self.shapes[-1].replicas < self.batch:
                    heapq.heappush(queue, (max(bound, self._least_s(len(vector) - 1, longer[-1])), longer))
                continue
            fronts = self._fronts(vector, limit_s)
            loose = [front.bound_s for front in fronts if not front.is_complete]
            if loose:
                yield None, max(bound, max(loose))
            for chosen in _best_of(fronts, limit_s):
                limit_s = max(d.flush_s for d in chosen) + max(d.tail_s for d in chosen)
                yield self._plan(counts, chosen), limit_s

    def _floor_s(self) -> float:
        rates = (s.replicas * s.micro_batch / float(shape.bottleneck_s[0]) for s, shape in zip(self.shapes, self.leaf.shapes, strict=True))
        return self.batch / sum(rates)

    def _least_s(self, p: int, m: int) -> float:
        least = self.least[p]
        return float(least[m]) if m < len(least) else float(self.leaf.shapes[p].least_s(m)[0])

    def _fronts(self, vector: Sequence[int], limit_s: float) -> list[Front]:
        """Divisions of every pipeline below the limit; none after the first that has none."""
        found = []
        for p, m in enumerate(vector):
            front = self.fronts.get((p, m))
            if front is None:
                front = self.fronts[p, m] = self._divide(p, m, limit_s)
                low = min((d.flush_s for d in front.divisions), default=limit_s) if front.is_complete else front.bound_s
                # With more micro-batches it takes no less.
                self.least[p][m:] = np.maximum(self.least[p][m:], min(low, limit_s))
            found.append(front)
            if not front.divisions:
                break
        return found

    def _divide(self, p: int, m: int, limit_s: float) -> Front:
        pipeline = self.draft.pipelines[p]
        sized = MixedPipeline(stages=pipeline.stages, replicas=pipeline.replicas, micro_batch=pipeline.micro_batch, num_micro_batches=m)
        self.solver.divisions += 1
        return divide(self.solver.tables.problem(self.draft, sized), limit_s, self.solver.settings.most_states)

    def _plan(self, counts: Sequence[int], chosen: Sequence[Division]) -> MixedPlan:
        pipelines = []
        for p, (count, division) in enumerate(zip(counts, chosen, strict=True)):
            draft = self.draft.pipelines[p]
            m, longer = divmod(count, draft.replicas)
            sized = MixedPipeline(
                stages=draft.stages, replicas=draft.replicas, micro_batch=draft.micro_batch, num_micro_batches=m, longer=longer
            )
            pipelines.append(_with_blocks(self.solver.tables, self.draft, sized, division.blocks))
        draft_plan = self.draft
        return MixedPlan(
            pipelines=tuple(pipelines),
            zero_stage=draft_plan.zero_stage,
            sequence_parallel=draft_plan.sequence_parallel,
            order=draft_plan.order,
        )


def _with_blocks(tables: StageTables, draft: MixedPlan, pipeline: MixedPipeline, blocks: Sequence[int]) -> MixedPipeline:
    """Fill in the blocks, and the recomputation that the division assumed."""
    stages, start = [], 0
    for s, (stage, count) in enumerate(zip(pipeline.stages, blocks, strict=True)):
        choices = tables.choices(draft, pipeline, s)
        row = int(tables.contents.of_range[start, start + count])
        stages.append(
            MixedStage(
                group=stage.group,
                tp=stage.tp,
                blocks=count,
                recompute=RECOMPUTE[int(choices.recompute[row])],
                recompute_blocks=int(choices.recompute_blocks[row]),
            )
        )
        start += count
    return MixedPipeline(
        stages=tuple(stages),
        replicas=pipeline.replicas,
        micro_batch=pipeline.micro_batch,
        num_micro_batches=pipeline.num_micro_batches,
        longer=pipeline.longer,
    )


def _best_of(fronts: Sequence[Front], limit_s: float) -> list[tuple[Division, ...]]:
    """The choice of one division per pipeline with the least slowest flush plus longest tail, if below the limit."""
    if any(not front.divisions for front in fronts):
        return []
    best: tuple[Division, ...] | None = None
    # Allowing tails up to each that occurs, every pipeline takes its quickest division: fronts are sorted by flush, tails falling.
    for tail in sorted({d.tail_s for front in fronts for d in front.divisions}):
        chosen = []
        for front in fronts:
            allowed = [d for d in front.divisions if d.tail_s <= tail]
            if not allowed:
                break
            chosen.append(allowed[0])
        if len(chosen) == len(fronts):
            total = max(d.flush_s for d in chosen) + max(d.tail_s for d in chosen)
            if total < limit_s:
                best, limit_s = tuple(chosen), total
    return [] if best is None else [best]
