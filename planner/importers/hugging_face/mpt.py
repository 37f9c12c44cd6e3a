"""MPT and DBRX: decoders of MosaicML, which keep attention and experts in mappings inside the config.

Defaults are those of the config classes of Hugging Face transformers (``src/transformers/models/<model_type>/configuration_*.py``).
"""

from __future__ import annotations

from functools import partial

from planner.importers.hugging_face import blocks as b
from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.decoders import MAX_LAYERS, causal_network, check_top_k
from planner.importers.hugging_face.fields import Fields

__all__ = ["read_dbrx", "read_mpt"]

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

    body = b.block(_norm, [attending, p.feed_forward(hidden, ratio * hidden, "gelu", bias=False)], rate=rate)
    return causal_network(
        fields,
        title="Mpt",
        positions=positions,
        positions_key="max_seq_len",
        embedded=p.embedding(vocabulary, hidden),
        blocks=b.stack([b.Use("decoder")] * layers, {"decoder": lambda _: body}),
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
    body = b.block(_norm, [attending, [_dbrx_experts(fields)]], rate=rate)
    fields.refuse("tie_word_embeddings", False, "DBRX has no head that is tied to its embedding")
    return causal_network(
        fields,
        title="Dbrx",
        positions=positions,
        positions_key="max_seq_len",
        embedded=p.embedding(vocabulary, hidden),
        blocks=b.stack([b.Use("decoder")] * layers, {"decoder": lambda _: body}),
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
