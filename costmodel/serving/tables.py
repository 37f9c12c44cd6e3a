"""Costs of one module of every kind on one rank: times of a pass by what it is made of, and sizes that passes do not change.

Kernels of one pass of a layer on one rank
------------------------------------------
A pass has rows of new tokens, of prompts being read and of sequences being decoded. Every layer but attention and the mixture of experts
sees rows only, so the families of `costmodel.network.layers` say what they do, at one position per row. Attention of new tokens reads
cached keys and values, and few tokens do not wake all experts: both are written out here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, StructOfArrays, largest_of
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import Device
from costmodel.kernels.roofline import kernel_time_s
from costmodel.mesh.communication import GroupTimes
from costmodel.mesh.modules import ModuleKind, Modules, RowKeys
from costmodel.mesh.tensor_parallel import LayerRole, roles_of, shard_of
from costmodel.network.layers import ATTENTION, Kernel, Layer, Shape, Shard
from costmodel.network.layers.attention import index_kernels, pairs_of_positions
from costmodel.network.layers.mixture import fullest_rank
from costmodel.network.layers.sequence import GLU_FLOP, GLU_PASSES
from costmodel.precision import Precision
from costmodel.serving.workload import ServingAssumptions, ServingWorkload

# Tokens are chosen from fp32 logits (vLLM converts them before its sampler, TensorRT-LLM's decoder works on them).
LOGIT_BYTES = 4.0
# Times that every one of them is read or written for that: conversion (written), softmax (read, written), choice (read).
_LOGIT_PASSES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PassKeys(StructOfArrays):
    """What a pass is made of; arrays (n,)."""

    tp: IntArray
    ep: IntArray
    etp: IntArray
    prompts: IntArray  # prompts that take part
    chunk: IntArray  # new tokens of each of them
    decodes: IntArray  # sequences that are decoded
    queries: IntArray  # new tokens of each of these: 1, and those that were drafted

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def rows(self) -> FloatArray:
        """New tokens."""
        return np.asarray(self.prompts * self.chunk + self.decodes * self.queries, dtype=np.float64)

    @property
    def answers(self) -> FloatArray:
        """Rows after the last block: a prompt needs its last position only, a sequence all of its new tokens."""
        return np.asarray(self.prompts + self.decodes * self.queries, dtype=np.float64)

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
    narrow : array, optional
        Of ``kernel.elements``, those in the format of products where that is narrow; None: what enters a product.
    cast : array, optional
        Elements that a kernel before it casts to that format; None: all that enter a product.
    other_s : float
        Time beside what it computes and moves.
    """

    kernel: Kernel
    weights: FloatArray
    cached: FloatArray
    runs: BoolArray
    routed: bool = False
    narrow: FloatArray | None = None
    cast: FloatArray | None = None
    other_s: float = 0.0


def at_one_position(layer: Layer) -> Layer:
    """The same layer for one position: the rows of a pass are its batch."""

    def one(shape: Shape) -> Shape:
        return (shape[0], 1) if len(shape) == 2 else shape

    return replace(layer, input_shapes=tuple(one(s) for s in layer.input_shapes), output_shape=one(layer.output_shape))


def expected_experts(
    held: FloatArray,
    experts: float,
    top_k: float,
    tokens: FloatArray,
    spread: float = 0.0,
    ranks: IntArray | int = 1,
) -> FloatArray:
    """How many of the experts that a rank holds some tokens wake, on the one of so many ranks on which most awake.

    A token picks ``top_k`` different experts. Where all are equally likely, one is missed by ``exp(-n) = (1 - top_k / experts)^tokens``.
    Where their loads spread by ``spread`` of the mean, like a gamma distribution of shape ``1 / spread^2``, by the mean of that over the
    loads, ``(1 + spread^2 n)^(-1 / spread^2)``: the same tokens wake fewer. On a rank that holds h, each awake with the chance p,
    their number has a standard deviation of ``sqrt(h p (1 - p))``, and the largest of several ranks is `costmodel.arrays.largest_of` times
    that above the mean. At least one works.

    >>> expected_experts(np.array([8.0]), 8.0, 2.0, np.array([1.0, 4.0, 1000.0])).tolist()  # mixtral
    [2.0, 5.46875, 8.0]
    >>> expected_experts(np.array([128.0]), 128.0, 4.0, np.array([16.0, 64.0]), spread=1.0).round(1).tolist()  # 50.8 and 111.2 without
    [43.1, 85.8]
    >>> expected_experts(np.array([32.0]), 256.0, 8.0, np.array([8.0]), ranks=np.array([8])).round(1).tolist()  # a mean of 7.2
    [10.6]
    """
    missed = (1.0 - top_k / experts) ** tokens
    if spread:
        # A token wakes top_k of them however uneven they are.
        with np.errstate(divide="ignore"):
            draws = -np.log(missed)
        missed = np.minimum(
            (1.0 + spread**2 * draws) ** (-1.0 / spread**2), (1.0 - top_k / experts) * (tokens > 0) + (tokens <= 0)
        )
    most = held * (1.0 - missed) + largest_of(ranks) * np.sqrt(held * missed * (1.0 - missed))
    return np.asarray(np.clip(most, np.minimum(held, 1.0), held))


