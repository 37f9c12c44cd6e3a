"""Every way to divide dp of some pipelines, and the best plans found so far.

Best plans so far
-----------------
Of a list of really different plans (`Incumbents.distinct`), the best of every group: plans of a group share some fields. The groups are
the best ones, exactly: what is worse than the best of each of ``top`` groups is of no use to any of them.

Divisions of dp
---------------
With the optimizer in one place, the step with nothing recomputed and all activations on the device bounds all modes of a plan, and more
than that: below ZeRO-3 what follows the last backward pass (`tail`) knows neither recomputation nor where activations are, so

    step(mode) >= floor(mode) + tail,  tail = step(plain, optimizer state where the mode has it) - pipeline

with the floors of `strategies.mesh.memory_modes`. Under ZeRO-3 the larger of the two terms is a bound. The host may update sooner than the
device, also where all fits on the device. So both places of the optimizer are bounded, and both are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined
from costmodel.mesh.communication import Division
from costmodel.mesh.model import MeshModel, computing_s, least_computing_s
from costmodel.mesh.plan import FULL, MeshBatch, MeshPlan
from costmodel.mesh.step import least_step_times
from costmodel.tolerances import EQUAL
from strategies.mesh.memory_modes import MemoryMode, MemoryModes
from strategies.mesh.settings import MeshCandidate, MeshSettings
from strategies.mesh.space import Columns, MeshSpace, batch_of

# Fields that make two plans different to a user.
KEY: tuple[str, ...] = (
    "tp",
    "sequence_parallel",
    "cp",
    "cp_kind",
    "ep",
    "etp",
    "pp",
    "vpp",
    "schedule",
    "dp_replicate",
    "dp_shard",
    "zero_stage",
    "micro_batch",
    "num_micro_batches",
)
# Ties between modes of the same plan go to the simplest, then to the one in the fewest domains.
_TUNED = ("offload_optimizer", "offload_activations", "recompute", "recompute_blocks", "order")


def key_of(plan: MeshPlan) -> tuple[object, ...]:
    """What makes a plan different.

    >>> key_of(MeshPlan(recompute="full", recompute_blocks=3)) == key_of(MeshPlan())
    True
    """
    return tuple(getattr(plan, name) for name in KEY)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A plan with what it is ranked by."""

    score: float
    memory_bytes: float
    tuned: tuple[int, ...]
    step_time_s: float
    plan: MeshPlan
    group: tuple[int, ...]


