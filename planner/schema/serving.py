"""A way to serve as it stands in a plan file: the fields of `costmodel.serving.plan.ServingPlan`, and the requests it is for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.schema.common import FileModel

__all__ = ["ServingEntry", "ServingPlanEntry"]

Degree = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Tokens = Annotated[int, Field(strict=True, ge=1, le=10**8)]
Limit = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ServingPlanEntry(FileModel):
    """One way to serve; degrees that are left out are 1."""

    tp: Degree = Field(default=1, description="Tensor parallel degree.")
    pp: Degree = Field(default=1, description="Pipeline stages.")
    ep: Degree = Field(default=1, description="Expert parallel degree.")
    etp: Degree = Field(default=1, description="Tensor parallel degree inside an expert.")
    dp: Degree = Field(default=1, description="Replicas.")
    max_batch: Degree = Field(default=1, description="Sequences that a replica decodes at a time.")
    prefill_chunk: Annotated[int, Field(strict=True, ge=0, le=10**8)] = Field(
        default=0, description="Tokens of a prompt per pass, beside the decoding; 0: whole prompts."
    )
    prefill_batch: Degree = Field(default=1, description="Prompts per pass.")


class ServingEntry(ServingPlanEntry):
    """One way to serve, and what for."""

    prompt_tokens: Tokens = Field(description="Mean length of a prompt.")
    output_tokens: Tokens = Field(description="Mean length of an answer.")
    kv_precision: Literal["fp32", "fp16", "bf16", "fp8"] | None = Field(
        default=None, description="Cache of keys and values; that of the activations where it is left out."
    )
    objective: Literal["throughput", "latency", "ttft", "tpot", "tokens_per_s_per_gpu"] = Field(
        default="throughput", description="What the plan was chosen for."
    )
    max_ttft_s: Limit | None = Field(default=None, description="Limit on the time to first token.")
    max_tpot_s: Limit | None = Field(default=None, description="Limit on the time per token.")
