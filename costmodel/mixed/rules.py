"""Which mixed plans a network and a cluster can run."""

from __future__ import annotations

from costmodel.mesh.plan import RECOMPUTE
from costmodel.mixed.model import MixedModel
from costmodel.mixed.plan import MIXED_ORDERS, MixedPipeline, MixedPlan, group_names

__all__ = ["broken_mixed_rules"]


def broken_mixed_rules(model: MixedModel, plan: MixedPlan) -> list[str]:
    """Messages of the rules that a plan breaks; empty for a legal plan."""
    names, shape, messages = group_names(model.cluster), model.shape, []
    if not plan.pipelines or any(not pipeline.stages for pipeline in plan.pipelines):
        return ["a plan needs at least one pipeline, and every pipeline a stage"]
    unknown = [g for g in plan.groups if not 0 <= g < len(names)]
    if unknown:
        known = ", ".join(f"{i} ({name})" for i, name in enumerate(names))
        return [f"there is no group {unknown[0]}; cluster '{model.cluster.name}' has {known}"]
    for group in plan.groups:
        available = model.cluster.groups[group].num_devices or 0
        if plan.devices_of(group) > available:
            messages.append(
                f"the plan uses {plan.devices_of(group)} devices of group '{names[group]}', which has {available}"
            )
    if plan.order not in MIXED_ORDERS or plan.zero_stage not in (0, 1):
        messages.append(
            f"order {plan.order} and zero stage {plan.zero_stage}: expected one of {', '.join(MIXED_ORDERS)}, and 0 or 1"
        )
    if plan.global_batch != shape.global_batch:
        messages.append(
            f"the shares of the pipelines add up to {plan.global_batch} samples, not the global batch {shape.global_batch}"
        )
    for p, pipeline in enumerate(plan.pipelines):
        messages += [f"pipeline {p}: {text}" for text in _pipeline_faults(pipeline, shape.num_blocks)]
    for tp in sorted({stage.tp for pipeline in plan.pipelines for stage in pipeline.stages}):
        messages += model.degree_faults(tp, sequence_parallel=plan.sequence_parallel)
    return messages


def _pipeline_faults(pipeline: MixedPipeline, num_blocks: int) -> list[str]:
    total = sum(stage.blocks for stage in pipeline.stages)
    faults = []
    if total != num_blocks or min(stage.blocks for stage in pipeline.stages) < 1:
        faults.append(
            f"its stages hold {total} blocks, the network has {num_blocks}, and every stage needs at least one"
        )
    if (
        min(pipeline.replicas, pipeline.micro_batch, pipeline.num_micro_batches) < 1
        or not 0 <= pipeline.longer < pipeline.replicas
    ):
        faults.append(
            "replicas, micro_batch and num_micro_batches start at 1, longer is at least 0 and less than replicas"
        )
    for stage in pipeline.stages:
        if stage.recompute not in RECOMPUTE:
            faults.append(f"recompute '{stage.recompute}' is none of {', '.join(RECOMPUTE)}")
        elif not (
            1 <= stage.recompute_blocks <= stage.blocks if stage.recompute == "full" else stage.recompute_blocks == 0
        ):
            faults.append(
                f"recompute_blocks {stage.recompute_blocks} with recompute {stage.recompute} on a stage of {stage.blocks} blocks"
            )
    return faults
