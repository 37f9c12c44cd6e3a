"""`--objective` on clusters of several groups of devices."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from planner.cli import run
from planner.schema import schema_of
from tests.cases import mostly
from tests.planner.spaces.mixed.small_cluster import CLUSTER

PRICES = {"a100-80gb": 3.4309, "old": 3.9015}  # of the device files


@pytest.fixture
def question(cluster: str) -> list[str]:
    return f"gpt3-1.3b --cluster {cluster} --gpus 8 --batch 48 --seq 2048".split()


def devices(plan: dict[str, Any]) -> dict[str, int]:
    return {group["name"]: group["devices"] for group in plan["groups"]}


def score(plan: dict[str, Any], objective: str) -> float:
    """From the plain figures of an answer."""
    if objective == "money":
        return plan["step_time_s"] / 3600 * sum(PRICES[name] * count for name, count in devices(plan).items())
    if objective == "mfu":
        return 1.0 / plan["mfu"]
    return plan["step_time_s"] * (1 if objective in ("step_time", "tokens_per_s") else plan["workers"])


@pytest.mark.e2e
@mostly(
    "exact", "objective", ["step_time", "tokens_per_s", "tokens_per_s_per_gpu", "gpu_hours", "mfu", "money"], quick=2
)
def test_the_best_of_an_objective_is_best_by_its_figures(
    answer: Any, known_answer: Any, question: list[str], objective: str
) -> None:
    document = json.loads(answer("optimize", *question, "--objective", objective, "--json", "--top", "4"))
    schema_of("result").model_validate(document)
    assert document["objective"] == objective
    assert document["proven_optimal"]
    found = [score(plan, objective) for plan in document["plans"]]
    assert found == sorted(found)
    for plan, own in zip(document["plans"], found, strict=True):
        assert plan["gap"] == pytest.approx(own / found[0] - 1, abs=1e-9)
    # The fastest plan is in the same space: it is no better.
    fastest = json.loads(known_answer("optimize", *question, "--json", "--top", "1"))["plans"][0]
    assert found[0] <= score(fastest, objective) * (1 + 1e-9)
    assert document["bound_s"] <= fastest["step_time_s"] * (1 + 1e-9)
    for baseline in document["baselines"]:
        assert score(baseline["plan"], objective) >= found[0] * (1 - 1e-9)
        assert baseline["bound_s"] <= baseline["plan"]["step_time_s"]


@pytest.mark.e2e
def test_money_is_said_in_words(answer: Any, question: list[str]) -> None:
    text = " ".join(answer("optimize", *question, "--objective", "money", "--top", "1", "-v").split())
    assert re.search(r" Step: [0-9.]+ m?s, 0\.[0-9]+ USD per step ", text)
    assert "no plan of the stated space that fits is cheaper than the first" in text
    assert "price 3.4309 of a100-80gb, 3.9015 of old in USD per GPU and hour (device files)" in text
    assert "x cheaper than the 4 old alone" in text


@pytest.mark.e2e
def test_fixed_degrees_and_explanations_go_with_an_objective(answer: Any, question: list[str]) -> None:
    document = json.loads(answer("explain", *question, "--objective", "money", "--tp", "4", "--json"))
    schema_of("breakdown").model_validate(document)
    mine, best = score(document["plans"][0], "money"), score(document["best"], "money")
    assert document["plans"][0]["gap"] == pytest.approx(mine / best - 1)
    assert mine > best


@pytest.mark.exact
def test_energy_has_a_bound(answer: Any, known_answer: Any, question: list[str]) -> None:
    """Whether it is proven or not, no plan that is known takes less than the bound says; the fastest plan is one of them."""
    document = json.loads(answer("optimize", *question, "--objective", "energy", "--json", "--top", "3"))
    schema_of("result").model_validate(document)
    found = [plan["energy_per_step_j"] for plan in document["plans"]]
    assert found == sorted(found)
    assert document["proven_optimal"] == (document["gap"] == 0)
    assert document["gap"] < 0.1
    fastest = known_answer("optimize", *question, "--json", "--top", "1")  # as --objective step_time, see above
    others = [
        answer("optimize", *question, "--objective", name, "--json", "--top", "1") for name in ("gpu_hours", "money")
    ]
    for other in (json.loads(text)["plans"][0] for text in (fastest, *others)):
        assert other["energy_per_step_j"] >= found[0] * (1 - document["gap"]) * (1 - 1e-9)
        assert document["bound_s"] <= other["step_time_s"]
    text = " ".join(answer("optimize", *question, "--objective", "energy", "--top", "1", "-v").split())
    assert "power 400 W (80 W) of a100-80gb, 300 W (60 W) of old computing (waiting)" in text
    assert "more energy-efficient" in text


def test_a_missing_price_is_refused(capsys: pytest.CaptureFixture[str], question: list[str], tmp_path: Path) -> None:
    device = tmp_path / "device.yaml"
    device.write_text(
        "schema_version: 1\nname: homemade\nmemory: 40 GiB\nmemory_bandwidth: 1 TB/s\npeak: {fp16: 100 TFLOP/s, fp32: 10 TFLOP/s}\n"
        "source: {memory: a test, memory_bandwidth: a test, peak: a test}\n",
        encoding="utf-8",
    )
    path = tmp_path / "cluster.yaml"
    question[2] = str(path)
    path.write_text(CLUSTER.replace("v100-32gb", str(device)), encoding="utf-8")
    assert run(["optimize", *question, "--objective", "money"]) == 2
    assert "--objective money: device 'homemade' states no price" in capsys.readouterr().err
    # Devices that --gpus leave out need no price.
    assert run(["optimize", *question, "--objective", "money", "--gpus", "4", "--top", "1"]) == 0
