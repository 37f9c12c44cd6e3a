"""Collectives: bytes, ranks and a time or a bus bandwidth (nccl-tests)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from costmodel.hardware.cluster import Cluster, span
from costmodel.hardware.collectives import OPERATIONS, library_s
from planner.measurements.fitted import fitted_links
from planner.measurements.hardware import Links, Machine, machine_of
from planner.measurements.outcomes import TOO_LARGE, Comparison, Outcome, skipped
from planner.measurements.preset import Preset
from planner.measurements.tables import Row, RowSkipped, short_name
from planner.naming.devices import device_called

__all__ = ["predict"]

# Where only a plateau is stated: nccl-tests are usually run up to 8 GiB.
_LARGE_BYTES = 2.0**33
_MANY_NODES = 16
# Times what the links need; far above any measurement, far below a wrong unit of microseconds.
_LONGEST = 1e5
# Of one direction, per device, in GB/s: NVIDIA's datasheets state both directions together. PCIe x16: PCI-SIG, 16 lanes less encoding.
_INSIDE = (
    (r"nv(link|l)\s?2", 150.0),
    (r"nv(link|l)\s?3", 300.0),
    (r"nv(link|l)\s?4", 450.0),
    (r"nv(link|l)\s?5", 900.0),
    (r"pcie\s?gen\s?3", 15.75),
    (r"pcie\s?gen\s?4", 31.5),
    (r"pcie\s?gen\s?5", 63.0),
)
# Links named without a device: a device that has them; its rate does not matter here.
_DEVICES = (
    (r"pcie\s?gen\s?3", "titan-x"),
    (r"pcie\s?gen\s?4", "a100-pcie-80gb"),
    (r"pcie\s?gen\s?5", "h100-pcie"),
    (r"nv(link|l)\s?2|v100", "v100-16gb"),
    (r"nv(link|l)\s?3|a100|p4d", "a100-80gb"),
    (r".", "h100-sxm"),
)


# One rank has what all get, or gets what all have; no training step has them, but nccl-tests do.
_FROM_OR_TO_ONE = ("broadcast", "reduce")
# Operation by the letters of its name.
_OTHER_NAMES = {name.replace("_", ""): name for name in OPERATIONS} | {
    "": "all_reduce",
    "allred": "all_reduce",
    "a2a": "all_to_all",
    "alltoallv": "all_to_all",
    "sendrecv": "point_to_point",
    "send": "point_to_point",
    "bcast": "broadcast",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "p2p": "point_to_point",
}


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    outcomes = []
    for row in rows:
        try:
            outcomes.append(_outcome(row, preset))
        except RowSkipped as trouble:
            outcomes.append(skipped(row, trouble.reason, usable=trouble.usable, needs=trouble.needs))
        except OverflowError:
            outcomes.append(skipped(row, TOO_LARGE, usable=False))
    return outcomes


def _outcome(row: Row, preset: Preset) -> Outcome:
    if row.says("suspect"):
        raise RowSkipped("marked suspect")
    operation = _operation(row.text("collective"))
    if operation not in (*OPERATIONS, *_FROM_OR_TO_ONE):
        known = ", ".join((*OPERATIONS, *_FROM_OR_TO_ONE))
        raise RowSkipped(f"collective '{short_name(operation)}' is not known ({known})", usable=True)
    message = row.positive("bytes") or _default_bytes(row)
    machine, ranks = _machine_and_ranks(row)
    if ranks < 2:
        raise RowSkipped("fewer than two ranks")
    measured_s = _measured_s(row, operation, message, ranks)
    lane = span(machine.cluster, ranks, 1)
    sums = "sharp" in f"{row.text('device')} {row.text('algorithm')}".lower()
    cluster = preset.cluster(_with_sharp(machine.cluster) if sums else machine.cluster)
    # It is a kernel, and timed alone: in a training step the host launches it while others run.
    launch_s = 0.0 if preset.name == "paleo" else machine.device.launch_overhead_s
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


def _operation(text: str) -> str:
    """An operation by the name that libraries give it; the text itself where it is none that is known.

    >>> [_operation(text) for text in ("", "AllReduce", "all-gather", "reduce_scatter_perf", "SendRecv", "ncclAllToAll", "barrier")]
    ['all_reduce', 'all_reduce', 'all_gather', 'reduce_scatter', 'point_to_point', 'all_to_all', 'barrier']
    """
    word = re.sub(r"[^a-z0-9]", "", text.lower().removesuffix("_perf"))
    word = re.sub(r"^(?:nccl|rccl|mpi|hccl)|(?:intotensor|tensor|base|single)$", "", word)
    return _OTHER_NAMES.get(word, text.lower().replace("-", "_"))


def _with_sharp(cluster: Cluster) -> Cluster:
    """Switches sum on every level: what a row called SHARP says."""
    levels = tuple(level if level.in_network else replace(level, in_network=1.0) for level in cluster.levels)
    return replace(cluster, levels=levels)


def _default_bytes(row: Row) -> float:
    if not row.has("busbw_GBps") and not row.has("algbw_GBps"):
        raise RowSkipped("no bytes are stated")
    return row.default("bytes", _LARGE_BYTES)


def _measured_s(row: Row, operation: str, message: float, ranks: int) -> float:
    """Seconds, from the time or from a bandwidth: algbw = bytes / time, busbw = algbw x traffic (nccl-tests, PERFORMANCE.md)."""
    for name, unit in (("time_us", 1e-6), ("time_ms", 1e-3)):
        value = row.positive(name)
        if value is not None:
            return value * unit
    algorithm = row.positive("algbw_GBps")
    bus = row.positive("busbw_GBps") or (_middle_or_ring(row) if algorithm is None else None)
    if bus is not None:
        return message * _traffic(operation, ranks) / (bus * 1e9)
    if algorithm is not None:
        return message / (algorithm * 1e9)
    raise RowSkipped("no measured time")


def _middle_or_ring(row: Row) -> float | None:
    """A bus bandwidth of a row that states a range, or that of rings beside another that it lacks."""
    least, most = row.positive("busbw_min"), row.positive("busbw_max")
    if least is not None and most is not None:
        return row.default("busbw_GBps", 0.5 * (least + most))
    return row.positive("busbw_ring_GBps")


def _traffic(operation: str, ranks: int) -> float:
    """Share of the message that crosses the link of a rank: 2 (n - 1) / n for an all-reduce, 1 from or to one rank, else (n - 1) / n."""
    if operation in ("point_to_point", *_FROM_OR_TO_ONE):
        return 1.0
    return (2.0 if operation == "all_reduce" else 1.0) * (ranks - 1) / ranks


def _machine_and_ranks(row: Row) -> tuple[Machine, int]:
    """Where, and how many: names of links stand for a device that has them."""
    text = row.text("device")
    word = text.lower()
    inside = row.positive("intra_bw_GBps") or next(
        (rate for pattern, rate in _INSIDE if re.search(pattern, word)), None
    )
    outside = row.positive("inter_bw_Gbps_per_node") or _network_gbps(text)
    named = outside is not None
    if named and not row.has("inter_bw_Gbps_per_node") and outside == _usual_adapter_gbps(text):
        outside = None  # what every adapter of the usual machine has
    ranks, nodes = row.count("ranks"), row.count("nodes")
    # A bandwidth without the number of nodes is that which more nodes do not lower.
    between_nodes = named
    if nodes is None:
        nodes = row.default("nodes", _MANY_NODES if between_nodes else 1) if ranks is None or between_nodes else None
    if ranks is None:
        ranks = row.default("ranks", 8 * (nodes or 1))
    each = _ranks_per_node(ranks, nodes, row.count("gpus_per_node"))
    links = Links(
        gpus_per_node=each,
        joined=each if between_nodes else None,
        intra_bytes_per_s=None if inside is None else inside * 1e9,
        inter_bytes_per_s=None if outside is None else outside * 1e9 / 8,
    )
    try:
        return machine_of(row, links), ranks
    except RowSkipped:
        if inside is None and outside is None:
            raise
    stand_in = next(name for pattern, name in _DEVICES if re.search(pattern, word))
    return machine_of(Row(line=row.line, cells={**row.cells, "device": stand_in}), links), ranks


def _usual_adapter_gbps(text: str) -> float | None:
    """Gb/s of one adapter of the machine that a named device usually stands in; None where no device is named, or adapters are counted.

    >>> _usual_adapter_gbps("H100 + NDR InfiniBand"), _usual_adapter_gbps("1x400Gb RDMA"), _usual_adapter_gbps("H100, 1x NDR")
    (400.0, None, None)
    """
    from planner.files.loading import load_cluster

    name, cluster = device_called(text)
    if name is None or re.search(r"\d\s?x\s?(?:\d|[qfehnx]dr)", text.lower()):
        return None
    return load_cluster(cluster).cluster.levels[-1].bandwidth_bytes_per_s * 8 / 1e9


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


# Gb/s of four lanes: InfiniBand Trade Association, roadmap; in front of "200" and the like the number decides.
_INFINIBAND = {"qdr": 32.0, "fdr": 54.5, "edr": 100.0, "hdr": 200.0, "ndr": 400.0, "xdr": 800.0}


def _network_gbps(text: str) -> float | None:
    """Gb/s of a node in a name such as "8x400Gb RDMA", "100GbE" or "2x HDR InfiniBand"; bits have a small b, memories have none.

    >>> _network_gbps("NVL4 + 8x400Gb RDMA (DGX H100)"), _network_gbps("100GbE TCP sockets"), _network_gbps("A100-80GB")
    (3200.0, 100.0, None)
    >>> _network_gbps("400Gb IB"), _network_gbps("8x HDR"), _network_gbps("V100, EDR InfiniBand"), _network_gbps("25 Gb/s")
    (400.0, 1600.0, 100.0, 25.0)
    """
    several = re.search(r"(\d+)\s?x\s?(\d+)\s?gb", text.lower())
    if several:
        return float(several[1]) * float(several[2])
    one = re.search(r"(\d+)\s?(?:G[bB]E|Gb(?:ps|/s|it(?:/s)?)?|gb(?:e|ps|it))\b", text)
    if one:
        return float(one[1])
    named = re.search(r"(?:(\d+)\s?x\s?)?\b([qfehnx]dr)\d*\b", text.lower())
    return float(named[1] or 1) * _INFINIBAND[named[2]] if named else None
