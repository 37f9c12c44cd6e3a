"""Where a device stands when a question names no cluster: its links decide what is worth splitting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
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


# --- Which number format a network is trained in where nobody says, and that the answer says so -------------------------------------------


OF_TRANSFORMERS = "default of transformers on the device"


@pytest.mark.parametrize(
    ("device", "transformer", "other"),
    [
        ("a10g", "bf16", "fp32"),  # graphics chips of Ampere and later: bf16 at twice the fp32 rate
        ("rtx-3090", "bf16", "fp32"),
        ("rtx-4090", "bf16", "fp32"),
        ("a100-80gb", "bf16", "bf16"),
        ("gaudi2", "bf16", "bf16"),
        ("mi250x-gcd", "bf16", "bf16"),
        ("cpu-xeon-8480", "bf16", "bf16"),
        ("v100-32gb", "fp16", "fp16"),
        ("t4", "fp16", "fp16"),
        ("p100", "fp32", "fp32"),  # fp16 without matrix units
        ("titan-xp", "fp32", "fp32"),
    ],
)
def test_the_default_by_device(device: str, transformer: str, other: str) -> None:
    for model, expected, source in (
        ("bert-large", transformer, OF_TRANSFORMERS),
        ("resnet50", other, "default of the device"),
    ):
        resolved = resolve(Request(model=model, device=device))
        assert resolved.setting.precision == expected
        stated = next(row for row in resolved.assumptions if row.name == "precision")
        assert (stated.value, stated.source) == (expected, source)


def test_what_is_given_is_taken() -> None:
    resolved = resolve(Request(model="bert-large", device="a10g", precision="fp32"))
    assert resolved.setting.precision == "fp32"
    assert next(row for row in resolved.assumptions if row.name == "precision").source == "given"


# --- A transformer that nothing follows (an imported encoder) is planned with a split per layer, and the answer says why ------------------


_BLOCK = """
schema_version: 1
name: encoder
source: test
global_batch: 8
blocks:
  block:
    layers:
      - {name: qkv, type: linear, out_features: 96}
      - {name: attention, type: self_attention, heads: 4, head_dim: 8}
      - {name: proj, type: linear, out_features: 32}
      - {name: add, type: add, inputs: [proj, input]}
      - {name: norm, type: layer_norm}
layers:
  - {name: tokens, type: input, shape: [32, 16]}
  - {name: blocks, block: block, repeat: 2}
"""


@pytest.mark.e2e
@pytest.mark.parametrize("is_open", [True, False])
def test_auto_falls_back_to_a_split_per_layer(
    is_open: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(
        _BLOCK + ("" if is_open else "  - {name: head, type: linear, out_features: 10}\n"), encoding="utf-8"
    )
    assert run(["optimize", str(path), "--gpus", "2", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    said = [entry for entry in result["assumptions"] if entry["name"] == "plans"]
    assert bool(said) == is_open
    if is_open:
        assert "the network ends inside its last block" in said[0]["value"]
    # Asked for by name, it is an error.
    assert run(["optimize", str(path), "--gpus", "2", "--space", "mesh", "--json"]) == (2 if is_open else 0)


@pytest.mark.e2e
def test_collectives_that_run_only_when_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plan that names one is predicted again as it was found."""
    plan = tmp_path / "plan.yaml"
    for name in ("double-tree", "in-network", "butterfly-mixing"):
        words = ["optimize", "alexnet", "--gpus", "2", "--family", "data", "--collective", name, "--top", "1", "--json"]
        assert run([*words, "--export", str(plan)]) == 0
        first = json.loads(capsys.readouterr().out)["plans"][0]["step_time_s"]
        assert run(["estimate", "--plan", str(plan), "--json"]) == 0
        again = json.loads(capsys.readouterr().out)
        assert again["step_time_s"] == pytest.approx(first, rel=1e-12)
