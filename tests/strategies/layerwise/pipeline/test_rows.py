"""Sparse tables of the pipeline search against plain arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, Level
from costmodel.layerwise.evaluate import farther_takes_longer
from costmodel.layerwise.tables import CostCache
from strategies.layerwise.candidates import LayerwiseOutcome, Pool, SearchSettings
from strategies.layerwise.pipeline.completion import (
    RowTable,
    TableFullError,
    depth_levels,
    most_downstream_s,
    reduce_groups,
    through_cut,
)
from strategies.layerwise.pipeline.search import PipelineSearch, distinct_replicas, replica_table
from strategies.limits import Clock
from tests.cases import mostly
from tests.strategies.layerwise.test_build import CLUSTER, bundled, random_graph, workload


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


# --- Levels of depth, the detour solved for what is after, and transfers, each against the plain definition -------------------------------


def detour_s(below: float, forward: float, backward: float, depth: int, m: int) -> float:
    """``g`` as `strategies.layerwise.pipeline.problem` defines it."""
    if m >= depth + 2:
        return max(0.0, below - depth * forward) + max(0.0, below - depth * backward)
    return max(0.0, below - (m - 1) * min(forward, backward))


@mostly("exact", "seed", range(10))
def test_most_downstream_is_the_inverse_of_the_detour(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(200):
        m, depth = int(rng.integers(2, 12)), int(rng.integers(1, 12))
        forward, backward, slack = rng.random(3) * rng.choice([0.1, 1.0, 5.0], 3)
        single, both = most_downstream_s(np.array(forward), np.array(backward), np.array(depth), m)
        most = min(slack + float(single), (slack + float(both)) / 2)
        assert detour_s(most, forward, backward, depth, m) == pytest.approx(slack, abs=1e-9)
        assert detour_s(most + 0.01, forward, backward, depth, m) > slack


@pytest.mark.parametrize(("depth", "levels"), [(1, 1), (1, 5), (7, 1), (7, 3), (7, 7), (7, 64)])
def test_every_depth_has_one_level(depth: int, levels: int) -> None:
    found = depth_levels(depth, levels)
    covered = [d for a, b in zip(found.first, found.last, strict=True) for d in range(a, b + 1)]
    assert covered == list(range(1, depth + 1))
    assert len(found) == min(depth, levels)
    for d in covered:
        level = int(found.of(np.array(d)))
        assert found.first[level] <= d <= found.last[level]


@mostly("exact", "seed", range(10))
def test_through_cut_is_the_least_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cut = np.where(rng.random((3, 4)) < 0.2, np.inf, rng.random((3, 4)))
    first = np.where(rng.random((3, 2, 5)) < 0.5, np.inf, rng.random((3, 2, 5)))
    second = np.where(np.isfinite(first), rng.choice([-np.inf, -1.0, -2.0], first.shape), np.inf)
    found = through_cut(cut, first, second)
    with np.errstate(invalid="ignore"):
        for value, result in zip((first, second), found, strict=True):
            sums = value[:, None] + cut[:, :, None, None]
            sums = np.where(np.isfinite(cut)[:, :, None, None], sums, np.inf)
            assert np.array_equal(result, sums.min(axis=0))


# --- Numbers of replicas that are left out first ------------------------------------------------------------------------------------------


PORTS = replace(
    CLUSTER,
    levels=(CLUSTER.levels[0], Level(name="fabric", size=None, bandwidth_bytes_per_s=5e9, latency_s=8e-6, shared_by=4)),
)


@pytest.mark.exact
@mostly("exact", "cluster", [CLUSTER, PORTS], quick=1)
@mostly("exact", "seed", range(5), quick=1, every=3)
def test_dominated_numbers_last_change_no_answer(seed: int, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines of random networks: the same best plans and bounds with and without dominated numbers."""
    case = workload(random_graph(np.random.default_rng(seed)))
    counts, closed = list(range(2, 13)), 0
    settings = SearchSettings(max_workers=12, capacity_bytes=16e9, top=3)

    class LowPool(Pool):
        """As if plans of such a score were known."""

        lowest = float("inf")

        @property
        def cutoff(self) -> float:
            return min(self.lowest, super().cutoff)

    for m in (2, 3, 4):

        def run(cutoff: float, m: int = m) -> tuple[list[float], LayerwiseOutcome]:
            cache = CostCache(case, cluster)
            pool, outcome = LowPool(cache, settings), LayerwiseOutcome()
            pool.lowest = cutoff
            PipelineSearch(cache, settings, pool, outcome, Clock(limit_s=100.0), counts, np.zeros(len(counts))).search(
                m
            )
            return [c.step_time_s for c in pool.best() if c.step_time_s < cutoff], outcome

        with monkeypatch.context() as plain:
            plain.setattr(
                "strategies.layerwise.pipeline.search.distinct_replicas", lambda tables, replicas, *_: list(replicas)
            )
            whole, proof = run(float("inf"))
        assert len(whole) == 3
        for cutoff in (0.9 * whole[0], 1.0001 * whole[0], 1.0001 * whole[2], float("inf")):
            found, outcome = run(cutoff)
            expected = [step_s for step_s in whole if step_s < cutoff]
            assert found[: len(expected)] == pytest.approx(expected, rel=1e-9)
            assert outcome.searched["open"] == 0
            if not expected:
                closed += 1
                assert outcome.bound_score >= min(cutoff, proof.bound_score) * (1 - 1e-9)
            assert outcome.bound_score <= max(whole[0], cutoff) * (1 + 1e-9)
    assert closed


def test_replicas_of_equal_shares_that_no_others_dominate() -> None:
    """24 samples in two micro-batches: 7 to 11 replicas have shares of two, as 6 have."""
    case = workload(bundled("alexnet"))
    tables = CostCache(case, CLUSTER).tables(replica_table(case, 13), 2)
    kept = distinct_replicas(tables, list(range(1, 13)), 13, 16e9)
    assert set(kept) >= {1, 2, 3, 4, 6, 12}
    assert len(kept) < 12
    assert farther_takes_longer(CLUSTER, 64)
    nearer = replace(CLUSTER, levels=(replace(CLUSTER.levels[0], latency_s=1.0), CLUSTER.levels[1]))
    assert not farther_takes_longer(nearer, 64)  # in a node it takes longer
    far = CostCache(case, nearer).tables(replica_table(case, 13), 2)
    assert distinct_replicas(far, list(range(1, 13)), 13, 16e9) == list(range(1, 13))
