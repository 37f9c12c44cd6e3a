"""The space of plans over a device mesh: its cost model, its search and what its answers say."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.host import USABLE_SHARE
from costmodel.layerwise.plan import divisors
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.detail import FLOP_CONVENTION, layer_rows, mesh_links, model_flops_per_step, stage_rows
from costmodel.mesh.framework_rules import FACTS, by_facts
from costmodel.mesh.framework_rules import broken as broken_refusals
from costmodel.mesh.model import MeshModel, plans_computing_s
from costmodel.mesh.modules import MeshError
from costmodel.mesh.plan import MEMORY_PARTS, MESH_FIGURES, TIME_PARTS, MeshCosts, MeshPlan
from costmodel.mesh.rules import RULES, NetworkShape, Rule, broken_rules
from costmodel.mesh.tensor_parallel import expert_load, expert_spread
from costmodel.network.graph import Graph
from costmodel.objectives import step_costs
from costmodel.rates import training_rates
from costmodel.tolerances import EQUAL
from planner.core.answer import (
    Answer,
    Assumption,
    Curve,
    ErrorBars,
    Estimate,
    Proof,
    RankedPlan,
    Sensitivity,
    Setting,
)
from planner.core.capacity import fit_figures, limit_notes
from planner.core.errors import SearchInterrupted, UsageError
from planner.core.notes import Note
from planner.core.numbers import byte_text, percent
from planner.core.objectives import check_rates
from planner.core.request import Request
from planner.question.fixed import fixed_by
from planner.question.resolve import Resolved
from planner.spaces.base import Found, PlanSpace, as_asked
from planner.spaces.mesh.plans import (
    MUCH_HOST,
    bottleneck_in_words,
    family_of_mesh_plan,
    mesh_entry,
    mesh_plan_in_words,
    splits_in_words,
)
from strategies.mesh.settings import DISTINCT, MeshOutcome, MeshSettings

if TYPE_CHECKING:
    from costmodel.timeline import Tracks
    from planner.core.what_if import WhatIf
    from strategies.limits import Progress

# Pieces of work that a search for a sentence may take: some seconds, where most take a tenth of one.
EFFORT = 5_000
# Parts of the step in which devices wait for the network.
_COMMUNICATION = ("tp_exposed_s", "cp_exposed_s", "ep_exposed_s", "pp_exposed_s", "dp_exposed_s")
# Relative room below which a host is full.
_FULL = 1e-6


def _shape(plan: MeshPlan) -> tuple[Any, ...]:
    """What the plans of a list differ in."""
    return tuple(getattr(plan, name) for name in DISTINCT)


def mesh_space(resolved: Resolved) -> MeshPlanSpace:
    """Build the cost model of a question.

    Raises
    ------
    UsageError
        The network cannot be laid over a mesh, or the objective needs a price or a power that nobody stated.
    """
    workload, device = resolved.workload, resolved.cluster.device
    check_rates(resolved.request.objective, [device])
    assumptions = dataclasses.replace(resolved.mesh_assumptions, **dict(resolved.request.assume))
    try:
        model = MeshModel.build(workload, resolved.cluster, assumptions)
    except MeshError as error:
        raise UsageError(f"network '{resolved.setting.model}' cannot be laid over a mesh: {error}") from None
    _check_question(resolved, model)
    return MeshPlanSpace(
        resolved=resolved,
        model=model,
        shape=NetworkShape.of(
            workload.graph, model.modules, workload.global_batch, workload.framework, resolved.cluster
        ),
        seq=_positions(workload.graph),
        flop_per_step=model_flops_per_step(workload),
        peak_flop_per_s=device.peak(workload.precision.compute),
        constants=assumptions,
    )


def _check_question(resolved: Resolved, model: MeshModel) -> None:
    """Refuse a question whose network, precision or optimizer the framework does not take, whatever the plan."""
    framework, facts = resolved.workload.framework, model.facts
    problems = [
        f"--framework {framework.name}: {framework.rules.cited(refusal, as_asked(resolved, facts.values), framework.name)}"
        for refusal in by_facts(framework.rules.of(), facts)
        if refusal.when.keys() <= FACTS.keys()
    ]
    if problems:
        raise UsageError("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class MeshPlanSpace(PlanSpace):
    """A question about plans over a device mesh with its cost model.

    Attributes
    ----------
    seq : int
        Positions of a sample.
    flop_per_step : float
        Model FLOP of one step, by the convention of `costmodel.mesh.detail`.
    peak_flop_per_s : float
        Dense peak of one device in the precision that matrices are computed in.
    constants : MeshAssumptions
    known_gpus : int
        All plans on so many GPUs are known, and not searched again.
    known : tuple of MeshPlan
        Plans that the others have to beat.
    """

    model: MeshModel
    shape: NetworkShape
    seq: int
    flop_per_step: float
    peak_flop_per_s: float
    constants: MeshAssumptions
    known_gpus: int = 0
    known: tuple[MeshPlan, ...] = ()

    name = "mesh"
    diagnoses_options = True
    declared = MESH_FIGURES
    names_roles = True

    @property
    def is_spelled_out(self) -> bool:
        request = self.resolved.request
        return request.mesh is not None or request.micro_batches is not None

    # -- the search

    def refuse_contradiction(self) -> None:
        self.diagnosis().refuse_contradiction()

    def settings(self) -> MeshSettings:
        """Limits of the search that the question asks for."""
        request = self.resolved.request
        return MeshSettings(
            max_workers=request.gpus,
            capacity_bytes=self.resolved.setting.memory_capacity_bytes,
            top=request.top,
            distinct=None if request.diverse is False or request.top == 1 else DISTINCT,
            restriction=fixed_by(request),
            score=self.score,
            wall_s=self.time_limit_s,
            gap=request.gap,
        )

    def _settings_after(self, found: Found) -> MeshSettings:
        """Limits of what comes after the search."""
        return dataclasses.replace(self.settings(), wall_s=self.time_left_s(found))

    def outcome(self, settings: MeshSettings, progress: Progress | None = None) -> MeshOutcome:
        """Search with the same cost model."""
        from strategies.mesh.search import search_model  # one plan is predicted without

        return search_model(self.model, settings, progress)

    def outcome_of(self, top: int, progress: Progress | None) -> MeshOutcome:
        """Look for the best plans, which differ in a degree unless all are asked for."""
        settings = dataclasses.replace(self.settings(), known=self.known)
        if top > settings.top:
            distinct = None if self.resolved.request.diverse is False else DISTINCT
            settings = dataclasses.replace(settings, top=top, distinct=distinct)
        if self.known_gpus:
            counts = tuple(range(self.known_gpus + 1, settings.max_workers + 1))
            settings = dataclasses.replace(settings, worker_counts=counts)
        return self.outcome(settings, progress)

    def saved_bytes(self, plan: MeshPlan, workers: int) -> tuple[float, float]:
        total, ranks = self.model.saved_bytes([plan])
        return total, float(ranks[0])

    def after(self, asked: Request, known_gpus: int, known: Sequence[MeshPlan]) -> MeshPlanSpace:
        setting = dataclasses.replace(self.resolved.setting, gpus=asked.gpus)
        resolved = dataclasses.replace(self.resolved, request=asked, setting=setting)
        return dataclasses.replace(self, resolved=resolved, known_gpus=known_gpus, known=tuple(known))

    def baselines(self, found: Found, best: RankedPlan) -> Mapping[str, RankedPlan | None]:
        """Best plan without tensor, context, expert and pipeline parallelism, whatever else is fixed."""
        if found.outcome.interrupted:
            return {"data_parallel": None}
        from strategies.limits import Clock
        from strategies.mesh.roles import DATA_PARALLEL, first_of

        settings, plan = self._settings_after(found), best.plan
        if settings.restriction.is_free and plan.tp * plan.cp * plan.ep * plan.pp == 1:
            return {"data_parallel": best}
        plain = dataclasses.replace(settings, restriction=DATA_PARALLEL)
        candidate = first_of(self.model, plain, Clock(limit_s=settings.wall_s))
        return {"data_parallel": None if candidate is None else self.rank([candidate.plan], best.score)[0]}

    def search_notes(self, found: Found, answer: Answer) -> list[str]:
        resolved, outcome = self.resolved, found.outcome
        notes: list[str] = [*resolved.model.notes, *_host_notes(answer.best)]
        notes += limit_notes(resolved.request, resolved.cluster.device)
        if not outcome.is_counted:
            notes.append(Note("plans_not_counted"))
        return [*notes, *super().search_notes(found, answer)]

    def preferred(self, found: Found) -> Found:
        from planner.spaces.mesh.roles import with_first

        return with_first(self, self._settings_after(found), found)

    def finished(self, answer: Answer, found: Found) -> Answer:
        from planner.spaces.mesh.binding import binding_notes
        from planner.spaces.mesh.notes import batch_notes, cautions, pessimistic_notes
        from planner.spaces.mesh.roles import mesh_roles

        settings = self._settings_after(found)
        if answer.refined is not None:
            (barred,), _ = self.error_bars([answer.refined])
            answer = dataclasses.replace(answer, refined=barred)
        more = (
            *cautions(self, answer.best),
            *pessimistic_notes(self, settings, answer.plans),
            *batch_notes(self, settings, answer.best),
            *binding_notes(self, settings, answer.listed),
        )
        roles = mesh_roles(self, settings, found, answer)
        if settings.distinct is not None and len(answer.plans) > 1:
            listed = {_shape(plan.plan) for plan in answer.listed}
            copies = [
                role.name
                for role in roles
                if role.plan and role.plan not in answer.listed and _shape(role.plan.plan) in listed
            ]
            more = (Note("similar_plans_left_out", roles=copies or None), *more)
        return dataclasses.replace(answer, notes=(*answer.notes, *more), roles=roles)

    # -- figures

    def described(self, plans: Sequence[MeshPlan]) -> list[RankedPlan]:
        costs = self.model.evaluate_plans(plans)
        computing_s = plans_computing_s(self.model, plans, costs)
        scores = self.score.of(costs.step_time_s, computing_s, [plan.workers for plan in plans])
        return [
            self._described(plan, costs, n, computing_s=float(computing_s[n]), score=float(scores[n]))
            for n, plan in enumerate(plans)
        ]

    def _described(self, plan: MeshPlan, costs: MeshCosts, n: int, *, computing_s: float, score: float) -> RankedPlan:
        host, device, setting = self.resolved.cluster.host, self.resolved.cluster.device, self.resolved.setting
        step, host_s = float(costs.step_time_s[n]), float(costs.host_s[n])
        parts = {name: float(getattr(costs, name)[n]) for name in TIME_PARTS}
        return RankedPlan(
            plan=plan,
            family=family_of_mesh_plan(plan),
            summary=mesh_plan_in_words(plan),
            workers=plan.workers,
            bottleneck=bottleneck_in_words(parts, host_s),
            declared=MESH_FIGURES,
            score=score,
            fits_surest=setting.memory_errors.surest if setting.memory_errors else 1.0,
            figures={
                "step_time_s": step,
                "memory_bytes_per_gpu": float(costs.memory_bytes[n]),
                **fit_figures(
                    setting.memory_errors, float(costs.memory_bytes[n]), setting.memory_capacity_bytes, device
                ),
                "host_bytes_per_gpu": float(costs.host_bytes[n]),
                "host_capacity_bytes_per_gpu": None if host is None else host.share_bytes(plan.workers),
                "exposed_communication_s": sum(parts[name] for name in _COMMUNICATION),
                "host_s": host_s,
                **_domains_of(self.resolved.cluster, plan),
                **training_rates(
                    step_time_s=step,
                    workers=plan.workers,
                    samples=self.resolved.workload.global_batch,
                    positions=self.seq,
                    flop=self.flop_per_step,
                    peak_flop_per_s=plan.workers * self.peak_flop_per_s,
                    price_per_hour=device.price_per_hour,
                ),
                **step_costs(
                    [(device, host, computing_s, plan.workers)], step, self.resolved.workload.precision.compute
                ),
                **parts,
                **{name: float(getattr(costs, name)[n]) for name in MEMORY_PARTS},
            },
        )

    def bars(self, plans: Sequence[RankedPlan]) -> ErrorBars:
        from planner.spaces.mesh.bars import mesh_coordinates, mesh_times
        from planner.uncertainty.bars import plan_bars

        planned = [plan.plan for plan in plans]
        times = mesh_times(self.model, planned, exact=False)
        coordinates, launch_s = mesh_coordinates(planned), self.constants.host_launch_s
        return plan_bars(self.resolved, plans, times, coordinates=coordinates, host_launch_s=launch_s)

    def sensitivity(self, plans: Sequence[RankedPlan]) -> tuple[Sensitivity, ...] | None:
        from planner.spaces.mesh.bars import mesh_times
        from planner.uncertainty.sensitivity import plan_sensitivity

        return plan_sensitivity(
            self.resolved, plans, mesh_times(self.model, [plan.plan for plan in plans]), self.constants
        )

    # -- rules

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules of the space, in the words of this network: --seq changes nothing about one that reads images."""
        if self.resolved.setting.seq is not None:
            return RULES
        return tuple(
            dataclasses.replace(rule, message=_of_fixed_positions(self.resolved.setting.model))
            if rule.name == "context"
            else rule
            for rule in RULES
        )

    def broken(self, plan: MeshPlan, unknown: Set[str] = frozenset()) -> list[str]:
        """Say which rules of the space a plan breaks; those that read a field which is not known yet are left out."""
        framework = self.resolved.workload.framework
        refusals = [
            refusal
            for refusal in framework.rules.of()
            if not refusal.reads & unknown and "few_micro_batches" not in refusal.when
        ]
        refused = broken_refusals(refusals, self.model.plan_facts(plan)) if refusals else []
        # What the framework never has need not go with the rest of the plan.
        unknown |= {name for refusal, _ in refused if len(refusal.when) == 1 for name in refusal.when}
        known = [rule for rule in self.rules if not unknown & set(rule.fields)]
        return [
            *broken_rules(self.shape, plan, known),
            *(framework.rules.cited(refusal, values, framework.name) for refusal, values in refused),
        ]

    def blocks_per_stage(self, plan: MeshPlan) -> int:
        """Blocks of the longest chunk; 1 where there are more chunks than blocks, which a rule refuses."""
        chunks = plan.pp * plan.vpp
        return self.model.layout(plan.pp, plan.vpp).most_blocks if chunks <= self.model.num_blocks else 1

    # -- one plan

    def setting(self, plan: MeshPlan) -> Setting:
        return dataclasses.replace(super().setting(plan), seq=self.seq)

    def assumptions(self, plan: MeshPlan) -> tuple[Assumption, ...]:
        return (*super().assumptions(plan), *self.expert_loads(plan), self.host_memory(), self.convention())

    @property
    def assumed(self) -> MeshAssumptions:
        return self.constants

    def expert_loads(self, plan: MeshPlan) -> tuple[Assumption, ...]:
        """How uneven the loads of experts are, and what the fullest rank computes; nothing where all get equally many."""
        layers = self.resolved.workload.graph.layers
        mixtures = dict.fromkeys(layer.params for layer in layers if layer.kind == "moe")
        is_stated = any(params.capacity_factor != 1.0 for params in mixtures)
        spread = max((expert_spread(params, self.constants) for params in mixtures), default=0.0)
        if not spread and not is_stated:
            return ()
        ep = np.array([plan.ep])
        load = max(p.capacity_factor * float(expert_load(p, ep, self.constants)[0]) for p in mixtures)
        fullest = f"the fullest rank of ep {plan.ep} has {load:.3g} x the mean"
        if is_stated:
            return (Assumption(name="loads of experts", value=fullest, source="model file"),)
        # Between what new and trained routers show that no bias balances (`MeshAssumptions.expert_spread`).
        between = " of the mean, between 2.2 of new routers and 0.3 of trained ones" if spread == 1.0 else ""
        known = f"spread {spread:g}{between} (--assume expert_spread=0: forced balance)"
        value = ", ".join([known, *[fullest] * (plan.ep > 1)])
        return (Assumption(name="loads of experts", value=value, source=self.source_of("expert_spread")),)

    def host_memory(self) -> Assumption:
        """How much the host of a node holds."""
        host = self.resolved.cluster.host
        if host is None:
            return Assumption(name="host memory", value="without a limit (the cluster file states none)")
        value = f"{byte_text(host.memory_bytes)} per {host.devices} GPUs, of which {percent(USABLE_SHARE)} for tensors"
        return Assumption(name="host memory", value=value, source="cluster file")

    def is_host_full(self, ranked: RankedPlan) -> bool:
        """Whether a plan takes all the room on the host that there is."""
        room = ranked["host_capacity_bytes_per_gpu"]
        return room is not None and ranked["host_bytes_per_gpu"] >= (1 - _FULL) * room

    def host_in_words(self, ranked: RankedPlan) -> str:
        """Say that the host of a node is full, behind what else does not fit; nothing where it is not."""
        room = ranked["host_capacity_bytes_per_gpu"]
        if not self.is_host_full(ranked):
            return ""
        return f"; the host is full: it has room for {byte_text(room)} per GPU ({self.host_memory().value})"

    def convention(self) -> Assumption:
        """How MFU is counted."""
        precision = self.resolved.workload.precision.compute
        value = (
            f"{self.flop_per_step:.4g} model FLOP per step ({FLOP_CONVENTION}) over step time x GPUs in use x "
            f"{self.peak_flop_per_s / 1e12:.4g} TFLOP/s, the dense {precision} peak"
        )
        return Assumption(name="MFU", value=value)

    def exact_plan(self) -> tuple[MeshPlan, tuple[Assumption, ...]]:
        from planner.spaces.mesh.exact import exact_plan

        return exact_plan(self)

    def tables(self, plan: MeshPlan, ranked: RankedPlan) -> Mapping[str, tuple[Any, ...]]:
        return {
            "stages": tuple(stage_rows(self.model, plan)),
            "layers": tuple(layer_rows(self.model, plan)),
            "links": tuple(mesh_links(self.model, plan)),
        }

    def plan_notes(self, ranked: RankedPlan) -> list[str]:
        from planner.spaces.mesh.notes import cautions, power_notes

        notes: list[str] = [*self.resolved.model.notes, *_host_notes(ranked)]
        if not ranked.fits:
            room = ranked["host_capacity_bytes_per_gpu"] if self.is_host_full(ranked) else None
            notes += self.does_not_fit(ranked, host_bytes=room, host=self.host_memory().value)
            from planner.spaces.mesh.diagnose import fitting_change

            notes.append(fitting_change(self, ranked.plan))
        return [*notes, *cautions(self, ranked), *power_notes(self, ranked)]

    def explained(self, estimate: Estimate, plans: Sequence[RankedPlan], proof: Proof | None) -> Estimate:
        from strategies.mesh.block_search import split_plan

        ranked = estimate.ranked
        check = split_plan(self.model, ranked.plan, ranked.memory_capacity_bytes)
        return dataclasses.replace(estimate, details={**estimate.details, "split": check})

    # -- from one plan to another

    most_better = 50
    better_plans = "plans that differ in tp, ep, pp, ZeRO stage, number of micro-batches or schedule"
    follows = " Replicas fill the GPUs, and micro-batches the batch."

    def differing(self, plan: MeshPlan, other: MeshPlan) -> Mapping[str, tuple[str, str]]:
        found: Mapping[str, tuple[str, str]] = self.module("steps").differing(plan, other)
        return found

    def part_way(self, plan: MeshPlan, other: MeshPlan, names: Collection[str]) -> MeshPlan | None:
        changed: MeshPlan | None = self.module("steps").part_way(self, plan, other, names)
        return changed

    def better_than(self, score: float) -> tuple[int, bool]:
        below = score * (1 - EQUAL)
        settings = dataclasses.replace(
            self.settings(), top=self.most_better, distinct=DISTINCT, cutoff=below, effort=EFFORT
        )
        outcome = self.outcome(settings)
        if outcome.interrupted:
            raise SearchInterrupted(None)
        better = sum(1 for candidate in outcome.candidates if candidate.score < below)
        return better, better < self.most_better and not outcome.out_of_time

    def plan_entry(self, plan: MeshPlan) -> Mapping[str, Any]:
        return mesh_entry(plan)

    def setting_texts(self, estimate: Estimate) -> Mapping[str, str]:
        texts = dict(super().setting_texts(estimate))
        splits = texts.pop("block_splits")
        return {**texts, "block_splits": splits_in_words(estimate.ranked.plan.block_splits)} if splits else texts

    def tracks(self, plan: MeshPlan) -> Tracks:
        from costmodel.mesh.tracks import mesh_tracks

        return mesh_tracks(self.model, plan)

    def study(self, answer: Answer, progress: Progress) -> tuple[Sequence[RankedPlan], Sequence[Curve], str]:
        from planner.spaces.mesh.scaling import mesh_study

        return mesh_study(self, progress)

    def what_if(self, ranked: RankedPlan) -> WhatIf | None:
        from planner.spaces.mesh.what_if import mesh_what_if

        return mesh_what_if(self, ranked)


