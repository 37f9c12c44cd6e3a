"""The serving model against hand-computed numbers, and properties."""

from __future__ import annotations

import itertools
import random
from collections import deque
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodel.framework import NO_FRAMEWORK
from costmodel.hardware.efficiency import Efficiency
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.modules import RowKeys, fold
from costmodel.mesh.rules import NetworkShape
from costmodel.mesh.tables import module_table
from costmodel.network.graph import Graph
from costmodel.precision import PRECISIONS
from costmodel.serving.plan import (
    SERVING_MEMORY_PARTS,
    TPOT_PARTS,
    TTFT_PARTS,
    ServingBatch,
    ServingCosts,
    ServingPlan,
    broken_serving_rules,
)
from costmodel.serving.tables import PassKeys
from costmodel.serving.workload import Arrivals, ServingError
from planner.files.loading import load_framework
from planner.importers.networks import load_model
from tests.cases import mostly
from tests.costmodel.serving.servers import IDEAL, NO_OVERHEAD, P, cluster, costs_of, large, model, prompt_s
from tests.networks import spec
from tests.strategies.mesh.networks import decoder, workload_of

VLLM = load_framework("vllm").framework

# -- by hand ------------------------------------------------------------------------------------------------------------


def test_one_sequence_on_one_device_reads_every_weight_once_per_token() -> None:
    """4 blocks of 4096 x 6144 + 4096 x 4096 + 3 x 4096 x 14336 and a head of 4096 x 32000; and 2 x 8 x 128 keys and values per position."""
    block = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
    weights = 2.0 * (4 * block + 4096 * 32000)
    cache = 2.0 * 4 * (2 * 8 * 128) * (512 + 32 + 1)
    tpot = float(costs_of(model(large()), P()).tpot_s[0])
    assert (weights + cache) / 1e12 <= tpot <= 1.005 * (weights + cache) / 1e12


def test_fp8_halves_the_blocks_but_not_the_head() -> None:
    block = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
    found = costs_of(model(large(), weights="fp8"), P())
    assert float(found.tpot_s[0]) == pytest.approx((4 * block + 2 * 4096 * 32000 + 2 * 4 * 2048 * 545) / 1e12, rel=0.01)
    embedding_and_norms = 2 * (4096 * 32000 + 9 * 4096)
    assert float(found.weight_bytes[0]) == 4 * block + 2 * 4096 * 32000 + embedding_and_norms


def test_prefill_of_a_compute_bound_prompt_is_two_flop_per_weight_and_token() -> None:
    block = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336
    attention = 4 * 2 * 32 * (2048 * 2048 / 2) * 2 * 128
    flop = 2.0 * 2048 * 4 * block + attention + 2 * 4096 * 32000  # the head works on the last position only
    where = cluster(peak=1e12, memory_bandwidth=1e15)
    found = costs_of(model(large(), prompt=2048, where=where), P())
    # Element-wise kernels run at the fp32 rate; their few operations per element are within a percent.
    assert float(found.ttft_s[0]) == pytest.approx(flop / 1e12, rel=0.01)


def test_tensor_parallelism_divides_the_weights_and_adds_reductions() -> None:
    """Per pass an all-reduce of 4096 x 2 bytes after the embedding and twice per block, in which 2 devices read one another: a + B/G.

    Engines wait for a flag, 0.18 of the latency, and read at 0.75 of the rate; NCCL gathers logits in LL, at 0.18 and 0.38.
    """
    one, two = (costs_of(model(large()), P(tp=tp)) for tp in (1, 2))
    assert float(two.decode_compute_s[0]) == pytest.approx(float(one.decode_compute_s[0]) / 2, rel=0.01)
    reductions = (1 + 2 * 4) * (0.18e-6 + 4096 * 2 / 75e9)
    gathered = float(two.decode_tp_s[0]) - reductions
    assert gathered == pytest.approx(0.18e-6 + 32000 / 2 * 2 / 38e9, rel=1e-3)  # the other half of the logits
    assert not one.decode_tp_s[0]
    assert not one.decode_pp_s[0]


@pytest.mark.parametrize(("tp", "exchanges"), [(1, 0), (2, 1 + 2 * 4 + 1)])
def test_every_collective_is_a_kernel(tp: int, exchanges: int) -> None:
    """The all-reduces, and the gathering of the logits."""
    waits = [replace(NO_OVERHEAD, exchange_overhead_s=s) for s in (0.0, 1.0)]
    found = [float(costs_of(model(large(), assumptions=a), P(tp=tp)).decode_tp_s[0]) for a in waits]
    assert found[1] - found[0] == pytest.approx(exchanges, rel=1e-6)


def test_products_keep_their_rate_beside_nothing() -> None:
    """What a training step exchanges beside its products (`step_fraction`) a server does not; casts and copies it has, too."""
    limited = [cluster(peak=1e12, efficiency=replace(IDEAL, step_fraction=share)) for share in (0.5, 1.0)]
    slow, full = (costs_of(model(large(), where=where), P(tp=1)).prefill_compute_s[0] for where in limited)
    assert float(slow) == float(full)


