"""The plan with a split per layer that an answer names first, and its roles."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import planner
from planner.core.objectives import compared_words
from planner.core.request import Request
from planner.report.answer import search_report
from planner.report.roles import FORGONE_WORDS
from planner.report.text import plain_text
from planner.spaces.ask import explain, optimize
from planner.spaces.base import NEARLY
from strategies.layerwise.simplest import FAMILIES_BY_SIMPLICITY, FORGONE
from strategies.layerwise.space import FAMILY_NAMES
from strategies.mesh.simplest import FORGONE as FORGONE_OVER_MESH
from strategies.serving.simplest import FORGONE as FORGONE_SERVING

ASKED = Request(model="alexnet", gpus=16, cluster="dgx-h100", batch=128, memory_reserve="5%")


@pytest.fixture(scope="module")
def answered() -> Any:
    return optimize(ASKED)


def test_a_plan_that_people_write_by_hand_comes_first(answered: Any) -> None:
    # Krizhevsky, arXiv:1404.5997: convolutions by the batch, fully connected layers by their weights.
    first, fastest = answered.best, answered.fastest
    assert (first.family, fastest.family) == ("hybrid", "mixed")
    degrees = {tuple(sorted(split.degrees)) for split in first.plan.splits if split.workers == first.workers}
    assert degrees == {(1, 1, 1, first.workers)}
    assert fastest.step_time_s < first.step_time_s <= (1 + NEARLY) * fastest.step_time_s
    assert answered.proof.bound_s == pytest.approx(fastest.step_time_s, rel=1e-9)
    assert answered.proof.proven_optimal
    assert not answered.proof.proven_top
    assert answered.forgone == ("no_mixed_splits", "one_dimension_per_layer")
    scores = [plan.score for plan in answered.plans[1:]]
    assert scores == sorted(scores)
    assert scores[0] == pytest.approx(fastest.score)
    assert len({plan.summary for plan in answered.plans}) == len(answered.plans)


def test_the_fastest_can_be_asked_for(answered: Any) -> None:
    found = optimize(dataclasses.replace(ASKED, fastest=True))
    assert found.best.plan == answered.fastest.plan
    assert found.fastest is None
    assert found.proof.proven_top


def test_a_family_that_is_asked_for_is_not_simpler() -> None:
    found = optimize(dataclasses.replace(ASKED, family="mixed"))
    assert found.fastest is None
    assert {plan.family for plan in found.plans} == {"mixed"}


def test_the_best_of_every_family_begins_with_the_simplest(answered: Any) -> None:
    found = optimize(dataclasses.replace(ASKED, diverse=True))
    assert found.best.plan == answered.best.plan
    families = [plan.family for plan in found.plans]
    assert families[:2] == ["hybrid", "mixed"]
    assert len(set(families)) == len(families)


def test_the_plan_to_run_is_the_one_that_is_explained(answered: Any) -> None:
    found = explain(ASKED)
    assert found.ranked.summary == answered.best.summary
    assert found.best is not None
    assert found.best.score == pytest.approx(answered.fastest.score)


def test_the_answer_says_what_others_cost(answered: Any) -> None:
    said = " ".join(plain_text(search_report(answered).blocks(), None).split())
    assert "Fastest: 0.97 % faster (" in said
    assert "plan 2; --fastest names it first" in said
    plain, every = answered.baselines["data_parallel"], answered.baselines["data_parallel_all"]
    for baseline, title in ((plain, "Data parallelism"), (every, "The same on all GPUs")):
        assert f"{title}: {compared_words(baseline.score / answered.best.score, 'step_time')} (" in said
    assert "within 5 % no plan was found that takes fewer GPUs" in said
    document = search_report(answered).data()
    assert document["fastest"]["family"] == "mixed"
    assert [entry["roles"] for entry in document["roles"]] == [
        ["fewest_gpus"],
        ["fastest"],
        ["data_parallel"],
        ["data_parallel_all"],
    ]


def test_a_batch_without_so_many_parts_is_a_reason() -> None:
    found = optimize(dataclasses.replace(ASKED, batch=8))
    said = " ".join(plain_text(search_report(found).blocks(), None).split())
    assert "The same on all GPUs: a batch of 8 has no 16 parts" in said


def test_no_fewer_gpus_are_nearly_as_fast(answered: Any) -> None:
    (role,) = [role for role in answered.roles if role.name == "fewest_gpus"]
    assert role.plan.plan == answered.best.plan
    fewer = optimize(dataclasses.replace(ASKED, gpus=answered.best.workers - 1, top=1))
    assert fewer.proof.bound_s > answered.fastest.step_time_s / 0.95


def test_your_plan_stands_beside_the_best(tmp_path: Any) -> None:
    planner.estimate("alexnet", gpus=8, cluster="dgx-h100", family="data").save(tmp_path / "plan.yaml")
    found = planner.optimize(plan=tmp_path / "plan.yaml")
    given = next(entry for entry in found.raw.roles if entry.name == "given")
    assert given.plan.family == "data"


def test_every_name_has_words_and_every_family_a_place() -> None:
    assert {*FORGONE, *FORGONE_OVER_MESH, *FORGONE_SERVING} == set(FORGONE_WORDS)
    assert sorted(FAMILIES_BY_SIMPLICITY) == sorted(FAMILY_NAMES)
