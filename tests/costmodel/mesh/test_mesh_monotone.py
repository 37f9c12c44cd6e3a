"""A given plan: better hardware is never slower, recomputation trades time for memory, sharding never costs state."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from functools import cache
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.hardware.cluster import Cluster, DeviceGroup
from costmodel.kernels.roofline import RooflineCompute
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch, MeshCosts, MeshPlan
from costmodel.mesh.rules import broken_rules
from costmodel.workload import Workload
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder, workload_of


def _better(cluster: Cluster, what: str, factor: float) -> Cluster:
    device = cluster.device
    if what == "peak":
        peaks = {name: rate * factor for name, rate in device.peak_flop_per_s.items()}
        device = replace(device, peak_flop_per_s=peaks)
    elif what == "memory bandwidth":
        device = replace(device, memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * factor)
    elif what == "launch":
        device = replace(device, launch_overhead_s=device.launch_overhead_s / factor)
    levels = cluster.levels
    if what == "bandwidth":
        levels = tuple(replace(level, bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * factor) for level in levels)
    elif what == "latency":
        levels = tuple(replace(level, latency_s=level.latency_s / factor) for level in levels)
    return replace(cluster, groups=(DeviceGroup(device=device),), levels=levels)


def _case(seed: int) -> tuple[MeshModel, list[MeshPlan]]:
    """A model and plans that state their stages."""
    rng = random.Random(seed)
    model = make.model_of(
        make.network(rng, blocks=rng.choice([6, 8, 12])), 12, make.cluster(rng), make.assumptions(rng)
    )
    shape = make.shape_of(model)
    plans = [make.uneven(rng, make.random_plan(rng, shape), model.num_blocks) for _ in range(16)]
    return model, plans


def _on(model: MeshModel, cluster: Cluster, plans: list[MeshPlan]) -> MeshCosts:
    workload = workload_of(model.workload.graph, cluster, model.workload.global_batch)
    return MeshModel.build(workload, cluster, model.assumptions).evaluate_plans(plans)


@pytest.mark.exact
@settings(derandomize=True)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["peak", "memory bandwidth", "launch", "bandwidth", "latency"]),
    st.sampled_from([1.1, 2.0, 30.0]),
)
def test_better_hardware_is_never_slower(seed: int, what: str, factor: float) -> None:
    model, plans = _case(seed)
    # What several exchanges hide behind at once has tests of its own, below; so transfers between stages hide behind nothing here.
    model = MeshModel.build(model.workload, model.cluster, replace(model.assumptions, pp_overlap=0.0))
    plans = [plan for plan in plans if plan.zero_stage < 3 and not plan.offload_activations]
    # Uniform layouts follow the network alone.
    plans += [replace(plan, stage_blocks=()) for plan in plans]
    before = _on(model, model.cluster, plans).step_time_s
    after = _on(model, _better(model.cluster, what, factor), plans).step_time_s
    worse = np.flatnonzero(after > before * (1 + 1e-9))
    assert not len(worse), (what, plans[worse[0]], after[worse[0]] / before[worse[0]])


@pytest.mark.fuzz
def test_better_hardware_is_never_slower_whatever_hides() -> None:
    plans = [
        MeshPlan(
            tp=2,
            pp=5,
            dp_replicate=2,
            dp_shard=2,
            zero_stage=3,
            num_micro_batches=3,
            order="tp-pp-dp-cp",
            stage_blocks=(2, 1, 1, 1, 1),
        ),
        MeshPlan(
            tp=2,
            dp_shard=2,
            zero_stage=3,
            micro_batch=2,
            num_micro_batches=3,
            offload_activations=True,
            stage_blocks=(6,),
        ),
        MeshPlan(
            tp=2,
            sequence_parallel=True,
            pp=4,
            schedule="zero_bubble",
            dp_shard=3,
            zero_stage=3,
            micro_batch=2,
            num_micro_batches=2,
            stage_blocks=(1, 1, 3, 1),
        ),
    ]
    for seed in range(40):
        rng = random.Random(seed)
        graph = make.network(rng, blocks=6)
        model = make.model_of(graph, 12, make.cluster(rng), MeshAssumptions(bucket_bytes=0.0))
        before = model.evaluate_plans(plans).step_time_s
        for what in ("peak", "launch", "memory bandwidth"):
            after = _on(model, _better(model.cluster, what, 30.0), plans).step_time_s
            assert (after <= before * (1 + 1e-9)).all(), (seed, what, after / before)


@pytest.mark.exact
@settings(derandomize=True)
@given(st.integers(0, 10**6))
def test_recomputing_more_blocks_saves_memory_and_costs_time(seed: int) -> None:
    model, plans = _case(seed)
    drawn = [
        replace(plan, offload_activations=False) for plan in plans[:5]
    ]  # what is recomputed need not travel to the host
    for plan, costs in zip(drawn, make.costs_of_each(model, [_recomputed(plan) for plan in drawn]), strict=True):
        step, kept = costs.step_time_s, costs.activation_bytes
        assert (np.diff(costs.memory_bytes[1:]) <= 1e-9 * costs.memory_bytes[1]).all(), plan
        assert (np.diff(step[1:]) >= -1e-9 * step[1]).all(), plan
        assert step[1] >= step[0] * (1 - 1e-9)
        assert kept[1] <= kept[0] * (1 + 1e-9)


def _recomputed(plan: MeshPlan) -> list[MeshPlan]:
    """Without recomputation, then with one block more and more."""
    more = [replace(plan, recompute="full", recompute_blocks=n) for n in range(1, max(plan.stage_blocks) + 1)]
    return [replace(plan, recompute="none", recompute_blocks=0), *more]


@pytest.mark.exact
@settings(derandomize=True)
@given(st.integers(0, 10**6))
def test_selective_recomputation_lies_between(seed: int) -> None:
    model, plans = _case(seed)
    drawn = [replace(plan, offload_activations=False) for plan in plans[:5]]
    groups = [
        [
            *(replace(plan, recompute=kind, recompute_blocks=0) for kind in ("none", "selective")),
            replace(plan, recompute="full", recompute_blocks=model.num_blocks),
        ]
        for plan in drawn
    ]
    for plan, costs in zip(drawn, make.costs_of_each(model, groups), strict=True):
        assert (np.diff(costs.step_time_s) >= -1e-9 * costs.step_time_s[0]).all(), plan
        assert (np.diff(costs.activation_bytes) <= 1e-9 * costs.activation_bytes[0]).all(), plan
        if plan.pp == 1:  # of a pipeline another stage may become the slowest
            assert costs.compute_s == pytest.approx(costs.compute_s[0], rel=1e-2)


@pytest.mark.exact
@settings(derandomize=True)
@given(st.integers(0, 10**6))
def test_offloading_is_never_faster_and_never_fuller(seed: int) -> None:
    model, plans = _case(seed)
    for name in ("offload_optimizer", "offload_activations"):
        off, on = (model.evaluate_plans([replace(plan, **{name: value}) for plan in plans]) for value in (False, True))
        assert (on.step_time_s >= off.step_time_s * (1 - 1e-9)).all(), name
        assert (on.memory_bytes <= off.memory_bytes * (1 + 1e-9)).all(), name


@pytest.mark.exact
@settings(derandomize=True)
@given(st.integers(0, 10**6))
def test_a_higher_zero_stage_keeps_no_more_state(seed: int) -> None:
    model, plans = _case(seed)
    shape = make.shape_of(model)
    groups = [
        [replace(plan, zero_stage=stage, stage_blocks=()) for stage in (1, 2, 3)] for plan in plans if plan.zero_stage
    ]
    assert all(broken_rules(shape, plan) == [] for group in groups for plan in group)
    for costs in make.costs_of_each(model, groups) if groups else []:
        state = costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes
        assert (np.diff(state) <= 1e-9 * state[0]).all()


@pytest.mark.parametrize("schedule", ["1f1b", "zero_bubble"])
def test_zero_bubble_puts_off_weight_gradients_only(schedule: str) -> None:
    """What may wait is the gradient of the weights: the routed experts' first product cannot leave before the second's input gradient."""
    d, f, positions, experts, k = 64, 128, 16, 4, 2
    graph = decoder(blocks=2, features=d, heads=4, kv_heads=2, ffn=f, positions=positions, experts=experts)
    model = make.model_of(graph, 4, make.ideal_cluster(peak=1e12, memory_bandwidth=1e21))
    batch = MeshBatch.from_plans([MeshPlan(pp=2, schedule=schedule, num_micro_batches=4)])
    weight = model.rows(batch).weight_s[0]
    matrices = d * (4 + 2 * 2) * 16 + d * d + k * 3 * d * f + d * experts
    norms = 2 * (2 * d)  # two norms, two operations per element
    assert weight[1] == pytest.approx(positions * (2 * matrices + norms) / 1e12, rel=1e-9)


# --- A model with other constants, which keeps what it knows already, against one that is built anew --------------------------------------


@cache
def _asked() -> list[tuple[MeshModel, list[MeshPlan]]]:
    """Models that have evaluated some plans of one stage: where networks are cut is kept on purpose."""
    rng = random.Random(5)
    # Nothing at 0 or 1, where another share would change nothing.
    some = {item.name: 0.3 for item in fields(MeshAssumptions) if item.name.endswith("_overlap")}
    asked = []
    for _ in range(3):
        assumptions = replace(make.assumptions(rng), **some)
        model = make.model_of(make.network(rng, blocks=4), 24, make.cluster(rng), assumptions)
        shape = make.shape_of(model)
        drawn = (make.random_plan(rng, shape) for _ in range(1000))
        plans = list(islice((plan for plan in drawn if plan.pp == 1), 20))
        assert len(plans) == 20
        model.evaluate_plans(plans)
        asked.append((model, plans))
    return asked


def _check(
    model: MeshModel, plans: list[MeshPlan], workload: Workload, cluster: Cluster, assumptions: MeshAssumptions
) -> None:
    before = model.evaluate_plans(plans).step_time_s
    kept = model.with_constants(workload, cluster, assumptions).evaluate_plans(plans)
    anew = MeshModel.build(workload, cluster, assumptions).evaluate_plans(plans)
    for item in fields(MeshCosts):
        np.testing.assert_array_equal(getattr(kept, item.name), getattr(anew, item.name), err_msg=item.name)
    np.testing.assert_array_equal(model.evaluate_plans(plans).step_time_s, before)


@pytest.mark.parametrize("name", [item.name for item in fields(MeshAssumptions)])
def test_an_assumption_that_changes_is_seen_everywhere(name: str) -> None:
    for model, plans in _asked():
        value = 1.5 * getattr(model.assumptions, name) + 1e-3
        _check(model, plans, model.workload, model.cluster, replace(model.assumptions, **{name: value}))


def test_links_that_change_are_seen_everywhere() -> None:
    for model, plans in _asked():
        levels = tuple(replace(level, latency_s=2 * level.latency_s + 1e-6) for level in model.cluster.levels)
        _check(model, plans, model.workload, replace(model.cluster, levels=levels), model.assumptions)


def test_a_device_that_changes_is_seen_everywhere() -> None:
    for model, plans in _asked():
        device, compute = model.cluster.device, model.workload.compute
        assert isinstance(compute, RooflineCompute)
        slower = replace(device, memory_bandwidth_bytes_per_s=0.5 * device.memory_bandwidth_bytes_per_s)
        workload = replace(model.workload, compute=replace(compute, device=slower))
        _check(model, plans, workload, model.cluster.with_device(slower), model.assumptions)
