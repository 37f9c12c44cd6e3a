"""Encoders of text: BERT, RoBERTa and DistilBERT.

Defaults are those of ``configuration_bert.py`` and its neighbours in Hugging Face transformers.
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.importers.hugging_face import blocks as b
from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.decoders import MAX_LAYERS
from planner.importers.hugging_face.fields import Fields

__all__ = ["read_bert"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoder:
    """Keys and defaults of a config class, and what its code fixes.

    Attributes
    ----------
    title : str
        Beginning of the names of its classes.
    vocab : int
    hidden, layers, heads, width : tuples
        Key, default, and other names of the key.
    rate, score_rate, function : str
        Keys of dropout, of that of the attention weights, and of the activation.
    segments : bool
        Has an embedding of segments, and a pooler.
    offset : bool
        Positions are counted from the number behind the padding token's, so that the table has rows that no sample uses.
    """

    title: str
    vocab: int
    hidden: tuple[str, int, *tuple[str, ...]] = ("hidden_size", 768)
    layers: tuple[str, int, *tuple[str, ...]] = ("num_hidden_layers", 12)
    heads: tuple[str, int, *tuple[str, ...]] = ("num_attention_heads", 12)
    width: tuple[str, int] = ("intermediate_size", 3072)
    rate: str = "hidden_dropout_prob"
    score_rate: str = "attention_probs_dropout_prob"
    function: str = "hidden_act"
    segments: bool = True
    offset: bool = False


_ENCODERS = {
    "bert": _Encoder(title="Bert", vocab=30522),
    "roberta": _Encoder(title="Roberta", vocab=50265, offset=True),
    "xlm-roberta": _Encoder(title="XLMRoberta", vocab=30522, offset=True),
    "distilbert": _Encoder(
        title="DistilBert",
        vocab=30522,
        hidden=("dim", 768, "hidden_size"),
        layers=("n_layers", 6, "num_hidden_layers"),
        heads=("n_heads", 12, "num_attention_heads"),
        width=("hidden_dim", 3072),
        rate="dropout",
        score_rate="attention_dropout",
        function="activation",
        segments=False,
    ),
}


def read_bert(fields: Fields, model_type: str) -> p.Network:
    """Make an encoder: learned positions, post-norm; the head by ``architectures``, the bare network (with its pooler) without."""
    known = _ENCODERS[model_type]
    vocabulary = fields.count("vocab_size", known.vocab)
    hidden = fields.count(*known.hidden)
    layers = fields.count(*known.layers, maximum=MAX_LAYERS)
    unused = (fields.optional_count("pad_token_id", 1, minimum=0) or 0) + 1 if known.offset else 0
    rows = fields.count("max_position_embeddings", 512, minimum=unused + 1)
    rate = fields.probability(known.rate, 0.1)
    fields.word("position_embedding_type", "absolute", ["absolute"])
    fields.refuse("is_decoder", False, "an encoder as a decoder cannot be read")
    body = _body(fields, known, hidden, rate)
    blocks, uses = b.stack([b.Use("encoder")] * layers, {"encoder": lambda _: body})
    embedded = [
        *p.embedding(vocabulary, hidden),
        *(_segments(fields, hidden) if known.segments else ()),
        p.entry("positions", "position_embedding", max_positions=rows),
        p.layer_norm("embedding_norm"),
        *p.dropout("embedding_dropout", rate),
    ]
    return p.Network(
        blocks=blocks,
        layers=[*embedded, *uses, *_head(fields, known, vocabulary, hidden, rate)],
        seq=rows - unused,
        seq_source=f"max_position_embeddings less {unused}" if unused else "max_position_embeddings",
        summary=f"{layers} blocks of width {hidden}",
    )


def _segments(fields: Fields, hidden: int) -> list[p.Entry]:
    count = fields.count("type_vocab_size", 2)
    return [
        p.entry("segments", "input", shape=[1, "$seq"]),
        p.entry("segment_embedding", "embedding", num_embeddings=count, dim=hidden),
        p.entry("add", "add", ["embedding", "segment_embedding"]),
    ]


def _body(fields: Fields, known: _Encoder, hidden: int, rate: float) -> list[p.Entry]:
    """Attention over all positions and a feed-forward part; DistilBERT has no dropout behind attention."""
    key = known.hidden[0]
    heads = p.read_heads(fields, hidden, heads=known.heads, reads_kv=False, reads_head_dim=False, hidden_key=key)
    score_dropout = fields.probability(known.score_rate, 0.1)
    attending = p.attention(heads, hidden, qkv_bias=True, proj_bias=True, score_dropout=score_dropout, causal=False)
    feeding = p.feed_forward(hidden, fields.count(*known.width), _function(fields, known), bias=True)
    if known.segments:
        return b.post_norm_block(p.layer_norm, [attending, feeding], rate=rate)
    return b.post_norm_block(p.layer_norm, [attending, [*feeding, *p.dropout("dropout2", rate)]])


def _function(fields: Fields, known: _Encoder) -> str:
    return p.ACTIVATIONS[fields.word(known.function, "gelu", p.ACTIVATIONS)]


def _head(fields: Fields, known: _Encoder, vocabulary: int, hidden: int, rate: float) -> list[p.Entry]:
    """Pooler over the first position, prediction of masked words, of the next sentence, or of a class."""
    kinds = ["Model", "ForMaskedLM", "ForSequenceClassification"]
    if known.title == "Bert":
        kinds.insert(2, "ForPreTraining")
    kind = fields.architecture([known.title + kind for kind in kinds]).removeprefix(known.title)
    tied = fields.flag("tie_word_embeddings", True)
    labels = fields.labels() if kind == "ForSequenceClassification" else 2  # next sentence: yes or no
    # RoBERTa's code does not ask the config here.
    function = "gelu" if known.offset else _function(fields, known)
    masked = [
        p.linear("transform", hidden, bias=True, inputs="blocks"),
        p.entry(function, "activation", function=function if function != "relu" else None),
        p.layer_norm("transform_norm"),
        *p.lm_head(vocabulary, tied=tied, bias=True),
    ]
    first = p.entry("first_position", "select_position", "blocks")
    pooled = [first, p.linear("pooler", hidden, bias=True, activation="tanh" if known.segments else "relu")]
    if kind == "ForMaskedLM":
        return masked
    if kind == "ForPreTraining":
        return [*masked, *pooled, p.linear("next_sentence", 2, bias=True), p.entry("next_loss", "softmax")]
    if kind == "ForSequenceClassification":
        rate = rate if known.segments else fields.probability("seq_classif_dropout", 0.2)
        classifier = [p.linear("classifier", labels, bias=True), p.entry("loss", "softmax")]
        return [*pooled, *p.dropout("pooler_dropout", rate), *classifier]
    return pooled if known.segments else []
