"""The search over the whole stated space: uniform plans by enumeration, every worker count by the exact per-layer solvers, pipelines.

What is returned is evaluated by `costmodel.layerwise.evaluate`; what is not solved is bounded, and the bounds make the proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.splits import SplitTable, factorisations, split_table
from costmodel.layerwise.tables import CostCache, CostTables
from costmodel.software.input_pipeline import storage_s
from costmodel.software.parameter_server import node_size
from costmodel.tolerances import EQUAL, ROUNDING
from costmodel.workload import Workload
from strategies.layerwise.bounds import lower_bounds, memory_extremes, screened_bounds
from strategies.layerwise.build import LayerChoice, choice_problem
from strategies.layerwise.candidates import Candidate, Outcome, Pool, SearchSettings, blocks, enumerate_uniform
from strategies.layerwise.per_layer.problem import Limits, Solution, Status
from strategies.layerwise.per_layer.search import is_confirmed, solve
from strategies.layerwise.pipeline.search import replica_table, search_pipelines
from strategies.layerwise.space import count_layer_plans, count_pipelines, micro_batch_counts

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
    known: CostCache | None = None,
) -> Outcome:
    """Find the K best plans with different keys and prove it.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    settings : SearchSettings
    progress : callable, optional
        Called with a word and a fraction between 0 and 1.
    known : CostCache, optional
        What is known of the costs of layers of this workload on this cluster; the search adds to it.

    Returns
    -------
    Outcome
        On Ctrl-C or at the time limit, the best so far with a valid bound.
    """
    run = _Run(CostCache(workload, cluster) if known is None else known, settings, progress)
    try:
        run.uniform(run.counts[:_FIRST_COUNTS])
        run.screen()
        run.uniform(run.counts[_FIRST_COUNTS:])
        run.layers()
        run.pipelines()
        run.confirm()
    except KeyboardInterrupt:
        run.outcome.interrupted = True
        run.close_open_bounds()
    return run.finish()


class _Run:
    """State of one search."""

    def __init__(self, known: CostCache, settings: SearchSettings, progress: Progress | None) -> None:
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

    def uniform(self, worker_counts: Sequence[int]) -> None:
        """Score every uniform plan of worker counts that are not bounded away; the best become incumbents."""
        if not self.settings.enumerate_uniform or not self.settings.restriction.allows_layers:
            return
        settings = self.settings
        for counts in blocks([w for w in worker_counts if self._is_open(w)], grids=True):
            waiting: tuple[int, ...] = counts
            self.known.prepare(split_table(counts, grids_only=True), self.micro_batches)
            for m in self.micro_batches:
                tables = self.known.tables(split_table(waiting, grids_only=True), m)
                found = enumerate_uniform(
                    tables, settings.restriction, settings.capacity_bytes, settings.top, settings.score
                )
                self.outcome.searched["enumerated"] += found.count
                self.pool.add(found.plans, tables)
                if self.remaining_s() < 0.5 * settings.wall_s:
                    return
                if m == 1:
                    # What fits in one micro-batch takes no less time in more, and is the same plan (docs/cost-model.md).
                    waiting = found.too_large
                if not waiting:
                    break

    # -- a split per layer -----------------------------------------------------------------------------------------------

    def screen(self) -> None:
        """Count the plans, and bound away what the incumbents already beat: no time is spent on the tables of those worker counts."""
        settings, m = self.settings, self.micro_batches[0]
        if not settings.restriction.allows_layers:
            return
        many = self._has_many_splits()
        done = 0
        for counts in blocks(self.counts):
            if self.remaining_s() <= 0:
                # The space is counted as far as it was looked at.
                self.outcome.out_of_time = True
                return
            self.report("bounds", done / len(self.counts))
            done += len(counts)
            table = split_table(counts)
            self._count_layer_plans(table)
            if many and np.isfinite(self.pool.cutoff) and self.remaining_s() > 0:
                bounds = screened_bounds(
                    self.workload, self.known.cluster, table, m, settings.restriction, settings.score, self.pool.cutoff
                )
                self.floors |= dict(zip(counts, bounds.tolist(), strict=True))

    def _has_many_splits(self) -> bool:
        """Whether screening takes less time than costing; counts no more splits than that takes."""
        splits = 0
        for w in self.counts:
            splits += len(factorisations(w, 4))
            if splits >= _SCREENED_SPLITS:
                return True
        return False

    def _is_open(self, workers: int) -> bool:
        """Whether plans of a worker count may be of interest, as far as is known."""
        return self.floors.get(workers, 0.0) <= self.pool.cutoff * (1 + ROUNDING)

    def _bound_away(self, worker_counts: Sequence[int]) -> None:
        """Record the worker counts that need not be looked at; `floors` holds for more micro-batches, too."""
        for w in worker_counts:
            if self._is_open(w):
                continue
            self.outcome.searched["bounded" if np.isfinite(self.floors[w]) else "infeasible"] += 1
            self.bounds.append(self.floors[w])
            self.rests.append(self.floors[w])

    def layers(self) -> None:
        """Solve every (worker count, micro-batches) whose bound does not rule it out."""
        settings = self.settings
        if not settings.restriction.allows_layers:
            return
        all_fit: set[int] = set()
        for step, m in enumerate(self.micro_batches):
            waiting = [w for w in self.counts if w not in all_fit]
            self._bound_away(waiting)
            waiting = [w for w in waiting if self._is_open(w)]
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
            if m > 1:
                self.outcome.searched["dominated"] += len(all_fit)

    def _layers_block(self, counts: tuple[int, ...], m: int, all_fit: set[int]) -> None:
        settings = self.settings
        tables = self.known.tables(split_table(counts), m)
        bounds = lower_bounds(tables, settings.restriction, settings.score)
        least, most = memory_extremes(tables, settings.restriction)
        open_counts: list[tuple[float, int]] = []
        for k, w in enumerate(counts):
            if m == self.micro_batches[0]:
                self.floors[w] = max(self.floors.get(w, 0.0), float(bounds[k]))
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
            if bound > self.pool.cutoff * (1 + ROUNDING):
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
                cutoff_s=self.pool.cutoff / factor * (1 + EQUAL),
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
        several = [m for m in self.micro_batches if m > 1]
        self.known.prepare(replica_table(self.workload, max(self.counts)), several)
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

    def _storage_score(self) -> float:
        """Least score of a step that does nothing but wait for the storage of its input."""
        assumed = self.workload.assumptions
        counts = np.array(self.counts)
        late = storage_s(
            self.workload.global_batch,
            assumed.stored_sample_bytes,
            assumed.storage_bytes_per_s,
            counts,
            node_size(self.known.cluster),
        )
        return float(np.min(self.settings.score.of(late, np.zeros(len(counts)), counts)))

    def finish(self) -> Outcome:
        outcome = self.outcome
        outcome.candidates = self.pool.best()
        best = outcome.candidates[0].score if outcome.candidates else float("inf")
        last = outcome.candidates[-1].score if outcome.candidates else float("inf")
        storage = self._storage_score()
        outcome.bound = max(min([*self.bounds, best]), storage)
        outcome.rest_bound = min(
            [*self.rests, *([last] if len(outcome.candidates) == self.settings.top else [])], default=last
        )
        outcome.rest_bound = max(outcome.rest_bound, storage)
        outcome.nearest_miss = self.pool.nearest_miss
        outcome.methods = tuple(sorted(self.methods))
        return outcome
