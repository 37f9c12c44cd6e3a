"""Megatron-LM: arguments of pretrain_gpt.py (pretrain_bert.py, pretrain_t5.py) in a bash script.

Most flags are generated from dataclasses (megatron/training/argument_utils.py); the environment is checked at the start, so it belongs
to the export: CUDA_DEVICE_MAX_CONNECTIONS must be 1 with tensor or context parallelism before Blackwell, and must not be with FSDP.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from costmodel.mesh.framework_rules import order_in_effect
from costmodel.mesh.plan import MeshPlan
from costmodel.network.sizes import NetworkSizes
from costmodel.precision import OPTIMIZERS, PRECISIONS
from costmodel.schedules import group_size
from planner.core.errors import InputFileError
from planner.exporters.account import Account
from planner.exporters.common import (
    DOCUMENTS,
    SEGMENT,
    SPLITS,
    account_basics,
    chunk_repeats,
    given,
    header,
    is_even_layout,
)
from planner.exporters.job import Job
from planner.exporters.runs import Run, problem
from planner.exporters.settings import Setting, Settings, resolved, words_of
from planner.exporters.shell import shell_array, start_scripts
from planner.files.naming.precisions import precision_called

# costmodel's cp_kind -> cp_comm_type
CP_COMM = {"ring": "p2p", "all_gather": "allgather", "all_to_all": "a2a"}
# What is written and read: flag -> setting of a mesh plan with the same meaning, and size of the network.
_DEGREES = {
    "tensor-model-parallel-size": "tp",
    "pipeline-model-parallel-size": "pp",
    "context-parallel-size": "cp",
    "expert-model-parallel-size": "ep",
    "expert-tensor-parallel-size": "etp",
    "micro-batch-size": "micro_batch",
}
_NETWORK = {
    "num-layers": "layers",
    "hidden-size": "hidden",
    "num-attention-heads": "heads",
    "num-query-groups": "kv_heads",
    "kv-channels": "head_dim",
    "ffn-hidden-size": "ffn",
    "num-experts": "experts",
    "moe-router-topk": "top_k",
    "moe-ffn-hidden-size": "expert_ffn",
}
# Sharding strategies of Megatron-FSDP by ZeRO stage.
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")
# Rank order -> whether it needs use_tp_pp_dp_mapping.
ORDERS = {"tp-cp-dp-pp": False, "tp-cp-pp-dp": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recompute:
    """Settings of recomputation; empty and 0 where there are none."""

    granularity: str = ""
    method: str = ""
    num_layers: int = 0
    modules: tuple[str, ...] = ()


def layout_text(blocks: Sequence[int]) -> str:
    """Blocks per pipeline chunk as `pipeline_model_parallel_layout` writes them: E embedding, t block, L loss, ``|`` between chunks.

    >>> layout_text((7, 8, 8, 8, 7))
    'Et*7|(t*8|)*3t*7L'
    >>> layout_text((2, 1, 0))
    'Et*2|t|L'
    """
    first, *middle = blocks[:-1] or blocks
    text = "E" + _run(first)
    if len(blocks) == 1:
        return text + "L"
    text += "|"
    for length, count in chunk_repeats(middle):
        chunk = _run(length) + "|"
        text += f"({chunk})*{count}" if count > 2 else chunk * count
    return text + _run(blocks[-1]) + "L"


def _run(length: int) -> str:
    return f"t*{length}" if length > 1 else "t" * length


def order_of(job: Job) -> str:
    """The rank order that is written; the first where the target has no such order, which its rules say."""
    wanted = order_in_effect(job.plan.order, job.plan)
    return next((order for order in ORDERS if order_in_effect(order, job.plan) == wanted), "tp-cp-dp-pp")


def recompute_of(job: Job) -> Recompute:
    """Choose the settings of recomputation.

    ``block`` recomputes the first N blocks of every (virtual) stage, fewer where it holds fewer.
    """
    plan = job.plan
    if plan.recompute == "none":
        return Recompute()
    if plan.recompute == "selective":
        return Recompute(granularity="selective", modules=_selected_modules(job))
    return Recompute(granularity="full", method="block", num_layers=max(job.chunk_recompute, default=0))


def _selected_modules(job: Job) -> tuple[str, ...]:
    """What selective recomputation runs again (`costmodel.mesh.modules.repeats_of`) in the words of Megatron Core.

    Latent attention is fused, and keeps hardly more than the matrices before it make.
    """
    words = {word for argument in (job.other.arguments if job.other else ()) for word in argument}
    is_latent = "--multi-latent-attention" in words
    has_experts = "--num-experts" in words or (job.network is not None and job.network.experts > 0)
    modules = ["layernorm", "mla_up_proj"] if is_latent else ["core_attn", *(["layernorm"] if has_experts else [])]
    return (*modules, *(["moe_act"] if has_experts else []))


TITLE = "Megatron-LM"
SUMMARY = "arguments of pretrain_gpt.py in train.sh, train.slurm"
VERSIONS = {"2026-08": "Megatron-LM, commit d98e8a64dd of 2026-08-22"}
FRAMEWORK = "megatron-lm"
TAKES = frozenset({"mesh"})
FIELDS = {
    "tp": "--tensor-model-parallel-size",
    "sequence_parallel": "--sequence-parallel",
    "cp": "--context-parallel-size",
    "cp_kind": "--cp-comm-type p2p, allgather or a2a",
    "ep": "--expert-model-parallel-size",
    "etp": "--expert-tensor-parallel-size",
    "pp": "--pipeline-model-parallel-size",
    "vpp": "--num-virtual-stages-per-pipeline-rank, or the layout",
    "schedule": "1f1b, and interleaved by vpp; --overlap-moe-expert-parallel-comm (combined_1f1b); no others",
    "dp_replicate": "implied; --num-distributed-optimizer-instances beside ZeRO",
    "dp_shard": "implied by the number of processes",
    "zero_stage": "--use-distributed-optimizer (1), --use-megatron-fsdp --data-parallel-sharding-strategy (2, 3)",
    "micro_batch": "--micro-batch-size",
    "num_micro_batches": "implied by --global-batch-size; --microbatch-group-size-per-virtual-pipeline-stage",
    "recompute": "--recompute-granularity, --recompute-modules",
    "recompute_blocks": "--recompute-method block --recompute-num-layers",
    "offload_optimizer": "--optimizer-cpu-offload",
    "offload_activations": "-: not by an argument",
    "order": "tp-cp-dp-pp, tp-cp-pp-dp by --use-tp-pp-dp-mapping; no others",
    "domain_gpus": SEGMENT,
    "stage_blocks": "--pipeline-model-parallel-layout where stages are unequal",
    "stage_recompute": "as recompute_blocks; -: unless it is the same number on every stage",
    "block_splits": SPLITS,
    "precision": "--bf16, --fp16, --fp8-format, --fp8-recipe, --fp4-format; -: other recipes",
    "optimizer": "--optimizer, --sgd-momentum",
    "seq": "--seq-length, --max-position-embeddings",
    "doc_lengths": DOCUMENTS,
    "lora_rank": "-: Megatron-LM trains whole networks",
    "placement": "processes per node of the launcher",
}


def render(job: Job, account: Account, version: str) -> dict[str, str]:
    """Write the scripts."""
    plan_arguments = _plan_arguments(job, account)
    model_arguments = _model_arguments(job.network) if job.network is not None else []
    script_name = "pretrain_gpt.py"
    if job.other is not None:
        model_arguments, script_name = list(job.other.arguments), job.other.script
    if not model_arguments:
        account.left_to_user(
            "network", f"the arguments that describe {job.origin.model} (layers, widths, heads, experts, ...)"
        )
    if job.network is not None and not job.network.has_positions:
        # Networks like Llama have rotary positions.
        alibi = "; Megatron-LM has no ALiBi (BLOOM, MPT)" if job.network.unlike_llama else ""
        base = "rope is written: give --rotary-base of your config.json (10000 unless given)"
        account.left_to_user("positions", f"{base}{alibi}")
    account.left_to_user(
        "data", "tokenizer, data and checkpoint paths, learning rate: give them to train.sh, which passes them on"
    )
    head = header(job.origin, account, VERSIONS[version])
    settings = [
        f"# {script_name} of your copy of Megatron-LM",
        f'SCRIPT="${{SCRIPT:-{script_name}}}"',
        "",
        *shell_array("PLAN_ARGS", plan_arguments),
        "",
        "# The network as its file describes it; compare with your checkpoint.",
        *shell_array("MODEL_ARGS", model_arguments),
    ]
    command = ['"$SCRIPT"', '"${PLAN_ARGS[@]}"', '"${MODEL_ARGS[@]}"']
    return start_scripts(job, head, environment=environment_of(job.plan), settings=settings, command=command)


def environment_of(plan: MeshPlan) -> dict[str, str]:
    """Variables that Megatron checks at the start; an empty value takes one away."""
    if plan.zero_stage >= 2:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": ""}  # FSDP asserts that it is not 1
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if plan.tp > 1 or plan.cp > 1 else {}


def _plan_arguments(job: Job, account: Account) -> list[tuple[str, ...]]:
    plan = job.plan
    account_basics(job, account)
    layout = {
        ("--sequence-parallel",): plan.sequence_parallel,
        ("--cp-comm-type", CP_COMM[plan.cp_kind]): plan.cp > 1,
        ("--use-tp-pp-dp-mapping",): ORDERS[order_of(job)],
    }
    return [
        *_degrees(job, "tp", "pp", "cp", "micro_batch"),
        ("--global-batch-size", str(plan.global_batch)),
        *given(layout),
        *_experts(job),
        *_pipeline(job),
        *_zero(job),
        *_memory(job),
        *_run_arguments(job, account),
    ]


def _degrees(job: Job, *settings: str) -> list[tuple[str, ...]]:
    flags = {setting: flag for flag, setting in _DEGREES.items()}
    return [(f"--{flags[setting]}", str(getattr(job.plan, setting))) for setting in settings]


def _experts(job: Job) -> list[tuple[str, ...]]:
    plan = job.plan
    has_experts = plan.ep > 1 or plan.etp > 1 or (job.network is not None and job.network.experts > 0)
    has_experts |= job.other is not None and any(words[0] == "--num-experts" for words in job.other.arguments)
    if not has_experts:
        return []
    # Written even where it is 1: left out, it follows the tensor parallel size.
    return [*_degrees(job, "ep", "etp"), ("--moe-token-dispatcher-type", "alltoall")]  # what the cost model prices


def _pipeline(job: Job) -> list[tuple[str, ...]]:
    plan = job.plan
    if plan.pp == 1:
        return []
    group = int(group_size(plan.num_micro_batches, plan.pp))
    layout = "" if is_even_layout(job.blocks) else layout_text(job.blocks)
    return given(
        {
            ("--pipeline-model-parallel-layout", layout): layout != "",
            # Implied by a layout, which refuses it.
            ("--num-virtual-stages-per-pipeline-rank", str(plan.vpp)): plan.vpp > 1 and not layout,
            ("--overlap-moe-expert-parallel-comm",): plan.schedule == "combined_1f1b",
            ("--microbatch-group-size-per-virtual-pipeline-stage", str(group)): plan.vpp > 1 and group != plan.pp,
        }
    )


def _zero(job: Job) -> list[tuple[str, ...]]:
    stage, replicas = job.plan.zero_stage, job.plan.dp_replicate
    return given(
        {
            ("--use-megatron-fsdp",): stage >= 2,
            ("--data-parallel-sharding-strategy", STRATEGIES[stage]): stage >= 2,
            ("--use-distributed-optimizer",): stage >= 1,
            ("--ckpt-format", "fsdp_dtensor"): stage >= 2,
            ("--num-distributed-optimizer-instances", str(replicas)): stage >= 1 and replicas > 1,
            ("--overlap-grad-reduce",): stage >= 1 or job.plan.dp > 1,
            ("--overlap-param-gather",): stage >= 1,
        }
    )


def _memory(job: Job) -> list[tuple[str, ...]]:
    plan, recompute = job.plan, recompute_of(job)
    return given(
        {
            ("--recompute-granularity", recompute.granularity): recompute.granularity != "",
            ("--recompute-modules", *recompute.modules): recompute.granularity == "selective",
            ("--recompute-method", recompute.method): recompute.granularity == "full",
            ("--recompute-num-layers", str(recompute.num_layers)): recompute.granularity == "full",
            ("--optimizer-cpu-offload",): plan.offload_optimizer,
            ("--optimizer-offload-fraction", "1.0"): plan.offload_optimizer,
            # Asserted beside it, and needs the distributed optimizer.
            ("--use-precision-aware-optimizer",): plan.offload_optimizer,
            ("--use-distributed-optimizer",): plan.offload_optimizer and not plan.zero_stage,
        }
    )


# Recipe -> arguments beside --bf16 (megatron/training/arguments.py, --fp8-recipe and --fp4-recipe).
_RECIPES: dict[str, tuple[tuple[str, ...], ...]] = {
    "fp8-delayed": (("--fp8-format", "hybrid"), ("--fp8-recipe", "delayed")),
    "fp8-tensorwise": (("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    "fp8-blockwise": (("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")),
    "mxfp8": (("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "nvfp4": (("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}


def _recipe_arguments(job: Job, account: Account) -> list[tuple[str, ...]]:
    is_narrow = job.precision in _RECIPES and not PRECISIONS[job.precision].wide_weights
    is_kept = is_narrow and job.plan.zero_stage > 0  # by the distributed optimizer alone
    if is_narrow and not is_kept:
        account.left_to_user(
            "precision",
            "weights are kept in fp8 with the distributed optimizer (ZeRO) only: without it, beside a copy in bf16",
        )
    gathered = {
        ("--fp8-param-gather",): is_kept,
        ("--reuse-grad-buf-for-mxfp8-param-ag",): is_kept and job.precision == "mxfp8",
    }
    return [*_RECIPES.get(job.precision, ()), *given(gathered)]


def _moments(job: Job, account: Account) -> list[tuple[str, ...]]:
    """Format of Adam's moments, which the distributed optimizer keeps narrower than 32 bits."""
    if job.optimizer == "adam-bf16" and job.plan.zero_stage:
        return [("--use-precision-aware-optimizer",), ("--exp-avg-dtype", "bf16"), ("--exp-avg-sq-dtype", "bf16")]
    if job.optimizer != "adam":
        what = "keeps moments in bf16 with the distributed optimizer (ZeRO) only, and in no fewer bits"
        account.impossible("optimizer", f"Megatron-LM {what}; adam is written, which takes more memory")
    return []


