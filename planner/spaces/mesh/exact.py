"""The one plan that a user spells out with degrees: what is left open has a stated default, what contradicts is said at once."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from costmodel.framework import recompute_as_needed
from costmodel.mesh.plan import CP_KINDS, ORDERS, MeshPlan
from costmodel.schedules import schedule_of
from planner.core.answer import Assumption
from planner.core.errors import UsageError
from planner.question.fixed import flag_of, left_open, near_multiples, single
from planner.spaces.mesh.space import MeshPlanSpace
from strategies.mesh.settings import MeshRestriction


def exact_plan(space: MeshPlanSpace) -> tuple[MeshPlan, tuple[Assumption, ...]]:
    """Build the plan of a request on exactly its GPUs.

    Degrees that are not given are 1; data parallelism takes the GPUs and the micro-batches take the samples that are left. The ZeRO stage,
    what is recomputed and whether a batch is cut into micro-batches are the framework's, where its file says what it does unless told
    otherwise.

    Returns
    -------
    plan : MeshPlan
    defaults : tuple of Assumption
        What was chosen for the user.

    Raises
    ------
    UsageError
        A value that leaves the plan open, degrees that do not multiply to the GPUs, a batch that does not divide, every rule of the
        space that the plan breaks.
    """
    return _Builder(space).build()


class _Builder:
    def __init__(self, space: MeshPlanSpace) -> None:
        request = space.resolved.request
        self.space = space
        self.gpus = request.gpus
        self.restriction = request.mesh or MeshRestriction()
        self.problems = left_open(self.restriction.degrees)
        self.chosen: dict[str, str] = {}
        self.usual = space.resolved.workload.framework.defaults
        # Fields that contradictions leave open: rules about them would only confuse.
        self.unknown: frozenset[str] = frozenset()
        self.degrees = single(self.restriction.degrees)
        if request.micro_batches is not None:
            self.degrees["num_micro_batches"] = request.micro_batches
        self.names = {name: self._single_name(name, allowed) for name, allowed in self.restriction.names.items()}

    def build(self) -> tuple[MeshPlan, tuple[Assumption, ...]]:
        """Make the plan, or raise everything that is wrong."""
        get = self.degrees.get
        replicate, shard, zero = self._data_parallel()
        micro_batch, num_micro_batches = self._micro_batches(replicate * shard)
        schedule = self.names.get("schedule", "interleaved" if get("vpp", 1) > 1 else "1f1b")
        plan = MeshPlan(
            tp=get("tp", 1),
            cp=get("cp", 1),
            ep=get("ep", 1),
            etp=get("etp", 1),
            pp=get("pp", 1),
            vpp=get("vpp", max(schedule_of(schedule).vpp, 1)),  # schedules in a V have two chunks
            dp_replicate=replicate,
            dp_shard=shard,
            zero_stage=zero,
            micro_batch=micro_batch,
            num_micro_batches=num_micro_batches,
            schedule=schedule,
            cp_kind=self.names.get("cp_kind", MeshPlan().cp_kind),
            order=self.names.get("order", MeshPlan().order),
            domain_gpus=get("domain_gpus", 0),
            offload_optimizer=self._is_hosted("optimizer"),
            offload_activations=self._is_hosted("activations"),
        )
        plan = self._with_names(self._with_sequence_parallel(self._with_recompute(plan)))
        self.problems += self.space.broken(plan, self.unknown)
        if self.problems:
            raise UsageError("\n".join(self.problems))
        usual = None if "recompute" in self.names else self._usual_recompute
        if usual == "as_needed":
            plan = self._as_needed(plan)
        self._note("recompute", plan.recompute, usual)
        plan, misfit = self._with_stages(plan)
        if plan.pp > 1:
            self._note("schedule", plan.schedule)
        defaults = ", ".join(f"{name} {value}" for name, value in self.chosen.items())
        left_open = (Assumption(name="plan", value=f"with {defaults}", source="left open"),) if defaults else ()
        return plan, (*left_open, *misfit)

    def _with_names(self, plan: MeshPlan) -> MeshPlan:
        """The first kind of context parallelism and the first order of the ranks that the framework has, where nobody states one."""
        if "cp_kind" not in self.names and plan.cp > 1:
            plan = self._least_broken("cp_kind", [dataclasses.replace(plan, cp_kind=name) for name in CP_KINDS])
        if "order" not in self.names:
            plan = self._least_broken("order", [dataclasses.replace(plan, order=name) for name in ORDERS])
        return plan

    def _least_broken(self, field: str, plans: Sequence[MeshPlan]) -> MeshPlan:
        """The first of the plans that breaks as few rules as any; the usual one goes first."""
        chosen = min(plans, key=lambda plan: len(self.space.broken(plan, self.unknown)))
        if chosen != plans[0]:
            self._note(field, getattr(chosen, field))
        return chosen

    def _with_stages(self, plan: MeshPlan) -> tuple[MeshPlan, tuple[Assumption, ...]]:
        """The stages that a run states, where the planner would have others; what is said where they do not fit the network."""
        model, wanted = self.space.model, self.space.resolved.request.stages
        chunks = plan.pp * plan.vpp
        if not wanted:
            return plan, ()
        if wanted == "equal":
            even = model.num_blocks % chunks == 0
            blocks = (model.num_blocks // chunks,) * chunks if even else ()
        else:
            blocks = tuple(int(word) for word in wanted.split())
        if len(blocks) != chunks or sum(blocks) != model.num_blocks:
            said = wanted if wanted == "equal" else f"{sum(blocks)} blocks in {len(blocks)} chunks"
            value = f"as the planner balances them: the run's ({said}) do not fit {model.num_blocks} blocks in {chunks} chunks"
            return plan, (Assumption(name="stages", value=value),)
        if blocks == tuple(model.blocks_of(chunks)):
            return plan, ()
        plan = dataclasses.replace(plan, stage_blocks=blocks)
        if plan.recompute == "full" and "recompute_blocks" not in self.degrees:  # all of them, of a longer chunk, too
            plan = dataclasses.replace(plan, recompute_blocks=max(plan.recompute_blocks, *blocks))
        return plan, ()

    def _note(self, field: str, value: str, usual: object = None) -> None:
        """What was chosen for a setting that nobody gave, and whether that is what the framework does."""
        given = field in self.degrees or field in self.names or field in self.restriction.flags
        if not given:
            name = self.space.resolved.workload.framework.name
            self.chosen[flag_of(field)[2:]] = f"{value} ({name}'s default)" if name and usual else value

    def _single_name(self, field: str, allowed: tuple[str, ...]) -> str:
        if len(allowed) > 1:
            self.problems.append(f"{flag_of(field)}: leaves open which plan is meant; give one name")
        return allowed[0]

    def _data_parallel(self) -> tuple[int, int, int]:
        """Replicas, ranks that share, ZeRO stage; 1, 1 and the stage where the GPUs do not divide."""
        others = {name: self.degrees[name] for name in ("tp", "cp", "pp") if self.degrees.get(name, 1) > 1}
        product = math.prod(others.values())
        words = " x ".join(f"{name} {degree}" for name, degree in others.items())
        shares = product * (self.degrees.get("dp_replicate") or 1) < self.gpus or "cp" in others
        zero = self.degrees.get("zero_stage")
        if zero is None:
            zero = 1 if self.degrees.get("dp_shard", 1) > 1 else 0
            zero = max(zero, (self.usual.zero_stage or 0) if shares else 0)
        unknown = 1, 1, zero
        if self.gpus % product:
            equals = f" = {product}" if len(others) > 1 else ""
            near = near_multiples(self.gpus, product)
            return self._no_ranks(f"{words}{equals} does not divide it; use --gpus {near}, or other degrees", unknown)
        dp = self.gpus // product
        replicate, shard = self.degrees.get("dp_replicate"), self.degrees.get("dp_shard")
        parts = {"dp_replicate": replicate, "dp_shard": shard}
        given = {name.replace("_", "-"): part for name, part in parts.items() if part is not None}
        wanted = math.prod(given.values()) if len(given) == 2 else self.degrees.get("dp", dp)
        if len(given) < 2 and "dp" in self.degrees:
            given = {"dp": wanted}
        if wanted != dp:
            every = " x ".join([*([words] if words else []), *(f"{name} {part}" for name, part in given.items())])
            together = product * wanted
            equals = f" = {together}" if len(others) + len(given) > 1 else ""
            return self._no_ranks(f"{every}{equals} is another number; use --gpus {together}, or a dp of {dp}", unknown)
        if dp % ((replicate or 1) if shard is None else shard):
            name = "dp-shard" if shard is not None else "dp-replicate"
            return self._no_ranks(f"{name} {shard or replicate} does not divide the dp of {dp}", unknown)
        if zero and shard is None and (replicate or 1) == dp and "cp" not in others:
            self._nothing_to_share(zero, others if replicate in (None, 1) else {**others, "dp-replicate": dp})
        if "dp" not in self.degrees:
            self._note("dp", str(dp))
        self._note("zero_stage", str(zero), zero and zero == self.usual.zero_stage)
        if shard is None:
            shard = dp // replicate if replicate is not None else dp if zero else 1
        return dp // shard, shard, zero

    def _nothing_to_share(self, zero: int, others: Mapping[str, int]) -> None:
        """Say that the other degrees take all GPUs; the rule would speak of shares, which nobody gave."""
        if others:
            product = " x ".join(f"{name} {degree}" for name, degree in others.items())
            verb = "take" if len(others) > 1 else "takes"
            why = f"{product} {verb} all {self.gpus} GPUs and {'leave' if len(others) > 1 else 'leaves'}"
            other = f"a smaller {' or '.join(others)}"
        else:
            why, other = "one GPU leaves", "more --gpus"
        self.problems.append(f"--zero {zero}: {why} no data-parallel ranks to share over; use --zero 0, or {other}")
        self.unknown |= {"dp_shard"}

    def _no_ranks(self, problem: str, result: tuple[int, int, int]) -> tuple[int, int, int]:
        self.problems.append(f"--gpus {self.gpus}: {problem}")
        self.unknown |= {"dp", "dp_shard", "micro_batch", "num_micro_batches"}
        return result

    def _micro_batches(self, dp: int) -> tuple[int, int]:
        """Samples and number of the micro-batches; the whole share in one where it does not divide."""
        size, number = self.degrees.get("micro_batch"), self.degrees.get("num_micro_batches")
        if "dp" in self.unknown:
            return size or 1, number or 1
        parts = {"dp": dp, "micro_batch": size or 1, "num_micro_batches": number or 1}
        is_whole = size is not None and number is not None
        resolved, unit = self.space.resolved, math.prod(parts.values())
        batch = resolved.workload.global_batch
        if batch % unit or (is_whole and unit != batch):
            from planner.spaces.diagnose import no_share  # other plans do without

            self.problems += no_share(resolved, parts, tuple(parts), is_whole=is_whole, per_rank=self.gpus // dp)
            self.unknown |= {"micro_batch", "num_micro_batches"}
            return size or 1, number or 1
        share = batch // dp
        if size is None:
            size = share // number if number is not None else 1 if self.usual.accumulates else share
            self._note("micro_batch", str(size))
        if number is None:
            number = share // size
            self._note("num_micro_batches", str(number))
        return size, number

    @property
    def _usual_recompute(self) -> str | None:
        """What the framework recomputes unless told; None where a number of blocks tells it."""
        return None if "recompute_blocks" in self.degrees else self.usual.recompute

    def _with_recompute(self, plan: MeshPlan) -> MeshPlan:
        blocks = self.degrees.get("recompute_blocks")
        mode = self.names.get("recompute", "full" if blocks or self._usual_recompute == "full" else "none")
        if mode == "full" and blocks is None:
            blocks = self.space.blocks_per_stage(plan)
        return dataclasses.replace(plan, recompute=mode, recompute_blocks=blocks or 0)

    def _as_needed(self, plan: MeshPlan) -> MeshPlan:
        """The plan with the recomputation that takes least time of all that fits, or least memory where none does."""
        ways = recompute_as_needed(self.space.blocks_per_stage(plan))
        plans = [dataclasses.replace(plan, recompute=mode, recompute_blocks=blocks) for mode, blocks in ways]
        costs = self.space.model.evaluate_plans(plans)
        memory, capacity = costs.memory_bytes, self.space.resolved.setting.memory_capacity_bytes
        return plans[int(np.lexsort((costs.step_time_s, np.maximum(memory, capacity)))[0])]

    def _is_hosted(self, what: str) -> bool:
        """Whether the host keeps it: as said, else as the framework's recipes have it."""
        said, usual = self.restriction.flags.get(f"offload_{what}"), self.usual.offloads
        if said is None and usual:
            self._note(f"offload_{what}", usual.replace(" ", ","), usual)
        return what in usual.split() if said is None else said

    def _with_sequence_parallel(self, plan: MeshPlan) -> MeshPlan:
        """Cut along the positions with tensor parallelism, as Megatron-LM recommends, unless that breaks a rule."""
        wanted = self.restriction.flags.get("sequence_parallel")
        if wanted is None and plan.tp > 1:
            cut = dataclasses.replace(plan, sequence_parallel=True)
            wanted = set(self.space.broken(cut, self.unknown)) <= set(self.space.broken(plan, self.unknown))
            self._note("sequence_parallel", "on" if wanted else "off")
        return dataclasses.replace(plan, sequence_parallel=bool(wanted))
