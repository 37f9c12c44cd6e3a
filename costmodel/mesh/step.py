"""From pipelines to steps: gradient exchange, weight gathering, optimizer and offloading around them.

Only what backward passes do not hide counts at the end of a step.

Shapes: n plans, c pipeline configurations, R runs of chunks, Q kinds of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined, rows_of
from costmodel.kernels.roofline import RooflineCompute
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.communication import CopyTimes, Division, GroupTimes, exposed_exchange
from costmodel.mesh.memory import PipelineMemory
from costmodel.mesh.passes import Pipelines, pipeline_s, rank_slack_s
from costmodel.mesh.plan import MEMORY_PARTS, MeshCosts
from costmodel.mesh.schedule import makespan_s
from costmodel.mesh.stages import weigh
from costmodel.schedules import DELAYS_WEIGHTS
from costmodel.tolerances import ROUNDING
from costmodel.workload import Workload


def one_way_s(assumptions: MeshAssumptions, activation_bytes: FloatArray) -> FloatArray:
    """Time to move activations to the host, or back."""
    return activation_bytes / assumptions.host_bytes_per_s


def hidden_s(assumptions: MeshAssumptions, compute_s: FloatArray) -> FloatArray:
    """The part of a move that forward compute of ``compute_s`` hides; the backward pass, which is longer, is taken to hide no more."""
    return assumptions.offload_overlap * compute_s


def shown_s(one_way: FloatArray, hidden: FloatArray) -> FloatArray:
    """What is left of a move to the host and one back.

    >>> shown_s(np.array([3.0, 1.0]), np.array([2.0, 2.0])).tolist()
    [2.0, 0.0]
    """
    return np.asarray(2.0 * np.maximum(one_way - hidden, 0.0))


def gradient_passes_s(workload: Workload, groups: GroupTimes, elements: FloatArray) -> FloatArray:
    """Time to find the norm of accumulated gradients, to scale them by it and to set them to zero: ``p w n / B``.

    Kernels that only move data: p passes (`MeshAssumptions.gradient_passes`) over n gradients of w bytes at the bandwidth B that streams
    reach. PALEO's device has no such kernels.
    """
    compute = workload.compute
    if not isinstance(compute, RooflineCompute):
        return np.zeros_like(elements)
    assumptions = groups.assumptions
    moved = assumptions.gradient_passes * assumptions.gradient_width(workload.precision) * elements
    return np.asarray(moved / compute.device.stream_bytes_per_s)


class StepEnd:
    """Exposed gradient exchange, weight gathering and update of the stage that ends last, of plans on pipelines ``index``."""

    def __init__(
        self,
        workload: Workload,
        pipelines: Pipelines,
        memory: PipelineMemory,
        times: CopyTimes,
        index: IntArray,
        hidden_s: FloatArray,
        ranks: slice,
    ) -> None:
        self.hidden_s = hidden_s  # (n, Q) of other exchanges, by the last backward pass
        self.workload, self.groups, self.pipelines, self.memory = workload, times.groups, pipelines, memory
        self.times, self.index, self.division = times, index, times.division
        self.ranks = ranks  # kinds of ranks that are looked at
        self.gradient_width = self.groups.assumptions.gradient_width(workload.precision)
        self.dense = rows_of(memory.dense_trainable[:, ranks], index)
        self.experts = rows_of(memory.expert_trainable[:, ranks], index)
        self.narrow = rows_of(memory.narrow_trainable[:, ranks], index)
        # Their gradients come last and share a bucket: PyTorch DDP and Megatron-LM cut no weight tensor.
        self.embedding_trainable = rows_of(memory.embedding_trainable[:, ranks], index)

    def parts(self, slack_s: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Exchange, update on the device, update on the host, (n,) each.

        ``slack_s`` (n, Q) is how long before the first rank the others end their passes (`costmodel.mesh.passes`).
        """
        rows, on_host = np.arange(len(self.index)), self.division.offload_optimizer > 0
        if not self.workload.training:
            return np.zeros(len(rows)), np.zeros(len(rows)), np.zeros(len(rows))
        on_device, hosted = self.updates_s()
        tail = self._tail_s(np.where(on_host[:, None], hosted, on_device), slack_s)
        worst = np.argmax(tail, axis=1)
        whole = np.maximum(tail[rows, worst], 0.0)
        update_s = np.minimum(np.where(on_host, 0.0, on_device[rows, worst]), whole)
        hosted_s = np.minimum(np.where(on_host, hosted[rows, worst], 0.0), whole - update_s)
        return whole - update_s - hosted_s + self.summed_s()[self.index], update_s, hosted_s

    def either_s(self, slack_s: FloatArray) -> FloatArray:
        """The sum of `parts` for updates on the device and on the host: (n, 2)."""
        if not self.workload.training:
            return np.zeros((len(self.index), 2))
        tails = self._tail_s(np.stack(self.updates_s()), slack_s)
        return np.asarray((np.maximum(np.max(tails, axis=2), 0.0) + self.summed_s()[self.index]).T)

    def _tail_s(self, update_s: FloatArray, slack_s: FloatArray) -> FloatArray:
        """From the last pass of the first rank to the end of every rank, (..., n, Q) as the updates."""
        exists = rows_of(self.memory.exists[:, self.ranks], self.index)
        return np.where(exists, self.waiting_s() + update_s - slack_s[:, self.ranks], -np.inf)

    def waiting_s(self) -> FloatArray:
        """Exposed gradient exchange and gathering of weights, (n, Q)."""
        stage, width = self.division.zero_stage[:, None], self.gradient_width
        hides = self.groups.assumptions.dp_overlap
        hiding = rows_of(self.pipelines.rank_hiding_s[:, self.ranks], self.index)
        hiding = hiding - self.hidden_s[:, self.ranks] / max(hides, 1e-9)
        waiting = self._reduction(self.dense * width, self.experts * width, stage, np.maximum(hiding, 0.0))
        return np.asarray(waiting + self._gathering(self.dense, self.experts, stage))

    def _reduction(self, dense: FloatArray, experts: FloatArray, stage: IntArray, backward: FloatArray) -> FloatArray:
        """Exposed reduction of gradients: (n, Q)."""
        assumptions = self.groups.assumptions
        reduce = np.where(stage < 3, self.times.reduce_s(dense, experts), 0.0)
        if assumptions.zero_whole:
            reduce = np.where(stage == 1, self.times.whole_s(dense, experts), reduce)
        exchange = reduce + self.times.replicate_s(dense, experts)
        hiding = assumptions.hidden_share(stage) * backward
        embedding = self.embedding_trainable * self.gradient_width
        last = np.maximum(self.times.bucket_bytes, embedding)
        exposed = exposed_exchange(assumptions, exchange, dense + experts, hiding, last)
        if np.any(stage == 2):
            # ZeRO-2 keeps a share of the gradients only, so it reduces after every micro-batch.
            each = exposed_exchange(assumptions, reduce, dense + experts, hiding, last)
            others = (self.pipelines.batch.num_micro_batches[self.index] - 1)[:, None]
            exposed += np.where(stage == 2, others * each, 0.0)
        return exposed

    def _gathering(self, dense: FloatArray, experts: FloatArray, stage: IntArray) -> FloatArray:
        """Gathering of updated weights that the next forward pass does not hide (ZeRO-1 and 2): (n, Q)."""
        assumptions, precision = self.groups.assumptions, self.workload.precision
        # What adds up whole gradients knows no buckets of weights: it gathers them all at once.
        buckets = None if assumptions.zero_whole else (dense * self.gradient_width, experts * self.gradient_width)
        moved = precision.sized(precision.gathered_bytes, dense, self.narrow, experts)
        gather = self.times.gather_s(*moved, buckets)
        bucket = self.times.bucket_bytes * precision.gathered_bytes / self.gradient_width
        last = np.maximum(bucket, self.embedding_trainable * precision.weight_bytes)
        forward = rows_of(self.pipelines.rank_forward_s[:, self.ranks], self.index)
        forward = assumptions.hidden_share(stage) * forward
        exposed = exposed_exchange(assumptions, gather, moved[0] + moved[1], forward, last)
        if assumptions.shard_piece_s:
            pieces = self.division.shard[:, None] * rows_of(self.memory.tensors[:, self.ranks], self.index)
            exposed = exposed + assumptions.shard_piece_s * np.where(self.division.shard[:, None] > 1, pieces, 0)
        return np.where((stage == 1) | (stage == 2), exposed, 0.0)

    def updates_s(self) -> tuple[FloatArray, FloatArray]:
        """Time of the optimizer on the device, or else on the host with both transfers: (n, Q) each."""
        workload, assumptions, division = self.workload, self.groups.assumptions, self.division
        sharded = division.zero_stage[:, None] > 0
        shards, expert_shards = (
            np.where(sharded, count[:, None], 1) for count in (division.shard, division.expert_shard)
        )
        elements, experts = self.dense / shards, self.experts / expert_shards
        elements = elements + experts
        moved = elements * (assumptions.main_gradient_bytes + workload.precision.weight_bytes)
        touched = elements * workload.optimizer.bytes_moved_per_weight(workload.precision)
        hosted = moved / assumptions.host_bytes_per_s + touched / assumptions.host_update_bytes_per_s
        on_device = workload.compute.update_s(elements)
        passed = self.dense + self.experts if assumptions.zero_whole else elements
        passes_s = gradient_passes_s(workload, self.groups, passed)
        if isinstance(workload.compute, RooflineCompute):
            cast = workload.precision.updates_bytes(self.narrow, self.experts, self.narrow / shards, experts)
            passes_s = passes_s + cast / workload.compute.device.stream_bytes_per_s
        on_device, hosted = on_device + passes_s, hosted + passes_s
        if assumptions.update_launches:
            started = assumptions.host_launch_s * assumptions.bare_launch * assumptions.update_launches
            on_device = np.maximum(on_device, started * rows_of(self.memory.tensors[:, self.ranks], self.index))
        return on_device, hosted

    def summed_s(self) -> FloatArray:
        """Gradients of weights that stages share, or that tensor-parallel ranks apply to different positions: (c,)."""
        return self.tied_exchange_s() + self.apart_exchange_s()

    def apart_exchange_s(self) -> FloatArray:
        """The tensor-parallel ranks add up the gradients of matrices that they all hold, of the rank with most: (c,)."""
        pipelines = self.pipelines
        if not np.any(pipelines.table.apart_trainable):
            return np.zeros(len(pipelines))
        held = weigh(pipelines.layouts.rank_modules, pipelines.table.apart_trainable, pipelines.pass_of)
        message = np.max(held, axis=1) * self.gradient_width
        ranks = self.groups.find(pipelines.batch.tp, np.ones_like(pipelines.batch.tp), pipelines.place)
        return self.groups.time_s("all_reduce", ranks, message)

    def tied_exchange_s(self) -> FloatArray:
        """The first and the last stage add up the gradients of the embedding that they share: (c,)."""
        pipelines = self.pipelines
        if not np.any(pipelines.table.tied_count):
            return np.zeros(len(pipelines))
        message = np.max(pipelines.table.tied_count, axis=1)[pipelines.pass_of] * self.gradient_width
        pp = pipelines.batch.pp
        apart = pipelines.stride["pp"] * np.maximum(pp - 1, 1)
        pair = self.groups.find(np.where(pp > 1, 2, 1), apart, pipelines.place)
        return self.groups.time_s("all_reduce", pair, message)


