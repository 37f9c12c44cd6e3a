"""A part of the options that holds every choice up to some cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from strategies.layerwise.per_layer.elimination import Elimination
from strategies.layerwise.per_layer.flat import Evaluation, FlatTables, restrict
from strategies.layerwise.per_layer.lagrangian import Multipliers
from strategies.layerwise.per_layer.problem import ChoiceProblem
from strategies.layerwise.per_layer.structure import Structure, structure_of

__all__ = ["Forest", "Region", "spanning_forest"]


@dataclass(frozen=True, slots=True)
class Forest:
    """A spanning forest of a problem's graph."""

    structure: Structure
    edges: tuple[int, ...]


def spanning_forest(problem: ChoiceProblem) -> Forest:
    """Edges without a cycle that cost most on average, so that leaving out the others loses little.

    Parameters
    ----------
    problem : ChoiceProblem

    Returns
    -------
    Forest
        All edges, when the graph is a forest itself.
    """
    root = list(range(problem.num_nodes))

    def find(a: int) -> int:
        while root[a] != a:
            root[a] = root[root[a]]
            a = root[a]
        return a

    kept = []
    weight = np.array([float(e.cost_s.mean()) for e in problem.edges])
    for e in np.argsort(-weight, kind="stable").tolist():
        a, b = find(problem.edges[e].producer), find(problem.edges[e].consumer)
        if a != b:
            root[a] = b
            kept.append(e)
    kept.sort()
    pairs = tuple((problem.edges[e].producer, problem.edges[e].consumer) for e in kept)
    return Forest(structure_of(problem.num_nodes, pairs), tuple(kept))


@dataclass(slots=True)
class Region:
    """Some options of every node: all that choices up to some cost can have, with the best multipliers so far."""

    problem: ChoiceProblem
    tables: FlatTables
    keep: tuple[IntArray, ...]  # node -> options of the whole problem
    multipliers: Multipliers
    bound_s: float  # of the choices in the region, less an allowance for rounding

    @classmethod
    def whole(cls, problem: ChoiceProblem, tables: FlatTables) -> Region:
        """All options, and the weights that suit any problem: waiting for the first node."""
        first = Multipliers(np.eye(1, problem.num_nodes)[0], 0.0)
        return cls(problem, tables, tuple(np.arange(len(b)) for b in problem.base_s), first, -np.inf)

    def structure(self) -> Structure:
        """Order of elimination of the graph."""
        return structure_of(self.problem.num_nodes, tuple((e.producer, e.consumer) for e in self.problem.edges))

    def marginals(self, elimination: Elimination) -> list[FloatArray]:
        """Bound on the choices with each option, in seconds, at the best multipliers.

        Parameters
        ----------
        elimination : Elimination
            Over this region's problem, or a relaxation of it.
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
        return Region(problem, FlatTables(problem), kept, self.multipliers, self.bound_s)

    def select(self, rows: Sequence[IntArray]) -> list[IntArray]:
        """Part of tables over all options that belongs to this region."""
        return [r[k] for r, k in zip(rows, self.keep, strict=True)]

    def original(self, choice: IntArray) -> IntArray:
        """A choice in the whole problem's numbers."""
        return np.array([int(k[o]) for k, o in zip(self.keep, choice, strict=True)])

    def report(self, tell: Callable[[IntArray, Evaluation], None]) -> Callable[[IntArray, Evaluation], None]:
        """Pass choices on in the whole problem's numbers."""
        return lambda choice, seen: tell(self.original(choice), seen)
