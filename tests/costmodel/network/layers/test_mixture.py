"""Mixtures of experts: operations, experts over workers, what they keep."""

from __future__ import annotations

import pytest

from tests.costmodel.network.layers.transformer_cases import flop, layer, moved, products, saved, work


def test_operations_of_a_mixture() -> None:
    """A router for every token, three products for each of its 2 experts, three for the shared one; twice that backward."""
    b, s, d, f, e, k = 3, 50, 64, 96, 8, 2
    one = layer("moe", (d, s), experts=e, top_k=k, ffn=f, shared_experts=1)
    forward = 2 * b * s * d * e + 6 * b * s * d * f * (k + 1)
    result = work(one, batch=b)
    assert flop(result.forward) == forward
    assert flop(result.backward_input) + flop(result.backward_weight) == 2 * forward


def test_experts_over_workers() -> None:
    """Tokens are spread evenly: 4 workers with 2 experts each do the work of 8 experts on one, with a quarter of the weights."""
    one = layer("moe", (64, 1024), experts=8, top_k=2, ffn=96)
    alone, shared = work(one).forward, work(one, experts=4).forward
    assert flop(shared) == flop(alone)
    assert moved(alone) - moved(shared) == pytest.approx(0.75 * one.expert_count)
    up_alone, up_shared = alone[0][3], shared[0][3]
    assert (products(up_alone), products(up_shared)) == (8, 2)
    assert (float(up_alone.gemm[0][0]), float(up_shared.gemm[0][0])) == (1024 * 2 / 8, 1024 * 2 / 2)
    # Tensor parallelism inside the experts divides their width.
    assert flop(work(one, tp=4).forward) - 2 * 1024 * 64 * 8 == pytest.approx((flop(alone) - 2 * 1024 * 64 * 8) / 4)


def test_the_fullest_worker_decides() -> None:
    even = layer("moe", (64, 1024), experts=8, top_k=2, ffn=96)
    uneven = layer("moe", (64, 1024), experts=8, top_k=2, ffn=96, capacity_factor=1.5)
    router = 2 * 1024 * 64 * 8
    assert flop(work(uneven).forward) - router == 1.5 * (flop(work(even).forward) - router)


def test_few_tokens_use_few_experts() -> None:
    """One token with 2 experts reads the weights of 2 of 64."""
    one = layer("moe", (64, 1), experts=64, top_k=2, ffn=96)
    assert moved(work(one).forward) < 64 * 64 + 2.1 * 3 * 64 * 96 + 1000


def test_what_a_mixture_keeps() -> None:
    """Per dispatched token its features, 2f before and f after the gate; per token the scores in fp32."""
    one = layer("moe", (64, 10), experts=8, top_k=2, ffn=96)
    assert saved(one, batch=3) == 3 * 10 * (2 * (64 + 3 * 96) + 2 * 8)
    shared = layer("moe", (64, 10), experts=8, top_k=2, ffn=96, shared_experts=1)
    assert saved(shared, batch=3) - saved(one, batch=3) == 3 * 10 * 3 * 96
