"""Input against sums by hand."""

from __future__ import annotations

import pytest

from costmodel.framework import copy_s, storage_s
from planner.files.loading import load_cluster
from planner.measurements import convnets
from planner.measurements.outcomes import DEFAULT
from planner.measurements.tables import Row


def test_two_dies_of_a_board_share_its_slot() -> None:
    cluster = load_cluster("k80-10gbe").cluster
    assert copy_s(100e6, 1, cluster) == pytest.approx(100e6 / (15.75e9 * 0.75))
    assert copy_s(100e6, 8, cluster) == pytest.approx(100e6 / (15.75e9 * 0.75 / 2))


def test_storage_of_a_node_reads_its_share() -> None:
    assert storage_s(1000, 1e6, 2e9, [4, 8, 32], 8).tolist() == [0.5, 0.5, 0.125]
    assert storage_s(1000, 1e6, 0.0, 8, 8) == storage_s(1000, 0.0, 2e9, 8, 8) == 0.0


def test_rows_with_real_data() -> None:
    cells = {"model": "alexnet", "device": "k80", "gpus": "8", "batch_per_gpu": "512", "step_time_ms": "1000"}

    def seconds(**more: str) -> float:
        return convnets.predict([Row(line=2, cells={**cells, **more})], DEFAULT)[0].comparisons[0].predicted_s

    images = 4 * 512 * 3 * convnets.graph_of("alexnet").layers[0].output_shape[1] ** 2
    assert seconds(data="synthetic") == seconds()
    assert seconds(data="real") - seconds() == pytest.approx(images / (15.75e9 * 0.75 / 2))
    stored = {"storage_MBps": "200", "sample_kB": "110"}
    assert seconds(data="real", **stored) == pytest.approx(8 * 512 * 110e3 / 200e6)
    assert seconds(data="real", **{**stored, "storage_MBps": "2000"}) == seconds(data="real")
