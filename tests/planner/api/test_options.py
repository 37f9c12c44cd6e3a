"""The declarations of options hold together; a word of the command line and the value of Python make the same request."""

from __future__ import annotations

import dataclasses
import datetime as dt
import doctest
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import planner
from planner.api import keywords as o
from planner.api.calls import given_in_python
from planner.api.keywords import options_of
from planner.api.place_options import PlaceOptions
from planner.api.requests import request_of, with_gpus
from planner.api.values import MAX_GPUS, Values
from planner.core.errors import UsageError
from planner.core.request import Request
from planner.placement.question import PlaceRequest

CLASSES = (o.OptimizeOptions, o.EstimateOptions, o.ExplainOptions, o.ScaleOptions, o.SweepOptions, o.SizeOptions)
# What is no field of a request: it is read into the limits of a plan, or asks for a study.
PARTS = {"degrees", "names", "flags", "serving_degrees"}
STUDIES = {
    "workers", "weak", "strong", "epochs", "samples", "jobs", "dask", "fresh", "tokens", "days", "budget", "max_gpus", "goodput",
    "failures", "checkpoint", "checkpoint_interval", "recovery", "offload", "nodes", "spares", "demand",
}  # fmt: skip


def request(given: dict[str, Any], values: Values) -> Request:
    found = request_of(options_of(o.ExplainOptions), given, values, "")
    values.check()
    return found


@pytest.mark.parametrize(
    ("name", "word", "value"),
    [
        ("gpus", "16", 16),
        ("batch", "256", 256),
        ("seq", "4096", 4096),
        ("tp", "4,8", (8, 4)),
        ("pp", "2,3,4", range(2, 5)),
        ("zero", "1", 1),
        ("schedule", "1f1b,gpipe", ["gpipe", "1f1b"]),
        ("offload", "optimizer", ["optimizer"]),
        ("num_micro_batches", "8", 8),
        ("num_micro_batches", "4,8", [4, 8]),
        ("memory_limit", "4000000000 B", 4e9),
        ("memory_reserve", "25.0%", 0.25),
        ("time_limit", "90s", dt.timedelta(minutes=1.5)),
        ("time_limit", "500ms", 0.5),
        ("price", "$2.5", 2.5),
        ("power", "700 W,100 W", (700, 100)),
        ("power", "700 W", 700.0),
        ("assume", ["dp_overlap=0.8"], {"dp_overlap": 0.8}),
        ("fix", ["fc6:batch=2,out_channels=8"], {"fc6": {"batch": 2, "out_channels": 8}}),
        ("fix", ["conv*:batch"], "conv*:batch"),
        ("assume_free", ["Gather"], "Gather"),
    ],
)
def test_a_word_and_a_value_ask_the_same(name: str, word: Any, value: Any) -> None:
    typed = request({"model": "alexnet", name: word}, Values())
    called = request(
        given_in_python(o.ExplainOptions, "alexnet", {name: value, "seed": None, "sensitivity": False}), Values(str)
    )
    assert typed == called
    assert typed != Request(model="alexnet")


@pytest.mark.parametrize("declared", CLASSES)
def test_every_option_is_part_of_a_question(declared: type) -> None:
    fields = {field.name for field in dataclasses.fields(Request)}
    for name, option in options_of(declared).items():
        part, _, field = (option.field or name).rpartition(":")
        assert part in PARTS if part else field in fields | STUDIES, name


@pytest.mark.parametrize("name", ["money", "cost", "Cost"])
def test_cost_is_another_name_of_money(name: str) -> None:
    values = Values()
    assert request({"model": "alexnet", "objective": name}, values).objective == "money"
    assert not values.problems


