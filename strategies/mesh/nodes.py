"""Search nodes: parts of the space that may matter, with bounds of their time and memory, and how many plans they hold.

    bound(cell) = max(m work / pp + (pp - 1) forward, max_k [ m c_k block_k + min(last_k forward, m block_k) ])
    c_k = ceil(N_k / pp),  last_k = max(pp - 1 - (pp c_k - N_k), 0)

with m micro-batches, the work of one of them through the whole network (communication inside the layers included, ranks numbered
as well as can be), perfectly divided over the stages; the last stage waits for pp - 1 forwards of the quickest block. Blocks are not
divided: of N_k blocks of a kind some stage has c_k or more. If none has more, at most pp c_k - N_k have fewer, so that the last of those
with c_k waits for last_k forwards. Every plan of the cell takes longer. The same without the mixtures of experts bounds all their layouts
at once, which leaves few to be costed.

Least memory
------------
With tp, cp, pp and the layout of the experts given, memory falls with dp (more ranks share the state) and grows with the micro-batch and
with the number of micro-batches in flight, each by itself. So the plan with the largest dp, the smallest micro-batch and the fewest
micro-batches of a *family* of cells needs no more than any of them, whether or not it makes the batch. What would make that loose keeps
families apart: a single copy has no buffers for gradients (`several`), and micro-batches that fill the pipeline (`deep`) are small ones.
No schedule with one chunk per rank keeps less in flight than 1F1B (`costmodel.mesh.schedule.in_flight`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined
from costmodel.hardware.energy import least_computing_s
from costmodel.mesh.plan import RECOMPUTE, SCHEDULES, MeshBatch
from costmodel.tolerances import EQUAL
from strategies.mesh.memory_modes import Ways
from strategies.mesh.plans import PlanJudge
from strategies.mesh.space import Columns, MeshSpace, batch_of, distinct, selected

__all__ = ["CellBounds", "Families", "PlanCount", "families_of_cells", "pieces_of", "workers_of"]


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


_SHAPE = ("tp", "sequence_parallel", "cp", "pp")
_CLASSES = ("several", "deep")
_LARGE = 1 << 40
_CHUNK = 16_384
# What a family has in common beyond its columns: 0 where it has every value.
_ONLY = ("only_dp", "only_micro_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Families:
    """Families of cells with the memory that none of their plans goes below.

    Attributes
    ----------
    rows : Columns
        The plan that bounds each family: tp, sequence_parallel, cp, pp, ep, etp, dp, micro_batch, num_micro_batches; its class: several,
        deep; and only_dp and only_micro_batch, 0 where the family has every value.
    least_bytes : array (f,)
        Of the fullest rank.
    """

    rows: Columns
    least_bytes: FloatArray

    @classmethod
    def of(cls, ways: Ways) -> Families:
        """Those of a whole space, whatever dp and the micro-batch are."""
        rows = ways.space.with_expert_pairs(_shapes(ways.space))
        rows |= {name: np.zeros(len(rows["tp"]), dtype=np.int64) for name in _ONLY}
        return cls(rows=rows, least_bytes=_least_bytes(ways, rows))

    def take(self, mask: BoolArray | IntArray) -> Families:
        """A selection."""
        return Families(rows=selected(self.rows, mask), least_bytes=self.least_bytes[mask])

    def of_cells(self, cells: Columns) -> FloatArray:
        """Memory that no plan of some cells (or stems, with any layout of the experts) goes below."""
        names = (*_SHAPE, *_CLASSES, *(_PAIR if "ep" in cells else ()))
        both = {
            name: np.concatenate([self.rows[name], column])
            for name, column in _classified(cells).items()
            if name in names
        }
        first, group = combined(*(both[name] for name in names))
        least = np.full(len(first), np.inf)
        size = len(self.least_bytes)
        np.minimum.at(least, group[:size], self.least_bytes)
        return np.asarray(least[group[size:]])

    def members(self, space: MeshSpace) -> Columns:
        """Cells of the families: every legal dp, micro-batch and kind of context parallelism."""
        replicas = space.replicas()
        count, size = len(replicas["dp"]), len(self.least_bytes)
        kept = [name for name in self.rows if name not in replicas]
        rows = {name: np.repeat(self.rows[name], count) for name in kept}
        rows |= {name: np.tile(column, size) for name, column in replicas.items()}
        classes = _classified(rows)
        mask = space.counts(rows["tp"] * rows["cp"] * rows["pp"] * rows["dp"])
        for name in _CLASSES:
            mask &= classes[name] == rows[name]
        for only, name in zip(_ONLY, ("dp", "micro_batch"), strict=True):
            mask &= (rows[only] == 0) | (rows[only] == rows[name])
        rows = {name: column for name, column in selected(rows, mask).items() if name not in (*_CLASSES, *_ONLY)}
        return space.with_context_kinds(space.legal(rows))


def families_of_cells(ways: Ways, cells: Columns, *, exact: bool) -> tuple[Families, IntArray]:
    """Families of the same dp and, to be exact, of the same micro-batch.

    Parameters
    ----------
    ways : Ways
    cells : Columns
    exact : bool

    Returns
    -------
    families : Families
    family : array (n,)
        Of every cell.
    """
    cells = _classified(cells)
    names = (*_SHAPE, *_PAIR, *_CLASSES, "dp", *(("micro_batch",) if exact else ()))
    first, family = combined(*(cells[name] for name in names))
    rows = {name: cells[name][first] for name in names}
    for name in ("micro_batch", "num_micro_batches"):
        rows[name] = np.full(len(first), _LARGE)
        np.minimum.at(rows[name], family, cells[name])
    rows["only_dp"] = rows["dp"]
    rows["only_micro_batch"] = rows["micro_batch"] if exact else np.zeros(len(first), dtype=np.int64)
    return Families(rows=rows, least_bytes=_least_bytes(ways, rows)), family


def _classified(cells: Columns) -> Columns:
    several = (cells["dp"] * cells["cp"] > 1).astype(np.int64)
    return {**cells, "several": several, "deep": (cells["num_micro_batches"] >= cells["pp"]).astype(np.int64)}


def _shapes(space: MeshSpace) -> Columns:
    """What bounds the cells of one tp, sequence parallelism, cp, pp and class."""
    inner, replicas, pps = space.inner(), space.replicas(), space.stages()
    deep = replicas["num_micro_batches"][None, :] >= pps[:, None]
    known: dict[tuple[int, bool], Columns] = {}
    pieces: list[Columns] = []
    for tp, flag, cp in zip(*(inner[name].tolist() for name in _SHAPE[:3]), strict=True):
        extremes = known.get((tp * cp, cp > 1))
        if extremes is None:
            legal = space.counts(tp * cp * pps[:, None] * replicas["dp"][None, :])
            several = np.broadcast_to(replicas["dp"] * cp > 1, legal.shape)
            found = [
                _extremes(replicas, pps, legal & (several == s) & (deep == d), s, d) for s in (0, 1) for d in (0, 1)
            ]
            extremes = known[tp * cp, cp > 1] = _joined(found)
        same = np.ones(len(extremes["pp"]), dtype=np.int64)
        pieces.append({"tp": tp * same, "sequence_parallel": flag * same, "cp": cp * same, **extremes})
    return _joined(pieces) if pieces else {name: np.zeros(0, dtype=np.int64) for name in (*_SHAPE, "dp", *_CLASSES)}


def _extremes(replicas: Columns, pps: IntArray, mask: BoolArray, several: int, deep: int) -> Columns:
    """The largest dp, the smallest and the fewest micro-batches of every pp that has any in the mask (pp, replicas)."""
    rows = np.flatnonzero(mask.any(axis=1))
    mask = mask[rows]
    least = {
        name: np.min(np.where(mask, replicas[name], _LARGE), axis=1, initial=_LARGE)
        for name in ("micro_batch", "num_micro_batches")
    }
    same = np.ones(len(rows), dtype=np.int64)
    return {
        "pp": pps[rows],
        "dp": np.max(np.where(mask, replicas["dp"], 0), axis=1, initial=0),
        **least,
        "several": several * same,
        "deep": deep * same,
    }


def _joined(pieces: list[Columns]) -> Columns:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _least_bytes(ways: Ways, rows: Columns) -> FloatArray:
    """Least memory of every row, over all pipelines and ways to run them."""
    size = len(rows["tp"])
    cores = ways.space.with_smallest_pipelines({**rows, "_row": np.arange(size)})
    # Interleaving needs micro-batches that fill the pipeline.
    cores = selected(cores, (cores["vpp"] == 1) | (cores["deep"] > 0))
    least = np.full(size, np.inf)
    for start in range(0, len(cores["tp"]), _CHUNK):
        piece = selected(cores, slice(start, start + _CHUNK))
        np.minimum.at(least, piece["_row"], ways.least_bytes(batch_of(piece)))
    return least


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