def step_costs(
    workload: Workload,
    groups: GroupTimes,
    pipelines: Pipelines,
    memory: PipelineMemory,
    index: IntArray,
    division: Division,
    *,
    exact: bool = True,
) -> MeshCosts:
    """Score plans that share pipelines.

    Parameters
    ----------
    workload : Workload
    groups : GroupTimes
    pipelines : Pipelines
    memory : PipelineMemory
        Of the same pipelines.
    index : array (n,)
        Pipeline of every plan.
    division : Division
    exact : bool
        False: step times are lower bounds.

    Returns
    -------
    MeshCosts
    """
    passes, end = _ended(workload, groups, pipelines, memory, index, division, exact=exact)
    exchange_s, update_s, hosted_s = end.parts(passes.slack_s)
    offload_s = hosted_s + offload_waits_s(groups, pipelines, memory, index, division, passes.waiting_s)
    m = pipelines.batch.num_micro_batches[index]
    exists = rows_of(memory.exists, index)
    parts = {name: rows_of(value, index) for name, value in pipelines.rank_parts().items()}
    load = sum(parts.values()) + passes.waiting_s
    slowest = np.argmax(np.where(exists, load, -1.0), axis=1)
    rows = np.arange(len(index))
    picked = {name: m * value[rows, slowest] for name, value in parts.items()}
    gather_s = m * passes.waiting_s[rows, slowest]
    bubble = passes.makespan_s - sum(picked.values()) - gather_s
    filled = memory.divided(index, division)
    total = filled.total_bytes
    fullest = np.argmax(total, axis=1)
    return MeshCosts(
        step_time_s=passes.makespan_s + exchange_s + update_s + offload_s,
        compute_s=picked["compute_s"],
        recompute_s=picked["recompute_s"],
        tp_exposed_s=picked["tp_s"],
        cp_exposed_s=picked["cp_s"],
        ep_exposed_s=picked["ep_s"],
        pp_exposed_s=picked["transfer_s"],
        dp_exposed_s=gather_s + exchange_s,
        bubble_s=np.where(np.abs(bubble) > ROUNDING * passes.makespan_s, bubble, 0.0),
        # Not below 0 by the rounding of differences.
        host_s=np.maximum(
            m * weigh(pipelines.layouts.rank_modules, pipelines.passes.host_wait_s, pipelines.pass_of)[index, slowest],
            0.0,
        ),
        optimizer_s=update_s,
        offload_s=offload_s,
        memory_bytes=total[rows, fullest],
        host_bytes=filled.host_bytes.max(axis=1),
        stage=pipelines.layouts.rank_first[index, fullest],
        **{name: filled.parts[name][rows, fullest] for name in MEMORY_PARTS},
    )


