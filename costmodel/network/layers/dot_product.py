"""What every attention by dot products does: softmax(Q K') V per head, fused (FlashAttention) or written out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.network.layers.base import (
    Kernel,
    Layer,
    LayerFamily,
    LayerWork,
    PassWork,
    Shape,
    ShapeError,
    Shard,
    SplitLimits,
    shape_text,
)

__all__ = ["DotProductAttention", "Sizes", "check_features", "check_heads", "held_heads", "pairs_of_positions"]


def pairs_of_positions(queries: float, keys: float, *, causal: bool, window: int) -> float:
    """Pairs (query, key) that attention computes, per sample and head.

    All of them; half under a causal mask (the diagonal counts half, as in the published FLOP counts); with a window of w at most w
    keys per query, the first w queries of a causal one fewer.

    Examples
    --------
    >>> pairs_of_positions(8, 8, causal=False, window=0), pairs_of_positions(8, 8, causal=True, window=0)
    (64.0, 32.0)
    >>> pairs_of_positions(8, 8, causal=True, window=2), pairs_of_positions(8, 8, causal=True, window=100)
    (14.0, 32.0)
    """
    seen = min(float(window), keys) if window else keys
    return queries * seen - (0.5 * seen * seen if causal else 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """One worker's share of an attention; counts are per step share, batch included."""

    heads: FloatArray
    queries: FloatArray  # positions of the queries in the share
    keys: float  # positions of the keys, all of them
    score_dim: float  # features behind a score
    value_dim: float
    # Elements of the tensors.
    q: FloatArray
    k: FloatArray
    v: FloatArray
    out: FloatArray
    pairs: FloatArray  # computed by a fused kernel, over all heads and samples
    scores: FloatArray  # all pairs, which an unfused one writes out


class DotProductAttention(LayerFamily):
    """softmax(Q K') V per head."""

    keeps_inside = True
    # The mesh model knows what it exchanges where heads or positions are divided; networks with others are planned layer by layer.
    in_mesh: ClassVar[bool] = True

    def limits(self, layer: Layer) -> SplitLimits:
        """Heads; fewer heads of keys and values are repeated."""
        return SplitLimits(out_channels=layer.params.heads, channelwise=True)

    def is_recomputable(self, layer: Layer) -> bool:
        """Attention that is written out keeps every score; a fused one keeps hardly anything."""
        return not layer.params.fused

    @abstractmethod
    def _sizes(self, layer: Layer, shard: Shard) -> Sizes:
        """What the share holds."""

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """The kernels; see `_fused_passes` and `_written_out_passes`."""
        size = self._sizes(layer, shard)
        has_dropout: bool = getattr(layer.params, "dropout", False)
        passes = _fused_passes(size) if layer.params.fused else _written_out_passes(size, has_dropout=has_dropout)
        return LayerWork(forward=passes[0], backward_input=passes[1])

    def saved_elements(self, layer: Layer, shard: Shard) -> FloatArray:
        """Fused: the logarithm of every row's sum, in fp32. Else the probabilities, and under dropout its mask and result.

        Korthikanti et al. (arXiv:2205.05198, section 4.1): ``5 a s^2 b`` bytes per layer with dropout.
        """
        size = self._sizes(layer, shard)
        # Norms keep what they read (the layer's input) and what they make.
        normed = size.q + size.k if getattr(layer.params, "qk_norm", None) else 0.0
        if layer.params.fused:
            return np.asarray(2.0 * shard.batch * size.heads * size.queries + normed)
        return np.asarray(size.scores * (2.5 if getattr(layer.params, "dropout", False) else 1.0) + normed)


