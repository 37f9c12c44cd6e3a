"""The search over the whole stated space: uniform plans by enumeration, every worker count by the exact per-layer solvers, pipelines.

What is returned is judged by `costmodel.evaluate`; what is not solved is bounded, and the bounds make the proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from costmodel.known_costs import KnownCosts
from costmodel.network import Cluster
from costmodel.splits import SplitTable, factorisations, split_table
from costmodel.tables import CostTables
from costmodel.workload import Workload
from strategies.build import LayerChoice, choice_problem, lower_bounds, memory_extremes
from strategies.exhaustive import blocks, enumerate_uniform
from strategies.per_layer.confirmation import is_confirmed
from strategies.per_layer.problem import Limits, Solution, Status
from strategies.per_layer.search import Method, solve
from strategies.pipeline.search import search_pipelines
from strategies.pool import Candidate, Pool
from strategies.score import STEP_TIME, Score
from strategies.space import (
    Restriction,
    count_layer_plans,
    count_pipelines,
    micro_batch_counts,
)

__all__ = ["Candidate", "Outcome", "SearchSettings", "search"]

Progress = Callable[[str, float], None]

# Tables of moves between layers are built for so many (tensor, pair of layouts) at a time; one worker count that needs more than
# the second number is left open, with its bound.
_GROUP_PAIRS = 2_000_000
_MOST_PAIRS = 60_000_000
# A family that hides behind more plans of other families than this on one worker count is left open there, with its bound.
_MOST_SOLUTIONS = 1280
# Two step times within this relative distance are the same number computed in another order.
_TIE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """What to search and when to stop."""

    max_workers: int
    capacity_bytes: float
    top: int = 10
    score: Score = STEP_TIME
    restriction: Restriction = field(default_factory=Restriction)
    worker_counts: tuple[int, ...] | None = None  # None: all up to max_workers
    micro_batches: tuple[int, ...] | None = None  # None: the divisors of the batch
    enumerate_uniform: bool = True  # evaluate the uniform plans first; the answer is the same without
    wall_s: float = 60.0
    gap: float = 0.0
    solver: Method = "auto"
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Best plans with different keys, and what was proved about the rest."""

    candidates: list[Candidate]
    bound: float  # no plan of the space has a lower score (seconds, unless devices count)
    rest_bound: float  # no plan with another key than the candidates' has
    space_size: int
    searched: dict[str, int]
    nearest_miss: Candidate | None  # least memory over the capacity, when nothing fits
    interrupted: bool = False
    out_of_time: bool = False
    methods: tuple[str, ...] = ()


def search(
    workload: Workload,
    cluster: Cluster,
    settings: SearchSettings,
    progress: Progress | None = None,
    known: KnownCosts | None = None,
) -> Outcome:
    """Find the K best plans with different keys and prove it.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    settings : SearchSettings
    progress : callable, optional
        Called with a word and a fraction between 0 and 1.
    known : KnownCosts, optional
        What is known of the costs of layers of this workload on this cluster; the search adds to it.

    Returns
    -------
    Outcome
        On Ctrl-C or at the time limit, the best so far with a valid bound.
    """
    run = _Run(KnownCosts(workload, cluster) if known is None else known, settings, progress)
    try:
        run.uniform()
        run.layers()
        run.pipelines()
        run.confirm()
    except KeyboardInterrupt:
        run.outcome.interrupted = True
        run.close_open_bounds()
    return run.finish()


