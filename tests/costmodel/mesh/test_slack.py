"""How long ranks are done before the first one, against the event-by-event timeline."""

from __future__ import annotations

import random

import numpy as np
import pytest

from costmodel.mesh.passes import rank_slack_s
from costmodel.mesh.plan import SCHEDULES
from costmodel.timeline import TimelineInput, simulate


def last_s(case: TimelineInput) -> list[float]:
    """End of the last pass of every rank."""
    spans = simulate(case).spans
    return [
        max(span.start_s + span.duration_s for span in spans if span.rank == rank and span.stream == "compute")
        for rank in range(case.pp)
    ]


def random_case(rng: random.Random, schedule: str, *, equal: bool) -> tuple[TimelineInput, np.ndarray, np.ndarray]:
    pp, m = rng.randint(1, 5), rng.randint(1, 9)
    weight = [rng.uniform(0.5, 2.0) for _ in range(pp)] if not equal else [1.0] * pp
    backward = [w + (1.0 if equal else rng.uniform(0.5, 2.0)) for w in weight]
    case = TimelineInput(
        schedule=schedule,
        pp=pp,
        num_micro_batches=m,
        forward_s=tuple(1.0 if equal else rng.uniform(0.5, 2.0) for _ in range(pp)),
        backward_s=tuple(backward),
        weight_s=tuple(weight) if schedule == "zero_bubble" else (),
    )
    return case, np.array([backward]), np.array([weight])


def slack_of(case: TimelineInput, backward: np.ndarray, weight: np.ndarray) -> np.ndarray:
    ranks = np.arange(case.pp)[None, :]
    schedule, m = np.array([SCHEDULES.index(case.schedule)]), np.array([case.num_micro_batches])
    return rank_slack_s(schedule, m, ranks, ranks, np.ones_like(ranks), backward, weight)[0]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_ranks_are_done_at_least_so_long_before_the_pipeline(schedule: str) -> None:
    rng = random.Random(schedule)
    exact = 0
    for _ in range(300):
        case, backward, weight = random_case(rng, schedule, equal=False)
        ends = np.array(last_s(case))
        early = ends.max() - ends - slack_of(case, backward, weight)
        assert early.min() >= -1e-9
        exact += int(early.max() <= 1e-9)
    assert exact > 50


def test_equal_ranks_of_a_zero_bubble_schedule_are_done_at_once() -> None:
    rng = random.Random(0)
    for _ in range(30):
        case, backward, weight = random_case(rng, "zero_bubble", equal=True)
        ends = np.array(last_s(case))
        assert ends.max() - ends == pytest.approx(slack_of(case, backward, weight))


def test_a_kind_of_rank_is_as_late_as_its_latest() -> None:
    """Runs of equal ranks, and kinds that other kinds interrupt: never more than the least of what the ranks have alone."""
    rng = random.Random(1)
    for _ in range(200):
        lengths = [rng.randint(1, 3) for _ in range(rng.randint(1, 4))]
        kinds = [rng.randrange(2) for _ in lengths]
        times = [(rng.uniform(1, 2), rng.uniform(0.2, 1)) for _ in range(2)]
        of_rank = [kind for kind, length in zip(kinds, lengths, strict=True) for _ in range(length)]
        pp, present = len(of_rank), sorted(set(of_rank))
        schedule, m = np.array([SCHEDULES.index("zero_bubble")]), np.array([rng.randint(1, 8)])
        single = np.arange(pp)[None, :]
        table = np.array(times)[of_rank].T
        alone = rank_slack_s(schedule, m, single, single, np.ones_like(single), table[:1], table[1:])[0]
        first = np.array([[of_rank.index(kind) for kind in present]])
        last = np.array([[pp - 1 - of_rank[::-1].index(kind) for kind in present]])
        runs = np.array(times)[kinds].T
        found = rank_slack_s(schedule, m, first, last, np.array([lengths]), runs[:1], runs[1:])[0]
        least = [min(alone[r] for r in range(pp) if of_rank[r] == kind) for kind in present]
        assert np.all(found <= np.array(least) + 1e-9)
        if len(set(kinds)) == len(kinds):
            assert found == pytest.approx(np.array(least))
