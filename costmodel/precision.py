"""Number formats, which tensor of a run has which of them, and optimizers.

A `Format` says bits and scales; a `Precision` says what has which format. Every width of the cost model is read from one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from costmodel.network.layers import Layer

__all__ = ["FORMATS", "OPTIMIZERS", "PRECISIONS", "Format", "Optimizer", "Precision", "default_precision"]


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


FORMATS: dict[str, Format] = {
    f.name: f
    for f in (
        Format(name="fp32", bits=32),
        Format(name="tf32", bits=32),
        Format(name="fp16", bits=16),
        Format(name="bf16", bits=16),
        Format(name="fp8", bits=8),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Which tensor of a run has which number format.

    Attributes
    ----------
    name : str
    plain : Format
        Of all that is not narrow: activations between layers, embedding, head, norms and attention.
    narrow : Format or None
        Of what enters the products of the blocks; None: they are computed in the plain format.
    products : tuple of str
        Rates of the device that products run at, the first that it has; the fields of `Device.peak_flop_per_s`.
    covers : frozenset of str
        Kinds of layers whose products are narrow, of those in repeated blocks.
    master_bytes : float
        Of a 32-bit copy of a trained weight; 0 where the weights are 32-bit already.
    gradient_bytes : float
        Of a gradient as it is computed.
    """

    name: str
    plain: Format
    products: tuple[str, ...]
    narrow: Format | None = None
    covers: frozenset[str] = frozenset({"linear", "moe"})
    master_bytes: float = 4.0
    gradient_bytes: float = 2.0

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
        """Bytes of a weight that is computed with."""
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
    def cast_bytes(self) -> float:
        """Bytes that the cast of an element moves: it is read, and written as it is and transposed, for the gradient of the weights.

        fp8 tensor cores multiply rows by rows only (NVIDIA Transformer Engine, cast_transpose).

        >>> PRECISIONS["fp8"].cast_bytes, PRECISIONS["bf16"].cast_bytes
        (4.0, 0.0)
        """
        return 0.0 if self.narrow is None else self.plain.bytes + 2.0 * self.narrow.bytes

    def narrows(self, layer: Layer) -> bool:
        """Whether the products of a layer are narrow."""
        return self.narrow is not None and layer.kind in self.covers and bool(layer.block)

    def stored_bytes(self, layer: Layer) -> float:
        """Bytes of a weight of a layer that is served."""
        return self.operand.weight_bytes if self.narrows(layer) else self.plain.bytes

    @property
    def unquantised(self) -> Precision:
        """That of layers that are not narrow."""
        return replace(self, narrow=None, products=(self.plain.name,))

    def on(self, formats: Collection[str]) -> Precision:
        """The same on a device with rates for some formats, of which fp32 is one.

        Where it has none for these products, it computes in the next wider format that it has.

        >>> PRECISIONS["fp16"].on({"fp32"}).compute, PRECISIONS["fp8"].on({"fp32", "bf16"}).casts
        ('fp32', False)
        """
        found = next((name for name in self.products if name in formats), "")
        if found:
            return self if found == self.compute else replace(self, products=(found,))
        wider = ("fp8", self.plain.name) if self.narrow is not None and self.narrow.bits < 8 else (self.plain.name,)
        found = next(name for name in (*wider, *_WIDER.get(self.plain.name, ()), "fp32") if name in formats)
        return replace(self, products=(found,), narrow=FORMATS["fp8"] if found == "fp8" else None)


# Formats of products that stand in for one that a device does not have, the best first.
_WIDER = {"bf16": ("fp16",), "fp16": ("bf16",)}
_FP32, _TF32, _FP16, _BF16, _FP8 = (FORMATS[name] for name in ("fp32", "tf32", "fp16", "bf16", "fp8"))

# NVIDIA, Train With Mixed Precision (16-bit weights, gradients and activations; a 32-bit master copy of the weights); NVIDIA, Transformer
# Engine, Using FP8 (inputs of matrix products are cast to 8 bits; weights, gradients and activations stay 16-bit); vLLM documentation,
# quantization, FP8 W8A8 (linear layers of the blocks in fp8, the head is left out), as compressed checkpoints do (DeepSeek-V3).
PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision(name="fp32", plain=_FP32, products=("fp32",), master_bytes=0.0, gradient_bytes=4.0),
        Precision(name="tf32", plain=_TF32, products=("tf32",), master_bytes=0.0, gradient_bytes=4.0),
        Precision(name="fp16", plain=_FP16, products=("fp16",)),
        Precision(name="bf16", plain=_BF16, products=("bf16",)),
        Precision(name="fp8", plain=_BF16, products=("fp8",), narrow=_FP8),
        Precision(name="fp4", plain=_BF16, products=("fp4",), narrow=replace(_FP8, name="fp4")),
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
    """State and work per weight; state is 32-bit."""

    name: str
    state_bytes: int
    flop_per_weight: float

    def bytes_moved_per_weight(self, precision: Precision) -> float:
        """Memory traffic of one fused update: read gradient, read and write state and (master) weights, write the weights.

        Besides master weights the gradient is read at their width: 16-bit gradients are added up, or cast, in 32 bits before the update.
        """
        master = precision.master_bytes
        weights = 2 * master + precision.weight_bytes if master else 2 * precision.weight_bytes
        return float(max(precision.gradient_bytes, master) + 2 * self.state_bytes + weights)


# FLOP: sgd w -= lr g (2); momentum adds v = m v + g (2); Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1) about 12.
OPTIMIZERS: dict[str, Optimizer] = {
    o.name: o
    for o in (
        Optimizer(name="sgd", state_bytes=0, flop_per_weight=2.0),
        Optimizer(name="momentum", state_bytes=4, flop_per_weight=4.0),
        Optimizer(name="adam", state_bytes=8, flop_per_weight=12.0),
    )
}
