"""Traces of plans over several kinds of devices: they end when the cost model says; money and energy of such plans by hand."""

from __future__ import annotations

import dataclasses
import random

import pytest

from costmodel.hardware.cluster import DeviceGroup, Level
from costmodel.mixed.detail import mixed_tracks
from costmodel.mixed.evaluate import broken_mixed_rules, cost_plans, mixed_costs, stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MixedPipeline, MixedPlan, MixedStage
from tests.costmodel.mesh.test_mesh_spans import check
from tests.costmodel.mixed.test_mixed import FABRIC, FAST, NODE, SLOW, cluster, network, plan_of, two, workload

NEAR = Level(name="near", size=None, bandwidth_bytes_per_s=2e10, latency_s=1e-5)


def model_of(batch: int = 24, blocks: int = 7) -> MixedModel:
    groups = (DeviceGroup(device=FAST, num_devices=16), DeviceGroup(device=SLOW, num_devices=16))
    return MixedModel.build(workload(network(blocks), batch), cluster(*groups, levels=(NODE, FABRIC, NEAR)))


def pipeline(rng: random.Random, groups: list[int], samples: int, blocks: int = 7) -> MixedPipeline | None:
    stages = rng.randint(len(groups), 4)
    cuts = sorted(rng.sample(range(1, blocks), stages - 1))
    lengths = [b - a for a, b in zip([0, *cuts], [*cuts, blocks], strict=True)]
    where = sorted([*groups, *(rng.choice(groups) for _ in range(stages - len(groups)))], key=groups.index)
    tps = {g: rng.choice([1, 2, 4]) for g in groups}
    replicas, micro_batch = rng.choice([1, 2, 3]), rng.choice([1, 2])
    if samples % micro_batch or samples // micro_batch < replicas:
        return None
    m, longer = divmod(samples // micro_batch, replicas)
    made = tuple(
        MixedStage(group=g, tp=tps[g], blocks=k, recompute=rng.choice(["none", "selective"]))
        for g, k in zip(where, lengths, strict=True)
    )
    return MixedPipeline(stages=made, replicas=replicas, micro_batch=micro_batch, num_micro_batches=m, longer=longer)


def random_plans(count: int) -> list[tuple[MixedModel, MixedPlan]]:
    rng, found = random.Random("mixed spans"), []
    model = model_of()
    while len(found) < count:
        together = rng.random() < 0.5
        shares = [24] if together else [(n := rng.randint(4, 20)), 24 - n]
        order = rng.sample([0, 1], 2)
        parts = [order] if together else [[order[0]], [order[1]]]
        made = [pipeline(rng, groups, samples) for groups, samples in zip(parts, shares, strict=True)]
        if None in made:
            continue
        pipelines = tuple(one for one in made if one is not None)
        plan = MixedPlan(pipelines=pipelines, zero_stage=rng.choice([0, 1]))
        if not broken_mixed_rules(model, plan):
            found.append((model, plan))
    return found


def errors(count: int = 150) -> list[float]:
    return [
        mixed_tracks(model, plan).end_s / float(cost_plans(model, [plan]).step_time_s[0]) - 1.0
        for model, plan in random_plans(count)
    ]


@pytest.mark.exact
def test_the_trace_ends_with_the_step() -> None:
    found = sorted(abs(error) for error in errors())
    assert found[len(found) // 2] < 1e-9
    assert found[-1] < 0.01


def test_spans_stay_apart_and_every_stage_has_a_track() -> None:
    for model, plan in random_plans(12):
        tracks = mixed_tracks(model, plan)
        check(tracks)
        assert len(tracks.names) == sum(len(one.stages) for one in plan.pipelines)
        for kind in ("forward", "backward"):
            passes = [span for span in tracks.spans if span.kind == kind]
            assert len(passes) == sum(len(one.stages) * one.most_micro_batches for one in plan.pipelines)


def test_gradients_wait_for_the_slower_pipeline() -> None:
    fast = MixedPipeline(stages=(MixedStage(group=0, tp=1, blocks=7),), replicas=2, num_micro_batches=2)
    slow = MixedPipeline(stages=(MixedStage(group=1, tp=1, blocks=7),), replicas=1, num_micro_batches=20)
    tracks = mixed_tracks(model_of(), MixedPlan(pipelines=(fast, slow)))
    ends = [max(s.end_s for s in tracks.spans if s.track == t and s.kind == "backward") for t in (0, 1)]
    begins = [min(s.start_s for s in tracks.spans if s.track == t and s.stream == "exchange") for t in (0, 1)]
    assert ends[0] < ends[1]
    assert begins == pytest.approx([ends[1], ends[1]])


def test_money_and_energy_by_hand() -> None:
    fast = dataclasses.replace(FAST, price_per_hour=3.6, busy_power_w=400.0, idle_power_w=100.0)
    slow = dataclasses.replace(SLOW, price_per_hour=1.8, busy_power_w=200.0, idle_power_w=50.0)
    groups = tuple(DeviceGroup(device=device, num_devices=16) for device in (fast, slow))
    where = cluster(*groups)
    model = MixedModel.build(workload(network(), 8), where)
    plan = plan_of((0, 2, 4), (1, 4, 3), replicas=2, m=4)
    step = float(cost_plans(model, [plan]).step_time_s[0])
    reports = stage_reports(model, plan)
    costs = mixed_costs(where, plan, reports, step, "fp32")
    assert costs["money_per_step"] == pytest.approx(step * (4 * 1e-3 + 8 * 0.5e-3))
    computing = [4 * (r.compute_s + r.recompute_s) + r.update_s for r in reports]
    expected = 4 * (100 * step + 300 * computing[0]) + 8 * (50 * step + 150 * computing[1])
    assert costs["energy_per_step_j"] == pytest.approx(expected)
    assert set(mixed_costs(two(), plan, reports, step, "fp32").values()) == {None}
