"""What `--json` prints about plans over a device mesh, and the union of the answers of all spaces."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, RootModel

from planner.schema.mesh import MeshEntry, SplitEntry
from planner.schema.mixed_result import MixedBreakdownDocument, MixedResultDocument
from planner.schema.result import (
    BreakdownDocument,
    Compared,
    ComparisonEntry,
    ErrorBarsEntry,
    Head,
    LinkEntry,
    Number,
    ResultDocument,
    Seconds,
    SensitivityEntry,
    Tail,
)
from planner.schema.serving_result import ServingBreakdownDocument, ServingResultDocument

__all__ = ["AnyBreakdown", "AnyResult", "MeshBreakdownDocument", "MeshPlanCost", "MeshResultDocument"]

Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class MeshPlanCost(BaseModel):
    """A plan over a device mesh and its cost; `compute_s` to `offload_s` are the step, `weight_bytes` to `context_bytes` the memory."""

    model_config = ResultDocument.model_config

    rank: int = Field(ge=1, description="1 is the best.")
    step_time_s: Seconds = Field(description="Time of one step.")
    step_time_low_s: Seconds | None = Field(
        default=None,
        description="A measurement lies between this and `step_time_high_s` with a chance of 80 %; null: no error model.",
    )
    step_time_high_s: Seconds | None = None
    probability_best: Number | None = Field(
        default=None,
        description="Chance that the plan is the best of the `benchmark_compared` first ones; null where it is none of these.",
    )
    throughput_samples_per_s: Number = Field(description="Global batch / step time.")
    memory_bytes_per_gpu: Number = Field(description="Peak memory of the fullest GPU.")
    exposed_communication_s: Seconds = Field(description="Part of the step spent waiting for the network.")
    workers: int = Field(ge=1, description="GPUs used; at most `gpus`.")
    family: str = Field(
        description=(
            "Parallel dimensions in use, joined by `+`: tensor, context, expert, pipeline, and data, zero-1, zero-2, fsdp or hsdp; "
            "or one-device."
        )
    )
    summary: str = Field(description="The plan in words.")
    tokens_per_s: Number = Field(description="Global batch x seq / step time.")
    tokens_per_s_per_gpu: Number = Field(description="Per GPU in use.")
    mfu: Number = Field(
        description=(
            "Model FLOP utilisation: model FLOP of a step (nothing computed again) / (step time x GPUs in use x dense peak)."
        )
    )
    memory_capacity_bytes: Number = Field(description="Memory that a GPU may use.")
    host_bytes_per_gpu: Size = Field(description="Offloaded to the host; not in the memory of the GPU.")
    host_capacity_bytes_per_gpu: Size | None = Field(
        description="Room on the host of a node for each GPU; null where the cluster file states no host."
    )
    gpu_hours_per_million_tokens: Number = Field(description="GPUs in use x time.")
    money_per_million_tokens: Number | None = Field(
        description="In USD; null where the device file states no `price_per_hour`."
    )
    money_per_step: Number | None = Field(default=None, description="In USD; null where no `price_per_hour` is stated.")
    energy_per_step_j: Number | None = Field(
        default=None, description="Of the GPUs in use and their hosts, in joules; null where no `power` is stated."
    )
    bottleneck: str = Field(
        description="The part of the step that takes longest, in words; `compute` without `host_s`, which is `host launches`."
    )
    host_s: Seconds = Field(
        default=0.0,
        description="The part of `compute_s` in which GPUs wait for their hosts to start kernels and collectives.",
    )
    gap: Number = Field(
        description="Objective over the best plan's, minus 1 (the step time unless another is asked for)."
    )
    compute_s: Seconds = Field(description="Forward and backward pass.")
    recompute_s: Seconds = Field(description="Forward passes run again, their communication included.")
    tp_exposed_s: Seconds = Field(description="Tensor-parallel communication that compute does not hide.")
    cp_exposed_s: Seconds = Field(description="The same of context parallelism.")
    ep_exposed_s: Seconds = Field(description="The same of expert parallelism.")
    pp_exposed_s: Seconds = Field(description="Transfers between stages.")
    dp_exposed_s: Seconds = Field(description="Gradient reduction and weight gathering that compute does not hide.")
    bubble_s: Number = Field(description="Filling, draining and imbalance of the pipeline.")
    optimizer_s: Seconds = Field(description="The update.")
    offload_s: Seconds = Field(description="Transfers to and from the host that compute does not hide.")
    weight_bytes: Size = Field(description="Weights.")
    gradient_bytes: Size = Field(description="Gradients.")
    optimizer_bytes: Size = Field(description="Optimizer state and master weights.")
    activation_bytes: Size = Field(description="Saved for the backward pass, of all micro-batches in flight.")
    working_bytes: Size = Field(description="A block being recomputed, gathered weights.")
    logits_bytes: Size = Field(description="Logits and their gradient.")
    buffer_bytes: Size = Field(description="Communication buffers.")
    slack_bytes: Size = Field(description="Lost to the allocator.")
    context_bytes: Size = Field(description="Driver and libraries.")
    plan: MeshEntry = Field(description="The plan itself, as under `mesh` in a plan file.")


class SplitCheckEntry(BaseModel):
    """What the per-layer program says about how tensor parallelism splits the layers of a plan."""

    model_config = ResultDocument.model_config

    tp: int = Field(ge=2, description="Tensor parallel degree of the plan.")
    sequence_parallel: bool
    is_confirmed: bool = Field(description="No split that the program suggests is faster than the standard one.")
    standard_step_time_s: Seconds = Field(description="Of the plan with columns, then rows, over all tp ranks.")
    best_step_time_s: Seconds = Field(description="Of the best split found, the standard one included.")
    bound_ratio: Number = Field(
        description="No split takes less than this share of the standard one's time in the layers (passes and update)."
    )
    splits: dict[str, SplitEntry] = Field(description="Layers that the best split treats otherwise than the standard.")


class MeshHead(Head):
    """What every answer about a mesh begins with."""

    space: Literal["mesh"]
    seq: int = Field(ge=1, description="Positions (tokens) of a sample.")
    objective: str = Field(
        description="What is best: step_time, tokens_per_s, tokens_per_s_per_gpu, mfu, gpu_hours, money or energy."
    )


class MeshResultDocument(Compared, Tail, MeshHead):
    """Answer of `planner optimize --json` about plans over a device mesh."""

    plans: list[MeshPlanCost] = Field(description="Of the uniform space (every stage alike), best first.")
    refined: MeshPlanCost | None = Field(
        description=(
            "Best plan found with `stage_blocks` and `stage_recompute` of its own, or `block_splits` that save at least 1 %, where it is "
            "better than all uniform ones (its `gap` is negative); null: none is. `--export` writes it. `bound_s` and `proven_optimal` are "
            "about the uniform space."
        )
    )
    splits: list[SplitCheckEntry] = Field(
        description="What the per-layer program says about the splits inside the blocks of the best plans with tp > 1."
    )
    proven_optimal: bool = Field(description="Whether no plan of the stated (uniform) space is better than the first.")
    bound_s: Seconds = Field(description="No plan of the uniform space takes less time per step.")
    gap: Number = Field(ge=0, description="(best - bound) / best, of the objective.")
    space_size: int = Field(ge=0, description="Distinct legal plans in the stated space, exact.")
    space_size_log10: Number | None
    wall_s: Seconds = Field(description="Time of the search.")
    searched: dict[str, int] = Field(description="How the space was handled.")
    data_parallel: MeshPlanCost | None = Field(
        description="Best plan with tp = cp = ep = pp = 1 (data parallelism, ZeRO, FSDP); null: none fits."
    )


class MeshStageEntry(BaseModel):
    """One pipeline rank; times of one micro-batch."""

    model_config = ResultDocument.model_config

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


class MeshLayerEntry(BaseModel):
    """One layer on one rank, for one micro-batch."""

    model_config = ResultDocument.model_config

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


class MeshBreakdownDocument(Tail, MeshHead):
    """Answer of `planner explain --json` about a plan over a device mesh, and without `layers` of `planner estimate --json`."""

    step_time_s: Seconds
    plans: list[MeshPlanCost] = Field(min_length=1, max_length=1)
    stages: list[MeshStageEntry] = Field(description="One per pipeline rank.")
    layers: list[MeshLayerEntry] | None = Field(
        default=None, description="In network order; of equal blocks, the first one's."
    )
    split: SplitCheckEntry | None = Field(
        default=None, description="What the per-layer program says about the splits; null where nothing is split."
    )
    links: list[LinkEntry] | None = Field(default=None, description="What the step waits for the network.")
    best: MeshPlanCost | None = Field(description="The best plan, where it was searched for.")
    comparison: list[ComparisonEntry] = Field(description="Largest difference first.")
    error_bars: ErrorBarsEntry | None = None
    sensitivity: list[SensitivityEntry] | None = Field(
        default=None, description="With `--sensitivity`: what needs the smallest change first."
    )


class AnyResult(RootModel[ResultDocument | MeshResultDocument | ServingResultDocument | MixedResultDocument]):
    """Answer of `planner optimize --json`: by `space` of plans over a device mesh, of serving or of plans over several groups of devices.

    Without `space`, of a split per layer.
    """


class AnyBreakdown(
    RootModel[BreakdownDocument | MeshBreakdownDocument | ServingBreakdownDocument | MixedBreakdownDocument]
):
    """Answer of `planner explain --json` and `planner estimate --json`, of any space."""
