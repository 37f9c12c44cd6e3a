"""What `--json` prints about serving."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from planner.schema.result import (
    Compared,
    ComparisonEntry,
    ErrorBarsEntry,
    Head,
    Number,
    ResultDocument,
    Seconds,
    Tail,
)

__all__ = ["ServingBreakdownDocument", "ServingPlanCost", "ServingPlanEntry", "ServingResultDocument"]

Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class ServingPlanEntry(BaseModel):
    """A way to serve."""

    model_config = ResultDocument.model_config

    tp: int = Field(ge=1, description="Tensor parallel degree.")
    pp: int = Field(ge=1, description="Pipeline stages.")
    ep: int = Field(ge=1, description="Expert parallel degree.")
    etp: int = Field(ge=1, description="Tensor parallel degree inside an expert.")
    dp: int = Field(ge=1, description="Replicas.")
    max_batch: int = Field(ge=1, description="Sequences that a replica decodes at a time.")
    prefill_chunk: int = Field(ge=0, description="Tokens of a prompt per pass, beside the decoding; 0: whole prompts.")
    prefill_batch: int = Field(ge=1, description="Prompts per pass.")


class ServingPlanCost(BaseModel):
    """A way to serve and its cost under full load.

    `decode_compute_s` to `waiting_s` are the time per token, `prefill_compute_s` to `earlier_chunks_s` the time to the first,
    `weight_bytes` to `context_bytes` the memory.
    """

    model_config = ResultDocument.model_config

    rank: int = Field(ge=1, description="1 is the best.")
    step_time_s: Seconds = Field(description="The same as `tpot_s`.")
    step_time_low_s: Seconds | None = Field(
        default=None,
        description="A measurement of `tpot_s` lies between this and `step_time_high_s` with a chance of 80 %; null: not predicted.",
    )
    step_time_high_s: Seconds | None = None
    probability_best: Number | None = Field(
        default=None, description="Chance that this is the best of the plans compared; null: not compared."
    )
    throughput_samples_per_s: Number = Field(description="The same as `requests_per_s`.")
    memory_bytes_per_gpu: Number = Field(description="Memory of the fullest GPU.")
    exposed_communication_s: Seconds = Field(description="Part of the time per token that is communication.")
    workers: int = Field(ge=1, description="GPUs used; at most `gpus`.")
    family: str = Field(
        description="Parallel dimensions in use, joined by `+`: tensor, expert, pipeline, replicas; or one-device."
    )
    summary: str = Field(description="The plan in words.")
    ttft_s: Seconds = Field(
        description="Time to first token: the prompt through all stages, without a queue before it."
    )
    ttft_low_s: Seconds | None = Field(default=None, description="Of the interval of `ttft_s`.")
    ttft_high_s: Seconds | None = None
    tpot_s: Seconds = Field(description="Mean time per token after the first.")
    request_s: Seconds = Field(description="ttft_s + (output_tokens - 1) tpot_s.")
    pause_s: Seconds = Field(description="Longest pause between two tokens of a sequence.")
    decode_pass_s: Seconds = Field(description="A decoding pass with nothing else under way.")
    requests_per_s: Number = Field(description="Of all replicas.")
    output_tokens_per_s: Number = Field(description="Of all replicas.")
    output_tokens_per_s_low: Number | None = Field(
        default=None, description="Of the interval of `output_tokens_per_s`."
    )
    output_tokens_per_s_high: Number | None = None
    total_tokens_per_s: Number = Field(description="Prompts included.")
    output_tokens_per_s_per_gpu: Number = Field(description="Per GPU in use.")
    memory_capacity_bytes: Number = Field(description="Memory that a GPU may use.")
    kv_bytes_per_sequence: Size = Field(description="Keys and values of one sequence on the fullest GPU.")
    largest_batch: int = Field(ge=0, description="Sequences per replica that fit with the other choices.")
    money_per_million_output_tokens: Number | None = Field(
        description="In USD; null where the device file states no `price_per_hour`."
    )
    bottleneck: str = Field(description="The largest part of the time per token, in words.")
    gap: Number = Field(description="Objective over the best plan's, minus 1; a rate counts as time per token.")
    decode_compute_s: Seconds = Field(description="Kernels of a decoding pass.")
    decode_tp_s: Seconds = Field(description="Tensor-parallel communication of a decoding pass.")
    decode_ep_s: Seconds = Field(description="Expert-parallel communication of a decoding pass.")
    decode_pp_s: Seconds = Field(description="Transfers between stages of a decoding pass.")
    decode_host_s: Seconds = Field(description="What a decoding pass waits for the host.")
    waiting_s: Seconds = Field(description="Waiting for the prompts of others and for the slowest stage.")
    prefill_compute_s: Seconds = Field(description="Kernels of the prompt's last pass.")
    prefill_tp_s: Seconds = Field(description="Tensor-parallel communication of it.")
    prefill_ep_s: Seconds = Field(description="Expert-parallel communication of it.")
    prefill_pp_s: Seconds = Field(description="Transfers between stages of it.")
    prefill_host_s: Seconds = Field(description="What it waits for the host.")
    earlier_chunks_s: Seconds = Field(description="Passes of the prompt's earlier chunks.")
    weight_bytes: Size = Field(description="Weights.")
    kv_bytes: Size = Field(description="Keys and values of all sequences.")
    working_bytes: Size = Field(description="The widest moment of a pass.")
    logits_bytes: Size = Field(description="Logits.")
    buffer_bytes: Size = Field(description="Communication buffers.")
    context_bytes: Size = Field(description="Driver and libraries.")
    plan: ServingPlanEntry = Field(description="The plan itself.")


class ServingHead(Head):
    """What every answer about serving begins with; `global_batch` is the sequences of all replicas of the first plan."""

    space: Literal["serving"]
    seq: int = Field(ge=2, description="prompt_tokens + output_tokens.")
    objective: str = Field(description="What is best: throughput, latency, ttft, tpot or tokens_per_s_per_gpu.")
    prompt_tokens: int = Field(ge=1, description="Mean length of a prompt.")
    output_tokens: int = Field(ge=1, description="Mean length of an answer.")
    kv_precision: str = Field(description="Cache of keys and values: fp32, fp16, bf16 or fp8.")
    max_ttft_s: Seconds | None = Field(description="Limit on the time to first token.")
    max_tpot_s: Seconds | None = Field(description="Limit on the time per token.")


class ServingResultDocument(Compared, Tail, ServingHead):
    """Answer of `planner optimize --mode inference --json` about a network that generates text."""

    plans: list[ServingPlanCost] = Field(description="Best first; of plans with equal degrees the best.")
    proven_optimal: bool = Field(description="Whether every plan of the stated space was looked at.")
    bound_s: Seconds = Field(
        description="The objective of the first plan where it is proven, else 0; a rate as time per token."
    )
    gap: Number = Field(ge=0, description="0 where proven, else 1.")
    space_size: int = Field(ge=0, description="Distinct legal plans in the stated space, exact.")
    space_size_log10: Number | None
    wall_s: Seconds = Field(description="Time of the search.")
    searched: dict[str, int] = Field(description="How the space was handled.")
    data_parallel: ServingPlanCost | None = Field(description="Best plan with replicas of one GPU each; null: none.")


class ServingLayerEntry(BaseModel):
    """One layer on one rank, in a decoding pass of one group of sequences and in a pass that reads prompts."""

    model_config = ResultDocument.model_config

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


class ServingBreakdownDocument(Tail, ServingHead):
    """Answer of `planner explain --mode inference --json` about a network that generates text, and without `layers` of `estimate`."""

    step_time_s: Seconds = Field(description="Mean time per token after the first.")
    plans: list[ServingPlanCost] = Field(min_length=1, max_length=1)
    layers: list[ServingLayerEntry] | None = Field(
        default=None, description="In network order; of equal blocks, the first one's."
    )
    error_bars: ErrorBarsEntry | None = None
    best: ServingPlanCost | None = Field(description="The best plan of the same question, where it was searched for.")
    comparison: list[ComparisonEntry] = Field(description="Largest difference first.")
