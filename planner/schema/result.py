"""What `--json` prints, one model per kind of answer; `planner schema result` publishes them as JSON Schema.

Times are in seconds, sizes in bytes, rates per second; a value that does not exist is null, never NaN or infinity.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = [
    "Compared",
    "ComparisonEntry",
    "ErrorBarsEntry",
    "Head",
    "ListDocument",
    "Number",
    "Result",
    "ScaleDocument",
    "Seconds",
    "SensitivityEntry",
    "Tail",
]

Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Result(BaseModel):
    """Part of an answer."""

    # Keys that later versions add are no error for a program that reads by this schema.
    model_config = ConfigDict(extra="ignore", frozen=True)


class AssumptionEntry(Result):
    """One thing that was taken for granted."""

    name: str
    value: str
    source: str = Field(description="Where it came from; empty where it was computed.")


class SettingEntry(Result):
    """The question, resolved to names."""

    device: str
    precision: str
    optimizer: str
    mode: Literal["training", "inference"]
    framework: str = Field(description="What runs the plans; empty: a well-tuned implementation.")
    memory_capacity_bytes: Number | None
    cost_model_options: dict[str, Number | str]
    inputs: dict[str, str] = Field(description="sha256 of the input files, by role.")
    command_line: str


class Head(Result):
    """What every answer begins with."""

    schema_version: Literal[1]
    model: str
    cluster: str
    gpus: int = Field(ge=1, description="Workers that were allowed.")
    global_batch: int = Field(ge=1, description="Samples per step, all workers together.")
    cost_model: Literal["roofline", "paleo"]


class Tail(Result):
    """What every answer ends with."""

    setting: SettingEntry
    assumptions: list[AssumptionEntry]
    free_layers: list[str] = Field(description="Layers that the cost model counts as free.")
    notes: list[str] = Field(description="Sentences for people.")


class ErrorBarsEntry(Result):
    """Where the error bars come from."""

    calibration: str = Field(description="Whose residuals they are.")
    kind: str = Field(
        description="Kind of workload: transformers, images, a framework, serving, serving-experts or serving-shared-experts."
    )
    note: str = Field(description="Why there are no error bars; empty where there are.")
    basis: str = Field(
        default="",
        description="What they stand on, where that is not training steps: fewer measurements, so they are wider.",
    )


class Compared(Result):
    """How sure a ranking is."""

    error_bars: ErrorBarsEntry | None = None
    benchmark_list: list[int] = Field(
        default_factory=list,
        description=(
            "Ranks of the fewest plans of which one is the best of those compared with a chance of at least 90 %, with those that take "
            "as long; ranks above `plans` are shown by a larger --top. Empty: not compared."
        ),
    )
    benchmark_probability: Number | None = Field(default=None, description="That chance, as it was found.")
    benchmark_compared: int = Field(
        default=0,
        ge=0,
        description="How many of the best plans were compared, whatever --top shows; their probability_best add up to 1.",
    )
    probability_others: Number | None = Field(
        default=None, description="Chance that the best is one of those compared that are not in `plans`."
    )
    near_list: list[int] = Field(
        default_factory=list,
        description=(
            "Ranks of the fewest plans, at most 4, of which one is the best or slower by at most `near_within` with a chance of at "
            "least 90 %."
        ),
    )
    near_probability: Number | None = Field(default=None, description="That chance, as it was found.")
    near_within: Number | None = Field(
        default=None, description="0.03, or the least rounded number above for which 4 plans are enough."
    )


class SensitivityEntry(Result):
    """One constant of the cost model, and the change at which another plan is the best."""

    constant: str
    meaning: str
    now: dict[str, Number] = Field(description="What the constant multiplies, in SI units.")
    factor: Number | None = Field(
        description="The nearest to 1 at which another of the best plans wins; null: none of up to 8 times more or less."
    )
    winner: int | None = Field(description="Rank of that plan in the search.")
    winner_summary: str
    log_sd: Number = Field(description="How sure the constant is: standard deviation of its natural logarithm.")
    standard_deviations: Number | None = Field(description="How many of these the change is.")


class ComparisonEntry(Result):
    """One term of this plan and of the best."""

    term: str
    plan_s: Number
    best_s: Number


class PointEntry(Result):
    """One number of workers."""

    workers: int
    global_batch: int
    batch_per_worker: int
    step_time_s: Seconds
    compute_s: Seconds
    exposed_communication_s: Seconds
    throughput_samples_per_s: Number
    speedup: Number
    efficiency: Number
    hours: Number | None = Field(description="Of training, with --epochs and --samples.")
    summary: str
    fits: bool
    step_time_low_s: Seconds | None = Field(
        default=None,
        description="A measurement lies between this and `step_time_high_s` with a chance of 80 %; null: no error model.",
    )
    step_time_high_s: Seconds | None = None


class ScaleDocument(Tail):
    """Answer of `planner scale --json`."""

    schema_version: Literal[1]
    model: str
    cluster: str
    cost_model: Literal["roofline", "paleo"]
    scaling: Literal["weak", "strong"]
    family: str
    batch: int = Field(ge=1, description="Samples per step: of each worker (weak) or of all together (strong).")
    epochs: Number | None
    samples: Number | None = Field(description="Samples of one epoch.")
    points: list[PointEntry]
    error_bars: ErrorBarsEntry | None = None


class ListDocument(Result):
    """Answer of `planner list --json`."""

    schema_version: Literal[1]
    kind: Literal["models", "devices", "clusters", "collectives"]
    items: list[dict[str, Any]]
