"""What can be done with one layer of a unit on tp ranks, and what each option costs: every figure is the judge's.

Shapes: o options of a layer. Collectives between layers are not in these costs (`strategies.mesh.block_program`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.mesh.activations import add_saved_layer, saved_facts
from costmodel.mesh.communication import GroupTimes, add_moves
from costmodel.mesh.data_parallel import CopyTimes, copy_groups
from costmodel.mesh.model import MeshModel
from costmodel.mesh.modules import UnitKind, flow_of
from costmodel.mesh.pipelines import mesh_strides
from costmodel.mesh.plan import LayerSplit, MeshBatch, MeshPlan
from costmodel.mesh.rows import UNIT_COLUMNS, RowKeys
from costmodel.mesh.step import gradient_passes_s, gradient_width
from costmodel.mesh.tables import add_layer
from costmodel.mesh.tensor_parallel import LayerRole, Move, roles_of, split_options

__all__ = ["LayerCosts", "UnitPrices", "layer_costs"]

Total = dict[str, FloatArray]

# Layers that are not split over the tensor-parallel ranks: experts have groups of their own, an input lies on the device anyway.
_FOREIGN = frozenset({"moe", "input"})
# A message whose latency is nothing, for the time of a byte.
_LARGE_BYTES = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPrices:
    """What a unit of a plan is charged for.

    Attributes
    ----------
    model : MeshModel
    plan : MeshPlan
    kind : UnitKind
    keys : RowKeys
        Of the plan, one row.
    needs : sequence of bool
        Layer -> whether a gradient flows through its output.
    copies : CopyTimes
        Data parallelism of the plan.
    passes : float
        How often the passes of a unit are waited for in a step: micro-batches, and the filling of the pipeline.
    recomputed : float
        Share of the blocks that is recomputed in full, on the first rank of the pipeline.
    alive : float
        Micro-batches whose activations it keeps.
    """

    model: MeshModel
    plan: MeshPlan
    kind: UnitKind
    keys: RowKeys
    needs: Sequence[bool]
    copies: CopyTimes
    passes: float
    recomputed: float
    alive: float

    @classmethod
    def of(cls, model: MeshModel, plan: MeshPlan, kind: UnitKind) -> UnitPrices:
        """Prices of a unit in a plan; `for_kind` gives those of the others."""
        batch = MeshBatch.from_plans([replace(plan, block_splits=())])
        memory = model.core_memory(batch)
        first = int(np.argmin(np.abs(model.layouts(batch).rank_first[0])))
        copies = copy_groups(batch, mesh_strides(batch))
        return cls(
            model=model,
            plan=plan,
            kind=kind,
            keys=RowKeys(**{item.name: getattr(batch, item.name) for item in fields(RowKeys)}),
            needs=model.workload.needs_gradient(),
            copies=CopyTimes.of(model.groups, copies, has_experts=False),
            passes=plan.num_micro_batches + (plan.pp - 1.0) / plan.vpp,
            recomputed=float(memory.share[0, first]),
            alive=float(memory.alive[0, first]),
        )

    def for_kind(self, kind: UnitKind) -> UnitPrices:
        """Prices of another unit of the plan."""
        return replace(self, kind=kind)

    @property
    def groups(self) -> GroupTimes:
        """Collectives of the judge."""
        return self.model.groups

    @property
    def again(self) -> float:
        """Share of the units that is recomputed in full."""
        return self.recomputed if self.kind.is_block else 0.0

    @property
    def is_selective(self) -> bool:
        """Whether the unit is recomputed selectively."""
        return self.kind.is_block and self.plan.recompute == "selective"

    def pass_s(self, total: Total) -> tuple[FloatArray, FloatArray]:
        """Time of the passes over a step, by the device and by its host, which starts kernels and collectives."""
        assumed = self.model.assumptions
        shown = 1.0 - assumed.tp_overlap
        forward = total["forward_s"] + shown * total["tp_forward_s"]
        device = (1.0 + self.again) * forward + total["backward_s"] + shown * total["tp_backward_s"]
        if self.is_selective:
            device = device + total["selective_s"]
        bare = assumed.bare_launch * (total["backward_launches"] + total["weight_launches"])
        started = (1.0 + self.again) * total["forward_launches"] + bare
        collectives = (1.0 + self.again) * total["tp_forward_starts"] + total["tp_backward_starts"]
        host = assumed.host_launch_s * started + assumed.host_collective_s * collectives
        return self.passes * device, self.passes * host

    def once_s(self, total: Total) -> FloatArray:
        """Time of the update, and of adding up what tensor-parallel ranks find for a matrix that they all hold.

        Of both by what a weight adds: what starting takes is waited for once, whatever the layers.
        """
        workload, plan = self.model.workload, self.plan
        trained = total["dense_trainable"]
        if not workload.training:
            return np.zeros_like(trained)
        shared = plan.dp_shard * plan.cp if plan.zero_stage else 1
        some = trained / shared
        passed = trained if self.model.assumptions.zero_whole else some
        update = workload.compute.update_s(2.0 * some) - workload.compute.update_s(some)
        update = update + gradient_passes_s(workload, self.groups, passed)
        ranks = self.groups.find(np.array([plan.tp]), np.ones(1, dtype=np.int64))
        once, twice = self.groups.time_s("all_reduce", ranks, _LARGE_BYTES * np.array([[1.0, 2.0]]))[0]
        message = total["apart_trainable"] * gradient_width(workload, self.groups)
        return np.asarray(update + message * (twice - once) / _LARGE_BYTES)

    def exchange_s(self, total: Total) -> FloatArray:
        """What data parallelism exchanges once per step, nothing of it hidden."""
        workload, copies = self.model.workload, self.copies
        if not workload.training:
            return np.zeros_like(total["dense_count"])
        gradients = (total["dense_trainable"] * gradient_width(workload, self.groups))[None]
        weights = (total["dense_count"] * workload.precision.weight_bytes)[None]
        none = np.zeros_like(gradients)
        exchanged = copies.replicate_s(gradients, none)
        if self.plan.zero_stage:
            exchanged = exchanged + copies.reduce_s(gradients, none) + copies.gather_s(weights, none)
        return np.asarray(exchanged[0])

    def memory_bytes(self, total: Total) -> FloatArray:
        """Weights with their state, and activations of a unit."""
        workload, plan = self.model.workload, self.plan
        precision, shared = workload.precision, plan.dp_shard * plan.cp if plan.zero_stage else 1
        share = [1.0 / shared if plan.zero_stage >= stage else 1.0 for stage in (1, 2, 3)]
        size = precision.weight_bytes * share[2] * total["dense_count"]
        if not workload.training:
            return np.asarray(size)
        state = 0 if plan.offload_optimizer else workload.optimizer.state_bytes + precision.master_bytes
        per_weight = gradient_width(workload, self.groups) * share[1] + state * share[0]
        kept = total["saved_selective_bytes" if self.is_selective else "saved_bytes"]
        away = self.kind.is_block and plan.offload_activations
        activations = 0.0 if away else self.alive * (1.0 - self.again)
        return np.asarray(size + per_weight * total["dense_trainable"] + activations * kept)

    def moved(self, position: int, moves: Sequence[Move]) -> tuple[float, float]:
        """Time over a step of collectives at a layer, by the device and by its host."""
        total = _empty(1)
        graph = self.model.workload.graph
        flow = flow_of(self.model.workload, self.kind, position, self.needs)
        layer = graph.layers[self.kind.layers[position]]
        add_moves(total, self.model.workload, self.groups, layer, moves, self.keys, flow)
        device, host = self.pass_s(total)
        return float(device[0]), float(host[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """Options of a layer and their costs; arrays (o,), seconds over a step and bytes of a rank."""

    options: tuple[
        LayerSplit, ...
    ]  # the standard one first; none for a layer that has no splits, whose costs have one entry
    device_s: FloatArray
    host_s: FloatArray
    once_s: FloatArray
    exchange_s: FloatArray
    memory_bytes: FloatArray

    @property
    def spared_bytes(self) -> float:
        """The most memory that an option has less than the standard one."""
        return float(self.memory_bytes[0] - self.memory_bytes.min())


def _empty(rows: int) -> Total:
    """Rows of the unit table, nothing in them."""
    return {name: np.zeros(rows) for name in UNIT_COLUMNS}


def layer_costs(prices: UnitPrices, position: int, *, splits_weights: bool = False) -> LayerCosts:
    """Cost the options of one layer of a unit; with ``splits_weights``, no matrix is whole that the standard splits."""
    graph, kind = prices.model.workload.graph, prices.kind
    usual = roles_of(graph, kind)[position]
    if graph.layers[kind.layers[position]].kind in _FOREIGN:
        return _filled((), [_figures(prices, position, usual, prices.keys)])
    options = split_options(graph, kind, position, prices.plan.tp)
    if splits_weights and usual.role in ("column", "row"):
        options = tuple(option for option in options if option.role != "whole")
    rows: list[list[FloatArray]] = []
    place: dict[LayerSplit, int] = {}
    for role in dict.fromkeys(option.role for option in options):
        some = [option for option in options if option.role == role]
        keys, degree = prices.keys, 0
        if role in ("whole", "repeated"):
            degree = 0 if usual.role == "whole" else 1
        else:  # one row per degree: a layer that is split over so many ranks is alike in all larger groups
            degrees = np.array([option.degree for option in some], dtype=np.int64)
            keys = RowKeys(
                **{item.name: np.repeat(getattr(prices.keys, item.name), len(some)) for item in fields(RowKeys)}
            )
            keys = replace(keys, tp=degrees)
        place |= {option: sum(len(r[0]) for r in rows) + n for n, option in enumerate(some)}
        rows.append(_figures(prices, position, LayerRole(role=role, degree=degree, moves=()), keys))  # type: ignore[arg-type]
    found = _filled(options, rows)
    order = np.array([place[option] for option in options], dtype=np.int64)
    return LayerCosts(
        options=options,
        **{item.name: getattr(found, item.name)[order] for item in fields(LayerCosts) if item.name != "options"},
    )


def _filled(options: tuple[LayerSplit, ...], rows: list[list[FloatArray]]) -> LayerCosts:
    device, host, once, exchange, memory = (np.concatenate(column) for column in zip(*rows, strict=True))
    return LayerCosts(
        options=options, device_s=device, host_s=host, once_s=once, exchange_s=exchange, memory_bytes=memory
    )


def _figures(prices: UnitPrices, position: int, role: LayerRole, keys: RowKeys) -> list[FloatArray]:
    """Device, host, once, exchange, memory of one role in every row."""
    total = _empty(len(keys))
    model, kind = prices.model, prices.kind
    add_layer(total, model.workload, prices.groups, kind, position, role, keys, prices.needs)
    facts = saved_facts(model.workload.graph, kind, prices.needs)[position]
    add_saved_layer(total, model.workload, model.assumptions, kind, keys, position, role, facts)
    return [*prices.pass_s(total), prices.once_s(total), prices.exchange_s(total), prices.memory_bytes(total)]
