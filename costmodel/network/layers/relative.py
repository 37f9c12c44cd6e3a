"""Transformer-XL: attention over this segment and the one before it, by relative positions (Dai et al., arXiv:1901.02860)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.network.layers.base import (
    Kernel,
    Layer,
    LayerFamily,
    LayerWork,
    Shape,
    ShapeError,
    Shard,
    SplitLimits,
    param,
    positions_of,
    register,
    shape_text,
)
from costmodel.network.layers.dot_product import (
    DotProductAttention,
    Sizes,
    check_features,
    held_heads,
    pairs_of_positions,
)
from costmodel.network.layers.shape_only import share_of_output

__all__ = ["RelativeAttention", "RelativeAttentionParams", "SegmentMemory", "SegmentMemoryParams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMemoryParams:
    """Parameters of a memory."""

    positions: int = param(doc="how many of the segment before are kept", minimum=1)


@register
class SegmentMemory(LayerFamily):
    """What a layer read in the segment before, joined before what it reads now; no gradient goes there (section 3.2)."""

    kind = "segment_memory"
    summary = "positions kept of the segment before, without gradient, in front of those of this one: (d, n) becomes (d, memory + n)"
    Params = SegmentMemoryParams
    keeps_input = False

    def output_shape(self, params: SegmentMemoryParams, inputs: tuple[Shape, ...]) -> Shape:
        """(features, memory + positions)."""
        if len(inputs[0]) != 2:
            raise ShapeError(
                f"segment_memory needs a sequence (features x positions), its input is {shape_text(inputs[0])}"
            )
        return (inputs[0][0], params.positions + inputs[0][1])

    def limits(self, layer: Layer) -> SplitLimits:
        """Features."""
        return SplitLimits(out_channels=layer.output_shape[0], channelwise=True)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Copies both; the gradient of the second part is a view of that of the whole."""
        elements = share_of_output(layer, shard)
        return LayerWork(forward=((Kernel(flop=0.0 * elements, elements=2.0 * elements),),))

    def saved_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """The memory itself, which stays from one step to the next."""
        kept = layer.params.positions / layer.output_shape[1]
        return np.asarray(kept * share_of_output(layer, shard))


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeAttentionParams:
    """Parameters of attention by relative positions."""

    heads: int = param(doc="heads", minimum=1)
    head_dim: int = param(doc="features per head", minimum=1)
    width: int = param(doc="features of the encoding of a distance, which a matrix turns into keys", minimum=1)
    memory: int = param(doc="positions in front that are keys and values only", default=0, minimum=0)
    dropout: bool = param(doc="dropout of the attention probabilities", default=False)
    biases: bool = param(
        doc="the two biases of the queries are counted here: once in a network, as all layers share them", default=False
    )

    @property
    def fused(self) -> bool:
        """Never: the scores are shifted in memory."""
        return False


