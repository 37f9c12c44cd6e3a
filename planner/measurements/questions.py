"""What a plan-level row asks: a network, a machine, the plans that it may mean, and what was measured."""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshPlan
from costmodel.network.graph import Graph
from costmodel.precision import OPTIMIZERS, Optimizer, Precision
from costmodel.software.framework import Framework
from costmodel.workload import Workload
from planner.measurements.degrees import batches_of, degrees_of, shared_samples
from planner.measurements.experts import agrees, check_count, is_particular, stack_of, widths_of
from planner.measurements.facts import (
    computed_positions,
    defaults_of,
    flash_attention,
    framework_default,
    framework_of_row,
    gradient_bytes,
    is_narrow_throughout,
    measured_bytes,
    says_adapters,
    trains_adapters_only,
)
from planner.measurements.hardware import Machine, format_of, machine_of, precision_of, usual_node
from planner.measurements.networks import TransformerShape, bundled_name, shape_of, transformer, with_adapters
from planner.measurements.positions import bundled_transformer, positions_of
from planner.measurements.preset import Preset
from planner.measurements.recomputation import recompute_choices
from planner.measurements.schedules import chunks_of, schedule_of
from planner.measurements.sharding import offloads_optimizer, sharding_choices
from planner.measurements.tables import Row, RowSkipped
from planner.measurements.throughputs import has_failed, is_measured, not_measured, step_time_s

__all__ = ["Question", "asked", "model_of"]

# NVIDIA NeMo's LoRA recipes: rank 32, on the products of queries, keys and values (NeMo Framework user guide, PEFT).
_LORA_RANK = 32


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
    failed: bool
    ranking: Hashable

    @property
    def key(self) -> Hashable:
        """Rows with equal keys share a model."""
        machine = self.machine.cluster
        return (id(self.graph), self.framework, machine.name, id(machine), self.precision, self.assumptions)


def asked(row: Row) -> Question | RowSkipped:
    """What a row asks, or why it asks nothing."""
    try:
        return _question(row)
    except RowSkipped as trouble:
        return trouble.with_traceback(None)


def _question(row: Row) -> Question:
    if row.says("suspect"):
        raise RowSkipped("marked suspect")
    failed = has_failed(row)
    if not failed and not is_measured(row):
        raise not_measured()
    graph, number_format = _network(row)
    machine = machine_of(row)
    memory_bytes = measured_bytes(row, max(machine.capacity_bytes, machine.device.memory_bytes))
    plans, parts, global_batch = _plans(row, graph, usual_node(machine.cluster))
    # Throughput counts the positions that a sample has, not those that are computed.
    seq = positions_of(row, graph)
    measured_s = None if failed else step_time_s(row, global_batch=global_batch, gpus=plans[0].workers, seq=seq)
    if measured_s is None and not failed:
        raise not_measured(row)
    framework = framework_of_row(row)
    return Question(
        row=row,
        graph=graph,
        machine=machine,
        precision=_as_kept(row, precision_of(number_format, machine.device.formats)),
        framework=framework,
        assumptions=_assumptions(
            framework,
            gradient_bytes(row, number_format),
            gathered_copies=_gathered_copies(row, plans[0]),
            has_fp4="fp4" in machine.device.formats,
        ),
        plans=plans,
        parts=parts,
        global_batch=global_batch,
        measured_s=measured_s,
        measured_bytes=memory_bytes,
        failed=failed,
        ranking=_ranking_key(row),
    )


