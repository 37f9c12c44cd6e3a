"""Which misspelt names get a suggestion: the nearest name where it is near, none where it would be silly."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.core.errors import UnknownName, did_you_mean

KEYS = [
    "batch",
    "count",
    "data",
    "gpus",
    "kernel",
    "layers",
    "ring",
    "same",
    "seq",
    "sgd",
    "stride",
    "tp",
    "zero_stage",
]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("smae", "same"),  # exchanged
        ("dta", "data"),  # missing
        ("gqus", "gpus"),  # wrong
        ("rinng", "ring"),  # twice
        ("sgb", "sgd"),  # one of three
        ("batch_size", "batch"),  # a longer name of the same
        ("num_gpus", "gpus"),
        ("seq_len", "seq"),
        ("KERNAL", "kernel"),
        ("zero", "zero_stage"),
    ],
)
def test_a_near_name_is_suggested(written: str, meant: str) -> None:
    assert did_you_mean(written, KEYS) == f"; did you mean '{meant}'?"


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("Frobnicate", ["Concat", "Convolution", "Pooling"]),
        ("--html", ["--help", "--quiet", "--json"]),
        ("--foo", ["--fix", "--top"]),
        ("stripes", ["string"]),
    ],
)
def test_a_far_name_is_not(written: str, known: list[str]) -> None:
    assert did_you_mean(written, known) == ""
    assert "did you mean" not in str(UnknownName(kind="thing", name=written, known=known))


def test_options_are_compared_without_their_dashes() -> None:
    assert did_you_mean("--bacth", ["--batch", "--best"]) == "; did you mean '--batch'?"
    assert did_you_mean("--", ["--batch"]) == ""


@given(st.text(string.ascii_lowercase, min_size=4, max_size=12), st.data())
def test_one_letter_too_few_or_too_many_is_always_seen(name: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(name) - 1))
    for written in (name[:place] + name[place + 1 :], name[:place] + "_" + name[place:]):
        assert did_you_mean(written, [name, "7" * 20]) == f"; did you mean '{name}'?"
