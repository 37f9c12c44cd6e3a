"""`planner explain` on clusters of several groups of devices: what bounds the step, what would change it, what the best does better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.schema import schema_of
from planner.spaces.mixed.space import MixedPlanSpace
from tests.planner.spaces.mixed.small_cluster import CLUSTER

WIDER = """, levels: [{name: nvlink, size: 4, bandwidth: 330 GB/s, latency: 4 us, efficiency: 0.8}, \
{name: fabric, bandwidth: 110 Gb/s, latency: 10 us}]"""


def cluster_file(folder: Path, a100: str = "", v100: str = "") -> str:
    path = folder / "cluster.yaml"
    text = CLUSTER.replace("a100-80gb, count: 4", "a100-80gb, count: 4" + a100).replace("name: old", "name: old" + v100)
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def question(tmp_path: Path) -> list[str]:
    return f"gpt3-1.3b --cluster {cluster_file(tmp_path)} --gpus 8 --batch 48 --seq 2048".split()


@pytest.mark.exact
def test_json_is_as_published_and_adds_up(answer: Any, question: list[str]) -> None:
    document = json.loads(answer("explain", *question, "--json"))
    schema_of("breakdown").model_validate(document)
    best = json.loads(answer("optimize", *question, "--json", "--top", "1"))["plans"][0]
    assert document["step_time_s"] == best["step_time_s"]
    assert document["plans"][0]["plan"] == best["plan"]
    assert document["best"]["plan"] == best["plan"]
    bound, stages = document["bound"], document["stages"]
    assert bound["working_s"] + bound["waiting_s"] + bound["end_s"] == pytest.approx(document["step_time_s"])
    busiest = next(s for s in stages if (s["pipeline"], s["stage"]) == (bound["pipeline"], bound["stage"]))
    assert bound["group"] == busiest["group"]
    each = busiest["forward_s"] + busiest["backward_s"]
    assert bound["working_s"] == pytest.approx(bound["num_micro_batches"] * each)
    assert min(bound["spare_s"]) == 0
    for stage in stages:
        assert stage["busy_s"] <= document["step_time_s"] * (1 + 1e-9)
    for row in document["what_if"]:
        assert row["gain"] == pytest.approx(document["step_time_s"] / row["step_time_s"] - 1)
        # The plan is proven best: no plan that fits is faster. Better hardware is never slower.
        assert row["gain"] <= 1e-9 if row["kind"] == "plan" and row["fits"] else True
        assert row["gain"] >= -1e-9 if row["kind"] == "hardware" else True
    assert document["what_if"] == sorted(document["what_if"], key=lambda row: (row["kind"], -row["gain"]))


@pytest.mark.exact
def test_what_if_is_what_the_other_hardware_takes(answer: Any, question: list[str], tmp_path: Path) -> None:
    """Links 10 % faster, as a cluster file that says so has it."""
    plan = tmp_path / "plan.yaml"
    rows = json.loads(answer("explain", *question, "--tp", "2", "--pp", "2", "--json", "--export", str(plan)))[
        "what_if"
    ]
    found = {row["change"]: row["step_time_s"] for row in rows}
    for name, changes in (
        ("links of a100-80gb 10 % faster", {"a100": WIDER}),
        ("links of old 10 % faster", {"v100": WIDER}),
        ("links of all groups 10 % faster", {"a100": WIDER, "v100": WIDER}),
    ):
        wider = cluster_file(tmp_path, **changes)
        document = json.loads(answer("estimate", "--plan", str(plan), "--cluster", wider, "--json"))
        assert found[name] == pytest.approx(document["step_time_s"], rel=1e-9)
    cluster_file(tmp_path)


@pytest.mark.exact
def test_a_plan_file_and_degrees_are_compared_with_the_best(answer: Any, question: list[str], tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    fixed = json.loads(answer("explain", *question, "--tp", "4", "--json", "--export", str(plan)))
    assert {s["devices"] for s in fixed["stages"]} == {4}
    assert fixed["best"]["step_time_s"] < fixed["step_time_s"]
    assert fixed["plans"][0]["gap"] == pytest.approx(fixed["step_time_s"] / fixed["best"]["step_time_s"] - 1)
    plan_s = sum(row["plan_s"] for row in fixed["comparison"])
    best_s = sum(row["best_s"] for row in fixed["comparison"])
    assert (plan_s, best_s) == pytest.approx((fixed["step_time_s"], fixed["best"]["step_time_s"]))
    again = json.loads(answer("explain", str(plan), "--json"))
    for key in ("step_time_s", "bound", "what_if", "comparison", "stages"):
        assert again[key] == fixed[key]
    text = " ".join(answer("explain", str(plan)).split())
    for words in (
        "What bounds the step",
        "is the busiest: ",
        "With other hardware, the plan as it is",
        "With another plan, the hardware as it is",
        "Against the best plan: +",
        "Stage by stage",
    ):
        assert words in text


@pytest.mark.exact
def test_what_does_not_fit_is_explained(answer: Any, question: list[str], tmp_path: Path) -> None:
    """The plan does not fit, nor does any other."""
    plan = tmp_path / "plan.yaml"
    answer("optimize", *question, "--top", "1", "--export", str(plan))
    document = json.loads(answer("explain", "--plan", str(plan), "--memory-limit", "2 GiB", "--json"))
    assert document["best"] is None
    assert document["bound"]["working_s"] > 0
    assert not any(row["fits"] for row in document["what_if"])
    assert any(note.startswith("does not fit: ") for note in document["notes"])


@pytest.mark.exact
def test_sensitivity(answer: Any, question: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every constant is there; those that make another plan win do so. The text tells what the document has."""
    found: list[Any] = []
    work_out = MixedPlanSpace.sensitivity
    monkeypatch.setattr(
        MixedPlanSpace, "sensitivity", lambda *of: found[0] if found else found.append(work_out(*of)) or found[0]
    )
    document = json.loads(answer("explain", *question, "--sensitivity", "--json"))
    schema_of("breakdown").model_validate(document)
    rows = {row["constant"]: row for row in document["sensitivity"]}
    assert {"sustained_rate", "intra_node_bandwidth", "inter_node_bandwidth", "host_launch"} <= set(rows)
    for row in rows.values():
        assert (row["factor"] is None) == (row["winner"] is None)
        assert row["winner"] is None or row["winner"] > 1
    assert "What would have to change" in answer("explain", *question, "--sensitivity")


def test_no_time_and_bad_degrees(capsys: pytest.CaptureFixture[str], question: list[str]) -> None:
    assert run(["explain", *question, "--time-limit", "0.000001"]) == 3
    assert "--time-limit gives it longer" in capsys.readouterr().err
    assert run(["explain", *question, "--tp", "3"]) == 2
    assert "--tp 3: tp 3 does not divide" in capsys.readouterr().err
