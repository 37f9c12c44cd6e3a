"""What the columns about framework and hardware mean: a bundled device, the links of a cluster, number formats; what is taken if empty.

The links are those of a bundled cluster with the row's own bandwidths and nodes put in. `docs/measurements.md` lists the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import get_args

from costmodel.framework import Attention, Defaults, Framework, LayerAssumptions, with_attention
from costmodel.hardware.cluster import Cluster, Level, Transport, port_limit
from costmodel.hardware.device import Device
from costmodel.mixed.plan import group_cluster
from costmodel.precision import Precision
from planner.core.errors import PlannerError, did_you_mean
from planner.files.loading import load_cluster, load_device
from planner.files.naming.devices import SPARE_CLUSTER, device_called
from planner.files.naming.frameworks import framework_of
from planner.files.naming.precisions import meanings, precision_called
from planner.files.resources import bundled, bundled_name
from planner.measurements.tables import Row, RowSkipped, short_name


def framework_of_row(row: Row) -> Framework:
    """The framework that a row names, with the attention kernels and the widths of gradients and weights that it states.

    >>> framework_of_row(Row(line=2, cells={"framework": "llm-foundry", "attention_kernels": "newest"})).attention
    'newest'
    >>> framework_of_row(Row(line=2, cells={"gradient_bits": "16", "master_weights": "no"})).defaults.gradient_bytes
    2.0
    """
    found, stated = framework_of(row.text("framework")), row.text("attention_kernels")
    if stated:
        found = replace(found, attention=next(kind for kind in get_args(Attention) if kind == stated))
    bits, master = row.count("gradient_bits"), row.flag("master_weights")
    if bits is not None or master is not None:
        width = found.defaults.gradient_bytes if bits is None else bits / 8.0
        narrow = found.defaults.narrow_weights if master is None else not master
        found = replace(found, defaults=replace(found.defaults, gradient_bytes=width, narrow_weights=narrow))
    return found


def trainer_of_row(row: Row) -> Framework:
    """The same of a training run.

    Raises
    ------
    RowSkipped
        The framework trains nothing.
    """
    found = framework_of_row(row)
    if found.serves:
        raise RowSkipped(f"framework {found.name} serves networks and trains none")
    return found


def defaults_of(row: Row) -> Defaults:
    """What the framework of a row does unless told otherwise."""
    return framework_of_row(row).defaults


def sequence_parallel(row: Row, *, has_experts: bool) -> bool:
    """Whether sequence parallelism stands beside tp: as stated, else what the framework does, else for mixtures of experts only."""
    stated, usual = row.flag("sp"), defaults_of(row).sequence_parallel
    if stated is not None:
        return stated
    return bool(row.default("sp", int(has_experts if usual is None else usual)))


def measured_bytes(row: Row, capacity_bytes: float) -> float | None:
    """Measured memory; None where nothing is stated.

    Raises
    ------
    RowSkipped
        More than the device has: other numbers of the row may be in a wrong unit, too.
    """
    memory = row.number("memory_gib")
    if memory is not None and memory * 2**30 > capacity_bytes:
        raise RowSkipped("memory above that of the device: wrong unit?")
    return None if memory is None else memory * 2**30


# No cost model is off by this much; a share of the device, or TB for GB, is.
_LEAST_MEMORY = 0.1


def plausible_bytes(row: Row, measured: float | None, predicted: float) -> float | None:
    """Measured memory, unless it is so far below what is predicted that its unit must be another one: then nothing, which is counted.

    >>> row = Row(line=2, cells={"memory_gib": "0.62"})
    >>> plausible_bytes(row, 0.62 * 2**30, 50 * 2**30), row.defaults
    (None, {'memory_gib': 'far below the prediction: wrong unit?'})
    """
    if measured is not None and measured < _LEAST_MEMORY * predicted:
        row.default("memory_gib", "far below the prediction: wrong unit?")
        return None
    return measured


def flash_attention(row: Row, number_format: str) -> bool:
    """Whether attention is fused: where nothing is stated, in bf16 and narrower ones (software since 2022), else not."""
    stated = row.flag("flash_attention")
    return row.default("flash_attention", number_format not in ("fp32", "tf32", "fp16")) if stated is None else stated


def has_dropout(row: Row, style: str, *, fused: bool) -> bool:
    """Whether hidden states are dropped: in GPT and BERT with attention written out, and in GPT where the framework's recipes do.

    >>> rows = [Row(line=2, cells={"framework": name}) for name in ("megatron-bridge", "")]
    >>> [has_dropout(row, "gpt", fused=True) for row in rows]
    [True, False]
    """
    stated = row.flag("dropout")
    if stated is not None:
        return stated
    if style == "gpt" and fused and defaults_of(row).drops_hidden_states:
        return row.default("dropout", True)
    return not fused and style in ("gpt", "bert")


_GIB = 2**30
# Relative difference up to which a stated size is that of the device: "80" GB is said of 80 GiB, of 85.9 GB and of 81,559 MiB.
_SAME_MEMORY = 0.12


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What a row says about the links; None where it says nothing."""

    gpus_per_node: int | None = None
    joined: int | None = None  # devices that share the fast links, where these are not those of a node
    intra_bytes_per_s: float | None = None  # per device and direction
    inter_bytes_per_s: float | None = None  # per node and direction
    transport: Transport | None = None  # how data get to the network between nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where a row was measured."""

    device: Device
    cluster: Cluster
    capacity_bytes: float


