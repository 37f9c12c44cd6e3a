"""File format of a cluster: which devices, and the levels of links that join them, innermost first."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import AfterValidator, Field, field_validator, model_validator

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level, Transport, port_limit
from costmodel.hardware.device import Device
from costmodel.hardware.host import Host, HostError
from planner.schema.common import (
    MAX_INTEGER,
    Bandwidth,
    Bytes,
    FileModel,
    Fraction,
    Name,
    NamedFile,
    Power,
    Price,
    Seconds,
    Sources,
    check_sources,
    fail,
)
from planner.schema.records import key, record

DeviceName = Annotated[str, Field(strict=True, min_length=1, max_length=4096)]


if TYPE_CHECKING:
    GroupEntry: TypeAlias = Any
    HostEntry: TypeAlias = Any
    LevelEntry: TypeAlias = Any
else:
    LevelEntry = record(
        "LevelEntry",
        "Links of one kind, joining units of the level before (devices for the first).",
        FileModel,
        name=Name,
        size=key(
            int | None,
            "units of the level before per unit of this one; unlimited unless stated (the last level only)",
            default=None,
            strict=True,
            ge=1,
            le=MAX_INTEGER,
        ),
        bandwidth=key(Bandwidth, "nominal, of one port and direction: '400 Gb/s', '450 GB/s'"),
        shared_by=key(
            int, "neighbouring devices that share a port; 1 = its own", default=1, strict=True, ge=1, le=MAX_INTEGER
        ),
        latency=key(Seconds, "from sender to receiver of an empty message, software included: '5 us'"),
        efficiency=key(Fraction, "share of the bandwidth that long messages reach", default=1.0),
        ring_step=key(
            Seconds,
            "least time of a step of a ring over this level, beside latency and bandwidth: '40 us'",
            default=0.0,
        ),
        in_network=key(
            float,
            "share of the bandwidth at which its switches sum messages; 0 = they do not",
            default=0.0,
            ge=0.0,
            le=1.0,
        ),
        ordered=key(
            bool,
            "the bytes of a message arrive in order, as NCCL's protocols for small messages (LL, LL128) need it",
            default=True,
            strict=True,
        ),
        transport=key(
            Transport,
            "direct: adapters read the memory of devices (GPUDirect RDMA, or devices that are joined themselves); host: RDMA with copies "
            "through the host's memory; tcp: sockets; gloo: processors of one host, by gloo",
            default="direct",
        ),
        connections=key(
            int | None,
            "TCP connections that carry what a port sends; as many as needed unless stated, where host.link is",
            default=None,
            strict=True,
            ge=1,
            le=MAX_INTEGER,
        ),
        connection_bandwidth=key(Bandwidth | None, "most that one of them carries: '10 Gb/s'", default=None),
        fitted=key(
            tuple[Literal["latency", "efficiency", "ring_step", "in_network"], ...],
            "which of these were found from measured collectives, as the source says",
            default=(),
            max_length=4,
        ),
    )
    GroupEntry = record(
        "GroupEntry",
        "Equal devices of a cluster that has several kinds.",
        FileModel,
        device=key(DeviceName, "name of a device file, or its path"),
        count=key(int | None, "how many; unlimited unless stated", default=None, strict=True, ge=1, le=MAX_INTEGER),
        name=key(Name | None, "what reports call the group; the device's name unless stated", default=None),
        driver_memory=key(
            Bytes | None, "what the driver shows of a device's memory here; in place of the device file's", default=None
        ),
        levels=key(
            tuple[LevelEntry, ...],
            "the innermost levels as this group has them, names and sizes as in the cluster; its own unless stated",
            default=(),
            max_length=8,
        ),
    )
    HostEntry = record(
        "HostEntry",
        "The host of every node: what its devices share when tensors are kept there (offloading).",
        FileModel,
        devices=key(int, "devices of one node", strict=True, ge=1, le=MAX_INTEGER),
        memory=key(Bytes, "of one node: '2 TB'"),
        memory_bandwidth=key(Bandwidth | None, "nominal, of all memory of the node: '409.6 GB/s'", default=None),
        link=key(Bandwidth | None, "nominal, between the host and a port, of one direction: '31.5 GB/s'", default=None),
        link_shared_by=key(
            int, "devices behind such a port; 1 = its own", default=1, strict=True, ge=1, le=MAX_INTEGER
        ),
        power=key(
            Power | None, "of one node beside its devices (processors, memory, network, fans): '4600 W'", default=None
        ),
    )


def _level(entry: Any, host: Host | None) -> Level:
    """The cost model's level: bandwidth per device when all devices communicate at once."""
    each = math.inf if entry.connections is None else entry.connections * entry.connection_bandwidth
    return Level(
        name=entry.name,
        size=entry.size,
        bandwidth_bytes_per_s=entry.bandwidth / entry.shared_by,
        latency_s=entry.latency,
        shared_by=entry.shared_by,
        efficiency=entry.efficiency,
        ring_step_s=entry.ring_step,
        in_network=entry.in_network,
        is_ordered=entry.ordered,
        transport=entry.transport,
        port_limit_bytes_per_s=port_limit(entry.transport, host, each),
        fitted=entry.fitted,
    )


