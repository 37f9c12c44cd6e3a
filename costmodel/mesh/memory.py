"""Memory of one rank by what fills it.

Weights, gradients and state follow Rajbhandari et al. (arXiv:1910.02054); activations Korthikanti et al.
(arXiv:2205.05198) per layer, times the micro-batches in flight of the schedule. Shapes: c pipelines, n plans, Q kinds of
ranks.

What a module keeps for its backward pass is found layer by layer, for each kind of recomputation: none, selective, full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, rows_of
from costmodel.framework import Selective
from costmodel.hardware.host import Host
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.communication import Division
from costmodel.mesh.modules import (
    ADAPTER_IN,
    ADAPTER_OUT,
    DOWN,
    MATRIX,
    UP,
    ModuleKind,
    ModuleTable,
    Repeats,
    RowKeys,
    repeats_of,
)
from costmodel.mesh.plan import FULL, MEMORY_PARTS, SELECTIVE, MeshBatch
from costmodel.mesh.schedule import in_flight
from costmodel.mesh.stages import LayoutArrays, recomputed_modules, weigh
from costmodel.mesh.tensor_parallel import LayerRole, chunks_of, in_mlp, rows_held, shard_of
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION, Layer, Shard
from costmodel.network.layers.base import positions_of
from costmodel.network.layers.mixture import excess_share, received
from costmodel.schedules import KEEPS_ALL
from costmodel.tolerances import EQUAL
from costmodel.workload import Workload

# Blocks whose gathered weights are held at once under ZeRO-3: the one that runs, and the next (PyTorch FSDP prefetches it in both passes).
_GATHERED_BLOCKS = 2.0


# Of a norm that is written out, in bytes per element beyond its input in 16 bits: that in fp32 (4), and the normalised one (2).
_NORM_KEPT = 4.0 + 2.0 - 2.0


def add_saved(
    total: dict[str, FloatArray],
    workload: Workload,
    assumptions: MeshAssumptions,
    kind: ModuleKind,
    keys: RowKeys,
    roles: Sequence[LayerRole],
    shards: Mapping[int, Shard],
) -> None:
    """Tensors of layers of a module that the backward pass reads, each kept once, at the layout in which it leaves its producer.

    The layers are those that ``shards`` has, by position. A tensor is kept if a layer that reads it keeps its input, once more where it
    had to be brought into another layout than it left its producer in (gathered ones are gathered again). Selective recomputation drops
    what cheap layers make, and keeps what they read. Layers without a backward pass keep nothing.
    """
    facts = saved_facts(workload, kind)
    for position, shard in shards.items():
        add_saved_layer(total, workload, assumptions, kind, keys, position, roles[position], facts[position], shard)


def add_saved_inputs(total: dict[str, FloatArray], workload: Workload, kind: ModuleKind, keys: RowKeys) -> None:
    """The same of what enters the module."""
    graph, width = workload.graph, workload.precision.activation_bytes
    whole = keys.cp * np.where(keys.sequence_parallel > 0, keys.tp, 1)
    facts = saved_facts(workload, kind)
    has_backward = any(layer.has_backward for layer in facts)
    for source, reading in _read_from_outside(graph, kind).items():
        elements = _elements(graph.layers[source], keys, whole.astype(np.float64), np.ones(len(keys)))
        total["entering_bytes"] += elements * width
        if has_backward:
            total["input_bytes"] += elements * width
        if any(facts[r].keeps_input for r in reading):
            total["saved_bytes"] += elements * width
        if any(facts[r].reads_again for r in reading):
            total["saved_selective_bytes"] += elements * width


# Independent sums of loads in a run, the largest of which is the peak: some ranks, in thousands of steps.
_SUMS = np.array(1e5)


def kept_load(load: FloatArray, ep: FloatArray, mixtures: int) -> FloatArray:
    """Tokens that the fullest rank keeps of so many mixtures at the peak of a run, over the mean, where it computes ``load`` of one.

    Loads of different mixtures and micro-batches are independent, so the excess of their sum grows with the root of their number: with p
    stages the first one has a p-th of the mixtures, and keeps p micro-batches of each. The peak is the largest of `_SUMS` such sums.

    Examples
    --------
    >>> from costmodel.arrays import largest_of
    >>> load = 1 + 0.25 * largest_of(np.array([8.0]))  # of 8 ranks with 16 experts each
    >>> (kept_load(load, np.array([8.0]), 94) - 1).round(3).tolist()  # 0.25 x 4.37 / sqrt(94)
    [0.113]
    """
    return np.asarray(1.0 + (load - 1.0) * np.minimum(excess_share(_SUMS, ep) / np.sqrt(mixtures), 1.0))


def add_saved_layer(
    total: dict[str, FloatArray],
    workload: Workload,
    assumptions: MeshAssumptions,
    kind: ModuleKind,
    keys: RowKeys,
    position: int,
    role: LayerRole,
    facts: SavedFacts,
    shard: Shard | None = None,
) -> None:
    """What one layer of a module adds to `add_saved`.

    Parameters
    ----------
    total, workload, assumptions, kind, keys
        As there.
    position : int
        Of the layer in the module.
    role : LayerRole
    facts : SavedFacts
    shard : Shard, optional
        Of a rank, if it is at hand.
    """
    graph, width = workload.graph, workload.precision.activation_bytes
    layer = graph.layers[kind.layers[position]]
    if layer.kind == "input":
        return
    whole = keys.cp * np.where(keys.sequence_parallel > 0, keys.tp, 1)
    if shard is None:
        shard = shard_of(graph.layers, kind, position, role, keys, assumptions)
    if layer.kind == "moe" and not assumptions.is_padded:
        mixtures = sum(1 for other in graph.layers if other.kind == "moe")
        shard = replace(shard, load=kept_load(shard.load, shard.experts, mixtures))
    if facts.keeps_input:
        entered = _kept_as_read(layer, role, keys, width, assumptions)
        total["saved_bytes"] += entered
        # Operators that are kept do not include what is gathered.
        total["remade_bytes" if facts.keeps_operators else "saved_selective_bytes"] += entered
    cast = workload.precision.kept.bytes
    narrower = layer.family.cast_elements(layer, shard) * (width - cast)
    extra = (layer.family.saved_elements(layer, shard) * width - narrower) * facts.has_backward
    pieces = keys.cp if role.role in ("column", "channel", "repeated") else whole
    elements = _elements(layer, keys, pieces.astype(np.float64), shard.split_out if role.role != "experts" else 1.0)
    if role.role == "column":  # repeated key and value heads included
        elements = elements / np.ceil(layer.output_shape[0] / shard.split_out) * shard.out_channels
    size = elements * width
    chunks = chunks_of(graph, kind, position, assumptions, shard)
    at_once = 1.0 if chunks is None else 1.0 / chunks
    is_loss = layer.kind == "softmax" or facts.feeds_loss
    is_inside = chunks is not None and any(in_mlp(graph, kind)[r] for r in kind.readers(position))
    uncut = np.where(is_inside & (np.asarray(at_once) < 1.0), 0.0, 1.0)  # 0: of one chunk at a time
    if facts.has_backward or not workload.training:
        share = uncut if workload.training else np.where(uncut > 0.0, 1.0, at_once)
        total["widest_bytes"] = np.maximum(total["widest_bytes"], share * size)
    if is_loss:
        # Two numbers of 16 bits are kept per logit; logits that leave the head in fp32 are the first copy.
        wide = max(assumptions.logits_copies - (width == 4.0), 0.0) * extra * 2.0 / width
        total["logits_bytes"] += at_once * (wide if layer.kind == "softmax" else size)
        total["logits_bytes"] += _made_with_the_loss(layer, shard, facts, at_once) * width
        return
    if layer.kind == "glu":  # the activation of one half
        extra = extra + assumptions.autograd_copies * size * facts.has_backward
    elif layer.kind == "rms_norm":  # its input in fp32, and what is multiplied by its weights
        extra = extra + assumptions.norm_copies * _NORM_KEPT * elements * facts.has_backward
    kept, again = (size * use.share(cast / width) for use in (facts.kept, facts.needed_again))
    # Of one chunk: its tensors, and their gradients.
    total["chunk_bytes"] += (1.0 - uncut) * at_once * (extra + kept + size) * facts.has_backward
    total["saved_bytes"] += uncut * (extra + kept)
    if facts.keeps_operators:
        chosen, spared = _kept_operators(layer, role, keys, shard, facts, (size, extra, kept), (width, cast))
    else:
        inside = layer.family.repeated_elements(layer, shard) * cast * facts.has_backward
        stays = uncut * (facts.repeats.again == 0.0)
        chosen, spared = stays * (extra - inside + again), stays * (extra - inside + kept)
    total["saved_selective_bytes"] += chosen
    total["remade_bytes"] += uncut * (extra + kept) - spared


def _kept_operators(
    layer: Layer,
    role: LayerRole,
    keys: RowKeys,
    shard: Shard,
    facts: SavedFacts,
    sizes: tuple[FloatArray, FloatArray, FloatArray],
    widths: tuple[float, float],
) -> tuple[FloatArray, FloatArray]:
    """What recomputation operator by operator keeps of a layer, and the part of it that the backward pass needs.

    Kept are the products that do not run again, and what ranks exchanged. A sum that is scattered over the positions is kept beside the
    product that it is of, which has all positions of a sequence; a sum that all ranks have is made again. So are the sums of a matrix and
    its adapter, whose products nobody needs. Kept of a mixture are the tokens that it sends to other ranks and those that it gets
    back, and of its shared experts the hidden features and the outputs.

    Parameters
    ----------
    sizes : tuple of arrays
        Bytes of the output, and what the backward pass needs inside and of the output.
    widths : tuple of float
        Bytes of an activation, and of one that products keep.
    """
    (size, extra, needed), (width, cast), repeats = sizes, widths, facts.repeats
    shares = dict(repeats.kept)
    if layer.kind == "moe":
        params, tokens = layer.params, shard.batch * positions_of(layer.output_shape, shard)
        copies = np.where(shard.experts > 1, received(params, tokens, shard) * layer.output_shape[0], 0.0)
        inner = shares.get(UP, 0.0) * (params.matrices - 1.0) * np.ceil(params.shared_width / shard.split_out)
        hidden, outputs = inner * tokens * width, shares.get(DOWN, 0.0) * layer.output_shape[0] * tokens * width
        return 2.0 * copies * width + hidden + outputs, facts.has_backward * (copies * cast + hidden)
    is_summed = role.reduces & (keys.tp > 1)
    is_scattered = is_summed & (keys.sequence_parallel > 0)
    product = np.where(is_scattered, size * keys.tp, size)
    if shares:  # a matrix with an adapter
        products, inside, direct = shares[MATRIX] + shares[ADAPTER_OUT], shares[ADAPTER_IN] * extra, 0.0
    else:
        products, inside, direct = 1.0 - repeats.again, (1.0 - repeats.again) * extra, 1.0 - repeats.again
    spared = np.where(is_summed, 1.0 * is_scattered, direct) * needed
    return np.asarray(products * product + inside + is_scattered * size), np.asarray(inside + spared)


def _made_with_the_loss(layer: Layer, shard: Shard, facts: SavedFacts, at_once: FloatArray | float) -> FloatArray:
    """Elements of the gradient of what enters the head, which is found with the loss of each chunk where there are several."""
    is_made = (np.asarray(at_once) < 1.0) & (layer.kind == "linear" and facts.has_backward)
    return np.where(is_made, rows_held(layer, shard) * shard.in_channels, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Who reads a tensor again in the backward pass: products, which may cast it to fp8, and others."""

    by_products: bool
    by_others: bool

    def share(self, cast: float) -> float:
        """Bytes that stay over those of the tensor, where products keep it in ``cast`` of its width (1: as it is).

        >>> [Use(by_products=True, by_others=other).share(0.5) for other in (False, True)]
        [0.5, 1.5]
        """
        if cast == 1.0:
            return float(self.by_products or self.by_others)
        return cast * self.by_products + self.by_others


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFacts:
    """What the backward pass of a module wants of one of its layers.

    Attributes
    ----------
    has_backward : bool
        A gradient flows through the layer.
    keeps_input : bool
        Its backward pass reads its input.
    reads_again : bool
        The same under selective recomputation, or the layer runs again.
    kept : Use
        The backward pass of another layer reads its output, or its own does.
    needed_again : Use
        The same under selective recomputation, or to run other layers again.
    repeats : Repeats
        What selective recomputation runs again of it.
    keeps_operators : bool
        Selective recomputation keeps what the rest of it makes, whoever reads it: a gradient flows through its block.
    feeds_loss : bool
    """

    has_backward: bool
    keeps_input: bool
    reads_again: bool
    kept: Use
    needed_again: Use
    repeats: Repeats
    keeps_operators: bool
    feeds_loss: bool


