"""Layers of transformers to test, and what their work adds up to."""

from __future__ import annotations

from typing import Any

import numpy as np

from costmodel.network.graph import Graph, LayerSpec
from costmodel.network.layers import Kernel, Layer, LayerWork, Shape, Shard, family_of
from costmodel.network.layers.base import PassWork, params_from


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


def flop(passes: PassWork, *, gemm_only: bool = True) -> float:
    return sum(float(np.ravel(k.flop)[0]) for k in passes[0] if k.gemm is not None or not gemm_only) if passes else 0.0


def moved(passes: PassWork) -> float:
    return sum(float(np.ravel(k.elements)[0]) for k in passes[0]) if passes else 0.0


def products(kernel: Kernel) -> float:
    """How many equal products the kernel runs side by side."""
    m, n, k = (float(np.ravel(extent)[0]) for extent in kernel.gemm)
    return float(np.ravel(kernel.flop)[0]) / (2 * m * n * k)


def gpt_block(h: int, a: int, s: int, *, fused: bool = False, causal: bool = True) -> Graph:
    """A GPT block with dropout, as in Korthikanti et al., figure 2; its input is the network's."""
    written: list[tuple[str, str, tuple[str, ...], dict[str, Any]]] = [
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
    specs = [LayerSpec(name="x", kind="input", params=params_from("input", {"shape": (h, s)}))]
    specs += [LayerSpec(name=n, kind=k, params=params_from(k, v), inputs=i) for n, k, i, v in written]
    return Graph.build("block", specs)
