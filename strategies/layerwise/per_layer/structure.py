"""The order in which a graph is eliminated; depends on nodes and edges only, so problems of one network share it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Step", "Structure", "structure_of"]

_KNOWN: dict[tuple[int, tuple[tuple[int, int], ...]], Structure] = {}
MAX_KNOWN = 16


def structure_of(num_nodes: int, pairs: tuple[tuple[int, int], ...]) -> Structure:
    """Structure of a graph, kept for the next problem with the same one."""
    key = (num_nodes, pairs)
    if key not in _KNOWN:
        if len(_KNOWN) >= MAX_KNOWN:
            del _KNOWN[next(iter(_KNOWN))]
        _KNOWN[key] = Structure(num_nodes, pairs)
    return _KNOWN[key]


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
