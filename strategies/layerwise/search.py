"""The search over the whole stated space: uniform plans by enumeration, every worker count by the exact per-layer solvers, pipelines.

What is returned is evaluated by `costmodel.layerwise.evaluate`; what is not solved is bounded, and the bounds make the proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.framework import node_size, storage_s
from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.splits import factorisations, split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.tolerances import EQUAL, ROUNDING
from costmodel.workload import Workload
from strategies.layerwise.bounds import least_step_s, lower_bounds, memory_extremes, screened_bounds
from strategies.layerwise.build import LayerChoice, choice_problem
from strategies.layerwise.candidates import Candidate, Outcome, Pool, SearchSettings, blocks, enumerate_uniform
from strategies.layerwise.per_layer.problem import Limits, Solution, Status
from strategies.layerwise.per_layer.search import is_confirmed, solve
from strategies.layerwise.pipeline.search import replica_table, search_pipelines
from strategies.layerwise.space import count_layer_plans, count_pipelines, micro_batch_counts
from strategies.limits import Clock

__all__ = ["Candidate", "Outcome", "SearchSettings", "search"]

Progress = Callable[[str, float], None]

# Tables of moves between layers are built for so many (tensor, pair of layouts) at a time; one worker count that needs more than
# the second number is left open, with its bound.
_GROUP_PAIRS = 2_000_000
_MOST_PAIRS = 60_000_000
# Uniform plans of so many worker counts come first, as incumbents; the others only where these do not bound them away.
_FIRST_COUNTS = 64
# Worker counts are screened where they have so many splits: costing fewer takes no longer than screening them.
_SCREENED_SPLITS = 4096
# A family that hides behind more plans of other families than this on one worker count is left open there, with its bound.
_MOST_SOLUTIONS = 1280


def search(
    workload: Workload,
    cluster: Cluster,
    settings: SearchSettings,
    progress: Progress | None = None,
    cache: CostCache | None = None,
) -> Outcome:
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
    Outcome
        On Ctrl-C or at the time limit, the best so far with a valid bound.
    """
    run = _Run(CostCache(workload, cluster) if cache is None else cache, settings, progress)
    try:
        run.count()
        run.uniform(run.workers[:_FIRST_COUNTS])
        run.screen()
        run.uniform(run.workers[_FIRST_COUNTS:])
        run.layers()
        run.pipelines()
        run.confirm()
    except KeyboardInterrupt:
        run.outcome.interrupted = True
        run.close_open_bounds()
    return run.finish()


