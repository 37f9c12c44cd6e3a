"""From pipelines to steps: gradient exchange, weight gathering, optimizer and offloading around them.

Only what backward passes do not hide counts at the end of a step.

Shapes: n plans, c pipeline configurations, R runs of chunks, Q kinds of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
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

__all__ = [
    "ChunkGathering",
    "StepEnd",
    "chunk_gathering",
    "gradient_passes_s",
    "gradient_width",
    "hidden_s",
    "host_updates_sooner",
    "least_step_times",
    "offload_waits_s",
    "one_way_s",
    "shown_s",
    "step_costs",
    "step_totals",
]


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


def gradient_width(workload: Workload, groups: GroupTimes) -> float:
    """Bytes of a gradient that is exchanged."""
    return max(groups.assumptions.main_gradient_bytes, float(workload.precision.gradient_bytes))


def gradient_passes_s(workload: Workload, groups: GroupTimes, elements: FloatArray) -> FloatArray:
    """Time to find the norm of accumulated gradients, to scale them by it and to set them to zero: ``p w n / B``.

    Kernels that only move data: p passes (`MeshAssumptions.gradient_passes`) over n gradients of w bytes at the bandwidth B that streams
    reach. PALEO's device has no such kernels.
    """
    compute = workload.compute
    if not isinstance(compute, RooflineCompute):
        return np.zeros_like(elements)
    moved = groups.assumptions.gradient_passes * gradient_width(workload, groups) * elements
    return np.asarray(moved / compute.device.stream_bytes_per_s)


class StepEnd:
    """Exposed gradient exchange, weight gathering and update of the stage that ends last."""

    def __init__(
        self,
        workload: Workload,
        groups: GroupTimes,
        pipelines: Pipelines,
        memory: PipelineMemory,
        times: CopyTimes,
        index: IntArray,
        division: Division,
        hidden_s: FloatArray,
        ranks: slice,
    ) -> None:
        self.hidden_s = hidden_s  # (n, Q) of other exchanges, by the last backward pass
        self.workload, self.groups, self.pipelines, self.memory = workload, groups, pipelines, memory
        self.times, self.index, self.division = times, index, division
        self.ranks = ranks  # kinds of ranks that are looked at
        self.dense = rows_of(memory.dense_trainable[:, ranks], index)
        self.experts = rows_of(memory.expert_trainable[:, ranks], index)
        # Their gradients come last and share a bucket: PyTorch DDP and Megatron-LM cut no weight tensor.
        self.embedding_trainable = rows_of(memory.embedding_trainable[:, ranks], index)

    def parts(self, on_host: IntArray, slack_s: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Exchange, update on the device, update on the host: (n,) each, of plans that update where ``on_host`` says.

        ``slack_s`` (n, Q) is how long before the first rank the others end their passes (`costmodel.mesh.passes`).
        """
        index = self.index
        if not self.workload.training:
            zero = np.zeros(len(index))
            return zero, zero, zero
        away = on_host[:, None] > 0
        waiting, (on_device, hosted) = self.waiting_s(), self.updates_s()
        tail = np.where(self.exists, waiting + np.where(away, hosted, on_device) - slack_s[:, self.ranks], -np.inf)
        worst = np.argmax(tail, axis=1)
        rows = np.arange(len(index))
        whole = np.maximum(tail[rows, worst], 0.0)
        update_s = np.minimum(np.where(on_host > 0, 0.0, on_device[rows, worst]), whole)
        hosted_s = np.minimum(np.where(on_host > 0, hosted[rows, worst], 0.0), whole - update_s)
        return whole - update_s - hosted_s + self.summed_s()[index], update_s, hosted_s

    def tails_s(self, index: IntArray, row: IntArray, on_host: Sequence[int], slack_s: FloatArray) -> list[FloatArray]:
        """What the end adds to plans on pipelines ``index`` that share rows of the division, for updates on the device (0) or host (1).

        The sum of `parts`, one array (len(index),) for each of ``on_host``; ``slack_s`` is that of the plans, (len(index), Q).
        """
        if not self.workload.training:
            return [np.zeros(len(index)) for _ in on_host]
        waiting, updates = self.waiting_s(), self.updates_s()
        summed = self.summed_s()[index]
        tails = {}
        for place in set(on_host):
            busy = np.where(self.exists, waiting + updates[place], -np.inf)
            tails[place] = np.maximum(np.max(rows_of(busy, row) - slack_s[:, self.ranks], axis=1), 0.0) + summed
        return [tails[place] for place in on_host]

    @property
    def exists(self) -> BoolArray:
        """Which kinds of ranks there are: (n, Q)."""
        return rows_of(self.pipelines.layouts.rank_first[:, self.ranks], self.index) >= 0

    def waiting_s(self) -> FloatArray:
        """Exposed gradient exchange and gathering of weights, (n, Q)."""
        stage, width = self.division.zero_stage[:, None], gradient_width(self.workload, self.groups)
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
        hiding = np.where((stage == 1) | (stage == 2), assumptions.zero_overlap, 1.0) * backward
        last = self.embedding_trainable * gradient_width(self.workload, self.groups)
        exposed = exposed_exchange(assumptions, exchange, dense + experts, hiding, last)
        if np.any(stage == 2):
            # ZeRO-2 keeps a share of the gradients only, so it reduces after every micro-batch.
            each = exposed_exchange(assumptions, reduce, dense + experts, hiding, last)
            others = (self.pipelines.batch.num_micro_batches[self.index] - 1)[:, None]
            exposed += np.where(stage == 2, others * each, 0.0)
        return exposed

    def _gathering(self, dense: FloatArray, experts: FloatArray, stage: IntArray) -> FloatArray:
        """Gathering of updated weights that the next forward pass does not hide (ZeRO-1 and 2): (n, Q)."""
        assumptions, width = self.groups.assumptions, self.workload.precision.weight_bytes
        gather = self.times.gather_s(dense * width, experts * width)
        forward = rows_of(self.pipelines.rank_forward_s[:, self.ranks], self.index)
        forward = assumptions.zero_overlap * forward
        exposed = exposed_exchange(
            assumptions, gather, (dense + experts) * width, forward, self.embedding_trainable * width
        )
        if assumptions.shard_piece_s:
            pieces = self.division.copies.shard[:, None] * rows_of(self.memory.tensors[:, self.ranks], self.index)
            exposed = exposed + assumptions.shard_piece_s * np.where(self.division.copies.shard[:, None] > 1, pieces, 0)
        return np.where((stage == 1) | (stage == 2), exposed, 0.0)

    def updates_s(self) -> tuple[FloatArray, FloatArray]:
        """Time of the optimizer on the device, or else on the host with both transfers: (n, Q) each."""
        tensors = rows_of(self.memory.tensors[:, self.ranks], self.index)
        return _updates_s(self.workload, self.groups, self.dense, self.experts, tensors, self.division)

    def summed_s(self) -> FloatArray:
        """Gradients of weights that stages share, or that tensor-parallel ranks apply to different positions: (c,)."""
        return self.tied_exchange_s() + self.apart_exchange_s()

    def apart_exchange_s(self) -> FloatArray:
        """The tensor-parallel ranks add up the gradients of matrices that they all hold, of the rank with most: (c,)."""
        pipelines = self.pipelines
        if not np.any(pipelines.table.apart_trainable):
            return np.zeros(len(pipelines))
        held = weigh(pipelines.layouts.rank_modules, pipelines.table.apart_trainable, pipelines.pass_of)
        message = np.max(held, axis=1) * gradient_width(self.workload, self.groups)
        ranks = self.groups.find(pipelines.batch.tp, np.ones_like(pipelines.batch.tp))
        return self.groups.time_s("all_reduce", ranks, message)

    def tied_exchange_s(self) -> FloatArray:
        """The first and the last stage add up the gradients of the embedding that they share: (c,)."""
        pipelines = self.pipelines
        if not np.any(pipelines.table.tied_count):
            return np.zeros(len(pipelines))
        message = np.max(pipelines.table.tied_count, axis=1)[pipelines.pass_of] * gradient_width(
            self.workload, self.groups
        )
        pp = pipelines.batch.pp
        pair = self.groups.find(np.where(pp > 1, 2, 1), pipelines.stride["pp"] * np.maximum(pp - 1, 1))
        return self.groups.time_s("all_reduce", pair, message)


