"""``planner place --objective latency`` from the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.schema.results import AnyPlacement, LatencyDocument


@pytest.fixture
def workload(new_file: Any) -> Path:
    """Operators 1 -> 2 -> 3 of 1, 2 and 4, of 1 MiB each; two accelerators of 2 MiB."""
    nodes = [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 10.0 * t, "fpgaLatency": t, "size": 2**20}
        for i, t in ((1, 1.0), (2, 2.0), (3, 4.0))
    ]
    edges = [{"sourceId": 1, "destId": 2, "cost": 0.5}, {"sourceId": 2, "destId": 3, "cost": 0.25}]
    content = {"maxFPGAs": 2, "maxCPUs": 8, "maxSizePerFPGA": 2 * 2**20, "nodes": nodes, "edges": edges}
    return new_file("row.json", json.dumps(content))


def test_json_answer(answer: Any, workload: Path) -> None:
    document = json.loads(answer("place", workload, "--objective", "latency", "--json"))
    assert isinstance(AnyPlacement.model_validate(document).root, LatencyDocument)
    # 1 + 2 + 0.25, then 0.25 + 4.
    assert document["objective"] == 7.5
    assert document["proven_optimal"] is True
    times = [(entry["start"], entry["finish"], entry["nodes"]) for entry in document["subgraphs"]]
    assert times == [(0.0, 3.25, [1, 2]), (3.25, 7.5, [3])]
    assert document["available"] == {"1": 3.25, "2": 3.25, "3": 7.5}
    assert document["cpu_nodes"] == []
    assert document["speedup_over_one_device"] == pytest.approx(7 / 7.5)


def test_table(answer: Any, workload: Path) -> None:
    out = answer("place", workload, "--objective", "latency", "--width", "100")
    assert out.startswith("Best: operators 1-2 on acc1; 3 on acc2.\n\nTime: ")
    said = " ".join(out.split())
    for words in (
        "Time: 7.50 in the workload's unit of time until the last output of a micro-batch is there",
        "on acc1, the fullest (0 B to spare)",
        "proven optimal: no placement is faster",
        "at most 1 part of the graph on each",
    ):
        assert words in said
    assert re.search(r"acc2 +1 +3\.25 +7\.50 +4\.00 +0\.250", out)
    assert "on CPUs" not in out


def test_export_and_check(answer: Any, said: Any, workload: Path, tmp_path: Path) -> None:
    file = tmp_path / "placement.yaml"
    answer("place", workload, "--objective", "latency", "--subgraphs", "2", "--export", file)
    out = answer("place", "check", workload, file, "--json")
    assert json.loads(out)["objective"] == 7.5
    content = yaml.safe_load(file.read_text())
    assert content["limits"]["subgraphs"] == 2
    # Another order of the same subgraphs cannot run.
    content["devices"] = {"acc1": [[3], [1, 2]]}
    file.write_text(yaml.safe_dump(content))
    out, _ = said("place", "check", workload, file, code=1)
    assert "circle" in out
    assert "holds" in out  # and 3 MiB are too much


def test_several_subgraphs_use_one_accelerator(answer: Any, new_file: Any) -> None:
    """An unsupported operator between two others: one accelerator runs both with two subgraphs, only one of them with one."""
    nodes = [
        {"id": i, "supportedOnFpga": int(i != 2), "cpuLatency": 10.0, "fpgaLatency": 1.0, "size": 1} for i in (1, 2, 3)
    ]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.5} for i in (1, 2)]
    path = new_file(
        "between.json", json.dumps({"maxFPGAs": 1, "maxCPUs": 1, "maxSizePerFPGA": 2, "nodes": nodes, "edges": edges})
    )
    one, two = (
        json.loads(answer("place", path, "--objective", "latency", "--subgraphs", q, "--json")) for q in ("1", "2")
    )
    assert (one["objective"], two["objective"]) == (21.5, 13.0)
    assert one["proven_optimal"]
    assert two["proven_optimal"]
    assert [entry["subgraph"] for entry in two["subgraphs"]] == [1, 2]


def test_baselines(answer: Any, workload: Path) -> None:
    for method in ("greedy", "one-device"):
        out = answer("place", workload, "--objective", "latency", "--method", method, "--json")
        assert json.loads(out)["objective"] >= 7.5


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--objective", "latency", "--cpus", "2"), "unlimited"),
        (("--objective", "latency", "--contiguity", "convex"), "--subgraphs"),
        (("--objective", "latency", "--method", "pipedream"), "greedy"),
        (("--objective", "latency", "--subgraphs", "0"), "--subgraphs"),
        (("--subgraphs", "2"), "--objective latency"),
    ],
)
def test_options_that_do_not_go_together(fails: Any, workload: Path, words: tuple[str, ...], named: str) -> None:
    assert named in fails("place", workload, *words)


def test_training_is_refused(fails: Any, workload: Path) -> None:
    content = json.loads(workload.read_text())
    content["nodes"][2]["isBackwardNode"] = 1
    workload.write_text(json.dumps(content))
    err = fails("place", workload, "--objective", "latency")
    assert "row.json:1:" in err
    assert "inference" in err


def test_without_cpus_everything_is_on_accelerators(answer: Any, fails: Any, workload: Path) -> None:
    content = json.loads(workload.read_text())
    content["maxCPUs"] = 0
    for node in content["nodes"]:
        node["cpuLatency"] = 0.0  # what does not exist must not be used
    workload.write_text(json.dumps(content))
    out = answer("place", workload, "--objective", "latency", "--json")
    assert json.loads(out)["objective"] == 7.5
    err = fails("place", workload, "--objective", "latency", "--memory", "1MiB", code=1)
    assert "no placement exists" in err
