"""Plans for other wishes than the best score, as answers name them."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

import planner
from costmodel.mesh.plan import MeshPlan
from planner.core.answer import Role
from planner.core.blocks import Table
from planner.core.errors import InputFileError
from planner.core.request import Request
from planner.importers.networks import load_model
from planner.question.resolve import resolve
from planner.report.answer import search_report
from planner.report.roles import roles_of
from planner.report.text import plain_text
from planner.schema.settings import plan_settings
from planner.spaces.ask import optimize
from planner.spaces.mesh.roles import why_not
from planner.spaces.mesh.space import EFFORT, MeshPlanSpace, mesh_space
from strategies.limits import Clock
from strategies.mesh.settings import DISTINCT
from tests.planner.mesh_answers import PLAN, make_ranked, make_result

ROOMY = make_ranked(dataclasses.replace(PLAN, tp=4), 20.6, memory_bytes_per_gpu=30.0 * 2**30)


def said(answer: Any) -> str:
    return " ".join(plain_text(search_report(answer).blocks(), None).split())


@pytest.fixture(scope="module")
def answered() -> Any:
    return optimize(Request(model="llama3-8b", gpus=16, cluster="dgx-h100", batch=128, seq=8192))


def test_every_role_keeps_its_promise(answered: Any) -> None:
    roles = {role.name: role for role in answered.roles}
    assert set(roles) == {"most_headroom", "fewest_gpus", "published"}
    best = answered.fastest or answered.best
    assert roles["most_headroom"].plan.step_time_s <= 1.05 * best.step_time_s
    assert roles["most_headroom"].plan.memory_bytes_per_gpu <= answered.best.memory_bytes_per_gpu
    assert roles["fewest_gpus"].plan.step_time_s <= best.step_time_s / 0.95
    assert roles["fewest_gpus"].plan.workers <= answered.best.workers
    published = roles["published"]
    assert (published.plan.plan.tp, published.plan.plan.cp, published.plan.plan.micro_batch) == (1, 2, 1)
    assert "NeMo" in published.source


def test_an_unusual_number_of_stages_says_what_a_usual_one_costs() -> None:
    """31 stages are all that uses 248 GPUs: nobody would run them without knowing what 10 cost."""
    odd, usual = (make_ranked(dataclasses.replace(PLAN, pp=pp), time) for pp, time in ((31, 20.0), (10, 30.4)))
    text = said(make_result(plans=(odd,), roles=(Role(name="usual_stages", plan=usual),)))
    assert "Usual stages: 52 % slower (30.4 s, " in text
    assert "with 10 stages; 31 neither divides the blocks nor is a power of two: tp " in text


def test_roles_that_coincide_are_one_line() -> None:
    roles = (Role(name="most_headroom", plan=ROOMY), Role(name="fewest_gpus", plan=ROOMY))
    answer = make_result(roles=(*roles, Role(name="published", plan=make_ranked(), source="a paper")))
    assert [[role.name for role in found] for found, _ in roles_of(answer)] == [
        ["fastest", "published"],
        ["data_parallel"],
        ["most_headroom", "fewest_gpus"],
    ]
    text = said(answer)
    assert "Plan 1 is: the fastest; as published (a paper)" in text
    paid = "20.6 s, 30.0 GiB, on 128 GPUs, -48 % GPU-hours"
    assert f"Most headroom: 3.0 % slower ({paid}), and needs 26.0 GiB less memory: tp 4" in text
    assert "; also fewest gpus" in text.lower()
    document = search_report(answer).data()["roles"]
    assert [entry["rank"] for entry in document] == [1, 2, None]
    assert document[0]["source"] == "a paper"
    assert document[2]["plan"]["plan"]["tp"] == 4


def test_fewer_gpus_and_what_does_not_fit() -> None:
    fewer = make_ranked(MeshPlan(tp=8, dp_shard=16, zero_stage=1), 20.8)
    answer = make_result(
        roles=(
            Role(name="fewest_gpus", plan=fewer),
            Role(name="published", plan=None, source="a paper", why_not="does not fit here"),
        )
    )
    text = said(answer)
    assert "Fewest GPUs: 4.0 % slower (20.8 s, 56.0 GiB), on 128 GPUs, 128 fewer: tp 8" in text
    assert "Published: the plan of a paper does not fit here" in text


@pytest.mark.parametrize(
    ("options", "wanted", "words"),
    [
        ({"memory_limit": "9 GiB"}, {"tp": 1}, r"does not fit here: its fastest form needs \d\S+ GiB per GPU, and the limit is 9\.00 GiB"),
        ({"framework": "deepspeed"}, {"schedule": "interleaved"}, "is not legal here: schedule interleaved: pipelines of DeepSpeed"),
        ({}, {"tp": 7}, "is not legal here: no division of this network"),
    ],
)  # fmt: skip
def test_a_published_plan_that_is_missing_says_why(options: Any, wanted: Any, words: str) -> None:
    question = Request(model="llama3-8b", gpus=8, cluster="dgx-h100", batch=8, seq=2048, **options)
    space = mesh_space(resolve(question))
    settings = dataclasses.replace(space.settings(), effort=EFFORT)
    assert re.match(words, why_not(space, settings, plan_settings(wanted), Clock(limit_s=60.0)))


@pytest.mark.parametrize(
    ("framework", "wanted"), [("", {"tp": 1}), ("deepspeed", {"tp": 1}), ("deepspeed", {"schedule": "interleaved"})]
)
@pytest.mark.parametrize(("effort", "seconds"), [(EFFORT, 0.0), (0, 60.0)])
def test_a_published_plan_that_a_stopped_search_did_not_find_may_exist(
    framework: str, wanted: Any, effort: float, seconds: float
) -> None:
    question = Request(model="llama3-8b", gpus=8, cluster="dgx-h100", batch=8, seq=2048, framework=framework)
    space = mesh_space(resolve(question))
    settings = dataclasses.replace(space.settings(), effort=effort)
    reason = why_not(space, settings, plan_settings(wanted), Clock(limit_s=seconds))
    assert reason == "was not found in the time left"


def test_a_published_plan_that_only_the_framework_rules_out(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Request(model="llama3-8b", gpus=8, cluster="dgx-h100", batch=8, seq=2048, framework="deepspeed")
    space = mesh_space(resolve(question))
    settings = dataclasses.replace(space.settings(), effort=EFFORT)
    monkeypatch.setattr(MeshPlanSpace, "broken", lambda *_: [])
    reason = why_not(space, settings, plan_settings({"schedule": "interleaved"}), Clock(limit_s=60.0))
    assert reason == "is not legal here: the framework does not run its settings"


def test_what_is_left_out_of_the_table_is_named(answered: Any) -> None:
    (note,) = (note for note in answered.notes if note.code == "similar_plans_left_out")
    table = next(block for block in search_report(answered).blocks() if isinstance(block, Table))
    assert str(note) in table.caption[0]
    listed = [plan.plan for plan in answered.listed]

    def is_copy(plan: MeshPlan) -> bool:
        return any(all(getattr(plan, name) == getattr(other, name) for name in DISTINCT) for other in listed)

    beside = [role for role in answered.roles if role.plan and role.plan.plan not in listed]
    assert (note.values["roles"] or []) == [role.name for role in beside if is_copy(role.plan.plan)]


def test_one_gpu_has_no_roles() -> None:
    answer = make_result()
    alone = dataclasses.replace(answer, setting=dataclasses.replace(answer.setting, gpus=1))
    assert roles_of(alone) == []
    assert "Roles" not in said(alone)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("{tpp: 8}", "'tpp' is no setting of a plan; did you mean 'tp'?"),
        ("{tp: true}", "tp cannot be True (expected a number, or a range as 2.. or 2..3)"),
        ("{schedule: 2f2b}", "schedule cannot be '2f2b' (known: "),
        ("{sequence_parallel: 2}", "sequence_parallel is true or false, not 2"),
        ("{}", "at least 1"),
    ],
)
def test_a_published_plan_is_checked(tmp_path: Any, settings: str, problem: str) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(
        "schema_version: 1\nname: net\nglobal_batch: 8\nseq: 8\npublished_plans:\n"
        f"  - {{cluster: dgx-h100, gpus: 8, global_batch: 8, seq: 8, settings: {settings}, source: x}}\n"
        "layers:\n  - {name: data, type: input, shape: [3, 8]}\n  - {name: fc, type: linear, out_features: 10}\n"
    )
    with pytest.raises(InputFileError, match=r"net\.yaml:6:") as found:
        load_model(str(path))
    assert problem in str(found.value)


def test_what_is_run_today_is_shown_beside_the_best() -> None:
    slow = make_ranked(dataclasses.replace(PLAN, pp=2, dp_shard=4), 25.0, memory_bytes_per_gpu=90.0 * 2**30)
    text = said(make_result(roles=(Role(name="given", plan=slow),)))
    assert (
        "Yours: 25 % slower (25.0 s, 90.0 GiB, on 64 GPUs, -69 % GPU-hours), and does not fit: there are 80.0 GiB: tp 8"
        in text
    )
    assert "Plan 1 is: the fastest; what you run" in said(make_result(roles=(Role(name="given", plan=make_ranked()),)))


@pytest.mark.e2e
def test_a_plan_file_is_shown_beside_the_best(answer: Any, tmp_path: Any) -> None:
    path = tmp_path / "mine.yaml"
    mine_is = ["--gpus", "16", "--batch", "128", "--tp", "4", "--pp", "2", "--micro-batch", "1"]
    answer("estimate", "llama3-8b", *mine_is, "--export", str(path))
    alone = answer("estimate", "--plan", str(path))
    found = json.loads(answer("optimize", "--plan", str(path), "--json"))
    (mine,) = (entry for entry in found["roles"] if "given" in entry["roles"])
    assert (mine["plan"]["plan"]["tp"], mine["plan"]["plan"]["pp"], mine["rank"]) == (4, 2, None)
    assert f"{mine['plan']['step_time_s']:.2f} s" in alone
    assert mine["plan"]["gap"] == pytest.approx(mine["plan"]["step_time_s"] / found["plans"][0]["step_time_s"] - 1)
    free = json.loads(answer("optimize", "llama3-8b", "--gpus", "16", "--batch", "128", "--json"))
    assert [plan["plan"] for plan in free["plans"]] == [plan["plan"] for plan in found["plans"]]
    python = planner.optimize(plan=path)
    assert python.roles["given"].step_time_s == mine["plan"]["step_time_s"]


@pytest.mark.e2e
def test_python_names_them() -> None:
    found = planner.optimize("llama3-8b", gpus=16, batch=128)
    assert set(found.roles) == {"fastest", "data_parallel", "most_headroom", "fewest_gpus", "published"}
    assert found.roles["published"].settings["cp"] == 2
    assert planner.optimize("alexnet", gpus=1).roles == {}
