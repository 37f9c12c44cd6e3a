"""`planner.sweep` and `planner.size` are the commands of these names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import planner
from planner.sweeping.run import Swept

Ask = Callable[..., str]

TRAINING: dict[str, Any] = {"samples": 1.28e6, "epochs": 90, "batch": 512}
TRAINING_WORDS = ["--samples", "1.28M", "--epochs", "90", "--batch", "512"]


@pytest.mark.exact
def test_a_grid_is_that_of_the_command_line(answer: Ask) -> None:
    found = planner.sweep("alexnet", gpus=[1, 2, 4], cluster=["dgx1-v100", "h100"], batch=[256, 512])
    said = json.loads(
        answer("sweep", "alexnet", "--gpus", "1,2,4", "--cluster", "dgx1-v100,h100", "--batch", "256,512", "--json")
    )
    assert found.rows == said["rows"]
    assert len(found) == 12
    assert {row["cluster"] for row in found} == {"dgx1-v100", "dgx-h100"}
    assert found.to_dict()["command_line"].startswith("planner.sweep('alexnet'")


def test_objects_are_axes_too() -> None:
    cluster = planner.load_cluster("dgx1-v100")
    assert planner.sweep(planner.load_model("alexnet"), gpus=2, cluster=cluster).rows == (
        planner.sweep("alexnet", gpus=2, cluster=["dgx1-v100"]).rows
    )


@pytest.mark.e2e
def test_a_journal_is_not_searched_again(tmp_path: Path) -> None:
    journal = tmp_path / "rows.journal"
    first = planner.sweep("alexnet", gpus=[1, 2], journal=journal)
    heard: list[str] = []
    again = planner.sweep("alexnet", gpus=[1, 2, 3], journal=journal, progress=lambda words, _: heard.append(words))
    assert again.raw.taken == 2
    assert again.rows[:2] == first.rows
    assert [words.partition(":")[0] for words in heard] == ["question 2 of 3", "question 3 of 3"]
    assert planner.sweep("alexnet", gpus=[1, 2], journal=journal, fresh=True).raw.taken == 0


def test_a_figure(tmp_path: Path) -> None:
    found = planner.sweep("alexnet", gpus=[1, 2])
    assert found.write_plot(tmp_path / "a.svg").read_text(encoding="utf-8").lstrip().startswith("<")
    with pytest.raises(planner.UsageError, match=r"a figure ends in \.svg or \.png"):
        found.write_plot(tmp_path / "a.txt")


def test_an_interrupted_grid_keeps_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = Swept(rows=({"gpus": 1},), total=2, taken=0, interrupted=True)
    monkeypatch.setattr("planner.api.studies.run", lambda *_, **__: stopped)
    with pytest.raises(KeyboardInterrupt) as caught:
        planner.sweep("alexnet", gpus=[1, 2])
    assert isinstance(caught.value, planner.Interrupted)
    assert isinstance(caught.value.result, planner.Sweep)
    assert caught.value.result.rows == [{"gpus": 1}]


@pytest.mark.e2e
def test_a_size_is_that_of_the_command_line(answer: Ask) -> None:
    found = planner.size("alexnet", **TRAINING, days=0.25, cluster="dgx1-v100", max_gpus=8)
    said = json.loads(
        answer(
            "size", "alexnet", *TRAINING_WORDS, "--days", "0.25", "--cluster", "dgx1-v100", "--max-gpus", "8", "--json"
        )
    )
    ours = found.to_dict()
    assert ours.pop("command_line") != said.pop("command_line")
    assert ours == said
    least = found.least_gpus
    assert least is not None
    plan = found.plan()
    assert plan.workers == least["workers"]
    assert plan.step_time_s == least["step_time_s"]


@pytest.mark.exact
def test_the_plan_of_a_size_is_refined() -> None:
    found = planner.size("llama3-8b", tokens=1e9, days=1, cluster="dgx-h100", max_gpus=16, batch=64, pp=4)
    least = found.least_gpus
    assert least is not None
    plan = found.plan()
    assert plan.step_time_s <= least["step_time_s"]
    best = planner.optimize("llama3-8b", gpus=least["allowed_gpus"], cluster="dgx-h100", batch=64, pp=4).best
    assert plan.step_time_s == best.step_time_s


def test_the_old_name_of_a_wish_is_understood() -> None:
    found = planner.size("alexnet", **TRAINING, days=30, cluster="dgx1-v100", max_gpus=1, power="250 W")
    assert found.least_energy is not None
    assert found.least_energy == found.thriftiest == found.to_dict()["clusters"][0]["thriftiest"]
    assert found.plan("thriftiest").summary == found.plan("least_energy").summary


def test_where_nothing_will_do_the_nearest_miss_is_data() -> None:
    found = planner.size("alexnet", **TRAINING, days=0.0001, cluster="dgx1-v100", max_gpus=2)
    assert found.least_gpus is None
    assert found.nearest is not None
    assert "nearest miss" in (found.miss or "")
    with pytest.raises(planner.NoFeasiblePlan, match="nearest miss"):
        found.plan()


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: planner.sweep("alexnet"), "gpus: is missing"),
        (lambda: planner.size("alexnet", days=1), "tokens: is missing"),
        (lambda: planner.size("alexnet", samples=1), "days, budget: give at least one"),
        (lambda: planner.sweep("alexnet", gpus=1, jobs=2, dask="tcp://x:1"), "jobs and dask: choose one"),
        (lambda: planner.sweep("alexnet", gpus=1, cluster=["no-such"]), "no-such"),
    ],
)
def test_mistakes(ask: Callable[[], Any], words: str) -> None:
    with pytest.raises(planner.PlannerError, match=words) as caught:
        ask()
    assert "--" not in str(caught.value)


def test_rows_name_the_clusters_that_devices_stand_for() -> None:
    swept = planner.sweep("alexnet", gpus=1, cluster=["h100", "dgx-h100", "h200"])
    assert [row["cluster"] for row in swept] == ["dgx-h100", "h200"]
    sized = planner.size("alexnet", samples="1M", days=30, nodes=1, cluster="a100")
    assert sized.least_gpus is not None
    assert sized.least_gpus["cluster"] == "dgx-a100"
