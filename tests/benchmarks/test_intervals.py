"""The fit of the error bars on files whose truth is known: intervals and lists must hold what they promise of a file never seen."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.arrays import FloatArray
from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import PARTS, intervals, sampled_log_errors
from costmodel.uncertainty.rankings import probability_best, shortest_list

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
