"""Rows of training runs of transformers: a network on a cluster with degrees, batches and a step time (or a failure).

What a row asks (a network, a machine, the plans that it may mean, what was measured), and what the cost model answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from math import inf
from typing import NamedTuple

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.framework import Framework
from costmodel.hardware.host import Host
from costmodel.mesh.assumptions import DEFAULT_ASSUMPTIONS, MeshAssumptions
from costmodel.mesh.communication import Division
from costmodel.mesh.detail import model_flops_per_step
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import MeshError
from costmodel.mesh.plan import MEASURED_MEMORY, TIME_PARTS, MeshBatch, MeshCosts, MeshPlan
from costmodel.mesh.rules import RULES, NetworkShape, columns_of
from costmodel.mesh.stages import stack_layouts
from costmodel.network.graph import Graph
from costmodel.precision import OPTIMIZERS, Precision
from costmodel.schedules import schedule_of
from costmodel.workload import Workload
from planner.measurements import convnets
from planner.measurements.fitted import fitted_links, fitted_of
from planner.measurements.hardware import (
    Machine,
    format_of,
    machine_of,
    measured_bytes,
    plausible_bytes,
    precision_of,
    sequence_parallel,
    trainer_of_row,
    usual_node,
)
from planner.measurements.networks import network_of, positions_of
from planner.measurements.outcomes import TOO_LARGE, Comparison, MemoryComparison, Outcome, Preset
from planner.measurements.parallelism import (
    ImpossiblePlan,
    batches_of,
    chunk_choices,
    cp_kind_of,
    degrees_of,
    has_failed,
    is_measured,
    not_measured,
    offloads,
    recompute_choices,
    schedules_of,
    sharding_choices,
    stages_of,
    step_time_s,
)
from planner.measurements.tables import LONGEST, Row, RowSkipped
from planner.uncertainty.bars import node_size, shares_of


class MemoryLog(NamedTuple):
    """What a measured memory is: what it counts, a name of `costmodel.mesh.plan.MEASURED_MEMORY`, and of which rank of the pipeline."""

    counts: str
    rank: str  # "fullest" or "first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A row as the cost model takes it."""

    row: Row
    graph: Graph
    machine: Machine
    precision: Precision
    framework: Framework
    assumptions: MeshAssumptions
    # Alternatives where the row leaves something open: the fastest that fits is meant, of the first of so many equal parts that has one.
    plans: tuple[MeshPlan, ...]
    parts: int
    global_batch: int
    measured_s: float | None
    measured_bytes: float | None
    log: MemoryLog
    failed: bool
    ranking: Hashable

    @property
    def key(self) -> Hashable:
        """Rows with equal keys share a model."""
        machine = self.machine.cluster
        return (id(self.graph), self.framework, machine.name, id(machine), self.precision, self.assumptions)


# What plans have in common that are ranked against each other.
_RANKED_ALIKE = (
    *("dataset_group", "model", "hidden", "layers", "heads", "kv_heads", "ffn", "vocab", "seq", "device", "precision"),
    *("gpus", "global_batch"),
)


def asked(row: Row) -> Question | RowSkipped:
    """What a row asks, or why it asks nothing."""
    try:
        return _question(row)
    except RowSkipped as trouble:
        return trouble.with_traceback(None)


def _question(row: Row) -> Question:
    if row.flag("suspect"):
        raise RowSkipped("marked suspect")
    failed = has_failed(row)
    if not failed and not is_measured(row):
        raise not_measured()
    number_format = format_of(row, "bf16")
    graph = network_of(row, number_format)
    machine = machine_of(row)
    memory_bytes = measured_bytes(row, max(machine.capacity_bytes, machine.device.memory_bytes))
    plans, parts, global_batch = _plans(row, graph, usual_node(machine.cluster))
    # Throughput counts the positions that a sample has, not those that are computed.
    seq = positions_of(row, graph)
    measured_s = None if failed else step_time_s(row, global_batch=global_batch, gpus=plans[0].workers, seq=seq)
    if measured_s is None and not failed:
        raise not_measured()
    framework = trainer_of_row(row)
    device = machine.device
    precision = precision_of(
        number_format,
        device.formats,
        row.text("products"),
        framework.defaults.fp8,
        reads_both_ways=device.reads_both_ways,
    )
    return Question(
        row=row,
        graph=graph,
        machine=machine,
        precision=precision,
        framework=framework,
        assumptions=_assumptions(
            framework,
            precision,
            machine.cluster.host,
            has_fp4=machine.device.has_fp4,
            gathered_copies=float(row.flag("gathered_inputs") is True),
            **(_stated_of_experts(row, framework) if "moe" in graph.kinds else {}),
        ),
        plans=plans,
        parts=parts,
        global_batch=global_batch,
        measured_s=measured_s,
        measured_bytes=memory_bytes,
        log=_log_of(row, framework),
        failed=failed,
        ranking=tuple(row.text(name) for name in _RANKED_ALIKE),
    )


