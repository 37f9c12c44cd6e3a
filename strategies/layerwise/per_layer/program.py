"""The per-layer choice as an integer program, solved by HiGHS: the proof that shares nothing with the elimination.

Notes
-----
Variables: ``pick[i, o]`` in {0, 1}, one of each node; ``pair[e, r, c]`` >= 0 for every edge and pair of classes, with the
picks as its marginals; ``lag[i]`` >= 0 for every node. With ``x``, ``h`` the exchange and hide of the picked options,

    minimise  sum base pick + sum cost pair + lag[0]
    lag[i] >= x[i],   lag[i] >= x[i] - h[i] + lag[i + 1],   sum memory pick <= capacity

The minimum of ``lag[0]`` is the recursion of :mod:`strategies.layerwise.per_layer.problem`. Given the picks, the pairs and lags are
determined, so rounding the picks gives a choice, which is evaluated by its definition, not by the solver.

The solver's tolerances (1e-9) are absolute. Times are scaled so that a greedy choice costs 1e5, and a claimed bound is
lowered by what the tolerances can amount to over all rows (:func:`tolerance_of`): bounds are valid, and a proof leaves a
gap of about 1e-9 per node and edge.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import EQUAL, ROUNDING, SOLVER_TOLERANCE
from strategies.layerwise.per_layer.problem import (
    ChoiceProblem,
    Edge,
    Limits,
    Solution,
    Status,
    memory_bytes,
    objective_s,
    restrict,
)
from strategies.limits import Clock
from strategies.solvers import LinearProgram, ProgramResult, ProgramStatus, solve_linear_program

SCALED_COST = 1e5


def solve_program(problem: ChoiceProblem, limits: Limits) -> Solution[IntArray]:
    """The best choice, or the K best with different keys, by integer programming.

    With ``num_solutions`` > 1 the program is solved again and again with the keys found so far cut off, which is meant
    for small problems.

    Parameters
    ----------
    problem : ChoiceProblem
    limits : Limits

    Returns
    -------
    Solution

    Raises
    ------
    SolverError
        When the solver library fails.

    Examples
    --------
    >>> zero = np.zeros(2)
    >>> p = ChoiceProblem(base_s=(np.array([3.0, 4.0]), np.array([2.0, 1.0])), hide_s=(zero, zero),
    ...     exchange_s=(np.array([2.0, 0.0]), zero), memory_bytes=(zero, zero))
    >>> s = solve_program(p, Limits())
    >>> s.status.value, s.objectives_s, s.choices[0].tolist()
    ('optimal', (5.0,), [1, 1])
    """
    return _ProgramSearch(problem, limits).run()


class _ProgramSearch:
    def __init__(self, problem: ChoiceProblem, limits: Limits) -> None:
        self.clock = Clock(limit_s=limits.wall_s)
        self.given = problem
        self.limits = limits
        greedy, self.scale = _greedy(problem)
        upper = limits.cutoff_s
        if limits.num_solutions == 1 and _fits(problem, greedy):
            upper = min(upper, self.scale)
        self.kept = _within(problem, upper)
        self.tolerance = tolerance_of(problem)
        self.empty = any(not len(k) for k in self.kept)
        self.problem = problem if self.empty else restrict(problem, self.kept)
        self.keys = self.problem.key_class or tuple(np.arange(len(b)) for b in self.problem.base_s)
        self.choices: list[IntArray] = []
        self.objectives: list[float] = []
        self.bounds: list[float] = []  # of each program solved: nothing outside the keys cut off by then costs less

    def run(self) -> Solution[IntArray]:
        """Settle what needs no program, then solve, cut off the key found, and solve again."""
        smallest = np.array([int(m.argmin()) for m in self.given.memory_bytes])
        if not _fits(self.given, smallest):
            self.bounds.append(np.inf)
            return self._result(Status.INFEASIBLE)
        if self.empty:
            self.bounds.append(self.limits.cutoff_s)
            return self._result(Status.CUT_OFF)
        model = _Model(self.problem, SCALED_COST / max(self.scale, 1e-300))
        status = None
        while status is None:
            status = self._round(model)
        return self._result(status)

    def _round(self, model: _Model) -> Status | None:
        """Solve once; a status when that ends the search."""
        limits, problem = self.limits, self.problem
        if not self.clock.left_s:
            self.bounds.append(0.0)
            return self._stopped()
        answer = solve_linear_program(
            model.program(), time_limit_s=self.clock.left_s, relative_gap=limits.gap, most_nodes=limits.most_nodes
        )
        self.bounds.append(max(0.0, model.valid_bound(answer)))
        if answer.status is ProgramStatus.INFEASIBLE:
            # Every choice within memory is cut off, or more expensive than the options left out allow.
            self.bounds[-1] = limits.cutoff_s
            return Status.OPTIMAL if self.choices else Status.CUT_OFF
        if answer.values is None:
            return self._stopped()
        choice = model.choice(answer.values)
        if not _fits(problem, choice):
            model.forbid(choice, [np.arange(len(b)) for b in problem.base_s])
            self.bounds.pop()
            return None
        return self._evaluate(model, choice, optimal=answer.status is ProgramStatus.OPTIMAL)

    def _evaluate(self, model: _Model, choice: IntArray, *, optimal: bool) -> Status | None:
        """Take a choice that fits; a status when it is the last."""
        limits, value = self.limits, objective_s(self.problem, choice)
        wanted = value <= limits.cutoff_s * (1.0 + ROUNDING)
        if wanted:
            self.choices.append(choice)
            self.objectives.append(value)
        if not optimal or value - self.bounds[-1] > (limits.gap + 2.0 * self.tolerance) * value:
            return self._stopped()
        if not wanted:  # the program's minimum lies past the cutoff
            return Status.OPTIMAL if self.choices else Status.CUT_OFF
        if len(self.choices) == limits.num_solutions:
            return Status.OPTIMAL
        model.forbid(choice, self.keys)
        return None

    def _original(self, choice: IntArray) -> IntArray:
        return np.array([int(k[o]) for k, o in zip(self.kept, choice, strict=True)])

    def _stopped(self) -> Status:
        return Status.FEASIBLE if self.choices else Status.LIMIT

    def _result(self, status: Status) -> Solution[IntArray]:
        order = sorted(range(len(self.choices)), key=lambda k: self.objectives[k])
        objectives = tuple(self.objectives[k] for k in order)
        first = min(self.bounds[0], objectives[0]) if objectives else self.bounds[0]
        return Solution(
            status=status,
            choices=tuple(self._original(self.choices[k]) for k in order),
            objectives_s=objectives,
            bound_s=first,
            method="program",
            rest_bound_s=self.bounds[-1],
        )


@dataclass(slots=True)
class _Rows:
    """Rows of the matrix as they are made."""

    count: int = 0
    row: list[IntArray] = field(default_factory=list)
    column: list[IntArray] = field(default_factory=list)
    value: list[FloatArray] = field(default_factory=list)
    lower: list[FloatArray] = field(default_factory=list)
    upper: list[FloatArray] = field(default_factory=list)

    def add(self, lower: FloatArray, upper: FloatArray) -> int:
        """Append rows; number of the first."""
        first = self.count
        self.count += len(lower)
        self.lower.append(lower)
        self.upper.append(upper)
        return first

    def put(self, row: IntArray | int, column: IntArray, value: FloatArray | float) -> None:
        """Entries of the matrix; zeros are left out."""
        rows, values = np.broadcast_to(row, column.shape), np.broadcast_to(value, column.shape)
        used = values != 0.0
        self.row.append(rows[used])
        self.column.append(column[used])
        self.value.append(values[used])


class _Model:
    """The program of one problem, in units that make a known choice cost 1e5."""

    def __init__(self, problem: ChoiceProblem, scale: float) -> None:
        self.problem = problem
        self.scale = scale
        sizes = [len(b) for b in problem.base_s]
        self.first = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
        self.rows = _Rows()
        self.cost: list[FloatArray] = [b * scale for b in problem.base_s]
        self.columns = int(self.first[-1])
        for i, size in enumerate(sizes):
            self.rows.put(self.rows.add(np.ones(1), np.ones(1)), self._picks(i), np.ones(size))
        for edge in problem.edges:
            self._edge(edge)
        self._lag()
        self._memory()

    def _picks(self, node: int) -> IntArray:
        return np.arange(self.first[node], self.first[node + 1])

    def _edge(self, edge: Edge) -> None:
        """Pair variables whose sums over columns and rows are the picks of each class."""
        rows, columns = edge.cost_s.shape
        pair = self.columns + np.arange(rows * columns).reshape(rows, columns)
        self.columns += rows * columns
        self.cost.append(edge.cost_s.ravel() * self.scale)
        for node, classes, count, variables in (
            (edge.producer, edge.producer_class, rows, pair),
            (edge.consumer, edge.consumer_class, columns, pair.T),
        ):
            first = self.rows.add(np.zeros(count), np.zeros(count))
            owner = np.repeat(np.arange(count), variables.shape[1])
            self.rows.put(first + owner, variables.ravel(), np.ones(variables.size))
            self.rows.put(first + classes, self._picks(node), -np.ones(len(classes)))

    def _lag(self) -> None:
        """One variable and two rows per node."""
        nodes = self.problem.num_nodes
        lag = self.columns + np.arange(nodes)
        self.columns += nodes
        self.cost.append(np.eye(1, nodes)[0])
        free = np.full(nodes, np.inf)
        own, carried = self.rows.add(np.zeros(nodes), free), self.rows.add(np.zeros(nodes), free)
        self.rows.put(own + np.arange(nodes), lag, np.ones(nodes))
        self.rows.put(carried + np.arange(nodes), lag, np.ones(nodes))
        self.rows.put(carried + np.arange(nodes - 1), lag[1:], -np.ones(nodes - 1))
        coming = 0.0
        for i in reversed(range(nodes)):
            exchange = self.problem.exchange_s[i]
            hide = np.minimum(self.problem.hide_s[i], coming)  # more than can come hides no more
            coming += float(exchange.max())
            self.rows.put(own + i, self._picks(i), -exchange * self.scale)
            self.rows.put(carried + i, self._picks(i), (hide - exchange) * self.scale)

    def _memory(self) -> None:
        """One row, in units of a thousandth of the capacity."""
        capacity = self.problem.memory_capacity_bytes
        if not np.isfinite(capacity):
            return
        unit = 1e3 / capacity if capacity > 0 else 1.0
        row = self.rows.add(np.array([-np.inf]), np.array([capacity * unit * (1.0 + ROUNDING)]))
        for i, memory in enumerate(self.problem.memory_bytes):
            self.rows.put(row, self._picks(i), memory * unit)

    def forbid(self, choice: IntArray, classes: tuple[IntArray, ...] | list[IntArray]) -> None:
        """Cut off every choice in the same classes: at least one node must leave its class."""
        row = self.rows.add(np.array([-np.inf]), np.array([self.problem.num_nodes - 1.0]))
        for i, own in enumerate(classes):
            picks = self._picks(i)[own == own[choice[i]]]
            self.rows.put(row, picks, np.ones(len(picks)))

    def program(self) -> LinearProgram:
        """Arrays for the solver."""
        integer = np.zeros(self.columns, dtype=bool)
        integer[: self.first[-1]] = True
        upper = np.ones(self.columns)
        upper[-self.problem.num_nodes :] = np.inf
        return LinearProgram(
            cost=np.concatenate(self.cost),
            lower=np.zeros(self.columns),
            upper=upper,
            integer=integer,
            row_lower=np.concatenate(self.rows.lower),
            row_upper=np.concatenate(self.rows.upper),
            entry_row=np.concatenate(self.rows.row),
            entry_column=np.concatenate(self.rows.column),
            entry_value=np.concatenate(self.rows.value),
        )

    def choice(self, values: FloatArray) -> IntArray:
        """The option with the largest pick of every node."""
        return np.array([int(values[a:b].argmax()) for a, b in zip(self.first[:-1], self.first[1:], strict=True)])

    def valid_bound(self, answer: ProgramResult) -> float:
        """The claimed bound in seconds, less what tolerances may add."""
        if answer.status is ProgramStatus.INFEASIBLE:
            return np.inf
        return answer.bound * (1.0 - tolerance_of(self.problem)) / self.scale if np.isfinite(answer.bound) else 0.0


def tolerance_of(problem: ChoiceProblem) -> float:
    """Relative error that the solver's tolerances can put on a bound.

    A row that holds only within the tolerance moves the bound by the tolerance times the row's dual, and a reduced cost
    that is negative within it by the tolerance times the variable. Duals and lags are at most the whole cost; one row per
    node (pick), two per edge (the pairs' sums, of which one per class of the choice), and two per node (lags) count.
    """
    return SOLVER_TOLERANCE * (4.0 * problem.num_nodes + 3.0 * len(problem.edges) + 2.0)


def _fits(problem: ChoiceProblem, choice: IntArray) -> bool:
    return memory_bytes(problem, choice) <= problem.memory_capacity_bytes * (1.0 + ROUNDING)


def _greedy(problem: ChoiceProblem) -> tuple[IntArray, float]:
    """Choose node by node, each best for the producers chosen before; sets the scale of the numbers."""
    choice = np.zeros(problem.num_nodes, dtype=np.int64)
    cost = [b + x for b, x in zip(problem.base_s, problem.exchange_s, strict=True)]
    for e in sorted(problem.edges, key=lambda e: (e.consumer, e.producer)):
        # Producers come before consumers, and all edges of one consumer together: its choice waits for the last.
        choice[e.producer] = int(cost[e.producer].argmin())
        cost[e.consumer] = cost[e.consumer] + e.cost_s[e.producer_class[choice[e.producer]], e.consumer_class]
    choice = np.array([int(c.argmin()) for c in cost])
    return choice, objective_s(problem, choice)


def _within(problem: ChoiceProblem, upper: float) -> list[IntArray]:
    """Options that a choice of cost at most ``upper`` may have: all other nodes cost at least their least base."""
    least = sum(float(b.min()) for b in problem.base_s)
    limit = upper * (1.0 + EQUAL)
    return [np.flatnonzero(b - float(b.min()) + least <= limit) for b in problem.base_s]
