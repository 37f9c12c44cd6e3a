"""Accelerate: the YAML file of `accelerate launch`, with FSDP2 and its device mesh.

Nested keys keep their long prefix. Without ZeRO the ranks replicate (MULTI_GPU); ``fsdp_reshard_after_forward`` is a flag in FSDP2: true
is ZeRO-3, false ZeRO-2. The mesh is dp_replicate, dp_shard, cp, tp from outside in (accelerate/parallelism_config.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.precision import PRECISIONS
from planner.exporters.account import Account
from planner.exporters.common import DOCUMENTS, SEGMENT, SPLITS, account_basics, account_script, account_trainer, header
from planner.exporters.job import Job
from planner.exporters.runs import Run, count_of, problem, section_of, unread_keys
from planner.exporters.shell import node_ranks, start_scripts
from planner.files.documents import parse_document
from planner.files.yaml_text import yaml_text

TITLE = "Accelerate"
SUMMARY = "accelerate.yaml, train.sh, train.slurm"
VERSIONS = {"1.15": "Accelerate, commit 16cb6eb8 of 2026-07-24; loaded by Accelerate 1.15.0"}
FRAMEWORK = "accelerate"
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
    "order": "tp-cp-dp; no others",
    "domain_gpus": SEGMENT,
    "stage_blocks": "no pipelines",
    "stage_recompute": "all blocks; -: fewer",
    "block_splits": SPLITS,
    "precision": "mixed_precision",
    "optimizer": "by hand: your script",
    "seq": "by hand: your data",
    "doc_lengths": DOCUMENTS,
    "lora_rank": "by hand: adapters of your model",
    "placement": "num_machines, num_processes",
}
# FSDP2's two ways to bring keys and values to every rank: gathered at once, or handed around.
_CP_COMM = {"all_gather": "allgather", "ring": "alltoall"}
# Settings of a plan whose keys have this in front and _size behind.
_MESH = ("dp_replicate", "dp_shard", "tp", "cp")
_PREFIX = "parallelism_config_"


def render(job: Job, account: Account, version: str) -> dict[str, str]:
    """Write the YAML file and the scripts."""
    config = _config(job, account)
    head = header(job.origin, account, VERSIONS[version])
    plan, is_several = job.plan, job.nodes.count > 1
    address = [
        '  --machine_rank "$node_rank"',
        '  --main_process_ip "$master_addr"',
        '  --main_process_port "${MASTER_PORT:-29500}"',
    ]
    launcher = [
        *(node_ranks(job.nodes) if is_several else []),
        "LAUNCHER=(",
        "  accelerate launch",
        f'  --config_file "$here/{CONFIG}"',
        *(address if is_several else []),
        ")",
    ]
    settings = ['script="${SCRIPT:?set SCRIPT to your training script}"']
    # Read by Accelerator() where the script does not say itself.
    environment = {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(plan.num_micro_batches)}
    if plan.tp > 1 and plan.tp == plan.workers and not plan.zero_stage:
        # `accelerate launch` takes parallelism_config with FSDP2 only; Accelerator() reads the mesh from the environment all the same.
        environment |= {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_TP_SIZE": str(plan.tp)}
    scripts = start_scripts(
        job, head, environment=environment, settings=settings, launcher=launcher, command=['"$script"']
    )
    return {CONFIG: yaml_text(config, "\n".join(head)), **scripts}


def _config(job: Job, account: Account) -> dict[str, Any]:
    plan, nodes = job.plan, job.nodes
    account_basics(job, account)
    account.left_to_user("micro_batch", f"batch size {plan.micro_batch} per process in the data loader of your script")
    account.left_to_user("optimizer", f"{job.optimizer}, built in your script")
    account_script(job, account)
    account_trainer(job, account)
    is_sharded, precision = plan.zero_stage > 0, _precision(job, account)
    if plan.recompute == "full" and not is_sharded:
        account.left_to_user("recompute", "model.gradient_checkpointing_enable() in your script")
        account.left_to_user("recompute_blocks", "the same")
    return {
        "compute_environment": "LOCAL_MACHINE",
        "debug": False,
        "distributed_type": "FSDP" if is_sharded else ("MULTI_GPU" if plan.workers > 1 else "NO"),
        "mixed_precision": precision,
        "use_cpu": False,
        "num_machines": nodes.count,
        "num_processes": plan.workers,
        "machine_rank": 0,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        **(_sharded(job) if is_sharded else {}),
    }


def _precision(job: Job, account: Account) -> str:
    if job.precision == "tf32":
        account.left_to_user("precision", "torch.set_float32_matmul_precision('high') in your script")
    precision = PRECISIONS[job.precision]
    if "precision" in account.cannot:
        return "bf16"
    if precision.casts and job.precision != "fp8-delayed":
        account.left_to_user("precision", f"the recipe {job.precision}, in fp8_config of Accelerate")
    if precision.stored is not None:
        account.left_to_user("precision", f"weights in {job.precision}, by quantization_config of your model")
    return "fp8" if precision.casts else {"fp32": "no", "tf32": "no"}.get(precision.plain.name, precision.plain.name)


def _sharded(job: Job) -> dict[str, Any]:
    """The mesh and FSDP: the one needs the other."""
    plan = job.plan
    is_wrapped = job.network is not None or job.blocks
    return {
        "parallelism_config": {
            **{f"{_PREFIX}{name}_size": getattr(plan, name) for name in _MESH},
            **({f"{_PREFIX}cp_comm_strategy": _CP_COMM[plan.cp_kind]} if plan.cp > 1 else {}),
        },
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": plan.zero_stage == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP" if is_wrapped else "SIZE_BASED_WRAP",
            "fsdp_activation_checkpointing": plan.recompute == "full",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
            "fsdp_offload_params": plan.offload_optimizer,
            "fsdp_cpu_ram_efficient_loading": False,
        },
    }


# -- runs of it --------------------------------------------------------------------------------------------------------------


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


def read(path: Path, text: str, part: str = "") -> Run:  # noqa: ARG001 - parsed from the file, with limits on aliases and depth
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
        _fsdp_of_run(path, content, run)
    elif kind == "DEEPSPEED":
        _deepspeed(path, content, run)
    elif kind in ("MULTI_GPU", "NO", "False"):
        run.mesh["zero"] = "0"
    else:
        raise problem(path, f"is {kind}; known: FSDP, DEEPSPEED, MULTI_GPU, NO", "distributed_type")
    return run


def _fsdp_of_run(path: Path, content: Mapping[str, Any], run: Run) -> None:
    fsdp = section_of(path, content, "fsdp_config")
    mesh = section_of(path, content, "parallelism_config")
    run.notes += unread_keys(fsdp, _FSDP_READ, _FSDP_WITHOUT_EFFECT, _FSDP_NOT_MODELLED, "Accelerate", "fsdp_config.")
    run.notes += unread_keys(
        mesh, _MESH_READ, _MESH_WITHOUT_EFFECT, {f"{_PREFIX}sp_size"}, "Accelerate", "parallelism_config."
    )
    counts = {option: count_of(path, mesh, f"{_PREFIX}{option}_size") or 0 for option in _MESH}
    run.mesh |= {name: str(n) for name, n in counts.items() if n > 1 or (n and name.startswith("dp_"))}
    if "cp" in run.mesh:
        kinds = {written: kind for kind, written in _CP_COMM.items()}
        run.mesh["cp_kind"] = kinds.get(str(mesh.get(f"{_PREFIX}cp_comm_strategy", "allgather")), "all_gather")
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
