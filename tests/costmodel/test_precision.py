"""Number formats and recipes against published sizes and times, and against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, DeviceGroup
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.network.layers import Layer
from costmodel.precision import FORMATS, OPTIMIZERS, PRECISIONS, Precision
from planner.files.loading import load_device
from planner.importers.networks import load_model
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder, workload_of


def _padded(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


@pytest.mark.parametrize(
    ("name", "scales", "each"),
    # Scales of a 4096 x 14336 tensor as Transformer Engine shapes them (csrc/quantizer.cpp, get_scale_shape: padded to 128 x 4).
    [
        ("mxfp8", lambda m, k: _padded(m, 128) * _padded(k // 32, 4), 1),
        ("nvfp4", lambda m, k: _padded(m, 128) * _padded(k // 16, 4), 1),
        ("fp8_block", lambda m, k: _padded(m, 4) * (k // 128), 4),
    ],
)
def test_bytes_of_a_tensor_with_its_scales(name: str, scales: object, each: int) -> None:
    rows, columns = 4096, 14336
    own = FORMATS[name]
    expected = rows * columns * own.bits / 8 + each * scales(rows, columns)  # type: ignore[operator]
    assert own.bytes * rows * columns == expected


@pytest.mark.parametrize(
    ("model", "precision", "published"),
    # gpt-oss model card (arXiv:2508.10925): checkpoints of 60.8 GiB and 12.8 GiB.
    [("gpt-oss-120b", "w4a16-mxfp4", 60.8), ("gpt-oss-20b", "w4a16-mxfp4", 12.8)],
)
def test_weights_of_published_checkpoints(model: str, precision: str, published: float) -> None:
    known = PRECISIONS[precision]
    total = 0.0
    for layer in load_model(model).graph.layers:
        experts = float(layer.expert_count)
        total += experts * (known.stored_bytes(layer) if experts else 0.0)
        total += (layer.weight_count + layer.norm_count - experts) * 2.0
    assert total / 2**30 == pytest.approx(published, rel=5e-3)


# NVIDIA Transformer Engine, docs/examples/gemm_profiling.rst: the 12 products of a block of 4096 x 16384 features on 15,872 rows, ms
# with and without their casts. The same casts move `cast_bytes` of every operand.
_ROWS, _SIDES = 15872, ((4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096))
_CASTS = [
    ("b300", "fp8-tensorwise", 9.147 - 6.812),
    ("b300", "fp8-delayed", 7.802 - 6.812),
    ("b300", "mxfp8", 8.984 - 7.161),
    ("b300", "nvfp4", 6.453 - 3.764),
    ("h200", "fp8-tensorwise", 20.285 - 16.785),
    ("h200", "fp8-delayed", 18.978 - 16.785),
]


def _casts_ms(device: str, precision: str) -> float:
    found = load_device(device).device
    known = PRECISIONS[precision].on(found.formats, reads_both_ways=found.reads_both_ways)
    weights = sum(inputs * outputs for inputs, outputs in _SIDES)
    operands = 2 * weights + sum(2 * _ROWS * (inputs + outputs) for inputs, outputs in _SIDES)
    return 1e3 * operands * known.cast_bytes / found.stream_bytes_per_s


@pytest.mark.parametrize(("device", "precision", "published_ms"), _CASTS)
def test_casts_take_what_transformer_engine_measured(device: str, precision: str, published_ms: float) -> None:
    assert _casts_ms(device, precision) == pytest.approx(published_ms, rel=0.35)


def test_recipes_are_in_the_order_of_their_casts() -> None:
    for device in ("b300", "h200"):
        measured = [name for where, name, _ in sorted(_CASTS, key=lambda case: case[2]) if where == device]
        ours = sorted(measured, key=lambda name: _casts_ms(device, name))
        assert ours.index("fp8-delayed") == measured.index("fp8-delayed") == 0


def test_a_device_that_reads_both_ways_needs_one_copy_of_a_tensor() -> None:
    known = PRECISIONS["fp8-delayed"]
    one, two = (known.on({"fp8"}, reads_both_ways=both) for both in (True, False))
    assert (one.held_bytes, two.held_bytes, one.cast_bytes, two.cast_bytes) == (1.0, 2.0, 3.0, 4.0)
    blocks = PRECISIONS["mxfp8"]
    assert blocks.on({"mxfp8"}, reads_both_ways=True).held_bytes == blocks.held_bytes == 2 * 33 / 32


@pytest.mark.parametrize(
    ("name", "held"),
    # One copy by rows and one by columns, beside one in bf16 where the recipe keeps that; casts in each pass keep bf16 alone.
    [
        ("fp8-delayed", 2.0),
        ("fp8-rowwise", 2.0),
        ("mxfp8", 2.0625),
        ("nvfp4", 3.125),
        ("nf4", 0.5 + (1 + 4 / 256) / 64),
        # NeMo AutoModel, components/quantization/nvfp4: 0.5625 bytes per parameter; mxfp4: 4.25 bits (gpt-oss model card).
        ("nvfp4a16", 0.5625),
        ("w8a16", 1.0),
        ("mxfp4a16", 4.25 / 8),
    ],
)
def test_bytes_of_a_weight_in_memory(name: str, held: float) -> None:
    assert PRECISIONS[name].held_bytes == held


def test_a_matrix_of_transformer_engines_guide() -> None:
    """A layer of 1024 x 1024: 6 MB in training with a copy in bf16 and no transposed one, 3 MB of fp8 with both (its performance guide)."""
    million = 1024 * 1024
    blocks = PRECISIONS["fp8-blockwise"]
    assert blocks.held_bytes * million == pytest.approx((2 + 2) * million, rel=1e-3)
    assert PRECISIONS["fp8-tensorwise"].served_bytes * million == million


def _model(precision: Precision, *, lora: int = 0) -> MeshModel:
    one = make.ideal_cluster()
    peaks = {**one.device.peak_flop_per_s, "fp8": 2e12, "fp8_block": 2e12, "mxfp8": 2e12, "nvfp4": 4e12}
    device = replace(one.device, peak_flop_per_s=peaks)
    cluster: Cluster = replace(one, groups=(DeviceGroup(device=device),))
    graph = decoder(blocks=2, features=64, ffn=96, positions=16)
    if lora:
        graph = replace(graph, layers=tuple(_adapted(layer, lora) for layer in graph.layers))
    work = workload_of(graph, cluster, 8, "bf16")
    assert hasattr(work.compute, "precision")
    compute = replace(work.compute, precision=precision)  # type: ignore[type-var]
    return MeshModel.build(replace(work, precision=precision, compute=compute), cluster, make.BARE)


def _adapted(layer: Layer, rank: int) -> Layer:
    if layer.block and layer.family.takes_adapter:
        return replace(layer, lora_rank=rank)
    return replace(layer, frozen=layer.weight_count + layer.norm_count > 0)


def _weights(precision: Precision, *, lora: int = 0) -> float:
    costs = _model(precision, lora=lora).evaluate_plans([MeshPlan(micro_batch=8)])
    return float(costs.weight_bytes[0])


def test_weights_of_a_training_run_by_hand() -> None:
    """Matrices of the blocks in the recipe's copies, all else in bf16."""
    layers = _model(PRECISIONS["bf16"]).workload.graph.layers
    narrow = sum(layer.weight_count for layer in layers if layer.kind == "linear" and layer.block)
    total = _weights(PRECISIONS["bf16"])
    for name in ("fp8-delayed", "fp8-blockwise", "mxfp8", "nvfp4"):
        held = PRECISIONS[name].held_bytes
        assert _weights(PRECISIONS[name]) == pytest.approx(total + (held - 2.0) * narrow, rel=1e-12)


