"""What an exporter writes is read back as the plan that it was written from."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from costmodel.mesh.framework_rules import order_in_effect
from costmodel.mesh.plan import MeshPlan
from planner.api.keywords import EstimateOptions, options_of
from planner.api.requests import request_of
from planner.api.values import Values
from planner.exporters import TARGETS_ELSEWHERE, exporter_of
from planner.exporters.runs import RUNS, with_run
from planner.question.resolve import resolve
from planner.spaces.mesh.exact import exact_plan
from planner.spaces.mesh.space import MeshPlanSpace, mesh_space
from tests.cases import mostly
from tests.planner.exporters.jobs import drawn_plan
from tests.planner.exporters.test_framework_rules import export_of, space_of, writes_completely

# Where the plan stands, of every trainer whose runs are read.
FILES = {
    "megatron": "train.sh",
    "megatron-bridge": "train.sh",
    "nemo": "train.sh",
    "torchtitan": "planned.py",
    "deepspeed": "ds_config.json",
    "accelerate": "accelerate.yaml",
    "nanotron": "nanotron.yaml",
}
# What these files leave to the program that they are for: said on the command line.
OF_THE_SCRIPT = {
    "deepspeed": ("dp_replicate", "dp_shard", "recompute_blocks"),
    "accelerate": ("micro_batch", "num_micro_batches"),
}
BY_HAND = ("tp", "sequence_parallel", "pp", "cp_kind", "dp_replicate", "dp_shard", "micro_batch", "recompute_blocks")


def in_effect(plan: MeshPlan, blocks: tuple[int, ...]) -> MeshPlan:
    """The plan with every setting that changes nothing in one way."""
    recomputed = plan.stage_recompute or tuple(min(plan.recompute_blocks, count) for count in blocks)
    return replace(
        plan,
        cp_kind=plan.cp_kind if plan.cp > 1 else "ring",
        order=order_in_effect(plan.order, plan),
        stage_blocks=blocks,
        recompute_blocks=0,
        stage_recompute=recomputed if plan.recompute == "full" else (),
    )


def test_every_trainer_is_tried() -> None:
    assert set(FILES) == set(RUNS)


@mostly(
    "fuzz",
    ("trainer", "model"),
    [(trainer, model) for trainer in sorted(FILES, reverse=True) for model in ("llama3-8b", "mixtral-8x7b")],
    quick=1,
)
@given(data=st.data())
@settings(
    max_examples=min(60, settings.default.max_examples),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
def test_what_is_written_is_read_back(trainer: str, model: str, data: Any, new_file: Any) -> None:
    framework = exporter_of(TARGETS_ELSEWHERE.get(trainer, trainer)).FRAMEWORK
    space = space_of(framework, model, 96)
    plan = drawn_plan(data, has_experts=model.startswith("mixtral"))
    assume(not space.broken(plan) and writes_completely(space, plan, TARGETS_ELSEWHERE.get(trainer, trainer)))
    check_round_trip(trainer, framework, model, space, plan, new_file)


def test_all_blocks_of_the_longest_stage_are_recomputed(new_file: Any) -> None:
    """A file that recomputes everything recomputes the 17 blocks of a stage that has more than its share."""
    plan = MeshPlan(
        pp=2,
        dp_shard=2,
        zero_stage=3,
        num_micro_batches=32,
        recompute="full",
        recompute_blocks=17,
        stage_blocks=(15, 17),
    )
    space = space_of("torchtitan", "llama3-8b", 96)
    assert not space.broken(plan)
    check_round_trip("torchtitan", "torchtitan", "llama3-8b", space, plan, new_file)


def check_round_trip(
    trainer: str, framework: str, model: str, space: MeshPlanSpace, plan: MeshPlan, new_file: Any
) -> None:
    """Write a plan, read it back, and compare all that the files say."""
    export = export_of(space, plan, TARGETS_ELSEWHERE.get(trainer, trainer))
    path = new_file(FILES[trainer], export.files[FILES[trainer]])
    by_hand = {*export.account.by_hand, *OF_THE_SCRIPT.get(trainer, ())}
    if trainer == "accelerate" and not plan.zero_stage:
        by_hand.add("tp")  # without FSDP a variable of train.sh says it
    said = {
        name: getattr(plan, name)
        for name in BY_HAND
        if name in by_hand and (getattr(plan, name) != getattr(MeshPlan(), name) or name.startswith(("dp", "micro")))
    }
    asked = {"model": model, "framework": framework, "gpus": plan.workers, "batch": plan.global_batch, **said}
    filled, stages, notes, _ = with_run(
        {name: value if isinstance(value, bool) else str(value) for name, value in asked.items()}, trainer, path
    )
    values = Values()
    request = request_of(options_of(EstimateOptions), filled, values, "", stages=stages)
    values.check()
    again, _ = exact_plan(mesh_space(resolve(request)))
    blocks = [p.stage_blocks or tuple(space.model.blocks_of(p.pp * p.vpp)) for p in (plan, again)]
    if "stage_blocks" in by_hand:  # the script cuts the stages; the command line cannot
        blocks[1] = blocks[0]
    expected, read = in_effect(plan, blocks[0]), in_effect(again, blocks[1])
    differ = {
        item.name: (getattr(expected, item.name), getattr(read, item.name))
        for item in fields(MeshPlan)
        if item.name not in by_hand and getattr(expected, item.name) != getattr(read, item.name)
    }
    assert not differ, f"{differ}\n{export.files[FILES[trainer]]}"
    assert not [note for note in notes if "not modelled" in note or "left out" in note or "does not say" in note]
