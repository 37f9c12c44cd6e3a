"""Encoders of text and images, and T5 with its like: BERT, RoBERTa, DistilBERT, ModernBERT, ViT, DeiT, DINOv2.

Defaults are those of ``configuration_*.py`` of Hugging Face transformers.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.decoders import LAYER_TYPES, MAX_LAYERS, read_sizes
from planner.importers.hugging_face.fields import ENCODER_DECODERS, ENCODERS, Fields


def read_bert(fields: Fields, model_type: str) -> p.Network:
    """Make an encoder: learned positions, post-norm; the head by ``architectures``, the bare network (with its pooler) without."""
    known = ENCODERS[model_type]
    vocabulary, hidden = fields.count("vocab_size", known.vocab), fields.count(*known.hidden)
    layers = fields.count(*known.layers, maximum=MAX_LAYERS)
    unused = (fields.optional_count("pad_token_id", 1, minimum=0) or 0) + 1 if known.offset else 0
    rows = fields.count("max_position_embeddings", 512, minimum=unused + 1)
    rate = fields.probability(known.rate, 0.1)
    fields.word("position_embedding_type", "absolute", ["absolute"])
    fields.refuse("is_decoder", False, "an encoder as a decoder cannot be read")
    key = known.hidden[0]
    heads = p.read_heads(fields, hidden, heads=known.heads, reads_kv=False, reads_head_dim=False, hidden_key=key)
    score_dropout = fields.probability(known.score_rate, 0.1)
    attending = p.attention(heads, hidden, qkv_bias=True, proj_bias=True, score_dropout=score_dropout, causal=False)
    width = fields.count(*known.width)
    function = p.ACTIVATIONS[fields.word(known.function, "gelu", p.ACTIVATIONS)]
    feeding = p.feed_forward(hidden, width, function, bias=True)
    if known.segments:
        body = p.block(p.layer_norm, [attending, feeding], rate=rate, norms="sum")
    else:  # DistilBERT has no dropout behind attention
        body = p.block(p.layer_norm, [attending, [*feeding, *p.dropout("dropout2", rate)]], norms="sum")
    segments: list[p.Entry] = []
    if known.segments:
        count = fields.count("type_vocab_size", 2)
        segments = [
            p.entry("segments", "input", shape=[1, "$seq"]),
            p.entry("segment_embedding", "embedding", num_embeddings=count, dim=hidden),
            p.entry("add", "add", ["embedding", "segment_embedding"]),
        ]
    embedded = [
        *p.embedding(vocabulary, hidden),
        *segments,
        p.entry("positions", "position_embedding", max_positions=rows),
        p.layer_norm("embedding_norm"),
        *p.dropout("embedding_dropout", rate),
    ]
    # RoBERTa's code does not ask the config for the function of its head.
    head = _head(fields, known, vocabulary, hidden, rate, "gelu" if known.offset else function)
    blocks, uses = p.equal_blocks("encoder", layers, body)
    source = f"max_position_embeddings less {unused}" if unused else "max_position_embeddings"
    summary = f"{layers} blocks of width {hidden}"
    return p.Network(blocks, [*embedded, *uses, *head], summary, rows - unused, source)


def _head(
    fields: Fields, known: SimpleNamespace, vocabulary: int, hidden: int, rate: float, function: str
) -> list[p.Entry]:
    """Pooler over the first position, prediction of masked words, of the next sentence, or of a class."""
    kinds = ["Model", "ForMaskedLM", "ForSequenceClassification"]
    if known.title == "Bert":
        kinds.insert(2, "ForPreTraining")
    kind = fields.architecture([known.title + kind for kind in kinds]).removeprefix(known.title)
    tied = fields.flag("tie_word_embeddings", True)
    labels = fields.labels() if kind == "ForSequenceClassification" else 2  # next sentence: yes or no
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


# -- ModernBERT (arXiv:2412.13663) ------------------------------------------------------------------------------------------


_KINDS = ("ModernBertForMaskedLM", "ModernBertModel", "ModernBertForSequenceClassification")


def read_modernbert(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001 - every reader has both
    """Make the network; the first layer reads the embedding, which is normalised already."""
    depth, length = ("num_hidden_layers", 22), ("max_position_embeddings", 8192)
    sizes, heads = read_sizes(fields, 50368, layers=depth, positions=length)
    hidden = sizes.hidden
    norm: p.Norm = partial(p.layer_norm, bias=fields.flag("norm_bias", False))
    bias, rate = fields.flag("attention_bias", False), fields.probability("attention_dropout", 0.0)
    width = fields.count("intermediate_size", 1152)
    function = p.GATES[fields.word("hidden_activation", "gelu", p.GATES)]
    up, gate, down = p.gated_feed_forward(hidden, width, function, bias=fields.flag("mlp_bias", False))
    feeding = [up, gate, *p.dropout("mlp_dropout", fields.probability("mlp_dropout", 0.0)), down]

    def body(window: int) -> list[p.Entry]:
        attending = p.attention(
            heads, hidden, qkv_bias=bias, proj_bias=bias, score_dropout=rate, causal=False, window=window
        )
        return p.block(norm, [[*attending, *p.dropout("dropout1", rate)], feeding])

    def first(window: int) -> list[p.Entry]:
        _, qkv, *rest = body(window)
        return [{"name": "qkv", "type": "linear", "inputs": "input", **qkv}, *rest]

    windows = _modernbert_windows(fields, sizes.layers)
    uses = [p.Use("encoder" if index else "first", window) for index, window in enumerate(windows)]
    blocks, entries = p.stack(uses, {"first": first, "encoder": body})
    embedded = [
        *p.embedding(sizes.vocabulary, hidden),
        norm("embedding_norm"),
        *p.dropout("embedding_dropout", fields.probability("embedding_dropout", 0.0)),
    ]
    head = _modernbert_head(fields, sizes.vocabulary, hidden, norm)
    summary = f"{sizes.layers} blocks of width {hidden}"
    return p.Network(blocks, [*embedded, *entries, norm("norm"), *head], summary, sizes.positions, length[0])


def _modernbert_windows(fields: Fields, layers: int) -> list[int]:
    """Half of ``local_attention`` on either side, and the position itself; every so manieth layer sees all positions."""
    types = fields.words("layer_types", LAYER_TYPES, layers)
    size = fields.count("local_attention", 128) // 2 * 2 + 1
    if types is not None:
        return [size if word == "sliding_attention" else 0 for word in types]
    period = fields.optional_count("global_attn_every_n_layers", None) or 3
    return [size if index % period else 0 for index in range(layers)]


def _modernbert_head(fields: Fields, vocabulary: int, hidden: int, norm: p.Norm) -> list[p.Entry]:
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


# -- T5 (arXiv:1910.10683) --------------------------------------------------------------------------------------------------
# Both sides have the same number of positions. The biases by distance are learned in the first block of each side and added in all; here
# they belong to the first (every block of UMT5 has its own). Attention that adds them is not fused: FlashAttention takes no such biases.


_FUNCTIONS = ("relu", "gelu", "silu")
_FORMS = (*_FUNCTIONS, *(f"gated-{name}" for name in _FUNCTIONS))


def read_t5(fields: Fields, model_type: str) -> p.Network:
    """Make the network of a T5, mT5 or UMT5 config: whole, without the head (T5Model), or the encoder alone."""
    known = ENCODER_DECODERS[model_type]
    sizes = SimpleNamespace(**known.sizes)
    vocabulary = fields.count("vocab_size", sizes.vocab)
    hidden = fields.count("d_model", 512, "hidden_size")
    layers = fields.count("num_layers", sizes.layers, "num_hidden_layers", maximum=MAX_LAYERS // 2)
    decoder_layers = fields.optional_count("num_decoder_layers", None, maximum=MAX_LAYERS // 2) or layers
    positions = fields.count("n_positions", known.positions)
    # Heads need not divide the width: d_kv stands in the file.
    count = fields.count("num_heads", sizes.heads, "num_attention_heads")
    heads = p.Heads(heads=count, kv_heads=count, head_dim=fields.count("d_kv", 64))
    rate = fields.probability("dropout_rate", 0.1)
    tied = fields.flag("tie_word_embeddings", known.tied)
    feeding = _t5_feed_forward(fields, hidden, fields.count("d_ff", sizes.width), known.form, rate)
    buckets = fields.count("relative_attention_num_buckets", 32)
    with_head = [f"{known.title}ForConditionalGeneration", *known.also]
    kind = fields.architecture([*with_head, f"{known.title}Model", f"{known.title}EncoderModel"])
    encoder = p.block(p.rms_norm, [_self_attention(heads, hidden, rate, causal=False), feeding], rate=rate)
    side = partial(_side, buckets=buckets, own=known.own_buckets, rate=rate)
    blocks: dict[str, Any] = {"encoder": {"defaults": {"buckets": 0}, "layers": encoder}}
    entries = [*p.embedding(vocabulary, hidden), *side("encoder", layers)]
    if not kind.endswith("EncoderModel"):
        own = _self_attention(heads, hidden, rate, causal=True)
        decoder = p.block(p.rms_norm, [own, _cross_attention(heads, hidden), feeding], rate=rate)
        blocks["decoder"] = {"parameters": ["memory"], "defaults": {"buckets": 0}, "layers": decoder}
        memory = entries[-1]["name"]
        entries += [
            p.entry("targets", "input", shape=[1, "$seq"]),
            p.entry("target_embedding", "embedding", num_embeddings=vocabulary, dim=hidden, tied=True),
            *side("decoder", decoder_layers, memory=memory),
        ]
    if kind in with_head:
        entries += p.lm_head(vocabulary, tied=tied)
    summary = f"{layers} blocks in the encoder, {decoder_layers} in the decoder, of width {hidden}"
    return p.Network(blocks, entries, summary, positions, "n_positions, of either side")


def _side(name: str, layers: int, *, buckets: int, own: bool, rate: float, **handed: str) -> list[p.Entry]:
    """One side; with biases by distance in every block (``own``), or in the first."""
    given = {**handed, **({"buckets": buckets} if own else {})}
    use: p.Entry = {
        "name": name,
        "block": name,
        "repeat": layers,
        **({"with": given} if given else {}),
        **({} if own else {"first": {"with": {"buckets": buckets}}}),
    }
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


def _t5_feed_forward(fields: Fields, hidden: int, width: int, default: str, rate: float) -> list[p.Entry]:
    form = fields.word("feed_forward_proj", default, _FORMS)
    function = form.removeprefix("gated-")
    if form.startswith("gated-"):
        made = p.gated_feed_forward(hidden, width, p.GATES[function])
    else:
        made = p.feed_forward(hidden, width, p.ACTIVATIONS[function], bias=False)
    return [*made[:-1], *p.dropout("dropout", rate), made[-1]]


# -- vision transformers ----------------------------------------------------------------------------------------------------


def read_vit(fields: Fields, model_type: str) -> p.Network:
    """ViT: patches by a convolution, a class token, pre-norm; classes by ``id2label``. DeiT: a token for the teacher's class, too."""
    hidden = fields.count("hidden_size", 768)
    layers = fields.count("num_hidden_layers", 12, maximum=MAX_LAYERS)
    tokens = 2 if model_type == "deit" else 1
    embedded, rate = _patches(fields, hidden, 16, tokens=tokens)
    attending = _vision_attention(fields, hidden)
    function = p.ACTIVATIONS[fields.word("hidden_act", "gelu", p.ACTIVATIONS)]
    feeding = p.feed_forward(hidden, fields.count("intermediate_size", 3072), function, bias=True)
    body = p.block(p.layer_norm, [attending, feeding], rate=rate)
    title = "DeiT" if model_type == "deit" else "ViT"
    kinds = [f"{title}ForImageClassification", f"{title}Model"]
    if model_type == "deit":
        kinds.append("DeiTForImageClassificationWithTeacher")
    kind = fields.architecture(kinds)
    head: list[p.Entry] = [p.layer_norm("norm"), p.entry("class_position", "select_position")]
    if kind == f"{title}Model":
        head.append(p.linear("pooler", hidden, bias=True, activation="tanh"))
    else:
        head += [p.linear("classifier", fields.labels(), bias=True), p.entry("loss", "softmax")]
    if kind.endswith("WithTeacher"):
        head += [
            p.entry("teacher_position", "select_position", "norm", index=1),
            p.linear("teacher_classifier", fields.labels(), bias=True),
            p.entry("teacher_loss", "softmax"),
        ]
    return _vision_network(layers, hidden, embedded, body, head)


