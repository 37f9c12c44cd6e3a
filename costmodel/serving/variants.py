"""The same model with some named constants (`costmodel.uncertainty.constants`) multiplied by factors: what error bars vary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from costmodel.mesh.groups import GroupTimes
from costmodel.serving.model import ServingModel
from costmodel.uncertainty.constants import cluster_with

__all__ = ["SERVING_CONSTANTS", "serving_model_with"]

# Constants that a pass depends on: those of kernels, of links, and of the host. `launch_overhead` is here the least time of a kernel in a
# graph that is replayed, `host_launch` what the host takes for a pass.
SERVING_CONSTANTS: tuple[str, ...] = (
    "matmul_rate",
    "matmul_size",
    "attention_rate",
    "sustained_rate",
    "elementwise_rate",
    "memory_rate",
    "launch_overhead",
    "host_launch",
    "intra_node_bandwidth",
    "inter_node_bandwidth",
    "link_latency",
)


def serving_model_with(model: ServingModel, values: Mapping[str, float]) -> ServingModel:
    """A serving model with factors applied; layouts and memory stay as they are.

    Parameters
    ----------
    model : ServingModel
    values : mapping of str to float
        Names of `SERVING_CONSTANTS` -> factor; those that are not named stay 1.
    """
    cluster = cluster_with(model.cluster, values)
    overhead_s = model.assumptions.kernel_overhead_s * values.get("launch_overhead", 1.0)
    host_s = model.assumptions.pass_overhead_s * values.get("host_launch", 1.0)
    assumptions = replace(model.assumptions, kernel_overhead_s=overhead_s, pass_overhead_s=host_s)
    timer = replace(
        model.timer,
        groups=GroupTimes(cluster=cluster),
        assumptions=assumptions,
        device=replace(cluster.device, launch_overhead_s=overhead_s),
    )
    return replace(model, cluster=cluster, timer=timer, assumptions=assumptions)
