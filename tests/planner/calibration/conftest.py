"""Tables made from known constants, by the trial presets of the validation, which know nothing of `costmodel.uncertainty.constants`."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.optimize  # noqa: F401 - no test pays for it

from planner.measurements.kinds import KINDS
from planner.measurements.outcomes import Preset
from planner.measurements.tables import Row

Rows = list[dict[str, str]]
Write = Callable[..., Path]

_MODULES = {kind.name: kind.predictor for kind in KINDS}


@pytest.fixture
def plan_table() -> Rows:
    """Runs of three GPTs on 16 A100, with and without fused attention."""
    shapes = ((1024, 24), (2048, 24), (4096, 16))
    degrees = ((1, 1, 16), (2, 1, 8), (4, 1, 4), (8, 1, 2), (1, 2, 8), (2, 2, 4))
    return [
        {
            "net": "GPT",
            "hidden": str(hidden),
            "layers": str(layers),
            "heads": "16",
            "seq": "2048",
            "precision": "bf16",
            "device": "a100-80gb",
            "flash_attention": flash,
            "gpus": "16",
            "global_batch": "64",
            "micro_batch": str(micro_batch),
            "tp": str(tp),
            "pp": str(pp),
            "dp": str(dp),
            "dataset_group": f"h{hidden} {flash}",
            "step_time_ms": "",
        }
        for (hidden, layers), flash in itertools.product(shapes, ("yes", "no"))
        for (tp, pp, dp), micro_batch in itertools.product(degrees, (1, 4))
    ]


@pytest.fixture
def gemm_table() -> Rows:
    """Products of many sizes on a P100."""
    sizes = (64, 256, 1024, 4096)
    return [
        {"device": "p100", "precision": "fp32", "m": str(m), "n": str(n), "k": str(k), "time_ms": ""}
        for m in sizes
        for n in sizes
        for k in sizes
    ]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write rows of a kind as a CSV, measured as a preset predicts, with noise in the logarithm and some outliers."""

    def make(
        name: str,
        kind: str,
        rows: Rows,
        preset: Preset,
        *,
        noise: float = 0.0,
        outliers: float = 0.0,
        seed: int = 0,
        column: str = "",
    ) -> Path:
        times = true_times(kind, rows, preset)
        rng = np.random.default_rng(seed)
        measured = times * np.exp(noise * rng.standard_normal(len(times)))
        spoilt = rng.permutation(len(times))[: round(outliers * len(times))]
        measured[spoilt] *= 2.5
        column = column or ("step_time_ms" if kind == "plan" else "time_ms")
        filled = [{**row, column: f"{time * 1e3:.9g}"} for row, time in zip(rows, measured, strict=True)]
        return save(tmp_path / name, filled)

    return make


def true_times(kind: str, rows: Rows, preset: Preset) -> np.ndarray:
    """What a preset predicts: rows are given a time that passes every check of its unit."""
    column = "step_time_ms" if kind == "plan" else "time_ms"
    predicted = np.full(len(rows), np.nan)
    for time_ms in ("5000", "50", "0.5", "0.005"):  # neither too long nor too short for a row
        left = np.flatnonzero(np.isnan(predicted)).tolist()
        probes = [Row(line=n, cells={**rows[n], column: time_ms}) for n in left]
        for n, outcome in zip(left, _MODULES[kind]()(probes, preset), strict=True):
            if not outcome.skipped:
                predicted[n] = outcome.comparisons[0].predicted_s
    assert not np.any(np.isnan(predicted))
    return predicted


def save(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    """Write rows as a CSV."""
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path
