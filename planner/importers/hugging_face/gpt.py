"""Decoders with layer norm: GPT-2, GPT-BigCode, GPT-J, GPT-NeoX, OPT, Phi, BLOOM, Falcon, MPT and DBRX.

Defaults are those of the config classes of Hugging Face transformers (``src/transformers/models/<model_type>/configuration_*.py``), what
the architectures do with them is in ``modeling_*.py`` there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.decoders import MAX_LAYERS, causal_network, check_top_k
from planner.importers.hugging_face.fields import Fields

__all__ = [
    "read_bloom",
    "read_dbrx",
    "read_falcon",
    "read_gpt2",
    "read_gpt_neox",
    "read_gptj",
    "read_mpt",
    "read_opt",
    "read_phi",
]


def _blocks(layers: int, body: list[p.Entry]) -> tuple[dict[str, object], list[p.Entry]]:
    return p.stack([p.Use("decoder")] * layers, {"decoder": lambda _: body})


def _gpt_sizes(fields: Fields, *, hidden: int, layers: int, heads: int) -> tuple[int, int, p.Heads, int]:
    """Width, depth, heads and inner width under the keys of the first GPTs."""
    width = fields.count("n_embd", hidden, "hidden_size")
    depth = fields.count("n_layer", layers, "num_hidden_layers", maximum=MAX_LAYERS)
    own = p.read_heads(
        fields,
        width,
        heads=("n_head", heads, "num_attention_heads"),
        reads_kv=False,
        reads_head_dim=False,
        hidden_key="n_embd",
    )
    return width, depth, own, fields.optional_count("n_inner", None) or 4 * width


def read_gpt2(fields: Fields, model_type: str) -> p.Network:
    """GPT-2: learned positions, pre-norm, tied head; GPT-BigCode: the same with one head of keys and values."""
    is_bigcode = model_type == "gpt_bigcode"
    vocabulary = fields.count("vocab_size", 50257)
    positions = fields.count("n_positions", 1024, "max_position_embeddings")
    hidden, layers, heads, width = _gpt_sizes(fields, hidden=768, layers=12, heads=12)
    if is_bigcode and fields.flag("multi_query", True):
        heads = replace(heads, kv_heads=1)
    gelu = "gelu_pytorch_tanh" if is_bigcode else "gelu_new"
    function = p.ACTIVATIONS[fields.word("activation_function", gelu, p.ACTIVATIONS)]
    rate = fields.probability("resid_pdrop", 0.1)
    fields.refuse("add_cross_attention", False, "cross-attention in a decoder without an encoder cannot be read")
    attending = p.attention(
        heads, hidden, qkv_bias=True, proj_bias=True, score_dropout=fields.probability("attn_pdrop", 0.1)
    )
    body = p.block(p.layer_norm, [attending, p.feed_forward(hidden, width, function, bias=True)], rate=rate)
    title = "GPTBigCode" if is_bigcode else "GPT2"
    with_head = "GPTBigCodeForCausalLM" if is_bigcode else "GPT2LMHeadModel"
    whole = fields.architecture((with_head, f"{title}Model")) == with_head
    blocks, uses = _blocks(layers, body)
    tied = fields.flag("tie_word_embeddings", True)
    return p.Network(
        blocks=blocks,
        layers=[
            *p.embedding(vocabulary, hidden),
            p.entry("positions", "position_embedding", max_positions=positions),
            *p.dropout("embedding_dropout", fields.probability("embd_pdrop", 0.1)),
            *uses,
            p.layer_norm("norm"),
            *(p.lm_head(vocabulary, tied=tied) if whole else ()),
        ],
        seq=positions,
        seq_source="n_positions",
        summary=f"{layers} blocks of width {hidden}",
    )


def read_gptj(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001 - every reader has both
    """GPT-J: rotary positions, one norm for attention and feed-forward part side by side; a bias in the head, none in attention."""
    vocabulary = fields.count("vocab_size", 50400)
    positions = fields.count("n_positions", 2048, "max_position_embeddings")
    hidden, layers, heads, width = _gpt_sizes(fields, hidden=4096, layers=28, heads=16)
    function = p.ACTIVATIONS[fields.word("activation_function", "gelu_new", p.ACTIVATIONS)]
    score_dropout = fields.probability("attn_pdrop", 0.0)
    attending = p.attention(heads, hidden, qkv_bias=False, proj_bias=False, score_dropout=score_dropout)
    feeding = p.feed_forward(hidden, width, function, bias=True)
    rate = fields.probability("resid_pdrop", 0.0)
    embedding_rate = fields.probability("embd_pdrop", 0.0)
    return causal_network(
        fields,
        title="GPTJ",
        positions=positions,
        positions_key="n_positions",
        embedded=[*p.embedding(vocabulary, hidden), *p.dropout("embedding_dropout", embedding_rate)],
        blocks=_blocks(layers, p.parallel_block(p.layer_norm, attending, feeding, norms=1, rate=rate)),
        last=[p.layer_norm("norm")],
        head=p.lm_head(vocabulary, tied=fields.flag("tie_word_embeddings", False), bias=True),
        summary=f"{layers} blocks of width {hidden}",
    )


def read_gpt_neox(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001
    """GPT-NeoX, Pythia: two norms that read the same input, attention and feed-forward part side by side unless told otherwise."""
    vocabulary = fields.count("vocab_size", 50432)
    hidden = fields.count("hidden_size", 6144)
    layers = fields.count("num_hidden_layers", 44, maximum=MAX_LAYERS)
    positions = fields.count("max_position_embeddings", 2048)
    heads = p.read_heads(fields, hidden, heads=("num_attention_heads", 64), reads_kv=False, reads_head_dim=False)
    bias = fields.flag("attention_bias", True)
    width = fields.count("intermediate_size", 24576)
    function = p.ACTIVATIONS[fields.word("hidden_act", "gelu", p.ACTIVATIONS)]
    rate = fields.probability("hidden_dropout", 0.0)
    score_dropout = fields.probability("attention_dropout", 0.0)
    attending = p.attention(heads, hidden, qkv_bias=bias, proj_bias=bias, score_dropout=score_dropout)
    feeding = p.feed_forward(hidden, width, function, bias=True)
    if fields.flag("use_parallel_residual", True):
        body = p.parallel_block(p.layer_norm, attending, feeding, norms=2, rate=rate)
    else:
        body = p.block(p.layer_norm, [attending, feeding], rate=rate)
    return causal_network(
        fields,
        title="GPTNeoX",
        positions=positions,
        positions_key="max_position_embeddings",
        embedded=[*p.embedding(vocabulary, hidden), *p.dropout("embedding_dropout", rate)],
        blocks=_blocks(layers, body),
        last=[p.layer_norm("norm")],
        head=p.lm_head(vocabulary, tied=fields.flag("tie_word_embeddings", False)),
        summary=f"{layers} blocks of width {hidden}",
    )


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


def read_phi(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001
    """Phi-1, 1.5 and 2: one norm for attention and feed-forward part side by side, biases everywhere, the head's included."""
    vocabulary = fields.count("vocab_size", 51200)
    hidden = fields.count("hidden_size", 2048)
    layers = fields.count("num_hidden_layers", 24, maximum=MAX_LAYERS)
    positions = fields.count("max_position_embeddings", 2048)
    heads = p.read_heads(fields, hidden, heads=("num_attention_heads", 32), reads_head_dim=False)
    width = fields.count("intermediate_size", 8192)
    function = p.ACTIVATIONS[fields.word("hidden_act", "gelu_new", p.ACTIVATIONS)]
    rate = fields.probability("resid_pdrop", 0.0)
    has_head_norm = fields.flag("qk_layernorm", False)
    attending = p.attention(
        heads,
        hidden,
        qkv_bias=True,
        proj_bias=True,
        head_norm="layer" if has_head_norm else None,
        score_dropout=fields.probability("attention_dropout", 0.0),
    )
    feeding = p.feed_forward(hidden, width, function, bias=True)
    embedding_rate = fields.probability("embd_pdrop", 0.0)
    return causal_network(
        fields,
        title="Phi",
        positions=positions,
        positions_key="max_position_embeddings",
        embedded=[*p.embedding(vocabulary, hidden), *p.dropout("embedding_dropout", embedding_rate)],
        blocks=_blocks(layers, p.parallel_block(p.layer_norm, attending, feeding, norms=1, rate=rate)),
        last=[p.layer_norm("norm")],
        head=p.lm_head(vocabulary, tied=fields.flag("tie_word_embeddings", False), bias=True),
        summary=f"{layers} blocks of width {hidden}",
    )


