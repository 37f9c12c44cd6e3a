"""The fit of the memory's errors against samples whose mean and standard deviation are known."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from costmodel.uncertainty.limits import CONFIDENCE, OTHERS

pytest.importorskip("scipy", reason="the fit uses scipy")
sys.path.insert(
    0, str(Path(__file__).resolve().parents[2] / "benchmarks")
)  # its modules find one another as scripts of one folder do

from memory_errors import Runs, fit, held, kept_section, of_new_networks

MEAN, SD = 0.08, 0.06


def sample(
    evidence: str, count: int = 2000, mean: float = MEAN, sd: float = SD, networks: int = 4, seed: int = 0
) -> Runs:
    """Runs whose predictions are spread evenly on a logarithmic scale; of `full` the table has only those that ran."""
    draw = np.random.default_rng(seed)
    room = draw.uniform(-math.log(2.0), math.log(2.0), count)
    error = draw.normal(mean, sd, count)
    network = np.array([f"network {n}" for n in draw.integers(0, networks, count)])
    failed = error > room
    runs = Runs(evidence=evidence, room=room, error=error, failed=failed, network=network)
    if evidence != "full":
        return runs
    return runs.take(~failed | (draw.random(count) < 0.02))  # some ran as another plan than their row says


@pytest.mark.parametrize(("evidence", "close"), [("failures", 0.012), ("peaks", 0.005), ("full", 0.015)])
def test_the_fit_finds_what_was_drawn(evidence: str, close: float) -> None:
    found = fit(sample(evidence))
    assert found.mean == pytest.approx(MEAN, abs=close)
    assert found.log_sd == pytest.approx(SD, abs=close)


def test_runs_that_fail_whatever_they_need_are_no_errors_of_memory() -> None:
    runs = sample("failures", count=1500)
    crashed = np.random.default_rng(1).random(len(runs)) < 0.1
    found = fit(
        Runs(evidence="failures", room=runs.room, error=runs.error, failed=runs.failed | crashed, network=runs.network)
    )
    assert found.mean == pytest.approx(MEAN, abs=0.015)
    assert found.log_sd == pytest.approx(SD, abs=0.015)


def test_others_are_as_unsure_as_frameworks_differ() -> None:
    runs = {
        name: sample("peaks", mean=mean, sd=0.01, seed=n) for n, (name, mean) in enumerate([("a", 0.0), ("b", 0.3)])
    }
    errors = of_new_networks(runs)
    assert errors[OTHERS].mean == pytest.approx(0.15, abs=0.005)
    # Within 0.01; between, of two: 0.3^2 / 2 x (1 + 1 / 2).
    assert errors[OTHERS].log_sd == pytest.approx(math.sqrt(0.01**2 + 0.045 * 1.5), abs=0.005)


def test_as_many_of_other_runs_fit_as_is_promised() -> None:
    errors = of_new_networks({"a": sample("peaks", count=4000)})["a"]
    other = held("a", sample("peaks", count=4000, seed=7), errors)
    assert other.within == pytest.approx(CONFIDENCE, abs=0.01)
    assert other.unused == pytest.approx(1.0 - math.exp(-1.645 * SD), abs=0.01)


def test_the_other_sections_of_a_calibration_are_not_touched() -> None:
    text = "a: 1\n# Written by benchmarks/memory_errors.py --write: x\nmemory:\n  a: {}\n"
    assert text.removesuffix(kept_section(text)) == "a: 1\n"
    assert kept_section("a: 1\n") == ""
