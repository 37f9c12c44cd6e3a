"""Workloads with several kinds of accelerators: reading, answers, and one clear error per fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run


def content() -> dict[str, Any]:
    """Six operators in a row; the slow accelerator takes twice as long, but for the last operator."""
    nodes = [{"id": i, "supportedOnFpga": 1, "cpuLatency": 90.0, "fpgaLatency": 1.0, "size": 1} for i in range(6)]
    nodes[5]["slow_time"] = 0.5
    return {
        "maxCPUs": 0,
        "deviceTypes": [
            {"name": "fast", "count": 1, "memory": 6},
            {"name": "slow", "count": 1, "memory": 4, "timeFactor": 2.0, "timeKey": "slow_time", "linkFactor": 2.0},
        ],
        "nodes": nodes,
        "edges": [{"sourceId": i, "destId": i + 1, "cost": 0.25} for i in range(5)],
    }


def place(tmp_path: Path, workload: dict[str, Any], *words: str) -> int:
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps(workload))
    return run(["place", str(path), *words])


@pytest.mark.parametrize("mode", ["--contiguous", "--non-contiguous"])
def test_answer_by_hand(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fast one takes four operators and a transfer, 4.25; the slow one 2 + 0.5 and a transfer at half the speed, 3."""
    assert place(tmp_path, content(), mode, "--json", "--export", str(tmp_path / "placed.yaml")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["objective"] == pytest.approx(4.25)
    assert answer["proven_optimal"]
    fast, slow = answer["devices"]
    assert (fast["type"], slow["type"]) == ("fast", "slow")
    assert (fast["load"], slow["load"]) == (pytest.approx(4.25), pytest.approx(3.0))
    assert (fast["memory_capacity_bytes"], slow["memory_capacity_bytes"]) == (6, 4)
    assert run(["place", "check", str(tmp_path / "mixed.json"), str(tmp_path / "placed.yaml")]) == 0


def test_memory_of_each_kind_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = content()
    workload["deviceTypes"][0]["memory"] = 2  # now the slow one must take four
    assert place(tmp_path, workload, "--json") == 0
    assert json.loads(capsys.readouterr().out)["objective"] == pytest.approx(7.0)
    workload["deviceTypes"][1]["memory"] = 3
    assert place(tmp_path, workload, "--json") == 1


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda c: c.update(deviceTypes=[]), "deviceTypes: needs at least 1 entry"),
        (lambda c: c.update(deviceTypes=5), "expected a list"),
        (lambda c: c["deviceTypes"][0].pop("memory"), "missing key 'memory'"),
        (lambda c: c["deviceTypes"][0].update(count=0), "at least 1"),
        (lambda c: c["deviceTypes"][0].update(timeFactor=-1), "at least 0"),
        (lambda c: c["deviceTypes"][0].update(linkFactor=0), "greater than 0"),
        (lambda c: c["deviceTypes"][1].update(name="fast"), "used twice"),
        (lambda c: c["deviceTypes"][1].update(speed=2), "unknown key 'speed'"),
        (lambda c: c["nodes"][5].update(slow_time=-3), "at least 0"),
        (lambda c: c["deviceTypes"][0].update(timeKey=7), "timeKey: expected text, got 7"),
    ],
)
def test_faults_are_named(change: Any, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = content()
    change(workload)
    assert place(tmp_path, workload) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("--devices", "3"),
        ("--memory", "4B"),
        ("--method", "greedy"),
        ("--contiguity", "convex"),
        ("--objective", "latency"),
    ],
)
def test_options_that_do_not_fit(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert place(tmp_path, content(), *words) == 2
    assert "deviceTypes" in capsys.readouterr().err
