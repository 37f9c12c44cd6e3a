"""Plans over several device groups: one group alone is the mesh model, and the rest by hand."""

from __future__ import annotations

import dataclasses
import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.framework import NO_FRAMEWORK
from costmodel.hardware.cluster import Cluster, ClusterError, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshPlan
from costmodel.mixed.detail import mixed_tracks
from costmodel.mixed.evaluate import broken_mixed_rules, cost_plans, mixed_costs, pipeline_makespan_s, stage_reports
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import (
    MIXED_ORDERS,
    MixedError,
    MixedPipeline,
    MixedPlan,
    MixedStage,
    all_reduce_across_s,
    check_groups,
    crossing,
    describe,
    group_cluster,
    group_names,
)
from costmodel.network.graph import Graph
from costmodel.precision import PRECISIONS
from costmodel.workload import Workload
from tests.costmodel.mesh.plans import gpt
from tests.costmodel.mesh.test_mesh_timeline import check
from tests.networks import roofline_workload

NODE = Level(name="node", size=4, bandwidth_bytes_per_s=100e9, latency_s=2e-6, efficiency=0.8)
FABRIC = Level(name="fabric", size=4, bandwidth_bytes_per_s=10e9, latency_s=5e-6, shared_by=2)
WAN = Level(name="wan", size=None, bandwidth_bytes_per_s=1e8, latency_s=1e-2, shared_by=16)


def device(name: str, speed: float = 1.0, formats: tuple[str, ...] = ("fp32", "fp16", "bf16")) -> Device:
    peaks = {key: speed * (1e13 if key == "fp32" else 1e14) for key in formats}
    return Device(name=name, peak_flop_per_s=peaks, memory_bytes=32e9, memory_bandwidth_bytes_per_s=speed * 1e12)


FAST, SLOW = device("fast", 2.0), device("slow", 1.0, ("fp32", "fp16"))


def network(blocks: int = 7) -> Graph:
    """GPT-2 without its dropouts; the head shares the embedding's weights."""
    return gpt(blocks=blocks, features=128, heads=8, positions=64, fused=True, dropout=False)


def workload(graph: Graph, batch: int, on: Device = FAST, precision: str = "fp16", training: bool = True) -> Workload:
    return roofline_workload(graph, on, batch, precision=precision, optimizer="adam", training=training)


def cluster(*groups: DeviceGroup, levels: tuple[Level, ...] = (NODE, FABRIC, WAN)) -> Cluster:
    return Cluster(name="c", groups=groups, levels=levels)


def two(fast: int = 16, slow: int = 16) -> Cluster:
    return cluster(DeviceGroup(device=FAST, num_devices=fast), DeviceGroup(device=SLOW, num_devices=slow))


def plan_of(
    *stages: tuple[int, int, int], replicas: int = 1, m: int = 8, longer: int = 0, micro_batch: int = 1, **more: object
) -> MixedPlan:
    """Stages as (group, tp, blocks)."""
    made = tuple(MixedStage(group=g, tp=tp, blocks=k) for g, tp, k in stages)
    pipeline = MixedPipeline(
        stages=made, replicas=replicas, num_micro_batches=m, longer=longer, micro_batch=micro_batch
    )
    return MixedPlan(pipelines=(pipeline,), **more)  # type: ignore[arg-type]


# -- one group alone is the mesh model --------------------------------------------------------------------------------------

GRAPH = network()
COMPOSITIONS = st.sets(st.integers(1, 6)).map(lambda cuts: [b - a for a, b in pairwise((0, *sorted(cuts), 7))])


