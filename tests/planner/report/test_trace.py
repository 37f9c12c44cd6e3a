"""Traces: what Chrome's format asks for, and what the planner predicted."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from costmodel.timeline import Tracks, TrackSpan
from planner.cli import run
from planner.report.trace import trace_bytes, trace_document


def checked(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Every complete event of a well-formed trace; one track's events nest or do not overlap, to the last digit."""
    names: dict[tuple[int, int], str] = {}
    processes = {}
    rows: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "M":
            if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            if event["name"] == "thread_name":
                names[event["pid"], event["tid"]] = event["args"]["name"]
            continue
        assert event["ph"] == "X"
        assert event["name"]
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        rows[event["pid"], event["tid"]].append(event)
    assert set(rows) == set(names)
    assert {pid for pid, _ in rows} == set(processes)
    for row in rows.values():
        open_until: list[int] = []
        for event in row:
            start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], event
            open_until.append(end)
    return [event for row in rows.values() for event in row]


def end_us(events: list[dict[str, Any]]) -> float:
    return max(event["ts"] + event["dur"] for event in events)


def test_rounding_neither_tears_nor_overlaps() -> None:
    third = 1e-9 / 3
    spans = [
        TrackSpan(track=0, stream="compute", name=str(n), kind="forward", start_s=n * third, duration_s=third)
        for n in range(1, 50)
    ]
    document = trace_document(Tracks.of(("rank 0",), ("compute",), spans), {"plan": "x"})
    events = checked(document)
    assert sum(event["dur"] for event in events) == pytest.approx(49 * third * 1e6, abs=1e-3)


def test_bytes_are_json_and_the_same_every_time() -> None:
    spans = [TrackSpan(track=0, stream="compute", name='a "b" \u2028', kind="k", start_s=0.0, duration_s=1.0)]
    document = trace_document(Tracks.of(("rank 0",), ("compute",), spans), {"plan": "x"})
    plain = trace_bytes(document, compressed=False)
    assert json.loads(plain) == document
    packed = trace_bytes(document, compressed=True)
    assert gzip.decompress(packed) == plain
    assert packed == trace_bytes(document, compressed=True)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "question",
    [
        ["estimate", "llama3-8b", "--gpus", "16", "--batch", "64", "--tp", "4", "--pp", "4"],
        ["estimate", "llama3-8b", "--gpus", "8", "--batch", "16", "--dp", "8", "--zero", "3"],
        ["estimate", "alexnet", "--gpus", "8", "--family", "data"],
        ["optimize", "alexnet", "--gpus", "2"],
    ],
)
def test_the_command_writes_the_step(question: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "trace.json"
    assert run([*question, "--trace", str(target), "--json"]) == 0
    out, err = capsys.readouterr()
    assert f"wrote {target}" in err
    document = json.loads(target.read_text())
    step = json.loads(out)["plans"][0]["step_time_s"]
    assert end_us(checked(document)) == pytest.approx(step * 1e6, rel=0.01)
    assert document["otherData"]["predicted_step_time_s"] == step
    packed = tmp_path / "trace.json.gz"
    assert run([*question, "--trace", str(packed), "--quiet"]) == 0
    again = json.loads(gzip.decompress(packed.read_bytes()))
    assert again["traceEvents"] == document["traceEvents"]


def test_every_rank_of_a_pipeline_has_its_tracks(tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    question = ["estimate", "llama3-8b", "--gpus", "16", "--batch", "64", "--tp", "4", "--pp", "4"]
    assert run([*question, "--trace", str(target), "--quiet"]) == 0
    events = json.loads(target.read_text())["traceEvents"]
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == [f"pipeline rank {n} (4 GPUs)" for n in range(4)]
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"compute", "receive", "send forward", "send backward", "optimizer"} <= threads
