"""From one plan over a device mesh to another, setting by setting: what differs, and the plan with some of it changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from costmodel.mesh.plan import MeshPlan
from planner.spaces.mesh.plans import splits_in_words
from planner.spaces.mesh.space import MeshPlanSpace


def _zero(plan: MeshPlan) -> str:
    over = f" over {plan.dp_shard}" if plan.zero_stage and plan.dp_replicate > 1 else ""
    return f"{plan.zero_stage}{over}"


def _recompute(plan: MeshPlan) -> str:
    return f"full, {plan.recompute_blocks} blocks" if plan.recompute == "full" else plan.recompute


def _offload(plan: MeshPlan) -> str:
    kept = {"optimizer": plan.offload_optimizer, "activations": plan.offload_activations}
    return ", ".join(name for name, is_on in kept.items() if is_on) or "none"


def _stages(plan: MeshPlan) -> str:
    return " ".join(map(str, (*plan.stage_blocks, *plan.stage_recompute))) or "balanced"


# What is changed together, as text; in the order in which it is changed. Replicas fill the GPUs and micro-batches the batch: both follow.
_PARTS: Mapping[str, Callable[[MeshPlan], str]] = {
    "GPUs": lambda plan: f"{plan.workers:,}",
    "tp": lambda plan: str(plan.tp),
    "sequence parallel": lambda plan: "yes" if plan.sequence_parallel else "no",
    "cp": lambda plan: f"{plan.cp} ({plan.cp_kind})" if plan.cp > 1 else "1",
    "ep": lambda plan: f"{plan.ep}, etp {plan.etp}" if plan.etp > 1 else str(plan.ep),
    "pp": lambda plan: str(plan.pp),
    "schedule": lambda plan: f"{plan.schedule}, vpp {plan.vpp}" if plan.vpp > 1 else plan.schedule,
    "zero": _zero,
    "micro-batch": lambda plan: str(plan.micro_batch),
    "recompute": _recompute,
    "offload": _offload,
    "order": lambda plan: plan.order,
    "GPUs per domain": lambda plan: str(plan.domain_gpus or "all"),
    "stages": _stages,
    "layer splits": lambda plan: splits_in_words(plan.block_splits) or "usual",
}


def differing(plan: MeshPlan, other: MeshPlan) -> dict[str, tuple[str, str]]:
    """What differs between two plans, as text of both, in the order in which it is changed.

    Cutting tensors along the positions goes with tp, and the schedule with pp, where a plan has only one rank of these.

    >>> differing(MeshPlan(tp=8, sequence_parallel=True, zero_stage=1, dp_shard=2), MeshPlan(dp_shard=16, zero_stage=1))
    {'tp': ('8', '1')}
    """
    found = {name: (text(plan), text(other)) for name, text in _PARTS.items() if text(plan) != text(other)}
    for name, degree in (("sequence parallel", "tp"), ("schedule", "pp")):
        if 1 in (getattr(plan, degree), getattr(other, degree)):
            found.pop(name, None)
    return found


def part_way(space: MeshPlanSpace, plan: MeshPlan, other: MeshPlan, names: Collection[str]) -> MeshPlan | None:
    """The first plan with some settings of the second; None where that is no whole plan, or not a legal one.

    Parameters
    ----------
    space : MeshPlanSpace
    plan, other : MeshPlan
    names : collection of str
        Of what `differing` says.
    """

    def of(name: str) -> MeshPlan:
        return other if name in names else plan

    def alongside(name: str, degree: str) -> MeshPlan:
        """Where a setting comes from that means nothing while a degree is 1."""
        alone = 1 in (getattr(plan, degree), getattr(other, degree))
        return of(degree if alone else name)

    tp, cp, pp = of("tp").tp, of("cp").cp, of("pp").pp
    shared, micro_batch = of("zero"), of("micro-batch").micro_batch
    dp, rest = divmod(of("GPUs").workers, tp * cp * pp)
    if rest or not dp:
        return None
    replicate = dp if not shared.zero_stage else 1 if shared.dp_replicate == 1 else dp // shared.dp_shard
    number, rest = divmod(space.shape.global_batch, dp * micro_batch)
    if rest or not replicate or dp % replicate:
        return None
    scheduled = alongside("schedule", "pp")
    changed = replace(
        plan,
        tp=tp,
        sequence_parallel=tp > 1 and alongside("sequence parallel", "tp").sequence_parallel,
        cp=cp,
        cp_kind=of("cp").cp_kind,
        ep=of("ep").ep,
        etp=of("ep").etp,
        pp=pp,
        vpp=scheduled.vpp,
        schedule=scheduled.schedule,
        dp_replicate=replicate,
        dp_shard=dp // replicate,
        zero_stage=shared.zero_stage,
        micro_batch=micro_batch,
        num_micro_batches=number,
        recompute=of("recompute").recompute,
        offload_optimizer=of("offload").offload_optimizer,
        offload_activations=of("offload").offload_activations,
        order=of("order").order,
        domain_gpus=of("GPUs per domain").domain_gpus,
        stage_blocks=(),
        stage_recompute=(),
        block_splits=of("layer splits").block_splits,
    )
    if changed.pp * changed.vpp > space.model.num_blocks:
        return None
    blocks, staged = of("recompute").recompute_blocks, of("stages")
    if changed.recompute == "full":
        # All blocks of a stage stay all blocks, however many a stage has.
        most = space.blocks_per_stage(changed)
        is_all = blocks >= space.blocks_per_stage(of("recompute"))
        blocks = most if is_all else min(blocks, most)
    changed = replace(changed, recompute_blocks=blocks)
    if (changed.pp, changed.vpp) == (staged.pp, staged.vpp):
        kept = staged.stage_recompute if changed.recompute == "full" else ()
        changed = replace(changed, stage_blocks=staged.stage_blocks, stage_recompute=kept)
    return None if space.broken(changed) else changed
