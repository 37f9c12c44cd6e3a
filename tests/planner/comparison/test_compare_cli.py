"""`planner compare`: what differs, by how much and why; one clear error per mistake."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.comparison.differences import compare_items
from planner.comparison.report import comparison_report, memory_sentence, why
from planner.core.errors import UsageError
from planner.report.text import plain_text
from planner.schema.results import CompareDocument
from planner.spaces.items import Item
from planner.spaces.serving.items import ServedItem

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
    percent = float(re.findall(r"[\d.]+", sentence.removeprefix("best.yaml is "))[0])
    assert percent == pytest.approx(100 * (1 - 1 / ratio), abs=0.6)  # of the time
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
    images, texts = found["plans"]
    assert images["tokens_per_s"] is None
    assert (
        texts["tokens_per_s"]
        == pytest.approx(texts["samples_per_s"] * 8192)
        == pytest.approx(8192 * 8 / texts["step_time_s"])
    )
    _adds_up(found)
    line = next(line for line in answer("compare", layers, mesh).splitlines() if line.startswith("mesh.yaml"))
    assert " n/a " in line
    assert [plan["space"] for plan in found["plans"]] == ["layers", "mesh"]
    assert found["memory"] == []


@pytest.mark.e2e
def test_serving(fails: Any, answer: Ask, make_plan: Callable[..., str]) -> None:
    question = ("estimate", "llama3-8b", "--gpus", "2", "--mode", "inference", "--tp", "2", "--max-batch")
    few, many = make_plan("few.yaml", *question, "8"), make_plan("many.yaml", *question, "64")
    found = compared(answer, few, many)
    _adds_up(found)
    assert found["space"] == "serving"
    assert found["fastest"] == "many.yaml"
    assert found["first_token"]
    assert "faster than few.yaml" in found["why"][0]
    assert "64 sequences at a time against 8" in found["why"][0]
    training = make_plan("training.yaml", "estimate", "llama3-8b", "--gpus", "8", "--batch", "8", "--tp", "8")
    assert "different things" in fails("compare", few, training)


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
    question = (
        "llama3-8b",
        "--gpus",
        "16",
        "--batch",
        "16",
        "--framework",
        "megatron-lm",
    )  # as the run's trainer implies
    optimum = json.loads(answer("optimize", *question, "--json", "--quiet"))
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
    best = json.loads(answer("optimize", "alexnet", "--gpus", "8", "--fastest", "--json", "--quiet"))["plans"][0]
    assert found["plans"][1]["step_time_s"] == pytest.approx(best["step_time_s"])


def test_a_plan_that_does_not_fit_is_not_the_fastest(answer: Ask, make_plan: Callable[..., str]) -> None:
    question = ("estimate", "llama3-70b", "--gpus", "64", "--batch", "64", "--tp", "8")
    small, large = make_plan("small.yaml", *question, "--pp", "8"), make_plan("large.yaml", *question)
    found = compared(answer, small, large)
    fits = [plan["fits"] for plan in found["plans"]]
    assert fits == [True, False]
    assert found["plans"][1]["relative_time"] < 1
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
def test_mistakes(fails: Any, make_plan: Callable[..., str], tmp_path: Path, new_file: Any) -> None:
    plan = make_plan("a.yaml", "estimate", "alexnet", "--gpus", "2", "--family", "data")
    model = new_file("net.yaml", "schema_version: 1\nname: x\n")
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe\x00workers: 1")
    assert "needs two plans" in fails("compare")
    assert "needs two plans" in fails("compare", plan)
    assert "no such file" in fails("compare", plan, str(tmp_path / "none.yaml"))
    assert fails("compare", plan, str(model)).count("\n") == 1
    assert "is not a plan file" in fails("compare", plan, str(model))
    model.write_text("", encoding="utf-8")
    assert fails("compare", plan, str(model)) == f"{model}: is empty\n"
    assert fails("compare", plan, str(binary)).count("\n") == 1
    assert "--model: is missing" in fails("compare", "--from", "megatron", "x.sh")
    assert "--gpus: belongs to --from" in fails("compare", plan, plan, "--gpus", "8")
    assert "--export: writes the best plan" in fails("compare", plan, plan, "--export", str(tmp_path / "x.yaml"))
    assert "trainer 'megatorn' is not known" in fails("compare", "--from", "megatorn", plan, "--model", "alexnet")
    assert "did you mean '--best'?" in fails("compare", plan, "--bets")


# --- Sentences about plans made by hand: every number in them can be checked in the head --------------------------------------------------


GIB = 2**30


def item(label: str, **changes: object) -> Item:
    plain = Item(
        label=label,
        space="mesh",
        question={"mode": "training", "model": "net", "global batch": "8", "cluster": "c"},
        settings={"workers": "8", "tp": "8", "pp": "1", "num_micro_batches": "8"},
        layers={},
        layer_bytes={},
        summary="tp 8",
        family="tensor",
        workers=8,
        samples=8,
        seq=100,
        step_time_s=10.0,
        step_time_low_s=None,
        step_time_high_s=None,
        time_parts={"compute_s": 6.0, "tp_exposed_s": 4.0, "bubble_s": 0.0},
        first_token_parts={},
        memory_bytes=3.0 * GIB,
        memory_capacity_bytes=80.0 * GIB,
        memory_there_bytes=80.0 * GIB,
        fits_probability=None,
        memory_parts={"weight_bytes": 1.0 * GIB, "activation_bytes": 2.0 * GIB},
        objective="step_time",
        costs={},
    )
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


FAST = {
    "settings": {"workers": "8", "tp": "2", "pp": "4", "num_micro_batches": "8"},
    "step_time_s": 8.0,
    "time_parts": {"compute_s": 6.0, "tp_exposed_s": 1.0, "bubble_s": 1.0},
    "memory_bytes": 6.0 * GIB,
    "memory_parts": {"weight_bytes": 4.0 * GIB, "activation_bytes": 2.0 * GIB},
}


def test_the_faster_saves_and_pays() -> None:
    comparison = compare_items([item("a"), item("b", **FAST)])
    assert why(comparison, 1) == (
        "b is 20 % faster than a: 8.00 s per step against 10.0 s. "
        "It saves 3.00 s of tensor-parallel communication (tp 2 against 8), and pays 1.00 s of pipeline bubble."
    )
    assert memory_sentence(comparison, 1) == "b needs 3.00 GiB more per GPU than a: weights +3.00 GiB."
    assert comparison.fastest == 1


def test_the_order_of_the_files_changes_the_reference_and_not_the_reason() -> None:
    forwards, backwards = compare_items([item("a"), item("b", **FAST)]), compare_items([item("b", **FAST), item("a")])
    assert why(forwards, 1).partition(" saves ")[2] == why(backwards, 1).partition(" saves ")[2]
    assert why(backwards, 1).startswith("a is 25 % slower than b: 10.0 s per step against 8.00 s. b saves 3.00 s")
    assert memory_sentence(backwards, 1) == "a needs 3.00 GiB less per GPU than b: weights -3.00 GiB."
    assert [row.differences[1] for row in forwards.times] == [-(row.differences[1] or 0.0) for row in backwards.times]


def test_sums_in_another_order_are_no_difference() -> None:
    terms = {"compute_s": 6.0 * (1 + 1e-15), "tp_exposed_s": 4.0, "bubble_s": 0.0}
    comparison = compare_items([item("a"), item("b", time_parts=terms)])
    assert [row.differences for row in comparison.times] == [(0.0, 0.0)] * len(comparison.times)


def test_what_is_saved_and_paid_adds_up() -> None:
    terms = {"compute_s": 5.91, "tp_exposed_s": 3.5, "bubble_s": 0.0}
    comparison = compare_items([item("a"), item("b", step_time_s=9.41, time_parts=terms)])
    assert why(comparison, 1).endswith("It saves 500 ms of tensor-parallel communication and 90.0 ms of other parts.")


def test_rounding_is_no_part_and_the_rest_has_no_cause() -> None:
    """1 us of 10 s is over 1 % of a difference of next to nothing; savings too small to name have no setting behind them."""
    terms = {"compute_s": 5.5, "tp_exposed_s": 4.5, "bubble_s": 1e-6}
    equal = compare_items([item("a"), item("b", step_time_s=10.000001, time_parts=terms)])
    assert "other parts" not in why(equal, 1)
    small = {"compute_s": 5.91, "tp_exposed_s": 3.91, "bubble_s": 0.11}
    settings = {"workers": "8", "tp": "2", "pp": "4", "num_micro_batches": "8"}
    asked = {"mode": "training", "model": "net", "global batch": "8", "cluster": "d"}
    comparison = compare_items(
        [item("a"), item("b", step_time_s=9.93, time_parts=small, settings=settings, question=asked)]
    )
    assert "It saves 180 ms of other parts, and pays 110 ms of" in why(comparison, 1)


def test_intervals_of_two_frameworks_that_overlap_are_said() -> None:
    first, second = ({"mode": "training", "model": "net", "framework": name} for name in "ab")
    ends: dict[str, object] = {"step_time_low_s": 7.0, "step_time_high_s": 12.0}
    other = item("b", **{**FAST, **ends}, question=second)
    words = "b is 20 % faster than a, though within the model's error (the 80 % intervals overlap): 8.00 s"
    assert why(compare_items([item("a", **ends, question=first), other]), 1).startswith(words)
    clear = item("a", **{**ends, "step_time_low_s": 12.5}, question=first)
    assert "error" not in why(compare_items([clear, other]), 1)
    # Errors of two plans under one framework are mostly the same.
    assert "error" not in why(compare_items([item("a", **ends), item("b", **{**FAST, **ends})]), 1)


def test_equal_plans() -> None:
    comparison = compare_items([item("a"), item("b")])
    assert why(comparison, 1) == "b is as fast as a."
    assert comparison.settings == ()
    assert comparison.same == {"workers": "8", "tp": "8", "num_micro_batches": "8"}


def test_a_search_that_finds_the_same_plan_says_so_and_shows_no_zeros() -> None:
    comparison = compare_items([item("a"), item("best found", found="by a search")])
    assert why(comparison, 1) == "a is the best plan: the search finds no other."
    said = plain_text(comparison_report(comparison).blocks(), 200)
    assert "Found:" in said
    assert "needs as much memory" not in said
    assert "Where the time" not in said


def test_a_plan_that_beats_the_search_is_told_why() -> None:
    words = "a has stages or splits of its own: the search tries these for its best uniform plans only."
    found: dict[str, object] = {"found": "by a search", "step_time_s": 16.0, "time_parts": {"compute_s": 16.0}}
    own = {"tp": "8", "stage_blocks": "11 12 9"}
    assert words in why(compare_items([item("a", settings=own), item("best found", **found)]), 1)
    assert words not in why(compare_items([item("a"), item("best found", **found)]), 1)
    assert words not in why(compare_items([item("a", settings=own), item("b", **{**found, "found": ""})]), 1)


def test_another_batch_is_compared_per_sample_and_another_length_per_token() -> None:
    batch = {"mode": "training", "model": "net", "global batch": "16", "cluster": "c"}
    twice = item("b", question=batch, samples=16, step_time_s=16.0, time_parts={"compute_s": 16.0})
    comparison = compare_items([item("a"), twice])
    assert comparison.basis == "sample"
    assert comparison.scores == (1.25, 1.0)
    longer = item("b", question={**batch, "sequence length": "400"}, seq=400, samples=4)
    comparison = compare_items([item("a"), longer])
    assert comparison.basis == "token"
    assert comparison.scores == (10 / 800, 10 / 1600)


def test_training_and_inference_have_nothing_to_compare() -> None:
    inference = item("b", question={"mode": "inference", "model": "net"})
    with pytest.raises(UsageError, match="a is for training and b for inference"):
        compare_items([item("a"), inference])


def asked(item_: Item, **question: str) -> Item:
    return dataclasses.replace(item_, question={**item_.question, **question})


def test_another_network_saves_nothing() -> None:
    small = {"step_time_s": 5.0, "time_parts": {"compute_s": 1.0, "tp_exposed_s": 4.0, "bubble_s": 0.0}}
    comparison = compare_items([item("a"), asked(item("b", **small), model="tiny")])
    assert why(comparison, 1) == "a and b are of different networks, net and tiny: 1.25 s per sample against 625 ms."


def test_another_batch_saves_nothing() -> None:
    half = {"step_time_s": 5.0, "time_parts": {"compute_s": 1.0, "tp_exposed_s": 4.0, "bubble_s": 0.0}}
    comparison = compare_items([item("a"), asked(item("b", **half), **{"global batch": "9"})])
    assert why(comparison, 1) == "b is 2.0x faster than a: 625 ms per sample against 1.25 s."


def test_another_sequence_length_is_named_before_the_settings() -> None:
    small = {"step_time_s": 5.0, "time_parts": {"compute_s": 1.0, "tp_exposed_s": 4.0, "bubble_s": 0.0}}
    settings = {"workers": "6", "tp": "8", "pp": "1", "num_micro_batches": "8"}
    other = asked(item("b", settings=settings, **small), **{"sequence length": "50"})
    assert "ms of compute (sequence length 50 against -, workers 6 against 8)." in why(
        compare_items([item("a"), other]), 1
    )


@pytest.mark.parametrize(
    ("question", "cause"),
    [
        ({"model file": "0123456789"}, "(model net (01234567) against net (abcdefab))"),  # two files of one name
        ({"device": "d2"}, "(device d2 against d1)"),
        ({"cluster": "c2"}, ""),  # the links do not change what a device computes
        ({"optimizer": "sgd"}, ""),
    ],
)
def test_what_is_asked_is_a_cause_of_the_terms_it_bears_on(question: dict[str, str], cause: str) -> None:
    known = {"model file": "abcdefabcd", "device": "d1", "optimizer": "adam"}
    first = asked(item("a"), **known)
    fast = item("b", step_time_s=9.0, time_parts={"compute_s": 5.0, "tp_exposed_s": 4.0, "bubble_s": 0.0})
    sentence = why(compare_items([first, asked(asked(fast, **known), **question)]), 1)
    assert f" of compute{' ' + cause if cause else ''}." in sentence


def served(label: str, **changes: object) -> ServedItem:
    """A server of 8 sequences at a time, a token of each every 10 ms."""
    fields = {field.name: getattr(item(label), field.name) for field in dataclasses.fields(Item)}
    question = {"mode": "inference", "model": "net", "cluster": "c"}
    rates = {"requests_per_s": 4.0, "output_tokens_per_s": 800.0, "output_tokens_per_s_per_gpu": 100.0}
    figures = {"served": {"ttft_s": 0.2, "request_s": 2.0, **rates}, "step_time_s": 0.01, "objective": "throughput"}
    parts = {"time_parts": {"decode_compute_s": 0.008, "waiting_s": 0.002}, "first_token_parts": {}}
    return ServedItem(
        **{**fields, "space": "serving", "question": question, "seq": None, **parts, **figures, **changes}
    )


def test_servers_are_compared_by_what_they_serve() -> None:
    slow = served("a")
    rates = {**slow.served, "output_tokens_per_s": 1000.0, "request_s": 3.0}
    fast = served("b", served=rates, samples=16, step_time_s=0.016)
    comparison = compare_items([slow, fast])
    assert comparison.basis == "step"
    assert comparison.scores == (1 / 800, 1 / 1000)
    assert why(comparison, 1).startswith(
        "b is 25 % faster than a: 1,000 output tokens/s against 800 output tokens/s, a token every 16.0 ms against 10.0 ms."
    )
    assert why(comparison, 1).endswith(" It serves 16 sequences at a time against 8.")
    quick = [dataclasses.replace(one, objective="latency") for one in (slow, fast)]
    assert compare_items(quick).scores == (2.0, 3.0)
    assert why(compare_items(quick), 1).startswith("b is 50 % slower than a: ")


@pytest.mark.parametrize("is_first", [True, False])
def test_a_server_and_a_forward_pass_have_nothing_to_compare(is_first: bool) -> None:
    passed = item("b", question={"mode": "inference", "model": "net"})
    items = [served("a"), passed] if is_first else [passed, served("a")]
    with pytest.raises(UsageError, match="a serves requests and b costs one forward pass"):
        compare_items(items)
