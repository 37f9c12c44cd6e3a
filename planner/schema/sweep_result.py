"""What `planner sweep --json` prints."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from planner.schema.result import Number, Result, Seconds

__all__ = ["SweepDocument"]


class SweepRow(BaseModel):
    """One cell of the grid: a question and its best plan, or why there is none. `tp` to `recompute` are null for splits per layer."""

    model_config = Result.model_config

    model: str
    cluster: str
    device: str | None = Field(description="null where there is no answer.")
    gpus: int = Field(ge=1, description="Workers at most.")
    batch: int | None = Field(description="Samples per step, all workers together.")
    seq: int | None = Field(description="Positions of a sample.")
    status: Literal["ok", "no_plan", "limit", "refused", "failed"] = Field(
        description=(
            "ok; no_plan: nothing fits; limit: the time limit came before a plan; refused: the question contradicts itself; "
            "failed: a process died or the planner has a defect, and the next run tries again."
        )
    )
    reason: str | None = Field(description="Why there is no plan, with the nearest miss.")
    workers: int | None = Field(description="GPUs that the plan uses.")
    family: str | None
    plan: str | None = Field(description="In words.")
    step_time_s: Seconds | None
    step_time_low_s: Seconds | None = Field(
        default=None,
        description="A measurement lies between this and `step_time_high_s` with a chance of 80 %; null: no error model.",
    )
    step_time_high_s: Seconds | None = None
    throughput_samples_per_s: Number | None
    tokens_per_s: Number | None
    mfu: Number | None
    memory_bytes_per_gpu: Number | None
    exposed_communication_s: Seconds | None
    money_per_step: Number | None = Field(description="In USD; null where no price is stated.")
    energy_per_step_j: Number | None = Field(description="null where no power is stated.")
    objective: str
    proven_optimal: bool | None
    gap: Number | None = Field(description="(best - bound) / best, of the objective.")
    tp: int | None
    cp: int | None
    ep: int | None
    etp: int | None
    pp: int | None
    vpp: int | None
    dp_replicate: int | None
    dp_shard: int | None
    zero_stage: int | None
    micro_batch: int | None
    num_micro_batches: int | None
    schedule: str | None
    recompute: str | None


class SweepDocument(BaseModel):
    """Answer of `planner sweep --json`."""

    model_config = Result.model_config

    schema_version: Literal[1]
    cells: int = Field(ge=1, description="Of the grid.")
    interrupted: bool = Field(description="Whether Ctrl-C left some of them out.")
    command_line: str
    rows: list[SweepRow] = Field(description="In the order of the grid: cluster, batch, length, GPUs.")
