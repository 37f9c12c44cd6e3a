"""Money and energy of a step, by hand and rank by rank."""

from __future__ import annotations

import random

import pytest

from costmodel.hardware.device import Device, DeviceError
from costmodel.hardware.host import DEFAULT_IDLE_SHARE, Host, HostError, Power
from costmodel.mesh.model import MeshModel, least_computing_s, plans_computing_s, recomputing_s
from costmodel.mesh.plan import MeshBatch, MeshPlan
from tests.cases import mostly
from tests.strategies.mesh.networks import decoder, two_level_cluster, workload_of


def _device(**more: float) -> Device:
    return Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11, **more)  # type: ignore[arg-type]


def test_power_of_a_device_in_its_node() -> None:
    host = Host(devices=8, memory_bytes=1e12, power_w=4600.0)
    assert Power.of(_device(busy_power_w=700.0, idle_power_w=90.0), host) == Power(
        busy_w=700.0, idle_w=90.0, host_w=575.0
    )
    assert Power.of(_device(busy_power_w=700.0), None) == Power(busy_w=700.0, idle_w=DEFAULT_IDLE_SHARE * 700.0)
    assert Power.of(_device(), host) is None


@pytest.mark.parametrize(
    "power", [{"idle_power_w": 10.0}, {"busy_power_w": 100.0, "idle_power_w": 101.0}, {"busy_power_w": 0.0}]
)
def test_power_that_contradicts_itself_is_refused(power: dict[str, float]) -> None:
    with pytest.raises(DeviceError, match="power"):
        _device(**power)
    with pytest.raises(HostError, match="power_w"):
        Host(devices=8, memory_bytes=1e12, power_w=-1.0)


def _by_rank(model: MeshModel, plan: MeshPlan) -> float:
    """Kernel time of a micro-batch, rank by rank and module by module, averaged over the ranks of the pipeline."""
    table = model.rows(MeshBatch.from_plans([plan]))
    blocks = plan.stage_blocks or model.blocks_of(plan.pp * plan.vpp)
    kinds = [int(kind) for kind in model.modules.kind_of]
    front, body, back = kinds[0], kinds[1:-1], kinds[-1]
    assert len(body) == sum(blocks)
    ranks = [0.0] * plan.pp
    position = 0
    for chunk, count in enumerate(blocks):
        time = 0.0
        own = body[position : position + count]
        for kind in own:
            time += float(table.forward_s[0, kind] + table.backward_s[0, kind])
            if plan.recompute == "selective":
                time += float(table.selective_s[0, kind])
        if plan.recompute == "full":
            again = plan.stage_recompute[chunk] if plan.stage_recompute else min(plan.recompute_blocks, count)
            time += sum(float(table.forward_s[0, kind]) for kind in own[:again])
        if chunk == 0:
            time += float(table.forward_s[0, front] + table.backward_s[0, front])
        if chunk == len(blocks) - 1:
            time += float(table.forward_s[0, back] + table.backward_s[0, back])
        ranks[chunk % plan.pp] += time
        position += count
    return plan.num_micro_batches * sum(ranks) / plan.pp


@mostly("exact", "seed", range(30))
def test_computing_time_is_the_mean_over_the_ranks(seed: int) -> None:
    rng = random.Random(seed)
    cluster = two_level_cluster()
    model = MeshModel.build(workload_of(decoder(blocks=rng.choice([5, 8])), cluster, 16), cluster)
    pp = rng.choice([1, 2, 4])
    recompute = rng.choice(["none", "selective", "full"])
    plan = MeshPlan(
        tp=rng.choice([1, 2]),
        pp=pp,
        dp_shard=rng.choice([1, 2]),
        zero_stage=0,
        micro_batch=rng.choice([1, 2]),
        num_micro_batches=4,
        recompute=recompute,
        recompute_blocks=rng.choice([1, 2]) if recompute == "full" else 0,
    )
    batch = MeshBatch.from_plans([plan])
    found = least_computing_s(model, batch) + recomputing_s(model, batch, model.layouts(batch))
    assert float(found[0]) == pytest.approx(_by_rank(model, plan), rel=1e-9)


def test_stages_of_their_own_are_followed() -> None:
    cluster = two_level_cluster()
    model = MeshModel.build(workload_of(decoder(blocks=5), cluster, 16), cluster)
    plan = MeshPlan(
        pp=2, num_micro_batches=16, stage_blocks=(2, 3), recompute="full", recompute_blocks=1, stage_recompute=(2, 0)
    )
    costs = model.evaluate_plans([plan])
    computing = plans_computing_s(model, [plan], costs)
    assert float(computing[0]) == pytest.approx(_by_rank(model, plan) + float(costs.optimizer_s[0]), rel=1e-9)