@cache  # asked for every row; equal ones are one then, which is quick to compare
def _assumptions(
    framework: Framework, precision: Precision, host: Host | None, *, has_fp4: bool, **stated: float
) -> MeshAssumptions:
    return replace(framework.mesh_assumptions(precision=precision, has_fp4=has_fp4, host=host), **stated)


def _stated_of_experts(row: Row, framework: Framework) -> dict[str, float]:
    """What a row says of the loads of experts and how tokens travel, as assumptions; else they are those of its framework."""
    stated = {"node_copies": float(row.text("dispatcher") == "all_to_all")} if row.has("dispatcher") else {}
    if row.has("expert_kernels"):
        stated["expert_launches"] = DEFAULT_ASSUMPTIONS.expert_launches * (row.text("expert_kernels") == "each")
    if row.text("schedule") == "combined_1f1b":  # without a pipeline, too (Megatron-LM, forward_backward_no_pipelining)
        stated["ep_overlap"] = 1.0
    usual = "forced" if framework.defaults.forces_balance else "dropless"
    balance = row.text("expert_balance") or row.default("expert_balance", usual)
    if balance == "forced":
        return {**stated, "expert_spread": 0.0, "expert_capacity": 0.0}
    if balance == "dropless":
        return {**stated, "expert_capacity": 0.0}
    return {
        **stated,
        "expert_capacity": row.number("expert_capacity") or 1.0,
        "expert_padding": float(balance == "padded"),
    }


def _plans(row: Row, graph: Graph, node: int) -> tuple[tuple[MeshPlan, ...], int, int]:
    """The plan of a row (or those that it may mean, in so many parts), and its global batch."""
    tp, pp, cp, dp = degrees_of(row, node)
    batches, global_batch = batches_of(row, dp)
    shardings = sharding_choices(row, dp, cp, is_pipelined=pp > 1)
    blocks = len(graph.blocks)
    plan = MeshPlan(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=row.count("ep") or 1,
        etp=row.count("etp") or 1,
        sequence_parallel=tp > 1 and sequence_parallel(row, has_experts="moe" in graph.kinds),
        dp_replicate=dp,
        cp_kind=cp_kind_of(row) if cp > 1 else "ring",
        offload_optimizer=offloads(row, "optimizer"),
    )
    hosts_inputs = offloads(row, "activations")
    pipelines: list[MeshPlan] = []
    for vpp in chunk_choices(row, pp, blocks):
        choices = recompute_choices(row, blocks, pp * vpp)
        schedules = schedules_of(row, pp, vpp, [count for _, count in batches])
        stages = stages_of(row, pp * vpp, blocks)
        for (micro_batch, count), (recompute, recomputed) in product(batches, choices):
            schedule = schedules.get(count, "")
            if not schedule or (vpp > 1 and not row.has("vpp") and not schedule_of(schedule).is_chunked):
                continue
            pipelines.append(
                replace(
                    plan,
                    vpp=vpp if schedule_of(schedule).is_chunked else 1,
                    stage_blocks=stages,
                    schedule=schedule,
                    micro_batch=micro_batch,
                    num_micro_batches=count,
                    recompute=recompute,
                    recompute_blocks=recomputed,
                    offload_activations=hosts_inputs and recompute == "full",
                )
            )
    plans = [
        replace(pipeline, dp_replicate=replicate, dp_shard=shard, zero_stage=stage)
        for (stage, replicate, shard), pipeline in product(shardings, pipelines)
    ]
    return tuple(plans), len(shardings), global_batch


def model_of(question: Question, preset: Preset) -> MeshModel:
    """The cost model of a question, for a batch of one sample.

    Raises
    ------
    MeshError
        The network has no repeated blocks.
    """
    machine = question.machine
    precision, optimizer = question.framework.kept(question.precision, OPTIMIZERS["adam"])
    workload = Workload(
        graph=question.graph,
        global_batch=1,
        precision=precision,
        optimizer=optimizer,
        compute=preset.compute(machine.device, precision, optimizer),
        framework=question.framework,
    )
    return MeshModel.build(
        workload, preset.cluster(machine.cluster), preset.assumptions(question.assumptions, question.framework.name)
    )


# -- what the cost model says ---------------------------------------------------------------------------------------------------

# Framework -> what its log counts (a name of MEASURED_MEMORY), and of which rank; of others it is taken for what nvidia-smi shows of the
# fullest. nanotron: src/nanotron/helpers.py, rank 0 writes what PyTorch's allocator holds.
_LOGS = {"nanotron": MemoryLog("reserved", "first")}
_SMI = MemoryLog("used", "fullest")


