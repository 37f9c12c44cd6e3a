"""What a row says about weights, gradients and optimizer states that data-parallel ranks share."""

from __future__ import annotations

from planner.measurements.facts import defaults_of
from planner.measurements.tables import Row

__all__ = ["sharding_choices", "sharding_of"]


def sharding_choices(row: Row, dp: int, cp: int, *, is_pipelined: bool = False) -> list[tuple[int, int, int]]:
    """What `sharding_of` says, and where nothing does, what shares more: taken in turn until a plan fits the devices.

    Parameters
    ----------
    row : Row
    dp, cp : int
    is_pipelined : bool
        Weights that are gathered for every micro-batch and stage are not what pipelines are run with.

    Examples
    --------
    >>> sharding_choices(Row(line=2, cells={"zero_stage": "0"}), dp=8, cp=1), sharding_choices(Row(line=2, cells={}), dp=8, cp=1)
    ([(0, 8, 1)], [(0, 8, 1), (1, 1, 8), (3, 1, 8)])
    """
    first = sharding_of(row, dp, cp)
    if first[0] or dp == 1 or "zero_stage" not in row.defaults:
        return [first]
    return [first, *((stage, 1, dp) for stage in ((1,) if is_pipelined else (1, 3)))]


def sharding_of(row: Row, dp: int, cp: int) -> tuple[int, int, int]:
    """ZeRO stage, replicas with a copy of their own, and ranks that share one.

    >>> sharding_of(Row(line=2, cells={"zero_stage": "1", "shard_group": "8"}), dp=64, cp=1)
    (1, 8, 8)
    """
    stated = row.text("zero_stage")
    stage = int(stated) if stated else row.default("zero_stage", defaults_of(row).zero_stage or 0)
    if stage == 0 or (dp * cp == 1):
        return 0, dp, 1
    size = row.count("shard_group") or dp
    if dp % size:
        return stage, 1, dp
    return (stage, dp // size, size) if size * cp > 1 else (0, dp, 1)
