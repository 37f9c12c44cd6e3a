"""Scores mesh plans with the cost model and describes them; the one place that turns costs into figures for people."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from costmodel.hardware.energy import Power, money_of
from costmodel.hardware.host import USABLE_SHARE
from costmodel.layerwise.splits import divisors
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.detail import FLOP_CONVENTION, model_flops_per_step
from costmodel.mesh.energy import plans_energy_j
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import MeshError
from costmodel.mesh.plan import MEMORY_PARTS, TIME_PARTS, MeshBatch, MeshCosts, MeshPlan
from costmodel.mesh.rules import RULES, NetworkShape, Rule, columns_of
from costmodel.network.graph import Graph
from planner.core.errors import UsageError
from planner.core.objectives import check_rates, stated_rates
from planner.core.quantities import format_bytes
from planner.core.results import Assumption
from planner.report.numbers import percent
from planner.resolve import Resolved
from planner.spaces.mesh.results import RankedMeshPlan
from planner.spaces.mesh.wording import bottleneck_in_words, family_of_mesh_plan, mesh_plan_in_words
from strategies.layerwise import score
from strategies.mesh.search import search_model
from strategies.mesh.settings import MeshOutcome, MeshSettings

__all__ = ["COMMUNICATION", "MeshJudge", "is_per_device", "make_judge"]

# Parts of the step in which devices wait for the network.
COMMUNICATION = ("tp_exposed_s", "cp_exposed_s", "ep_exposed_s", "pp_exposed_s", "dp_exposed_s")
# Relative room below which a host is full.
_FULL = 1e-6


def is_per_device(objective: str) -> bool:
    """Whether an objective ranks by device-seconds (step time x devices in use) rather than by step time."""
    return objective == "mfu" or score.is_per_device(objective)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshJudge:
    """A question with its cost model.

    Attributes
    ----------
    flop_per_step : float
        Model FLOP of one step, by the convention of `costmodel.mesh.detail`.
    peak_flop_per_s : float
        Dense peak of one device in the precision that matrices are computed in.
    """

    resolved: Resolved
    model: MeshModel
    shape: NetworkShape
    seq: int
    flop_per_step: float
    peak_flop_per_s: float
    assumptions: MeshAssumptions

    @property
    def objective(self) -> str:
        """What is minimised."""
        return self.resolved.request.objective or "step_time"

    @property
    def power(self) -> Power | None:
        """What a device draws; None where nobody has stated it."""
        return Power.of(self.resolved.cluster.device, self.resolved.cluster.host)

    @property
    def tokens_per_step(self) -> int:
        """Positions of all samples."""
        return self.resolved.workload.global_batch * self.seq

    def costs(self, plans: Sequence[MeshPlan]) -> MeshCosts:
        """Ask the cost model about legal plans."""
        return self.model.evaluate_plans(plans)

    def search(self, settings: MeshSettings, progress: Callable[[str, float], None] | None = None) -> MeshOutcome:
        """Search with the same cost model."""
        return search_model(self.model, settings, progress)

    def score(self, plan: RankedMeshPlan) -> float:
        """What the objective compares; smaller is better."""
        if self.objective == "energy":
            assert plan.energy_per_step_j is not None
            return plan.energy_per_step_j
        return plan.step_time_s * (plan.workers if is_per_device(self.objective) else 1)

    def rank(self, plans: Sequence[MeshPlan], best: RankedMeshPlan | None = None) -> list[RankedMeshPlan]:
        """Judge plans and describe them; the order is kept.

        Parameters
        ----------
        plans : sequence of MeshPlan
        best : RankedMeshPlan, optional
            What the gaps are measured against; the first of the plans by default.
        """
        if not plans:
            return []
        costs = self.costs(plans)
        joules = None if self.power is None else plans_energy_j(self.model, plans, costs, self.power)
        ranked = [
            self._described(plan, costs, n, None if joules is None else float(joules[n]))
            for n, plan in enumerate(plans)
        ]
        reference = self.score(ranked[0] if best is None else best)
        return [dataclasses.replace(plan, gap=self.score(plan) / reference - 1.0) for plan in ranked]

    def _described(self, plan: MeshPlan, costs: MeshCosts, n: int, energy_j: float | None) -> RankedMeshPlan:
        workload, setting = self.resolved.workload, self.resolved.setting
        step = float(costs.step_time_s[n])
        parts = {name: float(getattr(costs, name)[n]) for name in TIME_PARTS}
        tokens_per_s = self.tokens_per_step / step
        gpu_hours = plan.workers / tokens_per_s / 3600.0 * 1e6
        price, host = self.resolved.cluster.device.price_per_hour, self.resolved.cluster.host
        return RankedMeshPlan(
            rank=n + 1,
            plan=plan,
            family=family_of_mesh_plan(plan),
            summary=mesh_plan_in_words(plan),
            workers=plan.workers,
            step_time_s=step,
            throughput_samples_per_s=workload.global_batch / step,
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_gpu=tokens_per_s / plan.workers,
            mfu=self.flop_per_step / (step * plan.workers * self.peak_flop_per_s),
            memory_bytes_per_gpu=float(costs.memory_bytes[n]),
            memory_capacity_bytes=setting.memory_capacity_bytes,
            host_bytes_per_gpu=float(costs.host_bytes[n]),
            host_capacity_bytes_per_gpu=None if host is None else host.share_bytes(plan.workers),
            exposed_communication_s=sum(parts[name] for name in COMMUNICATION),
            time_parts=parts,
            memory_parts={name: float(getattr(costs, name)[n]) for name in MEMORY_PARTS},
            bottleneck=bottleneck_in_words(parts, float(costs.host_s[n])),
            host_s=float(costs.host_s[n]),
            gpu_hours_per_million_tokens=gpu_hours,
            money_per_million_tokens=None if price is None else gpu_hours * price,
            money_per_step=money_of(self.resolved.cluster.device, step, plan.workers),
            energy_per_step_j=energy_j,
            gap=0.0,
        )

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
        columns = columns_of(MeshBatch.from_plans([plan]))
        values = {name: int(column[0]) for name, column in columns.items()}
        known = [rule for rule in self.rules if not unknown & set(rule.fields)]
        broken = [rule for rule in known if not bool(np.all(rule.test(self.shape, columns)))]
        if self.shape.kv_heads == self.shape.heads and any(rule.name == "heads" for rule in broken):
            broken = [
                rule for rule in broken if rule.name != "kv-heads"
            ]  # of multi-head attention these are the same heads
        return [rule.message(self.shape, values) for rule in broken]

    def check(self, plan: MeshPlan) -> None:
        """Refuse a plan that breaks a rule of the space, or does not make the batch.

        Raises
        ------
        UsageError
            Every rule that it breaks.
        """
        problems = self.broken(plan)
        if problems:
            raise UsageError("\n".join(problems))

    def blocks_per_stage(self, plan: MeshPlan) -> int:
        """Blocks of the longest chunk; 1 where there are more chunks than blocks, which a rule refuses."""
        chunks = plan.pp * plan.vpp
        return self.model.layout(plan.pp, plan.vpp).most_blocks if chunks <= self.model.num_blocks else 1

    def rows(self) -> tuple[Assumption, ...]:
        """What the mesh model takes for granted, by name."""
        rows = [
            Assumption(
                name=item.name, value=f"{getattr(self.assumptions, item.name):g}", source=self._source(item.name)
            )
            for item in dataclasses.fields(self.assumptions)
        ]
        layers = self.resolved.workload.graph.layers
        loads = sorted({layer.params.capacity_factor for layer in layers if layer.kind == "moe"})
        if loads:
            # How unevenly the router spreads tokens is the network's to say.
            text = " and ".join(f"{load:g}" for load in loads)
            rows.append(Assumption(name="expert load (fullest over mean)", value=text, source="model file"))
        return tuple(rows)

    def _source(self, name: str) -> str:
        return self.resolved.source_of(name)

    def host_memory(self) -> Assumption:
        """How much the host of a node holds."""
        host = self.resolved.cluster.host
        if host is None:
            return Assumption(name="host memory", value="without a limit (the cluster file states none)")
        value = (
            f"{format_bytes(host.memory_bytes)} per {host.devices} GPUs, of which {percent(USABLE_SHARE)} for tensors"
        )
        return Assumption(name="host memory", value=value, source="cluster file")

    def host_in_words(self, ranked: RankedMeshPlan) -> str:
        """Say that the host of a node is full, behind what else does not fit; nothing where it is not."""
        room = ranked.host_capacity_bytes_per_gpu
        if room is None or ranked.host_bytes_per_gpu < (1 - _FULL) * room:
            return ""
        return f"; the host is full: it has room for {format_bytes(room)} per GPU ({self.host_memory().value})"

    def rates(self) -> tuple[Assumption, ...]:
        """What a GPU costs and draws, where that is what plans are ranked by."""
        return stated_rates(self.resolved.request, self.resolved.cluster)

    def convention(self) -> Assumption:
        """How MFU is counted."""
        precision = self.resolved.workload.precision.compute
        value = (
            f"{self.flop_per_step:.4g} model FLOP per step ({FLOP_CONVENTION}) over step time x GPUs in use x "
            f"{self.peak_flop_per_s / 1e12:.4g} TFLOP/s, the dense {precision} peak"
        )
        return Assumption(name="MFU", value=value)


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


def make_judge(resolved: Resolved) -> MeshJudge:
    """Build the mesh cost model of a question.

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
    return MeshJudge(
        resolved=resolved,
        model=model,
        shape=NetworkShape.of(workload.graph, model.modules, workload.global_batch, workload.framework),
        seq=_positions(workload.graph),
        flop_per_step=model_flops_per_step(workload),
        peak_flop_per_s=device.peak(workload.precision.compute),
        assumptions=assumptions,
    )
