"""Best-first search of the mesh plans: cells in the order of their bound, until no cell can be better than the plans at hand.

    bound(cell) = m work / pp + (pp - 1) forward of the quickest block

with m micro-batches, the work of one of them through the whole network (communication inside the layers included, ranks numbered
as well as can be), perfectly divided over the stages; the last stage waits for pp - 1 forwards. Every plan of the cell takes longer. A core is bounded by the time of its
pipeline without data parallelism (`MeshModel.pipeline_s`).

Recomputation, offloading and the order of the ranks do not make a plan different: each plan is run its best way, the fastest that fits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import RECOMPUTE, MeshBatch
from costmodel.network import Cluster
from costmodel.workload import Workload
from strategies.mesh.incumbents import Incumbents
from strategies.mesh.settings import MeshOutcome, MeshSettings, NearestMiss
from strategies.mesh.space import Columns, MeshSpace, batch_of

__all__ = ["search_mesh"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
Progress = Callable[[str, float], None]

# Rows handled at a time: large enough for numpy, small enough for the caches.
_CHUNK = 16_384
_CELLS = 1_024
_SLACK = 1 - 1e-9
_FULL, _SELECTIVE, _NONE = RECOMPUTE.index("full"), RECOMPUTE.index("selective"), RECOMPUTE.index("none")


def search_mesh(
    workload: Workload,
    cluster: Cluster,
    settings: MeshSettings,
    progress: Progress | None = None,
    assumptions: MeshAssumptions = MeshAssumptions(),
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
        run.search()
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

    def search(self) -> None:
        """Bound all cells, then open them best first."""
        cells, bounds = self._bounded_cells()
        order = np.argsort(bounds, kind="stable")
        position = 0
        size = 64  # small at first: the first plans found close most cells
        while position < len(order):
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
        self.outcome.searched["cells opened"] = min(position, len(order))
        self.outcome.searched["cells bounded away"] = len(order) - min(position, len(order))
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
        pieces: list[Columns] = []
        bounds: list[FloatArray] = []
        for cells in self.space.cells():
            self.outcome.space_size += self.space.count(cells)
            pieces.append({name: column.astype(np.int32) for name, column in cells.items()})
            bounds.append(self._cell_bounds(cells))
        if not pieces:
            return {"tp": np.zeros(0, dtype=np.int64)}, np.zeros(0)
        return {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}, np.concatenate(bounds)

    def _cell_bounds(self, cells: Columns) -> FloatArray:
        names = ("tp", "sequence_parallel", "cp", "cp_kind", "ep", "etp", "micro_batch")
        key = np.zeros(len(cells["tp"]), dtype=np.int64)
        for name in names:
            key = key * (int(cells[name].max()) + 1) + cells[name]
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        total, forward = self.model.work_s(batch_of({name: cells[name][first] for name in names}))
        pp, m = cells["pp"], cells["num_micro_batches"]
        bound = m * total[inverse] / pp + (pp - 1) * forward[inverse]
        return self._score(bound, cells["tp"] * cells["cp"] * pp * cells["dp"]) * _SLACK

    def _open(self, cells: Columns) -> None:
        cores = self.space.with_orders(self.space.with_pipelines(cells))
        for piece in _pieces(cores):
            batch = batch_of(piece)
            score = self._score(self.model.pipeline_s(batch), batch.workers)
            self.outcome.searched["pipelines"] = self.outcome.searched.get("pipelines", 0) + len(batch)
            hopeful = np.flatnonzero(score < self._goal())
            hopeful = hopeful[np.argsort(score[hopeful], kind="stable")]
            kept = {name: column[hopeful] for name, column in piece.items()}
            kept = {name: column[self._can_fit(kept)] for name, column in kept.items()}
            for rows in _pieces(self.space.with_shardings(kept)):
                self._judge(batch_of(rows))

    # -- memory -----------------------------------------------------------------------------------------------------------

    def _can_fit(self, cores: Columns) -> NDArray[np.bool_]:
        """Cores of which some plan may fit: least memory over ZeRO, recomputation and offloading."""
        if not len(cores["tp"]):
            return np.zeros(0, dtype=np.bool_)
        batch = batch_of(cores)
        everything = self._savings(batch)
        memory = np.min(np.stack([self.model.memory_bytes(option) for option in everything]), axis=0)
        fits = memory <= self.settings.capacity_bytes
        if not fits.all() and not np.isfinite(self.incumbents.worst):
            self._remember_miss(everything, np.where(fits, np.inf, memory))
        return np.asarray(fits)

    def _savings(self, batch: MeshBatch) -> list[MeshBatch]:
        """The ways to run cores with least memory; one of them needs least."""
        zero = np.zeros(len(batch), dtype=np.int64)
        stages = self.space.values("zero_stage", [0, 1, 2, 3]).tolist()
        kinds = self.space.categories("recompute", RECOMPUTE).tolist()
        counts = self.space.most_blocks(batch.pp, batch.vpp)
        offload = {n: int(max(self.space.flags(n))) + zero for n in ("offload_optimizer", "offload_activations")}
        result = []
        for stage in stages:
            shared = (stage > 0) & (batch.dp * batch.cp > 1)
            for kind in kinds:
                blocks = np.where(kind == _FULL, counts, zero)
                result.append(
                    replace(
                        batch,
                        zero_stage=np.where(shared, stage, 0),
                        dp_shard=np.where(shared, batch.dp, 1),
                        dp_replicate=np.where(shared, 1, batch.dp),
                        recompute=zero + kind,
                        recompute_blocks=blocks,
                        **offload,
                    )
                )
        return result

    def _remember_miss(self, options: list[MeshBatch], memory: FloatArray) -> None:
        n = int(np.argmin(memory))
        known = self.outcome.nearest_miss
        if known is not None and known.memory_bytes <= memory[n]:
            return
        each = [float(self.model.memory_bytes(option.take(np.array([n])))[0]) for option in options]
        plan = options[int(np.argmin(each))].plan(n)
        self.outcome.nearest_miss = NearestMiss(plan=plan, memory_bytes=float(memory[n]))

    # -- plans ------------------------------------------------------------------------------------------------------------

    def _judge(self, batch: MeshBatch) -> None:
        """Evaluate plans with every way to save memory that may be needed; quick ways first."""
        goal, open_rows = self._goal(), np.arange(len(batch))
        if not len(batch):
            return
        flags = [(o, a) for o in self.space.flags("offload_optimizer") for a in self.space.flags("offload_activations")]
        kinds = self.space.categories("recompute", RECOMPUTE)
        for optimizer, activations in flags:
            for kind in kinds:
                rows = self._variant(batch.take(open_rows), int(kind), int(optimizer), int(activations))
                variant, index = rows
                if not len(variant):
                    continue
                costs = self.model.evaluate(variant)
                self.outcome.searched["plans"] = self.outcome.searched.get("plans", 0) + len(variant)
                score = self._score(costs.step_time_s, variant.workers)
                fits = costs.memory_bytes <= self.settings.capacity_bytes
                good = fits & (score < goal)
                self.incumbents.add(variant.take(np.flatnonzero(good)), score[good], costs.step_time_s[good])
                if kind == kinds[0] and (optimizer, activations) == flags[0]:
                    # Everything that saves memory takes longer: what fits is settled, what is too slow stays so.
                    goal = self._goal()
                    undecided = ~fits & (score < goal)
                    open_rows = open_rows[index[undecided]]
                    if not len(open_rows):
                        return

    def _variant(
        self, batch: MeshBatch, kind: int, optimizer: int, activations: int
    ) -> tuple[MeshBatch, IntArray]:
        """The batch with one way to save memory, and which of its rows can be run so."""
        zero = np.zeros(len(batch), dtype=np.int64)
        changed = replace(
            batch, recompute=zero + kind, recompute_blocks=zero, offload_optimizer=zero + optimizer, offload_activations=zero + activations
        )
        if kind != _FULL:
            return changed, np.arange(len(batch))
        return self._least_blocks(changed)

    def _least_blocks(self, batch: MeshBatch) -> tuple[MeshBatch, IntArray]:
        """Rows with the fewest recomputed blocks that fit: memory falls, and time grows, with every one."""
        most = self.space.most_blocks(batch.pp, batch.vpp)
        allowed = np.array(self.space.recompute_counts(int(most.max(initial=1))), dtype=np.int64)
        if not len(allowed):
            return batch.take(np.zeros(0, dtype=np.int64)), np.zeros(0, dtype=np.int64)
        # Positions in the allowed counts; the last that is not beyond the longest chunk.
        high = np.searchsorted(allowed, most, side="right") - 1
        rows = np.flatnonzero(high >= 0)
        batch, high = batch.take(rows), high[rows]
        capacity = self.settings.capacity_bytes
        fits = self.model.memory_bytes(replace(batch, recompute_blocks=allowed[high])) <= capacity
        rows, batch, high = rows[fits], batch.take(np.flatnonzero(fits)), high[fits]
        low = np.zeros_like(high)
        while np.any(low < high):
            middle = (low + high) // 2
            enough = self.model.memory_bytes(replace(batch, recompute_blocks=allowed[middle])) <= capacity
            high = np.where(enough, middle, high)
            low = np.where(enough, low, np.minimum(middle + 1, high))
        return replace(batch, recompute_blocks=allowed[high]), rows


def _pieces(columns: Columns) -> list[Columns]:
    size = len(next(iter(columns.values())))
    return [
        {name: column[start : start + _CHUNK] for name, column in columns.items()} for start in range(0, size, _CHUNK)
    ]
