"""Solve a per-layer choice exactly: bounds, fixing, labels, and the program where those do not reach.

Notes
-----
With a Lagrangian bound ``b`` and a guess ``u`` of the best cost, every option whose min-marginal passes ``u`` is left
out, and the labels decide what remains. Finding a choice of cost at most ``u`` proves it the best; finding none proves
that nothing costs ``u`` or less, and the guess is raised. Guesses grow geometrically from just above the bound, so most
of the work is done at the last one, which is the cheapest that can succeed.

Numbers are compared with a relative allowance of about 1e-12: choices whose costs differ by less count as equal.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from strategies.per_layer.elimination import Elimination, Structure
from strategies.per_layer.flat import Evaluation, FlatTables, restrict
from strategies.per_layer.k_best import best_choices
from strategies.per_layer.labels import CompletionBound, OutOfTimeError, search_labels
from strategies.per_layer.lagrangian import DualAscent, Minimiser, Multipliers
from strategies.per_layer.layers import LayeredGraph
from strategies.per_layer.problem import ChoiceProblem, FloatArray, IntArray, Limits, Solution, Status, objective_s

__all__ = ["Method", "Structure", "lower_bound", "solve", "structure_of"]

Method = Literal["auto", "elimination", "program"]

ROUNDING = 1e-12
FIRST_GUESS = 1e-4  # above the bound, relative
GUESS_GROWTH = 4.0
MAX_ASCENT = 60
MAX_LABELS = 300_000
FIRST_REACH = 0.01  # of the region kept by the forest's bound, relative
REACH_GROWTH = 4.0
FOREST_PRECISION = 0.2  # how much of the gap the multipliers may leave: little effort for the forest
PRECISION = 0.02


@functools.lru_cache(maxsize=8)
def _structure(num_nodes: int, pairs: tuple[tuple[int, int], ...]) -> Structure:
    return Structure(num_nodes, pairs)


def structure_of(problem: ChoiceProblem) -> Structure:
    """Order of elimination of the problem's graph; kept for the next problem with the same graph."""
    return _structure(problem.num_nodes, tuple((e.producer, e.consumer) for e in problem.edges))


def lower_bound(problem: ChoiceProblem) -> float:
    """Bound from one elimination: memory is ignored, and only the first node's exchange is waited for.

    Parameters
    ----------
    problem : ChoiceProblem

    Returns
    -------
    float
        Seconds; no choice costs less.

    Raises
    ------
    TooWideError
        When the graph is too wide for elimination.
    """
    cost = [problem.base_s[0] + problem.exchange_s[0], *problem.base_s[1:]]
    value, _ = Elimination(structure_of(problem), problem).minimise(cost)
    return value * (1.0 - ROUNDING)


def solve(problem: ChoiceProblem, limits: Limits, *, method: Method = "auto") -> Solution:
    """The best choice, or the K best with different keys, with a bound.

    Parameters
    ----------
    problem : ChoiceProblem
    limits : Limits
    method : {"auto", "elimination", "program"}
        "elimination" never uses the integer program; "auto" turns to it for what remains when the labels or the tables
        of the elimination grow too many.

    Returns
    -------
    Solution

    Examples
    --------
    >>> from strategies.per_layer.problem import Limits
    >>> zero = np.zeros(2)
    >>> p = ChoiceProblem(base_s=(np.array([3.0, 4.0]), np.array([2.0, 1.0])), hide_s=(zero, zero),
    ...     exchange_s=(np.array([2.0, 0.0]), zero), memory_bytes=(zero, zero))
    >>> s = solve(p, Limits())
    >>> s.status.value, s.objectives_s, s.choices[0].tolist()
    ('optimal', (5.0,), [1, 1])
    """
    if method == "program":
        from strategies.per_layer.program import solve_program

        return solve_program(problem, limits)
    return _Search(problem, limits, may_use_program=method == "auto").run()


