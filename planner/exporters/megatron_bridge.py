"""Megatron-Bridge: overrides of a recipe's ConfigContainer, as run_recipe.py takes them on its command line."""

from __future__ import annotations

from costmodel.precision import OPTIMIZERS
from costmodel.schedules import group_size
from planner.exporters.account import Account
from planner.exporters.common import DOCUMENTS, SEGMENT, SPLITS, account_basics, header, is_even_layout
from planner.exporters.job import Job
from planner.exporters.megatron import (
    CP_COMM,
    ORDERS,
    STRATEGIES,
    environment_of,
    layout_text,
    order_of,
    recompute_of,
)
from planner.exporters.shell import shell_array, start_scripts

TITLE = "Megatron-Bridge"
SUMMARY = "overrides of a recipe in train.sh, train.slurm"
VERSIONS = {"2026-08": "Megatron-Bridge, commit 067f987df of 2026-08-22"}
FRAMEWORK = "megatron-bridge"
TAKES = frozenset({"mesh"})
FIELDS = {
    "tp": "model.tensor_model_parallel_size",
    "sequence_parallel": "model.sequence_parallel",
    "cp": "model.context_parallel_size",
    "cp_kind": "model.cp_comm_type p2p, allgather or a2a",
    "ep": "model.expert_model_parallel_size",
    "etp": "model.expert_tensor_parallel_size",
    "pp": "model.pipeline_model_parallel_size",
    "vpp": "model.virtual_pipeline_model_parallel_size",
    "schedule": "1f1b, and interleaved by vpp; comm_overlap.overlap_moe_expert_parallel_comm (combined_1f1b); no others",
    "dp_replicate": "implied; ddp.num_distributed_optimizer_instances beside ZeRO",
    "dp_shard": "implied by the number of processes",
    "zero_stage": "ddp and optimizer.use_distributed_optimizer (1), use_megatron_fsdp, ddp.data_parallel_sharding_strategy (2, 3)",
    "micro_batch": "train.micro_batch_size",
    "num_micro_batches": "implied by train.global_batch_size; model.microbatch_group_size_per_vp_stage",
    "recompute": "model.recompute_granularity, model.recompute_modules",
    "recompute_blocks": "model.recompute_method=block model.recompute_num_layers",
    "offload_optimizer": "optimizer.optimizer_cpu_offload",
    "offload_activations": "-: not beside pipelines, and not checked",
    "order": "tp-cp-dp-pp, tp-cp-pp-dp by dist.use_tp_pp_dp_mapping; no others",
    "domain_gpus": SEGMENT,
    "stage_blocks": "model.pipeline_model_parallel_layout where stages are unequal",
    "stage_recompute": "as recompute_blocks; -: unless it is the same number on every stage",
    "block_splits": SPLITS,
    "precision": "mixed_precision",
    "optimizer": "optimizer.optimizer, optimizer.sgd_momentum",
    "seq": "model.seq_length and dataset.seq_length",
    "doc_lengths": DOCUMENTS,
    "lora_rank": "by hand: a recipe of PEFT",
    "placement": "processes per node of the launcher",
}


def render(job: Job, account: Account, version: str) -> dict[str, str]:
    """Write the scripts."""
    overrides = _overrides(job, account)
    account.left_to_user(
        "recipe", f"name the recipe of {job.origin.model} in RECIPE; data and learning rate are overrides of it, too"
    )
    head = header(job.origin, account, VERSIONS[version])
    settings = [
        "# From your copy of Megatron-Bridge: the runner, and the recipe of your network.",
        'SCRIPT="${SCRIPT:-scripts/training/run_recipe.py}"',
        'recipe="${RECIPE:?set RECIPE to the recipe of your network, such as llama3_8b_pretrain_2gpu_h100_bf16_config}"',
        "",
        *shell_array("OVERRIDES", [(override,) for override in overrides]),
    ]
    command = ['"$SCRIPT"', '--recipe "$recipe"', '"${OVERRIDES[@]}"']
    return start_scripts(job, head, environment=environment_of(job.plan), settings=settings, command=command)


def _overrides(job: Job, account: Account) -> list[str]:
    plan = job.plan
    account_basics(job, account)
    overrides = [
        f"model.tensor_model_parallel_size={plan.tp}",
        f"model.pipeline_model_parallel_size={plan.pp}",
        f"model.context_parallel_size={plan.cp}",
        f"model.expert_model_parallel_size={plan.ep}",
        f"model.expert_tensor_parallel_size={plan.etp}",
        f"model.sequence_parallel={str(plan.sequence_parallel).lower()}",  # recipes switch it on
        f"train.micro_batch_size={plan.micro_batch}",
        f"train.global_batch_size={plan.global_batch}",
    ]
    if plan.ep > 1:  # what the cost model prices; in racks HybridEP, as in scripts/performance
        backend = "hybridep" if job.nodes.domain_gpus > job.nodes.capacity else "deepep"
        overrides += ["model.moe_token_dispatcher_type=flex", f"model.moe_flex_dispatcher_backend={backend}"]
    if plan.cp > 1:
        overrides.append(f"model.cp_comm_type={CP_COMM[plan.cp_kind]}")
    overrides.append(f"dist.use_tp_pp_dp_mapping={str(ORDERS[order_of(job)]).lower()}")
    overrides += _pipeline(job)
    overrides += _zero(job)
    overrides += _memory(job)
    return overrides + _run_overrides(job, account)


