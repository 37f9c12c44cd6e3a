"""DeepSpeed: its JSON configuration. Values that say "auto" come from the program and must be given on the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.mesh.plan import MeshPlan
from planner.core.errors import FileProblem, InputFileError
from planner.exporters.runs import Run, count_of, problem, section_of, unread_keys

TITLE = "DeepSpeed"
# Configurations nest a few levels; deeper ones would only exhaust the parser.
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


def read(path: Path, text: str) -> Run:
    """Read a run from the text of a configuration."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise problem(path, f"is no JSON: {str(error)[:200]}") from None
    if not isinstance(content, dict):
        raise problem(path, "is no DeepSpeed configuration: a mapping is expected")
    return run_of(path, content)


def run_of(path: Path, content: Mapping[str, Any]) -> Run:
    """Read a run from the parsed configuration; what DeepSpeed does not start with is refused."""
    run = Run()
    run.notes += unread_keys(content, _READ, _WITHOUT_EFFECT, _NOT_MODELLED, "DeepSpeed")
    inner = section_of(path, content, "zero_optimization")
    run.notes += unread_keys(
        inner, _ZERO_READ, _ZERO_WITHOUT_EFFECT, _ZERO_NOT_MODELLED, "DeepSpeed", "zero_optimization."
    )
    for key, option in _COUNTS.items():
        count = _count(path, content, key, run)
        if count is not None:
            (run.options if option == "batch" else run.mesh)[option] = str(count)
    accumulated = _count(path, content, "gradient_accumulation_steps", run)
    if accumulated is not None and "batch" not in run.options:
        run.options["num_micro_batches"] = str(accumulated)
    zero = section_of(path, content, "zero_optimization")
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
    _parallel(path, content, run)
    names = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16"}  # bfloat16: the name before 0.5
    precisions = [names[key] for key in names if section_of(path, content, key).get("enabled") is True]
    if len(set(precisions)) > 1:
        raise problem(path, "are both enabled, which DeepSpeed does not start with", "bf16 and fp16")
    run.options["precision"] = precisions[0] if precisions else "fp32"
    kind = str(section_of(path, content, "optimizer").get("type", "")).lower()
    if kind:
        known = "adam" if "adam" in kind else ("sgd" if kind == "sgd" else None)
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


def _parallel(path: Path, content: Mapping[str, Any], run: Run) -> None:
    tp = _count(path, section_of(path, content, "tensor_parallel"), "autotp_size", run)
    if tp is not None and tp > 1:
        # AutoTP repeats the tensors between the split matrices.
        run.mesh |= {"tp": str(tp), "sequence_parallel": False}
    cp = _count(path, content, "sequence_parallel_size", run)
    if cp is not None and cp > 1:
        run.mesh |= {"cp": str(cp), "cp_kind": "all_to_all"}
    experts = section_of(path, content, "expert_parallel")
    ep = _count(path, experts, "autoep_size", run) if experts.get("enabled") else None
    if ep is not None and ep > 1:
        run.mesh["ep"] = str(ep)
    if content.get("activation_checkpointing"):
        run.mesh["recompute"] = "full"
        run.notes.append(
            "activation_checkpointing: taken for full recomputation of every block; --recompute says otherwise"
        )
    if section_of(path, content, "pipeline").get("stages") not in (None, "auto"):
        run.mesh["pp"] = str(_count(path, section_of(path, content, "pipeline"), "stages", run))
    _check(path, run)


def _check(path: Path, run: Run) -> None:
    """Raises on what DeepSpeed does not start with, as an export does."""
    from planner.exporters.deepspeed import plan_refusals

    def degree(name: str) -> int:
        return int(run.mesh.get(name) or 1)

    plan = MeshPlan(
        tp=degree("tp"),
        cp=degree("cp"),
        cp_kind=run.mesh.get("cp_kind", "ring"),
        pp=degree("pp"),
        ep=degree("ep"),
        dp_shard=degree("ep"),
        zero_stage=int(run.mesh["zero"]),
        offload_optimizer="offload" in run.mesh,
    )
    refused = plan_refusals(plan)
    if refused:
        raise InputFileError([FileProblem(path=path, message=f"DeepSpeed cannot run this: {text}") for text in refused])
