"""`--gpus` left out: all of a cluster that has a size, a question where it has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run

NODE = """\
schema_version: 1
name: node
groups:
{groups}
levels:
  - {{name: nvlink, size: 4, bandwidth: 300 GB/s, latency: 4 us, efficiency: 0.8}}
  - {{name: fabric, {size}bandwidth: 100 Gb/s, latency: 10 us}}
source: {{nvlink: a test, fabric: a test}}
"""


def cluster_file(folder: Path, size: str = "size: 2, ", groups: tuple[str, ...] = ("{device: a100-80gb}",)) -> str:
    path = folder / "cluster.yaml"
    path.write_text(NODE.format(size=size, groups="\n".join(f"  - {group}" for group in groups)))
    return str(path)


QUESTIONS = {
    "a split per layer": ["alexnet"],
    "a mesh": ["bert-large", "--batch", "32"],
    "serving": ["llama3-8b", "--mode", "inference"],
}


@pytest.mark.exact
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_a_cluster_with_a_size_is_searched_whole(answer: Any, tmp_path: Path, question: list[str]) -> None:
    path = cluster_file(tmp_path)
    found = json.loads(answer("optimize", *question, "--cluster", path, "--top", "1", "--json"))
    asked = json.loads(answer("optimize", *question, "--cluster", path, "--top", "1", "--gpus", "8", "--json"))
    assert found["gpus"] == 8
    assert (
        found["plans"][0]["step_time_s" if "step_time_s" in found["plans"][0] else "tpot_s"]
        == (asked["plans"][0]["step_time_s" if "step_time_s" in asked["plans"][0] else "tpot_s"])
    )
    said = {entry["name"]: (entry["value"], entry["source"]) for entry in found["assumptions"]}
    assert said["workers"] == ("up to 8", "size of the cluster")
    assert "workers" not in {entry["name"] for entry in asked["assumptions"]}


@pytest.mark.e2e
def test_groups_count_together(answer: Any, tmp_path: Path) -> None:
    groups = ("{device: a100-80gb, count: 4}", "{device: v100-32gb, count: 2, name: old}")
    path = cluster_file(tmp_path, "", groups)
    assert json.loads(answer("optimize", "gpt3-1.3b", "--batch", "16", "--cluster", path, "--json"))["gpus"] == 6


def test_the_table_says_it(answer: Any, tmp_path: Path) -> None:
    assert "workers up to 8 (size of the cluster)" in answer(
        "optimize", "alexnet", "--cluster", cluster_file(tmp_path), "-v"
    )


def test_what_detect_writes_can_be_asked_at_once(answer: Any, tmp_path: Path) -> None:
    path = tmp_path / "here.yaml"
    answer("detect", "-o", str(path))
    assert json.loads(answer("optimize", "alexnet", "--cluster", str(path), "--json"))["gpus"] >= 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dgx-h100", "error: --gpus: is missing; say how many workers there are at most, as in --gpus 16 (nothing limits"),
        ("dgx-h10", "error: cluster 'dgx-h10' is not known; did you mean 'dgx-h100'?"),
    ],
)  # fmt: skip
def test_without_a_size_it_is_asked_for(capsys: pytest.CaptureFixture[str], name: str, message: str) -> None:
    assert run(["optimize", "alexnet", "--cluster", name]) == 2
    out, err = capsys.readouterr()
    assert (out, err[: len(message)]) == ("", message)


@pytest.mark.parametrize(
    ("size", "counts"), [("size: 1, ", [1, 2, 4]), ("size: 2, ", [1, 2, 4, 8]), ("", [1, 2, 4, 8])]
)
def test_scaling_stops_at_the_size(answer: Any, tmp_path: Path, size: str, counts: list[int]) -> None:
    found = json.loads(answer("scale", "alexnet", "--cluster", cluster_file(tmp_path, size), "--json"))
    assert [point["workers"] for point in found["points"]] == counts
