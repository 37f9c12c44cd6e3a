"""The network of a row: a bundled one, or a transformer from the columns of its shape, in the style of GPT, Llama, BERT or ViT."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from costmodel.network.graph import Graph, GraphError
from costmodel.network.layers import ATTENTION
from costmodel.network.layers.attention import Documents
from costmodel.network.layers.base import LayerSpec, params_from
from planner.core.errors import PlannerError
from planner.files.naming.models import nearest_models, transformer_called
from planner.files.resources import bundled
from planner.importers.hugging_face import parts
from planner.importers.networks import load_model
from planner.measurements.hardware import defaults_of, flash_attention, has_dropout
from planner.measurements.tables import Row, RowSkipped

# Adapters everywhere, or on the products of queries, keys and values (NeMo Framework user guide, PEFT).
_EVERYWHERE = "all"
_STACK = ("hidden", "layers", "heads")
# Vocabulary where none is stated. GPT-2's 50,257 rows are padded by Megatron-LM to a multiple of 128; the others are those of the published
# configurations (Devlin et al., arXiv:1810.04805; Touvron et al., arXiv:2302.13971; NVIDIA Nemotron-4, arXiv:2402.16819). ViT: the classes
# and the positions (16 x 16 patches of 14 x 14, and the class token) of ImageNet at 224 x 224 (Dosovitskiy et al., arXiv:2010.11929).
_VOCABULARY = {"gpt": 50304, "llama": 32000, "nemotron": 256000, "bert": 30522, "vit": 1000}
_POSITIONS = {"vit": 197}


_TOP_K = 2  # Lepikhin et al., GShard (arXiv:2006.16668), section 2.2; Mixtral's, too (arXiv:2401.04088)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShape:
    """Experts of a block, as the columns ``experts``, ``top_k``, ``expert_ffn``, ``shared_expert_ffn`` and ``dense_layers`` state them."""

    count: int
    top_k: int
    ffn: int  # inner width of one; 0: that of the column ffn
    shared_ffn: int = 0  # of those that every token passes, together
    dense_layers: int = 0  # first blocks, which have none


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
    experts: ExpertShape | None = None  # in place of every feed-forward part


def network_of(row: Row, number_format: str) -> Graph:
    """The network that a row names or spells out, with its adapters.

    Raises
    ------
    RowSkipped
        It does neither, or contradicts itself.
    """
    name = row.text("model")
    if name in bundled("models") and transformer_called(name) is not None:
        graph = bundled_transformer(name, row.count("seq"))
        known = stack_of(graph)
        for column in _STACK:
            if row.has(column) and row.text(column) != known.get(column):
                raise RowSkipped(
                    f"column {column} contradicts the bundled network '{name}': give the model another name"
                )
        graph = cut_network(graph, row.count("cut_layers") or len(graph.blocks))
    elif row.has("cut_layers"):
        raise RowSkipped("cut_layers is for a bundled network (column model)")
    else:
        shape = shape_of(row, fused=flash_attention(row, number_format))
        graph = transformer(replace(shape, seq=row.count("computed_seq") or shape.seq))
    length, rank = row.count("doc_length"), row.count("lora_rank")
    if length is not None:
        positions = max((layer.output_shape[-1] for layer in graph.layers if layer.kind in ATTENTION), default=1)
        graph = graph.packed(Documents.of([length], positions, row.number("doc_cv") or 0.0))
    if rank is None:
        return graph
    targets = row.text("lora_targets")
    everywhere = targets == _EVERYWHERE or (not targets and defaults_of(row).adapts_all)
    return with_adapters(graph, rank, everywhere=everywhere)


def shape_of(row: Row, *, fused: bool) -> TransformerShape:
    """Read the shape of a row.

    Raises
    ------
    RowSkipped
        Hidden size, layers or heads are not stated, or contradict each other.
    """
    hidden, layers, heads = row.count("hidden"), row.count("layers"), row.count("heads")
    if not (hidden and layers and heads):
        raise RowSkipped(
            f"the model's shape is not stated (hidden, layers, heads) and no bundled model has its name{nearest_models(row.text('model'))}",
            usable=row.has("model"),
            needs=(("hidden",), ("layers",), ("heads",)),
        )
    ffn = row.count("ffn")
    # Gated feed-forward parts are rarely four times as wide as the model.
    style = row.text("style") or row.default("style", "gpt" if ffn in (None, 4 * hidden) else "llama")
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
        # Gated ones have 8/3 hidden, rounded up to 256 (Touvron et al., arXiv:2302.13971, section 2.2 and its code).
        ffn=ffn or row.default("ffn", -(-8 * hidden // 3 // 256) * 256 if style == "llama" else 4 * hidden),
        vocab=_words(row, style),
        seq=row.count("seq") or row.default("seq", _POSITIONS.get(style, 2048)),
        fused=fused,
        dropout=has_dropout(row, style, fused=fused),
        # GPT-2's and BERT's share the embedding; Llama's and Nemotron's do not.
        tied=style in ("gpt", "bert") if row.flag("tied") is None else row.text("tied") == "yes",
        padded=row.text("padded_vocab") != "no",
        experts=experts_of(row),
    )
    _check_size(shape)
    return shape


def _words(row: Row, style: str) -> int:
    """Rows of the embedding, of all ranks together; without padding every tensor-parallel rank has as many."""
    words = row.count("vocab") or row.default("vocab", _VOCABULARY[style])
    tp = (row.count("tp") or 1) if row.flag("padded_vocab") is False else 1
    return max(words // tp, 1) * tp


def experts_of(row: Row) -> ExpertShape | None:
    """The experts in every block; None where the network has none.

    Raises
    ------
    RowSkipped
        Experts are spread over ranks, and the row does not say how many there are.

    Examples
    --------
    >>> experts_of(Row(line=2, cells={"experts": "8"}))
    ExpertShape(count=8, top_k=2, ffn=0, shared_ffn=0, dense_layers=0)
    """
    count = row.count("experts")
    if count is None:
        if (row.count("ep") or 1) > 1:
            raise RowSkipped("ep is above 1, and no column counts experts (experts, top_k, expert_ffn)", usable=True)
        return None
    top_k = row.count("top_k") or row.default("top_k", min(_TOP_K, count))
    if top_k > count:
        raise RowSkipped("top_k is above the number of experts")
    dense = row.count("dense_layers") or 0
    if dense >= (row.count("layers") or dense + 1):
        raise RowSkipped("dense_layers leaves no block with experts")
    return ExpertShape(
        count=count,
        top_k=top_k,
        ffn=row.count("expert_ffn") or 0,
        shared_ffn=row.count("shared_expert_ffn") or 0,
        dense_layers=dense,
    )


# Ten times what any published transformer has, and small enough that its weights can be counted in 64 bits.
_MOST = {"layers": 10_000, "hidden": 10**6, "ffn": 10**7, "vocab": 10**8, "seq": 10**8}


def _check_size(shape: TransformerShape) -> None:
    for name, most in _MOST.items():
        if getattr(shape, name) > most:
            raise RowSkipped(f"column {name} is above {most:,}: no transformer has so many")
    if max(shape.heads, shape.kv_heads) * shape.head_dim > _MOST["ffn"]:
        raise RowSkipped(f"heads x head_dim is above {_MOST['ffn']:,}: no transformer has so many")


@cache
def with_adapters(graph: Graph, rank: int, *, everywhere: bool = False) -> Graph:
    """A network whose weights are frozen, with adapters beside the products that make queries, keys and values, or all in its blocks.

    >>> from planner.importers.networks import load_model
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
    is_bert, bare = shape.style == "bert", shape.style in ("llama", "nemotron")
    norm = parts.rms_norm if shape.style == "llama" else parts.layer_norm
    rate = _DROPPED if shape.dropout else 0.0
    bodies = {is_dense: _block(shape, norm, rate, bias=not bare, is_dense=is_dense) for is_dense in (False, True)}
    dense = shape.experts.dense_layers if shape.experts is not None else 0
    specs: list[LayerSpec] = []
    _add(specs, [parts.entry("tokens", "input", shape=(1, shape.seq)), *parts.embedding(shape.vocab, shape.hidden)[1:]])
    if not bare:
        _add(specs, [parts.entry("positions", "position_embedding", max_positions=shape.seq)])
    _add(specs, [*([parts.layer_norm("embedding_norm")] if is_bert else []), *parts.dropout("dropout", rate)])
    for index in range(shape.layers):
        _add(specs, bodies[index < dense], f"blocks.{index}")
    if is_bert:  # the transform before the masked words are predicted
        _add(
            specs,
            [parts.linear("transform", shape.hidden, bias=True), parts.entry("gelu", "activation", function="gelu")],
        )
    head, loss = parts.lm_head(shape.vocab, tied=shape.tied, bias=is_bert)
    _add(specs, [norm("norm"), {**head, "name": "head", "padded": shape.padded}, loss])
    return Graph.build(shape.style, specs)