class _Run:
    """State of one search."""

    def __init__(self, known: KnownCosts, settings: SearchSettings, progress: Progress | None) -> None:
        self.known, self.settings, self.progress = known, settings, progress
        self.workload = known.workload
        self.deadline = time.monotonic() + settings.wall_s
        self.pool = Pool(
            known,
            top=settings.top,
            capacity_bytes=settings.capacity_bytes,
            family=settings.restriction.family,
            score=settings.score,
        )
        counts = settings.worker_counts or tuple(range(1, settings.max_workers + 1))
        self.counts = counts
        self.micro_batches = settings.micro_batches or micro_batch_counts(self.workload.global_batch)
        self.outcome = Outcome(
            candidates=[],
            bound=float("inf"),
            rest_bound=float("inf"),
            space_size=0,
            searched={"enumerated": 0, "solved": 0, "bounded": 0, "dominated": 0, "infeasible": 0, "open": 0},
            nearest_miss=None,
        )
        # What is still to be closed: a valid lower bound per (worker count, micro-batches), replaced as it is solved.
        self.bounds: list[float] = []
        self.rests: list[float] = []
        self.methods: set[str] = set()
        self.best_choice: LayerChoice | None = None  # the problem that gave the best plan so far
        # Worker count -> bound at one micro-batch, which holds for more.
        self.floors: dict[int, float] = {}

    def report(self, word: str, fraction: float) -> None:
        if self.progress is not None:
            self.progress(word, fraction)

    def remaining_s(self) -> float:
        return self.deadline - time.monotonic()

    # -- uniform plans ---------------------------------------------------------------------------------------------------

    def uniform(self) -> None:
        """Score every uniform plan; the best become incumbents."""
        if not self.settings.enumerate_uniform or not self.settings.restriction.allows_layers:
            return
        for counts in blocks(self.counts, grids=True):
            table = split_table(counts, grids_only=True)
            self.known.prepare(table, self.micro_batches)
            for m in self.micro_batches:
                tables = self.known.tables(table, m)
                count, best = enumerate_uniform(
                    tables,
                    self.settings.restriction,
                    self.settings.capacity_bytes,
                    self.settings.top,
                    self.settings.score,
                )
                self.outcome.searched["enumerated"] += count
                self.pool.add(best, tables)
                if self.remaining_s() < 0.5 * self.settings.wall_s:
                    return

    # -- a split per layer -----------------------------------------------------------------------------------------------

    def layers(self) -> None:
        """Solve every (worker count, micro-batches) whose bound does not rule it out."""
        settings = self.settings
        if not settings.restriction.allows_layers:
            return
        all_fit: set[int] = set()
        for step, m in enumerate(self.micro_batches):
            waiting = [w for w in self.counts if w not in all_fit]
            done = 0
            for counts in blocks(waiting):
                if self.remaining_s() <= 0:
                    break
                self.report("per-layer splits", step / max(len(self.micro_batches), 1))
                self._layers_block(counts, m, all_fit)
                done += len(counts)
            for w in waiting[done:]:
                # More micro-batches never take less time, nor compute less, so the bounds at one hold; none is known before that.
                self._leave_open(self.floors.get(w, 0.0))
        skipped = sum(len(all_fit) for m in self.micro_batches if m > 1)
        self.outcome.searched["dominated"] += skipped

    def _layers_block(self, counts: tuple[int, ...], m: int, all_fit: set[int]) -> None:
        settings = self.settings
        table = split_table(counts)
        if m == self.micro_batches[0]:
            self._count_layer_plans(table)
        tables = self.known.tables(table, m)
        bounds = lower_bounds(tables, settings.restriction, settings.score)
        least, most = memory_extremes(tables, settings.restriction)
        open_counts: list[tuple[float, int]] = []
        for k, w in enumerate(counts):
            self.floors.setdefault(w, float(bounds[k]))
            if m == 1 and most[k] <= settings.capacity_bytes and np.isfinite(bounds[k]):
                # Everything fits in one micro-batch, and k micro-batches never take less time than one (docs/cost-model.md).
                all_fit.add(w)
            if not np.isfinite(bounds[k]):
                self.outcome.searched["infeasible"] += 1
            elif least[k] > settings.capacity_bytes:
                self.outcome.searched["infeasible"] += 1
                self._note_miss(tables, w, float(least[k]))
            else:
                open_counts.append((float(bounds[k]), w))
        open_counts.sort()
        self._solve_counts(open_counts, tables)

    def _count_layer_plans(self, table: SplitTable) -> None:
        """Add the plans of these worker counts to the space, for every number of micro-batches, searched or dominated."""
        for m in self.micro_batches:
            self.outcome.space_size += count_layer_plans(
                self.workload.graph,
                table,
                self.workload.micro_batch(m),
                self.settings.restriction,
                len(self.workload.collectives),
                training=self.workload.training,
            )

    def _solve_counts(self, open_counts: list[tuple[float, int]], block: CostTables) -> None:
        """Solve in order of promise; tables of the edges are built for a few worker counts at a time."""
        position = 0
        while position < len(open_counts):
            bound, _ = open_counts[position]
            if bound > self.pool.cutoff * (1 + _TIE):
                for rest, _ in open_counts[position:]:
                    self.outcome.searched["bounded"] += 1
                    self.rests.append(rest)
                    self.bounds.append(rest)
                return
            group = self._group(open_counts, position)
            if not group:
                self._leave_open(open_counts[position][0])
                position += 1
                continue
            tables = block.part(split_table(sorted(group)))
            for offset, w in enumerate(group):
                self.report(f"per-layer splits, {w} workers", (position + offset) / len(open_counts))
                self._solve_one(tables, w, open_counts[position + offset][0])
            position += len(group)

    def _group(self, open_counts: list[tuple[float, int]], position: int) -> list[int]:
        """Take the next worker counts worth solving, as many as their tables of moves allow; none if the first is too large."""
        tensors = len({layer.output_shape for layer in self.workload.graph.layers})
        group: list[int] = []
        size = 0
        for bound, w in open_counts[position : position + 8]:
            pairs = tensors * len(factorisations(w, 3)) * len(factorisations(w, 4))
            if bound > self.pool.cutoff * (1 + _TIE) or (group and size + pairs > _GROUP_PAIRS):
                break
            if pairs > _MOST_PAIRS:
                break
            group.append(w)
            size += pairs
        return group

    def _solve_one(self, tables: CostTables, workers: int, bound: float) -> None:
        settings = self.settings
        cutoff = self.pool.cutoff
        if bound > cutoff * (1 + _TIE):
            self.outcome.searched["bounded"] += 1
            self.bounds.append(bound)
            self.rests.append(bound)
            return
        if self.remaining_s() <= 0:
            self._leave_open(bound)
            return
        choice = choice_problem(tables, workers, settings.capacity_bytes, settings.restriction, settings.score)
        if choice is None:
            self.outcome.searched["infeasible"] += 1
            return
        wanted, factor = settings.top, float(settings.score.factor(workers))
        while True:
            limits = Limits(
                wall_s=max(self.remaining_s(), 0.0),
                gap=settings.gap,
                cutoff_s=self.pool.cutoff / factor * (1 + 1e-9),
                num_solutions=wanted,
                seed=settings.seed,
            )
            solution = solve(choice.problem, limits, method=settings.solver)
            self.methods.add(solution.method)
            accepted = self.pool.add([choice.plan(c) for c in solution.choices], choice.tables)
            # A family's masks admit some plans of other families: ask for more until enough of them are its own.
            enough = accepted >= settings.top or len(solution.choices) < wanted or wanted >= _MOST_SOLUTIONS
            if enough or solution.status is not Status.OPTIMAL:
                break
            wanted *= 4
        if accepted and self.pool.best()[0].plan.workers == workers and not self.pool.best()[0].plan.is_pipeline:
            self.best_choice = choice
        self._close(solution, bound, accepted, factor)

    def _close(self, solution: Solution, bound: float, accepted: int, factor: float) -> None:
        """Record what one solved worker count proves."""
        if solution.status is Status.INFEASIBLE:
            self.outcome.searched["infeasible"] += 1
            return
        rest = max(factor * (solution.rest_bound_s if solution.choices else solution.bound_s), bound)
        foreign = accepted < len(solution.choices)
        # Where plans of other families were found, those are no bound: the ones found count by themselves, the rest is bounded.
        self.bounds.append(rest if foreign else max(factor * solution.bound_s, bound))
        self.rests.append(rest)
        settled = solution.status in (Status.OPTIMAL, Status.CUT_OFF) and (not foreign or rest >= self.pool.cutoff)
        self.outcome.searched["solved" if settled else "open"] += 1
        self.outcome.out_of_time |= solution.status in (Status.FEASIBLE, Status.LIMIT)

    def _leave_open(self, bound: float) -> None:
        self.outcome.searched["open"] += 1
        self.outcome.out_of_time = True
        self.bounds.append(bound)
        self.rests.append(bound)

    def _note_miss(self, tables: CostTables, workers: int, least: float) -> None:
        """Remember the plan of least memory, for the message when nothing fits."""
        if self.pool.nearest_miss is not None and self.pool.nearest_miss.memory_bytes <= least:
            return
        choice = choice_problem(tables, workers, float("inf"), self.settings.restriction)
        if choice is not None:
            smallest = np.array([int(np.argmin(need)) for need in choice.problem.memory_bytes])
            self.pool.add([choice.plan(smallest)])

    # -- pipelines -------------------------------------------------------------------------------------------------------

    def pipelines(self) -> None:
        """Search contiguous stages with replicas."""
        settings = self.settings
        if not settings.restriction.allows_pipelines or max(self.counts) < 2:
            return
        layers = sum(layer.kind != "input" for layer in self.workload.graph.layers)
        for step, m in enumerate(self.micro_batches):
            self.report("pipelines", step / len(self.micro_batches))
            replicas = self.workload.micro_batch(m)
            if settings.worker_counts is None:
                self.outcome.space_size += count_pipelines(layers, settings.max_workers, replicas, m)
            result = search_pipelines(
                self.known,
                num_micro_batches=m,
                worker_counts=[w for w in self.counts if w >= 2],
                capacity_bytes=settings.capacity_bytes,
                cutoff=lambda: self.pool.cutoff,
                score=settings.score,
                top=settings.top,
                wall_s=max(self.remaining_s(), 0.0),
                found=self.pool.add,
            )
            self.bounds.append(result.bound)
            self.rests.append(result.rest_bound)
            for name, value in result.searched.items():
                self.outcome.searched[name] = self.outcome.searched.get(name, 0) + value
            if result.searched.get("open", 0):
                self.outcome.out_of_time = True

    # -- the second opinion ----------------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Prove the best plan's worker count a second time, by the integer program, where that takes no time."""
        choice, best = self.best_choice, self.pool.best()
        if self.settings.solver != "auto" or self.settings.restriction.family is not None or choice is None or not best:
            return
        if best[0].plan.workers != choice.workers or best[0].plan.is_pipeline or "program" in self.methods:
            return
        found_s = best[0].score / float(self.settings.score.factor(choice.workers))
        if is_confirmed(choice.problem, found_s, self.remaining_s()):
            self.methods.add("program")

    # -- the end ---------------------------------------------------------------------------------------------------------

    def close_open_bounds(self) -> None:
        """After an interruption nothing is known of what was not looked at: the bound is the trivial one."""
        self.bounds.append(0.0)
        self.rests.append(0.0)

    def finish(self) -> Outcome:
        outcome = self.outcome
        outcome.candidates = self.pool.best()
        best = outcome.candidates[0].score if outcome.candidates else float("inf")
        last = outcome.candidates[-1].score if outcome.candidates else float("inf")
        outcome.bound = min([*self.bounds, best])
        outcome.rest_bound = min(
            [*self.rests, *([last] if len(outcome.candidates) == self.settings.top else [])], default=last
        )
        outcome.nearest_miss = self.pool.nearest_miss
        outcome.methods = tuple(sorted(self.methods))
        return outcome
