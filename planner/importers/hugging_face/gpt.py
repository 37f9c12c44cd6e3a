"""Decoders that are no row of `families`: OPT, Falcon, MPT and DBRX.

Defaults are those of the config classes of Hugging Face transformers (``src/transformers/models/<model_type>/configuration_*.py``), what
the architectures do with them is in ``modeling_*.py`` there.
"""

from __future__ import annotations

from functools import partial

from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.decoders import MAX_LAYERS, causal_network, check_top_k
from planner.importers.hugging_face.fields import Fields

__all__ = ["read_dbrx", "read_falcon", "read_mpt", "read_opt"]


def _blocks(layers: int, body: list[p.Entry]) -> tuple[dict[str, object], list[p.Entry]]:
    return p.stack([p.Use("decoder")] * layers, {"decoder": lambda _: body})


def read_opt(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001
    """OPT: learned positions with an offset of 2; the 350M one is post-norm and has a narrower embedding."""
    vocabulary = fields.count("vocab_size", 50272)
    hidden = fields.count("hidden_size", 768, "d_model")
    layers = fields.count("num_hidden_layers", 12, maximum=MAX_LAYERS)
    positions = fields.count("max_position_embeddings", 2048)
    heads = p.read_heads(fields, hidden, heads=("num_attention_heads", 12), reads_kv=False, reads_head_dim=False)
    width = fields.count("ffn_dim", 3072)
    narrow = fields.optional_count("word_embed_proj_dim", None) or hidden
    function = p.ACTIVATIONS[fields.word("activation_function", "relu", p.ACTIVATIONS)]
    rate = fields.probability("dropout", 0.1)
    bias = fields.flag("enable_bias", True)
    is_before = fields.flag("do_layer_norm_before", True)
    fields.refuse("layer_norm_elementwise_affine", True, "layer norms without weights cannot be read")
    score_dropout = fields.probability("attention_dropout", 0.0)
    attending = p.attention(heads, hidden, qkv_bias=bias, proj_bias=bias, score_dropout=score_dropout)
    parts = [attending, p.feed_forward(hidden, width, function, bias=bias)]
    make = p.block if is_before else p.post_norm_block
    has_norm = is_before and not fields.flag("_remove_final_layer_norm", False)
    return causal_network(
        fields,
        title="OPT",
        positions=positions,
        positions_key="max_position_embeddings",
        embedded=[
            *p.embedding(vocabulary, narrow),
            *([p.linear("project_in", hidden, bias=False)] if narrow != hidden else []),
            p.entry(
                "positions", "position_embedding", max_positions=positions + 2
            ),  # OPTLearnedPositionalEmbedding.offset
        ],
        blocks=_blocks(layers, make(p.layer_norm, parts, rate=rate)),
        last=[
            *([p.layer_norm("norm")] if has_norm else []),
            *([p.linear("project_out", narrow, bias=False)] if narrow != hidden else []),
        ],
        head=p.lm_head(vocabulary, tied=fields.flag("tie_word_embeddings", True)),
        summary=f"{layers} blocks of width {hidden}",
    )


def read_falcon(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001
    """Falcon: one key/value head (7B) or some (40B), one norm or two before attention and feed-forward part side by side."""
    vocabulary = fields.count("vocab_size", 65024)
    hidden = fields.count("hidden_size", 4544, "n_embed")
    layers = fields.count("num_hidden_layers", 32, "n_layer", maximum=MAX_LAYERS)
    positions = fields.count("max_position_embeddings", 2048)
    heads = _falcon_heads(fields, hidden)
    width = fields.optional_count("ffn_hidden_size", None) or 4 * hidden
    bias = fields.flag("bias", False)
    rate = fields.probability("hidden_dropout", 0.0)
    function = p.ACTIVATIONS[fields.word("activation", "gelu", p.ACTIVATIONS)]
    score_dropout = fields.probability("attention_dropout", 0.0)
    attending = p.attention(heads, hidden, qkv_bias=bias, proj_bias=bias, score_dropout=score_dropout)
    feeding = p.feed_forward(hidden, width, function, bias=bias)
    is_new = fields.flag("new_decoder_architecture", False)
    norms = fields.optional_count("num_ln_in_parallel_attn", None) or (2 if is_new else 1)
    if fields.flag("parallel_attn", True):
        body = p.parallel_block(p.layer_norm, attending, feeding, norms=2 if norms == 2 else 1, rate=rate)
    else:
        body = p.block(p.layer_norm, [attending, feeding], rate=rate)
    return causal_network(
        fields,
        title="Falcon",
        positions=positions,
        positions_key="max_position_embeddings",
        embedded=p.embedding(vocabulary, hidden),
        blocks=_blocks(layers, body),
        last=[p.layer_norm("norm")],
        head=p.lm_head(vocabulary, tied=fields.flag("tie_word_embeddings", True)),
        summary=f"{layers} blocks of width {hidden}",
    )


def _falcon_heads(fields: Fields, hidden: int) -> p.Heads:
    """Key/value heads are read with the new architecture only, or without multi-query attention (modeling_falcon.py)."""
    own = p.read_heads(
        fields, hidden, heads=("num_attention_heads", 71, "n_head"), reads_kv=False, reads_head_dim=False
    )
    kv_heads = fields.optional_count("num_kv_heads", None, "n_head_kv") or own.heads
    p.check_groups(fields, own.heads, kv_heads, "num_attention_heads", "num_kv_heads")
    is_multi_query = fields.flag("multi_query", True) and not fields.flag("new_decoder_architecture", False)
    return p.Heads(heads=own.heads, kv_heads=1 if is_multi_query else kv_heads, head_dim=own.head_dim)


_norm: p.Norm = partial(p.layer_norm, bias=False)


def _sizes(fields: Fields, *, vocabulary: int) -> tuple[int, int, int, int, p.Heads]:
    """Vocabulary, width, depth, positions and heads under the keys of MosaicML."""
    words = fields.count("vocab_size", vocabulary)
    hidden = fields.count("d_model", 2048, "hidden_size")
    layers = fields.count("n_layers", 24, "num_hidden_layers", maximum=MAX_LAYERS)
    positions = fields.count("max_seq_len", 2048)
    heads = p.read_heads(
        fields,
        hidden,
        heads=("n_heads", 16, "num_attention_heads"),
        reads_kv=False,
        reads_head_dim=False,
        hidden_key="d_model",
    )
    return words, hidden, layers, positions, heads


def read_mpt(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001 - every reader has both
    """MPT: ALiBi, no biases, those of the norms included."""
    vocabulary, hidden, layers, positions, heads = _sizes(fields, vocabulary=50368)
    ratio = fields.count("expansion_ratio", 4)
    rate = fields.probability("resid_pdrop", 0.0)
    attending = p.attention(heads, hidden, qkv_bias=False, proj_bias=False, score_dropout=_mpt_dropout(fields))

    body = p.block(_norm, [attending, p.feed_forward(hidden, ratio * hidden, "gelu", bias=False)], rate=rate)
    return causal_network(
        fields,
        title="Mpt",
        positions=positions,
        positions_key="max_seq_len",
        embedded=p.embedding(vocabulary, hidden),
        blocks=p.stack([p.Use("decoder")] * layers, {"decoder": lambda _: body}),
        last=[_norm("norm")],
        head=p.lm_head(vocabulary, tied=fields.flag("tie_word_embeddings", True)),
        summary=f"{layers} blocks of width {hidden}",
    )


def _mpt_dropout(fields: Fields) -> float:
    """Dropout of the attention weights, from the mapping inside the config."""
    inner = fields.inner("attn_config", "MptAttentionConfig")
    inner.word("attn_type", "multihead_attention", ["multihead_attention"])
    inner.refuse("qk_ln", False, "norms of queries and keys cannot be read (transformers does not build them)")
    return inner.probability("attn_pdrop", 0.0)


def read_dbrx(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001
    """DBRX: rotary positions, grouped heads, experts in every block, no biases."""
    vocabulary, hidden, layers, positions, own = _sizes(fields, vocabulary=32000)
    inner = fields.inner("attn_config", "DbrxAttentionConfig")
    kv_heads = inner.count("kv_n_heads", 1)
    p.check_groups(inner, own.heads, kv_heads, "n_heads", "kv_n_heads")
    heads = p.Heads(heads=own.heads, kv_heads=kv_heads, head_dim=own.head_dim)
    score_dropout = inner.probability("attn_pdrop", 0.0)
    attending = p.attention(heads, hidden, qkv_bias=False, proj_bias=False, score_dropout=score_dropout)
    rate = fields.probability("resid_pdrop", 0.0)
    body = p.block(_norm, [attending, [_dbrx_experts(fields)]], rate=rate)
    fields.refuse("tie_word_embeddings", False, "DBRX has no head that is tied to its embedding")
    return causal_network(
        fields,
        title="Dbrx",
        positions=positions,
        positions_key="max_seq_len",
        embedded=p.embedding(vocabulary, hidden),
        blocks=p.stack([p.Use("decoder")] * layers, {"decoder": lambda _: body}),
        last=[_norm("norm")],
        head=p.lm_head(vocabulary, tied=False),
        summary=f"{layers} blocks of width {hidden}",
    )


def _dbrx_experts(fields: Fields) -> p.Entry:
    inner = fields.inner("ffn_config", "DbrxFFNConfig")
    function = inner.inner("ffn_act_fn", "DbrxFFNConfig").word("name", "silu", p.GATES)
    experts = inner.count("moe_num_experts", 4)
    chosen = inner.count("moe_top_k", 1)
    check_top_k(inner, chosen, experts, "moe_num_experts", chosen_key="moe_top_k")
    width = inner.count("ffn_hidden_size", 3584)
    activation = p.GATES[function]
    return p.entry(
        "moe",
        "moe",
        experts=experts,
        top_k=chosen,
        ffn=width,
        activation=activation if activation != "silu" else None,
    )