def _run_arguments(job: Job, account: Account) -> list[tuple[str, ...]]:
    plain = PRECISIONS[job.precision].plain.name
    if job.precision == "tf32":
        account.left_to_user(
            "precision", "torch.set_float32_matmul_precision('high') before training; there is no argument for it"
        )
    is_adam = OPTIMIZERS[job.optimizer].rule == "adam"
    sgd = ("--optimizer", "sgd", "--sgd-momentum", "0.9" if job.optimizer == "momentum" else "0.0")
    length = {
        ("--seq-length", str(job.seq)): job.seq is not None,
        ("--max-position-embeddings", str(job.seq)): job.seq is not None,
    }
    return [
        *given({(f"--{plain}",): plain in ("fp16", "bf16")}),
        *_recipe_arguments(job, account),
        *([("--optimizer", "adam"), *_moments(job, account)] if is_adam else [sgd]),
        *given(length),
    ]


def _model_arguments(network: NetworkSizes) -> list[tuple[str, ...]]:
    has_experts = network.experts > 0
    optional = {
        ("--group-query-attention", "--num-query-groups", str(network.kv_heads)): network.kv_heads != network.heads,
        ("--swiglu",): network.has_glu and network.function == "silu",
        ("--disable-bias-linear",): not network.has_bias,
        ("--untie-embeddings-and-output-weights",): not network.is_tied,
        ("--num-experts", str(network.experts)): has_experts,
        ("--moe-router-topk", str(network.top_k)): has_experts,
        ("--moe-ffn-hidden-size", str(network.ffn)): has_experts,
        ("--moe-grouped-gemm",): has_experts,
        ("--moe-shared-expert-intermediate-size", str(network.shared_ffn)): has_experts and network.shared_ffn > 0,
    }
    return [
        ("--num-layers", str(network.layers)),
        ("--hidden-size", str(network.hidden)),
        ("--num-attention-heads", str(network.heads)),
        ("--kv-channels", str(network.head_dim)),
        ("--ffn-hidden-size", str(network.ffn)),
        ("--vocab-size", str(network.vocabulary)),
        ("--normalization", network.norm),
        ("--position-embedding-type", "learned_absolute" if network.has_positions else "rope"),
        *given(optional),
    ]


