"""Times of the forward and backward pass of a micro-batch: of every module on one rank, of every chunk, of every rank.

Shapes: n plans, K kinds of modules, R runs of chunks, Q kinds of ranks. Module times carry their communication; what is exposed of it is
kept separate, so that reports can name it.

Slack
-----
The slack of a rank says how long before the last backward pass of the first rank it is done. A backward pass that rank r does not wait for
is followed by those of the chunks before its first one, down to the first chunk of the network. So rank r is done at least so long before
the first rank. A zero-bubble schedule runs ``min(r + 1, m)`` weight gradients on rank r after its last input gradient (ZB-H1, Qi et al.
2024, arXiv:2401.10241, figure 2 top), so it is done that long before the pipeline:

    slack_r = max_{q<=r} [ sum_{q<=c<r} (B_c - W_c) + min(q + 1, m) W_q ] - min(r + 1, m) W_r

Both are bounds, exact where the first rank waits for the others at the end. What passes wait for (transfers, gathering of weights) is
part of their times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.mesh.communication import GroupTimes, sent_bytes
from costmodel.mesh.plan import CP_KINDS, RECOMPUTE, SCHEDULES, MeshBatch
from costmodel.mesh.rows import ModuleTable
from costmodel.mesh.stages import LayoutArrays, recomputed_share, weigh

__all__ = ["ChunkPasses", "ModulePasses", "alone_share", "chunk_passes", "module_passes", "rank_slack_s", "time_before"]


_RING, _ALL_GATHER = CP_KINDS.index("ring"), CP_KINDS.index("all_gather")
_SELECTIVE, _FULL = RECOMPUTE.index("selective"), RECOMPUTE.index("full")


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
    alone: FloatArray | None = None,
) -> ModulePasses:
    """Add the communication inside the modules.

    Parameters
    ----------
    table : ModuleTable
        One row per plan.
    batch : MeshBatch
    stride : dict
        As `costmodel.mesh.communication.strides`, and "ep".
    groups : GroupTimes
    is_block : array (K,)
        Kinds that are repeated blocks: the others are not recomputed.
    alone : array (n,), optional
        `alone_share`; without it none, which bounds the times of every pipeline.

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
    assumptions = groups.assumptions
    cp_forward, cp_backward = _context_parallel(table, batch, stride, groups)
    ep_forward, ep_backward = _expert_parallel(table, batch, stride, groups, alone)
    shown = 1.0 - assumptions.tp_overlap
    tp_forward, tp_backward = table.tp_forward_s * shown, table.tp_backward_s * shown
    host = _host_times(table, batch, stride, groups)
    # What the host needs beyond the device's time, the device waits.
    forward = np.maximum(table.forward_s, host.forward_s - (tp_forward + cp_forward + ep_forward))
    weight = np.where(table.weight_s > 0, np.maximum(table.weight_s, host.weight_s), 0.0)
    gradient = table.backward_s - table.weight_s
    waiting = host.backward_s - (tp_backward + cp_backward + ep_backward)
    backward = np.where(table.backward_s > 0, np.maximum(gradient, waiting) + weight, 0.0)
    launch_s = assumptions.host_launch_s
    # The host starts what selective recomputation repeats as part of the backward pass, ahead of the device where it has time.
    started = launch_s * table.selective_launches
    again = np.maximum(gradient + table.selective_s, waiting + started) - np.maximum(gradient, waiting)
    selective = np.where(is_block, again, 0.0)
    whole = np.where(is_block & (table.backward_s > 0), forward + tp_forward + cp_forward + ep_forward, 0.0)
    kind = batch.recompute[:, None]
    is_selective, is_full = kind == _SELECTIVE, kind == _FULL
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
        host_wait_s=forward - table.forward_s + backward - table.backward_s,
        idle_forward_s=forward + tp_forward + cp_forward + ep_forward - host.forward_s,
        idle_backward_s=backward + tp_backward + cp_backward + ep_backward - host.backward_s - host.weight_s,
        idle_again_s=np.where(recompute > 0, recompute - started, 0.0),
    )


def alone_share(batch: MeshBatch) -> FloatArray:
    """Share of the passes of a rank alongside which no other micro-batch runs, (n,): those that fill and drain the pipeline.

    A rank of S stages runs at most S forward passes before its first backward pass, and as many backward passes after its last forward
    pass, of m each (one stage: the first and the last, with which nothing can run).

    >>> from costmodel.mesh.plan import MeshPlan
    >>> alone_share(MeshBatch.from_plans([MeshPlan(num_micro_batches=4), MeshPlan(pp=16, num_micro_batches=8)])).tolist()
    [0.25, 1.0]
    """
    return np.asarray(np.minimum(batch.pp / batch.num_micro_batches, 1.0))


