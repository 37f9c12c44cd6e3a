"""Error bars of plans over several kinds of devices: those of meshes, and a word that nothing published mixes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.schema import schema_of

Ask = Callable[..., str]
QUESTION = ("gpt2-774m", "--gpus", "24", "--cluster", "a100-v100", "--batch", "32")


@pytest.mark.e2e
def test_intervals_are_those_of_one_kind_of_device(answer: Ask, tmp_path: Path) -> None:
    file = str(tmp_path / "plan.yaml")
    found = json.loads(answer("optimize", *QUESTION, "--time-limit", "10", "--export", file, "--json"))
    schema_of("result").model_validate(found)
    assert found["error_bars"]["kind"] == "transformers"
    assert "no published run mixes several" in found["error_bars"]["basis"]
    assert found["benchmark_list"] == []
    plain = json.loads(
        answer("optimize", "gpt2-774m", "--gpus", "8", "--cluster", "dgx-a100", "--batch", "32", "--json")
    )
    of_mesh, of_mixed = (
        [
            document["plans"][0][name] / document["plans"][0]["step_time_s"]
            for name in ("step_time_low_s", "step_time_high_s")
        ]
        for document in (plain, found)
    )
    assert of_mixed == pytest.approx(of_mesh)
    assert plain["error_bars"]["basis"] == ""

    one = json.loads(answer("estimate", "--plan", file, "--json"))
    assert one["error_bars"] == found["error_bars"]
    assert one["plans"][0]["step_time_high_s"] == pytest.approx(found["plans"][0]["step_time_high_s"])
    assert "no published run mixes several" in " ".join(answer("estimate", "--plan", file, "-v").split())
