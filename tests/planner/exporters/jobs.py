"""Jobs made by hand, so that exports are tested without a search or a cost model."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from costmodel.mesh.plan import CP_KINDS, ORDERS, RECOMPUTE, SCHEDULES, MeshPlan
from costmodel.network.sizes import NetworkSizes
from costmodel.schedules import schedule_of
from costmodel.serving.plan import ServingPlan
from planner.exporters.job import Job, Nodes, Origin, ServingJob

LLAMA3_70B = NetworkSizes(
    layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, ffn=28672, vocabulary=128256, has_glu=True, function="silu",
    norm="RMSNorm", has_bias=False, is_tied=False, has_positions=False,
)  # fmt: skip
MIXTRAL = NetworkSizes(
    layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, ffn=14336, vocabulary=32000, has_glu=True, function="silu",
    norm="RMSNorm", has_bias=False, is_tied=False, has_positions=False, experts=8, top_k=2,
)  # fmt: skip


def origin(model: str = "llama3-70b", summary: str = "a plan in words") -> Origin:
    return Origin(
        model=model,
        cluster="dgx-h100",
        device="h100-sxm",
        summary=summary,
        prediction=("5.12 s per step of 128 samples", "61.2 GiB of 80.0 GiB on the fullest GPU"),
        planner_version="TEST",
        plan_name="plan.yaml",
    )


def job_of(plan: MeshPlan, *, network: NetworkSizes | None = LLAMA3_70B, **changes: Any) -> Job:
    """A job whose chunks are as even as the blocks allow, unless the plan says otherwise."""
    layers = network.layers if network is not None else 12
    chunks = plan.pp * plan.vpp
    even = tuple(layers // chunks + (c < layers % chunks) for c in range(chunks))
    values: dict[str, Any] = {
        "origin": origin(),
        "nodes": Nodes(workers=plan.workers, capacity=8, domain_gpus=getattr(plan, "domain_gpus", 0)),
        "blocks": plan.stage_blocks or even,
        "network": network,
        "seq": 8192,
        "precision": "bf16",
        "optimizer": "adam",
    }
    return Job(plan=plan, **{**values, **changes})


def serving_job(plan: ServingPlan, **changes: Any) -> ServingJob:
    values: dict[str, Any] = {
        "origin": origin(summary="a way to serve"),
        "nodes": Nodes(workers=plan.workers, capacity=8, domain_gpus=getattr(plan, "domain_gpus", 0)),
        "prefill_stages": tuple(80 // plan.prefill_pp + (s < 80 % plan.prefill_pp) for s in range(plan.prefill_pp)),
        "stages": tuple(80 // plan.pp + (s < 80 % plan.pp) for s in range(plan.pp)),
        "has_experts": False,
        "prompt_tokens": 1024,
        "output_tokens": 256,
        "precision": "bf16",
        "kv_precision": "bf16",
        "memory_utilisation": 0.9,
    }
    return ServingJob(plan=plan, **{**values, **changes})


def drawn_plan(data: Any, *, has_experts: bool) -> MeshPlan:
    """A random plan of 32 blocks and a batch of 64, legal or not."""
    one = st.sampled_from
    pp = data.draw(one([1, 1, 2, 4]))
    schedule = data.draw(one(SCHEDULES)) if pp > 1 else "1f1b"
    zero, micro = data.draw(st.integers(0, 3)), data.draw(one([1, 2]))
    shard = data.draw(one([1, 2, 4])) if zero else 1
    replicate = data.draw(one([1, 1, 2]))
    tp, cp = data.draw(one([1, 1, 2, 3, 4])), data.draw(one([1, 1, 2]))
    recompute = data.draw(one(RECOMPUTE))
    experts = [1, 1, 2, 4] if has_experts else [1]
    vpp = schedule_of(schedule).vpp or data.draw(one([2, 4]))
    even = [32 // (pp * vpp)] * (pp * vpp)
    uneven = [even[0] - 1, *even[1:-1], even[-1] + 1]
    blocks = data.draw(one([(), (), tuple(even), tuple(uneven)])) if pp > 1 else ()
    # Fewer blocks on the last chunk; of the same number the field of the plan says it.
    fewer = (*[1] * (pp * vpp - 1), 0)
    stage_recompute = data.draw(one([(), (), fewer])) if pp > 1 and recompute == "full" else ()
    return MeshPlan(
        tp=tp,
        sequence_parallel=tp > 1 and data.draw(st.booleans()),
        cp=cp,
        cp_kind=data.draw(one(CP_KINDS)) if cp > 1 else "ring",
        ep=data.draw(one(experts)),
        etp=data.draw(one([1, 1, tp])) if len(experts) > 1 else 1,
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        dp_replicate=replicate,
        dp_shard=shard,
        zero_stage=zero,
        micro_batch=micro,
        num_micro_batches=64 // (replicate * shard * micro),
        recompute=recompute,
        recompute_blocks=data.draw(one([1, 32 // pp, 32])) if recompute == "full" else 0,
        offload_optimizer=data.draw(one([False, False, True])),
        offload_activations=data.draw(one([False, False, True])),
        order=data.draw(one(["tp-cp-dp-pp", *ORDERS])),
        stage_blocks=blocks,
        stage_recompute=stage_recompute,
    )


# Three training runs: a pipeline with virtual stages, FSDP with recomputation, and experts.
PIPELINE = job_of(
    MeshPlan(
        tp=8, sequence_parallel=True, pp=4, vpp=5, schedule="interleaved", dp_shard=4, zero_stage=1, micro_batch=1,
        num_micro_batches=32,
    )
)  # fmt: skip
FSDP = job_of(
    MeshPlan(
        tp=2, sequence_parallel=True, dp_replicate=2, dp_shard=8, zero_stage=3, micro_batch=2, num_micro_batches=4,
        recompute="full", recompute_blocks=80,
    )
)  # fmt: skip
EXPERTS = job_of(
    MeshPlan(ep=8, dp_shard=32, zero_stage=1, micro_batch=1, num_micro_batches=4),
    network=MIXTRAL,
    origin=origin("mixtral-8x7b"),
)
# What targets without interleaving or FSDP run.
PLAIN_PIPELINE = job_of(
    MeshPlan(tp=4, sequence_parallel=True, pp=2, dp_shard=8, zero_stage=1, num_micro_batches=16), precision="bf16"
)
ODD_STAGES = job_of(
    MeshPlan(
        tp=8, pp=4, dp_replicate=2, num_micro_batches=8, stage_blocks=(19, 21, 21, 19), recompute="full", recompute_blocks=4,
        stage_recompute=(4, 3, 2, 0),
    )
)  # fmt: skip
CONTEXT = job_of(
    MeshPlan(tp=2, cp=4, cp_kind="all_gather", dp_shard=2, zero_stage=2, recompute="full", recompute_blocks=40),
    lora_rank=16,
)
# Tensor and sequence parallelism beside FSDP, and FSDP alone with a network that is no plain decoder.
TENSOR = job_of(MeshPlan(tp=4, sequence_parallel=True, dp_shard=2, zero_stage=2, micro_batch=1, num_micro_batches=2))
FSDP_ONLY = job_of(
    MeshPlan(dp_replicate=2, dp_shard=8, zero_stage=3, micro_batch=2, recompute="full", recompute_blocks=5),
    network=None,
    precision="fp32",
)
DATA = job_of(
    MeshPlan(dp_replicate=16, micro_batch=8),
    network=None,
    blocks=(),
    seq=None,
    origin=origin("alexnet"),
    optimizer="momentum",
    collectives=("ring", "tree"),
)
SERVE = serving_job(ServingPlan(tp=8, max_batch=64, prefill_chunk=1024))
SERVE_PIPELINE = serving_job(
    ServingPlan(tp=2, pp=3, dp=2, max_batch=64), nodes=Nodes(workers=12, capacity=12), precision="fp8"
)
SERVE_EXPERTS = serving_job(
    ServingPlan(tp=1, ep=8, dp=16, max_batch=128, prefill_chunk=512, prefill_batch=2),
    has_experts=True,
    kv_precision="fp8",
)
SERVE_NODES = serving_job(ServingPlan(tp=8, pp=2, dp=2, max_batch=32, prefill_chunk=2048), load="benchmark")
# Prompts read by servers of their own: beside those that decode, and on nodes with experts shared over two of them.
SERVE_APART = serving_job(
    ServingPlan(tp=4, max_batch=48, prefill_dp=2, prefill_tp=2, prefill_batch=3, prefill_chunk=2048)
)
SERVE_APART_NODES = serving_job(
    ServingPlan(tp=8, ep=16, dp=2, max_batch=32, prefill_dp=8, prefill_tp=1, prefill_ep=8),
    has_experts=True,
)
