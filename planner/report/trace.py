"""A predicted step as a trace in Chrome's JSON format, which Perfetto opens: one process per rank, one thread per stream, microseconds.

The format: "Trace Event Format", Google (2016); complete events (``X``) with start and duration, metadata events (``M``) with names.
Events of one thread nest or do not overlap.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from typing import Any

from costmodel.timeline import Tracks

_US = 1e6
# Nanoseconds as digits of a microsecond: what viewers keep.
_DIGITS = 3


def trace_document(tracks: Tracks, about: Mapping[str, Any]) -> dict[str, Any]:
    """Events of a step.

    Parameters
    ----------
    tracks : Tracks
    about : mapping
        What the trace is of, shown by viewers as metadata: names, numbers, words.

    Returns
    -------
    dict
        Ready for JSON.
    """
    events: list[dict[str, Any]] = []
    threads = {stream: n + 1 for n, stream in enumerate(tracks.streams)}
    used = {(span.track, span.stream) for span in tracks.spans}
    for track, name in enumerate(tracks.names):
        events.append(_named("process_name", track, 0, {"name": name}))
        events.append(_named("process_sort_index", track, 0, {"sort_index": track}))
        for stream, thread in threads.items():
            if (track, stream) in used:
                events.append(_named("thread_name", track, thread, {"name": stream.replace("_", " ")}))
                events.append(_named("thread_sort_index", track, thread, {"sort_index": thread}))
    for span in tracks.spans:
        # Both ends are rounded alike, so that what touches still touches, and what nests still nests.
        start, end = round(span.start_s * _US, _DIGITS), round(span.end_s * _US, _DIGITS)
        events.append(
            {
                "name": span.name,
                "cat": span.kind,
                "ph": "X",
                "ts": start,
                "dur": round(end - start, _DIGITS),
                "pid": span.track + 1,  # viewers keep 0 for themselves
                "tid": threads[span.stream],
            }
        )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(about)}


def _named(what: str, track: int, thread: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": track + 1, "tid": thread, "args": dict(arguments)}


def trace_bytes(document: Mapping[str, Any], *, compressed: bool) -> bytes:
    """One event per line; compressed without a date, so that the same plan gives the same bytes."""
    events = ",\n".join(json.dumps(event, ensure_ascii=False) for event in document["traceEvents"])
    rest = {key: value for key, value in document.items() if key != "traceEvents"}
    text = f'{{"traceEvents": [\n{events}\n],\n{json.dumps(rest, ensure_ascii=False)[1:]}\n'
    data = text.encode()
    return gzip.compress(data, mtime=0) if compressed else data
