"""The cells of a space that may matter, with bounds of their scores: found in large pieces, before any pipeline is built.

    bound(cell) = max(m work / pp + (pp - 1) forward, max_k [ m c_k block_k + min(last_k forward, m block_k) ])
    c_k = ceil(N_k / pp),  last_k = max(pp - 1 - (pp c_k - N_k), 0)

with m micro-batches, the work of one of them through the whole network (communication inside the layers included, ranks numbered
as well as can be), perfectly divided over the stages; the last stage waits for pp - 1 forwards of the quickest block. Blocks are not
divided: of N_k blocks of a kind some stage has c_k or more. If none has more, at most pp c_k - N_k have fewer, so that the last of those
with c_k waits for last_k forwards. Every plan of the cell takes longer. The same without the mixtures of experts bounds all their layouts
at once, which leaves few to be costed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from costmodel.arrays import FloatArray, IntArray, combined
from costmodel.hardware.energy import least_computing_s
from costmodel.mesh.plan import RECOMPUTE, MeshBatch
from costmodel.tolerances import EQUAL
from strategies.mesh.memory_bound import Families
from strategies.mesh.plans import PlanJudge
from strategies.mesh.space import Columns, batch_of, selected
from strategies.mesh.ways import Ways

__all__ = ["CellBounds", "pieces_of", "workers_of"]


_NONE = RECOMPUTE.index("none")
# What decides the work of a micro-batch, but for the layout of the experts.
_WORK = ("tp", "sequence_parallel", "cp", "cp_kind", "micro_batch")
_PAIR = ("ep", "etp")
_WORK_ROW = "_work"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBounds:
    """Bounds cells of a space.

    Attributes
    ----------
    ways : Ways
    judge : PlanJudge
        What is compared; smaller is better.
    goal : float
        Cells that score no less are of no interest.
    families : Families, optional
        Least memory of the cells; given where nothing is known to fit.
    """

    ways: Ways
    judge: PlanJudge
    goal: float
    families: Families | None = None

    def of(self, stems: Columns) -> tuple[Columns, FloatArray]:
        """Cells of some stems that may fit and beat the goal, with their bounds.

        First the stems as if experts cost nothing, then those left with their quickest experts, then the layouts of experts of those left.
        """
        stems = self._fitting(stems)
        if not np.isfinite(self.goal):
            return self._all_of(stems)
        stems = self._without_experts(stems)
        if not len(stems["tp"]):
            return self.ways.space.with_experts(stems), np.zeros(0)
        first, row = combined(*(stems[name] for name in _WORK))
        work = self.ways.space.with_expert_pairs(
            {**{name: stems[name][first] for name in _WORK}, _WORK_ROW: np.arange(len(first))}
        )
        works = self._works(work)
        least = np.full((len(works), len(first)), np.inf)
        for smallest, each in zip(least, works, strict=True):
            np.minimum.at(smallest, work[_WORK_ROW], each)
        quick = np.flatnonzero(self._bound(stems, least[:, row]) < self.goal)
        cells = self._fitting(self.ways.space.with_experts(selected({**stems, _WORK_ROW: row}, quick)))
        place = _find(work, cells, (_WORK_ROW, *_PAIR))
        del cells[_WORK_ROW]
        bound = self._bound(cells, works[:, place])
        kept = np.flatnonzero(bound < self.goal)
        return selected(cells, kept), bound[kept]

    def _fitting(self, cells: Columns) -> Columns:
        if self.families is None or not len(cells["tp"]):
            return cells
        return selected(cells, self.families.of_cells(cells) <= self.ways.capacity_bytes)

    def _all_of(self, stems: Columns) -> tuple[Columns, FloatArray]:
        """The same where every time is good enough: what does not fit goes first."""
        cells = self._fitting(self.ways.space.with_experts(stems))
        return cells, self.bounds(cells)

    def bounds(self, cells: Columns) -> FloatArray:
        """Bounds of some cells, whatever the goal."""
        first, row = combined(*(cells[name] for name in (*_WORK, *_PAIR)))
        works = self._works({name: cells[name][first] for name in (*_WORK, *_PAIR)})
        return self._bound(cells, works[:, row])

    def _without_experts(self, stems: Columns) -> Columns:
        """Stems that are quick enough if experts cost nothing; there are far fewer of these to cost than layouts of experts."""
        if not self.ways.space.shape.experts or not len(stems["tp"]):
            return stems
        first, row = combined(*(stems[name] for name in _WORK))
        works = self._works({name: stems[name][first] for name in _WORK}, experts=False)
        return selected(stems, self._bound(stems, works[:, row]) < self.goal)

    def _plainly(self, work: Columns) -> MeshBatch:
        """The work run the plain way."""
        batch, kind = batch_of(work), self.ways.plain[0]
        return batch if kind == _NONE else replace(batch, recompute=np.full(len(batch), kind))

    def _works(self, work: Columns, *, experts: bool = True) -> FloatArray:
        """Of one micro-batch: all work, the forward pass of the quickest block, what of the work is computing, one block of every kind.

        Rows of an array; of computing only where energy is compared, as it is of plans with their experts.
        """
        model = self.ways.space.model
        if not len(work["tp"]):
            return np.zeros((3 + len(self._blocks), 0))
        batch = self._plainly(work)
        total, forward, blocks = model.work_s(batch, experts=experts)
        computing = np.zeros_like(total)
        if self.judge.is_energy and experts:
            one = np.ones(len(batch), dtype=np.int64)
            computing = least_computing_s(model, replace(batch, pp=one, num_micro_batches=one))
        return np.stack([total, forward, computing, *blocks.T])

    @property
    def _blocks(self) -> list[int]:
        """Blocks of every kind."""
        units = self.ways.space.model.units
        counts = np.bincount(units.kind_of, minlength=len(units.kinds))
        return [int(n) for n, kind in zip(counts, units.kinds, strict=True) if kind.is_block]

    def _bound(self, cells: Columns, works: FloatArray) -> FloatArray:
        pp, m = cells["pp"], cells["num_micro_batches"]
        total_s, forward_s, computing_s, *blocks_s = works
        bound = m * total_s / pp + (pp - 1) * forward_s
        for count, block_s in zip(self._blocks, blocks_s, strict=True):
            most = -(-count // pp)
            last = np.maximum(pp - 1 - (pp * most - count), 0)
            each = m * block_s
            np.maximum(bound, most * each + np.minimum(last * forward_s, each), out=bound)
        return self.judge.score(bound, workers_of(cells), m * computing_s / pp) * (1 - EQUAL)


def workers_of(cells: Columns) -> IntArray:
    """Devices of every row."""
    return np.asarray(cells["tp"] * cells["cp"] * cells["pp"] * cells["dp"])


def pieces_of(stems: Iterator[Columns], rows: int) -> Iterator[Columns]:
    """The same stems, so many together or a few more.

    >>> [len(piece["tp"]) for piece in pieces_of(iter([{"tp": np.ones(3)}, {"tp": np.ones(4)}, {"tp": np.ones(2)}]), 5)]
    [7, 2]
    """
    waiting: list[Columns] = []
    size = 0
    for stem in stems:
        waiting.append(stem)
        size += len(stem["tp"])
        if size >= rows:
            yield {name: np.concatenate([one[name] for one in waiting]) for name in stem}
            waiting, size = [], 0
    if waiting:
        yield {name: np.concatenate([one[name] for one in waiting]) for name in waiting[0]}


def _find(rows: Columns, wanted: Columns, names: tuple[str, ...]) -> IntArray:
    """Where the wanted rows are among others that ascend by the first name, then the second, and so on."""
    key, want = np.zeros(len(rows[names[0]]), dtype=np.int64), np.zeros(len(wanted[names[0]]), dtype=np.int64)
    for name in names:
        radix = int(rows[name].max(initial=0)) + 1
        key, want = key * radix + rows[name], want * radix + wanted[name]
    return np.searchsorted(key, want)
