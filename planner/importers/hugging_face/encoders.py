"""Encoders: BERT and the vision transformer.

Defaults are those of ``configuration_bert.py`` and ``configuration_vit.py`` of Hugging Face transformers.
"""

from __future__ import annotations

from planner.importers.hugging_face import blocks as b
from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.decoders import MAX_LAYERS
from planner.importers.hugging_face.fields import Fields

__all__ = ["read_bert", "read_vit"]

_BERT_HEADS = ("BertModel", "BertForMaskedLM", "BertForPreTraining", "BertForSequenceClassification")


def _encoder_parts(fields: Fields, hidden: int, *, qkv_bias: bool, rate: float) -> list[list[p.Entry]]:
    """Attention over all positions and a feed-forward part; the keys are the same in both configs."""
    heads = p.read_heads(fields, hidden, heads=("num_attention_heads", 12), reads_kv=False, reads_head_dim=False)
    function = p.ACTIVATIONS[fields.word("hidden_act", "gelu", p.ACTIVATIONS)]
    attending = p.attention(
        heads,
        hidden,
        qkv_bias=qkv_bias,
        proj_bias=True,
        score_dropout=fields.probability("attention_probs_dropout_prob", rate),
        causal=False,
    )
    return [attending, p.feed_forward(hidden, fields.count("intermediate_size", 3072), function, bias=True)]


def read_bert(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001 - every reader has both
    """BERT: learned positions and segments, post-norm; the head by ``architectures``, the bare network with its pooler without."""
    vocabulary = fields.count("vocab_size", 30522)
    hidden = fields.count("hidden_size", 768)
    layers = fields.count("num_hidden_layers", 12, maximum=MAX_LAYERS)
    positions = fields.count("max_position_embeddings", 512)
    rate = fields.probability("hidden_dropout_prob", 0.1)
    fields.word("position_embedding_type", "absolute", ["absolute"])
    fields.refuse("is_decoder", False, "BERT as a decoder cannot be read")
    parts = _encoder_parts(fields, hidden, qkv_bias=True, rate=0.1)
    blocks, uses = b.stack(
        [b.Use("encoder")] * layers, {"encoder": lambda _: b.post_norm_block(p.layer_norm, parts, rate=rate)}
    )
    embedded = [
        *p.embedding(vocabulary, hidden),
        p.entry("segments", "input", shape=[1, "$seq"]),
        p.entry("segment_embedding", "embedding", num_embeddings=fields.count("type_vocab_size", 2), dim=hidden),
        p.entry("add", "add", ["embedding", "segment_embedding"]),
        p.entry("positions", "position_embedding", max_positions=positions),
        p.layer_norm("embedding_norm"),
        *p.dropout("embedding_dropout", rate),
    ]
    return p.Network(
        blocks=blocks,
        layers=[*embedded, *uses, *_bert_head(fields, vocabulary, hidden, rate)],
        seq=positions,
        seq_source="max_position_embeddings",
        summary=f"{layers} blocks of width {hidden}",
    )


def _bert_head(fields: Fields, vocabulary: int, hidden: int, rate: float) -> list[p.Entry]:
    """Pooler over the first position, prediction of masked words, of the next sentence, or of a class."""
    kind = fields.architecture(_BERT_HEADS)
    tied = fields.flag("tie_word_embeddings", True)
    labels = fields.labels() if kind == "BertForSequenceClassification" else 2  # next sentence: yes or no
    function = p.ACTIVATIONS[fields.word("hidden_act", "gelu", p.ACTIVATIONS)]
    masked = [
        p.linear("transform", hidden, bias=True, inputs="blocks"),
        p.entry(function, "activation", function=function if function != "relu" else None),
        p.layer_norm("transform_norm"),
        *p.lm_head(vocabulary, tied=tied, bias=True),
    ]
    pooled = [
        p.entry("first_position", "select_position", "blocks"),
        p.linear("pooler", hidden, bias=True, activation="tanh"),
    ]
    if kind == "BertForMaskedLM":
        return masked
    if kind == "BertForPreTraining":
        return [*masked, *pooled, p.linear("next_sentence", 2, bias=True), p.entry("next_loss", "softmax")]
    if kind == "BertForSequenceClassification":
        classifier = [p.linear("classifier", labels, bias=True), p.entry("loss", "softmax")]
        return [*pooled, *p.dropout("pooler_dropout", rate), *classifier]
    return pooled


def read_vit(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001
    """ViT: patches by a convolution, a class token, pre-norm; classes by ``id2label``."""
    hidden = fields.count("hidden_size", 768)
    layers = fields.count("num_hidden_layers", 12, maximum=MAX_LAYERS)
    channels = fields.count("num_channels", 3)
    height, width = fields.extent("image_size", 224)
    patch = fields.extent("patch_size", 16)
    if height % patch[0] or width % patch[1]:
        message = f"{height} x {width} cannot be divided into patches of {patch[0]} x {patch[1]} (patch_size)"
        fields.contradiction("image_size", message, "patch_size")
    rate = fields.probability("hidden_dropout_prob", 0.0)
    parts = _encoder_parts(fields, hidden, qkv_bias=fields.flag("qkv_bias", True), rate=0.0)
    blocks, uses = b.stack([b.Use("encoder")] * layers, {"encoder": lambda _: b.block(p.layer_norm, parts, rate=rate)})
    size = patch[0] if patch[0] == patch[1] else list(patch)
    embedded = [
        p.entry("image", "input", shape=[channels, height, width]),
        p.entry("patches", "convolution", out_channels=hidden, kernel=size, stride=size),
        p.entry("sequence", "to_sequence", class_token=True),
        p.entry("positions", "position_embedding", max_positions=(height // patch[0]) * (width // patch[1]) + 1),
        *p.dropout("embedding_dropout", rate),
    ]
    head = [p.layer_norm("norm"), p.entry("class_position", "select_position")]
    if fields.architecture(("ViTForImageClassification", "ViTModel")) == "ViTModel":
        head.append(p.linear("pooler", hidden, bias=True, activation="tanh"))
    else:
        head += [p.linear("classifier", fields.labels(), bias=True), p.entry("loss", "softmax")]
    return p.Network(
        blocks=blocks,
        layers=[*embedded, *uses, *head],
        seq=None,
        seq_source="",
        summary=f"{layers} blocks of width {hidden}",
    )
