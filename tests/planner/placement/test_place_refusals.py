"""What ``planner place`` refuses, and what it must not pass over: inputs as targets, broken placement files, options without effect."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cases import mostly


def _content(**more: Any) -> dict[str, Any]:
    nodes = [{"id": i, "supportedOnFpga": 1, "cpuLatency": 20.0, "fpgaLatency": 1.0, "size": 1} for i in (1, 2, 3)]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.25} for i in (1, 2)]
    return {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 2, "nodes": nodes, "edges": edges} | more


@pytest.fixture
def workload(new_file: Any) -> Path:
    return new_file("row.json", json.dumps(_content()))


@pytest.mark.parametrize("flag", ["--export", "--output", "--export-workload"])
def test_an_input_is_never_overwritten(fails: Any, workload: Path, flag: str) -> None:
    before = workload.read_text()
    link = workload.parent / "link.json"
    link.symlink_to(workload)
    for target in (workload, link):
        assert "is an input of this command" in fails("place", workload, flag, target)
    assert workload.read_text() == before


PIPER = "schema_version: 1\nobjective: piper\nlimits: {}\nstages:\n- {data_parallel: 1, tensor_parallel: 1, nodes: [1], ways: [0]}\n"
CHAIN = "schema_version: 1\nobjective: throughput\ncontiguity: chain\nlimits: {}\ndevices: {acc1: [1, 2], acc2: [3]}\n"


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        (
            PIPER,
            "nodes: [1]",
            "nodes: [[1]]",
            ":5:50: stages[0].nodes[0]: expected a whole number or a name, got a list",
        ),
        (PIPER, "ways: [0]", "ways: [true]", "stages[0].ways[0]: expected a whole number, got true"),
        (PIPER, "ways: [0]", "ways: [0], copies: 3", "unknown key 'copies'"),
        (PIPER, "data_parallel: 1", "data_parallel: 1.5", "expected a whole number, got 1.5"),
        (CHAIN, "{}", "{accelerators: 1000000000000}", "accelerators: must be at most 1000000"),
        (CHAIN, "{}", "{accelerators: 1.5}", "expected a whole number, got 1.5"),
        (CHAIN, "{}", "{subgraphs: 0.5}", "expected a whole number, got 0.5"),
        (CHAIN, "{}", "{memory_bytes: .inf}", "is not a finite number"),
        (CHAIN, "contiguity", "speed: 3\ncontiguity", "unknown key 'speed'"),
        (CHAIN, "contiguity", "bound: [1]\ncontiguity", "bound: expected a number, got a list"),
    ],
)
def test_broken_placement_files(fails: Any, workload: Path, text: str, old: str, new: str, expected: str) -> None:
    path = workload.parent / "p.yaml"
    path.write_text(text.replace(old, new))
    err = fails("place", "check", workload, path)
    assert f"{path}:" in err
    assert expected in err


def test_a_bound_above_the_objective_is_a_problem(said: Any, workload: Path) -> None:
    path = workload.parent / "p.yaml"
    path.write_text(CHAIN + "bound: 99\n")
    out, _ = said("place", "check", workload, path, code=1)
    assert "claims a bound of 99.0, above its own objective of 2.25" in out


def test_another_workload_is_noted(answer: Any, said: Any, workload: Path) -> None:
    path = workload.parent / "p.yaml"
    answer("place", workload, "--export", path)
    assert json.loads(answer("place", "check", workload, path, "--json"))["same_workload"] is True
    workload.write_text(json.dumps(_content(), indent=1))
    out, _ = said("place", "check", workload, path)
    assert "not the file that the placement was made for" in out


@pytest.mark.e2e
@mostly(
    "fuzz",
    "extra",
    [(), ("--cpus", "0"), ("--non-contiguous",), ("--objective", "latency"), ("--method", "greedy")],
    quick=2,
)
def test_a_million_devices(answer: Any, workload: Path, extra: tuple[str, ...]) -> None:
    found = json.loads(answer("place", workload, "--devices", "1000000", "--json", "--time-limit", "20s", *extra))
    assert found["num_accelerators"] == 1_000_000
    assert found["wall_s"] < 10
    assert len(found.get("devices", ())) <= 3


def test_sums_beyond_doubles(fails: Any, workload: Path, recwarn: pytest.WarningsRecorder) -> None:
    content = _content()
    for node in content["nodes"][:2]:
        node["fpgaLatency"] = 1e308
    workload.write_text(json.dumps(content, indent=1))
    err = fails("place", workload)
    assert "nodes[0].fpgaLatency: fpgaLatency adds up to more than 1e+280" in err
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


def test_tiny_times_are_written_with_an_exponent(answer: Any, workload: Path) -> None:
    content = _content(edges=[])
    for node in content["nodes"]:
        node["fpgaLatency"] = 1e-300
    workload.write_text(json.dumps(content))
    out = answer("place", workload)
    assert "e-300" in out
    assert "0" * 50 not in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--method", "local-search", "--contiguity", "convex"), "takes no account of contiguity"),
        (("--method", "pipedream", "--non-contiguous"), "places contiguous stages"),
    ],
)
def test_contiguity_of_baselines(fails: Any, workload: Path, words: tuple[str, ...], expected: str) -> None:
    assert expected in fails("place", workload, *words)


def test_check_takes_no_options_of_a_search(fails: Any, workload: Path) -> None:
    path = workload.parent / "p.yaml"
    path.write_text(CHAIN)
    err = fails("place", "check", workload, path, "--objective", "latency", "--devices", "3")
    assert "check: --objective, --devices: the placement file says this" in err


@pytest.mark.parametrize("method", ["greedy", "pipedream", "local-search"])
def test_baselines_are_compared_with_the_best_contiguous_split(answer: Any, workload: Path, method: str) -> None:
    found = json.loads(answer("place", workload, "--method", method, "--json"))
    best = json.loads(answer("place", workload, "--json"))
    assert found["speedup_over_contiguous"] == pytest.approx(best["objective"] / found["objective"])


def test_a_network_on_a_cluster(answer: Any, said: Any, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    out = answer("place", "alexnet", "--cluster", "dgx-v100", "--export", path)
    time = next(line for line in out.splitlines() if line.startswith("Time"))
    assert re.search(r"\d [mu]?s per micro-batch of 1 sample, set by acc", time)  # a unit
    assert "workload's unit" not in out
    out, _ = said("place", "check", "alexnet", path, "--cluster", "dgx1-v100")
    assert "ok, objective" in out
    assert "not the file" not in out
    saved = yaml.safe_load(path.read_text())
    saved["objective_value"] *= 2
    path.write_text(yaml.safe_dump(saved))
    said("place", "check", "alexnet", path, "--cluster", "dgx1-v100", code=1)


def test_errors_of_a_network_name_no_file(fails: Any) -> None:
    asked = ("place", "alexnet", "--cluster", "dgx1-v100")
    assert "add --mode inference" in fails(*asked, "--objective", "latency")
    err = fails(*asked, "--batch", "1000000", code=1)
    assert "layer '" in err
    assert ".json" not in err


def test_a_network_without_a_cluster(fails: Any) -> None:
    err = fails("place", "alexnet")
    assert "alexnet is no operator graph but a network of the planner: add the cluster" in err
    assert "no such file" in fails("place", "bert24.json")


def test_unknown_operators_of_an_expert_are_counted(fails: Any, workload: Path) -> None:
    path = workload.parent / "expert.json"
    path.write_text(json.dumps({"fpgas": [{"nodes": [1, 2, 3]}, {"nodes": list(range(100, 160))}]}))
    err = fails("place", workload, "--method", "expert", "--expert", path)
    assert "55 more nodes are not in the workload" in err
    assert len(err.splitlines()) < 10
