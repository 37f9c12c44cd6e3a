"""The per-layer choice as plain arrays: what a solver receives and returns.

A solver never sees a network or a cluster, only this problem; the cost model builds it and evaluates the answer.

Notes
-----
Nodes are numbered in topological order. Choosing option ``o[i]`` for every node costs

    T(o) = sum_i base_s[i][o[i]] + sum_e edge_cost_s[e][class(o[u]), class(o[v])] + lag(o)

where ``lag`` is the gradient exchange that outlives the backward pass. The backward pass visits the nodes in reverse
order; one serial channel carries the exchanges, and only backward *compute* hides them, because resharding uses the same
links:

    lag = 0;  for i = n-1 ... 0:  lag = max(lag - hide_s[i][o[i]], 0) + exchange_s[i][o[i]]

With ``hide_s = 0`` everywhere nothing overlaps and the lag is the plain sum of the exchanges.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from costmodel.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Cost of moving a tensor between two nodes, for every pair of option classes.

    Options of one node that behave alike on an edge share a class, so the table stays small (a producer's options differ
    for its consumer only in the layout of the output).
    """

    producer: int
    consumer: int
    producer_class: IntArray  # (options of producer,) -> row of cost_s
    consumer_class: IntArray  # (options of consumer,) -> column of cost_s
    cost_s: FloatArray  # (rows, columns), seconds, finite, >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceProblem:
    """Choose one option per node at least cost within a memory capacity.

    Every array is float64, finite and >= 0; every node has at least one option.
    """

    base_s: tuple[FloatArray, ...]  # node -> (options,): forward, backward and update time
    hide_s: tuple[FloatArray, ...]  # node -> (options,): backward compute that hides exchanges of later nodes
    exchange_s: tuple[FloatArray, ...]  # node -> (options,): exchange of the node's own gradient
    memory_bytes: tuple[FloatArray, ...]  # node -> (options,)
    edges: tuple[Edge, ...] = ()
    memory_capacity_bytes: float = float("inf")
    key_class: tuple[IntArray, ...] = ()  # node -> (options,): equal classes are the same plan to the user; () = no key

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.base_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a search may stop."""

    wall_s: float = float("inf")
    gap: float = 0.0  # stop when (best - bound) / best <= gap
    cutoff_s: float = float("inf")  # solutions above this cost are of no interest
    num_solutions: int = 1  # the K best with different keys
    most_nodes: int | None = None  # of the tree of the integer program; None: any number


class Status(enum.Enum):
    """What a search proved."""

    OPTIMAL = "optimal"  # the solutions are the best ones, within `gap`
    FEASIBLE = "feasible"  # stopped by a limit; `bound_s` says how good it can get
    INFEASIBLE = "infeasible"  # nothing fits the memory
    CUT_OFF = "cut_off"  # proved: nothing is at or below `cutoff_s`
    LIMIT = "limit"  # stopped by a limit without a solution


ChoiceT = TypeVar("ChoiceT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution(Generic[ChoiceT]):
    """Choices, best first, with the bound that travels with them."""

    status: Status
    choices: tuple[ChoiceT, ...]  # best first, all different; options (nodes,), or a pipeline
    objectives_s: tuple[float, ...]  # same order
    bound_s: float  # no choice within memory costs less (inf if there is none); valid whatever the status
    rest_bound_s: float  # every choice whose key is not among those of `choices` costs at least this much
    method: str = ""

    @property
    def objective_s(self) -> float:
        """Seconds of the best choice, infinite if there is none."""
        return self.objectives_s[0] if self.objectives_s else float("inf")


def objective_s(problem: ChoiceProblem, choice: IntArray) -> float:
    """Cost of one choice, by the definition above, in seconds.

    Parameters
    ----------
    problem : ChoiceProblem
    choice : array of int, shape (nodes,)

    Returns
    -------
    float
        Seconds.

    Examples
    --------
    Two layers, the gradient of the second (30) hidden by the backward pass of the first (20): 10 + 10 stay exposed.

    >>> zero = np.zeros(1)
    >>> p = ChoiceProblem(base_s=(np.array([40.0]), np.array([50.0])), hide_s=(np.array([20.0]), zero),
    ...                   exchange_s=(np.array([10.0]), np.array([30.0])), memory_bytes=(zero, zero))
    >>> objective_s(p, np.array([0, 0]))
    110.0
    """
    total = sum(float(base[o]) for base, o in zip(problem.base_s, choice, strict=True))
    for edge in problem.edges:
        row = edge.producer_class[choice[edge.producer]]
        column = edge.consumer_class[choice[edge.consumer]]
        total += float(edge.cost_s[row, column])
    lag = 0.0
    for i in reversed(range(problem.num_nodes)):
        lag = max(lag - float(problem.hide_s[i][choice[i]]), 0.0) + float(problem.exchange_s[i][choice[i]])
    return total + lag


def memory_bytes(problem: ChoiceProblem, choice: IntArray) -> float:
    """Memory of one choice in bytes: the sum over the nodes."""
    return sum(float(m[o]) for m, o in zip(problem.memory_bytes, choice, strict=True))


@lru_cache(maxsize=16)
def structure_of(num_nodes: int, pairs: tuple[tuple[int, int], ...]) -> Structure:
    """Structure of a graph, kept for the next problem with the same one."""
    return Structure(num_nodes, pairs)


@dataclass(frozen=True, slots=True)
class Step:
    """Elimination of one node: who its neighbours are by then, and which tables mention it."""

    node: int
    scope: tuple[int, ...]  # neighbours when it is eliminated, ascending
    edges: tuple[int, ...]  # edges whose first end to be eliminated is this node
    messages: tuple[int, ...]  # earlier steps whose table over >= 2 nodes is used up here


class Structure:
    """Order of elimination of a graph: the one that adds the fewest fill-in pairs next (min-fill).

    Parameters
    ----------
    num_nodes : int
    pairs : iterable of (int, int)
        Edges; parallel ones are allowed.

    Examples
    --------
    A chain of three nodes is eliminated from its ends; no table spans more than one node.

    >>> [(s.node, s.scope) for s in Structure(3, [(0, 1), (1, 2)]).steps]
    [(0, (1,)), (1, (2,)), (2, ())]
    """

    def __init__(self, num_nodes: int, pairs: Iterable[tuple[int, int]]) -> None:
        self.num_nodes = num_nodes
        self.pairs = tuple(pairs)
        self.steps = self._plan()

    @property
    def width(self) -> int:
        """Largest number of nodes that a table spans."""
        return max((len(step.scope) for step in self.steps), default=0)

    def _plan(self) -> tuple[Step, ...]:
        neighbours: list[set[int]] = [set() for _ in range(self.num_nodes)]
        for u, v in self.pairs:
            neighbours[u].add(v)
            neighbours[v].add(u)
        fill = [_fill_in(neighbours, v) for v in range(self.num_nodes)]
        left = set(range(self.num_nodes))
        free_edges = [set[int]() for _ in range(self.num_nodes)]
        for e, (u, v) in enumerate(self.pairs):
            free_edges[u].add(e)
            free_edges[v].add(e)
        waiting: dict[int, tuple[int, ...]] = {}
        steps: list[Step] = []
        while left:
            v = min(left, key=lambda w: (fill[w], len(neighbours[w]), w))
            scope = tuple(sorted(neighbours[v]))
            used = tuple(s for s, nodes in waiting.items() if v in nodes)
            for s in used:
                del waiting[s]
            if len(scope) > 1:
                waiting[len(steps)] = scope
            steps.append(Step(v, scope, tuple(sorted(free_edges[v])), used))
            for e in free_edges[v]:
                for end in self.pairs[e]:
                    if end != v:
                        free_edges[end].discard(e)
            left.discard(v)
            _remove(neighbours, v)
            for w in {v2 for u in scope for v2 in (u, *neighbours[u])}:
                fill[w] = _fill_in(neighbours, w)
        return tuple(steps)


def _fill_in(neighbours: Sequence[set[int]], v: int) -> int:
    around = sorted(neighbours[v])
    return sum(b not in neighbours[a] for i, a in enumerate(around) for b in around[i + 1 :])


def _remove(neighbours: list[set[int]], v: int) -> None:
    for a in neighbours[v]:
        neighbours[a] |= neighbours[v]
        neighbours[a] -= {a, v}
    neighbours[v] = set()


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One choice, taken apart for the Lagrangian."""

    additive_s: float  # base and edges
    path_s: FloatArray  # (nodes,): lag if the exchange of this node were the one to wait for
    memory: float  # bytes

    @property
    def objective_s(self) -> float:
        """Cost of the choice; equals the cost model's up to rounding."""
        return self.additive_s + float(self.path_s.max())