def machine_of(row: Row, links: Links | None = None) -> Machine:
    """The device and cluster of a row.

    Parameters
    ----------
    row : Row
    links : Links, optional
        In place of what the row's columns say.

    Raises
    ------
    RowSkipped
        No device of that name is bundled.
    """
    name, wanted, attention = row.text("device"), links or links_of(row), framework_of_row(row).attention
    if row.has("device_file") or row.has("cluster_file"):
        cluster = _stated_cluster(row.text("device_file"), row.text("cluster_file"), name, wanted, attention)
        device, states_node = cluster.device, row.has("gpus_per_node")
    else:
        if not name:
            raise RowSkipped("no device is stated", usable=True, needs=(("device", "device_file"),))
        usual = bundled_name("clusters", row.text("cluster")) or row.text("cluster")
        _check_known("device", name)
        if usual:
            _check_known("cluster", usual)
        base = usual or device_called(name)[1]
        device, cluster = _device(name, attention), _cluster(name, base, wanted, attention)
        if (
            wanted.transport is None
            and cluster.levels[-1].transport != _cluster(name, base, Links()).levels[-1].transport
        ):
            row.default("transport", cluster.levels[-1].transport)
        states_node = wanted.joined is not None or bool(row.defaults.get("gpus_per_node"))
    if wanted.gpus_per_node is None and not states_node:
        row.default("gpus_per_node", _node_size(cluster))
    if row.flag("fast_convolutions") is False:  # a library without them
        device = _ONLY_PRODUCTS.device_as_used(device)
    capacity_bytes = _capacity_bytes(device, row.number("device_mem_gb"))
    return Machine(device=device, cluster=cluster, capacity_bytes=capacity_bytes)


_ONLY_PRODUCTS = LayerAssumptions(fast_convolutions=0.0)


def _check_known(kind: str, name: str) -> None:
    known = bundled(f"{kind}s")
    if name not in known:
        near = did_you_mean(short_name(name), known)
        raise RowSkipped(f"{kind} '{short_name(name)}' is not known{near} (planner list {kind}s)", usable=True)


def _capacity_bytes(device: Device, stated_gb: float | None) -> float:
    """Memory that runs had: what the driver shows, no reserve kept. A stated size near the nominal one means the same board."""
    if not stated_gb:
        return device.capacity_bytes
    stated = stated_gb * _GIB
    is_same = abs(stated - device.memory_bytes) <= _SAME_MEMORY * device.memory_bytes
    return min(stated, device.capacity_bytes) if is_same else stated


@cache
def _stated_cluster(device_file: str, cluster_file: str, text: str, links: Links, attention: Attention) -> Cluster:
    try:
        device = load_device(device_file).device if device_file else None
        known = load_cluster(cluster_file).cluster if cluster_file else None
    except PlannerError as error:
        raise RowSkipped(str(error).splitlines()[0], usable=True) from None
    if known is not None and len(known.groups) > 1:
        raise RowSkipped(f"cluster '{known.name}' has several kinds of devices", usable=True)
    if known is None:
        assert device is not None
        name, base = device_called(device.name)
        known = _cluster(name or device_called(text)[0] or "h100-sxm", base, links)  # the links count, not the device
    if known.groups[0].levels:
        known = replace(group_cluster(known, 0), name=known.name)  # its links as it has them
    own = replace(
        known.groups[0], device=with_attention(device or known.device, attention), num_devices=None, levels=()
    )
    if len(known.levels) == 1 and known.levels[0].size is not None:
        return replace(known, groups=(own,), levels=(known.levels[0], _lone_network(known.levels[0])))
    return replace(known, groups=(own,), levels=(*known.levels[:-1], replace(known.levels[-1], size=None)))


