"""Serving of a network with an encoder (T5 11B), against bytes and FLOP counted by hand from its published sizes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from costmodel.mesh.rules import NetworkShape
from costmodel.network.graph import Graph
from costmodel.serving.model import ServingModel, serving_layer_rows
from costmodel.serving.plan import ServingBatch, ServingPlan, broken_serving_rules
from costmodel.serving.workload import ServingError, ServingWorkload, encoder_layers
from planner.importers.networks import load_model
from tests.costmodel.serving.servers import NO_OVERHEAD, cluster, large

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
    """Compute-bound, 4 prompts: products of the encoder and of the keys and values over the prompt, of the decoder over one token."""
    costs = served(t5, peak=1e15, memory_bandwidth=1e18).evaluate(
        ServingBatch.from_plans([ServingPlan(max_batch=4, prefill_batch=4)])
    )
    on_prompt = BLOCKS * (ATTENTION + FEED_FORWARD + 2 * FEATURES * INNER)
    on_token = BLOCKS * (2 * ATTENTION - 2 * FEATURES * INNER + FEED_FORWARD) + VOCABULARY * FEATURES
    pairs = BLOCKS * INNER * (PROMPT * PROMPT + PROMPT + 1)  # encoder; cross-attention and self-attention of one token
    flop = 4 * (2 * PROMPT * on_prompt + 2 * on_token + 4 * pairs)
    assert float(costs.prefill_compute_s[0]) == pytest.approx(flop / 1e15, rel=0.02)
    assert float(costs.ttft_s[0]) == pytest.approx(float(costs.prefill_compute_s[0]))


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


def test_an_encoder_that_sees_earlier_positions_only_is_no_encoder(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(load_model("t5-11b").path.read_text().replace("causal: false", "causal: true"))
    with pytest.raises(ServingError, match="of the encoder sees earlier positions only"):
        served(load_model(str(path)).graph)


def test_output_of_one_token_needs_no_decoding(t5: Graph) -> None:
    costs = served(t5, output=1).evaluate(ServingBatch.from_plans([ServingPlan(max_batch=2)]))
    assert float(costs.tpot_s[0]) == 0
    assert np.isfinite(costs.ttft_s).all()