class _Search:
    def __init__(self, problem: ChoiceProblem, limits: Limits, *, may_use_program: bool) -> None:
        self.started = time.perf_counter()
        self.deadline = self.started + limits.wall_s
        self.given = problem
        self.limits = limits
        self.may_use_program = may_use_program
        self.problem = _clip_hide(problem)
        self.tables = FlatTables(self.problem)
        self.keys = problem.key_class or tuple(np.arange(len(b)) for b in problem.base_s)
        self.found: dict[bytes, tuple[float, IntArray]] = {}
        self.proven_s = 0.0  # nothing but choices in `found` costs less
        self.capacity = _with_allowance(self.problem)
        self.method = "elimination"
        self.above = FIRST_GUESS
        self.scale = float(sum(x.max() for x in self.problem.exchange_s))
        self.capacity_bytes = problem.memory_capacity_bytes
        edges = sum(float(e.cost_s.max()) for e in problem.edges)
        # A cost that no choice passes.
        self.largest = (sum(float(b.max()) for b in problem.base_s) + self.scale + edges) * (1.0 + 1e-9)

    # -- results ---------------------------------------------------------------------------------------------------

    def _key(self, choice: IntArray) -> bytes:
        return np.array([k[o] for k, o in zip(self.keys, choice, strict=True)], dtype=np.int64).tobytes()

    def offer(self, choice: IntArray, value: float) -> None:
        """Remember a choice that fits."""
        if value > self.threshold():
            return
        key = self._key(choice)
        if key not in self.found or value < self.found[key][0]:
            self.found[key] = (value, choice)
            if len(self.found) > self.limits.num_solutions:
                del self.found[max(self.found, key=lambda k: self.found[k][0])]

    def threshold(self) -> float:
        """Costs above this are of no interest: the cutoff, or the K-th best so far."""
        if len(self.found) < self.limits.num_solutions:
            return self.limits.cutoff_s
        return min(self.limits.cutoff_s, max(v for v, _ in self.found.values()))

    def allowance(self, value: float, price: float) -> float:
        """What rounding may add up to in sums of this size."""
        capacity = price * self.problem.memory_capacity_bytes if price else 0.0
        return ROUNDING * abs(value) + 1e-14 * (self.scale + capacity)

    def result(self, status: Status) -> Solution:
        """Judge what was found and put the bound with it."""
        judged = sorted(
            ((objective_s(self.given, c), n) for n, (_, c) in enumerate(self.found.values())),
        )
        choices = [c for _, c in self.found.values()]
        objectives = tuple(v for v, _ in judged)
        bound = self.proven_s
        if objectives:
            bound = min(bound, objectives[0])
        return Solution(
            status=status,
            choices=tuple(choices[n] for _, n in judged),
            objectives_s=objectives,
            bound_s=bound,
            wall_s=time.perf_counter() - self.started,
            method=self.method,
            rest_bound_s=self.proven_s,
        )

    # -- the search ------------------------------------------------------------------------------------------------

    def run(self) -> Solution:
        """Bound over a spanning forest, then regions around it."""
        leanest = np.array([int(m.argmin()) for m in self.problem.memory_bytes])
        first = self.tables.evaluate(leanest)
        if first.memory > self.capacity:
            self.proven_s = np.inf
            return self.result(Status.INFEASIBLE)
        self.on_choice(leanest, first)
        try:
            return self.regions()
        except OutOfTimeError:
            return self.result(Status.FEASIBLE if self.found else Status.LIMIT)

    def regions(self) -> Solution:
        """Widen the region of costs until enough choices lie in it.

        The bound of a spanning forest costs little and leaves few options below a guess; elimination over all edges
        then runs on those only.
        """
        whole = Region.whole(self.problem, self.tables)
        forest = spanning_forest(self.problem)
        relaxed = Elimination(forest.structure, self.problem, forest.edges)
        self.ascend(whole, relaxed, FOREST_PRECISION)
        reach = FIRST_REACH
        while not self.finished():
            lowest, highest = whole.bound_s, self.highest()
            guess = min(lowest * (1.0 + reach), highest)
            if lowest * (1.0 + 2.0 * reach) >= highest:
                guess = highest
            region = whole.below(relaxed, guess, self)
            if region is not None:
                self.guesses(region, guess)
            self.proven_s = max(self.proven_s, guess)
            reach *= REACH_GROWTH
        return self.result(self.status())

    def highest(self) -> float:
        """The last guess: nothing dearer is of interest, or exists."""
        return min(self.threshold(), self.largest)

    def finished(self) -> bool:
        """Whether the gap asked for is reached, or nothing is left to find."""
        return self.done() or self.proven_s >= min(self.limits.cutoff_s, self.largest)

    def status(self) -> Status:
        """What a finished search proved."""
        if self.found:
            return Status.OPTIMAL
        return Status.CUT_OFF

    def on_choice(self, choice: IntArray, seen: Evaluation) -> None:
        """Keep a choice met by the bound."""
        if seen.memory <= self.capacity:
            self.offer(choice.copy(), seen.objective_s)

    def done(self) -> bool:
        """Whether the gap asked for is reached."""
        if len(self.found) < self.limits.num_solutions:
            return False
        worst = max(v for v, _ in self.found.values())
        return worst - self.proven_s <= max(self.limits.gap * worst, ROUNDING * worst)

    def ascend(self, region: Region, minimiser: Minimiser, precision: float, top: float = np.inf) -> bool:
        """Raise the bound over a region; False when it passes ``top``, the cost up to which the region is complete."""
        ascent = DualAscent(
            region.tables, minimiser, self.capacity_bytes, start=region.multipliers, on_choice=region.report(self.on_choice)
        )
        for _ in range(MAX_ASCENT):
            self.check_time()
            ascent.step()
            region.multipliers = ascent.best
            region.bound_s = ascent.bound_s - self.allowance(ascent.bound_s, ascent.best.price_s_per_byte)
            self.proven_s = max(self.proven_s, min(region.bound_s, top))
            if region.bound_s > top or self.finished():
                return False
            missing = ascent.model_s - ascent.bound_s
            gap = min(self.threshold(), top) - ascent.bound_s
            if missing <= precision * min(gap, 0.02 * ascent.bound_s):
                break
        return True

    def check_time(self) -> None:
        """Raise when the time is over."""
        if time.perf_counter() > self.deadline:
            raise OutOfTimeError

    def guesses(self, region: Region, top: float) -> None:
        """Find the best choices of a region that is complete up to ``top``, by guesses that grow from its bound."""
        elimination = Elimination(structure_of(region.problem), region.problem)
        if not self.ascend(region, elimination, PRECISION, top):
            return
        while not self.finished() and self.proven_s < top:
            highest = min(self.threshold(), top)
            guess = min(self.proven_s + self.above * self.proven_s, highest)
            if self.proven_s + 2.0 * self.above * self.proven_s >= highest:
                guess = highest
            part = region.below(elimination, guess, self)
            if part is not None:
                self.label(part, guess)
            self.proven_s = max(self.proven_s, guess)
            self.above *= GUESS_GROWTH

    def label(self, region: Region, top: float) -> None:
        """Find the K best choices among those of cost at most ``top``; exact, or raises."""
        graph = LayeredGraph(region.problem)
        if not self.tighten(region, graph, top):
            return
        limit = top + self.allowance(top, region.multipliers.price_s_per_byte)
        bounds = [CompletionBound(graph, region.tables, region.multipliers, self.capacity_bytes)]
        labels, complete = search_labels(
            graph,
            region.tables,
            bounds,
            limit=limit,
            capacity=self.capacity,
            max_labels=MAX_LABELS,
            deadline=self.deadline,
        )
        self.stats = (graph.num_transitions, sum(len(l.state) for l in labels), max(len(l.state) for l in labels))
        assert complete
        tell = region.report(self.on_choice)
        for choice in best_choices(
            graph,
            region.tables,
            labels,
            region.select(self.keys),
            num_solutions=self.limits.num_solutions,
            limit=limit,
            capacity=self.capacity,
        ):
            tell(choice, region.tables.evaluate(choice))

    def tighten(self, region: Region, graph: LayeredGraph, top: float) -> bool:
        """Raise the bound over a layered graph and prune it; False when nothing is left."""
        for _ in range(4):
            if not self.ascend(region, graph, PRECISION, top):
                return False
            before = graph.num_transitions
            multipliers = region.multipliers
            price = multipliers.price_s_per_byte
            limit = top + self.allowance(top, price) + (price * self.capacity_bytes if price else 0.0)
            if not graph.prune(region.tables.node_costs(multipliers.suffix, price), limit):
                return False
            if graph.num_transitions > 0.7 * before:
                break
        return True


