"""Communication of a mesh plan: groups of ranks, the time of a message in them, and the messages that a module or a stage sends.

Groups
------

Ranks are numbered by an order such as tp-cp-dp-pp, the first dimension being neighbours. A group over some of the
dimensions covers a range of ranks in which its members are spread evenly: exactly so where the dimensions follow each
other in the order, on average otherwise.

Collectives are those that libraries run (`costmodel.hardware.collectives.library_s`): every formula is ``a + b B + c sqrt(B)`` for a
message of B bytes, with c > 0 where pieces are handed on from stage to stage, so a group needs three numbers per algorithm, found once
by asking the formulas.

Groups that do not divide what is used of a domain may lie across its end: the worst of them counts (`costmodel.hardware.cluster.span`), and
is never quicker than a group that no share of a domain beats (`AT_BEST`), so that times of those are bounds on every cluster.

Tokens sent to experts
----------------------

A token with k experts is sent once to every rank that holds one of them, and of other domains (nodes, racks) once to the domain, and
copied there (DeepEP, HybridEP). Experts drawn evenly reach ``N (1 - (1 - 1/N)^k)`` of N ranks or domains. The fullest gets more than the
mean one, but no token twice. A router that draws groups of experts first (DeepSeek-V3, arXiv:2412.19437, section 2.1.2: 4 of 8) reaches
as many domains as fewer draws would: that number of draws stands for its k.

Messages
--------
Ranks that share a module send each other the collectives of tensor and expert parallelism and the keys and values of context
parallelism. Neighbouring pipeline stages send each other activations point to point (`p2p_s`).

Data parallelism
----------------
Copies of the weights of a stage are kept equal. Under ZeRO (Rajbhandari et al., arXiv:1910.02054) the ``dp_shard x cp`` ranks that work
with the same weights share the optimizer state (stage 1), the gradients (2) and the weights (3); ``dp_replicate`` such groups repeat them
(HSDP). Routed experts have ``tp cp dp / (ep etp)`` copies, shared in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, StructOfArrays
from costmodel.hardware.cluster import AT_BEST, Cluster, GroupSpan, span
from costmodel.hardware.collectives import Protocol, collective_s, library_calls
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.modules import GradientFlow, ModuleTable, RowKeys
from costmodel.mesh.plan import ORDERS, MeshBatch
from costmodel.mesh.tensor_parallel import LayerRole, Move, expert_load, rows_held
from costmodel.network.layers import Layer, Shard
from costmodel.network.layers.base import positions_of
from costmodel.network.layers.mixture import MixtureParams, excess_share
from costmodel.precision import Precision
from costmodel.tolerances import EQUAL
from costmodel.workload import Workload

# Messages whose times give the three numbers: one that takes only latency, one of a size at which volume counts, and four times that.
_NO_BYTES, _PROBE_BYTES = 1e-30, 1e9
# Dimensions (a, b) -> for every order, whether a comes before b.
_BEFORE = {
    (a, b): np.array([text.index(a) < text.index(b) for text in ORDERS])
    for a in ("cp", "dp", "pp")
    for b in ("cp", "dp", "pp")
    if a != b
}
# Bits of a group's number for its size, its stride and its place, and of a place for the ranks in use. There are at most 10^6 ranks.
_BITS, _WORKERS = 21, 32
_MANY = (1 << 31) - 1
_ALONE = 3
# Latency, seconds per byte and seconds per root of a byte of groups, and the bytes up to which they hold, (g,) each.
_Law = tuple[FloatArray, ...]
# Bytes of the weights that all ranks of a stage share, and of routed experts, (n, X) each.
_Pair = tuple[FloatArray, FloatArray]


def strides(order: IntArray, tp: IntArray, cp: IntArray, dp: IntArray, pp: IntArray) -> dict[str, IntArray]:
    """Distance of neighbouring ranks of each dimension.

    Parameters
    ----------
    order : array (n,)
        Position in ORDERS.
    tp, cp, dp, pp : arrays (n,)

    Returns
    -------
    dict of arrays (n,)
        For "tp", "cp", "dp" and "pp".

    Examples
    --------
    >>> one = np.array([1])
    >>> found = strides(0 * one, 8 * one, 2 * one, 4 * one, 16 * one)  # tp-cp-dp-pp
    >>> {name: int(value[0]) for name, value in found.items()}
    {'tp': 1, 'cp': 8, 'dp': 16, 'pp': 64}
    """
    sizes = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
    result = {"tp": np.ones_like(tp)}  # always innermost
    for name in ("cp", "dp", "pp"):
        stride = tp
        for other in ("cp", "dp", "pp"):
            if other != name:
                stride = stride * np.where(_BEFORE[other, name][order], sizes[other], 1)
        result[name] = stride
    return result


def mesh_strides(batch: MeshBatch) -> dict[str, IntArray]:
    """`strides` of plans, and that of the ranks that share experts, "ep"."""
    stride = strides(batch.order, batch.tp, batch.cp, batch.dp, batch.pp)
    # Experts fill the tensor-parallel ranks first; beyond the ranks before the pipeline they are pp times as far apart.
    beyond = (batch.ep * batch.etp > stride["pp"]) & (stride["pp"] < stride["dp"])
    stride["ep"] = batch.etp * np.where(beyond, batch.pp, 1)
    return stride


@dataclass(slots=True, kw_only=True)
class _Known:
    """Groups seen so far, and three numbers per algorithm and operation for each of them."""

    keys: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # sorted
    ids: IntArray = field(
        default_factory=lambda: np.zeros(0, dtype=np.int64)
    )  # of the sorted keys, in order of arrival
    arrived: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # keys in order of arrival
    laws: dict[str, list[_Law]] = field(default_factory=dict)
    domains: FloatArray = field(default_factory=lambda: np.zeros(0))  # that the groups touch, in order of arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """Times of collectives in any group of a cluster, as a library runs them, and what is assumed about them.

    Examples
    --------
    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> level = Level(name="l", size=None, bandwidth_bytes_per_s=1e9, latency_s=0.0)
    >>> groups = GroupTimes(cluster=Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(level,)))
    >>> four = groups.find(np.array([4]), np.array([1]), np.array([0]))
    >>> round(float(groups.time_s("all_gather", four, np.array([4e9]))[0]), 9)  # 3 of 4 GB arrive over a link of 1 GB/s
    3.0
    """

    cluster: Cluster
    assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS
    in_engines: bool = False  # by kernels of serving engines, too
    _known: _Known = field(default_factory=_Known, repr=False, compare=False)

    def changed(self, cluster: Cluster, assumptions: MeshAssumptions) -> GroupTimes:
        """The same where other constants hold; where they say nothing of links and memories, what is known of groups is kept."""
        is_alike = (cluster.levels, cluster.memory_bandwidth_bytes_per_s) == (
            self.cluster.levels,
            self.cluster.memory_bandwidth_bytes_per_s,
        )
        known = self._known if is_alike else _Known()
        return GroupTimes(cluster=cluster, assumptions=assumptions, in_engines=self.in_engines, _known=known)

    def places(self, batch: MeshBatch) -> IntArray:
        """Where the groups of plans lie, (n,): what they use of every domain, and how many ranks there are; 0: as well as can be."""
        full, used = self.cluster.domain_size or 0, batch.domain_gpus
        if np.any(used == 0):
            used = np.where(used == 0, self.cluster.share(batch.workers), used)
        return np.where(batch.domain_gpus == AT_BEST, 0, (full - used << _WORKERS) + batch.workers)

    def settled(self, place: IntArray, block: IntArray) -> IntArray:
        """Places as far as they matter to groups inside blocks of so many neighbouring ranks: equal ones lay these out alike, (n,).

        It is 0 where the blocks divide a domain.
        """
        idle, room, is_even, fits = self._laid(place, block)
        return np.where(is_even & fits, 0, (idle << _WORKERS) + np.where(is_even, _MANY, room))

    def _laid(self, place: IntArray, block: IntArray) -> tuple[IntArray, IntArray, BoolArray, BoolArray]:
        """Of blocks in places: idle devices of a domain, ranks of the smallest unit that holds all, and two answers.

        They are whether blocks and units of every level divide each other, and whether a block fits into a domain.
        """
        idle, workers = place >> _WORKERS, place & _MANY
        room = np.full_like(place, _MANY)
        # Without any units all ranks are in one.
        is_even, fits = np.ones(place.shape, dtype=np.bool_), np.full(place.shape, len(self.cluster.levels) == 1)
        for number, capacity in reversed(list(enumerate(self._capacities(idle)))):
            room = np.where(workers <= capacity, capacity, room)
            is_even &= (capacity % block == 0) | (block % capacity == 0)
            if number == self.cluster.domain_level:
                fits = block <= capacity
        return idle, np.where(workers <= block, block, room), is_even, fits

    def _capacities(self, idle: IntArray) -> list[IntArray]:
        """Ranks that units of every level but the outermost hold, with so many idle devices in every domain."""
        found: list[IntArray] = []
        inside = np.ones_like(idle)
        for number, level in enumerate(self.cluster.levels[:-1]):
            inside = inside * (level.size or 1)
            if number == self.cluster.domain_level:
                inside = inside - idle
            found.append(inside)
        return found

    def find(self, size: IntArray, stride: IntArray, place: IntArray) -> IntArray:
        """Numbers of groups, to ask for times with.

        Parameters
        ----------
        size, stride : arrays (n,)
            Ranks of a group, and their distance.
        place : array (n,)
            From `places`; 0 for groups that lie as well as can be.

        Returns
        -------
        array (n,)
        """
        block = size * stride
        idle, room, is_even, fits = self._laid(place, block)
        starts = is_even | (room == block)
        level = np.zeros_like(place)
        for capacity in self._capacities(idle):
            level += room > capacity
        where = np.where((place == 0) | (starts & fits), 0, 1 + (idle << _ALONE) + np.where(starts, 0, 1 + level))
        key = np.where(size > 1, (size << 2 * _BITS) + (stride << _BITS) + where, 1 << 2 * _BITS)
        known = self._known
        if len(known.keys):
            at = np.minimum(known.keys.searchsorted(key), len(known.keys) - 1)
            if (known.keys[at] == key).all():
                return known.ids[at]
        new = np.setdiff1d(key, known.keys)
        known.arrived = np.concatenate([known.arrived, new])
        known.domains = np.concatenate([known.domains, self._domains(new)])
        order = np.argsort(known.arrived, kind="stable")
        known.keys, known.ids = known.arrived[order], order
        return known.ids[np.searchsorted(known.keys, key)]

    def span_of(self, size: int, stride: int, place: IntArray) -> GroupSpan:
        """How one group lies in one place."""
        group = self.find(np.array([size]), np.array([stride]), place)
        where = self._spans(self._known.arrived[group])[0]
        return GroupSpan(**{item.name: getattr(where, item.name)[..., 0] for item in fields(GroupSpan)})

    def domains(self, group: IntArray) -> FloatArray:
        """Domains of fast links (nodes, racks) that groups touch, by their numbers; 1 where a cluster has none."""
        return np.asarray(self._known.domains[group])

    def _domains(self, keys: IntArray) -> FloatArray:
        number = self.cluster.domain_level
        if number is None:
            return np.ones(len(keys))
        return np.asarray(self._spans(keys)[0].units_inside[number + 1])

    def _spans(self, keys: IntArray) -> tuple[GroupSpan, GroupSpan]:
        """How groups lie, and how they would as well as can be."""
        size, stride, where = keys >> 2 * _BITS, (keys >> _BITS) % (1 << _BITS), keys % (1 << _BITS)
        size, stride = size.astype(np.float64), np.maximum(stride, 1).astype(np.float64)
        code = np.maximum(where - 1, 0)
        idle, level = code >> _ALONE, code % (1 << _ALONE)
        rooms = [
            size * stride,
            *(np.asarray(c, dtype=np.float64) for c in self._capacities(idle)),
            np.full(len(keys), np.inf),
        ]
        workers = np.choose(level, rooms)
        used = np.where(where == 0, AT_BEST, (self.cluster.domain_size or 0) - idle)
        return tuple(span(self.cluster, size, stride, workers, domain) for domain in (used, AT_BEST))  # type: ignore[return-value]

    def time_s(self, operation: str, group: IntArray, message_bytes: FloatArray) -> FloatArray:
        """Time of messages, by the algorithm of `library_s` that is the quickest for each.

        Parameters
        ----------
        operation : str
            One of `costmodel.hardware.collectives.OPERATIONS`.
        group : array (n,)
            From `find`.
        message_bytes : array (n,) or (n, m)
            As `costmodel.hardware.collectives` counts it for the operation.

        Returns
        -------
        array
            Seconds, of the shape of the messages; 0 in groups of one and for empty messages.
        """
        message = np.asarray(message_bytes, dtype=np.float64)
        if not len(group) or not message.any():
            return np.zeros_like(message)
        best, root = None, None
        for law in self._laws(operation):
            a, b = (column[group] for column in law[:2])
            time = a[:, None] + b[:, None] * message if message.ndim == 2 else a + b * message
            if law[2].any():
                root = np.sqrt(message) if root is None else root
                c = law[2][group]
                time += c[:, None] * root if message.ndim == 2 else c * root
            if np.isfinite(law[3]).any():
                most = law[3][group]
                time[message > (most[:, None] if message.ndim == 2 else most)] = np.inf
            best = time if best is None else np.minimum(best, time, out=best)
        assert best is not None
        best[message <= 0.0] = 0.0
        return best

    def _laws(self, operation: str) -> list[_Law]:
        """Per algorithm: the three numbers of every known group, in order of arrival."""
        known = self._known
        done = known.laws.get(operation)
        have = 0 if done is None else len(done[0][0])
        if have < len(known.arrived):
            added = self._table(operation, known.arrived[have:])
            if done is not None:
                added = [
                    tuple(np.concatenate(pair) for pair in zip(old, new, strict=True))
                    for old, new in zip(done, added, strict=True)
                ]
            done = known.laws[operation] = added
        assert done is not None
        return done

    def _table(self, operation: str, keys: IntArray) -> list[_Law]:
        here, at_best = self._spans(keys)
        found = []
        libraries = (self.cluster.library, *(["engine"] if self.in_engines else []))
        for name, protocol in library_calls(operation, *libraries):
            real, least = (self._law(operation, name, protocol, where) for where in (here, at_best))
            most = here.size * protocol.most_bytes
            found.append((*(np.maximum(a, b) for a, b in zip(real, least, strict=True)), most))
        return found

    def _law(self, operation: str, name: str, protocol: Protocol, where: GroupSpan) -> _Law:
        """The three numbers of an algorithm."""
        latency_s, once, four_times = (
            collective_s(operation, name, np.full(where.size.shape, message), where, self.cluster, protocol=protocol)
            for message in (_NO_BYTES, _PROBE_BYTES, 4.0 * _PROBE_BYTES)
        )
        # A protocol that cannot use the links of a group takes for ever whatever the message.
        once, four_times = (np.where(np.isfinite(latency_s), time, 0.0) for time in (once, four_times))
        idle_s = np.where(np.isfinite(latency_s), latency_s, 0.0)
        # a + b B + c sqrt(B) at B and 4 B, less a: b B + c sqrt(B) and 4 b B + 2 c sqrt(B).
        slope = np.maximum((four_times - idle_s) - 2.0 * (once - idle_s), 0.0) / (2.0 * _PROBE_BYTES)
        rest = once - idle_s - slope * _PROBE_BYTES
        root = np.where(rest > EQUAL * once, rest, 0.0) / np.sqrt(_PROBE_BYTES)
        return latency_s, slope, root


def reached(places: FloatArray, draws: FloatArray) -> FloatArray:
    """Places that so many draws among them reach on average.

    >>> reached(np.array([1.0, 2.0, 8.0]), np.array([8.0, 1.0, 2.0])).tolist()
    [1.0, 1.0, 1.875]
    """
    return np.asarray(places * (1.0 - (1.0 - 1.0 / places) ** draws))


def free_draws(params: MixtureParams) -> float:
    """Experts that a router without groups would draw to reach as many groups.

    >>> free_draws(MixtureParams(experts=8, top_k=2, ffn=1))
    2.0
    >>> round(free_draws(MixtureParams(experts=256, top_k=8, ffn=1, groups=8, top_groups=4)), 2)
    4.48
    """
    groups, kept, draws = params.groups, params.top_groups or params.groups, float(params.top_k)
    if kept >= groups:
        return draws
    found = float(reached(np.array(float(kept)), np.array(draws)))
    return math.log(1.0 - found / groups) / math.log(1.0 - 1.0 / groups)


def sent_bytes(table: ModuleTable, groups: GroupTimes, ranks: IntArray, ep: IntArray) -> FloatArray:
    """What the fullest rank trades with the ranks that share the experts, (n, K).

    Parameters
    ----------
    table : ModuleTable
        One row per plan.
    groups : GroupTimes
    ranks : array (n,)
        Numbers of the groups that share experts.
    ep : array (n,)
        Ranks of these groups.
    """
    every, domains = table.dispatch_bytes + table.uneven_bytes, groups.domains(ranks)[:, None]
    if groups.assumptions.node_copies or groups.assumptions.is_padded or not np.any(every):
        return every
    units = np.where(domains > 1.0, domains, ep[:, None])
    some = every > 0.0
    draws = np.where(domains > 1.0, table.drawn_bytes, table.dispatch_bytes) / np.where(some, table.token_bytes, 1.0)
    beyond = table.uneven_bytes / np.where(some, table.dispatch_bytes, 1.0) * domain_share(units[:, 0], ep)[:, None]
    return np.minimum(np.minimum(reached(units, draws) * (1.0 + beyond), units) * table.token_bytes, every)


def domain_share(domains: FloatArray, ep: IntArray) -> FloatArray:
    """What the fullest of some domains gets beyond the mean one, over what the fullest of ``ep`` ranks does.

    Both are sums of equally uneven loads (`costmodel.network.layers.mixture.fullest_rank`).

    >>> domain_share(np.array([1.0, 8.0, 64.0]), np.array([64, 64, 64])).round(3).tolist()
    [0.0, 0.217, 1.0]
    """
    return np.asarray(np.sqrt(domains / ep) * excess_share(domains, ep))


# Numbers per position that the loss over a split vocabulary adds up, in a collective each: the maximum, the sum, and the label's logit
# (Megatron-LM, megatron/mpu/cross_entropy.py, _VocabParallelCrossEntropy).
_LOSS_COLLECTIVES = 3


def add_tensor_parallel(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    layer: Layer,
    role: LayerRole,
    shard: Shard,
    keys: RowKeys,
    flow: GradientFlow,
    weight_gradient_s: FloatArray,
) -> None:
    """Megatron's operators around the split matrices, f and g, or g and its conjugate under sequence parallelism.

    What the backward pass adds up behind a matrix split by columns may travel while the gradient of its weights is computed
    (``column_overlap``). Under sequence parallelism its input is gathered again for that gradient, while that of the input is computed.
    All else is waited for.
    """
    width, ranks = (
        workload.precision.activation_bytes,
        groups.find(role.ranks(keys.tp), np.ones_like(keys.tp), keys.place),
    )
    if role.moves is not None:
        add_moves(total, workload, groups, layer, role.moves, keys, flow, weight_gradient_s)
    split = keys.sequence_parallel > 0

    def exchange(operation: str, message: FloatArray) -> FloatArray:
        return groups.time_s(operation, ranks, message)

    several = (keys.tp > 1).astype(np.float64)

    def start(phase: str, count: FloatArray) -> None:
        total[f"tp_{phase}_starts"] += count
        total[f"tp_{phase}_s"] += groups.assumptions.collective_wait_s * count

    if role.gathers and role.moves is None:
        start("forward", several * split)
        start("backward", several * flow.to_inputs)
        elements = shard.batch * np.ceil(np.prod(layer.input_shapes[0][1:]) / keys.cp) * layer.input_shapes[0][0]
        message = elements * width
        gathered = elements * _gathered_width(workload.precision, layer, is_gradient=False)
        total["tp_forward_s"] += np.where(split, exchange("all_gather", gathered), 0.0)
        if flow.to_inputs:
            sent = np.where(split, exchange("reduce_scatter", message), exchange("all_reduce", message))
            again = np.where(split, exchange("all_gather", gathered), 0.0)
            total["tp_backward_s"] += _beside_gradients_s(groups, sent, again, weight_gradient_s)
    if role.reduces and role.moves is None:
        start("forward", several)
        start("backward", several * (split & flow.through))
        message = rows_held(layer, shard) * layer.output_shape[0] * width
        total["tp_forward_s"] += np.where(split, exchange("reduce_scatter", message), exchange("all_reduce", message))
        if flow.is_checkpointed:  # sums that are scattered are kept; those that every rank has are made again
            total["selective_s"] += np.where(split, 0.0, exchange("all_reduce", message))
        if flow.through:
            back = message / width * _gathered_width(workload.precision, layer, is_gradient=True)
            total["tp_backward_s"] += np.where(split, exchange("all_gather", back), 0.0)
    if role.role == "channel":
        for inner in layer.family.work(layer, shard).exchanges:
            if inner.over == "out_channels" and (inner.phase == "forward" or flow.through):
                repeats = _LOSS_COLLECTIVES if layer.kind == "softmax" else inner.repeats
                time = repeats * exchange(inner.operation, np.broadcast_to(inner.elements * width, keys.tp.shape))
                phase = "forward" if inner.phase == "forward" else "backward"
                start(phase, several * repeats)
                total[f"tp_{phase}_s"] += time


def _gathered_width(precision: Precision, layer: Layer, *, is_gradient: bool) -> float:
    """Bytes of an element of a layer's input, or of its output's gradient, that tensor-parallel ranks gather."""
    return precision.gathers_bytes(is_gradient=is_gradient) if precision.narrows(layer) else precision.activation_bytes


def add_moves(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    layer: Layer,
    moves: Sequence[Move],
    keys: RowKeys,
    flow: GradientFlow,
    weight_gradient_s: FloatArray,
) -> None:
    """Add collectives at a layer whose split the plan names; those that may (`Move.is_async`) hide behind ``weight_gradient_s``."""
    precision = workload.precision
    reduced_s, again_s = np.zeros(len(keys)), np.zeros(len(keys))
    for move in moves:
        is_output = move.input_index < 0
        if move.is_backward and not (flow.through if is_output else flow.to_inputs):
            continue
        shape = layer.output_shape if is_output else layer.input_shapes[move.input_index]
        gathers = move.transfer.operation == "all_gather" and is_output == move.is_backward
        width = _gathered_width(precision, layer, is_gradient=is_output) if gathers else precision.activation_bytes
        message = (
            _repeated_heads(layer, move)
            * keys.micro_batch
            * np.ceil(np.prod(shape[1:]) / keys.cp)
            * shape[0]
            * width
            / move.transfer.parts
        )
        ranks, stride = np.full_like(keys.tp, move.transfer.ranks), np.full_like(keys.tp, move.transfer.stride)
        group = groups.find(ranks, stride, keys.place)
        phase = "backward" if move.is_backward else "forward"
        sent_s = groups.time_s(move.transfer.operation, group, message)
        if move.is_gathered and not move.is_backward and flow.to_inputs:
            again_s = again_s + sent_s
        if move.is_async:
            reduced_s, sent_s = reduced_s + sent_s, np.zeros_like(sent_s)
        total[f"tp_{phase}_s"] += sent_s + groups.assumptions.collective_wait_s
        total[f"tp_{phase}_starts"] += 1.0
    total["tp_backward_s"] += _beside_gradients_s(groups, reduced_s, again_s, weight_gradient_s)


def _beside_gradients_s(
    groups: GroupTimes, sent_s: FloatArray, again_s: FloatArray, weight_gradient_s: FloatArray
) -> FloatArray:
    """What remains of two collectives behind the gradients of a matrix.

    Its input is gathered again for the gradient of the weights while that of the input is computed, which takes as long. Then the gradient
    of the input travels while that of the weights is computed (Megatron-LM, megatron/core/tensor_parallel/layers.py,
    LinearWithGradAccumulationAndAsyncCommunication.backward). Frameworks that hide nothing keep what they gathered; frozen weights have no
    gradient.
    """
    hidden = groups.assumptions.column_overlap
    shown = np.maximum(sent_s - hidden * weight_gradient_s, 0.0)
    if hidden == 0.0:
        return shown
    return shown + np.where(weight_gradient_s > 0.0, np.maximum(again_s - hidden * weight_gradient_s, 0.0), 0.0)


def _repeated_heads(layer: Layer, move: Move) -> float:
    """How much larger the input of split attention is with key and value heads repeated, where there are fewer of them than shares."""
    if layer.kind not in ("self_attention", "cross_attention") or move.pieces == 1:
        return 1.0
    kv: int = layer.params.kv_heads or layer.params.heads
    if layer.kind == "self_attention":
        return float(
            layer.params.width(layer.params.heads, max(kv, move.pieces)) / layer.params.width(layer.params.heads, kv)
        )
    return max(kv, move.pieces) / kv if move.input_index == 1 else 1.0


def add_attention_messages(total: dict[str, FloatArray], workload: Workload, layer: Layer, shard: Shard) -> None:
    """What context parallelism moves: keys and values around a ring, or heads against positions."""
    width = workload.precision.activation_bytes
    params = layer.params
    heads = np.ceil(params.heads / shard.split_out)
    if layer.kind == "latent_attention" and params.selected:
        # The compressed vector and the indexer's key, which all heads share.
        whole = float(layer.input_shapes[2][0])
        kv_elements = np.full_like(heads, whole + params.index_dim)
        all_elements = kv_elements + heads * (2.0 * whole - params.rope_dim)
    elif layer.kind == "latent_attention":
        key_dim, value_dim = params.nope_dim + params.rope_dim, params.value_dim
        kv_elements = heads * (key_dim + value_dim)
        all_elements = kv_elements + heads * (key_dim + value_dim)
    else:
        kv_heads = np.maximum(np.ceil((params.kv_heads or params.heads) / shard.split_out), 1.0)
        kv_elements = 2.0 * kv_heads * params.head_dim
        all_elements = kv_elements + 2.0 * heads * params.head_dim
    rows = rows_held(layer, shard)
    keys_rows = rows
    if layer.kind == "cross_attention":  # keys and values are of another sequence
        keys_rows = shard.batch * positions_of(layer.input_shapes[1], shard)
    total["kv_bytes"] += keys_rows * kv_elements * width
    total["heads_bytes"] += (keys_rows * kv_elements + rows * (all_elements - kv_elements)) * width


def add_dispatch(
    total: dict[str, FloatArray],
    workload: Workload,
    groups: GroupTimes,
    layer: Layer,
    keys: RowKeys,
    flow: GradientFlow,
) -> None:
    """Tokens travel to their experts and back; with etp > 1 the ranks of an expert gather them and reduce the results."""
    features = layer.output_shape[0] * workload.precision.activation_bytes
    tokens = keys.micro_batch * np.ceil(np.prod(layer.output_shape[1:]) / (keys.cp * keys.tp))
    load = layer.params.capacity_factor * expert_load(layer.params, keys.ep, groups.assumptions)
    sent = tokens * layer.params.top_k * features
    total["dispatch_bytes"] += sent
    total["uneven_bytes"] += sent * (load - 1.0)
    total["token_bytes"] += tokens * features
    total["drawn_bytes"] += tokens * features * free_draws(layer.params)
    total["returned_bytes"] += sent * flow.through
    gathered = sent * load * keys.etp
    ranks = groups.find(keys.etp, np.ones_like(keys.etp), keys.place)
    gather = groups.time_s("all_gather", ranks, gathered)
    total["etp_forward_s"] += gather + groups.time_s("reduce_scatter", ranks, gathered)


def p2p_s(
    groups: GroupTimes, batch: MeshBatch, cut: FloatArray, activation_bytes: float, strides: Sequence[IntArray]
) -> FloatArray:
    """Time in which a chunk gets its input.

    Tensor-parallel ranks have a share each (sequence parallelism), or the whole: then they send a share each and gather the shares inside
    their group where the framework does so (`MeshAssumptions.scattered_handover`), else the whole each.

    Parameters
    ----------
    groups : GroupTimes
    batch : MeshBatch
    cut : array (n, R)
        Numbers per sample that enter the chunks.
    activation_bytes : float
    strides : sequence of arrays (n,)
        Distances from a stage to the one before it; the shortest time counts. Of all stages the slowest transfer counts, for which the
        others wait.

    Returns
    -------
    array (n, R)
        Seconds.
    """
    assumptions = groups.assumptions
    holds_whole = batch.sequence_parallel == 0
    scatters = holds_whole & (assumptions.scattered_handover > 0.0)
    whole = cut * (batch.micro_batch / batch.cp * activation_bytes)[:, None]
    share = whole / np.where(holds_whole & ~scatters, 1, batch.tp)[:, None]
    place = groups.places(batch)
    stages = [groups.find(batch.pp, stride, place) for stride in strides]
    time = np.minimum.reduce([groups.time_s("point_to_point", group, share) for group in stages])
    if np.any(scatters):
        ranks = groups.find(np.where(scatters & (batch.pp > 1), batch.tp, 1), np.ones_like(batch.tp), place)
        time = time + groups.time_s("all_gather", ranks, whole)
    return np.asarray(time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Division(StructOfArrays):
    """How plans divide dp, what they keep on the host, and their groups of ranks with the same weights; arrays (n,).

    Degrees of 1 are no groups. A group over two dimensions covers the range of the outer one; its members are taken as spread evenly over
    it.
    """

    zero_stage: IntArray
    offload_optimizer: IntArray
    offload_activations: IntArray
    shard: IntArray  # ranks that share one copy (1 without ZeRO)
    shard_stride: IntArray
    replicate: IntArray  # copies
    replicate_stride: IntArray
    expert_shard: IntArray
    expert_replicate: IntArray
    expert_stride: IntArray

    @classmethod
    def of(cls, batch: MeshBatch, stride: Mapping[str, IntArray] | None = None) -> Division:
        """The division of whole plans; ``stride`` is that of `mesh_strides` unless given."""
        stride = mesh_strides(batch) if stride is None else stride
        zero, cp, dp = batch.zero_stage > 0, batch.cp, batch.dp
        context_extent = np.where(cp > 1, stride["cp"] * cp, 1)
        shard = np.where(zero, batch.dp_shard * cp, 1)
        shard_extent = np.maximum(np.where(batch.dp_shard > 1, stride["dp"] * batch.dp_shard, 1), context_extent)
        all_extent = np.maximum(np.where(dp > 1, stride["dp"] * dp, 1), context_extent)
        copies = np.maximum(batch.tp * cp * dp // (batch.ep * batch.etp), 1)
        expert_shard = np.where(zero, np.maximum(copies // batch.dp_replicate, 1), 1)
        return cls(
            zero_stage=batch.zero_stage,
            offload_optimizer=batch.offload_optimizer,
            offload_activations=batch.offload_activations,
            shard=shard,
            shard_stride=np.maximum(shard_extent // np.maximum(shard, 1), 1),
            replicate=np.where(zero, batch.dp_replicate, dp * cp),
            replicate_stride=np.where(
                zero, stride["dp"] * batch.dp_shard, np.maximum(all_extent // np.maximum(dp * cp, 1), 1)
            ),
            expert_shard=expert_shard,
            expert_replicate=copies // expert_shard,
            expert_stride=np.maximum(np.maximum(all_extent, batch.tp) // copies, 1),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTimes:
    """Collectives in the groups of a `Division`; messages (n, X) are the whole weights or gradients of a rank."""

    groups: GroupTimes
    division: Division
    place: IntArray  # of the plans, (n,)
    shard: IntArray  # numbers of the groups, (n,)
    replicate: IntArray
    expert_shard: IntArray
    expert_replicate: IntArray

    @classmethod
    def of(cls, groups: GroupTimes, division: Division, place: IntArray, *, has_experts: bool) -> CopyTimes:
        """Look the groups up; ``place`` is that of `GroupTimes.places`."""
        nothing = np.zeros(0, dtype=np.int64)
        # The copies of an expert's shard are a whole set of shards apart.
        apart = division.expert_stride * division.expert_shard
        return cls(
            groups=groups,
            division=division,
            place=place,
            shard=groups.find(division.shard, division.shard_stride, place),
            replicate=groups.find(division.replicate, division.replicate_stride, place),
            expert_shard=groups.find(division.expert_shard, division.expert_stride, place) if has_experts else nothing,
            expert_replicate=groups.find(division.expert_replicate, apart, place) if has_experts else nothing,
        )

    def take(self, index: IntArray) -> CopyTimes:
        """A selection of the plans."""
        has_experts = len(self.expert_shard) > 0
        return CopyTimes.of(self.groups, self.division.take(index), self.place[index], has_experts=has_experts)

    def gather_s(self, dense_bytes: FloatArray, expert_bytes: FloatArray, gradients: _Pair | None = None) -> FloatArray:
        """Time to gather weights from their shards, bucket by bucket where the bytes of their gradients are given."""
        return self._both("all_gather", (self.shard, self.expert_shard), (dense_bytes, expert_bytes), gradients)

    def reduce_s(self, dense_bytes: FloatArray, expert_bytes: FloatArray, *, in_buckets: bool = True) -> FloatArray:
        """Time to reduce gradients into their shards; not in buckets where ZeRO-3 reduces module by module."""
        gradients = dense_bytes, expert_bytes
        shards = self.shard, self.expert_shard
        return self._both("reduce_scatter", shards, gradients, gradients if in_buckets else None)

    def whole_s(self, dense_bytes: FloatArray, expert_bytes: FloatArray) -> FloatArray:
        """Time to add up whole gradients over the ranks that share the optimizer, all at once."""
        return self._both("all_reduce", (self.shard, self.expert_shard), (dense_bytes, expert_bytes), None)

    def replicate_s(self, dense_bytes: FloatArray, expert_bytes: FloatArray) -> FloatArray:
        """Time to add up the gradients of the copies, each rank its shard, in buckets."""
        dense = dense_bytes / self.division.shard[:, None]
        experts = expert_bytes / self.division.expert_shard[:, None]
        copies = self.replicate, self.expert_replicate
        return self._both("all_reduce", copies, (dense, experts), (dense_bytes, expert_bytes))

    @property
    def bucket_bytes(self) -> FloatArray:
        """Gradients that are exchanged together, (n, 1); 0 where all are."""
        assumptions, division = self.groups.assumptions, self.division
        if not assumptions.bucket_bytes:
            return np.zeros((len(division.shard), 1))
        least = assumptions.bucket_bytes_per_rank * division.shard * division.replicate
        return np.asarray(np.maximum(assumptions.bucket_bytes, least)[:, None])

    def _both(
        self, operation: str, groups: tuple[IntArray, IntArray], messages: _Pair, gradients: _Pair | None
    ) -> FloatArray:
        """Both kinds of weights; in as many buckets as ``gradients`` fill, each of which pays the latency of its collective."""
        total: FloatArray | None = None
        bucket = self.bucket_bytes
        for kind, (group, message) in enumerate(zip(groups, messages, strict=True)):
            if not len(group):
                continue
            if gradients is None:
                time = self.groups.time_s(operation, group, message)
            else:
                pieces = np.maximum(gradients[kind] / np.where(bucket > 0, bucket, np.inf), 1.0)
                time = pieces * self.groups.time_s(operation, group, message / pieces)
            total = time if total is None else total + time
        assert total is not None
        return total


def exposed_exchange(
    assumptions: MeshAssumptions,
    exchange_s: FloatArray,
    exchanged_bytes: FloatArray,
    compute_s: FloatArray,
    last_bytes: FloatArray | float,
) -> FloatArray:
    """What compute does not hide of an exchange: at least the last bucket, which only then is complete, or what compute alongside it loses.

    ``last_bytes`` come together at the end: a bucket, or gradients of an embedding if these are more.

    >>> from costmodel.mesh.assumptions import MeshAssumptions
    >>> a = MeshAssumptions(dp_overlap=0.5, interference=0.05)
    >>> exposed_exchange(a, np.array([1.0]), np.array([1e7]), np.array([1.0]), 1e6).tolist()  # half hidden
    [0.5]
    >>> exposed_exchange(a, np.array([1.0]), np.array([1e7]), np.array([9.0]), 1e6).tolist()  # all but the last of ten buckets
    [0.1]
    """
    last = exchange_s * np.clip(last_bytes / np.maximum(exchanged_bytes, 1.0), assumptions.interference, 1.0)
    return np.asarray(np.maximum(exchange_s - assumptions.dp_overlap * compute_s, last))
