"""Attention of transformers: self, cross, latent and relative attention, fused (FlashAttention) or written out.

The projections before and after are linear layers of their own. A share holds whole heads; positions of the queries may be cut
(context parallelism), each piece still sees all keys. A causal mask leaves half of the pairs; pieces are taken to be balanced.

Every attention by dot products is softmax(Q K') V per head. That of Transformer-XL sees this segment and the one before it, by relative
positions (Dai et al., arXiv:1901.02860).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Any, ClassVar, Literal

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.network.layers.base import (
    FAMILIES,
    InnerExchange,
    Kernel,
    Layer,
    LayerFamily,
    LayerWork,
    PassWork,
    Shape,
    ShapeError,
    Shard,
    SplitLimits,
    param,
    positions_of,
    register,
    shape_text,
    share_of_output,
)


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


# Sequences that stand for all where lengths are drawn, and how many documents are drawn at most.
_SEQUENCES, _DRAWN = 1024, 16384
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Documents:
    """Documents that are packed into sequences, each of which attends to itself alone (block-causal masks, ``cu_seqlens``).

    Attributes
    ----------
    positions : int
        Of a sequence.
    ends : array (n,)
        Where pieces of documents end, in positions of sequences that lie one behind the other; a document that crosses the end of one is
        cut there.

    Examples
    --------
    Three documents in a sequence of 8: 2^2 + 2^2 + 4^2 = 24 of the 64 pairs, half of them under a causal mask.

    >>> packed = Documents.of([2, 2, 4], 8)
    >>> packed.pairs(causal=False, window=0), packed.pairs(causal=True, window=0)
    (24.0, 12.0)

    In contiguous halves, the second has 8 of the 12. Each half has a quarter from the front and one from the back in turn: 2 + 6 and 2 + 2.

    >>> [float(packed.fullest(2, balance, causal=True, window=0)) for balance in (0.0, 1.0, 2.0)]
    [1.3333333333333333, 1.3333333333333333, 1.0]
    """

    positions: int
    ends: FloatArray
    _known: dict[tuple[object, ...], float] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, lengths: Sequence[int], positions: int, cv: float = 0.0) -> Documents:
        """Documents of these lengths in turn, until a sequence is full; with ``cv``, of their mean and that coefficient of variation.

        Lengths are log-normal then: quantiles of equal probability, in an order that spreads them evenly, laid one behind the other.
        """
        if not cv:
            laid = np.cumsum(np.resize(np.asarray(lengths, dtype=np.float64), _fill(lengths, positions)))
            return cls(positions=positions, ends=np.append(laid[laid < positions], float(positions)))
        mean = float(np.mean(lengths))
        sequences = int(np.clip(_DRAWN * mean / positions, 8.0, _SEQUENCES))
        count = max(round(sequences * positions / mean), 1)
        quantile, width = NormalDist().inv_cdf, math.sqrt(math.log1p(cv * cv))
        drawn = np.exp(width * np.array([quantile((k + 0.5) / count) for k in range(count)]))
        drawn = drawn[np.argsort(np.arange(1, count + 1) * _GOLDEN % 1.0)]
        laid = np.cumsum(drawn) * (sequences * positions / np.sum(drawn))
        return cls(positions=positions, ends=np.union1d(laid[:-1], np.arange(1.0, sequences + 1.0) * positions))

    def pairs(self, *, causal: bool, window: int) -> float:
        """Pairs (query, key) per sequence and head, on average."""
        return self._once(("pairs", causal, window), lambda: float(np.mean(self._work(1, causal, window))))

    def fullest(self, ranks: int, balance: float, *, causal: bool, window: int) -> float:
        """Pairs of the fullest of the ranks that share the positions of a sequence, over their mean.

        ``balance`` is `costmodel.mesh.assumptions.MeshAssumptions.cp_balance`.
        """

        def found() -> float:
            work = self._work(ranks if balance == 0.0 else 2 * ranks, causal, window)
            loads = work if balance == 0.0 else work[:, :ranks] + work[:, : -ranks - 1 : -1]
            return float(np.mean(np.max(loads, axis=1)) / np.mean(loads))

        return 1.0 if ranks == 1 or balance >= 2.0 else self._once((ranks, balance, causal, window), found)

    def spread(self, *, causal: bool, window: int) -> float:
        """Standard deviation of the pairs of a sequence, over their mean."""

        def found() -> float:
            work = self._work(1, causal, window)
            return float(np.std(work) / np.mean(work))

        return self._once(("spread", causal, window), found)

    def _once(self, key: tuple[object, ...], found: Any) -> float:
        if key not in self._known:
            self._known[key] = found()
        return self._known[key]

    def _work(self, pieces: int, causal: bool, window: int) -> FloatArray:
        """Pairs of equal pieces of every sequence, (sequences, pieces)."""
        lengths = np.diff(self.ends, prepend=0.0)
        before = np.append(0.0, np.cumsum(_seen(lengths, lengths, causal, window)))
        edges = np.arange(round(self.ends[-1] / self.positions) * pieces + 1) * (self.positions / pieces)
        document = np.minimum(np.searchsorted(self.ends, edges, side="right"), len(lengths) - 1)
        begun = edges - (self.ends - lengths)[document]
        total = before[document] + _seen(begun, lengths[document], causal, window)
        return np.diff(total).reshape(-1, pieces)


def _fill(lengths: Sequence[int], positions: int) -> int:
    """How many documents fill a sequence."""
    return len(lengths) * math.ceil(positions / sum(lengths))


def _seen(queries: FloatArray, keys: FloatArray, causal: bool, window: int) -> FloatArray:
    """`pairs_of_positions` of the first queries of documents of so many keys."""
    if not causal:
        return queries * np.minimum(keys, window or np.inf)
    near = np.minimum(queries, window or np.inf)
    return queries * near - 0.5 * near * near


def _pairs(documents: Documents | None, queries: float, keys: float, *, causal: bool, window: int) -> float:
    """Pairs (query, key) per sequence and head, of a sequence that is one document, or of several that are packed into it."""
    if documents is None:
        return pairs_of_positions(queries, keys, causal=causal, window=window)
    return documents.pairs(causal=causal, window=window)


@lru_cache(maxsize=64)
def one_document(positions: int) -> Documents:
    """A sequence that is one document."""
    return Documents.of([positions], positions)


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
        if getattr(layer.params, "state", 0):
            return np.zeros_like(shard.batch)
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
    seen = size.pairs / size.scores
    gemm = (size.queries, seen * size.keys, depth + 0.0 * size.queries)
    # A causal mask leaves half of the pairs, a window fewer.
    tiling: Literal["library", "masked", "window"] = (
        "library" if np.any(seen >= 1.0) else "masked" if np.any(seen >= 0.5) else "window"
    )
    inputs = size.q + size.k + size.v
    forward = Kernel(
        flop=2.0 * size.pairs * (size.score_dim + size.value_dim),
        elements=inputs + size.out,
        gemm=gemm,
        algorithm="attention",
        tiling=tiling,
    )
    backward = Kernel(
        flop=2.0 * size.pairs * (3.0 * size.score_dim + 2.0 * size.value_dim),
        elements=2.0 * (inputs + size.out),
        gemm=gemm,
        algorithm="attention_backward",
        tiling=tiling,
        launches=2,  # the rows' sums of gradient times output come first
    )
    return ((forward,),), ((backward,),)


_ALIGNED = 8  # features of 16 bits in the 16 bytes that matrix units load at once


def _written_out_passes(size: Sizes, *, has_dropout: bool) -> tuple[PassWork, PassWork]:
    """Scores, softmax, dropout and context as kernels of their own: every pair is computed, written and read, mask or not.

    Rows of queries, keys and values begin at multiples of a head: where that is no multiple of 8 features (16 bytes), the products
    do not run on matrix units (`costmodel.kernels.roofline.kernel_time_s`).
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


