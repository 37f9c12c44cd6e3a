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
from costmodel.mesh.plan import RECOMPUTE
from costmodel.mixed.evaluate import cost_plans, mixed_costs, stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPlan
from costmodel.precision import PRECISIONS
from strategies.mesh.settings import Bounds
from strategies.mixed.families import RateBook, families_of, shapes_of
from strategies.mixed.leaf import LeafSolver
from strategies.mixed.objective import Weights, devices_per_stage, rates_by_group
from strategies.mixed.search import search_mixed
from strategies.mixed.settings import MixedOutcome, MixedSettings
from tests.cases import mostly
from tests.strategies.mixed.mixed_problems import all_plans, enumerated_cases, random_case

OBJECTIVES = ("gpu_hours", "tokens_per_s_per_gpu", "mfu", "money")


def with_prices(cluster: Cluster, rng: random.Random) -> Cluster:
    groups = tuple(
        replace(group, device=replace(group.device, price_per_hour=rng.choice([1.0, 1.0, 2.0, 5.0])))
        for group in cluster.groups
    )
    return replace(cluster, groups=groups)


def priced(cluster: Cluster, settings: MixedSettings, rng: random.Random) -> tuple[Cluster, MixedSettings]:
    """By an objective that needs no power."""
    objective = rng.choice(OBJECTIVES)
    return with_prices(cluster, rng), replace(settings, objective=objective)


def powered(cluster: Cluster, settings: MixedSettings, rng: random.Random) -> tuple[Cluster, MixedSettings]:
    """By energy, with devices of random power."""
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
    return replace(cluster, groups=groups), replace(settings, objective="energy")


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


@mostly("exact", ("chunk", "count"), [(0, 1), *((chunk, 10) for chunk in range(6))], quick=1, every=4)
def test_the_best_plan_is_that_of_brute_force(chunk: int, count: int) -> None:
    """Ten random cases each; the bound of each group alone holds, too."""
    for model, settings, plans in islice(enumerated_cases(20_000 + 1000 * chunk, priced), count):
        fits = cost_plans(model, plans).fits
        expected = np.where(fits, scores(model, plans, settings.objective), math.inf)
        outcome = search_mixed(model.workload, model.cluster, settings)
        if not fits.any():
            assert not outcome.candidates
            continue
        assert outcome.best is not None
        found = scores(model, [c.plan for c in outcome.candidates], settings.objective)
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
@mostly("exact", ("chunk", "count"), [(0, 1), *((chunk, 10) for chunk in range(4))], quick=1, every=3)
def test_no_plan_takes_less_energy_than_the_bound(chunk: int, count: int) -> None:
    """Ten random cases each: the bound holds, the best is as good as it says, and where that is proven it is the best of all."""
    proven = 0
    for model, settings, plans in islice(enumerated_cases(50_000 + 1000 * chunk, powered), count):
        fits = cost_plans(model, plans).fits
        least = float(np.where(fits, energies(model, plans), math.inf).min())
        outcome = search_mixed(model.workload, model.cluster, settings)
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
def test_bounds_of_families_hold() -> None:
    """The score per sample of a family is below that of all its shapes, and its gain above theirs."""
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
                for price in (np.zeros(len(devices)), rates_by_group([[family]], len(devices))):
                    cost = shapes.stages @ (devices_per_stage(family) * price[list(family.groups)])
                    most = float(np.max(rates - weight / per_sample - cost))
                    assert weights.gain(family, per_sample, price) >= most - 1e-12 * float(np.max(rates))
            checked += 1
    assert checked > 50


@mostly("exact", "seed", range(41_000, 41_020))
def test_no_shape_is_left_out_that_is_fast_enough(seed: int) -> None:
    """What the quick look excludes, the division of blocks excludes, too; and it excludes some."""
    work, cluster, settings = random_case(seed)
    model = MixedModel.build(work, cluster, replace(settings.assumptions, contended_step_s=0.0))
    capacity = tuple(float(group.device.memory_bytes) for group in model.cluster.groups)
    book, solver = RateBook(model, settings, capacity), LeafSolver(model, settings, capacity)
    precision, devices = model.precision_of((0, 1)), [group.num_devices or 0 for group in model.cluster.groups]
    for family in families_of(book, (0, 1), precision, devices, alone=False):
        shapes = shapes_of(book, family, precision)
        if not len(shapes.stages):
            continue
        speeds = np.array([solver.samples_per_s(family, tuple(row), precision) for row in shapes.stages.tolist()])
        for share in (0.1, 0.7, 1.0):
            kept = solver.may_pass(family, shapes.stages, precision, shapes.rates, share * speeds)
            assert np.all(kept[speeds > 0])
        endless = np.full(len(speeds), 1e30)
        assert not np.any(solver.may_pass(family, shapes.stages, precision, shapes.rates, endless))


def test_an_unknown_price_is_an_error() -> None:
    work, cluster, settings = random_case(1)
    with pytest.raises(ValueError, match="states no price"):
        search_mixed(work, cluster, replace(settings, objective="money"))


