"""A plan over several groups of devices as it stands in a plan file and in results: `costmodel.mixed.plan.MixedPlan`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.schema.common import FileModel

__all__ = ["MixedEntry", "MixedPipelineEntry", "MixedStageEntry"]

Degree = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Blocks = Annotated[int, Field(strict=True, ge=1, le=10**6)]
Word = Annotated[str, Field(strict=True, min_length=1, max_length=4096)]


class MixedStageEntry(FileModel):
    """Consecutive blocks on devices of one group."""

    group: Word = Field(
        description="Name of the group, or of its device; with ` #1`, ` #2` ... where several are alike."
    )
    tp: Degree = Field(default=1, description="Tensor parallel degree: devices of the stage in one replica.")
    blocks: Blocks = Field(
        description="Of the network, in its order; embedding and head go with the first and the last stage."
    )
    recompute: Literal["none", "selective", "full"] = Field(
        default="none", description="What the backward pass computes again."
    )
    recompute_blocks: Annotated[int, Field(strict=True, ge=0, le=10**6)] = Field(
        default=0, description="How many blocks of the stage, under `full`."
    )


class MixedPipelineEntry(FileModel):
    """Equal replicas of one pipeline (1F1B)."""

    replicas: Degree = Field(default=1, description="How many.")
    micro_batch: Count = Field(default=1, description="Samples per micro-batch.")
    num_micro_batches: Count = Field(default=1, description="Per replica and step.")
    longer: Annotated[int, Field(strict=True, ge=0, le=10**6)] = Field(
        default=0, description="Replicas that run one micro-batch more."
    )
    stages: tuple[MixedStageEntry, ...] = Field(min_length=1, max_length=10_000, description="In network order.")


class MixedEntry(FileModel):
    """Pipelines that together work through the global batch."""

    zero_stage: Literal[0, 1] = Field(
        default=0, description="1: the equal replicas of a stage share its optimizer state."
    )
    sequence_parallel: Annotated[bool, Field(strict=True)] = Field(
        default=False, description="Between the split matrices, tensors are cut along the positions."
    )
    order: Literal["tp-cp-dp-pp", "tp-cp-pp-dp"] = Field(
        default="tp-cp-dp-pp", description="Rank order inside a group, neighbours first."
    )
    pipelines: tuple[MixedPipelineEntry, ...] = Field(
        min_length=1, max_length=100, description="Each with its own stages and share of the batch."
    )
