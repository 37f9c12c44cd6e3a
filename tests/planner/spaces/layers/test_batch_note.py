"""What a split per layer says of a batch that leaves GPUs idle: a search at twice the batch agrees."""

from __future__ import annotations

import pytest

from planner.core.answer import Answer
from planner.core.request import Request
from planner.spaces.ask import optimize


def asked(batch: int, **more: object) -> Answer:
    return optimize(Request(model="resnet18", gpus=8, batch=batch, mode="inference", **more))  # type: ignore[arg-type]


def test_twice_the_batch_uses_more_gpus() -> None:
    answer, twice = asked(2), asked(4, family="data")
    values = next(note.values for note in answer.notes if getattr(note, "code", "") == "batch_limits_gpus")
    assert values["other_batch"] == 4
    assert values["idle"] == 8 - answer.best.workers
    assert values["step_time_s"] == pytest.approx(twice.best.step_time_s)
    assert values["plan"] == twice.best.summary
    assert twice.best.workers > answer.best.workers
    assert values["speedup"] == pytest.approx(2 * answer.best.step_time_s / twice.best.step_time_s)


def test_nothing_is_said_where_no_gpu_is_idle_or_the_plan_is_fixed() -> None:
    for answer in (asked(8), asked(2, family="data")):
        assert all(getattr(note, "code", "") != "batch_limits_gpus" for note in answer.notes)
