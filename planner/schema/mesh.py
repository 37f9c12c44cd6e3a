"""A plan over a device mesh as it stands in a plan file and in results: the fields of `costmodel.mesh.plan.MeshPlan`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.schema.common import FileModel

__all__ = ["MeshEntry", "SplitEntry"]

Degree = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Count = Annotated[int, Field(strict=True, ge=1, le=10**9)]
Flag = Annotated[bool, Field(strict=True)]


class SplitEntry(FileModel):
    """How tensor parallelism splits a layer."""

    role: Literal["column", "row", "channel", "whole", "vocabulary", "repeated"] = Field(
        description=(
            "column, row: a matrix by its outputs, inputs; channel: a share of the channels or heads; vocabulary: rows of an embedding; "
            "whole: not split, on a share of the positions under sequence parallelism; repeated: everything on every rank."
        )
    )
    degree: Degree = Field(default=1, description="Shares; where there are fewer than tp, ranks repeat them.")


class MeshEntry(FileModel):
    """One choice for the whole network; what is left out is 1, none or false."""

    tp: Degree = Field(default=1, description="Tensor parallel degree.")
    sequence_parallel: Flag = Field(
        default=False, description="Between the split matrices, tensors are cut along the positions."
    )
    cp: Degree = Field(default=1, description="Context parallel degree.")
    cp_kind: Literal["ring", "all_gather", "all_to_all"] = Field(
        default="ring", description="How attention sees the other positions."
    )
    ep: Degree = Field(default=1, description="Expert parallel degree.")
    etp: Degree = Field(default=1, description="Tensor parallel degree inside an expert.")
    pp: Degree = Field(default=1, description="Pipeline stages.")
    vpp: Degree = Field(default=1, description="Virtual stages (chunks) per pipeline rank.")
    schedule: Literal["gpipe", "1f1b", "interleaved", "zero_bubble"] = Field(
        default="1f1b", description="Order of the passes of a pipeline."
    )
    dp_replicate: Degree = Field(default=1, description="Data parallel ranks that keep their own copy.")
    dp_shard: Degree = Field(default=1, description="Data parallel ranks that share one copy under ZeRO.")
    zero_stage: Annotated[int, Field(strict=True, ge=0, le=3)] = Field(
        default=0, description="What they share: 1 optimizer state, 2 and gradients, 3 and weights."
    )
    micro_batch: Count = Field(default=1, description="Samples per micro-batch and data parallel rank.")
    num_micro_batches: Count = Field(default=1, description="Micro-batches per step and data parallel rank.")
    recompute: Literal["none", "selective", "full"] = Field(
        default="none", description="What the backward pass computes again."
    )
    recompute_blocks: Annotated[int, Field(strict=True, ge=0, le=10**6)] = Field(
        default=0, description="Blocks per stage that are recomputed under `full`."
    )
    offload_optimizer: Flag = Field(default=False, description="Optimizer state and update on the host.")
    offload_activations: Flag = Field(default=False, description="Saved activations of the blocks wait on the host.")
    order: Literal["tp-cp-dp-pp", "tp-cp-pp-dp", "tp-dp-cp-pp", "tp-dp-pp-cp", "tp-pp-cp-dp", "tp-pp-dp-cp"] = Field(
        default="tp-cp-dp-pp", description="Rank order, neighbours first."
    )
    stage_blocks: tuple[Annotated[int, Field(strict=True, ge=0, le=10**6)], ...] = Field(
        default=(), description="Blocks per chunk, in network order; empty: balanced by time."
    )
    stage_recompute: tuple[Annotated[int, Field(strict=True, ge=0, le=10**6)], ...] = Field(
        default=(), description="Blocks recomputed per chunk under `full`; empty: `recompute_blocks` in each."
    )
    block_splits: dict[Annotated[str, Field(min_length=1, max_length=4096)], SplitEntry] = Field(
        default_factory=dict,
        description="Layers (of equal blocks, the first one's) that are not split by columns, then rows, over all tp ranks.",
    )
