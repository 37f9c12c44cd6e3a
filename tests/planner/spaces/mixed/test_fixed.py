"""Options that fix a part of a plan over several groups of devices: obeyed, or refused with what they break."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.cli import run
from tests.cases import mostly


@pytest.fixture
def question(cluster: str) -> list[str]:
    return ["gpt3-1.3b", "--cluster", cluster, "--gpus", "8", "--batch", "48", "--seq", "2048", "--top", "2"]


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
    document = json.loads(answer("optimize", *question, *options.split(), "--json"))
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
        ("--micro-batch 10", "--micro-batch 10: micro-batch 10 does not divide --batch 48 (nearby: 40 or 50)"),
        (
            "--tp 8",
            "tp stays inside a group and a unit of level 'nvlink', whose 4 devices it divides; allowed: 1, 2, 4",
        ),
        ("--tp 4 --pp 4", "--tp 4 --pp 4 exclude each other: tp 4 x pp 4 = 16 is more than --gpus 8"),
        ("--pp 25", "pp 25 is more than --gpus 8; every stage has a block, and the network has 24"),
        ("--dp 4 --micro-batch 16", "dp 4 x micro-batch 16 = 64 is more than --batch 48"),
        ("--num-micro-batches 7", "replicas of 7 micro-batches each take a multiple of that, which --batch 48 is not"),
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
def test_what_cannot_be_is_refused(
    capsys: pytest.CaptureFixture[str], question: list[str], options: str, message: str
) -> None:
    code = run(["optimize", *question, *options.split()])
    out, err = capsys.readouterr()
    assert not out
    assert code == 2
    assert message in err


@pytest.mark.e2e
def test_what_does_not_fit_says_which_option_is_in_the_way(
    capsys: pytest.CaptureFixture[str], question: list[str]
) -> None:
    code = run(["optimize", *question, "--memory-limit", "12 GiB", "--dp", "8"])
    out, err = capsys.readouterr()
    assert not out
    assert code == 1
    assert "nothing fits: " in err
    assert "without --memory-limit 12 GiB it works: " in err
