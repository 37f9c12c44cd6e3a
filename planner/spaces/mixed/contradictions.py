"""Options that no plan over several kinds of devices obeys together: which of them contradict, and why."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from costmodel.hardware.cluster import Cluster
from costmodel.mixed.model import MixedModel
from planner.core.errors import UsageError
from planner.question.fixed import fixed_by, flags_of, given_text, near_multiples, only
from planner.question.mixed import with_fixed
from planner.spaces.mesh.contradictions import smallest_set, too_many_gpus
from planner.spaces.mixed.space import MixedPlanSpace
from strategies.mesh.settings import Bounds, MeshRestriction
from strategies.mixed.families import legal_degrees
from strategies.mixed.search import search_mixed
from strategies.mixed.settings import MixedSettings

__all__ = ["refuse_contradiction"]

# Room for anything, so that only what is legal decides.
_ENDLESS_BYTES = 1e30
# A look for any plan at all; what is not found by then counts as being there.
_WALL_S = 3.0
_MOST_MESSAGES = 4


def refuse_contradiction(space: MixedPlanSpace, settings: MixedSettings) -> None:
    """Refuse options that leave no legal plan; to be asked where a search found none.

    Parameters
    ----------
    space : MixedPlanSpace
    settings : MixedSettings
        Without what is fixed.

    Raises
    ------
    UsageError
        Names the fewest options that exclude all plans, and what they break.
    """
    fixed, batch = fixed_by(space.resolved.request), space.model.shape.global_batch
    roomy = _without_limits(space.model)

    def is_empty(chosen: frozenset[str]) -> bool:
        return _is_empty(roomy, with_fixed(settings, only(fixed, chosen), batch))

    flags = list(dict.fromkeys(flags_of(fixed).values()))
    if not flags or not is_empty(frozenset(flags)):
        return
    chosen = smallest_set(flags, is_empty)
    given = " ".join(given_text(fixed, flag) for flag in chosen)
    together = " exclude each other" if len(chosen) > 1 else ""
    groups = ", ".join(f"{count} {name}" for count, name in zip(space.devices, space.names, strict=True))
    raise UsageError(
        f"{given}{together}: {_reason(space, only(fixed, frozenset(chosen)), groups)}; no legal plan of "
        f"'{space.resolved.setting.model}' at global batch {batch} on {groups} has {'them' if len(chosen) > 1 else 'it'}"
    )


def _without_limits(model: MixedModel) -> MixedModel:
    groups = tuple(
        dataclasses.replace(group, device=dataclasses.replace(group.device, memory_bytes=_ENDLESS_BYTES))
        for group in model.cluster.groups
    )
    return MixedModel.build(model.workload, dataclasses.replace(model.cluster, groups=groups), model.assumptions)


def _is_empty(roomy: MixedModel, settings: MixedSettings) -> bool:
    if not legal_degrees(roomy, settings) or not _can_share(settings, roomy.shape.global_batch):
        return True
    any_plan = dataclasses.replace(settings, top=1, gap=1.0, capacity_bytes=(), wall_s=_WALL_S)
    outcome = search_mixed(roomy.workload, roomy.cluster, any_plan)
    return not outcome.candidates and not outcome.out_of_time


def _can_share(settings: MixedSettings, batch: int) -> bool:
    """Whether some number of replicas can share the batch at all, wherever they are; spares a search that would find none."""
    most = min(settings.replicas.most, sum(count or 0 for count in settings.group_limits), batch)
    if settings.must_share and most < 2:
        return False
    counts = [n for n in range(1, batch + 1) if settings.num_micro_batches.allows(n)]
    shares = sorted({size * n for size in settings.micro_batches for n in counts if size * n <= batch})
    reachable = 1  # sums of so many shares, as bits
    for replicas in range(1, int(most) + 1):
        sums = 0
        for share in shares:
            sums |= reachable << share
        reachable = sums & ((1 << (batch + 1)) - 1)
        if reachable >> batch & 1 and settings.replicas.allows(replicas):
            return True
    return False


def _reason(space: MixedPlanSpace, fixed: MeshRestriction, groups: str) -> str:
    degrees, batch = fixed.degrees, space.model.shape.global_batch
    least = {field: max(bounds.least, 1) for field, bounds in degrees.items()}
    blocks = space.model.shape.num_blocks
    problems = [
        *too_many_gpus(least, space.resolved.request.gpus),
        *_no_degree(space, fixed),
        *_too_many_samples(degrees, least, batch),
    ]
    if least.get("pp", 1) > blocks:
        problems.append(f"every stage has a block, and the network has {blocks}")
    if fixed.flags.get("sequence_parallel"):
        problems.append("positions are cut between the ranks of tensor parallelism, which needs tp > 1")
    if "zero_stage" in degrees and degrees["zero_stage"].least > 0 and not problems:
        problems.append(
            f"the equal replicas of a pipeline share optimizer state, so that one needs two of them ({groups})"
        )
    return "; ".join(problems) or (
        f"a pipeline takes replicas x tp devices of a group for every stage there ({groups}), and the samples of all replicas add up to "
        f"--batch {batch}"
    )


def _no_degree(space: MixedPlanSpace, fixed: MeshRestriction) -> list[str]:
    """Why none of the tensor-parallel degrees is legal; nothing where one is."""
    wanted, cut = fixed.degrees.get("tp"), fixed.flags.get("sequence_parallel") is not False
    free = MixedSettings(sequence_parallel=cut)
    legal = legal_degrees(space.model, free)
    if wanted is None or any(wanted.allows(tp) for tp in legal):
        return []
    inside = _inside(space.model.cluster)
    tried = wanted.values or range(wanted.least, int(min(wanted.most, wanted.least + _MOST_MESSAGES)) + 1)
    faults = [fault for tp in tried[:_MOST_MESSAGES] for fault in space.model.degree_faults(tp, sequence_parallel=cut)]
    listed = ", ".join(map(str, legal))
    return [*dict.fromkeys(faults), f"tp stays inside a group and {inside}; allowed: {listed}"]


def _inside(cluster: Cluster) -> str:
    level = cluster.levels[0]
    return f"a unit of level '{level.name}'" + (f", whose {level.size} devices it divides" if level.size else "")


def _too_many_samples(degrees: Mapping[str, Bounds], least: Mapping[str, int], batch: int) -> list[str]:
    """Replicas and micro-batches that need more samples than there are, or are all given and make another number."""
    words = {"dp": "dp", "micro_batch": "micro-batch", "num_micro_batches": "micro-batches"}
    used = {name: least[name] for name in words if name in least}
    product = math.prod(used.values())
    text = " x ".join(f"{words[name]} {value}" for name, value in used.items())
    text += f" = {product}" if len(used) > 1 else ""
    sizes = degrees["micro_batch"].values if "micro_batch" in degrees else ()
    if len(sizes) == 1 and batch % sizes[0]:
        return [f"micro-batch {sizes[0]} does not divide --batch {batch} (nearby: {near_multiples(batch, sizes[0])})"]
    counts = degrees["num_micro_batches"].values if "num_micro_batches" in degrees else ()
    if len(counts) == 1 and batch % counts[0]:
        near = near_multiples(batch, counts[0])
        return [
            f"replicas of {counts[0]} micro-batches each take a multiple of that, which --batch {batch} is not (nearby: {near})"
        ]
    if product > batch:
        return [f"{text} is more than --batch {batch}"]
    exact = len(used) == len(words) and all(len(degrees[name].values) == 1 for name in words)
    if exact and product != batch:
        return [f"{text} is not --batch {batch}; use --batch {product}"]
    return []
