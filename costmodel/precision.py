"""Number formats and optimizers: bytes per weight, gradient, optimizer state and activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["OPTIMIZERS", "PRECISIONS", "Optimizer", "Precision", "default_precision"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """A training precision: what is computed in, and what is kept in which width.

    Sources: NVIDIA, Train With Mixed Precision (16-bit weights, gradients and activations; a 32-bit master copy of the weights);
    NVIDIA, Transformer Engine, Using FP8 (inputs of matrix products are cast to 8 bits; weights, gradients and activations stay 16-bit).
    """

    name: str
    compute: str  # key of Device.peak_flop_per_s
    weight_bytes: int
    gradient_bytes: int
    master_bytes: int  # 32-bit copy of the weights; 0 where the weights are 32-bit already
    activation_bytes: int


PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision(name="fp32", compute="fp32", weight_bytes=4, gradient_bytes=4, master_bytes=0, activation_bytes=4),
        Precision(name="tf32", compute="tf32", weight_bytes=4, gradient_bytes=4, master_bytes=0, activation_bytes=4),
        Precision(name="fp16", compute="fp16", weight_bytes=2, gradient_bytes=2, master_bytes=4, activation_bytes=2),
        Precision(name="bf16", compute="bf16", weight_bytes=2, gradient_bytes=2, master_bytes=4, activation_bytes=2),
        Precision(name="fp8", compute="fp8", weight_bytes=2, gradient_bytes=2, master_bytes=4, activation_bytes=2),
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
