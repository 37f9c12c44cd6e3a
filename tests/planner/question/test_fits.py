"""P(fits) in answers: whose errors count, what limits replace, and a search against the list that it should be a part of."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from costmodel.uncertainty.limits import MemoryErrors
from planner import Plan, estimate, optimize
from planner.core.errors import PlannerError
from planner.core.request import Request
from planner.files.loading import load_calibration
from planner.question.resolve import resolve

PLAN: dict[str, Any] = {"gpus": 8, "tp": 2, "pp": 1, "micro_batch": 1, "batch": 64}
FULL: dict[str, Any] = {
    "gpus": 2,
    "cluster": "dgx-h100",
    "batch": 1024,
    "tp": 1,
    "pp": 1,
    "micro_batch": "32,64,128",
    "recompute": "none",  # as much is recomputed or offloaded as a limit needs: other plans of other limits
    "offload": "none",
}


def errors_of(**changes: Any) -> MemoryErrors | None:
    return resolve(Request(model="llama3-8b", batch=8, cluster="dgx-h100", **changes)).setting.memory_errors


def test_errors_are_those_of_the_framework_or_of_all_others() -> None:
    known = load_calibration().calibration.memory_errors
    assert errors_of(framework="nanotron") is known["nanotron"] or errors_of(framework="nanotron") == known["nanotron"]
    assert errors_of(framework="megatron-lm") == known["megatron-bridge"]  # as its error bars
    assert errors_of(framework="torchtitan") == errors_of() == known["others"]
    assert errors_of(mode="inference") is None


def test_chance_is_the_normal_distribution_at_the_room_that_is_left() -> None:
    plan = estimate("llama3-8b", framework="nanotron", **PLAN).plan
    known = load_calibration().calibration.memory_errors["nanotron"]
    z = (math.log(81559 * 2**20 / plan.memory_bytes_per_gpu) - known.mean) / known.log_sd
    assert plan.fits_probability == pytest.approx(0.5 * math.erfc(-z / math.sqrt(2.0)), rel=1e-9)


@pytest.mark.exact
def test_a_search_finds_the_plans_of_the_whole_list_that_are_sure_enough() -> None:
    def found(**limit: Any) -> list[tuple[float, float]]:
        plans = optimize("bert-large", **FULL, **limit, top=400, diverse=False).plans
        return sorted((plan.step_time_s, plan.fits_probability or 0.0) for plan in plans)

    everything = found(memory_reserve=0)
    chances = sorted({chance for _, chance in everything})
    assert len(chances) > 5
    for chance in (chances[1], chances[len(chances) // 2]):
        assert chances[0] < chance
        expected = [plan for plan in everything if plan[1] >= chance]
        np.testing.assert_allclose(found(memory_confidence=chance * (1 - 1e-9)), expected, rtol=1e-9)


@pytest.mark.parametrize("given", [{"memory_limit": "60 GiB"}, {"memory_reserve": "10%"}])
def test_a_limit_on_the_predicted_memory_takes_the_place_of_the_chance(given: dict[str, str]) -> None:
    capacity, usual = (
        81559 * 2**20,
        load_calibration().calibration.memory_errors["others"].limit_bytes(81559 * 2**20, 0.6),
    )
    limit = {"memory_limit": 60 * 2**30, "memory_reserve": 0.9 * capacity}[next(iter(given))]

    def usable(**more: Any) -> float:
        return resolve(Request(model="bert-large", cluster="dgx-h100", **given, **more)).setting.memory_capacity_bytes

    assert usable() == pytest.approx(limit)
    assert usable(memory_confidence=0.6) == pytest.approx(min(limit, usual))


def test_a_plan_file_keeps_the_chance(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    estimate("bert-large", gpus=2, tp=1, pp=1, cluster="dgx-h100", memory_confidence=0.99).plan.save(path)
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["memory_confidence"] == 0.99
    plan = Plan.load(path)
    assert plan.memory_capacity_bytes < 0.8 * 81559 * 2**20


@pytest.mark.parametrize("chance", [0, 1, 95, "100%", "-5%", "nan", "sure"])
def test_other_numbers_are_no_chances(chance: object) -> None:
    with pytest.raises(PlannerError, match="memory_confidence"):
        optimize("bert-large", gpus=2, memory_confidence=chance)


@pytest.mark.parametrize("asked", [{"mode": "inference"}, {"cost_model": "paleo", "model": "alexnet"}])
def test_a_chance_that_nobody_knows_is_refused(asked: dict[str, Any]) -> None:
    model = asked.pop("model", "llama3-8b")
    with pytest.raises(PlannerError, match="memory_confidence"):
        optimize(model, gpus=2, memory_confidence=0.9, **asked)
