"""Bundled transformers against published parameter counts, operation counts and layouts."""

from __future__ import annotations

import csv
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.network.graph import Graph
from costmodel.network.layers import Layer, Shard
from planner.files.resources import bundled
from planner.importers.networks import load_model
from tests.cases import mostly

NAMES = sorted(
    name
    for name, path in bundled("models").items()
    if re.search(r"(self|latent)_attention\b", path.read_text(encoding="utf-8"))
)
_ATTENTION = {"self_attention", "latent_attention"}


@cache
def graph(name: str, seq: int | None = None) -> Graph:
    return load_model(name, seq=seq).graph


def layers_of(name: str, kind: str) -> list[Layer]:
    return [layer for layer in graph(name).layers if layer.kind == kind]


def forward_flop(net: Graph) -> float:
    """Forward operations of the matrix products, for one sample on one worker."""
    total = 0.0
    for layer in net.layers:
        one = np.ones(1)
        channels = np.array([float(layer.output_shape[0])])
        inputs = np.array([float(layer.input_shapes[0][0] if layer.input_shapes else 1)])
        rows = np.array([float(layer.output_shape[1])]) if len(layer.output_shape) == 3 else one
        shard = Shard(
            batch=one,
            out_channels=channels,
            in_channels=inputs,
            height=rows,
            split_out=one,
            split_in=one,
            split_height=one,
        )
        forward = layer.family.work(layer, shard).forward
        if forward:
            total += sum(float(np.ravel(k.flop)[0]) for k in forward[0] if k.gemm is not None)
    return total


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "vocabulary"),
    [
        ("gpt3-1.3b", 24, 2048, 50257),
        ("gpt3-13b", 40, 5120, 50257),
        ("gpt3-175b", 96, 12288, 50257),
        ("megatron-22b", 48, 6144, 51200),
        ("megatron-530b", 105, 20480, 51200),
        ("megatron-1t", 128, 25600, 51200),
    ],
)
def test_parameters_and_operations_by_formula(name: str, layers: int, hidden: int, vocabulary: int) -> None:
    """Narayanan et al. (arXiv:2104.04473), equation 2 for the parameters and equation 3 for the operations.

    ``P = 12 l h^2 (1 + 13 / 12h + (V + s) / 12lh)``; ``F = 96 B s l h^2 (1 + s / 6h + V / 16lh)`` counts the forward pass four times
    in the layers (it is run again) and three times in the logits. Fused attention computes half of the scores only.
    """
    s = 2048
    parameters = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (vocabulary + s) / (12 * layers * hidden))
    # The formula leaves the last normalisation out.
    assert graph(name).weight_count == pytest.approx(parameters + 2 * hidden, rel=1e-12)
    attention = layers_of(name, "self_attention")[0].params
    seen = 0.5 if attention.fused else 1.0
    in_layers = 24 * s * layers * hidden**2 * (1 + seen * s / (6 * hidden))
    assert forward_flop(graph(name)) == pytest.approx(in_layers + 2 * s * hidden * vocabulary, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("mixtral-8x7b", 12.9),  # arXiv:2401.04088, section 1: 13B active; model card 12.9B
        ("qwen3-30b-a3b", 3.3),  # model card
        ("qwen3-235b-a22b", 22.0),  # the same
        ("mixtral-8x22b", 39.1),  # Mistral AI, Mixtral 8x22B: 39B active
        ("qwen1.5-moe-a2.7b", 2.7),  # model card
        ("deepseek-v2", 21.0 + 0.4),  # arXiv:2405.04434: 21B; and half of the two vocabulary matrices, as below
        ("kimi-k2", 32.6),  # arXiv:2507.20534, table 2
        ("dbrx", 36.0),  # Databricks: 36B
        ("deepseek-v3", 36.6 + 0.9),  # README_WEIGHTS.md: 36.6B with the output head; and the embedding, 129,280 x 7168
    ],
)
def test_active_parameters(name: str, billions: float) -> None:
    """A token passes top_k of the routed experts, and everything else."""
    idle = sum(
        one.expert_count * (1 - one.params.top_k / one.params.experts) for one in graph(name).layers if one.expert_count
    )
    assert (graph(name).weight_count - idle) / 1e9 == pytest.approx(billions, rel=0.02)


@mostly("published", "name", NAMES, quick=8)
def test_every_transformer_has_blocks(name: str) -> None:
    """Every attention lies in a block of its own, blocks are numbered without gaps, and equal blocks are equal layers."""
    net = graph(name)
    attention = [one for one in net.layers if one.kind in _ATTENTION]
    pairs = name.startswith("gemma2")
    assert len({one.block for one in attention}) * (2 if pairs else 1) == len(attention)
    assert all(one.name.startswith(one.block + ".") for one in net.layers if one.block)
    members: dict[str, list[Any]] = {}
    for one in net.layers:
        if one.block:
            members.setdefault(one.block, []).append((one.name.removeprefix(one.block), one.signature))
    groups: dict[str, list[str]] = {}
    for block in members:
        prefix, _, number = block.rpartition(".")
        groups.setdefault(prefix, []).append(number)
    for prefix, numbers in groups.items():
        assert numbers == [str(n + 1) for n in range(len(numbers))]
        # The first block of T5 has the biases by distance.
        second = min(2, len(numbers))  # a lone block: the dense one of DeepSeek-V2
        assert members[f"{prefix}.{second}"] == members[f"{prefix}.{len(numbers)}"]
    outside = {one.kind for one in net.layers if not one.block}
    assert {"input", "softmax"} <= outside


@mostly("published", "name", [name for name in NAMES if not name.startswith("vit-")], quick=6)
def test_the_sequence_length_can_be_changed(name: str) -> None:
    usual = load_model(name)
    assert usual.seq is not None
    short = load_model(name, seq=64)
    assert short.seq == 64
    lengths = {one.output_shape[1] for one in short.graph.layers if one.kind == "input"}
    assert 64 in lengths
    assert usual.seq not in lengths
    learned = any(one.params.max_positions == 64 for one in short.graph.layers if one.kind == "position_embedding")
    assert (short.graph.weight_count == usual.graph.weight_count) != learned


def test_tied_embeddings() -> None:
    """T5 uses one table for both sides and the output; GPT-2 for the output; Llama has two."""
    assert sum(one.tied_count for one in graph("t5-11b").layers) == 2 * 32128 * 1024
    assert sum(one.tied_count for one in graph("gpt2-1.5b").layers) == 50257 * 1600
    assert sum(one.tied_count for one in graph("llama3-8b").layers) == 0


def test_counts_of_llm_foundry_at_every_length(reference_data: Path) -> None:
    """The benchmarks' tables state parameters for lengths from 512 to 65536: positions are learned."""
    with (reference_data / "measurements" / "llm_foundry.csv").open(encoding="utf-8") as file:
        rows = {(row["model"].lower(), int(row["seq"]), float(row["params_b"])) for row in csv.DictReader(file)}
    compared = [row for row in rows if row[0] in NAMES]
    assert len(compared) > 20
    for name, seq, billions in compared:
        assert graph(name, seq).weight_count == pytest.approx(billions * 1e9, abs=0.5)


@pytest.mark.e2e
@mostly("published", "name", ["bert-large", "t5-11b", "vit-l", "deepseek-v3", "mixtral-8x7b"], quick=2)
def test_estimates(name: str, answer: Any) -> None:
    """The per-layer planner costs every kind of layer of these networks."""
    text = answer("estimate", name, "--gpus", "8", "--family", "data", "--batch", "32", "-v")
    assert "step" in text
    assert "weights" in text
