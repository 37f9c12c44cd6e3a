"""A device: its peak rates, memory and overheads, and how close to the peaks kernels come."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Self

from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY, Efficiency
from costmodel.tolerances import ROUNDING

# Number formats a peak may be stated for, from wide to narrow.
FORMATS: tuple[str, ...] = (
    "fp32",
    "tf32",
    "fp16",
    "bf16",
    "fp8",
    "fp8_block",
    "mxfp8",
    "int8",
    "nvfp4",
    "mxfp4",
)

# Least time of a kernel: an empty one takes about 3 us on recent systems (NVIDIA developer forum, "Too much time for kernel launch
# latency", thread 233645); with 5 us the smallest GEMMs of DeepBench on P100 are met best.
DEFAULT_LAUNCH_OVERHEAD_S = 5e-6

# Lanes (fp32 multiply-adds per clock) of a multiprocessor that the multiples of `Efficiency` are stated for.
USUAL_LANES = 128.0
# 0.97 is the highest share of a peak in the MAMF table of ml-engineering (S. Bekman): few lanes reach no more, either.
_BEST_FRACTION = 0.97
# Matrix cores are at least twice as fast as lanes; a little less for how datasheets round.
_FASTER = 1.8
# An RTX 5090 reaches 236 of 209.5 TFLOP/s in bf16 (zzc0721/torch-performance-test-data, database.md).
_MOST_OVER_PEAK = 1.15
# Formats whose share of the peak stands for that of another on the same units, best first: as many bits, then more, then fewer.
_ALIKE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "fp32": ("tf32", "bf16", "fp16"),
        "tf32": ("bf16", "fp16"),
        "fp16": ("bf16", "tf32"),
        "bf16": ("fp16", "tf32"),
        "fp8": ("bf16", "fp16"),
        "fp8_block": ("fp8", "bf16", "fp16"),
        "mxfp8": ("fp8", "bf16", "fp16"),
        "int8": ("fp8", "bf16", "fp16"),
        "nvfp4": ("mxfp4", "fp8", "bf16", "fp16"),
        "mxfp4": ("nvfp4", "fp8", "bf16", "fp16"),
    }
)


class DeviceError(ValueError):
    """A device cannot do what is asked of it, or its description contradicts itself.

    Parameters
    ----------
    message : str
    at : str, optional
        Rates that the message is about: ``best``.
    """

    def __init__(self, message: str, at: str = "") -> None:
        super().__init__(message)
        self.at = at


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator (or one CPU) as the cost model sees it.

    Attributes
    ----------
    name : str
    description : str
    peak_flop_per_s : mapping of str to float
        Number format -> dense matrix rate, a multiply-add counted as two operations. ``fp32`` is always there; where it is run
        through ``tf32`` that is a format of its own.
    memory_bytes : float
        Nominal size of the memory that weights and activations live in, as the data sheet has it.
    memory_bandwidth_bytes_per_s : float
    clock_hz : float
        0 where unknown; only PALEO's floor of one clock period uses it.
    launch_overhead_s : float
        Least time of a kernel.
    efficiency : Efficiency
    lanes_per_multiprocessor : int
        fp32 multiply-adds that one multiprocessor (core, compute unit) starts per clock.
    vector_flop_per_s : float or None
        Rate of the units that run element-wise kernels; the fp32 peak unless stated.
    price_per_hour : float or None
        What renting the device for an hour costs, in USD; None where nobody has stated it.
    busy_power_w : float or None
        What the device draws while it computes; None where nobody has stated it.
    idle_power_w : float or None
        What it draws while it waits; None where nobody has stated it (`costmodel.hardware.host` has a default).
    driver_memory_bytes : float or None
        What the driver shows of the memory; None where nobody has stated it.
    best_flop_per_s : mapping of str to float
        Number format -> rate that a large matrix product of the best shape reaches at full clocks, where somebody measured it; `best`
        knows what the others reach.
    sustained_flop_per_s : mapping of str to float
        Number format -> what is left of that rate at the board's power limit, held for seconds; `sustained` knows the others.
    best_source : str
        Where the best rates come from.
    reads_both_ways : bool
        Products of 8 bits read matrices along either side, so that they need no transposed copies.

    Raises
    ------
    DeviceError
        A rate or a size is not a positive number, a format is unknown, or fp32 is missing.

    Examples
    --------
    >>> k20 = Device(
    ...     name="k20", peak_flop_per_s={"fp32": 3.52e12}, memory_bytes=5e9, memory_bandwidth_bytes_per_s=208e9
    ... )
    >>> k20.peak("fp32"), k20.vector_peak_flop_per_s
    (3520000000000.0, 3520000000000.0)
    >>> k20.peak("bf16")
    Traceback (most recent call last):
        ...
    costmodel.hardware.device.DeviceError: device 'k20' has no peak rate for bf16; it has fp32
    """

    name: str
    peak_flop_per_s: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    description: str = ""
    clock_hz: float = 0.0
    launch_overhead_s: float = DEFAULT_LAUNCH_OVERHEAD_S
    efficiency: Efficiency = field(default=DEFAULT_EFFICIENCY)
    vector_flop_per_s: float | None = None
    price_per_hour: float | None = None
    busy_power_w: float | None = None
    idle_power_w: float | None = None
    lanes_per_multiprocessor: int = 128
    driver_memory_bytes: float | None = None
    best_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    sustained_flop_per_s: Mapping[str, float] = field(default_factory=dict)
    best_source: str = ""
    reads_both_ways: bool = False

    def __post_init__(self) -> None:
        """Check the numbers and make the rates read-only."""
        unknown = [name for name in self.peak_flop_per_s if name not in FORMATS]
        if unknown:
            raise DeviceError(
                f"device '{self.name}': unknown number format '{unknown[0]}' (known: {', '.join(FORMATS)})"
            )
        if "fp32" not in self.peak_flop_per_s:
            raise DeviceError(f"device '{self.name}' states no fp32 peak rate")
        positive = {f"{key} peak": rate for key, rate in self.peak_flop_per_s.items()}
        positive |= {"memory": self.memory_bytes, "memory bandwidth": self.memory_bandwidth_bytes_per_s}
        positive |= {} if self.driver_memory_bytes is None else {"memory by the driver": self.driver_memory_bytes}
        if self.vector_flop_per_s is not None:
            positive["vector rate"] = self.vector_flop_per_s
        positive["number of lanes per multiprocessor"] = self.lanes_per_multiprocessor
        stated = {
            "price per hour": self.price_per_hour,
            "busy power": self.busy_power_w,
            "idle power": self.idle_power_w,
        }
        positive |= {what: value for what, value in stated.items() if value is not None}
        for what, value in positive.items():
            if not (math.isfinite(value) and value > 0):
                raise DeviceError(f"device '{self.name}': {what} is {value}, expected a positive number")
        for what, value in (("clock", self.clock_hz), ("launch overhead", self.launch_overhead_s)):
            if not (math.isfinite(value) and value >= 0):
                raise DeviceError(f"device '{self.name}': {what} is {value}, expected 0 or more")
        self._check_power()
        self._check_rates()
        for name in ("peak_flop_per_s", "best_flop_per_s", "sustained_flop_per_s"):
            rates = getattr(self, name)
            ordered = {key: float(rates[key]) for key in FORMATS if key in rates}
            object.__setattr__(self, name, MappingProxyType(ordered))

    def _check_power(self) -> None:
        """What waits draws no more than what computes."""
        if self.idle_power_w is None:
            return
        if self.busy_power_w is None:
            raise DeviceError(f"device '{self.name}' states an idle power but no busy power")
        if self.idle_power_w > self.busy_power_w:
            raise DeviceError(
                f"device '{self.name}': idle power is {self.idle_power_w:g} W, more than the {self.busy_power_w:g} W when busy"
            )

    def _check_rates(self) -> None:
        """A rate belongs to a peak, and is hardly above it: clocks of graphics boards are higher than what they are sold for."""
        for kind, rates in (("best", self.best_flop_per_s), ("sustained", self.sustained_flop_per_s)):
            for name in rates:
                if name not in self.peak_flop_per_s:
                    raise DeviceError(f"device '{self.name}': {kind}.{name}: the device states no {name} peak", at=kind)
        for name, rate in self.best_flop_per_s.items():
            if not 0.0 < rate <= _MOST_OVER_PEAK * self.peak_flop_per_s[name]:
                raise DeviceError(
                    f"device '{self.name}': best.{name} is {rate / 1e12:.4g} TFLOP/s, expected a rate above 0 and up to "
                    f"{_MOST_OVER_PEAK:g} times its peak of {self.peak_flop_per_s[name] / 1e12:.4g} TFLOP/s",
                    at="best",
                )
        for name, rate in self.sustained_flop_per_s.items():
            is_stated, peak = name in self.best_flop_per_s, self.peak_flop_per_s[name]
            most, of = (
                (self.best(name), f"best.{name}")
                if is_stated
                else (_MOST_OVER_PEAK * peak, f"{_MOST_OVER_PEAK:g} times its peak")
            )
            # Rounding apart: factors of a calibration multiply both.
            if not 0.0 < rate <= (1.0 + ROUNDING) * most:
                raise DeviceError(
                    f"device '{self.name}': sustained.{name} is {rate / 1e12:.4g} TFLOP/s, expected a rate above 0 and up to "
                    f"{of} ({most / 1e12:.4g} TFLOP/s)",
                    at="sustained",
                )

    @property
    def capacity_bytes(self) -> float:
        """Memory that programs can ask for: what the driver shows, or the nominal size where that is not known.

        >>> peaks = {"fp32": 67e12}
        >>> h100 = Device(
        ...     name="h100", peak_flop_per_s=peaks, memory_bytes=80 * 2**30, memory_bandwidth_bytes_per_s=3e12,
        ...     driver_memory_bytes=81559 * 2**20,
        ... )
        >>> round(h100.capacity_bytes / 2**30, 2)
        79.65
        """
        return self.memory_bytes if self.driver_memory_bytes is None else self.driver_memory_bytes

    @property
    def stream_bytes_per_s(self) -> float:
        """Memory bandwidth that a kernel reaches which only moves data."""
        return self.memory_bandwidth_bytes_per_s * self.efficiency.memory_fraction

    @property
    def formats(self) -> frozenset[str]:
        """Number formats with a peak rate."""
        return frozenset(self.peak_flop_per_s)

    @property
    def has_fp4(self) -> bool:
        """Whether it computes in a format of 4 bits."""
        return not self.formats.isdisjoint(("nvfp4", "mxfp4"))

    @property
    def vector_peak_flop_per_s(self) -> float:
        """Rate of element-wise kernels, FFTs and Winograd transforms: units outside the matrix cores, in fp32."""
        return self.peak_flop_per_s["fp32"] if self.vector_flop_per_s is None else self.vector_flop_per_s

    def has_matrix_units(self, number_format: str) -> bool:
        """Whether products in a format run on units of their own.

        Products in fp32 do where lanes are slower than its peak: matrix cores of CDNA multiply in fp32, too (AMD, CDNA 2 white paper,
        table 1: 256 FLOP per clock and compute unit, lanes 128). Of the other formats, those do that are more than twice as fast as
        fp32, and all of a device that knows tf32 (no lane multiplies in that) and is not equally fast in all of them. Matrix units of
        GeForce, from the RTX 30 on, are no faster than two halves per lane would be.

        >>> peaks = {"fp32": 15.7e12, "fp16": 125e12}
        >>> v100 = Device(name="v100", peak_flop_per_s=peaks, memory_bytes=16e9, memory_bandwidth_bytes_per_s=900e9)
        >>> v100.has_matrix_units("fp16"), v100.has_matrix_units("fp32")
        (True, False)
        """
        if number_format == "fp32":
            return self.peak("fp32") > _FASTER * self.vector_peak_flop_per_s
        if "tf32" in self.peak_flop_per_s:
            return max(self.peak_flop_per_s.values()) > self.peak_flop_per_s["fp32"]
        # Two halves per lane make a format twice as fast, and no more; a little slack for how datasheets round.
        return self.peak(number_format) > 2.2 * self.peak_flop_per_s["fp32"]

    def peak(self, number_format: str) -> float:
        """Dense matrix rate of a number format, in FLOP/s.

        Raises
        ------
        DeviceError
            The device does not compute in that format.
        """
        try:
            return self.peak_flop_per_s[number_format]
        except KeyError:
            has = ", ".join(self.peak_flop_per_s)
            raise DeviceError(f"device '{self.name}' has no peak rate for {number_format}; it has {has}") from None

    def halves(self, number_format: str) -> float:
        """Numbers of a format that a lane of the vector units multiplies at once: two of 16 bits, where it can; else one."""
        return 1.0 if self.has_matrix_units(number_format) else self.peak(number_format) / self.peak_flop_per_s["fp32"]

    def best(self, number_format: str) -> float:
        """Rate that a large matrix product of the best shape reaches at full clocks, in FLOP/s.

        Where nobody measured the format, it reaches the share of its peak that the format most alike reaches of its own; vector units
        that of matrix units, but not the other way round. Without any, `Efficiency.matmul_fraction`. What it sustains it reaches.

        Raises
        ------
        DeviceError
            The device does not compute in that format.

        Examples
        --------
        >>> device = Device(
        ...     name="d", peak_flop_per_s={"fp32": 20e12, "bf16": 300e12, "fp8": 600e12}, memory_bytes=80e9,
        ...     memory_bandwidth_bytes_per_s=2e12, best_flop_per_s={"bf16": 240e12},
        ... )
        >>> device.best("bf16") / 1e12, device.best("fp8") / 1e12
        (240.0, 480.0)
        """
        stated = self.best_flop_per_s.get(number_format)
        if stated is not None:
            return stated
        if self.has_matrix_units(number_format):
            share = self._share_of_alike(
                number_format, self.best_flop_per_s, self.peak, self.efficiency.matmul_fraction
            )
        else:
            share = self.lane_share(self.halves(number_format))
        return max(self.peak(number_format) * share, self.sustained_flop_per_s.get(number_format, 0.0))

    def lane_share(self, wide: float = 1.0) -> float:
        """Share of the peak of vector units that a large product reaches whose lanes multiply so many numbers at once.

        Unless the device states it, by the lanes that share a multiprocessor's memory.
        """
        loss = self.efficiency.vector_loss
        lost = 1.0 + loss * self.lanes_per_multiprocessor * wide / USUAL_LANES
        stated = self.best_flop_per_s.get("fp32")
        if stated is not None:
            return stated / self.peak("fp32") * (1.0 + loss * self.lanes_per_multiprocessor / USUAL_LANES) / lost
        usual = self._share_of_alike("fp32", self.best_flop_per_s, self.peak, self.efficiency.matmul_fraction)
        # Nor do few lanes reach more than the best products anywhere.
        return min(usual * (1.0 + loss) / lost, max(usual, _BEST_FRACTION))

    def sustained(self, number_format: str) -> float:
        """Rate that is left of `best` where such products follow one another for seconds, at the board's power limit, in FLOP/s.

        Where nobody measured the format, the share that is left of the best rate of the format most alike; without any, and on vector
        units, all of it.

        Raises
        ------
        DeviceError
            The device does not compute in that format.

        Examples
        --------
        >>> device = Device(
        ...     name="d", peak_flop_per_s={"fp32": 20e12, "bf16": 300e12, "fp8": 600e12}, memory_bytes=80e9,
        ...     memory_bandwidth_bytes_per_s=2e12, best_flop_per_s={"bf16": 250e12}, sustained_flop_per_s={"bf16": 200e12},
        ... )
        >>> [device.sustained(name) / 1e12 for name in ("bf16", "fp8")], device.sustained("fp32") == device.best("fp32")
        ([200.0, 400.0], True)
        """
        stated = self.sustained_flop_per_s.get(number_format)
        if stated is not None:
            return stated
        best = self.best(number_format)
        if not self.sustained_flop_per_s or not self.has_matrix_units(number_format):
            return best
        return best * self._share_of_alike(number_format, self.sustained_flop_per_s, self.best, 1.0)

    def _share_of_alike(
        self, number_format: str, stated: Mapping[str, float], whole: Callable[[str], float], otherwise: float
    ) -> float:
        """Share of the whole that the format most alike reaches, of those on matrix units that state a rate."""
        for name in _ALIKE[number_format]:
            if name in stated and self.has_matrix_units(name):
                return stated[name] / whole(name)
        return otherwise

    def with_peaks(self, peak_flop_per_s: Mapping[str, float]) -> Self:
        """The device with other peaks: what it reaches of them stays the same share.

        >>> device = Device(
        ...     name="d", peak_flop_per_s={"fp32": 20e12}, memory_bytes=80e9, memory_bandwidth_bytes_per_s=2e12,
        ...     best_flop_per_s={"fp32": 18e12},
        ... )
        >>> device.with_peaks({"fp32": 40e12}).best("fp32") / 1e12
        36.0
        """
        best, sustained = (
            {
                name: rate * peak_flop_per_s[name] / self.peak(name)
                for name, rate in rates.items()
                if name in peak_flop_per_s
            }
            for rates in (self.best_flop_per_s, self.sustained_flop_per_s)
        )
        return replace(self, peak_flop_per_s=peak_flop_per_s, best_flop_per_s=best, sustained_flop_per_s=sustained)