_DROPPED = 0.1  # of the hidden states (GPT-2's and BERT's configurations)


def _block(shape: TransformerShape, norm: parts.Norm, rate: float, *, bias: bool, is_dense: bool) -> list[parts.Entry]:
    """Layers of one block, by the parts that configurations of Hugging Face are read into."""
    heads = parts.Heads(heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim)
    is_bert, is_gated = shape.style == "bert", shape.style == "llama"
    attending = parts.attention(
        heads,
        shape.hidden,
        qkv_bias=bias,
        proj_bias=bias,
        score_dropout=rate,
        causal=shape.style not in ("bert", "vit"),
        fused=shape.fused,
    )
    if shape.experts is not None and not is_dense:
        known = shape.experts
        feeding = [
            parts.entry(
                "experts",
                "moe",
                experts=known.count,
                top_k=known.top_k,
                ffn=known.ffn or shape.ffn,
                shared_ffn=known.shared_ffn,
                gated=is_gated,
                bias=bias,
            )
        ]
    elif is_gated:
        feeding = parts.gated_feed_forward(shape.hidden, shape.ffn, "silu", bias=bias)
    else:  # squared ReLU moves what ReLU moves
        feeding = parts.feed_forward(
            shape.hidden, shape.ffn, "relu" if shape.style == "nemotron" else "gelu", bias=bias
        )
    made = parts.block(norm, [attending, feeding], rate=rate, norms="sum" if is_bert else "before")
    if is_bert:
        return made
    return [{**one, "fused": True} if one["type"] == "dropout" else one for one in made]


