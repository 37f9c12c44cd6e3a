"""The per-layer choice as plain arrays: what a solver receives and returns.

A solver never sees a network or a cluster, only this problem; the cost model builds it and judges the answer.

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
from dataclasses import dataclass, field

from costmodel.arrays import FloatArray, IntArray

__all__ = ["ChoiceProblem", "Edge", "Limits", "Solution", "Status", "memory_bytes", "objective_s"]


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
    node_names: tuple[str, ...] = field(default=())  # for messages only

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
    seed: int = 0


class Status(enum.Enum):
    """What a search proved."""

    OPTIMAL = "optimal"  # the solutions are the best ones, within `gap`
    FEASIBLE = "feasible"  # stopped by a limit; `bound_s` says how good it can get
    INFEASIBLE = "infeasible"  # nothing fits the memory
    CUT_OFF = "cut_off"  # proved: nothing is at or below `cutoff_s`
    LIMIT = "limit"  # stopped by a limit without a solution


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """Choices, best first, with the bound that travels with them."""

    status: Status
    choices: tuple[IntArray, ...]  # best first; each (nodes,)
    objectives_s: tuple[float, ...]  # same order
    bound_s: float  # no choice within memory costs less (inf if there is none); valid whatever the status
    wall_s: float
    method: str
    # With num_solutions = K > 1: every choice with a key not in `choices` costs at least this much.
    rest_bound_s: float = 0.0


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
