"""A plan over a device mesh at other batches, sequences, numbers of GPUs and recomputations: its degrees stay, replicas follow the GPUs."""

from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any

from planner.core.answer import RankedPlan
from planner.core.errors import PlannerError
from planner.core.what_if import WhatIf, WhatIfAxis, around
from planner.question.resolve import resolve
from planner.spaces.mesh.space import MeshPlanSpace, mesh_space
from planner.spaces.what_if import answered

_KEPT = (
    "The degrees of the plan and its micro-batch stay as they are. Data parallelism follows the GPUs, and the number of micro-batches the "
    "batch; a micro-batch is smaller only where a rank's share is no multiple of it."
)


def mesh_what_if(space: MeshPlanSpace, ranked: RankedPlan) -> WhatIf | None:
    """Predict a plan on a grid around its question."""
    plan, batch = ranked.plan, space.resolved.workload.global_batch
    # Replicas follow the GPUs where there are some, else the ranks that share one copy.
    dimension = "dp_replicate" if plan.dp_replicate > 1 or plan.dp_shard == 1 else "dp_shard"
    unit = plan.workers // getattr(plan, dimension)
    gpus, batches = around(plan.workers, unit, space.resolved.cluster.max_devices), around(batch)
    seqs = () if space.resolved.setting.seq is None else around(space.seq)
    modes = _recomputations(space, plan)
    words = list(modes)
    now = next(n for n, mode in enumerate(modes.values()) if dataclasses.replace(plan, **mode) == plan)
    axes = [
        WhatIfAxis(name="gpus", title="GPUs", values=gpus, at=gpus.index(plan.workers)),
        WhatIfAxis(name="batch", title="global batch", values=batches, at=batches.index(batch)),
        *([WhatIfAxis(name="seq", title="sequence length", values=seqs, at=seqs.index(space.seq))] if seqs else []),
        WhatIfAxis(name="recompute", title="recomputation", values=tuple(words), at=now),
    ]

    @cache
    def asked(seq: int) -> MeshPlanSpace | str:
        if seq == space.seq:
            return space
        try:
            return mesh_space(resolve(dataclasses.replace(space.request, seq=seq)))
        except PlannerError as error:
            return str(error)

    @cache
    def at(seq: int, samples: int) -> MeshPlanSpace | str:
        found = asked(seq)
        if isinstance(found, str):
            return found
        # Tables of a model are about one micro-batch, and so the same at every batch.
        return dataclasses.replace(mesh_space(found.resolved.with_batch(samples)), model=found.model)

    def change(
        gpus: int = plan.workers, batch: int = batch, seq: int = space.seq, recompute: str = words[now]
    ) -> tuple[MeshPlanSpace, Any, str] | str:
        found = at(seq, batch)
        if isinstance(found, str):
            return found
        changed = dataclasses.replace(plan, **{dimension: gpus // unit}, **modes[recompute])
        if changed.dp_shard == 1 and plan.cp == 1:
            changed = dataclasses.replace(changed, zero_stage=0)  # one rank shares with nobody
        share, left = divmod(batch, changed.dp)
        if left or not share:
            return f"a global batch of {batch:,} is no multiple of dp {changed.dp}"
        micro = math.gcd(share, plan.micro_batch)
        note = "" if micro == plan.micro_batch else f"with micro-batch {micro}"
        return found, dataclasses.replace(changed, micro_batch=micro, num_micro_batches=share // micro), note

    return answered(ranked, axes, change, _KEPT)


def _recomputations(space: MeshPlanSpace, plan: Any) -> dict[str, dict[str, Any]]:
    """Fields of the plan by what is recomputed in words; the plan's own among them."""
    most = max(plan.stage_blocks, default=space.blocks_per_stage(plan))
    modes = {
        name: {"recompute": name, "recompute_blocks": blocks, "stage_recompute": ()}
        for name, blocks in (("none", 0), ("selective", 0), ("full", most))
    }
    own = {name: getattr(plan, name) for name in modes["none"]}
    if own not in modes.values():
        full = modes.pop("full")
        some = f"{plan.recompute_blocks} of {most} blocks" if not plan.stage_recompute else "a part of each chunk"
        modes |= {f"full, {some}": own, "full": full}
    return modes
