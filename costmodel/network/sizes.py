"""What kind of transformer a network is, and its sizes, as trainers take them; None of anything else, rather than a guess."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from costmodel.network.graph import Graph
from costmodel.network.layers import Layer

# "llama": a plain decoder with Llama's blocks; "plain decoder": another one of equal blocks (`NetworkSizes`); "encoder": of equal blocks,
# with a vocabulary (`EncoderSizes`); "decoder" and "other encoder": any other that reads in one direction, and in both.
NetworkKind = Literal[
    "llama", "plain decoder", "decoder", "encoder", "other encoder", "encoder-decoder", "no transformer"
]
NETWORK_KINDS: tuple[str, ...] = get_args(NetworkKind)

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

    @property
    def head_in_blocks(self) -> float:
        """Cost of the head, in blocks, as nanotron counts it: as if there were as many heads of keys and values as of queries.

        src/nanotron/models/llama.py, get_block_compute_costs.
        """
        return self.vocabulary * self.hidden / (4 * self.hidden**2 + 3 * self.ffn * self.hidden)

    @property
    def unlike_llama(self) -> list[str]:
        """What differs from Llama's blocks, which changes the weights and the work."""
        facts = {
            "perceptrons without a gate": not self.has_glu,
            self.norm: self.norm != "RMSNorm",
            "learned positions": self.has_positions,
            "biases": self.has_bias,
            f"heads of {self.head_dim} features": self.head_dim * self.heads != self.hidden,
        }
        return [name for name, differs in facts.items() if differs]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSizes:
    """What every block of an encoder, or of an encoder-decoder, agrees on: sizes like those of `NetworkSizes`."""

    hidden: int
    heads: int
    head_dim: int
    ffn: int
    vocabulary: int


def sizes_of(graph: Graph) -> NetworkSizes | None:
    """Read the sizes of a plain decoder.

    Returns
    -------
    NetworkSizes or None
        None where the blocks are unequal, or have parts that the arguments of a trainer would not describe.
    """
    if not graph.blocks:
        return None
    first, *others = graph.blocks.values()
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
        layers=len(graph.blocks),
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


def network_kind(graph: Graph, sizes: NetworkSizes | None = None) -> NetworkKind:
    """Say what a network is; ``sizes`` are those of a plain decoder, where it is one."""
    layers = [layer for block in graph.blocks.values() for layer in block]
    attentions = [layer for layer in layers if layer.kind == "self_attention"]
    if any(layer.kind == "cross_attention" for layer in layers):
        return "encoder-decoder"
    if any(layer.kind == "latent_attention" for layer in layers):
        return "decoder"
    if not attentions:
        return "no transformer"
    if sizes is not None:
        return "plain decoder" if sizes.unlike_llama else "llama"
    if any(layer.params.causal for layer in attentions):
        return "decoder"
    each = Counter(layer.block for layer in attentions)
    is_plain = set(each.values()) == {1} and len(each) == len(graph.blocks)
    return "encoder" if is_plain and encoder_sizes_of(graph) is not None else "other encoder"


def vocabulary_of(graph: Graph) -> int:
    """Words of the largest embedding; 0 without any."""
    return max((layer.params.num_embeddings for layer in graph.layers if layer.kind == "embedding"), default=0)


def encoder_sizes_of(graph: Graph) -> EncoderSizes | None:
    """Read what all blocks of an encoder agree on; None where they do not."""
    widths = {_widths(block) for block in graph.blocks.values()}
    heads = {
        (layer.params.heads, layer.params.head_dim)
        for block in graph.blocks.values()
        for layer in block
        if layer.kind == "self_attention" and layer.params.kv_heads in (0, layer.params.heads)
    }
    vocabulary = vocabulary_of(graph)
    if len(widths) != 1 or len(heads) != 1 or None in widths or not vocabulary:
        return None
    found = widths.pop()
    assert found is not None
    head_count, head_dim = heads.pop()
    return EncoderSizes(hidden=found[0], heads=head_count, head_dim=head_dim, ffn=found[1], vocabulary=vocabulary)


def _widths(block: Sequence[Layer]) -> tuple[int, int] | None:
    """Hidden features and those inside the perceptron: two matrices with a plain function between them, at the end of a block."""
    linears = [layer for layer in block if layer.kind == "linear"]
    if any(layer.kind in ("glu", "moe") for layer in block) or len(linears) < 2:
        return None
    up, down = linears[-2:]
    hidden, ffn = up.input_shapes[0][0], down.input_shapes[0][0]
    return (hidden, ffn) if down.params.out_features == hidden and up.params.out_features == ffn else None
