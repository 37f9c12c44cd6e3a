"""torchtitan: a Python function that changes a configuration of yours (now), or a TOML file (up to v0.2.2).

TOML went in February 2026, and batches are counted in tokens since August 2026, after release 0.3.0. Meshes are pp,
dp_replicate, dp_shard, cp, tp from outside in; (dp_shard x cp x tp) must be a multiple of ep.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

from planner.exporters.account import Account
from planner.exporters.common import DOCUMENTS, SEGMENT, SPLITS, account_basics, header
from planner.exporters.job import Job
from planner.exporters.shell import comment, start_scripts

TITLE = "torchtitan"
SUMMARY = "planned.py (or planned.toml for v0.2.2), train.sh, train.slurm"
_TOKENS, _TOML = "2026-08", "v0.2.2"
VERSIONS = {
    _TOKENS: "torchtitan, commit b5bcd76c6 of 2026-08-21",
    "v0.3.0": "torchtitan 0.3.0, as its package has it",
    _TOML: "torchtitan, tag v0.2.2",
}
FRAMEWORK = "torchtitan"
TAKES = frozenset({"mesh"})
FIELDS = {
    "tp": "parallelism.tensor_parallel_degree",
    "sequence_parallel": "parallelism.enable_sequence_parallel; v0.2.2: on with tp",
    "cp": "parallelism.context_parallel_degree",
    "cp_kind": "v0.2.2: context_parallel_rotate_method allgather (all_gather), alltoall (ring); -: all_to_all; now: by hand, of the model",
    "ep": "parallelism.expert_parallel_degree",
    "etp": "v0.2.2: expert_tensor_parallel_degree (1 or tp); -: now",
    "pp": "parallelism.pipeline_parallel_degree",
    "vpp": "parallelism.module_fqns_per_model_part",
    "schedule": "parallelism.pipeline_parallel_schedule; no others",
    "dp_replicate": "parallelism.data_parallel_replicate_degree",
    "dp_shard": "parallelism.data_parallel_shard_degree",
    "zero_stage": "parallelism.fsdp_reshard_after_forward never (2), always (3); -: 1, and 0 beside cp",
    "micro_batch": "training.num_tokens_per_microbatch_per_dp_rank; releases: local_batch_size, pipeline_parallel_microbatch_size",
    "num_micro_batches": "parallelism.num_pp_microbatches, training.num_tokens_per_train_step; releases: global_batch_size",
    "recompute": "activation_checkpoint; -: selective, which recomputes what torchtitan chooses",
    "recompute_blocks": "all blocks; -: fewer",
    "offload_optimizer": "-: training.enable_cpu_offload moves weights and gradients, too; written beside ZeRO",
    "offload_activations": "-: no setting",
    "order": "tp-cp-dp-pp; no others",
    "domain_gpus": SEGMENT,
    "stage_blocks": "parallelism.module_fqns_per_model_part; by hand where the network is no plain decoder",
    "stage_recompute": "all blocks; -: fewer",
    "block_splits": SPLITS,
    "precision": "training.mixed_precision_param; by hand: fp8, mxfp8, nvfp4; -: fp16, other recipes",
    "optimizer": "by hand: that of the configuration",
    "seq": "training.max_context_length; releases: training.seq_len",
    "doc_lengths": DOCUMENTS,
    "lora_rank": "-: adapters are a model of their own",
    "placement": "processes per node of the launcher",
}
_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zb_v": "ZBVZeroBubble",
    "dualpipe_v": "DualPipeV",
    "interleaved_zb": "InterleavedZeroBubble",
}


def refusals(job: Job, version: str) -> list[str]:
    """What torchtitan raises on beside the rules of its framework file."""
    plan, problems = job.plan, []
    if plan.dp_shard * plan.cp * plan.tp % plan.ep:
        problems.append(f"ep {plan.ep}: must divide dp_shard x cp x tp = {plan.dp_shard * plan.cp * plan.tp}")
    if version == _TOML and plan.etp not in (1, plan.tp):
        problems.append(f"etp {plan.etp}: torchtitan takes 1 or tp = {plan.tp}")
    return problems


def render(job: Job, account: Account, version: str) -> dict[str, str]:
    """Write the configuration and the scripts."""
    is_toml = version == _TOML
    settings = _settings(job, account, version)
    head = header(job.origin, account, VERSIONS[version])
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    if is_toml:
        name, text = "planned.toml", _toml(settings, head)
        lines = ["# Choose your model by arguments of this script: --model.name llama3 --model.flavor 70B ..."]
        command = ["-m torchtitan.train", f'--job.config_file "$here/{name}"']
    else:
        name, text = "planned.py", _recipe(settings, job, head)
        lines = [
            "# The configuration that planned.py changes: its module and function.",
            'export BASE_MODULE="${BASE_MODULE:?set BASE_MODULE, such as torchtitan.models.llama3.config_registry}"',
            'export BASE_CONFIG="${BASE_CONFIG:?set BASE_CONFIG, such as llama3_8b}"',
            'export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"',
        ]
        command = ["-m torchtitan.train", "--module planned", "--config planned"]
    return {name: text, **start_scripts(job, head, environment=environment, settings=lines, command=command)}


# Recipe -> what torchtitan/components/quantization has for it.
_CONVERTERS = {
    "fp8-rowwise": "Float8LinearConverter, recipe rowwise",
    "fp8-rowwise-gw-hp": "Float8LinearConverter, recipe rowwise_with_gw_hp",
    "mxfp8": "MXFP8LinearConverter",
    "nvfp4": "NVFP4LinearConverter",
}


def _settings(job: Job, account: Account, version: str) -> dict[str, dict[str, Any]]:
    account_basics(job, account)
    is_toml = version == _TOML
    parallelism = _parallelism(job, account, is_toml=is_toml)
    training = _batch(job, parallelism, in_tokens=version == _TOKENS)
    training["mixed_precision_param"] = "float32" if job.precision in ("fp32", "tf32") else "bfloat16"
    training["mixed_precision_reduce"] = "float32"
    if job.precision in _CONVERTERS:
        account.left_to_user("precision", f"the converter of your model: {_CONVERTERS[job.precision]}")
    if job.precision == "tf32":
        account.left_to_user("precision", "torch.set_float32_matmul_precision('high') before training")
    account.left_to_user("optimizer", "Adam with the rates of your configuration")
    plan = job.plan
    # trainer.py raises on CUDA graphs beside pipelines, and beside experts whose dispatcher waits for the device (commit f84224af0).
    if not is_toml and (plan.pp > 1 or plan.ep > 1):
        training["disable_cuda_graphs"] = True
    if plan.offload_optimizer and plan.zero_stage:
        training["enable_cpu_offload"] = True
    return {
        "parallelism": parallelism,
        "training": training,
        "activation_checkpoint": {"mode": plan.recompute},
    }


def _parallelism(job: Job, account: Account, *, is_toml: bool) -> dict[str, Any]:
    plan = job.plan
    settings: dict[str, Any] = {
        "data_parallel_replicate_degree": plan.dp_replicate,
        "data_parallel_shard_degree": plan.dp_shard,
        "tensor_parallel_degree": plan.tp,
        "context_parallel_degree": plan.cp,
        "expert_parallel_degree": plan.ep,
        "pipeline_parallel_degree": plan.pp,
    }
    if is_toml:
        settings["expert_tensor_parallel_degree"] = plan.etp
    else:
        settings["enable_sequence_parallel"] = plan.sequence_parallel
    settings |= _context(job, account, is_toml=is_toml)
    if plan.zero_stage or plan.cp > 1:
        # With a pipeline "default" keeps the weights after the forward pass, which is not ZeRO-3.
        settings["fsdp_reshard_after_forward"] = "always" if plan.zero_stage == 3 else "never"
    return settings | _pipeline(job, account, is_toml=is_toml)


def _context(job: Job, account: Account, *, is_toml: bool) -> dict[str, Any]:
    plan = job.plan
    if plan.cp == 1:
        return {}
    if not is_toml:
        account.left_to_user(
            "cp_kind", f"the attention of your model decides how positions are exchanged: choose {plan.cp_kind}"
        )
        return {}
    return {"context_parallel_rotate_method": "alltoall" if plan.cp_kind == "ring" else "allgather"}


def _pipeline(job: Job, account: Account, *, is_toml: bool) -> dict[str, Any]:
    plan = job.plan
    if plan.pp == 1:
        return {}
    settings: dict[str, Any] = {"pipeline_parallel_schedule": _SCHEDULES.get(plan.schedule, "1F1B")}
    if job.network is None:
        account.left_to_user(
            "stage_blocks", f"blocks per chunk: {', '.join(map(str, job.blocks))}, in module_fqns_per_model_part"
        )
        return settings
    # Renamed by torchtitan commit 786e26f8e. A name that the model does not have leaves the last stage without its head, silently.
    head = "output" if is_toml else "lm_head"
    account.left_to_user(
        "module_names",
        f"stages name tok_embeddings, layers.N, norm and {head}, as the bundled models do: change them where your model has others",
    )
    ends = [0, *itertools.accumulate(job.blocks)]
    parts = [[f"layers.{i}" for i in range(a, b)] for a, b in itertools.pairwise(ends)]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", head]
    return settings | {"module_fqns_per_model_part": parts}


def _batch(job: Job, parallelism: dict[str, Any], *, in_tokens: bool) -> dict[str, Any]:
    """Sizes of the batch: samples in releases, tokens since; with a pipeline the micro-batches are the schedule's, else accumulated."""
    plan, seq = job.plan, job.seq or 1
    is_piped = plan.pp > 1
    if not in_tokens:
        if is_piped:
            parallelism["pipeline_parallel_microbatch_size"] = plan.micro_batch
        local = plan.micro_batch * (plan.num_micro_batches if is_piped else 1)
        return {"local_batch_size": local, "global_batch_size": plan.global_batch, "seq_len": seq}
    if is_piped:
        parallelism["num_pp_microbatches"] = plan.num_micro_batches
    return {
        "num_tokens_per_microbatch_per_dp_rank": plan.micro_batch * seq,
        "num_tokens_per_train_step": plan.global_batch * seq,
        "max_context_length": seq,
    }


