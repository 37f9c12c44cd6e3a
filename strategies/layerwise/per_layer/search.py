"""Solve a per-layer choice exactly: bounds, fixing, labels, and the program where those do not reach.

With a Lagrangian bound and a guess ``u`` of the best cost, every option whose min-marginal passes ``u`` is left out, and
the labels decide what remains. Finding a choice of cost at most ``u`` proves it the best; finding none proves that
nothing costs ``u`` or less, and the guess is raised. Guesses grow geometrically from just above the bound, so most of
the work is done at the last one, which is hardly wider than necessary.

Where options are many, the bound of a spanning forest of the graph first leaves out those that no choice of interest has:
elimination over all edges takes time that grows with the square or cube of the options.

Numbers are compared with a relative allowance of 1e-12: choices whose costs differ by less count as equal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.tolerances import CONFIRMED, EQUAL, ROUNDING
from strategies.layerwise.per_layer.elimination import Elimination, TooWideError
from strategies.layerwise.per_layer.k_best import (
    CompletionBound,
    LayeredGraph,
    best_choices,
    search_labels,
)
from strategies.layerwise.per_layer.lagrangian import DualAscent, Region, forest_of
from strategies.layerwise.per_layer.problem import (
    ChoiceProblem,
    Limits,
    Solution,
    Status,
    objective_s,
    structure_of,
)
from strategies.limits import Clock, OutOfTimeError

Method = Literal["auto", "elimination", "program"]

FIRST_GUESS = 1e-4  # above the bound, relative
MANY_OPTIONS = 100  # per node on average; fewer are not worth a bound of their own
PRECISION = 0.02  # share of the gap that the multipliers may leave open
MAX_ASCENT = 60
FIRST_BUDGET = 250_000  # labels of one guess
MAX_LABELS = 4_000_000
FEW_LABELS = 2_000  # of one guess; the next one then grows fourfold, else twofold
BEAM = 1_000  # labels per cut that look for good choices where there are too many


def solve(problem: ChoiceProblem, limits: Limits, *, method: Method = "auto") -> Solution[IntArray]:
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

    Raises
    ------
    SolverError
        When the integer program is needed and its library fails.

    Examples
    --------
    >>> zero = np.zeros(2)
    >>> p = ChoiceProblem(base_s=(np.array([3.0, 4.0]), np.array([2.0, 1.0])), hide_s=(zero, zero),
    ...     exchange_s=(np.array([2.0, 0.0]), zero), memory_bytes=(zero, zero))
    >>> s = solve(p, Limits())
    >>> s.status.value, s.objectives_s, s.choices[0].tolist()
    ('optimal', (5.0,), [1, 1])
    """
    if method == "program":
        from strategies.layerwise.per_layer.program import solve_program  # the elimination never needs a solver library

        return solve_program(problem, limits)
    return _Search(problem, limits, may_use_program=method == "auto").run()


class _OverflowError(Exception):
    """The labels of a guess, or its layers, are too many."""


