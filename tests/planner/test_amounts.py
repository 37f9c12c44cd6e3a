"""Large numbers with suffixes, the same in every command."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from planner.api.options import OptimizeOptions, options_of
from planner.api.requests import request_of
from planner.api.values import Values
from planner.cli import run
from planner.core.errors import UsageError
from planner.core.request import Request


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("4096", 4096),
        (" 7 ", 7),
        ("0.002M", 2000),
        ("1.28M", 1_280_000),
        ("500k", 500_000),
        ("1B", 10**9),
        ("1g", 10**9),
    ],
)
def test_counts(text: str, number: int) -> None:
    values = Values()
    assert values.count("--batch", text) == number
    values.check()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1.5", "must be a whole number"),
        ("0.5k5", "must be a whole number"),
        ("1.2345k", "must be a whole number"),
        ("1e3", "must be a whole number"),
        ("8k", "may be 8000 or 8192"),
        ("1K", "may be 1000 or 1024"),
        ("2T", "must be at most"),
        ("12 000", "write 12000"),
    ],
)
def test_what_is_no_count(text: str, words: str) -> None:
    values = Values()
    values.count("--batch", text)
    assert len(values.problems) == 1
    assert words in values.problems[0]


def test_scale_and_size_read_samples_alike(capsys: pytest.CaptureFixture[str]) -> None:
    hours = []
    for text in ("1.28M", "1280000", "1.28e6"):
        assert run(["scale", "alexnet", "--workers", "1", "--epochs", "90", "--samples", text, "--json"]) == 0
        hours.append(json.loads(capsys.readouterr().out)["points"][0]["hours"])
    assert hours[0] == hours[1] == hours[2] > 0
    assert run(["scale", "alexnet", "--workers", "1", "--epochs", "90", "--samples", "many"]) == 2
    assert "such as 1T" in capsys.readouterr().err


def asked(given: dict[str, Any], values: Values) -> Request:
    return request_of(options_of(OptimizeOptions), given, values, "")


def test_a_batch_in_tokens_is_one_in_samples() -> None:
    values = Values()
    request = asked({"model": "gpt2", "batch": "64Ki tokens"}, values)
    values.check()
    assert request.batch == 64  # of 1,024 positions each, as the network's file says
    values = Values()
    assert asked({"model": "gpt2", "seq": "512", "batch": "32768 tokens"}, values).batch == 64
    values.check()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "gpt2", "batch": "4M tokens"}, "is 3,906.25 samples of 1,024 positions, not a whole number; --batch 4096 is"),
        ({"model": "gpt2", "batch": "3000 tokens"}, "--batch 2 is 2,048 tokens"),
        ({"model": "gpt2", "batch": "500 tokens"}, "--batch 1 is 1,024 tokens"),
        ({"model": "alexnet", "batch": "1M tokens"}, "samples of 'alexnet' have no tokens; give samples"),
        ({"batch": "1M tokens"}, "tokens need --seq, or a network"),
        ({"model": "gpt2", "batch": "1G tokens"}, "is 976,562.50 samples of 1,024 positions, not a whole number; --batch 1048576 is"),
        ({"model": "gpt2", "batch": "0 tokens"}, "must be a whole number"),
    ],
)  # fmt: skip
def test_tokens_that_are_no_batch(options: dict[str, Any], words: str) -> None:
    values = Values()
    asked(options, values)
    with pytest.raises(UsageError, match=re.escape(words)):
        values.check()