@pytest.mark.parametrize("name", ["nf4", "nvfp4a16", "mxfp4a16", "w8a16"])
def test_frozen_weights_in_four_or_eight_bits(name: str) -> None:
    """Half a byte, or one, and its scales in place of two; the adapters stay."""
    plain = _weights(PRECISIONS["bf16"], lora=4)
    layers = _model(PRECISIONS["bf16"], lora=4).workload.graph.layers
    narrow = sum(layer.weight_count for layer in layers if layer.kind == "linear" and layer.block)
    found = _weights(PRECISIONS[name], lora=4)
    assert found == pytest.approx(plain - (2.0 - PRECISIONS[name].held_bytes) * narrow, rel=1e-12)
    slower = [
        float(_model(PRECISIONS[one], lora=4).evaluate_plans([MeshPlan(micro_batch=8)]).compute_s[0])
        for one in ("bf16", name)
    ]
    assert slower[1] > slower[0]


def _tp_s(precision: Precision) -> float:
    plan = MeshPlan(tp=2, sequence_parallel=True, micro_batch=8)
    return float(_model(precision).evaluate_plans([plan]).tp_exposed_s[0])


def test_tensor_parallel_gathers_are_narrow_and_sums_are_not() -> None:
    """Per block and pass two gathers and two scatters: fp8 takes half off the gathers, torchao's casts nothing."""
    plain = _tp_s(PRECISIONS["bf16"])
    assert _tp_s(PRECISIONS["fp8-rowwise"]) == plain
    assert 0.5 * plain < _tp_s(PRECISIONS["fp8-delayed"]) < _tp_s(PRECISIONS["mxfp8"]) < plain