# Tokens that one kernel sorts by expert (TensorRT-LLM, fusedBuildExpertMapsSortFirstToken).
_SORTED_AT_ONCE = 256


def mixture_kernels(
    layer: Layer,
    keys: PassKeys,
    spread: float = 0.0,
    packed: BoolArray | bool = False,
    *,
    unpacking_s: float | None = None,
) -> list[WeightedKernel]:
    """Router, dispatch, the experts that are hit, combination, and shared experts.

    The shared experts are split over all tp ranks like a dense pair of matrices. Experts of one replica find its tokens on all its
    tensor-parallel ranks; experts shared by replicas get them by an all-to-all in which every rank sends its part of the tokens. The
    rank that gets most of them, by the ``spread`` of the experts' loads, is the one that counts.

    Where they come ``packed`` by an all-to-all they are sorted by expert and narrow, and the activation inside casts what it writes
    (DeepEP's low-latency kernels, FP8 dispatching; SGLang's silu_and_mul_masked_post_quant). Elsewhere each is cast once, before it is
    copied for its experts, and kernels sort them: up to 256 tokens one, more of them three (TensorRT-LLM,
    fusedBuildExpertMapsSortFirstToken, threeStepBuildExpertMapsSortFirstToken; vLLM, moe_align_block_size, and SGLang after it), and four
    where the products unpack weights (triton_kernels, routing_from_bitmatrix: sums over the bits of the choice, clearing, offsets, order),
    which takes ``unpacking_s`` beside.
    One more writes the sizes of the products for each expert (TensorRT-LLM, computeStridesTmaWarpSpecialized).
    """
    p, d = layer.params, float(layer.output_shape[0])
    tokens, sharing = keys.rows, keys.sharing
    own = np.where(sharing > 1, np.ceil(tokens / keys.tp), tokens)
    held = np.ceil(p.experts / keys.ep)
    copies = sharing * tokens * p.top_k / keys.ep
    rows = np.maximum(copies * fullest_rank(p, keys.ep, spread, copies=copies), 1.0)
    awake = expected_experts(held, float(p.experts), float(p.top_k), sharing * tokens, spread, keys.ep)
    count = np.minimum(awake, rows)
    width = np.ceil(p.ffn / keys.etp)
    everywhere, one = tokens > 0, np.ones_like(tokens)
    moved, none = (own + rows) * d, 0.0 * tokens
    sorts = everywhere & np.logical_not(packed)

    def product(
        m: FloatArray,
        inputs: FloatArray,
        outputs: FloatArray,
        number: FloatArray,
        cast: FloatArray | None = None,
    ) -> WeightedKernel:
        weights = number * inputs * outputs
        kernel = Kernel(
            flop=2.0 * m * inputs * outputs,
            elements=m * (inputs + outputs) + weights,
            gemm=(m / number, outputs, inputs),
            tiling="library" if number is one else "grouped",
        )
        shared = number is not one
        return WeightedKernel(
            kernel=kernel,
            weights=weights,
            cached=0.0 * m,
            runs=everywhere,
            routed=shared,
            cast=cast,
        )

    def plain(
        flop: FloatArray,
        elements: FloatArray,
        launches: int = 1,
        *,
        routed: bool = False,
        runs: BoolArray = everywhere,
        narrow: FloatArray | None = None,
    ) -> WeightedKernel:
        kernel = Kernel(flop=flop, elements=elements, launches=launches)
        return WeightedKernel(kernel=kernel, weights=none, cached=none, runs=runs, routed=routed, narrow=narrow)

    def network(m: FloatArray, inner: FloatArray, number: FloatArray) -> list[WeightedKernel]:
        passes, flop = (GLU_PASSES[0], GLU_FLOP[0]) if p.gated else (2.0, 1.0)
        wide, shared = np.full_like(m, d), number is not one
        cast = [np.where(packed, 0.0, each) if shared else None for each in (np.minimum(own, m) * d, m * inner)]
        return [
            product(m, wide, (p.matrices - 1.0) * inner, number, cast[0]),
            plain(flop * m * inner, passes * m * inner, routed=shared),
            product(m, inner, wide, number, cast[1]),
        ]

    kernels = [
        product(own, np.full_like(own, d), np.full_like(own, float(p.experts)), one),
        # Softmax, choice and normalisation of the scores, in one kernel (TensorRT-LLM, renorm_moe_routing_op and noaux_tc_op; vLLM,
        # topk_softmax; SGLang, moe_fused_gate).
        plain(10.0 * own * p.experts, 4.0 * own * p.experts),
        *(
            [
                plain(none, none, launches=2, routed=True, runs=sorts),
                plain(none, none, launches=2, routed=True, runs=sorts & (sharing * tokens > _SORTED_AT_ONCE)),
            ]
            if unpacking_s is None
            else [replace(plain(none, none, launches=5, routed=True, runs=sorts), other_s=unpacking_s)]
        ),
        plain(none, moved, routed=True, narrow=moved),
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
    which all heads share, on every rank (DeepSeek-V2, arXiv:2405.04434, table 1: kv_rank + rope_dim per position), and an indexer its key.
    """
    if layer.kind == "latent_attention":
        return np.full(len(tp), float(layer.input_shapes[2][0] + layer.params.index_dim))
    size = _sizes(layer, tp)
    return np.asarray(size.kv_heads * (size.score_dim + size.value_dim))


def query_context(layer: Layer, context: float) -> float:
    """Positions that a new token sees: all, or those of the window."""
    window = getattr(layer.params, "window", 0)
    return min(context, float(window)) if window else context


def attention_kernels(layer: Layer, keys: PassKeys, workload: ServingWorkload) -> list[WeightedKernel]:
    """Attention of the prompts' new tokens and of the sequences being decoded, a kernel each (FlashAttention, paged).

    Before each comes a kernel that rotates new queries and keys and writes the cache (TensorRT-LLM, invokeQKVPreprocessing; vLLM has two,
    rotary_embedding and reshape_and_cache).

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
    if getattr(layer.params, "selected", 0):
        new = (keys.prompts * keys.chunk).astype(np.float64)
        seen, chosen = (_pairs_of_prompt(workload, w) / workload.new_tokens for w in (0, layer.params.selected))
        read = keys.prompts * _seen_by_chunk(workload, keys.chunk)
        sequences, context = keys.decodes.astype(np.float64), workload.decode_context
        return [
            *_selected_kernels(layer, keys, new, seen, chosen, read),
            *_selected_kernels(
                layer,
                keys,
                sequences * keys.queries,
                context,
                min(context, layer.params.selected),
                sequences * context,
            ),
        ]
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
        algorithm="attention",
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
        algorithm="attention",
        tiling="decode",
    )
    # Read by every row, and written once by the prompts that are new.
    cached = (rows + keys.prompts) * prompt * cache_elements(layer, keys.tp)
    return WeightedKernel(kernel=kernel, weights=0.0 * cached, cached=cached, runs=rows > 0)