def read_bloom(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001
    """BLOOM: ALiBi, a norm behind the embedding, tied head."""
    vocabulary = fields.count("vocab_size", 250880)
    hidden = fields.count("hidden_size", 64, "n_embed")
    layers = fields.count("n_layer", 2, "num_hidden_layers", maximum=MAX_LAYERS)
    # Not a field of BloomConfig, but of the files of the published networks; 2048 is what all of them were trained with
    # (arXiv:2211.05100, table 3).
    positions = fields.count("seq_length", 2048)
    heads = p.read_heads(
        fields, hidden, heads=("n_head", 8, "num_attention_heads"), reads_kv=False, reads_head_dim=False
    )
    width = fields.optional_count("n_inner", None) or 4 * hidden
    rate = fields.probability("hidden_dropout", 0.0)
    score_dropout = fields.probability("attention_dropout", 0.0)
    attending = p.attention(heads, hidden, qkv_bias=True, proj_bias=True, score_dropout=score_dropout)
    body = p.block(
        p.layer_norm,
        [attending, p.feed_forward(hidden, width, "gelu", bias=True)],
        rate=rate,
        residual_is_normed=fields.flag("apply_residual_connection_post_layernorm", False),
    )
    return causal_network(
        fields,
        title="Bloom",
        positions=positions,
        positions_key="seq_length",
        embedded=[*p.embedding(vocabulary, hidden), p.layer_norm("embedding_norm")],
        blocks=_blocks(layers, body),
        last=[p.layer_norm("norm")],
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
