"""Facts of software that rows do not state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.measurements.facts import (
    computed_positions,
    gradient_bytes,
    has_dropout,
    trains_adapters_only,
)
from planner.measurements.networks import shape_of
from planner.measurements.recomputation import recompute_choices
from planner.measurements.tables import Row, read_table

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
    assert computed_positions(row, seq) == positions
    assert bool(row.defaults) == (positions != seq)


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
        ("NeMo 24.07 v1", "gpt", True, True),
        ("NeMo 24.07 v1", "llama", True, False),
        ("26.02 NeMo Container", "nemotron", True, False),
        ("nanotron", "gpt", True, False),
        ("Megatron-LM", "gpt", False, True),
        ("", "bert", False, True),
        ("", "llama", False, False),
    ],
)
def test_hidden_states_are_dropped_where_recipes_do(framework: str, style: str, fused: bool, dropped: bool) -> None:
    row = Row(line=2, cells={"framework": framework})
    assert has_dropout(row, style, fused=fused) == dropped
    assert bool(row.defaults) == (dropped and fused)


@pytest.mark.parametrize(
    ("cells", "adapters"),
    [
        # Llama 2 70B: 68.5 G weights in its blocks; 735 TFLOP over 2643 tokens are 4.06 for each, 710 over 1638 are 6.3.
        ({"tflops_per_gpu": 735, "tokens_per_s_per_gpu": 2643}, True),
        ({"tflops_per_gpu": 710, "tokens_per_s_per_gpu": 1638}, False),
        # What is stated counts.
        ({"tflops_per_gpu": 735, "tokens_per_s_per_gpu": 2643, "notes": "task=SFT"}, False),
        ({"notes": "task=LoRA"}, True),
        # Of experts, a token meets few.
        ({"tflops_per_gpu": 735, "tokens_per_s_per_gpu": 2643, "net": "MoE"}, False),
        ({"tflops_per_gpu": 735}, False),
        ({}, False),
    ],
)
def test_operations_that_are_not_counted_tell_adapters(cells: dict[str, object], adapters: bool) -> None:
    row = Row(line=2, cells={name: str(value) for name, value in cells.items()})
    assert trains_adapters_only(row, 68_500_000_000) == adapters


def _step_ms(rows: list[Row], **cells: object) -> float:
    found = [row for row in rows if all(row.text(name) == str(value) for name, value in cells.items())]
    assert len(found) == 1, cells
    return float(found[0].text("step_time_ms"))


@pytest.mark.parametrize(("tp", "micro_batch"), [(2, 1), (2, 2), (2, 4), (4, 1), (4, 4)])
def test_runs_of_vtrain_on_one_node_recompute_nothing(reference_data: Path, tp: int, micro_batch: int) -> None:
    """What a further micro-batch takes is the time of the last stage, which has the head; recomputation would slow the first one more.

    A layer is an eighth of 24 layers less 16; what is left of 16 is embedding, head and loss.
    """
    rows = [row for row in read_table(reference_data / "measurements" / "vtrain.csv").rows if row.text("nodes") == "1"]

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
    }
    row = Row(line=2, cells={**cells, "hidden": "2048", "layers": "16", "heads": "16", "seq": "1024"})
    shape = shape_of(row, fused=False)
    assert (shape.vocab, shape.padded) == (4 * 12564, False)
    assert recompute_choices(row, 16) == (("none", 0),)
    assert {"vocab", "recompute"} <= set(row.defaults)
    several = replace(row, cells={**row.cells, "source": "vTrain (multi-node ground truth)"})
    assert shape_of(several, fused=False).padded
    assert recompute_choices(several, 16) == (("full", 16),)
