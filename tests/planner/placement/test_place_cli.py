"""``planner place`` from the command line: answers, files, checks, errors and exit codes."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.cli import run
from planner.schema.results import AnyPlacement, PiperDocument, PlaceDocument
from strategies.placement import contiguous
from tests.strategies.placement.small_problems import content_of, random_problem
from tests.strategies.placement.test_piper import random_content


@pytest.fixture
def workload(new_file: Any) -> Path:
    """Eight operators in a row, 1 to 8 times as long; two devices and a CPU."""
    nodes = [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 20.0 * i, "fpgaLatency": float(i), "size": 2**20}
        for i in range(1, 9)
    ]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.25} for i in range(1, 8)]
    content = {"maxFPGAs": 2, "maxCPUs": 1, "maxSizePerFPGA": 6 * 2**20, "nodes": nodes, "edges": edges}
    return new_file("row.json", json.dumps(content))


def test_json_answer(answer: Any, workload: Path) -> None:
    found = json.loads(answer("place", workload, "--objective", "throughput", "--contiguous", "--json"))
    # The CPU does operator 1 in 20; 2 to 6 take 20 and two transfers, 7 and 8 take 15 and one.
    assert found["objective"] == 20.5
    assert found["bound"] == 20.5
    assert found["gap"] == 0
    assert found["proven_optimal"] is True
    assert set(found["assignment"]) == {str(i) for i in range(1, 9)}
    assert [device["name"] for device in found["devices"]] == ["acc1", "acc2", "cpu1"]
    assert max(device["load"] for device in found["devices"]) == found["objective"]
    assert found["wall_s"] >= 0
    assert found["method"] == "dynamic programming over predecessor-closed sets"
    assert found["speedup_over_one_device"] == pytest.approx(36 / 20.5)


def test_json_answers_follow_their_schema(answer: Any, workload: Path, new_file: Any) -> None:
    for words in ((), ("--non-contiguous",), ("--method", "greedy")):
        document = json.loads(answer("place", workload, "--json", *words))
        assert isinstance(AnyPlacement.model_validate(document).root, PlaceDocument)
    path = new_file("piper.json", json.dumps(random_content(4)))
    document = json.loads(answer("place", path, "--json", "--memory", "1kB"))
    assert isinstance(AnyPlacement.model_validate(document).root, PiperDocument)


def test_table(answer: Any, workload: Path) -> None:
    out = answer("place", workload, "--devices", "3")
    assert "3 accelerators of 6.00 MiB and 1 CPU" in out
    for word in ("device", "compute", "communication", "load", "memory", "Against one device"):
        assert word in out


def test_the_verdict_comes_first(answer: Any, workload: Path) -> None:
    """What goes where, the time and what sets it, memory to spare, proof, gain, assumptions, the next command."""
    out = answer("place", workload, "--width", "100")
    # As in test_json_answer: the CPU does operator 1, 2 to 6 are on one accelerator, 7 and 8 on the other.
    first, _, *facts = out.splitlines()
    assert sorted(first.removeprefix("Best: operators ").removesuffix(".").split("; ")) == [
        "1 on cpu1",
        "2-6 on acc1",
        "7-8 on acc2",
    ]
    said = " ".join(out.split())
    assert facts[0].startswith("Time: ")
    for text in (
        "20.5 in the workload's unit of time per micro-batch, set by acc1: compute 20.0, communication 0.500",
        "5.00 MiB of 6.00 MiB on acc1, the fullest (1.00 MiB to spare)",
        "Proof: proven optimal: no contiguous placement is faster",
        "Devices: all 3 devices are used",
        "43 % faster than one device alone (36.0, but the operators do not fit into its memory)",
        "times, transfers and sizes of row.json",
        "--export placement.yaml",
    ):
        assert text in said
    assert len(out.splitlines()) <= 24
    # How it was found and proven is for those who ask.
    assert "predecessor-closed" not in out
    more = answer("place", workload, "-v")
    assert re.search(r"Bound: +20\.5 \(exhaustive: dynamic programming over all \d+ predecessor-closed sets\)", more)


def test_the_verdict_of_a_network(answer: Any) -> None:
    """Layers are named, figures have three digits, and the rate is that of the micro-batches."""
    words = ("bert-large", "--cluster", "dgx1-v100", "--devices", "4", "--batch", "4", "--mode", "inference")
    out = answer("place", *words, "--width", "100")
    found = json.loads(answer("place", *words, "--json"))
    assert out.startswith("Best: layers segments-blocks.7.attention on acc1; ")
    assert f"{4 / found['objective']:.0f} samples/s" in out
    assert "precision fp16" in out
    assert len(out.splitlines()) <= 24
    assert not re.search(r"\d\.\d{5}", out)
    shortest = answer("place", *words, "--width", "60")
    assert max(map(len, shortest.splitlines())) <= 60


def test_long_lists_of_operators_come_with_details(answer: Any, new_file: Any) -> None:
    """A list that would fill the screen is not cut: the verdict says who lists it."""
    nodes = [
        {"id": i, "supportedOnFpga": 1, "cpuLatency": 9e9, "fpgaLatency": 1.0, "size": 1, "colorClass": i % 2}
        for i in range(400)
    ]
    path = new_file(
        "striped.json", json.dumps({"maxFPGAs": 2, "maxCPUs": 0, "maxSizePerFPGA": 200, "nodes": nodes, "edges": []})
    )
    out = answer("place", path, "--non-contiguous", "--width", "100")
    assert out.startswith("Best: 400 operators divided as in the table; -v lists which are where.")
    more = " ".join(answer("place", path, "--non-contiguous", "--width", "100", "-v").split())
    assert ", ".join(map(str, range(0, 400, 2))) in more


def test_a_baseline_is_not_called_the_best(answer: Any, workload: Path) -> None:
    out = answer("place", workload, "--method", "one-device", "--memory", "1GiB")
    assert out.startswith("Method one-device: operators 1-8 on acc1.\n")
    assert "76 % slower than the best contiguous placement (20.5)" in out
    assert "not proven: a placement could be up to " in out


def test_csv_has_a_row_per_device(answer: Any, workload: Path) -> None:
    out = answer("place", workload, "--format", "csv")
    assert out.splitlines()[0] == "name,num_nodes,compute,communication,load,memory_bytes,memory_capacity_bytes"
    assert len(out.splitlines()) == 4


@pytest.mark.parametrize("extra", [(), ("--non-contiguous",), ("--contiguity", "convex"), ("--memory", "100MiB")])
def test_export_and_check(answer: Any, workload: Path, tmp_path: Path, extra: tuple[str, ...]) -> None:
    out = tmp_path / "placement.yaml"
    said = " ".join(answer("place", workload, "--export", out, *extra).split())
    assert " planner place check " in said
    assert "--export" not in said
    text = answer("place", "check", workload, out)
    assert text.startswith("placement.yaml: ok, objective ")
    assert json.loads(answer("place", "check", workload, out, "--json"))["ok"] is True


def test_check_finds_tampering(answer: Any, said: Any, workload: Path, tmp_path: Path) -> None:
    out = tmp_path / "placement.yaml"
    answer("place", workload, "--export", out)
    content = yaml.safe_load(out.read_text())
    first, second, _ = sorted(content["devices"])
    content["devices"][first], moved = content["devices"][first][1:], content["devices"][first][0]
    content["devices"][second].append(moved)
    out.write_text(yaml.safe_dump(content))
    text, _ = said("place", "check", workload, out, code=1)
    assert "the file claims" in text
    content["devices"]["acc7"] = [99]
    out.write_text(yaml.safe_dump(content))
    text, _ = said("place", "check", workload, out, code=1)
    assert "operators are not in the workload: 99" in text
    assert "there are no devices acc7" in text


def test_check_needs_a_placement_file(fails: Any, workload: Path, new_file: Any) -> None:
    path = new_file("p.yaml", "schema_version: 3\nobjective: speed\ndevices: [1]\nlimits: {accelerator: 2}\n")
    err = fails("place", "check", workload, path)
    for words in (
        f"{path}:1:17: schema_version: expected 1, got 3",
        f"{path}:2:12: objective: expected 'throughput', 'latency' or 'piper', got 'speed'",
        "limits.accelerator: unknown key 'accelerator'; did you mean 'accelerators'?",
    ):
        assert words in err
    assert "check: needs two files" in fails("place", "check", workload)


def test_check_of_a_latency_placement(said: Any, workload: Path, new_file: Any) -> None:
    path = new_file(
        "p.yaml",
        "schema_version: 1\nobjective: latency\nlimits: {accelerators: 2, subgraphs: 2}\n"
        "devices:\n  acc1: [[1, 2], [5, 6]]\n  acc2: [[3, 4]]\n  cpu: [7, 8]\nobjective_value: 322.25\n",
    )
    # 1 + 2 and out; in, 3 + 4 and out; in, 5 + 6 and out; the CPU takes 140 and 160.
    found = json.loads(said("place", "check", workload, path, "--json")[0])
    assert found["violations"] == []
    assert found["objective"] == pytest.approx(3.25 + 7.5 + 11.5 + 300)
    path.write_text(path.read_text().replace("subgraphs: 2", "subgraphs: 1"))
    out, _ = said("place", "check", workload, path, code=1)
    assert "acc1 runs subgraph 1" in out


def test_baselines_are_never_better(answer: Any, workload: Path) -> None:
    best = json.loads(answer("place", workload, "--json"))
    for method in ("one-device", "greedy", "pipedream", "local-search"):
        found = json.loads(answer("place", workload, "--method", method, "--json", "--memory", "1GiB"))
        assert found["bound"] <= best["objective"]
        if found["contiguity"] == "chain":
            assert found["objective"] >= best["objective"]


def test_expert_files(answer: Any, fails: Any, workload: Path, new_file: Any) -> None:
    path = new_file(
        "expert.json",
        json.dumps({"fpgas": [{"nodes": [1, 2, 3, 4, 5]}, {"nodes": [6, 7, 8]}], "cpus": [{"nodes": []}]}),
    )
    found = json.loads(answer("place", workload, "--method", "expert", "--expert", path, "--json"))
    assert found["objective"] == 21.25
    assert found["contiguity"] == "chain"
    path.write_text(json.dumps({"fpgas": [{"nodes": [1, 2, 2, 77]}]}))
    err = fails("place", workload, "--method", "expert", "--expert", path)
    assert f"{path}:1:29: fpgas[0].nodes[2]: node 2 is placed twice" in err
    assert "node 77 is not in the workload" in err
    path.write_text(json.dumps({"fpgas": [{"nodes": [1]}]}))
    assert "7 operators have no device, node 2 first" in fails(
        "place", workload, "--method", "expert", "--expert", path
    )
    path.write_text(json.dumps({"fpgas": [{"nodes": list(range(1, 9))}]}))
    assert "holds more than its memory" in fails("place", workload, "--method", "expert", "--expert", path)


def test_piper_workloads(answer: Any, fails: Any, said: Any, tmp_path: Path) -> None:
    content = random_content(4)
    path, out = tmp_path / "piper.json", tmp_path / "plan.yaml"
    path.write_text(json.dumps(content))
    found = json.loads(
        answer("place", path, "--memory", "1kB", "--devices", "4", "--bandwidth", "10B/s", "--export", out, "--json")
    )
    assert found["proven_optimal"] is True
    assert found["objective"] == max(stage["time_s"] for stage in found["stages"])
    assert found["num_devices"] == 4
    assert "ok" in answer("place", "check", path, out)
    shown = answer("place", path, "--memory", "1kB")
    assert re.match(r"Best: operators [\w, -]+: data x\d+", shown)
    assert "on each device of stage " in shown
    saved = yaml.safe_load(out.read_text())
    saved["stages"][0]["data_parallel"] += 1
    out.write_text(yaml.safe_dump(saved))
    said("place", "check", path, out, code=1)
    assert "no plan exists" in fails("place", path, "--memory", "1B", code=1)


def test_kinds_must_match(answer: Any, fails: Any, workload: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "piper.json", tmp_path / "plan.yaml"
    path.write_text(json.dumps(random_content(4)))
    answer("place", workload, "--export", out)
    assert "is a placement for throughput, but piper.json is of Piper's format" in fails("place", "check", path, out)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("--devices", "0"), 2, "--devices 0: must be at least 1"),
        (("--objective", "throughputs"), 2, "did you mean 'throughput'?"),
        (("--memory", "3"), 2, "'3' has no unit"),
        (("--memory", "0B"), 2, "--memory 0B: must be above 0"),
        (("--method", "expert"), 2, "--method expert needs --expert FILE"),
        (("--contiguity", "chian"), 2, "did you mean 'chain'?"),
        (("--non-contiguous", "--contiguity", "chain"), 2, "choose one"),
        (("--bandwidth", "25GiB/s"), 2, "only have a meaning for workloads of Piper's format"),
        (("--cpus", "0", "--memory", "1MB"), 2, "needs 1,048,576 bytes, more than the 1,000,000 of an accelerator"),
        (("--cpus", "0", "--memory", "3MiB"), 1, "no placement exists"),
        (("--method", "one-device", "--cpus", "0"), 1, "fits on no single device"),
        (("--time-limit", "0.000001s"), 3, "the time limit came before a placement was found"),
    ],
)
def test_errors(fails: Any, workload: Path, words: tuple[str, ...], code: int, expected: str) -> None:
    assert expected in fails("place", workload, *words, code=code)


def test_ctrl_c_shows_the_best_so_far(said: Any, workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contiguous.Stages, "best_chain", interrupted_after(contiguous.Stages.best_chain, 0))
    out, err = said("place", workload, "--json", code=130)
    found = json.loads(out)
    assert found["stopped"] == "interrupted"
    assert found["bound"] <= found["objective"]
    assert "interrupted" in err
    monkeypatch.setattr(contiguous, "greedy_stages", interrupted_after(contiguous.greedy_stages, 0))
    out, err = said("place", workload, code=130)
    assert out == ""
    assert "interrupted before a plan was found" in err


def interrupted_after(function: Callable[..., Any], answers: int) -> Callable[..., Any]:
    """A function that gives this many answers other than None and is then stopped by the user."""
    left = [answers]

    def wrapper(*args: Any, **keywords: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        result = function(*args, **keywords)
        left[0] -= result is not None
        return result

    return wrapper


@pytest.mark.e2e
def test_answers_do_not_depend_on_hash_seeds(new_file: Any) -> None:
    content = content_of(random_problem(12))
    for entry in content["nodes"]:  # type: ignore[attr-defined]
        entry["id"] = f"n{entry['id']}"
    for edge in content["edges"]:  # type: ignore[attr-defined]
        edge |= {"sourceId": f"n{edge['sourceId']}", "destId": f"n{edge['destId']}"}
    path = new_file("w.json", json.dumps(content))
    for extra in ("--contiguous", "--non-contiguous"):
        outputs = set()
        for seed in ("0", "1", "2"):
            done = subprocess.run(
                [sys.executable, "-m", "planner", "place", str(path), extra, "--json"],
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "PYTHONHASHSEED": seed},
                cwd=Path(__file__).parents[3],
            )
            outputs.add(re.sub(r'"wall_s": [^\n]*', "", done.stdout))
        assert len(outputs) == 1


def test_missing_and_several_files(fails: Any, workload: Path) -> None:
    assert "no such file" in fails("place", "nothing.json")
    assert "one file at a time" in fails("place", workload, workload)


@pytest.mark.e2e
def test_broken_workloads_never_show_a_traceback(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Values of a valid file replaced by nonsense, one at a time."""
    rng = random.Random(5)
    path = tmp_path / "w.json"
    nonsense: list[Any] = [None, -1, 1e400, "x", [], {}, True, 10**30, 0.5, ""]
    for trial in range(150):
        content: Any = random_content(trial) if trial % 3 == 0 else content_of(random_problem(trial))
        holder, key = content, rng.choice(list(content))
        while isinstance(holder[key], (dict, list)) and holder[key] and rng.random() < 0.85:
            holder = holder[key]
            key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        if rng.random() < 0.2 and isinstance(holder, dict):
            del holder[key]
        else:
            holder[key] = rng.choice(nonsense)
        path.write_text(json.dumps(content))
        code, err = run(["place", str(path), "--json"]), capsys.readouterr().err
        assert code in (0, 1, 2), (trial, err)
        assert "internal error" not in err
