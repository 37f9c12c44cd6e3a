"""Chunks and schedule of the pipeline of a row."""

from __future__ import annotations

from planner.measurements.degrees import ImpossiblePlan
from planner.measurements.tables import Row

__all__ = ["chunks_of", "schedule_of"]

# Embedding and loss: Megatron-LM counts each as a layer where it is told to (account_for_embedding_in_pipeline_split and the like).
_OTHER_UNITS = 2


def chunks_of(row: Row, pp: int, blocks: int) -> int:
    """Chunks per pipeline rank: as stated; two where the row says that they are interleaved and not how many there are.

    Without a pipeline chunks mean nothing; more of them than blocks are a slip there, too.

    >>> row = Row(line=2, cells={"vpp": "2"})
    >>> chunks_of(row, 4, 32), len(row.defaults), chunks_of(row, 1, 32), row.defaults
    (2, 0, 1, {'vpp': 1})

    Raises
    ------
    ImpossiblePlan
        More chunks than blocks, and than embedding and loss beside them that some frameworks count among the layers.
    """
    stated = row.count("vpp")
    if stated is not None and stated > 1:
        if pp * stated > blocks + (_OTHER_UNITS if pp > 1 else 0):
            raise ImpossiblePlan(f"pp {pp} x vpp {stated} is more than the {blocks} blocks of the network")
        return stated if pp > 1 else int(row.default("vpp", 1))
    if stated is not None or pp < 2 or row.text("schedule") != "interleaved":
        return 1
    return int(row.default("vpp", 2))


def schedule_of(row: Row, pp: int, vpp: int, count: int) -> str:
    """A name of `costmodel.mesh.plan.SCHEDULES` for a plan of ``pp`` stages with ``vpp`` chunks and ``count`` micro-batches.

    More chunks than one are interleaved, whatever is stated, where the micro-batches are whole groups of ``pp``.

    >>> row = Row(line=2, cells={"schedule": "zero_bubble"})
    >>> schedule_of(row, 8, 1, 32), schedule_of(row, 1, 1, 32), schedule_of(row, 8, 2, 32)
    ('zero_bubble', '1f1b', 'interleaved')
    """
    if pp < 2:
        return "1f1b"
    stated = row.text("schedule")
    if vpp > 1 and count % pp == 0:
        return "interleaved"
    if vpp > 1:
        row.default("vpp", 1)
    return stated if stated in ("gpipe", "zero_bubble") else "1f1b"