def _expert_parallel(
    table: ModuleTable, batch: MeshBatch, stride: dict[str, IntArray], groups: GroupTimes, alone: FloatArray | None
) -> tuple[FloatArray, FloatArray]:
    """What the passes of a module wait for tokens on their way to the experts and back, (n, K) each.

    With ``ep_overlap`` the tokens of one micro-batch travel while another is computed, forward alongside backward: of E seconds in both
    passes max(E - ep_overlap C, interference E) remain alongside C seconds of compute, and all of them where a micro-batch runs alone.
    """
    assumptions, ranks = groups.assumptions, groups.find(batch.ep, stride["ep"])
    message = sent_bytes(table, batch, stride["ep"], groups)
    back = groups.time_s("all_to_all", ranks, message)
    wide = assumptions.dispatch_width
    there = back if wide == 1.0 else groups.time_s("all_to_all", ranks, wide * message)
    forward = there + back + table.etp_forward_s
    backward = np.where(table.returned_bytes > 0, forward, 0.0)
    if assumptions.ep_overlap == 0.0:
        return forward, backward
    moved = forward + backward
    beside = np.maximum(
        moved - assumptions.ep_overlap * (table.forward_s + table.backward_s), assumptions.interference * moved
    )
    shown = np.divide(beside, moved, out=np.zeros_like(moved), where=moved > 0.0)
    if alone is not None:
        shown += (1.0 - shown) * alone[:, None]
    return forward * shown, backward * shown


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostTimes:
    """What the host takes to start the passes of a module, arrays (n, K)."""

    forward_s: FloatArray
    backward_s: FloatArray  # without what only weight gradients need
    weight_s: FloatArray


def _host_times(table: ModuleTable, batch: MeshBatch, stride: dict[str, IntArray], groups: GroupTimes) -> _HostTimes:
    """Kernels and collectives are started one after the other, by one process per device."""
    launch_s, collective_s = groups.assumptions.host_launch_s, groups.assumptions.host_collective_s
    inside: FloatArray | float = 0.0
    if np.any(batch.cp > 1) or np.any(batch.ep > 1):  # steps of a ring; tokens on their way to the experts and back
        rings = (batch.cp - 1)[:, None] * (table.kv_bytes > 0)
        trades = np.where(batch.ep > 1, 2.0, 0.0)[:, None] * (table.dispatch_bytes > 0)
        inside = collective_s * (rings + trades)
    each = collective_s + _contended_s(batch, stride, groups)
    bare_s = launch_s * groups.assumptions.bare_launch  # autograd starts kernels without Python code around them
    return _HostTimes(
        forward_s=launch_s * table.forward_launches + each * table.tp_forward_starts + inside,
        backward_s=bare_s * table.backward_launches + each * table.tp_backward_starts + inside,
        weight_s=bare_s * table.weight_launches,
    )


def _contended_s(batch: MeshBatch, stride: dict[str, IntArray], groups: GroupTimes) -> FloatArray:
    """What a tensor-parallel collective waits for its ranks where the stages of a pipeline are on several nodes, (n, 1).

    Every rank is held up now and then, rarely enough that delays of different ranks add up. Those of other nodes are held up twice: where
    they start the collective, and where they move its data, which inside a node no process does.
    """
    each = groups.assumptions.contended_step_s
    if each == 0.0:
        return np.zeros((len(batch), 1))
    away = (batch.pp > 1) & (batch.pp * stride["pp"] > groups.node_size)
    held_up = 2.0 * batch.tp - np.minimum(batch.tp, groups.node_size)
    return np.where(away, each * np.where(batch.tp > 1, held_up, 0.0), 0.0)[:, None]


def _context_parallel(
    table: ModuleTable,
    batch: MeshBatch,
    stride: dict[str, IntArray],
    groups: GroupTimes,
) -> tuple[FloatArray, FloatArray]:
    if not np.any(batch.cp > 1):
        zero = np.zeros_like(table.kv_bytes)
        return zero, zero
    ranks, column = groups.find(batch.cp, stride["cp"]), batch.cp[:, None].astype(np.float64)
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


_ZERO_BUBBLE = SCHEDULES.index("zero_bubble")


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
    slack = time_before(first, count, backward_s)
    rows = np.flatnonzero(schedule == _ZERO_BUBBLE)
    if len(rows):
        slack[rows] = _lagging_s(
            m[rows][:, None], first[rows], last[rows], count[rows], backward_s[rows], weight_s[rows]
        )
    return slack


def _lagging_s(
    m: IntArray, first: IntArray, last: IntArray, count: IntArray, backward_s: FloatArray, weight_s: FloatArray
) -> FloatArray:
    """The same of zero-bubble schedules.

    The formula is linear in r but where ranks of another kind begin and at r = m - 1, so one of these is the least of a kind.
    """
    after = np.cumsum(count, axis=1)
    own = time_before(first + 1, count, weight_s) - time_before(first, count, weight_s)
    # (n, K): all places where the formula may bend, at once.
    bends = np.concatenate([m - 1, after - 1, after, np.zeros_like(m)], axis=1)
    others = np.minimum(np.maximum(bends, 0), after[:, -1:] - 1)
    behind = _behind_s(others, m, count, backward_s, weight_s)
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
    lead = held.reshape(ranks.shape) - np.minimum(ranks + 1, m[:, :, None]) * own[:, None, :]
    return np.asarray(np.maximum(lead.min(axis=1), 0.0))


def _behind_s(rank: IntArray, m: IntArray, count: IntArray, backward_s: FloatArray, weight_s: FloatArray) -> FloatArray:
    """Weight gradients after the last input gradient of ranks (n, K), less the input gradients after that."""
    own = time_before(rank + 1, count, weight_s) - time_before(rank, count, weight_s)
    return np.minimum(rank + 1, m) * own - time_before(rank, count, backward_s - weight_s)