def _log_of(row: Row, framework: Framework) -> MemoryLog:
    """What the measured memory of a row is: as stated, else what the log of its framework has."""
    usual = _LOGS.get(framework.name, _SMI)
    if not row.has("memory_gib"):
        return usual
    return MemoryLog(
        row.text("memory_counts") or row.default("memory_counts", usual.counts),
        row.text("memory_rank") or row.default("memory_rank", usual.rank),
    )


def reported_bytes(
    model: MeshModel, plans: Sequence[MeshPlan], fullest_bytes: FloatArray, log: MemoryLog
) -> FloatArray:
    """Memory as a log has it, (n,).

    Parameters
    ----------
    model : MeshModel
    plans : sequence of MeshPlan
    fullest_bytes : array (n,)
        Memory of the fullest rank of each.
    log : MemoryLog

    Returns
    -------
    array (n,)
        The same; or of the first rank, or of the rank that has most of what the log counts.
    """
    if log == _SMI or not plans:
        return fullest_bytes
    batch = MeshBatch.from_plans(plans)
    layouts = stack_layouts(model.layouts_of_plans(plans, every_rank=True))
    parts = model.pipeline_memory(batch, layouts).divided(np.arange(len(plans)), Division.of(batch)).parts
    counted = np.sum([parts[name] for name in MEASURED_MEMORY[log.counts]], axis=0)
    return np.asarray(counted[:, 0] if log.rank == "first" else np.max(counted, axis=1))


# What lies outside has the wrong unit (ms for s, us for ms), in shares of the FLOPs at the peak: from half, since FLOPs are counted in more
# ways than one (padding, words that are not predicted), to 100,000 times.
_SHORTEST = 0.5