def saved_facts(workload: Workload, kind: ModuleKind) -> list[SavedFacts]:
    """Facts of every layer of a module, in training."""
    graph, selective = workload.graph, workload.framework.defaults.selective
    return graph.once(("saved facts", kind, selective), lambda: _saved_facts(graph, kind, selective))


def _saved_facts(graph: Graph, kind: ModuleKind, selective: Selective) -> list[SavedFacts]:
    needs = graph.needs_gradient
    layers = [graph.layers[index] for index in kind.layers]
    reading = [kind.readers(p) for p in range(len(layers))]
    repeats = repeats_of(graph, kind, selective)
    keeping = [needs[i] and graph.layers[i].keeps_input for i in kind.layers]
    keeps_operators = selective == "operators" and any(needs[i] for i in kind.layers)
    # A layer that only draws a mask again needs no input for it. Checkpointing of operators keeps what enters the block.
    again = [keeps or keeps_operators for keeps in keeping]
    for p in reversed(range(len(layers))):
        again[p] |= repeats[p].again > 0.0 and any(again[r] for r in reading[p])
    casts = [layer.kind == "linear" and bool(layer.block) for layer in layers]

    def use(p: int, is_read: Sequence[bool]) -> Use:
        """``is_read``: layer -> whether it reads its input again. A fused attention reads what it made, too."""
        reads = [r for r in reading[p] if is_read[r]]
        own = layers[p].kind in ATTENTION and layers[p].params.fused and bool(reads)
        return Use(by_products=any(casts[r] for r in reads), by_others=own or not all(casts[r] for r in reads))

    return [
        SavedFacts(
            has_backward=needs[index],
            keeps_input=keeping[p],
            reads_again=again[p],
            kept=use(p, keeping),
            needed_again=use(p, again),
            repeats=repeats[p],
            keeps_operators=keeps_operators,
            feeds_loss=any(graph.layers[kind.layers[r]].kind == "softmax" for r in reading[p]),
        )
        for p, index in enumerate(kind.layers)
    ]


