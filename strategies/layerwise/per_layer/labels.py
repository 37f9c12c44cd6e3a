"""Exact search over partial choices (labels), from the last node to the first.

Notes
-----
A label is a choice for the nodes at and after a cut: its state in the :class:`~strategies.layerwise.per_layer.layers.LayeredGraph`,
its additive cost, its lag and its memory. However the rest is chosen, the final cost is

    additive + rest + max(own, lag + net)

with ``rest``, ``own`` and ``net`` of the rest only. Hence of two labels in one state, one with no larger ``additive``, no
larger ``additive + lag`` and no larger memory is at least as good for every completion, and the other can go.

A label also goes when a Lagrangian bound on all its completions passes ``limit``. What remains is exact for every
choice whose cost is at most ``limit`` and says nothing about dearer ones: a search that finds nothing proves that
nothing costs ``limit`` or less.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.layerwise.per_layer.flat import FlatTables
from strategies.layerwise.per_layer.lagrangian import Multipliers
from strategies.layerwise.per_layer.layers import Layer, LayeredGraph

__all__ = ["CompletionBound", "LabelSet", "OutOfTimeError", "expand", "pareto", "search_labels"]


class OutOfTimeError(Exception):
    """The deadline passed inside a search."""


@dataclass(frozen=True, slots=True)
class LabelSet:
    """Labels of one cut, grouped by state."""

    state: IntArray
    additive_s: FloatArray
    lag_s: FloatArray
    memory: FloatArray
    start: IntArray  # (states + 1,): first label of each state


class CompletionBound:
    """Least Lagrangian cost of completing a label, for one vector of multipliers."""

    def __init__(self, graph: LayeredGraph, tables: FlatTables, multipliers: Multipliers, capacity: float) -> None:
        self.suffix = multipliers.suffix
        self.price = multipliers.price_s_per_byte
        self.fronts = graph.fronts(tables.node_costs(self.suffix, self.price))
        self.offset = -self.price * capacity if self.price else 0.0

    def __call__(
        self, cut: int, state: IntArray, additive: FloatArray, lag: FloatArray, memory: FloatArray
    ) -> FloatArray:
        """Lower bound on every completion of each label of a cut."""
        bound: FloatArray = additive + self.suffix[cut] * lag + (self.fronts[cut][state] + self.offset)
        return bound + self.price * memory if self.price else bound


class _Steps:
    """Decide one node after the other; knows, per state of every cut, which lag and memory can no longer matter."""

    def __init__(self, graph: LayeredGraph, tables: FlatTables, capacity: float) -> None:
        self.graph = graph
        self.capacity = capacity
        self.with_memory = bool(np.isfinite(capacity))
        self.base, self.hide = tables.split(tables.base), tables.split(tables.hide)
        self.exchange, self.memory = tables.split(tables.exchange), tables.split(tables.memory)
        self.hidden = [np.zeros(1)]  # lags up to this end the same, whatever is chosen
        self.least = [np.zeros(1)]  # memory still to come, at least and at most
        self.most = [np.zeros(1)]
        for i, layer in enumerate(graph.layers):
            option, target = layer.option, layer.target
            # A lag within `hide` vanishes here; one that is hidden later is no larger than what hides later.
            later = np.maximum(self.hidden[-1][target] - self.exchange[i][option], 0.0)
            self.hidden.append(layer.best_by_source(self.hide[i][option] + later))
            if self.with_memory:
                memory = self.memory[i][option]
                self.least.append(layer.best_by_source(memory + self.least[-1][target]))
                self.most.append(-layer.best_by_source(-memory - self.most[-1][target]))

    def decide(self, i: int, last: LabelSet) -> tuple[IntArray, FloatArray, FloatArray, FloatArray, FloatArray]:
        """Every label with every option of node i that may fit: state, additive, lag, memory, memory for bounds."""
        layer = self.graph.layers[i]
        label, transition = expand(layer, last.state)
        memory = charged = np.zeros(len(label))
        if self.with_memory:
            memory = last.memory[label] + self.memory[i][layer.option[transition]]
            fits = memory + self.least[i][layer.target[transition]] <= self.capacity
            label, transition, memory = label[fits], transition[fits], memory[fits]
            rest = self.most[i][layer.target[transition]]
            free = memory + rest <= self.capacity
            # Where memory no longer matters, a bound may take it as large as still fits, and dominance as nothing.
            charged = np.where(free, self.capacity - rest, memory)
            memory = np.where(free, 0.0, memory)
        option, state = layer.option[transition], layer.target[transition]
        additive = last.additive_s[label] + (self.base[i][option] + layer.edge_cost_s[transition])
        lag = np.maximum(last.lag_s[label] - self.hide[i][option], 0.0) + self.exchange[i][option]
        return state, additive, np.maximum(lag, self.hidden[i][state]), memory, charged


def expand(layer: Layer, state: IntArray) -> tuple[IntArray, IntArray]:
    """Every label with every transition that leaves its state: (label, transition)."""
    first = layer.source_start[state]
    count = layer.source_start[state + 1] - first
    label = np.repeat(np.arange(len(state)), count)
    within = np.arange(len(label)) - np.repeat(np.cumsum(count) - count, count)
    return label, first[label] + within


def search_labels(
    graph: LayeredGraph,
    tables: FlatTables,
    bounds: Sequence[CompletionBound],
    *,
    limit: float,
    capacity: float,
    max_labels: int,
    beam: int,
    deadline: float,
) -> tuple[list[LabelSet], bool]:
    """All undominated labels of every cut that may lead to a cost of at most ``limit``.

    Parameters
    ----------
    graph : LayeredGraph
    tables : FlatTables
        Of the same problem.
    bounds : sequence of CompletionBound
    limit : float
        Seconds; with the caller's allowance for rounding.
    capacity : float
        Bytes; with the caller's allowance for rounding.
    max_labels : int
        Labels kept in all, 32 bytes each. Past that the search only looks for good choices: it is not complete.
    beam : int
        Labels kept per cut from then on, those with the best bounds.
    deadline : float
        Of ``time.perf_counter``.

    Returns
    -------
    (list of LabelSet, bool)
        ``labels[i]`` for cut i (nodes from i on are decided), and whether the search was complete, so that an empty
        cut 0 proves that no choice costs ``limit`` or less.

    Raises
    ------
    OutOfTimeError
    """
    steps = _Steps(graph, tables, capacity)
    one = np.zeros(1)
    labels = [LabelSet(np.zeros(1, np.int64), one, one, one, np.array([0, 1]))]
    complete, total = True, 0
    for i in reversed(range(len(graph.layers))):
        if time.perf_counter() > deadline:
            raise OutOfTimeError
        state, additive, lag, memory, charged = steps.decide(i, labels[-1])
        lowest = np.full(len(state), -np.inf)
        for bound in bounds:
            np.maximum(lowest, bound(i, state, additive, lag, charged), out=lowest)
        kept = np.flatnonzero(lowest <= limit)
        kept = kept[pareto(state[kept], additive[kept], additive[kept] + lag[kept], memory[kept])]
        total += len(kept)
        if total > max_labels and len(kept) > beam:
            complete = False
            kept = kept[np.argpartition(lowest[kept], beam)[:beam]]
            kept = kept[np.argsort(state[kept], kind="stable")]
        start = np.searchsorted(state[kept], np.arange(graph.layers[i].num_targets + 1))
        labels.append(LabelSet(state[kept], additive[kept], lag[kept], memory[kept], start))
    return labels[::-1], complete


def pareto(group: IntArray, first: FloatArray, second: FloatArray, third: FloatArray) -> IntArray:
    """Positions of the points that no other point of their group equals or beats in all three coordinates.

    Exact when the third coordinate is the same for all; otherwise some beaten points may stay. Sorted by group.

    Parameters
    ----------
    group : array of int, shape (points,)
    first, second, third : arrays, shape (points,)

    Returns
    -------
    array of int

    Examples
    --------
    >>> zero = np.zeros(3)
    >>> pareto(np.array([0, 0, 0]), np.array([1.0, 2.0, 2.0]), np.array([5.0, 5.0, 4.0]), zero).tolist()
    [0, 2]
    """
    if not len(group):
        return np.zeros(0, dtype=np.int64)
    flat = bool((third == third[0]).all())
    order = np.lexsort((second, first, group)) if flat else np.lexsort((third, second, first, group))
    ordered = group[order]
    # Groups count downwards, so that a running minimum never carries over from one group to the next.
    block = (ordered[-1] - ordered) * len(group)
    if flat:
        return order[_improves(block, second[order])]
    for weight in (0.0, 1.0, 0.1, 10.0, np.inf):
        order, block = _drop_beaten(order, block, second, third, weight)
    for back in (1, 2, 3, 5, 8, 13):
        order, block = _drop_behind(order, block, second, third, back)
    return order


def _ranks(values: FloatArray) -> IntArray:
    return np.unique(values, return_inverse=True)[1]


def _improves(block: IntArray, values: FloatArray) -> IntArray:
    """Positions whose value is below all earlier ones of their group."""
    code = block + _ranks(values)
    lowest = np.minimum.accumulate(code)
    return np.flatnonzero(np.concatenate(([True], code[1:] < lowest[:-1])))


def _drop_beaten(
    order: IntArray, block: IntArray, second: FloatArray, third: FloatArray, weight: float
) -> tuple[IntArray, IntArray]:
    """Compare every point with the earlier one of its group that has the least weighted sum."""
    b, c = second[order], third[order]
    spread_b, spread_c = float(np.ptp(b)) or 1.0, float(np.ptp(c)) or 1.0
    mixed = c if np.isinf(weight) else (b - b.min()) / spread_b + weight * ((c - c.min()) / spread_c)
    code = block + _ranks(mixed)
    lowest = np.minimum.accumulate(code)
    # Position of the point that set the running minimum before each point.
    setter = np.maximum.accumulate(np.where(code == lowest, np.arange(len(code)), 0))
    rival = np.concatenate(([0], setter[:-1]))
    beaten = (rival < np.arange(len(code))) & (block[rival] == block) & (b[rival] <= b) & (c[rival] <= c)
    return order[~beaten], block[~beaten]


def _drop_behind(
    order: IntArray, block: IntArray, second: FloatArray, third: FloatArray, back: int
) -> tuple[IntArray, IntArray]:
    """Compare every point with the one ``back`` places earlier."""
    if len(order) <= back:
        return order, block
    b, c = second[order], third[order]
    beaten = np.zeros(len(order), dtype=bool)
    beaten[back:] = (block[:-back] == block[back:]) & (b[:-back] <= b[back:]) & (c[:-back] <= c[back:])
    return order[~beaten], block[~beaten]
