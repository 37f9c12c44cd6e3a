"""Number formats, which tensor of a run has which of them, and optimizers.

A `Format` says bits and scales; a `Precision` says what has which format. Every width of the cost model is read from one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from costmodel.arrays import FloatArray
from costmodel.network.layers import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A number format: bits of an element, and the scales that blocks of elements share.

    Attributes
    ----------
    name : str
    bits : int
    scale_bytes : float
        Of all scales of one block.
    block : int
        Elements of a block; scales of whole rows or tensors do not count.
    weight_block : int
        The same of a matrix of weights, where it is cut into other blocks; 0: into such ones.

    Examples
    --------
    >>> mxfp8 = Format(name="mxfp8", bits=8, scale_bytes=1.0, block=32)
    >>> mxfp8.bytes
    1.03125
    """

    name: str
    bits: int
    scale_bytes: float = 0.0
    block: int = 1
    weight_block: int = 0

    @property
    def bytes(self) -> float:
        """Bytes of an element with its share of the scales."""
        return self.bits / 8.0 + self.scale_bytes / self.block

    @property
    def weight_bytes(self) -> float:
        """The same of an element of a matrix of weights."""
        return self.bits / 8.0 + self.scale_bytes / (self.weight_block or self.block)


# Scales. fp8_block: fp32 for 128 activations of a row, and for 128 x 128 weights (DeepSeek-V3, arXiv:2412.19437, section 3.3.2;
# Transformer Engine, csrc/quantizer.cpp, Float8BlockQuantizer::get_scale_shape); mxfp8 and mxfp4: one byte for 32 (OCP Microscaling Formats
# 1.0); nvfp4: one byte for 16 (NVFP4Quantizer::get_scale_shape); int4: 16 bits and a zero of 4 bits for 128 (AWQ, arXiv:2306.00978; GPTQ,
# arXiv:2210.17323); nf4: one byte for 64 codes and 4 for 256 such blocks (QLoRA, arXiv:2305.14314, section 3, double quantization).
FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format(name="fp32", bits=32),
        Format(name="tf32", bits=32),
        Format(name="fp16", bits=16),
        Format(name="bf16", bits=16),
        Format(name="fp8", bits=8),
        Format(name="fp8_block", bits=8, scale_bytes=4.0, block=128, weight_block=128 * 128),
        Format(name="mxfp8", bits=8, scale_bytes=1.0, block=32),
        Format(name="int8", bits=8),
        Format(name="nvfp4", bits=4, scale_bytes=1.0, block=16),
        Format(name="mxfp4", bits=4, scale_bytes=1.0, block=32),
        Format(name="int4", bits=4, scale_bytes=2.5, block=128),
        Format(name="nf4", bits=4, scale_bytes=1.0 + 4.0 / 256.0, block=64),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Which tensor of a run has which number format: a format that all of it is in, or a recipe of narrow products.

    In a recipe the products of the blocks are narrow; attention, norms, activations, router, embedding and head, what leaves products, and
    gradients are in the plain format (NVIDIA Transformer Engine, docs/examples/fp8_primer; DeepSeek-V3, arXiv:2412.19437, section 3.3.1).

    Attributes
    ----------
    name : str
    about : str
        Who calls it so.
    plain : Format
        Of all that is not narrow.
    products : tuple of str
        Rates of the device that products run at, the first that it has: keys of `Device.peak_flop_per_s`.
    narrow : Format or None
        Of what enters the products of the blocks; None: they are computed in the plain format.
    stored : Format or None
        Of weights that are not trained, where they are kept in another format than that of their products.
    covers : frozenset of str
        Kinds of layers whose products (or stored weights) are narrow, of those in repeated blocks.
    master_bytes : float
        Of a 32-bit copy of a trained weight; 0 where the weights are 32-bit already.
    gradient_bytes : float
        Of a gradient as it is computed.
    reads : int
        Times that a tensor is read to be cast: 2 where its largest value is found first, 3 where another kernel turns its columns
        (Hadamard transform).
    copies : int
        Narrow copies of a tensor, row by row and column by column: products of narrow formats read along one side of both matrices only.
    shares_copy : bool
        One copy serves both ways on devices that read both (`Device.reads_both_ways`).
    in_passes : bool
        Tensors are cast for each product in every pass, and neither kept nor gathered in the narrow format (torchao).
    wide_weights : bool
        A copy of the weights in the plain format is kept beside the narrow ones.
    gathers_weights : bool
        Weights travel between the ranks that share the optimizer in the narrow format.
    dispatches : bool
        Tokens travel to their experts, and gradients on that way, in the narrow format.
    plain_weight_gradient : bool
        Gradients of weights are products in the plain format.
    """

    name: str
    plain: Format
    products: tuple[str, ...]
    about: str = ""
    narrow: Format | None = None
    stored: Format | None = None
    covers: frozenset[str] = frozenset({"linear", "moe"})
    master_bytes: float = 4.0
    gradient_bytes: float = 2.0
    reads: int = 1
    copies: int = 2
    shares_copy: bool = False
    in_passes: bool = False
    wide_weights: bool = False
    gathers_weights: bool = False
    dispatches: bool = False
    plain_weight_gradient: bool = False

    @property
    def compute(self) -> str:
        """Key of `Device.peak_flop_per_s` of the products."""
        return self.products[0]

    @property
    def activation_bytes(self) -> float:
        """Bytes of an activation between layers."""
        return self.plain.bytes

    @property
    def weight_bytes(self) -> float:
        """Bytes of a weight that is not narrow."""
        return self.plain.bytes

    @property
    def operand(self) -> Format:
        """Of what enters products of narrow layers."""
        return self.narrow or self.plain

    @property
    def casts(self) -> bool:
        """Whether what enters products is cast to the narrow format."""
        return self.narrow is not None

    @property
    def kind(self) -> str:
        """The format that all of it is in, or "narrow"."""
        return self.plain.name if self.narrow is None and self.stored is None else "narrow"

    @property
    def cast_bytes(self) -> float:
        """Bytes that one cast of an element moves: it is read, and written once or, for the gradient of the weights, both ways.

        >>> [PRECISIONS[name].cast_bytes for name in ("bf16", "fp8-delayed", "fp8-tensorwise", "mxfp8", "nvfp4", "fp8-rowwise")]
        [0.0, 4.0, 6.0, 4.0625, 7.125, 3.0]
        """
        return 0.0 if self.narrow is None else self.reads * self.plain.bytes + self.copies * self.narrow.bytes

    def casts_bytes(
        self, inputs: FloatArray, outputs: FloatArray, weights: FloatArray, *, after_norm: bool = False
    ) -> tuple[FloatArray, FloatArray]:
        """Bytes that casts around a narrow matrix move in the forward and the backward pass.

        What enters it, and backward the gradient of what leaves it; with `in_passes` for each product apart, the weights too, which are
        else cast once a step. Weights that are kept in another format than that of their products are read, and written in it, first
        (bitsandbytes, MatMul4Bit). A norm in front of a matrix finds the largest value itself, or writes the narrow format.

        Parameters
        ----------
        inputs, outputs, weights : arrays (n,)
            Elements on one rank.
        after_norm : bool
            What enters comes from a norm (Transformer Engine, LayerNormLinear).

        Examples
        --------
        >>> PRECISIONS["fp8-delayed"].casts_bytes(10.0, 20.0, 0.0), PRECISIONS["fp8-rowwise"].casts_bytes(10.0, 20.0, 0.0)
        ((40.0, 80.0), (30.0, 150.0))
        """
        each, moved = self.cast_bytes, 0.0
        if self.stored is not None:
            moved = self.stored.weight_bytes + self.operand.bytes
        if not self.in_passes:
            spared = self.plain.bytes if after_norm and self.shares_copy else 0.0
            return (each - spared) * inputs + moved * weights, each * outputs + moved * weights
        again = 0.0 if self.plain_weight_gradient else 1.0
        every = (moved + each) * weights
        return each * inputs + every, each * (again * inputs + (1.0 + again) * outputs) + every

    @property
    def held_bytes(self) -> float:
        """Bytes of a narrow weight in a training run: its copies, or what is not trained."""
        if self.stored is not None:
            return self.stored.weight_bytes
        if self.narrow is None or self.in_passes:
            return self.plain.bytes
        return self.wide_weights * self.plain.bytes + self.copies * self.narrow.weight_bytes

    @property
    def served_bytes(self) -> float:
        """Bytes of a narrow weight of a network that is not trained."""
        return (self.stored or self.operand).weight_bytes

    @property
    def gathered_bytes(self) -> float:
        """Bytes of a narrow weight on its way between ranks that share the optimizer."""
        return self.operand.weight_bytes if self.gathers_weights else self.plain.bytes

    def sized(
        self, width: float, dense: FloatArray, narrow: FloatArray, experts: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Bytes of weights outside routed experts, of which some are narrow, and of the experts, where narrow ones have a width."""
        plain, of_experts = self.plain.bytes, self.covers_experts
        return plain * dense + (width - plain) * narrow, (width if of_experts else plain) * experts

    @property
    def covers_experts(self) -> bool:
        """Whether routed experts are narrow."""
        return "moe" in self.covers and self.kind == "narrow"

    def updates_bytes(
        self, narrow: FloatArray, experts: FloatArray, narrow_share: FloatArray, expert_share: FloatArray
    ) -> FloatArray | float:
        """Bytes that casts of trained weights move once a step.

        Ranks that gather narrow weights cast the share that they update; the columns, where they are a copy of their own, are written when
        the rows have come (Megatron-LM, post_all_gather_processing). Others cast the whole.

        Parameters
        ----------
        narrow, experts : arrays
            Weights of a rank in narrow layers outside routed experts, and in routed experts.
        narrow_share, expert_share : arrays
            Those that it updates.
        """
        if self.narrow is None or self.in_passes or self.stored is not None:
            return 0.0
        once = self.reads * self.plain.bytes + self.copies * self.narrow.weight_bytes
        whole, share = narrow + self.covers_experts * experts, narrow_share + self.covers_experts * expert_share
        if not self.gathers_weights:
            return once * whole
        return once * share + 2.0 * (self.copies - 1) * self.narrow.weight_bytes * (whole - share)

    def gathers_bytes(self, *, is_gradient: bool) -> float:
        """Bytes of an element of a narrow matrix's input, or of its output's gradient, that tensor-parallel ranks gather.

        A gradient in blocks with scales is needed along both sides, so that it travels as it is where two copies are no smaller
        (Transformer Engine, docs/examples/advanced_optimizations: gathers of narrow tensors in all its recipes).
        """
        if self.narrow is None or self.in_passes:
            return self.plain.bytes
        copies = self.copies if is_gradient and not self.shares_copy else 1
        return min(copies * self.narrow.bytes, self.plain.bytes)

    @property
    def dispatch_share(self) -> float:
        """Bytes of a token on its way to the experts over those of an activation."""
        return self.operand.bytes / self.plain.bytes if self.dispatches else 1.0

    @property
    def kept(self) -> Format:
        """In which the backward pass finds what entered a narrow product."""
        return self.plain if self.in_passes else self.operand

    def narrows(self, layer: Layer) -> bool:
        """Whether the products of a layer are narrow."""
        return self.narrow is not None and self.holds(layer)

    def holds(self, layer: Layer) -> bool:
        """Whether a recipe covers the weights of a layer."""
        return layer.kind in self.covers and bool(layer.block) and (self.narrow or self.stored) is not None

    def stored_bytes(self, layer: Layer) -> float:
        """Bytes of a weight of a layer that is served."""
        return self.served_bytes if self.holds(layer) else self.plain.bytes

    def formats(self, *, trains: bool = True) -> dict[str, str | float]:
        """What is in which format, for people and programs.

        >>> known = PRECISIONS["nvfp4"].formats()
        >>> known["weights"], known["weight_bytes"], known["products"], known["parameter_gather"]
        ('nvfp4', 3.125, 'nvfp4', 'bf16')
        """
        narrow, plain = self.operand.name, self.plain.name
        return {
            "weights": (self.stored or self.operand).name,
            "weight_bytes": round(self.held_bytes if trains else self.served_bytes, 4),
            "products": ", ".join(self.products),
            "kept": self.kept.name,
            "cast_bytes": self.cast_bytes,
            "parameter_gather": narrow if self.gathers_weights else plain,
            "input_gather": plain if self.narrow is None or self.in_passes else narrow,
            "dispatch": narrow if self.dispatches else plain,
        }

    @property
    def unquantised(self) -> Precision:
        """That of layers that are not narrow."""
        return replace(self, narrow=None, stored=None, products=(self.plain.name,))

    def on(self, formats: Collection[str], *, reads_both_ways: bool = False, serves: bool = False) -> Precision:
        """The same on a device with rates for some formats, of which fp32 is one.

        Where it has none for these products, it computes in the next wider format that it has. A server keeps the weights narrow all the
        same (vLLM, docs/features/quantization/fp8.md: weights alone, by Marlin's kernels, on devices without fp8).

        >>> PRECISIONS["fp16"].on({"fp32"}).compute, PRECISIONS["fp8"].on({"fp32", "bf16"}).casts
        ('fp32', False)
        >>> PRECISIONS["fp8"].on({"fp32", "bf16"}, serves=True).stored.name
        'fp8'
        """
        copies = 1 if self.shares_copy and reads_both_ways else self.copies
        found = next((name for name in self.products if name in formats), "")
        if found:
            return replace(
                self, products=(found,), copies=copies, plain=FORMATS[found] if found in _WIDER else self.plain
            )
        eight_bits = ("fp8",) if self.casts and not serves else ()
        wider = (*eight_bits, self.plain.name, *_WIDER.get(self.plain.name, ()), "fp32")
        found = next(name for name in wider if name in formats)
        if found == "fp8":
            return replace(self, products=(found,), narrow=FORMATS[found])
        stored = (self.stored or self.narrow) if serves else None
        plain = FORMATS[found] if self.plain.bits == 16 and found in _WIDER else self.plain
        return replace(self, products=(found,), plain=plain, narrow=None, stored=stored)

    def runs_on(self, formats: Collection[str]) -> bool:
        """Whether a device has a rate for the products."""
        return any(name in formats for name in self.products)


