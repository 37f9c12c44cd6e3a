"""The preset `paleo`: times of one device as PALEO's first release computes them.

To add a kind of layer, decorate a function that says what PALEO charges for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.hardware.device import Device
from costmodel.kernels.roofline import ComputeModel, CostModelError, PassTimes
from costmodel.network.layers import Layer, Shard
from costmodel.network.layers.base import share_of_output
from costmodel.network.layers.pooling import pair
from costmodel.paleo.convolution import (
    ALGORITHMS,
    FLOAT_BYTES,
    Call,
    Calls,
    Parts,
    Rates,
    algorithm_calls,
    convolution_axes,
    convolution_passes,
    deconvolution_axes,
    deconvolution_passes,
    equivalent_axis,
    gemm_calls,
)

# Algorithm of each pass: forward, gradient of the input, gradient of the weights.
Algorithms = tuple[str, str, str]

# PALEO builds these layers and charges nothing: input, concatenation, reshaping, element-wise sums, softmax, sigmoid, upsampling,
# and every "generic" layer (activations and normalisations). Attached biases, normalisations and activations are free too.
FREE_KINDS: frozenset[str] = frozenset(
    {
        "activation",
        "add",
        "batch_norm",
        "concat",
        "flatten",
        "input",
        "local_response_norm",
        "softmax",
        "upsample",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCalls:
    """Elementary calls of the three passes."""

    forward: Calls
    backward_input: Calls
    backward_weight: Calls = Calls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """PALEO's formula for one kind of layer.

    Attributes
    ----------
    calls : function of layer, share and algorithms
    refusal : function of a layer, optional
        Why PALEO cannot evaluate it; empty where it can. None: it can evaluate all.
    is_convolution : bool
        Of convolutions alone an algorithm can be chosen per pass, and the gradient of the network's input is left out.
    """

    calls: Callable[[Layer, Shard, Algorithms], LayerCalls]
    refusal: Callable[[Layer], str] | None = None
    is_convolution: bool = False


KINDS: dict[str, Kind] = {}


def _kind(
    name: str, *, refusal: Callable[[Layer], str] | None = None, is_convolution: bool = False
) -> Callable[[Callable[[Layer, Shard, Algorithms], LayerCalls]], Callable[[Layer, Shard, Algorithms], LayerCalls]]:
    def add(calls: Callable[[Layer, Shard, Algorithms], LayerCalls]) -> Any:
        assert name not in KINDS, f"PALEO formula for {name!r} registered twice"
        KINDS[name] = Kind(calls=calls, refusal=refusal, is_convolution=is_convolution)
        return calls

    return add


def _calls(flop: FloatArray, *elements: FloatArray) -> Calls:
    return Calls(flop=(Call(flop),), moved_bytes=tuple(Call(FLOAT_BYTES * count) for count in elements))


def _convolution_refusal(layer: Layer) -> str:
    if layer.params.groups > 1:
        return f"PALEO knows no grouped convolutions (groups: {layer.params.groups})"
    for axis, what in zip(convolution_axes(layer), ("rows", "columns"), strict=True):
        filter_extent = axis.filter_extent(axis.pad)
        if axis.gradient_extent != axis.extent:
            wrong = f"the gradient of {axis.extent} {what} comes out as {axis.gradient_extent}"
        elif filter_extent != axis.kernel:
            wrong = f"the gradient of a kernel of {axis.kernel} {what} comes out as {filter_extent}"
        else:
            continue
        return f"PALEO stops at this shape: {wrong} (kernel {axis.kernel}, stride {axis.stride}, pad {axis.pad})"
    return ""


@_kind("convolution", refusal=_convolution_refusal, is_convolution=True)
def _convolution(layer: Layer, shard: Shard, algorithms: Algorithms) -> LayerCalls:
    """Forward and both gradients, each by its algorithm."""
    passes = convolution_passes(layer, shard)
    forward, to_input, to_weight = (algorithm_calls(a, plain) for a, plain in zip(algorithms, passes, strict=True))
    return LayerCalls(forward=forward, backward_input=to_input, backward_weight=to_weight)


def _deconvolution_refusal(layer: Layer) -> str:
    axes = deconvolution_axes(layer)
    for axis in axes:
        back = equivalent_axis(axis)
        if axis.gradient_extent != axis.extent or back.filter_extent(back.gradient_pad) != axis.kernel:
            return (
                "PALEO stops at this shape: the reversed convolution does not give it back "
                f"(kernel {axis.kernel}, stride {axis.stride}, pad {axis.pad})"
            )
    return ""


@_kind("deconvolution", refusal=_deconvolution_refusal)
def _deconvolution(layer: Layer, shard: Shard, _: Algorithms) -> LayerCalls:
    """Last release (the first has none): padding is read, and moving the dilated input costs FLOP."""
    forward, to_input, to_weight = (gemm_calls(p, padded_read=True) for p in deconvolution_passes(layer, shard))
    return LayerCalls(forward=forward, backward_input=to_input, backward_weight=to_weight)


def _pool_refusal(layer: Layer) -> str:
    p = layer.params
    for i, extent in enumerate(layer.input_shapes[0][1:]):
        kernel, stride = pair(p.kernel)[i], pair(p.stride)[i]
        same, valid = math.ceil(extent / stride), math.ceil((extent - kernel + 1) / stride)
        output = layer.output_shape[i + 1]
        if output not in (same, valid):
            return f"PALEO pools {extent} to {same} ('same') or {valid} ('valid'), not to {output}"
    return ""


def _input_elements(layer: Layer, shard: Shard, kernel_rows: int, stride_rows: int) -> FloatArray:
    """Elements of the input that a share of a pooling layer reads, halo included."""
    _, height, width = layer.input_shapes[0]
    needed = np.minimum((shard.height - 1.0) * stride_rows + kernel_rows, float(height))
    rows = np.where(shard.split_height == 1.0, float(height), needed)
    return shard.batch * rows * width * shard.in_channels


@_kind("pool", refusal=_pool_refusal)
def _pool(layer: Layer, shard: Shard, _: Algorithms) -> LayerCalls:
    """``2 kh kw |outputs|`` FLOP, inputs and outputs moved; the same backward."""
    kernel = pair(layer.params.kernel)
    outputs = share_of_output(layer, shard)
    inputs = _input_elements(layer, shard, kernel[0], pair(layer.params.stride)[0])
    calls = _calls(2.0 * kernel[0] * kernel[1] * outputs, inputs, outputs)
    return LayerCalls(forward=calls, backward_input=calls)


@_kind("global_pool")
def _global_pool(layer: Layer, shard: Shard, _: Algorithms) -> LayerCalls:
    """A pool whose kernel is the image: that is how PALEO's networks write it."""
    height, width = layer.input_shapes[0][1:]
    outputs = share_of_output(layer, shard)
    inputs = shard.batch * height * width * shard.in_channels
    calls = _calls(2.0 * height * width * outputs, inputs, outputs)
    return LayerCalls(forward=calls, backward_input=calls)


