"""Decoders: those of `fields`, DeepSeek-V2 and V3 with latent attention and many small experts, OPT, Falcon, MPT and DBRX.

Defaults are those of the config classes of Hugging Face transformers (``src/transformers/models/<model_type>/configuration_*.py``), what
the architectures do with them is in ``modeling_*.py`` there. What DeepSeek's config classes leave out (``moe_layer_freq``) is in the files
that DeepSeek publishes with its weights. Layers for multi-token prediction (``num_nextn_predict_layers``) are not built: transformers does
not build them either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.fields import DECODERS, Fields

LAYER_TYPES = ("full_attention", "sliding_attention")
MAX_LAYERS = 5000  # each is some dozen layers of a network file, which has at most 100,000
_NORMS: dict[str, p.Norm] = {
    "rms": p.rms_norm,
    "layer": p.layer_norm,
    "layer_scale": partial(p.layer_norm, bias=False),
    "layer_plain": partial(p.layer_norm, bias=False, scale=False),
}


class Dimensions(NamedTuple):
    """What every decoder has, and the key of its positions."""

    vocabulary: int
    hidden: int
    layers: int
    positions: int
    positions_key: str = "max_position_embeddings"


def read_sizes(
    fields: Fields,
    vocabulary: int,
    *,
    hidden: p.Key = ("hidden_size", 768),
    layers: p.Key = ("num_hidden_layers", 12),
    positions: p.Key = ("max_position_embeddings", 2048),
    heads: p.Key = ("num_attention_heads", 12),
    **of_heads: Any,
) -> tuple[Dimensions, p.Heads]:
    """Read the sizes; each is a key, what the config class has where it is absent, and other names of the key.

    Parameters
    ----------
    of_heads : dict
        As `parts.read_heads` takes them; heads of keys and values, and sizes of heads, have no keys of their own unless told otherwise.
    """
    options = {"reads_kv": False, "reads_head_dim": False, **of_heads}
    words, width = fields.count("vocab_size", vocabulary), fields.count(*hidden)
    depth, length = fields.count(*layers, maximum=MAX_LAYERS), fields.count(*positions)
    own = p.read_heads(fields, width, heads=heads, hidden_key=hidden[0], **options)
    return Dimensions(words, width, depth, length, positions[0]), own


def causal_network(
    fields: Fields,
    sizes: Dimensions,
    *,
    title: str,
    bare: str = "",
    headed: str = "",
    embedded: list[p.Entry] | None = None,
    blocks: tuple[dict[str, Any], list[p.Entry]],
    last: Sequence[p.Entry],
    tied: bool,
    head_bias: bool = False,
) -> p.Network:
    """Put a decoder together; ``architectures`` says whether it ends in a head."""
    headed = headed or f"{title}ForCausalLM"
    whole = fields.architecture((headed, bare or f"{title}Model")) == headed
    head = p.lm_head(sizes.vocabulary, tied=tied, bias=head_bias) if whole else []
    embedded = p.embedding(sizes.vocabulary, sizes.hidden) if embedded is None else embedded
    layers, summary = [*embedded, *blocks[1], *last, *head], f"{sizes.layers} blocks of width {sizes.hidden}"
    return p.Network(blocks[0], layers, summary, sizes.positions, sizes.positions_key)


def read_decoder(fields: Fields, model_type: str) -> p.Network:
    """Make the network of one of `DECODERS`."""
    known = DECODERS[model_type]
    keys = {name: (first, getattr(known.sizes, name), *rest) for name, (first, *rest) in known.keys.items()}
    sizes, heads = read_sizes(
        fields,
        known.sizes.vocab,
        hidden=keys["hidden"],
        layers=keys["layers"],
        positions=keys["positions"],
        heads=keys["heads"],
        kv_default=known.kv_heads,
        head_dim=known.head_dim,
        reads_kv=known.reads_kv,
        reads_head_dim=known.reads_head_dim,
        rounds_head_dim=known.rounds_head_dim,
    )
    hidden = sizes.hidden
    if _is_on(fields, known.multi_query):
        heads = replace(heads, kv_heads=1)
    for refused in known.refused:
        fields.refuse(*refused)
    blocks = _blocks(fields, known, sizes.layers, hidden, _attention(fields, known, heads, hidden))
    norm = _NORMS[known.norm]
    positions = p.entry("positions", "position_embedding", max_positions=sizes.positions)
    return causal_network(
        fields,
        sizes,
        title=known.title,
        bare=known.bare_class,
        headed=known.head_class,
        embedded=[
            *p.embedding(sizes.vocabulary, hidden),
            *([positions] if known.learned_positions else ()),
            *([norm("embedding_norm")] if known.embedding_norm else ()),
            *p.dropout("embedding_dropout", _rate(fields, known, known.embedding_dropout)),
        ],
        blocks=blocks,
        last=[norm("norm")],
        tied=fields.flag("tie_word_embeddings", known.tied),
        head_bias=known.head_bias,
    )


def _is_on(fields: Fields, switch: bool | list[Any]) -> bool:
    return fields.flag(*switch) if isinstance(switch, list) else switch


def _rate(fields: Fields, known: SimpleNamespace, key: str) -> float:
    return fields.probability(key, known.dropout) if key else 0.0


def _blocks(
    fields: Fields, known: SimpleNamespace, layers: int, hidden: int, attending: Callable[[int], list[p.Entry]]
) -> tuple[dict[str, Any], list[p.Entry]]:
    """Blocks with one feed-forward part, with experts, or both kinds in turn."""
    rate = _rate(fields, known, known.residual_dropout)
    functions = p.GATES if known.gated else p.ACTIVATIONS
    key, default = _activation_key(fields, known), known.activation[1]
    activation = functions[fields.word(key, default, functions) if key else default]
    norm = _NORMS[known.norm]
    is_parallel, is_normed = _is_on(fields, known.parallel), _is_on(fields, known.residual_is_normed)
    feeding = {"dense": _dense(fields, known, hidden, activation)}
    experts = _experts(fields, known.experts, activation) if known.experts else None
    sparse: frozenset[int] = frozenset()
    if known.experts and experts:
        feeding["sparse"] = [experts]
        sparse = _sparse_layers(fields, known.experts, layers)
    kinds = ["sparse" if index in sparse else "dense" for index in range(layers)]
    title = {kind: kind if len(set(kinds)) > 1 else "decoder" for kind in feeding}

    def body(kind: str, window: int) -> list[p.Entry]:
        if is_parallel:
            return p.parallel_block(norm, attending(window), feeding[kind], norms=known.parallel_norms, rate=rate)
        parts = [attending(window), feeding[kind]]
        return p.block(norm, parts, rate=rate, norms=known.norms, residual_is_normed=is_normed)

    uses = [p.Use(title[kind], window) for kind, window in zip(kinds, _windows(fields, known, layers), strict=True)]
    return p.stack(uses, {title[kind]: partial(body, kind) for kind in set(kinds)})


def _attention(fields: Fields, known: SimpleNamespace, heads: p.Heads, hidden: int) -> Callable[[int], list[p.Entry]]:
    if known.is_latent:
        latent = _latent_attention(fields, hidden, heads.heads, has_indexer=known.has_indexer)
        return lambda _: latent
    has_norm = known.head_norm is not None and _is_on(fields, known.head_norm_if)
    made = partial(
        p.attention,
        heads,
        hidden,
        qkv_bias=_is_on(fields, known.qkv_bias),
        proj_bias=_is_on(fields, known.proj_bias),
        head_norm=known.head_norm if has_norm else None,
        score_dropout=fields.probability(known.score_dropout, known.dropout),
        sinks=known.sinks,
    )
    return lambda window: made(window=window)


def _activation_key(fields: Fields, known: SimpleNamespace) -> str:
    """Key of the function of the gate; Gemma's newer one goes before its older one."""
    is_newer = known.title == "Gemma" and fields.has("hidden_activation")
    return "hidden_activation" if is_newer else known.activation[0]


