"""Times of the forward and backward pass of a micro-batch: of every module on one rank, of every chunk, of every rank.

Shapes: n plans, K kinds of modules, R runs of chunks, Q kinds of ranks. Module times carry their communication; what is exposed of it is
kept separate, so that reports can name it.

Slack
-----
The slack of a rank says how long before the last backward pass of the first rank it is done. A backward pass that rank r does not wait for
is followed by those of the chunks before its first one, down to the first chunk of the network. So rank r is done at least so long before
the first rank. ZB-H1 (Qi et al. 2024, arXiv:2401.10241, figure 2 top) runs ``w_r = min(r + 1, m)`` weight gradients on rank r after its
last input gradient, ZB-H2 ``min(2 r + 1, m)``, so it is done that long before the pipeline; under other schedules that delay them nothing
is known, and all ranks are taken to be done when the last one is:

    slack_r = max_{q<=r} [ sum_{q<=c<r} (B_c - W_c) + w_q W_q ] - w_r W_r

Both are bounds, exact where the first rank waits for the others at the end. What passes wait for (transfers, gathering of weights) is
part of their times.

Pipelines
---------
What plans that differ only in ZeRO, replicas and offloading have in common is computed once, for c pipelines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined, largest_of, rows_of
from costmodel.mesh.communication import GroupTimes, mesh_strides, p2p_s, sent_bytes
from costmodel.mesh.modules import ModuleTable
from costmodel.mesh.plan import CP_KINDS, FULL, SELECTIVE, MeshBatch
from costmodel.mesh.schedule import ChunkRuns, in_flight, makespan_s
from costmodel.mesh.stages import LayoutArrays, recomputed_modules, recomputed_share, weigh
from costmodel.precision import Precision
from costmodel.schedules import DELAYS_WEIGHTS, IS_CHUNKED, OVERLAPS, TRAILS
from costmodel.tolerances import ROUNDING

_RING, _ALL_GATHER, _ALL_TO_ALL = (CP_KINDS.index(kind) for kind in ("ring", "all_gather", "all_to_all"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePasses:
    """Times of one module and micro-batch, arrays (n, K): compute, and exposed communication by dimension."""

    compute_forward_s: FloatArray
    compute_backward_s: FloatArray
    weight_s: FloatArray
    tp_forward_s: FloatArray
    tp_backward_s: FloatArray
    cp_forward_s: FloatArray
    cp_backward_s: FloatArray
    ep_forward_s: FloatArray
    ep_backward_s: FloatArray
    recompute_s: FloatArray  # of a module that is recomputed (selectively or whole), its communication included
    # What the device waits for its host, part of both compute times; and for how long the host has nothing to start in the passes and in
    # what is recomputed.
    host_wait_s: FloatArray
    idle_forward_s: FloatArray
    idle_backward_s: FloatArray
    idle_again_s: FloatArray

    @property
    def forward_s(self) -> FloatArray:
        """Forward pass without ZeRO-3's gathering."""
        return self.compute_forward_s + self.tp_forward_s + self.cp_forward_s + self.ep_forward_s

    @property
    def backward_s(self) -> FloatArray:
        """Backward pass without recomputation and ZeRO-3's gathering."""
        return self.compute_backward_s + self.tp_backward_s + self.cp_backward_s + self.ep_backward_s


