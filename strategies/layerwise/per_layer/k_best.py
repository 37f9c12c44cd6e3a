"""The K best choices with different keys, from the labels of a search.

Notes
-----
The labels of a cut hold, for every state, the best ways to choose the nodes at and after it. A *front* is a choice of the
nodes before the cut; its best completion is a minimum over the labels of its state, so its value is exact, not a bound.
Going from the first node to the last it is therefore enough to keep, at every cut, the fronts of the K best different
keys so far: each of those keys is the beginning of at least one full key of that value.

A front enters the final cost by two numbers: with the lag ``g`` of the nodes after the cut, the cost is
``additive(after) + max(own, through + g)``, where ``own`` is the cost when an exchange of the front is waited for last,
and ``through`` when one after the cut is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import ROUNDING
from strategies.layerwise.per_layer.flat import FlatTables
from strategies.layerwise.per_layer.labels import LabelSet, pareto
from strategies.layerwise.per_layer.layers import Layer, LayeredGraph

__all__ = ["best_choices"]

CHUNK_PAIRS = 4_000_000


@dataclass(slots=True)
class _Fronts:
    """Choices of the nodes before a cut."""

    state: IntArray
    own_s: FloatArray
    through_s: FloatArray
    memory: FloatArray
    key: IntArray  # number of the key so far
    choice: IntArray  # (fronts, nodes decided)

    def take(self, at: IntArray) -> _Fronts:
        return _Fronts(
            self.state[at], self.own_s[at], self.through_s[at], self.memory[at], self.key[at], self.choice[at]
        )


def best_choices(
    graph: LayeredGraph,
    tables: FlatTables,
    labels: Sequence[LabelSet],
    key_class: Sequence[IntArray],
    *,
    num_solutions: int,
    limit: float,
    capacity: float,
) -> list[IntArray]:
    """Up to K choices with different keys and the least costs, best first, among those of cost at most ``limit``.

    Parameters
    ----------
    graph : LayeredGraph
    tables : FlatTables
    labels : sequence of LabelSet
        Complete for ``limit``, by cut.
    key_class : sequence of arrays, node -> (options,)
    num_solutions : int
        K.
    limit, capacity : float
        As in the label search.

    Returns
    -------
    list of int arrays
        One option per node each.
    """
    zero = np.zeros(1)
    fronts = _Fronts(np.zeros(1, np.int64), zero, zero, zero, np.zeros(1, np.int64), np.zeros((1, 0), dtype=np.int64))
    if not len(labels[0].state):
        return []
    for i, layer in enumerate(graph.layers):
        fronts, value = _extend(fronts, i, layer, tables, labels[i + 1], key_class[i], limit, capacity)
        if not len(value):
            return []
        fronts, value = _select(fronts, value, num_solutions)
    order = np.lexsort((value, fronts.key))
    firsts = order[np.flatnonzero(np.concatenate(([True], np.diff(fronts.key[order]) != 0)))]
    return [fronts.choice[k].copy() for k in firsts[np.argsort(value[firsts], kind="stable")]]


class _Reverse:
    """Transitions by target: a front at a cut goes on to the sources."""

    def __init__(self, layer: Layer) -> None:
        self.start = np.append(layer.target_start, len(layer.target))
        self.order = layer.by_target


def _extend(
    fronts: _Fronts,
    i: int,
    layer: Layer,
    tables: FlatTables,
    after: LabelSet,
    key_class: IntArray,
    limit: float,
    capacity: float,
) -> tuple[_Fronts, FloatArray]:
    """Add node i in every way; the exact value of each front, those past the limit left out."""
    reverse = _Reverse(layer)
    first = reverse.start[fronts.state]
    count = reverse.start[fronts.state + 1] - first
    front = np.repeat(np.arange(len(count)), count)
    transition = reverse.order[first[front] + np.arange(len(front)) - np.repeat(np.cumsum(count) - count, count)]
    option = layer.option[transition]
    at = tables.offset[i] + option
    cost = tables.base[at] + layer.edge_cost_s[transition]
    exchange, hide = tables.exchange[at], tables.hide[at]
    through = fronts.through_s[front] + cost
    _, key = np.unique(fronts.key[front] * (int(key_class.max()) + 1) + key_class[option], return_inverse=True)
    grown = _Fronts(
        layer.source[transition],
        np.maximum(fronts.own_s[front] + cost, through + exchange),
        through + exchange - hide,
        fronts.memory[front] + tables.memory[at],
        key,
        np.concatenate([fronts.choice[front], option[:, None]], axis=1),
    )
    value = _values(grown, after, capacity)
    kept = np.flatnonzero(value <= limit)
    return grown.take(kept), value[kept]


def _values(fronts: _Fronts, after: LabelSet, capacity: float) -> FloatArray:
    """Least cost of completing each front: the minimum over the labels of its state."""
    count = after.start[fronts.state + 1] - after.start[fronts.state]
    value = np.full(len(count), np.inf)
    filled = np.flatnonzero(count)
    ends = np.cumsum(count[filled])
    begin = 0
    while begin < len(filled):
        # As many fronts at a time as give a few million pairs.
        base = int(ends[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, base + CHUNK_PAIRS)))
        some = filled[begin:end]
        n = count[some]
        front = np.repeat(some, n)
        first = np.cumsum(n) - n
        label = np.repeat(after.start[fronts.state[some]] - first, n) + np.arange(len(front))
        pair = after.additive_s[label] + np.maximum(fronts.own_s[front], fronts.through_s[front] + after.lag_s[label])
        if np.isfinite(capacity):
            pair = np.where(after.memory[label] + fronts.memory[front] <= capacity, pair, np.inf)
        value[some] = np.minimum.reduceat(pair, first)
        begin = end
    return value


def _select(fronts: _Fronts, value: FloatArray, num_solutions: int) -> tuple[_Fronts, FloatArray]:
    """Keep the fronts of the K best keys, without those that another front of their key and state beats."""
    best = np.full(int(fronts.key.max()) + 1, np.inf)
    np.minimum.at(best, fronts.key, value)
    order = np.argsort(best, kind="stable")[:num_solutions]
    order = order[np.isfinite(best[order])]
    place = np.full(len(best), -1)
    place[order] = np.arange(len(order))
    # Fewer keys than K so far may still split, and then their dearer fronts count too.
    worst = best[order[-1]] if len(order) == num_solutions else np.inf
    # Rounding differs between cuts by far less than this.
    kept = np.flatnonzero((place[fronts.key] >= 0) & (value <= worst * (1.0 + ROUNDING)))
    group = place[fronts.key[kept]] * (int(fronts.state.max()) + 1) + fronts.state[kept]
    kept = kept[pareto(group, fronts.own_s[kept], fronts.through_s[kept], fronts.memory[kept])]
    fronts = fronts.take(kept)
    fronts.key = place[fronts.key]
    return fronts, value[kept]
