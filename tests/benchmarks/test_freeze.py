"""The freeze: what counts as a difference between two records, and that plans are drawn alike each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.freeze import adapter, plans, questions
from benchmarks.freeze.compare import Allowed, compare, differences, read_allowed, report
from benchmarks.freeze.record import run_commands


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (1.0, 1.0 + 5e-10, []),
        (1.0, 1.0 + 2e-9, ["changed"]),
        (1e-30, 2e-30, ["changed"]),
        (0.0, 1e-300, ["changed"]),
        (1, 1.0, []),
        (1, True, ["changed"]),
        (True, True, []),
        (True, False, ["changed"]),
        ([], {}, ["changed"]),
        (8, 9, ["changed"]),
        (None, 0, ["changed"]),
        ("a", "b", ["changed"]),
        ("sha " + "0" * 64, "sha " + "f" * 64, []),
        ([1, 2], [1], ["missing"]),
        ([1], [1, 2], ["added"]),
        ({"x": 1}, {"y": 1}, ["missing", "added"]),
        ({"wall_s": 1.0}, {"wall_s": 2.0}, []),
    ],
)
def test_what_is_a_difference(before: Any, after: Any, found: list[str]) -> None:
    assert [one.kind for one in differences({"answers/x": before}, {"answers/x": after})] == found


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(content))
    return folder


def test_differences_are_grouped_and_expected_ones_set_apart(tmp_path: Path, new_file: Any) -> None:
    before = written(
        tmp_path / "a", "answers/one", {"plans": [{"step_time_s": 1.0, "old": 1}, {"step_time_s": 2.0, "old": 1}]}
    )
    after = written(tmp_path / "b", "answers/one", {"plans": [{"step_time_s": 1.1}, {"step_time_s": 2.6}]})
    allowing = new_file("allowed.yaml", "- {path: 'answers/*.plans.*.old', reason: it is gone}\n")
    text, unexpected = report(compare(before, after), read_allowed(allowing), examples=1)
    assert unexpected == 2
    assert text.splitlines() == [
        "     2 changed: answers/*.plans.*.step_time_s, by up to 0.3 of the first",
        "         answers/one.plans.0.step_time_s: 1.0 -> 1.1",
        "     2 expected: answers/*.plans.*.old: it is gone",
        "2 differences, 2 expected ones aside",
    ]
    assert report(compare(before, before), []) == ("0 differences, 0 expected ones aside", 0)
    assert "     0 expected: nothing.*: unused" in report([], [Allowed("nothing.*", "unused")])[0]


def test_the_freeze_is_as_large_as_it_has_to_be() -> None:
    jobs = questions.jobs()
    counts = {
        prefix: sum(len(job.commands) for job in jobs if job.name.startswith(prefix)) for prefix in ("answers", "bad")
    }
    exports = [
        command for job in jobs for command in job.commands if command.startswith("export ") and "exports/" in job.name
    ]
    assert counts["answers"] >= 80
    assert counts["bad"] >= 60
    assert len(exports) >= 40
    assert sum(count for _, count in plans.PROBLEMS.values()) >= 5000


@pytest.mark.parametrize("name", ["layers-alexnet-paleo", "mesh-llama3-8b-fp8", "mixed-bert", "serving-llama3-8b"])
def test_most_plans_are_legal_and_their_parts_add_up(name: str) -> None:
    """The parts of the time of a plan add up to the time that it takes, in each space."""
    drawn = plans.draw(name, adapter.layers_of)[:40]
    assert drawn == plans.draw(name, adapter.layers_of)[:40]
    figures = [one for one in adapter.evaluate(plans.PROBLEMS[name][0], drawn) if one is not None]
    assert len(figures) > 25
    for one in figures:
        total, parts = _time_of(one)
        assert sum(parts) == pytest.approx(total, rel=1e-9)


def _time_of(figures: dict[str, Any]) -> tuple[float, list[float]]:
    if "tpot_s" in figures:
        return figures["tpot_s"], list(figures["tpot_parts"].values())
    if "time_parts" in figures:
        return figures["step_time_s"], list(figures["time_parts"].values())
    names = ("compute_s", "update_s", "reshard_s", "exposed_exchange_s", "bubble_s")
    return figures["step_time_s"], [figures[name] for name in names]


def test_a_job_keeps_code_answer_message_and_files() -> None:
    bad = run_commands(questions.Job("bad", ("optimize bad_shapes.yaml --gpus 4",)))
    (one,) = bad["commands"].values()
    assert (one["code"], one["stdout"], bad["files"]) == (2, "", {})
    assert one["stderr"].startswith("bad_shapes.yaml:6:")
    commands = (
        "estimate alexnet --gpus 4 --family data --json --export plan.yaml",
        "export plan.yaml --to torch -o run",
    )
    good = run_commands(questions.Job("good", commands))
    assert [one["code"] for one in good["commands"].values()] == [0, 0]
    assert next(iter(good["commands"].values()))["stdout"]["gpus"] == 4
    assert {"plan.yaml", "run/plan.py"} <= good["files"].keys()