def _prompt_kernels(layer: Layer, keys: PassKeys, workload: ServingWorkload) -> list[WeightedKernel]:
    """A mean chunk: the pairs of all new tokens divided by the chunks; it sees what was cached, half of the new ones and half of itself."""
    size, prompt = _sizes(layer, keys.tp), float(workload.first_tokens)
    chunk = np.maximum(keys.chunk, 1).astype(np.float64)
    pieces = np.ceil((workload.first_tokens - workload.cached_tokens) / chunk)
    pairs = keys.prompts * size.heads * _pairs_of_prompt(workload, size.window) / pieces
    seen = _seen_by_chunk(workload, chunk)
    if size.window:
        seen = np.minimum(seen, size.window + chunk)
    depth = 0.5 * (size.score_dim + size.value_dim)
    rows = keys.prompts * chunk
    kernel = Kernel(
        flop=2.0 * pairs * (size.score_dim + size.value_dim),
        elements=rows * size.heads * (size.score_dim + size.value_dim),  # queries in, results out
        gemm=(chunk, np.maximum(pairs / np.maximum(rows * size.heads, 1.0), 0.5), np.full_like(chunk, depth)),
        algorithm="attention",
        tiling="window" if 0 < size.window < prompt else "masked",
    )
    # Keys and values of the whole context are read.
    read = keys.prompts * seen * size.kv_heads * (size.score_dim + size.value_dim)
    attention = WeightedKernel(kernel=kernel, weights=0.0 * chunk, cached=read, runs=keys.prompts > 0)
    kernels = [_entering_kernel(layer, keys, rows), attention]
    if layer.kind == "latent_attention":
        kernels.append(_expand_earlier(layer, keys, size, seen - chunk))
    return kernels


def _pairs_of_prompt(workload: ServingWorkload, window: int) -> float:
    """Pairs of the new tokens of a prompt with the positions that they see."""
    whole, known = (
        pairs_of_positions(float(n), float(n), causal=True, window=window)
        for n in (workload.first_tokens, workload.cached_tokens)
    )
    return whole - known