@pytest.mark.exact
@given(
    blocks=COMPOSITIONS,
    tp=st.sampled_from([1, 2, 4, 8]),
    replicas=st.sampled_from([1, 2, 3, 4]),
    micro_batch=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1]),
    sequence=st.booleans(),
    order=st.sampled_from(MIXED_ORDERS),
    recompute=st.sampled_from(["none", "selective", "full"]),
    training=st.booleans(),
    own_links=st.booleans(),
    contended_step_s=st.sampled_from([0.0, 1e-4]),
    host_launch_s=st.sampled_from([0.0, 1e-5]),
    scattered_handover=st.sampled_from([0.0, 1.0]),
)
def test_one_group_alone_is_the_mesh_model(
    blocks: list[int],
    tp: int,
    replicas: int,
    micro_batch: int,
    zero: int,
    sequence: bool,
    order: str,
    recompute: str,
    training: bool,
    own_links: bool,
    contended_step_s: float,
    host_launch_s: float,
    scattered_handover: float,
) -> None:
    assumed = MeshAssumptions(
        contended_step_s=contended_step_s,
        host_launch_s=host_launch_s,
        pp_overlap=0.3,
        scattered_handover=scattered_handover,
    )
    slower = (replace(NODE, bandwidth_bytes_per_s=3e9), replace(FABRIC, bandwidth_bytes_per_s=1e9, shared_by=4))
    group = DeviceGroup(device=FAST, num_devices=256, levels=slower if own_links else ())
    mixed = cluster(group, levels=(NODE, FABRIC, WAN))
    alone = replace(mixed, groups=(replace(group, levels=()),), levels=(*slower, WAN) if own_links else mixed.levels)
    work = workload(GRAPH, 24, training=training)
    zero, sequence = zero if replicas > 1 else 0, sequence and tp > 1
    recompute = recompute if training else "none"
    again = 1 if recompute == "full" else 0
    stages = tuple(MixedStage(group=0, tp=tp, blocks=k, recompute=recompute, recompute_blocks=again) for k in blocks)
    m = 24 // replicas // micro_batch
    pipeline = MixedPipeline(stages=stages, replicas=replicas, micro_batch=micro_batch, num_micro_batches=m)
    ours = MixedPlan(pipelines=(pipeline,), zero_stage=zero, sequence_parallel=sequence, order=order)
    theirs = MeshPlan(
        tp=tp,
        sequence_parallel=sequence,
        pp=len(blocks),
        dp_replicate=1 if zero else replicas,
        dp_shard=replicas if zero else 1,
        zero_stage=zero,
        micro_batch=micro_batch,
        num_micro_batches=m,
        recompute=recompute,
        recompute_blocks=again,
        order=order,
        stage_blocks=tuple(blocks),
    )
    found = cost_plans(MixedModel.build(work, mixed, assumed), [ours])
    expected = MeshModel.build(work, alone, assumed).evaluate_plans([theirs])
    assert found.step_time_s[0] == pytest.approx(expected.step_time_s[0], rel=1e-9)
    assert found.memory_bytes[0] == pytest.approx(expected.memory_bytes[0], rel=1e-9)
    assert found.optimizer_s[0] == pytest.approx(expected.optimizer_s[0], rel=1e-9, abs=1e-15)


def test_parts_add_up() -> None:
    plans = [
        plan_of((0, 2, 4), (1, 4, 3), replicas=2, m=12, zero_stage=1),
        plan_of((1, 1, 3), (0, 1, 4), m=24, order="tp-cp-pp-dp"),
        plan_of((0, 2, 3), (0, 2, 1), (1, 2, 3), replicas=3, m=8, sequence_parallel=True),
    ]
    costs = cost_plans(MixedModel.build(workload(GRAPH, 24), two()), plans)
    names = ("compute_s", "recompute_s", "tp_exposed_s", "pp_exposed_s", "bubble_s", "dp_exposed_s", "optimizer_s")
    total = sum(getattr(costs, name) for name in names)
    np.testing.assert_allclose(total, costs.step_time_s, rtol=1e-12)
    assert np.all(costs.bubble_s > 0)


# -- links between groups ---------------------------------------------------------------------------------------------------


def test_groups_meet_at_the_level_that_has_both() -> None:
    group = DeviceGroup(device=FAST, num_devices=2)
    inside = cluster(group, group)  # four devices of one node
    assert crossing(inside, (0, 1), (1, 1)).level == "node"
    assert crossing(two(4, 4), (0, 1), (1, 1)).level == "fabric"
    assert crossing(two(16, 16), (0, 1), (1, 1)).level == "wan"
    # The most distant pair counts: the slow group goes on in the next region.
    assert (
        crossing(cluster(*(DeviceGroup(device=FAST, num_devices=n) for n in (8, 8, 16))), (0, 2), (1, 1)).level == "wan"
    )


def test_messages_share_ports() -> None:
    # wan: 16 devices share a port of 1.6 GB/s; one message has it all (and is held up by nothing inside), four share it.
    assert crossing(two(), (0, 1), (1, 1)).bytes_per_s == pytest.approx(1.6e9)
    assert crossing(two(), (0, 1), (4, 2)).bytes_per_s == pytest.approx(0.4e9)
    assert crossing(two(), (0, 1), (64, 64)).bytes_per_s == pytest.approx(1e8)


