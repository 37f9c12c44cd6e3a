"""Communication by hand: links without latency and nothing hidden, so that times are bytes over bandwidth.

Ring formulas: an all-gather or a reduce-scatter of B bytes over n ranks moves (n - 1)/n B, an all-reduce twice that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.framework import NO_FRAMEWORK, Defaults, Framework, Selective
from costmodel.hardware.cluster import Cluster, span
from costmodel.hardware.collectives import library_s
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.communication import free_draws, reached
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch, MeshCosts, MeshPlan
from costmodel.network.graph import Graph
from costmodel.network.layers.mixture import MixtureParams
from costmodel.precision import FORMATS
from tests.costmodel.mesh import plans as make
from tests.networks import Layers
from tests.strategies.mesh.networks import decoder, two_level_cluster

H, S, V = 64, 32, 512  # features, positions, vocabulary
RATE = 1e9
MICRO, M = 2, 3  # samples of a micro-batch, micro-batches


def _gathered(n: int, size: float) -> float:
    return (n - 1) / n * size / RATE


def _reduced(n: int, size: float) -> float:
    return 2 * _gathered(n, size)


def _costs(graph: Graph, *plans: MeshPlan) -> MeshCosts:
    batches = {plan.global_batch for plan in plans}
    assert len(batches) == 1
    model = make.model_of(graph, batches.pop(), make.ideal_cluster(bandwidth=RATE))
    return model.evaluate_plans(plans)


def _per_block(name: str, plan: MeshPlan, **network: object) -> float:
    """What one more block adds, per micro-batch."""
    make_graph = decoder if "experts" in network or "kv_heads" in network else make.gpt
    found = [
        float(getattr(_costs(make_graph(blocks=blocks, features=H, positions=S, **network), plan), name)[0])  # type: ignore[arg-type]
        for blocks in (2, 3)
    ]
    return (found[1] - found[0]) / plan.num_micro_batches


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("split", [False, True])
def test_a_block_reduces_four_times(tp: int, split: bool) -> None:
    """Shoeybi et al. (arXiv:1909.08053), figure 4: two all-reduces each way; Korthikanti et al.: the same bytes in halves."""
    plan = MeshPlan(tp=tp, sequence_parallel=split, micro_batch=MICRO, num_micro_batches=M)
    expected = 4 * _reduced(tp, MICRO * S * H * 2)
    assert _per_block("tp_exposed_s", plan) == pytest.approx(expected, rel=1e-9)


def test_embedding_and_head_reduce_once_each() -> None:
    """Forward behind the rows of the table, backward before the columns of the head; three numbers per position for the loss."""
    plan = MeshPlan(tp=4, micro_batch=MICRO, num_micro_batches=M)
    whole = float(_costs(make.gpt(blocks=2), plan).tp_exposed_s[0])
    rows = MICRO * S * 2
    expected = M * ((2 * 4 + 2) * _reduced(4, rows * H) + 3 * _reduced(4, rows))
    assert whole == pytest.approx(expected, rel=1e-9)


def test_recomputation_communicates_again() -> None:
    plan = MeshPlan(tp=4, micro_batch=MICRO, num_micro_batches=M)
    again = MeshPlan(tp=4, micro_batch=MICRO, num_micro_batches=M, recompute="full", recompute_blocks=2)
    forward = MeshPlan(micro_batch=MICRO, num_micro_batches=M)
    costs = _costs(make.gpt(blocks=2), plan, again, forward)
    assert costs.tp_exposed_s[1] == costs.tp_exposed_s[0]
    assert costs.recompute_s[1] >= M * 2 * 2 * _reduced(4, MICRO * S * H * 2)


# -- data parallelism ------------------------------------------------------------------------------------------------------

PSI = V * H + 2 * (12 * H * H + 13 * H) + 2 * H + V * H  # weights of two blocks, with a head of its own


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (MeshPlan(dp_replicate=4, num_micro_batches=M), _reduced(4, 4 * PSI)),
        (MeshPlan(dp_replicate=2, cp=2, num_micro_batches=2 * M), _reduced(4, 4 * PSI)),
        (MeshPlan(dp_shard=4, zero_stage=1, num_micro_batches=M), _gathered(4, 4 * PSI) + _gathered(4, 2 * PSI)),
        (
            MeshPlan(dp_shard=2, cp=2, zero_stage=1, num_micro_batches=2 * M),
            _gathered(4, 4 * PSI) + _gathered(4, 2 * PSI),
        ),
        (MeshPlan(dp_shard=4, zero_stage=2, num_micro_batches=M), M * _gathered(4, 4 * PSI) + _gathered(4, 2 * PSI)),
        (
            MeshPlan(dp_shard=4, zero_stage=3, num_micro_batches=M),
            M * (2 * _gathered(4, 2 * PSI) + _gathered(4, 4 * PSI)),
        ),
        # HSDP: the shards of the replicas are added up once a step.
        (
            MeshPlan(dp_shard=2, dp_replicate=2, zero_stage=3, num_micro_batches=M),
            M * (2 * _gathered(2, 2 * PSI) + _gathered(2, 4 * PSI)) + _reduced(2, 4 * PSI / 2),
        ),
        (
            MeshPlan(dp_shard=2, dp_replicate=2, zero_stage=1, num_micro_batches=M),
            _gathered(2, 4 * PSI) + _gathered(2, 2 * PSI) + _reduced(2, 4 * PSI / 2),
        ),
    ],
)
def test_gradients_and_weights_travel_as_published(plan: MeshPlan, expected: float) -> None:
    """Rajbhandari et al. (arXiv:1910.02054), section 7; gradients in 4 bytes, weights in 2."""
    costs = _costs(make.gpt(blocks=2, tied=False), plan)
    assert costs.dp_exposed_s[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("plan", "shards", "copies"),
    [
        (MeshPlan(ep=2, dp_replicate=8, num_micro_batches=M), 1, 4),
        (MeshPlan(ep=2, dp_shard=8, zero_stage=1, num_micro_batches=M), 4, 1),
        (MeshPlan(ep=2, dp_shard=4, dp_replicate=2, zero_stage=1, num_micro_batches=M), 2, 2),
        (MeshPlan(ep=4, dp_shard=4, dp_replicate=2, zero_stage=1, num_micro_batches=M), 1, 2),
    ],
)
def test_experts_are_divided_over_the_ranks_that_hold_the_same_ones(plan: MeshPlan, shards: int, copies: int) -> None:
    """Each of the 8 ranks holds 4 / ep experts, so ep times fewer ranks than of the other weights share these."""

    def step_s(weights: float, shards: int, copies: int) -> float:
        inside = _gathered(shards, 4 * weights) + _gathered(shards, 2 * weights)
        return inside + _reduced(copies, 4 * weights / shards)

    experts = 4 / plan.ep * 3 * H * 128
    others = 2 * H + H * 128 + H * H + 4 * H  # norms, queries to values, projection, router
    expected = step_s(others, plan.dp_shard, plan.dp_replicate) + step_s(experts, shards, copies)
    assert M * _per_block("dp_exposed_s", plan, experts=4) == pytest.approx(expected, rel=1e-9)


def test_tied_gradients_meet_between_the_first_and_the_last_stage() -> None:
    plan = MeshPlan(pp=2, num_micro_batches=4)
    apart, tied = (_costs(make.gpt(blocks=2, tied=is_tied), plan) for is_tied in (False, True))
    assert tied.dp_exposed_s[0] - apart.dp_exposed_s[0] == pytest.approx(_reduced(2, 4 * V * H), rel=1e-9)


def test_tied_weights_are_gathered_on_the_last_stage_too() -> None:
    plan = MeshPlan(pp=2, dp_shard=2, zero_stage=3, num_micro_batches=8, stage_blocks=(1, 40))
    costs = _costs(make.gpt(blocks=41, vocabulary=5000), plan)  # the last stage is the slowest
    last = 5000 * H + 40 * (12 * H * H + 13 * H) + 2 * H
    inside = 8 * (2 * _gathered(2, 2 * last) + _gathered(2, 4 * last))
    assert costs.dp_exposed_s[0] >= inside


# -- context, experts, stages ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (4, 1), (2, 2)])
def test_keys_and_values_travel_around_a_ring(cp: int, tp: int) -> None:
    """cp - 1 times forward; backward their gradients travel along (Liu et al., arXiv:2310.01889, section 3)."""
    plan = MeshPlan(cp=cp, tp=tp, micro_batch=MICRO, num_micro_batches=M)
    kv_heads, dim = 2, H // 8
    kv = 2 * MICRO * (S / cp) * (kv_heads / tp) * dim * 2
    found = _per_block("cp_exposed_s", plan, kv_heads=kv_heads, heads=8)
    assert found == pytest.approx(3 * (cp - 1) * kv / RATE, rel=1e-9)


@pytest.mark.parametrize("cp", [2, 4])
def test_gathered_keys_and_values(cp: int) -> None:
    """Gathered forward, again backward, and their gradients scattered (Dubey et al., arXiv:2407.21783, section 3.3.2)."""
    plan = MeshPlan(cp=cp, cp_kind="all_gather", micro_batch=MICRO, num_micro_batches=M)
    kv = 2 * MICRO * S * 2 * (H // 8) * 2
    assert _per_block("cp_exposed_s", plan, kv_heads=2, heads=8) == pytest.approx(3 * _gathered(cp, kv), rel=1e-9)


@pytest.mark.parametrize("cp", [2, 4])
def test_ulysses_trades_four_tensors_each_way(cp: int) -> None:
    """Queries, keys, values and the output, each with 1/cp of the positions (Jacobs et al., arXiv:2309.14509, section 3.2)."""
    plan = MeshPlan(cp=cp, cp_kind="all_to_all", micro_batch=MICRO, num_micro_batches=M)
    one = MICRO * (S / cp) * H * 2
    assert _per_block("cp_exposed_s", plan) == pytest.approx(2 * 4 * _gathered(cp, one), rel=1e-9)


@pytest.mark.parametrize(("ep", "dp", "cp"), [(2, 2, 1), (4, 4, 1), (4, 2, 2)])
def test_tokens_travel_to_two_experts_and_back(ep: int, dp: int, cp: int) -> None:
    """Dispatch and combination, forward and backward, top_k copies of every token."""
    plan = MeshPlan(ep=ep, dp_replicate=dp, cp=cp, micro_batch=MICRO, num_micro_batches=M)
    tokens = MICRO * S / cp * 2 * H * 2
    assert _per_block("ep_exposed_s", plan, experts=4) == pytest.approx(4 * _gathered(ep, tokens), rel=1e-9)


def test_ranks_of_an_expert_gather_its_tokens() -> None:
    """tp 2 x sequence parallel: each rank sends its half of the tokens; with etp 2 both ranks need both halves."""
    plan = MeshPlan(tp=2, sequence_parallel=True, ep=2, etp=2, dp_replicate=2, micro_batch=MICRO, num_micro_batches=M)
    own = MICRO * S / 2 * 2 * H * 2
    expected = 4 * _gathered(2, own) + 4 * _gathered(2, 2 * own)
    assert _per_block("ep_exposed_s", plan, experts=4) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("tp", "split", "cp"), [(1, False, 1), (2, False, 1), (2, True, 1), (2, True, 2)])
def test_stages_receive_activations_and_gradients(tp: int, split: bool, cp: int) -> None:
    """A stage in the middle receives one tensor forward and one backward per micro-batch."""
    plan = MeshPlan(
        pp=3, tp=tp, sequence_parallel=split, cp=cp, micro_batch=MICRO, num_micro_batches=M, stage_blocks=(1, 4, 1)
    )
    sent = MICRO * S * H * 2 / (cp * (tp if split else 1))
    costs = _costs(make.gpt(blocks=6, vocabulary=16), plan)
    assert costs.pp_exposed_s[0] == pytest.approx(M * 2 * sent / RATE, rel=1e-9)


def test_ranks_that_hold_the_whole_hand_on_a_share_each_and_gather_them() -> None:
    """D. Narayanan et al. (arXiv:2104.04473), section 4.1: a quarter over the slow link, three quarters from the three neighbours."""
    slow = RATE / 10
    cluster = two_level_cluster(per_node=4, inside=RATE, outside=slow)
    graph = make.gpt(blocks=6, vocabulary=16)
    plan = MeshPlan(pp=3, tp=4, micro_batch=MICRO, num_micro_batches=M, stage_blocks=(1, 4, 1))
    held, far_s = MICRO * S * H * 2, 5e-6  # latency of that cluster's slow links
    whole_s = held / slow + far_s
    shares_s = held / 4 / slow + far_s + float(library_s("all_gather", held, span(cluster, 4, 1), cluster))
    for scattered, sent_s in ((0.0, whole_s), (1.0, shares_s)):
        model = make.model_of(graph, plan.global_batch, cluster, MeshAssumptions(scattered_handover=scattered))
        assert model.evaluate_plans([plan]).pp_exposed_s[0] == pytest.approx(M * 2 * sent_s, rel=1e-9)


def test_overlaps_hide_the_share_that_they_state() -> None:
    graph, cluster = decoder(blocks=4, experts=4), make.ideal_cluster(bandwidth=RATE)
    plan = MeshPlan(tp=2, sequence_parallel=True, ep=2, pp=2, num_micro_batches=4)
    shares = [
        make.model_of(
            graph, 4, cluster, MeshAssumptions(dp_overlap=0.0, cp_overlap=0.0, tp_overlap=value)
        ).evaluate_plans([plan])
        for value in (0.0, 0.75)
    ]
    none, most = (float(costs.tp_exposed_s[0]) for costs in shares)
    assert none > 0
    assert most == pytest.approx(none / 4, rel=1e-9)


def test_transfers_travel_behind_other_chunks_of_a_rank() -> None:
    """Two ranks of two blocks: with one chunk nothing is hidden; with two a share of each transfer, at most what a chunk computes."""
    graph = decoder(blocks=4, features=H, positions=S)

    def exposed_s(peak: float, vpp: int, **assumed: float) -> tuple[float, float]:
        cluster = make.ideal_cluster(bandwidth=RATE, peak=peak, memory_bandwidth=peak)
        schedule = "1f1b" if vpp == 1 else "interleaved"
        plan = MeshPlan(pp=2, vpp=vpp, schedule=schedule, num_micro_batches=4)
        model = make.model_of(graph, 4, cluster, replace(make.BARE, **assumed))
        costs = model.evaluate_plans([plan])
        return float(costs.pp_exposed_s[0]), float(costs.compute_s[0])

    one, two, sent = (exposed_s(1e3, vpp, pp_overlap=0.0)[0] for vpp in (1, 2, 2))
    # One chunk: an input or a gradient per micro-batch; two: three of each rank's four passes receive something.
    assert two == pytest.approx(3 * one, rel=1e-9)
    assert exposed_s(1e3, 1, pp_overlap=0.75)[0] == pytest.approx(one, rel=1e-9)
    assert exposed_s(1e3, 2, pp_overlap=0.75)[0] == pytest.approx(sent / 4, rel=1e-9)
    # With next to no compute, next to nothing is hidden.
    barely, compute = exposed_s(1e15, 2, pp_overlap=0.75)
    assert sent - compute <= barely < sent


def _tokens_s(*, in_fp8: bool = False, **assumed: float) -> float:
    """What a plan of one mixture per stage waits for tokens, its compute being as slow as a device of one FLOP per second makes it."""
    graph = decoder(blocks=2, experts=4, features=H, positions=S)
    peak = assumed.pop("peak", 1.0)
    cluster = make.ideal_cluster(bandwidth=RATE, peak=peak, memory_bandwidth=peak)
    plan = MeshPlan(ep=2, dp_replicate=2, pp=2, num_micro_batches=8)
    model = make.model_of(graph, 16, cluster, replace(make.BARE, **assumed))
    if in_fp8:
        precision = replace(model.workload.precision, narrow=FORMATS["fp8"], dispatches=True)
        model = replace(model, workload=replace(model.workload, precision=precision))
    return float(model.evaluate_plans([plan]).ep_exposed_s[0])


def test_tokens_travel_behind_other_micro_batches() -> None:
    """Compute is long enough: what it loses beside them (an eighth), and all of them in the two of eight micro-batches that fill."""
    plain = _tokens_s()
    # Two experts per token, half of them on the other rank, there and back, in both passes.
    assert plain == pytest.approx(8 * 4 * (S * 2 * H * 2 / 2) / RATE, rel=1e-9)
    assert _tokens_s(ep_overlap=1.0, interference=0.125) == pytest.approx((2 + 6 / 8) / 8 * plain, rel=1e-9)
    # Hardly any compute: nothing is hidden.
    assert _tokens_s(ep_overlap=1.0, interference=0.125, peak=1e30) == pytest.approx(plain, rel=1e-9)


def test_half_the_compute_hides_half_of_what_is_longer() -> None:
    """Tokens that take a hundred times as long as all compute: of these hundred a half is hidden by half of it."""
    peak = 1e12
    some = [_tokens_s(ep_overlap=share, peak=peak) for share in (0.0, 0.25, 0.5)]
    assert some[0] > some[1] > some[2]
    assert some[0] - some[2] == pytest.approx(2 * (some[0] - some[1]), rel=1e-6)


def test_tokens_in_eight_bits_are_narrower_one_way() -> None:
    assert _tokens_s(in_fp8=True) == pytest.approx(0.75 * _tokens_s(), rel=1e-9)


def test_cross_attention_moves_the_keys_of_the_other_sequence() -> None:
    """Decoder of 16 positions over an encoded sequence of 64: the ring carries 64 positions of keys and values, not 16."""
    found = []
    for blocks in (2, 3):
        graph = cross_decoder(blocks)
        plan = MeshPlan(cp=2, num_micro_batches=M)
        found.append(float(_costs(graph, plan).cp_exposed_s[0]) / M)
    kv = 2 * (64 / 2) * H * 2
    assert found[1] - found[0] == pytest.approx(3 * kv / RATE, rel=1e-9)
    traded = MeshPlan(cp=2, cp_kind="all_to_all", num_micro_batches=M)
    values = [float(_costs(cross_decoder(blocks), traded).cp_exposed_s[0]) / M for blocks in (2, 3)]
    elements = (2 * 16 + 2 * 64) / 2 * H * 2  # queries and output of the decoder, keys and values of the encoder
    assert values[1] - values[0] == pytest.approx(2 * _gathered(2, elements), rel=1e-9)


def cross_decoder(blocks: int) -> Graph:
    """Blocks of cross-attention only."""
    layers = Layers()
    add = layers.add
    encoded = add("encoded", "embedding", add("source", "input", shape=(1, 64)), num_embeddings=100, dim=H)
    previous = add("embedding", "embedding", add("target", "input", shape=(1, 16)), num_embeddings=100, dim=H)
    for n in range(blocks):
        block = f"blocks.{n}"
        queries = add("queries", "linear", previous, block=block, out_features=H)
        keys_values = add("keys_values", "linear", encoded, block=block, out_features=2 * H)
        cross = add("cross", "cross_attention", queries, keys_values, block=block, heads=4, head_dim=H // 4)
        previous = add("add", "add", cross, previous, block=block)
    add("loss", "softmax", add("head", "linear", previous, out_features=100))
    return layers.graph("cross")


def test_times_are_inverse_to_the_bandwidth() -> None:
    plan = MeshPlan(tp=2, pp=2, cp=2, dp_replicate=2, num_micro_batches=4)
    slow, fast = (
        make.model_of(make.gpt(blocks=2), 8, make.ideal_cluster(bandwidth=rate)).evaluate_plans([plan])
        for rate in (1e8, 1e9)
    )
    for name in ("tp_exposed_s", "cp_exposed_s", "pp_exposed_s"):
        np.testing.assert_allclose(getattr(slow, name), 10 * getattr(fast, name), rtol=1e-9)


# --- Tokens on their way to experts: nodes that they reach, against draws of chance, and what the host starts one by one ------------------


_TOKENS, _SEED = 4000, 7
_EXPERTS, _CHOSEN, _POSITIONS, _FEATURES = 8, 2, 32, 64


def _drawn_nodes(experts: int, chosen: int, nodes: int, groups: int = 1, kept: int = 1) -> float:
    """Nodes of a token on average: groups drawn, then experts of these; no expert twice."""
    rng = np.random.default_rng(_SEED)
    total = 0
    for _ in range(_TOKENS):
        some = rng.choice(groups, size=kept, replace=False)
        open_to = np.concatenate([np.arange(g * experts // groups, (g + 1) * experts // groups) for g in some])
        total += len(set(rng.choice(open_to, size=chosen, replace=False) // (experts // nodes)))
    return total / _TOKENS


@pytest.mark.parametrize(("experts", "chosen", "nodes"), [(256, 8, 8), (128, 4, 16), (128, 8, 2), (64, 6, 4)])
def test_nodes_that_a_token_reaches(experts: int, chosen: int, nodes: int) -> None:
    params = MixtureParams(experts=experts, top_k=chosen, ffn=1)
    found = float(reached(np.array(float(nodes)), np.array(free_draws(params))))
    assert found == pytest.approx(_drawn_nodes(experts, chosen, nodes), rel=0.03)


@pytest.mark.parametrize("nodes", [2, 4, 8, 16])
def test_groups_of_experts_limit_the_nodes(nodes: int) -> None:
    """DeepSeek-V3: 8 experts in 4 of 8 groups. Exact for a node per group, a stand-in elsewhere."""
    params = MixtureParams(experts=256, top_k=8, ffn=1, groups=8, top_groups=4)
    found = float(reached(np.array(float(nodes)), np.array(free_draws(params))))
    assert found == pytest.approx(_drawn_nodes(256, 8, nodes, groups=8, kept=4), rel=0.03 if nodes == 8 else 0.3)


# Every expert computes as many tokens as it gets in the mean: the host needs no counts.
_FIXED = {"expert_capacity": 1.0, "expert_padding": 1.0}


def _model(cluster: Cluster | None = None, framework: Framework = NO_FRAMEWORK, **changes: float) -> MeshModel:
    graph = decoder(blocks=2, experts=_EXPERTS)
    return make.model_of(graph, 8, cluster or make.ideal_cluster(), replace(make.BARE, **changes), framework)


def _exposed_s(model: MeshModel, plan: MeshPlan) -> float:
    return float(model.evaluate(MeshBatch.from_plans([plan])).ep_exposed_s[0])


def test_a_token_crosses_to_each_node_once() -> None:
    """8 ranks on 2 nodes and 2 experts per token: 1.5 nodes in place of 2 copies; inside one node 8 (1 - (7 / 8)^2) = 1.875 ranks."""
    plan = MeshPlan(ep=8, dp_shard=8, zero_stage=1)
    once, copies = (_exposed_s(_model(make.ideal_nodes(4, inside=1e15), node_copies=n), plan) for n in (0.0, 1.0))
    assert once / copies == pytest.approx(1.5 / 2.0, rel=1e-6)
    inside = [_exposed_s(_model(make.ideal_nodes(8, inside=1e15), node_copies=n), plan) for n in (0.0, 1.0)]
    assert inside[0] / inside[1] == pytest.approx(1.875 / 2.0, rel=1e-6)


def test_the_device_waits_for_the_counts_of_tokens() -> None:
    """The forward pass of a mixture is started behind its router: the host's time for its kernels comes on top of the device's."""
    launch_s, plan = 1e-3, MeshPlan(num_micro_batches=1)
    slow = make.ideal_cluster(peak=1e6, memory_bandwidth=1e5)  # hides all else that the host does

    def step_s(**changes: float) -> float:
        return float(_model(slow, host_launch_s=launch_s, **changes).evaluate_plans([plan]).step_time_s[0])

    # Router, three for its choice, dispatch, two products, activation and combination; and two products of each expert.
    kernels = 9 + 0.5 * 2 * _EXPERTS
    ahead = step_s(expert_launches=0.5, **_FIXED)
    assert step_s(expert_launches=0.5) - ahead == pytest.approx(2 * kernels * launch_s, rel=1e-6)
    assert step_s(expert_launches=0.0) == pytest.approx(step_s(expert_launches=0.0, **_FIXED), rel=1e-9)


@pytest.mark.parametrize(
    ("selective", "recompute", "waits"),
    [("cheap", "selective", 0), ("modules", "selective", 0), ("operators", "selective", 0), ("cheap", "full", 1)],
)
def test_the_counts_are_waited_for_again_where_the_router_runs_again(
    selective: Selective, recompute: str, waits: int
) -> None:
    """Recomputing modules leaves the router alone, and checkpointing of operators keeps what was copied to the host."""
    slow, launch_s = make.ideal_cluster(peak=1e6, memory_bandwidth=1e5), 1e-3
    framework = Framework(defaults=Defaults(selective=selective))

    def step_s(recompute: str, spread: float) -> float:
        plan = MeshPlan(num_micro_batches=1, recompute=recompute, recompute_blocks=2 * (recompute == "full"))
        model = _model(slow, framework, host_launch_s=launch_s, expert_launches=spread)
        return float(model.evaluate_plans([plan]).step_time_s[0])

    waited = 2 * (9 + 0.5 * 2 * _EXPERTS) * launch_s
    found = [step_s(how, 0.5) - step_s(how, 0.0) for how in ("none", recompute)]
    assert found == pytest.approx([waited, (1 + waits) * waited], rel=1e-6)


def test_experts_are_started_one_by_one() -> None:
    """Where the host is all that counts: two products forward and four backward per expert that a rank holds, these at half the price."""
    launch_s = 1.0

    def step_s(plan: MeshPlan, share: float) -> float:
        model = _model(host_launch_s=launch_s, expert_launches=share, bare_launch=0.5, **_FIXED)
        return float(model.evaluate_plans([plan]).step_time_s[0])

    alone, spread = MeshPlan(num_micro_batches=4), MeshPlan(ep=4, dp_shard=4, zero_stage=1)
    assert step_s(alone, 1.0) - step_s(alone, 0.0) == pytest.approx(
        4 * 2 * (2 + 0.5 * 4) * _EXPERTS * launch_s, rel=1e-6
    )
    assert step_s(spread, 1.0) - step_s(spread, 0.0) == pytest.approx(
        2 * (2 + 0.5 * 4) * _EXPERTS / 4 * launch_s, rel=1e-6
    )