# -- runs of it: arguments as they stand in a launch script or a plain list --------------------------------------------------


# Read here, but other programs have them, too: alone they make no Megatron script.
NOT_MEGATRON = frozenset(
    {"nnodes", "nproc-per-node", "bf16", "fp16", "optimizer", "sgd-momentum", "num-layers", "hidden-size"}
)

# Beginnings of flags that change neither the work of a step nor what is stored: data, tokenizer, checkpoints, logs, evaluation, rates,
# launchers (torchrun, srun).
_WITHOUT_EFFECT = (
    "adam-", "attention-dropout", "auto-detect-ckpt", "bert-", "ckpt-", "clip-grad", "cpus-per-task", "data-", "dataloader-", "dist-ckpt",
    "distributed-backend", "distributed-timeout", "end-weight-decay", "eod-", "eval-", "exit-", "export", "finetune", "gpus", "gres",
    "hidden-dropout", "init-", "job-name", "legacy-tokenizer", "load", "local-rank", "log-", "loss-scale", "lr", "make-vocab", "master-",
    "max-position-embeddings", "merge-file", "min-lr", "min-loss-scale", "mmap", "mock-data", "no-load", "no-mmap", "no-save", "node-rank",
    "nodelist", "nodes", "norm-epsilon", "ntasks", "num-workers", "output", "override-opt", "per-split", "profile", "rdzv", "rerun-mode",
    "rotary-", "save", "seed", "slurm", "split", "standalone", "start-weight-decay", "te-rng", "tensorboard", "test-data", "timing-",
    "tokenizer-", "train-", "use-checkpoint", "use-rotary", "valid-data", "vocab-", "wandb", "weight-decay",
)  # fmt: skip
# Describe the network, which MODEL does; or what the cost model takes for granted (overlap of gradients, grouped kernels, ...).
_OF_THE_PLAN = frozenset(
    {
        "activation-func", "add-qkv-bias", "apply-layernorm-1p", "attention-backend", "disable-bias-linear", "group-query-attention",
        "make-vocab-size-divisible-by", "moe-aux-loss-coeff", "moe-grouped-gemm", "moe-router-load-balancing-type",
        "moe-token-dispatcher-type", "normalization", "optimizer-offload-fraction", "overlap-grad-reduce", "overlap-param-gather",
        "position-embedding-type", "recompute-modules", "sequence-length", "squared-relu", "swiglu", "transformer-impl",
        "untie-embeddings-and-output-weights", "use-flash-attn", "use-mcore-models", "use-precision-aware-optimizer",
    }
)  # fmt: skip
# Megatron's own flags that a letter or two tell from one that is read.
_LOOK_ALIKE: frozenset[str] = frozenset({"fp4-param"})
# Shorter names are near too much; a beginning of this length is an abbreviation, which argparse takes.
_SHORTEST = 8
# Two letters of a flag of twenty.
_NEAR = 0.9