def _fused_passes(size: Sizes) -> tuple[PassWork, PassWork]:
    """FlashAttention-2 (Dao, arXiv:2307.08691): scores never leave the chip.

    Forward ``2 pairs (score_dim + value_dim)`` FLOP (``4 b h s^2 d`` without mask); backward computes the scores again and four
    gradients, 5 products instead of 2: 2.5 times as much where both dimensions are equal. Only the inputs, the output and their
    gradients pass through memory.
    """
    depth = 0.5 * (size.score_dim + size.value_dim)
    gemm = (size.queries, size.keys + 0.0 * size.queries, depth + 0.0 * size.queries)
    inputs = size.q + size.k + size.v
    forward = Kernel(
        flop=2.0 * size.pairs * (size.score_dim + size.value_dim),
        elements=inputs + size.out,
        gemm=gemm,
        algorithm="attention",
    )
    backward = Kernel(
        flop=2.0 * size.pairs * (3.0 * size.score_dim + 2.0 * size.value_dim),
        elements=2.0 * (inputs + size.out),
        gemm=gemm,
        algorithm="attention_backward",
        launches=2,  # the rows' sums of gradient times output come first
    )
    return ((forward,),), ((backward,),)


_ALIGNED = 8  # features of 16 bits in the 16 bytes that matrix units load at once


def _written_out_passes(size: Sizes, *, has_dropout: bool) -> tuple[PassWork, PassWork]:
    """Scores, softmax, dropout and context as kernels of their own: every pair is computed, written and read, mask or not.

    Rows of queries, keys and values begin at multiples of a head: where that is no multiple of 8 features (16 bytes), the products
    do not run on matrix units (`costmodel.kernels.kernel_time.kernel_time_s`).
    """
    scores = size.scores
    is_aligned = size.score_dim % _ALIGNED == 0 and size.value_dim % _ALIGNED == 0
    tiling: Literal["library", "unaligned"] = "library" if is_aligned else "unaligned"
    keys = size.keys + 0.0 * size.queries

    def product(depth: float, moved: FloatArray, gemm: tuple[Any, Any, Any]) -> Kernel:
        return Kernel(flop=2.0 * scores * depth, elements=moved + scores, gemm=gemm, tiling=tiling)

    deep, wide = size.score_dim + 0.0 * keys, size.value_dim + 0.0 * keys
    score = product(size.score_dim, size.q + size.k, (size.queries, keys, deep))
    context = product(size.value_dim, size.v + size.out, (size.queries, wide, keys))
    # A fused kernel scales, masks and normalises: 5 operations per score; backward 4, from probabilities and their gradient.
    softmax = Kernel(flop=5.0 * scores, elements=2.0 * scores)
    softmax_backward = Kernel(flop=4.0 * scores, elements=3.0 * scores)
    # Value and a mask of a byte, as in the layer of that name.
    dropout = (Kernel(flop=2.0 * scores, elements=2.5 * scores),) if has_dropout else ()
    dropout_backward = (Kernel(flop=scores, elements=2.5 * scores),) if has_dropout else ()
    of_probabilities = product(size.value_dim, size.v + size.out, (size.queries, keys, wide))
    of_values = product(size.value_dim, size.v + size.out, (keys, wide, size.queries))
    of_queries = product(size.score_dim, size.q + size.k, (size.queries, deep, keys))
    of_keys = product(size.score_dim, size.q + size.k, (keys, deep, size.queries))
    forward = (score, softmax, *dropout, context)
    backward = (of_probabilities, of_values, *dropout_backward, softmax_backward, of_queries, of_keys)
    return (forward,), (backward,)


def held_heads(heads: int, shard: Shard) -> FloatArray:
    """Heads of a share; where there are fewer than workers, several workers hold the same one."""
    return np.ceil(heads / shard.split_out)


def check_heads(heads: int, kv_heads: int) -> None:
    """Raise where heads of queries cannot share those of keys and values evenly."""
    if kv_heads and heads % kv_heads:
        raise ShapeError(f"heads {heads} is not a multiple of kv_heads {kv_heads}")


def check_features(what: str, shape: Shape, formula: str, wanted: int) -> None:
    """Raise where an input is no sequence of so many features."""
    if len(shape) != 2 or shape[0] != wanted:
        raise ShapeError(
            f"{what}: {formula} = {wanted} features x positions are needed, its input is {shape_text(shape)}"
        )
