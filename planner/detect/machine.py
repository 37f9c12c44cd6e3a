"""Puts together what was found: the devices, levels of links and files of the machine that this runs on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from planner.core.errors import PlannerError
from planner.detect.devices import FoundDevice, device_of_gpu, device_of_processor, find_processor
from planner.detect.links import FoundLevel, adapters_near, find_adapters, host_level, inner_levels, network_level
from planner.detect.nvidia import Gpu, Topology, find_gpus, find_nvlinks, find_topology
from planner.detect.system import System

__all__ = ["FoundMachine", "detect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMachine:
    """A machine.

    Attributes
    ----------
    name : str
        For the cluster file.
    devices : tuple of (FoundDevice, int)
        Kinds of devices and how many there are of each.
    levels : tuple of FoundLevel
        Innermost first.
    remarks : tuple of str
        For the user: programs that failed, adapters that were left out.
    """

    name: str
    description: str
    devices: tuple[tuple[FoundDevice, int], ...]
    device_source: str
    levels: tuple[FoundLevel, ...]
    remarks: tuple[str, ...] = ()


def detect(system: System, *, nodes: int = 1, processes: int = 1, only_processor: bool = False) -> FoundMachine:
    """Find out what a machine is; never fails for want of a program or a file.

    Parameters
    ----------
    system : System
    nodes : int
        Machines like this one that the cluster shall have.
    processes : int
        Among which the processors of a machine are divided.
    only_processor : bool
        Leave GPUs aside.
    """
    gpus = () if only_processor else find_gpus(system)
    return _with_gpus(system, gpus, nodes) if gpus else _without_gpus(system, nodes, processes)


def _with_gpus(system: System, gpus: tuple[Gpu, ...], nodes: int) -> FoundMachine:
    topology, nvlinks = find_topology(system), find_nvlinks(system)
    found = [device_of_gpu(gpu) for gpu in gpus]
    counts = Counter(device.name for device in found)
    kinds = {device.name: device for device in found}
    usual = _usual_links(found[0].usual_cluster)
    adapters = find_adapters(system)
    near = adapters_near(adapters, topology)
    levels = [
        *inner_levels(gpus, topology, nvlinks, usual),
        network_level(near, len(gpus), nodes, usual, total=len(adapters)),
    ]
    remarks = []
    if any(gpu.is_cut for gpu in gpus):
        remarks.append("MIG is on: each GPU is described whole; an instance has only a part of its memory and rates")
    words = " and ".join(f"{count} x {kinds[name].label}" for name, count in counts.items())
    return FoundMachine(
        name="-and-".join(f"{count}x-{name}" for name, count in counts.items())[:64].strip("-"),
        description=f"machine with {words}",
        devices=tuple((kinds[name], count) for name, count in counts.items()),
        device_source=f"nvidia-smi: {words}",
        levels=tuple(levels),
        remarks=tuple(remarks),
    )


def _without_gpus(system: System, nodes: int, processes: int) -> FoundMachine:
    processor = find_processor(system)
    device = device_of_processor(processor)
    adapters = find_adapters(system)
    near = adapters_near(adapters, Topology()) if adapters else []
    return FoundMachine(
        name=device.name[:56].strip("-") + "-machine",
        description=f"machine without GPUs: {device.label}",
        devices=((device, 1),),
        device_source="lscpu and /proc; nvidia-smi reports no GPU",
        levels=(host_level(processes), network_level(near, processes, nodes, {}, total=len(adapters))),
    )


def _usual_links(cluster: str) -> Mapping[str, tuple[float, float]]:
    """Latency and efficiency by level of a bundled cluster; nothing where it is not bundled."""
    from planner.files.loading import load_cluster

    try:
        levels = load_cluster(cluster).cluster.levels
    except PlannerError:
        return {}
    return {level.name: (level.latency_s, level.efficiency) for level in levels}
