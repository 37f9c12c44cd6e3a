"""The least memory that any plan of some cells needs, without looking at each: what is found out before time matters where nothing fits.

With tp, cp, pp and the layout of the experts given, memory falls with dp (more ranks share the state) and grows with the micro-batch and
with the number of micro-batches in flight, each by itself. So the plan with the largest dp, the smallest micro-batch and the fewest
micro-batches of a *family* of cells needs no more than any of them, whether or not it makes the batch. What would make that loose keeps
families apart: a single copy has no buffers for gradients (`several`), and micro-batches that fill the pipeline (`deep`) are small ones.
No schedule with one chunk per rank keeps less in flight than 1F1B (`costmodel.mesh.schedule.in_flight`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray, combined
from strategies.mesh.space import Columns, MeshSpace, batch_of, selected
from strategies.mesh.ways import Ways

__all__ = ["Families", "families_of_cells"]


_SHAPE = ("tp", "sequence_parallel", "cp", "pp")
_CLASSES = ("several", "deep")
_PAIR = ("ep", "etp")
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
