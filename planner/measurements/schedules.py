"""Which pipeline schedule a row means, in the words of frameworks and papers."""

from __future__ import annotations

import re

from planner.measurements.degrees import ImpossiblePlan
from planner.measurements.tables import Row

__all__ = ["chunks_of", "schedule_of"]

# torch.distributed.pipelining (ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, ScheduleZBVZeroBubble),
# Megatron-LM, DAPPLE, Paddle (F-then-B), and what Zero Bubble Pipeline Parallelism calls its own (arXiv:2401.10241).
_SCHEDULES = (
    (r"zb|zero.?bubble|interleaved.?zero.?bubble", "zero_bubble"),
    (r".*(?<!non)(?<!non.)(?<!not.)(?<!no.)interleav|1f1b.?i\b|looped|vpp\b|virtual", "interleaved"),
    (r"g.?pipe|afab|all.?forward|f.?then.?b", "gpipe"),
    (r"1f1b|one.?forward|pipedream.?flush|dapple", "1f1b"),
)
# Embedding and loss: Megatron-LM counts each as a layer where it is told to (account_for_embedding_in_pipeline_split and the like).
_OTHER_UNITS = 2


def _stated(row: Row) -> str | None:
    """A name of `costmodel.mesh.plan.SCHEDULES`; None where the row states none that is known.

    >>> [_stated(Row(line=2, cells={"schedule": text})) for text in ("ZB-H1", "1F1B (interleaved)", "GPipe", "1F1B", "DualPipe", "")]
    ['zero_bubble', 'interleaved', 'gpipe', '1f1b', None, None]
    """
    text = re.sub(r"^schedule", "", row.text("schedule").lower())
    return next((name for pattern, name in _SCHEDULES if re.match(pattern, text)), None)


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
    if stated is not None or pp < 2 or _stated(row) != "interleaved":
        return 1
    return int(row.default("vpp", 2))


def schedule_of(row: Row, pp: int, vpp: int, count: int) -> str:
    """A name of `costmodel.mesh.plan.SCHEDULES` for a plan of ``pp`` stages with ``vpp`` chunks and ``count`` micro-batches.

    More chunks than one are interleaved, whatever is stated, where the micro-batches are whole groups of ``pp``.

    >>> row = Row(line=2, cells={"schedule": "ZB-2p"})
    >>> schedule_of(row, 8, 1, 32), schedule_of(row, 1, 1, 32), schedule_of(row, 8, 2, 32)
    ('zero_bubble', '1f1b', 'interleaved')
    """
    if pp < 2:
        return "1f1b"
    stated = _stated(row)
    if vpp > 1 and count % pp == 0:
        return "interleaved"
    if vpp > 1:
        row.default("vpp", 1)
    if stated is None and row.text("schedule"):
        row.default("schedule", "1f1b")
    return stated if stated in ("gpipe", "zero_bubble") else "1f1b"
