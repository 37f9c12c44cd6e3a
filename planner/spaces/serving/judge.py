"""From a request to a serving model, and from costs to figures for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from costmodel.hardware.cluster import Cluster
from costmodel.mesh.modules import MeshError
from costmodel.mesh.rules import NetworkShape
from costmodel.network.graph import Graph
from costmodel.serving.model import ServingModel
from costmodel.serving.plan import SERVING_MEMORY_PARTS, TPOT_PARTS, TTFT_PARTS, ServingBatch, ServingPlan
from costmodel.serving.rules import broken_serving_rules
from costmodel.serving.workload import KV_FORMATS, WEIGHT_FORMATS, ServingAssumptions, ServingError, ServingWorkload
from planner.core.capacity import memory_source
from planner.core.errors import UsageError
from planner.core.quantities import format_bytes
from planner.core.results import Assumption, Setting
from planner.resolve import Resolved, resolve
from planner.spaces.mesh.flags import flag_of
from planner.spaces.serving.request import DEFAULT_OUTPUT_TOKENS, DEFAULT_PROMPT_TOKENS, ServingRequest
from planner.spaces.serving.results import RankedServingPlan
from planner.spaces.serving.wording import TPOT_WORDS, family_of_serving_plan, serving_plan_in_words
from strategies.mesh.settings import Bounds
from strategies.serving.settings import MOST_BATCH, SERVING_OBJECTIVES

__all__ = ["ServingJudge", "is_serving", "make_serving_judge"]

_ATTENTION = frozenset({"self_attention", "latent_attention"})
# Degrees of a mesh that serving knows.
_DEGREES = frozenset({"tp", "pp", "ep", "etp", "dp"})


def is_serving(request: ServingRequest, graph: Graph) -> bool:
    """Whether a question is about serving: inference of a network that generates text, and no option of a split per layer.

    Raises
    ------
    UsageError
        Options of serving for a network that cannot be served, or together with those of a split per layer.
    """
    base = request.base
    if base.mode != "inference" or base.space == "mesh":
        return False
    per_layer = {
        "--space layers": base.space == "layers",
        f"--family {base.family}": base.family is not None,
        "--fix": bool(base.fix),
        f"--solver {base.solver}": base.solver != "auto",
        f"--collective {base.collective}": base.collective is not None,
        "--diverse": bool(base.diverse),
        f"--cost-model {base.cost_model}": base.cost_model != "roofline",
    }
    asked = [flag for flag, given in per_layer.items() if given]
    if asked and request.given:
        raise UsageError(
            f"{request.given[0]} is for serving and {asked[0]} for plans with a split per layer; leave one of them out"
        )
    generates = any(layer.kind in _ATTENTION and layer.params.causal and layer.block for layer in graph.layers)
    if request.given and not generates:
        raise UsageError(
            f"{request.given[0]}: network '{graph.name}' does not generate text; without it, "
            "--mode inference costs the forward pass"
        )
    return generates and not asked


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingJudge:
    """A question with its cost model."""

    request: ServingRequest
    resolved: Resolved
    model: ServingModel
    shape: NetworkShape
    setting: Setting
    capacity_bytes: float
    kv_precision: str
    assumptions: tuple[Assumption, ...]

    @property
    def objective(self) -> str:
        """What is best."""
        return self.request.base.objective or "throughput"

    @property
    def limits(self) -> dict[str, float]:
        """Limits that were given."""
        limits = {"ttft_s": self.request.max_ttft_s, "tpot_s": self.request.max_tpot_s}
        return {name: value for name, value in limits.items() if value is not None}

    @property
    def degrees(self) -> dict[str, Bounds]:
        """What the user fixed or bounded."""
        mesh = self.request.base.mesh
        return {**(dict(mesh.degrees) if mesh is not None else {}), **self.request.degrees}

    @property
    def cluster(self) -> Cluster:
        """Where it runs."""
        return self.model.cluster

    def rank(self, plans: Sequence[ServingPlan]) -> list[RankedServingPlan]:
        """Judge plans and describe them; the order is kept, and gaps are measured against the first."""
        if not plans:
            return []
        batch = ServingBatch.from_plans(plans)
        costs = self.model.evaluate(batch)
        largest = self.model.largest_batch(batch, max(MOST_BATCH, int(batch.max_batch.max())), self.capacity_bytes)
        price = self.cluster.device.price_per_hour
        ranked = []
        for n, plan in enumerate(plans):
            rate = float(costs.output_tokens_per_s[n])
            tpot_parts = {name: float(getattr(costs, name)[n]) for name in TPOT_PARTS}
            ranked.append(
                RankedServingPlan(
                    rank=n + 1,
                    plan=plan,
                    family=family_of_serving_plan(plan),
                    summary=serving_plan_in_words(plan),
                    workers=plan.workers,
                    ttft_s=float(costs.ttft_s[n]),
                    tpot_s=float(costs.tpot_s[n]),
                    request_s=float(costs.request_s[n]),
                    pause_s=float(costs.pause_s[n]),
                    decode_pass_s=float(costs.decode_pass_s[n]),
                    requests_per_s=float(costs.requests_per_s[n]),
                    output_tokens_per_s=rate,
                    total_tokens_per_s=float(costs.total_tokens_per_s[n]),
                    output_tokens_per_s_per_gpu=rate / plan.workers,
                    memory_bytes_per_gpu=float(costs.memory_bytes[n]),
                    memory_capacity_bytes=self.capacity_bytes,
                    kv_bytes_per_sequence=float(costs.sequence_bytes[n]),
                    largest_batch=int(largest[n]),
                    tpot_parts=tpot_parts,
                    ttft_parts={name: float(getattr(costs, name)[n]) for name in TTFT_PARTS},
                    memory_parts={name: float(getattr(costs, name)[n]) for name in SERVING_MEMORY_PARTS},
                    bottleneck=TPOT_WORDS[max(tpot_parts, key=lambda name: tpot_parts[name])],
                    money_per_million_output_tokens=None
                    if price is None
                    else plan.workers * price / 3600.0 / rate * 1e6,
                    gap=0.0,
                )
            )
        best = self.score(ranked[0])
        return [dataclasses.replace(plan, gap=self.score(plan) / best - 1.0) for plan in ranked]

    def score(self, plan: RankedServingPlan) -> float:
        """What the objective compares; smaller is better, a rate counts as time per token."""
        times = {
            "throughput": 1.0 / plan.output_tokens_per_s,
            "tokens_per_s_per_gpu": 1.0 / plan.output_tokens_per_s_per_gpu,
            "latency": plan.request_s,
            "ttft": plan.ttft_s,
            "tpot": plan.tpot_s,
        }
        return times[self.objective]

    def broken(self, plan: ServingPlan) -> list[str]:
        """Say which rules a plan breaks."""
        return broken_serving_rules(self.shape, plan)

    def check(self, plan: ServingPlan) -> None:
        """Refuse a plan that breaks a rule.

        Raises
        ------
        UsageError
            Every rule that it breaks.
        """
        problems = self.broken(plan)
        if problems:
            raise UsageError("\n".join(problems))

    def rows(self) -> tuple[Assumption, ...]:
        """What the serving model takes for granted, by name."""
        given = dict(self.request.base.assume)
        return tuple(
            Assumption(
                name=item.name,
                value=f"{getattr(self.model.assumptions, item.name):g}",
                source="given" if item.name in given else "default",
            )
            for item in dataclasses.fields(self.model.assumptions)
        )


def make_serving_judge(request: ServingRequest) -> ServingJudge:
    """Load what a question names and build its cost model.

    Raises
    ------
    PlannerError
        Unknown names, files with problems, options of training, a network or lengths that cannot be served.
    """
    _check_options(request)
    base = request.base
    plain = dataclasses.replace(base, mesh=None, objective=None, assume=(), space="layers")
    resolved = resolve(plain)
    graph, precision = resolved.model.graph, resolved.setting.precision
    weights = WEIGHT_FORMATS[precision]
    kv = request.kv or weights.activation_compute.replace("tf32", "fp32")
    assumptions = ServingAssumptions(**dict(base.assume))
    try:
        workload = ServingWorkload(
            graph=graph,
            prompt_tokens=request.prompt_tokens or DEFAULT_PROMPT_TOKENS,
            output_tokens=request.output_tokens or DEFAULT_OUTPUT_TOKENS,
            weights=weights,
            kv_bytes=KV_FORMATS[kv],
        )
        model = ServingModel.build(workload, resolved.cluster, assumptions)
    except (ServingError, MeshError) as error:
        raise UsageError(str(error)) from None
    capacity = min(model.capacity_bytes, resolved.setting.memory_capacity_bytes)
    setting = dataclasses.replace(resolved.setting, memory_capacity_bytes=capacity, seq=workload.most_context)
    return ServingJudge(
        request=request,
        resolved=resolved,
        model=model,
        shape=NetworkShape.of(graph, model.modules, 1),
        setting=setting,
        capacity_bytes=capacity,
        kv_precision=kv,
        assumptions=_assumptions(request, resolved, workload, kv, capacity),
    )


def _check_options(request: ServingRequest) -> None:
    """An option that would be ignored is an error, never silence."""
    base = request.base
    refused = {
        "--batch": base.batch is not None and "--max-batch says how many sequences a replica holds",
        "--seq": base.seq is not None and "--prompt and --output-tokens say how long sequences are",
        "--lora-rank": base.lora_rank is not None and "adapters are merged into the weights that are served",
        "--optimizer": base.optimizer is not None and "nothing is trained",
        "--num-micro-batches": base.micro_batches is not None and "--max-batch says how many sequences a replica holds",
    }
    problems = [f"{flag}: is for training; {reason}" for flag, reason in refused.items() if reason]
    if base.mesh is not None:
        fields = (*base.mesh.degrees, *base.mesh.names, *base.mesh.flags)
        problems += [
            f"{flag_of(name)}: is for training; serving has tp, pp, ep, etp and dp"
            for name in fields
            if name not in _DEGREES
        ]
    if base.objective not in (None, *SERVING_OBJECTIVES):
        problems.append(f"--objective {base.objective}: serving has {', '.join(SERVING_OBJECTIVES)}")
    if request.output_tokens == 1:
        asked = [
            flag
            for flag, given in (("--objective tpot", base.objective == "tpot"), ("--max-tpot", request.max_tpot_s))
            if given
        ]
        problems += [f"{flag}: an answer of 1 token (--output-tokens 1) has no token after the first" for flag in asked]
    known = {item.name for item in dataclasses.fields(ServingAssumptions)}
    problems += [
        f"--assume {name}: is for training; serving has {', '.join(sorted(known))}"
        for name, _ in base.assume
        if name not in known
    ]
    utilisation = dict(base.assume).get("memory_utilisation", 1.0)
    if not 0.0 < utilisation <= 1.0:
        problems.append(f"--assume memory_utilisation={utilisation:g}: is a share, above 0 and at most 1")
    if problems:
        raise UsageError("\n".join(problems))


def _assumptions(
    request: ServingRequest, resolved: Resolved, workload: ServingWorkload, kv: str, capacity: float
) -> tuple[Assumption, ...]:
    def source(given: object) -> str:
        return "default" if given is None else "given"

    kept = {"model", "cluster", "workers", "device", "cost model", "mode", "calibration", "framework"}
    base = request.base
    memory = f"{format_bytes(capacity)}, of which {format_bytes(workload.context_bytes)} context"
    return (
        *(a for a in resolved.assumptions if a.name in kept),
        Assumption(name="prompt", value=f"{workload.prompt_tokens} tokens", source=source(request.prompt_tokens)),
        Assumption(name="output", value=f"{workload.output_tokens} tokens", source=source(request.output_tokens)),
        Assumption(
            name="weights",
            value=resolved.setting.precision,
            source="given" if base.precision is not None else "default of transformers on the device",
        ),
        Assumption(name="keys and values", value=kv, source=source(request.kv)),
        Assumption(
            name="memory per GPU",
            value=memory,
            source="memory_utilisation"
            if capacity < resolved.setting.memory_capacity_bytes
            else memory_source(base, resolved.cluster.device),
        ),
        *(
            [Assumption(name="decoder", value="starts with one token; the encoder reads the prompt once")]
            if workload.encoder
            else []
        ),
        Assumption(name="load", value="every place of every replica is taken; no queue in front of it"),
    )
