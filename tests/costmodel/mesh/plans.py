"""Networks, clusters and random legal plans for the tests of the mesh cost model."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from costmodel.framework import NO_FRAMEWORK, Framework
from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import Efficiency
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import CP_KINDS, ORDERS, RECOMPUTE, MeshCosts, MeshPlan
from costmodel.mesh.rules import NetworkShape, broken_rules
from costmodel.network.graph import Graph
from costmodel.schedules import SCHEDULES, schedule_of
from tests.networks import Layers
from tests.strategies.mesh.networks import decoder, two_level_cluster, workload_of

# Nothing hides behind anything and nothing is lost: times are bytes over bandwidth, memory is tensors.
BARE = MeshAssumptions(
    tp_overlap=0.0,
    column_overlap=0.0,
    cp_overlap=0.0,
    ep_overlap=0.0,
    expert_spread=0.0,
    node_copies=1.0,
    pp_overlap=0.0,
    scattered_handover=0.0,
    dp_overlap=0.0,
    interference=0.0,
    offload_overlap=0.0,
    bucket_bytes=0.0,
    bucket_bytes_per_rank=0.0,
    gradient_passes=0.0,
    allocator_slack=0.0,
    host_launch_s=0.0,
    host_collective_s=0.0,
    logits_copies=1.0,
    loss_bytes_per_logit=0.0,
)


def gpt(
    *,
    blocks: int = 2,
    features: int = 64,
    heads: int = 4,
    positions: int = 32,
    vocabulary: int = 512,
    fused: bool = False,
    dropout: bool = True,
    tied: bool = True,
) -> Graph:
    """The block of Korthikanti et al. (arXiv:2205.05198), figure 2: norm, attention, dropout, residual, norm, MLP, dropout, residual."""
    layers = Layers()
    add = layers.add
    tokens = add("tokens", "input", shape=(1, positions))
    previous = add("embedding", "embedding", tokens, num_embeddings=vocabulary, dim=features)
    for n in range(blocks):
        block = f"blocks.{n}"
        norm = add("norm1", "layer_norm", previous, block=block)
        qkv = add("qkv", "linear", norm, block=block, out_features=3 * features)
        attention = add(
            "attention",
            "self_attention",
            qkv,
            block=block,
            heads=heads,
            head_dim=features // heads,
            fused=fused,
            dropout=dropout,
        )
        proj = add("proj", "linear", attention, block=block, out_features=features)
        branch = add("dropout1", "dropout", proj, block=block, keep=0.9) if dropout else proj
        middle = add("add1", "add", branch, previous, block=block)
        norm = add("norm2", "layer_norm", middle, block=block)
        up = add("up", "linear", norm, block=block, out_features=4 * features)
        gelu = add("gelu", "activation", up, block=block, function="gelu")
        down = add("down", "linear", gelu, block=block, out_features=features)
        branch = add("dropout2", "dropout", down, block=block, keep=0.9) if dropout else down
        previous = add("add2", "add", branch, middle, block=block)
    norm = add("norm", "layer_norm", previous)
    head = add("head", "linear", norm, out_features=vocabulary, bias=False, tied=tied)
    add("loss", "softmax", head)
    return layers.graph("gpt")


def ideal_cluster(
    *, bandwidth: float = 1e9, peak: float = 1e12, memory_bandwidth: float = 1e12, launch: float = 0.0
) -> Cluster:
    """One level without latency, devices without losses: times are volume over rate."""
    device = Device(
        name="ideal",
        peak_flop_per_s={"fp32": peak, "bf16": peak},
        memory_bytes=80e9,
        memory_bandwidth_bytes_per_s=memory_bandwidth,
        launch_overhead_s=launch,
        efficiency=Efficiency(
            matmul_fraction=1, vector_fraction=1, memory_fraction=1, tile_half=0, depth_half=0, fill_outputs=0
        ),
    )
    levels = (Level(name="link", size=None, bandwidth_bytes_per_s=bandwidth, latency_s=0.0),)
    return Cluster(name="ideal", groups=(DeviceGroup(device=device),), levels=levels)


def ideal_nodes(size: int, *, inside: float = 1e9) -> Cluster:
    """Nodes of ideal devices, with links between them of 1 GB/s."""
    levels = (
        Level(name="node", size=size, bandwidth_bytes_per_s=inside, latency_s=0.0),
        Level(name="fabric", size=None, bandwidth_bytes_per_s=1e9, latency_s=0.0),
    )
    return replace(ideal_cluster(), levels=levels)


def model_of(
    graph: Graph,
    batch: int,
    cluster: Cluster,
    assumptions: MeshAssumptions = BARE,
    framework: Framework = NO_FRAMEWORK,
) -> MeshModel:
    """bf16, Adam."""
    workload = replace(workload_of(graph, cluster, batch), framework=framework)
    return MeshModel.build(workload, cluster, assumptions)


def shape_of(model: MeshModel) -> NetworkShape:
    """What the rules refer to."""
    return NetworkShape.of(model.workload.graph, model.modules, model.workload.global_batch, model.workload.framework)


def network(rng: random.Random, *, blocks: int | None = None) -> Graph:
    """A small decoder, dense, mixed or of experts only, or a GPT with everything that can be dropped."""
    count = blocks or rng.choice([2, 4, 6, 8])
    if rng.random() < 0.3:
        return gpt(
            blocks=count,
            features=rng.choice([64, 256]),
            heads=4,
            positions=rng.choice([16, 64]),
            fused=rng.random() < 0.5,
            tied=False,
        )
    features = rng.choice([64, 256, 512])
    return decoder(
        blocks=count,
        features=features,
        heads=8,
        kv_heads=rng.choice([1, 2, 8]),
        ffn=2 * features,
        vocabulary=rng.choice([256, 4096]),
        positions=rng.choice([16, 64, 512]),
        experts=rng.choice([0, 0, 4]),
        dense_blocks=rng.choice([0, 1]),
    )


def cluster(rng: random.Random) -> Cluster:
    """Two levels; links that matter and links that do not."""
    return two_level_cluster(
        per_node=rng.choice([2, 4, 8]), inside=rng.choice([20e9, 300e9]), outside=rng.choice([1e9, 25e9])
    )


def assumptions(rng: random.Random) -> MeshAssumptions:
    """Shares that hide anywhere between nothing and everything; the host takes no time."""
    shares = {
        name: rng.choice([0.0, 0.5, 0.9])
        for name in ("tp_overlap", "cp_overlap", "ep_overlap", "pp_overlap", "dp_overlap")
    }
    return MeshAssumptions(
        **shares,
        bucket_bytes=rng.choice([0.0, 1e5, 160e6]),
        bucket_bytes_per_rank=1e5 * shares["tp_overlap"],
        gather_overlap=1.0 - shares["ep_overlap"],
        interference=0.2 * shares["pp_overlap"],
        scattered_handover=float(shares["ep_overlap"] > 0.0),
        expert_spread=2.0 * shares["pp_overlap"],
        expert_capacity=1.25 * float(shares["dp_overlap"] > 0.5),
        expert_padding=float(shares["ep_overlap"] > 0.5),
        node_copies=float(shares["cp_overlap"] > 0.5),
        host_launch_s=0.0,
        host_collective_s=0.0,
    )


def random_plan(
    rng: random.Random, shape: NetworkShape, *, schedule: str | None = None, offload: bool = True
) -> MeshPlan:
    """Any plan that breaks no rule."""
    while True:
        plan = _attempt(rng, shape, schedule, offload=offload)
        if not broken_rules(shape, plan):
            return plan


def _attempt(rng: random.Random, shape: NetworkShape, schedule: str | None, *, offload: bool) -> MeshPlan:
    chosen = schedule or rng.choice(["1f1b", *SCHEDULES])
    pp = rng.choice([2, 2, 3, 4]) if chosen != "1f1b" else rng.choice([1, 2, 3, 4, 5])
    cp, tp = rng.choice([1, 1, 1, 2, 4]), rng.choice([1, 1, 2, 4])
    zero, recompute = rng.choice([0, 1, 2, 3]), rng.choice(RECOMPUTE)
    replicate, shard = rng.choice([1, 1, 2]), rng.choice([1, 2, 2, 3]) if zero else 1
    micro_batch = rng.choice([1, 1, 2])
    per = replicate * shard * micro_batch
    if shape.global_batch % per:
        return MeshPlan(tp=7)  # breaks a rule: try again
    return MeshPlan(
        tp=tp,
        sequence_parallel=tp > 1 and rng.random() < 0.6,
        cp=cp,
        cp_kind=rng.choice(CP_KINDS) if cp > 1 else "ring",
        ep=rng.choice([1, 2, 4]) if shape.experts else 1,
        etp=rng.choice([1, 1, 2]) if shape.experts else 1,
        pp=pp,
        vpp=schedule_of(chosen).vpp or rng.choice([2, 3]),
        schedule=chosen,
        dp_replicate=replicate,
        dp_shard=shard,
        zero_stage=zero,
        micro_batch=micro_batch,
        num_micro_batches=shape.global_batch // per,
        recompute=recompute,
        recompute_blocks=rng.randint(1, shape.num_blocks) if recompute == "full" else 0,
        offload_optimizer=offload and rng.random() < 0.2,
        offload_activations=offload and rng.random() < 0.2,
        order=rng.choice(ORDERS),
    )


def uneven(rng: random.Random, plan: MeshPlan, blocks: int) -> MeshPlan:
    """The same plan with chunks of random lengths, at least one block each."""
    chunks = plan.pp * plan.vpp
    cuts = sorted(rng.sample(range(1, blocks), chunks - 1))
    lengths = tuple(b - a for a, b in zip([0, *cuts], [*cuts, blocks], strict=True))
    return replace(plan, stage_blocks=lengths)


def costs_of_each(model: MeshModel, groups: Sequence[Sequence[MeshPlan]]) -> list[MeshCosts]:
    """Costs of groups of plans, all evaluated at once: calls, not plans, take the time."""
    costs = model.evaluate_plans([plan for group in groups for plan in group])
    ends = np.cumsum([len(group) for group in groups])
    columns = {item.name: np.split(getattr(costs, item.name), ends[:-1]) for item in fields(costs)}
    return [MeshCosts(**{name: column[n] for name, column in columns.items()}) for n in range(len(groups))]


def costs_of_cases(cases: Sequence[tuple[MeshModel, MeshPlan]]) -> list[MeshCosts]:
    """Costs of every case, one row each; neighbours of one model are evaluated at once."""
    models = itertools.groupby(cases, key=lambda case: id(case[0]))
    runs = [list(run) for _, run in models]
    return [costs for run in runs for costs in costs_of_each(run[0][0], [[plan] for _, plan in run])]
