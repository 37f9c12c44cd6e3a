"""The search over serving plans against brute force, one plan at a time."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.host import DeviceCost
from costmodel.mesh.rules import NetworkShape
from costmodel.objectives import SERVING_OBJECTIVES
from costmodel.serving.model import ServingModel
from costmodel.serving.plan import ServingBatch, ServingPlan, broken_serving_rules
from costmodel.serving.workload import Drafting, ServingAssumptions, ServingWorkload
from strategies.mesh.settings import Bounds
from strategies.serving.search import (
    ServingSettings,
    batches_of,
    outlines,
    search_serving,
)
from tests.cases import mostly
from tests.strategies.mesh.networks import decoder, two_level_cluster

MOST = 6  # sequences per replica in the small cases


# USD or joules per second of a device, and of one that only reads prompts.
COSTS = {
    "money": (DeviceCost(waiting=2.0, computing=2.0), DeviceCost(waiting=5.0, computing=5.0)),
    "energy": (DeviceCost(waiting=100.0, computing=700.0), DeviceCost(waiting=60.0, computing=300.0)),
}


def case(seed: int) -> tuple[ServingModel, ServingSettings]:
    rng = random.Random(seed)
    features = rng.choice([64, 256, 1024])
    graph = decoder(
        blocks=rng.choice([1, 2, 3]),
        features=features,
        kv_heads=rng.choice([1, 2, 4]),
        ffn=2 * features,
        vocabulary=rng.choice([256, 4096]),
        experts=rng.choice([0, 0, 2, 4]),
    )
    where = two_level_cluster(
        per_node=rng.choice([2, 4]), inside=rng.choice([20e9, 300e9]), outside=rng.choice([2e9, 25e9])
    )
    work = ServingWorkload(
        graph=graph,
        prompt_tokens=rng.choice([64, 300, 600]),
        output_tokens=rng.choice([1, 8, 100]),
        context_bytes=0,
        prefix_cached=0.4 * (seed % 3 == 1),
    )
    model = ServingModel.build(work, where, ServingAssumptions())
    objective = rng.choice(list(SERVING_OBJECTIVES))
    settings = ServingSettings(
        max_workers=rng.choice([1, 2, 3, 4, 6]),
        capacity_bytes=1e18,
        objective=objective,
        costs=COSTS.get(objective, ServingSettings(max_workers=1, capacity_bytes=1.0).costs),
        degrees={"max_batch": Bounds(low=1, high=MOST)},
    )
    every = brute_force(model, settings)
    costs = model.evaluate(ServingBatch.from_plans(every))
    if rng.random() < 0.6:  # memory that excludes some plans
        settings = replace(settings, capacity_bytes=float(np.quantile(costs.memory_bytes, rng.uniform(0.0, 0.9))))
    if rng.random() < 0.5:
        limit = float(np.quantile(costs.ttft_s, rng.uniform(0.1, 0.9)))
        settings = replace(settings, limits={"ttft_s": limit})
    if rng.random() < 0.5:
        limit = max(float(np.quantile(costs.tpot_s, rng.uniform(0.1, 0.9))), 1e-9)
        settings = replace(settings, limits={**settings.limits, "tpot_s": limit})
    return model, settings


def brute_force(model: ServingModel, settings: ServingSettings) -> list[ServingPlan]:
    """Every combination of small numbers that breaks no rule, with full groups and the ways to read prompts of the space."""
    shape = NetworkShape.of(model.workload.graph, model.modules, 1)
    prompt, most = model.workload.new_tokens, settings.max_workers
    degrees = range(1, most + 1)
    found = []
    for tp, pp, ep, etp, dp in itertools.product(degrees, degrees, degrees, degrees, degrees):
        if tp * pp * dp > most or (not shape.experts and ep * etp > 1) or ep * etp > tp * dp:
            continue
        for batch, several, chunk in itertools.product(range(1, MOST + 1), (1, 2, 4), (0, 256, 512, prompt)):
            if (batch > pp and batch % pp) or 256 == chunk > prompt or 512 == chunk > prompt:
                continue
            if several > 1 and 0 < chunk < prompt:
                continue
            plan = ServingPlan(
                tp=tp, pp=pp, ep=ep, etp=etp, dp=dp, max_batch=batch, prefill_chunk=chunk, prefill_batch=several
            )
            if not broken_serving_rules(shape, plan):
                found.append(plan)
    return found


@mostly("exact", "seed", range(60), quick=8)
def test_the_best_plan_is_that_of_brute_force(seed: int) -> None:
    model, settings = case(seed)
    every = ServingBatch.from_plans(brute_force(model, settings))
    costs = model.evaluate(every)
    kept = (
        (costs.memory_bytes <= settings.capacity_bytes)
        & (costs.ttft_s <= settings.limits.get("ttft_s", np.inf))
        & (costs.tpot_s <= settings.limits.get("tpot_s", np.inf))
    )
    outcome = search_serving(model, settings)
    assert not outcome.out_of_time
    if not kept.any():
        assert not outcome.candidates
        assert outcome.nearest_miss.fits == bool((costs.memory_bytes <= settings.capacity_bytes).any())
        return
    best = float(np.min(settings.score(costs.columns(), every)[kept]))
    assert outcome.candidates[0].score == pytest.approx(best, rel=1e-12)
    assert outcome.searched["enumerated"] + outcome.searched["do not fit"] == outcome.space_size


def serving(where: Cluster | None = None, **sizes: int) -> ServingModel:
    graph = decoder(**({"blocks": 4, "features": 256, "ffn": 512} | sizes))
    work = ServingWorkload(graph=graph, prompt_tokens=300, output_tokens=50, context_bytes=0)
    return ServingModel.build(work, where or two_level_cluster())


def test_candidates_keep_the_limits_and_differ_in_their_degrees() -> None:
    model = serving()
    free = search_serving(model, ServingSettings(max_workers=4, capacity_bytes=1e18, objective="latency"))
    quick = model.evaluate(ServingBatch.from_plans([free.candidates[0].plan]))
    limit = 1.5 * float(quick.tpot_s[0])
    outcome = search_serving(
        model, ServingSettings(max_workers=4, capacity_bytes=1e18, limits={"tpot_s": limit}, top=50)
    )
    plans = [c.plan for c in outcome.candidates]
    assert len({(p.tp, p.pp, p.ep, p.etp, p.dp) for p in plans}) == len(plans) > 1
    assert np.all(model.evaluate(ServingBatch.from_plans(plans)).tpot_s <= limit)
    scores = [c.score for c in outcome.candidates]
    assert scores == sorted(scores)


@pytest.mark.exact
def test_more_time_is_never_worse() -> None:
    model = serving()
    settings = ServingSettings(max_workers=4, capacity_bytes=1e18, objective="tpot")
    least = search_serving(model, settings).candidates[0].score
    settings = replace(settings, objective="throughput")
    best = [
        1.0 / search_serving(model, replace(settings, limits={"tpot_s": limit})).candidates[0].score
        for limit in (1.001 * least, 1.02 * least, 1.4 * least, 1.0)
    ]
    assert best[0] < best[-1]
    assert best == sorted(best)


@pytest.mark.exact
@mostly("exact", "objective", list(SERVING_OBJECTIVES), quick=1)
def test_more_devices_are_never_worse(objective: str) -> None:
    model = serving()
    best = [
        search_serving(model, ServingSettings(max_workers=gpus, capacity_bytes=1e18, objective=objective))
        .candidates[0]
        .score
        for gpus in (1, 2, 3, 4, 6, 8)
    ]
    assert all(
        later <= former + 1e-12 * abs(former) for former, later in itertools.pairwise(best)
    )  # equal but for rounding


@pytest.mark.exact
@mostly("exact", "objective", list(SERVING_OBJECTIVES), quick=1)
def test_more_memory_is_never_worse(objective: str) -> None:
    model = serving()
    best = [
        search_serving(model, ServingSettings(max_workers=4, capacity_bytes=size, objective=objective))
        .candidates[0]
        .score
        for size in (8e6, 12e6, 30e6, 1e9)
    ]
    assert best == sorted(best, reverse=True)


@pytest.mark.exact
@mostly("exact", "seed", range(12), quick=1)
def test_better_hardware_never_makes_the_best_plan_worse(seed: int) -> None:
    rng = random.Random(seed)
    graph = decoder(blocks=4, features=256, ffn=512, kv_heads=rng.choice([1, 4]), experts=rng.choice([0, 4]))
    work = ServingWorkload(graph=graph, prompt_tokens=300, output_tokens=rng.choice([1, 50]), context_bytes=0)
    base = {"peak": 50e12, "inside": rng.choice([20e9, 200e9]), "outside": rng.choice([2e9, 20e9])}
    settings = ServingSettings(
        max_workers=rng.choice([3, 4, 8]),
        capacity_bytes=rng.choice([3e7, 1e9]),
        objective=rng.choice(list(SERVING_OBJECTIVES)),
    )

    def best(**better: float) -> float:
        model = ServingModel.build(work, two_level_cluster(**{**base, **better}))
        return search_serving(model, settings).candidates[0].score

    plain = best()
    for name, value in base.items():
        faster = best(**{name: value * rng.choice([1.5, 4.0])})
        assert faster <= plain + 1e-9 * abs(plain), name


def test_what_the_user_fixes_is_kept() -> None:
    model = serving()
    degrees = {
        "tp": Bounds(values=(2,)),
        "pp": Bounds(low=1, high=2),
        "max_batch": Bounds(values=(7, 9)),
        "dp": Bounds(values=(1,)),
    }
    settings = ServingSettings(max_workers=8, capacity_bytes=1e18, degrees=degrees, top=100)
    plans = [c.plan for c in search_serving(model, settings).candidates]
    assert {p.tp for p in plans} == {2}
    assert {p.pp for p in plans} == {1, 2}
    assert {p.dp for p in plans} == {1}
    assert {p.max_batch for p in plans} <= {7, 9}
    chunks = replace(settings, degrees={**degrees, "prefill_chunk": Bounds(values=(64,))})
    assert {c.plan.prefill_chunk for c in search_serving(model, chunks).candidates} == {64}


def test_what_cannot_be_is_an_empty_space() -> None:
    settings = ServingSettings(max_workers=8, capacity_bytes=1e18, degrees={"tp": Bounds(values=(3,))})
    outcome = search_serving(serving(), settings)
    assert (outcome.space_size, outcome.candidates, outcome.nearest_miss) == (0, [], None)


def test_replicas_take_all_devices_that_are_left() -> None:
    model = serving()
    shape = NetworkShape.of(model.workload.graph, model.modules, 1)
    found = outlines(shape, 300, ServingSettings(max_workers=7, capacity_bytes=1.0))
    assert np.all(found.dp == 7 // (found.tp * found.pp))


def test_groups_are_full_or_smaller_than_the_stages() -> None:
    numbers = batches_of(3, 2, ServingSettings(max_workers=1, capacity_bytes=1.0))
    assert numbers[:4].tolist() == [2, 3, 6, 9]
    assert numbers[-1] == 1023


def test_a_time_limit_stops_the_search_unproven() -> None:
    many = ServingSettings(max_workers=64, capacity_bytes=1e18, wall_s=0.0)
    outcome = search_serving(serving(blocks=24), many)
    assert outcome.out_of_time or outcome.interrupted
    assert outcome.candidates


def test_an_interruption_keeps_the_best_so_far() -> None:
    def interrupt(stage: str, share: float) -> None:
        raise KeyboardInterrupt

    outcome = search_serving(serving(), ServingSettings(max_workers=4, capacity_bytes=1e18), interrupt)
    assert outcome.interrupted
    assert outcome.candidates


@mostly("exact", "seed", range(12), quick=2)
def test_the_best_number_of_drafted_tokens_is_that_of_brute_force(seed: int) -> None:
    """Each number apart, and all of them together."""
    model, settings = case(seed)
    rng = random.Random(seed)
    drafts = Drafting(acceptance=rng.choice([0.1, 0.6, 0.95]), drafter=rng.choice(["ngram", "mtp"]))
    model = ServingModel.build(replace(model.workload, drafting=drafts), model.cluster, model.assumptions)
    found = [
        search_serving(model, replace(settings, degrees={**settings.degrees, "draft_tokens": Bounds(values=numbers)}))
        for numbers in ((0,), (1,), (2,), (0, 1, 2))
    ]
    best = [outcome.candidates[0].score for outcome in found if outcome.candidates]
    assert len(best) in (0, 2, 3, 4)
    if best:
        assert best[-1] == min(best)
    plain = search_serving(model, settings)
    assert [c.plan for c in plain.candidates] == [c.plan for c in found[0].candidates]
