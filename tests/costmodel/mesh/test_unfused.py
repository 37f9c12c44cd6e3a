"""Traffic of unfused kernels, against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshPlan
from costmodel.mesh.tables import expert_bytes, unfused_bytes
from costmodel.precision import PRECISIONS
from tests.costmodel.mesh import plans as make
from tests.costmodel.network.layers.cases import layer, shard
from tests.strategies.mesh.networks import decoder, workload_of

# The network: 2 blocks, 64 features, 4 heads and 2 of keys and values of 16, 96 inner features, 16 positions, 512 words. The device reads
# 1e12 bytes per second at full efficiency.
_POSITIONS, _WORDS, _INNER, _FEATURES = 16, 512, 96, 64


def _step_s(**changes: float) -> float:
    graph = decoder(blocks=2, features=_FEATURES, ffn=_INNER, positions=_POSITIONS, vocabulary=_WORDS)
    model = make.model_of(graph, 4, make.ideal_cluster(), replace(make.BARE, **changes))
    return float(model.evaluate_plans([MeshPlan(num_micro_batches=4)]).step_time_s[0])


def _rate() -> float:
    device = workload_of(decoder(blocks=1), make.ideal_cluster(), 1).compute.device  # type: ignore[attr-defined]
    return float(device.memory_bandwidth_bytes_per_s * device.efficiency.memory_fraction)


def test_the_loss_moves_so_many_bytes_per_logit() -> None:
    """Beyond what the softmax moves by itself: between 100 and 200 bytes it is the difference."""
    more = _step_s(loss_bytes_per_logit=200.0) - _step_s(loss_bytes_per_logit=100.0)
    assert more == pytest.approx(4 * 100 * _POSITIONS * _WORDS / _rate(), rel=1e-9)


def test_a_loss_that_moves_less_than_a_softmax_is_no_quicker() -> None:
    assert _step_s(loss_bytes_per_logit=1.0) == _step_s()


def test_plain_autograd_moves_gates_and_queries_again() -> None:
    gate = (2 + 8) * _POSITIONS * _INNER
    # Forward and backward: read and written, queries three times, keys and values (as many as queries together) four times.
    around_attention = 2 * 2 * (3 + 4) * _POSITIONS * _FEATURES
    more = _step_s(autograd_copies=1.0) - _step_s()
    assert more == pytest.approx(4 * 2 * 2 * (gate + around_attention) / _rate(), rel=1e-9)


def test_norms_that_are_written_out() -> None:
    """By hand, per element of two norms in each of two blocks and one before the head, four samples."""
    forward = (2 + 4) + (4 + 4) + 4 + (4 + 4) + (4 + 2) + (2 + 2) - (2 + 2)
    products = (2 + 2) + (2 + 4) + (4 + 4) + (4 + 4 + 4) + 4
    squares = 4 + (4 + 4) + (4 + 4) + (4 + 4 + 4) + (4 + 4 + 4) + (4 + 2)
    backward = products + squares - (2 + 2 + 2)
    more = _step_s(norm_copies=1.0) - _step_s()
    assert more == pytest.approx(4 * 5 * (forward + backward) * _POSITIONS * _FEATURES / _rate(), rel=1e-9)


def test_norms_of_heads_that_are_written_out() -> None:
    """Of queries (64 features) and keys (32), as of whole positions."""

    def more(**changes: object) -> float:
        attention = layer(
            "self_attention", (128, _POSITIONS), heads=4, kv_heads=2, head_dim=16, causal=True, fused=True, **changes
        )
        elements = np.array([_POSITIONS * _FEATURES])
        assumed = replace(DEFAULT_ASSUMPTIONS, norm_copies=1.0)
        moved = unfused_bytes(attention, shard(attention), elements, 2, assumed)
        return float(moved[0][0])

    assert more() == 0.0
    assert more(qk_norm="rms") == 32 * _POSITIONS * (64 + 32)
    assert more(qk_norm="layer") == 0.0


def test_dropout_before_adapters_and_scaling_behind_them() -> None:
    """Forward and backward, bytes: 5 for every number that enters an adapter, 4 for every number that leaves it."""

    def seconds(adapted: tuple[str, ...], copies: float) -> float:
        graph = decoder(blocks=2, features=_FEATURES, ffn=_INNER, positions=_POSITIONS, vocabulary=_WORDS)
        layers = tuple(
            replace(each, frozen=True, lora_rank=4 if each.name.endswith(adapted) else 0) for each in graph.layers
        )
        model = make.model_of(
            replace(graph, layers=layers), 4, make.ideal_cluster(), replace(make.BARE, autograd_copies=copies)
        )
        return float(model.evaluate_plans([MeshPlan(num_micro_batches=4)]).step_time_s[0])

    # Of the matrix that leads down. Gradients reach the one that leads up in both.
    each = _POSITIONS * (5 * _INNER + 4 * _FEATURES)
    down = [seconds((".up", ".down"), copies) - seconds((".up",), copies) for copies in (0.0, 1.0)]
    assert down[1] - down[0] == pytest.approx(4 * 2 * 2 * each / _rate(), rel=1e-9)


def test_casts_to_fp8_write_every_number_twice() -> None:
    assert PRECISIONS["fp8"].cast_bytes == 2 + 1 + 1


def test_experts_beyond_their_products() -> None:
    """16 tokens with 2 experts each: casts of what enters products and comes back, limits before the activation, biases in fp32."""
    rows, inner, outer = 16 * 2, 96, 64

    def moved(*, ep: int = 8, copies: float = 1.0, precision: str = "bf16", **params: object) -> list[float]:
        mixture = layer("moe", (outer, 16), experts=8, top_k=2, ffn=inner, **params)
        assumed = MeshAssumptions(node_copies=copies)
        return [
            float(part[0]) for part in expert_bytes(mixture, shard(mixture, experts=ep), PRECISIONS[precision], assumed)
        ]

    assert moved() == [0.0, 0.0]
    # Two experts per rank: all copies are read and written once more, before the experts and behind them; or 4 (1 - (3 / 4)^2) arrive.
    assert moved(ep=4) == [2 * 2 * rows * outer * 2] * 2
    assert moved(ep=4, copies=0.0) == [2 * 0.75 * 16 * outer * 2] * 2
    # The gated activation reads 2 x 96 and writes 96.
    assert moved(precision="fp8") == [4 * rows * (outer + inner), 4 * rows * (2 * inner + outer)]
    assert moved(limited=True) == [rows * 2 * inner * (2 * 2 + 2 * 2), rows * 2 * inner * (2 + 2 + 6 + 2 + 2)]
    assert moved(bias=True) == [rows * outer * (4 + 10 + 8 + 6), rows * outer * (6 + 6 + 4 + 12 + 12)]


# A GPT whose attention is written out: 2 blocks, 4 heads, 32 positions, 64 features, 512 words.
_BLOCKS, _HEADS, _SEQUENCE = 2, 4, 32


def _gpt_step_s(
    *,
    tp: int = 2,
    micro_batch: int = 1,
    recompute: str = "none",
    bandwidth: float = 1e9,
    cut: bool = False,
    precision: str = "bf16",
    **changes: float,
) -> float:
    graph = make.gpt(blocks=_BLOCKS, features=_FEATURES, heads=_HEADS, positions=_SEQUENCE, vocabulary=_WORDS)
    cluster = make.ideal_cluster(bandwidth=bandwidth)
    workload = workload_of(graph, cluster, 4, precision)
    model = MeshModel.build(workload, cluster, replace(make.BARE, **changes))
    plan = MeshPlan(
        tp=tp, micro_batch=micro_batch, num_micro_batches=4 // micro_batch, recompute=recompute, sequence_parallel=cut
    )
    return float(model.evaluate_plans([plan]).step_time_s[0])


@pytest.mark.parametrize(("tp", "micro_batch", "is_apart"), [(1, 1, False), (2, 1, True), (2, 2, False), (4, 2, True)])
def test_a_softmax_that_suits_no_kernel_runs_in_five(tp: int, micro_batch: int, is_apart: bool) -> None:
    """Heads of a rank times micro-batch: 4, 2, 4 and 2."""
    more = _gpt_step_s(tp=tp, micro_batch=micro_batch, softmax_multiple=4.0) - _gpt_step_s(
        tp=tp, micro_batch=micro_batch
    )
    scores = 4 * _BLOCKS * (_HEADS / tp) * _SEQUENCE**2
    # Forward 6 + 8 + 8 + 8 + 6 bytes in place of 4, backward 6 + 12 + 8 + 8 + 6 in place of 6.
    assert more == pytest.approx(is_apart * scores * (32 + 34) / _rate(), rel=1e-6, abs=1e-15)


def test_selective_recomputation_runs_the_five_kernels_again() -> None:
    plain, again = (
        _gpt_step_s(recompute=recompute, softmax_multiple=4.0) - _gpt_step_s(recompute=recompute)
        for recompute in ("none", "selective")
    )
    assert again == pytest.approx(plain * (32 + 32 + 34) / (32 + 34), rel=1e-6)


@pytest.mark.parametrize(("recompute", "forward"), [("none", 1), ("selective", 2)])
def test_a_softmax_of_scores_in_32_bits_is_never_fused(recompute: str, forward: int) -> None:
    """Four heads of one sample, which in 16 bits have a kernel; 13 passes over a gradient that is copied for a mask in place."""
    case = {"tp": 1, "recompute": recompute, "precision": "fp32"}
    more = _gpt_step_s(**case, softmax_multiple=4.0) - _gpt_step_s(**case)
    scores = 4 * _BLOCKS * _HEADS * _SEQUENCE**2
    assert more == pytest.approx(scores * (forward * 2 * 4 + 13 * 4) / _rate(), rel=1e-6)


def test_the_host_starts_one_kernel_and_two_nodes_of_autograd_for_it() -> None:
    launch_s = 1e-2
    case = {"tp": 1, "precision": "fp32", "host_launch_s": launch_s, "bare_launch": 0.5}
    more = _gpt_step_s(**case, softmax_multiple=4.0) - _gpt_step_s(**case)
    assert more == pytest.approx(4 * _BLOCKS * (1 + 2 * 0.5) * launch_s, rel=1e-6)


@pytest.mark.parametrize(("recompute", "passes"), [("none", 1.5), ("selective", 2.5)])
def test_the_host_starts_four_kernels_more_each_time(recompute: str, passes: float) -> None:
    """A host that is slower than anything else, and needs half as long for a kernel of the backward pass."""
    launch_s = 1e-2
    more = _gpt_step_s(
        recompute=recompute, host_launch_s=launch_s, bare_launch=0.5, softmax_multiple=4.0
    ) - _gpt_step_s(recompute=recompute, host_launch_s=launch_s, bare_launch=0.5)
    assert more == pytest.approx(4 * _BLOCKS * passes * 4 * launch_s, rel=1e-6)


def test_a_fused_attention_has_no_softmax_of_its_own() -> None:
    assert _step_s(softmax_multiple=3.0) == _step_s()


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_gradients_of_inputs_travel_behind_those_of_weights(share: float) -> None:
    """Over a slow link, the whole time of the weights' gradients hides some: of queries, keys and values, the wide matrix, and the head."""
    shown = _gpt_step_s(bandwidth=1e6) - _gpt_step_s(bandwidth=1e6, column_overlap=share)
    outputs = _BLOCKS * (3 * _FEATURES + 4 * _FEATURES) + _WORDS
    assert shown == pytest.approx(share * 4 * 2 * _SEQUENCE * _FEATURES * (outputs / 2) / 1e12, rel=1e-3)


