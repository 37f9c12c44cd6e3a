"""Memory that a plan may be predicted to need on a device, so that it fits with the chance that is asked for.

Four numbers are not the same. The *nominal* size stands on the data sheet (H100: 80 GiB). The *driver* shows less, or in other units
(81,559 MiB). A plan *fits* with a chance: what a run needs is more or less than predicted, by the errors of measured runs of its framework
(`costmodel.uncertainty.limits`); 95 % are needed unless --memory-confidence says otherwise. --memory-limit and --memory-reserve limit the
*predicted* memory as it is, in place of that or beside a --memory-confidence. Where no errors are known (inference, the paleo cost model),
`DEFAULT_RESERVE` is left free. The driver's context and the libraries' handles (`costmodel.workload.CONTEXT_BYTES`) are counted as a part
of every plan's memory.
"""

from __future__ import annotations

import re

from costmodel.hardware.device import Device
from costmodel.tolerances import EQUAL
from costmodel.uncertainty.limits import CONFIDENCE, OTHERS, MemoryErrors
from costmodel.workload import CONTEXT_BYTES
from planner.core.errors import UsageError
from planner.core.notes import Note
from planner.core.numbers import counted, percent
from planner.core.quantities import QuantityError, byte_text, parse_quantity
from planner.core.request import Request

# Assumption, where the error of the memory model is not known from measured runs; trainers commonly leave 5 to 8 %.
DEFAULT_RESERVE = "5%"
_TAKEN = byte_text(CONTEXT_BYTES)
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


def confidence_of(request: Request, errors: MemoryErrors | None) -> float | None:
    """Chance of fitting that a plan needs; None where there is none to be had, or where a limit or a reserve is given in its place.

    >>> errors = MemoryErrors(mean=0.0, log_sd=0.1)
    >>> confidence_of(Request(model="m"), errors), confidence_of(Request(model="m", memory_limit="40 GiB"), errors)
    (0.95, None)
    """
    if errors is None:
        return None
    is_limited = request.memory_limit is not None or request.memory_reserve is not None
    return request.memory_confidence or (None if is_limited else CONFIDENCE)


def reserve_of(request: Request, errors: MemoryErrors | None) -> str | None:
    """The reserve in effect, as it is written; None where there is none.

    >>> reserve_of(Request(model="m"), None), reserve_of(Request(model="m", memory_limit="40 GiB"), None)
    ('5%', None)
    >>> reserve_of(Request(model="m"), MemoryErrors(mean=0.0, log_sd=0.1))
    """
    if request.memory_reserve is None and request.memory_limit is None and errors is None:
        return DEFAULT_RESERVE
    return request.memory_reserve


def usable_bytes(request: Request, device: Device, errors: MemoryErrors | None = None) -> float:
    """Memory of a device that a plan may be predicted to need, the context of the driver included.

    Parameters
    ----------
    request : Request
    device : Device
    errors : MemoryErrors, optional
        Of the predicted memory; None: not known.

    Raises
    ------
    UsageError
        The limit or the reserve is no size, nothing would be left, or a chance is asked for that nobody knows.

    Examples
    --------
    >>> peaks = {"fp32": 1e12}
    >>> device = Device(name="d", peak_flop_per_s=peaks, memory_bytes=80e9, memory_bandwidth_bytes_per_s=1e12)
    >>> usable_bytes(Request(model="m"), device), usable_bytes(Request(model="m", memory_limit="79 GB"), device)
    (76000000000.0, 79000000000.0)
    >>> usable_bytes(Request(model="m", memory_limit="79 GB", memory_reserve="4 GB"), device)
    75000000000.0
    >>> round(usable_bytes(Request(model="m"), device, MemoryErrors(mean=0.0, log_sd=0.1)) / 1e9, 1)
    67.9
    """
    limit = _limit_on(device, request)
    if limit is not None and limit <= CONTEXT_BYTES:
        raise UsageError(
            f"--memory-limit {request.memory_limit}: {_TAKEN} are taken before any tensor is placed (driver and libraries); give more than "
            "that"
        )
    if errors is None and request.memory_confidence is not None:
        raise UsageError(
            "--memory-confidence: how far predicted memory is off is known of training with the default cost model only; use "
            "--memory-reserve"
        )
    capacity = device.capacity_bytes if limit is None else limit
    reserve, confidence = reserve_of(request, errors), confidence_of(request, errors)
    left = capacity if reserve is None else capacity - _reserve_bytes(reserve, capacity)
    if errors is not None and confidence is not None:
        left = min(left, errors.limit_bytes(device.capacity_bytes, confidence))
    if left <= CONTEXT_BYTES and (request.memory_reserve is not None or request.memory_confidence is not None):
        given = "reserve" if request.memory_reserve is not None else "confidence"
        raise UsageError(
            f"--memory-{given} {getattr(request, f'memory_{given}')}: leaves {byte_text(max(left, 0.0))} of the {byte_text(capacity)} of a "
            f"{device.name}, and {_TAKEN} are taken before any tensor is placed (driver and libraries)"
        )
    return left


