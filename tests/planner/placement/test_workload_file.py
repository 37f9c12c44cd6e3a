"""Workload files: what is read, and one clear message with its place for everything that can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.core.errors import InputFileError
from planner.files import documents
from planner.placement.workload_file import Loaded, workload_from
from strategies.placement.problem import PlacementProblem


def node(id: Any, **more: Any) -> dict[str, Any]:  # noqa: A002 - the format's word
    return {"id": id, "supportedOnFpga": 1, "cpuLatency": 9.0, "fpgaLatency": 1.0, "size": 5} | more


def workload(**more: Any) -> dict[str, Any]:
    nodes = [node(3, isBackwardNode=1, colorClass=7), node(1, colorClass=7), node(2)]
    edges = [{"sourceId": 1, "destId": 2, "cost": 0.5}, {"sourceId": 2, "destId": 3, "cost": 0.25}]
    return {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 12, "nodes": nodes, "edges": edges} | more


def load_workload(path: Path, overrides: dict[str, float] | None = None) -> Loaded[PlacementProblem]:
    return workload_from(documents.read_workload(path), overrides or {})


def message(tmp_path: Path, content: Any, overrides: dict[str, float] | None = None) -> str:
    path = tmp_path / "w.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    with pytest.raises(InputFileError) as caught:
        load_workload(path, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value).replace(str(path), "w.json")


def test_reads_a_workload(new_file: Any) -> None:
    loaded = load_workload(new_file("w.json", json.dumps(workload())), {"maxFPGAs": 5})
    problem = loaded.problem
    assert problem.node_ids == (1, 2, 3)
    assert problem.backward.tolist() == [False, False, True]
    assert problem.color.tolist() == [0, 1, 0]
    assert problem.transfer_time.tolist() == [0.5, 0.25, 0.0]
    assert (problem.num_accelerators, problem.num_cpus, problem.memory_bytes) == (5, 1, 12.0)
    assert loaded.content["maxFPGAs"] == 5
    assert [problem.device_name(d) for d in range(6)] == ["acc1", "acc2", "acc3", "acc4", "acc5", "cpu1"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"nodes": []}, "the graph is empty"),
        ({"nodes": {}}, "nodes: expected a list, got a mapping"),
        ({"nodes": [node(1), node(1)], "edges": []}, "nodes[1].id: node id 1 is used twice (first by nodes[0])"),
        ({"nodes": [node(1), 5], "edges": []}, "nodes[1]: expected a mapping (key: value), got 5"),
        ({"nodes": [node(1.5)], "edges": []}, "nodes[0].id: expected a whole number or a name, got 1.5"),
        ({"nodes": [node(1, cpuLatency=-1)], "edges": []}, "nodes[0].cpuLatency: must be at least 0, got -1"),
        ({"nodes": [node(1, size=None)], "edges": []}, "nodes[0].size: expected a number, got nothing"),
        ({"nodes": [node(1, fpgaLatency="3")], "edges": []}, "nodes[0].fpgaLatency: expected a number, got '3'"),
        ({"nodes": [node(1, supportedOnFpga=2)], "edges": []}, "nodes[0].supportedOnFpga: expected 0 or 1, got 2"),
        ({"edges": [{"sourceId": 1, "destId": 9, "cost": 0}]}, "edges[0].destId: the edge names node 9, which is not"),
        ({"edges": [{"sourceId": 1, "destId": 1, "cost": 0}]}, "edges[0]: the graph has a cycle of 1 nodes: 1 -> 1"),
        (
            {"edges": [{"sourceId": 3, "destId": 2, "cost": 0}]},
            "edges[0]: the edge leads from backward node 3 to forward",
        ),
        ({"maxFPGAs": 0}, "maxFPGAs: must be at least 1, got 0"),
        ({"maxFPGAs": 2.5}, "maxFPGAs: expected a whole number, got 2.5"),
        ({"maxCPUs": -1}, "maxCPUs: must be at least 0, got -1"),
        ({"maxSizePerFPGA": -3}, "maxSizePerFPGA: must be at least 0, got -3"),
        (
            {"maxCPUs": 0, "nodes": [node(1, supportedOnFpga=0)], "edges": []},
            "nodes[0].supportedOnFpga: node 1 fits no device: it is not supported on accelerators and there is no CPU",
        ),
        (
            {"maxCPUs": 0, "nodes": [node(1, size=13)], "edges": []},
            "nodes[0].size: node 1 needs 13 bytes, more than the 12 of an accelerator, and there is no CPU",
        ),
        (
            {"maxCPUs": 0, "nodes": [node(1, size=7, colorClass=4), node(2, size=7, colorClass=4)], "edges": []},
            "nodes[0].size: colour class 4 needs 14 bytes",
        ),
    ],
)
def test_names_what_is_wrong(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    text = message(tmp_path, workload(**change))
    assert expected in text
    assert "\n" not in text
    assert text.startswith("w.json:")


def test_places_are_exact(tmp_path: Path) -> None:
    text = json.dumps(workload(), indent=1).replace('"cost": 0.25', '"cost": NaN')
    line = text.splitlines().index('   "cost": NaN') + 1
    assert message(tmp_path, text) == f"w.json:{line}:12: edges[1].cost: expected a finite number"


def test_a_cycle_is_spelled_out(tmp_path: Path) -> None:
    edges = [{"sourceId": a, "destId": b, "cost": 0} for a, b in ((1, 2), (2, 4), (4, 1))]
    text = message(tmp_path, workload(nodes=[node(1), node(2), node(4)], edges=edges))
    assert "the graph has a cycle of 3 nodes: 1 -> 2 -> 4 -> 1" in text


def test_costs_of_one_source_must_agree(tmp_path: Path, new_file: Any) -> None:
    nodes = [node(1), node(2), node(3)]
    edges = [{"sourceId": 1, "destId": 2, "cost": 0.5}, {"sourceId": 1, "destId": 3, "cost": 0.6}]
    text = message(tmp_path, workload(nodes=nodes, edges=edges))
    assert "edges[1].cost: costs of the edges that leave node 1 differ: 0.6 here, 0.5 in edges[0]" in text
    edges[1]["cost"] = 0.5 + 1e-7  # within the format's tolerance
    path = new_file("ok.json", json.dumps(workload(nodes=nodes, edges=edges)))
    assert load_workload(path).problem.transfer_time[0] == 0.5 + 1e-7


def test_all_problems_of_a_kind_come_at_once(tmp_path: Path) -> None:
    text = message(tmp_path, workload(nodes=[node(1, size=-1), node(2, cpuLatency=-2)]))
    assert len(text.splitlines()) == 2


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty"),
        ("[1]", "expected keys and values ('key: value' lines), got a list"),
        ("{}", "missing key 'maxFPGAs'"),
        ('{"maxFPGAs": 1, "nodes": [{"id": 3', "is not JSON: Expecting ',' delimiter (the file ends too early)"),
        ('{"maxFPGAs": 1, "maxFPGAs": 2}', "w.json:1:17: duplicate key 'maxFPGAs'"),
        ("{'a': 1}", "w.json:1:2: is not JSON: Expecting property name"),
    ],
)
def test_broken_files(tmp_path: Path, content: str, expected: str) -> None:
    assert expected in message(tmp_path, content)


def test_misspelled_keys_get_a_suggestion(tmp_path: Path) -> None:
    content = workload()
    content["maxFPGA"] = content.pop("maxFPGAs")
    assert "missing key 'maxFPGAs'; did you mean 'maxFPGA'?" in message(tmp_path, content)


def test_truncating_anywhere_never_breaks(tmp_path: Path) -> None:
    text = json.dumps(workload())
    for end in range(1, len(text), 7):
        assert "w.json" in message(tmp_path, text[:end])


def test_huge_files_are_refused_before_they_are_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.json"
    with path.open("wb") as stream:  # sparse: takes no room
        stream.truncate(200 * 2**20)
    with pytest.raises(InputFileError, match="is larger than 64 MiB, the limit of a workload"):
        load_workload(path)
    monkeypatch.setattr(documents, "MAX_WORKLOAD_BYTES", 100)
    assert "is larger than" in message(tmp_path, workload())


def test_an_override_must_leave_room(tmp_path: Path) -> None:
    text = message(tmp_path, workload(maxCPUs=0), {"maxSizePerFPGA": 3.0})
    assert "needs 10 bytes, more than the 3 of an accelerator" in text


def test_an_unsupported_operator_needs_no_accelerator_time(new_file: Any) -> None:
    path = new_file("w.json", json.dumps(workload(nodes=[node(1, supportedOnFpga=0, fpgaLatency=None)], edges=[])))
    assert load_workload(path).problem.accelerator_time.tolist() == [0.0]
