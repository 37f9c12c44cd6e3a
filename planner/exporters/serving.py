"""What the exporters for serving engines share: formats, servers on nodes, and the benchmark that measures what was predicted."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from costmodel.precision import PRECISIONS
from planner.exporters.account import Account
from planner.exporters.job import ServingJob
from planner.exporters.shell import HERE, comment, shell_array, slurm_script

SCRIPT, BATCH = "serve.sh", "serve.slurm"
MODEL = 'model="${MODEL:?set MODEL to the name or folder of the weights}"'
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}
# Recipes of eight bits that an engine makes of 16-bit weights itself.
# Tokens at the end of the text that are looked up in it (docs/features/speculative_decoding/n_gram.md of vLLM).
NGRAM = 4
FP8 = ("fp8", "fp8-delayed", "fp8-tensorwise", "fp8-rowwise")
# Lengths of a closed loop whose requests differ are drawn evenly from the mean less this share to the mean and this share; the most.
_SPREAD, _WIDEST = 0.5, 0.9


# -- settings


def spread_of(job: ServingJob) -> float:
    """Lengths lie evenly between the mean less this share and the mean and this share, which has a variation of share / sqrt(3)."""
    if job.arrivals is not None:
        return min(math.sqrt(3.0) * job.output_variation, _WIDEST)
    return _SPREAD if job.load == "traffic" else 0.0


def longest(job: ServingJob) -> tuple[int, int]:
    """Tokens of the longest prompt and of the longest answer that the benchmark sends.

    Examples
    --------
    Means of 1,024 and 256 tokens, and half as much more where requests differ:

    >>> from planner.exporters.job import Nodes, Origin
    >>> from costmodel.serving.plan import ServingPlan
    >>> origin = Origin(model="m", cluster="c", device="d", summary="", prediction=(), planner_version="", plan_name="")
    >>> job = ServingJob(plan=ServingPlan(), origin=origin, nodes=Nodes(workers=1, capacity=8), stages=(32,), has_experts=False,
    ...     prompt_tokens=1024, output_tokens=256, precision="bf16", kv_precision="bf16", memory_utilisation=0.9)
    >>> longest(job)
    (1536, 384)
    """
    most = 1.0 + spread_of(job)
    return math.ceil(most * job.prompt_tokens), math.ceil(most * job.output_tokens)


def length_of(job: ServingJob, account: Account, option: str) -> int:
    """Tokens that a request may have, prompt and answer."""
    length = sum(longest(job))
    account.left_to_user(
        option.strip("-").replace("-", "_"),
        f"the plan knows mean lengths only: raise {option} {length}, the benchmark's, to your longest request",
    )
    return length


def dtype_of(job: ServingJob, account: Account, quantization: Mapping[str, str], title: str) -> str:
    """The format of what is not quantized; says which weights to name where the engine reads a recipe from the checkpoint."""
    if job.precision not in quantization and PRECISIONS[job.precision].kind == "narrow":
        account.left_to_user(
            "precision", f"name a checkpoint whose weights are in {job.precision}: {title} reads that from it"
        )
    if job.precision == "tf32":
        account.left_to_user("precision", "let matrices be computed in tf32: no argument does")
    return DTYPES[PRECISIONS[job.precision].plain.name]


def is_network(drafter: str) -> bool:
    """Whether another network drafts, whose weights the user names."""
    return drafter not in ("", "mtp", "ngram")


def name_of_drafter(job: ServingJob, account: Account, where: str) -> None:
    """Leave the weights of a network that drafts to the user."""
    if is_network(job.drafter):
        account.left_to_user("draft_tokens", f"{where} {job.drafter}: put the weights of that network in its place")


def is_as_weights(job: ServingJob, dtype: str) -> bool:
    """Whether the cache has the format of what is not quantized."""
    return DTYPES.get(job.kv_precision) == dtype


def whole_prompts_mixed(account: Account, title: str) -> None:
    """Of an engine that cannot read whole prompts in passes of their own."""
    account.impossible(
        "prefill_chunk",
        f"{title} adds decoded tokens to the passes that read prompts; whole prompts are written, mixed with them",
    )


# -- servers on nodes


def replicas_that_share(job: ServingJob) -> int:
    """Replicas that keep one set of experts together, which are one server; 1 where each has its own."""
    plan = job.plan
    return max(plan.ep * plan.etp // plan.tp, 1) if job.has_experts else 1


def server_devices(job: ServingJob) -> int:
    """Devices of the smallest server: of a replica, or of those that share experts."""
    return job.plan.tp * job.plan.pp * replicas_that_share(job)


def uneven_servers(job: ServingJob, devices: int, noun: str = "server") -> list[str]:
    """Servers that do not fill whole nodes."""
    capacity = job.nodes.capacity
    if devices > capacity and devices % capacity:
        return [f"a {noun} of {devices} devices does not fill whole nodes of {capacity}"]
    if devices < capacity < job.plan.workers and capacity % devices:
        return [f"{noun}s of {devices} devices do not fill nodes of {capacity}: a {noun} would lie across two nodes"]
    return []


def node_of_server(nodes_each: int, *, several: bool) -> list[str]:
    """Bash lines that set rank, the number of this node in its server, and head, the address of the server's first node."""
    first = "this server" if several else "the server"
    variable = "SERVER_ADDR" if several else "MASTER_ADDR"
    return [
        f"# Started on every node; {nodes_each} nodes in a row are one server, whose first node has the endpoint.",
        'node="${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK to the number of this node}}"',
        f'head="${{{variable}:?set {variable} to the address of the first node of {first}}}"',
        f"rank=$((node % {nodes_each}))",
    ]


