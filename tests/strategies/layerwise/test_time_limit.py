"""Past its time limit the search looks at no more worker counts, says that it was stopped, and still has a bound."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from costmodel.layerwise.splits import factorisations
from strategies import limits
from strategies.layerwise import search as module
from strategies.layerwise.pipeline import search as pipelines
from strategies.layerwise.search import SearchSettings, search
from tests.strategies.layerwise.test_whole_space import CLUSTER, workload_of


class Clock:
    """Tells the time in looks at it."""

    def __init__(self) -> None:
        self.ticks = itertools.count()

    def monotonic(self) -> float:
        return float(next(self.ticks))


def settings_of(**changed: Any) -> SearchSettings:
    return SearchSettings(max_workers=200_000, capacity_bytes=1e12, top=1, **changed)


@pytest.mark.exact
def test_past_the_time_limit_no_more_worker_counts_are_factorised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "replica_table", lambda *_: pytest.fail("there is no time for tables"))
    factorisations.cache_clear()
    outcome = search(workload_of("images", 8, training=True), CLUSTER, settings_of(wall_s=0.0))
    assert outcome.out_of_time
    assert outcome.candidates
    # Those of the first block whose bounds are asked for, of 200,000 worker counts.
    assert factorisations.cache_info().misses < 2_000


def test_a_search_that_is_stopped_has_a_bound_and_the_size_of_the_whole_space() -> None:
    case = workload_of("both", 4, training=True)
    stopped = search(case, CLUSTER, SearchSettings(max_workers=24, capacity_bytes=1e12, top=1, wall_s=0.0))
    done = search(case, CLUSTER, SearchSettings(max_workers=24, capacity_bytes=1e12, top=1))
    assert stopped.out_of_time
    assert not done.out_of_time
    assert 0.0 < stopped.bound_score <= done.bound_score
    assert stopped.space_size == done.space_size


@pytest.mark.exact
def test_the_clock_is_looked_at_for_every_block_of_worker_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes forward when it is looked at, so the number of looks is that of the blocks at least."""
    clock = Clock()
    monkeypatch.setattr(limits.time, "monotonic", clock.monotonic)
    screened: list[int] = []
    screen = module.screened_bounds

    def count(*arguments: Any) -> Any:
        screened.append(len(arguments[1].worker_counts))
        return screen(*arguments)

    monkeypatch.setattr(module, "screened_bounds", count)
    outcome = search(workload_of("perceptron", 64, training=True), CLUSTER, settings_of(wall_s=12.0))
    assert outcome.out_of_time
    assert 0 < len(screened) < 12
    assert np.isfinite(outcome.bound_score)
