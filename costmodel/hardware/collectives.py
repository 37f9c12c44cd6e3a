"""Time of collective operations: latency and bandwidth (alpha-beta: R. Hockney, Parallel Computing 20, 1994), at any group size.

Symbols: n ranks, a message of B bytes, and per level of the cluster, innermost first: c units joined, latency a, and
G, the bandwidth with which all ranks of the group in one unit together leave it (`costmodel.hardware.cluster.GroupSpan`), the other groups
communicating too. On one level G is the bandwidth of a device. All links are full duplex.

Whose B it is: all_reduce, the vector that every rank has; all_gather, the gathered tensor; reduce_scatter, the tensor before it is
reduced; all_to_all, what one rank holds (it keeps 1/n of it); point_to_point, what is sent.

A group of one rank takes exactly no time, and so does an empty message.

To add an algorithm, write its formula here and decorate it; their order breaks ties. In the formulas P is the bandwidth with which one rank
alone leaves a unit; on one level G = P is the bandwidth of a device.

Libraries send by one of several protocols (`Protocol`), which scale a and G: a formula holds for each of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware.cluster import Cluster, GroupSpan

OPERATIONS: tuple[str, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "point_to_point")


class CollectiveError(ValueError):
    """No such collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One call: messages, where the group lies, and what the levels are like; rows are levels.

    ``in_network`` is the bandwidth at which the switches of a level sum, over that at which they pass messages on; 0 where they do not.
    ``post_s`` is what it takes to hand the network one message more. The first ``in_domain`` levels lie inside a domain of fast links.
    """

    message_bytes: FloatArray
    span: GroupSpan
    latency_s: tuple[float, ...]
    ring_step_s: tuple[float, ...]
    in_network: tuple[float, ...]
    post_s: tuple[float, ...]
    in_domain: int

    @property
    def levels(self) -> range:
        """Indices of the levels, innermost first."""
        return range(len(self.latency_s))


Formula = Callable[[Traffic], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol:
    """How a library hands messages on, inside a domain of fast links and between domains.

    Attributes
    ----------
    name : str
    latency : tuple of two floats
        Of a step, as a share of that of `Level.latency_s`, which is a step with all checks.
    post : tuple of two floats
        Of each message that is sent while another one is on its way, as a share of the same.
    rate : tuple of two floats
        Share of the bandwidth that data get.
    start_s : float
        What starting takes beyond the quickest protocol.
    is_ordered : bool
        Needs links that deliver the bytes of a message in order.
    stays_in_domain : bool
        Needs links by which devices read the memory of one another.
    copies : bool
        What arrives lands in the library's buffers and is copied to its place.
    in_flight : float
        Pieces that a rank of a ring may send its neighbour before the first is acknowledged.
    most_bytes : float
        Bytes to each rank up to which the library takes it.
    library : "nccl", "engine" or "gloo"
        Whose it is: of NCCL and its like, of serving engines, of gloo.
    wakes : float
        Latencies of a step that waking the library's own threads takes, once.
    """

    name: str
    library: str = "nccl"
    wakes: float = 0.0
    latency: tuple[float, float] = (1.0, 1.0)
    post: tuple[float, float] = (1.0, 1.0)
    rate: tuple[float, float] = (1.0, 1.0)
    start_s: float = 0.0
    is_ordered: bool = False
    stays_in_domain: bool = False
    copies: bool = False
    in_flight: float = np.inf
    most_bytes: float = np.inf


# NCCL's own model of its protocols, NVIDIA/nccl src/graph/tuning.cc of 2.28 (Zhiyi Hu et al., Demystifying NCCL, arXiv:2507.04786, says
# how they work). LL sends a flag with every 4 bytes, LL128 with every 120; Simple synchronises by memory fences after each piece.
# Latencies of a step of LL, LL128 and Simple (hwLat): NVLink 0.6, 1.9 and 3.4 us (ring), network 5.0, 8.5 and 14 us (tree).
# Bandwidths: llMaxBws inside a node 87.7 of 231 GB/s (A100) and 141 of 369 (H100); between four nodes and more 19 of 192 and 35 of 370;
# 120/128 less 2 % for LL128. Starts (baseLat of a ring): 6.6, 14 and 8.4 us. A message more takes no longer than a step of LL.
# A rank has NCCL_STEPS = 8 places in its neighbour's buffer. A piece of a ring takes one, in Simple four whatever its size (src/include/
# collectives.h, ALLGATHER_CHUNKSTEPS and the like): then only two pieces are on their way.
_POST = (0.18, 0.36)
_LL = Protocol(name="LL", latency=(0.18, 0.36), post=_POST, rate=(0.38, 0.1), is_ordered=True, in_flight=8.0)
_LL128 = Protocol(
    name="LL128",
    latency=(0.56, 0.61),
    post=_POST,
    rate=(0.92, 0.92),
    start_s=7.4e-6,
    is_ordered=True,
    copies=True,
    in_flight=8.0,
)
_SIMPLE = Protocol(name="Simple", post=_POST, start_s=1.8e-6, copies=True, in_flight=2.0)
_RINGS = (_LL, _LL128, _SIMPLE)
# Messages to single ranks go by LL up to NCCL_P2P_LL_THRESHOLD, above it by Simple, whichever is quicker (src/enqueue.cc, addP2pToPlan).
_TO_EACH = (replace(_LL, most_bytes=16384.0), _SIMPLE)
# Kernels of serving engines that read the memory of other devices (vLLM, csrc/custom_all_reduce.cuh; TensorRT-LLM,
# customAllReduceKernels.cu), which devices of one domain can: a flag as in LL. Rate and time per partner are fitted to TensorRT-LLM's
# all-reduces of 256 B to 1 MB on A100 and H100 (AIConfigurator).
_READ = Protocol(
    name="read", latency=(0.18, 0.0), post=(0.04, 0.0), rate=(0.75, 1.0), stays_in_domain=True, library="engine"
)
# Kernels that exchange tokens between experts start messages themselves, without a process of the host (NVSHMEM, IBGDA): none waits for
# another (deepseek-ai/DeepEP, README, low-latency kernels: 155 us for 7.3 MB over 32 ranks at 50 GB/s, of which bandwidth explains 147).
DEVICE_STARTED = Protocol(name="device-started", post=(0.0, 0.0))
# gloo runs a collective on a thread of its own, which wakes for it and wakes the caller when it is done: a latency more than the steps
# take (pytorch/pytorch, ProcessGroupGloo.cpp, runLoop). Two ranks that compute in between, on a virtual machine, 1 kB, in ms: to a
# neighbour and back 0.47 each way, all-to-all 0.85, all-gather 1.0, reduce-scatter and all-reduce 1.2.
_GLOO = Protocol(name="gloo", library="gloo", wakes=1.0)
_PLAIN = Protocol(name="")  # a formula as it stands
# Share of the memory's bandwidth at which buffers are copied: NCCL's 24 channels of 24.0 GB/s each on A100 and 38.7 on H100
# (perChMaxTreeBws), of 2,039 and 3,350 GB/s.
_COPY_RATE = 0.28


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """An algorithm of an operation.

    Attributes
    ----------
    operation, name : str
    formula : function of Traffic
    summary : str
    by_default : bool
        May be chosen as the cheapest; otherwise it runs only when named.
    protocols : tuple of Protocol
        By which NCCL and its like run it, so that measured collectives took this or another one of these; none: they do not.
    costs_alone : bool
        Costs something even for one rank (a property of PALEO's formula, kept for comparison).
    """

    operation: str
    name: str
    formula: Formula
    summary: str
    by_default: bool = True
    costs_alone: bool = False
    protocols: tuple[Protocol, ...] = ()


# (operation, name) -> algorithm, in the order that breaks ties: the first of equally fast ones is taken.
COLLECTIVES: dict[tuple[str, str], Collective] = {}


def collective(
    name: str,
    *,
    operation: str,
    summary: str = "",
    by_default: bool = True,
    costs_alone: bool = False,
    protocols: tuple[Protocol, ...] = (),
) -> Callable[[Formula], Formula]:
    """Register a formula; its docstring's first line is its summary unless one is given."""
    assert operation in OPERATIONS, operation
    assert (operation, name) not in COLLECTIVES, f"{operation} {name} is registered twice"

    def register(formula: Formula) -> Formula:
        COLLECTIVES[operation, name] = Collective(
            operation=operation,
            name=name,
            formula=formula,
            summary=summary or (formula.__doc__ or "").strip().split("\n")[0],
            by_default=by_default,
            costs_alone=costs_alone,
            protocols=protocols,
        )
        return formula

    return register


def names_of(operation: str, *, by_default: bool = False) -> tuple[str, ...]:
    """Algorithms of an operation in the order that breaks ties: all, or those chosen by default.

    >>> names_of("all_to_all"), names_of("reduce_scatter", by_default=True)
    (('pairwise',), ('ring', 'recursive-halving', 'hierarchical'))
    """
    return tuple(c.name for c in COLLECTIVES.values() if c.operation == operation and (c.by_default or not by_default))


def _ceil_log2(count: FloatArray) -> FloatArray:
    """Exact ``ceil(log2(count))``.

    >>> _ceil_log2(np.array([1.0, 2.0, 3.0, 4.0, 5.0])).tolist()
    [0.0, 1.0, 2.0, 2.0, 3.0]
    """
    _, exponent = np.frexp(np.maximum(count - 1.0, 0.0))
    return np.asarray(np.where(count > 1.0, exponent, 0), dtype=np.float64)


def _floor_power_of_two(count: FloatArray) -> FloatArray:
    """Largest power of two not above a count."""
    _, exponent = np.frexp(count)
    return np.asarray(np.ldexp(1.0, exponent - 1))


def _sum_over_levels(traffic: Traffic, term: Callable[[int], FloatArray]) -> FloatArray:
    """Sum of a term over the levels that a group spans."""
    shape = np.broadcast_shapes(traffic.message_bytes.shape, traffic.span.size.shape)
    total = np.zeros(shape)
    for level in traffic.levels:
        total = total + np.where(traffic.span.is_spanned[level], term(level), 0.0)
    return total


def _ring_s(traffic: Traffic) -> FloatArray:
    """One trip around a ring through all ranks: half an all-reduce.

    ``(n - 1)/n (B / min G + sum over edges a)``: every rank sends n - 1 pieces of B/n to its neighbour. Ranks are visited unit by
    unit, so every unit has one edge out; several rings that leave by different ranks use all ports of the unit (the channels of
    NCCL), which together carry G. The slowest level is the bottleneck. A piece passes every edge but one, hence the mean latency
    of the edges. No step is shorter than the slowest level's ring step: what is stated, and ``2 a / w`` where w pieces may be on an
    edge, as the place of a piece is free again after a round trip.
    Reference: P. Patarasuk, X. Yuan, J. Parallel Distrib. Comput. 69, 2009.
    """
    where = traffic.span
    slowest = np.full(where.size.shape, np.inf)
    edges_s, step_s = np.zeros((2, *where.size.shape))
    units = [*where.units_inside, np.ones_like(where.size)]
    for level in traffic.levels:
        rate = where.fewest_bytes_per_s[level]
        slowest = np.where(where.is_spanned[level], np.minimum(slowest, rate), slowest)
        # The edge that closes the ring belongs to the outermost level spanned.
        closes = (units[level] > 1.0) & (units[level + 1] <= 1.0)
        edges_s = edges_s + (units[level] - units[level + 1] + closes) * traffic.latency_s[level]
        step_s = np.where(where.is_spanned[level], np.maximum(step_s, traffic.ring_step_s[level]), step_s)
    travel = traffic.message_bytes / slowest + np.maximum(edges_s, where.size * step_s)
    return np.asarray((where.size - 1.0) / where.size * travel)


def _halving_s(traffic: Traffic) -> FloatArray:
    """Recursive halving or doubling, level by level: half an all-reduce.

    ``sum over levels of (c - 1)/c B/G + ceil(log2 c) a``: inside a unit first, so that over each level the ranks of a unit
    share its B. For a power of two these are the textbook's partners; otherwise the cyclic ones of J. Bruck et al., IEEE TPDS
    8(11), 1997, which need no more steps or bytes.
    """
    where = traffic.span
    return _sum_over_levels(
        traffic,
        lambda level: (
            (1.0 - 1.0 / where.fan_out[level]) * traffic.message_bytes / where.fewest_bytes_per_s[level]
            + _ceil_log2(where.fan_out[level]) * traffic.latency_s[level]
        ),
    )


def _rings_by_level_s(traffic: Traffic) -> FloatArray:
    """A ring per level: half an all-reduce.

    ``sum over levels of (c - 1)/c B/G + (c - 1) a``: first inside a unit, then each rank takes its share over the next level.
    """
    where = traffic.span
    return _sum_over_levels(
        traffic,
        lambda level: (
            (1.0 - 1.0 / where.fan_out[level]) * traffic.message_bytes / where.fewest_bytes_per_s[level]
            + (where.fan_out[level] - 1.0) * traffic.latency_s[level]
        ),
    )


@collective("ring", operation="all_reduce", protocols=(*_RINGS, _GLOO))
def _ring_all_reduce(traffic: Traffic) -> FloatArray:
    """Reduce-scatter, then all-gather, around one ring: 2 (n - 1) steps of B/n."""
    return 2.0 * _ring_s(traffic)


@collective("hierarchical", operation="all_reduce")
def _hierarchical_all_reduce(traffic: Traffic) -> FloatArray:
    """Rings level by level: reduce-scatter inwards to outwards, then all-gather back."""
    return 2.0 * _rings_by_level_s(traffic)


@collective("recursive-halving-doubling", operation="all_reduce")
def _halving_doubling_all_reduce(traffic: Traffic) -> FloatArray:
    """Reduce-scatter by halving, all-gather by doubling; ranks beyond a power of two are folded in and out.

    Per level with p the power of two below c: ``2 (p - 1)/p B/G + 2 log2(p) a``, and if c > p a step of B before and after,
    ``2 (B/G + a)``. Reference: R. Thakur, R. Rabenseifner, W. Gropp, Int. J. High Perform. Comput. Appl. 19(1), 2005, section 4.
    """
    where = traffic.span

    def term(level: int) -> FloatArray:
        power = _floor_power_of_two(where.fan_out[level])
        folded = where.fan_out[level] > power
        shares = 1.0 - 1.0 / power + folded
        steps = _ceil_log2(power) + folded
        sent_s = traffic.message_bytes / where.fewest_bytes_per_s[level]
        return np.asarray(2.0 * (shares * sent_s + steps * traffic.latency_s[level]))

    return _sum_over_levels(traffic, term)


@collective("tree", operation="all_reduce")
def _tree_all_reduce(traffic: Traffic) -> FloatArray:
    """Binomial tree: reduce to the root, then broadcast; 2 ceil(log2 n) messages of B, one after the other.

    ``sum over levels of 2 ceil(log2 c) (B/P + a)`` with P the bandwidth of one rank per unit. PALEO's TreeAllReduce on one level.
    """
    where = traffic.span
    return _sum_over_levels(
        traffic,
        lambda level: (
            2.0
            * _ceil_log2(where.fan_out[level])
            * (traffic.message_bytes / where.single_bytes_per_s[level] + traffic.latency_s[level])
        ),
    )


@collective("butterfly", operation="all_reduce")
def _butterfly_all_reduce(traffic: Traffic) -> FloatArray:
    """Recursive doubling: all ranks exchange whole vectors in ceil(log2 n) rounds.

    ``sum over levels of ceil(log2 c) (M B/G + a)``: the M ranks of a unit all send. PALEO's ButterflyAllReduce on one level. That
    many rounds suffice for any n: A. Bar-Noy, S. Kipnis, B. Schieber, Math. Systems Theory 26, 1993 (census functions).
    """
    where = traffic.span

    def term(level: int) -> FloatArray:
        slowest = np.maximum(
            where.most_inside[level] / where.most_bytes_per_s[level],
            where.fewest_inside[level] / where.fewest_bytes_per_s[level],
        )
        round_s = traffic.message_bytes * slowest + traffic.latency_s[level]
        return np.asarray(_ceil_log2(where.fan_out[level]) * round_s)

    return _sum_over_levels(traffic, term)


@collective("one-to-all", operation="all_reduce")
def _one_to_all_all_reduce(traffic: Traffic) -> FloatArray:
    """A master receives from every rank in turn and answers every rank in turn: 2 (n - 1) messages of B.

    ``2 sum over levels of (ranks reached over the level) (B/P + a)``. PALEO's OneToAll on one level.
    """
    where = traffic.span
    within = [*where.most_inside, where.size]
    return _sum_over_levels(
        traffic,
        lambda level: (
            2.0
            * (within[level + 1] - within[level])
            * (traffic.message_bytes / where.single_bytes_per_s[level] + traffic.latency_s[level])
        ),
    )


def _pipelined_s(latency_s: FloatArray, transfer_s: FloatArray) -> FloatArray:
    """Time of a message that is cut into pieces and handed on from stage to stage: ``(sqrt(L) + sqrt(V))^2``.

    L is the latency of all stages, V the time of all bytes over the slowest one. With p pieces it takes L + V + p L/s + V s/p for s
    stages, which is least for the square root of their ratio. Reference: S. L. Johnsson, C.-T. Ho, IEEE Trans. Comput. 38(9), 1989.

    >>> float(_pipelined_s(np.array(4.0), np.array(9.0)))
    25.0
    """
    return np.asarray((np.sqrt(latency_s) + np.sqrt(transfer_s)) ** 2)


def _trees_share(units: FloatArray) -> FloatArray:
    """What a unit sends of a vector through a pair of trees: it hands a half up in each, and two halves down in the one it is inside of.

    Two units send a half each way; of three the one between has one child; from four on some have a parent and two children.

    >>> _trees_share(np.array([1.0, 2.0, 3.0, 4.0, 64.0])).tolist()
    [0.0, 1.0, 1.5, 2.0, 2.0]
    """
    return np.asarray(np.where(units > 1.0, np.minimum(0.5 * units, 2.0), 0.0))


def _tree_s(traffic: Traffic, *, in_switches: bool) -> FloatArray:
    """A pair of trees over domains, a chain inside each, in pieces; where asked for, levels whose switches sum take their place there."""
    where = traffic.span
    latency_s, transfer_s = (np.zeros(np.broadcast_shapes(traffic.message_bytes.shape, where.size.shape)) for _ in "LV")
    chains = np.ones_like(where.size)  # units of a level that a chain visits one after the other
    for level in reversed(traffic.levels):
        fan_out, summed = where.fan_out[level], traffic.in_network[level] if in_switches else 0.0
        if summed:
            rounds, share = np.ones_like(fan_out), np.full_like(fan_out, 1.0 / summed)
        elif level < traffic.in_domain:
            rounds, share = chains * (fan_out - 1.0), np.minimum(fan_out - 1.0, 2.0)
            chains = chains * fan_out
        else:
            rounds, share = _ceil_log2(fan_out), _trees_share(fan_out)
        sent_s = share * traffic.message_bytes / where.fewest_bytes_per_s[level]
        latency_s = latency_s + np.where(where.is_spanned[level], 2.0 * rounds * traffic.latency_s[level], 0.0)
        transfer_s = np.where(where.is_spanned[level], np.maximum(transfer_s, sent_s), transfer_s)
    return _pipelined_s(latency_s, transfer_s)


@collective("double-tree", operation="all_reduce", by_default=False, protocols=_RINGS)
def _double_tree_all_reduce(traffic: Traffic) -> FloatArray:
    """Two trees that share the links, a half of the vector each, chains inside domains, in pieces: NCCL's trees.

    ``(sqrt(L) + sqrt(V))^2`` with L = 2 sum over levels of r a, V = max over levels of s B/G: r = ceil(log2 c) and s = min(c/2, 2) between
    domains, the c - 1 edges of a chain and s = min(c - 1, 2) inside. References: P. Sanders, J. Speck, J. L. Traeff, Parallel Computing
    35(12), 2009; NVIDIA/nccl, src/graph/tuning.cc.
    """
    return _tree_s(traffic, in_switches=False)


@collective("in-network", operation="all_reduce", by_default=False, protocols=(_SIMPLE,))
def _in_network_all_reduce(traffic: Traffic) -> FloatArray:
    """Switches sum what ranks send and send the sum back, in pieces (NVLink SHARP); a double tree where they cannot.

    ``(sqrt(L) + sqrt(V))^2`` with L = 2 sum of a, V = max over levels of B over what one rank (or unit) sends into summing switches;
    other levels count as in a double tree (NCCL's NVLSTree). Reference: R. L. Graham et al., Scalable Hierarchical Aggregation
    Protocol (SHArP), COMHPC 2016; NCCL user guide, NCCL_ALGO.
    """
    return _tree_s(traffic, in_switches=True)


@collective("butterfly-mixing", operation="all_reduce", by_default=False, costs_alone=True)
def _butterfly_mixing(traffic: Traffic) -> FloatArray:
    """One round of a butterfly per step, so ranks differ (not an all-reduce): PALEO's ButterflyMixing.

    ``B/P + a``, even for one rank, as in PALEO. Source: H. Zhao, J. Canny, Butterfly mixing, SDM 2013.
    """
    return _outermost(traffic)


for _operation, _halving, _order in (
    ("all_gather", ("recursive-doubling", "Doubling"), "outwards to inwards"),
    ("reduce_scatter", ("recursive-halving", "Halving"), "inwards to outwards"),
):
    collective(
        "ring",
        operation=_operation,
        # gloo has an all-reduce of a copy for it, see below.
        protocols=_RINGS if _operation == "reduce_scatter" else (*_RINGS, _GLOO),
        summary="Around one ring: n - 1 steps of B/n.",
    )(_ring_s)
    collective(_halving[0], operation=_operation, summary=f"{_halving[1]} level by level: ceil(log2 c) steps.")(
        _halving_s
    )
    collective("hierarchical", operation=_operation, summary=f"A ring per level, {_order}.")(_rings_by_level_s)


# In gloo a reduce-scatter is an all-reduce of a copy (ProcessGroupGloo.cpp, reduce_scatter_tensor_coalesced).
collective(
    "copy",
    operation="reduce_scatter",
    by_default=False,
    protocols=(_GLOO,),
    summary="All-reduce of a copy, around one ring, of which every rank keeps its piece.",
)(_ring_all_reduce)


@collective("pairwise", operation="all_to_all", protocols=(*_TO_EACH, _GLOO))
def _pairwise_all_to_all(traffic: Traffic) -> FloatArray:
    """Every rank sends 1/n of what it holds to every other.

    ``max over levels of M (n - M)/n B/G, plus sum of (ranks reached over the level) p, plus a - p of the outermost``: the M ranks of a unit
    send everything that is not for one another out of it; the levels carry their traffic at the same time. Ranks of the emptiest unit
    have most of their partners far away. Messages to all partners are on their way together; each takes a post p.
    """
    where = traffic.span
    shape = np.broadcast_shapes(traffic.message_bytes.shape, where.size.shape)
    busiest, posts_s, first_s = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    within = [*where.fewest_inside, where.size]
    for level in traffic.levels:
        for members, rate in (
            (where.most_inside[level], where.most_bytes_per_s[level]),
            (where.fewest_inside[level], where.fewest_bytes_per_s[level]),
        ):
            leaving = members * (where.size - members) / where.size * traffic.message_bytes
            busiest = np.where(where.is_spanned[level], np.maximum(busiest, leaving / rate), busiest)
        posts_s = posts_s + (within[level + 1] - within[level]) * traffic.post_s[level]
        first_s = np.where(where.is_spanned[level], traffic.latency_s[level] - traffic.post_s[level], first_s)
    return busiest + posts_s + first_s


@collective("one-shot", operation="all_reduce", by_default=False, protocols=(_READ,))
def _one_shot_all_reduce(traffic: Traffic) -> FloatArray:
    """Every rank reads the vectors of all others and adds them up: an all-to-all of n vectors per rank."""
    return _pairwise_all_to_all(replace(traffic, message_bytes=traffic.message_bytes * traffic.span.size))


@collective("two-shot", operation="all_reduce", by_default=False, protocols=(_READ,))
def _two_shot_all_reduce(traffic: Traffic) -> FloatArray:
    """Every rank reads its piece of all vectors and adds it up, then reads the sums of the others: two all-to-alls."""
    return 2.0 * _pairwise_all_to_all(traffic)


@collective("direct", operation="point_to_point", protocols=(_PLAIN, replace(_GLOO, wakes=0.0)))
def _direct(traffic: Traffic) -> FloatArray:
    """One message over the outermost level that the group spans: B/P + a."""
    return _outermost(traffic)


def _outermost(traffic: Traffic) -> FloatArray:
    """One message over the outermost level spanned (the innermost level for a group of one)."""
    where = traffic.span
    time = traffic.message_bytes / where.single_bytes_per_s[0] + traffic.latency_s[0]
    for level in traffic.levels[1:]:
        here = traffic.message_bytes / where.single_bytes_per_s[level] + traffic.latency_s[level]
        time = np.where(where.is_spanned[level], here, time)
    return np.asarray(time)


# Default algorithms in the order that breaks ties.
ALL_REDUCE_NAMES: tuple[str, ...] = names_of("all_reduce", by_default=True)


def collective_s(
    operation: str,
    name: str,
    message_bytes: ArrayLike,
    span: GroupSpan,
    cluster: Cluster,
    ppp_comm: float = 1.0,
    protocol: Protocol = _PLAIN,
) -> FloatArray:
    """Time of one algorithm.

    Parameters
    ----------
    operation : str
        One of `OPERATIONS`.
    name : str
    message_bytes : array
        Broadcasts against the shape of the span's groups.
    span : GroupSpan
    cluster : Cluster
    ppp_comm : float
        PALEO's platform percent of peak of communication: a factor on every bandwidth.
    protocol : Protocol
        One of a library; unless given, the formula as it stands. Of links without latency, which nothing real has, it holds always.

    Returns
    -------
    array
        Seconds; infinite where a protocol cannot use the links that a group needs.

    Raises
    ------
    CollectiveError
        The operation has no algorithm of that name.

    Examples
    --------
    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level, span
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> level = Level(name="l", size=None, bandwidth_bytes_per_s=1e9, latency_s=1e-6)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(level,))
    >>> time_s = collective_s("all_reduce", "ring", 4e6, span(cluster, 4, 1), cluster)
    >>> round(float(time_s), 9)  # 6 steps of 1 us + 1 MB / (1 GB/s)
    0.006006
    """
    try:
        algorithm = COLLECTIVES[operation, name]
    except KeyError:
        known = names_of(operation)
        close = difflib.get_close_matches(name.lower()[:200], known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise CollectiveError(f"{operation} has no algorithm '{name}'{hint} (known: {', '.join(known)})") from None
    message = np.asarray(message_bytes, dtype=np.float64)
    in_domain = cluster.num_domain_levels
    side = [int(number >= in_domain) for number in range(len(cluster.levels))]
    if not any(level.latency_s for level in cluster.levels):
        protocol = _PLAIN
    latency_s = tuple(level.latency_s * protocol.latency[n] for level, n in zip(cluster.levels, side, strict=True))
    traffic = Traffic(
        message_bytes=message,
        span=span.scaled([ppp_comm * protocol.rate[n] for n in side]),
        latency_s=latency_s,
        ring_step_s=tuple(
            max(level.ring_step_s, 2.0 * a / protocol.in_flight)
            for level, a in zip(cluster.levels, latency_s, strict=True)
        ),
        in_network=tuple(level.in_network / level.reached for level in cluster.levels),
        post_s=tuple(level.latency_s * protocol.post[n] for level, n in zip(cluster.levels, side, strict=True)),
        in_domain=in_domain,
    )
    time = algorithm.formula(traffic) + protocol.start_s + protocol.wakes * latency_s[0]
    if protocol.copies and name in _LEAVES_ONE:
        time = time + message / span.size / (_COPY_RATE * cluster.memory_bandwidth_bytes_per_s)
    for number, level in enumerate(cluster.levels):
        if (protocol.is_ordered and not level.is_ordered) or (protocol.stays_in_domain and side[number]):
            time = np.where(span.is_spanned[number], np.inf, time)
    works = message > 0 if algorithm.costs_alone else (message > 0) & (span.size > 1)
    return np.asarray(np.where(works, time, 0.0))


# Of these a rank copies one of n pieces, its own or the one that comes last, while nothing of the message travels.
_LEAVES_ONE = ("ring", "pairwise")


def all_reduce_s(
    name: str, message_bytes: ArrayLike, span: GroupSpan, cluster: Cluster, ppp_comm: float = 1.0
) -> FloatArray:
    """Time of an all-reduce by a named algorithm; see `collective_s`."""
    return collective_s("all_reduce", name, message_bytes, span, cluster, ppp_comm)


def point_to_point_s(message_bytes: ArrayLike, span: GroupSpan, cluster: Cluster, ppp_comm: float = 1.0) -> FloatArray:
    """Time to send a message between neighbours of a group, the most distant pair counting; see `collective_s`."""
    return collective_s("point_to_point", "direct", message_bytes, span, cluster, ppp_comm)


def cheapest_s(
    operation: str, message_bytes: ArrayLike, span: GroupSpan, cluster: Cluster, ppp_comm: float = 1.0
) -> FloatArray:
    """Time of the cheapest default algorithm, element by element; see `collective_s`."""
    _check_operation(operation)
    times = [
        collective_s(operation, name, message_bytes, span, cluster, ppp_comm)
        for name in names_of(operation, by_default=True)
    ]
    return np.asarray(np.min(np.stack(times), axis=0))


def _check_operation(operation: str) -> None:
    if operation not in OPERATIONS:
        raise CollectiveError(f"unknown operation '{operation}' (known: {', '.join(OPERATIONS)})")


def library_calls(operation: str, *libraries: str) -> tuple[tuple[str, Protocol], ...]:
    """Algorithms of an operation that libraries run (NCCL's unless others are named), each by each of its protocols there.

    >>> [(name, protocol.name) for name, protocol in library_calls("all_to_all")]
    [('pairwise', 'LL'), ('pairwise', 'Simple')]
    >>> library_calls("reduce_scatter", "gloo")[0][0]
    'copy'
    """
    _check_operation(operation)
    return tuple(
        (known.name, protocol)
        for known in COLLECTIVES.values()
        for protocol in known.protocols
        if known.operation == operation and protocol.library in (libraries or ("nccl",))
    )


def library_s(
    operation: str, message_bytes: ArrayLike, span: GroupSpan, cluster: Cluster, *, in_engines: bool = False
) -> FloatArray:
    """Time that the cluster's library of collectives takes: its quickest algorithm and protocol, element by element; see `collective_s`.

    NCCL and RCCL run rings, a pair of trees and what switches sum, gloo rings, and none of the others that a plan may name. Serving
    engines have kernels of their own besides. Kernels have been launched.
    """
    times = [
        np.where(
            np.asarray(message_bytes) > protocol.most_bytes * span.size,
            np.inf,
            collective_s(operation, name, message_bytes, span, cluster, protocol=protocol),
        )
        for name, protocol in library_calls(operation, cluster.library, *(["engine"] if in_engines else []))
    ]
    return np.asarray(np.min(np.stack(times), axis=0))
