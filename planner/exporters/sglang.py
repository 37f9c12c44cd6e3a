"""SGLang: `python -m sglang.launch_server` for an inference plan.

Three ways to start, by what the experts and the nodes allow:

- replicas that share experts are one server, whose attention is data parallel inside its tensor-parallel group (``--attn-dp-size``);
- others that fit in a node together are one server of it (``--dp-size``), or servers of their own where they have pipelines;
- a server larger than a node goes over several (``--nnodes``).

Workers that read prompts are servers of their own, which hand caches over by NIXL (docs/advanced_features/pd_disaggregation.md), with
SGLang's router in front (sglang_router/router_args.py).
"""

from __future__ import annotations

from planner.exporters.account import Account
from planner.exporters.common import account_placement, given, header
from planner.exporters.job import ServingJob
from planner.exporters.kubernetes import DYNAMO, Worker, dynamo, fits_pods
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
    server_of_each_node,
    servers_side_by_side,
    spread_of,
    uneven_servers,
)
from planner.exporters.shell import shell_array

TITLE = "SGLang"
SUMMARY = "serve.sh, serve.slurm, bench.sh, dynamo.yaml (inference plans)"
VERSIONS = {"0.5": "SGLang, release 0.5.23 (sglang/srt/arg_groups/fields, sglang/benchmark/serving.py)"}
FRAMEWORK = "sglang"
TAKES = frozenset({"serving"})
FIELDS = {
    "tp": "--tp-size, times the replicas that share experts",
    "pp": "--pp-size",
    "ep": "--ep-size",
    "etp": "--tp-size over --ep-size",
    "dp": "--dp-size, --attn-dp-size of replicas that share experts, or servers of their own",
    "max_batch": "--max-running-requests, times --attn-dp-size",
    "prefill_chunk": "--chunked-prefill-size with --enable-mixed-chunk; whole prompts alone: -1",
    "prefill_batch": "--prefill-max-requests",
    "draft_tokens": "--speculative-num-steps, --speculative-num-draft-tokens; by hand: where the weights of a network are that drafts",
    "prefill_dp": "servers of their own, --disaggregation-mode",
    "prefill_tp": "--tp-size of these",
    "prefill_pp": "--pp-size of these",
    "prefill_ep": "--ep-size of these",
    "prefill_etp": "--tp-size over --ep-size of these",
    "precision": "--dtype, --quantization",
    "kv_precision": "--kv-cache-dtype; -: fp16 or fp32 with weights of another format",
    "prompt_tokens": "--context-length, with output_tokens",
    "output_tokens": "--context-length, with prompt_tokens",
    "prefix_cached": "without --disable-radix-cache; 0: with it",
    "memory_utilisation": "--mem-fraction-static, of weights and cache alone; by hand: a smaller one",
    "stages": "SGLANG_PP_LAYER_PARTITION",
    "placement": "nodes and devices of a server",
}
# Recipe -> --quantization (sglang/srt/arg_groups/choices.py); others: the checkpoint says it.
_QUANTIZATION = {
    **dict.fromkeys(FP8, "fp8"),
    "mxfp8": "mxfp8",
    "nvfp4": "modelopt_fp4",
    "w4a16-mxfp4": "mxfp4",
    "nf4": "bitsandbytes",
}
_CACHE = {"fp8": "fp8_e4m3", "bf16": "bf16"}
_SERVER = 'python3 -m sglang.launch_server --model-path "$model" "${ARGS[@]}"'
_PORT = 30000


def refusals(job: ServingJob, version: str) -> list[str]:  # noqa: ARG001 - the same for all versions
    """Deployments that SGLang cannot start."""
    plan, apart = job.plan, list[str]()
    if plan.draft_tokens and job.drafter != "mtp" and replicas_that_share(job) > 1:
        # docs/advanced_features/speculative_decoding.md: NGRAM and STANDALONE
        apart = [
            f"{job.drafter} drafts with attention that is data parallel: replicas that share experts draft by mtp only"
        ]
    if not job.has_router:
        return [*apart, *uneven_servers(job, server_devices(job))]
    # sglang/srt/disaggregation/common/conn.py
    unlike = f"pp {plan.pp} after prefill_pp {plan.prefill_pp}: caches go to as many stages, or to one"
    return [*apart, *uneven_pools(job), *([unlike] if plan.pp not in (1, plan.prefill_pp) else [])]


def render(job: ServingJob, account: Account, version: str) -> dict[str, str]:
    """Write the scripts."""
    if job.has_router:
        return _render_pools(on_whole_nodes(job), account, version)
    arguments = _arguments(job, account)
    account_placement(job.nodes, account)
    benchmark = _benchmark(job, account)
    head = header(job.origin, account, VERSIONS[version])
    environment = _environment(job)
    made = scripts(job, head, environment, shell_array("ARGS", arguments), _deployment(job), benchmark)
    if fits_pods(job):
        words = ["--model-path", "${MODEL}", *(word for entry in arguments for word in entry)]
        made[DYNAMO] = dynamo(job, head, "dynamo.sglang", [Worker(job, words, environment)])
    return made


