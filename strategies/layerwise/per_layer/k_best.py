"""Exact search over partial choices (labels) in a layered graph, and the K best choices with different keys from its labels.

The layered graph
-----------------
The remaining choices are one layer per node, in reverse topological order. The lag is a recursion over the nodes from the last to the
first, so an exact search has to decide them in that order. A *state* between two nodes says all that the undecided nodes need to know
of the decided ones: the classes of those options that share an edge with an undecided node. A node with several consumers is
*announced* when the first of them is decided: the state then carries its class, and every consumer pays its edge at once, so that the
branches of a module do not multiply. A *transition* is a state, an option of the node (with announcements) and the state that follows.

After fixing options the graph is small, and so are its sums: a shortest path is a few array operations per layer.

Labels
------
A label is a choice for the nodes at and after a cut: its state in the `LayeredGraph`,
its additive cost, its lag and its memory. However the rest is chosen, the final cost is

    additive + rest + max(own, lag + net)

with ``rest``, ``own`` and ``net`` of the rest only. Hence of two labels in one state, one with no larger ``additive``, no
larger ``additive + lag`` and no larger memory is at least as good for every completion, and the other can go.

A label also goes when a Lagrangian bound on all its completions passes ``limit``. What remains is exact for every
choice whose cost is at most ``limit`` and says nothing about more expensive ones: a search that finds nothing proves that
nothing costs ``limit`` or less.

The K best
----------
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

from costmodel.arrays import FloatArray, IntArray, StructOfArrays, ranges
from costmodel.tolerances import ROUNDING
from strategies.layerwise.dominance import undominated
from strategies.layerwise.per_layer.elimination import Partition, TooWideError
from strategies.layerwise.per_layer.lagrangian import Multipliers
from strategies.layerwise.per_layer.problem import ChoiceProblem, Edge, FlatTables
from strategies.limits import UNLIMITED, Clock

MAX_TRANSITIONS = 1_500_000


@dataclass(slots=True)
class Layer:
    """Transitions of one node, sorted by source: from states before the node is decided to states after."""

    source: IntArray
    target: IntArray
    option: IntArray
    edge_cost_s: FloatArray
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
        return cls(source, target, option, edge_cost_s, num_targets, source_start, by_target, target_start)

    def best_by_source(self, values: FloatArray) -> FloatArray:
        """Minimum over the transitions that leave each source."""
        return np.minimum.reduceat(values, self.source_start[:-1])


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
        source, place = ranges(first, count)
        return source, order[place]

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
    return ranges(first, layer.source_start[state + 1] - first)


def search_labels(
    graph: LayeredGraph,
    tables: FlatTables,
    bound: CompletionBound,
    *,
    limit: float,
    capacity: float,
    max_labels: int,
    beam: int,
    clock: Clock,
) -> tuple[list[LabelSet], bool]:
    """All undominated labels of every cut that may lead to a cost of at most ``limit``.

    Parameters
    ----------
    graph : LayeredGraph
    tables : FlatTables
        Of the same problem.
    bound : CompletionBound
    limit : float
        Seconds; with the caller's allowance for rounding.
    capacity : float
        Bytes; with the caller's allowance for rounding.
    max_labels : int
        Labels kept in all, 32 bytes each. Past that the search only looks for good choices: it is not complete.
    beam : int
        Labels kept per cut from then on, those with the best bounds.
    clock : Clock

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
        clock.check()
        state, additive, lag, memory, charged = steps.decide(i, labels[-1])
        lowest = bound(i, state, additive, lag, charged)
        kept = np.flatnonzero(lowest <= limit)
        kept = kept[pareto(state[kept], additive[kept], additive[kept] + lag[kept], memory[kept], clock)]
        total += len(kept)
        if total > max_labels and len(kept) > beam:
            complete = False
            kept = kept[np.argpartition(lowest[kept], beam)[:beam]]
            kept = kept[np.argsort(state[kept], kind="stable")]
        start = np.searchsorted(state[kept], np.arange(graph.layers[i].num_targets + 1))
        labels.append(LabelSet(state[kept], additive[kept], lag[kept], memory[kept], start))
    return labels[::-1], complete


def pareto(
    group: IntArray, first: FloatArray, second: FloatArray, third: FloatArray, clock: Clock = UNLIMITED
) -> IntArray:
    """Positions of the points that no other point of their group equals or beats in all three coordinates; sorted by group.

    Parameters
    ----------
    group : array of int, shape (points,)
    first, second, third : arrays, shape (points,)
    clock : Clock
        Past its limit some beaten points may stay.

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
    if not (third == third[0]).all():
        return undominated(group, np.stack((first, second, third), axis=1), clock=clock)
    order = np.lexsort((second, first, group))
    # Groups count downwards, so that a running minimum never carries over from one group to the next.
    code = (group[order[-1]] - group[order]) * len(group) + np.unique(second[order], return_inverse=True)[1]
    lowest = np.minimum.accumulate(code)
    return order[np.flatnonzero(np.concatenate(([True], code[1:] < lowest[:-1])))]


CHUNK_PAIRS = 4_000_000


@dataclass(slots=True)
class _Fronts(StructOfArrays):
    """Choices of the nodes before a cut."""

    state: IntArray
    own_s: FloatArray
    through_s: FloatArray
    memory: FloatArray
    key: IntArray  # number of the key so far
    choice: IntArray  # (fronts, nodes decided)


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
    # A front at a cut goes on to the sources of the transitions that enter its state.
    start = np.append(layer.target_start, len(layer.target))
    first = start[fronts.state]
    front, place = ranges(first, start[fronts.state + 1] - first)
    transition = layer.by_target[place]
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
    # Fewer keys than K so far may still split, and then their more expensive fronts count too.
    worst = best[order[-1]] if len(order) == num_solutions else np.inf
    # Rounding differs between cuts by far less than this.
    kept = np.flatnonzero((place[fronts.key] >= 0) & (value <= worst * (1.0 + ROUNDING)))
    group = place[fronts.key[kept]] * (int(fronts.state.max()) + 1) + fronts.state[kept]
    kept = kept[pareto(group, fronts.own_s[kept], fronts.through_s[kept], fronts.memory[kept])]
    fronts = fronts.take(kept)
    fronts.key = place[fronts.key]
    return fronts, value[kept]
