"""TensorRT-LLM: `trtllm-serve` and its file of LLM API options for an inference plan.

A server lies in one node: over several it needs an MPI launcher, one process per GPU (``trtllm-llmapi-launch``). Replicas are servers of
their own; those that share experts are one, whose attention is data parallel (``enable_attention_dp``), a replica per GPU.

Servers of two kinds hand caches over (``cache_transceiver_config``), and one more takes requests through both (``trtllm-serve
disaggregated``; docs/source/features/disagg-serving.md).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from planner.exporters.account import Account
from planner.exporters.common import account_placement, given, header
from planner.exporters.job import ServingJob
from planner.exporters.kubernetes import DYNAMO, MOUNTED, Worker, dynamo
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
)
from planner.exporters.serving import (
    NGRAM,
    Benchmark,
    dtype_of,
    is_as_weights,
    length_of,
    longest,
    name_of_drafter,
    replicas_that_share,
    scripts,
    server_devices,
    server_of_each_node,
    servers_side_by_side,
    uneven_servers,
    whole_prompts_mixed,
)
from planner.exporters.shell import HERE, comment, shell_array
from planner.exporters.vllm import benchmark_arguments

TITLE = "TensorRT-LLM"
SUMMARY = "serve.sh, llm_args.yaml (of two pools decode.yaml, prefill.yaml), serve.slurm, bench.sh, dynamo.yaml (inference plans)"
VERSIONS = {
    "1.2": "TensorRT-LLM, release 1.2 (tensorrt_llm/commands/serve.py, tensorrt_llm/llmapi/llm_args.py, PyTorch backend)"
}
FRAMEWORK = "tensorrt-llm"
TAKES = frozenset({"serving"})
FIELDS = {
    "tp": "--tp_size",
    "pp": "--pp_size",
    "ep": "--ep_size",
    "etp": "moe_tensor_parallel_size",
    "dp": "servers of their own; enable_attention_dp of replicas that share experts",
    "max_batch": "--max_batch_size",
    "prefill_chunk": "--max_num_tokens, enable_chunked_prefill; -: whole prompts in passes of their own",
    "prefill_batch": "--max_num_tokens",
    "draft_tokens": "speculative_config; by hand: where the weights of a network are that drafts",
    "prefill_dp": "servers of their own, cache_transceiver_config",
    "prefill_tp": "--tp_size of these",
    "prefill_pp": "--pp_size of these",
    "prefill_ep": "--ep_size of these",
    "prefill_etp": "moe_tensor_parallel_size of these",
    "precision": "dtype; by hand: weights of fewer bits, from the checkpoint",
    "kv_precision": "kv_cache_config.dtype; -: another 16-bit or 32-bit format than the weights'",
    "prompt_tokens": "--max_seq_len, with output_tokens",
    "output_tokens": "--max_seq_len, with prompt_tokens",
    "prefix_cached": "kv_cache_config.enable_block_reuse",
    "memory_utilisation": "kv_cache_config.free_gpu_memory_fraction, of what weights leave; by hand: a larger one",
    "stages": "pp_partition",
    "placement": "devices of a server",
}
_OPTIONS = "llm_args.yaml"
# Options of trtllm-serve by another name than the LLM API has.
_LONG_NAMES = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "ep_size": "moe_expert_parallel_size",
}
_SERVER = f'trtllm-serve "$model" "${{ARGS[@]}}" --extra_llm_api_options "$here/{_OPTIONS}"'
_PORT = 8000


def refusals(job: ServingJob, version: str) -> list[str]:  # noqa: ARG001 - the same for all versions
    """Deployments that these files cannot start."""
    if job.has_router:
        return [problem for role, pool in pools_of(job).items() for problem in _too_large(pool, f"{role} server")]
    return _too_large(job, "server") or uneven_servers(job, server_devices(job))


def _too_large(job: ServingJob, noun: str) -> list[str]:
    """Why no server of this kind can be started."""
    devices, capacity, sharing = server_devices(job), job.nodes.capacity, replicas_that_share(job)
    if sharing > 1 and job.plan.tp > 1:
        return [f"experts shared by replicas of tp {job.plan.tp}: attention is data parallel with tp 1 only"]
    if devices > capacity:
        return [
            f"a {noun} of {devices} devices: over several nodes of {capacity} it needs the MPI launcher of your cluster"
        ]
    return []


def render(job: ServingJob, account: Account, version: str) -> dict[str, str]:
    """Write the scripts and the options."""
    if job.has_router:
        return _render_pools(on_whole_nodes(job), account, version)
    dtype = dtype_of(job, account, {}, TITLE)
    arguments, options = _arguments(job, account), _options(job, account, dtype)
    account_placement(job.nodes, account)
    head = header(job.origin, account, VERSIONS[version])
    settings = [HERE, "", *shell_array("ARGS", arguments)]
    devices = server_devices(job)
    fills = job.nodes.per_node == devices
    # For the load balancer: the server listens to its own node alone unless told otherwise.
    server = f"{_SERVER} --host 0.0.0.0" if job.nodes.count > 1 else _SERVER
    start = server_of_each_node(job, server) if fills else servers_side_by_side(job, devices, server, _PORT)
    made = scripts(job, head, {}, settings, start, _benchmark(job))
    # Dynamo's worker takes everything from the file.
    every = [f"{_LONG_NAMES.get(name, name)}: {value}" for name, value in ((n[2:], v) for n, v in arguments)]
    words = ["--model-path", "${MODEL}", "--extra-engine-args", MOUNTED]
    return {
        **made,
        _OPTIONS: "\n".join([*comment(head), *options]) + "\n",
        DYNAMO: dynamo(job, head, "dynamo.trtllm", [Worker(job, words, {})], options=[*every, *options]),
    }


# -- prompts read by servers of their own


_FIRST_PORT = 8100
_LAUNCH = (
    'CUDA_VISIBLE_DEVICES="$devices" trtllm-serve "$model" --host 0.0.0.0 --port "$port" "${args[@]}" \\',
    '  --extra_llm_api_options "$options/$role.yaml" "$@" "${rest[@]}" &',
)
_ROLES = {PREFILL: "context_servers", DECODE: "generation_servers"}


def _render_pools(job: ServingJob, account: Account, version: str) -> dict[str, str]:
    """Scripts and options of servers that read prompts and servers that decode."""
    pools, dtype = pools_of(job), dtype_of(job, account, {}, TITLE)
    arguments = {role: _arguments(pool, account) for role, pool in pools.items()}
    options = {role: [*_options(pool, account, dtype), *_handed_over(pool)] for role, pool in pools.items()}
    found = places(pools, job.nodes.capacity, apart=bool(job.prefill_device))
    where = account_pools(job, found, account)
    head = header(job.origin, account, VERSIONS[version])
    head.insert(2, where)
    settings = [
        HERE,
        'options="$here"',
        "",
        *(line for role, words in arguments.items() for line in shell_array(role.upper(), words)),
        "",
        *_routes(found),
    ]
    router = ['routes >"$options/router.yaml"; trtllm-serve disaggregated', '-c "$options/router.yaml"']
    start = start_of_pools(job, found, port=_FIRST_PORT, launch=_LAUNCH, more=lambda _, __: [], router=router)
    made = scripts(job, head, {}, settings, start, _benchmark(job)._replace(port=ROUTER_PORT))
    files = {f"{role}.yaml": "\n".join([*comment(head), *lines]) + "\n" for role, lines in options.items()}
    return {**made, **files}


def _routes(found: Sequence[Place]) -> list[str]:
    """A bash function that says, for the one that takes requests, where the servers are."""
    lines = ["routes() {", "  cat <<EOF", "hostname: 0.0.0.0", f"port: ${{PORT:-{ROUTER_PORT}}}", "backend: pytorch"]
    for role, name in _ROLES.items():
        own = [place for place in found if place.role == role]
        lines += [f"{name}:", f"  num_instances: {len(own)}", "  urls:"]
        lines += [f'    - "${{nodes[{place.nodes[0]}]}}:{_FIRST_PORT + place.first}"' for place in own]
    return [*lines, "EOF", "}"]


def _handed_over(pool: ServingJob) -> list[str]:
    """How caches go from one kind of servers to the other; those that read prompts prepare no pass ahead."""
    return [
        "cache_transceiver_config:",
        "  backend: DEFAULT",
        f"  max_tokens_in_buffer: {longest(pool)[0]}",  # at least the longest prompt
    ]


def _benchmark(job: ServingJob) -> Benchmark:
    """A program made from vLLM's (tensorrt_llm/serve/scripts/benchmark_serving.py), with its lengths and its result file."""
    return Benchmark(
        command="python3 -m tensorrt_llm.serve.scripts.benchmark_serving --backend openai",
        port=_PORT,
        arguments=[*benchmark_arguments(job), ("--random-ids",)],
        result=["--save-result", '--result-dir "$results"', "--result-filename bench.json"],
    )


