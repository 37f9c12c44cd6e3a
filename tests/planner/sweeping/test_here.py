"""Cells in processes of this machine, some of which die."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.sweeping.grid import Cell
from planner.sweeping.run import answers_here
from tests.planner.sweeping.workers import deadly


@pytest.mark.e2e
@pytest.mark.parametrize("jobs", [2, 3])
def test_a_cell_that_kills_its_process_costs_only_itself(tmp_path: Path, jobs: int) -> None:
    common = {"model": "m", "cluster": "c", "batch": None, "seq": None, "device": str(tmp_path)}
    cells = [Cell(key=f"k{n}", question={**common, "gpus": n}) for n in range(1, 9)]
    rows = {}
    for cell, row in answers_here(cells, jobs, deadly):
        assert cell.key not in rows
        rows[cell.key] = row
    assert {key for key, row in rows.items() if row["status"] == "ok"} == {f"k{n}" for n in (1, 2, 4, 5, 6, 7, 8)}
    assert rows["k3"]["status"] == "failed"
    assert "died each time" in rows["k3"]["reason"]
    assert rows["k3"]["gpus"] == 3
    # Only what was under way when a process died ran again.
    calls = {n: len((tmp_path / str(n)).read_text(encoding="utf-8")) for n in range(1, 9)}
    assert sum(calls.values()) <= 8 + 2 + 1 + 2 * (jobs - 1)


def test_the_order_of_one_process_is_that_of_the_cells(tmp_path: Path) -> None:
    cells = [Cell(key=f"k{n}", question={"gpus": n, "device": str(tmp_path)}) for n in (4, 2, 1)]
    assert [cell.key for cell, _ in answers_here(cells, 1, deadly)] == ["k4", "k2", "k1"]
