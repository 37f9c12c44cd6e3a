"""Operator graphs of planner models: times, transfers and sizes against the model and the device files, by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.core.errors import PlannerError
from planner.files.loading import load_cluster
from planner.importers.networks import load_model
from planner.placement.model_workload import link_between, workload_of_model
from planner.placement.question import PlaceRequest
from planner.placement.workload_file import workload_from


def test_transfers_and_sizes_by_hand() -> None:
    """LeNet-300-100 on V100s: fp16 activations over one NVLink, 150 GB/s at 0.81 after 4 us; weights of 2 bytes."""
    content = workload_of_model(
        PlaceRequest(workload=Path("mlp"), cluster="dgx1-v100", mode="inference", batch=10)
    ).content
    ids = {node["name"]: node["id"] for node in content["nodes"]}
    cost = {edge["sourceId"]: edge["cost"] for edge in content["edges"]}
    assert cost[ids["fc1"]] == pytest.approx(4e-6 + 10 * 300 * 2 / (150e9 * 0.81))
    assert cost[ids["data"]] == pytest.approx(4e-6 + 10 * 784 * 2 / (150e9 * 0.81))
    size = {node["name"]: node["size"] for node in content["nodes"]}
    assert size["fc1"] == 2 * (784 * 300 + 300)
    assert sum(size.values()) == 2 * 266_610
    assert content["maxFPGAs"] == 8
    assert (
        content["maxSizePerFPGA"] == (16160 * 0.95 - 512) * 2**20
    )  # what the driver shows, less the reserve and the context
    assert content["maxCPUs"] == 0


def test_training_adds_backward_operators_of_the_same_class() -> None:
    question = PlaceRequest(workload=Path("mlp"), cluster="dgx1-v100", batch=10)
    file = workload_of_model(question)
    nodes = {node["name"]: node for node in file.content["nodes"]}
    edges = {(edge["sourceId"], edge["destId"]): edge["cost"] for edge in file.content["edges"]}
    names = {node["id"]: name for name, node in nodes.items()}
    named = {(names[u], names[v]) for u, v in edges}
    assert "data (backward)" not in nodes  # no gradient for the input
    for name in ("fc1", "fc2", "fc3"):
        back = nodes[f"{name} (backward)"]
        assert back["isBackwardNode"] == 1
        assert back["colorClass"] == nodes[name]["colorClass"]
        assert back["fpgaLatency"] > 0
        assert (name, f"{name} (backward)") in named
    assert ("fc2 (backward)", "fc1 (backward)") in named
    # The gradient of what fc2 reads: 300 numbers a sample.
    assert edges[nodes["fc2 (backward)"]["id"], nodes["fc1 (backward)"]["id"]] == pytest.approx(
        4e-6 + 10 * 300 * 2 / (150e9 * 0.81)
    )
    # fp16 weight and gradient, 32-bit master and momentum; fc1's output is kept for the backward pass.
    assert nodes["fc1"]["size"] == pytest.approx((2 + 2 + 4 + 4) * (784 * 300 + 300) + 10 * 300 * 2)
    problem = workload_from(file, {}).problem
    assert problem.num_colors == 5


def test_work_is_that_of_the_cost_model() -> None:
    """ResNet-50 does 8.2 GFLOP a sample forward; a V100 does no more than 125 TFLOP/s, and the backward pass about twice the work."""
    content = workload_of_model(PlaceRequest(workload=Path("resnet50"), cluster="dgx1-v100", batch=64)).content
    forward = sum(node["fpgaLatency"] for node in content["nodes"] if not node["isBackwardNode"])
    backward = sum(node["fpgaLatency"] for node in content["nodes"] if node["isBackwardNode"])
    assert 64 * 8.2e9 / 125e12 < forward < 20 * 64 * 8.2e9 / 125e12
    assert 1.5 * forward < backward < 3 * forward
    assert len([n for n in content["nodes"] if not n["isBackwardNode"]]) == len(load_model("resnet50").graph.layers)


def test_links_widen_with_the_devices() -> None:
    levels = load_cluster("dgx1-v100").cluster.levels
    assert [link_between(levels, count).name for count in (1, 8, 9, 64)] == [
        "nvlink",
        "nvlink",
        "infiniband",
        "infiniband",
    ]
    near = workload_of_model(PlaceRequest(workload=Path("mlp"), cluster="dgx1-v100", num_devices=8)).content
    far = workload_of_model(PlaceRequest(workload=Path("mlp"), cluster="dgx1-v100", num_devices=16)).content
    assert far["maxFPGAs"] == 16
    assert far["edges"][0]["cost"] > near["edges"][0]["cost"]


def test_several_kinds_of_devices() -> None:
    file = workload_of_model(PlaceRequest(workload=Path("mlp"), cluster="a100-v100", batch=10))
    kinds = {kind["name"]: kind for kind in file.content["deviceTypes"]}
    assert {name: kind["count"] for name, kind in kinds.items()} == {"a100-80gb": 16, "v100-32gb": 32}
    # HDR at 0.96 against half an EDR adapter at 0.95.
    assert kinds["v100-32gb"]["linkFactor"] == pytest.approx(25e9 * 0.96 / (6.25e9 * 0.95))
    problem = workload_from(file, {}).problem
    assert [kind.count for kind in problem.types] == [16, 32]
    assert problem.num_accelerators == 48
    a100, v100 = problem.types
    assert v100.time.sum() > a100.time.sum() > 0


def test_impossible_questions() -> None:
    with pytest.raises(PlannerError, match="several kinds"):
        workload_of_model(PlaceRequest(workload=Path("mlp"), cluster="a100-v100", num_devices=4))
    with pytest.raises(PlannerError, match="no-such-cluster"):
        workload_of_model(PlaceRequest(workload=Path("mlp"), cluster="no-such-cluster"))


def test_command_line_and_exported_workload(tmp_path: Path, answer: Any) -> None:
    graph, placed = tmp_path / "graph.json", tmp_path / "placed.yaml"
    words = ["bert-large", "--cluster", "dgx1-v100", "--batch", "2", "--mode", "inference", "--json"]
    first = json.loads(answer("place", *words, "--export-workload", str(graph), "--export", str(placed)))
    assert first["proven_optimal"]
    second = json.loads(answer("place", str(graph), "--json"))
    assert second["objective"] == first["objective"]
    assert run(["place", "check", str(graph), str(placed)]) == 0


def test_options_that_belong_to_clusters(tmp_path: Path, fails: Any) -> None:
    assert "--cluster" in fails("place", str(tmp_path / "graph.json"), "--batch", "2")
    assert "--cpus" in fails("place", "mlp", "--cluster", "dgx1-v100", "--cpus", "2")
