"""Best-first search of the mesh plans: cells in the order of their bound, until no cell can be better than the plans at hand.

    bound(cell) = m work / pp + (pp - 1) forward of the quickest block

with m micro-batches, the work of one of them through the whole network (communication inside the layers included, ranks numbered
as well as can be), perfectly divided over the stages; the last stage waits for pp - 1 forwards. Every plan of the
cell takes longer. A core is bounded by the time of its pipeline without data parallelism (`MeshModel.pipeline_s`).

Recomputation, offloading and the order of the ranks do not make a plan different: each plan is run its best way, the fastest that fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.cores import CORE_FIELDS, mesh_strides
from costmodel.mesh.keys import combined
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import RECOMPUTE, MeshBatch
from costmodel.mesh.sharding import Division
from costmodel.network import Cluster
from costmodel.workload import Workload
from strategies.mesh.incumbents import Incumbents
from strategies.mesh.settings import Bounds, MeshOutcome, MeshSettings, NearestMiss
from strategies.mesh.space import Columns, MeshSpace, batch_of

__all__ = ["search_mesh"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Progress = Callable[[str, float], None]

# Rows handled at a time: large enough for numpy, small enough for the caches.
_CHUNK = 16_384
_CELLS = 1_024
_CORES = 1_024
_RADIX = 1 << 40
_POWERS = tuple(1 << n for n in range(21))
# How good the plans of the corner that is searched first must be, among its own.
_SEED_GAP = 0.05
_SLACK = 1 - 1e-9
_FULL, _NONE = RECOMPUTE.index("full"), RECOMPUTE.index("none")


def search_mesh(
    workload: Workload,
    cluster: Cluster,
    settings: MeshSettings,
    progress: Progress | None = None,
    assumptions: MeshAssumptions = DEFAULT_ASSUMPTIONS,
) -> MeshOutcome:
    """Find the best mesh plans.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    settings : MeshSettings
    progress : function of (message, share done), optional
    assumptions : MeshAssumptions

    Returns
    -------
    MeshOutcome
        The best plans, and a bound on all others.

    Raises
    ------
    MeshError
        The network has no repeated blocks.
    """
    model = MeshModel.build(workload, cluster, assumptions)
    run = _Run(model=model, space=MeshSpace.of(model, settings), settings=settings, progress=progress)
    try:
        run.seed()
        run.settle()
    except KeyboardInterrupt:
        run.outcome.interrupted = True
    return run.finish()


@dataclass(slots=True, kw_only=True)
class _Run:
    """State of one search."""

    model: MeshModel
    space: MeshSpace
    settings: MeshSettings
    progress: Progress | None
    outcome: MeshOutcome = field(default_factory=MeshOutcome)
    incumbents: Incumbents = field(init=False)
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.incumbents = Incumbents(top=self.settings.top)

    # -- levels -----------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Bound all cells, then open them best first."""
        self.outcome.bound_score = 0.0  # until the cells are known
        cells, bounds = self._bounded_cells()
        order = np.argsort(bounds, kind="stable")
        position = 0
        size = 64  # small at first: the first plans found close most cells
        while position < len(order):
            self.outcome.bound_score = min(self.incumbents.best, float(bounds[order[position]]))
            if bounds[order[position]] >= self._goal():
                break
            if time.monotonic() - self.started > self.settings.wall_s:
                self.outcome.out_of_time = True
                break
            chosen = order[position : position + size]
            chosen = chosen[bounds[chosen] < self._goal()]
            self._open({name: column[chosen].astype(np.int64) for name, column in cells.items()})
            position += size
            size = min(2 * size, _CELLS)
            self._report(position, len(order))
        opened = min(position, len(order))
        self.outcome.searched["cells opened"] = opened
        self.outcome.searched["cells bounded away"] = self.outcome.searched.pop("cells") - opened
        rest = float(bounds[order[position]]) if position < len(order) else float("inf")
        best = self.incumbents.best
        self.outcome.bound_score = min(best, rest) if np.isfinite(best) or np.isfinite(rest) else float("inf")

    def finish(self) -> MeshOutcome:
        """Put the answer together."""
        self.outcome.candidates = self.incumbents.candidates()
        return self.outcome

    def _goal(self) -> float:
        """Score that a plan must beat to matter."""
        return self.incumbents.worst * _SLACK * (1.0 - self.settings.gap)

    def _report(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress("opening cells", done / max(total, 1))

    def _score(self, step_s: FloatArray, workers: IntArray) -> FloatArray:
        return step_s if self.settings.objective in ("step_time", "tokens_per_s") else step_s * workers

    def _bounded_cells(self) -> tuple[Columns, FloatArray]:
        """Cells that may hold a better plan than those at hand, with their bounds."""
        pieces: list[Columns] = []
        bounds: list[FloatArray] = []
        total = 0
        shares = self.space.shares()
        if len(shares["tp"]):
            self.model.rows(batch_of(shares))  # all at once is quicker than piece by piece
        for cells in self.space.cells():
            self.outcome.space_size += self.space.count(cells)
            bound = self._cell_bounds(cells)
            total += len(bound)
            kept = np.flatnonzero(bound < self._goal())
            pieces.append({name: column[kept].astype(np.int32) for name, column in cells.items()})
            bounds.append(bound[kept])
        self.outcome.searched["cells"] = total
        if not pieces:
            return {"tp": np.zeros(0, dtype=np.int64)}, np.zeros(0)
        return {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}, np.concatenate(bounds)

    def _cell_bounds(self, cells: Columns) -> FloatArray:
        names = ("tp", "sequence_parallel", "cp", "cp_kind", "ep", "etp", "micro_batch")
        first, inverse = combined(*(cells[name] for name in names))
        batch = batch_of({name: cells[name][first] for name in names})
        kinds = self.space.categories("recompute", RECOMPUTE).tolist()
        if len(kinds) == 1 and (kinds[0] != _FULL or self.space.recomputes_all):
            batch = replace(batch, recompute=np.full(len(batch), kinds[0]))
        total, forward = self.model.work_s(batch)
        pp, m = cells["pp"], cells["num_micro_batches"]
        bound = m * total[inverse] / pp + (pp - 1) * forward[inverse]
        return self._score(bound, cells["tp"] * cells["cp"] * pp * cells["dp"]) * _SLACK

    def seed(self) -> None:
        """Find some good plans in a corner of the space, degrees that are powers of two, so that few cells of the whole are kept."""
        known = self.settings.restriction
        corner: dict[str, Bounds] = {}
        for name in ("tp", "cp", "ep", "etp", "pp", "vpp", "micro_batch"):
            bounds = known.degrees.get(name, Bounds())
            corner[name] = Bounds(values=tuple(v for v in _POWERS if bounds.allows(v)) or (0,))
        restriction = replace(known, degrees={**known.degrees, **corner})
        settings = replace(self.settings, restriction=restriction, gap=max(self.settings.gap, _SEED_GAP))
        run = _Run(model=self.model, space=MeshSpace.of(self.model, settings), settings=settings, progress=None)
        run.settle()
        self.incumbents = run.incumbents
        self.outcome.out_of_time = run.outcome.out_of_time
        self.outcome.nearest_miss = run.outcome.nearest_miss

    def _open(self, cells: Columns) -> None:
        cores = self.space.with_orders(self.space.with_pipelines(cells))
        for piece in _pieces(cores):
            batch = self._at_least(batch_of(piece))
            built = self.model.cores(batch, exact=False)
            self._tally("pipelines", len(batch))
            score = self._score(built.flush_s, batch.workers)
            hopeful = np.flatnonzero(score < self._goal())
            hopeful = hopeful[self._can_fit(batch.take(hopeful))]
            # The most promising first, so that they close the others.
            hopeful = hopeful[np.argsort(score[hopeful], kind="stable")]
            for start in range(0, len(hopeful), _CORES):
                chosen = hopeful[start : start + _CORES]
                chosen = chosen[score[chosen] < self._goal()]
                if len(chosen):
                    self._divide({name: column[chosen] for name, column in piece.items()}, score[chosen])

    def _at_least(self, batch: MeshBatch) -> MeshBatch:
        """The recomputation that is the least of all allowed ones: none, unless one kind is asked for."""
        kinds = self.space.categories("recompute", RECOMPUTE).tolist()
        if len(kinds) != 1 or (kinds[0] == _FULL and not self.space.recomputes_all):
            return batch
        return self._recomputing(batch, kinds[0], self.space.most_blocks(batch.pp, batch.vpp))

    def _tally(self, name: str, count: int) -> None:
        self.outcome.searched[name] = self.outcome.searched.get(name, 0) + count

    # -- memory -----------------------------------------------------------------------------------------------------------

    def _can_fit(self, batch: MeshBatch) -> NDArray[np.bool_]:
        """Cores of which some plan may fit: least memory over ZeRO, recomputation and offloading."""
        if not len(batch):
            return np.zeros(0, dtype=np.bool_)
        # Memory does not know the order of the ranks.
        first, inverse = combined(*(getattr(batch, name) for name in CORE_FIELDS if name != "order"), batch.dp)
        distinct = batch.take(first)
        best = np.full(len(first), np.inf)
        plans: list[MeshBatch] = []
        memories: list[FloatArray] = []
        for kind in self.space.categories("recompute", RECOMPUTE).tolist():
            cores = self._recomputing(distinct, kind, self.space.most_blocks(distinct.pp, distinct.vpp))
            memory = self.model.core_memory(cores)
            for option in self._savings(cores):
                division = Division.of(option, mesh_strides(option))
                needed = np.max(memory.divided(np.arange(len(first)), division).total_bytes, axis=1)
                plans.append(option)
                memories.append(needed)
                best = np.minimum(best, needed)
        fits = best <= self.settings.capacity_bytes
        if not fits.all() and not np.isfinite(self.incumbents.best):
            self._remember_miss(plans, np.where(fits, np.inf, np.stack(memories)))
        return np.asarray(fits[inverse])

    def _recomputing(self, batch: MeshBatch, kind: int, blocks: IntArray) -> MeshBatch:
        zero = np.zeros(len(batch), dtype=np.int64)
        return replace(batch, recompute=zero + kind, recompute_blocks=blocks if kind == _FULL else zero)

    def _savings(self, batch: MeshBatch) -> list[MeshBatch]:
        """The ways to divide dp and use the host with least memory; one of them needs least."""
        zero = np.zeros(len(batch), dtype=np.int64)
        offload = {n: int(max(self.space.flags(n))) + zero for n in ("offload_optimizer", "offload_activations")}
        result = []
        for stage in self.space.values("zero_stage", [0, 1, 2, 3]).tolist():
            shared = (stage > 0) & (batch.dp * batch.cp > 1)
            division = {
                "zero_stage": np.where(shared, stage, 0),
                "dp_shard": np.where(shared, batch.dp, 1),
                "dp_replicate": np.where(shared, 1, batch.dp),
            }
            result.append(replace(batch, **division, **offload))
        return result

    def _remember_miss(self, plans: list[MeshBatch], memory: FloatArray) -> None:
        option, row = np.unravel_index(int(np.argmin(memory)), memory.shape)
        least = float(memory[option, row])
        known = self.outcome.nearest_miss
        if np.isfinite(least) and (known is None or least < known.memory_bytes):
            self.outcome.nearest_miss = NearestMiss(plan=plans[int(option)].plan(int(row)), memory_bytes=least)

    # -- plans ------------------------------------------------------------------------------------------------------------

    def _divide(self, piece: Columns, score: FloatArray) -> None:
        """Judge every way to divide dp of some cores."""
        rows = self.space.with_shardings({**piece, "_core": np.arange(len(score))})
        core = rows["_core"]
        bound = score[core]
        second = rows["zero_stage"] == 2
        first = np.flatnonzero(~second)
        found = self._run_best_way({name: column[first] for name, column in rows.items()}, bound[first])
        # ZeRO-2 moves what ZeRO-1 moves and reduces more often: it is not faster.
        one = rows["zero_stage"][first] == 1
        known = core[first][one] * _RADIX + rows["dp_shard"][first][one]
        later = np.flatnonzero(second)
        if len(known):
            order = np.argsort(known)
            wanted = core[later] * _RADIX + rows["dp_shard"][later]
            place = np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)
            matched = known[order][place] == wanted
            bound[later] = np.where(matched, np.maximum(found[one][order][place], bound[later]), bound[later])
        later = later[bound[later] < self._goal()]
        self._run_best_way({name: column[later] for name, column in rows.items()}, bound[later])

    def _run_best_way(self, rows: Columns, score: FloatArray) -> FloatArray:
        """Judge divisions of dp, first with nothing recomputed and nothing on the host, then with everything that saves memory.

        Parameters
        ----------
        rows : Columns
            With the number of the core in ``_core``.
        score : array (n,)
            Bounds.

        Returns
        -------
        array (n,)
            Better bounds: scores with nothing recomputed and nothing on the host.
        """
        index = rows.pop("_core")
        bound = score.copy()
        if not len(index):
            return bound
        batch = batch_of(rows)
        undecided = np.ones(len(index), dtype=np.bool_)
        for kind, optimizer, activations in self._variants():
            open_rows = np.flatnonzero(undecided & (bound < self._goal()))
            if not len(open_rows):
                return bound
            one = np.ones(len(open_rows), dtype=np.int64)
            variant = replace(
                self._recomputing(batch.take(open_rows), kind, one),
                offload_optimizer=optimizer * one,
                offload_activations=activations * one,
            )
            found, fits = self._judge(variant, index[open_rows])
            if (kind, optimizer, activations) == (_NONE, 0, 0):
                # Everything that saves memory takes longer: what fits is settled, what is too slow stays so.
                bound[open_rows] = found
                undecided[open_rows] = ~fits
        return bound

    def _variants(self) -> list[tuple[int, int, int]]:
        """Recomputation and what is offloaded, quick ways first: they set the goal for the others."""
        return [
            (kind, optimizer, activations)
            for activations in self.space.flags("offload_activations").tolist()
            for optimizer in self.space.flags("offload_optimizer").tolist()
            for kind in self.space.categories("recompute", RECOMPUTE).tolist()
        ]

    def _judge(self, batch: MeshBatch, core: IntArray) -> tuple[FloatArray, NDArray[np.bool_]]:
        """Score plans and keep the good ones; those of full recomputation take the fewest blocks that fit.

        Parameters
        ----------
        batch : MeshBatch
        core : array (n,)
            Plans with equal numbers share a pipeline (as far as recomputation lets them).

        Returns
        -------
        score, fits : arrays (n,)
        """
        score, fits = np.full(len(batch), np.inf), np.zeros(len(batch), dtype=np.bool_)
        rows = np.arange(len(batch))
        plain = int(batch.recompute[0]) == _NONE and not (batch.offload_optimizer[0] or batch.offload_activations[0])
        if int(batch.recompute[0]) == _FULL:
            batch, rows = self._with_blocks(batch, self._least_blocks(batch, core))
        elif not plain:
            # Only plans that fit matter; the first variant also says how fast the others are at best.
            rows = np.flatnonzero(self._memory_bytes(batch, core) <= self.settings.capacity_bytes)
            batch = batch.take(rows)
        if not len(batch):
            return score, fits
        self._tally("plans", len(batch))
        score[rows] = self._bounds(batch, core[rows])
        hopeful = rows[score[rows] <= self.incumbents.worst]
        batch = batch.take(np.searchsorted(rows, hopeful))
        if plain:
            fits[hopeful] = self._memory_bytes(batch, core[hopeful]) <= self.settings.capacity_bytes
            batch = batch.take(np.flatnonzero(fits[hopeful]))
        else:
            fits[hopeful] = True
        self._keep(batch)
        return score, fits

    def _bounds(self, batch: MeshBatch, core: IntArray) -> FloatArray:
        """Scores that plans do not go below; those with equal core numbers and recomputed blocks share a pipeline."""
        first, index = combined(core, batch.recompute_blocks)
        cores = batch.take(first)
        pipelines, memory = self.model.cores(cores, exact=False), self.model.core_memory(cores)
        division = Division.of(batch, mesh_strides(batch))
        time = self.model.step_times(pipelines, memory, index, division, exact=False)
        return self._score(time, batch.workers)

    def _memory_bytes(self, batch: MeshBatch, core: IntArray) -> FloatArray:
        if not len(batch):
            return np.zeros(0)
        first, index = combined(core, batch.recompute_blocks)
        memory = self.model.core_memory(batch.take(first))
        filled = memory.divided(index, Division.of(batch, mesh_strides(batch)))
        return np.asarray(np.max(filled.total_bytes, axis=1))

    def _least_blocks(self, batch: MeshBatch, core: IntArray) -> IntArray:
        first, index = combined(core, batch.recompute_blocks)
        memory = self.model.core_memory(batch.take(first))
        division = Division.of(batch, mesh_strides(batch))
        return memory.least_recomputed(index, division, self.settings.capacity_bytes)

    def _keep(self, batch: MeshBatch) -> None:
        """Judge plans exactly, and keep them if they are good."""
        if not len(batch):
            return
        costs = self.model.evaluate(batch)
        score = self._score(costs.step_time_s, batch.workers)
        good = np.flatnonzero((costs.memory_bytes <= self.settings.capacity_bytes) & (score <= self.incumbents.worst))
        self.incumbents.add(batch.take(good), score[good], costs.step_time_s[good], costs.memory_bytes[good])

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

    def _fit(self, batch: MeshBatch, blocks: IntArray) -> NDArray[np.bool_]:
        """Whether plans with so many recomputed blocks fit."""
        trial = replace(batch, recompute_blocks=blocks)
        return self._memory_bytes(trial, np.arange(len(batch))) <= self.settings.capacity_bytes


def _pieces(columns: Columns) -> list[Columns]:
    size = len(next(iter(columns.values())))
    return [
        {name: column[start : start + _CHUNK] for name, column in columns.items()} for start in range(0, size, _CHUNK)
    ]
