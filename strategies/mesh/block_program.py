"""The split of a block over its tensor-parallel ranks, chosen by the per-layer program: no pattern is given, Megatron's comes out.

One block stands for all of its kind. Its output is the input of the next one, so the block is closed to a ring: the tensor that
leaves the last layer is the one that the first layers read, in the same layout. What the program minimises is then the time that one
more block adds to a step, exactly so where all blocks are split alike.

A tensor that several layers read has a node of its own, whose options are the layouts in which it is offered to them, so that what
they all need gathered is gathered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodel.layers import Layer
from costmodel.mesh.roles import Role
from costmodel.mesh.units import MeshError, UnitKind
from costmodel.network import Cluster
from costmodel.splits import divisors
from costmodel.workload import Workload
from strategies.mesh.block_moves import WHOLE, Collectives, Layout, move_s
from strategies.mesh.block_options import BlockOption, BlockSpace, OptionCosts, cost_options, options_of
from strategies.per_layer.problem import ChoiceProblem, Edge, Limits, Status
from strategies.per_layer.search import solve

__all__ = ["BlockProblem", "BlockSplit", "block_problem", "split_block", "uniform_space"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSplit:
    """How the program splits a block.

    Attributes
    ----------
    options : tuple of BlockOption
        One per layer of the unit, in the order of ``kind.layers``.
    time_s : float
        What a block adds to a step: its passes over all micro-batches, its update and the exchange of its repeated weights.
    bound_s : float
        No choice within memory takes less.
    memory_bytes : float
        Weights with their state, and activations of one micro-batch.
    """

    options: tuple[BlockOption, ...]
    time_s: float
    bound_s: float
    memory_bytes: float

    @property
    def roles(self) -> tuple[Role, ...]:
        """Roles in the words of `costmodel.mesh.roles`."""
        return tuple(option.role for option in self.options)

    @property
    def degrees(self) -> tuple[int, ...]:
        """Shares of every layer; the ranks beyond repeat them."""
        return tuple(option.degree for option in self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProblem:
    """The program of one block, and what its options mean: nodes are the layers, then the tensors that several of them read."""

    problem: ChoiceProblem
    layers: tuple[OptionCosts, ...]
    offers: tuple[tuple[Layout, ...], ...]

    def choice_of(self, options: Sequence[BlockOption], offers: Sequence[Layout]) -> IntArray:
        """The choice that a split makes: to cost one that was not searched for."""
        picks = [costs.options.index(option) for costs, option in zip(self.layers, options, strict=True)]
        picks += [known.index(layout) for known, layout in zip(self.offers, offers, strict=True)]
        return np.array(picks, dtype=np.int64)


def uniform_space(tp: int, *, positions: bool = True) -> BlockSpace:
    """The options of a uniform plan: a layer is split over all tp ranks, or not at all.

    >>> uniform_space(8).degrees
    (8,)
    """
    return BlockSpace(degrees=(tp,) if tp > 1 else (), positions=positions)


def split_block(
    workload: Workload,
    cluster: Cluster,
    kind: UnitKind,
    tp: int,
    *,
    micro_batch: int = 1,
    num_micro_batches: int = 1,
    space: BlockSpace | None = None,
    capacity_bytes: float = float("inf"),
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> BlockSplit | None:
    """Split a block over ``tp`` ranks at least cost.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    kind : UnitKind
        A kind of block of the folded network (`costmodel.mesh.units.fold`).
    tp : int
        Neighbouring ranks.
    micro_batch, num_micro_batches : int
        Samples of a micro-batch (the batch is not split), and micro-batches of a step.
    space : BlockSpace, optional
        Unless given, shares of any degree that divides tp.
    capacity_bytes : float
        Memory for the block on a rank.
    limits : Limits

    Returns
    -------
    BlockSplit or None
        None if nothing fits, or nothing was found within the limits.

    Raises
    ------
    MeshError
        The block contains a mixture of experts, whose ranks form groups of their own.
    """
    if space is None:
        space = BlockSpace(degrees=tuple(d for d in divisors(tp) if d > 1))
    built = block_problem(
        workload,
        cluster,
        kind,
        space,
        micro_batch=micro_batch,
        num_micro_batches=num_micro_batches,
        capacity_bytes=capacity_bytes,
    )
    answer = solve(built.problem, limits)
    if answer.status in (Status.INFEASIBLE, Status.CUT_OFF, Status.LIMIT):
        return None
    choice = answer.choices[0]
    picked = choice[: len(built.layers)].tolist()
    return BlockSplit(
        options=tuple(costs.options[o] for costs, o in zip(built.layers, picked, strict=True)),
        time_s=answer.objectives_s[0],
        bound_s=answer.bound_s,
        memory_bytes=sum(float(m[o]) for m, o in zip(built.problem.memory_bytes, choice, strict=True)),
    )


def block_problem(
    workload: Workload,
    cluster: Cluster,
    kind: UnitKind,
    space: BlockSpace,
    *,
    micro_batch: int = 1,
    num_micro_batches: int = 1,
    capacity_bytes: float = float("inf"),
) -> BlockProblem:
    """Build the program of a block; see `split_block`."""
    layers = [workload.graph.layers[i] for i in kind.layers]
    collectives = Collectives(cluster=cluster)
    costs = [
        cost_options(workload, workload.graph.layers, kind, p, options_of(layer, space), micro_batch, collectives)
        for p, layer in enumerate(layers)
    ]
    readers = _readers(workload, kind)
    shared = [p for p, found in enumerate(readers) if len(found) > 1]
    layouts = _layouts(space)
    offers = tuple(layouts + [Layout(form="gathered", degree=t) for t in space.degrees] for _ in shared)
    m, hides = float(num_micro_batches), workload.compute.overlaps_exchange
    none = [np.zeros(len(x)) for x in offers]
    builder = _Edges(
        workload=workload, layers=layers, costs=costs, collectives=collectives, micro_batch=micro_batch, scale=m
    )
    edges: list[Edge] = []
    for p, found in enumerate(readers):
        if p in shared:
            hub = len(layers) + shared.index(p)
            edges += builder.through(p, hub, offers[shared.index(p)], found)
        else:
            edges += [builder.direct(p, reader, index) for reader, index in found]
    problem = ChoiceProblem(
        base_s=(*(m * (c.forward_s + c.backward_s) + c.update_s for c in costs), *none),
        hide_s=(*(c.backward_compute_s if hides else np.zeros(len(c.options)) for c in costs), *none),
        exchange_s=(*(c.exchange_s for c in costs), *none),
        memory_bytes=(*(c.memory_bytes for c in costs), *none),
        edges=tuple(edge for edge in edges if edge.cost_s.any()),
        memory_capacity_bytes=capacity_bytes,
        node_names=(*(layer.name for layer in layers), *(f"{layers[p].name} offered" for p in shared)),
    )
    return BlockProblem(problem=problem, layers=tuple(costs), offers=tuple(tuple(x) for x in offers))


def _layouts(space: BlockSpace) -> list[Layout]:
    forms = ("channels", "positions") if space.positions else ("channels",)
    pieces = [Layout(form=form, degree=t) for form in forms for t in space.degrees]  # type: ignore[arg-type]
    return [WHOLE, *pieces]


def _readers(workload: Workload, kind: UnitKind) -> list[list[tuple[int, int]]]:
    """Layer of the unit -> (layer, input) pairs that read its output: inside the block, and in the next one what is read from this.

    Other tensors from outside (an encoder's output read by every block of the decoder) are whole, and cost nothing here.

    Raises
    ------
    MeshError
        The block hands more than one tensor on.
    """
    graph = workload.graph
    readers: list[list[tuple[int, int]]] = [[] for _ in kind.layers]
    entering: dict[int, list[tuple[int, int]]] = {}
    inside = {i: p for p, i in enumerate(kind.layers)}
    for position, index in enumerate(kind.layers):
        for n, source in enumerate(graph.producers[index]):
            if source in inside:
                readers[inside[source]].append((position, n))
            else:
                entering.setdefault(source, []).append((position, n))
    leaving = sorted({inside[u] for u, v in graph.edges if u in inside and v not in inside})
    if len(leaving) > 1:
        names = ", ".join(graph.layers[kind.layers[p]].name for p in leaving)
        raise MeshError(
            f"block '{kind.name}' hands several tensors on ({names}); the program splits blocks that hand on one"
        )
    for last in leaving:
        shape = graph.layers[kind.layers[last]].output_shape
        # The tensor that runs through the blocks is read first; a memory that all blocks read comes from further away.
        chain = [source for source in entering if graph.layers[source].output_shape == shape]
        if chain:
            readers[last] += entering[max(chain)]
    return readers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Edges:
    """Costs of handing tensors over, per step."""

    workload: Workload
    layers: Sequence[Layer]
    costs: Sequence[OptionCosts]
    collectives: Collectives
    micro_batch: int
    scale: float

    def direct(self, producer: int, reader: int, index: int) -> Edge:
        """From a layer to its only reader."""
        held = [option.leaves for option in self.costs[producer].options]
        return self._edge(producer, reader, producer, held, self._needs(reader, index))

    def through(self, producer: int, hub: int, offered: Sequence[Layout], found: list[tuple[int, int]]) -> list[Edge]:
        """From a layer to the node of its tensor, and from there to every reader."""
        held = [option.leaves for option in self.costs[producer].options]
        edges = [self._edge(producer, hub, producer, held, offered)]
        return edges + [
            self._edge(hub, reader, producer, offered, self._needs(reader, index)) for reader, index in found
        ]

    def _needs(self, reader: int, index: int) -> list[Layout]:
        return [option.needs(self.layers[reader].kind, index) for option in self.costs[reader].options]

    def _edge(self, source: int, target: int, tensor: int, held: Sequence[Layout], needed: Sequence[Layout]) -> Edge:
        shape = self.layers[tensor].output_shape
        size = float(self.micro_batch * np.prod(shape)) * self.workload.precision.activation_bytes
        rows, row_of = _classes(held)
        columns, column_of = _classes(needed)
        cost = np.zeros((len(rows), len(columns)))
        for r, layout in enumerate(rows):
            for c, need in enumerate(columns):
                forward, backward = move_s(layout, need, size, self.collectives)
                cost[r, c] = self.scale * (forward + (backward if self.workload.training else 0.0))
        if source < target:
            return Edge(producer=source, consumer=target, producer_class=row_of, consumer_class=column_of, cost_s=cost)
        # Edges run upwards: what closes the ring is written the other way round, with the same cost.
        return Edge(
            producer=target,
            consumer=source,
            producer_class=column_of,
            consumer_class=row_of,
            cost_s=np.ascontiguousarray(cost.T),
        )


def _classes(layouts: Sequence[Layout]) -> tuple[list[Layout], IntArray]:
    """Distinct layouts, and the class of each."""
    distinct = sorted(set(layouts))
    return distinct, np.array([distinct.index(layout) for layout in layouts], dtype=np.int64)
