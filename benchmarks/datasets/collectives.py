"""Published collectives as canonical rows: operations as libraries call them, links by their names, plateaus without a message size."""

from __future__ import annotations

import re

from benchmarks.datasets.cells import Cells
from benchmarks.datasets.machines import device_and_cluster, transport_of
from benchmarks.datasets.reading import Row, Unreadable
from planner.files.loading import load_cluster
from planner.files.naming.devices import device_called
from planner.measurements.collective_rows import COLLECTIVES
from planner.measurements.tables import short_name

__all__ = ["collective", "dispatch", "operation_of"]

# Where only a plateau is stated: nccl-tests are usually run up to 8 GiB.
_LARGE_BYTES = 2.0**33
_MANY_NODES = 16
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
# Operation by the letters of its name.
_OTHER_NAMES = {name.replace("_", ""): name for name in COLLECTIVES} | {
    "": "all_reduce",
    "allred": "all_reduce",
    "a2a": "all_to_all",
    "alltoallv": "all_to_all",
    "sendrecv": "point_to_point",
    "send": "point_to_point",
    "bcast": "broadcast",
    "p2p": "point_to_point",
}


def collective(row: Row) -> Cells:
    """The canonical row.

    Raises
    ------
    Unreadable
        What is wrong with it.
    """
    cells = Cells()
    cells.put("suspect", True if row.says("suspect") else None)
    operation = operation_of(row.text("collective"))
    if operation not in COLLECTIVES:
        raise Unreadable(f"collective '{short_name(operation)}' is not known ({', '.join(COLLECTIVES)})")
    cells.put("collective", operation)
    cells.texts(row, "algorithm")
    cells.put("dataset_group", row.text("device"))
    _measured(row, cells)
    _machine_and_ranks(row, cells)
    if "sharp" in f"{row.text('device')} {row.text('algorithm')}".lower():
        cells.put("in_network", True)
    return cells


def dispatch(row: Row) -> Cells:
    """The canonical row of an exchange of tokens between the ranks that share experts."""
    cells = Cells()
    cells.texts(row, "algorithm")
    cells.counts(row, "tokens_per_rank", "hidden", "top_k", "experts", "sms")
    cells.numbers(row, "dispatch_us", "combine_us")
    _machine_and_ranks(row, cells)
    return cells


def operation_of(text: str) -> str:
    """An operation by the name that libraries give it, which remarks may follow; the text itself where it is none that is known.

    >>> [operation_of(text) for text in ("", "AllReduce", "all-gather", "reduce_scatter_perf", "p2p (send)", "ncclAllToAll", "barrier")]
    ['all_reduce', 'all_reduce', 'all_gather', 'reduce_scatter', 'point_to_point', 'all_to_all', 'barrier']
    """
    bare = re.sub(r"\s*\(.*\)\s*$", "", text.lower())
    word = re.sub(r"[^a-z0-9]", "", bare.removesuffix("_perf"))
    word = re.sub(r"^(?:nccl|rccl|mpi|hccl)|(?:intotensor|tensor|base|single)$", "", word)
    return _OTHER_NAMES.get(word, bare.replace("-", "_"))


def _measured(row: Row, cells: Cells) -> None:
    """A time, or a bandwidth: of a range its middle, of rings where no other is stated."""
    cells.numbers(row, "bytes", "time_us", "time_ms", "algbw_GBps", "busbw_GBps")
    if "busbw_GBps" not in cells and "algbw_GBps" not in cells:
        least, most = row.positive("busbw_min"), row.positive("busbw_max")
        between = 0.5 * (least + most) if least is not None and most is not None else row.positive("busbw_ring_GBps")
        cells.put("busbw_GBps", between)
    if "bytes" not in cells:
        if "busbw_GBps" not in cells and "algbw_GBps" not in cells:
            raise Unreadable("no bytes are stated")
        cells.put("bytes", _LARGE_BYTES)


def _machine_and_ranks(row: Row, cells: Cells) -> None:
    """Where, and how many: names of links stand for a device that has them."""
    text = row.text("device")
    word = text.lower()
    named_inside = next((rate for pattern, rate in _INSIDE if re.search(pattern, word)), None)
    inside = row.positive("intra_bw_GBps") or named_inside
    outside = row.positive("inter_bw_Gbps_per_node") or _network_gbps(text)
    between_nodes = outside is not None
    if between_nodes and not row.has("inter_bw_Gbps_per_node") and outside == _usual_adapter_gbps(text):
        outside = None  # what every adapter of the usual machine has
    ranks, nodes = row.count("ranks"), row.count("nodes")
    # A bandwidth without the number of nodes is that which more nodes do not lower.
    if nodes is None:
        nodes = (_MANY_NODES if between_nodes else 1) if ranks is None or between_nodes else None
    cells.put("ranks", ranks if ranks is not None else 8 * (nodes or 1))
    cells.put("nodes", nodes)
    cells.counts(row, "gpus_per_node")
    cells.put("intra_bw_GBps", inside)
    cells.put("inter_bw_Gbps_per_node", outside)
    cells.put("transport", transport_of(word))
    if between_nodes and nodes and int(cells["ranks"]) % nodes == 0:
        cells.put("nvlink_domain", int(cells["ranks"]) // nodes)
    cells.texts(row, "device_file", "cluster_file")
    if row.has("device_file") or row.has("cluster_file"):
        cells.put("device", device_called(text)[0])
        return
    try:
        device, cluster = device_and_cluster(row)
    except Unreadable:
        if inside is None and outside is None:
            raise
        device = next(name for pattern, name in _DEVICES if re.search(pattern, word))
        cluster = device_called(device)[1]
    cells.put("device", device)
    if cluster != device_called(device)[1]:
        cells.put("cluster", cluster)


def _usual_adapter_gbps(text: str) -> float | None:
    """Gb/s of one adapter of the machine that a named device usually stands in; None where no device is named, or adapters are counted.

    >>> _usual_adapter_gbps("H100 + NDR InfiniBand"), _usual_adapter_gbps("1x400Gb RDMA"), _usual_adapter_gbps("H100, 1x NDR")
    (400.0, None, None)
    """
    name, cluster = device_called(text)
    if name is None or re.search(r"\d\s?x\s?(?:\d|[qfehnx]dr)", text.lower()):
        return None
    return load_cluster(cluster).cluster.levels[-1].bandwidth_bytes_per_s * 8 / 1e9


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
