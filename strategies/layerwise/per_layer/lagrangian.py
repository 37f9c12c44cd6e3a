"""Lower bounds for the full objective, and the part of the options that holds every choice up to some cost.

Multipliers for the lag and for the memory capacity
---------------------------------------------------
The cost of a choice is ``additive + max_j path_j`` (:mod:`strategies.layerwise.per_layer.problem`). For weights ``w_j >= 0`` that sum
to 1 and a price ``p >= 0`` per byte,

    additive + sum_j w_j path_j + p (memory - capacity)

is at most that cost for every choice that fits, and splits into node and pair costs: node i pays
``base + W_i exchange - W_{i+1} hide + p memory`` with the suffix sums ``W_i = sum_{j >= i} w_j``. Elimination minimises it
exactly; the maximum over the multipliers is found by cutting planes over the choices met on the way, damped towards the
best multipliers so far (in-out: Ben-Ameur and Neto, Networks 49, 2007). Only nodes that some choice waited for get a
weight, so the linear program stays tiny.

Region
------
A part of the options that holds every choice up to some cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.layerwise.per_layer.elimination import Elimination
from strategies.layerwise.per_layer.problem import (
    ChoiceProblem,
    Evaluation,
    FlatTables,
    restrict,
)

MAX_PIVOTS = 200


def solve_master(value: FloatArray, excess: FloatArray, price_limit: float) -> tuple[FloatArray, float, float]:
    """Maximise the lower envelope of linear functions over a simplex and an interval.

        max over w in the simplex, 0 <= p <= price_limit  of  min_k  sum_j w_j value[k, j] + p excess[k]

    Solved through its dual (mix the choices k so that the worst column is least) by the revised simplex method with a
    dense basis, which is small: one row per column of ``value`` plus two.

    Parameters
    ----------
    value : array, shape (choices, terms)
    excess : array, shape (choices,)
    price_limit : float

    Returns
    -------
    (array of shape (terms,), float, float)
        The weights ``w``, the price ``p`` and the maximum.

    Examples
    --------
    Two choices, two terms: (0, 4) and (4, 0). Equal weights make both worth 2.

    >>> weights, price, best = solve_master(np.array([[0.0, 4.0], [4.0, 0.0]]), np.zeros(2), 0.0)
    >>> weights.tolist(), best
    ([0.5, 0.5], 2.0)
    """
    count, terms = value.shape
    matrix, cost = _tableau(value, excess, price_limit)
    rhs = np.zeros(terms + 2)
    rhs[-1] = 1.0
    start = int(value.max(axis=1).argmin())
    worst = int(value[start].argmax())
    slacks = [count + 1 + j for j in range(terms) if j != worst]
    basis = np.array([start, count, *slacks, len(cost) - (2 if excess[start] > 0 else 1)])
    duals = np.zeros(terms + 2)
    for pivot in range(MAX_PIVOTS):
        try:
            inverse = np.linalg.inv(matrix[:, basis])
        except np.linalg.LinAlgError:  # rounding; the last multipliers are still multipliers
            break
        duals = cost[basis] @ inverse
        reduced = cost - duals @ matrix
        reduced[basis] = 0.0
        candidates = np.flatnonzero(reduced < -1e-12 * (1.0 + abs(float(duals[-1]))))
        if not len(candidates):
            break
        # Dantzig's rule, and Bland's once the program might cycle.
        entering = int(candidates[0] if pivot > MAX_PIVOTS // 2 else reduced.argmin())
        direction = inverse @ matrix[:, entering]
        bounded = (direction > 1e-12) & (basis != count)  # the worst value itself may have any sign
        if not bounded.any():
            break
        ratio = np.where(bounded, (inverse @ rhs) / np.where(bounded, direction, 1.0), np.inf)
        basis[int(ratio.argmin())] = entering
    weights = np.maximum(duals[:terms], 0.0)
    total = float(weights.sum())
    weights = weights / total if total > 0.0 else np.full(terms, 1.0 / terms)
    price = float(np.clip(duals[terms], 0.0, price_limit))
    return weights, price, float((value @ weights + price * excess).min())


def _tableau(value: FloatArray, excess: FloatArray, price_limit: float) -> tuple[FloatArray, FloatArray]:
    """Matrix and costs; columns: mix (choices), worst value, slack per term, overflow of memory, slack of memory."""
    count, terms = value.shape
    matrix = np.zeros((terms + 2, count + 1 + terms + 2))
    matrix[:terms, :count] = -value.T
    matrix[:terms, count] = 1.0
    matrix[:terms, count + 1 : count + 1 + terms] = -np.eye(terms)
    matrix[terms, :count] = -excess
    matrix[terms, -2:] = 1.0, -1.0
    matrix[terms + 1, :count] = 1.0
    cost = np.zeros(matrix.shape[1])
    cost[count], cost[-2] = 1.0, price_limit
    return matrix, cost


STRIDE = 0.85  # of the way from the best multipliers so far to those that the choices seen call for


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Weights of the paths and price of memory."""

    weight: FloatArray  # (nodes,), >= 0, sum 1
    price_s_per_byte: float

    @property
    def suffix(self) -> FloatArray:
        """Suffix sums, shape (nodes + 1,): from at most 1 down to 0."""
        return np.append(np.cumsum(self.weight[::-1])[::-1], 0.0)


