"""Degrees and batches of a plan: as a row states them, or as they follow from what else it states."""

from __future__ import annotations

from planner.measurements.facts import defaults_of
from planner.measurements.tables import Row, RowSkipped

__all__ = ["ImpossiblePlan", "batches_of", "degrees_of", "devices_of"]

_MOST_DEVICES = 10**6  # as of a question


class ImpossiblePlan(RowSkipped):
    """The numbers of a row contradict one another: right where the run failed, else a row that cannot be scored."""


def degrees_of(row: Row, node: int = 0) -> tuple[int, int, int, int]:
    """tp, pp, cp, dp; they multiply to the devices.

    Parameters
    ----------
    row : Row
    node : int
        Devices of a node, for rows that state nodes only; 0: nobody knows.

    Raises
    ------
    ImpossiblePlan
        They do not.
    RowSkipped
        Nothing says how many devices there are.
    """
    tp, pp, cp, dp = (row.count(name) for name in ("tp", "pp", "cp", "dp"))
    gpus = devices_of(row, node) if dp is None else row.count("gpus")
    if gpus is None or gpus != dp:  # where every device is a replica, nothing is left open
        tp = tp or row.default("tp", 1)
        pp = pp or row.default("pp", 1)
    tp, pp, cp = tp or 1, pp or 1, cp or 1
    if dp is None:
        if gpus is None:
            raise RowSkipped("neither gpus nor dp is stated", needs=(("gpus", "dp", "nodes"),))
        if gpus % (tp * pp * cp):
            raise ImpossiblePlan("tp x pp x cp does not divide the GPUs")
        dp = gpus // (tp * pp * cp)
    if tp * pp * cp * dp > _MOST_DEVICES:
        raise RowSkipped(f"tp x pp x cp x dp is above {_MOST_DEVICES:,}")
    if gpus is not None and tp * pp * cp * dp != gpus:
        raise ImpossiblePlan("tp x pp x cp x dp is not the number of GPUs")
    return tp, pp, cp, dp


def devices_of(row: Row, node: int = 0) -> int | None:
    """Devices in use: as stated, else those of all nodes; None where nothing says how many nodes there are.

    >>> devices_of(Row(line=2, cells={"nodes": "4", "gpus_per_node": "8"})), devices_of(Row(line=2, cells={"nodes": "4"}))
    (32, None)
    """
    stated, nodes = row.count("gpus"), row.count("nodes")
    if stated is not None or nodes is None:
        return stated
    each = row.count("gpus_per_node")
    if each is None and node:
        each = row.default("gpus_per_node", node)
    return nodes * each if each else None


def batches_of(row: Row, dp: int) -> tuple[list[tuple[int, int]], int]:
    """(micro-batch, micro-batches per step and replica), several where the row leaves it open; and the global batch."""
    micro_batch, accumulated = row.count("micro_batch"), row.count("grad_accum")
    global_batch, each = row.count("global_batch"), row.count("batch_per_gpu")
    if global_batch is None and each is not None:
        global_batch = each * dp
    elif global_batch is None and micro_batch is not None:
        accumulated = accumulated or row.default("grad_accum", 1)
        global_batch = micro_batch * accumulated * dp
    elif global_batch is None:
        raise RowSkipped(
            "neither global_batch nor micro_batch is stated", needs=(("global_batch", "micro_batch", "batch_per_gpu"),)
        )
    if dp > global_batch:
        raise ImpossiblePlan("there are more data-parallel ranks than samples in the global batch")
    per_replica = -(-global_batch // dp)
    _check_division(row, dp, micro_batch, global_batch)
    if micro_batch is not None:
        count = -(-per_replica // micro_batch)
        if accumulated is not None and accumulated * micro_batch != per_replica:  # the batch decides
            row.default("grad_accum", count)
        return [(micro_batch, count)], global_batch
    if accumulated is not None:
        return [(-(-per_replica // accumulated), accumulated)], global_batch
    return _open_batches(row, per_replica), global_batch


def _check_division(row: Row, dp: int, micro_batch: int | None, global_batch: int) -> None:
    """Every replica runs the same number of whole micro-batches, as Megatron-LM, DeepSpeed and nanotron assert.

    Composer's last one may be smaller, and counts as a whole one. Where the replicas follow from other columns the fullest one decides.

    Raises
    ------
    ImpossiblePlan
        The stated numbers do not divide the stated batch.
    """
    if micro_batch is not None and micro_batch > -(-global_batch // dp):
        raise ImpossiblePlan("micro_batch x dp is more than the global batch")
    if global_batch % ((micro_batch or 1) * dp) == 0:
        return
    is_cut = global_batch % dp == 0 and defaults_of(row).last_micro_batch_is_smaller
    if not is_cut and row.has("dp", "global_batch"):
        what = "dp" if micro_batch is None else "micro_batch x dp"
        raise ImpossiblePlan(f"{what} does not divide the global batch")
    if global_batch % dp:
        row.default("dp", "does not divide global_batch")
    else:
        row.default("micro_batch", "does not divide global_batch / dp")


def _open_batches(row: Row, per_replica: int) -> list[tuple[int, int]]:
    """Where a row leaves it open: the whole of a replica where its framework accumulates nothing, else any power of two or the whole."""
    if not defaults_of(row).accumulates:
        return [(row.default("micro_batch", per_replica), 1)]
    row.default("micro_batch", "tuned")
    sizes = sorted({per_replica, *(2**n for n in range(per_replica.bit_length()) if per_replica % 2**n == 0)})
    return [(size, per_replica // size) for size in sizes]