class _Search:
    """State of one solve: what was found, and what is proved."""

    def __init__(self, problem: ChoiceProblem, limits: Limits, *, may_use_program: bool) -> None:
        self.clock = Clock(limit_s=limits.wall_s)
        self.given = problem
        self.limits = limits
        self.may_use_program = may_use_program
        self.problem = _clip_hide(problem)
        self.all_options = Region.of(self.problem)
        self.capacity_bytes = problem.memory_capacity_bytes
        self.capacity_allowed = _with_allowance(problem)
        self.keys = problem.key_class or tuple(np.arange(len(b)) for b in problem.base_s)
        self.exchange_sum_s = sum(float(x.max()) for x in problem.exchange_s)
        edges = sum(float(e.cost_s.max()) for e in problem.edges)
        # A cost that no choice passes.
        self.largest = (sum(float(b.max()) for b in problem.base_s) + self.exchange_sum_s + edges) * (1.0 + EQUAL)
        self.found: dict[bytes, tuple[float, IntArray]] = {}
        self.proven_s = 0.0  # every choice whose key is not in `found` costs at least this
        self.growth = FIRST_GUESS
        self.budget = FIRST_BUDGET
        self.method = "elimination"

    # -- what is known ---------------------------------------------------------------------------------------------

    def offer(self, choice: IntArray) -> None:
        """Remember a choice if it fits and is among the best of different keys."""
        seen = self.all_options.tables.evaluate(choice)
        value = seen.objective_s
        if seen.memory > self.capacity_allowed or value > self.threshold() * (1.0 + ROUNDING):
            return
        key = np.array([k[o] for k, o in zip(self.keys, choice, strict=True)], dtype=np.int64).tobytes()
        if key not in self.found or value < self.found[key][0]:
            self.found[key] = (value, choice.copy())
            if len(self.found) > self.limits.num_solutions:
                del self.found[max(self.found, key=lambda k: self.found[k][0])]

    def threshold(self) -> float:
        """Costs above this are of no interest: the cutoff, or the K-th best so far."""
        if len(self.found) < self.limits.num_solutions:
            return self.limits.cutoff_s
        return min(self.limits.cutoff_s, max(v for v, _ in self.found.values()))

    def highest(self) -> float:
        """The last guess: nothing more expensive is of interest, or exists."""
        return min(self.threshold(), self.largest)

    def prove(self, value: float) -> None:
        """Nothing else costs ``value`` or less, and nothing else is better than the K-th best found."""
        self.proven_s = max(self.proven_s, min(value, self.highest()))

    def finished(self) -> bool:
        """Whether the gap asked for is reached, or nothing is left to find."""
        if self.proven_s >= self.highest():
            return True
        if len(self.found) < self.limits.num_solutions:
            return False
        worst = max(v for v, _ in self.found.values())
        return worst - self.proven_s <= max(self.limits.gap, ROUNDING) * worst

    def allowed(self, top: float, price: float) -> float:
        """``top`` with an allowance for what rounding adds up to in sums of this size, and for that of the capacity."""
        capacity = price * self.capacity_bytes if price else 0.0
        return top + ROUNDING * (abs(top) + capacity) + 1e-14 * self.exchange_sum_s

    def result(self, status: Status) -> Solution[IntArray]:
        """Let the definition evaluate what was found, and put the bound with it."""
        choices = [c for _, c in self.found.values()]
        evaluated = sorted((objective_s(self.given, c), c.tolist(), n) for n, c in enumerate(choices))
        rest = np.inf if self.proven_s >= self.largest else self.proven_s
        bound = min(rest, evaluated[0][0]) if evaluated else rest
        if evaluated and evaluated[0][0] - bound <= ROUNDING * evaluated[0][0]:
            bound = evaluated[0][0]  # equal, but for the order of summation
        return Solution(
            status=status,
            choices=tuple(choices[n] for _, _, n in evaluated),
            objectives_s=tuple(v for v, _, _ in evaluated),
            bound_s=bound,
            method=self.method,
            rest_bound_s=rest,
        )

    # -- the search ------------------------------------------------------------------------------------------------

    def run(self) -> Solution[IntArray]:
        """The choice of least memory settles whether anything fits."""
        smallest = np.array([int(m.argmin()) for m in self.problem.memory_bytes])
        if self.all_options.tables.evaluate(smallest).memory > self.capacity_allowed:
            self.proven_s = np.inf
            return self.result(Status.INFEASIBLE)
        self.offer(smallest)
        try:
            region = self.narrowed()
            if region is None:
                self.prove(self.highest())
            else:
                self.explore(region)
        except OutOfTimeError:
            return self.result(Status.FEASIBLE if self.found else Status.LIMIT)
        return self.result(Status.OPTIMAL if self.found else Status.CUT_OFF)

    @staticmethod
    def _guess(bound: float, above: float, highest: float) -> float:
        """A cost some way above a bound; the highest of interest when that is hardly further."""
        step = above * max(bound, 1e-3 * highest)
        return highest if bound + 2.0 * step >= highest else bound + step

    def narrowed(self) -> Region | None:
        """The options of choices that may be of interest; None where there are none."""
        options = sum(len(b) for b in self.problem.base_s)
        if not np.isfinite(self.limits.cutoff_s) or options <= MANY_OPTIONS * self.problem.num_nodes:
            return self.all_options
        forest = Region.of(forest_of(self.problem))
        elimination = _elimination_of(forest)
        if not self.ascend(forest, elimination):
            return None
        limit = self.allowed(self.highest(), forest.multipliers.price_s_per_byte)
        return self.all_options.below(forest.marginals(elimination), limit)

    def ascend(self, region: Region, elimination: Elimination) -> bool:
        """Raise the bound; False when nothing is left to find."""
        ascent = DualAscent(
            region.tables, elimination, self.capacity_bytes, lambda choice: self.offer(region.original(choice))
        )
        for _ in range(MAX_ASCENT):
            self.clock.check()
            ascent.step()
            allowance = self.allowed(ascent.bound_s, ascent.best.price_s_per_byte) - ascent.bound_s
            self.prove(ascent.bound_s - allowance)
            if self.finished():
                return False
            missing = ascent.model_s - ascent.bound_s
            gap = min(self.threshold(), self.highest()) - ascent.bound_s
            if missing <= PRECISION * min(gap, 0.02 * ascent.bound_s):
                break
        region.multipliers = ascent.best
        return True

    def explore(self, region: Region) -> None:
        """Find the best choices of a region by guesses that grow from the bound."""
        try:
            elimination = _elimination_of(region)
        except TooWideError:
            self.integer_program(region)
            return
        if not self.ascend(region, elimination):
            return
        marginals, price = region.marginals(elimination), region.multipliers.price_s_per_byte
        while not self.finished():
            guess = self._guess(self.proven_s, self.growth, self.highest())
            part = region.below(marginals, self.allowed(guess, price))
            try:
                count = self.label(part, guess) if part is not None else 0
            except _OverflowError:
                # What the search met on the way may have lowered the highest guess. Look closer to the bound, and spend
                # more: the budget grows as fast as the guesses shrink, so little is wasted.
                if self.budget >= MAX_LABELS:
                    self.integer_program(region.below(marginals, self.allowed(self.highest(), price)) or region)
                    return
                self.growth /= 3.0
                self.budget = min(4 * self.budget, MAX_LABELS)
                continue
            self.prove(guess)
            self.growth *= 4.0 if count < FEW_LABELS else 2.0

    def label(self, region: Region, top: float) -> int:
        """Find the K best choices among those of cost at most ``top``: exact, or raises; returns the labels made."""
        try:
            graph = LayeredGraph(region.problem)
        except TooWideError as error:
            raise _OverflowError from error
        limit = self.allowed(top, region.multipliers.price_s_per_byte)
        labels, complete = search_labels(
            graph,
            region.tables,
            CompletionBound(graph, region.tables, region.multipliers, self.capacity_bytes),
            limit=limit,
            capacity=self.capacity_allowed,
            max_labels=self.budget,
            beam=BEAM,
            clock=self.clock,
        )
        choices = best_choices(
            graph,
            region.tables,
            labels,
            region.select(self.keys),
            num_solutions=self.limits.num_solutions,
            limit=limit,
            capacity=self.capacity_allowed,
        )
        for choice in choices:
            self.offer(region.original(choice))
        if not complete:
            raise _OverflowError
        return sum(len(cut.state) for cut in labels)

    def integer_program(self, region: Region) -> None:
        """Leave a region that holds all that is of interest to the integer program."""
        if not self.may_use_program:
            raise OutOfTimeError
        from strategies.layerwise.per_layer.program import solve_program

        self.method = "elimination+program"
        limits = replace(self.limits, wall_s=self.clock.left_s, cutoff_s=self.highest())
        answer = solve_program(region.problem, limits)
        for choice in answer.choices:
            self.offer(region.original(choice))
        self.prove(answer.rest_bound_s)
        if answer.status in {Status.FEASIBLE, Status.LIMIT}:
            raise OutOfTimeError


