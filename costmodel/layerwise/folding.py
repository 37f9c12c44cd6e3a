"""Cost tables folded for plans in which many layers share one choice: what such a plan gathers from, by the million.

How the exposed exchange folds is said in `costmodel.layerwise.evaluate`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.layerwise.batches import CostBatch, PlanBatch
from costmodel.layerwise.tables import CostTables

__all__ = ["FoldedTables", "fold"]

_Scalar = TypeVar("_Scalar", np.float64, np.bool_)


@dataclass(frozen=True, slots=True)
class _Column:
    """Sums over the layers that share one choice; arrays of shape (splits,) or (collectives + 1, splits)."""

    forward_s: FloatArray
    backward_s: FloatArray
    update_s: FloatArray
    inner_s: FloatArray
    exchange_s: FloatArray  # (collectives + 1, splits); the last row is the cheapest
    memory_bytes: FloatArray
    legal: BoolArray


@dataclass(frozen=True, slots=True)
class _Move:
    """Edges between two columns: cost by pair of classes."""

    producer: int
    consumer: int
    channelwise: bool
    follow: IntArray | None  # row whose need the consumer really has; None: the chosen row
    cost_s: FloatArray  # (pairs,), forward and backward of one micro-batch


@dataclass(frozen=True, slots=True)
class FoldedTables:
    """Tables folded by columns: what a plan gathers from."""

    tables: CostTables
    columns: tuple[_Column, ...]
    # From the last layer to the first: (column, p, q) with lag -> max(lag + p, q); arrays (collectives + 1, splits).
    lag_steps: tuple[tuple[int, FloatArray, FloatArray], ...]
    moves: tuple[_Move, ...]

    def score(self, plans: PlanBatch) -> CostBatch:
        """Gather and add."""
        tables, m = self.tables, float(self.tables.num_micro_batches)
        n = len(plans)
        total = {name: np.zeros(n) for name in ("forward", "backward", "update", "reshard", "exchange", "memory")}
        legal = np.ones(n, dtype=bool)
        for c, column in enumerate(self.columns):
            row, collective = plans.row[:, c], plans.collective[:, c]
            total["forward"] += m * column.forward_s[row]
            total["backward"] += m * column.backward_s[row]
            total["update"] += column.update_s[row]
            total["reshard"] += m * column.inner_s[row]
            total["exchange"] += column.exchange_s[collective, row]
            total["memory"] += column.memory_bytes[row]
            legal &= column.legal[row]
        if self.moves:
            geometry = tables.geometry
            count = tables.table.count_of(plans.row[:, 0])
            for move in self.moves:
                layout = geometry.layout_of[plans.row[:, move.producer]]
                consumer = plans.row[:, move.consumer]
                need = geometry.need_of[int(move.channelwise)][
                    consumer if move.follow is None else move.follow[consumer]
                ]
                total["reshard"] += m * move.cost_s[geometry.pair(count, layout, need)]
        lag = np.zeros(n)
        for c, p, q in self.lag_steps:
            row, collective = plans.row[:, c], plans.collective[:, c]
            lag = np.maximum(lag + p[collective, row], q[collective, row])
        step = total["forward"] + total["backward"] + total["update"] + total["reshard"] + lag
        return CostBatch(
            step_time_s=np.where(legal, step, np.inf),
            forward_s=total["forward"],
            backward_s=total["backward"],
            update_s=total["update"],
            reshard_s=total["reshard"],
            exchange_s=total["exchange"],
            exposed_exchange_s=lag,
            bubble_s=np.zeros(n),
            memory_bytes=total["memory"] + self.tables.workload.context_bytes,
            computing_s=total["forward"] + total["backward"] + total["update"],
        )


def fold(tables: CostTables, column_of_layer: Sequence[int]) -> FoldedTables:
    """Fold the layers of every column into sums and lag steps.

    With as many columns as layers a column's split is the layer's. With fewer, a column's split is that of its layers with
    weights, and channelwise layers follow the layout it leaves: batch b, channels o i, height h.
    """
    layers = len(tables.workload.graph.layers)
    num_columns = max(column_of_layer) + 1
    follow = _follow_rows(tables) if num_columns < layers else None
    follows = np.array([layer.family.limits(layer).channelwise for layer in tables.workload.graph.layers])
    costs = _FollowedCosts(tables, follow, follows)
    columns = tuple(
        _fold_column(costs, [i for i in range(layers) if column_of_layer[i] == c]) for c in range(num_columns)
    )
    return FoldedTables(
        tables=tables,
        columns=columns,
        lag_steps=tuple(_lag_steps(costs, column_of_layer)),
        moves=_fold_moves(tables, column_of_layer, follow),
    )


def _follow_rows(tables: CostTables) -> IntArray:
    """Row of (b, o i, 1, h) for every row (b, o, i, h)."""
    table = tables.table
    if np.all(table.in_channels == 1):
        return np.arange(len(table.workers))
    rows = [
        table.row_of(replace(split, out_channels=split.out_channels * split.in_channels, in_channels=1))
        for split in map(table.split, range(len(table.workers)))
    ]
    return np.array(rows, dtype=np.int64)


class _FollowedCosts:
    """Costs of layers where those that follow have the rows that the layout before them leaves."""

    def __init__(self, tables: CostTables, follow: IntArray | None, follows: BoolArray) -> None:
        self.tables, self.follow, self._follows = tables, follow, follows
        self._moves = follow is not None and not np.array_equal(follow, np.arange(len(follow)))

    def of(self, members: Sequence[int], values: NDArray[_Scalar]) -> NDArray[_Scalar]:
        """Values of some layers, from (kinds, ..., splits) to (layers, ..., splits)."""
        chosen = np.array(members)
        gathered = values[self.tables.stack.kind[chosen]]
        if self._moves:
            assert self.follow is not None
            moved = self._follows[chosen]
            gathered[moved] = gathered[moved][..., self.follow]
        return np.asarray(gathered)


def _fold_column(costs: _FollowedCosts, members: Sequence[int]) -> _Column:
    def total(values: FloatArray) -> FloatArray:
        # One after the other, as `_in_order` does.
        return np.asarray(np.cumsum(costs.of(members, values), axis=0)[-1])

    tables, stack = costs.tables, costs.tables.stack
    inner = total(stack.inner_s)
    if costs.follow is not None:
        inside = set(members)
        edges = [edge for edge in tables.moving_edges() if edge.producer in inside and edge.consumer in inside]
        inner = inner + tables.same_split_moves(edges, costs.follow)
    return _Column(
        forward_s=total(stack.forward_s),
        backward_s=total(stack.backward_s),
        update_s=total(stack.update_s),
        inner_s=inner,
        exchange_s=total(stack.exchange_s),
        memory_bytes=total(stack.memory_bytes),
        legal=np.asarray(costs.of(members, stack.legal).all(axis=0)),
    )


def _lag_steps(costs: _FollowedCosts, column_of_layer: Sequence[int]) -> list[tuple[int, FloatArray, FloatArray]]:
    """Compose the steps of neighbouring layers with the same column: (p1, q1) then (p2, q2) = (p1 + p2, max(q1 + p2, q2))."""
    steps: list[tuple[int, FloatArray, FloatArray]] = []
    stack, everything = costs.tables.stack, range(len(column_of_layer))
    exchange = costs.of(everything, stack.exchange_s)
    overlaps = costs.tables.workload.compute.overlaps_exchange
    rest = exchange - costs.of(everything, stack.backward_s)[:, None] if overlaps else exchange
    for i in reversed(everything):
        p, q = rest[i], exchange[i]
        if steps and steps[-1][0] == column_of_layer[i]:
            _, p_before, q_before = steps[-1]
            steps[-1] = (column_of_layer[i], p_before + p, np.maximum(q_before + p, q))
        else:
            steps.append((column_of_layer[i], p, q))
    return steps


def _fold_moves(tables: CostTables, column_of_layer: Sequence[int], follow: IntArray | None) -> tuple[_Move, ...]:
    """Sum the edges of every ordered pair of columns and kind of need; within a followed column the split decides alone."""
    if follow is None:
        edges = tables.edges
    else:
        moving = tables.moving_edges()
        edges = tables.cost_edges([e for e in moving if column_of_layer[e.producer] != column_of_layer[e.consumer]])
    summed: dict[tuple[int, int, bool], FloatArray] = {}
    for edge in edges:
        key = (column_of_layer[edge.producer], column_of_layer[edge.consumer], edge.channelwise)
        cost = edge.forward_s + edge.backward_s
        summed[key] = summed[key] + cost if key in summed else cost
    return tuple(
        _Move(producer, consumer, channelwise, follow if channelwise else None, cost)
        for (producer, consumer, channelwise), cost in summed.items()
    )
