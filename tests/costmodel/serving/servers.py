"""Servers of small networks, on devices whose times are easily worked out."""

from __future__ import annotations

from costmodel.hardware.cluster import Cluster, DeviceGroup, Level
from costmodel.hardware.device import Device
from costmodel.hardware.efficiency import Efficiency
from costmodel.network.graph import Graph
from costmodel.precision import PRECISIONS
from costmodel.serving.model import ServingModel
from costmodel.serving.plan import ServingBatch, ServingCosts, ServingPlan
from costmodel.serving.workload import ServingAssumptions, ServingWorkload
from tests.strategies.mesh.networks import decoder

P = ServingPlan
IDEAL = Efficiency(
    matmul_fraction=1, vector_fraction=1, memory_fraction=1, tile_half=0, depth_half=0, fill_outputs=0, split_depth=1
)
NO_OVERHEAD = ServingAssumptions(
    kernel_overhead_s=0.0,
    exchange_overhead_s=0.0,
    pass_overhead_s=0.0,
    memory_utilisation=1.0,
    page_tokens=1.0,
    expert_spread=0.0,
    node_gathers_time=1.0,
)


def cluster(
    *,
    memory_bandwidth: float = 1e12,
    peak: float = 1e18,
    link: float = 100e9,
    latency: float = 1e-6,
    per_node: int = 8,
    efficiency: Efficiency = IDEAL,
) -> Cluster:
    """Devices that are limited by their memory alone unless a peak is given."""
    device = Device(
        name="d",
        peak_flop_per_s={"fp32": peak, "bf16": peak, "fp8": 2 * peak},
        memory_bytes=80e9,
        memory_bandwidth_bytes_per_s=memory_bandwidth,
        efficiency=efficiency,
    )
    levels = (
        Level(name="node", size=per_node, bandwidth_bytes_per_s=link, latency_s=latency),
        Level(name="fabric", size=None, bandwidth_bytes_per_s=link / 8, latency_s=2 * latency),
    )
    return Cluster(name="c", groups=(DeviceGroup(device=device),), levels=levels)


def large(**changes: int) -> Graph:
    """Wide enough that weights outweigh activations."""
    sizes = {
        "blocks": 4,
        "features": 4096,
        "heads": 32,
        "kv_heads": 8,
        "ffn": 14336,
        "vocabulary": 32000,
        "positions": 128,
    }
    return decoder(**(sizes | changes))


def model(
    graph: Graph,
    prompt: int = 512,
    output: int = 64,
    *,
    where: Cluster | None = None,
    weights: str = "bf16",
    kv_bytes: float = 2.0,
    assumptions: ServingAssumptions = NO_OVERHEAD,
) -> ServingModel:
    work = ServingWorkload(
        graph=graph,
        prompt_tokens=prompt,
        output_tokens=output,
        precision=PRECISIONS[weights],
        kv_bytes=kv_bytes,
        context_bytes=0,
    )
    return ServingModel.build(work, where or cluster(), assumptions)


def costs_of(found: ServingModel, plan: ServingPlan) -> ServingCosts:
    return found.evaluate(ServingBatch.from_plans([plan]))


def prompt_s(costs: ServingCosts) -> float:
    """Time of the passes of one prompt, without the queue in front."""
    return float(costs.ttft_s[0] - costs.queue_s[0])
