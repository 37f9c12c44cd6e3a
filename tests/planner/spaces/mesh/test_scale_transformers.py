"""Scaling curves of transformers: every point is what `planner optimize` finds on that many GPUs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.core.request import Request
from planner.spaces.ask import optimize

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def curve(answer: Any) -> Ask:
    def ask(*arguments: str) -> dict[str, Any]:
        return dict(json.loads(answer("scale", *arguments, "--json")))

    return ask


def best_step_s(model: str, gpus: int, batch: int) -> float:
    found = optimize(Request(model=model, gpus=gpus, batch=batch, top=1), compare=False)
    return found.plans[0].step_time_s


@pytest.mark.exact
@pytest.mark.parametrize("weak", [False, True])
def test_every_point_is_the_best_plan(curve: Ask, weak: bool) -> None:
    found = curve("llama3-8b", "--batch", "16", "--gpus", "1,2,4", *(["--weak"] if weak else []))
    assert found["family"] == "mesh"
    assert [point["workers"] for point in found["points"]] == [1, 2, 4]
    one = found["points"][0]
    for point in found["points"]:
        batch = 16 * (point["workers"] if weak else 1)
        assert point["global_batch"] == batch
        assert point["step_time_s"] == pytest.approx(best_step_s("llama3-8b", point["workers"], batch), rel=1e-9)
        assert point["fits"]
        ratio = (batch / point["step_time_s"]) / (16 / one["step_time_s"])
        assert point["speedup"] == pytest.approx(ratio)
        assert point["efficiency"] == pytest.approx(ratio / point["workers"])
        assert point["compute_s"] + point["exposed_communication_s"] == pytest.approx(point["step_time_s"])


@pytest.mark.e2e
def test_numbers_on_which_nothing_fits_have_a_note_and_no_point(curve: Ask) -> None:
    found = curve("llama3-70b", "--batch", "8", "--seq", "2048", "--workers", "2,16,32")
    assert [point["workers"] for point in found["points"]] == [16, 32]
    assert found["points"][0]["speedup"] == pytest.approx(16)
    assert any(note.startswith("2 GPUs: nothing fits; the nearest miss needs") for note in found["notes"])
    assert any("counts the 16 GPUs of the first point as 16 times one" in note for note in found["notes"])


def test_a_curve_without_its_first_point_says_what_it_is_measured_against(curve: Ask) -> None:
    found = curve("gpt2", "--batch", "16", "--workers", "2")
    (note,) = [note for note in found["notes"] if note.startswith("speed-up is over ")]
    assert note.startswith("speed-up is over one GPU, micro-batch 16: ")
    assert not [note for note in curve("gpt2", "--batch", "16", "--workers", "1,2")["notes"] if "speed-up" in note]


def test_nothing_fits_anywhere(fails: Any) -> None:
    (line,) = fails("scale llama3-70b --batch 8 --gpus 1,2", code=1)
    assert "nearest miss" in line
    assert "it fits" in line


def test_degrees_can_be_fixed(curve: Ask) -> None:
    found = curve("llama3-8b", "--batch", "16", "--gpus", "4,8", "--tp", "4")
    assert all(point["summary"].startswith("tp 4") for point in found["points"])


def test_the_curve_says_that_stages_are_alike(answer: Any) -> None:
    said = " ".join(answer("scale", "gpt3-1.3b", "--workers", "8", "--batch", "64").split())
    assert "uniform over stages on each number of GPUs; planner optimize also tries stages that differ" in said


def test_other_families_and_networks_are_as_before(curve: Ask) -> None:
    assert curve("alexnet", "--gpus", "1,2")["family"] == "data"
    found = curve("bert-large", "--workers", "1,2", "--batch", "8", "--family", "data")
    assert found["family"] == "data"
    assert found["points"][1]["summary"] == "data x2"


def test_mistakes(fails: Any) -> None:
    assert "no repeated blocks with attention" in fails("scale alexnet --family mesh")[0]
    assert "must be a whole number" in fails("scale llama3-8b --gpus 1,x")[0]


# --- `--gpus` left out: all of a cluster that has a size, a question where it has none ----------------------------------------------------


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
        ("dgx-h100", "--gpus: is missing; say how many workers there are at most, as in --gpus 16 (nothing limits"),
        ("dgx-h10", "cluster 'dgx-h10' is not known; did you mean 'dgx-h100'?"),
    ],
)  # fmt: skip
def test_without_a_size_it_is_asked_for(fails: Any, name: str, message: str) -> None:
    assert fails(f"optimize alexnet --cluster {name}")[0].startswith(message)


@pytest.mark.parametrize(
    ("size", "counts"), [("size: 1, ", [1, 2, 4]), ("size: 2, ", [1, 2, 4, 8]), ("", [1, 2, 4, 8])]
)
def test_scaling_stops_at_the_size(answer: Any, tmp_path: Path, size: str, counts: list[int]) -> None:
    found = json.loads(answer("scale", "alexnet", "--cluster", cluster_file(tmp_path, size), "--json"))
    assert [point["workers"] for point in found["points"]] == counts


@pytest.mark.parametrize(
    ("gpus", "options", "code"),
    [
        (2048, {"zero": 1}, None),
        (64, {"zero": 1, "framework": "megatron-bridge"}, None),
        (
            2048,
            {"zero": 1, "framework": "megatron-bridge"},
            "latency_of_buckets",
        ),  # 128 Mi gradients, however many ranks
        (2048, {"zero": 3}, "latency_of_units"),
        (2048, {"zero": 3, "dp_replicate": 32}, None),
    ],
)
def test_latency_that_decides_is_said(document: Any, gpus: int, options: dict[str, Any], code: str | None) -> None:
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in options.items())
    asked = f"estimate llama3-8b --cluster dgx-b200 --gpus {gpus} --batch {2 * gpus} --cp 2 --micro-batch 1 {words}"
    codes = [note["code"] for note in document(asked)["note_codes"]]
    assert [found for found in codes if found.startswith("latency_of")] == ([code] if code else [])


@pytest.mark.parametrize(
    ("model", "cluster", "sizes", "degrees"),
    [
        ("llama3-8b", "dgx-b200", (64, 128, 256, 512, 1024, 2048), {"cp": 2}),
        ("llama3-70b", "dgx-h100", (1024, 4096, 16384), {"tp": 8, "pp": 4}),
    ],
)
def test_the_exposed_exchange_grows_no_faster_than_the_logarithm_of_the_ranks(
    model: str, cluster: str, sizes: tuple[int, ...], degrees: dict[str, int]
) -> None:
    """Every rank sends as much on 64 GPUs as on 2,048: buckets grow with the ranks, so that latency stays a small share."""
    per_gpu = 2 / degrees.get("tp", 1)
    options: dict[str, Any] = {"cluster": cluster, "zero": 1, "micro_batch": 1, **degrees}
    answers = [planner.estimate(model, gpus=n, batch=int(per_gpu * n), **options) for n in sizes]
    times = [answer.time_parts["dp_exposed_s"] for answer in answers]
    assert max(times) <= 2 * times[0]
    for n, time_s in zip(sizes, times, strict=True):
        assert time_s <= times[0] * math.log2(n) / math.log2(sizes[0]) * 1.25
