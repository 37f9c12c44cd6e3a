"""The benchmark of the per-layer search runs."""

from __future__ import annotations

import pytest

from benchmarks import per_layer


def test_one_worker_count_and_all_of_them_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    per_layer.single(["alexnet"], [2], program=False)
    per_layer.sweep(["alexnet"], 2)
    lines = capsys.readouterr().out.splitlines()
    assert sum("optimal" in line for line in lines) == 4  # with and without a cap, the best one and the best ten
    assert sum("improved" in line for line in lines) == 3
