"""Activations that a module keeps for its backward pass, for each kind of recomputation: none, selective, full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.hardware.efficiency import NARROW_FORMATS
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.modules import ModuleKind, RowKeys, is_repeated
from costmodel.mesh.tensor_parallel import LayerRole, shard_of
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION, Layer, Shard
from costmodel.workload import Workload

__all__ = ["SavedFacts", "add_saved", "add_saved_inputs", "add_saved_layer", "saved_facts"]


# Of a norm that is written out, in bytes per element beyond its input in 16 bits: that in fp32 (4), and the normalised one (2).
_NORM_KEPT = 4.0 + 2.0 - 2.0
_FP8_BYTES = 1.0


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
    facts = saved_facts(workload.graph, kind)
    for position, shard in shards.items():
        add_saved_layer(total, workload, assumptions, kind, keys, position, roles[position], facts[position], shard)


def add_saved_inputs(total: dict[str, FloatArray], workload: Workload, kind: ModuleKind, keys: RowKeys) -> None:
    """The same of what enters the module."""
    graph, width = workload.graph, workload.precision.activation_bytes
    needs, whole = graph.needs_gradient, keys.cp * np.where(keys.sequence_parallel > 0, keys.tp, 1)
    readers, outside = _readers(graph, kind)
    keeping = [needs[i] and graph.layers[i].keeps_input for i in kind.layers]
    again = _needed_again(graph, kind, readers, keeping)
    has_backward = any(needs[i] for i in kind.layers)
    for source, reading in outside.items():
        elements = _elements(graph.layers[source], keys, whole.astype(np.float64), np.ones(len(keys)))
        total["entering_bytes"] += elements * width
        if has_backward:
            total["input_bytes"] += elements * width
        if any(keeping[r] for r in reading):
            total["saved_bytes"] += elements * width
        if any(keeping[r] or (is_repeated(graph, kind, r) and again[r]) for r in reading):
            total["saved_selective_bytes"] += elements * width


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
        shard = shard_of(graph.layers, kind, position, role, keys)
    if role.gathers and facts.keeps_input and assumptions.gathered_copies:
        again_whole = assumptions.gathered_copies * _gathered_bytes(layer, keys, width)
        total["saved_bytes"] += again_whole
        total["saved_selective_bytes"] += again_whole
    if facts.keeps_input and role.moves:
        received = _received_bytes(layer, role, keys, width)
        total["saved_bytes"] += received
        total["saved_selective_bytes"] += received
    is_cast = workload.precision.compute in NARROW_FORMATS and assumptions.fp8_kept > 0
    kept = layer.family.saved_elements(layer, shard) * width
    if is_cast:
        kept = kept - layer.family.cast_elements(layer, shard) * (width - _FP8_BYTES)
    extra = kept * facts.has_backward
    pieces = keys.cp if role.role in ("column", "channel", "repeated") else whole
    elements = _elements(layer, keys, pieces.astype(np.float64), shard.split_out if role.role != "experts" else 1.0)
    if role.role == "column":  # repeated key and value heads included
        elements = elements / np.ceil(layer.output_shape[0] / shard.split_out) * shard.out_channels
    size = elements * width
    if facts.has_backward or not workload.training:
        total["widest_bytes"] = np.maximum(total["widest_bytes"], size)
    if layer.kind == "softmax" or facts.feeds_loss:
        total["logits_bytes"] += assumptions.logits_copies * extra if layer.kind == "softmax" else size
        return
    if layer.kind == "glu":  # the activation of one half
        extra = extra + assumptions.autograd_copies * size * facts.has_backward
    elif layer.kind == "rms_norm":  # its input in fp32, and what is multiplied by its weights
        extra = extra + assumptions.norm_copies * _NORM_KEPT * elements * facts.has_backward
    kept, again = (size * use.share(_FP8_BYTES / width if is_cast else 1.0) for use in (facts.kept, facts.needed_again))
    total["saved_bytes"] += extra + kept
    if not facts.is_repeated:
        inside = layer.family.repeated_elements(layer, shard) * (_FP8_BYTES if is_cast else width) * facts.has_backward
        total["saved_selective_bytes"] += extra - inside + again


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
    kept : Use
        The backward pass of another layer reads its output, or its own does.
    needed_again : Use
        The same under selective recomputation, or to run other layers again.
    is_repeated : bool
        Selective recomputation runs it again.
    feeds_loss : bool
    """

    has_backward: bool
    keeps_input: bool
    kept: Use
    needed_again: Use
    is_repeated: bool
    feeds_loss: bool


