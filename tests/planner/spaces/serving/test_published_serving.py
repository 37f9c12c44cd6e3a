"""Bundled networks against published numbers: cache per token, the roofline of decoding, throughput of a serving engine."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from costmodel.kernels.roofline import kernel_time_s
from costmodel.mesh.rules import NetworkShape
from costmodel.network.graph import Graph
from costmodel.precision import PRECISIONS
from costmodel.serving.model import ServingModel, serving_layer_rows
from costmodel.serving.plan import ServingBatch, ServingPlan, broken_serving_rules
from costmodel.serving.workload import ServingAssumptions, ServingError, ServingWorkload, encoder_layers
from planner.files.loading import load_cluster, load_device
from planner.importers.networks import load_model
from strategies.mesh.settings import Bounds
from strategies.serving.search import ServingSettings, search_serving
from tests.costmodel.serving.servers import NO_OVERHEAD, cluster, large


def model(
    name: str, prompt: int, output: int, weights: str = "bf16", kv_bytes: float = 2.0, **assumed: float
) -> ServingModel:
    work = ServingWorkload(
        graph=load_model(name).graph,
        prompt_tokens=prompt,
        output_tokens=output,
        precision=PRECISIONS[weights],
        kv_bytes=kv_bytes,
    )
    return ServingModel.build(work, load_cluster("dgx-h100").cluster, ServingAssumptions(**assumed))


@pytest.mark.parametrize(
    ("name", "kilobytes"),
    # Zhao et al., Insights into DeepSeek-V3 (arXiv:2505.09343), table 1: cache per token in bf16.
    [("deepseek-v3", 70.272), ("llama3-405b", 516.096)],
)
def test_cache_per_token_is_the_published_one(name: str, kilobytes: float) -> None:
    costs = model(name, 1008, 16).evaluate(ServingBatch.from_plans([ServingPlan()]))
    assert float(costs.sequence_bytes[0]) == pytest.approx(1024 * kilobytes * 1e3)


def test_decoding_one_sequence_of_llama_70b_reads_its_weights_over_eight_devices() -> None:
    """141 GB less the embedding, over 8 devices that reach 85 % of 3.35 TB/s: 6.1 ms; 161 all-reduces: 0.7 ms.

    A kernel of 2 us in which each device waits for flags of 0.18 and six times 0.04 of 4 us and reads 7 times 16 KiB at 0.75 of 369 GB/s:
    4.1 us each (3.6 us measured, TensorRT-LLM on H100).
    """
    costs = model("llama3-70b", 1024, 256).evaluate(ServingBatch.from_plans([ServingPlan(tp=8)]))
    weights_s = 2 * (70.55e9 - 128256 * 8192) / 8 / (0.85 * 3.35e12)
    assert float(costs.decode_tp_s[0]) == pytest.approx(
        161 * (2e-6 + 0.42 * 4e-6 + 7 * 16384 / (0.75 * 369e9)), rel=0.05
    )
    assert weights_s < float(costs.decode_compute_s[0]) < weights_s + 80 * 9 * 2.6e-6 + 1e-3
    assert 8e-3 < float(costs.tpot_s[0]) < 14e-3


# DeepGEMM (deepseek-ai/DeepGEMM, README of February 2025), products in fp8 on H800, which computes like an H100: groups of m x n x k,
# TFLOP/s.
PRODUCTS = (
    (1, 64, 2112, 7168, 206), (1, 64, 24576, 1536, 289), (1, 64, 32768, 512, 219), (1, 64, 7168, 16384, 336),
    (1, 64, 4096, 7168, 287), (1, 64, 7168, 2048, 295), (1, 128, 2112, 7168, 352), (1, 128, 24576, 1536, 535),
    (1, 128, 32768, 512, 358), (1, 128, 7168, 16384, 645), (1, 128, 4096, 7168, 533), (1, 128, 7168, 2048, 510),
)  # fmt: skip
GROUPED = (
    (1, 1024, 4096, 7168, 1233), (1, 1024, 7168, 2048, 925), (2, 512, 4096, 7168, 1040),
    (2, 512, 7168, 2048, 916), (4, 256, 4096, 7168, 932), (4, 256, 7168, 2048, 815),
)  # fmt: skip


@pytest.mark.parametrize(("tiling", "products"), [("library", PRODUCTS), ("grouped", GROUPED)])
def test_products_of_few_rows_take_what_they_were_measured_to_take(
    tiling: str, products: tuple[tuple[int, int, int, int, int], ...]
) -> None:
    device = replace(load_device("h100-sxm").device, launch_overhead_s=ServingAssumptions().kernel_overhead_s)
    errors = []
    for groups, m, n, k, rate in products:
        flop = 2.0 * groups * m * n * k
        moved = groups * (m * k + n * k + 2.0 * m * n)
        found = kernel_time_s(device, "fp8", flop=flop, memory_bytes=moved, gemm=(m, n, k), tiling=tiling)
        errors.append(float(found) / (flop / (rate * 1e12)) - 1.0)
    assert abs(sum(errors) / len(errors)) < 0.03
    assert sum(map(abs, errors)) / len(errors) < 0.08
    assert max(map(abs, errors)) < 0.28


def test_llama_70b_in_bf16_fits_on_two_devices_but_not_on_one() -> None:
    found = model("llama3-70b", 1024, 256)
    for gpus, fits in ((1, False), (2, True)):
        settings = ServingSettings(max_workers=gpus, capacity_bytes=found.capacity_bytes)
        outcome = search_serving(found, settings)
        assert bool(outcome.candidates) == fits
        assert (outcome.nearest_miss is None) == fits


def test_decoding_of_deepseek_v3_is_near_its_operators_figures() -> None:
    """14.8 k output tokens/s per node of eight at 20 to 22 tokens/s per user and 4,989 cached positions, experts over 18 nodes.

    DeepSeek-AI, open-infra-index, "DeepSeek-V3/R1 inference system overview" (H800: the same memory and InfiniBand, less NVLink).
    1,850 tokens/s per device at 21 per user are 88 sequences; here over 128 devices, which divide the 256 experts. A load balancer makes
    ranks equal, and the host works ahead as in engines of today.
    """
    found = model("deepseek-v3", 4960, 60, "fp8", expert_spread=0.0, pass_overhead_s=0.75e-3)
    costs = found.evaluate(ServingBatch.from_plans([ServingPlan(ep=128, dp=128, max_batch=88)]))
    assert 88 / float(costs.decode_pass_s[0]) == pytest.approx(1850, rel=0.15)
    assert 1 / float(costs.decode_pass_s[0]) == pytest.approx(21, rel=0.15)


def test_decoding_of_deepseek_v3_is_near_another_engines_figure() -> None:
    """22.3 k output tokens/s per node of eight H100, prompts of 2,000 tokens, 256 sequences per device, experts over 72, balanced.

    SGLang team, "Deploying DeepSeek with PD Disaggregation and Large-scale Expert Parallelism on 96 H100 GPUs" (LMSYS, May 2025); here
    over 64 devices, which divide the 256 experts.
    """
    found = model("deepseek-v3", 2000, 100, "fp8", expert_spread=0.0)
    costs = found.evaluate(ServingBatch.from_plans([ServingPlan(ep=64, dp=64, max_batch=256)]))
    assert 256 / float(costs.decode_pass_s[0]) == pytest.approx(22300 / 8, rel=0.1)


def test_a_load_balancer_gains_about_what_it_was_measured_to_gain() -> None:
    """Without one, prefills over 32 ranks take 1.49 times as long and decoding over 72 ranks 2.54 times (the same source, EPLB)."""
    for plan, prompt, output, gain in (
        (ServingPlan(ep=32, dp=32, max_batch=8, prefill_batch=8), 2048, 1, 1.49),
        (ServingPlan(ep=64, dp=64, max_batch=256), 2000, 100, 2.54),
    ):
        even, uneven = (model("deepseek-v3", prompt, output, "fp8", expert_spread=s) for s in (0.0, 1.0))
        rates = [float(m.evaluate(ServingBatch.from_plans([plan])).total_tokens_per_s[0]) for m in (even, uneven)]
        assert 0.6 * gain < rates[0] / rates[1] < 1.4 * gain


# TensorRT-LLM, docs/source/performance/perf-overview.md (v1.0): output tokens/s under maximum load on H100 SXM 80 GB, weights and
# cache in fp8, by prompt and output tokens; and requests of a run.
PUBLISHED = {
    ("llama3-8b", 1): {
        (128, 128): 28312, (128, 2048): 22714, (128, 4096): 14325, (500, 2000): 17660, (1000, 1000): 15220,
        (1000, 2000): 13899, (2048, 128): 3450, (2048, 2048): 9305, (5000, 500): 3459, (20000, 2000): 1351,
    },
    ("llama3-70b", 2): {
        (128, 128): 6378, (128, 2048): 6651, (128, 4096): 4199, (500, 2000): 5222, (1000, 1000): 4205,
        (1000, 2000): 4146, (2048, 128): 762, (2048, 2048): 3082, (5000, 500): 898, (20000, 2000): 437,
    },
    ("llama3-405b", 8): {
        (128, 128): 3627, (128, 2048): 4340, (128, 4096): 3116, (500, 2000): 3994, (1000, 1000): 2919,
        (1000, 2000): 2895, (2048, 128): 453, (2048, 2048): 2296, (5000, 500): 610, (20000, 2000): 345,
    },
}  # fmt: skip
REQUESTS = {
    (128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000,
    (1000, 2000): 1500, (2048, 128): 3000, (2048, 2048): 1500, (5000, 500): 1500, (20000, 2000): 1000,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tp", "lengths", "published"),
    [(name, tp, lengths, rate) for (name, tp), rows in PUBLISHED.items() for lengths, rate in rows.items()],
)
def test_throughput_is_near_that_of_a_serving_engine(
    name: str, tp: int, lengths: tuple[int, int], published: float
) -> None:
    """No constant of the model was fitted to these. The last requests of a run, fewer than a server holds, leave places empty."""
    found, requests = model(name, *lengths, "fp8", 1.0), REQUESTS[lengths]
    degrees = {"tp": Bounds(values=(tp,)), "max_batch": Bounds(low=1, high=2048)}
    settings = ServingSettings(max_workers=tp, capacity_bytes=found.capacity_bytes, degrees=degrees, top=1)
    best = search_serving(found, settings).candidates[0]
    whole, left = divmod(requests, best.plan.max_batch)
    few = replace(best.plan, max_batch=max(left, 1), prefill_batch=min(best.plan.prefill_batch, max(left, 1)))
    full_s, last_s = found.times(ServingBatch.from_plans([best.plan, few]))["request_s"].tolist()
    run_s = (whole * full_s + (last_s if left else 0.0)) * best.plan.max_batch / requests
    assert 0.8 < full_s / run_s / best.score / published < 1.2


# --- Serving of a network with an encoder (T5 11B), against bytes and FLOP counted by hand from its published sizes -----------------------


# Raffel et al. (arXiv:1910.10683), section 2.1: 24 + 24 layers of 1024, 128 heads of 128, feed-forward 65,536.
BLOCKS, FEATURES, INNER, WIDE, VOCABULARY = 24, 1024, 128 * 128, 65536, 32128
ATTENTION = 4 * FEATURES * INNER  # queries, keys, values and output
FEED_FORWARD = 2 * FEATURES * WIDE
PROMPT, OUTPUT = 512, 100


@pytest.fixture(scope="module")
def t5() -> Graph:
    return load_model("t5-11b").graph


def served(graph: Graph, *, prompt: int = PROMPT, output: int = OUTPUT, **hardware: Any) -> ServingModel:
    work = ServingWorkload(graph=graph, prompt_tokens=prompt, output_tokens=output)
    return ServingModel.build(work, cluster(**hardware), NO_OVERHEAD)


def test_the_encoder_is_what_the_cross_attention_reads(t5: Graph) -> None:
    names = {t5.layers[i].name for i in encoder_layers(t5)}
    assert {
        "source",
        "embedding",
        "encoder.1.qkv",
        "encoder_norm",
        "decoder.1.keys_values",
        "decoder.24.keys_values",
    } <= names
    assert not {"target", "target_embedding", "decoder.1.norm1", "decoder.1.queries", "decoder.1.cross", "head"} & names
    assert encoder_layers(large()) == frozenset()


def test_a_decoding_pass_reads_the_decoder_and_both_caches(t5: Graph) -> None:
    """Memory-bound, one sequence: the decoder's matrices but those of the encoder's keys and values, the head, and what is kept."""
    costs = served(t5).evaluate(ServingBatch.from_plans([ServingPlan()]))
    keys_values = 2 * FEATURES * INNER
    weights = BLOCKS * (2 * ATTENTION - keys_values + FEED_FORWARD) + VOCABULARY * FEATURES
    # The token before the answer, and half of the answer on average; the new position is written.
    cached = BLOCKS * 2 * INNER * (PROMPT + 1 + OUTPUT / 2 + 1)
    assert float(costs.decode_compute_s[0]) == pytest.approx(2 * (weights + cached) / 1e12, rel=0.003)


def test_the_encoder_runs_once_and_the_decoder_starts_with_one_token(t5: Graph) -> None:
    """Compute-bound, one prompt: products of the encoder and of the keys and values over the prompt, of the decoder over one token."""
    costs = served(t5, peak=1e15, memory_bandwidth=1e18).evaluate(
        ServingBatch.from_plans([ServingPlan(max_batch=4, prefill_batch=4)])
    )
    on_prompt = BLOCKS * (ATTENTION + FEED_FORWARD + 2 * FEATURES * INNER)
    on_token = BLOCKS * (2 * ATTENTION - 2 * FEATURES * INNER + FEED_FORWARD) + VOCABULARY * FEATURES
    pairs = BLOCKS * INNER * (PROMPT * PROMPT + PROMPT + 1)  # encoder; cross-attention and self-attention of one token
    flop = 2 * PROMPT * on_prompt + 2 * on_token + 4 * pairs
    assert float(costs.prefill_compute_s[0]) == pytest.approx(flop / 1e15, rel=0.02)
    assert float(costs.ttft_s[0] - costs.queue_s[0]) == pytest.approx(float(costs.prefill_compute_s[0]))


@pytest.mark.parametrize("tp", [1, 8])
def test_a_sequence_keeps_the_prompts_keys_and_its_own(t5: Graph, tp: int) -> None:
    costs = served(t5).evaluate(ServingBatch.from_plans([ServingPlan(tp=tp, max_batch=3)]))
    kept = BLOCKS * 2 * INNER // tp * (PROMPT + 1 + OUTPUT) * 2
    assert float(costs.sequence_bytes[0]) == kept
    assert float(costs.kv_bytes[0]) == 3 * kept


def test_what_the_prompt_costs_a_token_is_its_cache_alone(t5: Graph) -> None:
    short, long = (
        served(t5, prompt=p).evaluate(ServingBatch.from_plans([ServingPlan(max_batch=8)])) for p in (PROMPT, 2 * PROMPT)
    )
    more = float(long.decode_compute_s[0] - short.decode_compute_s[0])
    assert more == pytest.approx(8 * BLOCKS * 2 * INNER * PROMPT * 2 / 1e12)


def test_layers_of_the_encoder_take_no_part_in_decoding(t5: Graph) -> None:
    rows = [SimpleNamespace(**row) for row in serving_layer_rows(served(t5), ServingPlan(tp=2, max_batch=4))]
    for row in rows:
        on_prompt = row.name.startswith("encoder") or row.name.endswith("keys_values") or row.name == "embedding"
        assert (row.decode_s + row.decode_exchange_s == 0) == (on_prompt or row.kind in ("input", "dropout")), row.name
    caches = {row.name: row.cache_bytes for row in rows if row.cache_bytes}
    assert set(caches) == {f"decoder.{n}.{layer}" for n in (1, 2) for layer in ("attention", "cross")}


def test_one_stage_and_whole_prompts(t5: Graph) -> None:
    model = served(t5)
    shape = NetworkShape.of(t5, model.modules, 1)
    assert broken_serving_rules(shape, ServingPlan(tp=2, dp=2, max_batch=4, prefill_batch=2)) == []
    for plan in (ServingPlan(pp=2), ServingPlan(prefill_chunk=256), ServingPlan(prefill_chunk=PROMPT)):
        (message,) = broken_serving_rules(shape, plan)
        assert "an encoder" in message


def test_the_search_answers_and_proves(answer: Any) -> None:
    asked = "optimize t5-11b --mode inference --gpus 4 --prompt 512 --output-tokens 114 --max-tpot 10ms --json"
    found = json.loads(answer(*asked.split()))
    assert found["space"] == "serving"
    assert found["proven_optimal"]
    assert all(p["plan"]["pp"] == 1 and p["plan"]["prefill_chunk"] == 0 and p["tpot_s"] <= 0.01 for p in found["plans"])
    rates = [p["output_tokens_per_s"] for p in found["plans"]]
    assert rates == sorted(rates, reverse=True)
    assert any(a["name"] == "decoder" for a in found["assumptions"])


def test_an_encoder_that_sees_earlier_positions_only_is_no_encoder(new_file: Any) -> None:
    path = new_file("odd.yaml", load_model("t5-11b").path.read_text().replace("causal: false", "causal: true"))
    with pytest.raises(ServingError, match="of the encoder sees earlier positions only"):
        served(load_model(str(path)).graph)


def test_output_of_one_token_needs_no_decoding(t5: Graph) -> None:
    costs = served(t5, output=1).evaluate(ServingBatch.from_plans([ServingPlan(max_batch=2)]))
    assert float(costs.tpot_s[0]) == 0
    assert np.isfinite(costs.ttft_s).all()
