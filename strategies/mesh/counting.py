"""How many distinct legal plans a part of the space holds, without building them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from costmodel.arrays import IntArray, combined
from costmodel.mesh.plan import RECOMPUTE, SCHEDULES
from strategies.mesh.space import Columns, MeshSpace, distinct

__all__ = ["PlanCount"]


_FULL, _INTERLEAVED = RECOMPUTE.index("full"), SCHEDULES.index("interleaved")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCount:
    """Counts the plans of cells, and of stems with every way to lay out experts.

    Attributes
    ----------
    space : MeshSpace
    """

    space: MeshSpace
    _pipelines: dict[int, tuple[int, int]] = field(default_factory=dict, repr=False, compare=False)
    _fulls: dict[int, int] = field(default_factory=dict, repr=False, compare=False)
    _stems: dict[tuple[int, int, int], int] = field(default_factory=dict, repr=False, compare=False)

    def plans(self, cells: Columns) -> int:
        """Distinct legal plans in cells, or in stems."""
        if not len(cells["tp"]):
            return 0
        space = self.space
        orders = np.array([len(space.orders(mask)) for mask in range(8)], dtype=np.int64)
        spread = (cells["cp"] > 1) * 4 + (cells["dp"] > 1) * 2 + (cells["pp"] > 1)
        offloads = len(space.flags("offload_optimizer")) * len(space.flags("offload_activations"))
        per_cell = orders[spread] * self._pipeline_counts(cells) * self._sharding_counts(cells) * offloads
        # 63 bits hold a cell's plans; the sum of all may need more.
        high, low = np.divmod(per_cell, 1 << 32)
        return (int(high.sum()) << 32) + int(low.sum())

    def cells(self, stems: Columns) -> int:
        """Cells of stems."""
        first, row = combined(stems["tp"], stems["cp"], stems["dp"])
        kinds = zip(*(stems[name][first].tolist() for name in ("tp", "cp", "dp")), strict=True)
        return int(np.array([len(self.space.experts(*kind)) for kind in kinds], dtype=np.int64)[row].sum())

    def _pipeline_counts(self, cells: Columns) -> IntArray:
        """Schedules, chunks and recomputations of every cell."""
        degrees, inverse = distinct(cells["pp"])
        counts = np.array([self._counted(pp) for pp in degrees.tolist()], dtype=np.int64)[inverse]
        whole = cells["num_micro_batches"] % cells["pp"] == 0
        return np.asarray(counts[:, 0] + np.where(whole, counts[:, 1], 0))

    def _counted(self, pp: int) -> tuple[int, int]:
        """Schedules, chunks and recomputations of a pipeline degree: those of any, and those of a divisible number of micro-batches."""
        known = self._pipelines.get(pp)
        if known is None:
            pairs = self.space.pipelines(pp)
            fixed = sum(self._recomputations(pp * v) for s, v in pairs if s != _INTERLEAVED)
            grouped = sum(self._recomputations(pp * v) for s, v in pairs if s == _INTERLEAVED)
            known = self._pipelines[pp] = (fixed, grouped)
        return known

    def _recomputations(self, chunks: int) -> int:
        kinds = self.space.categories("recompute", RECOMPUTE).tolist()
        longest = self.space.longest(chunks)
        return sum(self._full_counts(longest) if kind == _FULL else 1 for kind in kinds)

    def _full_counts(self, longest: int) -> int:
        """How many numbers of blocks full recomputation may have."""
        if longest not in self._fulls:
            self._fulls[longest] = len(self.space.recompute_counts(longest))
        return self._fulls[longest]

    def _sharding_counts(self, cells: Columns) -> IntArray:
        """Divisions of dp of every cell, or of all cells of every stem."""
        columns = [cells[name] for name in ("tp", "cp", "dp")]
        if "ep" in cells:
            columns.append(cells["ep"] * cells["etp"])
        first, row = combined(*columns)
        kinds = zip(*(column[first].tolist() for column in columns), strict=True)
        of = self._divisions if "ep" in cells else self._divisions_of_all
        return np.array([of(*kind) for kind in kinds], dtype=np.int64)[row]

    def _divisions_of_all(self, tp: int, cp: int, dp: int) -> int:
        """Divisions of dp, over all ways to lay out experts."""
        known = self._stems.get((tp, cp, dp))
        if known is None:
            needs = [ep * etp for ep, etp in self.space.experts(tp, cp, dp)]
            known = self._stems[tp, cp, dp] = self._divisions(tp, cp, dp, *needs)
        return known

    def _divisions(self, tp: int, cp: int, dp: int, *needs: int) -> int:
        """Divisions of dp where experts take so many ranks each, summed."""
        plain, stages, shards = self.space.shares_of(dp)
        ranks = tp * cp * np.array([shard for shard in shards if shard * cp > 1], dtype=np.int64)
        shared = ranks[:, None] % np.array(needs, dtype=np.int64)[None, :] == 0
        return plain * len(needs) + stages * int(np.count_nonzero(shared))
