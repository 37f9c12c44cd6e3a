"""Lists of plans that really differ: the best of each of the best groups, against the whole ranking of the plain search."""

from __future__ import annotations

import dataclasses

import pytest

from costmodel.mesh.plan import MeshPlan
from planner.core.request import Request
from planner.question.resolve import resolve
from planner.spaces.mesh.space import mesh_space
from strategies.mesh.search import search_model
from strategies.mesh.settings import DISTINCT
from tests.cases import mostly

QUESTIONS = [
    {"model": "bert-large", "gpus": 16, "batch": 64},
    {"model": "llama3-8b", "gpus": 24, "batch": 48, "seq": 2048},
    {"model": "mixtral-8x7b", "gpus": 32, "batch": 32, "cluster": "dgx-a100"},
]


def group_of(plan: MeshPlan) -> tuple[object, ...]:
    return tuple(getattr(plan, name) for name in DISTINCT)


@pytest.mark.exact
@mostly("exact", "question", QUESTIONS, quick=1)
@mostly("exact", "top", [3, 8], quick=1)
def test_the_best_of_the_best_groups(question: dict[str, object], top: int) -> None:
    """A plain list, long enough to hold that many groups, names them all."""
    resolved = resolve(Request(**question, top=top))  # type: ignore[arg-type]
    space = mesh_space(resolved)
    settings = space.settings()
    assert settings.distinct == DISTINCT
    found = search_model(space.model, settings).candidates
    plain = search_model(space.model, dataclasses.replace(settings, distinct=None, top=400)).candidates
    expected: dict[tuple[object, ...], float] = {}
    for candidate in plain:
        expected.setdefault(group_of(candidate.plan), candidate.score)
    assert len(expected) >= top
    assert len({group_of(candidate.plan) for candidate in found}) == len(found) == top
    assert [candidate.score for candidate in found] == pytest.approx(list(expected.values())[:top], rel=1e-8)
    assert found[0].plan == plain[0].plan  # the best is the best


def test_the_plain_list_can_be_asked_for() -> None:
    for diverse, distinct in ((None, DISTINCT), (True, DISTINCT), (False, None)):
        space = mesh_space(resolve(Request(model="bert-large", gpus=8, diverse=diverse)))
        assert space.settings().distinct == distinct