class _Run:
    """State of one search."""

    def __init__(self, cache: CostCache, settings: SearchSettings, progress: Progress | None) -> None:
        self.cache, self.settings, self.progress = cache, settings, progress
        self.workload = cache.workload
        self.clock = Clock(limit_s=settings.wall_s)
        self.pool = Pool(
            cache,
            top=settings.top,
            capacity_bytes=settings.capacity_bytes,
            family=settings.restriction.family,
            score=settings.score,
        )
        # Ascending.
        self.workers = np.array(
            sorted(settings.worker_counts) if settings.worker_counts else range(1, settings.max_workers + 1),
            dtype=np.int64,
        )
        self.micro_batches = settings.micro_batches or micro_batch_counts(self.workload.global_batch)
        self.outcome = Outcome(
            candidates=[],
            bound_score=float("inf"),
            rest_bound=float("inf"),
            space_size=0,
            searched={"enumerated": 0, "solved": 0, "bounded": 0, "dominated": 0, "infeasible": 0, "open": 0},
            nearest_miss=None,
        )
        # Least bounds of what was closed: of all plans, and of those that were not found.
        self.bound, self.rest_bound = float("inf"), float("inf")
        self.methods: set[str] = set()
        self.best_choice: LayerChoice | None = None  # the problem that gave the best plan so far
        # Bounds that hold before anything is costed: of the step, and of the scores at every worker count.
        self.least_s = least_step_s(self.workload)
        self.least = np.maximum(settings.score.of(self.least_s, 0.0, self.workers), self._storage_scores(self.workers))
        # Bounds of the plans without stages at every worker count, at one micro-batch, which hold for more.
        self.floors: FloatArray = self.least.copy()

    def report(self, word: str, fraction: float) -> None:
        if self.progress is not None:
            self.progress(word, fraction)

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

    # -- uniform plans ---------------------------------------------------------------------------------------------------

    def uniform(self, workers: IntArray) -> None:
        """Score every uniform plan of worker counts that are not bounded away; the best become incumbents."""
        if not self.settings.enumerate_uniform or not self.settings.restriction.allows_layers:
            return
        settings = self.settings
        for counts in blocks(workers[self._is_open(workers)].tolist(), grids=True):
            waiting: tuple[int, ...] = counts
            if self._has_used_half():
                return
            self.cache.prepare(split_table(counts, grids_only=True), self.micro_batches)
            for m in self.micro_batches:
                tables = self.cache.tables(split_table(waiting, grids_only=True), m)
                found = enumerate_uniform(
                    tables, settings.restriction, settings.capacity_bytes, settings.top, settings.score
                )
                self.outcome.searched["enumerated"] += found.count
                self.pool.add(found.plans, tables)
                if self._has_used_half():
                    return
                if m == 1:
                    # What fits in one micro-batch takes no less time in more, and is the same plan (docs/cost-model.md).
                    waiting = found.too_large
                if not waiting:
                    break

    def _has_used_half(self) -> bool:
        """Whether half of the time is gone and there is a plan: the rest of the time is for the others."""
        return bool(self.pool.best()) and self.clock.left_s < 0.5 * self.settings.wall_s

    # -- a split per layer -----------------------------------------------------------------------------------------------

    def screen(self) -> None:
        """Bound away what the incumbents already beat: no time is spent on the tables of those worker counts."""
        settings, m = self.settings, self.micro_batches[0]
        if not settings.restriction.allows_layers or not np.isfinite(self.pool.cutoff):
            return
        waiting = self.workers[self._is_open(self.workers)].tolist()
        if not _has_many_splits(waiting):
            return
        done = 0
        for counts in blocks(waiting):
            if not self.clock.left_s:
                self.outcome.out_of_time = True
                return
            self.report("bounds", done / len(waiting))
            done += len(counts)
            bounds = screened_bounds(
                self.workload,
                self.cache.cluster,
                split_table(counts),
                m,
                settings.restriction,
                settings.score,
                self.pool.cutoff,
            )
            self._raise_floors(counts, bounds)

    def _raise_floors(self, counts: Sequence[int], bounds: FloatArray) -> None:
        place = np.searchsorted(self.workers, counts)
        self.floors[place] = np.maximum(self.floors[place], bounds)

    def _floors_of(self, workers: IntArray) -> FloatArray:
        return np.asarray(self.floors[np.searchsorted(self.workers, workers)])

    def _is_open(self, workers: IntArray) -> BoolArray:
        """Whether plans of worker counts may be of interest, as far as is known."""
        return np.asarray(self._floors_of(workers) <= self.pool.cutoff * (1 + ROUNDING))

    def _close(self, how: str, bounds: FloatArray) -> None:
        """Record worker counts that are done with, and what bounds their plans."""
        self.outcome.searched[how] += len(bounds)
        self.bound = min(self.bound, float(np.min(bounds, initial=np.inf)))
        self.rest_bound = min(self.rest_bound, float(np.min(bounds, initial=np.inf)))

    def _leave_open(self, bounds: FloatArray) -> None:
        self._close("open", bounds)
        self.outcome.out_of_time |= len(bounds) > 0

    def layers(self) -> None:
        """Solve every (worker count, micro-batches) whose bound does not rule it out."""
        if not self.settings.restriction.allows_layers:
            return
        all_fit: set[int] = set()
        for step, m in enumerate(self.micro_batches):
            waiting = self.workers[~np.isin(self.workers, np.array(sorted(all_fit), dtype=np.int64))]
            # The floors hold for more micro-batches, too: they never take less time, nor compute less.
            floors, is_open = self._floors_of(waiting), self._is_open(waiting)
            self._close("infeasible", floors[~np.isfinite(floors)])
            self._close("bounded", floors[~is_open & np.isfinite(floors)])
            waiting = waiting[is_open & np.isfinite(floors)]
            done = 0
            for counts in blocks(waiting.tolist()):
                if not self.clock.left_s:
                    break
                self.report("per-layer splits", step / max(len(self.micro_batches), 1))
                self._layers_block(counts, m, all_fit)
                done += len(counts)
            self._leave_open(self._floors_of(waiting[done:]))
            if m > 1:
                self.outcome.searched["dominated"] += len(all_fit)

    def _layers_block(self, counts: tuple[int, ...], m: int, all_fit: set[int]) -> None:
        settings = self.settings
        tables = self.cache.tables(split_table(counts), m)
        bounds = np.maximum(
            lower_bounds(tables, settings.restriction, settings.score), self._storage_scores(np.array(counts))
        )
        least, most = memory_extremes(tables, settings.restriction)
        open_counts: list[tuple[float, int]] = []
        if m == self.micro_batches[0]:
            self._raise_floors(counts, bounds)
        for k, w in enumerate(counts):
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

    def _solve_counts(self, open_counts: list[tuple[float, int]], block: CostTables) -> None:
        """Solve in order of promise; tables of the edges are built for a few worker counts at a time."""
        position = 0
        while position < len(open_counts):
            bound, _ = open_counts[position]
            if bound > self.pool.cutoff * (1 + ROUNDING):
                self._close("bounded", np.array([rest for rest, _ in open_counts[position:]]))
                return
            if not self.clock.left_s:
                self._leave_open(np.array([rest for rest, _ in open_counts[position:]]))
                return
            group = self._group(open_counts, position)
            if not group:
                self._leave_open(np.array([bound]))
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
            if bound > self.pool.cutoff * (1 + ROUNDING) or (group and size + pairs > _GROUP_PAIRS):
                break
            if pairs > _MOST_PAIRS:
                break
            group.append(w)
            size += pairs
        return group

    def _solve_one(self, tables: CostTables, workers: int, bound: float) -> None:
        settings = self.settings
        cutoff = self.pool.cutoff
        if bound > cutoff * (1 + ROUNDING):
            self._close("bounded", np.array([bound]))
            return
        if not self.clock.left_s:
            self._leave_open(np.array([bound]))
            return
        choice = choice_problem(tables, workers, settings.capacity_bytes, settings.restriction, settings.score)
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
            # A family's masks admit some plans of other families: ask for more until enough of them are its own.
            enough = accepted >= settings.top or len(solution.choices) < wanted or wanted >= _MOST_SOLUTIONS
            if enough or solution.status is not Status.OPTIMAL:
                break
            wanted *= 4
        if accepted and self.pool.best()[0].plan.workers == workers and not self.pool.best()[0].plan.is_pipeline:
            self.best_choice = choice
        self._close_solved(solution, bound, accepted, factor)

    def _close_solved(self, solution: Solution, bound: float, accepted: int, factor: float) -> None:
        """Record what one solved worker count proves."""
        if solution.status is Status.INFEASIBLE:
            self.outcome.searched["infeasible"] += 1
            return
        rest = max(factor * (solution.rest_bound_s if solution.choices else solution.bound_s), bound)
        foreign = accepted < len(solution.choices)
        # Where plans of other families were found, those are no bound: the ones found count by themselves, the rest is bounded.
        self.bound = min(self.bound, rest if foreign else max(factor * solution.bound_s, bound))
        self.rest_bound = min(self.rest_bound, rest)
        settled = solution.status in (Status.OPTIMAL, Status.CUT_OFF) and (not foreign or rest >= self.pool.cutoff)
        self.outcome.searched["solved" if settled else "open"] += 1
        self.outcome.out_of_time |= solution.status in (Status.FEASIBLE, Status.LIMIT)

    def _note_miss(self, tables: CostTables, workers: int, least: float) -> None:
        """Remember the plan of least memory, for the message when nothing fits."""
        if self.pool.nearest_miss is not None and self.pool.nearest_miss.memory_bytes <= least:
            return
        choice = choice_problem(tables, workers, float("inf"), self.settings.restriction)
        if choice is not None:
            smallest = np.array([int(np.argmin(need)) for need in choice.problem.memory_bytes])
            self.pool.add([choice.plan(smallest)])

    # -- pipelines -------------------------------------------------------------------------------------------------------

    def _allows_pipelines(self) -> bool:
        return self.settings.restriction.allows_pipelines and int(self.workers[-1]) > 1

    def pipelines(self) -> None:
        """Search contiguous stages with replicas."""
        if not self._allows_pipelines():
            return
        settings, counts = self.settings, self.workers[self.workers >= 2].tolist()
        if self.clock.left_s:
            several = [m for m in self.micro_batches if m > 1]
            self.cache.prepare(replica_table(self.workload, counts[-1]), several)
        for step, m in enumerate(self.micro_batches):
            self.report("pipelines", step / len(self.micro_batches))
            result = search_pipelines(
                self.cache,
                num_micro_batches=m,
                worker_counts=counts,
                capacity_bytes=settings.capacity_bytes,
                cutoff=lambda: self.pool.cutoff,
                score=settings.score,
                top=settings.top,
                wall_s=self.clock.left_s,
                found=self.pool.add,
                floor_s=self.least_s,
            )
            storage = float(np.min(self._storage_scores(np.array(counts))))
            self.bound = min(self.bound, max(result.bound, storage))
            self.rest_bound = min(self.rest_bound, max(result.rest_bound, storage))
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
        if np.any(self._storage_scores(self.workers)):
            return  # the program does not know that a step may wait for storage
        found_s = best[0].score / float(self.settings.score.factor(choice.workers))
        if is_confirmed(choice.problem, found_s, self.clock.left_s):
            self.methods.add("program")

    # -- the end ---------------------------------------------------------------------------------------------------------

    def close_open_bounds(self) -> None:
        """After an interruption nothing is known of what was not looked at but what holds for all plans."""
        least = float(np.min(self.least))
        self.bound, self.rest_bound = min(self.bound, least), min(self.rest_bound, least)

    def _storage_scores(self, counts: IntArray) -> FloatArray:
        """Scores of steps that do nothing but wait for the storage of their input: no plan has less."""
        assumed = self.workload.assumptions
        late = storage_s(
            self.workload.global_batch,
            assumed.stored_sample_bytes,
            assumed.storage_bytes_per_s,
            counts,
            node_size(self.cache.cluster),
        )
        return self.settings.score.of(late, np.zeros(len(counts)), counts)

    def finish(self) -> Outcome:
        outcome = self.outcome
        outcome.candidates = self.pool.best()
        best = outcome.candidates[0].score if outcome.candidates else float("inf")
        last = outcome.candidates[-1].score if outcome.candidates else float("inf")
        outcome.bound_score = min(self.bound, best)
        is_full = len(outcome.candidates) == self.settings.top
        outcome.rest_bound = (
            min(self.rest_bound, last) if is_full or not np.isfinite(self.rest_bound) else self.rest_bound
        )
        outcome.nearest_miss = self.pool.nearest_miss
        outcome.methods = tuple(sorted(self.methods))
        return outcome


def _has_many_splits(worker_counts: Sequence[int]) -> bool:
    """Whether screening takes less time than costing; counts no more splits than that takes."""
    splits = 0
    for w in worker_counts:
        splits += len(factorisations(w, 4))
        if splits >= _SCREENED_SPLITS:
            return True
    return False
