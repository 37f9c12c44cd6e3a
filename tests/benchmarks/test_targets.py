"""The targets read the figures of docs/accuracy.md: of several rows the worst, of a range the farthest outside."""

from __future__ import annotations

from pathlib import Path

import pytest

PAGE = """
### Fitted

| rows | MAPE | tau |
| --- | ---: | ---: |
| **A** (3), bundled | 1.0% | 0.9 |
| left out by model | 6.5% | 0.8 |
| left out by machine | 7.5% | 0.85 |

### Without

| A | MAPE |
| --- | ---: |
| left out by model | 99.0% |

### Intervals: one

| left out | coverage |
| --- | ---: |
| **all** | 80.0% |
| a | 84.0% |
| b | 73.0% |

### Intervals: two

| left out | coverage |
| --- | ---: |
| **all** | 80.0% |
| a | 10.0% |
"""


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))


def test_the_worst_of_several_ways_to_leave_rows_out_counts() -> None:
    from targets import LEFT_OUT, Target, tables_of

    tables = tables_of(PAGE)
    errors = Target(part="A", rows=LEFT_OUT, column="MAPE", most=8)
    order = Target(part="A", rows=LEFT_OUT, column="tau", least=0.85)
    assert (errors.worst(tables), errors.limit) == (7.5, "<= 8%")
    assert (order.worst(tables), order.limit) == (0.8, ">= 0.85")
    assert errors.is_met(7.5)
    assert not order.is_met(0.8)


def test_a_range_has_two_ends_and_a_section_tells_tables_apart() -> None:
    from targets import Target, tables_of

    given = {"part": "all", "column": "coverage", "least": 75.0, "most": 85.0, "section": "Intervals: one"}
    tables = tables_of(PAGE)
    both, only = Target(rows=r"[ab]", **given), Target(rows=r"a", **given)  # type: ignore[arg-type]
    assert (both.worst(tables), both.limit) == (73.0, "75 to 85%")
    assert [only.is_met(value) for value in (74.9, 75.0, 85.0, 85.1)] == [False, True, True, False]


def test_what_no_table_has_is_missed_and_said() -> None:
    from targets import Target, lines, tables_of

    assert not Target(part="B", rows=r"$", column="MAPE", most=8).is_met(None)
    assert Target(part="B", rows=r"$", column="MAPE", most=8).worst(tables_of(PAGE)) is None
    assert any(line.endswith("| not found | **missed** |") for line in lines(PAGE))
