"""Whatever `optimize --export` writes, `estimate --plan` reads back and costs the same."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml


def _random_network(rng: random.Random) -> dict[str, Any]:
    """A few samples and wide layers, so that splits of the model win; images or vectors."""
    layers: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        layers.append({"name": "data", "type": "input", "shape": [rng.choice([1, 3]), 32, 32]})
        for n in range(rng.choice([1, 2])):
            channels = rng.choice([48, 64, 256])
            layers.append({"name": f"conv{n}", "type": "convolution", "out_channels": channels, "kernel": 3})
        layers.append({"name": "pool", "type": "pool", "kernel": 2, "stride": 2})
    else:
        layers.append({"name": "data", "type": "input", "shape": [rng.choice([10, 1024, 4096])]})
    widths = [rng.choice([1000, 4096, 8192]) for _ in range(rng.choice([1, 2, 3]))]
    layers += [{"name": f"fc{n}", "type": "linear", "out_features": width} for n, width in enumerate(widths)]
    return {"schema_version": 1, "name": "random", "global_batch": rng.choice([1, 2, 3, 5]), "layers": layers}


@pytest.mark.parametrize("seed", range(16))
def test_an_exported_plan_is_read_back_and_costs_the_same(seed: int, answer: Any, tmp_path: Path) -> None:
    rng = random.Random(seed)
    network, plan = tmp_path / "network.yaml", tmp_path / "plan.yaml"
    network.write_text(yaml.safe_dump(_random_network(rng)), encoding="utf-8")
    gpus = str(rng.choice([2, 3, 4, 6, 8]))
    found = json.loads(answer("optimize", str(network), "--gpus", gpus, "--export", str(plan), "--json"))
    read = json.loads(answer("estimate", "--plan", str(plan), "--json"))
    best, again = found["plans"][0], read["plans"][0]
    for name in ("step_time_s", "memory_bytes_per_gpu", "exposed_communication_s", "energy_per_step_j"):
        assert again[name] == pytest.approx(best[name], rel=1e-12), name
    for name in ("workers", "num_micro_batches", "stages", "layers"):
        assert again["plan"].get(name) == best["plan"].get(name), name
