"""Facts of software that rows do not state."""

from __future__ import annotations

import pytest

from planner.validation.facts import computed_positions, gradient_bytes, has_dropout, trains_adapters_only
from planner.validation.tables import Row

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
