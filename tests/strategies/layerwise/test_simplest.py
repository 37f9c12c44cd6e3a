"""The simplest plan that is nearly as good as the best, and the one on the fewest workers, against enumeration of small spaces."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import pytest

from costmodel.layerwise.evaluate import evaluate
from costmodel.layerwise.plan import Plan, family_of_plan
from costmodel.layerwise.splits import divisors, split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.workload import Workload
from strategies.layerwise.search import SearchSettings, search
from strategies.layerwise.simplest import fewest_gpus, simplest
from strategies.layerwise.space import Restriction
from tests.cases import mostly
from tests.strategies.layerwise.test_whole_space import CLUSTER, every_pipeline, workload_of

WORKERS, BATCH = 4, 4
# The written order (docs/optimize.md).
ORDER = ("one-device", "data", "hybrid", "model", "pipeline", "spatial", "mixed")


@dataclass(frozen=True)
class Known:
    """A plan of the whole space, by its cost."""

    score: float
    memory: float
    workers: int
    family: str
    one_dimension: bool

    @property
    def difficulty(self) -> tuple[int, bool]:
        return ORDER.index(self.family), not self.one_dimension


def plans_of(case: Workload, workers: int, m: int) -> list[Plan]:
    tables = CostTables(case, CLUSTER, split_table([workers]), m)
    options = [
        np.flatnonzero(costs.legal)[: 1 if layer.kind == "input" else None].tolist()
        for layer, costs in zip(case.graph.layers, tables.layers, strict=True)
    ]
    return [
        Plan(
            workers=workers,
            num_micro_batches=m,
            splits=tuple(tables.table.split(row) for row in rows),
            collectives=tuple(tables.collective_at(i, row) for i, row in enumerate(rows)),
        )
        for rows in itertools.product(*options)
    ]


@functools.cache
def every_plan(name: str) -> list[Known]:
    case = workload_of(name, BATCH, training=True)
    numbers = divisors(BATCH)
    plans = [plan for m in numbers for w in range(1, WORKERS + 1) for plan in plans_of(case, w, m)]
    plans += [plan for m in numbers for plan in every_pipeline(case, WORKERS, m)]
    costs = evaluate(case, CLUSTER, plans)
    found = []
    for n, plan in enumerate(plans):
        weighted = [plan.splits[i].degrees for i in case.graph.weighted]
        is_simple = plan.is_pipeline or all(sum(degree > 1 for degree in degrees) <= 1 for degrees in weighted)
        found.append(
            Known(
                score=float(costs.step_time_s[n]),
                memory=float(costs.memory_bytes[n]),
                workers=plan.workers,
                family=family_of_plan(case.graph, plan),
                one_dimension=is_simple,
            )
        )
    return found


@mostly("exact", ("name", "room"), [(n, r) for n in ("perceptron", "both") for r in (1.0, 0.1)], quick=1)
def test_the_simplest_plan_is_that_of_enumeration(name: str, room: float) -> None:
    case, known = workload_of(name, BATCH, training=True), every_plan(name)
    memory = [plan.memory for plan in known]
    capacity = min(memory) + room * (max(memory) - min(memory))
    fitting = [plan for plan in known if plan.memory <= capacity]
    best, cache = min(plan.score for plan in fitting), CostCache(case, CLUSTER)
    seen = set()
    for within, top in itertools.product((0.0, 0.01, 0.1, 0.3, 1.0, 10.0), (1, 8)):
        settings = SearchSettings(max_workers=WORKERS, capacity_bytes=capacity, top=top)
        outcome = search(case, CLUSTER, settings, cache=cache)
        chosen = simplest(cache, settings, outcome.candidates, within)
        near = [plan for plan in fitting if plan.score <= best * (1 + within) * (1 + 1e-9)]
        wanted = min(near, key=lambda plan: (plan.difficulty, plan.score))
        degrees = [chosen.plan.splits[i].degrees for i in case.graph.weighted]
        is_simple = chosen.plan.is_pipeline or all(sum(d > 1 for d in split) <= 1 for split in degrees)
        assert (chosen.family, is_simple) == (wanted.family, wanted.one_dimension)
        assert chosen.score == pytest.approx(wanted.score, rel=1e-9)
        assert chosen.memory_bytes <= capacity
        seen.add(chosen.family)
    assert len(seen) > 1 or room < 1.0


@mostly("exact", "name", ("perceptron", "both"), quick=1)
def test_the_fewest_workers_are_those_of_enumeration(name: str) -> None:
    case, known = workload_of(name, BATCH, training=True), every_plan(name)
    settings = SearchSettings(max_workers=WORKERS, capacity_bytes=max(plan.memory for plan in known))
    cache = CostCache(case, CLUSTER)
    listed = search(case, CLUSTER, settings, cache=cache).candidates
    # As good as the best plan on at most so many, and a little worse than the best of all.
    limits = [min(plan.score for plan in known if plan.workers <= n) * (1 + 1e-9) for n in range(1, WORKERS + 1)]
    for cutoff in (*limits, listed[0].score / 0.95):
        least = min(plan.workers for plan in known if plan.score <= cutoff)
        for some in ([], listed[:1], listed):
            found = fewest_gpus(cache, settings, some, WORKERS, cutoff)
            assert (WORKERS if found is None else found.plan.workers) == least


def test_one_dimension_is_searched_exactly() -> None:
    case, known = workload_of("both", BATCH, training=True), every_plan("both")
    capacity = max(plan.memory for plan in known)
    for family in ("hybrid", "model", "spatial", "mixed"):
        part = Restriction(family=family, one_dimension=True)
        settings = SearchSettings(max_workers=WORKERS, capacity_bytes=capacity, top=1, restriction=part)
        found = search(case, CLUSTER, settings).candidates
        wanted = min((plan.score for plan in known if plan.family == family and plan.one_dimension), default=None)
        assert (found[0].score if found else None) == (None if wanted is None else pytest.approx(wanted, rel=1e-9))


def test_a_limit_on_scores_keeps_what_is_below_it() -> None:
    case, known = workload_of("both", BATCH, training=True), every_plan("both")
    capacity = max(plan.memory for plan in known)
    best = min(plan.score for plan in known)
    settings = SearchSettings(max_workers=WORKERS, capacity_bytes=capacity, top=1)
    for cutoff, is_found in ((best * 1.001, True), (best * 0.999, False)):
        found = search(
            case, CLUSTER, SearchSettings(max_workers=WORKERS, capacity_bytes=capacity, top=1, cutoff=cutoff)
        )
        assert any(c.score <= cutoff for c in found.candidates) == is_found
    assert search(case, CLUSTER, settings).candidates[0].score == pytest.approx(best, rel=1e-9)
