"""vLLM: `vllm serve` for an inference plan.

Three ways to start, by what the experts and the nodes allow:

- replicas that fit in a node share one server and its endpoint (``--data-parallel-size``), on a node or several; with experts only those
  that keep one set of experts together do, since a server spreads its experts over all of its ranks;
- a replica larger than a node is a server of its own (``--nnodes``);
- several servers are started side by side where more than one fits in a node.

Workers that read prompts are servers of their own, which hand caches over by NIXL (docs/features/nixl_connector_usage.md), with vLLM's
router in front (github.com/vllm-project/router, README).
"""

from __future__ import annotations

import json

from planner.exporters.account import Account
from planner.exporters.common import account_placement, given, header
from planner.exporters.job import ServingJob
from planner.exporters.kubernetes import DYNAMO, LLM_D, Worker, dynamo, fits_pods, llm_d
from planner.exporters.pools import (
    DECODE,
    PREFILL,
    ROUTER_PORT,
    Place,
    account_pools,
    on_whole_nodes,
    places,
    pools_of,
    start_of_pools,
    uneven_pools,
    url_of,
)
from planner.exporters.serving import (
    FP8,
    NGRAM,
    Benchmark,
    dtype_of,
    is_as_weights,
    length_of,
    load_arguments,
    name_of_drafter,
    node_of_server,
    replicas_that_share,
    scripts,
    server_devices,
    servers_side_by_side,
    spread_of,
    uneven_servers,
    whole_prompts_mixed,
)
from planner.exporters.shell import shell_array

TITLE = "vLLM"
SUMMARY = "serve.sh, serve.slurm, bench.sh, dynamo.yaml, llm-d.yaml (inference plans)"
VERSIONS = {"2026-08": "vLLM, its documentation of August 2026 (engine arguments, data parallel deployment)"}
FRAMEWORK = "vllm"
TAKES = frozenset({"serving"})
FIELDS = {
    "tp": "--tensor-parallel-size",
    "pp": "--pipeline-parallel-size",
    "ep": "--enable-expert-parallel: all ranks of a server (tp x dp); -: other sizes",
    "etp": "without --enable-expert-parallel: all ranks of a server; -: other sizes",
    "dp": "--data-parallel-size, or servers of their own",
    "max_batch": "--max-num-seqs",
    "prefill_chunk": "--max-num-batched-tokens; -: whole prompts in passes of their own",
    "prefill_batch": "--max-num-batched-tokens",
    "draft_tokens": "--speculative-config; by hand: where the weights of a network are that drafts",
    "prefill_dp": "servers of their own, --kv-transfer-config",
    "prefill_tp": "--tensor-parallel-size of these",
    "prefill_pp": "--pipeline-parallel-size of these",
    "prefill_ep": "--enable-expert-parallel of these; -: other sizes",
    "prefill_etp": "without --enable-expert-parallel of these; -: other sizes",
    "precision": "--dtype, --quantization fp8",
    "kv_precision": "--kv-cache-dtype; -: another 16-bit or 32-bit format than the weights'",
    "prompt_tokens": "--max-model-len, with output_tokens",
    "output_tokens": "--max-model-len, with prompt_tokens",
    "prefix_cached": "--enable-prefix-caching; 0: --no-enable-prefix-caching",
    "memory_utilisation": "--gpu-memory-utilization",
    "stages": "VLLM_PP_LAYER_PARTITION",
    "placement": "nodes and devices of a server",
}
# Recipe -> --quantization; empty: the checkpoint says it.
_QUANTIZATION = {
    **dict.fromkeys(FP8, "fp8"),
    "mxfp8": "modelopt_mxfp8",
    "nvfp4": "modelopt_fp4",
    "w4a16-mxfp4": "mxfp4",
}


def _replicas_per_server(job: ServingJob) -> int:
    """Replicas behind one endpoint: all of them, or those that keep one set of experts together."""
    return replicas_that_share(job) if job.has_experts else job.plan.dp


def _replica_devices(job: ServingJob) -> int:
    return job.plan.tp * job.plan.pp


def refusals(job: ServingJob, version: str) -> list[str]:  # noqa: ARG001 - the same for all versions
    """Deployments that vLLM cannot start."""
    problems, capacity = list[str](), job.nodes.capacity
    if job.has_router:
        return _refused_pools(job)
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
    return [*problems, *uneven_servers(job, devices, "replica")]


