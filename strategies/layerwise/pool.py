"""The K best different plans found so far, each with the judge's verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.layerwise.evaluate import batch_of, evaluate, evaluate_on
from costmodel.layerwise.plan import Plan, family_of_plan, plan_key
from costmodel.layerwise.tables import CostTables, KnownCosts
from strategies.layerwise.score import STEP_TIME, Score

__all__ = ["Candidate", "Pool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan with the judge's verdict."""

    plan: Plan
    step_time_s: float
    score: float  # what is compared; the step time, unless another objective is asked for
    memory_bytes: float
    family: str


class Pool:
    """The K best different plans so far."""

    def __init__(
        self, known: KnownCosts, *, top: int, capacity_bytes: float, family: str | None, score: Score = STEP_TIME
    ) -> None:
        self._known, self._workload = known, known.workload
        self._top, self._capacity_bytes, self._family, self._score = top, capacity_bytes, family, score
        self._found: dict[tuple[object, ...], Candidate] = {}
        self.nearest_miss: Candidate | None = None

    def add(self, plans: Sequence[Plan], tables: CostTables | None = None) -> int:
        """Judge plans, keep those that fit the memory, the family and the list, and count those that are of the family.

        Plans without stages may bring the tables that they came from, which saves the judge from building them again.
        """
        if not plans:
            return 0
        accepted = 0
        graph = self._workload.graph
        costs = (
            evaluate(self._workload, self._known.cluster, plans, self._known)
            if tables is None
            else evaluate_on(tables, batch_of(tables, plans))
        )
        scores = self._score.of(costs.step_time_s, costs.computing_s, [plan.workers for plan in plans])
        for n, plan in enumerate(plans):
            step, memory = float(costs.step_time_s[n]), float(costs.memory_bytes[n])
            family = family_of_plan(graph, plan)
            if not np.isfinite(step) or self._family not in (None, family):
                continue
            accepted += 1
            candidate = Candidate(
                plan=plan, step_time_s=step, score=float(scores[n]), memory_bytes=memory, family=family
            )
            if memory > self._capacity_bytes:
                if self.nearest_miss is None or memory < self.nearest_miss.memory_bytes:
                    self.nearest_miss = candidate
                continue
            key = plan_key(graph, plan)
            if key not in self._found or _order(candidate) < _order(self._found[key]):
                self._found[key] = candidate
        ranked = sorted(self._found.items(), key=lambda item: _order(item[1]))
        self._found = dict(ranked[: self._top])
        return accepted

    def best(self) -> list[Candidate]:
        """At most K candidates, best first; ties go to fewer workers."""
        return list(self._found.values())

    @property
    def cutoff(self) -> float:
        """Score of the K-th plan: what a further plan must beat."""
        ranked = self.best()
        return ranked[-1].score if len(ranked) == self._top else float("inf")


def _order(candidate: Candidate) -> tuple[object, ...]:
    plan = candidate.plan
    # Rounding keeps equal times computed in another order equal, so that ties are broken the same way everywhere.
    return (
        float(f"{candidate.score:.11e}"),
        plan.workers,
        plan.num_micro_batches,
        plan.stages,
        tuple(split.degrees for split in plan.splits),
    )
