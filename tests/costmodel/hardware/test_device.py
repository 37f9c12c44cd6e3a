"""Devices: ranges, formats, immutability."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.hardware.device import FORMATS, Device, DeviceError
from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY, Efficiency, EfficiencyError
from costmodel.hardware.host import DEFAULT_IDLE_SHARE, USABLE_SHARE, Host, HostError, Power, host_rates
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel, least_computing_s, plans_computing_s, recomputing_s
from costmodel.mesh.plan import MeshBatch, MeshPlan
from tests.cases import mostly
from tests.strategies.mesh.networks import decoder, two_level_cluster, workload_of

GOOD: dict[str, Any] = {
    "name": "d",
    "peak_flop_per_s": {"fp32": 1e12},
    "memory_bytes": 1e9,
    "memory_bandwidth_bytes_per_s": 1e11,
}


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("key", ["memory_bytes", "memory_bandwidth_bytes_per_s", "vector_flop_per_s", "fp32"])
def test_rates_are_positive_numbers(key: str, bad: float) -> None:
    change = {"peak_flop_per_s": {"fp32": bad}} if key == "fp32" else {key: bad}
    with pytest.raises(DeviceError, match="device 'd'"):
        Device(**(GOOD | change))


@pytest.mark.parametrize("key", ["clock_hz", "launch_overhead_s"])
def test_clock_and_launch_may_be_zero(key: str) -> None:
    assert getattr(Device(**(GOOD | {key: 0.0})), key) == 0.0
    with pytest.raises(DeviceError):
        Device(**(GOOD | {key: -1.0}))


def test_formats() -> None:
    with pytest.raises(DeviceError, match="unknown number format 'int7'"):
        Device(**(GOOD | {"peak_flop_per_s": {"fp32": 1.0, "int7": 2.0}}))
    with pytest.raises(DeviceError, match="no fp32"):
        Device(**(GOOD | {"peak_flop_per_s": {"bf16": 1.0}}))
    device = Device(**(GOOD | {"peak_flop_per_s": {"bf16": 4.0, "fp32": 1.0}}))
    assert device.formats == {"fp32", "bf16"}
    assert list(device.peak_flop_per_s) == ["fp32", "bf16"]  # from wide to narrow, however written
    assert set(FORMATS) >= device.formats


def test_rates_cannot_be_changed() -> None:
    rates = {"fp32": 1e12}
    device = Device(**(GOOD | {"peak_flop_per_s": rates}))
    rates["fp32"] = 5.0
    assert device.peak("fp32") == 1e12
    with pytest.raises(TypeError):
        device.peak_flop_per_s["fp32"] = 1.0  # type: ignore[index]


def test_who_has_matrix_units() -> None:
    """Two halves per lane are none; who knows tf32 has them, however slow (a GeForce RTX 3090, by NVIDIA's GA102 white paper)."""
    pascal = Device(**(GOOD | {"peak_flop_per_s": {"fp32": 10.6e12, "fp16": 21.2e12}}))
    assert not pascal.has_matrix_units("fp16")
    peaks = {"fp32": 35.6e12, "tf32": 35.6e12, "fp16": 71e12, "bf16": 71e12}
    geforce = Device(**(GOOD | {"peak_flop_per_s": peaks}))
    assert [geforce.has_matrix_units(name) for name in ("fp32", "tf32", "fp16", "bf16")] == [False, True, True, True]
    # A yardstick that is equally fast in everything has no units of its own.
    alike = Device(**(GOOD | {"peak_flop_per_s": dict.fromkeys(FORMATS, 1e12)}))
    assert not any(alike.has_matrix_units(name) for name in FORMATS)


@pytest.mark.parametrize(
    ("best", "message"),
    [
        ({"fp8": 1e12}, "best.fp8: the device states no fp8 peak"),
        ({"bf16": 5e12}, "best.bf16 is 5 TFLOP/s, expected a rate above 0 and up to 1.15 times its peak of 4 TFLOP/s"),
        ({"fp32": 0.0}, "best.fp32 is 0 TFLOP/s"),
        ({"fp32": math.nan}, "best.fp32 is nan TFLOP/s"),
    ],
)
def test_a_best_rate_belongs_to_a_peak(best: dict[str, float], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        Device(**(GOOD | {"peak_flop_per_s": {"fp32": 1e12, "bf16": 4e12}, "best_flop_per_s": best}))


def test_what_is_sustained_is_no_more_than_the_best() -> None:
    peaks = {"peak_flop_per_s": {"fp32": 1e12, "bf16": 40e12}, "best_flop_per_s": {"bf16": 35e12}}
    message = r"sustained.bf16 is 36 TFLOP/s, expected a rate above 0 and up to best.bf16 \(35 TFLOP/s\)"
    with pytest.raises(DeviceError, match=message):
        Device(**(GOOD | peaks | {"sustained_flop_per_s": {"bf16": 36e12}}))
    with pytest.raises(DeviceError, match=r"sustained\.nvfp4: the device states no nvfp4 peak"):
        Device(**(GOOD | peaks | {"sustained_flop_per_s": {"nvfp4": 36e12}}))
    # It is reached, whatever share of the peak is assumed where no best rate is stated.
    for sustained, best in ((33e12, 33e12), (31e12, 32e12)):
        found = Device(**(GOOD | peaks | {"best_flop_per_s": {}, "sustained_flop_per_s": {"bf16": sustained}}))
        assert (found.best("bf16"), found.sustained("bf16")) == (best, sustained)
    with pytest.raises(DeviceError, match=r"1.15 times its peak \(46 TFLOP/s\)"):
        Device(**(GOOD | peaks | {"best_flop_per_s": {}, "sustained_flop_per_s": {"bf16": 47e12}}))


PEAKS = {"fp32": 10e12, "tf32": 50e12, "fp16": 100e12, "bf16": 100e12, "fp8": 200e12, "nvfp4": 400e12}


def test_formats_without_a_best_rate_reach_the_share_of_the_format_most_alike() -> None:
    """0.9 of the peak in bf16 and 0.6 in 8 bits; lanes of 128 per multiprocessor as matrix units, unless they state a rate."""
    stated = Device(**(GOOD | {"peak_flop_per_s": PEAKS, "best_flop_per_s": {"bf16": 90e12, "fp8": 120e12}}))
    shares = {name: stated.best(name) / rate for name, rate in PEAKS.items()}
    assert shares == pytest.approx({"fp32": 0.9, "tf32": 0.9, "fp16": 0.9, "bf16": 0.9, "fp8": 0.6, "nvfp4": 0.6})
    lanes = Device(**(GOOD | {"peak_flop_per_s": PEAKS, "best_flop_per_s": {"fp32": 5e12}}))
    assert (lanes.best("fp32"), lanes.lane_share(), lanes.best("bf16")) == (5e12, 0.5, 80e12)
    twice = stated.with_peaks({name: 2.0 * rate for name, rate in PEAKS.items() if name != "fp8"})
    assert (twice.best("bf16"), dict(twice.best_flop_per_s)) == (180e12, {"bf16": 180e12})


def test_the_power_limit_takes_as_much_from_the_format_most_alike() -> None:
    """Three quarters of the best rate in bf16, half in 8 bits; nothing from lanes, nor where nobody says."""
    rates = {"best_flop_per_s": {"bf16": 80e12, "nvfp4": 360e12}, "sustained_flop_per_s": {"bf16": 60e12, "fp8": 80e12}}
    stated = Device(**(GOOD | {"peak_flop_per_s": PEAKS} | rates))
    left = {name: stated.sustained(name) / stated.best(name) for name in PEAKS}
    expected = {"fp32": 1.0, "tf32": 0.75, "fp16": 0.75, "bf16": 0.75, "fp8": 0.5, "nvfp4": 0.5}
    assert left == pytest.approx(expected)
    free = Device(**(GOOD | {"peak_flop_per_s": PEAKS}))
    assert [free.sustained(name) for name in PEAKS] == [free.best(name) for name in PEAKS]
    assert stated.with_peaks(PEAKS | {"bf16": 200e12}).sustained("bf16") == pytest.approx(120e12)


def test_few_lanes_wait_less_for_the_memory_they_share() -> None:
    """(1 + 0.4) / (1 + 0.4 / 2) of 0.8 with 64 lanes; two halves per lane are as many as 128; a stated rate is of its own lanes."""
    pascal = {"peak_flop_per_s": {"fp32": 10e12, "fp16": 20e12}, "lanes_per_multiprocessor": 64}
    derived = Device(**(GOOD | pascal))
    assert derived.best("fp32") == pytest.approx(10e12 * 0.8 * 1.4 / 1.2)
    assert derived.best("fp16") == pytest.approx(20e12 * 0.8)
    stated = Device(**(GOOD | pascal | {"best_flop_per_s": {"fp32": 9e12}}))
    assert stated.best("fp32") == 9e12
    assert stated.best("fp16") == pytest.approx(18e12 * 1.2 / 1.4)


# --- Ranges of the constants of the efficiency model; what they are for is tested in test_kernel_time.py ----------------------------------


def test_efficiency_ranges() -> None:
    for bad in (0.0, 1.5, math.nan):
        with pytest.raises(EfficiencyError, match="matmul_fraction"):
            Efficiency(matmul_fraction=bad)
    for bad in (-1.0, math.inf, math.nan):
        with pytest.raises(EfficiencyError, match="memory_overlap"):
            Efficiency(memory_overlap=bad)
        with pytest.raises(EfficiencyError, match="tile_half"):
            Efficiency(tile_half=bad)
    with pytest.raises(EfficiencyError, match=r"memory_overlap is 1\.1, expected a number from 0 to 1"):
        Efficiency(memory_overlap=1.1)


def test_the_default_says_where_its_numbers_come_from() -> None:
    assert "DeepBench" in DEFAULT_EFFICIENCY.source
    assert Efficiency().source == ""


# --- The host of a node: shares of its memory and links -----------------------------------------------------------------------------------


DGX_A100 = Host(
    devices=8, memory_bytes=2e12, memory_bandwidth_bytes_per_s=409.6e9, link_bytes_per_s=31.5e9, link_shared_by=2
)


def test_the_devices_of_a_busy_node_share_memory_and_links() -> None:
    """DGX A100: 409.6 GB/s for eight, 31.5 GB/s for two; 80 % of a link and 40 % of the memory are reached."""
    assert DGX_A100.memory_bandwidth_per_device == 51.2e9
    assert DGX_A100.link_per_device == 15.75e9
    rates = host_rates(DGX_A100)
    assert rates["host_bytes_per_s"] == pytest.approx(12.6e9)
    assert rates["host_update_bytes_per_s"] == pytest.approx(20.48e9)


def test_a_link_carries_no_more_than_the_memory_behind_it() -> None:
    host = Host(devices=8, memory_bytes=1e12, memory_bandwidth_bytes_per_s=80e9, link_bytes_per_s=63e9)
    assert host_rates(host)["host_bytes_per_s"] == pytest.approx(0.8 * 10e9)


def test_what_is_not_known_is_left_to_the_assumptions() -> None:
    assert host_rates(None) == {}
    assert host_rates(Host(devices=8, memory_bytes=1e12)) == {}
    only_link = Host(devices=8, memory_bytes=1e12, link_bytes_per_s=10e9)
    assert host_rates(only_link) == {"host_bytes_per_s": 8e9}
    assert set(host_rates(DGX_A100)) <= set(MeshAssumptions.__dataclass_fields__)


@given(st.integers(1, 64), st.integers(1, 10_000))
def test_the_shares_of_the_workers_of_a_node_are_what_may_be_filled(devices: int, workers: int) -> None:
    host = Host(devices=devices, memory_bytes=1e12)
    here = min(devices, workers)
    assert here * host.share_bytes(workers) == pytest.approx(USABLE_SHARE * 1e12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 0}, "0 devices"),
        ({"memory_bytes": 0.0}, "memory_bytes"),
        ({"memory_bytes": math.inf}, "memory_bytes"),
        ({"memory_bandwidth_bytes_per_s": -1.0}, "memory_bandwidth"),
        ({"link_bytes_per_s": 0.0}, "link_bytes_per_s"),
        ({"link_shared_by": 3}, "shared by 3 devices, which does not divide the 8"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(HostError, match=message):
        Host(**({"devices": 8, "memory_bytes": 1e12} | changes))  # type: ignore[arg-type]


# --- Money and energy of a step, by hand and rank by rank ---------------------------------------------------------------------------------


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
