"""Megatron-Bridge: overrides of a recipe's ConfigContainer, as run_recipe.py takes them on its command line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel.precision import OPTIMIZERS
from costmodel.schedules import group_size
from planner.core.errors import InputFileError
from planner.exporters.account import Account
from planner.exporters.common import DOCUMENTS, SEGMENT, SPLITS, account_basics, given, header, is_even_layout
from planner.exporters.job import Job
from planner.exporters.megatron import (
    ARGUMENTS,
    CP_COMM,
    ORDERS,
    STRATEGIES,
    environment_of,
    is_without_effect,
    layout_text,
    meant,
    order_of,
    recompute_of,
    run_of,
)
from planner.exporters.runs import Run, problem
from planner.exporters.settings import Code, Setting, Settings, settings_of
from planner.exporters.shell import shell_array, start_scripts
from planner.files.naming.precisions import precision_called

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
    "schedule": "1f1b, and interleaved by vpp; model.overlap_moe_expert_parallel_comm (combined_1f1b); no others",
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
    # What the cost model prices; in racks HybridEP, as in scripts/performance.
    backend = "hybridep" if job.nodes.domain_gpus > job.nodes.capacity else "deepep"
    exchanges = {
        "model.moe_token_dispatcher_type=flex": plan.ep > 1,
        f"model.moe_flex_dispatcher_backend={backend}": plan.ep > 1,
        f"model.cp_comm_type={CP_COMM[plan.cp_kind]}": plan.cp > 1,
    }
    return [
        f"model.tensor_model_parallel_size={plan.tp}",
        f"model.pipeline_model_parallel_size={plan.pp}",
        f"model.context_parallel_size={plan.cp}",
        f"model.expert_model_parallel_size={plan.ep}",
        f"model.expert_tensor_parallel_size={plan.etp}",
        f"model.sequence_parallel={str(plan.sequence_parallel).lower()}",  # recipes switch it on
        f"train.micro_batch_size={plan.micro_batch}",
        f"train.global_batch_size={plan.global_batch}",
        *given(exchanges),
        f"dist.use_tp_pp_dp_mapping={str(ORDERS[order_of(job)]).lower()}",
        *_pipeline(job, account),
        *_zero(job),
        *_memory(job),
        *_run_overrides(job, account),
    ]


def _pipeline(job: Job, account: Account) -> list[str]:
    plan = job.plan
    if plan.pp == 1:
        return ["model.virtual_pipeline_model_parallel_size=null", "model.pipeline_model_parallel_layout=null"]
    # The layout's | and * are no syntax of an override inside quotes.
    layout = "null" if is_even_layout(job.blocks) else f'"{layout_text(job.blocks)}"'
    group = group_size(plan.num_micro_batches, plan.pp)  # recipes have filled it in for their own pp
    return [
        f"model.virtual_pipeline_model_parallel_size={plan.vpp if plan.vpp > 1 else 'null'}",  # recipes have their own
        f"model.pipeline_model_parallel_layout={layout}",
        # Of the model: most recipes have no comm_overlap to override, and one that is there chooses the same (comm_overlap.py).
        f"model.overlap_p2p_comm={str(plan.vpp > 1).lower()}",
        f"model.batch_p2p_comm={str(plan.vpp == 1).lower()}",
        *given({f"model.microbatch_group_size_per_vp_stage={group}": plan.vpp > 1}),
        *(_passes_together(account) if plan.schedule == "combined_1f1b" else []),
    ]


def _passes_together(account: Account) -> list[str]:
    """Of the model, as above; but a comm_overlap that is there switches it off again unless it says so itself."""
    account.left_to_user(
        "schedule",
        "where your recipe sets comm_overlap, add comm_overlap.overlap_moe_expert_parallel_comm=true: it replaces the model's",
    )
    return ["model.overlap_moe_expert_parallel_comm=true", "model.moe_shared_expert_overlap=false"]


def _zero(job: Job) -> list[str]:
    plan = job.plan
    flag = str(plan.zero_stage > 0 or plan.offload_optimizer).lower()
    optional = {
        "dist.use_megatron_fsdp=true": plan.zero_stage >= 2,
        "ddp.use_megatron_fsdp=true": plan.zero_stage >= 2,
        f"ddp.data_parallel_sharding_strategy={STRATEGIES[plan.zero_stage]}": plan.zero_stage >= 2,
        "ddp.average_in_collective=false": plan.zero_stage >= 2,
        "checkpoint.ckpt_format=fsdp_dtensor": plan.zero_stage >= 2,
        f"ddp.num_distributed_optimizer_instances={plan.dp_replicate}": plan.zero_stage > 0 and plan.dp_replicate > 1,
    }
    return [
        f"ddp.use_distributed_optimizer={flag}",
        f"optimizer.use_distributed_optimizer={flag}",  # both, or the recipe's other value stays
        "ddp.overlap_grad_reduce=true",
        f"ddp.overlap_param_gather={flag}",
        *given(optional),
    ]


def _memory(job: Job) -> list[str]:
    recompute, is_offloaded = recompute_of(job), job.plan.offload_optimizer
    optional = {
        f"model.recompute_modules=[{','.join(recompute.modules)}]": recompute.granularity == "selective",
        "optimizer.optimizer_cpu_offload=true": is_offloaded,
        "optimizer.optimizer_offload_fraction=1.0": is_offloaded,
        "optimizer.use_precision_aware_optimizer=true": is_offloaded,
    }
    return [
        f"model.recompute_granularity={recompute.granularity or 'null'}",
        f"model.recompute_method={recompute.method or 'null'}",
        f"model.recompute_num_layers={recompute.num_layers or 'null'}",
        *given(optional),
    ]


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
    if job.precision == "tf32":
        account.left_to_user(
            "precision", "torch.set_float32_matmul_precision('high') before training; there is no override for it"
        )
    is_adam = OPTIMIZERS[job.optimizer].rule == "adam"
    if is_adam and job.optimizer != "adam":
        account.left_to_user(
            "optimizer", f"moments of {job.optimizer}: exp_avg_dtype and exp_avg_sq_dtype of your recipe's optimizer"
        )
    if job.lora_rank is not None:
        account.left_to_user("lora_rank", f"choose a recipe of PEFT and give it peft.dim={job.lora_rank}")
    optional = {
        f"optimizer.sgd_momentum={0.9 if job.optimizer == 'momentum' else 0.0}": not is_adam,
        f"model.seq_length={job.seq}": job.seq is not None,
        f"dataset.seq_length={job.seq}": job.seq is not None,
    }
    return [
        f"mixed_precision={_MIXED.get(job.precision, _MIXED['bf16'])}",
        f"optimizer.optimizer={'adam' if is_adam else 'sgd'}",
        *given(optional),
    ]


# -- runs of it, and of NeMo, whose settings have the same names in other sections -----------------------------------------------


# Last part of a name -> Megatron's argument, where it is not the same with hyphens. NeMo 1 has its own names of recomputation.
_ARGUMENTS = {
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
    "encoder_seq_length": "seq-length",
    "activations_checkpoint_granularity": "recompute-granularity",
    "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers",
    "num_moe_experts": "num-experts",
    "fp8": "fp8-format",
    "num_nodes": "nnodes",
    "devices": "nproc-per-node",
}
# A file that does not state them leaves them to the recipe: setting of a run -> argument.
_OF_THE_RECIPE = {
    "zero": "use-distributed-optimizer",
    "recompute": "recompute-granularity",
    "sequence_parallel": "sequence-parallel",
}
# Sections of the plan and of its memory; the others are data, rates, logs, checkpoints, and how processes start.
_SECTIONS = re.compile(r"(^|\.)(model|ddp|optimizer|comm_overlap|mixed_precision|strategy)(_config)?\.")
# Beginnings of last parts of names that change nothing in a prediction, beside Megatron's: what describes the network, which MODEL does;
# kernels and exchanges as the framework's file costs them; rates and formats of 32 bits.
_WITHOUT_EFFECT = (
    "_target_", "account_for", "activation_func", "apply_", "arange", "attention_", "autocast", "average_in", "batch_p2p", "bf16", "bias_",
    "bos", "bucket_size", "calculate_", "check_for", "ckpt", "clip", "config", "cross_entropy", "data", "decoupled", "divide", "fp16",
    "gated_linear", "grad", "hidden_dropout", "hysteresis", "init", "kv_channels", "layernorm", "loss_scale", "lr", "main_", "make_vocab",
    "mask", "mcore", "megatron_amp", "min_lr", "moe_", "normalization", "optim", "overlap_", "parallel_load", "params_dtype", "persist",
    "pipeline_dtype", "position", "post_process", "pre_process", "qk_", "recompute_modules", "rotary", "seq_len", "share_", "should_pad",
    "store_param", "tokenizer", "transformer_", "use_cpu", "use_precision", "vocab", "weight_decay",
)  # fmt: skip
# `megatron.bridge.training.mixed_precision` and NeMo's recipes of the same names.
_PRECISIONS = {
    **{written: name for name, written in _MIXED.items() if written != "null"},
    "bf16_with_fp8_mixed": "fp8-delayed",
}


def read(path: Path, text: str, part: str = "") -> Run:
    """Read a run from overrides in a launch script, a recipe in Python or a YAML file."""
    written = settings_of(path, text, part)
    found, others = _arguments(written)
    stated = {_argument(name) for name in written.of}
    sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "micro_batch_size", "global_batch_size")
    left = [name for name in sizes if name.replace("_", "-") not in stated]
    misspelt = [
        setting.problem(path, f"is not known; did you mean '{near.replace('-', '_')}'?")
        for name, setting in others.items()
        if (near := meant(name, ARGUMENTS))
    ]
    if misspelt:
        raise InputFileError(misspelt)
    # With hyphens they are arguments of Megatron-LM; a section of tokens is nanotron's.
    are_others = any(s.name == f"--{s.name[2:].replace('_', '-')}" for name, s in written.of.items() if name in sizes)
    if len(left) == len(sizes) or are_others or any(name.startswith("tokens.") for name in written.of):
        raise problem(path, "has no settings of Megatron-Bridge or NeMo (such as model.tensor_model_parallel_size)")
    precision = _precision_of_run(written)
    run = run_of(found)
    if "fp8-format" not in found:
        run.options["precision"] = precision
    run.mesh = {name: value for name, value in run.mesh.items() if _OF_THE_RECIPE.get(name, "") in {"", *stated}}
    if found.number("expert-model-parallel-size") in (None, 1) and "expert-tensor-parallel-size" not in stated:
        run.mesh.pop("etp", None)  # a network without experts has it as well
    if left:
        run.notes.append(
            f"the file does not say {', '.join(left)}: your recipe's count, and are not read; "
            "give them on the command line where they differ"
        )
    beyond = [setting.name for name, setting in others.items() if not is_without_effect(name)]
    if beyond:
        run.notes.append(f"not modelled, so the prediction leaves it out: {', '.join(beyond[:40])}")
    return run


def _argument(name: str) -> str:
    """Megatron's argument of the same meaning.

    >>> _argument("trainer.strategy.tensor_model_parallel_size"), _argument("trainer.devices")
    ('tensor-model-parallel-size', 'nproc-per-node')
    """
    if name == "model.optim.name":  # NeMo 1
        return "use-distributed-optimizer"
    leaf = name.rpartition(".")[2]
    return _ARGUMENTS.get(leaf, leaf.replace("_", "-"))


def _arguments(written: Settings) -> tuple[Settings, dict[str, Setting]]:
    """Settings as Megatron's arguments; what is off is left out, as there. And those that are not read, by the same names."""
    found = Settings(path=written.path)
    others: dict[str, Setting] = {}
    for name, setting in written.of.items():
        argument, value = _argument(name), setting.value
        if name == "model.optim.name":
            value = "distributed" in str(value)
        is_section = argument == "optimizer" and "." not in name
        is_unknown = argument in ("nnodes", "nproc-per-node") and isinstance(value, Code)  # --gpus says it
        if argument not in ARGUMENTS or is_section or is_unknown:
            leaf = name.rpartition(".")[2]
            if _SECTIONS.search(name) and not _is_off(value) and not leaf.startswith(_WITHOUT_EFFECT):
                others[argument] = setting
        elif _is_off(value):
            found.of.pop(argument, None)
        else:
            found.of[argument] = replace(setting, value=_plain(value))
    return found, others