def host_updates_sooner(
    workload: Workload, groups: GroupTimes, memory: PipelineMemory, index: IntArray, division: Division
) -> BoolArray:
    """Which plans have a rank whose optimizer takes less time on the host than on the device, (n,).

    Where none has, the step with the optimizer on the host is not shorter: nothing else of it depends on where the optimizer is.
    The host may be sooner where its links and memory are quick, or where a rank updates few weights of many tensors, since the device's
    update takes the time to start its kernels at least.

    Parameters
    ----------
    workload : Workload
    groups : GroupTimes
    memory : PipelineMemory
    index : array (n,)
        Pipeline of every plan.
    division : Division
        (n,); what it says of offloading is not read.
    """
    if not workload.training:
        return np.zeros(len(index), dtype=np.bool_)
    dense, experts, tensors = (
        rows_of(held, index) for held in (memory.dense_trainable, memory.expert_trainable, memory.tensors)
    )
    on_device, hosted = _updates_s(workload, groups, dense, experts, tensors, division)
    return np.asarray(np.any(rows_of(memory.exists, index) & (hosted < on_device), axis=1))


def _updates_s(
    workload: Workload,
    groups: GroupTimes,
    dense: FloatArray,
    experts: FloatArray,
    tensors: FloatArray,
    division: Division,
) -> tuple[FloatArray, FloatArray]:
    """Time of the optimizer on the device, and on the host with both transfers, of ranks (n, Q) that hold these weights."""
    assumptions = groups.assumptions
    sharded = division.zero_stage[:, None] > 0
    elements = dense / np.where(sharded, division.copies.shard[:, None], 1)
    elements = elements + experts / np.where(sharded, division.copies.expert_shard[:, None], 1)
    moved = elements * (assumptions.main_gradient_bytes + workload.precision.weight_bytes)
    touched = elements * workload.optimizer.bytes_moved_per_weight(workload.precision)
    hosted = moved / assumptions.host_bytes_per_s + touched / assumptions.host_update_bytes_per_s
    on_device = workload.compute.update_s(elements)
    passed = dense + experts if assumptions.zero_whole else elements
    passes_s = gradient_passes_s(workload, groups, passed)
    on_device, hosted = on_device + passes_s, hosted + passes_s
    if assumptions.update_launches:
        started = assumptions.host_launch_s * assumptions.bare_launch * assumptions.update_launches
        on_device = np.maximum(on_device, started * tensors)
    return on_device, hosted


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
    spent = _Step(workload, groups, pipelines, memory, index, np.arange(len(index)), division, exact=exact)
    passes = spent.passes
    exchange_s, update_s, hosted_s = spent.end.parts(division.offload_optimizer, passes.slack_s)
    offload_s = hosted_s
    if np.any(division.offload_activations):
        offload_s = hosted_s + np.where(division.offload_activations > 0, spent.offload_waits_s(), 0.0)
    m = pipelines.batch.num_micro_batches[index]
    exists = rows_of(pipelines.layouts.rank_first, index) >= 0
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
        host_bytes=filled.host_bytes[rows, fullest],
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
    row = np.arange(len(index))
    spent = _Step(workload, groups, pipelines, memory, index, row, division, exact=False)
    step = spent.passes.makespan_s + np.array(spent.end.tails_s(index, row, (0, 1), spent.passes.slack_s))
    if np.any(division.offload_activations):
        step += np.where(division.offload_activations > 0, spent.offload_waits_s(), 0.0)
    return step.T


