"""Weights of imported networks against closed formulas, written from the architectures' papers and code, for random sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel.network.graph import Graph
from planner.files.documents import document_of
from planner.files.expansion import expand
from planner.files.validation import validate
from planner.importers.hugging_face.config import convert
from planner.schema.model import NetworkFile

Config = dict[str, Any]


def graph_of(config: Config) -> Graph:
    imported = convert(document_of(Path("config.json"), "", config))
    document = document_of(Path("config.json"), "", imported.content)
    network = validate(NetworkFile, document)
    return Graph.build(network.name, expand(network, document).specs)


def llama_like(c: Config) -> int:
    """V d (twice unless tied) + L (q, k, v, o + 3 d f + 2 norms) + norm, with the biases that a type has."""
    d, depth = c["hidden_size"], c["num_hidden_layers"]
    heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
    size = c.get("head_dim") or d // heads
    attention = d * size * (2 * heads + 2 * groups)
    if c.get("attention_bias"):
        attention += size * (heads + 2 * groups) + d
    if c["model_type"] == "qwen2":
        attention += size * (heads + 2 * groups)
    if c["model_type"].startswith("qwen3"):
        attention += 2 * size
    experts = c.get("num_local_experts") or c.get("num_experts")
    if experts:
        width = c.get("moe_intermediate_size") or c["intermediate_size"]
        feeding = experts * (3 * d * width + d)
    else:
        feeding = 3 * d * c["intermediate_size"] + (2 * c["intermediate_size"] + d if c.get("mlp_bias") else 0)
    norms = 4 if c["model_type"] == "gemma2" else 2
    return c["vocab_size"] * d * (1 if c["tie_word_embeddings"] else 2) + depth * (attention + feeding + norms * d) + d


def deepseek(c: Config) -> int:
    d, heads = c["hidden_size"], c["num_attention_heads"]
    nope, rope, value, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    low = c["q_lora_rank"]
    queries = d * heads * (nope + rope) if low is None else d * low + low + low * heads * (nope + rope)
    keys = d * (rank + rope) + rank + rank * heads * (nope + value)
    each = queries + keys + heads * value * d + 2 * d
    dense = c["first_k_dense_replace"]
    bias = 1 if c["model_type"] == "deepseek_v3" else 0
    experts = c["n_routed_experts"] * (d + bias)
    experts += (c["n_routed_experts"] + c["n_shared_experts"]) * 3 * d * c["moe_intermediate_size"]
    feeding = dense * 3 * d * c["intermediate_size"] + (c["num_hidden_layers"] - dense) * experts
    return 2 * c["vocab_size"] * d + c["num_hidden_layers"] * each + feeding + d


def gpt2(c: Config) -> int:
    """arXiv:1909.08053: 12 L d^2 (1 + 13/(12 d)) + (V + s) d, + 2 d for the last norm, with f = 4 d."""
    d = c["n_embd"]
    return c["n_layer"] * (12 * d * d + 13 * d) + (c["vocab_size"] + c["n_positions"]) * d + 2 * d


def gpt_neox(c: Config) -> int:
    d, f = c["hidden_size"], c["intermediate_size"]
    each = 4 * d * d + (4 * d if c["attention_bias"] else 0) + 2 * d * f + f + d + 4 * d
    return 2 * c["vocab_size"] * d + c["num_hidden_layers"] * each + 2 * d


def phi(c: Config) -> int:
    d, f = c["hidden_size"], c["intermediate_size"]
    each = 4 * d * d + 4 * d + 2 * d * f + f + d + 2 * d
    if c["qk_layernorm"]:
        each += 4 * (d // c["num_attention_heads"])
    return 2 * c["vocab_size"] * d + c["vocab_size"] + c["num_hidden_layers"] * each + 2 * d


def opt(c: Config) -> int:
    d, f, narrow = c["hidden_size"], c["ffn_dim"], c["word_embed_proj_dim"]
    each = 4 * d * d + 4 * d + 2 * d * f + f + d + 4 * d
    total = c["vocab_size"] * narrow + (c["max_position_embeddings"] + 2) * d + c["num_hidden_layers"] * each
    return total + (2 * d if c["do_layer_norm_before"] else 0) + (2 * d * narrow if narrow != d else 0)


def bert(c: Config) -> int:
    d, f = c["hidden_size"], c["intermediate_size"]
    rows = c["vocab_size"] + c["max_position_embeddings"] + c["type_vocab_size"]
    return (rows + 2) * d + c["num_hidden_layers"] * (4 * d * d + 4 * d + 2 * d * f + f + d + 4 * d) + d * d + d


def t5(c: Config) -> int:
    d, f, inner = c["d_model"], c["d_ff"], c["num_heads"] * c["d_kv"]
    attention = 4 * d * inner
    feeding = (3 if c["feed_forward_proj"].startswith("gated") else 2) * d * f
    encoder = c["num_layers"] * (attention + feeding + 2 * d)
    decoder = c["num_decoder_layers"] * (2 * attention + feeding + 3 * d)
    buckets = 2 * c["relative_attention_num_buckets"] * c["num_heads"]
    return encoder + decoder + 2 * d + buckets + c["vocab_size"] * d * (1 if c["tie_word_embeddings"] else 2)


def vit(c: Config) -> int:
    d, f = c["hidden_size"], c["intermediate_size"]
    patches = (c["image_size"] // c["patch_size"]) ** 2
    embedding = d * (c["num_channels"] * c["patch_size"] ** 2 + 1) + d + (patches + 1) * d
    biases = (3 * d if c["qkv_bias"] else 0) + d
    each = 4 * d * d + biases + 2 * d * f + f + d + 4 * d
    return embedding + c["num_hidden_layers"] * each + 2 * d + (d + 1) * c["num_labels"]


def bloom(c: Config) -> int:
    d = c["hidden_size"]
    return c["vocab_size"] * d + 2 * d + c["n_layer"] * (12 * d * d + 13 * d) + 2 * d


def falcon(c: Config) -> int:
    d = c["hidden_size"]
    size = d // c["num_attention_heads"]
    is_new = c["new_decoder_architecture"]
    groups = c["num_kv_heads"] if is_new else 1
    bias = (d + 2 * groups * size) + d + 4 * d + d if c["bias"] else 0
    norms = 2 * 2 * d if is_new else 2 * d
    return (
        c["vocab_size"] * d
        + 2 * d
        + c["num_hidden_layers"] * (2 * d * d + 2 * groups * size * d + 8 * d * d + bias + norms)
    )


def mpt(c: Config) -> int:
    d, ratio = c["d_model"], c["expansion_ratio"]
    return c["vocab_size"] * d + c["n_layers"] * ((4 + 2 * ratio) * d * d + 2 * d) + d


small = st.integers(1, 4)
width = st.sampled_from([64, 96, 192])  # all can be divided by the numbers of heads below
vocabulary = st.integers(10, 1000)


def a_llama_like(model_type: str, **more: st.SearchStrategy[Any]) -> st.SearchStrategy[Config]:
    heads = st.sampled_from([(8, 8), (8, 4), (8, 1), (1, 1), (4, 2)])

    def built(pair: tuple[int, int], config: Config) -> Config:
        return {**config, "num_attention_heads": pair[0], "num_key_value_heads": pair[1]}

    keys = {
        "model_type": st.just(model_type),
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": st.integers(1, 300),
        "num_hidden_layers": small,
        "tie_word_embeddings": st.booleans(),
        **more,
    }
    return st.builds(built, heads, st.fixed_dictionaries(keys))


def fixed(model_type: str, **keys: st.SearchStrategy[Any]) -> st.SearchStrategy[Config]:
    return st.fixed_dictionaries({"model_type": st.just(model_type), **keys})


BIAS = {"attention_bias": st.booleans()}
HEAD = {"head_dim": st.integers(1, 100)}
MAYBE_HEAD = {"head_dim": st.none() | st.integers(1, 100)}
EXPERTS = st.integers(2, 9)
LATENT = {
    "vocab_size": vocabulary,
    "hidden_size": width,
    "intermediate_size": st.integers(1, 300),
    "moe_intermediate_size": st.integers(1, 300),
    "num_hidden_layers": st.integers(1, 6),
    "num_attention_heads": small,
    "n_shared_experts": st.integers(0, 3),
    "n_routed_experts": EXPERTS,
    "num_experts_per_tok": st.integers(1, 2),
    "first_k_dense_replace": st.integers(0, 4),
    "q_lora_rank": st.none() | st.integers(1, 90),
    "kv_lora_rank": st.integers(1, 90),
    "qk_nope_head_dim": st.integers(1, 90),
    "qk_rope_head_dim": st.integers(1, 90),
    "v_head_dim": st.integers(1, 90),
}
PLAIN = {
    "vocab_size": vocabulary,
    "hidden_size": width,
    "num_hidden_layers": small,
    "num_attention_heads": st.sampled_from([1, 2, 8]),
}
FEEDING = {"intermediate_size": st.integers(1, 300)}


def has_dense_layers(c: Config) -> bool:
    """No more layers before the first with experts than there are, which is refused."""
    return int(c["first_k_dense_replace"]) <= int(c["num_hidden_layers"])


CASES: dict[str, tuple[Callable[[Config], int], st.SearchStrategy[Config]]] = {
    "llama": (llama_like, a_llama_like("llama", **BIAS, **MAYBE_HEAD, mlp_bias=st.booleans())),
    "mistral": (llama_like, a_llama_like("mistral", **MAYBE_HEAD, sliding_window=st.none() | st.integers(1, 9))),
    "mixtral": (
        llama_like,
        a_llama_like("mixtral", **MAYBE_HEAD, num_local_experts=EXPERTS, num_experts_per_tok=st.integers(1, 2)),
    ),
    "qwen2": (llama_like, a_llama_like("qwen2")),
    "qwen3": (llama_like, a_llama_like("qwen3", **BIAS, **HEAD)),
    "qwen3_moe": (
        llama_like,
        a_llama_like(
            "qwen3_moe",
            **BIAS,
            **HEAD,
            num_experts=EXPERTS,
            num_experts_per_tok=st.integers(1, 2),
            moe_intermediate_size=st.integers(1, 300),
        ),
    ),
    "gemma": (llama_like, a_llama_like("gemma", **BIAS, **HEAD)),
    "gemma2": (llama_like, a_llama_like("gemma2", **BIAS, **HEAD)),
    "phi3": (llama_like, a_llama_like("phi3", resid_pdrop=st.sampled_from([0.0, 0.1]))),
    "deepseek_v2": (deepseek, fixed("deepseek_v2", **LATENT).filter(has_dense_layers)),
    "deepseek_v3": (deepseek, fixed("deepseek_v3", **LATENT).filter(has_dense_layers)),
    "gpt2": (
        gpt2,
        fixed(
            "gpt2",
            vocab_size=vocabulary,
            n_embd=width,
            n_layer=small,
            n_head=small.filter(lambda n: n != 3),
            n_positions=st.integers(1, 100),
        ),
    ),
    "gpt_neox": (gpt_neox, fixed("gpt_neox", **PLAIN, **FEEDING, **BIAS, use_parallel_residual=st.booleans())),
    "phi": (phi, fixed("phi", **PLAIN, **FEEDING, qk_layernorm=st.booleans())),
    "opt": (
        opt,
        fixed(
            "opt",
            **PLAIN,
            ffn_dim=st.integers(1, 300),
            max_position_embeddings=st.integers(1, 100),
            word_embed_proj_dim=st.sampled_from([64, 32]),
            do_layer_norm_before=st.booleans(),
        ),
    ),
    "bert": (
        bert,
        fixed("bert", **PLAIN, **FEEDING, max_position_embeddings=st.integers(1, 100), type_vocab_size=small),
    ),
    "t5": (
        t5,
        fixed(
            "t5",
            vocab_size=vocabulary,
            d_model=width,
            d_ff=st.integers(1, 300),
            d_kv=st.integers(1, 90),
            num_heads=small,
            num_layers=small,
            num_decoder_layers=small,
            relative_attention_num_buckets=st.integers(1, 40),
            dropout_rate=st.sampled_from([0.0, 0.1]),
            feed_forward_proj=st.sampled_from(["relu", "gelu", "gated-gelu", "gated-silu"]),
            tie_word_embeddings=st.booleans(),
        ),
    ),
    "vit": (
        vit,
        fixed(
            "vit",
            hidden_size=width,
            num_hidden_layers=small,
            num_attention_heads=st.sampled_from([1, 2, 8]),
            **FEEDING,
            num_channels=small,
            image_size=st.sampled_from([32, 64]),
            patch_size=st.sampled_from([8, 16, 32]),
            qkv_bias=st.booleans(),
            num_labels=st.integers(1, 20),
        ),
    ),
    "bloom": (bloom, fixed("bloom", vocab_size=vocabulary, hidden_size=width, n_layer=small, n_head=st.just(8))),
    "falcon": (
        falcon,
        fixed(
            "falcon",
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=small,
            num_attention_heads=st.just(8),
            num_kv_heads=st.sampled_from([1, 2, 8]),
            bias=st.booleans(),
            new_decoder_architecture=st.booleans(),
        ),
    ),
    "mpt": (
        mpt,
        fixed("mpt", vocab_size=vocabulary, d_model=width, n_layers=small, n_heads=st.just(8), expansion_ratio=small),
    ),
}


@pytest.mark.parametrize("model_type", CASES)
@settings(derandomize=True)
@given(data=st.data())
def test_weights_are_those_of_the_formula(model_type: str, data: st.DataObject) -> None:
    formula, configs = CASES[model_type]
    config = data.draw(configs)
    assert graph_of(config).weight_count == formula(config)


COUNTED = json.loads(Path(__file__).with_name("hugging_face_counts.json").read_text(encoding="utf-8"))["networks"]


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: row["config"]["model_type"])
def test_weights_are_those_of_the_class(row: dict[str, Any]) -> None:
    """Biases, norms of heads, tied heads, residuals side by side and the like, switched at random."""
    assert graph_of(row["config"]).weight_count == row["weights"]


def test_shared_experts_with_a_gate() -> None:
    """Qwen1.5-MoE: experts, a shared one of its own width, its gate, and dense layers among the sparse ones."""
    config = {
        "model_type": "qwen2_moe",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 50,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_experts": 5,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 30,
        "mlp_only_layers": [1],
    }
    attention = 64 * 16 * (4 + 2 + 2) + 16 * (4 + 2 + 2) + 64 * 64
    sparse = 5 * 64 + 5 * 3 * 64 * 20 + 3 * 64 * 30 + 64
    total = 2 * 100 * 64 + 3 * (attention + 2 * 64) + 2 * sparse + 3 * 64 * 50 + 64
    assert graph_of(config).weight_count == total
