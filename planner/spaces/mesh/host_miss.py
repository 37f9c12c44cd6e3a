"""The nearest miss where the hosts are the limit: the plan for which they need the least memory beyond what they have."""

from __future__ import annotations

import dataclasses
import time

from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MESH_FIGURES, MeshPlan
from planner.core.answer import RankedPlan
from planner.core.quantities import format_bytes
from planner.spaces.mesh.labels import mesh_plan_in_words
from planner.spaces.mesh.space import MeshPlanSpace
from strategies.mesh.search import search_corner
from strategies.mesh.settings import MeshSettings

__all__ = ["host_miss"]

# Hosts are made larger until something fits, so many doublings at most; then the last doubling is halved so often: to 2 %.
_DOUBLINGS, _HALVINGS = 8, 5
_WALL_S = 5.0


def host_miss(space: MeshPlanSpace, settings: MeshSettings) -> str | None:
    """Name the plan that comes closest to fitting on the hosts, what it needs on both sides, and the largest part.

    Parameters
    ----------
    space : MeshPlanSpace
        Of a cluster whose host is described.
    settings : MeshSettings
        Of the search that found nothing.

    Returns
    -------
    str or None
        None where no larger host helps.
    """
    found = _least_host(space, settings)
    if found is None:
        return None
    larger, plan = found
    ranked = larger.rank([plan])[0]
    host = space.resolved.cluster.host
    assert host is not None
    largest = max(ranked.memory_parts, key=lambda name: ranked.memory_parts[name])
    return (
        f"the nearest miss ({mesh_plan_in_words(plan)}) needs {format_bytes(ranked['host_bytes_per_gpu'])} on the host for each GPU, most "
        f"of it {_largest_on_host(larger, ranked)}, and there are {format_bytes(host.share_bytes(plan.workers))} "
        f"({space.host_memory().value}); on the GPU it needs {format_bytes(ranked.memory_bytes_per_gpu)} of "
        f"{format_bytes(ranked.memory_capacity_bytes)}, where the largest part is {MESH_FIGURES[largest].label} with "
        f"{format_bytes(ranked.memory_parts[largest])}"
    )


def _least_host(space: MeshPlanSpace, settings: MeshSettings) -> tuple[MeshPlanSpace, MeshPlan] | None:
    """The smallest host, to 2 %, on which something fits; degrees are powers of two, as for every other advice."""
    deadline = time.monotonic() + _WALL_S
    short = dataclasses.replace(settings, top=1, wall_s=min(settings.wall_s, _WALL_S))
    found, low, high = None, 1.0, 1.0
    for _ in range(_DOUBLINGS):
        low, high = high, 2 * high
        found = _on_larger_host(space, short, high)
        if found is not None or time.monotonic() > deadline:
            break
    if found is None:
        return None
    for _ in range(_HALVINGS):
        if time.monotonic() > deadline:
            break
        middle = (low + high) / 2
        better = _on_larger_host(space, short, middle)
        if better is None:
            low = middle
        else:
            found, high = better, middle
    return found


def _on_larger_host(
    space: MeshPlanSpace, settings: MeshSettings, factor: float
) -> tuple[MeshPlanSpace, MeshPlan] | None:
    """The best plan where hosts have so many times their memory."""
    cluster = space.resolved.cluster
    assert cluster.host is not None
    host = dataclasses.replace(cluster.host, memory_bytes=factor * cluster.host.memory_bytes)
    cluster = dataclasses.replace(cluster, host=host)
    model = MeshModel.build(space.resolved.workload, cluster, space.constants)
    candidates = search_corner(model, settings).candidates
    if not candidates:
        return None
    resolved = dataclasses.replace(space.resolved, cluster=cluster)
    return dataclasses.replace(space, resolved=resolved, model=model), candidates[0].plan


def _largest_on_host(space: MeshPlanSpace, ranked: RankedPlan) -> str:
    """Optimizer state or activations, with how much of them is there."""
    state = 0.0
    if ranked.plan.offload_optimizer:
        alone = dataclasses.replace(ranked.plan, offload_activations=False)
        state = min(space.rank([alone])[0]["host_bytes_per_gpu"], ranked["host_bytes_per_gpu"])
    away = ranked["host_bytes_per_gpu"] - state
    name, size = ("optimizer_bytes", state) if state >= away else ("activation_bytes", away)
    return f"{MESH_FIGURES[name].label} ({format_bytes(size)})"