def test_the_slower_side_counts() -> None:
    own = (NODE, replace(FABRIC, bandwidth_bytes_per_s=1e9, latency_s=1e-4))
    made = cluster(
        DeviceGroup(device=FAST, num_devices=4),
        DeviceGroup(device=SLOW, num_devices=4, levels=own),
        levels=(NODE, FABRIC),
    )
    link = crossing(made, (0, 1), (1, 1))
    assert link.latency_s == 1e-4
    assert link.bytes_per_s == pytest.approx(2e9)  # a port for two devices of 1 GB/s each
    assert link.send_s(4e9) == pytest.approx(2.0 + 1e-4)
    assert group_cluster(made, 1).levels == own
    assert group_cluster(made, 0).levels == (NODE, FABRIC)


_WHOLE = MeshAssumptions(scattered_handover=0.0)  # every rank hands on all that it holds


def test_a_stage_waits_for_what_crosses_the_cut() -> None:
    """64 positions x 128 features x 2 bytes from each of two tp ranks and two replicas, four messages through one port."""
    plan = plan_of((0, 2, 4), (1, 2, 3), replicas=2, m=12)
    reports = stage_reports(MixedModel.build(workload(GRAPH, 24), two(), _WHOLE), plan)
    transfer = 64 * 128 * 2 / 0.4e9 + 1e-2
    assert reports[1].transfer_s == pytest.approx(transfer)
    assert reports[0].transfer_s == pytest.approx(transfer)  # the gradient on its way back
    # With sequence parallelism each of the ranks sends its half.
    halved = stage_reports(MixedModel.build(workload(GRAPH, 24), two()), replace(plan, sequence_parallel=True))
    assert halved[1].transfer_s == pytest.approx(64 * 128 / 0.4e9 + 1e-2)


def test_more_ranks_behind_than_before_are_served_in_turn() -> None:
    model = MixedModel.build(workload(GRAPH, 8), two(), _WHOLE)
    one = stage_reports(model, plan_of((0, 1, 4), (1, 4, 3)))[1].transfer_s
    assert one == pytest.approx(4 * 64 * 128 * 2 / 0.4e9 + 1e-2)


def test_unlike_pipelines_exchange_gradients_over_the_slowest_link() -> None:
    """ZeRO-0, no overlap: the slower the link between the groups, the longer the end of the step, by the time of the all-reduce."""
    shapes = (
        MixedPipeline(stages=(MixedStage(group=0, tp=1, blocks=7),), replicas=2, num_micro_batches=8),
        MixedPipeline(stages=(MixedStage(group=1, tp=1, blocks=7),), replicas=1, num_micro_batches=8),
    )
    plan = MixedPlan(pipelines=shapes)
    bare = MeshAssumptions(dp_overlap=0.0)
    quick = two()
    slow = replace(quick, levels=(NODE, FABRIC, replace(WAN, bandwidth_bytes_per_s=1e7)))
    work = workload(GRAPH, 24)
    times = [cost_plans(MixedModel.build(work, c, bare), [plan]).step_time_s[0] for c in (quick, slow)]
    # 2 and 1 devices send at a time; each has half (or all) of a port of 16 x 0.1 (0.01) GB/s. The fewest ranks that hold a block are one.
    gradients = GRAPH.weight_count * 4 + sum(layer.norm_count for layer in GRAPH.layers) * 4
    expected = [float(all_reduce_across_s(gradients, 2, rate, 1e-2)) for rate in (0.8e9, 0.08e9)]
    assert times[1] - times[0] == pytest.approx(expected[1] - expected[0], rel=1e-3)


def test_shares_need_not_be_equal() -> None:
    """24 samples: the replica with most micro-batches decides; one more for some costs one more for all."""
    work = workload(GRAPH, 24)
    model = MixedModel.build(work, two())
    even = cost_plans(model, [plan_of((0, 1, 7), replicas=4, m=6)]).step_time_s[0]
    uneven = cost_plans(model, [plan_of((0, 1, 7), replicas=5, m=4, longer=4)]).step_time_s[0]
    report = stage_reports(model, plan_of((0, 1, 7), replicas=5, m=4, longer=4))[0]
    assert uneven < even
    assert uneven == pytest.approx(5 * (report.forward_s + report.backward_s) + report.exchange_s + report.update_s)


