"""DeepSpeed: its JSON file. JSON has no comments: what the file does not say stands in train.sh and README.md.

Degrees of a pipeline are code (PipelineModule), not JSON; ZeRO-2 and ZeRO-3 are refused beside a pipeline (runtime/pipe/engine.py).
Two of batch, micro-batch and accumulation are given; DeepSpeed computes the third.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.mesh.plan import MeshPlan
from costmodel.precision import PRECISIONS
from planner.core.errors import FileProblem, InputFileError
from planner.exporters.account import Account
from planner.exporters.common import (
    DOCUMENTS,
    SEGMENT,
    SPLITS,
    account_basics,
    account_script,
    account_trainer,
    header,
    is_even_layout,
)
from planner.exporters.job import Job
from planner.exporters.rules import refused_by
from planner.exporters.runs import Run, count_of, problem, section_of, unread_keys
from planner.exporters.shell import start_scripts
from planner.files.naming.optimizers import optimizer_called
from planner.files.text import failure

TITLE = "DeepSpeed"
SUMMARY = "ds_config.json, train.sh, train.slurm"
VERSIONS = {"0.19": "DeepSpeed, commit edaa72212 of 2026-08-22; loaded by DeepSpeed 0.19.8"}
FRAMEWORK = "deepspeed"
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
    "schedule": "1f1b; no others",
    "dp_replicate": "implied; -: beside ZeRO",
    "dp_shard": "implied by the number of processes",
    "zero_stage": "zero_optimization.stage",
    "micro_batch": "train_micro_batch_size_per_gpu",
    "num_micro_batches": "gradient_accumulation_steps",
    "recompute": "by hand: the model's own checkpointing (full); -: selective",
    "recompute_blocks": "by hand",
    "offload_optimizer": "zero_optimization.offload_optimizer; -: without ZeRO",
    "offload_activations": "activation_checkpointing.cpu_checkpointing (full recomputation); -: otherwise",
    "order": "tp-cp-dp-pp; no others",
    "domain_gpus": SEGMENT,
    "stage_blocks": "by hand: PipelineModule(partition_method=)",
    "stage_recompute": "-: activation_checkpoint_interval is the same on every stage",
    "block_splits": SPLITS,
    "precision": "bf16.enabled, fp16.enabled; -: narrow formats",
    "optimizer": "by hand: the optimizer of your script, since DeepSpeed wants its learning rate beside it",
    "seq": "by hand: your data",
    "doc_lengths": DOCUMENTS,
    "lora_rank": "by hand: adapters of your model",
    "placement": "processes per node of the launcher",
}


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
    if job.precision == "tf32":
        account.left_to_user("precision", "torch.set_float32_matmul_precision('high') in your script")
    _account_pipeline(job, account)
    _account_recompute(job, account)
    account.left_to_user(
        "optimizer", f"build {job.optimizer} in your script, or add a section 'optimizer' with its learning rate"
    )
    account_script(job, account)
    if plan.pp == 1:  # it knows no PipelineModule
        account_trainer(job, account)
    name = PRECISIONS[job.precision].plain.name
    is_host = plan.offload_optimizer and plan.zero_stage
    activations = {
        "partition_activations": plan.offload_activations and plan.tp > 1,
        "cpu_checkpointing": plan.offload_activations,
    }
    return {
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.num_micro_batches,
        **({name: {"enabled": True}} if name in ("bf16", "fp16") else {}),
        **({"tensor_parallel": {"autotp_size": plan.tp}} if plan.tp > 1 and plan.pp == 1 else {}),
        **({"sequence_parallel_size": plan.cp, "data_parallel_size": plan.dp} if plan.cp > 1 else {}),
        **({"expert_parallel": {"enabled": True, "autoep_size": plan.ep}} if plan.ep > 1 else {}),
        "zero_optimization": {
            "stage": plan.zero_stage,
            **({"overlap_comm": True, "contiguous_gradients": True} if plan.zero_stage else {}),
            **({"offload_optimizer": {"device": "cpu", "pin_memory": True}} if is_host else {}),
        },
        **({"activation_checkpointing": activations} if plan.recompute == "full" else {}),
    }


def _account_pipeline(job: Job, account: Account) -> None:
    plan = job.plan
    if plan.pp == 1:
        return
    if plan.tp > 1:
        account.left_to_user(
            "tp",
            f"split the layers {plan.tp} ways in your PipelineModule (PipeModelDataParallelTopology, num_mp={plan.tp})",
        )
        if plan.sequence_parallel:
            account.left_to_user("sequence_parallel", "cut the positions between the split matrices in your layers")
    account.left_to_user("pp", f"PipelineModule(layers=..., num_stages={plan.pp})")
    blocks = ", ".join(map(str, job.blocks))
    how = (
        "partition_method='type:YOUR_BLOCK'"
        if is_even_layout(job.blocks)
        else "stage bounds of your own in _partition_layers"
    )
    account.left_to_user("stage_blocks", f"blocks per stage: {blocks} ({how})")


def _account_recompute(job: Job, account: Account) -> None:
    if job.plan.recompute != "full":
        return
    counts = job.chunk_recompute
    where = (
        "every block" if counts == job.blocks else f"{', '.join(map(str, counts))} blocks per stage, the first of each"
    )
    account.left_to_user("recompute", f"call deepspeed.checkpointing.checkpoint around {where}")
    account.left_to_user("recompute_blocks", where)
    if job.plan.stage_recompute:
        account.left_to_user("stage_recompute", where)


# -- runs of it --------------------------------------------------------------------------------------------------------------


# Key -> option of ``planner estimate``.
_COUNTS = {"train_micro_batch_size_per_gpu": "micro_batch", "train_batch_size": "batch"}
_READ = {*_COUNTS, "gradient_accumulation_steps", "zero_optimization", "bf16", "bfloat16", "fp16", "optimizer", "tensor_parallel",
         "sequence_parallel_size", "data_parallel_size", "expert_parallel", "activation_checkpointing", "pipeline"}  # fmt: skip
# Neither the work of a step nor what is stored: rates, logs, checkpoints. Keys as of DeepSpeed 0.19 (runtime/constants.py and the modules
# that read their own section).
_WITHOUT_EFFECT = {
    "amp", "checkpoint", "comet", "comms_logger", "communication_data_type", "csv_monitor", "data_types", "dataloader_drop_last",
    "disable_allgather", "dump_state", "flops_profiler", "gradient_clipping", "gradient_predivide_factor", "load_universal_checkpoint",
    "memory_breakdown", "monitor_config", "nebula", "prescale_gradients", "scheduler", "seed", "steps_per_print", "tensorboard", "timers",
    "wall_clock_breakdown", "wandb", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
}  # fmt: skip
_NOT_MODELLED = {
    "aio", "autotuning", "compile", "compression_training", "curriculum_learning", "data_efficiency", "eigenvalue", "elasticity",
    "graph_harvesting", "hybrid_engine", "progressive_layer_drop", "quantize_training", "seq_parallel_communication_data_type",
    "sparse_attention", "sparse_gradients", "torch_autocast", "use_data_before_expert_parallelism", "weight_quantization",
}  # fmt: skip
_ZERO_READ = {"stage", "offload_optimizer", "offload_param"}
# Sizes of buffers and how they are sent: the cost model has its own.
_ZERO_WITHOUT_EFFECT = {
    "allgather_bucket_size", "allgather_partitions", "contiguous_gradients", "elastic_checkpoint", "gather_16bit_weights_on_model_save",
    "ignore_unused_parameters", "legacy_stage1", "load_from_fp32_weights", "log_trace_cache_warnings", "memory_efficient_linear",
    "overlap_comm", "pipeline_loading_checkpoint", "reduce_bucket_size", "reduce_scatter", "round_robin_gradients",
    "stage3_max_live_parameters", "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
    "stage3_max_reuse_distance",
    "stage3_model_persistence_threshold", "stage3_param_persistence_threshold", "stage3_prefetch_bucket_size", "sub_group_size",
    "cpu_offload_use_pin_memory", "enable_sanity_checks", "override_module_apply",
}  # fmt: skip
_ZERO_NOT_MODELLED = {
    "cpu_offload", "cpu_offload_param", "leaf_module", "zenflow", "zero_hpz_partition_size", "zero_quantized_gradients",
    "zero_quantized_nontrainable_weights", "zero_quantized_weights", "mics_shard_size", "stage3_use_all_reduce_for_fetch_params",
    "use_all_reduce_for_fetch_params", "use_multi_rank_bucket_allreduce", "param_persistence_threshold",
    "stage3_module_granularity_threshold",
}  # fmt: skip


def read(path: Path, text: str, part: str = "") -> Run:  # noqa: ARG001 - only Python has parts
    """Read a run from the text of a configuration."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise failure(path, f"is not JSON: {error.msg}", error.lineno, error.colno) from None
    except (ValueError, RecursionError) as error:  # a number of too many digits, or nested too deeply
        raise problem(path, f"is not JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise problem(path, "is no DeepSpeed configuration: a mapping is expected")
    if not content.keys() & (_READ | _NOT_MODELLED | _WITHOUT_EFFECT):
        raise problem(path, "is no DeepSpeed configuration: it has none of its keys (such as zero_optimization)")
    return run_of(path, content)


def run_of(path: Path, content: Mapping[str, Any]) -> Run:
    """Read a run from the parsed configuration; what DeepSpeed does not start with is refused."""
    run = Run()
    run.notes += unread_keys(content, _READ, _WITHOUT_EFFECT, _NOT_MODELLED, "DeepSpeed")
    zero = section_of(path, content, "zero_optimization")
    run.notes += unread_keys(
        zero, _ZERO_READ, _ZERO_WITHOUT_EFFECT, _ZERO_NOT_MODELLED, "DeepSpeed", "zero_optimization."
    )
    for key, option in _COUNTS.items():
        count = _count(path, content, key, run)
        if count is not None:
            (run.options if option == "batch" else run.mesh)[option] = str(count)
    accumulated = _count(path, content, "gradient_accumulation_steps", run)
    if accumulated is not None and "batch" not in run.options:
        run.options["num_micro_batches"] = str(accumulated)
    stage = zero.get("stage", 0)
    if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage <= 3:
        raise problem(path, f"is {stage!r}; 0, 1, 2 or 3 is expected", "zero_optimization.stage")
    run.mesh["zero"] = str(stage)
    offload = section_of(path, zero, "offload_optimizer").get("device", "none")
    if offload == "cpu":
        run.mesh["offload"] = "optimizer"
    elif offload != "none":
        run.notes.append(
            f"zero_optimization.offload_optimizer.device {offload}: is costed as if nothing were offloaded"
        )
    if section_of(path, zero, "offload_param").get("device", "none") != "none":
        run.notes.append("zero_optimization.offload_param: is not modelled; weights are costed on the device")
    _parallel_of_run(path, content, run)
    names = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16"}  # bfloat16: the name before 0.5
    precisions = [names[key] for key in names if section_of(path, content, key).get("enabled") is True]
    if len(set(precisions)) > 1:
        raise problem(path, "are both enabled, which DeepSpeed does not start with", "bf16 and fp16")
    run.options["precision"] = precisions[0] if precisions else "fp32"
    kind = str(section_of(path, content, "optimizer").get("type", "")).lower()
    if kind:
        known = optimizer_called(kind)
        if known:
            run.options["optimizer"] = known
        else:
            run.notes.append(
                f"optimizer.type {kind[:40]}: is not known to the cost model; the network's usual one is taken"
            )
    return run


def _count(path: Path, content: Mapping[str, Any], key: str, run: Run) -> int | None:
    if content.get(key) == "auto":
        run.notes.append(f"{key}: is auto; give it on the command line, or the planner chooses")
        return None
    return count_of(path, content, key)


def _parallel_of_run(path: Path, content: Mapping[str, Any], run: Run) -> None:
    tp = _count(path, section_of(path, content, "tensor_parallel"), "autotp_size", run)
    cp = _count(path, content, "sequence_parallel_size", run)
    experts = section_of(path, content, "expert_parallel")
    ep = _count(path, experts, "autoep_size", run) if experts.get("enabled") else None
    degrees = {
        name: str(count) for name, count in (("tp", tp), ("cp", cp), ("ep", ep)) if count is not None and count > 1
    }
    # AutoTP repeats the tensors between the split matrices; what a PipelineModule does, the command line says.
    run.mesh |= {"sequence_parallel": False, **degrees, **({"cp_kind": "all_to_all"} if "cp" in degrees else {})}
    if content.get("activation_checkpointing"):
        run.mesh["recompute"] = "full"
        if section_of(path, content, "activation_checkpointing").get("cpu_checkpointing") is True:
            run.mesh["offload"] = ",".join([*([run.mesh["offload"]] if "offload" in run.mesh else []), "activations"])
        run.notes.append(
            "activation_checkpointing: taken for full recomputation of every block; --recompute says otherwise"
        )
    if section_of(path, content, "pipeline").get("stages") not in (None, "auto"):
        run.mesh["pp"] = str(_count(path, section_of(path, content, "pipeline"), "stages", run))
    _check(path, run)


def _check(path: Path, run: Run) -> None:
    """Raises on what DeepSpeed does not start with, as an export does."""
    tp, cp, pp, ep = (int(run.mesh.get(name) or 1) for name in ("tp", "cp", "pp", "ep"))
    plan = MeshPlan(
        tp=tp,
        cp=cp,
        cp_kind=run.mesh.get("cp_kind", "ring"),
        pp=pp,
        ep=ep,
        dp_shard=ep,
        zero_stage=int(run.mesh["zero"]),
        offload_optimizer="optimizer" in run.mesh.get("offload", ""),
    )
    refused = refused_by(FRAMEWORK, plan)
    if refused:
        raise InputFileError([FileProblem(path=path, message=f"DeepSpeed cannot run this: {text}") for text in refused])
