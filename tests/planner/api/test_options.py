"""The declarations of options hold together; a word of the command line and the value of Python make the same request."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest

from planner.api import options as o
from planner.api.calls import given_in_python
from planner.api.options import options_of
from planner.api.requests import request_of
from planner.api.values import Values
from planner.core.request import Request
from planner.placement.question import PlaceRequest

CLASSES = (o.OptimizeOptions, o.EstimateOptions, o.ExplainOptions, o.ScaleOptions, o.SweepOptions, o.SizeOptions)
# What is no field of a request: it is read into the limits of a plan, or asks for a study.
PARTS = {"degrees", "names", "flags", "serving_degrees"}
STUDIES = {
    "workers", "weak", "strong", "epochs", "samples", "jobs", "dask", "fresh", "tokens", "days", "budget", "max_gpus", "goodput", "offload",
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


def test_every_option_of_a_placement_is_a_field() -> None:
    fields = {field.name for field in dataclasses.fields(PlaceRequest)} | {"contiguous"}
    assert {option.field or name for name, option in options_of(o.PlaceOptions).items()} <= fields


@pytest.mark.parametrize("declared", [*CLASSES, o.PlaceOptions])
def test_no_flag_is_declared_twice_and_the_keyword_is_one(declared: type) -> None:
    flags = [flag for option in options_of(declared).values() for flag in option.flags.replace("/", " ").split()]
    assert len(flags) == len(set(flags))
    for name, option in options_of(declared).items():
        assert f"--{name.replace('_', '-')}" in option.flags.replace("/", " ").split()


def test_a_wrong_value_is_named_as_the_caller_names_it() -> None:
    for values, name in ((Values(), "--max-ttft"), (Values(str), "max_ttft")):
        request_of(options_of(o.OptimizeOptions), {"model": "gpt2", "mode": "inference", "max_ttft": -1.0}, values, "")
        assert values.problems == [f"{name} -1.0: must be above 0"]
