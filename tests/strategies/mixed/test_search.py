"""Search over mixed plans: equal to brute force where that is possible, and sane where it is not."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.mixed.evaluate import cost_plans, stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import (
    MixedError,
    MixedPipeline,
    MixedPlan,
    MixedStage,
    describe,
    group_cluster,
)
from planner.files.loading import load_cluster
from strategies.mesh.settings import Bounds
from strategies.mixed.families import partitions, sharing_pairs
from strategies.mixed.search import search_mixed
from strategies.mixed.settings import MixedSettings
from tests.cases import mostly
from tests.strategies.mesh.networks import decoder
from tests.strategies.mixed.mixed_problems import (
    all_plans,
    device_of,
    enumerated_cases,
    overlapping_pairs,
    random_case,
    subsets_in_parts,
    workload_of,
)


@mostly("exact", ("chunk", "count"), [(0, 1), *((chunk, 10) for chunk in range(22))], quick=1, every=12)
def test_best_plan_is_that_of_brute_force(chunk: int, count: int) -> None:
    """Ten random cases each, 220 in all; every one is proven, too, and no group alone is faster."""
    for model, settings, plans in islice(enumerated_cases(1000 * chunk), count):
        every = cost_plans(model, plans)
        outcome = search_mixed(model.workload, model.cluster, settings)
        if not every.fits.any():
            assert not outcome.candidates
            assert outcome.nearest_miss.memory_bytes > outcome.nearest_miss.capacity_bytes
            continue
        assert outcome.best.step_time_s == pytest.approx(every.step_time_s[every.fits].min(), rel=1e-9)
        assert outcome.gap <= 1e-9
        costs = cost_plans(model, [c.plan for c in outcome.candidates])
        assert costs.step_time_s.tolist() == pytest.approx([c.step_time_s for c in outcome.candidates], rel=1e-12)
        assert costs.fits.all()
        for baseline in outcome.baselines:
            if baseline.candidate is not None:
                assert outcome.best.step_time_s <= baseline.candidate.step_time_s
                assert baseline.bound_score <= baseline.candidate.score


def test_parts_are_all_partitions_of_all_subsets() -> None:
    for groups in range(1, 5):
        listed = [frozenset(frozenset(part) for part in parts) for parts in partitions(tuple(range(groups)))]
        assert len(listed) == len(set(listed))
        assert set(listed) == subsets_in_parts(range(groups))
        pairs = [frozenset(map(frozenset, pair)) for pair in sharing_pairs(range(groups))]
        assert len(pairs) == len(set(pairs))
        assert set(pairs) == {frozenset(pair) for pair in overlapping_pairs(range(groups))}


@pytest.mark.exact
@mostly("exact", "seed", range(500, 512), every=7)
def test_better_hardware_is_never_slower(seed: int) -> None:
    work, cluster, settings = random_case(seed)
    before = search_mixed(work, cluster, settings)
    for change in ("speed", "memory", "links"):
        after = search_mixed(work, _improved(cluster, change, seed), settings)
        if before.best is None:
            continue
        assert after.best.step_time_s <= before.best.step_time_s * (1 + 1e-9)


def _improved(cluster: Cluster, change: str, seed: int) -> Cluster:
    if change == "links":
        levels = tuple(
            replace(level, bandwidth_bytes_per_s=3 * level.bandwidth_bytes_per_s) for level in cluster.levels
        )
        return replace(cluster, levels=levels)
    chosen = seed % len(cluster.groups)
    group = cluster.groups[chosen]
    if change == "memory":
        device = replace(group.device, memory_bytes=1.7 * group.device.memory_bytes)
    else:
        faster = {name: 1.5 * peak for name, peak in group.device.peak_flop_per_s.items()}
        bandwidth = 1.5 * group.device.memory_bandwidth_bytes_per_s
        device = replace(group.device, peak_flop_per_s=faster, memory_bandwidth_bytes_per_s=bandwidth)
    groups = (*cluster.groups[:chosen], replace(group, device=device), *cluster.groups[chosen + 1 :])
    return replace(cluster, groups=groups)


@pytest.mark.exact
@pytest.mark.parametrize(
    ("objective", "seed"),
    [*(("step_time", seed) for seed in range(600, 605)), *(("gpu_hours", seed) for seed in range(30_000, 30_006))],
)
def test_a_limit_of_time_leaves_a_valid_bound(objective: str, seed: int) -> None:
    work, cluster, settings = random_case(seed)
    settings = replace(settings, objective=objective)
    exact = search_mixed(work, cluster, settings)
    hasty = search_mixed(work, cluster, replace(settings, wall_s=0.0))
    few = search_mixed(work, cluster, replace(settings, most_states=1))
    for outcome in (hasty, few):
        if exact.best is not None:
            assert outcome.bound_score <= exact.best.score * (1 + 1e-9)
        if outcome.best is not None:
            assert outcome.best.score >= exact.best.score * (1 - 1e-9)
    assert hasty.out_of_time


@pytest.mark.exact
def test_ctrl_c_keeps_what_was_found_and_a_valid_bound() -> None:
    """Stopped early, half way and late; the search tells of every step."""
    work, cluster, settings = random_case(1)
    exact = search_mixed(work, cluster, settings)
    assert exact.best is not None
    steps: list[float] = []
    search_mixed(work, cluster, settings, lambda _, share: steps.append(share))
    assert all(0.0 <= share <= 1.0 for share in steps)
    known = 0
    for last in (0, len(steps) // 4, len(steps) // 2, len(steps) - 1):
        told = 0

        def stop(_: str, __: float, last: int = last) -> None:
            nonlocal told
            told += 1
            if told > last:
                raise KeyboardInterrupt

        outcome = search_mixed(work, cluster, settings, stop)
        assert outcome.interrupted
        assert outcome.bound_score <= exact.best.step_time_s * (1 + 1e-12)
        if outcome.best is not None:
            assert outcome.best.step_time_s >= exact.best.step_time_s * (1 - 1e-12)
            known += 1
    assert known
    assert not exact.interrupted


@pytest.mark.exact
def test_one_group_alone_finds_the_best_uniform_plan() -> None:
    """Every 1F1B plan of the mesh model with tp, pp, dp, micro-batch, ZeRO-1 and full recomputation is in the space of one group."""
    graph = decoder(blocks=5, features=32, kv_heads=4, vocabulary=256, positions=64)
    device = device_of("d", 2.0, 1e9)
    node = Level(name="node", size=4, bandwidth_bytes_per_s=1e10, latency_s=1e-6)
    fabric = Level(name="fabric", size=None, bandwidth_bytes_per_s=1e9, latency_s=1e-5)
    cluster = Cluster(name="c", groups=(DeviceGroup(device=device, num_devices=8),), levels=(node, fabric))
    work = workload_of(graph, 8, device)
    outcome = search_mixed(work, cluster, MixedSettings(sequence_parallel=False))
    plans = [
        MeshPlan(
            tp=tp,
            pp=pp,
            dp_shard=dp if zero else 1,
            dp_replicate=1 if zero else dp,
            zero_stage=zero,
            micro_batch=b,
            num_micro_batches=8 // dp // b,
            order=order,
        )
        for tp in (1, 2, 4)
        for pp in range(1, 6)
        for dp in (1, 2, 4, 8)
        for b in (1, 2, 4, 8)
        for zero in (0, 1)
        for order in MixedSettings().orders
        if tp * pp * dp <= 8 and 8 % (dp * b) == 0 and not (zero and dp == 1)
    ]
    model = MeshModel.build(work, group_cluster(cluster, 0))
    uniform = model.evaluate(MeshBatch.from_plans(plans))
    assert outcome.best.step_time_s <= uniform.step_time_s.min() * (1 + 1e-12)
    assert outcome.baselines[0].candidate == outcome.best


def test_replicas_of_a_stage_on_different_devices() -> None:
    """Two devices hold the network, three are fast and one is slow: the third fast one works together with the slow one.

    The micro-batches go by speed. Without sharing, only two devices could work, at more than 1.25 times the step.
    """
    graph = decoder(blocks=2, features=64, kv_heads=4, ffn=512, vocabulary=32, positions=256)
    fabric = Level(name="fabric", size=None, bandwidth_bytes_per_s=1e11, latency_s=1e-7)
    fast, slow = device_of("fast", 2.0, 1e9), device_of("slow", 0.9, 1e9)
    work, one, cut = workload_of(graph, 8, fast), MixedStage(group=0, blocks=2), MixedStage(group=0, blocks=1)
    assumptions = MeshAssumptions(bucket_bytes=1e3)
    groups = (DeviceGroup(device=fast, num_devices=3), DeviceGroup(device=slow, num_devices=1))
    cluster = Cluster(name="c", groups=groups, levels=(fabric,))
    alone = [
        MixedPlan(pipelines=(MixedPipeline(stages=stages, num_micro_batches=8),)) for stages in ((one,), (cut, cut))
    ]
    costs = cost_plans(MixedModel.build(work, cluster, assumptions), alone)
    held = 0.9 * float(costs.memory_bytes[0])
    groups = tuple(replace(group, device=replace(group.device, memory_bytes=held)) for group in groups)
    cluster = replace(cluster, groups=groups)
    settings = MixedSettings(
        top=1, micro_batches=(1,), zero_stages=(0,), recompute=("none",), tp=Bounds(high=1), assumptions=assumptions
    )
    outcome = search_mixed(work, cluster, settings)
    model = MixedModel.build(work, cluster, assumptions)
    every = cost_plans(model, list(all_plans(model, settings, [1])))
    best = outcome.best
    assert best.step_time_s == pytest.approx(every.step_time_s[every.fits].min(), rel=1e-9)
    assert outcome.gap <= 1e-9
    assert sorted(tuple(s.group for s in p.stages) for p in best.plan.pipelines) == [(0, 0), (1, 0)]
    assert costs.step_time_s[1] > 1.25 * best.step_time_s
    assert outcome.apart_score == pytest.approx(costs.step_time_s[1])
    few, many = sorted(p.samples for p in best.plan.pipelines)
    assert few < many


@pytest.mark.exact
def test_answers_do_not_depend_on_the_run() -> None:
    work, cluster, settings = random_case(3)
    first, second = search_mixed(work, cluster, settings), search_mixed(work, cluster, settings)
    assert first.candidates == second.candidates
    assert first.searched == second.searched


@pytest.mark.exact
def test_a_limit_of_memory_or_devices_is_kept() -> None:
    graph, device = decoder(blocks=3, kv_heads=4), device_of("d", 1.0, 1e9)
    fabric = Level(name="fabric", size=None, bandwidth_bytes_per_s=1e9, latency_s=1e-5)
    cluster = Cluster(name="c", groups=(DeviceGroup(device=device, num_devices=4),) * 2, levels=(fabric,))
    work = workload_of(graph, 8, device)
    free = search_mixed(work, cluster, MixedSettings(top=1, micro_batches=(1, 2)))
    assert free.best is not None
    model = MixedModel.build(work, cluster)
    most = max(r.memory_bytes for r in stage_reports(model, free.best.plan))
    tight = search_mixed(work, cluster, MixedSettings(top=1, micro_batches=(1, 2), capacity_bytes=(0.9 * most, None)))
    assert all(r.memory_bytes <= 0.9 * most for r in stage_reports(model, tight.best.plan) if r.group == 0)
    limited = search_mixed(work, cluster, MixedSettings(top=1, group_limits=(1, 2)))
    assert limited.best.plan.devices_of(0) <= 1
    assert limited.best.plan.devices_of(1) <= 2
    with pytest.raises(MixedError, match="names 3 groups"):
        search_mixed(work, cluster, MixedSettings(group_limits=(1, 2, 3)))


@pytest.mark.exact
def test_a_slow_link_is_not_used_for_nothing() -> None:
    """Two equal regions behind a hopeless link: one of them works alone; behind a good one both do."""
    graph, device = decoder(blocks=4, kv_heads=4), device_of("d", 1.0, 1e9)
    node = Level(name="node", size=2, bandwidth_bytes_per_s=1e10, latency_s=1e-6)
    work = workload_of(graph, 16, device)
    used = {}
    for bandwidth in (1e2, 1e10):
        wan = Level(name="wan", size=None, bandwidth_bytes_per_s=bandwidth, latency_s=1e-6, shared_by=2)
        cluster = Cluster(name="c", groups=(DeviceGroup(device=device, num_devices=2),) * 2, levels=(node, wan))
        outcome = search_mixed(work, cluster)
        used[bandwidth] = outcome.best.plan.groups
        assert any("stays idle" in note for note in outcome.notes) == (bandwidth == 1e2)
    assert len(used[1e2]) == 1
    assert len(used[1e10]) == 2


@pytest.mark.exact
def test_bundled_mixed_clusters() -> None:
    """GPT-like networks of about a billion weights; answers are proven, and use the faster devices more."""
    graph = decoder(blocks=12, features=1024, heads=16, kv_heads=16, ffn=2816, vocabulary=32000, positions=1024)
    for name in ("a100-v100", "h100-a100", "two-regions-a100"):
        cluster = load_cluster(name).cluster
        work = workload_of(graph, 32, cluster.groups[0].device, "bf16")
        settings = MixedSettings(
            top=1, micro_batches=(1,), tp=Bounds(high=2), group_limits=(4, 8), assumptions=MeshAssumptions()
        )
        outcome = search_mixed(work, cluster, settings)
        assert outcome.best is not None
        assert outcome.gap < 1e-9
        alone = [b.candidate.step_time_s for b in outcome.baselines if b.candidate is not None]
        assert outcome.best.step_time_s <= min(alone)
        assert describe(outcome.best.plan, cluster)
        if name == "a100-v100" and len(outcome.best.plan.groups) == 2:
            assert outcome.precision == "fp16"
            assert any("has no bf16" in note for note in outcome.notes)