def _kept_as_read(
    layer: Layer, role: LayerRole, keys: RowKeys, width: float, assumptions: MeshAssumptions
) -> FloatArray | float:
    """Inputs that are kept in another layout than they were left in."""
    copies = assumptions.gathered_copies if role.gathers else 0.0
    kept = copies * _gathered_bytes(layer, keys, width) if copies else 0.0
    return kept + _received_bytes(layer, role, keys, width) if role.moves else kept


def _gathered_bytes(layer: Layer, keys: RowKeys, width: float) -> FloatArray:
    """What the input of a matrix has, gathered under sequence parallelism, beyond the share that is kept anyway."""
    rows = keys.micro_batch * np.ceil(np.prod(layer.input_shapes[0][1:]) / keys.cp)
    beyond = np.where(keys.sequence_parallel > 0, 1.0 - 1.0 / keys.tp, 0.0)
    return np.asarray(rows * layer.input_shapes[0][0] * width * beyond)


def _received_bytes(layer: Layer, role: LayerRole, keys: RowKeys, width: float) -> FloatArray:
    """Inputs in the layout in which the layer reads them, where that is not how they were left and they are not gathered again."""
    own = [m for m in role.moves or () if m.input_index >= 0 and not (m.is_backward or m.is_gathered)]
    total = np.zeros(len(keys))
    for index, pieces in {m.input_index: m.pieces for m in own}.items():
        shape = layer.input_shapes[index]
        total += keys.micro_batch * np.ceil(np.prod(shape[1:]) / keys.cp) * shape[0] * width / pieces
    return total