def _grouped_sizes(
    params: SelfAttentionParams | CrossAttentionParams,
    shard: Shard,
    positions: tuple[Shape, Shape],
    *,
    causal: bool,
    window: int,
    documents: Documents | None = None,
) -> Sizes:
    """Sizes where keys and values have their own number of heads; ``positions`` are shapes of the queries and the keys."""
    heads, kv_heads = held_heads(params.heads, shard), held_heads(params.kv_heads or params.heads, shard)
    queries, keys, dim = positions_of(positions[0], shard), float(positions[1][1]), float(params.head_dim)
    fraction = _pairs(documents, positions[0][1], keys, causal=causal, window=window) / (positions[0][1] * keys)
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
    state: int = param(
        doc="features of the state per head and feature through which chunks of window positions see what was before (Mamba-2), and "
        "of the queries and keys, of which there are kv_heads; 0: a softmax over keys",
        default=0,
        minimum=0,
    )

    def width(self, heads: Any, kv_heads: Any) -> Any:
        """Features that enter so many heads: queries, keys and values, or under a state the values of all heads, queries and keys."""
        return heads * self.head_dim + 2 * kv_heads * (self.state or self.head_dim)


# Operations per element of a norm over a head: forward, gradient of the input, gradient of the weights; as in `normalisation`.
_RMS_FLOP, _LAYER_FLOP = (4.0, 8.0, 2.0), (7.0, 12.0, 3.0)
_HEAD_NORM_FLOP = {"rms": _RMS_FLOP, "rms_wide": _RMS_FLOP, "layer": _LAYER_FLOP, "layer_own": _LAYER_FLOP}
# Scales and shifts of queries and keys: of one head each, or of all heads.
_SHARED_BY_HEADS = {"rms": 2, "layer": 4}


