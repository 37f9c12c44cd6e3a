"""What the columns of plan-level rows mean, and what is taken where they are empty; `docs/measurements.md` has the list."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from costmodel.framework import Attention, Defaults, Framework
from planner.files.naming.frameworks import framework_of
from planner.measurements.tables import Row, RowSkipped

__all__ = [
    "defaults_of",
    "flash_attention",
    "framework_default",
    "framework_of_row",
    "gradient_bytes",
    "has_dropout",
    "is_narrow_throughout",
    "measured_bytes",
    "plausible_bytes",
]


def framework_of_row(row: Row) -> Framework:
    """The framework that a row names, with the attention kernels that it states.

    >>> framework_of_row(Row(line=2, cells={"framework": "llm-foundry", "attention_kernels": "newest"})).attention
    'newest'
    """
    found, stated = framework_of(row.text("framework")), row.text("attention_kernels")
    return replace(found, attention=next(kind for kind in get_args(Attention) if kind == stated)) if stated else found


def defaults_of(row: Row) -> Defaults:
    """What the framework of a row does unless told otherwise."""
    return framework_of_row(row).defaults


def framework_default(row: Row, column: str, usual: bool | None, otherwise: bool) -> bool:
    """A flag: its column, else what the framework does, else ``otherwise``."""
    stated = row.flag(column)
    if stated is not None:
        return stated
    return bool(row.default(column, int(otherwise if usual is None else usual)))


def measured_bytes(row: Row, capacity_bytes: float) -> float | None:
    """Measured memory; None where nothing is stated.

    Raises
    ------
    RowSkipped
        More than the device has: other numbers of the row may be in a wrong unit, too.
    """
    memory = row.number("memory_gib")
    if memory is not None and memory * 2**30 > capacity_bytes:
        raise RowSkipped("memory above that of the device: wrong unit?")
    return None if memory is None else memory * 2**30


# No cost model is off by this much; a share of the device, or TB for GB, is.
_LEAST_MEMORY = 0.1


def plausible_bytes(row: Row, measured: float | None, predicted: float) -> float | None:
    """Measured memory, unless it is so far below what is predicted that its unit must be another one: then nothing, which is counted.

    >>> row = Row(line=2, cells={"memory_gib": "0.62"})
    >>> plausible_bytes(row, 0.62 * 2**30, 50 * 2**30), row.defaults
    (None, {'memory_gib': 'far below the prediction: wrong unit?'})
    """
    if measured is not None and measured < _LEAST_MEMORY * predicted:
        row.default("memory_gib", "far below the prediction: wrong unit?")
        return None
    return measured


def flash_attention(row: Row, number_format: str) -> bool:
    """Whether attention is fused: where nothing is stated, in bf16 and narrower ones (software since 2022), else not."""
    stated = row.flag("flash_attention")
    return row.default("flash_attention", number_format in ("bf16", "fp8", "fp4")) if stated is None else stated


def has_dropout(row: Row, style: str, *, fused: bool) -> bool:
    """Whether hidden states are dropped: in GPT and BERT with attention written out, and in GPT where the framework's recipes do.

    >>> rows = [Row(line=2, cells={"framework": name}) for name in ("megatron-bridge", "")]
    >>> [has_dropout(row, "gpt", fused=True) for row in rows]
    [True, False]
    """
    stated = row.flag("dropout")
    if stated is not None:
        return stated
    if style == "gpt" and fused and defaults_of(row).drops_hidden_states:
        return row.default("dropout", True)
    return not fused and style in ("gpt", "bert")


def gradient_bytes(row: Row, number_format: str) -> float:
    """Bytes per weight of the gradients that accumulate and travel.

    Where nothing is stated: 2 in fp16 (Megatron-LM accumulates in fp32 by default with bf16 only), without a copy of the weights in 32 bits
    and in NeMo's recipes; else 4.
    """
    stated = row.count("gradient_bits")
    if stated is not None:
        return stated / 8.0
    if number_format == "fp16" or is_narrow_throughout(row):
        return 2.0
    return defaults_of(row).gradient_bytes or 4.0


def is_narrow_throughout(row: Row) -> bool:
    """Whether weights, gradients and optimizer state are kept in 16 bits alone.

    >>> [is_narrow_throughout(Row(line=2, cells=cells)) for cells in ({"master_weights": "no"}, {"framework": "torchtune"}, {})]
    [True, True, False]
    """
    stated = row.flag("master_weights")
    return defaults_of(row).narrow_weights if stated is None else not stated
