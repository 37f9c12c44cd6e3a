"""Answers about mesh plans made by hand, so that reports are tested without a search."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from costmodel.mesh.detail import LayerRow, StageRow
from costmodel.mesh.plan import MEMORY_PARTS, MESH_FIGURES, TIME_PARTS, MeshPlan
from costmodel.objectives import OBJECTIVES
from planner.core.answer import Answer, Assumption, Estimate, Proof, RankedPlan, Setting
from planner.core.request import Request
from planner.question.resolve import resolve
from planner.spaces.mesh.plans import family_of_mesh_plan, mesh_plan_in_words
from planner.spaces.mesh.space import MeshPlanSpace, mesh_space
from tests.planner.conftest import changed, changed_answer

GIB = 2**30
REQUEST = Request(model="llama3-70b", gpus=256, batch=1024, command_line="planner optimize llama3-70b --gpus 256")
SETTING = Setting(
    model="llama3-70b",
    cluster="dgx-h100",
    device="h100-sxm",
    gpus=256,
    global_batch=1024,
    precision="bf16",
    optimizer="adam",
    mode="training",
    cost_model="roofline",
    memory_capacity_bytes=80.0 * GIB,
    inputs={"model": "a" * 64, "cluster": "b" * 64, "device": "c" * 64},
    command_line="planner optimize llama3-70b --gpus 256",
    seq=8192,
)
PLAN = MeshPlan(
    tp=8, sequence_parallel=True, pp=4, dp_shard=8, zero_stage=1, micro_batch=2, num_micro_batches=64, recompute="selective"
)  # fmt: skip


@functools.cache
def mesh_of_request() -> MeshPlanSpace:
    """The space that the answers are about."""
    return mesh_space(resolve(REQUEST))


def make_ranked(plan: MeshPlan = PLAN, step: float = 20.0, **changes: Any) -> RankedPlan:
    times = dict.fromkeys(TIME_PARTS, 0.0) | {
        "compute_s": 0.7 * step,
        "tp_exposed_s": 0.15 * step,
        "dp_exposed_s": 0.03 * step,
        "bubble_s": 0.1 * step,
        "optimizer_s": 0.02 * step,
    }
    memory = dict.fromkeys(MEMORY_PARTS, 0.0) | {
        "weight_bytes": 10.0 * GIB,
        "optimizer_bytes": 20.0 * GIB,
        "activation_bytes": 25.5 * GIB,
        "context_bytes": 0.5 * GIB,
    }
    tokens_per_s = 1024 * 8192 / step
    ranked = RankedPlan(
        rank=1,
        plan=plan,
        family=family_of_mesh_plan(plan),
        summary=mesh_plan_in_words(plan),
        workers=plan.workers,
        bottleneck="compute",
        declared=MESH_FIGURES,
        score=step,
        figures={
            "step_time_s": step,
            "throughput_samples_per_s": 1024 / step,
            "tokens_per_s": tokens_per_s,
            "tokens_per_s_per_gpu": tokens_per_s / plan.workers,
            "mfu": 0.45,
            "memory_bytes_per_gpu": 56.0 * GIB,
            "memory_capacity_bytes": 80.0 * GIB,
            "gpu_memory_bytes": 80.0 * GIB,
            "fits_probability": 0.99,
            "host_bytes_per_gpu": 0.0,
            "host_capacity_bytes_per_gpu": None,
            "host_s": 0.0,
            "domains": 1,
            "gpus_per_domain": 8,
            "exposed_communication_s": 0.18 * step,
            "gpu_hours_per_million_tokens": plan.workers / tokens_per_s / 3600 * 1e6,
            "money_per_million_tokens": None,
            **{objective.figure.name: None for objective in OBJECTIVES.values() if objective.figure is not None},
            **times,
            **memory,
        },
    )
    return changed(ranked, changes)


def make_result(**changes: Any) -> Answer:
    result = Answer(
        space=mesh_of_request(),
        setting=SETTING,
        objective="step_time",
        plans=(
            make_ranked(),
            make_ranked(MeshPlan(dp_shard=256, zero_stage=3, num_micro_batches=4), 21.0, rank=2, gap=0.05),
        ),
        proof=Proof(
            proven_optimal=True,
            bound_s=20.0,
            gap=0.0,
            space_size=123456,
            searched={"enumerated": 100_000, "bounded away": 23_456},
            wall_s=0.8,
        ),
        assumptions=(Assumption(name="cluster", value="dgx-h100", source="default"),),
        model_assumptions=(
            Assumption(name="tp_overlap", value="0", source="default"),
            Assumption(name="dp_overlap", value="0.8", source="given"),
            Assumption(name="allocator_slack", value="0.08", source="default"),
        ),
        baselines={"data_parallel": make_ranked(MeshPlan(dp_shard=256, zero_stage=3, num_micro_batches=4), 30.0)},
        notes=("a note",),
    )
    return changed_answer(result, changes)


def make_layer(**changes: Any) -> LayerRow:
    row = LayerRow(
        unit="blocks.1", count=80, name="qkv", kind="linear", split="column", forward_s=0.004, backward_s=0.008,
        tp_exchange_s=0.001, weight_count=83_886_080, weights_per_rank=10_485_760, saved_bytes=2.0**26, saved_selective_bytes=2.0**26,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def make_stage(**changes: Any) -> StageRow:
    row = StageRow(
        rank=0, blocks="20", forward_s=0.15, backward_s=0.3, recompute_s=0.0, transfer_s=0.001, memory_bytes=56.0 * GIB,
        weight_bytes=4.0 * GIB, gradient_bytes=8.0 * GIB, optimizer_bytes=12.0 * GIB, activation_bytes=28.0 * GIB,
        working_bytes=1.0 * GIB, logits_bytes=0.0, buffer_bytes=0.5 * GIB, slack_bytes=2.0 * GIB, context_bytes=0.5 * GIB, host_bytes=0.0,
        in_flight=4.0,
    )  # fmt: skip
    return dataclasses.replace(row, **changes)


def make_breakdown(**changes: Any) -> Estimate:
    breakdown = Estimate(
        space=mesh_of_request(),
        setting=SETTING,
        objective="step_time",
        ranked=make_ranked(step=25.0, gap=0.25),
        tables={
            "layers": (
                make_layer(),
                make_layer(name="add", kind="add", split="whole", tp_exchange_s=0.0, weight_count=0),
            ),
            "stages": (make_stage(), make_stage(rank=1, activation_bytes=21.0 * GIB)),
            "links": (),
        },
        best=make_ranked(),
        comparison=(("pipeline bubble", 2.5, 2.0), ("compute", 17.5, 14.0), ("offload", 0.0, 0.0)),
        assumptions=(Assumption(name="cluster", value="dgx-h100", source="default"),),
        model_assumptions=(Assumption(name="dp_overlap", value="0.9", source="default"),),
        notes=(),
    )
    return dataclasses.replace(breakdown, **changes)
