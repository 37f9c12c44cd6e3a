"""Accelerate: the YAML (or JSON) file of `accelerate launch`, with FSDP of either version, DDP or an inline DeepSpeed section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.exporters.runs import Run, count_of, problem, section_of, unread_keys
from planner.files.documents import parse_document

TITLE = "Accelerate"
_MESH = {"dp_replicate": "dp_replicate", "dp_shard": "dp_shard", "tp": "tp", "cp": "cp"}
_CP = {"allgather": "all_gather", "alltoall": "ring"}
_PRECISIONS = {"no": "fp32", "fp16": "fp16", "bf16": "bf16", "fp8": "fp8"}
# FSDP1 names a strategy where FSDP2 has a flag.
_FSDP1 = {"FULL_SHARD": 3, "SHARD_GRAD_OP": 2, "NO_SHARD": 0, "HYBRID_SHARD": 3, "HYBRID_SHARD_ZERO2": 2}
_SHARDS = {"1": "FULL_SHARD", "2": "SHARD_GRAD_OP", "3": "NO_SHARD", "4": "HYBRID_SHARD", "5": "HYBRID_SHARD_ZERO2"}
_READ = {"distributed_type", "num_processes", "num_machines", "mixed_precision", "fsdp_config", "parallelism_config",
         "deepspeed_config"}  # fmt: skip
# Where and how processes start (accelerate 1.15: commands/config/config_args.py).
_WITHOUT_EFFECT = {
    "command_file", "commands", "compute_environment", "debug", "enable_cpu_affinity", "gpu_ids", "machine_rank", "main_process_ip",
    "main_process_port", "main_training_function", "mpirun_config", "rdzv_backend", "same_network", "use_cpu", "tpu_env", "tpu_name",
    "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_zone", "num_cpu_threads_per_process", "downcast_bf16",
}  # fmt: skip
_NOT_MODELLED = {"dynamo_config", "fp8_config", "megatron_lm_config", "ipex_config"}
_FSDP_READ = {"fsdp_version", "fsdp_reshard_after_forward", "fsdp_sharding_strategy", "fsdp_activation_checkpointing",
              "fsdp_offload_params"}  # fmt: skip
_FSDP_WITHOUT_EFFECT = {
    "fsdp_auto_wrap_policy", "fsdp_backward_prefetch", "fsdp_backward_prefetch_policy", "fsdp_cpu_ram_efficient_loading",
    "fsdp_forward_prefetch", "fsdp_min_num_params", "fsdp_state_dict_type", "fsdp_sync_module_states",
    "fsdp_transformer_layer_cls_to_wrap", "fsdp_use_orig_params",
}  # fmt: skip
_FSDP_NOT_MODELLED = {"fsdp_activation_checkpointing_offload", "fsdp_ignored_modules"}
_PREFIX = "parallelism_config_"
_MESH_READ = {*(f"{_PREFIX}{key}_size" for key in _MESH), f"{_PREFIX}cp_comm_strategy"}
_MESH_WITHOUT_EFFECT = {f"{_PREFIX}{key}" for key in ("cp_backend", "sp_backend", "sp_seq_length", "sp_seq_length_is_variable",
                                                      "sp_attn_implementation")}  # fmt: skip
_DEEPSPEED_READ = {"deepspeed_config_file", "zero_stage", "offload_optimizer_device"}
_DEEPSPEED_WITHOUT_EFFECT = {
    "deepspeed_exclusion_filter", "deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_moe_layer_cls_names",
    "deepspeed_multinode_launcher", "gradient_clipping", "offload_optimizer_nvme_path", "offload_param_nvme_path", "zero3_init_flag",
    "zero3_save_16bit_model",
}  # fmt: skip
_DEEPSPEED_NOT_MODELLED = {"gradient_accumulation_steps", "offload_param_device"}
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def read(path: Path, text: str) -> Run:  # noqa: ARG001 - parsed from the file, with limits on aliases and depth
    """Read a run from a configuration file."""
    content = parse_document(path).value
    if not isinstance(content, dict) or "distributed_type" not in content:
        raise problem(path, "is no configuration of Accelerate: it has no distributed_type")
    run = Run()
    run.notes += unread_keys(content, _READ, _WITHOUT_EFFECT, _NOT_MODELLED, "Accelerate")
    processes = count_of(path, content, "num_processes")
    if processes is not None:
        run.options["gpus"] = str(processes)
    precision = content.get("mixed_precision", "no")
    precision = "no" if precision is False else str(precision)  # YAML 1.1 reads a bare no as false
    if precision not in _PRECISIONS:
        raise problem(path, f"is {precision!r}; known: {', '.join(_PRECISIONS)}", "mixed_precision")
    run.options["precision"] = _PRECISIONS[precision]
    kind = str(content["distributed_type"])
    if kind == "FSDP":
        _fsdp(path, content, run)
    elif kind == "DEEPSPEED":
        _deepspeed(path, content, run)
    elif kind in ("MULTI_GPU", "NO", "False"):
        run.mesh["zero"] = "0"
    else:
        raise problem(path, f"is {kind}; known: FSDP, DEEPSPEED, MULTI_GPU, NO", "distributed_type")
    return run


def _fsdp(path: Path, content: Mapping[str, Any], run: Run) -> None:
    fsdp = section_of(path, content, "fsdp_config")
    mesh = section_of(path, content, "parallelism_config")
    run.notes += unread_keys(fsdp, _FSDP_READ, _FSDP_WITHOUT_EFFECT, _FSDP_NOT_MODELLED, "Accelerate", "fsdp_config.")
    run.notes += unread_keys(
        mesh, _MESH_READ, _MESH_WITHOUT_EFFECT, {f"{_PREFIX}sp_size"}, "Accelerate", "parallelism_config."
    )
    for key, option in _MESH.items():
        count = count_of(path, mesh, f"{_PREFIX}{key}_size")
        if count is not None and (count > 1 or option.startswith("dp_")):
            run.mesh[option] = str(count)
    if "cp" in run.mesh:
        run.mesh["cp_kind"] = _CP.get(str(mesh.get(f"{_PREFIX}cp_comm_strategy", "allgather")), "all_gather")
    run.mesh["zero"] = str(_fsdp_stage(path, content, fsdp, run))
    if fsdp.get("fsdp_activation_checkpointing") is True:
        run.mesh["recompute"] = "full"
    if fsdp.get("fsdp_offload_params") is True:
        run.mesh["offload"] = "optimizer"
        run.notes.append("fsdp_offload_params: weights move to the host, too; only the optimizer is costed there")


def _fsdp_stage(path: Path, content: Mapping[str, Any], fsdp: Mapping[str, Any], run: Run) -> int:
    """ZeRO stage of either version: FSDP2 has a flag, FSDP1 a strategy, for which the flag's key is a newer name."""
    word = fsdp.get("fsdp_reshard_after_forward")
    flag = _FLAGS.get(str(word).lower())
    if str(fsdp.get("fsdp_version", 1)) == "2":
        if word is not None and flag is None:
            raise problem(path, f"is {word}; true or false is expected", "fsdp_config.fsdp_reshard_after_forward")
        return 2 if flag is False else 3
    strategy = fsdp.get("fsdp_sharding_strategy")
    if strategy is None and isinstance(word, bool):
        run.notes.append(
            "fsdp_config.fsdp_reshard_after_forward: is a flag with fsdp_version 2 only, and is read as there"
        )
        return 3 if word else 2
    name = str(strategy if strategy is not None else word if word is not None else "FULL_SHARD")
    name = _SHARDS.get(name, name)
    if name not in _FSDP1:
        raise problem(path, f"is {name}; known: {', '.join(_FSDP1)}", "fsdp_config.fsdp_sharding_strategy")
    if name.startswith("HYBRID") and "dp_replicate" not in run.mesh:
        machines = count_of(path, content, "num_machines") or 1
        run.mesh["dp_replicate"] = str(machines)  # torch shares within a node and replicates across nodes
        run.notes.append(f"fsdp_sharding_strategy {name}: shares within each of {machines} machines (num_machines)")
    return _FSDP1[name]


def _deepspeed(path: Path, content: Mapping[str, Any], run: Run) -> None:
    section = section_of(path, content, "deepspeed_config")
    run.notes += unread_keys(
        section, _DEEPSPEED_READ, _DEEPSPEED_WITHOUT_EFFECT, _DEEPSPEED_NOT_MODELLED, "Accelerate", "deepspeed_config."
    )
    if "deepspeed_config_file" in section:
        raise problem(path, "names a file of DeepSpeed's; read that one: --from deepspeed FILE", "deepspeed_config")
    stage = section.get("zero_stage", 2)
    if isinstance(stage, bool) or not isinstance(stage, int) or not 0 <= stage <= 3:
        raise problem(path, f"is {stage!r}; 0, 1, 2 or 3 is expected", "deepspeed_config.zero_stage")
    run.mesh["zero"] = str(stage)
    if section.get("offload_optimizer_device") == "cpu":
        run.mesh["offload"] = "optimizer"