def step_totals(
    workload: Workload,
    groups: GroupTimes,
    pipelines: Pipelines,
    memory: PipelineMemory,
    index: IntArray,
    row: IntArray,
    division: Division,
    offloads: Sequence[tuple[int, int]],
) -> FloatArray:
    """Step times of plans that share pipelines and divisions, (n, H): what `step_costs` says, without the parts.

    Parameters
    ----------
    workload, groups, pipelines, memory
        As for `step_costs`.
    index, row : arrays (n,)
        Pipeline and row of the division of every plan. Pipelines that share a row differ only in what
        `costmodel.mesh.passes.end_columns` leaves out.
    division : Division
        (u,); what it says of offloading is not read.
    offloads : sequence of (offload_optimizer, offload_activations), H of them

    Returns
    -------
    array (n, H)
    """
    spent = _Step(workload, groups, pipelines, memory, index, row, division, exact=True)
    tails = spent.end.tails_s(index, row, [optimizer for optimizer, _ in offloads], spent.passes.slack_s)
    waits_s = spent.offload_waits_s() if any(away for _, away in offloads) else 0.0
    return np.stack(
        [
            spent.passes.makespan_s + tail + (waits_s if away else 0.0)
            for tail, (_, away) in zip(tails, offloads, strict=True)
        ]
    ).T


