"""One mesh plan in detail: its layers and its pipeline ranks, as rows that reports can print.

The rows come from the same tables as the plan's cost: layer times add up to the compute and the tensor-parallel communication of a
micro-batch, rank memory to the memory of the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from costmodel.mesh.cores import mesh_strides
from costmodel.mesh.layout_arrays import stack_layouts
from costmodel.mesh.model import MeshModel
from costmodel.mesh.patterns import check_splits
from costmodel.mesh.plan import MeshBatch, MeshPlan
from costmodel.mesh.sharding import Division
from costmodel.mesh.shares import RowKeys
from costmodel.mesh.tables import add_layer, unit_roles
from costmodel.mesh.unit_table import UNIT_COLUMNS

__all__ = ["LayerRow", "StageRow", "layer_rows", "stage_rows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """One layer of one kind of unit, on one rank, for one micro-batch."""

    unit: str  # "front", "back", or the first block of its kind
    count: int  # units of this kind in the network
    name: str
    kind: str
    split: str  # how tensor parallelism splits it
    degree: int = 1  # over so many ranks; those beyond repeat it
    forward_s: float
    backward_s: float
    tp_exchange_s: float  # both passes
    weight_count: int  # of the whole layer
    weights_per_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One pipeline rank; times of one micro-batch."""

    rank: int
    blocks: str  # per chunk: "8" or "4+4"
    forward_s: float  # communication inside the layers included
    backward_s: float
    recompute_s: float
    transfer_s: float
    memory_bytes: float
    weight_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    activation_bytes: float


def layer_rows(model: MeshModel, plan: MeshPlan) -> list[LayerRow]:
    """Every layer of every kind of unit.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan

    Returns
    -------
    list of LayerRow
        In network order; equal units once.
    """
    batch = MeshBatch.from_plans([plan])
    keys = RowKeys(**{item.name: getattr(batch, item.name) for item in fields(RowKeys)})
    graph, needs = model.workload.graph, model.workload.needs_gradient()
    check_splits(graph, model.units, plan)
    rows = []
    for number, kind in enumerate(model.units.kinds):
        for position, role in enumerate(unit_roles(graph, kind, keys, plan.block_splits)):
            layer = graph.layers[kind.layers[position]]
            total = {name: np.zeros(1) for name in UNIT_COLUMNS}
            add_layer(total, model.workload, model.groups, kind, position, role, keys, needs)
            one = {name: float(value[0]) for name, value in total.items()}
            rows.append(
                LayerRow(
                    unit=kind.name,
                    count=model.units.kind_of.count(number),
                    name=layer.name.removeprefix(f"{layer.block}."),
                    kind=layer.kind,
                    split=role.role,
                    degree=plan.tp if role.is_split and not role.degree else max(role.degree, 1),
                    forward_s=one["forward_s"],
                    backward_s=one["backward_s"],
                    tp_exchange_s=one["tp_forward_s"] + one["tp_backward_s"],
                    weight_count=layer.weight_count + layer.norm_count,
                    weights_per_rank=round(one["dense_count"] + one["expert_count"]),
                )
            )
    return rows


def stage_rows(model: MeshModel, plan: MeshPlan) -> list[StageRow]:
    """Every pipeline rank.

    Parameters
    ----------
    model : MeshModel
    plan : MeshPlan

    Returns
    -------
    list of StageRow

    Raises
    ------
    MeshError
        ``stage_blocks`` or ``stage_recompute`` does not fit the network.
    """
    layout = model.layout_of_plan(plan, every_rank=True)
    layouts = stack_layouts([layout])
    batch = MeshBatch.from_plans([plan])
    cores = model.cores(batch, layouts)
    parts = cores.rank_parts()
    division = Division.of(batch, mesh_strides(batch))
    memory = model.core_memory(batch, layouts).divided(np.zeros(1, dtype=np.int64), division)
    total = memory.total_bytes[0]
    rows = []
    for place in np.argsort(layout.rank_first).tolist():
        rank = int(layout.rank_first[place])
        rows.append(
            StageRow(
                rank=rank,
                blocks="+".join(str(n) for n in layout.blocks[rank :: plan.pp]),
                forward_s=float(cores.rank_forward_s[0, place]),
                backward_s=float(cores.rank_backward_s[0, place]),
                recompute_s=float(parts["recompute_s"][0, place]),
                transfer_s=float(parts["transfer_s"][0, place]),
                memory_bytes=float(total[place]),
                **{
                    name: float(memory.parts[name][0, place])
                    for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes")
                },
            )
        )
    return rows
