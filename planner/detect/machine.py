"""Puts together what was found: the devices, levels of links and files of the machine that this runs on.

The links of a machine (NVLink, PCI Express, network adapters of sysfs) become the levels of a cluster file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.core.errors import PlannerError, UsageError
from planner.core.numbers import counted
from planner.detect.devices import Fact, FoundDevice, device_of_gpu, device_of_processor, find_processor, number_text
from planner.detect.nvidia import Gpu, Topology, find_gpus, parse_nvlinks, parse_topology
from planner.detect.system import System

_INFINIBAND = "/sys/class/infiniband"
_NETWORK = "/sys/class/net"


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A port of a network adapter that is up; ``is_remote_memory`` where it can write to another machine's memory (RDMA)."""

    name: str
    kind: str  # "infiniband" or "ethernet"
    bytes_per_s: float | None
    is_remote_memory: bool
    source: str


def find_adapters(system: System) -> tuple[Adapter, ...]:
    """Ports that are up: those of RDMA adapters where there are any, else Ethernet ports of real hardware."""
    return tuple(_remote_memory(system)) or tuple(_ethernet(system))


def _remote_memory(system: System) -> Sequence[Adapter]:
    found = []
    for name in system.names(_INFINIBAND):
        for port in system.names(f"{_INFINIBAND}/{name}/ports"):
            folder = f"{_INFINIBAND}/{name}/ports/{port}"
            # "4: ACTIVE"; "400 Gb/sec (4X NDR)" (kernel documentation, ABI/stable/sysfs-class-infiniband)
            if "ACTIVE" not in (system.read(f"{folder}/state") or ""):
                continue
            rate = re.match(r"(\d{1,5}(?:\.\d+)?) Gb/sec", system.read(f"{folder}/rate") or "")
            kind = "ethernet" if (system.read(f"{folder}/link_layer") or "") == "Ethernet" else "infiniband"
            found.append(
                Adapter(
                    name=name,
                    kind=kind,
                    bytes_per_s=float(rate[1]) * 1e9 / 8 if rate and float(rate[1]) > 0 else None,
                    is_remote_memory=True,
                    source=f"{folder}/rate",
                )
            )
    return found


def _ethernet(system: System) -> Sequence[Adapter]:
    found = []
    for name in system.names(_NETWORK):
        folder = f"{_NETWORK}/{name}"
        # Bridges, tunnels and the loopback have no device behind them; a wireless port joins no cluster.
        if not system.exists(f"{folder}/device") or system.exists(f"{folder}/wireless"):
            continue
        if system.read(f"{folder}/operstate") != "up":
            continue
        # In Mb/s; -1 where a virtual adapter does not know (kernel documentation, ABI/testing/sysfs-class-net)
        speed = re.fullmatch(r"\d{1,7}", system.read(f"{folder}/speed") or "")
        known = float(speed[0]) * 1e6 / 8 if speed and int(speed[0]) > 0 else None
        found.append(
            Adapter(name=name, kind="ethernet", bytes_per_s=known, is_remote_memory=False, source=f"{folder}/speed")
        )
    return found


# GT/s per lane and share of payload bits, by generation (PCI-SIG): 8b/10b, then 128b/130b; generation 6 and later carry flits.
_PCIE = {
    1: (2.5, 0.8),
    2: (5.0, 0.8),
    3: (8.0, 128 / 130),
    4: (16.0, 128 / 130),
    5: (32.0, 128 / 130),
    6: (64.0, 242 / 256),
}
# Data rate of an NVLink in one direction, and links per GPU, by compute capability (NVIDIA's architecture white papers of Pascal, Volta,
# Ampere, Hopper and Blackwell). nvidia-smi shows the rate on the wire, which is up to 8 % more: 26.562 for 25 GB/s.
_NVLINK = {"6": (20e9, 4), "7": (25e9, 6), "8": (25e9, 12), "9": (25e9, 18), "10": (50e9, 18)}
_NVLINK_DATA = (20e9, 25e9, 50e9)
_WIRE_SHARE = 1.08
_MOST_NVLINKS = 18
_FAR = ("PHB", "NODE", "SYS", "SOC")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLevel:
    """A level of a cluster file."""

    name: str
    size: int
    facts: tuple[Fact, ...]
    source: str


