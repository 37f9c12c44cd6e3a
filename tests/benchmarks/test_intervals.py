"""The fit of the error bars on files whose truth is known: intervals and lists must hold what they promise of a file never seen."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.arrays import FloatArray
from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import PARTS, intervals, sampled_log_errors
from costmodel.uncertainty.rankings import probability_best, shortest_list
from planner.files.loading import load_device
from planner.importers.networks import load_model
from planner.measurements.tables import Row
from tests.planner.spaces.serving.test_published_serving import PUBLISHED

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _benchmarks() -> Iterator[None]:
    """Its modules find one another as scripts of one folder do."""
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


def files_of(rng: np.random.Generator, count: int, questions: int) -> Any:
    """Runs of several files, four plans to a question; every file has a shift and a scale of its own, which nobody is told."""
    from interval_rows import FILES, Rows

    plans, n = 4, count * questions * 4
    file = np.repeat(np.arange(count), questions * plans)
    question = np.repeat(np.arange(count * questions), plans)
    shift, scale = 0.06 * rng.standard_normal(count), 0.05 * np.exp(0.4 * rng.standard_normal(count))
    of_question, of_plan = rng.standard_normal(count * questions)[question], rng.standard_normal(n)
    predicted = np.exp(rng.uniform(0.0, 0.2, n))
    shares = np.zeros((n, len(PARTS)))
    shares[:, 0] = 1.0
    return Rows(
        file=np.array([FILES[k % len(FILES)] for k in file]),
        kind=np.full(n, "transformers"),
        group=np.array([f"file {k}" for k in file]),
        device=np.full(n, "a100-80gb"),
        question=question,
        predicted_s=predicted,
        measured_s=predicted * np.exp(shift[file] + scale[file] * (of_question + of_plan)),
        shares=shares,
        effects=np.zeros((n, len(CONSTANTS))),
        coordinates=100.0 * np.arange(n)[:, None],
    )


def learned(rows: Any) -> Any:
    """The error models that these files teach."""
    from interval_fit import fit, of_population
    from interval_left_out import by_files, calibrated, unseen

    fold = by_files(rows)
    fits = {int(k): fit(rows.take(fold != k), steps=120) for k in np.unique(fold)}
    return calibrated(fit(rows, steps=120), None, unseen(of_population(rows), fold, fits))


def coverage(rows: Any, fitted: Any, factor: float = 1.0) -> float:
    """Share of the runs inside their intervals, were these wider by a factor."""
    model = fitted.models["transformers"].scaled(factor)
    low, high = intervals(rows.candidates(fitted.log_sd), model)
    return float(((low <= rows.measured_s) & (rows.measured_s <= high)).mean())


def lists(rows: Any, fitted: Any) -> FloatArray:
    """Whether the list holds the best, the chance of the first plan, and whether it is the best: means over the questions."""
    from interval_left_out import questions

    model, found = fitted.models["transformers"], []
    for index in questions(rows):
        part = rows.take(index)
        errors = sampled_log_errors(part.candidates(fitted.log_sd), model, draws=1000)
        log_times = np.log(part.predicted_s) + errors
        best, first = int(np.argmin(part.measured_s)), int(np.argmin(part.predicted_s))
        listed = shortest_list(log_times, model.listed_share)
        found.append((best in listed, probability_best(log_times)[first], best == first))
    return np.mean(np.array(found, dtype=np.float64), axis=0)


@pytest.mark.published
def test_a_file_never_seen_is_held_by_its_intervals_and_lists() -> None:
    """Eight files teach, forty others test, several times over: truths have the shifts and scales that the fit is not told of."""
    rng = np.random.default_rng(11)
    held, narrow, ranked = [], [], []
    for _ in range(6):
        fitted = learned(files_of(rng, 8, 6))
        others = files_of(rng, 40, 5)
        held.append(coverage(others, fitted))
        narrow.append(coverage(others, fitted, 0.6))
        ranked.append(lists(others, fitted))
    assert 0.78 <= np.mean(held) <= 0.92
    assert np.mean(narrow) < 0.75  # so this test tells
    holds, chance, is_best = np.mean(ranked, axis=0)
    assert holds >= 0.9
    assert chance == pytest.approx(is_best, abs=0.1)


@pytest.mark.e2e
def test_the_same_rows_teach_the_same() -> None:
    rows = files_of(np.random.default_rng(5), 3, 4)
    first, again = (learned(rows).models["transformers"] for _ in range(2))
    assert first == again


def test_questions_are_left_out_whole() -> None:
    from interval_fit import fit
    from interval_left_out import by_files, unseen

    rows = files_of(np.random.default_rng(3), 3, 2)
    fold = by_files(rows)
    found = unseen(rows, fold, {k: fit(rows.take(fold != k), steps=5) for k in range(3)})
    rest = found.without(fold == 1)
    assert len(rest.rows) == 16
    assert set(rest.rows.file.tolist()) == {rows.file[0], rows.file[-1]}
    for place in rest.best:  # still the best of their questions
        mine = rest.rows.question == rest.rows.question[place]
        assert rest.rows.measured_s[place] == rest.rows.measured_s[mine].min()


def test_sources_in_no_file_widen_what_files_alone_say() -> None:
    """Files that are off by 0.1 and sources that are off by 0.5: either end is where a tenth of all, each counted once, are beyond."""
    from interval_fit import fit
    from interval_left_out import by_files, of_anybody, tail_of_new, unseen
    from interval_other_sources import POINTS, Source, of_population, scored

    rows = files_of(np.random.default_rng(9), 4, 3)
    fold = by_files(rows)
    seen = unseen(rows, fold, {k: fit(rows.take(fold != k), steps=5) for k in range(4)})
    model = fit(rows, steps=5).models["transformers"]
    sources = [
        Source(name=f"s{n}", population="transformers", runs=9, bias=bias, mape=0.4)
        for n, bias in enumerate((-0.4, 0.4) * 4)
    ]
    alone, wide = (of_anybody(model, "transformers", seen, some) for some in ((), sources))
    assert wide.high * wide.typical_log_sd > 0.35 > alone.high * alone.typical_log_sd
    assert wide.low * wide.typical_log_sd < -0.35 < alone.low * alone.typical_log_sd
    values, weight, count = of_population(sources, "transformers")
    assert (count, len(values), float(weight.sum())) == (8, 8 * POINTS, pytest.approx(8.0))
    # Of twelve groups alike: the share beyond either end is that for a new one.
    high = wide.high * wide.typical_log_sd
    beyond = float(weight[values > high].sum()) + sum(
        float((seen.rows.residual[seen.rows.file == f] > high).mean()) for f in np.unique(seen.rows.file)
    )
    assert beyond / 12 == pytest.approx(tail_of_new(12), abs=0.02)  # in steps of two points
    inside, score = scored(sources[0], -10.0, 10.0)
    assert (inside, score) == (1.0, 20.0)
    # A population without such sources is as before.
    other = [Source(name="s", population="images", runs=9, bias=0.0, mape=0.4)]
    assert of_anybody(model, "transformers", seen, other) == alone


# --- How constants are found without the rows that are then predicted with them -----------------------------------------------------------


def rows_of(column: str, texts: list[str]) -> list[Row]:
    """Rows that state one thing."""
    return [Row(line=n, cells={column: text}) for n, text in enumerate(texts)]


def part(**changes: Any) -> Any:
    """A part whose constants are found on a grid of two points."""
    from accuracy import Part

    given: dict[str, Any] = {
        "name": "p",
        "files": ("f",),
        "keep": lambda _: True,
        "folds": {},
        "grid": {"x": (0.0, 1.0)},
    }
    return Part(**{**given, **changes})


def test_a_group_is_predicted_with_what_suits_the_others() -> None:
    """Point 0 suits tp 1 and point 1 tp 2: left out, each gets the other's, and a fold's rows all get the same."""
    from accuracy import Trials, left_out

    class Named(Trials):
        """Whose outcomes are names."""

        def outcomes(self, point: int) -> list[Any]:
            """One per row."""
            return [f"point {point}, row {n}" for n in range(len(self.rows))]

    errors = np.array([[0.0, 0.1, 1.0, 1.0], [1.0, 1.0, 0.1, 0.0]])
    trials = Named(rows=rows_of("tp", ["1", "1", "2", "2"]), points=[(("x", 0.0),), (("x", 1.0),)], errors=errors)
    assert left_out(part(), trials, ("tp",)) == ["point 1, row 0", "point 1, row 1", "point 0, row 2", "point 0, row 3"]


def test_kinds_that_choose_together_weigh_alike() -> None:
    """Three runs on one node prefer point 0 by 0.1 each, the only one on several point 1 by 0.2: the mean of all would take point 0."""
    from accuracy import best_of

    rows, errors = rows_of("nodes", ["1", "1", "1", "8"]), np.array([[0.1, 0.1, 0.1, 0.3], [0.2, 0.2, 0.2, 0.1]])
    assert best_of(part(together="nodes"), rows, errors) == 1
    assert best_of(part(), rows, errors) == 0


def test_steps_of_the_constants_of_hosts_are_alike() -> None:
    """A step of each moves a layer that waits for its host (27 kernels of 115 us) by 0.1 ms, rounded; the bundled constants are points."""
    from accuracy import _HOST

    from planner.files.loading import load_calibration
    from planner.files.naming.frameworks import framework_of

    started = {"host_launch_s": 27.0, "host_collective_s": 4.0, "collective_wait_s": 4.0}
    waits = load_calibration("vtrain").calibration.assumed
    assumed = replace(framework_of("Megatron-DeepSpeed").mesh_assumptions(), **waits)
    for name, values in _HOST.items():
        steps_s = started[name] * np.diff(values)
        assert np.round(1e3 * steps_s, 1).tolist() == [0.1] * len(steps_s)
        assert min(abs(value - getattr(assumed, name)) for value in values) < 1e-9


# --- The fit of the error bars of serving: on networks whose truth is known, and the published figures themselves -------------------------


def figures_of(rng: np.random.Generator, networks: int, each: int) -> Any:
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
        rows = figures_of(np.random.default_rng(seed), 16, 30)
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

    rows = figures_of(np.random.default_rng(0), 3, 20)
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


def test_first_tokens_have_one_interval_around_their_prediction() -> None:
    """Ten rows of one network count as much as one of another: 0.3 of the first, 1 of the other, of which 80 % need both."""
    from first_tokens import FirstTokens, error_models

    residual, network = np.array([*[0.3, -0.3] * 5, -1.0]), np.array([*["x"] * 10, "y"])
    model = error_models(FirstTokens(engine=np.repeat("a", 11), network=network, residual=residual))[
        "serving-first-token"
    ]
    assert np.array([model.low, model.high]) * model.typical_log_sd == pytest.approx([-1.0, 1.0])