def is_without_effect(name: str) -> bool:
    """Whether a flag leaves the prediction as it is.

    >>> is_without_effect("lr-decay-style"), is_without_effect("tp-comm-overlap")
    (True, False)
    """
    return name in _OF_THE_PLAN or name.startswith(_WITHOUT_EFFECT)


def meant(name: str, known: Iterable[str]) -> str | None:
    """The known flag that a name misspells or abbreviates, if any; names without dashes in front.

    >>> meant("tensor-model-paralel-size", ["tensor-model-parallel-size"])
    'tensor-model-parallel-size'
    >>> meant("tp-comm-overlap", ["cp-comm-type"]) is None
    True
    """
    if len(name) < _SHORTEST or name in _LOOK_ALIKE or is_without_effect(name):
        return None
    names = sorted(known)
    close = [candidate for candidate in names if candidate.startswith(name)]
    close = close or difflib.get_close_matches(name[:200], names, n=1, cutoff=_NEAR)
    return min(close, key=len) if close else None


_NUMBERS = {*_DEGREES, *_NETWORK, "global-batch-size", "seq-length", "nnodes", "nproc-per-node", "recompute-num-layers",
            "num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage",
            "microbatch-group-size-per-virtual-pipeline-stage",
            "num-distributed-optimizer-instances"}  # fmt: skip