@dataclass(slots=True)
class Region:
    """Some options of every node: all that choices up to some cost can have, with the best multipliers so far."""

    problem: ChoiceProblem
    tables: FlatTables
    keep: tuple[IntArray, ...]  # node -> options of the whole problem
    multipliers: Multipliers
    bound_s: float

    @classmethod
    def whole(cls, problem: ChoiceProblem, tables: FlatTables) -> Region:
        """All options, and the weights that any problem has: waiting for the first node."""
        first = Multipliers(np.eye(1, problem.num_nodes)[0], 0.0)
        return cls(problem, tables, tuple(np.arange(len(b)) for b in problem.base_s), first, -np.inf)

    def below(self, elimination: Elimination, top: float, search: _Search) -> Region | None:
        """The options whose min-marginals do not pass ``top``; None when some node has none."""
        price = self.multipliers.price_s_per_byte
        costs = self.tables.node_costs(self.multipliers.suffix, price)
        _, _, marginals = elimination.marginals(costs)
        limit = top + search.allowance(top, price) + (price * search.capacity_bytes if price else 0.0)
        keep = [np.flatnonzero(m <= limit) for m in marginals]
        if any(not len(k) for k in keep):
            return None
        problem = restrict(self.problem, keep)
        kept = tuple(a[k] for a, k in zip(self.keep, keep, strict=True))
        return Region(problem, FlatTables(problem), kept, self.multipliers, self.bound_s)

    def select(self, keys: Sequence[IntArray]) -> list[IntArray]:
        """Rows of the whole problem's tables that belong to this region's options."""
        return [k[o] for k, o in zip(keys, self.keep, strict=True)]

    def report(self, tell: Callable[[IntArray, Evaluation], None]) -> Callable[[IntArray, Evaluation], None]:
        """Pass on a choice in the whole problem's numbers."""

        def told(choice: IntArray, seen: Evaluation) -> None:
            tell(np.array([int(k[o]) for k, o in zip(self.keep, choice, strict=True)]), seen)

        return told


@dataclass(frozen=True, slots=True)
class Forest:
    """A spanning forest of a problem's graph."""

    structure: Structure
    edges: tuple[int, ...]


def spanning_forest(problem: ChoiceProblem) -> Forest:
    """Edges without a cycle that cost most on average, so that leaving out the others loses little."""
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
    return Forest(_structure(problem.num_nodes, pairs), tuple(kept))


def _clip_hide(problem: ChoiceProblem) -> ChoiceProblem:
    """Cap every hide at the largest lag that can reach it, which changes no cost and keeps rounding small."""
    coming = 0.0
    hide: list[FloatArray] = []
    for h, x in zip(reversed(problem.hide_s), reversed(problem.exchange_s), strict=True):
        hide.append(np.minimum(h, coming))
        coming += float(x.max())
    return replace(problem, hide_s=tuple(reversed(hide)))


def _with_allowance(problem: ChoiceProblem) -> float:
    """Capacity to compare sums of memory with: exact for whole bytes, else with an allowance for rounding."""
    whole = all(bool((m == np.floor(m)).all()) for m in problem.memory_bytes)
    capacity = problem.memory_capacity_bytes
    return capacity if whole or not np.isfinite(capacity) else capacity * (1.0 + ROUNDING)