def render(job: ServingJob, account: Account, version: str) -> dict[str, str]:
    """Write the scripts."""
    if job.has_router:
        return _render_pools(on_whole_nodes(job), account, version)
    arguments = _arguments(job, account)
    account_placement(job.nodes, account)
    start = _deployment(job, account)
    head = header(job.origin, account, VERSIONS[version])
    environment = {"VLLM_PP_LAYER_PARTITION": ",".join(map(str, job.stages))} if job.plan.pp > 1 else {}
    made = scripts(job, head, environment, [*shell_array("ARGS", arguments)], start, _benchmark(job))
    return made | (_manifests(job, head, arguments, environment) if fits_pods(job) else {})


def _manifests(
    job: ServingJob, head: list[str], arguments: list[tuple[str, ...]], environment: dict[str, str]
) -> dict[str, str]:
    """A server per pod; Dynamo's worker is one replica, so that those that share experts are llm-d's alone."""
    words = [word for entry in (*arguments, *_experts(job, Account(), server_devices(job))) for word in entry]
    made = {LLM_D: llm_d(head, [Worker(job, _without_degree(words), environment)])}
    if replicas_that_share(job) == 1:
        made[DYNAMO] = dynamo(job, head, "dynamo.vllm", [Worker(job, ["--model", "${MODEL}", *words], environment)])
    return made


def _without_degree(words: list[str]) -> list[str]:
    """Words without tensor parallelism, which llm-d's chart writes itself."""
    degree = words.index("--tensor-parallel-size")
    return words[:degree] + words[degree + 2 :]


# -- prompts read by servers of their own


_FIRST_PORT, _SIDE_CHANNEL, _RPC_PORT = 8100, 5600, 13345  # as vLLM's documentation has them
_LAUNCH = (
    # Every server of a node needs a side channel of its own; data-parallel ranks take those that follow.
    f'export VLLM_NIXL_SIDE_CHANNEL_HOST="$here" VLLM_NIXL_SIDE_CHANNEL_PORT=$(({_SIDE_CHANNEL} + ${{devices%%,*}}))',
    'CUDA_VISIBLE_DEVICES="$devices" vllm serve "$model" --port "$port" "${args[@]}" "$@" "${rest[@]}" &',
)


def _transfer(role: str) -> tuple[str, str]:
    """How caches are handed over; NIXL does the same for every role (vLLM's documentation)."""
    return "--kv-transfer-config", json.dumps({"kv_connector": "NixlConnector", "kv_role": role})


def _refused_pools(job: ServingJob) -> list[str]:
    problems = uneven_pools(job)
    if max(job.plan.pp, job.plan.prefill_pp) > 1:  # vllm-project/vllm issue 52913
        problems.append(
            "pipelines with prompts read by workers of their own: NixlConnector hands over no caches of pipelines"
        )
    for role, pool in pools_of(job).items():
        if server_devices(pool) > pool.plan.tp > job.nodes.capacity:
            problems.append(f"experts shared by {role} replicas that are larger than a node of {job.nodes.capacity}")
    return problems


def _render_pools(job: ServingJob, account: Account, version: str) -> dict[str, str]:
    """Scripts and manifests of servers that read prompts and servers that decode."""
    pools = pools_of(job)
    arguments = {
        role: [*_arguments(pool, account), *_experts(pool, account, server_devices(pool))]
        for role, pool in pools.items()
    }
    found = places(pools, job.nodes.capacity, apart=bool(job.prefill_device))
    where = account_pools(job, found, account)
    head = header(job.origin, account, VERSIONS[version])
    head.insert(2, where)
    roles = {PREFILL: "kv_producer", DECODE: "kv_consumer"}
    settings = [
        line
        for role, words in arguments.items()
        for line in shell_array(role.upper(), [*words, _transfer(roles[role])])
    ]
    heads = [place for place in found if place.role == PREFILL], [place for place in found if place.role == DECODE]
    router = [
        "vllm-router --vllm-pd-disaggregation --policy round_robin --intra-node-data-parallel-size 1",
        f'--host 0.0.0.0 --port "${{PORT:-{ROUTER_PORT}}}"',
        *(f"--{role} {url_of(place, _FIRST_PORT)}" for role, own in zip(pools, heads, strict=True) for place in own),
    ]
    start = start_of_pools(
        job,
        found,
        port=_FIRST_PORT,
        launch=_LAUNCH,
        more=lambda place, rank: _of_place(pools[place.role], place, rank),
        router=router,
    )
    made = scripts(job, head, {}, settings, start, _benchmark(job)._replace(port=ROUTER_PORT))
    if any(not fits_pods(pool) for pool in pools.values()):
        return made
    words = {
        role: [word for entry in (*own, _transfer("kv_both")) for word in entry] for role, own in arguments.items()
    }
    made[LLM_D] = llm_d(head, [Worker(pool, _without_degree(words[role]), {}) for role, pool in pools.items()])
    if all(replicas_that_share(pool) == 1 for pool in pools.values()):
        workers = [
            Worker(pool, ["--model", "${MODEL}", "--disaggregation-mode", role, *words[role]], {})
            for role, pool in pools.items()
        ]
        made[DYNAMO] = dynamo(job, head, "dynamo.vllm", workers)
    return made


