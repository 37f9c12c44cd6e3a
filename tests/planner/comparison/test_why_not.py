"""`planner why-not`: rules, memory, rank and the cost of each difference, against enumeration and against the other commands."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import planner
from costmodel.mesh.plan import MeshPlan
from costmodel.tolerances import EQUAL
from planner.comparison.why_not import steps_between
from planner.core.request import Request
from planner.question.resolve import resolve
from planner.schema.results import WhyNotDocument
from planner.spaces.base import PlanSpace, space_of
from strategies.mesh.settings import DISTINCT, Bounds, MeshRestriction

Ask = Callable[..., str]
TINY = ("gpt3-125m", "--gpus", "4", "--batch", "4")
SMALL = ("gpt3-125m", "--gpus", "8", "--batch", "8")


def asked(said: Callable[..., tuple[str, str]], *arguments: object, code: int = 0) -> dict[str, Any]:
    out, _ = said("why-not", *arguments, "--json", "--quiet", code=code)
    found: dict[str, Any] = json.loads(out)
    WhyNotDocument.model_validate(found)
    return found


def adds_up(found: dict[str, Any]) -> None:
    """Steps lead from the plan to the first plan, and their changes are the whole difference."""
    plan, first, steps = found["plan"], found["first"], found["steps"]
    for change, figure in (("change_s", "step_time_s"), ("change_bytes", "memory_bytes_per_gpu")):
        whole = first[figure] - plan[figure]
        assert sum(step[change] for step in steps) == pytest.approx(whole, abs=1e-9 * plan[figure])
        before = plan
        for step in steps:
            assert step[change] == pytest.approx(step[figure] - before[figure], abs=1e-9 * plan[figure])
            before = step
    assert {name: steps[-1][name] for name in first} == first
    assert all(step["workers"] <= found["gpus"] for step in steps)


def mesh_space(**mesh: int) -> PlanSpace:
    degrees = {name: Bounds(values=(value,)) for name, value in mesh.items()}
    restriction = MeshRestriction(degrees=degrees) if mesh else None
    return space_of(resolve(Request(model="gpt3-1.3b", gpus=8, batch=32, mesh=restriction)))


def test_every_difference_of_a_mesh_plan_has_its_cost(said: Callable[..., tuple[str, str]]) -> None:
    found = asked(said, *TINY, "--tp", "2", "--pp", "2", "--micro-batch", "1")
    assert found["legal"]
    assert found["fits"]
    adds_up(found)
    assert len(found["steps"]) > 1
    # tp first, and nothing else of it: the same plan with another tp, replicas following.
    first = found["steps"][0]
    assert (first["settings"], first["before"]) == (["tp"], ["2"])
    assert "pp 2" in first["summary"]


@pytest.mark.exact
def test_the_plan_and_the_first_are_what_searches_find(said: Callable[..., tuple[str, str]]) -> None:
    found = asked(said, *TINY, "--tp", "2", "--pp", "2", "--micro-batch", "1")
    # The first plan is the one that a search names first, and the plan the best with these settings.
    free = json.loads(said("optimize", *TINY, "--json", "--quiet")[0])
    assert found["first"]["step_time_s"] == (free["refined"] or free["plans"][0])["step_time_s"]
    fixed = ("--tp", "2", "--pp", "2", "--micro-batch", "1", "--fastest", "--top", "1")
    best = json.loads(said("optimize", *TINY, *fixed, "--json", "--quiet")[0])["plans"][0]
    assert found["plan"]["step_time_s"] == best["step_time_s"]


def test_steps_of_any_two_plans_are_legal_and_add_up() -> None:
    space = mesh_space()
    plans = [
        MeshPlan(dp_replicate=8, micro_batch=4),
        MeshPlan(dp_shard=8, zero_stage=3, micro_batch=2, num_micro_batches=2, recompute="full", recompute_blocks=24),
        MeshPlan(tp=8, sequence_parallel=True, micro_batch=8, num_micro_batches=4),
        MeshPlan(pp=8, vpp=3, schedule="interleaved", micro_batch=1, num_micro_batches=32, offload_activations=True),
        MeshPlan(tp=2, pp=2, dp_replicate=2, micro_batch=1, num_micro_batches=16, recompute="selective"),
        MeshPlan(tp=2, dp_replicate=2, micro_batch=16),
        MeshPlan(cp=2, cp_kind="all_gather", dp_shard=4, zero_stage=1, num_micro_batches=8),
        MeshPlan(pp=2, dp_shard=4, zero_stage=1, num_micro_batches=8, stage_blocks=(13, 11)),
    ]
    ranked = space.rank(plans)
    for plan in plans:
        assert space.broken(plan) == []
    for one, other in itertools.permutations(ranked, 2):
        steps = steps_between(space, one, other)
        assert steps[-1].plan.plan == other.plan
        whole = other.step_time_s - one.step_time_s
        assert sum(step.change_s for step in steps) == pytest.approx(whole, abs=1e-12)
        names = [name for step in steps for name in step.names]
        assert len(set(names)) == len(names)
        for step in steps:
            assert space.broken(step.plan.plan) == []
            assert step.plan.plan.workers in (one.workers, other.workers)
            assert step.plan.plan.global_batch == 32


def test_a_plan_is_no_step_from_itself() -> None:
    space = mesh_space()
    (plan,) = space.rank([MeshPlan(dp_replicate=8, micro_batch=4)])
    assert steps_between(space, plan, plan) == ()


@pytest.mark.exact
def test_better_plans_are_those_of_the_whole_list() -> None:
    """The best of every group of alike plans, from a search that lists them all."""
    space = mesh_space()
    every = space.outcome(dataclasses.replace(space.settings(), top=10_000, distinct=DISTINCT)).candidates  # type: ignore[attr-defined]
    scores = [candidate.score for candidate in every]
    assert len(scores) > 60
    for place in (0, 1, 7, 30):
        score = scores[place]
        better = sum(1 for other in scores if other < score * (1 - EQUAL))
        assert space.better_than(score) == (better, True)
    assert space.better_than(scores[-1]) == (space.most_better, False)


def test_an_illegal_plan_is_told_every_rule_and_the_nearest_legal_values(said: Callable[..., tuple[str, str]]) -> None:
    found = asked(said, *SMALL, "--tp", "5", "--pp", "2", code=1)
    assert not found["legal"]
    text = "\n".join(found["broken"])
    # Nobody said that all GPUs are used: that 10 does not divide 8 breaks no rule.
    assert "--gpus" not in text
    assert "--tp 5: tp 5 does not divide the 12 attention heads; allowed: 1, 2, 3, 4, 6, 12" in text
    # 4 and 3 are the legal tp next to 5 on 8 GPUs (6 takes 12); pp has none, as tp alone is wrong.
    assert {legal["change"] for legal in found["nearest_legal"]} == {"--tp 3", "--tp 4"}
    times = [legal["step_time_s"] for legal in found["nearest_legal"]]
    assert times == sorted(times)
    assert found["plan"]["summary"] == found["nearest_legal"][0]["summary"]
    adds_up(found)


def test_a_rule_of_the_framework(said: Callable[..., tuple[str, str]]) -> None:
    found = asked(said, *TINY, "--framework", "deepspeed", "--zero", "3", "--pp", "2", code=1)
    assert not found["legal"]
    assert any("deepspeed" in line for line in found["broken"])
    assert "--pp 1" in {legal["change"] for legal in found["nearest_legal"]}


def test_a_plan_that_does_not_fit(said: Callable[..., tuple[str, str]]) -> None:
    question = ("gpt3-350m", "--gpus", "2", "--batch", "2", "--memory-limit", "6 GiB")
    found = asked(said, *question, "--dp", "2", "--zero", "0", "--offload", "none", code=1)
    assert found["legal"]
    assert not found["fits"]
    assert found["plan"]["memory_bytes_per_gpu"] > found["plan"]["memory_capacity_bytes"]
    assert "it fits" in found["misfit"]
    assert found["verdict"].startswith("The plan is legal but does not fit.")


def test_splits_per_layer(said: Callable[..., tuple[str, str]]) -> None:
    found = asked(said, "alexnet", "--gpus", "4", "--batch", "512", "--fix", "conv*:batch=4", "--fix", "fc*:batch=4")
    adds_up(found)
    names = [name for step in found["steps"] for name in step["settings"]]
    assert any(name.startswith("fc") for name in names)
    assert not any(name.startswith("conv1") for name in names)
    assert found["better_plans"] >= 1
    assert found["relative_score"] > 1


def test_serving(said: Callable[..., tuple[str, str]]) -> None:
    question = ("llama3-8b", "--mode", "inference", "--gpus", "4", "--prompt", "512", "--output-tokens", "64")
    question += ("--disaggregate", "no")
    found = asked(said, *question, "--tp", "4", "--max-batch", "8")
    adds_up(found)
    assert found["objective"] == "throughput"
    # As many as a search lists before it, all degrees being in its list.
    listed = json.loads(said("optimize", *question, "--top", "500", "--json", "--quiet")[0])["plans"]
    mine = found["plan"]["step_time_s"]
    worse = next(plan for plan in listed if plan["plan"]["tp"] == 4 and plan["plan"]["pp"] == 1)
    assert found["better_plans_counted"]
    assert found["better_plans"] >= worse["rank"]
    assert mine > 0


def test_serving_that_is_not_legal(said: Callable[..., tuple[str, str]]) -> None:
    question = ("llama3-8b", "--mode", "inference", "--gpus", "4", "--prompt", "512", "--output-tokens", "64")
    question += ("--disaggregate", "no")
    found = asked(said, *question, "--tp", "3", "--max-batch", "8", code=1)
    text = "\n".join(found["broken"])
    assert "--gpus" not in text
    assert "tp 3 does not divide the 32 attention heads" in text
    assert {legal["change"] for legal in found["nearest_legal"]} >= {"--tp 2", "--tp 4"}
    text = said("why-not", *question, "--tp", "3", "--max-batch", "8", code=1)[0]
    assert "output tokens/s, a token every" in text
    assert "time per token" in text


def test_settings_that_break_several_rules_are_named_apart(said: Callable[..., tuple[str, str]]) -> None:
    """What is open is not judged: 8 GPUs have a dp that the batch of 8 does not rule out."""
    found = asked(said, *SMALL, "--tp", "5", "--pp", "2", "--micro-batch", "3", code=1)
    assert sorted(line.split(":")[0] for line in found["broken"]) == ["--micro-batch 3", "--tp 5"]
    found = asked(said, *SMALL, "--tp", "4", "--pp", "4", code=1)
    assert found["broken"] == ["--tp 4 --pp 4 exclude each other: tp 4 x pp 4 = 16 is more than --gpus 8"]
    # 6 GPUs of 8, and 2 idle.
    assert asked(said, *SMALL, "--tp", "3", "--pp", "2")["plan"]["workers"] == 6


def test_several_kinds_of_gpus(said: Callable[..., tuple[str, str]]) -> None:
    question = ("gpt3-125m", "--cluster", "h100-a100", "--gpus", "4", "--batch", "8")
    found = asked(said, *question, "--tp", "4")
    adds_up(found)
    assert "pipelines" in [name for step in found["steps"] for name in step["settings"]]


def test_a_family_without_a_plan(said: Callable[..., tuple[str, str]]) -> None:
    found = asked(said, "alexnet", "--gpus", "1", "--batch", "8", "--family", "data", code=1)
    assert "no legal plan" in found["broken"][0]
    assert found["first"]["workers"] == 1


def test_a_plan_that_no_single_change_makes_legal(said: Callable[..., tuple[str, str]]) -> None:
    wrong = ("--tp", "5", "--ep", "4")
    found = asked(said, *TINY, *wrong, code=1)
    assert (found["legal"], found["nearest_legal"], found["plan"]) == (False, [], None)
    assert found["first"]["fits"]
    assert "no other value of one setting" in said("why-not", *TINY, *wrong, code=1)[0]


def test_a_plan_file_and_one_with_broken_rules(said: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    said("estimate", *SMALL, "--tp", "2", "--pp", "2", "--export", path, "--quiet")
    found = asked(said, "--plan", path)
    assert not found["filled_in"]
    adds_up(found)
    one = json.loads(said("estimate", "--plan", path, "--json")[0])
    assert found["plan"]["step_time_s"] == one["step_time_s"]
    path.write_text(path.read_text().replace("tp: 2", "tp: 5"))
    found = asked(said, "--plan", path, code=1)
    assert not found["legal"]
    assert f"{path}:" in found["broken"][0]
    assert found["plan"] is None
    assert found["first"]["fits"]
    path.write_text(path.read_text().replace("tp: 5", "tq: 5"))
    assert "tq" in said("why-not", "--plan", path, code=2)[1]  # no plan at all


def test_what_runs_today_keeps_the_defaults_of_its_framework(
    said: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    script = tmp_path / "train.sh"
    script.write_text("torchrun pretrain_gpt.py --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2\n")
    question = ("gpt3-125m", "--batch", "8", "--gpus", "8", "--from", "megatron", script)
    found = asked(said, *question)
    assert not found["filled_in"]
    one = json.loads(said("estimate", *question, "--json", "--quiet")[0])
    assert found["plan"]["step_time_s"] == one["step_time_s"]
    adds_up(found)


def test_the_first_plan_itself(said: Callable[..., tuple[str, str]], tmp_path: Path) -> None:
    path = tmp_path / "best.yaml"
    said("optimize", "gpt3-125m", "--gpus", "2", "--batch", "2", "--fastest", "--export", path, "--quiet")
    found = asked(said, "--plan", path, "--fastest")
    assert found["is_first"]
    assert found["steps"] == []
    assert found["better_plans"] == 0
    assert "It is the first plan." in said("why-not", "--plan", path, "--fastest")[0]


@pytest.mark.e2e
def test_the_first_plan_is_the_simplest_though_others_are_better(said: Callable[..., tuple[str, str]]) -> None:
    question = ("llama3-8b", "--gpus", "8", "--batch", "128", "--memory-reserve", "5%")
    first = json.loads(said("optimize", *question, "--json", "--quiet")[0])
    assert first["fastest"] is not None
    degrees = first["plans"][0]["plan"]
    settings = [f"--{name.replace('_', '-')}={degrees[name]}" for name in ("tp", "pp", "micro_batch", "recompute")]
    settings.append(f"--zero={degrees['zero_stage']}")
    found = asked(said, *question, *settings)
    assert found["is_first"]
    assert found["better_plans"] >= 1
    text = " ".join(said("why-not", *question, *settings)[0].split())
    assert "It is the first plan: the simplest within 1 % of the fastest." in text
    assert "1 % better at most" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt3-1.3b", "--gpus", "8"), "say which plan is meant"),
        ((), "MODEL: is missing"),
        (("gpt3-1.3b", "--gpus", "8", "--tp", "x"), "--tp x"),
        (("gpt3-1.4b", "--gpus", "8", "--tp", "2"), "gpt3-1.4b"),
        (("--plan", "none.yaml"), "no such file"),
        (("--plan", "none.yaml", "--from", "megatron", "x.sh"), "each names a plan"),
    ],
)
def test_bad_questions(fails: Any, arguments: tuple[str, ...], message: str) -> None:
    assert message in fails("why-not", *arguments)


def test_python() -> None:
    found = planner.why_not("gpt3-125m", gpus=4, batch=4, tp=5)
    assert not found.legal
    assert found.plan is not None
    assert found.verdict.startswith("The plan is not legal.")
    assert repr(found) == f"<planner.WhyNot: {found.verdict}>"
    assert sum(step["change_s"] for step in found.steps) == pytest.approx(
        found.first["step_time_s"] - found.plan.step_time_s  # type: ignore[index]
    )
    assert "What each difference costs" in str(found)
