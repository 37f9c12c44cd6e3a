"""Rows of answers in ``--json``: by layer, by stage, by link, by group of devices."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.schema.mesh import MeshEntry, SplitEntry
from planner.schema.result import Number, Result, Seconds

__all__ = [
    "GroupUseEntry",
    "LayerEntry",
    "LinkEntry",
    "MeshAloneEntry",
    "MeshLayerEntry",
    "MeshStageEntry",
    "MixedStageRowEntry",
    "ServingLayerEntry",
    "SplitCheckEntry",
    "StepBoundEntry",
    "WhatIfEntry",
]

Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class SplitCheckEntry(Result):
    """What the per-layer program says about how tensor parallelism splits the layers of a plan."""

    tp: int = Field(ge=2, description="Tensor parallel degree of the plan.")
    sequence_parallel: bool
    is_confirmed: bool = Field(description="No split that the program suggests is faster than the standard one.")
    standard_step_time_s: Seconds = Field(description="Of the plan with columns, then rows, over all tp ranks.")
    best_step_time_s: Seconds = Field(description="Of the best split found, the standard one included.")
    bound_ratio: Number = Field(
        description="No split takes less than this share of the standard one's time in the layers (passes and update)."
    )
    splits: dict[str, SplitEntry] = Field(description="Layers that the best split treats otherwise than the standard.")


class MeshStageEntry(Result):
    """One pipeline rank; times of one micro-batch."""

    rank: int = Field(ge=0, description="Of the pipeline.")
    blocks: str = Field(description="Per chunk: 8, or 4+4.")
    forward_s: Seconds = Field(description="Communication inside the layers included.")
    backward_s: Seconds
    recompute_s: Seconds
    transfer_s: Seconds = Field(description="To and from the neighbouring stages.")
    memory_bytes: Size
    weight_bytes: Size
    gradient_bytes: Size
    optimizer_bytes: Size = Field(description="Optimizer state and master weights.")
    activation_bytes: Size


class MeshLayerEntry(Result):
    """One layer on one rank, for one micro-batch."""

    unit: str = Field(description="embedding, head, or the first block of its kind.")
    count: int = Field(ge=1, description="Equal blocks in the network.")
    name: str
    kind: str
    split: str = Field(
        description="How tensor parallelism splits it: column, row, channel, whole, vocabulary, experts or repeated."
    )
    degree: int = Field(ge=1, description="Ranks that share its weights or channels; those beyond repeat them.")
    forward_s: Seconds
    backward_s: Seconds
    tp_exchange_s: Seconds = Field(description="Tensor-parallel communication of both passes.")
    weight_count: int = Field(ge=0, description="Of the whole layer.")
    weights_per_rank: int = Field(ge=0)


class ServingLayerEntry(Result):
    """One layer on one rank, in a decoding pass of one group of sequences and in a pass that reads prompts."""

    unit: str = Field(description="embedding, head, or the first block of its kind.")
    count: int = Field(ge=1, description="Equal blocks in the network.")
    name: str
    kind: str
    decode_s: Seconds = Field(description="Kernels of the decoding pass.")
    decode_exchange_s: Seconds = Field(description="Tensor- and expert-parallel communication of it.")
    prefill_s: Seconds = Field(description="Kernels of the pass that reads prompts.")
    prefill_exchange_s: Seconds = Field(description="Communication of it.")
    weight_bytes: Size = Field(description="Weights on the rank.")
    cache_bytes: Size = Field(description="Keys and values of one sequence on the rank.")


class GroupUseEntry(Result):
    """What a plan takes of one group."""

    name: str = Field(description="The group's name, or its device's; with ` #1`, ` #2` ... where several are alike.")
    device: str
    devices: int = Field(ge=0, description="In use.")
    available: int = Field(
        ge=0, description="That `gpus` leave of the group: they are counted through the groups in order."
    )
    memory_bytes: Size = Field(description="Peak memory of the group's fullest device; 0 where none is in use.")
    memory_capacity_bytes: Size = Field(description="Memory that a device of the group may use.")


class MeshAloneEntry(Result):
    """A plan over a device mesh of one group alone."""

    step_time_s: Seconds
    summary: str = Field(description="The plan in words.")
    plan: MeshEntry = Field(description="As under `mesh` in a plan file.")


class MixedStageRowEntry(Result):
    """One stage of one replica; times of one micro-batch but for exchange and update, which are of the step."""

    pipeline: int = Field(ge=0)
    stage: int = Field(ge=0)
    group: str
    devices: int = Field(ge=1, description="Tensor parallel degree.")
    blocks: int = Field(ge=1)
    forward_s: Seconds = Field(description="Communication inside the layers and the transfer it waits for included.")
    backward_s: Seconds = Field(description="The same, and recomputation.")
    recompute_s: Seconds
    tp_s: Seconds
    transfer_s: Seconds
    exchange_s: Seconds
    update_s: Seconds
    busy_s: Seconds = Field(description="Of the step: all micro-batches of the busiest replica, exchange and update.")
    recompute: str = Field(description="none, selective or full.")
    recompute_blocks: int = Field(ge=0, description="Under full.")
    memory_bytes: Size
    memory_capacity_bytes: Size


class StepBoundEntry(Result):
    """What bounds the step: `working_s`, `waiting_s` and `end_s` add up to it."""

    pipeline: int = Field(ge=0, description="The one that ends its passes last.")
    stage: int = Field(ge=0, description="Its busiest stage.")
    group: str
    num_micro_batches: int = Field(ge=1, description="Of the busiest replica.")
    working_s: Seconds = Field(description="Forward and backward passes of that stage for all micro-batches.")
    waiting_s: Number = Field(
        description="What the pipeline takes longer: filling, draining, waiting for other stages."
    )
    end_s: Number = Field(description="What exchange and update leave behind the last backward pass.")
    largest: str = Field(description="The largest part of the stage's work, in words.")
    largest_share: Number = Field(description="And its share of that work.")
    spare_s: list[Number] = Field(description="How much earlier each pipeline ends its passes.")


class WhatIfEntry(Result):
    """One change of the hardware or of the plan, judged by the cost model."""

    change: str = Field(description="In words.")
    kind: Literal["hardware", "plan"] = Field(description="What is changed; the other stays as it is.")
    step_time_s: Seconds = Field(description="What the step takes then.")
    gain: Number = Field(description="Step time now over step time then, minus 1: positive is faster.")
    fits: bool = Field(description="Whether the memory suffices.")


class LayerEntry(Result):
    """One layer under a plan: times per step on the slowest worker."""

    name: str
    kind: str
    split: str
    forward_s: Seconds
    backward_input_s: Seconds = Field(description="Gradient of the layer's input.")
    backward_weight_s: Seconds = Field(description="Gradient of the layer's weights.")
    update_s: Seconds
    reshard_s: Seconds
    exchange_s: Seconds
    exposed_exchange_s: Seconds
    collective: str
    group: int = Field(description="Workers in the gradient exchange.")
    flops: Number = Field(description="Forward, of the whole layer at the global batch.")
    weight_bytes: Number = Field(description="Of the whole layer.")
    memory_bytes: Number = Field(description="Per worker.")
    output_shape: list[int] = Field(description="Batch first, channels last.")
    algorithms: list[str] = Field(description="Forward, gradient of the input, gradient of the weights.")
    is_free: bool


class LinkEntry(Result):
    """One kind of traffic of a plan."""

    traffic: str = Field(description="What travels.")
    group: int = Field(ge=2, description="Ranks that take part together.")
    stride: int = Field(ge=1, description="Distance of neighbours in the numbering of the ranks.")
    level: str = Field(description="Outermost level of links that a group spans.")
    bytes_per_s: Number = Field(description="What a rank reaches over it while all others do the same.")
    waiting_s: Seconds = Field(description="Of a step.")
