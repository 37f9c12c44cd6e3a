"""Schedules of pipelines in the words of frameworks."""

from __future__ import annotations

import pytest

from tests.benchmarks.datasets.published_rows import plan_of, run, seconds


@pytest.mark.parametrize(
    ("text", "vpp", "schedule"),
    [
        ("", "", "1f1b"),
        ("", "2", "interleaved"),
        ("1F1B", "", "1f1b"),
        ("1F1B", "2", "interleaved"),  # the chunks are stated
        ("Interleaved1F1B", "", "interleaved"),
        ("1F1B (interleaved)", "", "interleaved"),
        ("1F1B, non-interleaved", "", "1f1b"),
        ("GPipe", "", "gpipe"),
        ("AFAB", "", "gpipe"),
        ("ZB-H1", "", "zero_bubble"),
        ("ZBVZeroBubble", "", "zero_bubble"),
        ("DualPipe", "", "1f1b"),
    ],
)
def test_words_of_schedules(text: str, vpp: str, schedule: str) -> None:
    assert plan_of(schedule=text, vpp=vpp).schedule == schedule


def test_a_schedule_that_is_not_known_and_chunks_that_are_not_stated_are_noted() -> None:
    interleaved = run(schedule="interleaved")
    assert interleaved.row.defaults["vpp"] == 2
    assert seconds(interleaved) == seconds(run(vpp="2"))
    assert plan_of(schedule="ZB-H1", pp="1", dp="16").schedule == "1f1b"
    assert seconds(run(schedule="ZB-H1")) < seconds(run()) < seconds(run(schedule="GPipe", recompute="full")) * 1.001