def _as_kept(row: Row, precision: Precision) -> Precision:
    """Without a copy of the weights in 32 bits where a row or its framework trains in 16 bits throughout."""
    return (
        replace(precision, master_bytes=0) if is_narrow_throughout(row) and precision.weight_bytes == 2 else precision
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


@cache  # asked for every row; equal ones are one then, which is quick to compare
def _assumptions(
    framework: Framework, main_gradient_bytes: float, *, gathered_copies: float, has_fp4: bool
) -> MeshAssumptions:
    applied = framework.mesh_assumptions(has_fp4=has_fp4)
    return replace(applied, main_gradient_bytes=main_gradient_bytes, gathered_copies=gathered_copies)


# nanotron's runs of the Ultra-Scale Playbook without pipelines are older than its option tp_recompute_allgather, those with pipelines were
# repeated with it (scripts/scaling_benchmarks.py).
_OLDER = re.compile(r"ultra-?scale playbook")


def _gathered_copies(row: Row, plan: MeshPlan) -> float:
    """Whether inputs are kept as they are gathered under sequence parallelism."""
    return float(plan.pp == 1 and bool(_OLDER.search(row.text("source").lower())))


def _network(row: Row) -> tuple[Graph, str]:
    """The graph and the number format."""
    number_format = format_of(row, "bf16")
    name = bundled_name(row)
    if name is not None and says_adapters(row) and not row.has("hidden", "layers", "heads"):
        row = _spelled_out(row, name)
    if name is not None and (not row.has("hidden", "layers", "heads") or _is_particular(row, name)):
        graph = bundled_transformer(name, row.count("seq"))
        return (_adapted(graph, row) if says_adapters(row) else graph), number_format
    shape = shape_of(row, fused=flash_attention(row, number_format))
    check_count(row, transformer(shape))
    shape = replace(shape, seq=computed_positions(row, shape.seq))
    graph = transformer(shape)
    return (_adapted(graph, row) if trains_adapters_only(row, _block_weights(shape)) else graph), number_format


def _adapted(graph: Graph, row: Row) -> Graph:
    """The network with the adapters of a row."""
    everywhere = defaults_of(row).adapts_all
    return with_adapters(graph, _rank(row), everywhere=everywhere)


def _rank(row: Row) -> int:
    """Rank of the adapters of a row."""
    return row.count("lora_rank") or int(row.default("lora_rank", _LORA_RANK))


def _spelled_out(row: Row, name: str) -> Row:
    """The row with the shape of a bundled network that a shape describes: to its products adapters can be put."""
    known = bundled_transformer(name, None)
    cells = {} if is_particular(known) else {**stack_of(known), **widths_of(known)}
    return Row(line=row.line, cells={**row.cells, **cells}, defaults=row.defaults)


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
    seq = positions_of(row, graph)
    cp, dp = shared_samples(row, cp, dp, seq)
    batches, global_batch = batches_of(row, dp, tp * pp * cp * dp, seq)
    shardings = sharding_choices(row, dp, cp, node=node, is_pipelined=pp > 1)
    has_experts = "moe" in graph.kinds
    blocks = len({layer.block for layer in graph.layers if layer.block})
    vpp = chunks_of(row, pp, blocks)
    plan = MeshPlan(
        tp=tp,
        pp=pp,
        cp=cp,
        ep=row.count("ep") or 1,
        sequence_parallel=tp > 1 and framework_default(row, "sp", defaults_of(row).sequence_parallel, has_experts),
        dp_replicate=dp,
        offload_optimizer=offloads_optimizer(row),
    )
    choices = recompute_choices(row, blocks, pp * vpp)
    plans = []
    for (stage, replicate, shard), (micro_batch, count), (recompute, recomputed) in product(
        shardings, batches, choices
    ):
        schedule = schedule_of(row, pp, vpp, count)
        plans.append(
            replace(
                plan,
                dp_replicate=replicate,
                dp_shard=shard,
                zero_stage=stage,
                vpp=vpp if schedule == "interleaved" else 1,
                schedule=schedule,
                micro_batch=micro_batch,
                num_micro_batches=count,
                recompute=recompute,
                recompute_blocks=recomputed,
            )
        )
    return tuple(plans), len(shardings), global_batch


def _adam(precision: Precision) -> Optimizer:
    """Adam, whose state is as wide as the weights that it updates."""
    known = OPTIMIZERS["adam"]
    return replace(known, state_bytes=2 * (precision.master_bytes or precision.weight_bytes))


def model_of(question: Question, preset: Preset) -> MeshModel:
    """The cost model of a question, for a batch of one sample.

    Raises
    ------
    MeshError
        The network has no repeated blocks.
    """
    machine = question.machine
    optimizer = _adam(question.precision)
    workload = Workload(
        graph=question.graph,
        global_batch=1,
        precision=question.precision,
        optimizer=optimizer,
        compute=preset.compute(machine.device, question.precision, optimizer),
        framework=question.framework,
    )
    return MeshModel.build(
        workload, preset.cluster(machine.cluster), preset.assumptions(question.assumptions, question.framework.name)
    )
