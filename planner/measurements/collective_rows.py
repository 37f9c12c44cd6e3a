"""Collectives: bytes, ranks and a time or a bus bandwidth (nccl-tests)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from costmodel.hardware.cluster import Cluster, span
from costmodel.hardware.collectives import OPERATIONS, library_s
from costmodel.hardware.device import DEFAULT_LAUNCH_OVERHEAD_S
from planner.measurements.fitted import fitted_links
from planner.measurements.hardware import Machine, links_of, machine_of
from planner.measurements.outcomes import Comparison, Outcome, Preset, outcomes_of
from planner.measurements.tables import Row, RowSkipped

__all__ = ["COLLECTIVES", "outcome_of", "predict"]

# Times what the links need; far above any measurement, far below a wrong unit of microseconds.
_LONGEST = 1e5
# One rank has what all get, or gets what all have; no training step has them, but nccl-tests do.
_FROM_OR_TO_ONE = ("broadcast", "reduce")
COLLECTIVES: tuple[str, ...] = (*OPERATIONS, *_FROM_OR_TO_ONE)


def outcome_of(row: Row, preset: Preset) -> Outcome:
    """Predict a row."""
    operation = row.text("collective") or "all_reduce"
    message = row.number("bytes")
    if message is None:
        raise RowSkipped("no bytes are stated")
    machine, ranks = _machine_and_ranks(row)
    if ranks < 2:
        raise RowSkipped("fewer than two ranks")
    measured_s = _measured_s(row, operation, message, ranks)
    lane = span(machine.cluster, ranks, 1)
    cluster = machine.cluster
    if row.flag("in_network"):  # switches sum on every level: what a row called SHARP says
        levels = tuple(level if level.in_network else replace(level, in_network=1.0) for level in cluster.levels)
        cluster = replace(cluster, levels=levels)
    cluster = preset.cluster(cluster)
    # It is a kernel, and timed alone: in a training step the host launches it while others run. nccl-tests launch them one by one, from no
    # graph; NCCL itself counts 6.6 us where few bytes are sent (NVIDIA/nccl, src/graph/tuning.cc, baseLat).
    launch_s = 0.0 if preset.name == "paleo" else DEFAULT_LAUNCH_OVERHEAD_S
    predicted_s = launch_s + _library_s(operation, message, ranks, cluster)
    spanned = [
        level.bandwidth_bytes_per_s for level, fan in zip(machine.cluster.levels, lane.fan_out, strict=True) if fan > 1
    ]
    ideal_s = message * _traffic(operation, ranks) / min(spanned)
    if not 0.05 * ideal_s <= measured_s:
        raise RowSkipped("time far below what the links allow: wrong unit?")
    if measured_s > _LONGEST * max(ideal_s, predicted_s):
        raise RowSkipped(f"time above {_LONGEST:,.0f} times what the links need: wrong unit?")
    comparison = Comparison(what=operation, predicted_s=predicted_s, measured_s=measured_s, ideal_s=ideal_s)
    return Outcome(row=row, comparisons=(comparison,), fitted=fitted_links(machine.cluster, ranks))


def _library_s(operation: str, message: float, ranks: int, cluster: Cluster) -> float:
    """Seconds of a collective of a library.

    NCCL broadcasts and reduces along a ring, in pieces: ``ranks - 1`` hops, and the whole message over every link. So does the ring of an
    all-gather with what ``ranks - 1`` of the ranks send in place of the message.
    """
    if operation in _FROM_OR_TO_ONE:
        operation, message = "all_gather", message * ranks / (ranks - 1)
    return float(library_s(operation, message, span(cluster, ranks, 1), cluster))


def _measured_s(row: Row, operation: str, message: float, ranks: int) -> float:
    """Seconds, from the time or from a bandwidth: algbw = bytes / time, busbw = algbw x traffic (nccl-tests, PERFORMANCE.md)."""
    for name, unit in (("time_us", 1e-6), ("time_ms", 1e-3)):
        value = row.number(name)
        if value is not None:
            return value * unit
    algorithm, bus = row.number("algbw_GBps"), row.number("busbw_GBps")
    if bus is not None:
        return message * _traffic(operation, ranks) / (bus * 1e9)
    if algorithm is not None:
        return message / (algorithm * 1e9)
    raise RowSkipped("no measured time")


def _traffic(operation: str, ranks: int) -> float:
    """Share of the message that crosses the link of a rank: 2 (n - 1) / n for an all-reduce, 1 from or to one rank, else (n - 1) / n.

    >>> _traffic("all_reduce", 4), _traffic("all_gather", 4), _traffic("point_to_point", 2)
    (1.5, 0.75, 1.0)
    """
    if operation in ("point_to_point", *_FROM_OR_TO_ONE):
        return 1.0
    return (2.0 if operation == "all_reduce" else 1.0) * (ranks - 1) / ranks


def _machine_and_ranks(row: Row) -> tuple[Machine, int]:
    """Where, and how many."""
    ranks = row.count("ranks")
    if ranks is None:
        raise RowSkipped("ranks is not stated", needs=(("ranks",),))
    per_node = _ranks_per_node(ranks, row.count("nodes"), row.count("gpus_per_node"))
    links = replace(links_of(row), gpus_per_node=per_node, joined=row.count("nvlink_domain"))
    return machine_of(row, links), ranks


def _ranks_per_node(ranks: int, nodes: int | None, devices: int | None) -> int | None:
    """Ranks that share a node: as many on each; None where nothing is said.

    >>> _ranks_per_node(16, 2, None), _ranks_per_node(8, 8, 8), _ranks_per_node(16, None, 8)
    (8, 1, 8)

    Raises
    ------
    RowSkipped
        The numbers contradict each other.
    """
    if nodes is None:
        return devices
    if ranks < nodes:
        raise RowSkipped("fewer ranks than nodes")
    if ranks % nodes:
        raise RowSkipped("the nodes do not have equal numbers of ranks")
    if devices is not None and ranks > nodes * devices:
        raise RowSkipped("more ranks than nodes x gpus_per_node")
    return ranks // nodes


# Predicts rows of this kind, in the order given: (rows, preset) -> outcomes.
predict = partial(outcomes_of, one=outcome_of)
