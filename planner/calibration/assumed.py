"""Which constants multiply values that nobody has measured: device and cluster files say so in their sources ("assumption - ...")."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from costmodel.uncertainty.constants import CONSTANTS
from planner.core.errors import PlannerError
from planner.files.documents import parse_document

# A value that a file assumes is usually off by a factor of two.
_ASSUMED_LOG_SD = 0.7
_OF_DEVICE = {"memory_bandwidth": "memory_rate", "peak": "matmul_rate"}


def prior_log_sds(files: Iterable[str]) -> dict[str, float]:
    """How far each constant is usually off (standard deviation of the logarithm), on devices and clusters of these files.

    Parameters
    ----------
    files : iterable of str
        Paths of device and cluster files; other names are bundled, and known as well as `CONSTANTS` says.
    """
    found: set[str] = set()
    for file in files:
        if Path(file).is_file():
            try:
                found |= assumed_constants(parse_document(Path(file)).value)
            except PlannerError:  # whoever loads it says what is wrong
                continue
    return {
        name: max(constant.prior_log_sd, _ASSUMED_LOG_SD) if name in found else constant.prior_log_sd
        for name, constant in CONSTANTS.items()
    }


def assumed_constants(content: Any) -> set[str]:
    """Constants on values that a device or cluster file assumes.

    Examples
    --------
    >>> host = {"host": "bandwidth: assumption - a guess; latency: planner measure"}
    >>> assumed_constants({"levels": [{"name": "host"}], "source": host})
    {'intra_node_bandwidth'}
    >>> assumed_constants({"source": {"memory_bandwidth": "assumption - 10 GB/s per core", "peak": "datasheet"}})
    {'memory_rate'}
    """
    source = content.get("source") if isinstance(content, Mapping) else None
    if not isinstance(source, Mapping):
        return set()
    texts = {str(key): str(text) for key, text in source.items()}
    found = {name for key, name in _OF_DEVICE.items() if texts.get(key, "").startswith("assumption")}
    levels = content.get("levels")
    for depth, level in enumerate(levels if isinstance(levels, list) else ()):
        keys = _assumed_keys(texts.get(str(level.get("name")), "") if isinstance(level, Mapping) else "")
        if "bandwidth" in keys:
            found.add("inter_node_bandwidth" if depth else "intra_node_bandwidth")
        if "latency" in keys:
            found.add("link_latency")
    return found


def _assumed_keys(text: str) -> set[str]:
    """Keys of the clauses "a and b: assumption - why".

    >>> sorted(_assumed_keys("bandwidth and latency: assumption - as bundled x; size: counted"))
    ['bandwidth', 'latency']
    """
    clauses = (clause.partition(":") for clause in text.split(";"))
    return {
        key for keys, _, why in clauses if why.strip().startswith("assumption") for key in re.findall(r"\w+", keys)
    } - {"and"}