@_kind("dropout")
def _dropout(layer: Layer, shard: Shard, _: Algorithms) -> LayerCalls:
    """One FLOP per element, read and written; the same backward."""
    elements = share_of_output(layer, shard)
    calls = _calls(elements, elements, elements)
    return LayerCalls(forward=calls, backward_input=calls)


def _linear_refusal(layer: Layer) -> str:
    return "PALEO's inner product takes one vector per sample, not a sequence" if len(layer.output_shape) > 1 else ""


@_kind("linear", refusal=_linear_refusal)
def _linear(_layer: Layer, shard: Shard, _: Algorithms) -> LayerCalls:
    """``2 N I O`` FLOP; X, W and Y moved, in every pass. Last release (the first has none); the input gradient is always charged."""
    n, i, o = shard.batch, shard.in_channels, shard.out_channels
    calls = _calls(2.0 * n * i * o, n * i, i * o, n * o)
    return LayerCalls(forward=calls, backward_input=calls, backward_weight=calls)


def update_calls(weight_elements: FloatArray) -> Calls:
    """Update of the weights: ``2 W`` FLOP; weights, gradients and new weights moved. PALEO never applies ppp to it.

    >>> [float(c.amount) for c in update_calls(np.asarray(10.0)).moved_bytes]
    [40.0, 40.0, 40.0]
    """
    return _calls(2.0 * weight_elements, weight_elements, weight_elements, weight_elements)


