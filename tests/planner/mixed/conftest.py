"""The small cluster of two kinds of devices as a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.planner.mixed.small_cluster import CLUSTER


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return str(path)