def _seen_by_chunk(workload: ServingWorkload, chunk: IntArray | FloatArray) -> FloatArray:
    """Positions that a mean chunk sees: what was cached, half of the new ones and half of itself."""
    new = float(workload.first_tokens - workload.cached_tokens)
    return np.asarray(workload.cached_tokens + 0.5 * (new + np.minimum(chunk, new)))


def _entering_kernel(layer: Layer, keys: PassKeys, new: FloatArray) -> WeightedKernel:
    """New queries and keys are rotated (queries are written back), keys and values written into the cache."""
    size, entry = _sizes(layer, keys.tp), cache_elements(layer, keys.tp)
    turned = size.heads * (layer.params.rope_dim if layer.kind == "latent_attention" else size.score_dim)
    moved = new * (2.0 * turned + entry)
    kernel = Kernel(flop=3.0 * new * turned, elements=moved)
    return WeightedKernel(kernel=kernel, weights=0.0 * moved, cached=new * entry, runs=new > 0)


def _expand_earlier(layer: Layer, keys: PassKeys, size: _AttentionSizes, earlier: FloatArray) -> WeightedKernel:
    """Keys and values of all heads made again from the compressed cache of earlier chunks and requests."""
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
    """The new tokens of a sequence against its whole cache, which is read once for all of them and for the heads that share it.

    Latent attention works on the compressed vectors: the matrices that would expand them are applied to the query and the result instead
    (arXiv:2405.04434, section 2.1.2), which costs what the layer before costs on one row.
    """
    size, context = _sizes(layer, keys.tp), query_context(layer, workload.decode_context)
    sequences, new = keys.decodes.astype(np.float64), (keys.decodes * keys.queries).astype(np.float64)
    kept = cache_elements(layer, keys.tp)
    if layer.kind == "latent_attention":
        whole = float(layer.input_shapes[2][0])
        score_dim, value_dim, group = whole, whole - layer.params.rope_dim, size.heads
    else:
        score_dim, value_dim, group = size.score_dim, size.value_dim, size.heads / size.kv_heads
    both = score_dim + value_dim
    kernel = Kernel(
        flop=2.0 * new * size.heads * context * both,
        elements=new * size.heads * both,
        gemm=(np.maximum(group, 1.0) * keys.queries, np.full_like(group, context), np.full_like(group, 0.5 * both)),
        algorithm="attention",
        tiling="decode",
    )
    cached = sequences * context * kept
    attention = WeightedKernel(kernel=kernel, weights=0.0 * cached, cached=cached, runs=keys.decodes > 0)
    return [_entering_kernel(layer, keys, new), attention]


def _selected_kernels(
    layer: Layer, keys: PassKeys, rows: FloatArray, seen: float, chosen: float, read: FloatArray
) -> list[WeightedKernel]:
    """Queries that see what an indexer picks for each: it scores ``seen`` positions, of ``read`` keys in all, and ``chosen`` are read.

    Attention works on the compressed vectors, of prompts too (DeepSeek-V3.2, arXiv:2512.02556, section 2.1): all heads share what is
    chosen for a query. The indexer computes like the attention here; engines run it in fp8.
    """
    p, whole = layer.params, float(layer.input_shapes[2][0])
    heads, none = np.ceil(p.heads / keys.tp), np.zeros_like(rows)
    both, runs = 2.0 * whole - p.rope_dim, rows > 0
    score, pick = index_kernels(p, rows, rows * seen, none)
    attention = Kernel(
        flop=2.0 * rows * heads * chosen * both,
        elements=rows * heads * both,
        gemm=(heads, np.full_like(rows, chosen), np.full_like(rows, 0.5 * both)),
        algorithm="attention",
        tiling="decode",
    )
    parts = ((score, read * p.index_dim), (pick, none), (attention, rows * chosen * whole))
    return [
        _entering_kernel(layer, keys, rows),
        *(WeightedKernel(kernel=kernel, weights=none, cached=cached, runs=runs) for kernel, cached in parts),
    ]


# An addition is part of the norm after it (vLLM, fused_add_rms_norm): it moves data, but is no kernel of its own.
_FUSED = frozenset({"add"})
# Nothing is dropped when a network answers.
_ABSENT = frozenset({"input", "dropout"})
# Fields of ModuleSizes of which the largest layer's counts.
_WIDEST = frozenset({"row_bytes", "dispatch_bytes"})
# Larger innermost levels are racks or pods.
_MOST_IN_NODE = 16
# The logits, from which a token is chosen.
_SAMPLED = "softmax"


