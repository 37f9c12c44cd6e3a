"""`planner compare`: what differs, by how much and why; one clear error per mistake."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.schema.results import CompareDocument

Ask = Callable[..., str]


@pytest.fixture
def make_plan(answer: Ask, tmp_path: Path) -> Callable[..., str]:
    def make(name: str, *question: str) -> str:
        path = tmp_path / name
        answer(*question, "--export", str(path), "--quiet")
        return str(path)

    return make


def compared(answer: Ask, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer("compare", *arguments, "--json", "--quiet"))
    CompareDocument.model_validate(found)
    return found


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    code = run(["compare", *arguments])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "internal error" not in err
    return err


def _adds_up(found: dict[str, Any]) -> None:
    """Terms are those of the whole, and differences are differences."""
    for n, plan in enumerate(found["plans"]):
        assert sum(row["values_s"][n] for row in found["times"]) == pytest.approx(plan["time_s"], rel=1e-6)
        if found["memory"]:
            assert sum(row["values_bytes"][n] for row in found["memory"]) == pytest.approx(plan["memory_bytes_per_gpu"])
    for row in found["times"]:
        first = row["values_s"][0]
        assert row["differences_s"] == pytest.approx([value - first for value in row["values_s"]])


@pytest.mark.e2e
def test_splits_per_layer(answer: Ask, make_plan: Callable[..., str]) -> None:
    data = make_plan("data.yaml", "estimate", "alexnet", "--gpus", "8", "--batch", "512", "--family", "data")
    best = make_plan("best.yaml", "optimize", "alexnet", "--gpus", "8", "--batch", "512")
    found = compared(answer, data, best)
    _adds_up(found)
    assert found["basis"] == "step"
    assert found["is_same_question"]
    assert found["fastest"] == "best.yaml"
    assert [plan["label"] for plan in found["plans"]] == ["data.yaml", "best.yaml"]
    # Both are what `estimate --plan` says, to the last digit.
    for path, plan in zip((data, best), found["plans"], strict=True):
        assert plan["step_time_s"] == json.loads(answer("estimate", "--plan", path, "--json"))["step_time_s"]
    split = {row["name"] for row in found["layers"]}
    assert any(name.startswith("fc") for name in split)
    assert not any(name.startswith("conv1") for name in split)  # both split the convolutions by the batch
    ratio = found["plans"][0]["step_time_s"] / found["plans"][1]["step_time_s"]
    sentence = found["why"][0]
    assert sentence.startswith("best.yaml is ")
    assert float(sentence.split()[2].rstrip("x")) == pytest.approx(ratio, rel=5e-3)
    largest = min(found["times"], key=lambda row: row["differences_s"][1])
    assert sentence.partition("It saves ")[2].partition(" of ")[2].startswith(largest["name"])


def test_meshes(answer: Ask, make_plan: Callable[..., str]) -> None:
    question = ("estimate", "llama3-8b", "--gpus", "16", "--batch", "64")
    slow = make_plan("slow.yaml", *question, "--tp", "8", "--pp", "2")
    fast = make_plan("fast.yaml", *question, "--tp", "2", "--zero", "1")
    found = compared(answer, slow, fast, slow)
    _adds_up(found)
    assert [plan["label"] for plan in found["plans"]] == ["slow.yaml", "fast.yaml", "slow.yaml (2)"]
    assert {"name": "tp", "values": ["8", "2", "8"]} in found["settings"]
    assert found["plans"][2]["relative_time"] == 1.0
    assert "as fast as slow.yaml" in found["why"][1]
    assert "tp 2 against 8" in found["why"][0]
    text = answer("compare", slow, fast)
    for words in ("tensor-parallel communication", "What differs in the plans", "optimizer state", "fast.yaml is "):
        assert words in text


@pytest.mark.e2e
def test_other_questions_are_said_and_compared_per_token(answer: Ask, make_plan: Callable[..., str]) -> None:
    one = make_plan("one.yaml", "estimate", "llama3-8b", "--gpus", "8", "--batch", "8", "--tp", "8")
    two = make_plan("two.yaml", "estimate", "llama3-8b", "--gpus", "8", "--batch", "16", "--seq", "4096", "--tp", "8")
    found = compared(answer, one, two)
    _adds_up(found)
    assert found["basis"] == "token"
    assert {row["name"] for row in found["question"]} == {"global batch", "sequence length"}
    assert found["plans"][1]["time_s"] == pytest.approx(found["plans"][1]["step_time_s"] / (16 * 4096))
    assert "different questions" in found["why"][0]
    # At another batch alone, a sample is the unit; on another cluster alone, the step stays it.
    batch = make_plan("batch.yaml", "estimate", "llama3-8b", "--gpus", "8", "--batch", "32", "--tp", "8")
    assert compared(answer, one, batch)["basis"] == "sample"
    older = make_plan(
        "older.yaml", "estimate", "llama3-8b", "--gpus", "8", "--batch", "8", "--tp", "8", "-c", "dgx-a100"
    )
    found = compared(answer, one, older)
    assert found["basis"] == "step"
    assert {row["name"] for row in found["question"]} == {"cluster", "device"}
    # What is asked on the command line is asked of all.
    assert compared(answer, one, older, "--cluster", "dgx-h100")["plans"][1]["relative_time"] == pytest.approx(1.0)


def test_plans_of_different_spaces(answer: Ask, make_plan: Callable[..., str]) -> None:
    layers = make_plan("layers.yaml", "estimate", "alexnet", "--gpus", "4", "--family", "data")
    mesh = make_plan("mesh.yaml", "estimate", "llama3-8b", "--gpus", "8", "--batch", "8", "--tp", "8")
    found = compared(answer, layers, mesh)
    _adds_up(found)
    assert [plan["space"] for plan in found["plans"]] == ["layers", "mesh"]
    assert found["memory"] == []


@pytest.mark.e2e
def test_serving(answer: Ask, make_plan: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    question = ("estimate", "llama3-8b", "--gpus", "2", "--mode", "inference", "--tp", "2", "--max-batch")
    few, many = make_plan("few.yaml", *question, "8"), make_plan("many.yaml", *question, "64")
    found = compared(answer, few, many)
    _adds_up(found)
    assert found["space"] == "serving"
    assert found["fastest"] == "many.yaml"
    assert found["first_token"]
    assert "the throughput of few.yaml" in found["why"][0]
    assert "64 sequences at a time against 8" in found["why"][0]
    training = make_plan("training.yaml", "estimate", "llama3-8b", "--gpus", "8", "--batch", "8", "--tp", "8")
    assert "different things" in refused(capsys, few, training)


@pytest.mark.e2e
def test_several_kinds_of_devices(answer: Ask, make_plan: Callable[..., str]) -> None:
    plan = make_plan("mixed.yaml", "optimize", "llama2-13b", "--cluster", "a100-v100", "--gpus", "8", "--batch", "64")
    found = compared(answer, plan, plan)
    _adds_up(found)
    assert found["plans"][0]["space"] == "mixed"


@pytest.mark.e2e
def test_today_against_the_best(answer: Ask, tmp_path: Path) -> None:
    script, best = tmp_path / "train.sh", tmp_path / "best.yaml"
    script.write_text(
        "torchrun x.py --bf16 --tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 16",
        encoding="utf-8",
    )
    arguments = ("--from", "megatron", str(script), "--model", "llama3-8b", "--gpus", "16", "--export", str(best))
    found = compared(answer, *arguments)
    _adds_up(found)
    today, searched = found["plans"]
    assert (today["label"], searched["label"]) == ("train.sh", "best found")
    assert searched["relative_time"] < 1
    assert searched["found"].startswith("by a search")
    optimum = json.loads(answer("optimize", "llama3-8b", "--gpus", "16", "--batch", "16", "--json", "--quiet"))
    times = [plan["step_time_s"] for plan in optimum["plans"]] + [
        (optimum["refined"] or optimum["plans"][0])["step_time_s"]
    ]
    assert searched["step_time_s"] == pytest.approx(min(times))
    exported = json.loads(answer("estimate", "--plan", str(best), "--json"))
    assert exported["step_time_s"] == pytest.approx(searched["step_time_s"])


@pytest.mark.e2e
def test_the_best_for_a_plan(answer: Ask, make_plan: Callable[..., str]) -> None:
    data = make_plan("data.yaml", "estimate", "alexnet", "--gpus", "8", "--family", "data")
    found = compared(answer, data, "--best")
    best = json.loads(answer("optimize", "alexnet", "--gpus", "8", "--json", "--quiet"))["plans"][0]
    assert found["plans"][1]["step_time_s"] == pytest.approx(best["step_time_s"])


def test_a_plan_that_does_not_fit_is_not_the_fastest(answer: Ask, make_plan: Callable[..., str]) -> None:
    question = ("estimate", "llama3-70b", "--gpus", "64", "--batch", "64", "--tp", "8")
    small, large = make_plan("small.yaml", *question, "--pp", "8"), make_plan("large.yaml", *question)
    found = compared(answer, small, large)
    fits = [plan["fits"] for plan in found["plans"]]
    assert fits == [True, False]
    assert found["fastest"] == "small.yaml"
    assert any("large.yaml does not fit" in sentence for sentence in found["why"])


@pytest.mark.e2e
def test_formats(answer: Ask, make_plan: Callable[..., str], tmp_path: Path) -> None:
    one = make_plan("one.yaml", "estimate", "alexnet", "--gpus", "2", "--family", "data")
    two = make_plan("two.yaml", "estimate", "alexnet", "--gpus", "4", "--family", "data")
    rows = list(csv.DictReader(io.StringIO(answer("compare", one, two, "--format", "csv"))))
    assert [row["label"] for row in rows] == ["one.yaml", "two.yaml"]
    assert "compute_s" in rows[0]
    markdown = answer("compare", one, two, "--format", "markdown")
    assert "| one.yaml |" in markdown
    target = tmp_path / "result.yaml"
    answer("compare", one, two, "-o", str(target))
    assert target.read_text(encoding="utf-8").startswith("schema_version: 1\n")
    narrow = answer("compare", one, two, "--width", "60")
    assert max(map(len, narrow.splitlines())) <= 60


@pytest.mark.e2e
def test_mistakes(capsys: pytest.CaptureFixture[str], make_plan: Callable[..., str], tmp_path: Path) -> None:
    plan = make_plan("a.yaml", "estimate", "alexnet", "--gpus", "2", "--family", "data")
    model = tmp_path / "net.yaml"
    model.write_text("schema_version: 1\nname: x\n", encoding="utf-8")
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00workers: 1")
    assert "needs two plans" in refused(capsys)
    assert "needs two plans" in refused(capsys, plan)
    assert "no such file" in refused(capsys, plan, str(tmp_path / "none.yaml"))
    assert refused(capsys, plan, str(model)).count("\n") == 1
    assert "is not a plan file" in refused(capsys, plan, str(model))
    model.write_text("", encoding="utf-8")
    assert refused(capsys, plan, str(model)) == f"{model}: is empty\n"
    assert refused(capsys, plan, str(binary)).count("\n") == 1
    assert "--model: is missing" in refused(capsys, "--from", "megatron", "x.sh")
    assert "--gpus: belongs to --from" in refused(capsys, plan, plan, "--gpus", "8")
    assert "--export: writes the best plan" in refused(capsys, plan, plan, "--export", str(tmp_path / "x.yaml"))
    assert "trainer 'megatorn' is not known" in refused(capsys, "--from", "megatorn", plan, "--model", "alexnet")
    assert "did you mean '--best'?" in refused(capsys, plan, "--bets")