def _plain(value: Any) -> Any:
    """A value as Megatron's argument has it: blocks of lists of modules, formats without their library."""
    if isinstance(value, list):
        chunks = [chunk for chunk in value if isinstance(chunk, list)]
        return "|".join("t" * sum(str(word) == "decoder" for word in chunk) for chunk in chunks)
    if isinstance(value, str):
        return value.removeprefix("torch.").replace("bfloat16", "bf16")
    return value


def _is_off(value: object) -> bool:
    return (
        value is None or value is False or (isinstance(value, str) and value.lower() in ("false", "null", "none", ""))
    )


def _precision_of_run(written: Settings) -> str:
    """The recipe of mixed precision, or Lightning's word for a precision (NeMo); bf16 unless told, as in all recipes."""
    for leaf in ("mixed_precision", "plugins", "precision"):
        for name, setting in written.of.items():
            if name.rpartition(".")[2] != leaf or isinstance(setting.value, Code | list):
                continue
            if setting.value is None and leaf == "mixed_precision":
                return "fp32"
            text = str(setting.value).rpartition(".")[2]
            known = _PRECISIONS.get(text) or precision_called(text)
            if known is not None:
                return known
            if leaf == "mixed_precision":
                raise written.problem(name, f"is '{text[:60]}'; known: {', '.join(_PRECISIONS)}")
    return "bf16"