@pytest.mark.parametrize(
    ("given", "gpus", "problem"),
    [
        ({"nodes": "4"}, 32, ""),
        ({"nodes": 2, "cluster": "gb200"}, 8, ""),  # trays of four
        ({"nodes": "2", "device": "rtx-4090"}, 16, ""),
        ({"nodes": "8", "gpus": "64"}, "64", ""),
        (
            {"nodes": "8", "gpus": "60"},
            "60",
            "--nodes 8: are 64 GPUs of cluster 'dgx-h100', and --gpus is 60; give one of them",
        ),
        ({"nodes": "0"}, 8, "--nodes 0: must be at least 1"),
        ({"nodes": "2", "cluster": "no-such"}, 1, ""),  # said with the cluster
    ],
)
def test_nodes_are_counted_in_gpus_of_the_cluster(given: dict[str, Any], gpus: object, problem: str) -> None:
    values = Values()
    assert with_gpus(options_of(o.OptimizeOptions), given, values, "gpus")["gpus"] == gpus
    assert values.problems == ([problem] if problem else [])


def test_nodes_of_several_clusters_must_be_alike() -> None:
    values = Values()
    given = {"nodes": "1,2", "cluster": "a100,h100"}
    options = options_of(o.SweepOptions)
    assert with_gpus(options, given, values, "gpus", ["a100", "h100"])["gpus"] == (8, 16)
    with_gpus(options, given, values, "gpus", ["a100", "gb200"])
    assert values.problems == ["--nodes 1,2: nodes differ (dgx-a100 8, gb200-nvl72 4 GPUs); give --gpus"]


@pytest.mark.parametrize(
    ("model", "batch", "samples", "tokens"),
    [
        ("llama3-8b", "4M", None, "--batch 512 is 4,194,304 tokens"),
        ("llama3-8b", "65000", 65_000, ""),
        ("llama3-8b", "50k", 50_000, ""),  # fewer than the largest published
        ("llama3-8b", "4000000", 4_000_000, ""),
        ("llama3-8b", 4_000_000, 4_000_000, ""),
        ("alexnet", "4M", 4_000_000, ""),
    ],
)
def test_millions_of_sequences_are_taken_for_tokens(model: str, batch: Any, samples: int | None, tokens: str) -> None:
    values = Values()
    found = request_of(options_of(o.OptimizeOptions), {"model": model, "batch": batch}, values, "")
    assert [tokens in problem for problem in values.problems] == ([True] if tokens else [])
    assert samples in (None, found.batch)


def test_every_option_of_a_placement_is_a_field() -> None:
    fields = {field.name for field in dataclasses.fields(PlaceRequest)} | {"contiguous"}
    assert {option.field or name for name, option in options_of(PlaceOptions).items()} <= fields


@pytest.mark.parametrize("declared", [*CLASSES, PlaceOptions])
def test_no_flag_is_declared_twice_and_the_keyword_is_one(declared: type) -> None:
    flags = [flag for option in options_of(declared).values() for flag in option.flags.replace("/", " ").split()]
    assert len(flags) == len(set(flags))
    for name, option in options_of(declared).items():
        assert f"--{name.replace('_', '-')}" in option.flags.replace("/", " ").split()


def test_a_wrong_value_is_named_as_the_caller_names_it() -> None:
    for values, name in ((Values(), "--max-ttft"), (Values(str), "max_ttft")):
        request_of(options_of(o.OptimizeOptions), {"model": "gpt2", "mode": "inference", "max_ttft": -1.0}, values, "")
        assert values.problems == [f"{name} -1.0: must be above 0"]


# --- The public surface is typed: mypy knows what the functions return and which keywords they take ---------------------------------------


REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAM = """
import planner

result = planner.optimize("alexnet", gpus=16, tp="1..8", pp=range(1, 9), memory_limit="40 GiB")
reveal_type(result)
reveal_type(result.best)
reveal_type(result.bound)
reveal_type(planner.estimate("alexnet", gpus=2).plan.fits)
reveal_type(planner.explain("plan.yaml").best_step_time_s)
reveal_type(planner.compare("a.yaml", "b.yaml").why)
reveal_type(planner.export(result.best, "megatron").files)
reveal_type(planner.Plan.load("plan.yaml"))
reveal_type(planner.sweep("alexnet", gpus=[1, 2], cluster=["a100", "h100"]).rows)
reveal_type(planner.size("llama3-8b", tokens="1T", days=30, cluster="a100").plan("cheapest"))
planner.optimize("alexnet", gpu=16)  # wrong keyword
planner.optimize("alexnet", mode="train")  # wrong word
planner.size("alexnet", tokens=1e9).plan("cheap")  # wrong word
planner.estimate("alexnet", batch="a", seq=[1])  # wrong types
"""
REVEALED = [
    "planner.api.results.SearchResult",
    "planner.api.plans.Plan",
    "float | None",
    "bool",
    "float | None",
    "tuple[str, ...]",
    "dict[str, str]",
    "planner.api.plans.Plan",
    "list[dict[str, Any]]",
    "planner.api.plans.Plan",
]