def server_of_each_node(job: ServingJob, command: str) -> list[str]:
    """A server that fills every node; ``command`` starts it, in bash."""
    balanced = (
        ["# Started on every node: one server each; put a load balancer in front."] if job.nodes.count > 1 else []
    )
    return [*balanced, f'exec {command} "$@"']


def servers_side_by_side(job: ServingJob, devices: int, command: str, port: int, more: str = "") -> list[str]:
    """Several servers on a node, each with its devices, port and experts.

    Parameters
    ----------
    job : ServingJob
    devices : int
        Of each.
    command : str
        What starts one, in bash, without its port.
    port : int
        Of the first, unless PORT says another.
    more : str
        Words behind the port.
    """
    return [
        "# Started on every node: its servers, on ports from PORT on; put a load balancer in front.",
        "pids=()",
        'stop() { kill "${pids[@]}" 2>/dev/null || true; }',
        "trap stop EXIT",
        f"for ((i = 0; i < {job.nodes.per_node // devices}; i++)); do",
        f"  first=$((i * {devices}))",
        f'  CUDA_VISIBLE_DEVICES="$(seq -s , "$first" $((first + {devices - 1})))" \\',
        f'    {command} --port $(("${{PORT:-{port}}}" + i)){more} "$@" &',
        '  pids+=("$!")',
        "done",
        "wait -n  # the first that ends takes the others with it",
    ]


# -- scripts


class Benchmark(NamedTuple):
    """A program that sends requests and writes what it measured.

    Attributes
    ----------
    command : str
        In bash.
    port : int
        Of the endpoint, where BASE_URL does not say it.
    arguments : list of tuple of str
    result : list of str
        Words of bash that name the file of the result; ``$results`` is its folder.
    """

    command: str
    port: int
    arguments: list[tuple[str, ...]]
    result: list[str]


def load_arguments(job: ServingJob) -> list[tuple[str, ...]]:
    """How many requests, how many at a time or per second, and the seed: the same words in all of these programs.

    A closed loop has as many in flight as was asked for, or as the plan has places; of a backlog all are sent at once.
    """
    from costmodel.serving.queue import BENCHMARK_ROUNDS  # networks that nobody serves do without

    places = job.in_flight or job.plan.concurrency
    if job.arrivals is not None:
        sent = [("--request-rate", f"{job.arrivals.rate_per_s:.6g}")]
    else:
        sent = [] if job.load == "backlog" else [("--max-concurrency", str(places))]
    return [*sent, ("--num-prompts", str(int(BENCHMARK_ROUNDS) * places)), ("--seed", "1")]


def scripts(
    job: ServingJob,
    head: Sequence[str],
    environment: Mapping[str, str],
    settings: Sequence[str],
    start: Sequence[str],
    benchmark: Benchmark,
) -> dict[str, str]:
    """The scripts that start the servers, on one node and in a Slurm job, and the one that measures them."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    lines = ["#!/usr/bin/env bash", *comment(head), "set -euo pipefail", "", MODEL, *exports, "", *settings, "", *start]
    measure = [
        "#!/usr/bin/env bash",
        *comment(head[:2]),
        *comment([line for line in head if line.startswith("Predicted: ")]),
        "# Sends the load that the plan was made for; of several servers, BASE_URL is that of the load balancer.",
        "# Then: planner check bench.json --plan FILE, with the plan file.",
        "set -euo pipefail",
        HERE,
        MODEL,
        'results="${RESULTS:-$here}"',
        f'url="${{BASE_URL:-http://localhost:{benchmark.port}}}"',
        "",
        *shell_array("ARGS", benchmark.arguments),
        "",
        " \\\n  ".join(
            [
                f'exec {benchmark.command} --base-url "$url" --model "$model"',
                '"${ARGS[@]}"',
                " ".join(benchmark.result),
                '"$@"',
            ]
        ),
    ]
    return {
        SCRIPT: "\n".join(lines) + "\n",
        BATCH: slurm_script(head[:3], job.nodes, job.origin.model, SCRIPT, all_nodes=job.plan.prefill_dp > 0),
        "bench.sh": "\n".join(measure) + "\n",
    }