def _add(specs: list[LayerSpec], entries: Sequence[parts.Entry], block: str = "") -> None:
    """Append layers; each reads the one before unless told otherwise, and "input" is what a block reads."""
    before = specs[-1].name if specs else ""
    for one in entries:
        said = one.get("inputs")
        names = [said] if isinstance(said, str) else said
        last = specs[-1].name if specs else ""
        own = [before if name == "input" else f"{block}.{name}" for name in names] if names else [last] if last else []
        params = {key: value for key, value in one.items() if key not in ("name", "type", "inputs")}
        name = f"{block}.{one['name']}" if block else one["name"]
        kind = one["type"]
        specs.append(LayerSpec(name=name, kind=kind, params=params_from(kind, params), inputs=tuple(own), block=block))


# -- bundled networks -----------------------------------------------------------------------------------------------------------


def stack_of(graph: Graph) -> dict[str, str]:
    """What the columns hidden, layers and heads would say of a network; nothing where it has no attention.

    >>> from planner.importers.networks import load_model
    >>> stack_of(load_model("llama3-8b").graph)
    {'hidden': '4096', 'layers': '32', 'heads': '32'}
    """
    attention = [layer for layer in graph.layers if layer.kind in ("self_attention", "latent_attention")]
    if not attention:
        return {}
    hidden = max(layer.output_shape[0] for layer in graph.layers if layer.kind in ("layer_norm", "rms_norm"))
    return {"hidden": str(hidden), "layers": str(len(attention)), "heads": str(attention[0].params.heads)}


def positions_of(row: Row, graph: Graph) -> int | None:
    """Positions of a sample as throughputs count them: as stated, of images those that attention sees; None where there are none."""
    shape = graph.layers[0].output_shape
    if shape[0] == 1 and "seq" not in row.defaults and row.count("seq"):
        return row.count("seq")
    if len(shape) == 2:
        return shape[-1]
    return next((layer.output_shape[1] for layer in graph.layers if layer.kind == "self_attention"), None)