# Formats of products that stand in for one that a device does not have, the best first.
_WIDER = {"bf16": ("fp16",), "fp16": ("bf16",)}
_MIXTURES = frozenset({"moe"})


def _recipe(name: str, about: str, narrow: str, products: tuple[str, ...] = (), **other: Any) -> Precision:
    """Products of a narrow format among bf16."""
    return Precision(
        name=name,
        about=about,
        plain=FORMATS["bf16"],
        narrow=FORMATS[narrow],
        products=products or (narrow,),
        **other,
    )


def _weights(name: str, about: str, stored: str, **other: Any) -> Precision:
    """Narrow weights that are not trained; products are computed in 16 bits."""
    return Precision(
        name=name, about=about, plain=FORMATS["bf16"], products=("bf16", "fp16"), stored=FORMATS[stored], **other
    )


_TENSOR: dict[str, Any] = {"shares_copy": True, "gathers_weights": True}
_BY_BLOCKS = ("mxfp8", "fp8_block", "fp8")
# 16-bit training: NVIDIA, Train With Mixed Precision (16-bit weights, gradients and activations; a 32-bit copy of the weights).
# Recipes: Transformer Engine, common/recipe/__init__.py and csrc/quantizer.cpp; what is kept narrow and what travels so: Megatron-LM,
# megatron/core/distributed/param_and_grad_buffer.py (0.16.1), and Megatron-Bridge, training/mixed_precision.py, fp8_param_gather (0.3.1).
# torchao 0.18: float8/float8_linear.py (rowwise), which saves its inputs as they are. int8: AQT of MaxText (casts taken as torchao's).
# NVFP4Quantizer reads three times: nvte_hadamard_transform_amax, the cast of rows, nvte_hadamard_transform_cast_fusion_columnwise. On a
# B300 casts of a layer (2.48 billion elements) take 2.69 ms so, with 7.1 bytes each 6.6 TB/s (docs/examples/gemm_profiling.rst: 6.453 ms
# with them and 3.764 without).
# Weights alone: vLLM, model_executor/layers/quantization; bitsandbytes, autograd/_functions.py; NeMo AutoModel,
# components/quantization/nvfp4 (frozen under adapters, multiplied in bf16).
PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision(name="fp32", plain=FORMATS["fp32"], products=("fp32",), master_bytes=0.0, gradient_bytes=4.0),
        Precision(name="tf32", plain=FORMATS["tf32"], products=("tf32",), master_bytes=0.0, gradient_bytes=4.0),
        Precision(name="fp16", plain=FORMATS["fp16"], products=("fp16",)),
        Precision(name="bf16", plain=FORMATS["bf16"], products=("bf16",)),
        _recipe(
            "fp8",
            "training: the recipe that the framework means; serving: one scale per tensor or row",
            "fp8",
            **_TENSOR,
        ),
        _recipe("fp8-delayed", "Transformer Engine DelayedScaling: scales of earlier steps", "fp8", **_TENSOR),
        _recipe("fp8-tensorwise", "Transformer Engine Float8CurrentScaling", "fp8", reads=2, **_TENSOR),
        _recipe("fp8-rowwise", "torchao rowwise (torchtitan)", "fp8", copies=1, in_passes=True),
        _recipe(
            "fp8-rowwise-gw-hp",
            "torchao rowwise_with_gw_hp: gradients of weights in bf16",
            "fp8",
            copies=1,
            in_passes=True,
            plain_weight_gradient=True,
        ),
        _recipe("fp8-blockwise", "Transformer Engine Float8BlockScaling", "fp8_block", _BY_BLOCKS, wide_weights=True),
        _recipe(
            "fp8-deepseek",
            "DeepSeek-V3: fp8-blockwise, and tokens travel to experts in fp8",
            "fp8_block",
            _BY_BLOCKS,
            dispatches=True,
        ),
        _recipe("mxfp8", "Transformer Engine MXFP8BlockScaling: a scale for 32 elements", "mxfp8"),
        _recipe("nvfp4", "Transformer Engine NVFP4BlockScaling", "nvfp4", reads=3, wide_weights=True),
        _recipe("mxfp4", "OCP Microscaling: a scale for 32 elements of 4 bits", "mxfp4", wide_weights=True),
        _recipe(
            "int8", "AQT (training), SmoothQuant (serving): products of int8", "int8", reads=2, copies=1, in_passes=True
        ),
        _weights("w8a16", "weights in int8, products in 16 bits", "int8"),
        _weights("w4a16", "weights in int4, a scale for 128 (AWQ, GPTQ)", "int4"),
        _weights("nvfp4a16", "weights in nvfp4, products in 16 bits (LLM Compressor NVFP4A16)", "nvfp4"),
        _weights("mxfp4a16", "weights in mxfp4, products in 16 bits (LLM Compressor MXFP4A16)", "mxfp4"),
        _weights("w4a16-mxfp4", "experts in mxfp4 (gpt-oss), products in 16 bits", "mxfp4", covers=_MIXTURES),
        _weights("nf4", "weights in 4-bit NormalFloat with double quantization (QLoRA, bitsandbytes)", "nf4"),
        replace(_recipe("w4a8", "weights in int4, products in fp8", "fp8"), stored=FORMATS["int4"]),
    )
}