@pytest.mark.parametrize("share", [1e-9, 0.5])
def test_inputs_cut_by_positions_are_gathered_again_for_the_weights(share: float) -> None:
    """Over a slow link: those of queries, keys and values, the wide matrix, and the head, beside the gradients of inputs."""
    outputs = _BLOCKS * (3 * _FEATURES + 4 * _FEATURES) + _WORDS
    hidden = share * 4 * 2 * _SEQUENCE * _FEATURES * (outputs / 2) / 1e12
    again = 4 * (2 * _BLOCKS + 1) * _SEQUENCE * _FEATURES * 2 / 2 / 1e6  # each rank receives half of 2 bytes per number
    shown = _gpt_step_s(bandwidth=1e6, cut=True, column_overlap=share) - _gpt_step_s(bandwidth=1e6, cut=True)
    assert shown == pytest.approx(again - 2 * hidden, rel=1e-3)


def test_no_more_is_hidden_than_is_sent() -> None:
    """Over a quick link all that the backward pass sends hides, for five matrices, as a share of what both passes send."""
    sent = _gpt_step_s(bandwidth=1e12) - _gpt_step_s(bandwidth=1e12, tp_overlap=1.0)
    hidden = _gpt_step_s(bandwidth=1e12) - _gpt_step_s(bandwidth=1e12, column_overlap=1.0)
    # Forward: two matrices split by rows in each block, and the embedding, all of as many bytes.
    assert 0 < hidden < sent
    assert hidden == pytest.approx(sent * 5 / 10, rel=0.05)


def test_nothing_is_hidden_where_weights_are_whole() -> None:
    assert _gpt_step_s(tp=1, column_overlap=1.0) == _gpt_step_s(tp=1)
