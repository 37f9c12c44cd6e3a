"""nanotron: the YAML file of run_train.py; complete, with random tokens for data until yours are named."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from costmodel.network.sizes import NetworkSizes
from costmodel.precision import OPTIMIZERS
from planner.exporters.account import Account
from planner.exporters.common import DOCUMENTS, SEGMENT, SPLITS, account_basics, header
from planner.exporters.job import Job
from planner.exporters.runs import Run, problem, unread_names
from planner.exporters.settings import settings_of
from planner.exporters.shell import start_scripts
from planner.files.yaml_text import yaml_text

TITLE = "nanotron"
SUMMARY = "nanotron.yaml, train.sh, train.slurm"
VERSIONS = {"2026-04": "nanotron, commit 2411b022 of 2026-04-07"}
FRAMEWORK = "nanotron"
TAKES = frozenset({"mesh"})
CONFIG = "nanotron.yaml"
FIELDS = {
    "tp": "parallelism.tp",
    "sequence_parallel": "parallelism.tp_mode REDUCE_SCATTER",
    "cp": "parallelism.context_parallel_size",
    "cp_kind": "by hand: the attention of the model",
    "ep": "parallelism.expert_parallel_size",
    "etp": "more than 1 is refused",
    "pp": "parallelism.pp",
    "vpp": "more than 1 is refused",
    "schedule": "parallelism.pp_engine 1f1b, afab (gpipe); no others",
    "dp_replicate": "parallelism.dp, with dp_shard; -: beside ZeRO",
    "dp_shard": "parallelism.dp, with dp_replicate",
    "zero_stage": "optimizer.zero_stage 0, 1; more is refused",
    "micro_batch": "tokens.micro_batch_size",
    "num_micro_batches": "tokens.batch_accumulation_per_replica",
    "recompute": "parallelism.recompute_layer (full); -: selective",
    "recompute_blocks": "all blocks; -: fewer",
    "offload_optimizer": "-: no setting",
    "offload_activations": "-: no setting",
    "order": "tp-cp-dp-pp, with experts tp-cp-pp-dp; no others",
    "domain_gpus": SEGMENT,
    "stage_blocks": "as nanotron cuts them; -: any other way",
    "stage_recompute": "all blocks; -: fewer",
    "block_splits": SPLITS,
    "precision": "model.dtype; -: narrow formats, fp16, tf32",
    "optimizer": "optimizer.optimizer_factory.name",
    "seq": "tokens.sequence_length",
    "doc_lengths": DOCUMENTS,
    "lora_rank": "-: nanotron trains whole networks",
    "placement": "processes per node of the launcher",
}


def refusals(job: Job, version: str) -> list[str]:  # noqa: ARG001 - the same for all versions
    """Pipelines that wait for their loss on another stage than has it."""
    if job.network is None or job.plan.pp == 1:
        return []
    from costmodel.mesh.stages import threshold_last  # plans of other targets do without

    loss, last = threshold_last(job.network.layers, job.plan.pp, job.network.head_in_blocks)
    if loss == last:
        return []
    where = f"puts the loss on stage {loss} and waits for it on stage {last}"
    return [f"pp {job.plan.pp}: nanotron cuts stages by the cost of their blocks, {where}; fewer stages run"]


def has_own_stages(job: Job) -> bool:
    """Whether stages are cut in another way than by the cost of their blocks."""
    if job.network is None or job.plan.pp == 1:
        return False
    from costmodel.mesh.stages import threshold_blocks

    chunks = job.plan.pp * job.plan.vpp
    return threshold_blocks(job.network.layers, chunks, job.network.head_in_blocks) != job.blocks


def render(job: Job, account: Account, version: str) -> dict[str, str]:
    """Write the YAML file and the scripts."""
    config = _config(job, account)
    account.left_to_user(
        "data",
        "tokenizer, data_stages, checkpoints_path and the rates of optimizer: those in the file are placeholders",
    )
    head = header(job.origin, account, VERSIONS[version])
    settings = ["# run_train.py of your copy of nanotron", 'SCRIPT="${SCRIPT:-run_train.py}"']
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}  # asserted for asynchronous tensor-parallel communication
    command = ['"$SCRIPT"', f'--config-file "$here/{CONFIG}"']
    text = yaml_text(config, "\n".join(head))
    return {CONFIG: text, **start_scripts(job, head, environment=environment, settings=settings, command=command)}


def _config(job: Job, account: Account) -> dict[str, Any]:
    plan = job.plan
    account_basics(job, account)
    assert job.network is not None
    return {
        "checkpoints": {
            "checkpoint_interval": 1000,
            "checkpoints_path": "checkpoints",
            "checkpoints_path_is_shared_file_system": True,
            "resume_checkpoint_path": None,
            "save_initial_state": False,
        },
        "data_stages": [
            {
                "name": "random tokens",
                "start_training_step": 1,
                "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
            }
        ],
        "general": {"project": "planner", "run": "planned", "seed": 42, "ignore_sanity_checks": True},
        "logging": {"iteration_step_info_interval": 1, "log_level": "info", "log_level_replica": "info"},
        "model": _model(job, job.network, account),
        "optimizer": _optimizer(job),
        "parallelism": _parallelism(job, account),
        "profiler": None,
        "tokenizer": {"tokenizer_name_or_path": "gpt2", "tokenizer_max_length": None, "tokenizer_revision": None},
        "tokens": {
            "micro_batch_size": plan.micro_batch,
            "batch_accumulation_per_replica": plan.num_micro_batches,
            "sequence_length": job.seq,
            "train_steps": 100,
            "val_check_interval": -1,
            "limit_test_batches": 0,
            "limit_val_batches": 0,
        },
    }


def _model(job: Job, network: NetworkSizes, account: Account) -> dict[str, Any]:
    names = {"bf16": "bfloat16", "fp32": "float32"}
    if network.experts:
        account.left_to_user(
            "network", f"the section of {network.experts} experts in model_config, as your copy of nanotron names it"
        )
    return {
        "ddp_bucket_cap_mb": 25,
        "dtype": names.get(job.precision, "bfloat16"),
        "init_method": {"std": 0.02},
        "make_vocab_size_divisible_by": 1,
        "model_config": {
            "is_llama_config": True,
            "hidden_size": network.hidden,
            "intermediate_size": network.ffn,
            "num_hidden_layers": network.layers,
            "num_attention_heads": network.heads,
            "num_key_value_heads": network.kv_heads,
            "vocab_size": network.vocabulary,
            "max_position_embeddings": job.seq,
            "hidden_act": network.function,
            "tie_word_embeddings": network.is_tied,
            "pad_token_id": None,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "rms_norm_eps": 1.0e-05,
            "rope_scaling": None,
            "pretraining_tp": 1,
            "initializer_range": 0.02,
            "use_cache": True,
        },
    }


def _optimizer(job: Job) -> dict[str, Any]:
    adam = {"name": "adamW", "adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1.0e-08, "torch_adam_is_fused": True}
    return {
        "accumulate_grad_in_fp32": True,
        "clip_grad": 1.0,
        "learning_rate_scheduler": {
            "learning_rate": 0.0003,
            "lr_decay_starting_step": None,
            "lr_decay_steps": 98,
            "lr_decay_style": "cosine",
            "lr_warmup_steps": 2,
            "lr_warmup_style": "linear",
            "min_decay_lr": 1.0e-05,
        },
        "optimizer_factory": adam if OPTIMIZERS[job.optimizer].rule == "adam" else {"name": "sgd"},
        "weight_decay": 0.01,
        "zero_stage": job.plan.zero_stage,
    }


def _parallelism(job: Job, account: Account) -> dict[str, Any]:
    plan = job.plan
    if plan.cp > 1:
        account.left_to_user(
            "cp_kind", f"the attention that your model_config names (_attn_implementation) must be {plan.cp_kind}"
        )
    return {
        "dp": plan.dp,
        "pp": plan.pp,
        "tp": plan.tp,
        "context_parallel_size": plan.cp,
        "expert_parallel_size": plan.ep,
        "pp_engine": "afab" if plan.pp > 1 and plan.schedule == "gpipe" else "1f1b",
        "tp_mode": "REDUCE_SCATTER" if plan.sequence_parallel else "ALL_REDUCE",
        "tp_linear_async_communication": plan.sequence_parallel,
        "recompute_layer": plan.recompute == "full",
    }


# -- runs of it --------------------------------------------------------------------------------------------------------------


# Setting -> option; nanotron states all its degrees (src/nanotron/config/parallelism_config.py).
_DEGREES = {
    "parallelism.tp": "tp",
    "parallelism.pp": "pp",
    "parallelism.context_parallel_size": "cp",
    "parallelism.expert_parallel_size": "ep",
    "tokens.micro_batch_size": "micro_batch",
}
_NETWORK = {
    "num_hidden_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads", "num_key_value_heads": "kv_heads",
    "intermediate_size": "ffn",
}  # fmt: skip
_READ = {
    *_DEGREES, "parallelism.dp", "parallelism.pp_engine", "parallelism.tp_mode", "parallelism.recompute_layer", "optimizer.zero_stage",
    "optimizer.optimizer_factory.name", "model.dtype", "tokens.batch_accumulation_per_replica", "tokens.sequence_length",
}  # fmt: skip
# Data, rates, logs and checkpoints; what describes the network, which MODEL does; what nanotron does that its framework's file costs.
_WITHOUT_EFFECT = (
    "checkpoints", "data_stages", "general", "logging", "lighteval", "tokenizer", "profiler", "s3_upload", "model.", "metrics_logging",
    "optimizer.accumulate_grad_in_fp32", "optimizer.clip_grad", "optimizer.learning_rate_scheduler", "optimizer.weight_decay",
    "optimizer.optimizer_factory", "tokens.train_steps", "tokens.val_check_interval", "tokens.limit_", "tokens.lr_",
    "parallelism.tp_linear_async_communication",
)  # fmt: skip
_NOT_MODELLED = ("parallelism.tp_recompute_allgather", "parallelism.moe_layer_recompute")


def read(path: Path, text: str, part: str = "") -> Run:
    """Read a run from a configuration."""
    found = settings_of(path, text, part)
    if not all(f"parallelism.{name}" in found for name in ("dp", "tp", "pp")):
        raise problem(path, "is no configuration of nanotron: it has no parallelism with dp, tp and pp")
    counts = {option: found.number(name) or 0 for name, option in _DEGREES.items()}
    degrees = {name: str(n) for name, n in counts.items() if n > 1 or (n and name == "micro_batch")}
    dp = found.number("parallelism.dp") or 1
    gpus = dp * math.prod(int(degrees.get(name, 1)) for name in ("tp", "pp", "cp"))
    is_reduced = str(found.value("parallelism.tp_mode", "ALL_REDUCE")).upper() == "REDUCE_SCATTER"
    if not is_reduced:
        found.word("parallelism.tp_mode", {"ALL_REDUCE": "", "all_reduce": ""})
    engines = {"1f1b": "1f1b", "afab": "gpipe"}
    # Unless told it runs all forward passes first (AllForwardAllBackwardPipelineEngine).
    schedule = {"schedule": found.word("parallelism.pp_engine", engines, "gpipe")} if "pp" in degrees else {}
    stage = found.number("optimizer.zero_stage", 0) or 0
    if stage > 1:
        raise found.problem("optimizer.zero_stage", f"is {stage}; 0 or 1 is expected")
    recompute = "full" if found.flag("parallelism.recompute_layer") else "none"
    of_tokens = {"batch_accumulation_per_replica": "num_micro_batches", "sequence_length": "seq"}
    lengths = {option: found.number(f"tokens.{name}") for name, option in of_tokens.items()}
    widths = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}
    factories = {"adamW": "adam", "sgd": "sgd"}
    sizes = {f"model.model_config.{name}": size for name, size in _NETWORK.items()}
    return Run(
        options={
            "gpus": str(gpus),
            **{option: str(count) for option, count in lengths.items() if count is not None},
            "precision": str(found.word("model.dtype", widths, "bf16")),
            "optimizer": str(found.word("optimizer.optimizer_factory.name", factories, "adam")),
        },
        mesh={**degrees, "sequence_parallel": is_reduced, **schedule, "zero": str(stage), "recompute": recompute},
        network={name: (size, count) for name, size in sizes.items() if (count := found.number(name)) is not None},
        notes=unread_names(found, _READ, _WITHOUT_EFFECT, _NOT_MODELLED, TITLE),
    )
