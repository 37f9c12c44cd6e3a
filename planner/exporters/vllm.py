"""vLLM: `vllm serve` for an inference plan.

Three ways to start, by what the experts and the nodes allow:

- replicas that fit in a node share one server and its endpoint (``--data-parallel-size``), on a node or several; with experts only those
  that keep one set of experts together do, since a server spreads its experts over all of its ranks;
- a replica larger than a node is a server of its own (``--nnodes``);
- several servers are started side by side where more than one fits in a node.
"""

from __future__ import annotations

from costmodel.precision import PRECISIONS
from costmodel.serving.plan import POOL_SETTINGS
from planner.exporters.account import Account
from planner.exporters.common import account_placement, given, header
from planner.exporters.job import ServingJob
from planner.exporters.shell import comment, shell_array, slurm_script

TITLE = "vLLM"
SUMMARY = "serve.sh, serve.slurm (inference plans)"
VERSIONS = {"2026-08": "vLLM, its documentation of August 2026 (engine arguments, data parallel deployment)"}
FRAMEWORK = "vllm"
TAKES = frozenset({"serving"})
SCRIPT, BATCH = "serve.sh", "serve.slurm"
FIELDS = {
    "tp": "--tensor-parallel-size",
    "pp": "--pipeline-parallel-size",
    "ep": "--enable-expert-parallel: all ranks of a server (tp x dp); -: other sizes",
    "etp": "without --enable-expert-parallel: all ranks of a server; -: other sizes",
    "dp": "--data-parallel-size, or servers of their own",
    "max_batch": "--max-num-seqs",
    "prefill_chunk": "--max-num-batched-tokens; -: whole prompts in passes of their own",
    "prefill_batch": "--max-num-batched-tokens",
    **dict.fromkeys(POOL_SETTINGS, "-: no plan whose prompts are read by workers of their own"),
    "precision": "--dtype, --quantization fp8",
    "kv_precision": "--kv-cache-dtype; -: another 16-bit or 32-bit format than the weights'",
    "prompt_tokens": "--max-model-len, with output_tokens",
    "output_tokens": "--max-model-len, with prompt_tokens",
    "memory_utilisation": "--gpu-memory-utilization",
    "stages": "VLLM_PP_LAYER_PARTITION",
    "placement": "nodes and devices of a server",
}
_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
# Recipe -> --quantization; empty: the checkpoint says it.
_QUANTIZATION = {
    **dict.fromkeys(("fp8", "fp8-delayed", "fp8-tensorwise", "fp8-rowwise"), "fp8"),
    "mxfp8": "modelopt_mxfp8",
    "nvfp4": "modelopt_fp4",
    "w4a16-mxfp4": "mxfp4",
}


