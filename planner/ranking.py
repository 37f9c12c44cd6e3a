"""Plans with a split per layer as they are shown: judged, described, compared with one worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from costmodel.hardware.energy import Power, money_of
from costmodel.kernels.roofline import RooflineCompute
from costmodel.layerwise.evaluate import CostBatch, evaluate
from costmodel.layerwise.plan import Plan, family_of_plan
from costmodel.layerwise.splits import Split, divisors
from costmodel.layerwise.tables import CostCache
from planner.core.results import RankedPlan
from planner.resolve import Resolved
from planner.wording import plan_in_words
from strategies.layerwise.score import Score, score_of

__all__ = ["layer_score", "rank"]


def layer_score(resolved: Resolved) -> Score:
    """What the question asks to minimise, of plans with a split per layer."""
    objective = resolved.request.objective or "step_time"
    return score_of(objective, Power.of(resolved.cluster.device, resolved.cluster.host))


def rank(
    resolved: Resolved, plans: Sequence[Plan], best: float | None = None, known: CostCache | None = None
) -> list[RankedPlan]:
    """Judge plans and describe them; the order is kept.

    Parameters
    ----------
    resolved : Resolved
    plans : sequence of Plan
    best : float, optional
        Score that the gaps are measured against; that of the first plan where left out.
    known : CostCache, optional
        What is known of the costs of layers.
    """
    known = CostCache(resolved.workload, resolved.cluster) if known is None else known
    costs = evaluate(resolved.workload, resolved.cluster, plans, known)
    single = _one_worker_s(resolved, known)
    scores = layer_score(resolved).of(costs.step_time_s, costs.computing_s, [plan.workers for plan in plans])
    best = float(scores[0]) if best is None else best
    compute_bound = _compute_bound(known, plans, costs)
    return [
        _ranked(
            resolved,
            plan,
            costs,
            n,
            gap=float(scores[n]) / best - 1.0,
            single_s=single,
            compute_bound=compute_bound[n],
        )
        for n, plan in enumerate(plans)
    ]


def _ranked(
    resolved: Resolved,
    plan: Plan,
    costs: CostBatch,
    n: int,
    *,
    gap: float,
    single_s: float | None,
    compute_bound: bool,
) -> RankedPlan:
    graph = resolved.workload.graph
    step = float(costs.step_time_s[n])
    speedup = None if single_s is None else single_s / step
    power = Power.of(resolved.cluster.device, resolved.cluster.host)
    computing = min(float(costs.computing_s[n]), step)
    terms = {
        "compute" if compute_bound else "memory bandwidth": float(costs.compute_s[n]),
        "optimizer": float(costs.update_s[n]),
        "resharding": float(costs.reshard_s[n]),
        "gradient exchange": float(costs.exposed_exchange_s[n]),
        "pipeline bubble": float(costs.bubble_s[n]),
    }
    return RankedPlan(
        rank=n + 1,
        plan=plan,
        family=family_of_plan(graph, plan),
        summary=plan_in_words(graph, plan),
        workers=plan.workers,
        step_time_s=step,
        throughput_samples_per_s=resolved.workload.global_batch / step,
        speedup=speedup,
        efficiency=None if speedup is None else speedup / plan.workers,
        memory_bytes_per_gpu=float(costs.memory_bytes[n]),
        memory_capacity_bytes=resolved.setting.memory_capacity_bytes,
        compute_s=float(costs.compute_s[n]),
        update_s=float(costs.update_s[n]),
        reshard_s=float(costs.reshard_s[n]),
        exposed_exchange_s=float(costs.exposed_exchange_s[n]),
        bubble_s=float(costs.bubble_s[n]),
        exchange_s=float(costs.exchange_s[n]),
        exposed_communication_s=float(costs.exposed_communication_s[n]),
        bottleneck=max(terms, key=lambda name: terms[name]),
        gap=gap,
        money_per_step=money_of(resolved.cluster.device, step, plan.workers),
        energy_per_step_j=None if power is None else float(power.energy_j(step, computing, plan.workers)),
    )


def _one_worker_s(resolved: Resolved, known: CostCache) -> float | None:
    """Step of one worker at the same global batch, with as few micro-batches as fit; None if none fits."""
    layers = len(resolved.workload.graph.layers)
    plans = [
        Plan(workers=1, num_micro_batches=m, splits=(Split(),) * layers, collectives=(None,) * layers)
        for m in divisors(resolved.workload.global_batch)
    ]
    best: float | None = None
    for plan in plans:
        cost = evaluate(resolved.workload, resolved.cluster, [plan], known)
        if cost.memory_bytes[0] <= resolved.setting.memory_capacity_bytes:
            best = float(cost.step_time_s[0])
            break  # more micro-batches take no less time
    return best


def _compute_bound(known: CostCache, plans: Sequence[Plan], costs: CostBatch) -> list[bool]:
    """Whether doubling the arithmetic rate would take at least a fifth off the compute time."""
    compute = known.workload.compute
    if not isinstance(compute, RooflineCompute):
        return [True] * len(plans)
    device = compute.device
    faster = dataclasses.replace(
        device, peak_flop_per_s={name: 2.0 * rate for name, rate in device.peak_flop_per_s.items()}
    )
    workload = dataclasses.replace(known.workload, compute=dataclasses.replace(compute, device=faster))
    again = evaluate(workload, known.cluster, plans, known.changed(workload, known.cluster))
    return [bool(saved) for saved in again.compute_s <= 0.8 * costs.compute_s]
