"""How a uniform plan splits each layer over the tensor-parallel ranks: columns, then rows, of the matrices of a block.

The rule finds Megatron's split (Shoeybi et al., arXiv:1909.08053, section 3) in any block: a matrix that reads a
whole tensor is split by its columns if everything behind it works on a share of the channels until the next matrix,
which is then split by its rows; its partial sums are reduced. What does not fit the pattern works on whole tensors:
repeated on every rank, or on a share of the positions (sequence parallelism, Korthikanti et al., arXiv:2205.05198,
section 4.2.2). `tests` show that the per-layer program arrives at the same split by cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from costmodel.arrays import IntArray
from costmodel.mesh.layouts import Transfer
from costmodel.mesh.units import UnitKind
from costmodel.network.graph import Graph
from costmodel.network.layers import ATTENTION

__all__ = ["CHANNELWISE", "WHOLE_INPUTS", "LayerRole", "Move", "Role", "roles_of"]


# column: output features split; row: input features split, output reduced; channel: a share of the channels (heads); whole: all
# channels (of a share of the positions under sequence parallelism); vocabulary: rows of the embedding table; experts: a mixture with
# its own group; repeated: everything on every rank, never the standard (`costmodel.mesh.patterns`).
Role = Literal["column", "row", "channel", "whole", "vocabulary", "experts", "repeated"]

# Layers that work on a share of the channels without hearing of the others, if all their inputs are split alike.
CHANNELWISE = ATTENTION | {"glu", "activation", "dropout", "softmax", "add"}
# Inputs of a kind that stay whole beside split ones: the rotary part of compressed keys is shared by all heads.
WHOLE_INPUTS = {"latent_attention": frozenset({2})}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A collective that changes the layout of a tensor at a layer.

    Attributes
    ----------
    transfer : Transfer
    is_backward : bool
        It moves the tensor's gradient.
    input_index : int
        Which input of the layer it moves; -1: the output.
    is_gathered : bool
        The tensor is gathered for a matrix split by columns.
    pieces : int
        Pieces of the tensor of which a rank has one behind it (forward).
    """

    transfer: Transfer
    is_backward: bool
    input_index: int
    is_gathered: bool
    pieces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRole:
    """The role of one layer of a unit.

    Attributes
    ----------
    gathers : bool
        The layer is the first to read a whole tensor into split matrices: under sequence parallelism the tensor is gathered before it,
        and the gradient of the tensor is reduced behind it. Matrices that read the same tensor share this.
    reduces : bool
        The output is a partial sum that is reduced.
    degree : int
        Shares of the weights or channels; 0: tp, or none where the layer is whole.
    moves : tuple of Move, optional
        Collectives at the layer, where the plan says how it is split; None: those that ``gathers`` and ``reduces`` stand for.
    """

    role: Role
    gathers: bool = False
    reduces: bool = False
    degree: int = 0
    moves: tuple[Move, ...] | None = None

    @property
    def is_split(self) -> bool:
        """Whether every rank of tensor parallelism has a share of the weights or channels."""
        return self.role in ("column", "row", "channel", "vocabulary")

    def ranks(self, tp: IntArray) -> IntArray:
        """Ranks that share the layer in every row of a table."""
        return tp if self.degree == 0 else np.full_like(tp, self.degree)


def roles_of(graph: Graph, kind: UnitKind) -> tuple[LayerRole, ...]:
    """Role of every layer of a unit, in the order of ``kind.layers``.

    Parameters
    ----------
    graph : Graph
    kind : UnitKind

    Returns
    -------
    tuple of LayerRole
    """
    return graph.once(("roles", kind), lambda: _roles(graph, kind))


def _roles(graph: Graph, kind: UnitKind) -> tuple[LayerRole, ...]:
    layers = [graph.layers[i] for i in kind.layers]
    consumers: list[list[int]] = [[] for _ in layers]
    for position, inputs in enumerate(kind.inputs):
        for u in inputs:
            if u >= 0:
                consumers[u].append(position)
    accepts = _accepting(graph, kind, consumers)
    result: list[LayerRole] = []
    gathered: set[object] = set()
    for position, layer in enumerate(layers):
        sources = kind.inputs[position]
        split_inputs = [u >= 0 and result[u].role in ("column", "channel") for u in sources]
        allowed_whole = WHOLE_INPUTS.get(layer.kind, frozenset())
        needed = [s for n, s in enumerate(split_inputs) if n not in allowed_whole]
        if layer.kind == "embedding":
            role = LayerRole(role="vocabulary", reduces=True)
        elif layer.kind == "moe":
            role = LayerRole(role="experts")
        elif layer.kind == "linear":
            role = _linear_role(split_inputs[0], accepts[position], graph.producers[kind.layers[position]], gathered)
        elif layer.kind in CHANNELWISE and needed and all(needed):
            role = LayerRole(role="channel")
        else:
            role = LayerRole(role="whole")
        result.append(role)
    return tuple(result)


def _linear_role(is_split: bool, splits: bool, producers: tuple[int, ...], gathered: set[object]) -> LayerRole:
    if is_split:
        return LayerRole(role="row", reduces=True)
    if not splits:
        return LayerRole(role="whole")
    first = producers not in gathered
    gathered.add(producers)
    return LayerRole(role="column", gathers=first)


def _accepting(graph: Graph, kind: UnitKind, consumers: list[list[int]]) -> list[bool]:
    """Layer of the unit -> whether its output may stay split by channels.

    It may where all that read it work on shares and end in a matrix or the loss.
    """
    layers = [graph.layers[i] for i in kind.layers]
    outside = _read_outside(graph, kind)
    accepts = [False] * len(layers)
    for position in reversed(range(len(layers))):
        readers = consumers[position]
        if position in outside:
            continue
        if not readers:
            accepts[position] = True  # the end of the network: logits or loss per share of the vocabulary
            continue
        accepts[position] = all(_passes_on(layers[r].kind, accepts[r], kind.inputs[r], position) for r in readers)
    return accepts


def _passes_on(kind: str, accepted: bool, inputs: tuple[int, ...], source: int) -> bool:
    if kind == "linear":
        return True
    if kind not in CHANNELWISE or inputs.index(source) in WHOLE_INPUTS.get(kind, frozenset()):
        return False
    # A residual connection would need its other inputs split alike: it joins whole tensors.
    return accepted and kind != "add"


def _read_outside(graph: Graph, kind: UnitKind) -> set[int]:
    """Layers of the unit whose output another unit reads."""
    position = {i: p for p, i in enumerate(kind.layers)}
    return {position[u] for u, v in graph.edges if u in position and v not in position}