def _arguments(job: ServingJob, account: Account) -> list[tuple[str, ...]]:
    plan = job.plan
    length = length_of(job, account, "--max_seq_len")
    optional: dict[tuple[str, ...], bool] = {
        ("--ep_size", str(plan.ep)): job.has_experts,
    }
    return [
        ("--backend", "pytorch"),
        ("--tp_size", str(plan.tp * replicas_that_share(job))),
        ("--pp_size", str(plan.pp)),
        ("--max_batch_size", str(plan.prefill_batch if job.role == PREFILL else plan.max_batch)),
        ("--max_num_tokens", str(_tokens(job, account, length))),
        ("--max_seq_len", str(length)),
        *given(optional),
    ]


def _tokens(job: ServingJob, account: Account, length: int) -> int:
    """Tokens of a pass: of prompts, and one for every sequence that is decoded in it."""
    plan, decoded = job.plan, job.plan.max_batch * job.tokens_of_pass
    if job.role == PREFILL:
        return plan.prefill_batch * plan.prefill_chunk or max(plan.prefill_batch * job.new_tokens, length)
    if job.role == DECODE:
        return decoded
    if plan.prefill_chunk:
        return max(plan.prefill_chunk * plan.prefill_batch + plan.group_batch * job.tokens_of_pass, decoded)
    whole_prompts_mixed(account, TITLE)
    return max(plan.prefill_batch * job.new_tokens, length, decoded)


