"""Facts of software that rows do not state."""

from __future__ import annotations

import pytest

from planner.validation.facts import computed_positions, gradient_bytes
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
