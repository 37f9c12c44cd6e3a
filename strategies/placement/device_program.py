"""An integer program for placements: one variable per colour class and device, and one per output that a device may have to move.

With x(c, d) = 1 where class c is on device d, hyperedges pay y(h, d) >= |x(first class, d) - x(other class, d)|. Where devices must be
convex, z(v, d) = 1 for forward operators v from which device d can still be reached:

    z(v, d) >= x(c(v), d);   z(u, d) >= z(v, d) for edges (u, v);   z(v, d) <= 1 + x(c(v), d) - x(c(u), d)

so a path that leaves a device never comes back. Devices may feed each other both ways; the search starts from the best chain of
down-sets, whose placements are all of this kind.

References
----------
Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators", NeurIPS 2020, section 4 (integer program).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.tolerances import SOLVER_BOUND_SLACK
from strategies.limits import Clock, OutOfTimeError
from strategies.placement.bounds import simple_bound
from strategies.placement.columns import pin_lists
from strategies.placement.contiguous import solve_contiguous
from strategies.placement.contraction import contract_classes, topological_rank
from strategies.placement.loads import Devices
from strategies.placement.problem import Placement, PlacementProblem, PlacementResult
from strategies.solvers import LinearProgram, ProgramStatus, SolverError, solve_linear_program

PROOF = "integer program"


def improved_by_program(
    problem: PlacementProblem,
    start: PlacementResult,
    *,
    is_legal: Callable[[IntArray], bool] | None,
    relative_gap: float,
    clock: Clock,
) -> PlacementResult:
    """Improve a placement and its bound by the program, as far as the time allows.

    Parameters
    ----------
    problem : PlacementProblem
    start : PlacementResult
        With a placement and a bound that hold.
    is_legal : function of the device of every node, optional
        Asks for convex devices, and evaluates them; None where any placement will do.
    relative_gap : float
        The program may stop when its bound is this near.
    clock : Clock
        Without a deadline a large graph takes very long.
    """
    clock.report("integer program", start.objective, start.bound)
    try:
        model = _Model(problem, cutoff=start.objective, convex=is_legal is not None)
        program = model.program()
        clock.check()
        found = solve_linear_program(program, time_limit_s=clock.left_s, relative_gap=relative_gap)
    except (SolverError, KeyboardInterrupt, OutOfTimeError) as error:
        stopped = "interrupted" if isinstance(error, KeyboardInterrupt) else ""
        stopped = "time limit" if isinstance(error, OutOfTimeError) else stopped
        return replace(start, wall_s=clock.elapsed_s, stopped=stopped)
    # Nothing at or below the cutoff but what rounding hides: the start is best.
    if found.status is ProgramStatus.INFEASIBLE:
        return replace(start, bound=start.objective, proof=PROOF, wall_s=clock.elapsed_s)
    result = start
    if found.values is not None:
        place = model.place(found.values)
        value, device = float(model.devices.loads(place).max()), place[model.graph.block]
        if value < result.objective and (is_legal is None or is_legal(device)):
            result = replace(result, placement=Placement(device=device), objective=value)
    bound = found.bound * model.scale * (1 - SOLVER_BOUND_SLACK) if np.isfinite(found.bound) else 0.0
    if bound > result.bound:
        result = replace(result, bound=min(bound, result.objective), proof=PROOF)
    stopped = "" if found.status is ProgramStatus.OPTIMAL else "time limit"
    return replace(result, wall_s=clock.elapsed_s, stopped=stopped)


def _size(problem: PlacementProblem) -> int:
    """Entries of the rows of the program for convex devices, about."""
    cuts = 6 * len(problem.hyperedges.pin) * problem.num_accelerators
    own = 2 * problem.num_colors + 2 * problem.num_nodes + 5 * len(problem.edge_source)
    return own * problem.num_devices + cuts


class _Model:
    """The integer program, in times divided by the cutoff, so that absolute tolerances are relative."""

    def __init__(self, problem: PlacementProblem, *, cutoff: float, convex: bool) -> None:
        self._is_convex = convex
        self._problem = problem
        self.graph = contract_classes(problem)
        self.devices = Devices(problem, self.graph)
        self._classes, self._count = self.graph.num_blocks, self.devices.count
        self.scale = cutoff if 0 < cutoff < np.inf else max(1e-300, float(problem.accelerator_time.sum()))
        self._cutoff = cutoff / self.scale
        self._rows: list[tuple[float, float]] = []
        self._entries: list[tuple[int, int, float]] = []
        self._forward = np.flatnonzero(~problem.backward)
        self._rank = np.full(problem.num_nodes, -1, dtype=np.int64)
        self._rank[self._forward] = np.arange(len(self._forward))
        self._first_z = self._classes * self._count
        self._first_y = self._first_z + len(self._forward) * self._count
        self._load = self._first_y + len(self.graph.hyperedge_cost) * problem.num_accelerators

    def program(self) -> LinearProgram:
        self._load_rows()
        if self._is_convex:
            self._convex_rows()
        self._cut_rows()
        cost = np.zeros(self._load + 1)
        cost[self._load] = 1.0
        upper = np.ones(self._load + 1)
        upper[: self._first_z] = self._allowed().ravel()
        upper[self._load] = self._cutoff * (1 + 1e-6) if np.isfinite(self._cutoff) else np.inf
        integer = np.zeros(self._load + 1, dtype=np.bool_)
        integer[: self._first_z] = True
        row, column, value = zip(*self._entries, strict=True)
        return LinearProgram(
            cost=cost,
            lower=np.zeros(self._load + 1),
            upper=upper,
            integer=integer,
            row_lower=np.array([low for low, _ in self._rows]),
            row_upper=np.array([high for _, high in self._rows]),
            entry_row=np.array(row, dtype=np.int64),
            entry_column=np.array(column, dtype=np.int64),
            entry_value=np.array(value, dtype=np.float64),
        )

    def place(self, values: FloatArray) -> IntArray:
        return np.asarray(np.argmax(values[: self._first_z].reshape(self._classes, self._count), axis=1))

    def _allowed(self) -> BoolArray:
        """Whether a class may be on a device: support, and devices of one kind numbered by their first class."""
        number = np.concatenate([np.arange(kind.count) for kind in self.devices.kinds])
        return np.asarray(np.isfinite(self.devices.time.T) & (number <= np.arange(self._classes)[:, None]))

    def _row(self, low: float, high: float, *terms: tuple[int, float]) -> None:
        merged: dict[int, float] = {}
        for column, value in terms:
            merged[column] = merged.get(column, 0.0) + value
        entries = [(len(self._rows), column, value) for column, value in merged.items() if value]
        if entries:
            self._entries.extend(entries)
            self._rows.append((low, high))

    def _x(self, c: int, d: int) -> int:
        return c * self._count + d

    def _z(self, v: int, d: int) -> int:
        return self._first_z + int(self._rank[v]) * self._count + d

    def _load_rows(self) -> None:
        """Every class on a device; loads and memory of devices."""
        classes = range(self._classes)
        for c in classes:
            self._row(1.0, 1.0, *((self._x(c, d), 1.0) for d in range(self._count)))
        k = self._problem.num_accelerators
        for d in range(self._count):
            time = np.nan_to_num(self.devices.time[d], posinf=0.0) / self.scale
            terms = [(self._x(c, d), float(time[c])) for c in classes]
            if d < k:
                cost = self.graph.hyperedge_cost / self.scale * self.devices.link_factor[d]
                terms += [(self._first_y + h * k + d, price) for h, price in enumerate(cost.tolist())]
                size = self.graph.size_bytes / max(float(self.devices.capacity_bytes[d]), 1e-300)
                self._row(-np.inf, 1.0, *((self._x(c, d), float(size[c])) for c in classes))
            self._row(-np.inf, 0.0, *terms, (self._load, -1.0))

    def _convex_rows(self) -> None:
        problem, color = self._problem, self._problem.color.tolist()
        for d in range(self._count):
            for v in self._forward.tolist():
                self._row(0.0, np.inf, (self._z(v, d), 1.0), (self._x(color[v], d), -1.0))
            for u, v in zip(problem.edge_source.tolist(), problem.edge_target.tolist(), strict=True):
                if not problem.backward[u] and not problem.backward[v]:
                    on_u, on_v = self._x(color[u], d), self._x(color[v], d)
                    self._row(0.0, np.inf, (self._z(u, d), 1.0), (self._z(v, d), -1.0))
                    self._row(-np.inf, 1.0, (self._z(v, d), 1.0), (on_v, -1.0), (on_u, 1.0))

    def _cut_rows(self) -> None:
        """A hyperedge is paid where its first class and another one are apart."""
        k = self._problem.num_accelerators
        for h, (first, *others) in enumerate(pin_lists(self.graph)):
            for other in others:
                for d in range(k):
                    y = self._first_y + h * k + d
                    self._row(0.0, np.inf, (y, 1.0), (self._x(first, d), -1.0), (self._x(other, d), 1.0))
                    self._row(0.0, np.inf, (y, 1.0), (self._x(first, d), 1.0), (self._x(other, d), -1.0))


METHOD = "integer program (every device convex)"
# The chain is only a start here.
_CHAIN_SHARE = 0.4
# Entries of the program's rows; with more it takes longer to write than any time limit that helps it.
_MOST_ENTRIES = 1_500_000


def solve_convex(
    problem: PlacementProblem, *, seed: int = 0, relative_gap: float = 0.0, clock: Clock | None = None
) -> PlacementResult:
    """Place operators so that the largest load is least, the forward operators of every device being convex.

    Parameters
    ----------
    problem : PlacementProblem
    seed : int
    relative_gap : float
        The program may stop when its bound is this near.
    clock : Clock, optional
        Without a deadline a large graph takes very long.
    """
    clock = clock or Clock()
    simple = simple_bound(problem)
    is_small = _size(problem) <= _MOST_ENTRIES
    chain = solve_contiguous(problem, seed=seed, clock=clock.within(_CHAIN_SHARE if is_small else 1.0))
    start = replace(chain, chain=chain)
    if not np.isfinite(simple.value):
        return replace(start, method=METHOD)
    # A bound for chains of down-sets is none for devices that may feed each other both ways.
    start = replace(start, bound=min(simple.value, chain.objective), proof=simple.proof)
    if chain.is_interrupted:
        return start
    if not is_small:
        return replace(start, stopped=start.stopped or "the integer program of such a graph is too large to be of use")
    start = replace(start, method=METHOD, stopped="")
    return improved_by_program(
        problem, start, is_legal=lambda device: is_convex(problem, device), relative_gap=relative_gap, clock=clock
    )


def is_convex(problem: PlacementProblem, device: IntArray) -> bool:
    """Whether no path of forward operators leaves a device and comes back."""
    forward = ~problem.backward[problem.edge_source] & ~problem.backward[problem.edge_target]
    source, target = problem.edge_source[forward], problem.edge_target[forward]
    order = np.argsort(topological_rank(problem.num_nodes, source, target)[source], kind="stable")
    for d in np.unique(device[~problem.backward]).tolist():
        left = np.zeros(problem.num_nodes, dtype=np.bool_)  # reached by a path that has left the device
        for u, v in zip(source[order].tolist(), target[order].tolist(), strict=True):
            if device[v] == d:
                if left[u]:
                    return False
            elif left[u] or device[u] == d:
                left[v] = True
    return True
