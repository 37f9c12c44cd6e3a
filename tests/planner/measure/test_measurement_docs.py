"""docs/measurements.md: the example is valid, and every column and kind of table is explained."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.measure.cases import COLLECTIVES, KINDS
from planner.measure.timing import COLUMNS
from planner.measurements.kernels import ELEMENTWISE
from planner.measurements.kinds import KINDS as TABLES
from planner.measurements.kinds import predict_table, template
from planner.measurements.tables import read_table

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "measurements.md").read_text(encoding="utf-8")


def test_the_example_is_scored_and_its_times_are_plausible(tmp_path: Path) -> None:
    (example,) = re.findall(r"validated by the tests -->\n```csv\n(.*?)```", PAGE, flags=re.DOTALL)
    path = tmp_path / "example.csv"
    path.write_text(example)
    kind, outcomes = predict_table(read_table(path))
    assert kind.name == "measured"
    assert len(outcomes) == 6
    for outcome in outcomes:
        assert outcome.skipped == ""
        (comparison,) = outcome.comparisons
        assert 0.4 < comparison.predicted_s / comparison.measured_s < 2.5, comparison


@pytest.mark.parametrize("column", COLUMNS)
def test_every_column_is_explained(column: str) -> None:
    assert f"`{column}`" in PAGE


@pytest.mark.parametrize("word", [*KINDS, *COLLECTIVES, *ELEMENTWISE])
def test_every_kernel_is_named(word: str) -> None:
    assert re.search(rf"\b{word}\b", PAGE)


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.name)
def test_every_kind_of_table_is_explained_and_its_template_is_scored(kind: object, tmp_path: Path) -> None:
    assert re.search(rf"`{kind.name}`|--template {kind.name}", PAGE)  # type: ignore[attr-defined]
    path = tmp_path / "t.csv"
    path.write_text(template(kind))  # type: ignore[arg-type]
    found, outcomes = predict_table(read_table(path))
    assert (found.name, [outcome.skipped for outcome in outcomes]) == (kind.name, [""])  # type: ignore[attr-defined]
