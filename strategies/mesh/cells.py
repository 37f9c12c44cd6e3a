"""The cells of a space that may matter, with bounds of their scores: found in large pieces, before any pipeline is built.

    bound(cell) = m work / pp + (pp - 1) forward of the quickest block

with m micro-batches, the work of one of them through the whole network (communication inside the layers included, ranks numbered
as well as can be), perfectly divided over the stages; the last stage waits for pp - 1 forwards. Every plan of the cell takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from costmodel.mesh.keys import combined
from costmodel.mesh.plan import RECOMPUTE
from strategies.mesh.memory_bound import Families
from strategies.mesh.space import Columns, batch_of, selected
from strategies.mesh.ways import Ways

__all__ = ["CellBounds", "pieces_of", "workers_of"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_NONE = RECOMPUTE.index("none")
# What decides the work of a micro-batch, but for the layout of the experts.
_WORK = ("tp", "sequence_parallel", "cp", "cp_kind", "micro_batch")
_WORK_ROW = "_work"
_SLACK = 1 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CellBounds:
    """Bounds cells of a space.

    Attributes
    ----------
    ways : Ways
    score : function of (step_s, workers)
        What is compared; smaller is better.
    goal : float
        Cells that score no less are of no interest.
    families : Families, optional
        Least memory of the cells; given where nothing is known to fit.
    """

    ways: Ways
    score: Callable[[FloatArray, IntArray], FloatArray]
    goal: float
    families: Families | None = None

    def of(self, stems: Columns) -> tuple[Columns, FloatArray]:
        """Cells of some stems that may fit and beat the goal, with their bounds.

        First the stems with their quickest experts, then the layouts of experts of those left.
        """
        stems = self._fitting(stems)
        if not len(stems["tp"]):
            return self.ways.space.with_experts(stems), np.zeros(0)
        first, row = combined(*(stems[name] for name in _WORK))
        work = self.ways.space.with_expert_pairs(
            {**{name: stems[name][first] for name in _WORK}, _WORK_ROW: np.arange(len(first))}
        )
        total_s, forward_s = self._works(work)
        least = np.full((2, len(first)), np.inf)
        np.minimum.at(least[0], work[_WORK_ROW], total_s)
        np.minimum.at(least[1], work[_WORK_ROW], forward_s)
        quick = np.flatnonzero(self._bound(stems, least[0, row], least[1, row]) < self.goal)
        cells = self._fitting(self.ways.space.with_experts(selected({**stems, _WORK_ROW: row}, quick)))
        place = _find(work, cells, (_WORK_ROW, "ep", "etp"))
        del cells[_WORK_ROW]
        bound = self._bound(cells, total_s[place], forward_s[place])
        kept = np.flatnonzero(bound < self.goal)
        return selected(cells, kept), bound[kept]

    def _fitting(self, cells: Columns) -> Columns:
        if self.families is None or not len(cells["tp"]):
            return cells
        return selected(cells, self.families.of_cells(cells) <= self.ways.capacity_bytes)

    def _works(self, work: Columns) -> tuple[FloatArray, FloatArray]:
        """Work of one micro-batch and forward pass of the quickest block."""
        if not len(work["tp"]):
            return np.zeros(0), np.zeros(0)
        batch = batch_of(work)
        kind = self.ways.plain[0]
        if kind != _NONE:
            batch = replace(batch, recompute=np.full(len(batch), kind))
        return self.ways.space.model.work_s(batch)

    def _bound(self, cells: Columns, total_s: FloatArray, forward_s: FloatArray) -> FloatArray:
        pp = cells["pp"]
        bound = cells["num_micro_batches"] * total_s / pp + (pp - 1) * forward_s
        return self.score(bound, workers_of(cells)) * _SLACK


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
