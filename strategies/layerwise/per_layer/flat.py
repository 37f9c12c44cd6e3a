"""All tables of a problem end to end in single arrays, so that one operation touches every node at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.layerwise.per_layer.problem import ChoiceProblem, Edge

__all__ = ["Evaluation", "FlatTables", "restrict"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One choice, taken apart for the Lagrangian."""

    additive_s: float  # base and edges
    path_s: FloatArray  # (nodes,): lag if the exchange of this node were the one to wait for
    memory: float  # bytes

    @property
    def objective_s(self) -> float:
        """Cost of the choice; equals the judge's up to rounding."""
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
        node_names=problem.node_names,
    )


def _compress(classes: IntArray) -> tuple[IntArray, IntArray]:
    if len(classes) == 1:
        return classes, np.zeros(1, dtype=np.int64)
    return np.unique(classes, return_inverse=True)
