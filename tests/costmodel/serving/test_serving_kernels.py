"""Kernels of a pass: experts that are hit, caches, attention of chunks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from costmodel.network.graph import Graph
from costmodel.network.layers.base import Layer
from costmodel.network.layers.mixture import MixtureParams, fullest_rank
from costmodel.serving.tables import (
    PassKeys,
    attention_kernels,
    cache_elements,
    expected_experts,
    mixture_kernels,
    query_context,
)
from costmodel.serving.workload import ServingWorkload
from tests.costmodel.network.layers.cases import layer as layer_of


def one(value: int) -> np.ndarray:
    return np.array([value], dtype=np.int64)


def keys(
    *, tp: int = 1, ep: int = 1, etp: int = 1, prompts: int = 0, chunk: int = 0, decodes: int = 0, queries: int = 1
) -> PassKeys:
    return PassKeys(
        tp=one(tp),
        ep=one(ep),
        etp=one(etp),
        prompts=one(prompts),
        chunk=one(chunk),
        decodes=one(decodes),
        queries=one(queries),
    )


def attention(positions: int = 16, heads: int = 8, kv_heads: int = 8, **params: object) -> Layer:
    features = (heads + 2 * kv_heads) * 4
    return layer_of("self_attention", (features, positions), heads=heads, kv_heads=kv_heads, head_dim=4, **params)


def latent_attention() -> Layer:
    inputs = (8 * 6, 16), (8 * 8, 16), (16 + 2, 16)
    return layer_of("latent_attention", *inputs, heads=8, nope_dim=4, rope_dim=2, value_dim=4)


def moe(**params: object) -> Layer:
    return layer_of("moe", (16, 1), experts=8, top_k=2, ffn=32, **params)


def served(prompt: int = 64, output: int = 9) -> ServingWorkload:
    return ServingWorkload(graph=Graph(name="g", layers=(), edges=()), prompt_tokens=prompt, output_tokens=output)


@pytest.mark.parametrize(
    ("experts", "top_k", "tokens", "held"), [(4, 2, 2, 2), (4, 1, 3, 4), (5, 3, 1, 5), (3, 2, 3, 1)]
)
def test_expected_experts_is_the_mean_over_all_routings(experts: int, top_k: int, tokens: int, held: int) -> None:
    choices = list(itertools.combinations(range(experts), top_k))
    routings = itertools.product(choices, repeat=tokens)
    hit = [len({e for choice in routing for e in choice if e < held}) for routing in routings]
    found = expected_experts(np.array([float(held)]), float(experts), float(top_k), np.array([float(tokens)]))
    # On the fullest rank at least one expert works.
    assert found[0] == pytest.approx(max(np.mean(hit), 1.0))


def test_a_mixture_reads_the_experts_that_are_hit_and_computes_every_token() -> None:
    layer = moe(shared_experts=1)
    kernels = mixture_kernels(layer, keys(decodes=3))
    hit = 8 * (1 - 0.75**3)
    expert, router, shared = 3 * 16 * 32, 16 * 8, 3 * 16 * 32
    assert sum(float(k.weights[0]) for k in kernels) == pytest.approx(hit * expert + router + shared)
    products = sum(float(k.kernel.flop[0]) for k in kernels if k.kernel.gemm is not None)
    assert products == pytest.approx(2 * 3 * (2 * expert + router + shared))


def test_experts_over_ranks_share_tokens_and_weights() -> None:
    """ep 4 in one replica of tp 4: a rank holds 2 experts and gets a quarter of the 2 x 64 copies, the fullest more by chance."""
    whole, share = (mixture_kernels(moe(), keys(decodes=64)), mixture_kernels(moe(), keys(tp=4, ep=4, decodes=64)))
    up = 5  # after router, choice, sorting of few and of many tokens, and dispatch
    assert float(whole[up].weights[0]) > 0
    assert float(whole[up].weights[0]) == pytest.approx(4 * float(share[up].weights[0]), rel=1e-6)
    fullest = 1 + 1.049 / np.sqrt(32)  # the largest of four normal numbers
    assert float(whole[up].kernel.flop[0]) == pytest.approx(4 / fullest * float(share[up].kernel.flop[0]), rel=1e-3)
    # Shared by 4 replicas of 64 sequences, the same experts see four times as many tokens, of which chance makes less.
    shared = mixture_kernels(moe(), keys(ep=4, decodes=64))
    more = 4 * (1 + 1.049 / np.sqrt(128)) / fullest
    assert float(shared[up].kernel.flop[0]) == pytest.approx(more * float(share[up].kernel.flop[0]), rel=1e-3)


@pytest.mark.parametrize(
    ("experts", "top_k", "tokens", "ranks"),
    [(256, 8, 8, 8), (256, 8, 64, 8), (128, 4, 16, 4), (64, 2, 200, 16), (256, 8, 32, 32)],
)
def test_the_fullest_rank_is_that_of_drawn_tokens(experts: int, top_k: int, tokens: int, ranks: int) -> None:
    """Tokens choose different experts with equal chances; the rank with most copies, and the one with most experts at work."""
    rng = np.random.default_rng(0)
    copies, awake = [], []
    for _ in range(300):
        chosen = np.argsort(rng.random((tokens, experts)), axis=1)[:, :top_k]
        loads = np.bincount(chosen.ravel(), minlength=experts).reshape(ranks, -1)
        copies.append(loads.sum(axis=1).max())
        awake.append((loads > 0).sum(axis=1).max())
    mean = tokens * top_k / ranks
    params = MixtureParams(experts=experts, top_k=top_k, ffn=1)
    fullest = float(mean * fullest_rank(params, one(ranks), 0.0, copies=np.array([mean]))[0])
    assert fullest == pytest.approx(np.mean(copies), rel=0.06)
    held, all_of = np.array([experts / ranks]), np.array([float(tokens)])
    most = expected_experts(held, float(experts), float(top_k), all_of, ranks=one(ranks))
    assert float(most[0]) == pytest.approx(np.mean(awake), rel=0.06)


@pytest.mark.parametrize(
    ("tokens", "packed", "unpacking_s", "sorting"),
    [(64, False, None, 2), (65, False, None, 4), (64, True, None, 0), (64, False, 0.0, 5)],
)
def test_tokens_are_sorted_unless_an_all_to_all_brings_them_sorted(
    tokens: int, packed: bool, unpacking_s: float | None, sorting: int
) -> None:
    """Beside router, choice, dispatch, two products, activation and combination; up to 256 tokens of four replicas in one kernel."""
    kernels = mixture_kernels(moe(), keys(ep=4, decodes=tokens), packed=np.array([packed]), unpacking_s=unpacking_s)
    assert sum(k.kernel.launches * int(k.runs[0]) for k in kernels) == 1 + 1 + sorting + 1 + 3 + 1


def test_a_token_is_cast_once_for_all_its_experts() -> None:
    """16 features of 64 tokens before dispatch, which then moves narrow rows; 2 x 64 rows of 32 features before the second product."""
    *_, up, _, down, _ = mixture_kernels(moe(), keys(decodes=64))
    assert [float(k.cast[0]) for k in (up, down) if k.cast is not None] == [64 * 16, 2 * 64 * 32]
    dispatch = next(k for k in mixture_kernels(moe(), keys(decodes=64)) if k.narrow is not None)
    assert float(dispatch.narrow[0]) == float(dispatch.kernel.elements[0]) == 3 * 64 * 16
    packed = mixture_kernels(moe(), keys(ep=4, decodes=64), packed=np.array([True]))
    assert all(float(k.cast[0]) == 0 for k in packed if k.cast is not None)


def test_cache_keeps_every_kv_head_once_and_repeats_them_over_more_ranks() -> None:
    layer = attention(kv_heads=2)
    assert cache_elements(layer, np.array([1, 2, 4, 8])).tolist() == [2 * 2 * 4, 2 * 4, 2 * 4, 2 * 4]


def test_latent_cache_is_the_compressed_vector_on_every_rank() -> None:
    layer = latent_attention()
    assert cache_elements(layer, np.array([1, 4])).tolist() == [18.0, 18.0]


def test_a_window_caps_what_a_token_sees() -> None:
    assert query_context(attention(window=10), 1000.0) == 10.0
    assert query_context(attention(), 1000.0) == 1000.0
    whole = attention_kernels(attention(), keys(decodes=1), served())[-1]
    capped = attention_kernels(attention(window=8), keys(decodes=1), served())[-1]
    per_position = 2 * 8 * 4
    assert float(whole.cached[0]) == pytest.approx((64 + 4.5) * per_position)
    assert float(capped.cached[0]) == pytest.approx(8 * per_position)


def selecting(selected: int) -> Layer:
    inputs = (8 * 6, 16), (8 * 8, 16), (16 + 2, 16), (3 * 5, 16), (5, 16), (3, 16)
    sizes = {"heads": 8, "nope_dim": 4, "rope_dim": 2, "value_dim": 4}
    return layer_of("latent_attention", *inputs, **sizes, selected=selected, index_heads=3, index_dim=5)


def test_an_indexer_scores_all_positions_and_attention_reads_what_it_picks() -> None:
    """Five sequences of 68.5 positions, of which 20 are picked; the cache has the indexer's key beside the compressed vector."""
    layer, context = selecting(20), 64 + 4.5
    _, score, pick, attention = [k for k in attention_kernels(layer, keys(decodes=5), served()) if k.runs[0]]
    assert float(score.kernel.flop[0]) == pytest.approx(2 * 5 * context * 3 * 5)
    assert float(score.cached[0]) == pytest.approx(5 * context * 5)
    assert float(pick.kernel.elements[0]) == pytest.approx(
        2 * 5 * (context + 20)
    )  # scores in 32 bits, and which they are
    assert float(attention.kernel.flop[0]) == pytest.approx(2 * 5 * 8 * 20 * (18 + 16))
    assert float(attention.cached[0]) == pytest.approx(5 * 20 * 18)
    assert cache_elements(layer, one(4)).tolist() == [18.0 + 5.0]