def _pipeline(job: Job) -> list[str]:
    plan = job.plan
    virtual = str(plan.vpp) if plan.vpp > 1 else "null"  # recipes have their own
    if plan.pp == 1:
        return ["model.virtual_pipeline_model_parallel_size=null", "model.pipeline_model_parallel_layout=null"]
    # The layout's | and * are no syntax of an override inside quotes.
    layout = "null" if is_even_layout(job.blocks) else f'"{layout_text(job.blocks)}"'
    return [
        f"model.virtual_pipeline_model_parallel_size={virtual}",
        f"model.pipeline_model_parallel_layout={layout}",
        # Of the model: most recipes have no comm_overlap to override, and one that is there chooses the same (comm_overlap.py).
        f"model.overlap_p2p_comm={str(plan.vpp > 1).lower()}",
        f"model.batch_p2p_comm={str(plan.vpp == 1).lower()}",
        # Recipes have filled it in for their own pp.
        *(
            [f"model.microbatch_group_size_per_vp_stage={group_size(plan.num_micro_batches, plan.pp)}"]
            if plan.vpp > 1
            else []
        ),
        *(["comm_overlap.overlap_moe_expert_parallel_comm=true"] if plan.schedule == "combined_1f1b" else []),
    ]


def _zero(job: Job) -> list[str]:
    plan = job.plan
    shares = plan.zero_stage > 0 or plan.offload_optimizer
    flag = str(shares).lower()
    overrides = [
        f"ddp.use_distributed_optimizer={flag}",
        f"optimizer.use_distributed_optimizer={flag}",  # both, or the recipe's other value stays
        "ddp.overlap_grad_reduce=true",
        f"ddp.overlap_param_gather={flag}",
    ]
    if plan.zero_stage >= 2:
        overrides += [
            "dist.use_megatron_fsdp=true",
            "ddp.use_megatron_fsdp=true",
            f"ddp.data_parallel_sharding_strategy={STRATEGIES[plan.zero_stage]}",
            "ddp.average_in_collective=false",
            "checkpoint.ckpt_format=fsdp_dtensor",
        ]
    if plan.zero_stage and plan.dp_replicate > 1:
        overrides.append(f"ddp.num_distributed_optimizer_instances={plan.dp_replicate}")
    return overrides


def _memory(job: Job) -> list[str]:
    plan = job.plan
    recompute = recompute_of(job)
    overrides = [
        f"model.recompute_granularity={recompute.granularity or 'null'}",
        f"model.recompute_method={recompute.method or 'null'}",
        f"model.recompute_num_layers={recompute.num_layers or 'null'}",
    ]
    if recompute.granularity == "selective":
        overrides.append(f"model.recompute_modules=[{','.join(recompute.modules)}]")
    if plan.offload_optimizer:
        overrides += [
            "optimizer.optimizer_cpu_offload=true",
            "optimizer.optimizer_offload_fraction=1.0",
            "optimizer.use_precision_aware_optimizer=true",
        ]
    return overrides


# Names of `megatron.bridge.training.mixed_precision`.
_MIXED = {
    "fp32": "null",
    "tf32": "null",
    "fp16": "fp16_mixed",
    "bf16": "bf16_mixed",
    "fp8-tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "fp8-delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8-blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}


def _run_overrides(job: Job, account: Account) -> list[str]:
    overrides = [f"mixed_precision={_MIXED.get(job.precision, _MIXED['bf16'])}"]
    if job.precision == "tf32":
        account.left_to_user(
            "precision", "torch.set_float32_matmul_precision('high') before training; there is no override for it"
        )
    if OPTIMIZERS[job.optimizer].rule == "adam":
        if job.optimizer != "adam":
            account.left_to_user(
                "optimizer",
                f"moments of {job.optimizer}: exp_avg_dtype and exp_avg_sq_dtype of your recipe's optimizer",
            )
        overrides = [*overrides, "optimizer.optimizer=adam"]
    else:
        momentum = 0.9 if job.optimizer == "momentum" else 0.0
        overrides = [*overrides, "optimizer.optimizer=sgd", f"optimizer.sgd_momentum={momentum}"]
    if job.seq is not None:
        overrides += [f"model.seq_length={job.seq}", f"dataset.seq_length={job.seq}"]
    if job.lora_rank is not None:
        account.left_to_user("lora_rank", f"choose a recipe of PEFT and give it peft.dim={job.lora_rank}")
    return overrides
