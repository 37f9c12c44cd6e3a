"""What to say where nothing fits: the nearest miss, and the cheapest change after which something does. Every advice was tried."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator

import numpy as np

from costmodel.layerwise.splits import divisors
from costmodel.mesh.plan import MESH_FIGURES, RECOMPUTE, MeshPlan
from costmodel.tolerances import EQUAL
from planner.core.errors import NoFeasiblePlan
from planner.core.quantities import format_bytes, format_seconds
from planner.core.search_errors import no_plan_in_time
from planner.question.fixed import flag_of, flags_of, without
from planner.spaces.mesh.host_miss import host_miss
from planner.spaces.mesh.labels import mesh_plan_in_words
from planner.spaces.mesh.space import MeshPlanSpace
from strategies.mesh.search import search_corner
from strategies.mesh.settings import MeshCandidate, MeshOutcome, MeshSettings, NearestMiss

__all__ = ["nothing_fits", "remedy"]

# Searches for a way out are short: each at most so long, and so many doublings of the GPUs.
_WALL_S = 5.0
_DOUBLINGS = 8


def nothing_fits(space: MeshPlanSpace, settings: MeshSettings, outcome: MeshOutcome) -> Exception:
    """Say why a search found no plan."""
    if outcome.nearest_miss is None and space.resolved.cluster.host is None:
        return no_plan_in_time()
    way_out = _relaxed(space, settings) or _more_gpus(space, settings)
    return NoFeasiblePlan(f"nothing fits: {_miss(space, settings, outcome.nearest_miss)}; {way_out or _ADVICE}")


_ADVICE = (
    "nor was anything found on more GPUs; use a device with more memory, a shorter --seq, --lora-rank, or "
    "--optimizer sgd"
)


def _miss(space: MeshPlanSpace, settings: MeshSettings, miss: NearestMiss | None) -> str:
    """The plan that comes closest. The search takes hosts for endless to find it; where they are not, what is missing there is said."""
    have = space.resolved.setting.memory_capacity_bytes
    ranked = None if miss is None else space.rank([miss.plan])[0]
    beyond = ranked is None or miss is None or ranked.memory_bytes_per_gpu > miss.memory_bytes * (1 + EQUAL)
    short = host_miss(space, settings) if beyond and space.resolved.cluster.host is not None else None
    if short is not None or ranked is None or miss is None:
        return (
            short
            or f"what the GPUs have no room for is more than their hosts hold: host memory {space.host_memory().value}"
        )
    largest = max(ranked.memory_parts, key=lambda name: ranked.memory_parts[name])
    endless = f" ({format_bytes(miss.memory_bytes)} if its host had room for all that is offloaded)" if beyond else ""
    return (
        f"the nearest miss ({mesh_plan_in_words(miss.plan)}) needs {format_bytes(ranked.memory_bytes_per_gpu)} per GPU{endless} and there "
        f"are {format_bytes(have)}; the largest part is {MESH_FIGURES[largest].label} with {format_bytes(ranked.memory_parts[largest])}"
        f"{space.host_in_words(ranked)}"
    )


def _relaxed(space: MeshPlanSpace, settings: MeshSettings) -> str | None:
    """The option without which the best plan fits."""
    flags = flags_of(settings.restriction)
    found: list[tuple[float, str, MeshCandidate]] = []
    for flag in dict.fromkeys(flags.values()):
        candidate = _best(space, dataclasses.replace(settings, restriction=without(settings.restriction, flag)))
        if candidate is not None:
            found.append((candidate.score, flag, candidate))
    if not found:
        return None
    _, flag, candidate = min(found, key=lambda entry: entry[:2])
    return f"without {flag} it fits: {_described(candidate)}"


def _more_gpus(space: MeshPlanSpace, settings: MeshSettings) -> str | None:
    """The least doubling of the GPUs after which something fits."""
    most = space.resolved.cluster.max_devices
    gpus = settings.max_workers
    deadline = time.monotonic() + _WALL_S
    for _ in range(_DOUBLINGS):
        gpus *= 2
        if (most is not None and gpus > most) or time.monotonic() > deadline:
            return None
        candidate = _best(space, dataclasses.replace(settings, max_workers=gpus))
        if candidate is not None:
            return f"with --gpus {gpus} it fits: {_described(candidate)}"
    return None


def _best(space: MeshPlanSpace, settings: MeshSettings) -> MeshCandidate | None:
    """The best plan with degrees that are powers of two: to say what would help, that is enough."""
    short = dataclasses.replace(settings, top=1, wall_s=min(settings.wall_s, _WALL_S))
    outcome = search_corner(space.model, short)
    return outcome.candidates[0] if outcome.candidates else None


def _described(candidate: MeshCandidate) -> str:
    return f"{mesh_plan_in_words(candidate.plan)}, {format_seconds(candidate.step_time_s)} per step"


def remedy(space: MeshPlanSpace, plan: MeshPlan) -> str:
    """Name the change of a plan that does not fit after which it does, at the least cost in time."""
    variants = [variant for variant in _variants(space, plan) if not space.broken(variant)]
    if variants:
        costs = space.costs(variants)
        fits = costs.memory_bytes <= space.resolved.setting.memory_capacity_bytes
        if fits.any():
            n = int(np.argmin(np.where(fits, costs.step_time_s, np.inf)))
            change = " ".join(_changes(plan, variants[n]))
            return f"it fits with {change}: {format_seconds(float(costs.step_time_s[n]))} per step"
    return "no ZeRO stage, recomputation, offload or smaller micro-batch makes it fit; `planner optimize` searches the other degrees"


def _variants(space: MeshPlanSpace, plan: MeshPlan) -> Iterator[MeshPlan]:
    """The same degrees with less memory."""
    zeros = range(plan.zero_stage, 4) if plan.dp * plan.cp > 1 else (plan.zero_stage,)
    modes = RECOMPUTE[RECOMPUTE.index(plan.recompute) :]
    offloads = [(o, a) for o in (plan.offload_optimizer, True) for a in (plan.offload_activations, True)]
    sizes = divisors(plan.micro_batch)
    for zero, mode, (optimizer, activations), size in itertools.product(zeros, modes, dict.fromkeys(offloads), sizes):
        shard = plan.dp if zero > 0 and plan.dp_shard == 1 else plan.dp_shard
        changed = dataclasses.replace(
            plan,
            zero_stage=zero,
            dp_shard=shard,
            dp_replicate=plan.dp // shard,
            recompute=mode,
            recompute_blocks=space.blocks_per_stage(plan) if mode == "full" else 0,
            offload_optimizer=optimizer,
            offload_activations=activations,
            micro_batch=size,
            num_micro_batches=plan.num_micro_batches * (plan.micro_batch // size),
        )
        if changed != plan:
            yield changed


def _changes(plan: MeshPlan, changed: MeshPlan) -> list[str]:
    """Options that turn one plan into the other."""
    words = [
        f"{flag_of(field)} {getattr(changed, field)}"
        for field in ("zero_stage", "recompute", "micro_batch")
        if getattr(changed, field) != getattr(plan, field)
    ]
    if changed.recompute == plan.recompute and changed.recompute_blocks != plan.recompute_blocks:
        words.append(f"--recompute-blocks {changed.recompute_blocks}")
    offloads = (changed.offload_optimizer, changed.offload_activations)
    if offloads != (plan.offload_optimizer, plan.offload_activations):
        names = [name for name, is_on in zip(("optimizer", "activations"), offloads, strict=True) if is_on]
        words.append(f"--offload {','.join(names)}")
    return words
