"""`planner size --rate` as people run it."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import planner
from planner.core.errors import NoFeasiblePlan
from planner.core.request import Request, TimeLimit
from planner.schema.results import FleetDocument
from planner.spaces.ask import optimize
from strategies.serving.simplest import is_usual

SERVED = ("llama3-8b", "--prompt", "1000", "--output-tokens", "200", "--max-tpot", "p90:30ms")


def _document(said: Any, *arguments: str) -> dict[str, Any]:
    document = json.loads(said("size", *arguments, "--json")[0])
    FleetDocument.model_validate(document)
    return dict(document)


@pytest.mark.exact
def test_a_fleet_is_the_fewest_replicas_and_a_spare_one_in_whole_nodes(said: Any) -> None:
    document = _document(said, *SERVED, "--rate", "60", "--cluster", "h100,a100", "--max-gpus", "64")
    assert document["best"] in document["clusters"]
    for fleet in document["clusters"]:
        plan = fleet["cost"]["plan"]
        gpus = plan["tp"] * plan["pp"]
        reading = plan["prefill_tp"] * plan["prefill_pp"] * fleet["prefill_workers"]
        assert fleet["prefill_workers"] == (plan["prefill_dp"] + 1 if plan["prefill_dp"] else 0)
        least = (fleet["replicas_needed"] + 1) * gpus + reading
        assert fleet["gpus"] == (least if least <= 8 else math.ceil(least / 8) * 8)
        assert fleet["replicas"] == (fleet["gpus"] - reading) // gpus
        hour = fleet["money_per_month"] / 730
        assert fleet["fleet_money_per_million_output_tokens"] == pytest.approx(hour / 3600 / (60 * 200) * 1e6)
        assert fleet["cost"]["tpot_p90_s"] <= 0.03
        assert fleet["most_rate_per_s"] > 60
    cheapest = min(document["clusters"], key=lambda fleet: fleet["money_per_month"])
    assert document["best"] == cheapest


@pytest.mark.exact
def test_a_fleet_is_the_answer_of_optimize(said: Any) -> None:
    fleet = _document(said, *SERVED, "--rate", "60", "--cluster", "h100", "--max-gpus", "64", "--spares", "0")["best"]
    request = Request(
        model="llama3-8b",
        mode="inference",
        cluster="dgx-h100",
        gpus=64,
        prompt_tokens=1000,
        output_tokens=200,
        rate_per_s=60.0,
        max_tpot=TimeLimit(0.03, 90),
    )
    best = optimize(request).plans[0]
    assert fleet["cost"]["plan"]["tp"] == best.plan.tp
    assert fleet["replicas_needed"] == best.plan.dp
    with pytest.raises(NoFeasiblePlan):
        optimize(dataclasses.replace(request, gpus=best.workers - 1))


@pytest.mark.exact
def test_the_busiest_hour_decides_and_each_hour_needs_as_many_as_alone(said: Any, tmp_path: Path) -> None:
    curve = tmp_path / "day.csv"
    curve.write_text("hour,rate_per_s\n0,10\n1,60\n2,30\n3,0\n", encoding="utf-8")
    asked = (*SERVED, "--cluster", "h100", "--max-gpus", "64", "--spares", "0")
    found = _document(said, *asked, "--demand", str(curve))["best"]
    alone = {rate: _document(said, *asked, "--rate", str(rate))["best"] for rate in (10, 30, 60)}
    assert found["replicas_needed"] == alone[60]["replicas_needed"]
    assert found["cost"]["plan"] == alone[60]["cost"]["plan"]
    for hour, rate in enumerate((10, 60, 30)):
        if alone[rate]["cost"]["plan"]["tp"] == found["cost"]["plan"]["tp"]:
            assert found["replicas_by_hour"][hour] >= alone[rate]["replicas_needed"]
    assert found["replicas_by_hour"][3] == 1
    assert found["gpu_hours_share"] == pytest.approx(sum(found["replicas_by_hour"]) / 4 / found["replicas"])
    assert found["fleet_money_per_million_output_tokens"] == pytest.approx(
        found["money_per_month"] / 730 / 3600 / (25 * 200) * 1e6
    )


def test_people_read_what_to_buy(said: Any) -> None:
    text = said("size", *SERVED, "--rate", "20", "--cluster", "h100", "--max-gpus", "4")[0]
    for word in ("Best:", "spare", "USD a month", "Next limit:", "p50, p90, p99", "limits)"):
        assert word in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rate", "0"), "--rate 0: must be requests per second above 0"),
        (("--rate", "5/week"), "--rate 5/week: must be requests per second above 0"),
        (("--rate", "5", "--tokens", "1T"), "--tokens: is about a training"),
        (("--max-tpot", "p90:30ms"), "--max-tpot: is about serving; say with --rate"),
        (("--rate", "5", "--max-tpot", "p80:30ms"), "must begin with p50, p90 or p99"),
        (("--rate", "5", "--demand", "day.csv"), "--demand and --rate: choose one"),
        (("--rate", "5", "--arrival-cv", "-1"), "--arrival-cv -1: must be from 0 to 10"),
        (("--rate", "5", "--framework", "megatron-lm"), "is a trainer"),
    ],
)
def test_bad_questions(fails: Any, options: tuple[str, ...], message: str) -> None:
    assert message in fails("size", "llama3-8b", *options)


@pytest.mark.exact
def test_a_rate_that_no_fleet_serves_names_what_it_would_take(said: Any) -> None:
    text, _ = said("size", *SERVED, "--rate", "100000", "--cluster", "h100", "--max-gpus", "8", code=1)
    text = " ".join(text.split())
    assert "are too many for up to 8 GPUs" in text
    assert "so many need" in text


@pytest.mark.exact
def test_a_fleet_from_python_has_a_plan() -> None:
    fleet = planner.size_fleet("llama3-8b", rate=20, prompt=500, output_tokens=100, cluster="h100", max_gpus=8)
    assert fleet.plan().workers == fleet.best["replicas_needed"] * fleet.plan().settings["tp"]


@pytest.mark.exact
def test_the_plan_that_is_written_is_the_one_that_is_named(said: Any, tmp_path: Path) -> None:
    """With its spare replica another plan needs the fewest GPUs, or keeps the limits more surely, than without."""
    path = tmp_path / "plan.yaml"
    asked = ("llama3-8b", "--rate", "24", "--max-tpot", "20ms", "--max-ttft", "300ms", "--cluster", "h100")
    found = _document(said, *asked, "--max-gpus", "16", "--export", str(path))["best"]
    written = yaml.safe_load(path.read_text())["serving"]
    assert found["cost"]["plan"] == {name: written[name] for name in found["cost"]["plan"]}
    options = {"max_tpot": "20ms", "max_ttft": "300ms", "cluster": "h100", "max_gpus": 16}
    fleet = planner.size_fleet("llama3-8b", rate=24, **options)
    assert fleet.plan().settings["max_batch"] == written["max_batch"]


@pytest.mark.exact
@pytest.mark.parametrize("limits", [(), ("--max-tpot", "p90:30ms", "--max-ttft", "300ms")])
def test_a_fleet_has_a_plan_that_people_would_run(limits: tuple[str, ...], said: Any) -> None:
    """As few GPUs as with any number of sequences, and within a percent as sure; without limits no pools and no drafts are needed."""
    asked = ("llama3-8b", "--rate", "24", *limits, "--cluster", "h100", "--max-gpus", "16")
    found = _document(said, *asked)["best"]
    plan = found["cost"]["plan"]
    assert is_usual(np.array([plan["max_batch"]]))[0]
    assert limits or plan["prefill_dp"] == 0
    odd = _document(said, *asked, "--max-batch", f"1..{found['cost']['largest_batch']}")["best"]
    assert found["gpus"] == odd["gpus"]


@pytest.mark.exact
def test_spare_replicas_count_when_the_fewest_gpus_are_chosen(said: Any) -> None:
    """Replicas of one GPU need more of them, but their spare one costs less."""
    asked = ("llama3-8b", "--rate", "24", "--max-tpot", "20ms", "--max-ttft", "300ms", "--cluster", "h100")
    request = Request(
        model="llama3-8b",
        mode="inference",
        cluster="dgx-h100",
        gpus=16,
        rate_per_s=24.0,
        max_tpot=TimeLimit(0.02),
        max_ttft=TimeLimit(0.3),
        top=100,
    )
    plans = [ranked.plan for ranked in optimize(request).plans if not ranked.plan.prefill_dp]
    for spares in (0, 3):
        fleet = _document(said, *asked, "--max-gpus", "16", "--spares", str(spares))["best"]
        assert fleet["gpus"] == min(p.tp * p.pp * (p.dp + spares) for p in plans)


def test_a_mistake_in_the_question_is_an_error_for_all_clusters(fails: Any) -> None:
    message = fails("size", "llama3-8b", "--rate", "5", "--prompt-cv", "1", "--batch", "4", "--cluster", "h100,h200")
    assert message.count("--batch: is for training") == 1


@pytest.mark.exact
def test_rows_are_flat(said: Any) -> None:
    text = said("size", *SERVED, "--rate", "20", "--cluster", "h100", "--max-gpus", "8", "--format", "csv")[0]
    header, row = text.strip().splitlines()
    assert {"gpus", "replicas", "tp", "tpot_s", "fleet_money_per_million_output_tokens"} <= set(header.split(","))
    assert "{" not in row
