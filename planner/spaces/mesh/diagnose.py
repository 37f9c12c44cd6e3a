"""Why no plan over a device mesh fits, what would make one fit, and the same of one plan."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from costmodel.layerwise.plan import divisors
from costmodel.mesh.framework_rules import Refusal
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MESH_FIGURES, RECOMPUTE, SCHEDULES, MeshPlan
from costmodel.schedules import schedule_of
from costmodel.tolerances import EQUAL
from planner.core.answer import RankedPlan
from planner.core.errors import no_plan_in_time
from planner.core.notes import Note
from planner.core.numbers import byte_text, duration_text
from planner.question.fixed import (
    data_fields,
    flag_of,
    flags_of,
    given_text,
    multiplied,
    no_such_division,
    only,
    single,
    without,
)
from planner.question.resolve import Resolved
from planner.spaces.diagnose import (
    Attempt,
    Change,
    Contradiction,
    Diagnosis,
    batch_text,
    miss_text,
    no_share,
    reason_of_rules,
    room_text,
    smallest_set,
    too_many_gpus,
)
from planner.spaces.mesh.space import EFFORT, MeshPlanSpace
from strategies.mesh.framework_rules import allowed_parts
from strategies.mesh.nodes import PlanCount
from strategies.mesh.search import search_corner
from strategies.mesh.settings import MeshRestriction, MeshSettings, NearestMiss
from strategies.mesh.space import MeshSpace

__all__ = ["DIAGNOSIS", "fitting_change"]

# Hosts are made larger until something fits, so many doublings at most; then the last doubling is halved so often: to 2 %.
_HOST_DOUBLINGS, _HALVINGS = 8, 5


class MeshDiagnosis(Diagnosis):
    """Why a search over a device mesh found nothing."""

    space: MeshPlanSpace
    settings: MeshSettings

    def __init__(self, space: MeshPlanSpace, settings: MeshSettings | None = None) -> None:
        super().__init__(space, settings)
        self.fixed = self.settings.restriction

    @property
    def plans(self) -> str:
        setting = self.space.resolved.setting
        return f"plan of '{setting.model}' at global batch {setting.global_batch} on up to {self.settings.max_workers} GPUs"

    def is_empty(self, fixed: MeshRestriction) -> bool:
        return self._is_empty(fixed, self.space.model.workload.framework.rules.of())

    def _is_empty(self, fixed: MeshRestriction, refusals: Sequence[Refusal]) -> bool:
        """The same where only some rules of the framework count."""
        settings = dataclasses.replace(self.settings, restriction=fixed)
        for part in allowed_parts(self.space.model, settings, refusals):
            plans = MeshSpace.of(self.space.model, part)
            count = PlanCount(space=plans)
            if any(count.plans(branches) for branches in plans.branches()):
                return False
        return True

    def contradiction(self, fixed: MeshRestriction) -> Contradiction | None:
        """The fewest options that exclude all plans, or that the framework's rules do with them."""
        framework = self.space.model.workload.framework
        rules = framework.rules.of()
        is_empty = bool(rules) and self.is_empty(fixed)
        kept = self.fewest(fixed) if is_empty else []
        if not is_empty or self._is_empty(only(fixed, frozenset(kept)), ()):
            return super().contradiction(fixed)
        fixed = only(fixed, frozenset(kept))
        # Rules about what is given say more than those that meet it by way of others: these are left out first.
        given_fields = fixed.degrees.keys() | fixed.names.keys() | fixed.flags.keys()
        names = sorted(map(str, range(len(rules))), key=lambda n: bool(rules[int(n)].when.keys() & given_fields))
        broken = smallest_set(names, lambda some: self._is_empty(fixed, [rules[int(n)] for n in names if n in some]))
        given = " ".join((f"--framework {framework.name}", *(given_text(fixed, flag) for flag in kept)))
        reason = "; and ".join(framework.rules.words(rules[int(n)]) for n in broken)
        return Contradiction(
            flags=tuple(kept),
            text=f"{given}{' exclude each other' if kept else ''}: {reason}",
            conclusion=f"{framework.title} runs no such {self.plans}",
        )

    def suggestion(self, miss: NearestMiss | None) -> str:
        """The plan that would fit if the framework ran it, and then what helps without it."""
        framework, usual = self.space.model.workload.framework, super().suggestion(miss)
        if not framework.rules.refusals:
            return usual
        free = dataclasses.replace(self.settings, obeys_framework=False, top=1, effort=EFFORT)
        found = search_corner(self.space.model, free).candidates
        if not found:
            return usual
        ranked, rules = self.space.rank([found[0].plan])[0], "; ".join(self.space.broken(found[0].plan))
        time = duration_text(ranked.step_time_s)
        return f"{framework.title} does not run what fits, such as {ranked.summary}, {time} per step: {rules}; {usual}"

    def reason(self, fixed: MeshRestriction) -> str:
        space, setting = self.space, self.space.resolved.setting
        least = {field: bounds.least for field, bounds in fixed.degrees.items()}
        degrees, schedules = single(fixed.degrees), space.model.workload.framework.rules.schedules
        problems = [
            *too_many_gpus(least, setting.gpus),
            *no_such_division(degrees),
            *_no_share_of_batch(degrees, space.resolved),
            *_too_many_blocks(space, least, fixed.names.get("schedule", schedules)),
        ]
        left = {"schedule": [SCHEDULES.index(name) for name in schedules], **_left(least, setting.global_batch)}
        return "; ".join(problems) or reason_of_rules(space.rules, space.shape, fixed, setting.gpus, left)

    def nothing_fits(self, miss: NearestMiss | None) -> Exception:
        if miss is None and self.space.resolved.cluster.host is None:
            return no_plan_in_time()
        return super().nothing_fits(miss)

    def missed(self, miss: NearestMiss | None) -> str:
        """The plan that comes closest. The search takes hosts for endless to find it; where they are not, what is missing there is said."""
        space = self.space
        ranked = None if miss is None else space.rank([miss.plan])[0]
        beyond = ranked is None or miss is None or ranked.memory_bytes_per_gpu > miss.memory_bytes * (1 + EQUAL)
        short = self._host_miss() if beyond and space.resolved.cluster.host is not None else None
        if short is not None or ranked is None or miss is None:
            short = (
                short
                or f"what the GPUs have no room for is more than their hosts hold: host memory {space.host_memory().value}"
            )
            return f"nothing fits: {short}"
        need = f" ({byte_text(miss.memory_bytes)} if its host had room for all that is offloaded)" if beyond else ""
        return f"nothing fits: {miss_text(ranked.summary, ranked, need=need)}{space.host_in_words(ranked)}"

    def changes(self) -> Sequence[Change]:
        flags = dict.fromkeys(flags_of(self.fixed).values())
        # What forbids something is named with its value: "without --offload none" allows offloading.
        given = {flag: given_text(self.fixed, flag) for flag in flags}
        named = {
            flag: text if text.endswith(" none") or not text.startswith(flag) else flag for flag, text in given.items()
        }
        freer = {f"without {named[flag]}": without(self.fixed, flag) for flag in flags}
        return [
            *(self._change(words, fixed, grows=False) for words, fixed in freer.items()),
            self._change("", self.fixed, grows=True),
        ]

    def _change(self, words: str, fixed: MeshRestriction, *, grows: bool) -> Change:
        """A change of what is fixed; degrees that are powers of two are enough to say what would help."""

        def look(gpus: int) -> Attempt | None:
            settings = dataclasses.replace(self.settings, restriction=fixed, max_workers=gpus, top=1, effort=EFFORT)
            found = search_corner(self.space.model, settings).candidates
            return Attempt(plan=found[0].plan, space=self.space, excess=found[0].score) if found else None

        return Change(words=words, look=look, grows=grows)

    def works(self, found: Attempt) -> str:
        ranked = self.space.rank([found.plan])[0]
        return f"it fits: {ranked.summary}, {duration_text(ranked.step_time_s)} per step"

    def advice(self, tried: Mapping[str, Sequence[Attempt]], gpus: int) -> str:
        adapts = self.space.resolved.request.lora_rank is not None
        less = "--precision nf4" if adapts else "--lora-rank"
        return (
            f"nor was anything found on more GPUs; use a device with more memory, a shorter --seq, {less}, or "
            "--optimizer sgd"
        )

    def _host_miss(self) -> str | None:
        """The plan for which hosts need the least memory beyond what they have; None where no larger host helps."""
        space, found = self.space, _least_host(self.space, self.settings)
        if found is None:
            return None
        larger, plan = found
        ranked, host = larger.rank([plan])[0], space.resolved.cluster.host
        assert host is not None
        label, size = ranked.largest_memory_part
        return (
            f"the nearest miss ({ranked.summary}) needs {byte_text(ranked['host_bytes_per_gpu'])} on the host for each GPU, most "
            f"of it {_largest_on_host(larger, ranked)}, and there are {byte_text(host.share_bytes(plan.workers))} "
            f"({space.host_memory().value}); on the GPU it needs {byte_text(ranked.memory_bytes_per_gpu)} of "
            f"{room_text(ranked)}, where the largest part is {label} with {byte_text(size)}"
        )


