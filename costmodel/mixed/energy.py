"""Money and energy of a step over several kinds of devices, every group at its own price and power (`costmodel.hardware.energy`)."""

from __future__ import annotations

from collections.abc import Sequence

from costmodel.hardware.cluster import Cluster
from costmodel.hardware.energy import Power, money_of
from costmodel.mixed.evaluate import StageReport
from costmodel.mixed.plan import MixedPlan

__all__ = ["mixed_energy_j", "mixed_money"]


def mixed_money(cluster: Cluster, plan: MixedPlan, step_s: float) -> float | None:
    """USD of a step; None where a device in use states no price."""
    parts = [money_of(cluster.groups[g].device, step_s, plan.devices_of(g)) for g in plan.groups]
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def mixed_energy_j(cluster: Cluster, plan: MixedPlan, reports: Sequence[StageReport], step_s: float) -> float | None:
    """Joules of a step; None where a device in use states no power.

        energy = sum over groups [ devices (idle + host) step + (busy - idle) computing ]
        computing = sum over the stages of a group tp (micro-batches compute + replicas update)

    with the micro-batches of all replicas of a stage, and what is recomputed in *compute* (with its communication).

    Parameters
    ----------
    cluster : Cluster
    plan : MixedPlan
    reports : sequence of StageReport
        Of the plan's stages.
    step_s : float
    """
    total = 0.0
    for group in plan.groups:
        power = Power.of(cluster.groups[group].device, cluster.host)
        if power is None:
            return None
        computing_s = 0.0
        for report in reports:
            if report.group == group:
                pipeline = plan.pipelines[report.pipeline]
                done = pipeline.replicas * pipeline.num_micro_batches + pipeline.longer
                each_s = done * (report.compute_s + report.recompute_s) + pipeline.replicas * report.update_s
                computing_s += pipeline.stages[report.stage].tp * each_s
        devices = plan.devices_of(group)
        total += float(power.energy_j(step_s, min(computing_s / devices, step_s), devices))
    return total
