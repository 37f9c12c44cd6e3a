"""Transformers from the columns of a row: hidden size, layers, heads, ... become a graph, in the style of GPT, Llama, BERT or ViT."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from costmodel.network.graph import Graph, LayerSpec
from costmodel.network.layers.base import params_from
from planner.measurements.experts import ExpertShape, agrees, experts_of, is_particular, widths_of
from planner.measurements.facts import cuts_vocabulary, has_dropout, yes_or_no
from planner.measurements.positions import bundled_transformer, positions_stated
from planner.measurements.published import with_published_shape
from planner.measurements.tables import Row, RowSkipped, short_name
from planner.naming.models import nearest_models, transformer_called

__all__ = ["TransformerShape", "bundled_name", "shape_of", "transformer", "with_adapters"]

# Model and net texts in lower case -> style; the first that is found decides.
_STYLES = (
    (r"bert", "bert"),
    (r"\b(?:vit|deit)\b|vision transformer", "vit"),
    (r"nemotron", "nemotron"),
    (
        r"llama|mi[sx]tral|internlm|qwen|\byi\b|baichuan|vicuna|gemma|deepseek|smollm|olmo|phi.?[34]|\bglm|chatglm|aquila",
        "llama",
    ),
    (r"mpt|gpt|opt|bloom|megatron|turing|chinchilla|neox|pythia|falcon|phi.?[12]|starcoder", "gpt"),
)
# Vocabulary where none is stated. GPT-2's 50,257 rows are padded by Megatron-LM to a multiple of 128; the others are those of the published
# configurations (Devlin et al., arXiv:1810.04805; Touvron et al., arXiv:2302.13971; NVIDIA Nemotron-4, arXiv:2402.16819). ViT: the classes
# and the positions (16 x 16 patches of 14 x 14, and the class token) of ImageNet at 224 x 224 (Dosovitskiy et al., arXiv:2010.11929).
_VOCABULARY = {"gpt": 50304, "llama": 32000, "nemotron": 256000, "bert": 30522, "vit": 1000}
_UNPADDED = 50257
_POSITIONS = {"vit": 197}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """What decides the graph of a transformer."""

    style: str  # "gpt", "llama", "nemotron", "bert" or "vit"
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    seq: int
    fused: bool
    dropout: bool
    tied: bool
    padded: bool = True  # rows of the vocabulary to what matrix units load at once
    lora_rank: int = 0  # adapters beside the products of queries, keys and values; everything else is frozen then
    experts: ExpertShape | None = None  # in place of every feed-forward part


def _unknown(row: Row) -> RowSkipped:
    """Why a row has no network; in a table without widths and degrees, as of networks for images, it is the name.

    >>> _unknown(Row(line=2, cells={"model": "YOLOv3"})).reason
    "no bundled network has the name 'YOLOv3' (planner list models)"
    >>> _unknown(Row(line=2, cells={"model": "our 7B", "tp": "2"})).reason
    "the model's shape is not stated (hidden, layers, heads) and no bundled model has its name"
    """
    name = row.text("model")
    reason = "the model's shape is not stated (hidden, layers, heads) and no bundled model has its name"
    if name and not any(column in row.cells for column in _OF_TRANSFORMERS):
        reason = f"no bundled network has the name '{short_name(name)}' (planner list models)"
    return RowSkipped(reason + nearest_models(name), usable=bool(name), needs=(("hidden",), ("layers",), ("heads",)))


# Columns that tables of networks for images do without.
_OF_TRANSFORMERS = ("hidden", "layers", "heads", "params_b", "seq", "tp", "pp", "tokens_per_s", "tokens_per_s_per_gpu")


def shape_of(row: Row, *, fused: bool, dropout: bool | None = None) -> TransformerShape:
    """Read the shape of a row.

    Raises
    ------
    RowSkipped
        Hidden size, layers or heads are not stated, or contradict each other.
    """
    hidden, layers, heads = row.count("hidden"), row.count("layers"), row.count("heads")
    if not (hidden and layers and heads):
        row = with_published_shape(row)
        hidden, layers, heads = row.count("hidden"), row.count("layers"), row.count("heads")
    elif _style(row, hidden) == "llama":  # whose widths follow no rule
        row = _with_known_widths(row)
    if hidden and layers and not heads and row.text("model"):
        heads = row.default("heads", _usual_heads(hidden))
    if not (hidden and layers and heads):
        raise _unknown(row)
    style = _style(row, hidden)
    if hidden % heads and not row.count("head_dim"):
        raise RowSkipped("heads do not divide hidden, and head_dim is not stated")
    kv_heads = row.count("kv_heads") or (heads if style in ("gpt", "bert", "vit") else row.default("kv_heads", heads))
    if heads % kv_heads:
        raise RowSkipped("kv_heads do not divide heads")
    shape = TransformerShape(
        style=style,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=row.count("head_dim") or hidden // heads,
        ffn=row.count("ffn") or row.default("ffn", _inner_width(style, hidden)),
        vocab=_words(row, style),
        seq=positions_stated(row, style) or row.default("seq", _POSITIONS.get(style, 2048)),
        fused=fused,
        dropout=has_dropout(row, style, fused=fused) if dropout is None else dropout,
        tied=style in ("gpt", "bert"),  # GPT-2's and BERT's share the embedding; Llama's and Nemotron's do not
        padded=not cuts_vocabulary(row),
        experts=experts_of(row),
    )
    _check_size(shape)
    return replace(shape, tied=_is_tied(row, shape))


def _words(row: Row, style: str) -> int:
    """Rows of the embedding, of all ranks together."""
    if not cuts_vocabulary(row):
        return row.count("vocab") or row.default("vocab", _VOCABULARY[style])
    words, tp = row.count("vocab") or row.default("vocab", _UNPADDED), row.count("tp") or 1
    return max(words // tp, 1) * tp


# Ten times what any published transformer has, and small enough that its weights can be counted in 64 bits.
_MOST = {"layers": 10_000, "hidden": 10**6, "ffn": 10**7, "vocab": 10**8, "seq": 10**8}


def _check_size(shape: TransformerShape) -> None:
    for name, most in _MOST.items():
        if getattr(shape, name) > most:
            raise RowSkipped(f"column {name} is above {most:,}: no transformer has so many")
    if max(shape.heads, shape.kv_heads) * shape.head_dim > _MOST["ffn"]:
        raise RowSkipped(f"heads x head_dim is above {_MOST['ffn']:,}: no transformer has so many")


def _is_tied(row: Row, shape: TransformerShape) -> bool:
    """Whether the head shares the embedding: as stated, else as the published number of parameters says, else as usual for the style.

    The number decides for Llama and Nemotron only, whose members differ; it must have two digits, since "7" is a name.
    """
    stated = yes_or_no(row.text("tied"))
    if stated is not None:
        return stated
    billions = row.positive("params_b")
    if billions is None or shape.style in ("gpt", "bert", "vit") or len(re.sub(r"\D", "", row.text("params_b"))) < 2:
        return shape.tied
    head = shape.vocab * shape.hidden
    untied = transformer(replace(shape, tied=False)).weight_count
    return row.default("tied", abs(untied - head - 1e9 * billions) < abs(untied - 1e9 * billions))


def _with_known_widths(row: Row) -> Row:
    """The row with the other widths of the bundled network that it names and whose hidden size, layers and heads it states."""
    if row.has("kv_heads", "ffn", "vocab"):
        return row
    name = bundled_name(row)
    known = None if name is None else bundled_transformer(name, None)
    if known is None or is_particular(known) or not agrees(row, known):
        return row
    taken = {column: text for column, text in widths_of(known).items() if not row.text(column)}
    for column, text in taken.items():
        if column != "head_dim":
            row.default(column, int(text))
    return Row(line=row.line, cells={**row.cells, **taken}, defaults=row.defaults)


def _style(row: Row, hidden: int) -> str:
    for name in ("net", "model"):
        text = row.text(name).lower()
        for pattern, style in _STYLES:
            if re.search(pattern, text):
                return style
    ffn = row.count("ffn")
    # Gated feed-forward parts are rarely four times as wide as the model.
    return row.default("net", "gpt" if ffn in (None, 4 * hidden) else "llama")


def _usual_heads(hidden: int) -> int:
    """Heads of 64 features up to a width of 1,536, of 128 above it (Brown et al., arXiv:2005.14165, table 2).

    >>> _usual_heads(768), _usual_heads(4096), _usual_heads(100)
    (12, 32, 1)
    """
    width = 64 if hidden <= 1536 else 128
    return max(hidden // width, 1) if hidden % width == 0 else 1


def _inner_width(style: str, hidden: int) -> int:
    """4 hidden; gated ones 8/3 hidden, rounded up to 256 (Touvron et al., arXiv:2302.13971, section 2.2 and its code)."""
    return -(-8 * hidden // 3 // 256) * 256 if style == "llama" else 4 * hidden


def bundled_name(row: Row) -> str | None:
    """Bundled network of the model that a row names; None where there is none."""
    from planner.files.resources import bundled

    known = bundled("models")
    for column in ("model", "net"):
        text = row.text(column)
        if text in known:
            return text
        name = transformer_called(text)
        if name is not None:
            return name
    return None


class _Builder:
    """Collects layers; each reads the one before unless told otherwise."""

    def __init__(self, shape: TransformerShape) -> None:
        self.shape = shape
        self.specs: list[LayerSpec] = []
        self.block = ""
        self.last = ""

    def add(self, name: str, kind: str, *, inputs: tuple[str, ...] | None = None, lora: int = 0, **params: Any) -> str:
        full = f"{self.block}.{name}" if self.block else name
        read = inputs if inputs is not None else ((self.last,) if self.last else ())
        frozen = (
            self.shape.lora_rank > 0
            and not lora
            and kind in ("linear", "embedding", "layer_norm", "rms_norm", "position_embedding", "moe")
        )
        self.specs.append(
            LayerSpec(
                name=full,
                kind=kind,
                params=params_from(kind, params),
                inputs=read,
                block=self.block,
                frozen=frozen,
                lora_rank=lora,
            )
        )
        self.last = full
        return full


@cache
def with_adapters(graph: Graph, rank: int, *, everywhere: bool = False) -> Graph:
    """A network whose weights are frozen, with adapters beside the products that make queries, keys and values, or all in its blocks.

    >>> from planner.files.loading import load_model
    >>> adapted = with_adapters(load_model("mixtral-8x7b").graph, 16)
    >>> sum(layer.trainable_count for layer in adapted.layers)  # 32 (4096 + 6144) 16
    5242880
    >>> adapted = with_adapters(load_model("llama2-7b").graph, 16, everywhere=True)
    >>> sum(layer.trainable_count for layer in adapted.layers)  # 32 (16384 + 8192 + 26112 + 15104) 16
    33685504
    """
    readers = [
        layer for layer in graph.layers if layer.kind in ("self_attention", "cross_attention", "latent_attention")
    ]
    near = {name for layer in readers for name in layer.inputs}
    return replace(
        graph,
        layers=tuple(
            replace(layer, lora_rank=rank)
            if layer.kind == "linear" and (bool(layer.block) if everywhere else layer.name in near)
            else replace(layer, frozen=True)
            for layer in graph.layers
        ),
    )


@cache
def transformer(shape: TransformerShape) -> Graph:
    """The graph of a shape.

    Examples
    --------
    GPT-3 13B: ``layers (12 h^2 + 13 h) + (vocab + seq) h + 2 h``.

    >>> gpt = TransformerShape(style="gpt", hidden=5120, layers=40, heads=40, kv_heads=40, head_dim=128, ffn=20480, vocab=50257, seq=2048,
    ...     fused=True, dropout=False, tied=True)
    >>> transformer(gpt).weight_count
    12853386240
    """
    b = _Builder(shape)
    bare = shape.style in ("llama", "nemotron")
    b.add("tokens", "input", inputs=(), shape=(1, shape.seq))
    b.add("embedding", "embedding", num_embeddings=shape.vocab, dim=shape.hidden)
    if not bare:
        b.add("positions", "position_embedding", max_positions=shape.seq)
    if shape.style == "bert":
        b.add("embedding_norm", "layer_norm")
    if shape.dropout:
        b.add("dropout", "dropout", keep=0.9)
    for index in range(shape.layers):
        b.block = f"blocks.{index}"
        (_post_norm_block if shape.style == "bert" else _block)(b, bare=bare)
    b.block = ""
    if shape.style == "bert":  # the transform before the masked words are predicted
        b.add("transform", "linear", out_features=shape.hidden)
        b.add("gelu", "activation", function="gelu")
    b.add("norm", _norm(shape))
    b.add("head", "linear", out_features=shape.vocab, bias=shape.style == "bert", tied=shape.tied, padded=shape.padded)
    b.add("loss", "softmax")
    return Graph.build(shape.style, b.specs)


def _norm(shape: TransformerShape) -> str:
    return "rms_norm" if shape.style == "llama" else "layer_norm"


def _attention(b: _Builder, *, bias: bool) -> None:
    shape = b.shape
    b.add(
        "qkv",
        "linear",
        out_features=(shape.heads + 2 * shape.kv_heads) * shape.head_dim,
        bias=bias,
        lora=shape.lora_rank,
    )
    b.add(
        "attention",
        "self_attention",
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        causal=shape.style not in ("bert", "vit"),
        fused=shape.fused,
        dropout=shape.dropout,
    )
    b.add("proj", "linear", out_features=shape.hidden, bias=bias)
    if shape.dropout:
        b.add("dropout1", "dropout", keep=0.9, fused=shape.style != "bert")


def _feed_forward(b: _Builder, *, bias: bool) -> None:
    shape = b.shape
    gated = shape.style == "llama"
    if shape.experts is not None:
        known = shape.experts
        b.add(
            "experts", "moe", experts=known.count, top_k=known.top_k, ffn=known.ffn or shape.ffn, gated=gated, bias=bias
        )
    elif gated:
        b.add("up", "linear", out_features=2 * shape.ffn, bias=bias)
        b.add("glu", "glu", function="silu")
        b.add("down", "linear", out_features=shape.hidden, bias=bias)
    else:
        b.add("up", "linear", out_features=shape.ffn, bias=bias)
        b.add(
            "gelu", "activation", function="relu" if shape.style == "nemotron" else "gelu"
        )  # squared ReLU moves what ReLU moves
        b.add("down", "linear", out_features=shape.hidden, bias=bias)
    if shape.dropout:
        b.add("dropout2", "dropout", keep=0.9, fused=shape.style != "bert")


def _block(b: _Builder, *, bare: bool) -> None:
    entered = b.last
    b.add("norm1", _norm(b.shape))
    _attention(b, bias=not bare)
    attended = b.add("add1", "add", inputs=(b.last, entered))
    b.add("norm2", _norm(b.shape))
    _feed_forward(b, bias=not bare)
    b.add("add2", "add", inputs=(b.last, attended))


def _post_norm_block(b: _Builder, *, bare: bool) -> None:
    entered = b.last
    _attention(b, bias=not bare)
    b.add("add1", "add", inputs=(b.last, entered))
    attended = b.add("norm1", "layer_norm")
    _feed_forward(b, bias=not bare)
    b.add("add2", "add", inputs=(b.last, attended))
    b.add("norm2", "layer_norm")
