"""What a unit keeps for its backward pass: every tensor once, nothing, cheap layers or all but the input recomputed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from costmodel.graph import Graph
from costmodel.layers import Layer
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.roles import roles_of
from costmodel.mesh.shares import RowKeys, shard_of
from costmodel.mesh.units import UnitKind
from costmodel.workload import Workload

__all__ = ["add_saved"]

FloatArray = NDArray[np.float64]


def add_saved(
    total: dict[str, FloatArray], workload: Workload, assumptions: MeshAssumptions, kind: UnitKind, keys: RowKeys
) -> None:
    """Tensors that the backward pass reads, each kept once, at the layout in which it leaves its producer.

    A tensor is kept if a layer that reads it keeps its input. Selective recomputation drops what cheap layers make,
    and keeps what they read.
    """
    graph, width = workload.graph, workload.precision.activation_bytes
    layers = [graph.layers[i] for i in kind.layers]
    roles = roles_of(graph, kind)
    whole = keys.cp * np.where(keys.sequence_parallel > 0, keys.tp, 1)
    readers, outside = _readers(graph, kind)
    again = _needed_again(layers, readers)
    for source, reading in outside.items():
        elements = _elements(graph.layers[source], keys, whole.astype(np.float64), np.ones(len(keys)))
        total["input_bytes"] += elements * width
        if any(layers[r].keeps_input for r in reading):
            total["saved_bytes"] += elements * width
        if any(_needs_input(layers[r], is_needed=again[r]) for r in reading):
            total["saved_selective_bytes"] += elements * width
    for position, (layer, role) in enumerate(zip(layers, roles, strict=True)):
        if layer.kind == "input":
            continue
        shard = shard_of(graph.layers, kind, position, role, keys)
        if role.gathers and layer.keeps_input and assumptions.autograd_copies:
            again_whole = assumptions.autograd_copies * _gathered_bytes(layer, keys, width)
            total["saved_bytes"] += again_whole
            total["saved_selective_bytes"] += again_whole
        extra = layer.family.saved_elements(layer, shard) * width
        pieces = keys.cp if role.role in ("column", "channel") else whole
        elements = _elements(layer, keys, pieces.astype(np.float64), shard.split_out if role.role != "experts" else 1.0)
        if role.role == "column":  # repeated key and value heads included
            elements = elements / np.ceil(layer.output_shape[0] / shard.split_out) * shard.out_channels
        size = elements * width
        total["widest_bytes"] = np.maximum(total["widest_bytes"], size)
        reading = readers.get(position, [])
        if layer.kind == "softmax" or any(layers[r].kind == "softmax" for r in reading):
            copies = 1.0 + assumptions.logits_copies
            total["logits_bytes"] += copies * extra if layer.kind == "softmax" else size
            continue
        kept = any(layers[r].keeps_input for r in reading)
        total["saved_bytes"] += extra + (size if kept else 0.0)
        if not layer.is_recomputable:
            total["saved_selective_bytes"] += extra + (size if again[position] else 0.0)


def _gathered_bytes(layer: Layer, keys: RowKeys, width: int) -> FloatArray:
    """What the input of a matrix has, gathered under sequence parallelism, beyond the share that is kept anyway."""
    rows = keys.micro_batch * np.ceil(np.prod(layer.input_shapes[0][1:]) / keys.cp)
    beyond = np.where(keys.sequence_parallel > 0, 1.0 - 1.0 / keys.tp, 0.0)
    return np.asarray(rows * layer.input_shapes[0][0] * width * beyond)


def _readers(graph: Graph, kind: UnitKind) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Who reads what: by position in the unit, and by layer of the graph for tensors from other units."""
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


def _needed_again(layers: Sequence[Layer], readers: Mapping[int, Sequence[int]]) -> list[bool]:
    """Layer of the unit -> whether the backward pass under selective recomputation reads its output: itself, or to run readers again."""
    needed = [False] * len(layers)
    for position in reversed(range(len(layers))):
        needed[position] = any(_needs_input(layers[r], is_needed=needed[r]) for r in readers.get(position, ()))
    return needed


def _needs_input(layer: Layer, *, is_needed: bool) -> bool:
    """A layer that only draws a mask again needs no input for it."""
    return layer.keeps_input or (layer.is_recomputable and is_needed)


def _elements(layer: Layer, keys: RowKeys, pieces: FloatArray, channel_pieces: FloatArray | float) -> FloatArray:
    """Elements of a layer's output on one rank."""
    rows = keys.micro_batch * np.ceil(np.prod(layer.output_shape[1:]) / pieces)
    return np.asarray(rows * np.ceil(layer.output_shape[0] / channel_pieces))
