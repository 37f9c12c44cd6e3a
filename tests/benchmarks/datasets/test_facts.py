"""Facts of software that rows do not state."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.datasets.cells import Cells
from benchmarks.datasets.convert import read
from benchmarks.datasets.published import dataset_of
from benchmarks.datasets.reading import Row
from planner.measurements import tables
from planner.measurements.hardware import has_dropout
from planner.measurements.networks import shape_of
from planner.measurements.parallelism import recompute_choices
from tests.benchmarks.datasets.published_rows import PLANS, canonical, gradient_bytes, run

_DLE = "NVIDIA DeepLearningExamples"


@pytest.mark.parametrize(
    ("source", "model", "seq", "positions"),
    [
        (_DLE, "BERT-Large pretrain", 512, 288),  # half of 512 is padding, and half a bin of 64 stays
        (_DLE, "BERT-Large pretrain", 128, 128),  # the first phase is not binned
        (_DLE, "GNMT", 512, 512),
        ("somebody else", "BERT-Large", 512, 512),
    ],
)
def test_only_binned_batches_leave_padding_out(source: str, model: str, seq: int, positions: int) -> None:
    row = Row(line=2, cells={"source": source, "model": model})
    cells, known = Cells(seq=str(seq)), dataset_of(row)
    if known is not None:
        known.adapt(row, cells)
    assert cells.get("computed_seq", cells["seq"]) == str(positions)


@pytest.mark.parametrize(
    ("cells", "number_format", "width"),
    [
        ({"precision": "bf16 (fp32 grad accum)"}, "bf16", 4.0),
        ({"precision": "bf16"}, "bf16", 4.0),
        ({"mp_mode": "PURE"}, "bf16", 2.0),
        ({"mp_mode": "DEFAULT"}, "bf16", 4.0),
        ({"precision": "fp16"}, "fp16", 2.0),
        ({"framework": "26.02 NeMo Container"}, "fp8", 2.0),
        ({"framework": "NeMo 24.07", "precision": "bf16, fp32 grads"}, "bf16", 4.0),
    ],
)
def test_width_of_gradients(cells: dict[str, str], number_format: str, width: float) -> None:
    assert gradient_bytes(Row(line=2, cells=cells), number_format) == width


@pytest.mark.parametrize(
    ("framework", "style", "fused", "dropped"),
    [
        ("nemo", "gpt", True, True),
        ("nemo", "llama", True, False),
        ("nemo", "nemotron", True, False),
        ("nanotron", "gpt", True, False),
        ("megatron-lm", "gpt", False, True),
        ("", "bert", False, True),
        ("", "llama", False, False),
    ],
)
def test_hidden_states_are_dropped_where_recipes_do(framework: str, style: str, fused: bool, dropped: bool) -> None:
    row = tables.Row(line=2, cells={"framework": framework})
    assert has_dropout(row, style, fused=fused) == dropped
    assert bool(row.defaults) == (dropped and fused)


@pytest.mark.parametrize(
    ("cells", "adapters"),
    [
        # Llama 2 70B: 68.5 G weights in its blocks; 735 TFLOP over 2643 tokens are 4.06 for each, 710 over 1638 are 6.3.
        ({"tflops_per_gpu": "735", "tokens_per_s_per_gpu": "2643"}, True),
        ({"tflops_per_gpu": "710", "tokens_per_s_per_gpu": "1638"}, False),
        # What is stated counts.
        ({"tflops_per_gpu": "735", "tokens_per_s_per_gpu": "2643", "notes": "task=SFT"}, False),
        ({"notes": "task=LoRA"}, True),
        ({"tflops_per_gpu": "735"}, False),
        ({}, False),
    ],
)
def test_operations_that_are_not_counted_tell_adapters(cells: dict[str, str], adapters: bool) -> None:
    shape = {"net": "LLaMA", "hidden": "8192", "layers": "80", "heads": "64", "kv_heads": "8", "ffn": "28672"}
    raw = Row(line=2, cells={**run().row.cells, **shape, "model": "70B", **cells})
    assert ("lora_rank" in canonical(raw, PLANS.convert).cells) == adapters


def _step_ms(rows: list[tables.Row], **cells: object) -> float:
    found = [row for row in rows if all(row.text(name) == str(value) for name, value in cells.items())]
    assert len(found) == 1, cells
    return float(found[0].text("step_time_ms"))


@pytest.mark.parametrize(("tp", "micro_batch"), [(2, 1), (2, 2), (2, 4), (4, 1), (4, 4)])
def test_runs_of_vtrain_on_one_node_recompute_nothing(reference_data: Path, tp: int, micro_batch: int) -> None:
    """What a further micro-batch takes is the time of the last stage, which has the head; recomputation would slow the first one more.

    A layer is an eighth of 24 layers less 16; what is left of 16 is embedding, head and loss.
    """
    rows = [row for row in read(reference_data / "measurements" / "vtrain.csv").rows if row.text("nodes") == "1"]

    def further_ms(layers: int, pp: int) -> float:
        shape: dict[str, object] = {
            "hidden": 2048,
            "layers": layers,
            "tp": tp,
            "pp": pp,
            "dp": 1,
            "micro_batch": micro_batch,
        }
        four, eight = (_step_ms(rows, **shape, global_batch=micro_batch * count) for count in (2, 4))
        return (eight - four) / 2

    whole, fewer = further_ms(24, 1), further_ms(16, 1)
    layer_ms = (whole - fewer) / 8
    rest_ms = fewer - 16 * layer_ms
    assert 0 < rest_ms < 5 * layer_ms
    for layers in (16, 24):
        stage_ms = further_ms(layers, 2)
        assert stage_ms <= layers / 2 * layer_ms + rest_ms
        assert stage_ms < layers / 2 * layer_ms * 4 / 3  # forward, forward again and backward


def test_vtrain_on_one_node_cuts_its_vocabulary() -> None:
    cells = {
        "source": "vTrain (single-node ground truth)",
        "recompute": "full",
        "tp": "4",
        "model": "GPT",
        "net": "GPT",
        "hidden": "2048",
        "layers": "16",
        "heads": "16",
        "seq": "1024",
        "device": "a100-80gb",
        "gpus": "4",
        "micro_batch": "1",
        "step_time_ms": "100",
    }
    row = canonical(Row(line=2, cells=cells), PLANS.convert)
    shape = shape_of(row, fused=False)
    assert (shape.vocab, shape.padded) == (4 * 12564, False)
    assert recompute_choices(row, 16) == (("none", 0),)
    several = canonical(Row(line=2, cells={**cells, "source": "vTrain (multi-node ground truth)"}), PLANS.convert)
    assert shape_of(several, fused=False).padded
    assert recompute_choices(several, 16) == (("full", 16),)