def test_a_gradient_in_blocks_travels_no_wider_than_in_bf16() -> None:
    assert PRECISIONS["mxfp8"].gathers_bytes(is_gradient=True) == 2.0
    assert PRECISIONS["nvfp4"].gathers_bytes(is_gradient=True) == 2 * 0.5625
    assert PRECISIONS["fp8-delayed"].gathers_bytes(is_gradient=True) == 1.0


@pytest.mark.parametrize("name", [name for name, known in PRECISIONS.items() if known.casts])
def test_fast_bounds_hold_under_every_recipe(name: str) -> None:
    model = _model(PRECISIONS[name].on({"fp8", "fp8_block", "mxfp8", "nvfp4", "fp32", "bf16"}))
    plans = [
        MeshPlan(dp_shard=2, zero_stage=1, micro_batch=2, num_micro_batches=2),
        MeshPlan(pp=2, vpp=1, num_micro_batches=4, micro_batch=2),
        MeshPlan(tp=2, dp_shard=2, zero_stage=3, micro_batch=2, num_micro_batches=2),
    ]
    batch = MeshBatch.from_plans(plans)
    exact = model.evaluate(batch).step_time_s
    fast = model.pipelines(batch, exact=False).makespan_s
    assert np.all(fast <= exact * (1 + 1e-9))


def test_what_a_device_cannot_compute_is_wider_and_a_server_keeps_its_weights_narrow() -> None:
    ampere = {"fp32", "tf32", "fp16", "bf16"}
    for name in ("fp8", "fp8-blockwise", "nvfp4", "int8"):
        trained, served = PRECISIONS[name].on(ampere), PRECISIONS[name].on(ampere, serves=True)
        assert (trained.compute, trained.kind, served.compute) == ("bf16", "bf16", "bf16")
        assert served.stored == PRECISIONS[name].narrow
        assert not served.casts
    assert PRECISIONS["w4a16"].on({"fp32", "fp16"}, serves=True).plain.name == "fp16"


def test_moments_in_fewer_bits() -> None:
    """Codes of both moments and a scale in fp32 for 256 or 128 of each (torchao, optim/adam.py)."""
    weights = 1 << 20
    for name, bits, block in (("adam", 32, 0), ("adam-bf16", 16, 0), ("adam-8bit", 8, 256), ("adam-4bit", 4, 128)):
        scales = weights // block * 4 if block else 0
        assert OPTIMIZERS[name].state_bytes * weights == 2 * (weights * bits // 8 + scales)