def _replicas_per_server(job: ServingJob) -> int:
    """Replicas behind one endpoint: all of them, or those that keep one set of experts together."""
    plan = job.plan
    return max(plan.ep * plan.etp // plan.tp, 1) if job.has_experts else plan.dp


def _replica_devices(job: ServingJob) -> int:
    return job.plan.tp * job.plan.pp


def refusals(job: ServingJob, version: str) -> list[str]:  # noqa: ARG001 - the same for all versions
    """Deployments that vLLM cannot start."""
    if job.plan.prefill_dp:
        return ["prompts read by workers of their own: no servers of two kinds and no proxy between them are written"]
    problems, capacity = [], job.nodes.capacity
    devices = _replica_devices(job)
    server = devices * _replicas_per_server(job)
    if job.has_experts and server > devices > capacity:
        problems.append(
            f"experts shared by replicas of {devices} devices each: replicas of one server fit in a node of {capacity}"
        )
    elif job.has_experts and capacity < server < job.plan.workers and server % capacity:
        problems.append(
            f"experts shared by {server} devices: servers of their own do not fill whole nodes of {capacity}"
        )
    if devices > capacity and devices % capacity:
        problems.append(f"a replica of {devices} devices does not fill whole nodes of {capacity}")
    if devices < capacity and job.plan.dp > 1 and capacity % devices and job.plan.workers > capacity:
        problems.append(
            f"replicas of {devices} devices do not fill nodes of {capacity}: a replica would lie across two nodes"
        )
    return problems


def render(job: ServingJob, account: Account, version: str) -> dict[str, str]:
    """Write the scripts."""
    arguments = _arguments(job, account)
    account_placement(job.nodes, account)
    start = _deployment(job, account)
    head = header(job.origin, account, VERSIONS[version])
    lines = [
        "#!/usr/bin/env bash",
        *comment(head),
        "set -euo pipefail",
        "",
        'model="${MODEL:?set MODEL to the name or folder of the weights}"',
        *([f"export VLLM_PP_LAYER_PARTITION={','.join(map(str, job.stages))}"] if job.plan.pp > 1 else []),
        "",
        *shell_array("ARGS", arguments),
        "",
        *start,
    ]
    return {
        SCRIPT: "\n".join(lines) + "\n",
        BATCH: slurm_script(head[:3], job.nodes, job.origin.model, SCRIPT),
    }


def _arguments(job: ServingJob, account: Account) -> list[tuple[str, ...]]:
    plan = job.plan
    length = job.prompt_tokens + job.output_tokens
    account.left_to_user(
        "max_model_len", f"the plan knows mean lengths only: raise --max-model-len {length} to your longest request"
    )
    if job.precision == "nf4":  # announced in vllm-project/vllm issue 39583
        account.impossible("precision", "vLLM 0.33 reads no nf4; earlier releases take --quantization bitsandbytes")
    elif job.precision not in _QUANTIZATION and PRECISIONS[job.precision].kind == "narrow":
        account.left_to_user(
            "precision", f"name a checkpoint whose weights are in {job.precision}: vLLM reads that from it"
        )
    if job.precision == "tf32":
        account.left_to_user("precision", "let matrices be computed in tf32: no argument does")
    dtype = _DTYPES[PRECISIONS[job.precision].plain.name]
    is_fp8, is_as_weights = job.kv_precision == "fp8", _DTYPES.get(job.kv_precision) == dtype
    if not is_fp8 and not is_as_weights:
        account.impossible("kv_precision", f"the cache has the format of --dtype or fp8, not {job.kv_precision}")
    formats = {
        ("--quantization", _QUANTIZATION.get(job.precision, "")): job.precision in _QUANTIZATION,
        ("--kv-cache-dtype", "fp8" if is_fp8 else "auto"): is_fp8 or is_as_weights,
    }
    return [
        ("--tensor-parallel-size", str(plan.tp)),
        ("--pipeline-parallel-size", str(plan.pp)),
        ("--max-num-seqs", str(plan.max_batch)),
        ("--max-model-len", str(length)),
        ("--gpu-memory-utilization", f"{job.memory_utilisation:g}"),
        ("--dtype", dtype),
        *given(formats),
        *_prefill(job, account, length),
    ]


def _prefill(job: ServingJob, account: Account, length: int) -> list[tuple[str, ...]]:
    plan = job.plan
    if plan.prefill_chunk:
        # The budget of a pass counts the tokens that are decoded in it, too, and is no less than --max-num-seqs (SchedulerConfig).
        budget = max(plan.prefill_chunk * plan.prefill_batch + plan.group_batch, plan.max_batch)
        return [("--enable-chunked-prefill",), ("--max-num-batched-tokens", str(budget))]
    account.impossible(
        "prefill_chunk",
        "vLLM adds decoded tokens to the passes that read prompts; whole prompts are written, mixed with them",
    )
    # At least the longest request and one token per sequence, or vLLM refuses.
    budget = max(plan.prefill_batch * job.prompt_tokens, length, plan.max_batch)
    return [("--no-enable-chunked-prefill",), ("--max-num-batched-tokens", str(budget))]


def _experts(job: ServingJob, account: Account, ranks: int) -> list[str]:
    """Experts lie on all ranks of a server: whole ones with expert parallelism, slices of each without."""
    plan = job.plan
    if not job.has_experts:
        return []
    is_expert_parallel = plan.ep > 1
    wanted = (plan.ep, plan.etp)
    written = (ranks, 1) if is_expert_parallel else (1, ranks)
    if wanted != written:
        account.impossible(
            "etp" if is_expert_parallel and plan.etp > 1 else "ep",
            f"a server of {ranks} ranks has ep {written[0]} and etp {written[1]}, not ep {plan.ep} and etp {plan.etp}",
        )
    return ["ARGS+=(--enable-expert-parallel)"] if is_expert_parallel else []


def _deployment(job: ServingJob, account: Account) -> list[str]:
    plan, devices, capacity = job.plan, _replica_devices(job), job.nodes.capacity
    if devices > capacity:
        return [*_experts(job, account, plan.tp), *_over_nodes(job, devices // capacity)]
    replicas = _replicas_per_server(job)
    experts = _experts(job, account, plan.tp * replicas)
    if replicas < plan.dp and replicas * devices <= job.nodes.per_node:
        return [*experts, *_own_servers(job, replicas)]
    return [*experts, *_one_server(job, replicas)]


def _one_server(job: ServingJob, replicas: int) -> list[str]:
    """Replicas behind one endpoint, on a node or over several; with several such servers, nodes in a row are one."""
    nodes, devices = job.nodes, _replica_devices(job)
    if replicas == 1:
        return ['exec vllm serve "$model" "${ARGS[@]}" "$@"']
    if nodes.count == 1:
        return [f'exec vllm serve "$model" "${{ARGS[@]}}" --data-parallel-size {replicas} "$@"']
    here = nodes.per_node // devices
    nodes_each = replicas // here
    return [
        *_node_of_server(nodes_each, several=nodes_each < nodes.count),
        "ARGS+=(",
        f"  --data-parallel-size {replicas}",
        f"  --data-parallel-size-local {here}",
        '  --data-parallel-address "$head"',
        '  --data-parallel-rpc-port "${MASTER_PORT:-13345}"',
        ")",
        'if [[ "$rank" -gt 0 ]]; then',
        f"  ARGS+=(--headless --data-parallel-start-rank $((rank * {here})))",
        "fi",
        'exec vllm serve "$model" "${ARGS[@]}" "$@"',
    ]


def _node_of_server(nodes_each: int, *, several: bool) -> list[str]:
    """Bash lines that set rank, the number of this node in its server, and head, the address of the server's first node."""
    first = "this server" if several else "the server"
    variable = "SERVER_ADDR" if several else "MASTER_ADDR"
    return [
        f"# Started on every node; {nodes_each} nodes in a row are one server, whose first node has the endpoint.",
        'node="${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK to the number of this node}}"',
        f'head="${{{variable}:?set {variable} to the address of the first node of {first}}}"',
        f"rank=$((node % {nodes_each}))",
    ]


def _over_nodes(job: ServingJob, nodes_each: int) -> list[str]:
    """Every replica over several nodes, each with an endpoint of its own."""
    return [
        *_node_of_server(nodes_each, several=job.plan.dp > 1),
        "ARGS+=(",
        "  --distributed-executor-backend mp",
        f"  --nnodes {nodes_each}",
        '  --node-rank "$rank"',
        '  --master-addr "$head"',
        ")",
        'if [[ "$rank" -gt 0 ]]; then',
        "  ARGS+=(--headless)",
        "fi",
        'exec vllm serve "$model" "${ARGS[@]}" "$@"',
    ]


def _own_servers(job: ServingJob, replicas: int) -> list[str]:
    """Several servers on a node, each with its devices, port and experts."""
    devices = _replica_devices(job) * replicas
    shared = ""
    if replicas > 1:
        shared = f' --data-parallel-size {replicas} --data-parallel-rpc-port $(("${{RPC_PORT:-13345}}" + i))'
    return [
        "# Started on every node: its servers, on ports from PORT on; put a load balancer in front.",
        "pids=()",
        'stop() { kill "${pids[@]}" 2>/dev/null || true; }',
        "trap stop EXIT",
        f"for ((i = 0; i < {job.nodes.per_node // devices}; i++)); do",
        f"  first=$((i * {devices}))",
        f'  CUDA_VISIBLE_DEVICES="$(seq -s , "$first" $((first + {devices - 1})))" \\',
        f'    vllm serve "$model" "${{ARGS[@]}}" --port $(("${{PORT:-8000}}" + i)){shared} "$@" &',
        '  pids+=("$!")',
        "done",
        "wait -n  # the first that ends takes the others with it",
    ]
