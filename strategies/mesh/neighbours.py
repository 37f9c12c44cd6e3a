"""Cells that differ from good ones in one respect: where the best plans of a corner of the space are, better ones are usually near.

One respect is the pipeline degree; the division of the batch over replicas and micro-batches; the layout of the experts; or the ranks that
share a layer (tp, sequence parallelism, cp and its kind), replicas or micro-batches making up for them where they can.
"""

from __future__ import annotations

import numpy as np

from costmodel.arrays import IntArray
from costmodel.mesh.plan import MeshBatch
from strategies.mesh.space import Columns, MeshSpace, selected

__all__ = ["CELL", "neighbours"]


# What fixes a cell, the number of micro-batches beside it.
CELL = ("tp", "sequence_parallel", "cp", "cp_kind", "ep", "etp", "micro_batch", "dp", "pp", "num_micro_batches")


def neighbours(space: MeshSpace, plans: MeshBatch) -> Columns:
    """Legal cells of a space that differ from those of some plans in one respect; those of the plans are among them.

    Parameters
    ----------
    space : MeshSpace
    plans : MeshBatch

    Returns
    -------
    Columns
        Different cells, without an order that means anything.
    """
    own = {name: getattr(plans, name) for name in CELL}
    replicas, inner = space.replicas(), space.with_context_kinds(space.inner())
    found = [
        own,
        _crossed(own, {"pp": space.stages()}),
        _crossed(own, replicas),
        space.with_expert_pairs({name: column for name, column in own.items() if name not in ("ep", "etp")}),
        *_exchanged(own, inner),
    ]
    rows = np.concatenate([np.stack([piece[name] for name in CELL], axis=1) for piece in found])
    rows = np.unique(rows, axis=0)
    cells = dict(zip(CELL, np.ascontiguousarray(rows.T), strict=True))
    cells = selected(cells, space.counts(cells["tp"] * cells["cp"] * cells["pp"] * cells["dp"]))
    # What ranks inside a layer make up for need not be a division of the batch that is allowed.
    known = np.isin(_division(cells), _division(replicas))
    return space.legal(selected(cells, known))


def _crossed(cells: Columns, other: Columns) -> Columns:
    """Every cell with every row of other values."""
    size, count = len(cells["tp"]), len(next(iter(other.values())))
    joined = {name: np.repeat(column, count) for name, column in cells.items()}
    return joined | {name: np.tile(column, size) for name, column in other.items()}


def _exchanged(cells: Columns, inner: Columns) -> list[Columns]:
    """Cells with other ranks inside a layer: as many replicas as before, or as many workers with micro-batches as large or as many."""
    rows = _crossed({**cells, "_ranks": cells["tp"] * cells["cp"]}, inner)
    before, after = rows.pop("_ranks"), rows["tp"] * rows["cp"]
    whole = rows["dp"] * before % after == 0
    dp = np.where(whole, rows["dp"] * before // after, 0)
    fewer = {**rows, "dp": dp}
    batch = rows["dp"] * rows["micro_batch"] * rows["num_micro_batches"]
    share = np.maximum(dp, 1)
    larger = {**fewer, "micro_batch": batch // share // rows["num_micro_batches"]}
    longer = {**fewer, "num_micro_batches": batch // share // rows["micro_batch"]}
    return [rows, selected(larger, dp > 0), selected(longer, dp > 0)]


def _division(cells: Columns) -> IntArray:
    return (cells["dp"] << 40) + cells["micro_batch"] * (1 << 20) + cells["num_micro_batches"]
