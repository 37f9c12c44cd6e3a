"""DeepSpeed: its JSON file. JSON has no comments: what the file does not say stands in train.sh and README.md.

Degrees of a pipeline are code (PipelineModule), not JSON; ZeRO-2 and ZeRO-3 are refused beside a pipeline (runtime/pipe/engine.py).
Two of batch, micro-batch and accumulation are given; DeepSpeed computes the third.
"""

from __future__ import annotations

import json
from typing import Any

from costmodel.mesh.plan import MeshPlan
from planner.exporters.account import Account
from planner.exporters.common import SPLITS, account_basics, account_order, header, is_even_layout
from planner.exporters.job import Job
from planner.exporters.shell import start_scripts

TITLE = "DeepSpeed"
SUMMARY = "ds_config.json, train.sh, train.slurm"
VERSIONS = {"0.19": "DeepSpeed, commit edaa72212 of 2026-08-22; loaded by DeepSpeed 0.19.8"}
TAKES = frozenset({"mesh", "data"})
CONFIG = "ds_config.json"
FIELDS = {
    "tp": "tensor_parallel.autotp_size; with a pipeline by hand",
    "sequence_parallel": "-: AutoTP repeats tensors between the split matrices",
    "cp": "sequence_parallel_size and data_parallel_size (Ulysses)",
    "cp_kind": "all_to_all; the others are refused",
    "ep": "expert_parallel.autoep_size",
    "etp": "1; more is refused",
    "pp": "by hand: PipelineModule(num_stages=)",
    "vpp": "more than 1 is refused",
    "schedule": "1f1b; -: the others",
    "dp_replicate": "implied; -: beside ZeRO",
    "dp_shard": "implied by the number of processes",
    "zero_stage": "zero_optimization.stage",
    "micro_batch": "train_micro_batch_size_per_gpu",
    "num_micro_batches": "gradient_accumulation_steps",
    "recompute": "by hand: the model's own checkpointing (full); -: selective",
    "recompute_blocks": "by hand",
    "offload_optimizer": "zero_optimization.offload_optimizer; -: without ZeRO",
    "offload_activations": "activation_checkpointing.cpu_checkpointing (full recomputation); -: otherwise",
    "order": "tp-cp-dp-pp; -: the others",
    "stage_blocks": "by hand: PipelineModule(partition_method=)",
    "stage_recompute": "-: activation_checkpoint_interval is the same on every stage",
    "block_splits": SPLITS,
    "precision": "bf16.enabled, fp16.enabled; -: fp8",
    "optimizer": "by hand: the optimizer of your script, since DeepSpeed wants its learning rate beside it",
    "seq": "by hand: your data",
    "lora_rank": "by hand: adapters of your model",
    "placement": "processes per node of the launcher",
}


def refusals(job: Job, version: str) -> list[str]:  # noqa: ARG001 - the same for all versions
    """Combinations that DeepSpeed does not start with."""
    return plan_refusals(job.plan)


def plan_refusals(plan: MeshPlan) -> list[str]:
    """Combinations that DeepSpeed does not start with, whatever else the run says.

    >>> plan_refusals(MeshPlan(pp=4, zero_stage=2, micro_batch=1, num_micro_batches=4))
    ["ZeRO-2 with a pipeline (pp 4): DeepSpeed's pipeline engine takes ZeRO-1 at most"]
    """
    problems = []
    if plan.pp > 1 and plan.zero_stage >= 2:
        problems.append(
            f"ZeRO-{plan.zero_stage} with a pipeline (pp {plan.pp}): DeepSpeed's pipeline engine takes ZeRO-1 at most"
        )
    if plan.vpp > 1:
        problems.append(f"vpp {plan.vpp}: DeepSpeed's pipelines have one chunk per rank")
    if plan.pp > 1 and plan.cp > 1:
        problems.append(
            f"cp {plan.cp} with pp {plan.pp}: the ranks of DeepSpeed's pipelines are pipe x data x model, without positions"
        )
    if plan.tp > 1 and plan.cp > 1:
        problems.append(
            f"cp {plan.cp} with tp {plan.tp}: DeepSpeed's device mesh is data x sequence, AutoTP has one of its own"
        )
    if plan.cp > 1 and plan.cp_kind != "all_to_all":
        problems.append(f"cp_kind {plan.cp_kind}: DeepSpeed splits positions by all_to_all (Ulysses) only")
    if plan.etp > 1:
        problems.append(f"etp {plan.etp}: DeepSpeed does not split the matrices of an expert")
    return problems + _expert_problems(plan)


