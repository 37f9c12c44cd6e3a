"""A cluster: groups of devices, joined by levels of links, and which levels a group of ranks spans.

A level joins units of the level inside it: level 0 joins devices into (say) nodes, level 1 nodes into the cluster. Ranks are
numbered so that they fill a unit before the next begins. A group is ``size`` ranks that are ``stride`` apart; the other ranks belong to
groups of the same form that communicate at the same time, which is what the bandwidths below account for.

A *domain* is the unit of fast links: the innermost one that holds a whole node. A rack of NVLink holds several nodes, and a job may use
equally many devices of every rack and leave the others idle; ranks then fill that share of a domain before the next domain begins.

Transport
---------
An adapter that reads and writes the memory of devices itself (GPUDirect RDMA) carries ``e b``: b nominal, e the share that long messages
reach. Otherwise data pass through the host's memory, and a port carries at most (`port_limit`)

    host   min(e b, h)         RDMA between hosts; copies between device and host, in pieces, go on alongside
    tcp    min(e b, h, k r)    sockets: k connections, of which each carries r

with h what the host lets an adapter have (`Host.staged_bytes_per_s`). NCCL goes through the host unless a kernel module lets adapters reach
the memory of devices (nv_peer_mem, nvidia-peermem), and with sockets always (user guide, NCCL_NET_GDR_LEVEL; src/transport/net_socket.cc).
Over InfiniBand of 100 Gb/s without that module an all-reduce runs at 6 GB/s, half of what was expected (NVIDIA/nccl issue 465); behind a
switch of PCIe 3.0 h is 0.8 x 15.75 / 2 = 6.3 GB/s. What a message takes on its way through the host is part of the latency of the level.

`link_rows` shows the step of a plan from the network: which links its groups use, and how long it waits for each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.hardware.device import Device
from costmodel.hardware.host import Host

# In place of the devices used of a domain: what no number of them beats.
AT_BEST = -1


# How data get from a device to a port: the port reads the device's memory, the host's memory, or the host sends them by TCP. Processors
# of one host that exchange by gloo do so by sockets, too, with no port in between.
Transport = Literal["direct", "host", "tcp", "gloo"]


class ClusterError(ValueError):
    """The description of a cluster contradicts itself."""


def port_limit(transport: Transport, host: Host | None, connections_bytes_per_s: float = math.inf) -> float:
    """Most bytes per second that a port carries whatever its own bandwidth, by the equations of the module.

    Parameters
    ----------
    transport : Transport
    host : Host or None
    connections_bytes_per_s : float
        Of all connections of a port together.

    Examples
    --------
    Four connections of 10 Gb/s carry less than the 6 GB/s that the host would let through.

    >>> host = Host(devices=8, memory_bytes=1e12, link_bytes_per_s=15e9, link_shared_by=2)
    >>> [port_limit(way, host, 4 * 1.25e9) / 1e9 for way in ("direct", "host", "tcp")]
    [inf, 6.0, 5.0]
    """
    staged = math.inf if host is None or transport in ("direct", "gloo") else host.staged_bytes_per_s
    return min(staged, connections_bytes_per_s) if transport == "tcp" else staged


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Links of one kind.

    Attributes
    ----------
    name : str
    size : int or None
        Units of the level inside (devices for the innermost) that one unit of this level joins; None = unlimited, outermost only.
    bandwidth_bytes_per_s : float
        Nominal, per device and direction, when all devices of a unit communicate at once.
    latency_s : float
        From sender to receiver of an empty message, software included.
    shared_by : int
        Neighbouring devices that share one port of this level: fewer of them at a time get more each. 1 = a port of its own.
    efficiency : float
        Share of the nominal bandwidth that long messages reach.
    ring_step_s : float
        Least time of a step of a ring that crosses this level: what a transport takes to hand on one piece after another, besides
        latency and bandwidth. 0 where only those matter.
    in_network : float
        Share of the nominal bandwidth at which switches of this level sum what they pass on; 0 = they do not.
    is_ordered : bool
        The bytes of a message arrive in order, which the protocols of small messages of NCCL rely on.
    transport : Transport
    port_limit_bytes_per_s : float
        Most that a port carries for reasons other than its own bandwidth (`port_limit`).
    fitted : tuple of str
        Which of the numbers above were found from measured collectives: ``latency``, ``efficiency``, ``ring_step``, ``in_network``.
    """

    name: str
    size: int | None
    bandwidth_bytes_per_s: float
    latency_s: float
    shared_by: int = 1
    efficiency: float = 1.0
    ring_step_s: float = 0.0
    in_network: float = 0.0
    is_ordered: bool = True
    transport: Transport = "direct"
    port_limit_bytes_per_s: float = math.inf
    fitted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the numbers."""
        ranges: dict[str, tuple[float | None, bool, str]] = {
            "size": (self.size, self.size is None or self.size >= 1, "at least 1"),
            "bandwidth": (self.bandwidth_bytes_per_s, 0 < self.bandwidth_bytes_per_s < math.inf, "a positive number"),
            "latency": (self.latency_s, 0 <= self.latency_s < math.inf, "0 or more"),
            "shared_by": (self.shared_by, self.shared_by >= 1, "at least 1"),
            "efficiency": (self.efficiency, 0 < self.efficiency <= 1, "above 0 and up to 1"),
            "ring step": (self.ring_step_s, 0 <= self.ring_step_s < math.inf, "0 or more"),
            "in_network": (self.in_network, 0 <= self.in_network <= 1, "from 0 to 1"),
            "port limit": (self.port_limit_bytes_per_s, self.port_limit_bytes_per_s > 0, "a positive number"),
        }
        for what, (value, is_right, expected) in ranges.items():
            if not is_right:
                raise ClusterError(f"level '{self.name}': {what} is {value}, expected {expected}")

    @property
    def port_bytes_per_s(self) -> float:
        """What one port carries in one direction.

        >>> network = Level(name="network", size=None, bandwidth_bytes_per_s=10e9, latency_s=0.0, efficiency=0.9)
        >>> network.port_bytes_per_s / 1e9, replace(network, port_limit_bytes_per_s=6e9).reached
        (9.0, 0.6)
        """
        return min(self.bandwidth_bytes_per_s * self.shared_by * self.efficiency, self.port_limit_bytes_per_s)

    @property
    def reached(self) -> float:
        """Share of the nominal bandwidth that long messages reach, whatever bounds them."""
        return self.port_bytes_per_s / (self.bandwidth_bytes_per_s * self.shared_by)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceGroup:
    """Equal devices; ``num_devices`` None means as many as wanted.

    Attributes
    ----------
    device : Device
    num_devices : int or None
    name : str
        What reports call the group; the device's name unless given.
    levels : tuple of Level
        The innermost levels as this group has them (NVLink of another generation, fewer adapters): as many as given replace
        the cluster's, unit sizes staying the same.
    """

    device: Device
    num_devices: int | None = None
    name: str = ""
    levels: tuple[Level, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Device groups and the levels of links that join them, innermost first.

    Raises
    ------
    ClusterError
        No group or level, an unlimited level that is not the outermost, or ports that straddle units.

    Examples
    --------
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6)
    >>> fabric = Level(name="fabric", size=4, bandwidth_bytes_per_s=10e9, latency_s=5e-6)
    >>> Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, fabric)).max_devices
    32
    """

    name: str
    groups: tuple[DeviceGroup, ...]
    levels: tuple[Level, ...]
    description: str = ""
    host: Host | None = None  # of every node; None: nothing is known of it

    def __post_init__(self) -> None:
        """Check how the levels fit together."""
        if not self.groups:
            raise ClusterError(f"cluster '{self.name}' has no devices")
        if not self.levels:
            raise ClusterError(f"cluster '{self.name}' has no levels of links")
        inside = 1
        for level in self.levels:
            if level.size is None and level is not self.levels[-1]:
                raise ClusterError(f"level '{level.name}': only the outermost level may be unlimited")
            if inside % level.shared_by:
                raise ClusterError(
                    f"level '{level.name}': a port is shared by {level.shared_by} devices, which does not divide "
                    f"the {inside} of a unit inside it"
                )
            inside *= level.size or 1
        for group in self.groups:
            self._check_own_levels(group)

    def _check_own_levels(self, group: DeviceGroup) -> None:
        """A group's own links join the same units as the cluster's."""
        if len(group.levels) > len(self.levels):
            raise ClusterError(f"group '{group.name or group.device.name}' has more levels of links than the cluster")
        inside = 1
        for own, common in zip(group.levels, self.levels, strict=False):
            where = f"group '{group.name or group.device.name}': level '{own.name}'"
            if own.name != common.name or own.size != common.size:
                raise ClusterError(
                    f"{where} of size {own.size} does not match '{common.name}' of size {common.size} of the cluster"
                )
            if inside % own.shared_by:
                raise ClusterError(
                    f"{where}: a port is shared by {own.shared_by} devices, which does not divide the {inside} of a unit"
                )
            inside *= own.size or 1

    @property
    def library(self) -> Literal["nccl", "gloo"]:
        """Library that runs the collectives: gloo where the innermost level says so."""
        return "gloo" if self.levels[0].transport == "gloo" else "nccl"

    @property
    def max_devices(self) -> int | None:
        """Most devices there are; None if unlimited."""
        counts = [group.num_devices for group in self.groups]
        limits = [] if None in counts else [sum(count for count in counts if count is not None)]
        if self.levels[-1].size is not None:
            limits.append(math.prod(level.size or 1 for level in self.levels))
        return min(limits, default=None)

    @property
    def devices_of_node(self) -> int:
        """Devices that one operating system sees: those of the host, else those that the innermost links join."""
        if self.host is not None:
            return self.host.devices
        return self.levels[0].size or self.max_devices or 1

    @property
    def domain_level(self) -> int | None:
        """The innermost level whose units hold a node, the outermost one aside; None where there is none."""
        inside = 1
        for place, level in enumerate(self.levels[:-1]):
            inside *= level.size or 1
            if inside >= self.devices_of_node:
                return place
        return None

    @property
    def num_domain_levels(self) -> int:
        """Levels of links inside a domain: all up to `domain_level`; without one, those that join devices of a node."""
        if self.domain_level is not None:
            return self.domain_level + 1
        return len(self.levels) - 1 if len(self.levels) > 1 else int(self.levels[0].size is not None)

    @property
    def memory_bandwidth_bytes_per_s(self) -> float:
        """Of the device with the slowest memory."""
        return min(group.device.memory_bandwidth_bytes_per_s for group in self.groups)

    @property
    def domain_size(self) -> int | None:
        """Devices of a domain; None where there is none.

        >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
        >>> rack = Level(name="nvlink", size=72, bandwidth_bytes_per_s=900e9, latency_s=1e-6)
        >>> fabric = Level(name="fabric", size=None, bandwidth_bytes_per_s=10e9, latency_s=5e-6)
        >>> Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(rack, fabric)).domain_size
        72
        """
        place = self.domain_level
        return None if place is None else math.prod(level.size or 1 for level in self.levels[: place + 1])

    def shares(self, workers: int) -> tuple[int, ...]:
        """Devices that a job may use of every domain, the most first; empty where it fits into one domain.

        Whole nodes that share the job out evenly and are more than half of a domain: of fewer, two would fit into one. All devices
        where no such number is, the last domain then holding fewer, or where a domain is one node.

        Examples
        --------
        >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
        >>> rack = Level(name="nvlink", size=72, bandwidth_bytes_per_s=900e9, latency_s=1e-6)
        >>> fabric = Level(name="fabric", size=None, bandwidth_bytes_per_s=10e9, latency_s=5e-6)
        >>> host = Host(devices=4, memory_bytes=1e12)
        >>> racks = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(rack, fabric), host=host)
        >>> racks.shares(72), racks.shares(512), racks.shares(576)
        ((), (64, 72), (72, 64, 48))
        """
        size, node = self.domain_size, self.domain_unit
        if size is None or workers <= size:
            return ()
        if not self.has_shares:
            return (size,)
        most = math.inf if self.num_domains is None else self.num_domains
        even = [g for g in range(size - size % node, size // 2, -node) if workers % g == 0 and workers // g <= most]
        return tuple(even if size in even else [*even, size])

    @property
    def has_shares(self) -> bool:
        """Whether a domain holds several nodes, so that a job may use some of them."""
        return self.devices_of_node < (self.domain_size or 0)

    @property
    def domain_unit(self) -> int:
        """What may be used of a domain is a multiple of it: a node; one device where a domain is no more than that."""
        return self.devices_of_node if self.has_shares else 1

    @property
    def domain_name(self) -> str:
        """What to call a domain: "an nvlink domain"."""
        name = "" if self.domain_level is None else self.levels[self.domain_level].name
        return f"{'an' if name[:1] in 'aeinou' else 'a'} {name} domain"

    @property
    def num_domains(self) -> int | None:
        """Domains that there are; None where there is no end."""
        place = self.domain_level
        if place is None or self.levels[-1].size is None:
            return None
        return math.prod(level.size or 1 for level in self.levels[place + 1 :])

    def share(self, workers: ArrayLike) -> IntArray:
        """Devices that a job uses of every domain unless told: the most that share it out evenly, else all; 0 without domains."""
        if not self.has_shares:
            return np.full(np.shape(workers), self.domain_size or 0)
        counts, inverse = np.unique(np.asarray(workers, dtype=np.int64), return_inverse=True)
        each = [(self.shares(count) or (self.domain_size or 0,))[0] for count in counts.tolist()]
        return np.array(each, dtype=np.int64)[inverse].reshape(np.shape(workers))

    @property
    def device(self) -> Device:
        """The device, where all are equal.

        Raises
        ------
        ClusterError
            There are several groups.
        """
        if len(self.groups) > 1:
            names = ", ".join(group.device.name for group in self.groups)
            raise ClusterError(f"cluster '{self.name}' has several kinds of devices: {names}")
        return self.groups[0].device

    def with_device(self, device: Device) -> Cluster:
        """The same links with other devices.

        Raises
        ------
        ClusterError
            There are several groups.
        """
        assert self.device is not None
        return replace(self, groups=(replace(self.groups[0], device=device),))

    def with_ideal_links(self, ppp_comm: float = 1.0) -> Cluster:
        """The links as PALEO sees them: no latency, and one fraction of the nominal bandwidth everywhere."""

        def ideal(levels: tuple[Level, ...]) -> tuple[Level, ...]:
            return tuple(
                replace(
                    level,
                    latency_s=0.0,
                    efficiency=ppp_comm,
                    ring_step_s=0.0,
                    in_network=0.0,
                    port_limit_bytes_per_s=math.inf,
                )
                for level in levels
            )

        groups = tuple(replace(group, levels=ideal(group.levels)) for group in self.groups)
        return replace(self, groups=groups, levels=ideal(self.levels))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpan:
    """How groups of ranks lie over the levels; arrays of shape (levels, ...), innermost level first.

    Attributes
    ----------
    size : array of shape (...)
        Ranks in a group.
    fan_out : array
        Units of the level inside that the group has in the fullest unit of this level; 1 where the level is not spanned.
    units_inside : array
        Units of the level inside that the group touches in all (ranks for level 0).
    most_inside, fewest_inside : array
        Ranks of the group in its fullest and its emptiest unit of the level inside (1 for level 0).
    most_bytes_per_s, fewest_bytes_per_s : array
        Bandwidth of all those ranks together, in one direction over this level, while the other groups do the same.
    single_bytes_per_s : array
        Bandwidth of one rank alone per group.
    """

    size: FloatArray
    fan_out: FloatArray
    units_inside: FloatArray
    most_inside: FloatArray
    fewest_inside: FloatArray
    most_bytes_per_s: FloatArray
    fewest_bytes_per_s: FloatArray
    single_bytes_per_s: FloatArray

    @property
    def is_spanned(self) -> BoolArray:
        """Whether the group communicates over a level."""
        return self.fan_out > 1.0

    def scaled(self, shares: Sequence[float]) -> GroupSpan:
        """The same where only a share of the bandwidth of every level is had."""
        if all(share == 1.0 for share in shares):
            return self
        column = np.reshape(np.asarray(shares, dtype=np.float64), (-1, *(1,) * (self.fan_out.ndim - 1)))
        rates = ("most_bytes_per_s", "fewest_bytes_per_s", "single_bytes_per_s")
        return replace(self, **{name: getattr(self, name) * column for name in rates})


def span(
    cluster: Cluster,
    size: ArrayLike,
    stride: ArrayLike,
    workers: ArrayLike | None = None,
    domain: ArrayLike | None = None,
) -> GroupSpan:
    """Lay groups of ranks over the levels of a cluster.

    Parameters
    ----------
    cluster : Cluster
    size : array
        Ranks of a group.
    stride : array
        Distance of neighbours in rank order; ``stride`` groups are interleaved.
    workers : array, optional
        All ranks in use. Where given, groups that do not divide the units may lie across a boundary, and the worst group counts;
        otherwise the group that starts at rank 0.
    domain : array, optional
        Devices used of every domain; unless given those of `Cluster.share`, or all where ``workers`` is not given. `AT_BEST`: a group that
        is no worse off than with any number of them.

    Returns
    -------
    GroupSpan
        The outermost level is taken as large as needed.

    Notes
    -----
    A group covers a block of ``b = size stride`` neighbouring ranks. Blocks start at multiples of ``c = gcd(b, C)`` inside units of
    capacity C, a group that is alone at 0. So the worst touches ``ceil((C - c + b) / C)`` units, or one per rank where the stride is
    larger than C, and has c ranks of its block in the emptiest of them, C where the blocks fill their units.

    A port of a level serves ``shared_by`` neighbouring ranks, so ``min(stride, shared_by)`` groups share it. M ranks in a unit reach
    ``min(M, ceil(M stride / shared_by))`` ports, and never send more than they can get out over the levels inside.

    No number of devices per domain lets a block touch fewer than ``ceil(b / C)`` domains, or has more of it in the emptiest one than
    the mean; a smaller number may have less to do over the levels inside.

    Examples
    --------
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6)
    >>> fabric = Level(name="fabric", size=None, bandwidth_bytes_per_s=10e9, latency_s=5e-6)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, fabric))
    >>> s = span(cluster, [8, 32, 4], [1, 1, 8])
    >>> s.fan_out.tolist()  # inside one node; 8 in each of 4 nodes; one in each of 4 nodes
    [[8.0, 8.0, 1.0], [1.0, 4.0, 4.0]]
    >>> (s.fewest_bytes_per_s[1] / 1e9).tolist()  # out of a node
    [80.0, 80.0, 10.0]
    >>> worst = span(cluster, 3, 1, 12)  # of ranks 6, 7 and 8 two are on the first node
    >>> worst.units_inside[1].tolist(), worst.most_inside[1].tolist(), worst.fewest_inside[1].tolist()
    (2.0, 2.0, 1.0)
    """
    n, t = np.broadcast_arrays(np.asarray(size, dtype=np.float64), np.asarray(stride, dtype=np.float64))
    every = n * t if workers is None else workers
    if domain is None:
        domain = (cluster.domain_size or 0) if workers is None else cluster.share(workers)
    n, t, every, used = np.broadcast_arrays(n, t, *(np.asarray(x, dtype=np.float64) for x in (every, domain)))
    block, at_best, place = n * t, used == AT_BEST, cluster.domain_level
    fits = block <= (cluster.domain_size or 0)
    rows: list[tuple[FloatArray, ...]] = []
    inside, units, most, fewest, whole = np.ones_like(n), n, np.ones_like(n), np.ones_like(n), 1.0
    # What the ranks of a unit can get out over the levels inside it.
    most_limit = single_limit = np.full_like(n, np.inf)
    for number, level in enumerate(cluster.levels):
        most_rate = np.minimum(_ports_bytes_per_s(level, most, t, inside), most_limit)
        fewest_rate = np.minimum(
            _ports_bytes_per_s(level, fewest, t, inside), np.minimum(fewest * single_limit, most_limit)
        )
        single_limit = np.minimum(_ports_bytes_per_s(level, np.ones_like(n), t, inside), single_limit)
        whole = math.inf if level.size is None or level is cluster.levels[-1] else whole * level.size
        capacity = inside * whole if math.isinf(whole) else inside * (level.size or 1)
        if number == place:
            capacity = np.minimum(used, whole)
        if not math.isinf(whole):
            even = np.ceil(block / np.ceil(block / whole))
            capacity = np.where(at_best, np.where(fits | (block <= whole), whole, even), capacity)
        here = _units(n, t, capacity, every, even=at_best)
        joined = np.ceil(capacity / np.maximum(t, inside))
        fan_out = np.maximum(np.minimum(units - (here.touched - 1.0), joined), 1.0)
        # Inside a domain that the group leaves, a smaller share may have less to do.
        shown = np.where(at_best & ~fits & (here.touched > 1.0), 1.0, fan_out)
        rows.append((shown, units, most, fewest, most_rate, fewest_rate, single_limit))
        most_limit = fan_out * most_rate
        units, most, fewest, inside = here.touched, here.most, here.fewest, capacity
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    return GroupSpan(
        size=n,
        fan_out=columns[0],
        units_inside=columns[1],
        most_inside=columns[2],
        fewest_inside=columns[3],
        most_bytes_per_s=columns[4],
        fewest_bytes_per_s=columns[5],
        single_bytes_per_s=columns[6],
    )


@dataclass(frozen=True, slots=True)
class _Units:
    """Units of one capacity that a group touches, and its ranks in the fullest and the emptiest of them."""

    touched: FloatArray
    most: FloatArray
    fewest: FloatArray


def _units(size: FloatArray, stride: FloatArray, capacity: FloatArray, workers: FloatArray, even: BoolArray) -> _Units:
    """Lay groups over units of a capacity; ``even``: as evenly as can be."""
    block = size * stride
    room = np.where(np.isinf(capacity), block, capacity)
    alone = even | (workers <= block) | (workers <= room)
    common = np.gcd(np.rint(block).astype(np.int64), np.rint(room).astype(np.int64))
    start = np.where(alone, room, common)
    touched = np.minimum(np.ceil((room - start + block) / room), size)
    most = np.minimum(size - (touched - 1.0), np.ceil(room / stride))
    rest = np.mod(block, room)
    left = np.where(alone & (rest > 0), rest, start)
    fewest = np.where(even, most, np.clip(np.floor(left / stride), 1.0, most))
    is_one = touched <= 1.0
    return _Units(touched, np.where(is_one, size, most), np.where(is_one, size, fewest))


def _ports_bytes_per_s(level: Level, members: FloatArray, stride: FloatArray, inside: FloatArray) -> FloatArray:
    """Bandwidth of a group's members of one unit over the ports of the unit, of which so many devices are in use."""
    shared = np.minimum(level.shared_by, inside)
    sharing = np.minimum(stride, shared)
    ports = np.minimum(members, np.ceil(members * stride / shared))
    return np.asarray(ports * level.port_bytes_per_s / sharing)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """One kind of traffic of a plan.

    Attributes
    ----------
    traffic : str
        What travels: "tensor parallel".
    group : int
        Ranks that take part together.
    stride : int
        Distance of neighbours in the numbering of the ranks.
    level : str
        Outermost level of links that a group spans.
    bytes_per_s : float
        What a rank reaches over it while all others do the same, in one direction.
    waiting_s : float
        Of a step.
    domains : int
        Domains of fast links that the worst group touches.
    fewest_ranks, most_ranks : int
        Ranks of that group in the emptiest and in the fullest of them.
    """

    traffic: str
    group: int
    stride: int
    level: str
    bytes_per_s: float
    waiting_s: float
    domains: int
    fewest_ranks: int
    most_ranks: int


def link_rows(cluster: Cluster, found: Iterable[tuple[str, GroupSpan, int, float]]) -> list[LinkRow]:
    """Rows of traffic: what travels, how one group lies, its stride, seconds waited; groups of one rank have no link and are left out.

    Examples
    --------
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6)
    >>> fabric = Level(name="fabric", size=None, bandwidth_bytes_per_s=10e9, latency_s=5e-6)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, fabric))
    >>> (row,) = link_rows(cluster, [("tensor parallel", span(cluster, 6, 1, 24), 1, 0.1)])
    >>> row.level, row.bytes_per_s, row.domains, row.fewest_ranks, row.most_ranks  # ranks 6 and 7, and 8 to 11
    ('fabric', 10000000000.0, 2, 2, 4)
    """
    rows, place = [], cluster.domain_level
    for traffic, where, stride, waiting_s in found:
        size = int(where.size)
        if size <= 1:
            continue
        spanned = np.flatnonzero(where.is_spanned)
        at = int(spanned[-1]) if len(spanned) else 0
        domains, fewest, most = 1, size, size
        if place is not None:
            lies = (where.units_inside, where.fewest_inside, where.most_inside)
            domains, fewest, most = (int(value[place + 1]) for value in lies)
        shares = (where.most_bytes_per_s / where.most_inside, where.fewest_bytes_per_s / where.fewest_inside)
        rows.append(
            LinkRow(
                traffic=traffic,
                group=size,
                stride=stride,
                level=cluster.levels[at].name,
                bytes_per_s=min(float(share[at]) for share in shares),
                waiting_s=waiting_s,
                domains=domains,
                fewest_ranks=fewest,
                most_ranks=min(most, size - (domains - 1) * fewest),
            )
        )
    return rows