def module_passes(
    table: ModuleTable,
    batch: MeshBatch,
    stride: dict[str, IntArray],
    groups: GroupTimes,
    *,
    is_block: BoolArray,
    dispatch_share: float = 1.0,
    alone: FloatArray | None = None,
    slowest: FloatArray | None = None,
) -> ModulePasses:
    """Add the communication inside the modules.

    Parameters
    ----------
    table : ModuleTable
        One row per plan.
    batch : MeshBatch
    stride : dict
        As `costmodel.mesh.communication.mesh_strides`.
    groups : GroupTimes
    is_block : array (K,)
        Kinds that are repeated blocks: the others are not recomputed.
    dispatch_share : float
        `Precision.dispatch_share`.
    alone : array (n,), optional
        `alone_share`; without it none, which bounds the times of every pipeline.
    slowest : array (n,), optional
        `slowest_draw`; without it all replicas compute as long, which bounds the times, too.

    Returns
    -------
    ModulePasses

    Notes
    -----
    *Ring* context parallelism sends keys and values ``cp - 1`` times to a neighbour, each time overlapped with the attention
    of one piece; backward, their gradients travel along. *All-gather* gathers keys and values before the attention
    and scatters their gradients after it. *All-to-all* (DeepSpeed Ulysses, arXiv:2309.14509) trades positions for
    heads before and after.
    """
    assumptions, place = groups.assumptions, groups.places(batch)
    cp_forward, cp_backward = _context_parallel(table, batch, groups, groups.find(batch.cp, stride["cp"], place))
    ep_forward, ep_backward = _expert_parallel(
        table, batch, groups, groups.find(batch.ep, stride["ep"], place), dispatch_share, alone
    )
    shown = 1.0 - assumptions.tp_overlap
    tp_forward, tp_backward = table.tp_forward_s * shown, table.tp_backward_s * shown
    host = _host_times(table, batch, groups, groups.find(batch.pp, stride["pp"], place))
    ahead = groups.cluster.device.efficiency.host_overlap
    more, more_back = _uneven(table, batch, slowest)
    # What the host needs beyond the device's time, the device waits.
    forward = _beside(table.forward_s + more, host.forward_s, tp_forward + cp_forward + ep_forward, ahead)
    weight = np.where(table.weight_s > 0, _beside(table.weight_s, host.weight_s, 0.0, ahead), 0.0)
    gradient = table.backward_s - table.weight_s + more_back
    moved = tp_backward + cp_backward + ep_backward
    through = _beside(gradient, host.backward_s, moved, ahead)
    backward = np.where(table.backward_s > 0, through + weight, 0.0)
    # The host starts what selective recomputation repeats as part of the backward pass, ahead of the device where it has time.
    started = host.launch_s * table.selective_launches
    again = _beside(gradient + table.selective_s, host.backward_s + started, moved, ahead) - through
    selective = np.where(is_block, again, 0.0)
    whole = np.where(is_block & (table.backward_s > 0), forward + tp_forward + cp_forward + ep_forward, 0.0)
    kind = batch.recompute[:, None]
    is_selective, is_full = kind == SELECTIVE, kind == FULL
    recompute = np.where(is_selective, selective, np.where(is_full, whole, 0.0))
    started = np.where(is_selective, started, np.where(is_full, host.forward_s, 0.0))
    return ModulePasses(
        compute_forward_s=forward,
        compute_backward_s=backward,
        weight_s=weight,
        tp_forward_s=tp_forward,
        tp_backward_s=tp_backward,
        cp_forward_s=cp_forward,
        cp_backward_s=cp_backward,
        ep_forward_s=ep_forward,
        ep_backward_s=ep_backward,
        recompute_s=recompute,
        host_wait_s=forward - (table.forward_s + more) + backward - (table.backward_s + more_back),
        idle_forward_s=ahead * (forward + tp_forward + cp_forward + ep_forward - host.forward_s),
        idle_backward_s=ahead * (backward + tp_backward + cp_backward + ep_backward - host.backward_s - host.weight_s),
        idle_again_s=ahead * np.where(recompute > 0, recompute - started, 0.0),
    )


def _beside(device_s: FloatArray, host_s: FloatArray, moved_s: FloatArray | float, ahead: float) -> FloatArray:
    """Time of a pass without what it waits for messages (``moved_s``), where its host hides so much of the shorter of both times.

    >>> times = np.array([3.0]), np.array([2.0]), 1.0
    >>> [_beside(*times, ahead).tolist() for ahead in (1.0, 0.0)]  # the host has more time than it needs; the device is its own host
    [[3.0], [5.0]]
    """
    longer = np.maximum(device_s, host_s - moved_s)
    return longer if ahead == 1.0 else longer + (1.0 - ahead) * np.minimum(device_s + moved_s, host_s)


def _uneven(
    table: ModuleTable, batch: MeshBatch, slowest: FloatArray | None
) -> tuple[FloatArray | float, FloatArray | float]:
    """How much longer attention to packed documents takes, forward and backward, where it takes longest.

    All-to-all context parallelism gives every rank all positions of its heads.
    """
    is_spread = slowest is not None and bool(np.any(table.spread_forward_s))
    if not (is_spread or np.any(table.uneven_forward_s)):
        return 0.0, 0.0
    kept = batch.cp_kind[:, None] != _ALL_TO_ALL
    draw = 0.0 if slowest is None else slowest[:, None]
    return (
        kept * table.uneven_forward_s + draw * table.spread_forward_s,
        kept * table.uneven_backward_s + draw * table.spread_backward_s,
    )


def slowest_draw(batch: MeshBatch) -> FloatArray:
    """By how many standard deviations of a micro-batch's time, per micro-batch, the slowest replica exceeds the mean, (n,).

    The m micro-batches of a replica have independent normal times x; where S stages take as long for each of them, a pipeline takes
    sum(x) + (S - 1) max(x) (Pinedo, Scheduling, proportionate flow shops), of v chunks per rank v sum(x) + (S - 1) max(x). The exchange of
    gradients waits for the slowest of dp replicas. With z(n) the expected largest of n normal draws (`costmodel.arrays.largest_of`), the
    covariance 1 of sum(x) and max(x), and nothing for the variance of max(x):

        (v m + S - 1) draw = (S - 1) z(m) + z(dp) sqrt(v^2 m + 2 v (S - 1))

    >>> from costmodel.mesh.plan import MeshPlan
    >>> plans = [MeshPlan(), MeshPlan(dp_replicate=8, num_micro_batches=4), MeshPlan(pp=2, num_micro_batches=4)]
    >>> slowest_draw(MeshBatch.from_plans(plans)).round(3).tolist()
    [0.0, 0.717, 0.21]
    """
    m, v, fill = batch.num_micro_batches, batch.vpp, batch.pp - 1.0
    return np.asarray(
        (fill * largest_of(m) + largest_of(batch.dp) * np.sqrt(v * v * m + 2.0 * v * fill)) / (v * m + fill)
    )