def _dense(fields: Fields, known: SimpleNamespace, hidden: int, activation: str) -> list[p.Entry]:
    key, size = known.keys["width"][0], known.sizes.width
    width = fields.count(key, size) if size else fields.optional_count(key, None) or 4 * hidden
    made = p.gated_feed_forward if known.gated else p.feed_forward
    rate = _rate(fields, known, known.mlp_dropout)
    return [*made(hidden, width, activation, bias=_is_on(fields, known.mlp_bias)), *p.dropout("mlp_dropout", rate)]


def _windows(fields: Fields, known: SimpleNamespace, layers: int) -> list[int]:
    """Window of every layer's attention; 0: all positions."""
    match known.windows:
        case "none":
            return [0] * layers
        case "chunked":
            return _chunks(fields, known, layers)
        case "listed":
            kinds = fields.spans("attention_types", ("global", "local"), layers)
            size = fields.count("window_size", known.window)
            return [size if kind == "local" else 0 for kind in kinds or ["global", "local"] * layers][:layers]
    has_types = known.windows in ("typed", "late", "early")
    types = fields.words("layer_types", LAYER_TYPES, layers) if has_types else None
    is_switched = known.windows != "all" and not known.period
    if is_switched and not fields.flag("use_sliding_window", False):
        return [0] * layers
    size = fields.optional_count("sliding_window", known.window) or 0
    chosen: list[bool] = [True] * layers
    if types is not None:
        chosen = [word == "sliding_attention" for word in types]
    elif known.period:
        period = fields.optional_count("sliding_window_pattern", None) or known.period
        chosen = [(index + 1) % period != 0 for index in range(layers)]
    elif known.windows == "typed":
        fields.contradiction("use_sliding_window", "which layers see a window? Write 'layer_types'", "layer_types")
    elif known.windows in ("late", "early"):
        border = fields.count("max_window_layers", 28, minimum=0)
        # Qwen2 and Qwen3: layers from the border on; Qwen2-MoE: every other layer below it (their configuration_*.py).
        late = known.windows == "late"
        chosen = [i >= border if late else i < border and i % 2 == 0 for i in range(layers)]
    return [size if sees_window else 0 for sees_window in chosen]


