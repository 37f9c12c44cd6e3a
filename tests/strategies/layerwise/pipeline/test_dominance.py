"""Numbers of replicas that are left out first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from costmodel.hardware.cluster import Cluster, Level
from costmodel.layerwise.evaluate import farther_takes_longer
from costmodel.layerwise.tables import CostCache
from strategies.layerwise.candidates import Outcome, Pool, SearchSettings
from strategies.layerwise.pipeline.search import PipelineSearch, distinct_replicas, replica_table
from strategies.limits import Clock
from tests.cases import mostly
from tests.strategies.layerwise.test_build import CLUSTER, bundled, random_graph, workload

PORTS = replace(
    CLUSTER,
    levels=(CLUSTER.levels[0], Level(name="fabric", size=None, bandwidth_bytes_per_s=5e9, latency_s=8e-6, shared_by=4)),
)


@pytest.mark.exact
@mostly("exact", "cluster", [CLUSTER, PORTS], quick=1)
@mostly("exact", "seed", range(5), quick=1)
def test_dominated_numbers_last_change_no_answer(seed: int, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipelines of random networks: the same best plans and bounds with and without dominated numbers, units of two and three workers."""
    monkeypatch.setattr("strategies.layerwise.pipeline.search._UNITS", (4, 6))
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

        def run(cutoff: float, m: int = m) -> tuple[list[float], Outcome]:
            cache = CostCache(case, cluster)
            pool, outcome = LowPool(cache, settings), Outcome()
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