_GEMM: Algorithms = ("gemm", "gemm", "gemm")
# A pass that is not computed may be written so in a file of algorithms.
_SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassParts:
    """Arithmetic and memory time of the three passes."""

    forward: Parts
    backward_input: Parts
    backward_weight: Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class PaleoCompute:
    """PALEO's cost model of one device.

    Attributes
    ----------
    device : Device
        Its fp32 peak, memory bandwidth and clock are used.
    ppp_comp : float
        Platform percent of peak of computation; scales memory time too, as in PALEO.
    use_pipeline : bool
        Arithmetic and memory of a pass overlap; the two gradients count as one pass.
    algorithms : mapping of str to three names, optional
        Convolution -> algorithm (one of `ALGORITHMS`) of the forward pass, the gradient of the input and that of the weights; all
        others are matrix products.
    extensions : ComputeModel, optional
        Costs what PALEO cannot evaluate; without it such layers are errors.
    input_names : set of str, optional
        Layers whose readers, if convolutions, compute no gradient of their input. PALEO knows the literal name "data". Unless
        given: "data", and wherever no gradient is needed. The two differ only for convolutions after layers
        without weights.

    Raises
    ------
    CostModelError
        An efficiency outside (0, 1], an unknown algorithm.

    Examples
    --------
    >>> device = Device(
    ...     name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e12, clock_hz=1e9
    ... )
    >>> update_s = PaleoCompute(device=device).update_s(np.asarray(2.0**28))  # 2^29 FLOP, then three times 2^30 bytes
    >>> round(float(update_s), 12)
    0.003536870912
    """

    device: Device
    ppp_comp: float = 1.0
    use_pipeline: bool = False
    algorithms: Mapping[str, Algorithms] | None = None
    extensions: ComputeModel | None = None
    input_names: frozenset[str] | None = None
    name: str = "paleo"
    overlaps_exchange: bool = False
    counts_norm: bool = False

    def __post_init__(self) -> None:
        """Check what cannot be checked layer by layer."""
        if not (math.isfinite(self.ppp_comp) and 0.0 < self.ppp_comp <= 1.0):
            raise CostModelError(f"ppp_comp is {self.ppp_comp}, expected above 0 and at most 1")
        for layer, names in (self.algorithms or {}).items():
            unknown = [name for name in names if name not in (*ALGORITHMS, _SKIP)]
            if len(names) != 3:
                raise CostModelError(f"{layer}: expected three algorithms (forward, backward input, backward weight)")
            if unknown:
                raise CostModelError(f"{layer}: unknown algorithm '{unknown[0]}' (known: {', '.join(ALGORITHMS)})")

    @property
    def rates(self) -> Rates:
        """Rates of layers."""
        return Rates.of(self.device, self.ppp_comp)

    def refusal(self, layer: Layer) -> str:
        """Why PALEO cannot evaluate a layer; empty where it can."""
        if layer.is_frozen and layer.weight_count:
            return "PALEO trains every layer, this one is frozen"
        if layer.kind in FREE_KINDS:
            return ""
        if layer.kind not in KINDS:
            return f"PALEO has no formula for layers of type '{layer.kind}'"
        refusal = KINDS[layer.kind].refusal
        return "" if refusal is None else refusal(layer)

    def is_free(self, layer: Layer) -> bool:
        """Whether PALEO counts the layer as costing nothing."""
        return layer.kind in FREE_KINDS

    def is_extension(self, layer: Layer) -> bool:
        """Whether the layer is costed by `extensions`."""
        return self.extensions is not None and bool(self.refusal(layer))

    def cost_key(self, layer: Layer) -> Hashable:
        """Names that decide: the chosen algorithms, and whether the layer reads the network's input."""
        chosen = (self.algorithms or {}).get(layer.name)
        other = self.extensions.cost_key(layer) if self.extensions is not None else None
        return (None if chosen is None else tuple(chosen), self._reads_input(layer), other)

    def pass_times(self, layer: Layer, shard: Shard, *, needs_input_gradient: bool) -> PassTimes:
        """Time the three passes; see `costmodel.kernels.roofline.ComputeModel.pass_times`."""
        if self.extensions is not None and self.is_extension(layer):
            return self.extensions.pass_times(layer, shard, needs_input_gradient=needs_input_gradient)
        parts = self.pass_parts(layer, shard, needs_input_gradient=needs_input_gradient)
        if self.use_pipeline:
            backward = parts.backward_input + parts.backward_weight
            return PassTimes(
                forward_s=parts.forward.overlapped_s,
                backward_input_s=np.zeros_like(shard.batch),
                backward_weight_s=backward.overlapped_s,
            )
        return PassTimes(
            forward_s=parts.forward.total_s,
            backward_input_s=parts.backward_input.total_s,
            backward_weight_s=parts.backward_weight.total_s,
        )

    def sum_s(self, layer: Layer, elements: FloatArray) -> FloatArray:  # noqa: ARG002 - the program has no such term
        """The program takes gradients of several readers for free."""
        return np.zeros_like(elements)

    def pass_flop(self, layer: Layer, shard: Shard) -> tuple[FloatArray, FloatArray, FloatArray]:
        """FLOP that PALEO counts in the three passes, all computed; zero for layers it does not evaluate."""
        zero = np.zeros_like(shard.batch)
        if self.is_free(layer) or self.refusal(layer):
            return (zero, zero, zero)
        calls = KINDS[layer.kind].calls(layer, shard, self._algorithms(layer, skipped=True))
        passes = (calls.forward, calls.backward_input, calls.backward_weight)
        return (zero + passes[0].total_flop, zero + passes[1].total_flop, zero + passes[2].total_flop)

    def pass_parts(self, layer: Layer, shard: Shard, *, needs_input_gradient: bool) -> PassParts:
        """Arithmetic and memory time of the three passes.

        Parameters
        ----------
        layer : Layer
        shard : Shard
        needs_input_gradient : bool
            Convolutions alone heed it, and only where `input_names` is not given.

        Returns
        -------
        PassParts

        Raises
        ------
        CostModelError
            PALEO cannot evaluate the layer.
        """
        zero = np.zeros_like(shard.batch)
        nothing = Parts(compute_s=zero, memory_s=zero)
        if self.is_free(layer):
            return PassParts(forward=nothing, backward_input=nothing, backward_weight=nothing)
        refusal = self.refusal(layer)
        if refusal:
            raise CostModelError(f"{layer.name}: {refusal}")
        kind = KINDS[layer.kind]
        skipped = kind.is_convolution and self._skips(layer, needs_input_gradient)
        calls = kind.calls(layer, shard, self._algorithms(layer, skipped=skipped))
        rates = self.rates
        return PassParts(
            forward=calls.forward.parts(rates, zero),
            backward_input=nothing if skipped else calls.backward_input.parts(rates, zero),
            backward_weight=calls.backward_weight.parts(rates, zero),
        )

    def update_s(self, weight_elements: FloatArray) -> FloatArray:
        """Time to apply the gradients of some of the weights.

        PALEO updates all weights in one call, so that its floor of one clock period is no matter; without it the times of layers add
        up to PALEO's. No weights, no time.
        """
        parts = self._update(weight_elements, floor_s=0.0)
        return parts.overlapped_s if self.use_pipeline else parts.total_s

    def update_parts(self, weight_elements: FloatArray) -> Parts:
        """Arithmetic and memory time of the update of all weights, as PALEO has it: three clock periods even for none."""
        return self._update(weight_elements, floor_s=self.rates.floor_s)

    def _update(self, weight_elements: FloatArray, *, floor_s: float) -> Parts:
        weights = np.asarray(weight_elements, dtype=np.float64)
        rates = replace(Rates.of(self.device, 1.0), floor_s=floor_s)
        return update_calls(weights).parts(rates, np.zeros_like(weights))

    def _reads_input(self, layer: Layer) -> bool:
        names = frozenset({"data"}) if self.input_names is None else self.input_names
        return not names.isdisjoint(layer.inputs)

    def _skips(self, layer: Layer, needs_input_gradient: bool) -> bool:
        return self._reads_input(layer) or (self.input_names is None and not needs_input_gradient)

    def _algorithms(self, layer: Layer, *, skipped: bool) -> Algorithms:
        chosen = (self.algorithms or {}).get(layer.name)
        if chosen is None:
            return _GEMM
        if not KINDS[layer.kind].is_convolution:
            raise CostModelError(f"{layer.name}: an algorithm can be chosen for convolutions only")
        if layer.params.kernel in (1, (1, 1)) and set(chosen) & {"fft", "fft_tiling"}:
            raise CostModelError(f"{layer.name}: PALEO computes 1x1 convolutions as matrix products only")
        if chosen[0] == _SKIP or chosen[2] == _SKIP or (chosen[1] == _SKIP and not skipped):
            raise CostModelError(f"{layer.name}: only the gradient of the network's input can be skipped")
        return (chosen[0], "gemm" if chosen[1] == _SKIP else chosen[1], chosen[2])