# 16-bit formats on tensor cores are at least this much quicker than fp32; older devices list fp16 at twice the fp32 rate or below.
_MATRIX_UNITS = 2.5


def default_precision(rates: Mapping[str, float], *, is_transformer: bool) -> str:
    """What a network is trained in where nobody says: mixed bf16, mixed fp16 or fp32.

    Transformers are trained in bf16 wherever it is no slower than fp32, since it halves the activations without a scale of the loss
    (Ampere and later, TPUs), and in fp16 on the tensor cores of Volta and Turing. Other networks leave fp32 only where the rate pays for
    it: many devices for graphics have bf16 at twice the fp32 rate.

    Parameters
    ----------
    rates : mapping
        Format -> FLOP/s of the device.
    is_transformer : bool

    Examples
    --------
    >>> graphics = {"fp32": 35.6e12, "fp16": 71e12, "bf16": 71e12}
    >>> default_precision(graphics, is_transformer=True), default_precision(graphics, is_transformer=False)
    ('bf16', 'fp32')
    >>> default_precision({"fp32": 15.7e12, "fp16": 125e12}, is_transformer=True)  # V100
    'fp16'
    >>> default_precision({"fp32": 10.6e12, "fp16": 21.2e12}, is_transformer=True)  # P100: no matrix units
    'fp32'
    """
    known = rates.get("fp32", 0.0)
    if is_transformer and rates.get("bf16", 0.0) >= max(known, 1.0):
        return "bf16"
    name = next((name for name in ("bf16", "fp16") if name in rates), "fp32")
    return name if rates.get(name, 0.0) > _MATRIX_UNITS * known else "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """State and work per weight; state is 32-bit unless the name says otherwise.

    Attributes
    ----------
    name : str
    state_bytes : float
    flop_per_weight : float
    rule : str
        The optimizer whose steps these are: sgd, momentum or adam.
    """

    name: str
    state_bytes: float
    flop_per_weight: float
    rule: str

    def bytes_moved_per_weight(self, precision: Precision) -> float:
        """Memory traffic of one fused update: read gradient, read and write state and (master) weights, write the weights.

        Besides master weights the gradient is read at their width: 16-bit gradients are added up, or cast, in 32 bits before the update.
        """
        master = precision.master_bytes
        weights = 2 * master + precision.weight_bytes if master else 2 * precision.weight_bytes
        return float(max(precision.gradient_bytes, master) + 2 * self.state_bytes + weights)


# FLOP: sgd w -= lr g (2); momentum adds v = m v + g (2); Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1) about 12. Moments in bf16
# (DeepSeek-V3, arXiv:2412.19437, section 3.3.3; Megatron-LM --exp-avg-dtype), in 8 bits with a scale in fp32 for 256 (Dettmers et al.,
# arXiv:2110.02861; bitsandbytes; torchao, optim/adam.py, block_size), and in 4 bits with one for 128 (torchao, the same).
OPTIMIZERS: dict[str, Optimizer] = {
    o.name: o
    for o in (
        Optimizer(name="sgd", rule="sgd", state_bytes=0.0, flop_per_weight=2.0),
        Optimizer(name="momentum", rule="momentum", state_bytes=4.0, flop_per_weight=4.0),
        Optimizer(name="adam", rule="adam", state_bytes=8.0, flop_per_weight=12.0),
        Optimizer(name="adam-bf16", rule="adam", state_bytes=4.0, flop_per_weight=12.0),
        Optimizer(name="adam-8bit", rule="adam", state_bytes=2.0 * (1.0 + 4.0 / 256.0), flop_per_weight=12.0),
        Optimizer(name="adam-4bit", rule="adam", state_bytes=2.0 * (0.5 + 4.0 / 128.0), flop_per_weight=12.0),
    )
}