def test_drafted_tokens_pick_each_for_itself_and_are_scored_together() -> None:
    """Three queries per sequence: three times the work, but the indexer's keys are read once."""
    one_each, three = (
        [k for k in attention_kernels(selecting(20), keys(decodes=5, queries=queries), served()) if k.runs[0]]
        for queries in (1, 3)
    )
    for alone, together in zip(one_each, three, strict=True):
        assert float(together.kernel.flop[0]) == pytest.approx(3 * float(alone.kernel.flop[0]))
    assert float(three[1].cached[0]) == float(one_each[1].cached[0])
    assert float(three[3].cached[0]) == pytest.approx(3 * float(one_each[3].cached[0]))


def test_where_all_is_picked_attention_is_that_of_all() -> None:
    plain = attention_kernels(latent_attention(), keys(decodes=5), served())[-1]
    picked = attention_kernels(selecting(1000), keys(decodes=5), served())[-1]
    assert float(picked.kernel.flop[0]) == pytest.approx(float(plain.kernel.flop[0]))
    assert float(picked.cached[0]) == pytest.approx(float(plain.cached[0]))


@pytest.mark.parametrize("chunk", [64, 32, 16])
def test_prompts_are_read_as_if_each_token_were_decoded(chunk: int) -> None:
    """All pieces together: token n of a prompt sees n - 1/2 positions, of which at most 20 are picked."""
    kernels = [k for k in attention_kernels(selecting(20), keys(prompts=1, chunk=chunk), served()) if k.runs[0]]
    _, score, _, attention = kernels
    pieces = 64 // chunk
    assert pieces * float(score.kernel.flop[0]) == pytest.approx(2 * (64 * 64 / 2) * 3 * 5)
    assert pieces * float(attention.cached[0]) == pytest.approx((20 * 20 / 2 + 44 * 20) * 18, rel=0.02)