def _toml(settings: dict[str, dict[str, Any]], head: list[str]) -> str:
    lines = comment(head)
    for section, values in settings.items():
        lines += ["", f"[{section}]"]
        # JSON's words, numbers and lists are TOML's, too.
        lines += [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    return "\n".join(lines) + "\n"


_AC = {"none": "None", "full": "FullAC.Config()", "selective": "SelectiveAC.Config()"}


def _recipe(settings: dict[str, dict[str, Any]], job: Job, head: list[str]) -> str:
    mode = settings["activation_checkpoint"]["mode"]
    lines = [*comment(head), "", "import importlib", "import os"]
    if mode != "none":
        policy = _AC[mode].partition(".")[0]
        lines += ["", f"from torchtitan.distributed.activation_checkpoint import {policy}"]
    lines += [
        "",
        "",
        "def planned():",
        f'    """The configuration that BASE_MODULE and BASE_CONFIG name, over {job.plan.workers} ranks."""',
        '    base = importlib.import_module(os.environ["BASE_MODULE"])',
        '    config = getattr(base, os.environ["BASE_CONFIG"])()',
    ]
    for section in ("parallelism", "training"):
        for name, value in settings[section].items():
            if name == "module_fqns_per_model_part":
                lines.append(f"    config.{section}.{name} = [")
                lines += [f"        {json.dumps(part)}," for part in value]
                lines.append("    ]")
            else:
                text = json.dumps(value) if isinstance(value, str) else repr(value)
                lines.append(f"    config.{section}.{name} = {text}")
    lines += [f"    config.activation_checkpoint = {_AC[mode]}", "    return config"]
    return "\n".join(lines) + "\n"