def _environment(job: ServingJob) -> dict[str, str]:
    return {"SGLANG_PP_LAYER_PARTITION": ",".join(map(str, job.stages))} if job.plan.pp > 1 else {}


# -- prompts read by servers of their own


# The second is --disaggregation-bootstrap-port's default, where prefill servers say where caches are to go.
_FIRST_PORT, _BOOTSTRAP, _DIST_PORT = 30000, 8998, 29500


def _render_pools(job: ServingJob, account: Account, version: str) -> dict[str, str]:
    """Scripts and manifests of servers that read prompts and servers that decode."""
    pools = pools_of(job)
    arguments = {
        role: [
            *_arguments(pool, account),
            ("--disaggregation-mode", role),
            ("--disaggregation-transfer-backend", "nixl"),
        ]
        for role, pool in pools.items()
    }
    found = places(pools, job.nodes.capacity, apart=bool(job.prefill_device))
    where = account_pools(job, found, account)
    benchmark = _benchmark(job, account)._replace(port=ROUTER_PORT)
    head = header(job.origin, account, VERSIONS[version])
    head.insert(2, where)
    settings = [line for role, words in arguments.items() for line in shell_array(role.upper(), words)]
    launch = ['CUDA_VISIBLE_DEVICES="$devices" python3 -m sglang.launch_server --model-path "$model" --host 0.0.0.0 \\']
    for role, pool in pools.items():
        launch[:0] = [
            f'[[ "$role" != {role} ]] || local -x {name}={value}' for name, value in _environment(pool).items()
        ]
    launch.append('  --port "$port" "${args[@]}" "$@" "${rest[@]}" &')
    router = [
        f"python3 -m sglang_router.launch_router --pd-disaggregation --policy {'cache_aware' if job.cached_tokens else 'round_robin'}",
        f'--host 0.0.0.0 --port "${{PORT:-{ROUTER_PORT}}}"',
        *(
            f"--{place.role} {url_of(place, _FIRST_PORT)}"
            + (f" {_BOOTSTRAP + place.first}" if place.role == PREFILL else "")
            for place in found
        ),
    ]
    start = start_of_pools(job, found, port=_FIRST_PORT, launch=launch, more=_of_place, router=router)
    made = scripts(job, head, {}, settings, start, benchmark)
    if all(map(fits_pods, pools.values())):
        # As examples/backends/sglang/deploy/disagg.yaml of Dynamo has it.
        rest = ["--disaggregation-bootstrap-port", "12345", "--host", "0.0.0.0"]  # noqa: S104 - inside a pod
        words = {role: [word for entry in own for word in entry] for role, own in arguments.items()}
        workers = [
            Worker(pool, ["--model-path", "${MODEL}", *words[role], *rest], _environment(pool))
            for role, pool in pools.items()
        ]
        made[DYNAMO] = dynamo(job, head, "dynamo.sglang", workers)
    return made


def _of_place(place: Place, rank: int) -> list[str]:
    """Words of one server: where prefill servers are asked for caches, and its nodes."""
    bootstrap = [f"--disaggregation-bootstrap-port {_BOOTSTRAP + place.first}"] if place.role == PREFILL else []
    several = len(place.nodes)
    address = f'"${{nodes[{place.nodes[0]}]}}:{_DIST_PORT}"'
    over = [f"--nnodes {several} --node-rank {rank} --dist-init-addr {address}"] if several > 1 else []
    return [*bootstrap, *over]


def _benchmark(job: ServingJob, account: Account) -> Benchmark:
    """`sglang.benchmark.serving`: lengths from ratio times those named to those named, so that means are the plan's."""
    spread = spread_of(job)
    most, ratio = 1.0 + spread, (1.0 - spread) / (1.0 + spread)
    if job.arrivals is not None and job.arrivals.variation != 1.0:
        account.left_to_user("arrivals", "the benchmark's requests come at random (Poisson): it has no other bursts")
    lengths = [
        ("--dataset-name", "random-ids"),
        ("--random-input-len", f"{most * job.prompt_tokens:.0f}"),
        ("--random-output-len", f"{most * job.output_tokens:.0f}"),
        ("--random-range-ratio", f"{ratio:.6g}"),
    ]
    if job.cached_tokens:
        lengths = _alike(job)
        if spread:
            words = "prompts and answers of the benchmark are of equal lengths: where prompts begin alike, it draws no others"
            account.left_to_user("lengths", words)
    return Benchmark(
        command="python3 -m sglang.benchmark.serving --backend sglang",
        port=_PORT,
        arguments=[*lengths, *load_arguments(job)],
        result=['--output-file "$results/bench.json"'],
    )