def _options(job: ServingJob, account: Account, dtype: str) -> list[str]:
    """Lines of the YAML file."""
    plan, is_fp8 = job.plan, job.kv_precision == "fp8"
    if not is_fp8 and not is_as_weights(job, dtype):
        account.impossible("kv_precision", f"the cache has the format of dtype or fp8, not {job.kv_precision}")
    account.left_to_user(
        "memory_utilisation",
        f"free_gpu_memory_fraction {job.memory_utilisation:g} is of what weights leave, so less is filled: raise it if it is too little",
    )
    return [
        f"dtype: {dtype}",
        f"enable_chunked_prefill: {str(plan.prefill_chunk > 0).lower()}",
        *given({"disable_overlap_scheduler: true": job.role == PREFILL}),
        *(
            given(
                {
                    f"moe_tensor_parallel_size: {plan.etp}": job.has_experts,
                    "enable_attention_dp: true": replicas_that_share(job) > 1,
                    f"pp_partition: [{', '.join(map(str, job.stages))}]": plan.pp > 1,
                }
            )
        ),
        "kv_cache_config:",
        f"  free_gpu_memory_fraction: {job.memory_utilisation:g}",
        f"  dtype: {'fp8' if is_fp8 else 'auto'}",
        *([] if job.prefix_cached is None else [f"  enable_block_reuse: {str(job.prefix_cached > 0).lower()}"]),
        *_drafts(job, account),
    ]


def _drafts(job: ServingJob, account: Account) -> list[str]:
    """Tokens that are drafted (docs/source/features/speculative-decoding.md); only mtp overlaps with the scheduler."""
    count = job.plan.draft_tokens
    if not count:
        return []
    name_of_drafter(job, account, "speculative_model_dir is")
    lines = {
        "mtp": ["decoding_type: MTP", f"num_nextn_predict_layers: {count}"],
        "ngram": ["decoding_type: NGram", f"max_draft_len: {count}", f"max_matching_ngram_size: {NGRAM}"],
    }
    network = [
        "decoding_type: DraftTarget",
        f"max_draft_len: {count}",
        f"speculative_model_dir: {json.dumps(job.drafter)}",
    ]
    apart = [] if job.drafter == "mtp" or job.role == PREFILL else ["disable_overlap_scheduler: true"]
    return [*apart, "speculative_config:", *(f"  {line}" for line in lines.get(job.drafter, network))]
