"""PALEO's elementary times: one arithmetic call, one pass of a tensor through memory, one fetch from another device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware.device import Device

__all__ = ["FLOAT_BYTES", "Call", "Calls", "Parts", "Rates"]

# Every number is a 32-bit float in PALEO.
FLOAT_BYTES = 4

# Bytes are counted in GiB but bandwidths in decimal GB/s, so that memory looks 7.4 % faster than it is.
_GIB_PER_GB = 2.0**30 / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What the elementary times of one device depend on.

    Attributes
    ----------
    flop_per_s : float
        Peak rate.
    bandwidth_bytes_per_s : float
        Nominal memory (or link) bandwidth.
    floor_s : float
        One clock period: the least time of a call.
    ppp : float
        Platform percent of peak, on arithmetic and memory alike.

    Examples
    --------
    >>> rates = Rates(flop_per_s=1e12, bandwidth_bytes_per_s=1e9, floor_s=1e-9, ppp=0.5)
    >>> float(rates.compute_s(1e12)), float(rates.memory_s(2**30)), float(rates.memory_s(0)), float(rates.compute_s(0))
    (2.0, 2.0, 1e-09, 0.0)
    """

    flop_per_s: float
    bandwidth_bytes_per_s: float
    floor_s: float
    ppp: float = 1.0

    @classmethod
    def of(cls, device: Device, ppp: float, *, bandwidth_bytes_per_s: float | None = None) -> Rates:
        """Rates of a device in 32-bit arithmetic; another bandwidth stands for the link of a fetch."""
        return cls(
            flop_per_s=device.peak("fp32"),
            bandwidth_bytes_per_s=bandwidth_bytes_per_s or device.memory_bandwidth_bytes_per_s,
            floor_s=1.0 / device.clock_hz if device.clock_hz > 0 else 0.0,
            ppp=ppp,
        )

    def compute_s(self, flop: ArrayLike) -> FloatArray:
        """``max(floor, FLOP / (peak ppp))``, 0 for no work."""
        work = np.asarray(flop, dtype=np.float64)
        return np.where(work == 0, 0.0, np.maximum(self.floor_s, work / (self.flop_per_s * self.ppp)))

    def memory_s(self, moved_bytes: ArrayLike) -> FloatArray:
        """``max(floor, bytes / 2^30 / (GB/s ppp))``: the floor applies even to nothing."""
        moved = np.asarray(moved_bytes, dtype=np.float64)
        return np.maximum(self.floor_s, moved / (self.bandwidth_bytes_per_s * _GIB_PER_GB * self.ppp))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Arithmetic and memory time of a pass, in seconds."""

    compute_s: FloatArray
    memory_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """PALEO's time of a pass: reading, computing and writing one after the other."""
        return self.compute_s + self.memory_s

    @property
    def overlapped_s(self) -> FloatArray:
        """PALEO's ``use_pipeline``: the longer of the two."""
        return np.maximum(self.compute_s, self.memory_s)

    def __add__(self, other: Parts) -> Parts:
        return Parts(compute_s=self.compute_s + other.compute_s, memory_s=self.memory_s + other.memory_s)


@dataclass(frozen=True, slots=True)
class Call:
    """One elementary call: FLOP or bytes, and how often it is made."""

    amount: FloatArray
    times: FloatArray | float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """The elementary calls of one pass of a layer: FLOP of each arithmetic call, bytes of each tensor moved."""

    flop: tuple[Call, ...] = ()
    moved_bytes: tuple[Call, ...] = ()

    def parts(self, rates: Rates, like: FloatArray) -> Parts:
        """Add the times up; ``like`` has the shape of the result."""
        compute_s, memory_s = np.zeros_like(like), np.zeros_like(like)
        for call in self.flop:
            compute_s = compute_s + call.times * rates.compute_s(call.amount)
        for call in self.moved_bytes:
            memory_s = memory_s + call.times * rates.memory_s(call.amount)
        return Parts(compute_s=compute_s, memory_s=memory_s)

    @property
    def total_flop(self) -> FloatArray:
        """FLOP of all calls."""
        return np.asarray(sum((call.amount * call.times for call in self.flop), np.asarray(0.0)))