def test_casts_of_narrow_weights_are_kernels() -> None:
    """Four products of each of four blocks in fp8: what enters them is cast before."""
    kernels = replace(NO_OVERHEAD, kernel_overhead_s=1.0)
    wide, narrow = (
        float(costs_of(model(large(), assumptions=kernels, weights=weights), P(tp=1)).decode_compute_s[0])
        for weights in ("bf16", "fp8")
    )
    assert round(narrow - wide) == 4 * 4


def test_small_reductions_are_dominated_by_latency() -> None:
    slow = costs_of(model(large(), where=cluster(latency=50e-6)), P(tp=8))
    fast = costs_of(model(large(), where=cluster(latency=1e-6)), P(tp=8))
    # One flag at 0.18 of the latency and 6 more at 0.04, for each of 9 all-reduces; one step of LL and 6 more messages for the logits.
    flags = 9 * (0.18 + 6 * 0.04) + 7 * 0.18
    assert float(slow.decode_tp_s[0] - fast.decode_tp_s[0]) == pytest.approx(flags * 49e-6, rel=0.02)


def test_cache_fills_memory_linearly_in_the_batch() -> None:
    found = model(large())
    kept = [float(costs_of(found, P(max_batch=b)).kv_bytes[0]) for b in (1, 2, 10)]
    assert kept == [b * 2 * 2 * 8 * 128 * 4 * (512 + 64) for b in (1, 2, 10)]
    pages = model(large(), assumptions=replace(NO_OVERHEAD, page_tokens=100.0, output_share=0.5))
    assert float(costs_of(pages, P()).kv_bytes[0]) == 2 * 2 * 8 * 128 * 4 * 600


def test_key_value_heads_are_repeated_beyond_their_number() -> None:
    found = model(large(kv_heads=2))
    kept = [float(costs_of(found, P(tp=tp)).kv_bytes[0]) for tp in (1, 2, 4, 8)]
    assert kept[0] == 2 * kept[1] == 2 * kept[2] == 2 * kept[3]


def test_every_rank_chooses_from_all_logits() -> None:
    """Splitting the head divides its weights, but not the fp32 logits behind it: 18 bytes each are read and written in all."""
    kept = [float(costs_of(model(large()), P(tp=tp, max_batch=64)).logits_bytes[0]) for tp in (1, 8)]
    assert kept == [64 * 32000 * 4] * 2
    vast = large(blocks=1, vocabulary=512000)
    one, more = (costs_of(model(vast), P(tp=8, max_batch=b)) for b in (64, 128))
    logits = 64 * 512000 * (2 + 4 * 4)
    head = 64 * 512000 / 8 * 2  # written by the product
    assert float(more.decode_compute_s[0] - one.decode_compute_s[0]) == pytest.approx((logits + head) / 1e12, rel=0.05)


@pytest.mark.parametrize("plan", [P(max_batch=8), P(tp=2, pp=2, max_batch=8), P(max_batch=8, prefill_chunk=128)])
def test_the_host_makes_every_pass_wait(plan: ServingPlan) -> None:
    """A pass through all stages waits once; a prompt in k chunks k times; a full pipeline of two groups once per group."""
    without, slow = (
        costs_of(model(large(), assumptions=replace(NO_OVERHEAD, pass_overhead_s=s)), plan) for s in (0.0, 0.01)
    )
    pieces = 4 if plan.prefill_chunk else 1
    assert prompt_s(slow) - prompt_s(without) == pytest.approx(0.01 * pieces)
    assert float(slow.decode_pass_s[0] - without.decode_pass_s[0]) == pytest.approx(0.01)
    assert float(slow.decode_host_s[0]) == float(slow.prefill_host_s[0]) == 0.01
    reading = 8 * pieces * 0.01 if not plan.prefill_chunk else 0.01 * pieces
    assert float(slow.request_s[0] - without.request_s[0]) == pytest.approx(63 * plan.groups * 0.01 + reading, rel=0.05)


def test_stages_hold_their_blocks() -> None:
    found = costs_of(model(large(vocabulary=64)), P(pp=4, max_batch=8))
    block = 4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336 + 2 * 4096
    back = 64 * 4096 + 4096  # head and norm make the last stage the fullest
    assert float(found.weight_bytes[0]) == 2 * (block + back)
    assert float(found.kv_bytes[0]) == 8 * 2 * 2 * 8 * 128 * (512 + 64)


@pytest.mark.parametrize(
    ("pp", "tp", "rate", "latency"), [(2, 1, 100e9, 1e-6), (4, 1, 100e9, 1e-6), (2, 8, 12.5e9, 2e-6)]
)
def test_a_pass_is_handed_on_between_its_stages(pp: int, tp: int, rate: float, latency: float) -> None:
    """pp - 1 times: 4096 features of 16 bits of a prompt of 512 tokens, or of one token of each sequence of the group.

    Stages of 8 ranks fill a node each.
    """
    found = costs_of(model(large()), P(pp=pp, tp=tp, max_batch=8))
    for part, tokens in ((found.prefill_pp_s, 512), (found.decode_pp_s, 8 / pp)):
        assert float(part[0]) == pytest.approx((pp - 1) * (tokens * 4096 * 2 / rate + latency), rel=1e-9)


