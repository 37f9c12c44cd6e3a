"""Error bars of tables of runs: intervals and their scores worked out by hand, lists to benchmark by draws of the test's own."""

from __future__ import annotations

import hashlib
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from benchmarks.datasets import convert
from costmodel.uncertainty.constants import CONSTANTS
from costmodel.uncertainty.intervals import PARTS
from planner.files.loading import load_calibration
from planner.files.resources import resolve
from planner.measurements import error_bars
from planner.measurements.error_bars import effects, error_models_of
from planner.measurements.outcomes import DEFAULT, Preset
from planner.measurements.plans import predict_training as predict
from planner.measurements.tables import read_table

HEADER = (
    "style,hidden,layers,heads,device,gpus,gpus_per_node,global_batch,micro_batch,tp,pp,dp,precision,seq,framework,"
    "dataset_group,step_time_ms"
)
TENTH = 1.2816  # of a normal distribution, a tenth lies beyond so many standard deviations
STEP = math.exp(0.1)  # of a constant, for derivatives
# Error models of the tests' own: one whose intervals are as wide for every plan, one whose follow the plan.
FLAT = {
    "shared_log_sd": 0.03, "plan_log_sd": 0.06, "by_part": {"compute": 0.03, "layer_communication": 0.2, "gradient_exchange": 0.3},
    "similarity_steps": 1.5, "typical_log_sd": 0.1, "sharpness": 0.0, "low": -1.5, "high": 2.0, "ranking_scale": 1.25, "listed_share": 0.92,
}  # fmt: skip
SHARP = {**FLAT, "sharpness": 0.5, "low": -0.5, "high": 4.0}
LOG_SD = {name: 0.02 + 0.02 * n for n, name in enumerate(CONSTANTS)}
BUNDLED = yaml.safe_load(Path(resolve("calibrations", "default")).read_text())


def line(
    tp: int, time_ms: float, *, pp: int = 1, micro: int = 1, framework: str = "", group: str = "g", hidden: int = 2048
) -> str:
    return (
        f"gpt,{hidden},24,16,a100-80gb,8,8,64,{micro},{tp},{pp},{8 // tp // pp},bf16,2048,{framework},{group},{time_ms}"
    )


@pytest.fixture
def table(new_file: Any) -> Any:
    def save(*lines: str, header: str = HEADER) -> str:
        return str(new_file("runs.csv", "\n".join([header, *lines]) + "\n"))

    return save


@pytest.fixture
def figures(answer: Any) -> Any:
    def ask(path: str, *options: str) -> dict[str, Any]:
        return json.loads(answer("validate", path, "--json", *options))["files"][0]

    return ask


