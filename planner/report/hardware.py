"""Networks, devices and clusters in words: what a loaded one shows when it is printed or stands in a notebook."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from planner.core.blocks import Block, Column, Facts, Sentence, Table
from planner.core.numbers import byte_text, duration_text
from planner.core.quantities import format_rate


def device_blocks(device: Device) -> list[Block]:
    """Rates, memory, power and price of a device."""
    memory = byte_text(device.memory_bytes)
    if device.driver_memory_bytes is not None:
        memory += f" ({byte_text(device.driver_memory_bytes)} by the driver)"
    peaks = ", ".join(f"{name} {format_rate(rate, 'FLOP/s')}" for name, rate in device.peak_flop_per_s.items())
    idle = "" if device.idle_power_w is None else f", {device.idle_power_w:g} W while it waits"
    facts = {
        "Memory": f"{memory} at {format_rate(device.memory_bandwidth_bytes_per_s, 'B/s')}",
        "Dense peak": peaks,
        "Power": "" if device.busy_power_w is None else f"{device.busy_power_w:g} W{idle}",
        "Price": "" if device.price_per_hour is None else f"{device.price_per_hour:g} USD per hour",
        "Description": device.description,
    }
    return [Sentence(device.name, strong=True), Facts(tuple((name, text) for name, text in facts.items() if text))]


def cluster_blocks(cluster: Cluster) -> list[Block]:
    """Devices, links and host of a cluster."""
    facts = [
        ("Devices" if len(cluster.groups) > 1 else "Device", ", ".join(group_words(group) for group in cluster.groups))
    ]
    host = cluster.host
    if host is not None and host.memory_bytes is not None:
        power = "" if host.power_w is None else f", {host.power_w:g} W beside its devices"
        facts.append(("Host", f"{byte_text(host.memory_bytes)} for {host.devices} devices{power}"))
    if cluster.description:
        facts.append(("Description", cluster.description))
    return [Sentence(cluster.name, strong=True), _level_table(cluster.levels), Facts(tuple(facts))]


def group_words(group: DeviceGroup) -> str:
    """How many of which device, as far as that is known."""
    count = "" if group.num_devices is None else f"{group.num_devices:,} x "
    return f"{count}{group.device.name} ({byte_text(group.device.memory_bytes)})"


_WAYS = {"direct": "direct", "host": "through the host, RDMA", "tcp": "through the host, TCP", "gloo": "by gloo"}


def _level_table(levels: Sequence[Level]) -> Table:
    cells = level_cells(levels)
    if all(level.transport == "direct" for level in levels):
        cells = [{key: text for key, text in row.items() if key != "transport"} for row in cells]
    return Table(
        columns=tuple(
            Column(
                key.replace("_", " "), tuple(row[key] for row in cells), is_text=key in ("links", "join", "transport")
            )
            for key in cells[0]
        )
    )


def level_cells(levels: Sequence[Level]) -> list[dict[str, str]]:
    """Links of a cluster in words, a row per level."""
    names = ["devices", *(f"{level.name} units" for level in levels)]
    return [
        {
            "links": level.name,
            "join": f"{'any number of' if level.size is None else f'{level.size:,}'} {inside}",
            "bandwidth_per_device": format_rate(level.bandwidth_bytes_per_s, "B/s"),
            "reached": f"{level.reached * 100:.3g} %",
            "latency": duration_text(level.latency_s),
            "transport": _WAYS[level.transport],
        }
        for level, inside in zip(levels, names, strict=False)
    ]