def links_of(row: Row) -> Links:
    """Links as the columns of plan-level tables state them.

    >>> cells = {"gpus_per_node": "4", "nvlink_domain": "72", "inter_bw_Gbps_per_node": "1600"}
    >>> found = links_of(Row(line=2, cells=cells))
    >>> found.gpus_per_node, found.joined, found.inter_bytes_per_s
    (4, 72, 200000000000.0)
    >>> links_of(Row(line=2, cells={"gpus_per_node": "8", "nodes": "4", "gpus": "4"})).gpus_per_node
    1
    """
    intra, inter = row.number("intra_bw_GBps"), row.number("inter_bw_Gbps_per_node")
    domain, node = row.count("nvlink_domain"), row.count("gpus_per_node")
    used = _used_per_node(row, node)
    return Links(
        gpus_per_node=used,
        joined=used if domain is not None and domain == node else domain,
        intra_bytes_per_s=None if intra is None else intra * 1e9,
        inter_bytes_per_s=None if inter is None else inter * 1e9 / 8,
        transport=next((way for way in get_args(Transport) if way == row.text("transport")), None),
    )


def _used_per_node(row: Row, most: int | None) -> int | None:
    """Devices of a node that a run uses: fewer than it has where the run is spread over more nodes than it needs."""
    nodes, gpus = row.count("nodes"), row.count("gpus")
    if nodes is None or gpus is None or nodes < 2 or gpus % nodes:
        return most
    used = gpus // nodes
    return used if most is None or used < most else most


@cache
def _device(name: str, attention: Attention = "newest") -> Device:
    return with_attention(load_device(name).device, attention)


@cache
def _cluster(device: str, base: str, links: Links, attention: Attention = "newest") -> Cluster:
    """The usual cluster of a device with other bandwidths and nodes."""
    known = load_cluster(base if base in bundled("clusters") else SPARE_CLUSTER).cluster
    size = _joined(known, links)
    levels = [*known.levels[:-1]] if len(known.levels) > 1 else [known.levels[0]]
    outer = known.levels[-1] if len(known.levels) > 1 else _lone_network(known.levels[0])
    node = _node_level(levels, size, links.intra_bytes_per_s)
    if links.inter_bytes_per_s is not None or links.transport is not None:
        outer = _stated_network(known, outer, links, links.gpus_per_node or size)
    elif size % outer.shared_by:
        outer = replace(outer, shared_by=1)
    group = replace(known.groups[0], device=_device(device, attention), num_devices=None, levels=())
    return replace(known, name=f"{base} as measured", groups=(group,), levels=(*node, replace(outer, size=None)))


# Gb/s of InfiniBand slower than 100: QDR with and without its coding, FDR likewise (InfiniBand Trade Association, roadmap).
_SLOW_INFINIBAND = (32.0, 40.0, 54.5, 56.0, 80.0)
# Of a link of 16 lanes of PCI Express 3.0, which hosts had until 2019. GPUDirect RDMA then needed a module that no driver came with
# (nv_peer_mem; nvidia-peermem is part of NVIDIA's drivers since R470 of 2021).
_OLD_LINK_BYTES_PER_S = 15.75e9


def _stated_network(known: Cluster, outer: Level, links: Links, devices: int) -> Level:
    """The network between nodes with the bandwidth and the transport of a row.

    Where a row does not state its transport, it is that of the usual cluster, with two exceptions: slower networks than 100 Gb/s that are
    no InfiniBand are Ethernet, and hosts on PCI Express 3.0 with fewer adapters than switches had no GPUDirect RDMA: it needs an adapter
    next to the device (NCCL user guide, NCCL_NET_GDR_LEVEL), so machines made for it have one at each switch, as DGX-1 has.
    """
    node = links.inter_bytes_per_s or outer.bandwidth_bytes_per_s * _node_size(known)
    ports = max(1, round(node / (outer.bandwidth_bytes_per_s * outer.shared_by)))
    transport, host = links.transport or outer.transport, known.host
    if links.transport is None and outer.transport == "direct":
        gbps = node * 8e-9
        if gbps < 99.0 and not any(abs(gbps / rate - 1.0) < 0.01 for rate in _SLOW_INFINIBAND):
            transport = "tcp"
        elif host is not None and host.link_bytes_per_s == _OLD_LINK_BYTES_PER_S:
            transport = "host" if ports < host.devices / host.link_shared_by else "direct"
    like = outer
    if (transport == "tcp") != (outer.transport == "tcp"):
        like = load_cluster("ethernet-10g" if transport == "tcp" else SPARE_CLUSTER).cluster.levels[-1]
    limit = outer.port_limit_bytes_per_s if transport == outer.transport else port_limit(transport, host)
    return replace(
        like,
        name=outer.name,
        bandwidth_bytes_per_s=node / devices,
        shared_by=1,
        transport=transport,
        port_limit_bytes_per_s=limit * ports / devices,
    )