def _of_place(pool: ServingJob, place: Place, rank: int) -> list[str]:
    """Words of one server of a pool: its nodes, and its replicas where they share experts."""
    sharing, several = replicas_that_share(pool), len(place.nodes)
    address = f'"${{nodes[{place.nodes[0]}]}}"'
    follows = ["--headless"] if rank else []
    if sharing > 1:
        here = sharing // several
        over = [f"--data-parallel-size-local {here} --data-parallel-address {address}"] if several > 1 else []
        starts = [f"--data-parallel-start-rank {rank * here}"] if rank else []
        ports = f"--data-parallel-size {sharing} --data-parallel-rpc-port {_RPC_PORT + place.first}"
        return [ports, *over, *follows, *starts]
    if several > 1:
        return [
            f"--distributed-executor-backend mp --nnodes {several} --node-rank {rank} --master-addr {address}",
            *follows,
        ]
    return []


def _benchmark(job: ServingJob) -> Benchmark:
    """`vllm bench serve` (vllm/benchmarks/serve.py): lengths from (1 - ratio) to (1 + ratio) of those named."""
    return Benchmark(
        command="vllm bench serve",
        port=8000,
        arguments=benchmark_arguments(job),
        result=["--save-result", '--result-dir "$results"', "--result-filename bench.json"],
    )


def benchmark_arguments(job: ServingJob) -> list[tuple[str, ...]]:
    """Of vLLM's program and of those that were made from it: prompts begin with the same tokens, so that the cache has them."""
    prefix = [("--random-prefix-len", str(job.cached_tokens))] if job.cached_tokens else []
    return [
        ("--dataset-name", "random"),
        *prefix,
        ("--random-input-len", str(job.new_tokens)),
        ("--random-output-len", str(job.output_tokens)),
        ("--random-range-ratio", f"{spread_of(job):.6g}"),
        *load_arguments(job),
        *_burstiness(job),
        ("--ignore-eos",),
        ("--percentile-metrics", "ttft,tpot,itl,e2el"),
        ("--metric-percentiles", "50,90,99"),
    ]


def _burstiness(job: ServingJob) -> list[tuple[str, ...]]:
    """Shape of the gamma distribution of the times between requests: 1 over the square of their variation."""
    if job.arrivals is None or job.arrivals.variation == 1.0:
        return []
    square = job.arrivals.variation**2
    return [("--burstiness", f"{1.0 / square:.6g}" if square else "inf")]


def _arguments(job: ServingJob, account: Account) -> list[tuple[str, ...]]:
    plan = job.plan
    length = length_of(job, account, "--max-model-len")
    if job.precision == "nf4":  # announced in vllm-project/vllm issue 39583
        account.impossible("precision", "vLLM 0.33 reads no nf4; earlier releases take --quantization bitsandbytes")
    dtype = dtype_of(job, account, _QUANTIZATION, "vLLM")
    is_fp8, is_plain = job.kv_precision == "fp8", is_as_weights(job, dtype)
    if not is_fp8 and not is_plain:
        account.impossible("kv_precision", f"the cache has the format of --dtype or fp8, not {job.kv_precision}")
    formats = {
        ("--quantization", _QUANTIZATION.get(job.precision, "")): job.precision in _QUANTIZATION,
        ("--kv-cache-dtype", "fp8" if is_fp8 else "auto"): is_fp8 or is_plain,
    }
    return [
        ("--tensor-parallel-size", str(plan.tp)),
        ("--pipeline-parallel-size", str(plan.pp)),
        ("--max-num-seqs", str(plan.prefill_batch if job.role == PREFILL else plan.max_batch)),
        ("--max-model-len", str(length)),
        ("--gpu-memory-utilization", f"{job.memory_utilisation:g}"),
        ("--dtype", dtype),
        *given(formats),
        *_prefill(job, account, length),
        *([] if job.prefix_cached is None else [(_CACHING[job.prefix_cached > 0],)]),
        *_drafts(job, account),
    ]