def saved_facts(graph: Graph, kind: ModuleKind) -> list[SavedFacts]:
    """Facts of every layer of a module, in training."""
    return graph.once(("saved facts", kind), lambda: _saved_facts(graph, kind))


def _saved_facts(graph: Graph, kind: ModuleKind) -> list[SavedFacts]:
    needs = graph.needs_gradient
    readers, _ = _readers(graph, kind)
    keeping = [needs[i] and graph.layers[i].keeps_input for i in kind.layers]
    again = _needed_again(graph, kind, readers, keeping)
    reading = [readers.get(p, []) for p in range(len(kind.layers))]
    layers = [graph.layers[index] for index in kind.layers]
    casts = [layer.kind == "linear" and bool(layer.block) for layer in layers]

    def use(p: int, is_read: Sequence[bool]) -> Use:
        """``is_read``: layer -> whether it reads its input again. A fused attention reads what it made, too."""
        reads = [r for r in reading[p] if is_read[r]]
        own = layers[p].kind in ATTENTION and layers[p].params.fused and bool(reads)
        return Use(by_products=any(casts[r] for r in reads), by_others=own or not all(casts[r] for r in reads))

    repeated = [is_repeated(graph, kind, p) for p in range(len(layers))]
    runs_again = [k or (r and a) for k, r, a in zip(keeping, repeated, again, strict=True)]
    return [
        SavedFacts(
            has_backward=needs[index],
            keeps_input=keeping[p],
            kept=use(p, keeping),
            needed_again=use(p, runs_again),
            is_repeated=repeated[p],
            feeds_loss=any(graph.layers[kind.layers[r]].kind == "softmax" for r in reading[p]),
        )
        for p, index in enumerate(kind.layers)
    ]


def _gathered_bytes(layer: Layer, keys: RowKeys, width: int) -> FloatArray:
    """What the input of a matrix has, gathered under sequence parallelism, beyond the share that is kept anyway."""
    rows = keys.micro_batch * np.ceil(np.prod(layer.input_shapes[0][1:]) / keys.cp)
    beyond = np.where(keys.sequence_parallel > 0, 1.0 - 1.0 / keys.tp, 0.0)
    return np.asarray(rows * layer.input_shapes[0][0] * width * beyond)


def _received_bytes(layer: Layer, role: LayerRole, keys: RowKeys, width: int) -> FloatArray:
    """Inputs in the layout in which the layer reads them, where that is not how they were left and they are not gathered again."""
    moved = {m.input_index: m.pieces for m in role.moves or () if not (m.is_backward or m.is_gathered)}
    total = np.zeros(len(keys))
    for index, pieces in moved.items():
        if index >= 0:
            shape = layer.input_shapes[index]
            total += keys.micro_batch * np.ceil(np.prod(shape[1:]) / keys.cp) * shape[0] * width / pieces
    return total


def _readers(graph: Graph, kind: ModuleKind) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Who reads what: by position in the module, and by layer of the graph for tensors from other modules."""
    readers: dict[int, list[int]] = {}
    outside: dict[int, list[int]] = {}
    inside = set(kind.layers)
    for position, inputs in enumerate(kind.inputs):
        for u in set(inputs) - {-1}:
            readers.setdefault(u, []).append(position)
        for source in graph.producers[kind.layers[position]]:
            if source not in inside:
                outside.setdefault(source, []).append(position)
    return readers, outside


def _needed_again(
    graph: Graph, kind: ModuleKind, readers: Mapping[int, Sequence[int]], keeping: Sequence[bool]
) -> list[bool]:
    """Layer of the module -> whether the backward pass under selective recomputation reads its output: itself, or to run readers again.

    A layer that only draws a mask again needs no input for it.
    """
    again = [is_repeated(graph, kind, p) for p in range(len(kind.layers))]
    needed = [False] * len(again)
    for position in reversed(range(len(again))):
        needed[position] = any(keeping[r] or (again[r] and needed[r]) for r in readers.get(position, ()))
    return needed


def _elements(layer: Layer, keys: RowKeys, pieces: FloatArray, channel_pieces: FloatArray | float) -> FloatArray:
    """Elements of a layer's output on one rank."""
    rows = keys.micro_batch * np.ceil(np.prod(layer.output_shape[1:]) / pieces)
    return np.asarray(rows * np.ceil(layer.output_shape[0] / channel_pieces))