class _Step:
    """What the steps of plans are made of: plan n divides dp of pipeline ``index[n]`` as row ``row[n]`` of the division says."""

    def __init__(
        self,
        workload: Workload,
        groups: GroupTimes,
        pipelines: Pipelines,
        memory: PipelineMemory,
        index: IntArray,
        row: IntArray,
        division: Division,
        *,
        exact: bool,
    ) -> None:
        times = CopyTimes.of(groups, division.copies, has_experts=bool(np.any(memory.experts)))
        self.groups, self.pipelines, self.memory, self.index = groups, pipelines, memory, index
        self.passes = _gathered(workload, pipelines, times, index, row, division, exact=exact)
        # Plans that share a row are alike in what their backward passes hide.
        some = np.zeros(len(division.zero_stage), dtype=np.int64)
        hidden = np.zeros((self.passes.hidden_s.shape[1], len(some))).T
        some[row] = index
        if np.any(division.zero_stage >= 3):
            hidden[row] = self.passes.hidden_s
        # Rank 0 ends last: what it leaves is a bound for all.
        ranks = slice(None) if exact else slice(0, 1)
        self.end = StepEnd(workload, groups, pipelines, memory, times, some, division, hidden, ranks)

    def offload_waits_s(self) -> FloatArray:
        """What plans wait for offloaded activations, (n,)."""
        offload = rows_of(_offload_s(self.groups, self.pipelines, self.memory), self.index)
        return self.pipelines.batch.num_micro_batches[self.index] * _slowest(offload, self.passes.waiting_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gathering:
    """The pipeline with ZeRO-3's gathering; arrays (n, Q) are of one micro-batch."""

    makespan_s: FloatArray  # (n,)
    waiting_s: FloatArray  # what a rank waits for weights and gradients, part of makespan_s
    hidden_s: FloatArray  # what backward passes hide of it, and of nothing else any more
    slack_s: FloatArray  # how long before the first rank the others end their passes


def _gathered(
    workload: Workload,
    pipelines: Pipelines,
    times: CopyTimes,
    index: IntArray,
    row: IntArray,
    division: Division,
    *,
    exact: bool,
) -> _Gathering:
    """Time of the pipeline of every plan, with ZeRO-3's gathering where it gathers."""
    makespan, slack = pipelines.makespan_s[index], rows_of(pipelines.rank_slack_s, index)
    waiting, hidden = (np.zeros(slack.T.shape).T for _ in range(2))
    plans = np.flatnonzero(division.zero_stage[row] >= 3)
    if len(plans):
        # What is offloaded makes no difference here.
        rows, copies = row[plans], division.copies
        first, same = combined(index[plans], copies.shard[rows], copies.expert_shard[rows])
        found = _gathering(workload, pipelines, times.take(rows[first]), index[plans[first]], exact=exact)
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
    table, width = pipelines.table, workload.precision.weight_bytes
    cut = is_cut[:, None]
    dense = rows_of(table.dense_count, module) + np.where(cut, rows_of(table.tied_count, module), 0.0)
    gather = times.gather_s(dense * width, rows_of(table.expert_count, module) * width)
    if not workload.training:
        return gather, np.zeros_like(gather)
    wide = gradient_width(workload, times.groups)
    trained = rows_of(table.dense_trainable, module) + np.where(cut, rows_of(table.tied_trainable, module), 0.0)
    return gather, times.reduce_s(trained * wide, rows_of(table.expert_trainable, module) * wide, in_buckets=False)


def _module_starts(pipelines: Pipelines, times: CopyTimes, module: IntArray) -> tuple[FloatArray, FloatArray]:
    """Time of the host to start the gathering of a module's weights, and the scattering of its gradients: (n, K) each."""
    table, copies = pipelines.table, times.copies
    dense, experts = (copies.shard > 1)[:, None], (copies.expert_shard > 1)[:, None]

    def started(dense_count: FloatArray, expert_count: FloatArray) -> FloatArray:
        of_dense, of_experts = dense & (rows_of(dense_count, module) > 0), experts & (rows_of(expert_count, module) > 0)
        return times.groups.assumptions.host_collective_s * (of_dense.astype(np.float64) + of_experts)

    return started(table.dense_count, table.expert_count), started(table.dense_trainable, table.expert_trainable)


def _offload_s(groups: GroupTimes, pipelines: Pipelines, memory: PipelineMemory) -> FloatArray:
    """What compute does not hide of saving and fetching the activations of a micro-batch, (c, Q)."""
    assumptions = groups.assumptions
    forward = weigh(pipelines.layouts.rank_modules, pipelines.passes.compute_forward_s, pipelines.pass_of)
    return shown_s(one_way_s(assumptions, memory.block_bytes / memory.alive), hidden_s(assumptions, forward))


def offload_waits_s(
    groups: GroupTimes, pipelines: Pipelines, memory: PipelineMemory, waiting_s: FloatArray
) -> FloatArray:
    """What the slowest kind of rank waits for offloaded activations per micro-batch, besides ``waiting_s`` (c, Q) for weights: (c,)."""
    return _slowest(_offload_s(groups, pipelines, memory), waiting_s)


def _slowest(offload_s: FloatArray, waiting_s: FloatArray) -> FloatArray:
    """The same of the slowest kind of rank, (n,); while a rank waits for weights, activations travel."""
    return np.asarray(np.max(np.maximum(offload_s - waiting_s, 0.0), axis=1))