_WORDS = {"cp-comm-type", "recompute-granularity", "recompute-method", "data-parallel-sharding-strategy", "optimizer",
          "exp-avg-dtype", "exp-avg-sq-dtype", "fp8-format", "fp8-recipe", "fp4-format", "fp4-recipe",
          "pipeline-model-parallel-layout", "sgd-momentum"}  # fmt: skip
_FLAGS = {"sequence-parallel", "use-distributed-optimizer", "use-megatron-fsdp", "use-torch-fsdp2", "recompute-activations",
          "optimizer-cpu-offload", "use-tp-pp-dp-mapping", "overlap-moe-expert-parallel-comm", "bf16", "fp16"}  # fmt: skip
# What is read.
ARGUMENTS = _NUMBERS | _WORDS | _FLAGS


def read(path: Path, text: str, part: str = "") -> Run:  # noqa: ARG001 - only Python has parts
    """Read a run from the text of a script."""
    found, left_out = _settings(path, text)
    run = run_of(found)
    if left_out:
        run.notes.append(
            f"not modelled, so the prediction leaves it out: {', '.join(f'--{name}' for name in left_out)}"
        )
    return run


def run_of(found: Settings) -> Run:
    """The run that Megatron's arguments start, by their names without dashes in front; other programs on Megatron Core share it.

    Raises
    ------
    InputFileError
        A value that cannot be.
    """
    numbers = {name: number for name in sorted(_NUMBERS) if (number := found.number(name)) is not None}
    run = Run()
    run.mesh |= {option: str(numbers[flag]) for flag, option in _DEGREES.items() if flag in numbers}
    if "expert-model-parallel-size" in found and "expert-tensor-parallel-size" not in found:
        run.mesh["etp"] = str(numbers.get("tensor-model-parallel-size", 1))  # Megatron's default
    counts = {"global-batch-size": "batch", "seq-length": "seq"}
    run.options |= {option: str(numbers[flag]) for flag, option in counts.items() if flag in numbers}
    if "nproc-per-node" in numbers:
        run.options["gpus"] = str(numbers["nproc-per-node"] * numbers.get("nnodes", 1))
    stated = {
        "cp_kind": found.word("cp-comm-type", {written: kind for kind, written in CP_COMM.items()}),
        "order": "tp-cp-pp-dp" if "use-tp-pp-dp-mapping" in found else None,
    }
    run.mesh["sequence_parallel"] = "sequence-parallel" in found
    run.mesh |= {name: word for name, word in stated.items() if word is not None}
    _pipeline_of_run(found, numbers, run)
    _zero_of_run(found, numbers, run)
    _memory_of_run(found, numbers, run)
    run.network = {found.of[flag].name: (size, numbers[flag]) for flag, size in _NETWORK.items() if flag in numbers}
    return run


