"""The end of a step: gradient exchange, gathering of weights and update, as far as backward passes do not hide them.

Shapes: n divisions of dp, c cores, Q kinds of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.kernels.roofline import RooflineCompute
from costmodel.mesh.cores import Cores
from costmodel.mesh.groups import GroupTimes
from costmodel.mesh.keys import rows_of
from costmodel.mesh.layout_arrays import weigh
from costmodel.mesh.memory import CoreMemory
from costmodel.mesh.sharding import CopyTimes, Division, exposed_exchange
from costmodel.workload import Workload

__all__ = ["StepEnd", "gradient_passes_s", "gradient_width", "host_updates_sooner"]


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
        cores: Cores,
        memory: CoreMemory,
        times: CopyTimes,
        index: IntArray,
        division: Division,
        hidden_s: FloatArray,
        ranks: slice,
    ) -> None:
        self.hidden_s = hidden_s  # (n, Q) of other exchanges behind the last backward pass
        self.workload, self.groups, self.cores, self.memory = workload, groups, cores, memory
        self.times, self.index, self.division = times, index, division
        self.ranks = ranks  # kinds of ranks that are looked at
        self.dense = rows_of(memory.dense_trainable[:, ranks], index)
        self.experts = rows_of(memory.expert_trainable[:, ranks], index)
        # Their gradients come last and share a bucket: PyTorch DDP and Megatron-LM cut no weight tensor.
        self.front = rows_of(memory.front_trainable[:, ranks], index)

    def parts(self, on_host: IntArray, slack_s: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Exchange, update on the device, update on the host: (n,) each, of plans that update where ``on_host`` says.

        ``slack_s`` (n, Q) is how long before the first rank the others end their passes (`costmodel.mesh.slack`).
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
        """What the end adds to plans on cores ``index`` that share rows of the division, for updates on the device (0) or host (1).

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
        return rows_of(self.cores.layouts.rank_first[:, self.ranks], self.index) >= 0

    def waiting_s(self) -> FloatArray:
        """Exposed gradient exchange and gathering of weights, (n, Q)."""
        stage, width = self.division.zero_stage[:, None], gradient_width(self.workload, self.groups)
        hides = self.groups.assumptions.dp_overlap
        hiding = rows_of(self.cores.rank_hiding_s[:, self.ranks], self.index)
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
        last = self.front * gradient_width(self.workload, self.groups)
        exposed = exposed_exchange(assumptions, exchange, dense + experts, hiding, last)
        if np.any(stage == 2):
            # ZeRO-2 keeps a share of the gradients only, so it reduces after every micro-batch.
            each = exposed_exchange(assumptions, reduce, dense + experts, hiding, last)
            others = (self.cores.batch.num_micro_batches[self.index] - 1)[:, None]
            exposed += np.where(stage == 2, others * each, 0.0)
        return exposed

    def _gathering(self, dense: FloatArray, experts: FloatArray, stage: IntArray) -> FloatArray:
        """Exposed gathering of updated weights behind the next forward pass (ZeRO-1 and 2): (n, Q)."""
        assumptions, width = self.groups.assumptions, self.workload.precision.weight_bytes
        gather = self.times.gather_s(dense * width, experts * width)
        forward = rows_of(self.cores.rank_forward_s[:, self.ranks], self.index)
        forward = assumptions.zero_overlap * forward
        exposed = exposed_exchange(assumptions, gather, (dense + experts) * width, forward, self.front * width)
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
        cores = self.cores
        if not np.any(cores.table.apart_trainable):
            return np.zeros(len(cores))
        held = weigh(cores.layouts.rank_units, cores.table.apart_trainable, cores.pass_of)
        message = np.max(held, axis=1) * gradient_width(self.workload, self.groups)
        ranks = self.groups.find(cores.batch.tp, np.ones_like(cores.batch.tp))
        return self.groups.time_s("all_reduce", ranks, message)

    def tied_exchange_s(self) -> FloatArray:
        """The first and the last stage add up the gradients of the embedding that they share: (c,)."""
        cores = self.cores
        if not np.any(cores.table.tied_count):
            return np.zeros(len(cores))
        message = np.max(cores.table.tied_count, axis=1)[cores.pass_of] * gradient_width(self.workload, self.groups)
        pp = cores.batch.pp
        pair = self.groups.find(np.where(pp > 1, 2, 1), cores.stride["pp"] * np.maximum(pp - 1, 1))
        return self.groups.time_s("all_reduce", pair, message)


def host_updates_sooner(
    workload: Workload, groups: GroupTimes, memory: CoreMemory, index: IntArray, division: Division
) -> BoolArray:
    """Which plans have a rank whose optimizer takes less time on the host than on the device, (n,).

    Where none has, the step with the optimizer on the host is not shorter: nothing else of it depends on where the optimizer is.
    The host may be sooner where its links and memory are quick, or where a rank updates few weights of many tensors, since the device's
    update takes the time to start its kernels at least.

    Parameters
    ----------
    workload : Workload
    groups : GroupTimes
    memory : CoreMemory
    index : array (n,)
        Core of every plan.
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
