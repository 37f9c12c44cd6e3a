"""What to say where no plan over several kinds of devices was found: the nearest miss, and a change after which something fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from costmodel.mesh.modules import MeshError
from costmodel.mesh.plan import MESH_FIGURES
from costmodel.mixed.plan import describe
from planner.core.capacity import usable_bytes
from planner.core.errors import NoFeasiblePlan, UsageError
from planner.core.quantities import format_bytes
from planner.question.fixed import fixed_by, flags_of, without
from planner.question.mixed import with_fixed
from planner.spaces.mixed.contradictions import refuse_contradiction
from planner.spaces.mixed.space import MixedPlanSpace
from strategies.mixed.families import legal_degrees
from strategies.mixed.search import search_mixed
from strategies.mixed.settings import MixedOutcome, MixedSettings

__all__ = ["nothing_fits", "searched"]

Progress = Callable[[str, float], None]

# A look at more devices, or without what is fixed, where nothing fits.
_REMEDY_S = 5.0


def searched(space: MixedPlanSpace, settings: MixedSettings, progress: Progress | None = None) -> MixedOutcome:
    """Search; without a legal tensor-parallel degree there is nothing to look at.

    Raises
    ------
    UsageError
        The network or the cluster cannot be planned like this.
    """
    if not legal_degrees(space.model, settings):
        refuse_contradiction(space, settings)
    try:
        return search_mixed(space.resolved.workload, space.resolved.cluster, settings, progress)
    except MeshError as error:
        raise UsageError(str(error)) from None


def nothing_fits(space: MixedPlanSpace, settings: MixedSettings, outcome: MixedOutcome) -> Exception:
    """Say why a search found no plan."""
    batch = space.model.shape.global_batch
    refuse_contradiction(space, settings)
    miss = outcome.nearest_miss
    if miss is None:
        where = "of the stated space" if fixed_by(space.resolved.request).is_free else "within what is fixed"
        return NoFeasiblePlan(f"nothing fits: no plan {where} for a batch of {batch}; {_way_out(space, settings)}")
    ranked = space.rank([miss.plan])[0]
    part = max(ranked.memory_parts, key=lambda name: ranked.memory_parts[name])
    return NoFeasiblePlan(
        f"nothing fits: the nearest miss ({describe(miss.plan, space.model.cluster)}) needs {format_bytes(miss.memory_bytes)} per GPU "
        f"of {space.names[miss.group]} and there are {format_bytes(miss.capacity_bytes)}; the largest part is {MESH_FIGURES[part].label} "
        f"with {format_bytes(ranked.memory_parts[part])}; {_way_out(space, settings)}"
    )


def _way_out(space: MixedPlanSpace, settings: MixedSettings) -> str:
    """What would help: first what was left unused or fixed, then what always does."""
    request = space.resolved.request
    everything = tuple(group.num_devices for group in space.model.cluster.groups)
    unlimited = dataclasses.replace(request, memory_limit=None)
    own = tuple(usable_bytes(unlimited, group.device) for group in space.model.cluster.groups)
    quick = dataclasses.replace(settings, top=1, wall_s=_REMEDY_S, gap=1.0)
    tries = []
    if space.devices != everything:
        words = f"with --gpus {sum(n or 0 for n in everything)} it works"
        tries.append((words, dataclasses.replace(quick, group_limits=everything)))
    if request.memory_limit is not None and space.capacity_bytes != own:
        words = f"without --memory-limit {request.memory_limit} it works"
        tries.append((words, dataclasses.replace(quick, capacity_bytes=own)))
    fixed, batch = fixed_by(request), space.model.shape.global_batch
    tries += [
        (f"without {flag} it works", with_fixed(quick, without(fixed, flag), batch))
        for flag in dict.fromkeys(flags_of(fixed).values())
    ]
    for words, wider in tries:
        found = searched(space, wider).best
        if found is not None:
            return f"{words}: {describe(found.plan, space.model.cluster)}"
    return "use more devices or devices with more memory, a shorter --seq, or --lora-rank to train adapters only"
