"""T5: encoder and decoder with cross-attention, biases by distance, one embedding for both sides.

Defaults are those of ``configuration_t5.py`` of Hugging Face transformers.

Both sides are given the same number of positions. The biases by distance are learned in the first block of each side and added in all; here
they belong to the first. Attention that adds them is not fused: FlashAttention takes no such biases.
"""

from __future__ import annotations

from typing import Any

from planner.importers.hugging_face import blocks as b
from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.decoders import MAX_LAYERS
from planner.importers.hugging_face.fields import Fields

__all__ = ["read_t5"]

_FUNCTIONS = ("relu", "gelu", "silu")
_FORMS = (*_FUNCTIONS, *(f"gated-{name}" for name in _FUNCTIONS))
_WITH_HEAD = ("T5ForConditionalGeneration", "T5WithLMHeadModel")


def read_t5(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001 - every reader has both
    """Make the network of a T5 config: whole, without the head (T5Model), or the encoder alone."""
    vocabulary = fields.count("vocab_size", 32128)
    hidden = fields.count("d_model", 512, "hidden_size")
    layers = fields.count("num_layers", 6, "num_hidden_layers", maximum=MAX_LAYERS)
    decoder_layers = fields.optional_count("num_decoder_layers", None, maximum=MAX_LAYERS) or layers
    # Not a field of T5Config any more, but of the published files; T5 was trained with 512 (arXiv:1910.10683, section 3.1.2).
    positions = fields.count("n_positions", 512)
    # Heads need not divide the width: d_kv stands in the file.
    count = fields.count("num_heads", 8, "num_attention_heads")
    heads = p.Heads(heads=count, kv_heads=count, head_dim=fields.count("d_kv", 64))
    rate = fields.probability("dropout_rate", 0.1)
    tied = fields.flag("tie_word_embeddings", True)
    feeding = _feed_forward(fields, hidden, rate)
    buckets = fields.count("relative_attention_num_buckets", 32)
    kind = fields.architecture((*_WITH_HEAD, "T5Model", "T5EncoderModel"))
    encoder = b.block(p.rms_norm, [_self_attention(heads, hidden, rate, causal=False), feeding], rate=rate)
    blocks: dict[str, Any] = {"encoder": {"defaults": {"buckets": 0}, "layers": encoder}}
    entries = [*p.embedding(vocabulary, hidden), *_side("encoder", layers, buckets, rate)]
    if kind != "T5EncoderModel":
        own = _self_attention(heads, hidden, rate, causal=True)
        decoder = b.block(p.rms_norm, [own, _cross_attention(heads, hidden), feeding], rate=rate)
        blocks["decoder"] = {"parameters": ["memory"], "defaults": {"buckets": 0}, "layers": decoder}
        memory = entries[-1]["name"]
        entries += [
            p.entry("targets", "input", shape=[1, "$seq"]),
            p.entry("target_embedding", "embedding", num_embeddings=vocabulary, dim=hidden, tied=True),
            *_side("decoder", decoder_layers, buckets, rate, memory=memory),
        ]
    if kind in _WITH_HEAD:
        entries += p.lm_head(vocabulary, tied=tied)
    return p.Network(
        blocks=blocks,
        layers=entries,
        seq=positions,
        seq_source="n_positions, of either side",
        summary=f"{layers} blocks in the encoder, {decoder_layers} in the decoder, of width {hidden}",
    )


def _side(name: str, layers: int, buckets: int, rate: float, **handed: str) -> list[p.Entry]:
    """Dropout, blocks and norm of one side."""
    use: p.Entry = {"name": name, "block": name, "repeat": layers}
    if handed:
        use["with"] = handed
    use["first"] = {"with": {"buckets": buckets}}
    before = p.dropout(f"{name}_embedding_dropout", rate)
    return [*before, use, p.rms_norm(f"{name}_norm"), *p.dropout(f"{name}_dropout", rate)]


def _self_attention(heads: p.Heads, hidden: int, rate: float, *, causal: bool) -> list[p.Entry]:
    return p.attention(
        heads,
        hidden,
        qkv_bias=False,
        proj_bias=False,
        score_dropout=rate,
        causal=causal,
        buckets="$buckets",
        fused=False,
    )


def _cross_attention(heads: p.Heads, hidden: int) -> list[p.Entry]:
    """Queries from the decoder, keys and values from the encoder's result."""
    return [
        p.linear("query", heads.width, bias=False),
        p.linear("memory_kv", 2 * heads.width, bias=False, inputs="$memory"),
        p.entry(
            "cross_attention",
            "cross_attention",
            ["query", "memory_kv"],
            heads=heads.heads,
            head_dim=heads.head_dim,
            fused=False,
        ),
        p.linear("cross_proj", hidden, bias=False),
    ]


def _feed_forward(fields: Fields, hidden: int, rate: float) -> list[p.Entry]:
    """Two or three matrices, dropout before the last."""
    width = fields.count("d_ff", 2048)
    form = fields.word("feed_forward_proj", "relu", _FORMS)
    function = form.removeprefix("gated-")
    if form.startswith("gated-"):
        made = p.gated_feed_forward(hidden, width, p.GATES[function])
    else:
        made = p.feed_forward(hidden, width, p.ACTIVATIONS[function], bias=False)
    return [*made[:-1], *p.dropout("dropout", rate), made[-1]]
