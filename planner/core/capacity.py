"""Memory that a plan may fill on a device: what the driver shows, or --memory-limit, less a reserve.

Three numbers are not the same. The *nominal* size stands on the data sheet (H100: 80 GiB). The *driver* shows less, or in other units
(81,559 MiB). The *reserve* is what a plan leaves free of that, for what no cost model counts: fragmentation, workspaces of libraries,
other processes. The driver's context and the libraries' handles (`costmodel.workload.CONTEXT_BYTES`) are counted as a part of every
plan's memory.
"""

from __future__ import annotations

import re

from costmodel.hardware.device import Device
from costmodel.workload import CONTEXT_BYTES
from planner.core.errors import UsageError
from planner.core.notes import Note
from planner.core.quantities import QuantityError, byte_text, parse_quantity
from planner.core.request import Request

__all__ = [
    "DEFAULT_RESERVE",
    "limit_notes",
    "memory_source",
    "memory_words",
    "reserve_of",
    "reserve_words",
    "unreserved_bytes",
    "usable_bytes",
]

# Assumption, until the error of the memory model is known from measured runs; trainers commonly leave 5 to 8 %.
DEFAULT_RESERVE = "5%"
_PERCENT = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s*%\s*")
_NUMBER = re.compile(r"\s*(0(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s*")


def _limit_on(device: Device, request: Request) -> float | None:
    """Bytes of --memory-limit; None where it is not given, or more than a device has.

    Raises
    ------
    UsageError
        It is no size.
    """
    if request.memory_limit is None:
        return None
    try:
        limit = parse_quantity(request.memory_limit, "bytes")
    except QuantityError as error:
        raise UsageError(f"--memory-limit: {error}") from None
    return limit if limit <= device.capacity_bytes else None


def reserve_of(request: Request) -> str | None:
    """The reserve in effect, as it is written; None where a limit is given and no reserve: the limit is taken as it is.

    >>> reserve_of(Request(model="m")), reserve_of(Request(model="m", memory_limit="40 GiB"))
    ('5%', None)
    """
    if request.memory_reserve is None and request.memory_limit is None:
        return DEFAULT_RESERVE
    return request.memory_reserve


def usable_bytes(request: Request, device: Device) -> float:
    """Memory of a device that a plan may fill, the context of the driver included.

    Raises
    ------
    UsageError
        The limit or the reserve is no size, or nothing would be left.

    Examples
    --------
    >>> peaks = {"fp32": 1e12}
    >>> device = Device(name="d", peak_flop_per_s=peaks, memory_bytes=80e9, memory_bandwidth_bytes_per_s=1e12)
    >>> usable_bytes(Request(model="m"), device), usable_bytes(Request(model="m", memory_limit="79 GB"), device)
    (76000000000.0, 79000000000.0)
    >>> usable_bytes(Request(model="m", memory_limit="79 GB", memory_reserve="4 GB"), device)
    75000000000.0
    """
    limit = _limit_on(device, request)
    if limit is not None and limit <= CONTEXT_BYTES:
        raise UsageError(
            f"--memory-limit {request.memory_limit}: {byte_text(CONTEXT_BYTES)} are taken before any tensor is placed "
            "(driver and libraries); give more than that"
        )
    capacity = device.capacity_bytes if limit is None else limit
    reserve = reserve_of(request)
    left = capacity if reserve is None else capacity - _reserve_bytes(reserve, capacity)
    if request.memory_reserve is not None and left <= CONTEXT_BYTES:
        raise UsageError(
            f"--memory-reserve {request.memory_reserve}: leaves {byte_text(max(left, 0.0))} of the {byte_text(capacity)} of a "
            f"{device.name}, and {byte_text(CONTEXT_BYTES)} are taken before any tensor is placed (driver and libraries)"
        )
    return left


def unreserved_bytes(device: Device) -> float:
    """Memory of a device less the default reserve."""
    return usable_bytes(Request(model=""), device)


def memory_words(request: Request, device: Device) -> str:
    """The usable memory and what it is left of, for the assumptions of an answer.

    >>> peaks = {"fp32": 1e12}
    >>> device = Device(name="d", peak_flop_per_s=peaks, memory_bytes=80 * 2**30, memory_bandwidth_bytes_per_s=1e12)
    >>> memory_words(Request(model="m"), device), memory_words(Request(model="m", memory_limit="40 GiB"), device)
    ('76.0 GiB (80.0 GiB by the device file, less 5 %)', '40.0 GiB')
    >>> memory_words(Request(model="m", memory_limit="200 GiB"), device)
    '80.0 GiB by the device file'
    """
    limit, reserve = _limit_on(device, request), reserve_of(request)
    origin = "the device file" if device.driver_memory_bytes is None else "the driver"
    there = f"{byte_text(device.capacity_bytes)} by {origin}" if limit is None else byte_text(limit)
    if reserve is None:
        return there
    return f"{byte_text(usable_bytes(request, device))} ({there}, less {reserve_words(reserve)})"


def reserve_words(reserve: str) -> str:
    """A reserve as people write it.

    >>> reserve_words("5%"), reserve_words("4 GB")
    ('5 %', '4 GB')
    """
    return re.sub(r"\s*%", " %", reserve)


def memory_source(request: Request, device: Device) -> str:
    """Who says how much memory is usable; empty where nobody does.

    >>> peaks = {"fp32": 1e12}
    >>> device = Device(name="d", peak_flop_per_s=peaks, memory_bytes=80 * 2**30, memory_bandwidth_bytes_per_s=1e12)
    >>> [memory_source(Request(model="m", memory_limit=text), device) for text in (None, "40 GiB", "200 GiB")]
    ['', 'given', '']
    """
    return request.source_of("memory_reserve" if _limit_on(device, request) is None else "memory_limit", "")


def limit_notes(request: Request, device: Device) -> list[Note]:
    """Say that --memory-limit is more than a device has."""
    if request.memory_limit is None or _limit_on(device, request) is not None:
        return []
    return [
        Note(
            "memory_limit_above_device",
            limit=request.memory_limit,
            device=device.name,
            capacity_bytes=device.capacity_bytes,
        )
    ]


def _reserve_bytes(text: str, capacity: float) -> float:
    """Bytes of a reserve: a share of the memory that it is taken from, or bytes.

    >>> _reserve_bytes("5 %", 200.0), _reserve_bytes("0.05", 200.0), _reserve_bytes("0", 200.0), _reserve_bytes("1 kB", 1e6)
    (10.0, 10.0, 0.0, 1000.0)
    """
    if text.strip().startswith("-"):
        raise UsageError(f"--memory-reserve {text}: is below 0")
    if match := _PERCENT.fullmatch(text):
        share = float(match[1]) / 100.0
    elif match := _NUMBER.fullmatch(text):
        share = float(match[1])
    else:
        try:
            return parse_quantity(text, "bytes")
        except QuantityError as error:
            raise UsageError(f"--memory-reserve: {error}, or a share such as '5%'") from None
    if share >= 1.0:
        raise UsageError(f"--memory-reserve {text}: leaves nothing; a share is below 100%")
    return share * capacity
