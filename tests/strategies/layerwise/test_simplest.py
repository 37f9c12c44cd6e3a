"""The simplest plan that is nearly as good as the best, and the one on the fewest workers, against enumeration of small spaces."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest

from costmodel.layerwise.evaluate import evaluate
from costmodel.layerwise.plan import Plan, divisors, family_of_plan, plan_key, split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.workload import Workload
from strategies.layerwise.search import SearchSettings, search
from strategies.layerwise.simplest import fewest_gpus, simplest
from strategies.layerwise.space import Restriction
from tests.cases import mostly
from tests.networks import network, roofline_workload
from tests.strategies.layerwise.test_whole_space import CLUSTER, DEVICE, every_pipeline, workload_of

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
        outcome = search(case, CLUSTER, replace(settings, near=0.1 * (top > 1)), cache=cache)
        chosen = simplest(cache, settings, outcome, within)
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
    outcome = search(case, CLUSTER, settings, cache=cache)
    listed = outcome.candidates
    # As good as the best plan on at most so many, and a little worse than the best of all.
    limits = [min(plan.score for plan in known if plan.workers <= n) * (1 + 1e-9) for n in range(1, WORKERS + 1)]
    searches = [replace(outcome, candidates=some) for some in ([], listed[:1], listed)]
    # With what is known of pipelines: the best of them up to a tenth or ten times more than the best plan, or nothing.
    searches += [search(case, CLUSTER, replace(settings, top=1, near=near), cache=cache) for near in (0.1, 10.0)]
    searches.append(replace(outcome, candidates=listed[:1], pipeline=None, pipelines_bound=0.0))
    for cutoff in (*limits, listed[0].score / 0.95):
        near = [plan for plan in known if plan.score <= cutoff]
        least = min(plan.workers for plan in near)
        for one in searches:
            found = fewest_gpus(cache, settings, one, WORKERS, cutoff)
            assert (WORKERS if found is None else found.plan.workers) == least
            assert found is None or found.score <= cutoff


@pytest.mark.parametrize("near", [0.0, 0.1, 10.0])
def test_the_best_pipeline_near_the_best_plan_is_found_whatever_the_list(near: float) -> None:
    case, known = workload_of("both", BATCH, training=True), every_plan("both")
    settings = SearchSettings(max_workers=WORKERS, capacity_bytes=max(plan.memory for plan in known), top=1, near=near)
    outcome = search(case, CLUSTER, settings)
    best = min(plan.score for plan in known)
    pipeline = min(plan.score for plan in known if plan.family == "pipeline")
    within = best * (1 + near)
    assert outcome.knows_pipelines(within)
    found = outcome.pipeline_within(within)
    assert (found is not None) == (pipeline <= within * (1 + 1e-9))
    assert found is None or found.score == pytest.approx(pipeline, rel=1e-9)
    assert outcome.pipelines_bound <= pipeline * (1 + 1e-9)


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


@pytest.mark.parametrize(("top", "room"), [(4, 1.0), (12, 1.0), (4, 0.2)])
def test_of_plans_that_are_the_same_work_the_best_is_listed(top: int, room: float) -> None:
    """The layers in the middle are alike: which of them is split in another way changes no kernel, message or byte."""
    layers = [(f"fc{n}", "linear", (f"fc{n - 1}" if n else "data",), {"out_features": 48}) for n in range(4)]
    case = roofline_workload(network((48,), *layers), DEVICE, batch=BATCH)
    numbers = divisors(BATCH)
    plans = [plan for m in numbers for w in range(1, 3) for plan in plans_of(case, w, m)]
    plans += [plan for m in numbers for plan in every_pipeline(case, 2, m)]
    costs = evaluate(case, CLUSTER, plans)
    capacity = costs.memory_bytes.min() + room * (costs.memory_bytes.max() - costs.memory_bytes.min())
    best: dict[object, tuple[float, object]] = {}  # by kernels, messages and memory: the score, and the splits
    for n, plan in enumerate(plans):
        if costs.memory_bytes[n] > capacity:
            continue
        sums = (costs.compute_s[n], costs.reshard_s[n], costs.exchange_s[n], costs.memory_bytes[n])
        kinds = [(layer.signature, split.degrees) for layer, split in zip(case.graph.layers, plan.splits, strict=True)]
        work = (
            plan.workers,
            plan.stages,
            tuple(sorted(map(str, kinds[1:]))),
            *(f"{float(value):.8e}" for value in sums),
        )
        known = best.get(work, (np.inf, None))
        best[work] = min(known, (float(costs.step_time_s[n]), plan_key(case.graph, plan)), key=lambda one: one[0])
    # Micro-batches are a way to run a plan: the best one counts.
    of_plans: dict[object, float] = {}
    for score, key in best.values():
        of_plans[key] = min(of_plans.get(key, np.inf), score)
    expected = sorted(of_plans.values())[:top]
    found = search(case, CLUSTER, SearchSettings(max_workers=2, capacity_bytes=capacity, top=top))
    assert [candidate.score for candidate in found.candidates] == pytest.approx(expected, rel=1e-9)
    every = sorted(
        {plan_key(case.graph, plan): float(s) for plan, s in zip(plans, costs.step_time_s, strict=True)}.values()
    )
    assert room < 1.0 or every[:top] != pytest.approx(expected, rel=1e-9)
    assert found.rest_bound >= expected[-1] * (1 - 1e-9)
