"""Decoders with rotary positions, RMS norm and gated feed-forward parts: Llama and what came of it.

Defaults are those of the config classes of Hugging Face transformers (``src/transformers/models/<model_type>/configuration_*.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from planner.importers.hugging_face import blocks as b
from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.fields import Fields

__all__ = ["DECODERS", "MAX_LAYERS", "Decoder", "causal_network", "check_top_k", "read_decoder"]

_LAYER_TYPES = ("full_attention", "sliding_attention")
MAX_LAYERS = 5000  # each is some dozen layers of a network file, which has at most 100,000


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """What a config class has for absent keys, and what the architecture's code fixes.

    Attributes
    ----------
    title : str
        Beginning of the names of its classes.
    vocab, hidden, intermediate, layers, heads, positions : int
    kv_heads, head_dim : int, optional
        None: as many as heads; hidden / heads.
    tied : bool
        ``tie_word_embeddings``.
    qkv_bias : bool or str
        Fixed, or the key that decides (False where it is absent, but for Qwen2-MoE's).
    proj_bias, mlp_bias : str, optional
        Keys that decide.
    window : int, optional
        ``sliding_window`` where it is absent.
    windows : str
        Which layers see a window: "none", "all", "even" (the first, third, ...), or, if ``use_sliding_window``, "switched" (all),
        "late" (from ``max_window_layers`` on) or "early" (the first, third, ... before it).
    head_norm : bool
        Queries and keys are normalised by head.
    norm_after : bool
        What is added to the input is normalised as well.
    has_dropout : bool
        Has ``resid_pdrop`` and ``embd_pdrop``.
    moe : str
        Which mixture of experts; empty: none.
    """

    title: str
    vocab: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    positions: int
    kv_heads: int | None = None
    head_dim: int | None = None
    reads_head_dim: bool = True
    tied: bool = False
    qkv_bias: bool | str = False
    proj_bias: str | None = None
    mlp_bias: str | None = None
    activation: tuple[str, str] = ("hidden_act", "silu")
    window: int | None = None
    windows: str = "none"
    head_norm: bool = False
    norm_after: bool = False
    has_dropout: bool = False
    moe: str = ""


# Sources: configuration_llama.py, configuration_mistral.py, ... of transformers; what a comment says is in modeling_*.py.
DECODERS: dict[str, Decoder] = {
    "llama": Decoder(
        title="Llama",
        vocab=32000,
        hidden=4096,
        intermediate=11008,
        layers=32,
        heads=32,
        positions=2048,
        qkv_bias="attention_bias",
        proj_bias="attention_bias",
        mlp_bias="mlp_bias",
    ),
    "mistral": Decoder(
        title="Mistral",
        vocab=32000,
        hidden=4096,
        intermediate=14336,
        layers=32,
        heads=32,
        kv_heads=8,
        positions=131072,
        window=4096,
        windows="all",
    ),
    "mixtral": Decoder(
        title="Mixtral",
        vocab=32000,
        hidden=4096,
        intermediate=14336,
        layers=32,
        heads=32,
        kv_heads=8,
        positions=131072,
        windows="all",
        moe="mixtral",
    ),
    "qwen2": Decoder(  # biases of queries, keys and values, none of the projection
        title="Qwen2",
        vocab=151936,
        hidden=4096,
        intermediate=22016,
        layers=32,
        heads=32,
        kv_heads=32,
        positions=32768,
        qkv_bias=True,
        reads_head_dim=False,
        window=4096,
        windows="late",
    ),
    "qwen2_moe": Decoder(
        title="Qwen2Moe",
        vocab=151936,
        hidden=2048,
        intermediate=5632,
        layers=24,
        heads=16,
        kv_heads=16,
        positions=32768,
        qkv_bias="qkv_bias",
        reads_head_dim=False,
        window=4096,
        windows="early",
        moe="qwen2_moe",
    ),
    "qwen3": Decoder(
        title="Qwen3",
        vocab=151936,
        hidden=4096,
        intermediate=22016,
        layers=32,
        heads=32,
        kv_heads=32,
        head_dim=128,
        positions=32768,
        qkv_bias="attention_bias",
        proj_bias="attention_bias",
        window=4096,
        windows="late",
        head_norm=True,
    ),
    "qwen3_moe": Decoder(
        title="Qwen3Moe",
        vocab=151936,
        hidden=2048,
        intermediate=6144,
        layers=24,
        heads=32,
        kv_heads=4,
        positions=32768,
        qkv_bias="attention_bias",
        proj_bias="attention_bias",
        window=4096,
        windows="switched",
        head_norm=True,
        moe="qwen3_moe",
    ),
    "gemma": Decoder(
        title="Gemma",
        vocab=256000,
        hidden=3072,
        intermediate=24576,
        layers=28,
        heads=16,
        kv_heads=16,
        head_dim=256,
        positions=8192,
        tied=True,
        qkv_bias="attention_bias",
        proj_bias="attention_bias",
        # Published files say "gelu" in hidden_act; the code runs the tanh form either way.
        activation=("hidden_act", "gelu_pytorch_tanh"),
    ),
    "gemma2": Decoder(  # a second norm after attention and after the feed-forward part
        title="Gemma2",
        vocab=256000,
        hidden=2304,
        intermediate=9216,
        layers=26,
        heads=8,
        kv_heads=4,
        head_dim=256,
        positions=8192,
        tied=True,
        qkv_bias="attention_bias",
        proj_bias="attention_bias",
        activation=("hidden_activation", "gelu_pytorch_tanh"),
        window=4096,
        windows="even",
        norm_after=True,
    ),
    "phi3": Decoder(
        title="Phi3",
        vocab=32064,
        hidden=3072,
        intermediate=8192,
        layers=32,
        heads=32,
        positions=4096,
        reads_head_dim=False,
        windows="all",
        has_dropout=True,
    ),
}


def causal_network(
    fields: Fields,
    *,
    title: str,
    positions: int,
    positions_key: str,
    embedded: list[p.Entry],
    blocks: tuple[dict[str, Any], list[p.Entry]],
    last: Sequence[p.Entry],
    head: Sequence[p.Entry],
    summary: str,
) -> p.Network:
    """Put a decoder together; ``architectures`` says whether it ends in a head."""
    whole = fields.architecture((f"{title}ForCausalLM", f"{title}Model")).endswith("ForCausalLM")
    return p.Network(
        blocks=blocks[0],
        layers=[*embedded, *blocks[1], *last, *(head if whole else ())],
        seq=positions,
        seq_source=positions_key,
        summary=summary,
    )


def read_decoder(fields: Fields, model_type: str) -> p.Network:
    """Make the network of one of `DECODERS`."""
    known = DECODERS[model_type]
    vocabulary = fields.count("vocab_size", known.vocab)
    hidden = fields.count("hidden_size", known.hidden)
    layers = fields.count("num_hidden_layers", known.layers, maximum=MAX_LAYERS)
    positions = fields.count("max_position_embeddings", known.positions)
    heads = p.read_heads(
        fields,
        hidden,
        heads=("num_attention_heads", known.heads),
        kv_default=known.kv_heads,
        head_dim=known.head_dim,
        reads_head_dim=known.reads_head_dim,
    )
    blocks = _blocks(fields, known, layers, hidden, _attention(fields, known, heads, hidden))
    tied = fields.flag("tie_word_embeddings", known.tied)
    embedding_rate = fields.probability("embd_pdrop", 0.0) if known.has_dropout else 0.0
    return causal_network(
        fields,
        title=known.title,
        positions=positions,
        positions_key="max_position_embeddings",
        embedded=[*p.embedding(vocabulary, hidden), *p.dropout("embedding_dropout", embedding_rate)],
        blocks=blocks,
        last=[p.rms_norm("norm")],
        head=p.lm_head(vocabulary, tied=tied),
        summary=f"{layers} blocks of width {hidden}",
    )


def _blocks(
    fields: Fields, known: Decoder, layers: int, hidden: int, attending: Callable[[int], list[p.Entry]]
) -> tuple[dict[str, Any], list[p.Entry]]:
    """Blocks with one feed-forward part, with experts, or both kinds in turn."""
    rate = fields.probability("resid_pdrop", 0.0) if known.has_dropout else 0.0
    activation = _activation(fields, known)
    feeding = {"dense": _dense(fields, known, hidden, activation)}
    if known.moe:
        feeding["sparse"] = [_experts(fields, known, activation)]
    sparse = _sparse_layers(fields, known, layers)
    kinds = ["sparse" if index in sparse else "dense" for index in range(layers)]
    title = {kind: kind if len(set(kinds)) > 1 else "decoder" for kind in feeding}

    def body_of(kind: str) -> Callable[[int], list[p.Entry]]:
        return lambda window: b.block(
            p.rms_norm, [attending(window), feeding[kind]], rate=rate, norm_after=known.norm_after
        )

    uses = [b.Use(title[kind], window) for kind, window in zip(kinds, _windows(fields, known, layers), strict=True)]
    return b.stack(uses, {title[kind]: body_of(kind) for kind in set(kinds)})


def _attention(fields: Fields, known: Decoder, heads: p.Heads, hidden: int) -> Callable[[int], list[p.Entry]]:
    """Self-attention as a function of its window."""
    key = known.qkv_bias
    qkv_bias = fields.flag(key, key == "qkv_bias") if isinstance(key, str) else key
    proj_bias = fields.flag(known.proj_bias, False) if known.proj_bias else False
    score_dropout = fields.probability("attention_dropout", 0.0)

    def made(window: int) -> list[p.Entry]:
        return p.attention(
            heads,
            hidden,
            qkv_bias=qkv_bias,
            proj_bias=proj_bias,
            head_norm="rms" if known.head_norm else None,
            score_dropout=score_dropout,
            window=window,
        )

    return made


def _activation(fields: Fields, known: Decoder) -> str:
    """Function of the gate; Gemma's newer key goes before its older one."""
    key, default = known.activation
    if key == "hidden_act" and known.title == "Gemma" and fields.has("hidden_activation"):
        key = "hidden_activation"
    return p.GATES[fields.word(key, default, p.GATES)]


def _dense(fields: Fields, known: Decoder, hidden: int, activation: str) -> list[p.Entry]:
    width = fields.count("intermediate_size", known.intermediate)
    bias = fields.flag(known.mlp_bias, False) if known.mlp_bias else False
    return p.gated_feed_forward(hidden, width, activation, bias=bias)


def _windows(fields: Fields, known: Decoder, layers: int) -> list[int]:
    """Window of every layer's attention; 0: all positions."""
    if known.windows == "none":
        return [0] * layers
    has_types = known.windows in ("even", "late", "early")
    types = fields.words("layer_types", _LAYER_TYPES, layers) if has_types else None
    has_switch = known.windows in ("late", "early", "switched")
    if has_switch and not fields.flag("use_sliding_window", False):
        return [0] * layers
    size = fields.optional_count("sliding_window", known.window, minimum=0) or 0
    chosen: list[bool] = [True] * layers
    if types is not None:
        chosen = [word == "sliding_attention" for word in types]
    elif known.windows == "even":  # the first, third, ... layer
        chosen = [index % 2 == 0 for index in range(layers)]
    elif known.windows in ("late", "early"):
        border = fields.count("max_window_layers", 28, minimum=0)
        # Qwen2 and Qwen3: layers from the border on; Qwen2-MoE: every other layer below it (their configuration_*.py).
        late = known.windows == "late"
        chosen = [i >= border if late else i < border and i % 2 == 0 for i in range(layers)]
    return [size if sees_window else 0 for sees_window in chosen]


def _sparse_layers(fields: Fields, known: Decoder, layers: int) -> frozenset[int]:
    """Layers with experts, counted from 0."""
    if not known.moe:
        return frozenset()
    if known.moe == "mixtral":
        return frozenset(range(layers))
    step = fields.count("decoder_sparse_step", 1)
    dense = fields.indices("mlp_only_layers", layers)
    return frozenset(i for i in range(layers) if i not in dense and (i + 1) % step == 0)


def _experts(fields: Fields, known: Decoder, activation: str) -> p.Entry:
    """The mixture of experts of Mixtral, Qwen2-MoE (with a gated shared expert) or Qwen3-MoE."""
    function = activation if activation != "silu" else None
    if known.moe == "mixtral":
        experts = fields.count("num_local_experts", 8, "num_experts")
        chosen = fields.count("num_experts_per_tok", 2)
        width = fields.count("intermediate_size", known.intermediate)
        check_top_k(fields, chosen, experts, "num_local_experts")
        return p.entry("moe", "moe", experts=experts, top_k=chosen, ffn=width, activation=function)
    has_shared = known.moe == "qwen2_moe"
    experts = fields.count("num_experts", 60 if has_shared else 128, "num_local_experts")
    chosen = fields.count("num_experts_per_tok", 4 if has_shared else 8)
    width = fields.count("moe_intermediate_size", 1408 if has_shared else 768)
    check_top_k(fields, chosen, experts, "num_experts")
    shared: dict[str, Any] = {}
    if has_shared:
        shared_width = fields.count("shared_expert_intermediate_size", 5632)
        shared = {"shared_experts": 1, "shared_ffn": shared_width, "shared_gate": True}
    return p.entry("moe", "moe", experts=experts, top_k=chosen, ffn=width, activation=function, **shared)


def check_top_k(fields: Fields, chosen: int, experts: int, key: str) -> None:
    """Note where a token would go to more experts than there are."""
    if chosen > experts:
        message = f"{chosen} experts per token, but there are {experts} ({key}); allowed: 1 to {experts}"
        fields.contradiction("num_experts_per_tok", message, key)