def read_dinov2(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001 - every reader has both
    """DINOv2: a vision transformer whose parts are scaled by feature, and whose masked patches become a learned one."""
    hidden = fields.count("hidden_size", 768)
    layers = fields.count("num_hidden_layers", 12, maximum=MAX_LAYERS)
    has_mask = fields.flag("use_mask_token", True)
    embedded, _ = _patches(fields, hidden, 14, tokens=1, has_mask=has_mask)
    width = fields.count("mlp_ratio", 4) * hidden
    function = fields.word("hidden_act", "gelu", p.ACTIVATIONS)
    if fields.flag("use_swiglu_ffn", False):
        # Two thirds, rounded up to a multiple of 8 (Dinov2SwiGLUFFN).
        feeding = p.gated_feed_forward(hidden, (2 * width // 3 + 7) // 8 * 8, "silu", bias=True)
    else:
        feeding = p.feed_forward(hidden, width, p.ACTIVATIONS[function], bias=True)
    parts = [
        [*part, p.entry(f"scale{number}", "pointwise", weights=hidden)]
        for number, part in enumerate((_vision_attention(fields, hidden), feeding), 1)
    ]
    if fields.probability("drop_path_rate", 0.0):
        fields.notes.append("drop_path_rate: parts are computed for all samples, those that are dropped included")
    body = p.block(p.layer_norm, parts)
    head: list[p.Entry] = [p.layer_norm("norm"), p.entry("class_position", "select_position")]
    if fields.architecture(("Dinov2Model", "Dinov2ForImageClassification")) == "Dinov2ForImageClassification":
        head += [
            p.entry("patch_mean", "reduce", "norm", shape=[hidden]),
            p.entry("both", "concat", ["class_position", "patch_mean"]),
            p.linear("classifier", fields.labels(), bias=True),
            p.entry("loss", "softmax"),
        ]
    return _vision_network(layers, hidden, embedded, body, head)


def _patches(
    fields: Fields, hidden: int, patch_default: int, *, tokens: int, has_mask: bool = False
) -> tuple[list[p.Entry], float]:
    channels = fields.count("num_channels", 3)
    height, width = fields.extent("image_size", 224)
    patch = fields.extent("patch_size", patch_default)
    if height % patch[0] or width % patch[1]:
        message = f"{height} x {width} cannot be divided into patches of {patch[0]} x {patch[1]} (patch_size)"
        fields.contradiction("image_size", message, "patch_size")
    rate = fields.probability("hidden_dropout_prob", 0.0)
    size: Any = patch[0] if patch[0] == patch[1] else list(patch)
    positions = (height // patch[0]) * (width // patch[1]) + tokens
    second = True if tokens > 1 else None
    return [
        p.entry("image", "input", shape=[channels, height, width]),
        p.entry("patches", "convolution", out_channels=hidden, kernel=size, stride=size),
        *([p.entry("mask", "pointwise", weights=hidden)] if has_mask else []),
        p.entry("sequence", "to_sequence", class_token=True, distillation_token=second),
        p.entry("positions", "position_embedding", max_positions=positions),
        *p.dropout("embedding_dropout", rate),
    ], rate


def _vision_attention(fields: Fields, hidden: int) -> list[p.Entry]:
    heads = p.read_heads(fields, hidden, heads=("num_attention_heads", 12), reads_kv=False, reads_head_dim=False)
    score_dropout = fields.probability("attention_probs_dropout_prob", 0.0)
    bias = fields.flag("qkv_bias", True)
    return p.attention(heads, hidden, qkv_bias=bias, proj_bias=True, score_dropout=score_dropout, causal=False)


def _vision_network(
    layers: int, hidden: int, embedded: list[p.Entry], body: list[p.Entry], head: list[p.Entry]
) -> p.Network:
    blocks, uses = p.equal_blocks("encoder", layers, body)
    return p.Network(blocks, [*embedded, *uses, *head], f"{layers} blocks of width {hidden}")
