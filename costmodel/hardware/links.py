"""Which links of a cluster the groups of a plan use, and how long a step waits for each: the step, seen from the network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from costmodel.hardware.cluster import Cluster, Level, span

__all__ = ["LinkRow", "link_level", "link_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """One kind of traffic of a plan.

    Attributes
    ----------
    traffic : str
        What travels: "tensor parallel".
    group : int
        Ranks that take part together.
    stride : int
        Distance of neighbours in the numbering of the ranks.
    level : str
        Outermost level of links that a group spans.
    bytes_per_s : float
        What a rank reaches over it while all others do the same, in one direction.
    waiting_s : float
        Of a step.
    """

    traffic: str
    group: int
    stride: int
    level: str
    bytes_per_s: float
    waiting_s: float


def link_level(cluster: Cluster, group: int, stride: int) -> tuple[Level, float]:
    """Outermost level that groups of ranks span, and what one rank of each reaches over it, bytes/s.

    Examples
    --------
    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> node = Level(name="node", size=8, bandwidth_bytes_per_s=100e9, latency_s=1e-6)
    >>> fabric = Level(name="fabric", size=None, bandwidth_bytes_per_s=10e9, latency_s=5e-6)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(node, fabric))
    >>> [(link_level(cluster, 8, stride)[0].name, link_level(cluster, 8, stride)[1]) for stride in (1, 8)]
    [('node', 100000000000.0), ('fabric', 10000000000.0)]
    """
    where = span(cluster, float(group), float(stride))
    spanned = np.flatnonzero(where.is_spanned)
    at = int(spanned[-1]) if len(spanned) else 0
    return cluster.levels[at], float(where.single_bytes_per_s[at])


def link_rows(cluster: Cluster, found: Iterable[tuple[str, int, int, float]]) -> list[LinkRow]:
    """Rows of traffic (what travels, ranks of a group, their stride, seconds waited); groups of one rank have no link and are left out."""
    rows = []
    for traffic, group, stride, waiting_s in found:
        if group > 1:
            level, rate = link_level(cluster, group, stride)
            rows.append(
                LinkRow(
                    traffic=traffic, group=group, stride=stride, level=level.name, bytes_per_s=rate, waiting_s=waiting_s
                )
            )
    return rows