def _settings(path: Path, text: str) -> tuple[Settings, list[str]]:
    """Known flags (the last one counts, as in argparse); the flags that are not modelled."""
    words, values = words_of(path, text)
    found = Settings(path=path)
    others: dict[str, Setting] = {}
    for i, word in enumerate(words):
        if not word.text.startswith("--") or len(word.text) < 3:
            continue
        name, equals, value = word.text[2:].rstrip(")").partition("=")
        name = name.replace("_", "-")
        setting = Setting(name=f"--{name}", value="", line=word.line, column=word.column)
        if name in _FLAGS:
            found.of[name] = setting
        elif name in _NUMBERS or name in _WORDS:
            raw = value if equals else (words[i + 1].text.rstrip(")") if i + 1 < len(words) else "")
            found.of[name] = resolved(replace(setting, value=raw), values, path)
        else:
            others[name] = setting
    misspelt = {name: near for name in others if (near := meant(name, ARGUMENTS))}
    if misspelt:
        raise InputFileError(
            [others[name].problem(path, f"is not known; did you mean '--{near}'?") for name, near in misspelt.items()]
        )
    if not found.of.keys() - NOT_MEGATRON:
        raise problem(path, "no Megatron arguments in it (such as --tensor-model-parallel-size, --micro-batch-size)")
    return found, [name for name in others if not is_without_effect(name)]


