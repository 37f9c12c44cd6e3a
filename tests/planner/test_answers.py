"""The answers themselves: what the published work says must come out, and what must not depend on how it was searched."""

from __future__ import annotations

import dataclasses

import pytest

from costmodel.layerwise.plan import plan_key
from planner.core.answer import Answer
from planner.core.request import Request
from planner.question.resolve import resolve
from planner.spaces.ask import estimate, optimize
from planner.spaces.layers.scaling import scale
from strategies.layerwise.search import SearchSettings, search

ONE_WEIRD_TRICK = Request(
    model="alexnet-cuda-convnet2",
    gpus=8,
    cluster="k20-pcie",
    device="paleo-k20",
    batch=1024,
    cost_model="paleo",
    ppp_comp=0.46,
    ppp_comm=0.75,
    collective="tree",
)


@pytest.fixture(scope="module")
def trick() -> Answer:
    return optimize(ONE_WEIRD_TRICK)


def test_plain_data_parallelism_costs_what_paleo_says() -> None:
    result = estimate(dataclasses.replace(ONE_WEIRD_TRICK, family="data"))
    assert result.ranked.step_time_s == pytest.approx(0.6092, abs=5e-5)


def test_one_weird_trick_comes_out_unaided(trick: Answer) -> None:
    best = trick.plans[0]
    graph = resolve(ONE_WEIRD_TRICK).workload.graph
    splits = {layer.name: split for layer, split in zip(graph.layers, best.plan.splits, strict=True)}
    assert all(splits[name].batch == 8 for name in ("conv1", "conv2", "conv3", "conv4", "conv5"))
    assert all(splits[name].out_channels * splits[name].in_channels == 8 for name in ("fc6", "fc7"))
    assert 0.415 < best.step_time_s < 0.440
    everywhere = trick.baselines["data_parallel_all"]
    assert everywhere.step_time_s / best.step_time_s > 1.2
    assert best.family == "hybrid"
    assert trick.proof.proven_optimal
    assert trick.proof.proven_top


def test_gaps_are_by_how_much_longer_than_the_best_a_plan_takes(trick: Answer) -> None:
    best = trick.plans[0].step_time_s
    assert [plan.gap for plan in trick.plans] == pytest.approx([plan.step_time_s / best - 1 for plan in trick.plans])
    assert trick.plans[0].gap == 0.0 < trick.plans[-1].gap


def test_a_baseline_that_is_the_best_plan_has_its_interval() -> None:
    answer = optimize(Request(model="llama3-8b", gpus=4, mode="inference"))
    baseline, best = answer.baselines["data_parallel"], answer.plans[0]
    assert baseline.plan == best.plan
    assert baseline.step_time_low_s == best.step_time_low_s
    assert baseline.step_time_low_s is not None


def test_nothing_depends_on_the_named_families(trick: Answer) -> None:
    resolved = resolve(ONE_WEIRD_TRICK)
    settings = SearchSettings(max_workers=8, capacity_bytes=resolved.setting.memory_capacity_bytes, top=5)
    outcome = search(resolved.workload, resolved.cluster, settings)
    assert [c.step_time_s for c in outcome.candidates] == pytest.approx([p.step_time_s for p in trick.plans], rel=1e-12)
    assert [c.plan for c in outcome.candidates] == [p.plan for p in trick.plans]


@pytest.mark.parametrize("memory_limit", [None, "1 GiB"])
@pytest.mark.parametrize(("model", "gpus", "batch"), [("alexnet", 6, 128), ("mlp", 12, 64), ("nin", 4, 256)])
def test_the_list_is_what_it_says(model: str, gpus: int, batch: int, memory_limit: str | None) -> None:
    request = Request(model=model, gpus=gpus, batch=batch, memory_limit=memory_limit, top=7, fastest=True)
    result = optimize(request)
    graph = resolve(request).workload.graph
    times = [plan.step_time_s for plan in result.plans]
    # Times that differ by rounding only are ties, which go to fewer workers and micro-batches.
    assert times == pytest.approx(sorted(times), rel=1e-11)
    assert result.proof.bound_s <= times[0]
    assert result.proof.proven_optimal
    assert len({plan_key(graph, plan.plan) for plan in result.plans}) == len(result.plans) == 7
    for plan in result.plans:
        assert plan.memory_bytes_per_gpu <= plan.memory_capacity_bytes
        assert plan.workers <= gpus
        assert sum(plan.time_parts.values()) == pytest.approx(plan.step_time_s, rel=1e-9)


@pytest.mark.e2e
@pytest.mark.parametrize("family", ["data", "model", "hybrid", "spatial", "pipeline"])
def test_families_are_regions_of_the_space(family: str) -> None:
    best = optimize(Request(model="alexnet", gpus=4, top=1, fastest=True))
    inside = optimize(Request(model="alexnet", gpus=4, top=1, family=family))
    assert inside.plans[0].family == family
    assert inside.plans[0].step_time_s >= best.plans[0].step_time_s * (1 - 1e-12)
    assert inside.proof.proven_optimal


@pytest.mark.e2e
def test_diverse_shows_the_best_of_every_family() -> None:
    plain = optimize(Request(model="alexnet", gpus=4, top=1, fastest=True))
    diverse = optimize(Request(model="alexnet", gpus=4, top=3, diverse=True, fastest=True))
    families = [plan.family for plan in diverse.plans]
    assert len(families) == len(set(families)) >= 5
    assert diverse.plans[0].step_time_s == pytest.approx(plain.plans[0].step_time_s, rel=1e-12)
    for plan in diverse.plans:
        if plan.family != "one-device":
            alone = optimize(Request(model="alexnet", gpus=4, top=1, family=plan.family))
            assert alone.plans[0].step_time_s == pytest.approx(plan.step_time_s, rel=1e-12)


@pytest.mark.e2e
@pytest.mark.parametrize(("change", "value"), [("gpus", 12), ("memory_limit", "2 GiB"), ("batch", 64)])
def test_more_of_everything_is_never_slower(change: str, value: object) -> None:
    base = {"model": "nin", "gpus": 6, "batch": 128, "memory_limit": "1 GiB", "top": 1, "fastest": True}
    smaller = optimize(Request(**base))  # type: ignore[arg-type]
    larger = optimize(Request(**{**base, change: value}))  # type: ignore[arg-type]
    assert larger.plans[0].step_time_s <= smaller.plans[0].step_time_s * (1 + 1e-12)


@pytest.mark.e2e
def test_inference_has_no_backward_pass() -> None:
    result = optimize(Request(model="alexnet", gpus=4, mode="inference", top=1))
    best = result.plans[0]
    assert best["update_s"] == 0.0
    assert best["exchange_s"] == 0.0
    training = optimize(Request(model="alexnet", gpus=4, top=1)).plans[0]
    assert best.step_time_s < training.step_time_s / 2


@pytest.mark.e2e
def test_hours_of_one_weird_trick_by_scale() -> None:
    hybrid = dataclasses.replace(ONE_WEIRD_TRICK, cluster="paleo-pcie2", batch=128)
    curve = scale(hybrid, [1, 2, 4, 8], weak=True, family="hybrid", epochs=90, samples=1.2e6)
    assert [point.hours for point in curve.points] == pytest.approx([96.31, 49.57, 25.42, 14.37], abs=0.005)