def kernel_s(
    item: WeightedKernel,
    layer: Layer,
    workload: ServingWorkload,
    device: Device,
    assumptions: ServingAssumptions,
    products: str = "",
) -> FloatArray:
    """Seconds of one kernel of a layer, and of the cast in front of it.

    Parameters
    ----------
    item : WeightedKernel
    layer : Layer
        It decides which format weights and products have.
    workload : ServingWorkload
        Formats of weights, activations and cache.
    device : Device
        With the least time of a kernel.
    assumptions : ServingAssumptions
    products : str
        Format of products that no recipe narrows; empty: that of the activations.
    """
    precision, kernel = workload.precision, item.kernel
    moved = (
        (kernel.elements - item.weights) * precision.activation_bytes
        + item.weights * precision.stored_bytes(layer) / _unpacking_share(layer, precision, assumptions)
        + item.cached * workload.kv_bytes
    )
    cast: FloatArray | float = 0.0
    if precision.narrows(layer):
        # Rows are read as activations and written narrow by a kernel before the product, which reads them so.
        inputs = 0.0 if kernel.gemm is None else kernel.flop / (2.0 * kernel.gemm[1])
        entering = inputs if item.cast is None else item.cast
        narrow = inputs if item.narrow is None else item.narrow
        moved = moved - narrow * (precision.activation_bytes - precision.operand.bytes)
        cast = entering * (precision.activation_bytes + precision.operand.bytes) / device.stream_bytes_per_s
        cast = cast + np.where(np.asarray(entering) > 0.0, device.launch_overhead_s, 0.0)
    time = kernel_time_s(
        device,
        precision.compute if precision.narrows(layer) else products or precision.plain.name,
        flop=kernel.flop,
        memory_bytes=moved,
        gemm=kernel.gemm,
        algorithm=kernel.algorithm,
        tiling=kernel.tiling,
        launches=kernel.launches,
        # Between element-wise kernels lie the same casts and copies as in a training step; beside products no gradients are exchanged.
        in_step=kernel.gemm is None,
    )
    if layer.kind in _FUSED:
        time = time - kernel.launches * device.launch_overhead_s
    return np.where(item.runs, time + cast + item.other_s, 0.0)


def _unpacking_share(layer: Layer, precision: Precision, assumptions: ServingAssumptions) -> float:
    """Rate at which weights are read that are unpacked on the way to their product, over that of others."""
    if precision.stored is None or not _unpacks(layer, precision):
        return 1.0
    return assumptions.unpacked_4_bits if precision.stored.bits == 4 else assumptions.unpacked_8_bits