class DualAscent:
    """Cutting planes over the multipliers; keeps the best bound and every choice met.

    Parameters
    ----------
    tables : FlatTables
    elimination : Elimination
    capacity_bytes : float
    on_choice : callable, optional
        Told of every choice met.
    """

    def __init__(
        self,
        tables: FlatTables,
        elimination: Elimination,
        capacity_bytes: float,
        on_choice: Callable[[IntArray], None] | None = None,
    ) -> None:
        self.tables = tables
        self.elimination = elimination
        self.capacity_bytes = capacity_bytes
        self.on_choice = on_choice
        nodes = len(tables.offset) - 1
        self.best = Multipliers(np.eye(1, nodes)[0], 0.0)  # waiting for node 0 only: always a valid weight
        self.bound_s = -np.inf
        self._active = [0]
        self._seen: list[Evaluation] = []
        self.model_s = np.inf  # no multipliers over the active paths give more than this, as far as seen

    def bound_at(self, multipliers: Multipliers) -> float:
        """Evaluate one bound; remember the choice that attains it."""
        price = multipliers.price_s_per_byte
        value, choice = self.elimination.minimise(self.tables.node_costs(multipliers.suffix, price))
        seen = self.tables.evaluate(choice)
        self._seen.append(seen)
        if price:
            value -= price * self.capacity_bytes
        if self.on_choice is not None:
            self.on_choice(choice)
        longest = int(seen.path_s.argmax())
        if longest not in self._active:
            self._active.append(longest)
        if value > self.bound_s:
            self.bound_s, self.best = value, multipliers
        return value

    def step(self) -> float:
        """One round: best multipliers for the choices seen, damped; returns the bound there."""
        if not self._seen:
            return self.bound_at(self.best)
        target = self._target()
        weight = (1.0 - STRIDE) * self.best.weight + STRIDE * target.weight
        price = (1.0 - STRIDE) * self.best.price_s_per_byte + STRIDE * target.price_s_per_byte
        return self.bound_at(Multipliers(weight, price))

    def _target(self) -> Multipliers:
        value = np.array([s.additive_s + s.path_s[self._active] for s in self._seen])
        excess, limit, unit = np.zeros(len(value)), 0.0, 1.0
        if np.isfinite(self.capacity_bytes):
            # Price in units of (typical time per capacity), so that the program's entries are of one size.
            unit = float(value.max()) / max(self.capacity_bytes, 1.0)
            excess = (np.array([s.memory for s in self._seen]) - self.capacity_bytes) * unit
            limit = 4.0 if (excess <= 0).any() else max(4.0, 4.0 * self.best.price_s_per_byte / unit)
            limit = max(limit, 2.0 * self.best.price_s_per_byte / unit)
        weights, price, self.model_s = solve_master(value, excess, limit)
        weight = np.zeros_like(self.best.weight)
        weight[self._active] = weights
        return Multipliers(weight, price * unit)


def forest_of(problem: ChoiceProblem) -> ChoiceProblem:
    """A relaxation without cycles: of the edges, those of a spanning forest that cost most on average.

    Costs are never negative, so a bound of the relaxation is one of the problem.
    """
    import networkx as nx  # a tenth of a second, for the few problems that need it

    graph: nx.Graph[int] = nx.Graph()
    graph.add_weighted_edges_from((edge.producer, edge.consumer, float(edge.cost_s.mean())) for edge in problem.edges)
    kept = {frozenset(pair) for pair in nx.maximum_spanning_edges(graph, data=False)}
    return replace(problem, edges=tuple(e for e in problem.edges if frozenset((e.producer, e.consumer)) in kept))


@dataclass(slots=True)
class Region:
    """Some options of every node: all that choices up to some cost can have, with the best multipliers so far."""

    problem: ChoiceProblem
    tables: FlatTables
    keep: tuple[IntArray, ...]  # node -> options of the whole problem
    multipliers: Multipliers

    @classmethod
    def of(cls, problem: ChoiceProblem) -> Region:
        """All options, and the weights that suit any problem: waiting for the first node."""
        first = Multipliers(np.eye(1, problem.num_nodes)[0], 0.0)
        return cls(problem, FlatTables(problem), tuple(np.arange(len(b)) for b in problem.base_s), first)

    def marginals(self, elimination: Elimination) -> list[FloatArray]:
        """Bound on the choices with each option, in seconds, at the best multipliers.

        Parameters
        ----------
        elimination : Elimination
            Over this region's problem.
        """
        price = self.multipliers.price_s_per_byte
        _, _, marginals = elimination.marginals(self.tables.node_costs(self.multipliers.suffix, price))
        offset = price * self.problem.memory_capacity_bytes if price else 0.0
        return [m - offset for m in marginals]

    def below(self, marginals: Sequence[FloatArray], limit: float) -> Region | None:
        """The options whose marginals do not pass a limit.

        Parameters
        ----------
        marginals : sequence of arrays, node -> (options,)
        limit : float
            Seconds, with the allowance for rounding.

        Returns
        -------
        Region or None
            None when some node has no such option: no choice of the region costs ``limit`` or less.
        """
        keep = [np.flatnonzero(m <= limit) for m in marginals]
        if any(not len(k) for k in keep):
            return None
        problem = restrict(self.problem, keep)
        kept = tuple(a[k] for a, k in zip(self.keep, keep, strict=True))
        return Region(problem, FlatTables(problem), kept, self.multipliers)

    def select(self, rows: Sequence[IntArray]) -> list[IntArray]:
        """Part of tables over all options that belongs to this region."""
        return [r[k] for r, k in zip(rows, self.keep, strict=True)]

    def original(self, choice: IntArray) -> IntArray:
        """A choice in the whole problem's numbers."""
        return np.array([int(k[o]) for k, o in zip(self.keep, choice, strict=True)])
