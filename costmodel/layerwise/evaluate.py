"""The only judge: one pure function that scores a batch of plans. A single plan is a batch of length one.

Step time of a plan without stages, all terms in seconds, m micro-batches:

    step = m (forward + backward + resharding) + update + exposed exchange

The exposed exchange is what the gradient exchanges, carried one after the other by a serial channel, leave after the backward pass
(reverse order of the layers; only backward compute of the last micro-batch hides them, since resharding uses the same links):

    lag = 0;  for layers from last to first:  lag = max(lag - hide, 0) + exchange

``max(lag - hide, 0) + exchange = max(lag + (exchange - hide), exchange)`` is closed under composition, so a run of layers with the
same choice folds into one pair (p, q) with ``lag -> max(lag + p, q)``: that is how uniform plans are scored by the million.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, overload

import numpy as np

from costmodel.arrays import FloatArray, IntArray
from costmodel.hardware.cluster import Cluster
from costmodel.layerwise.batches import CHEAPEST, CostBatch, PlanBatch, concatenate
from costmodel.layerwise.cache import KnownCosts
from costmodel.layerwise.folding import fold
from costmodel.layerwise.pipeline import evaluate_pipelines
from costmodel.layerwise.plan import Plan
from costmodel.layerwise.splits import split_table
from costmodel.layerwise.tables import CostTables
from costmodel.workload import Workload

if TYPE_CHECKING:
    from costmodel.mesh.costs import MeshCosts
    from costmodel.mesh.plan import MeshPlan

__all__ = ["CHEAPEST", "CostBatch", "PlanBatch", "batch_of", "concatenate", "evaluate", "evaluate_on"]


@overload
def evaluate(
    workload: Workload, cluster: Cluster, plans: Sequence[Plan], known: KnownCosts | None = None
) -> CostBatch: ...
@overload
def evaluate(workload: Workload, cluster: Cluster, plans: Sequence[MeshPlan]) -> MeshCosts: ...
def evaluate(
    workload: Workload, cluster: Cluster, plans: Sequence[Plan] | Sequence[MeshPlan], known: KnownCosts | None = None
) -> CostBatch | MeshCosts:
    """Score plans: layer by layer, pipelines, or over a device mesh.

    Parameters
    ----------
    workload : Workload
    cluster : Cluster
    plans : sequence of Plan, or of MeshPlan
    known : KnownCosts, optional
        What is known of the costs of layers of this workload on this cluster: a memory, which changes no answer.

    Returns
    -------
    CostBatch, or MeshCosts for mesh plans
        In the order given.

    Raises
    ------
    MeshError
        Mesh plans for a network without repeated blocks, or with stages that do not fit it.
    """
    split = [plan for plan in plans if isinstance(plan, Plan)]
    if len(split) < len(plans):
        from costmodel.mesh.model import MeshModel  # a fifth of the time to start that other networks need not wait for

        meshed = [plan for plan in plans if not isinstance(plan, Plan)]
        assert not split, "plans of one kind"
        return MeshModel.build(workload, cluster).evaluate_plans(meshed)
    assert known is None or (known.workload is workload and known.cluster is cluster), "costs of another question"
    known = KnownCosts(workload, cluster) if known is None else known
    return _evaluate_layers(known, split)


def _evaluate_layers(known: KnownCosts, plans: Sequence[Plan]) -> CostBatch:
    parts: list[tuple[int, CostBatch]] = []
    groups: dict[tuple[int, bool], list[int]] = {}
    for n, plan in enumerate(plans):
        groups.setdefault((plan.num_micro_batches, plan.is_pipeline), []).append(n)
    for (num_micro_batches, is_pipeline), members in groups.items():
        chosen = [plans[n] for n in members]
        if is_pipeline:
            counts = sorted({stage.replicas for plan in chosen for stage in plan.stages})
            tables = known.tables(split_table(counts, batch_only=True), num_micro_batches)
            batch = CostBatch(**evaluate_pipelines(tables, chosen))
        else:
            counts = sorted({plan.workers for plan in chosen})
            tables = known.tables(split_table(counts), num_micro_batches)
            batch = evaluate_on(tables, batch_of(tables, chosen))
        parts += [(n, _take(batch, [k])) for k, n in enumerate(members)]
    return concatenate([part for _, part in sorted(parts, key=lambda pair: pair[0])])


def batch_of(tables: CostTables, plans: Sequence[Plan]) -> PlanBatch:
    """Index plans without stages into the tables, one column per layer."""
    names = tables.workload.collectives
    row = np.array([[tables.table.row_of(split) for split in plan.splits] for plan in plans], dtype=np.int64)
    collective = np.array(
        [[CHEAPEST if name is None else names.index(name) for name in plan.collectives] for plan in plans],
        dtype=np.int64,
    )
    layers = len(tables.workload.graph.layers)
    return PlanBatch(
        row=row.reshape(-1, layers), collective=collective.reshape(-1, layers), column_of_layer=tuple(range(layers))
    )


def evaluate_on(tables: CostTables, plans: PlanBatch) -> CostBatch:
    """Score plans against tables that are already built.

    Parameters
    ----------
    tables : CostTables
    plans : PlanBatch
        Rows must belong to one worker count per plan.

    Returns
    -------
    CostBatch
    """
    if plans.column_of_layer == tuple(range(len(tables.workload.graph.layers))):
        return _score_layers(tables, plans)
    return fold(tables, plans.column_of_layer).score(plans)


def _score_layers(tables: CostTables, plans: PlanBatch) -> CostBatch:
    """Gather and add for plans with a split of its own for every layer, where nothing can be folded but equal layers."""
    stack, row = tables.stack, plans.row
    m, n, kind = float(tables.num_micro_batches), len(plans), stack.kind
    backward_s, exchange_s = stack.backward_s[kind, row], stack.exchange_s[kind, plans.collective, row]
    reshard = _in_order(m * stack.inner_s[kind, row])
    for edge, pair in zip(tables.edges, _pairs(tables, row).T, strict=True):
        reshard = reshard + m * (edge.forward_s[pair] + edge.backward_s[pair])
    hide = backward_s if tables.workload.compute.overlaps_exchange else np.zeros_like(backward_s)
    lag = np.zeros(n)
    for i in reversed(range(row.shape[1])):
        lag = np.maximum(lag + (exchange_s[:, i] - hide[:, i]), exchange_s[:, i])
    forward, backward = _in_order(m * stack.forward_s[kind, row]), _in_order(m * backward_s)
    update = _in_order(stack.update_s[kind, row])
    step = forward + backward + update + reshard + lag
    return CostBatch(
        step_time_s=np.where(stack.legal[kind, row].all(axis=1), step, np.inf),
        forward_s=forward,
        backward_s=backward,
        update_s=update,
        reshard_s=reshard,
        exchange_s=_in_order(exchange_s),
        exposed_exchange_s=lag,
        bubble_s=np.zeros(n),
        memory_bytes=_in_order(stack.memory_bytes[kind, row]) + tables.workload.context_bytes,
        computing_s=forward + backward + update,
    )


def _pairs(tables: CostTables, row: IntArray) -> IntArray:
    """Pair of layouts of every plan at every edge, (plans, edges)."""
    geometry, edges = tables.geometry, tables.edges
    layout = geometry.layout_of[row[:, [edge.producer for edge in edges]]]
    consumer = row[:, [edge.consumer for edge in edges]]
    ordinary, channelwise = (kind[consumer] for kind in geometry.need_of)
    need = np.where([edge.channelwise for edge in edges], channelwise, ordinary)
    return geometry.pair(tables.table.count_of(row[:, :1]), layout, need)


def _in_order(terms: FloatArray) -> FloatArray:
    """Sum over the layers one after the other, as the folded tables do, so that both round alike."""
    return np.asarray(np.cumsum(terms, axis=1)[:, -1])


def _take(batch: CostBatch, index: Sequence[int]) -> CostBatch:
    values: Mapping[str, FloatArray] = {name: getattr(batch, name)[index] for name in CostBatch.__dataclass_fields__}
    return CostBatch(**values)
