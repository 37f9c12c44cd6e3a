"""What to know before a plan is run: what few trainers do, hosts that nobody described, what decides, a batch that divides badly."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.hardware.cluster import LinkRow
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.detail import mesh_links
from costmodel.mesh.plan import MeshPlan
from planner.core.answer import RankedPlan
from planner.core.notes import Note
from planner.spaces.base import WORTH_FASTER
from planner.spaces.mesh.plans import mesh_plan_in_words
from planner.spaces.mesh.space import EFFORT, MeshPlanSpace, mesh_space
from strategies.mesh.settings import DISTINCT, MeshSettings

# Searches under a pessimistic assumption, or at another batch, are short (0.1 s for 16,384 GPUs): in a corner of the space (degrees that
# are powers of two), and only roughly. What they find is a plan that exists, so that the sentence is true.
_GAP = 0.02
# Another plan is named if it is better by more than this.
_WORTH_SAYING = 0.01
# Batches further off than this are another training run, not a rounding of this one.
_FEW = 0.05
# Traffic that passes wait for layer by layer.
_INSIDE_LAYERS = ("tensor parallel", "context parallel", "expert parallel")
# A power limit that takes more than this of the rate of large products, in a plan that computes for most of its step, is worth a sentence.
_LIMITED = 0.95
_MOSTLY = 0.5
# Latencies of the gradients' collectives are worth a sentence where they are more than this of a step.
_LATE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pessimism:
    """An assumption that some plans live on, and what it may well be in truth."""

    name: str
    value: float
    words: str
    matters: Callable[[MeshPlan], bool]


# dp_overlap: ZeRO-3 was measured with 44 TFLOP/s per GPU on 1,536 GPUs (arXiv:2104.04473, table 2), far below any such overlap.
# offload_overlap: copies to the host that hide behind nothing.
_PESSIMISMS = (
    _Pessimism(
        name="dp_overlap",
        value=0.5,
        words="weights and gradients travel behind half of the computation only",
        matters=lambda plan: plan.zero_stage == 3,
    ),
    _Pessimism(
        name="offload_overlap",
        value=0.0,
        words="activations on their way to the host hide behind nothing",
        matters=lambda plan: plan.offload_activations,
    ),
)


def cautions(space: MeshPlanSpace, ranked: RankedPlan) -> list[Note]:
    """Say that a plan does what few trainers do, or counts on a host that the cluster file does not describe."""
    notes, plan, cluster = [], ranked.plan, space.resolved.cluster
    if plan.offload_activations:
        notes.append(Note("activations_on_host"))
    size = ranked["host_bytes_per_gpu"]
    if cluster.host is None and size:
        notes.append(Note("host_not_described", host_bytes=size, cluster=space.resolved.setting.cluster))
    return [*notes, *_latency_notes(space, ranked), *_idle_assumptions(space, plan), *_domain_notes(space, ranked)]


def _latency_notes(space: MeshPlanSpace, ranked: RankedPlan) -> list[Note]:
    """Say that gradients and weights wait for the latency of their collectives, of which there is one per bucket or unit of weights."""
    plan, cluster = ranked.plan, space.resolved.cluster
    exposed_s, ranks = ranked.time_parts["dp_exposed_s"], plan.dp_shard * plan.cp
    if exposed_s < _LATE * ranked.step_time_s:
        return []
    levels = tuple(dataclasses.replace(level, latency_s=0.0, ring_step_s=0.0) for level in cluster.levels)
    at_once = space.model.with_constants(
        space.resolved.workload, dataclasses.replace(cluster, levels=levels), space.constants
    )
    share = (exposed_s - float(at_once.evaluate_plans([plan]).dp_exposed_s[0])) / ranked.step_time_s
    if share < _LATE:
        return []
    return [Note("latency_of_units" if plan.zero_stage == 3 else "latency_of_buckets", share=share, ranks=ranks)]


def _idle_assumptions(space: MeshPlanSpace, plan: MeshPlan) -> list[Note]:
    """Name what the user assumed in vain: the plan costs the same as without it."""
    resolved, notes = space.resolved, []
    for name, value in resolved.request.assume:
        usual = getattr(resolved.mesh_assumptions, name)
        constants = dataclasses.replace(space.constants, **{name: usual})
        others = space.model.with_constants(resolved.workload, resolved.cluster, constants)
        figures = [
            (costs.step_time_s[0], costs.memory_bytes[0], costs.host_bytes[0])
            for costs in (model.evaluate_plans([plan]) for model in (space.model, others))
        ]
        if value != usual and figures[0] == figures[1]:
            meaning = MeshAssumptions.__dataclass_fields__[name].metadata["doc"]
            notes.append(Note("assumption_without_effect", assumption=name, value=value, meaning=meaning))
    return notes


def _domain_notes(space: MeshPlanSpace, ranked: RankedPlan) -> list[Note]:
    """Say how much of a domain is used, and which groups lie across its end."""
    plan, cluster, size = ranked.plan, space.resolved.cluster, space.resolved.cluster.domain_size
    if size is None or plan.workers <= 1:
        return []
    used, domains, notes = ranked["gpus_per_domain"], ranked["domains"], []
    what = {"domain": cluster.levels[cluster.domain_level or 0].name, "size": size, "domains": domains}
    if domains > 1 and used < size:
        code = "domains_in_part" if cluster.has_shares else "nodes_in_part"
        notes.append(Note(code, used=used, idle=domains * size - plan.workers, **what))
        least = -(-plan.workers // size)
        if domains > least:
            notes.append(Note("more_domains", least=least, **what))
    for row in mesh_links(space.model, plan):
        block = row.group * row.stride
        if row.traffic not in _INSIDE_LAYERS or row.domains <= -(-block // size):
            continue
        others = [g for g in cluster.shares(plan.workers) if g != used and g % block == 0]
        notes.append(
            Note("groups_straddle", traffic=row.traffic, other=others[0] if others else None, **what, **_lies(row))
        )
    return notes


def _lies(row: LinkRow) -> dict[str, int]:
    return {"group": row.group, "touched": row.domains, "fewest": row.fewest_ranks, "most": row.most_ranks}


def power_notes(space: MeshPlanSpace, ranked: RankedPlan) -> list[Note]:
    """Say that the power limit of the device decides how fast a plan computes."""
    device, used = space.resolved.cluster.device, space.resolved.workload.precision.compute
    share = device.sustained(used) / device.best(used)
    computing_s = ranked.time_parts["compute_s"] - ranked["host_s"]
    if share > _LIMITED or computing_s < _MOSTLY * ranked.step_time_s:
        return []
    return [Note("power_limited", device=device.name, number_format=used, share=share, power_w=device.busy_power_w)]


def pessimistic_notes(space: MeshPlanSpace, settings: MeshSettings, plans: Sequence[RankedPlan]) -> list[Note]:
    """Say which assumption the best plan depends on: under a pessimistic one, another is the best.

    The plans listed are evaluated again, beside the best of a corner of the space (degrees that are powers of two).
    """
    if not space.ranks_by_time:
        return []  # their scores are step times
    notes = []
    for pessimism in _PESSIMISMS:
        now = getattr(space.constants, pessimism.name)
        is_usual = now == getattr(DEFAULT_ASSUMPTIONS, pessimism.name)
        if is_usual and now > pessimism.value and pessimism.matters(plans[0].plan):
            notes += _under(space, settings, plans, pessimism, now)
    return notes


def _under(
    space: MeshPlanSpace, settings: MeshSettings, plans: Sequence[RankedPlan], pessimism: _Pessimism, now: float
) -> list[Note]:
    from strategies.mesh.search import search_corner

    assumptions = dataclasses.replace(space.constants, **{pessimism.name: pessimism.value})
    workload, cluster = space.resolved.workload, space.resolved.cluster
    model = space.model.with_constants(workload, cluster, assumptions)
    restriction = settings.restriction.powers_of_two().narrowed()
    short = dataclasses.replace(settings, restriction=restriction, top=1, gap=max(settings.gap, _GAP), effort=EFFORT)
    found = [candidate.plan for candidate in search_corner(model, short).candidates]
    pool = [*(plan.plan for plan in plans), *found]
    first, now_s = pool[0], space.model.evaluate_plans(pool).step_time_s
    # A plan that is faster already depends on nothing, and one that rests on another such assumption is no way out.
    others = (now_s >= now_s[0]) & np.array([p.offload_activations <= first.offload_activations for p in pool])
    steps = np.where(others, model.evaluate_plans(pool).step_time_s, np.inf)
    n = int(steps.argmin())
    best = pool[n]
    is_other = any(getattr(best, name) != getattr(first, name) for name in DISTINCT)
    if not is_other or float(steps[n]) > (1 - _WORTH_SAYING) * float(steps[0]):
        return []
    return [
        Note(
            "depends_on_assumption",
            assumption=pessimism.name,
            value=now,
            other_value=pessimism.value,
            meaning=pessimism.words,
            step_time_s=float(steps[0]),
            other_plan=mesh_plan_in_words(best),
            other_step_time_s=float(steps[n]),
        )
    ]


def rounder_batch(batch: int, gpus: int) -> int | None:
    """The batch within 5 % that shares the highest power of two with the GPUs, where the given one shares a lower one.

    Powers of two, since tensor, pipeline and data parallelism over nodes of 8 GPUs mostly have such degrees.

    Examples
    --------
    >>> rounder_batch(127, 64), rounder_batch(1000, 64), rounder_batch(100, 64)
    (128, 1024, 96)
    >>> rounder_batch(128, 64), rounder_batch(192, 128), rounder_batch(10, 64)
    (None, None, None)
    """
    unit = gpus & -gpus
    shared = math.gcd(batch, unit)
    while unit > shared:
        near = max((batch + unit // 2) // unit * unit, unit)
        if abs(near - batch) <= _FEW * batch:
            return near
        unit //= 2
    return None


def batch_notes(space: MeshPlanSpace, settings: MeshSettings, best: RankedPlan) -> list[Note]:
    """Say that a batch nearby is faster per sample, where a plan was found that is.

    Nothing is searched where the batch divides well, or where plans are not ranked by step time.
    """
    from strategies.mesh.search import search_corner

    batch = space.resolved.workload.global_batch
    other = rounder_batch(batch, settings.max_workers)
    if other is None or not space.ranks_by_time:
        return []
    short = dataclasses.replace(settings, top=1, gap=max(settings.gap, _GAP), effort=EFFORT, distinct=None)
    found = search_corner(mesh_space(space.resolved.with_batch(other)).model, short).candidates
    if not found:
        return []
    faster = (best.step_time_s / batch) / (found[0].step_time_s / other)
    if faster < WORTH_FASTER:
        return []
    shared = math.gcd(batch, settings.max_workers)
    return [
        Note(
            "rounder_batch",
            batch=batch,
            gpus=settings.max_workers,
            shared=None if shared == 1 else shared,
            other_batch=other,
            step_time_s=found[0].step_time_s,
            plan=mesh_plan_in_words(found[0].plan),
            speedup=faster,
        )
    ]
