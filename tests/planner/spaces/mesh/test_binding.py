"""What binds the first plan: every note names a plan that exists, and a whole search agrees."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from planner.core.notes import Note
from planner.core.request import Request
from planner.question.resolve import resolve
from planner.spaces.base import space_of
from planner.spaces.mesh.binding import binding_notes
from planner.spaces.mesh.space import MeshPlanSpace
from strategies.mesh.settings import Bounds, MeshRestriction


def space(**question: Any) -> MeshPlanSpace:
    found = space_of(resolve(Request(model="gpt3-125m", **question)))
    assert isinstance(found, MeshPlanSpace)
    return found


def notes_of(asked: MeshPlanSpace) -> tuple[float, dict[str, Note]]:
    """The best step, and the notes by code."""
    settings = dataclasses.replace(asked.settings(), top=1, distinct=None)
    ranked = asked.rank([candidate.plan for candidate in asked.outcome(settings).candidates])
    return ranked[0].step_time_s, {note.code: note for note in binding_notes(asked, asked.settings(), ranked)}


def best_s(asked: MeshPlanSpace, **limits: Any) -> float:
    settings = dataclasses.replace(asked.settings(), top=1, distinct=None, **limits)
    return asked.outcome(settings).candidates[0].step_time_s


def test_the_batch() -> None:
    step_s, found = notes_of(space(gpus=16, batch=2))
    values = found["batch_limits_gpus"].values
    assert (values["batch"], values["gpus"], values["idle"]) == (2, 16, 8)
    twice_s = best_s(space(gpus=16, batch=4))
    assert values["other_batch"] == 4
    assert twice_s <= values["step_time_s"] <= 1.03 * twice_s
    assert values["speedup"] == pytest.approx(2 * step_s / values["step_time_s"])


def test_nothing_binds() -> None:
    assert notes_of(space(gpus=16, batch=512))[1] == {}


def test_a_rule_of_the_framework() -> None:
    asked = space(gpus=16, batch=4, framework="accelerate")
    step_s, found = notes_of(asked)
    note = found["rule_binds"]
    assert best_s(asked, obeys_framework=False) <= note.values["step_time_s"] < 0.97 * step_s
    assert "has no pipeline parallelism" in note
    assert note.values["saved"] == pytest.approx(1 - note.values["step_time_s"] / step_s)


def test_options_and_the_memory_limit() -> None:
    mesh = MeshRestriction(degrees={"tp": Bounds(values=(4,)), "zero_stage": Bounds(values=(1,))})
    asked = space(gpus=8, batch=16, mesh=mesh)
    step_s, found = notes_of(asked)
    values = found["option_binds"].values
    assert values["option"] == "--tp 4"  # --zero 1 costs nothing
    without = MeshRestriction(degrees={"zero_stage": Bounds(values=(1,))})
    assert best_s(asked, restriction=without) <= values["step_time_s"] < 0.97 * step_s
    limited = notes_of(space(gpus=8, batch=64, memory_limit="4 GiB"))[1]["option_binds"].values
    assert limited["option"] == "--memory-limit 4 GiB"
    assert best_s(space(gpus=8, batch=64)) <= limited["step_time_s"]
    surely = notes_of(space(gpus=8, batch=64, memory_limit="4 GiB", memory_confidence=0.99))[1]["option_binds"].values
    assert surely["option"] == "--memory-limit 4 GiB"


def test_plans_that_are_not_ranked_by_time_have_no_such_notes() -> None:
    asked = space(gpus=16, batch=2, objective="gpu_hours")
    assert notes_of(asked)[1] == {}