def alone_share(batch: MeshBatch) -> FloatArray:
    """Share of the passes of a rank alongside which no other micro-batch runs, (n,): those that fill and drain the pipeline.

    The first rank runs as many forward passes before its first backward pass as it keeps in flight, and as many backward passes after its
    last forward pass, of m for each chunk (one stage: the first and the last, with which nothing can run).

    >>> from costmodel.mesh.plan import MeshPlan
    >>> alone_share(MeshBatch.from_plans([MeshPlan(num_micro_batches=4), MeshPlan(pp=16, num_micro_batches=8)])).tolist()
    [0.25, 1.0]
    """
    m, first = batch.num_micro_batches, np.zeros_like(batch.pp)
    return np.asarray(in_flight(batch.schedule, m, batch.pp, batch.vpp, first) / (m * batch.vpp))


def _expert_parallel(
    table: ModuleTable, batch: MeshBatch, groups: GroupTimes, ranks: IntArray, wide: float, alone: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """What the passes of a module wait for tokens on their way to the experts and back, (n, K) each.

    With ``ep_overlap`` (1 under schedules that run both passes together) the tokens of one micro-batch travel while another is computed,
    forward alongside backward: of E seconds in both passes max(E - ep_overlap C, interference E) remain alongside C seconds of compute, and
    all of them where a micro-batch runs alone.
    """
    assumptions = groups.assumptions
    message = sent_bytes(table, groups, ranks, batch.ep)
    back = groups.time_s("all_to_all", ranks, message)
    there = back if wide == 1.0 else groups.time_s("all_to_all", ranks, wide * message)
    forward = there + back + table.etp_forward_s
    backward = np.where(table.returned_bytes > 0, forward, 0.0)
    overlap = np.where(OVERLAPS[batch.schedule], 1.0, assumptions.ep_overlap)[:, None]
    if not np.any(overlap):
        return forward, backward
    moved = forward + backward
    beside = np.maximum(moved - overlap * (table.forward_s + table.backward_s), assumptions.interference * moved)
    shown = np.divide(beside, moved, out=np.zeros_like(moved), where=moved > 0.0)
    shown = np.where(overlap > 0.0, shown, 1.0)
    if alone is not None:
        shown += (1.0 - shown) * alone[:, None]
    return forward * shown, backward * shown


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostTimes:
    """What the host takes to start the passes of a module, arrays (n, K)."""

    forward_s: FloatArray
    backward_s: FloatArray  # without what only weight gradients need
    weight_s: FloatArray
    launch_s: FloatArray | float  # one kernel of a module


def _host_times(table: ModuleTable, batch: MeshBatch, groups: GroupTimes, stages: IntArray) -> _HostTimes:
    """Kernels and collectives are started one after the other, by one process per device."""
    launch_s, collective_s = groups.assumptions.host_launch_s, groups.assumptions.host_collective_s
    more_s: FloatArray | float = 0.0
    if groups.assumptions.split_launch_s:
        more_s = np.where(batch.tp > 1, groups.assumptions.split_launch_s, 0.0)[:, None]
    inside: FloatArray | float = 0.0
    if np.any(batch.cp > 1) or np.any(batch.ep > 1):  # steps of a ring; tokens on their way to the experts and back
        rings = (batch.cp - 1)[:, None] * (table.kv_bytes > 0)
        trades = np.where(batch.ep > 1, 2.0, 0.0)[:, None] * (table.dispatch_bytes > 0)
        inside = collective_s * (rings + trades)
    each = collective_s + _contended_s(batch, groups, stages)
    bare_s = (
        launch_s * groups.assumptions.bare_launch + more_s
    )  # autograd starts kernels without Python code around them
    return _HostTimes(
        forward_s=(launch_s + more_s) * table.forward_launches + each * table.tp_forward_starts + inside,
        backward_s=bare_s * table.backward_launches + each * table.tp_backward_starts + inside,
        weight_s=bare_s * table.weight_launches,
        launch_s=launch_s + more_s,
    )


def _contended_s(batch: MeshBatch, groups: GroupTimes, stages: IntArray) -> FloatArray:
    """What a tensor-parallel collective waits for its ranks where the stages of a pipeline are in several domains, (n, 1).

    Every rank is held up now and then, rarely enough that delays of different ranks add up. Those of other domains are held up twice:
    where they start the collective, and where they move its data, which inside a domain no process does.
    """
    each = groups.assumptions.contended_step_s
    if each == 0.0:
        return np.zeros((len(batch), 1))
    away = groups.domains(stages) > 1.0
    held_up = 2.0 * batch.tp - np.minimum(batch.tp, groups.cluster.domain_size or np.inf)
    return np.where(away, each * np.where(batch.tp > 1, held_up, 0.0), 0.0)[:, None]


def _context_parallel(
    table: ModuleTable,
    batch: MeshBatch,
    groups: GroupTimes,
    ranks: IntArray,
) -> tuple[FloatArray, FloatArray]:
    if not np.any(batch.cp > 1):
        zero = np.zeros_like(table.kv_bytes)
        return zero, zero
    column = batch.cp[:, None].astype(np.float64)
    steps, returns = column - 1.0, table.attention_backward_s > 0

    def step(message: FloatArray, attention_s: FloatArray) -> FloatArray:
        sent = groups.time_s("point_to_point", ranks, message)
        return np.asarray(steps * np.maximum(sent - groups.assumptions.cp_overlap * attention_s / column, 0.0))

    ring = (
        step(table.kv_bytes, table.attention_forward_s),
        np.where(returns, step(2.0 * table.kv_bytes, table.attention_backward_s), 0.0),
    )
    gathered = table.kv_bytes * column
    gather = groups.time_s("all_gather", ranks, gathered)
    gathering = (gather, np.where(returns, gather + groups.time_s("reduce_scatter", ranks, gathered), 0.0))
    traded = groups.time_s("all_to_all", ranks, table.heads_bytes)
    trading = (traded, np.where(returns, traded, 0.0))
    kind = batch.cp_kind[:, None]
    chosen = [
        np.where(kind == _RING, a, np.where(kind == _ALL_GATHER, b, c))
        for a, b, c in zip(ring, gathering, trading, strict=True)
    ]
    return chosen[0], chosen[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPasses:
    """Times of one chunk and micro-batch by run, arrays (n, R)."""

    forward_s: FloatArray
    backward_s: FloatArray
    weight_s: FloatArray


def chunk_passes(
    passes: ModulePasses,
    pass_of: IntArray,
    layouts: LayoutArrays,
    batch: MeshBatch,
    transfer_s: FloatArray,
    is_block: BoolArray,
) -> ChunkPasses:
    """Times of chunks, what they receive included.

    Parameters
    ----------
    passes : ModulePasses
        (u, K).
    pass_of : array (n,)
        Row of the passes that a plan has.
    layouts : LayoutArrays
    batch : MeshBatch
    transfer_s : array (n, R)
        Exposed time to receive a chunk's input; its gradient takes the same on the way back.
    is_block : array (K,)

    Returns
    -------
    ChunkPasses
    """
    modules = layouts.run_modules
    forward = weigh(modules, passes.forward_s, pass_of)
    backward = weigh(modules, passes.backward_s, pass_of)
    if np.any(passes.recompute_s):
        share = recomputed_share(modules, is_block, batch.recompute, batch.recompute_blocks, layouts.run_recompute)
        backward += share * weigh(modules, passes.recompute_s, pass_of)
    # The gradient of a chunk's output comes from the next chunk: all but the last run receive one.
    following = np.zeros_like(transfer_s)
    following[:, :-1] = transfer_s[:, 1:]
    inside = np.where(layouts.run_chunks > 1, transfer_s, 0.0)
    returned = np.where(backward > 0, np.maximum(following, inside), 0.0)
    return ChunkPasses(
        forward_s=forward + transfer_s,
        backward_s=backward + returned,
        weight_s=weigh(modules, passes.weight_s, pass_of),
    )


def exposed_transfers_s(batch: MeshBatch, sent_s: FloatArray, rank_forward_s: FloatArray, overlap: float) -> FloatArray:
    """Of transfers between stages, what a rank cannot hide behind another pass.

    While a tensor of T seconds travels, the rank runs another of its V chunks, or gradients of weights that a zero-bubble schedule put off:
    with F seconds forward on the slowest rank, T - overlap x min(T, F / V) remain. Else the next pass needs what travels.

    Parameters
    ----------
    batch : MeshBatch
    sent_s : array (n, R)
        Time of the transfers.
    rank_forward_s : array (n, Q)
        Forward pass of all chunks of a rank.
    overlap : float

    Returns
    -------
    array (n, R)
    """
    chunk_s = np.max(rank_forward_s, axis=1, keepdims=True) / batch.vpp[:, None]
    hides = overlap * (IS_CHUNKED | DELAYS_WEIGHTS)[batch.schedule][:, None]
    return np.asarray(sent_s - hides * np.minimum(sent_s, chunk_s))


def time_before(rank: IntArray, count: IntArray, time_s: FloatArray) -> FloatArray:
    """Sum of the times of the chunks before a rank's first chunk.

    Parameters
    ----------
    rank : array (n, Q)
    count : array (n, R)
        Chunks of every run.
    time_s : array (n, R)
        Of one of them.

    Returns
    -------
    array (n, Q)

    Examples
    --------
    Two chunks of 1 s and two of 5 s: rank 3 comes after three of them.

    >>> time_before(np.array([[0, 3]]), np.array([[2, 2]]), np.array([[1.0, 5.0]])).tolist()
    [[0.0, 7.0]]
    """
    total, start = np.zeros_like(rank, dtype=np.float64), np.zeros((len(rank), 1))
    for r in range(count.shape[1]):
        chunks = count[:, r][:, None]
        # np.clip would take much longer.
        total += np.minimum(np.maximum(rank - start, 0.0), chunks) * time_s[:, r][:, None]
        start = start + chunks
    return total


def rank_slack_s(
    schedule: IntArray,
    m: IntArray,
    first: IntArray,
    last: IntArray,
    count: IntArray,
    backward_s: FloatArray,
    weight_s: FloatArray,
) -> FloatArray:
    """Time from the last pass of every kind of rank to that of the first rank, at least; of a kind, that of its latest rank.

    Parameters
    ----------
    schedule, m : arrays (n,)
        Micro-batches under m.
    first, last : arrays (n, Q)
        Ranks of every kind.
    count : array (n, R)
        Chunks of every run.
    backward_s, weight_s : arrays (n, R)
        Of a chunk and micro-batch: the backward pass with all that it waits for, and the weight gradients in it.

    Returns
    -------
    array (n, Q)

    Examples
    --------
    Three equal ranks, four micro-batches, B = 2, W = 1: under 1F1B the last rank is done 2 B earlier, under zero bubble its three weight
    gradients take as long as the two input gradients and the weight gradient of the ranks before it.

    >>> one, ranks = np.array([[1.0]]), np.arange(3)[None, :]
    >>> [rank_slack_s(np.array([n]), np.array([4]), ranks, ranks, 3 * np.array([[1]]), 2 * one, one).tolist() for n in (1, 3)]
    [[[0.0, 2.0, 4.0]], [[0.0, 0.0, 0.0]]]
    """
    slack = np.where(DELAYS_WEIGHTS[schedule][:, None], 0.0, time_before(first, count, backward_s))
    rows = np.flatnonzero(TRAILS[schedule])
    if len(rows):
        ahead = (TRAILS[schedule[rows]] - 1) * np.maximum(m[rows] - count[rows].sum(axis=1), 0)
        lag = _Lag(ahead[:, None], m[rows][:, None])
        slack[rows] = _lagging_s(lag, first[rows], last[rows], count[rows], backward_s[rows], weight_s[rows])
    return slack


class _Lag(NamedTuple):
    """How many weight gradients of a rank wait for the end, by plan: arrays (n, 1)."""

    ahead: IntArray  # micro-batches that may go ahead of ZB-H1
    m: IntArray

    def gradients(self, rank: IntArray) -> IntArray:
        """Weight gradients that a rank computes after its last input gradient."""
        return np.asarray(np.minimum(rank + np.minimum(rank, self.ahead) + 1, self.m))


def _lagging_s(
    lag: _Lag, first: IntArray, last: IntArray, count: IntArray, backward_s: FloatArray, weight_s: FloatArray
) -> FloatArray:
    """The same of zero-bubble schedules.

    The formula is linear in r but where ranks of another kind begin, and where all gradients wait or none more goes ahead, so one of these
    is the least of a kind.
    """
    after = np.cumsum(count, axis=1)
    own = time_before(first + 1, count, weight_s) - time_before(first, count, weight_s)
    # (n, K): all places where the formula may bend, at once.
    bends = np.concatenate([lag.m - 1, lag.ahead, after - 1, after, np.zeros_like(lag.m)], axis=1)
    others = np.minimum(np.maximum(bends, 0), after[:, -1:] - 1)
    behind = _behind_s(others, lag, count, backward_s, weight_s)
    # (n, places, Q): every kind at its own ends and at the bends within it.
    places = np.concatenate(
        [np.stack([first, last], axis=1), np.repeat(bends[:, :, None], first.shape[1], axis=2)], axis=1
    )
    ranks = np.minimum(np.maximum(places, first[:, None, :]), last[:, None, :])
    flat = ranks.reshape(len(ranks), -1)
    most = np.full(flat.shape, -np.inf)
    for k in range(others.shape[1]):
        most = np.where(others[:, k : k + 1] <= flat, np.maximum(most, behind[:, k : k + 1]), most)
    held = time_before(flat, count, backward_s - weight_s) + most
    ended = lag.gradients(flat).reshape(ranks.shape)
    lead = held.reshape(ranks.shape) - ended * own[:, None, :]
    return np.asarray(np.maximum(lead.min(axis=1), 0.0))


def _behind_s(rank: IntArray, lag: _Lag, count: IntArray, backward_s: FloatArray, weight_s: FloatArray) -> FloatArray:
    """Weight gradients after the last input gradient of ranks (n, K), less the input gradients after that."""
    own = time_before(rank + 1, count, weight_s) - time_before(rank, count, weight_s)
    return lag.gradients(rank) * own - time_before(rank, count, backward_s - weight_s)


# What a pipeline fixes; the rest of a plan says how dp is divided and what waits on the host.
PIPELINE_FIELDS: tuple[str, ...] = (
    "tp",
    "sequence_parallel",
    "cp",
    "cp_kind",
    "ep",
    "etp",
    "pp",
    "vpp",
    "schedule",
    "micro_batch",
    "num_micro_batches",
    "recompute",
    "recompute_blocks",
    "order",
    "domain_gpus",
)
# What decides the passes of a module, given the order of the ranks.
PASS_FIELDS = ("tp", "sequence_parallel", "cp", "cp_kind", "ep", "etp", "micro_batch", "recompute")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipelines:
    """Times of many pipelines."""

    batch: MeshBatch  # of the pipelines; fields outside PIPELINE_FIELDS and dp mean nothing
    layouts: LayoutArrays
    pass_of: IntArray  # (c,) row of the two below
    table: ModuleTable  # (u, K)
    passes: ModulePasses  # (u, K)
    stride: dict[str, IntArray]
    place: IntArray  # (c,)
    transfer_s: FloatArray  # (c, R)
    chunks: ChunkPasses  # (c, R)
    makespan_s: FloatArray  # (c,)
    busy_s: FloatArray  # (c, Q) busy time of every kind of rank per micro-batch; 0 for padding
    rank_forward_s: FloatArray  # (c, Q)
    rank_backward_s: FloatArray
    rank_hiding_s: FloatArray  # (c, Q) backward pass of one micro-batch behind which exchanges hide, that of the network's head left out
    # (c, Q) from the last pass of a rank to that of the first; gathering of ZeRO-3 adds to it. 0 where the times are bounds: those look at
    # the end of the first rank alone.
    rank_slack_s: FloatArray
    run_share: FloatArray  # (c, R) of the blocks of a chunk that is recomputed
    rank_again: FloatArray  # (c, Q, K) modules of a rank that are recomputed
    is_block: BoolArray  # (K,)

    def __len__(self) -> int:
        return len(self.makespan_s)

    def rank_parts(self) -> dict[str, FloatArray]:
        """Busy time of every kind of rank per micro-batch by what it is spent on, (c, Q) each."""
        passes, modules = self.passes, self.layouts.rank_modules
        zero = np.zeros_like(self.busy_s)

        def sum_of(values: FloatArray, counted: FloatArray = modules) -> FloatArray:
            return weigh(counted, values, self.pass_of) if np.any(values) else zero

        return {
            "compute_s": sum_of(passes.compute_forward_s + passes.compute_backward_s),
            "recompute_s": sum_of(passes.recompute_s, self.rank_again),
            "tp_s": sum_of(passes.tp_forward_s + passes.tp_backward_s),
            "cp_s": sum_of(passes.cp_forward_s + passes.cp_backward_s),
            "ep_s": sum_of(passes.ep_forward_s + passes.ep_backward_s),
            "transfer_s": _received_s(passes, self.pass_of, self.layouts, self.batch, self.transfer_s),
        }

    def runs(self, index: IntArray, forward_extra_s: FloatArray, backward_extra_s: FloatArray) -> ChunkRuns:
        """Chunks of a selection of the pipelines with some time added to their passes (n, R)."""
        return ChunkRuns(
            count=rows_of(self.layouts.run_chunks, index),
            forward_s=rows_of(self.chunks.forward_s, index) + forward_extra_s,
            backward_s=rows_of(self.chunks.backward_s, index) + backward_extra_s,
        )


def build_pipelines(
    batch: MeshBatch,
    layouts: LayoutArrays,
    groups: GroupTimes,
    rows: Callable[[MeshBatch], ModuleTable],
    *,
    is_block: BoolArray,
    precision: Precision,
    varies: bool = False,
    exact: bool,
) -> Pipelines:
    """Time the pipelines of many plans.

    Parameters
    ----------
    batch : MeshBatch
    layouts : LayoutArrays
    groups : GroupTimes
    rows : function of MeshBatch to ModuleTable
        Work, messages and memory of every kind of module.
    is_block : array (K,)
    precision : Precision
    varies : bool
        Sequences differ in the time of their attention.
    exact : bool
        False: ``makespan_s`` of interleaved and zero-bubble pipelines is a lower bound, which is much quicker.

    Returns
    -------
    Pipelines
    """
    stride = mesh_strides(batch)
    place = groups.places(batch)
    deciding = [getattr(batch, name) for name in PASS_FIELDS]
    deciding += [groups.find(getattr(batch, name), stride[name], place) for name in ("tp", "cp", "ep")]
    if groups.assumptions.contended_step_s:  # collectives inside a layer feel what stages exchange
        deciding.append(groups.find(batch.pp, stride["pp"], place))
    hides = np.maximum(OVERLAPS[batch.schedule], groups.assumptions.ep_overlap > 0.0) * (batch.ep * batch.etp > 1)
    hides_tokens = bool(np.any(hides))
    if hides_tokens:  # by other micro-batches, but for those that fill and drain the pipeline
        names = ("schedule", "pp", "vpp", "num_micro_batches")
        deciding += [np.where(hides, getattr(batch, name), -1) for name in names]
    if varies:  # from sequence to sequence, so that the slowest of micro-batches and replicas decides
        deciding += [batch.dp, batch.num_micro_batches, batch.pp, batch.vpp]
    first, pass_of = combined(*deciding, *batch.split_columns)
    distinct = batch.take(first)
    table = rows(distinct)
    passes = module_passes(
        table,
        distinct,
        {name: value[first] for name, value in stride.items()},
        groups,
        is_block=is_block,
        dispatch_share=precision.dispatch_share,
        alone=alone_share(distinct) if hides_tokens else None,
        slowest=slowest_draw(distinct) if varies else None,
    )
    forward = weigh(layouts.rank_modules, passes.forward_s, pass_of)
    backward = weigh(layouts.rank_modules, passes.backward_s, pass_of)
    sent = p2p_s(groups, batch, layouts.run_cut, precision.activation_bytes, (stride["pp"],))
    transfer_s = exposed_transfers_s(batch, sent, forward, groups.assumptions.pp_overlap)
    chunks = chunk_passes(passes, pass_of, layouts, batch, transfer_s, is_block)
    runs = ChunkRuns(count=layouts.run_chunks, forward_s=chunks.forward_s, backward_s=chunks.backward_s)
    rank_again = recomputed_modules(layouts, batch.recompute, batch.recompute_blocks)
    busy = forward + backward
    busy += _received_s(passes, pass_of, layouts, batch, transfer_s)
    if np.any(passes.recompute_s):
        busy += weigh(rank_again, passes.recompute_s, pass_of)
    makespan = pipeline_s(batch, layouts.rank_last, runs, chunks.weight_s, busy, exact=exact)
    return Pipelines(
        batch=batch,
        layouts=layouts,
        pass_of=pass_of,
        table=table,
        passes=passes,
        stride=stride,
        place=place,
        transfer_s=transfer_s,
        chunks=chunks,
        makespan_s=makespan,
        busy_s=busy,
        rank_forward_s=forward,
        rank_backward_s=backward,
        rank_hiding_s=_hiding_s(batch, layouts, passes, pass_of, backward),
        rank_slack_s=rank_slack_s(
            batch.schedule,
            batch.num_micro_batches,
            layouts.rank_first,
            layouts.rank_last,
            layouts.run_chunks,
            chunks.backward_s,
            chunks.weight_s,
        )
        if exact
        else np.zeros_like(busy),
        run_share=recomputed_share(
            layouts.run_modules, is_block, batch.recompute, batch.recompute_blocks, layouts.run_recompute
        ),
        rank_again=rank_again,
        is_block=is_block,
    )


def _hiding_s(
    batch: MeshBatch, layouts: LayoutArrays, passes: ModulePasses, pass_of: IntArray, backward_s: FloatArray
) -> FloatArray:
    """Of the backward pass of every kind of rank, what exchanges of gradients hide behind: (c, Q)."""
    # No gradient is there to travel before those of the network's head (and loss); and weight gradients of a zero-bubble schedule
    # lag behind: they hide nothing.
    lags = DELAYS_WEIGHTS[batch.schedule][:, None]
    hiding = backward_s - layouts.rank_modules[:, :, -1] * passes.backward_s[pass_of, -1][:, None]
    if np.any(lags):
        later = passes.weight_s.copy()
        later[:, -1] = 0.0
        hiding = np.where(lags, hiding - weigh(layouts.rank_modules, later, pass_of), hiding)
    return np.asarray(hiding)


def pipeline_s(
    batch: MeshBatch,
    rank_last: IntArray,
    runs: ChunkRuns,
    weight_s: FloatArray,
    busy_s: FloatArray,
    *,
    exact: bool,
) -> FloatArray:
    """Time of pipelines, (n,): `costmodel.mesh.schedule.makespan_s`, or a lower bound where the schedule is interleaved or zero-bubble.

    The bound follows one rank: it works after the first micro-batch has come through the chunks before its first one;
    its last backward pass is followed by those of the same chunks. Weight gradients of a zero-bubble schedule may
    come before or after that. Exact for equal chunks (interleaved), or close to it.
    """
    loose = (IS_CHUNKED | DELAYS_WEIGHTS)[batch.schedule]
    if exact or not np.any(loose):
        return makespan_s(batch.schedule, batch.num_micro_batches, batch.pp, batch.vpp, runs, weight_s)
    total = np.empty(len(batch))
    others = np.flatnonzero(~loose)
    if len(others):
        some = batch.take(others)
        schedule, m = some.schedule, some.num_micro_batches
        total[others] = makespan_s(schedule, m, some.pp, some.vpp, runs.take(others), rows_of(weight_s, others))
    rows = np.flatnonzero(loose)
    total[rows] = _one_rank_s(
        batch.schedule[rows],
        batch.num_micro_batches[rows][:, None],
        rows_of(rank_last, rows),
        runs.take(rows),
        rows_of(weight_s, rows),
        rows_of(busy_s, rows),
    )
    return total


def _one_rank_s(
    schedule: IntArray,
    m: IntArray,
    last: IntArray,
    runs: ChunkRuns,
    weight_s: FloatArray,
    busy_s: FloatArray,
) -> FloatArray:
    """Longest path that stays on one rank between its first and its last pass; see `pipeline_s`."""
    forwards, gradients, inner = (np.zeros_like(last, dtype=np.float64) for _ in range(3))
    start = np.zeros((len(last), 1))
    splits_backward = DELAYS_WEIGHTS[schedule]
    for r in range(runs.count.shape[1]):
        count = runs.count[:, r][:, None]
        before = np.minimum(np.maximum(last - start, 0.0), count)
        split = np.where(splits_backward, weight_s[:, r], 0.0)[:, None]
        forwards += before * runs.forward_s[:, r][:, None]
        gradients += before * (runs.backward_s[:, r][:, None] - split)
        inner = np.where((last >= start) & (last < start + count), split, inner)
        start = start + count
    # All of the rank's work and then nothing; or without its weight gradients, and then the gradients before it and
    # one weight gradient there. Of several chunks, ``inner`` are those of one only, so that does not hold.
    first_weight = np.where(splits_backward, weight_s[:, 0], 0.0)[:, None]
    alone = forwards + m * busy_s
    through = forwards + m * (busy_s - inner) + gradients + np.minimum(first_weight, inner)
    through = np.where(IS_CHUNKED[schedule][:, None], alone, np.maximum(alone, through))
    paths = np.where(splits_backward[:, None], through, alone + gradients)
    return np.asarray(np.max(np.where(last >= 0, paths, 0.0), axis=1) * (1 - ROUNDING))


def _received_s(
    passes: ModulePasses, pass_of: IntArray, layouts: LayoutArrays, batch: MeshBatch, transfer_s: FloatArray
) -> FloatArray:
    """What every kind of rank receives from its neighbours, of one micro-batch: (n, Q)."""
    modules = layouts.rank_modules
    # The first chunk of the network receives no input, and the last no gradient; nor does what stays on the rank.
    received = np.maximum(batch.vpp[:, None] - modules[:, :, 0] - _staying(layouts), 0.0)
    received += np.maximum(_chunks_given_gradients(passes, pass_of, layouts, batch) - modules[:, :, -1], 0.0)
    received *= _least(transfer_s)
    return received


def _chunks_given_gradients(
    passes: ModulePasses, pass_of: IntArray, layouts: LayoutArrays, batch: MeshBatch
) -> FloatArray:
    """Chunks of every rank through which a gradient flows that no other chunk of the rank gives them; (n, Q).

    A gradient flows through all, or through those above the first layer that is trained.
    """
    flows = passes.compute_backward_s > 0
    if np.all(flows[:, 1:]):  # whatever holds a block or the head has a backward pass
        return np.asarray(batch.vpp[:, None].astype(np.float64) - _staying(layouts))
    total = np.zeros_like(layouts.rank_first, dtype=np.float64)
    for d in range(layouts.rank_repeats.shape[2]):
        some = weigh(layouts.rank_chunks[:, :, d], flows.astype(np.float64), pass_of)
        total += np.where((some > 0) & ~layouts.rank_stays[:, :, d], layouts.rank_repeats[:, :, d], 0)
    return total


def _staying(layouts: LayoutArrays) -> IntArray:
    """Chunks of every rank whose output stays there, (n, Q)."""
    return np.asarray(np.sum(layouts.rank_repeats * layouts.rank_stays, axis=2))


def _least(transfer_s: FloatArray) -> FloatArray:
    """Shortest transfer of a pipeline, (n, 1); 0 without any. They are all equal unless tensors pass over blocks."""
    least = np.min(np.where(transfer_s > 0, transfer_s, np.inf), axis=1, keepdims=True)
    return np.where(np.isfinite(least), least, 0.0)


def pipeline_columns(batch: MeshBatch) -> list[IntArray]:
    """Columns whose rows are the distinct pipelines; dp decides strides, so it belongs to them."""
    return [*(getattr(batch, name) for name in PIPELINE_FIELDS), batch.dp, *batch.split_columns]