def _host(entry: Any) -> Host:
    return Host(
        devices=entry.devices,
        memory_bytes=entry.memory,
        memory_bandwidth_bytes_per_s=entry.memory_bandwidth,
        link_bytes_per_s=entry.link,
        link_shared_by=entry.link_shared_by,
        power_w=entry.power,
    )


def _sound_host(entry: Any) -> Any:
    try:
        _host(entry)
    except HostError as error:
        fail(str(error), at="link_shared_by")
    return entry


def _as_shown(device: Device, driver_memory: float | None) -> Device:
    """A device with the memory that a cluster's driver shows."""
    return device if driver_memory is None else dataclasses.replace(device, driver_memory_bytes=driver_memory)


class ClusterFile(NamedFile):
    """A cluster."""

    device: DeviceName | None = Field(default=None, description="the device, where all are equal: a name or a path")
    groups: tuple[GroupEntry, ...] = Field(
        default=(), max_length=100, description="instead of device: several kinds of devices"
    )
    levels: tuple[LevelEntry, ...] = Field(min_length=1, max_length=8)
    host: Annotated[HostEntry, AfterValidator(_sound_host)] | None = Field(
        default=None, description="of every node; memory without a limit, and assumed rates, unless stated"
    )
    price_per_hour: Price | None = Field(
        default=None,
        description="of renting one device here, in USD; in place of the device file's (one kind of device)",
    )
    driver_memory: Bytes | None = Field(
        default=None,
        description="what the driver shows of a device's memory here; in place of the device file's (one kind of device)",
    )
    source: Sources = Field(
        default_factory=dict,
        description="key of this file, or name of a level -> where its numbers come from; answers say that it is missing",
    )

    @field_validator("device", mode="before")
    @classmethod
    def _is_one(cls, value: object) -> object:
        if isinstance(value, (list, dict)):
            fail(
                "is one name; several kinds are 'groups: [{device: a100-80gb, count: 2}, {device: v100-32gb, count: 6}]'"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if "groups" in self.model_fields_set and not self.groups:
            fail("is empty; list the kinds of devices, or name the one with 'device'", at="groups")
        if (self.device is None) == (not self.groups):
            fail("a cluster has either 'device' or 'groups'")
        if self.groups and self.price_per_hour is not None:
            fail("is about one kind of device; state the prices of several in their device files", at="price_per_hour")
        if self.groups and self.driver_memory is not None:
            fail("is about one kind of device; state it in the groups", at="driver_memory")
        names = [level.name for level in self.levels]
        if len(set(names)) < len(names):
            fail("two levels have the same name", at="levels")
        check_sources({key: text for key, text in self.source.items() if key not in names}, type(self))
        inside = 1
        for level in self.levels:
            if level.size is None and level is not self.levels[-1]:
                fail(f"level '{level.name}' states no size; only the last level may be unlimited", at="levels")
            if inside % level.shared_by:
                fail(
                    f"level '{level.name}': a port is shared by {level.shared_by} devices, which does not divide the "
                    f"{inside} devices of a unit inside it",
                    at="levels",
                )
            inside *= level.size or 1
            self._check_transport(level, "levels")
        for i, group in enumerate(self.groups):
            self._check_group(i, group)
        return self

    def _check_transport(self, level: Any, at: str) -> None:
        """Check that what bounds a level is stated, and belongs to its transport."""
        if level.transport == "gloo" and level is not self.levels[0]:
            fail(
                f"level '{level.name}': transport gloo is of the innermost level, where processors of one host exchange",
                at=at,
            )
        stated = [name for name in ("connections", "connection_bandwidth") if getattr(level, name) is not None]
        if stated and level.transport != "tcp":
            fail(f"level '{level.name}': {stated[0]} is about transport tcp, not {level.transport}", at=at)
        if len(stated) == 1:
            fail(f"level '{level.name}' states {stated[0]}; state both connections and connection_bandwidth", at=at)
        if level.transport in ("host", "tcp") and not stated and (self.host is None or self.host.link is None):
            also = ", or connections and connection_bandwidth" if level.transport == "tcp" else ""
            fail(
                f"level '{level.name}': transport {level.transport} copies over the links of the host; state them in host.link{also}",
                at=at,
            )

    def _check_group(self, i: int, group: GroupEntry) -> None:
        """Check that a group's own levels are the cluster's innermost ones."""
        expected = ", ".join(f"{level.name} of size {level.size}" for level in self.levels)
        if len(group.levels) > len(self.levels):
            fail(f"group {i} has {len(group.levels)} levels, the cluster {len(self.levels)}: {expected}", at="groups")
        inside = 1
        for own, common in zip(group.levels, self.levels, strict=False):
            if (own.name, own.size) != (common.name, common.size):
                fail(
                    f"group {i} has level '{own.name}' of size {own.size}; expected, in this order: {expected}",
                    at="groups",
                )
            if inside % own.shared_by:
                fail(
                    f"group {i}, level '{own.name}': a port is shared by {own.shared_by} devices, which does not divide the "
                    f"{inside} devices of a unit inside it",
                    at="groups",
                )
            inside *= own.size or 1
            self._check_transport(own, "groups")

    @property
    def device_names(self) -> tuple[str, ...]:
        """Names of the device files that the cluster needs."""
        return tuple(group.device for group in self.groups) or (str(self.device),)

    def to_domain(self, devices: Mapping[str, Device]) -> Cluster:
        """Make the cost model's cluster.

        Parameters
        ----------
        devices : mapping of str to Device
            Every device of `device_names`.

        Examples
        --------
        >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
        >>> file = ClusterFile(
        ...     schema_version=1, name="mine", device="d", source={},
        ...     levels=[{"name": "network", "bandwidth": "10 Gb/s", "latency": "50 us"}],
        ... )
        >>> file.to_domain({"d": device}).levels[0].bandwidth_bytes_per_s
        1250000000.0
        """
        assert set(self.device_names) <= set(devices), "a device of the cluster was not loaded"
        host = None if self.host is None else _host(self.host)
        if not self.groups:
            device = devices[str(self.device)]
            if self.price_per_hour is not None:
                device = dataclasses.replace(device, price_per_hour=self.price_per_hour)
            device = _as_shown(device, self.driver_memory)
            groups: tuple[DeviceGroup, ...] = (DeviceGroup(device=device),)
        else:
            groups = tuple(
                DeviceGroup(
                    device=_as_shown(devices[group.device], group.driver_memory),
                    num_devices=group.count,
                    name=group.name or "",
                    levels=tuple(_level(level, host) for level in group.levels),
                )
                for group in self.groups
            )
        return Cluster(
            name=self.name,
            description=self.description,
            groups=groups,
            levels=tuple(_level(level, host) for level in self.levels),
            host=host,
        )
