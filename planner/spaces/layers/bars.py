"""Plans with a split per layer as the error model sees them: how they run their layers, and what each constant does to them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from costmodel.arrays import FloatArray
from costmodel.layerwise.evaluate import evaluate
from costmodel.layerwise.plan import Plan, split_table
from costmodel.layerwise.tables import CostCache
from costmodel.uncertainty.constants import cluster_with
from planner.uncertainty.bars import Times, workload_on


def layer_mixture(known: CostCache, plans: Sequence[Plan]) -> tuple[FloatArray, FloatArray]:
    """Ways in which plans with a split per layer run their layers, and what each takes of the time of their layers.

    A way is the degrees of a split, in doublings, with the workers, stages and micro-batches of the plan. The time of a layer is that of
    its kernels, communication inside it, update, and gradient exchange (hidden or not); layers that take no time do not count.

    Returns
    -------
    coordinates : array (ways, c)
    mixture : array (plans, ways)
        Rows sum to 1.
    """
    ways: dict[tuple[float, ...], int] = {}
    shares: list[dict[int, float]] = []
    for plan in plans:
        counts = sorted({stage.replicas for stage in plan.stages}) if plan.is_pipeline else [plan.workers]
        tables = known.tables(split_table(counts, batch_only=plan.is_pipeline), plan.num_micro_batches)
        whole = (plan.workers, max(len(plan.stages), 1), plan.num_micro_batches)
        own: dict[int, float] = {}
        for i, split in enumerate(plan.splits):
            costs, row = tables.layers[i], tables.table.row_of(split)
            each_s = (
                costs.forward_s[row]
                + costs.backward_input_s[row]
                + costs.backward_weight_s[row]
                + costs.inner_forward_s[row]
                + costs.inner_backward_s[row]
            )
            once_s = costs.update_s[row] + tables.exchange_s(i, plan.collectives[i])[row]
            way = tuple(math.log2(count) for count in (*split.degrees, *whole))
            place = ways.setdefault(way, len(ways))
            own[place] = own.get(place, 0.0) + float(plan.num_micro_batches * each_s + once_s)
        shares.append(own)
    mixture = np.array([[own.get(place, 0.0) for place in range(len(ways))] for own in shares], dtype=np.float64)
    return np.array(list(ways), dtype=np.float64), mixture / mixture.sum(axis=1, keepdims=True)


def layer_times(known: CostCache, plans: Sequence[Plan]) -> Times:
    """Step times of plans with a split per layer; what a constant does not touch is costed once."""

    def times(name: str, factor: float) -> FloatArray:
        cluster = cluster_with(known.cluster, {name: factor})
        workload = workload_on(known.workload, cluster)
        return evaluate(workload, cluster, plans, known.changed(workload, cluster)).step_time_s

    return times
