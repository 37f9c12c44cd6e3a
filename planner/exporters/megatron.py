"""Megatron-LM: arguments of pretrain_gpt.py (pretrain_bert.py, pretrain_t5.py) in a bash script.

Most flags are generated from dataclasses (megatron/training/argument_utils.py); the environment is checked at the start, so it belongs
to the export: CUDA_DEVICE_MAX_CONNECTIONS must be 1 with tensor or context parallelism before Blackwell, and must not be with FSDP.
"""

from __future__ import annotations

from planner.exporters.account import Account
from planner.exporters.common import SPLITS, account_basics, account_order, header, is_even_layout
from planner.exporters.job import Job
from planner.exporters.megatron_parts import (
    CP_COMM,
    ORDERS,
    account_schedule,
    layout_text,
    megatron_refusals,
    recompute_of,
)
from planner.exporters.network import NetworkSizes
from planner.exporters.shell import shell_array, start_scripts

TITLE = "Megatron-LM"
SUMMARY = "arguments of pretrain_gpt.py in train.sh, train.slurm"
VERSIONS = {"2026-08": "Megatron-LM, commit d98e8a64dd of 2026-08-22"}
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
    "schedule": "1f1b, and interleaved by vpp; -: the others",
    "dp_replicate": "implied; --num-distributed-optimizer-instances beside ZeRO",
    "dp_shard": "implied by the number of processes",
    "zero_stage": "--use-distributed-optimizer (1), --use-megatron-fsdp --data-parallel-sharding-strategy (2, 3)",
    "micro_batch": "--micro-batch-size",
    "num_micro_batches": "implied by --global-batch-size",
    "recompute": "--recompute-granularity, --recompute-modules",
    "recompute_blocks": "--recompute-method block --recompute-num-layers",
    "offload_optimizer": "--optimizer-cpu-offload",
    "offload_activations": "-: not by an argument",
    "order": "tp-cp-dp-pp, tp-cp-pp-dp by --use-tp-pp-dp-mapping; -: the others",
    "stage_blocks": "--pipeline-model-parallel-layout where stages are unequal",
    "stage_recompute": "-: unless it is the same number on every stage",
    "block_splits": SPLITS,
    "precision": "--bf16, --fp16, --fp8-format hybrid",
    "optimizer": "--optimizer, --sgd-momentum",
    "seq": "--seq-length, --max-position-embeddings",
    "lora_rank": "-: Megatron-LM trains whole networks",
    "placement": "processes per node of the launcher",
}
_OFFLOAD = (
    "Megatron-LM has no argument that moves saved activations to the host; they stay on the device, which may not fit"
)


def refusals(job: Job, version: str) -> list[str]:  # noqa: ARG001 - the same for all versions
    """Combinations that megatron/training/arguments.py asserts against."""
    problems, other = megatron_refusals(job), job.other
    if other is not None and other.kind != "decoder" and not other.arguments:
        problems.append(
            f"network {job.origin.model} ({other.kind}): Megatron-LM has no program that its arguments describe it to"
        )
    if other is not None and other.kind == "encoder-decoder" and job.plan.pp > 1:
        problems.append(f"pp {job.plan.pp} with network {job.origin.model}: pretrain_t5.py takes no pipelines")
    return problems


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
    return start_scripts(job, head, environment=_environment(job), settings=settings, command=command)


def _environment(job: Job) -> dict[str, str]:
    plan = job.plan
    if plan.zero_stage >= 2:
        return {"CUDA_DEVICE_MAX_CONNECTIONS": ""}  # FSDP asserts that it is not 1
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if plan.tp > 1 or plan.cp > 1 else {}


def _plan_arguments(job: Job, account: Account) -> list[tuple[str, ...]]:
    plan = job.plan
    account_basics(job, account)
    arguments: list[tuple[str, ...]] = [
        ("--tensor-model-parallel-size", str(plan.tp)),
        ("--pipeline-model-parallel-size", str(plan.pp)),
        ("--context-parallel-size", str(plan.cp)),
        ("--micro-batch-size", str(plan.micro_batch)),
        ("--global-batch-size", str(plan.global_batch)),
    ]
    for field in ("tp", "pp", "cp", "micro_batch", "num_micro_batches", "dp_shard", "dp_replicate"):
        account.note(field, FIELDS[field])
    if plan.sequence_parallel:
        arguments.append(("--sequence-parallel",))
        account.note("sequence_parallel", "--sequence-parallel")
    if plan.cp > 1:
        arguments.append(("--cp-comm-type", CP_COMM[plan.cp_kind]))
        account.note("cp_kind", "--cp-comm-type")
    if account_order(job, account, dict.fromkeys(ORDERS, FIELDS["order"]), "tp-cp-dp-pp") == "tp-cp-pp-dp":
        arguments.append(("--use-tp-pp-dp-mapping",))
    arguments += _experts(job, account)
    arguments += _pipeline(job, account)
    arguments += _zero(job, account)
    arguments += _memory(job, account)
    return arguments + _run_arguments(job, account)


def _experts(job: Job, account: Account) -> list[tuple[str, ...]]:
    plan = job.plan
    has_experts = plan.ep > 1 or plan.etp > 1 or (job.network is not None and job.network.experts > 0)
    has_experts |= job.other is not None and any(words[0] == "--num-experts" for words in job.other.arguments)
    if not has_experts:
        return []
    account.note("ep", FIELDS["ep"])
    account.note("etp", FIELDS["etp"])
    # Written even where it is 1: left out, it follows the tensor parallel size.
    arguments = [("--expert-model-parallel-size", str(plan.ep)), ("--expert-tensor-parallel-size", str(plan.etp))]
    return [*arguments, ("--moe-token-dispatcher-type", "alltoall")]  # what the cost model prices


