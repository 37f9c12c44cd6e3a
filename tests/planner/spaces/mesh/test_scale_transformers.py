"""Scaling curves of transformers: every point is what `planner optimize` finds on that many GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from planner.cli import run
from planner.core.request import Request
from planner.spaces.ask import optimize

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def curve(capsys: pytest.CaptureFixture[str]) -> Ask:
    def ask(*arguments: str) -> dict[str, Any]:
        assert run(["scale", *arguments, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert isinstance(found, dict)
        return found

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


def test_nothing_fits_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scale", "llama3-70b", "--batch", "8", "--gpus", "1,2"]) == 1
    err = capsys.readouterr().err
    assert "nearest miss" in err
    assert "it fits" in err


def test_degrees_can_be_fixed(curve: Ask) -> None:
    found = curve("llama3-8b", "--batch", "16", "--gpus", "4,8", "--tp", "4")
    assert all(point["summary"].startswith("tp 4") for point in found["points"])


def test_other_families_and_networks_are_as_before(curve: Ask) -> None:
    assert curve("alexnet", "--gpus", "1,2")["family"] == "data"
    found = curve("bert-large", "--workers", "1,2", "--batch", "8", "--family", "data")
    assert found["family"] == "data"
    assert found["points"][1]["summary"] == "data x2"


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["scale", "alexnet", "--family", "mesh"]) == 2
    assert "no repeated blocks with attention" in capsys.readouterr().err
    assert run(["scale", "llama3-8b", "--gpus", "1,x"]) == 2
    assert "must be a whole number" in capsys.readouterr().err