def _read_from_outside(graph: Graph, kind: ModuleKind) -> dict[int, list[int]]:
    """Layer of another module -> positions of the layers of this one that read it."""
    found: dict[int, list[int]] = {}
    for position, index in enumerate(kind.layers):
        for source in graph.producers[index]:
            if source not in kind.layers:
                found.setdefault(source, []).append(position)
    return found


def _elements(layer: Layer, keys: RowKeys, pieces: FloatArray, channel_pieces: FloatArray | float) -> FloatArray:
    """Elements of a layer's output on one rank."""
    rows = keys.micro_batch * np.ceil(np.prod(layer.output_shape[1:]) / pieces)
    return np.asarray(rows * np.ceil(layer.output_shape[0] / channel_pieces))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes by part, arrays (n, Q); the names of `costmodel.mesh.plan.MEMORY_PARTS`."""

    parts: dict[str, FloatArray]
    host_bytes: FloatArray

    @property
    def total_bytes(self) -> FloatArray:
        """All parts; 0 for padding."""
        total = self.parts[MEMORY_PARTS[0]].copy()
        for name in MEMORY_PARTS[1:]:
            total += self.parts[name]
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineMemory:
    """What fills the memory of the ranks of a pipeline, before dp is divided."""

    workload: Workload
    assumptions: MeshAssumptions
    # Weights of a rank before ZeRO, bytes and counts (c, Q).
    dense_bytes: FloatArray
    expert_bytes: FloatArray
    narrow_trainable: FloatArray
    dense_trainable: FloatArray
    expert_trainable: FloatArray
    outside_bytes: FloatArray  # (c, Q) activations of embedding and head, all micro-batches in flight
    kept_bytes: FloatArray  # (c, Q) of the blocks, nothing of "full" recomputed
    input_bytes: FloatArray  # (c, Q) of the blocks, all recomputed
    share: FloatArray  # (c, Q) of what the blocks need not keep then, that is recomputed in full
    alive: FloatArray  # (c, Q) micro-batches in flight
    waiting_bytes: FloatArray  # (c, Q) what two blocks keep, on its way to or from the host
    logits_bytes: FloatArray  # (c, Q)
    again_bytes: FloatArray  # (c, 1) a block run again, and the gradient under way
    gathered_bytes: FloatArray  # (c, 1) weights that ZeRO-3 gathers
    gradient_bytes: FloatArray  # (c, 1) gradients of a module before they are scattered
    buffer_bytes: FloatArray  # (c, Q)
    context_bytes: FloatArray  # (c, 1)
    tensors: FloatArray  # (c, Q) weight tensors that are trained
    embedding_trainable: FloatArray  # (c, Q) the part of dense_trainable before the blocks
    blocks: FloatArray  # (c, Q) blocks per chunk: as many as free what all free, if each frees what the first of every chunk does
    host_share_bytes: FloatArray  # (c, 1) room for a rank on its node's host; infinite where nothing is known of it
    exists: BoolArray  # (c, Q)

    @classmethod
    def build(
        cls,
        workload: Workload,
        assumptions: MeshAssumptions,
        table: ModuleTable,
        row: IntArray,
        layouts: LayoutArrays,
        batches: Sequence[MeshBatch],
        is_block: BoolArray,
        host: Host | None = None,
    ) -> list[PipelineMemory]:
        """Gather what the modules of every rank need.

        Parameters
        ----------
        workload : Workload
        assumptions : MeshAssumptions
        table : ModuleTable
            (u, K).
        row : array (c,)
            Row of the table that a pipeline has.
        layouts : LayoutArrays
        batches : sequence of MeshBatch
            They differ in nothing but what they recompute.
        is_block : array (K,)
        host : Host, optional
            Of every node.

        Returns
        -------
        list of PipelineMemory
            One for each of the batches.
        """
        modules, batch = layouts.rank_modules, batches[0]
        # in_flight counts chunks; a rank's activations are those of vpp of them.
        ends = np.maximum(layouts.rank_first, 0), np.maximum(layouts.rank_last, 0)
        schedule, m, pp, vpp = (x[:, None] for x in (batch.schedule, batch.num_micro_batches, batch.pp, batch.vpp))
        alive = np.maximum(*(in_flight(schedule, m, pp, vpp, rank) for rank in ends)) / vpp
        cut = batch.pp[:, None] > 1
        tied = np.where(cut, weigh(modules, table.tied_count, row), 0.0)
        tied_trainable = np.where(cut, weigh(modules, table.tied_trainable, row), 0.0)
        precision = workload.precision
        width = precision.held_bytes if workload.training else precision.served_bytes
        held = precision.sized(width, table.dense_count, table.narrow_count, table.expert_count)
        saved = _Saved(table, row, layouts, is_block, alive, is_training=workload.training)
        common = {
            "dense_bytes": weigh(modules, held[0], row) + precision.weight_bytes * tied,
            "expert_bytes": weigh(modules, held[1], row),
            "narrow_trainable": weigh(modules, table.narrow_trainable, row),
            "dense_trainable": weigh(modules, table.dense_trainable, row) + tied_trainable,
            "expert_trainable": weigh(modules, table.expert_trainable, row),
            "outside_bytes": weigh(modules, np.where(is_block, 0.0, table.saved_bytes), row) * alive,
            "input_bytes": weigh(modules, np.where(is_block, table.input_bytes, 0.0), row) * alive,
            "alive": alive,
            "logits_bytes": weigh(modules, table.logits_bytes, row)
            * np.where(KEEPS_ALL[batch.schedule], batch.num_micro_batches, 1)[:, None],
            "gathered_bytes": _GATHERED_BLOCKS * np.max(held[0] + held[1], axis=1)[row][:, None],
            "gradient_bytes": float(workload.precision.gradient_bytes)
            * np.max(table.dense_trainable + table.expert_trainable, axis=1)[row][:, None],
            "context_bytes": workload.context_bytes
            + np.where(batch.workers > 1, assumptions.communicator_bytes, 0.0)[:, None],
            "tensors": weigh(modules, table.tensors, row),
            "embedding_trainable": modules[:, :, 0] * table.dense_trainable[row, :1],
            "blocks": saved.blocks(),
            "host_share_bytes": _host_share_bytes(host, batch)[:, None],
        }
        gradients = assumptions.gradient_width(precision) * (common["dense_trainable"] + common["expert_trainable"])
        buffers = _buffers(table, row, batch, is_block, is_training=workload.training)[:, None]
        common["buffer_bytes"] = buffers + np.where(
            (batch.dp * batch.cp > 1)[:, None], np.minimum(2.0 * assumptions.bucket_bytes, gradients), 0.0
        )
        return [
            cls(
                workload=workload, assumptions=assumptions, exists=layouts.rank_first >= 0, **common, **saved.under(one)
            )
            for one in batches
        ]

    @property
    def block_bytes(self) -> FloatArray:
        """Activations of the blocks, all micro-batches in flight: (c, Q)."""
        return self.kept_bytes + self.share * (self.input_bytes - self.kept_bytes)

    def divided(self, index: IntArray, division: Division) -> RankMemory:
        """Memory once dp is divided.

        Parameters
        ----------
        index : array (n,)
            Pipeline of every plan.
        division : Division

        Returns
        -------
        RankMemory
        """
        parts = self._states(index, division)
        exists = rows_of(self.exists, index)
        on_host = division.offload_optimizer[:, None] > 0
        state, gradients = (np.where(on_host, part, 0.0) for part in self._hosted(parts))
        parts["optimizer_bytes"] = parts["optimizer_bytes"] - state
        parts["gradient_bytes"] = parts["gradient_bytes"] - gradients
        hosted = state + gradients
        activations, away = self._activations(index, division.offload_activations)
        # What the host has no room for stays on the device: state first, since it was to come back anyway.
        room = rows_of(self.host_share_bytes, index)
        back, back_away = _without_room(hosted, away, room)
        parts["optimizer_bytes"] += back
        hosted, away, activations = hosted - back, away - back_away, activations + back_away
        working = rows_of(self.again_bytes, index) + self.gathered(index, division) + np.zeros_like(activations)
        logits = rows_of(self.logits_bytes, index)
        parts["activation_bytes"] = activations
        parts["working_bytes"] = working
        parts["logits_bytes"] = logits
        parts["buffer_bytes"] = rows_of(self.buffer_bytes, index) + np.zeros_like(activations)
        parts["slack_bytes"] = self.assumptions.allocator_slack * (activations + working + logits)
        parts["context_bytes"] = rows_of(self.context_bytes, index) + np.zeros_like(activations)
        hosted = hosted + away
        if not exists.all():
            parts = {name: np.where(exists, value, 0.0) for name, value in parts.items()}
            hosted = np.where(exists, hosted, 0.0)
        return RankMemory(parts=parts, host_bytes=hosted)

    def state_bytes(self, index: IntArray, division: Division) -> tuple[FloatArray, FloatArray]:
        """What depends on how dp is divided: all of it, and what an optimizer on the host frees; (n, Q) each, padding not cleared."""
        states = self._states(index, division)
        slack = 1.0 + self.assumptions.allocator_slack
        held = self.gathered(index, division)
        waiting = self.gathered(index, replace(division, offload_optimizer=np.ones_like(index))) - held
        return sum(states.values()) + slack * held, sum(self._hosted(states)) - slack * waiting

    def saved_bytes(self, index: IntArray, division: Division, *, shared: bool) -> FloatArray:
        """What a rank writes of a checkpoint: weights, 32-bit copies and optimizer state, (n, Q).

        Parameters
        ----------
        index : array (n,)
            Pipeline of every plan.
        division : Division
        shared : bool
            Ranks with the same shard write a part of it each; else the first of them writes all.
        """
        workload = self.workload
        state = workload.optimizer.state_bytes + workload.precision.master_bytes
        shards = division.shard, division.expert_shard
        copies = division.shard * division.replicate, division.expert_shard * division.expert_replicate
        total = np.zeros((len(index), self.exists.shape[1]))
        held = (self.dense_bytes, self.dense_trainable), (self.expert_bytes, self.expert_trainable)
        for (weights, trained), shard, whole in zip(held, shards, copies, strict=True):
            parts = [whole, whole] if shared else [np.where(division.zero_stage >= stage, shard, 1) for stage in (3, 1)]
            for size, over in zip((weights, state * trained), parts, strict=True):
                total += rows_of(size, index) / over[:, None]
        return np.where(rows_of(self.exists, index), total, 0.0)

    def _hosted(self, parts: dict[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
        """State and gradients that an optimizer on the host keeps there."""
        return parts["optimizer_bytes"], self.assumptions.hosted_gradients * parts["gradient_bytes"]

    def lasting_bytes(self, on_host: int) -> tuple[FloatArray, FloatArray]:
        """What does not depend on it, and what of the activations is on the host if there is room; (c, Q) each, padding not cleared."""
        every = np.arange(len(self.dense_bytes))
        activations, away = self._activations(every, np.full(len(every), on_host))
        working = activations + self.again_bytes + self.logits_bytes
        return (1.0 + self.assumptions.allocator_slack) * working + self.buffer_bytes + self.context_bytes, away

    def _activations(self, index: IntArray, on_host: IntArray) -> tuple[FloatArray, FloatArray]:
        """Saved activations on the device and on the host, (n, Q) each.

        Of those on the host, two blocks wait for the copy engines: the one being saved and the one being fetched.
        """
        outside, in_blocks = rows_of(self.outside_bytes, index), rows_of(self.block_bytes, index)
        if not np.any(on_host):
            return outside + in_blocks, np.zeros_like(in_blocks)
        waiting = np.minimum(rows_of(self.waiting_bytes, index), in_blocks)
        away = np.where(on_host[:, None] > 0, in_blocks - waiting, 0.0)
        return outside + (in_blocks - away), away

    def _states(self, index: IntArray, division: Division) -> dict[str, FloatArray]:
        workload, precision = self.workload, self.workload.precision
        zero = division.zero_stage[:, None]
        shard, expert_shard = 1.0 / division.shard[:, None], 1.0 / division.expert_shard[:, None]
        has_experts = bool(np.any(self.expert_bytes))

        def share(dense: FloatArray, experts: FloatArray, stage: int, width: float) -> FloatArray:
            held = rows_of(dense, index) * np.where(zero >= stage, shard * width, width)
            if has_experts:
                held += rows_of(experts, index) * np.where(zero >= stage, expert_shard * width, width)
            return held

        state = workload.optimizer.state_bytes + precision.master_bytes if workload.training else 0
        gradient = self.assumptions.gradient_width(precision) if workload.training else 0.0
        if workload.training and gradient > precision.gradient_bytes:
            gradient += self.assumptions.gradient_copies * precision.gradient_bytes
        gradients = share(self.dense_trainable, self.expert_trainable, 2, gradient)
        if workload.training and self.assumptions.bucket_copies:
            whole = share(self.dense_trainable, self.expert_trainable, 4, float(precision.gradient_bytes))
            exchanged = (zero == 0) & (division.replicate[:, None] > 1)
            gradients = gradients + np.where(exchanged, self.assumptions.bucket_copies * whole, 0.0)
        return {
            "weight_bytes": share(self.dense_bytes, self.expert_bytes, 3, 1.0),
            "gradient_bytes": gradients,
            "optimizer_bytes": share(self.dense_trainable, self.expert_trainable, 1, float(state)),
        }

    def gathered(self, index: IntArray, division: Division) -> FloatArray:
        """Whole weights of the module at hand, and gradients that are scattered or leave for the host, (n, 1)."""
        sharded = ((division.shard > 1) | (division.expert_shard > 1))[:, None]
        zero = division.zero_stage[:, None]
        weights = np.where(sharded & (zero >= 3), self.gathered_bytes[index], 0.0)
        if not self.workload.training:
            return weights
        leaves = (division.offload_optimizer[:, None] > 0) & (self.assumptions.hosted_gradients > 0.0)
        return weights + np.where((sharded & (zero >= 2)) | leaves, self.gradient_bytes[index], 0.0)

    def least_recomputed(self, index: IntArray, division: Division, capacity_bytes: float) -> IntArray:
        """Fewest blocks per chunk that must be recomputed in full to fit, pipelines with recompute "full" being given; (n,).

        Memory falls linearly with them, kind of rank by kind of rank. More than a chunk has where even all are not enough. Where the memory
        equals the capacity to the last digits, it may be one too few.
        """
        none = self.divided(index, division).total_bytes
        kept, share, blocks = self.kept_bytes[index], self.share[index], np.maximum(self.blocks[index], 1.0)
        whole = (1.0 + self.assumptions.allocator_slack) * (kept - self.input_bytes[index])
        # What is recomputed already in the pipelines given is added back.
        over = none + share * whole - capacity_bytes
        needed = np.where(over > 0, over / np.maximum(whole, 1.0), 0.0)
        # The sums are in another order than those of `divided`: what is even to nine digits is for the caller to check.
        needed = np.where(needed > 1.0 + EQUAL, np.inf, np.ceil(needed * blocks - EQUAL))
        return np.asarray(
            np.minimum(np.max(np.where(self.exists[index], needed, 0.0), axis=1), 2.0**31), dtype=np.int64
        )


def _host_share_bytes(host: Host | None, batch: MeshBatch) -> FloatArray:
    """Room on the host for every rank of a node; the ranks of a node are taken to need as much as the fullest, (c,)."""
    if host is None:
        return np.full(len(batch), np.inf)
    workers, row = np.unique(batch.workers, return_inverse=True)
    return np.array([host.share_bytes(count) for count in workers.tolist()], dtype=np.float64)[row]


def _without_room(state: FloatArray, activations: FloatArray, room: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Of what should go to the host, what it has no room for: state, and activations."""
    over = np.maximum(state + activations - room, 0.0)
    back = np.minimum(over, state)
    return back, over - back


