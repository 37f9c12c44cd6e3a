"""Uneven experts: the rank that gets most tokens decides, by draws, by hand, and as published pairs of runs have it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from costmodel.mesh.communication import domain_share
from costmodel.mesh.memory import kept_load
from costmodel.mesh.plan import MeshCosts, MeshPlan
from costmodel.network.layers.mixture import MixtureParams, fullest_rank
from tests.costmodel.mesh import plans as make
from tests.strategies.mesh.networks import decoder

H, S, EXPERTS, RATE = 64, 32, 8, 1e9
PLAN = MeshPlan(ep=4, dp_shard=4, zero_stage=1, micro_batch=2, num_micro_batches=2)


def _loads(draws: int, *shape: int) -> np.ndarray:
    """Loads of experts that differ by half of their mean, of rank after rank."""
    return np.random.default_rng(3).normal(1.0, 0.5, (draws, *shape))


@pytest.mark.parametrize(("ep", "each"), [(4, 8), (8, 16), (32, 4)])
def test_the_fullest_rank_is_that_of_drawn_loads(ep: int, each: int) -> None:
    ranks = _loads(4000, ep, each).mean(axis=2)
    drawn = (ranks.max(axis=1) / ranks.mean(axis=1)).mean()
    params = MixtureParams(experts=ep * each, top_k=2, ffn=1)
    assert fullest_rank(params, np.array([ep]), 0.5)[0] - 1 == pytest.approx(drawn - 1, rel=0.1)


@pytest.mark.parametrize(("experts", "top_k", "ep"), [(8, 2, 8), (8, 2, 4), (6, 3, 3), (8, 4, 4)])
def test_no_rank_gets_more_than_all_tokens(experts: int, top_k: int, ep: int) -> None:
    """Of all choices of experts the worst, which every token makes: its experts on the fullest rank, over those on the mean rank."""
    params = MixtureParams(experts=experts, top_k=top_k, ffn=1)
    ranks = [np.bincount(np.array(chosen) * ep // experts).max() for chosen in combinations(range(experts), top_k)]
    assert fullest_rank(params, np.array([ep]), 100.0)[0] == pytest.approx(max(ranks) / (top_k / ep))


def test_nodes_are_less_uneven_than_their_ranks() -> None:
    nodes = _loads(4000, 4, 8, 8).mean(axis=3)  # of 8 ranks with 8 experts each
    fullest = [
        (found.max(axis=1) / found.mean(axis=1)).mean() - 1 for found in (nodes.mean(axis=2), nodes.reshape(4000, 32))
    ]
    assert domain_share(np.array([4.0]), np.array([32]))[0] == pytest.approx(fullest[0] / fullest[1], rel=0.1)


def test_what_a_run_keeps_at_its_peak_is_drawn_from_all_its_mixtures() -> None:
    """The fullest of the sums over 16 mixtures that eight ranks have in thousands of steps."""
    ep, each, mixtures = 8, 16, 16
    sums = np.random.default_rng(5).normal(1.0, 0.5 / math.sqrt(each * mixtures), (12_500, ep))
    load = fullest_rank(MixtureParams(experts=ep * each, top_k=2, ffn=1), np.array([ep]), 0.5)
    assert kept_load(load, np.array([ep]), mixtures)[0] - 1 == pytest.approx(sums.max() - 1, rel=0.05)


def _costs(plan: MeshPlan, **assumed: float) -> MeshCosts:
    graph = decoder(blocks=2, experts=EXPERTS, features=H, positions=S)
    cluster = make.ideal_cluster(bandwidth=RATE, peak=1e9, memory_bandwidth=1e30)
    return make.model_of(graph, plan.global_batch, cluster, replace(make.BARE, **assumed)).evaluate_plans([plan])


def _part(name: str, plan: MeshPlan, **assumed: float) -> float:
    return float(getattr(_costs(plan, **assumed), name)[0])


def test_all_wait_for_the_rank_with_most_tokens() -> None:
    """Of 8 experts on 4 ranks the fullest gets 1 + sqrt(1 / 2) x 1.05 times the mean: in its products, and in its messages."""
    beyond = math.sqrt(4 / EXPERTS) * 1.0491
    tokens = 2 * S * 2 * H * 2  # micro-batch x positions x experts per token x features x bytes
    more = _part("ep_exposed_s", PLAN, expert_spread=1.0) - _part("ep_exposed_s", PLAN)
    assert more == pytest.approx(
        beyond * 2 * 2 * 4 * (3 / 4 * tokens / RATE), rel=1e-4
    )  # 2 blocks, 2 micro-batches, 4 times
    width = _ffn()
    flop = 3 * 2 * (2 * S * 2) * H * width * 3  # three passes, of three matrices
    more = _part("compute_s", PLAN, expert_spread=1.0) - _part("compute_s", PLAN)
    assert more == pytest.approx(beyond * 2 * 2 * flop / 1e9, rel=0.02)  # and the activations


def _ffn() -> int:
    graph = decoder(blocks=2, experts=EXPERTS, features=H, positions=S)
    return next(layer.params.ffn for layer in graph.layers if layer.kind == "moe")


def test_without_expert_parallelism_every_rank_has_all_experts() -> None:
    alone = replace(PLAN, ep=1)
    for name in ("step_time_s", "memory_bytes"):
        assert _part(name, alone, expert_spread=1.0) == _part(name, alone)


def test_a_bias_that_follows_the_loads_leaves_little() -> None:
    """A router with a bias per expert has a spread of its own; where all matrices have biases, its bias is one of them."""
    plain, biased, gpt_oss = (
        MixtureParams(experts=64, top_k=2, ffn=1, router_bias=router, bias=bias)
        for router, bias in ((False, False), (True, False), (True, True))
    )
    assert [params.is_balanced_by_bias for params in (plain, biased, gpt_oss)] == [False, True, False]


def test_what_is_dropped_bounds_the_load() -> None:
    """At most 1.25 times the mean of an expert, so of a rank; a looser bound changes nothing."""
    even, most, loose, free = (
        _part("compute_s", PLAN, expert_spread=s, expert_capacity=c)
        for s, c in ((0.0, 0.0), (1.0, 1.25), (1.0, 9.0), (1.0, 0.0))
    )
    assert most - even == pytest.approx(0.25 / (math.sqrt(4 / EXPERTS) * 1.0491) * (free - even), rel=1e-4)
    assert loose == free


@pytest.mark.parametrize("ep", [1, 4])
def test_padded_experts_compute_their_capacity_whatever_they_get(ep: int) -> None:
    plan = replace(PLAN, ep=ep)
    padded = {"expert_capacity": 1.5, "expert_padding": 1.0}
    found = [_costs(plan, expert_spread=s, **padded) for s in (0.0, 2.0)]
    assert found[0].step_time_s[0] == found[1].step_time_s[0]
    flop = 3 * 2 * (2 * S * 2) * H * _ffn() * 3
    more = float(found[0].compute_s[0]) - _part("compute_s", plan)
    assert more == pytest.approx(0.5 * 2 * 2 * flop / 1e9, rel=0.02)
    assert float(found[0].ep_exposed_s[0]) == pytest.approx(1.5 * _part("ep_exposed_s", plan), rel=1e-9)


def test_padded_experts_wait_for_no_counts() -> None:
    waits = {"host_launch_s": 1e-5, "expert_capacity": 1.0}
    assert _part("step_time_s", PLAN, **waits) > _part("step_time_s", PLAN, **waits, expert_padding=1.0)


@pytest.mark.parametrize("spread", [0.5, 3.0])
def test_a_node_gets_no_token_twice(spread: float) -> None:
    """8 ranks of one expert on 2 nodes, 2 experts per token: 1.5 copies, the fullest node more than half of them, at most all tokens."""
    plan = MeshPlan(ep=8, dp_shard=8, zero_stage=1)
    graph = decoder(blocks=2, experts=EXPERTS)
    cluster = make.ideal_nodes(4, inside=1e15)
    even, uneven = (
        make.model_of(graph, 8, cluster, replace(make.BARE, expert_spread=s, node_copies=0.0))
        .evaluate_plans([plan])
        .ep_exposed_s[0]
        for s in (0.0, spread)
    )
    fullest = 1 + spread * math.sqrt(2 / EXPERTS) * 0.5895
    assert uneven / even == pytest.approx(min(fullest, 2 / 1.5), rel=1e-3)


def test_a_rank_gets_no_token_twice() -> None:
    """2 ranks with 4 experts each, 2 experts per token: 1.5 copies; however uneven, the fullest rank gets each token once."""
    graph = decoder(blocks=2, experts=EXPERTS)
    plan = MeshPlan(ep=2, dp_shard=2, zero_stage=1)
    once, most, copies = (
        make.model_of(graph, 2, make.ideal_cluster(), replace(make.BARE, expert_spread=s, node_copies=n))
        .evaluate_plans([plan])
        .ep_exposed_s[0]
        for s, n in ((0.0, 0.0), (9.0, 0.0), (0.0, 1.0))
    )
    assert once / copies == pytest.approx(1.5 / 2, rel=1e-9)
    assert most == pytest.approx(copies, rel=1e-9)  # 2 ranks x 1 token
