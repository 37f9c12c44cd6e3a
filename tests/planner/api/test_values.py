"""Values of options: every text is a value or a problem that is said, never an exception."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.api.values import MAX_GPUS, Values
from planner.core.errors import UsageError


@given(st.text(max_size=12))
def test_values_never_raise(text: str) -> None:
    values = Values()
    assert 1 <= values.count("--n", text, most=MAX_GPUS) <= MAX_GPUS
    assert 0 < values.share("--n", text) <= 1
    assert 0 <= values.ratio("--n", text) < 1
    limit = values.seconds("--n", text)
    assert limit is None or limit > 0
    assert all(1 <= count <= MAX_GPUS for count in values.worker_counts("--n", text))
    if values.problems:
        with pytest.raises(UsageError):
            values.check()


def test_units_of_time() -> None:
    values = Values()
    texts = {"30": 30.0, "30s": 30.0, "500ms": 0.5, "2min": 120.0, "2m": 120.0, "1.5 h": 5400.0, "1e2": 100.0}
    assert {text: values.seconds("--t", text) for text in texts} == texts
    assert values.problems == []
    assert values.seconds("--t", "0.5", likely="ms") is None
    assert values.problems == ["--t 0.5: has no unit; did you mean 0.5ms?"]


def test_no_worker_count_is_a_problem() -> None:
    values = Values(str)
    assert values.worker_counts("workers", []) == ()
    assert values.problems == ["workers []: names no number"]
