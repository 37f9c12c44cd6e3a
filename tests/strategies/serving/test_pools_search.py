"""The search over pairs of pools against the whole product, plan by plan."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from costmodel.objectives import SERVING_OBJECTIVES
from costmodel.serving.model import ServingModel
from costmodel.serving.plan import ServingBatch, ServingPlan, broken_serving_rules, is_legal
from strategies.mesh.settings import Bounds
from strategies.serving.pools import reads_apart, reads_shared, search_both
from strategies.serving.search import ServingSettings
from tests.cases import mostly
from tests.strategies.serving.test_serving_search import case

MOST = 12  # sequences per replica


def product(model: ServingModel, settings: ServingSettings) -> ServingBatch:
    """Every pair of pools with the most replicas, whole prompts, and every number of sequences."""
    most, prompt = settings.max_workers, model.workload.new_tokens
    degrees = range(1, most + 1)
    sides = list(itertools.product(degrees, degrees, (1, 2, 3, 4), (1, 2, 3, 4)))
    readers = [
        {"prefill_tp": tp, "prefill_pp": pp, "prefill_ep": ep, "prefill_etp": etp, "prefill_dp": dp, "prefill_batch": n}
        for (tp, pp, ep, etp), dp, n in itertools.product(sides, degrees, (1, 2, 4, 8, 16, 32, 64, 128, 256))
        if tp * pp * dp < most and (n == 1 or n * prompt <= 16384)
    ]
    found: dict[tuple[int, ...], ServingPlan] = {}
    plans = []
    for (tp, pp, ep, etp), reader in itertools.product(sides, readers):
        left = most - reader["prefill_tp"] * reader["prefill_pp"] * reader["prefill_dp"]
        if tp * pp <= left:
            plans += [
                ServingPlan(tp=tp, pp=pp, ep=ep, etp=etp, dp=dp, **reader) for dp in range(1, left // (tp * pp) + 1)
            ]
    batch = ServingBatch.from_plans(plans) if plans else ServingBatch.from_plans([ServingPlan(tp=10**6)])
    for n in np.flatnonzero(is_legal(model.shape, batch)).tolist():  # of those that differ in the replicas, the most
        plan = batch.plan(n)
        key = replace(plan, dp=1)
        found[key] = max(plan, found.get(key, plan), key=lambda p: p.dp)  # type: ignore[index, arg-type]
    every = [replace(plan, max_batch=n) for plan in found.values() for n in range(1, MOST + 1)]
    return ServingBatch.from_plans(every)


@mostly("exact", "seed", range(100), quick=8)
def test_the_best_pair_is_that_of_the_whole_product(seed: int) -> None:
    model, settings = case(seed)
    settings = replace(
        settings, max_workers=min(settings.max_workers, 4), degrees={"max_batch": Bounds(low=1, high=MOST)}
    )
    every = product(model, settings)
    outcome = search_both(model, replace(settings, disaggregate="yes", top=3))
    assert outcome.space_size == len(every)
    if not len(every):
        assert not outcome.candidates
        return
    costs = model.evaluate(every)
    scores = np.asarray(SERVING_OBJECTIVES[settings.objective].score(costs.columns(), every.workers))
    kept = costs.memory_bytes <= settings.capacity_bytes
    for name, limit in settings.limits.items():
        kept &= getattr(costs, name) <= limit
    best: dict[ServingPlan, float] = {}
    for n in np.flatnonzero(kept).tolist():
        key = replace(every.plan(n), max_batch=1, prefill_batch=1)
        best[key] = min(best.get(key, np.inf), float(scores[n]))
    wanted = sorted(best.values())[:3]
    assert [candidate.score for candidate in outcome.candidates] == pytest.approx(wanted, rel=1e-9)
    assert sum(outcome.searched.values()) == outcome.space_size


def test_both_kinds_are_compared_in_one_space() -> None:
    model, settings = case(3)
    settings = replace(settings, max_workers=4, capacity_bytes=1e18, limits={}, objective="throughput")
    shared, apart, both = (search_both(model, replace(settings, disaggregate=kind)) for kind in ("no", "yes", "auto"))
    assert both.space_size == shared.space_size + apart.space_size
    assert both.candidates[0].score == min(shared.candidates[0].score, apart.candidates[0].score)
    assert {kind: found.score for kind, found in both.best_of.items()} == {
        False: shared.candidates[0].score,
        True: apart.candidates[0].score,
    }


@pytest.mark.parametrize(
    ("degrees", "kinds"),
    [
        ({}, (True, True)),
        ({"prefill_dp": Bounds(values=(0,))}, (True, False)),
        ({"prefill_dp": Bounds(values=(2,))}, (False, True)),
        ({"prefill_tp": Bounds(values=(2,))}, (False, True)),
    ],
)
def test_settings_of_a_pool_say_which_kinds_are_looked_at(degrees: dict[str, Bounds], kinds: tuple[bool, bool]) -> None:
    settings = ServingSettings(max_workers=8, capacity_bytes=1.0, degrees=degrees, disaggregate="auto")
    assert (reads_shared(settings), reads_apart(settings)) == kinds


def test_what_the_user_fixes_is_kept() -> None:
    model, settings = case(3)
    fixed = {name: Bounds(values=(1,)) for name in ("tp", "pp", "dp", "prefill_dp", "prefill_batch")}
    settings = replace(settings, max_workers=4, capacity_bytes=1e18, limits={})
    outcome = search_both(model, replace(settings, degrees={**settings.degrees, **fixed}, disaggregate="auto", top=50))
    assert outcome.candidates
    for candidate in outcome.candidates:
        plan = candidate.plan
        assert (plan.tp, plan.pp, plan.dp, plan.prefill_dp, plan.prefill_batch) == (1, 1, 1, 1, 1)


@pytest.mark.parametrize(("pools", "stages"), [("any", {1, 2, 3}), ("one_stage", {1}), ("none", set())])
def test_pools_are_those_that_the_engine_has(pools: str, stages: set[int]) -> None:
    """Of a framework with a rule no other plan is searched, and all that is searched is legal."""
    model, settings = case(3)
    rules = replace(model.workload.framework.rules, pools=pools)
    framework = replace(model.workload.framework, rules=rules)
    ruled = replace(model, workload=replace(model.workload, framework=framework))
    free = replace(settings, max_workers=4, degrees={}, limits={}, disaggregate="yes", top=10_000, capacity_bytes=1e18)
    plans = [candidate.plan for candidate in search_both(ruled, free).candidates]
    assert {pp for plan in plans for pp in (plan.pp, plan.prefill_pp)} == stages
    assert not [plan for plan in plans if broken_serving_rules(ruled.shape, plan)]