# Engines keep prefixes unless told otherwise: a plan that says nothing of them leaves it at that.
_CACHING = {True: "--enable-prefix-caching", False: "--no-enable-prefix-caching"}


def _drafts(job: ServingJob, account: Account) -> list[tuple[str, ...]]:
    """Tokens that are drafted (docs/features/speculative_decoding: mtp.md, n_gram.md, draft_model.md)."""
    if not job.plan.draft_tokens:
        return []
    name_of_drafter(job, account, "model of --speculative-config is")
    methods: dict[str, dict[str, object]] = {
        "mtp": {"method": "mtp"},
        "ngram": {"method": "ngram", "prompt_lookup_max": NGRAM},
    }
    method = methods.get(job.drafter, {"method": "draft_model", "model": job.drafter})
    return [("--speculative-config", json.dumps({**method, "num_speculative_tokens": job.plan.draft_tokens}))]


def _prefill(job: ServingJob, account: Account, length: int) -> list[tuple[str, ...]]:
    plan = job.plan
    decoded = plan.max_batch * job.tokens_of_pass
    if job.role == DECODE:
        return [("--enable-chunked-prefill",), ("--max-num-batched-tokens", str(decoded))]
    if job.role == PREFILL:  # nothing is decoded in its passes
        tokens = plan.prefill_batch * (plan.prefill_chunk or job.new_tokens)
        if plan.prefill_chunk:
            return [("--enable-chunked-prefill",), ("--max-num-batched-tokens", str(tokens))]
        return [("--no-enable-chunked-prefill",), ("--max-num-batched-tokens", str(max(tokens, length)))]
    if plan.prefill_chunk:
        # The budget of a pass counts the tokens that are decoded in it, too, and is no less than --max-num-seqs (SchedulerConfig).
        budget = max(plan.prefill_chunk * plan.prefill_batch + plan.group_batch * job.tokens_of_pass, decoded)
        return [("--enable-chunked-prefill",), ("--max-num-batched-tokens", str(budget))]
    whole_prompts_mixed(account, "vLLM")
    # At least the longest request and one token per sequence, or vLLM refuses.
    budget = max(plan.prefill_batch * job.new_tokens, length, decoded)
    return [("--no-enable-chunked-prefill",), ("--max-num-batched-tokens", str(budget))]


def _experts(job: ServingJob, account: Account, ranks: int) -> list[tuple[str]]:
    """Experts lie on all ranks of a server: whole ones with expert parallelism, slices of each without."""
    plan = job.plan
    if not job.has_experts:
        return []
    is_expert_parallel = plan.ep > 1
    wanted = (plan.ep, plan.etp)
    written = (ranks, 1) if is_expert_parallel else (1, ranks)
    if wanted != written:
        degree = "etp" if is_expert_parallel and plan.etp > 1 else "ep"
        account.impossible(
            f"prefill_{degree}" if job.role == PREFILL else degree,
            f"a server of {ranks} ranks has ep {written[0]} and etp {written[1]}, not ep {plan.ep} and etp {plan.etp}",
        )
    return [("--enable-expert-parallel",)] if is_expert_parallel else []


def _deployment(job: ServingJob, account: Account) -> list[str]:
    plan, devices, capacity = job.plan, _replica_devices(job), job.nodes.capacity
    replicas = 1 if devices > capacity else _replicas_per_server(job)
    experts = [f"ARGS+=({word})" for (word,) in _experts(job, account, plan.tp * replicas)]
    if devices > capacity:
        return [*experts, *_over_nodes(job, devices // capacity)]
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
        *node_of_server(nodes_each, several=nodes_each < nodes.count),
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


def _over_nodes(job: ServingJob, nodes_each: int) -> list[str]:
    """Every replica over several nodes, each with an endpoint of its own."""
    return [
        *node_of_server(nodes_each, several=job.plan.dp > 1),
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
    shared = ""
    if replicas > 1:
        shared = f' --data-parallel-size {replicas} --data-parallel-rpc-port $(("${{RPC_PORT:-13345}}" + i))'
    devices = _replica_devices(job) * replicas
    return servers_side_by_side(job, devices, 'vllm serve "$model" "${ARGS[@]}"', 8000, shared)