def _chunks(fields: Fields, known: SimpleNamespace, layers: int) -> list[int]:
    """Chunks of Llama 4 as windows of their size; layers without rotary positions see all."""
    size = fields.optional_count("attention_chunk_size", known.window) or 0
    rotary = fields.numbers("no_rope_layers", 1)
    period = fields.count("no_rope_layer_interval", known.period)
    types = fields.words("layer_types", ("full_attention", "chunked_attention"), layers)
    if rotary and len(rotary) < layers:
        fields.problem("no_rope_layers", f"has {len(rotary)} entries; the network has {layers} layers")
        rotary = []
    if types is not None:
        chosen = [word == "chunked_attention" for word in types]
    elif rotary:
        chosen = [number == 1 for number in rotary[:layers]]
    else:
        chosen = [(index + 1) % period != 0 for index in range(layers)]
    if size and any(chosen):
        fields.notes.append(
            f"attention in chunks of {size} positions is read as a window of the last {size}, which is up to twice the work where samples "
            "are longer"
        )
    return [size if is_chunked else 0 for is_chunked in chosen]


def _sparse_layers(fields: Fields, known: SimpleNamespace, layers: int) -> frozenset[int]:
    if known.layers == "all":
        return frozenset(range(layers))
    if known.layers == "step":
        step = fields.count("decoder_sparse_step", 1)
        dense = fields.indices("mlp_only_layers", layers)
        return frozenset(i for i in range(layers) if i not in dense and (i + 1) % step == 0)
    if known.layers == "listed":
        step = fields.count("interleave_moe_layer_step", 1)
        listed = fields.indices("moe_layers", layers)
        return listed if fields.has("moe_layers") else frozenset(range(step - 1, layers, step))
    first = fields.count("first_k_dense_replace", known.first, minimum=0)
    if first > layers and fields.has("first_k_dense_replace"):  # the default goes no further than the layers do
        message = f"{first} layers without experts, but there are {layers} (num_hidden_layers); allowed: 0 to {layers}"
        fields.contradiction("first_k_dense_replace", message, "num_hidden_layers")
    step = fields.count("moe_layer_freq", 1) if known.layers == "late_step" else 1
    return frozenset(i for i in range(first, layers) if i % step == 0)


