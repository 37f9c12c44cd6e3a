"""Plans between the tokens that a user sees and those that a GPU makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.core.request import Request, TimeLimit
from planner.question.resolve import resolve
from planner.spaces.serving.front import speed_front
from planner.spaces.serving.space import ServingPlanSpace, serving_space
from strategies.mesh.settings import Bounds
from strategies.serving.search import outlines


def space_of(**given: object) -> ServingPlanSpace:
    known = {"prompt_tokens": 300, "output_tokens": 40, "disaggregate": "no", **given}
    return serving_space(resolve(Request(model="llama3-8b", gpus=2, mode="inference", **known)))


def every_plan(space: ServingPlanSpace) -> tuple[np.ndarray, np.ndarray]:
    """Time per token and tokens/s per GPU of all plans with up to 64 sequences that fit."""
    outline = outlines(space.shape, space.model.workload.prompt_tokens, space.settings())
    batches = []
    for places in range(1, 65):
        some = outline.take(outline.prefill_batch <= places)
        batches.append(replace(some, max_batch=np.full(len(some), places)))
    times, rates = [], []
    for batch in batches:
        fits = space.model.memory_bytes(batch) <= space.capacity_bytes
        costs = space.model.evaluate(batch.take(fits))
        times.append(costs.tpot_s)
        rates.append(costs.output_tokens_per_s / batch.take(fits).workers)
    return np.concatenate(times), np.concatenate(rates)


@pytest.mark.exact
def test_no_plan_of_all_beats_one_of_the_front_on_both() -> None:
    space = space_of(serving_degrees={"max_batch": Bounds(high=64)})
    front = speed_front(space, lambda _message, _share: None)
    times, rates = every_plan(space)
    assert len(front) >= 6
    for plan in front:
        better = (times <= plan["tpot_s"] * (1 - 1e-9)) & (rates >= plan["output_tokens_per_s_per_gpu"] * (1 + 1e-9))
        assert not better.any(), plan.summary
    assert min(plan["tpot_s"] for plan in front) == pytest.approx(times.min())
    assert max(plan["output_tokens_per_s_per_gpu"] for plan in front) == pytest.approx(rates.max())


def test_the_front_keeps_the_limits_of_the_question() -> None:
    free, limited = (
        speed_front(space_of(**limits), lambda _message, _share: None)
        for limits in ({}, {"max_tpot": TimeLimit(12e-3), "max_ttft": TimeLimit(0.1)})
    )
    assert max(plan["tpot_s"] for plan in free) > 12e-3
    assert all(plan["tpot_s"] <= 12e-3 and plan["ttft_s"] <= 0.1 for plan in limited)
    assert len(limited) > 2


@pytest.mark.parametrize("given", [{"rate_per_s": 1.0}, {"output_tokens": 1}])
def test_there_is_none_without_a_choice_of_speed(given: dict[str, object]) -> None:
    assert speed_front(space_of(**given), lambda _message, _share: None) == []
