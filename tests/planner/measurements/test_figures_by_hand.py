"""Every figure of the command against hand-made rows, with predictions put in by hand: nothing of the cost model takes part."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.measurements import plans
from planner.measurements.outcomes import Comparison, MemoryComparison, Outcome, Preset, skipped
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
        return skipped(row, "marked suspect", usable=False)
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
def figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Write rows (said_ms, step_time_ms and other columns) and score them; the whole answer."""
    monkeypatch.setattr(plans, "predict_training", by_hand)

    def ask(*rows: dict[str, object], more: Sequence[str] = ()) -> dict[str, Any]:
        names = COLUMNS.split(",")
        path = tmp_path / "rows.csv"
        lines = [",".join(str({"gpus": 8, **row}.get(name, "")) for name in names) for row in rows]
        path.write_text("\n".join([COLUMNS, *lines]) + "\n")
        assert run(["validate", str(path), "--json", *more]) == 0
        document = json.loads(capsys.readouterr().out)
        ValidationDocument.model_validate(document, strict=True)
        (file,) = document["files"]
        found: dict[str, Any] = file
        return found

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
