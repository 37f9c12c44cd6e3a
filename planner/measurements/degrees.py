"""Degrees and batches of a plan: as a row states them, or as they follow from what else it states."""

from __future__ import annotations

import re

from planner.core.quantities import in_tokens
from planner.measurements.facts import defaults_of
from planner.measurements.tables import Row, RowSkipped
from planner.measurements.throughputs import has_failed, implied_batch

__all__ = ["ImpossiblePlan", "batches_of", "degrees_of", "devices_of", "shared_samples", "stated_batch"]

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
    if gpus is not None and dp is not None and (tp is None) != (pp is None):
        rest = gpus // (dp * (tp or pp or 1) * (cp or 1))  # what the one that is not stated must be
        if rest * dp * (tp or pp or 1) * (cp or 1) == gpus and rest > 1:
            tp, pp = tp or row.default("tp", rest), pp or row.default("pp", rest)
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
        dp = _replicas_otherwise(row, tp * pp * cp * dp, gpus, dp, cp)
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


def _replicas_otherwise(row: Row, product: int, gpus: int, dp: int, cp: int) -> int:
    """Replicas where a table counts them in another way: beside the ranks that share weights, beside those of experts, or with those of cp.

    >>> row = Row(line=2, cells={"fsdp": "8"})
    >>> _replicas_otherwise(row, 4, 32, dp=4, cp=1), row.defaults
    (32, {'dp': 'dp x fsdp'})

    Raises
    ------
    ImpossiblePlan
        In no way do the degrees multiply to the devices.
    """
    sharded = row.count("fsdp") if row.text("fsdp").isdigit() else None
    for name, ranks in (("fsdp", sharded), ("ep", row.count("ep"))):
        if ranks is not None and product * ranks == gpus:
            row.default("dp", f"dp x {name}")
            return dp * ranks
    if cp > 1 and product == gpus * cp and dp % cp == 0:
        row.default("dp", "dp / cp")
        return dp // cp
    raise ImpossiblePlan("tp x pp x cp x dp is not the number of GPUs")


_IN_TOKENS = re.compile(r"([0-9][0-9.,]*) ?([kKmMgGbB]i?)? ?(?:tok|tokens?)\b")


def _samples_in_tokens(row: Row, seq: int | None) -> int | None:
    """The global batch of a row that states it in tokens ("4M tokens", in powers of two where those are whole samples); else None.

    >>> said = ("4M tokens", "4Mi tokens", "4,194,304 tokens (ramped up)", "1024", "4M")
    >>> [_samples_in_tokens(Row(line=2, cells={"global_batch": text}), 4096) for text in said]
    [1024, 1024, 1024, None, None]
    """
    found = _IN_TOKENS.match(row.text("global_batch"))
    if found is None or not seq:
        return None
    said = in_tokens(f"{found[1].replace(',', '')}{found[2] or ''} tokens")
    if said is None:
        return None
    stated, binary = said
    return round(binary / seq) if binary % seq == 0 else max(round(stated / seq), 1)


def stated_batch(row: Row, seq: int | None) -> int | None:
    """Samples per step, where the row states them or their positions."""
    return _samples_in_tokens(row, seq) or row.count("global_batch")


def shared_samples(row: Row, cp: int, dp: int, seq: int | None) -> tuple[int, int]:
    """Cp and dp: where more devices ran than there were samples and neither is stated, they shared samples by their positions.

    >>> row = Row(line=2, cells={"gpus": "256", "global_batch": "64"})
    >>> shared_samples(row, 1, 256, 131072), row.defaults
    ((4, 64), {'cp': 4})
    """
    samples = stated_batch(row, seq)
    if samples is None or row.has("cp") or row.has("dp") or dp <= samples or dp % samples or has_failed(row):
        return cp, dp
    return row.default("cp", dp // samples), samples


def batches_of(row: Row, dp: int, gpus: int, seq: int | None) -> tuple[list[tuple[int, int]], int]:
    """(micro-batch, micro-batches per step and replica), several where the row leaves it open; and the global batch."""
    micro_batch, accumulated = row.count("micro_batch"), row.count("grad_accum")
    global_batch = stated_batch(row, seq)
    if global_batch is None:
        each = row.count("batch_per_gpu") or row.count("batch_per_dp")
        implied = implied_batch(row, gpus, seq)
        if each is not None:
            global_batch = each * dp
        elif micro_batch is not None and accumulated is None and implied is not None:
            # The measured time and throughput know it: the nearest whole number of micro-batches per replica.
            count = row.default("grad_accum", max(round(implied / (micro_batch * dp)), 1))
            global_batch = micro_batch * count * dp
        elif micro_batch is not None:
            accumulated = accumulated or row.default("grad_accum", 1)
            global_batch = micro_batch * accumulated * dp
        elif implied is not None:
            global_batch = row.default("global_batch", implied)
        else:
            raise RowSkipped(
                "neither global_batch nor micro_batch is stated",
                needs=(("global_batch", "micro_batch", "batch_per_gpu", "batch_per_dp"),),
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

    Composer's last one may be smaller, and counts as a whole one. Where the replicas follow from other columns, or the batch from a
    rounded number of tokens, the fullest replica decides.

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
    if not is_cut and row.has("dp", "global_batch") and _IN_TOKENS.match(row.text("global_batch")) is None:
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
