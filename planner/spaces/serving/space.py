"""The space of plans that serve a network: its cost model, its search and what its answers say."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.arrays import BoolArray, FloatArray
from costmodel.fields import Figure
from costmodel.hardware.cluster import Cluster
from costmodel.hardware.device import DeviceError
from costmodel.hardware.host import DeviceCost
from costmodel.mesh.modules import MeshError, fold
from costmodel.mesh.rules import NetworkShape
from costmodel.network.graph import Graph
from costmodel.objectives import OBJECTIVES, SERVING_OBJECTIVES
from costmodel.precision import FORMATS
from costmodel.serving.model import ServingModel, check_generates, times_with
from costmodel.serving.plan import (
    POOL_SETTINGS,
    SERVING_FIGURES,
    SERVING_MEMORY_PARTS,
    SERVING_RATES,
    TPOT_PARTS,
    TTFT_PARTS,
    ServingBatch,
    ServingCosts,
    ServingPlan,
    broken_serving_rules,
)
from costmodel.serving.pools import prefill_memory
from costmodel.serving.prefix_cache import Prompts, room_tokens
from costmodel.serving.workload import (
    Arrivals,
    Drafting,
    Load,
    ServingAssumptions,
    ServingError,
    ServingWorkload,
    encoder_layers,
)
from costmodel.uncertainty.limits import EVEN, SURE
from planner.core.answer import (
    ASSUMED,
    Answer,
    Assumption,
    Curve,
    ErrorBars,
    Estimate,
    Proof,
    RankedPlan,
    ServingLoad,
    Setting,
)
from planner.core.errors import NoFeasiblePlan, UnknownName, UsageError
from planner.core.notes import Note
from planner.core.numbers import byte_text, counted, percent, significant
from planner.core.request import DEFAULT_OUTPUT_TOKENS, DEFAULT_PROMPT_TOKENS, Request
from planner.files.loading import LoadedModel, load_device
from planner.files.plan_file import reference
from planner.files.resources import Kind
from planner.importers.networks import load_model
from planner.question.fixed import flag_of, left_open, near_multiples, single
from planner.question.resolve import Resolved
from planner.spaces.base import NEARLY, Found, PlanSpace, check_framework
from planner.spaces.serving.plans import family_of_serving_plan, serving_plan_in_words
from strategies.mesh.settings import Bounds
from strategies.serving.pools import BothOutcome, search_both
from strategies.serving.search import (
    DEGREES,
    MOST_BATCH,
    Disaggregate,
    ServingCandidate,
    ServingSettings,
    drafts_of,
    search_serving,
)
from strategies.serving.simplest import WISHES, is_usual, usual_below

if TYPE_CHECKING:
    from costmodel.timeline import Tracks
    from planner.spaces.items import Item
    from strategies.limits import Progress

# Degrees of a mesh that serving knows.
_DEGREES = frozenset({"tp", "pp", "ep", "etp", "dp"})
_ONE = Bounds(values=(1,))
# Drafted tokens that are tried unless the user says how many.
_DRAFTS = Bounds(low=0, high=5)
_LIMITED = {"ttft": "time to first token", "tpot": "time per token"}
_ROUNDING = 1e-9  # of a chance
# Another search says what a surer plan costs, where so many plans take a moment.
_CHEAP_SEARCH = 300_000
# What kernels of a decoding pass spend most of their time on: by what would make them faster.
_KERNELS: Mapping[str, Mapping[str, float]] = {
    "kernels that read weights and caches": {"memory_rate": 2.0},
    "kernels that compute": {"matmul_rate": 2.0, "attention_rate": 2.0},
    "starting kernels": {"launch_overhead": 0.5},
}
# With one stage, none waits for another.
_OF_ONE_STAGE = {
    **SERVING_FIGURES,
    "waiting_s": dataclasses.replace(SERVING_FIGURES["waiting_s"], label="waiting for prompts of others"),
}


def serving_space(resolved: Resolved) -> ServingPlanSpace:
    """Build the cost model of a question.

    Raises
    ------
    UsageError
        Options of training, a framework that trains, a network or lengths that cannot be served.
    """
    graph, precision, framework = resolved.model.graph, resolved.workload.precision, resolved.workload.framework
    request, prompts = with_requests(_one_load(resolved.request), reads_whole_prompts=bool(encoder_layers(graph)))
    resolved = dataclasses.replace(resolved, request=request)
    _check_options(request)
    if request.framework and not framework.serves:
        raise UsageError(
            f"--framework {framework.name}: is a trainer, and the question is about inference; name a serving engine "
            "(vllm, sglang or tensorrt-llm), or leave --framework out"
        )
    check_framework(resolved)
    drafting = _drafting(resolved)
    kv = request.kv or precision.plain.name.replace("tf32", "fp32")
    assumptions = ServingAssumptions.of(framework, dict(request.assume))
    try:
        workload = ServingWorkload(
            graph=graph,
            prompt_tokens=request.prompt_tokens or DEFAULT_PROMPT_TOKENS,
            output_tokens=request.output_tokens or DEFAULT_OUTPUT_TOKENS,
            precision=precision,
            kv_bytes=FORMATS[kv].bytes,
            framework=framework,
            load=request.load or "traffic",
            arrivals=_arrivals(request),
            prompt_variation=request.prompt_cv or 0.0,
            output_variation=request.output_cv or 0.0,
            prefix_cached=request.prefix_cached or 0.0,
            drafting=drafting,
            concurrency=request.concurrency,
        )
        model = ServingModel.build(workload, resolved.cluster, assumptions)
        if request.prefill_device is not None:
            readers = load_device(request.prefill_device).device
            readers.peak(workload.precision.compute)
            model = dataclasses.replace(model, prefill_cluster=resolved.cluster.with_device(readers))
    except (ServingError, MeshError, DeviceError) as error:
        raise UsageError(str(error)) from None
    space = ServingPlanSpace(
        resolved=resolved,
        model=model,
        shape=model.shape,
        capacity_bytes=min(model.capacity_bytes, resolved.setting.memory_capacity_bytes),
        kv_precision=kv,
        prompts=prompts,
    )
    if space.disaggregate == "yes":
        _check_pools(space)
    unknown = space.costs_by(space.objective)
    if isinstance(unknown, str):
        reason = OBJECTIVES[SERVING_OBJECTIVES[space.objective].cost].unstated
        raise UsageError(f"--objective {space.objective}: device '{unknown}' {reason}")
    return space


def _check_pools(space: ServingPlanSpace) -> None:
    """Refuse to ask for GPUs that only read prompts where there can be none."""
    option = "--disaggregate yes" if space.request.disaggregate else "--prefill-device"
    problems = broken_serving_rules(space.shape, ServingPlan(prefill_dp=1))
    if space.request.gpus < 2:
        problems.append("needs at least 2 GPUs: one that reads prompts and one that decodes")
    if problems:
        raise UsageError("\n".join(f"{option}: {problem}" for problem in problems))


def _one_load(request: Request) -> Request:
    """A question about a plan file without what the file says of the load, where an option says it otherwise."""
    changed = set(request.changed or ())
    dropped: set[str] = set()
    if "rate_per_s" in changed:
        dropped = {"load", "concurrency"}
        if request.objective == "throughput":
            dropped.add("objective")
    elif changed & {"load", "concurrency"}:
        dropped = {"rate_per_s", "arrival_cv"}
    nothing: dict[str, Any] = dict.fromkeys(dropped - changed)
    return dataclasses.replace(request, **nothing)


def with_requests(request: Request, *, reads_whole_prompts: bool) -> tuple[Request, Prompts | None]:
    """A question with what its file of requests says, but for what is said otherwise; and prompts whose share in the cache is taken.

    Raises
    ------
    InputFileError
        The file cannot be read.
    """
    if request.requests is None:
        return request, None
    from planner.files.request_trace import read_request_trace

    trace = read_request_trace(Path(request.requests))
    found = {item.name: getattr(trace, item.name) for item in dataclasses.fields(trace)}
    del found["requests"], found["prompts"]
    if reads_whole_prompts:
        del found["prefix_cached"]
    if request.concurrency is not None:
        del found["rate_per_s"], found["arrival_cv"]
    taken = {name: value for name, value in found.items() if getattr(request, name) is None}
    filled = dataclasses.replace(
        request,
        requests=None,
        origins={**request.origins, **dict.fromkeys(taken, f"given by {request.requests}")},
        **taken,
    )
    return filled, trace.prompts if "prefix_cached" in taken else None


def _arrivals(request: Request) -> Arrivals | None:
    if request.rate_per_s is None:
        return None
    return Arrivals(request.rate_per_s, 1.0 if request.arrival_cv is None else request.arrival_cv)


def _drafting(resolved: Resolved) -> Drafting | None:
    """What drafts tokens, where a share of accepted ones is given.

    Raises
    ------
    UsageError
        A network without a layer for it, or one that generates no text or another vocabulary.
    """
    request, model = resolved.request, resolved.model
    if request.acceptance is None:
        return None
    name = drafter_of(request, model)
    if name == "ngram":
        return Drafting(acceptance=request.acceptance)
    if name == "mtp":
        if not model.prediction_layers:
            raise UsageError(
                f"--draft mtp: the file of network '{model.name}' names no layer for multi-token prediction (prediction_layers); "
                "use ngram, or a smaller network with its vocabulary"
            )
        return Drafting(acceptance=request.acceptance, drafter="mtp")
    try:
        drafts = load_model(name).graph
        check_generates(ServingWorkload(graph=drafts, prompt_tokens=1, output_tokens=1))
        fold(drafts)
    except (UnknownName, ServingError, MeshError) as error:
        raise UsageError(f"--draft {name}: {error} (mtp, ngram, or a network)") from None
    own, other = _vocabulary(model.graph), _vocabulary(drafts)
    if own != other:
        raise UsageError(
            f"--draft {name}: has a vocabulary of {other:,} tokens, and '{model.name}' one of {own:,}, which can only verify its own"
        )
    return Drafting(acceptance=request.acceptance, drafter="network", graph=drafts)


def drafter_of(request: Request, model: LoadedModel) -> str:
    """What drafts: what is named, else the network's own layer, else what the text so far says."""
    return request.draft or ("mtp" if model.prediction_layers else "ngram")