def _buffers(
    table: ModuleTable,
    row: IntArray,
    batch: MeshBatch,
    is_block: BoolArray,
    *,
    is_training: bool,
) -> FloatArray:
    """Communication buffers beside gradient buckets: gathered positions, inputs and outputs of stages, tokens for experts. (c,)."""
    entering = np.max(np.where(is_block, table.entering_bytes, 0.0), axis=1)[row]
    # Whole tensors: the gathered input of a matrix, the partial sums that it leaves, and the gradient of one of them.
    gathered = np.where((batch.sequence_parallel > 0) & (batch.tp > 1), 3.0 * entering * batch.tp, 0.0)
    between = np.where(batch.pp > 1, 2.0 * entering, 0.0)
    tokens = np.where(batch.ep > 1, np.max(2.0 * table.dispatch_bytes + table.uneven_bytes, axis=1)[row], 0.0)
    return np.asarray(gathered + between + tokens + _of_other_positions(table, row, batch, is_training))


def _of_other_positions(table: ModuleTable, row: IntArray, batch: MeshBatch, is_training: bool) -> FloatArray | float:
    """What attention has of other context-parallel ranks, (c,); keys and values with their gradients in training.

    A ring holds those that it works on and those that arrive (Transformer Engine, context_parallel.py: two ``p2p_comm_buffers`` of both in
    the backward pass), an all-gather those of all positions. Of what an all-to-all exchanges, both layouts are there.
    """
    if not np.any(batch.cp > 1):
        return 0.0
    held = np.max(table.kv_bytes, axis=1)[row] * (2.0 if is_training else 1.0)
    of_kinds = [2.0 * held, batch.cp * held, np.max(table.heads_bytes, axis=1)[row]]
    return np.where(batch.cp > 1, np.choose(batch.cp_kind, of_kinds), 0.0)


