"""The accuracy gate: errors of every source of measurements are at most a tenth above their record."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.gate import ROOT, TABLES, figures, recorded, worse
from benchmarks.pages import table as table_path
from tests.cases import mostly


@mostly("published", "table", TABLES, quick=4)
def test_no_source_is_predicted_worse_than_on_record(reference_data: Path, table: str) -> None:
    assert worse(figures(reference_data / "measurements", table), recorded(), table) == []


def test_tables_that_should_be_at_hand_are() -> None:
    """Whoever names a folder of data, or has one beside the repository, has all tables: nothing is skipped in silence."""
    folder = Path(os.environ.get("PLANNER_REFERENCE_DATA", ROOT.parent / "shared"))
    if "PLANNER_REFERENCE_DATA" not in os.environ and not folder.is_dir():
        pytest.skip(f"reference data not found at {folder} (set PLANNER_REFERENCE_DATA)")
    assert [name for name in TABLES if not table_path(folder / "measurements", name).is_file()] == []


def test_the_record_names_tables_that_exist_and_reasons_that_the_changelog_gives() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    record = recorded()
    assert {name.partition(", ")[0] for name in record} == set(TABLES)
    assert [name for name, errors in record.items() if errors.get("because", "") not in changelog] == []


def test_what_fails() -> None:
    record = {"a": {"mean": 0.10, "median": 0.05}, "a, b": {"mean": 0.2, "memory": 0.1}}
    same = {name: dict(errors) for name, errors in record.items()}
    assert worse(same, record, "a") == []
    assert worse({**same, "a": {"mean": 0.10, "median": 0.056}}, record, "a") == [
        "a: median error 5.6 %, on record 5.0 %"
    ]
    assert worse({"a": same["a"], "a, c": {}}, record, "a") == ["a, c: not on record", "a, b: no longer scored"]
    assert worse({"a": {"mean": 0.01, "rows": 8}}, {"a": {"mean": 0.10, "rows": 9}}, "a") == [
        "a: 8 rows scored, on record 9"
    ]
    assert worse({**same, "a, b": {"mean": 0.2}}, record, "a") == ["a, b: memory error None, on record 0.1"]