def _unpacks(layer: Layer, precision: Precision) -> bool:
    """Whether weights are kept in another format than that of their products."""
    return precision.stored is not None and precision.holds(layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTable:
    """Times of one pass of a module; arrays (n rows, K kinds)."""

    compute_s: FloatArray
    tp_s: FloatArray  # exposed communication of tensor parallelism
    ep_s: FloatArray  # of experts
    expert_s: FloatArray  # part of compute_s: kernels whose tokens come from all replicas that share experts

    @property
    def total_s(self) -> FloatArray:
        """All of it."""
        return self.compute_s + self.tp_s + self.ep_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSizes(StructOfArrays):
    """Bytes of a module on one rank; arrays (n rows, K kinds)."""

    weight_bytes: FloatArray
    tied_bytes: FloatArray  # weights of another module that this one needs a copy of where they lie on different stages
    cache_bytes: FloatArray  # keys and values of one sequence
    row_bytes: FloatArray  # widest moment of a pass, per new token
    logit_bytes: FloatArray  # per answer
    dispatch_bytes: FloatArray  # on their way to and from experts, per new token


def own_rows(keys: PassKeys) -> FloatArray:
    """New tokens that a rank sends to experts: all where they find the experts on the ranks of the replica, else a share."""
    return np.where(keys.sharing > 1, np.ceil(keys.rows / keys.tp), keys.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleTimer:
    """Everything that decides the cost of a pass, but for what it is made of."""

    workload: ServingWorkload
    modules: Modules
    groups: GroupTimes
    assumptions: ServingAssumptions
    device: Device  # with the least time of a kernel of the assumptions
    layers: tuple[Layer, ...]  # at one position
    roles: tuple[tuple[LayerRole, ...], ...]  # kind -> layer of the module

    @classmethod
    def build(
        cls, workload: ServingWorkload, cluster: Cluster, modules: Modules, assumptions: ServingAssumptions
    ) -> ModuleTimer:
        """Prepare the network."""
        graph = workload.graph
        return cls(
            workload=workload,
            modules=modules,
            groups=GroupTimes(cluster=cluster, in_engines=True),
            assumptions=assumptions,
            device=replace(cluster.device, launch_overhead_s=assumptions.kernel_overhead_s),
            layers=tuple(at_one_position(layer) for layer in graph.layers),
            roles=tuple(roles_of(graph, kind) for kind in modules.kinds),
        )

    def exchange_s(self, operation: str, size: IntArray, stride: IntArray, message_bytes: FloatArray) -> FloatArray:
        """Time of the cheapest collective among ``size`` ranks that are ``stride`` apart; every replica starts in a domain of its own.

        It is a kernel of the pass. Where devices can read one another's memory, engines sum small messages by kernels of their own.
        """
        found = self.groups.time_s(operation, self.groups.find(size, stride, size * stride), message_bytes)
        return np.asarray(np.where(size > 1, found + self.assumptions.exchange_overhead_s, found))

    # -- times ------------------------------------------------------------------------------------------------------

    def passes(self, keys: PassKeys) -> PassTable:
        """Time one pass of every kind of module in every row."""
        head = self.modules.kinds[-1]
        return PassTable(
            **self._columns(
                PassTable, keys, lambda kind, n, role: self.layer(kind, n, role, keys, is_head=kind is head)
            )
        )

    def _columns(
        self, table: type, keys: PassKeys, of_layer: Callable[[ModuleKind, int, LayerRole], dict[str, FloatArray]]
    ) -> dict[str, FloatArray]:
        """Columns of a table, (n, K) each: the layers of every kind of module together."""
        columns: list[dict[str, FloatArray]] = []
        for kind, roles in zip(self.modules.kinds, self.roles, strict=True):
            total = {item.name: np.zeros(len(keys)) for item in fields(table)}
            for position, role in enumerate(roles):
                for name, value in of_layer(kind, position, role).items():
                    # What a pass needs at its widest moment is needed once, the rest by all layers together.
                    total[name] = np.maximum(total[name], value) if name in _WIDEST else total[name] + value
            columns.append(total)
        return {item.name: np.stack([column[item.name] for column in columns], axis=1) for item in fields(table)}

    def layer(
        self, kind: ModuleKind, position: int, role: LayerRole, keys: PassKeys, *, is_head: bool
    ) -> dict[str, FloatArray]:
        """Time one layer of a module in every row: the fields of `PassTable`, (n,) each."""
        index = kind.layers[position]
        layer, keys = self.layers[index], self._seen_by(index, keys)
        rows = keys.answers if is_head else keys.rows
        none = np.zeros(len(keys))
        if layer.kind in _ABSENT:
            return {item.name: none for item in fields(PassTable)}
        row_keys = _row_keys(keys, rows)
        if layer.kind in ATTENTION:
            kernels = attention_kernels(self.workload.graph.layers[index], keys, self.workload)
        elif layer.kind == "moe":
            unpacking_s = self.assumptions.unpacking_s if _unpacks(layer, self.workload.precision) else None
            spread = self.assumptions.expert_spread
            kernels = mixture_kernels(layer, keys, spread, packed=self._is_sent(keys), unpacking_s=unpacking_s)
        elif layer.kind == _SAMPLED:
            kernels = [sampling_kernel(layer, rows, self.workload.precision.activation_bytes)]
        else:
            kernels = _family_kernels(layer, shard_of(self.layers, kind, position, role, row_keys), rows > 0)
        times = [kernel_s(kernel, layer, self.workload, self.device, self.assumptions) for kernel in kernels]
        found = {
            "compute_s": sum(times, none),
            "expert_s": sum((time for time, kernel in zip(times, kernels, strict=True) if kernel.routed), none),
            "tp_s": np.where(rows > 0, self._tensor_parallel_s(kind, position, role, row_keys), 0.0),
            "ep_s": self._expert_parallel_s(layer, keys) if layer.kind == "moe" else none,
        }
        factor = np.where((keys.sharing > 1) & ~self._is_sent(keys), self.assumptions.node_gathers_time, 1.0)
        return {name: factor * part for name, part in found.items()}

    def rows_of_matrix(self, layer: Layer, rows: FloatArray) -> FloatArray:
        """Time of a matrix that every rank holds whole, in passes of so many rows."""
        inputs, outputs = float(layer.input_shapes[0][0]), float(layer.output_shape[0])
        weights = np.full_like(rows, inputs * outputs)
        kernel = Kernel(
            flop=2.0 * rows * inputs * outputs,
            elements=rows * (inputs + outputs) + weights,
            gemm=(rows, np.full_like(rows, outputs), np.full_like(rows, inputs)),
        )
        item = WeightedKernel(kernel=kernel, weights=weights, cached=0.0 * rows, runs=rows > 0)
        return kernel_s(item, layer, self.workload, self.device, self.assumptions)

    def _seen_by(self, index: int, keys: PassKeys) -> PassKeys:
        """What a pass is for a layer: an encoder reads whole prompts, the decoder alongside one starts with a token of each."""
        if not self.workload.encoder:
            return keys
        if index in self.workload.encoder:
            return replace(keys, decodes=np.zeros_like(keys.decodes))
        return replace(keys, chunk=np.minimum(keys.chunk, 1))

    def _tensor_parallel_s(self, kind: ModuleKind, position: int, role: LayerRole, keys: RowKeys) -> FloatArray:
        layer = self.layers[kind.layers[position]]
        width, stride = self.workload.precision.activation_bytes, np.ones_like(keys.tp)
        shown = 1.0 - self.assumptions.tp_overlap
        if layer.kind == _SAMPLED and role.role == "channel":
            # The head is split over the vocabulary; every rank gets all of it and chooses the same tokens (vLLM, logits_processor.py;
            # TensorRT-LLM, gather_output of its head; SGLang, logits_processor.py).
            message = keys.micro_batch.astype(np.float64) * layer.output_shape[0] * width
            return shown * self.exchange_s("all_gather", keys.tp, stride, message)
        if role.reduces or role.role == "experts":
            message = keys.micro_batch.astype(np.float64) * layer.output_shape[0] * width
            return shown * self.exchange_s("all_reduce", keys.tp, stride, message)
        result = np.zeros(len(keys))
        if role.role == "channel" and layer.kind not in ATTENTION:
            shard = shard_of(self.layers, kind, position, role, keys)
            for inner in layer.family.work(layer, shard).exchanges:
                if inner.over == "out_channels" and inner.phase == "forward":
                    message = np.broadcast_to(inner.elements * width, keys.tp.shape)
                    result += inner.repeats * self.exchange_s(inner.operation, keys.tp, stride, message)
        return shown * result

    def _expert_parallel_s(self, layer: Layer, keys: PassKeys) -> FloatArray:
        """Replicas that share experts trade tokens, twice; ranks that share an expert gather them and reduce the results.

        Inside a node every rank gathers the tokens of all and adds the results up where they came from.
        """
        apart, precision = keys.sharing > 1, self.workload.precision
        elements = own_rows(keys) * layer.params.top_k * layer.output_shape[0]
        most = elements * fullest_rank(layer.params, keys.ep, self.assumptions.expert_spread)
        # Tokens leave in the format in which experts compute, results return as activations (DeepEP: FP8 dispatching, BF16 combining).
        leaving, returning = most * precision.operand.bytes, most * precision.activation_bytes
        ranks = np.where(apart, keys.ep, 1)
        trade = self._all_to_all_s(ranks, keys.etp, leaving) + self._all_to_all_s(ranks, keys.etp, returning)
        inside, stride, sent = (
            np.where(apart, keys.etp, 1),
            np.ones_like(keys.etp),
            elements * precision.activation_bytes,
        )
        gathered = sent * keys.etp
        shared = self.exchange_s("all_gather", inside, stride, gathered) + self.exchange_s(
            "reduce_scatter", inside, stride, gathered
        )
        gathers = np.where(apart & self._in_node(keys), self.assumptions.node_gathers, 0.0)
        sent_s = gathers * self._gather_s(layer, keys) + (1.0 - gathers) * (trade + shared)
        return (1.0 - self.assumptions.ep_overlap) * sent_s

    def _is_sent(self, keys: PassKeys) -> BoolArray:
        """Whether each token is sent to its experts, which other replicas share."""
        gathers = self._in_node(keys) & (self.assumptions.node_gathers > 0.0)
        return np.asarray((keys.sharing > 1) & ~gathers)

    def _in_node(self, keys: PassKeys) -> BoolArray:
        """Whether the ranks that share experts are inside one node, in which tokens can be gathered."""
        node = self.groups.cluster.levels[0].size if self.groups.cluster.levels else None
        fits = 0 if node is None or node > _MOST_IN_NODE else node
        return np.asarray(keys.ep * keys.etp <= fits)

    def _gather_s(self, layer: Layer, keys: PassKeys) -> FloatArray:
        """An all-gather of the tokens of all ranks, as activations, and a reduce-scatter of the results."""
        ranks = np.where(keys.sharing > 1, keys.ep * keys.etp, 1)
        message = own_rows(keys) * layer.output_shape[0] * self.workload.precision.activation_bytes * ranks
        stride = np.ones_like(ranks)
        return self.exchange_s("all_gather", ranks, stride, message) + self.exchange_s(
            "reduce_scatter", ranks, stride, message
        )

    def _all_to_all_s(self, size: IntArray, stride: IntArray, sent: FloatArray) -> FloatArray:
        """All-to-all whose messages are under way together, so that hardly more than one latency counts."""
        whole = self.exchange_s("all_to_all", size, stride, sent)
        few = np.minimum(sent, 1.0)
        starts = self.exchange_s("all_to_all", size, stride, few)
        once = self.exchange_s("point_to_point", size, stride, few)
        return np.asarray(whole - (1.0 - self.assumptions.ep_latency_share) * np.maximum(starts - once, 0.0))

    # -- sizes ------------------------------------------------------------------------------------------------------

    def sizes(self, keys: PassKeys) -> ModuleSizes:
        """Sizes of every kind of module for the degrees of every row."""
        return ModuleSizes(
            **self._columns(ModuleSizes, keys, lambda kind, n, role: self.layer_sizes(kind, n, role, keys))
        )

    def layer_sizes(self, kind: ModuleKind, position: int, role: LayerRole, keys: PassKeys) -> dict[str, FloatArray]:
        """Sizes of one layer of a module in every row: the fields of `ModuleSizes`, (n,) each."""
        index, width = kind.layers[position], self.workload.precision.activation_bytes
        layer, none = self.layers[index], np.zeros(len(keys))
        result = {item.name: none for item in fields(ModuleSizes)}
        if layer.kind in _ABSENT:
            return result
        shard = shard_of(self.layers, kind, position, role, _row_keys(keys, np.ones(len(keys))))
        share = _weight_share(layer, role, shard, keys)
        routed, shared = float(layer.expert_count), float(layer.shared_count)
        dense = float(layer.weight_count + layer.norm_count + layer.adapter_count) - routed - shared
        stored = self.workload.precision.stored_bytes(layer)
        result["weight_bytes"] = (dense * share + shared / keys.tp + routed / (keys.ep * keys.etp)) * stored
        result["tied_bytes"] = layer.tied_count * share * width
        if layer.kind in ATTENTION:
            result["cache_bytes"] = self._cache_bytes(self.workload.graph.layers[index], keys.tp)
        result["row_bytes"] = (shard.in_channels + shard.out_channels + layer.output_shape[0]) * width
        if layer.kind == "moe":
            result["row_bytes"], result["dispatch_bytes"] = self._mixture_row(layer, keys)
        if layer.kind == _SAMPLED:
            result["logit_bytes"] = np.full(len(keys), layer.output_shape[0] * LOGIT_BYTES)
        return result

    def _cache_bytes(self, layer: Layer, tp: IntArray) -> FloatArray:
        """Whole pages of what a sequence keeps."""
        work = self.workload
        if layer.kind == "cross_attention":
            kept = float(work.prompt_tokens)
        elif not layer.params.causal:
            return np.zeros(len(tp))  # an encoder needs nothing of what it has read
        else:
            kept = work.first_tokens + self.assumptions.output_share * work.output_tokens
        page = max(self.assumptions.page_tokens, 1.0)
        positions = np.ceil(query_context(layer, kept) / page) * page
        return np.asarray(positions * cache_elements(layer, tp) * self.workload.kv_bytes)

    def _mixture_row(self, layer: Layer, keys: PassKeys) -> tuple[FloatArray, FloatArray]:
        """Bytes at the widest moment of a mixture, and of tokens under way, per new token of a replica."""
        p, d, width = layer.params, float(layer.output_shape[0]), self.workload.precision.activation_bytes
        arriving = keys.sharing * p.top_k / keys.ep * fullest_rank(p, keys.ep, self.assumptions.expert_spread)
        inside = d + p.matrices * np.ceil(p.ffn / keys.etp)
        under_way = np.where(keys.sharing > 1, 2.0 * p.top_k * d / keys.tp, 0.0) * width
        return (2.0 * d + arriving * inside) * width, under_way


def _row_keys(keys: PassKeys, rows: FloatArray) -> RowKeys:
    """The same rows in the words of the mesh tables; a pass without rows is costed as one of one row, and left out after."""
    one = np.ones_like(keys.tp)
    return RowKeys(
        tp=keys.tp,
        sequence_parallel=0 * one,
        cp=one,
        ep=keys.ep,
        etp=keys.etp,
        micro_batch=np.maximum(rows, 1).astype(np.int64),
        place=0 * one,
    )


def _family_kernels(layer: Layer, shard: Shard, runs: BoolArray) -> list[WeightedKernel]:
    """Forward pass of a layer that knows rows only; its matrix products read weights of inputs x outputs."""
    forward = layer.family.work(layer, shard).forward
    assert len(forward) <= 1, f"{layer.kind}: alternatives are for convolutions"
    return [
        WeightedKernel(kernel=kernel, weights=_weights_of(kernel), cached=np.zeros(len(runs)), runs=runs)
        for kernels in forward
        for kernel in kernels
    ]


def _weights_of(kernel: Kernel) -> FloatArray:
    if kernel.gemm is None:
        return np.zeros_like(np.asarray(kernel.elements, dtype=np.float64))
    _, n, k = kernel.gemm
    return np.asarray(n * k)


def _weight_share(layer: Layer, role: LayerRole, shard: Shard, keys: PassKeys) -> FloatArray:
    if role.role == "column":
        return np.asarray(shard.out_channels / layer.output_shape[0])
    if role.role in ("row", "vocabulary"):
        return np.asarray(1.0 / keys.tp)
    return np.ones(len(keys))
