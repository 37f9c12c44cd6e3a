"""ModernBERT: an encoder with rotary positions, gated feed-forward parts, and windows in two layers of three (arXiv:2412.13663).

Defaults are those of ``configuration_modernbert.py`` of Hugging Face transformers.
"""

from __future__ import annotations

from functools import partial

from planner.importers.hugging_face import blocks as b
from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.decoders import LAYER_TYPES, MAX_LAYERS
from planner.importers.hugging_face.fields import Fields

__all__ = ["read_modernbert"]

_KINDS = ("ModernBertForMaskedLM", "ModernBertModel", "ModernBertForSequenceClassification")


def read_modernbert(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001 - every reader has both
    """Make the network; the first layer reads the embedding, which is normalised already."""
    vocabulary = fields.count("vocab_size", 50368)
    hidden = fields.count("hidden_size", 768)
    layers = fields.count("num_hidden_layers", 22, maximum=MAX_LAYERS)
    positions = fields.count("max_position_embeddings", 8192)
    norm: p.Norm = partial(p.layer_norm, bias=fields.flag("norm_bias", False))
    heads = p.read_heads(fields, hidden, heads=("num_attention_heads", 12), reads_kv=False, reads_head_dim=False)
    bias = fields.flag("attention_bias", False)
    rate = fields.probability("attention_dropout", 0.0)
    feeding = _feed_forward(fields, hidden)

    def body(window: int, *, is_first: bool) -> list[p.Entry]:
        attending = p.attention(
            heads, hidden, qkv_bias=bias, proj_bias=bias, score_dropout=rate, causal=False, window=window
        )
        made = b.block(norm, [[*attending, *p.dropout("dropout1", rate)], feeding])
        if not is_first:
            return made
        _, qkv, *rest = made
        return [{"name": "qkv", "type": "linear", "inputs": "input", **qkv}, *rest]

    windows = _windows(fields, layers)
    uses = [b.Use("encoder" if index else "first", window) for index, window in enumerate(windows)]
    bodies = {"first": partial(body, is_first=True), "encoder": partial(body, is_first=False)}
    blocks, entries = b.stack(uses, {use.block: bodies[use.block] for use in uses})
    embedded = [
        *p.embedding(vocabulary, hidden),
        norm("embedding_norm"),
        *p.dropout("embedding_dropout", fields.probability("embedding_dropout", 0.0)),
    ]
    return p.Network(
        blocks=blocks,
        layers=[*embedded, *entries, norm("norm"), *_head(fields, vocabulary, hidden, norm)],
        seq=positions,
        seq_source="max_position_embeddings",
        summary=f"{layers} blocks of width {hidden}",
    )


def _feed_forward(fields: Fields, hidden: int) -> list[p.Entry]:
    width = fields.count("intermediate_size", 1152)
    function = p.GATES[fields.word("hidden_activation", "gelu", p.GATES)]
    up, gate, down = p.gated_feed_forward(hidden, width, function, bias=fields.flag("mlp_bias", False))
    return [up, gate, *p.dropout("mlp_dropout", fields.probability("mlp_dropout", 0.0)), down]


def _windows(fields: Fields, layers: int) -> list[int]:
    """Half of ``local_attention`` on either side, and the position itself; every so manieth layer sees all positions."""
    types = fields.words("layer_types", LAYER_TYPES, layers)
    size = fields.count("local_attention", 128) // 2 * 2 + 1
    if types is not None:
        return [size if word == "sliding_attention" else 0 for word in types]
    period = fields.optional_count("global_attn_every_n_layers", None) or 3
    return [size if index % period else 0 for index in range(layers)]


def _head(fields: Fields, vocabulary: int, hidden: int, norm: p.Norm) -> list[p.Entry]:
    kind = fields.architecture(_KINDS)
    function = p.ACTIVATIONS[fields.word("classifier_activation", "gelu", p.ACTIVATIONS)]
    head = [
        p.linear("transform", hidden, bias=fields.flag("classifier_bias", False)),
        p.entry(function, "activation", function=function if function != "relu" else None),
        norm("transform_norm"),
    ]
    tied = fields.flag("tie_word_embeddings", True)
    if kind == "ModernBertForMaskedLM":
        return [*head, *p.lm_head(vocabulary, tied=tied, bias=fields.flag("decoder_bias", True))]
    if kind == "ModernBertModel":
        return []
    is_mean = fields.word("classifier_pooling", "cls", ("cls", "mean")) == "mean"
    pooled = p.entry("mean", "reduce", shape=[hidden]) if is_mean else p.entry("first_position", "select_position")
    rate = fields.probability("classifier_dropout", 0.0)
    classifier = [p.linear("classifier", fields.labels(), bias=True), p.entry("loss", "softmax")]
    return [pooled, *head, *p.dropout("classifier_dropout", rate), *classifier]
