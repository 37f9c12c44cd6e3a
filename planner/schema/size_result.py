"""What `planner size --json` prints."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from planner.schema.result import Number, Result, Seconds

__all__ = ["SizeDocument"]


class _Entry(BaseModel):
    # Keys that later versions add are no error for a program that reads by this schema.
    model_config = Result.model_config


class GoalEntry(_Entry):
    """What was asked for."""

    tokens: Number | None
    samples: Number | None
    deadline_s: Seconds | None
    budget: Number | None = Field(description="In USD.")
    goodput: Number = Field(description="Share of the time in which steps are made.")


class TrialEntry(_Entry):
    """One search, and the whole training with its best plan."""

    cluster: str
    allowed_gpus: int = Field(ge=1, description="GPUs that the plan might use.")
    gpus: int | None = Field(
        description="GPUs that are paid for: whole nodes, or single GPUs inside one; null without a plan."
    )
    time_s: Seconds | None = Field(description="Of the training.")
    time_low_s: Seconds | None = Field(
        default=None,
        description="The training takes between this and `time_high_s` with a chance of 80 %; null: no error model.",
    )
    time_high_s: Seconds | None = None
    money: Number | None = Field(description="Of the training, in USD; null where no price is stated.")
    energy_j: Number | None = Field(description="Of the training; null where no power is stated.")
    meets: bool = Field(description="Whether it ends by the deadline, within the budget.")
    meets_90: bool | None = Field(
        default=None,
        description="Whether it does with a chance of 90 %: at the upper end of the interval; null: no error model.",
    )
    steps: int | None
    objective: str = Field(description="What the search made least: step_time, gpu_hours or energy.")
    batch: int | None
    seq: int | None
    status: str = Field(description="As in the rows of `planner sweep`.")
    reason: str | None
    workers: int | None = Field(description="GPUs that the plan uses.")
    family: str | None
    plan: str | None = Field(description="In words; --export writes that of the fewest GPUs.")
    step_time_s: Seconds | None
    tokens_per_s: Number | None
    mfu: Number | None
    memory_bytes_per_gpu: Number | None
    proven_optimal: bool | None = Field(description="Of the objective, on as many GPUs at most.")
    gap: Number | None


class SizeAnswer(TrialEntry):
    """A trial that is the answer to a wish."""

    binds: str = Field(description="What keeps the answer from being smaller, in words.")
    proven_least_gpus: bool = Field(description="Whether no smaller number of whole nodes meets the goal.")


class ClusterEntry(_Entry):
    """Everything about one cluster; the answers are null where nothing that was tried meets the goal."""

    cluster: str
    node: int = Field(ge=1, description="GPUs of a node.")
    most_gpus: int
    price_per_hour: Number | None = Field(description="Of a GPU, in USD.")
    least_money: Number | None = Field(
        description="No plan on any number of GPUs up to the most costs less, whatever it takes; null where that is not known."
    )
    least_gpus: SizeAnswer | None
    least_gpus_90: SizeAnswer | None = Field(default=None, description="That meet the goal with a chance of 90 %.")
    cheapest: SizeAnswer | None
    thriftiest: SizeAnswer | None = Field(description="Least energy of those tried.")
    tried: list[TrialEntry]


class SizeDocument(_Entry):
    """Answer of `planner size --json`."""

    schema_version: Literal[1]
    model: str
    goal: GoalEntry
    command_line: str
    interrupted: bool
    least_gpus: SizeAnswer | None = Field(description="Of all clusters; null where nothing meets the goal.")
    least_gpus_90: SizeAnswer | None = Field(
        default=None,
        description="Fewest GPUs that meet the goal with a chance of 90 %; null where none that was tried does.",
    )
    cheapest: SizeAnswer | None = Field(description="null also where clusters without a price are compared.")
    thriftiest: SizeAnswer | None
    nearest: TrialEntry | None = Field(description="The nearest miss, where nothing meets the goal.")
    clusters: list[ClusterEntry]
