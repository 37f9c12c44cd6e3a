"""Error bars of serving: what varies them, how wide they are, and what the answers say."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.precision import PRECISIONS
from costmodel.serving.model import SERVING_CONSTANTS, ServingModel, serving_model_with, times_with
from costmodel.serving.plan import ServingBatch, ServingPlan
from costmodel.serving.workload import Arrivals, Load, ServingWorkload
from costmodel.uncertainty.intervals import intervals, standard_deviations
from planner.core.request import Request, TimeLimit
from planner.files.loading import load_cluster
from planner.importers.networks import load_model
from planner.question.resolve import resolve
from planner.spaces.serving.bars import QUANTITIES, serving_candidates, serving_kind
from planner.spaces.serving.space import serving_space
from planner.uncertainty.bars import Knowledge, serving_knowledge
from strategies.mesh.settings import Bounds
from strategies.serving.search import outlines, plans_of, search_serving

PLANS = [
    ServingPlan(tp=8, max_batch=4),
    ServingPlan(tp=4, dp=2, max_batch=64, prefill_chunk=512),
    ServingPlan(tp=2, pp=4, max_batch=128, prefill_batch=4),
    ServingPlan(tp=4, pp=2, max_batch=16),
]
QUESTION = ["optimize", "llama3-8b", "--mode", "inference", "--gpus", "2"]


def served(name: str, prompt: int = 1024, output: int = 256) -> ServingModel:
    workload = ServingWorkload(
        graph=load_model(name).graph,
        prompt_tokens=prompt,
        output_tokens=output,
        precision=PRECISIONS["bf16"],
        kv_bytes=2.0,
    )
    return ServingModel.build(workload, load_cluster("dgx-h100").cluster)


def known(kind: str = "serving", unsure: Mapping[str, float] | None = None) -> Knowledge:
    """What the bundled calibration says, with some constants less sure."""
    found = serving_knowledge(Request(model="", mode="inference"), kind, names=SERVING_CONSTANTS)
    sds = {**found.log_sd, **(unsure or {})}
    return replace(found, log_sd=sds, covariance=np.diag(np.array(list(sds.values())) ** 2))


@pytest.fixture(scope="module")
def dense() -> ServingModel:
    return served("llama3-70b")


def test_effects_of_all_that_takes_time_add_up_to_all_of_it(dense: ServingModel) -> None:
    """Everything twice as slow is twice the time: rates, bandwidths and latencies together have an effect of 1 (Euler's theorem)."""
    found = serving_candidates(dense, PLANS, known())
    sign = {"matmul_rate": -1, "memory_rate": -1, "intra_node_bandwidth": -1}
    sign |= {"launch_overhead": 1, "host_launch": 1, "link_latency": 1}
    for candidates in found.values():
        effects = dict(zip(SERVING_CONSTANTS, candidates.effects.T, strict=True))
        assert sum(sign[name] * effects[name] for name in sign) == pytest.approx(np.ones(len(PLANS)), abs=0.06)
        assert np.all(effects["inter_node_bandwidth"] == 0)


def test_one_plan_is_a_batch_of_one(dense: ServingModel) -> None:
    together = serving_candidates(dense, PLANS, known())
    for n, plan in enumerate(PLANS):
        alone = serving_candidates(dense, [plan], known())
        for quantity in QUANTITIES:
            one, many = alone[quantity], together[quantity]
            assert one.step_time_s[0] == pytest.approx(many.step_time_s[n], rel=1e-12)
            assert one.shares[0] == pytest.approx(many.shares[n], abs=1e-9)
            assert one.effects[0] == pytest.approx(many.effects[n], abs=1e-9)


@pytest.mark.parametrize("load", [{}, {"arrivals": Arrivals(rate_per_s=2.0)}])
def test_models_together_cost_what_each_costs_alone(dense: ServingModel, load: dict[str, Arrivals]) -> None:
    """Plans of both kinds under one set of constants after the other."""
    batch = ServingBatch.from_plans([*PLANS, ServingPlan(tp=4, dp=2, prefill_dp=1, prefill_tp=8, max_batch=16)])
    model = replace(dense, workload=replace(dense.workload, **load))
    values = [{}, {"memory_rate": 1.01}, {"link_latency": 2.0, "host_launch": 0.5}]
    for times, constants in zip(times_with(model, batch, values, ("ttft_p90_s",)), values, strict=True):
        alone = serving_model_with(model, constants).times(batch, percentiles=("ttft_p90_s",))
        assert times.keys() == alone.keys()
        for name, column in alone.items():
            assert times[name] == pytest.approx(column, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(
    "name", ["matmul_rate", "memory_rate", "launch_overhead", "intra_node_bandwidth", "link_latency"]
)
def test_a_less_sure_constant_widens_intervals(dense: ServingModel, name: str) -> None:
    usual = known()
    unsure = known(unsure={name: 3.0 * usual.log_sd[name]})
    assert usual.model.sharpness > 0
    for quantity, candidates in serving_candidates(dense, PLANS, usual).items():
        wider = serving_candidates(dense, PLANS, unsure)[quantity]
        before, after = (standard_deviations(c, usual.model) for c in (candidates, wider))
        assert np.all(after > before), quantity
        low, high = intervals(candidates, usual.model)
        low_unsure, high_unsure = intervals(wider, usual.model)
        assert np.all(np.log(high_unsure / low_unsure) > np.log(high / low))


def test_parts_are_shares_of_what_the_cost_model_says(dense: ServingModel) -> None:
    costs, found = dense.evaluate(ServingBatch.from_plans(PLANS)), serving_candidates(dense, PLANS, known())
    assert found["tpot_s"].shares[:, 1] == pytest.approx(costs.decode_tp_s / costs.tpot_s)
    assert found["ttft_s"].shares[:, 2] == pytest.approx(costs.prefill_pp_s / costs.ttft_s)
    passes = dense.workload.later_tokens
    assert found["token_s"].shares[:, 1] == pytest.approx(
        (costs.prefill_tp_s + passes * costs.decode_tp_s) / costs.request_s
    )
    assert found["token_s"].step_time_s == pytest.approx(1 / costs.output_tokens_per_s)


def test_mixtures_are_a_kind_of_their_own() -> None:
    assert serving_kind(load_model("mixtral-8x7b").graph) == "serving-experts"
    assert serving_kind(load_model("llama3-8b").graph) == "serving"
    assert serving_kind(load_model("mixtral-8x7b").graph, sharing=True) == "serving-shared-experts"
    assert serving_kind(load_model("llama3-8b").graph, sharing=True) == "serving"
    model = served("mixtral-8x7b")
    for kind in ("serving", "serving-experts", "serving-shared-experts", "serving-first-token"):
        knowledge = known(kind)
        candidates = serving_candidates(model, PLANS[:2], knowledge)["token_s"]
        low, high = intervals(candidates, knowledge.model)
        assert low * high == pytest.approx(candidates.step_time_s**2), "the prediction is the centre"


Ask = Callable[..., str]


def asked(answer: Ask, *more: str) -> dict[str, Any]:
    """The question on the command line, with more options."""
    return dict(json.loads(answer(*QUESTION, "--json", *more)))


def test_an_answer_has_intervals_chances_and_their_basis(answer: Ask) -> None:
    found = asked(answer, "--top", "2")
    assert found["error_bars"]["kind"] == "serving"
    assert "published figures" in found["error_bars"]["basis"]
    assert found["error_bars"]["note"] == ""
    assert found["benchmark_compared"] >= len(found["plans"]) == 2
    assert found["benchmark_list"][0] == 1
    for plan in found["plans"]:
        assert 0 <= plan["probability_best"] <= 1
        for low, high in (
            ("step_time_low_s", "step_time_high_s"),
            ("ttft_low_s", "ttft_high_s"),
            ("output_tokens_per_s_low", "output_tokens_per_s_high"),
        ):
            assert 0 < plan[low] < plan[high]
        # What is slower per token makes fewer of them.
        ratio = plan["output_tokens_per_s"] / plan["output_tokens_per_s_low"]
        assert ratio == pytest.approx(plan["step_time_high_s"] / plan["step_time_s"], rel=0.2)


def test_one_plan_has_intervals_and_no_chance(answer: Ask) -> None:
    command = ["estimate", "llama3-8b", "--mode", "inference", "--gpus", "1", "--max-batch", "8"]
    document = json.loads(answer(*command, "--json"))
    plan = document["plans"][0]
    assert plan["probability_best"] is None
    assert plan["step_time_low_s"] < plan["step_time_high_s"]
    assert document["error_bars"]["kind"] == "serving"
    text = answer(*command)
    assert "80 % intervals:" in text
    assert "per token" in text


def test_an_answer_of_one_token_has_no_time_per_token(answer: Ask) -> None:
    plan = asked(answer, "--output-tokens", "1", "--objective", "ttft")["plans"][0]
    assert plan["step_time_low_s"] == plan["step_time_high_s"] == 0
    assert 0 < plan["ttft_low_s"] < plan["ttft_high_s"]


def test_the_chance_of_a_limit_is_that_of_the_interval(answer: Ask) -> None:
    """By hand: normal logarithms, half of them below the prediction, a tenth above the upper end."""
    plans = asked(answer, "--max-tpot", "12ms")["plans"]
    for plan in plans:
        standard = math.log(0.012 / plan["tpot_s"]) / math.log(plan["step_time_high_s"] / plan["tpot_s"]) * 1.28155
        assert plan["limits_probability"] == pytest.approx(0.5 * math.erfc(-standard / math.sqrt(2.0)), abs=2e-4)
    # Every one keeps the limit more likely than not, and none of them by much: they fill their batches.
    assert all(0.5 <= plan["limits_probability"] < 0.6 for plan in plans)
    assert all(plan["limits_probability"] is None for plan in asked(answer)["plans"])


@pytest.mark.e2e
def test_a_plan_that_is_ninety_percent_sure_is_named(answer: Ask) -> None:
    found = asked(answer, "--max-tpot", "12ms")
    then = asked(answer, "--max-tpot", "12ms", "--limit-confidence", "90%")
    assert then["plans"][0]["plan"] == found["surer"]["plan"]
    assert then["plans"][0]["step_time_high_s"] == pytest.approx(0.012, rel=0.02)
    assert 0.9 <= found["surer"]["limits_probability"] < 0.93
    assert "surer" not in then
    text = " ".join(answer(*QUESTION, "--max-tpot", "12ms").split())
    assert re.search(r"; 90 % sure: \S.* output tokens/s in place of ", text)
    assert re.search(
        r"--limit-confidence 90% # 90 % sure planner optimize .* --max-tpot 12ms --export plan.yaml ", text
    )
    assert re.search(r"; 5\d % sure to keep its limit\. ", text)
    # A limit far away needs no word.
    sure = asked(answer, "--max-tpot", "10s")
    assert "surer" not in sure
    assert "; >99 % sure to keep its limit." in answer(*QUESTION, "--max-tpot", "10s")


@pytest.mark.parametrize(("load", "limit"), [("traffic", "36ms"), ("backlog", "29ms")])
def test_two_limits_are_kept_less_often_than_either(answer: Ask, load: str, limit: str) -> None:
    """Errors of first tokens behind a queue have nothing to do with the others: the product. Without one they go together."""

    def chance(*limits: str) -> float:
        command = [
            "estimate",
            "llama3-8b",
            "--mode",
            "inference",
            "--gpus",
            "1",
            "--max-batch",
            "8",
            "--load",
            load,
            "--json",
        ]
        return float(json.loads(answer(*command, *limits))["plans"][0]["limits_probability"])

    first, each = ("--max-ttft", limit), ("--max-tpot", "11ms")
    apart, both = [chance(*first), chance(*each)], chance(*first, *each)
    assert all(0.05 < one < 0.95 for one in apart), apart
    if load == "traffic":
        assert both == pytest.approx(apart[0] * apart[1], rel=1e-6)
    else:
        assert apart[0] * apart[1] < both < min(apart)


@pytest.mark.parametrize(
    ("name", "limit", "first", "load", "confidence"),
    [
        ("llama3-8b", 0.02, None, "traffic", None),
        ("mixtral-8x7b", 0.02, None, "traffic", None),
        ("llama3-8b", 0.016, 0.095, "traffic", None),
        ("llama3-8b", 0.02, None, "traffic", 0.9),
        ("llama3-8b", 0.02, 0.2, "traffic", 0.8),
        pytest.param("llama3-8b", 0.0155, 0.033, "backlog", None, marks=pytest.mark.exact),
        pytest.param("llama3-8b", 0.0155, 0.04, "backlog", 0.7, marks=pytest.mark.exact),
        pytest.param("mixtral-8x7b", 0.021, 0.085, "traffic", None, marks=pytest.mark.exact),
        pytest.param("mixtral-8x7b", 0.021, None, "traffic", 0.75, marks=pytest.mark.exact),
    ],
)
def test_a_plan_that_rather_breaks_a_limit_is_first_only_where_none_keeps_it(
    name: str, limit: float, first: float | None, load: Load, confidence: float | None
) -> None:
    """Against all plans, costed with their intervals one by one; two limits are kept together."""
    gpus = 2 if name == "llama3-8b" else 4
    first_limit = None if first is None else TimeLimit(first)
    request = Request(
        model=name,
        mode="inference",
        gpus=gpus,
        load=load,
        max_tpot=TimeLimit(limit),
        max_ttft=first_limit,
        limit_confidence=confidence,
    )
    space = serving_space(resolve(request))
    degrees = {"max_batch": Bounds(values=(8, 64, 100, 128)), "prefill_chunk": Bounds(values=(0, 512))}
    settings = replace(space.settings(), degrees=degrees, top=10_000)
    found = [candidate.plan for candidate in search_serving(space.model, settings).candidates]
    loose = replace(settings, limits={"tpot_s": 10.0}, keeps_all=None)
    outline = outlines(space.shape, 1024, loose)
    batches = [np.array([b for b in (8, 64, 100, 128) if b >= least]) for least in outline.prefill_batch]
    every = plans_of(outline, np.arange(len(outline)), batches)
    every = every.take(np.flatnonzero(space.model.memory_bytes(every) <= space.capacity_bytes))
    barred, _ = space.error_bars(space.rank([every.plan(n) for n in range(len(every))]))
    predicted = [plan for plan in barred if plan["tpot_s"] <= limit and plan["ttft_s"] <= (first or np.inf)]
    keep = [plan for plan in predicted if plan["limits_probability"] >= (confidence or 0.5)]
    assert 0 < len(keep) <= len(predicted)
    assert (len(keep) < len(predicted)) == (first is not None or confidence is not None), (
        "one limit alone is kept more likely than not by all predicted to"
    )
    if first is not None and load == "traffic" and not confidence:  # some plans keep either limit, and not both
        each = search_serving(space.model, replace(settings, keeps_all=None)).candidates
        assert [candidate.plan for candidate in each] != found
    alone = search_serving(space.model, replace(settings, top=1)).candidates
    assert [candidate.plan for candidate in alone] == found[:1]
    assert min(plan.score for plan in keep) == space.rank([found[0]])[0].score
    assert len(found) == len({(p.plan.tp, p.plan.pp, p.plan.ep, p.plan.etp, p.plan.dp) for p in keep})


def test_where_none_keeps_a_limit_more_likely_than_not_the_answer_says_so(answer: Ask) -> None:
    least = asked(answer, "--objective", "tpot")["plans"][0]
    limits = [f"--max-{time}={1.004e3 * least[f'{time}_s']}ms" for time in ("ttft", "tpot")]
    found = asked(answer, *limits)
    assert found["note_codes"][-1]["code"] == "limits_unlikely"
    assert 0.25 <= found["plans"][0]["limits_probability"] < 0.5  # half of the runs keep either limit
    alone = answer("estimate", *QUESTION[1:], "--tp", "2", "--max-batch", "1", *limits)
    assert re.search(
        r"keeps the limits with \d+(\.\d)? % only: plans that keep them with 50\S* % are ranked",
        " ".join(alone.split()),
    )
    assert "no plan keeps them with 90 %" in " ".join(answer(*QUESTION, *limits).split())


def test_a_confidence_without_limits_is_refused(fails: Callable[..., str]) -> None:
    assert "--limit-confidence: needs a limit to keep" in fails(*QUESTION, "--limit-confidence", "90%")
    assert "at least 0.5 (50 %) and below 1" in fails(*QUESTION, "--max-tpot", "12ms", "--limit-confidence", "30%")


@pytest.mark.e2e
def test_the_same_answer_whatever_the_hash_seed() -> None:
    found = []
    for seed in ("0", "1"):
        run = subprocess.run(
            [sys.executable, "-m", "planner", *QUESTION, "--json"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        document = json.loads(run.stdout)
        found.append([document["plans"], document["error_bars"], document["benchmark_list"]])
    assert found[0] == found[1]


@pytest.mark.e2e
def test_compared_plans_have_the_intervals_of_each(answer: Ask, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("many.yaml", "quick.yaml")]
    found = [
        asked(answer, "--export", file, "--objective", objective)["plans"][0]
        for file, objective in zip(files, ("throughput", "latency"), strict=True)
    ]
    compared = json.loads(answer("compare", *files, "--json"))["plans"]
    for plan, item in zip(found, compared, strict=True):
        assert item["step_time_low_s"] == pytest.approx(plan["step_time_low_s"])
        assert item["step_time_high_s"] == pytest.approx(plan["step_time_high_s"])
    assert "80 % interval" in " ".join(answer("compare", *files).split())
