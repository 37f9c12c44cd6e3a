"""Options that fix a part of a plan over several groups of devices: obeyed, or refused with what they break."""

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


@pytest.fixture
def question(cluster: str) -> list[str]:
    return ["gpt3-1.3b", "--cluster", cluster, "--gpus", "8", "--batch", "48", "--seq", "2048"]


def stages(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [stage for pipeline in plan["plan"]["pipelines"] for stage in pipeline["stages"]]


def replicas(plan: dict[str, Any]) -> int:
    return sum(pipeline.get("replicas", 1) for pipeline in plan["plan"]["pipelines"])


@pytest.mark.e2e
@mostly(
    "exact",
    ("options", "obeys"),
    [
        ("--tp 2", lambda plan: {stage.get("tp", 1) for stage in stages(plan)} == {2}),
        ("--tp 1,4", lambda plan: {stage.get("tp", 1) for stage in stages(plan)} <= {1, 4}),
        ("--pp 2", lambda plan: all(len(pipeline["stages"]) == 2 for pipeline in plan["plan"]["pipelines"])),
        ("--dp 3", lambda plan: replicas(plan) == 3),
        ("--dp 2..3 --pp 1..2", lambda plan: 2 <= replicas(plan) <= 3),
        ("--micro-batch 6", lambda plan: all(p.get("micro_batch", 1) == 6 for p in plan["plan"]["pipelines"])),
        ("--num-micro-batches 8", lambda plan: all(_numbers(p) == {8} for p in plan["plan"]["pipelines"])),
        ("--num-micro-batches 4..8", lambda plan: all(_numbers(p) <= set(range(4, 9)) for p in _pipelines(plan))),
        ("--zero 0", lambda plan: plan["plan"].get("zero_stage", 0) == 0),
        ("--zero 1", lambda plan: plan["plan"]["zero_stage"] == 1 and replicas(plan) > 1),
        ("--recompute full", lambda plan: {stage["recompute"] for stage in stages(plan)} == {"full"}),
        ("--recompute-blocks 2", lambda plan: {stage["recompute_blocks"] for stage in stages(plan)} == {2}),
        ("--no-sequence-parallel --tp 2", lambda plan: not plan["plan"].get("sequence_parallel", False)),
        ("--sequence-parallel", lambda plan: plan["plan"]["sequence_parallel"]),
        ("--order tp-cp-pp-dp --dp 2 --pp 2", lambda plan: plan["plan"]["order"] == "tp-cp-pp-dp"),
        ("--cp 1 --schedule 1f1b --offload none", lambda plan: True),
    ],
    quick=2,
)
def test_what_is_fixed_is_obeyed_and_proven(answer: Any, question: list[str], options: str, obeys: Any) -> None:
    """The best is proven among what is allowed, and no faster than what is free."""
    document = json.loads(answer("optimize", *question, "--top", "2", *options.split(), "--json"))
    assert document["plans"]
    assert all(obeys(plan) for plan in document["plans"])
    assert document["proven_optimal"]
    for baseline in document["baselines"]:
        assert baseline["plan"] is None or obeys(baseline["plan"])


def _pipelines(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return list(plan["plan"]["pipelines"])


def _numbers(pipeline: dict[str, Any]) -> set[int]:
    each = pipeline.get("num_micro_batches", 1)
    return {each, each + 1} if pipeline.get("longer", 0) else {each}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--tp 3", "--tp 3: tp 3 does not divide the 16 attention heads"),
        (
            "--micro-batch 10",
            "--micro-batch 10: micro-batch 10 does not divide --batch 48; use --batch 40 or 50, or --micro-batch 8",
        ),
        (
            "--tp 8",
            "tp stays inside a group and a unit of level 'nvlink', whose 4 devices it divides; allowed: 1, 2, 4",
        ),
        ("--tp 4 --pp 4", "--tp 4 --pp 4 exclude each other: tp 4 x pp 4 = 16 is more than --gpus 8"),
        ("--pp 25", "pp 25 is more than --gpus 8; every stage has a block, and the network has 24"),
        ("--dp 4 --micro-batch 16", "dp 4 x micro-batch 16 = 64 is more than --batch 48"),
        (
            "--num-micro-batches 7",
            "num-micro-batches 7 does not divide --batch 48; use --batch 42 or 49, or --num-micro-batches 6",
        ),
        (
            "--dp 1 --zero 1",
            "--dp 1 --zero 1 exclude each other: the equal replicas of a pipeline share optimizer state",
        ),
        ("--tp 4 --zero 1", "the equal replicas of a pipeline share optimizer state, so that one needs two of them"),
        ("--tp 4 --dp 3", "--tp 4 --dp 3 exclude each other: tp 4 x dp 3 = 12 is more than --gpus 8"),
        (
            "--dp 3 --micro-batch 4,12 --num-micro-batches 8..9",
            "a pipeline takes replicas x tp devices of a group for every stage there (4 a100-80gb, 4 old)",
        ),
        ("--zero 2", "--zero 2: no plan over several groups of devices has that; their replicas share nothing (0)"),
        ("--cp 2", "--cp 2: no plan over several groups of devices has that; they have no context parallelism"),
        ("--ep 2", "they split experts like other matrices, by tp"),
        ("--dp-shard 2", "--dp are the replicas of their pipelines"),
        ("--schedule gpipe", "their pipelines run 1f1b"),
        ("--vpp 2", "their stages have one chunk"),
        ("--offload optimizer", "they keep everything on the devices"),
        ("--order pp-tp-cp-dp", "--order"),
    ],
)
def test_what_cannot_be_is_refused(fails: Any, question: list[str], options: str, message: str) -> None:
    assert message in fails("optimize", *question, *options.split())


@pytest.mark.e2e
def test_what_does_not_fit_says_which_option_is_in_the_way(fails: Any, question: list[str]) -> None:
    err = fails("optimize", *question, "--memory-limit", "10 GiB", "--dp", "8", code=1)
    assert "nothing fits: " in err
    assert "without --memory-limit 10 GiB it works: " in err


# --- `--objective` on clusters of several groups of devices -------------------------------------------------------------------------------


PRICES = {"a100-80gb": 3.4309, "old": 3.9015}  # of the device files


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
    assert re.search(r" Step: [0-9.]+ m?s, 0\.[0-9]+ USD per M (tokens|samples) ", text)
    for words in (
        "by the model, no plan that fits is cheaper than the first",
        "price a100-80gb: 3.4309 USD per GPU and hour; old: 3.9015 USD per GPU and hour (device files)",
        " cheaper than the 4 old alone",
    ):
        assert words in text


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
    assert "power a100-80gb: 400 W of a computing GPU, 80 W of a waiting one" in text
    assert "more energy-efficient" in text


def test_a_missing_price_is_refused(fails: Any, question: list[str], tmp_path: Path, new_file: Any) -> None:
    device = new_file(
        "device.yaml",
        "schema_version: 1\nname: homemade\nmemory: 40 GiB\nmemory_bandwidth: 1 TB/s\npeak: {fp16: 100 TFLOP/s, fp32: 10 TFLOP/s}\n"
        "source: {memory: a test, memory_bandwidth: a test, peak: a test}\n",
    )
    path = tmp_path / "cluster.yaml"
    question[2] = str(path)
    path.write_text(CLUSTER.replace("v100-32gb", str(device)), encoding="utf-8")
    assert "--objective money: device 'homemade' states no price" in fails(
        "optimize", *question, "--objective", "money"
    )
    # Devices that --gpus leave out need no price.
    assert run(["optimize", *question, "--objective", "money", "--gpus", "4", "--top", "1"]) == 0
