"""The search over the whole space: every worker count by the exact per-layer solvers, and pipelines.

What is returned is evaluated by `costmodel.layerwise.evaluate`; what is not solved is bounded, and the bounds make the proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.plan import divisors, factorisations, split_table
from costmodel.layerwise.tables import CostCache, CostTables, storage_read_s
from costmodel.tolerances import EQUAL, ROUNDING
from costmodel.workload import Workload
from strategies.layerwise.bounds import least_step_s, lower_bounds, memory_extremes, screened_bounds
from strategies.layerwise.build import LayerChoice, choice_problem
from strategies.layerwise.candidates import (
    Candidate,
    LayerwiseOutcome,
    Pool,
    SearchSettings,
    best_data_parallel,
    blocks,
)
from strategies.layerwise.per_layer.problem import Limits, Solution, Status
from strategies.layerwise.per_layer.search import is_confirmed, solve
from strategies.layerwise.pipeline.search import PipelineSearch, replica_table
from strategies.layerwise.space import count_layer_plans, count_pipelines
from strategies.limits import Clock, Progress

__all__ = ["Candidate", "LayerwiseOutcome", "SearchSettings", "search", "search_part"]


# A worker count whose tables of moves between layers need more (tensor, pair of layouts) is left open, with its bound.
_MOST_PAIRS = 60_000_000
# Worker counts are screened where they have so many splits: costing fewer takes no longer than screening them.
_SCREENED_SPLITS = 4096
# More worker counts than this do not fit into one block of tables.
_FEW_COUNTS = 256
# A family that hides behind more plans of other families than this on one worker count is left open there, with its bound.
_MOST_SOLUTIONS = 1280
# Of a network with many equal blocks the best plans may all be the same work: a list is shorter rather than take more than so many times
# as many plans.
_MOST_ALIKE = 4


def search(
    workload: Workload,
    cluster: Cluster,
    settings: SearchSettings,
    progress: Progress | None = None,
    cache: CostCache | None = None,
) -> LayerwiseOutcome:
    """Find the K best plans with different keys and prove it.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    settings : SearchSettings
    progress : callable, optional
        Called with a word and a fraction between 0 and 1.
    cache : CostCache, optional
        What is known of the costs of layers of this workload on this cluster; the search adds to it.

    Returns
    -------
    LayerwiseOutcome
        On Ctrl-C or at the time limit, the best so far with a valid bound.
    """
    run = _Run(CostCache(workload, cluster) if cache is None else cache, settings, progress)
    run.least = np.maximum(run.least, settings.score.of(least_step_s(workload), 0.0, run.workers))
    run.floors = run.least.copy()
    try:
        run.count()
        run.data_parallel()
        run.layers()
        run.pipelines()
        run.confirm()
    except KeyboardInterrupt:
        run.outcome.interrupted = True
        # Nothing is known of what was not looked at but what holds for all plans.
        run.outcome.bound(float(np.min(run.least)))
    return run.finish()


def search_part(cache: CostCache, settings: SearchSettings) -> LayerwiseOutcome:
    """The best plans of a part of a space, whose plans are not counted; the cutoff says what is of interest."""
    run = _Run(cache, settings, None)
    run.layers()
    run.pipelines()
    return run.finish()


class _Run:
    """State of one search."""

    def __init__(self, cache: CostCache, settings: SearchSettings, progress: Progress | None) -> None:
        self.cache, self.settings = cache, settings
        self.report: Progress = progress or (lambda _word, _fraction: None)
        self.workload = cache.workload
        self.clock = Clock(limit_s=settings.wall_s)
        self.pool = Pool(cache, settings)
        # Ascending.
        self.workers = np.array(
            sorted(settings.worker_counts) if settings.worker_counts else range(1, settings.max_workers + 1),
            dtype=np.int64,
        )
        self.micro_batches = settings.micro_batches or divisors(self.workload.global_batch)
        self.outcome = LayerwiseOutcome()
        self.methods: set[str] = set()
        self.best_choice: LayerChoice | None = None  # the problem that gave the best plan so far
        # Bounds of the scores at every worker count that hold before anything is costed.
        self.least = self._storage_scores(self.workers)
        # Bounds of the plans without stages at every worker count, at one micro-batch, which hold for more.
        self.floors: FloatArray = self.least.copy()

    # -- the size of the space -------------------------------------------------------------------------------------------

    def count(self) -> None:
        """Count the plans of the whole space, and rule out the worker counts that no plan without stages has.

        Plans with every number of micro-batches count, whether they are searched or dominated.
        """
        settings, sizes = self.settings, [self.workload.micro_batch(m) for m in self.micro_batches]
        if settings.restriction.allows_layers:
            plans, is_possible = count_layer_plans(
                self.workload.graph,
                self.workers.tolist(),
                sizes,
                settings.restriction,
                len(self.workload.collectives),
                training=self.workload.training,
            )
            self.outcome.space_size += plans
            self.floors[~is_possible] = np.inf
        if self._allows_pipelines() and settings.worker_counts is None:
            layers = sum(layer.kind != "input" for layer in self.workload.graph.layers)
            for m, size in zip(self.micro_batches, sizes, strict=True):
                self.outcome.space_size += count_pipelines(layers, settings.max_workers, size, m)

    # -- a split per layer -----------------------------------------------------------------------------------------------

    def data_parallel(self) -> None:
        """Take in plain data parallelism, so that there is a plan however short the time is."""
        settings = self.settings
        if not settings.restriction.is_free:
            return
        if settings.worker_counts is not None or settings.micro_batches is not None:
            return
        for plan in best_data_parallel(self.cache, settings.max_workers, settings.capacity_bytes, settings.score):
            if plan is not None:
                table = split_table([plan.workers], batch_only=True)
                self.pool.add([plan], self.cache.tables(table, plan.num_micro_batches))

    def layers(self) -> None:
        """Solve every (worker count, micro-batches) whose bound does not rule it out.

        Of many worker counts the powers of two come first: the best of them is seldom far from the best of all, and rules out most others.
        """
        if not self.settings.restriction.allows_layers:
            return
        all_fit: set[int] = set()
        for step, m in enumerate(self.micro_batches):
            # The floors hold for more micro-batches, too: they never take less time, nor compute less.
            waiting = self._still_open([w for w in self.workers.tolist() if w not in all_fit])
            first = [w for w in waiting if w.bit_count() == 1] if len(waiting) > _FEW_COUNTS else []
            others = sorted(set(waiting).difference(first))
            done = 0
            for counts in chain(blocks(first), blocks(others)):
                if not self.clock.left_s:
                    break
                self.report("per-layer splits", step / len(self.micro_batches))
                self._layers_block(counts, m, all_fit)
                done += len(counts)
            self.outcome.close("open", self._floors_of([*first, *others][done:]))
            if m > 1:
                self.outcome.searched["dominated"] += len(all_fit)

    def _floors_of(self, counts: Sequence[int]) -> FloatArray:
        return np.asarray(self.floors[np.searchsorted(self.workers, counts)])

    def _still_open(self, counts: Sequence[int]) -> list[int]:
        """Worker counts whose plans may be of interest, as far as is known; the others are closed."""
        floors = self._floors_of(counts)
        possible = np.isfinite(floors)
        is_open = possible & (floors <= self.pool.cutoff * (1 + ROUNDING))
        self.outcome.close("infeasible", floors[~possible])
        self.outcome.close("bounded", floors[possible & ~is_open])
        return [w for w, wanted in zip(counts, is_open.tolist(), strict=True) if wanted]

    def _layers_block(self, counts: Sequence[int], m: int, all_fit: set[int]) -> None:
        settings, is_first = self.settings, m == self.micro_batches[0]
        splits = sum(len(factorisations(w, 4)) for w in counts)
        if is_first and np.isfinite(self.pool.cutoff) and splits >= _SCREENED_SPLITS:
            # No time is spent on the tables of worker counts that the plans found so far already beat.
            table = split_table(counts)
            self._raise_floors(counts, screened_bounds(self.cache, table, m, settings, self.pool.cutoff))
            counts = self._still_open(counts)
        if not counts:
            return
        tables = self.cache.tables(split_table(counts), m)
        bounds = np.maximum(lower_bounds(tables, settings.restriction, settings.score), self._storage_scores(counts))
        least, most = memory_extremes(tables, settings.restriction)
        if is_first:
            self._raise_floors(counts, bounds)
        open_counts: list[tuple[float, int]] = []
        for k, w in enumerate(counts):
            if m == 1 and most[k] <= settings.capacity_bytes and np.isfinite(bounds[k]):
                # Everything fits in one micro-batch, and k micro-batches never take less time than one (docs/cost-model.md).
                all_fit.add(w)
            if np.isfinite(bounds[k]) and least[k] <= settings.capacity_bytes:
                open_counts.append((float(bounds[k]), w))
                continue
            self.outcome.searched["infeasible"] += 1
            if np.isfinite(bounds[k]):
                self._note_miss(tables, w, float(least[k]))
        self._solve_counts(sorted(open_counts), tables)

    def _raise_floors(self, counts: Sequence[int], bounds: FloatArray) -> None:
        place = np.searchsorted(self.workers, counts)
        self.floors[place] = np.maximum(self.floors[place], bounds)

    def _solve_counts(self, open_counts: Sequence[tuple[float, int]], block: CostTables) -> None:
        """Solve in order of promise."""
        tensors = len({layer.output_shape for layer in self.workload.graph.layers})
        for n, (bound, w) in enumerate(open_counts):
            rest = np.array([bound for bound, _ in open_counts[n:]])
            if bound > self.pool.cutoff * (1 + ROUNDING):
                self.outcome.close("bounded", rest)
                return
            if not self.clock.left_s:
                self.outcome.close("open", rest)
                return
            if tensors * len(factorisations(w, 3)) * len(factorisations(w, 4)) > _MOST_PAIRS:
                self.outcome.close("open", rest[:1])
                continue
            self.report(f"per-layer splits, {w} workers", n / len(open_counts))
            self._solve_one(block.part(split_table([w])), w, bound)

    def _solve_one(self, tables: CostTables, workers: int, bound: float) -> None:
        settings = self.settings
        choice = choice_problem(tables, settings.capacity_bytes, settings.restriction, settings.score)
        if choice is None:
            self.outcome.searched["infeasible"] += 1
            return
        wanted, factor = settings.top, float(settings.score.factor(workers))
        while True:
            limits = Limits(
                wall_s=self.clock.left_s,
                gap=settings.gap,
                cutoff_s=self.pool.cutoff / factor * (1 + EQUAL),
                num_solutions=wanted,
            )
            solution = solve(choice.problem, limits, method=settings.solver)
            self.methods.add(solution.method)
            accepted = self.pool.add([choice.plan(c) for c in solution.choices], choice.tables)
            # A family's masks admit some plans of other families, and some plans are the same work: ask for more until the list is full.
            most = _MOST_SOLUTIONS if accepted < settings.top else _MOST_ALIKE * settings.top
            rest = factor * solution.rest_bound_s * (1 + EQUAL)
            enough = rest >= self.pool.cutoff or len(solution.choices) < wanted or wanted >= most
            if enough or solution.status is not Status.OPTIMAL:
                break
            wanted *= 4
        if accepted and self.pool.best()[0].plan.workers == workers and not self.pool.best()[0].plan.is_pipeline:
            self.best_choice = choice
        self._close_solved(solution, bound, accepted, factor)

    def _close_solved(self, solution: Solution[IntArray], bound: float, accepted: int, factor: float) -> None:
        """Record what one solved worker count proves."""
        if solution.status is Status.INFEASIBLE:
            self.outcome.searched["infeasible"] += 1
            return
        rest = max(factor * (solution.rest_bound_s if solution.choices else solution.bound_s), bound)
        foreign = accepted < len(solution.choices)
        # Where plans of other families were found, those are no bound: the ones found count by themselves, the rest is bounded.
        self.outcome.bound(rest if foreign else max(factor * solution.bound_s, bound), rest)
        settled = solution.status in (Status.OPTIMAL, Status.CUT_OFF) and (not foreign or rest >= self.pool.cutoff)
        self.outcome.searched["solved" if settled else "open"] += 1
        self.outcome.out_of_time |= solution.status in (Status.FEASIBLE, Status.LIMIT)

    def _note_miss(self, tables: CostTables, workers: int, least: float) -> None:
        """Remember the plan of least memory, for the message when nothing fits."""
        if self.pool.nearest_miss is not None and self.pool.nearest_miss.memory_bytes <= least:
            return
        choice = choice_problem(tables.part(split_table([workers])), float("inf"), self.settings.restriction)
        if choice is not None:
            smallest = np.array([int(np.argmin(need)) for need in choice.problem.memory_bytes])
            self.pool.add([choice.plan(smallest)])

    # -- pipelines -------------------------------------------------------------------------------------------------------

    def _allows_pipelines(self) -> bool:
        settings = self.settings
        return settings.has_pipelines and settings.restriction.allows_pipelines and int(self.workers[-1]) > 1

    def pipelines(self) -> None:
        """Search contiguous stages with replicas."""
        if not self._allows_pipelines():
            return
        several, numbers = self.workers >= 2, [m for m in self.micro_batches if m > 1]
        if self.clock.left_s:
            self.cache.prepare(replica_table(self.workload, int(self.workers[-1])), numbers)
        pipelines = PipelineSearch(
            self.cache,
            self.settings,
            self.pool,
            self.outcome,
            self.clock,
            self.workers[several].tolist(),
            self.least[several],
        )
        for step, m in enumerate(numbers):
            self.report("pipelines", step / len(numbers))
            pipelines.search(m)

    # -- the second opinion ----------------------------------------------------------------------------------------------

    def confirm(self) -> None:
        """Prove the best plan's worker count a second time, by the integer program, where that takes no time."""
        choice, best = self.best_choice, self.pool.best()
        if self.settings.solver != "auto" or self.settings.restriction.family is not None or choice is None or not best:
            return
        if best[0].plan.workers != choice.workers or best[0].plan.is_pipeline or "program" in self.methods:
            return
        if np.any(self._storage_scores(self.workers)):
            return  # the program does not know that a step may wait for storage
        found_s = best[0].score / float(self.settings.score.factor(choice.workers))
        if is_confirmed(choice.problem, found_s, self.clock.left_s):
            self.methods.add("program")

    # -- the end ---------------------------------------------------------------------------------------------------------

    def _storage_scores(self, counts: Sequence[int] | IntArray) -> FloatArray:
        """Scores of steps that do nothing but wait for the storage of their input: no plan has less."""
        late = storage_read_s(self.workload, self.cache.cluster, counts)
        return self.settings.score.of(late, np.zeros(len(counts)), counts)

    def finish(self) -> LayerwiseOutcome:
        outcome = self.outcome
        outcome.candidates = self.pool.best()
        if outcome.candidates:
            best, last = outcome.candidates[0].score, outcome.candidates[-1].score
            is_full = len(outcome.candidates) == self.settings.top
            outcome.bound(best, last if is_full or not np.isfinite(outcome.rest_bound) else outcome.rest_bound)
        outcome.nearest_miss, outcome.pipeline = self.pool.nearest_miss, self.pool.pipeline
        if self.settings.has_pipelines and not (outcome.interrupted or outcome.out_of_time):
            outcome.pipelines_bound = self.pool.pipeline_cutoff
        outcome.methods = tuple(sorted(self.methods))
        return outcome
