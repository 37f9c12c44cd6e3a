"""The small cluster of two kinds of devices as a file."""

from __future__ import annotations

import pytest

from tests.planner.spaces.mixed.small_cluster import CLUSTER


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Tests read it only."""
    path = tmp_path_factory.mktemp("small-mix") / "cluster.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return str(path)