def fit_figures(
    errors: MemoryErrors | None, needed_bytes: float, usable: float, device: Device
) -> dict[str, float | None]:
    """The figures that say whether a plan fits: what it may be predicted to need, what the device has, and P(fits).

    >>> device = Device(name="d", peak_flop_per_s={"fp32": 1e12}, memory_bytes=80e9, memory_bandwidth_bytes_per_s=1e12)
    >>> fit_figures(MemoryErrors(mean=0.0, log_sd=0.1), 80e9, 67.9e9, device)["fits_probability"]
    0.5
    """
    return {
        "memory_capacity_bytes": usable,
        "gpu_memory_bytes": device.capacity_bytes,
        "fits_probability": None if errors is None else errors.probability(needed_bytes, device.capacity_bytes),
    }


def unreserved_bytes(device: Device) -> float:
    """Memory of a device less the default reserve."""
    return usable_bytes(Request(model=""), device)


def memory_words(request: Request, device: Device, errors: MemoryErrors | None = None) -> str:
    """The usable memory and what it is left of, for the assumptions of an answer.

    >>> peaks = {"fp32": 1e12}
    >>> device = Device(name="d", peak_flop_per_s=peaks, memory_bytes=80 * 2**30, memory_bandwidth_bytes_per_s=1e12)
    >>> memory_words(Request(model="m"), device), memory_words(Request(model="m", memory_limit="40 GiB"), device)
    ('76.0 GiB (80.0 GiB by the device file, less 5 %)', '40.0 GiB')
    >>> memory_words(Request(model="m", memory_limit="200 GiB"), device)
    '80.0 GiB by the device file'
    >>> memory_words(Request(model="m"), device, MemoryErrors(mean=0.0, log_sd=0.1))
    '67.9 GiB (80.0 GiB by the device file, less a margin to fit with 95.0 %)'
    """
    limit = _limit_on(device, request)
    origin = "the device file" if device.driver_memory_bytes is None else "the driver"
    there = f"{byte_text(device.capacity_bytes)} by {origin}" if limit is None else byte_text(limit)
    less = margin_words(request, errors)
    if not less:
        return there
    return f"{byte_text(usable_bytes(request, device, errors))} ({there}, {less})"


def margin_words(request: Request, errors: MemoryErrors | None) -> str:
    """What of the memory is left free, and for what chance of fitting; empty where nothing is."""
    reserve, confidence = reserve_of(request, errors), confidence_of(request, errors)
    words = [] if reserve is None else [f"less {reserve_words(reserve)}"]
    return ", ".join([*words, *([] if confidence is None else [f"less a margin to fit with {percent(confidence)}"])])


def limit_words(request: Request, errors: MemoryErrors, framework: str, limit_bytes: float, there_bytes: float) -> str:
    """Why a plan may not need more than a limit: the option that says otherwise.

    >>> errors = MemoryErrors(mean=0.0, log_sd=0.1, rows=30, framework="nanotron")
    >>> limit_words(Request(model="m"), errors, "nanotron", errors.limit_bytes(80e9, 0.95), 80e9)
    'for 95 % by 30 runs of nanotron (--memory-confidence)'
    >>> limit_words(Request(model="m", memory_limit="40 GiB"), errors, "nanotron", 40 * 2**30, 80e9)
    'asked for'
    """
    confidence = confidence_of(request, errors)
    if confidence is not None and limit_bytes >= errors.limit_bytes(there_bytes, confidence) * (1.0 - EQUAL):
        return f"for {100.0 * confidence:g} % by {errors_words(errors, framework)} (--memory-confidence)"
    return "asked for"


def errors_words(errors: MemoryErrors, framework: str) -> str:
    """Whose runs say how far predicted memory is off.

    >>> errors_words(MemoryErrors(mean=0.1, log_sd=0.1, rows=1439, framework="nanotron"), "nanotron")
    '1,439 runs of nanotron'
    >>> errors_words(MemoryErrors(mean=0.1, log_sd=0.1, rows=2000, framework="others", ran=0.909), "torchtitan")
    '2,000 runs of other frameworks'
    """
    whose = errors.framework if errors.framework != OTHERS else f"{'other' if framework else 'several'} frameworks"
    return f"{counted(errors.rows, 'run')} of {whose}"


def left_out_words(errors: MemoryErrors, framework: str) -> str:
    """How sure P(fits) of a framework without runs is: what became of other frameworks that were left out; empty where it has runs.

    >>> left_out_words(MemoryErrors(mean=0.1, log_sd=0.1, rows=2000, framework="others", ran=0.909), "torchtitan")
    'torchtitan is untested; in tests that left a framework out, 90.9 % of the plans within the limit ran'
    """
    if errors.framework != OTHERS or errors.ran == 1.0:
        return ""
    untested = f"{framework} is untested; " if framework else ""
    return f"{untested}in tests that left a framework out, {percent(errors.ran)} of the plans within the limit ran"


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