@cache
def cut_network(graph: Graph, layers: int) -> Graph:
    """The first blocks of a network, with what comes before and after all of them.

    Parameters
    ----------
    graph : Graph
    layers : int
        Blocks that are kept.

    Raises
    ------
    RowSkipped
        It has no more blocks than that, or more than one stack of them.

    Examples
    --------
    >>> whole = bundled_transformer("deepseek-v2", None)
    >>> kinds = [{layer.kind for layer in block} for block in cut_network(whole, 4).blocks.values()]
    >>> ["moe" in known for known in kinds], "latent_attention" in kinds[0]
    ([False, True, True, True], True)
    """
    blocks = list(graph.blocks)
    if layers == len(blocks):
        return graph
    if layers > len(blocks):
        raise RowSkipped(f"network '{graph.name}' has {len(blocks)} blocks, column cut_layers says {layers}")
    places = [index for index, layer in enumerate(graph.layers) if layer.block]
    if len(places) != places[-1] - places[0] + 1:
        raise RowSkipped(
            f"network '{graph.name}' has more than one stack of blocks: cut_layers is for one", usable=True
        )
    ends = {graph.blocks[blocks[-1]][-1].name: graph.blocks[blocks[layers - 1]][-1].name}
    specs = [
        LayerSpec(
            name=layer.name,
            kind=layer.kind,
            params=layer.params,
            inputs=tuple(ends.get(name, name) for name in layer.inputs),
            block=layer.block,
        )
        for layer in graph.layers
        if layer.block not in blocks[layers:]
    ]
    return Graph.build(graph.name, specs)


@cache
def bundled_transformer(name: str, seq: int | None) -> Graph:
    """Graph of a bundled network, at the sequence length given (or side of the images); tables of positions grow with it.

    >>> bundled_transformer("bert-large", 1024).weight_count - bundled_transformer("bert-large", 512).weight_count  # 512 x 1024
    524288

    Raises
    ------
    RowSkipped
        The network cannot be that long.
    """
    known = load_model(name)
    if seq is None or seq == known.seq:
        return known.graph
    if known.seq is None:
        return _on_images(known.graph, seq)
    try:
        return load_model(name, seq=seq).graph
    except PlannerError:
        return _with_input(known.graph, lambda shape: (*shape[:-1], seq) if shape[-1] == known.seq else shape, seq)


def _on_images(graph: Graph, seq: int) -> Graph:
    """A network for patches on images of another size, which its positions (with or without the class token) or their side state.

    >>> [_on_images(bundled_transformer("vit-b16", None), seq).layers[3].output_shape for seq in (224, 384, 577, 576)]
    [(768, 197), (768, 577), (768, 577), (768, 577)]

    Raises
    ------
    RowSkipped
        No image has as many patches.
    """
    side = graph.layers[0].output_shape[-1]
    own = next((layer.output_shape[1] for layer in graph.layers if layer.kind == "self_attention"), 0)
    along = math.isqrt(own)
    patch = side // along if along else 0
    wanted = next((n for n in (seq, seq - 1) if n > 0 and math.isqrt(n) ** 2 == n), None)
    if not patch or (wanted is None and seq % patch):
        raise RowSkipped(f"network '{graph.name}' has {own} positions, whatever column seq says", usable=True)
    size = seq if wanted is None else math.isqrt(wanted) * patch
    if size == side:
        return graph
    return _with_input(graph, lambda shape: (shape[0], size, size), (size // patch) ** 2 + own - along**2)


def _with_input(graph: Graph, resized: Callable[[tuple[int, ...]], tuple[int, ...]], positions: int) -> Graph:
    """The network with an input of another shape and as many rows in tables of positions as that needs."""
    specs = []
    for layer in graph.layers:
        params = layer.params
        if layer.kind == "input":
            params = replace(params, shape=resized(tuple(params.shape)))
        elif layer.kind == "position_embedding":
            params = replace(params, max_positions=max(params.max_positions, positions))
        specs.append(LayerSpec(name=layer.name, kind=layer.kind, params=params, inputs=layer.inputs, block=layer.block))
    try:
        return Graph.build(graph.name, specs)
    except GraphError as error:
        raise RowSkipped(f"network '{graph.name}' cannot have {positions:,} positions: {error}", usable=True) from None
