"""The search over pairs of pools against the whole product, plan by plan."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.serving.model import ServingModel
from costmodel.serving.plan import ServingBatch, ServingPlan, broken_serving_rules, is_legal
from strategies.mesh.settings import Bounds
from strategies.serving.pools import reads_apart, reads_shared, search_both
from strategies.serving.pools_at_rate import fewest_workers
from strategies.serving.search import ServingSettings, binding, excess, largest_rate, with_rate
from tests.cases import mostly
from tests.strategies.serving.test_serving_search import COSTS, case, serving

MOST = 12  # sequences per replica


def pairs(model: ServingModel, settings: ServingSettings) -> list[ServingPlan]:
    """Every pair of pools with any number of workers of either, whole prompts, and one sequence."""
    most, prompt = settings.max_workers, model.workload.new_tokens
    degrees = range(1, most + 1)
    sides = list(itertools.product(degrees, degrees, (1, 2, 3, 4), (1, 2, 3, 4)))
    readers = [
        {"prefill_tp": tp, "prefill_pp": pp, "prefill_ep": ep, "prefill_etp": etp, "prefill_dp": dp, "prefill_batch": n}
        for (tp, pp, ep, etp), dp, n in itertools.product(sides, degrees, (1, 2, 4, 8, 16, 32, 64, 128, 256))
        if tp * pp * dp < most and (n == 1 or n * prompt <= 16384)
    ]
    plans = []
    for (tp, pp, ep, etp), reader in itertools.product(sides, readers):
        left = most - reader["prefill_tp"] * reader["prefill_pp"] * reader["prefill_dp"]
        if tp * pp <= left:
            plans += [
                ServingPlan(tp=tp, pp=pp, ep=ep, etp=etp, dp=dp, **reader) for dp in range(1, left // (tp * pp) + 1)
            ]
    batch = ServingBatch.from_plans(plans) if plans else ServingBatch.from_plans([ServingPlan(tp=10**6)])
    return [batch.plan(n) for n in np.flatnonzero(is_legal(model.shape, batch)).tolist()]


def product(model: ServingModel, settings: ServingSettings) -> ServingBatch:
    """The same with every number of sequences; of those that differ in the replicas, the most."""
    found: dict[ServingPlan, ServingPlan] = {}
    for plan in pairs(model, settings):
        key = replace(plan, dp=1)
        found[key] = max(plan, found.get(key, plan), key=lambda p: p.dp)
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
    scores = settings.score(costs.columns(), every)
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


def fullest(model: ServingModel, settings: ServingSettings) -> ServingBatch:
    """Every pair that fits, with any number of workers of either, and the most sequences that fit."""
    fits: dict[ServingPlan, int] = {}
    for plan in {replace(plan, dp=1, prefill_dp=1) for plan in pairs(model, settings)}:
        several = ServingBatch.from_plans([replace(plan, max_batch=n) for n in range(1, MOST + 1)])
        fits[plan] = int(np.sum(model.memory_bytes(several) <= settings.capacity_bytes))
    found = [
        replace(plan, max_batch=most)
        for plan in pairs(model, settings)
        if (most := fits[replace(plan, dp=1, prefill_dp=1)])
    ]
    return ServingBatch.from_plans(found) if found else ServingBatch.from_plans([ServingPlan(prefill_dp=1)]).take([])


def rate_case(seed: int) -> tuple[ServingModel, ServingSettings, ServingBatch]:
    """A network, requests at a rate, limits that some pairs keep, and all pairs."""
    rng = random.Random(seed)
    model, settings = case(seed)
    settings = replace(
        settings,
        max_workers=min(settings.max_workers, rng.choice((3, 4, 5))),
        objective=rng.choice(["tokens_per_s_per_gpu"] * 3 + ["latency", "ttft"]),
        limits={},
        most_load=rng.choice([0.6, 0.8, 1.0]),
        degrees={"max_batch": Bounds(low=1, high=MOST)},
        disaggregate="yes",
    )
    every = fullest(model, settings)
    most = float(np.max(with_rate(model, 1e-9).evaluate(every).most_requests_per_s)) if len(every) else 1.0
    model = with_rate(model, most * rng.uniform(0.02, 0.7))
    if len(every):
        costs = model.evaluate(every)
        for name in rng.sample(["ttft_s", "ttft_p90_s", "tpot_s", "tpot_p99_s"], rng.choice((0, 1, 2))):
            times = getattr(costs, name)
            times = times[np.isfinite(times) & (times > 0)]
            if len(times):
                limit = float(np.quantile(times, rng.uniform(0.05, 0.9)))
                settings = replace(settings, limits={**settings.limits, name: limit})
    return model, settings, every


@mostly("exact", "seed", range(100), quick=8)
def test_the_best_pair_at_a_rate_is_that_of_the_whole_product(seed: int) -> None:
    """With any number of workers of either pool: the fewest GPUs, or the least time of the most."""
    model, settings, every = rate_case(seed)
    outcome = search_both(model, replace(settings, top=3))
    if not len(every):
        assert not outcome.candidates
        return
    costs = model.evaluate(every)
    kept = excess(every, costs.columns(), settings) <= 1.0
    assert bool(outcome.candidates) == bool(kept.any())
    if not kept.any():
        assert outcome.nearest_miss is not None
        return
    scores = settings.score(costs.columns(), every)
    assert outcome.candidates[0].score == pytest.approx(float(np.min(scores[kept])), rel=1e-9)
    assert sum(outcome.searched.values()) == outcome.space_size
    if settings.objective != "tokens_per_s_per_gpu":
        return
    for candidate in outcome.candidates:  # no pool has a worker too many
        plan, (unit,) = candidate.plan, ServingBatch.from_plans([candidate.plan]).sharing
        for fewer in (replace(plan, prefill_dp=plan.prefill_dp - 1), replace(plan, dp=plan.dp - int(unit))):
            if fewer.dp and fewer.prefill_dp and not broken_serving_rules(model.shape, fewer):
                assert binding(model, fewer, settings)


def test_rates_of_a_plan_with_two_pools() -> None:
    """The largest rate is where a limit is reached, and at a lower one fewer workers of both pools do, of which none is too many."""
    model, settings = case(3)
    plan = ServingPlan(dp=6, max_batch=MOST, prefill_dp=5)
    settings = replace(settings, max_workers=11, limits={}, most_load=0.8)
    calm = with_rate(model, 1e-6).evaluate(ServingBatch.from_plans([plan]))
    settings = replace(settings, limits={"ttft_p90_s": 1.5 * float(calm.ttft_p90_s[0])})
    rate = largest_rate(model, plan, settings)
    assert 0.0 < rate <= 0.8 * float(calm.most_requests_per_s[0])
    assert binding(with_rate(model, rate * 0.999), plan, settings) == ()
    assert binding(with_rate(model, rate * 1.001), plan, settings)
    less = with_rate(model, rate / 2.0)
    few = fewest_workers(less, plan, settings)
    assert binding(less, few, settings) == ()
    assert few.workers < plan.workers
    for fewer in (replace(few, dp=few.dp - 1), replace(few, prefill_dp=few.prefill_dp - 1)):
        assert not (fewer.dp and fewer.prefill_dp) or binding(less, fewer, settings)


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
    free = replace(
        settings,
        max_workers=4,
        degrees={"max_batch": Bounds(low=1, high=2)},
        limits={},
        disaggregate="yes",
        top=10_000,
        capacity_bytes=1e18,
    )
    plans = [candidate.plan for candidate in search_both(ruled, free).candidates]
    assert {pp for plan in plans for pp in (plan.pp, plan.prefill_pp)} == stages
    assert not [plan for plan in plans if broken_serving_rules(ruled.shape, plan)]


@pytest.mark.parametrize("objective", ["tokens_per_s_per_gpu", "energy"])
def test_few_requests_in_flight_may_want_few_devices(objective: str) -> None:
    """So many are in flight however many devices there are: the best on up to four is that of every number of them, of both kinds."""
    found = serving()
    work = replace(found.workload, concurrency=3)
    model = replace(found, workload=work)
    settings = ServingSettings(max_workers=4, capacity_bytes=1e18, objective=objective, concurrency=3, top=1)
    settings = replace(settings, costs=COSTS.get(objective, settings.costs))
    for kind in ("no", "yes"):
        asked = replace(settings, disaggregate=kind)
        best = search_both(model, asked).candidates[0].score
        fixed = [
            search_both(model, replace(asked, degrees={"dp": Bounds(values=(dp,))})).candidates for dp in (1, 2, 3)
        ]
        assert best == pytest.approx(min(each[0].score for each in fixed if each), rel=1e-9)