def _expert_problems(plan: MeshPlan) -> list[str]:
    """What AutoEP raises on (DeepSpeed 0.19.8: module_inject/auto_ep_folding.py, runtime/engine.py)."""
    if plan.ep == 1:
        return []
    checks = {
        f"ep {plan.ep} with tp {plan.tp} and pp {plan.pp}: DeepSpeed's experts take tensor parallelism without a pipeline only": plan.tp
        > 1
        and plan.pp > 1,
        f"ep {plan.ep} with tp {plan.tp} and offload_optimizer: DeepSpeed's experts do not offload beside tensor parallelism": plan.tp
        > 1
        and plan.offload_optimizer,
        f"ep {plan.ep} with cp {plan.cp} under ZeRO-3: DeepSpeed's experts do not split positions there": plan.cp > 1
        and plan.zero_stage == 3,
    }
    return [text for text, is_wrong in checks.items() if is_wrong]


def render(job: Job, account: Account, version: str) -> dict[str, str]:
    """Write the JSON file and the scripts."""
    config = _config(job, account)
    head = header(job.origin, account, VERSIONS[version])
    settings = [
        "# Your program; it hands --deepspeed_config to deepspeed.initialize.",
        'script="${SCRIPT:?set SCRIPT to your training script}"',
    ]
    command = ['"$script"', f'--deepspeed_config "$here/{CONFIG}"']
    text = json.dumps(config, indent=2) + "\n"
    return {CONFIG: text, **start_scripts(job, head, settings=settings, command=command)}


def _config(job: Job, account: Account) -> dict[str, Any]:
    plan = job.plan
    account_basics(job, account)
    for field in ("micro_batch", "num_micro_batches", "dp_shard", "dp_replicate"):
        account.note(field, FIELDS[field])
    account_order(job, account, {"tp-cp-dp-pp": "data-parallel ranks are neighbours, stages apart"}, "tp-cp-dp-pp")
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_micro_batches,
    }
    config |= _precision(job, account)
    config |= _parallel(job, account)
    _pipeline(job, account)
    config["zero_optimization"] = _zero(job, account)
    config |= _activations(job, account)
    account.left_to_user(
        "optimizer", f"build {job.optimizer} in your script, or add a section 'optimizer' with its learning rate"
    )
    if job.seq is not None:
        account.left_to_user("seq", f"samples of {job.seq} positions, from your data")
    if job.lora_rank is not None:
        account.left_to_user("lora_rank", f"adapters of rank {job.lora_rank} in your model, all else frozen")
    return config


def _precision(job: Job, account: Account) -> dict[str, Any]:
    account.note("precision", FIELDS["precision"])
    if job.precision == "fp8":
        account.impossible("precision", "fp8 is the model's own code (Transformer Engine); bf16 is written")
    if job.precision == "tf32":
        account.left_to_user("precision", "torch.set_float32_matmul_precision('high') in your script")
    name = {"bf16": "bf16", "fp8": "bf16", "fp16": "fp16"}.get(job.precision)
    return {name: {"enabled": True}} if name else {}


