"""A row is costed under the schedule that it states, or skipped with the reason."""

from __future__ import annotations

import pytest

from tests.planner.measurements.single_rows import plan_of, run, seconds

PIPELINE = {"pp": "4", "dp": "4"}


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zero_bubble"])
def test_the_stated_schedule_counts(name: str) -> None:
    assert plan_of(**PIPELINE, schedule=name).schedule == name
    assert plan_of(**PIPELINE, schedule=name, micro_batch="").schedule == name
    assert plan_of(schedule=name, pp="1", dp="16").schedule == "1f1b"


def test_chunks_are_interleaved_where_no_schedule_is_stated() -> None:
    for cells in ({"vpp": "2"}, {"vpp": "2", "schedule": "interleaved"}, {"schedule": "interleaved"}):
        plan = plan_of(**PIPELINE, **cells)
        assert (plan.schedule, plan.vpp) == ("interleaved", 2)
    assert seconds(run(**PIPELINE, schedule="zero_bubble")) < seconds(run(**PIPELINE))


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"schedule": "gpipe", "vpp": "2"}, "schedule gpipe needs vpp 1"),
        ({"schedule": "1f1b", "vpp": "2"}, "schedule 1f1b needs vpp 1"),
        ({"schedule": "zero_bubble", "vpp": "2"}, "schedule zero_bubble needs vpp 1"),
        (
            {"schedule": "interleaved", "vpp": "1"},
            "schedule interleaved needs vpp of 2 or more and micro-batches in whole groups of pp",
        ),
        (
            {"schedule": "interleaved", "vpp": "2", "global_batch": "48"},
            "schedule interleaved needs vpp of 2 or more and micro-batches in whole groups of pp",
        ),
        (
            {"schedule": "zero_bubble", "framework": "megatron-lm"},
            "schedule zero_bubble: pipelines of Megatron-LM (Megatron Core) run 1f1b or interleaved",
        ),
    ],
)
def test_a_schedule_that_cannot_run_is_a_reason_to_skip(cells: dict[str, str], reason: str) -> None:
    assert run(**PIPELINE, **cells).skipped == reason
