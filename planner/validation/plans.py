"""Plan-level rows: a transformer on a cluster with degrees, batches and a step time (or a failure)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from costmodel.framework import FrameworkProfile, profile_of
from costmodel.graph import Graph
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.costs import TIME_PARTS, MeshCosts
from costmodel.mesh.flops import model_flops_per_step
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.mesh.rules import RULES, NetworkShape, columns_of
from costmodel.mesh.units import MeshError
from costmodel.precision import OPTIMIZERS, Precision
from costmodel.workload import Workload
from planner.uncertainty.features import node_size, shares_of
from planner.validation.degrees import ImpossiblePlan, batches_of, degrees_of
from planner.validation.experts import agrees, check_count, is_particular
from planner.validation.facts import (
    computed_positions,
    flash_attention,
    framework_default,
    gradient_bytes,
    has_failed,
    is_measured,
    measured_bytes,
    not_measured,
    plausible_bytes,
    step_time_s,
    trains_adapters_only,
)
from planner.validation.fitted import fitted_links, fitted_of
from planner.validation.framework_plans import framework_fault, framework_plan, reported_bytes
from planner.validation.hardware import Machine, format_of, machine_of, precision_of, usual_node
from planner.validation.networks import TransformerShape, bundled_name, shape_of, transformer
from planner.validation.outcomes import TOO_LARGE, Comparison, MemoryComparison, Outcome, skipped
from planner.validation.positions import bundled_transformer, positions_of
from planner.validation.preset import Preset
from planner.validation.recomputation import recompute_choices
from planner.validation.sharding import offloads_optimizer, sharding_choices
from planner.validation.tables import Row, RowSkipped

__all__ = ["predict"]

# What lies outside has the wrong unit (ms for s, us for ms), in shares of the FLOPs at the peak: from half, since FLOPs are counted in more
# ways than one (padding, words that are not predicted), to 100,000 times.
_SHORTEST, _LONGEST = 0.5, 1e5
# NVIDIA NeMo's LoRA recipes: rank 32, on the products of queries, keys and values (NeMo Framework user guide, PEFT).
_LORA_RANK = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A row as the cost model takes it."""

    row: Row
    graph: Graph
    machine: Machine
    precision: Precision
    profile: FrameworkProfile
    assumptions: MeshAssumptions
    # Alternatives where the row leaves something open: the fastest that fits is meant, of the first of so many equal parts that has one.
    plans: tuple[MeshPlan, ...]
    parts: int
    global_batch: int
    measured_s: float | None
    measured_bytes: float | None
    failed: bool
    ranking: Hashable

    @property
    def key(self) -> Hashable:
        """Rows with equal keys share a model."""
        machine = self.machine.cluster
        return (id(self.graph), self.profile.name, machine.name, id(machine), self.precision, self.assumptions)


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    outcomes: dict[int, Outcome] = {}
    groups: dict[Hashable, list[tuple[int, _Question]]] = {}
    for n, row in enumerate(rows):
        asked = row.meaning = row.meaning or _asked(row)
        if isinstance(asked, ImpossiblePlan) and has_failed(row):
            outcomes[n] = Outcome(row=row, failed=True, impossible=asked.reason)
        elif isinstance(asked, RowSkipped):
            outcomes[n] = skipped(row, asked.reason, usable=asked.usable, needs=asked.needs)
        else:
            groups.setdefault(asked.key, []).append((n, asked))
    for members in groups.values():
        try:
            found = _answers([question for _, question in members], preset)
        except OverflowError:
            found = [skipped(question.row, TOO_LARGE, usable=False) for _, question in members]
        outcomes.update((n, outcome) for (n, _), outcome in zip(members, found, strict=True))
    return [outcomes[n] for n in range(len(rows))]


# -- from a row to a question -------------------------------------------------------------------------------------------------


def _asked(row: Row) -> _Question | RowSkipped:
    """What a row asks, or why it asks nothing."""
    try:
        return _question(row)
    except RowSkipped as trouble:
        return trouble.with_traceback(None)


