"""torchtitan: a Python function that changes a configuration of yours (now), or a TOML file (up to v0.2.2).

TOML went in February 2026, and batches are counted in tokens since August 2026, after release 0.3.0. Meshes are pp,
dp_replicate, dp_shard, cp, tp from outside in; (dp_shard x cp x tp) must be a multiple of ep.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from costmodel.schedules import schedule_of
from planner.exporters.account import Account
from planner.exporters.common import DOCUMENTS, SEGMENT, SPLITS, account_basics, header
from planner.exporters.job import Job
from planner.exporters.runs import Run, problem, unread_names
from planner.exporters.settings import Settings, settings_of
from planner.exporters.shell import comment, start_scripts
from planner.files.naming.optimizers import optimizer_called
from planner.files.naming.precisions import precision_called

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
    "recompute": "activation_checkpoint",
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
    settings = _settings(job, account, version)
    head = header(job.origin, account, VERSIONS[version])
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    if version == _TOML:
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
    batch = _batch(job, parallelism, in_tokens=version == _TOKENS)
    if job.precision in _CONVERTERS:
        account.left_to_user("precision", f"the converter of your model: {_CONVERTERS[job.precision]}")
    if job.precision == "tf32":
        account.left_to_user("precision", "torch.set_float32_matmul_precision('high') before training")
    account.left_to_user("optimizer", "Adam with the rates of your configuration")
    plan = job.plan
    # trainer.py raises on CUDA graphs beside pipelines, and beside experts whose dispatcher waits for the device (commit f84224af0).
    has_no_graphs = not is_toml and (plan.pp > 1 or plan.ep > 1)
    training = {
        **batch,
        "mixed_precision_param": "float32" if job.precision in ("fp32", "tf32") else "bfloat16",
        "mixed_precision_reduce": "float32",
        **({"disable_cuda_graphs": True} if has_no_graphs else {}),
        **({"enable_cpu_offload": True} if plan.offload_optimizer and plan.zero_stage else {}),
    }
    # Later versions have nothing else.
    option = {"selective_ac_option": "op"} if plan.recompute == "selective" else {}
    return {
        "parallelism": parallelism,
        "training": training,
        "activation_checkpoint": {"mode": plan.recompute, **option},
    }


def _parallelism(job: Job, account: Account, *, is_toml: bool) -> dict[str, Any]:
    plan = job.plan
    if plan.cp > 1 and not is_toml:
        account.left_to_user(
            "cp_kind", f"the attention of your model decides how positions are exchanged: choose {plan.cp_kind}"
        )
    rotates = "alltoall" if plan.cp_kind == "ring" else "allgather"
    # With a pipeline "default" keeps the weights after the forward pass, which is not ZeRO-3.
    reshards = "always" if plan.zero_stage == 3 else "never"
    return {
        "data_parallel_replicate_degree": plan.dp_replicate,
        "data_parallel_shard_degree": plan.dp_shard,
        "tensor_parallel_degree": plan.tp,
        "context_parallel_degree": plan.cp,
        "expert_parallel_degree": plan.ep,
        "pipeline_parallel_degree": plan.pp,
        **(
            {"expert_tensor_parallel_degree": plan.etp}
            if is_toml
            else {"enable_sequence_parallel": plan.sequence_parallel}
        ),
        **({"context_parallel_rotate_method": rotates} if plan.cp > 1 and is_toml else {}),
        **({"fsdp_reshard_after_forward": reshards} if plan.zero_stage or plan.cp > 1 else {}),
        **_pipeline(job, account, is_toml=is_toml),
    }


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


# -- runs of it --------------------------------------------------------------------------------------------------------------


# Setting -> option of a mesh plan with the same meaning.
_DEGREES = {
    "parallelism.tensor_parallel_degree": "tp",
    "parallelism.context_parallel_degree": "cp",
    "parallelism.expert_parallel_degree": "ep",
    "parallelism.expert_tensor_parallel_degree": "etp",
    "parallelism.pipeline_parallel_degree": "pp",
    "parallelism.data_parallel_replicate_degree": "dp_replicate",
}
# Sections of what changes neither the work of a step nor what is stored: logs, checkpoints, rates, data (torchtitan/config).
_WITHOUT_EFFECT = (
    "job", "profil", "metrics", "lr_scheduler", "checkpoint", "validat", "dataloader", "comm", "debug", "experimental", "fault_tolerance",
    "hf_assets_path", "dump_folder", "tokenizer", "loss", "override", "memory_estimation", "model_spec", "model.name", "model.flavor",
    "model.tokenizer_path", "model.hf_assets_path", "model.print_after_conversion", "module", "config",
    "optimizer.lr", "optimizer.beta", "optimizer.eps", "optimizer.weight_decay", "optimizer.implementation", "optimizer.param_groups",
    "training.dataset", "training.max_norm", "training.steps", "training.gc_", "training.seed", "training.deterministic",
    "training.mixed_precision_reduce", "training.disable_cuda_graphs", "parallelism.disable_loss_parallel",
    "parallelism.context_parallel_load_balancer", "activation_checkpoint.preserve_rng_state", "activation_checkpoint.determinism_check",
    "activation_checkpoint.debug", "activation_checkpoint.early_stop", "nproc", "nnodes",
    "rdzv", "local_rank", "master", "role", "tee", "standalone", "node_rank",
)  # fmt: skip
_NOT_MODELLED = (
    "compile", "training.compile", "parallelism.enable_async_tensor_parallel", "parallelism.enable_compiled_autograd",
    "parallelism.enable_fsdp_symm_mem", "parallelism.full_dtensor", "parallelism.expert_parallel_comm_backend",
    "parallelism.pipeline_parallel_schedule_csv", "parallelism.pipeline_parallel_layers_per_stage",
    "parallelism.pipeline_parallel_first_stage_less_layers", "parallelism.pipeline_parallel_last_stage_less_layers",
    "parallelism.pipeline_parallel_split_points", "activation_checkpoint.per_op_sac", "activation_checkpoint.memory_budget",
    "activation_checkpoint.visualize", "training.dtype", "quantize", "float8", "mx", "optimizer.early_step_in_backward",
    "model_converters", "parallelism.spmd_backend",
)  # fmt: skip
_TRAINING = (
    "local_batch_size", "batch_size", "global_batch_size", "seq_len", "max_context_length", "num_tokens_per_microbatch_per_dp_rank",
    "num_tokens_per_train_step", "mixed_precision_param", "enable_cpu_offload",
)  # fmt: skip
# Each may have a section of its name, with its recipe.
_CONVERTERS_OF_RUNS = ("float8", "quantize.linear.float8", "mx", "quantize.linear.mx")
_RECIPES = {
    "float8": "fp8-tensorwise", "quantize.linear.float8": "fp8-tensorwise", "mx": "mxfp8", "quantize.linear.mx": "mxfp8",
    "rowwise": "fp8-rowwise", "rowwise_with_gw_hp": "fp8-rowwise-gw-hp", "mxfp8_cublas": "mxfp8",
}  # fmt: skip
_READ = {
    *_DEGREES,
    *(f"{name}.recipe_name" for name in _CONVERTERS_OF_RUNS),
    *(f"training.{name}" for name in _TRAINING),
    *(
        f"parallelism.{name}"
        for name in (
            "data_parallel_shard_degree", "fsdp_reshard_after_forward", "enable_sequence_parallel", "context_parallel_rotate_method",
            "pipeline_parallel_schedule", "module_fqns_per_model_part", "pipeline_parallel_microbatch_size", "num_pp_microbatches",
        )
    ),
    "activation_checkpoint", "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option",
    "optimizer", "optimizer.name", "model.converters", "training", "parallelism",
}  # fmt: skip
# torch/distributed/pipelining/schedules.py, get_schedule_class takes names in any case.
_NAMES_OF_SCHEDULES = {written.lower(): name for name, written in _SCHEDULES.items()}
_MODES = {
    "none": "none", "NoAC": "none", "full": "full", "FullAC": "full", "selective": "selective", "SelectiveAC": "selective",
}  # fmt: skip


def read(path: Path, text: str, part: str = "") -> Run:
    """Read a run from a TOML file, a Python configuration or a launch script."""
    found = settings_of(path, text, part)
    if not found.of.keys() & (_READ - {"optimizer", "optimizer.name"}):
        raise problem(
            path,
            "is no configuration of torchtitan: it has none of the settings of parallelism or training that are read",
        )
    run = Run()
    counts = {option: found.number(name) or 0 for name, option in _DEGREES.items()}
    run.mesh |= {name: str(n) for name, n in counts.items() if n > 1 or (n and name == "dp_replicate")}
    degrees = {option: int(run.mesh.get(option, 1)) for option in _DEGREES.values()}
    shard = found.number("parallelism.data_parallel_shard_degree", -1)
    if shard == 0:
        raise found.problem(
            "parallelism.data_parallel_shard_degree", "is 0; -1 (all ranks that are left) or more is expected"
        )
    if shard is not None and shard > 0:
        run.mesh["dp_shard"] = str(shard)
        run.options["gpus"] = str(shard * math.prod(degrees[name] for name in ("tp", "cp", "pp", "dp_replicate")))
    if degrees["tp"] > 1:
        run.mesh["sequence_parallel"] = found.flag("parallelism.enable_sequence_parallel", default=True)
    if degrees["cp"] > 1:
        rotates = {"allgather": "all_gather", "alltoall": "ring"}
        if (kind := found.word("parallelism.context_parallel_rotate_method", rotates)) is not None:
            run.mesh["cp_kind"] = kind
    # FSDP shards over the ranks of context parallelism, too; with a pipeline it keeps the weights unless told (distributed/fsdp.py).
    usual = "2" if degrees["pp"] > 1 else "3"
    reshards = {"default": usual, "always": "3", "never": "2"}
    stage = found.word("parallelism.fsdp_reshard_after_forward", reshards, usual)
    run.mesh["zero"] = "0" if shard == 1 and degrees["cp"] == 1 else str(stage)
    _pipeline_of_run(found, run, degrees["pp"])
    _batch_of_run(found, run, degrees)
    _memory_of_run(found, run)
    run.notes += unread_names(found, _READ, _WITHOUT_EFFECT, _NOT_MODELLED, TITLE)
    return run


def _pipeline_of_run(found: Settings, run: Run, pp: int) -> None:
    if pp == 1:
        return
    written = str(found.value("parallelism.pipeline_parallel_schedule", "1F1B")).lower()
    if written not in _NAMES_OF_SCHEDULES:
        raise found.problem(
            "parallelism.pipeline_parallel_schedule", f"is '{written[:40]}'; known: {', '.join(_SCHEDULES.values())}"
        )
    schedule = run.mesh["schedule"] = _NAMES_OF_SCHEDULES[written]
    parts = found.value("parallelism.module_fqns_per_model_part")
    if not parts:
        if schedule_of(schedule).vpp != 1:
            # What torchtitan gives a rank unless told (torchtitan/distributed/pipeline_parallel.py).
            run.mesh["vpp"] = "2"
        return
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts) or len(parts) % pp:
        raise found.problem(
            "parallelism.module_fqns_per_model_part",
            f"a list of names for each of {pp} or a multiple of {pp} parts is expected",
        )
    if len(parts) > pp:
        run.mesh["vpp"] = str(len(parts) // pp)
    blocks = [sum(str(name).startswith("layers.") for name in part) for part in parts]
    if min(blocks) > 0:
        run.stages = " ".join(map(str, blocks))
    else:
        run.notes.append(
            "module_fqns_per_model_part: has stages without blocks; they are laid out as the planner balances them"
        )


def _batch_of_run(found: Settings, run: Run, degrees: Mapping[str, int]) -> None:
    """Samples: of releases as they stand, since then tokens over the length of a sample."""
    is_piped = degrees["pp"] > 1
    seq = found.number("training.max_context_length") or found.number("training.seq_len")
    if seq is not None:
        run.options["seq"] = str(seq)
    if "training.num_tokens_per_microbatch_per_dp_rank" in found:
        micro = _samples(found, "num_tokens_per_microbatch_per_dp_rank", seq)
        batch = _samples(found, "num_tokens_per_train_step", seq)
        steps = found.number("parallelism.num_pp_microbatches") if is_piped else 1
        local = None if micro is None or steps is None else micro * steps
    else:
        local = found.number("training.local_batch_size") or found.number("training.batch_size")
        batch = _samples(found, "global_batch_size", 1)
        micro = (found.number("parallelism.pipeline_parallel_microbatch_size") or 1) if is_piped else local
    if micro is not None:
        run.mesh["micro_batch"] = str(micro)
    gpus = run.options.get("gpus")
    dp = None if gpus is None else int(gpus) // math.prod(degrees[name] for name in ("tp", "cp", "pp"))
    if batch is not None:
        run.options["batch"] = str(batch)
    elif local is not None and micro is not None:
        run.options["num_micro_batches"] = str(max(local // micro, 1))
    if is_piped and None not in (batch, local, dp) and batch > local * dp:  # type: ignore[operator]
        run.notes.append(
            "global batch: torchtitan runs the pipeline several times in a step and drains it each time; it is costed as one run of all "
            "micro-batches"
        )


def _samples(found: Settings, name: str, seq: int | None) -> int | None:
    """A number of tokens as samples; None where torchtitan follows from the rest (-1)."""
    count = found.number(f"training.{name}", -1)
    if count is None or count <= 0:
        return None
    if seq is None or count % seq:
        raise found.problem(
            f"training.{name}", f"is {count}; a multiple of training.max_context_length ({seq}) is expected"
        )
    return count // seq


def _memory_of_run(found: Settings, run: Run) -> None:
    name = "activation_checkpoint.mode"
    if name not in found:
        name = "activation_checkpoint"
    mode = str(found.value(name, "none")).partition(".")[0]
    mode = "selective" if mode == "ActivationCheckpointConfig" else mode  # its default
    if mode not in _MODES:
        raise found.problem(name, f"is '{mode[:40]}'; known: {', '.join(_MODES)}")
    run.mesh["recompute"] = _MODES[mode]
    option = str(found.value("activation_checkpoint.selective_ac_option", "2"))
    if _MODES[mode] == "selective" and name.endswith(".mode") and option != "op":
        run.notes.append(
            f"activation_checkpoint.selective_ac_option {option[:40]}: recomputes every so many blocks whole, which no plan has; "
            "predicted as op"
        )
    if found.flag("training.enable_cpu_offload"):
        run.mesh["offload"] = "optimizer"
        run.notes.append(
            "training.enable_cpu_offload: moves weights and gradients, too; only the optimizer is costed on the host"
        )
    widths = {"bfloat16": "bf16", "float32": "fp32"}
    run.options["precision"] = found.word("training.mixed_precision_param", widths) or "bf16"
    converters = found.value("model.converters") or []
    for converter in [converters] if isinstance(converters, str) else converters:
        recipe = str(found.value(f"{converter}.recipe_name", "")) or converter
        narrow = precision_called(_RECIPES.get(recipe, recipe))
        if narrow is None:
            raise found.problem(
                "model.converters", f"is '{str(converter)[:40]}'; known: {', '.join(_CONVERTERS_OF_RUNS)}"
            )
        run.options["precision"] = narrow
    kind = str(found.value("optimizer.name", "AdamW"))
    known = optimizer_called(kind.lower())
    if known is not None:
        run.options["optimizer"] = known
    else:
        run.notes.append(
            f"optimizer.name {kind[:40]}: is not known to the cost model; the network's usual one is taken"
        )
