"""Money and energy in answers: options, files, objectives, bundled figures."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from costmodel.hardware.host import Power
from costmodel.objectives import OBJECTIVES, SERVING_OBJECTIVES
from planner.core.answer import Answer
from planner.core.objectives import better_word, check_layer_objective
from planner.core.request import Request
from planner.files.loading import load_cluster, load_device
from planner.files.resources import bundled
from planner.question.resolve import resolve
from planner.spaces.ask import explain, optimize


@pytest.mark.parametrize("name", sorted(bundled("devices")))
def test_bundled_power_and_prices_have_sources_and_are_sensible(name: str) -> None:
    import yaml

    document = yaml.safe_load(bundled("devices")[name].read_text(encoding="utf-8"))
    for key in ("power", "price_per_hour"):
        assert (key in document) == (key in document["source"]), key
    device = load_device(name).device
    if device.busy_power_w is not None:
        assert 50 <= device.busy_power_w <= 1500
    if device.price_per_hour is not None:
        assert 0.1 <= device.price_per_hour <= 20
        assert "on-demand" in document["source"]["price_per_hour"]
    if name.startswith("paleo-"):
        assert device.busy_power_w is None


def test_a_cluster_s_price_goes_before_the_device_s(new_file: Any) -> None:
    text = bundled("clusters")["dgx-a100"].read_text(encoding="utf-8")
    mine = new_file("mine.yaml", text.replace("\nsource:\n", "\nprice_per_hour: 1.25\nsource:\n"))
    assert load_cluster(str(mine)).cluster.device.price_per_hour == 1.25
    assert load_cluster("dgx-a100").cluster.device.price_per_hour == load_device("a100-80gb").device.price_per_hour


def test_mixed_clusters_state_prices_by_device(new_file: Any, fails: Any) -> None:
    text = bundled("clusters")["a100-v100"].read_text(encoding="utf-8")
    mine = new_file("mine.yaml", text.replace("\nsource:\n", "\nprice_per_hour: 1.25\nsource:\n"))
    assert "about one kind of device" in fails("optimize", "llama2-7b", "--gpus", "8", "--cluster", str(mine))
    assert "has several" in fails("optimize", "llama2-7b", "--gpus", "8", "--cluster", "a100-v100", "--price", "1")


def test_the_host_s_power_is_shared_by_its_devices() -> None:
    cluster = load_cluster("dgx-h100").cluster
    power = Power.of(cluster.device, cluster.host)
    assert power == Power(busy_w=700.0, idle_w=140.0, host_w=575.0)


@pytest.mark.e2e
def test_every_plan_states_both(document: Any) -> None:
    for question in ("alexnet --gpus 4", "llama2-7b --gpus 16 --batch 64"):
        found = document(f"optimize {question} --cluster ethernet-10g --price 2 --power 300W,50W")
        for plan in found["plans"]:
            seconds = plan["workers"] * plan["step_time_s"]
            assert plan["money_per_step"] == pytest.approx(seconds / 1800)
            assert 50 * seconds <= plan["energy_per_step_j"] <= 300 * seconds * (1 + 1e-9)


@pytest.mark.e2e
def test_a_split_per_layer_by_hand() -> None:
    best = optimize(Request(model="alexnet", gpus=4, cluster="ethernet-10g", power_w=(300.0, 50.0))).plans[0]
    busy = best["compute_s"] + best["update_s"]
    expected = best.workers * (50.0 * best.step_time_s + 250.0 * busy)
    assert best["energy_per_step_j"] == pytest.approx(expected)


@pytest.mark.e2e
def test_least_energy_takes_no_more_than_the_fastest(document: Any) -> None:
    question = "optimize llama2-7b --gpus 64 --batch 64 --cluster dgx-a100"
    fast = document(question)["plans"][0]
    found = document(f"{question} --objective energy")
    least_energy = found["plans"][0]
    assert found["proven_optimal"] is True
    assert least_energy["energy_per_step_j"] <= fast["energy_per_step_j"]
    assert 0 < found["bound_s"] <= min(fast["step_time_s"], least_energy["step_time_s"])
    names = {row["name"]: row["value"] for row in found["assumptions"]}
    assert "400 W of a computing GPU" in names["power"]
    assert "an assumption" in names["power"]


@pytest.mark.e2e
def test_the_table_shows_energy(answer: Any) -> None:
    out = answer("optimize", "llama2-7b", "--gpus", "8", "--batch", "8", "--objective", "energy", "--width", "150")
    for words in ("energy", "kJ", "more energy-efficient"):
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("llama2-7b", "--objective", "energy", "--device", "gh200"), "states no power"),
        (("llama2-7b", "--objective", "money", "--device", "h20"), "states no price"),
        (("llama2-7b", "--power", "700"), "has no unit"),
        (("llama2-7b", "--power", "100 W,200 W"), "no more than a busy one"),
        (("llama2-7b", "--power", "1 W,1 W,1 W"), "--power 1 W,1 W,1 W"),
        (("llama2-7b", "--price", "-1"), "--price -1"),
        (("llama2-7b", "--price", "1e9"), "at most"),
        (("llama2-7b", "--mode", "inference", "--objective", "mfu"), "--objective mfu: serving has throughput"),
        (("alexnet", "--objective", "mfu"), "--objective gpu_hours"),
        (("alexnet", "--objective", "tokens_per_s"), "the network reads no tokens; --objective step_time"),
        (("alexnet", "--objective", "tokens_per_s_per_gpu"), "the network reads no tokens; --objective gpu_hours"),
        (("alexnet", "--objective", "energy", "--device", "gh200"), "states no power"),
        (("alexnet", "--objective", "money", "--device", "h20"), "states no price"),
        (("alexnet", "--objective", "ttft", "--mode", "inference"), "is for networks that generate text"),
    ],
)
def test_bad_usage(fails: Any, arguments: tuple[str, ...], words: str) -> None:
    assert words in fails("optimize", "--gpus", "8", *arguments)


def test_overrides_reach_the_device() -> None:
    device = resolve(Request(model="alexnet", price_per_hour=0.5, power_w=(100.0, None))).cluster.device
    assert (device.price_per_hour, device.busy_power_w, device.idle_power_w) == (0.5, 100.0, None)


# --- Plans with a split per layer ranked by money, energy or devices' hours ---------------------------------------------------------------


# A tight memory, so that one worker is too few and the cheapest plan is not the trivial one.
VGG = Request(model="vgg16", gpus=8, batch=512, memory_limit="9 GiB")
_ANSWERS: dict[str, Answer] = {}


def answer(objective: str) -> Answer:
    if objective not in _ANSWERS:
        _ANSWERS[objective] = optimize(dataclasses.replace(VGG, objective=objective, fastest=True))
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
def test_a_fast_plan_is_not_the_cheapest(answer: Any) -> None:
    """Eight GPUs are faster than one, and cost five times as much."""
    out = answer("explain", "alexnet", "--gpus", "8", "--family", "data", "--objective", "money", "--width", "200")
    assert "is cheaper." not in out
    assert re.search(
        r"Against the best plan: 4.8x dearer than 2.07 ms, 0\.\d+ USD per M samples on 1 of 8 GPUs: one worker", out
    )
    assert "No plan that 'planner optimize' searches is cheaper." in answer(
        "explain", "alexnet", "--gpus", "8", "--objective", "money", "--width", "200"
    )


@pytest.mark.e2e
def test_the_answer_in_words(answer: Any) -> None:
    out = " ".join(answer("optimize", "alexnet", "--gpus", "4", "--objective", "energy", "--width", "160").split())
    for words in (
        "energy",
        "per step",
        " J per step (80 % interval",
        "is more energy-efficient than the first",
        "W of a computing GPU",
        "Plan 1 is: the most energy-efficient; plain data parallelism",
        "The same on all GPUs: 2.2x less energy-efficient (",
    ):
        assert words in out
    document = json.loads(answer("optimize", "alexnet", "--gpus", "4", "--objective", "money", "--json"))
    assert document["objective"] == "money"
    assert "USD per GPU and hour" in {row["name"]: row["value"] for row in document["assumptions"]}["price"]


def test_a_forward_pass_has_an_energy(answer: Any) -> None:
    assert answer("optimize", "alexnet", "--mode", "inference", "--gpus", "2", "--objective", "energy")


def test_tokens_where_there_are_some() -> None:
    device = load_cluster("dgx-h100").cluster.device
    check_layer_objective("tokens_per_s_per_gpu", device, reads_tokens=True)
