"""What a target cannot run or express: the rules of its framework (`configs/frameworks/`), which the search obeys, too."""

from __future__ import annotations

from costmodel.mesh.framework_rules import FACTS, Facts, PlanFacts, broken
from costmodel.mesh.plan import MeshPlan
from planner.exporters import Exporter
from planner.exporters.job import Job, LayerJob, ServingJob
from planner.files.loading import load_framework


def broken_rules(exporter: Exporter, job: Job, version: str) -> tuple[list[str], dict[str, str]]:
    """Rules that a job breaks.

    Parameters
    ----------
    exporter : Exporter
    job : Job
    version : str
        Of the target.

    Returns
    -------
    refused : list of str
        Combinations that it does not start with.
    instead : dict
        Setting that it cannot express -> why, and what is written in its place.
    """
    # What takes any cut of the stages need not know its own.
    has_own_stages = getattr(exporter, "has_own_stages", lambda job: bool(job.plan.stage_blocks))
    facts = PlanFacts(
        plan=job.plan,
        facts=job.known_facts,
        blocks=job.blocks,
        has_own_stages=has_own_stages(job),
        devices_of_node=job.nodes.capacity,
    )
    refused: list[str] = []
    instead: dict[str, str] = {}
    for refusal, values in broken(load_framework(exporter.FRAMEWORK).framework.rules.of(version), facts):
        if refusal.instead:
            # Numbers of recomputed blocks are the plan's, or its stages'.
            own = refusal.subject == "recompute_blocks" and job.plan.stage_recompute
            instead["stage_recompute" if own else refusal.subject] = f"{refusal.why}; {refusal.instead}"
        else:
            refused.append(refusal.sentence(values))
    return refused, instead


def refusals_of(exporter: Exporter, job: Job, version: str) -> list[str]:
    """Combinations that a target refuses, by the rules of its framework and by what only the exporter knows.

    >>> from costmodel.mesh.plan import MeshPlan
    >>> from planner.exporters import exporter_of
    >>> from planner.exporters.job import Nodes, Origin
    >>> origin = Origin(model="m", cluster="c", device="d", summary="", prediction=(), planner_version="", plan_name="")
    >>> job = Job(plan=MeshPlan(vpp=2, pp=2), origin=origin, nodes=Nodes(workers=2, capacity=8), blocks=(4,) * 4, network=None, seq=None,
    ...     precision="bf16", optimizer="adam")
    >>> refusals_of(exporter_of("deepspeed"), job, "0.19")
    ["vpp 2: DeepSpeed's pipelines have no virtual stages"]
    """
    return [*broken_rules(exporter, job, version)[0], *own_refusals(exporter, job, version)]


def own_refusals(exporter: Exporter, job: Job | LayerJob | ServingJob, version: str) -> list[str]:
    """What a target refuses beside the rules of its framework; most refuse nothing else."""
    refuses = getattr(exporter, "refusals", None)
    return [] if refuses is None else list(refuses(job, version))


def refused_by(framework: str, plan: MeshPlan) -> list[str]:
    """Combinations that a framework does not start with, where nothing is known but the plan.

    >>> refused_by("deepspeed", MeshPlan(pp=4, dp_shard=2, zero_stage=2))
    ["pp 4 with zero_stage 2: DeepSpeed's pipelines support ZeRO-1 at most"]
    """
    unknown = Facts(values={**dict.fromkeys(FACTS, ""), "experts": plan.ep > 1, "adapters": False})
    rules = [rule for rule in load_framework(framework).framework.rules.of() if not rule.instead]
    return [rule.sentence(values) for rule, values in broken(rules, PlanFacts(plan=plan, facts=unknown, blocks=()))]
