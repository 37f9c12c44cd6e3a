"""The space of plans with a split per layer: its cost model, its search and what its answers say."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from costmodel.kernels.roofline import RooflineCompute
from costmodel.layerwise.evaluate import CostBatch, evaluate
from costmodel.layerwise.plan import LAYERWISE_FIGURES, Plan, Split, divisors, family_of_plan, plan_key
from costmodel.layerwise.tables import CostCache
from costmodel.objectives import step_costs
from costmodel.rates import training_rates
from costmodel.tolerances import EQUAL, PROOF_SLACK
from planner.core.answer import (
    Answer,
    Assumption,
    Curve,
    ErrorBars,
    Estimate,
    LayerCost,
    Proof,
    RankedPlan,
    Role,
    Sensitivity,
)
from planner.core.capacity import fit_figures, limit_notes
from planner.core.errors import NoFeasiblePlan, UsageError
from planner.core.notes import Note
from planner.core.numbers import byte_text
from planner.question.choose import is_transformer
from planner.question.resolve import Resolved, resolve
from planner.spaces.base import NEARLY, WORTH_FASTER, Found, PlanSpace, check_framework
from planner.spaces.layers.plans import layerwise_section, plan_from_document, plan_in_words, split_in_words
from strategies.layerwise.space import BATCH_FAMILIES, FAMILY_NAMES, Restriction
from strategies.limits import SPEED_KEPT

if TYPE_CHECKING:
    from pathlib import Path

    from costmodel.timeline import Tracks
    from planner.core.what_if import WhatIf
    from planner.files.documents import Document
    from planner.schema.plan import PlanDocument
    from strategies.layerwise.candidates import Candidate, LayerwiseOutcome, SearchSettings
    from strategies.limits import Progress

_OF_TRAINING = "of training steps, since no published forward pass is in the fit"
# What a note calls the terms of a step.
_TERMS = {
    "compute_s": "compute",
    "update_s": "the optimizer",
    "reshard_s": "resharding",
    "exposed_exchange_s": "exposed gradient exchange",
    "bubble_s": "the pipeline bubble",
}
# What a table of changes calls all splits together, where there are more runs of layers than a table has room for.
_ALL_SPLITS, _MOST_RUNS = "workers and splits", 12


def layerwise_space(resolved: Resolved) -> LayerwisePlanSpace:
    """The space of a question, with the splits that its framework runs.

    Raises
    ------
    UsageError
        The framework does not run the network, or what is fixed of the plan.
    """
    check_framework(resolved)
    rule = _rule_of_splits(resolved)
    restriction = resolved.restriction or Restriction()
    if rule:
        splits = [
            f"--fix: {layer} is split by {name}: {rule}"
            for layer, degrees in restriction.fixed.items()
            for name, degree in degrees.items()
            if name != "batch" and degree != 1
        ]
        _check_family(restriction.family, rule)
        if splits:
            raise UsageError(splits[0])
        restriction = dataclasses.replace(restriction, by_batch=True)
    cache = CostCache(resolved.workload, resolved.cluster)
    return LayerwisePlanSpace(resolved=resolved, restriction=restriction, cache=cache)


def _rule_of_splits(resolved: Resolved) -> str:
    """The rule of the framework that splits layers by the batch alone; empty where it has none.

    What splits all blocks alike splits no layers of them in ways of their own.
    """
    framework = resolved.workload.framework
    found = {name: refusal for refusal in framework.rules.of() for name, is_on in refusal.when.items() if is_on is True}
    refusal = found.get("layer_splits", found.get("block_splits") if resolved.workload.graph.blocks else None)
    return "" if refusal is None else f"{refusal.why} (rule of {framework.name}: {refusal.source})"


def _check_family(family: str | None, rule: str) -> None:
    if rule and family not in (None, *BATCH_FAMILIES):
        raise UsageError(f"--family {family}: {rule}")


@dataclass(frozen=True, kw_only=True)
class LayerwisePlanSpace(PlanSpace):
    """A question about splits per layer with its cost model.

    Attributes
    ----------
    restriction : Restriction
        What is fixed of the splits.
    cache : CostCache
        Costs of layers that were worked out already.
    """

    restriction: Restriction
    cache: CostCache

    name = "layers"
    declared = LAYERWISE_FIGURES
    names_roles = True

    @property
    def free_layers(self) -> tuple[str, ...]:
        return self.resolved.free_layers

    @property
    def is_spelled_out(self) -> bool:
        """Whether a family or splits of layers are fixed."""
        request = self.resolved.request
        return request.family is not None or bool(request.fix)

    # -- the search

    def refuse_contradiction(self) -> None:
        """Refuse splits of more parts than there are samples."""
        batch = self.resolved.workload.global_batch
        for name, degrees in self.restriction.fixed.items():
            if degrees.get("batch", 0) > batch:
                raise UsageError(
                    f"--fix: {name} is split {degrees['batch']} ways by the batch, which has {batch} samples"
                )

    def settings(self) -> SearchSettings:
        """Limits of the search that the question asks for."""
        from strategies.layerwise.candidates import SearchSettings

        request = self.resolved.request
        return SearchSettings(
            score=self.score,
            max_workers=request.gpus,
            capacity_bytes=self.resolved.setting.memory_capacity_bytes,
            top=request.top,
            restriction=self.restriction,
            micro_batches=None if request.micro_batches is None else (request.micro_batches,),
            wall_s=self.time_limit_s,
            gap=request.gap,
            solver=request.solver,
            near=1.0 / SPEED_KEPT - 1.0,
        )

    def _settings_after(self, found: Found) -> SearchSettings:
        """Limits of what comes after the search."""
        return dataclasses.replace(self.settings(), wall_s=self.time_left_s(found))

    def _outcome(self, settings: SearchSettings, progress: Progress | None = None) -> LayerwiseOutcome:
        from strategies.layerwise.search import search

        return search(self.resolved.workload, self.resolved.cluster, settings, progress, self.cache)

    def outcome_of(self, top: int, progress: Progress | None) -> LayerwiseOutcome:
        return self._outcome(dataclasses.replace(self.settings(), top=top), progress)

    def search(self, top: int, progress: Progress | None) -> Found:
        """Look for the best plans; of every family the best, where plans have to differ."""
        started = time.monotonic()
        found = super().search(top, progress)
        if not found.plans or not self.resolved.request.diverse:
            return found
        plans = [candidate.plan for candidate in self._of_every_family(found.outcome, started)]
        return dataclasses.replace(found, plans=plans, shown=len(plans))

    def preferred(self, found: Found) -> Found:
        """The simplest plan first; where a family or splits are named, the best: what is asked for is not to be simpler."""
        if self.request.fastest or self.is_spelled_out:
            return found
        from strategies.layerwise.simplest import forgone_by, simplest

        graph, known = self.resolved.workload.graph, found.outcome.candidates
        chosen = simplest(self.cache, self._settings_after(found), found.outcome, NEARLY)
        if plan_key(graph, chosen.plan) == plan_key(graph, known[0].plan):
            return found
        (fastest,) = self.rank([known[0].plan], chosen.score)
        others = [plan for plan in found.plans if plan_key(graph, plan) != plan_key(graph, chosen.plan)]
        if self.request.diverse:
            others = [plan for plan in others if family_of_plan(graph, plan) != chosen.family]
        return found.led_by(
            chosen.plan, others, dataclasses.replace(fastest, rank=2), forgone_by(graph, chosen, known[0])
        )

    def finished(self, answer: Answer, found: Found) -> Answer:
        """The answer with the plan on the fewest GPUs that is nearly as fast as the best."""
        best = answer.best
        if self.score.per_device or best.workers == 1:
            return answer
        from strategies.layerwise.simplest import fewest_gpus

        cutoff = (answer.fastest or best).score / SPEED_KEPT
        chosen = fewest_gpus(self.cache, self._settings_after(found), found.outcome, best.workers, cutoff)
        ranked = best if chosen is None else self.rank([chosen.plan], best.score)[0]
        return dataclasses.replace(answer, roles=(*answer.roles, Role(name="fewest_gpus", plan=ranked)))

    def _of_every_family(self, outcome: LayerwiseOutcome, started: float) -> list[Candidate]:
        """Best plan of every family, each by its own exact search; one time limit and one Ctrl-C end them all."""
        settings, asked = self.settings(), self.restriction.family
        families = BATCH_FAMILIES if self.restriction.by_batch else FAMILY_NAMES
        found: dict[str, Candidate] = {}
        for candidate in outcome.candidates:
            found.setdefault(candidate.family, candidate)
        for family in families:
            if outcome.interrupted:
                break
            if family in found or (asked is not None and family != asked):
                continue
            result = self._outcome(
                dataclasses.replace(
                    settings,
                    restriction=dataclasses.replace(self.restriction, family=family),
                    top=1,
                    wall_s=max(settings.wall_s - (time.monotonic() - started), 0.0),
                )
            )
            outcome.interrupted |= result.interrupted
            outcome.out_of_time |= result.out_of_time
            if result.candidates:
                found[family] = result.candidates[0]
        return sorted(found.values(), key=lambda c: (c.score, c.plan.workers, c.family))

    def nothing_fits(self, outcome: LayerwiseOutcome) -> Exception:
        setting = self.resolved.setting
        miss = outcome.nearest_miss
        if miss is None:
            workers = "1 worker" if setting.gpus == 1 else f"up to {setting.gpus} workers"
            family = self.resolved.request.family
            if setting.gpus == 1 and family not in (None, "one-device"):
                fix = f"--family {family} takes 2 GPUs or more; one GPU has --family one-device"
            else:
                fix = "fix less, or change --batch or --gpus"
            return NoFeasiblePlan(
                f"no legal plan: no layer-by-layer split of '{setting.model}' at global batch {setting.global_batch} exists on "
                f"{workers} within what is fixed; {fix}{self._excluded()}"
            )
        need, have = miss.memory_bytes, setting.memory_capacity_bytes
        words = plan_in_words(self.resolved.workload.graph, miss.plan)
        return NoFeasiblePlan(
            f"nothing fits: the plan of least memory ({words}) needs {byte_text(need)} per GPU and there are "
            f"{byte_text(have)}; use more GPUs, a device with more memory, a smaller --batch, or --optimizer sgd{self._excluded()}"
        )

    def _excluded(self) -> str:
        """The rule that leaves out the other splits, as the end of a sentence."""
        rule = _rule_of_splits(self.resolved)
        return f"; plans with other splits were not searched: {rule}" if rule else ""

    def proof(self, found: Found, plans: Sequence[RankedPlan]) -> Proof:
        """What the search proves, of the first plan and of the whole list."""
        outcome: LayerwiseOutcome = found.outcome
        proof = super().proof(found, plans)
        last = outcome.candidates[: self.resolved.request.top][-1].score
        is_top = proof.proven_optimal and outcome.rest_bound >= last * (1 - PROOF_SLACK)
        is_top = is_top and not self.resolved.request.diverse and found.fastest is None
        return dataclasses.replace(proof, proven_top=is_top, solver=", ".join(outcome.methods))

    def baselines(self, found: Found, best: RankedPlan) -> Mapping[str, RankedPlan | None]:
        """Plain data parallelism: on the best number of workers, and on all."""
        from strategies.layerwise.candidates import best_data_parallel

        resolved = self.resolved
        capacity_bytes = resolved.setting.memory_capacity_bytes
        every, fewer = best_data_parallel(self.cache, resolved.request.gpus, capacity_bytes, self.score)
        plans = {"data_parallel": fewer, "data_parallel_all": every}
        ranked = iter(self.rank([plan for plan in plans.values() if plan is not None], best.score))
        return {name: None if plan is None else next(ranked) for name, plan in plans.items()}

    def search_notes(self, found: Found, answer: Answer) -> list[str]:
        return [
            *_why(answer.plans[0], answer.baselines["data_parallel"]),
            *limit_notes(self.resolved.request, self.resolved.cluster.device),
            *self._batch_notes(answer.plans[0]),
            *super().search_notes(found, answer),
        ]

    def _batch_notes(self, best: RankedPlan) -> list[Note]:
        """Twice the batch by plain data parallelism, where GPUs stay idle, if more of them are used then and each sample takes less."""
        resolved, batch = self.resolved, self.resolved.workload.global_batch
        gpus = resolved.request.gpus
        if best.workers == gpus or self.is_spelled_out or not self.ranks_by_time:
            return []
        from strategies.layerwise.candidates import best_data_parallel

        twice = layerwise_space(resolved.with_batch(2 * batch))
        _, plan = best_data_parallel(twice.cache, gpus, resolved.setting.memory_capacity_bytes, self.score)
        if plan is None or plan.workers <= best.workers:
            return []
        ranked = twice.rank([plan])[0]
        speedup = 2 * best.step_time_s / ranked.step_time_s
        if speedup < WORTH_FASTER:
            return []
        return [
            Note(
                "batch_limits_gpus",
                batch=batch,
                gpus=gpus,
                idle=gpus - best.workers,
                other_batch=2 * batch,
                step_time_s=ranked.step_time_s,
                plan=ranked.summary,
                speedup=speedup,
            )
        ]

    # -- figures

    def described(self, plans: Sequence[Plan]) -> list[RankedPlan]:
        resolved = self.resolved
        costs = evaluate(resolved.workload, resolved.cluster, plans, self.cache)
        scores = self.score.of(costs.step_time_s, costs.computing_s, [plan.workers for plan in plans])
        bound_by_compute = self._compute_bound(plans, costs)
        return [
            self._ranked(plan, costs, n, score=float(scores[n]), compute_bound=bound_by_compute[n])
            for n, plan in enumerate(plans)
        ]

    def _ranked(self, plan: Plan, costs: CostBatch, n: int, *, score: float, compute_bound: bool) -> RankedPlan:
        resolved, graph = self.resolved, self.resolved.workload.graph
        step, single = float(costs.step_time_s[n]), self._one_worker_s
        speedup = None if single is None else single / step
        computing = min(float(costs.computing_s[n]), step)
        parts = {name: float(getattr(costs, name)[n]) for name in _TERMS}
        terms = {
            "compute" if compute_bound else "memory bandwidth": parts["compute_s"],
            "optimizer": parts["update_s"],
            "resharding": parts["reshard_s"],
            "gradient exchange": parts["exposed_exchange_s"],
            "pipeline bubble": parts["bubble_s"],
        }
        return RankedPlan(
            plan=plan,
            family=family_of_plan(graph, plan),
            summary=plan_in_words(graph, plan),
            workers=plan.workers,
            bottleneck=max(terms, key=lambda name: terms[name]),
            declared=LAYERWISE_FIGURES,
            score=score,
            fits_surest=resolved.setting.memory_errors.surest if resolved.setting.memory_errors else 1.0,
            figures={
                "step_time_s": step,
                "memory_bytes_per_gpu": float(costs.memory_bytes[n]),
                **fit_figures(
                    resolved.setting.memory_errors,
                    float(costs.memory_bytes[n]),
                    resolved.setting.memory_capacity_bytes,
                    resolved.cluster.device,
                ),
                "exposed_communication_s": float(costs.exposed_communication_s[n]),
                "speedup": speedup,
                "efficiency": None if speedup is None else speedup / plan.workers,
                **parts,
                "exchange_s": float(costs.exchange_s[n]),
                **training_rates(
                    step_time_s=step,
                    workers=plan.workers,
                    samples=resolved.workload.global_batch,
                ),
                **step_costs(
                    [(resolved.cluster.device, resolved.cluster.host, computing, plan.workers)],
                    step,
                    resolved.workload.precision.compute,
                ),
            },
        )

    @functools.cached_property
    def _one_worker_s(self) -> float | None:
        """Step of one worker at the same global batch, with as few micro-batches as fit; None if none fits."""
        resolved = self.resolved
        layers = len(resolved.workload.graph.layers)
        for m in divisors(resolved.workload.global_batch):  # more micro-batches take no less time
            plan = Plan(workers=1, num_micro_batches=m, splits=(Split(),) * layers, collectives=(None,) * layers)
            cost = evaluate(resolved.workload, resolved.cluster, [plan], self.cache)
            if cost.memory_bytes[0] <= resolved.setting.memory_capacity_bytes:
                return float(cost.step_time_s[0])
        return None

    @functools.cached_property
    def _twice_as_fast(self) -> CostCache | None:
        """Costs with twice the arithmetic rate; None where the cost model has no such rate."""
        cache, compute = self.cache, self.cache.workload.compute
        if not isinstance(compute, RooflineCompute):
            return None
        rates = {name: 2.0 * rate for name, rate in compute.device.peak_flop_per_s.items()}
        workload = dataclasses.replace(
            cache.workload, compute=dataclasses.replace(compute, device=compute.device.with_peaks(rates))
        )
        return cache.changed(workload, cache.cluster)

    def _compute_bound(self, plans: Sequence[Plan], costs: CostBatch) -> list[bool]:
        """Whether doubling the arithmetic rate would take at least a fifth off the compute time."""
        faster = self._twice_as_fast
        if faster is None:
            return [True] * len(plans)
        again = evaluate(faster.workload, faster.cluster, plans, faster)
        return [bool(saved) for saved in again.compute_s <= 0.8 * costs.compute_s]

    def bars(self, plans: Sequence[RankedPlan]) -> ErrorBars:
        from planner.spaces.layers.bars import layer_mixture, layer_times
        from planner.uncertainty.bars import plan_bars

        planned = [plan.plan for plan in plans]
        coordinates, mixture = layer_mixture(self.cache, planned)
        found = plan_bars(
            self.resolved,
            plans,
            layer_times(self.cache, planned),
            coordinates=coordinates,
            of_transformers=is_transformer(self.resolved.workload.graph),
            mixture=mixture,
            is_exact=True,
        )
        return found if self.resolved.workload.training else dataclasses.replace(found, basis=_OF_TRAINING)

    def sensitivity(self, plans: Sequence[RankedPlan]) -> tuple[Sensitivity, ...] | None:
        from planner.spaces.layers.bars import layer_times
        from planner.uncertainty.sensitivity import plan_sensitivity

        return plan_sensitivity(self.resolved, plans, layer_times(self.cache, [plan.plan for plan in plans]))

    # -- one plan

    def exact_plan(self) -> tuple[Plan, tuple[Assumption, ...]]:
        """Best plan on exactly the GPUs of the question, within the family and the splits that are fixed.

        Raises
        ------
        UsageError
            What no plan on so many GPUs can be; nothing says which plan is meant.
        NoFeasiblePlan
            No plan is legal.
        """
        self.refuse_contradiction()
        gpus, batch = self.resolved.request.gpus, self.resolved.workload.global_batch
        restriction = self.restriction
        everywhere = any(degrees == {"batch": 0} for degrees in restriction.fixed.values())
        if gpus > batch and (restriction.family == "data" or everywhere):
            raise UsageError(
                f"a batch of {batch} cannot be split over {gpus} workers; use a larger --batch or fewer --gpus"
            )
        for name, degrees in restriction.fixed.items():
            product = math.prod(degrees.values())
            if product not in (0, gpus):
                raise UsageError(
                    f"--fix: the degrees of {name} multiply to {product}, not to the {gpus} workers of --gpus"
                )
        if restriction.family is None and not restriction.fixed and gpus > 1:
            raise UsageError(
                "say which plan to predict: --plan FILE, --family (one of "
                f"{', '.join(FAMILY_NAMES)}) or --fix 'LAYERS:DIMENSION'; `planner optimize` searches for the best"
            )
        return self.best_on(gpus, restriction.family), ()

    def best_on(self, workers: int, family: str | None) -> Plan:
        """Best plan of a family on exactly so many workers, whether it fits or not; None is the whole space.

        Raises
        ------
        UsageError
            The framework runs no plan of the family.
        NoFeasiblePlan
            No plan is legal.
        """
        _check_family(family, _rule_of_splits(self.resolved))
        restriction = dataclasses.replace(self.restriction, family=family)
        settings = dataclasses.replace(
            self.settings(), top=1, worker_counts=(workers,), max_workers=workers, restriction=restriction
        )
        outcome = self._outcome(settings)
        if not outcome.candidates:
            # A prediction of the user's own plan is useful even where it does not fit.
            roomy = self._outcome(dataclasses.replace(settings, capacity_bytes=math.inf))
            if not roomy.candidates:
                raise self.no_plan(outcome)
            return roomy.candidates[0].plan
        return outcome.candidates[0].plan

    def broken(self, plan: Plan) -> list[str]:
        """Whether a plan is legal and the framework runs it; a plan file says which layer is not."""
        layers = zip(self.resolved.workload.graph.layers, plan.splits, strict=True)
        if self.restriction.by_batch and (
            plan.is_pipeline or any(split.batch != plan.workers for layer, split in layers if layer.kind != "input")
        ):
            return [_rule_of_splits(self.resolved)]
        costs = evaluate(self.resolved.workload, self.resolved.cluster, [plan], self.cache)
        if math.isfinite(costs.step_time_s[0]):
            return []
        return ["the plan is not legal: a degree is larger than what it divides, or than the micro-batch"]

    def for_plan(self, plan: Plan) -> LayerwisePlanSpace:
        """Allow the collectives that the plan names beside those that may be chosen: some run only when named."""
        allowed = self.resolved.workload.collectives
        names = dict.fromkeys((*allowed, *(name for name in plan.collectives if name is not None)))
        if tuple(names) == tuple(allowed):
            return self
        workload = dataclasses.replace(self.resolved.workload, collectives=tuple(names))
        return layerwise_space(dataclasses.replace(self.resolved, workload=workload))

    def tables(self, plan: Plan, ranked: RankedPlan) -> Mapping[str, tuple[Any, ...]]:
        from costmodel.layerwise.detail import layer_links
        from planner.spaces.layers.breakdown import layer_costs

        resolved = self.resolved
        layers = layer_costs(resolved.workload, resolved.cluster, plan)
        exposed = {i: layer.exposed_exchange_s for i, layer in enumerate(layers) if layer.collective}
        links = layer_links(resolved.cluster, plan, exposed, ranked["reshard_s"])
        return {"layers": layers, "links": tuple(links)}

    def plan_notes(self, ranked: RankedPlan) -> list[Note]:
        notes = self.does_not_fit(ranked)
        if self.resolved.setting.cost_model == "paleo" and ranked.workers == 1:
            notes += self._model_parallel_note()
        return notes

    def _model_parallel_note(self) -> list[Note]:
        """PALEO's bounds of running the branches of the network on different devices."""
        from costmodel.paleo.model import PaleoCompute
        from costmodel.paleo.scaling import model_parallel_bounds

        workload = self.resolved.workload
        compute = workload.compute
        if not isinstance(compute, PaleoCompute) or compute.extensions is not None:
            return []
        forward, backward = model_parallel_bounds(workload.graph, compute, batch=workload.global_batch)
        return [
            Note(
                "model_parallel_bounds",
                forward_low_s=forward.lower_s,
                forward_high_s=forward.upper_s,
                backward_low_s=backward.lower_s,
                backward_high_s=backward.upper_s,
            )
        ]

    def memory_parts(self, plan: Plan, total_bytes: float) -> Sequence[tuple[str, float]]:
        from planner.spaces.layers.breakdown import memory_parts

        return memory_parts(self.resolved, plan, total_bytes)

    def setting_texts(self, estimate: Estimate) -> Mapping[str, str]:
        """What does not belong to single layers."""
        plan = estimate.ranked.plan
        names = [layer.name for layer in self.resolved.workload.graph.layers]
        stages = " | ".join(f"{names[s.first]}-{names[s.last]} x{s.replicas}" for s in plan.stages)
        return {
            "num_micro_batches": str(plan.num_micro_batches),
            "pp": str(max(1, len(plan.stages))),
            **({"stages": stages} if stages else {}),
        }

    def split_layers(self, estimate: Estimate) -> Sequence[LayerCost]:
        return estimate.tables["layers"]

    def differing(self, plan: Plan, other: Plan) -> Mapping[str, tuple[str, str]]:
        """Micro-batches, then runs of layers that are split otherwise; all splits at once where the workers or the stages differ."""
        texts: dict[str, tuple[str, str]] = {}
        if plan.num_micro_batches != other.num_micro_batches:
            texts["micro-batches"] = (str(plan.num_micro_batches), str(other.num_micro_batches))
        if (plan.workers, plan.stages) != (other.workers, other.stages):
            return {**texts, _ALL_SPLITS: (f"{plan.workers} workers", f"{other.workers} workers")}
        found = {name: (_split_text(plan, run[0]), _split_text(other, run[0])) for name, run in self._runs(plan, other)}
        return {**texts, **(found if len(found) <= _MOST_RUNS else {_ALL_SPLITS: ("", "")})}

    def _runs(self, plan: Plan, other: Plan) -> list[tuple[str, list[int]]]:
        """Neighbouring layers whose splits differ between two plans in the same way."""
        names = [layer.name for layer in self.resolved.workload.graph.layers]
        both = [_split_key(plan, n) + _split_key(other, n) for n in range(len(names))]
        found = []
        for _, group in itertools.groupby(range(len(names)), key=lambda n: both[n]):
            run = list(group)
            if _split_key(plan, run[0]) != _split_key(other, run[0]):
                found.append((names[run[0]] if len(run) == 1 else f"{names[run[0]]}-{names[run[-1]]}", run))
        return found

    def part_way(self, plan: Plan, other: Plan, names: Collection[str]) -> Plan | None:
        micro_batches = (other if "micro-batches" in names else plan).num_micro_batches
        if _ALL_SPLITS in names:
            changed = dataclasses.replace(other, num_micro_batches=micro_batches)
        else:
            theirs = {n for name, run in self._runs(plan, other) if name in names for n in run}
            sources = [other if n in theirs else plan for n in range(len(plan.splits))]
            changed = dataclasses.replace(
                plan,
                num_micro_batches=micro_batches,
                splits=tuple(source.splits[n] for n, source in enumerate(sources)),
                collectives=tuple(source.collectives[n] for n, source in enumerate(sources)),
            )
        return None if self.for_plan(changed).broken(changed) else changed

    def has_all_below(self, score: float, outcome: LayerwiseOutcome) -> bool:
        return outcome.rest_bound >= score * (1 - EQUAL)

    def without_fixed(self, gpus: int, top: int) -> LayerwisePlanSpace:
        free = dataclasses.replace(
            self.resolved.request, space="layers", family=None, fix=(), diverse=False, top=top, gpus=gpus
        )
        return layerwise_space(resolve(free))

    def plan_values(self, answer: Answer | Estimate, ranked: RankedPlan) -> Mapping[str, Any]:
        from planner.files.plan_file import plan_document

        return plan_document(answer, ranked)

    def plan_section(self, ranked: RankedPlan, folder: Path | None) -> Mapping[str, Any]:
        names = [layer.name for layer in self.resolved.workload.graph.layers]
        return layerwise_section(self.resolved.request, names, ranked.plan, folder)

    def plan_of(self, document: PlanDocument, source: Document | None) -> Plan:
        return plan_from_document(document, self.resolved.workload.graph, source)

    def tracks(self, plan: Plan) -> Tracks:
        from costmodel.layerwise.detail import layer_tracks

        return layer_tracks(self.resolved.workload, self.resolved.cluster, plan)

    def study(self, answer: Answer, progress: Progress) -> tuple[Sequence[RankedPlan], Sequence[Curve], str]:
        from planner.spaces.layers.scaling import layer_study

        return layer_study(self, answer, progress)

    def what_if(self, ranked: RankedPlan) -> WhatIf | None:
        from planner.spaces.layers.what_if import layers_what_if

        return layers_what_if(self, ranked)


