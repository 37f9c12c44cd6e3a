"""File format of a device: peak rates, memory and overheads as quantities with units, each with its source."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from costmodel.hardware.device import DEFAULT_LAUNCH_OVERHEAD_S, Device, DeviceError
from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY, Efficiency
from planner.schema.common import FileModel, Name, Text, fail
from planner.schema.quantity import (
    Bandwidth,
    Bytes,
    FlopRate,
    Fraction,
    Frequency,
    HalfSize,
    Power,
    Price,
    Seconds,
    Sources,
    check_sources,
)

__all__ = ["DeviceFile", "EfficiencyEntry", "Peaks", "PowerEntry"]


class Peaks(FileModel):
    """Dense (not sparse) matrix rates by number format; a multiply-add counts as two operations."""

    fp32: FlopRate = Field(description="32-bit floats, not through tf32")
    tf32: FlopRate | None = Field(default=None, description="32-bit storage, 19-bit products on matrix cores")
    fp16: FlopRate | None = None
    bf16: FlopRate | None = None
    fp8: FlopRate | None = None
    fp4: FlopRate | None = None


class EfficiencyEntry(FileModel):
    """Constants of the efficiency model that differ from the defaults; see `costmodel.hardware.efficiency.Efficiency`."""

    matmul_fraction: Fraction = DEFAULT_EFFICIENCY.matmul_fraction
    lane_fraction: Fraction = DEFAULT_EFFICIENCY.lane_fraction
    narrow_fraction: Fraction = DEFAULT_EFFICIENCY.narrow_fraction
    winograd_fraction: Fraction = DEFAULT_EFFICIENCY.winograd_fraction
    fft_fraction: Fraction = DEFAULT_EFFICIENCY.fft_fraction
    vector_fraction: Fraction = DEFAULT_EFFICIENCY.vector_fraction
    attention_fraction: Fraction = DEFAULT_EFFICIENCY.attention_fraction
    attention_backward_fraction: Fraction = DEFAULT_EFFICIENCY.attention_backward_fraction
    portable_attention_fraction: Fraction = DEFAULT_EFFICIENCY.portable_attention_fraction
    sustained_fraction: Fraction = DEFAULT_EFFICIENCY.sustained_fraction
    elementwise_fraction: Fraction = DEFAULT_EFFICIENCY.elementwise_fraction
    odd_fraction: Fraction = DEFAULT_EFFICIENCY.odd_fraction
    memory_fraction: Fraction = DEFAULT_EFFICIENCY.memory_fraction
    tile_half: HalfSize = DEFAULT_EFFICIENCY.tile_half
    depth_half: HalfSize = DEFAULT_EFFICIENCY.depth_half
    fill_outputs: HalfSize = DEFAULT_EFFICIENCY.fill_outputs
    split_depth: HalfSize = DEFAULT_EFFICIENCY.split_depth
    strided_gradient_fraction: Fraction = DEFAULT_EFFICIENCY.strided_gradient_fraction
    matrix_fill: HalfSize = DEFAULT_EFFICIENCY.matrix_fill
    vector_tile: HalfSize = DEFAULT_EFFICIENCY.vector_tile
    vector_depth: HalfSize = DEFAULT_EFFICIENCY.vector_depth
    vector_fill: HalfSize = DEFAULT_EFFICIENCY.vector_fill
    vector_split: HalfSize = DEFAULT_EFFICIENCY.vector_split
    vector_loss: HalfSize = DEFAULT_EFFICIENCY.vector_loss
    vector_floor: HalfSize = DEFAULT_EFFICIENCY.vector_floor
    thin_tile: HalfSize = DEFAULT_EFFICIENCY.thin_tile
    thin_depth: HalfSize = DEFAULT_EFFICIENCY.thin_depth
    thin_fill: HalfSize = DEFAULT_EFFICIENCY.thin_fill
    thin_split: HalfSize = DEFAULT_EFFICIENCY.thin_split
    weights_depth: HalfSize = DEFAULT_EFFICIENCY.weights_depth
    winograd_side: HalfSize = DEFAULT_EFFICIENCY.winograd_side
    window_bytes: HalfSize = DEFAULT_EFFICIENCY.window_bytes
    window_start: HalfSize = DEFAULT_EFFICIENCY.window_start

    def to_domain(self, source: str) -> Efficiency:
        """Make the cost model's object.

        Parameters
        ----------
        source : str
            Where the numbers come from.
        """
        return Efficiency(source=source, **self.model_dump())


class PowerEntry(FileModel):
    """What a device draws; `costmodel.hardware.host` makes joules of it."""

    busy: Power = Field(description="while it computes: the board's thermal design power is an upper bound, '700 W'")
    idle: Power | None = Field(
        default=None, description="while it waits for the network or for other devices; a share of busy unless stated"
    )


class DeviceFile(FileModel):
    """A device."""

    schema_version: Literal[1] = Field(description="version of this file format")
    name: Name
    description: Text = ""
    memory: Bytes = Field(description="nominal size of the device's own memory, '80 GiB'")
    driver_memory: Bytes | None = Field(
        default=None,
        description="what the driver shows of it (nvidia-smi, memory.total), '81559 MiB'; the nominal size unless stated",
    )
    memory_bandwidth: Bandwidth = Field(description="peak of that memory, '3.35 TB/s'")
    peak: Peaks
    vector_rate: FlopRate | None = Field(
        default=None, description="rate of element-wise kernels; the fp32 peak unless stated"
    )
    clock: Frequency | None = Field(default=None, description="only PALEO's floor of one clock period uses it")
    lanes_per_multiprocessor: int = Field(
        default=128, ge=1, le=4096, description="fp32 multiply-adds that a multiprocessor (core) starts per clock"
    )
    launch_overhead: Seconds = Field(default=DEFAULT_LAUNCH_OVERHEAD_S, description="least time of a kernel, '5 us'")
    efficiency: EfficiencyEntry = Field(default_factory=EfficiencyEntry)
    price_per_hour: Price | None = Field(
        default=None, description="of renting one device, in USD; only the objective `money` needs it"
    )
    power: PowerEntry | None = Field(default=None, description="of one device; only the objective `energy` needs it")
    source: Sources = Field(description="key of this file -> where its number comes from")

    @model_validator(mode="after")
    def _sources_name_keys(self) -> Self:
        check_sources(self.source, type(self))
        try:
            self.to_domain()
        except DeviceError as error:
            fail(str(error))
        return self

    def to_domain(self) -> Device:
        """Make the cost model's device.

        Examples
        --------
        >>> file = DeviceFile(
        ...     schema_version=1, name="mine", memory="16 GiB", memory_bandwidth="900 GB/s",
        ...     peak={"fp32": "15.7 TFLOP/s", "fp16": "125 TFLOP/s"}, source={"peak": "datasheet"},
        ... )
        >>> file.to_domain().peak("fp16")
        125000000000000.0
        """
        return Device(
            name=self.name,
            description=self.description,
            peak_flop_per_s={k: v for k, v in self.peak.model_dump().items() if v is not None},
            memory_bytes=self.memory,
            memory_bandwidth_bytes_per_s=self.memory_bandwidth,
            clock_hz=self.clock or 0.0,
            launch_overhead_s=self.launch_overhead,
            efficiency=self.efficiency.to_domain(self.source.get("efficiency", DEFAULT_EFFICIENCY.source)),
            vector_flop_per_s=self.vector_rate,
            price_per_hour=self.price_per_hour,
            busy_power_w=None if self.power is None else self.power.busy,
            idle_power_w=None if self.power is None else self.power.idle,
            lanes_per_multiprocessor=self.lanes_per_multiprocessor,
            driver_memory_bytes=self.driver_memory,
        )