def test_one_output_token_needs_no_decoding() -> None:
    found = costs_of(model(large(), output=1), P(max_batch=4))
    assert not found.tpot_s[0]
    assert not found.waiting_s[0]
    assert float(found.requests_per_s[0]) == pytest.approx(1 / prompt_s(found))
    # Four are in flight, and each waits for the three before it.
    assert float(found.ttft_s[0]) == pytest.approx(4 * prompt_s(found))


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("experts", [0, 8])
def test_a_whole_prompt_costs_what_a_forward_pass_of_training_costs(tp: int, experts: int) -> None:
    """The mesh model costs the same block from other tables; it writes no cache and counts a launch per addition.

    In training the host waits for the counts of the router; kernels that serve read them on the device.
    """
    graph = large(positions=2048, experts=experts, ffn=14336 if not experts else 4096)
    where = cluster(peak=400e12, efficiency=Efficiency())
    where = where.with_device(replace(where.device, launch_overhead_s=0.0))
    found = model(graph, prompt=2048, where=where)
    row = np.array([tp], dtype=np.int64)
    one = np.ones_like(row)
    etp = row if experts else one
    ours = found.timer.passes(
        PassKeys(tp=row, ep=one, etp=etp, prompts=one, chunk=2048 * one, decodes=0 * one, queries=one)
    )
    keys = RowKeys(tp=row, sequence_parallel=0 * one, cp=one, ep=one, etp=etp, micro_batch=one, place=0 * one)
    no_waits = MeshAssumptions(expert_launches=0.0)
    theirs = module_table(workload_of(graph, where, 1), where, found.modules, keys, assumptions=no_waits)
    assert float(ours.compute_s[0, 1]) == pytest.approx(float(theirs.forward_s[0, 1]), rel=0.03)
    if not experts:
        assert float(ours.tp_s[0, 1]) == pytest.approx(float(theirs.tp_forward_s[0, 1]), rel=1e-6)


# -- properties ---------------------------------------------------------------------------------------------------------


def plans() -> st.SearchStrategy[ServingPlan]:
    return st.builds(
        P,
        tp=st.sampled_from([1, 2, 4]),
        pp=st.sampled_from([1, 2, 3, 4]),
        dp=st.sampled_from([1, 2]),
        max_batch=st.integers(4, 200),
        prefill_chunk=st.sampled_from([0, 0, 32, 100, 512]),
        prefill_batch=st.sampled_from([1, 2, 4]),
    )


REAL = Efficiency()


@given(plan=plans(), factor=st.floats(1.0, 8.0), what=st.sampled_from(["memory_bandwidth", "peak", "link"]))
def test_better_hardware_never_makes_requests_slower(plan: ServingPlan, factor: float, what: str) -> None:
    base = {"memory_bandwidth": 1e12, "peak": 100e12, "link": 20e9}
    before = costs_of(model(large(), where=cluster(**base, efficiency=REAL)), plan)
    after = costs_of(model(large(), where=cluster(**(base | {what: factor * base[what]}), efficiency=REAL)), plan)
    for name in ("ttft_s", "request_s", "decode_pass_s"):
        assert float(getattr(after, name)[0]) <= float(getattr(before, name)[0]) * (1 + 1e-9), name
    assert float(after.output_tokens_per_s[0]) >= float(before.output_tokens_per_s[0]) * (1 - 1e-9)


@given(plan=plans(), output=st.sampled_from([1, 2, 50]))
def test_parts_add_up_and_places_are_never_empty(plan: ServingPlan, output: int) -> None:
    found = costs_of(model(large(), output=output, where=cluster(peak=100e12, efficiency=REAL)), plan)
    for total, parts in (("tpot_s", TPOT_PARTS), ("ttft_s", TTFT_PARTS), ("memory_bytes", SERVING_MEMORY_PARTS)):
        summed = sum(float(getattr(found, name)[0]) for name in parts)
        assert summed == pytest.approx(float(getattr(found, total)[0]), rel=1e-9), total
    if output > 1:  # Little's law: requests in the system = rate x time in it
        assert float(found.requests_per_s[0] * found.request_s[0]) == pytest.approx(plan.concurrency)
    for item in fields(ServingCosts):
        assert np.all(np.isfinite(getattr(found, item.name))), item.name
        assert np.all(getattr(found, item.name) >= 0.0), item.name


def test_costs_of_a_batch_are_those_of_its_plans() -> None:
    found = model(large())
    several = [
        P(),
        P(tp=4, max_batch=9),
        P(pp=3, max_batch=6, prefill_chunk=100),
        P(tp=2, pp=2, max_batch=5, prefill_batch=2),
    ]
    together = found.evaluate(ServingBatch.from_plans(several))
    for n, plan in enumerate(several):
        alone = costs_of(found, plan)
        for item in fields(ServingCosts):
            assert getattr(together, item.name)[n] == getattr(alone, item.name)[0], item.name


def test_links_are_free_for_degrees_of_one() -> None:
    good, bad = (model(large(), where=cluster(link=link, latency=a)) for link, a in ((1e12, 0.0), (1e3, 1.0)))
    plan = P(dp=4, max_batch=8)
    for item in fields(ServingCosts):
        assert getattr(costs_of(good, plan), item.name)[0] == getattr(costs_of(bad, plan), item.name)[0]


