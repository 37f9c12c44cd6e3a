"""Which constant would have to change, and by how much, for another plan to be the best."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from costmodel.hardware.cluster import Cluster
from costmodel.kernels.roofline import RooflineCompute
from costmodel.mesh.assumptions import MeshAssumptions
from costmodel.uncertainty.constants import CONSTANTS, stated_values
from costmodel.uncertainty.rankings import overtaking
from planner.core.answer import RankedPlan, Sensitivity
from planner.question.choose import is_transformer
from planner.uncertainty.bars import Knowledge, Times, constants_of, knowledge_of, score_weights

if TYPE_CHECKING:
    from planner.question.resolve import Resolved

# Factors tried, from 1 outwards: up to 8 times more or less.
FACTORS: tuple[float, ...] = tuple(
    sign_factor for step in (1.05, 1.1, 1.2, 1.35, 1.6, 2.0, 2.8, 4.0, 8.0) for sign_factor in (1 / step, step)
)
_WITHIN = 5e-3
# Plans of the search among which another winner is looked for.
SENSITIVITY_PLANS = 10


def plan_sensitivity(
    resolved: Resolved, plans: Sequence[RankedPlan], times: Times, constants: MeshAssumptions | None = None
) -> tuple[Sensitivity, ...] | None:
    """Sensitivity of a ranking; None for a cost model without constants.

    Parameters
    ----------
    resolved : Resolved
    plans : sequence of RankedPlan
        In any order: what would have to change for another than the best of them to win.
    times : function
        Their step times with one constant changed.
    constants : MeshAssumptions, optional
        Of plans over a mesh.
    """
    workload, cluster = resolved.workload, resolved.cluster
    if not isinstance(workload.compute, RooflineCompute):
        return None
    weight, order = score_weights(plans), np.argsort([plan.score for plan in plans], kind="stable")
    launch_s = None if constants is None else constants.host_launch_s
    names = constants_of(workload, cluster, max(plan.workers for plan in plans), launch_s)
    of_transformers = constants is not None or is_transformer(workload.graph)
    return sensitivity_of(
        lambda name, factor: (times(name, factor) * weight)[order],
        knowledge_of(resolved.request, is_transformer=of_transformers, names=names),
        {plans[n].rank: plans[n].summary for n in order},
        cluster,
        constants or resolved.mesh_assumptions,
        {workload.precision.plain.name, workload.precision.compute},
    )


def sensitivity_of(
    times: Times,
    knowledge: Knowledge,
    summaries: Mapping[int, str],
    cluster: Cluster,
    assumptions: MeshAssumptions,
    formats: Collection[str] | None = None,
) -> tuple[Sensitivity, ...]:
    """Every constant, those of which the smallest change is needed (in standard deviations) first.

    ``summaries``: plans by their rank, in the order of ``times``; the first is the best now.
    """
    rows, ranks = [], list(summaries)
    for name, log_sd in knowledge.log_sd.items():
        found = overtaking(partial(times, name), FACTORS, within=_WITHIN) if len(summaries) > 1 else None
        factor = None if found is None else found.factor
        rows.append(
            Sensitivity(
                constant=name,
                meaning=CONSTANTS[name].meaning,
                now=tuple(stated_values(name, cluster, assumptions, formats).items()),
                factor=factor,
                winner=None if found is None else ranks[found.winner],
                winner_summary="" if found is None else summaries[ranks[found.winner]],
                log_sd=log_sd,
                standard_deviations=None if factor is None or log_sd <= 0 else abs(math.log(factor)) / log_sd,
            )
        )

    def needed(row: Sensitivity) -> tuple[float, float]:
        change = math.inf if row.factor is None else abs(math.log(row.factor))
        return (math.inf if row.standard_deviations is None else row.standard_deviations, change)

    return tuple(sorted(rows, key=needed))