def least_step_times(
    workload: Workload,
    groups: GroupTimes,
    pipelines: Pipelines,
    memory: PipelineMemory,
    index: IntArray,
    division: Division,
) -> FloatArray:
    """Times that steps do not go below, with the optimizer on the device and on the host: (n, 2).

    What ``division`` says of the place of the optimizer is not read.
    """
    passes, end = _ended(workload, groups, pipelines, memory, index, division, exact=False)
    waits_s = offload_waits_s(groups, pipelines, memory, index, division, passes.waiting_s)
    return (passes.makespan_s + waits_s)[:, None] + end.either_s(passes.slack_s)


def _ended(
    workload: Workload,
    groups: GroupTimes,
    pipelines: Pipelines,
    memory: PipelineMemory,
    index: IntArray,
    division: Division,
    *,
    exact: bool,
) -> tuple[_Gathering, StepEnd]:
    """The passes of plans, and what follows them."""
    times = CopyTimes.of(groups, division, pipelines.place[index], has_experts=bool(np.any(memory.expert_bytes)))
    passes = _gathered(workload, pipelines, times, index, exact=exact)
    # Rank 0 ends last: what it leaves is a bound for all.
    ranks = slice(None) if exact else slice(0, 1)
    return passes, StepEnd(workload, pipelines, memory, times, index, passes.hidden_s, ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathering:
    """The pipeline with ZeRO-3's gathering; arrays (n, Q) are of one micro-batch."""

    makespan_s: FloatArray  # (n,)
    waiting_s: FloatArray  # what a rank waits for weights and gradients, part of makespan_s
    hidden_s: FloatArray  # what backward passes hide of it, and of nothing else any more
    slack_s: FloatArray  # how long before the first rank the others end their passes


def _gathered(
    workload: Workload, pipelines: Pipelines, times: CopyTimes, index: IntArray, *, exact: bool
) -> _Gathering:
    """Time of the pipeline of every plan, with ZeRO-3's gathering where it gathers."""
    division, makespan, slack = times.division, pipelines.makespan_s[index], rows_of(pipelines.rank_slack_s, index)
    waiting, hidden = (np.zeros(slack.T.shape).T for _ in range(2))
    plans = np.flatnonzero(division.zero_stage >= 3)
    if len(plans):
        # What is offloaded makes no difference here.
        first, same = combined(index[plans], division.shard[plans], division.expert_shard[plans])
        found = _gathering(workload, pipelines, times.take(plans[first]), index[plans[first]], exact=exact)
        makespan[plans], waiting[plans] = found.makespan_s[same], found.waiting_s[same]
        hidden[plans], slack[plans] = found.hidden_s[same], found.slack_s[same]
    return _Gathering(makespan_s=makespan, waiting_s=waiting, hidden_s=hidden, slack_s=slack)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkGathering:
    """What ZeRO-3 adds to the passes of one micro-batch: of chunks (n, R), and of ranks (n, Q)."""

    run_forward_s: FloatArray
    run_backward_s: FloatArray
    waiting_s: FloatArray  # both passes of a rank
    hidden_s: FloatArray  # what backward passes hide, and of nothing else any more


def chunk_gathering(workload: Workload, pipelines: Pipelines, times: CopyTimes, pipeline: IntArray) -> ChunkGathering:
    """What ZeRO-3 adds to the passes of chunks.

    Weights are gathered module by module before both passes, gradients scattered behind the backward one. Behind which a zero-bubble
    schedule hides no more than input gradients take, and nothing hides what compute loses alongside it (``interference``); a device may
    wait for what is gathered for it (``gather_overlap``). The host starts one collective per module and pass for what is gathered, and one
    for what is scattered (PyTorch FSDP, a module being what it wraps): what it is not ready with in time, the device waits for.
    """
    module, batch, passes = pipelines.pass_of[pipeline], pipelines.batch, pipelines.passes
    run_modules, rank_modules = (
        rows_of(pipelines.layouts.run_modules, pipeline),
        rows_of(pipelines.layouts.rank_modules, pipeline),
    )
    gather, reduce = _module_exchanges(workload, pipelines, times, module, batch.pp[pipeline] > 1)
    overlap, lost = times.groups.assumptions.dp_overlap, times.groups.assumptions.interference
    starts, ends = _module_starts(pipelines, times, module)
    forward = np.maximum(
        gather - overlap * rows_of(passes.forward_s, module), starts - rows_of(passes.idle_forward_s, module)
    )
    forward = np.maximum(forward, lost * gather)
    run_forward, extra = weigh(run_modules, forward), weigh(rank_modules, forward)
    run_backward, behind = np.zeros_like(run_forward), np.zeros_like(extra)
    if workload.training:
        flows = rows_of(passes.backward_s, module) > 0
        gathered, starts = np.where(flows, gather, 0.0), np.where(flows, starts, 0.0) + ends
        waited = (1.0 - times.groups.assumptions.gather_overlap) * gathered
        moved = gathered - waited + reduce
        lags = DELAYS_WEIGHTS[batch.schedule[pipeline]][:, None]
        hiding = rows_of(passes.backward_s, module) - np.where(lags, rows_of(passes.weight_s, module), 0.0)
        late = starts - rows_of(passes.idle_backward_s, module)
        plain = np.maximum(waited + np.maximum(moved - overlap * hiding, lost * moved), late)
        # A module that is recomputed gathers its weights once for both passes, and hides them behind both.
        shown = moved - overlap * (hiding + rows_of(passes.recompute_s, module))
        again = np.maximum(waited + np.maximum(shown, lost * moved), late - rows_of(passes.idle_again_s, module))
        share = rows_of(pipelines.run_share, pipeline)
        run_backward = share * weigh(run_modules, again) + (1.0 - share) * weigh(run_modules, plain)
        extra = extra + weigh(rank_modules, plain) + weigh(rows_of(pipelines.rank_again, pipeline), again - plain)
        behind = weigh(rank_modules, np.minimum(moved, overlap * hiding))
    return ChunkGathering(run_forward_s=run_forward, run_backward_s=run_backward, waiting_s=extra, hidden_s=behind)


def _gathering(
    workload: Workload, pipelines: Pipelines, times: CopyTimes, pipeline: IntArray, *, exact: bool
) -> _Gathering:
    """Time of pipelines with ZeRO-3's gathering."""
    batch, added = pipelines.batch, chunk_gathering(workload, pipelines, times, pipeline)
    schedule, weight_s = batch.schedule[pipeline], rows_of(pipelines.chunks.weight_s, pipeline)
    runs = pipelines.runs(pipeline, added.run_forward_s, added.run_backward_s)
    m, last = batch.num_micro_batches[pipeline], rows_of(pipelines.layouts.rank_last, pipeline)
    if exact:
        time = makespan_s(schedule, m, batch.pp[pipeline], batch.vpp[pipeline], runs, weight_s)
        first = rows_of(pipelines.layouts.rank_first, pipeline)
        slack = rank_slack_s(schedule, m, first, last, runs.count, runs.backward_s, weight_s)
    else:
        busy = rows_of(pipelines.busy_s, pipeline) + added.waiting_s
        time = pipeline_s(batch.take(pipeline), last, runs, weight_s, busy, exact=False)
        slack = rows_of(pipelines.rank_slack_s, pipeline)  # the first rank, which alone is looked at, has none
    return _Gathering(makespan_s=time, waiting_s=added.waiting_s, hidden_s=added.hidden_s, slack_s=slack)


def _module_exchanges(
    workload: Workload, pipelines: Pipelines, times: CopyTimes, module: IntArray, is_cut: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Time to gather the weights of every kind of module, and to scatter its gradients: (n, K) each."""
    table, precision = pipelines.table, workload.precision
    cut = is_cut[:, None]
    dense = rows_of(table.dense_count, module) + np.where(cut, rows_of(table.tied_count, module), 0.0)
    narrow, experts = rows_of(table.narrow_count, module), rows_of(table.expert_count, module)
    gather = times.gather_s(*precision.sized(precision.gathered_bytes, dense, narrow, experts))
    if not workload.training:
        return gather, np.zeros_like(gather)
    wide = times.groups.assumptions.gradient_width(workload.precision)
    trained = rows_of(table.dense_trainable, module) + np.where(cut, rows_of(table.tied_trainable, module), 0.0)
    return gather, times.reduce_s(trained * wide, rows_of(table.expert_trainable, module) * wide, in_buckets=False)


def _module_starts(pipelines: Pipelines, times: CopyTimes, module: IntArray) -> tuple[FloatArray, FloatArray]:
    """Time of the host to start the gathering of a module's weights, and the scattering of its gradients: (n, K) each."""
    table, division = pipelines.table, times.division
    dense, experts = (division.shard > 1)[:, None], (division.expert_shard > 1)[:, None]

    def started(dense_count: FloatArray, expert_count: FloatArray) -> FloatArray:
        of_dense, of_experts = dense & (rows_of(dense_count, module) > 0), experts & (rows_of(expert_count, module) > 0)
        return times.groups.assumptions.host_collective_s * (of_dense.astype(np.float64) + of_experts)

    return started(table.dense_count, table.expert_count), started(table.dense_trainable, table.expert_trainable)


def offload_waits_s(
    groups: GroupTimes,
    pipelines: Pipelines,
    memory: PipelineMemory,
    index: IntArray,
    division: Division,
    waiting_s: FloatArray,
) -> FloatArray:
    """What plans wait for offloaded activations in all micro-batches, beside ``waiting_s`` (n, Q) of each for weights: (n,).

    It is what compute does not hide of saving and fetching the activations of the slowest kind of rank; while a rank waits for weights,
    activations travel.
    """
    if not np.any(division.offload_activations):
        return np.zeros(len(index))
    assumptions = groups.assumptions
    forward = weigh(pipelines.layouts.rank_modules, pipelines.passes.compute_forward_s, pipelines.pass_of)
    offload = shown_s(one_way_s(assumptions, memory.block_bytes / memory.alive), hidden_s(assumptions, forward))
    slowest = np.max(np.maximum(rows_of(offload, index) - waiting_s, 0.0), axis=1)
    return np.where(division.offload_activations > 0, pipelines.batch.num_micro_batches[index] * slowest, 0.0)