def _pipeline_of_run(found: Settings, numbers: dict[str, int], run: Run) -> None:
    pp = numbers.get("pipeline-model-parallel-size", 1)
    vpp = numbers.get("num-virtual-stages-per-pipeline-rank", 1)
    per_stage = numbers.get("num-layers-per-virtual-pipeline-stage")
    if per_stage is not None:
        layers = numbers.get("num-layers")
        if layers is None or layers % (pp * per_stage):
            raise found.problem("num-layers-per-virtual-pipeline-stage", "needs --num-layers that pp x it divides")
        vpp = layers // (pp * per_stage)
    if "pipeline-model-parallel-layout" in found:
        blocks = _blocks(str(found.value("pipeline-model-parallel-layout")))
        vpp = len(blocks) // pp
        if min(blocks) > 0:
            run.stages = " ".join(str(count) for count in blocks)
        else:
            run.notes.append(
                "--pipeline-model-parallel-layout: has stages without blocks; they are laid out as the planner balances them"
            )
    elif pp > 1:
        run.stages = "equal"  # Megatron's default: as many layers on every chunk
    together = "overlap-moe-expert-parallel-comm" in found
    if together and (pp == 1 or vpp == 1):
        run.notes.append(
            "--overlap-moe-expert-parallel-comm: counts beside interleaved chunks only; else --assume ep_overlap=1 says it"
        )
    if pp > 1 and vpp > 1:
        run.mesh |= {"vpp": str(vpp), "schedule": "combined_1f1b" if together else "interleaved"}
        if numbers.get("microbatch-group-size-per-virtual-pipeline-stage", pp) > pp:
            run.notes.append(
                "--microbatch-group-size-per-virtual-pipeline-stage: predicted with the smallest groups that Megatron-LM takes, which "
                "keep the fewest activations"
            )


_LONGEST_LAYOUT = 20_000  # characters; a letter is a layer


def _blocks(layout: str) -> list[int]:
    """Decoder layers of every chunk of a layout, repeats counted.

    >>> _blocks("Et*3|(tt|)*2tL"), _blocks("Ett|ttL")
    ([3, 2, 2, 1], [2, 2])
    """
    for repeated in (r"\(([^()]*)\)\*([0-9]{1,3})", r"([A-Za-z])\*([0-9]{1,3})"):
        layout = re.sub(repeated, lambda match: match[1] * int(match[2]), layout[:_LONGEST_LAYOUT])
    return [chunk.count("t") for chunk in layout.split("|")]


def _zero_of_run(found: Settings, numbers: dict[str, int], run: Run) -> None:
    stage = 0
    if "use-megatron-fsdp" in found:
        known = {name: str(number) for number, name in enumerate(STRATEGIES)}
        stage = int(found.word("data-parallel-sharding-strategy", known) or 0)
    elif "use-torch-fsdp2" in found:
        stage = 3
    elif "use-distributed-optimizer" in found:
        stage = 1
    run.mesh["zero"] = str(stage)
    instances = numbers.get("num-distributed-optimizer-instances", 1)
    if stage and instances > 1:
        run.mesh["dp_replicate"] = str(instances)


def _memory_of_run(found: Settings, numbers: dict[str, int], run: Run) -> None:
    usual = "selective" if "recompute-activations" in found else "none"
    granularity = found.word("recompute-granularity", {"selective": "selective", "full": "full"}, usual)
    run.mesh["recompute"] = granularity
    if granularity == "full" and found.value("recompute-method") == "block" and "recompute-num-layers" in numbers:
        run.mesh["recompute_blocks"] = str(numbers["recompute-num-layers"])
    elif granularity == "full":
        run.notes.append("--recompute-method uniform: every block is recomputed by itself, not in groups")
    if "optimizer-cpu-offload" in found:
        run.mesh["offload"] = "optimizer"
    recipe = {
        "fp8-format": str(found.value("fp8-recipe", "delayed")),
        "fp4-format": str(found.value("fp4-recipe", "nvfp4")),
    }
    narrow = next((word for flag, word in recipe.items() if flag in found), None)
    precision = next((name for name in ("bf16", "fp16") if name in found), "fp32")
    if narrow is not None and (known := precision_called(narrow)) is None:
        flag = "fp8-recipe" if "fp8-format" in found else "fp4-recipe"
        raise found.problem(flag, f"is '{narrow}'; known: delayed, tensorwise, blockwise, mxfp8, nvfp4")
    run.options["precision"] = precision if narrow is None else str(known)
    optimizer = str(found.value("optimizer", "adam"))
    if optimizer == "sgd":
        run.options["optimizer"] = "sgd" if str(found.value("sgd-momentum")) in ("0", "0.0") else "momentum"
    elif optimizer == "adam":
        run.options["optimizer"] = "adam-bf16" if found.value("exp-avg-dtype") == "bf16" else "adam"
    else:
        run.notes.append(f"--optimizer {optimizer}: is not known to the cost model; the network's usual one is taken")