def _pipeline(job: Job, account: Account) -> list[tuple[str, ...]]:
    plan = job.plan
    if plan.pp == 1:
        return []
    account_schedule(job, account, FIELDS["schedule"])
    account.note("vpp", FIELDS["vpp"])
    account.note("stage_blocks", FIELDS["stage_blocks"])
    if not is_even_layout(job.blocks):
        return [("--pipeline-model-parallel-layout", layout_text(job.blocks))]  # implies vpp; both flags are refused
    return [("--num-virtual-stages-per-pipeline-rank", str(plan.vpp))] if plan.vpp > 1 else []


def _zero(job: Job, account: Account) -> list[tuple[str, ...]]:
    plan = job.plan
    if not plan.zero_stage:
        return [("--overlap-grad-reduce",)] if plan.dp > 1 else []
    account.note("zero_stage", FIELDS["zero_stage"])
    if plan.zero_stage == 1:
        arguments: list[tuple[str, ...]] = [("--use-distributed-optimizer",)]
    else:
        strategy = "optim_grads" if plan.zero_stage == 2 else "optim_grads_params"
        arguments = [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", strategy),
            ("--use-distributed-optimizer",),
            ("--ckpt-format", "fsdp_dtensor"),
        ]
    if plan.dp_replicate > 1:
        arguments.append(("--num-distributed-optimizer-instances", str(plan.dp_replicate)))
    return [*arguments, ("--overlap-grad-reduce",), ("--overlap-param-gather",)]


def _memory(job: Job, account: Account) -> list[tuple[str, ...]]:
    plan = job.plan
    arguments: list[tuple[str, ...]] = []
    recompute = recompute_of(job, account, FIELDS["recompute"])
    if recompute.granularity == "selective":
        arguments += [("--recompute-granularity", "selective"), ("--recompute-modules", *recompute.modules)]
    elif recompute.granularity:
        arguments += [
            ("--recompute-granularity", "full"),
            ("--recompute-method", recompute.method),
            ("--recompute-num-layers", str(recompute.num_layers)),
        ]
    if plan.offload_optimizer:
        account.note("offload_optimizer", FIELDS["offload_optimizer"])
        arguments += [
            ("--optimizer-cpu-offload",),
            ("--optimizer-offload-fraction", "1.0"),
            ("--use-precision-aware-optimizer",),  # asserted beside it, and needs the distributed optimizer
        ]
        if not plan.zero_stage:
            arguments.append(("--use-distributed-optimizer",))
            if plan.dp > 1:
                account.impossible(
                    "offload_optimizer",
                    "offloading needs the distributed optimizer, so that ZeRO-1 is written beside it",
                )
    if plan.offload_activations:
        account.impossible("offload_activations", _OFFLOAD)
    return arguments


def _run_arguments(job: Job, account: Account) -> list[tuple[str, ...]]:
    precisions: dict[str, list[tuple[str, ...]]] = {
        "fp32": [],
        "tf32": [],
        "fp16": [("--fp16",)],
        "bf16": [("--bf16",)],
        "fp8": [("--bf16",), ("--fp8-format", "hybrid")],
    }
    account.note("precision", FIELDS["precision"])
    if job.precision == "tf32":
        account.left_to_user(
            "precision", "torch.set_float32_matmul_precision('high') before training; there is no argument for it"
        )
    arguments = list(precisions[job.precision])
    account.note("optimizer", FIELDS["optimizer"])
    if job.optimizer == "adam":
        arguments.append(("--optimizer", "adam"))
    else:
        momentum = "0.9" if job.optimizer == "momentum" else "0.0"
        arguments.append(("--optimizer", "sgd", "--sgd-momentum", momentum))
    if job.seq is not None:
        arguments += [("--seq-length", str(job.seq)), ("--max-position-embeddings", str(job.seq))]
        account.note("seq", FIELDS["seq"])
    if job.lora_rank is not None:
        account.impossible(
            "lora_rank", f"Megatron-LM trains whole networks, not adapters (rank {job.lora_rank}); try megatron-bridge"
        )
    return arguments


def _model_arguments(network: NetworkSizes) -> list[tuple[str, ...]]:
    arguments: list[tuple[str, ...]] = [
        ("--num-layers", str(network.layers)),
        ("--hidden-size", str(network.hidden)),
        ("--num-attention-heads", str(network.heads)),
        ("--kv-channels", str(network.head_dim)),
        ("--ffn-hidden-size", str(network.ffn)),
        ("--vocab-size", str(network.vocabulary)),
        ("--normalization", network.norm),
        ("--position-embedding-type", "learned_absolute" if network.has_positions else "rope"),
    ]
    if network.kv_heads != network.heads:
        arguments.append(("--group-query-attention", "--num-query-groups", str(network.kv_heads)))
    if network.has_glu and network.function == "silu":
        arguments.append(("--swiglu",))
    if not network.has_bias:
        arguments.append(("--disable-bias-linear",))
    if not network.is_tied:
        arguments.append(("--untie-embeddings-and-output-weights",))
    if network.experts:
        arguments += [
            ("--num-experts", str(network.experts)),
            ("--moe-router-topk", str(network.top_k)),
            ("--moe-ffn-hidden-size", str(network.ffn)),
            ("--moe-grouped-gemm",),
        ]
        if network.shared_ffn:
            arguments.append(("--moe-shared-expert-intermediate-size", str(network.shared_ffn)))
    return arguments
