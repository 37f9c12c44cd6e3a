"""What a plan-level row asks: a network, a machine, the plans that it may mean, and what was measured."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

from costmodel.framework import Framework
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.mesh.model import MeshModel
from costmodel.mesh.plan import MeshPlan
from costmodel.network.graph import Graph
from costmodel.precision import OPTIMIZERS, Optimizer, Precision
from costmodel.workload import Workload
from planner.measurements.hardware import (
    Machine,
    defaults_of,
    format_of,
    framework_default,
    framework_of_row,
    gradient_bytes,
    is_narrow_throughout,
    machine_of,
    measured_bytes,
    precision_of,
    usual_node,
)
from planner.measurements.networks import network_of, positions_of
from planner.measurements.outcomes import Preset
from planner.measurements.parallelism import (
    batches_of,
    chunks_of,
    degrees_of,
    has_failed,
    is_measured,
    not_measured,
    recompute_choices,
    schedule_of,
    sharding_choices,
    step_time_s,
)
from planner.measurements.tables import Row, RowSkipped

__all__ = ["Question", "asked", "model_of"]


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
    framework = framework_of_row(row)
    return Question(
        row=row,
        graph=graph,
        machine=machine,
        precision=_as_kept(row, precision_of(number_format, machine.device.formats, row.text("products"))),
        framework=framework,
        assumptions=_assumptions(
            framework,
            gradient_bytes(row, number_format),
            gathered_copies=float(row.flag("gathered_inputs") is True),
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


def _plans(row: Row, graph: Graph, node: int) -> tuple[tuple[MeshPlan, ...], int, int]:
    """The plan of a row (or those that it may mean, in so many parts), and its global batch."""
    tp, pp, cp, dp = degrees_of(row, node)
    batches, global_batch = batches_of(row, dp)
    shardings = sharding_choices(row, dp, cp, is_pipelined=pp > 1)
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
        offload_optimizer=row.flag("cpu_offload") is True,
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
