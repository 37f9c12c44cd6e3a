"""The search for servers of requests that come at a rate, or of which so many are in flight, against brute force."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.serving.model import ServingModel
from costmodel.serving.plan import ServingBatch
from costmodel.serving.workload import Arrivals
from strategies.mesh.settings import Bounds
from strategies.serving.search import (
    ServingSettings,
    binding,
    excess,
    largest_rate,
    least_replicas,
    search_serving,
    with_rate,
)
from tests.cases import mostly
from tests.strategies.serving.test_serving_search import MOST, brute_force, case


def rate_case(seed: int) -> tuple[ServingModel, ServingSettings, ServingBatch]:
    """A network and a rate, and every plan: all numbers of replicas, each with the most places that fit."""
    rng = random.Random(seed)
    model, settings = case(seed)
    settings = replace(
        settings,
        objective=rng.choice(["tokens_per_s_per_gpu", "tokens_per_s_per_gpu", "latency", "ttft"]),
        limits={},
        most_load=rng.choice([0.6, 0.8, 1.0]),
    )
    every = ServingBatch.from_plans(brute_force(model, settings))
    fits = every.take(np.flatnonzero(model.memory_bytes(every) <= settings.capacity_bytes))
    rows = {}
    for n in range(len(fits)):
        plan = fits.plan(n)
        key = replace(plan, max_batch=MOST)
        rows[key] = max(rows.get(key, plan), plan, key=lambda p: p.max_batch)
    plans = ServingBatch.from_plans(list(rows.values())) if rows else fits
    most = float(np.max(with_rate(model, 1e-9).evaluate(plans).most_requests_per_s)) if len(plans) else 1.0
    model = with_rate(model, most * rng.uniform(0.05, 1.1))
    assert model.workload.arrivals is not None
    if len(plans) and rng.random() < 0.7:
        costs = model.evaluate(plans)
        name = rng.choice(["ttft_s", "ttft_p90_s", "tpot_s", "tpot_p99_s"])
        times = getattr(costs, name)
        finite = times[np.isfinite(times) & (times > 0)]
        if len(finite):
            settings = replace(settings, limits={name: float(np.quantile(finite, rng.uniform(0.1, 0.9)))})
    return model, settings, plans


@mostly("exact", "seed", range(60), quick=8)
def test_the_best_plan_at_a_rate_is_that_of_brute_force(seed: int) -> None:
    model, settings, every = rate_case(seed)
    outcome = search_serving(model, settings)
    if not len(every):
        assert not outcome.candidates
        return
    costs = model.evaluate(every)
    kept = excess(every, costs.columns(), settings) <= 1.0
    if not kept.any():
        assert not outcome.candidates
        return
    best = float(np.min(settings.score(costs.columns(), every)[kept]))
    assert outcome.candidates[0].score == pytest.approx(best, rel=1e-9)
    assert sum(outcome.searched.values()) == outcome.space_size


@mostly("exact", "seed", range(40), quick=3)
def test_plans_that_are_not_looked_at_are_no_better(seed: int) -> None:
    """The few plans that are shown are the first of all plans; none has fewer replicas than bear its load."""
    model, settings, every = rate_case(seed)
    settings = replace(settings, objective="tokens_per_s_per_gpu")
    all_of_them = search_serving(model, replace(settings, top=10_000)).candidates
    for top in (1, 3):
        few = search_serving(model, replace(settings, top=top))
        assert few.candidates == all_of_them[:top]
        assert sum(few.searched.values()) == few.space_size
    least = least_replicas(model.replicas(every), settings)
    assert model.workload.arrivals is not None
    bears = model.workload.arrivals.rate_per_s <= settings.most_load * model.times(every)["most_requests_per_s"]
    assert np.all(least[bears] <= every.dp[bears])


@mostly("exact", "seed", range(6), quick=2)
def test_one_replica_fewer_misses_what_is_said_to_bind(seed: int) -> None:
    model, settings, _ = rate_case(seed)
    settings = replace(settings, objective="tokens_per_s_per_gpu")
    for candidate in search_serving(model, settings).candidates:
        plan = candidate.plan
        assert binding(model, plan, settings) == ()
        unit = int(ServingBatch.from_plans([plan]).sharing[0])
        if plan.dp > unit:
            assert binding(model, replace(plan, dp=plan.dp - unit), settings)


def test_the_largest_rate_is_where_a_limit_is_reached() -> None:
    model, settings, every = rate_case(11)
    plan = every.plan(0)
    calm = with_rate(model, 1e-6).evaluate(ServingBatch.from_plans([plan]))
    settings = replace(settings, limits={"ttft_p90_s": 1.5 * float(calm.ttft_p90_s[0])}, most_load=1.0)
    rate = largest_rate(model, plan, settings)
    assert 0.0 < rate < float(calm.most_requests_per_s[0])
    below, above = (with_rate(model, rate * f).evaluate(ServingBatch.from_plans([plan])) for f in (0.999, 1.001))
    assert float(below.ttft_p90_s[0]) <= settings.limits["ttft_p90_s"] < float(above.ttft_p90_s[0])


def test_as_many_requests_are_in_flight_as_are_asked_for() -> None:
    model, settings = case(5)
    settings = replace(settings, limits={}, capacity_bytes=1e18, max_workers=6, degrees={}, concurrency=5, top=50)
    found = [candidate.plan for candidate in search_serving(model, settings).candidates]
    assert found
    for plan in found:
        assert plan.max_batch == -(-5 // plan.dp)
        assert plan.dp <= 5


def test_bursts_and_numbers_of_replicas_that_are_fixed() -> None:
    model, settings, _ = rate_case(11)
    fixed = replace(settings, degrees={**settings.degrees, "dp": Bounds(values=(2,))}, limits={}, most_load=1.0)
    assert {c.plan.dp for c in search_serving(with_rate(model, 1e-6), fixed).candidates} == {2}
    assert model.workload.arrivals is not None
    bursts = replace(model, workload=replace(model.workload, arrivals=Arrivals(1e-3, 3.0)))
    assert with_rate(bursts, 5.0).workload.arrivals == Arrivals(5.0, 3.0)
