"""Layers to test, and what their work adds up to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from costmodel.layerwise.plan import Split, SplitTable, shard_of, split_table
from costmodel.network.graph import Graph
from costmodel.network.layers import Kernel, Layer, LayerWork, Shape, Shard, family_of
from costmodel.network.layers.base import PassWork, params_from
from tests.networks import LayerRow, spec


def layer(kind: str, *shapes: Shape, frozen: bool = False, lora_rank: int = 0, **values: Any) -> Layer:
    params = params_from(kind, values)
    return Layer(
        name="l",
        kind=kind,
        params=params,
        inputs=tuple(f"i{k}" for k in range(len(shapes))),
        input_shapes=shapes,
        output_shape=family_of(kind).output_shape(params, shapes),
        frozen=frozen,
        lora_rank=lora_rank,
    )


def shard(one: Layer, batch: float = 1, tp: float = 1, sequence: float = 1, experts: float = 1) -> Shard:
    """One share, every array of length 1."""
    full = one.input_shapes[0][0] if one.input_shapes else one.output_shape[0]
    limits = one.family.limits(one)
    return Shard(
        batch=np.array([float(batch)]),
        out_channels=np.ceil(np.array([one.output_shape[0] / tp])),
        in_channels=np.ceil(np.array([full / (tp if limits.channelwise else 1)])),
        height=np.ones(1),
        split_out=np.array([float(tp)]),
        split_in=np.ones(1),
        split_height=np.ones(1),
        sequence=np.array([float(sequence)]),
        experts=np.array([float(experts)]),
    )


def work(one: Layer, **share: float) -> LayerWork:
    return one.family.work(one, shard(one, **share))


def saved(one: Layer, **share: float) -> float:
    (elements,) = one.family.saved_elements(one, shard(one, **share))
    return float(elements)


def work_of(one: Layer, batch: int, split: Split = Split()) -> LayerWork:  # noqa: B008 - immutable
    """Work of one share, every array of length 1."""
    table = split_table([split.workers])
    row = table.row_of(split)
    single = SplitTable(
        worker_counts=(split.workers,),
        offsets=(0, 1),
        workers=table.workers[row : row + 1],
        batch=table.batch[row : row + 1],
        out_channels=table.out_channels[row : row + 1],
        in_channels=table.in_channels[row : row + 1],
        height=table.height[row : row + 1],
    )
    return one.family.work(one, shard_of(one, single, batch))


def gemm_flop(alternatives: PassWork) -> float:
    """Operations of the matrix products of the first alternative, which is the plain algorithm; none without a pass."""
    return sum(float(np.ravel(k.flop)[0]) for k in alternatives[0] if k.gemm is not None) if alternatives else 0.0


def flop(alternatives: PassWork) -> float:
    return sum(float(np.ravel(k.flop)[0]) for k in alternatives[0]) if alternatives else 0.0


def passes(work: LayerWork) -> tuple[PassWork, PassWork, PassWork]:
    return work.forward, work.backward_input, work.backward_weight


def gemms(work: LayerWork) -> Iterator[Kernel]:
    for alternatives in passes(work):
        for kernels in alternatives:
            yield from (k for k in kernels if k.gemm is not None)


def moved(passes: PassWork) -> float:
    return sum(float(np.ravel(k.elements)[0]) for k in passes[0]) if passes else 0.0


def products(kernel: Kernel) -> float:
    """How many equal products the kernel runs side by side."""
    m, n, k = (float(np.ravel(extent)[0]) for extent in kernel.gemm)
    return float(np.ravel(kernel.flop)[0]) / (2 * m * n * k)


def gpt_block(h: int, a: int, s: int, *, fused: bool = False, causal: bool = True) -> Graph:
    """A GPT block with dropout, as in Korthikanti et al., figure 2; its input is the network's."""
    written: list[LayerRow] = [
        ("norm1", "layer_norm", ("x",), {}),
        ("qkv", "linear", ("norm1",), {"out_features": 3 * h}),
        (
            "attention",
            "self_attention",
            ("qkv",),
            {"heads": a, "head_dim": h // a, "fused": fused, "dropout": True, "causal": causal},
        ),
        ("proj", "linear", ("attention",), {"out_features": h}),
        ("dropout1", "dropout", ("proj",), {"keep": 0.9}),
        ("add1", "add", ("dropout1", "x"), {}),
        ("norm2", "layer_norm", ("add1",), {}),
        ("up", "linear", ("norm2",), {"out_features": 4 * h}),
        ("gelu", "activation", ("up",), {"function": "gelu"}),
        ("down", "linear", ("gelu",), {"out_features": h}),
        ("dropout2", "dropout", ("down",), {"keep": 0.9}),
        ("add2", "add", ("dropout2", "add1"), {}),
    ]
    rows = [spec(name, kind, *inputs, **params) for name, kind, inputs, params in written]
    return Graph.build("block", [spec("x", "input", shape=(h, s)), *rows])