def test_largest_batch_is_the_last_that_fits() -> None:
    found = model(large())
    several = [P(), P(tp=4), P(pp=2), P(pp=4, prefill_chunk=64)]
    capacity = 2.0e9
    largest = found.largest_batch(ServingBatch.from_plans(several), 5000, capacity)
    for plan, most in zip(several, largest.tolist(), strict=True):
        if most:
            assert float(costs_of(found, replace(plan, max_batch=most)).memory_bytes[0]) <= capacity
        if most < 5000:
            assert float(costs_of(found, replace(plan, max_batch=most + 1)).memory_bytes[0]) > capacity
    assert min(largest.tolist()) == 0 < max(largest.tolist())


# -- engines that preempt ------------------------------------------------------------------------------------------------


def simulated_running(room: int, prompt: int, output: int, variation: float, requests: int, seed: int) -> float:
    """Sequences that run in the mean where they are admitted while there is room, and the last that came is preempted when it is full."""
    draw = random.Random(seed)

    def length() -> int:
        return max(round(draw.gammavariate(variation**-2, output * variation**2)), 1) if variation else output

    running: list[list[int]] = []  # tokens of the answer: left, made
    waiting: list[list[int]] = []
    used = ended = passes = total = 0
    while ended < requests:
        for sequence in running:
            sequence[0] -= 1
            sequence[1] += 1
        used += len(running)
        done = [sequence for sequence in running if not sequence[0]]
        used -= sum(prompt + made for _, made in done)
        ended += len(done)
        running = [sequence for sequence in running if sequence[0]]
        while used > room:
            waiting.append(running.pop())
            used -= prompt + waiting[-1][1]
        while True:
            waiting = waiting or [[length(), 0]]
            if used + prompt + waiting[-1][1] > room:
                break
            running.append(waiting.pop())
            used += prompt + running[-1][1]
        if ended > requests // 5:
            passes, total = passes + 1, total + len(running)
    return total / passes


@mostly("fuzz", "number", range(100), quick=3)
def test_sequences_that_run_where_the_engine_preempts(number: int) -> None:
    """Memory that is full of sequences with (1 + v^2) / 2 of their answers each: an engine that reserves nothing runs as many."""
    draw = random.Random(number)
    prompt, output = draw.choice((100, 300, 1000)), draw.choice((50, 100, 200))
    variation, wanted = draw.choice((0.0, 0.5, 1.0)), draw.randint(50, 90)
    assumed = replace(NO_OVERHEAD, output_share=0.5 * (1.0 + variation**2))
    found = model(large(), prompt=prompt, output=output, assumptions=assumed)
    plan = P(max_batch=wanted)
    costs = costs_of(found, plan)
    token = 2 * 2 * 8 * 128 * 4
    room = round(float(costs.kv_bytes[0]) / token)
    assert found.largest_batch(ServingBatch.from_plans([plan]), 1000, float(costs.memory_bytes[0])).tolist() == [wanted]
    running = simulated_running(room, prompt, output, variation, 1500, number)
    assert running == pytest.approx(wanted, rel=0.08)


# -- mixtures -----------------------------------------------------------------------------------------------------------


def test_few_tokens_wake_few_experts_and_many_wake_all() -> None:
    graph = large(experts=8, ffn=4096, blocks=2)
    expert, rest = 3 * 4096 * 4096, 4096 * 6144 + 4096 * 4096 + 8 * 4096
    found = model(graph, prompt=1, output=9)
    for sequences, hit in ((1, 2.0), (3, 8 * (1 - 0.75**3))):
        weights = 2.0 * (2 * (hit * expert + rest) + 4096 * 32000)
        tpot = float(costs_of(found, P(max_batch=sequences)).decode_pass_s[0])
        assert tpot == pytest.approx(weights / 1e12, rel=0.02)


TO_EXPERTS = replace(NO_OVERHEAD, node_gathers=0.0)


def test_experts_shared_by_replicas_take_less_memory_and_trade_tokens() -> None:
    found = model(large(experts=8, ffn=4096, blocks=2), assumptions=TO_EXPERTS)
    alone, shared = costs_of(found, P(dp=4, max_batch=4)), costs_of(found, P(dp=4, ep=4, max_batch=4))
    experts = 2.0 * 2 * 8 * 3 * 4096 * 4096
    assert float(alone.weight_bytes[0] - shared.weight_bytes[0]) == pytest.approx(experts * 3 / 4)
    assert not alone.decode_ep_s[0]
    # Twice per block an all-to-all of 4 sequences x 2 experts x 4096 features, of which 3 of 4 parts leave, in NCCL's LL at 0.38 of the
    # rate. Of the latencies one message counts.
    sent = 4 * 2 * 4096 * 2.0 * 3 / 4 / 38e9
    assert float(shared.decode_ep_s[0]) == pytest.approx(2 * 2 * (sent + 3 * 0.18e-6), rel=1e-5)
    # In fp8 tokens leave in a byte per feature and return in two.
    narrow = costs_of(
        model(large(experts=8, ffn=4096, blocks=2), weights="fp8", assumptions=TO_EXPERTS),
        P(dp=4, ep=4, max_batch=4),
    )
    assert float(narrow.decode_ep_s[0]) == pytest.approx(2 * (1.5 * sent + 2 * 3 * 0.18e-6), rel=1e-5)


