"""Which number format a network is trained in where nobody says, and that the answer says so."""

from __future__ import annotations

import pytest

from planner.core.request import Request
from planner.question.resolve import resolve

OF_TRANSFORMERS = "default of transformers on the device"


@pytest.mark.parametrize(
    ("device", "transformer", "other"),
    [
        ("a10g", "bf16", "fp32"),  # graphics chips of Ampere and later: bf16 at twice the fp32 rate
        ("rtx-3090", "bf16", "fp32"),
        ("rtx-4090", "bf16", "fp32"),
        ("a100-80gb", "bf16", "bf16"),
        ("gaudi2", "bf16", "bf16"),
        ("mi250x-gcd", "bf16", "bf16"),
        ("cpu-xeon-8480", "bf16", "bf16"),
        ("v100-32gb", "fp16", "fp16"),
        ("t4", "fp16", "fp16"),
        ("p100", "fp32", "fp32"),  # fp16 without matrix units
        ("titan-xp", "fp32", "fp32"),
    ],
)
def test_the_default_by_device(device: str, transformer: str, other: str) -> None:
    for model, expected, source in (
        ("bert-large", transformer, OF_TRANSFORMERS),
        ("resnet50", other, "default of the device"),
    ):
        resolved = resolve(Request(model=model, device=device))
        assert resolved.setting.precision == expected
        stated = next(row for row in resolved.assumptions if row.name == "precision")
        assert (stated.value, stated.source) == (expected, source)


def test_what_is_given_is_taken() -> None:
    resolved = resolve(Request(model="bert-large", device="a10g", precision="fp32"))
    assert resolved.setting.precision == "fp32"
    assert next(row for row in resolved.assumptions if row.name == "precision").source == "given"