@pytest.mark.exact
def test_slowest_pipeline_decides() -> None:
    rng = random.Random(3)
    for _ in range(20):
        first = rng.randint(1, 23)
        shapes = (
            MixedPipeline(stages=(MixedStage(group=0, blocks=7),), num_micro_batches=first),
            MixedPipeline(
                stages=(MixedStage(group=1, blocks=3), MixedStage(group=1, blocks=4)), num_micro_batches=24 - first
            ),
        )
        model = MixedModel.build(workload(GRAPH, 24), two())
        plan = MixedPlan(pipelines=shapes)
        reports = stage_reports(model, plan)
        makespan = [
            pipeline_makespan_s(m, np.array([[r.forward_s for r in own]]), np.array([[r.backward_s for r in own]]))[0]
            for m, own in ((first, reports[:1]), (24 - first, reports[1:]))
        ]
        costs = cost_plans(model, [plan])
        assert costs.step_time_s[0] == pytest.approx(
            max(makespan) + costs.dp_exposed_s[0] + costs.optimizer_s[0], rel=1e-12
        )


# -- number formats, rules, words -------------------------------------------------------------------------------------------


def test_the_format_is_one_that_all_devices_have() -> None:
    model = MixedModel.build(workload(GRAPH, 24, precision="bf16"), two())
    assert model.precision_of((0,)).name == "bf16"
    assert model.precision_of((1,)).name == "fp16"
    assert model.precision_of((0, 1)).name == "fp16"
    # Asked for or not, it costs the same: gradients in fp16 add up in 16 bits.
    asked = MixedModel.build(workload(GRAPH, 24), two(), NO_FRAMEWORK.mesh_assumptions(precision=PRECISIONS["fp16"]))
    assert model.assumptions.main_gradient_bytes == 4.0
    assert model.assumptions_in(model.precision_of((0, 1))) == asked.assumptions


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of((0, 1, 7), m=7), "add up to 7 samples, not the global batch 8"),
        (plan_of((0, 1, 6)), "hold 6 blocks, the network has 7"),
        (plan_of((0, 8, 3), (0, 8, 3), (0, 8, 1)), "uses 24 devices of group 'fast', which has 16"),
        (plan_of((2, 1, 7)), "there is no group 2; cluster 'c' has 0 (fast), 1 (slow)"),
        (plan_of((0, 3, 7)), "tp 3 does not divide the 8 attention heads"),
        (plan_of((0, 1, 7), zero_stage=3), "zero stage 3"),
        (plan_of((0, 1, 7), replicas=2, m=4, longer=2), "longer is at least 0 and less than replicas"),
        (MixedPlan(pipelines=()), "at least one pipeline"),
    ],
)
def test_rules(plan: MixedPlan, message: str) -> None:
    model = MixedModel.build(workload(GRAPH, 8), two())
    assert message in "; ".join(broken_mixed_rules(model, plan))
    with pytest.raises(MixedError):
        cost_plans(model, [plan])


def test_groups_fill_whole_modules() -> None:
    with pytest.raises(MixedError, match="group 'slow' of cluster 'c' starts 2 devices into a unit of level 'node'"):
        check_groups(two(6, 8))
    check_groups(two(6, 2))  # the rest of a node
    with pytest.raises(MixedError, match="needs a count"):
        check_groups(cluster(DeviceGroup(device=FAST), DeviceGroup(device=SLOW, num_devices=4)))
    with pytest.raises(MixedError, match="has 32 devices, its levels join 16"):
        check_groups(cluster(*two().groups, levels=(NODE, FABRIC)))


def test_own_links_match_the_modules() -> None:
    with pytest.raises(ClusterError, match="level 'node' of size 8 does not match 'node' of size 4"):
        cluster(DeviceGroup(device=FAST, num_devices=8, levels=(replace(NODE, size=8),)))
    with pytest.raises(ClusterError, match="a port is shared by 3 devices"):
        cluster(DeviceGroup(device=FAST, num_devices=8, levels=(NODE, replace(FABRIC, shared_by=3))))


def test_words() -> None:
    regions = cluster(*(DeviceGroup(device=FAST, num_devices=16) for _ in range(2)))
    assert group_names(regions) == ("fast #1", "fast #2")
    plan = plan_of((0, 8, 4), (1, 4, 2), (1, 4, 1), replicas=2, m=5, longer=1, zero_stage=1)
    words = "2 replicas x 5 micro-batches of 1 (1 of them 6): fast #1: stage 0, tp 8, 4 blocks; fast #2: stages 1-2, tp 4, 2+1 blocks; "
    assert describe(plan, regions) == words + "ZeRO-1 among equal replicas"


# --- Traces of plans over several kinds of devices: they end when the cost model says; money and energy of such plans by hand -------------


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
