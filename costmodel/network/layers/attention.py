"""Attention of transformers: self, cross and latent attention, fused (FlashAttention) or written out.

The projections before and after are linear layers of their own. A share holds whole heads; positions of the queries may be cut
(context parallelism), each piece still sees all keys. A causal mask leaves half of the pairs; pieces are taken to be balanced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.network.layers.base import (
    InnerExchange,
    Kernel,
    Layer,
    LayerWork,
    Shape,
    ShapeError,
    Shard,
    param,
    positions_of,
    register,
    shape_text,
)
from costmodel.network.layers.dot_product import (
    DotProductAttention,
    Sizes,
    check_features,
    check_heads,
    held_heads,
    pairs_of_positions,
)

__all__ = [
    "CrossAttention",
    "CrossAttentionParams",
    "LatentAttention",
    "LatentAttentionParams",
    "SelfAttention",
    "SelfAttentionParams",
    "pairs_of_positions",
]


def _grouped_sizes(
    params: SelfAttentionParams | CrossAttentionParams,
    shard: Shard,
    positions: tuple[Shape, Shape],
    *,
    causal: bool,
    window: int,
) -> Sizes:
    """Sizes where keys and values have their own number of heads; ``positions`` are shapes of the queries and the keys."""
    heads, kv_heads = held_heads(params.heads, shard), held_heads(params.kv_heads or params.heads, shard)
    queries, keys, dim = positions_of(positions[0], shard), float(positions[1][1]), float(params.head_dim)
    fraction = pairs_of_positions(positions[0][1], keys, causal=causal, window=window) / (positions[0][1] * keys)
    per_query, per_key = shard.batch * queries * dim, shard.batch * keys * dim
    scores = shard.batch * heads * queries * keys
    return Sizes(
        heads=heads,
        queries=queries,
        keys=keys,
        score_dim=dim,
        value_dim=dim,
        q=per_query * heads,
        k=per_key * kv_heads,
        v=per_key * kv_heads,
        out=per_query * heads,
        pairs=scores * fraction,
        scores=scores,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfAttentionParams:
    """Parameters of self-attention."""

    heads: int = param(doc="heads of the queries", minimum=1)
    head_dim: int = param(doc="features per head", minimum=1)
    kv_heads: int = param(doc="heads of the keys and values; 0: as many as of the queries", default=0, minimum=0)
    causal: bool = param(doc="a position sees itself and those before it", default=True)
    window: int = param(doc="positions that a query sees; 0: all", default=0, minimum=0)
    fused: bool = param(doc="FlashAttention; otherwise every score is written to memory", default=True)
    dropout: bool = param(doc="dropout of the attention probabilities", default=False)
    relative_buckets: int = param(doc="learned biases per head by distance (T5); 0: none", default=0, minimum=0)
    qk_norm: Literal["rms", "layer", "layer_own", "rms_wide"] | None = param(
        doc="normalisation of every head's queries and of its keys, weights shared by all heads (Qwen3: rms); layer_own: a scale of "
        "its own for every head (Command R+); rms_wide: over all heads together (OLMo 2)",
        default=None,
    )
    sinks: bool = param(doc="a learned score per head beside those of the keys (gpt-oss)", default=False)


# Operations per element of a norm over a head: forward, gradient of the input, gradient of the weights; as in `normalisation`.
_RMS_FLOP, _LAYER_FLOP = (4.0, 8.0, 2.0), (7.0, 12.0, 3.0)
_HEAD_NORM_FLOP = {"rms": _RMS_FLOP, "rms_wide": _RMS_FLOP, "layer": _LAYER_FLOP, "layer_own": _LAYER_FLOP}
# Scales and shifts of queries and keys: of one head each, or of all heads.
_SHARED_BY_HEADS = {"rms": 2, "layer": 4}


@register
class SelfAttention(DotProductAttention):
    """Multi-head, grouped-query or multi-query attention of a sequence over itself.

    Vaswani et al. (arXiv:1706.03762); Ainslie et al. (arXiv:2305.13245) for fewer heads of keys and values. Rotations of queries and
    keys (rotary positions) are taken to be part of the kernels before it.
    """

    kind = "self_attention"
    summary = "multi-head attention of a sequence over itself: queries, keys and values in, heads x head_dim out"
    Params = SelfAttentionParams

    def output_shape(self, params: SelfAttentionParams, inputs: tuple[Shape, ...]) -> Shape:
        """(heads x head_dim, positions)."""
        kv_heads = params.kv_heads or params.heads
        check_heads(params.heads, kv_heads)
        check_features(
            "queries, keys and values",
            inputs[0],
            f"({params.heads} + 2 x {kv_heads}) heads x head_dim {params.head_dim}",
            (params.heads + 2 * kv_heads) * params.head_dim,
        )
        return (params.heads * params.head_dim, inputs[0][1])

    def weight_count(self, layer: Layer) -> int:
        """Biases by distance, sinks and head norms.

        ``relative_buckets heads`` (Raffel et al., arXiv:1910.10683, section 2.1); ``heads`` sinks (arXiv:2508.10925, section 2.2); scales
        of queries and of keys, ``2 head_dim``, and as many shifts for layer normalisation, or ``(heads + kv_heads) head_dim`` scales
        where heads do not share them.
        """
        p: SelfAttentionParams = layer.params
        own = p.heads + (p.kv_heads or p.heads)
        norms = _SHARED_BY_HEADS.get(p.qk_norm, own) * p.head_dim if p.qk_norm else 0
        return (p.relative_buckets + p.sinks) * p.heads + norms

    def _sizes(self, layer: Layer, shard: Shard) -> Sizes:
        p: SelfAttentionParams = layer.params
        shape = layer.input_shapes[0]
        return _grouped_sizes(p, shard, (shape, shape), causal=p.causal, window=p.window)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Adds what has weights: norms of queries and keys before the scores, sinks, and the biases by distance.

        These are read per score; the gradient of a bias sums over the samples. A sink is one more key in the kernel; its gradient sums
        a number per row, which the backward pass has.
        """
        work = DotProductAttention.trained_work(self, layer, shard)
        size = self._sizes(layer, shard)
        if layer.params.qk_norm:
            work = _with_head_norms(work, layer.params.qk_norm, size, shard.batch)
        if layer.params.sinks:
            rows = shard.batch * size.heads * size.queries
            work = _with_gradient(work, Kernel(flop=2.0 * rows, elements=2.0 * rows))
        if not layer.params.relative_buckets:
            return work
        bias = size.scores / shard.batch
        add = Kernel(flop=size.scores, elements=2.0 * size.scores + bias)
        gradient = Kernel(flop=size.scores, elements=size.scores + bias)
        return _with_gradient(replace(work, forward=((*work.forward[0], add),)), gradient)


