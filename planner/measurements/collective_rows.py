"""Collectives: bytes, ranks and a time or a bus bandwidth (nccl-tests); the exchange of tokens between experts (DeepEP)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from costmodel.hardware.cluster import Cluster, span
from costmodel.hardware.collectives import DEVICE_STARTED, OPERATIONS, collective_s, library_s
from costmodel.mesh.communication import reached
from costmodel.serving.workload import ServingAssumptions
from planner.measurements.fitted import fitted_links
from planner.measurements.hardware import Machine, links_of, machine_of
from planner.measurements.outcomes import Comparison, Outcome, Preset, outcomes_of
from planner.measurements.tables import LONGEST, Row, RowSkipped

# Times what the links need; far above any measurement, far below a wrong unit of microseconds.
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
    sums = row.flag("in_network")
    if sums is not None:  # on every level, or on none
        levels = tuple(replace(level, in_network=(level.in_network or 1.0) * sums) for level in cluster.levels)
        cluster = replace(cluster, levels=levels)
    cluster = preset.cluster(cluster)
    predicted_s = _library_s(
        operation, message, ranks, cluster, preset, in_engines="custom" in row.text("algorithm").lower()
    )
    spanned = [
        level.bandwidth_bytes_per_s for level, fan in zip(machine.cluster.levels, lane.fan_out, strict=True) if fan > 1
    ]
    ideal_s = message * _traffic(operation, ranks) / min(spanned)
    if not 0.05 * ideal_s <= measured_s:
        raise RowSkipped("time far below what the links allow: wrong unit?")
    if measured_s > LONGEST * max(ideal_s, predicted_s):
        raise RowSkipped(f"time above {LONGEST:,.0f} times what the links need: wrong unit?")
    comparison = Comparison(what=operation, predicted_s=predicted_s, measured_s=measured_s, ideal_s=ideal_s)
    return Outcome(row=row, comparisons=(comparison,), fitted=fitted_links(machine.cluster, ranks))


# Of a kernel that is timed alone: in a training step the host launches it while others run (NVIDIA/nccl, src/graph/tuning.cc, baseLat).
# Serving engines replay theirs in a graph.
_LAUNCH_S = 6.6e-6
_REPLAY_S = ServingAssumptions().exchange_overhead_s


# Multiprocessors that engines give to the exchange of tokens at least; with fewer it starves (DeepEP, README: 24, SGLang: 20).
_FEWEST_SMS = 20
# An element of tokens on their way out, in fp8 with a scale of 4 bytes per 128, and on their way back, in bf16 (DeepEP, README); what a
# multiprocessor of an H100 copies per second inside a domain, and over several, where sums are made twice: from kernels with 4 and 8 of
# them, which starve (AIConfigurator, DeepEP on 1, 2 and 4 nodes). A pair of them, one to send and one to receive, has 27 to 39 GB/s;
# a channel of NCCL has 38.7 (src/graph/tuning.cc, perChMaxTreeBws).
_WIDTHS = (
    ("dispatch", "dispatch_us", 1.0 + 4.0 / 128.0, 17e9, 17e9),
    ("combine", "combine_us", 2.0, 19.5e9, 13.6e9),
)


def dispatch_outcome_of(row: Row, preset: Preset) -> Outcome:
    """Predict the exchange of tokens between the ranks that share experts: an all-to-all of what each sends.

    A token travels once to every domain (or, inside one, to every rank) that holds one of its experts, and is copied there; by kernels of
    low latency once for every expert (DeepEP, README). Multiprocessors make every copy, over the network and to the ranks of a domain
    (csrc/kernels/internode.cu): links or they decide.
    """
    tokens, hidden, top_k = (row.number(name) for name in ("tokens_per_rank", "hidden", "top_k"))
    if tokens is None or hidden is None or top_k is None:
        raise RowSkipped("tokens_per_rank, hidden or top_k is not stated")
    processors = row.number("sms") or _FEWEST_SMS
    if processors < _FEWEST_SMS:
        raise RowSkipped(f"fewer than {_FEWEST_SMS} multiprocessors for the exchange")
    machine, ranks = _machine_and_ranks(row)
    cluster = preset.cluster(machine.cluster)
    where = span(cluster, ranks, 1)
    place = cluster.domain_level
    domains = 1.0 if place is None else float(where.units_inside[place + 1])
    targets = domains if domains > 1.0 else float(ranks)
    is_quick = "low latency" in row.text("algorithm").lower()
    copies = top_k if is_quick else float(reached(np.array(targets), np.array(top_k)))
    made = float(reached(np.array(float(ranks)), np.array(top_k))) + (copies if domains > 1.0 else 0.0)
    launch_s = 0.0 if preset.name == "paleo" else _LAUNCH_S
    comparisons = []
    for what, column, width, *rates in _WIDTHS:
        measured_us = row.number(column)
        if measured_us is None:
            continue
        message = tokens * hidden * copies * width
        sent_s = float(collective_s("all_to_all", "pairwise", message, where, cluster, protocol=DEVICE_STARTED))
        if not is_quick and preset.name != "paleo":
            sent_s = max(sent_s, tokens * hidden * width * made / (processors * rates[domains > 1.0]))
        spanned = where.single_bytes_per_s[np.flatnonzero(where.is_spanned)[-1]]
        ideal_s = message * (ranks - 1) / ranks / float(spanned)
        comparisons.append(
            Comparison(what=what, predicted_s=launch_s + sent_s, measured_s=measured_us * 1e-6, ideal_s=ideal_s)
        )
    if not comparisons:
        raise RowSkipped("no measured time")
    return Outcome(row=row, comparisons=tuple(comparisons), fitted=fitted_links(machine.cluster, ranks))


def _library_s(
    operation: str, message: float, ranks: int, cluster: Cluster, preset: Preset, *, in_engines: bool
) -> float:
    """Seconds of a collective of a library, or of a serving engine, with its launch; PALEO knows the bandwidth only.

    NCCL broadcasts and reduces along a ring, in pieces: ``ranks - 1`` hops, and the whole message over every link. So does the ring of an
    all-gather with what ``ranks - 1`` of the ranks send in place of the message.
    """
    if operation in _FROM_OR_TO_ONE:
        operation, message = "all_gather", message * ranks / (ranks - 1)
    launch_s = 0.0 if preset.name == "paleo" else _REPLAY_S if in_engines else _LAUNCH_S
    return launch_s + float(library_s(operation, message, span(cluster, ranks, 1), cluster, in_engines=in_engines))


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
predict_dispatches = partial(outcomes_of, one=dispatch_outcome_of)
