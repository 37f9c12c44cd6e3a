"""Plans with a split per layer ranked by money, energy or devices' hours."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

from costmodel.objectives import OBJECTIVES
from planner.cli import run
from planner.core.answer import Answer
from planner.core.objectives import better_word, check_layer_objective
from planner.core.request import Request
from planner.spaces.ask import explain, optimize
from strategies.serving.search import SERVING_OBJECTIVES

# A tight memory, so that one worker is too few and the cheapest plan is not the trivial one.
VGG = Request(model="vgg16", gpus=8, batch=512, memory_limit="9 GiB")
_ANSWERS: dict[str, Answer] = {}


def answer(objective: str) -> Answer:
    if objective not in _ANSWERS:
        _ANSWERS[objective] = optimize(dataclasses.replace(VGG, objective=objective))
    return _ANSWERS[objective]


def test_every_objective_has_a_word() -> None:
    assert all(better_word(name) for name in (*OBJECTIVES, *SERVING_OBJECTIVES))


@pytest.mark.e2e
@pytest.mark.parametrize("objective", ["money", "energy", "gpu_hours"])
def test_the_first_costs_least_and_is_proven(objective: str) -> None:
    key = "energy_per_step_j" if objective == "energy" else "money_per_step"
    fast, best = answer("step_time"), answer(objective)
    assert best.objective == objective
    assert best.proof.proven_optimal
    assert best.proof.gap == 0
    costs = [plan[key] for plan in best.plans]
    assert costs == sorted(costs)
    assert costs[0] < fast.plans[0][key]
    assert best.plans[0].workers < fast.plans[0].workers
    assert best.plans[0].gap == 0
    for plan, cost in zip(best.plans, costs, strict=True):
        assert plan.gap == pytest.approx(cost / costs[0] - 1, abs=1e-9)


@pytest.mark.e2e
def test_no_plan_is_faster_than_the_bound_of_another_objective() -> None:
    fastest = answer("step_time").plans[0].step_time_s
    for objective in ("money", "energy"):
        assert 0 < answer(objective).proof.bound_s <= fastest


@pytest.mark.exact
def test_chances_are_of_the_objective() -> None:
    """The fastest plan, three times as dear, is not likely to be the cheapest."""
    plans = optimize(dataclasses.replace(VGG, objective="money", diverse=True)).plans
    assert plans[0].probability_best is not None
    dear = [plan for plan in plans if plan.gap > 0.4]
    assert dear
    assert all((plan.probability_best or 0.0) < 0.05 for plan in dear)


@pytest.mark.e2e
def test_explain_compares_with_the_least_energy() -> None:
    found = explain(dataclasses.replace(VGG, gpus=8, objective="energy", family="data"))
    assert isinstance(found.ranked.gap, float)
    best = answer("energy").plans[0]
    assert found.best.plan == best.plan
    assert found.ranked.gap == pytest.approx(found.ranked["energy_per_step_j"] / best["energy_per_step_j"] - 1)


@pytest.mark.e2e
def test_a_fast_plan_is_not_the_cheapest(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight GPUs are faster than one, and cost five times as much."""
    assert run(["explain", "alexnet", "--gpus", "8", "--family", "data", "--objective", "money", "--width", "200"]) == 0
    out = capsys.readouterr().out
    assert "is cheaper." not in out
    assert "Against the best plan: +" in out
    assert re.search(r", 0\.0000\d+ USD on 1 of 8 GPUs of one worker", out)
    assert run(["explain", "alexnet", "--gpus", "8", "--objective", "money", "--width", "200"]) == 0
    assert "No plan of the stated space is cheaper." in capsys.readouterr().out


@pytest.mark.e2e
def test_the_answer_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize", "alexnet", "--gpus", "4", "--objective", "energy", "--width", "160"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for words in (
        "energy",
        "per step",
        " J per step (80 % interval",
        "is more energy-efficient than the first",
        "W of a computing GPU",
        "x more energy-efficient than plain data parallelism on all 4 GPUs",
        "as good as plain data parallelism on 1, its best number",
    ):
        assert words in out
    assert run(["optimize", "alexnet", "--gpus", "4", "--objective", "money", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["objective"] == "money"
    assert "USD per GPU and hour" in {row["name"]: row["value"] for row in document["assumptions"]}["price"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--objective", "mfu"), "--objective gpu_hours"),
        (("--objective", "tokens_per_s"), "the network reads no tokens; --objective step_time"),
        (("--objective", "tokens_per_s_per_gpu"), "the network reads no tokens; --objective gpu_hours"),
        (("--objective", "energy", "--device", "h20"), "states no power"),
        (("--objective", "money", "--device", "h20"), "states no price"),
        (("--objective", "ttft", "--mode", "inference"), "is for networks that generate text"),
    ],
)
def test_what_is_not_defined(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert run(["optimize", "alexnet", "--gpus", "4", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_serving_refuses_what_only_a_forward_pass_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["optimize", "llama2-7b", "--mode", "inference", "--gpus", "1", "--objective", "energy"]) == 2
    assert "--objective energy: serving has throughput" in capsys.readouterr().err
    assert run(["optimize", "alexnet", "--mode", "inference", "--gpus", "2", "--objective", "energy"]) == 0


def test_tokens_where_there_are_some() -> None:
    from planner.files.loading import load_cluster

    device = load_cluster("dgx-h100").cluster.device
    check_layer_objective("tokens_per_s_per_gpu", device, reads_tokens=True)
