"""Encoders of images: the vision transformer, DeiT and DINOv2.

Defaults are those of ``configuration_vit.py`` and its neighbours in Hugging Face transformers.
"""

from __future__ import annotations

from typing import Any

from planner.importers.hugging_face import blocks as b
from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.decoders import MAX_LAYERS
from planner.importers.hugging_face.fields import Fields

__all__ = ["read_dinov2", "read_vit"]


def read_vit(fields: Fields, model_type: str) -> p.Network:
    """ViT: patches by a convolution, a class token, pre-norm; classes by ``id2label``. DeiT: a token for the teacher's class, too."""
    hidden = fields.count("hidden_size", 768)
    layers = fields.count("num_hidden_layers", 12, maximum=MAX_LAYERS)
    tokens = 2 if model_type == "deit" else 1
    embedded, rate = _embedded(fields, hidden, 16, tokens=tokens)
    attending = _attention(fields, hidden)
    function = p.ACTIVATIONS[fields.word("hidden_act", "gelu", p.ACTIVATIONS)]
    feeding = p.feed_forward(hidden, fields.count("intermediate_size", 3072), function, bias=True)
    body = b.block(p.layer_norm, [attending, feeding], rate=rate)
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
    return _network(layers, hidden, embedded, body, head)


def read_dinov2(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001 - every reader has both
    """DINOv2: a vision transformer whose parts are scaled by feature, and whose masked patches become a learned one."""
    hidden = fields.count("hidden_size", 768)
    layers = fields.count("num_hidden_layers", 12, maximum=MAX_LAYERS)
    has_mask = fields.flag("use_mask_token", True)
    embedded, _ = _embedded(fields, hidden, 14, tokens=1, has_mask=has_mask)
    width = fields.count("mlp_ratio", 4) * hidden
    function = fields.word("hidden_act", "gelu", p.ACTIVATIONS)
    if fields.flag("use_swiglu_ffn", False):
        # Two thirds, rounded up to a multiple of 8 (Dinov2SwiGLUFFN).
        feeding = p.gated_feed_forward(hidden, (2 * width // 3 + 7) // 8 * 8, "silu", bias=True)
    else:
        feeding = p.feed_forward(hidden, width, p.ACTIVATIONS[function], bias=True)
    parts = [
        [*part, p.entry(f"scale{number}", "pointwise", weights=hidden)]
        for number, part in enumerate((_attention(fields, hidden), feeding), 1)
    ]
    if fields.probability("drop_path_rate", 0.0):
        fields.notes.append("drop_path_rate: parts are computed for all samples, those that are dropped included")
    body = b.block(p.layer_norm, parts)
    head: list[p.Entry] = [p.layer_norm("norm"), p.entry("class_position", "select_position")]
    if fields.architecture(("Dinov2Model", "Dinov2ForImageClassification")) == "Dinov2ForImageClassification":
        head += _dinov2_classifier(fields, hidden)
    return _network(layers, hidden, embedded, body, head)


def _dinov2_classifier(fields: Fields, hidden: int) -> list[p.Entry]:
    """Reads the class token and the mean of the patches."""
    return [
        p.entry("patch_mean", "reduce", "norm", shape=[hidden]),
        p.entry("both", "concat", ["class_position", "patch_mean"]),
        p.linear("classifier", fields.labels(), bias=True),
        p.entry("loss", "softmax"),
    ]


def _embedded(
    fields: Fields, hidden: int, patch_default: int, *, tokens: int, has_mask: bool = False
) -> tuple[list[p.Entry], float]:
    """Patches with their positions, and the rate of dropout."""
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


def _attention(fields: Fields, hidden: int) -> list[p.Entry]:
    heads = p.read_heads(fields, hidden, heads=("num_attention_heads", 12), reads_kv=False, reads_head_dim=False)
    score_dropout = fields.probability("attention_probs_dropout_prob", 0.0)
    bias = fields.flag("qkv_bias", True)
    return p.attention(heads, hidden, qkv_bias=bias, proj_bias=True, score_dropout=score_dropout, causal=False)


def _network(layers: int, hidden: int, embedded: list[p.Entry], body: list[p.Entry], head: list[p.Entry]) -> p.Network:
    blocks, uses = b.stack([b.Use("encoder")] * layers, {"encoder": lambda _: body})
    return p.Network(
        blocks=blocks,
        layers=[*embedded, *uses, *head],
        seq=None,
        seq_source="",
        summary=f"{layers} blocks of width {hidden}",
    )
