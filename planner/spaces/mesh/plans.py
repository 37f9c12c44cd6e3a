"""A plan over a device mesh in words, the name of the region it lies in, and the plan in plan files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from itertools import groupby
from typing import TYPE_CHECKING, Any

from costmodel.mesh.modules import MeshError
from costmodel.mesh.plan import MESH_FIGURES, LayerSplit, MeshPlan
from planner.core.numbers import counted

if TYPE_CHECKING:
    from planner.files.plan_file import PlanProblems
    from planner.schema.plan import MeshEntry, PlanDocument
    from planner.spaces.mesh.space import MeshPlanSpace

# Fields that are empty unless the stages differ from the uniform layout, or layers are split in another way than the standard one.
_PER_STAGE = ("stage_blocks", "stage_recompute", "block_splits")
_FIELDS = tuple(field.name for field in fields(MeshPlan))
HOST_WORDS = "host launches"
# From this share of a step on, what the host takes to start kernels decides between plans more than what they compute.
MUCH_HOST = 0.1


def bottleneck_in_words(time_parts: Mapping[str, float], host_s: float) -> str:
    """The largest part of a step, compute divided into what devices compute and what they wait for their hosts.

    >>> bottleneck_in_words({"compute_s": 3.0, "bubble_s": 1.0}, 2.0), bottleneck_in_words({"compute_s": 3.0, "bubble_s": 1.0}, 0.5)
    ('host launches', 'compute')
    """
    parts = {MESH_FIGURES[name].label: seconds for name, seconds in time_parts.items()}
    parts[MESH_FIGURES["compute_s"].label] -= host_s
    parts[HOST_WORDS] = host_s
    return max(parts, key=lambda word: parts[word])


def mesh_plan_in_words(plan: MeshPlan) -> str:
    """Write a plan for people; what is neutral is left out.

    >>> mesh_plan_in_words(MeshPlan(tp=8, sequence_parallel=True, pp=4, dp_shard=8, zero_stage=1, micro_batch=2, num_micro_batches=16))
    'tp 8 (sequence parallel), pp 4 (1f1b), dp 8 (zero 1), micro-batch 2 x 16'
    >>> mesh_plan_in_words(MeshPlan(cp=4, dp_replicate=8, zero_stage=1))
    'cp 4 (ring), dp 8 (zero 1 over cp), micro-batch 1'
    >>> mesh_plan_in_words(MeshPlan(num_micro_batches=4, recompute="full", recompute_blocks=3))
    'one GPU, micro-batch 1 x 4, recompute full (3 blocks)'
    """
    words = [*_parallel(plan)] or ["one GPU"]
    words.append(
        f"micro-batch {plan.micro_batch}" + (f" x {plan.num_micro_batches}" if plan.num_micro_batches > 1 else "")
    )
    if plan.recompute == "full":
        words.append(f"recompute full{_recomputed(plan)}")
    elif plan.recompute != "none":
        words.append(f"recompute {plan.recompute}")
    offloaded = [
        name
        for name, is_on in (("optimizer", plan.offload_optimizer), ("activations", plan.offload_activations))
        if is_on
    ]
    if offloaded:
        words.append(f"offload {' and '.join(offloaded)}")
    if plan.order != MeshPlan().order:
        words.append(f"order {plan.order}")
    if plan.domain_gpus:
        words.append(f"{plan.domain_gpus} GPUs per domain")
    if plan.stage_blocks:
        words.append(f"blocks per chunk ({counts_in_runs(plan.stage_blocks)})")
    if plan.block_splits:
        words.append(f"layers {splits_in_words(plan.block_splits)}")
    return ", ".join(words)


def _recomputed(plan: MeshPlan) -> str:
    """How many blocks of which chunks are recomputed.

    >>> _recomputed(MeshPlan(pp=4, stage_recompute=(2, 2, 0, 1)))
    ' (2 blocks in each of chunks 1-2, 1 block in chunk 4)'
    >>> _recomputed(MeshPlan(pp=4, recompute_blocks=2))  # of a stage that has fewer, all
    ' (up to 2 blocks per stage)'
    """
    part, first, runs = "chunk" if plan.vpp > 1 else "stage", 1, []
    for count, run in groupby(plan.stage_recompute):
        times = len(list(run))
        where = f"in chunk {first}" if times == 1 else f"in each of chunks {first}-{first + times - 1}"
        runs += [f"{counted(count, 'block')} {where}"] if count else []
        first += times
    if not plan.stage_recompute and plan.recompute_blocks:
        blocks = counted(plan.recompute_blocks, "block")
        runs = [f"up to {blocks} per {part}" if plan.pp * plan.vpp > 1 else blocks]
    return f" ({', '.join(runs)})" if runs else ""


def counts_in_runs(counts: Iterable[int]) -> str:
    """Write numbers of blocks, those that repeat once.

    >>> counts_in_runs((1, 3, 3, 3, 1))
    '1, 3 x3, 1'
    """
    runs = [(count, len(list(run))) for count, run in groupby(counts)]
    return ", ".join(f"{count}" if times == 1 else f"{count} x{times}" for count, times in runs)


def splits_in_words(splits: tuple[LayerSplit, ...]) -> str:
    """Write splits of layers for people: those that are split alike together, layers of blocks without the name of the block.

    >>> splits_in_words((LayerSplit(layer="blocks.0.qkv", role="column", degree=4), LayerSplit(layer="head", role="whole", degree=1)))
    'qkv column 4, head whole'
    """
    groups: dict[str, list[str]] = {}
    for split in splits:
        names = groups.setdefault(split.role if split.degree == 1 else f"{split.role} {split.degree}", [])
        name = split.layer.rsplit(".", 1)[-1]
        if name not in names:
            names.append(name)
    return ", ".join(f"{' '.join(names)} {how}" for how, names in groups.items())


def _parallel(plan: MeshPlan) -> list[str]:
    words = []
    if plan.tp > 1:
        words.append(f"tp {plan.tp}" + (" (sequence parallel)" if plan.sequence_parallel else ""))
    if plan.cp > 1:
        words.append(f"cp {plan.cp} ({plan.cp_kind.replace('_', '-')})")
    if plan.ep > 1 or plan.etp > 1:
        words.append(f"ep {plan.ep}" + (f" (etp {plan.etp})" if plan.etp > 1 else ""))
    if plan.pp > 1:
        chunks = f", vpp {plan.vpp}" if plan.vpp > 1 else ""
        words.append(f"pp {plan.pp} ({plan.schedule.replace('_', '-')}{chunks})")
    if plan.dp > 1:
        shared = f" ({_zero(plan)})" if plan.zero_stage else ""
        words.append(f"dp {plan.dp}{shared}")
    elif plan.zero_stage:
        words.append(_zero(plan))  # shared by the ranks that divide the positions
    return words


def _zero(plan: MeshPlan) -> str:
    # Ranks of cp share, too; alone they are named, since nothing is shared over one rank.
    inside = "" if plan.dp_replicate == 1 else " over cp" if plan.dp_shard == 1 else f" over {plan.dp_shard}"
    return f"zero {plan.zero_stage}{inside}"


def family_of_mesh_plan(plan: MeshPlan) -> str:
    """Name the parallel dimensions that a plan uses, joined by ``+``.

    >>> family_of_mesh_plan(MeshPlan(tp=8, pp=2, dp_replicate=4)), family_of_mesh_plan(MeshPlan(dp_shard=8, zero_stage=3))
    ('tensor+pipeline+data', 'fsdp')
    >>> family_of_mesh_plan(MeshPlan())
    'one-device'
    """
    data = ("data", "zero-1", "zero-2", "hsdp" if plan.dp_replicate > 1 else "fsdp")[plan.zero_stage]
    used = {
        "tensor": plan.tp > 1,
        "context": plan.cp > 1,
        "expert": plan.ep > 1,
        "pipeline": plan.pp > 1,
        data: plan.dp > 1,
    }
    return "+".join(name for name, is_used in used.items() if is_used) or "one-device"


def mesh_entry(plan: MeshPlan) -> dict[str, Any]:
    """Write a plan as the section ``mesh`` of a plan file; every field is there, so that defaults may change.

    >>> mesh_entry(MeshPlan(tp=8))["tp"], MeshPlan(**mesh_entry(MeshPlan(tp=8))) == MeshPlan(tp=8)
    (8, True)
    """
    entry = {name: getattr(plan, name) for name in _FIELDS if name not in _PER_STAGE or getattr(plan, name)}
    if plan.block_splits:
        entry["block_splits"] = {s.layer: {"role": s.role, "degree": s.degree} for s in plan.block_splits}
    return entry


def plan_of_entry(entry: MeshEntry) -> MeshPlan:
    """Read the section ``mesh`` of a plan file."""
    values = {name: getattr(entry, name) for name in _FIELDS}
    splits = [LayerSplit(layer=name, role=s.role, degree=s.degree) for name, s in entry.block_splits.items()]
    return MeshPlan(**{**values, "block_splits": tuple(splits)})


def read_plan(document: PlanDocument, space: MeshPlanSpace, problems: PlanProblems) -> MeshPlan:
    """Read the plan of a document, and note what contradicts itself, its network and the rules of the space."""
    plan = plan_of_entry(document.mesh)
    degrees = {name: getattr(plan, name) for name in ("tp", "cp", "pp", "dp_replicate", "dp_shard")}
    words = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "no degree above 1"
    problems.check_workers(plan.workers, f"the mesh has {words} = {plan.workers}")
    batch = space.resolved.workload.global_batch
    if plan.global_batch != batch:
        samples = f"dp {plan.dp} x micro_batch {plan.micro_batch} x num_micro_batches {plan.num_micro_batches}"
        message = f"{samples} = {plan.global_batch} samples, but the global batch is {batch}"
        problems.note(("mesh", "num_micro_batches"), message)
    if not problems.found:
        problems.check_rules("mesh", space.broken(plan), _FIELDS)
    if not problems.found:
        try:
            space.model.evaluate_plans([plan])
        except MeshError as error:
            usual = "stage_blocks" if plan.stage_blocks else "stage_recompute"
            for message in str(error).split("\n"):
                key = next((name for name in _PER_STAGE if message.startswith(name)), usual)
                problems.note(("mesh", key), message)
    return plan