class FlatTables:
    """Node tables end to end, with the cost of a choice and of all options under multipliers.

    The lag of :mod:`strategies.layerwise.per_layer.problem` unrolls to a maximum over the node ``j`` whose exchange is waited for:

        lag = max_j path_j,   path_j = exchange_j + sum_{i < j} (exchange_i - hide_i)
    """

    def __init__(self, problem: ChoiceProblem) -> None:
        sizes = np.array([len(b) for b in problem.base_s])
        self.offset: IntArray = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        self.node: IntArray = np.repeat(np.arange(problem.num_nodes), sizes)
        self.base = np.concatenate(problem.base_s)
        self.hide = np.concatenate(problem.hide_s)
        self.exchange = np.concatenate(problem.exchange_s)
        self.memory = np.concatenate(problem.memory_bytes)
        self._slices = [slice(int(a), int(b)) for a, b in zip(self.offset[:-1], self.offset[1:], strict=True)]
        self._edges = problem.edges
        if problem.edges:
            self._producer = np.array([e.producer for e in problem.edges])
            self._consumer = np.array([e.consumer for e in problem.edges])
            self._producer_class = np.concatenate([e.producer_class * e.cost_s.shape[1] for e in problem.edges])
            self._consumer_class = np.concatenate([e.consumer_class for e in problem.edges])
            self._producer_offset = _starts([len(e.producer_class) for e in problem.edges])
            self._consumer_offset = _starts([len(e.consumer_class) for e in problem.edges])
            self._cost = np.concatenate([e.cost_s.ravel() for e in problem.edges])
            self._cost_offset = _starts([e.cost_s.size for e in problem.edges])

    def split(self, values: FloatArray) -> list[FloatArray]:
        """Views of one array per node."""
        return [values[s] for s in self._slices]

    def node_costs(self, weight: FloatArray, price: float) -> list[FloatArray]:
        """Cost of every option when ``weight[i]`` is the share of the lag that node i's exchange is in.

        Parameters
        ----------
        weight : array, shape (nodes + 1,)
            Suffix sums of the multipliers of the paths; the last is 0.
        price : float
            Seconds per byte.
        """
        flat = self.base + weight[self.node] * self.exchange - weight[self.node + 1] * self.hide
        if price:
            flat = flat + price * self.memory
        return self.split(flat)

    def evaluate(self, choice: IntArray) -> Evaluation:
        """Cost of one choice in parts."""
        at = self.offset[:-1] + choice
        additive = float(self.base[at].sum())
        if self._edges:
            row = self._producer_class[self._producer_offset + choice[self._producer]]
            column = self._consumer_class[self._consumer_offset + choice[self._consumer]]
            additive += float(self._cost[self._cost_offset + row + column].sum())
        exchange = self.exchange[at]
        net = np.cumsum(exchange - self.hide[at])
        path = exchange.copy()
        path[1:] += net[:-1]
        return Evaluation(additive, path, float(self.memory[at].sum()))


