"""Search over mixed plans with degrees that the user fixed: equal to brute force over the plans that obey them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import islice

import pytest

from costmodel.mesh.plan import RECOMPUTE
from costmodel.mixed.evaluate import cost_plans, stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPlan
from strategies.mesh.settings import Bounds
from strategies.mixed.search import search_mixed
from strategies.mixed.settings import MixedOutcome, MixedSettings
from tests.cases import mostly
from tests.strategies.mixed.mixed_problems import all_plans, random_case

MOST_PLANS, MOST_COSTED = 6_000, 400


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
@mostly("exact", ("chunk", "count"), [(0, 2), *((chunk, 10) for chunk in range(6))], quick=1)
def test_the_best_that_is_allowed_is_that_of_brute_force(chunk: int, count: int) -> None:
    """Ten random cases each, 60 in all; some have no legal plan, some none that fits."""
    cases, found, seed = 0, 0, 5000 + 1000 * chunk
    while cases < count:
        work, cluster, settings = random_case(seed)
        settings = with_fixes(settings, random.Random(seed), work.global_batch)
        seed += 1
        model = MixedModel.build(work, cluster, settings.assumptions)
        plans = list(islice(all_plans(model, replace(settings, recompute=RECOMPUTE), (1, 2)), MOST_PLANS + 1))
        if len(plans) > MOST_PLANS:
            continue
        plans = [plan for plan in plans if obeys(plan, settings)]
        if len(plans) > MOST_COSTED:
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
    assert outcome.best is not None
    assert outcome.best.step_time_s == pytest.approx(least, rel=1e-9)
    assert outcome.gap <= 1e-9
    for candidate in outcome.candidates:
        assert obeys(candidate.plan, settings)
    for baseline in outcome.baselines:
        assert baseline.candidate is None or obeys(baseline.candidate.plan, settings)