@register
class RelativeAttention(DotProductAttention):
    """softmax((Q + u) K' + shift((Q + v) R')) V per head, R the keys of the distances, which all samples share.

    Dai et al. (arXiv:1901.02860, section 3.3 and appendix B: the scores by distance are computed for all pairs and shifted). Kernels as
    in NVIDIA's program (DeepLearningExamples, PyTorch/LanguageModeling/Transformer-XL, mem_transformer.py, RelPartialLearnable-
    MultiHeadAttn): the shift copies the scores, one kernel adds and scales both, another masks them. torch.einsum copies operands whose
    samples and heads do not lie together: keys and values, which are slices of one product, and the gradient of what was shifted.
    """

    kind = "relative_attention"
    summary = "attention over a memory and a segment by relative positions (Transformer-XL): queries, keys, values in, heads x head_dim out"
    Params = RelativeAttentionParams
    in_mesh = False  # pieces of the positions would need the memory of others, and the shift whole rows

    def output_shape(self, params: RelativeAttentionParams, inputs: tuple[Shape, ...]) -> Shape:
        """(heads x head_dim, positions without the memory)."""
        wide = 3 * params.heads * params.head_dim
        check_features(
            "queries, keys and values", inputs[0], f"3 x {params.heads} heads x head_dim {params.head_dim}", wide
        )
        if params.memory >= inputs[0][1]:
            raise ShapeError(f"memory {params.memory} leaves no positions of its input {shape_text(inputs[0])}")
        return (params.heads * params.head_dim, inputs[0][1] - params.memory)

    def weight_count(self, layer: Layer) -> int:
        """``width heads head_dim`` of the matrix that makes keys of distances; both biases where they are counted here."""
        p: RelativeAttentionParams = layer.params
        return p.heads * p.head_dim * (p.width + 2 * p.biases)

    def _sizes(self, layer: Layer, shard: Shard) -> Sizes:
        p: RelativeAttentionParams = layer.params
        heads, own = held_heads(p.heads, shard), layer.output_shape[1]
        queries, keys = positions_of(layer.output_shape, shard), float(own + p.memory)
        per_query, per_key = shard.batch * heads * queries * p.head_dim, shard.batch * heads * keys * p.head_dim
        scores = shard.batch * heads * queries * keys
        seen = own * p.memory + pairs_of_positions(own, own, causal=True, window=0)
        return Sizes(
            heads=heads,
            queries=queries,
            keys=keys,
            score_dim=float(p.head_dim),
            value_dim=float(p.head_dim),
            q=per_query,
            k=per_key,
            v=per_key,
            out=per_query,
            pairs=scores * seen / (own * keys),
            scores=scores,
        )

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Attention that is written out, and what the distances add: their keys, a second product, its shift, the sum and the mask."""
        work = DotProductAttention.trained_work(self, layer, shard)
        size = self._sizes(layer, shard)
        depth, dim = float(layer.params.width), size.score_dim
        features = size.heads * dim  # of all heads of the share
        keys = size.keys + 0.0 * features
        scores = size.scores

        def of_distances(*gemm: Any) -> Kernel:
            """Products with the keys of the distances, one per head for all samples."""
            return Kernel(flop=2.0 * scores * dim, elements=scores + size.q + keys * features, gemm=gemm)

        def into_keys(*gemm: Any) -> Kernel:
            flop = 2.0 * keys * depth * features
            return Kernel(flop=flop, elements=keys * (depth + features) + depth * features, gemm=gemm)

        rows = shard.batch * size.queries
        deep, wide = dim + 0.0 * keys, depth + 0.0 * keys
        before = (
            Kernel(flop=2.0 * size.q, elements=4.0 * size.q, launches=2),  # queries with either bias
            into_keys(keys, features, wide),
            Kernel(
                flop=0.0 * size.k, elements=2.0 * (size.k + size.v + size.out), launches=3
            ),  # copies, and that of the result
            of_distances(rows, keys, deep),
            Kernel(flop=0.0 * scores, elements=2.0 * scores),  # the shift
            Kernel(flop=2.0 * scores, elements=3.0 * scores),  # sum and scale
            Kernel(flop=0.0 * scores, elements=2.0 * scores),  # mask
        )
        after = (
            Kernel(flop=scores, elements=6.0 * scores, launches=3),  # mask (a copy first) and scale once more
            Kernel(
                flop=0.0 * scores, elements=5.0 * scores, launches=3
            ),  # of the shift: zeros, copied into, and in another order
            of_distances(rows, deep, keys),
            # Both gradients of the queries summed, put into zeros for the memory's, and all three joined.
            Kernel(flop=size.q, elements=5.0 * size.q + 7.0 * size.k, launches=4),
        )
        # Of the matrix, through the keys of the distances; of both biases, sums over all queries.
        weights = (
            of_distances(keys, deep, rows),
            into_keys(wide, features, keys),
            Kernel(flop=2.0 * size.q, elements=2.0 * size.q, launches=2),
        )
        return replace(
            work,
            forward=tuple((*before, *kernels) for kernels in work.forward),
            backward_input=tuple((*kernels, *after) for kernels in work.backward_input),
            backward_weight=(weights,),
        )
