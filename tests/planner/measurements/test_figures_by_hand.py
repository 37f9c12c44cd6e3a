"""Every figure of the command against hand-made rows, with predictions put in by hand: nothing of the cost model takes part."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.measurements import plans
from planner.measurements.metrics import best_factor, error_summary, kendall_tau, pair_accuracy, ranking_summary, regret
from planner.measurements.outcomes import Comparison, MemoryComparison, Outcome, Preset
from planner.measurements.tables import Row
from planner.schema.results import ValidationDocument

GIB = 2.0**30
COLUMNS = "hidden,layers,heads,device,gpus,global_batch,step_time_ms,oom,memory_gib,suspect,said_ms,said_gib,ideal_ms,question,impossible"
# In the order of issue and documentation.
KEYS = (
    "file", "rows", "scored", "skipped", "mape", "median_ape", "p90_ape", "bias", "skill", "groups", "kendall_tau", "pair_accuracy",
    "regret_top1_mean", "regret_top1_max", "regret_top3_mean", "memory_mape", "memory_median_ape", "oom_recall", "oom_false_alarm",
    "parameters_fitted",
)  # fmt: skip


def by_hand(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """What a row says is predicted; the preset ``paleo`` says twice as much. Devices have 110 GiB, of
    which a run can use 100."""
    return [_outcome(row, 2.0 if preset.name == "paleo" else 1.0) for row in rows]


def _outcome(row: Row, factor: float) -> Outcome:
    if row.flag("suspect"):
        return Outcome(row=row, skipped="marked suspect", usable=False)
    if row.has("impossible"):
        return Outcome(row=row, failed=True, impossible=row.text("impossible"))
    said_gib, measured_gib = row.number("said_gib"), row.number("memory_gib")
    memory = None
    if said_gib is not None:
        measured = None if measured_gib is None else measured_gib * GIB
        memory = MemoryComparison(
            predicted_bytes=said_gib * GIB, capacity_bytes=100 * GIB, device_bytes=110 * GIB, measured_bytes=measured
        )
    if row.flag("oom"):
        return Outcome(row=row, failed=True, memory=memory)
    said, measured_ms, ideal = (row.number(name) for name in ("said_ms", "step_time_ms", "ideal_ms"))
    assert said is not None
    assert measured_ms is not None
    comparison = Comparison(
        what="step", predicted_s=said * factor * 1e-3, measured_s=measured_ms * 1e-3, ideal_s=(ideal or 0.0) * 1e-3
    )
    if not row.has("question"):
        row.default("question", "none")
    return Outcome(
        row=row,
        comparisons=(comparison,),
        memory=memory,
        ranking=row.text("question") or None,
        fitted=frozenset({"a", "b"} if row.text("gpus") == "8" else {"b"}),
    )


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: Any) -> Any:
    """Write rows (said_ms, step_time_ms and other columns) and score them; the whole answer."""
    monkeypatch.setattr(plans, "predict_training", by_hand)

    def ask(*rows: dict[str, object], more: Sequence[str] = ()) -> dict[str, Any]:
        names = COLUMNS.split(",")
        path = tmp_path / "rows.csv"
        lines = [",".join(str({"gpus": 8, **row}.get(name, "")) for name in names) for row in rows]
        path.write_text("\n".join([COLUMNS, *lines]) + "\n")
        document = json.loads(answer("validate", path, "--json", *more))
        ValidationDocument.model_validate(document, strict=True)
        (file,) = document["files"]
        return file

    return ask


def time(said: float, measured: float, **more: object) -> dict[str, object]:
    return {"said_ms": said, "step_time_ms": measured, **more}


def test_all_keys_are_there_whatever_there_is(figures: Any) -> None:
    for rows in ([time(100, 100)], [{"oom": "yes", "said_gib": 120}], [{"suspect": "yes"}]):
        assert set(KEYS) <= set(figures(*rows))


def test_errors_of_times(figures: Any) -> None:
    """Off by +100 %, -25 %, -20 %, +10 %, 0."""
    file = figures(time(2, 1), time(3, 4), time(8, 10), time(11, 10), time(5, 5))
    assert file["mape"] == pytest.approx((1.0 + 0.25 + 0.2 + 0.1 + 0.0) / 5)
    assert file["median_ape"] == pytest.approx(0.2)
    assert file["p90_ape"] == pytest.approx(0.25 + 0.6 * 0.75)  # position 3.6 of 0, 0.1, 0.2, 0.25, 1
    assert file["bias"] == pytest.approx((math.log(2) + math.log(0.75) + math.log(0.8) + math.log(1.1)) / 5)
    assert file["paleo"]["mape"] == pytest.approx((3.0 + 0.5 + 0.6 + 1.2 + 1.0) / 5)
    assert file["paleo"]["bias"] == pytest.approx(file["bias"] + math.log(2))
    assert (file["rows"], file["scored"], file["comparisons"]) == (5, 5, 5)


def test_skill_is_against_flops_at_one_efficiency(figures: Any) -> None:
    """FLOPs alone need 1, 1, 2: measured are 2, 2 and 8, so that twice the time suits best; off by 0, 0, 50 %. Predicted: 10 % each."""
    file = figures(time(2.2, 2, ideal_ms=1), time(2.2, 2, ideal_ms=1), time(8.8, 8, ideal_ms=2))
    assert file["skill"] == pytest.approx(1 - 0.1 / (0.5 / 3))
    assert file["paleo"]["skill"] == pytest.approx(1 - 1.2 / (0.5 / 3))


def test_a_part_that_the_baseline_meets_has_no_skill(figures: Any) -> None:
    """One row at the efficiency of the file: its own error over none would be minus 10^14."""
    measured = 0.1 + 0.2  # no power of two: the product of factor and FLOPs is off by rounding
    rows = [
        time(0.4, measured, ideal_ms=0.7 / 3, gpus=8),
        time(0.2, 0.1, ideal_ms=0.01, gpus=4),
        time(3, 1, ideal_ms=2, gpus=16),
    ]
    parts = {part["value"]: part for part in figures(*rows, more=["--by", "gpus"])["by"]}
    assert parts["16"]["skill"] is None
    assert all(part["skill"] is None or part["skill"] > -1e6 for part in parts.values())
    assert parts["8"]["mape"] == pytest.approx(0.4 / measured - 1)


def test_ranking_within_a_question_of_at_least_three(figures: Any) -> None:
    """Question a: measured 10, 20, 40, predicted in the order 20, 10, 40. Question b has two rows; c is ranked backwards."""
    rows = [time(2, 10, question="a"), time(1, 20, question="a"), time(3, 40, question="a")]
    rows += [time(9, 1, question="b"), time(1, 9, question="b")]
    rows += [time(4, 10, question="c"), time(3, 20, question="c"), time(2, 30, question="c"), time(1, 50, question="c")]
    file = figures(*rows)
    assert file["groups"] == 2
    assert file["kendall_tau"] == pytest.approx(((2 - 1) / 3 + -1.0) / 2)
    assert file["pair_accuracy"] == pytest.approx((2 / 3 + 0.0) / 2)
    assert file["regret_top1_mean"] == pytest.approx((20 / 10 + 50 / 10) / 2)
    assert file["regret_top1_max"] == pytest.approx(5.0)
    assert file["regret_top3_mean"] == pytest.approx((1.0 + 2.0) / 2)  # of c the three best hold 20, not 10
    assert file["paleo"]["kendall_tau"] == pytest.approx(file["kendall_tau"])


def test_without_three_alternatives_nothing_is_ranked(figures: Any) -> None:
    file = figures(time(9, 1, question="b"), time(1, 9, question="b"), time(1, 9, question="d"))
    assert file["groups"] == 0
    for key in ("kendall_tau", "pair_accuracy", "regret_top1_mean", "regret_top1_max", "regret_top3_mean"):
        assert file[key] is None
        assert file["paleo"][key] is None


def test_memory_and_failures(figures: Any) -> None:
    """Ran: 50 said of 40, 90 of 100, 110 (a false alarm) of 88. Failed: 130 and 101 found, 99 missed, 54 and 49 crashes: below 55."""
    rows = [
        time(1, 1, said_gib=50, memory_gib=40),
        time(1, 1, said_gib=90, memory_gib=100),
        time(1, 1, said_gib=110, memory_gib=88),
        time(1, 1, said_gib=20),
        time(1, 1),
    ]
    rows += [{"oom": "yes", "said_gib": gib} for gib in (130, 101, 99, 54, 49)]
    rows += [{"oom": "yes", "impossible": "stages"}, {"oom": "yes", "impossible": "heads"}]
    file = figures(*rows)
    assert file["memory_mape"] == pytest.approx((0.25 + 0.1 + 0.25) / 3)
    assert file["memory_median_ape"] == pytest.approx(0.25)
    assert file["oom_recall"] == pytest.approx(2 / 3)
    assert file["oom_false_alarm"] == pytest.approx(1 / 4)  # the row without a predicted memory says nothing
    assert file["failures"] == 7
    assert file["failures_apart"] == {"impossible plan": 2, "predicted under half of the memory": 2}
    assert file["comparisons"] == 5  # failures are scored for feasibility only
    assert file["scored"] == 12


def test_suspect_rows_are_counted_and_left_out(figures: Any) -> None:
    file = figures(time(2, 1), time(900, 1, suspect="yes"), time(900, 1, suspect="yes"), time(2, 1, suspect="no"))
    assert (file["rows"], file["scored"], file["skipped"], file["mape"]) == (4, 2, {"marked suspect": 2}, 1.0)


def test_shares_without_defaults_and_fitted_constants(figures: Any) -> None:
    file = figures(time(1, 1, question="a", gpus=8), time(1, 1, gpus=4), time(1, 1, question="a", gpus=4))
    assert file["without_default"] == pytest.approx(2 / 3)
    assert file["defaults"] == {"question": 1}
    assert (file["parameters_fitted"], file["fitted"]) == (2, ["a", "b"])


def test_the_ten_worst_rows_by_their_ratio_either_way(figures: Any) -> None:
    file = figures(*[time(100 + n, 100) for n in range(12)], time(20, 100), time(300, 100))
    assert [row["line"] for row in file["worst"]] == [
        14,
        15,
        *range(13, 5, -1),
    ]  # a fifth, three times, then 1.11 downwards
    assert file["worst"][0]["ratio"] == pytest.approx(0.2)


def test_parts_have_all_figures_and_the_paleo_preset(figures: Any) -> None:
    file = figures(
        time(2, 1, gpus=16), time(1, 1, gpus=8), time(3, 2, gpus=8), time(1, 2, gpus=""), more=["--by", "gpus"]
    )
    parts = {part["value"]: part for part in file["by"]}
    assert list(parts) == ["8", "16", ""]  # numbers in their order
    assert parts["8"]["mape"] == pytest.approx(0.25)
    assert parts["8"]["paleo"]["mape"] == pytest.approx((1.0 + 2.0) / 2)
    assert sum(part["rows"] for part in parts.values()) == file["rows"]
    assert set(KEYS) - {"file"} <= set(parts["16"])


# --- Errors against numbers worked out by hand, and against searches that know nothing of the formulas ------------------------------------


positive = st.floats(min_value=0.01, max_value=100.0)


def test_skill_is_zero_for_the_baseline_itself_and_one_for_perfection() -> None:
    measured, ideal = [1.0, 2.0, 5.0], [1.0, 1.0, 1.0]
    factor = best_factor(ideal, measured)
    assert error_summary([factor * x for x in ideal], measured, ideal)["skill"] == pytest.approx(0.0)
    assert error_summary(measured, measured, ideal)["skill"] == 1.0


def test_rows_without_flop_are_no_part_of_the_skill() -> None:
    with_view = error_summary([1.1, 1.8, 9.0], [1.0, 2.0, 1.0], [1.0, 1.0, 0.0])
    assert with_view["skill"] == pytest.approx(error_summary([1.1, 1.8], [1.0, 2.0], [1.0, 1.0])["skill"])


def test_the_baseline_of_a_part_may_come_from_the_whole() -> None:
    assert error_summary([1.5], [1.0], [1.0], factor=2.0)["skill"] == pytest.approx(0.5)  # the baseline says 2


@pytest.mark.parametrize("count", [0, 1])
def test_hardly_any_rows(count: int) -> None:
    summary = error_summary([2.0] * count, [1.0] * count, [1.0] * count)
    assert (summary["mape"], summary["skill"]) == ((None, None) if count == 0 else (1.0, None))


def test_a_prediction_of_no_time_is_infinitely_biased() -> None:
    assert error_summary([0.0, 1.0], [1.0, 1.0], [1.0, 1.0])["bias"] == -math.inf


@given(st.lists(st.tuples(positive, positive), min_size=1, max_size=12))
def test_no_other_factor_of_the_baseline_is_better(rows: list[tuple[float, float]]) -> None:
    ideal, measured = np.array(rows).T

    def mean_error(factor: float) -> float:
        return sum(abs(factor * a - b) / b for a, b in rows) / len(rows)

    best = mean_error(best_factor(ideal, measured))
    # The mean is convex and bends where a row is met exactly: one of those points is the least.
    assert best <= min(mean_error(b / a) for a, b in rows) * (1 + 1e-12)


# --- Rankings against counting pairs one by one, and against all ways to break ties -------------------------------------------------------


# Few values, so that ties are common.
rows = st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=2, max_size=9)


@given(rows)
def test_tau_counts_pairs(members: list[tuple[int, int]]) -> None:
    concordant = discordant = tied_predicted = tied_measured = 0
    for (a, b), (c, d) in itertools.combinations(members, 2):
        concordant += (a < c and b < d) or (a > c and b > d)
        discordant += (a < c and b > d) or (a > c and b < d)
        tied_predicted += a == c
        tied_measured += b == d
    pairs = len(members) * (len(members) - 1) // 2
    tau = kendall_tau([a for a, _ in members], [b for _, b in members])
    if tied_measured == pairs:
        assert tau is None
    elif tied_predicted == pairs:
        assert tau == 0.0
    else:
        expected = (concordant - discordant) / math.sqrt((pairs - tied_predicted) * (pairs - tied_measured))
        assert tau == pytest.approx(expected)


@given(rows)
def test_accuracy_counts_pairs(members: list[tuple[int, int]]) -> None:
    right, told = 0.0, 0
    for (a, b), (c, d) in itertools.combinations(members, 2):
        if b != d:
            told += 1
            right += 0.5 if a == c else float((a < c) == (b < d))
    accuracy = pair_accuracy([a for a, _ in members], [b for _, b in members])
    assert accuracy == (pytest.approx(right / told) if told else None)


@given(rows, st.integers(1, 4))
def test_regret_is_the_mean_over_all_orders_of_equal_predictions(members: list[tuple[int, int]], top: int) -> None:
    members = members[:7]
    best = min(b for _, b in members)
    values = []
    for order in itertools.permutations(members):
        ranked = sorted(order, key=lambda row: row[0])  # stable: every order of the ties comes up equally often
        values.append(min(b for _, b in ranked[:top]) / best)
    assert regret([a for a, _ in members], [b for _, b in members], top) == pytest.approx(sum(values) / len(values))


def test_the_pick_is_predicted_to_fit() -> None:
    """The quickest does not fit and is left where it is for the order of times; without any that fits it is picked."""
    times, measured = [1.0, 2.0, 3.0, 4.0], [50.0, 20.0, 10.0, 30.0]
    some = ranking_summary([(times, measured, [False, True, True, True])])
    none = ranking_summary([(times, measured, [False] * 4)])
    assert (some["regret_top1_mean"], none["regret_top1_mean"]) == (2.0, 5.0)
    assert (some["regret_top3_mean"], none["regret_top3_mean"]) == (1.0, 1.0)
    assert some["kendall_tau"] == none["kendall_tau"] == ranking_summary([(times, measured, [True] * 4)])["kendall_tau"]
    one = ranking_summary([(times, measured, [True, False, False, False])])  # of the others the quickest comes next
    assert one["regret_top3_mean"] == 1.0