def _alike(job: ServingJob) -> list[tuple[str, str]]:
    """Prompts that begin with the same tokens (sglang/benchmark/datasets/generated_shared_prefix.py): one group of them."""
    (requests,) = [value for name, value in load_arguments(job) if name == "--num-prompts"]
    lengths = {"system-prompt": job.cached_tokens, "question": job.new_tokens, "output": job.output_tokens}
    return [
        ("--dataset-name", "generated-shared-prefix"),
        ("--gsp-num-groups", "1"),
        ("--gsp-prompts-per-group", requests),
        *((f"--gsp-{name}-len", str(tokens)) for name, tokens in lengths.items()),
    ]


def _arguments(job: ServingJob, account: Account) -> list[tuple[str, ...]]:
    plan, sharing = job.plan, replicas_that_share(job)
    dtype = dtype_of(job, account, _QUANTIZATION, TITLE)
    is_plain = is_as_weights(job, dtype)
    if not is_plain and job.kv_precision not in _CACHE:
        account.impossible(
            "kv_precision", f"the cache has the format of --dtype, bf16 or fp8 here, not {job.kv_precision}"
        )
    account.left_to_user(
        "memory_utilisation",
        f"--mem-fraction-static {job.memory_utilisation:g} counts weights and cache alone: lower it where a pass runs out of memory",
    )
    optional: dict[tuple[str, ...], bool] = {
        ("--ep-size", str(plan.ep)): job.has_experts,
        ("--attn-dp-size", str(sharing)): sharing > 1,
        ("--quantization", _QUANTIZATION.get(job.precision, "")): job.precision in _QUANTIZATION,
        ("--kv-cache-dtype", _CACHE.get(job.kv_precision, "")): not is_plain and job.kv_precision in _CACHE,
        ("--disable-radix-cache",): job.prefix_cached == 0,
        ("--host", "0.0.0.0"): job.nodes.count > 1 and not job.role,  # noqa: S104 - for the load balancer and the other nodes
    }
    return [
        ("--tp-size", str(plan.tp * sharing)),
        ("--pp-size", str(plan.pp)),
        ("--max-running-requests", str(plan.max_batch * sharing)),
        ("--context-length", str(length_of(job, account, "--context-length"))),
        ("--mem-fraction-static", f"{job.memory_utilisation:g}"),
        ("--dtype", dtype),
        *given(optional),
        *_prefill(job),
        *_drafts(job, account),
    ]


def _drafts(job: ServingJob, account: Account) -> list[tuple[str, ...]]:
    """A chain of drafted tokens (docs/advanced_features/speculative_decoding.md); those that are verified count the one before them."""
    count = job.plan.draft_tokens
    if not count:
        return []
    if job.drafter == "ngram":
        return [
            ("--speculative-algorithm", "NGRAM"),
            ("--speculative-num-draft-tokens", str(job.tokens_of_pass)),
            ("--speculative-ngram-max-bfs-breadth", "1"),
        ]
    name_of_drafter(job, account, "--speculative-draft-model-path")
    chain = [
        ("--speculative-num-steps", str(count)),
        ("--speculative-eagle-topk", "1"),
        ("--speculative-num-draft-tokens", str(job.tokens_of_pass)),
    ]
    if job.drafter == "mtp":
        return [("--speculative-algorithm", "EAGLE"), *chain]
    return [("--speculative-algorithm", "STANDALONE"), ("--speculative-draft-model-path", job.drafter), *chain]


def _prefill(job: ServingJob) -> list[tuple[str, ...]]:
    """How prompts are read: pieces beside the decoding, or whole prompts in passes of their own, SGLang's way."""
    plan = job.plan
    if job.role == DECODE:
        return []
    prompts = ("--prefill-max-requests", str(plan.prefill_batch))
    if plan.prefill_chunk:
        size = plan.prefill_chunk * plan.prefill_batch
        mixed = [] if job.role else [("--enable-mixed-chunk",)]
        return [("--chunked-prefill-size", str(size)), *mixed, prompts]
    tokens = ("--max-prefill-tokens", str(plan.prefill_batch * job.new_tokens))
    return [("--chunked-prefill-size", "-1"), tokens, prompts]


def _deployment(job: ServingJob) -> list[str]:
    nodes, devices = job.nodes, server_devices(job)
    if devices > nodes.capacity:
        nodes_each = devices // nodes.capacity
        return [
            *node_of_server(nodes_each, several=nodes_each < nodes.count),
            "ARGS+=(",
            f"  --nnodes {nodes_each}",
            '  --node-rank "$rank"',
            '  --dist-init-addr "$head:${MASTER_PORT:-29500}"',
            ")",
            f'exec {_SERVER} "$@"',
        ]
    here = nodes.per_node // devices
    if here == 1 or (job.plan.pp == 1 and replicas_that_share(job) == 1):
        return server_of_each_node(job, f"{_SERVER} --dp-size {here}" if here > 1 else _SERVER)
    return servers_side_by_side(job, devices, _SERVER, _PORT)
