"""Sparse tables of the pipeline search against plain arrays."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.layerwise.pipeline.completion import RowTable, TableFullError, reduce_groups
from tests.cases import mostly


@mostly("exact", "seed", range(20))
def test_table_equals_a_plain_array(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, cuts, levels, workers = 4, 6, 3, 5
    table = RowTable(rows, cuts, levels, num_workers=workers, planes=2)
    plain = np.full((2, rows, cuts, levels, workers + 1), np.inf)
    shifts = rng.integers(0, 3, rows)
    for i in rng.permutation(cuts)[:4].tolist():
        low = int(rng.integers(0, 3))
        values = rng.random((2, rows, levels, 3))
        values[:, rng.random((rows, levels, 3)) < 0.6] = np.inf
        shifted = bool(rng.random() < 0.5)
        assert table.put(i, list(values), low, shifts if shifted else None) == bool(np.isfinite(values).any())
        for k in range(rows):
            for x in range(3):
                w = low + x + (int(shifts[k]) if shifted else 0)
                if w <= workers:
                    plain[:, k, i, :, w] = values[:, k, :, x]
    row, cut, level, w = (rng.integers(0, n, 50) for n in (rows, cuts, levels, workers + 1))
    assert np.array_equal(table.at(row, cut, level, w), plain[:, row, cut, level, w])
    assert np.array_equal(table.take(row, cut, level, slice(1, 4)), plain[:, row, cut, level, 1:4])
    table.accumulate()
    assert np.array_equal(table.take(row, cut, level), np.minimum.accumulate(plain, axis=-1)[:, row, cut, level])


def test_table_grows_up_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategies.layerwise.pipeline.completion._MOST_PLANE_ENTRIES", 4 * 3000)
    table = RowTable(2000, 3, 1, num_workers=3, planes=1)
    values = np.arange(4000.0).reshape(2000, 1, 2)
    assert table.put(0, [values], 1)
    assert np.array_equal(table.take(np.arange(2000), 0, np.zeros(2000, dtype=np.int64))[0][:, 1:3], values[:, 0])
    with pytest.raises(TableFullError):
        table.put(1, [values], 1)


def test_groups_are_reduced_to_their_least() -> None:
    rng = np.random.default_rng(1)
    row, level = np.nonzero(rng.random((5, 4)) < 0.7)
    row, level = (np.repeat(part, 3) for part in (row, level))
    values = rng.random((len(row), 2))
    least = np.full((5, 4, 2), 0.5)
    expected = least.copy()
    for k, x, value in zip(row, level, values, strict=True):
        expected[k, x] = np.minimum(expected[k, x], value)
    reduce_groups(least, values, row, level)
    assert np.array_equal(least, expected)