@pytest.mark.e2e
def test_types_as_a_checker_sees_them(tmp_path: Path, new_file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    assert (REPOSITORY / "planner" / "py.typed").is_file()
    program = new_file("program.py", textwrap.dedent(PROGRAM))
    monkeypatch.setenv("MYPYPATH", str(REPOSITORY))
    out, err, _ = api.run([
        "--strict", "--follow-imports", "silent", "--config-file", "", "--ignore-missing-imports", "--no-error-summary",
        "--cache-dir", str(tmp_path / "cache"), str(program),
    ])  # fmt: skip
    assert not err
    lines = [line for line in out.splitlines() if "program.py" in line]
    notes = [line.partition('Revealed type is "')[2].rstrip('"') for line in lines if "Revealed type" in line]
    assert [note.replace("builtins.", "") for note in notes] == REVEALED
    errors = [line for line in lines if " error: " in line]
    wrong = {number for number, line in enumerate(program.read_text().splitlines(), start=1) if "# wrong" in line}
    assert {int(line.split(":")[1]) for line in errors} == wrong


# --- Values of options: every text is a value or a problem that is said, never an exception -----------------------------------------------


@given(st.text(max_size=12))
def test_values_never_raise(text: str) -> None:
    values = Values()
    assert 1 <= values.count("--n", text, most=MAX_GPUS) <= MAX_GPUS
    assert 0 < values.share("--n", text) <= 1
    assert 0 <= values.ratio("--n", text) < 1
    limit = values.seconds("--n", text)
    assert limit is None or limit > 0
    assert all(1 <= count <= MAX_GPUS for count in values.worker_counts("--n", text))
    if values.problems:
        with pytest.raises(UsageError):
            values.check()


def test_units_of_time() -> None:
    values = Values()
    texts = {"30": 30.0, "30s": 30.0, "500ms": 0.5, "2min": 120.0, "2m": 120.0, "1.5 h": 5400.0, "1e2": 100.0}
    assert {text: values.seconds("--t", text) for text in texts} == texts
    assert values.problems == []
    assert values.seconds("--t", "0.5", likely="ms") is None
    assert values.problems == ["--t 0.5: has no unit; did you mean 0.5ms?"]


def test_no_worker_count_is_a_problem() -> None:
    values = Values(str)
    assert values.worker_counts("workers", []) == ()
    assert values.problems == ["workers []: names no number"]


# --- The Python interface: examples of docs/python.md are what happens, and every public name is there and has one ------------------------


PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"


@pytest.mark.e2e
def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failures, tried = doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8")
    assert failures == 0
    assert tried > 20
    assert os.listdir(tmp_path) == ["best.yaml"]


def test_every_public_name_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    functions = {name for name in planner.__all__ if name.islower() and not name.startswith("_")}
    left_out = {name for name in functions if not name.startswith("list_") and name not in text}
    assert not left_out


def test_every_public_name_has_an_example() -> None:
    bare = [
        name
        for name in planner.__all__
        if not name.startswith("_") and ">>>" not in (getattr(planner, name).__doc__ or "")
    ]
    assert not bare


def test_examples_of_the_lists_run() -> None:
    """They are made, so a look through the module does not find them."""
    for name in planner.__all__:
        if name.startswith("list_"):
            tests = doctest.DocTestParser().get_doctest(getattr(planner, name).__doc__, {}, name, None, None)
            assert len(tests.examples) == 2
            assert doctest.DocTestRunner().run(tests).failed == 0