@dataclass(slots=True, kw_only=True)
class Incumbents:
    """At most ``top`` plans with different keys, or with different ``distinct`` fields where these are given; none above a ``cutoff``."""

    top: int
    distinct: tuple[str, ...] | None = None
    cutoff: float = float("inf")
    _rows: dict[tuple[int, ...], _Row] = field(default_factory=dict)
    worst: float = field(init=False)  # score of the last of them once there are enough
    best: float = field(init=False)

    def __post_init__(self) -> None:
        self.best = self.worst = self.cutoff

    def add(self, batch: MeshBatch, score: FloatArray, step_time_s: FloatArray, memory_bytes: FloatArray) -> None:
        """Take plans that fit; of equal scores the one with less memory goes first."""
        # Any order will do, as long as it does not depend on the machine: ties are broken by the plan itself.
        for n in self._leading(batch, score)[: 64 * self.top].tolist():
            if score[n] > self.worst:
                break
            key = tuple(int(getattr(batch, name)[n]) for name in KEY)
            tuned = (*(int(getattr(batch, name)[n]) for name in _TUNED), -int(batch.domain_gpus[n]))
            known = self._rows.get(key)
            if known is None or (float(score[n]), tuned) < (known.score, known.tuned):
                self._rows[key] = _Row(
                    score=float(score[n]),
                    memory_bytes=float(memory_bytes[n]),
                    tuned=tuned,
                    step_time_s=float(step_time_s[n]),
                    plan=batch.plan(n),
                    group=() if self.distinct is None else tuple(int(getattr(batch, f)[n]) for f in self.distinct),
                )
                if len(self._rows) > 4 * self.top:
                    self._trim()
        self._trim()

    def _leading(self, batch: MeshBatch, score: FloatArray) -> IntArray:
        """Rows by score; of every group only the best and its equals."""
        if self.distinct is None:
            return np.argsort(score, kind="stable")
        rows = np.flatnonzero(score <= self.worst)
        if not len(rows):
            return rows
        _, group = combined(*(getattr(batch, name)[rows] for name in self.distinct))
        best = np.full(int(group.max()) + 1, np.inf)
        np.minimum.at(best, group, score[rows])
        rows = rows[score[rows] <= best[group] * (1.0 + EQUAL)]
        return rows[np.argsort(score[rows], kind="stable")]

    def _trim(self) -> None:
        ordered = sorted(self._rows.items(), key=lambda item: (item[1].score, item[0]))
        if self.distinct is not None:
            self._trim_groups(ordered)
            return
        self._rows = dict(ordered[: self.top])
        self.best = ordered[0][1].score if ordered else self.cutoff
        self.worst = ordered[self.top - 1][1].score if len(ordered) >= self.top else self.cutoff

    def _trim_groups(self, ordered: list[tuple[tuple[int, ...], _Row]]) -> None:
        """Keep the best of the best groups, and what equals it: which of them is listed is decided at the end."""
        leading: dict[tuple[int, ...], float] = {}
        kept = {}
        for key, row in ordered:
            if row.group not in leading and len(leading) == self.top:
                continue
            if row.score <= leading.setdefault(row.group, row.score) * (1.0 + EQUAL):
                kept[key] = row
        self._rows = kept
        scores = list(leading.values())
        self.best = scores[0] if scores else self.cutoff
        self.worst = scores[-1] if len(scores) >= self.top else self.cutoff

    def candidates(self) -> list[MeshCandidate]:
        """The plans, best first; scores that differ by rounding only count as equal."""
        rows = [row for _, row in sorted(self._rows.items(), key=lambda item: (item[1].score, item[0]))]
        result: list[_Row] = []
        while rows:
            tied = [row for row in rows if row.score <= rows[0].score * (1.0 + EQUAL)]
            result += sorted(tied, key=lambda row: row.memory_bytes)
            rows = rows[len(tied) :]
        if self.distinct is not None:
            firsts: dict[tuple[int, ...], _Row] = {}
            for row in result:
                firsts.setdefault(row.group, row)
            result = list(firsts.values())
        return [MeshCandidate(plan=row.plan, score=row.score, step_time_s=row.step_time_s) for row in result]


_PAIRS = 8_192  # plans and modes of them, tried at a time
_MORE = 65_536  # the same with every number of blocks