def test_between_sending_and_gathering_both_count_by_their_share() -> None:
    graph = large(experts=8, ffn=4096, blocks=2)
    sent, some, gathered = (
        float(
            costs_of(model(graph, assumptions=replace(NO_OVERHEAD, node_gathers=share)), P(dp=4, ep=4)).decode_ep_s[0]
        )
        for share in (0.0, 0.25, 1.0)
    )
    assert sent != pytest.approx(gathered, rel=0.01)
    assert some == pytest.approx(0.75 * sent + 0.25 * gathered)


def test_replicas_of_a_node_gather_the_tokens_of_all_and_scatter_sums() -> None:
    """Four ranks with 4 tokens of 4096 features in bf16: each gets the 12 tokens of the others, and sends as much back, in any format."""
    for weights in ("bf16", "fp8"):
        found = model(large(experts=8, ffn=4096, blocks=2), weights=weights)
        twice = 2 * (12 * 4096 * 2.0 / 100e9)
        per_block = float(costs_of(found, P(dp=4, ep=4, max_batch=4)).decode_ep_s[0]) / 2
        assert twice < per_block == pytest.approx(twice, abs=2 * 3 * 1.1e-6)  # at most three messages each way
    # Two ranks with four replicas that share: as many tokens in all as one rank with eight.
    wide = model(large(experts=8, ffn=4096, blocks=2))
    assert float(costs_of(wide, P(tp=2, dp=4, ep=8, max_batch=8)).decode_ep_s[0]) == pytest.approx(
        float(costs_of(wide, P(dp=8, ep=8, max_batch=4)).decode_ep_s[0])
    )


def test_replicas_that_share_experts_wait_for_each_others_prompts() -> None:
    """Against draws: in every pass each of four replicas reads a prompt by chance; the pass ends with the last of them."""
    graph = large(experts=8, ffn=64, blocks=2)  # experts that take no time, so that nothing but the wait is seen
    found = {
        step: model(graph, where=cluster(peak=1e12), prompt=500, output=99, assumptions=assumed)
        for step, assumed in (
            (0.0, NO_OVERHEAD),
            (1.0, replace(NO_OVERHEAD, prompts_in_step=1.0)),
        )
    }
    for plan in (
        P(dp=4, ep=4, max_batch=20, prefill_chunk=500),
        P(dp=4, ep=4, max_batch=20),
    ):
        chance = {step: float(1.0 / costs_of(m, plan).requests_per_s[0]) for step, m in found.items()}
        costs = costs_of(found[1.0], plan)
        decode = float(costs.decode_pass_s[0])
        prefill = prompt_s(costs)
        passes = 98 + (2 if plan.prefill_chunk else 20)  # in one of them a request waits
        reads = np.random.default_rng(1).random((40_000, 4)) < 20 / passes
        drawn = np.where(reads, prefill, decode).max(axis=1).mean() * passes
        together = (20 * prefill + (passes - 20) * decode) / (4 * 20)
        assert chance[1.0] == pytest.approx(together, rel=1e-6)
        assert chance[0.0] == pytest.approx(drawn / (4 * 20), rel=0.02)
        assert chance[0.0] > 1.2 * chance[1.0]
    # Replicas without experts of others do not wait.
    alone = [float(costs_of(m, P(dp=4, max_batch=20, prefill_chunk=500)).requests_per_s[0]) for m in found.values()]
    assert alone[0] == alone[1]


def test_uneven_experts_cost_where_ranks_have_some_of_their_own() -> None:
    """Loads of 8 experts spread by their mean: the fullest of four ranks of two gets 1 + sqrt(1 / 2 + 1 / 128) x 1.05 times the mean.

    The mean is 4 x 64 tokens of two copies on four ranks, 128, which vary by chance where loads are even, too.
    """
    graph = large(experts=8, ffn=4096, blocks=2)
    even, uneven = (
        model(graph, where=cluster(peak=1e12), assumptions=replace(TO_EXPERTS, expert_spread=s)) for s in (0.0, 1.0)
    )
    alone, shared = P(max_batch=64), P(dp=4, ep=4, max_batch=64)
    assert float(costs_of(even, alone).decode_pass_s[0]) == float(costs_of(uneven, alone).decode_pass_s[0])
    fullest = 1 + 0.5**0.5 * 1.049
    computed = 1.049 * ((1 / 2 + 1 / 128) ** 0.5 - (1 / 128) ** 0.5)
    sent = 2 * (64 * 2 * 4096 * 2.0 * 3 / 4 / 100e9)
    # A rank copies its own quarter of what it holds, too (NCCL's Simple): at 0.28 of 1 TB/s.
    sent += 2 * (64 * 2 * 4096 * 2.0 / 4 / 280e9)
    parts = {
        "decode_compute_s": computed * 2 * 64 * 2 * 2 * 3 * 4096 * 4096 / 1e12,
        "decode_ep_s": (fullest - 1) * 2 * sent,
    }
    for part, expected in parts.items():
        more = float(getattr(costs_of(uneven, shared), part)[0] - getattr(costs_of(even, shared), part)[0])
        assert more == pytest.approx(expected, rel=0.01), part