def _parallel(job: Job, account: Account) -> dict[str, Any]:
    plan = job.plan
    config: dict[str, Any] = {}
    if plan.tp > 1 and plan.pp == 1:
        config["tensor_parallel"] = {"autotp_size": plan.tp}
        account.note("tp", FIELDS["tp"])
        if plan.sequence_parallel:
            account.impossible(
                "sequence_parallel", "AutoTP repeats the tensors between the split matrices: more memory per device"
            )
    elif plan.tp > 1:
        account.left_to_user(
            "tp",
            f"split the layers {plan.tp} ways in your PipelineModule (PipeModelDataParallelTopology, num_mp={plan.tp})",
        )
        if plan.sequence_parallel:
            account.left_to_user("sequence_parallel", "cut the positions between the split matrices in your layers")
    if plan.cp > 1:
        config |= {"sequence_parallel_size": plan.cp, "data_parallel_size": plan.dp}
        account.note("cp", FIELDS["cp"])
        account.note("cp_kind", FIELDS["cp_kind"])
    if plan.ep > 1:
        config["expert_parallel"] = {"enabled": True, "autoep_size": plan.ep}
        account.note("ep", FIELDS["ep"])
    return config


def _pipeline(job: Job, account: Account) -> None:
    plan = job.plan
    if plan.pp == 1:
        return
    account.left_to_user("pp", f"PipelineModule(layers=..., num_stages={plan.pp})")
    blocks = ", ".join(map(str, job.blocks))
    how = (
        "partition_method='type:YOUR_BLOCK'"
        if is_even_layout(job.blocks)
        else "stage bounds of your own in _partition_layers"
    )
    account.left_to_user("stage_blocks", f"blocks per stage: {blocks} ({how})")
    if plan.schedule == "1f1b":
        account.note("schedule", "the only one")
    else:
        account.impossible("schedule", f"DeepSpeed runs 1f1b, not {plan.schedule}")


def _zero(job: Job, account: Account) -> dict[str, Any]:
    plan = job.plan
    zero: dict[str, Any] = {"stage": plan.zero_stage}
    if plan.zero_stage:
        account.note("zero_stage", FIELDS["zero_stage"])
        if plan.dp_replicate > 1:  # MiCS, which shared over groups, is gone (DeepSpeed issue 8489)
            account.impossible(
                "dp_replicate",
                f"ZeRO-{plan.zero_stage} shares over all {plan.dp} data-parallel ranks, not over groups of {plan.dp_shard}",
            )
        zero |= {"overlap_comm": True, "contiguous_gradients": True}
    if plan.offload_optimizer and plan.zero_stage:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        account.note("offload_optimizer", FIELDS["offload_optimizer"])
    elif plan.offload_optimizer:
        account.impossible(
            "offload_optimizer", "DeepSpeed offloads the optimizer under ZeRO only; it stays on the device"
        )
    return zero


def _activations(job: Job, account: Account) -> dict[str, Any]:
    plan = job.plan
    if plan.recompute == "selective":
        account.impossible(
            "recompute",
            "DeepSpeed checkpoints whole pieces that your model names, not single operations; nothing is recomputed",
        )
    if plan.offload_activations and plan.recompute != "full":
        account.impossible(
            "offload_activations",
            "DeepSpeed moves the inputs of checkpointed pieces only (recompute full); they stay on the device",
        )
    if plan.recompute != "full":
        return {}
    counts = job.chunk_recompute
    where = (
        "every block" if counts == job.blocks else f"{', '.join(map(str, counts))} blocks per stage, the first of each"
    )
    account.left_to_user("recompute", f"call deepspeed.checkpointing.checkpoint around {where}")
    account.left_to_user("recompute_blocks", f"{where}")
    if plan.stage_recompute:
        account.left_to_user("stage_recompute", f"{where}")
    settings = {
        "partition_activations": plan.offload_activations and plan.tp > 1,
        "cpu_checkpointing": plan.offload_activations,
    }
    if plan.offload_activations:
        account.note("offload_activations", FIELDS["offload_activations"])
    return {"activation_checkpointing": settings}
