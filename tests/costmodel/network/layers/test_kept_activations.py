"""What layers of transformers keep for the backward pass, against Korthikanti et al. (arXiv:2205.05198)."""

from __future__ import annotations

import itertools

import pytest

from costmodel.network.graph import Graph
from tests.costmodel.network.layers.transformer_cases import gpt_block, layer, saved


def kept_bytes(graph: Graph, batch: int, tp: dict[str, int]) -> float:
    """Two bytes per element of every tensor that some layer keeps as its input, once, and of what the layers keep besides.

    ``tp`` divides the channels of these layers' work and outputs.
    """
    producers = {layer.name: layer for layer in graph.layers}
    inputs = {name for one in graph.layers if one.keeps_input for name in one.inputs}
    elements = sum(batch * producers[name].output_elements / tp.get(name, 1) for name in inputs)
    elements += sum(saved(one, batch=batch, tp=tp.get(one.name, 1)) for one in graph.layers)
    return 2 * elements


@pytest.mark.parametrize(("h", "a", "s", "b"), [(64, 4, 16, 3), (6144, 64, 2048, 4), (12288, 96, 2048, 1)])
def test_activations_of_a_gpt_block(h: int, a: int, s: int, b: int) -> None:
    """Equation 1: ``s b h (34 + 5 a s / h)`` bytes without any parallelism."""
    assert kept_bytes(gpt_block(h, a, s), b, {}) == s * b * h * 34 + 5 * a * s * s * b


@pytest.mark.parametrize("t", [2, 8])
def test_activations_under_tensor_parallelism(t: int) -> None:
    """Equation 2: ``s b h (10 + 24 / t + 5 a s / (h t))``: what lies between column and row is divided."""
    h, a, s, b = 6144, 64, 2048, 4
    divided = dict.fromkeys(("qkv", "attention", "up", "gelu"), t)
    assert kept_bytes(gpt_block(h, a, s), b, divided) == pytest.approx(s * b * h * (10 + 24 / t + 5 * a * s / (h * t)))


def test_selective_recomputation_drops_the_attention() -> None:
    """Equation 6 without parallelism: 34 s b h remain when the written-out attention is run again."""
    h, a, s, b = 6144, 64, 2048, 4
    graph = gpt_block(h, a, s)
    attention = graph.layers[graph.index("attention")]
    assert attention.is_recomputable
    assert kept_bytes(graph, b, {}) - 2 * saved(attention, batch=b) == 34 * s * b * h
    names = {one.name for one in graph.layers if one.is_recomputable}
    assert names == {"norm1", "attention", "dropout1", "norm2", "gelu", "dropout2"}


def test_a_fused_attention_keeps_a_number_per_row() -> None:
    """FlashAttention-2 (arXiv:2307.08691, section 3.1): the logsumexp, fp32, per head and position."""
    h, a, s, b = 6144, 64, 2048, 4
    graph = gpt_block(h, a, s, fused=True)
    assert not graph.layers[graph.index("attention")].is_recomputable
    assert kept_bytes(graph, b, {}) == 34 * s * b * h + 4 * a * s * b


def test_logits_are_kept_in_fp32() -> None:
    """Section 4.3 of the same: ``4 s b v`` bytes."""
    assert 2 * saved(layer("softmax", (51200, 2048)), batch=3) == 4 * 2048 * 3 * 51200


@pytest.mark.parametrize("fused", [True, False])
def test_what_layers_keep_is_divided_by_the_positions(fused: bool) -> None:
    attention = layer("self_attention", (3 * 64, 96), heads=4, head_dim=16, fused=fused)
    experts = layer("moe", (64, 96), experts=4, top_k=2, ffn=32)
    for one, dropout in itertools.product((attention, experts), (layer("dropout", (64, 96)),)):
        assert saved(one, batch=2, sequence=3) == pytest.approx(saved(one, batch=2) / 3)
        assert saved(dropout, batch=2, sequence=3) == pytest.approx(saved(dropout, batch=2) / 3)
