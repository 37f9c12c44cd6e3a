"""Sizes of a plain decoder, for trainers that take the network as arguments; None of anything else, rather than a guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from costmodel.network.graph import Graph
from costmodel.network.layers import Layer

__all__ = ["NetworkSizes", "sizes_of"]

_NORMS = {"rms_norm": "RMSNorm", "layer_norm": "LayerNorm"}
# What a block of a plain decoder is made of.
_PLAIN = frozenset({"self_attention", "linear", "add", "glu", "activation", "dropout", "moe", *_NORMS})


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSizes:
    """A decoder of equal blocks: attention, then a multilayer perceptron or a mixture of experts.

    Attributes
    ----------
    ffn : int
        Hidden features of the perceptron, or of one expert.
    has_glu : bool
        Gated perceptrons (three matrices).
    function : str
        Their activation.
    norm : str
        "RMSNorm" or "LayerNorm".
    has_bias : bool
        Of the matrices inside the blocks.
    is_tied : bool
        The head has the weights of the embedding.
    has_positions : bool
        Learned position embeddings.
    experts, top_k, shared_ffn : int
        0 without a mixture of experts; hidden features of the shared experts together, 0 without any.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    has_glu: bool
    function: str
    norm: str
    has_bias: bool
    is_tied: bool
    has_positions: bool
    experts: int = 0
    top_k: int = 0
    shared_ffn: int = 0


def sizes_of(graph: Graph) -> NetworkSizes | None:
    """Read the sizes of a plain decoder.

    Returns
    -------
    NetworkSizes or None
        None where the blocks are unequal, or have parts that the arguments of a trainer would not describe.

    Examples
    --------
    >>> from planner.importers.networks import load_model
    >>> sizes = sizes_of(load_model("mixtral-8x7b").graph)
    >>> sizes.layers, sizes.hidden, sizes.kv_heads, sizes.ffn, sizes.experts
    (32, 4096, 8, 14336, 8)
    >>> sizes_of(load_model("deepseek-v3").graph) is None  # latent attention, and blocks of two kinds
    True
    """
    blocks: dict[str, list[Layer]] = {}
    for layer in graph.layers:
        if layer.block:
            blocks.setdefault(layer.block, []).append(layer)
    if not blocks:
        return None
    first, *others = blocks.values()
    if any([(x.kind, x.params) for x in first] != [(x.kind, x.params) for x in other] for other in others):
        return None
    block = _block_sizes(first)
    embeddings = [layer for layer in graph.layers if layer.kind == "embedding"]
    heads = [layer for layer in graph.layers if layer.kind == "linear" and not layer.block]
    if block is None or len(embeddings) != 1 or len(heads) != 1:
        return None
    vocabulary: int = embeddings[0].params.num_embeddings
    if heads[0].params.out_features != vocabulary:
        return None
    return NetworkSizes(
        layers=len(blocks),
        vocabulary=vocabulary,
        is_tied=heads[0].params.tied,
        has_positions=any(layer.kind == "position_embedding" for layer in graph.layers),
        **block,
    )


def _block_sizes(layers: Sequence[Layer]) -> dict[str, Any] | None:
    kinds = [layer.kind for layer in layers]
    attentions = [layer.params for layer in layers if layer.kind == "self_attention"]
    norms = {_NORMS[kind] for kind in kinds if kind in _NORMS}
    linears = [layer for layer in layers if layer.kind == "linear"]
    if not _PLAIN.issuperset(kinds) or len(attentions) != 1 or len(norms) != 1:
        return None
    # Two parts, one after the other, each normalised before and added to what it read.
    sums = [len(layer.inputs) for layer in layers if layer.kind == "add"]
    if sums != [2, 2] or kinds[0] not in _NORMS or sum(kind in _NORMS for kind in kinds) != 2:
        return None
    attention = attentions[0]
    if not attention.causal or attention.window or attention.relative_buckets or attention.qk_norm or attention.sinks:
        return None
    if len({layer.params.bias for layer in linears}) != 1 or any(layer.params.norm for layer in linears):
        return None
    mlp = _mixture(layers) if "moe" in kinds else _perceptron(layers, linears)
    return mlp and {
        "hidden": layers[0].input_shapes[0][0],
        "heads": attention.heads,
        "kv_heads": attention.kv_heads or attention.heads,
        "head_dim": attention.head_dim,
        "norm": norms.pop(),
        "has_bias": linears[0].params.bias,
        **mlp,
    }


def _perceptron(layers: Sequence[Layer], linears: Sequence[Layer]) -> dict[str, Any] | None:
    """Two matrices after those of the attention, with a gate or a function between them."""
    gates = [layer.params.function for layer in layers if layer.kind == "glu"]
    functions = [layer.params.function for layer in layers if layer.kind == "activation"]
    functions += [layer.params.activation for layer in linears if layer.params.activation]
    if len(linears) != 4 or len(gates) + len(functions) != 1:  # qkv, output, up, down
        return None
    return {"ffn": linears[-1].input_shapes[0][0], "has_glu": bool(gates), "function": (gates or functions)[0]}


def _mixture(layers: Sequence[Layer]) -> dict[str, Any] | None:
    found = [layer.params for layer in layers if layer.kind == "moe"]
    if len(found) != 1 or found[0].shared_gate or found[0].router_bias or found[0].bias:
        return None
    p = found[0]
    return {
        "ffn": p.ffn,
        "has_glu": p.gated,
        "function": p.activation,
        "experts": p.experts,
        "top_k": p.top_k,
        "shared_ffn": (p.shared_ffn or p.shared_experts * p.ffn) if p.shared_experts else 0,
    }
