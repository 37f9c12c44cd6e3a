"""Past its time limit the search looks at no more worker counts, and says that it was stopped."""

from __future__ import annotations

from typing import Any

import pytest

from costmodel.layerwise.splits import factorisations
from strategies.layerwise import search as module
from strategies.layerwise.search import SearchSettings, search
from tests.strategies.layerwise.test_whole_space import CLUSTER, workload_of


def test_past_the_time_limit_no_more_worker_counts_are_factorised_or_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Any] = []

    def count(*arguments: Any, **_: Any) -> int:
        counted.append(arguments)
        return 1

    monkeypatch.setattr(module, "count_layer_plans", count)
    factorisations.cache_clear()
    settings = SearchSettings(max_workers=200_000, capacity_bytes=1e12, top=1, wall_s=0.0)
    outcome = search(workload_of("images", 8, training=True), CLUSTER, settings)
    assert outcome.out_of_time
    assert outcome.candidates
    assert not counted
    # Those of the first block whose bounds are asked for, of 200,000 worker counts.
    assert factorisations.cache_info().misses < 2_000
