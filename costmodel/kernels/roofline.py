"""The default preset: roofline of compute and memory with size-dependent efficiency and a launch floor.

Repairs the defects of the paper's program: strided gradients do not multiply by the holes they insert, every operation costs
something, one convention of units, the cheapest legal convolution algorithm per pass, an optimizer that costs its memory traffic.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.hardware.device import Device
from costmodel.kernels.compute import PassTimes
from costmodel.kernels.kernel_time import kernel_time_s
from costmodel.network.layers import Kernel, Layer, LayerWork, Shard
from costmodel.network.layers.base import Fusable, PassWork
from costmodel.precision import Optimizer, Precision

__all__ = ["EAGER", "ImageSoftware", "RooflineCompute"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSoftware:
    """How a framework runs networks for images.

    Attributes
    ----------
    fuses : frozenset of Fusable
        Kernels that it leaves out.
    channels_first : bool
        Images lie channel by channel in 16 bits, too, so that matrix units get them transposed.
    """

    fuses: frozenset[Fusable] = frozenset()
    channels_first: bool = False


EAGER = ImageSoftware()


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineCompute:
    """Roofline of one device at one precision."""

    device: Device
    precision: Precision
    optimizer: Optimizer
    alone: bool = False  # kernels are timed by themselves, not in a training step
    software: ImageSoftware = EAGER
    name: str = "roofline"
    overlaps_exchange: bool = True
    counts_norm: bool = True

    def pass_times(self, layer: Layer, shard: Shard, *, needs_input_gradient: bool) -> PassTimes:
        """Time the three passes; see `costmodel.kernels.compute.ComputeModel.pass_times`."""
        return self.work_times(layer, layer.family.work(layer, shard), shard, needs_input_gradient=needs_input_gradient)

    def work_times(self, layer: Layer, work: LayerWork, shard: Shard, *, needs_input_gradient: bool) -> PassTimes:
        """The same where the work of the share is at hand."""
        zero = np.zeros_like(shard.batch)
        sustained = self._is_sustained(layer)
        into = self._pass_s(work.backward_input, zero, sustained=sustained) if needs_input_gradient else zero
        return PassTimes(
            forward_s=self._pass_s(work.forward, zero, sustained=sustained),
            backward_input_s=into,
            backward_weight_s=self._pass_s(work.backward_weight, zero, sustained=sustained),
        )

    def _is_sustained(self, layer: Layer) -> bool:
        """Whether a layer runs at the rates of a long training step: layers of sequences, not those of images.

        The two fractions stand for power limits under dense products and for casts around element-wise kernels; training steps of
        convolutional networks (NVIDIA DeepLearningExamples, ResNet-50 on V100 and A100) show neither.
        """
        return not self.alone and len(layer.output_shape) == 2

    def _keeps_channels_apart(self) -> bool:
        """Whether images lie channel by channel before matrix units: frameworks keep those of 32 bits so, and benchmarks of kernels all."""
        product, all_do = self.precision.compute, self.alone or self.software.channels_first
        return product == "tf32" or (all_do and self.device.has_matrix_units(product))

    def cost_key(self, layer: Layer) -> Hashable:  # noqa: ARG002 - shapes decide alone
        """Nothing beyond kind, parameters and shapes."""
        return ()

    def algorithms(self, layer: Layer, shard: Shard) -> tuple[str, str, str]:
        """Algorithm chosen in each pass for the first share (for explanations)."""
        work = layer.family.work(layer, shard)
        names = []
        for alternatives in (work.forward, work.backward_input, work.backward_weight):
            sustained = self._is_sustained(layer)
            times = [
                float(np.sum([np.ravel(self._kernel_s(k, sustained=sustained))[0] for k in a])) for a in alternatives
            ]
            best = alternatives[int(np.argmin(times))] if times else ()
            names.append(next((k.algorithm for k in best if k.gemm is not None), ""))
        return (names[0], names[1], names[2])

    def update_s(self, weight_elements: FloatArray) -> FloatArray:
        """Optimizer step: reads and writes weights, gradients and state once, in one fused kernel."""
        moved = weight_elements * self.optimizer.bytes_moved_per_weight(self.precision)
        time = kernel_time_s(
            self.device, "fp32", flop=weight_elements * self.optimizer.flop_per_weight, memory_bytes=moved
        )
        return np.where(weight_elements > 0, time, 0.0)

    def sum_s(self, layer: Layer, elements: FloatArray) -> FloatArray:
        """One element-wise kernel; software whose layers add to what is there leaves it out."""
        kernel = Kernel(flop=0.0 * elements, elements=elements, fusable="gradient sum")
        return self._pass_s(((kernel,),), 0.0 * elements, sustained=self._is_sustained(layer))

    def is_free(self, layer: Layer) -> bool:
        """Only views are free."""
        return layer.family.is_view

    def _pass_s(self, alternatives: PassWork, zero: FloatArray, *, sustained: bool) -> FloatArray:
        """Cheapest alternative, element by element."""
        best: FloatArray | None = None
        for kernels in alternatives:
            total = zero
            for kernel in kernels:
                if kernel.fusable not in self.software.fuses:
                    total = total + self._kernel_s(kernel, sustained=sustained)
            best = total if best is None else np.minimum(best, total)
        return zero if best is None else best

    def _kernel_s(self, kernel: Kernel, *, sustained: bool) -> FloatArray:
        time = kernel_time_s(
            self.device,
            self.precision.compute,
            flop=kernel.flop,
            memory_bytes=kernel.elements * self.precision.activation_bytes,
            gemm=kernel.gemm,
            algorithm=kernel.algorithm,
            tiling=kernel.tiling,
            launches=kernel.launches,
            sustained=sustained,
            aligned=kernel.aligned,
            window=kernel.window,
        )
        if kernel.images and self._keeps_channels_apart():
            # Matrix units read all channels of a position: what the kernel reads and writes is transposed first (cuDNN Developer Guide,
            # tensor layouts; NVIDIA, Convolutional Layers User's Guide).
            moved = 2.0 * kernel.elements * self.precision.activation_bytes
            time = time + kernel_time_s(self.device, self.precision.compute, flop=0.0, memory_bytes=moved)
        return time
