"""Lower bounds for the full objective: multipliers for the lag and for the memory capacity.

Notes
-----
The cost of a choice is ``additive + max_j path_j`` (:mod:`strategies.layerwise.per_layer.flat`). For weights ``w_j >= 0`` that sum
to 1 and a price ``p >= 0`` per byte,

    additive + sum_j w_j path_j + p (memory - capacity)

is at most that cost for every choice that fits, and splits into node and pair costs: node i pays
``base + W_i exchange - W_{i+1} hide + p memory`` with the suffix sums ``W_i = sum_{j >= i} w_j``. Elimination minimises it
exactly; the maximum over the multipliers is found by cutting planes over the choices met on the way, damped towards the
best multipliers so far (in-out: Ben-Ameur and Neto, Networks 49, 2007). Only nodes that some choice waited for get a
weight, so the linear program stays tiny.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.layerwise.per_layer.flat import Evaluation, FlatTables
from strategies.layerwise.per_layer.master import solve_master

__all__ = ["DualAscent", "Minimiser", "Multipliers"]

STRIDE = 0.85  # of the way from the best multipliers so far to those that the choices seen call for


class Minimiser(Protocol):
    """Exact minimum of node costs plus fixed pair costs."""

    def minimise(self, node_cost: Sequence[FloatArray]) -> tuple[float, IntArray]:
        """Least total and a choice that has it."""
        ...


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
    minimiser : Minimiser
    capacity_bytes : float
    start : Multipliers, optional
    on_choice : callable, optional
        Told of every choice met, with its evaluation.
    """

    def __init__(
        self,
        tables: FlatTables,
        minimiser: Minimiser,
        capacity_bytes: float,
        start: Multipliers | None = None,
        on_choice: Callable[[IntArray, Evaluation], None] | None = None,
    ) -> None:
        self.tables = tables
        self.minimiser = minimiser
        self.capacity_bytes = capacity_bytes
        self.on_choice = on_choice
        nodes = len(tables.offset) - 1
        first = Multipliers(np.eye(1, nodes)[0], 0.0)  # waiting for node 0 only: always a valid weight
        self.best = start or first
        self.bound_s = -np.inf
        self._active = sorted({0, *np.flatnonzero(self.best.weight).tolist()})
        self._seen: list[Evaluation] = []
        self.model_s = np.inf  # no multipliers over the active paths give more than this, as far as seen

    def bound_at(self, multipliers: Multipliers) -> float:
        """Evaluate one bound; remember the choice that attains it."""
        price = multipliers.price_s_per_byte
        value, choice = self.minimiser.minimise(self.tables.node_costs(multipliers.suffix, price))
        seen = self.tables.evaluate(choice)
        # What the minimiser counts besides lag and memory; a relaxation leaves out some edges.
        additive = value - float(multipliers.weight @ seen.path_s) - price * seen.memory
        self._seen.append(replace(seen, additive_s=additive))
        if price:
            value -= price * self.capacity_bytes
        if self.on_choice is not None:
            self.on_choice(choice, seen)
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
