"""Reads the nodes and edges of a workload key by key, which is several times as fast as item by item.

Only lists without a fault are read here: where anything is not as it should be the answer is None, and `planner.placement.workload_file`
reads item by item, to say what is wrong and where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from strategies.placement.problem import EdgeSpec, NodeSpec

__all__ = ["edges_at_once", "nodes_at_once"]

_NAMES = {int, str}
_NUMBERS = {int, float}
_FLAGS = {int, bool}


def nodes_at_once(items: Any) -> list[NodeSpec] | None:
    """Read a list of operators; None where there is a fault.

    Examples
    --------
    >>> node = {"id": 7, "supportedOnFpga": 0, "fpgaLatency": None, "cpuLatency": 2}
    >>> nodes_at_once([node])[0].cpu_time, nodes_at_once([{**node, "cpuLatency": -2}])
    (2.0, None)
    """
    if not isinstance(items, list) or not all(type(item) is dict for item in items):
        return None
    try:
        ids = [item["id"] for item in items]
        supported = _flags([item["supportedOnFpga"] for item in items])
        times = [item["fpgaLatency"] for item in items]
        cpu_times = _numbers([item["cpuLatency"] for item in items])
    except KeyError:
        return None
    sizes = _numbers([item.get("size", 0.0) for item in items])
    backward = _flags([item.get("isBackwardNode", 0) for item in items])
    colors = [item.get("colorClass") for item in items]
    if supported is None or cpu_times is None or sizes is None or backward is None:
        return None
    # Where an operator cannot run its time there means nothing, and files have null or infinity for it.
    own_times = _numbers([time if usable else 0.0 for time, usable in zip(times, supported, strict=True)])
    if own_times is None or not set(map(type, ids)) <= _NAMES or not set(map(type, colors)) <= {*_NAMES, type(None)}:
        return None
    names = [str(item.get("name", "")) for item in items]
    return list(map(NodeSpec, ids, own_times, cpu_times, sizes, supported, backward, colors, names))


def edges_at_once(items: Any) -> list[EdgeSpec] | None:
    """Read a list of dependencies; None where there is a fault."""
    if not isinstance(items, list) or not all(type(item) is dict for item in items):
        return None
    try:
        sources = [item["sourceId"] for item in items]
        targets = [item["destId"] for item in items]
        costs = _numbers([item["cost"] for item in items])
    except KeyError:
        return None
    if costs is None or not set(map(type, sources)) | set(map(type, targets)) <= _NAMES:
        return None
    return list(map(EdgeSpec, sources, targets, costs))


def _numbers(values: Sequence[Any]) -> list[float] | None:
    """Finite numbers of at least 0."""
    if not set(map(type, values)) <= _NUMBERS:
        return None
    numbers = np.array(values, dtype=np.float64)
    return numbers.tolist() if bool(np.all((numbers >= 0) & (numbers < np.inf))) else None


def _flags(values: Sequence[Any]) -> list[bool] | None:
    """0, 1, true or false."""
    if not set(map(type, values)) <= _FLAGS or not set(values) <= {0, 1}:
        return None
    return list(map(bool, values))