def _experts(fields: Fields, known: SimpleNamespace, activation: str) -> p.Entry | None:
    """The mixture of experts of a family; None where the file says that there is none."""
    count = fields.optional_count if known.optional else fields.count
    experts = count(*known.count)
    if experts is None:
        return None
    chosen, groups, top_groups = fields.count("num_experts_per_tok", known.top_k), 1, None
    check_top_k(fields, chosen, experts, known.count[0])
    if known.groups is not None:
        check_expert_groups(fields, chosen, experts, known.groups)
        groups = fields.optional_count("n_group", known.groups if known.groups > 1 else None) or 1
    shared = count(*known.shared, minimum=0) if known.shared else 1 if known.shared_width else 0
    width = fields.count(*known.width)
    if groups > 1:
        top_groups = fields.optional_count("topk_group", known.top_groups)
    return p.entry(
        "moe",
        "moe",
        experts=experts,
        top_k=chosen,
        ffn=width,
        activation=activation if activation != "silu" else None,
        shared_experts=shared or None,
        shared_ffn=fields.count(*known.shared_width) if known.shared_width else None,
        shared_gate=known.shared_gate or None,
        bias=known.bias or None,
        limited=known.limited or None,
        router_bias=known.router_bias or None,
        groups=groups if groups > 1 else None,
        top_groups=top_groups,
    )


def check_top_k(
    fields: Fields, chosen: int, experts: int, key: str, *, chosen_key: str = "num_experts_per_tok"
) -> None:
    """Note where a token would go to more experts than there are."""
    if chosen > experts:
        message = f"{chosen} experts per token, but there are {experts} ({key}); allowed: 1 to {experts}"
        fields.contradiction(chosen_key, message, key)


