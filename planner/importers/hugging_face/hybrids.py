"""Stacks of Mamba-2, alone or with attention, feed-forward parts and experts in turn: Mamba-2 and Nemotron-H.

Defaults are those of ``configuration_*.py`` of Hugging Face transformers, what the architectures do with them is in ``modeling_*.py``
beside it. A scan of Mamba-2 (Dao and Gu, arXiv:2405.21060) is `self_attention` with a state, in chunks. The short convolution before it is
an operation on every element with the convolution's weights: its kernel (causal-conv1d) reads and writes every element once. The scalars of
the heads (steps, decays, skips) are counted with those weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from planner.importers.hugging_face import parts as p
from planner.importers.hugging_face.decoders import (
    MAX_LAYERS,
    Dimensions,
    causal_network,
    check_expert_groups,
    check_top_k,
)
from planner.importers.hugging_face.fields import Fields

# Letters of ``hybrid_override_pattern``, and words of ``layers_block_type``, older ones included -> block.
_LETTERS = {"M": "scan", "*": "attend", "-": "feed_forward", "E": "mixture"}
_WORDS = {
    "linear_attention": "scan",
    "full_attention": "attend",
    "mlp": "feed_forward",
    "moe": "mixture",
    "mamba": "scan",
    "attention": "attend",
}


def read_mamba2(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001 - every reader has both
    """Mamba-2: a scan in every block."""
    hidden = fields.count("hidden_size", 4096)
    layers, vocabulary = fields.count("num_hidden_layers", 64, maximum=MAX_LAYERS), fields.count("vocab_size", 32768)
    heads, dim, expand = fields.count("num_heads", 128), fields.count("head_dim", 64), fields.count("expand", 2)
    if heads * dim != expand * hidden:
        message = f"{heads} heads of {dim} (head_dim) are not the {expand * hidden} features of expand x hidden_size"
        fields.contradiction("num_heads", message, "head_dim", "expand", "hidden_size")
    scan = _scan(fields, hidden, heads, dim, state=("state_size", 128), chunk=256, activation="hidden_act")
    # Scans have no longest sample, and the class no key for one.
    sizes = Dimensions(vocabulary, hidden, layers, 2048, "2048 (a scan has no longest one)")
    return causal_network(
        fields,
        sizes,
        title="Mamba2",
        blocks=p.equal_blocks("scan", layers, p.block(p.rms_norm, [scan])),
        last=[p.rms_norm("norm")],
        tied=fields.flag("tie_word_embeddings", False),
    )


def read_nemotron_h(fields: Fields, model_type: str) -> p.Network:  # noqa: ARG001
    """Nemotron-H: every block is a scan, attention, a feed-forward part or experts, with one norm."""
    hidden = fields.count("hidden_size", 4096)
    kinds = _kinds(fields)
    heads = p.read_heads(
        fields,
        hidden,
        heads=("num_attention_heads", 32),
        kv_default=8,
        head_dim=fields.count("head_dim", 128, "attention_head_dim"),
        reads_head_dim=False,
    )
    rate = fields.probability("attention_dropout", 0.0)
    # The class has the key attention_bias, and projections without biases.
    attending = p.attention(heads, hidden, qkv_bias=False, proj_bias=False, score_dropout=rate)
    function, bias = fields.word("mlp_hidden_act", "relu2", p.ACTIVATIONS), fields.flag("mlp_bias", False)
    width = fields.count("intermediate_size", 21504)
    scan_heads, dim = fields.count("mamba_num_heads", 128), fields.count("mamba_head_dim", 64)
    scan = _scan(
        fields, hidden, scan_heads, dim, state=("ssm_state_size", 128), chunk=128, activation="mamba_hidden_act"
    )
    parts = {
        "scan": scan,
        "attend": attending,
        "feed_forward": p.feed_forward(hidden, width, p.ACTIVATIONS[function], bias=bias),
        **({"mixture": [_experts(fields, function, bias=bias)]} if "mixture" in kinds else {}),
    }
    sizes = Dimensions(
        fields.count("vocab_size", 131072), hidden, len(kinds), fields.count("max_position_embeddings", 4096)
    )

    def body(kind: str, _: int) -> list[p.Entry]:
        return p.block(p.rms_norm, [parts[kind]])

    blocks = p.stack([p.Use(kind) for kind in kinds], {kind: partial(body, kind) for kind in set(kinds)})
    return causal_network(
        fields,
        sizes,
        title="NemotronH",
        blocks=blocks,
        last=[p.rms_norm("norm")],
        tied=fields.flag("tie_word_embeddings", False),
    )


def _kinds(fields: Fields) -> list[str]:
    """Block of every layer, from whichever of the two keys the file has."""
    # The class drops num_hidden_layers when it writes a file: the blocks say how many there are.
    layers = fields.optional_count("num_hidden_layers", None, maximum=MAX_LAYERS)
    letters = fields.letters("hybrid_override_pattern", tuple(_LETTERS), layers)
    words = fields.words("layers_block_type", tuple(_WORDS), layers, "layer_types")
    kinds = [_WORDS[word] for word in words] if words else [_LETTERS[letter] for letter in letters or ""]
    if not kinds and not any(map(fields.has, ("hybrid_override_pattern", "layers_block_type", "layer_types"))):
        key = "hybrid_override_pattern"
        fields.problem(key, f"missing key '{key}' (or 'layers_block_type'), which says what every layer is: write it")
    elif not kinds:
        fields.contradiction("hybrid_override_pattern", "names no layers", "layers_block_type")
    elif len(kinds) > MAX_LAYERS:
        fields.problem("hybrid_override_pattern", f"names {len(kinds)} layers; at most {MAX_LAYERS} are read")
    return kinds[:MAX_LAYERS] or ["scan"]


def _scan(
    fields: Fields, hidden: int, heads: int, dim: int, *, state: p.Key, chunk: int, activation: str
) -> list[p.Entry]:
    """A mixer of Mamba-2: one projection to gates, what is convolved, and steps; the scan; a norm of the gated result."""
    groups, kernel = fields.count("n_groups", 8, "mamba_n_groups"), fields.count("conv_kernel", 4, "mamba_d_conv")
    states, size = fields.count(*state), fields.count("chunk_size", chunk, "mamba_chunk_size")
    bias, has_conv_bias = fields.flag("use_bias", False), fields.flag("use_conv_bias", True, "mamba_conv_bias")
    function = p.ACTIVATIONS[fields.word(activation, "silu", p.ACTIVATIONS)]
    if heads % groups:
        fields.contradiction("n_groups", f"{heads} heads of the scans cannot share {groups} groups evenly")
    inner = heads * dim
    convolved = inner + 2 * groups * states
    # A product and a sum for each of the kernel's positions, the bias, and the function behind it (4 as in the layer `activation`).
    flop, weights = 2.0 * kernel + has_conv_bias + 4.0, convolved * (kernel + has_conv_bias) + 3 * heads
    return [
        p.linear("in", inner + convolved + heads, bias=bias),
        p.entry("convolved", "slice_features", "in", features=convolved),
        p.entry("short", "pointwise", flop=flop, weights=weights),
        p.entry(
            "scan",
            "self_attention",
            heads=heads,
            kv_heads=groups if groups != heads else None,
            head_dim=dim,
            window=size,
            state=states,
        ),
        p.entry("gate", "slice_features", "in", features=inner),
        p.entry("gate_function", "activation", function=function if function != "relu" else None),
        p.entry("gated", "pointwise", ["scan", "gate_function"]),
        p.rms_norm("norm_gated"),
        p.linear("out", hidden, bias=bias),
    ]


def _experts(fields: Fields, function: str, *, bias: bool) -> p.Entry:
    """Experts of two matrices without gates, as wide as the network; a shared one has a width of its own."""
    if fields.has("moe_latent_size"):
        fields.problem("moe_latent_size", "experts that work in a narrower vector cannot be read; write a network file")
    if bias:
        fields.problem("mlp_bias", "biases in the shared expert alone cannot be read; write a network file")
    gate: Mapping[str, str] = {"relu2": "relu", **p.GATES}
    if function not in gate:
        fields.problem("mlp_hidden_act", f"experts with '{function}' cannot be read; allowed: {', '.join(gate)}")
    experts, chosen = fields.count("n_routed_experts", 8, "num_local_experts"), fields.count("num_experts_per_tok", 2)
    check_top_k(fields, chosen, experts, "n_routed_experts")
    check_expert_groups(fields, chosen, experts, 1)
    groups, picked = fields.optional_count("n_group", None) or 1, fields.optional_count("topk_group", None)
    activation = gate.get(function, "silu")
    return p.entry(
        "moe",
        "moe",
        experts=experts,
        top_k=chosen,
        ffn=fields.count("moe_intermediate_size", 7688),
        gated=False,
        activation=activation if activation != "silu" else None,
        # One network of the width that is said, however many that stands for (modeling_nemotron_h.py).
        shared_experts=fields.count("n_shared_experts", 1),
        shared_ffn=fields.count("moe_shared_expert_intermediate_size", 7688),
        router_bias=True,
        groups=groups if groups > 1 else None,
        top_groups=picked if groups > 1 else None,
    )