def _with_gradient(work: LayerWork, kernel: Kernel) -> LayerWork:
    return replace(work, backward_weight=tuple((*kernels, kernel) for kernels in work.backward_weight) or ((kernel,),))


def _with_head_norms(work: LayerWork, norm: str, size: Sizes, batch: FloatArray) -> LayerWork:
    """Queries and keys are read and written once more each way; the weights' gradient reads them and their gradient.

    A norm over all heads sums a number for the queries and one for the keys of every position over the workers that divide the heads.
    """
    elements = size.q + size.k
    sums = InnerExchange(
        operation="all_reduce", over="out_channels", elements=batch * size.queries, phase="forward", repeats=2
    )
    forward, to_input, to_weights = _HEAD_NORM_FLOP[norm]
    before = Kernel(flop=forward * elements, elements=2.0 * elements, launches=2)
    after = Kernel(flop=to_input * elements, elements=3.0 * elements, launches=2)
    weights = Kernel(flop=to_weights * elements, elements=2.0 * elements, launches=2)
    return replace(
        work,
        forward=tuple((before, *kernels) for kernels in work.forward),
        backward_input=tuple((*kernels, after) for kernels in work.backward_input),
        backward_weight=((weights,),),
        exchanges=(sums, replace(sums, phase="input_gradient")) if norm == "rms_wide" else (),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttentionParams:
    """Parameters of cross-attention."""

    heads: int = param(doc="heads of the queries", minimum=1)
    head_dim: int = param(doc="features per head", minimum=1)
    kv_heads: int = param(doc="heads of the keys and values; 0: as many as of the queries", default=0, minimum=0)
    fused: bool = param(doc="FlashAttention; otherwise every score is written to memory", default=True)


@register
class CrossAttention(DotProductAttention):
    """Attention of one sequence (queries) over another (keys and values), without mask (arXiv:1706.03762, section 3.2.3)."""

    kind = "cross_attention"
    summary = "multi-head attention of a sequence (first input: queries) over another (second: keys and values)"
    Params = CrossAttentionParams
    min_inputs = 2
    max_inputs = 2

    def output_shape(self, params: CrossAttentionParams, inputs: tuple[Shape, ...]) -> Shape:
        """(heads x head_dim, positions of the queries)."""
        kv_heads = params.kv_heads or params.heads
        check_heads(params.heads, kv_heads)
        size = params.head_dim
        check_features("queries", inputs[0], f"{params.heads} heads x head_dim {size}", params.heads * params.head_dim)
        check_features("keys and values", inputs[1], f"2 x {kv_heads} heads x head_dim {size}", 2 * kv_heads * size)
        return inputs[0]

    def _sizes(self, layer: Layer, shard: Shard) -> Sizes:
        queries, keys = layer.input_shapes
        return _grouped_sizes(layer.params, shard, (queries, keys), causal=False, window=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttentionParams:
    """Parameters of multi-head latent attention."""

    heads: int = param(doc="heads", minimum=1)
    nope_dim: int = param(doc="features per head of queries and keys without position", minimum=1)
    rope_dim: int = param(
        doc="features of queries and keys with rotary position; the keys' are common to all heads", minimum=1
    )
    value_dim: int = param(doc="features per head of the values", minimum=1)
    causal: bool = param(doc="a position sees itself and those before it", default=True)
    fused: bool = param(doc="FlashAttention; otherwise every score is written to memory", default=True)


@register
class LatentAttention(DotProductAttention):
    """Attention whose keys and values come from a compressed vector per position (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    Inputs: queries, keys and values per head, and the compressed vector, whose last ``rope_dim`` features belong to the keys of all
    heads; training puts them next to every head's own.
    """

    kind = "latent_attention"
    summary = "multi-head latent attention: queries, keys/values and the compressed vector in, heads x value_dim out"
    Params = LatentAttentionParams
    min_inputs = 3
    max_inputs = 3

    def output_shape(self, params: LatentAttentionParams, inputs: tuple[Shape, ...]) -> Shape:
        """(heads x value_dim, positions)."""
        p = params
        check_features(
            "queries",
            inputs[0],
            f"{p.heads} heads x ({p.nope_dim} + {p.rope_dim})",
            p.heads * (p.nope_dim + p.rope_dim),
        )
        check_features(
            "keys and values",
            inputs[1],
            f"{p.heads} heads x ({p.nope_dim} + {p.value_dim})",
            p.heads * (p.nope_dim + p.value_dim),
        )
        if len(inputs[2]) != 2 or inputs[2][0] <= p.rope_dim:
            raise ShapeError(
                f"the compressed vector needs more than rope_dim {p.rope_dim} features x positions, its input is "
                f"{shape_text(inputs[2])}"
            )
        if len({shape[1] for shape in inputs}) > 1:
            raise ShapeError(f"the inputs differ in their positions: {', '.join(map(shape_text, inputs))}")
        return (p.heads * p.value_dim, inputs[0][1])

    def _sizes(self, layer: Layer, shard: Shard) -> Sizes:
        p: LatentAttentionParams = layer.params
        heads, positions = held_heads(p.heads, shard), layer.output_shape[1]
        queries, dim, value = (
            positions_of(layer.output_shape, shard),
            float(p.nope_dim + p.rope_dim),
            float(p.value_dim),
        )
        scores = shard.batch * heads * queries * positions
        return Sizes(
            heads=heads,
            queries=queries,
            keys=float(positions),
            score_dim=dim,
            value_dim=value,
            q=shard.batch * queries * heads * dim,
            k=shard.batch * positions * heads * dim,
            v=shard.batch * positions * heads * value,
            out=shard.batch * queries * heads * value,
            pairs=scores * (0.5 if p.causal else 1.0),
            scores=scores,
        )

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Copies the common part of the keys to every head before, and sums its gradient after."""
        work = DotProductAttention.trained_work(self, layer, shard)
        positions = shard.batch * positions_of(layer.output_shape, shard)
        common = positions * layer.params.rope_dim
        held = positions * held_heads(layer.params.heads, shard) * (layer.params.nope_dim + layer.params.rope_dim)
        copy = Kernel(flop=0.0 * held, elements=2.0 * held)
        exchanges = (
            InnerExchange(operation="all_gather", over="out_channels", elements=common, phase="forward"),
            InnerExchange(operation="reduce_scatter", over="out_channels", elements=common, phase="input_gradient"),
        )
        return LayerWork(
            forward=((copy, *work.forward[0]),),
            backward_input=((*work.backward_input[0], copy),),
            exchanges=exchanges,
        )

    def saved_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """As in other attention, and the copies of the common part of the keys."""
        copies = shard.batch * positions_of(layer.output_shape, shard) * held_heads(layer.params.heads, shard)
        return np.asarray(super().saved_elements(layer, shard) + copies * layer.params.rope_dim)
