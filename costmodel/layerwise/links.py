"""The groups of a plan with a split per layer, the links that they use, and how long a step waits for each."""

from __future__ import annotations

from collections.abc import Mapping

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.links import LinkRow, link_rows
from costmodel.layerwise.plan import Plan

__all__ = ["layer_links"]


def layer_links(cluster: Cluster, plan: Plan, exposed_s: Mapping[int, float], reshard_s: float) -> list[LinkRow]:
    """Gradient exchanges by the groups that carry them, and the moves of activations.

    Parameters
    ----------
    cluster : Cluster
    plan : Plan
    exposed_s : mapping of int to float
        Layer -> what the step waits for its exchange; of layers that exchange something.
    reshard_s : float
        What the step waits for activations and their gradients: between all workers, or between neighbouring stages.

    Returns
    -------
    list of LinkRow
    """
    groups: dict[tuple[int, int], float] = {}
    for layer, waiting_s in exposed_s.items():
        split = plan.splits[layer]
        key = split.batch * split.height, split.out_channels * split.in_channels
        groups[key] = groups.get(key, 0.0) + waiting_s
    found = [("gradient exchange", size, stride, waiting) for (size, stride), waiting in sorted(groups.items())]
    if plan.is_pipeline:
        found.append(("between stages", 2, max(stage.replicas for stage in plan.stages), reshard_s))
    else:
        found.append(("activations", plan.workers, 1, reshard_s))
    return link_rows(cluster, found)
