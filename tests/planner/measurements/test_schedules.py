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
    for cells in ({"vpp": "2"}, {"vpp": "2", "schedule": "interleaved"}):
        plan = plan_of(**PIPELINE, **cells)
        assert (plan.schedule, plan.vpp) == ("interleaved", 2)
    assert plan_of(**PIPELINE, schedule="zb_v").vpp == 2
    assert seconds(run(**PIPELINE, schedule="zero_bubble")) < seconds(run(**PIPELINE))


NEMO = {**PIPELINE, "framework": "megatron-bridge", "recompute": "none", "gpus_per_node": "8"}


def test_chunks_that_nobody_states_are_the_habit_of_the_framework() -> None:
    """32 blocks on 4 ranks: 2, 4 or 8 chunks each, or none; the interval reaches from the fastest to the slowest."""
    times = {v: seconds(run(**NEMO, vpp=str(v))) for v in (1, 2, 4, 8)}
    (found,) = run(**NEMO).comparisons
    assert found.predicted_s == min(times.values())
    assert found.slowest == pytest.approx(max(times.values()) / min(times.values()))
    assert found.plan is not None
    assert times[found.plan.vpp] == found.predicted_s
    assert found.plan.vpp > 1
    assert plan_of(**{**NEMO, "global_batch": "48"}).vpp > 1  # 6 micro-batches on 4 ranks: one group
    (interleaved,) = run(**PIPELINE, schedule="interleaved").comparisons
    others = [seconds(run(**PIPELINE, vpp=str(v))) for v in (2, 4, 8)]
    assert (interleaved.predicted_s, interleaved.slowest) == (min(others), pytest.approx(max(others) / min(others)))


@pytest.mark.parametrize(
    "cells",
    [{"vpp": "1"}, {"schedule": "1f1b"}, {"framework": "megatron-lm"}, {"global_batch": "24"}, {"pp": "1", "dp": "16"}],
)
def test_chunks_are_none_where_a_row_says_so_or_none_can_be(cells: dict[str, str]) -> None:
    (found,) = run(**{**NEMO, **cells}).comparisons
    assert found.plan is not None
    assert (found.plan.schedule, found.plan.vpp, found.slowest) == ("1f1b", 1, 1.0)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"schedule": "gpipe", "vpp": "2"}, "schedule gpipe needs vpp 1"),
        ({"schedule": "1f1b", "vpp": "2"}, "schedule 1f1b needs vpp 1"),
        ({"schedule": "zero_bubble", "vpp": "2"}, "schedule zero_bubble needs vpp 1"),
        (
            {"schedule": "interleaved", "vpp": "1"},
            "schedule interleaved needs vpp of 2 or more and 1 pp micro-batches or more, in whole groups",
        ),
        (
            {"schedule": "interleaved", "vpp": "2", "global_batch": "48"},
            "schedule interleaved needs vpp of 2 or more and 1 pp micro-batches or more, in whole groups",
        ),
        (
            {"schedule": "zero_bubble", "framework": "megatron-lm"},
            "schedule zero_bubble: pipelines of Megatron-LM (Megatron Core) run 1f1b, interleaved, combined_1f1b",
        ),
    ],
)
def test_a_schedule_that_cannot_run_is_a_reason_to_skip(cells: dict[str, str], reason: str) -> None:
    assert run(**PIPELINE, **cells).skipped == reason
