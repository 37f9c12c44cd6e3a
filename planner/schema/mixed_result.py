"""What `--json` prints about plans over several groups of devices."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from planner.schema.mesh import MeshEntry
from planner.schema.mixed import MixedEntry
from planner.schema.result import (
    Compared,
    ComparisonEntry,
    ErrorBarsEntry,
    Head,
    Number,
    ResultDocument,
    Seconds,
    SensitivityEntry,
    Tail,
)

__all__ = ["MixedBreakdownDocument", "MixedPlanCost", "MixedResultDocument"]

Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class GroupUseEntry(BaseModel):
    """What a plan takes of one group."""

    model_config = ResultDocument.model_config

    name: str = Field(description="The group's name, or its device's; with ` #1`, ` #2` ... where several are alike.")
    device: str
    devices: int = Field(ge=0, description="In use.")
    available: int = Field(
        ge=0, description="That `gpus` leave of the group: they are counted through the groups in order."
    )
    memory_bytes: Size = Field(description="Peak memory of the group's fullest device; 0 where none is in use.")
    memory_capacity_bytes: Size = Field(description="Memory that a device of the group may use.")


class MixedPlanCost(BaseModel):
    """A plan over several groups and its cost; `compute_s` to `optimizer_s` are the step, `weight_bytes` to `context_bytes` the memory."""

    model_config = ResultDocument.model_config

    rank: int = Field(ge=1, description="1 is the best.")
    step_time_s: Seconds = Field(description="Time of one step.")
    step_time_low_s: Seconds | None = Field(
        default=None,
        description="A measurement lies between this and `step_time_high_s` with a chance of 80 %; null: no error model.",
    )
    step_time_high_s: Seconds | None = None
    throughput_samples_per_s: Number = Field(description="Global batch / step time.")
    memory_bytes_per_gpu: Number = Field(description="Peak memory of the GPU that is fullest for its size.")
    exposed_communication_s: Seconds = Field(description="Part of the step spent waiting for the network.")
    workers: int = Field(ge=1, description="GPUs used; at most `gpus`.")
    family: str = Field(
        description="Parallel dimensions in use, joined by `+`: tensor, pipeline, and data or zero-1; or one-device."
    )
    summary: str = Field(description="The plan in words.")
    precision: str = Field(description="Number format that all devices of the plan compute in.")
    tokens_per_s: Number = Field(description="Global batch x seq / step time.")
    tokens_per_s_per_gpu: Number = Field(description="Per GPU in use.")
    mfu: Number = Field(
        description="Model FLOP of a step (nothing computed again) / (step time x sum of the dense peaks of the GPUs in use)."
    )
    memory_capacity_bytes: Number = Field(description="Memory that the fullest GPU may use.")
    gpu_hours_per_million_tokens: Number = Field(description="GPUs in use x time.")
    money_per_million_tokens: Number | None = Field(
        description="In USD; null where a device file in use states no `price_per_hour`."
    )
    money_per_step: Number | None = Field(default=None, description="In USD; null as above.")
    energy_per_step_j: Number | None = Field(
        default=None,
        description="Of the GPUs in use and their hosts; null where a device file in use states no `power`.",
    )
    bottleneck: str = Field(description="The part of the step that takes longest, in words.")
    gap: Number = Field(description="What is minimised over the best plan's, minus 1.")
    compute_s: Seconds = Field(description="Forward and backward pass of the busiest stage of the slowest pipeline.")
    recompute_s: Seconds = Field(description="Forward passes run again, their communication included.")
    tp_exposed_s: Seconds = Field(description="Tensor- and expert-parallel communication that compute does not hide.")
    pp_exposed_s: Seconds = Field(description="Transfers between stages.")
    dp_exposed_s: Seconds = Field(description="Gradient reduction and weight gathering that compute does not hide.")
    bubble_s: Number = Field(description="Filling, draining and imbalance of the pipelines.")
    optimizer_s: Seconds = Field(description="The update.")
    weight_bytes: Size = Field(description="Weights.")
    gradient_bytes: Size = Field(description="Gradients.")
    optimizer_bytes: Size = Field(description="Optimizer state and master weights.")
    activation_bytes: Size = Field(description="Saved for the backward pass, of all micro-batches in flight.")
    working_bytes: Size = Field(description="A block being recomputed.")
    logits_bytes: Size = Field(description="Logits and their gradient.")
    buffer_bytes: Size = Field(description="Communication buffers.")
    slack_bytes: Size = Field(description="Lost to the allocator.")
    context_bytes: Size = Field(description="Driver and libraries.")
    groups: list[GroupUseEntry] = Field(description="In the order of the cluster.")
    plan: MixedEntry = Field(description="The plan itself, as under `mixed` in a plan file.")


class MixedHead(Head):
    """What every answer about several groups begins with."""

    space: Literal["mixed"]
    seq: int = Field(ge=1, description="Positions (tokens) of a sample.")
    objective: Literal["step_time", "tokens_per_s", "tokens_per_s_per_gpu", "mfu", "gpu_hours", "money", "energy"] = (
        Field(description="What is minimised (rates: maximised).")
    )


class MeshAloneEntry(BaseModel):
    """A plan over a device mesh of one group alone."""

    model_config = ResultDocument.model_config

    step_time_s: Seconds
    summary: str = Field(description="The plan in words.")
    plan: MeshEntry = Field(description="As under `mesh` in a plan file.")


class BaselineEntry(BaseModel):
    """One group alone."""

    model_config = ResultDocument.model_config

    group: str
    plan: MixedPlanCost | None = Field(
        description="Its best plan of the stated space; null: nothing was found that fits."
    )
    bound_s: Seconds | None = Field(
        description="No plan of that space on the group alone takes less; null: there is none."
    )
    mesh: MeshAloneEntry | None = Field(
        description="The best plan found on the group alone with all that `space: mesh` knows, within three seconds; null: none."
    )


class MixedResultDocument(Compared, Tail, MixedHead):
    """Answer of `planner optimize --json` about a cluster of several groups of devices."""

    plans: list[MixedPlanCost] = Field(
        description="Best first; of plans with equal groups, degrees, stages, replicas and micro-batch the best."
    )
    proven_optimal: bool = Field(description="Whether no plan of the stated space is better than the first.")
    bound_s: Seconds = Field(description="No plan of the space takes less time per step.")
    gap: Number = Field(ge=0, description="(best - bound) / best, of the objective.")
    space_size: None = Field(description="Not counted.")
    space_size_log10: None
    wall_s: Seconds = Field(description="Time of the search.")
    searched: dict[str, int] = Field(description="How many of what were looked at.")
    data_parallel: None = Field(description="Not looked for; see `baselines`.")
    baselines: list[BaselineEntry] = Field(description="Every group alone.")


class MixedStageRowEntry(BaseModel):
    """One stage of one replica; times of one micro-batch but for exchange and update, which are of the step."""

    model_config = ResultDocument.model_config

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


class StepBoundEntry(BaseModel):
    """What bounds the step: `working_s`, `waiting_s` and `end_s` add up to it."""

    model_config = ResultDocument.model_config

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


class WhatIfEntry(BaseModel):
    """One change of the hardware or of the plan, judged by the cost model."""

    model_config = ResultDocument.model_config

    change: str = Field(description="In words.")
    kind: Literal["hardware", "plan"] = Field(description="What is changed; the other stays as it is.")
    step_time_s: Seconds = Field(description="What the step takes then.")
    gain: Number = Field(description="Step time now over step time then, minus 1: positive is faster.")
    fits: bool = Field(description="Whether the memory suffices.")


class MixedBreakdownDocument(Tail, MixedHead):
    """Answer of `planner explain --json` about a plan over several groups of devices.

    Without `bound` and `what_if` that of `planner estimate --json`.
    """

    step_time_s: Seconds
    plans: list[MixedPlanCost] = Field(min_length=1, max_length=1)
    stages: list[MixedStageRowEntry] = Field(description="Of one replica of every pipeline.")
    bound: StepBoundEntry | None = Field(default=None, description="What bounds the step.")
    what_if: list[WhatIfEntry] | None = Field(
        default=None, description="Hardware before plans, the most useful change first."
    )
    error_bars: ErrorBarsEntry | None = None
    best: MixedPlanCost | None = Field(description="The best plan, where it was searched for.")
    comparison: list[ComparisonEntry] = Field(description="Largest difference first.")
    sensitivity: list[SensitivityEntry] | None = Field(
        default=None, description="With `--sensitivity`: what needs the smallest change first."
    )
