"""Where a device stands when a question names no cluster: its links decide what is worth splitting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.core.request import Request
from planner.files.loading import load_cluster
from planner.files.resources import bundled
from planner.question.lookup import default_cluster
from planner.question.resolve import resolve


@pytest.mark.parametrize(
    ("device", "cluster"),
    [
        (None, "dgx-h100"), ("h100-sxm", "dgx-h100"), ("a100-80gb", "dgx-a100"), ("v100-32gb", "dgx1-v100"), ("p100", "dgx1-p100"),
        ("rtx-4090", "pcie4-node"), ("NVIDIA L40S", "pcie4-node"), ("tpu-v5e", "tpu-v5e-pod"), ("trainium2-core", "aws-trn2-cores"),
    ],
)  # fmt: skip
def test_a_device_stands_where_it_is_sold(device: str | None, cluster: str) -> None:
    assert default_cluster(device) == cluster


def test_every_bundled_device_has_a_bundled_cluster_of_one_kind() -> None:
    for device in bundled("devices"):
        assert len(load_cluster(default_cluster(device)).cluster.groups) == 1, device


def test_a_board_without_nvlink_gets_none() -> None:
    asked = Request(model="gpt2", device="rtx-4090", gpus=8, space="layers")
    resolved = resolve(asked)
    bandwidth = resolved.cluster.levels[0].bandwidth_bytes_per_s
    assert bandwidth == load_cluster("pcie4-node").cluster.levels[0].bandwidth_bytes_per_s < 32e9
    stated = {one.name: (one.value, one.source) for one in resolved.assumptions}
    assert stated["cluster"] == ("pcie4-node", "default of the device")


def test_a_device_of_ones_own_stays_on_the_default(tmp_path: Path) -> None:
    text = bundled("devices")["h100-sxm"].read_text(encoding="utf-8")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("name: h100-sxm", "name: half-gpu"), encoding="utf-8")
    assert default_cluster(str(mine)) == "dgx-h100"


@pytest.mark.e2e
def test_sweep_and_size_take_it_too(document: Any) -> None:
    swept = document("sweep alexnet --gpus 2 --device v100-16gb")
    assert [row["cluster"] for row in swept["rows"]] == ["dgx1-v100"]
    sized = document("size alexnet --samples 1M --days 9 --max-gpus 2 --device v100-16gb")
    assert [one["cluster"] for one in sized["clusters"]] == ["dgx1-v100"]