def _split_key(plan: Plan, layer: int) -> tuple[object, ...]:
    return plan.splits[layer], plan.collectives[layer]


def _split_text(plan: Plan, layer: int) -> str:
    collective = plan.collectives[layer]
    return split_in_words(plan.splits[layer]) + (f", {collective}" if collective else "")


def _why(best: RankedPlan, data: RankedPlan | None) -> list[Note]:
    """Say which family wins and what it gains and pays against plain data parallelism."""
    if best.family == "data":
        hidden = 1.0 - best["exposed_exchange_s"] / best["exchange_s"] if best["exchange_s"] > 0 else None
        return [Note("data_parallelism_wins", hidden=hidden)]
    if data is None or best.workers == 1:
        return []
    changes = {words: best[key] - data[key] for key, words in _TERMS.items()}
    # What matters at the scale of the step; smaller changes only make the sentence longer.
    least = 0.01 * data.step_time_s
    gains = {n: -changes[n] for n in sorted(changes, key=lambda n: changes[n]) if changes[n] < -least}
    prices = {n: changes[n] for n in sorted(changes, key=lambda n: -changes[n]) if changes[n] > least}
    if not gains:
        return [Note("family_wins_narrowly", family=best.family)]
    whole = best.step_time_s - data.step_time_s
    rest = whole + sum(gains.values()) - sum(prices.values())
    if abs(rest) > max(0.01 * abs(whole), 1e-4 * data.step_time_s):
        (gains if rest < 0.0 else prices)["other parts"] = abs(rest)
    return [Note("family_wins", family=best.family, workers=data.workers, saved_s=gains, paid_s=prices or None)]