@pytest.fixture
def bars(tmp_path: Path) -> str:
    """A calibration that changes nothing and has these error models."""
    path = tmp_path / "bars.yaml"
    document = {
        "schema_version": 1,
        "name": "bars",
        "constants": {name: {"value": 1.0, "log_sd": sd, "determined": True} for name, sd in LOG_SD.items()},
        "residual": {
            "log_sd": 0.1,
            "kinds": {"transformers": FLAT, "megatron-bridge": FLAT, "images": FLAT, "nanotron": SHARP},
        },
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def residuals(file: dict[str, Any]) -> list[float]:
    """Of files of at most ten rows, all of which are listed."""
    assert file["comparisons"] == len(file["worst"])
    return [-math.log(row["ratio"]) for row in file["worst"]]


def mean_score(low: float, high: float, values: list[float]) -> float:
    """Width, and 2 / 0.2 times what a value lies outside."""
    return sum(high - low + 10 * max(low - x, x - high, 0.0) for x in values) / len(values)


@pytest.mark.e2e
@pytest.mark.parametrize("framework", ["", "megatron-lm", "other"])
def test_coverage_and_scores_by_hand(table: Any, figures: Any, bars: str, framework: str) -> None:
    """Intervals as wide for every plan: from -0.15 to 0.2."""
    first = figures(table(*(line(tp, 1000, framework=framework) for tp in (1, 2, 4, 8))))
    predicted = {int(row["label"].split("tp ")[1].split(",")[0]): row["predicted_s"] for row in first["worst"]}
    # Just inside and just outside either end.
    low, high = -0.15, 0.2
    meant = [low - 0.02, low + 0.01, high - 0.01, high + 0.03]
    lines = [
        line(tp, 1e3 * predicted[tp] * math.exp(x), framework=framework)
        for tp, x in zip((1, 2, 4, 8), meant, strict=True)
    ]
    file = figures(table(*lines), "--calibration", bars)
    assert sorted(residuals(file)) == pytest.approx(sorted(meant), abs=1e-9)
    assert (file["interval_rows"], file["interval_coverage"]) == (4, 0.5)
    assert file["interval_width"] == pytest.approx(high - low)
    assert file["interval_score"] == pytest.approx(high - low + 10 * (0.02 + 0.03) / 4)
    one = TENTH * 0.1
    assert file["interval_score_one_width"] == pytest.approx(mean_score(-one, one, meant))
    # Quantiles between the order statistics: 0.3 of the way from the first of four to the second.
    own = [a + 0.3 * (b - a) for a, b in ((meant[0], meant[1]), (meant[3], meant[2]))]
    assert file["interval_score_hindsight"] == pytest.approx(mean_score(*own, meant))


@pytest.mark.e2e
def test_the_interval_is_that_of_the_answer(table: Any, figures: Any, answer: Any) -> None:
    """A run measured where the printed interval of its plan ends, a little inside and outside."""
    words = ["gpt3-1.3b", "--gpus", "4", "--batch", "16", "--seq", "512", "--json"]
    plan = json.loads(answer("optimize", *words))["plans"][0]
    high = plan["step_time_high_s"] / plan["step_time_s"]
    row = line(2, 1.0)
    predicted = figures(table(row.replace(",1.0", ",2000")))["worst"][0]["predicted_s"]
    for factor, coverage in ((0.999, 1.0), (1.001, 0.0)):
        file = figures(table(row.replace(",1.0", f",{1e3 * predicted * high * factor}")))
        assert file["interval_coverage"] == coverage


@pytest.mark.e2e
def test_sharp_intervals_follow_constants_and_parts(table: Any, figures: Any, bars: str) -> None:
    """The standard deviation of each row is worked out from predictions with each constant changed."""
    lines = [line(tp, 1500, framework="nanotron") for tp in (1, 2, 8)]
    path = table(*lines)
    file = figures(path, "--calibration", bars)
    rows = read_table(Path(path)).rows
    base = [outcome.comparisons[0] for outcome in predict(rows, DEFAULT)]
    variance = np.full(len(rows), 0.03**2 + 0.06**2)
    for name in CONSTANTS:
        changed = predict(rows, Preset(name="roofline", constants=((name, STEP),)))
        for n, (before, after) in enumerate(zip(base, changed, strict=True)):
            slope = math.log(after.comparisons[0].predicted_s / before.predicted_s) / math.log(STEP)
            variance[n] += (slope * LOG_SD[name]) ** 2
    of_part = dict.fromkeys(PARTS, 0.0) | {"compute": 0.03, "layer_communication": 0.2, "gradient_exchange": 0.3}
    for n, comparison in enumerate(base):
        variance[n] += sum((x * of_part[part]) ** 2 for part, x in zip(PARTS, comparison.shares, strict=True))
    scale = (0.1 * np.sqrt(variance)) ** 0.5
    found = np.array([math.log(c.measured_s / c.predicted_s) for c in base])
    low, high = -0.5 * scale, 4.0 * scale
    assert file["interval_width"] == pytest.approx(np.median(high - low), rel=2e-3)
    assert file["interval_coverage"] == np.mean((low <= found) & (found <= high))
    expected = np.mean([mean_score(a, b, [x]) for a, b, x in zip(low, high, found, strict=True)])
    assert file["interval_score"] == pytest.approx(expected, rel=5e-3)


# -- lists --------------------------------------------------------------------------------------------------------------------


def listed_by_draws(path: str, draws: int = 200_000) -> tuple[list[int], list[int]]:
    """Rows on the list, and by prediction: those that are the best most often until they are it often enough."""
    rows = read_table(Path(path)).rows
    found = [outcome.comparisons[0] for outcome in predict(rows, DEFAULT)]
    of_part = dict.fromkeys(PARTS, 0.0) | {"compute": 0.03, "layer_communication": 0.2, "gradient_exchange": 0.3}
    predicted = np.log([comparison.predicted_s for comparison in found])
    changed = [predict(rows, Preset(name="roofline", constants=((name, STEP),))) for name in CONSTANTS]
    moved = np.log([[outcome.comparisons[0].predicted_s for outcome in outcomes] for outcomes in changed])
    slopes = (moved - predicted) / math.log(STEP)
    rng = np.random.default_rng(7)
    errors = rng.standard_normal((draws, len(CONSTANTS))) * list(LOG_SD.values()) @ slopes
    for part, shares in zip(PARTS, np.array([c.shares for c in found]).T, strict=True):
        errors += rng.standard_normal((draws, 1)) * of_part[part] * shares
    # Degrees of these rows differ by doublings of tp and of dp only; their workers are the same.
    tp = np.log2([row.count("tp") or 1 for row in rows])
    alike = np.exp(-np.abs(tp[:, None] - tp[None, :]) / 1.5)
    errors += rng.multivariate_normal(np.zeros(len(rows)), 0.06**2 * alike, draws)
    errors *= 1.25 / np.sqrt(rng.chisquare(3, (draws, 1)) / 3)
    best = np.argmin(predicted + errors, axis=1)
    chance = np.bincount(best, minlength=len(rows)) / draws
    order = np.argsort(-chance)
    length = int(np.argmax(np.cumsum(chance[order]) >= 0.92)) + 1
    return order[:length].tolist(), np.argsort(predicted).tolist()


@pytest.mark.e2e
@pytest.mark.parametrize("measured_best", [0, 1, 2, 3])
def test_lists_by_draws_of_the_tests_own(table: Any, figures: Any, bars: str, measured_best: int) -> None:
    """The plan with this rank in the order of the predictions was measured best: whether the list holds it."""
    degrees = (1, 2, 4, 8)
    path = table(*(line(tp, 2000) for tp in degrees))
    listed, ranked = listed_by_draws(path)
    best = ranked[measured_best]
    rows = [line(tp, 1500 if n == best else 2000) for n, tp in enumerate(degrees)]
    file = figures(table(*rows), "--calibration", bars)
    assert (file["groups"], file["list_questions"], file["list_plans"]) == (1, 1, 4)
    assert file["list_length"] == len(listed)
    assert file["list_holds_best"] == float(best in listed)


@pytest.mark.e2e
def test_runs_of_one_plan_are_one(table: Any, figures: Any) -> None:
    """Two plans that ran twice are a group, and no question for a list; with a third one they are."""
    twice = [line(tp, time) for tp in (1, 2) for time in (1900, 2000)]
    file = figures(table(*twice))
    assert (file["groups"], file["list_questions"], file["list_holds_best"], file["list_length"]) == (1, 0, None, None)
    file = figures(table(*twice, line(4, 2100)))
    assert (file["list_questions"], file["list_plans"]) == (1, 3)


def test_medians_over_questions(table: Any, figures: Any) -> None:
    """Groups of three and four plans; what is recommended is on its list, so that the fastest by far is held."""
    file = figures(
        table(
            *(line(tp, 1000 * tp, group="a") for tp in (1, 2, 4)),
            *(line(tp, 1000 * tp, group="b") for tp in (1, 2, 4, 8)),
        )
    )
    assert (file["list_questions"], file["list_plans"], file["list_holds_best"]) == (2, 3.5, 1.0)


# -- which rows ---------------------------------------------------------------------------------------------------------------


def test_parts_have_error_bars_of_their_own(table: Any, figures: Any) -> None:
    rows = [line(tp, time, pp=pp) for tp, pp, time in ((1, 1, 1900), (1, 2, 2300), (1, 4, 2800), (8, 1, 9000))]
    file = figures(table(*rows), "--by", "tp")
    ones, eights = file["by"]
    assert (ones["interval_rows"], ones["list_questions"], eights["interval_rows"], eights["list_questions"]) == (
        3,
        1,
        1,
        0,
    )
    together = 3 * ones["interval_coverage"] + eights["interval_coverage"]
    assert together == pytest.approx(4 * file["interval_coverage"])


def test_kernels_have_no_error_bars(table: Any, figures: Any) -> None:
    file = figures(table("a100-80gb,bf16,4096,4096,4096,0.6", header="device,precision,m,n,k,time_ms"))
    assert (file["interval_rows"], file["list_questions"], file["error_bars_in_sample"]) == (0, 0, False)
    assert {file[key] for key in file if key.startswith(("interval_", "list_"))} == {0, None}


@pytest.mark.e2e
def test_networks_for_images(table: Any, figures: Any) -> None:
    """Their constants are varied by predicting rows again, parameter servers and all."""
    header = (
        "model,device,gpus,gpus_per_node,inter_bw_Gbps_per_node,batch_per_gpu,precision,variable_update,step_time_ms"
    )
    rows = [
        f"resnet50,v100-16gb,16,8,{bw},64,fp32,{how},250" for bw, how in ((100, "replicated"), (10, "parameter_server"))
    ]
    path = table(*rows, header=header)
    file = figures(path)
    model = BUNDLED["residual"]["kinds"]["images"]
    assert file["interval_width"] == pytest.approx(model["typical_log_sd"] * (model["high"] - model["low"]))
    outcomes = predict(read_table(Path(path)).rows, DEFAULT)
    found = dict(zip(CONSTANTS, effects(outcomes, DEFAULT).T, strict=True))
    assert found["matmul_rate"][0] < -0.05
    assert found["inter_node_bandwidth"][1] < found["inter_node_bandwidth"][0] <= 0
    assert not np.any(found["attention_rate"])


@pytest.mark.published
def test_large_files_are_sampled_evenly(table: Any, bars: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 30 networks five are varied, no two neighbours; without sharp intervals every row counts all the same."""
    monkeypatch.setattr(error_bars, "_MOST_MODELS", 5)
    for framework, is_sampled in (("nanotron", True), ("", False)):
        lines = [line(1, 2000, hidden=1024 + 64 * n, framework=framework) for n in range(30)]
        outcomes = predict(read_table(Path(table(*lines))).rows, DEFAULT)
        models = error_models_of(outcomes, DEFAULT, load_calibration(bars).calibration)
        assert (models.lines is not None) == is_sampled
        assert len(models.effects) == (5 if is_sampled else 0)
        if models.lines is not None:
            places = sorted(models.lines)
            assert places == sorted(models.effects)
            assert min(b - a for a, b in pairwise(places)) >= 2
            assert places[-1] - places[0] >= 15


def test_a_question_of_many_plans_is_thinned(table: Any, figures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_bars, "_MOST_ALTERNATIVES", 3)
    lines = [line(tp, 2000 + tp, micro=micro) for tp in (1, 2, 4) for micro in (1, 2)]
    file = figures(table(*lines))
    assert (file["interval_rows"], file["list_questions"], file["list_plans"]) == (6, 1, 3)


def test_what_rows_meant_is_let_go_of(table: Any) -> None:
    outcomes = predict(read_table(Path(table(*(line(tp, 2000) for tp in (1, 2, 4))))).rows, DEFAULT)
    error_models_of(outcomes, DEFAULT)
    assert all(outcome.row.meaning is None for outcome in outcomes)


# -- calibrations -------------------------------------------------------------------------------------------------------------


def calibration_file(folder: Path, *, value: float = 1.0, tables: list[str] | None = None) -> str:
    """Runs of three networks that were off by 4 %."""
    path = folder / "mine.yaml"
    entries = [
        {"file": name, "sha256": hashlib.sha256(Path(name).read_bytes()).hexdigest(), "rows": 1, "used": 1}
        for name in tables or []
    ]
    document = {
        "schema_version": 1,
        "name": "mine",
        "source": {"tables": entries},
        "constants": {"matmul_rate": {"value": value}},
        "residual": {"log_sd": 0.04, "groups": 3},
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


def test_a_calibration_brings_its_own_intervals(table: Any, figures: Any, tmp_path: Path) -> None:
    """Ends between those of the bundled file and 1.28 x 0.04: the mean of squares, the three networks against three."""
    path = table(*(line(tp, 2000) for tp in (1, 2)))
    before, after = figures(path), figures(path, "--calibration", calibration_file(tmp_path, value=0.8))
    model = BUNDLED["residual"]["kinds"]["transformers"]
    ends = [
        math.sqrt(0.5 * (model["typical_log_sd"] * model[end]) ** 2 + 0.5 * (TENTH * 0.04) ** 2)
        for end in ("low", "high")
    ]
    assert after["interval_width"] == pytest.approx(sum(ends), rel=1e-6)
    assert after["interval_width"] < before["interval_width"]
    found = residuals(after)
    assert max(found) < max(residuals(before))  # slower products: longer predictions
    assert after["interval_coverage"] == sum(-ends[0] <= x <= ends[1] for x in found) / 2
    assert after["interval_score_one_width"] == pytest.approx(mean_score(-TENTH * 0.04, TENTH * 0.04, found))


@pytest.mark.e2e
def test_the_report_says_when_the_bars_saw_the_rows(table: Any, figures: Any, tmp_path: Path, answer: Any) -> None:
    path = table(*(line(tp, 2000) for tp in (1, 2, 4)))
    mine = calibration_file(tmp_path, tables=[path])
    assert not figures(path)["error_bars_in_sample"]
    assert figures(path, "--calibration", mine)["error_bars_in_sample"]
    page = tmp_path / "page.html"
    said = " ".join(answer("validate", path, "--calibration", mine, "--html", str(page)).split())
    for words in (
        "of 3 times inside the 80 % interval",
        "they were fitted to this very file",
        "1 hold the plan measured best; median length",
    ):
        assert words in said
    text = page.read_text()
    assert "they were fitted to this very file" in text
    assert "interval score" in text


def test_the_bundled_bars_name_their_tables(reference_data: Path, new_file: Any, figures: Any) -> None:
    """Every table that the bundled error models were fitted to is known again by its contents."""
    found = {entry["file"]: entry["sha256"] for entry in BUNDLED["source"]["tables"]}
    assert len(found) == 8
    assert sum(entry["used"] for entry in BUNDLED["source"]["tables"]) == BUNDLED["source"]["used"]
    for name, sha256 in found.items():
        assert hashlib.sha256((reference_data / "measurements" / name).read_bytes()).hexdigest() == sha256
    assert load_calibration().tables == frozenset(found.values())
    rows = new_file(
        "rows.csv", convert(reference_data / "measurements" / "misc_transformers.csv").frame().to_csv(index=False)
    )
    file = figures(str(rows))
    assert file["error_bars_in_sample"]
    assert file["interval_rows"] == file["comparisons"]
    assert file["list_questions"] <= file["groups"] == 8