def check_expert_groups(fields: Fields, chosen: int, experts: int, default: int) -> None:
    """Note groups of experts that a router cannot pick from (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).

    Parameters
    ----------
    fields : Fields
    chosen, experts : int
        Experts of a token, and all.
    default : int
        ``n_group`` where it is absent, which is held against nothing but a ``topk_group`` that the file has.
    """
    stated = fields.optional_count("n_group", None)
    picked = fields.optional_count("topk_group", None)
    if stated and experts % stated:
        message = f"{experts} experts (n_routed_experts) cannot be divided into {stated} groups"
        fields.contradiction("n_group", message, "n_routed_experts")
    groups = stated or default
    if not groups or picked is None:
        return
    if picked > groups:
        message = f"{picked} groups of experts per token, but there are {groups} (n_group); allowed: 1 to {groups}"
        fields.contradiction("topk_group", message, "n_group")
    elif stated and chosen <= experts and (reached := picked * (experts // stated)) < chosen:
        goes = f"a token goes to {chosen} (num_experts_per_tok)"
        message = f"{picked} of {stated} groups (n_group) have {reached} experts, but {goes}"
        fields.contradiction("topk_group", message, "n_group", "n_routed_experts", "num_experts_per_tok")


def _latent_attention(fields: Fields, hidden: int, heads: int, *, has_indexer: bool) -> list[p.Entry]:
    """Queries, keys and values through narrow vectors (arXiv:2405.04434, section 2.1), and an indexer (arXiv:2512.02556, section 2.1)."""
    query_rank = fields.optional_count("q_lora_rank", 1536)
    rank, nope = fields.count("kv_lora_rank", 512), fields.count("qk_nope_head_dim", 128)
    rope, value = fields.count("qk_rope_head_dim", 64), fields.count("v_head_dim", 128)
    bias = fields.flag("attention_bias", False)
    query = [p.linear("query", heads * (nope + rope), bias=False)]
    if query_rank is not None:
        query = [p.linear("query_down", query_rank, bias=bias), p.rms_norm("query_norm"), *query]
    sizes = {"heads": heads, "nope_dim": nope, "rope_dim": rope, "value_dim": value}
    inputs, index = ["query", "kv", "kv_down"], []
    if has_indexer:
        wide, deep = fields.count("index_n_heads", 64), fields.count("index_head_dim", 128)
        sizes |= {"selected": fields.count("index_topk", 2048), "index_heads": wide, "index_dim": deep}
        index = [
            p.linear("index_query", wide * deep, bias=False, inputs="norm1" if query_rank is None else "query_norm"),
            p.linear("index_key", deep, bias=False, inputs="norm1"),
            p.entry("index_norm", "layer_norm"),
            p.linear("index_weights", wide, bias=False, inputs="norm1"),
        ]
        inputs += ["index_query", "index_norm", "index_weights"]
    return [
        *query,
        p.linear("kv_down", rank + rope, bias=bias, inputs="norm1"),
        p.entry("kv_compressed", "slice_features", features=rank),
        p.rms_norm("kv_norm"),
        p.linear("kv", heads * (nope + value), bias=False),
        *index,
        p.entry("attention", "latent_attention", inputs, **sizes),
        p.linear("proj", hidden, bias=bias),
    ]


# -- decoders that are no row of `families.yaml` ---------------------------------------------------------------------------------


def read_opt(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001
    """OPT: learned positions with an offset of 2; the 350M one is post-norm and has a narrower embedding."""
    sizes, heads = read_sizes(fields, 50272, hidden=("hidden_size", 768, "d_model"))
    hidden, width = sizes.hidden, fields.count("ffn_dim", 3072)
    narrow = fields.optional_count("word_embed_proj_dim", None) or hidden
    function = p.ACTIVATIONS[fields.word("activation_function", "relu", p.ACTIVATIONS)]
    bias = fields.flag("enable_bias", True)
    is_before = fields.flag("do_layer_norm_before", True)
    fields.refuse("layer_norm_elementwise_affine", True, "layer norms without weights cannot be read")
    score_dropout = fields.probability("attention_dropout", 0.0)
    attending = p.attention(heads, hidden, qkv_bias=bias, proj_bias=bias, score_dropout=score_dropout)
    parts = [attending, p.feed_forward(hidden, width, function, bias=bias)]
    norms = "before" if is_before else "sum"
    has_norm = is_before and not fields.flag("_remove_final_layer_norm", False)
    return causal_network(
        fields,
        sizes,
        title="OPT",
        embedded=[
            *p.embedding(sizes.vocabulary, narrow),
            *([p.linear("project_in", hidden, bias=False)] if narrow != hidden else []),
            # OPTLearnedPositionalEmbedding.offset
            p.entry("positions", "position_embedding", max_positions=sizes.positions + 2),
        ],
        blocks=p.equal_blocks(
            "decoder", sizes.layers, p.block(p.layer_norm, parts, rate=fields.probability("dropout", 0.1), norms=norms)
        ),
        last=[
            *([p.layer_norm("norm")] if has_norm else []),
            *([p.linear("project_out", narrow, bias=False)] if narrow != hidden else []),
        ],
        tied=fields.flag("tie_word_embeddings", True),
    )


def read_falcon(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001
    """Falcon: one key/value head (7B) or some (40B), one norm or two before attention and feed-forward part side by side."""
    sizes, own = read_sizes(
        fields,
        65024,
        hidden=("hidden_size", 4544, "n_embed"),
        layers=("num_hidden_layers", 32, "n_layer"),
        heads=("num_attention_heads", 71, "n_head"),
    )
    hidden, is_new = sizes.hidden, fields.flag("new_decoder_architecture", False)
    kv_heads = fields.optional_count("num_kv_heads", None, "n_head_kv") or own.heads
    p.check_groups(fields, own.heads, kv_heads, "num_attention_heads", "num_kv_heads")
    # Key/value heads are read with the new architecture only, or without multi-query attention (modeling_falcon.py).
    heads = replace(own, kv_heads=1 if fields.flag("multi_query", True) and not is_new else kv_heads)
    width = fields.optional_count("ffn_hidden_size", None) or 4 * hidden
    bias, rate = fields.flag("bias", False), fields.probability("hidden_dropout", 0.0)
    function = p.ACTIVATIONS[fields.word("activation", "gelu", p.ACTIVATIONS)]
    score_dropout = fields.probability("attention_dropout", 0.0)
    attending = p.attention(heads, hidden, qkv_bias=bias, proj_bias=bias, score_dropout=score_dropout)
    feeding = p.feed_forward(hidden, width, function, bias=bias)
    norms = fields.optional_count("num_ln_in_parallel_attn", None) or (2 if is_new else 1)
    if fields.flag("parallel_attn", True):
        body = p.parallel_block(p.layer_norm, attending, feeding, norms=2 if norms == 2 else 1, rate=rate)
    else:
        body = p.block(p.layer_norm, [attending, feeding], rate=rate)
    tied = fields.flag("tie_word_embeddings", True)
    blocks = p.equal_blocks("decoder", sizes.layers, body)
    return causal_network(fields, sizes, title="Falcon", blocks=blocks, last=[p.layer_norm("norm")], tied=tied)


# Sizes under the keys of MosaicML.
_MOSAIC: dict[str, p.Key] = {
    "hidden": ("d_model", 2048, "hidden_size"),
    "layers": ("n_layers", 24, "num_hidden_layers"),
    "positions": ("max_seq_len", 2048),
    "heads": ("n_heads", 16, "num_attention_heads"),
}


def read_mpt(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001 - every reader has both
    """MPT: ALiBi, no biases, those of the norms included."""
    sizes, heads = read_sizes(fields, 50368, **_MOSAIC)
    inner = fields.inner("attn_config", "MptAttentionConfig")
    inner.word("attn_type", "multihead_attention", ["multihead_attention"])
    inner.refuse("qk_ln", False, "norms of queries and keys cannot be read (transformers does not build them)")
    width = fields.count("expansion_ratio", 4) * sizes.hidden
    feeding = p.feed_forward(sizes.hidden, width, "gelu", bias=False)
    tied = fields.flag("tie_word_embeddings", True)
    return _mosaic_network(fields, sizes, heads, inner, feeding, title="Mpt", tied=tied)


def read_dbrx(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001
    """DBRX: rotary positions, grouped heads, experts in every block, no biases."""
    sizes, own = read_sizes(fields, 32000, **_MOSAIC)
    inner = fields.inner("attn_config", "DbrxAttentionConfig")
    kv_heads = inner.count("kv_n_heads", 1)
    p.check_groups(inner, own.heads, kv_heads, "n_heads", "kv_n_heads")
    feeding = [_dbrx_experts(fields.inner("ffn_config", "DbrxFFNConfig"))]
    fields.refuse("tie_word_embeddings", False, "DBRX has no head that is tied to its embedding")
    return _mosaic_network(fields, sizes, replace(own, kv_heads=kv_heads), inner, feeding, title="Dbrx", tied=False)


def _mosaic_network(
    fields: Fields,
    sizes: Dimensions,
    heads: p.Heads,
    inner: Fields,
    feeding: list[p.Entry],
    *,
    title: str,
    tied: bool,
) -> p.Network:
    """Attention without biases, whose dropout stands in the mapping ``inner``."""
    norm: p.Norm = _NORMS["layer_scale"]
    score_dropout = inner.probability("attn_pdrop", 0.0)
    attending = p.attention(heads, sizes.hidden, qkv_bias=False, proj_bias=False, score_dropout=score_dropout)
    body = p.block(norm, [attending, feeding], rate=fields.probability("resid_pdrop", 0.0))
    blocks = p.equal_blocks("decoder", sizes.layers, body)
    return causal_network(fields, sizes, title=title, blocks=blocks, last=[norm("norm")], tied=tied)


def _dbrx_experts(inner: Fields) -> p.Entry:
    function = inner.inner("ffn_act_fn", "DbrxFFNConfig").word("name", "silu", p.GATES)
    experts, chosen = inner.count("moe_num_experts", 4), inner.count("moe_top_k", 1)
    check_top_k(inner, chosen, experts, "moe_num_experts", chosen_key="moe_top_k")
    return p.entry(
        "moe",
        "moe",
        experts=experts,
        top_k=chosen,
        ffn=inner.count("ffn_hidden_size", 3584),
        activation=p.GATES[function] if p.GATES[function] != "silu" else None,
    )
