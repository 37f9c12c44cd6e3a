"""Why no plan over several kinds of devices fits, and what would make one fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from costmodel.hardware.cluster import Cluster
from costmodel.mesh.modules import MeshError
from costmodel.mixed.model import MixedModel
from planner.core.capacity import usable_bytes
from planner.core.errors import UsageError
from planner.question.fixed import flags_of, multiplied, single, without
from planner.question.resolve import Resolved
from planner.spaces.diagnose import (
    Attempt,
    Change,
    Diagnosis,
    batch_text,
    miss_text,
    no_share,
    too_many_gpus,
)
from planner.spaces.mixed.options import with_fixed
from planner.spaces.mixed.space import MixedPlanSpace
from strategies.mesh.settings import Bounds, MeshRestriction
from strategies.mixed.families import legal_degrees
from strategies.mixed.search import search_mixed
from strategies.mixed.settings import MixedMiss, MixedOutcome, MixedSettings

if TYPE_CHECKING:
    from strategies.limits import Progress

__all__ = ["DIAGNOSIS", "searched"]

# Room for anything, so that only what is legal decides.
_ENDLESS_BYTES = 1e30
# Pieces of work of a look for any plan at all, or for one under a change: some seconds. A plan that is not found by then counts as being
# there where the question is what excludes it.
_EFFORT = 2_000
_MOST_MESSAGES = 4


def searched(space: MixedPlanSpace, settings: MixedSettings, progress: Progress | None = None) -> MixedOutcome:
    """Search; without a legal tensor-parallel degree there is nothing to look at.

    Raises
    ------
    UsageError
        The network or the cluster cannot be planned like this.
    """
    if not legal_degrees(space.model, settings):
        MixedDiagnosis(space, settings).refuse_contradiction()
    try:
        return search_mixed(space.resolved.workload, space.resolved.cluster, settings, progress)
    except MeshError as error:
        raise UsageError(str(error)) from None


class MixedDiagnosis(Diagnosis):
    """Why a search over several kinds of devices found nothing."""

    space: MixedPlanSpace
    settings: MixedSettings

    def __init__(self, space: MixedPlanSpace, settings: MixedSettings | None = None) -> None:
        super().__init__(space, settings)
        self.batch = space.model.shape.global_batch
        self.groups = ", ".join(f"{count} {name}" for count, name in zip(space.devices, space.names, strict=True))

    @property
    def plans(self) -> str:
        return f"plan of '{self.space.resolved.setting.model}' at global batch {self.batch} on {self.groups}"

    def is_empty(self, fixed: MeshRestriction) -> bool:
        settings, roomy = with_fixed(self.settings, fixed, self.batch), _without_limits(self.space.model)
        if not legal_degrees(roomy, settings) or not _can_share(settings, self.batch):
            return True
        any_plan = dataclasses.replace(settings, top=1, gap=1.0, capacity_bytes=(), effort=_EFFORT)
        outcome = search_mixed(roomy.workload, roomy.cluster, any_plan)
        return not outcome.candidates and not outcome.out_of_time

    def reason(self, fixed: MeshRestriction) -> str:
        space, groups = self.space, self.groups
        degrees = fixed.degrees
        least = {field: bounds.least for field, bounds in degrees.items()}
        blocks = space.model.shape.num_blocks
        problems = [
            *too_many_gpus(least, space.resolved.request.gpus),
            *_no_degree(space, fixed),
            *_too_many_samples(degrees, least, space.resolved),
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
            f"a pipeline takes replicas x tp devices of a group for every stage there ({groups}), and the samples of all replicas add up "
            f"to {batch_text(space.resolved)}"
        )

    def missed(self, miss: MixedMiss | None) -> str:
        if miss is None:
            where = "that is searched" if self.fixed.is_free else "within what is fixed"
            return f"nothing fits: no plan {where} for a batch of {self.batch}"
        ranked = self.space.rank([miss.plan])[0]
        return f"nothing fits: {miss_text(ranked.summary, ranked, of=f' of {self.space.names[miss.group]}')}"

    def changes(self) -> Sequence[Change]:
        """First what was left unused, then the limit of the memory, then options."""
        request, groups = self.space.resolved.request, self.space.model.cluster.groups
        everything = tuple(group.num_devices for group in groups)
        unlimited = dataclasses.replace(request, memory_limit=None)
        own = tuple(
            usable_bytes(unlimited, group.device, self.space.resolved.setting.memory_errors) for group in groups
        )
        quick = dataclasses.replace(self.settings, top=1, effort=_EFFORT, gap=1.0)
        tries = {}
        if self.space.devices != everything:
            tries[f"with --gpus {sum(n or 0 for n in everything)}"] = dataclasses.replace(
                quick, group_limits=everything
            )
        if request.memory_limit is not None and self.space.capacity_bytes != own:
            tries[f"without --memory-limit {request.memory_limit}"] = dataclasses.replace(quick, capacity_bytes=own)
        for flag in flags_of(self.fixed).values():
            tries[f"without {flag}"] = with_fixed(quick, without(self.fixed, flag), self.batch)
        return [self._change(words, wider) for words, wider in tries.items()]

    def _change(self, words: str, settings: MixedSettings) -> Change:
        def look(_gpus: int) -> Attempt | None:
            found = searched(self.space, settings).best
            return None if found is None else Attempt(plan=found.plan, space=self.space)

        return Change(words=words, look=look, grows=False)

    def works(self, found: Attempt) -> str:
        return f"it works: {self.space.rank([found.plan])[0].summary}"

    def advice(self, tried: Mapping[str, Sequence[Attempt]], gpus: int) -> str:
        return "use more devices or devices with more memory, a shorter --seq, or --lora-rank to train adapters only"


DIAGNOSIS = MixedDiagnosis


def _without_limits(model: MixedModel) -> MixedModel:
    groups = tuple(
        dataclasses.replace(group, device=dataclasses.replace(group.device, memory_bytes=_ENDLESS_BYTES))
        for group in model.cluster.groups
    )
    return MixedModel.build(model.workload, dataclasses.replace(model.cluster, groups=groups), model.assumptions)


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


def _no_degree(space: MixedPlanSpace, fixed: MeshRestriction) -> list[str]:
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


def _too_many_samples(degrees: Mapping[str, Bounds], least: Mapping[str, int], resolved: Resolved) -> list[str]:
    """Replicas and micro-batches that need more samples than there are, or are all given and make another number."""
    fields = ("dp", "micro_batch", "num_micro_batches")
    exact = single(degrees)
    uneven = no_share(resolved, exact, fields[1:2]) or no_share(resolved, exact, fields[2:])
    (samples, words), batch = multiplied(least, fields), resolved.setting.global_batch
    if uneven or samples > batch:
        return uneven or [f"{words} is more than {batch_text(resolved)}"]
    return no_share(resolved, exact, fields, is_whole=True) if exact.keys() >= {*fields} else []