# No machine has more devices (DGX-2, trn1): what joins more joins machines, as the torus of a TPU pod and the NVLink of a rack do.
_LARGEST_NODE = 16


def _joined(known: Cluster, links: Links) -> int:
    """Devices that share the fast links: as stated, else those of a node, unless the links of the usual cluster join several nodes."""
    usual = _node_size(known)
    if links.joined is not None:
        return links.joined
    stated = links.gpus_per_node
    return usual if stated is None or stated <= _LARGEST_NODE < usual else stated


def _node_level(levels: list[Level], size: int, bandwidth: float | None) -> tuple[Level, ...]:
    """Levels inside a node of so many devices: the bundled ones as far as they are needed, else one like the innermost.

    A stated bandwidth is that of the innermost.

    >>> pair, node = (Level(name=n, size=s, bandwidth_bytes_per_s=1e9, latency_s=0.0) for n, s in (("pair", 2), ("node", 4)))
    >>> [[level.size for level in _node_level([pair, node], size, None)] for size in (1, 2, 3, 4, 8, 16)]
    [[1], [2], [3], [2, 2], [2, 4], [2, 8]]
    """
    kept, left = [], size
    for level in levels:
        inside = min(level.size or left, left)
        if inside > 1 and left % inside == 0:
            kept.append(replace(level, size=inside))
            left //= inside
    if left > 1 and len(kept) == len(levels):
        kept[-1] = replace(kept[-1], size=left * (kept[-1].size or 1))
    elif left > 1 or not kept:
        kept = [replace(levels[0], size=size, shared_by=1)]
    return tuple(kept) if bandwidth is None else (_with_bandwidth(kept[0], bandwidth), *kept[1:])


def _with_bandwidth(inner: Level, bandwidth: float) -> Level:
    reached = inner.bandwidth_bytes_per_s * inner.efficiency
    if bandwidth < inner.bandwidth_bytes_per_s:
        # Less than the links of the device are built for: what somebody measured, of which nothing more is lost, and no more than what
        # collectives reach.
        kept = tuple(key for key in inner.fitted if key != "efficiency" or reached < bandwidth)
        return replace(inner, bandwidth_bytes_per_s=min(bandwidth, reached), efficiency=1.0, fitted=kept)
    return replace(inner, bandwidth_bytes_per_s=bandwidth)


def _lone_network(level: Level) -> Level:
    """A cluster of one machine (or pod) has no network: machines joined by 10 Gb/s Ethernet."""
    each = 10e9 / 8 / min(level.size or 1, _LARGEST_NODE)
    return Level(
        name="network", size=None, bandwidth_bytes_per_s=each, latency_s=50e-6, efficiency=0.8, transport="tcp"
    )


def usual_node(cluster: Cluster) -> int:
    """Devices of a machine, where the fast links join those of one; 0 where they join several machines."""
    size = _node_size(cluster)
    return size if size <= _LARGEST_NODE else 0


def _node_size(cluster: Cluster) -> int:
    size = 1
    for level in cluster.levels[:-1] or cluster.levels:
        size *= level.size or 8
    return size


def format_of(row: Row, default: str) -> str:
    """Number format of a row."""
    return precision_called(row.text("precision")) or row.default("precision", default)


@cache
def precision_of(
    name: str, formats: frozenset[str], products: str = "", fp8: str | None = None, *, reads_both_ways: bool = False
) -> Precision:
    """Number formats of a run: where a device does not compute in a format, it stores it and computes in the next wider one that it has.

    Parameters
    ----------
    name : str
        Format that is stored.
    formats : frozenset of str
        Those of the device.
    products : str
        Format that products are computed in, where it is another one.
    fp8 : str, optional
        What a framework that trains means by fp8 (`Defaults.fp8`); None: the row is about a kernel.
    reads_both_ways : bool
        See `Device.reads_both_ways`.

    Raises
    ------
    RowSkipped
        The device does not compute products in that format.

    Examples
    --------
    >>> precision_of("fp16", frozenset({"fp32"})).compute, precision_of("fp16", frozenset({"fp32"})).activation_bytes
    ('fp32', 2.0)
    >>> precision_of("fp16", frozenset({"fp16", "fp32"}), "fp32").compute
    'fp32'
    """
    if products and products not in formats:
        raise RowSkipped(f"the device does not compute in {products} (column products)")
    wanted = meanings(name, fp8 or "", serves=fp8 is None)
    known = next((each for each in wanted if each.runs_on(formats)), wanted[-1])
    found = known.on(formats, reads_both_ways=reads_both_ways)
    return replace(found, products=(products,)) if products else found
