"""Servers of two kinds: some read prompts, the others decode, and a router in front takes each request through one of both.

The largest servers come first and take the first node that has room for them. One that is larger than a node takes whole nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from planner.exporters.account import Account
from planner.exporters.job import Nodes, ServingJob
from planner.exporters.serving import replicas_that_share, server_devices

PREFILL, DECODE = "prefill", "decode"
# Of the endpoint that the router has.
ROUTER_PORT = 8000
_WAIT = "wait -n  # the first that ends takes the others with it"


def pools_of(job: ServingJob) -> dict[str, ServingJob]:
    """Both kinds of servers of a plan with a prefill pool, as jobs of their own.

    Examples
    --------
    >>> from costmodel.serving.plan import ServingPlan
    >>> from planner.exporters.job import Origin
    >>> origin = Origin(model="m", cluster="c", device="d", summary="", prediction=(), planner_version="", plan_name="")
    >>> plan = ServingPlan(tp=8, max_batch=64, prefill_dp=2, prefill_tp=4, prefill_batch=3)
    >>> job = ServingJob(plan=plan, origin=origin, nodes=Nodes(workers=16, capacity=8), stages=(32,), prefill_stages=(32,),
    ...     has_experts=False, prompt_tokens=1024, output_tokens=256, precision="bf16", kv_precision="bf16", memory_utilisation=0.9)
    >>> [(role, pool.plan.tp, pool.plan.dp, pool.plan.max_batch) for role, pool in pools_of(job).items()]
    [('prefill', 4, 2, 6), ('decode', 8, 1, 64)]
    """
    from costmodel.serving.plan import POOL_SETTINGS, ServingPlan  # most plans are for training

    plan = job.plan
    own = {name.removeprefix("prefill_"): getattr(plan, name) for name in POOL_SETTINGS}
    # A worker holds the prompts of its passes, and of one that waits to be fetched (`costmodel.serving.pools.held_prompts`).
    held = plan.prefill_batch * (plan.prefill_pp + 1)
    # A replica that drafts needs the drafter's cache of the prompt, too.
    drafts = {"draft_tokens": plan.draft_tokens}
    readers = ServingPlan(
        **own, **drafts, max_batch=held, prefill_chunk=plan.prefill_chunk, prefill_batch=plan.prefill_batch
    )
    decoders = ServingPlan(
        **drafts, tp=plan.tp, pp=plan.pp, ep=plan.ep, etp=plan.etp, dp=plan.dp, max_batch=plan.max_batch
    )
    parts = {PREFILL: (readers, job.prefill_stages), DECODE: (decoders, job.stages)}
    return {
        role: dataclasses.replace(
            job, role=role, plan=part, stages=stages, nodes=Nodes(workers=part.workers, capacity=job.nodes.capacity)
        )
        for role, (part, stages) in parts.items()
    }


class Place(NamedTuple):
    """Where a server lies.

    Attributes
    ----------
    role : str
    nodes : range
        Numbers of its nodes.
    first : int
        Its first device on each of them.
    devices : int
        On each of them.
    """

    role: str
    nodes: range
    first: int
    devices: int

    @property
    def listed(self) -> str:
        """Its devices, as CUDA_VISIBLE_DEVICES wants them."""
        return ",".join(map(str, range(self.first, self.first + self.devices)))


def places(pools: Mapping[str, ServingJob], capacity: int, *, apart: bool = False) -> list[Place]:
    """Where all servers lie; ``apart`` keeps the two kinds on nodes of their own.

    Examples
    --------
    Two servers of 2 devices share a node with one of 4:

    >>> from planner.exporters.job import Origin
    >>> origin = Origin(model="m", cluster="c", device="d", summary="", prediction=(), planner_version="", plan_name="")
    >>> from costmodel.serving.plan import ServingPlan
    >>> plan = ServingPlan(tp=4, prefill_dp=2, prefill_tp=2)
    >>> job = ServingJob(plan=plan, origin=origin, nodes=Nodes(workers=8, capacity=8), stages=(32,), prefill_stages=(32,),
    ...     has_experts=False, prompt_tokens=1024, output_tokens=256, precision="bf16", kv_precision="bf16", memory_utilisation=0.9)
    >>> [(place.role, list(place.nodes), place.listed) for place in places(pools_of(job), 8)]
    [('decode', [0], '0,1,2,3'), ('prefill', [0], '4,5'), ('prefill', [0], '6,7')]
    """
    servers = [
        (role, server_devices(pool))
        for role, pool in pools.items()
        for _ in range(pool.plan.dp // replicas_that_share(pool))
    ]
    servers.sort(key=lambda server: (apart and server[0] != PREFILL, -server[1]))
    found: list[Place] = []
    left: list[int] = []  # devices of each node that are free
    begin = 0
    for role, devices in servers:
        if apart and found and found[-1].role != role:
            begin = len(left)
        node = next((n for n in range(begin, len(left)) if devices <= left[n]), len(left))
        span = max(devices // capacity, 1)
        if node == len(left):
            left += [capacity] * span
        place = Place(role, range(node, node + span), capacity - left[node], devices // span)
        for number in place.nodes:
            left[number] -= place.devices
        found.append(place)
    return found


def on_whole_nodes(job: ServingJob) -> ServingJob:
    """The job on the nodes that its servers take; the same where it has no prefill pool."""
    if not job.plan.prefill_dp:
        return job
    capacity = job.nodes.capacity
    count = 1 + max(place.nodes[-1] for place in places(pools_of(job), capacity, apart=bool(job.prefill_device)))
    workers = job.plan.workers if count == 1 else count * capacity
    return dataclasses.replace(job, nodes=dataclasses.replace(job.nodes, workers=workers))


def uneven_pools(job: ServingJob) -> list[str]:
    """Servers that are larger than a node and do not fill whole nodes."""
    capacity = job.nodes.capacity
    return [
        f"a {role} server of {server_devices(pool)} devices does not fill whole nodes of {capacity}"
        for role, pool in pools_of(job).items()
        if server_devices(pool) > capacity and server_devices(pool) % capacity
    ]


def account_pools(job: ServingJob, found: Sequence[Place], account: Account) -> str:
    """Say where the servers lie, in a sentence that is also returned."""
    capacity = job.nodes.capacity
    lies = []
    for role in (PREFILL, DECODE):
        own = [place for place in found if place.role == role]
        numbers = sorted({number for place in own for number in place.nodes})
        are = f"node{'s' if numbers[1:] else ''} {', '.join(map(str, numbers))}"
        size = own[0].devices * len(own[0].nodes)
        lies.append(f"{role}: {len(own)} server{'s' if own[1:] else ''} of {size} devices on {are}")
    where = "; ".join(lies)
    least = -(-job.plan.workers // capacity)
    if job.nodes.count > least and not job.prefill_device:
        account.impossible("placement", f"{where}: {job.nodes.count} nodes, and the prediction is for {least}")
    else:
        account.written["placement"] = where
    if job.prefill_device:
        account.left_to_user(
            "prefill_device", f"give the prefill nodes {job.prefill_device}: a Slurm job asks for nodes of one kind"
        )
    return where


def start_of_pools(
    job: ServingJob,
    found: Sequence[Place],
    *,
    port: int,
    launch: Sequence[str],
    more: Callable[[Place, int], Sequence[str]],
    router: Sequence[str],
) -> list[str]:
    """Bash lines that start, on every node, the servers that lie on it, and on the first node the router.

    Parameters
    ----------
    job : ServingJob
        On the nodes of its servers (`on_whole_nodes`).
    found : sequence of Place
    port : int
        A server's port is this and its first device.
    launch : sequence of str
        Lines that start a server with ``$devices``, ``$port``, its role's arguments ``${args[@]}`` and ``$@``.
    more : function of (place, number among the server's nodes) to sequence of str
        Bash words behind the arguments of the role.
    router : sequence of str
        Words of its command.
    """
    rank = (
        "node=0"
        if job.nodes.count == 1
        else 'node="${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK to the number of this node}}"'
    )
    addresses = (
        "localhost"
        if job.nodes.count == 1
        else "${NODES:?set NODES to the addresses of all nodes, separated by commas}"
    )
    lines = [
        "# Started on every node: the servers that lie on it. The first node has the router, which is the endpoint.",
        "# ROLE=prefill, decode or router starts these alone.",
        rank,
        f'IFS=, read -r -a nodes <<<"{addresses}"',
        'here="${nodes[$node]}"',
        'rest=("$@")',
        "pids=()",
        'stop() { kill "${pids[@]}" 2>/dev/null || true; }',
        "trap stop EXIT",
        "server() {  # role, devices, port, more arguments",
        '  local role="$1" devices="$2" port="$3"',
        "  shift 3",
        '  [[ "${ROLE:-$role}" == "$role" ]] || return 0',
        '  local -n args="${role^^}"',
        *(f"  {line}" for line in launch),
        '  pids+=("$!")',
        "}",
        "",
        'case "$node" in',
    ]
    for node in range(job.nodes.count):
        lines.append(f"{node})")
        for place in found:
            if node in place.nodes:
                words = ["server", place.role, place.listed, str(port + place.first)]
                lines.append("  " + " ".join([*words, *more(place, node - place.nodes[0])]))
        lines.append("  ;;")
    return [
        *lines,
        "esac",
        'if [[ "$node" -eq 0 && "${ROLE:-router}" == router ]]; then',
        "  " + " \\\n    ".join(router) + " &",
        '  pids+=("$!")',
        "fi",
        '[[ "${#pids[@]}" -eq 0 ]] || ' + _WAIT,
    ]


def url_of(place: Place, port: int) -> str:
    """Of the endpoint of a server, in bash."""
    return f'"http://${{nodes[{place.nodes[0]}]}}:{port + place.first}"'