DIAGNOSIS = MeshDiagnosis

# -- options that exclude each other ----------------------------------------------------------------------------------------


def _left(least: Mapping[str, int], batch: int) -> dict[str, Sequence[int]]:
    """Numbers of micro-batches that are left once samples and replicas are known."""
    samples = multiplied(least, (*data_fields(least), "micro_batch"))[0]
    return {} if batch % samples else {"num_micro_batches": list(divisors(batch // samples))}


def _no_share_of_batch(degrees: Mapping[str, int], resolved: Resolved) -> list[str]:
    fields = (*data_fields(degrees), "micro_batch", "num_micro_batches")
    is_whole = set(fields) <= degrees.keys()
    samples, words = multiplied(degrees, fields)
    ranks, most = resolved.setting.global_batch // samples, resolved.setting.gpus
    uneven = no_share(resolved, degrees, fields, is_whole=is_whole)
    if uneven or is_whole or ranks <= most or not set(fields[-2:]) <= degrees.keys():
        return uneven
    return [f"{words} leaves a dp of {ranks} at {batch_text(resolved)}, more than --gpus {most}"]


def _too_many_blocks(space: MeshPlanSpace, least: Mapping[str, int], schedules: Sequence[str]) -> list[str]:
    wanted = least.get("recompute_blocks", 0)
    vpp = max(least.get("vpp", 1), 2 if all(schedule_of(name).is_chunked for name in schedules) else 1)
    pp = max(least.get("pp", 1), 2 if vpp > 1 or "1f1b" not in schedules else 1)
    chunks = pp * vpp
    if chunks == 1 or chunks > space.model.num_blocks or wanted <= max(space.model.blocks_of(chunks)):
        return []
    where, most = "chunk" if vpp > 1 else "stage", max(space.model.blocks_of(chunks))
    return [f"the longest {where} has at most {most} blocks, fewer than {wanted} to recompute (rule recompute)"]


# -- hosts that are too small -----------------------------------------------------------------------------------------------


def _least_host(space: MeshPlanSpace, settings: MeshSettings) -> tuple[MeshPlanSpace, MeshPlan] | None:
    """The smallest host, to 2 %, on which something fits; degrees are powers of two, as for every other advice."""
    short = dataclasses.replace(settings, top=1, effort=EFFORT)
    found, low, high = None, 1.0, 1.0
    for _ in range(_HOST_DOUBLINGS):
        low, high = high, 2 * high
        found = _on_larger_host(space, short, high)
        if found is not None:
            break
    if found is None:
        return None
    for _ in range(_HALVINGS):
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
    state = 0.0
    if ranked.plan.offload_optimizer:
        alone = dataclasses.replace(ranked.plan, offload_activations=False)
        state = min(space.rank([alone])[0]["host_bytes_per_gpu"], ranked["host_bytes_per_gpu"])
    away = ranked["host_bytes_per_gpu"] - state
    name, size = ("optimizer_bytes", state) if state >= away else ("activation_bytes", away)
    return f"{MESH_FIGURES[name].label} ({byte_text(size)})"


# -- one plan that does not fit ---------------------------------------------------------------------------------------------


def fitting_change(space: MeshPlanSpace, plan: MeshPlan) -> Note:
    """Name the change of a plan that does not fit after which it does, at the least cost in time."""
    variants = [variant for variant in _variants(space, plan) if not space.broken(variant)]
    if variants:
        costs = space.model.evaluate_plans(variants)
        fits = costs.memory_bytes <= space.resolved.setting.memory_capacity_bytes
        if fits.any():
            n = int(np.argmin(np.where(fits, costs.step_time_s, np.inf)))
            change = " ".join(_changes(plan, variants[n]))
            return Note("fits_with", options=change, step_time_s=float(costs.step_time_s[n]))
    return Note("fits_with_nothing")


def _variants(space: MeshPlanSpace, plan: MeshPlan) -> Iterator[MeshPlan]:
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