@dataclass(slots=True, kw_only=True)
class PlanEvaluator:
    """Scores plans and keeps the best."""

    incumbents: Incumbents
    modes: MemoryModes
    tally: Callable[[str, int], None]
    check_time: Callable[[], None] = lambda: None  # called often; may stop the search by an exception

    @property
    def space(self) -> MeshSpace:
        """What is searched."""
        return self.modes.space

    @property
    def model(self) -> MeshModel:
        """The cost model."""
        return self.space.model

    @property
    def settings(self) -> MeshSettings:
        """Limits of the search."""
        return self.space.settings

    def goal(self) -> float:
        """Score that a plan must beat to matter."""
        return self.incumbents.worst * (1 - EQUAL) * (1.0 - self.settings.gap)

    @property
    def counts_computing(self) -> bool:
        """Whether the score is not proportional to the step at a given number of workers, since computing devices cost more."""
        return self.settings.score.computing_weight > 0

    def computing_s(self, batch: MeshBatch) -> FloatArray | float:
        """Time that devices compute in a step at least, where that is compared; else 0."""
        return least_computing_s(self.model, batch) if self.counts_computing else 0.0

    def score(self, step_s: FloatArray, workers: IntArray, computing_s: FloatArray | float = 0.0) -> FloatArray:
        """What the objective compares; smaller is better. Of lower bounds, a lower bound."""
        return self.settings.score.of(step_s, computing_s, workers)

    def least_score(self, step_s: FloatArray, batch: MeshBatch) -> FloatArray:
        """Score that plans with these step times, or larger ones, do not go below."""
        return self.score(step_s, batch.workers, self.computing_s(batch))

    def divide(self, pipelines: Columns, makespan_s: FloatArray, floors_s: FloatArray) -> None:
        """Evaluate every way to divide dp of some pipelines.

        Parameters
        ----------
        pipelines : Columns
        makespan_s : array (c,)
            Their pipelines with the least recomputation.
        floors_s : array (c, V, Z)
            Least step times of their modes, by ZeRO stage.
        """
        rows = self.space.with_shardings({**pipelines, "_pipeline": np.arange(len(makespan_s))})
        pipeline = rows.pop("_pipeline")
        if not len(pipeline):
            return
        batch = batch_of(rows)
        stage = np.searchsorted(np.array(self.modes.stages), batch.zero_stage)
        floors = floors_s[pipeline, :, stage]
        hopeful = np.flatnonzero(self.least_score(np.min(floors, axis=1), batch) < self.goal())
        if len(hopeful):
            self._run_best_mode(batch.take(hopeful), pipeline[hopeful], makespan_s, floors[hopeful])

    def _run_best_mode(self, batch: MeshBatch, pipeline: IntArray, makespan_s: FloatArray, floors: FloatArray) -> None:
        """Evaluate divisions of dp, each with every mode that may still be better than what is known."""
        plain, modes = self.modes.plainly(batch), self.modes.each
        least_s = self._least_s(plain, pipeline)
        places = sorted({optimizer for _, optimizer, _ in modes})
        # What is too slow without saving memory stays so.
        left = np.flatnonzero(self.least_score(np.min(least_s[:, places], axis=1), batch) < self.goal())
        if self.modes.plain in modes and len(left):
            fits = self._memory_bytes(plain.take(left), pipeline[left]) <= self.settings.capacity_bytes
            fitting = plain.take(left[fits])
            self.keep(fitting)
            if (self.modes.plain[0], 1, 0) in modes:  # the host may update sooner
                some = fitting.take(np.flatnonzero(self.least_score(least_s[left[fits], 1], fitting) < self.goal()))
                self.keep(replace(some, offload_optimizer=np.ones(len(some), dtype=np.int64)))
            # Recomputation, and activations on the host, take longer: what fits is settled, unless computing devices cost more.
            left = left if self.counts_computing else left[~fits]
        if len(left):
            self._save_memory(batch.take(left), pipeline[left], makespan_s[pipeline[left]], floors[left], least_s[left])

    def _save_memory(
        self, batch: MeshBatch, pipeline: IntArray, makespan_s: FloatArray, floors: FloatArray, least_s: FloatArray
    ) -> None:
        """Evaluate the modes that save memory, until none left can be better; ``least_s`` (n, 2) as `_least_s` has it of the plain mode."""
        modes = self.modes.each
        best = np.full(len(batch), np.inf)  # of every division
        below_three, computing, workers = batch.zero_stage < 3, self.computing_s(batch), batch.workers
        scores = np.full((len(modes), len(batch)), np.inf)
        for v, mode in enumerate(modes):
            if mode == self.modes.plain:
                continue
            base = least_s[:, mode[1]]
            tail = np.maximum(base - makespan_s, 0.0)
            bound = np.where(below_three, floors[:, v] + tail, np.maximum(floors[:, v], base)) * (1 - EQUAL)
            scores[v] = self.score(bound, workers, computing)
        # Many at a time, but no more than a kind of them, and the quick ones first: they set the goal for the others.
        for kind in sorted({_kind(mode) for mode in modes}):
            some = np.array([n for n, mode in enumerate(modes) if _kind(mode) == kind])
            place, row = np.nonzero(scores[some] < self.goal())
            for start in range(0, len(row), _PAIRS):
                self.check_time()
                rows, tried = row[start : start + _PAIRS], some[place[start : start + _PAIRS]]
                score = scores[tried, rows]
                chosen = np.flatnonzero((score < self.goal()) & (score <= best[rows]))
                if len(chosen):
                    self._evaluate(batch.take(rows[chosen]), pipeline[rows[chosen]], tried[chosen], rows[chosen], best)

    def _evaluate(
        self, batch: MeshBatch, pipeline: IntArray, tried: IntArray, rows: IntArray, best: FloatArray
    ) -> None:
        """Score plans, each run in one of the modes of one kind (`_kind`), and keep the good ones.

        Of full recomputation the fewest blocks that fit are the quickest, unless activations travel: what is run again does not.
        """
        recompute, optimizer, activations = np.array(self.modes.each, dtype=np.int64)[tried].T
        blocks = (recompute == FULL).astype(np.int64)
        batch = replace(
            batch,
            recompute=recompute,
            recompute_blocks=blocks,
            offload_optimizer=optimizer,
            offload_activations=activations,
        )
        if recompute[0] == FULL:
            batch, fitting = self._with_blocks(batch, self._least_blocks(batch, pipeline))
            pieces = self._with_more_blocks(batch, fitting) if activations[0] else iter([(batch, fitting)])
        else:
            fitting = np.flatnonzero(self._memory_bytes(batch, pipeline) <= self.settings.capacity_bytes)
            pieces = iter([(batch.take(fitting), fitting)])
        for piece, place in pieces:
            self.check_time()
            if len(piece):
                self._keep_hopeful(piece, pipeline[place], rows[place], best)

    def _keep_hopeful(self, batch: MeshBatch, pipeline: IntArray, rows: IntArray, best: FloatArray) -> None:
        """Score plans that fit, those exactly that may be good; ``best`` (divisions,) is what is known, of which these are ``rows``."""
        least_s = self._least_s(batch, pipeline)[np.arange(len(batch)), batch.offload_optimizer]
        score = self.least_score(least_s, batch)
        hopeful = np.flatnonzero((score <= self.incumbents.worst) & (score <= best[rows]))
        np.minimum.at(best, rows[hopeful], self.keep(batch.take(hopeful)))

    def _least_s(self, batch: MeshBatch, pipeline: IntArray) -> FloatArray:
        """Times that plans do not go below, with the optimizer on the device and on the host: (n, 2).

        Those with equal pipeline numbers and recomputed blocks share a pipeline.
        """
        self.tally("plans", len(batch))
        first, index = _pipelines(batch, pipeline)
        pipelines = batch.take(first)
        times, memory = self.model.pipelines(pipelines, exact=False), self.model.pipeline_memory(pipelines)
        division = Division.of(batch)
        return least_step_times(self.model.workload, self.model.groups, times, memory, index, division)

    def _memory_bytes(self, batch: MeshBatch, pipeline: IntArray) -> FloatArray:
        if not len(batch):
            return np.zeros(0)
        first, index = _pipelines(batch, pipeline)
        memory = self.model.pipeline_memory(batch.take(first))
        filled = memory.divided(index, Division.of(batch))
        return np.asarray(np.max(filled.total_bytes, axis=1))

    def _least_blocks(self, batch: MeshBatch, pipeline: IntArray) -> IntArray:
        first, index = _pipelines(batch, pipeline)
        memory = self.model.pipeline_memory(batch.take(first))
        return memory.least_recomputed(index, Division.of(batch), self.settings.capacity_bytes)

    def keep(self, batch: MeshBatch) -> FloatArray:
        """Evaluate plans exactly, and keep them if they are good; their scores."""
        if not len(batch):
            return np.zeros(0)
        costs = self.model.evaluate(batch)
        computing: FloatArray | float = 0.0
        if self.counts_computing:
            computing = computing_s(self.model, batch, self.model.layouts(batch), costs)
        score = self.score(costs.step_time_s, batch.workers, computing)
        fits = costs.memory_bytes <= self.settings.capacity_bytes
        good = np.flatnonzero(fits & (score <= self.incumbents.worst))
        self.incumbents.add(batch.take(good), score[good], costs.step_time_s[good], costs.memory_bytes[good])
        return np.where(fits, score, np.inf)

    def _with_blocks(self, batch: MeshBatch, blocks: IntArray) -> tuple[MeshBatch, IntArray]:
        """Plans with at least so many recomputed blocks, of the numbers that are allowed."""
        most = self.space.most_blocks(batch.pp, batch.vpp)
        if self.space.recomputes_all:
            batch = replace(batch, recompute_blocks=most)
            rows = np.flatnonzero(self._memory_bytes(batch, np.arange(len(batch))) <= self.settings.capacity_bytes)
            return batch.take(rows), rows
        allowed = np.array(self.space.recompute_counts(int(most.max(initial=1))), dtype=np.int64)
        if not len(allowed):
            return batch, np.zeros(0, dtype=np.int64)
        # On the way to the host, chunks that run all of their blocks again leave less behind than they would block by block.
        blocks = np.where(batch.offload_activations > 0, np.minimum(blocks, most), blocks)
        place = np.searchsorted(allowed, np.maximum(blocks, 1))
        chosen = allowed[np.minimum(place, len(allowed) - 1)]
        rows = np.flatnonzero((place < len(allowed)) & (chosen <= most) & (blocks <= most))
        batch, chosen, place, most = batch.take(rows), chosen[rows], place[rows], most[rows]
        # More where rounding, chunks that have run out of blocks, or offloading made it too few: bisection up to all blocks.
        last = np.searchsorted(allowed, most, side="right") - 1
        left = np.flatnonzero(~self._fit(batch, chosen))
        left = left[last[left] > place[left]]
        left = left[self._fit(batch.take(left), allowed[last[left]])]
        low, high = place[left] + 1, last[left]
        while np.any(low < high):
            middle = (low + high) // 2
            enough = self._fit(batch.take(left), allowed[middle])
            low, high = np.where(enough, low, np.minimum(middle + 1, high)), np.where(enough, middle, high)
        chosen[left] = allowed[high]
        return replace(batch, recompute_blocks=chosen), rows

    def _with_more_blocks(self, batch: MeshBatch, rows: IntArray) -> Iterator[tuple[MeshBatch, IntArray]]:
        """The same plans with these and with every larger number of recomputed blocks, which need no more memory; some at a time."""
        most = self.space.most_blocks(batch.pp, batch.vpp)
        allowed = np.array(self.space.recompute_counts(int(most.max(initial=1))), dtype=np.int64)
        if self.space.recomputes_all or not len(allowed):
            yield batch, rows
            return
        start = np.searchsorted(allowed, batch.recompute_blocks)
        counts = np.searchsorted(allowed, most, side="right") - start
        ends = np.cumsum(counts)
        for first in range(0, int(counts.sum()), _MORE):
            place = np.arange(first, min(first + _MORE, int(ends[-1])))
            index = np.searchsorted(ends, place, side="right")
            within = place - (ends - counts)[index]
            yield replace(batch.take(index), recompute_blocks=allowed[start[index] + within]), rows[index]

    def _fit(self, batch: MeshBatch, blocks: IntArray) -> BoolArray:
        """Whether plans with so many recomputed blocks fit."""
        trial = replace(batch, recompute_blocks=blocks)
        return self._memory_bytes(trial, np.arange(len(batch))) <= self.settings.capacity_bytes


def _kind(mode: MemoryMode) -> tuple[bool, bool]:
    """MemoryModes that are evaluated alike: without full recomputation, with it, with it and activations on the host."""
    is_full = mode[0] == FULL
    return is_full, is_full and mode[2] > 0


def _pipelines(batch: MeshBatch, pipeline: IntArray) -> tuple[IntArray, IntArray]:
    """Which plans share a pipeline: those with equal pipeline numbers that recompute alike."""
    return combined(pipeline, batch.recompute, batch.recompute_blocks)