def _question(row: Row) -> _Question:
    if row.says("suspect"):
        raise RowSkipped("marked suspect")
    failed = has_failed(row)
    if not failed and not is_measured(row):
        raise not_measured()
    graph, number_format = _network(row)
    machine = machine_of(row)
    memory_bytes = measured_bytes(row, machine.capacity_bytes)
    plans, parts, global_batch = _plans(row, graph, usual_node(machine.cluster))
    # Throughput counts the positions that a sample has, not those that are computed.
    seq = positions_of(row, graph)
    measured_s = None if failed else step_time_s(row, global_batch=global_batch, gpus=plans[0].workers, seq=seq)
    if measured_s is None and not failed:
        raise not_measured()
    profile = profile_of(row.text("framework"))
    return _Question(
        row=row,
        graph=graph,
        machine=machine,
        precision=precision_of(number_format, machine.device.formats),
        profile=profile,
        assumptions=_assumptions(profile, gradient_bytes(row, number_format), is_pipelined=plans[0].pp > 1),
        plans=plans,
        parts=parts,
        global_batch=global_batch,
        measured_s=measured_s,
        measured_bytes=memory_bytes,
        failed=failed,
        ranking=_ranking_key(row),
    )


def _ranking_key(row: Row) -> Hashable:
    columns = (
        "dataset_group",
        "model",
        "hidden",
        "layers",
        "heads",
        "kv_heads",
        "ffn",
        "vocab",
        "seq",
        "device",
        "precision",
        "gpus",
    )
    return (*(row.text(name) for name in columns), row.text("global_batch"))


def _assumptions(profile: FrameworkProfile, main_gradient_bytes: float, *, is_pipelined: bool) -> MeshAssumptions:
    return replace(profile.applied(is_pipelined=is_pipelined), main_gradient_bytes=main_gradient_bytes)


def _network(row: Row) -> tuple[Graph, str]:
    """The graph and the number format."""
    number_format = format_of(row, "bf16")
    name = bundled_name(row)
    if name is not None and (not row.has("hidden", "layers", "heads") or _is_particular(row, name)):
        return bundled_transformer(name, row.count("seq")), number_format
    shape = shape_of(row, fused=flash_attention(row, number_format))
    check_count(row, transformer(shape))
    shape = replace(shape, seq=computed_positions(row, shape.seq))
    if trains_adapters_only(row, _block_weights(shape)):
        shape = replace(shape, lora_rank=row.count("lora_rank") or row.default("lora_rank", _LORA_RANK))
    return transformer(shape), number_format


def _is_particular(row: Row, name: str) -> bool:
    """Whether a row with a shape means a bundled network that a shape does not describe."""
    if row.count("experts") is not None:
        return False
    known = bundled_transformer(name, None)
    if not is_particular(known) or not agrees(row, known):
        return False
    try:
        bundled_transformer(name, row.count("seq"))
    except RowSkipped:
        return False  # images of another size: its blocks are those that the columns state
    return True


@cache  # asked for every row
def _block_weights(shape: TransformerShape) -> int:
    graph = transformer(shape)
    return sum(layer.weight_count for layer in graph.layers if layer.block and layer.kind == "linear")


def _plans(row: Row, graph: Graph, node: int) -> tuple[tuple[MeshPlan, ...], int, int]:
    """The plan of a row (or those that it may mean, in so many parts), and its global batch."""
    tp, pp, cp, dp = degrees_of(row, node)
    batches, global_batch = batches_of(row, dp, tp * pp * cp * dp, positions_of(row, graph))
    shardings = sharding_choices(row, dp, cp, node=node, is_pipelined=pp > 1)
    has_experts = "moe" in graph.kinds
    vpp = row.count("vpp") or 1
    plan = MeshPlan(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=row.count("ep") or 1,
        sequence_parallel=tp > 1 and framework_default(row, "sequence_parallel", "sp", has_experts),
        dp_replicate=dp,
        offload_optimizer=offloads_optimizer(row),
    )
    blocks = len({layer.block for layer in graph.layers if layer.block})
    choices = recompute_choices(row, blocks, pp * vpp)
    plans = []
    for (stage, replicate, shard), (micro_batch, count), (recompute, recomputed) in product(
        shardings, batches, choices
    ):
        interleaved = pp > 1 and vpp > 1 and count % pp == 0
        if pp > 1 and vpp > 1 and not interleaved:
            row.default("vpp", 1)
        plans.append(
            replace(
                plan,
                dp_replicate=replicate,
                dp_shard=shard,
                zero_stage=stage,
                vpp=vpp if interleaved else 1,
                schedule="interleaved" if interleaved else "1f1b",
                micro_batch=micro_batch,
                num_micro_batches=count,
                recompute=recompute,
                recompute_blocks=recomputed,
            )
        )
    return tuple(plans), len(shardings), global_batch