class _Saved:
    """What is kept of the blocks for the backward pass, whatever is recomputed."""

    def __init__(
        self,
        table: ModuleTable,
        row: IntArray,
        layouts: LayoutArrays,
        is_block: BoolArray,
        alive: FloatArray,
        *,
        is_training: bool,
    ) -> None:
        self.row, self.layouts, self.alive, self.is_block = row, layouts, alive, is_block
        self.all = np.where(is_block, table.saved_bytes, 0.0)
        self.selective = np.where(is_block, table.saved_selective_bytes, 0.0)
        # Not what is kept without recomputation less what is kept with it: that has tensors that only running layers again takes.
        self.remade = np.where(is_block, table.remade_bytes, 0.0)
        self.inputs = np.where(is_block, table.input_bytes, 0.0)
        self.freed = self.all - self.inputs
        self.all_alive = weigh(layouts.rank_modules, self.all, row) * alive
        under_way = np.maximum(2.0 * table.widest_bytes, table.chunk_bytes) if is_training else table.widest_bytes
        self.under_way = np.max(np.where(is_block, under_way, 0.0), axis=1)[row][:, None]
        self.is_training = is_training

    def under(self, batch: MeshBatch) -> dict[str, FloatArray]:
        """Fields of `PipelineMemory` that depend on what is recomputed."""
        kind = batch.recompute[:, None]
        most = np.max(self.all, axis=1)[self.row][:, None]
        again = np.where(kind == FULL, most, 0.0)
        kept = self.all_alive
        if np.any(kind == SELECTIVE):
            kept = np.where(
                kind == SELECTIVE, weigh(self.layouts.rank_modules, self.selective, self.row) * self.alive, kept
            )
            again = np.where(kind == SELECTIVE, np.max(self.remade, axis=1)[self.row][:, None], again)
            most = np.where(kind == SELECTIVE, np.max(self.selective, axis=1)[self.row][:, None], most)
        share = np.zeros_like(kept)
        if np.any(kind == FULL):
            share = np.where(kind == FULL, self._share(batch), share)
            # Of a rank that runs all of its blocks again, inputs alone are kept.
            most = np.where(share >= 1.0, np.max(self.inputs, axis=1)[self.row][:, None], most)
        return {
            "kept_bytes": kept,
            "share": share,
            "waiting_bytes": 2.0 * most + np.zeros_like(kept),
            "again_bytes": again + self.under_way if self.is_training else self.under_way,
        }

    def blocks(self) -> FloatArray:
        """Blocks per chunk, (c, Q): the mean over the chunks, weighted by what one block of theirs frees when it is recomputed."""
        layouts = self.layouts
        lengths, repeats = layouts.rank_lengths, layouts.rank_repeats
        if np.count_nonzero(self.is_block) == 1:
            return np.asarray(np.sum(lengths * repeats, axis=2) / np.maximum(np.sum(repeats, axis=2), 1))
        each, total, plain = (np.zeros_like(layouts.rank_first, dtype=np.float64) for _ in range(3))
        for d in range(lengths.shape[2]):
            some = repeats[:, :, d] * weigh(layouts.rank_chunks[:, :, d], self.freed, self.row)
            total += some
            each += some / np.maximum(lengths[:, :, d], 1)
            plain += repeats[:, :, d] * lengths[:, :, d]
        count = plain / np.maximum(np.sum(repeats, axis=2), 1)
        return np.where(each > 0, total / np.where(each > 0, each, 1.0), count)

    def _share(self, batch: MeshBatch) -> FloatArray:
        """What full recomputation frees, as a share of the most that it can, (c, Q): kinds of blocks differ in what they keep."""
        most = weigh(self.layouts.rank_modules, self.freed, self.row)
        again = weigh(recomputed_modules(self.layouts, batch.recompute, batch.recompute_blocks), self.freed, self.row)
        return np.asarray(again / np.where(most > 0, most, 1.0))
