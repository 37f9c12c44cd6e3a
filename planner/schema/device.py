"""File format of a device: peak rates, memory and overheads as quantities with units, each with its source."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from pydantic import Field, create_model, model_validator

from costmodel.hardware.device import DEFAULT_LAUNCH_OVERHEAD_S, FORMATS, Device, DeviceError
from costmodel.hardware.efficiency import DEFAULT_EFFICIENCY, Efficiency
from planner.schema.common import (
    Bandwidth,
    Bytes,
    FileModel,
    FlopRate,
    Fraction,
    Frequency,
    HalfSize,
    NamedFile,
    Power,
    Price,
    Seconds,
    Share,
    Sources,
    check_sources,
    fail,
)
from planner.schema.records import key, record

# Keys of `efficiency` that became rates of their own, understood for one release -> what to write now.
_FORMER = {
    "narrow_fraction": "write best: {fp8: 1.39 PFLOP/s}, the rate; this is what narrow formats reach over the others",
    "lane_fraction": "write best: {fp32: 24.5 TFLOP/s}, the rate; this is what fp32 reaches over the other formats",
    "sustained_fraction": "now called step_fraction",
}
# Last word of a constant -> its range.
_RANGES = {"fraction": Fraction, "overlap": Share}
_NARROW = FORMATS[FORMATS.index("fp8") :]
_FORMATS = {
    "fp32": "32-bit floats, not through tf32",
    "tf32": "32-bit storage, 19-bit products on matrix cores",
    "fp8": "a scale for a tensor or a row",
    "fp8_block": "scales in fp32 for 1 x 128 and 128 x 128 numbers",
    "mxfp8": "a scale of one byte for 32 numbers (OCP Microscaling)",
    "nvfp4": "a scale of one byte for 16 numbers of 4 bits",
    "mxfp4": "a scale of one byte for 32 numbers of 4 bits (OCP Microscaling)",
}

if TYPE_CHECKING:
    EfficiencyEntry: TypeAlias = FileModel
    Rates: TypeAlias = Any
    Peaks: TypeAlias = Any
    PowerEntry: TypeAlias = Any
else:
    EfficiencyEntry = create_model(
        "EfficiencyEntry",
        __base__=FileModel,
        __doc__="Constants of the efficiency model that differ from the defaults; see `costmodel.hardware.efficiency.Efficiency`.",
        **{
            field.name: (
                _RANGES.get(field.name.rpartition("_")[-1], HalfSize),
                getattr(DEFAULT_EFFICIENCY, field.name),
            )
            for field in fields(Efficiency)
            if field.name != "source"
        },
        **{name: key(Fraction | None, doc, default=None, deprecated=True) for name, doc in _FORMER.items()},
    )
    Rates = record(
        "Rates",
        "Dense (not sparse) matrix rates by number format; a multiply-add counts as two operations.",
        FileModel,
        **{name: key(FlopRate | None, _FORMATS.get(name), default=None) for name in FORMATS},
    )
    Peaks = record("Peaks", "The same, of which every device has fp32.", Rates, fp32=key(FlopRate, _FORMATS["fp32"]))
    PowerEntry = record(
        "PowerEntry",
        "What a device draws; `costmodel.hardware.host` makes joules of it.",
        FileModel,
        busy=key(Power, "while it computes: the board's thermal design power is an upper bound, '700 W'"),
        idle=key(
            Power | None,
            "while it waits for the network or for other devices; a share of busy unless stated",
            default=None,
        ),
    )


class DeviceFile(NamedFile):
    """A device."""

    memory: Bytes = Field(description="nominal size of the device's own memory, '80 GiB'")
    driver_memory: Bytes | None = Field(
        default=None,
        description="what the driver shows of it (nvidia-smi, memory.total), '81559 MiB'; the nominal size unless stated",
    )
    memory_bandwidth: Bandwidth = Field(description="peak of that memory, '3.35 TB/s'")
    peak: Peaks
    best: Rates = Field(
        default_factory=Rates,
        description="what large matrix products of the best shape reach at full clocks, as measured, by number format; the others as "
        "the format most alike, in shares of their peaks, or `matmul_fraction` of `efficiency` without any",
    )
    sustained: Rates = Field(
        default_factory=Rates,
        description="what is left of `best` at the board's power limit, held for seconds; the others as the format most alike, in shares "
        "of their best rates, and all of it without any",
    )
    reads_both_ways: bool = Field(
        default=False,
        strict=True,
        description="products of 8 bits read matrices along either side, so that they need no transposed copies",
    )
    vector_rate: FlopRate | None = Field(
        default=None, description="rate of element-wise kernels; the fp32 peak unless stated"
    )
    clock: Frequency | None = Field(default=None, description="only PALEO's floor of one clock period uses it")
    lanes_per_multiprocessor: int = Field(
        default=128, ge=1, le=4096, description="fp32 multiply-adds that a multiprocessor (core) starts per clock"
    )
    launch_overhead: Seconds = Field(default=DEFAULT_LAUNCH_OVERHEAD_S, description="least time of a kernel, '5 us'")
    efficiency: EfficiencyEntry = Field(default_factory=EfficiencyEntry)
    price_per_hour: Price | None = Field(default=None, description="of renting one device, in USD, for money")
    power: PowerEntry | None = Field(default=None, description="of one device, for its energy")
    source: Sources = Field(
        default_factory=dict,
        description="key of this file -> where its number comes from; answers say that it is missing",
    )

    @model_validator(mode="after")
    def _sources_name_keys(self) -> Self:
        check_sources(self.source, type(self))
        stated = self.efficiency.model_dump(exclude_unset=True)
        if stated.get("cache_bytes") and "cache_speedup" not in stated:
            # Its default of 1 would leave the caches out without a word.
            fail(
                "cache_bytes needs cache_speedup, the rate of the caches over that of a long stream from memory "
                "('planner detect' writes both)",
                at="efficiency",
            )
        try:
            self.to_domain()
        except DeviceError as error:
            fail(str(error), at=error.at)
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
        efficiency = self.efficiency.model_dump()
        former = {name: efficiency.pop(name) for name in _FORMER}
        if former["sustained_fraction"] is not None:
            efficiency["step_fraction"] = former["sustained_fraction"]
        device = Device(
            name=self.name,
            description=self.description,
            peak_flop_per_s=self.peak.model_dump(exclude_none=True),
            best_flop_per_s=self.best.model_dump(exclude_none=True),
            sustained_flop_per_s=self.sustained.model_dump(exclude_none=True),
            best_source=self.source.get("best", ""),
            memory_bytes=self.memory,
            memory_bandwidth_bytes_per_s=self.memory_bandwidth,
            clock_hz=self.clock or 0.0,
            launch_overhead_s=self.launch_overhead,
            efficiency=Efficiency(source=self.source.get("efficiency", DEFAULT_EFFICIENCY.source), **efficiency),
            vector_flop_per_s=self.vector_rate,
            price_per_hour=self.price_per_hour,
            busy_power_w=None if self.power is None else self.power.busy,
            idle_power_w=None if self.power is None else self.power.idle,
            lanes_per_multiprocessor=self.lanes_per_multiprocessor,
            driver_memory_bytes=self.driver_memory,
            reads_both_ways=self.reads_both_ways,
        )
        shares = {"fp32": former["lane_fraction"], **dict.fromkeys(_NARROW, former["narrow_fraction"])}
        own = {name: share * device.best(name) for name, share in shares.items() if share and name in device.formats}
        return replace(device, best_flop_per_s=own | dict(device.best_flop_per_s)) if own else device
