"""What a framework changes: assumptions of both kinds of plans, and the attention kernels of a device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.framework import (
    AS_RUN,
    DEVICE_SPREAD,
    NO_FRAMEWORK,
    UNKNOWN,
    WELL_TUNED,
    Framework,
    cluster_run_by,
    copy_s,
    server_round_trip_s,
    server_transfer_s,
    slowest_of,
    storage_s,
    tensors_of,
    with_attention,
)
from costmodel.framework import DEVICE_SPREAD as SPREAD
from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS
from costmodel.precision import PRECISIONS
from planner.files.loading import load_cluster, load_device
from planner.importers.networks import load_model
from planner.measurements import convnets
from planner.measurements.outcomes import DEFAULT
from planner.measurements.tables import Row
from tests.planner.measurements.single_rows import only


def test_without_a_framework_the_implementation_is_well_tuned() -> None:
    assert NO_FRAMEWORK.mesh_assumptions() == DEFAULT_ASSUMPTIONS
    assert NO_FRAMEWORK.mesh_assumptions(has_fp4=True) == replace(DEFAULT_ASSUMPTIONS, captured=1.0)
    as_run = dict.fromkeys(("column_overlap", "pp_overlap", "scattered_handover"), 0.0)
    as_run |= {"logits_copies": 2.0, "cp_balance": 1.0, "node_copies": 1.0}
    plain = replace(DEFAULT_ASSUMPTIONS, **as_run)
    assert UNKNOWN.mesh_assumptions() == plain
    assert NO_FRAMEWORK.layer_assumptions() == WELL_TUNED
    assert UNKNOWN.layer_assumptions() == AS_RUN == replace(WELL_TUNED, device_spread=DEVICE_SPREAD)


def test_costs_that_are_no_assumption_are_refused() -> None:
    with pytest.raises(ValueError, match="'speed' is no assumption"):
        Framework(name="x", costs={"speed": 1.0})
    with pytest.raises(ValueError, match="'speed' is no assumption"):
        Framework(name="x", conditional={"in_fp16": {"speed": 1.0}})
    # Of engines alone.
    assert Framework(name="x", serves=True, costs={"pass_overhead_s": 1e-3}).costs
    with pytest.raises(ValueError, match="'pass_overhead_s' is no assumption"):
        Framework(name="x", costs={"pass_overhead_s": 1e-3})


def test_costs_count_under_their_condition() -> None:
    found = Framework(
        name="x",
        costs={"captured": 0.1},
        conditional={
            "on_fp4_devices": {"captured": 1.0},
            "in_fp16": {"update_call_s": 1e-5},
            "in_16_bits": {"fused_bias": 1.0},
        },
    )
    assert (found.mesh_assumptions().captured, found.mesh_assumptions(has_fp4=True).captured) == (0.1, 1.0)
    fp32, bf16, fp16 = (found.layer_assumptions(PRECISIONS[name]) for name in ("fp32", "bf16", "fp16"))
    assert (fp32.update_call_s, bf16.update_call_s, fp16.update_call_s) == (0.0, 0.0, 1e-5)
    assert (fp32.fused_bias, bf16.fused_bias, fp16.fused_bias) == (0.0, 1.0, 1.0)
    assert sorted(fp16.image_software().fuses) == ["bias"]


def test_only_attention_is_slower_and_only_where_the_device_has_other_kernels() -> None:
    hopper, ampere = load_device("h100-sxm").device, load_device("a100-80gb").device
    slower = with_attention(hopper, "portable")
    assert slower.efficiency.attention_fraction < hopper.efficiency.attention_fraction
    assert slower.best("bf16") == hopper.best("bf16")
    assert with_attention(hopper, "newest") is hopper
    assert with_attention(ampere, "portable") is ampere


def test_the_default_rate_is_that_of_the_first_kernels() -> None:
    """Steps of llm-foundry on A100 found 0.55 of FlashAttention-2; devices without a rate of their own are about as slow."""
    ampere, other = load_device("a100-80gb").device, load_device("gaudi2").device
    first = with_attention(ampere, "first").efficiency
    assert (first.attention_fraction, first.attention_backward_fraction) == pytest.approx((0.55 * 0.84, 0.55 * 0.72))
    assert (other.efficiency.attention_fraction, other.efficiency.attention_backward_fraction) == (0.41, 0.33)
    assert with_attention(other, "first") is other


def test_every_group_of_a_cluster_has_the_kernels() -> None:
    cluster = load_cluster("h100-a100").cluster
    found = cluster_run_by(cluster, "portable")
    assert tuple(group.device for group in found.groups) == tuple(
        with_attention(group.device, "portable") for group in cluster.groups
    )
    assert found.levels == cluster.levels
    assert cluster_run_by(cluster, "newest") is cluster


# --- Weight tensors against what torchvision reports --------------------------------------------------------------------------------------


# len(list(torchvision.models.<name>().parameters())).
@pytest.mark.parametrize(
    ("name", "count"), [("resnet50", 161), ("vgg16", 32), ("resnext101-32x4d", 314), ("densenet121", 364)]
)
def test_weight_tensors(name: str, count: int) -> None:
    graph = load_model(name).graph
    assert sum(map(tensors_of, graph.layers)) == count


def test_pytorch_waits_for_updates_where_losses_are_scaled() -> None:
    row = {"model": "resnet50", "device": "a100-80gb", "gpus": 1, "global_batch": 128, "step_time_ms": 100}

    def predicted_s(framework: str, precision: str) -> float:
        return only(convnets, **row, framework=framework, precision=precision).comparisons[0].predicted_s

    assert (
        1e-3
        < predicted_s("pytorch-channels-last", "fp16") - predicted_s("tensorflow", "fp16")
        < 24e-6 * sum(map(tensors_of, load_model("resnet50").graph.layers))
    )
    assert predicted_s("pytorch-channels-last", "tf32") == predicted_s("tensorflow", "tf32")


# --- The slowest of several against draws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 8, 64, 512])
def test_the_slowest_of_draws(workers: int) -> None:
    draws = np.random.default_rng(0).normal(1.0, SPREAD, (4000, workers))
    assert float(slowest_of(workers, SPREAD)) - 1.0 == pytest.approx(float(draws.max(axis=1).mean()) - 1.0, rel=0.06)


def test_one_waits_for_nobody() -> None:
    assert slowest_of(1, SPREAD) == 1.0


def test_steps_of_several_devices_go_at_the_pace_of_the_slowest() -> None:
    """ResNet-50 on DGX-1 hides its exchange: eight devices differ from one by the spread of their computing."""
    one, eight = (
        only(convnets, model="resnet50", device="v100-16gb", gpus=n, batch_per_gpu=64, step_time_ms=200).comparisons[0]
        for n in (1, 8)
    )
    assert eight.predicted_s / one.predicted_s == pytest.approx(float(slowest_of(8, SPREAD)), abs=0.005)


# --- Input against sums by hand -----------------------------------------------------------------------------------------------------------


def test_two_dies_of_a_board_share_its_slot() -> None:
    cluster = load_cluster("k80-10gbe").cluster
    assert copy_s(100e6, 1, cluster) == pytest.approx(100e6 / (15.75e9 * 0.75))
    assert copy_s(100e6, 8, cluster) == pytest.approx(100e6 / (15.75e9 * 0.75 / 2))


def test_storage_of_a_node_reads_its_share() -> None:
    assert storage_s(1000, 1e6, 2e9, [4, 8, 32], 8).tolist() == [0.5, 0.5, 0.125]
    assert storage_s(1000, 1e6, 0.0, 8, 8) == storage_s(1000, 0.0, 2e9, 8, 8) == 0.0


def test_rows_with_real_data() -> None:
    cells = {"model": "alexnet", "device": "k80", "gpus": "8", "batch_per_gpu": "512", "step_time_ms": "1000"}

    def seconds(**more: str) -> float:
        return convnets.predict([Row(line=2, cells={**cells, **more})], DEFAULT)[0].comparisons[0].predicted_s

    images = 4 * 512 * 3 * convnets.graph_of("alexnet").layers[0].output_shape[1] ** 2
    assert seconds(data="synthetic") == seconds()
    assert seconds(data="real") - seconds() == pytest.approx(images / (15.75e9 * 0.75 / 2))
    stored = {"storage_MBps": "200", "sample_kB": "110"}
    assert seconds(data="real", **stored) == pytest.approx(8 * 512 * 110e3 / 200e6)
    assert seconds(data="real", **{**stored, "storage_MBps": "2000"}) == seconds(data="real")


# --- Parameter servers against sums by hand -----------------------------------------------------------------------------------------------


DEVICE = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
CLUSTER = Cluster(
    name="c",
    groups=(DeviceGroup(device=DEVICE),),
    levels=(
        Level(name="board", size=2, bandwidth_bytes_per_s=12e9, latency_s=0.0),
        Level(name="node", size=4, bandwidth_bytes_per_s=10e9, latency_s=0.0, efficiency=0.5, shared_by=2),
        Level(name="network", size=None, bandwidth_bytes_per_s=0.125e9, latency_s=1e-3, efficiency=0.8, shared_by=8),
    ),
)


@pytest.mark.parametrize(
    ("workers", "seconds"),
    [
        (1, 0.0),  # the weights are beside the worker
        (8, 0.2),  # 1 GB at half of 10 GB/s
        (16, 0.2 + 0.5 / 0.8),  # and half of it over 1 GB/s of a node at 80 %
        (64, 0.2 + 0.875 / 0.8),  # seven eighths
    ],
)
def test_weights_move_over_the_slowest_link_of_a_node_and_over_its_network(workers: int, seconds: float) -> None:
    assert server_transfer_s(1e9, workers, CLUSTER) == pytest.approx(seconds)


def test_only_a_network_adds_latency() -> None:
    assert server_round_trip_s([1, 8, 16], CLUSTER).tolist() == [0.0, 0.0, 2e-3]
