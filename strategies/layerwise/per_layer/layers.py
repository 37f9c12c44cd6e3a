"""The remaining choices as a layered graph: one layer per node, in reverse topological order.

Notes
-----
The lag is a recursion over the nodes from the last to the first, so an exact search has to decide them in that order. A
*state* between two nodes says all that the undecided nodes need to know of the decided ones: the classes of those options
that share an edge with an undecided node. A node with several consumers is *announced* when the first of them is decided:
the state then carries its class, and every consumer pays its edge at once, so that the branches of a module do not
multiply. A *transition* is a state, an option of the node (with announcements) and the state that follows.

After fixing options the graph is small, and so are its sums: a shortest path is a few array operations per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from strategies.layerwise.per_layer.elimination import Partition, TooWideError
from strategies.layerwise.per_layer.problem import ChoiceProblem, Edge

__all__ = ["Layer", "LayeredGraph"]

MAX_TRANSITIONS = 1_500_000


@dataclass(slots=True)
class Layer:
    """Transitions of one node, sorted by source: from states before the node is decided to states after."""

    source: IntArray
    target: IntArray
    option: IntArray
    edge_cost_s: FloatArray
    num_sources: int
    num_targets: int
    # Derived: first transition of each source, and the order by target with the first of each.
    source_start: IntArray
    by_target: IntArray
    target_start: IntArray

    @classmethod
    def make(cls, source: IntArray, target: IntArray, option: IntArray, edge_cost_s: FloatArray) -> Layer:
        """Sort and index transitions; sources and targets must all occur and be numbered from 0."""
        order = np.argsort(source, kind="stable")
        source, target, option, edge_cost_s = source[order], target[order], option[order], edge_cost_s[order]
        by_target = np.argsort(target, kind="stable")
        num_sources, num_targets = int(source[-1]) + 1, int(target[by_target[-1]]) + 1
        source_start = np.searchsorted(source, np.arange(num_sources + 1))
        target_start = np.searchsorted(target[by_target], np.arange(num_targets))
        return cls(source, target, option, edge_cost_s, num_sources, num_targets, source_start, by_target, target_start)

    def best_by_source(self, values: FloatArray) -> FloatArray:
        """Minimum over the transitions that leave each source."""
        return np.minimum.reduceat(values, self.source_start[:-1])

    def best_by_target(self, values: FloatArray) -> FloatArray:
        """Minimum over the transitions that enter each target."""
        return np.minimum.reduceat(values[self.by_target], self.target_start)


@dataclass(slots=True)
class _Column:
    """What a state says about one node."""

    node: int
    part: Partition
    edges: dict[int, IntArray]  # edge -> class on that edge of each class of ``part``


class LayeredGraph:
    """Layers of one problem; ``layers[i]`` decides node i, from the states of cut i + 1 to those of cut i.

    Parameters
    ----------
    problem : ChoiceProblem

    Raises
    ------
    TooWideError
        When a layer would have more than 1.5 million transitions.
    """

    def __init__(self, problem: ChoiceProblem) -> None:
        self.layers: list[Layer] = _Builder(problem).build()

    @property
    def num_transitions(self) -> int:
        """Transitions of all layers."""
        return sum(len(layer.source) for layer in self.layers)

    def fronts(self, node_cost: Sequence[FloatArray]) -> list[FloatArray]:
        """Least cost of the nodes before each cut, per state of the cut: ``fronts[i]`` completes cut i.

        Parameters
        ----------
        node_cost : sequence of arrays, node -> (options,)
        """
        out = [np.zeros(1)]
        for layer, cost in zip(self.layers, node_cost, strict=True):
            out.append(layer.best_by_source(cost[layer.option] + layer.edge_cost_s + out[-1][layer.target]))
        return out

    def minimise(self, node_cost: Sequence[FloatArray]) -> tuple[float, IntArray]:
        """Least total cost and a choice that has it."""
        fronts = self.fronts(node_cost)
        choice = np.zeros(len(self.layers), dtype=np.int64)
        state = 0
        for i in reversed(range(len(self.layers))):
            layer = self.layers[i]
            out = slice(int(layer.source_start[state]), int(layer.source_start[state + 1]))
            option, target = layer.option[out], layer.target[out]
            best = int((node_cost[i][option] + layer.edge_cost_s[out] + fronts[i][target]).argmin())
            choice[i], state = option[best], int(target[best])
        return float(fronts[-1][0]), choice

    def prune(self, node_cost: Sequence[FloatArray], limit: float) -> bool:
        """Drop transitions that lie on no path of cost at most ``limit``; False when none is left."""
        fronts = self.fronts(node_cost)
        back = np.zeros(1)
        reached = np.ones(1, dtype=bool)
        kept: list[BoolArray] = [reached] * len(self.layers)
        for i in reversed(range(len(self.layers))):
            layer = self.layers[i]
            along = back[layer.source] + node_cost[i][layer.option] + layer.edge_cost_s
            # Reachability is tracked separately, so that rounding at the limit cannot leave a state without a way in or out.
            kept[i] = (along + fronts[i][layer.target] <= limit) & reached[layer.source]
            reached = _mark(layer.target[kept[i]], layer.num_targets)
            back = layer.best_by_target(along)
        useful = reached
        for i, layer in enumerate(self.layers):
            kept[i] = kept[i] & useful[layer.target]
            useful = _mark(layer.source[kept[i]], layer.num_sources)
        if not useful.all():
            return False
        self._compress(kept)
        return True

    def _compress(self, kept: list[BoolArray]) -> None:
        before = np.zeros(1, dtype=np.int64)  # new numbers of the targets of the layer: cut 0 has one state
        for i, (layer, keep) in enumerate(zip(self.layers, kept, strict=True)):
            used = _mark(layer.source[keep], layer.num_sources)
            after = np.cumsum(used) - 1
            if not keep.all() or len(before) != before[-1] + 1:
                self.layers[i] = Layer.make(
                    after[layer.source[keep]],
                    before[layer.target[keep]],
                    layer.option[keep],
                    layer.edge_cost_s[keep],
                )
            before = after


def _mark(numbers: IntArray, count: int) -> BoolArray:
    mask = np.zeros(count, dtype=bool)
    mask[numbers] = True
    return mask


class _Builder:
    def __init__(self, problem: ChoiceProblem) -> None:
        self.problem = problem
        self.sizes = [len(b) for b in problem.base_s]
        nodes = problem.num_nodes
        self.outgoing: list[list[int]] = [[] for _ in range(nodes)]
        self.incoming: list[list[int]] = [[] for _ in range(nodes)]
        for e, edge in enumerate(problem.edges):
            self.outgoing[edge.producer].append(e)
            self.incoming[edge.consumer].append(e)
        self.announced = [len({problem.edges[e].consumer for e in out}) > 1 for out in self.outgoing]

    def _column(self, node: int, edges: Sequence[int], *, as_producer: bool) -> _Column:
        """Joint classes of a node's options on some of its edges."""
        classes = [self._classes(self.problem.edges[e], as_producer=as_producer) for e in edges]
        part = Partition.joint(classes, self.sizes[node])
        by_edge = {e: c.classes[part.representative] for e, c in zip(edges, classes, strict=True)}
        return _Column(node, part, by_edge)

    @staticmethod
    def _classes(edge: Edge, *, as_producer: bool) -> Partition:
        if as_producer:
            return Partition(edge.producer_class, edge.cost_s.shape[0])
        return Partition(edge.consumer_class, edge.cost_s.shape[1])

    def build(self) -> list[Layer]:
        """Layers from the last node to the first, returned by node."""
        layers: list[Layer] = []
        columns: list[_Column] = []
        states: IntArray = np.zeros((1, 0), dtype=np.int64)
        for i in reversed(range(self.problem.num_nodes)):
            layer, columns, states = self._decide(i, columns, states)
            layers.append(layer)
        return layers[::-1]

    def _decide(self, i: int, columns: list[_Column], states: IntArray) -> tuple[Layer, list[_Column], IntArray]:
        source, option = self._options(i, columns, states)
        cost = np.zeros(len(source))
        edges = self.problem.edges
        if not self.announced[i]:
            for e in self.outgoing[i]:
                at, column = next((k, c) for k, c in enumerate(columns) if c.node == edges[e].consumer)
                classes = column.edges[e][states[source, at]]
                cost += edges[e].cost_s[edges[e].producer_class[option], classes]
        news: list[tuple[_Column, IntArray]] = []
        for producer in sorted({edges[e].producer for e in self.incoming[i] if self.announced[edges[e].producer]}):
            at = next((k for k, c in enumerate(columns) if c.node == producer), -1)
            if at >= 0:
                column, value = columns[at], states[source, at]
            else:
                column = self._column(producer, self.outgoing[producer], as_producer=True)
                count = column.part.count
                _check(len(source) * count)
                value = np.tile(np.arange(count), len(source))
                source, option, cost = np.repeat(source, count), np.repeat(option, count), np.repeat(cost, count)
                news = [(c, np.repeat(v, count)) for c, v in news]
                news.append((column, value))
            for e in self.incoming[i]:
                if edges[e].producer == producer:
                    cost = cost + edges[e].cost_s[column.edges[e][value], edges[e].consumer_class[option]]
        return self._target(i, columns, states, source, option, cost, news)

    def _options(self, i: int, columns: list[_Column], states: IntArray) -> tuple[IntArray, IntArray]:
        """Every state with every option that it allows."""
        at = next((k for k, c in enumerate(columns) if c.node == i), -1)
        if at < 0:
            _check(len(states) * self.sizes[i])
            return np.repeat(np.arange(len(states)), self.sizes[i]), np.tile(np.arange(self.sizes[i]), len(states))
        part = columns[at].part
        order = np.argsort(part.classes, kind="stable")
        start = np.searchsorted(part.classes[order], np.arange(part.count + 1))
        first, count = start[states[:, at]], np.diff(start)[states[:, at]]
        _check(int(count.sum()))
        source = np.repeat(np.arange(len(states)), count)
        within = np.arange(len(source)) - np.repeat(np.cumsum(count) - count, count)
        return source, order[first[source] + within]

    def _target(
        self,
        i: int,
        columns: list[_Column],
        states: IntArray,
        source: IntArray,
        option: IntArray,
        cost: FloatArray,
        news: list[tuple[_Column, IntArray]],
    ) -> tuple[Layer, list[_Column], IntArray]:
        """Columns still needed after node i, and the states they take."""
        edges = self.problem.edges
        kept: list[_Column] = []
        values: list[IntArray] = []
        for k, column in enumerate(columns):
            # A decided node is needed while a producer that was not announced is undecided; an announced one until
            # it is decided.
            waits = any(
                edges[e].producer < i and not self.announced[edges[e].producer] for e in self.incoming[column.node]
            )
            if column.node < i or (column.node > i and waits):
                kept.append(column)
                values.append(states[source, k])
        own = [e for e in self.incoming[i] if not self.announced[edges[e].producer]]
        if own:
            column = self._column(i, own, as_producer=False)
            kept.append(column)
            values.append(column.part.classes[option])
        for column, value in news:
            kept.append(column)
            values.append(value)
        code = np.zeros(len(source), dtype=np.int64)
        for column, value in zip(kept, values, strict=True):
            code = code * column.part.count + value
        assert np.prod([float(c.part.count) for c in kept]) < 2.0**62, "states are numbered in 64 bits"
        _, first, target = np.unique(code, return_index=True, return_inverse=True)
        after = np.stack([v[first] for v in values], axis=1) if values else np.zeros((1, 0), dtype=np.int64)
        return Layer.make(source, target, option, cost), kept, after


def _check(transitions: int) -> None:
    if transitions > MAX_TRANSITIONS:
        raise TooWideError(f"a layer of the search would need {transitions} transitions")