def _starts(sizes: Sequence[int]) -> IntArray:
    return np.concatenate(([0], np.cumsum(sizes)[:-1])).astype(np.int64)


def restrict(problem: ChoiceProblem, keep: Sequence[IntArray]) -> ChoiceProblem:
    """The same problem with only some options of every node, classes renumbered to those in use.

    Parameters
    ----------
    problem : ChoiceProblem
    keep : sequence of int arrays, node -> options to keep
        At least one each.

    Returns
    -------
    ChoiceProblem
        Option k of node i is option ``keep[i][k]`` of the given problem.
    """
    edges = []
    for e in problem.edges:
        rows, producer_class = _compress(e.producer_class[keep[e.producer]])
        columns, consumer_class = _compress(e.consumer_class[keep[e.consumer]])
        edges.append(
            Edge(
                producer=e.producer,
                consumer=e.consumer,
                producer_class=producer_class,
                consumer_class=consumer_class,
                cost_s=e.cost_s[rows[:, None], columns],
            )
        )
    return ChoiceProblem(
        base_s=tuple(t[k] for t, k in zip(problem.base_s, keep, strict=True)),
        hide_s=tuple(t[k] for t, k in zip(problem.hide_s, keep, strict=True)),
        exchange_s=tuple(t[k] for t, k in zip(problem.exchange_s, keep, strict=True)),
        memory_bytes=tuple(t[k] for t, k in zip(problem.memory_bytes, keep, strict=True)),
        edges=tuple(edges),
        memory_capacity_bytes=problem.memory_capacity_bytes,
        key_class=tuple(t[k] for t, k in zip(problem.key_class, keep, strict=True)) if problem.key_class else (),
    )


def _compress(classes: IntArray) -> tuple[IntArray, IntArray]:
    if len(classes) == 1:
        return classes, np.zeros(1, dtype=np.int64)
    return np.unique(classes, return_inverse=True)
