"""Networks, devices and clusters in words: what a loaded one shows when it is printed or stands in a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from planner.core.blocks import Block, Column, Facts, Sentence, Table
from planner.core.quantities import format_bytes, format_bytes_per_s, format_flop_per_s, format_seconds

__all__ = ["cluster_blocks", "device_blocks", "group_words"]


def device_blocks(device: Device) -> list[Block]:
    """Rates, memory, power and price of a device."""
    facts = [
        ("Memory", f"{_memory(device)} at {format_bytes_per_s(device.memory_bandwidth_bytes_per_s)}"),
        ("Dense peak", ", ".join(f"{name} {format_flop_per_s(rate)}" for name, rate in device.peak_flop_per_s.items())),
    ]
    if device.busy_power_w is not None:
        idle = "" if device.idle_power_w is None else f", {device.idle_power_w:g} W while it waits"
        facts.append(("Power", f"{device.busy_power_w:g} W{idle}"))
    if device.price_per_hour is not None:
        facts.append(("Price", f"{device.price_per_hour:g} USD per hour"))
    if device.description:
        facts.append(("Description", device.description))
    return [Sentence(device.name, strong=True), Facts(tuple(facts))]


def cluster_blocks(cluster: Cluster) -> list[Block]:
    """Devices, links and host of a cluster."""
    several = len(cluster.groups) > 1
    facts = [("Devices" if several else "Device", ", ".join(group_words(group) for group in cluster.groups))]
    host = cluster.host
    if host is not None and host.memory_bytes is not None:
        power = "" if host.power_w is None else f", {host.power_w:g} W beside its devices"
        facts.append(("Host", f"{format_bytes(host.memory_bytes)} for {host.devices} devices{power}"))
    if cluster.description:
        facts.append(("Description", cluster.description))
    return [Sentence(cluster.name, strong=True), _level_table(cluster.levels), Facts(tuple(facts))]


def _memory(device: Device) -> str:
    """Nominal, and what the driver shows where that is known."""
    nominal, shown = format_bytes(device.memory_bytes), device.driver_memory_bytes
    return nominal if shown is None else f"{nominal} ({format_bytes(shown)} by the driver)"


def group_words(group: DeviceGroup) -> str:
    """How many of which device, as far as that is known."""
    count = "" if group.num_devices is None else f"{group.num_devices:,} x "
    return f"{count}{group.device.name} ({format_bytes(group.device.memory_bytes)})"


def _level_table(levels: Sequence[Level]) -> Table:
    def column(title: str, cells: Sequence[str], *, unit: str = "", is_text: bool = False) -> Column:
        return Column(title=title, unit=unit, cells=tuple(cells), is_text=is_text)

    joined, names = [], ["devices", *(f"{level.name} units" for level in levels)]
    for level, inside in zip(levels, names, strict=False):
        joined.append(f"{'any number of' if level.size is None else f'{level.size:,}'} {inside}")
    return Table(
        columns=(
            column("links", [level.name for level in levels], is_text=True),
            column("join", joined, is_text=True),
            column(
                "bandwidth", [format_bytes_per_s(level.bandwidth_bytes_per_s) for level in levels], unit="per device"
            ),
            column("reached", [f"{level.efficiency * 100:.3g} %" for level in levels]),
            column("latency", [format_seconds(level.latency_s) for level in levels]),
        )
    )
