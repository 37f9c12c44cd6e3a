"""The fit of the error bars of serving: on networks whose truth is known, and the published figures themselves."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import PARTS, intervals
from planner.files.loading import load_device
from planner.importers.networks import load_model
from tests.planner.spaces.serving.test_published_serving import PUBLISHED

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _benchmarks() -> Iterator[None]:
    """Its modules find one another as scripts of one folder do."""
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def rows_of(rng: np.random.Generator, networks: int, each: int) -> Any:
    """Figures of several networks, each with an error of its own; engines are slower than predicted, where links matter the more so."""
    from interval_rows import Rows

    n = networks * each
    network = np.repeat(np.arange(networks), each)
    shares = np.zeros((n, len(PARTS)))
    shares[:, 1] = rng.uniform(0.0, 0.6, n)
    shares[:, 0] = 1.0 - shares[:, 1]
    error = 0.15 + 0.05 * rng.standard_normal(networks)[network] + (0.04 + 0.2 * shares[:, 1]) * rng.standard_normal(n)
    predicted = np.exp(rng.uniform(0.0, 1.0, n))
    return Rows(
        file=np.where(rng.random(n) < 0.5, "one", "other"),
        kind=np.full(n, "serving"),
        group=np.array([f"network {k}" for k in network]),
        device=np.full(n, "h100-sxm"),
        question=np.arange(n),
        predicted_s=predicted,
        measured_s=predicted * np.exp(error),
        shares=shares,
        effects=np.zeros((n, len(CONSTANTS))),
        coordinates=100.0 * np.arange(n)[:, None],
    )


@pytest.mark.e2e
def test_intervals_hold_figures_of_a_network_never_seen() -> None:
    from serving import serving_models

    log_sd, inside, widths = np.zeros(len(CONSTANTS)), [], []
    for seed in range(4):
        rows = rows_of(np.random.default_rng(seed), 16, 30)
        known, new = (
            rows.take(np.isin(rows.group, [f"network {k}" for k in some])) for some in (range(8), range(8, 16))
        )
        model = serving_models(known, log_sd).models["serving"]
        low, high = intervals(new.candidates(log_sd), model)
        inside.append(((low <= new.measured_s) & (new.measured_s <= high)).mean())
        links = new.shares[:, 1]
        width = np.log(high / low)
        widths.append(width[links > 0.4].mean() / width[links < 0.2].mean())
    assert 0.75 <= np.mean(inside) <= 0.95
    assert min(widths) > 1.3, "what depends on links is less sure"


def test_the_basis_counts_what_it_stands_on() -> None:
    from serving import serving_models

    rows = rows_of(np.random.default_rng(0), 3, 20)
    basis = serving_models(rows, np.zeros(len(CONSTANTS))).models["serving"].basis
    assert basis.startswith("60 published figures of 3 dense networks")
    slower = math.expm1(float(np.median(rows.residual)))
    said = float(basis.partition("predicted by ")[2].partition(" %")[0]) / 100
    assert said == pytest.approx(slower, abs=0.02)


def test_the_table_of_figures_is_that_of_the_page_and_its_tests() -> None:
    from serving_rows import MACHINES, read_figures

    figures = list(read_figures())
    known = {
        (f.model, f.tp, f.prompt, f.output): f.value
        for f in figures
        if f.source.endswith("1.0") and f.device == "h100-sxm"
    }
    for (model, tp), rates in PUBLISHED.items():
        for (prompt, output), rate in rates.items():
            assert known[model, tp, prompt, output] == rate
    assert len(figures) == 693
    for name in {f.model for f in figures}:
        load_model(name)
    assert {f.device for f in figures} == set(MACHINES)
    for device in MACHINES:
        load_device(device)


def test_more_devices_and_shorter_prompts_serve_more() -> None:
    """Slips of the pen: among figures of one engine, network and device, rates grow with the degree, latencies with the batch."""
    from serving_rows import read_figures

    found: dict[tuple[object, ...], list[tuple[int, float]]] = {}
    for f in read_figures():
        if f.quantity == "batch_tokens_per_s_per_gpu" or f.source.endswith("0.9"):
            continue  # of each only one degree and batch was published
        key = (f.source, f.quantity, f.model, f.device, f.prompt, f.output)
        found.setdefault(key, []).append((f.batch or f.tp, f.value))
    for key, values in found.items():
        for (_, less), (_, more) in zip(sorted(values), sorted(values)[1:], strict=False):
            # 70B on eight L40S over PCI Express gains nothing over four.
            assert more > 0.95 * less, key


def test_a_run_of_whole_cycles_takes_as_long_as_they_do_and_one_more_request_a_cycle_of_its_own() -> None:
    from serving_rows import read_figures, run_over_cycles, served

    from costmodel.serving.plan import ServingBatch, ServingPlan

    figure = next(f for f in read_figures() if f.model == "llama3-8b" and f.requests == 3000)
    model, plan = served(figure), ServingPlan(max_batch=500)
    assert run_over_cycles(figure, model, plan) == pytest.approx(1.0)
    full, single = (float(model.evaluate(ServingBatch.from_plans([p])).request_s[0]) for p in (plan, ServingPlan()))
    more = run_over_cycles(replace(figure, requests=3001), model, plan)
    assert more == pytest.approx((6 * full + single) / (3001 / 500 * full))


@pytest.mark.e2e
@pytest.mark.parametrize("model", ["llama3-70b", "llama3-405b"])
def test_bundled_intervals_hold_most_of_the_figures_of_the_page(model: str) -> None:
    """Of H100 and TensorRT-LLM 1.0."""
    from serving_rows import plan_of, read_figures, run_over_cycles, served

    from costmodel.serving.model import SERVING_CONSTANTS
    from planner.core.request import Request
    from planner.uncertainty.bars import serving_knowledge

    known = serving_knowledge(Request(model="", mode="inference"), "serving", names=SERVING_CONSTANTS)
    from planner.spaces.serving.bars import serving_candidates

    inside = []
    for f in read_figures():
        if f.source.endswith("1.0") and f.device == "h100-sxm" and f.model == model:
            built = served(f)
            plan = plan_of(f, built)
            candidates = serving_candidates(built, [plan], known)["token_s"]
            low, high = intervals(candidates, known.model)
            full_s = 1.0 / (f.value * run_over_cycles(f, built, plan))
            inside.append(low[0] <= full_s <= high[0])
    assert len(inside) == 10
    assert sum(inside) >= 7