# --- Search over mixed plans with degrees that the user fixed: equal to brute force over the plans that obey them -------------------------


MOST_ENUMERATED, MOST_ALLOWED = 6_000, 400


def obeys(plan: MixedPlan, settings: MixedSettings) -> bool:
    """Whether a plan of the whole space is one of those that are allowed, said once more in other words."""
    pipelines, stages = plan.pipelines, [stage for pipeline in plan.pipelines for stage in pipeline.stages]
    numbers = {p.num_micro_batches for p in pipelines} | {p.num_micro_batches + 1 for p in pipelines if p.longer}
    least = settings.recompute_blocks.least
    again = [
        (s.blocks, s.recompute_blocks)
        for s in stages
        if s.recompute == "full" and not (s.recompute_blocks == s.blocks < least)
    ]
    return (
        all(settings.tp.allows(stage.tp) for stage in stages)
        and all(settings.stages.allows(len(pipeline.stages)) for pipeline in pipelines)
        and settings.replicas.allows(sum(pipeline.replicas for pipeline in pipelines))
        and all(settings.num_micro_batches.allows(number) for number in numbers)
        and {stage.recompute for stage in stages} <= set(settings.recompute)
        and all(settings.recompute_blocks.allows(count) for _, count in again)
        and (not settings.must_cut or max(stage.tp for stage in stages) > 1)
        and (not settings.must_share or max(pipeline.replicas for pipeline in pipelines) > 1)
    )


def with_fixes(settings: MixedSettings, rng: random.Random, batch: int) -> MixedSettings:
    """One to three things fixed."""
    choices = {
        "tp": Bounds(values=(rng.choice([1, 2]),)),
        "stages": rng.choice([Bounds(values=(rng.randint(1, 4),)), Bounds(low=2, high=3), Bounds(values=(1, 3))]),
        "replicas": rng.choice([Bounds(values=(rng.randint(1, 4),)), Bounds(low=2), Bounds(values=(1, 3))]),
        "num_micro_batches": rng.choice([Bounds(values=(rng.randint(1, batch),)), Bounds(high=2), Bounds(low=2)]),
        "recompute": rng.choice([("none",), ("selective",), ("full",), ("none", "full")]),
        "recompute_blocks": rng.choice([Bounds(values=(1,)), Bounds(values=(2,)), Bounds(low=2), Bounds(high=1)]),
        "must_cut": True,
        "must_share": True,
    }
    fixed = {name: choices[name] for name in rng.sample(sorted(choices), rng.choice([1, 2, 2, 3]))}
    if fixed.get("must_cut") and not settings.sequence_parallel:
        del fixed["must_cut"]
    return replace(settings, **{"tp": Bounds(high=2), "recompute": RECOMPUTE, **fixed})


@pytest.mark.exact
@mostly("exact", ("chunk", "count"), [(0, 2), *((chunk, 10) for chunk in range(6))], quick=1, every=4)
def test_the_best_that_is_allowed_is_that_of_brute_force(chunk: int, count: int) -> None:
    """Ten random cases each, 60 in all; some have no legal plan, some none that fits."""
    cases, found, seed = 0, 0, 5000 + 1000 * chunk
    while cases < count:
        work, cluster, settings = random_case(seed)
        settings = with_fixes(settings, random.Random(seed), work.global_batch)
        seed += 1
        model = MixedModel.build(work, cluster, settings.assumptions)
        plans = list(islice(all_plans(model, replace(settings, recompute=RECOMPUTE), (1, 2)), MOST_ENUMERATED + 1))
        if len(plans) > MOST_ENUMERATED:
            continue
        plans = [plan for plan in plans if obeys(plan, settings)]
        if len(plans) > MOST_ALLOWED:
            continue
        cases += 1
        outcome = search_mixed(work, cluster, settings)
        _check(outcome, model, settings, plans)
        found += bool(outcome.candidates)
    assert found >= 0.3 * count


def _check(outcome: MixedOutcome, model: MixedModel, settings: MixedSettings, plans: list[MixedPlan]) -> None:
    least = math.inf
    if plans:
        costs = cost_plans(model, plans)
        least = float(min(costs.step_time_s[costs.fits], default=math.inf))
    if math.isinf(least):
        assert not outcome.candidates
        miss = outcome.nearest_miss
        if miss is not None:
            assert obeys(miss.plan, settings)
            assert miss.memory_bytes > miss.capacity_bytes
            assert any(r.memory_bytes == miss.memory_bytes for r in stage_reports(model, miss.plan))
        return
    assert outcome.best.step_time_s == pytest.approx(least, rel=1e-9)
    assert outcome.gap <= 1e-9
    for candidate in outcome.candidates:
        assert obeys(candidate.plan, settings)
    for baseline in outcome.baselines:
        assert baseline.candidate is None or obeys(baseline.candidate.plan, settings)
