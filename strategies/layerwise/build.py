"""From cost tables to the arrays that the solvers receive, and from their choices back to plans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costmodel.arrays import BoolArray, FloatArray, IntArray
from costmodel.layerwise.plan import Plan
from costmodel.layerwise.tables import CostTables, LayerCosts
from strategies.layerwise.per_layer.problem import ChoiceProblem, Edge
from strategies.layerwise.space import Restriction
from strategies.score import STEP_TIME, Score


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerChoice:
    """A per-layer problem of one worker count, and the split that every option stands for."""

    problem: ChoiceProblem
    rows: tuple[IntArray, ...]  # node -> (options,) rows of the tables' SplitTable
    tables: CostTables
    workers: int

    def plan(self, choice: IntArray) -> Plan:
        """Read a choice as a plan."""
        rows = [int(options[option]) for options, option in zip(self.rows, choice, strict=True)]
        return Plan(
            workers=self.workers,
            num_micro_batches=self.tables.num_micro_batches,
            splits=tuple(self.tables.table.split(row) for row in rows),
            collectives=tuple(self.tables.collective_at(i, row) for i, row in enumerate(rows)),
        )


def base_s(costs: LayerCosts, num_micro_batches: int, score: Score) -> FloatArray:
    """What a layer adds to the score over the devices in use, without moves and exchanges."""
    m = float(num_micro_batches)
    inner = costs.inner_forward_s + costs.inner_backward_s
    kernels = costs.forward_s + costs.backward_input_s + costs.backward_weight_s
    step_s = m * (kernels + inner) + costs.update_s
    if not score.computing_weight:
        return score.step_weight * step_s
    return score.step_weight * step_s + score.computing_weight * (m * kernels + costs.update_s)


def allowed_splits(tables: CostTables, restriction: Restriction) -> list[BoolArray]:
    """Legal and allowed splits per layer; layers that share costs and fixes share the mask."""
    masks: dict[tuple[int, str | None], BoolArray] = {}
    keys = []
    for layer, costs in zip(tables.workload.graph.layers, tables.layers, strict=True):
        key = (id(costs), layer.name if layer.name in restriction.fixed else None)
        if key not in masks:
            masks[key] = costs.legal & restriction.mask(layer, tables.table)
        keys.append(key)
    return [masks[key] for key in keys]


def choice_problem(
    tables: CostTables, capacity_bytes: float, restriction: Restriction, score: Score = STEP_TIME
) -> LayerChoice | None:
    """Build the per-layer problem of one worker count.

    Parameters
    ----------
    tables : CostTables
        Of one worker count.
    capacity_bytes : float
        Memory of a worker; the context is taken off here.
    restriction : Restriction
    score : Score
        What is minimised; the costs of the problem are its over the devices in use, since these are fixed.

    Returns
    -------
    LayerChoice or None
        None if some layer has no legal split.
    """
    rows = [np.flatnonzero(mask) for mask in allowed_splits(tables, restriction)]
    for i, layer in enumerate(tables.workload.graph.layers):
        if not len(rows[i]):
            return None
        if layer.kind == "input":
            # Every worker loads what it needs; show the input split by batch as far as there are samples.
            batch = np.where(tables.table.batch[rows[i]] <= tables.micro_batch, tables.table.batch[rows[i]], 0)
            rows[i] = rows[i][np.argmax(batch)][None]
    overlaps, weight = tables.workload.compute.overlaps_exchange, score.step_weight
    base, hide, exchange, memory, keys = [], [], [], [], []
    for costs, layer, chosen in zip(tables.layers, tables.workload.graph.layers, rows, strict=True):
        base.append(base_s(costs, tables.num_micro_batches, score)[chosen])
        backward = (costs.backward_input_s + costs.backward_weight_s)[chosen]
        hide.append(weight * backward if overlaps else np.zeros(len(chosen)))
        exchange.append(weight * costs.cheapest_exchange_s[chosen])
        memory.append((costs.static_bytes + costs.activation_bytes)[chosen])
        weighted = layer.has_weights
        keys.append(np.arange(len(chosen)) if weighted else np.zeros(len(chosen), dtype=np.int64))
    problem = ChoiceProblem(
        base_s=tuple(base),
        hide_s=tuple(hide),
        exchange_s=tuple(exchange),
        memory_bytes=tuple(memory),
        edges=tuple(_edges(tables, rows, weight)),
        memory_capacity_bytes=capacity_bytes - tables.workload.context_bytes,
        key_class=tuple(keys),
    )
    return LayerChoice(problem=problem, rows=tuple(rows), tables=tables, workers=tables.table.worker_counts[0])


def _edges(tables: CostTables, rows: list[IntArray], weight: float) -> list[Edge]:
    geometry, m = tables.geometry, weight * float(tables.num_micro_batches)
    shape = (int(geometry.layouts[0]), int(geometry.needs[0]))
    edges = []
    for edge in tables.edges:
        cost = m * (edge.forward_s + edge.backward_s).reshape(shape)
        if not cost.any():
            continue
        layouts, producer_class = np.unique(geometry.layout_of[rows[edge.producer]], return_inverse=True)
        need_of = geometry.need_of[int(edge.channelwise)]
        needs, consumer_class = np.unique(need_of[rows[edge.consumer]], return_inverse=True)
        edges.append(
            Edge(
                producer=edge.producer,
                consumer=edge.consumer,
                producer_class=producer_class.astype(np.int64),
                consumer_class=consumer_class.astype(np.int64),
                cost_s=np.ascontiguousarray(cost[np.ix_(layouts, needs)]),
            )
        )
    return edges
