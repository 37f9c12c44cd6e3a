"""Model FLOPs against published formulas and numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from costmodel.hardware.cluster import Cluster
from costmodel.mesh.detail import model_flops_per_step
from costmodel.workload import Workload
from planner.files.loading import load_cluster
from planner.importers.networks import load_model
from tests.strategies.mesh.networks import decoder, two_level_cluster, workload_of


@pytest.fixture(scope="module")
def h100() -> Cluster:
    return load_cluster("dgx-h100").cluster


def _bundled(name: str, cluster: Cluster) -> tuple[Workload, int]:
    """Workload, positions."""
    loaded = load_model(name)
    assert loaded.seq is not None
    return workload_of(loaded.graph, cluster, loaded.global_batch), loaded.seq


@pytest.mark.parametrize(
    ("name", "layers", "width"), [("gpt3-175b", 96, 12288), ("gpt3-1.3b", 24, 2048), ("megatron-530b", 105, 20480)]
)
def test_gpt_by_the_formula_of_megatron(name: str, layers: int, width: int, h100: Cluster) -> None:
    """Narayanan et al. (arXiv:2104.04473), section 5.1: 96 B s l h^2 (1 + s / 6h + V / 16 l h) with recomputation.

    Without it 72 instead of 96 for the layers; the head, 6 B s h V, was never recomputed. The paper counts all pairs of positions.
    """
    workload, s = _bundled(name, h100)
    b = workload.global_batch
    head = next(layer for layer in workload.graph.layers if layer.name == "head")
    vocabulary = head.output_shape[0]
    published = 72 * b * s * layers * width**2 * (1 + s / (6 * width)) + 6 * b * s * width * vocabulary
    masked = 6 * b * layers * s**2 * width  # half of the pairs, 12 B l s^2 h
    assert model_flops_per_step(workload) == pytest.approx(published - masked, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "layers", "width", "kv_width", "ffn"),
    [
        ("llama3-8b", 32, 4096, 1024, 14336),
        ("llama3-70b", 80, 8192, 1024, 28672),
        ("llama3-405b", 126, 16384, 1024, 53248),
    ],
)
def test_llama_by_hand(name: str, layers: int, width: int, kv_width: int, ffn: int, h100: Cluster) -> None:
    """6 N T of the matrices (PaLM, arXiv:2204.02311, appendix B) and half of 12 L s h per position for attention."""
    workload, s = _bundled(name, h100)
    tokens = workload.global_batch * s
    matrices = layers * (2 * width**2 + 2 * width * kv_width + 3 * width * ffn) + 128256 * width
    expected = 6 * matrices * tokens + 6 * layers * s * width * tokens
    assert model_flops_per_step(workload) == pytest.approx(expected, rel=1e-9)


def test_published_totals(h100: Cluster) -> None:
    """GPT-3: 3.14e23 for 300 billion tokens (arXiv:2005.14165, table D.1). Llama 3 405B: 3.8e25 for 15.6 trillion (arXiv:2407.21783, 1)."""
    for name, flops, tokens, per_position in (
        ("gpt3-175b", 3.14e23, 300e9, 6 * 96 * 2048 * 12288),
        ("llama3-405b", 3.8e25, 15.6e12, 6 * 126 * 8192 * 16384),
    ):
        workload, s = _bundled(name, h100)
        each = model_flops_per_step(workload) / (workload.global_batch * s)
        assert (each - per_position) * tokens == pytest.approx(flops, rel=0.012)  # both published without attention


@pytest.mark.parametrize(
    ("name", "active", "attention"),
    [
        # Attention per position: 6 L s (heads x dim) under the mask; latent attention has 192 and 128 features per head.
        ("mixtral-8x7b", 12.9e9, 6 * 32 * 4096 * 4096),
        ("qwen3-235b-a22b", 22.2e9, 6 * 94 * 64 * 128),
        ("deepseek-v3", 37.6e9, 6 * 61 * 4096 * 128 * (192 + 128) / 2),
    ],
)
def test_mixtures_count_the_experts_that_work(name: str, active: float, attention: float, h100: Cluster) -> None:
    """Active parameters as published, less the embedding, whose look-up multiplies nothing."""
    workload, s = _bundled(name, h100)
    if name.startswith("qwen"):
        attention *= s
    embedding = next(layer for layer in workload.graph.layers if layer.kind == "embedding")
    each = model_flops_per_step(workload) / (workload.global_batch * s)
    assert (each - attention) / 6 + embedding.weight_count == pytest.approx(active, rel=0.01)


def test_an_uneven_load_is_no_work() -> None:
    graph = decoder(blocks=2, experts=4)
    uneven = replace(
        graph,
        layers=tuple(
            replace(layer, params=replace(layer.params, capacity_factor=2.0)) if layer.kind == "moe" else layer
            for layer in graph.layers
        ),
    )
    even, more = (model_flops_per_step(workload_of(g, two_level_cluster(), 4)) for g in (graph, uneven))
    assert even == more


def test_inference_and_frozen_weights_count_what_they_run() -> None:
    workload = workload_of(decoder(blocks=2), two_level_cluster(), 4)
    whole = model_flops_per_step(workload)
    # Forward is a third, but for the first matrices' input gradient, which exists: the embedding is trained.
    assert model_flops_per_step(replace(workload, training=False)) == pytest.approx(whole / 3, rel=1e-12)
    assert model_flops_per_step(replace(workload, global_batch=8)) == 2 * whole
    graph = replace(workload.graph, layers=tuple(replace(layer, frozen=True) for layer in workload.graph.layers))
    assert model_flops_per_step(replace(workload, graph=graph)) == pytest.approx(whole / 3, rel=1e-12)