def _elimination_of(region: Region) -> Elimination:
    pairs = tuple((edge.producer, edge.consumer) for edge in region.problem.edges)
    return Elimination(structure_of(region.problem.num_nodes, pairs), region.problem)


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
    is_exact = all(bool((m == np.floor(m)).all()) for m in problem.memory_bytes)
    capacity = problem.memory_capacity_bytes
    return capacity if is_exact or not np.isfinite(capacity) else capacity * (1.0 + ROUNDING)


# Problems with at most so many pairs of options of neighbouring layers are solved a second time by the integer program: it took
# 0.03 s for AlexNet on 8 workers (2,030 pairs) and 0.8 s on 16 (5,141), as long as everything else together. Its tree mostly has one
# node; a count of them, unlike a time, ends it alike on every machine.
_CONFIRMED_PAIRS = 4_000
_CONFIRMED_NODES = 200
_LEAST_S = 1.0


def is_confirmed(problem: ChoiceProblem, best_s: float, wall_s: float) -> bool:
    """Prove by the integer program that nothing is cheaper than what elimination found, where that takes no time.

    The two methods share nothing but the problem. A contradiction is a defect of the planner, so it is raised.

    Parameters
    ----------
    problem : ChoiceProblem
    best_s : float
    wall_s : float
        What is left of the time; with little left nothing is proved.
    """
    sizes = [len(base) for base in problem.base_s]
    pairs = sum(sizes[edge.producer] * sizes[edge.consumer] for edge in problem.edges)
    if pairs > _CONFIRMED_PAIRS or wall_s < _LEAST_S:
        return False
    limits = Limits(wall_s=wall_s, cutoff_s=best_s * 1.001, most_nodes=_CONFIRMED_NODES)
    solution = solve(problem, limits, method="program")
    if solution.status is not Status.OPTIMAL:
        return False
    if not best_s * (1 - CONFIRMED) <= solution.objectives_s[0] <= best_s * (1 + CONFIRMED):
        raise AssertionError(f"elimination found {best_s!r} and the program {solution.objectives_s[0]!r}")
    return True
