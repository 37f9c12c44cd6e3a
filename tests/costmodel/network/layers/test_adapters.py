"""Frozen layers and low-rank adapters: cheaper backward passes, fewer weights to train."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.network.graph import Graph, GraphError, LayerSpec
from costmodel.network.layers import Shape
from costmodel.network.layers.base import params_from
from tests.costmodel.network.layers.cases import flop, gemm_flop, layer, saved, work


@pytest.mark.parametrize(
    ("kind", "shapes", "values"),
    [
        ("linear", ((64, 9),), {"out_features": 32}),
        ("linear", ((64, 9),), {"out_features": 32, "activation": "gelu"}),
        ("convolution", ((8, 9, 9),), {"out_channels": 8, "kernel": 3, "norm": "batch", "activation": "relu"}),
        ("deconvolution", ((8, 9, 9),), {"out_channels": 8, "kernel": 3}),
        ("embedding", ((1, 9),), {"num_embeddings": 20, "dim": 8}),
        ("position_embedding", ((8, 9),), {"max_positions": 20}),
        ("layer_norm", ((8, 9),), {}),
        ("rms_norm", ((8, 9),), {}),
        ("lstm", ((8, 9),), {"hidden": 8}),
        ("attention", ((8, 5), (6, 7)), {"units": 4}),
        ("self_attention", ((24, 9),), {"heads": 2, "head_dim": 4, "relative_buckets": 4}),
        ("to_sequence", ((8, 3, 3),), {"class_token": True}),
        ("moe", ((8, 9),), {"experts": 4, "top_k": 2, "ffn": 6}),
    ],
)
def test_frozen_layers_only_pass_the_gradient_on(kind: str, shapes: tuple[Shape, ...], values: dict[str, Any]) -> None:
    trained, frozen = layer(kind, *shapes, **values), layer(kind, *shapes, frozen=True, **values)
    assert frozen.weight_count == trained.weight_count > 0
    assert frozen.trainable_count == 0
    assert not frozen.has_weights
    before, after = work(trained, batch=2), work(frozen, batch=2)
    assert [k.flop.tolist() for k in after.forward[0]] == [k.flop.tolist() for k in before.forward[0]]
    assert after.backward_weight == ()
    # The gradient of the input needs all it needed, and no more than everything that ran before.
    least = flop(before.backward_input)
    most = least + flop(before.backward_weight)
    assert least <= flop(after.backward_input) <= most
    assert all(exchange.phase != "backward" for exchange in after.exchanges)
    if getattr(trained.params, "activation", None) == "gelu":
        assert flop(after.backward_input) == least + 2 * 9 * 32  # the activation's gradient


def test_a_frozen_matrix_lets_its_input_go() -> None:
    assert layer("linear", (64, 9), out_features=32).keeps_input
    assert not layer("linear", (64, 9), out_features=32, frozen=True).keeps_input
    assert layer("linear", (64, 9), out_features=32, lora_rank=4).keeps_input
    assert layer("layer_norm", (64, 9), frozen=True).keeps_input


def test_an_adapter() -> None:
    """Hu et al. (arXiv:2106.09685): W stays, r (I + O) weights are trained; no gradient of W."""
    b, s, i, o, r = 2, 10, 64, 32, 4
    plain, adapted = layer("linear", (i, s), out_features=o), layer("linear", (i, s), out_features=o, lora_rank=r)
    assert adapted.weight_count == plain.weight_count
    assert adapted.trainable_count == r * (i + o)
    assert adapted.has_weights
    base, thin = 2 * b * s * i * o, 2 * b * s * r * (i + o)
    result = work(adapted, batch=b)
    assert gemm_flop(result.forward) == base + thin
    assert gemm_flop(result.backward_input) + gemm_flop(result.backward_weight) == base + 2 * thin
    assert saved(adapted, batch=b) == b * s * r


def test_adapters_are_for_linear_layers() -> None:
    specs = [
        LayerSpec(name="x", kind="input", params=params_from("input", {"shape": (8, 9)})),
        LayerSpec(name="norm", kind="rms_norm", params=params_from("rms_norm", {}), inputs=("x",), lora_rank=4),
    ]
    with pytest.raises(GraphError, match="norm: type 'rms_norm' takes no adapter"):
        Graph.build("n", specs)