def _domains_of(cluster: Cluster, plan: MeshPlan) -> dict[str, int | None]:
    """How many domains a plan uses, and how many devices of each."""
    if cluster.domain_size is None:
        return {"domains": None, "gpus_per_domain": None}
    used = min(plan.domain_gpus or int(cluster.share(plan.workers)), plan.workers)
    return {"domains": -(-plan.workers // used), "gpus_per_domain": used}


def _host_notes(plan: RankedPlan) -> list[Note]:
    share = plan["host_s"] / plan.step_time_s
    return [Note("waits_for_hosts", share=share)] if share >= MUCH_HOST else []


def _of_fixed_positions(model: str) -> Callable[[NetworkShape, Mapping[str, int]], str]:
    """The sentence of the rule of context parallelism about a network whose positions come from what it reads."""

    def message(shape: NetworkShape, values: Mapping[str, int]) -> str:
        unit = values["cp"] * (2 if shape.is_causal else 1)
        common = math.gcd(*shape.positions)
        allowed = [cp for cp in divisors(common) if common % (cp * (2 if shape.is_causal else 1)) == 0 or cp == 1]
        positions = " and ".join(map(str, shape.positions))
        return (
            f"cp {values['cp']} needs positions that {unit} divides, and the {positions} of '{model}' come from its input (the patches "
            f"of an image), not from --seq; allowed: {', '.join(map(str, allowed[:12]))}"
        )

    return message


def _positions(graph: Graph) -> int:
    """Positions of a sample: of the tensor that enters the first block."""
    return next(layer.input_shapes[0][1] for layer in graph.layers if layer.block)