def predict(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of this kind, in the order given."""
    outcomes: dict[int, Outcome] = {}
    groups: dict[Hashable, list[tuple[int, Question]]] = {}
    for n, row in enumerate(rows):
        meant = row.meaning = row.meaning or asked(row)
        if isinstance(meant, ImpossiblePlan) and has_failed(row):
            outcomes[n] = Outcome(row=row, failed=True, impossible=meant.reason)
        elif isinstance(meant, RowSkipped):
            outcomes[n] = Outcome(row=row, skipped=meant.reason, usable=meant.usable, needs=meant.needs)
        else:
            groups.setdefault(meant.key, []).append((n, meant))
    for members in groups.values():
        try:
            found = _answers([question for _, question in members], preset)
        except OverflowError:
            found = [Outcome(row=question.row, skipped=TOO_LARGE, usable=False) for _, question in members]
        outcomes.update((n, outcome) for (n, _), outcome in zip(members, found, strict=True))
    return [outcomes[n] for n in range(len(rows))]


def _answers(questions: Sequence[Question], preset: Preset) -> list[Outcome]:
    """Predict rows that share a model."""
    first = questions[0]
    try:
        model = model_of(first, preset)
    except MeshError as error:
        return [Outcome(row=question.row, skipped=str(error)) for question in questions]
    # A table repeats its plans: each is costed once.
    numbers: dict[MeshPlan, int] = {}
    members = [[numbers.setdefault(plan, len(numbers)) for plan in question.plans] for question in questions]
    plans = [_cut(plan, model.num_blocks) for plan in numbers]
    batch = MeshBatch.from_plans([_checked(plan) for plan in plans])
    broken = _broken(NetworkShape.of(first.graph, model.modules, 1, first.framework), batch)
    legal = np.flatnonzero([not message for message in broken])
    legal_plans = [plans[int(index)] for index in legal]
    costs = _costs(model, legal_plans)
    fullest = costs.memory_bytes if costs is not None else np.zeros(0)
    logs = {question.log for question in questions}
    reported = {log: reported_bytes(model, legal_plans, fullest, log) for log in logs}
    step_shares: list[tuple[float, ...]] = []
    if costs is not None:
        terms = {name: getattr(costs, name) for name in TIME_PARTS}
        nodes = batch.workers[legal] / node_size(first.machine.cluster)
        step_shares = [tuple(shares) for shares in shares_of(costs.step_time_s, terms, nodes).tolist()]
    position = {int(index): k for k, index in enumerate(legal)}
    flop = model_flops_per_step(model.workload)
    peak = first.machine.device.peak(first.precision.compute)
    fitted = fitted_of(first.machine.device, first.assumptions, first.framework, kinds=first.graph.kinds)
    cluster = first.machine.cluster
    outcomes = []
    for question, indices in zip(questions, members, strict=True):
        usable = question.machine.capacity_bytes * (1.0 - model.assumptions.unusable_memory)
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
            measured_bytes=plausible_bytes(question.row, question.measured_bytes, float(reported[question.log][kept])),
            reported_bytes=float(reported[question.log][kept]),
        )
        plan, seconds = plans[int(legal[chosen])], float(costs.step_time_s[chosen])
        used = fitted | fitted_links(cluster, plan.workers)
        stated = _checked(plan)  # what the error bars can evaluate
        slowest = max(
            _slowest_s(plan, [(plans[k], position[k]) for k in indices if k in position], costs, usable), seconds
        )
        shares = step_shares[chosen]
        outcomes.append(
            _outcome(question, seconds, memory, ideal_s, used, plan=stated, shares=shares, slowest=slowest / seconds)
        )
    return outcomes


def _costs(model: MeshModel, plans: Sequence[MeshPlan]) -> MeshCosts | None:
    """Costs of legal plans; None where there are none."""
    if not plans:
        return None
    own = any(plan.stage_blocks for plan in plans)
    return model.evaluate_plans(plans) if own else model.evaluate(MeshBatch.from_plans(plans))


def _cut(plan: MeshPlan, blocks: int) -> MeshPlan:
    """The plan for a network of so many blocks.

    Megatron counts embedding and loss among the layers of a pipeline where it is told to (account_for_embedding_in_pipeline_split):
    Llama 3.1 405B has 126 blocks, and runs as 16 stages of 8 chunks. The first chunk, which holds the embedding, and the last, which holds
    head and loss, go without a block then; where one of the two does, it is the last.
    """
    chunks = plan.pp * plan.vpp
    if plan.vpp > 1 and blocks < chunks <= blocks + 2:
        held = (0 if chunks == blocks + 2 else 1, *(1,) * (chunks - 2), 0)
        plan = replace(plan, stage_blocks=held)
    return replace(plan, recompute_blocks=min(plan.recompute_blocks, blocks))


def _checked(plan: MeshPlan) -> MeshPlan:
    """The plan as the rules know it, whose chunks all hold a block."""
    if plan.vpp == 1 or not plan.stage_blocks or all(plan.stage_blocks):
        return plan
    fewer = max(min(sum(plan.stage_blocks) // plan.pp, plan.vpp), 1)
    return replace(plan, stage_blocks=(), vpp=fewer, schedule=plan.schedule if fewer > 1 else "1f1b")


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
    question: Question, indices: Sequence[int], position: dict[int, int], costs: MeshCosts, usable_bytes: float
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


def _slowest_s(chosen: MeshPlan, meant: Sequence[tuple[MeshPlan, int]], costs: MeshCosts, usable_bytes: float) -> float:
    """Step time of the slowest number of chunks that a row may mean, everything else being as good as it can."""
    best: dict[int, float] = {}
    for plan, k in meant:
        alike = (plan.zero_stage, plan.dp_shard) == (chosen.zero_stage, chosen.dp_shard)
        if plan.vpp == chosen.vpp or (alike and costs.memory_bytes[k] <= usable_bytes):
            best[plan.vpp] = min(best.get(plan.vpp, inf), float(costs.step_time_s[k]))
    return max(best.values())


def _impossible(question: Question, message: str) -> Outcome:
    """A plan that breaks a rule: right where the run failed, else a gap of the cost model."""
    if question.failed:
        return Outcome(row=question.row, failed=True, impossible=message, ranking=question.ranking)
    return Outcome(row=question.row, skipped=f"the cost model takes the plan for impossible: {message}")


def _outcome(
    question: Question,
    predicted_s: float,
    memory: MemoryComparison,
    ideal_s: float,
    fitted: frozenset[str],
    *,
    plan: MeshPlan,
    shares: tuple[float, ...],
    slowest: float,
) -> Outcome:
    if question.failed:
        return Outcome(row=question.row, failed=True, memory=memory, ranking=question.ranking, fitted=fitted)
    measured_s = question.measured_s
    assert measured_s is not None
    if not _SHORTEST * ideal_s <= measured_s <= LONGEST * ideal_s:
        word = (
            "shorter than the peak of the devices allows"
            if measured_s < ideal_s
            else "100,000 times what the devices need"
        )
        return Outcome(row=question.row, skipped=f"step time {word}: wrong unit?", usable=False)
    comparison = Comparison(
        what="step",
        predicted_s=predicted_s,
        measured_s=measured_s,
        ideal_s=ideal_s,
        shares=shares,
        plan=plan,
        slowest=slowest,
    )
    return Outcome(row=question.row, comparisons=(comparison,), memory=memory, ranking=question.ranking, fitted=fitted)


def predict_training(rows: Sequence[Row], preset: Preset) -> list[Outcome]:
    """Predict rows of training runs, in the order given: networks for images are not transformers."""
    images = {n for n, row in enumerate(rows) if not row.has("hidden") and convnets.network_name(row) is not None}
    of_images = iter(convnets.predict([row for n, row in enumerate(rows) if n in images], preset))
    others = iter(predict([row for n, row in enumerate(rows) if n not in images], preset))
    return [next(of_images if n in images else others) for n in range(len(rows))]
