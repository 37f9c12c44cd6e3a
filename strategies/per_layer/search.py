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
from dataclasses import replace
from typing import Literal

import numpy as np

from strategies.per_layer.elimination import Elimination, Structure, TooWideError
from strategies.per_layer.flat import Evaluation, FlatTables, restrict
from strategies.per_layer.k_best import best_choices
from strategies.per_layer.labels import CompletionBound, OutOfTimeError, search_labels
from strategies.per_layer.lagrangian import DualAscent, Multipliers
from strategies.per_layer.layers import LayeredGraph
from strategies.per_layer.problem import ChoiceProblem, FloatArray, IntArray, Limits, Solution, Status, objective_s

__all__ = ["Method", "Structure", "lower_bound", "solve", "structure_of"]

Method = Literal["auto", "elimination", "program"]

ROUNDING = 1e-12
FIRST_GUESS = 1e-4  # above the bound, relative
GUESS_GROWTH = 4.0
MAX_ASCENT = 60
MAX_LABELS = 300_000
EASY_TRANSITIONS = 60_000


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
        self.multipliers: Multipliers | None = None
        self.scale = float(sum(x.max() for x in self.problem.exchange_s))

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
        """Bound, then guesses."""
        leanest = np.array([int(m.argmin()) for m in self.problem.memory_bytes])
        first = self.tables.evaluate(leanest)
        if first.memory > self.capacity:
            self.proven_s = np.inf
            return self.result(Status.INFEASIBLE)
        self.on_choice(leanest, first)
        try:
            elimination = Elimination(structure_of(self.problem), self.problem)
            self.ascend(elimination)
            if self.proven_s > self.limits.cutoff_s:
                return self.result(Status.CUT_OFF)
            return self.guesses(elimination)
        except OutOfTimeError:
            return self.result(Status.FEASIBLE if self.found else Status.LIMIT)

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

    def ascend(self, elimination: Elimination) -> None:
        """Raise the bound over all options."""
        ascent = DualAscent(
            self.tables, elimination, self.problem.memory_capacity_bytes, on_choice=self.on_choice
        )
        for _ in range(MAX_ASCENT):
            self.check_time()
            ascent.step()
            price = ascent.best.price_s_per_byte
            self.proven_s = max(0.0, ascent.bound_s - self.allowance(ascent.bound_s, price))
            self.multipliers = ascent.best
            if self.proven_s > self.limits.cutoff_s or self.done():
                return
            missing = ascent.model_s - ascent.bound_s
            gap = self.threshold() - ascent.bound_s
            if missing <= max(1e-6 * ascent.bound_s, 0.02 * min(gap, 0.02 * ascent.bound_s)):
                return

    def check_time(self) -> None:
        """Raise when the time is over."""
        if time.perf_counter() > self.deadline:
            raise OutOfTimeError

    def guesses(self, elimination: Elimination) -> Solution:
        """Raise the guess until enough choices lie below it."""
        assert self.multipliers is not None
        above = FIRST_GUESS * self.proven_s
        if self.done():
            return self.result(Status.OPTIMAL)
        price = self.multipliers.price_s_per_byte
        _, _, marginals = elimination.marginals(self.tables.node_costs(self.multipliers.suffix, price))
        flat = np.concatenate(marginals)
        if price:
            flat -= price * self.problem.memory_capacity_bytes
        largest = self.largest()
        while True:
            top = min(self.threshold(), largest)
            guess = min(self.proven_s + above, top)
            if self.proven_s + 2.0 * above >= top:
                guess = top
            self.below(guess, flat)
            self.proven_s = max(self.proven_s, guess)
            above *= GUESS_GROWTH
            if self.done():
                return self.result(Status.OPTIMAL)
            if guess >= self.limits.cutoff_s or guess >= largest:
                self.proven_s = np.inf if guess >= largest and not self.found else self.proven_s
                return self.result(Status.OPTIMAL if self.found else Status.CUT_OFF)

    def largest(self) -> float:
        """A cost that no choice passes."""
        edges = sum(float(e.cost_s.max()) for e in self.problem.edges)
        return (sum(float(b.max()) for b in self.problem.base_s) + self.scale + edges) * (1.0 + 1e-9)

    def below(self, guess: float, marginals: FloatArray) -> None:
        """Find the K best choices among those of cost at most ``guess``; exact, or raises."""
        assert self.multipliers is not None
        price = self.multipliers.price_s_per_byte
        limit = guess + self.allowance(guess, price)
        keep = [np.flatnonzero(m <= limit) for m in self.tables.split(marginals)]
        if any(not len(k) for k in keep):
            return
        problem = restrict(self.problem, keep)
        tables = FlatTables(problem)
        graph = LayeredGraph(problem)
        multipliers = self.tighten(graph, tables, limit, keep)
        if multipliers is None:
            return
        bounds = [CompletionBound(graph, tables, m, problem.memory_capacity_bytes) for m in multipliers]
        labels, complete = search_labels(
            graph, tables, bounds, limit=limit, capacity=self.capacity, max_labels=MAX_LABELS, deadline=self.deadline
        )
        self.stats = (graph.num_transitions, sum(len(l.state) for l in labels), max(len(l.state) for l in labels))
        assert complete
        keys = [k[o] for k, o in zip(self.keys, keep, strict=True)]
        for choice in best_choices(
            graph, tables, labels, keys, num_solutions=self.limits.num_solutions, limit=limit, capacity=self.capacity
        ):
            whole = np.array([k[o] for k, o in zip(keep, choice, strict=True)])
            self.on_choice(whole, self.tables.evaluate(whole))

    def tighten(
        self, graph: LayeredGraph, tables: FlatTables, limit: float, keep: list[IntArray]
    ) -> list[Multipliers] | None:
        """Raise the bound over what is left and prune by it; None when nothing is left."""
        def met(choice: IntArray, seen: Evaluation) -> None:
            self.on_choice(np.array([k[o] for k, o in zip(keep, choice, strict=True)]), seen)

        capacity = self.problem.memory_capacity_bytes
        assert self.multipliers is not None
        best = self.multipliers
        for _ in range(4):
            ascent = DualAscent(tables, graph, capacity, start=best, on_choice=met)
            for _ in range(15):
                self.check_time()
                ascent.step()
                if ascent.bound_s > limit:
                    return None
                if ascent.model_s - ascent.bound_s <= 0.02 * (limit - ascent.bound_s):
                    break
            best = ascent.best
            before = graph.num_transitions
            price = best.price_s_per_byte
            offset = price * capacity if price else 0.0
            if not graph.prune(tables.node_costs(best.suffix, price), limit + offset):
                return None
            if graph.num_transitions > 0.7 * before:
                break
        return [best]


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