# -- from questions to outcomes -----------------------------------------------------------------------------------------------


def _answers(questions: Sequence[_Question], preset: Preset) -> list[Outcome]:
    """Predict rows that share a model."""
    first = questions[0]
    compute = preset.compute(first.machine.device, first.precision, "adam")
    workload = Workload(
        graph=first.graph, global_batch=1, precision=first.precision, optimizer=OPTIMIZERS["adam"], compute=compute
    )
    try:
        model = MeshModel.build(workload, preset.cluster(first.machine.cluster), preset.assumptions(first.assumptions))
    except MeshError as error:
        return [skipped(question.row, str(error), usable=True) for question in questions]
    # A table repeats its plans: each is costed once.
    numbers: dict[MeshPlan, int] = {}
    members = [[numbers.setdefault(plan, len(numbers)) for plan in question.plans] for question in questions]
    plans = [framework_plan(first.profile, model, _cut(plan, model.num_blocks)) for plan in numbers]
    batch = MeshBatch.from_plans(plans)
    broken = [
        message or framework_fault(first.profile, model, plan)
        for message, plan in zip(_broken(NetworkShape.of(first.graph, model.units, 1), batch), plans, strict=True)
    ]
    legal = np.flatnonzero([not message for message in broken])
    costs, reported = _costs(model, first.profile, [plans[int(index)] for index in legal])
    step_shares = [] if costs is None else _shares(costs, batch.workers[legal] / node_size(first.machine.cluster))
    position = {int(index): k for k, index in enumerate(legal)}
    flop = model_flops_per_step(workload)
    peak = first.machine.device.peak(first.precision.compute)
    fitted = fitted_of(first.machine.device, first.assumptions, first.profile)
    cluster = first.machine.cluster
    outcomes = []
    for question, indices in zip(questions, members, strict=True):
        usable = question.machine.capacity_bytes * (1.0 - model.assumptions.memory_reserve)
        kept = _choose(indices[: len(indices) // question.parts], position, costs, usable)
        if kept is None:
            outcomes.append(_impossible(question, broken[indices[0]]))
            continue
        assert costs is not None
        chosen = kept if question.failed else _run(question, indices, position, costs, usable)
        ideal_s = flop * question.global_batch / (plans[indices[0]].workers * peak)
        memory = MemoryComparison(
            predicted_bytes=float(costs.memory_bytes[kept]),
            capacity_bytes=usable,
            device_bytes=question.machine.capacity_bytes,
            measured_bytes=plausible_bytes(question.row, question.measured_bytes, float(reported[kept])),
            reported_bytes=float(reported[kept]),
        )
        plan, seconds = plans[int(legal[chosen])], float(costs.step_time_s[chosen])
        used = fitted | fitted_links(cluster, plan.workers)
        outcomes.append(_outcome(question, seconds, memory, ideal_s, used, plan=plan, shares=step_shares[chosen]))
    return outcomes


def _costs(
    model: MeshModel, profile: FrameworkProfile, plans: Sequence[MeshPlan]
) -> tuple[MeshCosts | None, NDArray[np.float64]]:
    """Costs of legal plans, and their memory as the framework reports it."""
    if not plans:
        return None, np.zeros(0)
    own = any(plan.stage_blocks for plan in plans)
    costs = model.evaluate_plans(plans) if own else model.evaluate(MeshBatch.from_plans(plans))
    return costs, reported_bytes(profile, model, plans, costs.memory_bytes)


def _cut(plan: MeshPlan, blocks: int) -> MeshPlan:
    """The plan for a network of so many blocks.

    Megatron counts embedding and loss among the layers of a pipeline where it is told to (account_for_embedding_in_pipeline_split):
    Llama 3.1 405B has 126 blocks, and runs as 16 stages of 8 chunks. Here chunks hold blocks.
    """
    if blocks < plan.pp * plan.vpp <= blocks + 2:
        plan = replace(plan, vpp=max(blocks // plan.pp, 1))
        if plan.vpp == 1:
            plan = replace(plan, schedule="1f1b")
    return replace(plan, recompute_blocks=min(plan.recompute_blocks, blocks))


def _broken(shape: NetworkShape, batch: MeshBatch) -> list[str]:
    """What is wrong with each plan, the first rule that it breaks; empty where it is legal. The batch is checked when the plan is made."""
    columns = columns_of(batch)
    messages = [""] * len(batch)
    for rule in RULES:
        if rule.name == "batch":
            continue
        for n in np.flatnonzero(~np.broadcast_to(rule.test(shape, columns), len(batch))):
            if not messages[n]:
                values = {name: int(np.broadcast_to(column, len(batch))[n]) for name, column in columns.items()}
                messages[n] = rule.message(shape, values)
    return messages


def _choose(
    indices: Sequence[int], position: dict[int, int], costs: MeshCosts | None, usable_bytes: float
) -> int | None:
    """Row of the costs that a question means: of several the fastest that fits, or the smallest; None where none is legal."""
    rows = [position[index] for index in indices if index in position]
    if not rows or costs is None:
        return None
    fitting = [k for k in rows if costs.memory_bytes[k] <= usable_bytes]
    if fitting:
        return min(fitting, key=lambda k: float(costs.step_time_s[k]))
    return min(rows, key=lambda k: float(costs.memory_bytes[k]))


def _run(
    question: _Question, indices: Sequence[int], position: dict[int, int], costs: MeshCosts, usable_bytes: float
) -> int:
    """Row of the costs of a run that succeeded: of the first part that has a plan that fits, else of the last, whose ranks share most."""
    size = len(indices) // question.parts
    for first in range(0, len(indices), size):
        chosen = _choose(indices[first : first + size], position, costs, usable_bytes)
        if chosen is not None and (costs.memory_bytes[chosen] <= usable_bytes or first + size == len(indices)):
            break
    if first:
        question.row.default("zero_stage", question.plans[first].zero_stage)
    assert chosen is not None, "sharing is legal where replicas are"
    return chosen


def _impossible(question: _Question, message: str) -> Outcome:
    """A plan that breaks a rule: right where the run failed, else a gap of the cost model."""
    if question.failed:
        return Outcome(row=question.row, failed=True, impossible=message, ranking=question.ranking)
    return skipped(question.row, f"the cost model takes the plan for impossible: {message}", usable=True)


def _shares(costs: MeshCosts, nodes: NDArray[np.float64]) -> list[tuple[float, ...]]:
    terms = {name: getattr(costs, name) for name in TIME_PARTS}
    return [tuple(row) for row in shares_of(costs.step_time_s, terms, nodes).tolist()]


def _outcome(
    question: _Question,
    predicted_s: float,
    memory: MemoryComparison,
    ideal_s: float,
    fitted: frozenset[str],
    *,
    plan: MeshPlan,
    shares: tuple[float, ...],
) -> Outcome:
    if question.failed:
        return Outcome(row=question.row, failed=True, memory=memory, ranking=question.ranking, fitted=fitted)
    measured_s = question.measured_s
    assert measured_s is not None
    if not _SHORTEST * ideal_s <= measured_s <= _LONGEST * ideal_s:
        word = (
            "shorter than the peak of the devices allows"
            if measured_s < ideal_s
            else "100,000 times what the devices need"
        )
        return skipped(question.row, f"step time {word}: wrong unit?", usable=False)
    comparison = Comparison(
        what="step",
        predicted_s=predicted_s,
        measured_s=measured_s,
        ideal_s=ideal_s,
        shares=shares,
        plan=plan,
    )
    return Outcome(row=question.row, comparisons=(comparison,), memory=memory, ranking=question.ranking, fitted=fitted)