# -- rules and refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (P(tp=3), "heads"),
        (P(tp=64), "heads"),
        (P(pp=5), "blocks"),
        (P(ep=2), "experts"),
        (P(etp=2), "etp"),
        (P(max_batch=2, prefill_batch=3), "prefill batch 3"),
        (P(dp=0), "at least 1"),
    ],
)
def test_rules_name_what_is_wrong(plan: ServingPlan, words: str) -> None:
    found = model(large())
    shape = found.shape
    messages = broken_serving_rules(shape, plan)
    assert any(words in message for message in messages), messages
    assert not broken_serving_rules(shape, P(tp=8, pp=4, dp=3, max_batch=7))


@pytest.mark.parametrize(
    ("name", "precision", "legal"),
    [
        # 13,696 = 107 blocks of 128.
        ("qwen1.5-14b", "w4a16", (1,)),
        ("qwen1.5-14b", "bf16", (1, 2, 4, 8)),
        ("qwen1.5-14b", "nvfp4", (1, 2, 4, 8)),  # 856 blocks of 16
        # 18,944 = 148 blocks, 28 heads of 128 and 4 of keys and values.
        ("qwen2.5-7b", "fp8-blockwise", (1, 2, 4)),
        # 8,960 = 70 blocks, 12 heads and 2 of keys and values of 128, repeated from tp 4 on.
        ("qwen2.5-1.5b", "fp8-blockwise", (1, 2)),
    ],
)
def test_an_engine_cuts_no_blocks(name: str, precision: str, legal: tuple[int, ...]) -> None:
    """vLLM refuses input sizes that are not aligned with the blocks of the weights; others may pad."""
    graph, number_format = load_model(name).graph, PRECISIONS[precision]
    usual, engine = (
        NetworkShape.of(graph, fold(graph), 1, framework, precision=number_format) for framework in (NO_FRAMEWORK, VLLM)
    )
    found = [degree for degree in (1, 2, 4, 8) if not broken_serving_rules(engine, P(tp=degree))]
    assert tuple(found) == legal
    assert load_framework("sglang").framework.rules.whole_blocks  # whose layers are copies of vLLM's
    assert not any(broken_serving_rules(usual, P(tp=degree)) for degree in legal)


def test_an_engine_cuts_no_blocks_of_experts() -> None:
    """2,048 features of an expert of DeepSeek-V3 are 16 blocks."""
    graph = load_model("deepseek-v3").graph
    shape = NetworkShape.of(graph, fold(graph), 1, VLLM, precision=PRECISIONS["fp8-blockwise"])
    assert [count for count, _ in shape.expert_pieces] == [16]
    assert "etp 32 does not divide the blocks of 128" in " ".join(broken_serving_rules(shape, P(tp=32, etp=32)))


def test_an_engine_cuts_no_blocks_of_shared_experts() -> None:
    """tp splits those of Qwen3-Next: 512 features are 4 blocks."""
    graph = load_model("qwen3-next-80b-a3b").graph
    shape = NetworkShape.of(graph, fold(graph), 1, VLLM, precision=PRECISIONS["fp8-blockwise"])
    assert not broken_serving_rules(shape, P(tp=4, ep=4))
    assert broken_serving_rules(shape, P(tp=8, ep=8)) == [
        "tp 8 does not divide the blocks of 128 of a width of 512: vllm needs equal shares on every rank"
    ]


def test_an_engine_pads_the_vocabulary() -> None:
    """vLLM pads 152,000 rows to 2,375 x 64, which tp 3 does not divide; 2,400 x 64 it does."""
    for rows, said in ((152_000, "tp 3 does not divide the 152,000 rows of the padded vocabulary"), (153_570, "")):
        graph = decoder(blocks=1, features=192, heads=3, kv_heads=3, ffn=192, vocabulary=rows)
        messages = broken_serving_rules(NetworkShape.of(graph, fold(graph), 1, VLLM), P(tp=3))
        assert said in " ".join(messages)
        assert bool(messages) is bool(said)


def test_experts_must_fill_the_ranks() -> None:
    found = model(large(experts=8, ffn=4096))
    shape = found.shape
    assert not broken_serving_rules(shape, P(tp=4, ep=2, etp=2))
    assert not broken_serving_rules(shape, P(tp=2, ep=8, dp=4))
    assert any("multiple" in m for m in broken_serving_rules(shape, P(tp=4, ep=2)))
    assert any("multiple" in m for m in broken_serving_rules(shape, P(tp=1, ep=8, dp=6)))


def test_networks_that_do_not_generate_are_refused() -> None:
    both_ways = spec("a", "self_attention", "x", block="b.0", heads=4, head_dim=4, causal=False)
    encoder = Graph.build("encoder", [spec("x", "input", shape=(48, 16)), both_ways, spec("n", "rms_norm", "a")])
    with pytest.raises(ServingError, match="sees later positions"):
        model(encoder)
    for lengths in ({"prompt": 0}, {"output": 0}):
        with pytest.raises(ServingError, match="at least 1"):
            model(large(), **lengths)