@pytest.mark.parametrize("chunk", [64, 32, 16, 8])
def test_chunks_compute_the_pairs_of_the_whole_prompt(chunk: int) -> None:
    entering, kernel = attention_kernels(attention(), keys(prompts=1, chunk=chunk), served())[:2]
    pieces = 64 // chunk
    assert pieces * float(kernel.kernel.flop[0]) == pytest.approx(2 * 8 * (64 * 64 / 2) * (4 + 4))
    # Piece i reads i chunks of keys and values; the mean times the pieces is their sum. Each is written once, after it was read, and
    # queries are read and written.
    read = sum(range(1, pieces + 1)) * chunk
    assert pieces * float(kernel.cached[0]) == pytest.approx(read * 2 * 8 * 4)
    assert pieces * float(entering.cached[0]) == pytest.approx(64 * 2 * 8 * 4)
    assert pieces * float(np.sum(entering.kernel.elements)) == pytest.approx(64 * (2 + 2) * 8 * 4)


def test_latent_chunks_expand_the_earlier_cache_again() -> None:
    layer = latent_attention()
    whole = attention_kernels(layer, keys(prompts=1, chunk=64), served())
    pieces = attention_kernels(layer, keys(prompts=1, chunk=16), served())
    assert not whole[2].runs[0]
    # Chunks 2, 3 and 4 see 16, 32 and 48 earlier positions; each is expanded from 16 to 8 x (4 + 4) features.
    assert 4 * float(pieces[2].kernel.flop[0]) == pytest.approx(2 * (16 + 32 + 48) * 16 * 64)