def _vocabulary(graph: Graph) -> int:
    """Rows of the embedding of tokens."""
    return int(next(layer.params.num_embeddings for layer in graph.layers if layer.kind == "embedding"))


_LOADS: dict[Load, str] = {
    "traffic": "as many requests in flight as places, of different lengths",
    "benchmark": "equal requests, ten per place, the first all at once",
    "backlog": "more equal requests than places, whose wait for a place does not count",
}


@dataclass(frozen=True, kw_only=True)
class ServingPlanSpace(PlanSpace):
    """A question about serving with its cost model."""

    model: ServingModel
    shape: NetworkShape
    capacity_bytes: float
    kv_precision: str
    prompts: Prompts | None = None  # of the file of requests, where the share in the cache is theirs

    name = "serving"
    diagnoses_options = True
    declared = SERVING_FIGURES
    usual_objective = "throughput"
    predicted = ("ttft_s", "tpot_s", "requests_per_s", "output_tokens_per_s", "memory_bytes_per_gpu")
    bounds_a_time = False
    has_figures = False
    step_word = "token"

    @property
    def load(self) -> ServingLoad:
        """The requests that are served, and the limits on their times."""
        request, workload = self.resolved.request, self.model.workload
        return ServingLoad(
            prompt_tokens=workload.prompt_tokens,
            output_tokens=workload.output_tokens,
            kv_precision=self.kv_precision,
            load=workload.load,
            concurrency=request.concurrency,
            rate_per_s=request.rate_per_s,
            arrival_cv=request.arrival_cv,
            prompt_cv=request.prompt_cv,
            output_cv=request.output_cv,
            prefix_cached=request.prefix_cached,
            acceptance=request.acceptance,
            draft=None if request.acceptance is None else drafter_of(request, self.resolved.model),
            prefill_device=request.prefill_device,
            max_ttft=request.max_ttft,
            max_tpot=request.max_tpot,
        )

    @property
    def limits(self) -> dict[str, float]:
        """Limits that were given."""
        return self.load.limits

    @property
    def confidence(self) -> float:
        """The chance with which a plan has to keep all of them."""
        return self.request.limit_confidence or EVEN

    @property
    def at_rate(self) -> bool:
        """Whether requests come at a rate, however fast they are answered."""
        return self.model.workload.arrivals is not None

    @property
    def objective(self) -> str:
        return self.request.objective or ("tokens_per_s_per_gpu" if self.at_rate else self.usual_objective)

    def costs_by(self, objective: str) -> tuple[DeviceCost, DeviceCost] | str:
        """What a GPU costs per second: one that does not only read prompts and one that does; the name of one of which nobody says it."""
        found, precision = SERVING_OBJECTIVES[objective], self.model.workload.precision
        devices = self.cluster.device, (self.model.prefill_cluster or self.cluster).device
        costs = [found.cost_of(device, self.cluster.host, precision.compute) for device in devices]
        for device, cost in zip(devices, costs, strict=True):
            if cost is None:
                return device.name
        each, reading = (cost for cost in costs if cost is not None)
        return each, reading

    @functools.cached_property
    def costs(self) -> tuple[DeviceCost, DeviceCost]:
        """The same by the objective of the question, where it is known (`_check_costs`)."""
        found = self.costs_by(self.objective)
        assert not isinstance(found, str), found
        return found

    @property
    def degrees(self) -> dict[str, Bounds]:
        """What the user fixed or bounded."""
        request = self.resolved.request
        return {**(dict(request.mesh.degrees) if request.mesh is not None else {}), **request.serving_degrees}

    @property
    def disaggregate(self) -> Disaggregate:
        """Whether GPUs of their own read the prompts: of other devices they do."""
        request = self.request
        return request.disaggregate or ("auto" if request.prefill_device is None else "yes")

    @property
    def is_spelled_out(self) -> bool:
        return bool(self.degrees)

    @property
    def cluster(self) -> Cluster:
        """Where it runs."""
        return self.model.cluster

    # -- the search

    def settings(self, confidence: float | None = None) -> ServingSettings:
        """Limits of the search that the question asks for; another chance to keep those on times."""
        request, degrees, limits = self.resolved.request, self.degrees, self.limits
        chance = confidence or self.confidence
        if limits and chance > EVEN:
            from planner.spaces.serving.bars import limits_on_predictions

            limits = limits_on_predictions(self.resolved, self.model, limits, chance)
        if self.model.workload.drafting is not None:
            degrees = {"draft_tokens": _DRAFTS, **degrees}
        return ServingSettings(
            max_workers=request.gpus,
            capacity_bytes=self.capacity_bytes,
            objective=self.objective,
            limits=limits,
            most_load=self.model.assumptions.most_load if self.at_rate else float("inf"),
            concurrency=request.concurrency,
            keeps_all=functools.partial(self._keeps_all, chance)
            if limits and (len(limits) > 1 or chance > EVEN)
            else None,
            degrees=degrees,
            disaggregate=self.disaggregate,
            costs=self.costs,
            top=request.top,
            wall_s=self.time_limit_s,
        )

    def outcome_of(self, top: int, progress: Progress | None) -> BothOutcome:
        settings = dataclasses.replace(self.settings(), top=top)
        if not self.request.fastest:
            settings = dataclasses.replace(settings, near=NEARLY, node=self.node)
        return self._searched(settings, progress)

    @property
    def node(self) -> int:
        """Devices that fast links join."""
        from planner.uncertainty.bars import node_size

        return node_size(self.cluster)

    def preferred(self, found: Found) -> Found:
        if self.request.fastest:
            return found
        best, node = found.outcome.candidates[0], self.node
        chosen = self._with_usual_sequences(found.outcome.simplest(NEARLY), best.score * (1.0 + NEARLY))
        if chosen.plan == best.plan:
            return found
        (fastest,) = self.rank([best.plan], chosen.score)
        both = ServingBatch.from_plans([chosen.plan, best.plan])
        granted = [(wish.name, wish.test(both, node).tolist()) for wish in WISHES]
        forgone = [name for name, (has, lacked) in granted if has and not lacked]
        names = (*DEGREES, *POOL_SETTINGS)
        others = [p for p in found.plans if any(getattr(p, name) != getattr(chosen.plan, name) for name in names)]
        return found.led_by(chosen.plan, others, dataclasses.replace(fastest, rank=2), forgone)

    def _with_usual_sequences(self, chosen: ServingCandidate, most_score: float) -> ServingCandidate:
        """The plan with a usual number of sequences per replica, where that is nearly as good: at a rate, only the most are searched."""
        plan = chosen.plan
        if (
            not self.at_rate
            or plan.prefill_dp
            or "max_batch" in self.degrees
            or is_usual(np.array([plan.max_batch]))[0]
        ):
            return chosen
        fewer = dataclasses.replace(plan, max_batch=max(usual_below(plan.max_batch), plan.prefill_batch))
        names = ("tp", "pp", "ep", "etp", "max_batch", "prefill_chunk", "prefill_batch", "draft_tokens")
        settings = self.settings()
        degrees = {**settings.degrees, **{name: Bounds(values=(getattr(fewer, name),)) for name in names}}
        candidates = search_serving(self.model, dataclasses.replace(settings, degrees=degrees, top=1)).candidates
        return candidates[0] if candidates and candidates[0].score <= most_score else chosen

    def searched_up_to(self, gpus: int, top: int) -> BothOutcome:
        """Look for the ``top`` best plans on at most so many GPUs."""
        return self._searched(dataclasses.replace(self.settings(), max_workers=gpus, top=top), None)

    def _searched(self, settings: ServingSettings, progress: Progress | None) -> BothOutcome:
        outcome = search_both(self.model, settings, progress)
        if outcome.candidates or outcome.interrupted or outcome.out_of_time or not settings.keeps_all:
            return outcome
        # None keeps them all as surely as that: those that are predicted to.
        return search_both(self.model, dataclasses.replace(settings, keeps_all=None, limits=self.limits), progress)

    def _keeps_all(self, confidence: float, plans: ServingBatch) -> BoolArray:
        """Whether plans keep all limits together with a chance of one half or more."""
        from planner.spaces.serving.bars import keep_limits

        every, known = [plans.plan(n) for n in range(len(plans))], self._kept
        rows = [n for n, plan in enumerate(every) if (plan, confidence) not in known]
        if rows:
            kept = keep_limits(self.resolved, self.model, plans.take(rows), self.limits, confidence)
            known.update(zip([(every[n], confidence) for n in rows], kept.tolist(), strict=True))
        return np.array([known[plan, confidence] for plan in every])

    @functools.cached_property
    def _kept(self) -> dict[tuple[ServingPlan, float], bool]:
        """Whether plans that searches asked about keep all limits with a chance."""
        return {}

    def proof(self, found: Found, plans: Sequence[RankedPlan]) -> Proof:
        """What the search proves: it looks at every plan."""
        outcome: BothOutcome = found.outcome
        is_complete = not (outcome.out_of_time or outcome.interrupted)
        return Proof(
            proven_optimal=is_complete,
            bound_s=outcome.candidates[0].score if is_complete else 0.0,
            gap=0.0 if is_complete else 1.0,
            space_size=outcome.space_size,
            searched=outcome.searched,
            wall_s=found.wall_s,
        )

    def baselines(self, found: Found, best: RankedPlan) -> Mapping[str, RankedPlan | None]:
        other = found.outcome.best_of.get(not best.plan.prefill_dp)
        name = "aggregated" if best.plan.prefill_dp else "disaggregated"
        others: dict[str, RankedPlan | None] = {} if other is None else {name: self.rank([other.plan], best.score)[0]}
        if found.outcome.interrupted:
            return {"data_parallel": None, **others}
        others |= self._drafts_otherwise(best)
        if best.workers == best.plan.dp and best.plan.ep == 1:
            return {"data_parallel": best, **others}
        settings = self.settings()
        degrees = {**settings.degrees, **dict.fromkeys(("tp", "pp", "ep", "etp"), _ONE)}
        plain = search_serving(self.model, dataclasses.replace(settings, degrees=degrees, top=1)).candidates
        ranked = self.rank([plain[0].plan], best.score)[0] if plain else None
        return {"data_parallel": ranked, **others}

    def _drafts_otherwise(self, best: RankedPlan) -> dict[str, RankedPlan | None]:
        """The best plan without drafted tokens where the first has some, and with some where it has none; None where none will do."""
        if self.model.workload.drafting is None:
            return {}
        settings = self.settings()
        name = "undrafted" if best.plan.draft_tokens else "drafted"
        numbers = (0,) if best.plan.draft_tokens else tuple(number for number in drafts_of(settings) if number)
        if not numbers:
            return {}
        degrees = {**settings.degrees, "draft_tokens": Bounds(values=numbers)}
        found = search_both(self.model, dataclasses.replace(settings, degrees=degrees, top=1)).candidates
        return {name: self.rank([found[0].plan], best.score)[0] if found else None}

    def finished(self, answer: Answer, found: Found) -> Answer:
        notes = self._beyond_context()
        best, assumed = answer.plans[0], self.model.assumptions
        if SERVING_OBJECTIVES[self.objective].figure == "output_tokens_per_s" and not self.limits:
            notes.append(Note("no_limits"))
        if self._misses_one(best):
            notes.append(Note("limits_unlikely", asked=self.confidence))
        shares_experts = best.plan.ep * best.plan.etp > best.plan.tp
        if shares_experts and assumed.expert_spread > 0:
            notes.append(Note("uneven_experts"))
        if shares_experts and assumed.prompts_in_step < 1:
            notes.append(Note("prompts_apart"))
        notes += self._found_by(best.plan)
        if best.plan.max_batch >= MOST_BATCH and "max_batch" not in self.degrees:
            notes.append(Note("most_sequences", max_batch=MOST_BATCH))
        answer = dataclasses.replace(answer, notes=(*answer.notes, *notes))
        return self._with_surer(answer, found)

    def _found_by(self, plan: ServingPlan) -> list[Note]:
        """What the caches of a plan find of the prompts of a file, of which a cache without limits is assumed."""
        if self.prompts is None:
            return []
        room = room_tokens(self.model, plan, self.capacity_bytes)
        replicas = plan.prefill_dp or plan.dp
        kept = self.prompts.share_found(room * replicas)
        in_turn = self.prompts.share_found(room, replicas) if replicas > 1 else None
        assumed = self.request.prefix_cached
        return [Note("prefix_found", assumed=assumed, kept=kept, room=round(room), in_turn=in_turn, replicas=replicas)]

    def _beyond_context(self) -> list[Note]:
        """Lengths that the weights were not trained for."""
        model, workload = self.resolved.model, self.model.workload
        if model.context is None or workload.most_context <= model.context:
            return []
        prompt, output = workload.prompt_tokens, workload.output_tokens
        return [Note("beyond_context", prompt=prompt, output=output, context=model.context, network=model.name)]

    def _misses_one(self, ranked: RankedPlan) -> list[Note]:
        """That a plan which keeps all limits as predicted does not keep them together as surely as asked."""
        chance, asked = ranked["limits_probability"], self.confidence
        unsure = chance is not None and chance < asked - _ROUNDING
        return [Note("rather_misses_one", share=chance, asked=asked)] if unsure else []

    def _with_surer(self, answer: Answer, found: Found) -> Answer:
        """The answer with the best plan that keeps the limits with a chance of 90 %, where the first does not and it is quickly found."""
        chance = answer.plans[0]["limits_probability"]
        if chance is None or chance >= SURE or self.confidence >= SURE:
            return answer
        surer, is_cheap = None, found.outcome.searched["enumerated"] <= _CHEAP_SEARCH
        if is_cheap:
            candidates = search_both(self.model, dataclasses.replace(self.settings(SURE), top=1)).candidates
            if candidates:
                (surer,), _ = self.error_bars(self.rank([candidates[0].plan], answer.plans[0].score))
        return dataclasses.replace(
            answer,
            baselines={**answer.baselines, "surer": surer},
            details={**answer.details, "surer_searched": is_cheap},
        )

    # -- figures

    def described(self, plans: Sequence[ServingPlan]) -> list[RankedPlan]:
        batch = ServingBatch.from_plans(plans)
        costs = self.model.evaluate(batch)
        largest = self.model.largest_batch(batch, max(MOST_BATCH, int(batch.max_batch.max())), self.capacity_bytes)
        kernels = self._kernels(batch)
        scores = self.settings().score(costs.columns(), batch)
        paid = {name: self._paid(name, costs, batch) for name in ("money", "energy")}
        ranked = []
        for n, plan in enumerate(plans):
            known = {name: float(getattr(costs, name)[n]) for name in (*SERVING_RATES, *SERVING_MEMORY_PARTS)}
            rate = known["output_tokens_per_s"]
            figures = {
                "step_time_s": known["tpot_s"],
                "throughput_samples_per_s": known["requests_per_s"],
                "memory_bytes_per_gpu": float(costs.memory_bytes[n]),
                "exposed_communication_s": known["decode_tp_s"] + known["decode_ep_s"] + known["decode_pp_s"],
                "ttft_low_s": None,
                "ttft_high_s": None,
                "output_tokens_per_s_low": None,
                "output_tokens_per_s_high": None,
                "output_tokens_per_s_per_gpu": rate / plan.workers,
                "memory_capacity_bytes": self.capacity_bytes,
                "kv_bytes_per_sequence": float(costs.sequence_bytes[n]),
                "largest_batch": int(largest[n]),
                "limits_probability": None,
                "rate_per_s": self.request.rate_per_s,
                "money_per_million_output_tokens": None if paid["money"] is None else 1e6 * float(paid["money"][n]),
                "energy_per_output_token_j": None if paid["energy"] is None else float(paid["energy"][n]),
                **known,
            }
            # Answers of one token are never decoded.
            main, names = ("tpot_s", TPOT_PARTS) if self.model.workload.later_tokens else ("ttft_s", TTFT_PARTS)
            parts, declared = {name: known[name] for name in names}, self.declared_of(plan)
            longest = max(parts, key=lambda name: parts[name])
            ranked.append(
                RankedPlan(
                    plan=plan,
                    family=family_of_serving_plan(plan),
                    summary=serving_plan_in_words(plan, self.model.workload.new_tokens),
                    workers=plan.workers,
                    bottleneck=kernels[n] if longest == "decode_compute_s" else declared[longest].label,
                    declared=declared,
                    main=main,
                    score=float(scores[n]),
                    figures=figures,
                )
            )
        return ranked

    def pool_memory(self, plan: ServingPlan) -> tuple[float, float]:
        """Bytes of the fullest device of the workers that read prompts alone, and of the replicas."""
        batch = ServingBatch.from_plans([plan])
        read, replicas = prefill_memory(self.model, batch)[0], self.model.memory(batch)[0]
        return float(read["memory_bytes"][0]), float(replicas["memory_bytes"][0])

    def _paid(self, name: str, costs: ServingCosts, batch: ServingBatch) -> FloatArray | None:
        """What an output token of each plan costs; None where nobody says what a GPU does."""
        each = self.costs_by(name)
        if isinstance(each, str):
            return None
        return np.asarray(SERVING_OBJECTIVES[name].score(costs.columns(), batch.workers, batch.readers, each))

    def declared_of(self, plan: ServingPlan) -> Mapping[str, Figure]:
        """The figures of a plan, which are called what they are of it."""
        return SERVING_FIGURES if plan.pp > 1 else _OF_ONE_STAGE

    def _kernels(self, batch: ServingBatch) -> list[str]:
        """What the kernels of a decoding pass of each plan spend most of their time on."""
        found = [times["decode_compute_s"] for times in times_with(self.model, batch, list(_KERNELS.values()))]
        words = tuple(_KERNELS)
        return [words[n] for n in np.argmin(found, axis=0)]

    def error_bars(self, plans: Sequence[RankedPlan]) -> tuple[list[RankedPlan], ErrorBars]:
        from planner.spaces.serving.bars import serving_bars
        from planner.uncertainty.bars import with_chances

        barred, bars = serving_bars(self.resolved, self.model, self.objective, plans, self.limits)
        return with_chances(barred, bars), bars

    # -- one plan

    def setting(self, plan: ServingPlan) -> Setting:
        """The question as the answer states it; the batch is the sequences of all replicas."""
        return dataclasses.replace(
            self.resolved.setting,
            memory_capacity_bytes=self.capacity_bytes,
            seq=self.model.workload.most_context,
            global_batch=plan.concurrency,
            load=self.load,
        )

    def assumptions(self, plan: ServingPlan) -> tuple[Assumption, ...]:
        request, workload = self.resolved.request, self.model.workload
        kept = {"model", "cluster", "workers", "device", "cost model", "mode", "calibration", "framework"}
        known = {assumption.name: assumption for assumption in self.resolved.assumptions}
        memory = known["memory per GPU"]
        if self.capacity_bytes < self.resolved.setting.memory_capacity_bytes:
            value = (
                f"{byte_text(self.capacity_bytes)} (memory_utilisation {self.model.assumptions.memory_utilisation:g} of "
                f"{byte_text(self.cluster.device.capacity_bytes)}), of which {byte_text(workload.context_bytes)} for the driver's context"
            )
            memory = dataclasses.replace(memory, value=value, source="memory_utilisation")
        lengths = {"prompt": workload.prompt_tokens, "output": workload.output_tokens}
        varies = {"prompt": workload.prompt_variation, "output": workload.output_variation}
        options = {"prompt": "--prompt changes it", "output": "--output-tokens changes it"}
        return (
            *(
                Assumption(
                    name=name,
                    value=f"{tokens} token{'s' * (tokens > 1)}" + varying(varies[name]),
                    source=request.source_of(f"{name}_tokens", f"{ASSUMED}{options[name]}"),
                )
                for name, tokens in lengths.items()
            ),
            *(a for a in known.values() if a.name in kept),
            dataclasses.replace(known["precision"], name="weights"),
            Assumption(name="keys and values", value=self.kv_precision, source=request.source_of("kv", "default")),
            memory,
            *self._cached_assumption(),
            *(
                [Assumption(name="decoder", value="starts with one token; the encoder reads the prompt once")]
                if workload.encoder
                else []
            ),
            self._load_assumption(),
            *(
                [
                    Assumption(
                        name="prefill device",
                        value=readers.device.name,
                        source=request.source_of("prefill_device", "default"),
                    )
                ]
                if (readers := self.model.prefill_cluster)
                else []
            ),
            *self._draft_assumption(),
        )

    def _cached_assumption(self) -> list[Assumption]:
        workload = self.model.workload
        if not workload.prefix_cached:
            return []
        value = f"{workload.cached_tokens:,} of {workload.prompt_tokens:,} tokens of a prompt"
        return [
            Assumption(name="prefix cached", value=value, source=self.request.source_of("prefix_cached", "default"))
        ]

    def _draft_assumption(self) -> list[Assumption]:
        load = self.load
        if load.acceptance is None or load.draft is None:
            return []
        value = f"{load.draft}, {percent(load.acceptance)} of the tokens accepted where those before were"
        return [Assumption(name="drafts", value=value, source=self.request.source_of("draft", "default"))]

    def _load_assumption(self) -> Assumption:
        request, arrivals = self.request, self.model.workload.arrivals
        if arrivals is None:
            load, flight = self.model.workload.load, request.concurrency
            value, of = _LOADS[load], "load" if flight is None else "concurrency"
            value = (
                value
                if flight is None
                else value.replace("as many requests in flight as places", f"{flight:,} requests in flight")
            )
            return Assumption(name="load", value=value, source=request.source_of(of, "default"))
        how = "at random" if arrivals.variation == 1.0 else f"coefficient of variation {arrivals.variation:g}"
        value = f"{arrivals.rate_per_s:g} requests/s ({how})"
        return Assumption(name="load", value=value, source=request.source_of("rate_per_s", "default"))

    @property
    def assumed(self) -> ServingAssumptions:
        return self.model.assumptions

    def source_of(self, name: str) -> str:
        """No framework or calibration states them."""
        request = self.resolved.request
        return request.source_of("assume", "default") if name in dict(request.assume) else "default"

    def broken(self, plan: ServingPlan) -> list[str]:
        return broken_serving_rules(self.shape, plan)

    def check(self, plan: ServingPlan) -> None:
        """Raise `UsageError` with every rule that a plan breaks, and `NoFeasiblePlan` where more requests come than it can serve."""
        super().check(plan)
        if plan.draft_tokens and self.request.acceptance is None:
            raise UsageError(
                f"the plan drafts {counted(plan.draft_tokens, 'token')} per pass; say with --acceptance how many are accepted"
            )
        if self.at_rate:
            times = self.model.times(ServingBatch.from_plans([plan]), percentiles=())
            most, rate = float(times["most_requests_per_s"][0]), self.request.rate_per_s or 0.0
            if rate >= most:
                more = gpus_needed(plan, rate / self.assumed.most_load / most)
                raise NoFeasiblePlan(
                    f"--rate {rate:g}: the plan serves at most {significant(most)} requests/s; so many need {more} GPUs with such "
                    f"replicas ('planner size {self.resolved.setting.model} --rate {rate:g}' finds the fewest)"
                )

    def exact_plan(self) -> tuple[ServingPlan, tuple[Assumption, ...]]:
        """The plan that the options spell out on exactly the GPUs of the question.

        Degrees that are left out are 1 and replicas take the GPUs that are left; prompts are read as the engine does, whole and one per
        pass without one; as many sequences as fit are held.
        """
        gpus, values, chosen = self.resolved.request.gpus, single(self.degrees), []
        problems = left_open(self.degrees)
        if problems:
            raise UsageError("\n".join(problems))
        tp, pp = values.get("tp", 1), values.get("pp", 1)
        read_on = values.get("prefill_dp", 0) * values.get("prefill_tp", 1) * values.get("prefill_pp", 1)
        if read_on >= gpus:
            raise UsageError(
                f"--gpus {gpus}: {read_on} that only read prompts leave none for the replicas; use more GPUs"
            )
        if read_on and (gpus - read_on) % (tp * pp):
            raise UsageError(
                f"--gpus {gpus}: tp {tp} x pp {pp} = {tp * pp} does not divide the {gpus - read_on} that {read_on} for prompts leave"
            )
        gpus -= read_on
        if gpus % (tp * pp):
            near = near_multiples(gpus, tp * pp)
            problem = (
                f"--gpus {gpus}: tp {tp} x pp {pp} = {tp * pp} does not divide it; use --gpus {near}, or other degrees"
            )
            # Rules about experts read the replicas, too, which nobody knows now.
            others = [] if self.shape.experts else self.broken(ServingPlan(tp=tp, pp=pp))
            raise UsageError("\n".join([problem, *others]))
        dp = gpus // (tp * pp)
        if values.setdefault("dp", dp) != dp:
            together = tp * pp * values["dp"]
            raise UsageError(
                f"--gpus {gpus}: tp {tp} x pp {pp} x dp {values['dp']} = {together}; use --gpus {together}, or a dp of {dp}"
            )
        if self.shape.experts and "etp" not in values:
            values["etp"] = max(tp // values.get("ep", 1), 1)
            if values["etp"] > 1:
                chosen.append(f"etp {values['etp']}")
        if "dp" not in self.degrees and dp > 1:
            chosen.append(f"dp {dp}")
        chosen += self._read_as_usual(values)
        if self.model.workload.drafting is not None and pp == 1 and "draft_tokens" not in values:
            values["draft_tokens"] = 1
            chosen.append("draft tokens 1")
        flight = self.request.concurrency
        if flight is not None:
            values.setdefault("max_batch", -(-flight // dp))
        plan = ServingPlan(**values)
        if "max_batch" not in values:
            plan = dataclasses.replace(plan, max_batch=max(plan.prefill_batch, 1))
            super().check(plan)
            most = int(self.rank([plan])[0]["largest_batch"])
            plan = dataclasses.replace(plan, max_batch=max(most, plan.max_batch))
            chosen.append(f"max batch {plan.max_batch} (the largest that fits, up to {MOST_BATCH})")
        defaults = (Assumption(name="plan", value=f"with {', '.join(chosen)}", source="left open"),) if chosen else ()
        return plan, defaults

    def _read_as_usual(self, values: dict[str, int]) -> list[str]:
        """Fill in how prompts are read where nobody says it, as the engine does; and what to tell of it."""
        if self.shape.experts and "prefill_etp" not in values and values.get("prefill_dp"):
            values["prefill_etp"] = max(values.get("prefill_tp", 1) // values.get("prefill_ep", 1), 1)
        if {"prefill_chunk", "prefill_batch"} & set(values):
            return []
        workload = self.model.workload
        engine, prompt = workload.framework.defaults, workload.new_tokens
        equal = workload.output_tokens if workload.load == "benchmark" else None
        chunk, together = (
            engine.prefill_apart(prompt)
            if values.get("prefill_dp")
            else engine.prefill(prompt, values.get("max_batch", 1), equal)
        )
        values |= {"prefill_chunk": 0 if self.shape.has_encoder else chunk, "prefill_batch": together}
        return [f"prefill chunk {chunk}"] if values["prefill_chunk"] else []

    # -- from one plan to another

    most_better = 10_000
    better_plans = "the best plan of each choice of degrees"
    follows = " Replicas fill the GPUs."

    def differing(self, plan: ServingPlan, other: ServingPlan) -> Mapping[str, tuple[str, str]]:
        """Replicas follow: they fill the GPUs."""
        texts = {"GPUs": (str(plan.workers), str(other.workers)), **super().differing(plan, other)}
        return {name: both for name, both in texts.items() if name != "dp" and both[0] != both[1]}

    def part_way(self, plan: ServingPlan, other: ServingPlan, names: Collection[str]) -> ServingPlan | None:
        fields = [name for name in names if name != "GPUs"]
        changed = dataclasses.replace(plan, **{name: getattr(other, name) for name in fields})
        read_on = changed.workers - changed.tp * changed.pp * changed.dp
        dp, rest = divmod((other if "GPUs" in names else plan).workers - read_on, changed.tp * changed.pp)
        if rest or dp < 1:
            return None
        changed = dataclasses.replace(changed, dp=dp)
        return None if self.broken(changed) else changed

    def has_all_below(self, score: float, outcome: BothOutcome) -> bool:
        return not outcome.out_of_time and len(outcome.candidates) < self.most_better

    def tables(self, plan: ServingPlan, ranked: RankedPlan) -> Mapping[str, tuple[Any, ...]]:
        from costmodel.serving.model import serving_layer_rows

        return {"layers": tuple(serving_layer_rows(self.model, plan))}

    def study(self, answer: Answer, progress: Progress) -> tuple[Sequence[RankedPlan], Sequence[Curve], str]:
        from planner.spaces.serving.front import speed_front

        return speed_front(self, progress), (), ""

    def plan_notes(self, ranked: RankedPlan) -> list[Note]:
        batch = ranked["largest_batch"] or None
        more = None if batch else "more --tp" + ("" if self.shape.has_encoder else " or --pp")
        return [
            *self._beyond_context(),
            *self.does_not_fit(ranked, max_batch=batch, more=more),
            *(broken := missed_limits(self.limits, ranked)),
            *([] if broken else self._misses_one(ranked)),
            *self._found_by(ranked.plan),
        ]

    def plan_entry(self, plan: ServingPlan) -> Mapping[str, Any]:
        load = {name: value for name, value in self.load.document().items() if value is not None}
        return {**super().plan_entry(plan), **load, "objective": self.objective}

    def plan_section(self, ranked: RankedPlan, folder: Path | None) -> Mapping[str, Any]:
        """Entries of a plan file that hold a plan; the batch is the sequences of all replicas, and nothing of training is asked."""
        section = dict(super().plan_section(ranked, folder))
        drafting = self.model.workload.drafting
        files: tuple[tuple[str, Kind, str | None], ...] = (
            ("prefill_device", "devices", self.request.prefill_device),
            ("draft", "models", self.load.draft if drafting is not None and drafting.drafter == "network" else None),
        )
        named = {key: reference(kind, name, folder) for key, kind, name in files if name is not None}
        section[self.name] = {**section[self.name], **named}
        return {"global_batch": ranked.plan.concurrency, "seq": None, "optimizer": None, **section}

    def plan_values(self, answer: Answer | Estimate, ranked: RankedPlan) -> Mapping[str, Any]:
        return dataclasses.asdict(ranked.plan)

    def item_type(self) -> type[Item]:
        from planner.spaces.serving.items import ServedItem

        return ServedItem

    def tracks(self, plan: ServingPlan) -> Tracks:
        raise UsageError("a plan that serves a network has no timeline of a step")


def varying(variation: float | None) -> str:
    """How much lengths differ, in words.

    >>> varying(0.5), varying(None)
    (', coefficient of variation 0.5', '')
    """
    return f", coefficient of variation {variation:g}" if variation else ""


def limited(figure: str) -> str:
    """The name of a time that has a limit.

    >>> limited("ttft_s"), limited("tpot_p90_s")
    ('time to first token (mean)', 'time per token (p90)')
    """
    time, share = [*figure.split("_")[:-1], "mean"][:2]
    return f"{_LIMITED[time]} ({share})"


def gpus_needed(plan: ServingPlan, times: float) -> int:
    """GPUs of such replicas that serve so many times what the plan does.

    >>> gpus_needed(ServingPlan(tp=2, dp=3), 1.5)
    10
    """
    unit = int(ServingBatch.from_plans([plan]).sharing[0])
    return math.ceil(plan.dp / unit * times) * unit * (plan.workers // plan.dp)


def missed_limits(limits: Mapping[str, float], ranked: RankedPlan) -> list[Note]:
    """Limits that a plan does not keep."""
    return [
        Note("misses_limit", figure=limited(name), value_s=ranked[name], limit_s=limit)
        for name, limit in limits.items()
        if ranked[name] > limit
    ]


def _check_options(request: Request) -> None:
    """An option that would be ignored is an error, never silence."""
    refused = {
        "--batch": request.batch is not None and "--max-batch says how many sequences a replica holds",
        "--seq": request.seq is not None and "--prompt and --output-tokens say how long sequences are",
        "--doc-lengths": request.doc_lengths is not None and "--prompt and --output-tokens say how long sequences are",
        "--lora-rank": request.lora_rank is not None and "adapters are merged into the weights that are served",
        "--optimizer": request.optimizer is not None and "nothing is trained",
        "--num-micro-batches": request.micro_batches is not None
        and "--max-batch says how many sequences a replica holds",
    }
    problems = [f"{flag}: is for training; {reason}" for flag, reason in refused.items() if reason]
    if request.mesh is not None:
        fields = (*request.mesh.degrees, *request.mesh.names, *request.mesh.flags)
        problems += [
            f"{flag_of(name)}: is for training; serving has tp, pp, ep, etp and dp"
            for name in fields
            if name not in _DEGREES
        ]
    if request.objective not in (None, *SERVING_OBJECTIVES):
        problems.append(f"--objective {request.objective}: serving has {', '.join(SERVING_OBJECTIVES)}")
    if request.rate_per_s is not None:
        problems += [
            f"{flag}: {reason}"
            for flag, reason, is_given in (
                ("--concurrency", "--rate says how many requests come; leave one of them out", request.concurrency),
                ("--load", "--rate says how requests come; leave one of them out", request.load),
                (
                    "--objective throughput",
                    "--rate fixes what is served; name tokens_per_s_per_gpu (the fewest GPUs), money, energy, latency, ttft or tpot",
                    request.objective == "throughput",
                ),
            )
            if is_given
        ]
    elif request.arrival_cv is not None:
        problems.append("--arrival-cv: needs --rate, the requests per second whose times vary")
    readers = request.serving_degrees.get("prefill_dp")
    asks = "--prefill-device" if request.prefill_device is not None else "--prefill-dp"
    if request.disaggregate == "no" and (asks == "--prefill-device" or (readers is not None and not readers.allows(0))):
        problems.append(f"{asks}: no GPUs read prompts alone with --disaggregate no; leave one of them out")
    if (request.disaggregate == "yes" or request.prefill_device) and readers == Bounds(values=(0,)):
        asks = "--prefill-device" if request.prefill_device is not None else "--disaggregate yes"
        problems.append(f"{asks}: no GPUs read prompts alone with --prefill-dp 0; leave one of them out")
    if request.acceptance is None:
        drafted = request.serving_degrees.get("draft_tokens")
        needing = {
            "--draft": request.draft is not None,
            "--draft-tokens": drafted is not None and drafted != Bounds(values=(0,)),
        }
        problems += [
            f"{flag}: needs --acceptance, the share of drafted tokens that are accepted"
            for flag, is_given in needing.items()
            if is_given
        ]
    if request.limit_confidence is not None and not (request.max_ttft or request.max_tpot):
        problems.append("--limit-confidence: needs a limit to keep, --max-ttft or --max-tpot")
    if request.output_tokens == 1:
        asked = [
            flag
            for flag, given in (
                ("--objective tpot", request.objective == "tpot"),
                ("--max-tpot", request.max_tpot),
            )
            if given
        ]
        problems += [f"{flag}: an answer of 1 token (--output-tokens 1) has no token after the first" for flag in asked]
    known = {item.name for item in dataclasses.fields(ServingAssumptions)}
    problems += [
        f"--assume {name}: is for training; serving has {', '.join(sorted(known))}"
        for name, _ in request.assume
        if name not in known
    ]
    utilisation = dict(request.assume).get("memory_utilisation", 1.0)
    if not 0.0 < utilisation <= 1.0:
        problems.append(f"--assume memory_utilisation={utilisation:g}: is a share, above 0 and at most 1")
    if problems:
        raise UsageError("\n".join(problems))
