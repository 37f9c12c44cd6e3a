"""A transformer that nothing follows (an imported encoder) is planned with a split per layer, and the answer says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.cli import run

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
