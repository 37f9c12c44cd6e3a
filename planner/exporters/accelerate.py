"""Accelerate: the YAML file of `accelerate launch`, with FSDP2 and its device mesh.

Nested keys keep their long prefix. Without ZeRO the ranks replicate (MULTI_GPU); ``fsdp_reshard_after_forward`` is a flag in FSDP2: true
is ZeRO-3, false ZeRO-2. The mesh is dp_replicate, dp_shard, cp, tp from outside in (accelerate/parallelism_config.py).
"""

from __future__ import annotations

from typing import Any

from costmodel.mesh.plan import MeshPlan
from planner.exporters.account import Account
from planner.exporters.common import SPLITS, account_basics, account_order, header
from planner.exporters.job import Job
from planner.exporters.shell import node_ranks, start_scripts
from planner.files.yaml_text import yaml_text

TITLE = "Accelerate"
SUMMARY = "accelerate.yaml, train.sh, train.slurm"
VERSIONS = {"1.15": "Accelerate, commit 16cb6eb8 of 2026-07-24; loaded by Accelerate 1.15.0"}
TAKES = frozenset({"mesh", "data"})
CONFIG = "accelerate.yaml"
FIELDS = {
    "tp": "parallelism_config_tp_size; tp alone PARALLELISM_CONFIG_TP_SIZE",
    "sequence_parallel": "-: the tensor-parallel plan of the model decides",
    "cp": "parallelism_config_cp_size",
    "cp_kind": "parallelism_config_cp_comm_strategy allgather (all_gather), alltoall (ring); all_to_all is refused",
    "ep": "more than 1 is refused",
    "etp": "-: the tensor-parallel plan of the model decides",
    "pp": "more than 1 is refused",
    "vpp": "more than 1 is refused",
    "schedule": "no pipelines",
    "dp_replicate": "parallelism_config_dp_replicate_size; num_processes without ZeRO",
    "dp_shard": "parallelism_config_dp_shard_size",
    "zero_stage": "fsdp_reshard_after_forward false (2), true (3); -: 1",
    "micro_batch": "by hand: the data loader of your script",
    "num_micro_batches": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "recompute": "fsdp_activation_checkpointing (full, under FSDP); -: selective",
    "recompute_blocks": "all blocks; -: fewer",
    "offload_optimizer": "-: fsdp_offload_params moves weights, too; written under FSDP",
    "offload_activations": "-: not by the file",
    "order": "tp-cp-dp; -: the others",
    "stage_blocks": "no pipelines",
    "stage_recompute": "-: all blocks are alike",
    "block_splits": SPLITS,
    "precision": "mixed_precision",
    "optimizer": "by hand: your script",
    "seq": "by hand: your data",
    "lora_rank": "by hand: adapters of your model",
    "placement": "num_machines, num_processes",
}
# FSDP2's two ways to bring keys and values to every rank: gathered at once, or handed around.
_CP_COMM = {"all_gather": "allgather", "ring": "alltoall"}


def refusals(job: Job, version: str) -> list[str]:  # noqa: ARG001 - the same for all versions
    """Combinations that accelerate/parallelism_config.py raises on, and what Accelerate does not have."""
    plan, problems = job.plan, []
    if plan.pp > 1 or plan.vpp > 1:
        problems.append(f"pp {plan.pp}: Accelerate trains without pipelines")
    if plan.ep > 1:
        problems.append(f"ep {plan.ep}: Accelerate's device mesh has no expert parallelism")
    if plan.cp > 1 and plan.cp_kind == "all_to_all":
        problems.append("cp_kind all_to_all: Accelerate leaves it to DeepSpeed; export to deepspeed")
    if (plan.tp > 1 or plan.cp > 1) and not plan.zero_stage and not _is_tp_alone(plan):
        problems.append(
            f"tp {plan.tp} and cp {plan.cp} without ZeRO: Accelerate's device mesh needs FSDP to share over dp_shard or cp"
        )
    elif plan.zero_stage and plan.tp > 1 and plan.dp_shard == 1 and plan.cp == 1:
        problems.append(
            f"ZeRO-{plan.zero_stage} with tp {plan.tp} and dp_shard 1: Accelerate's FSDP has no ranks left to share over"
        )
    elif (plan.tp > 1 or plan.cp > 1) and plan.dp_replicate > 1 and plan.dp_shard == 1:
        problems.append(
            f"dp_replicate {plan.dp_replicate} with tp {plan.tp} and cp {plan.cp}: Accelerate replicates beside tp or cp only where "
            "dp_shard is above 1"
        )
    return problems


def _is_tp_alone(plan: MeshPlan) -> bool:
    """A mesh of tensor parallelism only, which Accelerate takes without FSDP."""
    return plan.tp > 1 and plan.tp == plan.workers and not plan.zero_stage