# --- The serving model against simulations of the queue, which share nothing with the closed form but the times of single passes ----------


def simulated_whole(places: int, rounds: int, decode_s: float, prefill_s: float, requests: int) -> float:
    """Requests per second of a server of one stage that reads a prompt as soon as a place is free, and otherwise decodes."""
    clock, finished, left = 0.0, 0, [0] * places
    started_at = 0.0
    for done in range(requests):
        while all(left):
            clock += decode_s
            left = [n - 1 for n in left]
        free = left.index(0)
        clock += prefill_s
        # Spread the first requests, so that the places do not stay in step.
        left[free] = rounds if done >= places else max(1, rounds * (done + 1) // places)
        finished += 1
        if done == requests // 2:
            started_at, counted = clock, finished
    return (finished - counted) / (clock - started_at)


@pytest.mark.parametrize("places", [1, 2, 7, 32])
@pytest.mark.parametrize("output", [17, 64])
def test_throughput_of_one_stage_equals_a_simulation(places: int, output: int) -> None:
    found = costs_of(model(large(), output=output), P(max_batch=places))
    simulated = simulated_whole(
        places, output - 1, float(found.decode_pass_s[0]), prompt_s(found), requests=40 * places
    )
    assert float(found.requests_per_s[0]) == pytest.approx(simulated, rel=0.03)


def simulated_stages(stage_s: list[float], groups: int, rounds: int) -> float:
    """Time per round of groups that follow each other through stages; a group starts again when it leaves the last."""
    free, ready, ends = [0.0] * len(stage_s), [0.0] * groups, []
    for _ in range(rounds):
        for g in range(groups):
            for s, duration in enumerate(stage_s):
                ready[g] = free[s] = max(ready[g], free[s]) + duration
        ends.append(max(ready))
    half = rounds // 2
    return (ends[-1] - ends[half - 1]) / (rounds - half)


@pytest.mark.parametrize(("blocks", "pp"), [(4, 2), (4, 4), (5, 3), (7, 4)])
@pytest.mark.parametrize("places", [1, 2, 12])
def test_time_per_token_of_a_pipeline_equals_a_simulation(blocks: int, pp: int, places: int) -> None:
    """A prompt of one token costs a pass like any other: with many output tokens decoding alone counts."""
    found = model(large(blocks=blocks), prompt=1, output=4000)
    plan = P(pp=pp, max_batch=places)
    one = np.ones(1, dtype=np.int64)
    module_s = found.timer.passes(
        PassKeys(tp=one, ep=one, etp=one, prompts=0 * one, chunk=0 * one, decodes=plan.group_batch * one, queries=one)
    ).total_s[0]
    layout = found.layout(pp)
    # Every stage but the first receives 4096 x 2 bytes per sequence inside the node.
    send = 1e-6 + plan.group_batch * 4096 * 2 / 100e9
    stage_s = []
    for s, count in enumerate(layout.blocks):
        inside = count * module_s[1] + (module_s[0] if s == 0 else 0.0) + (module_s[-1] if s == pp - 1 else 0.0)
        stage_s.append(inside + (send if s else 0.0))
    expected = simulated_stages(stage_s, plan.groups, 200)
    assert float(costs_of(found, plan).tpot_s[0]) == pytest.approx(expected, rel=0.01)


def closed_loop(flight: int, places: int, tokens: int, prompt_s: float, decode_s: float) -> tuple[float, float, float]:
    """Mean and 90th percentile of the time to the first token, and requests per second: pass by pass, answers of random lengths.

    Whoever is answered sends the next request at once. Prompts are read one after the other as soon as there is a place.
    """
    draw, now = random.Random(1), 0.0
    waiting, running = deque([0.0] * flight), list[int]()
    firsts, ends = list[float](), list[float]()
    while len(ends) < 12_000:
        while waiting and len(running) < places:
            came, now = waiting.popleft(), now + prompt_s
            firsts.append(now - came)
            running.append(max(round(draw.expovariate(1.0 / tokens)), 1))
        now += decode_s
        left = [passes - 1 for passes in running]
        ended = sum(passes == 0 for passes in left)
        ends += [now] * ended
        waiting += [now] * ended
        running = [passes for passes in left if passes]
    later = sorted(firsts[2_000:])
    return sum(later) / len(later), later[9 * len(later) // 10], (len(ends) - 2_000) / (now - ends[2_000])


@pytest.mark.parametrize(("flight", "places"), [(12, 8), (40, 8), (96, 32)])
def test_requests_beyond_the_places_wait_as_in_a_simulation(flight: int, places: int) -> None:
    found = model(large(), output=101)
    found = replace(found, workload=replace(found.workload, concurrency=flight, output_variation=1.0))
    costs = costs_of(found, P(max_batch=places))
    mean, late, rate = closed_loop(flight, places, 100, prompt_s(costs), float(costs.decode_pass_s[0]))
    # What is waited for is all of the queue: a place is taken at once.
    assert costs.ttft_s[0] == pytest.approx(mean, rel=0.05)
    assert costs.ttft_p90_s[0] == pytest.approx(late, rel=0.1)
    assert costs.requests_per_s[0] == pytest.approx(rate, rel=0.03)
    # Little's law, by hand.
    assert costs.request_s[0] * costs.requests_per_s[0] == pytest.approx(flight)


def test_few_requests_have_the_times_of_as_few_places() -> None:
    """Memory is that of all places; so many as there are places in flight changes nothing."""
    plain = model(large())
    few = replace(plain, workload=replace(plain.workload, concurrency=4))
    held, small, full = (
        costs_of(few, P(max_batch=16)),
        costs_of(plain, P(max_batch=4)),
        costs_of(plain, P(max_batch=16)),
    )
    assert held.tpot_s[0] == small.tpot_s[0] < full.tpot_s[0]
    assert held.kv_bytes[0] == full.kv_bytes[0]
    same = replace(plain, workload=replace(plain.workload, concurrency=16))
    assert costs_of(same, P(max_batch=16)).ttft_s[0] == full.ttft_s[0]


@pytest.mark.parametrize("plan", [P(dp=2, max_batch=3), P(dp=2, max_batch=3, prefill_dp=1), P(dp=3, max_batch=2)])
def test_no_more_requests_are_counted_than_are_in_flight(plan: ServingPlan) -> None:
    """Five over two or three replicas, which have six places (Little's law)."""
    plain = model(large())
    found = costs_of(replace(plain, workload=replace(plain.workload, concurrency=5)), plan)
    assert found.request_s[0] * found.requests_per_s[0] == pytest.approx(5, rel=0.02)


@pytest.mark.parametrize("places", [2, 4, 30])
def test_requests_go_round_two_pools_whose_replicas_have_few_places(places: int) -> None:
    """With few places the replicas are full: they make as many tokens as one that reads nothing, and the others wait (Little's law)."""
    plain = model(large(), output=65)
    found = replace(plain, workload=replace(plain.workload, concurrency=32))
    costs = costs_of(found, P(max_batch=places, prefill_dp=2))
    assert costs.request_s[0] * costs.requests_per_s[0] == pytest.approx(32, rel=0.01)
    assert costs.occupied_places[0] <= places
    if places == 2:
        each = float(costs_of(plain, P(max_batch=2, prefill_dp=2)).decode_pass_s[0])
        assert costs.requests_per_s[0] == pytest.approx(places / (64 * each), rel=0.02)


def busy_share(costs: ServingCosts, devices: int = 1) -> float:
    """Share of the time in which kernels run."""
    return float(costs.kernel_gpu_s[0] * costs.output_tokens_per_s[0] / devices)


def test_a_full_device_computes_all_the_time() -> None:
    """Where the host and links take no time, a device that is always busy is always in kernels, alone or as two stages."""
    plain = model(large())
    full = replace(plain, workload=replace(plain.workload, load="backlog"))
    for plan in (P(max_batch=8), P(max_batch=8, prefill_chunk=64), P(max_batch=8, prefill_batch=4)):
        assert busy_share(costs_of(full, plan)) == pytest.approx(1.0, rel=1e-9)
    waits = model(large(), assumptions=replace(NO_OVERHEAD, pass_overhead_s=0.01))
    found = costs_of(waits, P(max_batch=1))
    each = 63 * float(found.decode_compute_s[0]) + float(found.prefill_compute_s[0])
    assert busy_share(found) == pytest.approx(each / float(found.request_s[0]))


def test_a_few_requests_keep_a_device_busy_for_their_own_passes() -> None:
    """At a rate: of one request, 63 passes and a prompt; near what can be served, nearly all of the time."""
    plain = model(large())
    alone = costs_of(plain, P(max_batch=1))
    for share, plan in itertools.product(
        (1e-6, 0.3, 0.999), (P(max_batch=8), P(tp=2, max_batch=8), P(pp=2, max_batch=8))
    ):
        most = float(costs_of(plain, plan).most_requests_per_s[0])
        at = replace(plain, workload=replace(plain.workload, arrivals=Arrivals(share * most)))
        found, devices = costs_of(at, plan), plan.tp * plan.pp
        assert 0.0 < busy_share(found, devices) < 1.0 + 1e-9
        if share == 1e-6 and devices == 1:
            passes = 63 * float(alone.decode_compute_s[0]) + float(alone.prefill_compute_s[0])
            assert found.kernel_gpu_s[0] * 64 == pytest.approx(passes, rel=1e-4)
        if share == 0.999 and devices == 1:
            assert busy_share(found) > 0.95


def test_devices_that_only_read_prompts_are_busy_for_each() -> None:
    """A prompt alone takes its pass; both pools are never busier than they are large."""
    plain = model(large())
    lone = costs_of(plain, P(max_batch=1))
    found = costs_of(plain, P(max_batch=1, prefill_dp=1))
    assert found.prefill_kernel_gpu_s[0] * 64 == pytest.approx(float(lone.prefill_compute_s[0]))
    assert found.kernel_gpu_s[0] * 64 == pytest.approx(63 * float(lone.decode_compute_s[0]))
    many = costs_of(plain, P(max_batch=64, prefill_dp=1))
    for name in ("kernel_gpu_s", "prefill_kernel_gpu_s"):
        assert getattr(many, name)[0] * many.output_tokens_per_s[0] < 1.0 + 1e-6
