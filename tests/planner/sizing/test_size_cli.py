"""`planner size` as people run it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from planner.cli import run
from planner.core.request import Request
from planner.schema.results import SizeDocument
from planner.sweeping.answer import search
from tests.cases import mostly

GOAL = ("llama2-7b", "--tokens", "10B", "--batch", "256", "--max-gpus", "64", "--cluster", "h100")


def _document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, object]:
    assert run(["size", *arguments, "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    SizeDocument.model_validate(document)
    return document  # type: ignore[no-any-return]


@pytest.mark.exact
def test_the_fewest_gpus_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    document = _document(capsys, *GOAL, "--days", "1", "--price", "2", "--power", "700 W,70 W")
    best = document["least_gpus"]
    assert isinstance(best, dict)
    steps = math.ceil(10e9 / (256 * 4096))

    def days(gpus: int) -> float:
        request = Request(model="llama2-7b", cluster="dgx-h100", gpus=gpus, batch=256)
        return steps * search(request).plans[0].step_time_s / 86400

    least = min(n for n in (8, 16, 24, 32, 40, 48, 56, 64) if days(n) <= 1)
    assert best["gpus"] == least
    assert best["steps"] == steps
    assert best["time_s"] == pytest.approx(days(least) * 86400)
    assert best["money"] == pytest.approx(least * days(least) * 24 * 2)
    assert best["proven_least_gpus"] is True
    assert "the deadline" in str(best["binds"])
    assert isinstance(document["least_energy"], dict)
    assert document["thriftiest"] == document["least_energy"]
    assert document["nearest"] is None


@pytest.mark.exact
def test_the_fewest_gpus_that_are_sure(capsys: pytest.CaptureFixture[str]) -> None:
    """The deadline is just kept by the prediction, so that only more GPUs keep it with 90 % probability."""
    tried = _document(capsys, *GOAL, "--days", "1")["clusters"][0]["tried"]  # type: ignore[index]
    eight = next(t for t in tried if t["gpus"] == 8)
    assert eight["time_low_s"] < eight["time_s"] < eight["time_high_s"]
    limit = f"{eight['time_s'] * 1.01 / 86400:.6f}"
    found = _document(capsys, *GOAL, "--days", limit)
    least, sure = found["least_gpus"], found["least_gpus_90"]
    assert least["gpus"] == 8  # type: ignore[index]
    assert least["meets_90"] is False  # type: ignore[index]
    assert sure["gpus"] == 16  # type: ignore[index]
    assert sure["meets_90"] is True  # type: ignore[index]
    assert "may take" in str(sure["binds"])  # type: ignore[index]
    assert run(["size", *GOAL, "--days", limit]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "for 90 % probability plan with 16 GPUs" in text
    assert "not with 90 % probability" in text


@pytest.mark.exact
def test_goodput_lengthens_the_training(capsys: pytest.CaptureFixture[str]) -> None:
    whole = _document(capsys, *GOAL, "--days", "400")["cheapest"]
    half = _document(capsys, *GOAL, "--days", "400", "--goodput", "50%")["cheapest"]
    assert isinstance(whole, dict)
    assert isinstance(half, dict)
    assert half["money"] == pytest.approx(2 * whole["money"])


@pytest.mark.exact
def test_nothing_will_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["size", *GOAL, "--days", "0.01", "--budget", "100", "--json"]) == 1
    out, errors = capsys.readouterr()
    document = json.loads(out)
    SizeDocument.model_validate(document)
    assert document["least_gpus"] is None
    assert document["nearest"]["gpus"] == 64
    assert "the nearest miss is 64 GPUs of dgx-h100" in errors
    assert " late" in errors
    assert " over the budget" in errors
    assert document["clusters"][0]["least_money"] > 100


@pytest.mark.exact
def test_the_exported_plan_is_the_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    best = _document(capsys, *GOAL, "--days", "1", "--export", str(file))["least_gpus"]
    assert isinstance(best, dict)
    assert run(["estimate", "--plan", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == pytest.approx(best["step_time_s"])


@pytest.mark.exact
@mostly("exact", "form", ["table", "markdown", "csv", "yaml"], quick=1)
def test_every_form(capsys: pytest.CaptureFixture[str], form: str) -> None:
    arguments = ("alexnet", "--samples", "1.28M", "--epochs", "90", "--days", "2", "--max-gpus", "8")
    assert run(["size", *arguments, "--cluster", "dgx1-v100", "--format", form]) == 0
    out = capsys.readouterr().out
    assert "dgx1-v100" in out
    if form == "table":
        assert "Fewest GPUs: " in out
        assert "3.06 USD per GPU and hour" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("alexnet", "--days", "1"), "--tokens: is missing"),
        (("alexnet", "--samples", "1M"), "--days, --budget: give at least one"),
        (("alexnet", "--tokens", "1T", "--days", "1"), "is no sequence"),
        (("llama2-7b", "--tokens", "lots", "--days", "1"), "--tokens lots"),
        (("llama2-7b", "--tokens", "1T", "--samples", "1M", "--days", "1"), "choose one"),
        (("alexnet", "--samples", "1M", "--budget", "1k", "--cluster", "titan"), "states a price"),
        (
            ("alexnet", "--samples", "1M", "--days", "1", "--cluster", "a100,h100", "--price", "2"),
            "about one kind of GPU",
        ),
        (("alexnet", "--samples", "1M", "--days", "1", "--cluster", "a100-v100"), "several kinds of GPUs"),
        (("alexnet", "--epochs", "3", "--days", "1"), "--epochs: needs --samples"),
    ],
)
def test_bad_usage(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert run(["size", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.exact
def test_the_steps_are_stated_with_what_the_batch_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    """How many GPUs have work depends on the batch: who acts on an answer has to see it."""
    asked = ("llama2-7b", "--tokens", "10B", "--max-gpus", "8", "--cluster", "h100", "--days", "0.01")
    assert run(["size", *asked]) == 1
    captured = capsys.readouterr()
    said = " ".join(captured.out.split())
    assert "usual for the network; --batch sets another" in said
    assert "more samples per step" in said
    assert "times the deadline" in said
    assert "000 %" not in said
    assert run(["size", *asked, "--batch", "256"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert f"{math.ceil(10e9 / (256 * 4096)):,} with a global batch of 256 samples of 4,096 positions" in said
    assert "usual" not in said