def inner_levels(
    gpus: Sequence[Gpu],
    topology: Topology,
    nvlinks: Mapping[int, Sequence[float]],
    usual: Mapping[str, tuple[float, float]],
) -> list[FoundLevel]:
    """Levels inside a machine, innermost first; none for a single GPU.

    Parameters
    ----------
    gpus : sequence of Gpu
    topology : Topology
    nvlinks : mapping
        Bytes/s of the active NVLinks by GPU.
    usual : mapping
        Name of a level of the bundled cluster that the device usually stands in -> its latency (s) and efficiency.
    """
    if len(gpus) < 2:
        return []
    islands = _islands(gpus, topology)
    sizes = {len(island) for island in islands}
    levels = []
    inside = sizes.pop() if len(sizes) == 1 else 1
    if inside > 1:
        levels.append(_nvlink_level(gpus, inside, topology, nvlinks, usual.get("nvlink")))
    if len(gpus) > inside:
        uneven = (
            "NVLinks join groups of unequal size and are left out; " if len(islands) < len(gpus) and inside == 1 else ""
        )
        levels.append(_pcie_level(gpus, len(gpus) // inside, uneven))
    return levels


def _islands(gpus: Sequence[Gpu], topology: Topology) -> list[set[int]]:
    """Sets of GPUs that NVLinks join, through others too."""
    islands = [{gpu.index} for gpu in gpus]
    for a, b in topology.gpus:
        joined = [island for island in islands if a in island or b in island]
        if topology.nvlinks(a, b) and len(joined) == 2:
            islands = [*(island for island in islands if island not in joined), joined[0] | joined[1]]
    return islands


def _nvlink_level(
    gpus: Sequence[Gpu],
    size: int,
    topology: Topology,
    nvlinks: Mapping[int, Sequence[float]],
    usual: tuple[float, float] | None,
) -> FoundLevel:
    generation = (gpus[0].compute_capability or "").split(".", maxsplit=1)[0]
    rate, most = _NVLINK.get(generation, (25e9, _MOST_NVLINKS))
    speeds = [nvlinks[gpu.index] for gpu in gpus if nvlinks.get(gpu.index)]
    if speeds:
        weakest = min(speeds, key=sum)
        wire = sum(weakest) / len(weakest)
        rate = next((data for data in _NVLINK_DATA if data <= wire <= _WIRE_SHARE * data), wire)
        count, known = len(weakest), True
        how = f"nvidia-smi nvlink -s: {count} links of {wire / 1e9:g} GB/s per GPU and direction, {rate / 1e9:g} GB/s of them data"
    else:
        count = _links_of_matrix(gpus, topology, most)
        known = bool(generation)
        how = f"nvidia-smi topo -m: {count} NVLinks per GPU of {rate / 1e9:g} GB/s in each direction (NVIDIA architecture white paper)"
    latency_s, efficiency = usual or (4e-6, 0.8)
    like = (
        "as measured on the bundled cluster of this device"
        if usual
        else "as bundled clusters with NVLink (0.77 to 0.82)"
    )
    return FoundLevel(
        name="nvlink",
        size=size,
        facts=(
            Fact(key="bandwidth", text=f"{number_text(count * rate / 1e9)} GB/s", source=how, is_known=known),
            Fact(key="latency", text=f"{number_text(latency_s * 1e6)} us", source=like, is_known=False),
            Fact(key="efficiency", text=number_text(efficiency), source=like, is_known=False, is_mapping=True),
        ),
        source=how,
    )


def _links_of_matrix(gpus: Sequence[Gpu], topology: Topology, most: int) -> int:
    """NVLinks of a GPU from the counts between pairs: they add up where GPUs are wired to one another, not behind a switch."""
    counts = []
    for gpu in gpus:
        to_others = [topology.nvlinks(gpu.index, other.index) for other in gpus if other is not gpu]
        counts.append(sum(to_others) if sum(to_others) <= most else max(to_others))
    return max(min(counts), 1)


def _pcie_level(gpus: Sequence[Gpu], size: int, remark: str) -> FoundLevel:
    slowest = min(gpus, key=lambda gpu: (gpu.pcie_generation or 0) * (gpu.pcie_lanes or 0))
    generation, lanes = slowest.pcie_generation or 0, slowest.pcie_lanes or 0
    known = generation in _PCIE and lanes > 0
    if not known:
        generation, lanes = 4, 16
    rate, share = _PCIE[generation]
    how = f"PCI Express {generation}.0 x{lanes}: {lanes} lanes x {rate:g} GT/s x {share:.3g}"
    like = "as bundled pcie4-node"  # whose file says where its 0.75 comes from
    return FoundLevel(
        name="pcie",
        size=size,
        facts=(
            Fact(
                key="bandwidth",
                text=f"{number_text(round(lanes * rate * share / 8, 2))} GB/s",
                source=how,
                is_known=known,
            ),
            Fact(key="latency", text="10 us", source=like, is_known=False),
            Fact(key="efficiency", text="0.75", source=like, is_known=False, is_mapping=True),
        ),
        source=remark + (f"nvidia-smi --query-gpu=pcie.link.gen.max,pcie.link.width.max; {how}" if known else how),
    )


def adapters_near(adapters: Sequence[Adapter], topology: Topology) -> list[Adapter]:
    """Adapters that serve GPUs: of those that sysfs found, the fastest, and those that share a PCI switch with a GPU where any do."""
    known = [adapter for adapter in adapters if adapter.bytes_per_s] or list(adapters)
    fastest = max((adapter.bytes_per_s or 0.0 for adapter in known), default=0.0)
    known = [adapter for adapter in known if (adapter.bytes_per_s or 0.0) == fastest]
    near = [
        adapter
        for adapter in known
        if any(relation not in _FAR for relation in topology.adapters.get(adapter.name, {}).values())
    ]
    return near or known


def network_level(
    adapters: Sequence[Adapter], devices: int, nodes: int, usual: Mapping[str, tuple[float, float]], *, total: int = 0
) -> FoundLevel:
    """The outermost level: machines like this one, joined by its adapters.

    Parameters
    ----------
    adapters : sequence of Adapter
        Equal ones that serve the devices.
    devices : int
        Of this machine.
    nodes : int
    usual : mapping
        As for `inner_levels`.
    total : int
        Adapters that are up, these and others.
    """
    kind = adapters[0].kind if adapters else "ethernet"
    is_remote_memory = bool(adapters) and adapters[0].is_remote_memory
    rate = adapters[0].bytes_per_s if adapters else None
    known = rate is not None
    per_port = rate if rate is not None else 10e9 / 8  # the slowest network that clusters of GPUs still have
    ports = min(max(len(adapters), 1), devices)
    if devices % ports:  # what one of several adapters has to carry does not come out even: one port as fast as all
        per_port, ports = per_port * ports, 1
    names = ", ".join(adapter.name for adapter in adapters[:16])
    how = f"{adapters[0].source} of {names}" if known else "no adapter states its speed, 10 Gb/s Ethernet"
    if total > len(adapters):
        how += f"; {total - len(adapters)} more adapters are slower or farther from the GPUs"
    latency_s, efficiency = usual.get("infiniband", (10e-6, 0.95)) if is_remote_memory else (50e-6, 0.8)
    like = "as bundled clusters with RDMA" if is_remote_memory else "as bundled ethernet-10g"
    shared = Fact(key="shared_by", text=str(devices // ports), source=how, is_known=known, is_mapping=True)
    how_many = "NCCL opens one for each of at least two channels, of 16 to 20 Gb/s by one core (NVIDIA/nccl issue 450)"
    of_sockets = (
        Fact(key="transport", text="tcp", source="no RDMA adapter", is_known=bool(adapters), is_mapping=True),
        Fact(key="connections", text="2", source=how_many, is_known=False, is_mapping=True),
        Fact(key="connection_bandwidth", text="16 Gb/s", source=how_many, is_known=False),
    )
    facts = (
        Fact(key="bandwidth", text=f"{number_text(per_port * 8 / 1e9)} Gb/s", source=how, is_known=known),
        *([shared] if devices // ports > 1 else []),
        Fact(key="latency", text=f"{number_text(latency_s * 1e6)} us", source=like, is_known=False),
        Fact(key="efficiency", text=number_text(efficiency), source=like, is_known=False, is_mapping=True),
        *(() if is_remote_memory else of_sockets),
    )
    return FoundLevel(name=kind, size=nodes, facts=facts, source=how)


def host_level(processes: int = 1) -> FoundLevel:
    """Processes of one machine without GPUs talk through its memory; only measurements with several processes use this level."""
    how = "loopback, one core copies in and out of the kernel's buffers at some 2 GB/s"
    return FoundLevel(
        name="host",
        size=processes,
        facts=(
            Fact(key="bandwidth", text="2 GB/s", source=how, is_known=False),
            Fact(
                key="latency",
                text="250 us",
                source="gloo wakes a thread on either side: 0.2 to 0.6 ms between processes that compute, on a virtual machine",
                is_known=False,
            ),
            Fact(
                key="transport",
                text="gloo",
                source="PyTorch's library of collectives for processors",
                is_mapping=True,
            ),
        ),
        source="assumption, see the comments; planner measure under torchrun times it",
    )


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


def detect(system: System, *, nodes: int = 1, cores_per_device: int | None = None, processes: int = 1) -> FoundMachine:
    """Find out what a machine is; never fails for want of a program or a file.

    Parameters
    ----------
    system : System
    nodes : int
        Machines like this one that the cluster shall have.
    cores_per_device : int, optional
        Leave GPUs aside: so many cores of the processors are a device.
    processes : int
        Devices of that size at most; 0: as many as there are cores for.

    Raises
    ------
    UsageError
        A device would have more cores than the machine.
    """
    gpus = () if cores_per_device else find_gpus(system)
    return _with_gpus(system, gpus, nodes) if gpus else _without_gpus(system, nodes, cores_per_device, processes)


def _with_gpus(system: System, gpus: tuple[Gpu, ...], nodes: int) -> FoundMachine:
    topology = parse_topology(system.run("nvidia-smi", "topo", "-m") or "")
    nvlinks = parse_nvlinks(system.run("nvidia-smi", "nvlink", "-s") or "")
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
    has_remote_memory = any(adapter.is_remote_memory for adapter in near)
    remarks = {
        _NO_PEER_MEMORY: has_remote_memory and not any(map(system.exists, _PEER_MEMORY)),
        "MIG is on: each GPU is described whole; an instance has only a part of its memory and rates": any(
            gpu.is_cut for gpu in gpus
        ),
    }
    words = " and ".join(f"{count} x {kinds[name].label}" for name, count in counts.items())
    return FoundMachine(
        name="-and-".join(f"{count}x-{name}" for name, count in counts.items())[:64].strip("-"),
        description=f"machine with {words}",
        devices=tuple((kinds[name], count) for name, count in counts.items()),
        device_source=f"nvidia-smi: {words}",
        levels=tuple(levels),
        remarks=tuple(remark for remark, holds in remarks.items() if holds),
    )


# Kernel modules by which RDMA adapters read the memory of GPUs. Newer kernels and drivers can do without, by DMA-BUF (NCCL user guide,
# NCCL_DMABUF_ENABLE), which no file tells.
_PEER_MEMORY = ("/sys/module/nvidia_peermem", "/sys/module/nv_peer_mem")
_NO_PEER_MEMORY = (
    "neither nvidia_peermem nor nv_peer_mem is loaded: unless NCCL_DEBUG=INFO shows GDRDMA, data pass through the host; give the network "
    "'transport: host', and the host its link"
)


def _without_gpus(system: System, nodes: int, cores_per_device: int | None, processes: int) -> FoundMachine:
    processor = find_processor(system)
    cores = cores_per_device or processor.cores
    if cores > processor.cores:
        has = counted(processor.cores, "core")
        raise UsageError(
            f"--cores-per-device {cores}: this process may use {has}, so a device has 1 to {processor.cores}"
        )
    processes = processes or processor.cores // cores
    device = device_of_processor(processor.share(cores, processes))
    left = processor.cores - cores * processes
    remarks = (
        (f"{left} of {processor.cores} cores are left over: devices of {cores} do not use them",) if left > 0 else ()
    )
    adapters = find_adapters(system)
    near = adapters_near(adapters, Topology()) if adapters else []
    words = f"{processes} x {device.label}" if processes > 1 else device.label
    why = f"a device is {cores} of the cores" if cores_per_device else "nvidia-smi reports no GPU"
    return FoundMachine(
        name=device.name[:56].strip("-") + "-machine",
        description=f"{'machine without GPUs' if cores_per_device is None else 'processors of a machine'}: {words}",
        devices=((device, processes),),
        device_source=f"lscpu and /proc; {why}",
        levels=(host_level(processes), network_level(near, processes, nodes, {}, total=len(adapters))),
        remarks=remarks,
    )


def _usual_links(cluster: str) -> Mapping[str, tuple[float, float]]:
    """Latency and efficiency by level of a bundled cluster; nothing where it is not bundled."""
    from planner.files.loading import load_cluster

    try:
        levels = load_cluster(cluster).cluster.levels
    except PlannerError:
        return {}
    return {level.name: (level.latency_s, level.efficiency) for level in levels}
