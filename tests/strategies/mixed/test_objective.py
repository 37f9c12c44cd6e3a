"""Search over mixed plans for GPU hours, money and MFU: equal to brute force, the score taken from elsewhere."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster
from costmodel.mixed.evaluate import cost_plans, mixed_costs, stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPlan
from strategies.mixed.objective import Weights
from strategies.mixed.search import search_mixed
from tests.cases import mostly
from tests.strategies.mixed.mixed_problems import all_plans, random_case, tp_degrees

MOST_PLANS = 400
OBJECTIVES = ("gpu_hours", "tokens_per_s_per_gpu", "mfu", "money")


def with_prices(cluster: Cluster, rng: random.Random) -> Cluster:
    groups = tuple(
        replace(group, device=replace(group.device, price_per_hour=rng.choice([1.0, 1.0, 2.0, 5.0])))
        for group in cluster.groups
    )
    return replace(cluster, groups=groups)


def with_powers(cluster: Cluster, rng: random.Random) -> Cluster:
    groups = tuple(
        replace(
            group,
            device=replace(
                group.device,
                busy_power_w=rng.choice([200.0, 400.0, 700.0]),
                idle_power_w=rng.choice([20.0, 60.0, 150.0]),
            ),
        )
        for group in cluster.groups
    )
    return replace(cluster, groups=groups)


def cost_of(model: MixedModel, plan: MixedPlan, step: float, figure: str) -> float:
    found = mixed_costs(model.cluster, plan, stage_reports(model, plan), step, model.precision_of(plan.groups).compute)[
        figure
    ]
    assert found is not None
    return found


def energies(model: MixedModel, plans: Sequence[MixedPlan]) -> list[float]:
    times = cost_plans(model, plans).step_time_s
    return [cost_of(model, plan, float(step), "energy_per_step_j") for plan, step in zip(plans, times, strict=True)]


def scores(model: MixedModel, plans: Sequence[MixedPlan], objective: str) -> list[float]:
    """What is minimised, in units of its own, in words of the answers: devices x time, USD, or one over the share of the peak."""
    times = cost_plans(model, plans).step_time_s
    if objective == "money":
        return [cost_of(model, plan, float(step), "money_per_step") for plan, step in zip(plans, times, strict=True)]
    if objective == "mfu":
        peaks = [
            sum(
                plan.devices_of(g) * model.cluster.groups[g].device.peak(model.precision_of(plan.groups).compute)
                for g in plan.groups
            )
            for plan in plans
        ]
        return [float(step) * peak for step, peak in zip(times, peaks, strict=True)]
    return [float(step) * plan.workers for plan, step in zip(plans, times, strict=True)]


@mostly("exact", ("chunk", "count"), [(0, 1), *((chunk, 10) for chunk in range(6))], quick=1)
def test_the_best_plan_is_that_of_brute_force(chunk: int, count: int) -> None:
    """Ten random cases each; the bound of each group alone holds, too."""
    cases, seed = 0, 20_000 + 1000 * chunk
    while cases < count:
        rng = random.Random(seed)
        work, cluster, settings = random_case(seed)
        seed += 1
        objective = rng.choice(OBJECTIVES)
        cluster, settings = with_prices(cluster, rng), replace(settings, objective=objective)
        model = MixedModel.build(work, cluster, settings.assumptions)
        plans = list(islice(all_plans(model, settings, tp_degrees(settings)), MOST_PLANS + 1))
        if not plans or len(plans) > MOST_PLANS:
            continue
        cases += 1
        fits = cost_plans(model, plans).fits
        expected = np.where(fits, scores(model, plans, objective), math.inf)
        outcome = search_mixed(work, cluster, settings)
        if not fits.any():
            assert not outcome.candidates
            continue
        assert outcome.best is not None
        found = scores(model, [c.plan for c in outcome.candidates], objective)
        assert found[0] == pytest.approx(float(expected.min()), rel=1e-9)
        assert found == sorted(found)
        assert outcome.best.score == pytest.approx(found[0], rel=1e-9)
        assert outcome.gap <= 1e-9
        for baseline in outcome.baselines:
            alone = [s for s, p in zip(expected, plans, strict=True) if p.groups == (baseline.group,)]
            assert baseline.bound_score <= min(alone, default=math.inf) * (1 + 1e-9)
            if baseline.candidate is not None:
                assert baseline.candidate.score == pytest.approx(min(alone), rel=1e-9)


@pytest.mark.exact
@mostly("exact", ("chunk", "count"), [(0, 1), *((chunk, 10) for chunk in range(4))], quick=1)
def test_no_plan_takes_less_energy_than_the_bound(chunk: int, count: int) -> None:
    """Ten random cases each: the bound holds, the best is as good as it says, and where that is proven it is the best of all."""
    cases, proven, seed = 0, 0, 50_000 + 1000 * chunk
    while cases < count:
        rng = random.Random(seed)
        work, cluster, settings = random_case(seed)
        seed += 1
        cluster, settings = with_powers(cluster, rng), replace(settings, objective="energy")
        model = MixedModel.build(work, cluster, settings.assumptions)
        plans = list(islice(all_plans(model, settings, tp_degrees(settings)), MOST_PLANS + 1))
        if not plans or len(plans) > MOST_PLANS:
            continue
        cases += 1
        fits = cost_plans(model, plans).fits
        least = float(np.where(fits, energies(model, plans), math.inf).min())
        outcome = search_mixed(work, cluster, settings)
        if not fits.any():
            assert not outcome.candidates
            continue
        assert outcome.best is not None
        found = energies(model, [c.plan for c in outcome.candidates])
        assert found == pytest.approx([c.score for c in outcome.candidates], rel=1e-12)
        assert found == sorted(found)
        assert outcome.bound_score <= least * (1 + 1e-9)
        assert least * (1 - 1e-9) <= found[0] <= outcome.bound_score / (1 - outcome.gap) * (1 + 1e-9)
        proven += outcome.gap <= 1e-9
        if outcome.gap <= 1e-9:
            assert found[0] == pytest.approx(least, rel=1e-9)
    assert proven >= count // 10


@pytest.mark.exact
@pytest.mark.parametrize("seed", range(30_000, 30_006))
def test_a_limit_of_time_leaves_a_valid_bound(seed: int) -> None:
    work, cluster, settings = random_case(seed)
    settings = replace(settings, objective="gpu_hours")
    exact = search_mixed(work, cluster, settings)
    hasty = search_mixed(work, cluster, replace(settings, wall_s=0.0))
    few = search_mixed(work, cluster, replace(settings, most_states=1))
    for outcome in (hasty, few):
        if exact.best is not None:
            assert outcome.bound_score <= exact.best.score * (1 + 1e-9)
        if outcome.best is not None:
            assert exact.best is not None
            assert outcome.best.score >= exact.best.score * (1 - 1e-9)


@pytest.mark.exact
def test_bounds_of_families_hold() -> None:
    """The score per sample of a family is below that of all its shapes, and its gain above theirs."""
    from costmodel.precision import PRECISIONS
    from strategies.mixed.families import RateBook, families_of, shapes_of

    checked = 0
    for seed in range(40_000, 40_030):
        work, cluster, settings = random_case(seed)
        model = MixedModel.build(work, with_prices(cluster, random.Random(seed)), settings.assumptions)
        capacity = tuple(float(group.device.memory_bytes) for group in model.cluster.groups)
        book = RateBook(model, settings, capacity)
        weights = Weights.of("money", model, (0, 1))
        devices = [group.num_devices or 0 for group in model.cluster.groups]
        for family in families_of(book, (0, 1), PRECISIONS["fp16"], devices, alone=False):
            shapes = shapes_of(book, family, PRECISIONS["fp16"])
            if not len(shapes.stages):
                continue
            rates = family.replicas * family.micro_batch / shapes.bottleneck_s
            weight = weights.shapes(family, shapes.stages)
            least = weights.per_sample(family)
            assert least <= float(np.min(weight / rates)) * (1 + 1e-12)
            for per_sample in (least, 1.3 * least, 5.0 * least):
                most = float(np.max(rates - weight / per_sample))
                assert weights.gain(family, per_sample) >= most - 1e-12 * float(np.max(rates))
            checked += 1
    assert checked > 50


def test_an_unknown_price_is_an_error() -> None:
    work, cluster, settings = random_case(1)
    with pytest.raises(ValueError, match="states no price"):
        search_mixed(work, cluster, replace(settings, objective="money"))
