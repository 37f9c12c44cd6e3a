"""Constants of how close kernels come to the peaks of a device (`costmodel.kernels.roofline`), and where they come from."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


class EfficiencyError(ValueError):
    """An efficiency constant is outside its range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Constants of the efficiency model.

    Attributes
    ----------
    matmul_fraction : float
        Share of the peak that a large matrix product reaches where the device states no best rate (`Device.best`).
    winograd_fraction, fft_fraction : float
        Rate of the products of these convolution algorithms over that of a large matrix product on vector units: they do not run on
        matrix cores.
    strided_gradient_fraction : float
        Share of the memory bandwidth at which the gradient of the input of a strided convolution on vector units adds its sums where
        they belong.
    vector_fraction : float
        Share of the vector peak that element-wise kernels reach.
    attention_fraction, attention_backward_fraction : float
        Rate of a fused attention over that of a large matrix product, forward and backward, for heads of 128 features and long rows: the
        exponentials of the softmax run between its products.
    attention_start, attention_backward_start : float
        Keys that a row of queries costs besides those it sees.
    attention_tile : float
        Side of a tile: fewer queries take as long as so many, and a row computes so many keys in vain where a mask cuts a tile.
    attention_depth, attention_backward_depth : float
        Features of a head that take as long as the exponential of a score: narrow heads have more scores.
    portable_attention_fraction : float
        Rate of a fused attention that was written for an earlier generation over that of the last two: FlashAttention-2 runs on Hopper
        with the instructions of Ampere.
    step_fraction : float
        Share of its rate that a matrix product keeps up through a training step, where other work has filled the caches and is in
        flight.
    elementwise_fraction : float
        Share of its best rate that an element-wise kernel keeps up through a training step, where casts and copies that no graph shows
        come with it. The last two do not apply to kernels timed alone.
    odd_fraction : float
        Rate of a product on matrix units whose rows are odd numbers of 16 bits, over that of one whose rows are multiples of 16 bytes.
    tf32_sums_fraction : float
        Rate of a product in tf32 that sums over all samples (gradients of weights), over that of one whose operands are contiguous along
        the inner dimension: matrix units that take numbers of 32 bits in that order only have them transposed first.
    memory_fraction : float
        Share of the memory bandwidth that a long stream reaches.
    memory_overlap : float
        Share of the shorter of arithmetic and memory traffic that the longer one hides: 1 where thousands of threads wait for memory while
        others compute; 0 where a core that waits computes nothing.
    host_overlap : float
        Share of the shorter of a layer's kernels and the time that the host takes to start them that the longer one hides: 1 where a host
        runs ahead of its device; 0 where the device is its own host.
    cache_bytes : float
        Of what a kernel reads and writes, what stays in caches when it is timed over and over.
    cache_speedup : float
        Rate of what stays there over that of a long stream from memory.
    pool_fraction : float
        Rate of max-pooling over that of other element-wise kernels: below 1 where it uses no vector instructions.
    tile_half : float
        m0 = n0: rows (or columns) of outputs that are computed in vain, on average.
    depth_half : float
        k0: steps of the inner loop that starting and finishing a tile costs.
    fill_outputs : float
        outputs0: outputs in flight at which half the device is busy, where the inner loop is short.
    split_depth : float
        k1: steps of the inner loop at which half of it is cut into parallel pieces.
    vector_tile, vector_depth, vector_fill, vector_split : float
        The four sizes on vector units, as multiples of those above; tile and fill for 128 lanes per multiprocessor, in proportion to
        the lanes and to their square. A lane that multiplies two halves at once counts twice.
    vector_loss : float
        What 128 lanes of a multiprocessor lose waiting for its shared memory, over what they compute; fewer lanes lose less. The
        matmul_fraction of vector units is that of 128 lanes; a best rate that a device states is its own.
    vector_floor : float
        Least side of a tile there, as a multiple of ``tile_half``, for 128 lanes and in proportion to them.
    thin_tile, thin_depth, thin_fill, thin_split : float
        The four in kernels made for thin matrices (convolutions, recurrent cells): tiles and depth of any multiprocessor, fill in
        proportion to the lanes; no least side.
    weights_depth : float
        ``k0`` of gradients of the weights of convolutions there, as a multiple: their long sums are cut into pieces until the device
        is full, whatever their depth, each of which starts and is added to the others.
    winograd_side : float
        Least side of a tile of Winograd's products.
    window_bytes, window_start : float
        Bytes that a multiprocessor gathers from its first-level cache per clock in convolutions of narrow groups, whose windows every
        output reads for itself (depthwise ones: nothing is multiplied twice), and elements that an output costs besides its window.
        0 bytes: without limit.
    source : str
        Where the numbers come from.

    Raises
    ------
    EfficiencyError
        A fraction outside (0, 1], or a half size below 0.
    """

    matmul_fraction: float = 0.80
    winograd_fraction: float = 0.80
    fft_fraction: float = 0.50
    vector_fraction: float = 0.80
    attention_fraction: float = 1.0
    attention_backward_fraction: float = 1.0
    attention_start: float = 0.0
    attention_backward_start: float = 0.0
    attention_tile: float = 0.0
    attention_depth: float = 0.0
    attention_backward_depth: float = 0.0
    portable_attention_fraction: float = 1.0
    step_fraction: float = 1.0
    elementwise_fraction: float = 1.0
    odd_fraction: float = 1.0
    tf32_sums_fraction: float = 1.0
    memory_fraction: float = 0.85
    memory_overlap: float = 1.0
    host_overlap: float = 1.0
    cache_bytes: float = 0.0
    cache_speedup: float = 1.0
    pool_fraction: float = 1.0
    tile_half: float = 32.0
    depth_half: float = 32.0
    fill_outputs: float = 131072.0
    split_depth: float = 4096.0
    strided_gradient_fraction: float = 1.0
    vector_tile: float = 1.0
    vector_depth: float = 1.0
    vector_fill: float = 1.0
    vector_split: float = 1.0
    vector_loss: float = 0.0
    vector_floor: float = 0.0
    thin_tile: float = 1.0
    thin_depth: float = 1.0
    thin_fill: float = 1.0
    thin_split: float = 1.0
    weights_depth: float = 1.0
    winograd_side: float = 0.0
    window_bytes: float = 0.0
    window_start: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name.endswith("_fraction") and not 0.0 < value <= 1.0:
                raise EfficiencyError(f"{item.name} is {value}, expected a number above 0 and up to 1")
            if item.name.endswith("_overlap") and not 0.0 <= value <= 1.0:
                raise EfficiencyError(f"{item.name} is {value}, expected a number from 0 to 1")
            if item.name == "cache_speedup" and value < 1.0:
                raise EfficiencyError(f"{item.name} is {value}, expected a number from 1")
            if item.name != "source" and not (math.isfinite(value) and value >= 0.0):
                raise EfficiencyError(f"{item.name} is {value}, expected a number from 0")


DEFAULT_EFFICIENCY = Efficiency(
    attention_fraction=0.41,
    attention_backward_fraction=0.33,
    attention_start=75.0,
    attention_backward_start=270.0,
    attention_tile=128.0,
    attention_depth=62.0,
    attention_backward_depth=24.0,
    step_fraction=0.85,
    elementwise_fraction=0.70,
    odd_fraction=0.37,
    winograd_fraction=0.87,
    fft_fraction=0.40,
    strided_gradient_fraction=0.30,
    vector_tile=0.5,
    vector_depth=2.0,
    vector_fill=2.0,
    vector_split=0.1,
    vector_floor=2.5,
    vector_loss=0.4,
    thin_tile=0.37,
    thin_depth=0.9,
    thin_fill=3.0,
    thin_split=0.22,
    weights_depth=17.0,
    winograd_side=64.0,
    window_bytes=11.0,
    window_start=8.0,
    source="matmul_fraction, winograd_fraction, fft_fraction, strided_gradient_fraction, vector_tile, vector_depth, vector_fill, "
    "vector_split, vector_floor, thin_tile, thin_depth, thin_fill, thin_split and weights_depth: fit to the fp32 training GEMMs, "
    "convolutions and recurrent cells of DeepBench on Titan X, M40 and P100 (Baidu Research, results/train), rounded. winograd_side: half "
    "of the maxwell_ and volta_scudnn_winograd_128x128 in profiles of TensorFlow, fit among 0, 32, 64 and 96 to those convolutions and to "
    "published steps on P100. window_bytes and window_start: fit, rounded, to published steps of networks with depthwise and grouped "
    "convolutions on RTX 3090 (timm, results, mixed precision) and A100 (NVIDIA DeepLearningExamples, mixed precision and TF32). "
    "vector_loss: fit to "
    "ResNet-50 in fp32 on V100 (NVIDIA DeepLearningExamples). The fraction of peak of other devices is 0.51 to 0.97 in "
    "the MAMF table of ml-engineering (S. Bekman). tile_half, depth_half, split_depth: assumptions within what the step times "
    "below allow; fill_outputs: half a wave of 128 x 128 tiles on 16 multiprocessors, for devices that do not state how many "
    "they have. attention_start, attention_tile, attention_depth and those of the backward pass: what the curves of cuDNN 9 and "
    "FlashAttention-2 on an H100 SXM say (J. Shah et al., arXiv:2407.08608, figures 5 and 6: heads of 64 and 128 features, 512 to 16k "
    "positions), rounded; a score takes more than one of the 16 exponentials per clock and multiprocessor (NVIDIA, CUDA C++ Programming "
    "Guide, throughput of arithmetic instructions). "
    "step_fraction, elementwise_fraction, attention_fraction, attention_backward_fraction: fit to step times of "
    "MPT on A100 (llm-foundry), GPT on A100 (Megatron-LM) and transformers on H100 (NeMo), rounded. odd_fraction: fit to the heads of "
    "vTrain's GPT on A100 (arXiv:2312.12391), 50,257 words on one device against 25,128 on each of two; with 12,564 on each of four and "
    "6,282 on each of eight 0.73 and 0.64 were found, for 0.79 and 0.58 here. memory_fraction, "
    "vector_fraction: assumptions",
)
