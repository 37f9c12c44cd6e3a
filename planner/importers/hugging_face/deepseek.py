"""DeepSeek-V2 and V3: multi-head latent attention and a mixture of many small experts.

Defaults are those of ``configuration_deepseek_v2.py`` and ``configuration_deepseek_v3.py`` of Hugging Face transformers; what these leave
out (``moe_layer_freq``) is in the files that DeepSeek publishes with its weights. Layers for multi-token prediction
(``num_nextn_predict_layers``) are not built: transformers does not build them either.
"""

from __future__ import annotations

from typing import Any

from planner.importers.hugging_face import blocks as b
from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.decoders import (
    MAX_LAYERS,
    causal_network,
    check_expert_groups,
    check_top_k,
    dense_layers,
)
from planner.importers.hugging_face.fields import Fields

__all__ = ["read_deepseek"]

_V2: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "moe_intermediate_size": 1407,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "n_shared_experts": 2,
    "n_routed_experts": 64,
    "num_experts_per_tok": None,
    "first_k_dense_replace": 0,
    "n_group": None,
    "topk_group": None,
    "max_position_embeddings": 2048,
}
_V3: dict[str, Any] = {
    "vocab_size": 129280,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "n_group": 8,
    "topk_group": 4,
    "max_position_embeddings": 4096,
}


def read_deepseek(fields: Fields, model_type: str) -> p.Network:
    """Make the network of a DeepSeek-V2 or V3 config."""
    is_v3 = model_type != "deepseek_v2"
    known = _V3 if is_v3 else _V2
    vocabulary = fields.count("vocab_size", known["vocab_size"])
    hidden = fields.count("hidden_size", known["hidden_size"])
    layers = fields.count("num_hidden_layers", known["num_hidden_layers"], maximum=MAX_LAYERS)
    positions = fields.count("max_position_embeddings", known["max_position_embeddings"])
    activation = p.GATES[fields.word("hidden_act", "silu", p.GATES)]
    attending = _latent_attention(fields, hidden, known["num_attention_heads"])
    width = fields.count("intermediate_size", known["intermediate_size"])
    mlp_bias = False if is_v3 else fields.flag("mlp_bias", False)
    bodies = {"dense": [attending, p.gated_feed_forward(hidden, width, activation, bias=mlp_bias)]}
    experts = _experts(fields, known, activation, router_bias=is_v3)
    sparse: set[int] = set()
    if experts is not None:
        first = dense_layers(fields, known["first_k_dense_replace"], layers)
        step = fields.count("moe_layer_freq", 1)
        sparse = {i for i in range(first, layers) if i % step == 0}
        bodies["sparse"] = [attending, [experts]]
    uses = [b.Use("sparse" if i in sparse else "dense") for i in range(layers)]
    made = {name: b.block(p.rms_norm, parts) for name, parts in bodies.items()}
    tied = fields.flag("tie_word_embeddings", False)
    return causal_network(
        fields,
        title="DeepseekV3" if is_v3 else "DeepseekV2",
        positions=positions,
        positions_key="max_position_embeddings",
        embedded=p.embedding(vocabulary, hidden),
        blocks=b.stack(uses, {name: lambda _, body=body: body for name, body in made.items()}),  # type: ignore[misc]
        last=[p.rms_norm("norm")],
        head=p.lm_head(vocabulary, tied=tied),
        summary=f"{layers} blocks of width {hidden}",
    )


def _latent_attention(fields: Fields, hidden: int, heads_default: int) -> list[p.Entry]:
    """Queries, keys and values through narrow vectors (arXiv:2405.04434, section 2.1)."""
    heads = fields.count("num_attention_heads", heads_default)
    query_rank = fields.optional_count("q_lora_rank", 1536)
    rank = fields.count("kv_lora_rank", 512)
    nope = fields.count("qk_nope_head_dim", 128)
    rope = fields.count("qk_rope_head_dim", 64)
    value = fields.count("v_head_dim", 128)
    bias = fields.flag("attention_bias", False)
    queries = heads * (nope + rope)
    if query_rank is None:
        query = [p.linear("query", queries, bias=False)]
    else:
        query = [
            p.linear("query_down", query_rank, bias=bias),
            p.rms_norm("query_norm"),
            p.linear("query", queries, bias=False),
        ]
    return [
        *query,
        p.linear("kv_down", rank + rope, bias=bias, inputs="norm1"),
        p.entry("kv_compressed", "slice_features", features=rank),
        p.rms_norm("kv_norm"),
        p.linear("kv", heads * (nope + value), bias=False),
        p.entry(
            "attention",
            "latent_attention",
            ["query", "kv", "kv_down"],
            heads=heads,
            nope_dim=nope,
            rope_dim=rope,
            value_dim=value,
        ),
        p.linear("proj", hidden, bias=bias),
    ]


def _experts(fields: Fields, known: dict[str, Any], activation: str, *, router_bias: bool) -> p.Entry | None:
    """The mixture; None where ``n_routed_experts`` is null. V3's router has a bias per expert that balances the load."""
    routed = fields.optional_count("n_routed_experts", known["n_routed_experts"], "num_experts", "num_local_experts")
    if routed is None:
        return None
    chosen = fields.count("num_experts_per_tok", known["num_experts_per_tok"])
    check_top_k(fields, chosen, routed, "n_routed_experts")
    check_expert_groups(fields, chosen, routed, known["n_group"])
    groups = fields.optional_count("n_group", known["n_group"]) or 1
    shared = fields.optional_count("n_shared_experts", known["n_shared_experts"], minimum=0)
    return p.entry(
        "moe",
        "moe",
        experts=routed,
        top_k=chosen,
        ffn=fields.count("moe_intermediate_size", known["moe_intermediate_size"]),
        activation=activation if activation != "silu" else None,
        shared_experts=shared or None,
        router_bias=True if router_bias else None,
        groups=groups if groups > 1 else None,
        top_groups=fields.optional_count("topk_group", known["topk_group"]) if groups > 1 else None,
    )
