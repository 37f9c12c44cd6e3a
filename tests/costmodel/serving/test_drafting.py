"""Drafted tokens against simulations that share nothing with the closed form but the times of passes, by hand, and as published."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from costmodel.serving.drafting import joining_matrix
from costmodel.serving.model import ServingModel
from costmodel.serving.plan import ServingBatch, ServingPlan
from costmodel.serving.pools import prefill_memory, transfers
from costmodel.serving.workload import Arrivals, Drafting, ServingError
from planner.importers.networks import load_model
from tests.costmodel.serving.servers import NO_OVERHEAD, P, costs_of, large, model

DRAFTS = {"blocks": 2, "features": 1024, "heads": 8, "kv_heads": 8, "ffn": 4096}


def drafting(found: ServingModel, acceptance: float, drafter: str = "ngram", **changes: int) -> ServingModel:
    """The same server, for which tokens are drafted."""
    graph = large(**changes) if drafter == "network" else None
    drafts = Drafting(acceptance=acceptance, drafter=drafter, graph=graph)  # type: ignore[arg-type]
    return ServingModel.build(replace(found.workload, drafting=drafts), found.cluster, found.assumptions)


def accepted(draw: random.Random, acceptance: float, drafted: int) -> int:
    """Tokens that one pass makes."""
    count = 1
    while count <= drafted and draw.random() < acceptance:
        count += 1
    return count


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.8, 1.0])
def test_tokens_of_a_pass_are_those_of_random_drafts(acceptance: float) -> None:
    draw, found = random.Random(1), Drafting(acceptance=acceptance)
    for drafted in (0, 1, 4):
        numbers = np.array([accepted(draw, acceptance, drafted) for _ in range(20_000)])
        (mean,), (varies,) = found.tokens_per_pass(np.array([drafted])), found.variation(np.array([drafted]))
        assert mean == pytest.approx(numbers.mean(), rel=0.02)
        assert varies == pytest.approx(numbers.var() / numbers.mean() ** 2, rel=0.05, abs=1e-9)


@pytest.mark.parametrize("acceptance", [-0.1, 1.1, float("nan")])
def test_an_acceptance_is_a_share(acceptance: float) -> None:
    with pytest.raises(ServingError, match="from 0 to 1"):
        Drafting(acceptance=acceptance)


def simulated(places: int, tokens: int, drafted: int, acceptance: float, times: Sequence[float]) -> tuple[float, float]:
    """Seconds per later token and requests per second of a full server that reads prompts in passes of their own."""
    draw, (decode_s, prefill_s) = random.Random(places), times
    left, since = [tokens - n * tokens // places for n in range(places)], [0.0] * places
    clock, ended, spent = 0.0, 0, 0.0
    while ended < 60 * places:
        clock += decode_s
        for n in range(places):
            left[n] -= accepted(draw, acceptance, drafted)
        for n in [n for n in range(places) if left[n] <= 0]:
            spent, ended = spent + clock - since[n], ended + 1
            clock += prefill_s
            left[n], since[n] = tokens, clock
    return spent / ended / tokens, ended / clock


@pytest.mark.parametrize(("places", "drafted", "acceptance"), [(1, 3, 0.8), (8, 1, 0.9), (16, 5, 0.6)])
def test_a_full_server_drafts_as_a_simulation_does(places: int, drafted: int, acceptance: float) -> None:
    output = 401
    found = drafting(model(large(), prompt=256, output=output), acceptance)
    costs = costs_of(found, P(max_batch=places, draft_tokens=drafted))
    prefill_s = sum(float(getattr(costs, f"prefill_{name}_s")[0]) for name in ("compute", "tp", "ep", "pp", "host"))
    token_s, rate = simulated(places, output - 1, drafted, acceptance, (float(costs.decode_pass_s[0]), prefill_s))
    assert float(costs.tpot_s[0]) == pytest.approx(token_s, rel=0.03)
    assert float(costs.requests_per_s[0]) == pytest.approx(rate, rel=0.03)


@pytest.mark.parametrize("tp", [1, 4])
@pytest.mark.parametrize("drafted", [1, 4])
def test_a_pass_that_verifies_reads_caches_once(tp: int, drafted: int) -> None:
    """It is one of b (K + 1) sequences, which would read b K caches more."""
    found = drafting(model(large(), prompt=2048, output=64), 0.5)
    verify = float(costs_of(found, P(tp=tp, max_batch=2, draft_tokens=drafted)).decode_pass_s[0])
    plain = float(costs_of(found, P(tp=tp, max_batch=2 * (drafted + 1))).decode_pass_s[0])
    cache_bytes = 4 * 2 * (8 // tp) * 128 * 2 * (2048 + 32)  # blocks, keys and values, heads, width, bf16, positions
    assert plain - verify == pytest.approx(2 * drafted * cache_bytes / 1e12, rel=1e-6)


def test_a_network_drafts_one_token_after_the_other() -> None:
    found = model(large(), prompt=256)
    small = model(large(**DRAFTS), prompt=256)
    plan = P(tp=2, max_batch=2, draft_tokens=4)
    drafted_s, verified_s = (
        float(costs_of(drafting(found, 0.5, drafter, **DRAFTS), plan).decode_pass_s[0])
        for drafter in ("network", "ngram")
    )
    each_s = float(costs_of(small, P(tp=2, max_batch=2)).decode_pass_s[0])
    assert drafted_s - verified_s == pytest.approx(4 * each_s, rel=0.02)
    # Its weights and its cache lie beside the network's.
    with_it, without, alone = (
        costs_of(one, plan if one is not small else replace(plan, draft_tokens=0))
        for one in (drafting(found, 0.5, "network", **DRAFTS), drafting(found, 0.5), small)
    )
    for name in ("weight_bytes", "kv_bytes", "sequence_bytes"):
        assert getattr(with_it, name)[0] == pytest.approx(getattr(without, name)[0] + getattr(alone, name)[0])


def test_a_network_that_cannot_be_split_drafts_on_every_rank() -> None:
    found, narrow = model(large(), prompt=256), DRAFTS | {"heads": 2, "kv_heads": 2}
    plan = P(tp=4, max_batch=2, draft_tokens=1)
    added = [
        float(costs_of(drafting(found, 0.5, drafter, **narrow), plan).weight_bytes[0])
        for drafter in ("network", "ngram")
    ]
    alone = costs_of(model(large(**narrow), prompt=256), P(max_batch=2))
    assert added[0] - added[1] == pytest.approx(float(alone.weight_bytes[0]))


def test_the_own_layer_is_one_more_block_and_a_matrix() -> None:
    found = model(large(), prompt=256)
    plan, deeper = P(tp=2, max_batch=2, draft_tokens=1), model(large(blocks=5), prompt=256)
    own, plain = (costs_of(drafting(found, 0.5, drafter), plan) for drafter in ("mtp", "ngram"))
    block = costs_of(deeper, P(tp=2, max_batch=2)), costs_of(found, P(tp=2, max_batch=2))
    matrix_bytes = 2 * 4096 * 4096 * 2
    assert own.weight_bytes[0] - plain.weight_bytes[0] == pytest.approx(
        block[0].weight_bytes[0] - block[1].weight_bytes[0] + matrix_bytes
    )
    assert own.kv_bytes[0] - plain.kv_bytes[0] == pytest.approx(block[0].kv_bytes[0] - block[1].kv_bytes[0])


@pytest.mark.published
def test_the_own_layer_of_deepseek_v3_has_its_published_weights() -> None:
    """11.5 billion that are its own (deepseek-ai/DeepSeek-V3, README_WEIGHTS.md)."""
    graph = load_model("deepseek-v3").graph
    last = [*graph.blocks][-1]
    block = sum(layer.weight_count + layer.norm_count for layer in graph.layers if layer.block == last)
    assert block + joining_matrix(graph).weight_count == pytest.approx(11.5e9, rel=0.01)


@pytest.mark.parametrize("drafter", ["ngram", "mtp", "network"])
def test_nothing_changes_where_nothing_is_drafted(drafter: str) -> None:
    found = model(large(), prompt=256, assumptions=replace(NO_OVERHEAD, kernel_overhead_s=1e-6))
    batch = ServingBatch.from_plans(
        [P(max_batch=4), P(tp=2, pp=2, max_batch=8, prefill_chunk=128), P(max_batch=4, prefill_dp=1)]
    )
    one, other = found.evaluate(batch), drafting(found, 0.9, drafter, **DRAFTS).evaluate(batch)
    for name, values in one.columns().items():
        assert np.array_equal(values, getattr(other, name)), name


def test_few_requests_at_a_rate_get_their_tokens_alone() -> None:
    found = drafting(model(large(), prompt=256, output=257), 0.8, "mtp")
    quiet = replace(found, workload=replace(found.workload, arrivals=Arrivals(1e-4)))
    alone, full = (costs_of(one, P(max_batch=8, draft_tokens=3)) for one in (quiet, found))
    single = costs_of(found, P(max_batch=1, draft_tokens=3))
    assert alone.tpot_s[0] == pytest.approx(single.decode_pass_s[0] / 2.952, rel=1e-3)
    assert full.tpot_s[0] > alone.tpot_s[0]
    parts = sum(getattr(alone, f"decode_{name}_s")[0] for name in ("compute", "tp", "ep", "pp", "host"))
    assert parts * 2.952 == pytest.approx(alone.decode_pass_s[0])


@pytest.mark.parametrize("rate", [None, 1e-4])
def test_replicas_of_two_pools_draft(rate: float | None) -> None:
    """One request in flight: its passes, one after the other, behind the transfer of its cache."""
    found = drafting(model(large(), prompt=256, output=401), 0.8)
    found = replace(found, workload=replace(found.workload, arrivals=None if rate is None else Arrivals(rate)))
    costs = costs_of(found, P(max_batch=1, prefill_dp=1, draft_tokens=3))
    passes = 400 / 2.952
    assert costs.tpot_s[0] * 400 == pytest.approx(400 * costs.transfer_s[0] + passes * costs.decode_pass_s[0], rel=0.01)
    alone = costs_of(found, P(max_batch=1, draft_tokens=3))
    assert costs.decode_pass_s[0] == pytest.approx(alone.decode_pass_s[0])
    assert costs.tpot_p99_s[0] > costs.tpot_p50_s[0]


@pytest.mark.parametrize(("plan", "words"), [(P(pp=2, max_batch=4, draft_tokens=1), "one stage")])
def test_rules_of_drafted_tokens(plan: ServingPlan, words: str) -> None:
    from costmodel.serving.plan import broken_serving_rules

    assert words in "; ".join(broken_serving_rules(model(large()).shape, plan))


@pytest.mark.parametrize(("drafted", "acceptance"), [(1, 0.9), (4, 0.7)])
@pytest.mark.parametrize("rate", [None, 1e-4])
def test_percentiles_are_those_of_random_passes(drafted: int, acceptance: float, rate: float | None) -> None:
    """Of requests that meet nobody: passes until 200 tokens have come."""
    found = drafting(model(large(), prompt=256, output=201), acceptance)
    arrivals = None if rate is None else Arrivals(rate)
    found = replace(found, workload=replace(found.workload, arrivals=arrivals))
    costs, draw = costs_of(found, P(draft_tokens=drafted)), random.Random(3)
    times = []
    for _ in range(4000):
        made = passes = 0
        while made < 200:
            made, passes = made + accepted(draw, acceptance, drafted), passes + 1
        times.append(passes * float(costs.decode_pass_s[0]) / 200)
    for share in (50, 90, 99):
        assert float(getattr(costs, f"tpot_p{share}_s")[0]) == pytest.approx(np.percentile(times, share), rel=0.02)
    assert costs.tpot_p99_s[0] > costs.tpot_p50_s[0]


@pytest.mark.parametrize("tp", [1, 2])
def test_workers_that_read_prompts_read_them_for_the_drafter(tp: int) -> None:
    """By the same models: a prompt takes the pass of the network and that of the drafter, both are held, and both caches are sent."""
    target, small = model(large()), model(large(**DRAFTS))
    found = drafting(target, 0.8, "network", **DRAFTS)
    plan = P(tp=tp, prefill_tp=tp, prefill_dp=1, max_batch=1)
    plain, alone, both = costs_of(target, plan), costs_of(small, plan), costs_of(found, replace(plan, draft_tokens=1))
    assert both.prefill_compute_s[0] == pytest.approx(plain.prefill_compute_s[0] + alone.prefill_compute_s[0], rel=1e-9)
    assert costs_of(found, plan).ttft_s[0] == plain.ttft_s[0]  # where nothing is drafted

    def pool(server: ServingModel, drafted: int) -> tuple[float, float, float]:
        batch = ServingBatch.from_plans([replace(plan, draft_tokens=drafted)])
        items, _ = prefill_memory(server, batch)
        return float(items["weight_bytes"][0]), float(items["kv_bytes"][0]), float(transfers(server, batch).seconds[0])

    weights, caches, sent = np.array([pool(found, 1), pool(target, 0), pool(small, 0)]).T
    assert weights[0] == pytest.approx(weights[1] + weights[2])
    assert caches[0] == pytest.approx(caches[1] + caches[2])
    assert sent[1] < sent[0] <= sent[1] + sent[2]


def test_workers_that_read_for_a_drafter_have_one_stage() -> None:
    from costmodel.serving.plan import broken_serving_rules

    words = "; ".join(
        broken_serving_rules(model(large()).shape, P(prefill_dp=1, prefill_pp=2, max_batch=4, draft_tokens=1))
    )
    assert "the drafter reads prompts in one stage (prefill pp 1)" in words
    assert not broken_serving_rules(model(large()).shape, P(prefill_dp=1, prefill_pp=2, max_batch=4))