@register(
    "self_attention",
    SelfAttentionParams,
    "multi-head attention of a sequence over itself: queries, keys and values in, heads x head_dim out",
)
class SelfAttention(DotProductAttention):
    """Multi-head, grouped-query or multi-query attention of a sequence over itself.

    Vaswani et al. (arXiv:1706.03762); Ainslie et al. (arXiv:2305.13245) for fewer heads of keys and values. Rotations of queries and
    keys (rotary positions) are taken to be part of the kernels before it.
    """

    def output_shape(self, params: SelfAttentionParams, inputs: tuple[Shape, ...]) -> Shape:
        """(heads x head_dim, positions)."""
        kv_heads = params.kv_heads or params.heads
        check_heads(params.heads, kv_heads)
        formula = f"({params.heads} + 2 x {kv_heads}) heads x head_dim {params.head_dim}"
        if params.state:
            if not (params.window and params.causal and params.fused):
                raise ShapeError("a state needs chunks (window), and attention that is causal and fused")
            formula = f"{params.heads} heads x head_dim {params.head_dim} + 2 x {kv_heads} x state {params.state}"
        check_features("queries, keys and values", inputs[0], formula, params.width(params.heads, kv_heads))
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
        return _grouped_sizes(p, shard, (shape, shape), causal=p.causal, window=p.window, documents=layer.documents)

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Adds what has weights: norms of queries and keys before the scores, sinks, and the biases by distance.

        These are read per score; the gradient of a bias sums over the samples. A sink is one more key in the kernel; its gradient sums
        a number per row, which the backward pass has.
        """
        if layer.params.state:
            return _scan_work(layer, shard)
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


def _scan_work(layer: Layer, shard: Shard) -> LayerWork:
    """The scan of Mamba-2 in chunks, as its kernels in Triton do it (mamba_ssm, ops/triton/ssd_combined.py; arXiv:2405.21060).

    They write the states of all chunks in 32 bits, pass them on, and read them again; the backward pass computes them once more.
    Counted in values (heads x head_dim) and states (a chunk's values x state): forward values are moved 3 times and states 6 times (32
    bits count twice), backward 11 and 17 times. Products with states take 2 and 5 times ``2 state`` FLOP per value, those within a
    chunk, of which a mask leaves half, once and three times ``window``. Nothing is kept.
    """
    p: SelfAttentionParams = layer.params
    chunk = float(min(p.window, layer.output_shape[1]))
    tokens = shard.batch * positions_of(layer.output_shape, shard)
    values = tokens * held_heads(p.heads, shard) * p.head_dim
    groups = tokens * held_heads(p.kv_heads or p.heads, shard)
    states, sides, scores = values * p.state / chunk, groups * p.state, groups * chunk
    within = 2.0 * scores * p.state  # queries times keys, for all heads of a group
    gemm = (chunk + 0.0 * tokens, p.head_dim + 0.0 * tokens, p.state + 0.0 * tokens)

    # Moved, and multiplied, in so many kernels: (elements, kernels, FLOP, kernels). Their loads wait for products and products for loads.
    passes = (
        (3.0 * values + 6.0 * states + 4.0 * (sides + scores), 2, values * (4.0 * p.state + chunk) + within, 3),
        (
            11.0 * values + 17.0 * states + 14.0 * sides + 10.0 * scores,
            4,
            values * (10.0 * p.state + 3.0 * chunk) + 3.0 * within,
            10,
        ),
    )
    forward, backward = (
        (
            Kernel(flop=0.0 * moved, elements=moved, launches=moves),
            Kernel(flop=flop, elements=0.0 * moved, gemm=gemm, launches=products),
        )
        for moved, moves, flop, products in passes
    )
    return LayerWork(forward=(forward,), backward_input=(backward,))


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


@register(
    "cross_attention",
    CrossAttentionParams,
    "multi-head attention of a sequence (first input: queries) over another (second: keys and values)",
)
class CrossAttention(DotProductAttention):
    """Attention of one sequence (queries) over another (keys and values), without mask (arXiv:1706.03762, section 3.2.3)."""

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
    selected: int = param(
        doc="positions that an indexer picks for each query, by index_heads queries of index_dim features; 0: it sees all",
        default=0,
        minimum=0,
    )
    index_heads: int = param(doc="heads of the indexer", default=0, minimum=0)
    index_dim: int = param(
        doc="features per head of its queries, and of its keys, which are common to all heads", default=0, minimum=0
    )
    causal: bool = param(doc="a position sees itself and those before it", default=True)
    fused: bool = param(doc="FlashAttention; otherwise every score is written to memory", default=True)


@register(
    "latent_attention",
    LatentAttentionParams,
    "multi-head latent attention: queries, keys/values and the compressed vector in (with an indexer its queries, keys and weights, too), "
    "heads x value_dim out",
)
class LatentAttention(DotProductAttention):
    """Attention whose keys and values come from a compressed vector per position (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    Inputs: queries, keys and values per head, and the compressed vector, whose last ``rope_dim`` features belong to the keys of all
    heads; training puts them next to every head's own.

    With an indexer (DeepSeek-V3.2, arXiv:2512.02556, section 2.1) its queries, keys and weights per head are inputs, too. It scores all
    earlier positions, ``sum over heads of weight x ReLU(query . key)``, and attention sees the ``selected`` best alone. All heads share
    what is selected, so that attention works on the compressed vectors in place of keys and values of every head.
    """

    min_inputs = 3
    max_inputs = 6

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
        index = {
            "queries of the indexer": p.index_heads * p.index_dim,
            "keys of the indexer": p.index_dim,
            "weights of the indexer": p.index_heads,
        }
        has_indexer = [bool(value) for value in (p.selected, p.index_heads, p.index_dim, len(inputs) == 6)]
        if any(has_indexer) != all(has_indexer) or len(inputs) not in (3, 6):
            raise ShapeError(
                "an indexer has selected, index_heads and index_dim, and its queries, keys and weights are three more inputs; without one "
                f"there are three inputs, here {len(inputs)}"
            )
        for (what, wanted), shape in zip(index.items(), inputs[3:], strict=False):
            check_features(what, shape, f"index_heads {p.index_heads}, index_dim {p.index_dim}", wanted)
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
        seen = _pairs(layer.documents, positions, positions, causal=p.causal, window=p.selected)
        if p.selected:
            whole = float(layer.input_shapes[2][0])
            return Sizes(
                heads=heads,
                queries=queries,
                keys=float(positions),
                score_dim=whole,
                value_dim=whole - p.rope_dim,
                q=shard.batch * queries * heads * whole,
                k=shard.batch * queries * seen / positions * whole,  # every query reads its own, for all heads
                v=0.0 * queries,
                out=shard.batch * queries * heads * (whole - p.rope_dim),
                pairs=scores * seen / positions**2,
                scores=scores,
            )
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
            pairs=scores * seen / positions**2,
            scores=scores,
        )

    def trained_work(self, layer: Layer, shard: Shard) -> LayerWork:
        """Copies the common part of the keys to every head before, and sums its gradient after; or selects positions before."""
        work = DotProductAttention.trained_work(self, layer, shard)
        if layer.params.selected:
            queries = positions_of(layer.output_shape, shard)
            length = layer.output_shape[1]
            pairs = _pairs(layer.documents, length, length, causal=layer.params.causal, window=0)
            rows = shard.batch * queries
            score, pick = index_kernels(layer.params, rows, rows * pairs / length, shard.batch * length)
            # The scores learn to be like those of the attention, which gives two gradients.
            again = replace(score, flop=2.0 * score.flop, elements=2.0 * score.elements, launches=2)
            return LayerWork(
                forward=((score, pick, *work.forward[0]),), backward_input=((*work.backward_input[0], again),)
            )
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
        if layer.params.selected:  # which positions they are, a number of 32 bits each
            return np.asarray(
                super().saved_elements(layer, shard)
                + 2.0 * shard.batch * positions_of(layer.output_shape, shard) * layer.params.selected
            )
        copies = shard.batch * positions_of(layer.output_shape, shard) * held_heads(layer.params.heads, shard)
        return np.asarray(super().saved_elements(layer, shard) + copies * layer.params.rope_dim)


def index_kernels(
    params: LatentAttentionParams, rows: FloatArray, pairs: FloatArray, keys: FloatArray
) -> tuple[Kernel, Kernel]:
    """Scores of an indexer, and the choice of the best; every rank of tensor parallelism has all its heads (vLLM, SparseAttnIndexer).

    Parameters
    ----------
    params : LatentAttentionParams
        With an indexer.
    rows, pairs, keys : array (n,)
        Queries, queries times the positions that each of them sees, and keys that are read.

    Returns
    -------
    tuple of Kernel
        ``2 pairs index_heads index_dim`` FLOP and a score in 32 bits per pair, which the choice reads.

    Examples
    --------
    One query of DeepSeek-V3.2 against 4,096 positions: 2 x 4,096 x 64 x 128 FLOP.

    >>> params = LatentAttentionParams(
    ...     heads=128, nope_dim=128, rope_dim=64, value_dim=128, selected=2048, index_heads=64, index_dim=128
    ... )
    >>> one = np.ones(1)
    >>> score, pick = index_kernels(params, one, 4096 * one, 4096 * one)
    >>> float(score.flop[0]), float(pick.elements[0])
    (67108864.0, 12288.0)
    """
    wide, deep = params.index_heads, params.index_dim
    per_row = np.maximum(pairs / np.maximum(rows, 1.0), 1.0)
    score = Kernel(
        flop=2.0 * pairs * wide * deep,
        elements=rows * wide * (deep + 1.0) + keys * deep + 2.0 * pairs,
        gemm=(np.maximum(rows * wide, 1.0), per_row, deep + 0.0 * rows),
    )
    chosen = np.minimum(per_row, params.selected)
    return score, Kernel(flop=pairs, elements=2.0 * (pairs + rows * chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMemoryParams:
    """Parameters of a memory."""

    positions: int = param(doc="how many of the segment before are kept", minimum=1)


@register(
    "segment_memory",
    SegmentMemoryParams,
    "positions kept of the segment before, without gradient, in front of those of this one: (d, n) becomes (d, memory + n)",
)
class SegmentMemory(LayerFamily):
    """What a layer read in the segment before, joined before what it reads now; no gradient goes there (section 3.2)."""

    keeps_input = False

    def output_shape(self, params: SegmentMemoryParams, inputs: tuple[Shape, ...]) -> Shape:
        """(features, memory + positions)."""
        if len(inputs[0]) != 2:
            raise ShapeError(
                f"segment_memory needs a sequence (features x positions), its input is {shape_text(inputs[0])}"
            )
        return (inputs[0][0], params.positions + inputs[0][1])

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


@register(
    "relative_attention",
    RelativeAttentionParams,
    "attention over a memory and a segment by relative positions (Transformer-XL): queries, keys, values in, heads x head_dim out",
)
class RelativeAttention(DotProductAttention):
    """softmax((Q + u) K' + shift((Q + v) R')) V per head, R the keys of the distances, which all samples share.

    Dai et al. (arXiv:1901.02860, section 3.3 and appendix B: the scores by distance are computed for all pairs and shifted). Kernels as
    in NVIDIA's program (DeepLearningExamples, PyTorch/LanguageModeling/Transformer-XL, mem_transformer.py, RelPartialLearnable-
    MultiHeadAttn): the shift copies the scores, one kernel adds and scales both, another masks them. torch.einsum copies operands whose
    samples and heads do not lie together: keys and values, which are slices of one product, and the gradient of what was shifted.
    """

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


# Kinds of layers with queries, keys and values whose heads and positions a mesh may divide.
ATTENTION = frozenset(
    kind for kind, family in FAMILIES.items() if isinstance(family, DotProductAttention) and family.in_mesh
)
