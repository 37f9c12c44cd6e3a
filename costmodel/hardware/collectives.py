"""Time of collective operations: latency and bandwidth (alpha-beta: R. Hockney, Parallel Computing 20, 1994), at any group size.

Symbols: n ranks, a message of B bytes, and per level of the cluster, innermost first: c units joined, latency a, and
G, the bandwidth with which all ranks of the group in one unit together leave it (`costmodel.hardware.cluster.GroupSpan`), the other groups
communicating too. On one level G is the bandwidth of a device. All links are full duplex.

Whose B it is: all_reduce, the vector that every rank has; all_gather, the gathered tensor; reduce_scatter, the tensor before it is
reduced; all_to_all, what one rank holds (it keeps 1/n of it); point_to_point, what is sent.

A group of one rank takes exactly no time, and so does an empty message. The formulas are
in `costmodel.hardware.collective_formulas`.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from costmodel.arrays import FloatArray
from costmodel.hardware import collective_formulas  # noqa: F401 - registers the algorithms
from costmodel.hardware.cluster import Cluster, GroupSpan
from costmodel.hardware.collective_registry import (
    COLLECTIVES,
    OPERATIONS,
    Collective,
    CollectiveError,
    Traffic,
    collective,
    names_of,
)

__all__ = [
    "ALL_REDUCE_NAMES",
    "COLLECTIVES",
    "OPERATIONS",
    "Collective",
    "CollectiveError",
    "all_reduce_s",
    "cheapest_s",
    "collective",
    "collective_s",
    "library_s",
    "names_of",
    "point_to_point_s",
]


# Default algorithms in the order that breaks ties.
ALL_REDUCE_NAMES: tuple[str, ...] = names_of("all_reduce", by_default=True)


def collective_s(
    operation: str, name: str, message_bytes: ArrayLike, span: GroupSpan, cluster: Cluster, ppp_comm: float = 1.0
) -> FloatArray:
    """Time of one algorithm.

    Parameters
    ----------
    operation : str
        One of `OPERATIONS`.
    name : str
    message_bytes : array
        Broadcasts against the shape of the span's groups.
    span : GroupSpan
    cluster : Cluster
    ppp_comm : float
        PALEO's platform percent of peak of communication: a factor on every bandwidth.

    Returns
    -------
    array
        Seconds.

    Raises
    ------
    CollectiveError
        The operation has no algorithm of that name.

    Examples
    --------
    >>> from costmodel.hardware.device import Device
    >>> from costmodel.hardware.cluster import DeviceGroup, Level, span
    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=1e9, memory_bandwidth_bytes_per_s=1e11)
    >>> level = Level(name="l", size=None, bandwidth_bytes_per_s=1e9, latency_s=1e-6)
    >>> cluster = Cluster(name="c", groups=(DeviceGroup(device=device),), levels=(level,))
    >>> time_s = collective_s("all_reduce", "ring", 4e6, span(cluster, 4, 1), cluster)
    >>> round(float(time_s), 9)  # 6 steps of 1 us + 1 MB / (1 GB/s)
    0.006006
    """
    try:
        algorithm = COLLECTIVES[operation, name]
    except KeyError:
        known = names_of(operation)
        close = difflib.get_close_matches(name.lower()[:200], known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        raise CollectiveError(f"{operation} has no algorithm '{name}'{hint} (known: {', '.join(known)})") from None
    message = np.asarray(message_bytes, dtype=np.float64)
    traffic = Traffic(
        message_bytes=message,
        span=span,
        latency_s=tuple(level.latency_s for level in cluster.levels),
        ppp_comm=ppp_comm,
        ring_step_s=tuple(level.ring_step_s for level in cluster.levels),
        in_network=tuple(level.in_network / level.efficiency for level in cluster.levels),
    )
    time = algorithm.formula(traffic)
    works = message > 0 if algorithm.costs_alone else (message > 0) & (span.size > 1)
    return np.asarray(np.where(works, time, 0.0))


def all_reduce_s(
    name: str, message_bytes: ArrayLike, span: GroupSpan, cluster: Cluster, ppp_comm: float = 1.0
) -> FloatArray:
    """Time of an all-reduce by a named algorithm; see `collective_s`."""
    return collective_s("all_reduce", name, message_bytes, span, cluster, ppp_comm)


def point_to_point_s(message_bytes: ArrayLike, span: GroupSpan, cluster: Cluster, ppp_comm: float = 1.0) -> FloatArray:
    """Time to send a message between neighbours of a group, the most distant pair counting; see `collective_s`."""
    return collective_s("point_to_point", "direct", message_bytes, span, cluster, ppp_comm)


def cheapest_s(
    operation: str, message_bytes: ArrayLike, span: GroupSpan, cluster: Cluster, ppp_comm: float = 1.0
) -> FloatArray:
    """Time of the cheapest default algorithm, element by element; see `collective_s`."""
    return _cheapest_of(names_of(operation, by_default=True), operation, message_bytes, span, cluster, ppp_comm)


def library_s(
    operation: str, message_bytes: ArrayLike, span: GroupSpan, cluster: Cluster, ppp_comm: float = 1.0
) -> FloatArray:
    """Time that a library of collectives takes (NCCL, RCCL): its cheapest algorithm, element by element; see `collective_s`.

    It runs rings, a pair of trees and what switches sum, and none of the others that a plan may name.
    """
    return _cheapest_of(names_of(operation, in_libraries=True), operation, message_bytes, span, cluster, ppp_comm)


def _cheapest_of(
    names: Sequence[str], operation: str, message_bytes: ArrayLike, span: GroupSpan, cluster: Cluster, ppp_comm: float
) -> FloatArray:
    times = [collective_s(operation, name, message_bytes, span, cluster, ppp_comm) for name in names]
    if not times:
        raise CollectiveError(f"unknown operation '{operation}' (known: {', '.join(OPERATIONS)})")
    return np.asarray(np.min(np.stack(times), axis=0))
