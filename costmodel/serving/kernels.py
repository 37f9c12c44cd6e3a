"""Kernels of one pass of a layer on one rank: rows of new tokens, of prompts being read and of sequences being decoded.

Every layer but attention and the mixture of experts sees rows only, so the families of `costmodel.network.layers` say what they do, at one
position per row. Attention of new tokens reads cached keys and values, and few tokens do not wake all experts: both are written out here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.network.layers import Kernel, Layer, Shape
from costmodel.network.layers.attention import pairs_of_positions
from costmodel.network.layers.sequence import GLU_FLOP, GLU_PASSES
from costmodel.serving.workload import ServingWorkload

__all__ = [
    "LOGIT_BYTES",
    "PassKeys",
    "WeightedKernel",
    "at_one_position",
    "attention_kernels",
    "cache_elements",
    "expected_experts",
    "fullest_rank",
    "mixture_kernels",
    "query_context",
    "sampling_kernel",
]


# Tokens are chosen from fp32 logits (vLLM converts them before its sampler, TensorRT-LLM's decoder works on them).
LOGIT_BYTES = 4.0
# Times that every one of them is read or written for that: conversion (written), softmax (read, written), choice (read).
_LOGIT_PASSES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassKeys:
    """What a pass is made of; arrays (n,)."""

    tp: IntArray
    ep: IntArray
    etp: IntArray
    prompts: IntArray  # prompts that take part
    chunk: IntArray  # new tokens of each of them
    decodes: IntArray  # sequences that get their next token

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def rows(self) -> FloatArray:
        """New tokens."""
        return np.asarray(self.prompts * self.chunk + self.decodes, dtype=np.float64)

    @property
    def answers(self) -> FloatArray:
        """Rows after the last block: a prompt needs its last position only."""
        return np.asarray(self.prompts + self.decodes, dtype=np.float64)

    @property
    def sharing(self) -> IntArray:
        """Replicas that share one set of experts."""
        return np.asarray(np.maximum(self.ep * self.etp // self.tp, 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedKernel:
    """A kernel, and how many of its elements are not activations.

    Attributes
    ----------
    weights : array
        Of the layer's weights, part of ``kernel.elements``.
    cached : array
        Keys and values in the cache, not part of ``kernel.elements``.
    runs : array of bool
        Where the kernel runs at all.
    routed : bool
        Its tokens come from all replicas that share experts.
    """

    kernel: Kernel
    weights: FloatArray
    cached: FloatArray
    runs: BoolArray
    routed: bool = False


def at_one_position(layer: Layer) -> Layer:
    """The same layer for one position: the rows of a pass are its batch."""

    def one(shape: Shape) -> Shape:
        return (shape[0], 1) if len(shape) == 2 else shape

    return replace(layer, input_shapes=tuple(one(s) for s in layer.input_shapes), output_shape=one(layer.output_shape))


def expected_experts(held: FloatArray, experts: float, top_k: float, tokens: FloatArray) -> FloatArray:
    """How many of the experts that a rank holds some tokens wake, on average.

    A token picks ``top_k`` different experts; all are equally likely: ``held (1 - (1 - top_k / experts)^tokens)``. At least one works on
    the fullest rank.

    >>> expected_experts(np.array([8.0]), 8.0, 2.0, np.array([1.0, 4.0, 1000.0])).tolist()  # mixtral
    [2.0, 5.46875, 8.0]
    """
    missed = (1.0 - top_k / experts) ** tokens
    return np.asarray(np.clip(held * (1.0 - missed), np.minimum(held, 1.0), held))


def fullest_rank(layer: Layer, ep: IntArray, spread: float) -> FloatArray:
    """Tokens of the rank whose experts get most of them, over those of the mean rank.

    The loads of ``E / ep`` experts add up to one with a standard deviation of ``spread sqrt(ep / E)`` of it; of ``ep`` such sums the
    largest is expected at the normal quantile of ``(ep - 3/8) / (ep + 1/4)`` (G. Blom, Statistical Estimates and Transformed Beta
    Variables, 1958). A ``capacity_factor`` that the network states says it instead.

    Parameters
    ----------
    layer : Layer
        A mixture of experts.
    ep : array of int
    spread : float
        Standard deviation of the experts' loads over their mean.
    """
    p = layer.params
    if p.capacity_factor != 1.0:
        return np.full(len(ep), float(p.capacity_factor))
    degrees, index = np.unique(ep, return_inverse=True)
    largest = [NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) if n > 1 else 0.0 for n in degrees.tolist()]
    return np.asarray((1.0 + spread * np.sqrt(degrees / p.experts) * np.array(largest))[index.reshape(-1)])


def mixture_kernels(layer: Layer, keys: PassKeys, spread: float = 0.0) -> list[WeightedKernel]:
    """Router, dispatch, the experts that are hit, combination, and shared experts.

    The shared experts are split over all tp ranks like a dense pair of matrices. Experts of one replica find its tokens on all its
    tensor-parallel ranks; experts shared by replicas get them by an all-to-all in which every rank sends its part of the tokens. The
    rank that gets most of them, by the ``spread`` of the experts' loads, is the one that counts.
    """
    p, d = layer.params, float(layer.output_shape[0])
    tokens, sharing = keys.rows, keys.sharing
    own = np.where(sharing > 1, np.ceil(tokens / keys.tp), tokens)
    held = np.ceil(p.experts / keys.ep)
    rows = np.maximum(sharing * tokens * p.top_k / keys.ep, 1.0) * fullest_rank(layer, keys.ep, spread)
    count = np.minimum(expected_experts(held, float(p.experts), float(p.top_k), sharing * tokens), rows)
    width = np.ceil(p.ffn / keys.etp)
    everywhere, one = tokens > 0, np.ones_like(tokens)
    moved = (own + rows) * d

    def product(m: FloatArray, inputs: FloatArray, outputs: FloatArray, number: FloatArray) -> WeightedKernel:
        weights = number * inputs * outputs
        kernel = Kernel(
            flop=2.0 * m * inputs * outputs,
            elements=m * (inputs + outputs) + weights,
            gemm=(m / number, outputs, inputs),
            tiling="library" if number is one else "grouped",
        )
        return WeightedKernel(kernel=kernel, weights=weights, cached=0.0 * m, runs=everywhere, routed=number is not one)

    def plain(flop: FloatArray, elements: FloatArray, launches: int = 1, *, routed: bool = False) -> WeightedKernel:
        kernel, none = Kernel(flop=flop, elements=elements, launches=launches), 0.0 * elements
        return WeightedKernel(kernel=kernel, weights=none, cached=none, runs=everywhere, routed=routed)

    def network(m: FloatArray, inner: FloatArray, number: FloatArray) -> list[WeightedKernel]:
        passes, flop = (GLU_PASSES[0], GLU_FLOP[0]) if p.gated else (2.0, 1.0)
        wide = np.full_like(m, d)
        return [
            product(m, wide, (p.matrices - 1.0) * inner, number),
            plain(flop * m * inner, passes * m * inner, routed=number is not one),
            product(m, inner, wide, number),
        ]

    kernels = [
        product(own, np.full_like(own, d), np.full_like(own, float(p.experts)), one),
        # Softmax, choice and normalisation of the scores, in a kernel each.
        plain(10.0 * own * p.experts, 4.0 * own * p.experts, launches=3),
        plain(0.0 * moved, moved, routed=True),
        *network(rows, width, count),
        plain(2.0 * rows * d, moved, routed=True),
    ]
    if p.shared_width:
        kernels += network(tokens, np.ceil(p.shared_width / keys.tp), one)
    return kernels


def sampling_kernel(layer: Layer, rows: FloatArray, activation_bytes: float) -> WeightedKernel:
    """Tokens chosen from the logits of the whole vocabulary, which are converted to fp32 first.

    Every rank chooses for itself from all logits, so that no token need be sent.
    """
    logits = rows * layer.output_shape[0]
    passes = 1.0 + _LOGIT_PASSES * LOGIT_BYTES / activation_bytes
    kernel = Kernel(flop=5.0 * logits, elements=passes * logits, launches=3)
    return WeightedKernel(kernel=kernel, weights=0.0 * logits, cached=0.0 * logits, runs=rows > 0)


# -- attention ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _AttentionSizes:
    """Of one rank."""

    heads: FloatArray
    kv_heads: FloatArray
    score_dim: float  # features behind a score where keys are whole
    value_dim: float
    window: int


def _sizes(layer: Layer, tp: IntArray) -> _AttentionSizes:
    p = layer.params
    heads = np.ceil(p.heads / tp)
    if layer.kind == "latent_attention":
        return _AttentionSizes(
            heads=heads, kv_heads=heads, score_dim=p.nope_dim + p.rope_dim, value_dim=p.value_dim, window=0
        )
    kv_heads = np.maximum(np.ceil((p.kv_heads or p.heads) / tp), 1.0)
    window = getattr(p, "window", 0)
    return _AttentionSizes(heads=heads, kv_heads=kv_heads, score_dim=p.head_dim, value_dim=p.head_dim, window=window)


def cache_elements(layer: Layer, tp: IntArray) -> FloatArray:
    """Elements that one position of a sequence leaves in the cache of one rank.

    Keys and values of the rank's heads, repeated where there are more ranks than heads. Latent attention keeps the compressed vector,
    which all heads share, on every rank (DeepSeek-V2, arXiv:2405.04434, table 1: kv_rank + rope_dim per position).
    """
    if layer.kind == "latent_attention":
        return np.full(len(tp), float(layer.input_shapes[2][0]))
    size = _sizes(layer, tp)
    return np.asarray(size.kv_heads * (size.score_dim + size.value_dim))


def query_context(layer: Layer, context: float) -> float:
    """Positions that a new token sees: all, or those of the window."""
    window = getattr(layer.params, "window", 0)
    return min(context, float(window)) if window else context


def attention_kernels(layer: Layer, keys: PassKeys, workload: ServingWorkload) -> list[WeightedKernel]:
    """Attention of the prompts' new tokens and of the sequences being decoded, a kernel each (FlashAttention, paged).

    Parameters
    ----------
    layer : Layer
    keys : PassKeys
        What the pass is for this layer: of an encoder prompts only, of the decoder alongside one their first token.
    workload : ServingWorkload
    """
    if layer.kind == "cross_attention":
        return [_cross_kernel(layer, keys, workload)]
    if not layer.params.causal:
        return [_encoder_kernel(layer, keys, workload)]
    return [*_prompt_kernels(layer, keys, workload), *_decode_kernels(layer, keys, workload)]


def _encoder_kernel(layer: Layer, keys: PassKeys, workload: ServingWorkload) -> WeightedKernel:
    """Whole prompts, every position sees all; nothing is kept."""
    size, prompt = _sizes(layer, keys.tp), float(workload.prompt_tokens)
    both, prompts = size.score_dim + size.value_dim, keys.prompts.astype(np.float64)
    pairs = prompts * size.heads * pairs_of_positions(prompt, prompt, causal=False, window=size.window)
    kernel = Kernel(
        flop=2.0 * pairs * both,
        elements=prompts * prompt * (size.heads + size.kv_heads) * both,
        gemm=(np.full_like(prompts, prompt), np.full_like(prompts, prompt), np.full_like(prompts, 0.5 * both)),
    )
    none = np.zeros_like(prompts)
    return WeightedKernel(kernel=kernel, weights=none, cached=none, runs=keys.prompts > 0)


def _cross_kernel(layer: Layer, keys: PassKeys, workload: ServingWorkload) -> WeightedKernel:
    """One query per sequence against the keys and values of its whole prompt, which the prefill has put into the cache."""
    size, prompt = _sizes(layer, keys.tp), float(workload.prompt_tokens)
    both, rows = size.score_dim + size.value_dim, keys.rows
    group = size.heads / size.kv_heads
    kernel = Kernel(
        flop=2.0 * rows * size.heads * prompt * both,
        elements=rows * size.heads * both,
        gemm=(np.maximum(group, 1.0), np.full_like(group, prompt), np.full_like(group, 0.5 * both)),
    )
    # Read by every row, and written once by the prompts that are new.
    cached = (rows + keys.prompts) * prompt * cache_elements(layer, keys.tp)
    return WeightedKernel(kernel=kernel, weights=0.0 * cached, cached=cached, runs=rows > 0)


def _prompt_kernels(layer: Layer, keys: PassKeys, workload: ServingWorkload) -> list[WeightedKernel]:
    """A mean chunk: the pairs of the whole prompt divided by its chunks; it sees half of the prompt and half of itself on average."""
    size, prompt = _sizes(layer, keys.tp), float(workload.first_tokens)
    chunk = np.maximum(keys.chunk, 1).astype(np.float64)
    pieces = np.ceil(prompt / chunk)
    pairs = keys.prompts * size.heads * pairs_of_positions(prompt, prompt, causal=True, window=size.window) / pieces
    seen = 0.5 * (prompt + np.minimum(chunk, prompt))
    if size.window:
        seen = np.minimum(seen, size.window + chunk)
    depth = 0.5 * (size.score_dim + size.value_dim)
    new = keys.prompts * chunk
    kernel = Kernel(
        flop=2.0 * pairs * (size.score_dim + size.value_dim),
        elements=new * size.heads * (size.score_dim + size.value_dim),  # queries in, results out
        gemm=(chunk, np.maximum(seen, 1.0), np.full_like(chunk, depth)),
        launches=2,  # rotation and writing of the new keys and values come first
    )
    runs = keys.prompts > 0
    # New keys and values are written; those of the whole context are read.
    per_position = size.kv_heads * (size.score_dim + size.value_dim)
    cached = keys.prompts * seen * per_position + new * cache_elements(layer, keys.tp)
    kernels = [WeightedKernel(kernel=kernel, weights=0.0 * chunk, cached=cached, runs=runs)]
    if layer.kind == "latent_attention":
        kernels.append(_expand_earlier(layer, keys, size, seen - chunk))
    return kernels


def _expand_earlier(layer: Layer, keys: PassKeys, size: _AttentionSizes, earlier: FloatArray) -> WeightedKernel:
    """Keys and values of all heads made again from the compressed cache of earlier chunks."""
    p = layer.params
    rank = float(layer.input_shapes[2][0] - p.rope_dim)
    rows = keys.prompts * np.maximum(earlier, 0.0)
    outputs = size.heads * (p.nope_dim + p.value_dim)
    inside = np.full_like(outputs, rank)
    kernel = Kernel(
        flop=2.0 * rows * inside * outputs,
        elements=rows * outputs + inside * outputs,
        gemm=(np.maximum(rows, 1.0), outputs, inside),
    )
    return WeightedKernel(kernel=kernel, weights=inside * outputs, cached=rows * inside, runs=rows > 0)


def _decode_kernels(layer: Layer, keys: PassKeys, workload: ServingWorkload) -> list[WeightedKernel]:
    """One query per sequence against its whole cache, which is read once for all the heads that share it.

    Latent attention works on the compressed vectors: the matrices that would expand them are applied to the query and the result instead
    (arXiv:2405.04434, section 2.1.2), which costs what the layer before costs on one row.
    """
    size, context = _sizes(layer, keys.tp), query_context(layer, workload.decode_context)
    sequences = keys.decodes.astype(np.float64)
    kept = cache_elements(layer, keys.tp)
    if layer.kind == "latent_attention":
        whole = float(layer.input_shapes[2][0])
        score_dim, value_dim, group = whole, whole - layer.params.rope_dim, size.heads
    else:
        score_dim, value_dim, group = size.score_dim, size.value_dim, size.heads / size.kv_heads
    both = score_dim + value_dim
    kernel = Kernel(
        flop=2.0 * sequences * size.heads * context * both,
        elements=sequences * size.heads * both,
        gemm=(np.maximum(group, 1.0), np.full_like(group, context), np.full_like(group, 0.5 * both)),
        launches=2,  # rotation and writing of the new keys and values come first
    )
    cached = sequences * (context + 1.0) * kept
    return [WeightedKernel(kernel=kernel, weights=0.0 * cached, cached=cached, runs=keys.decodes > 0)]