def render(job: Job, account: Account, version: str) -> dict[str, str]:
    """Write the YAML file and the scripts."""
    config = _config(job, account)
    head = header(job.origin, account, VERSIONS[version])
    nodes = job.nodes
    launcher = ["LAUNCHER=(", "  accelerate launch", f'  --config_file "$here/{CONFIG}"', ")"]
    if nodes.count > 1:
        launcher = [
            *node_ranks(),
            *launcher[:-1],
            '  --machine_rank "$node_rank"',
            '  --main_process_ip "$master_addr"',
            '  --main_process_port "${MASTER_PORT:-29500}"',
            ")",
        ]
    settings = ['script="${SCRIPT:?set SCRIPT to your training script}"']
    # Read by Accelerator() where the script does not say itself.
    environment = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(job.plan.num_micro_batches)}
    if _is_tp_alone(job.plan):
        # `accelerate launch` takes parallelism_config with FSDP2 only; Accelerator() reads the mesh from the environment all the same.
        environment |= {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_TP_SIZE": str(job.plan.tp)}
    scripts = start_scripts(
        job, head, environment=environment, settings=settings, launcher=launcher, command=['"$script"']
    )
    return {CONFIG: yaml_text(config, "\n".join(head)), **scripts}


def _config(job: Job, account: Account) -> dict[str, Any]:
    plan, nodes = job.plan, job.nodes
    account_basics(job, account)
    _account_run(job, account)
    is_sharded = plan.zero_stage > 0
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "FSDP" if is_sharded else ("MULTI_GPU" if plan.workers > 1 else "NO"),
        "mixed_precision": _precision(job, account),
        "use_cpu": False,
        "num_machines": nodes.count,
        "num_processes": plan.workers,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
    }
    mesh = _mesh(job, account)
    if is_sharded:
        config |= {"parallelism_config": mesh, "fsdp_config": _fsdp(job, account)}  # the one needs the other
    elif plan.recompute == "full":
        account.left_to_user("recompute", "model.gradient_checkpointing_enable() in your script")
        account.left_to_user("recompute_blocks", "the same")
    if plan.recompute == "selective":
        account.impossible("recompute", "whole blocks are checkpointed or none; nothing is recomputed")
    if plan.recompute == "full" and job.chunk_recompute != job.blocks:
        field = "stage_recompute" if plan.stage_recompute else "recompute_blocks"
        account.impossible(
            field, f"all blocks are recomputed, not {', '.join(map(str, job.chunk_recompute))}: less memory, more time"
        )
    if plan.offload_optimizer and is_sharded:
        account.impossible(
            "offload_optimizer", "fsdp_offload_params is written, which moves the weights, too: slower than predicted"
        )
    elif plan.offload_optimizer:
        account.impossible("offload_optimizer", "only FSDP offloads; the optimizer stays on the device")
    if plan.offload_activations:
        account.impossible("offload_activations", "no key of the file does; they stay on the device")
    return config


def _account_run(job: Job, account: Account) -> None:
    plan = job.plan
    account.left_to_user("micro_batch", f"batch size {plan.micro_batch} per process in the data loader of your script")
    account.note("num_micro_batches", FIELDS["num_micro_batches"])
    account.left_to_user("optimizer", f"{job.optimizer}, built in your script")
    if job.seq is not None:
        account.left_to_user("seq", f"samples of {job.seq} positions, from your data")
    if job.lora_rank is not None:
        account.left_to_user("lora_rank", f"adapters of rank {job.lora_rank} in your model, all else frozen")


def _precision(job: Job, account: Account) -> str:
    account.note("precision", "mixed_precision")
    if job.precision == "tf32":
        account.left_to_user("precision", "torch.set_float32_matmul_precision('high') in your script")
    return {"fp32": "no", "tf32": "no"}.get(job.precision, job.precision)


def _mesh(job: Job, account: Account) -> dict[str, Any]:
    plan = job.plan
    for field in ("tp", "cp", "dp_replicate", "dp_shard"):
        account.note(field, FIELDS[field])
    account_order(job, account, {"tp-cp-dp-pp": "the device mesh"}, "tp-cp-dp-pp")
    if plan.sequence_parallel:
        account.impossible(
            "sequence_parallel",
            "the tensor-parallel plan of the model decides; most repeat tensors between the split matrices",
        )
    if plan.etp > 1:
        account.impossible("etp", "the tensor-parallel plan of the model decides how experts are split")
    mesh: dict[str, Any] = {
        "parallelism_config_dp_replicate_size": plan.dp_replicate,
        "parallelism_config_dp_shard_size": plan.dp_shard,
        "parallelism_config_tp_size": plan.tp,
        "parallelism_config_cp_size": plan.cp,
    }
    if plan.cp > 1:
        account.note("cp_kind", FIELDS["cp_kind"])
        mesh["parallelism_config_cp_comm_strategy"] = _CP_COMM[plan.cp_kind]
    return mesh


def _fsdp(job: Job, account: Account) -> dict[str, Any]:
    plan = job.plan
    account.note("zero_stage", FIELDS["zero_stage"])
    if plan.zero_stage == 1:
        account.impossible("zero_stage", "FSDP2 shares gradients, too: ZeRO-2 is written (less memory than predicted)")
    if plan.recompute == "full":
        account.note("recompute", FIELDS["recompute"])
        account.note("recompute_blocks", FIELDS["recompute_blocks"])
        account.note("stage_recompute", FIELDS["recompute_blocks"])
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": plan.zero_stage == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP"
        if job.network is not None or job.blocks
        else "SIZE_BASED_WRAP",
        "fsdp_activation_checkpointing": plan.recompute == "full",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_offload_params": plan.offload_optimizer,
        "fsdp_cpu_ram_efficient_loading": False,
    }
