"""What the cost model of plans with a split per layer takes for granted of the software that runs them, by name.

The neutral values are those of a well-tuned implementation, which adds nothing to the work of the layers: a framework
(`costmodel.software.framework`) or ``--assume`` changes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import get_args

from costmodel.fields import assumption
from costmodel.hardware.device import Device
from costmodel.kernels.roofline import ImageSoftware
from costmodel.network.layers.base import Fusable

__all__ = ["AS_RUN", "DEVICE_SPREAD", "WELL_TUNED", "LayerAssumptions"]

# Standard deviation of the time that equal work takes on devices of one kind. Sinha et al., Not All GPUs Are Created Equal (SC22,
# arXiv:2208.11035, abstract): 8 % on average between the whiskers of a cluster's devices, which are 5.4 standard deviations apart.
DEVICE_SPREAD = 0.08 / 5.4
_NEVER = 1e-6  # a rate at which no algorithm is chosen


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerAssumptions:
    """Costs of the software around the layers; 0 adds nothing."""

    device_spread: float = assumption(
        0.0,
        "standard deviation of the time of equal work on devices of one kind, over the mean: workers wait for the slowest of them",
        "0 unless a framework is named: then 0.08 / 5.4 (Sinha et al., arXiv:2208.11035, abstract)",
    )
    update_call_s: float = assumption(
        0.0,
        "time of the host to start the update of one weight tensor, for which the device waits",
        "none unless a framework says otherwise: multi-tensor optimizers start a few kernels for all tensors together",
    )
    channels_first: float = assumption(
        0.0,
        "1: images lie channel by channel in 16 bits, too, so that matrix units get them transposed; 0: they do so in tf32 only",
        "cuDNN Developer Guide, tensor layouts",
    )
    fast_convolutions: float = assumption(
        1.0,
        "1: convolutions by Winograd's method and by FFT are tried, too; 0: only products of matrices",
        "cuDNN since its version 3",
    )
    fused_activation: float = assumption(
        0.0, "1: the kernel before it computes an activation", "none unless a framework says otherwise"
    )
    fused_bias: float = assumption(0.0, "1: products add their bias", "none unless a framework says otherwise")
    fused_concatenation: float = assumption(
        0.0, "1: branches write into what they are joined to", "none unless a framework says otherwise"
    )
    fused_gradient_sum: float = assumption(
        0.0, "1: readers of an output add to its gradient", "none unless a framework says otherwise"
    )
    fused_normalised_gradient: float = assumption(
        0.0,
        "1: the gradient of a normalisation computes that of the activation behind it",
        "none unless a framework says otherwise",
    )
    parameter_servers: float = assumption(
        0.0,
        "1: weights live on a server on every node and travel there and back in 32 bits in each step, beyond one node; 0: all-reduce",
        "Li et al., Scaling distributed machine learning with the parameter server, OSDI 2014",
    )
    real_input: float = assumption(
        0.0,
        "1: samples are copied from the host in every step; 0: they are on the device",
        "assumption: input is prefetched",
    )
    input_value_bytes: float = assumption(
        4.0, "bytes per value of a sample that is copied", "frameworks hand images over in fp32"
    )
    storage_bytes_per_s: float = assumption(
        0.0, "rate at which a node reads stored samples; 0: it is never waited for", "assumption: storage keeps up"
    )
    stored_sample_bytes: float = assumption(
        0.0, "bytes of a sample as it is stored; 0: storage is never waited for", "assumption: storage keeps up"
    )

    def changed(self, values: Mapping[str, float]) -> LayerAssumptions:
        """The same with other values of some of them."""
        return replace(self, **values) if values else self

    def image_software(self) -> ImageSoftware:
        """Which kernels are left out, and how images lie in memory.

        >>> sorted(LayerAssumptions(fused_activation=1.0, fused_gradient_sum=1.0).image_software().fuses)
        ['activation', 'gradient sum']
        """
        fuses = frozenset(
            name for name in get_args(Fusable) if name and getattr(self, f"fused_{name.replace(' ', '_')}")
        )
        return ImageSoftware(fuses=fuses, channels_first=bool(self.channels_first))

    def device_as_used(self, device: Device) -> Device:
        """The device without the convolution algorithms that the software does not have."""
        if self.fast_convolutions:
            return device
        return replace(device, efficiency=replace(device.efficiency, winograd_fraction=_NEVER, fft_fraction=_NEVER))


WELL_TUNED = LayerAssumptions()
# Real jobs, whatever their framework: their devices differ.
AS_RUN = LayerAssumptions(device_spread=DEVICE_SPREAD)
