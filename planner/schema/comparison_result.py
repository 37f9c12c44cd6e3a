"""What ``planner compare --json`` prints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from planner.schema.result import Number, Result, Seconds

__all__ = ["CompareDocument"]

Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Entry(BaseModel):
    model_config = Result.model_config


class ComparedPlan(_Entry):
    """One plan of a comparison."""

    label: str = Field(description="Its file, with as many folders as tell the files apart; or what it is.")
    space: Literal["layers", "mesh", "mixed", "serving"]
    model: str
    cluster: str
    summary: str = Field(description="The plan in words.")
    family: str = Field(description="Region of the space that it lies in.")
    workers: int = Field(ge=1, description="GPUs in use.")
    global_batch: int = Field(ge=1, description="Samples per step; of serving, sequences at a time.")
    seq: int | None = Field(
        description="Positions of a sample; null: the network's input is no sequence, or it is served."
    )
    step_time_s: Seconds = Field(description="Time of one step; of serving, the time per token.")
    step_time_low_s: Seconds | None = Field(
        description="A measurement lies between this and `step_time_high_s` with a chance of 80 %; null: no error model."
    )
    step_time_high_s: Seconds | None
    time_s: Seconds = Field(description="Per `basis`.")
    relative_time: Number = Field(
        description="Time per `basis` (of serving, what the objective is about) over that of the first plan."
    )
    samples_per_s: Number = Field(description="Of serving, requests per second.")
    tokens_per_s: Number | None = Field(description="Of serving, output tokens; null where there are no tokens.")
    ttft_s: Seconds | None = Field(description="Of serving: time to the first token.")
    memory_bytes_per_gpu: Size = Field(description="Peak memory of the fullest GPU.")
    memory_capacity_bytes: Size = Field(description="Memory that it may use.")
    fits: bool
    mfu: Number | None = Field(description="Model FLOP utilisation; null where it is not known.")
    money_per_step: Number | None = Field(
        description="In USD; of serving, per token of every sequence. null: no price is stated."
    )
    energy_per_step_j: Number | None = Field(description="null: no power is stated, or the plan is of serving.")
    found: str | None = Field(description="How a search found the plan; null: it was given.")


class TextDifference(_Entry):
    """One thing that differs, as text of each plan, in their order."""

    name: str
    values: list[str] = Field(description="`-` where a plan has no such thing.")


class TimeDifference(_Entry):
    """One term of the time of each plan, in their order."""

    key: str
    name: str
    values_s: list[Number | None] = Field(description="Per `basis`.")
    differences_s: list[Number | None] = Field(description="Against the first plan.")


class MemoryDifference(_Entry):
    """One term of the memory of each plan, in their order."""

    key: str = Field(description="A term, or of splits per layer, layers.")
    name: str
    values_bytes: list[Number | None]
    differences_bytes: list[Number | None] = Field(description="Against the first plan.")


class CompareDocument(_Entry):
    """Answer of `planner compare --json`: plans side by side, each against the first."""

    schema_version: Literal[1]
    space: Literal["training", "serving"]
    basis: Literal["step", "sample", "token"] = Field(
        description=(
            "What times are per: a step where all plans do the same work in one (of serving, a token of every sequence); else a sample, "
            "or a token where samples differ in length."
        )
    )
    fastest: str = Field(description="Label of the fastest plan that fits.")
    is_same_question: bool = Field(description="Whether all plans answer the same question.")
    plans: list[ComparedPlan] = Field(min_length=2)
    question: list[TextDifference] = Field(description="What was asked otherwise.")
    settings: list[TextDifference] = Field(description="What differs in the plans.")
    layers: list[TextDifference] = Field(description="Layers that are split otherwise, neighbours together.")
    same_settings: dict[str, str] = Field(description="Settings of all plans that are not neutral.")
    times: list[TimeDifference] = Field(description="Terms that add up to `time_s`.")
    first_token: list[TimeDifference] = Field(description="Of serving: terms of the time to the first token.")
    memory: list[MemoryDifference] = Field(
        description="Terms that add up to `memory_bytes_per_gpu`; empty where unknown."
    )
    why: list[str] = Field(description="In sentences: what is compared, why a plan is faster, what its memory goes to.")
    warnings: list[str] = Field(description="What no longer holds of the plan files.")
